// Package broker decides: vhosts, exchanges, queues, bindings, publishes, deliveries,
// settlements and who may do them. It knows no socket and no wire frame.
//
// A protocol session opens a Conn for a login to a vhost and a Channel for each stream of
// publishes and deliveries. All methods of a Conn and its Channels are called by one goroutine,
// the connection's reader, in turns:
//
//	read bytes -> any number of verbs -> Conn.EndTurn
//
// Publishes, acks and nacks of a turn are collected and carried out in batches, at the latest
// by EndTurn or by the next verb that could see a difference; a batch's errors come from the
// verb that carried it out (see Channel.Ack).
//
// Calls in the other direction go through Peer, one a connection, and Sink, one a channel. They
// come from any goroutine: the broker takes the Peer's lock, calls Sink methods, which only
// encode into the connection's outbox, unlocks, and later flushes what became dirty.
package broker

import (
	"net"
	"sync/atomic"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
)

// Reason is why a connection's publishes wait, or it is not read at all; bits add up.
type Reason uint32

const (
	PauseJournal Reason = 1 << iota // the journal is behind
	PauseMemory                     // low on memory (see SetAlarm)
	PauseDisk                       // low on disk
	PauseClosing                    // shutdown or a closing session
	PauseGrowth                     // memory fills faster than it is read (see Allow)
	PauseRoom                       // likewise, by what is declared (see AllowKept)
)

// PauseAlarm are the reasons of which clients are told.
const PauseAlarm = PauseMemory | PauseDisk

// PausePublish are the reasons that publishes wait for, and nothing else.
const PausePublish = PauseAlarm | PauseJournal | PauseGrowth

// Peer is the sending side and the reading switch of one connection. Implementations are
// safe for any goroutine; no method blocks on the network.
type Peer interface {
	// Lock takes the outbox. It is a leaf: nothing else is locked under it.
	Lock()
	// Unlock gives it back. True means bytes were staged into a clean outbox, and the
	// caller must call Flush soon, holding no lock.
	Unlock() (flush bool)
	Flush()
	// Writable reports whether the outbox is below its high-water mark.
	Writable() bool
	// Pause has the connection's publishes wait from the next one on that is not carried out yet, unless
	// Conn.MayPublish, and all that the client sent behind it. What comes before is read and carried out: its
	// acks may be what makes room. For a reason that is not in PausePublish nothing is read any more.
	Pause(r Reason)
	Resume(r Reason)
	// Careful has little of the connection read at once from now on, or again as much as there is: memory is short.
	Careful(on bool)
	// Close ends the connection from the broker's side with this reason, after telling the
	// client in its protocol. Any goroutine.
	Close(e *Error)
	// Answered says that the last answer that was kept on one of the connection's channels is sent (see
	// Channel.Answer), that the connection no longer Rests, or that it MayPublish: what waits is looked at
	// again. Any goroutine, no lock held.
	Answered()
	// Late says that a delivery of a channel may have waited for its acknowledgement for too long: the session
	// has the connection's reader ask Channel.Late. Any goroutine, no lock held.
	Late(ch *Channel)
}

// Sink receives what a channel is sent. Every method is called with the Peer locked, must only
// encode into the outbox, and may come from any goroutine.
type Sink interface {
	// Deliver sends one message. d and d.Msg are valid during the call only; to send bytes by
	// reference, retain d.Msg.Buf().
	Deliver(d *Delivery)
	// Confirm says the publish seq, with multiple every one up to it, is the broker's
	// responsibility now (sequence numbers as given to Publish).
	Confirm(seq uint64, multiple bool)
	// Nack says the publish seq was refused.
	Nack(seq uint64, e *Error)
	// Return gives a mandatory message back that no queue received (312 NO_ROUTE). It comes
	// before the message's Confirm.
	Return(seq uint64, m *message.Message)
	// Cancelled says the broker ended a consumer: its queue is gone.
	Cancelled(c *Consumer, e *Error)
	// Committed says a TxCommit is carried out and safe.
	Committed()
	// Answer sends an answer that Channel.Answer kept; b is not used any more.
	Answer(b []byte)
}

// Delivery is one message on its way to a client.
type Delivery struct {
	Tag         uint64    // 1, 2, ... on the channel
	Consumer    *Consumer // nil for Get
	Redelivered bool
	// Count is how often it came back before, for the header x-delivery-count; 0 where that has none:
	// on a first delivery, and in classic queues without a delivery limit.
	Count int64
	Msg   *message.Message
	// Unsent is for the session to set when its protocol cannot carry the message: the tag then waits for
	// its settlement, although the consumer or the get is no-ack.
	Unsent bool
}

// Consumer is a channel's subscription to a queue.
type Consumer struct {
	queue.Consumer

	ch      *Channel      // immutable
	started atomic.Bool   // written under the Peer's lock
	pending []queue.Entry // what a dispatch hands out, lent by its turn; guarded by q.mu

	// Prefix is the session's place to keep an encoded prefix of its deliveries: empty, with room for a short one
	// beside what else a delivery needs. Set before Start.
	Prefix []byte
	room   [48]byte // of Prefix

	Tag    string      // unique on its channel
	Handle uint64      // the session's own number for it (FMQ1: sub); the broker does not read it
	Queue  string      // immutable
	Args   table.Table // immutable
	kept   int64       // about what Args take, in bytes; immutable

	q *Queue // immutable
	// timeout is its own for acknowledgements, ms; 0: none, queue.None: that of its queue. Immutable.
	timeout int64
	waits   waiting // in ch.denied; guarded by the Peer's lock

	order uint64 // among those of its connection, by age; immutable once it is known
	ended *Error // the broker ended it before Start, which then says so; guarded by the Peer's lock
}

// ConnInfo describes a connection that logs in.
type ConnInfo struct {
	Protocol   string // "AMQP 0-9-1", "FMQ1"
	Name       string // "127.0.0.1:50000 -> 127.0.0.1:5672"
	VHost      string
	Remote     net.Addr
	Local      net.Addr
	Properties table.Table // the client's own words about itself
	// AlarmsAtOnce: Peer.Pause for an alarm comes when it fires, for a protocol that asks its clients
	// to stop before it stops reading them. Else it comes with the next publish.
	AlarmsAtOnce bool

	// What the two sides agreed on, for operators.
	Mechanism  string // of the login
	FrameMax   uint32 // 0: no limit
	ChannelMax uint16
	Heartbeat  uint16 // s, 0: none
	// Memory is about what the session takes beside the broker's own part, in bytes; ChannelsMemory, what its
	// channels share, from the first one on.
	Memory, ChannelsMemory int
	// Octets tells what went over the connection so far; nil: not known. Any goroutine.
	Octets func() Octets
	// Paused tells for which reasons publishes of the connection wait now, or it is not read, and when that last
	// changed without an alarm, Unix ns, 0 for never; nil: not known. Any goroutine.
	Paused func() (Reason, int64)

	// Internal is a connection of the broker's own, which acts for a user of the management API. It
	// is not listed or counted as a connection.
	Internal bool
}

// Octets are the bytes received and sent, and the reads and writes that took.
type Octets struct{ Received, Sent, Reads, Writes uint64 }

// ExchangeDeclare is an exchange that is to be there as it says; Passive: it is asked for by its name alone.
type ExchangeDeclare struct {
	Name       string
	Type       string
	Durable    bool
	AutoDelete bool
	Internal   bool
	Passive    bool
	Args       table.Table
}

// QueueDeclare is a queue that is to be there as it says; Passive: it is asked for by its name alone.
type QueueDeclare struct {
	Name       string // empty: the broker picks amq.gen-...
	Durable    bool
	Exclusive  bool
	AutoDelete bool
	Passive    bool
	Args       table.Table
}

// QueueStatus answers a declare: ready messages and consumers.
type QueueStatus struct {
	Name      string
	Messages  int
	Consumers int
}

// ConsumeArgs is a consumer that is to be added to a queue.
type ConsumeArgs struct {
	Queue     string
	Tag       string // empty: the broker picks amq.ctag-...
	Handle    uint64
	NoAck     bool
	Exclusive bool
	Credited  bool   // FMQ1: deliveries need granted credit
	Credit    uint64 // the first grant
	Args      table.Table
}

// Publish is one message to route. Exchange and key are the message's own.
type Publish struct {
	Msg       *message.Message // one reference, the broker's from here on, whatever is returned
	Seq       uint64           // for Confirm, Nack and Return; 0: no confirm wanted
	Mandatory bool
	// UserID is the user-id property when the publisher set one: it must be the login's name.
	UserID string
	// Fault is what the session found wrong with the properties, the text of a PreconditionFailed: first
	// reply-to, then expiration, then CC and BCC. It is raised after the checks that come before.
	Fault string
	// Keys are further routing keys (see Select), used during the call only.
	Keys [][]byte
}
