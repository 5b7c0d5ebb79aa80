package fire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firemq/firemq"
	wire "github.com/firemq/firemq/frames/fmq1"
)

// startServer starts a broker in memory and gives its URL.
func startServer(t testing.TB) (url string, stop func()) {
	t.Helper()
	srv, err := firemq.Start(firemq.Ephemeral(), firemq.RandomPorts())
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() { srv.Close() })
	t.Cleanup(stop)
	return srv.FireURL(), stop
}

func dial(t testing.TB, url string) *Client {
	t.Helper()
	c, err := Dial(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestParseURL(t *testing.T) {
	for _, c := range []struct{ url, addr, user, pass, vhost string }{
		{"fire://localhost", "localhost:5673", "guest", "guest", "/"},
		{"fire://localhost/", "localhost:5673", "guest", "guest", "/"},
		{"fire://localhost/%2F", "localhost:5673", "guest", "guest", "/"},
		{"fire://a:b@h:1/dev", "h:1", "a", "b", "dev"},
		{"fire://a%40b:c%3Ad%2F@h/a%20b", "h:5673", "a@b", "c:d/", "a b"},
		{"fire://h/a/b", "h:5673", "guest", "guest", "a/b"},
		{"fire://h/%2Fa", "h:5673", "guest", "guest", "/a"},
		{"fire://[::1]:7/x", "[::1]:7", "guest", "guest", "x"},
		{"fire://u@h", "h:5673", "u", "guest", "/"},
		{"fires://h", "h:5674", "guest", "guest", "/"},
		{"fires://h:1/dev", "h:1", "guest", "guest", "dev"},
		{"ws://h", "h:15672", "guest", "guest", "/"},
		{"ws://u:p@h:1/mq?vhost=a%2Fb", "h:1", "u", "p", "a/b"},
		{"wss://h/fire", "h:15671", "guest", "guest", "/"},
	} {
		got, err := ParseURL(c.url)
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		if got.Addr != c.addr || got.User != c.user || got.Password != c.pass || got.VHost != c.vhost {
			t.Errorf("%s: %+v", c.url, got)
		}
	}
	for url, want := range map[string]string{
		"":                        "must start with fire://",
		"localhost:5673":          "must start with fire://",
		"amqp://localhost":        "needs fire://",
		"http://localhost":        "must start with fire://",
		"fires://localhost?x":     "no query",
		"ws://localhost/?v=1":     "one vhost=name",
		"ws://h/?vhost=a&vhost=b": "one vhost=name",
		"wss://h/fire#x":          "no fragment",
		"fire://":                 "no host",
		"fire:///vhost":           "no host",
		"fire:localhost":          "no host",
		"fire://h:0":              "port",
		"fire://h:65536":          "port",
		"fire://u:secret@h:port":  "percent-encode",
		"fire://h/x?vhost=y":      "no query",
		"fire://h/x#y":            "no fragment",
		"fire://h/%zz":            "cannot be read",
	} {
		_, err := ParseURL(url)
		var e *InvalidError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error repeats the password: %v", url, err)
		}
	}
}

func TestTopology(t *testing.T) {
	url, _ := startServer(t)
	c, ctx := dial(t, url), t.Context()
	if !strings.HasPrefix(c.Server(), "firemq ") || c.ConnID() == "" {
		t.Errorf("%q %q", c.Server(), c.ConnID())
	}
	q, err := c.DeclareQueue(ctx, "q", QueueOptions{Args: map[string]any{"x-max-length": 100}})
	must(t, err)
	if q != (Queue{Name: "q"}) {
		t.Errorf("%+v", q)
	}
	_, err = c.DeclareQueue(ctx, "q", QueueOptions{Transient: true})
	var e *ServerError
	if !errors.As(err, &e) || e.Code != 406 || e.Fatal || !strings.Contains(e.Msg, "inequivalent arg 'durable'") {
		t.Errorf("declared differently: %v", err)
	}
	a, err := c.DeclareQueue(ctx, "", Temporary())
	must(t, err)
	if !strings.HasPrefix(a.Name, "amq.gen-") {
		t.Errorf("%+v", a)
	}
	must(t, c.DeclareExchange(ctx, "x", "topic", ExchangeOptions{}))
	must(t, c.DeclareExchange(ctx, "y", "fanout", ExchangeOptions{}))
	must(t, c.BindExchange(ctx, "y", "x", "#", nil))
	must(t, c.BindQueue(ctx, "q", "y", "", nil))
	must(t, c.Publish(ctx, Message{Exchange: "x", Key: "a.b", Mandatory: true, Body: []byte("1")}))
	must(t, c.UnbindQueue(ctx, "q", "y", "", nil))
	if err := c.Publish(ctx, Message{Exchange: "x", Key: "a.b", Mandatory: true}); !errors.Is(err, ErrUnroutable) {
		t.Errorf("unroutable: %v", err)
	}
	must(t, c.UnbindExchange(ctx, "y", "x", "#", nil))
	if n, err := c.PurgeQueue(ctx, "q"); n != 1 || err != nil {
		t.Errorf("purged %d, %v", n, err)
	}
	must(t, c.Publish(ctx, Message{Key: "q"}))
	if _, err := c.DeleteQueue(ctx, "q", DeleteOptions{IfEmpty: true}); !errors.As(err, &e) || e.Code != 406 {
		t.Errorf("deleted although not empty: %v", err)
	}
	if n, err := c.DeleteQueue(ctx, "q", DeleteOptions{}); n != 1 || err != nil {
		t.Errorf("deleted with %d, %v", n, err)
	}
	must(t, c.DeleteExchange(ctx, "x", true))
	if err := c.BindQueue(ctx, "none", "y", "", nil); !errors.As(err, &e) || e.Code != 404 {
		t.Errorf("bound a missing queue: %v", err)
	}
	var inv *InvalidError
	if _, err := c.DeclareQueue(ctx, "z", QueueOptions{Args: map[string]any{"x": struct{}{}}}); !errors.As(err, &inv) {
		t.Errorf("arguments of no type: %v", err)
	}
}

func TestPublishGet(t *testing.T) {
	url, _ := startServer(t)
	c, ctx := dial(t, url), t.Context()
	_, err := c.DeclareQueue(ctx, "q", QueueOptions{})
	must(t, err)
	props := Properties{
		ContentType: "text/plain", ContentEncoding: "gzip", CorrelationID: "c", ReplyTo: "r", MessageID: "m", Type: "t", UserID: "guest", AppID: "a",
		Expiration: new(time.Minute), Priority: new(uint8(0)), Timestamp: time.Unix(1700000000, 0),
	}
	headers := map[string]any{"s": "x", "i": int64(-1) << 40, "f": 1.5, "b": true, "n": nil, "l": []any{int64(1), "two"}, "m": map[string]any{"k": []byte{0, 255}}}
	body := bytes.Repeat([]byte{0, 1, 2, 255}, 1<<20)
	must(t, c.Publish(ctx, Message{Key: "q", Body: body, Properties: props, Headers: headers}))
	must(t, c.Publish(ctx, Message{Key: "q"}))
	d, ok, err := c.Get(ctx, "q", GetOptions{})
	must(t, err)
	if !ok {
		t.Fatal("no message")
	}
	if !bytes.Equal(d.Body, body) || d.Remaining != 1 || d.Redelivered || d.Key() != "q" || d.Exchange() != "" {
		t.Errorf("ok=%v %d bytes, remaining %d", ok, len(d.Body), d.Remaining)
	}
	if got, err := d.Properties(); err != nil || !reflect.DeepEqual(got, props) {
		t.Errorf("properties %+v, %v", got, err)
	}
	if got, err := d.Headers(); err != nil || !reflect.DeepEqual(got, headers) {
		t.Errorf("headers %#v, %v", got, err)
	}
	must(t, d.Nack(true))
	d, _, err = c.Get(ctx, "q", GetOptions{})
	must(t, err)
	if !d.Redelivered {
		t.Error("not redelivered")
	}
	must(t, d.Ack())
	must(t, d.Ack()) // does nothing
	d, ok, err = c.Get(ctx, "q", GetOptions{NoAck: true})
	if err != nil || !ok || len(d.Body) != 0 {
		t.Errorf("%v %v", ok, err)
	}
	if got, err := d.Properties(); err != nil || got != (Properties{}) {
		t.Errorf("properties %+v, %v", got, err)
	}
	if _, ok, err := c.Get(ctx, "q", GetOptions{}); ok || err != nil {
		t.Errorf("empty queue: %v %v", ok, err)
	}
}

func TestPublishErrors(t *testing.T) {
	url, _ := startServer(t)
	c, ctx := dial(t, url), t.Context()
	var nack *NackedError
	if err := c.Publish(ctx, Message{Exchange: "none"}); !errors.As(err, &nack) || nack.Code != 404 {
		t.Errorf("missing exchange: %v", err)
	}
	_, err := c.DeclareQueue(ctx, "full", QueueOptions{Args: map[string]any{"x-max-length": 1, "x-overflow": "reject-publish"}})
	must(t, err)
	must(t, c.Publish(ctx, Message{Key: "full"}))
	if err := c.Publish(ctx, Message{Key: "full"}); !errors.As(err, &nack) || nack.Code != 506 || nack.Msg != "RESOURCE_ERROR - queue 'full' in vhost '/' is full" {
		t.Errorf("full queue: %v", err)
	}
	var inv *InvalidError
	for name, m := range map[string]Message{
		"large":    {Key: "q", Body: make([]byte, 17<<20)},
		"key":      {Key: strings.Repeat("k", 256)},
		"property": {Key: "q", Properties: Properties{Type: strings.Repeat("k", 256)}},
		"header":   {Key: "q", Headers: map[string]any{"x": make(chan int)}},
		"ttl":      {Key: "q", Properties: Properties{Expiration: new(-time.Second)}},
		"headers":  {Key: "q", Headers: map[string]any{"x": strings.Repeat("k", 200000)}},
	} {
		if err := c.Publish(ctx, m); !errors.As(err, &inv) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, c.Publish(ctx, Message{Key: "nobody"})) // and the connection is as before

	// A publisher reports the first failure, and each through its callback.
	var mu sync.Mutex
	got := map[uint64]error{}
	p := c.NewPublisher(PublisherOptions{Window: 3, OnResult: func(n uint64, err error) { mu.Lock(); got[n] = err; mu.Unlock() }})
	for _, m := range []Message{{Key: "nobody"}, {Exchange: "none"}, {Key: "nobody", Mandatory: true}, {Key: "full"}, {Key: "nobody"}} {
		must(t, p.Publish(ctx, m))
	}
	if err := p.Flush(ctx); err == nil {
		t.Error("Flush reports nothing")
	}
	must(t, p.Flush(ctx))
	c.Close() // the last callbacks may come after Flush
	if len(got) != 5 || got[1] != nil || !errors.As(got[2], &nack) || nack.Code != 404 || !errors.Is(got[3], ErrUnroutable) ||
		!errors.As(got[4], &nack) || nack.Code != 506 || got[5] != nil {
		t.Errorf("results %v", got)
	}
	if err := p.Publish(ctx, Message{}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := c.Publish(ctx, Message{}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := c.DeclareQueue(ctx, "", QueueOptions{}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestPipeline(t *testing.T) {
	url, _ := startServer(t)
	c, ctx := dial(t, url), t.Context()
	_, err := c.DeclareQueue(ctx, "q", QueueOptions{})
	must(t, err)
	const count = 20000
	var results atomic.Int64
	p := c.NewPublisher(PublisherOptions{Window: 500, OnResult: func(n uint64, err error) {
		if err != nil || n != uint64(results.Add(1)) {
			t.Errorf("result %d: %v", n, err)
		}
	}})
	for i := range count {
		must(t, p.Publish(ctx, Message{Key: "q", Body: fmt.Appendf(nil, "body-%d", i)}))
	}
	must(t, p.Flush(ctx))
	if p.InFlight() != 0 {
		t.Errorf("%d in flight", p.InFlight())
	}
	sub, err := c.Subscribe(ctx, "q", SubscribeOptions{Prefetch: 300})
	must(t, err)
	n := 0
	enough := errors.New("enough")
	err = sub.Handle(ctx, func(d *Delivery) error {
		if want := fmt.Sprintf("body-%d", n); string(d.Body) != want || d.Key() != "q" {
			return fmt.Errorf("got %q, want %q", d.Body, want)
		}
		n++
		if err := d.Ack(); err != nil {
			return err
		}
		if n == count/2 {
			return enough
		}
		return nil
	})
	if err != enough {
		t.Fatal(err)
	}
	for ; n < count; n++ { // the rest one by one
		d, err := sub.Next(ctx)
		must(t, err)
		if want := fmt.Sprintf("body-%d", n); string(d.Body) != want {
			t.Fatalf("got %q, want %q", d.Body, want)
		}
		must(t, d.Ack())
	}
	must(t, sub.Unsubscribe(ctx))
	if _, err := sub.Next(ctx); !errors.Is(err, ErrUnsubscribed) {
		t.Errorf("after Unsubscribe: %v", err)
	}
	if q, err := c.DeclareQueue(ctx, "q", QueueOptions{Passive: true}); err != nil || q.Messages != 0 || q.Consumers != 0 {
		t.Errorf("%+v, %v", q, err)
	}
	c.Close()
	if n := results.Load(); n != count {
		t.Errorf("%d results", n)
	}
}

// TestPrefetch: never more than prefetch unacknowledged, topped up by parts; with NoAck by what was received.
func TestPrefetch(t *testing.T) {
	url, _ := startServer(t)
	c, ctx := dial(t, url), t.Context()
	_, err := c.DeclareQueue(ctx, "q", QueueOptions{})
	must(t, err)
	for range 30 {
		must(t, c.Publish(ctx, Message{Key: "q"}))
	}
	sub, err := c.Subscribe(ctx, "q", SubscribeOptions{Prefetch: 4})
	must(t, err)
	var held []*Delivery
	for range 4 {
		d, err := sub.Next(ctx)
		must(t, err)
		held = append(held, d)
	}
	// A round trip later nothing else has come.
	if q, err := c.DeclareQueue(ctx, "q", QueueOptions{Passive: true}); err != nil || q.Messages != 26 {
		t.Errorf("%+v, %v", q, err)
	}
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if _, err := sub.Next(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a fifth delivery: %v", err)
	}
	must(t, held[0].Ack())
	must(t, held[1].Reject())
	for range 2 {
		_, err := sub.Next(ctx)
		must(t, err)
	}
	must(t, held[3].AckUpTo())
	must(t, held[2].Ack()) // does nothing
	last, err := sub.Next(ctx)
	must(t, err)
	if last.Tag != 7 {
		t.Errorf("tag %d", last.Tag)
	}
	must(t, sub.Unsubscribe(ctx))
	must(t, c.Ack(0, true))
	if q, err := c.DeclareQueue(ctx, "q", QueueOptions{Passive: true}); err != nil || q.Messages != 23 {
		t.Errorf("what was not handed out is back: %+v, %v", q, err)
	}
	sub, err = c.Subscribe(ctx, "q", SubscribeOptions{Prefetch: 3, NoAck: true})
	must(t, err)
	for range 23 {
		d, err := sub.Next(ctx)
		must(t, err)
		must(t, d.Ack())
	}
}

func TestSubscriptionErrors(t *testing.T) {
	url, _ := startServer(t)
	ctx := t.Context()
	cfg, err := ParseURL(url)
	must(t, err)
	errs := make(chan *ServerError, 10)
	cfg.OnError = func(e *ServerError) { errs <- e }
	c, err := cfg.Dial(ctx)
	must(t, err)
	defer c.Close()
	other := dial(t, url)
	var e *ServerError
	if _, err := c.Subscribe(ctx, "none", SubscribeOptions{}); !errors.As(err, &e) || e.Code != 404 {
		t.Errorf("missing queue: %v", err)
	}
	_, err = c.DeclareQueue(ctx, "q", QueueOptions{})
	must(t, err)
	sub, err := c.Subscribe(ctx, "q", SubscribeOptions{Exclusive: true})
	must(t, err)
	if _, err := other.Subscribe(ctx, "q", SubscribeOptions{}); !errors.As(err, &e) || e.Code != 405 {
		t.Errorf("exclusive: %v", err)
	}
	must(t, c.Ack(99, false))
	if e := <-errs; e.Code != 406 || e.Fatal {
		t.Errorf("unknown tag: %v", e)
	}
	_, err = other.DeleteQueue(ctx, "q", DeleteOptions{})
	must(t, err)
	var cancelled *CancelledError
	if _, err := sub.Next(ctx); !errors.As(err, &cancelled) || cancelled.Code != 404 {
		t.Errorf("queue deleted: %v", err)
	}
	if err := sub.Handle(ctx, func(*Delivery) error { return nil }); !errors.As(err, &cancelled) {
		t.Errorf("queue deleted: %v", err)
	}
	if len(c.subs) != 0 || len(other.subs) != 0 || len(c.calls) != 0 {
		t.Error("something is left")
	}
}

func TestConnectionLost(t *testing.T) {
	url, _ := startServer(t)
	cfg, err := ParseURL(url)
	must(t, err)
	cfg.Reconnect.Off = true
	var conn net.Conn
	cfg.DialContext = func(ctx context.Context, network, addr string) (_ net.Conn, err error) {
		conn, err = net.Dial(network, addr)
		return conn, err
	}
	ctx := t.Context()
	c, err := cfg.Dial(ctx)
	must(t, err)
	_, err = c.DeclareQueue(ctx, "q", QueueOptions{})
	must(t, err)
	sub, err := c.Subscribe(ctx, "q", SubscribeOptions{})
	must(t, err)
	next := make(chan error)
	go func() {
		_, err := sub.Next(ctx)
		next <- err
	}()
	conn.Close()
	if err := <-next; !errors.Is(err, ErrClosed) {
		t.Errorf("Next: %v", err)
	}
	<-c.Done()
	if !errors.Is(c.Err(), ErrClosed) || !errors.Is(c.Publish(ctx, Message{}), ErrClosed) {
		t.Errorf("%v", c.Err())
	}
	must(t, c.Close())
}

func TestServerCloses(t *testing.T) {
	url, stop := startServer(t)
	cfg, err := ParseURL(url)
	must(t, err)
	cfg.Reconnect.Off = true
	c, err := cfg.Dial(t.Context())
	must(t, err)
	defer c.Close()
	stop()
	<-c.Done()
	var e *ServerError
	if err := c.Err(); !errors.Is(err, ErrClosed) || !errors.As(err, &e) || e.Code != 320 || !e.Fatal {
		t.Errorf("%v", err)
	}
}

func TestLoginErrors(t *testing.T) {
	url, _ := startServer(t)
	var e *ServerError
	if _, err := Dial(t.Context(), strings.Replace(url, "guest:guest@", "guest:wrong@", 1)); !errors.As(err, &e) || e.Code != 403 || !e.Fatal {
		t.Errorf("password: %v", err)
	}
	if _, err := Dial(t.Context(), strings.TrimSuffix(url, "/")+"/nowhere"); !errors.As(err, &e) || e.Code != 530 || !e.Fatal {
		t.Errorf("vhost: %v", err)
	}
}

func TestDialErrors(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	// Nobody answers hello.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, "fire://"+ln.Addr().String()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	// Somebody else answers.
	conn, err := ln.Accept() // of the Dial above
	must(t, err)
	conn.Close()
	go func() {
		if conn, err := ln.Accept(); err == nil {
			io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
			conn.Close()
		}
	}()
	if _, err := Dial(t.Context(), "fire://"+ln.Addr().String()); err == nil || !strings.Contains(err.Error(), "FRAME_ERROR") {
		t.Errorf("%v", err)
	}
	ln.Close()
	if _, err := Dial(t.Context(), "fire://"+ln.Addr().String()); err == nil || !strings.Contains(err.Error(), "connect to") {
		t.Errorf("%v", err)
	}
}

// script is a server that a test plays by hand.
type script struct {
	t  testing.TB
	c  net.Conn
	br *bufio.Reader

	ready chan struct{} // of a lineup: closed when the client has connected
}

// scripted connects a client to a script whose welcome asks for heartbeat seconds. The two talk through
// a pipe, so that synctest's clock works.
func scripted(t testing.TB, heartbeat uint32, cfg Config) (*Client, *script) {
	t.Helper()
	a, b := net.Pipe()
	s := &script{t: t, c: b, br: bufio.NewReader(b)}
	go func() {
		s.br.Discard(len(wire.Preface))
		s.read()
		s.write(wire.Append(nil, wire.OpWelcome, &wire.Welcome{Ver: 1, Heartbeat: heartbeat, MaxFrame: wire.DefaultMaxFrame}))
	}()
	cfg.Addr, cfg.Reconnect.Off = "pipe", true
	cfg.DialContext = func(context.Context, string, string) (net.Conn, error) { return a, nil }
	c, err := cfg.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

func (s *script) read() wire.Frame {
	head, err := s.br.Peek(4)
	if err != nil {
		return wire.Frame{}
	}
	buf := make([]byte, 4+int(head[2])<<8+int(head[3]))
	if _, err := io.ReadFull(s.br, buf); err != nil {
		return wire.Frame{}
	}
	f, _, _, err := wire.Next(buf, wire.DefaultMaxFrame)
	if err != nil {
		s.t.Error(err)
	}
	return f
}

func (s *script) write(b []byte) { s.c.Write(b) }

func TestFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var flows []bool
		c, s := scripted(t, 0, Config{OnFlow: func(p bool) { flows = append(flows, p) }})
		s.write(wire.Append(nil, wire.OpFlow, &wire.Flow{Pause: true}))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Publish(ctx, Message{Key: "q"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("published during an alarm: %v", err)
		}
		done := make(chan error)
		go func() { done <- c.Publish(t.Context(), Message{Key: "q"}) }()
		synctest.Wait()
		s.write(wire.Append(nil, wire.OpFlow, &wire.Flow{}))
		if f := s.read(); f.Op != wire.OpPublish {
			t.Errorf("got %s", f.Op)
		}
		m := wire.Confirm{UpTo: 1}
		s.write(wire.End(m.AppendTo(wire.Begin(nil, wire.OpConfirm)), 0, 0))
		must(t, <-done)
		if len(flows) != 2 || !flows[0] || flows[1] {
			t.Errorf("%v", flows)
		}
		s.c.Close()
		<-c.Done()
		c.Close()
	})
}

func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := scripted(t, 10, Config{})
		start := time.Now()
		if f := s.read(); f.Op != wire.OpPing || time.Since(start) > 10*time.Second {
			t.Errorf("got %s after %s", f.Op, time.Since(start))
		}
		s.write(wire.AppendEmpty(nil, wire.OpPong))
		s.write(wire.AppendEmpty(nil, wire.OpPing))
		if f := s.read(); f.Op != wire.OpPong {
			t.Errorf("got %s", f.Op)
		}
		heard := time.Now()
		go func() {
			for s.read().Op != 0 {
			}
		}()
		<-c.Done()
		if d := time.Since(heard); d < 20*time.Second || d > 30*time.Second {
			t.Errorf("given up after %s", d)
		}
		if !errors.Is(c.Err(), ErrClosed) || !strings.Contains(c.Err().Error(), "heartbeat") {
			t.Errorf("%v", c.Err())
		}
		s.c.Close()
		c.Close()
	})
}

// TestAbandoned: calls whose context ends leave nothing behind that later answers could hurt.
func TestAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := scripted(t, 0, Config{})
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		frames := make(chan wire.Frame, 10)
		go func() {
			for {
				f := s.read()
				if f.Op == 0 {
					return
				}
				frames <- f
			}
		}()
		if err := c.Publish(short, Message{Key: "q"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		short, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Subscribe(short, "q", SubscribeOptions{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		short, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := c.Get(short, "q", GetOptions{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		for _, want := range []wire.Op{wire.OpPublish, wire.OpSubscribe, wire.OpUnsubscribe, wire.OpGet} {
			if f := <-frames; f.Op != want {
				t.Errorf("got %s, want %s", f.Op, want)
			}
		}
		m := wire.Confirm{UpTo: 1}
		s.write(wire.End(m.AppendTo(wire.Begin(nil, wire.OpConfirm)), 0, 0))
		s.write(wire.Append(nil, wire.OpOK, &wire.OK{RID: 1}))
		d := wire.Deliver{Sub: 1, Tag: 1}
		s.write(wire.End(d.AppendTo(wire.Begin(nil, wire.OpDeliver)), 0, 0))
		if f := <-frames; f.Op != wire.OpNack {
			t.Errorf("a delivery for nobody is answered by %s", f.Op)
		}
		s.write(wire.Append(nil, wire.OpOK, &wire.OK{RID: 2}))
		g := wire.GetOK{RID: 3, Tag: 2}
		s.write(wire.End(g.AppendTo(wire.Begin(nil, wire.OpGetOK)), 0, 0))
		if f := <-frames; f.Op != wire.OpNack {
			t.Errorf("a message for nobody is answered by %s", f.Op)
		}
		s.write(wire.AppendEmpty(nil, 0x7e)) // an op of a later version
		synctest.Wait()
		if c.Err() != nil || len(c.subs) != 0 || len(c.calls) != 0 || c.pending.n != 0 || c.unacked.live != 0 {
			t.Errorf("%v: %d subs, %d calls, %d publishes, %d deliveries", c.Err(), len(c.subs), len(c.calls), c.pending.n, c.unacked.live)
		}
		s.c.Close()
		<-c.Done()
		c.Close()
	})
}

func TestHotPathAllocates(t *testing.T) {
	c, stop := sink(t)
	defer stop()
	p := c.NewPublisher(PublisherOptions{Window: 1000})
	m := Message{Key: "orders", Body: make([]byte, 256), Properties: Properties{ContentType: "text/plain"}}
	publish := func() {
		if err := p.Publish(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	for range 20000 {
		publish()
	}
	if n := testing.AllocsPerRun(20000, publish); n > 0.1 && !raceEnabled {
		t.Errorf("%v allocations a publish, want 0", n)
	}
	must(t, p.Flush(t.Context()))
}

// sink is a client of a server that confirms everything at once.
func sink(t testing.TB) (*Client, func()) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		buf := make([]byte, 256<<10)
		w := 0
		welcome := false
		var p wire.Publish
		var out []byte
		for {
			n, err := conn.Read(buf[w:])
			if err != nil {
				return
			}
			w += n
			r := 0
			if !welcome && w >= 4 {
				r, welcome = 4, true
			}
			seq := uint64(0)
			for {
				f, n, _, err := wire.Next(buf[r:w], wire.DefaultMaxFrame)
				if err != nil || n == 0 {
					break
				}
				r += n
				switch f.Op {
				case wire.OpHello:
					conn.Write(wire.Append(nil, wire.OpWelcome, &wire.Welcome{Ver: 1, MaxFrame: wire.DefaultMaxFrame}))
				case wire.OpClose:
					conn.Write(wire.Append(nil, wire.OpClose, &wire.Close{Code: 200}))
				case wire.OpPublish:
					if p.Decode(f.Header) == nil {
						seq = p.Seq
					}
				}
			}
			w = copy(buf, buf[r:w])
			if seq > 0 {
				m := wire.Confirm{UpTo: seq}
				out = wire.End(m.AppendTo(wire.Begin(out[:0], wire.OpConfirm)), 0, 0)
				conn.Write(out)
			}
		}
	}()
	c := dial(t, "fire://"+ln.Addr().String())
	return c, func() { c.Close(); ln.Close() }
}

// BenchmarkPublisher is pipelined publishing of 256 bytes into a server that only confirms.
func BenchmarkPublisher(b *testing.B) {
	c, stop := sink(b)
	defer stop()
	p := c.NewPublisher(PublisherOptions{Window: 10000})
	m := Message{Key: "orders", Body: make([]byte, 256)}
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Publish(ctx, m); err != nil {
			b.Fatal(err)
		}
	}
	must(b, p.Flush(ctx))
}

// BenchmarkRoundTrip is one publish at a time.
func BenchmarkRoundTrip(b *testing.B) {
	c, stop := sink(b)
	defer stop()
	m := Message{Key: "orders", Body: make([]byte, 256)}
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		must(b, c.Publish(ctx, m))
	}
}

// BenchmarkHandle receives and acknowledges what a pipelined publisher sends through a broker.
func BenchmarkHandle(b *testing.B) {
	url, _ := startServer(b)
	c, d, ctx := dial(b, url), dial(b, url), context.Background()
	_, err := c.DeclareQueue(ctx, "q", QueueOptions{Transient: true})
	must(b, err)
	sub, err := d.Subscribe(ctx, "q", SubscribeOptions{Prefetch: 1000})
	must(b, err)
	p := c.NewPublisher(PublisherOptions{Window: 1000})
	m := Message{Key: "q", Body: make([]byte, 256), Transient: true}
	enough := errors.New("enough")
	b.ReportAllocs()
	b.ResetTimer()
	go func() {
		for range b.N {
			if p.Publish(ctx, m) != nil {
				return
			}
		}
	}()
	n := 0
	if err := sub.Handle(ctx, func(d *Delivery) error {
		d.Ack()
		if n++; n == b.N {
			return enough
		}
		return nil
	}); err != enough {
		b.Fatal(err)
	}
}

// A port for AMQP clients answers a hello with its own header.
func TestDialPortOfAMQP(t *testing.T) {
	srv, err := firemq.Start(firemq.Ephemeral(), firemq.RandomPorts())
	must(t, err)
	defer srv.Close()
	_, err = Dial(t.Context(), strings.Replace(srv.AMQPURL(), "amqp:", "fire:", 1))
	if !errors.Is(err, errNotFire) {
		t.Errorf("error %v", err)
	}
}
