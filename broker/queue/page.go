package queue

import (
	"cmp"
	"iter"
	"slices"

	"github.com/firemq/firemq/broker/message"
)

// A long backlog must not need memory for its bodies, which the journal has, nor much for its
// places. PageOut walks each fifo once from front to end, as far as messages are committed:
//
//	front                          cursor            end
//	| in memory, keep bytes | paged out | in memory |
//
// An entry that is paged out holds a position instead of a message. A chunk of nothing but such
// entries is packed into a block (pack.go).

// overhead is about what a message takes beside its body.
const overhead = 256

// cost is what paging e out would save.
func (e *Entry) cost() int64 {
	if e.Msg == nil || !e.Journaled {
		return 0
	}
	return int64(e.Size) + overhead
}

// cursor is how far PageOut has walked.
type cursor struct {
	chunk  *chunk // nil: not at all
	at     int    // index in chunk of the next entry
	before int64  // the cost of the entries between front and cursor that were kept
}

// pageOut pages out up to limit entries, the lower levels first: only the highest one keeps any.
func (r *ready) pageOut(keep int64, committed uint64, limit int, out *[]*message.Message) (more bool) {
	page := func(l *level, keep int64) {
		for f := range l.fifos() {
			looked, saved := f.pageOut(keep, committed, limit, out)
			limit -= looked
			r.resident -= saved
			keep /= 2
		}
	}
	if r.levels == nil {
		page(&r.plain, keep)
		return limit == 0
	}
	for p, l := range r.levels.all {
		switch {
		case l == nil:
		case r.levels.top == p:
			page(l, keep)
		default:
			page(l, 0)
		}
	}
	return limit == 0
}

// pageOut says how many entries it looked at and what it saved.
func (f *fifo) pageOut(keep int64, committed uint64, limit int, out *[]*message.Message) (looked int, saved int64) {
	if f.empty() {
		return 0, 0
	}
	if f.paging.chunk == nil {
		f.paging = cursor{chunk: f.first, at: f.from}
	}
	cur := &f.paging
	for looked < limit {
		c := cur.chunk
		switch {
		case c == f.last && cur.at == f.to:
			return looked, saved
		case cur.at == len(c.entries):
			cur.chunk, cur.at = c.next, 0
			if c != f.first {
				f.pack(c)
			}
			continue
		}
		e := &c.entries[cur.at]
		if waits(e, committed) {
			return looked, saved
		}
		switch cost := e.cost(); {
		case cost == 0:
		case cur.before+cost <= keep:
			cur.before += cost
		default:
			*out = append(*out, e.Msg)
			e.Pos = e.Position()
			e.Msg = nil
			saved += cost
		}
		cur.at++
		looked++
	}
	return looked, saved
}

// passes follows the front, which is about to leave, on behalf of the cursor.
func (f *fifo) passes(front *Entry) {
	f.paging.before -= front.cost()
	if f.paging.chunk == f.first && f.paging.at <= f.from+1 {
		f.paging = cursor{}
	}
}

// packBytes is the room that a block of a chunk takes at first: those of one size fit.
const packBytes = 48

// pack packs c if every entry of it is paged out.
func (f *fifo) pack(c *chunk) {
	if cap(c.entries) != chunkEntries || len(c.entries) == 0 {
		return
	}
	for i := range c.entries {
		if e := &c.entries[i]; e.Msg != nil || !e.Journaled {
			return
		}
	}
	entries := c.entries
	f.repack(c, entries)
	chunks.Put(&chunk{entries: entries[:chunkEntries]})
}

// repack makes entries, without messages, what c holds, as a block.
func (f *fifo) repack(c *chunk, entries []Entry) {
	f.memory -= c.memory()
	c.packed = AppendBlock(make([]byte, 0, packBytes), entries)
	if cap(c.packed) > len(c.packed)+16 {
		c.packed = slices.Clone(c.packed)
	}
	c.entries = nil
	f.memory += c.memory()
}

// unpack undoes pack.
func (f *fifo) unpack(c *chunk) {
	if c.packed == nil {
		return
	}
	f.memory -= c.memory()
	c.entries = c.unpackTo(chunks.Get().(*chunk).entries)
	c.packed, c.again = nil, false
	f.memory += c.memory()
}

// unpackTo unpacks c into to, which has room for chunkEntries.
func (c *chunk) unpackTo(to []Entry) []Entry {
	entries, _, err := DecodeBlock(to[:0], c.packed)
	if err != nil || len(entries) > chunkEntries {
		panic("BUG: queue: a packed chunk cannot be unpacked")
	}
	if c.again {
		for i := range entries {
			entries[i].Redelivered = true
		}
	}
	return entries
}

// Backlog is what Purge and Close took off a queue, to be settled and released by the owner in
// pieces. It belongs to the owner alone, who needs no lock for it.
type Backlog struct {
	ready  ready
	delays *delays // nil for none
}

// Len is the number of messages left in it.
func (b *Backlog) Len() int {
	if b.delays != nil {
		return b.ready.n + b.delays.n
	}
	return b.ready.n
}

// Take moves up to limit messages to out: each priority level in order, then what was delayed.
func (b *Backlog) Take(limit int, out *[]Entry) {
	for ; limit > 0 && b.ready.n > 0; limit-- {
		*out = append(*out, *b.ready.head())
		b.ready.pop()
	}
	if b.delays != nil {
		b.delays.take(limit, out)
	}
}

// detach takes everything out, whatever its length.
func (r *ready) detach() ready {
	all := *r
	*r = ready{}
	if all.levels != nil {
		r.levels = newLevels(len(all.levels.all))
	}
	return all
}

// Move names a message by its place, and the one that its record was copied to.
type Move struct {
	Seq   uint64
	From  uint64 // position; a Seq may be there twice, with different ones
	To    uint64
	Due   int64 // 0 for a message that had no delay
	Found bool
}

// Find says in moves, which are in ascending Seq, which of them are ready or delayed messages with that
// position. With relocate, those found are at To from now on, where the journal has a committed
// copy. It takes the time of decoding the chunks that they are in.
func (q *Queue) Find(moves []Move, relocate bool) {
	for l := range q.ready.each() {
		for i := range l.back {
			Match(moves, &l.back[i], relocate)
		}
		l.fifo.find(moves, relocate)
		if l.ripe != nil {
			l.ripe.findRipe(moves, relocate)
		}
	}
	if q.delays != nil {
		q.delays.match(moves, relocate)
	}
	q.checkNow()
}

// Match marks the one of moves, which are in ascending Seq, that names e, and with relocate sets
// e's place. It reports whether there is one.
func Match(moves []Move, e *Entry, relocate bool) bool {
	if !e.Journaled {
		return false
	}
	i, _ := slices.BinarySearchFunc(moves, e.Seq, func(m Move, seq uint64) int { return cmp.Compare(m.Seq, seq) })
	for pos := e.Position(); i < len(moves) && moves[i].Seq == e.Seq; i++ {
		if m := &moves[i]; m.From == pos {
			m.Found = true
			if relocate {
				e.Pos = m.To
			}
			return true
		}
	}
	return false
}

func (f *fifo) find(moves []Move, relocate bool) {
	var scratch [chunkEntries]Entry
	for c := f.first; c != nil && len(moves) > 0; c = c.next {
		// The next chunk's first Seq bounds this one's.
		if n := c.next; c.packed != nil && n.firstSeq() <= moves[0].Seq {
			continue
		}
		entries := f.look(c, scratch[:])
		changed := false
		for i := range entries {
			e := &entries[i]
			for len(moves) > 0 && moves[0].Seq < e.Seq {
				moves = moves[1:]
			}
			if len(moves) == 0 {
				break
			}
			if moves[0].Seq == e.Seq && Match(moves, e, relocate) {
				changed = changed || relocate
			}
		}
		if changed && c.packed != nil {
			f.repack(c, entries)
		}
	}
}

// findRipe is find for messages that were delayed, which are in no order of Seq: a chunk is looked
// into if one of moves lies between its due times.
func (f *fifo) findRipe(moves []Move, relocate bool) {
	if f.empty() {
		return
	}
	var dues []int64
	for i := range moves {
		if moves[i].Due != 0 {
			dues = append(dues, moves[i].Due)
		}
	}
	slices.Sort(dues)
	var scratch [chunkEntries]Entry
	for c := f.first; c != nil; c = c.next {
		if i, _ := slices.BinarySearch(dues, c.from); i == len(dues) || dues[i] > c.to {
			continue
		}
		entries := f.look(c, scratch[:])
		changed := false
		for i := range entries {
			changed = Match(moves, &entries[i], relocate) && relocate || changed
		}
		if changed && c.packed != nil {
			f.repack(c, entries)
		}
	}
}

// look gives the entries of chunk c, which are unpacked into scratch if need be.
func (f *fifo) look(c *chunk, scratch []Entry) []Entry {
	if c.packed != nil {
		return c.unpackTo(scratch)
	}
	from, to := 0, len(c.entries)
	if c == f.first {
		from = f.from
	}
	if c == f.last {
		to = f.to
	}
	return c.entries[from:to]
}

// firstSeq is the Seq of the first entry of a chunk that is not the fifo's first one.
func (c *chunk) firstSeq() uint64 {
	if c.packed == nil {
		return c.entries[0].Seq
	}
	r := reader{src: c.packed}
	r.uvarint()
	return r.uvarint()
}

// Piece is a part of a queue's ready messages: either a Block, which is immutable and stays valid,
// or Entries, which are valid during the call only.
type Piece struct {
	Block   []byte
	Entries []Entry
}

// Pieces walks the ready messages, then the delayed ones that the journal holds: each priority level in
// order of Seq, what was requeued before the others and in no order, what is or was delayed in none
// either.
func (q *Queue) Pieces() iter.Seq[Piece] {
	return func(yield func(Piece) bool) {
		for l := range q.ready.each() {
			if len(l.back) > 0 && !yield(Piece{Entries: l.back}) {
				return
			}
			for f := range l.fifos() {
				if !f.pieces(yield) {
					return
				}
			}
		}
		if q.delays != nil {
			q.delays.pieces(yield)
		}
	}
}

func (f *fifo) pieces(yield func(Piece) bool) bool {
	for c := f.first; c != nil; c = c.next {
		p := Piece{Block: c.packed}
		if c.packed == nil {
			p.Entries = f.look(c, nil)
		}
		if !yield(p) {
			return false
		}
	}
	return true
}

// each walks the levels with their priorities, the lowest first.
func (r *ready) each() iter.Seq2[*level, int] {
	return func(yield func(*level, int) bool) {
		if r.levels == nil {
			yield(&r.plain, 0)
			return
		}
		for p, l := range r.levels.all {
			if l != nil && !yield(l, p) {
				return
			}
		}
	}
}
