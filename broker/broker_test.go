package broker

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
	"github.com/firemq/firemq/pool"
)

// The session of these tests: it keeps what it is sent.

type testPeer struct {
	mu       sync.Mutex
	full     bool // not writable
	staged   bool
	flushes  int
	pauseMu  sync.Mutex
	paused   Reason // changed under pauseMu, like the next one
	careful  bool
	answered atomic.Int64
	late     atomic.Int64
	closedBy *Error
	onClose  func() // called by Close
}

func (p *testPeer) Lock() { p.mu.Lock() }
func (p *testPeer) Unlock() bool {
	s := p.staged
	p.staged = false
	p.mu.Unlock()
	return s
}
func (p *testPeer) Flush()          { p.mu.Lock(); p.flushes++; p.mu.Unlock() }
func (p *testPeer) Writable() bool  { return !p.full }
func (p *testPeer) Pause(r Reason)  { p.pauseMu.Lock(); p.paused |= r; p.pauseMu.Unlock() }
func (p *testPeer) Resume(r Reason) { p.pauseMu.Lock(); p.paused &^= r; p.pauseMu.Unlock() }
func (p *testPeer) Careful(on bool) { p.pauseMu.Lock(); p.careful = on; p.pauseMu.Unlock() }
func (p *testPeer) Answered()       { p.answered.Add(1) }
func (p *testPeer) Late(*Channel)   { p.late.Add(1) }
func (p *testPeer) Close(e *Error) {
	if p.closedBy = e; p.onClose != nil {
		p.onClose()
	}
}

type delivered struct {
	tag         uint64
	body        string
	redelivered bool
	consumer    string
}

type testSink struct {
	peer *testPeer
	t    testing.TB

	got       []delivered
	events    []string // confirms, nacks, returns in order
	cancelled []string
	committed int
	onReturn  func(*message.Message)
	discard   bool   // count instead of keep
	copies    []byte // where what is discarded is copied to, one message behind the other, as into an outbox
	copied    int
	n         int
	confirmed uint64
}

func (s *testSink) Deliver(d *Delivery) {
	s.peer.staged = true
	s.n++
	if s.discard {
		if len(s.copies) > 0 {
			if len(s.copies)-s.copied < len(d.Msg.Bytes()) {
				s.copied = 0
			}
			s.copied += copy(s.copies[s.copied:], d.Msg.Bytes())
		}
		return
	}
	g := delivered{tag: d.Tag, body: string(d.Msg.Body()), redelivered: d.Redelivered}
	if d.Consumer != nil {
		g.consumer = d.Consumer.Tag
	}
	s.got = append(s.got, g)
}
func (s *testSink) Confirm(seq uint64, multiple bool) {
	s.peer.staged = true
	s.confirmed = seq
	if !s.discard {
		s.events = append(s.events, fmt.Sprintf("ack %d %t", seq, multiple))
	}
}
func (s *testSink) Nack(seq uint64, e *Error) {
	s.peer.staged = true
	s.events = append(s.events, fmt.Sprintf("nack %d %s", seq, e.Text))
}
func (s *testSink) Return(seq uint64, m *message.Message) {
	s.peer.staged = true
	s.events = append(s.events, fmt.Sprintf("return %d %s", seq, m.Body()))
	if s.onReturn != nil {
		s.onReturn(m)
	}
}
func (s *testSink) Cancelled(c *Consumer, e *Error) {
	s.peer.staged = true
	s.cancelled = append(s.cancelled, c.Tag)
}
func (s *testSink) Committed() { s.peer.staged = true; s.committed++ }
func (s *testSink) Answer(b []byte) {
	s.peer.staged = true
	s.events = append(s.events, "answer "+string(b))
}

// take empties what was delivered so far.
func (s *testSink) take() []delivered {
	s.peer.mu.Lock()
	defer s.peer.mu.Unlock()
	g := s.got
	s.got = nil
	return g
}

func (s *testSink) bodies() []string {
	var b []string
	for _, d := range s.take() {
		b = append(b, d.body)
	}
	return b
}

// client is a connection with one channel.
type client struct {
	*Conn
	t    testing.TB
	peer *testPeer
	sink *testSink
	ch   *Channel
	seq  uint64
}

func memoryBroker(t testing.TB, o Options) *Broker {
	t.Helper()
	o.Start.VHosts = []string{"/"}
	o.Codecs = map[message.Encoding]message.Codec{message.AMQP: plainCodec{}}
	b, _, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.AddFirstUser("guest", "guest"); err != nil {
		t.Fatal(err)
	}
	before := pool.Live()
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if n := pool.Live(); n != before {
			t.Errorf("%d buffers are still lent after the broker closed", n-before)
		}
	})
	return b
}

// plainCodec keeps headers alone, as an AMQP field table.
type plainCodec struct{}

func (plainCodec) Decode(p []byte) (table.Properties, error) {
	t, err := table.Decode(p)
	return table.Properties{Has: table.HasHeaders, Headers: t}, err
}
func (plainCodec) Append(dst []byte, p *table.Properties) []byte { return table.Append(dst, p.Headers) }

func (plainCodec) Headers(dst table.Table, p []byte) table.Table {
	dst, _ = table.AppendBorrowed(dst, p)
	return dst
}

// Properties finds the message id, which is a header here.
func (plainCodec) Properties(p []byte) (found table.Properties) {
	t, _ := table.Decode(p)
	if v, ok := t.Get("message-id"); ok {
		found.MessageID, found.Has = v.Str, table.HasMessageID
	}
	return found
}

func connect(t testing.TB, b *Broker) *client {
	t.Helper()
	info := &ConnInfo{Protocol: "test", Name: "test", VHost: "/", Remote: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
	u, e := b.Login("guest", "guest", info)
	if e != nil {
		t.Fatal(e.Text)
	}
	c := &client{t: t, peer: &testPeer{}}
	conn, e := b.Connect(u, c.peer, info)
	if e != nil {
		t.Fatal(e.Text)
	}
	c.Conn = conn
	c.sink = &testSink{peer: c.peer, t: t}
	if c.ch, e = conn.Open(1, c.sink); e != nil {
		t.Fatal(e.Text)
	}
	c.end()
	t.Cleanup(conn.Close)
	return c
}

func (c *client) ok(e *Error) {
	c.t.Helper()
	if e != nil {
		c.t.Fatal(e.Text)
	}
}

func (c *client) refused(e *Error, k Kind, text string) {
	c.t.Helper()
	if e == nil || e.Kind != k || e.Text != text {
		c.t.Fatalf("got %+v, want kind %d, %q", e, k, text)
	}
}

func (c *client) declare(d QueueDeclare) string {
	c.t.Helper()
	s, e := c.DeclareQueue(&d)
	c.ok(e)
	return s.Name
}

func (c *client) publish(exchange, key, body string) {
	c.t.Helper()
	c.ok(c.tryPublish(exchange, key, body, false))
}

func (c *client) tryPublish(exchange, key, body string, mandatory bool) *Error {
	m := message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1, Persistent: true}, []byte(exchange), []byte(key), nil, len(body))
	copy(m.Body(), body)
	p := &Publish{Msg: m, Mandatory: mandatory}
	if c.ch.confirms {
		c.seq++
		p.Seq = c.seq
	}
	return c.ch.Publish(p)
}

func (c *client) consume(a ConsumeArgs) *Consumer {
	c.t.Helper()
	k, e := c.ch.Consume(&a)
	c.ok(e)
	k.Start()
	return k
}

func (c *client) end() {
	c.t.Helper()
	if _, e := c.EndTurn(); e != nil {
		c.t.Fatal(e.Text)
	}
}

func (c *client) get(queue string) (body string, ok bool) {
	c.t.Helper()
	ok, e := c.ch.Get(queue, true, func(d *Delivery, _ int) { body = string(d.Msg.Body()) })
	c.ok(e)
	return body, ok
}

func eq[T comparable](t testing.TB, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func TestPublishDeliverAckInOrder(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.ok(c.ch.Confirms())
	c.ch.Qos(2, false)
	c.consume(ConsumeArgs{Queue: "q", Tag: "k"})
	for i := range 5 {
		c.publish("", "q", fmt.Sprint(i))
	}
	c.end()
	eq(t, "confirms", c.sink.events, []string{"ack 5 true"})
	eq(t, "up to the prefetch", c.sink.bodies(), []string{"0", "1"})
	c.ok(c.ch.Ack(2, true))
	c.end()
	eq(t, "after acks", c.sink.bodies(), []string{"2", "3"})
	c.ok(c.ch.Ack(3, false))
	c.ok(c.ch.Ack(4, false))
	c.end()
	eq(t, "the last", c.sink.bodies(), []string{"4"})
	c.ok(c.ch.Ack(5, false))
	c.end()
	if n := b.Totals(); n.Ready != 0 || n.Unacked != 0 {
		t.Fatalf("left: %+v", n)
	}
	if c.peer.flushes == 0 {
		t.Fatal("nothing was flushed")
	}
}

func TestAckOfUnknownTagNamesItsVerb(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.consume(ConsumeArgs{Queue: "q"})
	c.publish("", "q", "a")
	c.end()
	c.ok(c.ch.Ack(1, false))
	c.ok(c.ch.Nack(1, false, true))
	ch, e := c.EndTurn()
	c.refused(e, PreconditionFailed, "unknown delivery tag 1")
	if v := ch.FailedVerb(); v != VerbNack {
		t.Fatalf("failed verb %d, want nack", v)
	}
	ch.Close()
	c.end()
	// The ack before it counts.
	if n := b.Totals(); n.Ready != 0 || n.Unacked != 0 {
		t.Fatalf("left: %+v", n)
	}
}

func TestRequeueKeepsThePlaceAndMarksRedelivered(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.ch.Qos(3, false)
	k := c.consume(ConsumeArgs{Queue: "q", Tag: "k"})
	for i := range 5 {
		c.publish("", "q", fmt.Sprint(i))
	}
	c.end()
	c.sink.take()
	if !c.ch.Cancel(k.Tag) {
		t.Fatal("no consumer")
	}
	c.ok(c.ch.Nack(3, false, true))
	c.ok(c.ch.Nack(1, false, true))
	c.end()
	for _, want := range []string{"0", "2", "3", "4"} {
		if got, ok := c.get("q"); !ok || got != want {
			t.Fatalf("got %q %t, want %q", got, ok, want)
		}
	}
}

func TestCloseRequeuesAndDropsConfirms(t *testing.T) {
	b := memoryBroker(t, Options{})
	c, d := connect(t, b), connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.consume(ConsumeArgs{Queue: "q"})
	c.publish("", "q", "a")
	c.end()
	c.sink.take()
	d.consume(ConsumeArgs{Queue: "q"})
	c.Close()
	got := d.sink.take()
	if len(got) != 1 || got[0].body != "a" || !got[0].redelivered {
		t.Fatalf("got %+v", got)
	}
}

func TestMandatoryReturnComesBeforeItsConfirm(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.ok(c.ch.Confirms())
	c.publish("", "q", "a")
	c.ok(c.tryPublish("", "nowhere", "b", true))
	c.publish("", "nowhere", "c")
	c.end()
	eq(t, "events", c.sink.events, []string{"return 2 b", "ack 3 true"})
}

func TestRejectPublishNacksTheRefusedAlone(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q", Args: table.Table{
		{Name: "x-max-length", Value: table.IntValue(2)},
		{Name: "x-overflow", Value: table.StringValue("reject-publish")},
	}})
	c.ok(c.ch.Confirms())
	for range 4 {
		c.publish("", "q", "a")
	}
	c.publish("", "nowhere", "a")
	c.end()
	eq(t, "events", c.sink.events, []string{
		"ack 2 true", "nack 3 queue 'q' in vhost '/' is full", "nack 4 queue 'q' in vhost '/' is full", "ack 5 false"})
}

// TestRejectPublishKnowsTheChannelsLimit: while a persistent message waits for the journal, those behind it
// count as taken only as far as the channel-wide prefetch has places, for all its consumers together.
func TestRejectPublishKnowsTheChannelsLimit(t *testing.T) {
	fs := vfs.NewMem()
	fs.MakeDir(testDir)
	b, _ := diskBroker(t, fs, Snapshot{})
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q", Durable: true, Args: table.Table{
		{Name: "x-max-length", Value: table.IntValue(1)},
		{Name: "x-overflow", Value: table.StringValue("reject-publish")},
	}})
	c.ok(c.ch.Qos(2, true))
	c.consume(ConsumeArgs{Queue: "q", Tag: "1"})
	c.consume(ConsumeArgs{Queue: "q", Tag: "2"})
	c.publish("", "q", "held")
	c.end()
	until(t, "the delivery", func() bool { return len(c.sink.take()) == 1 })

	from := connect(t, b)
	from.ok(from.ch.Confirms())
	from.publish("", "q", "persistent")
	for seq := range uint64(2) {
		m := message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1}, nil, []byte("q"), nil, 0)
		from.ok(from.ch.Publish(&Publish{Msg: m, Seq: seq + 2}))
	}
	from.end()
	until(t, "the delivery", func() bool { return len(c.sink.take()) == 1 })
	if s, _ := c.DeclareQueue(&QueueDeclare{Name: "q", Passive: true}); s.Messages != 1 {
		t.Errorf("%d messages are ready in a queue that takes 1", s.Messages)
	}
	until(t, "the confirms", func() bool { from.peer.mu.Lock(); defer from.peer.mu.Unlock(); return from.ch.told == 3 })
	if !slices.Contains(from.sink.events, "nack 3 queue 'q' in vhost '/' is full") {
		t.Errorf("confirms %q", from.sink.events)
	}
	c.Close()
	from.Close()
}

func TestFanoutReachesEachQueueOnce(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	for i := range 3 {
		name := c.declare(QueueDeclare{Name: fmt.Sprint("q", i)})
		c.ok(c.BindQueue(name, "amq.fanout", "x", nil))
		c.ok(c.BindQueue(name, "amq.fanout", "y", nil))
	}
	c.publish("amq.fanout", "k", "a")
	c.publish("amq.fanout", "k", "b")
	c.end()
	for i := range 3 {
		for _, want := range []string{"a", "b"} {
			if got, ok := c.get(fmt.Sprint("q", i)); !ok || got != want {
				t.Fatalf("q%d: got %q %t, want %q", i, got, ok, want)
			}
		}
		if _, ok := c.get(fmt.Sprint("q", i)); ok {
			t.Fatalf("q%d has more", i)
		}
	}
}

func TestDeclareErrorsHaveRabbitMQsTexts(t *testing.T) {
	b := memoryBroker(t, Options{})
	c, d := connect(t, b), connect(t, b)
	c.declare(QueueDeclare{Name: "q", Durable: true})
	c.declare(QueueDeclare{Name: "mine", Exclusive: true})
	declare := func(c *client, q QueueDeclare) *Error { _, e := c.DeclareQueue(&q); return e }
	c.refused(declare(c, QueueDeclare{Name: "q"}), PreconditionFailed,
		"inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'")
	c.refused(declare(c, QueueDeclare{Name: "amq.x"}), AccessRefused, "queue name 'amq.x' contains reserved prefix 'amq.*'")
	c.refused(declare(c, QueueDeclare{Name: "none", Passive: true}), NotFound, "no queue 'none' in vhost '/'")
	c.refused(declare(d, QueueDeclare{Name: "mine", Exclusive: true}), ResourceLocked, lockedError("mine", "/").Text)
	c.refused(c.DeclareExchange(&ExchangeDeclare{Name: "amq.x", Type: "direct"}), AccessRefused, "exchange name 'amq.x' contains reserved prefix 'amq.*'")
	c.refused(c.DeclareExchange(&ExchangeDeclare{Name: "x", Type: "odd"}), PreconditionFailed, "unknown exchange type 'odd'")
	c.refused(c.DeclareExchange(&ExchangeDeclare{Name: "amq.direct", Type: "fanout", Durable: true}), PreconditionFailed,
		"inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': received 'fanout' but current is 'direct'")
	c.ok(c.DeclareExchange(&ExchangeDeclare{Name: "amq.direct", Type: "direct", Durable: true}))
	c.refused(c.DeleteExchange("amq.direct", false), AccessRefused, "deletion of system exchange 'amq.direct' in vhost '/' not allowed")
	c.refused(c.BindQueue("q", "none", "k", nil), NotFound, "no exchange 'none' in vhost '/'")
	c.refused(c.tryPublish("none", "k", "", false), NotFound, "no exchange 'none' in vhost '/'")
	c.refused(c.tryPublish("amq.rabbitmq.trace", "k", "", false), AccessRefused, "cannot publish to internal exchange 'amq.rabbitmq.trace' in vhost '/'")
}

func TestExclusiveAndAutoDeleteQueuesGo(t *testing.T) {
	b := memoryBroker(t, Options{})
	c, d := connect(t, b), connect(t, b)
	c.declare(QueueDeclare{Name: "mine", Exclusive: true})
	c.declare(QueueDeclare{Name: "auto", AutoDelete: true})
	d.consume(ConsumeArgs{Queue: "auto", Tag: "k"})
	c.Close()
	if _, e := d.DeclareQueue(&QueueDeclare{Name: "mine", Passive: true}); e == nil || e.Kind != NotFound {
		t.Fatalf("exclusive queue outlived its connection: %v", e)
	}
	d.ch.Cancel("k")
	d.end()
	if _, e := d.DeclareQueue(&QueueDeclare{Name: "auto", Passive: true}); e == nil || e.Kind != NotFound {
		t.Fatalf("auto-delete queue outlived its consumer: %v", e)
	}
}

func TestDeletedQueueCancelsItsConsumers(t *testing.T) {
	b := memoryBroker(t, Options{})
	c, d := connect(t, b), connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	d.consume(ConsumeArgs{Queue: "q", Tag: "k"})
	c.publish("", "q", "a")
	c.end()
	if n, e := c.DeleteQueue("q", false, false); e != nil || n != 0 {
		t.Fatalf("deleted %d, %v", n, e)
	}
	c.end()
	eq(t, "cancelled", d.sink.cancelled, []string{"k"})
	d.ok(d.ch.Ack(1, false)) // its tag stays known
	d.end()
}

func TestFullOutboxHoldsDeliveriesUntilItDrains(t *testing.T) {
	b := memoryBroker(t, Options{})
	c, d := connect(t, b), connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	d.peer.full = true
	d.consume(ConsumeArgs{Queue: "q", NoAck: true})
	c.publish("", "q", "a")
	c.end()
	if got := d.sink.take(); len(got) != 0 {
		t.Fatalf("delivered into a full outbox: %v", got)
	}
	d.peer.full = false
	d.Drained()
	eq(t, "after the drain", d.sink.bodies(), []string{"a"})
}

func TestChannelPrefetchHoldsForAllItsConsumers(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "p"})
	c.declare(QueueDeclare{Name: "q"})
	c.ch.Qos(3, true)
	c.consume(ConsumeArgs{Queue: "p"})
	c.consume(ConsumeArgs{Queue: "q"})
	for range 4 {
		c.publish("", "p", "p")
		c.publish("", "q", "q")
	}
	c.end()
	got := c.sink.take()
	if len(got) != 3 {
		t.Fatalf("%d delivered, want 3", len(got))
	}
	for tag := uint64(1); tag <= 8; tag++ {
		c.ok(c.ch.Ack(tag, false))
		c.end()
		got = append(got, c.sink.take()...)
		if want := min(8, int(tag)+3); len(got) != want {
			t.Fatalf("after ack %d: %d delivered, want %d", tag, len(got), want)
		}
	}
}

// A channel gets a queue's messages in their order, whichever of its consumers they are for.
func TestConsumersOfOneChannelGetMessagesInOrder(t *testing.T) {
	b := memoryBroker(t, Options{})
	c, other := connect(t, b), connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.consume(ConsumeArgs{Queue: "q", Tag: "a"})
	other.consume(ConsumeArgs{Queue: "q", Tag: "o"})
	c.consume(ConsumeArgs{Queue: "q", Tag: "b", NoAck: true})
	c.end()
	var all []string
	for i := range 9 {
		other.publish("", "q", fmt.Sprint(i))
		all = append(all, fmt.Sprint(i))
	}
	other.end()
	eq(t, "of the other", other.sink.bodies(), []string{"1", "4", "7"})
	eq(t, "of two", c.sink.bodies(), slices.DeleteFunc(all, func(s string) bool { return s == "1" || s == "4" || s == "7" }))
}

func TestRecoverFreesTheChannelPrefetch(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.ch.Qos(1, true)
	c.consume(ConsumeArgs{Queue: "q"})
	c.publish("", "q", "a")
	c.publish("", "q", "b")
	c.end()
	eq(t, "before", c.sink.bodies(), []string{"a"})
	c.ok(c.ch.Recover())
	c.end()
	eq(t, "recovered", c.sink.bodies(), []string{"a"})
}

// A client must not hear of a consumer's end before it has heard of the consumer.
func TestQueueDeletedBeforeItsConsumerStarts(t *testing.T) {
	b := memoryBroker(t, Options{})
	c, other := connect(t, b), connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	k, e := c.ch.Consume(&ConsumeArgs{Queue: "q", Tag: "k"})
	c.ok(e)
	_, e = other.DeleteQueue("q", false, false)
	c.ok(e)
	eq(t, "before the start", c.sink.cancelled, nil)
	k.Start()
	eq(t, "after the start", c.sink.cancelled, []string{"k"})
	if c.ch.Consumer("k") != nil || b.Counters().Consumers.Load() != 0 {
		t.Fatal("the consumer is not forgotten")
	}
}

func TestTransactionCommitsOrForgets(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.publish("", "q", "a")
	c.end()
	if _, e := c.ch.Get("q", false, func(*Delivery, int) {}); e != nil {
		t.Fatal(e.Text)
	}
	c.ok(c.ch.TxSelect())
	c.refused(c.ch.Confirms(), PreconditionFailed, "cannot switch from tx to confirm mode")
	c.publish("", "q", "b")
	c.ok(c.ch.Ack(1, false))
	c.refused(c.ch.Ack(1, false), PreconditionFailed, "unknown delivery tag 1")
	c.ok(c.ch.TxRollback())
	if n := b.Totals(); n.Ready != 0 || n.Unacked != 1 {
		t.Fatalf("after rollback: %+v", n)
	}
	c.publish("", "q", "c")
	c.ok(c.ch.Ack(1, false))
	c.ok(c.ch.TxCommit())
	if n := b.Totals(); n.Ready != 1 || n.Unacked != 0 || c.sink.committed != 1 {
		t.Fatalf("after commit: %+v, committed %d", n, c.sink.committed)
	}
}

// What a transaction settles is out of reach of all else on its channel until the commit, and counts then.
func TestTransactionTakesWhatItSettles(t *testing.T) {
	b := memoryBroker(t, Options{})
	pub := connect(t, b)
	pub.declare(QueueDeclare{Name: "q"})
	c := connect(t, b)
	c.ok(c.ch.TxSelect())
	c.consume(ConsumeArgs{Queue: "q"})
	const many = settleNow + 8
	pub.flood("q", many)
	pub.publish("", "q", "last")
	pub.end()
	c.end()
	c.sink.take()
	all := func() (ready, unacked int) {
		n := b.Totals()
		return n.Ready, n.Unacked
	}
	state := func(when string, outstanding, inTx int, acked uint64) {
		t.Helper()
		if ready, unacked := all(); ready != 0 || unacked != many+1-int(acked) {
			t.Fatalf("%s: %d ready, %d unacked", when, ready, unacked)
		}
		traffic := b.Traffic()
		views := b.Channels()
		i := slices.IndexFunc(views, func(v ChannelView) bool { return v.Mode == ModeTx })
		if v := views[i]; v.Unacked != outstanding || v.TxOps != inTx || traffic.Total().Ack != acked {
			t.Fatalf("%s: %d outstanding, %d in the transaction, %d acked", when, v.Unacked, v.TxOps, traffic.Total().Ack)
		}
	}
	c.ok(c.ch.Ack(3, false))
	c.ok(c.ch.Ack(many-2, true)) // very many at once
	c.refused(c.ch.Nack(3, false, true), PreconditionFailed, "unknown delivery tag 3")
	c.refused(c.ch.Ack(many-2, true), PreconditionFailed, "unknown delivery tag 16390")
	if v := c.ch.FailedVerb(); v != VerbNone {
		t.Errorf("the error is of verb %d", v)
	}
	c.ok(c.ch.Nack(many-1, true, false))
	state("before the rollback", 2, many-1, 0)
	c.ok(c.ch.TxRollback())
	state("rolled back", many+1, 0, 0)

	c.ok(c.ch.Ack(many, true))
	c.ok(c.ch.Recover()) // of what is left
	c.end()
	eq(t, "recovered", c.sink.bodies(), []string{"last"})
	c.ok(c.ch.TxCommit())
	c.end()
	state("committed", 1, 0, many)
	c.ok(c.ch.Nack(0, true, true))
	c.ok(c.ch.TxCommit())
	c.end()
	eq(t, "given back", c.sink.bodies(), []string{"last"})

	c.ok(c.ch.Ack(0, true))
	c.Close()
	if ready, unacked := all(); ready != 1 || unacked != 0 {
		t.Fatalf("closed within a transaction: %d ready, %d unacked", ready, unacked)
	}
}

func TestPermissionsAreCheckedAtEveryVerb(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.publish("", "q", "cached route")
	c.end()
	if _, err := b.Users().SetPermissions(auth.Permission{User: "guest", VHost: "/"}); err != nil {
		t.Fatal(err)
	}
	refused := func(what string, e *Error, text string) {
		t.Helper()
		if e == nil || e.Kind != AccessRefused || e.Text != text {
			t.Errorf("%s: got %v, want %q", what, e, text)
		}
	}
	_, e := c.DeclareQueue(&QueueDeclare{Name: "new"})
	refused("declare queue", e, "configure access to queue 'new' in vhost '/' refused for user 'guest'")
	refused("declare exchange", c.DeclareExchange(&ExchangeDeclare{Name: "x", Type: "direct"}), "configure access to exchange 'x' in vhost '/' refused for user 'guest'")
	refused("publish", c.tryPublish("", "q", "", false), "write access to exchange 'amq.default' in vhost '/' refused for user 'guest'")
	_, e = c.ch.Consume(&ConsumeArgs{Queue: "q"})
	refused("consume", e, "read access to queue 'q' in vhost '/' refused for user 'guest'")
	_, e = c.ch.Get("q", true, nil)
	refused("get", e, "read access to queue 'q' in vhost '/' refused for user 'guest'")
	_, e = c.PurgeQueue("q")
	refused("purge", e, "read access to queue 'q' in vhost '/' refused for user 'guest'")
	_, e = c.DeleteQueue("q", false, false)
	refused("delete", e, "configure access to queue 'q' in vhost '/' refused for user 'guest'")
	refused("bind", c.BindQueue("q", "amq.direct", "k", nil), "write access to queue 'q' in vhost '/' refused for user 'guest'")
	refused("bind exchange", c.BindExchange("amq.fanout", "amq.direct", "k", nil), "write access to exchange 'amq.fanout' in vhost '/' refused for user 'guest'")
}

func TestPersistentMessagesOfABrokerInMemory(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q", Durable: true})
	c.ok(c.ch.Confirms())
	c.publish("", "q", "a")
	c.end()
	eq(t, "events", c.sink.events, []string{"ack 1 false"})
	if got, ok := c.get("q"); !ok || got != "a" {
		t.Fatalf("got %q %t", got, ok)
	}
}
