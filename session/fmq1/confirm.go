package fmq1

import (
	"github.com/firemq/firemq/broker"
	wire "github.com/firemq/firemq/frames/fmq1"
)

// The protocol's only positive confirm is cumulative. The broker confirms a channel's publishes in the
// order in which they were published, so all that it confirmed under one lock of the outbox is one
// frame, staged when the lock is given back. Refusals are staged at once, which puts them before the
// upto that covers them.

// Confirm: see broker.Sink.
func (k *sink) Confirm(seq uint64, _ bool) { k.upto = max(k.upto, seq) }

// Nack: see broker.Sink.
func (k *sink) Nack(seq uint64, e *broker.Error) { (*Session)(k).stageNack(seq, refused(e)) }

// stageUpto stages what was confirmed since the last time. Outbox locked.
func (s *Session) stageUpto() {
	if s.upto == s.told {
		return
	}
	s.told = s.upto
	b := s.o.Tail(wire.Overhead)
	start := len(b)
	m := wire.Confirm{UpTo: s.upto}
	s.o.Put(wire.End(m.AppendTo(wire.Begin(b, wire.OpConfirm)), start, 0))
}

// stageNack stages the refusal of one publish. Outbox locked.
func (s *Session) stageNack(seq uint64, f fault) {
	b := s.o.Tail(wire.Overhead + len(f.text))
	start := len(b)
	m := wire.Confirm{Seq: seq, Nack: true, Code: f.code, Msg: []byte(f.text)}
	s.o.Put(wire.End(m.AppendTo(wire.Begin(b, wire.OpConfirm)), start, 0))
}
