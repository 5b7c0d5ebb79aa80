package broker

import (
	"slices"
	"time"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/journal"
)

// Moving messages, and what is like it, for an operator. A message that is moved is taken off its queue, put into the
// new one, and only then settled in the old one: the journal has both in that order. So a crash leaves it in the old
// queue, in the new one or in both, never in none, and no two consumers get it. What the new queue refuses goes back to
// its place. In between it is in limbo, as a dead letter is that is on its way.

// Deed is what becomes of the messages that a Transfer picks.
type Deed uint8

const (
	Copy Deed = iota
	Move
	Delete
	Replay // move back to where a dead letter came from
)

// Transfer says which ready messages to treat how.
type Transfer struct {
	Browse // of ready messages; Limit messages are treated at most
	Deed   Deed
	To     string // the queue that receives them; of Copy and Move
	// Through has Replay publish a message to the exchange that it was published to, under the keys it had, instead of
	// putting it into the queue that it died in.
	Through bool
}

// Transferred is how a Transfer ended.
type Transferred struct {
	Page
	Done   int
	Failed int    // picked and left where they are
	Reason *Error // why the first of them was
}

// transferBatch bounds the messages, and transferBytes the bodies, that are treated together.
const (
	transferBatch = 128
	transferBytes = 4 << 20
)

// Transfer treats messages until the limits of its Browse are reached, each for itself: what is done when it ends early is
// done. Errors, before anything is done: AccessRefused (read permission on the queue; write permission on the target
// and on the exchange), NotFound, ResourceLocked, PreconditionFailed (onto itself), ResourceError (an alarm). With an
// InternalError, when the disk fails, what was done is told too.
func (c *Conn) Transfer(a *Transfer) (Transferred, *Error) {
	x := &transfer{Transfer: a, c: c, targets: make(map[string]*target)}
	r := Transferred{Page: Page{Next: a.From}}
	var err *Error
	if x.from, err = c.readable(a.Queue); err != nil {
		return r, err
	}
	if a.Deed != Delete && (c.b.Alarmed() || c.b.journal != nil && c.b.journal.Low()) {
		return r, refuse(ResourceError, "the broker is low on memory or disk: it takes no messages")
	}
	if a.Deed == Copy || a.Deed == Move {
		if t := x.queue(a.To); t.err != nil {
			return r, t.err
		}
	}
	b := a.Browse
	b.unread = a.Deed == Delete
	r.More = true
	for r.More && (a.Limit == 0 || r.Done < a.Limit) && (a.Scan == 0 || r.Scanned < a.Scan) && b.Time >= 0 {
		began := time.Now()
		b.From = r.Next
		b.Limit = transferBatch
		if a.Limit > 0 {
			b.Limit = min(b.Limit, a.Limit-r.Done)
		}
		if a.Scan > 0 {
			b.Scan = a.Scan - r.Scanned
		}
		size := 0
		p := x.from.browse(&b, func(m *Browsed) bool {
			size += m.Size
			x.add(m)
			return size < transferBytes
		})
		b.Skip = 0
		r.Next, r.More = p.Next, p.More
		r.Scanned += p.Scanned
		r.Shown += p.Shown
		if err := x.carryOut(); err != nil {
			return x.ended(r), err
		}
		if a.Sequences != nil && x.done+x.failed >= len(a.Sequences) {
			r.More = false
		}
		r.Done = x.done
		if b.Time > 0 {
			if b.Time -= time.Since(began); b.Time <= 0 {
				break
			}
		}
	}
	err = x.sync()
	return x.ended(r), err
}

func (x *transfer) ended(r Transferred) Transferred {
	r.Done, r.Failed, r.Reason = x.done, x.failed, x.reason
	return r
}

// transfer is a Transfer that is carried out.
type transfer struct {
	*Transfer
	c       *Conn
	from    *Queue
	targets map[string]*target

	batch        []picked
	last         journal.Position // of what was put into queues, 0 for nothing
	done, failed int
	reason       *Error
}

// target is a queue that may, or may not, be written to.
type target struct {
	q   *Queue
	err *Error
}

// picked is one message to be treated.
type picked struct {
	place queue.Place
	seq   uint64
	copy  *message.Message // nil for Delete
	to    []*Queue
	entry queue.Entry // once it is withdrawn
}

func (x *transfer) fail(e *Error) {
	if x.failed++; x.reason == nil {
		x.reason = e
	}
}

// queue finds a queue to put messages into: like a publish to it, it needs the permission to write to the default
// exchange, and to that queue.
func (x *transfer) queue(name string) *target {
	t := x.targets[name]
	if t != nil {
		return t
	}
	t = new(target)
	x.targets[name] = t
	if t.err = x.c.allowExchange(rightWrite, ""); t.err == nil {
		t.err = x.c.allowQueue(rightWrite, name)
	}
	if t.err == nil {
		t.q, t.err = x.c.queue(name)
	}
	if t.err == nil && t.q == x.from {
		t.err = refuse(PreconditionFailed, "%s cannot receive its own messages", queueName(name, x.c.vhost.name))
	}
	return t
}

// add notes a message for the batch.
func (x *transfer) add(m *Browsed) {
	p := picked{place: m.place, seq: m.Seq}
	if x.Deed == Delete {
		x.batch = append(x.batch, p)
		return
	}
	if m.Msg == nil {
		x.fail(refuse(InternalError, "message %d cannot be read from disk", m.Seq))
		return
	}
	exchange, key, blind := m.Msg.Exchange(), m.Msg.Key(), m.Msg.Blind()
	if x.Deed == Replay {
		o, err := x.origin(m)
		if err != nil {
			x.fail(err)
			return
		}
		exchange, key, blind, p.to = []byte(o.exchange), o.keys[0], nil, o.queues
	} else {
		p.to = []*Queue{x.queue(x.To).q}
	}
	a := m.Msg.Attributes
	a.Delay = 0
	p.copy = message.NewBlind(a, exchange, key, blind, m.Msg.Props(), len(m.Msg.Body()))
	copy(p.copy.Body(), m.Msg.Body())
	x.batch = append(x.batch, p)
}

// origin is where a dead letter was before it died.
type origin struct {
	exchange string
	keys     [][]byte
	queues   []*Queue
}

func (x *transfer) origin(m *Browsed) (o origin, err *Error) {
	p, e := x.c.b.properties(m.Msg)
	if e != nil {
		return o, refuse(InternalError, "the properties of message %d cannot be read", m.Seq)
	}
	deaths, _ := p.Headers.Get("x-death")
	if deaths.Kind != table.Array || len(deaths.List) == 0 || deaths.List[0].Kind != table.Nested {
		return o, refuse(PreconditionFailed, "message %d is no dead letter: it has no x-death", m.Seq)
	}
	last := deaths.List[0].Table
	exchange, _ := last.Get("exchange")
	from, _ := last.Get("queue")
	keys, _ := last.Get("routing-keys")
	for _, k := range keys.List {
		if k.Kind == table.String && len(k.Str) <= message.MaxName {
			o.keys = append(o.keys, []byte(k.Str))
		}
	}
	if exchange.Kind != table.String || len(exchange.Str) > message.MaxName || from.Kind != table.String || len(o.keys) == 0 {
		return o, refuse(PreconditionFailed, "x-death of message %d does not say where it came from", m.Seq)
	}
	o.exchange = exchange.Str
	if !x.Through {
		t := x.queue(from.Str)
		o.queues = []*Queue{t.q}
		return o, t.err
	}
	o.queues, err = x.through(o.exchange, o.keys, &p)
	return o, err
}

// through finds the queues that a publish reaches.
func (x *transfer) through(exchange string, keys [][]byte, p *table.Properties) ([]*Queue, *Error) {
	c := x.c
	if e := c.allowExchange(rightWrite, exchange); e != nil {
		return nil, e
	}
	if exchange != "" {
		c.b.topo.RLock()
		to := c.vhost.exchanges[exchange]
		c.b.topo.RUnlock()
		switch {
		case to == nil:
			return nil, refuse(NotFound, "no %s", exchangeName(exchange, c.vhost.name))
		case to.Internal:
			return nil, refuse(AccessRefused, "cannot publish to internal %s", exchangeName(exchange, c.vhost.name))
		}
		for _, key := range keys {
			if e := c.allowTopic(rightWrite, to, key); e != nil {
				return nil, e
			}
		}
	}
	queues, _ := c.b.routes.RouteKeys(nil, c.vhost.name, exchange, keys, decoded{p})
	switch {
	case len(queues) == 0:
		return nil, refuse(NotFound, "no queue receives what is published to %s under '%s'", exchangeName(exchange, c.vhost.name), keys[0])
	case slices.Contains(queues, x.from):
		return nil, refuse(PreconditionFailed, "the message would come back to %s", queueName(x.from.name, c.vhost.name))
	}
	return queues, nil
}

// carryOut treats the batch. Error: InternalError, the journal failed.
func (x *transfer) carryOut() *Error {
	b, t := x.c.b, x.c.begin()
	for i := 0; i < len(x.batch); {
		j := i + 1
		for j < len(x.batch) && slices.Equal(x.batch[i].to, x.batch[j].to) {
			j++
		}
		x.run(t, x.batch[i:j])
		i = j
	}
	clear(x.batch)
	x.batch = x.batch[:0]
	// The settlements follow the publishes in the journal.
	t.end()
	if b.journal == nil || b.journal.Pending() < journalHigh {
		return nil
	}
	return x.sync()
}

// sync waits until what was put into queues is safe. Error: InternalError, the journal failed.
func (x *transfer) sync() *Error {
	if x.last == 0 {
		return nil
	}
	if err := x.c.b.journal.Sync(x.last); err != nil {
		x.c.b.log.Error("messages are not moved: the journal failed", "queue", x.from.name, "vhost", x.from.vhost, "error", err)
		return refuse(InternalError, "the journal failed")
	}
	return nil
}

// run treats messages that go to the same queues.
func (x *transfer) run(t *turn, batch []picked) {
	if x.Deed == Copy {
		x.put(t, batch, func(_ int, e *Error) {
			if e != nil {
				x.fail(e)
			} else {
				x.done++
			}
		})
		return
	}
	batch = x.withdraw(t, batch)
	if x.Deed == Delete {
		x.settle(t, batch)
		return
	}
	var put, back []picked
	x.put(t, batch, func(i int, e *Error) {
		if e != nil {
			x.fail(e)
			back = append(back, batch[i])
		} else {
			put = append(put, batch[i])
		}
	})
	x.settle(t, put)
	x.giveBack(t, back)
}

// withdraw takes the originals off their queue. It gives those of the batch that are still there, with their entries,
// and drops the others.
func (x *transfer) withdraw(t *turn, batch []picked) (there []picked) {
	places := make([]queue.Place, len(batch))
	for i := range batch {
		places[i] = batch[i].place
	}
	var entries []queue.Entry
	q := x.from
	q.mu.Lock()
	if !q.deleted {
		q.sm.Withdraw(places, &entries)
		q.limbo += len(entries)
		q.dispatch(t) // the journal may hold up what is next no longer
	}
	q.mu.Unlock()
	bySeq := make(map[uint64]queue.Entry, len(entries))
	for _, e := range entries {
		bySeq[e.Seq] = e
	}
	for _, p := range batch {
		if e, ok := bySeq[p.seq]; ok {
			p.entry = e
			there = append(there, p)
		} else if p.copy != nil {
			p.copy.Release()
		}
	}
	return there
}

// settle ends the originals.
func (x *transfer) settle(t *turn, batch []picked) {
	q := x.from
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limbo -= len(batch)
	for i := range batch {
		q.settle(t, &batch[i].entry)
	}
	x.done += len(batch)
}

// giveBack puts originals back where they were.
func (x *transfer) giveBack(t *turn, batch []picked) {
	q := x.from
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limbo -= len(batch)
	for i := range batch {
		if q.deleted {
			q.settle(t, &batch[i].entry)
		} else {
			q.sm.Return(batch[i].entry)
		}
	}
	if !q.deleted {
		q.dispatch(t)
	}
}

// put enqueues the copies of a batch and tells of each whether a queue took it: of several that do not all take it, the
// others keep it.
func (x *transfer) put(t *turn, batch []picked, each func(i int, e *Error)) {
	if len(batch) == 0 {
		return
	}
	queues := batch[0].to
	pubs := make([]publish, len(batch))
	for i := range batch {
		pubs[i] = publish{msg: batch[i].copy, queues: queues, dead: true} // no repetition, though its key is known
	}
	if pos := x.c.b.enqueue(t, pubs); pos != 0 {
		x.last = pos
	}
	var deleted *Queue
	for _, q := range queues {
		q.mu.Lock()
		if q.deleted {
			deleted = q
		}
		q.mu.Unlock()
	}
	for i := range batch {
		switch r := t.refused[i]; {
		case deleted != nil:
			each(i, refuse(NotFound, "no %s", queueName(deleted.name, deleted.vhost)))
		case r.why != taken:
			each(i, refuse(ResourceError, "%s is full", queueName(r.q.name, r.q.vhost)))
		default:
			each(i, nil)
		}
	}
}
