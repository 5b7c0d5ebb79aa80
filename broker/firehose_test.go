package broker

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
)

// traced sets whether the client's vhost is traced.
func (c *client) traced(on bool) {
	c.t.Helper()
	c.ok(c.b.ChangeVHostMeta("/", func(m *VHostMeta) { *m = VHostMeta{Tracing: on} }))
}

// listen binds a queue to all copies of the firehose and reads them: key, body and headers.
func (c *client) listen(queue string) {
	c.t.Helper()
	c.declare(QueueDeclare{Name: queue})
	c.ok(c.BindQueue(queue, TraceExchange, "#", nil))
}

func (c *client) copies(queue string) (copies []string) {
	c.t.Helper()
	for {
		ok, e := c.ch.Get(queue, true, func(d *Delivery, _ int) {
			p, err := c.b.properties(d.Msg)
			if err != nil {
				c.t.Fatal(err)
			}
			text := fmt.Sprintf("%s %q", d.Msg.Key(), d.Msg.Body())
			for _, f := range p.Headers {
				if f.Name == "routing_keys" || f.Name == "routed_queues" || f.Name == "redelivered" {
					text += fmt.Sprintf(" %s=%v", f.Name, f.Value)
				}
			}
			copies = append(copies, text)
		})
		c.ok(e)
		if !ok {
			return copies
		}
	}
}

func TestFirehose(t *testing.T) {
	b := memoryBroker(t, Options{Node: "n"})
	c := connect(t, b)
	tracer := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	tracer.listen("trace")

	c.publish("", "q", "before")
	c.end()
	c.get("q")
	c.end()
	eq(t, "while off", tracer.copies("trace"), nil)

	c.traced(true)
	c.consume(ConsumeArgs{Queue: "q", Tag: "k"})
	c.publish("", "q", "one")
	c.publish("amq.fanout", "nobody", "two")
	c.end()
	c.ok(c.ch.Nack(2, false, true))
	c.end()
	eq(t, "while on", tracer.copies("trace"), []string{
		`publish. "one" routing_keys=[q] routed_queues=[q]`,
		`publish.amq.fanout "two" routing_keys=[nobody] routed_queues=[]`,
		`deliver.q "one" routing_keys=[q] redelivered=0`,
		`deliver.q "one" routing_keys=[q] redelivered=1`,
	})
	eq(t, "what was read of the firehose itself", tracer.copies("trace"), nil)

	c.traced(false)
	c.publish("", "q", "after")
	c.end()
	eq(t, "off again", tracer.copies("trace"), nil)
	if n := b.Counters().Traced.Load(); n != 4 {
		t.Errorf("%d copies counted, want 4", n)
	}
}

func TestFirehoseOfATransactionIsAtThePublish(t *testing.T) {
	c := connect(t, memoryBroker(t, Options{}))
	c.declare(QueueDeclare{Name: "q"})
	c.traced(true)
	c.listen("trace")
	c.ok(c.ch.TxSelect())
	c.publish("", "q", "one")
	c.ok(c.ch.TxRollback())
	c.end()
	eq(t, "copies", c.copies("trace"), []string{`publish. "one" routing_keys=[q] routed_queues=[q]`})
}

// A queue of the firehose whose dead letters are delivered would be fed by their deliveries for ever.
func TestFirehoseDoesNotFeedItself(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "dead"})
	c.declare(QueueDeclare{Name: "trace", Args: table.Table{
		{Name: "x-max-length", Value: table.IntValue(0)},
		{Name: "x-dead-letter-exchange", Value: table.StringValue("")},
		{Name: "x-dead-letter-routing-key", Value: table.StringValue("dead")},
	}})
	c.ok(c.BindQueue("trace", TraceExchange, "#", nil))
	c.consume(ConsumeArgs{Queue: "dead", Tag: "k", NoAck: true})
	c.traced(true)
	c.publish("", "dead", "one")
	c.end()
	// The message, the copy of its publish and that of its delivery.
	eq(t, "deliveries", c.sink.bodies(), []string{"one", "one", "one"})
	if n := b.Counters().Traced.Load(); n != 2 {
		t.Errorf("%d copies, want 2", n)
	}
}

func TestFirehoseRestsDuringAnAlarm(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.listen("trace")
	c.publish("", "q", "one")
	c.end()
	c.traced(true)
	b.SetAlarm(true, false)
	c.get("q")
	c.end()
	b.SetAlarm(false, false)
	eq(t, "copies", c.copies("trace"), nil)
	if n := b.Counters().TraceDropped.Load(); n != 1 {
		t.Errorf("%d copies counted as dropped, want 1", n)
	}
}

func TestFirehoseCutsLongKeys(t *testing.T) {
	c := connect(t, memoryBroker(t, Options{}))
	name := strings.Repeat("q", message.MaxName)
	c.declare(QueueDeclare{Name: name})
	c.listen("trace")
	c.publish("", name, "one")
	c.end()
	c.traced(true)
	c.get(name)
	c.end()
	got := c.copies("trace")
	if want := ("deliver." + name)[:message.MaxName] + " "; len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("got %q", got)
	}
}

// What a copy says of a message can route it, too.
func TestFirehoseCopiesAreRoutedByHeaders(t *testing.T) {
	c := connect(t, memoryBroker(t, Options{}))
	c.declare(QueueDeclare{Name: "q"})
	c.declare(QueueDeclare{Name: "trace"})
	c.ok(c.BindExchange("amq.headers", TraceExchange, "publish.#", nil))
	c.ok(c.BindQueue("trace", "amq.headers", "", table.Table{{Name: "user", Value: table.StringValue("guest")}}))
	c.traced(true)
	c.publish("", "q", "one")
	c.end()
	c.get("q")
	c.end()
	eq(t, "copies", c.copies("trace"), []string{`publish. "one" routing_keys=[q] routed_queues=[q]`})
}

func TestTracingSurvivesARestart(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := diskBroker(t, fs, Snapshot{})
	if e := b.ChangeVHostMeta("/", func(m *VHostMeta) { *m = VHostMeta{Tracing: true} }); e != nil {
		t.Fatal(e.Text)
	}
	start := b.Snapshot()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]Snapshot{"from the journal": {Users: start.Users}, "from definitions": start} {
		t.Run(name, func(t *testing.T) {
			b, _ := diskBroker(t, fs, s)
			defer b.Close()
			c := connect(t, b)
			c.listen("trace")
			c.publish("amq.fanout", "k", "one")
			c.end()
			eq(t, "copies", c.copies("trace"), []string{`publish.amq.fanout "one" routing_keys=[k] routed_queues=[]`})
		})
	}
}

// Connections publish to and are served by each other, all of it traced, while tracing goes on and off.
func TestFirehoseOfManyConnections(t *testing.T) {
	b := memoryBroker(t, Options{})
	tracer := connect(t, b)
	tracer.declare(QueueDeclare{Name: "q"})
	tracer.listen("trace")
	tracer.sink.discard = true
	tracer.consume(ConsumeArgs{Queue: "trace", Tag: "t", NoAck: true})
	var clients []*client
	for range 3 {
		c := connect(t, b)
		c.sink.discard = true
		c.consume(ConsumeArgs{Queue: "q", Tag: "k", NoAck: true})
		clients = append(clients, c)
	}
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() {
			for range 300 {
				for range 3 {
					if e := c.tryPublish("", "q", "one", false); e != nil {
						t.Error(e.Text)
					}
				}
				if _, e := c.EndTurn(); e != nil {
					t.Error(e.Text)
				}
			}
		})
	}
	for i := range 100 {
		tracer.traced(i%2 == 0)
		runtime.Gosched()
	}
	wg.Wait()
	tracer.traced(true)
	clients[0].publish("", "q", "last")
	clients[0].end()
	tracer.peer.Lock()
	got := uint64(tracer.sink.n)
	tracer.peer.Unlock()
	if want := b.Counters().Traced.Load(); got != want || want < 2 {
		t.Errorf("%d copies read of %d", got, want)
	}
}
