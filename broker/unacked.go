package broker

import (
	"sort"

	"github.com/firemq/firemq/broker/queue"
)

// slot is one delivery that waits for its settlement.
type slot struct {
	tag uint64
	q   *Queue // nil once settled
	c   *Consumer
	e   queue.Entry
	at  int64 // Unix ms of the delivery
}

// unacked holds a channel's outstanding deliveries in tag order. Tags are mostly dense, so a tag's
// place is a subtraction; settled slots stay as holes until the front passes them or, when the ring
// is full and half of it holes, they are squeezed out. So it never holds more than twice the
// outstanding deliveries, or its smallest size.
type unacked struct {
	ring []slot // length a power of two
	head int    // index of the oldest slot
	n    int    // slots in use, holes too
	live int    // slots outstanding
}

const unackedMin = 64

func (u *unacked) at(i int) *slot { return &u.ring[(u.head+i)&(len(u.ring)-1)] }

// push adds a delivery; tags only grow.
func (u *unacked) push(tag uint64, q *Queue, c *Consumer, e *queue.Entry, at int64) {
	if u.n == len(u.ring) {
		u.grow()
	}
	s := u.at(u.n)
	s.tag, s.q, s.c, s.e, s.at = tag, q, c, *e, at
	u.n++
	u.live++
}

func (u *unacked) grow() {
	size := max(unackedMin, len(u.ring))
	if u.live > len(u.ring)/2 {
		size = 2 * len(u.ring)
	}
	ring := make([]slot, size)
	n := 0
	for i := range u.n {
		if s := u.at(i); s.q != nil {
			ring[n] = *s
			n++
		}
	}
	u.ring, u.head, u.n = ring, 0, n
}

// from gives the index of the first slot with that tag or a later one; u.n if there is none.
func (u *unacked) from(tag uint64) int {
	return sort.Search(u.n, func(i int) bool { return u.at(i).tag >= tag })
}

// find gives the index of an outstanding tag, or -1.
func (u *unacked) find(tag uint64) int {
	if u.n == 0 {
		return -1
	}
	first := u.at(0).tag
	if tag < first {
		return -1
	}
	if i := tag - first; i < uint64(u.n) && u.at(int(i)).tag == tag {
		if u.at(int(i)).q == nil {
			return -1
		}
		return int(i)
	}
	lo, hi := 0, u.n
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if u.at(mid).tag < tag {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == u.n || u.at(lo).tag != tag || u.at(lo).q == nil {
		return -1
	}
	return lo
}

// take removes slot i and gives its content; the index of other slots may change.
func (u *unacked) take(i int) slot {
	s := *u.at(i)
	*u.at(i) = slot{tag: s.tag}
	u.live--
	u.trim()
	return s
}

// takeAll empties u, and gives what it held.
func (u *unacked) takeAll() unacked {
	all := *u
	*u = unacked{}
	return all
}

// cut takes the first n slots off, by moving the smaller part.
func (u *unacked) cut(n int) unacked {
	if n == u.n {
		return u.takeAll()
	}
	first, rest := u.takeAll(), unacked{}
	from, to := &first, &rest
	lo, hi := n, first.n
	if n <= first.n/2 {
		rest, first = first, unacked{}
		from, to = &rest, &first
		lo, hi = 0, n
	}
	size := unackedMin
	for size < hi-lo {
		size *= 2
	}
	to.ring = make([]slot, size)
	for i := lo; i < hi; i++ {
		s := from.at(i)
		to.ring[to.n] = *s
		to.n++
		if s.q != nil {
			to.live++
			from.live--
		}
		*s = slot{}
	}
	from.n -= hi - lo
	if lo == 0 {
		from.head = (from.head + hi) & (len(from.ring) - 1)
	}
	first.trim()
	rest.trim()
	*u = rest
	return first
}

// pop takes the oldest slot, which is outstanding (see trim).
func (u *unacked) pop() slot {
	s := *u.at(0)
	*u.at(0) = slot{}
	u.head = (u.head + 1) & (len(u.ring) - 1)
	u.n--
	u.live--
	u.trim()
	return s
}

// trim drops the holes at the front, and the memory of a burst once nothing is outstanding.
func (u *unacked) trim() {
	if u.live == 0 {
		u.head, u.n = 0, 0
		if len(u.ring) > 4096 {
			u.ring = nil
		}
		return
	}
	for u.n > 0 && u.at(0).q == nil {
		u.head = (u.head + 1) & (len(u.ring) - 1)
		u.n--
	}
}
