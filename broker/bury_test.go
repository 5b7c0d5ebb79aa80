package broker

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
)

// Queues that dead-letter into each other make some n! copies of one message. They come in pieces, so
// that the publisher's turn ends, and in the end all of them are gone.
func TestDeadLettersThatMultiplyComeInPieces(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.ok(c.DeclareExchange(&ExchangeDeclare{Name: "x", Type: "fanout"}))
	for i := range 7 {
		name := c.declare(QueueDeclare{Name: fmt.Sprint("q", i), Args: table.Table{
			{Name: "x-message-ttl", Value: table.IntValue(0)},
			{Name: "x-dead-letter-exchange", Value: table.StringValue("x")},
		}})
		c.ok(c.BindQueue(name, "x", "", nil))
	}
	c.publish("x", "", "a")
	c.ch.flush()
	turn := c.begin()
	g := burial{now: turn.dead}
	turn.dead = nil
	if turn.burySome(&g, buryBatch); g.done() || b.counters.Dead[1][queue.Expired].Load() != buryBatch {
		t.Fatalf("%d dead letters in the turn, want %d", b.counters.Dead[1][queue.Expired].Load(), buryBatch)
	}
	waiting := len(g.now) + len(g.next)
	for _, l := range g.later {
		waiting += len(l)
	}
	if waiting > 7*(buryBatch+7) {
		t.Fatalf("%d wait", waiting)
	}
	b.upkeep.buryLater(g)
	c.end()
	until(t, "the end of the dead letters", func() bool { return !b.upkeep.burying.Load() })
	if n := b.Totals(); n.Ready != 0 {
		t.Fatalf("left: %+v", n)
	}
	// Each path through the queues is one dead letter for each queue on it but the last.
	if n := b.counters.Dead[1][queue.Expired].Load(); n < 7*6*5*4*3*2 {
		t.Fatalf("%d dead letters", n)
	}
}

// A broker that stops does not wait for them.
func TestDeadLettersThatMultiplyDoNotHoldTheStop(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.ok(c.DeclareExchange(&ExchangeDeclare{Name: "x", Type: "fanout"}))
	for i := range 14 {
		name := c.declare(QueueDeclare{Name: fmt.Sprint("q", i), Args: table.Table{
			{Name: "x-message-ttl", Value: table.IntValue(0)},
			{Name: "x-dead-letter-exchange", Value: table.StringValue("x")},
		}})
		c.ok(c.BindQueue(name, "x", "", nil))
	}
	c.publish("x", "", "a")
	c.end()
}

// TestDeadLettersWaitForTheDisk: while the journal cannot write, dead letters stay where they are and take no memory, what
// is dropped goes, and once there is room all dead letters arrive, in order.
func TestDeadLettersWaitForTheDisk(t *testing.T) {
	gate, release := make(chan struct{}), make(chan struct{})
	disk := &vfs.Faults{FS: vfs.OS{}, Check: func(op vfs.Op) error {
		if op.Kind == vfs.OpWrite {
			select {
			case <-gate:
				<-release
			default:
			}
		}
		return nil
	}}
	var now atomic.Int64
	now.Store(1_000_000)
	b, _, err := Open(Options{
		FS: disk, JournalDir: filepath.Join(t.TempDir(), testDir), NoSync: true, Start: Snapshot{VHosts: []string{"/"}}, Now: now.Load,
		Codecs: map[message.Encoding]message.Codec{message.AMQP: plainCodec{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.AddFirstUser("guest", "guest"); err != nil {
		t.Fatal(err)
	}
	c := connect(t, b)
	ttl := table.Field{Name: "x-message-ttl", Value: table.IntValue(1000)}
	c.declare(QueueDeclare{Name: "dead", Durable: true})
	c.declare(QueueDeclare{Name: "expires", Durable: true, Args: table.Table{ttl,
		{Name: "x-dead-letter-exchange", Value: table.StringValue("")}, {Name: "x-dead-letter-routing-key", Value: table.StringValue("dead")}}})
	c.declare(QueueDeclare{Name: "rejected", Durable: true, Args: table.Table{
		{Name: "x-dead-letter-exchange", Value: table.StringValue("")}, {Name: "x-dead-letter-routing-key", Value: table.StringValue("dead")}}})
	c.declare(QueueDeclare{Name: "dropped", Durable: true, Args: table.Table{ttl}})
	const many = 20
	body := strings.Repeat("x", 1<<20)
	for i := range many {
		for _, q := range []string{"expires", "rejected"} {
			c.publish("", q, fmt.Sprintf("%04d%s", i, body))
		}
		c.publish("", "dropped", "")
		c.end()
		b.sync(t)
	}
	c.consume(ConsumeArgs{Queue: "rejected"})
	c.end()
	until(t, "the deliveries", func() bool { c.peer.mu.Lock(); defer c.peer.mu.Unlock(); return c.sink.n == many })
	c.sink.take()

	close(gate)
	now.Add(2000)
	most := int64(0)
	look := func() { most = max(most, b.journal.Pending()) }
	for tag := range uint64(many) {
		c.ok(c.ch.Reject(tag+1, false))
		c.end()
		look()
	}
	until(t, "the end of what is dropped", func() bool { b.timers.fire(); look(); n := counts(b, "dropped"); return n.Ready == 0 })
	if limit := int64(journalHigh + 3*buryBytes); most > limit {
		t.Errorf("%d MiB waited for the disk, want at most %d", most>>20, limit>>20)
	}
	close(release)
	until(t, "all dead letters", func() bool { return counts(b, "dead").Ready == 2*many })
	c.end()
	next := map[string]int{}
	for {
		ok, e := c.ch.Get("dead", true, func(d *Delivery, _ int) {
			p, _ := b.properties(d.Msg)
			from, _ := p.Headers.Get("x-first-death-queue")
			if got := string(d.Msg.Body()[:4]); got != fmt.Sprintf("%04d", next[from.Str]) {
				t.Errorf("%s of %s comes after %d", got, from.Str, next[from.Str])
			}
			next[from.Str]++
		})
		if c.ok(e); !ok {
			break
		}
	}
	c.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}
