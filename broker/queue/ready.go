package queue

import (
	"iter"
	"math"
	"math/bits"
	"sync"
	"unsafe"
)

// ready holds the ready messages: one level for each priority, the highest first.
//
// A plain queue has the level inside it alone. Others make a level when its first message comes
// and find the highest one with messages by a bitmap.
type ready struct {
	n        int
	bytes    int64
	resident int64 // the cost of what could be paged out

	plain  level
	levels *levels // nil for a plain queue
}

// levels are those of a queue with priorities.
type levels struct {
	all  []*level  // by priority; nil until a message comes
	used [4]uint64 // those that hold messages
	top  int       // the highest of them, while there are messages
}

func newLevels(n int) *levels { return &levels{all: make([]*level, n)} }

// head is the message that leaves next. It may be called while n > 0, and the result is valid until
// the next change.
func (r *ready) head() *Entry {
	if r.levels == nil {
		return r.plain.head()
	}
	return r.levels.all[r.levels.top].head()
}

// pop removes the head.
func (r *ready) pop() {
	if r.levels == nil {
		r.takeFrom(&r.plain)
		return
	}
	r.take(r.levels.top)
}

// take removes the first message of priority p, in a queue with priorities.
func (r *ready) take(p int) {
	l := r.levels.all[p]
	if r.takeFrom(l); l.empty() {
		r.leave(p)
	}
}

func (r *ready) takeFrom(l *level) {
	e := l.head()
	r.n--
	r.bytes -= int64(e.Size)
	r.resident -= e.cost()
	l.pop()
}

// leave notes that a level is empty.
func (r *ready) leave(p int) {
	ls := r.levels
	if ls == nil {
		return
	}
	ls.used[p/64] &^= 1 << (p % 64)
	if p == ls.top {
		ls.findTop()
	}
}

// push adds a message that is newer than all others of its level.
func (r *ready) push(e *Entry) {
	r.enter(e).fifo.push(e)
}

// restore is push for a recovery: a long run of messages whose bodies are in the journal is packed as
// it comes. It panics when e is not newer than all others of its level.
func (r *ready) restore(e *Entry) {
	f := &r.enter(e).fifo
	f.checkOrder(e.Seq)
	f.push(e)
	if f.to == len(f.last.entries) {
		f.pageOut(0, 0, 2*chunkEntries, nil)
	}
}

func (f *fifo) checkOrder(seq uint64) {
	if !f.empty() && f.last.packed == nil && f.last.entries[f.to-1].Seq >= seq {
		panic("BUG: queue: restored out of order")
	}
}

// restoreBlock is restore for a whole chunk, which stays packed. The next one to be restored, of
// which there is at least one, follows in a chunk of its own.
func (r *ready) restoreBlock(block []byte, first uint64, bytes int64) {
	f := &r.plain.fifo
	f.checkOrder(first)
	if f.last.packed == nil {
		f.last.entries = f.last.entries[:f.to]
	}
	c := &chunk{packed: block, again: true, soonest: 1} // until somebody looks
	f.last.next = c
	f.last, f.to = c, 0
	f.memory += c.memory()
	r.n += chunkEntries
	r.bytes += bytes
}

// ripen adds a message whose delay is over: behind all others of its level.
func (r *ready) ripen(e *Entry) {
	l := r.enter(e)
	if l.ripe == nil {
		l.ripe = &fifo{ripe: true}
	}
	l.ripe.append(e)
}

// requeue adds a message that left by pop.
func (r *ready) requeue(e *Entry) {
	r.enter(e).back.push(e)
}

// enter counts a message in and finds its level.
func (r *ready) enter(e *Entry) *level {
	r.n++
	r.bytes += int64(e.Size)
	r.resident += e.cost()
	if r.levels == nil {
		return &r.plain
	}
	p, ls := int(e.Priority), r.levels
	if ls.all[p] == nil {
		ls.all[p] = new(level)
	}
	ls.used[p/64] |= 1 << (p % 64)
	if r.n == 1 || p > ls.top {
		ls.top = p
	}
	return ls.all[p]
}

func (ls *levels) findTop() {
	for w := ls.top / 64; w >= 0; w-- {
		if ls.used[w] != 0 {
			ls.top = w*64 + bits.Len64(ls.used[w]) - 1
			return
		}
	}
}

// level holds the ready messages of one priority in order of rank. New messages go to the end of
// fifo, those that were delayed to the end of ripe, and of the two fronts the one with the lower rank
// leaves. So whatever comes back has a lower rank than all of both: back is always before them.
type level struct {
	fifo fifo
	back heap
	ripe *fifo // nil while there never was one
}

func (l *level) empty() bool {
	return len(l.back) == 0 && l.fifo.empty() && (l.ripe == nil || l.ripe.empty())
}

// front is the fifo that the next message leaves, unless one came back.
func (l *level) front() *fifo {
	if l.ripe == nil || l.ripe.empty() || !l.fifo.empty() && l.fifo.front().Seq < l.ripe.front().rank() {
		return &l.fifo
	}
	return l.ripe
}

func (l *level) head() *Entry {
	if len(l.back) > 0 {
		return &l.back[0]
	}
	if l.ripe == nil {
		return l.fifo.front()
	}
	return l.front().front()
}

func (l *level) pop() {
	switch {
	case len(l.back) > 0:
		l.back.pop()
	case l.ripe == nil:
		l.fifo.pop()
	default:
		l.front().pop()
	}
}

// fifos walks the fifos of a level.
func (l *level) fifos() iter.Seq[*fifo] {
	return func(yield func(*fifo) bool) {
		if yield(&l.fifo) && l.ripe != nil {
			yield(l.ripe)
		}
	}
}

// fifo is a queue of entries in a list of chunks, so that a long backlog grows and shrinks
// without ever being copied. The first few entries live in a small chunk. An empty one holds none: of
// thousands of queues that are near empty, the next one takes the chunk that the last one has just given back, which is
// still in the processor's cache.
type fifo struct {
	first, last *chunk
	from        int   // index of the front in first
	to          int   // index behind the end in last
	memory      int64 // bytes of the chunks in the list

	paging cursor
	marks  *marks // nil while nobody has browsed
	ripe   bool   // of messages that were delayed: in order of rank, not of Seq; immutable
}

const (
	chunkEntries      = 128 // 7 KiB
	smallChunkEntries = 8
)

type chunk struct {
	next    *chunk
	entries []Entry // without messages outside of the fifo's from and to; nil when packed
	again   bool    // all of packed are redelivered, whatever it says
	packed  []byte  // a block; neither the first chunk's nor the last one's
	// from and to bound the due times of entries that were delayed (see append).
	from, to int64
	soonest  int64 // no entry expires earlier, 0: none does (see expunge.go)
}

// memory is how many bytes it takes.
func (c *chunk) memory() int64 {
	return int64(unsafe.Sizeof(*c)) + int64(cap(c.entries))*int64(unsafe.Sizeof(Entry{})) + int64(cap(c.packed))
}

// chunks lends the large ones, smallChunks those that come first.
var (
	chunks      = sync.Pool{New: func() any { return &chunk{entries: make([]Entry, chunkEntries)} }}
	smallChunks = sync.Pool{New: func() any { return &chunk{entries: make([]Entry, smallChunkEntries)} }}
)

func (f *fifo) empty() bool { return f.first == nil }

func (f *fifo) front() *Entry { return &f.first.entries[f.from] }

// warmAhead is how many messages ahead of its turn a message's memory is asked for.
const warmAhead = 8

// warm asks for the memory of n messages, beginning with the one that has skip before it, as far as they are in the first
// chunk. Those that did not have to wait for the journal have mostly just come, and are in the cache.
func (f *fifo) warm(skip, n int) {
	c := f.first
	if c == nil {
		return
	}
	end := len(c.entries)
	if c == f.last {
		end = f.to
	}
	for i := f.from + skip; i < min(f.from+skip+n, end); i++ {
		if e := &c.entries[i]; e.Journaled && e.Msg != nil {
			e.Msg.Warm()
		}
	}
}

func (f *fifo) push(e *Entry) {
	if f.last == nil || f.to == len(f.last.entries) {
		f.grow()
	}
	f.last.entries[f.to] = *e
	f.to++
	if e.Expiry != 0 && (f.last.soonest == 0 || e.Expiry < f.last.soonest) {
		f.last.soonest = e.Expiry
	}
}

// append is push for messages that were delayed. A chunk of those that come from the journal alone is
// packed when it is full: there is nothing in it to page out.
func (f *fifo) append(e *Entry) {
	before := f.last
	f.push(e)
	c := f.last
	if c == before {
		c.from, c.to = min(c.from, e.Due), max(c.to, e.Due)
		return
	}
	c.from, c.to = e.Due, e.Due
	if before != nil && before != f.first && before != f.paging.chunk {
		f.pack(before)
	}
}

func (f *fifo) grow() {
	f.to = 0
	if f.first == nil {
		c := smallChunks.Get().(*chunk)
		f.first, f.last, f.from = c, c, 0
		f.memory += c.memory()
		return
	}
	c := chunks.Get().(*chunk)
	f.memory += c.memory()
	f.last.next = c
	f.last = c
}

func (f *fifo) pop() {
	c := f.first
	if f.paging.chunk != nil {
		f.passes(&c.entries[f.from])
	}
	c.entries[f.from].Msg = nil // the slot must not keep the message alive
	f.from++
	if c == f.last {
		if f.from == f.to {
			f.first, f.last = nil, nil
			f.free(c)
		}
	} else if f.from == len(c.entries) {
		f.first, f.from = c.next, 0
		f.unpack(f.first)
		f.free(c)
	}
}

// free takes an empty chunk out of use.
func (f *fifo) free(c *chunk) {
	f.unmark(c)
	c.next, c.entries, c.soonest = nil, c.entries[:cap(c.entries)], 0
	f.memory -= c.memory()
	if len(c.entries) == smallChunkEntries {
		smallChunks.Put(c)
	} else {
		chunks.Put(c)
	}
}

// heap is a binary heap of entries, the lowest rank first. It gives its memory back as it drains.
type heap []Entry

// heapKeep is the capacity that a heap keeps when it is empty.
const heapKeep = 64 // 3.5 KiB

func (h *heap) push(e *Entry) {
	s := *h
	i := len(s)
	if i == cap(s) { // by powers of two, so that pop's halves meet the same sizes
		s = append(make(heap, 0, max(2*i, heapKeep/4)), s...)
	}
	s = s[:i+1]
	for i > 0 {
		up := (i - 1) / 2
		if s[up].rank() < e.rank() {
			break
		}
		s[i] = s[up]
		i = up
	}
	s[i] = *e
	*h = s
}

func (h *heap) pop() {
	s := *h
	n := len(s) - 1
	e := s[n]
	s[n].Msg = nil
	s = s[:n]
	if n > 0 {
		s.down(0, &e)
	}
	switch {
	case cap(s) <= heapKeep:
	case n == 0:
		s = nil
	case n <= cap(s)/4:
		s = append(make(heap, 0, cap(s)/2), s...)
	}
	*h = s
}

// down puts e at i or below, where what is there makes room.
func (h heap) down(i int, e *Entry) {
	for {
		down := 2*i + 1
		if down >= len(h) {
			break
		}
		if down+1 < len(h) && h[down+1].rank() < h[down].rank() {
			down++
		}
		if e.rank() < h[down].rank() {
			break
		}
		h[i] = h[down]
		i = down
	}
	h[i] = *e
}

// init makes a heap of entries in any order.
func (h heap) init() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		e := h[i]
		h.down(i, &e)
	}
}

// arrivals is the priorities of messages in transit, in the order in which they came: so the queue is left.
type arrivals struct {
	all []uint8
	at  int // those before it have left
}

// arrivalsKept is how many of those that have left it keeps at most, if they are the greater part.
const arrivalsKept = 1024

func (a *arrivals) push(p uint8) { a.all = append(a.all, p) }

func (a *arrivals) first() int { return int(a.all[a.at]) }

func (a *arrivals) pop() {
	if a.at++; a.at >= arrivalsKept && a.at >= len(a.all)/2 {
		a.all, a.at = a.all[:copy(a.all, a.all[a.at:])], 0
	}
}

// drop forgets as many of each priority as there are in gone.
func (a *arrivals) drop(gone []Entry) {
	var count [math.MaxUint8 + 1]int
	for i := range gone {
		count[gone[i].Priority]++
	}
	kept := a.all[:a.at]
	for _, p := range a.all[a.at:] {
		if count[p] > 0 {
			count[p]--
			continue
		}
		kept = append(kept, p)
	}
	a.all = kept
}

func (a *arrivals) reset() {
	if a.all, a.at = a.all[:0], 0; cap(a.all) > 4*arrivalsKept {
		a.all = nil
	}
}
