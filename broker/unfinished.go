package broker

// What a client began and has not finished takes memory that no queue shows and no consumer frees: a
// message half sent, a frame half sent, a transaction not committed. Together they may take a share of the
// memory limit, so that the rest is for messages that can be consumed; who would take more loses the
// connection with a resource error.

// unfinishedFree is what each connection may hold whatever others do, in bytes: the last bytes of one read
// are mostly the start of a message.
const unfinishedFree = 64 << 10

// LimitUnfinished bounds, in bytes, what all connections together hold of unfinished messages, frames and
// transactions; 0: no bound. Any goroutine.
func (b *Broker) LimitUnfinished(n int64) { b.unfinishedLimit.Store(n) }

// Hold says that the connection holds n bytes more, or less, of what is unfinished. One that is alone may
// hold any message. Error: ResourceError; then nothing is counted. By the connection's reader.
func (c *Conn) Hold(n int64) *Error {
	if c.quiet || n == 0 {
		return nil
	}
	sum := c.b.unfinished.Add(n)
	c.held += n
	if c.b.alarm.Load() != 0 {
		c.published(n)
	}
	if n > 0 && !c.b.grow(n) {
		c.await(PauseGrowth)
	}
	if limit := c.b.unfinishedLimit.Load(); n > 0 && limit > 0 && sum > limit && c.held > unfinishedFree && sum > c.held {
		c.b.unfinished.Add(-n)
		c.held -= n
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
