package broker

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/internal/vfs"
)

// BenchmarkPublishDeliverAck is the broker's share of one message: publish, route, enqueue,
// dispatch, ack, confirm, in turns of 200 as a 64 KiB read brings them. With more queues than one,
// neighbours go to different ones, and four connections of each kind share them out.
func BenchmarkPublishDeliverAck(b *testing.B) {
	for _, persistent := range []bool{false, true} {
		for _, queues := range []int{1, 100, 10000} {
			name := fmt.Sprintf("transient/queues=%d", queues)
			if persistent {
				name = fmt.Sprintf("persistent/queues=%d", queues)
			}
			b.Run(name, func(b *testing.B) { benchmarkQueues(b, queues, persistent) })
		}
	}
}

func benchmarkQueues(b *testing.B, queues int, persistent bool) {
	const turnSize = 200
	pairs := min(4, queues)
	o := Options{}
	if persistent {
		o.FS, o.JournalDir = vfs.OS{}, b.TempDir()
	}
	br := memoryBroker(b, o)
	type pair struct {
		pub, con *client
		keys     [][]byte
		next     int
		tag      uint64
	}
	all := make([]pair, pairs)
	for i := range all {
		p := &all[i]
		p.pub, p.con = connect(b, br), connect(b, br)
		p.con.sink.discard, p.pub.sink.discard = true, true
		p.pub.ok(p.pub.ch.Confirms())
		p.con.ch.Qos(1000, false)
	}
	for i := range queues {
		p := &all[i%pairs]
		name := fmt.Sprintf("q%d", i)
		p.keys = append(p.keys, []byte(name))
		p.pub.declare(QueueDeclare{Name: name, Durable: persistent})
		p.con.consume(ConsumeArgs{Queue: name, Tag: name})
	}
	body := make([]byte, 256)
	turn := func(p *pair, n int) {
		for range n {
			key := p.keys[p.next]
			p.next = (p.next + 1) % len(p.keys)
			m := message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1, Persistent: persistent}, nil, key, nil, len(body))
			copy(m.Body(), body)
			p.pub.seq++
			if e := p.pub.ch.Publish(&Publish{Msg: m, Seq: p.pub.seq}); e != nil {
				b.Fatal(e.Text)
			}
		}
		p.pub.end()
		if persistent {
			<-br.done.idle()
		}
		for range n {
			p.tag++
			if e := p.con.ch.Ack(p.tag, false); e != nil {
				b.Fatal(e.Text)
			}
		}
		p.con.end()
	}
	for i := range 50 * pairs * (1 + queues/1000) {
		turn(&all[i%pairs], turnSize)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += turnSize {
		turn(&all[i/turnSize%pairs], min(turnSize, b.N-i))
	}
	b.StopTimer()
	for i := range all {
		if p := &all[i]; p.con.sink.n != int(p.tag) || p.pub.sink.confirmed != p.pub.seq {
			b.Fatalf("published %d: delivered %d, confirmed %d", p.pub.seq, p.con.sink.n, p.pub.sink.confirmed)
		}
	}
}

// BenchmarkWindow is the same while every publisher has filled a window of 1,000 before anything is committed: ten
// connections of each kind, each with its part of the queues in turn. What is in flight is no longer in the
// processor's nearest cache when it is delivered, and again when it is settled.
func BenchmarkWindow(b *testing.B) {
	for _, queues := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("queues=%d", queues), func(b *testing.B) { benchmarkWindow(b, queues) })
	}
}

func benchmarkWindow(b *testing.B, queues int) {
	const pairs, window, turnSize = 10, 1000, 200
	br := memoryBroker(b, Options{FS: vfs.OS{}, JournalDir: b.TempDir()})
	type pair struct {
		pub, con *client
		keys     [][]byte
		next     int
		tag      uint64
	}
	all := make([]pair, pairs)
	for i := range all {
		p := &all[i]
		p.pub, p.con = connect(b, br), connect(b, br)
		p.con.sink.discard, p.pub.sink.discard = true, true
		p.con.sink.copies = make([]byte, 64<<10)
		p.pub.ok(p.pub.ch.Confirms())
		p.con.ch.Qos(window, false)
	}
	for i := range queues {
		p := &all[i%pairs]
		name := fmt.Sprintf("q%d", i)
		p.keys = append(p.keys, []byte(name))
		p.pub.declare(QueueDeclare{Name: name, Durable: true})
		p.con.consume(ConsumeArgs{Queue: name, Tag: name})
	}
	body := make([]byte, 256)
	publish := func(p *pair) {
		for range turnSize {
			key := p.keys[p.next]
			p.next = (p.next + 1) % len(p.keys)
			m := message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1, Persistent: true}, nil, key, nil, len(body))
			copy(m.Body(), body)
			p.pub.seq++
			if e := p.pub.ch.Publish(&Publish{Msg: m, Seq: p.pub.seq}); e != nil {
				b.Fatal(e.Text)
			}
		}
		p.pub.end()
	}
	settle := func(p *pair) {
		for range turnSize {
			p.tag++
			if e := p.con.ch.Ack(p.tag, false); e != nil {
				b.Fatal(e.Text)
			}
		}
		p.con.end()
	}
	round := func() {
		for range window / turnSize {
			for i := range all {
				publish(&all[i])
			}
		}
		<-br.done.idle()
		for range window / turnSize {
			for i := range all {
				settle(&all[i])
			}
		}
	}
	for range 20 {
		round()
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += pairs * window {
		round()
	}
	b.StopTimer()
	for i := range all {
		if p := &all[i]; p.con.sink.n != int(p.tag) || p.pub.sink.confirmed != p.pub.seq {
			b.Fatalf("published %d: delivered %d, confirmed %d", p.pub.seq, p.con.sink.n, p.pub.sink.confirmed)
		}
	}
}

// BenchmarkUnbind takes a queue's bindings away one by one: what one costs must not depend on how many there are.
func BenchmarkUnbind(b *testing.B) {
	for _, many := range []int{100, 10_000} {
		b.Run(fmt.Sprint(many), func(b *testing.B) {
			broker := memoryBroker(b, Options{})
			c := connect(b, broker)
			c.declare(QueueDeclare{Name: "q"})
			for i := range many {
				c.ok(c.BindQueue("q", "amq.topic", strconv.Itoa(i), nil))
			}
			c.end()
			for i := 0; b.Loop(); i++ {
				key := strconv.Itoa(i % many)
				c.ok(c.UnbindQueue("q", "amq.topic", key, nil))
				c.ok(c.BindQueue("q", "amq.topic", key, nil))
				c.end()
			}
		})
	}
}
