package oracle

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// statisticsLimit is how long RabbitMQ may take to have counted everything: it does so every five seconds.
const statisticsLimit = 90 * time.Second

// connect opens the same connections to both brokers, which use the objects of vhost live, and waits until both tell of
// them: {connection} has the channels {channel} and {second}, {other} is another user's.
func (c *comparison) connect() {
	c.t.Helper()
	for _, s := range [...]*apiSide{c.rabbit, c.fire} {
		s.connect(c.t)
	}
	for _, s := range [...]*apiSide{c.rabbit, c.fire} {
		s.await(c.t)
	}
}

func (c *comparison) disconnect() {
	for _, s := range [...]*apiSide{c.rabbit, c.fire} {
		for _, f := range slices.Backward(s.close) {
			f()
		}
		s.close = nil
	}
}

// traffic is what connect has both brokers do, and what they count of it.
const (
	liveRouted  = 12 // messages confirmed by each of channel 1 and the exchange
	liveDropped = 5
	liveQueue   = "orders"
)

func (s *apiSide) dial(t *testing.T, user, password, name string) *amqp.Connection {
	t.Helper()
	conn, err := amqp.DialConfig("amqp://"+user+":"+password+"@"+s.amqp, amqp.Config{
		Vhost: "live", Heartbeat: 30 * time.Second, Properties: amqp.Table{
			"connection_name": name, "product": "oracle", "version": "1", "platform": "Go", "information": "none",
			"capabilities": amqp.Table{"authentication_failure_close": true, "basic.nack": true, "connection.blocked": true,
				"consumer_cancel_notify": true, "publisher_confirms": true, "exchange_exchange_bindings": true},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.close = append(s.close, func() { conn.Close() })
	return conn
}

func (s *apiSide) connect(t *testing.T) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	conn := s.dial(t, "guest", "guest", "the first")
	one, err := conn.Channel()
	must(err)
	two, err := conn.Channel()
	must(err)
	three, err := s.dial(t, "http-management", "pw", "the other").Channel()
	must(err)
	must(one.Confirm(false))
	must(one.Qos(3, 0, false))
	must(two.Qos(10, 0, false))
	consume := func(ch *amqp.Channel, queue, tag string, autoAck, exclusive bool, arguments amqp.Table) <-chan amqp.Delivery {
		t.Helper()
		d, err := ch.Consume(queue, tag, autoAck, exclusive, false, false, arguments)
		must(err)
		return d
	}
	publish := func(exchange, key string, mandatory bool) {
		t.Helper()
		confirm, err := one.PublishWithDeferredConfirm(exchange, key, mandatory, false, amqp.Publishing{Body: []byte("message"), DeliveryMode: 2, Headers: amqp.Table{"a": 1}})
		must(err)
		if !confirm.Wait() {
			t.Fatal("not confirmed")
		}
	}
	_, err = two.QueueDeclare("mine", false, true, true, false, nil)
	must(err)
	orders := consume(one, liveQueue, "worker", false, false, nil)
	consume(two, "audit", "auditor", false, false, amqp.Table{"x-priority": int32(1)})
	mine := consume(two, "mine", "only", true, true, nil)
	consume(two, "single", "first", false, false, nil)
	consume(one, "single", "second", false, false, nil)
	consume(three, "other", "foreign", false, false, nil)
	for range liveRouted {
		publish("events", "orders.new", false)
	}
	for range liveDropped {
		publish("dead", "nowhere", false)
	}
	returns := one.NotifyReturn(make(chan amqp.Return, 1))
	publish("dead", "nowhere", true)
	<-returns
	must(two.Publish("", "mine", false, false, amqp.Publishing{Body: []byte("x")}))
	<-mine
	publish("", "got", false)
	publish("", "got", false)
	d, ok, err := two.Get("got", false)
	if must(err); !ok {
		t.Fatal("nothing to get")
	}
	must(d.Ack(false))
	if _, ok, err = two.Get("got", true); err != nil || !ok {
		t.Fatal("nothing to get without an ack", err)
	}
	if _, ok, err = two.Get("got", true); err != nil || ok {
		t.Fatal("one more to get", err)
	}
	first := <-orders
	must(first.Ack(false))
	second := <-orders
	must(second.Nack(false, true)) // comes again: three more are unacknowledged then
	// A round trip on each channel: all of the above is done.
	for _, ch := range [...]*amqp.Channel{one, two, three} {
		must(ch.Qos(3, 0, false))
	}
	var list []struct {
		Name   string
		Client struct {
			Name string `json:"connection_name"`
		} `json:"client_properties"`
	}
	s.until(t, "/connections", func(p []byte) bool {
		if json.Unmarshal(p, &list) != nil || len(list) < 2 {
			return false
		}
		for _, l := range list {
			switch l.Client.Name {
			case "the first":
				s.names["{connection}"] = l.Name
			case "the other":
				s.names["{other}"] = l.Name
			}
		}
		return s.names["{connection}"] != "" && s.names["{other}"] != ""
	})
}

// until asks until an answer is as it should be.
func (s *apiSide) until(t *testing.T, path string, ok func(answer []byte) bool) {
	t.Helper()
	for deadline := time.Now().Add(statisticsLimit); ; <-time.After(100 * time.Millisecond) {
		a := ask(t, s.addr, guest, "GET", s.fill(path), "")
		if a.status == 200 && ok(a.body) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s at %s: %d %s", path, s.addr, a.status, a.body)
		}
	}
}

// await waits until statistics have all that connect did.
func (s *apiSide) await(t *testing.T) {
	t.Helper()
	for path, has := range map[string][]string{
		"/channels/{connection}%20(1)": {`"confirm":`, `"return_unroutable":1`, `"redeliver":1`, `"ack":1`, `"consumer_count":2`, `"messages_unacknowledged":3`, `"prefetch_count":3`},
		"/channels/{connection}%20(2)": {`"get":1`, `"get_empty":1`, `"get_no_ack":1`, `"consumer_count":3`, `"prefetch_count":3`},
		"/channels/{other}%20(1)":      {`"consumer_count":1`},
		"/connections/{connection}":    {`"channels":2`, `"recv_oct_details"`},
		"/connections/{other}":         {`"channels":1`, `"recv_oct_details"`},
		"/queues/live/" + liveQueue:    {`"ack":1`, `"messages_unacknowledged":3`, `"messages_ready":8`, `"consumers":1`, fmt.Sprint(`"publish":`, liveRouted)},
		"/queues/live/got":             {`"get":1`, `"get_no_ack":1`},
		"/queues/live/mine":            {`"deliver_no_ack":1`, `"owner_pid_details"`},
		"/queues/live/single":          {`"consumers":2`, `"single_active_consumer_tag":"first"`},
		"/exchanges/live/events":       {fmt.Sprint(`"publish_in":`, liveRouted), fmt.Sprint(`"publish_out":`, liveRouted)},
		"/exchanges/live/dead":         {`"publish_in":`},
		"/vhosts/live":                 {`"get_empty":1`, `"redeliver":1`, `"drop_unroutable":`, `"messages_unacknowledged":`, `"recv_oct"`},
		"/overview":                    {`"drop_unroutable":`, `"ack":`, `"redeliver":`, `"get_empty":`},
		"/nodes/{node}":                {`"mem_used_details"`, `"connection_created"`},
		"/consumers/live":              {`"foreign"`, `"second"`},
		"/queues/live/audit":           {`"consumers":1`, `"state"`},
		"/queues/live/other":           {`"consumers":1`, `"state"`},
	} {
		s.until(t, path, func(p []byte) bool {
			return !slices.ContainsFunc(has, func(part string) bool { return !strings.Contains(string(p), part) })
		})
	}
}

var accessUsers = []httpUser{nobody, "http-plain", "http-management", "http-policymaker", "http-monitoring", "http-elsewhere"}

// access asks for everything that guest has asked for with GET as users who may less.
func (c *comparison) access() {
	c.t.Helper()
	for _, r := range slices.Clone(c.asked) {
		if r.method != "GET" && r.method != "OPTIONS" {
			continue
		}
		var faults []string
		users := make(map[string][]string) // by fault
		for _, user := range accessUsers {
			before := len(c.found)
			line := fmt.Sprintf("[%s] %s %s", user, r.method, r.path)
			c.play(line, user, r, true)
			for _, f := range c.found[before:] {
				f = strings.TrimPrefix(f, line+" => ")
				if users[f] == nil {
					faults = append(faults, f)
				}
				users[f] = append(users[f], cmp.Or(string(user), "nobody"))
			}
			c.found = c.found[:before]
		}
		for _, f := range faults {
			c.fault(fmt.Sprintf("[%s] %s %s", strings.Join(users[f], " "), r.method, r.path), f)
		}
	}
}

// mutate sends, for the first good request of each kind that writes with an object in its body, that with something
// wrong in it, and then as it was.
func (c *comparison) mutate(r asked, status int) {
	c.t.Helper()
	if r.method != "PUT" && r.method != "POST" || status >= 300 || !strings.HasPrefix(r.body, "{") {
		return
	}
	kind := r.method + " " + strings.Join(firstSegments(r.path), "/")
	if c.mutated[kind] {
		return
	}
	c.mutated[kind] = true
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(r.body), &object); err != nil {
		c.t.Fatalf("%s: %v", r.path, err)
	}
	bodies := []string{"{", "[]", `"text"`, "5", "true", "\xff"}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		with := func(value string) {
			changed := maps.Clone(object)
			if changed[key] = json.RawMessage(value); value == "" {
				delete(changed, key)
			}
			p, err := json.Marshal(changed)
			if err != nil {
				c.t.Fatal(err)
			}
			bodies = append(bodies, string(p))
		}
		for _, value := range []string{"", "null", "5", "-1", "1.5", `"x"`, `""`, "true", "[]", "{}", `["a"]`, `{"a":"b"}`} {
			if value != string(object[key]) {
				with(value)
			}
		}
	}
	for _, body := range bodies {
		changed := asked{r.method, r.path, body}
		c.play(fmt.Sprintf("%s %s %s", r.method, r.path, body), guest, changed, false)
	}
	c.play(fmt.Sprintf("%s %s %s, again", r.method, r.path, r.body), guest, r, true)
	if r.method == "PUT" {
		c.play(fmt.Sprintf("GET %s, after those", r.path), guest, asked{method: "GET", path: r.path}, true)
	}
}

// firstSegments is what a path begins with, and ends with: its kind.
func firstSegments(path string) []string {
	path, _, _ = strings.Cut(path, "?")
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch parts[0] {
	case "queues", "exchanges":
		if len(parts) > 3 {
			return []string{parts[0], parts[3]}
		}
	case "vhost-limits", "user-limits", "vhosts":
		return append([]string{parts[0]}, parts[2:]...)
	case "definitions":
		return []string{parts[0], fmt.Sprint(len(parts))}
	}
	return parts[:1]
}
