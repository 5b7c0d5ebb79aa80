// Package loop moves bytes between sockets and sessions; it knows no protocol.
//
// A Server accepts connections. Each becomes a Conn with a Session of its own: the Session gets
// received bytes in OnData, in the connection's reader context, and sends by staging bytes in the
// Conn's outbox, from any goroutine:
//
//	socket -> reader -> carry (a partial tail only) -> Session.OnData
//	any goroutine -> Lock, Tail, Put, Ref, Unlock -> outbox -> Flush -> writev -> socket
//
// The reader context is one goroutine at a time: OnData, OnClose and what Do runs never overlap
// for one connection. Nothing here waits for a peer: a full socket leaves the bytes in the
// outbox, whose backlog the Session bounds by asking Writable and waiting for OnDrained.
//
// Four transports are behind the one Conn:
//
//   - tcp_gnet_linux.go: gnet's event loops read. Accepting, writing and pausing are ours, because
//     gnet ends its engine when accept runs out of files, copies what it sends into a buffer
//     without a bound, and cannot pause reading.
//   - stream.go: a goroutine for each connection, for the other systems, and for Linux when the
//     check at start finds that gnet cannot be paused.
//   - tls.go: a stream inside TLS.
//   - websocket.go: a stream of messages in WebSocket frames, upgraded by an HTTP server of others.
package loop

// Session is one connection's protocol state machine, written against bytes alone.
type Session interface {
	// OnData gets received bytes and reports how many it took. What it leaves is kept and comes
	// again in front of later bytes; want is how many bytes, counted from the first one left, it
	// needs before it can go on (0: any more). It must not leave want bytes or more without having
	// taken any: that is a bug, and closes the connection. b is valid during the call only. Called
	// by the connection's reader, never twice at once; the outbox is flushed after it.
	OnData(b []byte) (n, want int)
	// OnTick comes about once a second with the time in Unix ns, from any goroutine, concurrently
	// with OnData: for heartbeats and timeouts. It must not block.
	OnTick(now int64)
	// OnDrained says that the backlog fell below the low-water mark after it had reached the high
	// one. Any goroutine, no lock held; it must not block.
	OnDrained()
	// OnClose is the last call, exactly once, by the reader: the connection is gone, and what is
	// staged from now on is dropped. err is nil after an orderly end, io.EOF when the peer closed
	// first, else what broke the connection. No lock of the outbox is held.
	OnClose(err error)
}

// Handler makes the session of an accepted connection; nil closes it. The reader context is the
// handler's until it returns; it must not block, as the next accept waits for it.
type Handler func(*Conn) Session
