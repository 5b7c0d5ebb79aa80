// Package amqp spells AMQP 0-9-1 as RabbitMQ speaks it: frames, methods, content headers.
// It is pure encoding, without state or I/O, and serves both sides of a connection.
//
//	frame  = type u8 | channel u16 | size u32 | payload | 0xCE             (4.2.3)
//	method = class u16 | method u16 | arguments                            (4.2.4)
//	header = class u16 | weight u16 | body size u64 | flags u16 | values   (4.2.6.1)
//
// Decoders borrow: what they return aliases their input and is valid until the caller reuses it.
// Encoders append to the caller's buffer. None of both allocates, but for errors and for the
// decoded Properties of a message.
package amqp

//go:generate go run ./gen

import (
	"encoding/binary"
	"fmt"
	"strconv"
)

// ProtocolHeader opens a connection (4.2.2). A server that wants another one answers with its own
// and closes.
const ProtocolHeader = "AMQP\x00\x00\x09\x01"

// Frame types (4.2.3).
const (
	FrameMethod    uint8 = 1
	FrameHeader    uint8 = 2
	FrameBody      uint8 = 3
	FrameHeartbeat uint8 = 8
)

const (
	frameHead = 7
	frameEnd  = 0xCE

	// FrameOverhead is the octets of a frame beside its payload. A body frame carries at most
	// frame_max - FrameOverhead octets.
	FrameOverhead = frameHead + 1

	// MinFrameMax is the lowest frame_max a peer may ask for (frame-min-size).
	MinFrameMax = 4096
)

// Frame is one frame. Payload aliases the bytes it was decoded from.
type Frame struct {
	Type    uint8
	Channel uint16
	Payload []byte
}

// Next decodes the first frame of src and reports the n bytes it took.
// n == 0 with a nil error means src ends inside a frame: call again with more (see Want).
//
// frameMax is the negotiated limit. Like RabbitMQ, Next grants it to the payload alone, eight octets
// more than 4.2.3 does, and refuses a longer frame before its payload is there. An error is a
// *FrameError; only after an unknown type is the place of the next frame known, and n then skips the bad one.
func Next(src []byte, frameMax uint32) (f Frame, n int, err error) {
	if len(src) < frameHead {
		return Frame{}, 0, nil
	}
	f.Type = src[0]
	f.Channel = binary.BigEndian.Uint16(src[1:])
	size := binary.BigEndian.Uint32(src[3:])
	if size > frameMax {
		return Frame{}, 0, &FrameError{Type: f.Type, cause: tooLarge, size: size, limit: frameMax}
	}
	n = frameHead + int(size) + 1
	if len(src) < n {
		return Frame{}, 0, nil
	}
	f.Payload = src[frameHead : n-1 : n-1]
	if err := CheckEnd(f, src[n-1]); err != nil {
		return Frame{}, 0, err
	}
	if f.Type > FrameBody && f.Type != FrameHeartbeat || f.Type == 0 {
		return Frame{}, n, newFrameError(f, unknownType, 0)
	}
	return f, n, nil
}

// Want is how many bytes, counted from the start of src, the frame that begins there is known to
// need: its head, or with the head there all of it. It is for src of which Next said "more".
func Want(src []byte) int {
	if len(src) < frameHead {
		return frameHead
	}
	return frameHead + int(binary.BigEndian.Uint32(src[3:])) + 1
}

// CutBodyHead reads the head of a body frame whose end is not there yet, for a receiver that takes
// long bodies as they come. False: src does not begin so, or the frame is longer than frameMax.
// The receiver checks the end with CheckEnd.
func CutBodyHead(src []byte, frameMax uint32) (channel uint16, size int, part []byte, ok bool) {
	if len(src) < frameHead || src[0] != FrameBody {
		return 0, 0, nil, false
	}
	n := binary.BigEndian.Uint32(src[3:])
	if n > frameMax {
		return 0, 0, nil, false
	}
	return binary.BigEndian.Uint16(src[1:]), int(n), src[frameHead:], true
}

// CheckEnd checks the octet behind the payload f.Payload, or behind its last part, as Next does.
func CheckEnd(f Frame, end byte) error {
	if end != frameEnd {
		return newFrameError(f, badEnd, uint32(end))
	}
	return nil
}

type frameCause uint8

const (
	tooLarge frameCause = iota
	badEnd
	unknownType
)

// FrameError is a malformed frame: 501 FRAME_ERROR. Its text is RabbitMQ's explanation.
type FrameError struct {
	Type  uint8
	cause frameCause
	size  uint32   // tooLarge: the payload's size; badEnd: the octet found
	limit uint32   // tooLarge: frame_max
	head  [16]byte // the payload's first octets
	n     uint8    // how many of head are there
	more  bool     // the payload is longer than head
}

func newFrameError(f Frame, cause frameCause, size uint32) *FrameError {
	e := &FrameError{Type: f.Type, cause: cause, size: size}
	e.n = uint8(copy(e.head[:], f.Payload))
	e.more = len(f.Payload) > len(e.head)
	return e
}

// Fatal reports whether the place of the next frame is lost, so that nothing more can be read.
func (e *FrameError) Fatal() bool { return e.cause != unknownType }

func (e *FrameError) Error() string {
	text := snippet(e.Type, e.head[:e.n], e.more) + ": "
	switch e.cause {
	case tooLarge:
		return text + fmt.Sprintf("{frame_too_large,%d,%d}", e.size, e.limit-FrameOverhead)
	case badEnd:
		return text + fmt.Sprintf("{invalid_frame_end_marker,%d}", e.size)
	}
	return text + "unknown_frame"
}

// Snippet describes a frame as RabbitMQ's texts do: its type and its first 16 octets.
func Snippet(f Frame) string {
	return snippet(f.Type, f.Payload[:min(len(f.Payload), 16)], len(f.Payload) > 16)
}

func snippet(typ uint8, head []byte, more bool) string {
	which := "all"
	if more {
		which = "first 16"
	}
	return fmt.Sprintf("type %d, %s octets = %s", typ, which, string(appendErlang(nil, head)))
}

// appendErlang writes b as Erlang prints a binary: text in quotes when all of it is printable
// Latin-1, else its octets.
func appendErlang(dst, b []byte) []byte {
	printable := len(b) > 0
	for _, c := range b {
		if !(c >= ' ' && c <= '~' || c >= 0xA0 || c >= '\b' && c <= '\r' || c == 0x1b) {
			printable = false
			break
		}
	}
	if !printable {
		return AppendOctets(dst, b)
	}
	dst = append(dst, `<<"`...)
	for _, c := range b {
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, `\b`...)
		case '\t':
			dst = append(dst, `\t`...)
		case '\n':
			dst = append(dst, `\n`...)
		case '\v':
			dst = append(dst, `\v`...)
		case '\f':
			dst = append(dst, `\f`...)
		case '\r':
			dst = append(dst, `\r`...)
		case 0x1b:
			dst = append(dst, `\e`...)
		default:
			dst = append(dst, string(rune(c))...)
		}
	}
	return append(dst, `">>`...)
}

// AppendOctets writes b as <<1,2,3>>, the form of "cannot decode" texts.
func AppendOctets(dst, b []byte) []byte {
	dst = append(dst, "<<"...)
	for i, c := range b {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(c), 10)
	}
	return append(dst, ">>"...)
}

// AppendFrame writes one frame.
func AppendFrame(dst []byte, f Frame) []byte {
	at := len(dst)
	return closeFrame(append(openFrame(dst, f.Type, f.Channel), f.Payload...), at)
}

// AppendHeartbeat writes a heartbeat frame (4.2.7).
func AppendHeartbeat(dst []byte) []byte {
	return append(dst, FrameHeartbeat, 0, 0, 0, 0, 0, 0, frameEnd)
}

// AppendBodyHead and AppendFrameEnd write what surrounds a body that is sent by reference.
func AppendBodyHead(dst []byte, channel uint16, size int) []byte {
	return append(dst, FrameBody, byte(channel>>8), byte(channel),
		byte(size>>24), byte(size>>16), byte(size>>8), byte(size))
}

func AppendFrameEnd(dst []byte) []byte { return append(dst, frameEnd) }

// AppendBody writes body as body frames within frameMax; an empty body has none. It writes
// BodyLen(len(body), frameMax) bytes.
func AppendBody(dst []byte, channel uint16, body []byte, frameMax uint32) []byte {
	limit := int(frameMax) - FrameOverhead
	for len(body) > 0 {
		part := body[:min(len(body), limit)]
		body = body[len(part):]
		dst = append(append(AppendBodyHead(dst, channel, len(part)), part...), frameEnd)
	}
	return dst
}

// BodyLen is the length of the frames of a body.
func BodyLen(size int, frameMax uint32) int {
	limit := int(frameMax) - FrameOverhead
	return size + (size+limit-1)/limit*FrameOverhead
}

// openFrame writes a frame's head with an empty size, which closeFrame fills in.
func openFrame(dst []byte, typ uint8, channel uint16) []byte {
	return append(dst, typ, byte(channel>>8), byte(channel), 0, 0, 0, 0)
}

// closeFrame ends the frame that openFrame began at dst[at].
func closeFrame(dst []byte, at int) []byte {
	binary.BigEndian.PutUint32(dst[at+3:], uint32(len(dst)-at-frameHead))
	return append(dst, frameEnd)
}
