package loop

import (
	"io"
	"math"
	"net"
	"sync"

	"github.com/firemq/firemq/pool"
)

const (
	// A reader waits with a small buffer, and has a large one while there is much to read.
	smallRead = 2 << 10
	largeRead = 64 << 10
)

// stream is a connection with a goroutine that reads, and another one while there is something to
// write or a task of Do to run. It serves any net.Conn.
type stream struct {
	Conn
	in      io.Reader  // immutable
	out     net.Conn   // what is sent, and the end of the stream; immutable
	socket  net.Conn   // out, or what is below it: closing it never waits; immutable
	turn    sync.Mutex // held by who is the reader: around OnData, OnClose and the tasks of Do
	resumed sync.Cond  // of ctl: not paused any more, or closing
	closed  bool       // guarded by ctl

	// Made once, as a go statement with arguments allocates.
	pumpAll, runAll func()

	// Owned by the holder of busy.
	first step
	iov   net.Buffers
}

// prepare makes t the transport of a connection. tr is t, or what embeds it.
func (t *stream) prepare(s *Server, tr transport) {
	t.init(s, tr, t.socket)
	t.resumed.L = &t.ctl
	t.pumpAll = func() {
		defer s.readers.Done()
		t.pump(t.first, math.MaxInt)
	}
	t.runAll = func() {
		defer s.readers.Done()
		t.turn.Lock()
		defer t.turn.Unlock()
		t.runTasks()
	}
}

// serveGo makes nc a connection, which it owns from now on.
func (s *Server) serveGo(nc net.Conn, h Handler) {
	t := &stream{in: nc, out: nc, socket: nc}
	t.prepare(s, t)
	ok := t.openLocked(h)
	s.readers.Go(func() { t.read(ok, 0, t.received) })
}

func (t *stream) openLocked(h Handler) bool {
	t.turn.Lock()
	defer t.turn.Unlock()
	return t.open(h)
}

func (t *stream) received(b []byte) error {
	t.feed(b)
	return nil
}

// read reads until the connection ends. What comes is handed to receive in b[head:], by the reader.
func (t *stream) read(ok bool, head int, receive func(b []byte) error) {
	var err error
	buf := pool.Get(smallRead, pool.Receiving)
	for ok && err == nil {
		most := t.waitResumed()
		if most == 0 {
			break
		}
		var n int
		if n, err = t.in.Read(buf.B[head:min(head+most, len(buf.B))]); n > 0 {
			t.turn.Lock()
			if e := receive(buf.B[:head+n]); e != nil {
				err = e
			}
			t.turn.Unlock()
		}
		if size := len(buf.B); head+n == size && size < largeRead {
			buf.Release()
			buf = pool.Get(largeRead, pool.Receiving)
		} else if n <= smallRead/2 && size > smallRead {
			buf.Release()
			buf = pool.Get(smallRead, pool.Receiving)
		}
	}
	buf.Release()
	t.turn.Lock()
	t.end(err)
	t.turn.Unlock()
}

// waitResumed waits until reading is not paused, and says how many bytes may be read at once; 0: the
// connection is closed.
func (t *stream) waitResumed() (most int) {
	t.ctl.Lock()
	defer t.ctl.Unlock()
	for t.rate == readNone && !t.closed {
		t.resumed.Wait()
	}
	switch {
	case t.closed:
		return 0
	case t.rate == readLittle:
		return littleRead
	}
	return largeRead
}

func (t *stream) begin(s step) bool {
	t.first = s
	t.srv.readers.Add(1) // the reader, counted as well, needs outbox.mu before it ends
	go t.pumpAll()
	return false
}

var iovPool = sync.Pool{New: func() any { return new([maxIov][]byte) }}

func (t *stream) writev(s []seg) (n int, full bool, err error) {
	if len(s) == 1 {
		n, err = t.out.Write(s[0].p)
		return n, false, err
	}
	iov := iovPool.Get().(*[maxIov][]byte)
	for i := range min(len(s), maxIov) {
		iov[i] = s[i].p
	}
	t.iov = iov[:min(len(s), maxIov)]
	sent, err := t.iov.WriteTo(t.out)
	t.iov = nil
	clear(iov[:])
	iovPool.Put(iov)
	return int(sent), false, err
}

func (t *stream) arm() bool { return false } // never asked: Write waits for the socket itself

func (t *stream) closeWrite() {
	if w, ok := t.out.(interface{ CloseWrite() error }); ok {
		w.CloseWrite() // fails only if the connection is broken, which the reader sees
		return
	}
	t.Abort(nil)
}

func (t *stream) limit(rate) { t.resumed.Signal() }

func (t *stream) wake() {
	t.srv.readers.Add(1) // the reader, counted as well, needs ctl before it ends
	go t.runAll()
}

func (t *stream) close() {
	t.closed = true
	t.socket.Close()
	t.resumed.Signal()
}

func (t *stream) sever() bool {
	t.socket.Close()
	return false
}
