// Package text spells AMQP frames as lines that people read and write, for golden vectors and
// transcripts of both sides of a connection. It is made for tests and tools, not for speed.
//
//	0 connection.tune channel-max=2047 frame-max=131072 heartbeat=60
//	1 queue.declare queue="q" durable arguments={x-max-length=I10}
//	1 basic.publish routing-key="q"
//	1 header size=5 delivery-mode=2 headers={a=S"x" n=A[l1 V]}
//	1 body "hello"
//	1 body "x"*4096
//	0 heartbeat
//	raw "AMQP\x00\x00\x09\x01"
//
// Fields that are zero are left out. A table's values begin with their field tag.
package text

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/table"
)

// methods maps every method's name to its id.
var methods = func() map[string]amqp.MethodID {
	all := map[string]amqp.MethodID{}
	for class := amqp.MethodID(10); class <= 90; class++ {
		for method := amqp.MethodID(10); method <= 120; method++ {
			if id := class<<16 | method; id.Known() {
				all[id.String()] = id
			}
		}
	}
	return all
}()

// Methods lists the ids of all methods in the order of their numbers.
func Methods() []amqp.MethodID {
	ids := make([]amqp.MethodID, 0, len(methods))
	for _, id := range methods {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Format is the line of one frame. What it cannot spell otherwise becomes "raw".
func Format(f amqp.Frame) string {
	head := strconv.Itoa(int(f.Channel)) + " "
	switch f.Type {
	case amqp.FrameHeartbeat:
		if len(f.Payload) == 0 {
			return head + "heartbeat"
		}
	case amqp.FrameBody:
		return head + "body " + quoteBytes(f.Payload)
	case amqp.FrameHeader:
		if s, ok := formatHeader(f.Payload); ok {
			return head + s
		}
	case amqp.FrameMethod:
		if s, ok := formatMethod(f.Payload); ok {
			return head + s
		}
	}
	return "raw " + quoteBytes(amqp.AppendFrame(nil, f))
}

// FormatAll is a line for each frame of src and, for octets that are none, a last line "raw".
func FormatAll(src []byte) (lines []string) {
	for len(src) > 0 {
		f, n, err := amqp.Next(src, math.MaxInt32)
		if n == 0 || err != nil {
			return append(lines, "raw "+quoteBytes(src))
		}
		lines = append(lines, Format(f))
		src = src[n:]
	}
	return lines
}

func quoteBytes(b []byte) string {
	if n := len(b); n > 32 && strings.Count(string(b), string(b[:1])) == n {
		return strconv.Quote(string(b[:1])) + "*" + strconv.Itoa(n)
	}
	return strconv.QuoteToASCII(string(b))
}

func formatHeader(payload []byte) (string, bool) {
	h, ok := amqp.CutContentHeader(payload)
	if !ok || h.Class != amqp.ClassBasic || h.Weight != 0 || h.BodySize > math.MaxInt64 {
		return "", false
	}
	p, err := amqp.PropertyCodec{}.Decode(h.Props)
	if err != nil {
		return "", false
	}
	s := "header size=" + strconv.FormatUint(h.BodySize, 10)
	for _, prop := range properties {
		if p.Has&prop.bit == 0 {
			continue
		}
		s += " " + prop.name + "="
		switch v := prop.field(&p).(type) {
		case *string:
			s += strconv.QuoteToASCII(*v)
		case *uint8:
			s += strconv.Itoa(int(*v))
		case *uint64:
			s += strconv.FormatUint(*v, 10)
		case *table.Table:
			s += formatTable(*v)
		}
	}
	return s, true
}

type property struct {
	name  string
	bit   table.Present
	field func(*table.Properties) any
}

var properties = []property{
	{"content-type", table.HasContentType, func(p *table.Properties) any { return &p.ContentType }},
	{"content-encoding", table.HasContentEncoding, func(p *table.Properties) any { return &p.ContentEncoding }},
	{"headers", table.HasHeaders, func(p *table.Properties) any { return &p.Headers }},
	{"delivery-mode", table.HasDeliveryMode, func(p *table.Properties) any { return &p.DeliveryMode }},
	{"priority", table.HasPriority, func(p *table.Properties) any { return &p.Priority }},
	{"correlation-id", table.HasCorrelationID, func(p *table.Properties) any { return &p.CorrelationID }},
	{"reply-to", table.HasReplyTo, func(p *table.Properties) any { return &p.ReplyTo }},
	{"expiration", table.HasExpiration, func(p *table.Properties) any { return &p.Expiration }},
	{"message-id", table.HasMessageID, func(p *table.Properties) any { return &p.MessageID }},
	{"timestamp", table.HasTimestamp, func(p *table.Properties) any { return &p.Timestamp }},
	{"type", table.HasType, func(p *table.Properties) any { return &p.Type }},
	{"user-id", table.HasUserID, func(p *table.Properties) any { return &p.UserID }},
	{"app-id", table.HasAppID, func(p *table.Properties) any { return &p.AppID }},
	{"cluster-id", table.HasClusterID, func(p *table.Properties) any { return &p.ClusterID }},
}

func formatMethod(payload []byte) (string, bool) {
	id, args, ok := amqp.CutMethod(payload)
	if !ok || !id.Known() {
		return "", false
	}
	m := amqp.NewMethod(id)
	if err := m.Decode(args); err != nil {
		return "", false
	}
	if again := m.Append(nil); string(again) != string(payload) {
		return "", false // reserved fields or spare bits that the line would lose
	}
	s := id.String()
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Kind() != reflect.Slice && f.IsZero() || f.Kind() == reflect.Slice && f.Len() == 0 {
			continue
		}
		name := fieldName(v.Type().Field(i).Name)
		switch {
		case f.Kind() == reflect.Bool:
			s += " " + name
		case f.Kind() == reflect.Slice && isTable(name):
			t, err := table.Decode(f.Bytes())
			if err != nil {
				return "", false
			}
			s += " " + name + "=" + formatTable(t)
		case f.Kind() == reflect.Slice:
			s += " " + name + "=" + strconv.QuoteToASCII(string(f.Bytes()))
		default:
			s += " " + name + "=" + strconv.FormatUint(f.Uint(), 10)
		}
	}
	return s, true
}

func isTable(field string) bool {
	return field == "arguments" || field == "client-properties" || field == "server-properties"
}

// fieldName turns RoutingKey into routing-key.
func fieldName(goName string) string {
	var b strings.Builder
	for i, r := range strings.ReplaceAll(goName, "ID", "Id") {
		if r >= 'A' && r <= 'Z' {
			if i > 0 {
				b.WriteByte('-')
			}
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

func formatTable(t table.Table) string {
	parts := make([]string, len(t))
	for i, f := range t {
		name := f.Name
		if name == "" || strings.ContainsAny(name, " =\"{}[]") || strconv.QuoteToASCII(name) != `"`+name+`"` {
			name = strconv.QuoteToASCII(name)
		}
		parts[i] = name + "=" + formatValue(f.Value)
	}
	return "{" + strings.Join(parts, " ") + "}"
}

func formatValue(v table.Value) string {
	tag := string(rune(v.Kind))
	switch v.Kind {
	case table.Void:
		return tag
	case table.String, table.Bytes:
		return tag + strconv.QuoteToASCII(v.Str)
	case table.Nested:
		return tag + formatTable(v.Table)
	case table.Array:
		parts := make([]string, len(v.List))
		for i := range v.List {
			parts[i] = formatValue(v.List[i])
		}
		return tag + "[" + strings.Join(parts, " ") + "]"
	case table.Decimal:
		return fmt.Sprintf("%s%d/%d", tag, v.Num, v.Scale)
	case table.Float32, table.Float64:
		return fmt.Sprintf("%s0x%x", tag, v.Num)
	case table.Bool, table.Time:
		return tag + strconv.FormatUint(v.Num, 10)
	}
	return tag + strconv.FormatInt(int64(v.Num), 10)
}

// Append parses one line and writes its octets.
func Append(dst []byte, line string) ([]byte, error) {
	p := &parser{src: line}
	dst = p.line(dst)
	p.space()
	if p.err == nil && p.src != "" {
		p.fail("left over")
	}
	if p.err != nil {
		return nil, fmt.Errorf("line %q: %w", line, p.err)
	}
	return dst, nil
}

type parser struct {
	src string
	err error
}

func (p *parser) fail(what string) {
	if p.err == nil {
		p.err = fmt.Errorf("%s at %q", what, p.src)
	}
	p.src = ""
}

func (p *parser) space() { p.src = strings.TrimLeft(p.src, " ") }

// word takes what is in front of any of the bytes of until, or all.
func (p *parser) word(until string) string {
	i := strings.IndexAny(p.src, until)
	if i < 0 {
		i = len(p.src)
	}
	w := p.src[:i]
	p.src = p.src[i:]
	return w
}

func (p *parser) eat(s string) bool {
	rest, ok := strings.CutPrefix(p.src, s)
	p.src = rest
	return ok
}

func (p *parser) must(s string) {
	if !p.eat(s) {
		p.fail("want " + s)
	}
}

func (p *parser) number(until string) uint64 {
	w := p.word(until)
	if n, err := strconv.ParseUint(w, 0, 64); err == nil {
		return n
	}
	n, err := strconv.ParseInt(w, 0, 64)
	if err != nil {
		p.fail("no number " + w)
	}
	return uint64(n)
}

// text takes a quoted string with an optional *n.
func (p *parser) text() string {
	q, err := strconv.QuotedPrefix(p.src)
	if err != nil {
		p.fail("no quoted string")
		return ""
	}
	p.src = p.src[len(q):]
	s, err := strconv.Unquote(q)
	if err != nil {
		p.fail("no quoted string")
	}
	if p.eat("*") {
		s = strings.Repeat(s, int(min(p.number(" "), 1<<28)))
	}
	return s
}

func (p *parser) line(dst []byte) []byte {
	if p.eat("raw ") {
		return append(dst, p.text()...)
	}
	channel := uint16(p.number(" "))
	p.space()
	switch kind := p.word(" "); kind {
	case "heartbeat":
		return amqp.AppendFrame(dst, amqp.Frame{Type: amqp.FrameHeartbeat, Channel: channel})
	case "body":
		p.space()
		return amqp.AppendFrame(dst, amqp.Frame{Type: amqp.FrameBody, Channel: channel, Payload: []byte(p.text())})
	case "header":
		return p.header(dst, channel)
	default:
		id, ok := methods[kind]
		if !ok {
			p.fail("unknown method " + kind)
			return dst
		}
		return p.method(dst, channel, amqp.NewMethod(id))
	}
}

func (p *parser) header(dst []byte, channel uint16) []byte {
	var props table.Properties
	var size, weight uint64
	class := uint64(amqp.ClassBasic)
next:
	for p.space(); p.src != ""; p.space() {
		name := p.word("=")
		p.must("=")
		switch name {
		case "size":
			size = p.number(" ")
			continue
		case "class":
			class = p.number(" ")
			continue
		case "weight":
			weight = p.number(" ")
			continue
		}
		for _, prop := range properties {
			if prop.name != name {
				continue
			}
			props.Has |= prop.bit
			switch v := prop.field(&props).(type) {
			case *string:
				*v = p.text()
			case *uint8:
				*v = uint8(p.number(" "))
			case *uint64:
				*v = p.number(" ")
			case *table.Table:
				*v = p.table()
			}
			continue next
		}
		p.fail("unknown property " + name)
	}
	payload := binary.BigEndian.AppendUint16(nil, uint16(class))
	payload = binary.BigEndian.AppendUint16(payload, uint16(weight))
	payload = binary.BigEndian.AppendUint64(payload, size)
	payload = amqp.PropertyCodec{}.Append(payload, &props)
	return amqp.AppendFrame(dst, amqp.Frame{Type: amqp.FrameHeader, Channel: channel, Payload: payload})
}

func (p *parser) method(dst []byte, channel uint16, m amqp.Method) []byte {
	v := reflect.ValueOf(m).Elem()
	for p.space(); p.src != ""; p.space() {
		name := p.word(" =")
		i := slices.IndexFunc(reflect.VisibleFields(v.Type()), func(f reflect.StructField) bool { return fieldName(f.Name) == name })
		if i < 0 {
			p.fail("unknown field " + name)
			return dst
		}
		f := v.Field(i)
		if f.Kind() == reflect.Bool {
			f.SetBool(true)
			continue
		}
		p.must("=")
		switch {
		case f.Kind() == reflect.Slice && p.src != "" && p.src[0] == '{':
			f.SetBytes(table.Append(nil, p.table()))
		case f.Kind() == reflect.Slice:
			f.SetBytes([]byte(p.text()))
		default:
			f.SetUint(p.number(" "))
		}
	}
	return m.AppendFrame(dst, channel)
}

func (p *parser) table() (t table.Table) {
	p.must("{")
	for p.space(); p.err == nil && !p.eat("}"); p.space() {
		var name string
		if strings.HasPrefix(p.src, `"`) {
			name = p.text()
		} else {
			name = p.word("=")
		}
		p.must("=")
		t = append(t, table.Field{Name: name, Value: p.value()})
	}
	if p.err != nil {
		return nil
	}
	return t
}

func (p *parser) value() (v table.Value) {
	if p.src == "" {
		p.fail("want a value")
		return v
	}
	v.Kind = table.Kind(p.src[0])
	p.src = p.src[1:]
	switch v.Kind {
	case table.Void:
	case table.String, table.Bytes:
		v.Str = p.text()
	case table.Nested:
		v.Table = p.table()
	case table.Array:
		p.must("[")
		for p.space(); p.err == nil && !p.eat("]"); p.space() {
			v.List = append(v.List, p.value())
		}
	case table.Decimal:
		v.Num = p.number("/")
		p.must("/")
		v.Scale = uint8(p.number(" ]}"))
	default:
		v.Num = p.number(" ]}")
	}
	return v
}

// Filled is a method with every field set to something, the start of round trips and fuzzing.
func Filled(id amqp.MethodID) amqp.Method {
	m := amqp.NewMethod(id)
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); {
		case f.Kind() == reflect.Bool:
			f.SetBool(true)
		case f.Kind() == reflect.Slice && isTable(fieldName(v.Type().Field(i).Name)):
			f.SetBytes(table.Append(nil, table.Table{{Name: "key", Value: table.IntValue(int64(i))}}))
		case f.Kind() == reflect.Slice:
			f.SetBytes([]byte("text"))
		default:
			f.SetUint(uint64(i + 1))
		}
	}
	return m
}
