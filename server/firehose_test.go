package server

import (
	"net/http"
	"reflect"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/mgmt"
	fire "github.com/firemq/firemq/sdk/go"
)

// TestFirehoseAcrossProtocols turns tracing on as RabbitMQ's tools do, and reads what a client of the other
// protocol published.
func TestFirehoseAcrossProtocols(t *testing.T) {
	s, stop := run(t, Options{AMQP: free, Fire: free, HTTP: free})
	defer stop()
	conn, err := amqp.Dial("amqp://" + s.AMQPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{"q", "trace"} {
		if _, err := ch.QueueDeclare(q, false, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := ch.QueueBind("trace", "publish.#", "amq.rabbitmq.trace", false, nil); err != nil {
		t.Fatal(err)
	}
	copies, err := ch.Consume("trace", "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}

	req, err := http.NewRequestWithContext(within(t), "PUT", "http://"+s.HTTPAddr().String()+"/api/vhosts/%2F", strings.NewReader(`{"tracing":true}`))
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("guest", "guest")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		t.Fatalf("PUT: %s", resp.Status)
	}

	c, err := fire.Dial(within(t), "fire://"+s.FireAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m := fire.Message{Key: "q", Body: []byte("one"), Headers: map[string]any{"n": int64(1)}, Properties: fire.Properties{MessageID: "id"}}
	if err := c.Publish(within(t), m); err != nil {
		t.Fatal(err)
	}
	select {
	case d := <-copies:
		name, _ := d.Headers["connection"].(string)
		if !strings.HasSuffix(name, " -> "+s.FireAddr().String()) {
			t.Errorf("the connection is called %q", name)
		}
		delete(d.Headers, "connection")
		want := amqp.Table{
			"exchange_name": "", "routing_keys": []any{"q"}, "routed_queues": []any{"q"}, "node": mgmt.NodeName(), "vhost": "/",
			"channel": int32(1), "user": "guest",
			"properties": amqp.Table{"message_id": "id", "delivery_mode": int32(2), "headers": amqp.Table{"n": int64(1)}},
		}
		if !reflect.DeepEqual(normal(d.Headers), normal(want)) || string(d.Body) != "one" || d.RoutingKey != "publish." {
			t.Errorf("got %q with %v\nwant %v", d.Body, d.Headers, want)
		}
	case <-within(t).Done():
		t.Fatal("nothing was copied")
	}
}

// normal makes all integers int64: which width a protocol gives them does not matter.
func normal(v any) any {
	switch v := v.(type) {
	case int32:
		return int64(v)
	case amqp.Table:
		out := amqp.Table{}
		for k, x := range v {
			out[k] = normal(x)
		}
		return out
	}
	return v
}
