package broker

import (
	"math"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
)

// The firehose: while a vhost is traced (VHostMeta.Tracing), every message that a client publishes in it
// is copied to TraceExchange with the key publish.EXCHANGE, and every one that a client gets with
// deliver.QUEUE. The copy has the body; its headers say what the message was, as RabbitMQ's do.
//
// While it is off a batch of publishes or deliveries pays one atomic load. While it is on:
//   - what came through TraceExchange is not copied again, a dead letter of it neither, so nothing feeds itself;
//   - nothing is copied during an alarm, which pauses publishers but not the deliveries that are traced too;
//   - a delivery is copied at the end of its turn, because its queue is locked until then.

// TraceExchange is the exchange of the firehose, in every vhost.
const TraceExchange = "amq.rabbitmq.trace"

// tap is a delivery to copy, with a reference to its message.
type tap struct {
	ch          *Channel
	queue       string
	msg         *message.Message
	redelivered bool
}

// setMeta notes something else about a vhost. topo locked.
func (v *VHost) setMeta(m VHostMeta) {
	v.meta = m
	v.traced.Store(m.Tracing)
}

// tapIn copies messages that were published and routed.
func (ch *Channel) tapIn(t *turn, pubs []publish) {
	for i := range pubs {
		p := &pubs[i]
		routed := make([]table.Value, 0, len(p.queues))
		for _, q := range p.queues {
			if !q.replies { // a reply reaches its requester without a queue, as far as clients know
				routed = append(routed, table.StringValue(q.name))
			}
		}
		ch.grown += t.trace(ch, p.msg, "publish."+string(p.msg.Exchange()), nil,
			table.Table{{Name: "routed_queues", Value: table.ArrayValue(routed...)}})
	}
}

// tapOut has a delivery of q to ch copied at the end of the turn. q is locked.
func (t *turn) tapOut(ch *Channel, q *Queue, m *message.Message, redelivered bool) {
	if string(m.Exchange()) == TraceExchange {
		return
	}
	m.Retain(1)
	t.taps = append(t.taps, tap{ch, q.name, m, redelivered})
}

// copyTaps copies the deliveries that the turn collected. No lock is held.
func (t *turn) copyTaps() {
	taps := t.taps
	t.taps = nil // copies are not traced, but others may be dispatched beside them
	for i := range taps {
		x := &taps[i]
		n := int32(0)
		if x.redelivered {
			n = 1
		}
		t.trace(x.ch, x.msg, "deliver."+x.queue, table.Table{{Name: "redelivered", Value: table.Int32Value(n)}}, nil)
		x.msg.Release()
	}
	clear(taps)
	if len(t.taps) == 0 {
		t.taps = kept(taps)
	}
}

// trace publishes one copy and gives its size in memory, 0 if there is none. before and after are the
// headers of this kind of copy, on both sides of those that all have.
func (t *turn) trace(ch *Channel, m *message.Message, key string, before, after table.Table) int64 {
	b, vhost := t.b, ch.conn.vhost.name
	if b.alarm.Load() != 0 {
		b.counters.TraceDropped.Add(1)
		return 0
	}
	if len(key) > message.MaxName {
		key = key[:message.MaxName]
	}
	c := traceCopy{ch: ch, m: m, before: before, after: after}
	queues, _ := b.routes.RouteKeys(nil, vhost, TraceExchange, [][]byte{[]byte(key)}, &c)
	if len(queues) == 0 {
		return 0
	}
	c.build()
	if c.err != nil {
		b.log.Error("message not traced: its properties cannot be read", "vhost", vhost, "key", key, "error", c.err)
		return 0
	}
	if c.again {
		return 0
	}
	a := message.Attributes{Encoding: m.Encoding, HasHeaders: true, Expiration: -1}
	out := message.New(a, []byte(TraceExchange), []byte(key), b.codecs[m.Encoding].Append(nil, &c.props), len(m.Body()))
	copy(out.Body(), m.Body())
	size := int64(cap(out.Buf().B)) + messageCost
	b.counters.Traced.Add(1)
	b.enqueue(t, []publish{{msg: out, queues: queues, dead: true}})
	return size
}

// traceCopy are the properties of a copy, as route.Message too. They are made when they are needed: mostly a key
// is all that routing asks for, and there is no queue.
type traceCopy struct {
	ch            *Channel
	m             *message.Message
	before, after table.Table

	built bool
	props table.Properties // headers alone
	again bool             // the message is a dead letter of a queue of the firehose
	err   error
}

func (c *traceCopy) Headers() table.Table {
	c.build()
	return c.props.Headers
}

func (c *traceCopy) Properties() table.Properties { return table.Properties{} }

func (c *traceCopy) build() {
	if c.built {
		return
	}
	c.built = true
	conn := c.ch.conn
	p, err := conn.b.properties(c.m)
	if err != nil {
		c.err = err
		return
	}
	from, _ := p.Headers.Get("x-first-death-exchange")
	c.again = from.Str == TraceExchange
	str := table.StringValue
	keys := []table.Value{str(string(c.m.Key()))}
	for _, k := range append(ccKeys(p.Headers), blindKeys(c.m)...) {
		keys = append(keys, str(string(k)))
	}
	h := table.Table{
		{Name: "exchange_name", Value: str(string(c.m.Exchange()))},
		{Name: "routing_keys", Value: table.ArrayValue(keys...)},
		{Name: "properties", Value: table.TableValue(traceProperties(&p))},
		{Name: "node", Value: str(conn.b.opt.Node)},
	}
	h = append(h, c.before...)
	h = append(h,
		table.Field{Name: "vhost", Value: str(conn.vhost.name)},
		table.Field{Name: "connection", Value: str(conn.info.Name)},
		table.Field{Name: "channel", Value: table.Int32Value(int32(c.ch.number))},
		table.Field{Name: "user", Value: str(conn.user.Name())},
	)
	c.props = table.Properties{Has: table.HasHeaders, Headers: append(h, c.after...)}
}

// traceProperties are the properties that a message has, as RabbitMQ lists them: the last one first, and
// numbers as signed integers of 32 bits, unless one does not fit.
func traceProperties(p *table.Properties) table.Table {
	var out table.Table
	text := func(bit table.Present, name, s string) {
		if p.Has&bit != 0 {
			out = append(out, table.Field{Name: name, Value: table.StringValue(s)})
		}
	}
	number := func(bit table.Present, name string, n uint64) {
		if p.Has&bit == 0 {
			return
		}
		v := table.IntValue(int64(n))
		if n <= math.MaxInt32 {
			v = table.Int32Value(int32(n))
		}
		out = append(out, table.Field{Name: name, Value: v})
	}
	text(table.HasClusterID, "cluster_id", p.ClusterID)
	text(table.HasAppID, "app_id", p.AppID)
	text(table.HasUserID, "user_id", p.UserID)
	text(table.HasType, "type", p.Type)
	number(table.HasTimestamp, "timestamp", p.Timestamp)
	text(table.HasMessageID, "message_id", p.MessageID)
	text(table.HasExpiration, "expiration", p.Expiration)
	text(table.HasReplyTo, "reply_to", p.ReplyTo)
	text(table.HasCorrelationID, "correlation_id", p.CorrelationID)
	number(table.HasPriority, "priority", uint64(p.Priority))
	number(table.HasDeliveryMode, "delivery_mode", uint64(p.DeliveryMode))
	if p.Has&table.HasHeaders != 0 {
		out = append(out, table.Field{Name: "headers", Value: table.TableValue(p.Headers)})
	}
	text(table.HasContentEncoding, "content_encoding", p.ContentEncoding)
	text(table.HasContentType, "content_type", p.ContentType)
	return out
}
