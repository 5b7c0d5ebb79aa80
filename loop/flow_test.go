package loop

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/firemq/firemq/pool"
)

// stalled is how long a write must not go on to count as stopped.
const stalled = 300 * time.Millisecond

// flood writes consecutive 8-byte numbers until it is stalled or has written limit of them, and
// goes on where it was: nothing is written twice or left out.
type flood struct {
	nc   *net.TCPConn
	next uint64 // number to write after rest
	rest []byte
	sent int64 // bytes
}

// run reports whether the peer stopped it.
func (f *flood) run(limit int64) (stopped bool) {
	for f.sent < limit {
		if len(f.rest) == 0 {
			f.rest = make([]byte, 0, 64<<10)
			for len(f.rest) < cap(f.rest) {
				f.rest = binary.BigEndian.AppendUint64(f.rest, f.next)
				f.next++
			}
		}
		f.nc.SetWriteDeadline(time.Now().Add(stalled))
		n, err := f.nc.Write(f.rest)
		f.rest = f.rest[n:]
		f.sent += int64(n)
		if err != nil {
			return errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
	return false
}

// sequence is a session that takes consecutive 8-byte numbers and pauses at pauseAt bytes.
type sequence struct {
	funcs
	t       *testing.T
	conn    *Conn
	pauseAt atomic.Int64
	got     atomic.Int64 // bytes
}

func (s *sequence) OnData(b []byte) (n, want int) {
	base := s.got.Load() / 8
	for ; len(b)-n >= 8; n += 8 {
		if v := binary.BigEndian.Uint64(b[n:]); v != uint64(base)+uint64(n/8) {
			s.t.Errorf("number %d where %d belongs", v, uint64(base)+uint64(n/8))
			s.conn.Abort(nil)
			break
		}
	}
	before := s.got.Load()
	now := s.got.Add(int64(n))
	if at := s.pauseAt.Load(); before < at && now >= at {
		s.conn.Pause(1)
	}
	return n, 8
}

// runTo writes until the pause of its session stops it. A stop before that is only a slow machine.
func (f *flood) runTo(t *testing.T, q *sequence) {
	t.Helper()
	for stopped := false; !stopped || q.got.Load() < q.pauseAt.Load(); {
		if stopped = f.run(1 << 30); !stopped {
			t.Fatal("the flood was not stopped")
		}
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestPauseStopsAFlood(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		opt.Loops = 1
		s := start(t, opt)
		sessions := make(chan *sequence, 1)
		const round = 4 << 20
		addr := listen(t, s, func(c *Conn) Session {
			q := &sequence{t: t, conn: c}
			q.pauseAt.Store(round)
			sessions <- q
			return q
		})
		other := dial(t, listen(t, s, echo)) // on the same loop
		f := flood{nc: dial(t, addr)}
		q := wait(t, sessions, "session")
		for i := range int64(3) {
			before := heap()
			f.runTo(t, q)
			got := q.got.Load()
			if over := got - q.pauseAt.Load(); over > 2*mostRead {
				t.Errorf("round %d: %d bytes taken, paused at %d", i, got, q.pauseAt.Load())
			}
			if grown := heap() - before; grown > 2<<20 {
				t.Errorf("round %d: the heap grew by %d bytes", i, grown)
			}
			other.Write([]byte("x"))
			if _, err := io.ReadFull(other, make([]byte, 1)); err != nil {
				t.Fatalf("the other connection: %v", err)
			}
			if now := q.got.Load(); now != got {
				t.Errorf("round %d: %d bytes taken while paused", i, now-got)
			}
			q.pauseAt.Store(got + round)
			if i == 2 {
				q.pauseAt.Store(1 << 60)
			}
			q.conn.Pause(2)
			q.conn.Resume(1) // the other reason still holds
			q.conn.Resume(2)
		}
		f.run(f.sent + round)
		f.nc.SetWriteDeadline(time.Time{})
		f.nc.Write(f.rest)
		all := int64(f.next) * 8
		eventually(t, "all is received", func() bool { return q.got.Load() == all })
	})
}

// TestPausedWhileReceiving pauses a connection, and sends more than 100 MB to it.
func TestPausedWhileReceiving(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		s := start(t, opt)
		conns := make(chan *Conn, 1)
		drained := make(chan struct{}, 1)
		var got atomic.Int64
		addr := listen(t, s, func(c *Conn) Session {
			conns <- c
			return &funcs{
				data:    func(b []byte) (int, int) { got.Add(int64(len(b))); return len(b), 0 },
				drained: func() { drained <- struct{}{} },
			}
		})
		nc := dial(t, addr)
		c := wait(t, conns, "connection")
		nc.Write([]byte("x"))
		eventually(t, "the first byte", func() bool { return got.Load() == 1 })
		c.Pause(1)
		if opt.Goroutines {
			nc.Write([]byte("y")) // its reader is in a read, which takes one chunk more
			eventually(t, "the second byte", func() bool { return got.Load() == 2 })
		}
		was := got.Load()
		nc.Write(make([]byte, 100_000))
		const total = 110 << 20
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			for range total / (1 << 18) {
				stageRef(c, 1<<18)
				for !c.Writable() {
					select {
					case <-drained:
					case <-time.After(patience):
						t.Error("not drained")
						return
					}
				}
			}
		})
		if _, err := io.CopyN(io.Discard, nc, total); err != nil {
			t.Fatal(err)
		}
		if got.Load() != was {
			t.Errorf("%d bytes read while paused", got.Load()-was)
		}
		c.Resume(1)
		eventually(t, "the bytes sent meanwhile", func() bool { return got.Load() == was+100_000 })
	})
}

// TestReadLittle has a flood read with care, paused meanwhile, and read as usual again: all of it comes, in order.
func TestReadLittle(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		opt.Loops = 1
		s := start(t, opt)
		var longest atomic.Int64
		sessions := make(chan *sequence, 1)
		closed := make(chan error, 1)
		addr := listen(t, s, func(c *Conn) Session {
			q := &sequence{t: t, conn: c}
			q.pauseAt.Store(2 << 20)
			q.closed = func(err error) { closed <- err }
			c.ReadLittle(true)
			sessions <- q
			return &measured{q, &longest}
		})
		other := dial(t, listen(t, s, echo)) // on the same loop
		f := flood{nc: dial(t, addr)}
		q := wait(t, sessions, "session")
		f.runTo(t, q)
		other.Write([]byte("x"))
		if _, err := io.ReadFull(other, make([]byte, 1)); err != nil {
			t.Fatalf("the other connection: %v", err)
		}
		if got := q.got.Load(); got > 2<<20+littleRead || longest.Load() > littleRead+8 {
			t.Errorf("%d bytes taken, %d at once", got, longest.Load())
		}
		q.pauseAt.Store(3 << 20)
		q.conn.Resume(1)
		eventually(t, "some more", func() bool { return q.got.Load() >= 3<<20 })
		if n := longest.Load(); n > littleRead+8 {
			t.Errorf("%d bytes taken at once", n)
		}
		q.pauseAt.Store(1 << 60)
		q.conn.ReadLittle(false)
		q.conn.Resume(1)
		f.run(f.sent + 4<<20)
		f.nc.SetWriteDeadline(time.Time{})
		f.nc.Write(f.rest)
		all := int64(f.next) * 8
		eventually(t, "all is received", func() bool { return q.got.Load() == all })
		if n := longest.Load(); n < 2*littleRead {
			t.Errorf("%d bytes taken at once of a flood", n)
		}
		q.conn.ReadLittle(true)
		f.nc.Close()
		if err := wait(t, closed, "OnClose"); err != io.EOF {
			t.Errorf("OnClose(%v)", err)
		}
	})
}

// measured notes the most bytes that its session was given at once.
type measured struct {
	Session
	longest *atomic.Int64
}

func (m *measured) OnData(b []byte) (n, want int) {
	m.longest.Store(max(m.longest.Load(), int64(len(b))))
	return m.Session.OnData(b)
}

// TestReadLittleOfABrokenPeer: a reset, and the server's own end, come through as ever.
func TestReadLittleOfABrokenPeer(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		conns := make(chan *Conn, 1)
		closed := make(chan error, 1)
		addr := listen(t, start(t, opt), func(c *Conn) Session {
			c.ReadLittle(true)
			conns <- c
			return &funcs{
				data:   func(b []byte) (int, int) { return len(b), 0 },
				closed: func(err error) { closed <- err },
			}
		})
		nc := dial(t, addr)
		wait(t, conns, "connection")
		nc.SetLinger(0)
		nc.Close()
		if err := wait(t, closed, "OnClose"); err == nil {
			t.Error("OnClose(nil)")
		}
		nc = dial(t, addr)
		wait(t, conns, "connection").CloseAfterFlush()
		nc.Write(make([]byte, 100_000))
		nc.CloseWrite()
		if _, err := io.ReadAll(nc); err != nil {
			t.Error(err)
		}
		if err := wait(t, closed, "OnClose"); err != nil {
			t.Errorf("OnClose(%v)", err)
		}
		dial(t, addr)
		c := wait(t, conns, "connection")
		for range 100 {
			c.Pause(1)
			c.Resume(1)
			c.ReadLittle(false)
			c.ReadLittle(true)
		}
		c.Abort(nil)
		wait(t, closed, "OnClose")
	})
}

func TestPeerEndsWhilePaused(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		conns := make(chan *Conn, 1)
		closed := make(chan error, 1)
		var got atomic.Int64
		addr := listen(t, start(t, opt), func(c *Conn) Session {
			c.Pause(1) // before anything is read
			conns <- c
			return &funcs{
				data:   func(b []byte) (int, int) { got.Add(int64(len(b))); return len(b), 0 },
				closed: func(err error) { closed <- err },
			}
		})
		const size = 100_000
		t.Run("FIN", func(t *testing.T) {
			nc := dial(t, addr)
			c := wait(t, conns, "connection")
			nc.Write(make([]byte, size))
			nc.Close()
			done := make(chan struct{})
			c.Do(func() { close(done) })
			wait(t, done, "task")
			if got.Load() != 0 || len(closed) != 0 {
				t.Errorf("paused: %d bytes read, closed %d times", got.Load(), len(closed))
			}
			c.Resume(1)
			if err := wait(t, closed, "OnClose"); err != io.EOF {
				t.Errorf("OnClose(%v)", err)
			}
			if got.Load() != size {
				t.Errorf("%d bytes received of %d", got.Load(), size)
			}
		})
		t.Run("RST", func(t *testing.T) {
			nc := dial(t, addr)
			c := wait(t, conns, "connection")
			nc.Write(make([]byte, size))
			nc.SetLinger(0)
			nc.Close()
			if opt.Goroutines {
				c.Resume(1) // event loops see it at once
			}
			if err := wait(t, closed, "OnClose"); err == nil {
				t.Error("OnClose(nil)")
			}
		})
		t.Run("Abort", func(t *testing.T) {
			dial(t, addr)
			wait(t, conns, "connection").Abort(nil)
			wait(t, closed, "OnClose")
		})
	})
}

func TestBacklogMarks(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		opt.High, opt.Low = 1<<20, 1<<18
		s := start(t, opt)
		conns := make(chan *Conn, 1)
		drained := make(chan int, 16)
		addr := listen(t, s, func(c *Conn) Session {
			conns <- c
			return &funcs{drained: func() {
				c.out.mu.Lock()
				drained <- c.out.backlog
				c.out.mu.Unlock()
			}}
		})
		nc := dial(t, addr)
		c := wait(t, conns, "connection")
		total := 0
		for round := 0; round < 3; {
			// The socket's own buffers are some megabytes, and may grow while this fills them.
			for c.Writable() {
				stageRef(c, 64<<10)
				if total += 64 << 10; total > 1<<30 {
					t.Fatal("the backlog never reached its mark")
				}
			}
			if got := c.Backlog(); got > opt.High+64<<10 {
				t.Errorf("round %d: backlog %d", round, got)
			}
			for len(drained) > 0 {
				<-drained
			}
			if c.Writable() {
				continue // it took everything meanwhile
			}
			round++
			if _, err := io.CopyN(io.Discard, nc, int64(total)); err != nil {
				t.Fatal(err)
			}
			total = 0
			if got := wait(t, drained, "OnDrained"); got >= opt.Low {
				t.Errorf("round %d: drained at %d", round, got)
			}
			eventually(t, "the backlog is 0", func() bool { return c.Backlog() == 0 })
			if !c.Writable() || len(drained) != 0 {
				t.Errorf("round %d: writable %t, %d more calls", round, c.Writable(), len(drained))
			}
		}
	})
}

// TestKillWithBacklog checks, in race builds through pool.Live, that every reference is released once.
func TestKillWithBacklog(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		s := start(t, opt)
		conns := make(chan *Conn, 1)
		closed := make(chan error, 1)
		addr := listen(t, s, func(c *Conn) Session {
			conns <- c
			return &funcs{closed: func(err error) { closed <- err }}
		})
		live := pool.Live()
		shared := pool.Get(100_000, pool.Messages)
		for round := range 20 {
			nc := dial(t, addr)
			c := wait(t, conns, "connection")
			for range 100 {
				shared.Retain()
				c.Lock()
				c.Put(append(c.Tail(10), "0123456789"...))
				c.Ref(shared, shared.B)
				if c.Unlock() {
					c.Flush()
				}
			}
			switch round % 3 {
			case 0:
				c.Abort(nil)
			case 1:
				nc.SetLinger(0)
				nc.Close()
			case 2:
				nc.Close()
			}
			wait(t, closed, "OnClose")
			if c.Writable() {
				t.Error("a dead connection is writable")
			}
		}
		shared.Release()
		eventually(t, "all references are released", func() bool { return pool.Live() <= live+1 }) // a reader's own buffer
	})
}

func TestCloseAfterFlushSendsAll(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		opt.Linger = time.Hour
		s := start(t, opt)
		closed := make(chan error, 1)
		const size = 32 << 20
		addr := listen(t, s, func(c *Conn) Session {
			return &funcs{
				data: func(b []byte) (int, int) {
					c.Pause(1) // lingering reads all the same
					for range size / (1 << 20) {
						stageRef(c, 1<<20)
					}
					stage(c, []byte("last"))
					c.CloseAfterFlush()
					return len(b), 0
				},
				closed: func(err error) { closed <- err },
			}
		})
		nc := dial(t, addr)
		nc.Write([]byte("x"))
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { // would be answered with a reset if it were not read
			for b := make([]byte, 1000); ; {
				select {
				case <-stop:
					return
				default:
					nc.Write(b)
				}
			}
		})
		b, err := io.ReadAll(nc)
		if err != nil || len(b) != size+4 || string(b[len(b)-4:]) != "last" {
			t.Errorf("received %d bytes, %v", len(b), err)
		}
		close(stop)
		wg.Wait()
		nc.Close()
		if err := wait(t, closed, "OnClose"); err != nil {
			t.Errorf("OnClose(%v)", err)
		}
	})
}

func TestLinger(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		opt.Tick = 5 * time.Millisecond
		opt.Linger = 50 * time.Millisecond
		conns := make(chan *Conn, 1)
		closed := make(chan error, 1)
		addr := listen(t, start(t, opt), func(c *Conn) Session {
			conns <- c
			return &funcs{closed: func(err error) { closed <- err }}
		})
		t.Run("the peer stays", func(t *testing.T) {
			nc := dial(t, addr)
			c := wait(t, conns, "connection")
			stage(c, []byte("bye"))
			c.CloseAfterFlush()
			if b, err := io.ReadAll(nc); string(b) != "bye" || err != nil {
				t.Errorf("received %q, %v", b, err)
			}
			if err := wait(t, closed, "OnClose"); err != nil {
				t.Errorf("OnClose(%v)", err)
			}
		})
		t.Run("the peer does not read", func(t *testing.T) {
			dial(t, addr)
			c := wait(t, conns, "connection")
			for range 32 {
				stageRef(c, 1<<20)
			}
			c.CloseAfterFlush()
			if err := wait(t, closed, "OnClose"); err != ErrLinger {
				t.Errorf("OnClose(%v)", err)
			}
		})
	})
}

// TestManySlowReaders has the write poller serve many connections, none of which may starve.
func TestManySlowReaders(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		s := start(t, opt)
		conns := make(chan *Conn, 1)
		addr := listen(t, s, func(c *Conn) Session { conns <- c; return &funcs{} })
		var wg sync.WaitGroup
		const n, size = 20, 8 << 20
		for range n {
			nc := dial(t, addr)
			c := wait(t, conns, "connection")
			for range size / (1 << 16) {
				stageRef(c, 1<<16)
			}
			wg.Go(func() {
				if _, err := io.CopyN(io.Discard, nc, size); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}
