package fmq1

import (
	"math"
	"reflect"
	"testing"

	"github.com/firemq/firemq/frames/table"
)

// TestInteroperability states the document's table of types, from AMQP and to AMQP.
func TestInteroperability(t *testing.T) {
	f64 := func(f float64) table.Value { return table.Value{Kind: table.Float64, Num: math.Float64bits(f)} }
	for _, c := range []struct {
		name string
		amqp table.Value
		fire []byte
		back table.Value // what the encoding is for AMQP again
	}{
		{"void", table.Value{Kind: table.Void}, []byte{0xc0}, table.Value{Kind: table.Void}},
		{"true", table.Value{Kind: table.Bool, Num: 1}, []byte{0xc3}, table.Value{Kind: table.Bool, Num: 1}},
		{"byte", table.Value{Kind: table.Int8, Num: ^uint64(0)}, []byte{0xff}, table.Value{Kind: table.Int64, Num: ^uint64(0)}},
		{"ushort", table.Value{Kind: table.Uint16, Num: 300}, []byte{0xd1, 1, 44}, table.Value{Kind: table.Int64, Num: 300}},
		{"int", table.Value{Kind: table.Int32, Num: 5}, []byte{5}, table.Value{Kind: table.Int64, Num: 5}},
		{"long", table.Value{Kind: table.Long, Num: 5}, []byte{5}, table.Value{Kind: table.Int64, Num: 5}},
		{"float", table.Value{Kind: table.Float32, Num: uint64(math.Float32bits(1.5))}, []byte{0xca, 0x3f, 0xc0, 0, 0}, f64(1.5)},
		{"double", f64(1.5), []byte{0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0}, f64(1.5)},
		{"decimal", table.Value{Kind: table.Decimal, Scale: 1, Num: 15}, []byte{0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0}, f64(1.5)},
		{"timestamp", table.Value{Kind: table.Time, Num: 60}, []byte{60}, table.Value{Kind: table.Int64, Num: 60}},
		{"string", table.Value{Kind: table.String, Str: "é"}, []byte("\xa2é"), table.Value{Kind: table.String, Str: "é"}},
		{"string of octets", table.Value{Kind: table.String, Str: "\xff"}, []byte{0xc4, 1, 0xff}, table.Value{Kind: table.Bytes, Str: "\xff"}},
		{"bytes", table.Value{Kind: table.Bytes, Str: "a"}, []byte{0xc4, 1, 'a'}, table.Value{Kind: table.Bytes, Str: "a"}},
		{"array", table.Value{Kind: table.Array, List: []table.Value{{Kind: table.Void}}}, []byte{0x91, 0xc0}, table.Value{Kind: table.Array, List: []table.Value{{Kind: table.Void}}}},
		{"empty array", table.Value{Kind: table.Array}, []byte{0x90}, table.Value{Kind: table.Array}},
		{"table", table.Value{Kind: table.Nested, Table: table.Table{{Name: "a", Value: table.Value{Kind: table.Void}}}}, []byte{0x81, 0xa1, 'a', 0xc0},
			table.Value{Kind: table.Nested, Table: table.Table{{Name: "a", Value: table.Value{Kind: table.Void}}}}},
	} {
		b := AppendTable(nil, table.Table{{Name: "v", Value: c.amqp}})
		if want := append([]byte{0x81, 0xa1, 'v'}, c.fire...); !reflect.DeepEqual(b, want) {
			t.Errorf("%s: encoded as %x, want %x", c.name, b, want)
		}
		got, err := DecodeTable(b)
		if want := (table.Table{{Name: "v", Value: c.back}}); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: decoded as %v, %v, want %v", c.name, got, err, want)
		}
	}
}

// TestProperties has every property, with zero told from absent.
func TestProperties(t *testing.T) {
	full := table.Properties{
		Has:         table.AllPresent &^ (table.HasDeliveryMode | table.HasClusterID),
		ContentType: "a", ContentEncoding: "b", Headers: table.Table{{Name: "h", Value: table.Value{Kind: table.Void}}},
		Priority: 9, CorrelationID: "c", ReplyTo: "d", Expiration: "60000", MessageID: "e", Timestamp: 1, Type: "f", UserID: "g", AppID: "h",
	}
	zero := table.Properties{Has: table.HasPriority | table.HasExpiration | table.HasTimestamp | table.HasType, Expiration: "0"}
	for name, p := range map[string]table.Properties{"full": full, "zero": zero, "none": {}} {
		got, err := Codec{}.Decode(Codec{}.Append(nil, &p))
		if err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, p)
		}
	}
	lost := table.Properties{Has: table.HasDeliveryMode | table.HasClusterID | table.HasExpiration, DeliveryMode: 2, Expiration: "soon"}
	if got := (Codec{}).Append(nil, &lost); !reflect.DeepEqual(got, []byte{0x80, 0x80}) {
		t.Errorf("properties without a place here: %x", got)
	}
	if got, err := (Codec{}).Decode(nil); err != nil || got.Has != 0 {
		t.Errorf("no bytes at all: %+v, %v", got, err)
	}
}

func TestPublishAttributes(t *testing.T) {
	var m Publish
	h := enc("props", map[string]any{"expiration": 0, "priority": 7, "user_id": "me"}, "headers", map[string]any{"a": 1})
	if err := m.Decode(h); err != nil || m.Expiration != 0 || m.Priority != 7 || string(m.UserID) != "me" || !m.HasHeaders() {
		t.Errorf("%+v, %v", m, err)
	}
	if err := m.Decode(nil); err != nil || m.Expiration >= 0 || m.HasHeaders() || m.Props != nil {
		t.Errorf("%+v, %v", m, err)
	}
}
