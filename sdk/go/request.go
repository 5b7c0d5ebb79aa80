package fire

import (
	"context"
	"fmt"

	"github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/frames/table"
)

// QueueOptions are the properties of a queue; the zero value is a durable one.
type QueueOptions struct {
	Transient  bool // does not survive a broker restart
	Exclusive  bool // used only by this connection and deleted with it
	AutoDelete bool // deleted with its last subscription
	Passive    bool // only check that it exists
	// Args are queue arguments with RabbitMQ's names, such as "x-message-ttl": 60000.
	Args map[string]any
}

// Temporary are the options of a queue that lives as long as its connection.
func Temporary() QueueOptions {
	return QueueOptions{Transient: true, Exclusive: true, AutoDelete: true}
}

// ExchangeOptions are the properties of an exchange; the zero value is a durable one.
type ExchangeOptions struct {
	Transient  bool // does not survive a broker restart
	AutoDelete bool // deleted with its last binding
	Internal   bool // cannot be published to directly
	Passive    bool // only check that it exists
	Args       map[string]any
}

// Queue is what the broker says of a declared queue.
type Queue struct {
	Name      string
	Messages  int
	Consumers int
}

// DeleteOptions say when a queue may be deleted; otherwise the broker answers 406.
type DeleteOptions struct {
	IfUnused bool
	IfEmpty  bool
}

// reply is the answer to a request.
type reply struct {
	ok  fmq1.OK
	got *Delivery // get_ok
	err error
}

// call is a request that waits for its answer. Its functions are called with mu held.
type call struct {
	op    fmq1.Op
	build func(rid uint64) fmq1.Header // makes the header, again after a reconnection
	ok    func(*fmq1.OK)               // what happens when the broker carried it out; nil: nothing
	noAck bool                         // of a get

	done chan reply
	gone bool        // nobody waits any more
	then func(reply) // what happens at the answer when nobody ever waited for it
}

// finish gives the answer; called once. mu held.
func (c *call) finish(r reply) {
	switch {
	case c.then != nil:
		c.then(r)
	case !c.gone:
		c.done <- r
	}
}

// do sends a request and waits for its answer, over more than one connection if need be.
//
// When ctx ends first the request was sent nevertheless and its answer is dropped; a message that a get
// brings is requeued.
func (c *Client) do(ctx context.Context, w *call) (reply, error) {
	if err := ctx.Err(); err != nil {
		return reply{}, err
	}
	w.done = make(chan reply, 1)
	c.mu.Lock()
	if err := c.connected(ctx); err != nil {
		c.mu.Unlock()
		return reply{}, err
	}
	c.rid++
	rid := c.rid
	c.calls[rid] = w
	m := w.build(rid)
	if n := m.Msgsize(); n > fmq1.MaxHeader {
		delete(c.calls, rid)
		c.mu.Unlock()
		return reply{}, invalid("the arguments of %s are larger than %d bytes", w.op, fmq1.MaxHeader)
	}
	c.out = fmq1.Append(c.out, w.op, m)
	c.wakeWriter()
	c.mu.Unlock()
	select {
	case r := <-w.done:
		return r, r.err
	case <-ctx.Done():
		c.mu.Lock()
		defer c.mu.Unlock()
		select {
		case r := <-w.done: // it came at the same moment
			return r, r.err
		default:
		}
		w.gone = true
		if c.link == nil { // it is not asked again
			delete(c.calls, rid)
		}
		return reply{}, ctx.Err()
	}
}

func (c *Client) failCalls(err error) {
	for rid, w := range c.calls {
		delete(c.calls, rid)
		w.finish(reply{err: err})
	}
}

// answer handles ok and get_ok. mu held.
func (c *Client) answer(f fmq1.Frame) error {
	var r reply
	rid := uint64(0)
	if f.Op == fmq1.OpOK {
		if err := fmq1.Decode(f.Header, &r.ok); err != nil {
			return err
		}
		rid = r.ok.RID
	} else {
		var m fmq1.GetOK
		if err := m.Decode(f.Header); err != nil {
			return err
		}
		rid = m.RID
		m.Tag += c.base.Load()
		c.lastTag = max(c.lastTag, m.Tag)
		r.got = ownGet(&m, f.Payload)
		r.got.client = c
	}
	w := c.calls[rid]
	if w == nil {
		return fmt.Errorf("the broker answers request %d, which there is not", rid)
	}
	if r.got != nil {
		if r.got.noAck = w.noAck; !w.noAck {
			c.unacked.push(r.got.Tag, &c.gets)
			if w.gone && c.live() {
				c.settle(r.got.Tag, false, fmq1.OpNack, true)
			}
		}
	}
	delete(c.calls, rid)
	if w.then == nil && c.link != nil {
		c.link.useful = true
	}
	if w.ok != nil && r.got == nil {
		w.ok(&r.ok)
	}
	w.finish(r)
	return nil
}

// arguments encodes args as a map.
func arguments(args map[string]any) (fmq1.Map, error) {
	if len(args) == 0 {
		return nil, nil
	}
	t, err := table.FromMap(args)
	if err != nil {
		return nil, invalid("arguments: %v", err)
	}
	return fmq1.AppendTable(nil, t), nil
}

// DeclareQueue makes a queue, or checks that the existing one is the same (406 otherwise). An empty name
// has the broker choose one, which is in the result.
func (c *Client) DeclareQueue(ctx context.Context, name string, o QueueOptions) (Queue, error) {
	args, err := arguments(o.Args)
	if err != nil {
		return Queue{}, err
	}
	m := fmq1.DeclareQueue{Name: name, Durable: !o.Transient, Exclusive: o.Exclusive, AutoDelete: o.AutoDelete, Passive: o.Passive, Args: args}
	r, err := c.do(ctx, &call{
		op: fmq1.OpDeclareQueue,
		build: func(rid uint64) fmq1.Header {
			m := m
			m.RID, m.Name = rid, c.topology.queue(name)
			return &m
		},
		ok: func(ok *fmq1.OK) { c.topology.declaredQueue(m, ok.Name) },
	})
	return Queue{Name: r.ok.Name, Messages: int(r.ok.Messages), Consumers: int(r.ok.Consumers)}, err
}

// DeleteQueue deletes a queue and reports how many messages it had. One that is missing is no error.
func (c *Client) DeleteQueue(ctx context.Context, name string, o DeleteOptions) (messages int, err error) {
	r, err := c.do(ctx, &call{
		op: fmq1.OpDeleteQueue,
		build: func(rid uint64) fmq1.Header {
			return &fmq1.DeleteQueue{RID: rid, Name: c.topology.queue(name), IfUnused: o.IfUnused, IfEmpty: o.IfEmpty}
		},
		ok: func(*fmq1.OK) { c.topology.deletedQueue(name) },
	})
	return int(r.ok.Messages), err
}

// PurgeQueue removes the ready messages of a queue and reports how many there were.
func (c *Client) PurgeQueue(ctx context.Context, name string) (messages int, err error) {
	r, err := c.do(ctx, &call{op: fmq1.OpPurgeQueue, build: func(rid uint64) fmq1.Header {
		return &fmq1.PurgeQueue{RID: rid, Name: c.topology.queue(name)}
	}})
	return int(r.ok.Messages), err
}

// DeclareExchange makes an exchange of kind "direct", "fanout", "topic" or "headers", or checks that the
// existing one is the same (406 otherwise).
func (c *Client) DeclareExchange(ctx context.Context, name, kind string, o ExchangeOptions) error {
	args, err := arguments(o.Args)
	if err != nil {
		return err
	}
	m := fmq1.DeclareExchange{
		Name: name, Type: kind, Durable: !o.Transient, AutoDelete: o.AutoDelete, Internal: o.Internal, Passive: o.Passive, Args: args,
	}
	_, err = c.do(ctx, &call{
		op: fmq1.OpDeclareExchange,
		build: func(rid uint64) fmq1.Header {
			m := m
			m.RID = rid
			return &m
		},
		ok: func(*fmq1.OK) { c.topology.declaredExchange(m) },
	})
	return err
}

// DeleteExchange deletes an exchange; with ifUnused only when it has no bindings. One that is missing is
// no error.
func (c *Client) DeleteExchange(ctx context.Context, name string, ifUnused bool) error {
	_, err := c.do(ctx, &call{
		op:    fmq1.OpDeleteExchange,
		build: func(rid uint64) fmq1.Header { return &fmq1.DeleteExchange{RID: rid, Name: name, IfUnused: ifUnused} },
		ok:    func(*fmq1.OK) { c.topology.deletedExchange(name) },
	})
	return err
}

// BindQueue has messages of exchange that match key, and args for a headers exchange, go to queue.
func (c *Client) BindQueue(ctx context.Context, queue, exchange, key string, args map[string]any) error {
	return c.bind(ctx, fmq1.OpBind, fmq1.Bind{Queue: queue, Exchange: exchange, Key: key}, args)
}

// UnbindQueue takes a binding away. One that is missing is no error.
func (c *Client) UnbindQueue(ctx context.Context, queue, exchange, key string, args map[string]any) error {
	return c.bind(ctx, fmq1.OpUnbind, fmq1.Bind{Queue: queue, Exchange: exchange, Key: key}, args)
}

// BindExchange has messages of source that match go to the exchange dest as well.
func (c *Client) BindExchange(ctx context.Context, dest, source, key string, args map[string]any) error {
	return c.bind(ctx, fmq1.OpBind, fmq1.Bind{ToExchange: dest, Exchange: source, Key: key}, args)
}

// UnbindExchange takes a binding between exchanges away. One that is missing is no error.
func (c *Client) UnbindExchange(ctx context.Context, dest, source, key string, args map[string]any) error {
	return c.bind(ctx, fmq1.OpUnbind, fmq1.Bind{ToExchange: dest, Exchange: source, Key: key}, args)
}

func (c *Client) bind(ctx context.Context, op fmq1.Op, m fmq1.Bind, args map[string]any) (err error) {
	if m.Args, err = arguments(args); err != nil {
		return err
	}
	_, err = c.do(ctx, &call{
		op: op,
		build: func(rid uint64) fmq1.Header {
			m := m
			m.RID = rid
			if m.Queue != "" {
				m.Queue = c.topology.queue(m.Queue)
			}
			return &m
		},
		ok: func(*fmq1.OK) {
			if op == fmq1.OpBind {
				c.topology.addBinding(&m)
			} else {
				c.topology.removeBinding(&m)
			}
		},
	})
	return err
}

// GetOptions change how Get takes a message.
type GetOptions struct {
	NoAck bool // the message counts as acknowledged once sent
}

// Get takes one message from a queue; ok is false when it is empty. The delivery's Remaining says how
// many are left. A Subscription is much cheaper for more than a few messages.
func (c *Client) Get(ctx context.Context, queue string, o GetOptions) (d *Delivery, ok bool, err error) {
	r, err := c.do(ctx, &call{op: fmq1.OpGet, noAck: o.NoAck, build: func(rid uint64) fmq1.Header {
		return &fmq1.Get{RID: rid, Queue: c.topology.queue(queue), NoAck: o.NoAck}
	}})
	return r.got, r.got != nil && err == nil, err
}
