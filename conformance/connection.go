package conformance

import (
	"strings"
	"time"

	wire "github.com/firemq/firemq/frames/fmq1"
)

func connectClose(s *scene) {
	r := s.do("connect", fields{"url": s.url()})
	if id, _ := r["conn_id"].(string); id == "" {
		s.failf("connect: no conn_id in %s", show(r))
	}
	s.do("close", nil)
	s.do("close", nil)
	s.kept = false
	d := s.play.driver
	s.must(d.leave())
	d.stop()
	s.play.driver = nil
}

func authFailure(s *scene) {
	s.refused("connect", fields{"url": s.urlAs("guest:wrong@", s.vhost)}, "server", 403, "ACCESS_REFUSED")
	s.connect() // the driver is none the worse
	s.queue("q", nil)
}

func vhostMissing(s *scene) {
	s.refused("connect", fields{"url": s.urlAs("guest:guest@", s.vhost+"-missing")}, "server", 530, "NOT_ALLOWED")
}

func urlDefaults(s *scene) {
	short := strings.NewReplacer("/fire?vhost=%2F", "", "/%2F", "").Replace(s.urlAs("", "/"))
	s.do("connect", fields{"url": short})
	name := s.vhost // unique in the vhost / too
	s.queue(name, nil)
	s.do("delete_queue", fields{"name": name})
	s.do("close", nil)

	odd := s.vhost + " a/b%é?"
	s.must(s.play.broker.addVHost(odd))
	defer s.play.broker.deleteVHost(odd)
	s.do("connect", fields{"url": s.urlAs("guest:guest@", odd)})
	s.queue("only-there", nil)
	s.do("close", nil)
	s.connect()
	s.refused("declare_queue", fields{"name": "only-there", "passive": true}, "server", 404, "NOT_FOUND")
}

func urlInvalid(s *scene) {
	for _, u := range []string{"", "localhost", "http://localhost", "amqp://localhost", "fire://", "fire://localhost:99999"} {
		s.refused("connect", fields{"url": u}, "invalid", 0, "")
	}
}

func closePending(s *scene) {
	s.refused("declare_queue", fields{"name": "q"}, "closed", 0, "") // before connect
	s.connect()
	s.queue("q", nil)
	s.do("close", nil)
	s.refused("declare_queue", fields{"name": "q"}, "closed", 0, "")
	s.refused("publish", fields{"key": "q"}, "closed", 0, "")
	s.refused("get", fields{"queue": "q"}, "closed", 0, "")
	s.refused("subscribe", fields{"sub": "late", "queue": "q"}, "closed", 0, "")
}

func connectionLost(s *scene) {
	t := s.connectThrough(false)
	s.queue("q", nil)
	t.holdBack(wire.OpConfirm)
	s.send("publish", fields{"key": "q", "body": "m"})
	s.must(t.await("the confirm", func() bool { return len(t.held) > 0 }))
	t.drop()
	r, err := s.driver().receive("publish", commandLimit)
	s.must(err)
	if r.Error == nil || r.Error.Kind != "closed" {
		s.failf("a publish whose connection was lost: got %s, want closed", show(r))
	}
	s.refused("publish", fields{"key": "q"}, "closed", 0, "")
	s.refused("declare_queue", fields{"name": "q"}, "closed", 0, "")
}

func heartbeat(s *scene) {
	// The client's wish is its own; what counts is the smaller interval, which the proxy makes one second.
	t := s.tap()
	t.set(func() { t.heartbeat = 1 })
	s.do("connect", fields{"url": address(s.play.scheme, "guest:guest@", t.addr(), s.vhost)})
	s.queue("q", nil)
	s.must(t.check("the client asks for no heartbeats", func() bool { return t.wished > 0 }))
	time.Sleep(3500 * time.Millisecond) // three and a half intervals
	s.publish("", "q", "still here")
	s.take("q", "still here")
	s.must(t.await("pings or pongs of the client", func() bool { return t.seen[wire.OpPing]+t.seen[wire.OpPong] > 0 }))
}

func flow(s *scene) {
	t := s.connectThrough(false)
	s.queue("q", nil)
	s.publish("", "q", "before")
	pause := func(on bool) { s.must(t.send(wire.Append(nil, wire.OpFlow, &wire.Flow{Pause: on}))) }
	pause(true)
	s.count("q", 1) // its answer comes behind the flow frame, which the client has seen then
	s.send("publish", fields{"key": "q", "body": "after"})
	s.waits("a publish while the broker says pause")
	s.must(t.check("published while the broker said pause", func() bool { return t.seen[wire.OpPublish] == 1 }))
	pause(false)
	s.receive("publish")
	pause(true)
	pause(true)
	pause(false)
	s.count("q", 2)
	s.publish("", "q", "last")
	s.take("q", "before")
	s.take("q", "after")
	s.take("q", "last")
}

func unknownFields(s *scene) {
	t := s.tap()
	t.set(func() { t.extra = true })
	s.do("connect", fields{"url": address(s.play.scheme, "guest:guest@", t.addr(), s.vhost)})
	s.queue("q", fields{"args": fields{"x-max-length": 3, "x-overflow": "reject-publish"}})
	s.publish("", "q", "1")
	sub := s.subscribe("q", nil)
	m := s.next(sub, "1")
	s.ack(m)
	s.ack(m) // an error frame with more keys
	s.do("unsubscribe", fields{"sub": sub})
	for _, body := range []string{"2", "3", "4"} {
		s.publish("", "q", body)
	}
	s.refused("publish", fields{"key": "q", "body": "5"}, "nacked", 506, "")
	s.refused("publish", fields{"key": "nobody", "mandatory": true}, "unroutable", 312, "")
	s.refused("declare_queue", fields{"name": "missing", "passive": true}, "server", 404, "")
	s.get("q", "2")
	sub = s.subscribe("q", nil)
	s.next(sub, "3")
	s.amqpDelete("q")
	s.next(sub, "4")
	s.cancelled(sub)
}
