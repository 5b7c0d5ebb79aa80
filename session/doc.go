// Package session is the home of the protocol state machines: bytes in, broker calls, bytes out.
// A session knows no socket: it gets bytes from whoever reads them and writes into an Outbox.
package session

import (
	"net"
	"strings"

	"github.com/firemq/firemq/pool"
)

// Outbox is the sending side of one connection, as a session needs it; package loop has the
// real one and tests have one in memory.
//
// Staging happens between Lock and Unlock:
//
//	o.Lock()
//	b := o.Tail(n)            // room for at least n bytes more, len(b) already staged there
//	b = frames.AppendX(b, ...) // append at most n bytes
//	o.Put(b)
//	o.Ref(buf, body)          // bytes sent by reference, for bodies of 4 KiB and more
//	if o.Unlock() { o.Flush() }
type Outbox interface {
	Lock()
	// Unlock gives the outbox back; true means it was clean before and the caller must Flush soon.
	Unlock() (flush bool)
	// Tail is the block under construction, with room for n more bytes. Lock held.
	Tail(n int) []byte
	// Put hands the block from Tail back, longer. Lock held.
	Put(b []byte)
	// Ref stages p, a part of b, without copying. It takes over one reference, which the caller has
	// retained: released exactly once, when the kernel has the bytes or the connection died. Lock held.
	Ref(b *pool.Buf, p []byte)
	// Flush writes as much as the socket takes; the rest follows by itself. No lock held. Never blocks.
	Flush()
	// Writable reports whether the backlog is below the high-water mark.
	Writable() bool
	// Pause stops reading from the peer until every reason paused was resumed. Any goroutine.
	Pause(reason uint32)
	Resume(reason uint32)
	// ReadLittle has few bytes read at once, because they may have to be kept. Any goroutine.
	ReadLittle(on bool)
	// Do runs f in the reader's goroutine, between two OnData calls. Any goroutine.
	Do(f func())
	// CloseAfterFlush sends what is staged, then closes. Abort closes at once.
	CloseAfterFlush()
	Abort(err error)
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
	// LastRead and LastWrite are coarse clocks: Unix nanoseconds of the last byte received or sent.
	LastRead() int64
	LastWrite() int64
}

// Clip makes what a client that has not logged in calls itself fit for a log: at most 255 bytes of it.
func Clip(name string) string { return strings.Clone(name[:min(len(name), 255)]) }

// Counting is what an Outbox may also have: what went over the connection so far. Any goroutine.
type Counting interface {
	Octets() (received, sent, reads, writes uint64)
}
