package broker

import (
	"cmp"
	"slices"
	"strings"

	"github.com/firemq/firemq/broker/queue"
)

// Verb names a collected verb (see Channel.FailedVerb).
type Verb uint8

const (
	VerbNone Verb = iota
	VerbAck
	VerbNack
	VerbReject
)

// maxOps is how many settlements a channel collects before they are carried out.
const maxOps = 512

// op is one collected ack, nack or reject.
type op struct {
	tag      uint64
	verb     Verb
	multiple bool
	requeue  bool
}

// settling is one delivery taken off the unacked ring, and what becomes of it.
type settling struct {
	slot
	verb    Verb
	requeue bool
	apart   bool // what is before it of the same queue has its consequences first
}

// settlements are deliveries that ops have named, taken off the ring: one by one, and very many at a time.
type settlements struct {
	list  []settling
	whole []settleAll
	acks  uint64 // not counted yet
}

// Ack settles the delivery tag, with multiple every outstanding one up to it (tag 0: all of them).
//
// Like Nack and Reject it is collected: an unknown tag's error (PreconditionFailed, "unknown
// delivery tag N") is returned by this call, a later verb of the channel or EndTurn, and
// FailedVerb tells which verb it belongs to.
func (ch *Channel) Ack(tag uint64, multiple bool) *Error {
	return ch.addOp(op{tag: tag, verb: VerbAck, multiple: multiple})
}

// Nack refuses deliveries: back to their queue's original position with requeue, else
// dead-lettered or dropped.
func (ch *Channel) Nack(tag uint64, multiple, requeue bool) *Error {
	return ch.addOp(op{tag: tag, verb: VerbNack, multiple: multiple, requeue: requeue})
}

// Reject is Nack of one; kept apart only so that FailedVerb can name it.
func (ch *Channel) Reject(tag uint64, requeue bool) *Error {
	return ch.addOp(op{tag: tag, verb: VerbReject, requeue: requeue})
}

func (ch *Channel) addOp(o op) *Error {
	if ch.tx != nil {
		return ch.addTxOp(o)
	}
	ch.ops = append(ch.ops, o)
	ch.collect()
	if len(ch.ops) >= maxOps {
		return ch.Settle()
	}
	return nil
}

// FailedVerb tells which collected verb the last error of this channel came from; VerbNone when the
// error was the called verb's own.
func (ch *Channel) FailedVerb() Verb {
	v := ch.failed
	ch.failed = VerbNone
	return v
}

// Settle carries out the collected acks and nacks. Every verb of the channel does it first by itself;
// sessions need it only to tell a collected error from a verb's own. After an error, what was collected
// behind the wrong one is still there: the session calls Settle again, or closes the channel.
func (ch *Channel) Settle() *Error {
	if len(ch.ops) == 0 {
		return nil
	}
	ch.peer.Lock()
	done, err := ch.resolve(ch.ops, &ch.settling)
	ch.countAcks()
	ch.peer.Unlock()
	ch.ops = ch.ops[:copy(ch.ops, ch.ops[done:])]
	ch.finish(settleNow)
	return err
}

// warm asks for the memory of the message, which the settlement gives back.
func (s *slot) warm() {
	if m := s.e.Msg; m != nil {
		m.Warm()
	}
}

// countAcks counts the acks that are about to be carried out. Peer locked.
func (ch *Channel) countAcks() {
	ch.stats.Ack += ch.settling.acks
	ch.settling.acks = 0
}

// resolve takes the deliveries that ops name off the ring. It stops at the first unknown tag with the
// error, and tells how many ops it has dealt with, the wrong one included. Peer locked.
func (ch *Channel) resolve(ops []op, to *settlements) (done int, err *Error) {
	for n, o := range ops {
		if !o.multiple {
			i := ch.unacked.find(o.tag)
			if i < 0 {
				return n + 1, ch.unknownTag(o)
			}
			s := ch.unacked.take(i)
			if n := len(to.list); n == 0 || to.list[n-1].q != s.q {
				s.q.warm()
			}
			if n := len(to.list); s.c != nil && (n == 0 || to.list[n-1].c != s.c) {
				s.c.warm()
			}
			s.warm()
			to.list = append(to.list, settling{s, o.verb, o.requeue, o.requeue})
			if o.verb == VerbAck {
				to.acks++
			}
			continue
		}
		upto := ch.unacked.n
		if o.tag != 0 {
			if upto = ch.unacked.find(o.tag) + 1; upto == 0 {
				return n + 1, ch.unknownTag(o)
			}
		}
		if upto > settleNow {
			whole := settleAll{ch.unacked.cut(upto), o.verb, o.requeue}
			if o.verb == VerbAck {
				to.acks += uint64(whole.left.live)
			}
			to.whole = append(to.whole, whole)
			continue
		}
		from := len(to.list)
		for i := range upto {
			s := ch.unacked.at(i)
			if s.q == nil {
				continue
			}
			s.warm()
			to.list = append(to.list, settling{*s, o.verb, o.requeue, false})
			*s = slot{tag: s.tag}
			ch.unacked.live--
			if o.verb == VerbAck {
				to.acks++
			}
		}
		ch.unacked.trim()
		arrange(to.list[from:])
	}
	return len(ops), nil
}

// arrange puts deliveries that are settled together in the order of RabbitMQ: queue by queue, and of each queue
// first what was got, every message for itself, then consumer by consumer, in order of their tags. What one gives back
// goes out again, and its new room is used, before the next one's turn. Of what a consumer rejects for good the
// highest priorities go first.
func arrange(list []settling) {
	mixed, ranked := false, false
	for i := 1; i < len(list) && !mixed; i++ {
		mixed = list[i].q != list[0].q || list[i].c != list[0].c
		ranked = ranked || list[i].e.Priority != list[0].e.Priority
	}
	if mixed || ranked && list[0].dies() {
		slices.SortFunc(list, func(a, b settling) int {
			if c := byQueue(&a, &b); c != 0 {
				return c
			}
			if c := strings.Compare(a.c.tag(), b.c.tag()); c != 0 {
				return c
			}
			if a.c != nil && a.dies() && a.e.Priority != b.e.Priority {
				return cmp.Compare(b.e.Priority, a.e.Priority)
			}
			return cmp.Compare(a.slot.tag, b.slot.tag)
		})
	}
	for i := range list {
		s := &list[i]
		s.apart = s.requeue && (i == 0 || s.c == nil) || mixed && i > 0 && s.c.tag() != list[i-1].c.tag()
	}
}

// dies says whether the delivery is rejected for good.
func (s *settling) dies() bool { return s.verb != VerbAck && !s.requeue }

func byQueue(a, b *settling) int {
	if a.q == b.q {
		return 0
	}
	return strings.Compare(a.q.name, b.q.name)
}

func (ch *Channel) unknownTag(o op) *Error {
	ch.failed = o.verb
	return refuse(PreconditionFailed, "unknown delivery tag %d", o.tag)
}

// finish carries out resolved settlements, one lock of a queue for each run of its deliveries, and of
// each ring the oldest now, see settleAll.
func (ch *Channel) finish(now int) {
	if len(ch.settling.list)+len(ch.settling.whole) > 0 {
		ch.conn.lateOwed = 0
	}
	if list := ch.settling.list; len(list) > 0 {
		t := ch.conn.begin()
		ch.conn.carried(len(list), t.now)
		for i := 0; i < len(list); {
			q := list[i].q
			q.mu.Lock()
			for first := i; i < len(list) && list[i].q == q; i++ {
				s := &list[i]
				if s.apart && i > first {
					q.served(t)
				}
				ch.conclude(t, &s.slot, s.verb, s.requeue)
			}
			q.served(t)
			q.mu.Unlock()
		}
		ch.roomier(t)
		clear(list)
		ch.settling.list = kept(list)
	}
	if whole := ch.settling.whole; len(whole) > 0 {
		t := ch.conn.begin()
		for i := range whole {
			ch.settleAll(t, whole[i], now)
			whole[i] = settleAll{}
		}
		ch.settling.whole = whole[:0]
	}
}

// conclude settles one delivery. The lock of its queue is held, and the caller ends with served.
func (ch *Channel) conclude(t *turn, s *slot, verb Verb, requeue bool) {
	q := s.q
	ch.unreserve(s.c)
	if t.b.tracedDeliveries.Load() > 0 {
		ch.concluded(t, s, verb, requeue)
	}
	switch {
	case q.deleted:
		q.settle(t, &s.e)
	case verb == VerbAck:
		q.stats.Ack++
		q.sm.Ack(s.c.state(), &s.e)
		q.settle(t, &s.e)
	case requeue:
		q.requeue(t, s.c, &s.e)
	default:
		q.sm.Ack(s.c.state(), &s.e)
		q.die(t, queue.Dead{Entry: s.e, Reason: queue.Rejected})
	}
}

// served carries out what settlements made possible. Lock held.
func (q *Queue) served(t *turn) {
	if q.deleted {
		return
	}
	q.sm.Requeued(&t.fx)
	if len(t.fx.Dead) > 0 {
		q.apply(t)
	}
	q.dispatch(t)
}

// giveBack requeues what a channel held that is closed: all of a queue at once, as RabbitMQ does.
func (ch *Channel) giveBack(t *turn, left unacked) {
	if left.live > settleNow {
		ch.settleAll(t, settleAll{left: left, verb: VerbNack, requeue: true}, settleNow)
		return
	}
	for left.trim(); left.live > 0; {
		ch.settling.list = append(ch.settling.list, settling{slot: left.pop(), verb: VerbNack, requeue: true})
	}
	slices.SortStableFunc(ch.settling.list, func(a, b settling) int { return byQueue(&a, &b) })
	ch.finish(settleNow)
}

// settleAll is a ring of deliveries that have one fate.
type settleAll struct {
	left    unacked
	verb    Verb
	requeue bool
}

// settleNow is how many deliveries of a settleAll are settled in the turn that asked for it, unless it is
// a transaction, whose settlements are one record. Those
// beyond it follow in the background, oldest first, so that neither the queue nor other connections of
// the same reader wait for a million of them.
const settleNow = 16 << 10

// settleAll settles a ring: the oldest now deliveries as part of t.
func (ch *Channel) settleAll(t *turn, s settleAll, now int) {
	if s.left.trim(); s.left.live == 0 {
		return
	}
	ch.settleSome(t, &s, now)
	if s.left.live > 0 {
		ch.conn.b.upkeep.settle(ch, s)
	}
}

// settleSome settles the oldest limit deliveries of a ring. Any goroutine, no lock held.
func (ch *Channel) settleSome(t *turn, s *settleAll, limit int) {
	for limit > 0 && s.left.live > 0 {
		q := s.left.at(0).q
		q.mu.Lock()
		for n := 0; n < sweepBatch && s.left.live > 0 && s.left.at(0).q == q; n++ {
			d := s.left.pop()
			ch.conclude(t, &d, s.verb, s.requeue)
			limit--
		}
		q.served(t)
		q.mu.Unlock()
	}
	ch.roomier(t)
}
