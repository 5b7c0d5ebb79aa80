package fire

import (
	"context"
	"sync"
	"unsafe"

	"github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/frames/table"
)

// pending holds the publishes that wait for a confirm, by sequence number. Guarded by Client.mu. It is
// bounded by the publishers' windows and the callers of Publish.
type pending struct {
	ring  []entry // length a power of two
	first uint64  // the oldest sequence number without a confirm
	n     uint64
}

// entry is one publish; one of waiter and publisher is set, none when its caller gave up.
type entry struct {
	waiter    *waiter
	publisher *Publisher
	n         uint64 // the publisher's own count
	err       error  // what it ends with when the confirm comes
	done      bool   // refused already, ahead of older ones
	frame     []byte // to be sent again; nil: it is not
	chunk     *chunk // that the frame is in
}

func (p *pending) at(seq uint64) *entry { return &p.ring[seq&uint64(len(p.ring)-1)] }

func (p *pending) has(seq uint64) bool { return seq >= p.first && seq-p.first < p.n }

// add takes the next sequence number.
func (p *pending) add(seq uint64, e entry) {
	if p.n == 0 {
		p.first = seq
	}
	if p.n == uint64(len(p.ring)) {
		ring := make([]entry, max(64, 2*len(p.ring)))
		for i := range p.n {
			ring[(p.first+i)&uint64(len(ring)-1)] = *p.at(p.first + i)
		}
		p.ring = ring
	}
	*p.at(seq) = e
	p.n++
}

// keeper holds the frames of publishes that wait for their confirm, so that they can be sent again over
// another connection, in memory that is used over and over. Guarded by Client.mu.
type keeper struct {
	bytes   int
	lighter chan struct{} // closed when bytes is half of the bound; nil: nobody waits
	tail    *chunk        // where the next frame goes
	free    []*chunk
}

// chunk is memory for frames.
type chunk struct {
	b    []byte
	live int // frames in it
}

const (
	// maxKept is how many bytes wait for their confirms before publishers wait.
	maxKept = 64 << 20
	// keptSize is the size of a chunk; only a larger frame has one of its own. maxFree of them are kept.
	keptSize, maxFree = 64 << 10, 64
)

// keep copies a frame for e.
func (k *keeper) keep(frame []byte, e *entry) {
	if k.tail == nil || cap(k.tail.b)-len(k.tail.b) < len(frame) {
		if k.tail != nil && k.tail.live == 0 {
			k.drop(k.tail)
		}
		if n := len(k.free); n > 0 && len(frame) <= keptSize {
			k.tail, k.free = k.free[n-1], k.free[:n-1]
		} else {
			k.tail = &chunk{b: make([]byte, 0, max(keptSize, len(frame)))}
		}
	}
	c := k.tail
	at := len(c.b)
	c.b = append(c.b, frame...)
	c.live++
	k.bytes += len(frame)
	e.frame, e.chunk = c.b[at:len(c.b):len(c.b)], c
}

// release forgets the frame of e.
func (k *keeper) release(e *entry) {
	c := e.chunk
	if c == nil {
		return
	}
	k.bytes -= len(e.frame)
	e.frame, e.chunk = nil, nil
	if k.lighter != nil && k.bytes <= maxKept/2 {
		happened(&k.lighter)
	}
	if c.live--; c.live > 0 {
		return
	}
	if c == k.tail {
		c.b = c.b[:0]
		return
	}
	k.drop(c)
}

// drop keeps an empty chunk for later, if it is an ordinary one.
func (k *keeper) drop(c *chunk) {
	if cap(c.b) == keptSize && len(k.free) < maxFree {
		c.b = c.b[:0]
		k.free = append(k.free, c)
	}
}

// waiter is a call of Publish. Those that are free are kept by the Client.
type waiter struct {
	done chan error // has room for the one result

	// Guarded by Client.mu.
	seq  uint64  // of the publish
	next *waiter // free list
}

// result is a publish of a Publisher with a callback that is over.
type result struct {
	publisher *Publisher
	n         uint64
	err       error
}

func (r *result) tell() { r.publisher.onResult(r.n, r.err) }

// PublisherOptions configure a Publisher.
type PublisherOptions struct {
	// Window is how many publishes may wait for their confirm; Publish waits at it. 0 is 1000.
	Window int
	// OnResult is told of each publish when it is over: n counts the publisher's calls of Publish that
	// returned nil from 1, err is nil or what Client.Publish would return. It is called by the reading
	// goroutine, mostly in order, and must not block or wait for the Client. Nil: Flush reports the first error.
	OnResult func(n uint64, err error)
}

// Publisher publishes without waiting for each confirm. It starts no goroutine and allocates nothing
// for a message. Any number may share a Client.
type Publisher struct {
	c        *Client                   // immutable
	window   int                       // immutable
	onResult func(n uint64, err error) // immutable

	// Guarded by c.mu.
	sent     uint64
	inflight int
	err      error         // the first failure since the last Flush
	room     chan struct{} // closed when the window is half empty again; nil: nobody waits
	flushed  chan struct{} // closed when nothing is in flight; nil: nobody waits
}

// NewPublisher makes a Publisher.
func (c *Client) NewPublisher(o PublisherOptions) *Publisher {
	if o.Window <= 0 {
		o.Window = 1000
	}
	return &Publisher{c: c, window: o.Window, onResult: o.OnResult}
}

// Publish sends a message without waiting for its confirm; it waits only for a place in the window, for
// the socket when the broker reads too slowly, and while the broker asks publishers to pause.
//
// An error says that the message was not sent: *InvalidError, ErrClosed or ctx's error. What becomes of
// a sent one is told by OnResult or Flush. m.Body may be used again when the call returns.
func (p *Publisher) Publish(ctx context.Context, m Message) error {
	_, err := p.c.send(ctx, &m, p)
	return err
}

// Flush waits until every message that was sent is confirmed or refused. It returns the first of their
// errors since the last Flush (see Client.Publish), or ctx's.
func (p *Publisher) Flush(ctx context.Context) error {
	p.c.mu.Lock()
	for p.inflight > 0 {
		wait := waitFor(&p.flushed)
		p.c.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
		p.c.mu.Lock()
	}
	err := p.err
	p.err = nil
	p.c.mu.Unlock()
	return err
}

// InFlight is how many publishes wait for their confirm.
func (p *Publisher) InFlight() int {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	return p.inflight
}

// finished counts one publish that is over. c.mu held.
func (p *Publisher) finished(err error) {
	p.inflight--
	if err != nil && p.err == nil {
		p.err = err
	}
	if p.room != nil && p.inflight <= p.window/2 {
		happened(&p.room)
	}
	if p.flushed != nil && p.inflight == 0 {
		happened(&p.flushed)
	}
}

// Publish sends a message and waits until the broker has confirmed it. While the broker asks publishers
// to pause, it waits for that too.
//
// When the connection is lost before the confirm, the message is sent again over the next one; it may then
// be in its queues twice.
//
// Errors: ErrUnroutable for a mandatory message that no queue received, *NackedError when the broker
// refused it, *InvalidError when it cannot be sent, ErrClosed when there was no connection for
// Reconnect.Wait or the Client was closed, and ctx's error; after the last two the message may have arrived.
func (c *Client) Publish(ctx context.Context, m Message) error {
	w, err := c.send(ctx, &m, nil)
	if err != nil {
		return err
	}
	select {
	case err = <-w.done:
		c.mu.Lock()
	case <-ctx.Done():
		c.mu.Lock()
		if c.pending.has(w.seq) && c.pending.at(w.seq).waiter == w {
			c.pending.at(w.seq).waiter = nil
		}
		select {
		case err = <-w.done: // it came at the same moment
		default:
			err = ctx.Err()
		}
	}
	w.next, c.waiters = c.waiters, w
	c.mu.Unlock()
	return err
}

// send stages a publish of p, or with a nil p one whose result comes through the waiter.
func (c *Client) send(ctx context.Context, m *Message, p *Publisher) (w *waiter, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var props, headers []byte
	if !m.Properties.empty() || len(m.Headers) > 0 {
		b := scratch.Get().(*[]byte)
		defer scratch.Put(b)
		if props, headers, err = m.maps(b); err != nil {
			return nil, err
		}
	}
	if len(m.Exchange) > fmq1.MaxName || len(m.Key) > fmq1.MaxName {
		return nil, invalid("an exchange or routing key is longer than %d bytes", fmq1.MaxName)
	}
	size := fmq1.Overhead + len(m.Exchange) + len(m.Key) + len(props) + len(headers) + len(m.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.room(ctx, p); err != nil {
		return nil, err
	}
	if size > int(c.link.maxFrame) {
		return nil, invalid("a message of %d bytes does not fit in the broker's frames of %d", len(m.Body), c.link.maxFrame)
	}
	e := entry{publisher: p}
	if p != nil {
		p.inflight++
		p.sent++
		e.n = p.sent
	} else {
		if w = c.waiters; w != nil {
			c.waiters = w.next
		} else {
			w = &waiter{done: make(chan error, 1)}
		}
		e.waiter = w
	}
	c.seq++
	if w != nil {
		w.seq = c.seq
	}
	h := fmq1.Publish{
		Seq: c.seq, Exchange: view(m.Exchange), Key: view(m.Key), Mandatory: m.Mandatory, Persistent: !m.Transient, Props: props, Headers: headers,
	}
	start := len(c.out)
	c.out = h.AppendTo(fmq1.Begin(c.out, fmq1.OpPublish))
	c.out = append(fmq1.End(c.out, start, len(m.Body)), m.Body...)
	if !c.cfg.Reconnect.Off {
		c.kept.keep(c.out[start:], &e)
	}
	c.pending.add(c.seq, e)
	c.wakeWriter()
	return w, nil
}

// scratch lends memory for encoding properties and headers.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// maps encodes properties and headers into *dst, which it may grow.
func (m *Message) maps(dst *[]byte) (props, headers []byte, err error) {
	b := (*dst)[:0]
	if !m.Properties.empty() {
		t, err := m.Properties.table()
		if err != nil {
			return nil, nil, err
		}
		b = fmq1.AppendProps(b, &t)
	}
	n := len(b)
	if len(m.Headers) > 0 {
		t, err := table.FromMap(m.Headers)
		if err != nil {
			return nil, nil, invalid("headers: %v", err)
		}
		b = fmq1.AppendTable(b, t)
	}
	*dst = b
	if len(b) > fmq1.MaxHeader-fmq1.Overhead-2*fmq1.MaxName {
		return nil, nil, invalid("properties and headers are larger than %d bytes", fmq1.MaxHeader)
	}
	return b[:n], b[n:], nil
}

// confirm handles what the broker says of publishes. mu held.
func (c *Client) confirm(f fmq1.Frame) error {
	var m fmq1.Confirm
	if err := m.Decode(f.Header); err != nil {
		return err
	}
	p := &c.pending
	if m.Nack {
		if p.has(m.Seq) {
			c.refuse(m.Seq, &NackedError{Code: int(m.Code), Msg: string(m.Msg)})
		}
		return nil
	}
	if c.link != nil {
		c.link.useful = true
	}
	for p.n > 0 && p.first <= m.UpTo {
		e := p.at(p.first)
		if !e.done {
			c.kept.release(e)
			c.finish(e, e.err)
		}
		*e = entry{}
		p.first++
		p.n--
	}
	return nil
}

// refuse ends one publish ahead of older ones. Those at the front that are over are forgotten.
func (c *Client) refuse(seq uint64, err error) {
	p := &c.pending
	if e := p.at(seq); !e.done {
		c.kept.release(e)
		c.finish(e, err)
		e.done = true
	}
	for p.n > 0 && p.at(p.first).done {
		*p.at(p.first) = entry{}
		p.first++
		p.n--
	}
}

// returned notes that a mandatory message came back; its confirm follows. mu held.
func (c *Client) returned(f fmq1.Frame) error {
	var m fmq1.Return
	if err := m.Decode(f.Header); err != nil {
		return err
	}
	if c.pending.has(m.Seq) {
		c.pending.at(m.Seq).err = ErrUnroutable
	}
	return nil
}

// finish tells who waits for a publish.
func (c *Client) finish(e *entry, err error) {
	switch {
	case e.waiter != nil:
		e.waiter.done <- err
	case e.publisher != nil:
		e.publisher.finished(err)
		if e.publisher.onResult != nil {
			c.results = append(c.results, result{e.publisher, e.n, err})
		}
	}
}

func (c *Client) failPublishes(err error) {
	p := &c.pending
	for ; p.n > 0; p.n-- {
		if e := p.at(p.first); !e.done {
			c.kept.release(e)
			c.finish(e, err)
		}
		*p.at(p.first) = entry{}
		p.first++
	}
}

// view is s as bytes that nobody writes to.
func view(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
