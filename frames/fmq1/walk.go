package fmq1

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/tinylib/msgp/msgp"
)

const emptyMap = 0x80

// topLevel is the depth of a header itself: what a field holds may nest MaxDepth deep.
const topLevel = -1

func syntaxError(format string, args ...any) error {
	return &Error{Code: SyntaxError, Text: fmt.Sprintf(format, args...)}
}

var (
	errShort  = syntaxError("header ends inside a value")
	errDeep   = syntaxError("header values nest deeper than %d", MaxDepth)
	errPrefix = syntaxError("header has the byte 0xc1, which MessagePack never uses")
	errRest   = syntaxError("header has bytes after its map")
	errExt    = syntaxError("header has a MessagePack extension value, which AMQP cannot carry")
	errKey    = syntaxError("header has a map key that is not a str")
	errLong   = syntaxError("header has a map key longer than %d bytes", MaxName)
	errMany   = syntaxError("header has too many fields or a list that is too long")
	errBig    = syntaxError("header has an integer above 9223372036854775807, which AMQP cannot carry")
)

// size reports the bytes of the value at the start of b, without the items of a map or an array,
// how many items follow it, and whether they are pairs of a map.
func size(b []byte) (n int, items uint64, isMap bool, err error) {
	if len(b) == 0 {
		return 0, 0, false, errShort
	}
	lead := b[0]
	switch {
	case lead < 0x80 || lead >= 0xe0: // fixint
		return 1, 0, false, nil
	case lead < 0x90:
		return 1, 2 * uint64(lead&0x0f), true, nil
	case lead < 0xa0:
		return 1, uint64(lead & 0x0f), false, nil
	case lead < 0xc0:
		n = 1 + int(lead&0x1f)
	default:
		fixed := int(fixedSizes[lead-0xc0])
		if fixed == 0 {
			return 0, 0, false, errPrefix
		}
		if len(b) < fixed {
			return 0, 0, false, errShort
		}
		n = fixed
		switch lead {
		case 0xc4, 0xc7, 0xd9: // bin8, ext8, str8
			n += int(b[1])
		case 0xc5, 0xc8, 0xda:
			n += int(binary.BigEndian.Uint16(b[1:]))
		case 0xc6, 0xc9, 0xdb:
			n += int(binary.BigEndian.Uint32(b[1:]))
		case 0xdc:
			return n, uint64(binary.BigEndian.Uint16(b[1:])), false, nil
		case 0xdd:
			return n, uint64(binary.BigEndian.Uint32(b[1:])), false, nil
		case 0xde:
			return n, 2 * uint64(binary.BigEndian.Uint16(b[1:])), true, nil
		case 0xdf:
			return n, 2 * uint64(binary.BigEndian.Uint32(b[1:])), true, nil
		}
	}
	if len(b) < n {
		return 0, 0, false, errShort
	}
	return n, 0, false, nil
}

// fixedSizes are the bytes of a value's head by lead byte from 0xc0 on: lead, length, and the whole
// value where it has no length. 0 is the byte that MessagePack never uses.
var fixedSizes = [32]uint8{
	1, 0, 1, 1, 2, 3, 5, 3, 4, 6, 5, 9, 2, 3, 5, 9, // nil - false true bin ext float uint
	2, 3, 5, 9, 3, 4, 6, 10, 18, 2, 3, 5, 3, 5, 3, 5, // int fixext str array map
}

// skip passes over one value of any kind that lies inside depth others.
func skip(b []byte, depth int) ([]byte, error) {
	n, items, _, err := size(b)
	if err != nil {
		return b, err
	}
	b = b[n:]
	if items == 0 {
		return b, nil
	}
	if depth >= MaxDepth {
		return b, errDeep
	}
	for ; items > 0; items-- {
		if b, err = skip(b, depth+1); err != nil {
			return b, err
		}
	}
	return b, nil
}

// skipTable passes over one value that a field table can carry: no extension types, no integers above
// int64, and maps with str keys of at most MaxName bytes only.
func skipTable(b []byte, depth int) ([]byte, error) {
	if len(b) == 0 {
		return b, errShort
	}
	switch lead := b[0]; {
	case lead < 0x80 || lead >= 0xe0:
		return b[1:], nil
	case lead >= 0xa0 && lead < 0xc0:
		if n := 1 + int(lead&0x1f); n <= len(b) {
			return b[n:], nil
		}
		return b, errShort
	case lead >= 0xc7 && lead <= 0xc9 || lead >= 0xd4 && lead <= 0xd8:
		return b, errExt
	case lead == 0xcf && len(b) > 1 && b[1] >= 0x80:
		return b, errBig
	}
	n, items, isMap, err := size(b)
	if err != nil {
		return b, err
	}
	b = b[n:]
	if items > 0 && depth >= MaxDepth {
		return b, errDeep
	}
	if isMap {
		for items /= 2; items > 0; items-- {
			if _, b, err = tableKey(b); err != nil {
				return b, err
			}
			if b, err = skipTable(b, depth+1); err != nil {
				return b, err
			}
		}
		return b, nil
	}
	for ; items > 0; items-- {
		if b, err = skipTable(b, depth+1); err != nil {
			return b, err
		}
	}
	return b, nil
}

// tableKey takes a map key that a field table can carry.
func tableKey(b []byte) (key, rest []byte, err error) {
	n := 0
	switch {
	case len(b) == 0:
		return nil, b, errShort
	case b[0]&0xe0 == 0xa0:
		n = int(b[0] & 0x1f)
		b = b[1:]
	case b[0] == 0xd9 && len(b) > 1:
		n = int(b[1])
		b = b[2:]
	case b[0] == 0xda && len(b) > 2:
		n = int(binary.BigEndian.Uint16(b[1:]))
		b = b[3:]
	case b[0] == 0xdb && len(b) > 4:
		n = int(binary.BigEndian.Uint32(b[1:]))
		b = b[5:]
	case b[0] >= 0xd9 && b[0] <= 0xdb:
		return nil, b, errShort
	default:
		return nil, b, errKey
	}
	if len(b) < n {
		return nil, b, errShort
	}
	if n > MaxName {
		return nil, b, errLong
	}
	return b[:n], b[n:], nil
}

// mapHeader opens a header: an empty one is an empty map.
func mapHeader(b []byte) (n uint32, rest []byte, err error) {
	if len(b) == 0 {
		return 0, nil, nil
	}
	if b[0]&0xf0 == 0x80 {
		return uint32(b[0] & 0x0f), b[1:], nil
	}
	if msgp.NextType(b) != msgp.MapType {
		return 0, nil, syntaxError("header is not a map but a %s", msgp.NextType(b))
	}
	if n, rest, err = msgp.ReadMapHeaderBytes(b); err != nil {
		return 0, nil, errShort
	}
	return n, rest, nil
}

// readKey takes a header key.
func readKey(b []byte) (key, rest []byte, err error) {
	if len(b) > 0 && b[0]&0xe0 == 0xa0 {
		if n := 1 + int(b[0]&0x1f); n <= len(b) {
			return b[1:n], b[n:], nil
		}
		return nil, b, errShort
	}
	if key, rest, err = msgp.ReadStringZC(b); err != nil {
		if errors.Is(err, msgp.ErrShortBytes) {
			return nil, b, errShort
		}
		return nil, b, errKey
	}
	return key, rest, nil
}

// readUint takes an unsigned integer in any encoding that holds its value.
func readUint(b []byte) (v uint64, rest []byte, err error) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), b[1:], nil
	}
	return msgp.ReadUint64Bytes(b)
}

// isMap is the error for a value that is no map.
func isMap(b []byte) error {
	if len(b) == 0 {
		return errShort
	}
	if t := msgp.NextType(b); t != msgp.MapType {
		return msgp.TypeError{Method: msgp.MapType, Encoded: t}
	}
	return nil
}

// readMap takes a whole map without looking into it beyond its bounds.
func readMap(b []byte) (raw, rest []byte, err error) {
	if err = isMap(b); err != nil {
		return nil, b, err
	}
	if rest, err = skip(b, 0); err != nil {
		return nil, b, err
	}
	return b[:len(b)-len(rest)], rest, nil
}

// readTable is readMap for a map that a field table must be able to carry.
func readTable(b []byte) (raw, rest []byte, err error) {
	if len(b) > 0 && b[0] == emptyMap {
		return b[:1], b[1:], nil
	}
	if err = isMap(b); err != nil {
		return nil, b, err
	}
	if rest, err = skipTable(b, 0); err != nil {
		return nil, b, err
	}
	return b[:len(b)-len(rest)], rest, nil
}

// fieldError turns what msgp says about a field into the protocol's words.
func fieldError(field string, err error) error {
	if len(field) > 64 {
		field = field[:64]
	}
	switch e := err.(type) {
	case *Error:
		return e
	case msgp.TypeError:
		return syntaxError("field '%s' is a %s, not a %s", field, e.Encoded, e.Method)
	case msgp.UintBelowZero:
		return syntaxError("field '%s' is negative", field)
	case msgp.UintOverflow:
		return syntaxError("field '%s' is too large: %d", field, e.Value)
	case msgp.InvalidPrefixError:
		return errPrefix
	}
	switch {
	case errors.Is(err, msgp.ErrShortBytes):
		return errShort
	case errors.Is(err, msgp.ErrLimitExceeded):
		return errMany
	}
	return syntaxError("field '%s': %s", field, strings.TrimPrefix(err.Error(), "msgp: "))
}

// generatedError is fieldError for generated code, which names the Go field at the end of its text.
func generatedError(err error) error {
	field := "?"
	if i := strings.LastIndex(err.Error(), " at "); i >= 0 {
		field = snake(err.Error()[i+4:])
	}
	if cause := msgp.Cause(err); cause != nil {
		err = cause
	}
	return fieldError(field, err)
}

// snake spells a Go field name as the protocol does: "AutoDelete" is auto_delete, "RID" is rid.
func snake(name string) string {
	out := make([]byte, 0, len(name)+4)
	for i := range len(name) {
		c := name[i]
		if c >= 'A' && c <= 'Z' {
			if i > 0 && name[i-1] >= 'a' && name[i-1] <= 'z' {
				out = append(out, '_')
			}
			c += 'a' - 'A'
		}
		out = append(out, c)
	}
	return string(out)
}

// Header is the header of a rare op: a pointer to one of this package's structs whose codec is
// generated.
type Header interface {
	msgp.Marshaler
	msgp.Unmarshaler
	msgp.Sizer // an upper bound of the encoded size
}

// Decode reads a header into m, which should be zero: absent fields are left alone. Nothing of m
// aliases b. Errors are *Error with code SyntaxError.
func Decode(b []byte, m Header) error {
	if len(b) == 0 {
		return nil
	}
	if _, _, err := mapHeader(b); err != nil {
		return err
	}
	// The walk comes first: it bounds the nesting that generated code would follow.
	rest, err := skip(b, topLevel)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return errRest
	}
	if _, err = m.UnmarshalMsg(b); err != nil {
		return generatedError(err)
	}
	return nil
}

// Append appends a whole frame of a rare op.
func Append(dst []byte, op Op, m Header) []byte {
	start := len(dst)
	dst, err := m.MarshalMsg(Begin(dst, op))
	if err != nil {
		panic("BUG: fmq1: encoding " + op.String() + ": " + err.Error())
	}
	return End(dst, start, 0)
}

// Request finds the field that says which frame an error belongs to, rid or seq, in a header that may
// be malformed elsewhere. 0: there is none that can be read.
func Request(b []byte, field string) uint64 {
	n, b, err := mapHeader(b)
	for ; err == nil && n > 0; n-- {
		var key []byte
		if key, b, err = readKey(b); err != nil {
			break
		}
		if string(key) == field {
			if v, _, err := readUint(b); err == nil {
				return v
			}
			break
		}
		b, err = skip(b, 0)
	}
	return 0
}
