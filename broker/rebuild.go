package broker

import (
	"cmp"
	"slices"

	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/journal"
)

// rebuilt is one queue while the journal is replayed: the places of its messages, packed, since
// there may be many millions. Almost all come in ascending Seq and are settled from the front.
// Those that do not (moved ones, priorities of a checkpoint) make further streams, each ascending.
type rebuilt struct {
	q       *Queue
	streams []*stream
	maxSeq  uint64
	delayed bool // some of them have a due time
	// unsorted are those that a checkpoint has in order of due time, until there are many or all.
	unsorted []queue.Entry
	keys     remembered
}

const (
	// openEntries is the size of a block.
	openEntries = queue.BlockEntries
	// maxUnsorted is how many entries are sorted at a time: 14 MiB.
	maxUnsorted = 1 << 18
	// maxStreams bounds the streams; when more are needed, all are sorted into one.
	maxStreams = 300
)

// stream is a run of ascending blocks. Only the last one is open.
type stream struct {
	blocks []*block
	empty  int // blocks without live entries
}

type block struct {
	first, last uint64        // Seq
	packed      []byte        // nil while it is open or empty
	open        []queue.Entry // nil once it is packed
	dead        [openEntries / 64]uint64
	live        int
	bytes       int64 // body bytes of all, dead or not
	lost        bool  // some may be in a segment that is gone
}

// unpack gives the block's entries, in scratch if need be.
func (b *block) unpack(scratch []queue.Entry) []queue.Entry {
	if b.packed == nil {
		return b.open
	}
	entries, _, err := queue.DecodeBlock(scratch[:0], b.packed)
	if err != nil {
		panic("BUG: broker: a block of the recovery cannot be unpacked")
	}
	return entries
}

func (b *block) isDead(i int) bool { return b.dead[i/64]>>(i%64)&1 == 1 }

func (s *stream) last() *block {
	if len(s.blocks) == 0 {
		return nil
	}
	return s.blocks[len(s.blocks)-1]
}

// from is the index of the first block that may hold seq or a later one.
func (s *stream) from(seq uint64) int {
	i, _ := slices.BinarySearchFunc(s.blocks, seq, func(b *block, seq uint64) int { return cmp.Compare(b.last, seq) })
	return i
}

// push adds an entry with a higher Seq than all others of the stream.
func (s *stream) push(e queue.Entry) {
	b := s.last()
	if b == nil || b.open == nil || len(b.open) == openEntries {
		if b != nil {
			s.seal(b)
		}
		b = &block{first: e.Seq, open: make([]queue.Entry, 0, openEntries)}
		s.blocks = append(s.blocks, b)
	}
	b.open = append(b.open, e)
	b.bytes += int64(e.Size)
	b.last = e.Seq
	b.live++
}

func (s *stream) seal(b *block) {
	if b.open != nil && b.live > 0 {
		b.packed = slices.Clip(queue.AppendBlock(nil, b.open))
	}
	b.open = nil
}

// kill marks entry i of block b as settled.
func (s *stream) kill(b *block, i int) {
	b.dead[i/64] |= 1 << (i % 64)
	if b.live--; b.live > 0 {
		return
	}
	if b == s.last() {
		return // it is open, and goes on
	}
	b.packed = nil
	if s.empty++; s.empty > 64 && s.empty > len(s.blocks)/2 {
		s.empty = 0
		last := s.last()
		s.blocks = slices.DeleteFunc(s.blocks, func(b *block) bool { return b.live == 0 && b != last })
	}
}

// add gives a message its place. A place that the queue has for it already is given up when
// moved, else the new one is. It reports whether the new place is the one that counts.
func (r *recovery) add(q *rebuilt, e queue.Entry, moved bool) bool {
	if e.Seq <= q.maxSeq {
		if s, b, i := r.find(q, e.Seq); s != nil {
			if !moved {
				return false
			}
			r.j.Free(r.scratch[i].Pos, 1, weight(r.scratch[i].Size))
			s.kill(b, i)
		}
	}
	q.maxSeq = max(q.maxSeq, e.Seq)
	q.delayed = q.delayed || e.Due != 0
	if q.q.settings.Load().Config.MaxPriority == queue.None {
		e.Priority = 0
	}
	q.stream(e.Seq).push(e)
	return true
}

// stream gives the stream whose end is the closest one before seq.
func (q *rebuilt) stream(seq uint64) *stream {
	var best *stream
	for _, s := range q.streams {
		if b := s.last(); b != nil && b.last < seq && (best == nil || b.last > best.last().last) {
			best = s
		}
	}
	if best != nil {
		return best
	}
	if len(q.streams) >= maxStreams {
		q.merge()
		if q.streams[0].last() == nil || q.streams[0].last().last < seq {
			return q.streams[0]
		}
	}
	s := &stream{}
	q.streams = append(q.streams, s)
	return s
}

// sort makes a stream of what is unsorted.
func (q *rebuilt) sort() {
	if len(q.unsorted) == 0 {
		return
	}
	slices.SortFunc(q.unsorted, func(a, b queue.Entry) int { return cmp.Compare(a.Seq, b.Seq) })
	if len(q.streams) >= maxStreams {
		q.merge()
	}
	s := &stream{}
	for _, e := range q.unsorted {
		s.push(e)
	}
	q.streams = append(q.streams, s)
	q.unsorted = q.unsorted[:0]
}

// merge makes one stream of all.
func (q *rebuilt) merge() {
	one := &stream{}
	q.each(func(e queue.Entry) { one.push(e) })
	q.streams = []*stream{one}
}

// find looks for a live entry and leaves its block in r.scratch.
func (r *recovery) find(q *rebuilt, seq uint64) (*stream, *block, int) {
	for _, s := range q.streams {
		k := s.from(seq)
		if k == len(s.blocks) || s.blocks[k].first > seq || s.blocks[k].live == 0 {
			continue
		}
		b := s.blocks[k]
		r.scratch = append(r.scratch[:0], b.unpack(r.scratch)...)
		i, ok := slices.BinarySearchFunc(r.scratch, seq, func(e queue.Entry, seq uint64) int { return cmp.Compare(e.Seq, seq) })
		if ok && !b.isDead(i) {
			return s, b, i
		}
	}
	return nil, nil, 0
}

// settle ends the entries from to to.
func (r *recovery) settle(q *rebuilt, from, to uint64) {
	q.maxSeq = max(q.maxSeq, to)
	for _, s := range q.streams {
		for k := s.from(from); k < len(s.blocks) && s.blocks[k].first <= to; k++ {
			b := s.blocks[k]
			if b.live == 0 {
				continue
			}
			n := len(s.blocks)
			if r.cached != b || b.open != nil {
				r.cached, r.cache = b, append(r.cache[:0], b.unpack(r.cache)...)
			}
			if b.open != nil {
				r.cached = nil // it still grows
			}
			for i := range r.cache {
				if e := &r.cache[i]; e.Seq >= from && e.Seq <= to && !b.isDead(i) {
					r.j.Free(e.Pos, 1, weight(e.Size))
					s.kill(b, i)
				}
			}
			if len(s.blocks) != n { // empty ones were dropped
				k = s.from(b.last) - 1
			}
		}
	}
}

// each gives the live entries in ascending Seq.
func (q *rebuilt) each(f func(queue.Entry)) {
	type cursor struct {
		s       *stream
		block   int
		entries []queue.Entry
		at      int
		scratch []queue.Entry
	}
	next := func(c *cursor) bool { // to the next live entry
		for {
			for ; c.at < len(c.entries); c.at++ {
				if !c.s.blocks[c.block-1].isDead(c.at) {
					return true
				}
			}
			if c.block == len(c.s.blocks) {
				return false
			}
			b := c.s.blocks[c.block]
			c.block++
			c.at, c.entries = 0, nil
			if b.live > 0 {
				c.entries = b.unpack(c.scratch)
				if b.packed != nil {
					c.scratch = c.entries
				}
			}
		}
	}
	var cursors []*cursor
	for _, s := range q.streams {
		if c := (&cursor{s: s}); next(c) {
			cursors = append(cursors, c)
		}
	}
	for len(cursors) > 0 {
		low := 0
		for i := 1; i < len(cursors); i++ {
			if cursors[i].entries[cursors[i].at].Seq < cursors[low].entries[cursors[low].at].Seq {
				low = i
			}
		}
		c := cursors[low]
		f(c.entries[c.at])
		c.at++
		if !next(c) {
			cursors = slices.Delete(cursors, low, low+1)
		}
	}
}

// discard frees every place of a queue that was deleted.
func (r *recovery) discard(q *rebuilt) {
	q.each(func(e queue.Entry) { r.j.Free(e.Pos, 1, weight(e.Size)) })
	q.streams = nil
}

// weight is what a message counts in the journal for each of its queues.
func weight(size uint32) int64 { return int64(size) + weightEach }

// weightEach stands for what a record has beside the body.
const weightEach = 128

var _ journal.Replay = (*recovery)(nil)
