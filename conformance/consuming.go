package conformance

import (
	"fmt"
	"time"
)

func (s *scene) publishAll(queue string, bodies ...string) {
	for _, b := range bodies {
		s.publish("", queue, b)
	}
}

// amqpDelete deletes a queue from the other side.
func (s *scene) amqpDelete(queue string) {
	_, err := s.amqp().QueueDelete(queue, false, false, false)
	s.must(err)
}

func subscribeAck(s *scene) {
	s.connect()
	s.queue("q", nil)
	sub := s.subscribe("q", fields{"tag": "worker-1"})
	s.do("publish", fields{"key": "q", "body": "1", "properties": fields{"type": "t"}, "headers": fields{"h": "v"}})
	s.publishAll("q", "2", "3")
	m := s.next(sub, "1")
	s.equal("redelivered", *m.Redelivered, false)
	s.equal("properties", map[string]any(m.Properties), map[string]any{"type": "t"})
	s.equal("headers", map[string]any(m.Headers), map[string]any{"h": "v"})
	s.ack(m)
	s.ack(s.next(sub, "2"))
	s.ack(s.next(sub, "3"))
	s.nothing(sub)
	s.do("close", nil)
	s.connect()
	s.count("q", 0)
	s.empty("q")
}

func subscribePrefetch(s *scene) {
	const n, prefetch = 20, 4
	s.connect()
	s.queue("q", nil)
	for i := range n {
		s.publish("", "q", fmt.Sprint(i))
	}
	sub := s.subscribe("q", fields{"prefetch": prefetch})
	var unacked []*message
	for i := range prefetch {
		unacked = append(unacked, s.next(sub, fmt.Sprint(i)))
	}
	s.nothing(sub)
	s.count("q", n-prefetch)
	for i := prefetch; i < n; i++ { // all come, though never more than four wait for an ack
		for _, m := range unacked {
			s.ack(m)
		}
		unacked = []*message{s.next(sub, fmt.Sprint(i))}
	}
	s.ack(unacked[0])
	s.nothing(sub)
	s.count("q", 0)

	one := s.subscribe("q", fields{"prefetch": 1})
	s.do("unsubscribe", fields{"sub": sub})
	for i := range 3 {
		s.publish("", "q", fmt.Sprint("one at a time ", i))
	}
	for i := range 3 {
		m := s.next(one, fmt.Sprint("one at a time ", i))
		s.nothing(one)
		s.ack(m)
	}
}

func subscribeNoAck(s *scene) {
	s.connect()
	s.queue("q", nil)
	sub := s.subscribe("q", fields{"no_ack": true, "prefetch": 2})
	for i := range 9 {
		s.publish("", "q", fmt.Sprint(i))
	}
	for i := range 9 { // credit is granted again without acks
		s.equal("tag", *s.next(sub, fmt.Sprint(i)).Tag, "")
	}
	s.do("close", nil)
	s.connect()
	s.empty("q")
}

func ackMultiple(s *scene) {
	s.connect()
	s.queue("q", nil)
	s.publishAll("q", "1", "2", "3", "4")
	sub := s.subscribe("q", nil)
	s.next(sub, "1")
	s.next(sub, "2")
	third := s.next(sub, "3")
	s.next(sub, "4")
	s.do("ack", fields{"tag": *third.Tag, "multiple": true})
	s.do("close", nil)
	s.connect()
	s.equal("redelivered", *s.take("q", "4").Redelivered, true)
	s.empty("q")
}

func nackMultiple(s *scene) {
	s.connect()
	s.queue("q", nil)
	s.publishAll("q", "1", "2", "3", "4")
	sub := s.subscribe("q", nil)
	s.next(sub, "1")
	second := s.next(sub, "2")
	s.next(sub, "3")
	fourth := s.next(sub, "4")
	s.do("unsubscribe", fields{"sub": sub})
	s.do("nack", fields{"tag": *second.Tag, "multiple": true, "requeue": true})
	s.do("nack", fields{"tag": *fourth.Tag, "multiple": true, "requeue": false})
	s.take("q", "1")
	s.take("q", "2")
	s.empty("q")
}

func nackRequeue(s *scene) {
	s.connect()
	s.queue("q", nil)
	s.publishAll("q", "1", "2", "3")
	m := s.get("q", "1")
	s.get("q", "2")
	s.do("nack", fields{"tag": *m.Tag, "requeue": true})
	m = s.get("q", "1") // before 3
	s.equal("redelivered", *m.Redelivered, true)
	s.equal("redelivered", *s.get("q", "3").Redelivered, false)
	sub := s.subscribe("q", nil)
	s.do("nack", fields{"tag": *m.Tag, "requeue": true})
	m = s.next(sub, "1")
	s.equal("redelivered", *m.Redelivered, true)
	s.do("nack", fields{"tag": *m.Tag, "requeue": true})
	s.ack(s.next(sub, "1"))
}

func (s *scene) deadLetters(queue string, args fields) {
	s.do("declare_exchange", fields{"name": "dlx", "type": "fanout"})
	s.queue("dead", nil)
	s.do("bind", fields{"exchange": "dlx", "queue": "dead"})
	s.queue(queue, fields{"args": merge(fields{"x-dead-letter-exchange": "dlx"}, args)})
}

// died checks the first x-death of a message.
func (s *scene) died(m *message, queue, reason string) {
	deaths, _ := m.Headers["x-death"].([]any)
	if len(deaths) != 1 {
		s.failf("x-death: got %s, want one", show(m.Headers["x-death"]))
	}
	d, _ := deaths[0].(map[string]any)
	for k, want := range map[string]any{"queue": queue, "reason": reason, "count": 1, "exchange": "", "routing-keys": []any{queue}} {
		s.equal("x-death "+k, d[k], want)
	}
	if t, _ := number(d["time"]); t == nil || t == int64(0) {
		s.failf("x-death time: got %s", show(d["time"]))
	}
	s.equal("x-first-death-queue", m.Headers["x-first-death-queue"], queue)
	s.equal("x-first-death-reason", m.Headers["x-first-death-reason"], reason)
}

// takeWhenThere waits for a message that the broker moves in its own time.
func (s *scene) takeWhenThere(queue, body string) *message {
	var m *message
	s.eventually("a message in "+queue, func() bool {
		m = s.message(s.do("get", fields{"queue": queue, "no_ack": true}))
		return m != nil
	})
	s.equal("body", m.text(), body)
	return m
}

func nackDeadLetter(s *scene) {
	s.connect()
	s.deadLetters("q", nil)
	s.publish("", "q", "m")
	m := s.get("q", "m")
	s.do("nack", fields{"tag": *m.Tag})
	dead := s.takeWhenThere("dead", "m")
	s.died(dead, "q", "rejected")
	s.equal("routing_key", *dead.RoutingKey, "q")
	s.equal("exchange", *dead.Exchange, "dlx")
	s.empty("q")
}

func messageTTL(s *scene) {
	s.connect()
	s.deadLetters("q", nil)
	s.do("publish", fields{"key": "q", "body": "short", "properties": fields{"expiration": 30}})
	s.died(s.takeWhenThere("dead", "short"), "q", "expired")
	s.do("publish", fields{"key": "q", "body": "at once", "properties": fields{"expiration": 0}})
	s.takeWhenThere("dead", "at once")
	s.publish("", "q", "stays")
	s.take("q", "stays")
}

func queueTTL(s *scene) {
	s.connect()
	s.deadLetters("q", fields{"x-message-ttl": 30})
	s.publish("", "q", "m")
	s.died(s.takeWhenThere("dead", "m"), "q", "expired")
	s.queue("unused", fields{"args": fields{"x-expires": 50}})
	s.eventually("the unused queue is gone", func() bool {
		_, err := s.amqp().QueueDeclarePassive("unused", true, false, false, false, nil)
		if err == nil { // asking is using it: wait longer than it may live
			time.Sleep(60 * time.Millisecond)
		}
		return err != nil
	})
}

func maxLength(s *scene) {
	s.connect()
	s.queue("q", fields{"args": fields{"x-max-length": 2}})
	s.publishAll("q", "1", "2", "3", "4")
	s.take("q", "3")
	s.take("q", "4")
	s.empty("q")
}

func priority(s *scene) {
	s.connect()
	s.queue("q", fields{"args": fields{"x-max-priority": 5}})
	for body, p := range map[string]int{"low": 1, "high": 5, "middle": 3} {
		s.do("publish", fields{"key": "q", "body": body, "properties": fields{"priority": p}})
	}
	s.publish("", "q", "none")
	for _, body := range []string{"high", "middle", "low", "none"} {
		s.take("q", body)
	}
}

func singleActiveConsumer(s *scene) {
	s.connect()
	s.queue("q", fields{"args": fields{"x-single-active-consumer": true}})
	first, second := s.subscribe("q", nil), s.subscribe("q", nil)
	s.publishAll("q", "1", "2")
	s.ack(s.next(first, "1"))
	s.ack(s.next(first, "2"))
	s.nothing(second)
	s.do("unsubscribe", fields{"sub": first})
	s.publish("", "q", "3")
	s.ack(s.next(second, "3"))
}

func exclusiveSubscribe(s *scene) {
	s.connect()
	s.queue("q", nil)
	sub := s.subscribe("q", fields{"exclusive": true})
	s.refused("subscribe", fields{"sub": "second", "queue": "q"}, "server", 405, "")
	_, err := s.amqp().Consume("q", "", false, false, false, false, nil)
	s.refusedCode(err, 403)
	s.do("unsubscribe", fields{"sub": sub})
	other := s.subscribe("q", nil)
	s.refused("subscribe", fields{"sub": "third", "queue": "q", "exclusive": true}, "server", 405, "")
	s.publish("", "q", "m")
	s.ack(s.next(other, "m"))
}

func unsubscribe(s *scene) {
	s.connect()
	s.queue("q", nil)
	s.publishAll("q", "1", "2")
	sub := s.subscribe("q", fields{"prefetch": 2})
	first := s.next(sub, "1")
	second := s.next(sub, "2")
	s.do("unsubscribe", fields{"sub": sub})
	s.publish("", "q", "3")
	s.cancelled(sub)
	s.take("q", "3") // 1 and 2 are not there
	s.empty("q")
	s.ack(first)
	s.do("nack", fields{"tag": *second.Tag, "requeue": true})
	s.take("q", "2")
	s.empty("q")
	// What was sent but not handed out must not be lost.
	s.publishAll("q", "4", "5", "6")
	sub = s.subscribe("q", nil)
	s.ack(s.next(sub, "4"))
	s.do("unsubscribe", fields{"sub": sub})
	s.do("close", nil)
	s.connect()
	s.take("q", "5")
	s.take("q", "6")
}

func subscriptionCancelled(s *scene) {
	s.connect()
	s.queue("q", nil)
	s.queue("stays", nil)
	sub, stays := s.subscribe("q", nil), s.subscribe("stays", nil)
	s.publish("", "q", "m")
	s.next(sub, "m")
	s.amqpDelete("q")
	s.cancelled(sub)
	s.cancelled(sub)
	s.publish("", "stays", "m")
	s.ack(s.next(stays, "m"))
}

func unknownTag(s *scene) {
	s.connect()
	s.queue("q", nil)
	s.publishAll("q", "1", "2")
	s.equal("errors", s.do("errors", nil)["errors"], []any{})
	m := s.get("q", "1")
	s.ack(m)
	s.ack(m)
	s.get("q", "2") // behind it
	list, _ := s.do("errors", nil)["errors"].([]any)
	if len(list) != 1 {
		s.failf("errors: got %s, want one", show(list))
	}
	e, _ := list[0].(map[string]any)
	s.equal("the error's code", e["code"], 406)
	if text, _ := e["message"].(string); text == "" {
		s.failf("the error has no message: %s", show(e))
	}
	s.equal("errors", s.do("errors", nil)["errors"], []any{})
}

func getEmpty(s *scene) {
	s.connect()
	s.queue("q", nil)
	r := s.do("get", fields{"queue": "q"})
	s.equal("message", r["message"], nil)
	s.equal("remaining", r["remaining"], 0)
	s.publish("", "q", "m")
	r = s.do("get", fields{"queue": "q"})
	s.got(r, "m")
	s.equal("remaining", r["remaining"], 0)
}
