// Package message holds one message as every queue shares it: immutable, counted,
// its bytes in a single lent buffer
//
//	exchange | routing key | blind keys | properties | body
//
// Blind keys are the routing keys that only the sender sees (see AppendKey), mostly none.
//
// The properties stay in the encoding of the protocol that published them (see
// Encoding and Codec), so a delivery over the same protocol copies bytes.
package message

import (
	"encoding/binary"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/prefetch"
	"github.com/firemq/firemq/pool"
)

// Encoding tells how a message's property bytes are spelt. Part of the disk format.
type Encoding uint8

const (
	// AMQP: property flags and property list of a 0-9-1 content header (4.2.6.1).
	AMQP Encoding = 1
	// FMQ1: the MessagePack maps "props" and "headers" of a publish, one after the other.
	FMQ1 Encoding = 2
)

// Codec reads and writes the properties of one Encoding. Implementations are pure
// and safe for any goroutine.
type Codec interface {
	// Decode reads props; strings may alias it. An error means the bytes are malformed.
	Decode(props []byte) (table.Properties, error)
	// Append writes p after dst.
	Append(dst []byte, p *table.Properties) []byte
	// Headers adds the headers in props to dst, so that who routes by them can reuse its table;
	// strings alias props. Malformed headers are none.
	Headers(dst table.Table, props []byte) table.Table
	// Properties reads all but the headers; strings alias props. Malformed ones are none.
	Properties(props []byte) table.Properties
}

// MaxName is the largest exchange name or routing key in bytes (a short string, 4.2.5.3).
const MaxName = 255

// Attributes are what the broker must know of a message without reading its properties.
type Attributes struct {
	Encoding   Encoding
	Persistent bool
	Priority   uint8
	HasHeaders bool

	// Of the Message that these are part of: here is room.
	keyAt   uint8
	DueAt   bool // see Delay
	blindAt uint16

	Expiration int64 // the publisher's time to live in ms; negative when it set none
	// Delay is how many ms its publisher wants it to wait, or with DueAt the time, Unix ms, until which; 0: not at all.
	// A message read back has none.
	Delay int64
	Taken int64 // Unix ms at which the broker put it into its queues, 0: not yet, or not known
}

// Due is the time, Unix ms, at which a message with a Delay is due that is published now; it is not in the past.
func (a *Attributes) Due(now int64) int64 {
	if a.DueAt {
		return max(a.Delay, now)
	}
	if a.Delay > math.MaxInt64-now {
		return math.MaxInt64
	}
	return now + a.Delay
}

// Message is one published message. Everything but the references and the position is immutable
// once it is in a queue: before that the publisher fills the body, and the broker sets Taken. Any
// goroutine that holds a reference may read it.
type Message struct {
	buf pool.Buf // first: a buffer for messages is the beginning of one, see of
	pos uint64   // atomic once it is shared

	Attributes

	propsAt int32
	bodyAt  int32
}

func init() { pool.Embed(func() *pool.Buf { return &new(Message).buf }) }

// of is the message that a buffer for messages is part of.
func of(buf *pool.Buf) *Message { return (*Message)(unsafe.Pointer(buf)) }

// New makes a message with one reference, copying exchange, key and props, with room for
// bodySize body bytes that the caller copies into Body before it shares the message.
// Exchange and key hold at most MaxName bytes.
func New(a Attributes, exchange, key, props []byte, bodySize int) *Message {
	return NewBlind(a, exchange, key, nil, props, bodySize)
}

// NewBlind is New for a message with blind keys, as AppendKey wrote them.
func NewBlind(a Attributes, exchange, key, blind, props []byte, bodySize int) *Message {
	m := of(pool.Get(len(exchange)+len(key)+len(blind)+len(props)+bodySize, pool.Messages))
	m.Attributes = a
	m.pos = 0
	m.keyAt = uint8(len(exchange))
	m.blindAt = uint16(len(exchange) + len(key))
	m.propsAt = int32(len(exchange) + len(key) + len(blind))
	m.bodyAt = m.propsAt + int32(len(props))
	copy(m.buf.B, exchange)
	copy(m.buf.B[m.keyAt:], key)
	copy(m.buf.B[m.blindAt:], blind)
	copy(m.buf.B[m.propsAt:], props)
	return m
}

// headLines is how many cache lines a Message takes at most: the allocator puts its 80 bytes at a multiple of 16.
const headLines = 2

// Warm asks for the memory of m, without its content: who has many messages to look at asks for some ahead. Nothing is read.
func (m *Message) Warm() { prefetch.Lines(unsafe.Pointer(m), headLines) }

// warmContent is how many cache lines of a message's content are asked for; of a longer one the processor itself
// notices that it is read from end to end.
const warmContent = 8

// WarmContent asks for the memory of the content. It reads m itself, so that the caller holds a reference.
func (m *Message) WarmContent() {
	if b := m.buf.B; len(b) > 0 {
		prefetch.Lines(unsafe.Pointer(unsafe.SliceData(b)), min(len(b)/64+1, warmContent))
	}
}

// Exchange, Key, Blind, Props and Body alias the message: valid while the caller holds a reference.
func (m *Message) Exchange() []byte { return m.buf.B[:m.keyAt] }
func (m *Message) Key() []byte      { return m.buf.B[m.keyAt:m.blindAt] }
func (m *Message) Blind() []byte    { return m.buf.B[m.blindAt:m.propsAt] }
func (m *Message) Props() []byte    { return m.buf.B[m.propsAt:m.bodyAt] }
func (m *Message) Body() []byte     { return m.buf.B[m.bodyAt:] }

// Bytes is the whole content, exchange to body; Split gives the four inner offsets.
func (m *Message) Bytes() []byte { return m.buf.B }
func (m *Message) Split() (key, blind, props, body int) {
	return int(m.keyAt), int(m.blindAt), int(m.propsAt), int(m.bodyAt)
}

// AppendKey adds a key to blind keys: its length, 4 bytes big-endian, and its octets. Part of the
// disk format.
func AppendKey(dst, key []byte) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(key))), key...)
}

// CutKey takes the first key off blind keys; ok is false at their end.
func CutKey(blind []byte) (key, rest []byte, ok bool) {
	if len(blind) < 4 {
		return nil, nil, false
	}
	n := binary.BigEndian.Uint32(blind)
	if uint64(n) > uint64(len(blind)-4) {
		return nil, nil, false
	}
	return blind[4 : 4+n], blind[4+n:], true
}

// Buf is the buffer behind the message, for a writer that sends the body by reference.
func (m *Message) Buf() *pool.Buf { return &m.buf }

// Retain adds n references. The caller must hold one. They are the buffer's: one retained by Buf
// keeps the whole message.
func (m *Message) Retain(n int) { m.buf.RetainN(n) }

// Release gives one reference back; the last one frees the message.
func (m *Message) Release() { m.buf.Release() }

// Position is where the journal holds the message's record, 0 before it was appended or
// when it never is. SetPosition is called once, by who appended the record.
func (m *Message) Position() uint64       { return atomic.LoadUint64(&m.pos) }
func (m *Message) SetPosition(pos uint64) { atomic.StoreUint64(&m.pos, pos) }
