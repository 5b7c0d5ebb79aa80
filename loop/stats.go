package loop

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// Stats are figures of a Server since it started. None goes back.
type Stats struct {
	// Loops are the event loops, in the order of their first connections, and at the end those connections
	// together that have a goroutine each.
	Loops []LoopStats
	// Received, Sent and Writes are of all connections, closed ones too: bytes, and calls that sent them.
	Received, Sent, Writes uint64
}

// LoopStats are figures of an event loop.
type LoopStats struct {
	// Turns are reads that were given to their sessions, and runs of what Conn.Do was called with.
	Turns uint64
	// Busy is how long they took, writing included, estimated from one in 16.
	Busy time.Duration
}

// Stats reports the figures. Any goroutine.
func (s *Server) Stats() Stats {
	st := Stats{Loops: make([]LoopStats, 0, len(s.loops)+1)}
	for i := range s.loops {
		st.Loops = append(st.Loops, s.loops[i].stats())
	}
	var streams LoopStats
	for i := range s.streams {
		m := s.streams[i].stats()
		streams.Turns += m.Turns
		streams.Busy += m.Busy
	}
	st.Loops = append(st.Loops, streams)
	s.mu.Lock()
	all, conns := s.past, slices.Clone(s.conns)
	s.mu.Unlock()
	for _, c := range conns {
		all.add(c)
	}
	st.Received, st.Sent, st.Writes = all.received, all.sent, all.writes
	return st
}

// octets add up connections.
type octets struct{ received, sent, writes uint64 }

func (o *octets) add(c *Conn) {
	received, sent, _, writes := c.Octets()
	o.received += received
	o.sent += sent
	o.writes += writes
}

// timed is one in how many turns is measured, to spare the others two readings of the clock. Chance picks them, as
// the same connections may take their turns in the same order for long.
const timed = 16

// meter counts turns. It has cache lines of its own, as event loops write them all the time.
type meter struct {
	turns atomic.Uint64
	busy  atomic.Int64 // ns
	_     [112]byte
}

// begin counts a turn; the time is zero when it is not measured.
func (m *meter) begin() (began time.Time) {
	m.turns.Add(1)
	if rand.Uint32()%timed == 0 {
		began = time.Now()
	}
	return began
}

func (m *meter) end(began time.Time) {
	if !began.IsZero() {
		m.busy.Add(timed * int64(time.Since(began)))
	}
}

func (m *meter) stats() LoopStats { return LoopStats{m.turns.Load(), time.Duration(m.busy.Load())} }

// meterOf is the meter of the event loop with that epoll set.
func (s *Server) meterOf(set int) *meter {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.sets, set)
	if i < 0 {
		i = len(s.sets)
		s.sets = append(s.sets, set)
	}
	return &s.loops[i]
}

// forget sets the figures back to 0. No connection is open, and nobody knows the server.
func (s *Server) forget() {
	clear(s.loops)
	clear(s.streams[:])
	s.mu.Lock()
	s.past = octets{}
	s.mu.Unlock()
}
