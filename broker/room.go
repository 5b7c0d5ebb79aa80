package broker

import (
	"sync"
	"sync/atomic"

	"github.com/firemq/firemq/frames/table"
)

// Messages wait during an alarm and consumers make room for them. What is declared stays until somebody deletes
// it, so it has bounds of its own: a table that is kept may be so large, and all that is made between two readings
// of memory is taken off what the last one left free. A little goes beyond the limit of memory, alarm or not,
// because consumers that come must not be kept out; then more is refused. And what outlives its connection has a share of
// the limit, so that there is room for messages and for the collector of garbage.

// Bounds of one table of arguments that is kept, of a queue, an exchange, a binding or a consumer, felt by who sends it.
// A value of one byte takes 80 in memory.
const (
	maxTable  = 16 << 10 // bytes as AMQP encodes it (0-9-1 4.2.5.5)
	maxValues = 1024     // those in arrays and nested tables, too
)

// CheckTable reports a table that is too large to be kept; what names it. Error: PreconditionFailed.
func CheckTable(t table.Table, what string) *Error {
	if len(t) == 0 {
		return nil
	}
	if n := t.Size(); n > maxTable {
		return refuse(PreconditionFailed, "%s take %d bytes, %d at most", what, n, maxTable)
	}
	if n := t.Values(); n > maxValues {
		return refuse(PreconditionFailed, "%s are %d values, %d at most", what, n, maxValues)
	}
	return nil
}

func argumentsOf(name string) string { return "arguments of " + name }

// room is what may be made until memory is read again. Any goroutine.
type room struct {
	left     atomic.Int64 // bytes
	declared atomic.Int64 // bytes of them for what outlives its connection
	most     atomic.Int64 // bytes that all of that may take

	mu      sync.Mutex
	waiting []*Conn // guarded by mu; a connection is in it once (Conn.starved)
}

// ownFree is what each connection may make beyond all room, as long as it ends with the connection, in bytes: some
// channels with their consumers.
const ownFree = 64 << 10

// AllowKept says how many bytes what is declared, bound, opened or consumed from may take until it is called again,
// and how many queues, exchanges and bindings may take in all. It is called with each reading of memory, after Allow:
// connections that waited for that go on. Any goroutine, no lock held.
func (b *Broker) AllowKept(n, declared int64) {
	r := &b.room
	r.left.Store(n)
	r.most.Store(declared)
	r.declared.Store(declared - b.declaredMemory())
	r.mu.Lock()
	waiting := r.waiting
	r.waiting = nil
	r.mu.Unlock()
	for _, c := range waiting {
		c.starved.Store(false)
		c.peer.Resume(PauseRoom)
	}
}

// declaredMemory is about what queues, exchanges and bindings take, without messages, in bytes.
func (b *Broker) declaredMemory() int64 {
	n := b.arguments.Load() + b.routes.ArgumentMemory() + int64(b.routes.Len())*bindingMemory
	b.topo.RLock()
	defer b.topo.RUnlock()
	for _, v := range b.vhosts {
		n += int64(len(v.queues)) * queueMemory
	}
	return n + b.exchanges*exchangeMemory
}

// claim takes room for something that is made and takes n bytes; own says that it ends with the connection. A
// connection that has used up what is to be published, too (see Allow), is not read until memory was. Error: ResourceError, there is no room. By the
// connection's reader; topo may be locked.
func (c *Conn) claim(n int64, own bool) *Error {
	b := c.b
	if !b.grow(n) && b.alarm.Load() == 0 {
		c.starve()
	}
	left := b.room.left.Add(-n)
	if !own && b.room.declared.Add(-n) < 0 {
		b.room.giveBack(n, own)
		return refuse(ResourceError, "low on memory: what is declared may take %d bytes in all", b.room.most.Load())
	}
	if left >= 0 {
		return nil
	}
	b.room.giveBack(n, own)
	if own && c.indulged+n <= ownFree {
		c.indulged += n
		return nil
	}
	return refuse(ResourceError, "low on memory: there is no room for another %d bytes", n)
}

// unclaim gives room back for what was not made, first what was claimed without there being room. By the connection's
// reader.
func (c *Conn) unclaim(n int64, own bool) {
	if own {
		k := min(n, c.indulged)
		c.indulged -= k
		n -= k
	}
	c.b.room.giveBack(n, own)
}

func (r *room) giveBack(n int64, own bool) {
	r.left.Add(n)
	if !own {
		r.declared.Add(n)
	}
}

// starve stops reading from the connection until memory was read, which is asked for.
func (c *Conn) starve() {
	if c.info.Internal || c.starved.Swap(true) {
		return
	}
	c.peer.Pause(PauseRoom)
	r := &c.b.room
	r.mu.Lock()
	r.waiting = append(r.waiting, c)
	r.mu.Unlock()
	c.b.opt.OnGrowth()
}
