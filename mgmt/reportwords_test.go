package mgmt

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
	"github.com/firemq/firemq/mgmt/api"
)

// noProperties is a codec for messages without any.
type noProperties struct{}

func (noProperties) Decode([]byte) (p table.Properties, err error) { return p, nil }
func (noProperties) Append(dst []byte, _ *table.Properties) []byte { return dst }
func (noProperties) Headers(dst table.Table, _ []byte) table.Table { return dst }
func (noProperties) Properties([]byte) (p table.Properties)        { return p }

// watchedBroker is a broker with the codec, and the server that reports on it.
func watchedBroker(t *testing.T, o broker.Options) (*Server, *broker.Broker) {
	t.Helper()
	o.Start = broker.Snapshot{VHosts: []string{"/"}}
	o.Codecs = map[message.Encoding]message.Codec{message.AMQP: noProperties{}}
	b, _, err := broker.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	if err := b.AddFirstUser("guest", "guest"); err != nil {
		t.Fatal(err)
	}
	return &Server{opt: Options{Broker: b, Node: "n"}, sampler: newSampler(b)}, b
}

// client is a connection without a socket. It keeps why it is not read, as an outbox does.
type client struct {
	sync.Mutex
	paused  atomic.Uint32
	changed atomic.Int64 // Unix ns

	t  *testing.T
	b  *broker.Broker
	c  *broker.Conn
	ch *broker.Channel
}

func (p *client) Flush()               {}
func (p *client) Writable() bool       { return true }
func (p *client) Answered()            {}
func (p *client) Late(*broker.Channel) {}
func (p *client) Unlock() bool         { p.Mutex.Unlock(); return false }

func (p *client) Pause(r broker.Reason) {
	if p.paused.Or(uint32(r)) == 0 {
		p.changed.Store(time.Now().UnixNano())
	}
}

func (p *client) Resume(r broker.Reason) { p.paused.And(^uint32(r)) }
func (p *client) Careful(bool)           {}

func (p *client) Close(e *broker.Error) { p.t.Errorf("closed: %v", e) }

// newClient is called "test".
func newClient(t *testing.T, b *broker.Broker) *client {
	t.Helper()
	p := &client{t: t, b: b}
	info := &broker.ConnInfo{Protocol: "AMQP 0-9-1", Name: "test", VHost: "/", Remote: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
	info.Paused = func() (broker.Reason, int64) { return broker.Reason(p.paused.Load()), p.changed.Load() }
	u, e := b.Login("guest", "guest", info)
	if e != nil {
		t.Fatal(e)
	}
	if p.c, e = b.Connect(u, p, info); e != nil {
		t.Fatal(e)
	}
	t.Cleanup(p.c.Close)
	if p.ch, e = p.c.Open(1, &outcome{}); e != nil {
		t.Fatal(e)
	}
	return p
}

func (p *client) declare(queue string) {
	p.t.Helper()
	if _, e := p.c.DeclareQueue(&broker.QueueDeclare{Name: queue, Durable: true}); e != nil {
		p.t.Fatal(e)
	}
}

// publish publishes a persistent message of some bytes.
func (p *client) publish(queue string, size int) {
	p.t.Helper()
	if e := p.ch.Publish(p.b.NewPublish(&table.Properties{DeliveryMode: 2}, "", queue, make([]byte, size))); e != nil {
		p.t.Fatal(e)
	}
	if _, e := p.c.EndTurn(); e != nil {
		p.t.Fatal(e)
	}
}

// finding waits for a finding about an object and checks its words.
func (s *Server) finding(t *testing.T, key, name string) {
	t.Helper()
	code, _, _ := strings.Cut(key, " ")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		r := s.report([]string{"/"}, 0, time.Now())
		if ctx.Err() != nil || slices.ContainsFunc(r.Findings, func(f api.Finding) bool { return f.Code == code && f.Name == name }) {
			CheckFinding(t, r, key, name)
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// disk is a file system in memory that does what fault says; nil: what it should.
func disk(t *testing.T) (o broker.Options, fault *atomic.Pointer[func(vfs.Op) error]) {
	mem := vfs.NewMem()
	mem.MakeDir("j")
	fault = new(atomic.Pointer[func(vfs.Op) error])
	return broker.Options{JournalDir: "j", FS: &vfs.Faults{FS: mem, Check: func(op vfs.Op) error {
		if f := fault.Load(); f != nil {
			return (*f)(op)
		}
		return nil
	}}}, fault
}

// TestFindingsOfDisks: a disk that is slow, one that is full and one that fails.
func TestFindingsOfDisks(t *testing.T) {
	t.Run("slow", func(t *testing.T) {
		o, fault := disk(t)
		s, b := watchedBroker(t, o)
		p := newClient(t, b)
		p.declare("q")
		release := make(chan struct{})
		t.Cleanup(func() { close(release) })
		slow := func(op vfs.Op) error {
			if op.Kind == vfs.OpSync {
				<-release
			}
			return nil
		}
		fault.Store(&slow)
		for p.paused.Load() == 0 {
			p.publish("q", 1<<20)
		}
		s.finding(t, "connection-in-flow", "test")
	})
	t.Run("full", func(t *testing.T) {
		o, fault := disk(t)
		s, b := watchedBroker(t, o)
		p := newClient(t, b)
		p.declare("q")
		full := func(op vfs.Op) error {
			if op.Kind == vfs.OpWrite {
				return syscall.ENOSPC
			}
			return nil
		}
		fault.Store(&full)
		for p.paused.Load() == 0 {
			p.publish("q", 1<<20)
		}
		s.finding(t, "journal-stalled", "n")
		s.finding(t, "connection-in-flow 3", "test")
		fault.Store(nil)
	})
	t.Run("broken", func(t *testing.T) {
		o, fault := disk(t)
		s, b := watchedBroker(t, o)
		p := newClient(t, b)
		p.declare("q")
		broken := func(op vfs.Op) error {
			if op.Kind == vfs.OpSync {
				return syscall.EIO
			}
			return nil
		}
		fault.Store(&broken)
		p.publish("q", 1)
		s.finding(t, "journal-failed", "n")
	})
}

// TestFindingOfGrowth: nobody has read memory since a publisher used up what the last reading left it.
func TestFindingOfGrowth(t *testing.T) {
	s, b := watchedBroker(t, broker.Options{})
	p := newClient(t, b)
	p.declare("q")
	b.Allow(1000)
	p.publish("q", 2000)
	s.finding(t, "connection-in-flow 2", "test")
}

// TestFindingOfCompaction: the disk does not let go of files that are needed no more.
func TestFindingOfCompaction(t *testing.T) {
	defer func(n int64) { compactionBehind = n }(compactionBehind)
	compactionBehind = 16 << 20
	var stuck atomic.Bool
	s, b := watchedBroker(t, broker.Options{NoSync: true, JournalDir: t.TempDir(), FS: &vfs.Faults{FS: vfs.OS{}, Check: func(op vfs.Op) error {
		if stuck.Load() && op.Kind == vfs.OpRemove { // two are kept under another name
			return syscall.EIO
		}
		return nil
	}}})
	p := newClient(t, b)
	p.declare("q")
	for range 140 {
		p.publish("q", 1<<20)
	}
	stuck.Store(true)
	for purged := 0; purged < 140; { // what is not written yet is not purged
		n, e := p.c.PurgeQueue("q")
		if e != nil {
			t.Fatal(e)
		}
		purged += int(n)
	}
	if _, e := p.c.EndTurn(); e != nil {
		t.Fatal(e)
	}
	p.publish("q", 1) // what is settled is written with what comes next
	s.finding(t, "compaction-behind", "n")
	stuck.Store(false)
}

// TestFindingOfUnacked: a get that was not acknowledged for longer than RabbitMQ would wait.
func TestFindingOfUnacked(t *testing.T) {
	now := time.Now()
	s, b := watchedBroker(t, broker.Options{Now: func() int64 { return now.UnixMilli() }})
	p := newClient(t, b)
	p.declare("q")
	p.publish("q", 1)
	if ok, e := p.ch.Get("q", false, func(*broker.Delivery, int) {}); !ok || e != nil {
		t.Fatal(ok, e)
	}
	now = now.Add(29 * time.Minute)
	if r := s.report([]string{"/"}, time.Minute, now); len(r.Findings) != 0 {
		t.Errorf("after 29 minutes: %+v", r)
	}
	now = now.Add(2 * time.Minute)
	CheckFinding(t, s.report([]string{"/"}, time.Minute, now), "unacked-for-long", "q")
}

// TestFindingsOfRoutes: an exchange that leads nowhere, and one whose alternate exchange is not there.
func TestFindingsOfRoutes(t *testing.T) {
	now := time.Now()
	s, b := watchedBroker(t, broker.Options{Now: func() int64 { return now.UnixMilli() }})
	p := newClient(t, b)
	alternate := table.Table{{Name: "alternate-exchange", Value: table.StringValue("other")}}
	if e := p.c.DeclareExchange(&broker.ExchangeDeclare{Name: "x", Type: "fanout", Args: alternate}); e != nil {
		t.Fatal(e)
	}
	CheckFinding(t, s.report([]string{"/"}, time.Minute, now), "alternate-exchange-missing", "x")
	publish := func(n int) {
		for range n {
			if e := p.ch.Publish(b.NewPublish(new(table.Properties), "x", "k", nil)); e != nil {
				t.Fatal(e)
			}
		}
		if _, e := p.c.EndTurn(); e != nil {
			t.Fatal(e)
		}
	}
	s.sampler.sample(now.UnixMilli())
	now = now.Add(61 * time.Second)
	publish(3)
	CheckFinding(t, s.report([]string{"/"}, time.Minute, now), "nothing-routed", "x")
	if e := p.c.DeclareExchange(&broker.ExchangeDeclare{Name: "other", Type: "fanout"}); e != nil {
		t.Fatal(e)
	}
	p.declare("q")
	if e := p.c.BindQueue("q", "other", "", nil); e != nil {
		t.Fatal(e)
	}
	publish(1)
	if r := s.report([]string{"/"}, time.Minute, now); len(r.Findings) != 0 {
		t.Errorf("by way of the alternate exchange: %+v", r)
	}
}

// TestFindingOfRedeliveries: a consumer that gives back what it gets, until it acknowledges one; not one that takes over
// what another had.
func TestFindingOfRedeliveries(t *testing.T) {
	now := time.Now()
	s, b := watchedBroker(t, broker.Options{Now: func() int64 { return now.UnixMilli() }})
	p := newClient(t, b)
	p.declare("q")
	p.publish("q", 1)
	get := func() {
		if ok, e := p.ch.Get("q", false, func(*broker.Delivery, int) {}); !ok || e != nil {
			t.Fatal(ok, e)
		}
	}
	s.sampler.sample(now.UnixMilli())
	now = now.Add(61 * time.Second)
	for range 26 {
		get()
		if e := p.ch.Nack(0, true, true); e != nil {
			t.Fatal(e)
		}
		if e := p.ch.Settle(); e != nil {
			t.Fatal(e)
		}
	}
	CheckFinding(t, s.report([]string{"/"}, time.Minute, now), "redelivered-without-end", "q")
	get()
	if e := p.ch.Ack(0, true); e != nil {
		t.Fatal(e)
	}
	if e := p.ch.Settle(); e != nil {
		t.Fatal(e)
	}
	if r := s.report([]string{"/"}, time.Minute, now); len(r.Findings) != 0 {
		t.Errorf("after an acknowledgement: %+v", r)
	}

	p.declare("taken over")
	for range 30 {
		p.publish("taken over", 1)
	}
	s.sampler.sample(now.UnixMilli())
	now = now.Add(61 * time.Second)
	for range 2 {
		if e := p.ch.Nack(0, true, true); e != nil {
			t.Fatal(e)
		}
		if e := p.ch.Settle(); e != nil {
			t.Fatal(e)
		}
		for range 30 {
			if ok, e := p.ch.Get("taken over", false, func(*broker.Delivery, int) {}); !ok || e != nil {
				t.Fatal(ok, e)
			}
		}
	}
	if r := s.report([]string{"/"}, time.Minute, now); len(r.Findings) != 0 {
		t.Errorf("taken over: %+v", r)
	}
}

// TestReportOverTime looks at a broker whose clock is the test's.
func TestReportOverTime(t *testing.T) {
	now := time.Now()
	s, b := watchedBroker(t, broker.Options{Now: func() int64 { return now.UnixMilli() }})
	var resources Resources
	s.opt.Resources = func() Resources { return resources }
	c, e := b.Administer("/")
	if e != nil {
		t.Fatal(e)
	}
	defer c.Close()
	if _, e := c.DeclareQueue(&broker.QueueDeclare{Name: "q"}); e != nil {
		t.Fatal(e)
	}
	ch, e := c.Open(1, &outcome{})
	if e != nil {
		t.Fatal(e)
	}
	publish := func(n int) {
		for range n {
			if e := ch.Publish(b.NewPublish(new(table.Properties), "", "q", nil)); e != nil {
				t.Fatal(e)
			}
		}
		if _, e := c.EndTurn(); e != nil {
			t.Fatal(e)
		}
	}
	codes := func() string {
		var list []string
		for _, f := range s.report([]string{"/"}, time.Minute, now).Findings {
			list = append(list, f.Severity+" "+f.Code)
		}
		return strings.Join(list, ", ")
	}
	publish(10)
	s.sampler.sample(now.UnixMilli())
	if got := codes(); got != "" {
		t.Errorf("at once: %s", got)
	}
	now = now.Add(50 * time.Second)
	publish(5)
	if got := codes(); got != "" {
		t.Errorf("after less than a minute: %s", got)
	}
	now = now.Add(11 * time.Second)
	if got := codes(); got != "warning queue-without-consumer" {
		t.Errorf("after a minute: %s", got)
	}
	f := s.report([]string{"/"}, time.Minute, now).Findings[0]
	if want := "15 messages wait, the oldest for 61 seconds. It grew by 5 in 61 seconds."; f.Cause != want {
		t.Errorf("cause %q, want %q", f.Cause, want)
	}
	s.sampler.reset()
	now = now.Add(24 * time.Hour)
	s.sampler.sample(now.UnixMilli())
	if got := codes(); got != "note messages-without-consumer" {
		t.Errorf("after a day: %s", got)
	}
	resources = Resources{Connections: 3, MaxConnections: 3}
	CheckFinding(t, s.report(nil, time.Minute, now), "connections-at-limit", "n")
	resources = Resources{Connections: 2, MaxConnections: 3}
	if r := s.report(nil, time.Minute, now); len(r.Findings) != 0 {
		t.Errorf("one connection below the limit: %+v", r)
	}
	resources = Resources{MemoryLimit: 1 << 40, DiskFreeLimit: 1 << 60, MemoryAlarm: true, DiskAlarm: true}
	if got := codes(); !strings.HasPrefix(got, "critical memory-alarm, critical disk-alarm, ") {
		t.Errorf("with alarms: %s", got)
	}
	for _, f := range s.report([]string{"/"}, time.Minute, now).Findings[:1] { // nothing is short
		if !strings.HasSuffix(f.Cause, " It was raised by hand, or is about to end.") {
			t.Errorf("%s: %s", f.Code, f.Cause)
		}
	}
	if got := s.report(nil, time.Minute, now); got.Status != api.Critical || slices.ContainsFunc(got.Findings, func(f api.Finding) bool { return f.Kind != "node" }) {
		t.Errorf("without vhosts: %+v", got)
	}
}
