package table

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"unsafe"
)

// The field table of AMQP 0-9-1 (4.2.5.5) with RabbitMQ's field types:
//
//	table = u32 length, field*          field = shortstr name, tag octet, value
//
// Decoding bounds nesting by MaxDepth and memory by the length of its input: a value takes
// at least one octet, and no size is believed before it was compared with the bytes there.

// MaxDepth is how many tables and arrays may lie inside each other.
const MaxDepth = 64

// MaxName is the largest field name in bytes (a short string).
const MaxName = 255

var (
	errShort = errors.New("table: ends inside a field")
	errDepth = fmt.Errorf("table: nested deeper than %d levels", MaxDepth)
)

// Decode reads a table without its length prefix. The strings are copies, safe to keep; they share
// one allocation. Errors: an unknown tag, a value that exceeds src, nesting beyond MaxDepth.
func Decode(src []byte) (Table, error) { return decodeTable(string(src), 0) }

// DecodeString is Decode whose strings alias src, so that a table that is kept takes its bytes once.
func DecodeString(src string) (Table, error) { return decodeTable(src, 0) }

// DecodeBorrowed is Decode whose strings alias src: they are valid until the caller reuses src.
func DecodeBorrowed(src []byte) (Table, error) {
	return decodeTable(unsafe.String(unsafe.SliceData(src), len(src)), 0)
}

// AppendBorrowed is DecodeBorrowed that adds the fields to dst. After an error dst has those before it.
func AppendBorrowed(dst Table, src []byte) (Table, error) {
	return appendTable(dst, unsafe.String(unsafe.SliceData(src), len(src)), 0)
}

// Check reports the error that Decode would, without building the table.
func Check(src []byte) error {
	return checkTable(unsafe.String(unsafe.SliceData(src), len(src)), 0)
}

func decodeTable(s string, depth int) (Table, error) {
	if len(s) == 0 {
		return nil, nil
	}
	t, err := appendTable(make(Table, 0, min(len(s)/8+1, 8)), s, depth)
	if err != nil {
		return nil, err
	}
	return t, nil
}

func appendTable(t Table, s string, depth int) (Table, error) {
	for len(s) > 0 {
		name, rest, err := fieldName(s)
		if err != nil {
			return t, err
		}
		v, rest, err := decodeValue(rest, depth)
		if err != nil {
			return t, err
		}
		t = append(t, Field{name, v})
		s = rest
	}
	return t, nil
}

func checkTable(s string, depth int) error {
	for len(s) > 0 {
		_, rest, err := fieldName(s)
		if err != nil {
			return err
		}
		if s, err = checkValue(rest, depth); err != nil {
			return err
		}
	}
	return nil
}

// fieldName cuts the name off a non-empty s.
func fieldName(s string) (name, rest string, err error) {
	n := int(s[0])
	if len(s) <= n {
		return "", "", errShort
	}
	return s[1 : 1+n], s[1+n:], nil
}

// width is the octets of a kind's value, its length prefix alone where it has one; 0 is
// an unknown tag. Void, which has none, is dealt with before.
func (k Kind) width() int {
	switch k {
	case Bool, Int8, Uint8:
		return 1
	case Int16, Uint16:
		return 2
	case Int32, Uint32, Float32, String, Bytes, Array, Nested:
		return 4
	case Decimal:
		return 5
	case Int64, Long, Float64, Time:
		return 8
	}
	return 0
}

// cutValue splits s into kind, fixed part, counted part (empty for most kinds) and the rest.
func cutValue(s string) (k Kind, fixed, counted, rest string, err error) {
	if len(s) == 0 {
		return 0, "", "", "", errShort
	}
	k, s = Kind(s[0]), s[1:]
	if k == Void {
		return k, "", "", s, nil
	}
	w := k.width()
	if w == 0 {
		return 0, "", "", "", fmt.Errorf("table: unknown field tag %q", byte(k))
	}
	if len(s) < w {
		return 0, "", "", "", errShort
	}
	fixed, rest = s[:w], s[w:]
	switch k {
	case String, Bytes, Array, Nested:
		n := uint32(be(fixed))
		if uint64(n) > uint64(len(rest)) {
			return 0, "", "", "", errShort
		}
		counted, rest = rest[:n], rest[n:]
	}
	return k, fixed, counted, rest, nil
}

func decodeValue(s string, depth int) (v Value, rest string, err error) {
	k, fixed, counted, rest, err := cutValue(s)
	if err != nil {
		return v, "", err
	}
	v.Kind = k
	switch k {
	case Void:
	case Int8:
		v.Num = uint64(int8(fixed[0]))
	case Int16:
		v.Num = uint64(int16(be(fixed)))
	case Int32:
		v.Num = uint64(int32(be(fixed)))
	case Decimal:
		v.Scale, v.Num = fixed[0], be(fixed[1:])
	case String, Bytes:
		v.Str = counted
	case Array:
		if depth++; depth > MaxDepth {
			return v, "", errDepth
		}
		for len(counted) > 0 {
			var e Value
			if e, counted, err = decodeValue(counted, depth); err != nil {
				return v, "", err
			}
			v.List = append(v.List, e)
		}
	case Nested:
		if depth++; depth > MaxDepth {
			return v, "", errDepth
		}
		v.Table, err = decodeTable(counted, depth)
	default:
		v.Num = be(fixed)
	}
	return v, rest, err
}

func checkValue(s string, depth int) (rest string, err error) {
	k, _, counted, rest, err := cutValue(s)
	if err != nil {
		return "", err
	}
	if k != Array && k != Nested {
		return rest, nil
	}
	if depth++; depth > MaxDepth {
		return "", errDepth
	}
	if k == Nested {
		return rest, checkTable(counted, depth)
	}
	for len(counted) > 0 {
		if counted, err = checkValue(counted, depth); err != nil {
			return "", err
		}
	}
	return rest, nil
}

// be reads a big-endian number of 1, 2, 4 or 8 octets.
func be(s string) (n uint64) {
	for i := range len(s) {
		n = n<<8 | uint64(s[i])
	}
	return n
}

// AppendPrefixed writes t with its length prefix, as method arguments and headers carry it.
func AppendPrefixed(dst []byte, t Table) []byte {
	at := len(dst)
	dst = Append(append(dst, 0, 0, 0, 0), t)
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}

// Append writes t without a length prefix. Names beyond MaxName are cut to it: Validate finds
// them beforehand in tables that did not come from Decode.
func Append(dst []byte, t Table) []byte {
	for i := range t {
		name := t[i].Name
		if len(name) > MaxName {
			name = name[:MaxName]
		}
		dst = append(dst, byte(len(name)))
		dst = append(dst, name...)
		dst = AppendValue(dst, t[i].Value)
	}
	return dst
}

// AppendValue writes v with its tag.
func AppendValue(dst []byte, v Value) []byte {
	dst = append(dst, byte(v.Kind))
	switch v.Kind {
	case Void:
	case Bool, Int8, Uint8:
		dst = append(dst, byte(v.Num))
	case Int16, Uint16:
		dst = binary.BigEndian.AppendUint16(dst, uint16(v.Num))
	case Int32, Uint32, Float32:
		dst = binary.BigEndian.AppendUint32(dst, uint32(v.Num))
	case Int64, Long, Float64, Time:
		dst = binary.BigEndian.AppendUint64(dst, v.Num)
	case Decimal:
		dst = binary.BigEndian.AppendUint32(append(dst, v.Scale), uint32(v.Num))
	case String, Bytes:
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(v.Str)))
		dst = append(dst, v.Str...)
	case Array:
		at := len(dst)
		dst = append(dst, 0, 0, 0, 0)
		for i := range v.List {
			dst = AppendValue(dst, v.List[i])
		}
		binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	case Nested:
		dst = AppendPrefixed(dst, v.Table)
	default:
		panic(fmt.Sprintf("BUG: table: value of kind %q", byte(v.Kind)))
	}
	return dst
}

// Size is the octets that Append writes for t.
func (t Table) Size() (n int) {
	for i := range t {
		n += 1 + min(len(t[i].Name), MaxName) + t[i].Value.size()
	}
	return n
}

func (v Value) size() int {
	n := 1 + v.Kind.width()
	switch v.Kind {
	case String, Bytes:
		n += len(v.Str)
	case Array:
		for i := range v.List {
			n += v.List[i].size()
		}
	case Nested:
		n += v.Table.Size()
	}
	return n
}

// Values counts the values of t, those in arrays and in other tables too.
func (t Table) Values() (n int) {
	for i := range t {
		n += t[i].Value.values()
	}
	return n
}

func (v Value) values() int {
	n := 1 + v.Table.Values()
	for i := range v.List {
		n += v.List[i].values()
	}
	return n
}

// Memory is about how many bytes t takes, with its strings. Of a small value that is many times what Size says.
func (t Table) Memory() int {
	n := cap(t) * int(unsafe.Sizeof(Field{}))
	for i := range t {
		n += len(t[i].Name) + t[i].Value.memory()
	}
	return n
}

// memory is Memory without the Value itself.
func (v Value) memory() int {
	n := len(v.Str) + cap(v.List)*int(unsafe.Sizeof(Value{})) + v.Table.Memory()
	for i := range v.List {
		n += v.List[i].memory()
	}
	return n
}

// Validate reports what keeps t from being written and read again unchanged: a name beyond
// MaxName, a value of no kind, nesting beyond MaxDepth. Tables from Decode are valid.
func (t Table) Validate() error { return t.validate(0) }

func (t Table) validate(depth int) error {
	for i := range t {
		if n := len(t[i].Name); n > MaxName {
			return fmt.Errorf("table: name of %d bytes, at most %d", n, MaxName)
		}
		if err := t[i].Value.validate(depth); err != nil {
			return err
		}
	}
	return nil
}

func (v Value) validate(depth int) error {
	if v.Kind != Void && v.Kind.width() == 0 {
		return fmt.Errorf("table: value of unknown kind %q", byte(v.Kind))
	}
	if v.Kind != Array && v.Kind != Nested {
		return nil
	}
	if depth++; depth > MaxDepth {
		return errDepth
	}
	for i := range v.List {
		if err := v.List[i].validate(depth); err != nil {
			return err
		}
	}
	return v.Table.validate(depth)
}

// Clone copies t deeply, strings included: for keeping a borrowed table.
func (t Table) Clone() Table {
	if t == nil {
		return nil
	}
	c := make(Table, len(t))
	for i := range t {
		c[i] = Field{strings.Clone(t[i].Name), t[i].Value.clone()}
	}
	return c
}

func (v Value) clone() Value {
	v.Str = strings.Clone(v.Str)
	v.Table = v.Table.Clone()
	if v.List != nil {
		list := make([]Value, len(v.List))
		for i := range v.List {
			list[i] = v.List[i].clone()
		}
		v.List = list
	}
	return v
}

func float32From(num uint64) float64 { return float64(math.Float32frombits(uint32(num))) }
