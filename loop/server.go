package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Options of a Server. The zero value of a field is its default.
type Options struct {
	// Loops is the number of event loops; default GOMAXPROCS.
	Loops int
	// MaxConns bounds the connections; one more is closed at once and counted. Default: no bound.
	MaxConns int
	// High and Low are the marks of a connection's backlog in bytes: from High on it is not
	// Writable, and below Low it is told OnDrained. Default 1 MiB and half of High. They bound
	// memory only as far as sessions ask Writable.
	High, Low int
	// MaxWant is the most bytes a session may leave or wait for; its protocol's limits come first,
	// so that reaching it is a bug of the session. Default 64 MiB.
	MaxWant int
	// Linger is how long a closing connection may make no progress; default 3 s.
	Linger time.Duration
	// Tick is the time between OnTick calls, which is also the resolution of LastRead, LastWrite
	// and Linger; default 1 s.
	Tick time.Duration
	// Admitted is called with each connection that a listener accepted and says how long that listener rests
	// before it takes the next; nil: not at all. WebSockets, which no listener of ours accepts, queue up for it.
	Admitted func() time.Duration
	// Handshake is called with the time that TLS handshakes took of a processor, 0 for none, and says how long a
	// TLS listener rests before it takes the next connection; nil: not at all. Any goroutine.
	Handshake func(took time.Duration) time.Duration
	// Goroutines makes plain TCP use a goroutine for each connection where event loops would do.
	Goroutines bool
	// Log gets what operators must know; default slog.Default.
	Log *slog.Logger
}

// acceptPause is the wait after a failed accept: out of files, mostly.
const acceptPause = 50 * time.Millisecond

// logPause is the least time between two log lines about failed or refused accepts.
const logPause = 10 * time.Second

// Server owns listeners, connections and the goroutines that serve them.
type Server struct {
	opt      Options // immutable; maxConns is what counts of MaxConns
	engine   engine  // immutable; nil: goroutines alone
	rejected atomic.Uint64

	loops   []meter  // a meter for each event loop, in the order of their first connections
	streams [8]meter // of goroutine connections, which share them

	mu sync.Mutex
	// Guarded by mu.
	maxConns   int // Options.MaxConns, as it is now
	listeners  []net.Listener
	noListen   bool
	handshakes []net.Conn    // sockets whose TLS handshake goes on, the oldest first
	conns      []*Conn       // open ones, in no order
	live       int           // all, also those being opened
	past       octets        // of connections that have ended
	sets       []int         // the epoll sets that loops are the meters of
	empty      chan struct{} // closed when live falls to 0; nil when nobody waits
	logged     time.Time     // when an accept problem was last logged

	acceptors sync.WaitGroup // and handshakes
	accepting chan struct{}  // closed by CloseListeners
	upgrading chan struct{}  // has an element while a WebSocket waits to be taken
	computing chan struct{}  // has an element for each TLS handshake that computes; as many as processors
	readers   sync.WaitGroup // goroutines of goroutine connections
	ticker    sync.WaitGroup
	stopTick  chan struct{}
	shutdown  sync.Once
	result    error // of Shutdown; written in shutdown
}

// engine reads many connections with few goroutines.
type engine interface {
	// enroll makes nc a connection, which it owns from now on, and returns when its Handler has.
	enroll(nc net.Conn, h Handler) error
	// stop ends the loops and waits for them. No connection may be left.
	stop()
}

// New starts the event loops; Shutdown stops them.
func New(opt Options) (*Server, error) {
	if opt.Loops < 0 || opt.MaxConns < 0 || opt.High < 0 || opt.Low < 0 || opt.MaxWant < 0 || opt.Linger < 0 || opt.Tick < 0 {
		return nil, errors.New("loop: an option is negative")
	}
	opt.Loops = cmp.Or(opt.Loops, runtime.GOMAXPROCS(0))
	opt.High = cmp.Or(opt.High, 1<<20)
	opt.Low = cmp.Or(opt.Low, opt.High/2)
	opt.MaxWant = cmp.Or(opt.MaxWant, 64<<20)
	opt.Linger = cmp.Or(opt.Linger, 3*time.Second)
	opt.Tick = cmp.Or(opt.Tick, time.Second)
	if opt.Log == nil {
		opt.Log = slog.Default()
	}
	if opt.Low > opt.High {
		return nil, fmt.Errorf("loop: low-water mark %d is above the high-water mark %d", opt.Low, opt.High)
	}
	s := &Server{opt: opt, maxConns: opt.MaxConns, loops: make([]meter, opt.Loops), accepting: make(chan struct{}), upgrading: make(chan struct{}, 1), computing: make(chan struct{}, runtime.GOMAXPROCS(0)), stopTick: make(chan struct{})}
	if !opt.Goroutines {
		var err error
		if s.engine, err = newEngine(s); err != nil {
			opt.Log.Warn("event loops are not usable, connections get a goroutine each", "err", err)
		}
	}
	s.ticker.Go(s.tick)
	return s, nil
}

// Listen accepts connections at addr, of network tcp, tcp4 or tcp6, until CloseListeners, and gives
// each to h. It returns the bound address, or what kept it from binding: syscall.EADDRINUSE is
// found in it by errors.Is.
func (s *Server) Listen(network, addr string, h Handler) (net.Addr, error) {
	return s.listen(network, addr, func(nc net.Conn) error { return s.serve(nc, h) }, s.admitted)
}

// admitted is Options.Admitted.
func (s *Server) admitted() time.Duration {
	if s.opt.Admitted == nil {
		return 0
	}
	return s.opt.Admitted()
}

// listen has connections taken by serve; rested says how long to rest after each.
func (s *Server) listen(network, addr string, serve func(net.Conn) error, rested func() time.Duration) (net.Addr, error) {
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return nil, fmt.Errorf("listen on %s: %w", addr, net.UnknownNetworkError(network))
	}
	ln, err := net.Listen(network, addr) // Go sets TCP_NODELAY and keepalive on what it accepts
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	s.mu.Lock()
	if s.noListen {
		s.mu.Unlock()
		ln.Close()
		return nil, fmt.Errorf("listen on %s: %w", addr, ErrServerClosed)
	}
	s.listeners = append(s.listeners, ln)
	s.acceptors.Go(func() { s.accept(ln, serve, rested) })
	s.mu.Unlock()
	return ln.Addr(), nil
}

func (s *Server) accept(ln net.Listener, serve func(net.Conn) error, rested func() time.Duration) {
	for {
		nc, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			err = serve(nc)
		}
		rest := acceptPause
		if err != nil {
			s.logAccept("cannot take a connection, trying again", "listener", ln.Addr(), "err", err)
		} else if rest = rested(); rest <= 0 {
			continue
		}
		select {
		case <-s.accepting:
			return
		case <-time.After(rest):
		}
	}
}

// serve makes nc a connection, or closes it.
func (s *Server) serve(nc net.Conn, h Handler) error {
	s.mu.Lock()
	if s.full() {
		s.mu.Unlock()
		s.refuse(nc)
		return nil
	}
	s.live++
	s.mu.Unlock()
	if s.engine == nil || zoned(nc.LocalAddr()) || zoned(nc.RemoteAddr()) {
		s.serveGo(nc, h)
		return nil
	}
	return s.engine.enroll(nc, h)
}

// full says that there are as many connections as may be. mu held.
func (s *Server) full() bool { return s.maxConns > 0 && s.live >= s.maxConns }

// refuse closes a connection beyond the bound.
func (s *Server) refuse(nc net.Conn) {
	s.rejected.Add(1)
	nc.Close()
	s.logAccept("connection refused, there are too many", "remote", nc.RemoteAddr())
}

// admitReader counts a connection that no listener of ours accepted, and the goroutine that reads
// it; false: there are too many, or no more are taken.
func (s *Server) admitReader() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noListen || s.full() {
		s.rejected.Add(1)
		return false
	}
	s.live++
	s.readers.Add(1) // before noListen, and so before Shutdown waits for them
	return true
}

// closedOrFull says that admitReader would refuse now.
func (s *Server) closedOrFull() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.noListen || s.full()
}

// zoned addresses are kept from gnet: it puts the memory of the zone's name, which package net
// shares between addresses, into a pool of writable buffers.
func zoned(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.Zone != ""
}

func (s *Server) logAccept(msg string, args ...any) {
	s.mu.Lock()
	now := time.Now()
	quiet := now.Sub(s.logged) < logPause
	if !quiet {
		s.logged = now
	}
	s.mu.Unlock()
	if !quiet {
		s.opt.Log.Warn(msg, args...)
	}
}

// list makes an open connection visible to Conns and the ticker.
func (s *Server) list(c *Conn) {
	s.mu.Lock()
	c.index = len(s.conns)
	s.conns = append(s.conns, c)
	s.mu.Unlock()
}

// release forgets a connection that has ended; c is nil for one that never began.
func (s *Server) release(c *Conn) {
	var last octets
	if c != nil {
		last.add(c)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c != nil && c.index >= 0 {
		end := len(s.conns) - 1
		s.conns[c.index] = s.conns[end]
		s.conns[c.index].index = c.index
		s.conns[end] = nil
		s.conns = s.conns[:end]
		c.index = -1
		s.past.received += last.received
		s.past.sent += last.sent
		s.past.writes += last.writes
	}
	s.live--
	if s.live == 0 && s.empty != nil {
		close(s.empty)
		s.empty = nil
	}
}

// Conns iterates over the connections open at the call, in no order. Any goroutine.
func (s *Server) Conns() iter.Seq[*Conn] {
	s.mu.Lock()
	conns := slices.Clone(s.conns)
	s.mu.Unlock()
	return slices.Values(conns)
}

// Len is the number of open connections. Any goroutine.
func (s *Server) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// SetMaxConns changes Options.MaxConns; 0 is no bound. Connections above it stay. Any goroutine.
func (s *Server) SetMaxConns(n int) {
	s.mu.Lock()
	s.maxConns = n
	s.mu.Unlock()
}

// Connections are those that count for the bound, and the bound; 0: there is none. Any goroutine.
func (s *Server) Connections() (live, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live, s.maxConns
}

// Rejected counts the connections closed because there were MaxConns. Any goroutine.
func (s *Server) Rejected() uint64 { return s.rejected.Load() }

func (s *Server) tick() {
	t := time.NewTicker(s.opt.Tick)
	defer t.Stop()
	var conns []*Conn
	for {
		select {
		case <-s.stopTick:
			return
		case <-t.C:
			s.mu.Lock()
			conns = append(conns, s.conns...)
			s.mu.Unlock()
			// Not the tick's own time: on a busy machine it may be long ago, and so would be what came meanwhile.
			now := time.Now().UnixNano()
			for _, c := range conns {
				c.tick(now)
			}
			clear(conns)
			conns = conns[:0]
		}
	}
}

// CloseListeners stops accepting, and returns when no connection will be added any more. Any
// goroutine, but not a Handler.
func (s *Server) CloseListeners() {
	s.mu.Lock()
	listeners, handshakes := s.listeners, slices.Clone(s.handshakes)
	s.listeners = nil
	if !s.noListen {
		s.noListen = true
		close(s.accepting)
	}
	s.mu.Unlock()
	for _, ln := range listeners {
		ln.Close()
	}
	for _, nc := range handshakes {
		nc.Close()
	}
	s.acceptors.Wait()
}

// Unlisten closes the listeners there are. Unlike after CloseListeners, others may be opened. Any goroutine, but
// not a Handler.
func (s *Server) Unlisten() {
	s.mu.Lock()
	listeners := s.listeners
	s.listeners = nil
	s.mu.Unlock()
	for _, ln := range listeners {
		ln.Close()
	}
}

// Shutdown stops accepting, sends what every outbox holds and closes the connections as
// CloseAfterFlush does; those left when ctx ends are aborted, and it returns the ctx's error. All
// goroutines of the server have ended when it returns. Sessions that want to say goodbye do so
// before. Any goroutine, but not a Session or Handler.
func (s *Server) Shutdown(ctx context.Context) error {
	s.shutdown.Do(func() { s.result = s.stop(ctx) })
	return s.result
}

func (s *Server) stop(ctx context.Context) (err error) {
	s.CloseListeners()
	for c := range s.Conns() {
		c.CloseAfterFlush()
	}
	empty := s.emptied()
	select {
	case <-empty:
	case <-ctx.Done():
		err = ctx.Err()
		for c := range s.Conns() {
			c.Abort(ErrServerClosed)
		}
		<-empty // nobody is waited for but sessions, which do not block
	}
	s.readers.Wait()
	close(s.stopTick)
	s.ticker.Wait()
	if s.engine != nil {
		s.engine.stop()
	}
	return err
}

// emptied gives a chan that is closed when no connection is left. By one caller at a time.
func (s *Server) emptied() <-chan struct{} {
	empty := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live == 0 {
		close(empty)
	} else {
		s.empty = empty
	}
	return empty
}
