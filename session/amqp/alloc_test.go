//go:build !race

package amqp

import (
	"testing"

	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/pool"
)

// nullOutbox stages into one buffer that is forgotten at each flush.
type nullOutbox struct {
	memOutbox
	buf []byte
	n   int // bytes flushed
}

func (o *nullOutbox) Lock()        {}
func (o *nullOutbox) Unlock() bool { return false }
func (o *nullOutbox) Flush()       { o.n += len(o.buf); o.buf = o.buf[:0] }
func (o *nullOutbox) Put(b []byte) { o.buf = b }
func (o *nullOutbox) Tail(n int) []byte {
	if cap(o.buf)-len(o.buf) < n {
		o.buf = append(make([]byte, 0, 2*cap(o.buf)+n), o.buf...)
	}
	return o.buf
}

func (o *nullOutbox) Ref(b *pool.Buf, p []byte) {
	o.n += len(p)
	b.Release()
}

// steady is a connection that publishes with confirms to a queue and consumes it.
type steady struct {
	s     *Session
	out   *nullOutbox
	batch int
	tag   uint64
	pub   []byte // batch publishes
	ack   []byte
}

func newSteady(t testing.TB, batch, size int) *steady {
	b := newBroker(t)
	st := &steady{out: &nullOutbox{}, batch: batch}
	st.s = New(st.out, b, Options{})
	t.Cleanup(func() { st.s.OnClose(nil) })
	st.feed(t, encode(t, append(login, "1 channel.open", "1 confirm.select", `1 queue.declare queue="q"`,
		`1 queue.bind queue="q" exchange="amq.direct" routing-key="key"`, `1 basic.consume queue="q" consumer-tag="tag"`)...))
	for range batch {
		st.pub = (&amqp.BasicPublish{Exchange: []byte("amq.direct"), RoutingKey: []byte("key")}).AppendFrame(st.pub, 1)
		st.pub = amqp.AppendContentHeader(st.pub, 1, size, []byte{0x10, 0, 2})
		st.pub = amqp.AppendBody(st.pub, 1, make([]byte, size), 131072)
	}
	return st
}

func (st *steady) feed(t testing.TB, b []byte) {
	if n, want := st.s.OnData(b); n != len(b) || want > amqp.FrameOverhead || st.s.state != running {
		t.Fatalf("OnData took %d of %d bytes, wants %d, state %s", n, len(b), want, st.s.state)
	}
	st.out.Flush()
}

// turn is one read of publishes and one of an ack for all their deliveries.
func (st *steady) turn(t testing.TB) {
	st.feed(t, st.pub)
	st.tag += uint64(st.batch)
	m := amqp.BasicAck{DeliveryTag: st.tag, Multiple: true}
	st.ack = m.AppendFrame(st.ack[:0], 1)
	st.feed(t, st.ack)
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, size := range []int{0, 256, 8000} {
		st := newSteady(t, 32, size)
		for range 100 {
			st.turn(t)
		}
		before := st.out.n
		if n := testing.AllocsPerRun(100, func() { st.turn(t) }); n != 0 {
			t.Errorf("bodies of %d bytes: %v allocations for 32 messages published, delivered, acked and confirmed", size, n)
		}
		if got := (st.out.n - before) / 101 / 32; got < size {
			t.Errorf("only %d bytes a message were sent", got)
		}
	}
}

func benchTurn(b *testing.B, batch, size int) {
	st := newSteady(b, batch, size)
	st.turn(b)
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += batch {
		st.turn(b)
	}
}

// A message's whole way: publish, deliver, ack and confirm, one operation a message.
func BenchmarkMessage256InBatchesOf32(b *testing.B) { benchTurn(b, 32, 256) }
func BenchmarkMessage256Alone(b *testing.B)         { benchTurn(b, 1, 256) }
func BenchmarkMessage8000(b *testing.B)             { benchTurn(b, 8, 8000) }

// Publishing alone, to nowhere: the session's own cost with the broker's route lookup.
func BenchmarkPublishUnroutable(b *testing.B) {
	st := newSteady(b, 32, 256)
	st.feed(b, encode(b, `1 queue.unbind queue="q" exchange="amq.direct" routing-key="key"`))
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += 32 {
		st.feed(b, st.pub)
	}
}
