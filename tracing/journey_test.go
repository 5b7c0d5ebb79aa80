package tracing_test

import (
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"

	fire "github.com/firemq/firemq/sdk/go"
	"github.com/firemq/firemq/server"
)

// context is what a producer sends along.
type producer struct{ trace, span string }

func newProducer() producer {
	hexadecimal := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rand.IntN(255) + 1)
		}
		return hex.EncodeToString(b)
	}
	return producer{hexadecimal(16), hexadecimal(8)}
}

func (p producer) header(flags string) string { return "00-" + p.trace + "-" + p.span + "-" + flags }

func dial(t testing.TB, s *server.Server) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial("amqp://" + s.AMQPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return open(t, conn)
}

func open(t testing.TB, conn *amqp.Connection) *amqp.Channel {
	t.Helper()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// settled waits until the broker has carried out what the channel was told.
func settled(t testing.TB, ch *amqp.Channel) {
	t.Helper()
	must(t, ch.Qos(0, 0, false))
}

func declare(t testing.TB, ch *amqp.Channel, name string, args amqp.Table) {
	t.Helper()
	_, err := ch.QueueDeclare(name, true, false, false, false, args)
	must(t, err)
}

// confirmed publishes and waits for the confirm.
func confirmed(t testing.TB, ch *amqp.Channel, exchange, key string, p amqp.Publishing) (acked bool) {
	t.Helper()
	must(t, ch.Confirm(false))
	c, err := ch.PublishWithDeferredConfirmWithContext(within(t), exchange, key, true, false, p)
	must(t, err)
	acked, err = c.WaitContext(within(t))
	must(t, err)
	return acked
}

func next(t testing.TB, deliveries <-chan amqp.Delivery) amqp.Delivery {
	t.Helper()
	select {
	case d, ok := <-deliveries:
		if ok {
			return d
		}
	case <-within(t).Done():
	}
	t.Fatal("no delivery")
	return amqp.Delivery{}
}

func consume(t testing.TB, ch *amqp.Channel, queue string, noAck bool) <-chan amqp.Delivery {
	t.Helper()
	d, err := ch.Consume(queue, "", noAck, false, false, false, nil)
	must(t, err)
	return d
}

// A message through a fanout exchange to two queues: what each step is called, whose child it is, and what it says.
func TestJourney(t *testing.T) {
	c := collect(t)
	s, stop := c.start(server.Options{Version: "1.2.3", Tracing: server.Tracing{Service: "shop-broker"}})
	ch := dial(t, s)
	must(t, ch.ExchangeDeclare("x", "fanout", false, false, false, false, nil))
	for _, q := range []string{"a", "b"} {
		declare(t, ch, q, nil)
		must(t, ch.QueueBind(q, "", "x", false, nil))
	}
	p := newProducer()
	headers := amqp.Table{"traceparent": p.header("01"), "tracestate": "vendor=1,other=2", "n": int32(7)}
	confirmed(t, ch, "x", "key", amqp.Publishing{Headers: headers, MessageId: "m1", CorrelationId: "c1", Body: []byte("hello")})
	d := next(t, consume(t, ch, "a", false))
	if !reflect.DeepEqual(d.Headers, headers) {
		t.Errorf("the message was changed: %v", d.Headers)
	}
	must(t, d.Ack(false))
	next(t, consume(t, ch, "b", true))
	settled(t, ch)
	stop()

	publish := c.one("publish x")
	client, _ := publish.attributes["messaging.client.id"].(string)
	if !strings.HasSuffix(client, " -> "+s.AMQPAddr().String()) {
		t.Errorf("the client is called %q", client)
	}
	all := map[string]any{"messaging.system": "rabbitmq", "firemq.vhost": "/"}
	with := func(more map[string]any) map[string]any {
		m := maps.Clone(all)
		maps.Copy(m, more)
		return m
	}
	const (
		key, tag, size, queue, destination = "messaging.rabbitmq.destination.routing_key", "messaging.rabbitmq.message.delivery_tag",
			"messaging.message.body.size", "firemq.queue", "messaging.destination.name"
		name, kind = "messaging.operation.name", "messaging.operation.type"
	)
	enqueueA, enqueueB, deliverA := c.one("enqueue a"), c.one("enqueue b"), c.one("deliver a")
	for _, w := range []struct {
		got        *span
		parent     string
		kind       trace.Span_SpanKind
		attributes map[string]any
	}{
		{publish, p.span, trace.Span_SPAN_KIND_CONSUMER, map[string]any{name: "publish", kind: "send", destination: "x:key", key: "key", size: int64(5),
			"messaging.client.id": client, "messaging.message.id": "m1", "messaging.message.conversation_id": "c1", "firemq.routed_queues": int64(2)}},
		{enqueueA, publish.id, trace.Span_SPAN_KIND_INTERNAL, map[string]any{name: "enqueue", destination: "x:key:a", key: "key", size: int64(5), queue: "a"}},
		{enqueueB, publish.id, trace.Span_SPAN_KIND_INTERNAL, map[string]any{name: "enqueue", destination: "x:key:b", key: "key", size: int64(5), queue: "b"}},
		{deliverA, enqueueA.id, trace.Span_SPAN_KIND_PRODUCER, map[string]any{name: "deliver", kind: "receive", destination: "x:key:a", key: "key", size: int64(5),
			queue: "a", tag: int64(1), "messaging.client.id": client}},
		{c.one("deliver b"), enqueueB.id, trace.Span_SPAN_KIND_PRODUCER, map[string]any{name: "deliver", kind: "receive", destination: "x:key:b", key: "key", size: int64(5),
			queue: "b", tag: int64(2), "messaging.client.id": client}},
		{c.one("ack a"), deliverA.id, trace.Span_SPAN_KIND_INTERNAL, map[string]any{name: "ack", kind: "settle", destination: "a", queue: "a", tag: int64(1), "messaging.client.id": client}},
	} {
		if w.got.trace != p.trace || w.got.parent != w.parent || w.got.Kind != w.kind || w.got.TraceState != "vendor=1,other=2" {
			t.Errorf("%s: trace %s, parent %s, kind %v, state %q; want %s, %s, %v", w.got.Name, w.got.trace, w.got.parent, w.got.Kind, w.got.TraceState, p.trace, w.parent, w.kind)
		}
		if want := with(w.attributes); !reflect.DeepEqual(w.got.attributes, want) {
			t.Errorf("%s says\n%v, want\n%v", w.got.Name, w.got.attributes, want)
		}
		if remote := w.got == publish; w.got.Flags&0x301 != map[bool]uint32{true: 0x301, false: 0x101}[remote] {
			t.Errorf("%s: flags %#x", w.got.Name, w.got.Flags)
		}
		if w.got.Status.GetCode() != trace.Status_STATUS_CODE_UNSET {
			t.Errorf("%s: status %v", w.got.Name, w.got.Status)
		}
		if r := w.got.resource; r["service.name"] != "shop-broker" || r["service.version"] != "1.2.3" || r["service.instance.id"] == "" {
			t.Errorf("resource %v", r)
		}
	}
	if n := len(c.all()); n != 6 {
		t.Errorf("%d spans: %q", n, c.names())
	}
	orderly(t, c)
}

// orderly checks of all spans that ids are unique, that parents are there and begin no later, and that none ends
// before it begins.
func orderly(t *testing.T, c *collector) {
	t.Helper()
	byID := make(map[string]*span)
	for _, s := range c.all() {
		if byID[s.trace+s.id] != nil {
			t.Errorf("two spans have the id %s: %s and %s", s.id, s.Name, byID[s.trace+s.id].Name)
		}
		byID[s.trace+s.id] = s
	}
	for _, s := range c.all() {
		if s.EndTimeUnixNano < s.StartTimeUnixNano {
			t.Errorf("%s ends before it begins", s.Name)
		}
		if strings.HasPrefix(s.Name, "publish ") {
			continue
		}
		switch p := byID[s.trace+s.parent]; {
		case p == nil:
			t.Errorf("%s has a parent that is not there", s.Name)
		case s.StartTimeUnixNano < p.StartTimeUnixNano:
			t.Errorf("%s begins %d ns before its parent %s", s.Name, p.StartTimeUnixNano-s.StartTimeUnixNano, p.Name)
		}
	}
}

// What may become of a message, as the chain of spans below its publish: parents first.
func TestFates(t *testing.T) {
	dlx := amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dlq"}
	with := func(more amqp.Table) amqp.Table {
		m := maps.Clone(dlx)
		maps.Copy(m, more)
		return m
	}
	for name, f := range map[string]struct {
		args amqp.Table // of the queue q
		play func(t *testing.T, ch *amqp.Channel, send func(exchange, key string) bool)
		want []string // parent's position < name [attribute=value ...]; position 0 is the producer
	}{
		"returned": {nil, func(t *testing.T, ch *amqp.Channel, send func(string, string) bool) {
			returns := ch.NotifyReturn(make(chan amqp.Return, 1))
			send("amq.topic", "nowhere")
			if r := <-returns; len(r.Headers) != 1 {
				t.Errorf("returned with %v", r.Headers)
			}
		}, []string{"0 < publish amq.topic error.type=no-route firemq.routed_queues=0"}},
		"refused": {amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"}, func(t *testing.T, ch *amqp.Channel, send func(string, string) bool) {
			if send("", "q") {
				t.Error("it was confirmed")
			}
		}, []string{"0 < publish amq.default error.type=resource-error firemq.routed_queues=1"}},
		"refused and dead-lettered": {with(amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish-dlx"}), func(t *testing.T, ch *amqp.Channel, send func(string, string) bool) {
			send("", "q")
			next(t, consume(t, ch, "dlq", true))
		}, []string{"0 < publish amq.default error.type=resource-error", "0 < dead-letter q firemq.dead_letter.reason=maxlen", "2 < enqueue dlq", "3 < deliver dlq"}},
		"got": {nil, func(t *testing.T, ch *amqp.Channel, send func(string, string) bool) {
			send("", "q")
			d, ok, err := ch.Get("q", false)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			must(t, d.Ack(false))
		}, []string{"0 < publish amq.default messaging.destination.name=q", "1 < enqueue q messaging.destination.name=q", "2 < get q messaging.operation.type=receive", "3 < ack q"}},
		"got without an ack": {nil, func(t *testing.T, ch *amqp.Channel, send func(string, string) bool) {
			send("", "q")
			if _, ok, err := ch.Get("q", true); err != nil || !ok {
				t.Fatal(ok, err)
			}
		}, []string{"0 < publish amq.default", "1 < enqueue q", "2 < get q"}},
		"requeued": {nil, func(t *testing.T, ch *amqp.Channel, send func(string, string) bool) {
			send("", "q")
			deliveries := consume(t, ch, "q", false)
			must(t, next(t, deliveries).Nack(false, true))
			must(t, next(t, deliveries).Ack(true))
		}, []string{"0 < publish amq.default", "1 < enqueue q", "2 < deliver q", "3 < nack q firemq.requeue=true", "2 < deliver q firemq.redelivered=true messaging.rabbitmq.message.delivery_tag=2", "5 < ack q"}},
		"rejected": {dlx, func(t *testing.T, ch *amqp.Channel, send func(string, string) bool) {
			send("", "q")
			must(t, next(t, consume(t, ch, "q", false)).Reject(false))
			must(t, next(t, consume(t, ch, "dlq", false)).Ack(false))
		}, []string{"0 < publish amq.default", "1 < enqueue q", "2 < deliver q", "3 < reject q",
			"2 < dead-letter q firemq.dead_letter.reason=rejected messaging.destination.name=dlq", "5 < enqueue dlq", "6 < deliver dlq", "7 < ack dlq"}},
		"expired": {with(amqp.Table{"x-message-ttl": 1}), func(t *testing.T, ch *amqp.Channel, send func(string, string) bool) {
			send("", "q")
			next(t, consume(t, ch, "dlq", true))
		}, []string{"0 < publish amq.default", "1 < enqueue q", "2 < dead-letter q firemq.dead_letter.reason=expired", "3 < enqueue dlq", "4 < deliver dlq"}},
		"over the limit": {with(amqp.Table{"x-max-length": 0}), func(t *testing.T, ch *amqp.Channel, send func(string, string) bool) {
			send("", "q")
			next(t, consume(t, ch, "dlq", true))
		}, []string{"0 < publish amq.default", "1 < enqueue q", "2 < dead-letter q firemq.dead_letter.reason=maxlen", "3 < enqueue dlq", "4 < deliver dlq"}},
		"given back by a channel that closes": {nil, func(t *testing.T, ch *amqp.Channel, send func(string, string) bool) {
			send("", "q")
			next(t, consume(t, ch, "q", false))
			must(t, ch.Close())
		}, []string{"0 < publish amq.default", "1 < enqueue q", "2 < deliver q", "3 < nack q firemq.requeue=true"}},
		"in a transaction": {nil, func(t *testing.T, ch *amqp.Channel, send func(string, string) bool) {
			must(t, ch.Tx())
			send("", "q")
			must(t, ch.TxRollback())
			send("", "q")
			must(t, ch.TxCommit())
			must(t, next(t, consume(t, ch, "q", false)).Ack(false))
			must(t, ch.TxCommit())
		}, []string{"0 < publish amq.default", "1 < enqueue q", "2 < deliver q", "3 < ack q"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := collect(t)
			s, stop := c.start(server.Options{Data: t.TempDir()})
			ch := dial(t, s)
			declare(t, ch, "q", f.args)
			declare(t, ch, "dlq", nil)
			p := newProducer()
			f.play(t, ch, func(exchange, key string) bool {
				m := amqp.Publishing{Headers: amqp.Table{"traceparent": p.header("01")}, Body: []byte("m"), DeliveryMode: amqp.Persistent}
				if name == "in a transaction" {
					must(t, ch.PublishWithContext(within(t), exchange, key, false, false, m))
					return true
				}
				return confirmed(t, ch, exchange, key, m)
			})
			if !ch.IsClosed() {
				settled(t, ch)
			}
			stop()
			ids := []string{p.span}
			left := c.all()
			for _, want := range f.want {
				parent, rest, _ := strings.Cut(want, " < ")
				words := strings.Fields(rest)
				name, attributes := words[0]+" "+words[1], words[2:]
				var at int
				fmt.Sscan(parent, &at)
				found := ""
				for i, s := range left {
					if s.Name == name && s.parent == ids[at] && s.trace == p.trace && says(s, attributes) {
						found = s.id
						left = append(left[:i:i], left[i+1:]...)
						break
					}
				}
				if found == "" {
					for _, s := range c.all() {
						t.Logf("%s < %s %s %v", s.parent, s.id, s.Name, s.attributes)
					}
					t.Fatalf("there is no span %q", want)
				}
				ids = append(ids, found)
			}
			for _, s := range left {
				t.Errorf("there is %s, too", s.Name)
			}
		})
	}
}

func says(s *span, attributes []string) bool {
	for _, a := range attributes {
		name, value, _ := strings.Cut(a, "=")
		if fmt.Sprint(s.attributes[name]) != value {
			return false
		}
		if name == "error.type" && s.Status.GetCode() != trace.Status_STATUS_CODE_ERROR {
			return false
		}
	}
	return true
}

// A message without a context that is sampled gets one, which is that of its publish; a malformed one is replaced.
func TestContextIsAdded(t *testing.T) {
	c := collect(t)
	s, stop := c.start(server.Options{Tracing: server.Tracing{SampleRatio: 1}})
	ch := dial(t, s)
	declare(t, ch, "q", nil)
	deliveries := consume(t, ch, "q", true)
	var came []any
	for _, headers := range []amqp.Table{
		nil, {"n": int32(1)}, {"traceparent": "00-0-0-01", "tracestate": "a=b"}, {"traceparent": int32(5)}, {"traceparent": producer{strings.Repeat("0", 32), "00000000000000ff"}.header("01")},
	} {
		confirmed(t, ch, "", "q", amqp.Publishing{Headers: headers, MessageId: "m", Body: []byte("body")})
		d := next(t, deliveries)
		if d.MessageId != "m" || string(d.Body) != "body" || d.RoutingKey != "q" || d.Headers["n"] != headers["n"] || d.Headers["tracestate"] != nil {
			t.Errorf("it came as %+v", d)
		}
		came = append(came, d.Headers["traceparent"])
	}
	stop()
	publishes := c.named("publish amq.default")
	if len(publishes) != len(came) {
		t.Fatalf("spans %q", c.names())
	}
	for i, p := range publishes {
		if want := (producer{p.trace, p.id}).header("01"); came[i] != want || p.parent != "" {
			t.Errorf("message %d came with %v, want %s; the parent of its publish is %q", i, came[i], want, p.parent)
		}
	}
	orderly(t, c)
}

// Whoever says that a message is not sampled is believed, and it is not touched.
func TestNotSampled(t *testing.T) {
	c := collect(t)
	s, stop := c.start(server.Options{Tracing: server.Tracing{SampleRatio: 1}})
	ch := dial(t, s)
	declare(t, ch, "q", nil)
	deliveries := consume(t, ch, "q", false)
	for _, header := range []string{newProducer().header("00"), newProducer().header("fe")} {
		confirmed(t, ch, "", "q", amqp.Publishing{Headers: amqp.Table{"traceparent": header}})
		d := next(t, deliveries)
		must(t, d.Ack(false))
		if d.Headers["traceparent"] != header || len(d.Headers) != 1 {
			t.Errorf("it came with %v", d.Headers)
		}
	}
	settled(t, ch)
	stop()
	if names := c.names(); len(names) > 0 {
		t.Errorf("spans %q", names)
	}
}

// Clients of the other protocol take part in the same traces, and a reply's way has no token in it.
func TestProtocols(t *testing.T) {
	c := collect(t)
	s, stop := c.start(server.Options{})
	ch := dial(t, s)
	declare(t, ch, "q", nil)
	f, err := fire.Dial(within(t), "fire://"+s.FireAddr().String())
	must(t, err)
	defer f.Close()
	p, r := newProducer(), newProducer()
	long := strings.Repeat("x", 600)
	requests, err := f.Subscribe(within(t), "q", fire.SubscribeOptions{})
	must(t, err)
	replies := consume(t, ch, "amq.rabbitmq.reply-to", true)
	confirmed(t, ch, "", "q", amqp.Publishing{Headers: amqp.Table{"traceparent": p.header("01")}, ReplyTo: "amq.rabbitmq.reply-to"})
	d, err := requests.Next(within(t))
	must(t, err)
	h, err := d.Headers()
	must(t, err)
	if h["traceparent"] != p.header("01") {
		t.Errorf("came with %v", h)
	}
	props, err := d.Properties()
	must(t, err)
	must(t, f.Publish(within(t), fire.Message{Key: props.ReplyTo, Headers: map[string]any{"traceparent": r.header("01"), "tracestate": "a=" + long}}))
	must(t, d.Ack())
	if got := next(t, replies).Headers["traceparent"]; got != r.header("01") {
		t.Errorf("the reply came with %v", got)
	}
	must(t, f.Close())
	stop()
	if s := c.named("publish amq.default")[1]; s.trace != r.trace || s.TraceState != "" {
		t.Errorf("%v", s.Span)
	}
	for name, want := range map[string]producer{
		"enqueue q": p, "deliver q": p, "ack q": p, "enqueue amq.rabbitmq.reply-to": r, "deliver amq.rabbitmq.reply-to": r,
	} {
		if got := c.one(name); got.trace != want.trace {
			t.Errorf("%s is of trace %s, want %s", name, got.trace, want.trace)
		}
	}
	orderly(t, c)
}

// The trace goes on after a restart, below the spans of before.
func TestRestart(t *testing.T) {
	c := collect(t)
	o := server.Options{Data: t.TempDir()}
	s, stop := c.start(o)
	ch := dial(t, s)
	declare(t, ch, "q", nil)
	p := newProducer()
	confirmed(t, ch, "", "q", amqp.Publishing{Headers: amqp.Table{"traceparent": p.header("01")}, DeliveryMode: amqp.Persistent})
	stop()
	s, stop = c.start(o)
	ch = dial(t, s)
	must(t, next(t, consume(t, ch, "q", false)).Ack(false))
	settled(t, ch)
	stop()
	if d, e := c.one("deliver q"), c.one("enqueue q"); d.parent != e.id || d.trace != p.trace || c.one("ack q").parent != d.id {
		t.Errorf("deliver has the parent %s, want %s", d.parent, e.id)
	}
	orderly(t, c)
}

// Messages that were left to the journal have all their spans, when the bodies are read back and gone again.
func TestBacklog(t *testing.T) {
	c := collect(t)
	s, stop := c.start(server.Options{Data: t.TempDir(), NoSync: true})
	ch := dial(t, s)
	declare(t, ch, "q", nil)
	const n = 300 // of 64 KiB: more than a queue keeps in memory
	p := newProducer()
	for range n {
		must(t, ch.PublishWithContext(within(t), "", "q", false, false,
			amqp.Publishing{Headers: amqp.Table{"traceparent": p.header("01")}, DeliveryMode: amqp.Persistent, Body: make([]byte, 64<<10)}))
	}
	confirmed(t, ch, "", "q", amqp.Publishing{DeliveryMode: amqp.Persistent})
	deliveries := consume(t, ch, "q", false)
	for range n {
		next(t, deliveries)
	}
	must(t, next(t, deliveries).Ack(true))
	settled(t, ch)
	stop()
	for _, name := range []string{"publish amq.default", "enqueue q", "deliver q", "ack q"} {
		if got := len(c.named(name)); got != n {
			t.Errorf("%d of %s, want %d", got, name, n)
		}
	}
	orderly(t, c)
}

// About as many messages are traced as the ratio says, each of them with all its spans.
func TestRatio(t *testing.T) {
	c := collect(t)
	s, stop := c.start(server.Options{Tracing: server.Tracing{SampleRatio: 0.25}})
	ch := dial(t, s)
	declare(t, ch, "q", nil)
	deliveries := consume(t, ch, "q", true)
	const n = 4000
	marked := 0
	for range n {
		must(t, ch.PublishWithContext(within(t), "", "q", false, false, amqp.Publishing{}))
	}
	for range n {
		if next(t, deliveries).Headers["traceparent"] != nil {
			marked++
		}
	}
	stop()
	// The deviation is 27: this is ten of them.
	if marked < n/4-270 || marked > n/4+270 {
		t.Errorf("%d of %d were sampled", marked, n)
	}
	for _, name := range []string{"publish amq.default", "enqueue q", "deliver q"} {
		if got := len(c.named(name)); got != marked {
			t.Errorf("%d of %s, want %d", got, name, marked)
		}
	}
	orderly(t, c)
}

// Prometheus sees what became of the spans.
func TestMetrics(t *testing.T) {
	c := collect(t)
	s, stop := c.start(server.Options{HTTP: "127.0.0.1:0"})
	defer stop()
	ch := dial(t, s)
	declare(t, ch, "q", nil)
	confirmed(t, ch, "", "q", amqp.Publishing{Headers: amqp.Table{"traceparent": newProducer().header("01")}})
	c.until(func(_, spans int) bool { return spans == 2 })
	metrics := ""
	until(t, func() bool {
		req, err := http.NewRequestWithContext(within(t), "GET", "http://"+s.HTTPAddr().String()+"/metrics", nil)
		must(t, err)
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		body, err := io.ReadAll(resp.Body)
		must(t, err)
		resp.Body.Close()
		metrics = string(body)
		return strings.Contains(metrics, "\nfiremq_trace_spans_exported_total 2\n")
	})
	for _, line := range []string{"firemq_trace_spans_dropped_total 0", "firemq_trace_export_failures_total 0", "firemq_trace_spans_waiting 0"} {
		if !strings.Contains(metrics, "\n"+line) {
			t.Errorf("%q is not in\n%s", line, metrics)
		}
	}
}
