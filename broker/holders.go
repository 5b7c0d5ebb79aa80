package broker

import "unsafe"

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
		held([]*Queue{q}, func(int, *slot) {})
		q.strayLimit = 2 * len(q.strays)
	}
}

// A channel that holds messages of many queues is gone through once for several of them, not once for each: together
// is how many queues are locked for that at most, and togetherHeld about how many unacked messages they have together.
const (
	together     = 256
	togetherHeld = 64 << 10
)

// held calls f for each unacked message of queues that is in a channel's ring, with its queue's index and the channel's
// Peer locked, and gives their number for each queue. Strays without any are forgotten. All of the queues are locked.
func held(queues []*Queue, f func(i int, s *slot)) []int {
	index := make(map[*Queue]int, len(queues))
	channels := make(map[*Channel][]int) // with the queues that they do not consume
	var sieve sieve                      // most slots are of other queues
	for i, q := range queues {
		index[q] = i
		sieve.add(q)
		consuming := q.consuming()
		for ch := range consuming {
			if _, known := channels[ch]; !known {
				channels[ch] = nil
			}
		}
		for ch := range q.strays {
			if consuming[ch] == 0 {
				channels[ch] = append(channels[ch], i)
			}
		}
	}
	n := make([]int, len(queues))
	before := make([]int, len(queues))
	for ch, strays := range channels {
		for _, i := range strays {
			before[i] = n[i]
		}
		ch.eachSlot(func(s *slot) {
			if s.q == nil || !sieve.has(s.q) {
				return
			}
			if i, ok := index[s.q]; ok {
				f(i, s)
				n[i]++
			}
		})
		for _, i := range strays {
			if n[i] == before[i] {
				delete(queues[i].strays, ch)
			}
		}
	}
	return n
}

// sieve says of a queue that it is surely not one of a few hundred, or that it may be, and looks at its address alone.
type sieve [64]uint64

func (s *sieve) add(q *Queue) {
	word, bit := sieveBit(q)
	s[word] |= bit
}

func (s *sieve) has(q *Queue) bool {
	word, bit := sieveBit(q)
	return s[word]&bit != 0
}

func sieveBit(q *Queue) (word int, bit uint64) {
	h := uint64(uintptr(unsafe.Pointer(q))) * 0x9E3779B97F4A7C15 >> 52
	return int(h >> 6), 1 << (h & 63)
}

// eachSlot calls f for each slot of the channel's rings, those of its open transaction and settled ones too, with its Peer locked.
func (ch *Channel) eachSlot(f func(*slot)) {
	each := func(u *unacked) {
		for i := range u.n {
			f(u.at(i))
		}
	}
	ch.peer.Lock()
	each(&ch.unacked)
	for i := range ch.inTx.list {
		f(&ch.inTx.list[i].slot)
	}
	for i := range ch.inTx.whole {
		each(&ch.inTx.whole[i].left)
	}
	if ch.peer.Unlock() {
		panic("BUG: broker: looking at unacked messages staged bytes")
	}
}

// lockTogether locks the first n of queues, which are in order of their ids: at least one, if there is one. Nobody but
// upkeep locks two queues, so the order cannot lead to a deadlock.
func lockTogether(queues []*Queue) (n int) {
	for unacked := 0; n < min(len(queues), together) && unacked < togetherHeld; n++ {
		queues[n].mu.Lock()
		unacked += queues[n].sm.Unacked()
	}
	return n
}
