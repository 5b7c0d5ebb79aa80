package broker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
)

func argumentOf(bytes int) table.Table {
	return table.Table{{Name: "x-note", Value: table.StringValue(strings.Repeat("n", bytes))}}
}

// What is kept of arguments is bounded in bytes and in values; what is not kept is not.
func TestArgumentsAreBounded(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	fits, large := argumentOf(maxTable-64), argumentOf(maxTable)
	values := table.Table{{Name: "x", Value: table.ArrayValue(make([]table.Value, maxValues)...)}}
	for i := range values[0].Value.List {
		values[0].Value.List[i] = table.VoidValue()
	}
	for _, try := range []struct {
		what string
		do   func(name string, args table.Table) *Error
	}{
		{"queue 'NAME' in vhost '/'", func(name string, args table.Table) *Error {
			_, e := c.DeclareQueue(&QueueDeclare{Name: name, Args: args})
			return e
		}},
		{"exchange 'NAME' in vhost '/'", func(name string, args table.Table) *Error {
			return c.DeclareExchange(&ExchangeDeclare{Name: name, Type: "direct", Args: args})
		}},
		{"a binding from exchange 'amq.direct' in vhost '/'", func(name string, args table.Table) *Error {
			return c.BindQueue("small", "amq.direct", name, args)
		}},
		{"a binding from exchange 'amq.direct' in vhost '/'", func(name string, args table.Table) *Error {
			return c.BindExchange("amq.fanout", "amq.direct", name, args)
		}},
		{"a consumer of queue 'small' in vhost '/'", func(name string, args table.Table) *Error {
			_, e := c.ch.Consume(&ConsumeArgs{Queue: "small", Tag: name, NoAck: true, Args: args})
			return e
		}},
		{"a consumer of queue 'amq.rabbitmq.reply-to' in vhost '/'", func(name string, args table.Table) *Error {
			_, e := c.ch.Consume(&ConsumeArgs{Queue: ReplyTo, Tag: "replies", NoAck: true, Args: args})
			return e
		}},
	} {
		c.declare(QueueDeclare{Name: "small"})
		what := strings.Replace(try.what, "NAME", "n", 1)
		c.refused(try.do("n", large), PreconditionFailed, fmt.Sprintf("arguments of %s take %d bytes, %d at most", what, large.Size(), maxTable))
		c.refused(try.do("n", values), PreconditionFailed, fmt.Sprintf("arguments of %s are %d values, %d at most", what, maxValues+1, maxValues))
		c.ok(try.do("n", fits))
	}
	// What exists, perhaps since before there was this bound, may be asked for as it was.
	c.ok(c.DeclareExchange(&ExchangeDeclare{Name: "n", Type: "direct", Args: large}))
	if _, e := c.DeclareQueue(&QueueDeclare{Name: "n", Args: large}); e != nil {
		t.Error(e)
	}
	if _, e := c.DeclareQueue(&QueueDeclare{Name: "n", Passive: true, Args: large}); e != nil {
		t.Error(e)
	}
	c.end()
}

// What is declared is taken off what memory has room for. When that is used up more is refused, but for a little that
// ends with its connection; what exists already is not.
func TestNothingIsMadeWithoutRoom(t *testing.T) {
	asked := make(chan struct{}, 1000)
	b := memoryBroker(t, Options{OnGrowth: func() { asked <- struct{}{} }})
	c, other := connect(t, b), connect(t, b)
	p := &alarmPeer{}
	c.Conn.peer, c.ch.peer = p, p
	c.declare(QueueDeclare{Name: "q"})
	c.ok(c.BindQueue("q", "amq.direct", "k", nil))
	c.end()

	const n = 50
	cost := int64(queueMemory + argumentOf(1000).Memory())
	b.Allow(n*cost + 1)
	b.AllowKept(n*cost+1+cost, Unlimited)
	for i := range n {
		c.declare(QueueDeclare{Name: fmt.Sprint("n", i), Args: argumentOf(1000)})
	}
	if p.paused != 0 || len(asked) > 0 {
		t.Fatal("paused before the room was used up")
	}
	c.declare(QueueDeclare{Name: "spare", Args: argumentOf(1000)})
	if p.paused != PauseRoom || len(asked) == 0 {
		t.Fatalf("paused for %d, asked %d times for a reading", p.paused, len(asked))
	}
	full := func(e *Error) {
		t.Helper()
		if e == nil || e.Kind != ResourceError || !strings.HasPrefix(e.Text, "low on memory: there is no room for another ") {
			t.Fatalf("got %v", e)
		}
	}
	for _, k := range []*client{c, other} {
		_, e := k.DeclareQueue(&QueueDeclare{Name: "more", Args: argumentOf(1000)})
		full(e)
		full(k.DeclareExchange(&ExchangeDeclare{Name: "more", Type: "fanout", Args: argumentOf(1000)}))
		full(k.BindQueue("q", "amq.direct", "more", argumentOf(1000)))
		// What is there costs nothing.
		k.declare(QueueDeclare{Name: "q"})
		k.ok(k.BindQueue("q", "amq.direct", "k", nil))
		k.ok(k.DeclareExchange(&ExchangeDeclare{Name: "amq.fanout", Type: "fanout", Durable: true}))
		k.consume(ConsumeArgs{Queue: "q"})
		k.declare(QueueDeclare{Name: fmt.Sprint("own", k == c), Exclusive: true})
		k.ok(k.BindQueue(fmt.Sprint("own", k == c), "amq.direct", "", nil))
	}
	consumers := 0
	var e *Error
	for ; e == nil && consumers < 1000; consumers++ {
		_, e = other.ch.Consume(&ConsumeArgs{Queue: "q", NoAck: true})
	}
	full(e)
	if most := ownFree / consumerMemory; consumers < most/2 || consumers > most {
		t.Errorf("%d consumers are let in without room", consumers)
	}
	_, e = other.Open(2, other.sink)
	full(e)
	c.end()
	other.end()

	b.Allow(Unlimited)
	b.AllowKept(Unlimited, Unlimited)
	if p.paused != 0 {
		t.Error("still paused after a reading")
	}
	c.declare(QueueDeclare{Name: "more", Args: argumentOf(1000)})
	c.end()
}

// What outlives its connection has a share of memory, also when much is free; what is deleted makes room.
func TestDeclarationsHaveAShare(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	const n = 10
	most := b.declaredMemory() + n*(queueMemory+int64(argumentOf(1000).Memory())) + 1
	b.AllowKept(Unlimited, most)
	declare := func(name string, own bool) *Error {
		_, e := c.DeclareQueue(&QueueDeclare{Name: name, Exclusive: own, Args: argumentOf(1000)})
		return e
	}
	for i := range n {
		c.ok(declare(fmt.Sprint("n", i), false))
	}
	full := fmt.Sprintf("low on memory: what is declared may take %d bytes in all", most)
	for range 2 {
		c.refused(declare("more", false), ResourceError, full)
		c.refused(c.DeclareExchange(&ExchangeDeclare{Name: "more", Type: "fanout"}), ResourceError, full)
		c.refused(c.BindQueue("n0", "amq.direct", "more", nil), ResourceError, full)
		b.AllowKept(Unlimited, most)
	}
	c.ok(declare("own", true))
	c.ok(c.BindQueue("own", "amq.direct", "", nil))
	c.consume(ConsumeArgs{Queue: "n0"})
	if _, e := c.DeleteQueue("n1", false, false); e != nil {
		t.Fatal(e)
	}
	if _, e := c.DeleteQueue("own", false, false); e != nil {
		t.Fatal(e)
	}
	b.AllowKept(Unlimited, most)
	c.ok(declare("more", false))
	c.refused(declare("another", false), ResourceError, full)
	b.AllowKept(Unlimited, Unlimited)
	b.AddVHost("v")
	in, e := b.Administer("v")
	c.ok(e)
	_, e = in.DeclareQueue(&QueueDeclare{Name: "q", Args: argumentOf(1000)})
	c.ok(e)
	c.ok(in.DeclareExchange(&ExchangeDeclare{Name: "x", Type: "fanout", Args: argumentOf(1000)}))
	in.EndTurn()
	in.Close()
	before := b.arguments.Load()
	c.ok(b.DeleteVHost("v"))
	if freed := before - b.arguments.Load(); freed != 2*int64(argumentOf(1000).Memory()) {
		t.Errorf("%d bytes are freed with a vhost", freed)
	}
	c.end()
}

// During an alarm nobody waits for a reading: what fits is made, also what makes it end.
func TestDeclarationsDoNotWaitForAnAlarm(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	p := &alarmPeer{}
	c.Conn.peer, c.ch.peer = p, p
	c.declare(QueueDeclare{Name: "q"})
	c.end()
	b.SetAlarm(true, false)
	b.Allow(0)
	b.AllowKept(10*queueMemory, Unlimited)
	for i := range 5 {
		c.declare(QueueDeclare{Name: fmt.Sprint("n", i)})
	}
	c.consume(ConsumeArgs{Queue: "q"})
	c.end()
	if p.paused&PauseRoom != 0 {
		t.Error("a declaration waits")
	}
	b.SetAlarm(false, false)
	b.Allow(Unlimited)
}

// A channel has so many consumers, and a broker so many exchanges.
func TestNumbersAreBounded(t *testing.T) {
	b := memoryBroker(t, Options{tuning: tuning{maxConsumers: 3, maxExchanges: int64(len(predeclared)) + 2}})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	for range 3 {
		c.consume(ConsumeArgs{Queue: "q"})
	}
	for _, q := range []string{"q", ReplyTo} {
		_, e := c.ch.Consume(&ConsumeArgs{Queue: q, NoAck: true})
		c.refused(e, NotAllowed, "reached maximum (3) of consumers per channel")
	}
	c.ch.Cancel(c.consumer(t))
	c.consume(ConsumeArgs{Queue: "q"})

	exchange := func(name string) *Error { return c.DeclareExchange(&ExchangeDeclare{Name: name, Type: "fanout"}) }
	c.ok(exchange("a"))
	c.ok(exchange("b"))
	full := fmt.Sprintf("cannot declare exchange 'c' in vhost '/': exchange limit of %d is reached", len(predeclared)+2)
	c.refused(exchange("c"), PreconditionFailed, full)
	c.ok(exchange("a"))
	b.AddVHost("v")
	if e := b.DeleteVHost("v"); e != nil {
		t.Fatal(e)
	}
	c.refused(exchange("c"), PreconditionFailed, full)
	c.ok(c.DeleteExchange("a", false))
	c.ok(exchange("c"))
	c.end()
}

// consumer is the tag of one of the channel's consumers.
func (c *client) consumer(t *testing.T) string {
	t.Helper()
	for tag := range c.ch.byTag {
		return tag
	}
	t.Fatal("the channel has no consumers")
	return ""
}

// A token of direct reply-to is no queue that can be bound.
func TestReplyQueuesAreNotBound(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.consume(ConsumeArgs{Queue: ReplyTo, NoAck: true})
	for _, name := range []string{c.ch.ReplyTo(), ReplyTo} {
		for _, e := range []*Error{c.BindQueue(name, "amq.direct", "", nil), c.UnbindQueue(name, "amq.direct", "", nil)} {
			c.refused(e, AccessRefused, "cannot bind or unbind to a volatile (direct reply-to) queue")
		}
	}
	c.end()
}

// The account of what was declared has its arguments, and falls back when all of it is gone.
func TestArgumentsAreAccounted(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	before := b.Memory()
	const n, size = 20, 10_000
	for i := range n {
		name := fmt.Sprint("n", i)
		c.declare(QueueDeclare{Name: name, Args: argumentOf(size)})
		c.ok(c.DeclareExchange(&ExchangeDeclare{Name: name, Type: "headers", Args: argumentOf(size)}))
		c.ok(c.BindQueue(name, name, "", argumentOf(size)))
		c.ok(c.BindExchange("amq.fanout", name, "", argumentOf(size)))
		c.consume(ConsumeArgs{Queue: name, Tag: name, Args: argumentOf(size)})
	}
	c.end()
	m := b.Memory()
	for what, grown := range map[string]int64{"queues": m.Queues - before.Queues, "consumers": m.Channels - before.Channels, "topology": (m.Topology - before.Topology) / 3} {
		if grown < n*size || grown > n*(size+3000) {
			t.Errorf("%s grew by %d", what, grown)
		}
	}
	for i := range n {
		name := fmt.Sprint("n", i)
		switch i % 3 {
		case 0:
			c.ok(c.UnbindExchange("amq.fanout", name, "", argumentOf(size)))
			c.ok(c.UnbindQueue(name, name, "", argumentOf(size)))
		case 1:
			c.ok(c.DeleteExchange(name, false))
		}
		if _, e := c.DeleteQueue(name, false, false); e != nil {
			t.Fatal(e)
		}
		c.ok(c.DeleteExchange(name, false))
	}
	c.end()
	if after := b.Memory(); after != before {
		t.Errorf("after all is deleted\n%+v, before\n%+v", after, before)
	}
}

// What was deleted before a start takes no room after it.
func TestDeletionsAreRecoveredWithTheirRoom(t *testing.T) {
	fs := vfs.NewMem()
	fs.MakeDir(testDir)
	b, _ := diskBroker(t, fs, Snapshot{})
	empty := b.declaredMemory()
	b.AddVHost("gone")
	gone, e := b.Administer("gone")
	if e != nil {
		t.Fatal(e)
	}
	c := connect(t, b)
	for _, c := range []*Conn{c.Conn, gone} {
		if e := c.DeclareExchange(&ExchangeDeclare{Name: "x", Type: "direct", Durable: true, Args: argumentOf(100)}); e != nil {
			t.Fatal(e)
		}
		if _, e := c.DeclareQueue(&QueueDeclare{Name: "q", Durable: true, Args: argumentOf(1000)}); e != nil {
			t.Fatal(e)
		}
	}
	gone.Close()
	c.ok(c.DeleteExchange("x", false))
	if _, e := c.DeleteQueue("q", false, false); e != nil {
		t.Fatal(e)
	}
	c.Close()
	if e := b.DeleteVHost("gone"); e != nil {
		t.Fatal(e)
	}
	if n := b.declaredMemory(); n != empty {
		t.Errorf("%d bytes are left of what was deleted", n-empty)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b, _ = diskBroker(t, fs, Snapshot{}) // all of it is in the journal alone
	if n := b.declaredMemory(); n != empty || b.exchanges != int64(len(predeclared)) {
		t.Errorf("after a start %d bytes are left, and there are %d exchanges", n-empty, b.exchanges)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// What is refused for another reason once room was claimed for it takes none, however often it is tried: by those who wait
// for their turn as an exclusive consumer, too.
func TestWhatIsRefusedTakesNoRoom(t *testing.T) {
	b := memoryBroker(t, Options{})
	c, other := connect(t, b), connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.consume(ConsumeArgs{Queue: "q", Exclusive: true})
	if err := b.Users().SetLimit("guest", MaxChannels, 2); err != nil {
		t.Fatal(err)
	}
	for _, room := range []int64{10 * consumerMemory, 0} {
		b.AllowKept(room, Unlimited)
		for range 10 * ownFree / consumerMemory {
			_, e := other.ch.Consume(&ConsumeArgs{Queue: "q", Exclusive: true})
			c.refused(e, ExclusiveUse, "queue 'q' in vhost '/' in exclusive use")
			if _, e := other.Open(2, other.sink); e == nil || e.Kind != NotAllowed {
				t.Fatalf("opens a channel beyond the limit: %v", e)
			}
		}
		if left := b.room.left.Load(); left != room || other.indulged != 0 {
			t.Errorf("of %d bytes of room %d are left, %d beyond it", room, left, other.indulged)
		}
	}
	b.AllowKept(Unlimited, Unlimited)
	c.end()
	other.end()
}
