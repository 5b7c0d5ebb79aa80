package fmq1

import (
	"bytes"
	"errors"
	"testing"
)

func seed(f *testing.F, add func(sample)) {
	f.Helper()
	for _, s := range append(samples(), badSamples()...) {
		add(s)
	}
}

// FuzzNext: no input panics, what is refused has code 501, a frame cut anywhere asks for more.
func FuzzNext(f *testing.F) {
	seed(f, func(s sample) { f.Add(s.frame) })
	f.Fuzz(func(t *testing.T, src []byte) {
		fr, n, want, err := Next(src, MaxBeforeWelcome)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Code != FrameError || n != 0 {
				t.Fatalf("n=%d err=%v", n, err)
			}
			return
		}
		if n == 0 {
			if want <= len(src) || want > 4+MaxBeforeWelcome {
				t.Fatalf("%d bytes: want=%d", len(src), want)
			}
			return
		}
		again := append(Begin(nil, fr.Op), fr.Header...)
		again = append(End(again, 0, len(fr.Payload)), fr.Payload...)
		if !bytes.Equal(again, src[:n]) {
			t.Fatalf("%x is %x when encoded again", src[:n], again)
		}
		for cut := range min(n, 64) {
			if _, m, _, err := Next(src[:cut], MaxBeforeWelcome); m != 0 || err != nil {
				t.Fatalf("prefix of %d bytes: n=%d err=%v", cut, m, err)
			}
		}
	})
}

// FuzzHeader: every decoder, on every header, gives an error with code 502 or a struct whose encoding
// is a fixed point.
func FuzzHeader(f *testing.F) {
	seed(f, func(s sample) {
		if fr, n, _, err := Next(s.frame, DefaultMaxFrame); n > 0 && err == nil {
			f.Add(uint8(fr.Op), fr.Header)
		}
	})
	f.Fuzz(func(t *testing.T, op uint8, header []byte) {
		if !Op(op).Known() {
			return
		}
		Request(header, "rid")
		once, err := again(Op(op), header)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Code != SyntaxError {
				t.Fatal(err)
			}
			return
		}
		twice, err := again(Op(op), once)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%s %x\nonce  %x\ntwice %x\n%v", Op(op), header, once, twice, err)
		}
	})
}

// FuzzCodec: what a publish accepts, the codec converts to a valid field table and back without loss.
func FuzzCodec(f *testing.F) {
	seed(f, func(s sample) {
		if fr, n, _, err := Next(s.frame, DefaultMaxFrame); n > 0 && err == nil {
			f.Add(fr.Header)
		}
	})
	f.Fuzz(func(t *testing.T, header []byte) {
		var m Publish
		if m.Decode(header) != nil {
			Codec{}.Decode(header) // must not panic either
			return
		}
		stored := append(append([]byte(nil), orEmpty(m.Props)...), orEmpty(m.Headers)...)
		p, err := Codec{}.Decode(stored)
		if err != nil {
			t.Fatalf("accepted by the publish, refused by the codec: %v", err)
		}
		if err := p.Headers.Validate(); err != nil {
			t.Fatal(err)
		}
		once := Codec{}.Append(nil, &p)
		q, err := Codec{}.Decode(once)
		if err != nil {
			t.Fatal(err)
		}
		if twice := (Codec{}).Append(nil, &q); !bytes.Equal(once, twice) {
			t.Fatalf("once  %x\ntwice %x", once, twice)
		}
	})
}

func orEmpty(m []byte) []byte {
	if len(m) == 0 {
		return []byte{emptyMap}
	}
	return m
}
