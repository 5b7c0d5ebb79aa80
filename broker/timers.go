package broker

import (
	"container/heap"
	"sync"
	"time"

	"github.com/firemq/firemq/broker/queue"
)

// timers wakes queues whose head message expires, and deletes queues whose x-expires lease ran
// out. It is one goroutine and one timer for the broker; a queue has at most one
// entry of each kind.
type timers struct {
	b    *Broker
	wake chan struct{} // holds one token: the earliest entry changed
	quit chan struct{}
	over chan struct{}

	mu    sync.Mutex // a leaf
	heap  timerHeap  // guarded by mu
	items map[timerKey]*timerItem
}

type timerKind uint8

const (
	headExpiry timerKind = iota
	idleLease
)

type timerKey struct {
	q    *Queue
	kind timerKind
}

type timerItem struct {
	timerKey
	at int64 // Unix ms
	i  int   // place in the heap
}

func newTimers(b *Broker) *timers {
	return &timers{
		b: b, wake: make(chan struct{}, 1), quit: make(chan struct{}), over: make(chan struct{}),
		items: make(map[timerKey]*timerItem),
	}
}

func (t *timers) start() { go t.run() }

func (t *timers) stop() {
	close(t.quit)
	<-t.over
}

// expiry asks for q to be looked at when its head expires. q's lock is held.
func (t *timers) expiry(q *Queue, at int64) { t.set(timerKey{q, headExpiry}, at) }

// lease asks for q's idle time to be looked at in ms from now.
func (t *timers) lease(q *Queue, ms int64) { t.set(timerKey{q, idleLease}, t.b.opt.Now()+ms) }

// forget drops what is set for q.
func (t *timers) forget(q *Queue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, kind := range []timerKind{headExpiry, idleLease} {
		if it := t.items[timerKey{q, kind}]; it != nil {
			heap.Remove(&t.heap, it.i)
			delete(t.items, it.timerKey)
		}
	}
}

func (t *timers) set(k timerKey, at int64) {
	t.mu.Lock()
	it := t.items[k]
	switch {
	case it == nil:
		it = &timerItem{timerKey: k, at: at}
		t.items[k] = it
		heap.Push(&t.heap, it)
	case it.at != at:
		it.at = at
		heap.Fix(&t.heap, it.i)
	}
	first := t.heap[0] == it
	t.mu.Unlock()
	if first {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
}

// timerLook is how often the clock is looked at while something is set: what is due after it was set
// forward comes so much late at most.
const timerLook = 10 * time.Second

func (t *timers) run() {
	defer close(t.over)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := time.Hour
		t.mu.Lock()
		if len(t.heap) > 0 {
			left := min(t.heap[0].at-t.b.opt.Now(), timerLook.Milliseconds())
			wait = time.Duration(left) * time.Millisecond
		}
		t.mu.Unlock()
		if wait > 0 {
			timer.Reset(wait)
			select {
			case <-t.quit:
				return
			case <-t.wake:
			case <-timer.C:
			}
			continue
		}
		select {
		case <-t.quit:
			return
		default:
			t.fire()
		}
	}
}

// fireBatch is how many queues one turn of the timers serves.
const fireBatch = 64

// fire serves what is due. What expires at the same time does so in all queues before dead letters of one
// reach another, as in RabbitMQ.
func (t *timers) fire() {
	turn := t.b.newTurn()
	defer turn.free()
	for n := 0; n < fireBatch && len(turn.dead) < deadBatch; n++ {
		t.mu.Lock()
		if len(t.heap) == 0 || t.heap[0].at > turn.now {
			t.mu.Unlock()
			return
		}
		it := heap.Pop(&t.heap).(*timerItem)
		delete(t.items, it.timerKey)
		t.mu.Unlock()
		switch it.kind {
		case headExpiry:
			it.q.expire(turn)
		case idleLease:
			t.idle(it.q, turn)
		}
	}
}

// expire removes what has expired at q's head.
func (q *Queue) expire(t *turn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.deleted {
		return
	}
	if q.limbo > 0 {
		// Another turn has its dead still at hand. They go first, so that dead letters keep their order.
		wait := int64(1)
		if q.b.upkeep.burying.Load() { // as long as the disk has no room, perhaps
			wait = roomRetry.Milliseconds()
		}
		q.b.timers.expiry(q, t.now+wait)
		return
	}
	q.sm.Expire(t.now, &t.fx)
	q.apply(t)
	q.dispatch(t)
}

// idle deletes q when nobody used it for its x-expires, else looks again when that could be.
func (t *timers) idle(q *Queue, turn *turn) {
	ms := q.settings.Load().Config.Expires
	if ms == queue.None { // a policy went
		return
	}
	q.mu.Lock()
	if len(q.members) > 0 {
		q.used.Store(turn.now)
	}
	left := q.used.Load() + ms - turn.now
	deleted := q.deleted
	q.mu.Unlock()
	if deleted {
		return
	}
	if left > 0 {
		t.lease(q, left)
		return
	}
	t.b.deleteQueue(q, turn, func() bool { return len(q.members) == 0 && q.used.Load()+ms <= turn.now })
}

// timerHeap orders entries by time (container/heap).
type timerHeap []*timerItem

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].i, h[j].i = i, j
}
func (h *timerHeap) Push(x any) {
	it := x.(*timerItem)
	it.i = len(*h)
	*h = append(*h, it)
}
func (h *timerHeap) Pop() any {
	old := *h
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return it
}
