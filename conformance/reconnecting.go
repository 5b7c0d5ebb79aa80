package conformance

import (
	"fmt"

	wire "github.com/firemq/firemq/frames/fmq1"
)

func reconnect(s *scene) {
	t := s.connectThrough(true)
	// All of it ends with the connection, or is deleted below: it is there only if it is declared again.
	s.do("declare_exchange", fields{"name": "events", "type": "topic", "durable": false})
	s.do("declare_exchange", fields{"name": "front", "type": "fanout", "durable": false})
	s.queue("mine", fields{"durable": false, "exclusive": true, "args": fields{"x-max-length": 100}})
	s.queue("kept", nil)
	s.do("bind", fields{"exchange": "events", "queue": "mine", "key": "a.*"})
	s.do("bind", fields{"exchange": "events", "queue": "mine", "key": "gone"})
	s.do("unbind", fields{"exchange": "events", "queue": "mine", "key": "gone"})
	s.do("bind", fields{"exchange": "front", "to_exchange": "events", "key": ""})
	mine := s.subscribe("mine", nil)
	kept := s.subscribe("kept", fields{"prefetch": 3})
	s.publishAll("kept", "1", "2", "3", "4")
	old := s.next(kept, "1")

	t.holdBack(wire.OpConfirm)
	s.send("publish", fields{"key": "kept", "body": "unconfirmed"})
	s.must(t.await("the confirm", func() bool { return len(t.held) > 0 }))
	t.set(func() { t.refuse = true })
	t.drop()
	s.amqpDeleteExchanges("events", "front")
	t.set(func() { t.refuse = false })
	s.receive("publish") // confirmed over the next connection

	s.publish("front", "a.b", "routed")
	s.publish("events", "gone", "an unbound key")
	s.ack(s.next(mine, "routed"))
	s.nothing(mine)

	s.ack(old) // of before: nothing may happen
	first := s.next(kept, "1")
	s.equal("redelivered", *first.Redelivered, true)
	s.ack(old)
	s.ack(first)
	for _, body := range []string{"2", "3", "4", "unconfirmed", "unconfirmed"} { // published twice: at least once
		s.ack(s.next(kept, body))
	}
	s.nothing(kept)
	s.equal("errors", s.do("errors", nil)["errors"], []any{})
	s.count("kept", 0)
}

func (s *scene) amqpDeleteExchanges(names ...string) {
	ch := s.amqp()
	for _, n := range names {
		s.must(ch.ExchangeDelete(n, false, false))
	}
}

func reconnectServerNamed(s *scene) {
	t := s.connectThrough(true)
	s.do("declare_exchange", fields{"name": "logs", "type": "fanout"})
	name, _ := s.do("declare_queue", fields{"exclusive": true, "durable": false})["name"].(string)
	s.do("bind", fields{"exchange": "logs", "queue": name})
	sub := s.subscribe(name, nil)
	s.publish("logs", "", "before")
	s.ack(s.next(sub, "before"))
	for i := range 2 {
		t.drop()
		s.publish("logs", "", fmt.Sprint("after ", i))
		m := s.next(sub, fmt.Sprint("after ", i))
		s.ack(m)
	}
	// The first name is gone; who unsubscribes and binds by it means the queue of the new name.
	_, err := s.amqp().QueueDeclarePassive(name, false, false, true, false, nil)
	s.refusedCode(err, 404)
	s.do("unbind", fields{"exchange": "logs", "queue": name})
	s.publish("logs", "", "unbound")
	s.nothing(sub)
}

func reconnectWaits(s *scene) {
	t := s.connectThrough(true)
	s.queue("q", nil)
	t.set(func() { t.refuse = true })
	t.drop()
	s.send("publish", fields{"key": "q", "body": "patient"})
	s.must(t.await("three attempts to connect", func() bool { return t.accepts >= 4 }))
	s.waits("a publish while there is no connection")
	t.set(func() { t.refuse = false })
	s.receive("publish")
	s.take("q", "patient")

	t.set(func() { t.refuse = true })
	t.drop()
	s.send("declare_queue", fields{"name": "later"})
	s.waits("a request while there is no connection")
	t.set(func() { t.refuse = false })
	s.equal("name", s.receive("declare_queue")["name"], "later")
	// 300 unconfirmed ones, in their order.
	t.holdBack(wire.OpConfirm)
	s.send("publish_many", fields{"key": "later", "count": 300})
	s.must(t.await("300 publishes", func() bool { return t.seen[wire.OpPublish] >= 300 }))
	s.must(t.await("a confirm", func() bool { return len(t.held) > 0 }))
	t.drop()
	s.equal("confirmed", s.receive("publish_many")["confirmed"], 300)
	seen := map[string]bool{}
	last := 0
	for {
		m := s.message(s.do("get", fields{"queue": "later", "no_ack": true}))
		if m == nil {
			break
		}
		if seen[m.text()] && last == 0 {
			last = len(seen) // the second round begins
		}
		if !seen[m.text()] && m.text() != fmt.Sprint("body-", len(seen)) {
			s.failf("got %q, want body-%d", m.text(), len(seen))
		}
		seen[m.text()] = true
	}
	s.equal("messages", len(seen), 300)
}

func reconnectDeleted(s *scene) {
	t := s.connectThrough(true)
	s.queue("gone", nil)
	s.queue("stays", nil)
	s.do("declare_exchange", fields{"name": "gone", "type": "fanout"})
	s.do("declare_exchange", fields{"name": "stays", "type": "fanout"})
	s.do("bind", fields{"exchange": "gone", "queue": "stays"})
	s.do("bind", fields{"exchange": "stays", "queue": "gone"})
	sub, ended := s.subscribe("stays", nil), s.subscribe("stays", nil)
	s.do("unsubscribe", fields{"sub": ended})
	s.do("delete_queue", fields{"name": "gone"})
	s.do("delete_exchange", fields{"name": "gone"})
	t.drop()
	s.publish("", "stays", "m")
	s.ack(s.next(sub, "m"))
	s.refused("declare_queue", fields{"name": "gone", "passive": true}, "server", 404, "NOT_FOUND")
	s.refused("declare_exchange", fields{"name": "gone", "passive": true}, "server", 404, "NOT_FOUND")
	r := s.do("declare_queue", fields{"name": "stays", "passive": true})
	s.equal("consumers", r["consumers"], 1)
	s.cancelled(ended)
	s.equal("errors", s.do("errors", nil)["errors"], []any{})
}

func reconnectBrokerKilled(s *scene) {
	// The scene's own vhost may be too young to survive: users and permissions are written in the background.
	s.do("connect", fields{"url": s.urlAs("guest:guest@", "/"), "reconnect": true})
	durable, transient := s.vhost, s.vhost+"-transient"
	s.queue(durable, nil)
	name, _ := s.do("declare_queue", fields{"exclusive": true, "durable": false})["name"].(string)
	s.do("declare_exchange", fields{"name": transient, "type": "fanout", "durable": false})
	s.do("bind", fields{"exchange": transient, "queue": name})
	sub := s.subscribe(name, nil)
	s.do("publish", fields{"key": durable, "body": "persistent"})
	s.do("publish", fields{"key": durable, "body": "transient", "persistent": false})
	s.play.broker.kill()
	s.send("publish", fields{"key": durable, "body": "meanwhile"})
	s.must(s.play.broker.start())
	s.receive("publish")
	s.take(durable, "persistent")
	s.take(durable, "meanwhile")
	s.empty(durable)
	s.publish(transient, "", "routed")
	s.ack(s.next(sub, "routed"))
}

func reconnectClose(s *scene) {
	t := s.connectThrough(true)
	s.queue("q", nil)
	t.set(func() { t.refuse = true })
	t.drop()
	s.must(t.await("an attempt to connect", func() bool { return t.accepts >= 2 }))
	s.do("close", nil)
	s.refused("publish", fields{"key": "q"}, "closed", 0, "")
	attempts := 0
	t.set(func() { attempts = t.accepts })
	s.play.driver.silent(noMore)
	t.set(func() {
		if t.accepts > attempts+1 { // one may have been on its way
			attempts = -1
		}
	})
	if attempts < 0 {
		s.failf("the client goes on connecting after close")
	}
}
