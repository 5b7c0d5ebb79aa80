package queue

import (
	"cmp"
	"slices"
	"sort"
	"unsafe"

	"github.com/firemq/firemq/broker/message"
)

// delays holds the messages that are not due yet. They leave in order of due time, then of Seq.
//
//	Publish ──> fresh ──committed──> warm ──PageOut──> blocks ──> front ──due──> ready
//	   │                              └────────────────────────────────due──────> ready
//	   └──────> loose, which the journal does not have ────────────────due──────> ready
//
// Whatever the delays, what is paged out takes 2 to 12 bytes a message: blocks are short, and a
// message goes into the one that its due time belongs to.
type delays struct {
	n        int
	bytes    int64
	resident int64 // the cost of what could be paged out, as in ready

	fresh  fifo    // in order of Seq
	warm   dueHeap // committed
	loose  dueHeap
	front  []Entry // what is left of the first block, unpacked into room
	room   []Entry
	blocks []*dueBlock

	incoming []Entry // restored, in no block yet (see restored)
}

// dueBlock is a block of entries in order of due time, and the key of its first one.
type dueBlock struct {
	due    int64
	seq    uint64
	packed []byte
}

const (
	// dueEntries is the most entries of a block.
	dueEntries = 128
	// pageDelays is how many messages one call pages out at most: each may be a block's work.
	pageDelays = 256
	// restoreBatch is how many restored entries are collected, 14 MiB, before they go into blocks.
	restoreBatch = 1 << 18
)

// earlier is the order in which messages become ready.
func earlier(a, b *Entry) bool { return a.Due < b.Due || a.Due == b.Due && a.Seq < b.Seq }

func compareDue(a, b Entry) int { return cmp.Or(cmp.Compare(a.Due, b.Due), cmp.Compare(a.Seq, b.Seq)) }

func (d *delays) count(e *Entry, by int) {
	d.n += by
	d.bytes += int64(by) * int64(e.Size)
	d.resident += int64(by) * e.cost()
}

// push adds a message that was just published.
func (d *delays) push(e *Entry) {
	d.count(e, 1)
	if e.Journaled {
		d.fresh.push(e)
	} else {
		d.loose.push(e)
	}
}

// settles says whether a message in fresh is committed.
func (d *delays) settles(committed uint64) bool {
	return !d.fresh.empty() && !waits(d.fresh.front(), committed)
}

// settle takes at most limit committed messages out of fresh.
func (d *delays) settle(committed uint64, limit int) {
	for ; limit > 0 && d.settles(committed); limit-- {
		d.warm.push(d.fresh.front())
		d.fresh.pop()
	}
}

// next is the message that is due first, fresh ones aside, nil if there is none. It is valid until
// the next change.
func (d *delays) next() *Entry {
	if len(d.front) == 0 && len(d.blocks) > 0 {
		d.room = d.blocks[0].unpack(d.room[:0])
		d.front = d.room
		d.blocks[0] = nil
		d.blocks = d.blocks[1:]
	}
	var e *Entry
	if len(d.front) > 0 {
		e = &d.front[0]
	}
	if len(d.warm) > 0 && (e == nil || earlier(&d.warm[0], e)) {
		e = &d.warm[0]
	}
	if len(d.loose) > 0 && (e == nil || earlier(&d.loose[0], e)) {
		e = &d.loose[0]
	}
	return e
}

// pop removes next.
func (d *delays) pop() {
	e := d.next()
	d.count(e, -1)
	switch {
	case len(d.warm) > 0 && e == &d.warm[0]:
		d.warm.pop()
	case len(d.loose) > 0 && e == &d.loose[0]:
		d.loose.pop()
	default:
		if d.front = d.front[1:]; len(d.front)+len(d.blocks) == 0 {
			d.front, d.room, d.blocks = nil, nil, nil
		}
	}
}

// pageOut pages out committed messages, those that are due late first, until keep bytes are left. It
// says whether limit, or pageDelays, ended that.
func (d *delays) pageOut(keep int64, limit int, out *[]*message.Message) (more bool) {
	if len(d.warm) == 0 || d.resident <= keep {
		return false
	}
	// The last places of a heap are leaves, and mostly among the late ones.
	var batch []Entry
	for limit = min(limit, pageDelays); limit > 0 && len(d.warm) > 0 && d.resident > keep; limit-- {
		e := d.warm.popLast()
		d.resident -= e.cost()
		if e.Msg != nil {
			*out = append(*out, e.Msg)
			e.Pos, e.Msg = e.Position(), nil
		}
		batch = append(batch, e)
	}
	d.merge(batch)
	return limit == 0 && len(d.warm) > 0 && d.resident > keep
}

// merge puts entries without messages into the blocks that they belong to.
func (d *delays) merge(batch []Entry) {
	slices.SortFunc(batch, compareDue)
	if len(d.front) > 0 {
		d.blocks = slices.Insert(d.blocks, 0, packDue(d.front))
		d.front = nil
	}
	var both []Entry
	for len(batch) > 0 {
		at, n := d.place(&batch[0]), len(batch)
		last := at+1 >= len(d.blocks)
		if !last {
			n = sort.Search(n, func(i int) bool { return !d.blocks[at+1].after(&batch[i]) })
		}
		if both = both[:0]; len(d.blocks) > 0 {
			both = d.blocks[at].unpack(both)
		}
		both = mergeDue(both, batch[:n])
		batch = batch[n:]
		// At the end blocks are filled; one that must be split elsewhere is likely to grow again.
		size := dueEntries
		if parts := (len(both) + dueEntries - 1) / dueEntries; !last {
			size = (len(both) + parts - 1) / parts
		}
		var parts []*dueBlock
		for part := range slices.Chunk(both, size) {
			parts = append(parts, packDue(part))
		}
		d.blocks = slices.Replace(d.blocks, at, min(at+1, len(d.blocks)), parts...)
	}
}

// mergeDue merges b into a, both in order of due time.
func mergeDue(a, b []Entry) []Entry {
	i, j := len(a)-1, len(b)-1
	a = append(a, b...)
	for k := len(a) - 1; j >= 0; k-- {
		if i >= 0 && earlier(&b[j], &a[i]) {
			a[k] = a[i]
			i--
		} else {
			a[k] = b[j]
			j--
		}
	}
	return a
}

// place is the index of the last block that does not begin after e, or of the first one.
func (d *delays) place(e *Entry) int {
	return max(sort.Search(len(d.blocks), func(i int) bool { return d.blocks[i].after(e) })-1, 0)
}

// after says whether b begins after e.
func (b *dueBlock) after(e *Entry) bool { return e.Due < b.due || e.Due == b.due && e.Seq < b.seq }

func packDue(entries []Entry) *dueBlock {
	var room [dueEntries * 16]byte
	return &dueBlock{entries[0].Due, entries[0].Seq, slices.Clone(AppendBlock(room[:0], entries))}
}

// unpack appends b's entries to dst.
func (b *dueBlock) unpack(dst []Entry) []Entry {
	entries, _, err := DecodeBlock(dst, b.packed)
	if err != nil {
		panic("BUG: queue: a block of delayed messages cannot be unpacked")
	}
	return entries
}

// restore adds a message that the journal holds.
func (d *delays) restore(e *Entry) {
	d.count(e, 1)
	if d.incoming = append(d.incoming, *e); len(d.incoming) == restoreBatch {
		d.merge(d.incoming)
		d.incoming = d.incoming[:0]
	}
}

// restored ends a run of restore.
func (d *delays) restored() {
	d.merge(d.incoming)
	d.incoming = nil
}

// take moves up to limit messages to out, whether they are due or not, and says how many.
func (d *delays) take(limit int, out *[]Entry) (n int) {
	for ; n < limit && d.n > 0; n++ {
		e := d.next()
		if e != nil {
			*out = append(*out, *e)
			d.pop()
			continue
		}
		e = d.fresh.front()
		*out = append(*out, *e)
		d.count(e, -1)
		d.fresh.pop()
	}
	return n
}

// match is Queue.Find for delayed messages.
func (d *delays) match(moves []Move, relocate bool) {
	d.fresh.find(moves, relocate)
	for _, entries := range [...][]Entry{d.warm, d.front} {
		for i := range entries {
			Match(moves, &entries[i], relocate)
		}
	}
	if len(d.blocks) == 0 {
		return
	}
	var delayed []int // indices in moves
	for i := range moves {
		if moves[i].Due != 0 && !moves[i].Found {
			delayed = append(delayed, i)
		}
	}
	key := func(i int) *Entry { return &Entry{Due: moves[i].Due, Seq: moves[i].Seq} }
	slices.SortFunc(delayed, func(a, b int) int { return compareDue(*key(a), *key(b)) })
	var entries []Entry
	for len(delayed) > 0 {
		at, n := d.place(key(delayed[0])), 1
		for n < len(delayed) && (at+1 == len(d.blocks) || d.blocks[at+1].after(key(delayed[n]))) {
			n++
		}
		entries = d.blocks[at].unpack(entries[:0])
		changed := false
		for _, i := range delayed[:n] {
			if e, ok := slices.BinarySearchFunc(entries, *key(i), compareDue); ok && entries[e].Pos == moves[i].From {
				moves[i].Found, changed = true, relocate
				if relocate {
					entries[e].Pos = moves[i].To
				}
			}
		}
		if changed {
			d.blocks[at] = packDue(entries)
		}
		delayed = delayed[n:]
	}
}

// memory is how many bytes the places of the messages take.
func (d *delays) memory() int64 {
	n := d.fresh.memory + int64(cap(d.warm)+cap(d.loose)+cap(d.room))*int64(unsafe.Sizeof(Entry{}))
	for _, b := range d.blocks {
		n += int64(unsafe.Sizeof(b)) + int64(unsafe.Sizeof(*b)) + int64(cap(b.packed))
	}
	return n
}

// pieces is Queue.Pieces for delayed messages.
func (d *delays) pieces(yield func(Piece) bool) bool {
	if !d.fresh.pieces(yield) {
		return false
	}
	for _, entries := range [...][]Entry{d.warm, d.front} {
		if len(entries) > 0 && !yield(Piece{Entries: entries}) {
			return false
		}
	}
	for _, b := range d.blocks {
		if !yield(Piece{Block: b.packed}) {
			return false
		}
	}
	return true
}

// dueHeap is a binary heap of entries, the earliest first. It gives its memory back as it drains.
type dueHeap []Entry

func (h *dueHeap) push(e *Entry) {
	s := append(*h, *e)
	*h = s
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 2
		if earlier(&s[up], e) {
			break
		}
		s[i] = s[up]
		i = up
	}
	s[i] = *e
}

func (h *dueHeap) pop() {
	e := h.popLast()
	s := *h
	if len(s) == 0 {
		return
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= len(s) {
			break
		}
		if down+1 < len(s) && earlier(&s[down+1], &s[down]) {
			down++
		}
		if earlier(&e, &s[down]) {
			break
		}
		s[i] = s[down]
		i = down
	}
	s[i] = e
}

// popLast takes the entry that is last in the heap's slice.
func (h *dueHeap) popLast() Entry {
	s := *h
	n := len(s) - 1
	e := s[n]
	s[n].Msg = nil
	if s = s[:n]; n == 0 {
		s = nil
	} else if cap(s) > heapKeep && n <= cap(s)/4 {
		s = append(make(dueHeap, 0, cap(s)/2), s...)
	}
	*h = s
	return e
}
