package table

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
)

// everyKind holds one field of each kind and a duplicate name.
var everyKind = Table{
	{"t", BoolValue(true)},
	{"b", Value{Kind: Int8, Num: ^uint64(0)}},
	{"B", Value{Kind: Uint8, Num: 255}},
	{"s", Value{Kind: Int16, Num: 0xffffffffffff8000}},
	{"u", Value{Kind: Uint16, Num: 65535}},
	{"I", Int32Value(-2)},
	{"i", Value{Kind: Uint32, Num: 0xffffffff}},
	{"l", IntValue(-3)},
	{"L", Value{Kind: Long, Num: 4}},
	{"f", Value{Kind: Float32, Num: uint64(math.Float32bits(1.5))}},
	{"d", FloatValue(-2.25)},
	{"D", Value{Kind: Decimal, Scale: 2, Num: 314}},
	{"S", StringValue("text")},
	{"x", BytesValue([]byte{0, 255})},
	{"A", ArrayValue(Int32Value(1), StringValue("a"), ArrayValue())},
	{"T", TimeValue(1700000000)},
	{"F", TableValue(Table{{"in", VoidValue()}})},
	{"V", VoidValue()},
	{"S", StringValue("second")},
}

const everyKindHex = "017474" + "01" + "016262" + "ff" + "014242" + "ff" + "017373" + "8000" + "017575" + "ffff" +
	"014949" + "fffffffe" + "016969" + "ffffffff" + "016c6c" + "fffffffffffffffd" + "014c4c" + "0000000000000004" +
	"016666" + "3fc00000" + "016464" + "c002000000000000" + "014444" + "020000013a" + "015353" + "0000000474657874" +
	"017878" + "0000000200ff" + "014141" + "00000010" + "4900000001" + "530000000161" + "4100000000" +
	"015454" + "000000006553f100" + "014646" + "00000004" + "02696e56" + "015656" + "015353" + "000000067365636f6e64"

func TestEveryKindIsWrittenAsItWasRead(t *testing.T) {
	golden, err := hex.DecodeString(everyKindHex)
	if err != nil {
		t.Fatal(err)
	}
	if got := Append(nil, everyKind); !bytes.Equal(got, golden) {
		t.Fatalf("Append:\n got %x\nwant %x", got, golden)
	}
	got, err := Decode(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, everyKind) {
		t.Fatalf("Decode:\n got %v\nwant %v", got, everyKind)
	}
	if got := everyKind.Size(); got != len(golden) {
		t.Errorf("Size = %d, want %d", got, len(golden))
	}
	if err := everyKind.Validate(); err != nil {
		t.Error(err)
	}
	prefixed := AppendPrefixed([]byte("x"), everyKind)
	if want := append([]byte{'x', 0, 0, 0, byte(len(golden))}, golden...); !bytes.Equal(prefixed, want) {
		t.Errorf("AppendPrefixed:\n got %x\nwant %x", prefixed, want)
	}
}

func TestDecodeCopiesAndDecodeBorrowedDoesNot(t *testing.T) {
	src := Append(nil, Table{{"key", StringValue("value")}})
	kept, _ := Decode(src)
	borrowed, _ := DecodeBorrowed(src)
	cloned := borrowed.Clone()
	for i := range src {
		src[i] = 'z'
	}
	if kept[0].Name != "key" || kept[0].Value.Str != "value" {
		t.Errorf("Decode aliases its input: %v", kept)
	}
	if cloned[0].Name != "key" || cloned[0].Value.Str != "value" {
		t.Errorf("Clone aliases: %v", cloned)
	}
	if borrowed[0].Name != "zzz" {
		t.Errorf("DecodeBorrowed copied: %v", borrowed)
	}
}

func TestDecodeRefuses(t *testing.T) {
	deep := func(levels int, tag byte) []byte {
		body := []byte{}
		for range levels {
			n := len(body)
			v := append([]byte{tag, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, body...)
			if tag == 'F' {
				v = append([]byte{0}, v...)
			}
			body = v
		}
		if tag == 'A' {
			body = append([]byte{0}, body...)
		}
		return body
	}
	for _, c := range []struct {
		name string
		src  []byte
		want string // "" accepts
	}{
		{"a name beyond the end", []byte{5, 'a'}, "ends inside"},
		{"no tag after the name", []byte{1, 'a'}, "ends inside"},
		{"an unknown tag", []byte{1, 'a', 'Z', 0}, `unknown field tag 'Z'`},
		{"a short integer", []byte{1, 'a', 'I', 0, 0, 0}, "ends inside"},
		{"a string of 4 GiB", []byte{1, 'a', 'S', 255, 255, 255, 255, 'x'}, "ends inside"},
		{"an array longer than the rest", []byte{1, 'a', 'A', 0, 0, 0, 2, 'V'}, "ends inside"},
		{"a broken table in an array", []byte{1, 'a', 'A', 0, 0, 0, 6, 'F', 0, 0, 0, 1, 9}, "ends inside"},
		{"tables at the depth limit", deep(MaxDepth, 'F'), ""},
		{"tables beyond the depth limit", deep(MaxDepth+1, 'F'), "deeper"},
		{"arrays at the depth limit", deep(MaxDepth, 'A'), ""},
		{"arrays beyond the depth limit", deep(MaxDepth+1, 'A'), "deeper"},
	} {
		_, err := Decode(c.src)
		check := Check(c.src)
		if c.want == "" {
			if err != nil || check != nil {
				t.Errorf("%s: Decode %v, Check %v", c.name, err, check)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Decode gave %v, want %q", c.name, err, c.want)
		}
		if check == nil || check.Error() != err.Error() {
			t.Errorf("%s: Check gave %v, Decode %v", c.name, check, err)
		}
	}
}

func TestEqualIgnoresHowANumberWasWritten(t *testing.T) {
	one32, one64, oneL := Int32Value(1), IntValue(1), Value{Kind: Long, Num: 1}
	for _, c := range []struct {
		a, b Value
		want bool
	}{
		{one32, one64, true},
		{one64, oneL, true},
		{one32, FloatValue(1), true},
		{one32, FloatValue(1.5), false},
		{Value{Kind: Float32, Num: uint64(math.Float32bits(1))}, FloatValue(1), true},
		{IntValue(-1), Value{Kind: Int8, Num: ^uint64(0)}, true},
		{IntValue(-1), Value{Kind: Uint8, Num: 255}, false},
		{IntValue(1<<53 + 1), FloatValue(1 << 53), false},
		{IntValue(math.MaxInt64), FloatValue(1 << 63), false},
		{IntValue(1), FloatValue(math.NaN()), false},
		{TimeValue(1), one64, true},
		{TimeValue(-1), IntValue(-1), false}, // as a timestamp it is 2^64-1
		{StringValue("1"), one32, false},
		{StringValue("a"), BytesValue([]byte("a")), true},
		{BoolValue(true), Value{Kind: Bool, Num: 7}, true},
		{BoolValue(true), one32, false},
		{VoidValue(), VoidValue(), true},
		{VoidValue(), IntValue(0), false},
		{IntValue(0), VoidValue(), false},
		{Value{Kind: Decimal, Scale: 1, Num: 1}, Value{Kind: Decimal, Scale: 1, Num: 1}, true},
		{Value{Kind: Decimal, Scale: 1, Num: 1}, one32, false},
		{ArrayValue(one32), ArrayValue(one64), true},
		{ArrayValue(one32), ArrayValue(one64, one64), false},
		{TableValue(Table{{"a", one32}, {"b", one32}}), TableValue(Table{{"b", one64}, {"a", one64}}), true},
		{TableValue(Table{{"a", one32}}), TableValue(Table{{"b", one32}}), false},
	} {
		if got := Equal(c.a, c.b); got != c.want {
			t.Errorf("Equal(%s %v, %s %v) = %v, want %v", c.a.Kind, c.a, c.b.Kind, c.b, got, c.want)
		}
		if got := Equal(c.b, c.a); got != c.want {
			t.Errorf("Equal(%s %v, %s %v) = %v, want %v", c.b.Kind, c.b, c.a.Kind, c.a, got, c.want)
		}
	}
}

func TestKindAndValueNamesAreRabbitMQs(t *testing.T) {
	for v, want := range map[string]string{
		Int32Value(60000).Kind.String() + " " + Int32Value(60000).String():                     "signedint 60000",
		StringValue("x").Kind.String() + " " + StringValue("x").String():                       "longstr x",
		BoolValue(false).Kind.String() + " " + BoolValue(false).String():                       "bool false",
		IntValue(-1).Kind.String() + " " + IntValue(-1).String():                               "long -1",
		TimeValue(5).Kind.String() + " " + TimeValue(5).String():                               "timestamp 5",
		FloatValue(1.5).Kind.String() + " " + FloatValue(1.5).String():                         "double 1.5",
		ArrayValue(IntValue(1), IntValue(2)).String():                                          "[1,2]",
		TableValue(Table{{"a", IntValue(1)}}).String():                                         "{a=1}",
		Value{Kind: Decimal, Scale: 2, Num: 5}.String() + VoidValue().String():                 "5e-2undefined",
		Value{Kind: Float32, Num: uint64(math.Float32bits(0.1))}.String() + Kind(1).String():   "0.1kind(1)",
		Value{Kind: Uint8}.Kind.String() + " " + Kind(Uint16).String() + " " + Uint32.String(): "unsignedbyte unsignedshort unsignedint",
	} {
		if v != want {
			t.Errorf("got %q, want %q", v, want)
		}
	}
}

func TestAccessorsRefuseOtherKinds(t *testing.T) {
	for _, f := range everyKind {
		v := f.Value
		if _, ok := v.AsInt(); ok != strings.Contains("bBsuIilL", string(v.Kind)) {
			t.Errorf("%s: AsInt ok = %v", v.Kind, ok)
		}
		if _, ok := v.AsString(); ok != (v.Kind == String) {
			t.Errorf("%s: AsString ok = %v", v.Kind, ok)
		}
		if _, ok := v.AsBool(); ok != (v.Kind == Bool) {
			t.Errorf("%s: AsBool ok = %v", v.Kind, ok)
		}
		if _, ok := v.AsFloat(); ok != (v.Kind == Float32 || v.Kind == Float64) {
			t.Errorf("%s: AsFloat ok = %v", v.Kind, ok)
		}
		if _, ok := v.AsTime(); ok != (v.Kind == Time) {
			t.Errorf("%s: AsTime ok = %v", v.Kind, ok)
		}
	}
}

func TestConvertToGoValuesAndBack(t *testing.T) {
	m := map[string]any{
		"n": nil, "b": true, "s": "x", "bin": []byte{1}, "i": int64(-7), "f": 2.5,
		"list": []any{int64(1), "a"}, "in": map[string]any{"k": int64(1)},
	}
	tb, err := FromMap(m)
	if err != nil {
		t.Fatal(err)
	}
	if tb[0].Name != "b" || tb[1].Name != "bin" {
		t.Errorf("fields are not ordered by name: %v", tb)
	}
	if got := tb.Map(); !reflect.DeepEqual(got, m) {
		t.Errorf("Map:\n got %v\nwant %v", got, m)
	}

	dec := json.NewDecoder(strings.NewReader(`{"ttl":60000,"x":1.5,"big":1e3}`))
	dec.UseNumber()
	var parsed map[string]any
	if err := dec.Decode(&parsed); err != nil {
		t.Fatal(err)
	}
	tb, err = FromMap(parsed)
	want := Table{{"big", FloatValue(1000)}, {"ttl", IntValue(60000)}, {"x", FloatValue(1.5)}}
	if err != nil || !reflect.DeepEqual(tb, want) {
		t.Errorf("FromMap of JSON: %v %v", tb, err)
	}

	first := Table{{"a", IntValue(1)}, {"a", IntValue(2)}}
	if got := first.Map()["a"]; got != int64(1) {
		t.Errorf("of duplicates Map took %v", got)
	}
	var deep any = "leaf"
	for range MaxDepth + 1 {
		deep = []any{deep}
	}
	for name, bad := range map[string]any{
		"a chan":              make(chan int),
		"uint64 beyond int64": uint64(1 << 63),
		"too deep":            deep,
		"long name":           map[string]any{strings.Repeat("n", 256): 1},
		"no kind":             Value{},
	} {
		if v, err := FromAny(bad); err == nil {
			t.Errorf("%s: got %v, want an error", name, v)
		}
	}
}

func TestSetAndDelete(t *testing.T) {
	tb := Table{{"a", IntValue(1)}, {"b", IntValue(2)}, {"a", IntValue(3)}}
	tb.Set("a", IntValue(9))
	tb.Set("c", IntValue(4))
	if want := (Table{{"a", IntValue(9)}, {"b", IntValue(2)}, {"a", IntValue(3)}, {"c", IntValue(4)}}); !reflect.DeepEqual(tb, want) {
		t.Errorf("Set: %v", tb)
	}
	tb.Delete("a")
	if want := (Table{{"b", IntValue(2)}, {"c", IntValue(4)}}); !reflect.DeepEqual(tb, want) {
		t.Errorf("Delete: %v", tb)
	}
}

func TestValidate(t *testing.T) {
	long := Table{{strings.Repeat("n", 256), VoidValue()}}
	for name, bad := range map[string]Table{
		"long name": long, "nested long name": {{"a", TableValue(long)}}, "no kind": {{"a", Value{}}},
	} {
		if bad.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := Decode(Append(nil, long)); err != nil {
		t.Errorf("a cut name does not decode: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	golden, _ := hex.DecodeString(everyKindHex)
	f.Add(golden)
	f.Add([]byte{1, 'a', 'A', 0, 0, 0, 1, 'V'})
	f.Fuzz(func(t *testing.T, src []byte) {
		tb, err := Decode(src)
		if check := Check(src); (check == nil) != (err == nil) {
			t.Fatalf("Check %v, Decode %v", check, err)
		}
		if err != nil {
			return
		}
		if got := Append(nil, tb); !bytes.Equal(got, src) {
			t.Fatalf("written again:\n got %x\nwant %x", got, src)
		}
		if tb.Size() != len(src) {
			t.Fatalf("Size = %d, want %d", tb.Size(), len(src))
		}
		if err := tb.Validate(); err != nil {
			t.Fatal(err)
		}
		if _, err := FromMap(tb.Map()); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	src := Append(nil, Table{{"x-a", StringValue("some text")}, {"x-b", IntValue(5)}, {"x-c", BoolValue(true)}})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(src); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	src := Append(nil, Table{{"x-a", StringValue("some text")}, {"x-b", IntValue(5)}, {"x-c", BoolValue(true)}})
	b.ReportAllocs()
	for b.Loop() {
		if err := Check(src); err != nil {
			b.Fatal(err)
		}
	}
}
