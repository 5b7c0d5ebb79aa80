package broker

import (
	"testing"

	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
)

// fetch gets one message without settling it; count is its Delivery.Count.
func (c *client) fetch(queue string) (body string, tag uint64, count int64) {
	c.t.Helper()
	_, e := c.ch.Get(queue, false, func(d *Delivery, _ int) { body, tag, count = string(d.Msg.Body()), d.Tag, d.Count })
	c.ok(e)
	return body, tag, count
}

func limited(limit int64) table.Table {
	return table.Table{
		{Name: "x-delivery-limit", Value: table.IntValue(limit)},
		{Name: "x-dead-letter-exchange", Value: table.StringValue("")},
		{Name: "x-dead-letter-routing-key", Value: table.StringValue("dead")},
	}
}

// TestDeliveryLimit: on a classic queue every way back counts, and the one too many is a dead letter.
func TestDeliveryLimit(t *testing.T) {
	b := memoryBroker(t, Options{})
	c, other := connect(t, b), connect(t, b)
	c.declare(QueueDeclare{Name: "dead"})
	for name, giveBack := range map[string]func(tag uint64){
		"nack":    func(tag uint64) { c.ok(c.ch.Nack(tag, false, true)) },
		"reject":  func(tag uint64) { c.ok(c.ch.Reject(tag, true)) },
		"recover": func(uint64) { c.ok(c.ch.Recover()) },
		"close": func(uint64) {
			c.ch.Close()
			var e *Error
			c.ch, e = c.Open(1, c.sink)
			c.ok(e)
		},
	} {
		t.Run(name, func(t *testing.T) {
			other.declare(QueueDeclare{Name: name, AutoDelete: true, Args: limited(2)})
			other.publish("", name, name)
			other.end()
			for back := range int64(3) {
				body, tag, count := c.fetch(name)
				if body != name || count != back {
					t.Fatalf("got %q with count %d, want %d", body, count, back)
				}
				giveBack(tag)
				c.end()
			}
			if body, ok := c.get(name); ok {
				t.Fatalf("%q is still there", body)
			}
			var death string
			_, e := c.ch.Get("dead", true, func(d *Delivery, _ int) {
				p, err := c.Properties(d.Msg)
				if err != nil {
					t.Error(err)
				}
				v, _ := p.Headers.Get("x-first-death-reason")
				death = v.Str
			})
			if c.ok(e); death != "delivery_limit" {
				t.Fatalf("died by %q", death)
			}
		})
	}
}

// TestDeliveryCountWithoutLimit: a classic queue without a limit adds no header, and one that gets its
// limit from a policy does.
func TestDeliveryCountWithoutLimit(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.publish("", "q", "m")
	again := func(want int64) {
		t.Helper()
		_, tag, count := c.fetch("q")
		if count != want {
			t.Fatalf("count %d, want %d", count, want)
		}
		c.ok(c.ch.Nack(tag, false, true))
		c.end()
	}
	again(0)
	again(0)
	limit := func(n int64) table.Table {
		return table.Table{{Name: "delivery-limit", Value: table.IntValue(n)}}
	}
	c.ok(b.PutPolicy(policyOf(t, "user", "^q", "queues", 0, false, limit(9))))
	again(2)
	c.ok(b.PutPolicy(policyOf(t, "operator", "^q", "queues", 0, true, limit(4))))
	again(3)
	again(4)
	if body, ok := c.get("q"); ok {
		t.Fatalf("%q came back five times with an operator's limit of 4", body)
	}
}

// TestDeliveryCountSurvivesACleanStop: and the limit too.
func TestDeliveryCountSurvivesACleanStop(t *testing.T) {
	fs := vfs.NewMem()
	fs.MakeDir(testDir)
	start := Snapshot{}
	for back := range int64(3) {
		b, _ := diskBroker(t, fs, start)
		c := connect(t, b)
		if back == 0 {
			c.declare(QueueDeclare{Name: "dead", Durable: true})
			c.declare(QueueDeclare{Name: "q", Durable: true, Args: limited(2)})
			c.publish("", "q", "m")
			c.end()
		}
		if body, _, count := c.fetch("q"); body != "m" || count != back {
			t.Fatalf("got %q with count %d, want %d", body, count, back)
		}
		c.Close()
		start = b.Snapshot()
		if err := b.Commit(&start); err != nil {
			t.Fatal(err)
		}
		b.Saved(&start)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	b, _ := diskBroker(t, fs, start)
	c := connect(t, b)
	got, _ := c.drain("dead")
	eq(t, "dead letters", got, []string{"m"})
	c.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}
