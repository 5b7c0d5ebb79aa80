package loop

import (
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/firemq/firemq/pool"
)

const (
	// handshakeTimeout is how long a client may take for the TLS handshake; it is cut off then.
	handshakeTimeout = 10 * time.Second
	// maxHandshakes bounds the handshakes that go on. One more cuts the oldest off: honest clients
	// need milliseconds, so that those that stall are the oldest ones and keep nobody out.
	maxHandshakes = 256
)

// ListenTLS is Listen for connections inside TLS. Until its handshake is done, a client has no
// Conn, no session and no place among MaxConns. The addresses of a Conn are those of TCP, and its TLS
// method tells what was negotiated. config needs a certificate, or a way to get one for each client.
func (s *Server) ListenTLS(network, addr string, config *tls.Config, h Handler) (net.Addr, error) {
	config = config.Clone()
	// Small first records help pages that a browser renders as they come; here they are system calls.
	config.DynamicRecordSizingDisabled = true
	return s.listen(network, addr, func(nc net.Conn) error {
		s.serveTLS(nc, config, h)
		return nil
	}, func() time.Duration { return max(s.admitted(), s.shook(0)) })
}

// shook is Options.Handshake.
func (s *Server) shook(took time.Duration) time.Duration {
	if s.opt.Handshake == nil {
		return 0
	}
	return s.opt.Handshake(took)
}

// serveTLS starts the handshake. By an acceptor.
func (s *Server) serveTLS(nc net.Conn, config *tls.Config, h Handler) {
	s.mu.Lock()
	if s.noListen { // CloseListeners has seen the list
		s.mu.Unlock()
		nc.Close()
		return
	}
	if s.full() {
		s.mu.Unlock()
		s.refuse(nc)
		return
	}
	var oldest net.Conn
	if len(s.handshakes) >= maxHandshakes {
		oldest = s.handshakes[0]
		s.handshakes = slices.Delete(s.handshakes, 0, 1)
	}
	s.handshakes = append(s.handshakes, nc)
	s.mu.Unlock()
	if oldest != nil {
		oldest.Close()
		s.logAccept("TLS handshake cut off, there are too many at once", "remote", oldest.RemoteAddr(), "max", maxHandshakes)
	}
	s.acceptors.Go(func() { s.handshake(nc, config, h) }) // counted on top of the acceptor, which lives
}

// handshake makes nc a connection once it is encrypted.
func (s *Server) handshake(nc net.Conn, config *tls.Config, h Handler) {
	nc.SetDeadline(time.Now().Add(handshakeTimeout))
	turns := &shaking{Conn: nc, srv: s}
	cork := &corked{Conn: turns}
	secure := tls.Server(cork, config)
	turns.begin()
	err := secure.Handshake()
	turns.rest()
	cork.Conn = nc
	s.mu.Lock()
	if at := slices.Index(s.handshakes, nc); at >= 0 {
		s.handshakes = slices.Delete(s.handshakes, at, at+1)
	}
	s.mu.Unlock()
	if err != nil {
		nc.Close()
		s.opt.Log.Debug("TLS handshake failed", "remote", nc.RemoteAddr(), "err", err)
		return
	}
	nc.SetDeadline(time.Time{})
	if !s.admitReader() {
		nc.Close()
		return
	}
	t := &tlsStream{stream: stream{in: secure, out: secure, socket: nc}, secure: secure, cork: cork}
	t.prepare(s, t)
	ok := t.openLocked(h)
	go func() { // a new stack: the handshake needed a large one
		defer s.readers.Done()
		t.read(ok, 0, t.received)
	}()
}

// shaking is the socket of a handshake, which computes in turns: at most as many at once as there are processors,
// so that no loop waits behind hundreds of them. One that waits for its client is not in the others' way; one that
// waits for its turn does so while those before it compute.
type shaking struct {
	net.Conn
	srv   *Server
	since time.Time // its turn began
}

func (h *shaking) begin() {
	h.srv.computing <- struct{}{}
	h.since = time.Now()
}

func (h *shaking) rest() {
	took := time.Since(h.since)
	<-h.srv.computing
	h.srv.shook(took)
}

func (h *shaking) Read(p []byte) (int, error) {
	h.rest()
	defer h.begin()
	return h.Conn.Read(p)
}

func (h *shaking) Write(p []byte) (int, error) {
	h.rest()
	defer h.begin()
	return h.Conn.Write(p)
}

// tlsStream is a stream inside TLS.
type tlsStream struct {
	stream
	secure *tls.Conn // immutable
	cork   *corked   // below it; immutable
}

// TLS is what was negotiated; ok is false if the connection is not inside TLS. Any goroutine.
func (c *Conn) TLS() (state tls.ConnectionState, ok bool) {
	t, ok := c.tr.(*tlsStream)
	if ok {
		state = t.secure.ConnectionState()
	}
	return state, ok
}

// writev fills records: pieces are copied together, and the records go out in one system call.
func (t *tlsStream) writev(s []seg) (n int, full bool, err error) {
	p := s[0].p
	if len(s) > 1 && len(p) < largeRead {
		room := pool.Get(largeRead, pool.Sending)
		defer room.Release()
		for i := 0; i < len(s) && n < len(room.B); i++ {
			n += copy(room.B[n:], s[i].p)
		}
		p = room.B[:n]
	} else {
		p = p[:min(len(p), largeRead)]
		n = len(p)
	}
	t.cork.hold()
	_, err = t.secure.Write(p)
	if e := t.cork.send(); err == nil {
		err = e
	}
	return n, false, err
}

// corked is a socket that can collect what is written to it.
type corked struct {
	net.Conn
	mu   sync.Mutex
	held *pool.Buf // guarded by mu; nil: what is written goes out at once
}

// recordRoom is more than what TLS adds to the records of largeRead bytes.
const recordRoom = 1 << 10

func (c *corked) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = pool.Get(largeRead+recordRoom, pool.Sending)
	c.held.B = c.held.B[:0]
}

func (c *corked) send() error {
	c.mu.Lock() // also while it writes: records have an order
	defer c.mu.Unlock()
	held := c.held
	c.held = nil
	defer held.Release()
	_, err := c.Conn.Write(held.B)
	return err
}

// Write is called by the tls.Conn: with the records of its Write, and with alerts and answers of its
// Read in between.
func (c *corked) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		return c.Conn.Write(p)
	}
	c.held.B = append(c.held.B, p...)
	return len(p), nil
}
