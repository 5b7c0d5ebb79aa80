package broker

import (
	"slices"
	"sync/atomic"

	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/route"
)

// maxPublishBatch is how many publishes a channel collects before they are carried out, so that a
// long read does not delay its first message.
const maxPublishBatch = 256

// Channel is one stream of publishes and deliveries: an AMQP channel, or a whole FMQ1
// connection.
type Channel struct {
	conn   *Conn // immutable, like all up to the next group
	peer   Peer
	sink   Sink
	number uint16
	first  bool // of its connection, when it was opened

	// Owned by the connection's reader.
	pubs     []publish
	ops      []op
	settling settlements // scratch of Settle
	failed   Verb
	routes   *route.Cache[*Queue]
	matched  matched
	replies  *Consumer // of direct reply-to
	active   bool      // in conn.active
	confirms bool
	prefetch uint32       // of consumers started from now on
	tx       *transaction // nil: not transactional
	fresh    MessageStats // published since stats was brought up to date
	grown    int64        // bytes published since the allowance was asked
	exchange exchangeTally

	// Guarded by the Peer's lock.
	nextTag  uint64
	unacked  unacked
	inTx     settlements // taken off unacked by the open transaction
	wait     []pledge    // confirms and answers not sent yet, in order
	waitHead int
	told     uint64 // the last sequence number confirmed or refused
	awaiting bool   // the completer will look at wait after a commit
	gone     bool   // closed: nothing may be sent any more
	out      Delivery
	stats    MessageStats
	mode     Mode
	shown    uint32                    // prefetch, as inspection shows it
	traced   map[uint64]tracedDelivery // by tag; nil while there are none
	lateFrom int64                     // Unix ms before which no delivery is late, as long as no timeout changes
	denied   denied                    // wait for room in limit, or below maxUnacked

	byTag map[string]*Consumer // its consumers; guarded by conn.mu

	limit    atomic.Int64 // prefetch of the channel as a whole, 0: none
	inflight atomic.Int64 // deliveries to consumers that count towards it
	denials  atomic.Int32 // how many are in denied
	withheld atomic.Bool  // the channel is in Broker.withheld

	kept atomic.Int64 // answers that wait: added by the reader, taken away under the Peer's lock

	// What the open transaction holds, for inspection.
	txPubs, txOps atomic.Int32
}

// Mode is how a channel treats its publishes.
type Mode uint8

const (
	ModePlain   Mode = iota
	ModeConfirm      // publisher confirms
	ModeTx           // transactions
)

// Open starts a channel. number is what operators see (the AMQP channel number; 1 for FMQ1). Error:
// NotAllowed (the user's limit), ResourceError (memory).
func (c *Conn) Open(number uint16, s Sink) (*Channel, *Error) {
	c.costly()
	if e := c.claim(channelMemory, true); e != nil {
		return nil, e
	}
	if e := c.countChannel(); e != nil {
		c.unclaim(channelMemory, true)
		return nil, e
	}
	ch := &Channel{conn: c, peer: c.peer, sink: s, number: number, first: len(c.channels) == 0, routes: c.b.routes.NewCache(c.vhost.name)}
	c.channels = append(c.channels, ch)
	c.b.census.open(ch)
	if !c.info.Internal {
		c.b.counters.ChannelsOpened.Add(1)
	}
	return ch, nil
}

// Sink is the session's half of the channel.
func (ch *Channel) Sink() Sink { return ch.sink }

// collect notes that the channel has something to carry out at the end of the turn.
func (ch *Channel) collect() {
	if !ch.active {
		ch.active = true
		ch.conn.active = append(ch.conn.active, ch)
	}
}

// Close carries out the publishes collected, ends the consumers, requeues what is unacked and drops
// pending confirms. No Sink method is called after it returns.
func (ch *Channel) Close() {
	ch.conn.costly()
	t := ch.conn.begin()
	ch.flush()
	ch.ops = ch.ops[:0]
	ch.rollback()
	t.bury() // what queues did not take of it is there before what it holds comes back
	consumers := ch.consumers()
	for _, c := range consumers {
		c.started.Store(false) // none takes over from another of them
	}
	ch.peer.Lock()
	ch.gone = true
	ch.wait, ch.waitHead = nil, 0
	ch.answered(int(ch.kept.Load()))
	ch.report()
	left := ch.unacked.takeAll()
	ch.peer.Unlock()
	// An auto-delete queue that has no other consumers goes first: what it would get back is dropped with
	// it, and not dead-lettered by a limit.
	consumers = slices.DeleteFunc(consumers, func(c *Consumer) bool {
		doomed := c.q.autoDelete && ch.alone(c.q)
		if doomed {
			c.remove(t)
		}
		return doomed
	})
	t.reap()
	ch.giveBack(t, left)
	// What they held is back before another consumer takes their place.
	for _, c := range consumers {
		c.remove(t)
	}
	if i := slices.Index(ch.conn.channels, ch); i >= 0 {
		ch.conn.channels = slices.Delete(ch.conn.channels, i, i+1)
	}
	if i := slices.Index(ch.conn.active, ch); i >= 0 {
		ch.conn.active = slices.Delete(ch.conn.active, i, i+1)
		ch.active = false
	}
	ch.unwithhold()
	b := ch.conn.b
	b.census.close(ch)
	if !ch.conn.info.Internal {
		b.connMu.Lock()
		b.count(ch.conn.user.Name(), 0, -1)
		b.connMu.Unlock()
		b.counters.ChannelsClosed.Add(1)
	}
}

// report brings what others see of the publishes up to date. By the reader, Peer locked.
func (ch *Channel) report() {
	if ch.fresh.Publish > 0 {
		ch.stats.Add(&ch.fresh)
		ch.fresh = MessageStats{}
		ch.exchange.settle()
	}
}

// alone reports whether the queue has no consumers of other channels.
func (ch *Channel) alone(q *Queue) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.consumersOf(ch) == len(q.members)
}

// Recover requeues everything unacked on the channel, but for what the open transaction settles. Errors: those of
// collected settlements.
func (ch *Channel) Recover() *Error {
	if e := ch.Settle(); e != nil {
		return e
	}
	ch.peer.Lock()
	ch.resolve([]op{{verb: VerbNack, multiple: true, requeue: true}}, &ch.settling)
	ch.peer.Unlock()
	ch.finish(settleNow)
	return nil
}

// Qos sets the prefetch of consumers started from now on (global false, which also removes the
// channel's own limit), or the limit of the channel as a whole, at once (RabbitMQ's meaning of
// 0-9-1's flag). 0 is no limit.
func (ch *Channel) Qos(prefetch uint16, global bool) *Error {
	if e := ch.Settle(); e != nil {
		return e
	}
	if global {
		ch.limit.Store(int64(prefetch))
	} else {
		ch.prefetch = uint32(prefetch)
		ch.limit.Store(0)
		ch.peer.Lock()
		ch.shown = ch.prefetch
		ch.peer.Unlock()
	}
	ch.roomier(ch.conn.begin())
	return nil
}

// Reserve implements queue.Receiver: the outbox has room and the channel's limit a place left.
// Called with the queue's lock held.
func (c *Consumer) Reserve() bool {
	if !c.started.Load() || !c.ch.peer.Writable() {
		return false
	}
	if c.NoAck {
		return true
	}
	ch := c.ch
	for {
		n := ch.inflight.Load()
		switch {
		case n < ch.most():
			if ch.inflight.CompareAndSwap(n, n+1) {
				return true
			}
		case ch.deny(c):
			return false
		}
	}
}

// Room implements queue.Receiver. The channel's limit is one for all its consumers, and its other queues may
// use it up in the meantime.
func (c *Consumer) Room() (n uint64, shared any) {
	if !c.started.Load() || !c.ch.peer.Writable() {
		return 0, nil
	}
	if c.NoAck {
		return queue.Unlimited, nil
	}
	ch := c.ch
	for {
		if room := ch.most() - ch.inflight.Load(); room > 0 {
			return uint64(room), ch
		}
		if ch.deny(c) {
			return 0, ch
		}
	}
}

// maxUnacked is how many deliveries of a channel may wait for their settlement, whatever its prefetch
// says. Its consumers wait then, and a get is refused. Consumers get no more than withholdUnacked while memory is all but used
// up beyond its limit, see Broker.withhold: what is ready takes a few bytes, a delivery that is not settled about a hundred.
const (
	maxUnacked      = 1 << 21
	withholdUnacked = 1 << 16
)

// outstanding is how many deliveries and gets wait for their settlement.
func (ch *Channel) outstanding() int64 {
	ch.peer.Lock()
	defer ch.peer.Unlock()
	return int64(ch.unacked.live) + int64(ch.txOps.Load())
}

// unreserve gives a delivery's place in the channel's limit back. c is nil for a get.
func (ch *Channel) unreserve(c *Consumer) {
	if c != nil && !c.NoAck {
		ch.inflight.Add(-1)
	}
}

// send delivers c.pending, which q handed to c. q's lock is held.
func (ch *Channel) send(t *turn, q *Queue, c *Consumer) {
	ch.peer.Lock()
	if ch.gone {
		ch.peer.Unlock()
		for i := range c.pending {
			e := &c.pending[i]
			ch.unreserve(c)
			if c.NoAck {
				// Final at hand-out, and so lost with the channel, as if it had been sent.
				q.settle(t, e)
			} else {
				q.requeue(t, c, e)
			}
		}
		return
	}
	redelivered := uint64(0)
	spills := t.b.spills()
	unsent, tapped := false, ch.conn.vhost.traced.Load() && !q.replies
	traced := t.b.opt.Tracer != nil
	d := &ch.out
	d.Consumer = c
	for i := range c.pending {
		e := &c.pending[i]
		ch.nextTag++
		d.Tag, d.Redelivered, d.Count, d.Msg, d.Unsent = ch.nextTag, e.Redelivered, q.count(e), e.Msg, false
		if e.Redelivered {
			redelivered++
		}
		ch.sink.Deliver(d)
		if tapped && !d.Unsent {
			t.tapOut(ch, q, e.Msg, e.Redelivered)
		}
		if traced && !d.Unsent {
			ch.delivered(t, q, d, e.Seq, e.Journaled, !c.NoAck)
		}
		if q.replies && !c.Credited {
			ch.nextTag-- // like RabbitMQ: over AMQP a reply takes no tag, it shows the next one
		}
		holder := c
		if c.NoAck {
			if !d.Unsent {
				continue
			}
			holder, unsent = nil, true
			q.sm.Keep(e)
		}
		if spills && e.Journaled {
			e.Pos = e.Position()
		}
		if e.Pos != 0 {
			// It was read back for this delivery, or memory is short: it is read again should it be requeued.
			t.release(e)
		}
		ch.unacked.push(ch.nextTag, q, holder, e, t.now)
		if c.NoAck {
			*e = queue.Entry{}
		}
	}
	d.Msg = nil
	ch.conn.flows(t.now)
	ch.stats.delivered(c.NoAck, uint64(len(c.pending)), redelivered)
	flush := ch.peer.Unlock()
	if flush {
		t.touch(ch.peer)
	}
	q.stats.delivered(c.NoAck, uint64(len(c.pending)), redelivered)
	if c.NoAck {
		for i := range c.pending {
			if c.pending[i].Seq != 0 { // else it is unsent
				q.settle(t, &c.pending[i])
			}
		}
	}
	if unsent && q.id != 0 {
		q.stray(ch)
	}
}

// Get takes one ready message; ok is false when the queue is empty. send is called with the Peer
// locked, so that tags leave in order; remaining is the number still ready. A message
// whose record is on its way to the disk is handed out too: its confirm still waits. Errors: NotFound, AccessRefused,
// ResourceLocked (as well a quorum queue with a single active consumer), ResourceError (too many unacknowledged).
func (ch *Channel) Get(name string, noAck bool, send func(d *Delivery, remaining int)) (ok bool, err *Error) {
	if e := ch.settleAndFlush(); e != nil {
		return false, e
	}
	c := ch.conn
	if e := c.allowQueue(rightRead, name); e != nil {
		return false, e
	}
	q, e := c.queue(name)
	if e != nil {
		return false, e
	}
	if q.own.Type == policy.Quorum && q.own.Config.SingleActive {
		return false, refuse(ResourceLocked, "cannot obtain access to locked %s. basic.get operations are not supported by quorum queues with single active consumer", queueName(name, c.vhost.name))
	}
	if !noAck && ch.outstanding() >= c.b.opt.tuning.maxUnacked {
		return false, refuse(ResourceError, "channel holds %d unacknowledged messages", c.b.opt.tuning.maxUnacked)
	}
	t := c.begin()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.deleted {
		return false, refuse(NotFound, "no %s", queueName(name, c.vhost.name))
	}
	q.used.Store(t.now)
	entry, ok := q.sm.Get(t.now, &t.fx)
	q.apply(t)
	if !ok {
		q.stats.GetEmpty++
		ch.peer.Lock()
		ch.stats.GetEmpty++
		ch.peer.Unlock()
		return false, nil
	}
	if entry.Msg == nil {
		m, err := c.b.load(entry.Pos)
		if err != nil {
			c.b.log.Error("message lost: its record cannot be read", "queue", q.name, "vhost", q.vhost, "seq", entry.Seq, "error", err)
			q.sm.Ack(nil, &entry)
			q.settle(t, &entry)
			return false, refuse(InternalError, "a message of %s cannot be read from disk", queueName(name, c.vhost.name))
		}
		entry.Msg = m
	}
	// What has expired behind it does not count as remaining.
	q.sm.Expire(t.now, &t.fx)
	q.apply(t)
	ch.peer.Lock()
	ch.nextTag++
	d := &ch.out
	d.Tag, d.Consumer, d.Redelivered, d.Count, d.Msg, d.Unsent = ch.nextTag, nil, entry.Redelivered, q.count(&entry), entry.Msg, false
	strays := false
	send(d, q.sm.Len())
	if c.b.opt.Tracer != nil && !d.Unsent {
		ch.delivered(t, q, d, entry.Seq, entry.Journaled, !noAck)
	}
	d.Msg = nil
	if !d.Unsent && c.vhost.traced.Load() {
		t.tapOut(ch, q, entry.Msg, entry.Redelivered)
	}
	noAck = noAck && !d.Unsent
	if !noAck {
		if entry.Journaled && c.b.spills() {
			if pos := entry.Position(); pos < c.b.committed() {
				entry.Pos = pos
			}
		}
		if entry.Pos != 0 { // as in send
			t.release(&entry)
		}
		ch.unacked.push(ch.nextTag, q, nil, &entry, t.now)
		strays = q.durable || entry.Journaled
	}
	ch.stats.got(noAck, entry.Redelivered)
	if ch.peer.Unlock() {
		t.touch(ch.peer)
	}
	q.stats.got(noAck, entry.Redelivered)
	if strays {
		q.stray(ch)
	}
	if noAck {
		q.sm.Ack(nil, &entry)
		q.settle(t, &entry)
	}
	return true, nil
}

// count is Delivery.Count.
func (q *Queue) count(e *queue.Entry) int64 {
	if e.Deliveries > 0 && (q.own.Type == policy.Quorum || q.settings.Load().Config.DeliveryLimit != queue.None) {
		return int64(e.Deliveries)
	}
	return 0
}

// settleAndFlush carries out everything collected, before a verb that could see a difference.
func (ch *Channel) settleAndFlush() *Error {
	ch.flush()
	return ch.Settle()
}

// tag is the consumer's tag; "" for a get.
func (c *Consumer) tag() string {
	if c == nil {
		return ""
	}
	return c.Tag
}

// state is the queue's view of the consumer; nil for a get.
func (c *Consumer) state() *queue.Consumer {
	if c == nil {
		return nil
	}
	return &c.Consumer
}
