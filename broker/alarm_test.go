package broker

import (
	"net"
	"sync"
	"testing"
)

// alarmPeer counts its reasons under its own lock, as real ones do.
type alarmPeer struct {
	testPeer
	pauseMu sync.Mutex
}

func (p *alarmPeer) Pause(r Reason)  { p.pauseMu.Lock(); p.paused |= r; p.pauseMu.Unlock() }
func (p *alarmPeer) Resume(r Reason) { p.pauseMu.Lock(); p.paused &^= r; p.pauseMu.Unlock() }

// Whatever alarms come and go while connections publish, one that publishes afterwards is paused for just
// the reasons there are, and when all is clear nobody is left paused.
func TestAlarmsAndPublishesAgree(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	idle := connect(t, b)
	p := &alarmPeer{}
	c.Conn.peer = p
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 2000 {
			b.SetAlarm(i&1 == 0, i&2 == 0)
		}
		b.SetAlarm(false, false)
	})
	for range 2000 {
		c.heed(true)
	}
	wg.Wait()
	if p.paused != 0 || c.blocked != 0 {
		t.Fatalf("paused for %b, blocked for %b after the alarms", p.paused, c.blocked)
	}
	b.SetAlarm(false, true)
	if p.paused != 0 {
		t.Fatal("paused before it published")
	}
	c.publish("", "nowhere", "x")
	c.end()
	if p.paused != PauseDisk || c.blocked != PauseDisk {
		t.Fatalf("paused for %b", p.paused)
	}
	b.SetAlarm(true, false)
	if p.paused != PauseMemory || idle.blocked != 0 {
		t.Fatalf("paused for %b, the idle one blocked for %b", p.paused, idle.blocked)
	}
	// A protocol that tells its clients at once does so for one that comes during an alarm, too.
	q := &alarmPeer{}
	info := &ConnInfo{VHost: "/", AlarmsAtOnce: true, Remote: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
	u, e := b.Login("guest", "guest", info)
	c.ok(e)
	early, e := b.Connect(u, q, info)
	c.ok(e)
	defer early.Close()
	if q.paused != PauseMemory {
		t.Fatalf("told of %b at once", q.paused)
	}
	b.SetAlarm(false, false)
	if p.paused != 0 || q.paused != 0 {
		t.Fatalf("paused for %b and %b when all is clear", p.paused, q.paused)
	}
	b.SetAlarm(false, true)
	if p.paused != 0 || q.paused != PauseDisk {
		t.Fatalf("paused for %b and told of %b", p.paused, q.paused)
	}
}
