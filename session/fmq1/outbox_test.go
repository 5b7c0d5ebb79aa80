package fmq1

import (
	"net"
	"sync"

	"github.com/firemq/firemq/pool"
)

// memory is an Outbox that keeps what it is given. High-water marks are what tests say.
type memory struct {
	mu   sync.Mutex
	tail []byte
	refs int

	full   bool // not writable
	closed bool // CloseAfterFlush was called
	err    error
	paused uint32
	little bool
	tasks  []func()
	clock  int64 // for LastRead and LastWrite
	dirty  bool
	locked bool
}

func (m *memory) Lock() { m.mu.Lock(); m.locked = true }
func (m *memory) Unlock() bool {
	d := m.dirty
	m.dirty, m.locked = false, false
	m.mu.Unlock()
	return d
}

// Tail gives exactly the room asked for, so that a frame larger than announced is found.
func (m *memory) Tail(n int) []byte {
	if cap(m.tail)-len(m.tail) < n {
		grown := make([]byte, len(m.tail), 2*cap(m.tail)+n)
		copy(grown, m.tail)
		m.tail = grown
	}
	return m.tail[: len(m.tail) : len(m.tail)+n]
}

func (m *memory) Put(b []byte) {
	if len(b) > 0 && &b[:1][0] != &m.tail[:1][0] {
		panic("BUG: more bytes than Tail was asked for")
	}
	m.tail = m.tail[:len(b)]
	m.dirty = true
}

func (m *memory) Ref(b *pool.Buf, p []byte) {
	m.tail = append(m.tail, p...)
	m.refs++
	m.dirty = true
	b.Release()
}

func (m *memory) Flush()              {}
func (m *memory) Writable() bool      { return !m.full }
func (m *memory) Pause(reason uint32) { m.free(); m.paused |= reason }
func (m *memory) Resume(r uint32)     { m.free(); m.paused &^= r }
func (m *memory) ReadLittle(on bool)  { m.free(); m.little = on }
func (m *memory) Do(f func())         { m.free(); m.tasks = append(m.tasks, f) }
func (m *memory) CloseAfterFlush()    { m.free(); m.closed = true }
func (m *memory) Abort(err error)     { m.free(); m.err = err }
func (m *memory) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5673} }
func (m *memory) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 50000}
}
func (m *memory) LastRead() int64  { return m.clock }
func (m *memory) LastWrite() int64 { return m.clock }

// free checks that a call does not come with the outbox locked. The tests have one goroutine.
func (m *memory) free() {
	if m.locked {
		panic("BUG: the outbox is locked")
	}
}

// run carries out what Do was called with.
func (m *memory) run() {
	for len(m.tasks) > 0 {
		f := m.tasks[0]
		m.tasks = m.tasks[1:]
		f()
	}
}

func (m *memory) take() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := append([]byte(nil), m.tail...)
	m.tail = m.tail[:0]
	return b
}
