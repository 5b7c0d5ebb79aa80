package broker

import (
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/frames/table"
)

func timeoutArg(ms int64) table.Table {
	return table.Table{{Name: "x-consumer-timeout", Value: table.IntValue(ms)}}
}

// late has the broker look for late deliveries as if it were time to, and gives those of c as its session would see them: the tag, or 0.
func (c *client) late() (tag uint64, timeout int64) {
	c.t.Helper()
	c.end()
	c.peer.late.Store(0)
	c.b.upkeep.looking.Lock()
	c.b.timeouts.looked = 0
	c.b.upkeep.looking.Unlock()
	c.b.upkeep.look()
	if c.peer.late.Load() == 0 {
		return 0, 0
	}
	l, e := c.ch.Late()
	if e == nil {
		return 0, 0
	}
	if e.Kind != PreconditionFailed || !strings.HasPrefix(e.Text, "delivery acknowledgement on channel 1 timed out. Timeout value used: ") {
		c.t.Fatalf("error %v", e)
	}
	return l.Tag, l.Timeout
}

// wantLate looks at the time now+ms.
func (c *client) wantLate(k *clock, ms int64, what string, tag uint64, timeout int64) {
	c.t.Helper()
	k.advance(ms, c)
	if gotTag, got := c.late(); gotTag != tag || got != timeout {
		c.t.Fatalf("%s: delivery %d is late after %d ms, want %d after %d", what, gotTag, got, tag, timeout)
	}
}

// Of consumer, queue and broker the first that says something counts; of a queue's argument and policy the shorter.
func TestWhichAcknowledgementTimeoutCounts(t *testing.T) {
	for _, tc := range []struct {
		name                    string
		consumer, queue, policy int64 // -1: not set
		want                    int64 // 0: none
	}{
		{"the broker's", -1, -1, -1, 60_000},
		{"the queue's", -1, 5000, -1, 5000},
		{"the policy's", -1, -1, 7000, 7000},
		{"the shorter of queue and policy", -1, 5000, 7000, 5000},
		{"the shorter of policy and queue", -1, 7000, 5000, 5000},
		{"longer than the broker's", -1, 120_000, -1, 120_000},
		{"none of the queue", -1, 0, -1, 0},
		{"none of the policy", -1, -1, 0, 0},
		{"none of the queue, one of the policy", -1, 0, 5000, 5000},
		{"one of the queue, none of the policy", -1, 5000, 0, 5000},
		{"none of both", -1, 0, 0, 0},
		{"the consumer's", 9000, 5000, 7000, 9000},
		{"none of the consumer", 0, 5000, -1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := newClock()
			b := memoryBroker(t, Options{Now: now.Load, ConsumerTimeout: time.Minute})
			c := connect(t, b)
			if tc.policy >= 0 {
				def := table.Table{{Name: "consumer-timeout", Value: table.IntValue(tc.policy)}}
				c.ok(b.PutPolicy(policyOf(t, "p", "^q", "queues", 0, false, def)))
			}
			q, a := QueueDeclare{Name: "q"}, ConsumeArgs{Queue: "q"}
			if tc.queue >= 0 {
				q.Args = timeoutArg(tc.queue)
			}
			if tc.consumer >= 0 {
				a.Args = timeoutArg(tc.consumer)
			}
			c.declare(q)
			c.consume(a)
			c.publish("", "q", "m")
			c.end()
			if tc.want == 0 {
				c.wantLate(now, 1<<40, "a timeout", 0, 0)
			} else {
				c.wantLate(now, tc.want, "at its time", 0, 0)
				c.wantLate(now, 1, "beyond it", 1, tc.want)
			}
			if x, _ := b.Queue("/", "q"); x.Consumers()[0].Timeout != tc.want {
				t.Errorf("it is shown as %d", x.Consumers()[0].Timeout)
			}
		})
	}
}

// A short timeout is not hidden by older deliveries of long ones, on either side of a batch.
func TestShortAcknowledgementTimeoutBehindLongOnes(t *testing.T) {
	now := newClock()
	b := memoryBroker(t, Options{Now: now.Load, ConsumerTimeout: time.Hour})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "long"})
	c.declare(QueueDeclare{Name: "never", Args: timeoutArg(0)})
	c.declare(QueueDeclare{Name: "short", Args: timeoutArg(5000)})
	for _, q := range []string{"long", "never", "short"} {
		c.consume(ConsumeArgs{Queue: q})
	}
	const old = timeoutBatch + 10
	for i := range old {
		c.publish("", []string{"long", "never"}[i%2], "m")
		c.end()
	}
	c.wantLate(now, 100_000, "long ones", 0, 0)
	c.publish("", "short", "m")
	c.publish("", "short", "n")
	c.end()
	c.wantLate(now, 4000, "the short one, early", 0, 0)
	c.wantLate(now, 5000, "the short one", old+1, 5000)
	c.ok(c.ch.Ack(old+1, false))
	c.wantLate(now, 1, "the one behind it", old+2, 5000)
	c.ok(c.ch.Ack(old+2, false))
	c.wantLate(now, 10_000, "none", 0, 0)
	c.ok(c.ch.Ack(1, false)) // the oldest of the long ones
	c.wantLate(now, 3_600_000, "a long one", 3, 3_600_000)
}

// A change of the broker's setting, of a policy, and a consumer with a shorter timeout count at once, for deliveries
// that wait already, too.
func TestAcknowledgementTimeoutsThatChange(t *testing.T) {
	now := newClock()
	b := memoryBroker(t, Options{Now: now.Load})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.consume(ConsumeArgs{Queue: "q"})
	c.publish("", "q", "m")
	c.end()
	c.wantLate(now, 1<<40, "no timeout at all", 0, 0)
	b.SetConsumerTimeout(time.Hour)
	c.wantLate(now, 1, "the setting", 1, 3_600_000)
	b.SetConsumerTimeout(0)
	c.wantLate(now, 1, "no setting any more", 0, 0)
	c.ok(b.PutPolicy(policyOf(t, "p", "^q", "queues", 0, false, table.Table{{Name: "consumer-timeout", Value: table.IntValue(5)}})))
	c.wantLate(now, 1, "the policy", 1, 5)
	c.ok(b.DeletePolicy("/", "p", false))
	c.wantLate(now, 1, "no policy any more", 0, 0)
	c.consume(ConsumeArgs{Queue: "q", Args: timeoutArg(100)})
	c.publish("", "q", "n")
	c.publish("", "q", "o")
	c.end()
	if got, _ := c.late(); got != 0 {
		t.Fatalf("delivery %d is late at once", got)
	}
	now.advance(1000, c)
	if _, timeout := c.late(); timeout != 100 {
		t.Fatalf("the consumer's: %d", timeout)
	}
}

// Gets have the queue's timeout; deliveries without acknowledgement and settled ones have none.
func TestAcknowledgementTimeoutOfGets(t *testing.T) {
	now := newClock()
	b := memoryBroker(t, Options{Now: now.Load, ConsumerTimeout: time.Minute})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q", Args: timeoutArg(5000)})
	c.publish("", "q", "a")
	c.publish("", "q", "b")
	c.publish("", "q", "c")
	c.end()
	c.get("q") // no-ack
	_, tag, _ := c.fetch("q")
	_, second, _ := c.fetch("q")
	c.ok(c.ch.Ack(tag, false))
	c.wantLate(now, 5001, "the get", second, 5000)
	if n := b.Counters().AckTimeouts.Load(); n != 1 {
		t.Errorf("%d counted", n)
	}
	c.ok(c.ch.Ack(second, false))
	c.wantLate(now, 60_000, "all settled", 0, 0)
}

// What a transaction has settled waits for its commit; a rollback makes it late again.
func TestAcknowledgementTimeoutInTransactions(t *testing.T) {
	now := newClock()
	b := memoryBroker(t, Options{Now: now.Load, ConsumerTimeout: time.Minute})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.consume(ConsumeArgs{Queue: "q"})
	c.ok(c.ch.TxSelect())
	for _, body := range []string{"a", "b", "c", "d"} {
		c.publish("", "q", body)
	}
	c.ok(c.ch.TxCommit())
	c.end()
	c.ok(c.ch.Ack(2, true))
	c.wantLate(now, 60_001, "the first that is not settled", 3, 60_000)
	c.ok(c.ch.Nack(3, false, false))
	c.ok(c.ch.Reject(4, false))
	c.wantLate(now, 60_000, "all settled", 0, 0)
	c.ok(c.ch.TxRollback())
	c.wantLate(now, 10_000, "rolled back", 1, 60_000)
	c.ok(c.ch.Ack(0, true))
	c.wantLate(now, 60_000, "all settled at once", 0, 0)
	c.ok(c.ch.TxCommit())
	c.wantLate(now, 60_000, "committed", 0, 0)
}

// Withdraw gives back what the consumer holds, in its place, to others; of a get that one delivery.
func TestWithdraw(t *testing.T) {
	now := newClock()
	b := memoryBroker(t, Options{Now: now.Load, ConsumerTimeout: time.Minute})
	c, other := connect(t, b), connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.declare(QueueDeclare{Name: "r"})
	k := c.consume(ConsumeArgs{Queue: "q", Tag: "k"})
	c.consume(ConsumeArgs{Queue: "r", Tag: "stays"})
	const n = timeoutBatch + 100
	for range n {
		c.publish("", "q", "m")
		c.end()
		c.publish("", "r", "m")
		c.end()
	}
	now.advance(60_001, c)
	c.end()
	c.b.upkeep.look()
	l, e := c.ch.Late()
	if e == nil || l.Consumer != k || l.Tag != 1 {
		t.Fatalf("late: %+v, %v", l, e)
	}
	c.ch.Withdraw(l)
	c.end()
	q, _ := b.Queue("/", "q")
	r, _ := b.Queue("/", "r")
	if q := q.Counts(); q.Ready != n || q.Unacked != 0 || q.Consumers != 0 {
		t.Fatalf("after it: %+v", q)
	}
	if r := r.Counts(); r.Ready != 0 || r.Unacked != n || r.Consumers != 1 {
		t.Fatalf("the other queue: %+v", r)
	}
	if len(c.sink.cancelled) != 0 {
		t.Errorf("told of %v", c.sink.cancelled)
	}
	if e := c.ch.Ack(1, false); e == nil {
		e = c.ch.Settle()
		if e == nil || e.Text != "unknown delivery tag 1" {
			t.Errorf("a late ack: %v", e)
		}
	}
	if got, _ := other.drain("q"); len(got) != n {
		t.Errorf("%d are delivered again", len(got))
	}
	// A consumer that was cancelled, and whose deliveries wait.
	if !c.ch.Cancel("stays") {
		t.Fatal("not cancelled")
	}
	l, e = c.ch.Late()
	if e == nil || l.Tag != 2 {
		t.Fatalf("late: %+v, %v", l, e)
	}
	c.ch.Withdraw(l)
	c.end()
	if r := r.Counts(); r.Ready != n || r.Unacked != 0 {
		t.Fatalf("after the second: %+v", r)
	}
	_, tag, _ := c.fetch("r")
	_, keep, _ := c.fetch("r")
	now.advance(60_001, c)
	if l, e = c.ch.Late(); e == nil || l.Tag != tag || l.Consumer != nil {
		t.Fatalf("late get: %+v, %v", l, e)
	}
	c.ch.Withdraw(l)
	c.end()
	if r := r.Counts(); r.Ready != n-1 || r.Unacked != 1 {
		t.Fatalf("after the get: %+v", r)
	}
	c.ok(c.ch.Ack(keep, false))
}

// The broker looks an eighth of the shortest timeout apart, at least a second and at most ten.
func TestWhenTheBrokerLooksForLateDeliveries(t *testing.T) {
	for _, tc := range []struct {
		timeout time.Duration
		apart   int64
	}{{100 * time.Millisecond, 1000}, {40 * time.Second, 5000}, {time.Hour, 10_000}} {
		now := newClock()
		b := memoryBroker(t, Options{Now: now.Load, ConsumerTimeout: tc.timeout})
		look := func() int64 {
			b.upkeep.look()
			b.upkeep.looking.Lock()
			defer b.upkeep.looking.Unlock()
			return b.timeouts.looked
		}
		first := look()
		now.advance(tc.apart - 1)
		if at := look(); at != first {
			t.Errorf("%s: looks again after %d ms", tc.timeout, at-first)
		}
		now.advance(1)
		if at := look(); at-first != tc.apart {
			t.Errorf("%s: looks after %d ms, want %d", tc.timeout, at-first, tc.apart)
		}
		now.Store(first - 100) // the clock is set back
		if at := look(); at != first-100 {
			t.Errorf("%s: does not look after the clock was set back", tc.timeout)
		}
	}
}

// A look at a hundred channels that hold a thousand deliveries each.
func BenchmarkLookForLate(b *testing.B) {
	now := newClock()
	br := memoryBroker(b, Options{Now: now.Load, ConsumerTimeout: time.Minute})
	clients := make([]*client, 100)
	for i := range clients {
		c := connect(b, br)
		name := string(rune('a'+i%26)) + string(rune('a'+i/26))
		c.declare(QueueDeclare{Name: name})
		c.consume(ConsumeArgs{Queue: name})
		for range 1000 {
			c.publish("", name, "m")
		}
		c.end()
		clients[i] = c
	}
	br.lookForLate(now.Load())
	b.ReportAllocs()
	for b.Loop() {
		br.timeouts.changed.Store(true)
		br.lookForLate(now.Load())
	}
}

// While a session holds what its client has sent no delivery is late; after that each has its time again, if that was
// long.
func TestNoDeliveryIsLateBehindHeldFrames(t *testing.T) {
	now := newClock()
	b := memoryBroker(t, Options{Now: now.Load, ConsumerTimeout: time.Minute})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.consume(ConsumeArgs{Queue: "q"})
	c.publish("", "q", "m")
	c.end()
	now.advance(30_000, c)
	for range 2 { // the second time changes nothing
		c.Holds(true)
		c.wantLate(now, 50_000, "while frames are held", 0, 0)
	}
	c.publish("", "q", "n")
	c.end()
	now.advance(2000, c)
	c.Holds(false)
	c.Holds(false)
	c.wantLate(now, 60_000, "at its new time", 0, 0)
	now.advance(0, c)
	c.Holds(true)
	now.advance(longHold-1, c)
	c.Holds(false)
	c.wantLate(now, 0, "frames were held for a moment", 1, 60_000)
	c.ok(c.ch.Ack(1, false))
	c.wantLate(now, 0, "the one that came meanwhile", 2, 60_000)
}

// A disk that keeps upkeep waiting keeps nobody's deliveries from being late.
func TestLateDeliveriesAreSeenWhileTheDiskIsBusy(t *testing.T) {
	b := memoryBroker(t, Options{ConsumerTimeout: time.Millisecond})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.consume(ConsumeArgs{Queue: "q"})
	c.publish("", "q", "m")
	c.end()
	b.upkeep.working.Lock() // as long as it waits
	defer b.upkeep.working.Unlock()
	until(t, "the look", func() bool { return c.peer.late.Load() > 0 })
}
