package loop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/firemq/firemq/pool"
)

// messages is a session of messages: each goes to each, and above limit the connection is closed after
// the answer "too large".
type messages struct {
	c     *Conn
	limit int
	each  func(m []byte)
	funcs
}

func (s *messages) MaxMessage() int { return s.limit }

func (s *messages) OnData(b []byte) (n, want int) {
	for len(b)-n >= 4 {
		size := int(binary.BigEndian.Uint32(b[n:]))
		if size > s.limit {
			stage(s.c, appendFrame(nil, []byte("too large")))
			s.c.CloseAfterFlush()
			return len(b), 0
		}
		if len(b)-n < 4+size {
			return n, 4 + size
		}
		s.each(b[n+4 : n+4+size])
		n += 4 + size
	}
	return n, 4
}

// echoMessages sends back what comes.
func echoMessages(c *Conn) Session {
	return &messages{c: c, limit: 100_000, each: func(m []byte) { stage(c, appendFrame(nil, m)) }}
}

// fasthttp's clock, once started, never ends: it is not one of a test's goroutines.
var _ = new(fasthttp.ResponseHeader).Header()

// serveHTTP serves a handler as mgmt does, until the end of the test.
func serveHTTP(t testing.TB, h fasthttp.RequestHandler) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	srv := &fasthttp.Server{Handler: h, Logger: noLogger{}, ReadTimeout: patience}
	running.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			running.Go(func() { srv.ServeConn(nc) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		running.Wait()
	})
	return ln.Addr().String()
}

type noLogger struct{}

func (noLogger) Printf(string, ...any) {}

// webSockets starts a server with an endpoint.
func webSockets(t testing.TB, o Options, w WebSocketOptions, h Handler) (*Server, string) {
	o.Log = quiet
	s := start(t, o)
	return s, serveHTTP(t, s.WebSocket(w, func(func(string) string) Handler { return h }))
}

// peer is a raw client.
type peer struct {
	*net.TCPConn
	br *bufio.Reader
	t  testing.TB
}

func upgradeRequest(path, header string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: broker\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + header + "\r\n"
}

// connect upgrades, and sends more with the request.
func connect(t testing.TB, addr string, more ...byte) *peer {
	t.Helper()
	p := &peer{TCPConn: dial(t, addr), t: t}
	p.br = bufio.NewReader(p.TCPConn)
	p.Write(append([]byte(upgradeRequest("/fire", "")), more...))
	resp, err := http.ReadResponse(p.br, nil)
	if err != nil {
		t.Fatal(err)
	}
	// The key and its answer are those of RFC 6455 1.3.
	if resp.StatusCode != 101 || resp.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Fatal(resp)
	}
	return p
}

// wsFrame spells a masked frame.
func wsFrame(first byte, payload []byte) []byte {
	b := []byte{first}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n <= 0xffff:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	key := []byte{0xa1, 0xb2, 0xc3, 0xd4}
	b = append(b, key...)
	for i, c := range payload {
		b = append(b, c^key[i%4])
	}
	return b
}

// next reads one frame of the server.
func (p *peer) next() (first byte, payload []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(p.br, head[:]); err != nil {
		return 0, nil, err
	}
	size := uint64(head[1])
	long := make([]byte, 8)
	switch {
	case size > 127:
		return 0, nil, errors.New("the server masks")
	case size == 126:
		if _, err := io.ReadFull(p.br, long[6:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(long)
	case size == 127:
		if _, err := io.ReadFull(p.br, long); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(long)
	}
	payload = make([]byte, size)
	_, err = io.ReadFull(p.br, payload)
	return head[0], payload, err
}

func (p *peer) expect(first byte, payload string) {
	p.t.Helper()
	f, got, err := p.next()
	if err != nil || f != first || string(got) != payload {
		p.t.Fatalf("got %02x %.60q (%d bytes) %v, want %02x %.60q", f, got, len(got), err, first, payload)
	}
}

// expectClose reads up to the close frame, which must have the code; nothing may follow it.
func (p *peer) expectClose(code uint16) {
	p.t.Helper()
	for {
		f, got, err := p.next()
		if err != nil {
			p.t.Fatalf("no close frame: %v", err)
		}
		if f != 0x88 {
			continue
		}
		if len(got) < 2 && code != 1005 || len(got) >= 2 && binary.BigEndian.Uint16(got) != code {
			p.t.Fatalf("close frame %q, want code %d", got, code)
		}
		return
	}
}

func (p *peer) expectEOF() {
	p.t.Helper()
	if f, got, err := p.next(); !errors.Is(err, io.EOF) {
		p.t.Fatalf("got %02x %q %v, want the end", f, got, err)
	}
}

func TestWebSocketEcho(t *testing.T) {
	_, addr := webSockets(t, Options{}, WebSocketOptions{}, echoMessages)
	p := connect(t, addr, wsFrame(0x82, []byte("with the request"))...)
	p.expect(0x82, "with the request")
	big := strings.Repeat("0123456789", 7000)
	var batch []byte
	for _, m := range []string{"a", "", big[:125], big[:126], big[:65535], big[:65536], big} {
		batch = append(batch, wsFrame(0x82, []byte(m))...)
	}
	batch = append(batch, wsFrame(0x02, []byte("fragments "))...)
	batch = append(batch, wsFrame(0x89, []byte("are you there"))...)
	batch = append(batch, wsFrame(0x80, []byte("joined"))...)
	batch = append(batch, wsFrame(0x82, []byte("z"))...)
	go p.Write(batch)
	for _, m := range []string{"a", "", big[:125], big[:126], big[:65535], big[:65536], big} {
		p.expect(0x82, m)
	}
	p.expect(0x8a, "are you there")
	p.expect(0x82, "fragments joined")
	p.expect(0x82, "z")
}

// What is sent by reference arrives as well, in few writes and in order.
func TestWebSocketSendsSegments(t *testing.T) {
	conns := make(chan *Conn, 1)
	_, addr := webSockets(t, Options{}, WebSocketOptions{}, func(c *Conn) Session {
		conns <- c
		return &messages{c: c, limit: 100, each: func([]byte) {}}
	})
	p := connect(t, addr)
	c := wait(t, conns, "connection")
	const n, body = 300, 5000
	for i := range n {
		b := pool.Get(body, pool.Messages)
		for k := range b.B {
			b.B[k] = byte(i)
		}
		c.Lock()
		head := binary.BigEndian.AppendUint32(c.Tail(8), 4+body)
		c.Put(binary.BigEndian.AppendUint32(head, uint32(i)))
		c.Ref(b, b.B)
		c.Unlock()
	}
	c.Flush()
	for i := range n {
		p.expect(0x82, string(binary.BigEndian.AppendUint32(nil, uint32(i)))+strings.Repeat(string([]byte{byte(i)}), body))
	}
}

func TestWebSocketCloses(t *testing.T) {
	closed := make(chan error, 1)
	conns := make(chan *Conn, 1)
	s, addr := webSockets(t, Options{}, WebSocketOptions{}, func(c *Conn) Session {
		m := echoMessages(c).(*messages)
		m.closed = func(err error) { closed <- err }
		conns <- c
		return m
	})
	for _, c := range []struct {
		name string
		send []byte
		code uint16
		want error
	}{
		{"peer, with a code", wsFrame(0x88, []byte("\x03\xe9bye")), 1001, io.EOF},
		{"peer, without a code", wsFrame(0x88, nil), 1005, io.EOF},
		{"text", wsFrame(0x81, []byte("hello")), 1003, nil},
		{"not masked", []byte{0x82, 1, 'x'}, 1002, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := connect(t, addr)
			wait(t, conns, "connection")
			p.Write(append(wsFrame(0x82, []byte("x")), c.send...))
			p.expect(0x82, "x")
			p.expectClose(c.code)
			if c.want == nil { // the server has sent the end of the stream: it waits for ours
				p.expectEOF()
				p.Close()
			}
			if err := wait(t, closed, "end"); !errors.Is(err, c.want) {
				t.Errorf("OnClose: %v, want %v", err, c.want)
			}
			if c.want != nil {
				p.expectEOF()
			}
		})
	}
	t.Run("server", func(t *testing.T) {
		p := connect(t, addr)
		wait(t, conns, "connection").CloseAfterFlush()
		p.expectClose(1000)
		p.Write(wsFrame(0x88, []byte("\x03\xe8")))
		if err := wait(t, closed, "end"); err != nil {
			t.Errorf("OnClose: %v", err)
		}
		p.expectEOF()
	})
	t.Run("too large", func(t *testing.T) {
		for _, send := range [][]byte{
			append(binary.BigEndian.AppendUint64([]byte{0x82, 0xff}, 1<<62), 1, 2, 3, 4),
			append(wsFrame(0x02, make([]byte, 90_000)), wsFrame(0x00, make([]byte, 90_000))...),
		} {
			p := connect(t, addr)
			wait(t, conns, "connection")
			go p.Write(send)
			p.expect(0x82, "too large")
			p.expectClose(1000)
			p.Close()
			wait(t, closed, "end")
		}
	})
	t.Run("in the middle", func(t *testing.T) {
		p := connect(t, addr)
		wait(t, conns, "connection")
		p.Write(wsFrame(0x82, []byte("half a message"))[:9])
		p.CloseWrite()
		if err := wait(t, closed, "end"); !errors.Is(err, io.EOF) {
			t.Errorf("OnClose: %v", err)
		}
	})
	t.Run("shutdown", func(t *testing.T) {
		p := connect(t, addr)
		wait(t, conns, "connection")
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			s.Shutdown(ctx)
		}()
		p.expectClose(1001)
		p.Write(wsFrame(0x88, []byte("\x03\xe9")))
		if err := wait(t, closed, "end"); err != nil {
			t.Errorf("OnClose: %v", err)
		}
	})
}

func TestWebSocketRefusals(t *testing.T) {
	s, addr := webSockets(t, Options{MaxConns: 1}, WebSocketOptions{Origins: []string{"https://app.example"}}, echoMessages)
	ask := func(request string) int {
		t.Helper()
		nc := dial(t, addr)
		fmt.Fprint(nc, request)
		resp, err := http.ReadResponse(bufio.NewReader(nc), nil)
		if err != nil {
			t.Fatal(err)
		}
		nc.Close()
		return resp.StatusCode
	}
	for want, request := range map[int]string{
		426: "GET /fire HTTP/1.1\r\nHost: broker\r\n\r\n",
		400: strings.Replace(upgradeRequest("/fire", ""), "Version: 13", "Version: 8", 1),
		403: upgradeRequest("/fire", "Origin: https://evil.example\r\n"),
	} {
		if got := ask(request); got != want {
			t.Errorf("status %d, want %d", got, want)
		}
	}
	p := connect(t, addr)
	eventually(t, "one connection", func() bool { return s.Len() == 1 })
	if got := ask(upgradeRequest("/fire", "")); got != 503 {
		t.Errorf("beyond MaxConns: status %d, want 503", got)
	}
	p.Close()
	eventually(t, "no connection", func() bool { return s.Len() == 0 })
	s.CloseListeners()
	if got := ask(upgradeRequest("/fire", "")); got != 503 {
		t.Errorf("after CloseListeners: status %d, want 503", got)
	}
}

func TestWebSocketOrigins(t *testing.T) {
	for _, c := range []struct {
		origins      []string
		origin, host string
		want         bool
	}{
		{nil, "", "broker:15672", true},
		{nil, "http://broker:15672", "broker:15672", true},
		{nil, "http://BROKER:15672", "broker:15672", true},
		{nil, "http://broker", "broker:15672", false},
		{nil, "http://evil.example", "broker:15672", false},
		{nil, "null", "broker:15672", false},
		{nil, "http://", "", false},
		{[]string{"https://a.example"}, "https://a.example", "broker", true},
		{[]string{"https://a.example"}, "https://A.example", "broker", true},
		{[]string{"https://a.example"}, "http://a.example", "broker", false},
		{[]string{"https://a.example"}, "http://broker", "broker", false},
		{[]string{}, "http://broker", "broker", false},
		{[]string{"*"}, "null", "broker", true},
	} {
		if got := (WebSocketOptions{Origins: c.origins}).allows(c.origin, c.host); got != c.want {
			t.Errorf("%q lets a page of %q at %q: %v", c.origins, c.origin, c.host, got)
		}
	}
}

// piped is a hijacked connection without a kernel, which would drop what a peer sends while it reads nothing.
type piped struct{ net.Conn }

func (p piped) UnsafeConn() net.Conn { return p.Conn }

// A peer that pings and does not read costs no more than the high-water mark.
func TestWebSocketPingsWithoutReading(t *testing.T) {
	const high = 64 << 10
	conns, seen := make(chan *Conn, 1), make(chan struct{})
	s := start(t, Options{Log: quiet, High: high})
	server, peer := net.Pipe()
	defer peer.Close()
	peer.SetDeadline(time.Now().Add(patience))
	var served sync.WaitGroup
	served.Go(func() {
		s.serveWebSocket(piped{server}, func(c *Conn) Session {
			conns <- c
			return &messages{c: c, limit: 100, each: func([]byte) { close(seen) }}
		})
	})
	c := wait(t, conns, "connection")
	pings := bytes.Repeat(wsFrame(0x89, make([]byte, 125)), 100)
	for range 100 {
		if _, err := peer.Write(pings); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := peer.Write(wsFrame(0x82, []byte("the end"))); err != nil {
		t.Fatal(err)
	}
	wait(t, seen, "message after the pings")
	if b := c.Backlog(); b < high || b > high+200 {
		t.Errorf("a backlog of %d bytes, want %d and at most one pong more", b, high)
	}
	peer.Close()
	served.Wait()
}

// Broken streams end their own connections, and nothing else.
func TestWebSocketMutatedStreams(t *testing.T) {
	s, addr := webSockets(t, Options{Tick: 50 * time.Millisecond, Linger: 100 * time.Millisecond}, WebSocketOptions{}, echoMessages)
	rnd := rand.New(rand.NewPCG(5, 6))
	var good []byte
	for i := range 20 {
		switch i % 4 {
		case 0:
			good = append(good, wsFrame(0x82, make([]byte, rnd.IntN(300)))...)
		case 1:
			good = append(good, wsFrame(0x02, []byte("frag"))...)
			good = append(good, wsFrame(0x80, []byte("ment"))...)
		case 2:
			good = append(good, wsFrame(0x89, []byte("ping"))...)
		case 3:
			good = append(good, wsFrame(0x8a, nil)...)
		}
	}
	const streams, atOnce = 1000, 8
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for range streams {
		bad := bytes.Clone(good)
		for range 1 + rnd.IntN(4) {
			switch at := rnd.IntN(len(bad)); rnd.IntN(4) {
			case 0:
				bad[at] ^= 1 << rnd.IntN(8)
			case 1:
				bad[at] = byte(rnd.Uint32())
			case 2:
				bad = append(bad[:at], bad[min(at+rnd.IntN(20), len(bad)):]...)
			case 3:
				bad = append(bad[:at:at], append(bytes.Repeat([]byte{byte(rnd.Uint32())}, rnd.IntN(20)), bad[at:]...)...)
			}
			if len(bad) == 0 {
				bad = []byte{0}
			}
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			p := connect(t, addr)
			p.Write(bad)
			p.CloseWrite()
			for {
				if _, _, err := p.next(); err != nil {
					break
				}
			}
			p.Close()
		})
	}
	wg.Wait()
	eventually(t, "no connection left", func() bool { return s.Len() == 0 })
	p := connect(t, addr)
	p.Write(wsFrame(0x82, []byte("still here")))
	p.expect(0x82, "still here")
}

// A message costs no allocation, received and sent.
func TestWebSocketDoesNotAllocate(t *testing.T) {
	_, addr := webSockets(t, Options{}, WebSocketOptions{}, func(c *Conn) Session {
		return &messages{c: c, limit: 1000, each: func(m []byte) {
			c.Lock()
			c.Put(append(binary.BigEndian.AppendUint32(c.Tail(4+len(m)), uint32(len(m))), m...))
			if c.Unlock() {
				c.Flush()
			}
		}}
	})
	p := connect(t, addr)
	batch := bytes.Repeat(wsFrame(0x82, make([]byte, 100)), 100)
	answer := make([]byte, 100*102)
	per := testing.AllocsPerRun(200, func() {
		p.Write(batch)
		if _, err := io.ReadFull(p.br, answer); err != nil {
			t.Fatal(err)
		}
	})
	if per > 20 { // for 100 messages: the garbage collector empties pools, the race detector leaves some out
		t.Errorf("%v allocations for 100 messages", per)
	}
}

// WebSockets are taken one after the other, each when the one before says so.
func TestWebSocketsAreAdmitted(t *testing.T) {
	came := make(chan chan time.Duration)
	_, addr := webSockets(t, Options{Admitted: func() time.Duration {
		c := make(chan time.Duration)
		select {
		case came <- c:
			return <-c
		case <-t.Context().Done(): // the test is over
			return 0
		}
	}}, WebSocketOptions{}, echoMessages)
	hello := wsFrame(0x82, []byte("hello"))
	var peers []*peer
	for range 3 {
		peers = append(peers, connect(t, addr, hello...))
	}
	first := <-came
	select {
	case <-came:
		t.Fatal("two come at a time")
	case first <- 0:
	}
	second := <-came
	second <- time.Hour // the others wait until the server stops
	echoed := make(chan struct{}, len(peers))
	for _, p := range peers {
		go func() {
			if f, got, err := p.next(); err == nil && f == 0x82 && string(got) == "hello" {
				echoed <- struct{}{}
			}
		}()
	}
	<-echoed
	if len(echoed) > 0 {
		t.Error("one that waits is served")
	}
}
