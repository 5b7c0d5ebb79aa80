package loop

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/firemq/firemq/pool"
)

func selfSigned(t testing.TB) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

func listenTLS(t testing.TB, s *Server, h Handler) string {
	t.Helper()
	addr, err := s.ListenTLS("tcp", "127.0.0.1:0", selfSigned(t), h)
	if err != nil {
		t.Fatal(err)
	}
	return addr.String()
}

// encrypt does the client's handshake.
func encrypt(t testing.TB, nc net.Conn) *tls.Conn {
	t.Helper()
	c := tls.Client(nc, &tls.Config{InsecureSkipVerify: true})
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTLSEcho(t *testing.T) {
	s := start(t, Options{Log: quiet})
	conns, closed := make(chan *Conn, 1), make(chan error, 1)
	addr := listenTLS(t, s, func(c *Conn) Session {
		conns <- c
		return &funcs{
			data:   func(b []byte) (int, int) { stage(c, b); return len(b), 0 },
			closed: func(err error) { closed <- err },
		}
	})
	raw := dial(t, addr)
	nc := encrypt(t, raw)
	c := wait(t, conns, "connection")
	if state, ok := c.TLS(); !ok || !state.HandshakeComplete || state.Version != tls.VersionTLS13 {
		t.Errorf("TLS: %+v %v", state, ok)
	}
	if c.LocalAddr().String() != addr || c.RemoteAddr().String() != raw.LocalAddr().String() {
		t.Errorf("addresses %s and %s", c.LocalAddr(), c.RemoteAddr())
	}
	want := make([]byte, 3<<20)
	rand.Read(want)
	go nc.Write(want)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(nc, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the echo differs, %v", err)
	}
	c.CloseAfterFlush()
	if n, err := nc.Read(got); !errors.Is(err, io.EOF) { // with close_notify, else it is another error
		t.Errorf("read %d bytes, %v", n, err)
	}
	nc.Close()
	if err := wait(t, closed, "end"); err != nil {
		t.Errorf("OnClose: %v", err)
	}
}

// Segments of all kinds arrive in order.
func TestTLSSendsSegments(t *testing.T) {
	s := start(t, Options{Log: quiet})
	conns := make(chan *Conn, 1)
	nc := encrypt(t, dial(t, listenTLS(t, s, func(c *Conn) Session { conns <- c; return &funcs{} })))
	c := wait(t, conns, "connection")
	var want []byte
	c.Lock()
	for i, n := range []int{1, 5000, 70_000, 100, 65_536, 4096, 1, 200_000} {
		head := bytes.Repeat([]byte{byte(i)}, 10)
		c.Put(append(c.Tail(len(head)), head...))
		b := pool.Get(n, pool.Messages)
		for k := range b.B {
			b.B[k] = byte(i + k)
		}
		want = append(append(want, head...), b.B...)
		c.Ref(b, b.B)
	}
	c.Unlock()
	c.Flush()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(nc, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("what arrived differs, %v", err)
	}
}

// Clients that stall in the handshake have no session and no place, and keep nobody out.
func TestTLSHandshakesThatStall(t *testing.T) {
	var sessions atomic.Int64
	s := start(t, Options{Log: quiet, MaxConns: 2})
	addr := listenTLS(t, s, func(c *Conn) Session { sessions.Add(1); return echo(c) })
	shaking := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.handshakes)
	}
	var stalled []*net.TCPConn
	for i := range maxHandshakes + 5 {
		stalled = append(stalled, dial(t, addr))
		eventually(t, "a handshake began", func() bool { return shaking() == min(i+1, maxHandshakes) })
	}
	for i, nc := range stalled[:5] {
		if _, err := nc.Read(make([]byte, 1)); err == nil {
			t.Errorf("the client %d was not cut off", i)
		}
	}
	if n := sessions.Load(); n != 0 || s.Len() != 0 {
		t.Errorf("%d sessions, %d connections without a handshake", n, s.Len())
	}
	nc := encrypt(t, dial(t, addr))
	nc.Write([]byte("hello"))
	if _, err := io.ReadFull(nc, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if got := shaking(); got != maxHandshakes-1 {
		t.Errorf("%d handshakes go on, want %d: one was cut off", got, maxHandshakes-1)
	}
	// Two places are there, and the handshakes have none of them.
	second := encrypt(t, dial(t, addr))
	eventually(t, "the second connection", func() bool { return s.Len() == 2 })
	third := dial(t, addr)
	if _, err := third.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection beyond MaxConns: %v", err)
	}
	second.Close()
	// A stop does not wait for the deadline of a handshake.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	before := time.Now()
	s.Shutdown(ctx)
	if took := time.Since(before); took > handshakeTimeout/2 {
		t.Errorf("the shutdown took %s", took)
	}
}

// hello is what a client says first.
func hello(t testing.TB) []byte {
	t.Helper()
	here, there := net.Pipe()
	go func() {
		tls.Client(there, &tls.Config{InsecureSkipVerify: true}).Handshake() // which ends with the pipe
		there.Close()
	}()
	defer here.Close()
	head := make([]byte, 5) // of a TLS record: its length is in the last two
	if _, err := io.ReadFull(here, head); err != nil {
		t.Fatal(err)
	}
	rest := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(here, rest); err != nil {
		t.Fatal(err)
	}
	return append(head, rest...)
}

// So many handshakes compute at once as there are processors, whatever comes. Those that wait for their clients are
// not among them, and what they took is told.
func TestTLSHandshakesTakeTurns(t *testing.T) {
	var took atomic.Int64
	s := start(t, Options{Log: quiet, Handshake: func(d time.Duration) time.Duration {
		took.Add(int64(d))
		return 0
	}})
	var computing, most atomic.Int64
	turns := make(chan struct{})
	all := sync.OnceFunc(func() { close(turns) })
	defer all() // the server waits for them
	config := selfSigned(t)
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		n := computing.Add(1)
		for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		<-turns
		computing.Add(-1)
		return nil, nil
	}
	a, err := s.ListenTLS("tcp", "127.0.0.1:0", config, echo)
	if err != nil {
		t.Fatal(err)
	}
	addr, first := a.String(), hello(t)
	shaking := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.handshakes)
	}
	clients := 8 * cap(s.computing)
	for range clients {
		if _, err := dial(t, addr).Write(first); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all handshakes began", func() bool { return shaking() == clients })
	eventually(t, "all turns are taken", func() bool { return computing.Load() == int64(cap(s.computing)) })
	for range clients {
		turns <- struct{}{}
	}
	if n := most.Load(); n != int64(cap(s.computing)) {
		t.Errorf("%d handshakes computed at once, want %d", n, cap(s.computing))
	}
	eventually(t, "nobody computes", func() bool { return len(s.computing) == 0 })
	if shaking() != clients {
		t.Errorf("%d handshakes go on, want %d: their clients have not answered", shaking(), clients)
	}
	if took.Load() <= 0 {
		t.Error("what the handshakes took is not told")
	}
	all()
	nc := encrypt(t, dial(t, addr)) // others are served beside them
	nc.Write([]byte("hello"))
	if _, err := io.ReadFull(nc, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
}

// A TLS listener rests as long as Handshake says, other listeners do not.
func TestTLSListenerRests(t *testing.T) {
	const rest = 300 * time.Millisecond
	s := start(t, Options{Log: quiet, Handshake: func(took time.Duration) time.Duration {
		if took > 0 {
			return 0
		}
		return rest
	}})
	secure, plain := listenTLS(t, s, echo), listen(t, s, echo)
	begin := time.Now()
	encrypt(t, dial(t, secure))
	for range 10 {
		c := dial(t, plain)
		c.Write([]byte("x"))
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		encrypt(t, dial(t, secure))
		if took, least := time.Since(begin), rest*time.Duration(i+1); took < least {
			t.Errorf("connection %d was taken after %s, want %s at least", i+2, took, least)
		}
	}
}

// A client that takes nothing for a while is neither a leak nor a block for others.
func TestTLSAbortWhileWriting(t *testing.T) {
	s := start(t, Options{Log: quiet})
	conns, closed := make(chan *Conn, 1), make(chan error, 1)
	encrypt(t, dial(t, listenTLS(t, s, func(c *Conn) Session {
		conns <- c
		return &funcs{closed: func(err error) { closed <- err }}
	})))
	c := wait(t, conns, "connection")
	for range 64 {
		stageRef(c, 1<<20)
	}
	c.Abort(errLost)
	if err := wait(t, closed, "end"); !errors.Is(err, errLost) {
		t.Errorf("OnClose: %v", err)
	}
}

var errLost = errors.New("the test aborts it")
