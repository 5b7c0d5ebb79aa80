package websocket

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

const (
	// PrefixSize is the length before each message in the stream.
	PrefixSize = 4
	// MaxControl is the largest payload of a control frame (RFC 6455 5.5).
	MaxControl = 125

	maxHeader = 14
)

// Op says what a frame is (RFC 6455 5.2).
type Op byte

const (
	OpContinuation Op = 0x0
	OpText         Op = 0x1
	OpBinary       Op = 0x2
	OpClose        Op = 0x8
	OpPing         Op = 0x9
	OpPong         Op = 0xa
)

// Codes of a close frame (RFC 6455 7.4.1).
const (
	CloseNormal      = 1000
	CloseGoingAway   = 1001
	CloseProtocol    = 1002
	CloseUnsupported = 1003
	CloseNoStatus    = 1005 // never sent: what a close frame without a code means
	CloseInvalid     = 1007
	CloseTryLater    = 1013
)

// Error is bytes that break RFC 6455, with the code that the close frame should carry.
type Error struct {
	Code uint16
	Text string
}

func (e *Error) Error() string { return fmt.Sprintf("websocket: %s (%d)", e.Text, e.Code) }

func protocolError(format string, args ...any) error {
	return &Error{Code: CloseProtocol, Text: fmt.Sprintf(format, args...)}
}

// The first two bytes of a header.
const (
	finBit  = 0x80 // of the first: the last frame of its message
	rsvBits = 0x70 // of the first: extensions
	opBits  = 0x0f // of the first
	maskBit = 0x80 // of the second
)

// appendHeader appends the header of a whole message or control frame, with the length in the
// fewest bytes, as 5.2 demands. key is nil when the frame is not masked.
func appendHeader(dst []byte, op Op, n int, key []byte) []byte {
	var masked byte
	if key != nil {
		masked = maskBit
	}
	switch dst = append(dst, finBit|byte(op)); {
	case n <= MaxControl:
		dst = append(dst, masked|byte(n))
	case n <= 0xffff:
		dst = binary.BigEndian.AppendUint16(append(dst, masked|126), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint64(append(dst, masked|127), uint64(n))
	}
	return append(dst, key...)
}

// AppendClose appends the payload of a close frame. The text is cut to what a control frame holds.
func AppendClose(dst []byte, code uint16, text string) []byte {
	if code == CloseNoStatus {
		return dst
	}
	return append(binary.BigEndian.AppendUint16(dst, code), text[:min(len(text), MaxControl-2)]...)
}

// AppendControl appends an unmasked control frame, as servers send it. The payload is at most
// MaxControl bytes.
func AppendControl(dst []byte, op Op, payload []byte) []byte {
	return append(appendHeader(dst, op, len(payload), nil), payload...)
}

// mask masks or unmasks src into dst, which is as long and may begin before src in the same array.
// key holds the four bytes in their order on the wire, lowest first; returned is the key for the byte
// after src.
func mask(dst, src []byte, key uint32) uint32 {
	wide := uint64(key)<<32 | uint64(key)
	for len(src) >= 32 && len(dst) >= 32 {
		d, s := dst[:32:32], src[:32:32]
		for i := 0; i < 32; i += 8 {
			binary.LittleEndian.PutUint64(d[i:i+8], binary.LittleEndian.Uint64(s[i:i+8])^wide)
		}
		dst, src = dst[32:], src[32:]
	}
	for len(src) >= 8 && len(dst) >= 8 {
		binary.LittleEndian.PutUint64(dst, binary.LittleEndian.Uint64(src)^wide)
		dst, src = dst[8:], src[8:]
	}
	for i, b := range src {
		dst[i] = b ^ byte(key)
		key = bits.RotateLeft32(key, -8)
	}
	return key
}
