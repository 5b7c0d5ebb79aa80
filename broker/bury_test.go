package broker

import (
	"fmt"
	"testing"

	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
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
