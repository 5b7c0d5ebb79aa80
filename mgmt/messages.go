package mgmt

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/mgmt/api"
)

// Bounds of one get, felt as fewer messages than were asked for.
const (
	maxGetMessages = 10_000
	maxGetBytes    = 64 << 20
)

// What a message in an answer takes, about: its payload and again in the answer, and what is around it.
const (
	textCopies  = 2
	messageCost = 1 << 10
)

// confirmWait is how long a publish waits for its confirm before it fails.
const confirmWait = 30 * time.Second

// outcome is the Sink of a channel that publishes one message.
type outcome struct {
	returned bool               // written before a value is sent on settled
	settled  chan *broker.Error // one value: nil for a confirm
}

func (o *outcome) Deliver(*broker.Delivery)                  {}
func (o *outcome) Confirm(uint64, bool)                      { o.settled <- nil }
func (o *outcome) Nack(_ uint64, e *broker.Error)            { o.settled <- e }
func (o *outcome) Return(uint64, *message.Message)           { o.returned = true }
func (o *outcome) Cancelled(*broker.Consumer, *broker.Error) {}
func (o *outcome) Committed()                                {}
func (o *outcome) Answer([]byte)                             {}

func publish(r *request) error {
	b, err := r.body()
	if err != nil {
		return err
	}
	x, err := r.exchangeOf()
	if err != nil {
		return failed(404, "not_found", "exchange_not_found")
	}
	if err := b.need("routing_key", "properties", "payload", "payload_encoding"); err != nil {
		return err
	}
	key, err := b.text("routing_key")
	if err != nil {
		return err
	}
	if err := shortName("routing key", key); err != nil {
		return err
	}
	payload, err := payloadOf(b)
	if err != nil {
		return err
	}
	props, err := propertiesOf(b["properties"])
	if err != nil {
		return err
	}
	if r.s.opt.Broker.Alarmed() {
		return r.unavailable("The broker is low on memory or disk: it takes no messages")
	}
	out := &outcome{settled: make(chan *broker.Error, 1)}
	return r.act(func(c *broker.Conn) error {
		ch, e := c.Open(1, out)
		if e != nil {
			return refusal(e)
		}
		defer ch.Close()
		if e := ch.Confirms(); e != nil {
			return refusal(e)
		}
		p := r.s.opt.Broker.NewPublish(props, x.Name, key, payload)
		p.Seq, p.Mandatory = 1, true
		if e = ch.Publish(p); e == nil {
			_, e = c.EndTurn()
		}
		if e != nil {
			if e.Kind == broker.AccessRefused {
				return refusal(e)
			}
			return badRequest(replyText(e))
		}
		select {
		case e = <-out.settled:
		case <-r.s.quit:
			return failed(503, "service_unavailable", "the broker stops: the message may be lost")
		case <-time.After(confirmWait):
			return fmt.Errorf("no confirm within %s", confirmWait)
		}
		if e != nil {
			return badRequest("rejected Unable to publish message. Check queue limits.")
		}
		return r.ok(map[string]bool{"routed": !out.returned})
	})
}

// replyText is an error with AMQP's code in front.
func replyText(e *broker.Error) string {
	code := "541 INTERNAL_ERROR"
	switch e.Kind {
	case broker.NotFound:
		code = "404 NOT_FOUND"
	case broker.AccessRefused:
		code = "403 ACCESS_REFUSED"
	case broker.ResourceLocked:
		code = "405 RESOURCE_LOCKED"
	case broker.PreconditionFailed:
		code = "406 PRECONDITION_FAILED"
	case broker.ResourceError:
		code = "506 RESOURCE_ERROR"
	}
	return code + " - " + e.Text
}

func payloadOf(b body) ([]byte, error) {
	encoding, err := b.text("payload_encoding")
	if err != nil {
		return nil, err
	}
	text, ok := b["payload"].(string)
	if !ok {
		return nil, badRequest("payload_not_string")
	}
	switch encoding {
	case "string":
		return []byte(text), nil
	case "base64":
		p, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, badRequest([]string{"not_base64", text})
		}
		return p, nil
	}
	return nil, badRequest([]string{"unsupported_encoding", encoding})
}

// propertiesOf reads message properties; unknown ones are ignored.
func propertiesOf(v any) (*table.Properties, error) {
	p := new(table.Properties)
	var m map[string]any
	switch v := v.(type) {
	case map[string]any:
		m = v
	case []any:
		if len(v) > 0 {
			return nil, badRequest([]string{"not_json_object", "properties"})
		}
	default:
		return nil, badRequest([]string{"not_json_object", "properties"})
	}
	b := body(m)
	for _, f := range p.Texts() {
		if m[f.Name] == nil {
			continue
		}
		s, ok := m[f.Name].(string)
		if !ok {
			return nil, badRequest([]string{"not_string", f.Name})
		}
		if len(s) > 255 {
			return nil, badRequestf("property %s is longer than 255 bytes", f.Name)
		}
		*f.Value = s
		p.Has |= f.Bit
	}
	for name, set := range map[string]func(uint64){
		"delivery_mode": func(n uint64) { p.DeliveryMode, p.Has = uint8(n), p.Has|table.HasDeliveryMode },
		"priority":      func(n uint64) { p.Priority, p.Has = uint8(n), p.Has|table.HasPriority },
		"timestamp":     func(n uint64) { p.Timestamp, p.Has = n, p.Has|table.HasTimestamp },
	} {
		switch v := m[name].(type) {
		case nil:
			continue
		case json.Number:
			n, err := strconv.ParseInt(v.String(), 10, 64)
			if err != nil {
				return nil, badRequest([]string{"not_int", name})
			}
			set(uint64(n))
		default:
			return nil, badRequest([]string{"not_int", name})
		}
	}
	if m["headers"] != nil {
		headers, err := b.arguments("headers")
		if err != nil {
			return nil, err
		}
		p.Headers, p.Has = headers, p.Has|table.HasHeaders
	}
	return p, nil
}

// propertyMap is a message's properties as JSON shows them.
func propertyMap(p *table.Properties) map[string]any {
	m := make(map[string]any)
	for _, f := range p.Texts() {
		if p.Has&f.Bit != 0 {
			m[f.Name] = *f.Value
		}
	}
	if p.Has&table.HasDeliveryMode != 0 {
		m["delivery_mode"] = int(p.DeliveryMode)
	}
	if p.Has&table.HasPriority != 0 {
		m["priority"] = int(p.Priority)
	}
	if p.Has&table.HasTimestamp != 0 {
		m["timestamp"] = p.Timestamp
	}
	if p.Has&table.HasHeaders != 0 {
		m["headers"] = argumentMap(p.Headers)
	}
	return m
}

// ackModes say what becomes of messages that were got.
var ackModes = map[string]struct{ noAck, requeue bool }{
	"ack_requeue_true":     {false, true},
	"ack_requeue_false":    {true, false},
	"reject_requeue_true":  {false, true},
	"reject_requeue_false": {false, false},
}

// getter is the query of a get.
type getter struct {
	count, truncate int
	base64          bool
	noAck, requeue  bool
}

func getterOf(b body) (g getter, err error) {
	if err := b.need("ackmode", "count", "encoding"); err != nil {
		return g, err
	}
	ackmode, _ := b.text("ackmode")
	mode, ok := ackModes[ackmode]
	if !ok {
		return g, badRequestf("Invalid ackmode value: %s. Valid values are: ack_requeue_true, ack_requeue_false, reject_requeue_true, reject_requeue_false", ackmode)
	}
	g.noAck, g.requeue = mode.noAck, mode.requeue
	if g.count, err = b.integer("count", 0); err != nil {
		return g, err
	}
	if g.count < 0 || g.count > maxGetMessages {
		g.count = maxGetMessages
	}
	if g.truncate, err = b.integer("truncate", -1); err != nil {
		return g, err
	}
	switch encoding, _ := b.text("encoding"); encoding {
	case "auto":
	case "base64":
		g.base64 = true
	default:
		return g, badRequest("Unsupported encoding. Please use auto or base64.")
	}
	return g, nil
}

func getMessages(r *request) error {
	b, err := r.body()
	if err != nil {
		return err
	}
	if _, err := r.queueOf(); err != nil {
		return failed(404, "not_found", "queue_not_found")
	}
	g, err := getterOf(b)
	if err != nil {
		return err
	}
	list := []api.Message{}
	return r.act(func(c *broker.Conn) error {
		ch, e := c.Open(1, &outcome{})
		if e != nil {
			return refusal(e)
		}
		defer ch.Close() // puts back what is not settled
		if !r.room(freeBytes + 1) {
			return r.busy()
		}
		var last uint64
		size, taken := 0, 0
		for len(list) < g.count && size < maxGetBytes && r.room(taken) {
			var bad error
			ok, e := ch.Get(r.vars["queue"], g.noAck, func(d *broker.Delivery, remaining int) {
				last = d.Tag
				size += len(d.Msg.Body())
				var m api.Message
				if m, bad = g.message(c, d, remaining); bad == nil {
					taken += textCopies*len(m.Payload) + messageCost
					list = append(list, m)
				}
			})
			if (e != nil || bad != nil) && len(list) > 0 && !g.requeue {
				break // those that were got would be lost
			}
			switch {
			case e != nil && e.Kind == broker.ResourceLocked:
				return badRequest(replyText(e))
			case e != nil:
				return refusal(e)
			case bad != nil:
				return bad
			}
			if !ok {
				break
			}
		}
		if last > 0 && !g.noAck {
			if e := ch.Nack(0, true, g.requeue); e != nil {
				return refusal(e)
			}
			if e := ch.Settle(); e != nil {
				return refusal(e)
			}
		}
		if g.requeue {
			return r.ok(list)
		}
		r.put(fasthttp.StatusOK, encode(nil, list, parseColumns(r.query("columns")))) // they are in no queue any more
		return nil
	})
}

// message shows one delivery. It copies what it keeps.
func (g *getter) message(c *broker.Conn, d *broker.Delivery, remaining int) (api.Message, error) {
	props, err := propertiesFor(c, d.Msg)
	if err != nil {
		return api.Message{}, err
	}
	m := api.Message{
		PayloadBytes: len(d.Msg.Body()), Redelivered: d.Redelivered, Exchange: string(d.Msg.Exchange()), RoutingKey: string(d.Msg.Key()),
		MessageCount: remaining, Properties: props,
	}
	m.Payload, m.PayloadEncoding = g.payload(d.Msg.Body())
	return m, nil
}
