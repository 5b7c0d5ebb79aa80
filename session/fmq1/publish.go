package fmq1

import (
	"bytes"
	"log/slog"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/message"
	wire "github.com/firemq/firemq/frames/fmq1"
)

// maxExpiration is the longest time to live of a message in ms, ten years, as RabbitMQ has it.
const maxExpiration = 315360000000

// frameReserve is what a deliver frame may need beside a message's names, maps and body: a message is
// taken only if it can be delivered in one frame, too.
const frameReserve = wire.Overhead + 2

// replyToGrowth is how much longer than the pseudo-queue's name the token is that takes its place.
const replyToGrowth = 24

// delayGrowth is by how much longer a delay may be with a sign than without.
const delayGrowth = 8

// noMaps are the stored property bytes of a message without properties and headers.
var noMaps = []byte{0x80, 0x80}

// publish hands one message to the broker. Its confirm comes through sink; a refusal by the broker or a
// malformed header is answered here, with a confirm when the client wanted one.
func (s *Session) publish(f wire.Frame) {
	if s.alarm.Load() != 0 {
		s.throttle = true
	}
	p := &s.pub
	err := tooLarge(f)
	if err == nil {
		err = p.Decode(f.Header)
	}
	if err != nil {
		if seq := wire.Request(f.Header, "seq"); s.inSequence(seq) {
			s.refuse(seq, malformed(err))
		}
		return
	}
	if !s.inSequence(p.Seq) {
		return
	}
	if p.Expiration > maxExpiration {
		s.refuse(p.Seq, faultOf(wire.PreconditionFailed, "invalid expiration '%d': {value_too_large,%d}", p.Expiration, p.Expiration))
		return
	}
	size := len(p.Exchange) + len(p.Key) + len(p.Props) + len(p.Headers) + len(f.Payload)
	replies := string(p.ReplyTo) == broker.ReplyTo
	if replies {
		size += replyToGrowth
	}
	delays := bytes.Contains(p.Headers, headerDelay)
	if delays {
		size += delayGrowth
	}
	if size > int(s.opt.MaxFrame)-frameReserve {
		s.refuse(p.Seq, misfit(len(f.Payload), s.opt.MaxFrame))
		return
	}
	if len(f.Payload) > s.opt.MaxMessageSize {
		s.refuse(p.Seq, faultOf(wire.PreconditionFailed, "message size %d is larger than configured max size %d", len(f.Payload), s.opt.MaxMessageSize))
		return
	}
	s.carryOut()
	s.args = broker.Publish{Seq: p.Seq, Mandatory: p.Mandatory}
	attr := message.Attributes{
		Encoding: message.FMQ1, Persistent: p.Persistent, Priority: p.Priority, HasHeaders: p.HasHeaders(), Expiration: p.Expiration,
	}
	maps, blind := noMaps, []byte(nil)
	if len(p.Props) > 0 || len(p.Headers) > 0 {
		s.props = appendMap(appendMap(s.props[:0], p.Props), p.Headers)
		maps = s.props
		if replies || bytes.Contains(p.Headers, headerCC) || delays {
			maps, blind = s.rewrite(&attr, maps)
		}
	}
	m := message.NewBlind(attr, p.Exchange, p.Key, blind, maps, len(f.Payload))
	copy(m.Body(), f.Payload)
	s.args.Msg = m
	if len(p.UserID) > 0 {
		if s.args.UserID = s.user; string(p.UserID) != s.user {
			s.args.UserID = string(p.UserID)
		}
	}
	if cap(s.props) > keptScratch {
		s.props = nil
	}
	if e := s.ch.Publish(&s.args); e != nil {
		s.refuse(p.Seq, refused(e))
	}
}

// headerCC is in the header bytes of every message that has a CC or a BCC header, headerDelay in
// those of one that may ask for a delay.
var (
	headerCC    = []byte("CC")
	headerDelay = []byte("x-delay")
)

// rewrite carries out direct reply-to, sender-selected distribution and delays, for messages that may
// ask for one of them: it notes further keys and faults in s.args and the delay in attr, and gives the
// property bytes to store.
func (s *Session) rewrite(attr *message.Attributes, maps []byte) (stored, blind []byte) {
	props, err := wire.Codec{}.Decode(maps)
	if err != nil {
		panic("BUG: fmq1: properties that were checked do not decode: " + err.Error())
	}
	if props.ReplyTo == broker.ReplyTo {
		if props.ReplyTo = s.ch.ReplyTo(); props.ReplyTo == "" {
			s.args.Fault = broker.NoReplyConsumer
		}
	}
	selected, fault := broker.Select(props.Headers)
	if s.args.Fault == "" {
		s.args.Fault = fault
	}
	s.args.Keys = selected.Keys
	if selected.BCC {
		props.Headers = broker.WithoutBCC(props.Headers)
	}
	props.Headers, _ = s.b.Delay(attr, props.Headers)
	return wire.Codec{}.Append(nil, &props), selected.Blind
}

func appendMap(dst, m []byte) []byte {
	if len(m) == 0 {
		return append(dst, noMaps[0])
	}
	return append(dst, m...)
}

// inSequence checks that a publish that wants a confirm has the next number; otherwise the connection
// ends, because confirms would be about other messages than the client thinks.
func (s *Session) inSequence(seq uint64) bool {
	if seq == 0 {
		return true
	}
	if seq != s.lastSeq+1 {
		s.fatal(0, faultOf(wire.CommandInvalid, "publish has seq %d, expected %d", seq, s.lastSeq+1))
		return false
	}
	s.lastSeq = seq
	return true
}

// refuse answers a publish that the broker does not take.
func (s *Session) refuse(seq uint64, f fault) {
	if seq == 0 {
		s.fail(0, f)
		return
	}
	s.log(slog.LevelWarn, "publish refused", f)
	s.answered.Store(true)
	s.o.Lock()
	s.stageNack(seq, f)
	s.unlock()
}
