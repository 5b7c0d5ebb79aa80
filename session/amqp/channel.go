package amqp

import (
	"bytes"
	"fmt"
	"sync/atomic"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/table"
)

// channel is one AMQP channel: the session's half, and the broker's Sink of it.
type channel struct {
	s    *Session // immutable, like all up to the next group
	id   uint16
	conn *broker.Conn

	// Owned by the connection's reader.
	bc       *broker.Channel // nil once the server closed the channel and waits for close-ok
	queue    string          // the last one declared, meant by an empty name
	confirms bool
	seq      uint64 // of the last publish in confirm mode
	content  content

	committing atomic.Bool // tx.commit is not answered yet; cleared by Committed
}

// content is a publish whose frames are not all here yet.
type content struct {
	stage     stage
	mandatory bool
	exchange  int    // length of the exchange name in meta
	key       int    // length of the routing key behind it
	meta      []byte // exchange, key, properties
	letter
	size, got int              // body bytes announced and received
	held      int              // bytes counted by Conn.Hold
	early     []byte           // the body's start, as long as msg is not made
	msg       *message.Message // nil until enough of the body came
}

// stage says which frame a channel expects next.
type stage uint8

const (
	expectMethod stage = iota
	expectContentHeader
	expectBody
)

// channel finds an open or closing channel by its number.
func (s *Session) channel(id uint16) *channel {
	if int(id) < len(s.channels) {
		return s.channels[id]
	}
	return s.others[id] // empty below directChannels
}

func (s *Session) addChannel(ch *channel) {
	s.open++
	if ch.id >= directChannels {
		if s.others == nil {
			s.others = make(map[uint16]*channel)
		}
		s.others[ch.id] = ch
		return
	}
	for int(ch.id) >= len(s.channels) {
		s.channels = append(s.channels, nil)
	}
	s.channels[ch.id] = ch
}

func (s *Session) removeChannel(ch *channel) {
	s.open--
	if ch.id >= directChannels {
		delete(s.others, ch.id)
		return
	}
	s.channels[ch.id] = nil
}

// channelMethod carries out a method frame of a running connection's channel, and with it the
// content in rest that belongs to it; it returns the length of that.
func (s *Session) channelMethod(f amqp.Frame, rest []byte) int {
	id, args, ok := amqp.CutMethod(f.Payload)
	ch := s.channel(f.Channel)
	if ch != nil && ch.bc == nil {
		ch.whileClosing(id)
		return 0
	}
	switch {
	case !ok:
		s.unknownFrame(f)
	case ch == nil && id == amqp.IDChannelOpen:
		s.openChannel(f.Channel, args)
	case ch == nil && !id.Known():
		s.fail(amqp.CodeCommandInvalid, "unimplemented method", id)
	case ch == nil:
		s.fail(amqp.CodeChannelError, "expected 'channel.open'", id)
	case ch.content.stage != expectMethod:
		ch.unexpected(f)
	case id == amqp.IDBasicPublish:
		if ch.idle(id) {
			return ch.publishMethod(args, rest)
		}
	case id == amqp.IDBasicAck:
		ch.ack(args)
	default:
		ch.method(id, args)
	}
	return 0
}

// openChannel is channel.open.
func (s *Session) openChannel(id uint16, args []byte) {
	var m amqp.ChannelOpen
	if !s.decode(&m, args) {
		return
	}
	if s.open >= int(s.channelMax) {
		s.fail(amqp.CodeNotAllowed, fmt.Sprintf("number of channels opened (%d) has reached the negotiated channel_max (%d)", s.open, s.channelMax), 0)
		return
	}
	ch := &channel{s: s, id: id, conn: s.conn}
	bc, e := s.conn.Open(id, ch)
	if e != nil {
		s.fail(codeOf(e.Kind), e.Text, 0) // like RabbitMQ, without naming the method
		return
	}
	ch.bc = bc
	s.addChannel(ch)
	ch.reply(&amqp.ChannelOpenOk{})
}

// whileClosing ignores what a client sent before it saw the server's channel.close. Content
// frames do not even come here.
func (ch *channel) whileClosing(id amqp.MethodID) {
	switch id {
	case amqp.IDChannelClose:
		ch.reply(&amqp.ChannelCloseOk{})
	case amqp.IDChannelCloseOk:
		ch.s.removeChannel(ch)
	}
}

// idle checks that no commit is being answered: methods behind it would see half of it.
func (ch *channel) idle(id amqp.MethodID) bool {
	if ch.committing.Load() {
		ch.fail(amqp.CodeChannelError, "unexpected command while processing 'tx.commit'", id)
		return false
	}
	return true
}

// method carries out every method but the two hottest.
func (ch *channel) method(id amqp.MethodID, args []byte) {
	if id == amqp.IDChannelClose {
		var m amqp.ChannelClose
		if ch.s.decode(&m, args) {
			ch.closed()
		}
		return
	}
	if !ch.idle(id) {
		return
	}
	handler := handlerOf(id)
	switch {
	case handler != nil:
		handler(ch, args)
	case id == amqp.IDChannelOpen:
		ch.fail(amqp.CodeChannelError, "second 'channel.open' seen", id)
	default:
		ch.fail(amqp.CodeCommandInvalid, "unimplemented method", id)
	}
}

// handlerOf gives the handler of a method that a client may send on an open channel.
func handlerOf(id amqp.MethodID) func(*channel, []byte) {
	switch id {
	case amqp.IDChannelFlow:
		return (*channel).flow
	case amqp.IDAccessRequest:
		return (*channel).accessRequest
	case amqp.IDExchangeDeclare:
		return (*channel).exchangeDeclare
	case amqp.IDExchangeDelete:
		return (*channel).exchangeDelete
	case amqp.IDExchangeBind:
		return (*channel).exchangeBind
	case amqp.IDExchangeUnbind:
		return (*channel).exchangeUnbind
	case amqp.IDQueueDeclare:
		return (*channel).queueDeclare
	case amqp.IDQueueBind:
		return (*channel).queueBind
	case amqp.IDQueueUnbind:
		return (*channel).queueUnbind
	case amqp.IDQueuePurge:
		return (*channel).queuePurge
	case amqp.IDQueueDelete:
		return (*channel).queueDelete
	case amqp.IDBasicQos:
		return (*channel).qos
	case amqp.IDBasicConsume:
		return (*channel).consume
	case amqp.IDBasicCancel:
		return (*channel).cancel
	case amqp.IDBasicGet:
		return (*channel).get
	case amqp.IDBasicNack:
		return (*channel).nack
	case amqp.IDBasicReject:
		return (*channel).reject
	case amqp.IDBasicRecover:
		return (*channel).recover
	case amqp.IDBasicRecoverAsync:
		return (*channel).recoverAsync
	case amqp.IDConfirmSelect:
		return (*channel).confirmSelect
	case amqp.IDTxSelect:
		return (*channel).txSelect
	case amqp.IDTxCommit:
		return (*channel).txCommit
	case amqp.IDTxRollback:
		return (*channel).txRollback
	}
	return nil
}

// closed is the client's channel.close. An ack before it that was wrong still gets its error.
func (ch *channel) closed() {
	if e := ch.bc.Settle(); e != nil {
		ch.refused(e, 0)
		ch.whileClosing(amqp.IDChannelClose)
		return
	}
	ch.detach()
	ch.s.removeChannel(ch)
	ch.reply(&amqp.ChannelCloseOk{})
}

// detach ends the broker's side of the channel. What it collected and did not settle is dropped.
func (ch *channel) detach() {
	ch.dropContent()
	ch.bc.Close()
	ch.bc = nil
}

// fail raises an exception of the channel, or of the connection when the code is a hard one (1.2).
// The error of an ack collected before comes first.
func (ch *channel) fail(code uint16, text string, id amqp.MethodID) {
	if e := ch.bc.Settle(); e != nil {
		ch.refused(e, id)
		return
	}
	ch.raise(code, text, id)
}

// refused raises the error of a verb; id is its method. An error that belongs to an ack collected
// before names that one instead.
func (ch *channel) refused(e *broker.Error, id amqp.MethodID) {
	if of := verbMethod(ch.bc.FailedVerb()); of != 0 {
		id = of
	}
	ch.raise(codeOf(e.Kind), e.Text, id)
}

// raise closes the channel or the connection. Until its close-ok everything on the channel is ignored.
func (ch *channel) raise(code uint16, text string, id amqp.MethodID) {
	if amqp.HardCode(code) {
		ch.s.fail(code, text, id)
		return
	}
	if ch.bc.Kept() {
		ch.s.later(func() {
			if ch.bc != nil {
				ch.raise(code, text, id)
			}
		})
		return
	}
	ch.s.log.Warn("channel error", "peer", ch.s.info.Name, "user", ch.s.login(), "vhost", ch.s.info.VHost, "channel", ch.id, "code", code, "reason", text, "method", id)
	ch.detach()
	ch.reply(&amqp.ChannelClose{
		ReplyCode: code, ReplyText: replyText(code, text), ClassID: id.Class(), MethodID: id.Method(),
	})
}

// ok reports whether a verb succeeded; else it raises its error.
func (ch *channel) ok(e *broker.Error, id amqp.MethodID) bool {
	if e != nil {
		ch.refused(e, id)
		return false
	}
	return true
}

// settled carries out collected acks before a verb of the connection, which does not do so by
// itself; their errors come first.
func (ch *channel) settled(id amqp.MethodID) bool { return ch.ok(ch.bc.Settle(), id) }

// reply stages one method frame on this channel.
func (ch *channel) reply(m amqp.Method) { ch.s.send(ch.id, m) }

// answer is reply for a verb of the topology, once what it changed is on disk.
func (ch *channel) answer(m amqp.Method) {
	s := ch.s
	s.scratch = m.AppendFrame(s.scratch[:0], ch.id)
	if ch.bc.Answer(s.scratch) {
		s.answered = true
		return
	}
	s.stage(s.scratch)
}

// Answer implements broker.Sink. The outbox is locked.
func (ch *channel) Answer(frame []byte) {
	out := ch.s.out
	out.Put(append(out.Tail(len(frame)), frame...))
}

// args decodes a table of arguments, see Session.decodeTable.
func (ch *channel) args(src []byte, id amqp.MethodID) (table.Table, bool) {
	return ch.s.decodeTable(src, id)
}

// verbatim makes a string of a name that only says which queue is meant.
func verbatim(b []byte) string { return string(b) }

// name makes a string of the name of a queue or exchange that is declared, deleted or bound. RabbitMQ drops CR and LF
// from it.
func name(b []byte) string {
	if bytes.ContainsAny(b, "\r\n") {
		b = bytes.Map(func(r rune) rune {
			if r == '\r' || r == '\n' {
				return -1
			}
			return r
		}, b)
	}
	return string(b)
}

// queueName is spell, which is name or verbatim, for a method where an empty one means the last queue declared on
// the channel; false: there is none, and the channel is closed.
func (ch *channel) queueName(b []byte, spell func([]byte) string, id amqp.MethodID) (string, bool) {
	if len(b) > 0 {
		return spell(b), true
	}
	if ch.queue == "" {
		ch.fail(amqp.CodeNotFound, "no previously declared queue", id)
		return "", false
	}
	return ch.queue, true
}

// flow is channel.flow: the server never stops sending on request.
func (ch *channel) flow(args []byte) {
	var m amqp.ChannelFlow
	if !ch.s.decode(&m, args) {
		return
	}
	if !m.Active {
		ch.fail(amqp.CodeNotImplemented, "active=false", m.ID())
		return
	}
	ch.reply(&amqp.ChannelFlowOk{Active: true})
}

// accessRequest is the ticket of AMQP 0-8, which old clients still ask for.
func (ch *channel) accessRequest(args []byte) {
	var m amqp.AccessRequest
	if ch.s.decode(&m, args) {
		ch.reply(&amqp.AccessRequestOk{Ticket: 1})
	}
}

var _ broker.Sink = (*channel)(nil)
