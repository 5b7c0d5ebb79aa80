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
	for p := min(int(at.Priority), len(r.levels)-1); p >= 0; p-- {
		after := uint64(0)
		if p == int(at.Priority) {
			after = at.Key
		}
		if l := r.levels[p]; l != nil && l.browse(after, end-len(*out), out) {
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
	return q.ready.head()
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
