package broker

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"testing"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
)

// BenchmarkMany does one thing to very many consumers, queues, bindings or deliveries of one connection. What each of
// them costs must not grow with how many there are, but for what a processor's caches hold.
func BenchmarkMany(b *testing.B) {
	for _, m := range manyCases {
		for _, n := range []int{1000, 10_000, 100_000} {
			b.Run(fmt.Sprintf("%s/%d", m.name, n), func(b *testing.B) {
				b.StopTimer()
				for range b.N {
					br := memoryBroker(b, Options{})
					c := &many{client: connect(b, br), b: b, broker: br, n: n}
					c.sink.discard = true
					c.channels = []*Channel{c.ch}
					for i := range 3 {
						ch, e := c.Open(uint16(i+2), c.sink)
						c.ok(e)
						c.channels = append(c.channels, ch)
					}
					m.run(c)
					b.StopTimer()
					c.Close()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/each")
			})
		}
	}
}

// many is what a case works on. The timer runs from measure on.
type many struct {
	*client
	b        *testing.B
	broker   *Broker
	n        int
	channels []*Channel
}

func (c *many) measure() { c.b.StartTimer() }

// each calls f for 0 to n, and ends the turn now and then, as reads do.
func (c *many) each(f func(i int)) {
	for i := range c.n {
		if f(i); i%200 == 199 {
			c.end()
		}
	}
	c.end()
}

func (c *many) name(i int) string { return strconv.Itoa(i) }

// channel is one of four, which share what is done out in turn.
func (c *many) channel(i int) *Channel { return c.channels[i%len(c.channels)] }

func (c *many) queues(d QueueDeclare) {
	c.each(func(i int) {
		d.Name = c.name(i)
		c.declare(d)
	})
}

func (c *many) publishEach() {
	c.each(func(i int) {
		m := message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1}, nil, []byte(c.name(i)), nil, 0)
		c.ok(c.ch.Publish(&Publish{Msg: m}))
	})
}

func (c *many) consumeOn(ch *Channel, queue, tag string, args table.Table) {
	k, e := ch.Consume(&ConsumeArgs{Queue: queue, Tag: tag, Args: args})
	c.ok(e)
	k.Start()
}

// consumers are n of one queue on four channels.
func (c *many) consumers(d QueueDeclare) {
	d.Name = "q"
	c.declare(d)
	c.each(func(i int) { c.consumeOn(c.channel(i), "q", c.name(i), nil) })
}

// unacked are n deliveries on one channel.
func (c *many) unacked() {
	c.declare(QueueDeclare{Name: "q"})
	c.consumeOn(c.ch, "q", "c", nil)
	c.flood("q", c.n)
	if c.ch.unacked.live != c.n {
		c.b.Fatal(c.ch.unacked.live, "unacked")
	}
}

func (c *many) close() {
	for _, ch := range c.channels {
		ch.Close()
	}
	c.end()
}

var manyCases = []struct {
	name string
	run  func(c *many)
}{
	{"consume-one-queue", func(c *many) {
		c.measure()
		c.consumers(QueueDeclare{})
	}},
	{"consume-own-queues", func(c *many) {
		c.queues(QueueDeclare{})
		c.measure()
		c.each(func(i int) { c.consumeOn(c.channel(i), c.name(i), c.name(i), nil) })
	}},
	{"consume-own-priorities", func(c *many) {
		c.declare(QueueDeclare{Name: "q"})
		c.measure()
		c.each(func(i int) {
			c.consumeOn(c.channel(i), "q", c.name(i), table.Table{{Name: "x-priority", Value: table.IntValue(int64(i * 7919 % c.n))}})
		})
		c.close()
	}},
	{"qos-and-consume", func(c *many) {
		c.queues(QueueDeclare{})
		c.measure()
		c.each(func(i int) {
			c.ok(c.channel(i).Qos(10, false))
			c.consumeOn(c.channel(i), c.name(i), c.name(i), nil)
		})
	}},
	{"cancel", func(c *many) {
		c.consumers(QueueDeclare{})
		c.measure()
		c.each(func(i int) { c.channel(i).Cancel(c.name(i)) })
	}},
	{"close", func(c *many) {
		c.consumers(QueueDeclare{})
		c.measure()
		c.close()
	}},
	{"close-single-active", func(c *many) {
		c.consumers(QueueDeclare{Args: table.Table{{Name: "x-single-active-consumer", Value: table.BoolValue(true)}}})
		c.measure()
		c.close()
	}},
	{"close-auto-delete", func(c *many) {
		c.consumers(QueueDeclare{AutoDelete: true})
		c.measure()
		c.close()
	}},
	{"close-auto-delete-own-queues", func(c *many) {
		c.queues(QueueDeclare{AutoDelete: true})
		c.each(func(i int) { c.consumeOn(c.channel(i), c.name(i), c.name(i), nil) })
		c.measure()
		c.close()
	}},
	{"delete-with-consumers", func(c *many) {
		c.consumers(QueueDeclare{})
		c.measure()
		_, e := c.DeleteQueue("q", false, false)
		c.ok(e)
		c.end()
	}},
	{"channel-limit", func(c *many) {
		c.queues(QueueDeclare{})
		c.each(func(i int) { c.consumeOn(c.channel(i), c.name(i), c.name(i), nil) })
		for _, ch := range c.channels {
			c.ok(ch.Qos(10, true))
		}
		c.publishEach()
		c.measure()
		c.each(func(i int) {
			c.ok(c.channel(i).Ack(uint64(i/len(c.channels)+1), false))
			c.end()
		})
		if c.sink.n != c.n {
			c.b.Fatal(c.sink.n, "delivered")
		}
	}},
	{"declare", func(c *many) {
		c.measure()
		c.queues(QueueDeclare{})
	}},
	{"declare-exclusive-and-close", func(c *many) {
		c.measure()
		c.queues(QueueDeclare{Exclusive: true})
		c.client.Close()
	}},
	{"delete", func(c *many) {
		c.queues(QueueDeclare{})
		c.measure()
		c.each(func(i int) {
			_, e := c.DeleteQueue(c.name(i), false, false)
			c.ok(e)
		})
	}},
	{"bind-direct-and-delete", func(c *many) { c.bindAndDelete("amq.direct", "key") }},
	{"bind-fanout-and-delete", func(c *many) { c.bindAndDelete("amq.fanout", "key") }},
	{"bind-topic-and-delete", func(c *many) { c.bindAndDelete("amq.topic", "a.*.b") }},
	{"bind-headers-and-delete", func(c *many) { c.bindAndDelete("amq.headers", "key") }},
	{"bind-one-queue-and-delete", func(c *many) {
		c.declare(QueueDeclare{Name: "q"})
		c.measure()
		c.each(func(i int) { c.ok(c.BindQueue("q", "amq.topic", c.name(i), nil)) })
		_, e := c.DeleteQueue("q", false, false)
		c.ok(e)
	}},
	{"ack-oldest-first", func(c *many) {
		c.unacked()
		c.measure()
		c.each(func(i int) { c.ok(c.ch.Ack(uint64(i+1), false)) })
	}},
	{"ack-newest-first", func(c *many) {
		c.unacked()
		c.measure()
		c.each(func(i int) { c.ok(c.ch.Ack(uint64(c.n-i), false)) })
	}},
	{"nack-newest-first", func(c *many) {
		c.unacked()
		c.ok(c.ch.Qos(1, true)) // what is given back is not delivered at once
		c.measure()
		c.each(func(i int) { c.ok(c.ch.Nack(uint64(c.n-i), false, true)) })
	}},
	{"ack-multiple", func(c *many) {
		c.unacked()
		c.measure()
		for tag := 10; tag <= c.n; tag += 10 {
			c.ok(c.ch.Ack(uint64(tag), true))
		}
		c.end()
	}},
	{"ack-every-second-then-multiple", func(c *many) {
		c.unacked()
		c.measure()
		for tag := 2; tag <= c.n; tag += 2 {
			c.ok(c.ch.Ack(uint64(tag), false))
		}
		for tag := 1; tag <= c.n; tag += 10 {
			c.ok(c.ch.Ack(uint64(tag), true))
		}
		c.end()
	}},
	// One delivery is never settled, all the others are, and as many come again.
	{"deliver-behind-the-oldest", func(c *many) {
		c.unacked()
		c.measure()
		for tag := 2; tag <= c.n; tag++ {
			c.ok(c.ch.Ack(uint64(tag), false))
			m := message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1}, nil, []byte("q"), nil, 0)
			c.ok(c.ch.Publish(&Publish{Msg: m}))
			if tag%200 == 0 {
				c.end()
			}
		}
		c.end()
	}},
	{"get-without-ack", func(c *many) {
		c.declare(QueueDeclare{Name: "q"})
		c.flood("q", c.n)
		c.measure()
		c.each(func(int) {
			_, e := c.ch.Get("q", false, func(*Delivery, int) {})
			c.ok(e)
		})
	}},
	// What checkpoints and compaction collect: each queue has one unacked message, on four channels.
	{"capture-unacked", func(c *many) {
		c.queues(QueueDeclare{})
		c.each(func(i int) { c.consumeOn(c.channel(i), c.name(i), c.name(i), nil) })
		c.publishEach()
		var queues []*Queue
		for i := range c.n {
			q, e := c.queue(c.name(i))
			c.ok(e)
			queues = append(queues, q)
		}
		c.measure()
		if err := save(bufio.NewWriter(io.Discard), queues, math.MaxUint64); err != nil {
			c.b.Fatal(err)
		}
	}},
	{"snapshot", func(c *many) {
		c.queues(QueueDeclare{Durable: true})
		c.each(func(i int) { c.ok(c.BindQueue(c.name(i), "amq.direct", c.name(i), nil)) })
		c.measure()
		if s := c.broker.Snapshot(); len(s.Queues) != c.n || len(s.Bindings) != c.n {
			c.b.Fatal(len(s.Queues), "queues")
		}
	}},
}

func (c *many) bindAndDelete(exchange, key string) {
	c.queues(QueueDeclare{})
	c.measure()
	c.each(func(i int) { c.ok(c.BindQueue(c.name(i), exchange, key, nil)) })
	c.each(func(i int) {
		_, e := c.DeleteQueue(c.name(i), false, false)
		c.ok(e)
	})
}
