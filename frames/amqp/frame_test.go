package amqp_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/amqp/text"
	"github.com/firemq/firemq/frames/table"
)

func TestNextAsksForMoreUntilAFrameIsWhole(t *testing.T) {
	for _, v := range vectors(t) {
		for cut := range v.bytes {
			src := v.bytes[:cut]
			if _, n, err := amqp.Next(src, amqp.MinFrameMax); n != 0 || err != nil {
				t.Fatalf("%s: prefix of %d bytes: n=%d err=%v", v.line, cut, n, err)
			}
			want := len(v.bytes)
			if cut < 7 {
				want = 7
			}
			if got := amqp.Want(src); got != want {
				t.Fatalf("%s: Want(%d bytes) = %d, want %d", v.line, cut, got, want)
			}
		}
	}
}

func TestFrameErrorTextsAreRabbitMQs(t *testing.T) {
	for _, c := range []struct {
		name  string
		src   string
		limit uint32
		n     int
		fatal bool
		want  string
	}{
		{"eight octets beyond the body size are tolerated", "\x03\x00\x01\x00\x02\x00\x00", 131072, 0, false, ""},
		{"too large before the payload is there", "\x03\x00\x01\x00\x02\x00\x01", 131072, 0, true,
			`type 3, all octets = <<>>: {frame_too_large,131073,131064}`},
		{"wrong end octet", "\x01\x00\x01\x00\x00\x00\x02\x01\x02\x00", 4096, 0, true,
			`type 1, all octets = <<1,2>>: {invalid_frame_end_marker,0}`},
		{"sixteen octets are all of them", "\x01\x00\x01\x00\x00\x00\x10" + strings.Repeat("a", 16) + "\x01", 4096, 0, true,
			`type 1, all octets = <<"aaaaaaaaaaaaaaaa">>: {invalid_frame_end_marker,1}`},
		{"seventeen are more than the first 16", "\x01\x00\x01\x00\x00\x00\x11" + strings.Repeat("\x00", 17) + "\x01", 4096, 0, true,
			`type 1, first 16 octets = <<0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0>>: {invalid_frame_end_marker,1}`},
		{"unknown type", "\x09\x00\x00\x00\x00\x00\x00\xce", 4096, 8, false, `type 9, all octets = <<>>: unknown_frame`},
		{"type zero", "\x00\x00\x00\x00\x00\x00\x02a\"\xce", 4096, 10, false, `type 0, all octets = <<"a\"">>: unknown_frame`},
	} {
		_, n, err := amqp.Next([]byte(c.src), c.limit)
		if n != c.n {
			t.Errorf("%s: n = %d, want %d", c.name, n, c.n)
		}
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		e, ok := err.(*amqp.FrameError)
		if !ok || e.Error() != c.want || e.Fatal() != c.fatal {
			t.Errorf("%s:\n got %v\nwant %s", c.name, err, c.want)
		}
	}
}

func TestShortStringsMustBeUTF8(t *testing.T) {
	m := amqp.QueueBind{Queue: []byte("q"), RoutingKey: []byte("\xff")}
	_, args, _ := amqp.CutMethod(m.Append(nil))
	if err := m.Decode(args); err != amqp.ErrUTF8 {
		t.Errorf("got %v, want ErrUTF8", err)
	}
	// Those of a message may be anything.
	p := amqp.BasicPublish{Exchange: []byte("\xfe"), RoutingKey: []byte("\xff")}
	_, args, _ = amqp.CutMethod(p.Append(nil))
	if err := p.Decode(args); err != nil || string(p.Exchange) != "\xfe" || string(p.RoutingKey) != "\xff" {
		t.Errorf("got %q, %q, %v", p.Exchange, p.RoutingKey, err)
	}
}

func TestCodes(t *testing.T) {
	for code, want := range map[uint16]string{404: "NOT_FOUND", 505: "UNEXPECTED_FRAME", 312: "NO_ROUTE", 1: ""} {
		if got := amqp.CodeName(code); got != want {
			t.Errorf("CodeName(%d) = %q, want %q", code, got, want)
		}
	}
	if amqp.HardCode(amqp.CodeNotFound) || !amqp.HardCode(amqp.CodeNotAllowed) {
		t.Error("404 must close a channel and 530 the connection")
	}
}

func TestScanAgreesWithDecode(t *testing.T) {
	for _, c := range []struct {
		name  string
		props string
		ok    bool
	}{
		{"none", "\x00\x00", true},
		{"no flags", "\x00", false},
		{"delivery mode", "\x10\x00\x02", true},
		{"delivery mode without value", "\x10\x00", false},
		{"priority", "\x08\x00\x05", true},
		{"priority without value", "\x08\x00", false},
		{"both", "\x18\x00\x02\x05", true},
		{"both, one octet too much", "\x18\x00\x02\x05\x00", false},
		{"an octet too much", "\x00\x00\x00", false},
		{"continuation", "\x00\x01\x00\x00", false},
		{"unused bit", "\x00\x02", false},
		{"expiration", "\x01\x00\x02" + "10", true},
		{"expiration cut", "\x01\x00\x03" + "10", false},
		{"timestamp cut", "\x00\x40\x00\x00\x00\x00\x00\x00\x00", false},
		{"headers", "\x20\x00\x00\x00\x00\x03\x01aV", true},
		{"headers of unknown type", "\x20\x00\x00\x00\x00\x03\x01aZ", false},
		{"headers longer than the rest", "\x20\x00\x00\x00\x00\x04\x01aV", false},
		{"headers of 4 GiB", "\x20\x00\xff\xff\xff\xff\x01aV", false},
	} {
		_, scanErr := amqp.ScanProps([]byte(c.props))
		_, err := amqp.PropertyCodec{}.Decode([]byte(c.props))
		if mode, plain := amqp.PlainProps([]byte(c.props)); plain && (!c.ok || mode != c.props[len(c.props)-1] && mode != 0) {
			t.Errorf("%s: PlainProps gives mode %d", c.name, mode)
		}
		if (scanErr == nil) != c.ok || (err == nil) != c.ok {
			t.Errorf("%s: ScanProps %v, Decode %v, want ok %v", c.name, scanErr, err, c.ok)
		}
	}
}

func TestScanFindsWhatIsAsked(t *testing.T) {
	p := table.Properties{
		Has:        table.AllPresent,
		Headers:    table.Table{{Name: "h", Value: table.IntValue(1)}},
		Expiration: "60000", UserID: "guest", ReplyTo: "r", DeliveryMode: 2, Priority: 7,
	}
	s, err := amqp.ScanProps(amqp.PropertyCodec{}.Append(nil, &p))
	if err != nil {
		t.Fatal(err)
	}
	if s.DeliveryMode != 2 || s.Priority != 7 || string(s.Expiration) != "60000" || string(s.UserID) != "guest" ||
		string(s.ReplyTo) != "r" || !bytes.Equal(s.Headers, table.Append(nil, p.Headers)) {
		t.Errorf("got %+v", s)
	}
}

func TestPropertiesBeyondAShortStringAreCut(t *testing.T) {
	p := table.Properties{Has: table.HasMessageID, MessageID: strings.Repeat("m", 300)}
	got, err := amqp.PropertyCodec{}.Decode(amqp.PropertyCodec{}.Append(nil, &p))
	if err != nil || got.MessageID != p.MessageID[:255] {
		t.Errorf("got %d bytes, %v", len(got.MessageID), err)
	}
}

func TestBodiesAreSplitWithinFrameMax(t *testing.T) {
	const limit = amqp.MinFrameMax - amqp.FrameOverhead
	for _, size := range []int{0, 1, limit - 1, limit, limit + 1, 3*limit + 5} {
		body := bytes.Repeat([]byte("b"), size)
		src := amqp.AppendBody(nil, 1, body, amqp.MinFrameMax)
		if got := amqp.BodyLen(size, amqp.MinFrameMax); got != len(src) {
			t.Errorf("%d bytes: BodyLen = %d, want %d", size, got, len(src))
		}
		var got []byte
		for len(src) > 0 {
			f, n, err := amqp.Next(src, limit)
			if n == 0 || err != nil {
				t.Fatalf("%d bytes: n=%d %v", size, n, err)
			}
			got = append(got, f.Payload...)
			src = src[n:]
		}
		if !bytes.Equal(got, body) {
			t.Errorf("%d bytes came back as %d", size, len(got))
		}
	}
}

func TestAppendDeliverIsBasicDeliver(t *testing.T) {
	m := amqp.BasicDeliver{ConsumerTag: []byte("ctag"), DeliveryTag: 5, Redelivered: true, Exchange: []byte("e"), RoutingKey: []byte("key")}
	prefix := amqp.AppendDeliverPrefix(nil, 7, "ctag")
	got := amqp.AppendDeliver(nil, prefix, 5, true, m.Exchange, m.RoutingKey)
	if want := m.AppendFrame(nil, 7); !bytes.Equal(got, want) {
		t.Errorf("\n got %x\nwant %x", got, want)
	}
	if n := amqp.DeliverLen(prefix, m.Exchange, m.RoutingKey); n != len(got) {
		t.Errorf("DeliverLen = %d, want %d", n, len(got))
	}
}

func FuzzNext(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.bytes)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		fr, n, err := amqp.Next(src, amqp.MinFrameMax)
		if err != nil || n == 0 {
			if n == 0 && err == nil && amqp.Want(src) <= len(src) {
				t.Fatalf("more than %d bytes wanted, Want = %d", len(src), amqp.Want(src))
			}
			return
		}
		if got := amqp.AppendFrame(nil, fr); !bytes.Equal(got, src[:n]) {
			t.Fatalf("written again:\n got %x\nwant %x", got, src[:n])
		}
		for cut := range n {
			if _, m, err := amqp.Next(src[:cut], amqp.MinFrameMax); m != 0 || err != nil {
				t.Fatalf("prefix of %d bytes: n=%d err=%v", cut, m, err)
			}
		}
		again, err := text.Append(nil, text.Format(fr))
		if err != nil || !bytes.Equal(again, src[:n]) {
			t.Fatalf("line %s: %v\n got %x\nwant %x", text.Format(fr), err, again, src[:n])
		}
	})
}

// FuzzMethod: what a method decodes to, it writes and decodes again; no shorter arguments decode.
func FuzzMethod(f *testing.F) {
	for _, id := range text.Methods() {
		f.Add(text.Filled(id).Append(nil))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		id, args, ok := amqp.CutMethod(payload)
		m := amqp.NewMethod(id)
		if !ok || m == nil || m.Decode(args) != nil {
			return
		}
		once := m.Append(nil)
		if len(once) > len(payload) {
			t.Fatalf("%s grew from %d to %d octets", id, len(payload), len(once))
		}
		_, args, _ = amqp.CutMethod(once)
		if err := m.Decode(args); err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		if twice := m.Append(nil); !bytes.Equal(once, twice) {
			t.Fatalf("%s:\nonce  %x\ntwice %x", id, once, twice)
		}
		for cut := range args {
			if m.Decode(args[:cut]) == nil {
				t.Fatalf("%s decodes from %d of %d octets", id, cut, len(args))
			}
		}
	})
}

func FuzzProperties(f *testing.F) {
	for _, v := range vectors(f) {
		if v.bytes[0] == amqp.FrameHeader {
			f.Add(v.bytes[7+12 : len(v.bytes)-1])
		}
	}
	f.Fuzz(func(t *testing.T, props []byte) {
		s, scanErr := amqp.ScanProps(props)
		p, err := amqp.PropertyCodec{}.Decode(props)
		if (scanErr == nil) != (err == nil) {
			t.Fatalf("ScanProps %v, Decode %v", scanErr, err)
		}
		if err != nil {
			return
		}
		if got := (amqp.PropertyCodec{}).Append(nil, &p); !bytes.Equal(got, props) {
			t.Fatalf("written again:\n got %x\nwant %x", got, props)
		}
		if mode, plain := amqp.PlainProps(props); plain && mode != p.DeliveryMode {
			t.Fatalf("PlainProps found mode %d, Decode %d", mode, p.DeliveryMode)
		}
		if s.Has != p.Has || s.DeliveryMode != p.DeliveryMode || s.Priority != p.Priority ||
			string(s.Expiration) != p.Expiration || string(s.UserID) != p.UserID || string(s.ReplyTo) != p.ReplyTo {
			t.Fatalf("ScanProps found %+v, Decode %+v", s, p)
		}
	})
}

func BenchmarkDecodePublish(b *testing.B) {
	src := (&amqp.BasicPublish{Exchange: []byte("bench"), RoutingKey: []byte("routing.key")}).AppendFrame(nil, 1)
	src = amqp.AppendContentHeader(src, 1, 256, []byte{0x10, 0, 2})
	src = amqp.AppendBody(src, 1, make([]byte, 256), 131072)
	var m amqp.BasicPublish
	b.ReportAllocs()
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		f, n, _ := amqp.Next(src, 131072)
		_, args, _ := amqp.CutMethod(f.Payload)
		if err := m.Decode(args); err != nil {
			b.Fatal(err)
		}
		f, k, _ := amqp.Next(src[n:], 131072)
		h, _ := amqp.CutContentHeader(f.Payload)
		if mode, ok := amqp.PlainProps(h.Props); !ok || mode != 2 {
			b.Fatal("properties lost")
		}
		if f, _, _ = amqp.Next(src[n+k:], 131072); len(f.Payload) != 256 {
			b.Fatal("body lost")
		}
	}
}

func BenchmarkEncodeDeliver(b *testing.B) {
	prefix := amqp.AppendDeliverPrefix(nil, 1, "amq.ctag-0123456789012345678901")
	exchange, key, props, body := []byte("bench"), []byte("routing.key"), []byte{0x10, 0, 2}, make([]byte, 256)
	dst := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		dst = amqp.AppendDeliver(dst[:0], prefix, 7, false, exchange, key)
		dst = amqp.AppendContentHeader(dst, 1, len(body), props)
		dst = amqp.AppendBody(dst, 1, body, 131072)
	}
}

func BenchmarkDecodeAck(b *testing.B) {
	src := (&amqp.BasicAck{DeliveryTag: 7}).AppendFrame(nil, 1)
	var m amqp.BasicAck
	b.ReportAllocs()
	for b.Loop() {
		f, _, _ := amqp.Next(src, 131072)
		_, args, _ := amqp.CutMethod(f.Payload)
		if err := m.Decode(args); err != nil || m.DeliveryTag != 7 {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeConfirm(b *testing.B) {
	dst := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		m := amqp.BasicAck{DeliveryTag: 7, Multiple: true}
		dst = m.AppendFrame(dst[:0], 1)
	}
}

func BenchmarkEncodePublish(b *testing.B) {
	m := amqp.BasicPublish{Exchange: []byte("bench"), RoutingKey: []byte("routing.key")}
	props, body := []byte{0x10, 0, 2}, make([]byte, 256)
	dst := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		dst = m.AppendFrame(dst[:0], 1)
		dst = amqp.AppendContentHeader(dst, 1, len(body), props)
		dst = amqp.AppendBody(dst, 1, body, 131072)
	}
}

func BenchmarkScanHeaders(b *testing.B) {
	p := table.Properties{Has: table.HasHeaders | table.HasContentType | table.HasDeliveryMode, ContentType: "text/plain",
		Headers: table.Table{{Name: "x", Value: table.StringValue("some text")}, {Name: "n", Value: table.IntValue(1)}}}
	props := amqp.PropertyCodec{}.Append(nil, &p)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := amqp.ScanProps(props); err != nil {
			b.Fatal(err)
		}
	}
}
