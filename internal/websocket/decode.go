package websocket

import (
	"encoding/binary"
	"math"
	"unicode/utf8"
)

// Event is why Decode returned.
type Event int

const (
	// More: src is used up, or dst is full.
	More Event = iota
	// Whole: a message that came in fragments is complete, see Message.
	Whole
	// Ping: a ping came, its payload is Control.
	Ping
	// Closed: a close frame came, see Code. Nothing may follow it.
	Closed
)

// Decoder makes the stream of what comes from a peer. Use it from one goroutine at a time.
//
// A message in one frame passes through: nothing of it is kept, and whoever reads the stream sees its
// length before its payload has come. Only fragments are put together here, up to Limit.
type Decoder struct {
	// Masked says that the peer is a client, which masks every frame; a server masks none.
	Masked bool
	// Limit bounds a message that comes in fragments. A longer one is in the stream as its length
	// alone, which is then above Limit: its reader must not go on after that.
	Limit int

	at   place
	head [maxHeader]byte
	have int // bytes in head

	// The frame whose header came last.
	op   Op
	fin  bool
	left uint64 // payload bytes to come
	key  uint32 // for the next of them

	prefix []byte // what of a message's length is to go out, a part of length
	length [PrefixSize]byte
	after  place // the prefix

	fragments bool   // a message is not complete
	dropping  bool   // and is too long
	message   []byte // the stream's form of it so far

	control  [MaxControl]byte
	nControl int
	code     uint16
}

// place is where in a frame the decoder is.
type place uint8

const (
	atHeader   place = iota
	atPrefix         // the length of a message is to go out
	atPayload        // that goes out as it comes
	atFragment       // payload that is collected
	atControl
)

// Decode takes bytes of src and puts stream into dst: n bytes from taken ones. dst may begin before src
// in the same array if the peer masks: at PrefixSize bytes before src it never reaches bytes not taken.
// Every error is an *Error; after one the Decoder is of no use.
func (d *Decoder) Decode(dst, src []byte) (n, taken int, ev Event, err error) {
	for {
		switch d.at {
		case atHeader:
			k, whole := d.header(src[taken:])
			taken += k
			if !whole {
				return n, taken, More, nil
			}
			if err := d.begin(); err != nil {
				return n, taken, More, err
			}
		case atPrefix:
			k := copy(dst[n:], d.prefix)
			n, d.prefix = n+k, d.prefix[k:]
			if len(d.prefix) > 0 {
				return n, taken, More, nil
			}
			d.at = d.after
		case atPayload:
			k := int(min(d.left, uint64(len(src)-taken), uint64(len(dst)-n)))
			d.unmask(dst[n:n+k], src[taken:taken+k])
			n, taken = n+k, taken+k
			if d.left > 0 {
				return n, taken, More, nil
			}
			d.at = atHeader
		case atFragment:
			k := int(min(d.left, uint64(len(src)-taken)))
			d.collect(src[taken : taken+k])
			taken += k
			if d.left > 0 {
				return n, taken, More, nil
			}
			d.at = atHeader
			if d.fin && d.endFragments() {
				return n, taken, Whole, nil
			}
		case atControl:
			k := int(min(d.left, uint64(len(src)-taken)))
			d.unmask(d.control[d.nControl:d.nControl+k], src[taken:taken+k])
			d.nControl, taken = d.nControl+k, taken+k
			if d.left > 0 {
				return n, taken, More, nil
			}
			d.at = atHeader
			if ev, err = d.endControl(); ev != More || err != nil {
				return n, taken, ev, err
			}
		}
	}
}

// header takes what is missing of the header; whole: it is complete.
func (d *Decoder) header(src []byte) (taken int, whole bool) {
	for {
		need := 2 // which say how many more there are
		if d.have >= 2 {
			switch d.head[1] &^ maskBit {
			case 126:
				need += 2
			case 127:
				need += 8
			}
			if d.head[1]&maskBit != 0 {
				need += 4
			}
			if d.have == need {
				return taken, true
			}
		}
		k := copy(d.head[d.have:need], src[taken:])
		if k == 0 {
			return taken, false
		}
		d.have += k
		taken += k
	}
}

// begin starts the frame whose header is complete.
func (d *Decoder) begin() error {
	first, second := d.head[0], d.head[1]
	d.op, d.fin = Op(first&opBits), first&finBit != 0
	rest := d.head[2:d.have]
	switch size := second &^ maskBit; size {
	case 126:
		d.left, rest = uint64(binary.BigEndian.Uint16(rest)), rest[2:]
	case 127:
		d.left, rest = binary.BigEndian.Uint64(rest), rest[8:]
	default:
		d.left = uint64(size)
	}
	d.have = 0
	masked := second&maskBit != 0
	if masked {
		d.key = binary.LittleEndian.Uint32(rest)
	}
	switch {
	case first&rsvBits != 0:
		return protocolError("reserved bits are set, no extension was negotiated")
	case masked != d.Masked && d.Masked:
		return protocolError("a client's frame is not masked")
	case masked != d.Masked:
		return protocolError("a server's frame is masked")
	case d.left > math.MaxInt64:
		return protocolError("frame length with its highest bit set")
	case second&^maskBit == 126 && d.left < 126, second&^maskBit == 127 && d.left <= 0xffff:
		return protocolError("frame length in more bytes than it needs")
	}
	switch d.op {
	case OpBinary, OpContinuation:
		return d.beginData()
	case OpText:
		return &Error{Code: CloseUnsupported, Text: "messages must be binary, this one is text"}
	case OpClose, OpPing, OpPong:
		if !d.fin || d.left > MaxControl {
			return protocolError("control frame in fragments or of more than %d bytes", MaxControl)
		}
		d.at, d.nControl = atControl, 0
		return nil
	}
	return protocolError("reserved opcode %d", d.op)
}

func (d *Decoder) beginData() error {
	switch {
	case d.op == OpBinary && d.fragments:
		return protocolError("message inside another one")
	case d.op == OpContinuation && !d.fragments:
		return protocolError("continuation of no message")
	case d.op == OpBinary && d.fin:
		d.announce(d.left, atPayload)
		return nil
	case d.op == OpBinary:
		d.fragments = true
		d.message = make([]byte, PrefixSize)
	}
	d.at = atFragment
	if d.dropping {
		return nil
	}
	if total := uint64(len(d.message)-PrefixSize) + d.left; total > uint64(d.Limit) {
		d.dropping, d.message = true, nil
		d.announce(total, atFragment)
	}
	return nil
}

// announce has the length of a message go out, and payload be looked for after it.
func (d *Decoder) announce(size uint64, after place) {
	binary.BigEndian.PutUint32(d.length[:], uint32(min(size, math.MaxUint32)))
	d.prefix, d.at, d.after = d.length[:], atPrefix, after
}

func (d *Decoder) unmask(dst, src []byte) {
	d.left -= uint64(len(src))
	if d.Masked {
		d.key = mask(dst, src, d.key)
	} else {
		copy(dst, src)
	}
}

func (d *Decoder) collect(src []byte) {
	if d.dropping {
		d.left -= uint64(len(src))
		return
	}
	at := len(d.message)
	d.message = append(d.message, src...)
	d.unmask(d.message[at:], d.message[at:])
}

// endFragments ends the message; false: it was too long, and its length is all that is known of it.
func (d *Decoder) endFragments() bool {
	d.fragments = false
	if d.dropping {
		d.dropping = false
		return false
	}
	binary.BigEndian.PutUint32(d.message, uint32(len(d.message)-PrefixSize))
	return true
}

// Message is the stream's form of a message that came in fragments, once: it is the caller's.
func (d *Decoder) Message() []byte {
	m := d.message
	d.message = nil
	return m
}

func (d *Decoder) endControl() (Event, error) {
	switch d.op {
	case OpPing:
		return Ping, nil
	case OpClose:
		return Closed, d.parseClose()
	}
	return More, nil // a pong needs no answer, also one that nobody asked for (5.5.3)
}

// Control is the payload of the ping that came; valid until the next Decode.
func (d *Decoder) Control() []byte { return d.control[:d.nControl] }

// Code is what the peer's close frame said; CloseNoStatus when it said nothing.
func (d *Decoder) Code() uint16 { return d.code }

func (d *Decoder) parseClose() error {
	p := d.Control()
	if len(p) == 0 {
		d.code = CloseNoStatus
		return nil
	}
	if len(p) == 1 {
		return protocolError("close frame with half a code")
	}
	d.code = binary.BigEndian.Uint16(p)
	if !sendable(d.code) {
		return protocolError("close code %d is not for use in a frame", d.code)
	}
	if !utf8.Valid(p[2:]) {
		return &Error{Code: CloseInvalid, Text: "the reason of a close frame is not UTF-8"}
	}
	return nil
}

// sendable reports whether a close frame may carry the code (7.4).
func sendable(code uint16) bool {
	switch {
	case 1000 <= code && code <= 1003, 1007 <= code && code <= 1014:
		return true
	}
	return 3000 <= code && code <= 4999
}
