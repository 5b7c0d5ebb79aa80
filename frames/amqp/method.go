package amqp

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"
)

// MethodID names a method: class << 16 | method.
type MethodID uint32

// Class and Method are the two numbers of the id.
func (id MethodID) Class() uint16  { return uint16(id >> 16) }
func (id MethodID) Method() uint16 { return uint16(id) }

type methodInfo struct {
	name  string
	flags methodFlags
}

type methodFlags uint8

const (
	fromClient methodFlags = 1 << iota
	fromServer
	synchronous
	hasContent
)

// String is the method's name, "basic.publish", or empty for an unknown method.
func (id MethodID) String() string {
	i, _ := id.info()
	return i.name
}

// Known reports whether there is such a method.
func (id MethodID) Known() bool {
	_, ok := id.info()
	return ok
}

// FromClient, FromServer, Synchronous and HasContent tell a known method's nature: who sends it,
// whether the other side answers it, whether a content header and body follow it.
func (id MethodID) FromClient() bool  { return id.has(fromClient) }
func (id MethodID) FromServer() bool  { return id.has(fromServer) }
func (id MethodID) Synchronous() bool { return id.has(synchronous) }
func (id MethodID) HasContent() bool  { return id.has(hasContent) }

func (id MethodID) has(f methodFlags) bool {
	i, _ := id.info()
	return i.flags&f != 0
}

// Method is any of the generated method structs.
type Method interface {
	ID() MethodID
	// Decode reads the arguments; byte fields alias them. Errors: ErrArguments, ErrUTF8.
	Decode(args []byte) error
	// Append writes the payload of a method frame, AppendFrame the whole frame. Short strings
	// hold at most 255 bytes; longer ones are a bug of the caller and panic.
	Append(dst []byte) []byte
	AppendFrame(dst []byte, channel uint16) []byte
}

// CutMethod splits the payload of a method frame. False: it is too short for a method.
func CutMethod(payload []byte) (id MethodID, args []byte, ok bool) {
	if len(payload) < 4 {
		return 0, nil, false
	}
	return MethodID(binary.BigEndian.Uint32(payload)), payload[4:], true
}

var (
	// ErrArguments says that arguments are shorter or longer than their method's fields.
	ErrArguments = errors.New("amqp: arguments do not match the method")
	// ErrUTF8 says that a short string is not UTF-8 (4.2.5.3).
	ErrUTF8 = errors.New("amqp: malformed UTF-8 in a short string")
)

// cursor reads arguments one after the other. After the first error it gives zero values.
type cursor struct {
	src []byte
	err error
}

// fail keeps the first error. Its results make the callers short enough to be inlined.
func (c *cursor) fail(err error) []byte {
	if c.err == nil {
		c.err = err
	}
	c.src = nil
	return nil
}

func (c *cursor) octet() (n uint8) {
	if len(c.src) < 1 {
		c.fail(ErrArguments)
		return 0
	}
	n, c.src = c.src[0], c.src[1:]
	return n
}

func (c *cursor) short() (n uint16) {
	if len(c.src) < 2 {
		c.fail(ErrArguments)
		return 0
	}
	n, c.src = binary.BigEndian.Uint16(c.src), c.src[2:]
	return n
}

func (c *cursor) long() (n uint32) {
	if len(c.src) < 4 {
		c.fail(ErrArguments)
		return 0
	}
	n, c.src = binary.BigEndian.Uint32(c.src), c.src[4:]
	return n
}

func (c *cursor) longlong() (n uint64) {
	if len(c.src) < 8 {
		c.fail(ErrArguments)
		return 0
	}
	n, c.src = binary.BigEndian.Uint64(c.src), c.src[8:]
	return n
}

func (c *cursor) shortstr() []byte {
	b := c.shortbytes()
	if !utf8.Valid(b) {
		return c.fail(ErrUTF8)
	}
	return b
}

// shortbytes is a short string of any octets: RabbitMQ does not look at those of a publish.
func (c *cursor) shortbytes() []byte {
	if len(c.src) == 0 || len(c.src) <= int(c.src[0]) {
		return c.fail(ErrArguments)
	}
	n := 1 + int(c.src[0])
	b := c.src[1:n:n]
	c.src = c.src[n:]
	return b
}

func (c *cursor) longstr() []byte {
	n := c.long()
	if uint64(n) > uint64(len(c.src)) {
		return c.fail(ErrArguments)
	}
	b := c.src[:n:n]
	c.src = c.src[n:]
	return b
}

// end is the error of the whole: RabbitMQ refuses octets left over, too.
func (c *cursor) end() error {
	if c.err == nil && len(c.src) != 0 {
		return ErrArguments
	}
	return c.err
}

func bit(on bool, mask uint8) uint8 {
	if on {
		return mask
	}
	return 0
}

func appendShortstr(dst, s []byte) []byte {
	if len(s) > 255 {
		panic("BUG: amqp: short string of more than 255 bytes")
	}
	return append(append(dst, byte(len(s))), s...)
}

func appendLongstr(dst, s []byte) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(s))), s...)
}
