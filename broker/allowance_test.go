package broker

import (
	"strings"
	"testing"
	"time"
)

// Publishers that have used up what may be published before memory is read again wait for it; who only
// consumes doesn't.
func TestPublishersWaitForTheirAllowance(t *testing.T) {
	asked := make(chan struct{}, 10)
	b := memoryBroker(t, Options{OnGrowth: func() { asked <- struct{}{} }})
	p := &alarmPeer{}
	c, other := connect(t, b), connect(t, b)
	c.Conn.peer, c.ch.peer = p, p
	paused := func() bool { p.pauseMu.Lock(); defer p.pauseMu.Unlock(); return p.paused == PauseGrowth }
	eventually := func(want bool) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); paused() != want; <-time.After(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("paused: %t", !want)
			}
		}
	}
	c.declare(QueueDeclare{Name: "q"})
	b.Allow(10_000)
	c.publish("", "q", strings.Repeat("x", 5000))
	c.end()
	if paused() || len(asked) > 0 {
		t.Fatal("paused before the allowance was used up")
	}
	c.publish("", "q", strings.Repeat("x", 5000))
	c.publish("", "q", strings.Repeat("x", 5000))
	c.end()
	if !paused() || len(asked) != 1 {
		t.Fatalf("paused %t, asked %d times for more", paused(), len(asked))
	}
	if body, _ := other.get("q"); len(body) != 5000 || other.peer.paused != 0 {
		t.Fatal("a consumer is held up")
	}
	b.Allow(10_000)
	eventually(false)
	// What is half received counts at once.
	c.ok(c.Hold(20_000))
	eventually(true)
	b.Allow(Unlimited)
	eventually(false)
}
