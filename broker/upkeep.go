package broker

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/journal"
)

// upkeep does, on one goroutine and in small pieces, what nobody waits for: it settles and
// releases the backlogs of purged and deleted queues, settles very many deliveries at a time, compacts
// the journal and writes checkpoints. It waits for the disk, so another goroutine looks for deliveries that wait for
// too long.
type upkeep struct {
	b       *Broker
	wake    chan struct{} // holds one token: there is something to do
	quit    chan struct{}
	running sync.WaitGroup

	mu     sync.Mutex // a leaf
	sweeps []sweep    // guarded by mu
	rings  []ring     // guarded by mu
	graves []burial   // dead letters, the oldest first; guarded by mu

	burying atomic.Bool // graves is not empty, or one of them is being served

	working sync.Mutex   // one works at a time; the outermost of all locks
	looking sync.Mutex   // one looks for late deliveries at a time; as outermost
	copied  atomic.Int64 // records copied forward
	paged   atomic.Int64 // messages left to the journal

	// Guarded by working.
	moved   uint64           // the last segment that was compacted; tried again after a tick
	stuck   uint64           // the oldest segment at the last tick, if it was not worth keeping
	checked journal.Position // of the last checkpoint
	size    int64            // of that checkpoint
}

// sweep is the backlog of a queue that was purged or deleted. It belongs to upkeep.
type sweep struct {
	q       *Queue
	backlog queue.Backlog
}

// ring is what is left of a settleAll. It belongs to upkeep.
type ring struct {
	ch *Channel
	settleAll
}

const (
	// sweepNow is the longest backlog that who purges or deletes sweeps at once.
	sweepNow = 1024
	// sweepBatch is how many messages are settled with the queue's lock held.
	sweepBatch = 256
	// roomRetry is how often upkeep looks whether the journal has room again.
	roomRetry = 10 * time.Millisecond
	// upkeepTick is how often the journal's space and its checkpoint are looked at when nothing
	// else calls for it.
	upkeepTick = time.Second
)

func newUpkeep(b *Broker) *upkeep {
	return &upkeep{b: b, wake: make(chan struct{}, 1), quit: make(chan struct{})}
}

func (u *upkeep) start() {
	u.running.Go(u.run)
	u.running.Go(u.lookOut)
}

// stop ends the goroutines when no backlog is left and waits for them: what was purged does not come
// back after a clean stop.
func (u *upkeep) stop() {
	close(u.quit)
	u.running.Wait()
}

func (u *upkeep) signal() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// lookOut looks for late deliveries until the broker stops.
func (u *upkeep) lookOut() {
	tick := time.NewTicker(upkeepTick)
	defer tick.Stop()
	for {
		select {
		case <-u.quit:
			return
		case <-tick.C:
			u.look()
		}
	}
}

// look is what lookOut does. Tests call it, too.
func (u *upkeep) look() {
	u.looking.Lock()
	defer u.looking.Unlock()
	u.b.lookForLate(u.b.opt.Now())
}

func (u *upkeep) run() {
	tick := time.NewTicker(upkeepTick)
	defer tick.Stop()
	for {
		select {
		case <-u.quit:
			u.sweepAll()
			return
		case <-u.wake:
			u.work()
		case <-tick.C:
			u.tick()
		}
	}
}

// work does all there is to do now. Tests call it, too.
func (u *upkeep) work() {
	u.working.Lock()
	defer u.working.Unlock()
	u.all()
}

// tick is work after some time has passed.
func (u *upkeep) tick() {
	u.working.Lock()
	defer u.working.Unlock()
	u.moved = 0
	u.all()
	if u.b.journal != nil {
		u.stuck, _ = u.b.journal.Wasteful(1)
	}
}

func (u *upkeep) all() {
	u.sweepAll()
	if u.b.journal != nil {
		u.compact()
		u.checkpointWhenDue()
	}
}

// checkpointWhenDue writes a checkpoint when so much of the log is behind the last one that a start
// would take long, or the disk is full of what only the next one lets go. Where messages come and go at once
// that never happens, but for queues that remember keys.
func (u *upkeep) checkpointWhenDue() {
	due := u.b.journal.Tail(u.checked) >= max(u.b.opt.tuning.checkpointBytes, checkpointRatio*u.size)
	if !due && !(u.b.journal.Low() && u.b.journal.Kept()) {
		return
	}
	pos, size, err := u.b.checkpoint()
	switch {
	case err == nil:
		u.checked, u.size = pos, size
	case errors.Is(err, journal.ErrTopology), errors.Is(err, errBusy):
		u.b.log.Debug("checkpoint put off", "reason", err)
	default:
		u.b.log.Warn("checkpoint not written: a start after a crash takes longer", "error", err)
		u.checked = pos
	}
}

// sweep settles and releases the messages of a backlog: a short one now, as part of t, a long one
// in the background. No lock is held. A crash before a long one is settled brings the rest of a
// purged one back.
func (u *upkeep) sweep(t *turn, q *Queue, backlog queue.Backlog) {
	switch n := backlog.Len(); {
	case n == 0:
		return
	case n <= sweepNow:
		q.sweep(t, &backlog)
		return
	}
	u.mu.Lock()
	u.sweeps = append(u.sweeps, sweep{q, backlog})
	u.mu.Unlock()
	u.signal()
}

// settle goes on with a settleAll. No lock is held.
func (u *upkeep) settle(ch *Channel, s settleAll) {
	u.mu.Lock()
	u.rings = append(u.rings, ring{ch, s})
	u.mu.Unlock()
	u.signal()
}

func (u *upkeep) sweepAll() {
	for {
		u.buryAll()
		u.mu.Lock()
		sweeps, rings := u.sweeps, u.rings
		u.sweeps, u.rings = nil, nil
		u.mu.Unlock()
		if len(sweeps) == 0 && len(rings) == 0 {
			return
		}
		// Those first: somebody may wait for the messages.
		for i := range rings {
			for r := &rings[i]; r.left.live > 0; u.awaitRoom() {
				t := u.b.newTurn()
				r.ch.settleSome(t, &r.settleAll, sweepNow)
				t.free()
			}
			rings[i] = ring{}
		}
		for i := range sweeps {
			for s := &sweeps[i]; s.backlog.Len() > 0; u.awaitRoom() {
				t := u.b.newTurn()
				s.q.sweep(t, &s.backlog)
				t.free()
			}
			sweeps[i] = sweep{}
		}
	}
}

// buryLater goes on with dead letters. Any goroutine.
func (u *upkeep) buryLater(g burial) {
	u.mu.Lock()
	u.graves = append(u.graves, g)
	u.burying.Store(true)
	u.mu.Unlock()
	u.signal()
}

// buryAll publishes the dead letters that turns left behind, a bounded number at a time. When the
// broker stops those that are left stay where they were: a durable queue has them again.
func (u *upkeep) buryAll() {
	for u.burying.Load() {
		u.mu.Lock()
		if len(u.graves) == 0 {
			u.burying.Store(false)
			u.mu.Unlock()
			return
		}
		g := u.graves[0]
		u.graves[0] = burial{}
		u.graves = u.graves[1:]
		u.mu.Unlock()
		for !g.done() {
			select {
			case <-u.quit:
				for !g.done() {
					if m := g.pop().Entry.Msg; m != nil {
						m.Release()
					}
				}
				continue
			default:
			}
			t := u.b.newTurn()
			t.burySome(&g, sweepNow)
			t.free()
			u.awaitRoom()
		}
	}
}

// sweep settles and releases the first sweepNow messages of a backlog that was taken off q.
func (q *Queue) sweep(t *turn, backlog *queue.Backlog) {
	var batch [sweepBatch]queue.Entry
	for n := 0; n < sweepNow && backlog.Len() > 0; n += sweepBatch {
		left := batch[:0]
		backlog.Take(sweepBatch, &left)
		q.mu.Lock()
		for i := range left {
			// Those whose record is not appended yet are let go after it was committed (see Queue.await).
			q.settle(t, &left[i])
		}
		q.mu.Unlock()
	}
}

// awaitRoom waits while too much waits for the disk, unless the broker stops.
func (u *upkeep) awaitRoom() {
	j := u.b.journal
	if j == nil || j.Pending() < journalHigh {
		return
	}
	retry := time.NewTicker(roomRetry)
	defer retry.Stop()
	for j.Pending() >= journalHigh/2 {
		select {
		case <-u.quit:
			return
		case <-retry.C:
		}
	}
}
