package broker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/pool"
)

// What is unfinished has a bound over all connections. It holds for who takes more than a little, and not
// for one that is alone.
func TestUnfinishedIsBounded(t *testing.T) {
	const text = "unfinished messages of all connections take more than 1000000 bytes"
	b := memoryBroker(t, Options{})
	b.LimitUnfinished(1_000_000)
	a, c, d := connect(t, b), connect(t, b), connect(t, b)
	c.ok(c.Hold(3_000_000)) // alone
	a.ok(a.Hold(unfinishedFree))
	a.refused(a.Hold(1), ResourceError, text)
	c.refused(c.Hold(1), ResourceError, text)
	c.ok(c.Hold(-3_000_000))
	a.ok(a.Hold(900_000))
	c.refused(c.Hold(70_000), ResourceError, text)
	if n := b.unfinished.Load(); n != 900_000+unfinishedFree {
		t.Fatalf("%d bytes are held", n)
	}
	// Open transactions count until they end.
	c.ok(c.ch.TxSelect())
	c.publish("", "nowhere", strings.Repeat("x", 30_000))
	c.refused(c.tryPublish("", "nowhere", strings.Repeat("x", 60_000), false), ResourceError, text)
	c.ok(c.ch.TxRollback())
	c.publish("", "nowhere", strings.Repeat("x", 30_000))
	c.ok(c.ch.TxCommit())
	if n := b.unfinished.Load(); n != 900_000+unfinishedFree {
		t.Fatalf("%d bytes are held after the transactions", n)
	}
	d.publish("", "nowhere", "x")
	a.Close()
	if n := b.unfinished.Load(); n != 0 {
		t.Fatalf("%d bytes are held after the connection that held them", n)
	}
	a.ok(a.Hold(-5)) // too late to count
	if n := b.unfinished.Load(); n != 0 {
		t.Fatalf("%d bytes", n)
	}
	b.LimitUnfinished(0)
	c.ok(c.Hold(1 << 40))
	d.ok(d.Hold(1 << 40))
}

// What is free to each connection is little when there are many, and nothing for those that have not logged in. What
// a client says of itself counts when it is long.
func TestUnfinishedOfManyIsBounded(t *testing.T) {
	const limit = 1_000_000
	b := memoryBroker(t, Options{})
	b.LimitUnfinished(limit)
	text := fmt.Sprint("unfinished messages of all connections take more than ", limit, " bytes")
	var all []*client
	for range 50 {
		all = append(all, connect(t, b))
	}
	for _, c := range all {
		c.ok(c.Hold(limit / 50))
	}
	last := all[49]
	last.refused(last.Hold(leastFree), ResourceError, text)
	var guest int64
	last.refused(b.HoldGuest(&guest, 1), ResourceError, text)
	last.ok(last.Hold(-100_000 / 50))
	last.ok(b.HoldGuest(&guest, 2000))
	last.refused(b.HoldGuest(&guest, 1), ResourceError, text)
	last.ok(b.HoldGuest(&guest, -guest))

	long := table.Table{{Name: "product", Value: table.StringValue(strings.Repeat("x", propertiesFree))}}
	login := func(properties table.Table) (*Conn, *Error) {
		user, e := b.Login("guest", "guest", &ConnInfo{})
		last.ok(e)
		return b.Connect(user, last.peer, &ConnInfo{VHost: "/", Properties: properties})
	}
	_, e := login(long)
	last.refused(e, ResourceError, text)
	short := long[0].Value.Str[:1000]
	c, e := login(table.Table{{Name: "product", Value: table.StringValue(short)}})
	last.ok(e)
	c.Close()
	for _, c := range all {
		c.Close()
	}
	c, e = login(long)
	last.ok(e)
	if n := b.unfinished.Load(); n < propertiesFree || n > 2*propertiesFree {
		t.Errorf("%d bytes are held", n)
	}
	c.Close()
	user, e := b.Login("guest", "guest", &ConnInfo{})
	last.ok(e)
	if _, e := b.Connect(user, last.peer, &ConnInfo{VHost: "/missing/", Properties: long}); e == nil {
		t.Error("a vhost that is not there")
	}
	if n := b.unfinished.Load(); n != 0 {
		t.Errorf("%d bytes are held by nobody", n)
	}
}

// A channel has a bound of unacknowledged deliveries beside its prefetch: consumers wait, and a get is
// refused.
func TestUnackedIsBounded(t *testing.T) {
	b := memoryBroker(t, Options{tuning: tuning{maxUnacked: 3}})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.consume(ConsumeArgs{Queue: "q", Tag: "k"})
	for _, body := range []string{"0", "1", "2", "3", "4", "5", "6"} {
		c.publish("", "q", body)
	}
	c.end()
	eq(t, "up to the bound", c.sink.bodies(), []string{"0", "1", "2"})
	_, e := c.ch.Get("q", false, func(*Delivery, int) { t.Error("got a message beyond the bound") })
	c.refused(e, ResourceError, "channel holds 3 unacknowledged messages")
	if body, ok := c.get("q"); !ok || body != "3" { // it leaves nothing unacknowledged
		t.Fatalf("got %q", body)
	}
	c.ok(c.ch.Ack(2, true))
	c.end()
	eq(t, "after acks", c.sink.bodies(), []string{"4", "5"})
	c.ok(c.ch.Nack(3, false, false))
	c.end()
	eq(t, "after a nack", c.sink.bodies(), []string{"6"})
}

// The state of a connection is what keeps it from publishing.
func TestConnectionStates(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	var paused Reason
	var last int64
	c.info.Paused = func() (Reason, int64) { return paused, last }
	now := time.Now().UnixNano()
	for _, s := range []struct {
		alarm  bool
		paused Reason
		last   int64
		want   ConnState
	}{
		{false, 0, 0, StateRunning},
		{false, PauseJournal, now, StateFlow},
		{false, 1 << 16, 1, StateFlow}, // for long, a reason of the session
		{false, 0, now - int64(flowShown) + 1, StateFlow},
		{false, 0, now - int64(flowShown), StateRunning},
		{true, 0, now, StateBlocking},
		{true, PauseJournal, now, StateBlocking},
		{true, PauseMemory, 0, StateBlocked},
		{true, PauseDisk | PauseJournal, now, StateBlocked},
	} {
		b.SetAlarm(s.alarm, false)
		paused, last = s.paused, s.last
		if got := c.state(now); got != s.want {
			t.Errorf("%+v: %s", s, got)
		}
	}
	if v := b.Connections(); len(v) != 1 || v[0].State != StateBlocked {
		t.Errorf("%+v", v)
	}
}

// Memory follows what is there.
func TestMemoryFollowsWhatIsThere(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	before := b.Memory()
	const n, size = 5_000, 1000
	for range n {
		c.publish("", "q", strings.Repeat("x", size))
	}
	c.end()
	full := b.Memory()
	if d := full.Messages - before.Messages; d < n*size || d > n*size*14/10 {
		t.Errorf("%d bytes for %d messages of %d", d, n, size)
	}
	if d := full.Index - before.Index; d < n*48 || d > n*60 {
		t.Errorf("%d bytes for %d places", d, n)
	}
	c.consume(ConsumeArgs{Queue: "q"})
	c.end()
	unacked := b.Memory()
	if unacked.Messages != full.Messages || unacked.Index > before.Index+1000 || unacked.Channels-full.Channels < n*72 {
		t.Errorf("delivered: %+v after %+v", unacked, full)
	}
	c.ok(c.ch.Ack(0, true))
	c.end()
	if got := b.Memory(); got.Messages > before.Messages+1000 {
		t.Errorf("acknowledged: %+v", got)
	}
	if before.Sum() <= 0 || pool.Lent(pool.Messages) < 0 {
		t.Error("nothing is there")
	}
}
