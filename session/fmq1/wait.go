package fmq1

import (
	"sync/atomic"

	"github.com/firemq/firemq/broker"
	wire "github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/session"
)

// The answer to a request that changes the topology is kept until the disk has what it promises (see
// broker.Channel.Answer). Meanwhile requests of that kind are carried out, so that a client that sends
// many at once waits for few syncs, and so are publishes, settlements and credit, which have no answers.
// The first frame whose answer would overtake a kept one, and all that comes behind it, is held until
// the last kept answer is sent; nothing is read meanwhile, so that what is held is bounded by one read
// and a frame.
type wait struct {
	// Owned by the connection's reader.
	on    bool
	held  []byte // whole frames
	fault *fault // ends the connection behind them: nothing more is read; nil: nothing does
	rid   uint64 // of the request that the fault is about

	asked atomic.Bool // as on, for Answered
}

// drop forgets what is held: the connection ends.
func (w *wait) drop() {
	w.on, w.held, w.fault = false, nil, nil
	w.asked.Store(false)
}

// pauseHeld is another reason of this package to stop reading: frames are held.
const pauseHeld = broker.Reason(session.PauseHeld)

// mustWait reports whether a frame is to be held because answers are kept.
func (s *Session) mustWait(f wire.Frame) bool {
	if s.state != open || !s.conn.Load().Kept() {
		return false
	}
	if s.conn.Load().Rests() {
		return true
	}
	switch f.Op {
	case wire.OpDeclareExchange, wire.OpDeleteExchange, wire.OpDeclareQueue, wire.OpDeleteQueue, wire.OpPurgeQueue,
		wire.OpBind, wire.OpUnbind:
		return s.ch.Full()
	case wire.OpPublish, wire.OpAck, wire.OpNack, wire.OpCredit, wire.OpPing, wire.OpPong:
		return false
	}
	return true
}

// hold keeps a frame, and stops reading.
func (s *Session) hold(frame []byte) {
	s.wait.held = append(s.wait.held, frame...)
	s.startWait()
}

// waits reports whether what comes now must wait: answers are kept, or frames are held.
func (s *Session) waits() bool {
	return s.wait.on || s.state == open && s.conn.Load().Kept()
}

func (s *Session) startWait() {
	if s.wait.on {
		return
	}
	s.wait.on = true
	s.pause(pauseHeld)
	s.wait.asked.Store(true)
	if !s.conn.Load().Kept() { // the last one was sent in between, and nobody was told
		(*peer)(s).Answered()
	}
}

// Answered: see broker.Peer.
func (p *peer) Answered() {
	if s := (*Session)(p); s.wait.asked.Swap(false) {
		s.o.Do(s.goOn)
	}
}

// Late: see broker.Peer.
func (p *peer) Late(*broker.Channel) { p.o.Do((*Session)(p).late) }

// goOn carries out what was held. Reader's goroutine.
func (s *Session) goOn() {
	if !s.wait.on {
		return
	}
	held, fault, rid := s.wait.held, s.wait.fault, s.wait.rid
	s.wait.drop()
	s.wait.held = held[:0] // what is held again moves to its front
	s.take(held, false)
	if fault != nil {
		s.fatal(rid, *fault)
	}
	if !s.wait.on {
		s.wait.held = nil
		s.resume(pauseHeld)
	}
}
