package broker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/firemq/firemq/pool"
)

// last is the last sequence number confirmed.
func (s *testSink) last() uint64 {
	s.peer.mu.Lock()
	defer s.peer.mu.Unlock()
	return s.confirmed
}

// A requester that does not read has its replies wait within a bound; beyond it the responder is
// told, and nobody else waits.
func TestRepliesToASlowRequesterAreBounded(t *testing.T) {
	b := memoryBroker(t, Options{})
	requester, responder := connect(t, b), connect(t, b)
	requester.consume(ConsumeArgs{Queue: ReplyTo, Tag: "t", NoAck: true})
	token := requester.ch.ReplyTo()
	if !strings.HasPrefix(token, "amq.rabbitmq.reply-to.") {
		t.Fatalf("token %q", token)
	}
	responder.ok(responder.ch.Confirms())
	responder.publish("", token, "0")
	responder.end()
	eq(t, "at once", requester.sink.bodies(), []string{"0"})
	requester.peer.full = true
	half := strings.Repeat("x", replyBytes/2)
	for i := range 3 {
		responder.publish("", token, fmt.Sprint(i)+half[1:])
		responder.end()
	}
	eq(t, "answers", responder.sink.events, []string{"ack 1 false", "ack 2 false", "ack 3 false", "nack 4 queue '" + token + "' in vhost '/' is full"})
	if got := requester.sink.bodies(); got != nil {
		t.Fatalf("a full outbox got %d replies", len(got))
	}
	if n := b.Totals(); n.Ready != 0 || n.Queues != 0 {
		t.Fatalf("replies are listed as messages of a queue: %+v", n)
	}
	requester.peer.full = false
	requester.Drained()
	if got := requester.sink.bodies(); len(got) != 2 || got[0][0] != '0' || got[1][0] != '1' {
		t.Fatalf("got %d replies after the drain", len(got))
	}
}

// What waits for a requester that goes away goes with it, and its token is not routable any more.
func TestRepliesEndWithTheirRequester(t *testing.T) {
	b := memoryBroker(t, Options{})
	responder := connect(t, b)
	responder.ok(responder.ch.Confirms())
	before := pool.Live()
	ends := map[string]func(c *client){
		"cancel":     func(c *client) { c.ch.Cancel("t"); c.end() },
		"channel":    func(c *client) { c.ch.Close(); c.end() },
		"connection": func(c *client) { c.Close() },
	}
	for name, end := range ends {
		c := connect(t, b)
		c.consume(ConsumeArgs{Queue: ReplyTo, Tag: "t", NoAck: true})
		token := c.ch.ReplyTo()
		c.peer.full = true
		responder.publish("", token, "lost")
		responder.end()
		end(c)
		responder.sink.events = nil
		responder.ok(responder.tryPublish("", token, "late", true))
		responder.end()
		eq(t, name, responder.sink.events, []string{fmt.Sprintf("return %d late", responder.seq), fmt.Sprintf("ack %d false", responder.seq)})
		if c.ch.ReplyTo() != "" {
			t.Errorf("%s: the token is still the channel's", name)
		}
		_, e := responder.DeclareQueue(&QueueDeclare{Name: token})
		responder.refused(e, NotFound, "no queue '"+token+"' in vhost '/'")
		if n := pool.Live(); n != before {
			t.Errorf("%s: %d buffers left", name, n-before)
		}
	}
	if n := b.Counters().Consumers.Load(); n != 0 {
		t.Errorf("%d consumers left", n)
	}
}
