package mgmt_test

import (
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/mgmt/api"
)

// dial opens a channel as guest.
func dial(t *testing.T, c *client) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial("amqp://guest:guest@" + c.s.AMQPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

func bodies(p api.Browse) string {
	var list []string
	for _, m := range p.Messages {
		list = append(list, m.Payload)
	}
	return strings.Join(list, " ")
}

func TestBrowse(t *testing.T) {
	c := start(t)
	c.want(201, "PUT", "/queues/%2F/q", object{})
	for i := range 10 {
		kind := []string{"even", "odd"}[i%2]
		c.want(200, "POST", "/exchanges/%2F/amq.default/publish", object{
			"routing_key": "q", "payload": fmt.Sprint("m", i), "payload_encoding": "string",
			"properties": object{"headers": object{"kind": kind, "n": i}, "content_type": "text/" + kind},
		})
	}
	before := get[object](c, "/queues/%2F/q")
	const path = "/queues/%2F/q/messages"
	p := get[api.Browse](c, path+"?count=4")
	if bodies(p) != "m0 m1 m2 m3" || !p.More || p.Scanned != 4 {
		t.Errorf("%+v", p)
	}
	if m := p.Messages[1]; m.Sequence != 2 || m.State != "ready" || m.Age == nil || *m.Age < 0 || m.Redelivered ||
		m.RoutingKey != "q" || m.PayloadEncoding != "string" || m.Properties["content_type"] != "text/odd" {
		t.Errorf("%+v", m)
	}
	// What leaves does not move the next page.
	c.want(200, "POST", "/queues/%2F/q/get", object{"count": 2, "ackmode": "ack_requeue_false", "encoding": "auto"})
	p = get[api.Browse](c, path+"?count=4&cursor="+p.Cursor)
	if bodies(p) != "m4 m5 m6 m7" {
		t.Errorf("%+v", p)
	}
	if p = get[api.Browse](c, path+"?cursor="+p.Cursor); bodies(p) != "m8 m9" || p.More {
		t.Errorf("%+v", p)
	}
	for query, want := range map[string]string{
		"offset=6":                              "m8 m9",
		"offset=60":                             "",
		"truncate=1&count=2":                    "m m",
		"encoding=base64&count=1":               "bTI=",
		"header=kind=odd":                       "m3 m5 m7 m9",
		"header=kind=odd&header=n=5":            "m5",
		"header=absent":                         "",
		"header=kind&body=9":                    "m9",
		"header=n=5|7&use_regex=true":           "m5 m7",
		"property=content_type=text/even":       "m2 m4 m6 m8",
		"property=content_type=odd":             "",
		"property=priority":                     "",
		"body=m[34]&use_regex=true":             "m3 m4",
		"routing_key=other":                     "",
		"routing_key=^q$&use_regex=true&body=4": "m4",
		"exchange=&count=1":                     "m2",
		"exchange=x":                            "",
		"older_than=3600":                       "",
		"newer_than=3600&body=m2":               "m2",
		"state=unacked":                         "",
		"state=delayed":                         "",
	} {
		q := strings.NewReplacer("^", "%5E", "|", "%7C", "$", "%24", "[", "%5B", "]", "%5D").Replace(query)
		if got := bodies(get[api.Browse](c, path+"?"+q)); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	// A search that looked at as much as it may goes on where it ended.
	p = get[api.Browse](c, path+"?body=m7&scan=3")
	if bodies(p) != "" || !p.More || p.Scanned != 3 {
		t.Errorf("%+v", p)
	}
	if p = get[api.Browse](c, path+"?body=m7&scan=3&cursor="+p.Cursor); bodies(p) != "m7" {
		t.Errorf("%+v", p)
	}
	for query, reason := range map[string]string{
		"state=gone": "state is none of", "property=contenttype=x": "contenttype is no property: content_type, ", "cursor=x": "no cursor", "count=0": "count is no number", "count=x": "count is no number",
		"body=(&use_regex=true": "no regular expression", "state=unacked&cursor=ready.0.0.0": "another state", "older_than=x": "not_integer",
		"encoding=z": "Unsupported encoding", "body=" + strings.Repeat("x", 5000): "longer than",
	} {
		if a := c.do("GET", path+"?"+query, nil); a.status != 400 || !strings.Contains(a.reason(), reason) {
			t.Errorf("%s: %d %s", query, a.status, a.body)
		}
	}
	after := get[object](c, "/queues/%2F/q")
	if after["messages_ready"] != 8.0 || after["oldest_message_age"] == nil {
		t.Errorf("before %v, after %v", before, after)
	}
	got := c.want(200, "POST", "/queues/%2F/q/get", object{"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"})
	if !strings.Contains(got.body, `"redelivered":false`) {
		t.Errorf("browsed messages are redelivered: %s", got.body)
	}
	c.want(404, "GET", "/queues/%2F/absent/messages", nil)
	u := c.addUser("app", "management").grant("/", ".*", ".*", "^other$")
	u.want(401, "GET", path, nil)
	u.want(401, "GET", "/queues/%2F/q/unacked", nil)
}

func TestBrowseUnackedAndDelayed(t *testing.T) {
	c := start(t)
	ch := dial(t, c)
	q, err := ch.QueueDeclare("q", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if err := ch.PublishWithContext(t.Context(), "", q.Name, false, false, amqp.Publishing{Body: fmt.Append(nil, "m", i)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		if err := ch.PublishWithContext(t.Context(), "", q.Name, false, false, amqp.Publishing{
			Headers: amqp.Table{"x-delay": 3_600_000 - 60_000*i}, Body: fmt.Append(nil, "later", i),
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := ch.Qos(2, 0, false); err != nil {
		t.Fatal(err)
	}
	list, err := ch.Consume(q.Name, "worker", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-list
	<-list
	if p := get[api.Browse](c, "/queues/%2F/q/messages"); bodies(p) != "m2 m3 m4" {
		t.Errorf("ready %+v", p)
	}
	p := get[api.Browse](c, "/queues/%2F/q/messages?state=unacked")
	if bodies(p) != "m0 m1" || p.Messages[0].Unacked == nil || p.Messages[0].Unacked.ConsumerTag != "worker" {
		t.Errorf("unacked %+v", p)
	}
	if p := get[api.Browse](c, "/queues/%2F/q/messages?state=delayed"); bodies(p) != "later1 later0" || p.Messages[0].DueAt == 0 {
		t.Errorf("delayed %+v", p)
	}
	u := get[[]api.UnackedMessage](c, "/queues/%2F/q/unacked")
	if len(u) != 2 || u[1].Sequence != 2 || u[1].ConsumerTag != "worker" || u[1].Channel != 1 || u[1].User != "guest" || u[1].Age < 0 ||
		!strings.Contains(u[1].Connection, " -> ") || u[1].DeliveryTag != 2 {
		t.Errorf("%+v", u)
	}
	name := get[[]object](c, "/connections")[0]["name"]
	if u[0].Connection != name {
		t.Errorf("connection %q, want %q", u[0].Connection, name)
	}
}
