package conformance

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// What the broker does beyond the model of AMQP 0-9-1 has arguments and headers alone: an SDK passes them on.

// amqpPublish publishes to a queue from the other side and waits for the confirm.
func (s *scene) amqpPublish(queue, body string, headers amqp.Table) {
	ch := s.amqp()
	s.must(ch.Confirm(false))
	c, err := ch.PublishWithDeferredConfirmWithContext(s.play.ctx, "", queue, true, false, amqp.Publishing{Headers: headers, Body: []byte(body)})
	s.must(err)
	if ok, err := c.WaitContext(s.play.ctx); err != nil || !ok {
		s.failf("over AMQP: confirmed %t, %v", ok, err)
	}
}

func expireAnywhere(s *scene) {
	s.connect()
	s.deadLetters("q", fields{"x-expire-anywhere": true})
	s.queue("plain", nil)
	for _, queue := range []string{"plain", "q"} {
		s.publish("", queue, "stays")
		s.do("publish", fields{"key": queue, "body": "short", "properties": fields{"expiration": 30}})
	}
	s.died(s.takeWhenThere("dead", "short"), "q", "expired")
	s.equal("messages in the queue without the argument", s.do("declare_queue", fields{"name": "plain", "durable": true, "passive": true})["messages"], 2)
	s.take("q", "stays")
	s.empty("q")
}

func delayedMessage(s *scene) {
	s.connect()
	s.do("declare_exchange", fields{"name": "later", "type": "x-delayed-message", "args": fields{"x-delayed-type": "topic"}})
	s.refused("declare_exchange", fields{"name": "bad", "type": "x-delayed-message"}, "server", 406, "'x-delayed-type' must be")
	s.queue("q", nil)
	s.do("bind", fields{"exchange": "later", "queue": "q", "key": "a.#"})
	late := func(exchange, key, body string, delay any) {
		s.do("publish", fields{"exchange": exchange, "key": key, "body": body, "headers": fields{"x-delay": delay}})
	}
	sub := s.subscribe("q", nil)
	begin := time.Now()
	late("later", "a.b", "third", 2000)
	late("", "q", "second", "100") // every exchange delays
	late("later", "a.b", "first", -5)
	late("later", "b", "unbound", 1)
	s.equal("x-delay of a message that is not delayed", s.next(sub, "first").Headers["x-delay"], -5)
	s.equal("x-delay", s.next(sub, "second").Headers["x-delay"], -100)
	third := s.next(sub, "third")
	if took := time.Since(begin); took < 2*time.Second {
		s.failf("a message with a delay of 2 s came after %s", took)
	}
	s.equal("x-delay", third.Headers["x-delay"], -2000)
	s.do("publish", fields{"key": "nobody", "headers": fields{"x-delay": 1}})
	s.refused("publish", fields{"key": "nobody", "mandatory": true, "headers": fields{"x-delay": 60_000}}, "unroutable", 312, "")
	late("", "q", "waits", 60_000)
	s.equal("purged", s.do("purge_queue", fields{"name": "q"})["messages"], 1)
}

func delayedUntil(s *scene) {
	s.connect()
	s.queue("q", nil)
	at := time.Now().Truncate(time.Second).Add(3 * time.Second)
	until := func(body string, when any) {
		s.do("publish", fields{"key": "q", "body": body, "headers": fields{"x-delay-until": when}})
	}
	until("last", at.UnixMilli())
	until("first of the last", fmt.Sprint(at.UnixMilli()-500))
	until("past", 1)
	until("no time", "soon")
	s.amqpPublish("q", "over AMQP", amqp.Table{"x-delay-until": at.Add(-time.Second)})
	sub := s.subscribe("q", nil)
	s.next(sub, "past")
	s.next(sub, "no time")
	s.equal("x-delay-until of AMQP", s.next(sub, "over AMQP").Headers["x-delay-until"], at.Unix()-1)
	s.next(sub, "first of the last")
	s.equal("x-delay-until", s.next(sub, "last").Headers["x-delay-until"], at.UnixMilli())
	if early := time.Until(at); early > 0 {
		s.failf("a message came %s before its time", early)
	}
}

func deliveryLimit(s *scene) {
	s.connect()
	s.deadLetters("q", fields{"x-delivery-limit": 2})
	s.refused("declare_queue", fields{"name": "bad", "args": fields{"x-delivery-limit": "2"}}, "server", 406, "invalid arg 'x-delivery-limit'")
	s.do("publish", fields{"key": "q", "body": "m", "headers": fields{"h": "v"}})
	sub := s.subscribe("q", nil)
	for back := range 3 {
		m := s.next(sub, "m")
		want := map[string]any{"h": "v"}
		if back > 0 {
			want["x-delivery-count"] = back
		}
		s.equal(fmt.Sprint("headers after it came back ", back, " times"), map[string]any(m.Headers), want)
		s.equal("redelivered", *m.Redelivered, back > 0)
		s.do("nack", fields{"tag": *m.Tag, "requeue": true})
	}
	s.died(s.takeWhenThere("dead", "m"), "q", "delivery_limit")
	s.nothing(sub)
}

func deduplication(s *scene) {
	s.connect()
	header := func(exchange, key, body, id string) {
		s.do("publish", fields{"exchange": exchange, "key": key, "body": body, "headers": fields{"x-deduplication-header": id}})
	}
	s.queue("q", fields{"args": fields{"x-message-deduplication": true, "x-cache-size": 2}})
	header("", "q", "1", "a")
	header("", "q", "1 again", "a")
	header("", "q", "2", "b")
	s.publishAll("q", "no key", "no key")
	s.amqpPublish("q", "2 over AMQP", amqp.Table{"x-deduplication-header": "b"})
	header("", "q", "3", "c") // the third key: a is forgotten
	header("", "q", "1 anew", "a")
	for _, body := range []string{"1", "2", "no key", "no key", "3", "1 anew"} {
		s.take("q", body)
	}
	s.empty("q")

	s.queue("ids", fields{"args": fields{"x-message-deduplication": true, "x-deduplication-by": "message-id"}})
	id := func(body string) {
		s.do("publish", fields{"key": "ids", "body": body, "properties": fields{"message_id": "m-1"}})
	}
	id("first")
	id("again")
	m := s.get("ids", "first")
	id("while it is unacknowledged")
	s.ack(m)
	s.empty("ids")
	id("after it is settled")
	s.take("ids", "after it is settled")

	s.do("declare_exchange", fields{"name": "once", "type": "x-message-deduplication", "args": fields{"x-cache-size": 10}})
	s.queue("r", nil)
	s.do("bind", fields{"exchange": "once", "queue": "r"})
	header("once", "", "1", "a")
	header("once", "", "1 again", "a")
	s.take("r", "1")
	s.empty("r")
}

func consistentHash(s *scene) {
	const keys = 60
	s.connect()
	s.do("declare_exchange", fields{"name": "h", "type": "x-consistent-hash"})
	s.do("declare_exchange", fields{"name": "by header", "type": "x-consistent-hash", "args": fields{"hash-header": "user"}})
	queues := []string{"q1", "q2"}
	for _, q := range queues {
		s.queue(q, nil)
		s.do("bind", fields{"exchange": "h", "queue": q, "key": "10"})
		s.do("bind", fields{"exchange": "by header", "queue": q, "key": "10"})
	}
	s.refused("bind", fields{"exchange": "h", "queue": "q1", "key": "heavy"}, "server", 406, "")
	for range 2 {
		for i := range keys {
			s.publish("h", fmt.Sprint("key ", i), fmt.Sprint(i))
		}
	}
	for i := range keys {
		s.do("publish", fields{"exchange": "by header", "key": fmt.Sprint(i), "body": "same user", "headers": fields{"user": "u"}})
	}
	hashed, users := 0, 0
	for _, q := range queues {
		bodies := make(map[string]int)
		for {
			m := s.message(s.do("get", fields{"queue": q, "no_ack": true}))
			if m == nil {
				break
			}
			bodies[m.text()]++
		}
		if n := bodies["same user"]; n != 0 && n != keys {
			s.failf("%s got %d of %d messages with one header", q, n, keys)
		}
		users += bodies["same user"]
		delete(bodies, "same user")
		if len(bodies) == 0 {
			s.failf("%s got none of %d keys", q, keys)
		}
		for body, n := range bodies {
			if n != 2 {
				s.failf("%s got %d of 2 messages with key %s", q, n, body)
			}
		}
		hashed += len(bodies)
	}
	s.equal("keys that came", hashed, keys)
	s.equal("messages that came by their header", users, keys)
}

func acknowledgementTimeout(s *scene) {
	s.connect()
	s.queue("q", nil)
	s.queue("stays", nil)
	s.publishAll("q", "1", "2")
	s.refused("subscribe", fields{"sub": "bad", "queue": "q", "args": fields{"x-consumer-timeout": -1}}, "server", 406, "invalid arg 'x-consumer-timeout'")
	stays := s.subscribe("stays", nil)
	sub := s.subscribe("q", fields{"args": fields{"x-consumer-timeout": 100}})
	s.next(sub, "1")
	late := s.next(sub, "2")
	s.cancelled(sub)
	s.equal("redelivered", *s.take("q", "1").Redelivered, true)
	s.take("q", "2")
	s.equal("errors", s.do("errors", nil)["errors"], []any{})
	s.ack(late) // its tag is not known any more
	s.publish("", "stays", "m")
	s.ack(s.next(stays, "m"))
	list, _ := s.do("errors", nil)["errors"].([]any)
	if len(list) != 1 {
		s.failf("errors after an ack that is late: got %s, want one", show(list))
	}
	e, _ := list[0].(map[string]any)
	s.equal("the error's code", e["code"], 406)

	s.queue("short", fields{"args": fields{"x-consumer-timeout": 100}})
	s.publish("", "short", "m")
	s.get("short", "m")
	s.equal("redelivered", *s.takeWhenThere("short", "m").Redelivered, true)
	list, _ = s.do("errors", nil)["errors"].([]any)
	if len(list) != 1 {
		s.failf("errors after a get that is late: got %s, want one", show(list))
	}
	e, _ = list[0].(map[string]any)
	s.equal("the error's code", e["code"], 406)
}
