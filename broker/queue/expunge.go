package queue

// Messages expire at the head. With Config.ExpireAnywhere they also expire behind messages that stay:
// each chunk knows the soonest expiry of its entries, so that Expire looks into those alone where a
// message is due. That costs no memory for a message. A walk over the chunks of a very long queue takes
// some ms, so there it is done less often.

// chunksPerMs is how many chunks a walk may pass for each ms until the next one: a longer queue makes
// its messages expire late, by a second for eight million.
const chunksPerMs = 64

// noteExpiry makes sure that a message that becomes ready expires wherever it is.
func (q *Queue) noteExpiry(e *Entry) {
	if q.cfg.ExpireAnywhere && e.Expiry != 0 && (q.soonest == 0 || e.Expiry < q.soonest) {
		q.soonest = e.Expiry
	}
}

// nextExpunge is when expunge has something to do, 0: not that one knows.
func (q *Queue) nextExpunge() int64 {
	if q.soonest == 0 || !q.cfg.ExpireAnywhere {
		return 0
	}
	return max(q.soonest, q.resume)
}

// expunge removes at most limit messages that have expired, wherever they are.
func (q *Queue) expunge(now int64, limit int, out *Effects) {
	if at := q.nextExpunge(); at == 0 || at > now {
		return
	}
	before := len(out.Dead)
	looked := 0
	q.soonest = 0
	for l, p := range q.ready.each() {
		if q.soonest = earliest(q.soonest, l.expunge(now, limit-(len(out.Dead)-before), out)); l.empty() {
			q.ready.leave(p)
		}
		looked += l.chunks()
	}
	for i := range out.Dead[before:] {
		e := &out.Dead[before+i].Entry
		q.ready.n--
		q.ready.bytes -= int64(e.Size)
		q.ready.resident -= e.cost()
	}
	q.resume = now + int64(looked/chunksPerMs)
	if len(out.Dead)-before == limit {
		q.resume = now
	}
}

// earliest is the earlier of two times, of which 0 is none.
func earliest(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// expunge removes at most limit expired messages and gives the soonest expiry of those that are left.
func (l *level) expunge(now int64, limit int, out *Effects) (soonest int64) {
	kept := l.back[:0]
	for i := range l.back {
		e := &l.back[i]
		if e.expired(now) && limit > 0 {
			out.Dead = append(out.Dead, Dead{*e, Expired})
			limit--
			continue
		}
		soonest = earliest(soonest, e.Expiry)
		kept = append(kept, *e)
	}
	if gone := l.back[len(kept):]; len(gone) > 0 {
		clear(gone)
		l.back = kept
		l.back.init()
	}
	for f := range l.fifos() {
		before := len(out.Dead)
		soonest = earliest(soonest, f.expunge(now, limit, out))
		limit -= len(out.Dead) - before
	}
	return soonest
}

// chunks is about how many chunks there are, and the work of as many.
func (l *level) chunks() int {
	n := len(l.back) / chunkEntries
	for f := range l.fifos() {
		for c := f.first; c != nil; c = c.next {
			n++
		}
	}
	return n
}

func (e *Entry) expired(now int64) bool { return e.Expiry != 0 && e.Expiry <= now }

func (f *fifo) expunge(now int64, limit int, out *Effects) (soonest int64) {
	var scratch [chunkEntries]Entry
	var last *chunk // that was kept
	for c := f.first; c != nil; {
		next := c.next
		if c.soonest == 0 || c.soonest > now || limit == 0 {
			soonest = earliest(soonest, c.soonest)
			last, c = c, next
			continue
		}
		entries := f.look(c, scratch[:])
		c.soonest = 0
		kept := 0
		for i := range entries {
			e := &entries[i]
			if e.expired(now) && limit > 0 {
				out.Dead = append(out.Dead, Dead{*e, Expired})
				limit--
				continue
			}
			c.soonest = earliest(c.soonest, e.Expiry)
			entries[kept] = *e
			kept++
		}
		soonest = earliest(soonest, c.soonest)
		if kept < len(entries) {
			f.paging = cursor{} // it begins again, and passes what is packed
		}
		if kept > 0 {
			f.shorten(c, entries, kept)
			last = c
		} else {
			f.unlink(last, c)
		}
		c = next
	}
	return soonest
}

// shorten makes the first kept of entries, which look gave for it, what c holds.
func (f *fifo) shorten(c *chunk, entries []Entry, kept int) {
	switch {
	case kept == len(entries):
	case c.packed != nil:
		f.repack(c, entries[:kept])
		c.again = false
	default:
		clear(entries[kept:])
		end := kept
		if c == f.first {
			end += f.from
		}
		if c == f.last {
			f.to = end
		} else {
			c.entries = c.entries[:end]
		}
	}
}

// unlink takes an empty chunk out; before is the one before it.
func (f *fifo) unlink(before, c *chunk) {
	switch {
	case c == f.first && c == f.last:
		f.first, f.last = nil, nil
	case c == f.first:
		f.first, f.from = c.next, 0
		f.unpack(f.first)
	case c == f.last:
		f.unpack(before)
		before.next = nil
		f.last, f.to = before, len(before.entries)
	default:
		before.next = c.next
	}
	if c.packed != nil {
		f.unmark(c)
		f.memory -= c.memory()
		return
	}
	clear(c.entries)
	f.free(c)
}
