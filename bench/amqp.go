package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/table"
)

const (
	// amqpFrameMax is what we ask for: RabbitMQ's own.
	amqpFrameMax = 131072
	// channelID is the one channel of each connection.
	channelID = 1
)

// amqpWire is a connection with one open channel.
type amqpWire struct {
	*link
	frameMax uint32
	acks     acks
	name     string // the broker's product and version
	out      []byte // request under construction

	// The delivery whose content is under way: basic.deliver, then a header frame, then body frames.
	handle   uint32
	tag      uint64
	stage    contentStage
	size     int             // of the body
	rest     int             // still to come
	head     [stampSize]byte // the body's first bytes
	headSize int
}

type contentStage uint8

const (
	noContent contentStage = iota
	wantsHeader
	wantsBody
)

func dialAMQP(ctx context.Context, to target) (wire, error) {
	l, err := dialLink(ctx, to, amqpFrameMax+amqp.FrameOverhead)
	if err != nil {
		return nil, err
	}
	w := &amqpWire{link: l, acks: to.acks, frameMax: amqpFrameMax}
	if err := w.within(func() error { return w.open(to) }); err != nil {
		l.conn.Close()
		return nil, fmt.Errorf("log in at %s: %w", to.Addr, l.unheard(err))
	}
	return w, nil
}

// open is the handshake (2.2.4) up to an open channel.
func (w *amqpWire) open(to target) error {
	if err := w.write([]byte(amqp.ProtocolHeader)); err != nil {
		return err
	}
	var start amqp.ConnectionStart
	if err := w.answer(amqp.IDConnectionStart, &start); err != nil {
		return err
	}
	properties, err := table.Decode(start.ServerProperties)
	if err != nil {
		return fmt.Errorf("connection.start: %w", err)
	}
	product, _ := properties.Get("product")
	version, _ := properties.Get("version")
	w.name = product.Str + " " + version.Str
	capabilities := table.Table{
		{Name: "connection.blocked", Value: table.BoolValue(true)},
		{Name: "consumer_cancel_notify", Value: table.BoolValue(true)},
		{Name: "authentication_failure_close", Value: table.BoolValue(true)},
		{Name: "publisher_confirms", Value: table.BoolValue(true)},
		{Name: "basic.nack", Value: table.BoolValue(true)},
	}
	var tune amqp.ConnectionTune
	err = w.ask(&amqp.ConnectionStartOk{
		ClientProperties: table.Append(nil, table.Table{
			{Name: "product", Value: table.StringValue("firemq bench")},
			{Name: "capabilities", Value: table.TableValue(capabilities)},
		}),
		Mechanism: []byte("PLAIN"),
		Response:  []byte("\x00" + to.user + "\x00" + to.pass),
		Locale:    []byte("en_US"),
	}, 0, amqp.IDConnectionTune, &tune)
	if err != nil {
		return err
	}
	if tune.FrameMax != 0 {
		w.frameMax = min(tune.FrameMax, amqpFrameMax)
	}
	if w.frameMax < amqp.MinFrameMax {
		return fmt.Errorf("the broker's frame_max %d is below %d", w.frameMax, amqp.MinFrameMax)
	}
	// No heartbeats: a run that stalls is noticed by its own patience.
	w.out = (&amqp.ConnectionTuneOk{ChannelMax: tune.ChannelMax, FrameMax: w.frameMax}).AppendFrame(w.out[:0], 0)
	if err := w.write(w.out); err != nil {
		return err
	}
	if err := w.ask(&amqp.ConnectionOpen{VirtualHost: []byte(to.vhost)}, 0, amqp.IDConnectionOpenOk, nil); err != nil {
		return err
	}
	return w.ask(&amqp.ChannelOpen{}, channelID, amqp.IDChannelOpenOk, nil)
}

// ask sends a method and waits for its answer, decoded into reply unless that is nil.
func (w *amqpWire) ask(m amqp.Method, channel uint16, want amqp.MethodID, reply amqp.Method) error {
	w.out = m.AppendFrame(w.out[:0], channel)
	if err := w.write(w.out); err != nil {
		return err
	}
	return w.answer(want, reply)
}

// answer waits for a method. What reply decodes to is valid until the next read.
func (w *amqpWire) answer(want amqp.MethodID, reply amqp.Method) error {
	for {
		f, err := w.frame()
		if err != nil {
			return err
		}
		if f.Type == amqp.FrameHeartbeat {
			continue
		}
		id, args, _ := amqp.CutMethod(f.Payload)
		switch {
		case f.Type == amqp.FrameMethod && id == want && reply == nil:
			return nil
		case f.Type == amqp.FrameMethod && id == want:
			return reply.Decode(args)
		case f.Type == amqp.FrameMethod && (id == amqp.IDConnectionBlocked || id == amqp.IDConnectionUnblocked):
			continue
		}
		if err := unexpected(f, id, args); err != nil {
			return err
		}
		return fmt.Errorf("the broker sent %s, not %s", amqp.Snippet(f), want)
	}
}

// frame reads up to the next frame.
func (w *amqpWire) frame() (amqp.Frame, error) {
	for {
		f, n, err := amqp.Next(w.buf[w.r:w.w], w.frameMax)
		if err != nil {
			return f, w.malformed(err)
		}
		if n > 0 {
			w.r += n
			w.heard = true
			return f, nil
		}
		if err := w.fill(); err != nil {
			return f, err
		}
	}
}

// malformed explains bytes that are no frame.
func (w *amqpWire) malformed(err error) error {
	if b := w.buf[w.r:w.w]; len(b) >= 8 && string(b[:4]) == "AMQP" {
		return fmt.Errorf("the broker does not speak AMQP 0-9-1 on this port, but %d-%d-%d", b[5], b[6], b[7])
	}
	if !w.heard {
		return errors.New("the broker does not speak AMQP 0-9-1 on this port")
	}
	return fmt.Errorf("the broker sent what is not AMQP 0-9-1: %w", err)
}

// unexpected is what the broker says with a method that ends the channel or the connection.
func unexpected(f amqp.Frame, id amqp.MethodID, args []byte) error {
	if f.Type != amqp.FrameMethod {
		return nil
	}
	switch id {
	case amqp.IDConnectionClose:
		var m amqp.ConnectionClose
		if err := m.Decode(args); err != nil {
			return err
		}
		return fmt.Errorf("the broker closed the connection: %d %s", m.ReplyCode, m.ReplyText)
	case amqp.IDChannelClose:
		var m amqp.ChannelClose
		if err := m.Decode(args); err != nil {
			return err
		}
		return fmt.Errorf("the broker closed the channel: %d %s", m.ReplyCode, m.ReplyText)
	case amqp.IDBasicCancel:
		return errors.New("the broker cancelled a subscription")
	}
	return nil
}

func (w *amqpWire) declareQueue(name string, arguments table.Table) error {
	m := amqp.QueueDeclare{Queue: []byte(name), Durable: true, Arguments: table.Append(nil, arguments)}
	return w.request(&m, amqp.IDQueueDeclareOk, nil)
}

func (w *amqpWire) deleteQueue(name string) (uint64, error) {
	var ok amqp.QueueDeleteOk
	err := w.request(&amqp.QueueDelete{Queue: []byte(name)}, amqp.IDQueueDeleteOk, &ok)
	return uint64(ok.MessageCount), err
}

func (w *amqpWire) declareExchange(name, kind string) error {
	return w.request(&amqp.ExchangeDeclare{Exchange: []byte(name), Type: []byte(kind), Durable: true}, amqp.IDExchangeDeclareOk, nil)
}

func (w *amqpWire) deleteExchange(name string) error {
	return w.request(&amqp.ExchangeDelete{Exchange: []byte(name)}, amqp.IDExchangeDeleteOk, nil)
}

func (w *amqpWire) bind(exchange, queue, key string) error {
	return w.request(&amqp.QueueBind{Exchange: []byte(exchange), Queue: []byte(queue), RoutingKey: []byte(key)}, amqp.IDQueueBindOk, nil)
}

func (w *amqpWire) publishing(int) error {
	return w.request(&amqp.ConfirmSelect{}, amqp.IDConfirmSelectOk, nil)
}

// subscribe sets the prefetch of each consumer, which is RabbitMQ's meaning of global=false, and uses the
// handle in decimal as the consumer tag.
func (w *amqpWire) subscribe(queues []string, prefetch int) error {
	if err := w.request(&amqp.BasicQos{PrefetchCount: uint16(prefetch)}, amqp.IDBasicQosOk, nil); err != nil {
		return err
	}
	var b []byte
	for handle, q := range queues {
		b = (&amqp.BasicConsume{Queue: []byte(q), ConsumerTag: consumerTag(uint32(handle)), NoAck: w.acks == noAcks}).AppendFrame(b, channelID)
	}
	return w.write(b)
}

func consumerTag(handle uint32) []byte { return strconv.AppendUint(nil, uint64(handle), 10) }

func (w *amqpWire) request(m amqp.Method, want amqp.MethodID, reply amqp.Method) error {
	return w.within(func() error { return w.ask(m, channelID, want, reply) })
}

// close says goodbye, so that acks on their way are taken, but does not insist.
func (w *amqpWire) close() {
	w.within(func() error {
		m := amqp.ConnectionClose{ReplyCode: amqp.CodeReplySuccess, ReplyText: []byte("bye")}
		if err := w.write(m.AppendFrame(nil, 0)); err != nil {
			return err
		}
		for {
			f, err := w.frame()
			if err != nil {
				return err
			}
			if id, _, _ := amqp.CutMethod(f.Payload); f.Type == amqp.FrameMethod && (id == amqp.IDConnectionCloseOk || id == amqp.IDConnectionClose) {
				return nil
			}
		}
	})
	w.conn.Close()
}

func (w *amqpWire) product() string { return w.name }

func (w *amqpWire) template(m model, keys []string, size int) template {
	var t template
	for _, key := range keys {
		publish := amqp.BasicPublish{Exchange: []byte(m.exchange), RoutingKey: []byte(key)}
		t.prefix = append(t.prefix, publish.AppendFrame(nil, channelID))
	}
	t.tail = amqp.AppendContentHeader(nil, channelID, size, amqp.PropertyCodec{}.Append(nil, &m.properties))
	t.body = len(t.tail) + amqp.FrameOverhead - 1
	t.tail = amqp.AppendBody(t.tail, channelID, filler(size), w.frameMax)
	return t
}

func (w *amqpWire) appendPublished(dst []byte, _ uint64) []byte { return dst }

func (w *amqpWire) appendAck(dst []byte, tag uint64) []byte {
	if w.acks != eachAck {
		return dst
	}
	return (&amqp.BasicAck{DeliveryTag: tag}).AppendFrame(dst, channelID)
}

func (w *amqpWire) appendSettled(dst []byte, _ uint32, lastTag uint64, n int) []byte {
	if w.acks != multipleAcks || n == 0 {
		return dst
	}
	return (&amqp.BasicAck{DeliveryTag: lastTag, Multiple: true}).AppendFrame(dst, channelID)
}

func (w *amqpWire) appendCancel(dst []byte, handle uint32) []byte {
	return (&amqp.BasicCancel{ConsumerTag: consumerTag(handle)}).AppendFrame(dst, channelID)
}

func (w *amqpWire) frames(h handler) error {
	for {
		f, n, err := amqp.Next(w.buf[w.r:w.w], w.frameMax)
		if err != nil {
			return w.malformed(err)
		}
		if n == 0 {
			return nil
		}
		w.r += n
		switch f.Type {
		case amqp.FrameMethod:
			err = w.method(h, f)
		case amqp.FrameHeader:
			err = w.header(h, f)
		case amqp.FrameBody:
			err = w.body(h, f)
		}
		if err != nil {
			return err
		}
	}
}

func (w *amqpWire) method(h handler, f amqp.Frame) error {
	id, args, _ := amqp.CutMethod(f.Payload)
	if w.stage != noContent {
		return fmt.Errorf("the broker sent %s inside a message", amqp.Snippet(f))
	}
	switch id {
	case amqp.IDBasicDeliver:
		return w.deliver(args)
	case amqp.IDBasicAck:
		var m amqp.BasicAck
		if err := m.Decode(args); err != nil {
			return err
		}
		return h.confirmed(m.DeliveryTag, m.Multiple, false)
	case amqp.IDBasicNack:
		var m amqp.BasicNack
		if err := m.Decode(args); err != nil {
			return err
		}
		return h.confirmed(m.DeliveryTag, m.Multiple, true)
	case amqp.IDBasicConsumeOk:
		return nil
	case amqp.IDBasicCancelOk:
		var m amqp.BasicCancelOk
		if err := m.Decode(args); err != nil {
			return err
		}
		handle, err := handleOf(m.ConsumerTag)
		if err != nil {
			return err
		}
		return h.cancelled(handle)
	case amqp.IDConnectionBlocked:
		h.paused(true)
		return nil
	case amqp.IDConnectionUnblocked:
		h.paused(false)
		return nil
	}
	if err := unexpected(f, id, args); err != nil {
		return err
	}
	return fmt.Errorf("the broker sent %s, which nobody asked for", amqp.Snippet(f))
}

// deliver notes the consumer tag and the delivery tag of a basic.deliver; the names that follow do
// not matter. It is called for every message, hence not the whole decoder.
func (w *amqpWire) deliver(args []byte) error {
	if len(args) == 0 || len(args) < 1+int(args[0])+8 {
		return amqp.ErrArguments
	}
	n := 1 + int(args[0])
	handle, err := handleOf(args[1:n])
	if err != nil {
		return err
	}
	w.handle, w.tag, w.stage = handle, binary.BigEndian.Uint64(args[n:]), wantsHeader
	return nil
}

func handleOf(tag []byte) (handle uint32, err error) {
	for _, c := range tag {
		if c < '0' || c > '9' || handle > MaxQueues {
			return 0, fmt.Errorf("the broker sent the consumer tag %q, which nobody uses", tag)
		}
		handle = handle*10 + uint32(c-'0')
	}
	return handle, nil
}

func (w *amqpWire) header(h handler, f amqp.Frame) error {
	c, ok := amqp.CutContentHeader(f.Payload)
	if !ok || w.stage != wantsHeader || c.BodySize > MaxSize {
		return fmt.Errorf("the broker sent %s outside a message of this run", amqp.Snippet(f))
	}
	w.size, w.rest, w.headSize = int(c.BodySize), int(c.BodySize), 0
	w.stage = wantsBody
	if w.rest == 0 {
		return w.whole(h)
	}
	return nil
}

func (w *amqpWire) body(h handler, f amqp.Frame) error {
	if w.stage != wantsBody || len(f.Payload) > w.rest {
		return fmt.Errorf("the broker sent %s outside a message", amqp.Snippet(f))
	}
	w.headSize += copy(w.head[w.headSize:], f.Payload)
	w.rest -= len(f.Payload)
	if w.rest == 0 {
		return w.whole(h)
	}
	return nil
}

func (w *amqpWire) whole(h handler) error {
	w.stage = noContent
	return h.delivered(w.handle, w.tag, w.size, w.head[:w.headSize])
}
