package loop

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/firemq/firemq/pool"
)

// fake is a transport without a socket.
type fake struct {
	Conn
	sent  bytes.Buffer
	take  func(total int) int // how many bytes of a write the socket takes; nil: all
	armed bool
	ended bool

	discard bool // all is taken and forgotten
}

func newFake(session Session, opt Options) *fake {
	f := &fake{}
	opt.Log = quiet
	opt.High, opt.Low, opt.MaxWant = 1<<20, 1<<19, 1<<20
	f.init(&Server{opt: opt}, f, &net.TCPConn{})
	f.session = session
	f.callbacks.Store(0)
	return f
}

func (f *fake) begin(step) bool { return true }
func (f *fake) writev(s []seg) (int, bool, error) {
	total := 0
	for _, g := range s[:min(len(s), maxIov)] {
		total += len(g.p)
	}
	if f.discard {
		return total, false, nil
	}
	n := total
	if f.take != nil {
		n = f.take(total)
	}
	left := n
	for _, g := range s {
		k := min(left, len(g.p))
		f.sent.Write(g.p[:k])
		left -= k
	}
	return n, n < total, nil
}
func (f *fake) arm() bool   { f.armed = true; return true }
func (f *fake) closeWrite() { f.ended = true }
func (f *fake) limit(rate)  {}
func (f *fake) wake()       {}
func (f *fake) close()      {}
func (f *fake) sever() bool { holder := f.armed; f.armed = false; return holder }

// TestFramesSplitAnywhere gives three frames to a session in three reads, cut at every two places.
func TestFramesSplitAnywhere(t *testing.T) {
	var stream []byte
	bodies := [][]byte{[]byte("hello"), {}, bytes.Repeat([]byte("x"), 40)}
	for _, b := range bodies {
		stream = appendFrame(stream, b)
	}
	var got [][]byte
	exact := frames(func(b []byte) { got = append(got, bytes.Clone(b)) })
	for name, data := range map[string]func(b []byte) (int, int){
		"wants what it needs": exact,
		"wants any more":      func(b []byte) (int, int) { n, _ := exact(b); return n, 0 },
		"one frame a call": func(b []byte) (int, int) {
			if len(b) >= 4 {
				if size := 4 + int(binary.BigEndian.Uint32(b)); len(b) >= size {
					got = append(got, bytes.Clone(b[4:size]))
					return size, min(4, len(b)-size)
				}
			}
			return exact(b)
		},
	} {
		wants := name != "wants any more"
		called := func(b []byte) {}
		f := newFake(&funcs{data: func(b []byte) (int, int) { called(b); return data(b) }}, Options{})
		for i := range len(stream) + 1 {
			for j := i; j <= len(stream); j++ {
				got = got[:0]
				need := 0
				called = func(b []byte) {
					if wants && len(b) < need {
						t.Fatalf("%s: called with %d bytes, it wants %d", name, len(b), need)
					}
					need = 0
				}
				for _, part := range [][]byte{stream[:i], stream[i:j], stream[j:]} {
					f.feed(part)
					if need = f.want; f.carry != nil && need > 0 && len(f.carry.B) >= need {
						t.Fatalf("%s: %d bytes kept back, it wants %d", name, len(f.carry.B), need)
					}
				}
				if !slices.EqualFunc(got, bodies, bytes.Equal) {
					t.Fatalf("%s: cut at %d and %d: frames %q", name, i, j, got)
				}
				if f.carry != nil || f.closing.Load() {
					t.Fatalf("%s: cut at %d and %d: carry %v, closing %v", name, i, j, f.carry, f.closing.Load())
				}
			}
		}
	}
}

// TestTailCopiesOnlyWhatIsWanted feeds reads of 64 KiB that each end within a frame: only the cut
// frame is copied, the others are passed in place, and nothing is allocated.
func TestTailCopiesOnlyWhatIsWanted(t *testing.T) {
	var stream []byte
	for range 64 {
		stream = appendFrame(stream, make([]byte, 1019)) // 1023 bytes, coprime to 64 KiB
	}
	inCarry, inPlace := 0, 0
	var f *fake
	count := frames(func(b []byte) {})
	f = newFake(&funcs{data: func(b []byte) (int, int) {
		n, want := count(b)
		if f.carry != nil {
			inCarry += n
			if len(b) > 1023 {
				t.Errorf("%d bytes gathered for a frame of 1023", len(b))
			}
		} else {
			inPlace += n
		}
		return n, want
	}}, Options{})
	chunk := make([]byte, 64<<10)
	pos := 0
	next := func() {
		for i := 0; i < len(chunk); {
			k := copy(chunk[i:], stream[pos:])
			i += k
			pos = (pos + k) % len(stream)
		}
		f.feed(chunk)
	}
	if allocs := testing.AllocsPerRun(300, next); allocs > 0 {
		t.Errorf("%v allocations a read", allocs)
	}
	if inCarry*10 > inPlace {
		t.Errorf("%d bytes copied, %d passed in place", inCarry, inPlace)
	}
	f.dropCarry()
}

// TestCarryGrowsWithWhatCame claims a large frame and sends little of it.
func TestCarryGrowsWithWhatCame(t *testing.T) {
	f := newFake(&funcs{data: frames(func([]byte) {})}, Options{})
	f.feed(binary.BigEndian.AppendUint32(nil, 1<<19))
	for sent := 4; sent < 1<<18; sent += 100 {
		f.feed(make([]byte, 100))
		if limit := max(2*minCarry, 3*(sent+100)); cap(f.carry.B) > limit {
			t.Fatalf("%d bytes are kept for %d that came", cap(f.carry.B), sent+100)
		}
	}
	f.dropCarry()
}

func TestSessionWithoutProgressIsABug(t *testing.T) {
	for name, data := range map[string]func(b []byte) (int, int){
		"wants what it has":    func(b []byte) (int, int) { return 0, len(b) },
		"takes too much":       func(b []byte) (int, int) { return len(b) + 1, 0 },
		"takes less than 0":    func(b []byte) (int, int) { return -1, 0 },
		"wants less than 0":    func(b []byte) (int, int) { return 0, -1 },
		"wants beyond MaxWant": func(b []byte) (int, int) { return 0, 1<<20 + 1 },
	} {
		f := newFake(&funcs{data: data}, Options{})
		f.feed([]byte("abc"))
		if !f.aborted || f.err == nil {
			t.Errorf("%s: the connection lives", name)
		}
	}
	f := newFake(&funcs{data: func(b []byte) (int, int) { return 0, 0 }}, Options{})
	for range 1<<20/1000 + 1 {
		f.feed(make([]byte, 1000))
	}
	if !f.aborted {
		t.Error("leaves everything: the connection lives")
	}
	f.dropCarry()
}

func TestNoDataAfterClosing(t *testing.T) {
	calls := 0
	var f *fake
	f = newFake(&funcs{data: func(b []byte) (int, int) {
		calls++
		f.CloseAfterFlush()
		return 1, 1
	}}, Options{})
	f.feed([]byte("abc"))
	f.feed([]byte("def"))
	if calls != 1 {
		t.Errorf("OnData called %d times", calls)
	}
	if !f.ended {
		t.Error("the end of the stream was not sent")
	}
	f.dropCarry()
}

// TestOutboxKeepsTheOrder stages at random, with a socket that takes as much as it likes.
func TestOutboxKeepsTheOrder(t *testing.T) {
	for seed := range uint64(10) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		live := pool.Live()
		f := newFake(&funcs{}, Options{})
		f.take = func(total int) int {
			if rnd.IntN(3) == 0 {
				return rnd.IntN(total)
			}
			return total
		}
		var want []byte
		fill := func(b []byte) []byte {
			x := byte(rnd.Uint32())
			for i := range b {
				b[i] = x + byte(i)
			}
			want = append(want, b...)
			return b
		}
		for range 300 {
			f.Lock()
			for range rnd.IntN(10) {
				switch rnd.IntN(4) {
				case 0:
					b := pool.Get(1+rnd.IntN(20000), pool.Messages)
					f.Ref(b, fill(b.B))
				case 1: // asked for much, used little
					b := f.Tail(10000)
					n := rnd.IntN(20)
					fill(b[len(b) : len(b)+n])
					f.Put(b[:len(b)+n])
				default:
					n := rnd.IntN(3000)
					b := f.Tail(n)
					fill(b[len(b) : len(b)+n])
					f.Put(b[:len(b)+n])
				}
			}
			was := f.out.dirty
			if added := f.out.added; f.Unlock() != (!was && added > 0) {
				t.Fatal("Unlock does not tell clean from dirty")
			}
			if got := len(want) - f.sent.Len(); f.Backlog() != got {
				t.Fatalf("backlog %d, want %d", f.Backlog(), got)
			}
			if rnd.IntN(3) == 0 {
				f.Flush()
			}
			if f.armed && rnd.IntN(2) == 0 {
				f.armed = false
				f.pump(stepWrite, turnBytes)
			}
		}
		f.take = nil
		f.CloseAfterFlush()
		stage(&f.Conn, []byte("too late"))
		stageRef(&f.Conn, 5000)
		for f.armed {
			f.armed = false
			f.pump(stepWrite, turnBytes)
		}
		if !bytes.Equal(f.sent.Bytes(), want) {
			t.Fatalf("seed %d: sent bytes differ", seed)
		}
		if !f.ended || f.Backlog() != 0 || f.Writable() {
			t.Fatalf("seed %d: ended %t, backlog %d, writable %t", seed, f.ended, f.Backlog(), f.Writable())
		}
		if got := pool.Live(); got != live {
			t.Fatalf("seed %d: %d buffers lost", seed, got-live)
		}
	}
}

// TestDrainedDoesNotNest has OnDrained fill the outbox again and again.
func TestDrainedDoesNotNest(t *testing.T) {
	shared := pool.Get(64<<10, pool.Messages)
	calls, deepest := 0, 0
	var f *fake
	fill := func() {
		for f.Writable() {
			shared.Retain()
			f.Lock()
			f.Ref(shared, shared.B)
			if f.Unlock() && calls > 0 {
				f.Flush()
			}
		}
	}
	f = newFake(&funcs{drained: func() {
		if calls++; calls < 1000 {
			deepest = max(deepest, runtime.Callers(0, make([]uintptr, 1000)))
			fill()
		}
	}}, Options{})
	f.discard = true
	fill()
	f.Flush()
	turns := 1
	for ; f.armed; turns++ {
		f.armed = false
		f.pump(stepWrite, turnBytes)
	}
	if turns < calls {
		t.Errorf("%d turns for %d times half a megabyte", turns, calls)
	}
	if calls != 1000 || deepest > 50 {
		t.Errorf("OnDrained called %d times, %d calls deep", calls, deepest)
	}
	if f.Backlog() != 0 {
		t.Errorf("backlog %d", f.Backlog())
	}
	shared.Release()
}

func TestPutChecksItsBlock(t *testing.T) {
	for name, put := range map[string]func(c *Conn){
		"longer than asked": func(c *Conn) { b := c.Tail(1); c.Put(append(b, make([]byte, cap(b)+1)...)) },
		"shorter":           func(c *Conn) { c.Put(append(c.Tail(9), "123"...)); c.Put(c.Tail(9)[:1]) },
	} {
		func() {
			f := newFake(&funcs{}, Options{})
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
				f.Unlock()
				f.dropOutbox(false)
			}()
			f.Lock()
			put(&f.Conn)
		}()
	}
}

// TestNoCallAfterEnd: OnClose is the last call.
func TestNoCallAfterEnd(t *testing.T) {
	calls := 0
	f := newFake(&funcs{drained: func() { calls++ }, tick: func(int64) { calls++ }}, Options{})
	f.srv.live = 1
	f.end(nil)
	f.tick(1)
	f.callback("OnDrained", Session.OnDrained)
	if calls != 0 {
		t.Errorf("%d calls after OnClose", calls)
	}
}

// TestRaceWithDeath has many goroutines use a connection while it dies, in several ways.
func TestRaceWithDeath(t *testing.T) {
	both(t, func(t *testing.T, opt Options) {
		opt.Tick = 1e6
		opt.High, opt.Low = 100_000, 50_000
		s := start(t, opt)
		conns := make(chan *Conn, 1)
		closed := make(chan struct{}, 1)
		addr := listen(t, s, func(c *Conn) Session {
			conns <- c
			var over atomic.Bool
			check := func() {
				if over.Load() {
					t.Error("a call after OnClose")
				}
			}
			return &funcs{
				data:    func(b []byte) (int, int) { check(); stage(c, b); return len(b), 0 },
				tick:    func(int64) { check(); stage(c, []byte("tick")) },
				drained: func() { check(); stage(c, []byte("drained")) },
				closed: func(error) {
					if over.Swap(true) {
						t.Error("second OnClose")
					}
					closed <- struct{}{}
				},
			}
		})
		for round := range 16 {
			nc := dial(t, addr)
			c := wait(t, conns, "connection")
			stop := make(chan struct{})
			var wg sync.WaitGroup
			var staged atomic.Int64
			for g := range 6 {
				wg.Go(func() {
					small := []byte("0123456789")
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						switch (i + g) % 6 {
						case 0:
							if c.Writable() {
								stageRef(c, 8192)
							}
						case 1:
							c.Pause(1 << g)
						case 2:
							c.Resume(1 << g)
						case 3:
							c.Do(func() { stage(c, small) })
						default:
							if c.Writable() {
								stage(c, small)
							}
						}
						staged.Add(1)
					}
				})
			}
			wg.Go(func() {
				b := make([]byte, 1000)
				for {
					if round%2 == 0 {
						if _, err := nc.Read(b); err != nil {
							return
						}
					}
					if _, err := nc.Write(b); err != nil {
						return
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			})
			eventually(t, "some traffic", func() bool { return staged.Load() > 500 })
			switch round % 4 {
			case 0:
				c.Abort(nil)
			case 1:
				nc.SetLinger(0)
				nc.Close()
			case 2:
				c.CloseAfterFlush()
				nc.Close()
			case 3:
				c.CloseAfterFlush()
				c.Abort(errors.New("both"))
			}
			if round%4 == 1 && opt.Goroutines {
				c.Resume(^uint32(0))
				c.Abort(nil) // while paused it does not see the reset
			}
			wait(t, closed, fmt.Sprintf("OnClose in round %d", round))
			close(stop)
			nc.Close()
			wg.Wait()
			if c.Backlog() != 0 {
				t.Fatalf("backlog %d after death", c.Backlog())
			}
		}
	})
}
