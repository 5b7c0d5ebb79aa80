package broker

import (
	"strings"
	"sync/atomic"
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
		for deadline := time.Now().Add(time.Minute); paused() != want; <-time.After(time.Millisecond) {
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

// When a read of each connection that publishes would be more than is left, those are read with care, and a read of
// each is kept back before.
func TestReadsAreCarefulWhenMemoryIsShort(t *testing.T) {
	var now atomic.Int64
	now.Store(1000)
	b := memoryBroker(t, Options{OnGrowth: func() {}, Now: now.Load})
	publishers := []*client{connect(t, b), connect(t, b), connect(t, b)}
	consumer := connect(t, b)
	publishers[0].declare(QueueDeclare{Name: "q"})
	const reserve = 3 * wholeRead
	cares := func(want bool) {
		t.Helper()
		for _, c := range publishers {
			if c.peer.careful != want {
				t.Errorf("careful %t", !want)
			}
		}
		if consumer.peer.careful {
			t.Error("who does not publish is read with care")
		}
	}
	check := func(room int64, careful bool, allowed int64) {
		t.Helper()
		now.Add(100)
		b.Allow(room)
		if got := b.allowance.Load(); got != allowed {
			t.Errorf("%d may be published of %d, want %d", got, room, allowed)
		}
		cares(careful)
		for _, c := range publishers {
			c.publish("", "q", "")
			c.end()
		}
		consumer.get("q")
		cares(careful)
	}
	check(10*reserve, false, 10*reserve) // nobody had published yet
	check(10*reserve, false, 9*reserve)
	check(2*reserve, false, reserve)
	check(2*reserve-1, true, 2*reserve-1)
	check(carefulFor*reserve-1, true, carefulFor*reserve-1)
	// An alarm, during which nothing is granted, changes nothing.
	b.SetAlarm(true, false)
	b.Allow(Unlimited)
	cares(true)
	b.SetAlarm(false, false)
	check(carefulFor*reserve-1, true, carefulFor*reserve-1)
	check(carefulFor*reserve, false, (carefulFor-1)*reserve)
	// Who comes later is told when it publishes, and those that have gone quiet are forgotten.
	check(1, true, 1)
	late := connect(t, b)
	if late.publish("", "q", ""); late.peer.careful {
		t.Error("careful before it published")
	}
	if late.end(); !late.peer.careful {
		t.Error("who comes later is not read with care")
	}
	for range 3 {
		now.Add(bringersFor)
		b.Allow(wholeRead)
	}
	cares(false)
	if late.peer.careful || b.tight.on.Load() {
		t.Error("it stays tight for nobody")
	}
}
