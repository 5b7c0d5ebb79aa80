package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/internal/leak"
	"github.com/firemq/firemq/internal/transport"
	fire "github.com/firemq/firemq/sdk/go"
)

// patience bounds every wait of a test: reaching it is a failure.
const patience = 20 * time.Second

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// run starts a broker in memory. Stopped, at the latest at the end of the test, it must leave no goroutine
// and no buffer behind.
func run(t testing.TB, o Options) (_ *Server, stop func()) {
	t.Helper()
	none := leak.Check(t)
	o.Ephemeral = true
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		none()
	})
	t.Cleanup(stop)
	return s, stop
}

const free = "127.0.0.1:0"

// exchange publishes messages of many sizes and consumes them from the same connection.
func exchange(t *testing.T, c *fire.Client) {
	t.Helper()
	ctx := within(t)
	q, err := c.DeclareQueue(ctx, "", fire.Temporary())
	if err != nil {
		t.Fatal(err)
	}
	sub, err := c.Subscribe(ctx, q.Name, fire.SubscribeOptions{Prefetch: 100})
	if err != nil {
		t.Fatal(err)
	}
	p := c.NewPublisher(fire.PublisherOptions{})
	sizes := []int{0, 1, 60, 100, 125, 126, 4000, 5000, 65400, 65536, 200_000, 3_000_000}
	for range 200 {
		sizes = append(sizes, 300)
	}
	for i, size := range sizes {
		if err := p.Publish(ctx, fire.Message{Key: q.Name, Body: bytes.Repeat([]byte{byte(i)}, size)}); err != nil {
			t.Fatal(err)
		}
	}
	for i, size := range sizes {
		d, err := sub.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(d.Body, bytes.Repeat([]byte{byte(i)}, size)) {
			t.Fatalf("delivery %d is not the message of %d bytes", i, size)
		}
		if err := d.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

// DialOnce connects a client that ends with its connection. For the tests outside of the package, too.
func DialOnce(ctx context.Context, url string) (*fire.Client, error) {
	cfg, err := fire.ParseURL(url)
	if err != nil {
		return nil, err
	}
	cfg.Reconnect.Off = true
	return cfg.Dial(ctx)
}

func TestWebSocket(t *testing.T) {
	s, stop := run(t, Options{HTTP: free})
	c, err := fire.Dial(within(t), "ws://"+s.HTTPAddr().String()+"/fire")
	if err != nil {
		t.Fatal(err)
	}
	exchange(t, c)
	if !strings.HasSuffix(c.ConnID(), " -> "+s.HTTPAddr().String()) {
		t.Errorf("the session sees %s", c.ConnID())
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}

	_, err = fire.Dial(within(t), "ws://"+s.HTTPAddr().String()+"/wrong")
	if err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("wrong path: %v", err)
	}
	// One that is open while the broker stops hears why.
	if c, err = DialOnce(within(t), "ws://"+s.HTTPAddr().String()); err != nil {
		t.Fatal(err)
	}
	stop()
	<-c.Done()
	if e, ok := errors.AsType[*fire.ServerError](c.Err()); !ok || e.Code != 320 {
		t.Errorf("the client was told %v", c.Err())
	}
}

// answer sends frames over a WebSocket and gives what comes back first.
func answer(t *testing.T, s *Server, path string, frames ...[]byte) fmq1.Frame {
	t.Helper()
	nc, err := transport.Target{Scheme: "ws", Addr: s.HTTPAddr().String(), Path: path}.Open(within(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(patience))
	go nc.Write(bytes.Join(frames, nil))
	var b []byte
	for {
		f, n, _, err := fmq1.Next(b, fmq1.DefaultMaxFrame)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return f
		}
		more := make([]byte, 4096)
		if n, err = nc.Read(more); err != nil {
			t.Fatal(err)
		}
		b = append(b, more[:n]...)
	}
}

func TestWebSocketHandshake(t *testing.T) {
	s, _ := run(t, Options{HTTP: free})
	hello := func(vhost string) []byte {
		return fmq1.Append(nil, fmq1.OpHello, &fmq1.Hello{Ver: 1, VHost: vhost, Auth: fmq1.Auth{Mech: "plain", User: "guest", Pass: "guest"}})
	}
	for _, c := range []struct {
		name, path string
		frame      []byte
		code       uint16 // 0: welcome
		text       string
	}{
		{"hello names no vhost", "/fire", hello(""), 0, ""},
		{"the vhost comes from the query", "/fire?vhost=d%20ev", hello(""), 530, "d ev"},
		{"hello goes before the query", "/fire?vhost=dev", hello("other"), 530, "other"},
		{"hello goes before the query, which is wrong", "/fire?vhost=dev", hello("/"), 0, ""},
		{"64 KiB before welcome", "/fire", fmq1.End(append(fmq1.Begin(nil, fmq1.OpHello), make([]byte, 65536)...), 0, 0), 501, "65536"},
		{"a frame without its fixed part", "/fire", []byte{0, 0, 0, 1, 9}, 501, "shorter"},
		{"publish before hello", "/fire", fmq1.Append(nil, fmq1.OpGet, &fmq1.Get{RID: 1, Queue: "q"}), 503, "before hello"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := answer(t, s, c.path, c.frame)
			if c.code == 0 {
				if f.Op != fmq1.OpWelcome {
					t.Errorf("got %s, want welcome", f.Op)
				}
				return
			}
			var e fmq1.ServerError
			if f.Op != fmq1.OpError || fmq1.Decode(f.Header, &e) != nil || e.Code != c.code || !e.Fatal || !strings.Contains(e.Msg, c.text) {
				t.Errorf("got %s %+v, want error %d with %q", f.Op, e, c.code, c.text)
			}
		})
	}
}

// A client that says nothing is dropped with the handshake's deadline, and a stop does not wait for it.
func TestWebSocketStopsWithSilentClients(t *testing.T) {
	s, stop := run(t, Options{HTTP: free})
	for range 5 {
		nc, err := transport.Target{Scheme: "ws", Addr: s.HTTPAddr().String(), Path: "/fire"}.Open(within(t))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	nc, err := net.Dial("tcp", s.HTTPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	fmt.Fprint(nc, "GET /fire HTTP/1.1\r\nHost: x\r\n") // a request that never ends
	stop()
}

// Mutated streams of a client end their own connections, and leave nothing behind: run looks for that.
func TestWebSocketHostileStreams(t *testing.T) {
	s, _ := run(t, Options{HTTP: free})
	rnd := rand.New(rand.NewPCG(7, 8))
	frames := [][]byte{
		fmq1.Append(nil, fmq1.OpHello, &fmq1.Hello{Ver: 1, Auth: fmq1.Auth{Mech: "plain", User: "guest", Pass: "guest"}}),
		fmq1.Append(nil, fmq1.OpDeclareQueue, &fmq1.DeclareQueue{RID: 1, Name: "q"}),
		fmq1.Append(nil, fmq1.OpSubscribe, &fmq1.Subscribe{RID: 2, Sub: 1, Queue: "q", Credit: 5}),
	}
	for seq := range uint64(5) {
		m := fmq1.Publish{Seq: seq + 1, Key: []byte("q")}
		b := fmq1.End(m.AppendTo(fmq1.Begin(nil, fmq1.OpPublish)), 0, 100)
		frames = append(frames, append(b, make([]byte, 100)...))
	}
	// What a client sends after its request, in one frame a message or in two, with a ping among them.
	var good []byte
	piece := func(first byte, p []byte) {
		good = append(good, first)
		if len(p) < 126 {
			good = append(good, 0x80|byte(len(p)))
		} else {
			good = append(good, 0x80|126, byte(len(p)>>8), byte(len(p)))
		}
		key := [4]byte{1, 2, 3, 4}
		good = append(good, key[:]...)
		for i, c := range p {
			good = append(good, c^key[i%4])
		}
	}
	for i, f := range frames {
		if f = f[4:]; i%2 == 0 {
			piece(0x82, f)
			continue
		}
		piece(0x02, f[:5])
		piece(0x89, []byte("ping"))
		piece(0x80, f[5:])
	}
	one := func(stream []byte) {
		nc, err := net.Dial("tcp", s.HTTPAddr().String())
		if err != nil {
			t.Error(err)
			return
		}
		defer nc.Close()
		nc.SetDeadline(time.Now().Add(patience))
		fmt.Fprint(nc, "GET /fire HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
		nc.Write(stream)
		nc.(*net.TCPConn).CloseWrite()
		if _, err := io.Copy(io.Discard, nc); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the broker did not close after %x", stream)
		}
	}
	var running sync.WaitGroup
	slots := make(chan struct{}, 8)
	for range 1000 {
		bad := bytes.Clone(good)
		for range 1 + rnd.IntN(3) {
			switch at := rnd.IntN(len(bad)); rnd.IntN(3) {
			case 0:
				bad[at] ^= 1 << rnd.IntN(8)
			case 1:
				bad = append(bad[:at], bad[min(at+1+rnd.IntN(9), len(bad)-1):]...)
			case 2:
				bad = slices.Insert(bad, at, bytes.Repeat([]byte{byte(rnd.Uint32())}, 1+rnd.IntN(9))...)
			}
		}
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			one(bad)
		})
	}
	running.Wait()
	// Of guest there were too many wrong passwords.
	if err := s.Broker().AddFirstUser("app", "secret"); err != nil {
		t.Fatal(err)
	}
	c, err := fire.Dial(within(t), "ws://app:secret@"+s.HTTPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	exchange(t, c)
}
