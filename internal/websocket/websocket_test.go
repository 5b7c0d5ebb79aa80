package websocket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

// frame spells one frame as no encoder would: any bits, any length.
func frame(first byte, masked bool, size uint64, long int, payload []byte) []byte {
	b := []byte{first}
	var m byte
	if masked {
		m = maskBit
	}
	switch long {
	case 0:
		b = append(b, m|byte(size))
	case 2:
		b = binary.BigEndian.AppendUint16(append(b, m|126), uint16(size))
	case 8:
		b = binary.BigEndian.AppendUint64(append(b, m|127), size)
	}
	if !masked {
		return append(b, payload...)
	}
	key := []byte{0x11, 0x22, 0x33, 0x44}
	b = append(b, key...)
	for i, c := range payload {
		b = append(b, c^key[i%4])
	}
	return b
}

// short is a masked frame with the payload's own length.
func short(first byte, payload string) []byte {
	n := uint64(len(payload))
	long := 0
	if n > 0xffff {
		long = 8
	} else if n > 125 {
		long = 2
	}
	return frame(first, true, n, long, []byte(payload))
}

func message(p string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(p))), p...)
}

// decodeAll decodes wire in pieces of the sizes that cut gives, in place as a server does.
func decodeAll(t *testing.T, wire []byte, limit int, cut func() int) (stream []byte, pings []string, code uint16, err error) {
	t.Helper()
	d := Decoder{Masked: true, Limit: limit}
	for len(wire) > 0 {
		k := min(cut(), len(wire))
		buf := append(make([]byte, PrefixSize), wire[:k]...)
		wire = wire[k:]
		src, n := buf[PrefixSize:], 0
		for {
			m, taken, ev, err := d.Decode(buf[n:], src)
			src = src[taken:]
			if n += m; n > len(buf)-len(src) {
				t.Fatalf("%d bytes of stream overran what was taken of %d", n, len(buf)-len(src))
			}
			if err != nil {
				return append(stream, buf[:n]...), pings, 0, err
			}
			if ev == More {
				stream = append(stream, buf[:n]...)
				break
			}
			stream = append(stream, buf[:n]...)
			n = 0
			switch ev {
			case Whole:
				stream = append(stream, d.Message()...)
			case Ping:
				pings = append(pings, string(d.Control()))
			case Closed:
				return stream, pings, d.Code(), nil
			}
		}
	}
	return stream, pings, 0, nil
}

func TestDecode(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 5000)
	concat := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for _, c := range []struct {
		name  string
		wire  []byte
		want  []byte
		pings string
		code  uint16 // of the close frame, or of the error
	}{
		{name: "one message", wire: short(0x82, "hello"), want: message("hello")},
		{name: "an empty message", wire: short(0x82, ""), want: message("")},
		{name: "messages of all length forms", wire: concat(short(0x82, big[:125]), short(0x82, big[:126]), short(0x82, big[:0xffff]), short(0x82, big[:0x10000])),
			want: concat(message(big[:125]), message(big[:126]), message(big[:0xffff]), message(big[:0x10000]))},
		{name: "fragments with a ping among them", wire: concat(short(0x02, "he"), short(0x89, "p"), short(0x00, ""), short(0x00, "ll"), short(0x80, "o"), short(0x82, "x")),
			want: concat(message("hello"), message("x")), pings: "p"},
		{name: "pongs are ignored", wire: concat(short(0x8a, "x"), short(0x82, "y")), want: message("y")},
		{name: "close without a code", wire: concat(short(0x82, "x"), short(0x88, "")), want: message("x"), code: CloseNoStatus},
		{name: "close with a code and a reason", wire: short(0x88, "\x03\xe8bye"), code: 1000},
		{name: "fragments above the limit are their length alone", wire: concat(short(0x02, big[:60000]), short(0x00, big[:60000]), short(0x80, "x")),
			want: binary.BigEndian.AppendUint32(nil, 120000)},
		{name: "a length beyond 32 bits", wire: frame(0x82, true, 1<<40, 8, nil), want: []byte{255, 255, 255, 255}},

		{name: "text", wire: concat(short(0x82, "x"), short(0x81, "hello")), want: message("x"), code: CloseUnsupported},
		{name: "not masked", wire: frame(0x82, false, 1, 0, []byte("x")), code: CloseProtocol},
		{name: "reserved bit", wire: short(0xc2, "x"), code: CloseProtocol},
		{name: "reserved opcode", wire: short(0x83, "x"), code: CloseProtocol},
		{name: "reserved control opcode", wire: short(0x8b, "x"), code: CloseProtocol},
		{name: "continuation of nothing", wire: short(0x80, "x"), code: CloseProtocol},
		{name: "message inside a message", wire: concat(short(0x02, "x"), short(0x82, "y")), code: CloseProtocol},
		{name: "ping in fragments", wire: short(0x09, "x"), code: CloseProtocol},
		{name: "ping of 126 bytes", wire: short(0x89, big[:126]), code: CloseProtocol},
		{name: "length with its highest bit set", wire: frame(0x82, true, 1<<63, 8, nil), code: CloseProtocol},
		{name: "length of 125 in two bytes", wire: frame(0x82, true, 125, 2, nil), code: CloseProtocol},
		{name: "length of 65535 in eight bytes", wire: frame(0x82, true, 65535, 8, nil), code: CloseProtocol},
		{name: "close with half a code", wire: short(0x88, "\x03"), code: CloseProtocol},
		{name: "close with a code for no frame", wire: short(0x88, "\x03\xed"), code: CloseProtocol},
		{name: "close with a reason that is not UTF-8", wire: short(0x88, "\x03\xe8\xff"), code: CloseInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(1, 2))
			for name, cut := range map[string]func() int{
				"at once": func() int { return 1 << 30 }, "byte by byte": func() int { return 1 }, "in pieces": func() int { return 1 + rnd.IntN(40) },
			} {
				got, pings, code, err := decodeAll(t, c.wire, 100000, cut)
				if e, ok := errors.AsType[*Error](err); ok {
					code = e.Code
				} else if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, c.want) || strings.Join(pings, ",") != c.pings || code != c.code {
					t.Errorf("%s: got %d bytes, pings %q, code %d; want %d bytes, %q, %d", name, len(got), pings, code, len(c.want), c.pings, c.code)
				}
			}
		})
	}
}

// A stream encoded in pieces and decoded in pieces is the same stream, masked or not.
func TestRoundTrip(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, masked := range []bool{false, true} {
		var stream, plain []byte
		for range 300 {
			p := make([]byte, rnd.IntN(1<<rnd.IntN(18)))
			for i := range p {
				p[i] = byte(rnd.Uint32())
			}
			stream = append(stream, message(string(p))...)
			plain = append(plain, message(string(p))...)
			if rnd.IntN(10) == 0 {
				stream = AppendStreamControl(stream, OpPong, []byte("pong"))
			}
		}
		var e Encoder
		if masked {
			e.Key = rnd.Uint32
		}
		var wire []byte
		for len(stream) > 0 {
			piece := stream[:min(1+rnd.IntN(5000), len(stream))]
			stream = stream[len(piece):]
			for len(piece) > 0 {
				var payload []byte
				wire, payload, piece = e.Next(wire, piece)
				at := len(wire)
				wire = append(wire, payload...)
				if masked {
					e.Mask(wire[at:], payload)
				}
			}
		}
		d := Decoder{Masked: masked}
		var got []byte
		for out := make([]byte, 4000); len(wire) > 0; {
			n, taken, ev, err := d.Decode(out[:1+rnd.IntN(4000)], wire[:min(1+rnd.IntN(5000), len(wire))])
			if err != nil || ev != More {
				t.Fatal(ev, err)
			}
			got = append(got, out[:n]...)
			wire = wire[taken:]
		}
		if !bytes.Equal(got, plain) {
			t.Errorf("masked %v: the stream changed", masked)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(append(short(0x02, "he"), short(0x80, "llo")...))
	f.Add(append(short(0x89, "ping"), short(0x88, "\x03\xe8bye")...))
	f.Add(frame(0x82, true, 1<<40, 8, []byte("x")))
	f.Fuzz(func(t *testing.T, wire []byte) {
		whole, pings, code, err := decodeAll(t, wire, 1000, func() int { return 1 << 30 })
		again, pings2, code2, err2 := decodeAll(t, wire, 1000, func() int { return 1 })
		if !bytes.Equal(whole, again) || len(pings) != len(pings2) || code != code2 || (err == nil) != (err2 == nil) {
			t.Errorf("cut differently: %x and %x, %v and %v", whole, again, err, err2)
		}
	})
}

func TestDecodeAndEncodeDoNotAllocate(t *testing.T) {
	wire := bytes.Repeat(short(0x82, strings.Repeat("x", 300)), 100)
	buf := make([]byte, PrefixSize+len(wire))
	d := Decoder{Masked: true}
	var e Encoder
	out := make([]byte, 0, len(wire))
	if n := testing.AllocsPerRun(100, func() {
		copy(buf[PrefixSize:], wire)
		n, _, _, err := d.Decode(buf, buf[PrefixSize:])
		if err != nil || n != 100*304 {
			t.Fatal(n, err)
		}
		out = out[:0]
		for stream := buf[:n]; len(stream) > 0; {
			var payload []byte
			out, payload, stream = e.Next(out, stream)
			out = append(out, payload...)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDecode(b *testing.B) {
	wire := bytes.Repeat(short(0x82, strings.Repeat("x", 300)), 200)
	buf := make([]byte, PrefixSize+len(wire))
	d := Decoder{Masked: true}
	b.SetBytes(int64(len(wire)))
	b.ReportAllocs()
	for b.Loop() {
		copy(buf[PrefixSize:], wire)
		d.Decode(buf, buf[PrefixSize:])
	}
}
