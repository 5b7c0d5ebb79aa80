package mgmt_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// sample makes the objects that the shapes were taken from, and gives a connection that uses them.
func sample(t *testing.T, c *client) (connection string) {
	t.Helper()
	c.want(201, "PUT", "/vhosts/sales", object{"description": "Sample vhost", "tags": "sample"})
	c.want(201, "PUT", "/users/alice", object{"password": "test12", "tags": "management", "limits": object{"max-channels": 10}})
	c.want(201, "PUT", "/users/ops", object{"password": "test12", "tags": "monitoring,policymaker"})
	c.want(201, "PUT", "/users/nobody", object{"tags": ""})
	c.want(201, "PUT", "/permissions/sales/alice", object{"configure": "^a", "write": ".*", "read": ".*"})
	c.want(204, "PUT", "/vhost-limits/sales/max-connections", object{"value": 100})
	c.want(201, "PUT", "/global-parameters/sample_param", object{"value": object{"a": 1, "b": []any{true, nil}}})
	c.want(201, "PUT", "/policies/sales/limit-audit", object{"pattern": "^audit", "definition": object{"max-length": 500, "message-ttl": 600000}, "apply-to": "queues", "priority": 1})
	c.want(201, "PUT", "/operator-policies/sales/op-limit", object{"pattern": "^audit", "definition": object{"max-length": 400}, "apply-to": "queues"})
	c.want(201, "PUT", "/exchanges/sales/events", object{"type": "topic", "durable": true})
	c.want(201, "PUT", "/topic-permissions/sales/alice", object{"exchange": "events", "write": "^orders", "read": ".*"})
	c.want(201, "PUT", "/exchanges/sales/audit", object{"type": "fanout", "durable": true, "arguments": object{"alternate-exchange": "dead"}})
	c.want(201, "PUT", "/exchanges/sales/dead", object{"type": "direct", "durable": true})
	c.want(201, "PUT", "/queues/sales/orders", object{"durable": true, "arguments": object{"x-max-priority": 5, "x-dead-letter-exchange": "dead"}})
	c.want(201, "PUT", "/queues/sales/audit.log", object{"durable": true})
	c.want(201, "PUT", "/queues/%2F/a%2Fb", object{})
	c.want(201, "POST", "/bindings/sales/e/events/q/orders", object{"routing_key": "orders.#"})
	c.want(201, "POST", "/bindings/sales/e/events/e/audit", object{"routing_key": "#"})
	c.want(201, "POST", "/bindings/sales/e/audit/q/audit.log", object{})
	c.want(201, "POST", "/bindings/sales/e/amq.headers/q/audit.log", object{"arguments": object{"x-match": "any", "kind": "order"}})

	conn, err := amqp.DialConfig("amqp://guest:guest@"+c.s.AMQPAddr().String(), amqp.Config{
		Vhost: "sales", Properties: amqp.Table{
			"connection_name": "sample-app", "product": "Pika Python Client Library", "version": "1.2.0", "platform": "Python 3.11.2",
			"information": "none",
			"capabilities": amqp.Table{"authentication_failure_close": true, "basic.nack": true, "connection.blocked": true,
				"consumer_cancel_notify": true, "publisher_confirms": true},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	one, err := conn.Channel()
	must(err)
	must(one.Confirm(false))
	must(one.Qos(10, 0, false))
	two, err := conn.Channel()
	must(err)
	must(two.Qos(3, 0, false))
	_, err = two.QueueDeclare("reply.excl", false, true, true, false, nil)
	must(err)
	deliveries, err := one.Consume("orders", "worker-1", false, false, false, false, nil)
	must(err)
	_, err = two.Consume("audit.log", "auditor", false, false, false, false, amqp.Table{"x-priority": int32(1)})
	must(err)
	replies, err := two.Consume("reply.excl", "ctag-excl", true, true, false, false, nil)
	must(err)
	publish := func(ch *amqp.Channel, exchange, key string) {
		t.Helper()
		confirm, err := ch.PublishWithDeferredConfirm(exchange, key, false, false, amqp.Publishing{Body: []byte("message"), DeliveryMode: 2, Headers: amqp.Table{"a": 1}})
		must(err)
		if confirm != nil && !confirm.Wait() {
			t.Fatal("not confirmed")
		}
	}
	for range 12 {
		publish(one, "events", "orders.new")
		publish(one, "dead", "nowhere")
	}
	publish(two, "", "reply.excl")
	<-replies
	d := <-deliveries
	must(d.Ack(false))
	_, _, err = one.Get("reply.excl", true)
	must(err)
	c.want(200, "POST", "/exchanges/%2F/amq.default/publish", object{"routing_key": "a/b", "properties": object{}, "payload": "x", "payload_encoding": "string"})
	c.want(200, "POST", "/queues/%2F/a%2Fb/get", object{"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"})
	waitFor(t, func() bool { // the ack, and the second delivery to worker-1
		o := get[object](c, "/queues/sales/orders")
		stats, _ := o["message_stats"].(object)
		return stats["ack"] == 1.0
	})
	list := get[[]object](c, "/connections")
	if len(list) != 1 {
		t.Fatalf("%d connections", len(list))
	}
	return list[0]["name"].(string)
}

// waitFor polls a condition of another process or goroutine.
func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-late.C:
			t.Fatal("it did not happen in time")
		case <-tick.C:
		}
	}
}

// oldFields are fields of RabbitMQ 3.10 that newer versions dropped.
var oldFields = []string{
	"backing_queue_status", "recoverable_slaves", "messages_paged_out", "message_bytes_paged_out", "messages_ready_ram",
	"messages_unacknowledged_ram", "reductions_details", "idle_since", "enable_uaa", "uaa_client_id", "uaa_location",
	"release_series_support_status", "cowboy_opts", "ip", "linger", "exit_on_close", "backlog",
	"config_files", "log_files", "authentication_failure_close", "persister_stats", "ra_open_file_metrics", "metrics_gc_queue_length",
}

// nullable are fields that are null where there is nothing to tell.
func nullable(field string) bool {
	return strings.HasPrefix(field, "ssl_") || strings.HasPrefix(field, "peer_cert_") ||
		slices.Contains([]string{"policy", "operator_policy", "exclusive_consumer_tag", "single_active_consumer_tag"}, field)
}

// erlang are the parts of Erlang's memory, of which a Go program has none.
func erlang(at string, shape any) bool { return strings.HasSuffix(at, ".memory") && shape == "int" }

// TestShapes compares the fields and types of every GET with those of RabbitMQ, recorded in shapes.json: each
// field that RabbitMQ has must be there, with its type.
func TestShapes(t *testing.T) {
	c := start(t)
	connection := sample(t, c)
	p, err := os.ReadFile("testdata/shapes.json")
	if err != nil {
		t.Fatal(err)
	}
	var shapes map[string]any
	if err := json.Unmarshal(p, &shapes); err != nil {
		t.Fatal(err)
	}
	node := get[object](c, "/overview")["node"].(string)
	for path, want := range shapes {
		t.Run(path, func(t *testing.T) {
			at := strings.NewReplacer("rabbit@localhost", esc(node), "/connections/N", "/connections/"+esc(connection),
				"/channels/N", "/channels/"+esc(connection+" (1)"), "%2523", "%2523",
				"port-listener/7672", fmt.Sprint("port-listener/", c.s.AMQPAddr().String()[strings.LastIndex(c.s.AMQPAddr().String(), ":")+1:])).Replace(path)
			a := c.want(200, "GET", at, nil)
			d := json.NewDecoder(strings.NewReader(a.body))
			d.UseNumber()
			var got any
			if err := d.Decode(&got); err != nil {
				t.Fatalf("%v: %s", err, a.body)
			}
			for _, fault := range differ(want, got, "") {
				t.Error(fault)
			}
		})
	}
}

// differ lists where got lacks what want has.
func differ(want, got any, at string) (faults []string) {
	bad := func(format string, args ...any) { faults = append(faults, at+": "+fmt.Sprintf(format, args...)) }
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			bad("%v is no object", got)
			return
		}
		for k, sub := range w {
			if slices.Contains(oldFields, k) || strings.HasPrefix(k, "rabbit@") || erlang(at, sub) {
				continue
			}
			v, ok := g[k]
			if !ok {
				bad("no field %q", k)
				continue
			}
			if v == nil && nullable(k) {
				continue
			}
			faults = append(faults, differ(sub, v, at+"."+k)...)
		}
	case []any:
		g, ok := got.([]any)
		if !ok {
			if o, isObject := got.(map[string]any); isObject && len(w) == 0 && len(o) == 0 {
				return // [] stands for an empty object in 3.10
			}
			bad("%v is no list", got)
			return
		}
		if len(w) == 0 || at == "" && len(g) == 0 && (strings.Contains(fmt.Sprint(w), "doc_url") || strings.Contains(fmt.Sprint(w), "javascript")) {
			return
		}
		if len(g) == 0 && !strings.HasSuffix(at, ".tags") {
			bad("the list is empty")
		}
		for i := range g {
			faults = append(faults, differ(w[0], g[i], fmt.Sprintf("%s[%d]", at, i))...)
		}
	case string:
		kind := "null"
		switch g := got.(type) {
		case bool:
			kind = "bool"
		case string:
			kind = "string"
		case json.Number:
			kind = "int"
			if strings.ContainsAny(g.String(), ".e") {
				kind = "float"
			}
		case map[string]any:
			kind = "object"
		case []any:
			kind = "list"
		}
		if w == "null" || w == "any" || kind == w || w == "int" && fmt.Sprint(got) == "0.0" {
			return
		}
		bad("%s, want %s", kind, w)
	}
	return faults
}
