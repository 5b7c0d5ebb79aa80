//go:build !race

package amqp

import (
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/firemq/firemq/frames/amqp"
)

// A body of the largest size, in frames that also come apart, is in memory about once while it is
// collected, queued and delivered: one eighth of it may be allocated before its own buffer is.
func TestTheLargestBodyIsInMemoryOnce(t *testing.T) {
	const size = defaultMaxMessage
	b := newBroker(t)
	out := &nullOutbox{}
	s := New(out, b, Options{})
	t.Cleanup(func() { s.OnClose(nil) })
	feed := func(p []byte) {
		t.Helper()
		if n, _ := s.OnData(p); n != len(p) {
			t.Fatalf("took %d of %d bytes", n, len(p))
		}
	}
	feed(encode(t, append(login, "1 channel.open", `1 queue.declare queue="q"`, `1 basic.consume queue="q" consumer-tag="t"`)...))
	out.Flush()
	frame := amqp.AppendBody(nil, 1, make([]byte, 131072-amqp.FrameOverhead), 131072)
	part := len(frame) - amqp.FrameOverhead
	last := amqp.AppendBody(nil, 1, make([]byte, size%part), 131072)
	publish := (&amqp.BasicPublish{RoutingKey: []byte("q")}).AppendFrame(nil, 1)
	publish = amqp.AppendContentHeader(publish, 1, size, []byte{0, 0})

	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	sent := out.n
	feed(publish)
	for i := range size / part {
		if i%2 == 0 {
			feed(frame)
			continue
		}
		n, _ := s.OnData(frame[:len(frame)/2])
		m, _ := s.OnData(frame[n:])
		if n+m != len(frame) {
			t.Fatalf("took %d and %d of %d bytes", n, m, len(frame))
		}
	}
	feed(last)
	out.Flush()
	runtime.ReadMemStats(&after)
	if got := out.n - sent; got < size {
		t.Fatalf("delivered %d bytes", got)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > size+size/4 {
		t.Errorf("%d MiB allocated for a body of %d", got>>20, size>>20)
	}
	feed(encode(t, "1 basic.ack delivery-tag=1"))

	// One byte more is refused from its header on, and costs nothing.
	runtime.ReadMemStats(&before)
	binary.BigEndian.PutUint64(publish[len(publish)-11:], size+1)
	feed(publish)
	for range 100 {
		feed(frame)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("%d bytes allocated for a body that is refused", got)
	}
	if ch := s.channel(1); ch == nil || ch.bc != nil {
		t.Error("the channel of the refused message is open")
	}
}
