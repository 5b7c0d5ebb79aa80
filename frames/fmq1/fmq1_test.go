package fmq1

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"
)

var rewrite = flag.Bool("rewrite", false, "write spec/test-vectors again")

const vectorDir = "../../spec/test-vectors"

// A vector is one frame of frames.json.
type vector struct {
	Name    string         `json:"name"`
	Op      uint8          `json:"op"`
	OpName  string         `json:"op_name"`
	Frame   string         `json:"frame"`             // hex, with len
	Header  map[string]any `json:"header"`            // known keys; see plain for the values
	Ignored []string       `json:"ignored,omitempty"` // keys that decoders skip
	Payload string         `json:"payload"`           // hex
}

// A badVector is one frame of errors.json.
type badVector struct {
	Name  string `json:"name"`
	Frame string `json:"frame"`
	Code  uint16 `json:"code"`
	Fatal bool   `json:"fatal"`
}

// again decodes a header into its struct and encodes the struct.
func again(op Op, header []byte) ([]byte, error) {
	hot := func(m interface {
		Decode([]byte) error
		AppendTo([]byte) []byte
	}) ([]byte, error) {
		if err := m.Decode(header); err != nil {
			return nil, err
		}
		return m.AppendTo(nil), nil
	}
	rare := func(m Header) ([]byte, error) {
		if err := Decode(header, m); err != nil {
			return nil, err
		}
		return m.MarshalMsg(nil)
	}
	switch op {
	case OpHello:
		return rare(&Hello{})
	case OpWelcome:
		return rare(&Welcome{})
	case OpPing, OpPong:
		return nil, nil
	case OpClose:
		return rare(&Close{})
	case OpOK:
		return rare(&OK{})
	case OpError:
		return rare(&ServerError{})
	case OpFlow:
		return rare(&Flow{})
	case OpDeclareExchange:
		return rare(&DeclareExchange{})
	case OpDeleteExchange:
		return rare(&DeleteExchange{})
	case OpDeclareQueue:
		return rare(&DeclareQueue{})
	case OpDeleteQueue:
		return rare(&DeleteQueue{})
	case OpPurgeQueue:
		return rare(&PurgeQueue{})
	case OpBind, OpUnbind:
		return rare(&Bind{})
	case OpSubscribe:
		return rare(&Subscribe{})
	case OpUnsubscribe:
		return rare(&Unsubscribe{})
	case OpCancelled:
		return rare(&Cancelled{})
	case OpGet:
		return rare(&Get{})
	case OpPublish:
		return hot(&Publish{})
	case OpReturn:
		return hot(&Return{})
	case OpDeliver:
		return hot(&Deliver{})
	case OpGetOK:
		return hot(&GetOK{})
	case OpConfirm:
		return hot(&Confirm{})
	case OpAck, OpNack:
		return hot(&Settle{})
	case OpCredit:
		return hot(&Credit{})
	}
	return nil, fmt.Errorf("unknown op %s", op)
}

var known = map[Op]string{
	OpHello:   "ver vhost auth heartbeat client caps",
	OpWelcome: "ver server conn_id heartbeat max_frame caps",
	OpClose:   "code msg", OpOK: "rid name messages consumers empty", OpError: "rid code msg fatal", OpFlow: "pause",
	OpDeclareExchange: "rid name type durable auto_delete internal passive args",
	OpDeleteExchange:  "rid name if_unused",
	OpDeclareQueue:    "rid name durable exclusive auto_delete passive args",
	OpDeleteQueue:     "rid name if_unused if_empty", OpPurgeQueue: "rid name",
	OpBind: "rid exchange queue to_exchange key args", OpUnbind: "rid exchange queue to_exchange key args",
	OpPublish: "seq exchange key mandatory persistent props headers", OpConfirm: "upto seq nack code msg",
	OpReturn:    "seq code msg exchange key props headers",
	OpSubscribe: "rid sub queue credit no_ack exclusive tag args", OpUnsubscribe: "rid sub", OpCredit: "sub credit",
	OpDeliver: "sub tag redelivered exchange key props headers", OpCancelled: "sub code msg",
	OpAck: "tag multiple", OpNack: "tag multiple requeue", OpGet: "rid queue no_ack",
	OpGetOK: "rid tag redelivered exchange key remaining props headers",
}

// plain makes a JSON value of a MessagePack one: bin is {"$bin": hex} and an integer that JSON numbers
// do not hold exactly everywhere is {"$int": decimal}.
func plain(t *testing.T, b []byte) (v any, rest []byte) {
	t.Helper()
	switch msgp.NextType(b) {
	case msgp.MapType:
		n, b, _ := msgp.ReadMapHeaderBytes(b)
		m := map[string]any{}
		for range n {
			var key string
			key, b, _ = msgp.ReadStringBytes(b)
			m[key], b = plain(t, b)
		}
		return m, b
	case msgp.ArrayType:
		n, b, _ := msgp.ReadArrayHeaderBytes(b)
		l := make([]any, n)
		for i := range l {
			l[i], b = plain(t, b)
		}
		return l, b
	case msgp.BinType:
		raw, b, _ := msgp.ReadBytesZC(b)
		return map[string]any{"$bin": hex.EncodeToString(raw)}, b
	case msgp.ExtensionType:
		rest, err := msgp.Skip(b)
		if err != nil {
			t.Fatal(err)
		}
		return nil, rest
	}
	v, rest, err := msgp.ReadIntfBytes(b)
	if err != nil {
		t.Fatalf("value %x: %v", b, err)
	}
	const exact = 1<<53 - 1
	switch x := v.(type) {
	case int64:
		if x > exact || x < -exact {
			return map[string]any{"$int": strconv.FormatInt(x, 10)}, rest
		}
		v = float64(x)
	case uint64:
		if x > exact {
			return map[string]any{"$int": strconv.FormatUint(x, 10)}, rest
		}
		v = float64(x)
	case float32:
		v = float64(x)
	}
	return v, rest
}

// fields is a header in plain values, split in known and unknown keys, without zero fields when told.
func fields(t *testing.T, op Op, header []byte, dropZero bool) (map[string]any, []string) {
	t.Helper()
	m, ignored := map[string]any{}, []string(nil)
	if len(header) == 0 {
		return m, nil
	}
	v, rest := plain(t, header)
	if len(rest) > 0 {
		t.Fatalf("%s: %d bytes after the header", op, len(rest))
	}
	for key, v := range v.(map[string]any) {
		switch zero := v == nil || v == 0.0 || v == "" || v == false || reflect.DeepEqual(v, map[string]any{}); {
		case !strings.Contains(" "+known[op]+" ", " "+key+" "):
			ignored = append(ignored, key)
		case zero && dropZero:
		default:
			m[key] = v
		}
	}
	return m, ignored
}

func readJSON(t *testing.T, name string, v any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(vectorDir, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatal(err)
	}
}

func writeJSON(t *testing.T, name string, v any) {
	t.Helper()
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(vectorDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(vectorDir, name), append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestVectors holds the codec against spec/test-vectors/frames.json: every frame decodes to the listed
// header, the listed meaning survives encoding, and a frame cut anywhere asks for the rest.
func TestVectors(t *testing.T) {
	if *rewrite {
		var out []vector
		for _, s := range samples() {
			f, n, _, err := Next(s.frame, DefaultMaxFrame)
			if err != nil || n != len(s.frame) {
				t.Fatalf("%s: n=%d err=%v", s.name, n, err)
			}
			header, ignored := fields(t, f.Op, f.Header, false)
			out = append(out, vector{Name: s.name, Op: uint8(f.Op), OpName: f.Op.String(), Frame: hex.EncodeToString(s.frame),
				Header: header, Ignored: ignored, Payload: hex.EncodeToString(f.Payload)})
		}
		writeJSON(t, "frames.json", out)
	}
	var vectors []vector
	readJSON(t, "frames.json", &vectors)
	seen := map[Op]bool{}
	for _, v := range vectors {
		frame, err := hex.DecodeString(v.Frame)
		if err != nil {
			t.Fatal(err)
		}
		f, n, _, err := Next(frame, DefaultMaxFrame)
		if err != nil || n != len(frame) {
			t.Errorf("%s: n=%d err=%v", v.Name, n, err)
			continue
		}
		seen[f.Op] = true
		if uint8(f.Op) != v.Op || f.Op.String() != v.OpName || hex.EncodeToString(f.Payload) != v.Payload {
			t.Errorf("%s: op %s payload %x", v.Name, f.Op, f.Payload)
		}
		got, ignored := fields(t, f.Op, f.Header, false)
		if !reflect.DeepEqual(got, v.Header) || !reflect.DeepEqual(ignored, v.Ignored) {
			t.Errorf("%s: header %v ignored %v, want %v %v", v.Name, got, ignored, v.Header, v.Ignored)
		}
		header, err := again(f.Op, f.Header)
		if err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		got, _ = fields(t, f.Op, header, true)
		want, _ := fields(t, f.Op, f.Header, true)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: encoded again as %v, want %v", v.Name, got, want)
		}
		for cut := range frame {
			if _, m, want, err := Next(frame[:cut], DefaultMaxFrame); m != 0 || err != nil || want <= cut || want > len(frame) {
				t.Errorf("%s: prefix of %d bytes: n=%d want=%d err=%v", v.Name, cut, m, want, err)
			}
		}
	}
	for op := range opNames {
		if Op(op).Known() && !seen[Op(op)] {
			t.Errorf("no vector for %s", Op(op))
		}
	}
}

// TestErrorVectors holds the codec against spec/test-vectors/errors.json: what is refused, with which code.
func TestErrorVectors(t *testing.T) {
	if *rewrite {
		var out []badVector
		for _, s := range badSamples() {
			out = append(out, badVector{s.name, hex.EncodeToString(s.frame), s.code, s.code == FrameError})
		}
		writeJSON(t, "errors.json", out)
	}
	var vectors []badVector
	readJSON(t, "errors.json", &vectors)
	for _, v := range vectors {
		frame, err := hex.DecodeString(v.Frame)
		if err != nil {
			t.Fatal(err)
		}
		f, n, _, err := Next(frame, DefaultMaxFrame)
		if err == nil {
			if n == 0 {
				t.Errorf("%s: incomplete frame", v.Name)
				continue
			}
			_, err = again(f.Op, f.Header)
		}
		var e *Error
		if !errors.As(err, &e) || e.Code != v.Code || v.Fatal != (v.Code == FrameError) {
			t.Errorf("%s: error %v, want code %d", v.Name, err, v.Code)
			continue
		}
		if strings.Contains(e.Text, "msgp") || strings.Contains(e.Text, "?") {
			t.Errorf("%s: unclear text %q", v.Name, e.Text)
		}
	}
}

func TestErrorTexts(t *testing.T) {
	for _, c := range []struct {
		op     Op
		header []byte
		want   string
	}{
		{OpDeclareQueue, enc("auto_delete", "x"), "SYNTAX_ERROR - field 'auto_delete' is a str, not a bool"},
		{OpHello, enc("heartbeat", int64(1)<<40), "SYNTAX_ERROR - field 'heartbeat' is too large: 1099511627776"},
		{OpHello, enc("auth", map[string]any{"user": 1}), "SYNTAX_ERROR - field 'auth/user' is a int, not a str"},
		{OpGet, enc("rid", -1), "SYNTAX_ERROR - field 'rid' is negative"},
		{OpPublish, enc("seq", "one"), "SYNTAX_ERROR - field 'seq' is a str, not a uint"},
		{OpPublish, enc("props", map[string]any{"priority": 256}), "SYNTAX_ERROR - field 'priority' is above 255: 256"},
		{OpHello, append(key("caps"), append([]byte{0xdc, 1, 1}, bytes.Repeat([]byte{0xa0}, 257)...)...), "SYNTAX_ERROR - header has too many fields or a list that is too long"},
		{OpPublish, []byte{0x91, 1}, "SYNTAX_ERROR - header is not a map but a array"},
	} {
		if _, err := again(c.op, c.header); err == nil || err.Error() != c.want {
			t.Errorf("%s %x: %v, want %s", c.op, c.header, err, c.want)
		}
	}
}

// TestHostileSizes declares more than there is: refused before anything that large is allocated.
func TestHostileSizes(t *testing.T) {
	deep := bytes.Repeat([]byte{0x91}, MaxDepth+2)
	for name, header := range map[string][]byte{
		"map32":       {0xdf, 0xff, 0xff, 0xff, 0xff},
		"str32":       append(key("name"), 0xdb, 0xff, 0xff, 0xff, 0xff, 'x'),
		"caps":        append(key("caps"), 0xdd, 0xff, 0xff, 0xff, 0xff, 0xa0),
		"args array":  append(append(key("args"), 0x81, 0xa1, 'a'), 0xdd, 0xff, 0xff, 0xff, 0xff),
		"deep args":   append(append(key("args"), 0x81, 0xa1, 'a'), append(deep, 0xc0)...),
		"deep":        append(key("unknown"), append(deep, 0xc0)...),
		"headers":     append(key("headers"), 0xdf, 0x7f, 0xff, 0xff, 0xff, 0xa1, 'a', 0xc0),
		"props":       append(key("props"), 0xdf, 0x7f, 0xff, 0xff, 0xff, 0xa1, 'a', 0xc0),
		"ext32":       append(key("unknown"), 0xc9, 0xff, 0xff, 0xff, 0xff, 1),
		"bin32 cut":   append(key("unknown"), 0xc6, 0xff, 0xff),
		"no value":    key("unknown"),
		"key not str": {0x81, 0x01, 0x01},
	} {
		for op := range known {
			before := testing.AllocsPerRun(1, func() {
				if _, err := again(op, header); err == nil {
					t.Errorf("%s with %s: accepted", op, name)
				}
			})
			if before > 40 {
				t.Errorf("%s with %s: %v allocations", op, name, before)
			}
		}
	}
	for name, src := range map[string][]byte{
		"limit":  {0, 1, 0, 1},
		"max":    {0xff, 0xff, 0xff, 0xff},
		"short":  {0, 0, 0, 4},
		"header": {0, 0, 0, 9, byte(OpPublish), 0, 0, 0, 5},
	} {
		var e *Error
		if _, _, _, err := Next(src, MaxBeforeWelcome); !errors.As(err, &e) || e.Code != FrameError {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOverhead: callers make room for frames by it.
func TestOverhead(t *testing.T) {
	const most = ^uint64(0)
	name, m := bytes.Repeat([]byte{'n'}, MaxName), enc("a", bytes.Repeat([]byte{'x'}, 1000))
	text := append(name, name...)
	content := 2*len(name) + 2*len(m)
	for _, c := range []struct {
		op      Op
		header  interface{ AppendTo([]byte) []byte }
		content int
	}{
		{OpPublish, &Publish{Seq: most, Exchange: name, Key: name, Mandatory: true, Persistent: true, Props: m, Headers: m}, content},
		{OpDeliver, &Deliver{Sub: most, Tag: most, Redelivered: true, Exchange: name, Key: name, Props: m, Headers: m}, content},
		{OpGetOK, &GetOK{RID: most, Tag: most, Redelivered: true, Exchange: name, Key: name, Remaining: most, Props: m, Headers: m}, content},
		{OpReturn, &Return{Seq: most, Code: 65535, Msg: []byte("NO_ROUTE"), Exchange: name, Key: name, Props: m, Headers: m}, content},
		{OpConfirm, &Confirm{Seq: most, Nack: true, Code: 65535, Msg: text}, len(text)},
	} {
		if n := len(c.header.AppendTo(Begin(nil, c.op))) - c.content; n > Overhead {
			t.Errorf("%s: %d bytes beside its content, more than %d", c.op, n, Overhead)
		}
	}
}

func BenchmarkDecodePublish(b *testing.B) {
	for _, withProps := range []bool{false, true} {
		m := Publish{Seq: 70000, Key: []byte("orders"), Persistent: true}
		if withProps {
			m.Props = enc("content_type", "application/json")
			m.Headers = enc("trace", "4bf92f3577b34da6", "attempt", 3)
		}
		h := m.AppendTo(nil)
		b.Run(fmt.Sprintf("props=%v", withProps), func(b *testing.B) {
			b.ReportAllocs()
			var p Publish
			for b.Loop() {
				if err := p.Decode(h); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEncodeDeliver(b *testing.B) {
	stored := append(enc("content_type", "application/json"), enc("trace", "4bf92f3577b34da6", "attempt", 3)...)
	key, body := []byte("orders"), make([]byte, 256)
	dst := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		m := Deliver{Sub: 1, Tag: 70000, Key: key}
		m.Props, m.Headers = Split(stored)
		dst = append(End(m.AppendTo(Begin(dst[:0], OpDeliver)), 0, len(body)), body...)
	}
}

func BenchmarkDecodeAck(b *testing.B) {
	h := (&Settle{Tag: 70000, Multiple: true}).AppendTo(nil)
	b.ReportAllocs()
	var m Settle
	for b.Loop() {
		if err := m.Decode(h); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeConfirm(b *testing.B) {
	dst := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		m := Confirm{UpTo: 70000}
		dst = End(m.AppendTo(Begin(dst[:0], OpConfirm)), 0, 0)
	}
}

func BenchmarkNext(b *testing.B) {
	m := Publish{Seq: 70000, Key: []byte("orders")}
	src := End(m.AppendTo(Begin(nil, OpPublish)), 0, 256)
	src = append(src, make([]byte, 256)...)
	b.ReportAllocs()
	for b.Loop() {
		if _, n, _, err := Next(src, DefaultMaxFrame); n != len(src) || err != nil {
			b.Fatal(err)
		}
	}
}

func TestHotPathAllocates(t *testing.T) {
	pub := (&Publish{Seq: 1, Key: []byte("k"), Props: enc("priority", 1), Headers: enc("a", "b")}).AppendTo(nil)
	ack := (&Settle{Tag: 1}).AppendTo(nil)
	dst := make([]byte, 0, 512)
	var p Publish
	var a Settle
	if n := testing.AllocsPerRun(100, func() {
		p.Decode(pub)
		a.Decode(ack)
		m := Deliver{Sub: 1, Tag: 2, Key: p.Key, Props: p.Props, Headers: p.Headers}
		dst = m.AppendTo(dst[:0])
		c := Confirm{UpTo: 3}
		dst = c.AppendTo(dst[:0])
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
