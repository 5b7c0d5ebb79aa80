package websocket

import "encoding/binary"

// controlBit marks, in the place of a message's length, a control frame. Messages are shorter.
const controlBit = 1 << 31

// AppendStreamControl appends a control frame to a stream: the Encoder sends it between the messages
// around it. The payload is at most MaxControl bytes.
func AppendStreamControl(dst []byte, op Op, payload []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, controlBit|uint32(op)<<24|uint32(len(payload)))
	return append(dst, payload...)
}

// Encoder makes frames of a stream, each message one frame. Use it from one goroutine at a time.
type Encoder struct {
	// Key gives a fresh masking key for each frame, unpredictable to those who choose the payloads
	// (RFC 6455 10.3). Nil: a server's frames, which are not masked.
	Key func() uint32

	prefix [PrefixSize]byte
	have   int // bytes in prefix
	left   int // payload bytes to come
	key    uint32
}

// MaxOverhead is the most that Next appends for one call.
const MaxOverhead = maxHeader

// Next encodes what comes first in src. A header that begins there is appended to dst; payload is the
// part of src that follows it on the wire (unmasked: see Mask), and rest is what comes after that. Pieces
// of a stream may be cut anywhere.
func (e *Encoder) Next(dst, src []byte) (out, payload, rest []byte) {
	if e.left == 0 {
		k := copy(e.prefix[e.have:], src)
		e.have += k
		src = src[k:]
		if e.have < PrefixSize {
			return dst, nil, src
		}
		e.have = 0
		size, op := binary.BigEndian.Uint32(e.prefix[:]), OpBinary
		if size&controlBit != 0 {
			op = Op(size >> 24 & opBits)
			size &= 1<<24 - 1
		}
		var key []byte
		if e.Key != nil {
			e.key = e.Key()
			key = binary.LittleEndian.AppendUint32(make([]byte, 0, 4), e.key)
		}
		dst = appendHeader(dst, op, int(size), key)
		e.left = int(size)
	}
	k := min(e.left, len(src))
	e.left -= k
	return dst, src[:k:k], src[k:]
}

// Mask masks payload, from Next, into dst, which is as long.
func (e *Encoder) Mask(dst, payload []byte) { e.key = mask(dst, payload, e.key) }
