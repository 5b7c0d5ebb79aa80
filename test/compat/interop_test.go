package compat

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/firemq/firemq/test/internal/brokertest"
	amqp "github.com/rabbitmq/amqp091-go"
)

// pikaPublishes sends one message with properties and headers of many types to queue argv[1].
const pikaPublishes = `
import datetime, decimal, os, sys
import pika

connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
channel = connection.channel()
channel.queue_declare(sys.argv[1], durable=True)
channel.confirm_delivery()
channel.basic_publish("", sys.argv[1], "grüße".encode(), pika.BasicProperties(
    content_type="text/plain", content_encoding="identity", delivery_mode=2, priority=7, correlation_id="c-1",
    reply_to="answers", expiration="60000", message_id="m-1", timestamp=1700000000, type="greeting", user_id="guest", app_id="suite",
    headers={
        "text": "grüße", "true": True, "int": -7, "long": 2**40, "none": None, "list": [1, "two", [False]],
        "table": {"deep": {"n": 1}}, "time": datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone.utc), "decimal": decimal.Decimal("12.5"),
    }))
connection.close()
`

// pikaGets takes one message from queue argv[1] and prints it as JSON.
const pikaGets = `
import json, os, sys
import pika

connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
method, properties, body = connection.channel().basic_get(sys.argv[1], auto_ack=True)
print(json.dumps({"body": body.decode(), "key": method.routing_key, "exchange": method.exchange, "redelivered": method.redelivered,
    "content_type": properties.content_type, "delivery_mode": properties.delivery_mode, "headers": properties.headers}))
connection.close()
`

func pika(t *testing.T, amqpURL, program, queue string) string {
	t.Helper()
	out, err := run(t, programLimit, amqpURL, ".", python(t), "-c", program, queue)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// declare declares a queue that also gets what is published to amq.direct with the key "k", and
// gives the number of its messages.
func declare(t *testing.T, amqpURL, queue string) int {
	t.Helper()
	conn, err := amqp.Dial(amqpURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	q, err := ch.QueueDeclare(queue, false, true, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind(queue, "k", "amq.direct", false, nil); err != nil {
		t.Fatal(err)
	}
	return q.Messages
}

func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	return v
}

func want(t *testing.T, got, want map[string]any) {
	t.Helper()
	for key, w := range want {
		if !reflect.DeepEqual(got[key], w) {
			t.Errorf("%s: got %#v, want %#v", key, got[key], w)
		}
	}
}

// What pika publishes over AMQP 0-9-1, "firemq sub" reads over FireMQ's protocol.
func TestFromPikaToSub(t *testing.T) {
	b := brokertest.Shared(t)
	const queue = "interop.from-pika"
	pika(t, b.AMQPURL, pikaPublishes, queue)
	r := brokertest.Run(t, "", []string{"FIREMQ_URL=" + b.FireURL}, "sub", queue, "--count", "1", "--json")
	if r.Code != 0 {
		t.Fatalf("firemq sub: %+v", r)
	}
	msg := object(t, r.Stdout)
	want(t, msg, map[string]any{"body": "grüße", "exchange": "", "routing_key": queue, "redelivered": false})
	properties, _ := msg["properties"].(map[string]any)
	want(t, properties, map[string]any{
		"content_type": "text/plain", "content_encoding": "identity", "priority": 7.0, "correlation_id": "c-1", "reply_to": "answers",
		"expiration": 60000.0, "message_id": "m-1", "timestamp": 1_700_000_000.0, "type": "greeting", "user_id": "guest", "app_id": "suite",
	})
	headers, _ := msg["headers"].(map[string]any)
	want(t, headers, map[string]any{
		"text": "grüße", "true": true, "int": -7.0, "long": float64(1 << 40), "none": nil, "list": []any{1.0, "two", []any{false}},
		"table": map[string]any{"deep": map[string]any{"n": 1.0}}, "time": 1704153600.0, "decimal": 12.5,
	})
	if len(headers) != 9 {
		t.Errorf("%d headers, want 9: %v", len(headers), headers)
	}
}

// What "firemq pub" publishes, pika reads; from an argument, from standard input and from a file.
func TestFromPubToPika(t *testing.T) {
	b := brokertest.Shared(t)
	const queue = "interop.from-pub"
	env := []string{"FIREMQ_URL=" + b.FireURL}
	declare(t, b.AMQPURL, queue)
	file := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(file, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, stdin string
		args        []string
		want        map[string]any
	}{
		{"argument", "", []string{"pub", "--queue", queue, "grüße", "-H", "trace=abc", "--content-type", "text/plain"},
			map[string]any{"body": "grüße", "content_type": "text/plain", "headers": map[string]any{"trace": "abc"}, "key": queue, "exchange": "", "redelivered": false}},
		{"standard input", "from a pipe", []string{"pub", "--queue", queue}, map[string]any{"body": "from a pipe"}},
		{"file", "", []string{"pub", "--queue", queue, "--file", file}, map[string]any{"body": "from a file"}},
		{"exchange and key", "", []string{"pub", "amq.direct", "k", "routed", "--content-type", "application/json"}, map[string]any{"exchange": "amq.direct", "key": "k", "body": "routed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := brokertest.Run(t, c.stdin, env, c.args...); r.Code != 0 {
				t.Fatalf("firemq pub: %+v", r)
			}
			want(t, object(t, pika(t, b.AMQPURL, pikaGets, queue)), c.want)
		})
	}
}

// Many pipelined publishes arrive complete and in order.
func TestPubCountToSub(t *testing.T) {
	b := brokertest.Shared(t)
	const queue = "interop.count"
	env := []string{"FIREMQ_URL=" + b.FireURL}
	declare(t, b.AMQPURL, queue)
	if r := brokertest.Run(t, "", env, "pub", "--queue", queue, "--count", "10000", "load"); r.Code != 0 {
		t.Fatalf("firemq pub: %+v", r)
	}
	if n := declare(t, b.AMQPURL, queue); n != 10000 {
		t.Fatalf("the queue holds %d messages, want 10000", n)
	}
}

// A look with --peek leaves the message where it was.
func TestSubPeek(t *testing.T) {
	b := brokertest.Shared(t)
	const queue = "interop.peek"
	pika(t, b.AMQPURL, pikaPublishes, queue)
	env := []string{"FIREMQ_URL=" + b.FireURL}
	for range 2 {
		r := brokertest.Run(t, "", env, "sub", queue, "--peek", "--count", "1", "--json")
		if r.Code != 0 {
			t.Fatalf("firemq sub --peek: %+v", r)
		}
		want(t, object(t, r.Stdout), map[string]any{"body": "grüße"})
	}
	if r := brokertest.Run(t, "", env, "sub", queue, "--count", "1"); r.Code != 0 {
		t.Fatalf("firemq sub: %+v", r)
	}
}
