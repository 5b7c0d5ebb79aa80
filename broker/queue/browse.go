package queue

import "slices"

// Browsing looks at messages and changes nothing: no place, no flag, no count. A browser asks page by page, so that
// the queue's lock is held for one page only, and the queue changes between them. A Place is about a
// message, not a number of messages: whatever comes and goes, a page begins behind what the one before ended with.

// Place is where a browser stands: behind one message, among the ready or the delayed ones.
type Place struct {
	Delayed  bool
	Priority uint8  // of ready messages, which leave in descending order
	Key      uint64 // of ready messages their rank, which no two share; of delayed ones the due time
	Seq      uint64 // of delayed messages
}

// Before is the place before all ready, or all delayed, messages.
func Before(delayed bool) Place {
	if delayed {
		return Place{Delayed: true}
	}
	return Place{Priority: 255}
}

// Place is where a browser stands that has seen e.
func (e *Entry) Place(delayed bool) Place {
	if delayed {
		return Place{Delayed: true, Key: uint64(e.Due), Seq: e.Seq}
	}
	return Place{Priority: e.Priority, Key: e.rank()}
}

// browseChunks is how many chunks one call of Browse passes at most, half a million messages.
const browseChunks = 4096

// Browse appends to out the messages behind the place at, in the order in which they are to leave and no more
// than limit, and moves at behind them. more says that there may be others: also when it found none, because
// the way to them was long. The next call goes on from there.
//
// The messages carry no references of their own: who keeps one, retains it. Those that came back, and delayed
// ones that are not paged out, are in no order and looked through each time.
func (q *Queue) Browse(at *Place, limit int, out *[]Entry) (more bool) {
	before := len(*out)
	if at.Delayed {
		more = q.delays != nil && q.delays.browse(at, limit, out)
	} else {
		more = q.ready.browse(at, limit, out)
	}
	if n := len(*out); n > before {
		*at = (*out)[n-1].Place(at.Delayed)
	}
	return more
}

func (r *ready) browse(at *Place, limit int, out *[]Entry) (more bool) {
	if r.levels == nil {
		return r.plain.browse(at.Key, limit, out)
	}
	end := len(*out) + limit
	for p := min(int(at.Priority), len(r.levels.all)-1); p >= 0; p-- {
		after := uint64(0)
		if p == int(at.Priority) {
			after = at.Key
		}
		if l := r.levels.all[p]; l != nil && l.browse(after, end-len(*out), out) {
			return true
		}
	}
	return false
}

func (l *level) browse(after uint64, limit int, out *[]Entry) (more bool) {
	s := selection{limit: limit, order: byRank}
	for i := range l.back {
		if e := &l.back[i]; e.rank() > after {
			s.add(e)
		}
	}
	for f := range l.fifos() {
		if f.browse(after, limit, &s) {
			return true // what others gave might be behind what it has
		}
	}
	return s.appendTo(out)
}

// browse adds the first limit entries behind a rank to s. It says whether it gave up on the way to them.
func (f *fifo) browse(after uint64, limit int, s *selection) (gaveUp bool) {
	var scratch [chunkEntries]Entry
	c := f.start(after)
	found := 0
	for walked := 0; c != nil && found < limit; c = c.next {
		if walked == browseChunks {
			f.mark(c, after)
			return true
		}
		walked++
		if n := c.next; n != nil && !f.ripe && n.firstSeq() <= after+1 {
			continue
		}
		entries := f.look(c, scratch[:])
		for i := range entries {
			if e := &entries[i]; e.rank() > after && found < limit {
				s.add(e)
				found++
			}
		}
		if found == limit {
			f.mark(c, entries[0].rank()-1)
		}
	}
	return false
}

// marks are chunks at which browsers stand, so that the next page need not walk to them from the front: in a fifo
// of millions that would take longer than the page.
type marks struct {
	at   [8]mark
	next int // to be replaced
}

// mark says that no entry before chunk has a rank above behind.
type mark struct {
	chunk  *chunk // nil: none
	behind uint64
}

// start is a chunk before which all entries have a rank of at most after.
func (f *fifo) start(after uint64) *chunk {
	c, behind := f.first, uint64(0)
	if f.marks == nil {
		return c
	}
	for _, m := range f.marks.at {
		if m.chunk != nil && m.behind <= after && m.behind >= behind {
			c, behind = m.chunk, m.behind
		}
	}
	return c
}

func (f *fifo) mark(c *chunk, behind uint64) {
	if f.marks == nil {
		f.marks = new(marks)
	}
	m := f.marks
	if i := slices.IndexFunc(m.at[:], func(m mark) bool { return m.chunk == c }); i >= 0 {
		m.at[i].behind = min(m.at[i].behind, behind)
		return
	}
	m.at[m.next] = mark{c, behind}
	m.next = (m.next + 1) % len(m.at)
}

// unmark forgets a chunk that is taken out of the list.
func (f *fifo) unmark(c *chunk) {
	if f.marks == nil {
		return
	}
	for i := range f.marks.at {
		if f.marks.at[i].chunk == c {
			f.marks.at[i] = mark{}
		}
	}
}

func (d *delays) browse(at *Place, limit int, out *[]Entry) (more bool) {
	s := selection{limit: limit, order: compareDue}
	after := Entry{Due: int64(at.Key), Seq: at.Seq}
	look := func(entries []Entry) {
		for i := range entries {
			if earlier(&after, &entries[i]) {
				s.add(&entries[i])
			}
		}
	}
	for e := range d.fresh.each {
		if earlier(&after, e) {
			s.add(e)
		}
	}
	look(d.warm)
	look(d.loose)
	look(d.front)
	if len(d.blocks) > 0 {
		var entries []Entry
		found := 0
		for i := d.place(&after); i < len(d.blocks) && found < limit; i++ {
			entries = d.blocks[i].unpack(entries[:0])
			first, _ := slices.BinarySearchFunc(entries, after, compareDue)
			look(entries[first:])
			found += len(entries) - first
			if first < len(entries) && entries[first].Due == after.Due && entries[first].Seq == after.Seq {
				found--
			}
		}
	}
	return s.appendTo(out)
}

// selection keeps the first limit of the entries that it is given, in an order.
type selection struct {
	limit int
	order func(a, b Entry) int
	list  []Entry
	cut   bool // some were left out
}

func byRank(a, b Entry) int {
	switch x, y := a.rank(), b.rank(); {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

func (s *selection) add(e *Entry) {
	s.list = append(s.list, *e)
	if len(s.list) >= 2*s.limit+chunkEntries {
		s.prune()
	}
}

func (s *selection) prune() {
	slices.SortFunc(s.list, s.order)
	if len(s.list) > s.limit {
		s.list, s.cut = s.list[:s.limit], true
	}
}

// appendTo gives what was kept, and says whether there may be more.
func (s *selection) appendTo(out *[]Entry) (more bool) {
	s.prune()
	*out = append(*out, s.list...)
	return s.cut || len(s.list) == s.limit
}

// Head is the ready message that leaves next, valid until the next change, nil if none is ready.
func (q *Queue) Head() *Entry {
	if q.ready.n == 0 {
		return nil
	}
	return q.head()
}

// Oldest is the ready message that became ready first; it is valid until the next change, nil if none is ready.
func (q *Queue) Oldest() (oldest *Entry) {
	for l := range q.ready.each() {
		if l.empty() {
			continue
		}
		if e := l.head(); oldest == nil || e.rank() < oldest.rank() {
			oldest = e
		}
	}
	return oldest
}

// Withdraw takes ready messages off the queue, wherever they are, for an operator who moves or deletes them: those at
// the given places, in any order, that are still there. They go to out with the queue's reference; the owner
// settles them. It takes the time of a walk to them.
func (q *Queue) Withdraw(places []Place, out *[]Entry) {
	before := len(*out)
	byPriority := make(map[uint8][]uint64)
	for _, p := range places {
		if !p.Delayed {
			byPriority[p.Priority] = append(byPriority[p.Priority], p.Key)
		}
	}
	for l, p := range q.ready.each() {
		ranks := byPriority[uint8(p)]
		if len(ranks) == 0 || l.empty() {
			continue
		}
		slices.Sort(ranks)
		l.withdraw(ranks, out)
		if l.empty() {
			q.ready.leave(p)
		}
	}
	for i := range (*out)[before:] {
		e := &(*out)[before+i]
		q.ready.n--
		q.ready.bytes -= int64(e.Size)
		q.ready.resident -= e.cost()
	}
	if q.arrivals != nil && q.transit {
		q.arrivals.drop((*out)[before:])
	}
	q.checkNow()
}

// withdraw takes out the entries with the given ranks, which are in order.
func (l *level) withdraw(ranks []uint64, out *[]Entry) {
	kept := l.back[:0]
	for i := range l.back {
		e := &l.back[i]
		if _, picked := slices.BinarySearch(ranks, e.rank()); picked {
			*out = append(*out, *e)
			continue
		}
		kept = append(kept, *e)
	}
	if gone := l.back[len(kept):]; len(gone) > 0 {
		clear(gone)
		l.back = kept
		l.back.init()
	}
	for f := range l.fifos() {
		f.withdraw(ranks, out)
	}
}

func (f *fifo) withdraw(ranks []uint64, out *[]Entry) {
	var scratch [chunkEntries]Entry
	var before *chunk
	c := f.start(ranks[0] - 1)
	for c != nil && len(ranks) > 0 {
		next := c.next
		if next != nil && !f.ripe && next.firstSeq() <= ranks[0] {
			before, c = c, next
			continue
		}
		entries := f.look(c, scratch[:])
		kept := 0
		for i := range entries {
			e := &entries[i]
			for len(ranks) > 0 && ranks[0] < e.rank() {
				ranks = ranks[1:]
			}
			if len(ranks) > 0 && ranks[0] == e.rank() {
				*out = append(*out, *e)
				continue
			}
			entries[kept] = *e
			kept++
		}
		if kept < len(entries) {
			f.paging = cursor{} // it begins again, and passes what is packed
		}
		if kept > 0 {
			f.shorten(c, entries, kept)
			before = c
		} else {
			if before == nil {
				before = f.before(c)
			}
			f.unlink(before, c)
		}
		c = next
	}
}

// before is the chunk in front of c, nil for the first one.
func (f *fifo) before(c *chunk) (before *chunk) {
	for at := f.first; at != c; at = at.next {
		before = at
	}
	return before
}

// Return puts a message that Withdraw took back to its place, as it was. Limits are not applied to it. The queue is not
// closed.
func (q *Queue) Return(e Entry) {
	if q.closed {
		panic("BUG: queue: return to a closed queue")
	}
	q.transit = false
	l := q.ready.enter(&e)
	f := &l.fifo
	if e.Due != 0 {
		if l.ripe == nil {
			l.ripe = &fifo{ripe: true}
		}
		f = l.ripe
	}
	first := true // of its level, but for those that came back
	for f := range l.fifos() {
		first = first && (f.empty() || e.rank() < f.front().rank())
	}
	if first {
		l.back.push(&e)
	} else {
		f.insert(&e)
	}
	q.noteExpiry(&e)
	q.checkNow()
}

// insert puts an entry where its rank belongs.
func (f *fifo) insert(e *Entry) {
	f.paging = cursor{} // it begins again, and passes what is packed
	f.marks = nil       // e may be above what they are behind of
	switch {
	case f.empty() || f.last.entries[f.to-1].rank() < e.rank():
		f.append(e)
		return
	case e.rank() < f.front().rank() && f.from > 0:
		f.from--
		f.first.entries[f.from] = *e
		f.first.covers(e)
		return
	case e.rank() < f.front().rank():
		c := chunks.Get().(*chunk)
		c.entries = c.entries[:1]
		c.entries[0] = *e
		c.next, c.from, c.to, c.soonest = f.first, e.Due, e.Due, e.Expiry
		f.memory += c.memory()
		f.first = c
		return
	}
	var scratch [chunkEntries]Entry
	c := f.start(e.rank())
	for c.next != nil && f.look(c.next, scratch[:])[0].rank() < e.rank() {
		c = c.next
	}
	f.unpack(c)
	entries := f.look(c, nil)
	at, _ := slices.BinarySearchFunc(entries, *e, byRank)
	// What is behind it goes into a chunk of its own, with it.
	n := chunks.Get().(*chunk)
	count := 1 + len(entries) - at
	n.entries[0] = *e
	copy(n.entries[1:], entries[at:])
	clear(entries[at:])
	n.next, n.from, n.to, n.soonest = c.next, c.from, c.to, c.soonest
	n.covers(e)
	f.memory += n.memory()
	c.next = n
	if c == f.last {
		c.entries = c.entries[:f.to-(count-1)]
		f.last, f.to = n, count
	} else {
		c.entries = c.entries[:len(c.entries)-(count-1)]
		n.entries = n.entries[:count]
	}
}

// covers keeps the bounds of a chunk that got e.
func (c *chunk) covers(e *Entry) {
	c.from, c.to, c.soonest = min(c.from, e.Due), max(c.to, e.Due), earliest(c.soonest, e.Expiry)
}
