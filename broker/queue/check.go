package queue

import (
	"fmt"
	"iter"
	"slices"
)

// check walks the whole queue and reports the first broken invariant.
func (q *Queue) check() error {
	n, bytes, resident, err := q.ready.check(q.cfg.ExpireAnywhere, q.soonest)
	switch {
	case err != nil:
		return err
	case resident != q.ready.resident:
		return fmt.Errorf("resident %d, counted %d", resident, q.ready.resident)
	case n != q.ready.n || bytes != q.ready.bytes:
		return fmt.Errorf("ready holds %d messages of %d bytes, counted %d of %d", n, bytes, q.ready.n, q.ready.bytes)
	case q.unacked < 0 || q.unackedBytes < 0:
		return fmt.Errorf("unacked %d messages of %d bytes", q.unacked, q.unackedBytes)
	}
	if q.arrivals != nil && q.transit && q.ready.n > 0 {
		if err := q.arrivals.check(&q.ready); err != nil {
			return err
		}
	}
	for l := range q.ready.each() {
		for e := range l.each() {
			if e.Seq == 0 || e.rank() >= q.nextSeq {
				return fmt.Errorf("seq %d, rank %d are not below %d", e.Seq, e.rank(), q.nextSeq)
			}
			if err := q.debug.notOut(e.Seq); err != nil {
				return err
			}
		}
	}
	if q.delays != nil {
		if err := q.delays.check(q.nextSeq); err != nil {
			return err
		}
	}
	if err := q.debug.check(q.unacked); err != nil {
		return err
	}
	return q.consumers.check(q.unacked)
}

// check compares the levels of what is in transit, which is all that is ready.
func (a *arrivals) check(r *ready) error {
	count := make(map[int]int)
	for _, p := range a.all[a.at:] {
		count[int(p)]++
	}
	for l, p := range r.each() {
		n := 0
		for range l.each() {
			n++
		}
		if n != count[p] {
			return fmt.Errorf("level %d: %d messages in transit, noted %d", p, n, count[p])
		}
	}
	return nil
}

// check walks all that is ready. With anywhere no message expires before soonest.
func (r *ready) check(anywhere bool, soonest int64) (n int, bytes, resident int64, err error) {
	top := -1
	for l, p := range r.each() {
		var last uint64
		count := 0
		for e := range l.each() {
			count++
			bytes += int64(e.Size)
			resident += e.cost()
			if e.Expiry != 0 && anywhere && (soonest == 0 || e.Expiry < soonest) {
				return 0, 0, 0, fmt.Errorf("a message expires at %d, the soonest at %d", e.Expiry, soonest)
			}
			if int(e.Priority) != p {
				return 0, 0, 0, fmt.Errorf("priority %d in level %d", e.Priority, p)
			}
			if e.rank() <= last {
				return 0, 0, 0, fmt.Errorf("level %d: rank %d after %d", p, e.rank(), last)
			}
			last = e.rank()
		}
		n += count
		if (count == 0) != l.empty() {
			return 0, 0, 0, fmt.Errorf("level %d: %d messages, empty %v", p, count, l.empty())
		}
		if r.levels != nil && (r.levels.used[p/64]>>(p%64)&1 == 1) != (count > 0) {
			return 0, 0, 0, fmt.Errorf("level %d: %d messages, bitmap %x", p, count, r.levels.used)
		}
		if count > 0 {
			top = p
		}
		for f := range l.fifos() {
			memory := int64(0)
			for c := f.first; c != nil; c = c.next {
				memory += c.memory()
			}
			if memory != f.memory {
				return 0, 0, 0, fmt.Errorf("chunks of %d bytes, counted %d", memory, f.memory)
			}
			if err := f.checkPaging(f == l.ripe); err != nil {
				return 0, 0, 0, err
			}
			if err := f.checkMarks(); err != nil {
				return 0, 0, 0, err
			}
		}
	}
	if r.levels != nil && n > 0 && r.levels.top != top {
		return 0, 0, 0, fmt.Errorf("top is level %d, want %d", r.levels.top, top)
	}
	return n, bytes, resident, nil
}

// each walks the entries in the order in which they leave.
func (l *level) each() func(yield func(*Entry) bool) {
	return func(yield func(*Entry) bool) {
		back := append(heap(nil), l.back...)
		for len(back) > 0 {
			e := back[0]
			if !yield(&e) {
				return
			}
			back.pop()
		}
		if l.ripe == nil {
			l.fifo.each(yield)
			return
		}
		ripe, stop := iter.Pull(l.ripe.each)
		defer stop()
		r, more := ripe()
		for e := range l.fifo.each {
			for ; more && r.rank() < e.rank(); r, more = ripe() {
				if !yield(r) {
					return
				}
			}
			if !yield(e) {
				return
			}
		}
		for ; more; r, more = ripe() {
			if !yield(r) {
				return
			}
		}
	}
}

// check walks all that is delayed.
func (d *delays) check(nextSeq uint64) error {
	seen := make(map[uint64]bool)
	n, bytes, resident := 0, int64(0), int64(0)
	bad := error(nil)
	look := func(e *Entry) {
		n++
		bytes += int64(e.Size)
		resident += e.cost()
		if e.Due == 0 || e.Lag != 0 || seen[e.Seq] || e.Seq >= nextSeq {
			bad = fmt.Errorf("delayed entry %+v", *e)
		}
		seen[e.Seq] = true
	}
	ordered := func(entries []Entry) {
		for i := range entries {
			look(&entries[i])
			if i > 0 && !earlier(&entries[i-1], &entries[i]) {
				bad = fmt.Errorf("delayed entry %+v after %+v", entries[i], entries[i-1])
			}
		}
	}
	for e := range d.fresh.each {
		look(e)
	}
	for _, h := range [...]dueHeap{d.warm, d.loose} {
		for i := range h {
			look(&h[i])
			if up := (i - 1) / 2; i > 0 && earlier(&h[i], &h[up]) {
				bad = fmt.Errorf("delayed entry %+v below %+v", h[i], h[up])
			}
		}
	}
	for i := range d.incoming {
		look(&d.incoming[i])
	}
	all := slices.Clone(d.front)
	for _, b := range d.blocks {
		at := len(all)
		if all = b.unpack(all); len(all) == at || len(all) > at+dueEntries || all[at].Due != b.due || all[at].Seq != b.seq {
			bad = fmt.Errorf("block of delayed entries with the key %d, %d: %d entries", b.due, b.seq, len(all)-at)
		}
	}
	ordered(all)
	if n != d.n || bytes != d.bytes || resident != d.resident {
		bad = fmt.Errorf("delayed are %d messages of %d bytes, resident %d, counted %d of %d, %d", n, bytes, resident, d.n, d.bytes, d.resident)
	}
	return bad
}

func (f *fifo) each(yield func(*Entry) bool) {
	from := f.from
	for c := f.first; c != nil; c = c.next {
		entries := c.entries
		if c.packed != nil {
			entries = c.unpackTo(make([]Entry, chunkEntries))
		} else if c == f.last {
			entries = entries[:f.to]
		}
		for i := range entries[from:] {
			if !yield(&entries[from+i]) {
				return
			}
		}
		from = 0
	}
}

// checkPaging checks the cursor, and that the chunks at both ends are not packed, nor those that the
// cursor has not passed, unless they are packed anyway.
func (f *fifo) checkPaging(anyway bool) error {
	cur, found := f.paging, f.paging.chunk == nil
	before := int64(0)
	from := f.from
	for c := f.first; c != nil; c = c.next {
		if (c.packed != nil) != (c.entries == nil) || c.packed != nil && (found && !anyway || c == f.first || c == f.last) {
			return fmt.Errorf("a chunk is packed and must not be")
		}
		for _, e := range f.look(c, make([]Entry, chunkEntries)) {
			if e.Expiry != 0 && (c.soonest == 0 || e.Expiry < c.soonest) {
				return fmt.Errorf("a message expires at %d, the soonest of its chunk at %d", e.Expiry, c.soonest)
			}
		}
		to := len(c.entries)
		if c == f.last {
			to = f.to
		}
		if c == cur.chunk {
			if found = true; cur.at < from || cur.at > to {
				return fmt.Errorf("paging at %d of %d to %d", cur.at, from, to)
			}
			to = cur.at
		} else if found {
			break
		}
		for i := from; i < to; i++ {
			before += c.entries[i].cost()
		}
		from = 0
	}
	if !found || cur.chunk != nil && before != cur.before {
		return fmt.Errorf("paging: cursor found %v, %d bytes before it, counted %d", found, before, cur.before)
	}
	return nil
}

// checkMarks checks that every mark is in the list, and behind all that it says.
func (f *fifo) checkMarks() error {
	if f.marks == nil {
		return nil
	}
	last := make(map[*chunk]uint64) // the rank before each chunk
	before := uint64(0)
	for c := f.first; c != nil; c = c.next {
		last[c] = before
		if entries := f.look(c, make([]Entry, chunkEntries)); len(entries) > 0 {
			before = entries[len(entries)-1].rank()
		}
	}
	for _, m := range f.marks.at {
		if before, ok := last[m.chunk]; m.chunk != nil && (!ok || before > m.behind) {
			return fmt.Errorf("a mark behind %d is in the list: %v, behind %d", m.behind, ok, before)
		}
	}
	return nil
}

func (cs *consumers) check(unacked int) error {
	n, exclusive, turns, takers, inflight := 0, 0, 0, 0, uint64(0)
	var last *Consumer
	for c := range cs.all() {
		n++
		inflight += c.inflight
		if c.Exclusive {
			exclusive++
		}
		if c != c.rank.first && c.listPrev != last || c == c.rank.first && c.listPrev != nil || c.listNext == nil && c != c.rank.last {
			return fmt.Errorf("consumer is not in its place of the list")
		}
		last = c
		mayTake := c.room > 0 && (!cs.single || c == cs.active)
		switch c.state {
		case taking:
			turns++
			if mayTake {
				takers++
			} else if c.room > 0 {
				return fmt.Errorf("consumer is taking and not the active one")
			}
		case full:
			if mayTake {
				return fmt.Errorf("consumer is full with room %d", c.room)
			}
		case parked:
		default:
			return fmt.Errorf("consumer listed in state %d", c.state)
		}
		if !c.NoAck && !c.Credited && c.Prefetch > 0 && c.inflight+c.room != uint64(c.Prefetch) {
			return fmt.Errorf("consumer has %d inflight, room %d, prefetch %d", c.inflight, c.room, c.Prefetch)
		}
	}
	if n != cs.n || exclusive != cs.exclusive || turns != cs.turns || takers != cs.takers {
		return fmt.Errorf("%d consumers, %d exclusive, %d taking, %d with room: counted %d, %d, %d, %d",
			n, exclusive, turns, takers, cs.n, cs.exclusive, cs.turns, cs.takers)
	}
	if inflight > uint64(max(unacked, 0)) {
		return fmt.Errorf("consumers hold %d unacked of %d", inflight, unacked)
	}
	if (cs.active != nil) != (cs.single && n > 0) {
		return fmt.Errorf("active %p with %d consumers, single %v", cs.active, n, cs.single)
	}
	inRings := 0
	for i, r := range cs.ranks {
		if r.first == nil || r.first.rank != r || r.last.rank != r {
			return fmt.Errorf("rank %d without a consumer of its own", i)
		}
		if i > 0 && cs.ranks[i-1].priority <= r.priority {
			return fmt.Errorf("rank %d of priority %d follows %d", i, r.priority, cs.ranks[i-1].priority)
		}
		if r.next == nil {
			continue
		}
		if i < cs.from {
			return fmt.Errorf("rank %d has takers before %d", i, cs.from)
		}
		for c := r.next; ; {
			inRings++
			if c.state != taking || c.rank != r || c.ringNext.ringPrev != c || inRings > n {
				return fmt.Errorf("rank %d: broken ring", i)
			}
			if c = c.ringNext; c == r.next {
				break
			}
		}
	}
	if inRings != turns {
		return fmt.Errorf("%d consumers in rings, %d taking", inRings, turns)
	}
	return nil
}
