package conformance

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	wire "github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/internal/websocket"
)

// tap is a proxy for frames between a driver, over any transport, and the broker's listener for TCP. What
// the broker sends can be held back, changed and added to; connections can be cut and refused.
type tap struct {
	scheme string
	broker *broker
	ln     net.Listener
	loops  sync.WaitGroup

	mu sync.Mutex
	// Guarded by mu.
	cond    *sync.Cond // something below changed
	conns   map[net.Conn]*pipe
	hold    map[wire.Op]bool // of the broker's: kept until release
	held    [][]byte
	extra   bool // unknown keys are added to the broker's headers
	refuse  bool
	seen    map[wire.Op]int // frames of the driver
	accepts int             // connections, refused ones too
	closed  bool
	// heartbeat, when it is not 0, is the interval in seconds that the broker is asked for; wished is what
	// the client asked for.
	heartbeat, wished uint32
}

// pipe is one connection: bytes for the driver are written under its lock.
type pipe struct {
	t *tap

	mu     sync.Mutex
	driver net.Conn // guarded by mu where it is written to
}

func newTap(scheme string, b *broker) (*tap, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	if scheme == "fires" || scheme == "wss" {
		ln = tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{b.cert}})
	}
	t := &tap{scheme: scheme, broker: b, ln: ln, conns: map[net.Conn]*pipe{}, hold: map[wire.Op]bool{}, seen: map[wire.Op]int{}}
	t.cond = sync.NewCond(&t.mu)
	t.loops.Add(1)
	go t.accept()
	return t, nil
}

func (t *tap) addr() string { return t.ln.Addr().String() }

func (t *tap) accept() {
	defer t.loops.Done()
	for {
		c, err := t.ln.Accept()
		if err != nil {
			return
		}
		t.mu.Lock()
		t.accepts++
		t.cond.Broadcast()
		if t.refuse || t.closed {
			t.mu.Unlock()
			c.Close()
			continue
		}
		p := &pipe{t: t, driver: c}
		t.conns[c] = p
		t.loops.Add(1)
		t.mu.Unlock()
		go p.serve(c)
	}
}

// serve carries a connection until one side ends it.
func (p *pipe) serve(raw net.Conn) {
	t := p.t
	defer t.loops.Done()
	defer func() {
		raw.Close()
		t.mu.Lock()
		delete(t.conns, raw)
		t.mu.Unlock()
	}()
	if t.scheme == "ws" || t.scheme == "wss" {
		ctx, cancel := context.WithTimeout(context.Background(), commandLimit)
		defer cancel()
		c, err := websocket.Serve(ctx, raw)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.driver = c
		p.mu.Unlock()
	}
	up, err := net.Dial("tcp", t.broker.fire())
	if err != nil {
		return
	}
	defer up.Close()
	if t.scheme == "fire" || t.scheme == "fires" {
		if _, err := io.CopyN(io.Discard, p.driver, int64(len(wire.Preface))); err != nil {
			return
		}
	}
	if _, err := io.WriteString(up, wire.Preface); err != nil {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		copyFrames(p.driver, func(f []byte) error {
			_, err := up.Write(t.note(f))
			return err
		})
		up.Close()
	}()
	copyFrames(up, p.deliver)
	raw.Close()
	<-done
}

// copyFrames reads frames, each with its length, until there are no more or to fails.
func copyFrames(from io.Reader, to func(frame []byte) error) {
	for {
		var size [4]byte
		if _, err := io.ReadFull(from, size[:]); err != nil {
			return
		}
		n := binary.BigEndian.Uint32(size[:])
		if n < 5 || n > 2*wire.DefaultMaxFrame {
			return
		}
		f := append(size[:], make([]byte, n)...)
		if _, err := io.ReadFull(from, f[4:]); err != nil {
			return
		}
		if err := to(f); err != nil {
			return
		}
	}
}

// note counts a frame of the driver and gives what the broker is to be sent.
func (t *tap) note(f []byte) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	op := wire.Op(f[4])
	t.seen[op]++
	t.cond.Broadcast()
	if op != wire.OpHello || t.heartbeat == 0 {
		return f
	}
	frame, n, _, err := wire.Next(f, wire.MaxBeforeWelcome)
	var m wire.Hello
	if err != nil || n == 0 || wire.Decode(frame.Header, &m) != nil {
		return f
	}
	t.wished = m.Heartbeat
	m.Heartbeat = t.heartbeat
	return wire.Append(nil, wire.OpHello, &m)
}

// deliver passes on a frame of the broker, or keeps it.
func (p *pipe) deliver(f []byte) error {
	p.mu.Lock() // before the tap's: what is added comes between frames
	defer p.mu.Unlock()
	t := p.t
	t.mu.Lock()
	if t.hold[wire.Op(f[4])] {
		t.held = append(t.held, f)
		t.cond.Broadcast()
		t.mu.Unlock()
		return nil
	}
	extra := t.extra
	t.mu.Unlock()
	if extra {
		f = withUnknownKeys(f)
	}
	_, err := p.driver.Write(f)
	return err
}

// withUnknownKeys adds keys that version 1 does not have to a frame's header.
func withUnknownKeys(f []byte) []byte {
	const unknown = "\xa7x_later" + "\x83\xa1a\xc0\xa1b\x93\x01\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\xc4\x02\x00\xff\xa1c\xa3new" // {"a": nil, "b": [1, 1.5, bin], "c": "new"}
	frame, n, _, err := wire.Next(f, 2*wire.DefaultMaxFrame)
	if err != nil || n == 0 {
		return f
	}
	header := frame.Header
	switch {
	case len(header) == 0:
		header = []byte{0x80}
	case header[0]&0xf0 != 0x80 || header[0] == 0x8f:
		return f // no header of version 1 has as many
	}
	b := append(wire.Begin(nil, frame.Op), header[0]+1)
	b = append(append(b, unknown...), header[1:]...)
	return append(wire.End(b, 0, len(frame.Payload)), frame.Payload...)
}

// set changes what the tap does.
func (t *tap) set(change func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change()
}

// holdBack keeps the broker's frames of an op from now on.
func (t *tap) holdBack(op wire.Op) { t.set(func() { t.hold[op] = true }) }

// release passes on what was held, and holds nothing any more. It is for the only connection.
func (t *tap) release() error {
	p := t.only()
	if p == nil {
		return fmt.Errorf("the driver is not connected")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t.mu.Lock()
	held := t.held
	t.held, t.hold = nil, map[wire.Op]bool{}
	t.mu.Unlock()
	for _, f := range held {
		if _, err := p.driver.Write(f); err != nil {
			return err
		}
	}
	return nil
}

// send adds a frame to what the broker sends.
func (t *tap) send(frame []byte) error {
	p := t.only()
	if p == nil {
		return fmt.Errorf("the driver is not connected")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.driver.Write(frame)
	return err
}

func (t *tap) only() *pipe {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.conns {
		return p
	}
	return nil
}

// drop cuts all connections, and forgets and ends what was held.
func (t *tap) drop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held, t.hold = nil, map[wire.Op]bool{}
	for c := range t.conns {
		delete(t.conns, c)
		if tc, ok := c.(*tls.Conn); ok {
			c = tc.NetConn() // no goodbye
		}
		c.Close()
	}
}

// check says whether ok, which looks at what mu guards, is true.
func (t *tap) check(otherwise string, ok func() bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !ok() {
		return errors.New(otherwise)
	}
	return nil
}

// await waits until ok, which looks at what mu guards.
func (t *tap) await(what string, ok func() bool) error {
	late := false
	timer := time.AfterFunc(commandLimit, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		late = true
		t.cond.Broadcast()
	})
	defer timer.Stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	for !ok() {
		if late {
			return fmt.Errorf("not within %s: %s", commandLimit, what)
		}
		t.cond.Wait()
	}
	return nil
}

func (t *tap) close() {
	t.set(func() { t.closed = true })
	t.ln.Close()
	t.drop()
	t.loops.Wait()
}
