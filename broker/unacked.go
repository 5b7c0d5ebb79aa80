package broker

import (
	"slices"
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
// place is a subtraction; settled slots stay as holes until the front passes them or, when there is no
// room and half of them are holes, they are squeezed out. Above keptBlocks it holds at most about four times
// the outstanding deliveries: half of the slots in use may be holes, and as many may be room.
//
// The slots are in blocks, so that a million are not copied when there is one more.
type unacked struct {
	blocks []*[blockSlots]slot // those before first are nil; behind the last slot there may be room
	first  int                 // block of the oldest slot
	head   int                 // the oldest slot in its block
	n      int                 // slots in use, holes too
	live   int                 // slots outstanding
}

const (
	blockSlots = 64
	keptBlocks = 64 // with little outstanding; more are the memory of a burst
)

func (u *unacked) at(i int) *slot {
	i += u.head
	return &u.blocks[u.first+i/blockSlots][i%blockSlots]
}

// slots is how many there is memory for.
func (u *unacked) slots() int { return (len(u.blocks) - u.first) * blockSlots }

// push adds a delivery; tags only grow.
func (u *unacked) push(tag uint64, q *Queue, c *Consumer, e *queue.Entry, at int64) {
	if u.head+u.n == u.slots() {
		u.extend()
	}
	s := u.at(u.n)
	s.tag, s.q, s.c, s.e, s.at = tag, q, c, *e, at
	u.n++
	u.live++
}

// extend makes room for a slot: holes are squeezed out when they are half of all.
func (u *unacked) extend() {
	if u.n >= blockSlots && u.live <= u.n/2 {
		n := 0
		for i := range u.n {
			s := u.at(i)
			if s.q == nil {
				continue
			}
			if n < i {
				*u.at(n), *s = *s, slot{}
			}
			n++
		}
		u.n = n
		return
	}
	u.append(new([blockSlots]slot))
}

func (u *unacked) append(b *[blockSlots]slot) {
	if len(u.blocks) == cap(u.blocks) && u.first > len(u.blocks)/2 {
		n := copy(u.blocks, u.blocks[u.first:])
		clear(u.blocks[n:])
		u.blocks, u.first = u.blocks[:n], 0
	}
	u.blocks = append(u.blocks, b)
}

// drop takes off the oldest slot, which is empty. A block that it leaves becomes room at the end, unless
// there is enough: as much as there are slots in use, or keptBlocks in all.
func (u *unacked) drop() {
	u.n--
	if u.head++; u.head < blockSlots {
		return
	}
	b := u.blocks[u.first]
	u.blocks[u.first] = nil
	u.first++
	u.head = 0
	if u.slots() < max(2*u.n, keptBlocks*blockSlots) {
		u.append(b)
	}
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

// cut takes the first n slots off. Blocks change hands, only the one where the cut goes through is copied.
func (u *unacked) cut(n int) unacked {
	if n == u.n {
		return u.takeAll()
	}
	lo, hi := 0, n // the smaller part, whose outstanding ones are counted
	if n > u.n/2 {
		lo, hi = n, u.n
	}
	live := 0
	for i := lo; i < hi; i++ {
		if u.at(i).q != nil {
			live++
		}
	}
	if lo > 0 {
		live = u.live - live
	}
	blocks := u.blocks[u.first:]
	block, offset := (u.head+n)/blockSlots, (u.head+n)%blockSlots
	first := unacked{blocks: slices.Clone(blocks[:block]), head: u.head, n: n, live: live}
	rest := unacked{blocks: slices.Clone(blocks[block:]), head: offset, n: u.n - n, live: u.live - live}
	if offset > 0 {
		last := new([blockSlots]slot)
		copy(last[:offset], blocks[block][:offset])
		clear(blocks[block][:offset])
		first.blocks = append(first.blocks, last)
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
	u.live--
	u.drop()
	u.trim()
	return s
}

// trim drops the holes at the front, and the memory of a burst once nothing is outstanding.
func (u *unacked) trim() {
	if u.live == 0 {
		u.head, u.n = 0, 0
		if len(u.blocks)-u.first > keptBlocks {
			*u = unacked{}
		}
		return
	}
	for u.at(0).q == nil {
		u.drop()
	}
}
