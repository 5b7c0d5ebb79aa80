// Package fmq1 spells the FireMQ protocol, version 1: frames and their MessagePack headers.
// It is pure: no state, no I/O. spec/protocol.md is the document it follows.
//
//	+-----------+---------+------------+---------------------+---------+
//	| len : u32 | op : u8 | hlen : u32 | header (hlen bytes) | payload |
//	+-----------+---------+------------+---------------------+---------+
//
// Decoders borrow: what they return aliases their input. Encoders append. Input is never trusted:
// a length is compared with its limit before anything waits for or allocates that much, nesting is
// bounded by MaxDepth, and every refusal is an *Error with the protocol's code.
package fmq1

import (
	"encoding/binary"
	"fmt"
)

const (
	// Preface is what a client sends first over TCP and TLS.
	Preface = "FMQ1"
	// Version is the protocol version in hello and welcome.
	Version = 1
	// MaxBeforeWelcome is the largest frame before welcome, in bytes counted as by len.
	MaxBeforeWelcome = 65536
	// DefaultMaxFrame is what servers announce in welcome unless they are configured otherwise.
	DefaultMaxFrame = 16 << 20
	// MaxHeader is the largest header of a client's frame in bytes. It bounds what decoding one
	// header may cost, and is what a 0-9-1 content header frame can carry by default, so that every
	// accepted message can be delivered over AMQP too.
	MaxHeader = 131072
	// MaxName is the largest exchange name, queue name or key in bytes.
	MaxName = 255
	// MaxDepth is how deep values in a header may nest.
	MaxDepth = 64

	// PrefixSize is what comes before the header: len, op, hlen.
	PrefixSize = 9

	afterLen = 5 // what len counts beside header and payload: op, hlen
)

// Op says what a frame is.
type Op uint8

const (
	OpHello           Op = 0x01
	OpWelcome         Op = 0x02
	OpPing            Op = 0x03
	OpPong            Op = 0x04
	OpClose           Op = 0x05
	OpOK              Op = 0x06
	OpError           Op = 0x07
	OpFlow            Op = 0x08
	OpDeclareExchange Op = 0x10
	OpDeleteExchange  Op = 0x11
	OpDeclareQueue    Op = 0x12
	OpDeleteQueue     Op = 0x13
	OpPurgeQueue      Op = 0x14
	OpBind            Op = 0x15
	OpUnbind          Op = 0x16
	OpPublish         Op = 0x20
	OpConfirm         Op = 0x21
	OpReturn          Op = 0x22
	OpSubscribe       Op = 0x30
	OpUnsubscribe     Op = 0x31
	OpCredit          Op = 0x32
	OpDeliver         Op = 0x33
	OpCancelled       Op = 0x34
	OpAck             Op = 0x35
	OpNack            Op = 0x36
	OpGet             Op = 0x37
	OpGetOK           Op = 0x38
)

var opNames = [256]string{
	OpHello: "hello", OpWelcome: "welcome", OpPing: "ping", OpPong: "pong", OpClose: "close",
	OpOK: "ok", OpError: "error", OpFlow: "flow",
	OpDeclareExchange: "declare_exchange", OpDeleteExchange: "delete_exchange",
	OpDeclareQueue: "declare_queue", OpDeleteQueue: "delete_queue", OpPurgeQueue: "purge_queue",
	OpBind: "bind", OpUnbind: "unbind",
	OpPublish: "publish", OpConfirm: "confirm", OpReturn: "return",
	OpSubscribe: "subscribe", OpUnsubscribe: "unsubscribe", OpCredit: "credit",
	OpDeliver: "deliver", OpCancelled: "cancelled", OpAck: "ack", OpNack: "nack",
	OpGet: "get", OpGetOK: "get_ok",
}

// Known reports whether version 1 has the op.
func (op Op) Known() bool { return opNames[op] != "" }

// HasPayload reports whether frames of this op carry a message body.
func (op Op) HasPayload() bool {
	return op == OpPublish || op == OpReturn || op == OpDeliver || op == OpGetOK
}

func (op Op) String() string {
	if op.Known() {
		return opNames[op]
	}
	return fmt.Sprintf("0x%02x", uint8(op))
}

// Reply codes (AMQP 0-9-1's).
const (
	ReplySuccess       = 200
	NoRoute            = 312
	ConnectionForced   = 320
	AccessRefused      = 403
	NotFound           = 404
	ResourceLocked     = 405
	PreconditionFailed = 406
	FrameError         = 501
	SyntaxError        = 502
	CommandInvalid     = 503
	ResourceError      = 506
	NotAllowed         = 530
	NotImplemented     = 540
	InternalError      = 541
)

var codeNames = map[uint16]string{
	ReplySuccess: "OK", NoRoute: "NO_ROUTE", ConnectionForced: "CONNECTION_FORCED",
	AccessRefused: "ACCESS_REFUSED", NotFound: "NOT_FOUND", ResourceLocked: "RESOURCE_LOCKED",
	PreconditionFailed: "PRECONDITION_FAILED", FrameError: "FRAME_ERROR", SyntaxError: "SYNTAX_ERROR",
	CommandInvalid: "COMMAND_INVALID", ResourceError: "RESOURCE_ERROR", NotAllowed: "NOT_ALLOWED",
	NotImplemented: "NOT_IMPLEMENTED", InternalError: "INTERNAL_ERROR",
}

// CodeName is the name that starts the text of an error, "NOT_FOUND" for 404; empty for other codes.
func CodeName(code uint16) string { return codeNames[code] }

// Error is bytes that break the protocol: FrameError ends the session, SyntaxError refuses one frame.
type Error struct {
	Code uint16
	Text string // without the code's name
}

func (e *Error) Error() string { return CodeName(e.Code) + " - " + e.Text }

func frameError(format string, args ...any) error {
	return &Error{Code: FrameError, Text: fmt.Sprintf(format, args...)}
}

// Frame is one frame. Header is empty or a MessagePack map that nobody looked at yet.
type Frame struct {
	Op      Op
	Header  []byte
	Payload []byte
}

// Next decodes the first frame of src and reports the n bytes it took. n == 0 with a nil error
// means that src ends inside the frame: call again with want bytes or more. max is the largest
// value of len to accept. The frame aliases src; it is valid until the caller reuses src.
// Every error is an *Error with code FrameError.
func Next(src []byte, max uint32) (f Frame, n, want int, err error) {
	if len(src) < 4 {
		return Frame{}, 0, PrefixSize, nil
	}
	size := binary.BigEndian.Uint32(src)
	if size > max {
		return Frame{}, 0, 0, frameError("frame of %d bytes is larger than the limit of %d", size, max)
	}
	if size < afterLen {
		return Frame{}, 0, 0, frameError("frame of %d bytes is shorter than its fixed part", size)
	}
	if len(src) < PrefixSize {
		return Frame{}, 0, 4 + int(size), nil
	}
	f.Op = Op(src[4])
	hlen := binary.BigEndian.Uint32(src[5:])
	if hlen > size-afterLen {
		return Frame{}, 0, 0, frameError("header of %d bytes does not fit in a frame of %d", hlen, size)
	}
	if hlen < size-afterLen && f.Op.Known() && !f.Op.HasPayload() {
		return Frame{}, 0, 0, frameError("%s has no payload", f.Op)
	}
	n = 4 + int(size)
	if len(src) < n {
		return Frame{}, 0, n, nil
	}
	body := PrefixSize + int(hlen)
	f.Header = src[PrefixSize:body:body]
	f.Payload = src[body:n:n]
	return f, n, n, nil
}

// Begin starts a frame at the end of dst: append the header, then call End with the length that dst
// had before Begin.
func Begin(dst []byte, op Op) []byte {
	return append(dst, 0, 0, 0, 0, byte(op), 0, 0, 0, 0)
}

// End fills in the lengths of the frame that starts at dst[start] and whose header ends dst. payload
// is how many payload bytes follow, which the caller appends or sends from elsewhere.
func End(dst []byte, start, payload int) []byte {
	hlen := len(dst) - start - PrefixSize
	binary.BigEndian.PutUint32(dst[start:], uint32(afterLen+hlen+payload))
	binary.BigEndian.PutUint32(dst[start+5:], uint32(hlen))
	return dst
}

// AppendEmpty appends a frame without header and payload (ping, pong).
func AppendEmpty(dst []byte, op Op) []byte {
	return append(dst, 0, 0, 0, afterLen, byte(op), 0, 0, 0, 0)
}
