package broker

import "github.com/firemq/firemq/broker/queue"

// An unacked message is in the ring of the channel that it was delivered to, not in its queue.
// Compaction and checkpoints have to find all of a queue's: they look, with the queue locked, at
// the channels of its consumers and at its strays, the channels that may hold some without a
// consumer. For a moment, or longer while upkeep settles very many, a message is in neither,
// between a channel's ring and its queue; then fewer are found than the queue counts.

// stray notes that ch may hold messages of q without a consumer. Lock held.
func (q *Queue) stray(ch *Channel) {
	if q.strays == nil {
		q.strays = make(map[*Channel]struct{})
	}
	q.strays[ch] = struct{}{}
	if len(q.strays) >= 64 && len(q.strays) >= q.strayLimit {
		q.held(func(*Channel, *slot) {})
		q.strayLimit = 2 * len(q.strays)
	}
}

// held calls f for each unacked message of q that is in a channel's ring, with the channel's Peer
// locked, and gives their number. Strays without any are forgotten. Lock held.
func (q *Queue) held(f func(*Channel, *slot)) (n int) {
	look := func(ch *Channel) (found int) {
		count := func(s *slot) {
			if s.q == q {
				f(ch, s)
				found++
			}
		}
		each := func(u *unacked) {
			for i := range u.n {
				count(u.at(i))
			}
		}
		ch.peer.Lock()
		each(&ch.unacked)
		for i := range ch.inTx.list {
			count(&ch.inTx.list[i].slot)
		}
		for i := range ch.inTx.whole {
			each(&ch.inTx.whole[i].left)
		}
		if ch.peer.Unlock() {
			panic("BUG: broker: looking at unacked messages staged bytes")
		}
		return found
	}
	consuming := q.consuming()
	for ch := range consuming {
		n += look(ch)
	}
	for ch := range q.strays {
		if consuming[ch] > 0 {
			continue
		}
		found := look(ch)
		if found == 0 {
			delete(q.strays, ch)
		}
		n += found
	}
	return n
}

// find is queue.Find for the queue's ready and unacked messages. Lock held.
func (q *Queue) find(moves []queue.Move, relocate bool) {
	q.sm.Find(moves, relocate)
	if q.sm.Unacked() == 0 {
		return
	}
	q.held(func(_ *Channel, s *slot) {
		queue.Match(moves, &s.e, relocate)
	})
}
