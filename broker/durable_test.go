package broker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
)

const testDir = "journal"

func diskBroker(t testing.TB, fs vfs.FS, start Snapshot) (*Broker, Recovery) {
	t.Helper()
	if len(start.VHosts) == 0 {
		start.VHosts = []string{"/"}
	}
	b, rec, err := Open(Options{
		FS: fs, JournalDir: testDir, Start: start,
		Codecs: map[message.Encoding]message.Codec{message.AMQP: plainCodec{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Users().Users()) == 0 {
		if err := b.AddFirstUser("guest", "guest"); err != nil {
			t.Fatal(err)
		}
	}
	return b, rec
}

// until polls a condition that other goroutines bring about.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(100 * time.Microsecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); !f(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s did not happen", what)
		}
	}
}

// drain gets everything from a queue, and gives the bodies and the redelivered marks.
func (c *client) drain(queue string) (bodies []string, redelivered int) {
	c.t.Helper()
	for {
		ok, e := c.ch.Get(queue, true, func(d *Delivery, _ int) {
			bodies = append(bodies, string(d.Msg.Body()))
			if d.Redelivered {
				redelivered++
			}
		})
		c.ok(e)
		if !ok {
			return bodies, redelivered
		}
	}
}

func TestConfirmedMessagesSurviveACleanStop(t *testing.T) {
	fs := vfs.NewMem()
	fs.MakeDir(testDir)
	b, _ := diskBroker(t, fs, Snapshot{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q", Durable: true, Args: table.Table{{Name: "x-max-priority", Value: table.Int32Value(5)}}})
	c.declare(QueueDeclare{Name: "gone", Durable: true})
	c.declare(QueueDeclare{Name: "transient"})
	c.ok(c.DeclareExchange(&ExchangeDeclare{Name: "x", Type: "fanout", Durable: true}))
	c.ok(c.BindQueue("q", "x", "k", nil))
	c.ok(c.BindQueue("transient", "x", "k", nil))
	c.ok(c.ch.Confirms())
	for i := range 3 {
		c.publish("x", "", strconv.Itoa(i))
	}
	if _, e := c.DeleteQueue("gone", false, false); e != nil {
		t.Fatal(e.Text)
	}
	c.end()
	until(t, "the confirm", func() bool { c.peer.mu.Lock(); defer c.peer.mu.Unlock(); return c.sink.confirmed == 3 })
	c.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}

	b, rec := diskBroker(t, fs, Snapshot{})
	if rec.Queues != 1 || rec.Messages != 3 || len(rec.Damaged) != 0 {
		t.Fatalf("recovered %+v", rec)
	}
	c = connect(t, b)
	if _, e := c.DeclareQueue(&QueueDeclare{Name: "q", Durable: true}); e == nil || !strings.Contains(e.Text, "x-max-priority") {
		t.Fatalf("the queue's arguments are not back: %v", e)
	}
	c.publish("x", "", "3") // the binding is back
	c.end()
	got, redelivered := c.drain("q")
	eq(t, "messages", got, []string{"0", "1", "2", "3"})
	if redelivered != 3 {
		t.Fatalf("%d redelivered, want the 3 recovered ones", redelivered)
	}
	c.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestEveryConfirmedMessageSurvivesACrash publishes, acks, purges and redefines at random, cuts the
// power at a random moment, and looks at what is there afterwards, several times in a row.
func TestEveryConfirmedMessageSurvivesACrash(t *testing.T) {
	seeds := 40
	if testing.Short() {
		seeds = 8
	}
	for i := range seeds {
		seed := uint64(i) + 1
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) { crashRun(t, seed) })
	}
}

func crashRun(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	fs := vfs.NewMem()
	fs.MakeDir(testDir)
	var saved Snapshot
	names := []string{"a", "b", "c"}
	type state struct {
		must  []int        // confirmed, not taken
		maybe map[int]bool // taken, or not confirmed when the power went: may be there
	}
	queues := map[string]*state{}
	for _, n := range names {
		queues[n] = &state{maybe: map[int]bool{}}
	}
	next := 0
	for round := range 3 {
		b, _ := diskBroker(t, fs, saved)
		c := connect(t, b)
		c.ok(c.ch.Confirms())
		for _, n := range names {
			c.declare(QueueDeclare{Name: n, Durable: true})
			c.ok(c.BindQueue(n, "amq.fanout", "", nil))
		}
		if round > 0 {
			for _, n := range names {
				got, _ := c.drain(n)
				q := queues[n]
				last := -1
				var ints []int
				for _, s := range got {
					v, err := strconv.Atoi(s)
					if err != nil {
						t.Fatalf("invented message %q", s)
					}
					if v <= last {
						t.Fatalf("queue %s: %d after %d", n, v, last)
					}
					if !slices.Contains(q.must, v) && !q.maybe[v] {
						t.Fatalf("queue %s: message %d cannot be here", n, v)
					}
					last = v
					ints = append(ints, v)
				}
				for _, v := range q.must {
					if !slices.Contains(ints, v) {
						t.Fatalf("queue %s: confirmed message %d is lost (has %v)", n, v, got)
					}
				}
				q.must, q.maybe = nil, map[int]bool{}
				for _, v := range ints {
					q.maybe[v] = true // just taken: the settlement may not be on disk yet
				}
			}
		}
		sent := map[uint64]sentTo{}
		for range 30 + r.IntN(60) {
			switch r.IntN(10) {
			case 0:
				n := names[r.IntN(3)]
				if _, e := c.PurgeQueue(n); e != nil {
					t.Fatal(e.Text)
				}
				for _, v := range queues[n].must {
					queues[n].maybe[v] = true
				}
				queues[n].must = nil
				for seq, s := range sent {
					s.to = slices.DeleteFunc(s.to, func(to string) bool { return to == n })
					queues[n].maybe[s.body] = true
					sent[seq] = s
				}
			case 1:
				saved = b.Snapshot()
				if err := b.Commit(&saved); err != nil {
					t.Fatal(err)
				}
				b.Saved(&saved)
			case 2:
				n := names[r.IntN(3)]
				if body, ok := c.get(n); ok {
					v, _ := strconv.Atoi(body)
					queues[n].maybe[v] = true
					queues[n].must = slices.DeleteFunc(queues[n].must, func(m int) bool { return m == v })
					for seq, s := range sent {
						if s.body == v {
							s.to = slices.DeleteFunc(s.to, func(to string) bool { return to == n })
							sent[seq] = s
						}
					}
				}
			default:
				to := []string{names[r.IntN(3)]}
				if r.IntN(3) == 0 {
					to = slices.Clone(names)
					c.publish("amq.fanout", "", strconv.Itoa(next))
				} else {
					c.publish("", to[0], strconv.Itoa(next))
				}
				sent[c.seq] = sentTo{next, to}
				next++
				if r.IntN(3) == 0 {
					c.end()
				}
			}
		}
		c.end()
		decided := r.IntN(2) == 0
		if decided {
			// Every publish is confirmed and every settlement on disk: nothing is in doubt.
			seq := c.seq
			until(t, "all confirms", func() bool { c.peer.mu.Lock(); defer c.peer.mu.Unlock(); return c.sink.confirmed == seq })
			b.journal.Lock()
			pos := b.journal.Settle(1<<40, 1, 1)
			b.journal.Unlock()
			if err := b.journal.Sync(pos); err != nil {
				t.Fatal(err)
			}
		}
		// What is confirmed at this moment is promised; the crash comes after it.
		c.peer.mu.Lock()
		confirmed := c.sink.confirmed
		c.peer.mu.Unlock()
		for seq, s := range sent {
			for _, n := range s.to {
				if seq <= confirmed {
					queues[n].must = append(queues[n].must, s.body)
				} else {
					queues[n].maybe[s.body] = true
				}
			}
		}
		if decided {
			for _, q := range queues {
				clear(q.maybe)
			}
		}
		crashed := fs.Crash(r.Uint64())
		c.Close()
		b.Close()
		fs = crashed
		for _, q := range queues {
			slices.Sort(q.must)
		}
	}
}

type sentTo struct {
	body int
	to   []string
}

// The journal was lost, definitions.json was not: it says a position that the new journal never reaches
// by itself, and nothing may wait for that.
func TestSnapshotIsSavedAfterTheJournalWasLost(t *testing.T) {
	fs := vfs.NewMem()
	fs.MakeDir(testDir)
	b, _ := diskBroker(t, fs, Snapshot{Position: 1 << 40, Queues: []QueueDef{{VHost: "/", Name: "old", ID: 1}}})
	saved := func() Snapshot {
		t.Helper()
		s, done := b.Snapshot(), make(chan error, 1)
		go func() { done <- b.Commit(&s) }()
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("Commit does not return")
		}
		return s
	}
	saved()
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "new", Durable: true})
	s := saved()
	if len(s.Queues) != 2 || s.Position <= 1<<40 {
		t.Fatalf("saved %+v", s)
	}
	c.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestGetDoesNotWaitForAnother: a confirmed message can be got although one of another connection, whose
// record is not even appended, lies before it.
func TestGetDoesNotWaitForAnother(t *testing.T) {
	fs := vfs.NewMem()
	fs.MakeDir(testDir)
	b, _ := diskBroker(t, fs, Snapshot{})
	slow, c := connect(t, b), connect(t, b)
	c.declare(QueueDeclare{Name: "q", Durable: true})
	c.ok(c.ch.Confirms())
	b.journal.Lock()
	unlock := sync.OnceFunc(b.journal.Unlock)
	t.Cleanup(unlock)
	done := make(chan struct{})
	go func() {
		defer close(done)
		slow.publish("", "q", "persistent")
		slow.EndTurn()
	}()
	until(t, "the publish", func() bool { s, _ := c.DeclareQueue(&QueueDeclare{Name: "q", Passive: true}); return s.Messages == 1 })
	m := message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1}, nil, []byte("q"), nil, 1)
	copy(m.Body(), "t")
	c.ok(c.ch.Publish(&Publish{Msg: m, Seq: 1}))
	c.ch.flush()
	eq(t, "confirms", c.sink.events, []string{"ack 1 false"})
	var got []string
	take := func() bool {
		ok, e := c.ch.Get("q", len(got) > 0, func(d *Delivery, _ int) { got = append(got, string(d.Msg.Body())) })
		c.ok(e)
		return ok
	}
	for take() {
	}
	c.ok(c.ch.Ack(1, false))
	c.ok(c.ch.Settle())
	unlock()
	<-done
	eq(t, "messages", got, []string{"persistent", "t"})
	c.end()
	until(t, "the settlement", func() bool {
		q := b.vhosts["/"].queues["q"]
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.orphans) == 0 && q.persistent == 0
	})
	slow.Close()
	c.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b, rec := diskBroker(t, fs, Snapshot{})
	defer b.Close()
	if rec.Messages != 0 {
		t.Fatalf("%d messages came back after they were acked", rec.Messages)
	}
}
