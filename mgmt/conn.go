package mgmt

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// Bounds of connections. Who is beyond them takes the place of a connection that waits for its client: of one without a
// request, or else of the oldest whose header is not there yet. Without such a one the new client is refused.
const (
	maxConns    = 1024
	maxOfOne    = maxConns / 4 // of one address, or of one /64 of IPv6
	lingerTime  = time.Second  // for the rest of a body that nobody reads
	lingerBytes = maxBody
)

// stage is what a connection waits for.
type stage uint8

const (
	reading stage = iota // the rest of a header: also when nothing has come yet
	idle                 // the next request
	serving              // the handler, a body, or whoever reads the answer
)

// conn is a connection that is in Server.open until it is closed.
type conn struct {
	*net.TCPConn
	s    *Server
	from netip.Prefix // whose it is; immutable
	once sync.Once

	// Guarded by Server.mu.
	then  func()    // called when it is closed; nil: nothing
	stage stage     // of the request
	since time.Time // of the stage

	// Owned by the connection's goroutine.
	body, answer share // what its request holds of Server.bodies and Server.answers
	linger       bool  // there is more to come that is not read
}

// Close ends the connection: by its goroutine, which gives a client that still sends the time to read the answer.
func (c *conn) Close() error {
	if c.linger {
		c.linger = false
		c.CloseWrite()
		c.SetReadDeadline(time.Now().Add(lingerTime))
		io.CopyN(io.Discard, c.TCPConn, lingerBytes)
	}
	return c.cutOff()
}

// cutOff ends the connection now. Any goroutine.
func (c *conn) cutOff() (err error) {
	c.once.Do(func() {
		err = c.TCPConn.Close()
		c.s.remove(c)
		c.s.mu.Lock()
		then := c.then
		c.s.mu.Unlock()
		c.s.open.Done()
		if then != nil {
			then()
		}
	})
	return err
}

// owner is whose share a connection from an address takes.
func owner(a net.Addr) netip.Prefix {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := t.AddrPort().Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// full refuses a client in as many words as fit before its request is read.
var full = []byte("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 21\r\n\r\ntoo many connections\n")

// add serves a connection, or closes it: beyond the bounds or after the end.
func (s *Server) add(tcp *net.TCPConn) {
	c := &conn{TCPConn: tcp, s: s, from: owner(tcp.RemoteAddr()), since: time.Now()}
	s.mu.Lock()
	closed := s.closed
	var victims []*conn
	ok := !closed
	if ok {
		victims, ok = s.makeRoom(c.from)
	}
	if ok {
		s.conns[c] = struct{}{}
		s.byOwner[c.from]++
		s.open.Add(1)
		s.running.Go(func() {
			if err := s.http.ServeConn(c); err != nil { // closes c, or whoever hijacked it does
				s.opt.Log.Debug("http connection", "peer", c.RemoteAddr(), "error", err)
			}
		})
	}
	s.mu.Unlock()
	for _, v := range victims {
		s.opt.Log.Warn("too many HTTP connections: one that waited for its client was closed", "peer", v.RemoteAddr())
	}
	if ok {
		return
	}
	if !closed {
		s.opt.Log.Warn("too many HTTP connections: a client was refused", "peer", tcp.RemoteAddr())
		tcp.Write(full) // its buffer is empty: this does not wait
		tcp.CloseWrite()
	}
	tcp.Close()
}

// makeRoom sees to it that one more connection keeps the bounds, and gives those that were cut off for it; ok is false
// when none could be. Under mu.
func (s *Server) makeRoom(from netip.Prefix) (cut []*conn, ok bool) {
	if s.byOwner[from] >= maxOfOne {
		v := s.evict(func(c *conn) bool { return c.from == from })
		if v == nil {
			return nil, false
		}
		cut = append(cut, v)
	}
	if len(s.conns) >= maxConns {
		v := s.evict(func(*conn) bool { return true })
		if v == nil {
			return cut, false
		}
		cut = append(cut, v)
	}
	return cut, true
}

// evict cuts the connection off that has waited for its client for longest; nil: there is none. Under mu.
func (s *Server) evict(among func(c *conn) bool) *conn {
	var victim *conn
	for c := range s.conns {
		if c.stage == serving || !among(c) {
			continue
		}
		if victim == nil || c.stage > victim.stage || c.stage == victim.stage && c.since.Before(victim.since) {
			victim = c
		}
	}
	if victim != nil {
		s.forget(victim)
		victim.TCPConn.Close() // its goroutine sees that, and does the rest
	}
	return victim
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(c)
}

// forget takes a connection out of the bounds, once. Under mu.
func (s *Server) forget(c *conn) {
	if _, ok := s.conns[c]; !ok {
		return
	}
	delete(s.conns, c)
	if s.byOwner[c.from]--; s.byOwner[c.from] == 0 {
		delete(s.byOwner, c.from)
	}
}

// enter says what a connection waits for from now on.
func (s *Server) enter(c *conn, to stage) {
	s.mu.Lock()
	c.stage, c.since = to, time.Now()
	s.mu.Unlock()
}

// state follows the connections, in their goroutines.
func (s *Server) state(nc net.Conn, state fasthttp.ConnState) {
	c := nc.(*conn)
	switch state {
	case fasthttp.StateActive: // the first byte of a request has come
		s.enter(c, reading)
		return
	case fasthttp.StateIdle:
		s.enter(c, idle)
	case fasthttp.StateClosed, fasthttp.StateHijacked:
	default:
		return
	}
	s.litter(c.body.bytes + c.answer.bytes)
	s.bodies.giveBack(&c.body)
	s.answers.giveBack(&c.answer)
}
