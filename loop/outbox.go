package loop

import (
	"sync"
	"sync/atomic"

	"github.com/firemq/firemq/pool"
)

const (
	// The sizes of blocks that staged bytes are copied into. A connection with little traffic has
	// small ones, so that ten thousand slow ones stay small; each full block makes the next one
	// larger. An idle connection has none.
	minBlock = 4 << 10
	maxBlock = 64 << 10

	// maxIov is the most segments in one write.
	maxIov = 64
	// turnBytes is about how much one goroutine writes to one connection at once; the write poller
	// goes on then, also in turns. So a fast peer cannot keep the reader of another connection, or
	// the write poller, for itself. It is well above the burst that a usual prefetch of 1,000 small
	// messages makes (330 KB): a quarter of it sent the end of each such burst through the write
	// poller, at three to five times the CPU per message.
	turnBytes = 1 << 20
	// keptSegs bounds the lists of segments that are kept for reuse: 32 KiB each.
	keptSegs = 1024
)

// seg is a piece of bytes to send and the buffer that holds it, with one reference.
type seg struct {
	buf *pool.Buf
	p   []byte
}

// segs is a list of segments; those before next are sent and released.
type segs struct {
	s    []seg
	next int
}

var segsPool = sync.Pool{New: func() any { return &segs{s: make([]seg, 0, 8)} }}

// advance counts n bytes as sent, releases the segments that are, and reports whether all are.
func (l *segs) advance(n int) (done bool) {
	for l.next < len(l.s) {
		g := &l.s[l.next]
		if n < len(g.p) {
			g.p = g.p[n:]
			return false
		}
		n -= len(g.p)
		g.buf.Release()
		*g = seg{}
		l.next++
	}
	return true
}

// drop releases the segments that are left, and the list.
func (l *segs) drop() {
	for _, g := range l.s[l.next:] {
		g.buf.Release()
	}
	l.free()
}

func (l *segs) free() {
	if cap(l.s) > keptSegs {
		return
	}
	clear(l.s)
	l.s, l.next = l.s[:0], 0
	segsPool.Put(l)
}

// outbox is the sending side of a Conn: bytes are staged under mu, and swapped out and written by
// whoever holds busy. A reference is released exactly once: by the holder of busy when the
// kernel took its last byte or the connection died, or by the outbox when nobody had swapped it out.
//
// Invariants, with mu free:
//   - dirty is set exactly when something is staged;
//   - backlog is the bytes staged and the bytes swapped out but not yet in the kernel;
//   - full is set when backlog reached the high-water mark and has not been below the low one since.
type outbox struct {
	mu sync.Mutex

	// Guarded by mu.
	block    *pool.Buf // under construction, with one reference; nil when there is none
	tail     []byte    // the part of block that is not in a segment yet
	staged   *segs     // complete segments; nil when there are none
	added    int       // bytes staged since Lock
	size     int       // bytes staged since the last swap
	grow     int       // bytes of the next block
	backlog  int
	sent     uint64 // bytes so far
	writes   uint64
	dirty    bool
	full     bool
	sealed   bool        // closing or gone: what is staged is dropped
	junk     *pool.Buf   // takes what is staged while sealed, until Unlock
	finish   bool        // shut the sending side down after the last byte
	shut     bool        // that has been started; busy is never given back
	dead     bool        // dropped; backlog stays 0
	busy     bool        // somebody writes, or waits for a full socket
	writable atomic.Bool // backlog < high and not sealed; written under mu, read by anybody

	// Owned by the holder of busy.
	flying *segs
}

// Lock takes the outbox. It is a leaf: nothing else may be locked, and nothing of this Conn but
// Tail, Put, Ref and Unlock called, under it. Any goroutine.
func (c *Conn) Lock() { c.out.mu.Lock() }

// Unlock gives the outbox back. True means that bytes were staged into a clean outbox: the caller
// must call Flush soon, holding no lock.
func (c *Conn) Unlock() (flush bool) {
	o := &c.out
	if o.added > 0 {
		o.backlog += o.added
		o.size += o.added
		o.added = 0
		if o.backlog >= c.srv.opt.High {
			o.full = true
			if o.writable.Load() {
				o.writable.Store(false)
			}
		}
		flush = !o.dirty
		o.dirty = true
	}
	if o.junk != nil {
		o.junk.Release()
		o.junk = nil
	}
	o.mu.Unlock()
	return flush
}

// Tail is the block under construction, with room for n more bytes: append at most n to it and
// Put it back before anything else. It is valid until then. Lock held.
func (c *Conn) Tail(n int) []byte {
	o := &c.out
	if cap(o.tail)-len(o.tail) < n || o.sealed {
		o.moreRoom(n)
	}
	return o.tail
}

func (o *outbox) moreRoom(n int) {
	if o.sealed {
		if o.junk != nil {
			o.junk.Release()
		}
		o.junk = pool.Get(n, pool.Sending)
		o.tail = o.junk.B[:0]
		return
	}
	if o.block != nil {
		o.cut()
		o.block.Release()
		o.grow = min(o.grow*4, maxBlock)
	}
	o.block = pool.Get(max(n, o.grow), pool.Sending)
	o.tail = o.block.B[:0]
}

// Put hands the block from Tail back, longer. Lock held.
func (c *Conn) Put(b []byte) {
	o := &c.out
	n := len(b) - len(o.tail)
	if n < 0 || cap(b) != cap(o.tail) {
		panic("BUG: loop: Put of more bytes than Tail was asked for, or of another block")
	}
	if o.sealed {
		o.tail = nil
		return
	}
	o.tail = b
	o.added += n
}

// Ref stages p, a part of b, without copying it; for 4 KiB and more, below that copying costs
// less. It takes over one reference, which the caller has retained: released exactly once, when
// the kernel has the bytes or the connection died. Lock held.
func (c *Conn) Ref(b *pool.Buf, p []byte) {
	o := &c.out
	if len(p) == 0 || o.sealed {
		b.Release()
		return
	}
	o.cut()
	o.stage(seg{b, p})
	o.added += len(p)
}

// cut makes a segment of the bytes in the block that are not in one yet.
func (o *outbox) cut() {
	n := len(o.tail)
	if n == 0 {
		return
	}
	o.block.Retain()
	o.stage(seg{o.block, o.tail[:n:n]})
	o.tail = o.tail[n:]
}

func (o *outbox) stage(g seg) {
	if o.staged == nil {
		o.staged = segsPool.Get().(*segs)
	}
	o.staged.s = append(o.staged.s, g)
}

// take swaps out all that is staged; nil when nothing is. mu held.
func (o *outbox) take() *segs {
	if o.block != nil {
		if len(o.tail) > 0 {
			o.stage(seg{o.block, o.tail}) // with the block's own reference
		} else {
			o.block.Release()
		}
		o.block, o.tail = nil, nil
	}
	l := o.staged
	o.staged = nil
	o.dirty = false
	if o.size < o.grow/8 {
		o.grow = max(o.grow/4, minBlock)
	}
	o.size = 0
	return l
}

// seal completes what is staged, and drops all that will be staged from now on. mu held.
func (o *outbox) seal() {
	if o.block != nil {
		o.cut()
		o.block.Release()
		o.block, o.tail = nil, nil
	}
	o.sealed = true
	o.writable.Store(false)
}

// step is what the holder of busy has to do next.
type step int

const (
	stepIdle  step = iota // nothing: busy is given back
	stepWrite             // write what is flying
	stepShut              // shut the sending side down, and keep busy
)

// next swaps the outbox for the holder of busy, who has nothing flying. mu held.
func (o *outbox) next() step {
	switch {
	case o.dirty:
		o.flying = o.take()
		return stepWrite
	case o.finish && !o.shut && !o.dead:
		o.shut = true
		return stepShut
	}
	o.busy = false
	return stepIdle
}

// Flush writes as much as the socket takes; the rest follows by itself. Any goroutine, no lock
// held. It never blocks; one goroutine at a time writes, and takes over what others flush. The write
// costs its caller some 5 µs, so a turn stages all it has before it flushes.
func (c *Conn) Flush() {
	o := &c.out
	o.mu.Lock()
	if o.busy || !o.dirty && !(o.finish && !o.shut) {
		o.mu.Unlock()
		return
	}
	o.busy = true
	s := o.next()
	inline := s != stepIdle && c.tr.begin(s)
	o.mu.Unlock()
	if inline {
		c.pump(s, turnBytes)
	}
}

// pump writes until nothing is staged any more, the socket is full, or budget bytes are written;
// then the write poller goes on. Called by the holder of busy, which pump gives back or hands over.
func (c *Conn) pump(s step, budget int) {
	for s == stepWrite {
		n, full, err := c.tr.writev(c.out.flying.s[c.out.flying.next:])
		if n > 0 {
			budget -= n
			c.wrote.Store(true)
		}
		done := c.out.flying.advance(n)
		if done {
			c.out.flying.free()
			c.out.flying = nil
		}
		if s = c.sent(n, done); err == nil && s == stepWrite && (full || budget <= 0) {
			if c.tr.arm() {
				return
			}
			err = errArm
		}
		if err != nil {
			c.dropOutbox(true)
			c.Abort(err)
			return
		}
	}
	if s == stepShut {
		c.tr.closeWrite()
	}
}

// sent takes n bytes off the backlog and says what the holder of busy does next. OnDrained is
// called before busy is given back: what it stages is written by the caller's loop and not by a
// Flush within it, so that calls do not nest without a bound.
func (c *Conn) sent(n int, done bool) step {
	o := &c.out
	o.mu.Lock()
	if n > 0 {
		o.sent += uint64(n)
		o.writes++
	}
	if !o.dead {
		o.backlog -= n
		if o.backlog < c.srv.opt.High && !o.sealed && !o.writable.Load() {
			o.writable.Store(true)
		}
		if o.full && o.backlog < c.srv.opt.Low {
			o.full = false
			o.mu.Unlock()
			c.callback("OnDrained", Session.OnDrained)
			o.mu.Lock()
		}
	}
	s := stepWrite
	if done {
		s = o.next()
	}
	o.mu.Unlock()
	return s
}

// dropOutbox releases all that is staged and, for the holder of busy, all that is flying: a
// holder elsewhere does so when it finds the socket closed. What is staged later is dropped.
func (c *Conn) dropOutbox(holder bool) {
	o := &c.out
	o.mu.Lock()
	o.seal()
	o.dead = true
	staged := o.take()
	if !o.busy {
		o.busy, holder = true, true
	}
	o.backlog = 0
	o.mu.Unlock()
	if staged != nil {
		staged.drop()
	}
	if holder && o.flying != nil {
		o.flying.drop()
		o.flying = nil
	}
}

// Writable reports whether the backlog is below the high-water mark; false once the connection
// closes. Any goroutine.
func (c *Conn) Writable() bool { return c.out.writable.Load() }

// Backlog is the number of bytes staged and not yet in the kernel. Any goroutine, outbox not locked.
func (c *Conn) Backlog() int {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.backlog
}
