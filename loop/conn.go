package loop

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/firemq/firemq/pool"
)

var (
	// ErrServerClosed is what OnClose gets when Shutdown had no more time for the connection, and
	// what Listen returns after the listeners were closed.
	ErrServerClosed = errors.New("server closed")
	// ErrLinger is what OnClose gets when the peer did not take the last bytes: Options.Linger.
	ErrLinger = errors.New("peer did not take the last bytes in time")

	errArm = errors.New("cannot wait for the socket to become writable")
)

// transport is what differs between sockets. Its methods never block, but for writev in a
// goroutine that begin started.
type transport interface {
	// begin tells whether the caller itself carries out the step with pump; else the transport
	// has given busy and the step to a goroutine. outbox.mu held.
	begin(s step) (inline bool)
	// writev sends as much as the socket takes; full says that it takes no more now. By the
	// holder of busy.
	writev(s []seg) (n int, full bool, err error)
	// arm passes busy on to the write poller, which calls pump as soon as the socket is writable;
	// false leaves it with the caller: the socket is closed.
	arm() bool
	// closeWrite sends the end of the stream. By the holder of busy.
	closeWrite()
	// limit changes how much is read at once. ctl held, not gone.
	limit(r rate)
	// wake has runTasks called in the reader context. ctl held, not gone.
	wake()
	// close ends reading soon, which calls Conn.end. ctl held, not gone.
	close()
	// sever makes every later system call of ours on the socket fail. True passes busy to the
	// caller, from the write poller. By the reader.
	sever() (holder bool)
}

// Conn is one connection. It satisfies the Outbox of package session.
//
// Its locks are outbox.mu for staging, ctl for reading and closing, and the write lock of the gnet
// transport for system calls of the sending side. None is taken under another of them.
type Conn struct {
	srv           *Server   // immutable
	meter         *meter    // of who reads; immutable after open
	tr            transport // immutable
	local, remote net.Addr  // immutable
	session       Session   // written by open, then immutable; nil when refused
	index         int       // in srv.conns, -1 when not in it; guarded by srv.mu

	// Owned by the reader.
	carry *pool.Buf // received bytes that the session left; nil when there are none
	want  int       // the length of carry at which the session can go on, 0: any more

	got, wrote          atomic.Bool  // since the last tick
	lastRead, lastWrite atomic.Int64 // Unix ns, written by the ticker

	received, reads atomic.Uint64 // written by the reader

	closing atomic.Bool // OnData is not called any more

	// The number of OnTick and OnDrained calls going on, and the bits notOpen and ended: no more then.
	callbacks     atomic.Int32
	callbacksDone chan struct{} // made by end before it sets ended; the last call sends on it

	ctl sync.Mutex
	// Guarded by ctl.
	rate    rate     // what the transport was told
	paused  uint32   // reasons
	little  bool     // see ReadLittle
	tasks   []func() // for the reader; what Do is called with before they run is bounded by the callers
	linger  int64    // when CloseAfterFlush was called, Unix ns; 0: it was not
	aborted bool     // err is the reason
	err     error
	gone    bool // the transport must not be called any more

	out outbox
}

// Bits of Conn.callbacks above the count.
const (
	notOpen = 1 << 29
	ended   = 1 << 30
)

// minCarry is how large a carry buffer may be, in bytes, whatever has come of the frame.
const minCarry = 4 << 10

func (c *Conn) init(s *Server, tr transport, nc net.Conn) {
	c.srv, c.tr, c.index = s, tr, -1
	c.meter = &s.streams[rand.IntN(len(s.streams))]
	c.local, c.remote = nc.LocalAddr(), nc.RemoteAddr()
	c.callbacks.Store(notOpen)
	c.out.grow = minBlock
	c.out.writable.Store(true)
	now := time.Now().UnixNano()
	c.lastRead.Store(now)
	c.lastWrite.Store(now)
}

// open makes the session. By the reader, first of all; false: close it, end follows.
func (c *Conn) open(h Handler) (ok bool) {
	defer func() {
		if v := recover(); v != nil {
			c.broken("Handler", v)
			ok = false
		}
	}()
	if c.session = h(c); c.session == nil {
		return false
	}
	c.callbacks.Store(0)
	c.srv.list(c)
	c.Flush()
	return true
}

// feed gives received bytes to the session, in place. What it leaves of them is carried over, and
// of the next read only as many bytes join it as the session wants: a long read is never copied
// for a short tail. By the reader.
func (c *Conn) feed(b []byte) {
	defer func() {
		if v := recover(); v != nil {
			c.broken("OnData", v)
		}
	}()
	began := c.meter.begin()
	c.got.Store(true)
	if len(b) > 0 {
		c.received.Add(uint64(len(b)))
		c.reads.Add(1)
	}
	for !c.closing.Load() {
		var want, seen int // the session has seen that much of b
		if c.carry == nil {
			if len(b) == 0 {
				break
			}
			var n int
			n, want = c.onData(b)
			b = b[n:]
			seen = len(b)
		} else {
			rest := c.fill(b)
			joined := len(b) - len(rest)
			if have := len(c.carry.B); have < c.want || c.want == 0 && joined == 0 {
				break
			}
			var n int
			n, want = c.onData(c.carry.B)
			if seen = len(c.carry.B) - n; seen > joined { // bytes of earlier reads are left
				c.carry.B = c.carry.B[:copy(c.carry.B, c.carry.B[n:])]
				c.want = want
				b = rest
				continue
			}
			c.dropCarry()
			b = b[joined-seen:] // all that is left came with this read: go on in place
		}
		if len(b) > 0 && (want > len(b) || want == 0 && seen == len(b)) {
			c.want = want
			c.carry = pool.Get(max(len(b), min(want, max(minCarry, 2*len(b)))), pool.Receiving)
			c.carry.B = c.carry.B[:copy(c.carry.B, b)]
			break
		}
	}
	c.Flush()
	c.meter.end(began)
}

// fill appends to the carry what the session wants of b, or a good part of b if it cannot say,
// and returns the rest of b.
func (c *Conn) fill(b []byte) []byte {
	have := len(c.carry.B)
	n := max(have, minCarry)
	if c.want > 0 {
		n = max(c.want-have, 0)
	}
	n = min(n, len(b))
	size := have + n
	if size > c.srv.opt.MaxWant {
		panic(fmt.Sprintf("BUG: loop: session leaves more than %d bytes", c.srv.opt.MaxWant))
	}
	if size > cap(c.carry.B) {
		// As large as what has come asks for, not as large as the peer says its frame will be.
		grown := pool.Get(max(size, min(c.want, 2*size)), pool.Receiving)
		grown.B = grown.B[:copy(grown.B, c.carry.B)]
		c.carry.Release()
		c.carry = grown
	}
	c.carry.B = append(c.carry.B, b[:n]...)
	return b[n:]
}

func (c *Conn) dropCarry() {
	if c.carry != nil {
		c.carry.Release()
		c.carry, c.want = nil, 0
	}
}

func (c *Conn) onData(b []byte) (n, want int) {
	n, want = c.session.OnData(b)
	switch left := len(b) - n; {
	case n < 0 || left < 0 || want < 0:
		panic(fmt.Sprintf("BUG: loop: OnData of %d bytes returned n=%d want=%d", len(b), n, want))
	case n == 0 && want > 0 && want <= left && !c.closing.Load():
		panic(fmt.Sprintf("BUG: loop: OnData of %d bytes wants %d and took none", len(b), want))
	case want > c.srv.opt.MaxWant:
		panic(fmt.Sprintf("BUG: loop: session wants %d bytes, more than %d", want, c.srv.opt.MaxWant))
	}
	return n, want
}

// Do runs f in the reader context, between two OnData calls, and flushes the outbox after it. It
// is dropped when the connection is gone. Any goroutine, outbox not locked.
func (c *Conn) Do(f func()) {
	c.ctl.Lock()
	defer c.ctl.Unlock()
	if c.gone {
		return
	}
	c.tasks = append(c.tasks, f)
	if len(c.tasks) == 1 {
		c.tr.wake()
	}
}

// runTasks runs what Do was called with so far. By the reader.
func (c *Conn) runTasks() {
	began := c.meter.begin()
	c.ctl.Lock()
	tasks := c.tasks
	c.tasks = nil
	c.ctl.Unlock()
	for _, f := range tasks {
		c.runTask(f)
	}
	c.Flush()
	c.meter.end(began)
}

func (c *Conn) runTask(f func()) {
	defer func() {
		if v := recover(); v != nil {
			c.broken("Do", v)
		}
	}()
	f()
}

// mostRead is the most bytes that are read at once: by an event loop, which has one buffer of this size;
// other transports read less. A turn is over one read, and what a turn costs is shared by its messages;
// but a full read keeps the loop's other connections waiting: BENCHMARKS.md has what larger ones do.
const mostRead = 128 << 10

// littleRead is the most bytes that are read at once of a connection that is read with care.
const littleRead = 4 << 10

// rate says how much of a connection is read at once.
type rate uint8

const (
	readMost   rate = iota
	readLittle      // littleRead bytes
	readNone
)

// Pause stops reading from the peer until every reason paused was resumed; what is received already
// is still given to OnData, one read (mostRead) at most. Each bit of reason is a reason of its own.
// A paused connection does not see its peer's end of stream. Any goroutine, outbox not locked.
func (c *Conn) Pause(reason uint32) {
	c.ctl.Lock()
	defer c.ctl.Unlock()
	c.paused |= reason
	c.setRate()
}

// Resume takes reasons of Pause back. Any goroutine, outbox not locked.
func (c *Conn) Resume(reason uint32) {
	c.ctl.Lock()
	defer c.ctl.Unlock()
	c.paused &^= reason
	c.setRate()
}

// ReadLittle has at most littleRead bytes read at once from now on, or again as many as there are: for a peer
// of whose bytes the next ones may have to be kept. A read that goes on is as long as it is. Any goroutine,
// outbox not locked.
func (c *Conn) ReadLittle(on bool) {
	c.ctl.Lock()
	defer c.ctl.Unlock()
	c.little = on
	c.setRate()
}

// setRate tells the transport what has changed. ctl held.
func (c *Conn) setRate() {
	r := readMost
	switch {
	case c.linger != 0: // all is read, and dropped
	case c.paused != 0:
		r = readNone
	case c.little:
		r = readLittle
	}
	if r != c.rate && !c.gone {
		c.rate = r
		c.tr.limit(r)
	}
}

// CloseAfterFlush sends what is staged and the end of the stream, then closes when the peer has
// closed too, at the latest when it took nothing for Options.Linger. OnData is not called any
// more: what is received is dropped, so that no reset destroys what was sent last. What is staged
// from now on is dropped, and OnTick is not called any more. A peer that closes its side first ends
// the connection at once. Any goroutine, outbox not locked.
func (c *Conn) CloseAfterFlush() {
	c.closing.Store(true)
	c.ctl.Lock()
	if c.linger != 0 || c.gone {
		c.ctl.Unlock()
		return
	}
	c.linger = time.Now().UnixNano()
	c.setRate()
	c.ctl.Unlock()
	c.out.mu.Lock()
	c.out.seal()
	c.out.finish = true
	c.out.mu.Unlock()
	c.Flush()
}

// Abort closes at once; what is not sent is dropped. err goes to OnClose, the first one if there
// are several. Any goroutine, outbox not locked.
func (c *Conn) Abort(err error) {
	c.ctl.Lock()
	defer c.ctl.Unlock()
	c.abort(err)
}

// abort is Abort with ctl held.
func (c *Conn) abort(err error) {
	c.closing.Store(true)
	if c.gone || c.aborted {
		return
	}
	c.aborted, c.err = true, err
	c.tr.close()
}

// end is the reader's last act on the connection; after it the transport closes the socket.
func (c *Conn) end(err error) {
	c.closing.Store(true)
	c.ctl.Lock()
	c.gone = true
	c.tasks = nil
	aborted, lingering := c.aborted, c.linger != 0
	if aborted {
		err = c.err
	}
	c.ctl.Unlock()
	c.dropOutbox(c.tr.sever())
	c.dropCarry()
	if lingering && !aborted && errors.Is(err, io.EOF) && c.finished() {
		err = nil
	}
	c.callbacksDone = make(chan struct{}, 1)
	if was := c.callbacks.Add(ended) - ended; 0 < was && was < notOpen {
		<-c.callbacksDone // they do not block
	}
	if c.session != nil {
		c.close(err)
	}
	c.srv.release(c)
}

func (c *Conn) close(err error) {
	defer func() {
		if v := recover(); v != nil {
			c.broken("OnClose", v)
		}
	}()
	c.session.OnClose(err)
}

// finished reports whether all is sent, and the end of the stream.
func (c *Conn) finished() bool {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.shut
}

// tick is called by the server's ticker.
func (c *Conn) tick(now int64) {
	if c.got.Load() && c.got.Swap(false) {
		c.lastRead.Store(now)
	}
	if c.wrote.Load() && c.wrote.Swap(false) {
		c.lastWrite.Store(now)
	}
	c.ctl.Lock()
	since := c.linger
	c.ctl.Unlock()
	if since == 0 {
		c.callback("OnTick", func(s Session) { s.OnTick(now) })
		return
	}
	if now-max(since, c.lastWrite.Load()) >= int64(c.srv.opt.Linger) {
		if c.finished() {
			c.Abort(nil)
		} else {
			c.Abort(ErrLinger)
		}
	}
}

// callback calls f unless the session is not there yet or has ended: end waits for it.
func (c *Conn) callback(name string, f func(Session)) {
	defer func() {
		if c.callbacks.Add(-1) == ended {
			select {
			case c.callbacksDone <- struct{}{}:
			default: // one came and went after end looked
			}
		}
	}()
	if c.callbacks.Add(1) >= notOpen {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			c.broken(name, v)
		}
	}()
	f(c.session)
}

// broken reports a panic of the session that is being recovered, and closes its connection alone.
func (c *Conn) broken(where string, v any) {
	c.unlockBroken()
	c.srv.opt.Log.Error("session panicked, its connection is closed",
		"in", where, "panic", v, "remote", c.remote, "stack", string(debug.Stack()))
	c.Abort(fmt.Errorf("session panicked in %s: %v", where, v))
}

// unlockBroken unlocks the outbox if the panic left it locked. Others hold
// the lock only to append a few bytes, so when it is not free for a whole second it is ours.
func (c *Conn) unlockBroken() {
	for until := time.Now().Add(time.Second); !c.out.mu.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			c.Unlock()
			return
		}
	}
	c.out.mu.Unlock()
}

// Session is what the Handler made of the connection. Any goroutine, once the Handler has returned.
func (c *Conn) Session() Session { return c.session }

// Octets tells how many bytes were received and sent so far, and in how many reads and writes. Any
// goroutine.
func (c *Conn) Octets() (received, sent, reads, writes uint64) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.received.Load(), c.out.sent, c.reads.Load(), c.out.writes
}

// LocalAddr is the address the peer connected to. Any goroutine.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr is the peer's address. Any goroutine.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// LastRead is when the last byte came, in Unix ns: at most a tick later than it was, and earlier at most by what a tick
// takes for all connections. Any goroutine.
func (c *Conn) LastRead() int64 {
	if c.got.Load() {
		return time.Now().UnixNano()
	}
	return c.lastRead.Load()
}

// LastWrite is when the kernel took the last byte, as exact as LastRead. Any goroutine.
func (c *Conn) LastWrite() int64 {
	if c.wrote.Load() {
		return time.Now().UnixNano()
	}
	return c.lastWrite.Load()
}
