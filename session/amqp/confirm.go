package amqp

import (
	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/frames/amqp"
)

// ackLen is the length of a basic.ack or basic.nack frame.
const ackLen = amqp.FrameOverhead + 4 + 8 + 1

// confirmSelect is confirm.select: publishes are numbered from 1 from here on.
func (ch *channel) confirmSelect(args []byte) {
	var m amqp.ConfirmSelect
	if !ch.s.decode(&m, args) || !ch.ok(ch.bc.Confirms(), m.ID()) {
		return
	}
	ch.confirms = true
	if !m.NoWait {
		ch.reply(&amqp.ConfirmSelectOk{})
	}
}

// Confirm implements broker.Sink. The outbox is locked.
func (ch *channel) Confirm(seq uint64, multiple bool) {
	m := amqp.BasicAck{DeliveryTag: seq, Multiple: multiple}
	out := ch.s.out
	out.Put(m.AppendFrame(out.Tail(ackLen), ch.id))
}

// Nack implements broker.Sink; AMQP has no place for the reason. The outbox is locked.
func (ch *channel) Nack(seq uint64, _ *broker.Error) {
	m := amqp.BasicNack{DeliveryTag: seq}
	out := ch.s.out
	out.Put(m.AppendFrame(out.Tail(ackLen), ch.id))
}
