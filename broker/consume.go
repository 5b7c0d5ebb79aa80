package broker

import (
	"cmp"
	"fmt"
	"slices"
	"unsafe"

	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/internal/prefetch"
)

// maxConsumers are as many as a channel may have.
const maxConsumers = 1 << 16

// Consume registers a consumer that receives nothing until Start, so that the session can
// answer first. Errors: NotFound, ResourceLocked, AccessRefused, ExclusiveUse, NotAllowed (tag in
// use, too many), PreconditionFailed (an argument, direct reply-to, too large), ResourceError (memory).
func (ch *Channel) Consume(a *ConsumeArgs) (*Consumer, *Error) {
	if e := ch.settleAndFlush(); e != nil {
		return nil, e
	}
	conn := ch.conn
	conn.costly()
	if c := ch.Consumer(a.Tag); a.Tag != "" && c != nil && (a.Queue != ReplyTo || c != ch.replies) {
		return nil, refuse(NotAllowed, "attempt to reuse consumer tag '%s'", a.Tag)
	}
	if n := conn.b.opt.tuning.maxConsumers; int64(ch.consumerCount()) >= n {
		return nil, refuse(NotAllowed, "reached maximum (%d) of consumers per channel", n)
	}
	if e := CheckTable(a.Args, argumentsOf("a consumer of "+queueName(a.Queue, conn.vhost.name))); e != nil {
		return nil, e
	}
	if a.Queue == ReplyTo {
		return ch.consumeReplies(a)
	}
	if e := conn.allowQueue(rightRead, a.Queue); e != nil {
		return nil, e
	}
	q, e := conn.queue(a.Queue)
	if e != nil {
		return nil, e
	}
	own, bad := policy.ParseConsumer(a.Args, queueName(a.Queue, conn.vhost.name))
	if bad != nil {
		return nil, refuse(PreconditionFailed, "%s", bad.Text)
	}
	size := consumerMemory + int64(a.Args.Memory())
	if e := conn.claim(size, true); e != nil {
		return nil, e
	}
	c := ch.newConsumer(a, q)
	c.Priority, c.timeout = own.Priority, own.Timeout
	conn.b.timeouts.note(c.timeout)
	t := conn.begin()
	// The connection knows it first: a deletion of the queue finds it in both places, or in none.
	conn.remember(c)
	q.mu.Lock()
	switch {
	case q.deleted:
		e = refuse(NotFound, "no %s", queueName(a.Queue, conn.vhost.name))
	case q.sm.HasExclusive(), a.Exclusive && (q.sm.Consumers() > 0 || q.own.Config.SingleActive):
		e = refuse(ExclusiveUse, "%s in exclusive use", queueName(a.Queue, conn.vhost.name))
	default:
		q.used.Store(t.now)
		q.enrol(c)
		q.sm.AddConsumer(&c.Consumer)
		if a.Credited && a.Credit > 0 {
			q.sm.Grant(&c.Consumer, a.Credit)
		}
	}
	q.mu.Unlock()
	if e != nil {
		c.forget()
		conn.unclaim(size, true)
		return nil, e
	}
	return c, nil
}

// newConsumer makes a consumer of q, which does not know it yet.
func (ch *Channel) newConsumer(a *ConsumeArgs, q *Queue) *Consumer {
	c := &Consumer{
		Consumer: queue.Consumer{NoAck: a.NoAck, Exclusive: a.Exclusive, Credited: a.Credited},
		Tag:      a.Tag, Handle: a.Handle, Queue: a.Queue, Args: a.Args,
		ch: ch, q: q, kept: int64(a.Args.Memory()), timeout: queue.None,
	}
	c.Receiver, c.Prefix = c, c.room[:0]
	if c.Tag == "" {
		c.Tag = unique("amq.ctag-")
	}
	if !a.Credited { // without acks it is only shown
		c.Prefetch = ch.prefetch
	}
	return c
}

// warm asks for the memory of c that a settlement needs.
func (c *Consumer) warm() { prefetch.Lines(unsafe.Pointer(c), 1) }

// consumerLines is how many cache lines of a consumer a delivery needs.
const consumerLines = 3

// remember puts the consumer on its connection's list.
func (c *Conn) remember(k *Consumer) {
	c.mu.Lock()
	c.consumers[k] = struct{}{}
	if k.ch.byTag == nil {
		k.ch.byTag = make(map[string]*Consumer)
	}
	k.ch.byTag[k.Tag] = k
	c.consumed++
	k.order = c.consumed
	c.mu.Unlock()
	c.b.counters.Consumers.Add(1)
}

// Start begins deliveries, or tells the session that the queue is gone already. Called once, by the
// connection's reader.
func (c *Consumer) Start() {
	t := c.ch.conn.begin()
	p := c.ch.peer
	p.Lock()
	c.started.Store(true)
	if c.ended != nil {
		c.ch.sink.Cancelled(c, c.ended)
	}
	if p.Unlock() {
		t.touch(p)
	}
	c.wake(t)
}

// Grant adds credit to a Credited consumer. By the connection's reader.
func (c *Consumer) Grant(n uint64) {
	t := c.ch.conn.begin()
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	if _, ok := c.q.members[c]; ok {
		c.q.sm.Grant(&c.Consumer, n)
		c.q.dispatch(t)
	}
}

// wake offers the queue's messages again to a consumer that had no room.
func (c *Consumer) wake(t *turn) {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	if _, ok := c.q.members[c]; ok {
		c.q.sm.Wake(&c.Consumer)
		c.q.dispatch(t)
	}
}

// Cancel ends a consumer; its unacked deliveries stay. False: the channel has no such consumer.
func (ch *Channel) Cancel(tag string) bool {
	ch.flush()
	ch.conn.costly()
	c := ch.Consumer(tag)
	if c == nil {
		return false
	}
	c.remove(ch.conn.begin())
	return true
}

// remove takes the consumer off its queue. No delivery comes afterwards. An auto-delete queue that
// loses its last consumer is deleted at the end of the turn.
func (c *Consumer) remove(t *turn) {
	q := c.q
	if q.replies {
		c.endReplies(t)
		c.forget()
		return
	}
	q.mu.Lock()
	_, member := q.members[c]
	if member {
		q.strike(c)
		q.serves.CompareAndSwap(c, nil)
		if q.id != 0 && q.sm.Inflight(&c.Consumer) > 0 {
			q.stray(c.ch)
		}
		q.sm.RemoveConsumer(&c.Consumer)
		q.used.Store(t.now)
		if q.autoDelete && len(q.members) == 0 {
			t.doomed = append(t.doomed, q)
		} else {
			q.dispatch(t)
		}
	}
	q.mu.Unlock()
	c.forget()
}

// Recheck ends the consumers whose queues the user may not read any more. By the connection's reader,
// when a new secret came.
func (c *Conn) Recheck() {
	c.mu.Lock()
	list := make([]*Consumer, 0, len(c.consumers))
	for k := range c.consumers {
		list = append(list, k)
	}
	c.mu.Unlock()
	t := c.begin()
	for _, k := range list {
		if k.q.replies {
			continue
		}
		if e := c.allowQueue(rightRead, k.Queue); e != nil {
			k.remove(t)
			k.cancelled(t, e)
		}
	}
}

// cancelled tells a consumer's session that the broker ended it; Start does for one that has not begun.
func (c *Consumer) cancelled(t *turn, e *Error) {
	p := c.ch.peer
	p.Lock()
	switch {
	case c.ch.gone:
	case c.started.Load():
		c.ch.sink.Cancelled(c, e)
	default:
		c.ended = e
	}
	if p.Unlock() {
		t.touch(p)
	}
}

// forget takes the consumer off its connection's list.
func (c *Consumer) forget() {
	c.ch.undeny(c)
	conn := c.ch.conn
	conn.mu.Lock()
	_, known := conn.consumers[c]
	delete(conn.consumers, c)
	if c.ch.byTag[c.Tag] == c {
		delete(c.ch.byTag, c.Tag)
	}
	conn.mu.Unlock()
	if known {
		conn.b.counters.Consumers.Add(-1)
	}
}

func (ch *Channel) consumerCount() int {
	ch.conn.mu.Lock()
	defer ch.conn.mu.Unlock()
	return len(ch.byTag)
}

// Consumer finds one of the channel's consumers by its tag, nil if there is none.
func (ch *Channel) Consumer(tag string) *Consumer {
	ch.conn.mu.Lock()
	defer ch.conn.mu.Unlock()
	return ch.byTag[tag]
}

// consumers lists the channel's consumers, the oldest first.
func (ch *Channel) consumers() []*Consumer {
	ch.conn.mu.Lock()
	defer ch.conn.mu.Unlock()
	var list []*Consumer
	for _, c := range ch.byTag {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *Consumer) int { return cmp.Compare(a.order, b.order) })
	return list
}

// String names the consumer in logs.
func (c *Consumer) String() string { return fmt.Sprintf("consumer %s of %s", c.Tag, c.Queue) }
