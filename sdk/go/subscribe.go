package fire

import (
	"context"
	"fmt"

	"github.com/firemq/firemq/frames/fmq1"
)

// SubscribeOptions configure a subscription; the zero value acknowledges explicitly.
type SubscribeOptions struct {
	// Prefetch is how many unacknowledged messages the broker may have sent, with NoAck how many
	// unprocessed ones; 0 is 100. It bounds what the Client buffers.
	Prefetch  int
	NoAck     bool           // messages count as acknowledged once sent
	Exclusive bool           // refuse other consumers of the queue (405 when there are some)
	Tag       string         // the consumer's name for operators; empty: the broker chooses one
	Args      map[string]any // such as "x-priority": 10
}

const (
	defaultPrefetch = 100
	// A batch's bytes are in chunks that grow to maxChunk; only a larger message has one of its own.
	minChunk, maxChunk = 1 << 10, 64 << 10
	// keptItems and keptChunks bound the memory of a batch that is used again.
	keptItems, keptChunks = 4096, 16
)

// Subscription receives the messages of a queue. Credit is granted by itself: an eighth of the
// prefetch each time that an eighth of it was acknowledged, or with NoAck processed.
//
// Over a new connection it goes on by itself. What it had received and not handed out is dropped then: the
// broker delivers it again. With NoAck it is kept, because nobody has it.
type Subscription struct {
	c     *Client          // immutable
	id    uint64           // immutable
	o     SubscribeOptions // immutable
	args  fmq1.Map         // immutable
	noAck bool             // immutable
	part  int              // immutable; a top-up of credit

	wake  chan struct{} // holds one token: there is something to receive
	ended chan struct{} // closed when err is set

	// Guarded by c.mu.
	queue     string   // the name it was declared with
	active    bool     // the broker has it: it is resumed over another connection
	turn      uint64   // counts connections: what came before them earns no credit
	batches   []*batch // received, oldest first; the reader adds to the last
	free      *batch   // to be used again
	processed int      // deliveries since the last top-up
	err       error    // why no more come
}

// batch is deliveries with the memory that they alias.
type batch struct {
	items  []Delivery
	next   int      // the first one not handed out
	turn   uint64   // the Subscription's when it came
	chunks [][]byte // memory; those after chunk are empty
	chunk  int
	given  bool // a delivery left the package: the memory is not used again
}

// keep copies p into the batch's memory, where room has made room for it.
func (b *batch) keep(p []byte) []byte {
	c := &b.chunks[b.chunk]
	at := len(*c)
	*c = append(*c, p...)
	return (*c)[at:len(*c):len(*c)]
}

// room has the current chunk hold size bytes more.
func (b *batch) room(size int) {
	last := 0
	for ; b.chunk < len(b.chunks); b.chunk++ {
		c := b.chunks[b.chunk]
		if cap(c)-len(c) >= size {
			return
		}
		last = cap(c)
	}
	b.chunks = append(b.chunks, make([]byte, 0, max(size, min(max(2*last, minChunk), maxChunk))))
}

// reset empties the batch for use again, and reports whether that is worth it.
func (b *batch) reset() bool {
	if b.given || cap(b.items) > keptItems {
		return false
	}
	clear(b.items)
	b.items, b.next, b.chunk = b.items[:0], 0, 0
	kept := b.chunks[:0]
	for _, c := range b.chunks {
		if cap(c) <= maxChunk && len(kept) < keptChunks {
			kept = append(kept, c[:0])
		}
	}
	clear(b.chunks[len(kept):])
	b.chunks = kept
	return true
}

// Subscribe begins to receive messages from a queue.
func (c *Client) Subscribe(ctx context.Context, queue string, o SubscribeOptions) (*Subscription, error) {
	args, err := arguments(o.Args)
	if err != nil {
		return nil, err
	}
	if o.Prefetch <= 0 {
		o.Prefetch = defaultPrefetch
	}
	s := &Subscription{
		c: c, queue: queue, o: o, args: args, noAck: o.NoAck, part: (o.Prefetch + 7) / 8,
		wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	_, err = c.do(ctx, &call{
		op: fmq1.OpSubscribe,
		build: func(rid uint64) fmq1.Header {
			// It is known before the request is sent: deliveries come right behind the answer.
			if s.id == 0 {
				c.subID++
				s.id = c.subID
				s.queue = c.topology.first(queue)
				c.subs[s.id] = s
			}
			return s.header(rid)
		},
		ok: func(*fmq1.OK) { s.active = true },
	})
	if err == nil {
		return s, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.subs[s.id] != s || ctx.Err() == nil || !c.live() {
		delete(c.subs, s.id)
		return nil, err
	}
	// The caller gave up, but the request may still succeed: it is undone, and what is delivered until
	// then goes back.
	s.end(ErrUnsubscribed)
	s.giveBack()
	c.rid++
	c.calls[c.rid] = &call{then: func(reply) { delete(c.subs, s.id) }}
	c.out = fmq1.Append(c.out, fmq1.OpUnsubscribe, &fmq1.Unsubscribe{RID: c.rid, Sub: s.id})
	c.wakeWriter()
	return nil, err
}

// header makes the request. mu held.
func (s *Subscription) header(rid uint64) fmq1.Header {
	return &fmq1.Subscribe{
		RID: rid, Sub: s.id, Queue: s.c.topology.queue(s.queue), Credit: uint64(s.o.Prefetch), NoAck: s.noAck, Exclusive: s.o.Exclusive,
		Tag: s.o.Tag, Args: s.args,
	}
}

// Queue is the queue's name. That of a queue which the broker named is another one after a reconnection.
func (s *Subscription) Queue() string {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.c.topology.queue(s.queue)
}

// interrupt is the end of a connection. mu held.
func (s *Subscription) interrupt() {
	s.processed = 0
	s.turn++
	if !s.noAck {
		s.batches = nil
	}
}

// Next waits for a message. The delivery owns its memory. Acknowledge it with its Ack, Nack or Reject.
//
// Errors: *CancelledError when the broker ended the subscription, ErrUnsubscribed, ErrClosed, ctx's.
func (s *Subscription) Next(ctx context.Context) (*Delivery, error) {
	for {
		s.c.mu.Lock()
		if len(s.batches) > 0 {
			b := s.batches[0]
			d := &b.items[b.next]
			b.given = true
			if b.next++; b.next == len(b.items) {
				s.pop()
			}
			if s.noAck {
				s.process(1, b.turn)
			}
			s.c.mu.Unlock()
			return d, nil
		}
		err := s.err
		s.c.mu.Unlock()
		if err != nil {
			return nil, err
		}
		if err := s.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// Handle calls fn for each message until ctx ends, the subscription ends or fn returns an error, and
// returns the reason: ctx's error, fn's, or one that Next has too. A delivery and its Body are valid until fn returns (see Delivery.Clone); this way
// a message costs no allocation. Several goroutines may handle one subscription.
func (s *Subscription) Handle(ctx context.Context, fn func(*Delivery) error) error {
	var b *batch
	from := 0 // where this call began in b
	for {
		s.c.mu.Lock()
		if b != nil {
			s.processBatch(b, from)
		}
		b = nil
		if len(s.batches) > 0 {
			b = s.batches[0]
			from = b.next
			s.pop()
		}
		err := s.err
		s.c.mu.Unlock()
		if b == nil {
			if err != nil {
				return err
			}
			if err := s.wait(ctx); err != nil {
				return err
			}
			continue
		}
		for b.next < len(b.items) {
			if err = ctx.Err(); err != nil {
				break
			}
			d := &b.items[b.next]
			b.next++
			if !s.noAck && d.Tag <= s.c.base.Load() {
				continue // the connection was lost: it is delivered again
			}
			if err = fn(d); err != nil {
				break
			}
		}
		if b.next < len(b.items) || err != nil {
			s.c.mu.Lock()
			s.putBack(b, from)
			s.c.mu.Unlock()
			return err
		}
	}
}

// Unsubscribe ends the subscription. Messages that were received but not handed out go back to the queue;
// with NoAck, Next gives them still. Those that were handed out may still be acknowledged.
func (s *Subscription) Unsubscribe(ctx context.Context) error {
	_, err := s.c.do(ctx, &call{
		op:    fmq1.OpUnsubscribe,
		build: func(rid uint64) fmq1.Header { return &fmq1.Unsubscribe{RID: rid, Sub: s.id} },
		ok: func(*fmq1.OK) {
			s.c.forget(s)
			s.end(ErrUnsubscribed)
			s.giveBack()
		},
	})
	return err
}

// forget removes a subscription, and with the last one the record of a queue that goes with it. mu held.
func (c *Client) forget(s *Subscription) {
	delete(c.subs, s.id)
	q := c.topology.queues[s.queue]
	if q == nil || !q.m.AutoDelete {
		return
	}
	for _, other := range c.subs {
		if other.queue == s.queue {
			return
		}
	}
	c.topology.deletedQueue(s.queue)
}

// wait waits until there is something to receive or the subscription ended.
func (s *Subscription) wait(ctx context.Context) error {
	select {
	case <-s.wake:
	case <-s.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// pop takes the first batch off. c.mu held.
func (s *Subscription) pop() {
	n := copy(s.batches, s.batches[1:])
	s.batches[n] = nil
	s.batches = s.batches[:n]
	if n > 0 {
		s.signal() // for other receivers
	}
}

func (s *Subscription) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// processBatch counts what Handle is done with, and keeps the memory. c.mu held.
func (s *Subscription) processBatch(b *batch, from int) {
	if s.noAck {
		s.process(len(b.items)-from, b.turn)
	}
	if s.free == nil && b.reset() {
		s.free = b
	}
}

// putBack returns what Handle did not get to. c.mu held.
func (s *Subscription) putBack(b *batch, from int) {
	if s.noAck {
		s.process(b.next-from, b.turn)
	}
	if b.next == len(b.items) || b.turn != s.turn && !s.noAck {
		return
	}
	b.items = b.items[b.next:]
	b.next = 0
	s.batches = append(s.batches, nil)
	copy(s.batches[1:], s.batches)
	s.batches[0] = b
	s.signal()
}

// process counts n deliveries of a turn as processed and grants credit when an eighth of the prefetch is.
// c.mu held.
func (s *Subscription) process(n int, turn uint64) {
	if turn != s.turn {
		return
	}
	if s.processed += n; s.processed < s.part || s.err != nil || !s.c.live() {
		return
	}
	start := len(s.c.out)
	m := fmq1.Credit{Sub: s.id, Credit: uint64(s.processed)}
	s.c.out = fmq1.End(m.AppendTo(fmq1.Begin(s.c.out, fmq1.OpCredit)), start, 0)
	s.processed = 0
	s.c.wakeWriter()
}

// giveBack requeues what nobody received. c.mu held.
func (s *Subscription) giveBack() {
	if s.noAck {
		return
	}
	for _, b := range s.batches {
		for i := b.next; i < len(b.items); i++ {
			s.c.settle(b.items[i].Tag, false, fmq1.OpNack, true)
		}
	}
	s.batches = nil
}

// end says why no more deliveries come. c.mu held.
func (s *Subscription) end(err error) {
	if s.err != nil {
		return
	}
	s.err = err
	if s.c.err != nil && !s.noAck {
		s.batches = nil // they are delivered again, to whoever comes next
	}
	close(s.ended)
}

// deliver keeps a delivery for its subscription. mu held.
func (c *Client) deliver(f fmq1.Frame) error {
	var m fmq1.Deliver
	if err := m.Decode(f.Header); err != nil {
		return err
	}
	m.Tag += c.base.Load()
	c.lastTag = max(c.lastTag, m.Tag)
	s := c.subs[m.Sub]
	if s == nil {
		return fmt.Errorf("the broker delivers for subscription %d, which there is not", m.Sub)
	}
	if !s.noAck {
		c.unacked.push(m.Tag, s)
		if s.err != nil { // its caller gave up: see Subscribe
			if c.live() {
				c.settle(m.Tag, false, fmq1.OpNack, true)
			}
			return nil
		}
	}
	var b *batch
	if n := len(s.batches); n > 0 && s.batches[n-1].next == 0 && s.batches[n-1].turn == s.turn {
		b = s.batches[n-1] // nobody has a part of it
	} else {
		if b = s.free; b == nil {
			b = new(batch)
		}
		s.free = nil
		b.turn = s.turn
		s.batches = append(s.batches, b)
		s.signal()
	}
	b.room(len(m.Exchange) + len(m.Key) + len(m.Props) + len(m.Headers) + len(f.Payload))
	b.items = append(b.items, Delivery{
		Tag: m.Tag, Redelivered: m.Redelivered, Body: b.keep(f.Payload), client: c, noAck: s.noAck,
		exchange: b.keep(m.Exchange), key: b.keep(m.Key), props: b.keep(m.Props), headers: b.keep(m.Headers),
	})
	return nil
}

// cancelled ends a subscription that the broker ended. mu held.
func (c *Client) cancelled(f fmq1.Frame) error {
	var m fmq1.Cancelled
	if err := fmq1.Decode(f.Header, &m); err != nil {
		return err
	}
	if s := c.subs[m.Sub]; s != nil {
		delete(c.subs, m.Sub)
		if m.Code == fmq1.NotFound {
			c.topology.deletedQueue(s.queue)
		}
		s.end(&CancelledError{Code: int(m.Code), Msg: m.Msg})
	}
	return nil
}

// Ack acknowledges the delivery. Like Nack and Reject it does nothing on one that is settled, came with
// NoAck, or came over a connection that was lost: the broker delivers that again. It does not wait for
// the broker. The error is ErrClosed.
func (d *Delivery) Ack() error { return d.settle(false, fmq1.OpAck, false) }

// AckUpTo acknowledges this delivery and every earlier one of the connection, of all its subscriptions.
func (d *Delivery) AckUpTo() error { return d.settle(true, fmq1.OpAck, false) }

// Nack refuses the delivery: with requeue it is delivered again, else dead-lettered or dropped.
func (d *Delivery) Nack(requeue bool) error { return d.settle(false, fmq1.OpNack, requeue) }

// Reject is Nack without requeue.
func (d *Delivery) Reject() error { return d.Nack(false) }

func (d *Delivery) settle(multiple bool, op fmq1.Op, requeue bool) error {
	c := d.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.noAck || c.err == nil && c.unacked.find(d.Tag) < 0 {
		return nil
	}
	return c.settle(d.Tag, multiple, op, requeue)
}

// Ack acknowledges a delivery by its tag, with multiple every earlier one of the connection too; tag 0
// with multiple is all of them. An unknown tag is told to Config.OnError by the broker; one of a
// connection that was lost is ignored.
func (c *Client) Ack(tag uint64, multiple bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settle(tag, multiple, fmq1.OpAck, false)
}

// Nack refuses deliveries like Ack acknowledges them.
func (c *Client) Nack(tag uint64, multiple, requeue bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settle(tag, multiple, fmq1.OpNack, requeue)
}

// settle stages an ack or nack, and the credit that comes free. mu held.
func (c *Client) settle(tag uint64, multiple bool, op fmq1.Op, requeue bool) error {
	if err := c.usable(); err != nil {
		return err
	}
	base := c.base.Load()
	if c.link == nil || tag != 0 && tag <= base {
		return nil // it is the broker's again
	}
	start := len(c.out)
	m := fmq1.Settle{Tag: tag, Multiple: multiple, Requeue: requeue}
	if tag != 0 {
		m.Tag -= base
	}
	c.out = fmq1.End(m.AppendTo(fmq1.Begin(c.out, op)), start, 0)
	c.wakeWriter()
	if !multiple {
		if s := c.unacked.take(tag); s != nil {
			s.process(1, s.turn)
		}
		return nil
	}
	for s := c.unacked.takeUpTo(tag); s != nil; s = c.unacked.takeUpTo(tag) {
		s.process(1, s.turn)
	}
	return nil
}

// unacked says which subscription an unacknowledged delivery is of. Tags grow and are mostly dense, so
// a tag's place is a subtraction; settled ones stay as holes until the front passes them or, when
// the ring is full and half of it holes, they are squeezed out. Guarded by Client.mu.
type unacked struct {
	ring []outstanding // length a power of two
	head int
	n    int // places in use, holes too
	live int
}

type outstanding struct {
	tag uint64
	sub *Subscription // nil once settled
}

func (u *unacked) at(i int) *outstanding { return &u.ring[(u.head+i)&(len(u.ring)-1)] }

func (u *unacked) push(tag uint64, s *Subscription) {
	if u.n == len(u.ring) {
		u.grow()
	}
	*u.at(u.n) = outstanding{tag, s}
	u.n++
	u.live++
}

func (u *unacked) grow() {
	size := max(64, len(u.ring))
	if u.live > len(u.ring)/2 {
		size = 2 * size
	}
	ring := make([]outstanding, size)
	n := 0
	for i := range u.n {
		if o := u.at(i); o.sub != nil {
			ring[n] = *o
			n++
		}
	}
	u.ring, u.head, u.n = ring, 0, n
}

// find gives the place of an outstanding tag, or -1.
func (u *unacked) find(tag uint64) int {
	if u.n == 0 || tag < u.at(0).tag {
		return -1
	}
	i := int(min(tag-u.at(0).tag, uint64(u.n-1)))
	if u.at(i).tag != tag {
		lo, hi := 0, u.n
		for lo < hi {
			if mid := (lo + hi) / 2; u.at(mid).tag < tag {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		if i = lo; i == u.n || u.at(i).tag != tag {
			return -1
		}
	}
	if u.at(i).sub == nil {
		return -1
	}
	return i
}

// take settles one tag and gives its subscription, nil when it is not outstanding.
func (u *unacked) take(tag uint64) *Subscription {
	i := u.find(tag)
	if i < 0 {
		return nil
	}
	return u.settle(i)
}

// takeUpTo settles the oldest outstanding tag if it is at most tag, or any for tag 0.
func (u *unacked) takeUpTo(tag uint64) *Subscription {
	if u.n == 0 || tag != 0 && u.at(0).tag > tag {
		return nil
	}
	return u.settle(0) // the front is never a hole
}

func (u *unacked) settle(i int) *Subscription {
	s := u.at(i).sub
	u.at(i).sub = nil
	u.live--
	for u.n > 0 && u.at(0).sub == nil {
		u.head = (u.head + 1) & (len(u.ring) - 1)
		u.n--
	}
	return s
}
