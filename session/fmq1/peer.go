package fmq1

import (
	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/message"
	wire "github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/frames/table"
)

// peer is the session as broker.Peer. Any goroutine. Pause and Resume take the outbox and so must be
// called without it.
type peer Session

func (p *peer) Lock() { p.o.Lock() }

// Unlock stages the confirms that came due under the lock, so that a batch of them is one frame.
func (p *peer) Unlock() bool {
	s := (*Session)(p)
	if !s.quiet {
		s.stageUpto()
	}
	if len(s.after) == 0 {
		return s.o.Unlock()
	}
	after := s.after
	s.after = nil
	flush := s.o.Unlock()
	for _, f := range after {
		s.o.Do(f)
	}
	return flush
}

func (p *peer) Flush()         { p.o.Flush() }
func (p *peer) Writable() bool { return p.o.Writable() }

// Pause has publishes wait, or stops reading; for an alarm the client is asked to stop publishing first, and
// its publishes wait once it does so nevertheless.
func (p *peer) Pause(r broker.Reason) {
	s := (*Session)(p)
	if a := r & broker.PauseAlarm; a != 0 && s.alarm.Or(uint32(a)) == 0 {
		s.flow(true)
	}
	if r &^= broker.PauseAlarm; r != 0 {
		s.pause(r)
	}
}

func (p *peer) Careful(on bool) { (*Session)(p).reading.Careful(on) }

func (p *peer) Resume(r broker.Reason) {
	s := (*Session)(p)
	if a := r & broker.PauseAlarm; a != 0 {
		if was := s.alarm.And(^uint32(a)); was != 0 && was&^uint32(a) == 0 {
			s.flow(false)
			s.resume(pauseThrottle)
		}
	}
	if r &^= broker.PauseAlarm; r != 0 {
		s.resume(r)
	}
	p.Answered()
}

func (p *peer) Close(e *broker.Error) {
	s := (*Session)(p)
	s.o.Do(func() { s.shut(e) })
}

// flow tells the client of an alarm, once it is welcome.
func (s *Session) flow(pause bool) {
	s.o.Lock()
	if s.welcomed && !s.quiet {
		s.stageFlow(pause)
	}
	if s.o.Unlock() {
		s.o.Flush()
	}
}

// stageFlow: outbox locked.
func (s *Session) stageFlow(pause bool) {
	s.o.Put(wire.Append(s.o.Tail(wire.Overhead), wire.OpFlow, &wire.Flow{Pause: pause}))
}

// sink is the session as broker.Sink: called with the outbox locked, from any goroutine.
type sink Session

// Deliver stages one message. Its properties are copied as they are when they came over this protocol,
// and a body from byReference bytes on is not copied at all.
func (k *sink) Deliver(d *broker.Delivery) {
	s := (*Session)(k)
	m := d.Msg
	props, headers := wire.Split(s.stored(m, d.Count))
	h := wire.Deliver{
		Sub: d.Consumer.Handle, Tag: d.Tag, Redelivered: d.Redelivered, Exchange: m.Exchange(), Key: m.Key(), Props: props, Headers: headers,
	}
	room := wire.Overhead + len(h.Exchange) + len(h.Key) + len(props) + len(headers)
	if size := len(m.Body()); room+size > int(s.opt.MaxFrame) {
		c, tag := d.Consumer, d.Tag
		d.Unsent = true
		s.after = append(s.after, func() { s.dropSubscription(c, tag, size) })
		return
	}
	b := s.begin(room, m, wire.OpDeliver)
	start := len(b) - wire.PrefixSize
	s.finish(h.AppendTo(b), start, m)
}

// begin starts a frame of op in a block with room for header bytes and, when it is copied, m's body.
func (s *Session) begin(header int, m *message.Message, op wire.Op) []byte {
	if n := len(m.Body()); n < byReference {
		header += n
	}
	return wire.Begin(s.o.Tail(header), op)
}

// finish ends the frame at b[start] with m's body.
func (s *Session) finish(b []byte, start int, m *message.Message) {
	body := m.Body()
	b = wire.End(b, start, len(body))
	if len(body) < byReference {
		s.o.Put(append(b, body...))
		return
	}
	s.o.Put(b)
	m.Buf().Retain()
	s.o.Ref(m.Buf(), body)
}

// stored is m's property bytes in this protocol's encoding, with a Delivery.Count unless it is 0.
func (s *Session) stored(m *message.Message, count int64) []byte {
	if m.Encoding == message.FMQ1 && count == 0 {
		return m.Props()
	}
	p, err := s.conn.Load().Properties(m)
	if err != nil {
		panic("BUG: fmq1: a message in a queue has malformed properties: " + err.Error())
	}
	if count != 0 {
		p.Headers = broker.WithDeliveryCount(p.Headers, count)
		p.Has |= table.HasHeaders
	}
	b := wire.Codec{}.Append(s.converted[:0], &p)
	if s.converted = b; cap(b) > keptScratch {
		s.converted = nil
	}
	return b
}

// stageGet answers a get; it is the send function of Channel.Get, called with the outbox locked.
func (s *Session) stageGet(d *broker.Delivery, remaining int) {
	m := d.Msg
	props, headers := wire.Split(s.stored(m, d.Count))
	h := wire.GetOK{
		RID: s.get.rid, Tag: d.Tag, Redelivered: d.Redelivered, Exchange: m.Exchange(), Key: m.Key(),
		Remaining: uint64(remaining), Props: props, Headers: headers,
	}
	room := wire.Overhead + len(h.Exchange) + len(h.Key) + len(props) + len(headers)
	if room+len(m.Body()) > int(s.opt.MaxFrame) {
		s.get.tooLarge, s.get.tag, d.Unsent = len(m.Body()), d.Tag, true
		return
	}
	b := s.begin(room, m, wire.OpGetOK)
	start := len(b) - wire.PrefixSize
	s.finish(h.AppendTo(b), start, m)
}

var noRoute = []byte("NO_ROUTE")

func (k *sink) Return(seq uint64, m *message.Message) {
	s := (*Session)(k)
	s.answered.Store(true)
	props, headers := wire.Split(s.stored(m, 0))
	h := wire.Return{Seq: seq, Code: wire.NoRoute, Msg: noRoute, Exchange: m.Exchange(), Key: m.Key(), Props: props, Headers: headers}
	b := s.begin(wire.Overhead+len(h.Exchange)+len(h.Key)+len(props)+len(headers), m, wire.OpReturn)
	start := len(b) - wire.PrefixSize
	s.finish(h.AppendTo(b), start, m)
}

func (k *sink) Cancelled(c *broker.Consumer, e *broker.Error) {
	s := (*Session)(k)
	f := refused(e)
	m := wire.Cancelled{Sub: c.Handle, Code: f.code, Msg: f.text}
	s.o.Put(wire.Append(s.o.Tail(wire.Overhead+m.Msgsize()), wire.OpCancelled, &m))
	s.after = append(s.after, func() { s.forget(c) })
}

func (k *sink) Committed() { panic("BUG: fmq1: the protocol has no transactions") }
