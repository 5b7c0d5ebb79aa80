package conformance

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	wire "github.com/firemq/firemq/frames/fmq1"
)

func publishGet(s *scene) {
	s.connect()
	s.queue("q", nil)
	for _, body := range []string{"one", "zwei", "trés"} {
		s.publish("", "q", body)
	}
	r := s.do("get", fields{"queue": "q"})
	m := s.got(r, "one")
	s.equal("remaining", r["remaining"], 2)
	s.equal("redelivered", *m.Redelivered, false)
	s.equal("exchange", *m.Exchange, "")
	s.equal("routing_key", *m.RoutingKey, "q")
	s.equal("properties", map[string]any(m.Properties), map[string]any{})
	s.equal("headers", map[string]any(m.Headers), map[string]any{})
	s.ack(m)
	r = s.do("get", fields{"queue": "q", "no_ack": true})
	m = s.got(r, "zwei")
	s.equal("remaining", r["remaining"], 1)
	s.equal("the tag of what needs no ack", *m.Tag, "")
	s.ack(s.get("q", "trés"))
	s.empty("q")
}

func publishConfirm(s *scene) {
	t := s.connectThrough(false)
	s.queue("q", nil)
	t.holdBack(wire.OpConfirm)
	s.send("publish", fields{"key": "q", "body": "m"})
	s.must(t.await("the confirm", func() bool { return len(t.held) == 1 }))
	s.waits("a publish that is not confirmed")
	s.must(t.release())
	s.receive("publish")
	s.take("q", "m")
}

func publishMany(s *scene) {
	const n = 10000
	s.connect()
	s.queue("q", nil)
	s.equal("confirmed", s.do("publish_many", fields{"key": "q", "count": n})["confirmed"], n)
	s.count("q", n)
	deliveries, err := s.amqp().Consume("q", "", true, false, false, false, nil)
	s.must(err)
	timer := time.After(commandLimit)
	for i := range n {
		select {
		case d, ok := <-deliveries:
			if want := fmt.Sprintf("body-%d", i); !ok || string(d.Body) != want {
				s.failf("message %d is %q, want %q", i, d.Body, want)
			}
		case <-timer:
			s.failf("message %d has not come within %s", i, commandLimit)
		}
	}
	s.equal("confirmed", s.do("publish_many", fields{"key": "q", "count": 100, "persistent": false, "body": "again"})["confirmed"], 100)
	s.equal("confirmed", s.do("publish_many", fields{"exchange": "missing", "count": 10})["confirmed"], 0)
}

func publishMissingExchange(s *scene) {
	s.connect()
	s.queue("q", nil)
	s.refused("publish", fields{"exchange": "missing", "key": "q"}, "nacked", 404, "NOT_FOUND - no exchange 'missing'")
	s.publish("", "q", "m")
	s.take("q", "m")
}

func mandatoryUnroutable(s *scene) {
	s.connect()
	s.refused("publish", fields{"key": "nobody", "body": "m", "mandatory": true, "headers": fields{"h": 1}}, "unroutable", 312, "")
	s.publish("", "nobody", "nobody minds")
	s.queue("nobody", nil)
	s.do("publish", fields{"key": "nobody", "body": "now", "mandatory": true})
	s.take("nobody", "now")
}

func mandatoryRouted(s *scene) {
	s.connect()
	s.queue("q", nil)
	s.do("publish", fields{"key": "q", "body": "m", "mandatory": true, "persistent": false})
	s.take("q", "m")
}

func rejectPublish(s *scene) {
	s.connect()
	s.queue("q", fields{"args": fields{"x-max-length": 2, "x-overflow": "reject-publish"}})
	s.publish("", "q", "1")
	s.publish("", "q", "2")
	s.refused("publish", fields{"key": "q", "body": "3"}, "nacked", 506, "")
	s.take("q", "1")
	s.publish("", "q", "4")
	s.take("q", "2")
	s.take("q", "4")
	s.equal("confirmed of five", s.do("publish_many", fields{"key": "q", "count": 5})["confirmed"], 2)
}

func (s *scene) roundtrip(body []byte) {
	s.connect()
	s.queue("q", nil)
	s.do("publish_bytes", fields{"key": "q", "body_base64": base64.StdEncoding.EncodeToString(body)})
	check := func(m *message) {
		if m == nil {
			s.failf("no message")
		}
		got, _ := base64.StdEncoding.DecodeString(*m.BodyBase64)
		if !bytes.Equal(got, body) {
			s.failf("got a body of %d bytes, want the %d that were sent", len(got), len(body))
		}
	}
	m := s.message(s.do("get", fields{"queue": "q"}))
	check(m)
	s.do("nack", fields{"tag": *m.Tag, "requeue": true})
	sub := s.subscribe("q", nil)
	m = s.message(s.do("next", fields{"sub": sub}))
	check(m)
	s.ack(m)
}

func emptyBody(s *scene) {
	s.roundtrip([]byte{})
	s.do("publish", fields{"key": "q"})
	s.next("sub-1", "")
}

func binaryBody(s *scene) {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	s.roundtrip(b)
	s.do("publish_bytes", fields{"key": "q", "body_base64": "/w=="})
	if m := s.message(s.do("next", fields{"sub": "sub-1"})); m == nil || m.Body != nil {
		s.failf("a body that is not UTF-8 has the text %s, want null", show(m))
	}
}

func largeBody(s *scene) {
	s.roundtrip([]byte(strings.Repeat("0123456789abcdef", 4<<20/16)))
}

func propertiesRoundtrip(s *scene) {
	s.connect()
	s.queue("q", nil)
	for _, p := range []map[string]any{
		{
			"content_type": "application/json", "content_encoding": "gzip", "correlation_id": "c-1", "reply_to": "answers", "expiration": 3600000,
			"message_id": "m-1", "timestamp": 1700000000, "type": "order", "user_id": "guest", "app_id": "conformance", "priority": 7,
		},
		{"priority": 0, "timestamp": 0},
		{"priority": 255, "timestamp": 4102444800, "message_id": strings.Repeat("é", 127)},
		{"type": "only"},
	} {
		s.do("publish", fields{"key": "q", "body": "m", "properties": p})
		s.equal("properties", map[string]any(s.take("q", "m").Properties), p)
	}
	s.refused("publish", fields{"key": "q", "properties": fields{"user_id": "somebody"}}, "nacked", 406, "PRECONDITION_FAILED")
}

func headersRoundtrip(s *scene) {
	s.connect()
	s.queue("q", nil)
	h := map[string]any{
		"text": "text", "empty": "", "unicode": "日本語 🔥", "long": strings.Repeat("x", 70000),
		"zero": 0, "one": 1, "small": -1, "byte": 255, "short": -32768, "word": 4294967296,
		"max": json.Number("9223372036854775807"), "min": json.Number("-9223372036854775808"), "odd": json.Number("9007199254740993"),
		"float": 1.5, "tiny": -2.5e-300, "yes": true, "no": false, "null": nil,
		"list": []any{1, "two", []any{3.5, nil}, map[string]any{"four": []any{}}},
		"map":  map[string]any{"a": map[string]any{"b": map[string]any{"c": "deep"}}, "empty": map[string]any{}},
		"":     "a name without letters", "with space.and-dots": 1,
	}
	s.do("publish", fields{"key": "q", "body": "m", "headers": h})
	s.equal("headers", map[string]any(s.get("q", "m").Headers), h)
	sub := s.subscribe("q", nil)
	s.do("publish", fields{"key": "q", "body": "n", "headers": h})
	s.equal("headers", map[string]any(s.next(sub, "n").Headers), h)
}

func interopAMQPToFire(s *scene) {
	s.connect()
	s.queue("q", nil)
	ch := s.amqp()
	p := amqp.Publishing{
		ContentType: "text/plain", ContentEncoding: "identity", DeliveryMode: amqp.Persistent, Priority: 3, CorrelationId: "c", ReplyTo: "r",
		Expiration: "3600000", MessageId: "m", Timestamp: time.Unix(1700000000, 0), Type: "t", UserId: "guest", AppId: "a",
		Headers: amqp.Table{
			"string": "text", "bool": true, "byte": byte(200), "int8": int8(-5), "int16": int16(-300), "int32": int32(-70000), "int64": int64(-1 << 62),
			"float32": float32(1.5), "float64": 2.25, "decimal": amqp.Decimal{Scale: 2, Value: 314}, "time": time.Unix(1600000000, 0),
			"nil": nil, "bytes": []byte{0, 255}, "list": []any{int32(1), "two"}, "table": amqp.Table{"in": amqp.Table{"deep": int64(7)}},
		},
		Body: []byte("from AMQP"),
	}
	send := func() {
		s.must(ch.PublishWithContext(s.play.ctx, "", "q", false, false, p))
	}
	sub := s.subscribe("q", nil)
	send()
	m := s.next(sub, "from AMQP")
	s.equal("properties", map[string]any(m.Properties), map[string]any{
		"content_type": "text/plain", "content_encoding": "identity", "priority": 3, "correlation_id": "c", "reply_to": "r",
		"expiration": 3600000, "message_id": "m", "timestamp": 1700000000, "type": "t", "user_id": "guest", "app_id": "a",
	})
	s.equal("headers", map[string]any(m.Headers), map[string]any{
		"string": "text", "bool": true, "byte": 200, "int8": -5, "int16": -300, "int32": -70000, "int64": json.Number("-4611686018427387904"),
		"float32": 1.5, "float64": 2.25, "decimal": 3.14, "time": 1600000000,
		"nil": nil, "bytes": "AP8=", "list": []any{1, "two"}, "table": map[string]any{"in": map[string]any{"deep": 7}},
	})
	s.ack(m)
	p = amqp.Publishing{Body: []byte("bare")}
	send()
	m = s.next(sub, "bare")
	s.equal("properties", map[string]any(m.Properties), map[string]any{})
	s.equal("headers", map[string]any(m.Headers), map[string]any{})
}

func interopFireToAMQP(s *scene) {
	s.connect()
	s.queue("q", nil)
	ch := s.amqp()
	s.do("publish", fields{"key": "q", "body": "to AMQP", "properties": fields{
		"content_type": "text/plain", "content_encoding": "identity", "correlation_id": "c", "reply_to": "r", "expiration": 3600000,
		"message_id": "m", "timestamp": 1700000000, "type": "t", "user_id": "guest", "app_id": "a", "priority": 0,
	}, "headers": fields{
		"string": "text", "int": -5, "big": json.Number("9223372036854775807"), "float": 1.5, "bool": true, "null": nil,
		"list": []any{1, "two", false}, "map": map[string]any{"in": map[string]any{"deep": 7}},
	}})
	d, ok, err := ch.Get("q", true)
	s.must(err)
	if !ok {
		s.failf("no message in the queue")
	}
	s.equal("body", string(d.Body), "to AMQP")
	s.equal("delivery mode", int(d.DeliveryMode), 2)
	s.equal("properties", map[string]any{
		"content_type": d.ContentType, "content_encoding": d.ContentEncoding, "correlation_id": d.CorrelationId, "reply_to": d.ReplyTo, "expiration": d.Expiration,
		"message_id": d.MessageId, "timestamp": d.Timestamp.Unix(), "type": d.Type, "user_id": d.UserId, "app_id": d.AppId, "priority": int(d.Priority),
	}, map[string]any{
		"content_type": "text/plain", "content_encoding": "identity", "correlation_id": "c", "reply_to": "r", "expiration": "3600000",
		"message_id": "m", "timestamp": 1700000000, "type": "t", "user_id": "guest", "app_id": "a", "priority": 0,
	})
	want := amqp.Table{
		"string": "text", "int": int64(-5), "big": int64(9223372036854775807), "float": 1.5, "bool": true, "null": nil,
		"list": []any{int64(1), "two", false}, "map": amqp.Table{"in": amqp.Table{"deep": int64(7)}},
	}
	// %#v tells the types apart: an integer has to arrive as l, a float as d.
	for k, v := range want {
		if got, want := fmt.Sprintf("%#v", d.Headers[k]), fmt.Sprintf("%#v", v); got != want {
			s.failf("header %s: got %s, want %s", k, got, want)
		}
	}
	s.equal("headers", len(d.Headers), len(want))
	s.do("publish", fields{"key": "q", "body": "bare", "persistent": false})
	d, ok, err = ch.Get("q", true)
	s.must(err)
	if !ok || string(d.Body) != "bare" || d.DeliveryMode == 2 || len(d.Headers) > 0 || d.ContentType != "" {
		s.failf("a bare transient message arrives as %+v", d)
	}
}
