package broker

import "github.com/firemq/firemq/frames/table"

// What a client began and has not finished takes memory that no queue shows and no consumer frees: a
// message half sent, a frame half sent, a transaction not committed. Together they may take a share of the
// memory limit, so that the rest is for messages that can be consumed; who would take more loses the
// connection with a resource error. What a client says of itself at the login counts too.

// Each connection may hold unfinishedFree bytes whatever others do: the last bytes of one read are mostly the start of
// a message. When there are so many that this is more than the limit, each has an equal part of that, and leastFree.
// Properties of propertiesFree bytes, as any client library has, are not counted.
const (
	unfinishedFree = 64 << 10
	leastFree      = 4 << 10
	propertiesFree = 16 << 10
)

// LimitUnfinished bounds, in bytes, what all connections together hold of unfinished messages, frames and
// transactions; 0: no bound. Any goroutine.
func (b *Broker) LimitUnfinished(n int64) { b.unfinishedLimit.Store(n) }

// Hold says that the connection holds n bytes more, or less, of what is unfinished. One that is alone may
// hold any message. Error: ResourceError; then nothing is counted. By the connection's reader.
func (c *Conn) Hold(n int64) *Error {
	if c.quiet || n == 0 {
		return nil
	}
	if c.b.alarm.Load() != 0 {
		c.published(n)
	}
	if n > 0 && !c.b.grow(n) {
		c.await(PauseGrowth)
	}
	free := int64(unfinishedFree)
	if limit := c.b.unfinishedLimit.Load(); n > 0 && limit > 0 {
		conns := c.b.counters.ConnectionsOpened.Load() - c.b.counters.ConnectionsClosed.Load()
		free = min(free, max(limit/max(int64(conns), 1), leastFree))
	}
	return c.b.hold(&c.held, n, free)
}

// HoldGuest is Conn.Hold for a client that has not logged in and holds *held: n bytes more, or less. What it holds is
// given back before Connect. By the connection's reader.
func (b *Broker) HoldGuest(held *int64, n int64) *Error {
	if n > 0 {
		b.grow(n) // who is not logged in cannot be paused: it has a few seconds, and the limit
	}
	return b.hold(held, n, 0)
}

// PropertiesMemory is what counts of a client's properties, in bytes.
func PropertiesMemory(t table.Table) int64 {
	if n := int64(t.Memory()); n > propertiesFree {
		return n
	}
	return 0
}

// hold counts n bytes for who holds *held, of which so many are free.
func (b *Broker) hold(held *int64, n, free int64) *Error {
	sum := b.unfinished.Add(n)
	*held += n
	if limit := b.unfinishedLimit.Load(); n > 0 && limit > 0 && sum > limit && *held > free && sum > *held {
		b.unfinished.Add(-n)
		*held -= n
		return refuse(ResourceError, "unfinished messages of all connections take more than %d bytes", limit)
	}
	return nil
}

// Publishing says that the connection publishes, before its message is complete: during an alarm the rest
// may have to wait. By the connection's reader.
func (c *Conn) Publishing() {
	if c.b.alarm.Load() != 0 {
		c.heed(true)
	}
}
