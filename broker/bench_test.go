package broker

import (
	"testing"

	"github.com/firemq/firemq/broker/message"
)

// BenchmarkPublishDeliverAck is the broker's share of one message: publish, route, enqueue,
// dispatch, ack, confirm, in turns of 200 as a 64 KiB read brings them.
func BenchmarkPublishDeliverAck(b *testing.B) {
	br := memoryBroker(b, Options{})
	pub, con := connect(b, br), connect(b, br)
	con.sink.discard, pub.sink.discard = true, true
	pub.declare(QueueDeclare{Name: "q"})
	pub.ok(pub.ch.Confirms())
	con.ch.Qos(1000, false)
	con.consume(ConsumeArgs{Queue: "q"})
	body := make([]byte, 256)
	key, tag := []byte("q"), uint64(0)
	turn := func(n int) {
		for range n {
			m := message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1}, nil, key, nil, len(body))
			copy(m.Body(), body)
			pub.seq++
			if e := pub.ch.Publish(&Publish{Msg: m, Seq: pub.seq}); e != nil {
				b.Fatal(e.Text)
			}
		}
		pub.end()
		for range n {
			tag++
			if e := con.ch.Ack(tag, false); e != nil {
				b.Fatal(e.Text)
			}
		}
		con.end()
	}
	for range 50 {
		turn(200)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += 200 {
		turn(min(200, b.N-i))
	}
	b.StopTimer()
	if con.sink.n != int(tag) || pub.sink.confirmed != pub.seq {
		b.Fatalf("published %d: delivered %d, confirmed %d", pub.seq, con.sink.n, pub.sink.confirmed)
	}
}
