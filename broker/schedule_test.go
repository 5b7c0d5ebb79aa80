package broker

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestNobodyStalls does random things with a few connections and queues. After each turn no ready message may
// lie beside a consumer that has room for it.
func TestNobodyStalls(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range uint64(60) {
		schedule(t, rand.New(rand.NewPCG(seed, round)), 300)
	}
}

func schedule(t *testing.T, rng *rand.Rand, steps int) {
	b := memoryBroker(t, Options{})
	names := []string{"p", "q", "r"}
	clients := make([]*client, 3)
	tags := make([][]uint64, len(clients)) // not settled, as far as the client knows
	for i := range clients {
		clients[i] = connect(t, b)
		clients[i].sink.discard = false
	}
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	var log []string
	for range steps {
		i := rng.IntN(len(clients))
		c := clients[i]
		name := names[rng.IntN(len(names))]
		pick := func() (uint64, bool) {
			if len(tags[i]) == 0 {
				return 0, false
			}
			return tags[i][rng.IntN(len(tags[i]))], true
		}
		forget := func(tag uint64, multiple bool) {
			var kept []uint64
			for _, x := range tags[i] {
				if x != tag && !(multiple && x < tag) {
					kept = append(kept, x)
				}
			}
			tags[i] = kept
		}
		op := ""
		switch k := rng.IntN(30); {
		case k < 3:
			op = "declare " + name
			c.DeclareQueue(&QueueDeclare{Name: name})
		case k == 3:
			op = "delete " + name
			c.DeleteQueue(name, false, false)
		case k == 4:
			op = "purge " + name
			c.PurgeQueue(name)
		case k < 12:
			op = "publish " + name
			for range 1 + rng.IntN(4) {
				c.publish("", name, "m")
			}
		case k < 15:
			a := ConsumeArgs{Queue: name, NoAck: rng.IntN(5) == 0}
			op = fmt.Sprintf("consume %s %t", name, a.NoAck)
			if x, e := c.ch.Consume(&a); e == nil {
				x.Start()
			}
		case k == 15:
			if list := c.ch.consumers(); len(list) > 0 {
				op = "cancel"
				c.ch.Cancel(list[rng.IntN(len(list))].Tag)
			}
		case k == 16:
			n, global := rng.IntN(4), rng.IntN(2) == 0
			op = fmt.Sprintf("qos %d %t", n, global)
			c.ok(c.ch.Qos(uint16(n), global))
		case k < 20:
			if tag, ok := pick(); ok {
				multiple := rng.IntN(3) == 0
				op = fmt.Sprintf("ack %d %t", tag, multiple)
				c.ok(c.ch.Ack(tag, multiple))
				forget(tag, multiple)
			}
		case k < 23:
			if tag, ok := pick(); ok && rng.IntN(2) == 0 {
				multiple, requeue := rng.IntN(3) == 0, rng.IntN(2) == 0
				op = fmt.Sprintf("nack %d %t %t", tag, multiple, requeue)
				c.ok(c.ch.Nack(tag, multiple, requeue))
				forget(tag, multiple)
			}
		case k == 23:
			op = "recover"
			c.ok(c.ch.Recover())
			tags[i] = nil
		case k == 24:
			op = "full"
			c.peer.full = true
		case k < 27:
			op = "drained"
			c.peer.full = false
			c.Drained()
		case k == 27:
			op = "get " + name
			c.ch.Get(name, false, func(d *Delivery, _ int) { tags[i] = append(tags[i], d.Tag) })
		case k == 28 && rng.IntN(3) == 0:
			op = "close channel"
			c.ch.Close()
			c.sink = &testSink{peer: c.peer, t: t}
			ch, e := c.Open(1, c.sink)
			c.ok(e)
			c.ch = ch
			tags[i] = nil
		case k == 29 && rng.IntN(3) == 0:
			op = "close connection"
			c.Close()
			clients[i] = connect(t, b)
			c = clients[i]
			tags[i] = nil
		}
		c.end()
		log = append(log, fmt.Sprintf("%d %s", i, op))
		for j, c := range clients {
			for _, d := range c.sink.take() {
				if c.ch.Consumer(d.consumer) == nil || !c.ch.Consumer(d.consumer).NoAck {
					tags[j] = append(tags[j], d.tag)
				}
			}
		}
		// Deliveries of a NoAck consumer that is gone by now need no settlement.
		for j, c := range clients {
			var kept []uint64
			for _, tag := range tags[j] {
				if c.ch.unacked.find(tag) >= 0 {
					kept = append(kept, tag)
				}
			}
			tags[j] = kept
			if c.ch.unacked.live != len(kept) {
				t.Fatalf("%v: channel %d has %d unacked, the client %d", log, j, c.ch.unacked.live, len(kept))
			}
		}
		if stalled := b.stalled(); stalled != "" {
			t.Fatalf("%v: %s", log, stalled)
		}
	}
}

// stalled describes a consumer that has room while its queue has a message; "" when there is none.
func (b *Broker) stalled() string {
	for _, q := range b.vhosts["/"].queues {
		if q.sm.Len() == 0 {
			continue
		}
		for c := range q.members {
			inflight, total := 0, int64(0)
			for i := range c.ch.unacked.n {
				if s := c.ch.unacked.at(i); s.q != nil && s.c != nil {
					total++
					if s.c == c {
						inflight++
					}
				}
			}
			if total != c.ch.inflight.Load() {
				return fmt.Sprintf("%d deliveries of the channel count, %d are there", c.ch.inflight.Load(), total)
			}
			limit := c.ch.limit.Load()
			switch {
			case !c.ch.peer.Writable():
			case !c.NoAck && limit > 0 && total >= limit:
			case !c.NoAck && c.Prefetch > 0 && inflight >= int(c.Prefetch):
			default:
				return fmt.Sprintf("%s has %d ready messages, %s room (%d of %d, channel %d of %d)", q.name, q.sm.Len(), c, inflight, c.Prefetch, total, limit)
			}
		}
	}
	return ""
}
