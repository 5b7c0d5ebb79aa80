package queue

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/firemq/firemq/broker/message"
)

const burst = 64

// pass publishes n times, dispatches and acks, as the broker does for a batch.
type pass struct {
	q   *Queue
	out Effects
	ms  []*message.Message
}

func newPass(cfg Config, levels int) *pass {
	p := &pass{q: newQueue(cfg)}
	for i := range burst {
		m := sent{size: 256, priority: uint8(i % levels)}.message()
		m.SetPosition(1)
		p.ms = append(p.ms, m)
	}
	return p
}

func (p *pass) publish(n int) {
	for i := range n {
		p.q.Publish(p.ms[i], true, 1000, &p.out)
	}
}

func (p *pass) dispatch() []Delivery {
	p.q.Dispatch(1000, 2, math.MaxInt, &p.out)
	return p.out.Deliver
}

func (p *pass) ack() {
	for i := range p.out.Deliver {
		p.q.Ack(p.out.Deliver[i].Consumer, &p.out.Deliver[i].Entry)
	}
	p.out.Reset()
}

// always is a connection with room.
type always struct{}

func (always) Reserve() bool       { return true }
func (always) Room() (uint64, any) { return Unlimited, nil }

// BenchmarkPublishDispatchAck is the cost of one message from end to end.
func BenchmarkPublishDispatchAck(b *testing.B) {
	priorities := Plain
	priorities.MaxPriority = 9
	for _, bc := range []struct {
		name      string
		cfg       Config
		levels    int
		consumers int // negative: each of another priority
		parked    int
		prefetch  uint32
	}{
		{"consumers=1", Plain, 1, 1, 0, 1000},
		{"consumers=4", Plain, 1, 4, 0, 1000},
		{"consumers=64/prefetch=1", Plain, 1, 64, 0, 1},
		{"consumers=4/parked=1000", Plain, 1, 4, 1000, 1000},
		{"consumers=1000/prefetch=1", Plain, 1, 1000, 0, 1},
		{"consumers=1000/prefetch=1/ranks=1000", Plain, 1, -1000, 0, 1},
		{"priorities=10", priorities, 10, 1, 0, 1000},
	} {
		b.Run(bc.name, func(b *testing.B) {
			p := newPass(bc.cfg, bc.levels)
			for range bc.parked {
				p.q.AddConsumer(&Consumer{Receiver: &gate{}, Priority: 1})
			}
			for range bc.consumers {
				p.q.AddConsumer(&Consumer{Receiver: always{}, Prefetch: bc.prefetch})
			}
			for i := range -bc.consumers {
				p.q.AddConsumer(&Consumer{Receiver: always{}, Prefetch: bc.prefetch, Priority: int64(i)})
			}
			p.publish(1)
			p.dispatch()
			p.ack()
			b.ReportAllocs()
			for n := 0; n < b.N; n += burst {
				p.publish(burst)
				p.dispatch()
				p.ack()
			}
		})
	}
}

// BenchmarkOneByOne dispatches after every publish, with an empty queue before and after.
func BenchmarkOneByOne(b *testing.B) {
	p := newPass(Plain, 1)
	p.q.AddConsumer(&Consumer{Receiver: always{}, Prefetch: 1000})
	b.ReportAllocs()
	for b.Loop() {
		p.publish(1)
		p.dispatch()
		p.ack()
	}
}

// BenchmarkRequeue delivers a burst, requeues it newest first, delivers it again and acks.
func BenchmarkRequeue(b *testing.B) {
	p := newPass(Plain, 1)
	p.q.AddConsumer(&Consumer{Receiver: always{}, Prefetch: 1000})
	b.ReportAllocs()
	for n := 0; n < b.N; n += burst {
		p.publish(burst)
		ds := p.dispatch()
		for i := len(ds) - 1; i >= 0; i-- {
			p.q.Requeue(ds[i].Consumer, ds[i].Entry, 1000, &p.out)
		}
		p.out.Reset()
		p.dispatch()
		p.ack()
	}
}

// BenchmarkRequeue100k requeues 100,000 messages, oldest or newest first, and delivers them again.
// The time is per message.
func BenchmarkRequeue100k(b *testing.B) {
	const n = 100_000
	for _, order := range []string{"oldest", "newest"} {
		b.Run(order, func(b *testing.B) {
			p := newPass(Plain, 1)
			for i := range n {
				p.q.Publish(p.ms[i%burst], true, 1000, &p.out)
			}
			c := &Consumer{Receiver: always{}}
			p.q.AddConsumer(c)
			held := make([]Delivery, n)
			copy(held, p.dispatch())
			for b.Loop() {
				for i := range held {
					d := &held[i]
					if order == "newest" {
						d = &held[n-1-i]
					}
					p.q.Requeue(c, d.Entry, 1000, &p.out)
				}
				p.out.Deliver = p.out.Deliver[:0]
				p.dispatch()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/msg")
		})
	}
}

// BenchmarkBacklog fills a queue with a million messages and drains it. It reports the longest stall of
// a single publish beside the time per message.
func BenchmarkBacklog(b *testing.B) {
	const n = 1_000_000
	var fill, drain, worst time.Duration
	for b.Loop() {
		p := newPass(Plain, 1)
		start := time.Now()
		for i := 0; i < n; i += burst {
			before := time.Now()
			p.publish(burst)
			worst = max(worst, time.Since(before))
		}
		fill += time.Since(start)
		c := &Consumer{Receiver: always{}, NoAck: true}
		p.q.AddConsumer(c)
		start = time.Now()
		for p.q.Dispatch(1000, 2, burst, &p.out) {
			p.out.Reset()
		}
		drain += time.Since(start)
		if p.q.Len() != 0 {
			b.Fatal(p.q.Len())
		}
	}
	b.ReportMetric(float64(fill)/float64(b.N)/n, "fill-ns/msg")
	b.ReportMetric(float64(drain)/float64(b.N)/n, "drain-ns/msg")
	b.ReportMetric(float64(worst.Microseconds()), "worst-us/burst")
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	if checking {
		t.Skip("the checks of race builds allocate")
	}
	levels := Plain
	levels.MaxPriority = 9
	for name, cfg := range map[string]Config{"plain": Plain, "priorities": levels} {
		t.Run(name, func(t *testing.T) {
			p := newPass(cfg, 10)
			p.q.AddConsumer(&Consumer{Receiver: always{}, Prefetch: 1000})
			one := func() {
				p.publish(5)
				ds := p.dispatch()
				p.q.Requeue(ds[4].Consumer, ds[4].Entry, 1000, &p.out)
				p.out.Deliver = p.out.Deliver[:4]
				p.dispatch()
				p.ack()
			}
			one()
			if n := testing.AllocsPerRun(1000, one); n != 0 {
				t.Errorf("%v allocations for 5 messages", n)
			}
			if p.q.Len()+p.q.Unacked() != 0 {
				t.Error(fmt.Sprint("left ", p.q.Len(), p.q.Unacked()))
			}
		})
	}
}

// BenchmarkDelayed is the life of n persistent messages with a delay: published, paged out while there
// are too many, due, dispatched, acked. It reports the memory of the queue for each and in all while
// none is due, and the longest time that one call had the queue.
func BenchmarkDelayed(b *testing.B) {
	const month = 30 * 24 * 3600 * 1000
	for _, bc := range []struct {
		name  string
		n     int
		delay func(r *rand.Rand) int64
	}{
		{"same/1M", 1_000_000, func(*rand.Rand) int64 { return month }},
		{"random/1M", 1_000_000, func(r *rand.Rand) int64 { return month + r.Int64N(month) }},
		{"random/5M", 5_000_000, func(r *rand.Rand) int64 { return month + r.Int64N(month) }},
	} {
		b.Run(bc.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				r := rand.New(rand.NewPCG(1, 2))
				heap := func() int64 {
					var m runtime.MemStats
					runtime.GC()
					runtime.ReadMemStats(&m)
					return int64(m.HeapAlloc)
				}
				empty := heap()
				q := newQueue(Plain)
				var fx Effects
				var paged []*message.Message
				now, pos, worst := int64(1_700_000_000_000), uint64(1<<25), time.Duration(0)
				timed := func(f func()) {
					began := time.Now()
					f()
					worst = max(worst, time.Since(began))
				}
				b.StartTimer()
				began := time.Now()
				for i := range bc.n {
					size := 200 + r.IntN(100)
					m := message.New(message.Attributes{Expiration: -1, Delay: bc.delay(r)}, nil, nil, nil, size)
					q.Publish(m, true, now+int64(i/100), &fx)
					m.SetPosition(pos)
					if pos += uint64(size + 80); i%burst != 0 {
						continue
					}
					for more := q.Resident() > 8<<20; more; {
						timed(func() { more = q.PageOut(4<<20, pos, 16<<10, &paged) })
						for _, m := range paged {
							m.Release()
						}
						paged = paged[:0]
					}
				}
				published := time.Since(began)
				b.StopTimer()
				held := heap() - empty
				b.ReportMetric(float64(held)/float64(bc.n), "B/msg")
				b.ReportMetric(float64(held)/(1<<20), "MiB")
				c := &Consumer{Receiver: always{}}
				q.AddConsumer(c)
				b.StartTimer()
				began = time.Now()
				for now += 3 * month; q.Delayed()+q.Len() > 0; {
					timed(func() { q.Dispatch(now, pos, 128, &fx) })
					for i := range fx.Deliver {
						e := &fx.Deliver[i].Entry
						q.Ack(c, e)
						if e.Msg != nil {
							e.Msg.Release()
						}
					}
					fx.Reset()
				}
				b.ReportMetric(float64(published.Nanoseconds())/float64(bc.n), "ns/publish")
				b.ReportMetric(float64(time.Since(began).Nanoseconds())/float64(bc.n), "ns/due")
				b.ReportMetric(float64(worst.Microseconds())/1000, "longest-ms")
			}
		})
	}
}
