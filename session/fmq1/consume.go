package fmq1

import (
	"strconv"

	"github.com/firemq/firemq/broker"
	wire "github.com/firemq/firemq/frames/fmq1"
)

func (s *Session) subscribe(f wire.Frame) {
	var m wire.Subscribe
	if !s.decode(f, &m) || !s.names(m.RID, m.Queue, m.Tag) {
		return
	}
	args, ok := s.table(m.RID, m.Args)
	if !ok {
		return
	}
	if c := s.subs[m.Sub]; c != nil && s.ch.Consumer(c.Tag) == c {
		s.fail(m.RID, faultOf(wire.NotAllowed, "attempt to reuse subscription %d", m.Sub))
		return
	}
	if m.Tag == "" {
		m.Tag = "fire-" + strconv.FormatUint(m.Sub, 10)
	}
	c, e := s.ch.Consume(&broker.ConsumeArgs{
		Queue: m.Queue, Tag: m.Tag, Handle: m.Sub, NoAck: m.NoAck, Exclusive: m.Exclusive, Credited: true, Credit: m.Credit, Args: args,
	})
	if s.failed(m.RID, e) {
		return
	}
	s.subs[m.Sub] = c
	s.reply(wire.OK{RID: m.RID})
	c.Start()
}

// unsubscribe ends a subscription. One that is not there, perhaps because its queue went away at the
// same moment, is no error.
func (s *Session) unsubscribe(f wire.Frame) {
	var m wire.Unsubscribe
	if !s.decode(f, &m) {
		return
	}
	if c := s.subs[m.Sub]; c != nil {
		delete(s.subs, m.Sub)
		s.ch.Cancel(c.Tag)
	}
	s.reply(wire.OK{RID: m.RID})
}

// grant adds credit. A subscription that is not there, perhaps cancelled at the same moment, is no error.
func (s *Session) grant(f wire.Frame) {
	if err := s.credit.Decode(f.Header); err != nil {
		s.fail(0, malformed(err))
		return
	}
	if c := s.subs[s.credit.Sub]; c != nil {
		c.Grant(s.credit.Credit)
	}
}

func (s *Session) ack(f wire.Frame) {
	if err := s.settle.Decode(f.Header); err != nil {
		s.fail(0, malformed(err))
		return
	}
	s.settling = true
	s.failed(0, s.ch.Ack(s.settle.Tag, s.settle.Multiple))
}

func (s *Session) nack(f wire.Frame) {
	if err := s.settle.Decode(f.Header); err != nil {
		s.fail(0, malformed(err))
		return
	}
	s.settling = true
	s.failed(0, s.ch.Nack(s.settle.Tag, s.settle.Multiple, s.settle.Requeue))
}

// getting is the get that is being answered.
type getting struct {
	rid      uint64
	tooLarge int // size of a message that does not fit in a frame, 0 otherwise
	tag      uint64
}

func (s *Session) getOne(f wire.Frame) {
	var m wire.Get
	if !s.decode(f, &m) || !s.names(m.RID, m.Queue) {
		return
	}
	s.get = getting{rid: m.RID}
	ok, e := s.ch.Get(m.Queue, m.NoAck, s.sendGet)
	switch {
	case s.failed(m.RID, e):
	case !ok:
		s.reply(wire.OK{RID: m.RID, Empty: true})
	case s.get.tooLarge != 0:
		s.failed(0, s.giveBack(s.get.tag))
		s.fail(m.RID, misfit(s.get.tooLarge, s.opt.MaxFrame))
	default:
		s.answered.Store(true)
	}
}

// giveBack requeues a delivery that could not be sent.
func (s *Session) giveBack(tag uint64) *broker.Error {
	s.settling = true
	return s.ch.Nack(tag, false, true)
}

// misfit is the fault for a message with a body of size bytes whose delivery is larger than a frame.
func misfit(size int, limit uint32) fault {
	return faultOf(wire.PreconditionFailed, "message of %d bytes does not fit in a frame of %d", size, limit)
}

// dropSubscription ends a subscription that met a message too large for a frame: the message stays in
// its queue for a consumer over AMQP. Reader's goroutine.
func (s *Session) dropSubscription(c *broker.Consumer, tag uint64, size int) {
	if s.state != open {
		return
	}
	if s.subs[c.Handle] == c {
		delete(s.subs, c.Handle)
		s.ch.Cancel(c.Tag)
		f := misfit(size, s.opt.MaxFrame)
		s.stage(wire.OpCancelled, &wire.Cancelled{Sub: c.Handle, Code: f.code, Msg: f.text})
	}
	s.failed(0, s.giveBack(tag))
	s.endTurn()
}

// lateBatch is how many late deliveries one look takes back.
const lateBatch = 256

// late ends the subscriptions whose deliveries were not acknowledged in time, and takes back those of gets, each
// with its error. The connection goes on. Reader's goroutine, outside of a turn.
func (s *Session) late() {
	if s.state != open {
		return
	}
	for range lateBatch {
		l, e := s.ch.Late()
		if e == nil {
			break
		}
		s.ch.Withdraw(l)
		if c := l.Consumer; c != nil && s.subs[c.Handle] == c {
			delete(s.subs, c.Handle)
			f := refused(e)
			s.stage(wire.OpCancelled, &wire.Cancelled{Sub: c.Handle, Code: f.code, Msg: f.text})
			continue
		}
		s.fail(0, refused(e))
	}
	s.endTurn()
}

// forget removes a subscription that the broker ended. Reader's goroutine.
func (s *Session) forget(c *broker.Consumer) {
	if s.subs[c.Handle] == c {
		delete(s.subs, c.Handle)
	}
}
