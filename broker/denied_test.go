package broker

import (
	"fmt"
	"sync"
	"testing"
)

// Consumers that their channel's limit refused are woken in the order of that, and those that are gone do not stay behind.
func TestChannelLimitWakesInTurn(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	const n = 20
	name := func(i int) string { return fmt.Sprint("q", i) }
	for i := range n {
		c.declare(QueueDeclare{Name: name(i)})
		c.consume(ConsumeArgs{Queue: name(i), Tag: name(i)})
	}
	c.ok(c.ch.Qos(2, true))
	for i := n - 1; i >= 0; i-- {
		c.publish("", name(i), name(i))
	}
	c.end()
	eq(t, "at first", c.sink.bodies(), []string{name(n - 1), name(n - 2)})
	if got := int(c.ch.denied.n); got != n-2 {
		t.Fatalf("%d wait for room, want %d", got, n-2)
	}
	c.ok(c.ch.Ack(1, false))
	c.end()
	eq(t, "after an ack", c.sink.bodies(), []string{name(n - 3)})
	c.ch.Cancel(name(n - 4))
	c.ch.Cancel(name(n - 8))
	if _, e := c.DeleteQueue(name(n-6), false, false); e != nil {
		t.Fatal(e)
	}
	if got := int(c.ch.denied.n); got != n-6 {
		t.Errorf("%d wait for room, want %d", got, n-6)
	}
	c.ok(c.ch.Qos(4, true))
	c.end()
	eq(t, "with a higher limit", c.sink.bodies(), []string{name(n - 5), name(n - 7)})
	c.ok(c.ch.Ack(0, true))
	c.end()
	eq(t, "after all acks", c.sink.bodies(), []string{name(n - 9), name(n - 10), name(n - 11), name(n - 12)})
	c.ok(c.ch.Qos(0, true))
	c.end()
	if got, left := len(c.sink.bodies()), int(c.ch.denied.n); got != n-2-10 || left != 0 || c.ch.denials.Load() != 0 {
		t.Errorf("without a limit %d more, %d wait for room", got, left)
	}
}

// A queue that always has messages does not keep a channel's limit from the others.
func TestChannelLimitIsShared(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	const queues, each = 3, 4
	c.ok(c.ch.Qos(1, true))
	for i := range queues {
		c.declare(QueueDeclare{Name: fmt.Sprint(i)})
		for range each {
			c.publish("", fmt.Sprint(i), fmt.Sprint(i))
		}
	}
	c.end()
	for i := range queues {
		c.consume(ConsumeArgs{Queue: fmt.Sprint(i), Tag: fmt.Sprint(i)})
	}
	c.end()
	var got []string
	for range queues * each {
		got = append(got, c.sink.bodies()...)
		c.ok(c.ch.Ack(0, true))
		c.end()
	}
	// The first was refused its second message before the others came.
	eq(t, "in turn", got, []string{"0", "0", "1", "2", "0", "1", "2", "0", "1", "2", "1", "2"})
}

// Settlements of one goroutine and deliveries of others leave no consumer waiting while there is room.
func TestChannelLimitLosesNoWakeup(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	const queues, each = 8, 2000
	c.ok(c.ch.Qos(3, true))
	c.sink.discard = true
	for i := range queues {
		c.declare(QueueDeclare{Name: fmt.Sprint(i)})
		c.consume(ConsumeArgs{Queue: fmt.Sprint(i)})
	}
	c.end()
	var publishers sync.WaitGroup
	for i := range queues {
		pub := connect(t, b)
		publishers.Go(func() {
			for range each {
				pub.publish("", fmt.Sprint(i), "x")
				pub.end()
			}
		})
	}
	for tag := 1; tag <= queues*each; tag++ {
		c.await(tag)
		c.ok(c.ch.Ack(uint64(tag), false))
		c.end()
	}
	publishers.Wait()
}

// A channel that has several consumers of a queue is known as such however many others there are.
func TestConsumersOf(t *testing.T) {
	b := memoryBroker(t, Options{})
	var clients []*client
	for range 5 {
		clients = append(clients, connect(t, b))
	}
	clients[0].declare(QueueDeclare{Name: "q"})
	q, e := clients[0].queue("q")
	if e != nil {
		t.Fatal(e)
	}
	have := make([]int, len(clients))
	check := func() {
		t.Helper()
		q.mu.Lock()
		defer q.mu.Unlock()
		distinct := 0
		for i, c := range clients {
			if n := q.consumersOf(c.ch); n != have[i] || q.consuming()[c.ch] != n {
				t.Fatalf("%d consumers of client %d, want %d", n, i, have[i])
			}
			if have[i] > 0 {
				distinct++
			}
		}
		if n := len(q.consuming()); n != distinct {
			t.Fatalf("%d channels, want %d", n, distinct)
		}
	}
	for round := range 3 {
		for i := range 30 {
			k := i * (i + round) % len(clients)
			clients[k].consume(ConsumeArgs{Queue: "q", Tag: fmt.Sprint(i)})
			have[k]++
			check()
		}
		for i := range 30 {
			k := i * (i + round) % len(clients)
			if !clients[k].ch.Cancel(fmt.Sprint(i)) {
				t.Fatal("no consumer", i)
			}
			have[k]--
			check()
		}
	}
}
