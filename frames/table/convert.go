package table

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
)

// FromMap makes a table of Go values, its fields ordered by name so that the result is the same
// each time. Errors name what a table cannot hold: a type without a kind, an integer beyond 64
// bits signed, a name beyond MaxName, nesting beyond MaxDepth.
//
//	nil -> Void               bool -> Bool              string -> String      []byte -> Bytes
//	int..int64, uint.. -> Int64    float32, float64 -> Float64    time.Time -> Time
//	[]any -> Array            map[string]any -> Nested  Value, Table -> themselves
//	json.Number -> Int64 when it is written as one, else Float64
func FromMap(m map[string]any) (Table, error) { return fromMap(m, 0) }

// FromAny is FromMap for one value.
func FromAny(x any) (Value, error) { return fromAny(x, 0) }

func fromMap(m map[string]any, depth int) (Table, error) {
	if len(m) == 0 {
		return nil, nil
	}
	t := make(Table, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if len(name) > MaxName {
			return nil, fmt.Errorf("table: name of %d bytes, at most %d", len(name), MaxName)
		}
		v, err := fromAny(m[name], depth)
		switch {
		case err == errDepth: // the names on the way there say nothing
			return nil, err
		case err != nil:
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		t = append(t, Field{name, v})
	}
	return t, nil
}

func fromAny(x any, depth int) (Value, error) {
	switch x := x.(type) {
	case nil:
		return VoidValue(), nil
	case bool:
		return BoolValue(x), nil
	case string:
		return StringValue(x), nil
	case []byte:
		return BytesValue(x), nil
	case int:
		return IntValue(int64(x)), nil
	case int8:
		return IntValue(int64(x)), nil
	case int16:
		return IntValue(int64(x)), nil
	case int32:
		return IntValue(int64(x)), nil
	case int64:
		return IntValue(x), nil
	case uint:
		return fromUint(uint64(x))
	case uint8:
		return IntValue(int64(x)), nil
	case uint16:
		return IntValue(int64(x)), nil
	case uint32:
		return IntValue(int64(x)), nil
	case uint64:
		return fromUint(x)
	case float32:
		return FloatValue(float64(x)), nil
	case float64:
		return FloatValue(x), nil
	case time.Time:
		return TimeValue(x.Unix()), nil
	case json.Number:
		if n, err := strconv.ParseInt(string(x), 10, 64); err == nil {
			return IntValue(n), nil
		}
		f, err := x.Float64()
		if err != nil {
			return Value{}, fmt.Errorf("table: number %q: %w", string(x), err)
		}
		return FloatValue(f), nil
	case []any:
		if depth++; depth > MaxDepth {
			return Value{}, errDepth
		}
		v := Value{Kind: Array, List: make([]Value, len(x))}
		for i := range x {
			e, err := fromAny(x[i], depth)
			switch {
			case err == errDepth:
				return Value{}, err
			case err != nil:
				return Value{}, fmt.Errorf("[%d]: %w", i, err)
			}
			v.List[i] = e
		}
		return v, nil
	case map[string]any:
		if depth++; depth > MaxDepth {
			return Value{}, errDepth
		}
		t, err := fromMap(x, depth)
		return TableValue(t), err
	case Value:
		return x, x.validate(depth)
	case Table:
		if depth++; depth > MaxDepth {
			return Value{}, errDepth
		}
		return TableValue(x), x.validate(depth)
	}
	return Value{}, fmt.Errorf("table: no kind for a %T", x)
}

func fromUint(n uint64) (Value, error) {
	if n > math.MaxInt64 {
		return Value{}, fmt.Errorf("table: integer %d exceeds 64 bits signed", n)
	}
	return IntValue(int64(n)), nil
}

// Map is t as Go values, for JSON and MessagePack; of duplicate names the first counts, and it is
// never nil. Integers become int64, Time its seconds as int64, floats and Decimal float64,
// Bytes []byte, Array []any, Nested map[string]any, Void nil.
func (t Table) Map() map[string]any {
	m := make(map[string]any, len(t))
	for i := range t {
		if _, dup := m[t[i].Name]; !dup {
			m[t[i].Name] = t[i].Value.Any()
		}
	}
	return m
}

// Any is v as a Go value, see Map.
func (v Value) Any() any {
	switch v.Kind {
	case Bool:
		return v.Num != 0
	case String:
		return v.Str
	case Bytes:
		return []byte(v.Str)
	case Float32, Float64:
		f, _ := v.AsFloat()
		return f
	case Decimal:
		return float64(v.Num) / math.Pow10(int(v.Scale))
	case Array:
		list := make([]any, len(v.List))
		for i := range v.List {
			list[i] = v.List[i].Any()
		}
		return list
	case Nested:
		return v.Table.Map()
	case Void:
		return nil
	}
	return int64(v.Num)
}
