package conformance

import (
	"strings"
)

func declareQueue(s *scene) {
	s.connect()
	r := s.do("declare_queue", fields{"name": "jobs", "args": fields{"x-max-length": 10, "x-overflow": "drop-head"}})
	s.equal("declare_queue", map[string]any(r), map[string]any{"name": "jobs", "messages": 0, "consumers": 0})
	for _, q := range []fields{
		{"name": "transient", "durable": false, "exclusive": true},
		{"name": "auto", "durable": true, "auto_delete": true},
		{"name": "ünïcode/ %.#*"},
		{"name": strings.Repeat("n", 255)},
	} {
		s.queue(q["name"].(string), q)
	}
}

func serverNamedQueue(s *scene) {
	s.connect()
	var names [2]string
	for i := range names {
		names[i], _ = s.do("declare_queue", fields{"name": "", "exclusive": true})["name"].(string)
		if !strings.HasPrefix(names[i], "amq.gen-") {
			s.failf("the name the broker chose is %q, want amq.gen-...", names[i])
		}
	}
	if names[0] == names[1] {
		s.failf("two queues are called %s", names[0])
	}
	s.publish("", names[1], "m")
	s.take(names[1], "m")
	s.empty(names[0])
}

func redeclareEqual(s *scene) {
	s.connect()
	args := fields{"x-message-ttl": 60000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
	s.queue("q", fields{"args": args})
	s.queue("q", fields{"args": args})
	e := fields{"name": "e", "type": "topic", "args": fields{"alternate-exchange": "amq.fanout"}}
	s.do("declare_exchange", e)
	s.do("declare_exchange", e)
	s.do("declare_exchange", merge(fields{"passive": true}, e))
}

func redeclareDifferent(s *scene) {
	s.connect()
	s.queue("q", nil)
	s.refused("declare_queue", fields{"name": "q", "durable": false}, "server", 406, "inequivalent arg 'durable'")
	s.refused("declare_queue", fields{"name": "q", "args": fields{"x-max-length": 5}}, "server", 406, "inequivalent arg 'x-max-length'")
	s.do("declare_exchange", fields{"name": "e", "type": "direct"})
	s.refused("declare_exchange", fields{"name": "e", "type": "fanout"}, "server", 406, "inequivalent arg 'type'")
	s.queue("q", nil)
}

func passiveQueue(s *scene) {
	s.connect()
	s.queue("q", nil)
	s.publish("", "q", "1")
	s.publish("", "q", "2")
	s.queue("other", nil)
	s.subscribe("other", nil)
	r := s.do("declare_queue", fields{"name": "q", "passive": true})
	s.equal("q", map[string]any(r), map[string]any{"name": "q", "messages": 2, "consumers": 0})
	r = s.do("declare_queue", fields{"name": "other", "passive": true, "durable": false})
	s.equal("other", map[string]any(r), map[string]any{"name": "other", "messages": 0, "consumers": 1})
}

func passiveMissing(s *scene) {
	s.connect()
	s.refused("declare_queue", fields{"name": "nope", "passive": true}, "server", 404, "NOT_FOUND - no queue 'nope'")
	s.refused("declare_exchange", fields{"name": "nope", "passive": true}, "server", 404, "NOT_FOUND - no exchange 'nope'")
	s.refused("purge_queue", fields{"name": "nope"}, "server", 404, "NOT_FOUND")
	s.refused("get", fields{"queue": "nope"}, "server", 404, "NOT_FOUND")
	s.refused("subscribe", fields{"sub": "nope", "queue": "nope"}, "server", 404, "NOT_FOUND")
	s.refused("bind", fields{"queue": "nope", "exchange": "amq.direct", "key": "k"}, "server", 404, "NOT_FOUND")
	s.queue("q", nil) // the connection goes on
}

func reservedName(s *scene) {
	s.connect()
	s.refused("declare_queue", fields{"name": "amq.mine"}, "server", 403, "ACCESS_REFUSED")
	s.refused("declare_exchange", fields{"name": "amq.mine"}, "server", 403, "ACCESS_REFUSED")
}

func exclusiveQueue(s *scene) {
	s.connect()
	s.queue("mine", fields{"exclusive": true, "durable": false})
	_, err := s.amqp().QueueDeclarePassive("mine", false, false, false, false, nil)
	s.refusedCode(err, 405)
	_, err = s.amqp().QueueDeclare("theirs", false, false, true, false, nil)
	s.must(err)
	s.refused("declare_queue", fields{"name": "theirs", "passive": true}, "server", 405, "RESOURCE_LOCKED")
	s.refused("get", fields{"queue": "theirs"}, "server", 405, "RESOURCE_LOCKED")
	s.do("close", nil)
	s.eventually("the exclusive queue is gone", func() bool {
		_, err := s.amqp().QueueDeclarePassive("mine", false, false, true, false, nil)
		return err != nil && strings.Contains(err.Error(), "404")
	})
}

func autoDeleteQueue(s *scene) {
	s.connect()
	s.queue("q", fields{"auto_delete": true})
	s.publish("", "q", "m")
	a, b := s.subscribe("q", fields{"prefetch": 1}), s.subscribe("q", fields{"prefetch": 1})
	s.do("unsubscribe", fields{"sub": a})
	s.do("declare_queue", fields{"name": "q", "passive": true})
	s.do("unsubscribe", fields{"sub": b})
	s.refused("declare_queue", fields{"name": "q", "passive": true}, "server", 404, "NOT_FOUND")
}

func deleteQueue(s *scene) {
	s.connect()
	s.queue("q", nil)
	s.publish("", "q", "1")
	s.publish("", "q", "2")
	s.refused("delete_queue", fields{"name": "q", "if_empty": true}, "server", 406, "PRECONDITION_FAILED")
	sub := s.subscribe("q", nil)
	s.ack(s.next(sub, "1"))
	s.ack(s.next(sub, "2"))
	s.refused("delete_queue", fields{"name": "q", "if_unused": true}, "server", 406, "PRECONDITION_FAILED")
	s.do("unsubscribe", fields{"sub": sub})
	s.publish("", "q", "3")
	s.publish("", "q", "4")
	s.publish("", "q", "5")
	s.equal("deleted messages", s.do("delete_queue", fields{"name": "q", "if_unused": true})["messages"], 3)
	s.refused("declare_queue", fields{"name": "q", "passive": true}, "server", 404, "NOT_FOUND")
	s.equal("deleted messages of no queue", s.do("delete_queue", fields{"name": "q"})["messages"], 0)
}

func purgeQueue(s *scene) {
	s.connect()
	s.queue("q", nil)
	for range 3 {
		s.publish("", "q", "m")
	}
	s.get("q", "m") // unacknowledged: stays
	s.equal("purged", s.do("purge_queue", fields{"name": "q"})["messages"], 2)
	s.equal("purged", s.do("purge_queue", fields{"name": "q"})["messages"], 0)
	s.empty("q")
}

func exchangeTypes(s *scene) {
	s.connect()
	for _, q := range []string{"a", "b"} {
		s.queue(q, nil)
	}
	exchange := func(kind string) string {
		s.do("declare_exchange", fields{"name": "x." + kind, "type": kind, "durable": kind != "fanout"})
		return "x." + kind
	}
	bind := func(e, q, key string, args fields) {
		s.do("bind", fields{"exchange": e, "queue": q, "key": key, "args": args})
	}
	goes := func(e, key, body string, headers fields, to ...string) {
		s.do("publish", fields{"exchange": e, "key": key, "body": body, "headers": headers})
		for _, q := range to {
			m := s.take(q, body)
			s.equal("exchange", *m.Exchange, e)
			s.equal("routing_key", *m.RoutingKey, key)
		}
		s.empty("a")
		s.empty("b")
	}
	e := exchange("direct")
	bind(e, "a", "red", fields{})
	bind(e, "b", "blue", fields{})
	bind(e, "b", "red", fields{})
	goes(e, "red", "direct both", fields{}, "a", "b")
	goes(e, "blue", "direct one", fields{}, "b")
	goes(e, "green", "direct none", fields{})
	s.do("unbind", fields{"exchange": e, "queue": "b", "key": "red"})
	goes(e, "red", "direct after unbind", fields{}, "a")

	e = exchange("fanout")
	bind(e, "a", "", fields{})
	bind(e, "b", "ignored", fields{})
	goes(e, "any", "fanout", fields{}, "a", "b")

	e = exchange("topic")
	bind(e, "a", "*.error", fields{})
	bind(e, "b", "app.#", fields{})
	goes(e, "app.error", "topic both", fields{}, "a", "b")
	goes(e, "app.web.info", "topic one", fields{}, "b")
	goes(e, "web.info", "topic none", fields{})

	e = exchange("headers")
	bind(e, "a", "", fields{"x-match": "all", "kind": "pdf", "pages": 3})
	bind(e, "b", "", fields{"x-match": "any", "kind": "pdf", "pages": 4})
	goes(e, "", "headers all", fields{"kind": "pdf", "pages": 3, "more": true}, "a", "b")
	goes(e, "", "headers any", fields{"kind": "txt", "pages": 4}, "b")
	goes(e, "", "headers none", fields{"kind": "txt"})
}

func topicWildcards(s *scene) {
	s.connect()
	s.do("declare_exchange", fields{"name": "t", "type": "topic"})
	for _, c := range []struct {
		pattern     string
		matches, no []string
	}{
		{"a.*", []string{"a.b", "a."}, []string{"a", "a.b.c", "b.b"}},
		{"a.#", []string{"a", "a.b", "a.b.c", "a."}, []string{"b", "ab"}},
		{"#", []string{"", "a", "a.b", "."}, nil},
		{"*", []string{"a"}, []string{"", "a.b"}},
		{"#.z", []string{"z", "a.z", "a.b.z"}, []string{"z.a", ""}},
		{"a.*.#.z", []string{"a.b.z", "a.b.c.z"}, []string{"a.z", "a"}},
	} {
		r := s.do("declare_queue", fields{"exclusive": true})
		q, _ := r["name"].(string)
		s.do("bind", fields{"exchange": "t", "queue": q, "key": c.pattern})
		for _, key := range c.matches {
			s.publish("t", key, "pattern "+c.pattern+" key "+key)
			s.take(q, "pattern "+c.pattern+" key "+key)
		}
		for _, key := range c.no {
			s.publish("t", key, "no")
		}
		if m := s.message(s.do("get", fields{"queue": q})); m != nil {
			s.failf("pattern %q matched %q", c.pattern, *m.RoutingKey)
		}
		s.do("delete_queue", fields{"name": q})
	}
}

func exchangeBinding(s *scene) {
	s.connect()
	s.do("declare_exchange", fields{"name": "from", "type": "topic"})
	s.do("declare_exchange", fields{"name": "to", "type": "fanout"})
	s.queue("q", nil)
	s.do("bind", fields{"exchange": "to", "queue": "q"})
	s.do("bind", fields{"exchange": "from", "to_exchange": "to", "key": "yes.#"})
	s.publish("from", "yes.sir", "in")
	s.publish("from", "no", "lost")
	s.equal("exchange", *s.take("q", "in").Exchange, "from")
	s.empty("q")
	s.do("unbind", fields{"exchange": "from", "to_exchange": "to", "key": "yes.#"})
	s.publish("from", "yes.sir", "lost")
	s.empty("q")
}

func alternateExchange(s *scene) {
	s.connect()
	s.do("declare_exchange", fields{"name": "rest", "type": "fanout"})
	s.do("declare_exchange", fields{"name": "main", "type": "direct", "args": fields{"alternate-exchange": "rest"}})
	s.queue("known", nil)
	s.queue("unknown", nil)
	s.do("bind", fields{"exchange": "main", "queue": "known", "key": "k"})
	s.do("bind", fields{"exchange": "rest", "queue": "unknown"})
	s.publish("main", "k", "routed")
	s.do("publish", fields{"exchange": "main", "key": "other", "body": "unrouted", "mandatory": true})
	s.take("known", "routed")
	s.take("unknown", "unrouted")
	s.empty("known")
}

func internalExchange(s *scene) {
	s.connect()
	s.do("declare_exchange", fields{"name": "inside", "type": "fanout", "internal": true})
	s.refused("publish", fields{"exchange": "inside", "body": "m"}, "nacked", 403, "ACCESS_REFUSED")
	s.do("declare_exchange", fields{"name": "front", "type": "fanout"})
	s.queue("q", nil)
	s.do("bind", fields{"exchange": "front", "to_exchange": "inside"})
	s.do("bind", fields{"exchange": "inside", "queue": "q"})
	s.publish("front", "", "through")
	s.take("q", "through")
}

func deleteExchange(s *scene) {
	s.connect()
	s.do("declare_exchange", fields{"name": "e", "type": "fanout"})
	s.queue("q", nil)
	s.do("bind", fields{"exchange": "e", "queue": "q"})
	s.refused("delete_exchange", fields{"name": "e", "if_unused": true}, "server", 406, "PRECONDITION_FAILED")
	s.do("unbind", fields{"exchange": "e", "queue": "q"})
	s.do("delete_exchange", fields{"name": "e", "if_unused": true})
	s.refused("declare_exchange", fields{"name": "e", "type": "fanout", "passive": true}, "server", 404, "NOT_FOUND")
	s.do("delete_exchange", fields{"name": "e"})
	s.refused("delete_exchange", fields{"name": "amq.topic"}, "server", 403, "ACCESS_REFUSED")
	s.do("declare_exchange", fields{"name": "ends", "type": "fanout", "auto_delete": true})
	s.do("bind", fields{"exchange": "ends", "queue": "q"})
	s.do("unbind", fields{"exchange": "ends", "queue": "q"})
	s.refused("declare_exchange", fields{"name": "ends", "type": "fanout", "passive": true}, "server", 404, "NOT_FOUND")
}
