package queue

import (
	"cmp"
	"iter"
	"slices"
)

// unlimited is a room that is never used up, small enough to be added to itself.
const unlimited = 1 << 62

// state is where a consumer stands with its queue.
type state uint8

const (
	fresh   state = iota // not added yet
	taking               // in the ring of its rank: in turn it takes a message, if it has room by then
	full                 // no room left, or not the active one
	parked               // its Receiver refused: waits for Wake
	removed              // it may still hold unacked messages
)

// consumer is the queue's half of a Consumer. Owned by the queue.
type consumer struct {
	inflight uint64 // unacked deliveries
	room     uint64 // deliveries that it may still get: what prefetch or credit leaves
	state    state
	rank     *rank

	ringPrev, ringNext *Consumer // the taking ones of its rank
	listPrev, listNext *Consumer // all of its rank, in order of registration
}

// rank is the consumers of one priority. Those that are taking form a ring, and take turns. As in RabbitMQ,
// one that used its room up leaves the ring when its turn comes: with new room by then it keeps its turn,
// later it is the last.
type rank struct {
	next        *Consumer // whose turn it is; nil when none is taking
	priority    int64
	first, last *Consumer // all of them, in order of registration; never none
}

// consumers is a queue's consumers. Those that cannot take a message cost Dispatch nothing but their last turn.
type consumers struct {
	turns  int     // consumers in state taking
	takers int     // those of them that have room
	ranks  []*rank // the highest priority first
	plain  rank    // one of them: while all consumers have one priority, no memory but this is needed
	room   [1]*rank
	// from: no rank before this index has a taking consumer. A step over one that has none is all
	// that many different priorities cost.
	from int

	n         int
	exclusive int
	single    bool      // x-single-active-consumer; immutable
	active    *Consumer // single only
}

func (cs *consumers) add(c *Consumer) {
	if c.state != fresh {
		panic("BUG: queue: consumer added twice")
	}
	switch {
	case c.Credited:
		c.room = 0
	case c.NoAck || c.Prefetch == 0:
		c.room = unlimited
	default:
		c.room = uint64(c.Prefetch)
	}
	cs.n++
	if c.Exclusive {
		cs.exclusive++
	}
	cs.join(c)

	c.state = full
	if cs.single && cs.active == nil {
		cs.active = c
	}
	cs.admit(c)
}

// place is the index of the rank of a priority, or where it belongs.
func (cs *consumers) place(priority int64) (i int, found bool) {
	return slices.BinarySearchFunc(cs.ranks, priority, func(r *rank, p int64) int { return cmp.Compare(p, r.priority) })
}

// join puts c into the rank of its priority.
func (cs *consumers) join(c *Consumer) {
	i, ok := cs.place(c.Priority)
	if !ok {
		r := &cs.plain
		switch {
		case r.first != nil:
			r = new(rank)
		case cs.ranks == nil:
			cs.ranks = cs.room[:0]
		}
		*r = rank{priority: c.Priority}
		cs.ranks = slices.Insert(cs.ranks, i, r)
		cs.from = min(cs.from, i)
	}
	r := cs.ranks[i]
	if c.rank, c.listPrev = r, r.last; r.last != nil {
		r.last.listNext = c
	} else {
		r.first = c
	}
	r.last = c
}

// leave undoes join.
func (cs *consumers) leave(c *Consumer) {
	r := c.rank
	if c.listPrev != nil {
		c.listPrev.listNext = c.listNext
	} else {
		r.first = c.listNext
	}
	if c.listNext != nil {
		c.listNext.listPrev = c.listPrev
	} else {
		r.last = c.listPrev
	}
	c.rank, c.listPrev, c.listNext = nil, nil, nil
	if r.first == nil {
		i, _ := cs.place(r.priority)
		cs.ranks = slices.Delete(cs.ranks, i, i+1)
		if i < cs.from {
			cs.from--
		}
	}
}

// admit makes c taking if it is full and nothing holds it back any more.
func (cs *consumers) admit(c *Consumer) {
	if c.state != full || c.room == 0 || cs.single && c != cs.active {
		return
	}
	c.state = taking
	cs.turns++
	cs.takers++
	r := c.rank
	if r.next == nil {
		c.ringPrev, c.ringNext = c, c
		r.next = c
	} else { // the last in turn
		c.ringPrev, c.ringNext = r.next.ringPrev, r.next
		c.ringPrev.ringNext, c.ringNext.ringPrev = c, c
	}
	if cs.from > 0 {
		i, _ := cs.place(r.priority)
		cs.from = min(cs.from, i)
	}
}

// retire takes c out of the ring, into state s.
func (cs *consumers) retire(c *Consumer, s state) {
	if c.state == taking {
		cs.turns--
		if c.room > 0 {
			cs.takers--
		}
		r := c.rank
		if c.ringNext == c {
			r.next = nil
		} else {
			c.ringPrev.ringNext, c.ringNext.ringPrev = c.ringNext, c.ringPrev
			if r.next == c {
				r.next = c.ringNext
			}
		}
		c.ringPrev, c.ringNext = nil, nil
	}
	c.state = s
}

// pick is the consumer whose turn it is, nil when none takes a message. It is called when there is one.
func (cs *consumers) pick() *Consumer {
	for cs.turns > 0 {
		for cs.ranks[cs.from].next == nil {
			cs.from++
		}
		c := cs.ranks[cs.from].next
		if c.room > 0 {
			return c
		}
		cs.retire(c, full)
	}
	return nil
}

// passOver asks whose turn it is, as for a message, until one has room. Who has none loses the turn.
func (cs *consumers) passOver() {
	for c := cs.pick(); c != nil; c = cs.pick() {
		if room, _ := c.Receiver.Room(); room > 0 {
			return
		}
		cs.park(c)
	}
}

// took counts one delivery to c, which is taking and in turn.
func (cs *consumers) took(c *Consumer) {
	c.rank.next = c.ringNext
	if c.room--; c.room == 0 {
		cs.takers--
	}
}

// park passes c over until wake.
func (cs *consumers) park(c *Consumer) { cs.retire(c, parked) }

func (cs *consumers) wake(c *Consumer) {
	if c.state == parked {
		c.state = full
		cs.admit(c)
	}
}

// freed gives c the room of one settled delivery back.
func (cs *consumers) freed(c *Consumer) {
	if c.Credited {
		return
	}
	if c.room++; c.room == 1 {
		cs.reopen(c)
	}
}

func (cs *consumers) grant(c *Consumer, n uint64) {
	had := c.room
	if c.room = min(c.room+min(n, unlimited), unlimited); had == 0 && n > 0 {
		cs.reopen(c)
	}
}

// reopen follows c's first room after none.
func (cs *consumers) reopen(c *Consumer) {
	if c.state == taking {
		cs.takers++
		return
	}
	cs.admit(c)
}

// roomLook is how many consumers haveRoom asks at most. With more, whose connections have no room, publishes
// to a full queue that rejects are refused although another consumer may take them.
const roomLook = 256

// haveRoom says whether the taking consumers together have room for n more deliveries.
func (cs *consumers) haveRoom(n uint64) bool { return cs.roomFor(n) == n }

// roomFor is for how many deliveries of n the taking consumers together have room, as far as their
// Receivers have, too. A room that several share counts once, as that of the first of them.
func (cs *consumers) roomFor(n uint64) (room uint64) {
	if n == 0 {
		return 0
	}
	var sharing [8]any // of more than that, the rest does not count
	known, looks := 0, 0
	for _, r := range cs.ranks[min(cs.from, len(cs.ranks)):] {
		for c := r.next; c != nil; {
			has, shared := uint64(0), any(nil)
			if c.room > 0 {
				has, shared = c.Receiver.Room()
			}
			switch {
			case shared == nil:
			case known == len(sharing) || slices.Contains(sharing[:known], shared):
				has = 0
			default:
				sharing[known] = shared
				known++
			}
			if room += min(c.room, has); room >= n {
				return n
			}
			if looks++; looks == roomLook {
				return room
			}
			if c = c.ringNext; c == r.next {
				break
			}
		}
	}
	return room
}

func (cs *consumers) remove(c *Consumer) {
	if c.state == fresh || c.state == removed {
		return
	}
	cs.retire(c, removed)
	cs.n--
	if c.Exclusive {
		cs.exclusive--
	}
	cs.leave(c)
	if c == cs.active {
		cs.failover()
	}
}

// failover makes the next consumer active: by priority, then by registration.
func (cs *consumers) failover() {
	cs.active = nil
	if len(cs.ranks) > 0 {
		cs.active = cs.ranks[0].first
		cs.admit(cs.active)
	}
}

// all walks the consumers, the lowest priority first. The one at hand may be removed.
func (cs *consumers) all() iter.Seq[*Consumer] {
	return func(yield func(*Consumer) bool) {
		for i := len(cs.ranks) - 1; i >= 0; i-- {
			for c := cs.ranks[i].first; c != nil; {
				next := c.listNext
				if !yield(c) {
					return
				}
				c = next
			}
		}
	}
}

// Serves says whether c may get messages at all, and does not only stand by for a single active consumer.
func (q *Queue) Serves(c *Consumer) bool { return !q.consumers.single || q.consumers.active == c }

// Spent says whether c has used up its prefetch or its credit.
func (q *Queue) Spent(c *Consumer) bool { return c.room == 0 }
