package loop

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/firemq/firemq/internal/leak"
	"github.com/firemq/firemq/pool"
	"github.com/firemq/firemq/session"
)

var _ session.Outbox = (*Conn)(nil)

// patience bounds every wait of a test: reaching it is a failure.
const patience = 20 * time.Second

// funcs is a session made of functions; nil ones do nothing.
type funcs struct {
	data    func(b []byte) (n, want int)
	tick    func(now int64)
	drained func()
	closed  func(err error)
}

func (f *funcs) OnData(b []byte) (n, want int) {
	if f.data == nil {
		return len(b), 0
	}
	return f.data(b)
}

func (f *funcs) OnTick(now int64) {
	if f.tick != nil {
		f.tick(now)
	}
}

func (f *funcs) OnDrained() {
	if f.drained != nil {
		f.drained()
	}
}

func (f *funcs) OnClose(err error) {
	if f.closed != nil {
		f.closed(err)
	}
}

// quiet discards what the package logs.
var quiet = slog.New(slog.DiscardHandler)

// both runs a test over the event loops and over goroutines.
func both(t *testing.T, test func(t *testing.T, opt Options)) {
	if runtime.GOOS == "linux" {
		t.Run("gnet", func(t *testing.T) { test(t, Options{Log: quiet}) })
	}
	t.Run("goroutines", func(t *testing.T) { test(t, Options{Log: quiet, Goroutines: true}) })
}

// start makes a server that is shut down at the end of the test, and must leave no goroutine and
// no buffer behind. pool.Live counts in race builds.
func start(t testing.TB, opt Options) *Server {
	t.Helper()
	none := leak.Check(t)
	s, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	if !opt.Goroutines && runtime.GOOS == "linux" && s.engine == nil {
		t.Fatal("the event loops did not pass their check")
	}
	if s.live != 0 {
		t.Fatalf("a new server has %d connections", s.live)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.Shutdown(ctx)
		none()
	})
	return s
}

func listen(t testing.TB, s *Server, h Handler) string {
	t.Helper()
	addr, err := s.Listen("tcp", "127.0.0.1:0", h)
	if err != nil {
		t.Fatal(err)
	}
	return addr.String()
}

func dial(t testing.TB, addr string) *net.TCPConn {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(2 * patience))
	return nc.(*net.TCPConn)
}

// wait returns what comes from ch.
func wait[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s", what)
		panic("unreachable")
	}
}

// eventually polls a condition that nothing signals.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	every := time.NewTicker(time.Millisecond)
	defer every.Stop()
	for until := time.Now().Add(patience); !cond(); <-every.C {
		if time.Now().After(until) {
			t.Fatalf("not reached: %s", what)
		}
	}
}

// stage sends a copy of b.
func stage(c *Conn, b []byte) {
	c.Lock()
	c.Put(append(c.Tail(len(b)), b...))
	if c.Unlock() {
		c.Flush()
	}
}

// stageRef sends a buffer of n bytes by reference.
func stageRef(c *Conn, n int) {
	b := pool.Get(n, pool.Messages)
	clear(b.B)
	c.Lock()
	c.Ref(b, b.B)
	if c.Unlock() {
		c.Flush()
	}
}

func echo(c *Conn) Session {
	return &funcs{data: func(b []byte) (int, int) {
		stage(c, b)
		return len(b), 0
	}}
}

// frames decodes frames of a 4-byte length and as many bytes.
func frames(each func(body []byte)) func(b []byte) (n, want int) {
	return func(b []byte) (n, want int) {
		for {
			rest := b[n:]
			if len(rest) < 4 {
				return n, 4
			}
			size := 4 + int(binary.BigEndian.Uint32(rest))
			if len(rest) < size {
				return n, size
			}
			each(rest[4:size])
			n += size
		}
	}
}

func appendFrame(b, body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(body))), body...)
}

func TestEcho(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		addr := listen(t, start(t, opt), echo)
		var wg sync.WaitGroup
		for i := range 8 {
			nc := dial(t, addr)
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(1, uint64(i)))
				sent := make([]byte, 1<<20)
				for i := range sent {
					sent[i] = byte(rnd.Uint32())
				}
				go func() {
					for b := sent; len(b) > 0; {
						n := min(1+rnd.IntN(50000), len(b))
						nc.Write(b[:n])
						b = b[n:]
					}
				}()
				got := make([]byte, len(sent))
				if _, err := io.ReadFull(nc, got); err != nil {
					t.Error(err)
				} else if !bytes.Equal(got, sent) {
					t.Error("the echo differs")
				}
			})
		}
		wg.Wait()
	})
}

func TestListenErrors(t *testing.T) {
	s := start(t, Options{Log: quiet})
	addr := listen(t, s, echo)
	if _, port, _ := net.SplitHostPort(addr); port == "0" {
		t.Fatalf("bound address %s has no port", addr)
	}
	if _, err := s.Listen("tcp", addr, echo); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("second Listen at one address: %v", err)
	}
	if _, err := s.Listen("udp", "127.0.0.1:0", echo); err == nil {
		t.Error("Listen took network udp")
	}
	nc := dial(t, addr)
	nc.Write([]byte("x"))
	if _, err := io.ReadFull(nc, make([]byte, 1)); err != nil {
		t.Errorf("the first listener died: %v", err)
	}
	s.CloseListeners()
	if _, err := s.Listen("tcp", "127.0.0.1:0", echo); !errors.Is(err, ErrServerClosed) {
		t.Errorf("Listen after CloseListeners: %v", err)
	}
	if nc, err := net.Dial("tcp", addr); err == nil {
		nc.Close()
		t.Error("connected after CloseListeners")
	}
	nc.Write([]byte("y"))
	if _, err := io.ReadFull(nc, make([]byte, 1)); err != nil {
		t.Errorf("a connection died with the listeners: %v", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, opt := range map[string]Options{
		"negative":       {MaxConns: -1},
		"low above high": {High: 10, Low: 11},
	} {
		if _, err := New(opt); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestMaxConns(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		opt.MaxConns = 2
		s := start(t, opt)
		addr := listen(t, s, echo)
		ping := func(nc *net.TCPConn) error {
			if _, err := nc.Write([]byte("x")); err != nil {
				return err
			}
			_, err := io.ReadFull(nc, make([]byte, 1))
			return err
		}
		a, b := dial(t, addr), dial(t, addr)
		for _, nc := range []*net.TCPConn{a, b} {
			if err := ping(nc); err != nil {
				t.Fatal(err)
			}
		}
		if err := ping(dial(t, addr)); err == nil {
			t.Error("a third connection was served")
		}
		if got := s.Rejected(); got != 1 {
			t.Errorf("%d connections rejected, want 1", got)
		}
		a.Close()
		eventually(t, "the connection is gone", func() bool { return s.Len() == 1 })
		eventually(t, "a new connection is served", func() bool { return ping(dial(t, addr)) == nil })
	})
}

func TestDoRunsInTheReaderContextInOrder(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		conns := make(chan *Conn, 1)
		total := 0 // owned by the reader: the race detector watches
		addr := listen(t, start(t, opt), func(c *Conn) Session {
			conns <- c
			return &funcs{data: func(b []byte) (int, int) { total += len(b); return len(b), 0 }}
		})
		nc := dial(t, addr)
		c := wait(t, conns, "connection")
		var wg sync.WaitGroup
		const each = 3000
		wg.Go(func() {
			for range each {
				nc.Write([]byte("x"))
			}
		})
		for range 3 {
			wg.Go(func() {
				last := 0
				for i := range each {
					c.Do(func() {
						total++
						if i < last {
							t.Errorf("task %d ran after %d", i, last)
						}
						last = i
					})
				}
			})
		}
		wg.Wait()
		done := make(chan int)
		eventually(t, "all is received", func() bool {
			c.Do(func() { done <- total })
			return wait(t, done, "answer of a task") == 4*each
		})
		c.Do(func() { stage(c, []byte("flushed")) })
		if _, err := io.ReadFull(nc, make([]byte, 7)); err != nil {
			t.Fatal(err)
		}
		c.Abort(nil)
		eventually(t, "the connection is gone", func() bool { return c.srv.Len() == 0 })
		c.Do(func() { t.Error("a task ran after OnClose") })
	})
}

func TestTickAndClocks(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		opt.Tick = time.Millisecond
		ticks := make(chan int64)
		conns := make(chan *Conn, 1)
		addr := listen(t, start(t, opt), func(c *Conn) Session {
			conns <- c
			return &funcs{tick: func(now int64) {
				select {
				case ticks <- now:
				default:
				}
			}}
		})
		nc := dial(t, addr)
		c := wait(t, conns, "connection")
		opened := c.LastRead()
		first := wait(t, ticks, "tick")
		if second := wait(t, ticks, "tick"); second <= first {
			t.Errorf("tick %d after %d", second, first)
		}
		if c.LastRead() != opened || c.LastWrite() != opened {
			t.Error("an idle connection's clocks went on")
		}
		nc.Write([]byte("x"))
		eventually(t, "LastRead goes on", func() bool { return c.LastRead() > opened })
		if c.LastWrite() != opened {
			t.Error("reading moved LastWrite")
		}
		stage(c, []byte("y"))
		io.ReadFull(nc, make([]byte, 1))
		eventually(t, "LastWrite goes on", func() bool { return c.LastWrite() > opened })
		at := c.LastRead()
		wait(t, ticks, "tick")
		at = max(at, c.LastRead())
		wait(t, ticks, "tick")
		wait(t, ticks, "tick")
		if got := c.LastRead(); got > at {
			t.Errorf("LastRead moved by %d ns without bytes", got-at)
		}
	})
}

// What came while the ticker was held up is not noted as if it had come when that should have ticked.
func TestTickThatComesLate(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		opt.Tick = time.Millisecond
		conns, got, ticks := make(chan *Conn, 1), make(chan struct{}, 1), make(chan struct{})
		held, release := make(chan struct{}), make(chan struct{})
		sessions := 0
		addr := listen(t, start(t, opt), func(c *Conn) Session {
			conns <- c
			if sessions++; sessions > 1 { // it is told of a tick after the first one
				var once sync.Once
				return &funcs{tick: func(int64) { once.Do(func() { close(held); <-release }) }}
			}
			return &funcs{
				data: func(b []byte) (int, int) { got <- struct{}{}; return len(b), 0 },
				tick: func(int64) {
					select {
					case ticks <- struct{}{}:
					default:
					}
				},
			}
		})
		nc := dial(t, addr)
		c := wait(t, conns, "connection")
		dial(t, addr)
		wait(t, conns, "the second connection")
		wait(t, held, "tick of the second connection")
		<-time.After(20 * opt.Tick) // the next one waits for the ticker
		before := time.Now().UnixNano()
		nc.Write([]byte("x"))
		wait(t, got, "byte")
		close(release)
		wait(t, ticks, "tick")
		wait(t, ticks, "tick")
		if at := c.LastRead(); at < before {
			t.Errorf("a byte was noted %s before it was sent", time.Duration(before-at))
		}
	})
}

func TestPanicClosesOnlyItsConnection(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		opt.Tick = time.Millisecond
		opt.Loops = 1 // all share the loop that a panic must not end
		closed := make(chan error, 1)
		var tickPanics atomic.Bool
		var refuse atomic.Bool
		addr := listen(t, start(t, opt), func(c *Conn) Session {
			if refuse.Load() {
				panic("handler")
			}
			f := &funcs{closed: func(err error) { closed <- err; panic("OnClose") }}
			f.data = func(b []byte) (int, int) {
				switch b[0] {
				case 'p':
					panic("OnData")
				case 'l':
					c.Lock()
					c.Put(append(c.Tail(10), "half"...))
					panic("OnData with the outbox locked")
				case 'n':
					return 0, 1
				case 'm':
					return len(b) + 1, 0
				case 'd':
					c.Do(func() { panic("task") })
				case 't':
					tickPanics.Store(true)
				default:
					stage(c, b)
				}
				return len(b), 0
			}
			f.tick = func(int64) {
				if tickPanics.Swap(false) {
					panic("OnTick")
				}
			}
			return f
		})
		good := dial(t, addr)
		ping := func() {
			t.Helper()
			good.Write([]byte("x"))
			if _, err := io.ReadFull(good, make([]byte, 1)); err != nil {
				t.Fatalf("the other connection died: %v", err)
			}
		}
		ping()
		for _, how := range []string{"p", "l", "n", "m", "d"} {
			nc := dial(t, addr)
			nc.Write([]byte(how))
			if err := wait(t, closed, "OnClose after "+how); err == nil {
				t.Errorf("%s: OnClose(nil)", how)
			}
			ping()
		}
		refuse.Store(true)
		if _, err := dial(t, addr).Read(make([]byte, 1)); err == nil {
			t.Error("a connection without session lives")
		}
		ping()
		good.Write([]byte("t")) // its own tick
		if err := wait(t, closed, "OnClose after a tick"); err == nil {
			t.Error("tick: OnClose(nil)")
		}
	})
}

func TestHandlerRefusesWithNil(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		s := start(t, opt)
		addr := listen(t, s, func(*Conn) Session { return nil })
		if _, err := dial(t, addr).Read(make([]byte, 1)); err == nil {
			t.Error("the connection lives")
		}
		eventually(t, "the server forgot it", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.live == 0
		})
	})
}

func TestOnCloseTellsWhy(t *testing.T) {
	reason := errors.New("reason")
	both(t, func(t *testing.T, opt Options) {
		closed := make(chan error, 1)
		conns := make(chan *Conn, 1)
		addr := listen(t, start(t, opt), func(c *Conn) Session {
			conns <- c
			return &funcs{closed: func(err error) { closed <- err }}
		})
		for _, tc := range []struct {
			name string
			act  func(nc *net.TCPConn, c *Conn)
			want error
		}{
			{"the peer closes", func(nc *net.TCPConn, c *Conn) { nc.Close() }, io.EOF},
			{"the peer resets", func(nc *net.TCPConn, c *Conn) { nc.SetLinger(0); nc.Close() }, syscall.ECONNRESET},
			{"Abort", func(nc *net.TCPConn, c *Conn) { c.Abort(reason); c.Abort(nil) }, reason},
			{"Abort without reason", func(nc *net.TCPConn, c *Conn) { c.Abort(nil) }, nil},
			{"CloseAfterFlush", func(nc *net.TCPConn, c *Conn) { c.CloseAfterFlush(); io.Copy(io.Discard, nc); nc.Close() }, nil},
		} {
			nc := dial(t, addr)
			tc.act(nc, wait(t, conns, "connection"))
			if err := wait(t, closed, "OnClose"); !errors.Is(err, tc.want) {
				t.Errorf("%s: OnClose(%v), want %v", tc.name, err, tc.want)
			}
		}
	})
}

func TestShutdownSendsWhatIsStaged(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		s := start(t, opt)
		conns := make(chan *Conn, 10)
		addr := listen(t, s, func(c *Conn) Session { conns <- c; return &funcs{} })
		const size = 4 << 20
		var wg sync.WaitGroup
		for range 10 {
			nc := dial(t, addr)
			c := wait(t, conns, "connection")
			for range size / 65536 {
				stageRef(c, 65536)
			}
			wg.Go(func() {
				n, err := io.Copy(io.Discard, nc)
				if n != size || err != nil {
					t.Errorf("received %d bytes, %v", n, err)
				}
				nc.Close()
			})
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		wg.Wait()
		if s.Len() != 0 {
			t.Errorf("%d connections left", s.Len())
		}
	})
}

func TestShutdownAbortsAtTheEndOfItsContext(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		s := start(t, opt)
		conns := make(chan *Conn, 1)
		closed := make(chan error, 1)
		addr := listen(t, s, func(c *Conn) Session {
			conns <- c
			return &funcs{closed: func(err error) { closed <- err }}
		})
		dial(t, addr) // reads nothing
		c := wait(t, conns, "connection")
		for range 32 {
			stageRef(c, 1<<20)
		}
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(20*time.Millisecond, cancel)
		if err := s.Shutdown(ctx); err != context.Canceled {
			t.Errorf("Shutdown: %v", err)
		}
		if err := wait(t, closed, "OnClose"); err != ErrServerClosed {
			t.Errorf("OnClose(%v)", err)
		}
	})
}
