package amqp

import (
	"sync/atomic"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/session"
)

// The answer to a declare, bind or delete is kept until the disk has what it promises (see
// broker.Channel.Answer). Meanwhile other frames of that kind are carried out, so that a client that
// sends many at once waits for few syncs, and so are publishes and settlements, which have no answers.
// The first frame whose answer would overtake a kept one, and all that comes behind it, is held until
// the last kept answer is sent. So is the first frame of a publish that must wait (see broker.Peer): during an
// alarm a connection is read up to there, so that its acks are. Nothing is read while frames are held, so that
// they are bounded by one read and a frame; and a connection whose publishes must wait is read little by little.
type wait struct {
	// Owned by the connection's reader.
	newcomer bool // it has not published yet, and came during an alarm, which may still hold

	on    bool   // frames are held, or an error is, or the rest of a frame is not read
	stop  bool   // because publishes must wait, and not for answers
	held  []byte // whole frames
	fault func() // raises the errors that ended the run of frames; nil: there are none
	at    int    // how much of held comes before the fault
	bad   error  // of a malformed frame behind all that: nothing can be read any more; nil: there is none

	asked atomic.Bool // as on, for Answered
}

// drop forgets what is held: the connection ends.
func (w *wait) drop() {
	w.on, w.stop, w.held, w.fault, w.at, w.bad = false, false, nil, nil, 0, nil
	w.asked.Store(false)
}

// pauseHeld is this package's own reason to stop reading, beside the broker's: frames are held.
const pauseHeld = broker.Reason(session.PauseHeld)

// mustWait reports whether a frame is to be held, the first one: because it publishes and may not, or
// answers are kept.
func (s *Session) mustWait(f amqp.Frame) bool {
	return s.conn != nil && (s.wait.newcomer || s.peer.reading.PublishesWait() || s.conn.Kept()) && s.holdsBack(f)
}

// holdsBack is mustWait where there is something to wait for.
func (s *Session) holdsBack(f amqp.Frame) bool {
	if s.wait.newcomer && publishes(f) {
		s.wait.newcomer = false
		s.conn.Heed() // whose client is told at its first publish
	}
	if s.peer.reading.PublishesWait() && publishes(f) && !s.conn.MayPublish() && (f.Type == amqp.FrameMethod || !s.conn.MayFinish(len(f.Payload))) {
		s.wait.stop = true
		return true
	}
	if !s.conn.Kept() {
		return false
	}
	if s.conn.Rests() {
		return true
	}
	if f.Type != amqp.FrameMethod {
		return false
	}
	id, _, _ := amqp.CutMethod(f.Payload)
	if f.Channel == 0 {
		return true
	}
	ch := s.channel(f.Channel)
	switch {
	case ch == nil:
		return id != amqp.IDChannelOpen
	case ch.bc == nil || !ch.bc.Kept():
		return false
	}
	return ch.bc.Full() || !keepsOrder(id)
}

// publishes: the frame is a part of a publish.
func publishes(f amqp.Frame) bool {
	switch f.Type {
	case amqp.FrameMethod:
		id, _, _ := amqp.CutMethod(f.Payload)
		return id == amqp.IDBasicPublish
	case amqp.FrameHeader, amqp.FrameBody:
		return true
	}
	return false
}

// stopped reports whether what publishes is to be held.
func (s *Session) stopped() bool {
	return s.conn != nil && s.peer.reading.PublishesWait() && !s.conn.MayPublish()
}

// stopInFrame stops reading in the middle of a frame of the type, of which n bytes were taken, if that
// publishes and must wait.
func (s *Session) stopInFrame(kind uint8, n int) {
	if !s.wait.on && kind != amqp.FrameMethod && kind != amqp.FrameHeartbeat && s.stopped() && !s.conn.MayFinish(n) {
		s.wait.stop = true
		s.startWait()
	}
}

// keepsOrder: the method has no answer, or one that is kept behind those that are.
func keepsOrder(id amqp.MethodID) bool {
	switch id {
	case amqp.IDExchangeDeclare, amqp.IDExchangeDelete, amqp.IDExchangeBind, amqp.IDExchangeUnbind,
		amqp.IDQueueDeclare, amqp.IDQueueDelete, amqp.IDQueueBind, amqp.IDQueueUnbind, amqp.IDQueuePurge,
		amqp.IDBasicPublish, amqp.IDBasicAck, amqp.IDBasicNack, amqp.IDBasicReject:
		return true
	}
	return false
}

// hold keeps a frame, and stops reading.
func (s *Session) hold(frame []byte) {
	s.wait.held = append(s.wait.held, frame...)
	s.startWait()
}

// waits reports whether what comes now must wait: answers are kept, or frames are held.
func (s *Session) waits() bool { return s.wait.on || s.conn != nil && s.conn.Kept() }

// later raises an error after the answers that are kept and the frames that are held. What follows it is held. One that
// comes while another waits, of an ack that was collected, comes behind that, unless that was the connection's.
func (s *Session) later(fault func()) {
	if first := s.wait.fault; first != nil {
		s.wait.fault = func() {
			if first(); s.state == running {
				fault()
			}
		}
	} else {
		s.wait.fault, s.wait.at = fault, len(s.wait.held)
	}
	s.startWait()
}

func (s *Session) startWait() {
	if s.wait.on {
		return
	}
	s.wait.on = true
	s.peer.Pause(pauseHeld)
	s.await()
}

// await has goOn called when there may be nothing left to wait for.
func (s *Session) await() {
	s.wait.asked.Store(true)
	waits := s.wait.stop && s.stopped() || !s.wait.stop && s.conn.Kept()
	if !waits { // the reason went away in between, and nobody was told
		s.peer.Answered()
	}
}

// Answered implements broker.Peer.
func (p *peer) Answered() {
	if p.s.wait.asked.Swap(false) {
		p.Do(p.s.goOn)
	}
}

// Late implements broker.Peer.
func (p *peer) Late(bc *broker.Channel) {
	p.Do(func() { bc.Sink().(*channel).late(bc) })
}

// goOn carries out what was held. By the reader.
func (s *Session) goOn() {
	if !s.wait.on {
		return
	}
	held, fault, at, bad := s.wait.held, s.wait.fault, s.wait.at, s.wait.bad
	if fault == nil && bad == nil && len(held) == 0 && s.stopped() { // in the middle of a frame
		s.await()
		return
	}
	s.wait.drop()
	s.wait.held = held[:0] // what is held again moves to its front
	s.framesHeld(held[:at])
	switch {
	case fault == nil:
	case s.waits():
		s.later(fault)
	default:
		fault()
	}
	s.framesHeld(held[at:])
	if bad != nil && s.state != closed {
		s.frameError(bad)
	}
	s.endTurn()
	s.pushBack()
	if !s.wait.on {
		s.wait.held = nil
		s.peer.Resume(pauseHeld)
	}
}

// framesHeld carries out frames that were held, or holds them again.
func (s *Session) framesHeld(b []byte) {
	if n, _ := s.frames(b); n < len(b) && s.state != closed {
		panic("BUG: amqp: a part of a frame was held")
	}
}
