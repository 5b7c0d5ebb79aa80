package mgmt

import (
	"cmp"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/firemq/firemq/mgmt/api"
)

// What the API answers is written by this file instead of encoding/json for three reasons: a list of
// thousands is written field by field as the columns ask, it is sorted by a field that the client names,
// and names keep bytes that are no UTF-8, so that a client can send them back.

// columns picks fields of objects, a tree by name. nil picks everything.
type columns map[string]columns

// parseColumns reads "name,message_stats.publish".
func parseColumns(s string) columns {
	if s == "" {
		return nil
	}
	all := make(columns)
	for path := range strings.SplitSeq(s, ",") {
		at := all
		parts := strings.Split(path, ".")
		for i, p := range parts {
			sub, known := at[p]
			switch {
			case known && sub == nil: // all of it already
			case i == len(parts)-1:
				at[p] = nil
			case !known:
				sub = make(columns)
				at[p] = sub
			}
			if at[p] == nil {
				break
			}
			at = at[p]
		}
	}
	return all
}

// pick says whether the field is wanted, and what of it.
func (c columns) pick(name string) (sub columns, wanted bool) {
	if c == nil {
		return nil, true
	}
	sub, wanted = c[name]
	return sub, wanted
}

// field is one JSON field of a struct.
type field struct {
	name      string
	quoted    string // "name":
	index     []int
	omitEmpty bool
	part      parts // that it belongs to
}

// parts of an object are what a view of it can leave out, if no field of theirs is asked for, because they take longer than
// all the rest. A field says so by its tag "part", with the name here.
type parts uint8

const (
	partRates      parts = 1 << iota // changes a second and samples, and counters that have them
	partHead                         // what is known of the messages that leave next
	partSettings                     // what a queue was declared with, policies, who consumes it
	partProperties                   // of connections
	partAddresses                    // of connections, and names made of them
	allParts       = partRates | partHead | partSettings | partProperties | partAddresses
)

var partNames = map[string]parts{
	"": 0, "rates": partRates, "head": partHead, "settings": partSettings, "properties": partProperties, "addresses": partAddresses,
}

// partsOf are those that the columns of a type need.
func partsOf[T any](c columns) (need parts) {
	t := reflect.TypeFor[T]()
	if c == nil || t.Kind() != reflect.Struct {
		return allParts
	}
	for _, f := range fieldsOf(t) {
		if _, wanted := c.pick(f.name); wanted {
			need |= f.part
		}
	}
	return need
}

var plans sync.Map // reflect.Type -> []field

// fieldsOf lists the JSON fields of a struct type, those of embedded structs among them.
func fieldsOf(t reflect.Type) []field {
	if p, ok := plans.Load(t); ok {
		return p.([]field)
	}
	var list []field
	for _, f := range reflect.VisibleFields(t) {
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" || f.Anonymous && name == "" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		part, known := partNames[f.Tag.Get("part")]
		if !known {
			panic("BUG: mgmt: " + name + " is of no part")
		}
		list = append(list, field{name, string(appendText(nil, name)) + ":", f.Index, opts == "omitempty", part})
	}
	plans.Store(t, list)
	return list
}

// encode writes v as JSON behind dst: those fields of it that the columns pick, or of its elements if
// it is a list.
func encode(dst []byte, v any, c columns) []byte { return appendValue(dst, reflect.ValueOf(v), c) }

// encodeList writes what view makes of each item as a JSON array behind dst, one at a time: the views of a long list
// would take as much memory as its text.
func encodeList[S, T any](dst []byte, list []S, view func(*S) T, c columns) []byte {
	const sample = 16
	var shown T
	v := reflect.ValueOf(&shown).Elem()
	dst = append(dst, '[')
	for i := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		if i == sample {
			dst = slices.Grow(dst, len(dst)/sample*(len(list)-sample)*9/8)
		}
		shown = view(&list[i])
		dst = appendValue(dst, v, c)
	}
	return append(dst, ']')
}

var (
	statsType = reflect.TypeFor[api.Stats]()
	rawType   = reflect.TypeFor[json.RawMessage]()
	bytesType = reflect.TypeFor[[]byte]()
)

func appendValue(dst []byte, v reflect.Value, c columns) []byte {
	switch v.Kind() {
	case reflect.Invalid:
		return append(dst, "null"...)
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return append(dst, "null"...)
		}
		return appendValue(dst, v.Elem(), c)
	case reflect.Bool:
		return strconv.AppendBool(dst, v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.AppendInt(dst, v.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.AppendUint(dst, v.Uint(), 10)
	case reflect.Float32, reflect.Float64:
		return appendFloat(dst, v.Float())
	case reflect.String:
		if v.Type() == reflect.TypeFor[json.Number]() {
			return append(dst, v.String()...)
		}
		return appendText(dst, v.String())
	case reflect.Struct:
		return appendStruct(dst, v, c)
	case reflect.Map:
		return appendMap(dst, v, c)
	case reflect.Slice, reflect.Array:
		switch v.Type() {
		case statsType:
			return appendStats(dst, v.Interface().(api.Stats), c)
		case rawType:
			return append(dst, v.Bytes()...)
		case bytesType:
			return appendText(dst, string(v.Bytes()))
		}
		dst = append(dst, '[')
		for i := range v.Len() {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendValue(dst, v.Index(i), c)
		}
		return append(dst, ']')
	}
	panic("BUG: mgmt: no JSON for " + v.Type().String())
}

func appendStruct(dst []byte, v reflect.Value, c columns) []byte {
	dst = append(dst, '{')
	start := len(dst)
	fields := fieldsOf(v.Type())
	for i := range fields {
		f := &fields[i]
		sub, wanted := c.pick(f.name)
		if !wanted {
			continue
		}
		value := v.FieldByIndex(f.index)
		if f.omitEmpty && isEmpty(value) {
			continue
		}
		if len(dst) > start {
			dst = append(dst, ',')
		}
		if value.Kind() == reflect.Map {
			sub = nil // a field table is one value, as in RabbitMQ
		}
		dst = append(dst, f.quoted...)
		dst = appendValue(dst, value, sub)
	}
	return append(dst, '}')
}

func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	}
	return v.IsZero()
}

func appendMap(dst []byte, v reflect.Value, c columns) []byte {
	dst = append(dst, '{')
	start := len(dst)
	keys := make([]string, 0, v.Len())
	for _, k := range v.MapKeys() {
		keys = append(keys, k.String())
	}
	slices.Sort(keys)
	for _, k := range keys {
		sub, wanted := c.pick(k)
		if !wanted {
			continue
		}
		if len(dst) > start {
			dst = append(dst, ',')
		}
		dst = appendText(dst, k)
		dst = append(dst, ':')
		dst = appendValue(dst, v.MapIndex(reflect.ValueOf(k)), sub)
	}
	return append(dst, '}')
}

// appendStats writes counters as RabbitMQ does: "publish":7,"publish_details":{"rate":0.2}.
func appendStats(dst []byte, stats api.Stats, c columns) []byte {
	dst = append(dst, '{')
	start := len(dst)
	for i := range stats {
		s := &stats[i]
		if _, wanted := c.pick(s.Name); wanted {
			if len(dst) > start {
				dst = append(dst, ',')
			}
			dst = appendText(dst, s.Name)
			dst = strconv.AppendUint(append(dst, ':'), s.Total, 10)
		}
		if sub, wanted := c.pick(s.Name + "_details"); wanted {
			if len(dst) > start {
				dst = append(dst, ',')
			}
			dst = append(appendText(dst, s.Name+"_details"), ':')
			dst = appendValue(dst, reflect.ValueOf(s.Details), sub)
		}
	}
	return append(dst, '}')
}

// appendFloat writes 0.0, 2.5 or 1e+21: with a point or an exponent, as a float of RabbitMQ's has.
func appendFloat(dst []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(dst, "null"...)
	}
	if f == math.Trunc(f) && math.Abs(f) < 1e15 { // most are 0
		return append(strconv.AppendInt(dst, int64(f), 10), ".0"...)
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'g', -1, 64)
	if !slices.ContainsFunc(dst[start:], func(b byte) bool { return b == '.' || b == 'e' }) {
		dst = append(dst, ".0"...)
	}
	return dst
}

const hex = "0123456789abcdef"

// appendText quotes s. Bytes that are no UTF-8 stay as they are.
func appendText(dst []byte, s string) []byte {
	dst = append(dst, '"')
	done := 0
	for i := range len(s) {
		b := s[i]
		if b >= ' ' && b != '"' && b != '\\' {
			continue
		}
		dst = append(dst, s[done:i]...)
		done = i + 1
		switch b {
		case '"', '\\':
			dst = append(dst, '\\', b)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[b>>4], hex[b&15])
		}
	}
	dst = append(dst, s[done:]...)
	return append(dst, '"')
}

// at finds the value at a path of field names; the zero Value if there is none.
func at(v reflect.Value, path []string) reflect.Value {
	for v.IsValid() && (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) {
		v = v.Elem()
	}
	if len(path) == 0 || !v.IsValid() {
		return v
	}
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			if f.name == path[0] {
				return at(v.FieldByIndex(f.index), path[1:])
			}
		}
	case reflect.Map:
		return at(v.MapIndex(reflect.ValueOf(path[0])), path[1:])
	case reflect.Slice:
		if v.Type() == statsType {
			for _, s := range v.Interface().(api.Stats) {
				switch path[0] {
				case s.Name:
					return reflect.ValueOf(s.Total)
				case s.Name + "_details":
					return at(reflect.ValueOf(s.Details), path[1:])
				}
			}
		}
	}
	return reflect.Value{}
}

// fieldAt is where the field at a path of names is in a struct, as far as structs go, and the names behind it.
func fieldAt(t reflect.Type, path []string) (index []int, rest []string) {
	for len(path) > 0 && t.Kind() == reflect.Struct {
		fields := fieldsOf(t)
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == path[0] })
		if i < 0 {
			break
		}
		t = t.FieldByIndex(fields[i].index).Type
		index, path = append(index, fields[i].index...), path[1:]
	}
	return index, path
}

// sortBy gives the first items of a list as sorted by the field at path of what view makes of them, equals in the list's
// order. A missing field counts as the least. A view has the parts that the field needs and is thrown away once its key is
// read, and of the keys those stay that may be among the first: a page of a long list costs little more than its rows.
func sortBy[S, T any](list []S, path string, reverse bool, first int, view func(*S, parts) T) []S {
	type keyed struct {
		key sortKey
		at  int
	}
	compare := func(a, b keyed) int {
		c := a.key.compare(&b.key)
		if reverse {
			c = -c
		}
		return cmp.Or(c, cmp.Compare(a.at, b.at))
	}
	names := strings.Split(path, ".")
	need := partsOf[T](columns{names[0]: nil})
	index, names := fieldAt(reflect.TypeFor[T](), names)
	var shown T
	field := reflect.ValueOf(&shown).Elem()
	if index != nil {
		field = field.FieldByIndex(index)
	}
	most := min(len(list), max(2*first, 64))
	keys := make([]keyed, 0, most)
	full := false // the first ones so far are in order, then those that may be before the last of them
	for i := range list {
		shown = view(&list[i], need)
		k := keyed{keyOf(at(field, names)), i}
		if full && compare(k, keys[first-1]) > 0 {
			continue
		}
		if len(keys) == most {
			slices.SortFunc(keys, compare)
			if full, keys = first > 0, keys[:first]; full && compare(k, keys[first-1]) > 0 {
				continue
			}
		}
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compare)
	sorted := make([]S, min(first, len(keys)))
	for i := range sorted {
		sorted[i] = list[keys[i].at]
	}
	return sorted
}

// sortKey is a number, or the text of anything else. Numbers come first.
type sortKey struct {
	number float64
	text   string
}

func keyOf(v reflect.Value) sortKey {
	switch v.Kind() {
	case reflect.Invalid:
		return sortKey{}
	case reflect.Bool:
		if v.Bool() {
			return sortKey{text: "true"}
		}
		return sortKey{text: "false"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return sortKey{number: float64(v.Int())}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return sortKey{number: float64(v.Uint())}
	case reflect.Float32, reflect.Float64:
		return sortKey{number: v.Float()}
	case reflect.String:
		return sortKey{text: v.String()}
	}
	return sortKey{text: string(appendValue(nil, v, nil))}
}

func (k *sortKey) compare(o *sortKey) int {
	return cmp.Or(strings.Compare(k.text, o.text), cmp.Compare(k.number, o.number))
}

// validText reports whether a payload can be shown as a JSON string.
func validText(p []byte) bool { return utf8.Valid(p) }
