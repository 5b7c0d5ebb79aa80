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
// the last kept answer is sent. So is the first publish that must wait (see broker.Peer): during an alarm a
// connection is read up to there, so that its acks are. While frames are held for answers nothing is read; for
// publishes it is read on up to heldMost, so that a client that does not publish any more shows that it is alive. So
// what is held is bounded by that, one read and a frame; and a connection whose publishes must wait is read little
// by little.
type wait struct {
	// Owned by the connection's reader.
	newcomer bool // it has not published yet, and came during an alarm, which may still hold

	on    bool   // frames are held, or the rest of one is not read
	stop  bool   // because publishes must wait, and not for answers
	still bool   // nothing is read
	rest  int    // bytes of the frame behind what is held, as far as it is known
	held  []byte // whole frames
	fault *fault // ends the connection behind them: nothing more is read; nil: nothing does
	rid   uint64 // of the request that the fault is about

	asked atomic.Bool // as on, for Answered
}

// drop forgets what is held: the connection ends.
func (w *wait) drop() {
	w.on, w.stop, w.held, w.fault = false, false, nil, nil
	w.asked.Store(false)
}

// pauseHeld is another reason of this package to stop reading: frames are held.
const pauseHeld = broker.Reason(session.PauseHeld)

// heldMost is up to how many bytes of frames that are held, with the one that is coming, a connection is read on.
// Pings are answered, they and pongs are not held.
const heldMost = 8 << 10

// mustWait reports whether a frame is to be held, the first one: because it publishes and may not, or
// answers are kept.
func (s *Session) mustWait(f wire.Frame) bool {
	return s.state == open && (s.wait.newcomer || s.reading.PublishesWait() || s.conn.Load().Kept()) && s.holdsBack(f)
}

// holdsBack is mustWait where there is something to wait for.
func (s *Session) holdsBack(f wire.Frame) bool {
	if s.wait.newcomer && f.Op == wire.OpPublish {
		s.wait.newcomer = false
		s.slow()
	}
	if f.Op == wire.OpPublish && s.stopped() {
		s.wait.stop = true
		return true
	}
	if !s.conn.Load().Kept() {
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

// stopped reports whether what publishes is to be held.
func (s *Session) stopped() bool {
	return s.state == open && s.reading.PublishesWait() && !s.conn.Load().MayPublish()
}

// stopInFrame stops reading in the middle of a frame, if that publishes and must wait: b is what is there of it.
func (s *Session) stopInFrame(b []byte) {
	if !s.wait.on && len(b) > opAt && wire.Op(b[opAt]) == wire.OpPublish && s.stopped() {
		s.wait.stop = true
		s.startWait()
	}
}

// opAt is where a frame's op is, behind its length.
const opAt = 4

// hold keeps a frame, and what comes behind it, but for signs of life.
func (s *Session) hold(f wire.Frame, frame []byte) {
	switch f.Op {
	case wire.OpPing:
		s.pong()
	case wire.OpPong:
	default:
		s.wait.held = append(s.wait.held, frame...)
		s.startWait()
	}
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
	s.conn.Load().Holds(true)
	s.await()
}

// readHeld has the connection read on, or not, as what is held has it. Called whenever that may have changed.
func (s *Session) readHeld() {
	w := &s.wait
	still := w.on && (!w.stop || w.fault != nil || len(w.held)+w.rest > heldMost)
	if still == w.still {
		return
	}
	if w.still = still; still {
		s.pause(pauseHeld)
	} else {
		s.resume(pauseHeld)
	}
}

// await has goOn called when there may be nothing left to wait for.
func (s *Session) await() {
	s.wait.asked.Store(true)
	waits := s.wait.stop && s.stopped() || !s.wait.stop && s.conn.Load().Kept()
	if !waits { // the reason went away in between, and nobody was told
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
	if fault == nil && len(held) == 0 && s.stopped() { // in the middle of a frame
		s.await()
		return
	}
	s.wait.drop()
	s.wait.held = held[:0] // what is held again moves to its front
	s.take(held, false)
	if fault != nil {
		s.fatal(rid, *fault)
	}
	if !s.wait.on {
		s.wait.held = nil
		s.conn.Load().Holds(false)
	}
	s.readHeld()
}
