package broker

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/pool"
)

// flood publishes n transient messages without a body in turns of 200.
func (c *client) flood(queue string, n int) {
	c.t.Helper()
	key := []byte(queue)
	for i := range n {
		m := message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1}, nil, key, nil, 0)
		c.ok(c.ch.Publish(&Publish{Msg: m}))
		if i%200 == 199 || i == n-1 {
			c.end()
		}
	}
}

// Settlements of very many deliveries are carried out in pieces; all of them count, once, and what
// goes back to the queue is in order.
func TestManyDeliveriesSettleInPieces(t *testing.T) {
	b := memoryBroker(t, Options{})
	pub := connect(t, b)
	pub.declare(QueueDeclare{Name: "q"})
	const n = 3*settleNow + 100
	pub.flood("q", n)
	c := connect(t, b)
	c.sink.discard = true
	c.consume(ConsumeArgs{Queue: "q"})
	c.end()
	unacked := func(want int) {
		t.Helper()
		until(t, fmt.Sprint(want, " unacked"), func() bool { return b.Totals().Unacked == want })
	}
	unacked(n)
	c.ok(c.ch.Ack(settleNow+50, true)) // the smaller part is cut off
	c.end()
	unacked(n - settleNow - 50)
	c.ok(c.ch.Ack(7, true))
	_, e := c.EndTurn()
	c.refused(e, PreconditionFailed, "unknown delivery tag 7")
	c.ch.FailedVerb()
	c.ok(c.ch.Ack(n-10, true)) // the larger one
	c.end()
	unacked(10)
	for tag := n - 9; tag <= n; tag++ {
		c.ok(c.ch.Nack(uint64(tag), false, false))
	}
	c.end()
	unacked(0)
	until(t, "the count of the acks", func() bool {
		traffic := b.Traffic()
		return traffic.Total().Ack == n-10
	})
	c.Close()

	pub.flood("q", n)
	c = connect(t, b)
	c.sink.discard = true
	c.consume(ConsumeArgs{Queue: "q"})
	c.end()
	unacked(n)
	c.Close()
	until(t, "the requeue", func() bool { return b.Totals().Ready == n })
	seq := uint64(0)
	b.topo.RLock()
	q := b.vhosts["/"].queues["q"]
	b.topo.RUnlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	left := q.sm.Purge()
	for left.Len() > 0 {
		var list []queue.Entry
		left.Take(1, &list)
		if list[0].Seq <= seq || !list[0].Redelivered {
			t.Fatalf("entry %+v after %d", list[0], seq)
		}
		seq = list[0].Seq
		list[0].Msg.Release()
	}
}

// cut must keep every slot on its side, wherever the ring starts and whatever is settled.
func TestUnackedCut(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var u unacked
		q := &Queue{}
		tag, live := uint64(0), map[uint64]bool{}
		for range r.IntN(300) {
			tag++
			u.push(tag, q, nil, &queue.Entry{Seq: tag}, 0)
			live[tag] = true
			if r.IntN(3) == 0 {
				if i := u.find(1 + r.Uint64N(tag)); i >= 0 {
					s := u.take(i)
					delete(live, s.tag)
				}
			}
		}
		if u.n == 0 {
			continue
		}
		at := 1 + r.IntN(u.n)
		last := u.at(at - 1).tag
		first := u.cut(at)
		for _, side := range []*unacked{&first, &u} {
			for side.live > 0 {
				s := side.pop()
				if !live[s.tag] || s.e.Seq != s.tag || (s.tag <= last) != (side == &first) {
					t.Fatalf("seed %d: tag %d (cut at %d) on the wrong side or twice", seed, s.tag, last)
				}
				delete(live, s.tag)
			}
		}
		if len(live) > 0 {
			t.Fatalf("seed %d: lost %v", seed, live)
		}
	}
}

func TestChannelsOpenedAndClosedLeaveNothing(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	before := pool.Live()
	for i := range 10_000 {
		ch, e := c.Conn.Open(2, c.sink)
		c.ok(e)
		if i%10 == 0 {
			k, e := ch.Consume(&ConsumeArgs{Queue: "q"})
			c.ok(e)
			k.Start()
			_, e = ch.Consume(&ConsumeArgs{Queue: ReplyTo, NoAck: true})
			c.ok(e)
			c.ok(ch.Publish(&Publish{Msg: message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1}, nil, []byte("q"), nil, 0)}))
		}
		ch.Close()
	}
	c.end()
	n := b.Totals()
	if n.Channels != 1 || n.Consumers != 0 || n.Unacked != 0 || n.Ready != 1000 || len(c.channels) != 1 || len(c.active) != 0 || len(c.consumers) != 0 {
		t.Fatalf("left: %+v, %d channels, %d active, %d consumers", n, len(c.channels), len(c.active), len(c.consumers))
	}
	if n := len(c.turn.doomed) + len(c.turn.dead) + len(b.timers.items); n != 0 {
		t.Errorf("%d timers and leftovers", n)
	}
	if _, e := c.PurgeQueue("q"); e != nil {
		t.Fatal(e.Text)
	}
	if n := pool.Live(); n != before {
		t.Errorf("%d buffers left", n-before)
	}
	b.connMu.Lock()
	defer b.connMu.Unlock()
	if u := b.usage["guest"]; *u != (usage{1, 1}) {
		t.Errorf("usage %+v", *u)
	}
}

var limitOne = table.Table{{Name: "max-length", Value: table.IntValue(1)}}

// BenchmarkMillion does to a million messages what must not stall others, and reports the longest
// time in ms that the step itself took in its turn, that a publish to the same queue took
// meanwhile, and the memory of a channel with a million unacked deliveries.
func BenchmarkMillion(b *testing.B) {
	const n = 1_000_000
	for _, step := range []string{"unacked", "close", "recover", "ack", "purge", "delete", "policy"} {
		b.Run(step, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				br := memoryBroker(b, Options{})
				pub, other := connect(b, br), connect(b, br)
				pub.declare(QueueDeclare{Name: "q"})
				pub.declare(QueueDeclare{Name: "side"})
				pub.flood("q", n)
				c := connect(b, br)
				c.sink.discard, other.sink.discard = true, true
				take := func() {
					c.consume(ConsumeArgs{Queue: "q"})
					c.end()
				}
				if step == "close" || step == "recover" || step == "ack" {
					take()
				}
				var worst atomic.Int64
				quit, over := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(over)
					for {
						select {
						case <-quit:
							return
						default:
						}
						began := time.Now()
						other.publish("", "q", "x")
						other.end()
						worst.Store(max(worst.Load(), int64(time.Since(began))))
					}
				}()
				b.StartTimer()
				began := time.Now()
				switch step {
				case "unacked":
					take()
				case "close":
					c.ch.Close()
				case "recover":
					c.ok(c.ch.Recover())
				case "ack":
					c.ok(c.ch.Ack(0, true))
				case "purge":
					c.PurgeQueue("q")
				case "delete":
					c.DeleteQueue("q", false, false)
				case "policy":
					c.ok(br.PutPolicy(policyOf(b, "p", "", "queues", 0, false, limitOne)))
				}
				c.end()
				took := time.Since(began)
				until(b, "the end", func() bool {
					br.upkeep.mu.Lock()
					busy := len(br.upkeep.rings) + len(br.upkeep.sweeps)
					br.upkeep.mu.Unlock()
					return busy == 0
				})
				b.StopTimer()
				close(quit)
				<-over
				b.ReportMetric(float64(took.Microseconds())/1000, "turn-ms")
				b.ReportMetric(float64(worst.Load())/1e6, "publish-ms")
				c.Close()
				pub.Close()
				other.Close()
				b.StartTimer()
			}
		})
	}
}

// A channel that closes takes all its consumers at once: none of them is active for a moment.
func TestClosingChannelHandsNothingToItsOwnConsumers(t *testing.T) {
	b := memoryBroker(t, Options{})
	c, other := connect(t, b), connect(t, b)
	c.declare(QueueDeclare{Name: "q", Args: table.Table{{Name: "x-single-active-consumer", Value: table.BoolValue(true)}}})
	c.ch.Qos(1, false)
	for i := range 5 {
		c.consume(ConsumeArgs{Queue: "q", Tag: fmt.Sprint(i)})
	}
	other.consume(ConsumeArgs{Queue: "q", Tag: "other"})
	for i := range 10 {
		c.publish("", "q", fmt.Sprint(i))
	}
	c.end()
	eq(t, "to the active one", c.sink.bodies(), []string{"0"})
	c.ch.Close()
	c.end()
	eq(t, "to its own", c.sink.bodies(), nil)
	eq(t, "to the other", other.sink.bodies(), []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"})
}
