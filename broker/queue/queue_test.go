package queue

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/firemq/firemq/broker/message"
)

// gate is a Receiver whose consumer may get n more deliveries, any number when negative.
type gate struct {
	n      int
	asked  int
	denied int
}

func (g *gate) Reserve() bool {
	g.asked++
	if g.n == 0 {
		g.denied++
		return false
	}
	g.n--
	return true
}

func (g *gate) Room() (uint64, any) {
	if g.n < 0 {
		return Unlimited, nil
	}
	return uint64(g.n), g
}

// rig drives one queue and checks it after every step.
type rig struct {
	testing.TB
	q         *Queue
	now       int64
	committed uint64
	out       Effects
	held      []Delivery // delivered and not settled
}

func newQueue(cfg Config) *Queue {
	q := new(Queue)
	q.Init(cfg)
	return q
}

func newRig(t testing.TB, change func(c *Config)) *rig {
	cfg := Plain
	if change != nil {
		change(&cfg)
	}
	return &rig{TB: t, q: newQueue(cfg), now: 1000, committed: 1}
}

func (r *rig) ok() {
	r.Helper()
	if err := r.q.check(); err != nil {
		r.Fatal(err)
	}
}

type sent struct {
	size       int
	expiration int64 // 0: none; use -1 for an expiration of 0
	delay      int64
	priority   uint8
	journaled  bool
	times      int
}

func (s sent) message() *message.Message {
	a := message.Attributes{Priority: s.priority, Expiration: s.expiration, Delay: s.delay}
	switch s.expiration {
	case 0:
		a.Expiration = -1
	case -1:
		a.Expiration = 0
	}
	return message.New(a, nil, nil, nil, s.size)
}

// publish sends each, and says whether the last one was taken.
func (r *rig) publish(all ...sent) (e Entry, ok bool) {
	r.Helper()
	for _, s := range all {
		for range max(s.times, 1) {
			e, ok = r.q.Publish(s.message(), s.journaled, r.now, &r.out)
			r.ok()
		}
	}
	return e, ok
}

func (r *rig) dispatch() bool {
	r.Helper()
	before := len(r.out.Deliver)
	more := r.q.Dispatch(r.now, r.committed, math.MaxInt, &r.out)
	r.held = append(r.held, r.out.Deliver[before:]...)
	r.ok()
	return more
}

func (r *rig) consumer(change func(c *Consumer)) *Consumer {
	r.Helper()
	c := &Consumer{Receiver: &gate{n: -1}}
	if change != nil {
		change(c)
	}
	r.q.AddConsumer(c)
	r.ok()
	return c
}

func (r *rig) requeue(ds ...Delivery) {
	r.Helper()
	for _, d := range ds {
		r.q.Requeue(d.Consumer, d.Entry, r.now, &r.out)
		r.ok()
	}
	r.q.Requeued(&r.out)
	r.ok()
}

func (r *rig) ack(ds ...Delivery) {
	r.Helper()
	for i := range ds {
		r.q.Ack(ds[i].Consumer, &ds[i].Entry)
		r.ok()
	}
}

// seen describes and clears the effects: "1 2" are deliveries, "!3maxlen" a dead message.
func (r *rig) seen() string {
	var s []string
	for _, d := range r.out.Deliver {
		s = append(s, fmt.Sprint(d.Entry.Seq))
	}
	for _, d := range r.out.Dead {
		s = append(s, fmt.Sprintf("!%d%s", d.Entry.Seq, [...]string{"rejected", "expired", "maxlen", "limit"}[d.Reason]))
	}
	r.out.Reset()
	return strings.Join(s, " ")
}

func (r *rig) want(effects string, ready, unacked int) {
	r.Helper()
	if got := r.seen(); got != effects {
		r.Errorf("effects %q, want %q", got, effects)
	}
	if r.q.Len() != ready || r.q.Unacked() != unacked {
		r.Errorf("%d ready, %d unacked, want %d, %d", r.q.Len(), r.q.Unacked(), ready, unacked)
	}
}

func prefetch(n uint32) func(*Consumer) { return func(c *Consumer) { c.Prefetch = n } }

func TestDelivery(t *testing.T) {
	for _, tc := range []struct {
		rule   string
		config func(c *Config)
		run    func(r *rig)
	}{
		{"messages leave in publish order", nil, func(r *rig) {
			r.publish(sent{times: 3})
			r.consumer(nil)
			r.dispatch()
			r.want("1 2 3", 0, 3)
		}},
		{"prefetch limits what is unacked, and an ack makes room", nil, func(r *rig) {
			r.publish(sent{times: 5})
			c := r.consumer(prefetch(2))
			r.dispatch()
			r.want("1 2", 3, 2)
			r.ack(r.held[0])
			if n := r.q.Inflight(c); n != 1 {
				r.Errorf("inflight %d, want 1", n)
			}
			r.dispatch()
			r.want("3", 2, 2)
		}},
		{"no-ack deliveries are final and know no prefetch", nil, func(r *rig) {
			r.publish(sent{times: 3})
			r.consumer(func(c *Consumer) { c.NoAck, c.Prefetch = true, 1 })
			r.dispatch()
			r.want("1 2 3", 0, 0)
		}},
		{"credit limits deliveries, acked or not", nil, func(r *rig) {
			r.publish(sent{times: 4})
			c := r.consumer(func(c *Consumer) { c.Credited, c.Prefetch = true, 1 })
			r.dispatch()
			r.want("", 4, 0)
			r.q.Grant(c, 2)
			r.dispatch()
			r.want("1 2", 2, 2)
			r.ack(r.held...)
			r.dispatch()
			r.want("", 2, 0)
			for _, n := range []uint64{1, math.MaxUint64, math.MaxUint64} {
				r.q.Grant(c, n)
				r.ok()
			}
			r.dispatch()
			r.want("3 4", 0, 2)
		}},
		{"a prefetch of the largest number works", nil, func(r *rig) {
			r.publish(sent{})
			r.consumer(prefetch(math.MaxUint32))
			r.dispatch()
			r.want("1", 0, 1)
		}},
		{"the limit of a call is kept, and more says that work is left", nil, func(r *rig) {
			r.publish(sent{times: 3})
			r.consumer(nil)
			if !r.q.Dispatch(r.now, r.committed, 2, &r.out) {
				r.Error("no more after 2 of 3")
			}
			if r.q.Dispatch(r.now, r.committed, 1, &r.out) {
				r.Error("more after 3 of 3")
			}
			r.want("1 2 3", 0, 3)
		}},
		{"no more when the consumers are full", nil, func(r *rig) {
			r.publish(sent{times: 3})
			r.consumer(prefetch(2))
			if r.q.Dispatch(r.now, r.committed, 2, &r.out) {
				r.Error("more with nobody to take it")
			}
			r.want("1 2", 1, 2)
		}},
		{"a journaled message waits until its record is appended and committed", nil, func(r *rig) {
			e, _ := r.publish(sent{journaled: true}, sent{})
			r.consumer(nil)
			r.dispatch()
			r.want("", 2, 0)
			head := r.q.ready.head().Msg
			head.SetPosition(10)
			r.committed = 10
			r.dispatch()
			r.want("", 2, 0)
			if !r.q.Waiting(10) || r.q.Waiting(11) {
				r.Error("Waiting does not follow the committed position")
			}
			r.committed = 11
			r.dispatch()
			r.want("1 2", 0, 2)
			if e.Seq != 2 || r.q.Waiting(0) {
				r.Errorf("seq %d, or an empty queue waits", e.Seq)
			}
		}},
		{"a get does not wait for the journal", nil, func(r *rig) {
			r.publish(sent{journaled: true})
			if !r.q.Waiting(r.committed) {
				r.Error("a message that is not appended does not wait")
			}
			got, ok := r.q.Get(r.now, &r.out)
			if !ok || got.Seq != 1 || got.Redelivered {
				r.Errorf("got %+v, %v", got, ok)
			}
			r.want("", 0, 1)
			r.q.Ack(nil, &got)
			r.want("", 0, 0)
		}},
		{"a message whose body is in the journal alone is committed", nil, func(r *rig) {
			r.q.Restore(Entry{Seq: 7, Pos: 99, Size: 3, Journaled: true})
			r.consumer(nil)
			r.dispatch()
			if pos := r.held[0].Entry.Pos; pos != 99 {
				r.Errorf("position %d, want 99", pos)
			}
			r.want("7", 0, 1)
			if n := r.q.NextSeq(); n != 8 {
				r.Errorf("next seq %d, want 8", n)
			}
		}},
		{"get takes the head, and an empty queue has none", nil, func(r *rig) {
			if _, ok := r.q.Get(r.now, &r.out); ok || r.q.Waiting(r.committed) {
				r.Error("an empty queue gave a message, or waits")
			}
			r.publish(sent{size: 4}, sent{size: 5})
			e, _ := r.q.Get(r.now, &r.out)
			if e.Seq != 1 || r.q.Bytes() != 5 || r.q.UnackedBytes() != 4 {
				r.Errorf("seq %d, %d and %d bytes", e.Seq, r.q.Bytes(), r.q.UnackedBytes())
			}
		}},
		{"a cancelled consumer keeps what it has and gets no more", nil, func(r *rig) {
			r.publish(sent{times: 2})
			c := r.consumer(prefetch(1))
			r.dispatch()
			r.q.RemoveConsumer(c)
			r.q.RemoveConsumer(c)
			r.ack(r.held...)
			r.dispatch()
			r.want("1", 1, 0)
		}},
		{"purge takes what is ready, not what is unacked", nil, func(r *rig) {
			r.publish(sent{times: 5})
			r.consumer(prefetch(2))
			r.dispatch()
			r.requeue(r.held[1])
			var purged []Entry
			if n := purge(r.q, &purged); n != 4 || seqs(purged) != "2 3 4 5" {
				r.Errorf("purged %d: %s", n, seqs(purged))
			}
			r.want("1 2", 0, 1)
			r.publish(sent{})
			r.dispatch()
			r.want("6", 0, 2)
		}},
		{"a closed queue gives its messages up and forgets the unacked ones by ack", nil, func(r *rig) {
			r.publish(sent{times: 2})
			c := r.consumer(prefetch(1))
			r.dispatch()
			var left []Entry
			closeQueue(r.q, &left)
			if seqs(left) != "2" || r.q.Consumers() != 0 || c.state != removed {
				r.Errorf("left %s, %d consumers", seqs(left), r.q.Consumers())
			}
			r.ack(r.held...)
			r.want("1", 0, 0)
		}},
	} {
		t.Run(tc.rule, func(t *testing.T) { tc.run(newRig(t, tc.config)) })
	}
}

func seqs(es []Entry) string {
	var s []string
	for _, e := range es {
		s = append(s, fmt.Sprint(e.Seq))
	}
	return strings.Join(s, " ")
}

func TestRequeue(t *testing.T) {
	limit := func(n int64) func(*Config) { return func(c *Config) { c.DeliveryLimit = n } }
	for _, tc := range []struct {
		rule   string
		config func(c *Config)
		run    func(r *rig)
	}{
		{"a requeued head is the next one out, redelivered", nil, func(r *rig) {
			r.publish(sent{times: 3})
			r.consumer(prefetch(1))
			r.dispatch()
			r.requeue(r.held[0])
			r.dispatch()
			r.want("1 1", 2, 1)
			if e := r.held[1].Entry; !e.Redelivered || e.Deliveries != 1 {
				r.Errorf("%+v", e)
			}
		}},
		{"requeued in any order, out in publish order", nil, func(r *rig) {
			r.publish(sent{times: 300})
			c := r.consumer(prefetch(200))
			r.dispatch()
			r.q.RemoveConsumer(c)
			rand.New(rand.NewPCG(1, 2)).Shuffle(len(r.held), func(i, j int) { r.held[i], r.held[j] = r.held[j], r.held[i] })
			r.requeue(r.held...)
			r.out.Reset()
			r.consumer(nil)
			r.dispatch()
			for i, d := range r.out.Deliver {
				if d.Entry.Seq != uint64(i+1) || d.Entry.Redelivered != (i < 200) {
					r.Fatalf("delivery %d is %+v", i, d.Entry)
				}
			}
			r.out.Reset()
			r.want("", 0, 300)
		}},
		{"some requeued, some acked", nil, func(r *rig) {
			r.publish(sent{times: 6})
			c := r.consumer(prefetch(4))
			r.dispatch()
			r.seen()
			r.requeue(r.held[3], r.held[1])
			r.ack(r.held[0], r.held[2])
			r.q.RemoveConsumer(c)
			r.consumer(nil)
			r.dispatch()
			r.want("2 4 5 6", 0, 4)
		}},
		{"a requeue to a cancelled consumer's queue", nil, func(r *rig) {
			r.publish(sent{times: 2})
			c := r.consumer(nil)
			r.dispatch()
			r.q.RemoveConsumer(c)
			r.requeue(r.held[1], r.held[0])
			r.consumer(nil)
			r.seen()
			r.dispatch()
			r.want("1 2", 0, 2)
		}},
		{"a got message goes back to its place", nil, func(r *rig) {
			r.publish(sent{times: 2})
			e, _ := r.q.Get(r.now, &r.out)
			r.q.Requeue(nil, e, r.now, &r.out)
			e, ok := r.q.Get(r.now, &r.out)
			if !ok || e.Seq != 1 || !e.Redelivered {
				r.Errorf("got %+v, %v", e, ok)
			}
		}},
		{"within its priority level", func(c *Config) { c.MaxPriority = 3 }, func(r *rig) {
			r.publish(sent{priority: 1}, sent{priority: 2}, sent{priority: 1}, sent{priority: 2})
			c := r.consumer(nil)
			r.dispatch()
			r.want("2 4 1 3", 0, 4)
			r.q.RemoveConsumer(c)
			r.requeue(r.held...)
			r.consumer(nil)
			r.dispatch()
			r.want("2 4 1 3", 0, 4)
		}},
		{"past the delivery limit it dies", limit(2), func(r *rig) {
			r.publish(sent{})
			r.consumer(prefetch(1))
			for range 3 {
				r.dispatch()
				r.requeue(r.held[len(r.held)-1])
				r.seenOf("1", &r.out.Deliver)
			}
			r.want("!1limit", 0, 0)
		}},
		{"a delivery limit of 0 allows none", limit(0), func(r *rig) {
			r.publish(sent{})
			r.consumer(nil)
			r.dispatch()
			r.requeue(r.held...)
			r.want("1 !1limit", 0, 0)
		}},
		{"without a limit it comes back for ever, and the count stops", nil, func(r *rig) {
			r.q.Restore(Entry{Seq: 1, Deliveries: math.MaxUint16})
			r.consumer(nil)
			r.dispatch()
			r.requeue(r.held...)
			r.dispatch()
			r.want("1 1", 0, 1)
			if n := r.held[1].Entry.Deliveries; n != math.MaxUint16 {
				r.Errorf("deliveries %d", n)
			}
		}},
		{"the largest limit still ends", limit(math.MaxInt64), func(r *rig) {
			r.q.Restore(Entry{Seq: 1, Deliveries: math.MaxUint16 - 1})
			r.consumer(nil)
			r.dispatch()
			r.requeue(r.held...)
			r.want("1 !1limit", 0, 0)
		}},
	} {
		t.Run(tc.rule, func(t *testing.T) { tc.run(newRig(t, tc.config)) })
	}
}

// seenOf checks and clears the deliveries alone.
func (r *rig) seenOf(want string, ds *[]Delivery) {
	r.Helper()
	var es []Entry
	for _, d := range *ds {
		es = append(es, d.Entry)
	}
	if got := seqs(es); got != want {
		r.Errorf("delivered %q, want %q", got, want)
	}
	*ds = nil
}

func TestTimeToLive(t *testing.T) {
	ttl := func(ms int64) func(*Config) { return func(c *Config) { c.MessageTTL = ms } }
	for _, tc := range []struct {
		rule   string
		config func(c *Config)
		run    func(r *rig)
	}{
		{"the smaller of queue and message counts", ttl(100), func(r *rig) {
			for _, c := range []struct{ expiration, want int64 }{{0, 1100}, {50, 1050}, {100, 1100}, {200, 1100}, {-1, 1000}} {
				if e, _ := r.publish(sent{expiration: c.expiration}); e.Expiry != c.want {
					r.Errorf("expiration %d: expires at %d, want %d", c.expiration, e.Expiry, c.want)
				}
			}
		}},
		{"without either a message never expires", nil, func(r *rig) {
			if e, _ := r.publish(sent{}); e.Expiry != 0 || r.q.NextExpiry() != 0 {
				r.Errorf("expires at %d", e.Expiry)
			}
		}},
		{"an endless time to live does not overflow", nil, func(r *rig) {
			if e, _ := r.publish(sent{expiration: math.MaxInt64}); e.Expiry != math.MaxInt64 {
				r.Errorf("expires at %d", e.Expiry)
			}
		}},
		{"it expires at its time, not before", ttl(100), func(r *rig) {
			r.publish(sent{})
			if at := r.q.NextExpiry(); at != 1100 {
				r.Errorf("next expiry %d, want 1100", at)
			}
			r.now = 1099
			r.q.Expire(r.now, &r.out)
			r.want("", 1, 0)
			r.now = 1100
			r.q.Expire(r.now, &r.out)
			r.want("!1expired", 0, 0)
		}},
		{"what nobody takes and nothing becomes of does not wait behind others", nil, func(r *rig) {
			r.publish(sent{})
			fleeting := Plain
			fleeting.MessageTTL, fleeting.Fleeting = 0, true
			r.q.Reconfigure(fleeting, r.now, &r.out)
			r.publish(sent{}, sent{expiration: 100})
			r.want("!2expired !3expired", 1, 0)
			r.consumer(prefetch(2))
			r.dispatch()
			r.publish(sent{})
			r.dispatch()
			r.publish(sent{})
			r.want("1 4 !5expired", 0, 2)
		}},
		{"only the head expires", nil, func(r *rig) {
			r.publish(sent{}, sent{expiration: 10})
			r.now += 20
			r.q.Expire(r.now, &r.out)
			r.want("", 2, 0)
			r.consumer(prefetch(1))
			r.dispatch()
			r.want("1 !2expired", 0, 1)
		}},
		{"an expired message is not delivered", ttl(10), func(r *rig) {
			r.publish(sent{times: 2})
			r.now += 5
			r.publish(sent{})
			r.now += 5
			r.consumer(nil)
			r.dispatch()
			r.want("3 !1expired !2expired", 0, 1)
		}},
		{"an expired message is not got", ttl(10), func(r *rig) {
			r.publish(sent{times: 2})
			r.now += 10
			if _, ok := r.q.Get(r.now, &r.out); ok {
				r.Error("got an expired message")
			}
			r.want("!1expired !2expired", 0, 0)
		}},
		{"expired while it waits for the journal", ttl(10), func(r *rig) {
			r.publish(sent{journaled: true})
			r.now += 10
			r.q.Expire(r.now, &r.out)
			r.want("!1expired", 0, 0)
		}},
		{"0 without a consumer expires at once", ttl(0), func(r *rig) {
			r.publish(sent{}, sent{journaled: true})
			r.want("!1expired !2expired", 0, 0)
		}},
		{"0 behind another waits for its turn", nil, func(r *rig) {
			r.publish(sent{}, sent{expiration: -1}, sent{})
			r.want("", 3, 0)
			r.q.Get(r.now, &r.out)
			r.q.Expire(r.now, &r.out)
			r.want("!2expired", 1, 1)
		}},
		{"0 of a lower priority is gone before a higher one comes", func(c *Config) { c.MaxPriority = 9 }, func(r *rig) {
			r.publish(sent{expiration: -1, priority: 1}, sent{priority: 5})
			r.want("!1expired", 1, 0)
		}},
		{"0 when the delay is over", nil, func(r *rig) {
			r.publish(sent{expiration: -1, delay: 10}, sent{delay: 10})
			r.now += 10
			r.q.Expire(r.now, &r.out)
			r.want("!1expired", 1, 0)
		}},
		{"0 when the delay is over beyond the consumer's room", nil, func(r *rig) {
			r.consumer(prefetch(1))
			r.publish(sent{delay: 10}, sent{expiration: -1, delay: 10}, sent{expiration: -1, delay: 10}, sent{delay: 10})
			r.now += 10
			r.q.Expire(r.now, &r.out)
			r.want("!2expired !3expired", 2, 0)
			r.dispatch()
			r.want("1", 1, 1)
		}},
		{"0 with a ready consumer is delivered", ttl(0), func(r *rig) {
			r.consumer(nil)
			r.publish(sent{times: 3})
			r.now++
			r.q.Expire(r.now, &r.out)
			r.dispatch()
			r.want("1 2 3", 0, 3)
		}},
		{"0 with a ready consumer is delivered after the journal's commit", ttl(0), func(r *rig) {
			r.consumer(nil)
			var ms []*message.Message
			for range 2 {
				e, _ := r.publish(sent{journaled: true})
				ms = append(ms, e.Msg)
			}
			r.dispatch()
			r.now += 100
			r.q.Expire(r.now, &r.out)
			if at := r.q.NextExpiry(); at != 0 {
				r.Errorf("next expiry %d of messages in transit", at)
			}
			r.want("", 2, 0)
			ms[0].SetPosition(5)
			ms[1].SetPosition(6)
			r.committed = 7
			r.dispatch()
			r.want("1 2", 0, 2)
		}},
		{"0 beyond the consumer's room expires", ttl(0), func(r *rig) {
			r.consumer(prefetch(2))
			r.publish(sent{times: 4})
			r.dispatch()
			r.want("1 2 !3expired !4expired", 0, 2)
		}},
		{"0 expires when the consumer's connection is full", ttl(0), func(r *rig) {
			r.consumer(func(c *Consumer) { c.Receiver = &gate{n: 1} })
			r.publish(sent{times: 2})
			r.dispatch()
			r.want("1 !2expired", 0, 1)
		}},
		{"0 expires when the consumer leaves while the journal is awaited", ttl(0), func(r *rig) {
			c := r.consumer(nil)
			r.publish(sent{journaled: true})
			r.dispatch()
			r.q.RemoveConsumer(c)
			r.q.Expire(r.now, &r.out)
			r.want("!1expired", 0, 0)
		}},
		{"behind a message that is not in transit nothing is", ttl(0), func(r *rig) {
			r.q.Restore(Entry{Seq: 1})
			r.consumer(nil)
			r.publish(sent{})
			r.dispatch()
			r.want("1 !2expired", 0, 1)
		}},
		{"a requeued message keeps its expiry", ttl(50), func(r *rig) {
			r.publish(sent{})
			r.consumer(nil)
			r.dispatch()
			r.now += 60
			r.requeue(r.held...)
			r.dispatch()
			r.want("1 !1expired", 0, 0)
		}},
		{"requeued and expired before messages in transit", ttl(50), func(r *rig) {
			r.publish(sent{})
			r.consumer(nil)
			r.dispatch()
			r.now += 60
			e, _ := r.publish(sent{journaled: true})
			r.requeue(r.held...)
			r.want("1 !1expired", 1, 0)
			e.Msg.SetPosition(5)
			r.committed = 6
			r.dispatch()
			r.want("2", 0, 1)
		}},
		{"expired messages of a lower priority stay behind a higher head", func(c *Config) { c.MaxPriority = 2 }, func(r *rig) {
			r.publish(sent{priority: 2}, sent{priority: 1, expiration: 10})
			r.now += 20
			r.q.Expire(r.now, &r.out)
			r.want("", 2, 0)
		}},
		{"a new time to live is for later messages", ttl(100), func(r *rig) {
			r.publish(sent{})
			cfg := Plain
			cfg.MessageTTL = 10
			r.q.Reconfigure(cfg, r.now, &r.out)
			if e, _ := r.publish(sent{}); e.Expiry != 1010 {
				r.Errorf("expires at %d", e.Expiry)
			}
			r.now += 50
			r.q.Expire(r.now, &r.out)
			r.want("", 2, 0)
		}},
		{"one call expires a bounded number, and says when to go on", ttl(1), func(r *rig) {
			for range 2*sweep + 1 {
				r.q.Publish(sent{}.message(), false, r.now, &r.out)
			}
			r.now += 1
			for left := 2*sweep + 1; left > 0; left -= sweep {
				if at := r.q.NextExpiry(); at == 0 || at > r.now {
					r.Fatalf("%d left, next expiry %d", left, at)
				}
				r.out.Reset()
				r.q.Expire(r.now, &r.out)
				if n := len(r.out.Dead); n != min(left, sweep) {
					r.Fatalf("%d expired at once with %d left", n, left)
				}
			}
			r.ok()
		}},
	} {
		t.Run(tc.rule, func(t *testing.T) { tc.run(newRig(t, tc.config)) })
	}
}

func TestLengthLimits(t *testing.T) {
	limits := func(length, bytes int64, o Overflow) func(*Config) {
		return func(c *Config) { c.MaxLength, c.MaxBytes, c.Overflow = length, bytes, o }
	}
	for _, tc := range []struct {
		rule   string
		config func(c *Config)
		run    func(r *rig)
	}{
		{"drop-head drops the oldest", limits(2, None, DropHead), func(r *rig) {
			if _, ok := r.publish(sent{times: 4}); !ok {
				r.Error("refused")
			}
			r.want("!1maxlen !2maxlen", 2, 0)
		}},
		{"bytes count bodies", limits(None, 10, DropHead), func(r *rig) {
			r.publish(sent{size: 4}, sent{size: 4}, sent{size: 2}, sent{size: 7})
			r.want("!1maxlen !2maxlen", 2, 0)
		}},
		{"a body larger than all bytes is dropped itself, with all before it", limits(None, 10, DropHead), func(r *rig) {
			r.publish(sent{size: 4}, sent{size: 11}, sent{size: 10})
			r.want("!1maxlen !2maxlen", 1, 0)
		}},
		{"unacked messages do not count", limits(2, None, DropHead), func(r *rig) {
			r.consumer(prefetch(2))
			r.publish(sent{times: 2})
			r.dispatch()
			r.publish(sent{times: 2})
			r.dispatch()
			r.want("1 2", 2, 2)
		}},
		{"length 0 keeps nothing", limits(0, None, DropHead), func(r *rig) {
			r.publish(sent{times: 2})
			r.want("!1maxlen !2maxlen", 0, 0)
		}},
		{"what expires at once takes nobody's place", limits(1, None, RejectPublish), func(r *rig) {
			if _, ok := r.publish(sent{expiration: -1, times: 2}, sent{}); !ok {
				r.Error("refused")
			}
			if _, ok := r.publish(sent{expiration: -1}); ok {
				r.Error("taken beside another")
			}
			r.want("!1expired !2expired", 1, 0)
		}},
		{"what has expired takes nobody's place before the timer comes", limits(None, 10, RejectPublishDLX), func(r *rig) {
			r.publish(sent{size: 5, expiration: 3, times: 2})
			if _, ok := r.publish(sent{}, sent{size: 7}); ok {
				r.Error("taken over the limit")
			}
			r.want("!0maxlen", 3, 0)
			r.now += 3
			if _, ok := r.publish(sent{size: 8}); !ok {
				r.Error("refused")
			}
			r.want("!1expired !2expired", 2, 0)
		}},
		{"what expires at once does so in front of a limit", limits(1, None, DropHead), func(r *rig) {
			r.publish(sent{expiration: -1}, sent{}, sent{expiration: -1, times: 2}, sent{times: 2})
			r.want("!1expired !2maxlen !3expired !4expired !5maxlen", 1, 0)
		}},
		{"length 0 drops what would expire at once", limits(0, None, DropHead), func(r *rig) {
			r.publish(sent{expiration: -1})
			r.consumer(prefetch(1))
			r.publish(sent{expiration: -1, times: 2})
			r.dispatch()
			r.want("2 !1maxlen !3maxlen", 0, 1)
		}},
		{"beyond the consumer's room what expires at once takes nobody's place", limits(1, None, RejectPublish), func(r *rig) {
			r.consumer(prefetch(1))
			if _, ok := r.publish(sent{expiration: -1, journaled: true, times: 3}, sent{journaled: true}); !ok {
				r.Error("refused")
			}
			if _, ok := r.publish(sent{expiration: -1}); ok {
				r.Error("taken beside another")
			}
			r.want("!2expired !3expired", 2, 0)
		}},
		{"beyond the consumer's room a limit lets go of priorities as they came", func(c *Config) {
			c.MaxLength, c.MaxPriority = 2, 9
		}, func(r *rig) {
			r.consumer(prefetch(1))
			r.publish(sent{times: 4}, sent{priority: 1}, sent{priority: 2, expiration: -1})
			r.dispatch()
			r.want("1 !2maxlen !5maxlen !6maxlen", 2, 1)
		}},
		{"what the consumer has room for takes no bytes", limits(None, 7, RejectPublish), func(r *rig) {
			r.consumer(prefetch(2))
			if _, ok := r.publish(sent{size: 3, times: 4}); !ok {
				r.Error("refused")
			}
			if _, ok := r.publish(sent{size: 2}); ok {
				r.Error("taken over the limit")
			}
			if _, ok := r.publish(sent{size: 1}); !ok {
				r.Error("refused")
			}
			r.dispatch()
			r.want("1 2", 3, 2)
		}},
		{"beyond the consumer's room a limit counts as if each had come alone", limits(1, None, DropHead), func(r *rig) {
			r.consumer(prefetch(1))
			r.publish(sent{times: 2}, sent{expiration: -1, times: 2}, sent{times: 2})
			r.dispatch()
			r.want("1 !2maxlen !3expired !4expired !5maxlen", 1, 1)
		}},
		{"what comes back to others in transit is dropped before it expires", limits(0, None, DropHead), func(r *rig) {
			r.consumer(nil)
			r.publish(sent{expiration: -1})
			r.dispatch()
			r.publish(sent{journaled: true})
			r.requeue(r.held[0])
			r.want("1 !1maxlen", 1, 0)
		}},
		{"length 0 lets through what a ready consumer takes", limits(0, None, DropHead), func(r *rig) {
			r.consumer(prefetch(2))
			r.publish(sent{times: 3})
			r.want("", 3, 0)
			r.dispatch()
			r.want("1 2 !3maxlen", 0, 2)
		}},
		{"length 0 lets through what waits for the journal alone", limits(0, None, DropHead), func(r *rig) {
			r.consumer(nil)
			e, _ := r.publish(sent{journaled: true})
			r.dispatch()
			r.want("", 1, 0)
			e.Msg.SetPosition(1)
			r.committed = 2
			r.dispatch()
			r.want("1", 0, 1)
		}},
		{"drop-head drops what is not committed too", limits(1, None, DropHead), func(r *rig) {
			r.publish(sent{journaled: true, times: 2})
			r.want("!1maxlen", 1, 0)
		}},
		{"drop-head with priorities drops what would be delivered next", func(c *Config) { c.MaxLength, c.MaxPriority = 2, 5 }, func(r *rig) {
			r.publish(sent{priority: 1}, sent{priority: 5}, sent{priority: 3})
			r.want("!2maxlen", 2, 0)
		}},
		{"drop-head after a requeue drops the requeued head", limits(2, None, DropHead), func(r *rig) {
			r.publish(sent{times: 2})
			c := r.consumer(prefetch(1))
			r.dispatch()
			r.publish(sent{})
			r.want("1", 2, 1)
			r.q.RemoveConsumer(c)
			r.requeue(r.held...)
			r.want("!1maxlen", 2, 0)
		}},
		{"a requeue with OfferFirst goes to a consumer with room, and the length spares it", func(c *Config) { c.MaxLength, c.OfferFirst = 1, true }, func(r *rig) {
			r.consumer(prefetch(1))
			r.publish(sent{})
			r.dispatch()
			r.publish(sent{})
			r.requeue(r.held...)
			r.dispatch()
			r.want("1 1", 1, 1)
		}},
		{"a requeue with OfferFirst is dropped once nobody takes it", func(c *Config) { c.MaxLength, c.OfferFirst = 1, true }, func(r *rig) {
			c := r.consumer(prefetch(1))
			r.publish(sent{})
			r.dispatch()
			r.publish(sent{})
			r.q.RemoveConsumer(c)
			r.requeue(r.held...)
			r.dispatch()
			r.want("1 !1maxlen", 1, 0)
		}},
		{"a requeue with OfferFirst meets length 0 and is offered among what is in transit", func(c *Config) { c.MaxLength, c.OfferFirst = 0, true }, func(r *rig) {
			r.consumer(nil)
			r.publish(sent{})
			r.dispatch()
			r.publish(sent{})
			r.requeue(r.held...)
			r.dispatch()
			r.want("1 1 2", 0, 2)
		}},
		{"a requeue meets length 0 although a consumer is ready", limits(0, None, DropHead), func(r *rig) {
			r.consumer(nil)
			r.publish(sent{})
			r.dispatch()
			r.requeue(r.held...)
			r.want("1 !1maxlen", 0, 0)
		}},
		{"a requeue meets length 0 and spares what is in transit", limits(0, None, DropHead), func(r *rig) {
			r.consumer(nil)
			r.publish(sent{})
			r.dispatch()
			r.publish(sent{journaled: true, times: 2})
			r.requeue(r.held...)
			r.want("1 !1maxlen", 2, 0)
		}},
		{"a requeue spares what is in transit beyond the length", limits(1, None, DropHead), func(r *rig) {
			r.consumer(nil)
			r.publish(sent{})
			r.dispatch()
			r.publish(sent{journaled: true, times: 3})
			r.requeue(r.held...)
			r.dispatch()
			r.want("1 1", 3, 1)
		}},
		{"reject-publish refuses before the enqueue", limits(2, None, RejectPublish), func(r *rig) {
			if _, ok := r.publish(sent{times: 2}); !ok {
				r.Error("refused below the limit")
			}
			if _, ok := r.publish(sent{}); ok {
				r.Error("accepted above the limit")
			}
			r.want("", 2, 0)
			if n := r.q.NextSeq(); n != 3 {
				r.Errorf("next seq %d, want 3: a refused message has no number", n)
			}
		}},
		{"reject-publish counts a room that consumers share once", limits(1, None, RejectPublish), func(r *rig) {
			g := &gate{n: 2}
			r.consumer(func(c *Consumer) { c.Receiver = g })
			r.consumer(func(c *Consumer) { c.Receiver = g })
			accepted := 0
			for range 10 {
				if _, ok := r.publish(sent{journaled: true}); ok {
					accepted++
				}
			}
			if accepted != 3 {
				r.Errorf("accepted %d, want 1 and the 2 that are taken", accepted)
			}
		}},
		{"reject-publish by bytes", limits(None, 10, RejectPublish), func(r *rig) {
			r.publish(sent{size: 6})
			if _, ok := r.publish(sent{size: 5}); ok {
				r.Error("accepted 11 of 10 bytes")
			}
			if _, ok := r.publish(sent{size: 4}); !ok {
				r.Error("refused 10 of 10 bytes")
			}
			r.want("", 2, 0)
		}},
		{"reject-publish with length 0 refuses with a consumer ready", limits(0, None, RejectPublish), func(r *rig) {
			r.consumer(nil)
			if _, ok := r.publish(sent{}); ok {
				r.Error("accepted")
			}
		}},
		{"reject-publish with a body larger than all bytes refuses with a consumer ready", limits(None, 5, RejectPublish), func(r *rig) {
			r.consumer(nil)
			if _, ok := r.publish(sent{size: 6}); ok {
				r.Error("accepted")
			}
		}},
		{"reject-publish counts what no consumer has room for", limits(2, None, RejectPublish), func(r *rig) {
			r.consumer(prefetch(3))
			r.consumer(prefetch(1))
			accepted := 0
			for range 10 {
				if _, ok := r.publish(sent{}); ok {
					accepted++
				}
			}
			if accepted != 6 {
				r.Errorf("accepted %d, want room for 4 and length 2", accepted)
			}
			r.dispatch()
			r.want("1 2 3 4", 2, 4)
		}},
		{"reject-publish by bytes lets through what consumers take", limits(None, 10, RejectPublish), func(r *rig) {
			r.consumer(nil)
			r.publish(sent{size: 6, times: 5})
			r.dispatch()
			r.want("1 2 3 4 5", 0, 5)
		}},
		{"reject-publish by bytes counts what no consumer has room for", limits(None, 10, RejectPublish), func(r *rig) {
			r.consumer(prefetch(1))
			r.publish(sent{size: 6})
			if _, ok := r.publish(sent{size: 6}); !ok {
				r.Error("refused although the first is as good as gone")
			}
			if _, ok := r.publish(sent{size: 5}); ok {
				r.Error("accepted with a second message that stays")
			}
			if _, ok := r.publish(sent{size: 4}); !ok {
				r.Error("refused although it fits beside the second")
			}
			r.dispatch()
			r.want("1", 2, 1)
		}},
		{"requeues may exceed the limit of reject-publish", limits(1, None, RejectPublish), func(r *rig) {
			r.publish(sent{})
			c := r.consumer(nil)
			r.dispatch()
			r.q.RemoveConsumer(c)
			r.publish(sent{})
			r.requeue(r.held...)
			r.want("1", 2, 0)
		}},
		{"reject-publish-dlx hands the refused message out with its own reference", limits(1, None, RejectPublishDLX), func(r *rig) {
			r.publish(sent{})
			m := sent{size: 3}.message()
			if _, ok := r.q.Publish(m, true, r.now, &r.out); ok {
				r.Error("accepted")
			}
			d := r.out.Dead[0]
			if d.Entry.Msg != m || d.Entry.Size != 3 || d.Entry.Journaled {
				r.Errorf("dead %+v", d.Entry)
			}
			m.Release()
			d.Entry.Msg.Release()
			r.want("!0maxlen", 1, 0)
		}},
		{"a smaller limit takes effect at once", nil, func(r *rig) {
			r.publish(sent{times: 5})
			cfg := Plain
			cfg.MaxLength = 2
			r.q.Reconfigure(cfg, r.now, &r.out)
			r.want("!1maxlen !2maxlen !3maxlen", 2, 0)
		}},
		{"a smaller limit of reject-publish drops nothing", nil, func(r *rig) {
			r.publish(sent{times: 5})
			cfg := Plain
			cfg.MaxLength, cfg.Overflow = 2, RejectPublish
			r.q.Reconfigure(cfg, r.now, &r.out)
			r.want("", 5, 0)
		}},
		{"priorities and single active consumer cannot be changed", func(c *Config) { c.MaxPriority, c.SingleActive = 5, true }, func(r *rig) {
			r.q.Reconfigure(Plain, r.now, &r.out)
			r.publish(sent{priority: 1}, sent{priority: 9}, sent{priority: 4})
			a := r.consumer(nil)
			r.consumer(nil)
			r.dispatch()
			for _, d := range r.held {
				if d.Consumer != a {
					r.Error("delivered to an inactive consumer")
				}
			}
			r.consumer(nil)
			r.publish(sent{})
			r.dispatch()
			r.want("2 3 1 4", 0, 4)
		}},
		{"shrinking goes on in bounded steps", nil, func(r *rig) {
			for range 2*sweep + 10 {
				r.q.Publish(sent{}.message(), false, r.now, &r.out)
			}
			cfg := Plain
			cfg.MaxLength = 5
			r.q.Reconfigure(cfg, r.now, &r.out)
			if n := len(r.out.Dead); n != sweep || r.q.NextExpiry() != 1 {
				r.Errorf("%d dropped, next expiry %d", n, r.q.NextExpiry())
			}
			for r.q.NextExpiry() == 1 {
				r.q.Expire(r.now, &r.out)
			}
			r.out.Reset()
			r.want("", 5, 0)
		}},
		{"a recovered queue over its limit is trimmed by the first Expire", limits(1, None, DropHead), func(r *rig) {
			r.q.Restore(Entry{Seq: 1})
			r.q.Restore(Entry{Seq: 5})
			if r.q.NextExpiry() != 1 {
				r.Error("nothing due")
			}
			r.q.Expire(r.now, &r.out)
			r.want("!1maxlen", 1, 0)
		}},
	} {
		t.Run(tc.rule, func(t *testing.T) { tc.run(newRig(t, tc.config)) })
	}
}

func TestPriorities(t *testing.T) {
	levels := func(n int) func(*Config) { return func(c *Config) { c.MaxPriority = n } }
	for _, tc := range []struct {
		rule      string
		config    func(c *Config)
		published []uint8
		want      string
	}{
		{"a plain queue has none", nil, []uint8{1, 9, 5}, "1 2 3"},
		{"the highest first, in order within a level", levels(10), []uint8{0, 3, 9, 3, 9, 0}, "3 5 2 4 1 6"},
		{"above the maximum counts as the maximum", levels(2), []uint8{1, 2, 255, 2}, "2 3 4 1"},
		{"a maximum of 0 is one level", levels(0), []uint8{0, 1, 7}, "1 2 3"},
		{"255 levels", levels(255), []uint8{0, 255, 64, 63, 128, 127, 1}, "2 5 6 3 4 7 1"},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			r := newRig(t, tc.config)
			for _, p := range tc.published {
				r.publish(sent{priority: p})
			}
			r.consumer(nil)
			r.dispatch()
			r.want(tc.want, 0, len(tc.published))
		})
	}
	t.Run("a later message of a higher priority is next", func(t *testing.T) {
		r := newRig(t, levels(5))
		r.publish(sent{priority: 1, times: 2})
		r.consumer(prefetch(1))
		r.dispatch()
		r.publish(sent{priority: 4})
		r.ack(r.held[0])
		r.dispatch()
		r.want("1 3", 1, 1)
	})
	t.Run("what a consumer has room for at once comes in publish order", func(t *testing.T) {
		r := newRig(t, levels(200))
		r.consumer(prefetch(3))
		r.publish(sent{priority: 1}, sent{priority: 150}, sent{priority: 70}, sent{priority: 3}, sent{priority: 99})
		r.dispatch()
		r.want("1 2 3", 2, 3)
		r.ack(r.held...)
		r.dispatch()
		r.want("5 4", 0, 2)
	})
	t.Run("in transit a message waits behind an older one of less priority", func(t *testing.T) {
		r := newRig(t, levels(5))
		r.consumer(nil)
		e, _ := r.publish(sent{priority: 1, journaled: true})
		r.publish(sent{priority: 4})
		r.dispatch()
		r.want("", 2, 0)
		if r.q.Head().Seq != 1 || !r.q.Waiting(r.committed) {
			r.Error("the first one is not next")
		}
		e.Msg.SetPosition(5)
		r.committed = 6
		r.dispatch()
		r.want("1 2", 0, 2)
	})
	t.Run("purge takes every level", func(t *testing.T) {
		r := newRig(t, levels(5))
		r.publish(sent{priority: 1}, sent{priority: 4}, sent{priority: 1})
		var out []Entry
		if n := purge(r.q, &out); n != 3 || seqs(out) != "2 1 3" {
			t.Errorf("purged %d: %s", n, seqs(out))
		}
		r.ok()
		r.publish(sent{priority: 2})
		r.consumer(nil)
		r.dispatch()
		r.want("4", 0, 1)
	})
	t.Run("a recovered priority is capped", func(t *testing.T) {
		r := newRig(t, levels(5))
		r.q.Restore(Entry{Seq: 1, Priority: 3})
		r.q.Restore(Entry{Seq: 2, Priority: 200})
		r.consumer(nil)
		r.dispatch()
		r.want("2 1", 0, 2)
	})
}

func TestConsumers(t *testing.T) {
	named := func(priority int64, prefetch uint32) func(*Consumer) {
		return func(c *Consumer) { c.Priority, c.Prefetch = priority, prefetch }
	}
	// to lists who got the deliveries, as letters in order of registration.
	to := func(r *rig, cs ...*Consumer) string {
		var s strings.Builder
		for _, d := range r.out.Deliver {
			s.WriteByte(byte('a' + slices.Index(cs, d.Consumer)))
		}
		r.out.Reset()
		return s.String()
	}
	single := func(c *Config) { c.SingleActive = true }

	for _, tc := range []struct {
		rule   string
		config func(c *Config)
		run    func(r *rig)
	}{
		{"turns within a level, also across calls", nil, func(r *rig) {
			a, b, c := r.consumer(nil), r.consumer(nil), r.consumer(nil)
			var got string
			for range 7 {
				r.publish(sent{})
				r.dispatch()
				got += to(r, a, b, c)
			}
			r.publish(sent{times: 5})
			r.dispatch()
			if got += to(r, a, b, c); got != "abcabcabcabc" {
				r.Errorf("to %s", got)
			}
		}},
		{"room in time keeps the turn, later it is the last", nil, func(r *rig) {
			a, b := r.consumer(prefetch(1)), r.consumer(prefetch(3))
			got := func(want string) {
				r.publish(sent{})
				r.dispatch()
				if got := to(r, a, b); got != want {
					r.Errorf("to %q, want %q", got, want)
				}
			}
			got("a")
			got("b")
			r.ack(r.held[0])
			got("a") // it had room when its turn came
			got("b")
			got("b") // a was passed over
			r.ack(r.held[1:]...)
			got("b")
			got("a")
		}},
		{"who has no room loses the turn to nobody too", nil, func(r *rig) {
			a, b := r.consumer(prefetch(1)), r.consumer(prefetch(1))
			r.publish(sent{times: 3})
			r.dispatch() // the third is offered to both
			r.ack(r.held[1], r.held[0])
			r.publish(sent{})
			r.dispatch()
			if got := to(r, a, b); got != "abba" {
				r.Errorf("to %q", got)
			}
		}},
		{"who has no room loses the turn to a message that dies at once, too", nil, func(r *rig) {
			a := r.consumer(prefetch(1))
			r.publish(sent{})
			r.dispatch()
			r.publish(sent{expiration: -1})
			b := r.consumer(prefetch(1))
			r.ack(r.held[0])
			r.publish(sent{})
			r.dispatch()
			if got := to(r, a, b); got != "ab" {
				r.Errorf("to %q", got)
			}
		}},
		{"who may not by its receiver likewise", nil, func(r *rig) {
			g := &gate{n: 1}
			a := r.consumer(func(c *Consumer) { c.Receiver = g })
			r.publish(sent{})
			r.dispatch()
			r.publish(sent{expiration: -1})
			b := r.consumer(prefetch(1))
			g.n = 1
			r.q.Wake(a)
			r.publish(sent{})
			r.dispatch()
			if got := to(r, a, b); got != "ab" {
				r.Errorf("to %q", got)
			}
		}},
		{"one behind others that are in transit costs the turn once they are out", nil, func(r *rig) {
			a := r.consumer(prefetch(1))
			r.publish(sent{}, sent{expiration: -1})
			r.dispatch()
			b := r.consumer(prefetch(1))
			r.ack(r.held[0])
			r.publish(sent{})
			r.dispatch()
			if got := to(r, a, b); got != "ab" {
				r.Errorf("to %q", got)
			}
		}},
		{"what is not offered, because it has expired or is refused, costs no turn", nil, func(r *rig) {
			r.publish(sent{expiration: 5})
			got, _ := r.q.Get(r.now, &r.out)
			a := r.consumer(prefetch(1))
			r.publish(sent{})
			r.dispatch()
			r.now += 10
			r.q.Requeue(nil, got, r.now, &r.out)
			r.q.Requeued(&r.out)
			r.dispatch()
			full := Plain
			full.MaxLength, full.Overflow = 0, RejectPublish
			r.q.Reconfigure(full, r.now, &r.out)
			if _, ok := r.publish(sent{}); ok {
				r.Error("a full queue took a message")
			}
			r.q.Reconfigure(Plain, r.now, &r.out)
			b := r.consumer(prefetch(1))
			r.ack(r.held[0])
			r.publish(sent{})
			r.dispatch()
			if got := to(r, a, b); got != "aa" {
				r.Errorf("to %q", got)
			}
		}},
		{"a newcomer waits its turn, a leaver loses it", nil, func(r *rig) {
			a, b := r.consumer(nil), r.consumer(nil)
			r.publish(sent{})
			r.dispatch()
			c := r.consumer(nil)
			r.publish(sent{times: 4})
			r.dispatch()
			if got := to(r, a, b, c); got != "abacb" && got != "abcab" {
				r.Errorf("to %s", got)
			}
			r.q.RemoveConsumer(b)
			r.publish(sent{times: 4})
			r.dispatch()
			if got := to(r, a, b, c); strings.Count(got, "a") != 2 || strings.Count(got, "c") != 2 {
				r.Errorf("to %s", got)
			}
		}},
		{"the higher priority first, lower ones once it is full", nil, func(r *rig) {
			a, b, c := r.consumer(named(-1, 0)), r.consumer(named(5, 2)), r.consumer(named(0, 1))
			r.publish(sent{times: 5})
			r.dispatch()
			if got := to(r, a, b, c); got != "bbcaa" {
				r.Errorf("to %s", got)
			}
			r.ack(r.held[1])
			r.publish(sent{times: 2})
			r.dispatch()
			if got := to(r, a, b, c); got != "ba" {
				r.Errorf("to %s", got)
			}
		}},
		{"a refusing receiver is passed over until Wake", nil, func(r *rig) {
			g := &gate{}
			a := r.consumer(func(c *Consumer) { c.Priority, c.Receiver = 1, g })
			b := r.consumer(nil)
			r.publish(sent{times: 3})
			r.dispatch()
			r.publish(sent{times: 2})
			r.dispatch()
			if got := to(r, a, b); got != "bbbbb" || g.asked != 1 {
				r.Errorf("to %s, asked %d times", got, g.asked)
			}
			g.n = 1
			r.q.Wake(a)
			r.q.Wake(a)
			r.publish(sent{times: 3})
			r.dispatch()
			if got := to(r, a, b); got != "abb" || g.asked != 3 {
				r.Errorf("to %s, asked %d times", got, g.asked)
			}
		}},
		{"Reserve is asked only for a delivery that follows", nil, func(r *rig) {
			g := &gate{n: -1}
			r.consumer(func(c *Consumer) { c.Receiver, c.Prefetch = g, 2 })
			r.publish(sent{times: 2}, sent{journaled: true}, sent{})
			r.dispatch()
			r.dispatch()
			r.want("1 2", 2, 2)
			if g.asked != 2 {
				r.Errorf("asked %d times for 2 deliveries", g.asked)
			}
		}},
		{"waking a full consumer gives it nothing", nil, func(r *rig) {
			c := r.consumer(prefetch(1))
			r.publish(sent{times: 2})
			r.dispatch()
			r.q.Wake(c)
			r.dispatch()
			r.want("1", 1, 1)
		}},
		{"a parked consumer can leave", nil, func(r *rig) {
			c := r.consumer(func(c *Consumer) { c.Receiver = &gate{} })
			r.publish(sent{})
			r.dispatch()
			r.q.RemoveConsumer(c)
			r.q.Wake(c)
			r.dispatch()
			r.want("", 1, 0)
		}},
		{"an ack of a parked consumer leaves it parked", nil, func(r *rig) {
			g := &gate{n: 1}
			r.consumer(func(c *Consumer) { c.Receiver, c.Prefetch = g, 5 })
			r.publish(sent{times: 2})
			r.dispatch()
			g.n = 1
			r.ack(r.held...)
			r.dispatch()
			r.want("1", 1, 0)
		}},
		{"exclusive consumers are counted", nil, func(r *rig) {
			c := r.consumer(func(c *Consumer) { c.Exclusive = true })
			if !r.q.HasExclusive() || r.q.Consumers() != 1 {
				r.Error("not counted")
			}
			r.q.RemoveConsumer(c)
			if r.q.HasExclusive() || r.q.Consumers() != 0 {
				r.Error("still counted")
			}
		}},
		{"single active: the first registered gets all, whatever its priority", single, func(r *rig) {
			a, b := r.consumer(nil), r.consumer(named(9, 0))
			r.publish(sent{times: 3})
			r.dispatch()
			if got := to(r, a, b); got != "aaa" || r.q.Active() != a {
				r.Errorf("to %s", got)
			}
		}},
		{"single active: a full one is not replaced", single, func(r *rig) {
			a, b := r.consumer(prefetch(1)), r.consumer(nil)
			r.publish(sent{times: 2})
			r.dispatch()
			if got := to(r, a, b); got != "a" {
				r.Errorf("to %s", got)
			}
		}},
		{"single active: failover by priority, then by registration, at once", single, func(r *rig) {
			a, b, c, d := r.consumer(nil), r.consumer(nil), r.consumer(named(3, 0)), r.consumer(named(3, 0))
			r.publish(sent{})
			r.dispatch()
			var got string
			for _, leaves := range []*Consumer{a, c, d} {
				r.q.RemoveConsumer(leaves)
				r.publish(sent{})
				r.dispatch()
			}
			if got += to(r, a, b, c, d); got != "acdb" {
				r.Errorf("to %s", got)
			}
			r.q.RemoveConsumer(b)
			if r.q.Active() != nil {
				r.Error("an active consumer without consumers")
			}
		}},
		{"single active: failover with a backlog", single, func(r *rig) {
			a, b := r.consumer(prefetch(1)), r.consumer(nil)
			r.publish(sent{times: 3})
			r.dispatch()
			r.q.RemoveConsumer(a)
			r.requeue(r.held[0])
			r.dispatch()
			if got := to(r, a, b); got != "abbb" {
				r.Errorf("to %s", got)
			}
		}},
		{"single active: get is allowed", single, func(r *rig) {
			r.consumer(prefetch(1))
			r.publish(sent{times: 2})
			r.dispatch()
			if e, ok := r.q.Get(r.now, &r.out); !ok || e.Seq != 2 {
				r.Errorf("got %d, %v", e.Seq, ok)
			}
		}},
	} {
		t.Run(tc.rule, func(t *testing.T) { tc.run(newRig(t, tc.config)) })
	}
}

func TestRestoreOutOfOrderPanics(t *testing.T) {
	q := newQueue(Plain)
	q.SetNextSeq(9)
	q.Restore(Entry{Seq: 3})
	if n := q.NextSeq(); n != 9 {
		t.Fatalf("next seq %d, want 9", n)
	}
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	q.Restore(Entry{Seq: 3})
}

func TestMemoryOfABacklogIsGivenBack(t *testing.T) {
	r := newRig(t, nil)
	const n = 10_000
	m := sent{}.message()
	for range n {
		r.q.Publish(m, false, r.now, &r.out)
	}
	c := r.consumer(nil)
	r.dispatch()
	f := &r.q.ready.plain.fifo
	if f.first != nil || f.last != nil {
		t.Error("the empty queue keeps chunks")
	}
	r.q.RemoveConsumer(c)
	for _, d := range r.held {
		r.q.Requeue(c, d.Entry, r.now, &r.out)
	}
	if cap(r.q.ready.plain.back) < n {
		t.Fatal("the requeued messages are not in the heap")
	}
	r.consumer(nil)
	r.dispatch()
	if k := cap(r.q.ready.plain.back); k > heapKeep {
		t.Errorf("the empty heap keeps room for %d", k)
	}
	r.publish(sent{})
	if got := len(f.first.entries); got != smallChunkEntries {
		t.Errorf("a short queue starts with a chunk of %d", got)
	}
}

// TestGetOfManyThatHaveExpired: a get looks behind some that have expired, not behind a backlog of them, for which the
// queue's lock would be held.
func TestGetOfManyThatHaveExpired(t *testing.T) {
	for _, n := range []int{1, sweep - 1, sweep, sweep + 1, 3*sweep + 5} {
		r := newRig(t, nil)
		r.publish(sent{expiration: 10, times: n}, sent{size: 7})
		r.now += 10
		for left := n; ; left -= sweep {
			r.out.Reset()
			e, ok := r.q.Get(r.now, &r.out)
			r.ok()
			if gone := min(left, sweep); len(r.out.Dead) != gone || ok != (left <= sweep) {
				t.Fatalf("%d have expired, %d are left: %d go, got one %t", n, left, len(r.out.Dead), ok)
			}
			if !ok {
				if at := r.q.NextExpiry(); at == 0 || at > r.now {
					t.Fatalf("the others are to go at %d, it is %d", at, r.now)
				}
				continue
			}
			if e.Size != 7 {
				t.Fatalf("got %+v", e)
			}
			break
		}
	}
}
