package broker

import (
	"fmt"
	"slices"
	"testing"

	"github.com/firemq/firemq/internal/vfs"
)

func sum(n []int) (all int) {
	for _, v := range n {
		all += v
	}
	return all
}

// Several queues are looked for at once: each unacked message counts for its own, whoever holds it, and channels that hold none
// any more are forgotten for each queue by itself.
func TestHeldOfSeveralQueues(t *testing.T) {
	b := memoryBroker(t, Options{FS: vfs.OS{}, JournalDir: t.TempDir()})
	c, getter := connect(t, b), connect(t, b)
	const n = 300 // more than are locked together
	queues := make([]*Queue, n)
	want := make([]int, n)
	for i := range queues {
		name := fmt.Sprint("q", i)
		c.declare(QueueDeclare{Name: name, Durable: true})
		if i%3 > 0 {
			c.consume(ConsumeArgs{Queue: name, Tag: name})
		}
		for range i % 4 {
			c.publish("", name, "x")
			want[i]++
		}
		q, e := c.queue(name)
		c.ok(e)
		queues[i] = q
	}
	c.end()
	for i, q := range queues {
		for i%3 == 0 {
			ok, e := getter.ch.Get(q.name, false, func(*Delivery, int) {})
			getter.ok(e)
			if !ok {
				break
			}
		}
	}
	until(t, "all deliveries", func() bool { return b.Totals().Unacked == sum(want) })
	look := func(some []*Queue) []int {
		for _, q := range some {
			q.mu.Lock()
			defer q.mu.Unlock()
		}
		seen := make([]int, len(some))
		n := held(some, func(i int, s *slot) {
			if s.q != some[i] {
				t.Errorf("a message of %s for %s", s.q.name, some[i].name)
			}
			seen[i]++
		})
		eq(t, "seen", seen, n)
		return n
	}
	eq(t, "all", look(queues), want)
	eq(t, "some", look(queues[5:9]), want[5:9])
	eq(t, "one", look(queues[9:10]), want[9:10])

	// The getter gives back what it has of every other one.
	tag := uint64(0)
	for i := range queues {
		if i%3 > 0 {
			continue
		}
		for range want[i] {
			if tag++; i%2 == 0 {
				getter.ok(getter.ch.Ack(tag, false))
			}
		}
		if i%2 == 0 {
			want[i] = 0
		}
	}
	getter.end()
	eq(t, "after acks", look(queues), want)
	for i, q := range queues {
		q.mu.Lock()
		if strays := len(q.strays); i%3 == 0 && (strays == 1) != (want[i] > 0) {
			t.Errorf("%s: %d strays hold %d", q.name, strays, want[i])
		}
		if n := q.sm.Unacked(); n != want[i] {
			t.Errorf("%s: %d unacked, want %d", q.name, n, want[i])
		}
		q.mu.Unlock()
	}
	// Locked together are at most so many, in order.
	m := lockTogether(queues)
	for _, q := range queues[:m] {
		q.mu.Unlock()
	}
	if m != together || slices.ContainsFunc(queues[m:], func(q *Queue) bool { free := q.mu.TryLock(); q.mu.Unlock(); return !free }) {
		t.Errorf("%d locked together", m)
	}
}
