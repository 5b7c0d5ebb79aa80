package broker

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/firemq/firemq/broker/dedup"
	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/prefetch"
	"github.com/firemq/firemq/journal"
)

// dispatchBatch is how many messages are handed out before the outboxes' marks are looked at
// again; it bounds how far a delivery burst overshoots an outbox's high-water mark.
const dispatchBatch = 128

// Queue is one queue and the lock around its state machine. The lock is taken once for a batch;
// under it only outbox locks and the leaf locks of timers and completer are taken.
type Queue struct {
	vhost string // immutable, like all up to mu
	name  string
	own   *policy.Settings // of its arguments
	owner *Conn            // of an exclusive queue
	kept  int64            // about what args take, in bytes

	// What every message needs lies side by side, from here to the hot part of sm: see warm.
	mu      sync.Mutex
	b       *Broker     // immutable
	id      uint64      // in the journal: from fleetingIDs on it does not survive, 0 has none; immutable
	durable bool        // survives a restart; an exclusive queue never does; immutable
	replies bool        // stands behind a direct reply-to token: unlisted; immutable
	deleted bool        // guarded by mu
	waiting bool        // the completer will dispatch it after a commit; guarded by mu
	twins   bool        // a channel has, or had, several of its consumers; guarded by mu
	dedups  atomic.Bool // it has a window: publishers make keys before they take mu
	// window knows repetitions; nil for a queue that does not de-duplicate. Guarded by mu.
	window *dedup.Window
	// serves is who got a message last, nil if that one is gone: any goroutine may ask for its memory. Changed under mu.
	serves atomic.Pointer[Consumer]
	// orphans left the queue before their publish was in the journal: purged, dropped by a limit or settled
	// after a get in the very moment of publishing. They are settled once the publish is; guarded by mu.
	orphans []queue.Entry
	// resident is its part of Broker.resident; guarded by mu.
	resident int64
	// persistent messages, ready and unacked, and their body bytes; guarded by mu.
	persistent      int
	persistentBytes int64
	stats           QueueStats  // guarded by mu
	sm              queue.Queue // guarded by mu

	declared   bool // durable as declared, which an exclusive queue may be; immutable, like all up to noted
	exclusive  bool
	autoDelete bool
	args       table.Table
	noted      journal.Position // of its declaration; 0 when it is not durable or was recovered

	members map[*Consumer]struct{} // consumers; nil before the first one; guarded by mu
	// channels counts them by channel, nil while they are few: see consumersOf; guarded by mu.
	channels map[*Channel]int
	// limbo is how many messages have left it for a dead-letter exchange and are not settled yet;
	// guarded by mu.
	limbo int
	// strays are the channels that may hold unacked messages without a consumer; guarded by mu, as
	// is the number at which those without any are looked for.
	strays     map[*Channel]struct{}
	strayLimit int
	// noted is what was read last of messages that are in the journal alone, see Head; guarded by mu.
	headNoted, oldestNoted headNote

	// settings are what policies make of own. Any goroutine reads; changed under mu.
	settings atomic.Pointer[effective]

	used atomic.Int64 // Unix ms of the last declare, get or consumer (x-expires)
}

// warmLines is how many cache lines of a queue a message needs.
const warmLines = int(unsafe.Offsetof(Queue{}.sm)-unsafe.Offsetof(Queue{}.mu)+queue.HotBytes+63) / 64

// warm asks for the memory of q, which the end of the turn will work on: with thousands of queues each message's is
// far away, and waited for by one message after the other. No lock is needed.
func (q *Queue) warm() { prefetch.Lines(unsafe.Pointer(&q.mu), warmLines) }

// warmConsumer asks for the memory of who probably gets the next message. What warm asked for should be there.
func (q *Queue) warmConsumer() {
	if c := q.serves.Load(); c != nil {
		prefetch.Lines(unsafe.Pointer(c), consumerLines)
	}
}

// settle ends an entry: by a record of its own, unless the queue's deletion speaks for it. One whose publish is
// not in the journal yet has to wait for that. Lock held.
func (q *Queue) settle(t *turn, e *queue.Entry) {
	if q.window != nil {
		q.window.Forget(e.Seq)
	}
	switch {
	case e.Journaled && e.Msg != nil && e.Msg.Position() == 0:
		q.orphans = append(q.orphans, *e)
		q.await(q.b.committed())
	case q.deleted:
		q.b.abandon(e)
	default:
		t.settle(q, e)
	}
}

// fleetingIDs is the first id of queues that a restart ends: no queue that it brings back has one, so what is in the
// journal for them is nobody's then.
const fleetingIDs = 1 << 63

// journaled: persistent messages of this queue go to the journal.
func (q *Queue) journaled() bool { return q.durable && q.b.journal != nil }

// dispatch hands ready messages to consumers until none can be handed out. Lock held.
func (q *Queue) dispatch(t *turn) {
	if len(q.orphans) > 0 {
		q.adopt(t)
	}
	if q.sm.Len()+q.sm.Delayed() == 0 {
		if q.resident != 0 {
			q.page(t)
		}
		return
	}
	committed := q.b.committed()
	for round := 1; ; round++ {
		more := q.sm.Dispatch(t.now, committed, dispatchBatch, &t.fx)
		q.apply(t)
		if !more || len(t.dead) >= deadBatch && q.overdue(t) {
			break
		}
		if round == dispatchRounds {
			if !q.waiting {
				q.waiting = true
				q.b.done.again(q)
			}
			break
		}
	}
	if q.sm.Waiting(committed) {
		q.await(committed)
	}
	spills := q.b.spills()
	if held := q.sm.Resident(); held > accountStep || held > 0 && spills || held > q.b.opt.tuning.queueResident || q.resident != 0 {
		q.page(t)
	}
	if spills && q.sm.Resident() > 0 {
		q.await(committed) // the rest leaves when it is on disk, whatever is at the head
	}
}

// await has the completer dispatch q, and let go of its orphans, after the next commit beyond committed. Lock held.
func (q *Queue) await(committed journal.Position) {
	if !q.waiting {
		q.waiting = true
		q.b.done.awaitQueues(committed, q)
	}
}

// dispatchRounds is how many batches one holding of a queue's lock hands out; the completer goes on, so that
// a consumer without a prefetch that takes a long backlog does not shut out the queue's publishers.
const dispatchRounds = 64

// deadBatch is how many messages may die in a turn before its queue is left to its timer: a million that
// expired, or are over a new limit, hold up nobody.
const deadBatch = 1024

// overdue says that the next message has to go and the timer, which is set, will see to it. Lock held.
func (q *Queue) overdue(t *turn) bool {
	at := q.sm.NextExpiry()
	return at != 0 && at <= t.now
}

// adopt settles the orphans whose publish has reached the journal meanwhile.
func (q *Queue) adopt(t *turn) {
	kept := q.orphans[:0]
	for _, e := range q.orphans {
		if e.Msg.Position() == 0 {
			kept = append(kept, e)
			continue
		}
		q.settle(t, &e)
	}
	clear(q.orphans[len(kept):])
	q.orphans = kept
}

// apply carries out the effects in t.fx and clears them. Lock held.
func (q *Queue) apply(t *turn) {
	if len(t.fx.Deliver) > 0 {
		q.deliver(t)
	}
	for i := range t.fx.Dead {
		q.die(t, t.fx.Dead[i])
	}
	t.fx.Reset()
	if at := q.sm.NextExpiry(); at != 0 {
		// What is overdue comes after the others that are, in turn.
		q.b.timers.expiry(q, max(at, t.now))
	}
}

// die hands a message that left the queue unsettled to the end of the turn. Lock held.
func (q *Queue) die(t *turn, d queue.Dead) {
	if d.Entry.Seq != 0 {
		q.limbo++
	}
	t.dead = append(t.dead, deadItem{q, d})
}

// deliver sends t.fx.Deliver to the consumers' channels, each consumer's at once: its channel is locked once. Where
// consumers share a channel, that one gets everything in the queue's order. Lock held.
func (q *Queue) deliver(t *turn) {
	for i := range t.fx.Deliver {
		d := &t.fx.Deliver[i]
		c := d.Consumer.Receiver.(*Consumer)
		if d.Entry.Msg == nil {
			m, err := q.b.load(d.Entry.Pos)
			if err != nil {
				q.b.log.Error("message lost: its record cannot be read",
					"queue", q.name, "vhost", q.vhost, "seq", d.Entry.Seq, "position", d.Entry.Pos, "error", err)
				if !c.NoAck {
					q.sm.Ack(d.Consumer, &d.Entry)
				}
				c.ch.unreserve(c)
				q.settle(t, &d.Entry)
				continue
			}
			d.Entry.Msg = m
		}
		if d.Entry.Journaled {
			d.Entry.Msg.WarmContent() // which send is about to copy
		}
		if len(c.pending) == 0 {
			if q.twins {
				q.sendTwin(t, c)
			}
			c.pending = t.lend()
			t.served = append(t.served, c)
		}
		c.pending = append(c.pending, d.Entry)
	}
	for _, c := range t.served {
		q.send(t, c)
	}
	clear(t.served)
	t.served = t.served[:0]
}

func (q *Queue) send(t *turn, c *Consumer) {
	if q.serves.Load() != c {
		q.serves.Store(c)
	}
	c.ch.send(t, q, c)
	t.takeBack(c.pending)
	c.pending = nil
}

// sendTwin sends what another consumer of c's channel is about to get, before c gets something.
func (q *Queue) sendTwin(t *turn, c *Consumer) {
	if i := slices.IndexFunc(t.served, func(o *Consumer) bool { return o.ch == c.ch }); i >= 0 {
		q.send(t, t.served[i])
		t.served = slices.Delete(t.served, i, i+1)
	}
}

// discard lets go of every message when the broker stops; nothing is settled.
func (q *Queue) discard() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.deleted = true
	left := q.sm.Close()
	var batch [sweepBatch]queue.Entry
	for left.Len() > 0 {
		b := batch[:0]
		left.Take(sweepBatch, &b)
		for i := range b {
			if b[i].Msg != nil {
				b[i].Msg.Release()
			}
		}
	}
	for i := range q.orphans {
		q.orphans[i].Msg.Release()
	}
	q.orphans = nil
}
