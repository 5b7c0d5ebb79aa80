package broker

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
)

func (c *client) transfer(a Transfer) Transferred {
	c.t.Helper()
	a.From = Before(StageReady)
	r, e := c.Transfer(&a)
	c.ok(e)
	c.end()
	return r
}

func (c *client) content(queue string) string {
	c.t.Helper()
	_, bodies := c.browseAll(queue, StageReady, 100)
	return strings.Join(bodies, " ")
}

func body(t *testing.T, expr string) *Filter {
	text, e := NewText(expr, true)
	if e != nil {
		t.Fatal(e)
	}
	return &Filter{Body: text}
}

func TestTransfer(t *testing.T) {
	for _, where := range []string{"memory", "disk"} {
		t.Run(where, func(t *testing.T) {
			b := memoryBroker(t, Options{})
			if where == "disk" {
				b = onDisk(t)
			}
			c := connect(t, b)
			for _, q := range []string{"a", "b"} {
				c.declare(QueueDeclare{Name: q, Durable: true})
			}
			c.declare(QueueDeclare{Name: "small", Durable: true, Args: table.Table{
				{Name: "x-max-length", Value: table.IntValue(2)}, {Name: "x-overflow", Value: table.StringValue("reject-publish")}}})
			for i := range 10 {
				c.publish("", "a", fmt.Sprint("m", i))
			}
			c.end()
			if r := c.transfer(Transfer{Browse: Browse{Queue: "a", Match: body(t, "[135]")}, Deed: Move, To: "b"}); r.Done != 3 || r.Failed != 0 || r.More {
				t.Errorf("%+v", r)
			}
			if a, b := c.content("a"), c.content("b"); a != "m0 m2 m4 m6 m7 m8 m9" || b != "m1 m3 m5" {
				t.Errorf("a %s, b %s", a, b)
			}
			if r := c.transfer(Transfer{Browse: Browse{Queue: "a", Limit: 2}, Deed: Copy, To: "b"}); r.Done != 2 || !r.More {
				t.Errorf("%+v", r)
			}
			if a, b := c.content("a"), c.content("b"); a != "m0 m2 m4 m6 m7 m8 m9" || b != "m1 m3 m5 m0 m2" {
				t.Errorf("a %s, b %s", a, b)
			}
			if r := c.transfer(Transfer{Browse: Browse{Queue: "a", Sequences: map[uint64]struct{}{9: {}, 3: {}, 77: {}}}, Deed: Delete}); r.Done != 2 {
				t.Errorf("%+v", r)
			}
			r := c.transfer(Transfer{Browse: Browse{Queue: "a"}, Deed: Move, To: "small"})
			if r.Done != 2 || r.Failed != 3 || r.Reason == nil || r.Reason.Text != "queue 'small' in vhost '/' is full" {
				t.Errorf("%+v", r)
			}
			if a, small := c.content("a"), c.content("small"); a != "m6 m7 m9" || small != "m0 m4" {
				t.Errorf("a %s, small %s", a, small)
			}
			_, e := c.Transfer(&Transfer{Browse: Browse{Queue: "a"}, Deed: Move, To: "a"})
			c.refused(e, PreconditionFailed, "queue 'a' in vhost '/' cannot receive its own messages")
			_, e = c.Transfer(&Transfer{Browse: Browse{Queue: "a"}, Deed: Move, To: "absent"})
			c.refused(e, NotFound, "no queue 'absent' in vhost '/'")
			b.SetAlarm(true, false)
			_, e = c.Transfer(&Transfer{Browse: Browse{Queue: "a"}, Deed: Move, To: "b"})
			c.refused(e, ResourceError, "the broker is low on memory or disk: it takes no messages")
			b.SetAlarm(false, false)
			if body, _ := c.get("a"); body != "m6" {
				t.Errorf("%s is next", body)
			}
		})
	}
}

func TestReplay(t *testing.T) {
	b := onDisk(t)
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "work", Durable: true, Args: table.Table{{Name: "x-dead-letter-exchange", Value: table.StringValue("amq.fanout")}}})
	c.declare(QueueDeclare{Name: "dead", Durable: true})
	c.declare(QueueDeclare{Name: "copy", Durable: true})
	c.ok(c.BindQueue("dead", "amq.fanout", "", nil))
	c.ok(c.BindQueue("work", "amq.topic", "job.#", nil))
	c.ok(c.BindQueue("copy", "amq.topic", "job.#", nil))
	for i := range 4 {
		c.publish("amq.topic", "job.new", fmt.Sprint("j", i))
	}
	c.publish("", "dead", "alive")
	c.end()
	for range 4 {
		c.get("copy")
		if ok, e := c.ch.Get("work", false, func(*Delivery, int) {}); !ok || e != nil {
			t.Fatal("no work")
		}
	}
	c.ok(c.ch.Nack(0, true, false))
	c.end()
	until(t, "all are dead", func() bool { return c.content("dead") == "alive j0 j1 j2 j3" })
	r := c.transfer(Transfer{Browse: Browse{Queue: "dead", Limit: 2}, Deed: Replay})
	if r.Done != 2 || r.Failed != 1 || !strings.Contains(r.Reason.Text, "is no dead letter") {
		t.Errorf("%+v", r)
	}
	if dead, work := c.content("dead"), c.content("work"); dead != "alive j2 j3" || work != "j0 j1" {
		t.Errorf("dead %s, work %s", dead, work)
	}
	if ok, e := c.ch.Get("work", true, func(d *Delivery, _ int) {
		if string(d.Msg.Exchange()) != "amq.topic" || string(d.Msg.Key()) != "job.new" || d.Redelivered {
			t.Errorf("%s %s %v", d.Msg.Exchange(), d.Msg.Key(), d.Redelivered)
		}
	}); !ok || e != nil {
		t.Error("nothing was replayed")
	}
	if r := c.transfer(Transfer{Browse: Browse{Queue: "dead", Match: body(t, "j")}, Deed: Replay, Through: true}); r.Done != 2 || r.Failed != 0 {
		t.Errorf("%+v", r)
	}
	if dead, work, copied := c.content("dead"), c.content("work"), c.content("copy"); dead != "alive" || work != "j1 j2 j3" || copied != "j2 j3" {
		t.Errorf("dead %s, work %s, copy %s", dead, work, copied)
	}
}

func TestTransferNeedsPermissions(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	for _, q := range []string{"mine", "other"} {
		c.declare(QueueDeclare{Name: q})
	}
	c.end()
	for _, p := range []struct {
		read, write string
		deed        Deed
		from, to    string
		refused     string
	}{
		{"^mine", ".*", Move, "other", "mine", "read access to queue 'other' in vhost '/' refused for user 'guest'"},
		{"^mine", "^(mine|amq.default)$", Move, "mine", "other", "write access to queue 'other' in vhost '/' refused for user 'guest'"},
		{"^mine", "^other$", Copy, "mine", "other", "write access to exchange 'amq.default' in vhost '/' refused for user 'guest'"},
		{"^mine", "^(other|amq.default)$", Move, "mine", "other", ""},
		{"^mine", "", Delete, "mine", "", ""},
		{"^mine", "", Delete, "other", "", "read access to queue 'other' in vhost '/' refused for user 'guest'"},
	} {
		if _, err := b.Users().SetPermissions(auth.Permission{User: "guest", VHost: "/", Configure: "", Write: p.write, Read: p.read}); err != nil {
			t.Fatal(err)
		}
		_, e := c.Transfer(&Transfer{Browse: Browse{Queue: p.from, From: Before(StageReady)}, Deed: p.deed, To: p.to})
		if text := fmt.Sprint(e); (e == nil) != (p.refused == "") || e != nil && (e.Kind != AccessRefused || text != p.refused) {
			t.Errorf("%+v: %v", p, e)
		}
	}
}

// TestMoveBesideConsumers moves messages while a consumer takes them and a publisher brings more: each is received
// exactly once, from one queue or the other.
func TestMoveBesideConsumers(t *testing.T) {
	b := onDisk(t)
	owner := connect(t, b)
	owner.declare(QueueDeclare{Name: "a", Durable: true})
	owner.declare(QueueDeclare{Name: "b", Durable: true})
	const n = 3000
	received := make([]atomic.Int32, n)
	var total atomic.Int64
	consumer := connect(t, b)
	published, stop, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	moves := make(chan struct{}) // closed with the first one: else the consumer may be too fast for any
	p := connect(t, b)
	go func() {
		defer close(published)
		for i := range n {
			p.publish("", "a", fmt.Sprint(i))
			if i%20 == 19 {
				p.end()
			}
		}
		p.end()
	}()
	go func() {
		defer close(done)
		<-moves
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, q := range []string{"a", "b"} {
				if body, ok := consumer.get(q); ok {
					var i int
					fmt.Sscan(body, &i)
					received[i].Add(1)
					total.Add(1)
				}
			}
			consumer.end()
		}
	}()
	moved := 0
	until(t, "all are received", func() bool {
		before := moved
		moved += owner.transfer(Transfer{Browse: Browse{Queue: "a", Limit: 50}, Deed: Move, To: "b"}).Done
		if before == 0 && moved > 0 {
			close(moves)
		}
		return total.Load() >= n
	})
	<-published
	close(stop)
	<-done
	for i := range received {
		if got := received[i].Load(); got != 1 {
			t.Errorf("message %d was received %d times", i, got)
		}
	}
}

// TestMoveSurvivesACrash cuts the power at any moment of a move: each message is in one of the queues, or in both.
func TestMoveSurvivesACrash(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		fs := vfs.NewMem()
		open := func(fs *vfs.Mem, start Snapshot) *Broker {
			b, _, err := Open(Options{
				FS: fs, JournalDir: "j", Start: start, tuning: tuning{queueResident: 1000, queueKeep: 500},
				Codecs: map[message.Encoding]message.Codec{message.AMQP: plainCodec{}},
			})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		start := Snapshot{VHosts: []string{"/"}}
		b := open(fs, start)
		if err := b.AddFirstUser("guest", "guest"); err != nil {
			t.Fatal(err)
		}
		const n = 400
		moved := 0
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			c := connect(t, b)
			c.declare(QueueDeclare{Name: "a", Durable: true})
			c.declare(QueueDeclare{Name: "b", Durable: true})
			for i := range n {
				c.publish("", "a", fmt.Sprint(i))
			}
			c.end()
			b.sync(t)
			crash := make(chan *vfs.Mem, 1)
			wait, cut := time.Duration(r.IntN(3000))*time.Microsecond, r.Uint64()
			var crashing atomic.Bool
			timer := time.AfterFunc(wait, func() {
				crashing.Store(true)
				crash <- fs.Crash(cut)
			})
			defer timer.Stop()
			for moved < n && !crashing.Load() {
				got := c.transfer(Transfer{Browse: Browse{Queue: "a", Limit: 1 + r.IntN(40)}, Deed: Move, To: "b"}).Done
				if !crashing.Load() {
					moved += got // these were told to be safe before the crash
				}
			}
			after := open(<-crash, start)
			defer after.Close()
			seen := make(map[string]int)
			inB := 0
			for _, name := range []string{"a", "b"} {
				d, e := after.Administer("/")
				if e != nil {
					t.Fatal(e)
				}
				p, e := d.Browse(&Browse{Queue: name, From: Before(StageReady)}, func(m *Browsed) bool {
					seen[string(m.Msg.Body())]++
					return true
				})
				d.Close()
				if e != nil {
					t.Fatal(e)
				}
				if name == "b" {
					inB = p.Shown
				}
			}
			for i := range n {
				if k := seen[fmt.Sprint(i)]; k != 1 && k != 2 {
					t.Fatalf("message %d is there %d times", i, k)
				}
			}
			if inB < moved {
				t.Fatalf("%d messages were moved, %d are there", moved, inB)
			}
		})
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
