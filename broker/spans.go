package broker

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
)

// The spans of a message. A message says with its header traceparent (W3C Trace Context) which trace it is part
// of and whether that is sampled. Messages are not changed, so the header is all that is known of the trace later,
// also after a restart. What each span is a child of:
//
//	header -> publish -> enqueue, one a queue -> deliver -> settle
//	                                         '-> dead-letter -> enqueue in the next queue -> ...
//
// A delivery finds the span of its enqueue without being told: its id is a hash of the trace and the entry. That
// of a delivery is random, and its channel keeps it until the settlement.
//
// A message without a context that the Tracer picks gets its header when it is published, before any queue has it.
//
// Without a Tracer a batch pays a comparison.

// Tracer takes the spans of messages. Any goroutine may call its methods, with locks held: they never wait.
type Tracer interface {
	// Sample decides whether a trace that begins here is followed.
	Sample(TraceID) bool
	// Span takes a span. It keeps nothing of s.
	Span(s *Span)
	// Drop counts spans for which there was no room here.
	Drop(n int)
}

// TraceID and SpanID are those of W3C Trace Context; zero is none.
type (
	TraceID [16]byte
	SpanID  [8]byte
)

// Step is what a span is about.
type Step uint8

const (
	StepPublish Step = iota
	StepEnqueue
	StepDeliver
	StepGet
	StepSettle
	StepDeadLetter
)

// Span is one step of a message. Its strings and bytes are valid during the call that is given it.
type Span struct {
	Trace      TraceID
	ID, Parent SpanID
	State      string // tracestate
	Step       Step
	Start, End int64 // Unix ns

	VHost         string
	Exchange, Key []byte
	Queue         string // of all but StepPublish

	Client      string // the connection's name: publisher or consumer
	MessageID   string // of StepPublish, as Correlation
	Correlation string
	Size        int    // bytes of the body
	Queues      int    // of StepPublish: how many the message was routed to
	Tag         uint64 // of StepDeliver, StepGet and StepSettle
	Redelivered bool   // of StepDeliver and StepGet
	Verb        Verb   // of StepSettle, as Requeue
	Requeue     bool
	Reason      string // of StepDeadLetter: why the message left the queue
	Error       string // class of the error that it ended with; "": none
}

const (
	maxTracedDeliveries = 1 << 16 // deliveries of the broker whose settlement is waited for; more get no span of it
	maxTraceState       = 512     // octets that W3C Trace Context asks for (3.3.1.5); spans leave out a longer one
)

const (
	headerTraceParent = "traceparent"
	headerTraceState  = "tracestate"
)

// spanContext is where a message stands in its trace. The zero value is a message that is not traced.
type spanContext struct {
	trace  TraceID
	parent SpanID // of the next span
	state  string // aliases the message
}

func (c *spanContext) sampled() bool { return c.trace != TraceID{} }

// trail is what a turn has to do with spans; only with a Tracer there is one.
type trail struct {
	run      []spanContext // of the messages that are being enqueued
	begun    []begun       // their publish spans
	contexts table.Table   // scratch of context
}

// begun is the publish span of a message, with a reference to that.
type begun struct {
	msg    *message.Message // nil: it is not traced
	id     SpanID
	parent SpanID
}

// tracedDelivery is one that waits for its settlement.
type tracedDelivery struct {
	trace TraceID
	id    SpanID
	state string
}

func (t *turn) trailOf() *trail {
	if t.trail == nil {
		t.trail = new(trail)
	}
	return t.trail
}

// span hands over a span that ends now. One starts no later than those below it: with the millisecond of its turn.
func (t *turn) span(s *Span) {
	s.End = max(s.Start, time.Now().UnixNano())
	t.b.opt.Tracer.Span(s)
}

// context reads a message's place in its trace. known is false when the message has none, or nothing that is one.
func (t *turn) context(m *message.Message) (c spanContext, known bool) {
	if !m.HasHeaders || !bytes.Contains(m.Props(), []byte(headerTraceParent)) {
		return c, false
	}
	x := t.trailOf()
	x.contexts = t.b.codecs[m.Encoding].Headers(x.contexts[:0], m.Props())
	v, _ := x.contexts.Get(headerTraceParent)
	trace, parent, sampled, known := parseTraceParent(v.Str)
	if sampled {
		c.trace, c.parent = trace, parent
		if state, _ := x.contexts.Get(headerTraceState); len(state.Str) <= maxTraceState {
			c.state = state.Str
		}
	}
	clear(x.contexts)
	x.contexts = kept(x.contexts)
	return c, known
}

// parseTraceParent reads version 00 of a traceparent, and of a later one what that has in common with it:
// 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.
func parseTraceParent(s string) (trace TraceID, parent SpanID, sampled, ok bool) {
	var version, flags [1]byte
	switch {
	case len(s) < 55 || s[2] != '-' || s[35] != '-' || s[52] != '-',
		!unhex(version[:], s[:2]) || !unhex(trace[:], s[3:35]) || !unhex(parent[:], s[36:52]) || !unhex(flags[:], s[53:55]),
		version[0] == 0xff || trace == TraceID{} || parent == SpanID{},
		len(s) > 55 && (version[0] == 0 || s[55] != '-'):
		return TraceID{}, SpanID{}, false, false
	}
	return trace, parent, flags[0]&1 != 0, true
}

// unhex reads lower-case hexadecimal digits, the only ones that are allowed.
func unhex(dst []byte, s string) bool {
	for i := range dst {
		hi, lo := digit(s[2*i]), digit(s[2*i+1])
		if hi|lo > 15 {
			return false
		}
		dst[i] = hi<<4 | lo
	}
	return true
}

func digit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 255
}

func appendTraceParent(dst []byte, trace TraceID, parent SpanID) []byte {
	dst = hex.AppendEncode(append(dst, "00-"...), trace[:])
	dst = hex.AppendEncode(append(dst, '-'), parent[:])
	return append(dst, "-01"...)
}

// newTraceID is random but for its last bit, by which it is not zero.
func newTraceID() (id TraceID) {
	binary.BigEndian.PutUint64(id[:], rand.Uint64())
	binary.BigEndian.PutUint64(id[8:], rand.Uint64()|1)
	return id
}

func newSpanID() SpanID { return spanID(rand.Uint64()) }

func spanID(n uint64) (id SpanID) {
	binary.BigEndian.PutUint64(id[:], max(n, 1))
	return id
}

// enqueueSpan is the id of the span of an entry's enqueue. That of a journaled entry is the same after a restart;
// the numbers of others begin again then.
func (q *Queue) enqueueSpan(trace *TraceID, seq uint64, journaled bool) SpanID {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a
	h, salt := uint64(offset), q.b.spanSalt
	if journaled && q.id < fleetingIDs {
		salt = q.id
	}
	word := func(n uint64) {
		for range 8 {
			h = (h ^ n&0xff) * prime
			n >>= 8
		}
	}
	word(binary.BigEndian.Uint64(trace[:]))
	word(binary.BigEndian.Uint64(trace[8:]))
	word(salt)
	word(seq)
	for _, name := range [...]string{q.vhost, "/", q.name} {
		for i := range len(name) {
			h = (h ^ uint64(name[i])) * prime
		}
	}
	return spanID(h)
}

// tracedName is the queue's name in spans. A reply token stays between those who talk over it.
func (q *Queue) tracedName() string {
	if q.replies {
		return ReplyTo
	}
	return q.name
}

// beginSpans begins the publish spans of a run. A message that begins a trace and has somewhere to go is replaced by
// one that says so.
func (ch *Channel) beginSpans(t *turn, pubs []publish) {
	b, x := ch.conn.b, t.trailOf()
	for i := range pubs {
		p := &pubs[i]
		c, known := t.context(p.msg)
		s := begun{id: newSpanID(), parent: c.parent}
		if !known {
			if trace := newTraceID(); b.opt.Tracer.Sample(trace) {
				c.trace = trace
				if len(p.queues) > 0 {
					p.msg = b.withContext(p.msg, trace, s.id)
				}
			}
		}
		if c.sampled() {
			p.msg.Retain(1)
			s.msg, c.parent = p.msg, s.id
		}
		x.run, x.begun = append(x.run, c), append(x.begun, s)
	}
}

// withContext is m with another context, which the caller has in exchange for its reference. A message whose
// properties cannot be read stays as it is.
func (b *Broker) withContext(m *message.Message, trace TraceID, span SpanID) *message.Message {
	p, err := b.codecs[m.Encoding].Decode(m.Props())
	if err != nil {
		return m
	}
	h := without(p.Headers, headerTraceState)
	h.Set(headerTraceParent, table.StringValue(string(appendTraceParent(nil, trace, span))))
	p.Headers = h
	p.Has |= table.HasHeaders
	a := m.Attributes
	a.HasHeaders = true
	out := message.NewBlind(a, m.Exchange(), m.Key(), m.Blind(), b.codecs[m.Encoding].Append(nil, &p), len(m.Body()))
	copy(out.Body(), m.Body())
	m.Release()
	return out
}

// endSpans ends the publish spans of the run. refused is what came of it, nil for messages that have no queue.
func (ch *Channel) endSpans(t *turn, pubs []publish, refused []refusal) {
	x := t.trail
	for i := range x.begun {
		f := &x.begun[i]
		if f.msg == nil {
			continue
		}
		m, c := f.msg, &x.run[i]
		props := t.b.codecs[m.Encoding].Properties(m.Props())
		s := Span{
			Trace: c.trace, ID: f.id, Parent: f.parent, State: c.state, Step: StepPublish, Start: t.now * 1e6,
			VHost: ch.conn.vhost.name, Exchange: m.Exchange(), Key: m.Key(), Client: ch.conn.info.Name,
			MessageID: props.MessageID, Correlation: props.CorrelationID, Size: len(m.Body()), Queues: len(pubs[i].queues),
		}
		switch {
		case refused == nil && pubs[i].mandatory:
			s.Error = "no-route"
		case refused != nil && refused[i].why != taken:
			s.Error = "resource-error"
		}
		t.span(&s)
		m.Release()
	}
	x.forget()
}

func (x *trail) forget() {
	clear(x.run)
	clear(x.begun)
	x.run, x.begun = x.run[:0], x.begun[:0]
}

// join reads the contexts of a run that was not published by a client.
func (t *turn) join(pubs []publish) {
	x := t.trailOf()
	for i := range pubs {
		c, _ := t.context(pubs[i].msg)
		x.run = append(x.run, c)
	}
}

// enqueued is the span of the entry that q made of message i of the run. Lock held.
func (q *Queue) enqueued(t *turn, i int, m *message.Message, seq uint64, journaled bool) {
	if c := &t.trail.run[i]; c.sampled() {
		t.span(&Span{
			Trace: c.trace, ID: q.enqueueSpan(&c.trace, seq, journaled), Parent: c.parent, State: c.state, Step: StepEnqueue, Start: t.now * 1e6,
			VHost: q.vhost, Exchange: m.Exchange(), Key: m.Key(), Queue: q.tracedName(), Size: len(m.Body()),
		})
	}
}

// delivered is the span of a delivery or get: from when the broker took the message until it is on its way. With
// settles its settlement is waited for. The locks of the queue and the Peer are held.
func (ch *Channel) delivered(t *turn, q *Queue, d *Delivery, seq uint64, journaled, settles bool) {
	m := d.Msg
	c, _ := t.context(m)
	if !c.sampled() {
		return
	}
	s := Span{
		Trace: c.trace, ID: newSpanID(), Parent: q.enqueueSpan(&c.trace, seq, journaled), State: c.state, Step: StepDeliver, Start: m.Taken * 1e6,
		VHost: q.vhost, Exchange: m.Exchange(), Key: m.Key(), Queue: q.tracedName(), Client: ch.conn.info.Name, Size: len(m.Body()),
		Tag: d.Tag, Redelivered: d.Redelivered,
	}
	if d.Consumer == nil {
		s.Step = StepGet
	}
	if m.Taken == 0 {
		s.Start = t.now * 1e6
	}
	t.span(&s)
	if !settles {
		return
	}
	if t.b.tracedDeliveries.Load() >= maxTracedDeliveries {
		t.b.opt.Tracer.Drop(1)
		return
	}
	t.b.tracedDeliveries.Add(1)
	if ch.traced == nil {
		ch.traced = make(map[uint64]tracedDelivery)
	}
	ch.traced[d.Tag] = tracedDelivery{s.Trace, s.ID, strings.Clone(s.State)}
}

// concluded is the span of a settlement: from the delivery until now. The lock of the queue is held.
func (ch *Channel) concluded(t *turn, s *slot, verb Verb, requeue bool) {
	ch.peer.Lock()
	f, ok := ch.traced[s.tag]
	if ok {
		delete(ch.traced, s.tag)
		if len(ch.traced) == 0 {
			ch.traced = nil
		}
	}
	if ch.peer.Unlock() {
		t.touch(ch.peer)
	}
	if !ok {
		return
	}
	t.b.tracedDeliveries.Add(-1)
	t.span(&Span{
		Trace: f.trace, ID: newSpanID(), Parent: f.id, State: f.state, Step: StepSettle, Start: s.at * 1e6,
		VHost: s.q.vhost, Queue: s.q.tracedName(), Client: ch.conn.info.Name, Tag: s.tag, Verb: verb, Requeue: requeue,
	})
}

// beginDeadLetter makes out the run, whose enqueues are below the span of m's way to the dead-letter exchange.
func (t *turn) beginDeadLetter(d *deadItem) (s Span) {
	c, _ := t.context(d.Entry.Msg)
	if c.sampled() {
		s = Span{
			Trace: c.trace, ID: newSpanID(), Parent: c.parent, State: c.state, Step: StepDeadLetter, Start: t.now * 1e6,
			VHost: d.q.vhost, Queue: d.q.tracedName(), Reason: reasons[d.Reason],
		}
		if d.Entry.Seq != 0 { // else it was refused, and never in the queue
			s.Parent = d.q.enqueueSpan(&c.trace, d.Entry.Seq, d.Entry.Journaled)
		}
		c.parent = s.ID
	}
	x := t.trailOf()
	x.run = append(x.run, c)
	return s
}

// endDeadLetter ends that span, of the message that out was made of.
func (t *turn) endDeadLetter(s *Span, exchange, key []byte, size int) {
	if s.Trace != (TraceID{}) {
		s.Exchange, s.Key, s.Size = exchange, key, size
		t.span(s)
	}
	t.trail.forget()
}
