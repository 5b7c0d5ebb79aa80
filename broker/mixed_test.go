package broker

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
)

// Publishes of one turn to several queues, in any order, between some that go to all of them and some that go to none: each queue has
// its own in the order in which they were published, a queue that is full refuses its own alone, and each publish gets one
// answer, in order.
func TestAMixedTurnKeepsTheOrderOfEachQueue(t *testing.T) {
	const queues, turns = 7, 20
	for _, persistent := range []string{"transient", "persistent", "both"} {
		t.Run(persistent, func(t *testing.T) {
			o := Options{}
			if persistent != "transient" {
				o.FS, o.JournalDir = vfs.NewMem(), "journal"
			}
			b := memoryBroker(t, o)
			c := connect(t, b)
			c.ok(c.ch.Confirms())
			for i := range queues {
				d := QueueDeclare{Name: fmt.Sprint("q", i), Durable: true}
				if i == 0 {
					d.Args = table.Table{{Name: "x-max-length", Value: table.IntValue(10)}, {Name: "x-overflow", Value: table.StringValue("reject-publish")}}
				}
				c.declare(d)
				c.ok(c.BindQueue(d.Name, "amq.fanout", "", nil))
				// Another route to the same queue.
				c.ok(c.BindQueue(d.Name, "amq.direct", d.Name, nil))
			}
			seed := rand.Uint64()
			t.Log("seed", seed)
			r := rand.New(rand.NewPCG(seed, 0))
			want := make([][]string, queues)
			refused := map[uint64]bool{}
			put := func(q int, body string) bool {
				if q == 0 && len(want[0]) == 10 {
					return false
				}
				want[q] = append(want[q], body)
				return true
			}
			for range turns {
				for range 1 + r.IntN(2*maxPublishBatch) {
					q := r.IntN(queues)
					exchange, key := "", fmt.Sprint("q", q)
					took := true
					body := strconv.FormatUint(c.seq+1, 10)
					switch r.IntN(20) {
					case 0:
						exchange = "amq.fanout"
						for q := range queues {
							took = put(q, body) && took
						}
					case 1:
						key = "nowhere"
					case 2, 3, 4:
						exchange = "amq.direct"
						fallthrough
					default:
						took = put(q, body)
					}
					c.seq++
					refused[c.seq] = !took
					a := message.Attributes{Encoding: message.AMQP, Expiration: -1, Persistent: persistent == "persistent" || persistent == "both" && r.IntN(2) == 0}
					m := message.New(a, []byte(exchange), []byte(key), nil, len(body))
					copy(m.Body(), body)
					c.ok(c.ch.Publish(&Publish{Msg: m, Seq: c.seq}))
				}
				c.end()
				<-b.done.idle()
			}
			answered := uint64(0)
			for _, e := range c.sink.events {
				words := strings.Fields(e)
				seq, err := strconv.ParseUint(words[1], 10, 64)
				if err != nil || seq <= answered {
					t.Fatalf("%q comes behind %d", e, answered)
				}
				if words[0] == "nack" {
					if seq != answered+1 || !refused[seq] {
						t.Fatalf("%q comes behind %d, refused is %t", e, answered, refused[seq])
					}
				} else {
					for n := answered + 1; n <= seq; n++ {
						if refused[n] {
							t.Fatalf("%q confirms %d, which was refused", e, n)
						}
					}
				}
				answered = seq
			}
			if answered != c.seq {
				t.Fatalf("%d of %d publishes are answered", answered, c.seq)
			}
			for q := range queues {
				var got []string
				for body, ok := c.get(fmt.Sprint("q", q)); ok; body, ok = c.get(fmt.Sprint("q", q)) {
					got = append(got, body)
				}
				eq(t, fmt.Sprint("queue ", q), got, want[q])
			}
		})
	}
}

// gather keeps the order of each queue whatever it is asked to sort, and says where everything went.
func TestGather(t *testing.T) {
	all := make([]*Queue, 300)
	for i := range all {
		all[i] = &Queue{}
	}
	g := new(gathering)
	for range 200 {
		some := all[:1+rand.IntN(len(all))]
		pubs := make([]publish, 1+rand.IntN(maxPublishBatch))
		for i := range pubs {
			q := rand.IntN(len(some))
			pubs[i] = publish{queues: some[q : q+1], seq: uint64(i + 1)}
		}
		sorted := g.gather(pubs)
		first := map[*Queue]uint64{} // the first publish to each queue
		for i := len(pubs) - 1; i >= 0; i-- {
			first[pubs[i].queues[0]] = pubs[i].seq
		}
		want := slices.SortedStableFunc(slices.Values(pubs), func(a, b publish) int { return cmp.Compare(first[a.queues[0]], first[b.queues[0]]) })
		for i := range want {
			if sorted[i].seq != want[i].seq || sorted[i].queues[0] != want[i].queues[0] {
				t.Fatalf("place %d has publish %d, want %d", i, sorted[i].seq, want[i].seq)
			}
		}
		for i := range pubs {
			if sorted[g.place[i]].seq != pubs[i].seq {
				t.Fatalf("publish %d is not at place %d", pubs[i].seq, g.place[i])
			}
		}
		clear(sorted)
		clear(g.groups)
	}
}

// Messages to very many queues are taken in pieces, so that the room for their places is bounded.
func TestAFanOutIsBounded(t *testing.T) {
	for queues, want := range map[int]int{
		0: maxPublishBatch, 1: maxPublishBatch, 256: maxPublishBatch, 257: 255, 1000: 65, maxTargets: 1, 10 * maxTargets: 1,
	} {
		pubs := make([]publish, 2*maxPublishBatch)
		route := make([]*Queue, queues)
		for i := range pubs {
			pubs[i].queues = route
		}
		if n := runOf(pubs); n != want {
			t.Errorf("%d messages to %d queues are enqueued together, want %d", n, queues, want)
		}
	}
	const queues, messages = 600, 150
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	for i := range queues {
		c.ok(c.BindQueue(c.declare(QueueDeclare{Name: fmt.Sprint("q", i)}), "amq.fanout", "", nil))
	}
	c.end()
	var want []string
	for i := range messages {
		c.publish("amq.fanout", "", strconv.Itoa(i))
		want = append(want, strconv.Itoa(i))
	}
	c.ch.flush()
	if n := cap(c.turn.targets); n > 2*maxTargets {
		t.Errorf("there is room for %d places", n)
	}
	c.end()
	for _, q := range []string{"q0", "q599"} {
		got, _ := c.drain(q)
		eq(t, q, got, want)
	}
	if n := b.Totals().Ready; n != (queues-2)*messages {
		t.Errorf("%d messages are in the other queues", n)
	}
}
