package amqp

import (
	"fmt"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/table"
)

// qos is basic.qos in RabbitMQ's meaning (see broker.Channel.Qos).
func (ch *channel) qos(args []byte) {
	var m amqp.BasicQos
	if !ch.s.decode(&m, args) {
		return
	}
	if m.PrefetchSize != 0 {
		ch.fail(amqp.CodeNotImplemented, fmt.Sprintf("prefetch_size!=0 (%d)", m.PrefetchSize), m.ID())
		return
	}
	if !ch.settled(m.ID()) {
		return
	}
	ch.reply(&amqp.BasicQosOk{}) // before what it lets through
	ch.ok(ch.bc.Qos(m.PrefetchCount, m.Global), m.ID())
}

// consume is basic.consume. no-local is ignored, as RabbitMQ does.
func (ch *channel) consume(args []byte) {
	var m amqp.BasicConsume
	if !ch.s.decode(&m, args) {
		return
	}
	arguments, ok := ch.args(m.Arguments, m.ID())
	if !ok {
		return
	}
	queue, ok := ch.queueName(m.Queue, verbatim, m.ID())
	if !ok {
		return
	}
	c, e := ch.bc.Consume(&broker.ConsumeArgs{
		Queue: queue, Tag: string(m.ConsumerTag), NoAck: m.NoAck, Exclusive: m.Exclusive, Args: arguments,
	})
	if !ch.ok(e, m.ID()) {
		return
	}
	c.Prefix = amqp.AppendDeliverPrefix(c.Prefix, ch.id, c.Tag)
	if !m.NoWait {
		ch.reply(&amqp.BasicConsumeOk{ConsumerTag: []byte(c.Tag)})
	}
	c.Start()
}

// cancel is basic.cancel; an unknown tag is no error.
func (ch *channel) cancel(args []byte) {
	var m amqp.BasicCancel
	if !ch.s.decode(&m, args) {
		return
	}
	ch.bc.Cancel(string(m.ConsumerTag))
	if !m.NoWait {
		ch.reply(&amqp.BasicCancelOk{ConsumerTag: m.ConsumerTag})
	}
}

// get is basic.get.
func (ch *channel) get(args []byte) {
	var m amqp.BasicGet
	if !ch.s.decode(&m, args) {
		return
	}
	queue, ok := ch.queueName(m.Queue, verbatim, m.ID())
	if !ok {
		return
	}
	ch.s.answered = true
	ok, e := ch.bc.Get(queue, m.NoAck, ch.sendGetOk)
	if ch.ok(e, m.ID()) && !ok {
		ch.reply(&amqp.BasicGetEmpty{})
	}
}

// sendGetOk is called with the outbox locked.
func (ch *channel) sendGetOk(d *broker.Delivery, remaining int) {
	m := amqp.BasicGetOk{
		DeliveryTag: d.Tag, Redelivered: d.Redelivered,
		Exchange: d.Msg.Exchange(), RoutingKey: d.Msg.Key(), MessageCount: uint32(remaining),
	}
	out := ch.s.out
	out.Put(m.AppendFrame(out.Tail(amqp.FrameOverhead+4+8+1+1+255+1+255+4), ch.id))
	ch.sendContent(d.Msg, d.Count)
}

// Deliver implements broker.Sink: basic.deliver and its content. The outbox is locked.
func (ch *channel) Deliver(d *broker.Delivery) {
	m := d.Msg
	out := ch.s.out
	exchange, key, props, body := m.Exchange(), m.Key(), m.Props(), m.Body()
	if m.Encoding != message.AMQP || len(body) >= refBytes || d.Count != 0 {
		out.Put(amqp.AppendDeliver(out.Tail(amqp.DeliverLen(d.Consumer.Prefix, exchange, key)),
			d.Consumer.Prefix, d.Tag, d.Redelivered, exchange, key))
		ch.sendContent(m, d.Count)
		return
	}
	frameMax := ch.s.frameMax
	b := out.Tail(amqp.DeliverLen(d.Consumer.Prefix, exchange, key) + amqp.HeaderLen(len(props)) + amqp.BodyLen(len(body), frameMax))
	b = amqp.AppendDeliver(b, d.Consumer.Prefix, d.Tag, d.Redelivered, exchange, key)
	b = amqp.AppendContentHeader(b, ch.id, len(body), props)
	out.Put(amqp.AppendBody(b, ch.id, body, frameMax))
}

// sendContent stages a content header and a body. count is Delivery.Count. The outbox is locked.
func (ch *channel) sendContent(m *message.Message, count int64) {
	out, frameMax := ch.s.out, ch.s.frameMax
	props, body := m.Props(), m.Body()
	if m.Encoding != message.AMQP || count != 0 {
		props = ch.convert(m, count)
	}
	if len(body) < refBytes {
		b := out.Tail(amqp.HeaderLen(len(props)) + amqp.BodyLen(len(body), frameMax))
		b = amqp.AppendContentHeader(b, ch.id, len(body), props)
		out.Put(amqp.AppendBody(b, ch.id, body, frameMax))
		return
	}
	limit := int(frameMax) - amqp.FrameOverhead
	out.Put(amqp.AppendContentHeader(out.Tail(amqp.HeaderLen(len(props))), ch.id, len(body), props))
	for len(body) > 0 {
		part := body[:min(len(body), limit)]
		body = body[len(part):]
		out.Put(amqp.AppendBodyHead(out.Tail(amqp.FrameOverhead), ch.id, len(part)))
		m.Buf().Retain()
		out.Ref(m.Buf(), part)
		out.Put(amqp.AppendFrameEnd(out.Tail(1)))
	}
}

// convert spells the properties of another protocol's message in AMQP, or those with a delivery count
// when there is one, into the session's scratch that the outbox's lock guards. Properties that do not
// decode were checked when they were published: then the message goes out without any.
func (ch *channel) convert(m *message.Message, count int64) []byte {
	p, err := ch.conn.Properties(m)
	if err != nil {
		p.Has = 0
	}
	if count != 0 {
		p.Headers = broker.WithDeliveryCount(p.Headers, count)
		p.Has |= table.HasHeaders
	}
	props := amqp.PropertyCodec{}.Append(ch.s.props[:0], &p)
	if cap(props) <= keptMeta {
		ch.s.props = props
	}
	return props
}

// Return implements broker.Sink: a mandatory message that no queue received. The outbox is locked.
func (ch *channel) Return(_ uint64, m *message.Message) {
	r := amqp.BasicReturn{
		ReplyCode: amqp.CodeNoRoute, ReplyText: []byte("NO_ROUTE"), Exchange: m.Exchange(), RoutingKey: m.Key(),
	}
	out := ch.s.out
	out.Put(r.AppendFrame(out.Tail(amqp.FrameOverhead+4+2+9+1+255+1+255), ch.id))
	ch.sendContent(m, 0)
}

// Cancelled implements broker.Sink: basic.cancel to a client that asked for it. The outbox is locked.
func (ch *channel) Cancelled(c *broker.Consumer, _ *broker.Error) {
	if !ch.s.wantsCancel {
		return
	}
	m := amqp.BasicCancel{ConsumerTag: []byte(c.Tag), NoWait: true}
	out := ch.s.out
	out.Put(m.AppendFrame(out.Tail(amqp.FrameOverhead+4+1+len(c.Tag)+1), ch.id))
}

// ack is basic.ack.
func (ch *channel) ack(args []byte) {
	var m amqp.BasicAck
	if err := m.Decode(args); err != nil {
		ch.s.undecoded(err, args, amqp.IDBasicAck)
		return
	}
	if !ch.idle(amqp.IDBasicAck) {
		return
	}
	if e := ch.bc.Ack(m.DeliveryTag, m.Multiple); e != nil {
		ch.refused(e, amqp.IDBasicAck)
	}
}

// nack is basic.nack, reject is basic.reject.
func (ch *channel) nack(args []byte) {
	var m amqp.BasicNack
	if ch.s.decode(&m, args) {
		ch.ok(ch.bc.Nack(m.DeliveryTag, m.Multiple, m.Requeue), m.ID())
	}
}

func (ch *channel) reject(args []byte) {
	var m amqp.BasicReject
	if ch.s.decode(&m, args) {
		ch.ok(ch.bc.Reject(m.DeliveryTag, m.Requeue), m.ID())
	}
}

// recover is basic.recover, recoverAsync the same without an answer. Only requeue=true exists. The
// answer goes out before what is delivered again.
func (ch *channel) recover(args []byte) {
	var m amqp.BasicRecover
	if ch.s.decode(&m, args) && ch.recoverable(m.Requeue, m.ID()) {
		ch.reply(&amqp.BasicRecoverOk{})
		ch.ok(ch.bc.Recover(), m.ID())
	}
}

func (ch *channel) recoverAsync(args []byte) {
	var m amqp.BasicRecoverAsync
	if ch.s.decode(&m, args) && ch.recoverable(m.Requeue, m.ID()) {
		ch.ok(ch.bc.Recover(), m.ID())
	}
}

// late closes the channel for a delivery that was not acknowledged in time. Answers that are kept come first: it is
// found again. Outside of a turn.
func (ch *channel) late(bc *broker.Channel) {
	if ch.s.state != running || ch.bc != bc || bc.Kept() {
		return
	}
	if _, e := bc.Late(); e != nil {
		ch.raise(codeOf(e.Kind), e.Text, 0)
		ch.s.endTurn()
	}
}

func (ch *channel) recoverable(requeue bool, id amqp.MethodID) bool {
	if !requeue {
		ch.fail(amqp.CodeNotImplemented, "requeue=false", id)
		return false
	}
	return ch.settled(id)
}
