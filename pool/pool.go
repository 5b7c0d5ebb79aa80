// Package pool lends counted byte buffers.
//
// A buffer is taken with Get, shared with Retain and given back with Release; the
// last Release returns it for reuse. Sizes are rounded up to a class, four classes
// to each doubling, so that at most a fifth of a buffer is unused. Buffers above
// MaxPooled are plain allocations left to the garbage collector, and what the
// pools hold is freed by it too, so idle memory shrinks by itself.
//
// Any goroutine may call any function. In race builds Live counts what is lent,
// and a Release too many panics in every build.
package pool

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	minShift = 6 // the smallest class is 64 bytes
	maxShift = 21

	// MaxPooled is the largest size in bytes kept for reuse.
	MaxPooled = 1 << maxShift

	classes = (maxShift-minShift)*4 + 1
)

// Use is what a buffer is for. Lent tells the bytes of each use.
type Use uint8

const (
	Messages  Use = iota // content: whoever keeps it, a queue or an outbox that refers to it
	Sending              // what is encoded and waits for a socket
	Receiving            // what came and is not a whole frame yet
	uses
)

// Buf is one counted buffer. B is the holder's to write until the buffer is shared;
// once shared it is immutable.
type Buf struct {
	B []byte // the n bytes asked for

	refs  int32 // atomic while the buffer is lent
	class int8  // index into pools, -1 when not pooled
	use   Use   // of this lending
}

// overhead is what a buffer takes beside its bytes: itself, as a part of a message.
const overhead = 80

// pools are those of messages, whose buffers Embed has made, and those of all others.
var pools [2][classes]sync.Pool

func (u Use) pools() *[classes]sync.Pool {
	if u == Messages {
		return &pools[1]
	}
	return &pools[0]
}

// message makes a buffer for Messages, see Embed.
var message = func() *Buf { return new(Buf) }

// Embed has every buffer for Messages made by fresh: as a zero part of a larger object, which whoever lends
// the buffer lends with it. Both then lie side by side in memory and cost one pool. To be called once, before the first Get:
// from an initialisation.
func Embed(fresh func() *Buf) { message = fresh }

// Get lends a buffer of n bytes with undefined content and one reference.
func Get(n int, use Use) *Buf {
	c := classOf(n)
	var b *Buf
	if c >= 0 {
		b, _ = use.pools()[c].Get().(*Buf)
	}
	if b == nil {
		b = fresh(n, c, use)
	}
	b.B, b.use = b.B[:n], use
	b.refs = 1 // nobody else has it: without a locked instruction, which would wait for all that was written before
	lent(1)
	count(use, 1, cap(b.B))
	return b
}

// fresh makes a buffer of class c for n bytes.
func fresh(n, c int, use Use) *Buf {
	var b *Buf
	if use == Messages {
		b = message()
	} else {
		b = new(Buf)
	}
	if b.class = int8(c); c >= 0 {
		n = classSize(c)
		missed.Add(1)
	} else {
		oversize.Add(1)
	}
	b.B = make([]byte, n)
	return b
}

// Retain adds a reference, RetainN n of them. The caller must hold one.
func (b *Buf) Retain()       { atomic.AddInt32(&b.refs, 1) }
func (b *Buf) RetainN(n int) { atomic.AddInt32(&b.refs, int32(n)) }

// Release gives one reference back; the caller must not touch b.B afterwards.
func (b *Buf) Release() {
	switch n := atomic.AddInt32(&b.refs, -1); {
	case n > 0:
		return
	case n < 0:
		panic("BUG: pool: buffer released more often than retained")
	}
	lent(-1)
	count(b.use, -1, cap(b.B))
	if b.class >= 0 {
		b.B = b.B[:0]
		b.use.pools()[b.class].Put(b)
	}
}

// Buffers that had to be allocated, since the start: none of their class was there, or they are above MaxPooled.
var missed, oversize atomic.Uint64

// Misses counts the buffers that were allocated since the start: those of a size that is pooled, when none was left
// to reuse, and those above MaxPooled, which never are.
func Misses() (empty, large uint64) { return missed.Load(), oversize.Load() }

// tallies add up to what is lent. Each goroutine adds to that of its stack, so that a buffer which
// one goroutine takes and another gives back makes them share no cache line; a single tally may be
// negative.
var tallies [32]tally

type tally struct {
	lent [uses]atomic.Int64 // of granules << bufferBits + buffers: one addition counts both
	_    [128 - 8*uses]byte // two cache lines in all: processors fetch them in pairs
}

// A sum of tallies has the buffers in its low bits, up to 268 million, and the memory above them, up to 256 GiB. The
// memory is counted in granules: size classes and overhead are multiples of it, other sizes are rounded up.
const (
	bufferBits = 29
	granule    = 16
)

// count adds n buffers, 1 or -1, of size bytes to the tally of the goroutine's stack. Stacks are not smaller than
// 2 KiB.
func count(use Use, n, size int) {
	var here byte
	at := uintptr(unsafe.Pointer(&here)) >> 11
	tallies[(at^at>>5)%uintptr(len(tallies))].lent[use].Add(int64(n) * lending(size))
}

// lending is what a buffer of size bytes adds to a tally.
func lending(size int) int64 { return int64(size+overhead+granule-1)/granule<<bufferBits + 1 }

// Lent is how much memory the buffers take that are lent and not yet released, in bytes: the whole of
// their size class, and the objects around them. While others take and release it is about right.
func Lent(use Use) int64 {
	bytes, _ := sum(use)
	return bytes
}

// Buffers is how many buffers are lent, as right as Lent.
func Buffers(use Use) int64 {
	_, buffers := sum(use)
	return buffers
}

func sum(use Use) (bytes, buffers int64) {
	sum := int64(0)
	for i := range tallies {
		sum += tallies[i].lent[use].Load()
	}
	buffers = sum << (64 - bufferBits) >> (64 - bufferBits) // with its sign: a release may be seen before its lending
	bytes = (sum - buffers) >> bufferBits * granule
	return max(bytes, 0), max(buffers, 0)
}

// classOf gives the smallest class that holds n bytes, or -1 above MaxPooled.
func classOf(n int) int {
	if n <= 1<<minShift {
		return 0
	}
	if n > MaxPooled {
		return -1
	}
	shift := bits.Len(uint(n-1)) - 1             // 1<<shift < n <= 1<<(shift+1)
	quarter := (n - 1 - 1<<shift) >> (shift - 2) // 0 to 3
	return (shift-minShift)*4 + quarter + 1
}

func classSize(c int) int {
	if c == 0 {
		return 1 << minShift
	}
	shift := (c-1)/4 + minShift
	return 1<<shift + ((c-1)%4+1)<<(shift-2)
}
