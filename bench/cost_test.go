package bench

import (
	"encoding/binary"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/fmq1"
)

// What a message costs the load client itself, without the socket: that must stay well below what it
// costs a broker.

// supply is a connection that reads the same bytes again and again, with the sequence numbers going
// on, and writes into nothing.
type supply struct {
	net.Conn
	bytes  []byte
	stamps []int // where the bodies are in bytes
	seq    uint64
}

func (s *supply) Read(b []byte) (int, error) {
	for _, at := range s.stamps {
		s.seq++
		binary.BigEndian.PutUint64(s.bytes[at+8:], s.seq)
	}
	return copy(b, s.bytes), nil
}

func (s *supply) Write(b []byte) (int, error) { return len(b), nil }

const supplied = 150 // deliveries in a read

func supplyAMQP(size int) *supply {
	s := &supply{}
	for n := range supplied {
		m := amqp.BasicDeliver{ConsumerTag: consumerTag(0), DeliveryTag: uint64(n), RoutingKey: []byte("firemq-bench-ABCDEFGHIJ-0")}
		s.bytes = m.AppendFrame(s.bytes, channelID)
		s.bytes = amqp.AppendContentHeader(s.bytes, channelID, size, []byte{0x10, 0, 1})
		s.stamps = append(s.stamps, len(s.bytes)+amqp.FrameOverhead-1)
		s.bytes = amqp.AppendBody(s.bytes, channelID, filler(size), amqpFrameMax)
	}
	return s
}

func supplyFMQ1(size int) *supply {
	s := &supply{}
	for n := range supplied {
		m := fmq1.Deliver{Sub: 1, Tag: uint64(n), Key: []byte("firemq-bench-ABCDEFGHIJ-0")}
		start := len(s.bytes)
		s.bytes = fmq1.End(m.AppendTo(fmq1.Begin(s.bytes, fmq1.OpDeliver)), start, size)
		s.stamps = append(s.stamps, len(s.bytes))
		s.bytes = append(s.bytes, filler(size)...)
	}
	return s
}

func supplyJetStream(size int) *supply {
	s := &supply{}
	for n := range supplied {
		s.bytes = fmt.Appendf(s.bytes, "MSG firemq-bench-ABCDEFGHIJ-0 1 $JS.ACK.firemq-bench-ABCDEFGHIJ-0.bench.1.%d.%d.1764468000000000000.900 %d\r\n", n, n, size)
		s.stamps = append(s.stamps, len(s.bytes))
		s.bytes = append(append(s.bytes, filler(size)...), crlf...)
	}
	return s
}

// offline is a run without a broker.
func offline(o Options) *run {
	o.Sizes, o.Keys = []int{o.Size}, 1
	r := &run{o: o, base: time.Now(), queues: []string{"firemq-bench-ABCDEFGHIJ-0"}, ledgers: make([]ledger, 1)}
	r.ledgers[0].streams = make([]stream, 1)
	r.confirmMeters, r.deliveryMeters = []*meter{newMeter()}, []*meter{newMeter()}
	r.measure(0, never)
	return r
}

func offlineWire(protocol string, conn net.Conn) wire {
	l := &link{conn: conn, buf: make([]byte, 2*readSize)}
	switch protocol {
	case "fire":
		return &fmq1Wire{link: l, maxFrame: readSize, credits: []credit{newCredit(1000)}}
	case "jetstream":
		return &natsWire{link: l, stream: true, maxLine: readSize, inbox: "_INBOX.ABCDEFGHIJKL.", queues: []string{"firemq-bench-ABCDEFGHIJ-0"}, credits: []credit{newCredit(1000)}}
	}
	return &amqpWire{link: l, frameMax: amqpFrameMax}
}

func offlineConsumer(protocol string) *consumer {
	o := Options{Publishers: 1, Consumers: 1, Size: 256, Window: 1000}
	r := offline(o)
	s := map[string]func(int) *supply{"amqp": supplyAMQP, "fire": supplyFMQ1, "jetstream": supplyJetStream}[protocol](o.Size)
	c := newConsumer(r, 0, offlineWire(protocol, s))
	p := newPublisher(r, 0, offlineWire(protocol, s))
	p.sent.Store(1 << 40)
	r.publishers = []*publisher{p}
	return c
}

func offlinePublisher(protocol string) *publisher {
	r := offline(Options{Publishers: 1, Consumers: 1, Size: 256, Window: 1000})
	return newPublisher(r, 0, offlineWire(protocol, &supply{}))
}

// publishBatch is what a publisher does for n messages.
func publishBatch(tb testing.TB, p *publisher, n int) {
	now := p.run.now()
	seq := p.sent.Load()
	for end := seq + uint64(n); seq < end; seq++ {
		if err := p.stage(seq+1, now); err != nil {
			tb.Fatal(err)
		}
	}
	p.batch = p.w.appendPublished(p.batch, seq)
	if err := p.flush(seq); err != nil {
		tb.Fatal(err)
	}
	p.arrived()
	if err := p.confirmed(seq, true, false); err != nil {
		tb.Fatal(err)
	}
	if err := p.settle(); err != nil {
		tb.Fatal(err)
	}
}

func BenchmarkConsume(b *testing.B) {
	for _, protocol := range []string{"amqp", "fire", "jetstream"} {
		b.Run(protocol, func(b *testing.B) {
			c := offlineConsumer(protocol)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				// One operation is one message.
				if n++; n%supplied != 0 {
					continue
				}
				if err := read(c.w, c); err != nil {
					b.Fatal(err)
				}
			}
			if distinct, again := c.run.totals(); distinct != c.received.Load() || again != 0 {
				b.Fatalf("%d distinct and %d again of %d", distinct, again, c.received.Load())
			}
		})
	}
}

func BenchmarkPublish(b *testing.B) {
	for _, protocol := range []string{"amqp", "fire", "jetstream"} {
		b.Run(protocol, func(b *testing.B) {
			p := offlinePublisher(protocol)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if n++; n%supplied == 0 {
					publishBatch(b, p, supplied)
				}
			}
		})
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, protocol := range []string{"amqp", "fire", "jetstream"} {
		c, p := offlineConsumer(protocol), offlinePublisher(protocol)
		if n := testing.AllocsPerRun(100, func() {
			if err := read(c.w, c); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations for %d deliveries", protocol, n, supplied)
		}
		if n := testing.AllocsPerRun(100, func() { publishBatch(t, p, supplied) }); n != 0 {
			t.Errorf("%s: %v allocations for %d publishes", protocol, n, supplied)
		}
	}
}
