package message

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/firemq/firemq/pool"
)

// There are as many as fit into memory. Package pool counts them.
func TestSize(t *testing.T) {
	if size := unsafe.Sizeof(Message{}); size > 80 {
		t.Errorf("a message takes %d bytes beside its content", size)
	}
}

func TestPartsAreCopiedAndKeptApart(t *testing.T) {
	for _, c := range []struct{ exchange, key, props, body string }{
		{"", "", "", ""},
		{"x", "", "pp", ""},
		{"", "key", "", "body"},
		{"exchange", "a.b.c", "props", string(bytes.Repeat([]byte("b"), 100_000))},
	} {
		m := New(Attributes{Encoding: AMQP, Priority: 3}, []byte(c.exchange), []byte(c.key), []byte(c.props), len(c.body))
		copy(m.Body(), c.body)
		if string(m.Exchange()) != c.exchange || string(m.Key()) != c.key || string(m.Props()) != c.props || string(m.Body()) != c.body {
			t.Errorf("%q %q %q %d bytes", m.Exchange(), m.Key(), m.Props(), len(m.Body()))
		}
		if got := c.exchange + c.key + c.props + c.body; string(m.Bytes()) != got {
			t.Errorf("Bytes has %d bytes, want %d", len(m.Bytes()), len(got))
		}
		if m.Priority != 3 || m.Position() != 0 {
			t.Errorf("%+v at %d", m.Attributes, m.Position())
		}
		m.Release()
	}
}

func TestReuseForgetsTheLastMessage(t *testing.T) {
	for range 3 {
		m := New(Attributes{}, nil, []byte("k"), nil, 10)
		if m.Position() != 0 || m.Persistent {
			t.Fatalf("position %d, %+v", m.Position(), m.Attributes)
		}
		m.SetPosition(9)
		m.Persistent = true
		m.Release()
	}
}

func TestABufferRetainedKeepsTheMessage(t *testing.T) {
	before := pool.Live()
	m := New(Attributes{}, nil, nil, nil, 4)
	copy(m.Body(), "body")
	buf, body := m.Buf(), m.Body()
	buf.Retain()
	m.Retain(2)
	for range 3 {
		m.Release()
	}
	if string(body) != "body" {
		t.Fatalf("body is %q", body)
	}
	buf.Release()
	if n := pool.Live(); n != before {
		t.Fatalf("%d buffers left", n-before)
	}
}

func BenchmarkNewRelease(b *testing.B) {
	b.ReportAllocs()
	key := []byte("key")
	for b.Loop() {
		New(Attributes{}, nil, key, nil, 256).Release()
	}
}
