package fire

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/firemq/firemq/frames/fmq1"
)

// lineup connects a client to one script after the other. A connection that no script waits for fails.
type lineup struct {
	t     testing.TB
	next  chan *script
	tries []time.Time // of connecting; by the client's goroutine
}

var errDown = errors.New("nobody listens")

func newLineup(t testing.TB) *lineup { return &lineup{t: t, next: make(chan *script, 1)} }

func (l *lineup) dial(context.Context, string, string) (net.Conn, error) {
	l.tries = append(l.tries, time.Now())
	select {
	case s := <-l.next:
		a, b := net.Pipe()
		s.c, s.br = b, bufio.NewReader(b)
		close(s.ready)
		return a, nil
	default:
		return nil, errDown
	}
}

// script is the other end of the next connection, once login has been called.
func (l *lineup) script() *script {
	s := &script{t: l.t, ready: make(chan struct{})}
	l.next <- s
	return s
}

// login takes the client's hello.
func (s *script) login() {
	<-s.ready
	s.br.Discard(len(wire.Preface))
	s.expect(wire.OpHello, nil)
	s.write(wire.Append(nil, wire.OpWelcome, &wire.Welcome{Ver: 1, MaxFrame: wire.DefaultMaxFrame, ConnID: "c"}))
}

// expect reads a frame, which must be op, and decodes its header into m.
func (s *script) expect(op wire.Op, m wire.Header) wire.Frame {
	s.t.Helper()
	f := s.read()
	if f.Op != op {
		s.t.Errorf("got %s, want %s", f.Op, op)
		return f
	}
	if m != nil {
		if err := wire.Decode(f.Header, m); err != nil {
			s.t.Error(err)
		}
	}
	return f
}

func (s *script) ok(rid uint64, name string) {
	s.write(wire.Append(nil, wire.OpOK, &wire.OK{RID: rid, Name: name}))
}

func (s *script) confirm(upto uint64) {
	m := wire.Confirm{UpTo: upto}
	s.write(wire.End(m.AppendTo(wire.Begin(nil, wire.OpConfirm)), 0, 0))
}

func (s *script) deliver(sub, tag uint64, redelivered bool, body string) {
	m := wire.Deliver{Sub: sub, Tag: tag, Redelivered: redelivered}
	s.write(append(wire.End(m.AppendTo(wire.Begin(nil, wire.OpDeliver)), 0, len(body)), body...))
}

func (s *script) publish() (seq uint64, body string) {
	s.t.Helper()
	f := s.expect(wire.OpPublish, nil)
	var m wire.Publish
	if err := m.Decode(f.Header); err != nil {
		s.t.Error(err)
	}
	return m.Seq, string(f.Payload)
}

// connected is a client of a lineup and its first script.
func connected(t testing.TB, cfg Config) (*Client, *lineup, *script) {
	t.Helper()
	l := newLineup(t)
	cfg.Addr, cfg.DialContext, cfg.Heartbeat = "pipe", l.dial, -1
	s := l.script()
	go s.login()
	c, err := cfg.Dial(t.Context())
	must(t, err)
	return c, l, s
}

func TestReconnectBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, s := connected(t, Config{Reconnect: Reconnect{MaxAttempts: 9}})
		lost := time.Now()
		s.c.Close()
		<-c.Done()
		if err := c.Err(); !errors.Is(err, ErrClosed) || !errors.Is(err, errDown) || !strings.Contains(err.Error(), "9 attempts") {
			t.Errorf("%v", err)
		}
		want := []time.Duration{100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000}
		tries := l.tries[1:]
		if len(tries) != len(want) {
			t.Fatalf("%d attempts, want %d", len(tries), len(want))
		}
		for i, at := range tries {
			most := want[i] * time.Millisecond
			if d := at.Sub(lost); d < most*4/5-time.Millisecond || d > most {
				t.Errorf("attempt %d after %s, want nearly %s", i+1, d, most)
			}
			lost = at
		}
		must(t, c.Close())
	})
}

// Everything that waits for a connection fails after Reconnect.Wait, whenever it began; the client goes on.
func TestReconnectWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, s := connected(t, Config{Reconnect: Reconnect{Wait: 10 * time.Second}})
		ctx := t.Context()
		p := c.NewPublisher(PublisherOptions{})
		must(t, p.Publish(ctx, Message{Body: []byte("unconfirmed")}))
		s.publish()
		s.c.Close()
		synctest.Wait()
		lost := time.Now()
		failed := func(what string, after time.Duration, err error) {
			if !errors.Is(err, ErrClosed) || !errors.Is(err, errDown) {
				t.Errorf("%s: %v", what, err)
			}
			if d := time.Since(lost); d < after || d > after+time.Second {
				t.Errorf("%s failed after %s, want %s", what, d, after)
			}
		}
		var calls sync.WaitGroup
		calls.Go(func() { failed("flush", 10*time.Second, p.Flush(ctx)) })
		calls.Go(func() {
			_, err := c.DeclareQueue(ctx, "q", QueueOptions{})
			failed("declare", 10*time.Second, err)
		})
		calls.Go(func() {
			time.Sleep(5 * time.Second)
			failed("publish", 15*time.Second, c.Publish(ctx, Message{}))
		})
		calls.Go(func() {
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if err := c.Publish(short, Message{}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a context that ends: %v", err)
			}
		})
		calls.Wait()
		if c.Err() != nil || c.pending.n != 0 || len(c.calls) != 0 || c.kept.bytes != 0 {
			t.Errorf("%v, %d publishes of %d bytes, %d calls", c.Err(), c.pending.n, c.kept.bytes, len(c.calls))
		}
		s = l.script()
		go func() {
			s.login()
			if seq, _ := s.publish(); seq != 1 {
				t.Errorf("seq %d", seq)
			}
			s.confirm(1)
			s.c.Close()
		}()
		must(t, c.Publish(ctx, Message{}))
		must(t, c.Close())
	})
}

// What the client sends over its second connection, frame by frame.
func TestReconnectRestores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		c, l, s := connected(t, Config{
			OnDisconnect: func(err error) { told = append(told, "lost: "+err.Error()) },
			OnReconnect:  func() { told = append(told, "back") },
			OnError:      func(e *ServerError) { told = append(told, fmt.Sprint(e.Code)) },
		})
		ctx := t.Context()
		answer := func(op wire.Op, m wire.Header, rid *uint64, name string) {
			s.expect(op, m)
			s.ok(*rid, name)
		}
		do := func(op wire.Op, m wire.Header, rid *uint64, name string, call func() error) {
			t.Helper()
			done := make(chan error)
			go func() { done <- call() }()
			answer(op, m, rid, name)
			must(t, <-done)
		}
		var de wire.DeclareExchange
		do(wire.OpDeclareExchange, &de, &de.RID, "", func() error {
			return c.DeclareExchange(ctx, "e", "topic", ExchangeOptions{Transient: true, Args: map[string]any{"alternate-exchange": "a"}})
		})
		var dq wire.DeclareQueue
		var q Queue
		do(wire.OpDeclareQueue, &dq, &dq.RID, "amq.gen-1", func() (err error) {
			q, err = c.DeclareQueue(ctx, "", Temporary())
			return err
		})
		for _, name := range []string{"passive", "named", "gone"} {
			do(wire.OpDeclareQueue, &dq, &dq.RID, name, func() error {
				_, err := c.DeclareQueue(ctx, name, QueueOptions{Passive: name == "passive"})
				return err
			})
		}
		var b wire.Bind
		bind := func(queue, key string) {
			do(wire.OpBind, &b, &b.RID, "", func() error { return c.BindQueue(ctx, queue, "e", key, map[string]any{"x": 1}) })
		}
		bind(q.Name, "k")
		bind("gone", "k")
		bind(q.Name, "unbound")
		do(wire.OpUnbind, &b, &b.RID, "", func() error { return c.UnbindQueue(ctx, q.Name, "e", "unbound", map[string]any{"x": 1}) })
		do(wire.OpBind, &b, &b.RID, "", func() error { return c.BindExchange(ctx, "e", "amq.fanout", "", nil) })
		var del wire.DeleteQueue
		do(wire.OpDeleteQueue, &del, &del.RID, "", func() error {
			_, err := c.DeleteQueue(ctx, "gone", DeleteOptions{})
			return err
		})
		var sub *Subscription
		var su wire.Subscribe
		do(wire.OpSubscribe, &su, &su.RID, "", func() (err error) {
			sub, err = c.Subscribe(ctx, q.Name, SubscribeOptions{Prefetch: 16, Tag: "t"})
			return err
		})
		s.deliver(su.Sub, 1, false, "handed out")
		s.deliver(su.Sub, 2, false, "received")
		d, err := sub.Next(ctx)
		must(t, err)
		p := c.NewPublisher(PublisherOptions{})
		for i := range 4 {
			must(t, p.Publish(ctx, Message{Exchange: "e", Key: "k", Body: fmt.Append(nil, "m", i), Mandatory: true, Headers: map[string]any{"h": i}}))
			s.publish()
		}
		nack := wire.Confirm{Seq: 3, Nack: true, Code: 506, Msg: []byte("full")}
		s.write(wire.End(nack.AppendTo(wire.Begin(nil, wire.OpConfirm)), 0, 0))
		returned := wire.Return{Seq: 2, Code: 312}
		s.write(wire.End(returned.AppendTo(wire.Begin(nil, wire.OpReturn)), 0, 0))
		s.confirm(1)
		purged := make(chan int)
		go func() {
			n, err := c.PurgeQueue(ctx, q.Name)
			must(t, err)
			purged <- n
		}()
		s.expect(wire.OpPurgeQueue, nil)
		s.write(wire.Append(nil, wire.OpFlow, &wire.Flow{Pause: true}))
		synctest.Wait()

		next := l.script()
		s.c.Close()
		s = next
		s.login()
		s.expect(wire.OpDeclareExchange, &de)
		if de.Name != "e" || de.Durable || de.Type != "topic" || len(de.Args) == 0 {
			t.Errorf("%+v", de)
		}
		rid := de.RID
		dq = wire.DeclareQueue{}
		s.expect(wire.OpDeclareQueue, &dq)
		if dq.Name != "" || !dq.Exclusive || !dq.AutoDelete || dq.Durable {
			t.Errorf("%+v", dq)
		}
		temporary := dq.RID
		dq = wire.DeclareQueue{}
		s.expect(wire.OpDeclareQueue, &dq)
		if dq.Name != "named" || !dq.Durable {
			t.Errorf("%+v", dq)
		}
		s.ok(rid, "")
		s.ok(temporary, "amq.gen-2")
		s.write(wire.AppendEmpty(nil, wire.OpPing))
		s.expect(wire.OpPong, nil)
		s.write(wire.Append(nil, wire.OpError, &wire.ServerError{RID: dq.RID, Code: 406}))
		b = wire.Bind{}
		s.expect(wire.OpBind, &b)
		if b.Queue != "amq.gen-2" || b.Key != "k" || b.Exchange != "e" || len(b.Args) == 0 {
			t.Errorf("%+v", b)
		}
		rid = b.RID
		b = wire.Bind{}
		s.expect(wire.OpBind, &b)
		if b.ToExchange != "e" || b.Exchange != "amq.fanout" {
			t.Errorf("%+v", b)
		}
		old := su.Sub
		su = wire.Subscribe{}
		s.expect(wire.OpSubscribe, &su)
		if su.Sub != old || su.Queue != "amq.gen-2" || su.Credit != 16 || su.Tag != "t" {
			t.Errorf("%+v", su)
		}
		var purge wire.PurgeQueue
		s.expect(wire.OpPurgeQueue, &purge)
		if purge.Name != "amq.gen-2" {
			t.Errorf("%+v", purge)
		}
		for i, want := range []string{"m1", "m3"} { // m0 is confirmed, m2 refused
			if seq, body := s.publish(); seq != uint64(i+1) || body != want {
				t.Errorf("publish %d of %q, want %d of %q", seq, body, i+1, want)
			}
		}
		s.write(wire.Append(nil, wire.OpError, &wire.ServerError{RID: rid, Code: 404}))
		s.ok(b.RID, "")
		s.ok(su.RID, "")
		s.write(wire.Append(nil, wire.OpOK, &wire.OK{RID: purge.RID, Messages: 7}))
		if n := <-purged; n != 7 {
			t.Errorf("purged %d", n)
		}
		s.deliver(su.Sub, 1, true, "handed out")
		again, err := sub.Next(ctx)
		must(t, err)
		if !again.Redelivered || again.Tag != 3 || sub.Queue() != "amq.gen-2" {
			t.Errorf("%+v of %s", again, sub.Queue())
		}
		must(t, d.Ack()) // nothing is sent
		must(t, c.Ack(d.Tag, true))
		must(t, again.Ack())
		var settle wire.Settle
		must(t, settle.Decode(s.expect(wire.OpAck, nil).Header))
		if settle.Tag != 1 {
			t.Errorf("acked %d", settle.Tag)
		}
		s.confirm(2)
		if e, ok := errors.AsType[*NackedError](p.Flush(ctx)); !ok || e.Code != 506 {
			t.Errorf("%v", e)
		}
		if want := []string{"lost: EOF", "406", "back", "404"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
		if c.kept.bytes != 0 || len(c.calls) != 0 || c.unacked.live != 0 {
			t.Errorf("left: %d bytes, %d calls, %d deliveries", c.kept.bytes, len(c.calls), c.unacked.live)
		}
		go func() {
			s.expect(wire.OpClose, nil)
			s.write(wire.Append(nil, wire.OpClose, &wire.Close{Code: 200}))
		}()
		must(t, c.Close())
	})
}

// An exclusive queue that is still in use is another attempt, a few times.
func TestReconnectLocked(t *testing.T) {
	for _, times := range []int{2, maxLocked + 1} {
		synctest.Test(t, func(t *testing.T) {
			var reported atomic.Int32
			c, l, first := connected(t, Config{OnError: func(e *ServerError) { reported.Store(int32(e.Code)) }})
			go func() {
				var m wire.DeclareQueue
				first.expect(wire.OpDeclareQueue, &m)
				first.ok(m.RID, "q")
				first.c.Close()
			}()
			_, err := c.DeclareQueue(t.Context(), "q", QueueOptions{Exclusive: true})
			must(t, err)
			var s *script
			for range times {
				s = l.script()
				s.login()
				var m wire.DeclareQueue
				s.expect(wire.OpDeclareQueue, &m)
				s.write(wire.Append(nil, wire.OpError, &wire.ServerError{RID: m.RID, Code: 405}))
			}
			if times > maxLocked { // it goes on without
				synctest.Wait()
				if reported.Load() != 405 {
					t.Errorf("reported %d", reported.Load())
				}
			} else {
				s = l.script()
				s.login()
				var m wire.DeclareQueue
				s.expect(wire.OpDeclareQueue, &m)
				s.ok(m.RID, "q")
			}
			go func() {
				s.publish()
				s.confirm(1)
				s.c.Close()
			}()
			must(t, c.Publish(t.Context(), Message{}))
			must(t, c.Close())
		})
	}
}

// A subscription that cannot be resumed ends, with the broker's reason.
func TestReconnectWithoutQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, s := connected(t, Config{})
		go func() {
			var m wire.Subscribe
			s.expect(wire.OpSubscribe, &m)
			s.ok(m.RID, "")
			s.c.Close()
		}()
		sub, err := c.Subscribe(t.Context(), "q", SubscribeOptions{})
		must(t, err)
		s2 := l.script()
		go func() {
			s2.login()
			var m wire.Subscribe
			s2.expect(wire.OpSubscribe, &m)
			s2.write(wire.Append(nil, wire.OpError, &wire.ServerError{RID: m.RID, Code: 404, Msg: "NOT_FOUND - gone"}))
		}()
		_, err = sub.Next(t.Context())
		if e, ok := errors.AsType[*CancelledError](err); !ok || e.Code != 404 {
			t.Errorf("%v", err)
		}
		s2.c.Close()
		must(t, c.Close())
	})
}

// A broker that stops before it has answered the subscriptions refused nothing: they are resumed again.
func TestReconnectTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, first := connected(t, Config{OnError: func(e *ServerError) { t.Error(e) }})
		go func() {
			var b wire.Bind
			first.expect(wire.OpBind, &b)
			first.ok(b.RID, "")
			var m wire.Subscribe
			first.expect(wire.OpSubscribe, &m)
			first.ok(m.RID, "")
			first.c.Close()
		}()
		must(t, c.BindQueue(t.Context(), "q", "e", "", nil))
		sub, err := c.Subscribe(t.Context(), "q", SubscribeOptions{})
		must(t, err)
		s := l.script()
		s.login()
		s.expect(wire.OpBind, nil)
		s.expect(wire.OpSubscribe, nil)
		s.write(wire.Append(nil, wire.OpClose, &wire.Close{Code: 320, Msg: "CONNECTION_FORCED - shutdown"}))
		s.expect(wire.OpClose, nil)
		s = l.script()
		s.login()
		var b wire.Bind
		s.expect(wire.OpBind, &b)
		var m wire.Subscribe
		s.expect(wire.OpSubscribe, &m)
		s.ok(b.RID, "")
		s.ok(m.RID, "")
		s.deliver(m.Sub, 1, false, "x")
		if d, err := sub.Next(t.Context()); err != nil || string(d.Body) != "x" {
			t.Errorf("%v, %v", d, err)
		}
		s.c.Close()
		must(t, c.Close())
	})
}

// Close while there is no connection, and while one is being made.
func TestCloseDuringReconnect(t *testing.T) {
	for _, dialing := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c, l, s := connected(t, Config{})
			if dialing {
				silent := l.script()
				defer func() { silent.c.Close() }()
			}
			s.c.Close()
			errs := make(chan error)
			go func() { errs <- c.Publish(t.Context(), Message{}) }()
			time.Sleep(time.Second)
			must(t, c.Close())
			if err := <-errs; err != ErrClosed {
				t.Errorf("%v", err)
			}
			if err := c.Publish(t.Context(), Message{}); err != ErrClosed {
				t.Errorf("%v", err)
			}
		})
	}
}

// Handle passes over what it had received when the connection was lost; with NoAck nobody else has it.
func TestReconnectWhileHandling(t *testing.T) {
	for _, noAck := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c, l, s := connected(t, Config{})
			go func() {
				var m wire.Subscribe
				s.expect(wire.OpSubscribe, &m)
				s.ok(m.RID, "")
				b := []byte(nil)
				for tag := range uint64(3) { // in one write: one batch
					start := len(b)
					d := wire.Deliver{Sub: m.Sub, Tag: tag + 1}
					b = append(wire.End(d.AppendTo(wire.Begin(b, wire.OpDeliver)), start, 1), byte('1'+tag))
				}
				s.write(b)
			}()
			sub, err := c.Subscribe(t.Context(), "q", SubscribeOptions{NoAck: noAck, Prefetch: 4})
			must(t, err)
			s2 := l.script()
			go func() {
				s2.login()
				var m wire.Subscribe
				s2.expect(wire.OpSubscribe, &m)
				s2.ok(m.RID, "")
				s2.deliver(m.Sub, 1, true, "4")
			}()
			var got []string
			enough := errors.New("enough")
			err = sub.Handle(t.Context(), func(d *Delivery) error {
				got = append(got, string(d.Body))
				if len(got) == 1 {
					s.c.Close()
					synctest.Wait() // until the loss is noticed
				}
				if string(d.Body) == "4" {
					return enough
				}
				return nil
			})
			if err != enough {
				t.Errorf("%v", err)
			}
			want := []string{"1", "4"}
			if noAck {
				want = []string{"1", "2", "3", "4"}
			}
			if !slices.Equal(got, want) {
				t.Errorf("handled %q, want %q", got, want)
			}
			s2.c.Close()
			must(t, c.Close())
		})
	}
}

// cutter is a proxy that cuts connections after so many bytes.
type cutter struct {
	to string
	ln net.Listener
	wg sync.WaitGroup

	mu   sync.Mutex
	rnd  *rand.Rand // guarded by mu
	calm bool       // guarded by mu: nothing is cut any more
}

func newCutter(t testing.TB, to string, seed uint64) *cutter {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &cutter{to: to, ln: ln, rnd: rand.New(rand.NewPCG(seed, 0))}
	p.wg.Go(func() {
		for {
			a, err := ln.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				a.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
				p.wg.Go(func() {
					io.Copy(pair[0], io.LimitReader(pair[1], p.some()))
					a.Close()
					b.Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		ln.Close()
		p.wg.Wait()
	})
	return p
}

// some is how many bytes one direction of a connection may carry.
func (p *cutter) some() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calm {
		return 1 << 60
	}
	return 500 + p.rnd.Int64N(30000)
}

// However often the connection is cut, in the middle of frames too: all that is confirmed comes, in order
// but for what comes again.
func TestReconnectUnderLoad(t *testing.T) {
	const messages = 3000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	url, _ := startServer(t)
	cfg, err := ParseURL(url)
	must(t, err)
	proxy := newCutter(t, cfg.Addr, seed)
	cfg.Addr = proxy.ln.Addr().String()
	cfg.Reconnect = Reconnect{MinDelay: time.Millisecond, MaxDelay: 5 * time.Millisecond}
	var losses atomic.Int32
	cfg.OnDisconnect = func(error) { losses.Add(1) }
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dial := func() *Client {
		for {
			c, err := cfg.Dial(ctx)
			if err == nil {
				t.Cleanup(func() { c.Close() })
				return c
			}
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
	}
	pub, con := dial(), dial()
	must(t, con.DeclareExchange(ctx, "e", "fanout", ExchangeOptions{}))
	_, err = con.DeclareQueue(ctx, "q", QueueOptions{})
	must(t, err)
	must(t, con.BindQueue(ctx, "q", "e", "", nil))
	sub, err := con.Subscribe(ctx, "q", SubscribeOptions{Prefetch: 50})
	must(t, err)
	go func() {
		refused := 0 // by the reading goroutine, then behind Flush
		p := pub.NewPublisher(PublisherOptions{Window: 200, OnResult: func(n uint64, err error) {
			if err != nil {
				refused++
			}
		}})
		var body [8]byte
		for i := range uint64(messages) {
			binary.BigEndian.PutUint64(body[:], i)
			if err := p.Publish(ctx, Message{Exchange: "e", Body: body[:]}); err != nil {
				t.Error(err)
				return
			}
		}
		if err := p.Flush(ctx); err != nil || refused > 0 {
			t.Errorf("%v, %d refused", err, refused)
		}
		proxy.mu.Lock()
		proxy.calm = true
		proxy.mu.Unlock()
		p.Publish(ctx, Message{Exchange: "e", Body: []byte("last one")})
	}()
	seen := make([]bool, messages)
	next := uint64(0) // behind the furthest one that came
	// The broker may know a new connection before it knows that the old one is lost. What was on its way to the
	// consumer over that one comes back later, as redelivered; and the publisher may have sent it again meanwhile.
	again := make(map[uint64]bool)
	ended, last := false, errors.New("last one")
	err = sub.Handle(ctx, func(d *Delivery) error {
		if string(d.Body) == "last one" {
			ended = true
		} else {
			i := binary.BigEndian.Uint64(d.Body)
			if d.Redelivered {
				delete(again, i)
			} else if i < next && !seen[i] {
				again[i] = true
			}
			seen[i], next = true, max(next, i+1)
		}
		if ended && len(again) == 0 {
			return last
		}
		return d.Ack()
	})
	if len(again) > 0 {
		t.Errorf("behind later ones came %v, and no earlier copies of them", slices.Sorted(maps.Keys(again)))
	}
	if err != last {
		t.Fatal(err)
	}
	if i := slices.Index(seen, false); i >= 0 {
		t.Errorf("%d is lost", i)
	}
	if losses.Load() < 10 {
		t.Errorf("only %d connections were lost", losses.Load())
	}
}
