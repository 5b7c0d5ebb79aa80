package broker

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/broker/queue"
)

// timeouts bounds how long a delivery may wait for its acknowledgement: RabbitMQ's consumer timeout. A
// delivery has the consumer's own, else its queue's, else the broker's. They are looked at a few
// times in the shortest one; no delivery has a timer, and nothing is done when one is sent or settled.
type timeouts struct {
	setting atomic.Int64 // the broker's, ms; 0: none
	// shortest is below all that count now, ms; 0: there has been none. It never grows.
	shortest atomic.Int64
	changed  atomic.Bool // one may be shorter than when channels were last looked at

	// Guarded by upkeep.looking.
	looked int64 // Unix ms of the last look
	open   []*Channel
}

const (
	// The looks are an eighth of the shortest timeout apart, within these bounds in ms.
	timeoutLookLeast = 1000
	timeoutLookMost  = 10_000
	// timeoutBatch is how many deliveries of a channel are looked at with its Peer locked.
	timeoutBatch = 4096
)

// note takes a timeout into account before a delivery has it. None and 0 are no timeout.
func (t *timeouts) note(ms int64) {
	if ms <= 0 {
		return
	}
	for {
		s := t.shortest.Load()
		if s != 0 && s <= ms {
			return
		}
		if t.shortest.CompareAndSwap(s, ms) {
			t.changed.Store(true)
			return
		}
	}
}

// SetConsumerTimeout sets how long a delivery may wait for its acknowledgement where neither consumer nor queue
// say otherwise, also those that wait already; 0 or less: for ever. Any goroutine.
func (b *Broker) SetConsumerTimeout(d time.Duration) {
	ms := min(max(d.Milliseconds(), 0), policy.MaxTTL)
	if d > 0 {
		ms = max(ms, 1)
	}
	b.timeouts.setting.Store(ms)
	b.timeouts.note(ms)
	b.timeouts.changed.Store(true)
}

// ackTimeout is that of a delivery to c, nil for a get, in ms; 0: none. Any goroutine.
func (q *Queue) ackTimeout(c *Consumer) int64 {
	if c != nil && c.timeout != queue.None {
		return c.timeout
	}
	if ms := q.settings.Load().ConsumerTimeout; ms != queue.None {
		return ms
	}
	return q.b.timeouts.setting.Load()
}

// lookForLate asks the sessions to see to deliveries that have waited for too long, if it is time to look.
// Called with upkeep.looking held.
func (b *Broker) lookForLate(now int64) {
	t := &b.timeouts
	// Read before the shortest: note writes them in the other order.
	changed := t.changed.Swap(false)
	shortest := t.shortest.Load()
	apart := min(max(shortest/8, timeoutLookLeast), timeoutLookMost)
	if since := now - t.looked; shortest == 0 || !changed && 0 <= since && since < apart {
		return
	}
	t.looked = now
	b.census.mu.Lock()
	for ch := range b.census.channels {
		ch.peer.Lock()
		if ch.unacked.live > 0 && (changed || ch.lateFrom <= now) && !ch.conn.info.Internal {
			t.open = append(t.open, ch)
		}
		ch.peer.Unlock()
	}
	b.census.mu.Unlock()
	for _, ch := range t.open {
		if _, found := ch.late(now); found {
			ch.peer.Late(ch)
		}
	}
	clear(t.open)
	if t.open = t.open[:0]; cap(t.open) > timeoutBatch {
		t.open = nil
	}
}

// longHold is from how long on, in ms, that frames were held gives deliveries their time again: less is between two
// looks, and the rule for connections that are slowed all the time.
const longHold = 1000

// Holds says that the session holds frames, or no more: acknowledgements may be among them, or behind them in the
// socket. Meanwhile no delivery of the connection is late. If that took long their times begin anew, so that what
// the client has sent by then is read before. By the connection's reader.
func (c *Conn) Holds(on bool) {
	if on == (c.holding != 0) {
		return
	}
	now := c.b.opt.Now()
	if on {
		c.holding, c.before = now, c.timely.Swap(math.MaxInt64)
		return
	}
	if now-c.holding >= longHold {
		c.before = now
	}
	c.holding = 0
	c.timely.Store(c.before)
}

// Late is a delivery that has waited for its acknowledgement for too long.
type Late struct {
	Tag      uint64
	Consumer *Consumer // nil for a get
	Timeout  int64     // ms

	queue *Queue
}

// late finds the first delivery whose time is over; without one it notes from when there may be one. Deliveries are in the order of their times: where all have the same timeout
// the oldest alone is looked at, else those older than the shortest. Any goroutine, no lock held.
func (ch *Channel) late(now int64) (l Late, found bool) {
	timely := ch.conn.timely.Load()
	if timely > now {
		return l, false
	}
	shortest := ch.conn.b.timeouts.shortest.Load()
	due := now + shortest
	for tag, more := uint64(0), true; more; {
		ch.peer.Lock()
		u := &ch.unacked
		i := u.from(tag)
		end := min(u.n, i+timeoutBatch)
		more = end < u.n
		for ; i < end; i++ {
			s := u.at(i)
			tag = s.tag + 1
			if s.q == nil {
				continue
			}
			at := max(s.at, timely)
			if at+shortest >= due {
				more = false
				break
			}
			ms := s.q.ackTimeout(s.c)
			if ms == 0 {
				continue
			}
			if due = min(due, at+ms+1); due <= now {
				l, found, more = Late{Tag: s.tag, Consumer: s.c, Timeout: ms, queue: s.q}, true, false
				break
			}
		}
		if !more {
			ch.lateFrom = due
		}
		ch.peer.Unlock()
	}
	return l, found
}

// Late finds a delivery that has waited for its acknowledgement for longer than it may, the oldest of them, as the
// error that its client is told: PreconditionFailed. nil: there is none, perhaps not any more. The session then closes the channel, or calls Withdraw. By
// the connection's reader, after Peer.Late, outside of a turn.
func (ch *Channel) Late() (l Late, e *Error) {
	b := ch.conn.b
	l, found := ch.late(b.opt.Now())
	if !found {
		return l, nil
	}
	b.counters.AckTimeouts.Add(1)
	consumer := ""
	if l.Consumer != nil {
		consumer = l.Consumer.Tag
	}
	b.log.Warn("no acknowledgement in time", "peer", ch.conn.info.Name, "user", ch.conn.User(), "vhost", l.queue.vhost, "channel", ch.number,
		"queue", l.queue.name, "consumer", consumer, "delivery_tag", l.Tag, "timeout_ms", l.Timeout)
	return l, refuse(PreconditionFailed, "delivery acknowledgement on channel %d timed out. Timeout value used: %d ms. "+
		"This timeout value can be configured, see consumers doc guide to learn more", ch.number, l.Timeout)
}

// Withdraw requeues all that the consumer of a late delivery holds, or the one delivery of a get, and ends the
// consumer. No Sink method tells of it. By the connection's reader.
func (ch *Channel) Withdraw(l Late) {
	t := ch.conn.begin()
	if l.Consumer != nil {
		l.Consumer.started.Store(false) // it gets none of them again
	}
	var left unacked
	for tag, more := l.Tag, true; more; {
		ch.peer.Lock()
		u := &ch.unacked
		i := u.from(tag)
		end := min(u.n, i+timeoutBatch)
		more = end < u.n && l.Consumer != nil
		for ; i < end; i++ {
			s := u.at(i)
			tag = s.tag + 1
			if s.q != nil && s.c == l.Consumer && (s.c != nil || s.tag == l.Tag) {
				left.push(s.tag, s.q, s.c, &s.e, s.at)
				*s = slot{tag: s.tag}
				u.live--
			}
		}
		u.trim()
		ch.peer.Unlock()
	}
	ch.settleAll(t, settleAll{left: left, verb: VerbNack, requeue: true}, settleNow)
	if l.Consumer != nil {
		l.Consumer.remove(t)
	}
}
