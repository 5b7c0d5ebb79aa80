package table

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// String is the kind's name as RabbitMQ prints it in error texts.
func (k Kind) String() string {
	switch k {
	case Bool:
		return "bool"
	case Int8:
		return "byte"
	case Uint8:
		return "unsignedbyte"
	case Int16:
		return "short"
	case Uint16:
		return "unsignedshort"
	case Int32:
		return "signedint"
	case Uint32:
		return "unsignedint"
	case Int64, Long:
		return "long"
	case Float32:
		return "float"
	case Float64:
		return "double"
	case Decimal:
		return "decimal"
	case String:
		return "longstr"
	case Bytes:
		return "binary"
	case Array:
		return "array"
	case Time:
		return "timestamp"
	case Nested:
		return "table"
	case Void:
		return "void"
	}
	return fmt.Sprintf("kind(%d)", byte(k))
}

// Constructors of the kinds that the broker and its tools write themselves.

func StringValue(s string) Value    { return Value{Kind: String, Str: s} }
func BytesValue(b []byte) Value     { return Value{Kind: Bytes, Str: string(b)} }
func IntValue(n int64) Value        { return Value{Kind: Int64, Num: uint64(n)} }
func Int32Value(n int32) Value      { return Value{Kind: Int32, Num: uint64(n)} }
func FloatValue(f float64) Value    { return Value{Kind: Float64, Num: math.Float64bits(f)} }
func ArrayValue(l ...Value) Value   { return Value{Kind: Array, List: l} }
func TableValue(t Table) Value      { return Value{Kind: Nested, Table: t} }
func TimeValue(seconds int64) Value { return Value{Kind: Time, Num: uint64(seconds)} }
func VoidValue() Value              { return Value{Kind: Void} }

func BoolValue(b bool) Value {
	if b {
		return Value{Kind: Bool, Num: 1}
	}
	return Value{Kind: Bool}
}

// IsInt reports whether v is an integer of any width.
func (v Value) IsInt() bool {
	switch v.Kind {
	case Int8, Uint8, Int16, Uint16, Int32, Uint32, Int64, Long:
		return true
	}
	return false
}

// AsInt is the value of an integer of any width; false for every other kind.
func (v Value) AsInt() (int64, bool) {
	if !v.IsInt() {
		return 0, false
	}
	return int64(v.Num), true
}

// AsFloat is the value of a Float32 or Float64.
func (v Value) AsFloat() (float64, bool) {
	switch v.Kind {
	case Float32:
		return float32From(v.Num), true
	case Float64:
		return math.Float64frombits(v.Num), true
	}
	return 0, false
}

// AsString is the value of a String; Bytes is not one.
func (v Value) AsString() (string, bool) { return v.Str, v.Kind == String }

// AsBool is the value of a Bool.
func (v Value) AsBool() (value, ok bool) { return v.Num != 0 && v.Kind == Bool, v.Kind == Bool }

// AsTime is the value of a Time.
func (v Value) AsTime() (time.Time, bool) {
	if v.Kind != Time {
		return time.Time{}, false
	}
	return time.Unix(int64(v.Num), 0), true
}

// String is the bare value as error texts print it: numbers in decimal, strings as they are.
func (v Value) String() string {
	switch v.Kind {
	case Bool:
		return strconv.FormatBool(v.Num != 0)
	case String, Bytes:
		return v.Str
	case Float32:
		return strconv.FormatFloat(float32From(v.Num), 'g', -1, 32)
	case Float64:
		return strconv.FormatFloat(math.Float64frombits(v.Num), 'g', -1, 64)
	case Decimal:
		return strconv.FormatUint(v.Num, 10) + "e-" + strconv.Itoa(int(v.Scale))
	case Time:
		return strconv.FormatUint(v.Num, 10)
	case Array:
		parts := make([]string, len(v.List))
		for i := range v.List {
			parts[i] = v.List[i].String()
		}
		return "[" + strings.Join(parts, ",") + "]"
	case Nested:
		parts := make([]string, len(v.Table))
		for i := range v.Table {
			parts[i] = v.Table[i].Name + "=" + v.Table[i].Value.String()
		}
		return "{" + strings.Join(parts, ",") + "}"
	case Void:
		return "undefined"
	}
	return strconv.FormatInt(int64(v.Num), 10)
}

// Equal compares by value, ignoring how wide a number was written: int 1, long 1, double 1.0 and
// timestamp 1 are equal, and so are a string and a byte array of the same octets. Two decimals are
// equal in scale and value. Arrays are equal element by element, tables as in EqualTables.
func Equal(a, b Value) bool {
	switch a.Kind {
	case String, Bytes:
		return (b.Kind == String || b.Kind == Bytes) && a.Str == b.Str
	case Bool:
		return b.Kind == Bool && (a.Num != 0) == (b.Num != 0)
	case Void:
		return b.Kind == Void
	case Decimal:
		return b.Kind == Decimal && a.Scale == b.Scale && a.Num == b.Num
	case Array:
		return b.Kind == Array && slices.EqualFunc(a.List, b.List, Equal)
	case Nested:
		return b.Kind == Nested && EqualTables(a.Table, b.Table)
	}
	return equalNumbers(a, b)
}

// EqualTables compares name by name with Equal, whatever the order of different names.
func EqualTables(a, b Table) bool {
	if len(a) != len(b) {
		return false
	}
	same := func(x, y Field) bool { return x.Name == y.Name && Equal(x.Value, y.Value) }
	return slices.EqualFunc(a, b, same) || slices.EqualFunc(a.Sorted(), b.Sorted(), same)
}

func equalNumbers(a, b Value) bool {
	af, aFloat := a.AsFloat()
	bf, bFloat := b.AsFloat()
	switch {
	case aFloat && bFloat:
		return af == bf
	case aFloat:
		return equalIntFloat(b, af)
	case bFloat:
		return equalIntFloat(a, bf)
	}
	if !a.integral() || !b.integral() || a.Num != b.Num {
		return false
	}
	// The same bits: different numbers only when one is negative and the other a late time.
	return int64(a.Num) >= 0 || (a.Kind == Time) == (b.Kind == Time)
}

func (v Value) integral() bool { return v.Kind == Time || v.IsInt() }

func equalIntFloat(i Value, f float64) bool {
	switch {
	case !i.integral() || f != math.Trunc(f):
		return false
	case i.Kind == Time:
		return f >= 0 && f < 1<<64 && uint64(f) == i.Num
	}
	return f >= -1<<63 && f < 1<<63 && int64(f) == int64(i.Num)
}

// Sorted is a copy of t ordered by name; fields of the same name keep their order. Its
// encoding identifies a binding's arguments whatever their order was.
func (t Table) Sorted() Table {
	s := slices.Clone(t)
	slices.SortStableFunc(s, func(a, b Field) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

// Set replaces the value of the first field of that name, or appends a field.
func (t *Table) Set(name string, v Value) {
	for i := range *t {
		if (*t)[i].Name == name {
			(*t)[i].Value = v
			return
		}
	}
	*t = append(*t, Field{name, v})
}

// Delete removes every field of that name, keeping the order of the others.
func (t *Table) Delete(name string) {
	*t = slices.DeleteFunc(*t, func(f Field) bool { return f.Name == name })
}
