package fmq1

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/firemq/firemq/broker"
	wire "github.com/firemq/firemq/frames/fmq1"
)

// codeFor spells the broker's refusals in FireMQ's codes.
var codeFor = [...]uint16{
	broker.NotFound:           wire.NotFound,
	broker.AccessRefused:      wire.AccessRefused,
	broker.ResourceLocked:     wire.ResourceLocked,
	broker.ExclusiveUse:       wire.ResourceLocked, // 403 on AMQP, 405 in the FireMQ protocol
	broker.PreconditionFailed: wire.PreconditionFailed,
	broker.NotAllowed:         wire.NotAllowed,
	broker.NotImplemented:     wire.NotImplemented,
	broker.ResourceError:      wire.ResourceError,
	broker.ConnectionForced:   wire.ConnectionForced,
	broker.InternalError:      wire.InternalError,
	broker.LoginRefused:       wire.AccessRefused,
	broker.LoginLimited:       wire.AccessRefused,
}

// fault is what a client is told: a code and its text, "NOT_FOUND - no queue 'q' in vhost '/'".
type fault struct {
	code uint16
	text string
}

func faultOf(code uint16, format string, args ...any) fault {
	return fault{code, wire.CodeName(code) + " - " + fmt.Sprintf(format, args...)}
}

// refused is the fault for a broker error.
func refused(e *broker.Error) fault {
	code := uint16(wire.InternalError)
	if int(e.Kind) < len(codeFor) && codeFor[e.Kind] != 0 {
		code = codeFor[e.Kind]
	}
	return fault{code, wire.CodeName(code) + " - " + e.Text}
}

// malformed is the fault for an error of the codec.
func malformed(err error) fault {
	e, ok := err.(*wire.Error)
	if !ok {
		panic("BUG: fmq1: the codec gave " + err.Error())
	}
	return faultOf(e.Code, "%s", e.Text)
}

// stage appends one frame to the outbox. Called by the reader, no lock held.
func (s *Session) stage(op wire.Op, m wire.Header) {
	s.o.Lock()
	s.o.Put(wire.Append(s.o.Tail(wire.Overhead+m.Msgsize()), op, m))
	s.unlock()
}

// unlock gives the outbox back after the reader staged something.
func (s *Session) unlock() {
	if s.o.Unlock() && !s.inTurn {
		s.o.Flush() // after a turn the transport does it
	}
}

// reply answers a request.
func (s *Session) reply(ok wire.OK) {
	s.answered.Store(true)
	s.stage(wire.OpOK, &ok)
}

// answer is reply for a request that changes the topology, once what it changed is on disk.
func (s *Session) answer(ok wire.OK) { s.inOrder(wire.OpOK, &ok) }

// log says what was refused, and whom.
func (s *Session) log(level slog.Level, what string, f fault) {
	s.opt.Log.Log(context.Background(), level, what, "peer", name(s.o), "user", s.user, "vhost", s.vhost, "code", f.code, "reason", f.text)
}

// fail refuses a request, or with rid 0 something that has none. The connection goes on.
func (s *Session) fail(rid uint64, f fault) {
	s.log(slog.LevelWarn, "request refused", f)
	e := wire.ServerError{RID: rid, Code: f.code, Msg: f.text}
	if rid != 0 && s.ch != nil {
		s.inOrder(wire.OpError, &e)
		return
	}
	s.answered.Store(true)
	s.stage(wire.OpError, &e)
}

// inOrder stages an answer, or has the broker keep it: until the disk has what it promises, or behind
// another one that is kept.
func (s *Session) inOrder(op wire.Op, m wire.Header) {
	s.answered.Store(true)
	s.frameBuf = wire.Append(s.frameBuf[:0], op, m)
	if !s.ch.Answer(s.frameBuf) {
		s.o.Lock()
		s.o.Put(append(s.o.Tail(len(s.frameBuf)), s.frameBuf...))
		s.unlock()
	}
	if cap(s.frameBuf) > keptScratch {
		s.frameBuf = nil
	}
}

// Answer: see broker.Sink.
func (k *sink) Answer(frame []byte) {
	if s := (*Session)(k); !s.quiet {
		s.o.Put(append(s.o.Tail(len(frame)), frame...))
	}
}

// failed is fail when e is one, and reports whether it was.
func (s *Session) failed(rid uint64, e *broker.Error) bool {
	if e == nil {
		return false
	}
	s.fail(rid, refused(e))
	return true
}

// fatal tells the client why and ends the connection, after the answers that are kept and the frames that are
// held. What comes behind it is dropped.
func (s *Session) fatal(rid uint64, f fault) {
	if s.state == ended || s.wait.fault != nil {
		return
	}
	if s.waits() {
		s.wait.fault, s.wait.rid = &f, rid
		s.startWait()
		s.readHeld()
		return
	}
	s.log(slog.LevelWarn, "connection error", f)
	s.endFor(rid, f)
}

// endFor is fatal for what is logged already.
func (s *Session) endFor(rid uint64, f fault) {
	s.endTurn()
	s.leave()
	s.stage(wire.OpError, &wire.ServerError{RID: rid, Code: f.code, Msg: f.text, Fatal: true})
	s.end()
}
