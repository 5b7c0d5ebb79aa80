package broker

import (
	"testing"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/internal/vfs"
)

// While memory is short, what a connection publishes that has deliveries to settle goes to the journal and leaves memory:
// transient messages, and those to queues that do not survive, too. It waits while too much is on its way there, and is
// asked to look again when it is not. What others publish stays in memory.
func TestLatePublishesGoByWayOfTheDisk(t *testing.T) {
	fs, gate, release := slowDisk()
	b, _ := diskBroker(t, fs, Snapshot{})
	defer b.Close()
	c, other := connect(t, b), connect(t, b)
	c.declare(QueueDeclare{Name: "owed"})
	c.declare(QueueDeclare{Name: "q"})
	c.publish("", "owed", "")
	c.end()
	if ok, e := c.ch.Get("owed", false, func(*Delivery, int) {}); !ok || e != nil {
		t.Fatal(ok, e)
	}
	publish := func(c *client) {
		t.Helper()
		m := message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1}, nil, []byte("q"), nil, 100_000)
		c.ok(c.ch.Publish(&Publish{Msg: m}))
		c.end()
	}
	q, e := c.queue("q")
	c.ok(e)
	entries := func() (list []queue.Entry) {
		q.mu.Lock()
		defer q.mu.Unlock()
		for p := range q.sm.Pieces() {
			list = append(list, p.Entries...)
		}
		return list
	}
	b.SetAlarm(true, false)
	const room, each = 8 << 20, 3 << 20
	b.AllowLate(0, room, each)
	if !c.MayPublish() || other.MayPublish() {
		t.Fatal("who has deliveries to settle may not publish, or who has none may")
	}
	publish(other)
	if list := entries(); len(list) != 1 || list[0].Journaled {
		t.Fatalf("the message of who has nothing to settle: %+v", list)
	}

	close(gate)
	n := 0
	for ; c.MayPublish() && n < 100; n++ {
		publish(c)
	}
	if n*100_000 < lateHigh || n*100_000 > lateHigh+200_000 {
		t.Errorf("stopped with %d messages on their way to the disk", n)
	}
	answered := c.peer.answered.Load()
	close(release)
	until(t, "it is asked to look again", func() bool { return c.peer.answered.Load() > answered })
	until(t, "it may publish", c.MayPublish)
	until(t, "all that is late has left memory", func() bool {
		list := entries()
		for i := range list {
			if list[i].Msg != nil && list[i].Journaled {
				return false
			}
		}
		return len(list) == n+1
	})

	// Its own bound is between two settlements.
	for c.MayPublish() && n < 100 {
		publish(c)
		n++
		until(t, "the disk", func() bool { return b.diskIsFree() })
	}
	if n*100_000 < each*3/4 || n*100_000 > each {
		t.Errorf("stopped after %d messages", n)
	}
	b.AllowLate(0, room, each)
	if c.MayPublish() {
		t.Error("a reading of memory gives it more")
	}
	c.ok(c.ch.Ack(1, false))
	if ok, e := c.ch.Get("q", false, func(*Delivery, int) {}); !ok || e != nil {
		t.Fatal(ok, e)
	}
	c.end()
	if !c.MayPublish() {
		t.Error("a settlement does not")
	}
	// What all of them may bring is renewed with each reading.
	b.AllowLate(0, 100_000, each)
	publish(c)
	if c.MayPublish() {
		t.Error("there is no bound for all")
	}
	b.AllowLate(0, 100_000, each)
	if !c.MayPublish() {
		t.Error("it has not been renewed")
	}

	// With the disk short as well nothing goes there.
	b.SetAlarm(true, true)
	b.AllowLate(0, room, 0)
	publish(c)
	b.SetAlarm(false, false)
	list := entries()
	if e := list[len(list)-1]; e.Journaled {
		t.Errorf("written during an alarm of the disk: %+v", e)
	}
	if got, _ := c.drain("q"); len(got) != len(list) || len(got[0]) != 100_000 || len(got[n]) != 100_000 {
		t.Errorf("%d messages came of %d", len(got), len(list))
	}
}

// Who comes during an alarm publishes nothing of what others may that were told of it late, but, once it has deliveries to
// settle, what they may that have some: a consumer that was started again passes on what it took, and acknowledges it.
func TestNewcomerWithDeliveriesMayPublish(t *testing.T) {
	b, _ := diskBroker(t, vfs.NewMem(), Snapshot{})
	defer b.Close()
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.publish("", "q", "")
	c.end()
	b.SetAlarm(true, false)
	b.AllowLate(1<<20, 1<<20, 1<<20)
	newcomer := connect(t, b)
	if newcomer.MayPublish() || !c.MayPublish() {
		t.Fatal("who came during the alarm may publish, or who was there may not")
	}
	if ok, e := newcomer.ch.Get("q", false, func(*Delivery, int) {}); !ok || e != nil {
		t.Fatal(ok, e)
	}
	if !newcomer.MayPublish() {
		t.Fatal("it may not although it has something to settle")
	}
	newcomer.publish("", "q", "passed on")
	newcomer.ok(newcomer.ch.Ack(1, false))
	newcomer.end()
	if newcomer.MayPublish() || b.late.Load() != 1<<20 {
		t.Errorf("it may when it has settled all; %d bytes are left of what is late", b.late.Load())
	}
}
