package broker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
)

// letter is a publish with headers, as a session makes it.
func (c *client) letter(exchange, key, body string, h table.Table) *Publish {
	c.t.Helper()
	s, fault := Select(h)
	if s.BCC {
		h = WithoutBCC(h)
	}
	a := message.Attributes{Encoding: message.AMQP, HasHeaders: len(h) > 0, Expiration: -1, Persistent: true}
	m := message.NewBlind(a, []byte(exchange), []byte(key), s.Blind, table.Append(nil, h), len(body))
	copy(m.Body(), body)
	return &Publish{Msg: m, Keys: s.Keys, Fault: fault}
}

func texts(list ...string) table.Value {
	v := table.ArrayValue()
	for _, s := range list {
		v.List = append(v.List, table.StringValue(s))
	}
	return v
}

// headersOf gets one message and gives its headers as text, "" for none.
func (c *client) headersOf(queue string) (text string) {
	c.t.Helper()
	_, e := c.ch.Get(queue, true, func(d *Delivery, _ int) {
		p, err := c.Properties(d.Msg)
		if err != nil {
			c.t.Fatal(err)
		}
		text = fmt.Sprintf("%s %s %s", d.Msg.Exchange(), d.Msg.Key(), print(p.Headers))
	})
	c.ok(e)
	return text
}

// print shows a table without the times in it.
func print(t table.Table) string {
	var parts []string
	for _, f := range t {
		if f.Name != "time" {
			parts = append(parts, f.Name+"="+printValue(f.Value))
		}
	}
	return "{" + strings.Join(parts, " ") + "}"
}

func printValue(v table.Value) string {
	switch v.Kind {
	case table.Nested:
		return print(v.Table)
	case table.Array:
		var parts []string
		for _, e := range v.List {
			parts = append(parts, printValue(e))
		}
		return "[" + strings.Join(parts, " ") + "]"
	}
	return string(rune(v.Kind)) + v.String()
}

func TestTopicPermissionHoldsForEveryKey(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.ok(c.BindQueue("q", "amq.topic", "#", nil))
	if _, err := b.Users().SetTopicPermission(auth.TopicPermission{User: "guest", VHost: "/", Exchange: "amq.topic", Write: "^ok", Read: ".*"}); err != nil {
		t.Fatal(err)
	}
	refused := "write access to topic 'bad' in exchange 'amq.topic' in vhost '/' refused for user 'guest'"
	c.ok(c.ch.Publish(c.letter("amq.topic", "ok.1", "1", nil)))
	c.ok(c.ch.Publish(c.letter("amq.topic", "ok.1", "2", table.Table{{Name: "CC", Value: texts("ok.2")}})))
	c.refused(c.ch.Publish(c.letter("amq.topic", "ok.1", "3", table.Table{{Name: "CC", Value: texts("ok.2", "bad")}})), AccessRefused, refused)
	c.refused(c.ch.Publish(c.letter("amq.topic", "ok.1", "4", table.Table{{Name: "BCC", Value: texts("bad")}})), AccessRefused, refused)
	c.end()
	bodies, _ := c.drain("q")
	eq(t, "allowed", bodies, []string{"1", "2"})
}

// The keys that a sender selected route the dead letter too, those of BCC unseen, and all of them
// after a restart.
func TestDeadLettersKeepTheirKeys(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := diskBroker(t, fs, Snapshot{})
	c := connect(t, b)
	dlx := table.Table{{Name: "x-dead-letter-exchange", Value: table.StringValue("amq.direct")}}
	c.declare(QueueDeclare{Name: "q", Durable: true, Args: dlx})
	for _, key := range []string{"q", "cc", "bcc"} {
		c.declare(QueueDeclare{Name: "got-" + key, Durable: true})
		c.ok(c.BindQueue("got-"+key, "amq.direct", key, nil))
	}
	c.ok(c.ch.Confirms())
	p := c.letter("", "q", "1", table.Table{{Name: "CC", Value: texts("cc")}, {Name: "BCC", Value: texts("bcc")}})
	p.Seq = 1
	c.ok(c.ch.Publish(p))
	c.end()
	until(t, "the confirm", func() bool { return c.sink.last() == 1 })
	s := b.Snapshot()
	c.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}

	b, _ = diskBroker(t, fs, s)
	t.Cleanup(func() { b.Close() })
	c = connect(t, b)
	tag := uint64(0)
	_, e := c.ch.Get("q", false, func(d *Delivery, _ int) { tag = d.Tag })
	c.ok(e)
	c.ok(c.ch.Reject(tag, false))
	c.end()
	want := "amq.direct q {CC=[Scc] x-death=[{count=l1 reason=Srejected queue=Sq exchange=S routing-keys=[Sq Scc]}] " +
		"x-first-death-reason=Srejected x-first-death-queue=Sq x-first-death-exchange=S " +
		"x-last-death-reason=Srejected x-last-death-queue=Sq x-last-death-exchange=S}"
	for _, key := range []string{"q", "cc", "bcc"} {
		if got := c.headersOf("got-" + key); got != want {
			t.Errorf("by %s:\n got %s\nwant %s", key, got, want)
		}
	}
}

// A dead-letter routing key is the only one, and the CC header that no longer counts goes. A death
// that happened before counts in its old entry.
func TestDeadLetterKeyReplacesTheOthers(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	to := func(key string) table.Table {
		return table.Table{
			{Name: "x-dead-letter-exchange", Value: table.StringValue("")},
			{Name: "x-dead-letter-routing-key", Value: table.StringValue(key)},
		}
	}
	c.declare(QueueDeclare{Name: "a", Args: to("b")})
	c.declare(QueueDeclare{Name: "b", Args: to("a")})
	c.declare(QueueDeclare{Name: "cc"})
	c.ok(c.BindQueue("a", "amq.fanout", "", nil))
	c.ok(c.ch.Publish(c.letter("amq.fanout", "first", "1", table.Table{{Name: "CC", Value: texts("cc")}})))
	c.end()
	reject := func(queue string) {
		tag := uint64(0)
		_, e := c.ch.Get(queue, false, func(d *Delivery, _ int) { tag = d.Tag })
		c.ok(e)
		c.ok(c.ch.Reject(tag, false))
		c.end()
	}
	reject("a")
	reject("b")
	reject("a")
	deaths := "[{count=l2 reason=Srejected queue=Sa exchange=Samq.fanout routing-keys=[Sfirst Scc]} {count=l1 reason=Srejected queue=Sb exchange=S routing-keys=[Sb]}]"
	want := " b {x-first-death-reason=Srejected x-first-death-queue=Sa x-first-death-exchange=Samq.fanout x-death=" + deaths +
		" x-last-death-reason=Srejected x-last-death-queue=Sa x-last-death-exchange=S}"
	if got := c.headersOf("b"); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}

// Messages that are routed by their headers, or by several keys, cost no allocation of the broker's.
func TestRoutingByHeadersAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("sync.Pool forgets on purpose under the race detector")
	}
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.sink.discard = true
	for i := range 3 {
		name := fmt.Sprint("q", i)
		c.declare(QueueDeclare{Name: name})
		c.ok(c.BindQueue(name, "amq.headers", "", table.Table{
			{Name: "x-match", Value: table.StringValue("any")}, {Name: "a", Value: table.Int32Value(int32(i % 2))}}))
		c.consume(ConsumeArgs{Queue: name, NoAck: true})
	}
	props := [][]byte{
		table.Append(nil, table.Table{{Name: "n", Value: table.StringValue("x")}, {Name: "a", Value: table.Int32Value(0)}}),
		table.Append(nil, table.Table{{Name: "a", Value: table.Int32Value(1)}}),
	}
	exchange, keys := []byte("amq.headers"), [][]byte{[]byte("more")}
	sent := 0
	turn := func() {
		for i := range 64 {
			a := message.Attributes{Encoding: message.AMQP, HasHeaders: true, Expiration: -1}
			m := message.New(a, exchange, nil, props[i/8%2], 0)
			p := Publish{Msg: m}
			if i%2 == 1 {
				p.Keys = keys
			}
			c.ok(c.ch.Publish(&p))
			sent++
		}
		c.end()
	}
	turn()
	if n := testing.AllocsPerRun(50, turn); n > 0 {
		t.Errorf("%v allocations in a turn", n)
	}
	if want := sent * 3 / 2; c.sink.n != want {
		t.Fatalf("%d messages made %d deliveries, want %d", sent, c.sink.n, want)
	}
}
