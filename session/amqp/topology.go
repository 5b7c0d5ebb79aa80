package amqp

import (
	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/frames/amqp"
)

func (ch *channel) exchangeDeclare(args []byte) {
	var m amqp.ExchangeDeclare
	if !ch.s.decode(&m, args) {
		return
	}
	arguments, ok := ch.args(m.Arguments, m.ID())
	if !ok || !ch.settled(m.ID()) {
		return
	}
	e := ch.conn.DeclareExchange(&broker.ExchangeDeclare{
		Name: name(m.Exchange), Type: string(m.Type), Durable: m.Durable, AutoDelete: m.AutoDelete,
		Internal: m.Internal, Passive: m.Passive, Args: arguments,
	})
	if ch.ok(e, m.ID()) && !m.NoWait {
		ch.answer(&amqp.ExchangeDeclareOk{})
	}
}

func (ch *channel) exchangeDelete(args []byte) {
	var m amqp.ExchangeDelete
	if !ch.s.decode(&m, args) || !ch.settled(m.ID()) {
		return
	}
	if ch.ok(ch.conn.DeleteExchange(name(m.Exchange), m.IfUnused), m.ID()) && !m.NoWait {
		ch.answer(&amqp.ExchangeDeleteOk{})
	}
}

func (ch *channel) exchangeBind(args []byte) {
	var m amqp.ExchangeBind
	if !ch.s.decode(&m, args) {
		return
	}
	arguments, ok := ch.args(m.Arguments, m.ID())
	if !ok || !ch.settled(m.ID()) {
		return
	}
	e := ch.conn.BindExchange(name(m.Destination), name(m.Source), string(m.RoutingKey), arguments)
	if ch.ok(e, m.ID()) && !m.NoWait {
		ch.answer(&amqp.ExchangeBindOk{})
	}
}

func (ch *channel) exchangeUnbind(args []byte) {
	var m amqp.ExchangeUnbind
	if !ch.s.decode(&m, args) {
		return
	}
	arguments, ok := ch.args(m.Arguments, m.ID())
	if !ok || !ch.settled(m.ID()) {
		return
	}
	e := ch.conn.UnbindExchange(name(m.Destination), name(m.Source), string(m.RoutingKey), arguments)
	if ch.ok(e, m.ID()) && !m.NoWait {
		ch.answer(&amqp.ExchangeUnbindOk{})
	}
}

func (ch *channel) queueDeclare(args []byte) {
	var m amqp.QueueDeclare
	if !ch.s.decode(&m, args) {
		return
	}
	arguments, ok := ch.args(m.Arguments, m.ID())
	if !ok || !ch.settled(m.ID()) {
		return
	}
	status, e := ch.conn.DeclareQueue(&broker.QueueDeclare{
		Name: name(m.Queue), Durable: m.Durable, Exclusive: m.Exclusive, AutoDelete: m.AutoDelete,
		Passive: m.Passive, Args: arguments,
	})
	if !ch.ok(e, m.ID()) {
		return
	}
	ch.queue = status.Name
	if !m.NoWait {
		ch.answer(&amqp.QueueDeclareOk{
			Queue: []byte(status.Name), MessageCount: uint32(status.Messages), ConsumerCount: uint32(status.Consumers),
		})
	}
}

// bindingKey is the routing key of a bind or unbind: with no queue named and no key, the
// current queue's name is meant.
func bindingKey(m []byte, given []byte, queue string) string {
	if len(m) == 0 && len(given) == 0 {
		return queue
	}
	return string(given)
}

func (ch *channel) queueBind(args []byte) {
	var m amqp.QueueBind
	if !ch.s.decode(&m, args) {
		return
	}
	arguments, ok := ch.args(m.Arguments, m.ID())
	if !ok {
		return
	}
	queue, ok := ch.queueName(m.Queue, name, m.ID())
	if !ok || !ch.settled(m.ID()) {
		return
	}
	e := ch.conn.BindQueue(queue, name(m.Exchange), bindingKey(m.Queue, m.RoutingKey, queue), arguments)
	if ch.ok(e, m.ID()) && !m.NoWait {
		ch.answer(&amqp.QueueBindOk{})
	}
}

func (ch *channel) queueUnbind(args []byte) {
	var m amqp.QueueUnbind
	if !ch.s.decode(&m, args) {
		return
	}
	arguments, ok := ch.args(m.Arguments, m.ID())
	if !ok {
		return
	}
	queue, ok := ch.queueName(m.Queue, name, m.ID())
	if !ok || !ch.settled(m.ID()) {
		return
	}
	e := ch.conn.UnbindQueue(queue, name(m.Exchange), bindingKey(m.Queue, m.RoutingKey, queue), arguments)
	if ch.ok(e, m.ID()) {
		ch.answer(&amqp.QueueUnbindOk{})
	}
}

func (ch *channel) queuePurge(args []byte) {
	var m amqp.QueuePurge
	if !ch.s.decode(&m, args) {
		return
	}
	queue, ok := ch.queueName(m.Queue, verbatim, m.ID())
	if !ok || !ch.settled(m.ID()) {
		return
	}
	n, e := ch.conn.PurgeQueue(queue)
	if ch.ok(e, m.ID()) && !m.NoWait {
		ch.answer(&amqp.QueuePurgeOk{MessageCount: uint32(n)})
	}
}

func (ch *channel) queueDelete(args []byte) {
	var m amqp.QueueDelete
	if !ch.s.decode(&m, args) {
		return
	}
	queue, ok := ch.queueName(m.Queue, name, m.ID())
	if !ok || !ch.settled(m.ID()) {
		return
	}
	n, e := ch.conn.DeleteQueue(queue, m.IfUnused, m.IfEmpty)
	if ch.ok(e, m.ID()) && !m.NoWait {
		ch.answer(&amqp.QueueDeleteOk{MessageCount: uint32(n)})
	}
}
