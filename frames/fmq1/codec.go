package fmq1

import (
	"math"
	"strconv"
	"unicode/utf8"
	"unsafe"

	"github.com/tinylib/msgp/msgp"

	"github.com/firemq/firemq/frames/table"
)

// Codec reads and writes property bytes as messages store them: the maps "props" and "headers" of a
// publish, one after the other, each complete. It is message.Codec for message.FMQ1, and has no
// state.
//
// Between the protocols:
//
//	nil, bool    V, t       both ways
//	int          l          from AMQP every integer type; T (timestamp) becomes uint seconds
//	float        d          from AMQP also f, and D (decimal), which may lose digits
//	str          S          an S that is not UTF-8 becomes bin
//	bin, array   x, A       both ways
//	map          F          both ways
//	expiration   uint ms and a decimal string
//
// A cluster-id has no place in FMQ1 and is lost. The delivery mode is not a property here: it is the
// publish's persistent field.
type Codec struct{}

// Decode reads stored property bytes. Strings alias props. Errors are *Error.
func (Codec) Decode(props []byte) (table.Properties, error) {
	var p table.Properties
	maps, headers := Split(props)
	if err := DecodeProps(maps, &p); err != nil {
		return table.Properties{}, err
	}
	if len(headers) > 0 && headers[0] != emptyMap {
		t, err := DecodeTable(headers)
		if err != nil {
			return table.Properties{}, err
		}
		p.Headers = t
		p.Has |= table.HasHeaders
	}
	return p, nil
}

// Headers adds the headers in stored property bytes to dst. Their strings alias props. Malformed ones
// are none.
func (Codec) Headers(dst table.Table, props []byte) table.Table {
	_, headers := Split(props)
	if len(headers) == 0 || headers[0] == emptyMap {
		return dst
	}
	checked, rest, err := readTable(headers)
	if err != nil || len(rest) > 0 {
		return dst
	}
	dst, _ = appendTable(dst, checked)
	return dst
}

// Properties reads stored property bytes without the headers. Strings alias props. Malformed ones are none.
func (Codec) Properties(props []byte) (p table.Properties) {
	maps, _ := Split(props)
	if DecodeProps(maps, &p) != nil {
		return table.Properties{}
	}
	return p
}

// Append writes p after dst, as Decode reads it.
func (Codec) Append(dst []byte, p *table.Properties) []byte {
	dst = AppendProps(dst, p)
	if p.Has&table.HasHeaders == 0 {
		return append(dst, emptyMap)
	}
	return AppendTable(dst, p.Headers)
}

// Split cuts stored property bytes into the map of properties and the map of headers.
func Split(stored []byte) (props, headers []byte) {
	if len(stored) > 0 && stored[0] == emptyMap {
		return stored[:1], stored[1:]
	}
	rest, err := skip(stored, 0)
	if err != nil {
		return nil, nil
	}
	n := len(stored) - len(rest)
	return stored[:n:n], rest
}

// DecodeProps reads a property map into p, whose Has it adds to; nil is an empty map. Strings alias raw.
func DecodeProps(raw []byte, p *table.Properties) error {
	n, b, err := mapHeader(raw)
	if err != nil {
		return err
	}
	for ; n > 0; n-- {
		var key, s []byte
		if key, b, err = readKey(b); err != nil {
			return err
		}
		var v uint64
		has := table.Present(0)
		text := (*string)(nil)
		switch string(key) {
		case "content_type":
			has, text = table.HasContentType, &p.ContentType
		case "content_encoding":
			has, text = table.HasContentEncoding, &p.ContentEncoding
		case "correlation_id":
			has, text = table.HasCorrelationID, &p.CorrelationID
		case "reply_to":
			has, text = table.HasReplyTo, &p.ReplyTo
		case "message_id":
			has, text = table.HasMessageID, &p.MessageID
		case "type":
			has, text = table.HasType, &p.Type
		case "user_id":
			has, text = table.HasUserID, &p.UserID
		case "app_id":
			has, text = table.HasAppID, &p.AppID
		case "expiration":
			has = table.HasExpiration
			v, b, err = readUint(b)
			p.Expiration = strconv.FormatUint(v, 10)
		case "timestamp":
			has = table.HasTimestamp
			p.Timestamp, b, err = readUint(b)
		case "priority":
			has = table.HasPriority
			p.Priority, b, err = msgp.ReadUint8Bytes(b)
		default:
			b, err = skip(b, 0)
		}
		if text != nil {
			if s, b, err = msgp.ReadStringZC(b); err == nil {
				*text = alias(s)
			}
		}
		if err != nil {
			return fieldError(string(key), err)
		}
		p.Has |= has
	}
	return nil
}

// AppendProps writes the property map of p. An expiration that is no decimal number is left out.
func AppendProps(dst []byte, p *table.Properties) []byte {
	at := len(dst)
	dst = append(dst, emptyMap)
	str := func(has table.Present, key, s string) {
		if p.Has&has != 0 {
			dst[at]++
			dst = msgp.AppendString(append(dst, key...), s)
		}
	}
	str(table.HasContentType, "\xaccontent_type", p.ContentType)
	str(table.HasContentEncoding, "\xb0content_encoding", p.ContentEncoding)
	str(table.HasCorrelationID, "\xaecorrelation_id", p.CorrelationID)
	str(table.HasReplyTo, "\xa8reply_to", p.ReplyTo)
	str(table.HasMessageID, "\xaamessage_id", p.MessageID)
	str(table.HasType, "\xa4type", p.Type)
	str(table.HasUserID, "\xa7user_id", p.UserID)
	str(table.HasAppID, "\xa6app_id", p.AppID)
	if p.Has&table.HasExpiration != 0 {
		if ms, err := strconv.ParseUint(p.Expiration, 10, 63); err == nil {
			dst[at]++
			dst = msgp.AppendUint64(append(dst, "\xaaexpiration"...), ms)
		}
	}
	if p.Has&table.HasTimestamp != 0 {
		dst[at]++
		dst = msgp.AppendUint64(append(dst, "\xa9timestamp"...), p.Timestamp)
	}
	if p.Has&table.HasPriority != 0 {
		dst[at]++
		dst = msgp.AppendUint8(append(dst, "\xa8priority"...), p.Priority)
	}
	return dst
}

// DecodeTable reads a whole map as a field table; nil is an empty map. Strings alias raw. Errors are
// *Error: what a field table cannot carry, and malformed bytes.
func DecodeTable(raw []byte) (table.Table, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	// The walk bounds the nesting and makes every declared count true before anything is allocated.
	checked, rest, err := readTable(raw)
	if err != nil {
		return nil, fieldError("map", err)
	}
	if len(rest) > 0 {
		return nil, errRest
	}
	t, _ := decodeTable(checked)
	return t, nil
}

// decodeTable reads a map that readTable accepted.
func decodeTable(b []byte) (table.Table, []byte) {
	n, rest, _ := mapHeader(b)
	if n == 0 {
		return nil, rest
	}
	return appendTable(make(table.Table, 0, n), b)
}

// appendTable adds the fields of a map that readTable accepted.
func appendTable(t table.Table, b []byte) (table.Table, []byte) {
	n, b, _ := mapHeader(b)
	for ; n > 0; n-- {
		var f table.Field
		var key []byte
		key, b, _ = tableKey(b)
		f.Name = alias(key)
		f.Value, b = decodeValue(b)
		t = append(t, f)
	}
	return t, b
}

func decodeValue(b []byte) (v table.Value, rest []byte) {
	var s []byte
	switch msgp.NextType(b) {
	case msgp.NilType:
		return table.Value{Kind: table.Void}, b[1:]
	case msgp.BoolType:
		if b[0] == 0xc3 {
			v.Num = 1
		}
		v.Kind = table.Bool
		return v, b[1:]
	case msgp.IntType:
		i, rest, _ := msgp.ReadInt64Bytes(b)
		return table.Value{Kind: table.Int64, Num: uint64(i)}, rest
	case msgp.UintType:
		u, rest, _ := msgp.ReadUint64Bytes(b)
		return table.Value{Kind: table.Int64, Num: u}, rest
	case msgp.Float32Type, msgp.Float64Type:
		f, rest, _ := msgp.ReadFloat64Bytes(b)
		return table.Value{Kind: table.Float64, Num: math.Float64bits(f)}, rest
	case msgp.StrType:
		s, rest, _ = msgp.ReadStringZC(b)
		return table.Value{Kind: table.String, Str: alias(s)}, rest
	case msgp.BinType:
		s, rest, _ = msgp.ReadBytesZC(b)
		return table.Value{Kind: table.Bytes, Str: alias(s)}, rest
	case msgp.ArrayType:
		n, rest, _ := msgp.ReadArrayHeaderBytes(b)
		v = table.Value{Kind: table.Array}
		if n > 0 {
			v.List = make([]table.Value, n)
		}
		for i := range v.List {
			v.List[i], rest = decodeValue(rest)
		}
		return v, rest
	case msgp.MapType:
		v.Kind = table.Nested
		v.Table, rest = decodeTable(b)
		return v, rest
	}
	panic("BUG: fmq1: decoding a value that was not checked")
}

// AppendTable writes t as a map.
func AppendTable(dst []byte, t table.Table) []byte {
	dst = msgp.AppendMapHeader(dst, uint32(len(t)))
	for i := range t {
		dst = msgp.AppendString(dst, t[i].Name)
		dst = appendValue(dst, &t[i].Value)
	}
	return dst
}

func appendValue(dst []byte, v *table.Value) []byte {
	switch v.Kind {
	case table.Void:
		return msgp.AppendNil(dst)
	case table.Bool:
		return msgp.AppendBool(dst, v.Num != 0)
	case table.Int8, table.Int16, table.Int32, table.Int64, table.Long,
		table.Uint8, table.Uint16, table.Uint32:
		return msgp.AppendInt64(dst, int64(v.Num))
	case table.Float32:
		return msgp.AppendFloat32(dst, math.Float32frombits(uint32(v.Num)))
	case table.Float64:
		return msgp.AppendFloat64(dst, math.Float64frombits(v.Num))
	case table.Decimal:
		return msgp.AppendFloat64(dst, float64(v.Num)/math.Pow10(int(v.Scale)))
	case table.Time:
		return msgp.AppendUint64(dst, v.Num)
	case table.String:
		if utf8.ValidString(v.Str) {
			return msgp.AppendString(dst, v.Str)
		}
		return msgp.AppendBytes(dst, unsafe.Slice(unsafe.StringData(v.Str), len(v.Str)))
	case table.Bytes:
		return msgp.AppendBytes(dst, unsafe.Slice(unsafe.StringData(v.Str), len(v.Str)))
	case table.Array:
		dst = msgp.AppendArrayHeader(dst, uint32(len(v.List)))
		for i := range v.List {
			dst = appendValue(dst, &v.List[i])
		}
		return dst
	case table.Nested:
		return AppendTable(dst, v.Table)
	}
	panic("BUG: fmq1: encoding a value of kind " + strconv.Itoa(int(v.Kind)))
}

// alias is b as a string without a copy; the caller's documentation says how long b lives.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
