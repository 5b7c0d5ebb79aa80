package broker

import (
	"testing"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
	"github.com/firemq/firemq/pool"
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
	b.AllowLate(0, 300_000, each)
	for range 3 {
		publish(c)
	}
	if c.MayPublish() {
		t.Error("there is no bound for all")
	}
	b.AllowLate(0, 300_000, each)
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

// What an alarm has put on the disk does not come back into memory by what becomes of it there: messages that are got
// or dead-lettered are on the disk alone, and so are those of a transaction.
func TestWhatBecomesOfLatePublishesIsOnTheDisk(t *testing.T) {
	const n, size = 64, 100_000
	message := func() *Publish {
		return &Publish{Msg: message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1}, nil, []byte("q"), nil, size)}
	}
	publish := func(c *client) {
		for range n {
			c.ok(c.ch.Publish(message()))
			c.end()
		}
	}
	get := func(c *client) (tag uint64) {
		until(t, "they are on the disk", func() bool { return c.b.journal.Pending() == 0 })
		for range n {
			ok, e := c.ch.Get("q", false, func(d *Delivery, _ int) { tag = d.Tag })
			if !ok || e != nil {
				t.Fatal(ok, e)
			}
			c.end()
		}
		return tag
	}
	for name, do := range map[string]func(c *client){
		"published": publish,
		"got":       func(c *client) { publish(c); get(c) },
		"consumed":  func(c *client) { publish(c); c.consume(ConsumeArgs{Queue: "q"}); c.end() },
		"dead-lettered": func(c *client) {
			publish(c)
			tag := get(c)
			c.ok(c.ch.Nack(tag, true, false))
			c.end()
		},
		"dropped by a limit": func(c *client) {
			publish(c)
			publish(c)
		},
		"committed": func(c *client) {
			c.ok(c.ch.TxSelect())
			for range n {
				c.ok(c.ch.Publish(message()))
				c.end()
			}
			c.ok(c.ch.TxCommit())
			c.end()
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := onDisk(t)
			c := connect(t, b)
			c.declare(QueueDeclare{Name: "owed"})
			c.declare(QueueDeclare{Name: "dead"})
			c.declare(QueueDeclare{Name: "q", Args: table.Table{
				{Name: "x-dead-letter-exchange", Value: table.StringValue("")}, {Name: "x-dead-letter-routing-key", Value: table.StringValue("dead")},
				{Name: "x-max-length", Value: table.IntValue(n)},
			}})
			c.publish("", "owed", "")
			c.end()
			if ok, e := c.ch.Get("owed", false, func(*Delivery, int) {}); !ok || e != nil {
				t.Fatal(ok, e)
			}
			before := pool.Lent(pool.Messages)
			b.SetAlarm(true, false)
			do(c)
			until(t, "it has left memory", func() bool { return pool.Lent(pool.Messages)-before <= 2*size })
		})
	}
}

// Only a settlement lets a connection publish more during an alarm, and not the end of a transaction that has none.
func TestCommitsWithoutAcksAllowNothing(t *testing.T) {
	b := onDisk(t)
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.publish("", "q", "")
	c.end()
	if ok, e := c.ch.Get("q", false, func(*Delivery, int) {}); !ok || e != nil {
		t.Fatal(ok, e)
	}
	c.ok(c.ch.TxSelect())
	b.SetAlarm(true, false)
	const each = 1 << 20
	b.AllowLate(0, 100*each, each)
	m := message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1}, nil, []byte("q"), nil, each)
	c.ok(c.ch.Publish(&Publish{Msg: m}))
	c.ok(c.ch.TxCommit())
	c.end()
	until(t, "the disk", b.diskIsFree)
	c.ok(c.ch.TxCommit())
	c.end()
	if c.MayPublish() {
		t.Error("an empty commit allows more")
	}
	c.ok(c.ch.Ack(1, false))
	if ok, e := c.ch.Get("q", false, func(*Delivery, int) {}); !ok || e != nil {
		t.Fatal(ok, e)
	}
	c.ok(c.ch.TxCommit())
	c.end()
	if !c.MayPublish() {
		t.Error("one with an acknowledgement does not")
	}
}

// Memory that is not the broker's own may be in use beyond any bound: those whose acks may end the alarm go on by way of
// the disk, in small steps, as far as there is something spare in this alarm.
func TestMemoryInUseElsewhereStopsNoAcks(t *testing.T) {
	b := onDisk(t)
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.publish("", "q", "")
	c.end()
	if ok, e := c.ch.Get("q", false, func(*Delivery, int) {}); !ok || e != nil {
		t.Fatal(ok, e)
	}
	const size, each = 64_000, 8 << 20
	for range 2 {
		b.SetAlarm(true, false)
		n := 0
		for range 3 * each / lateSpare / lateStep {
			b.AllowLate(0, 0, each)
			b.AllowLate(0, 0, each) // what was not used is not lost
			for last := n + 2*lateStep/size; n < last && c.MayPublish(); n++ {
				c.ok(c.ch.Publish(&Publish{Msg: message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1}, nil, []byte("q"), nil, size)}))
				c.end()
				until(t, "the disk", b.diskIsFree)
			}
		}
		if n < each/lateSpare/(size+2*messageCost)-2 || n > each/lateSpare/size+2 {
			t.Errorf("%d messages of %d bytes", n, size)
		}
		b.AllowLate(0, 10*lateStep, each)
		if !c.MayPublish() {
			t.Error("there is room, and it may not publish")
		}
		b.SetAlarm(true, true)
		b.AllowLate(0, 0, each)
		if c.MayPublish() {
			t.Error("the disk is short, too")
		}
		b.SetAlarm(false, false)
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

// While memory is all but used up beyond its limit, a channel that has many deliveries to settle gets no more: it does
// again when it has settled some, when memory was read and there is more of it, and when the alarm is over.
func TestDeliveriesAreWithheld(t *testing.T) {
	b, _ := diskBroker(t, vfs.NewMem(), Snapshot{})
	defer b.Close()
	b.opt.tuning.withholdUnacked = 3
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.consume(ConsumeArgs{Queue: "q", Tag: "k"})
	other := connect(t, b) // has little to settle
	other.declare(QueueDeclare{Name: "other"})
	other.consume(ConsumeArgs{Queue: "other", Tag: "k"})
	put := func(bodies ...string) {
		t.Helper()
		for _, body := range bodies {
			c.publish("", "q", body)
			c.end()
		}
		until(t, "the disk", func() bool { return b.journal.Pending() == 0 })
		b.sync(t)
	}
	got := func(when string, want ...string) {
		t.Helper()
		var all []string
		until(t, when, func() bool { all = append(all, c.sink.bodies()...); return len(all) >= len(want) })
		eq(t, when, all, want)
	}
	const each = 64 << 20
	put("0", "1", "2", "3")
	got("without an alarm", "0", "1", "2", "3")
	b.SetAlarm(true, false)
	b.AllowLate(0, each/lateHold, each)
	put("4")
	got("with room", "4")

	b.AllowLate(0, each/lateHold-1, each)
	put("5", "6")
	c.publish("", "other", "x")
	c.end()
	until(t, "what somebody else gets", func() bool { return len(other.sink.bodies()) > 0 })
	c.ok(c.ch.Ack(1, false))
	c.end()
	got("with 4 to settle")
	c.ok(c.ch.Ack(4, true))
	c.end()
	got("with 1 to settle", "5", "6")
	put("7", "8")
	got("with 3 to settle")
	b.AllowLate(0, each/lateHold, each)
	got("with room again", "7", "8")

	b.AllowLate(0, 0, each)
	put("9")
	got("without room again")
	for _, gone := range []func(*client){func(c *client) { c.ch.Close() }, func(c *client) { c.Close() }} {
		c := connect(t, b)
		c.declare(QueueDeclare{Name: "many"})
		for range 4 {
			c.publish("", "many", "x")
		}
		c.consume(ConsumeArgs{Queue: "many", Tag: "k"})
		c.end()
		if !c.ch.withheld.Load() {
			t.Fatal("a channel with 3 to settle gets more")
		}
		gone(c)
	}
	if len(b.withheld) != 1 {
		t.Errorf("%d channels wait beside those that are closed", len(b.withheld)-1)
	}
	b.SetAlarm(false, false)
	b.AllowLate(0, 0, each)
	got("after the alarm", "9")
	if b.withheld != nil {
		t.Errorf("%d channels wait still", len(b.withheld))
	}
}

// A consumer that the channel's limit refused before deliveries were held back gets what it waits for when they are no
// more, though the limit is gone meanwhile and nothing is settled.
func TestWhatALimitRefusedIsNotWithheldForGood(t *testing.T) {
	b, _ := diskBroker(t, vfs.NewMem(), Snapshot{})
	defer b.Close()
	b.opt.tuning.withholdUnacked = 3
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.consume(ConsumeArgs{Queue: "q", Tag: "k"})
	came := 0
	await := func(n int) {
		t.Helper()
		until(t, "deliveries", func() bool { came += len(c.sink.bodies()); return came >= n })
	}
	for range 4 {
		c.publish("", "q", "first")
	}
	c.end()
	c.ok(c.ch.Qos(1, true))
	c.publish("", "q", "refused")
	c.end()
	await(4)
	if n := c.ch.denials.Load(); n != 1 {
		t.Fatalf("%d consumers were refused", n)
	}
	b.SetAlarm(true, false)
	b.AllowLate(0, 0, 64<<20)
	c.ok(c.ch.Qos(0, true))
	c.end()
	if n := c.ch.denials.Load(); n != 1 {
		t.Fatalf("%d consumers are held back", n)
	}
	b.SetAlarm(false, false)
	b.AllowLate(0, 0, 64<<20)
	await(5)
}
