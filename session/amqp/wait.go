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
// the last kept answer is sent; nothing is read meanwhile, so that what is held is bounded by one read
// and a frame.
type wait struct {
	// Owned by the connection's reader.
	on    bool   // frames are held, or an error is
	held  []byte // whole frames
	fault func() // raises the error that ended the run of frames; nil: there is none
	at    int    // how much of held comes before the fault
	bad   error  // of a malformed frame behind all that: nothing can be read any more; nil: there is none

	asked atomic.Bool // as on, for Answered
}

// drop forgets what is held: the connection ends.
func (w *wait) drop() {
	w.on, w.held, w.fault, w.at, w.bad = false, nil, nil, 0, nil
	w.asked.Store(false)
}

// pauseHeld is this package's own reason to stop reading, beside the broker's: frames are held.
const pauseHeld = broker.Reason(session.PauseHeld)

// mustWait reports whether a frame is to be held because answers are kept.
func (s *Session) mustWait(f amqp.Frame) bool {
	if s.conn == nil || !s.conn.Kept() {
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

// later raises an error after the answers that are kept and the frames that are held. What follows it is held.
func (s *Session) later(fault func()) {
	if s.wait.fault == nil {
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
	s.wait.asked.Store(true)
	if !s.conn.Kept() { // the last one was sent in between, and nobody was told
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
