package broker

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/internal/vfs"
	"github.com/firemq/firemq/journal"
)

// testSegment is small, but large beside its header.
const testSegment = 64 << 10

func smallBroker(t *testing.T, fs vfs.FS, start Snapshot) *Broker {
	t.Helper()
	start.VHosts = []string{"/"}
	b, _, err := Open(Options{
		FS: fs, JournalDir: testDir, Start: start,
		Codecs: map[message.Encoding]message.Codec{message.AMQP: plainCodec{}},
		tuning: tuning{segmentBytes: testSegment, queueResident: 4000, queueKeep: 1000},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Users().Users()) == 0 {
		if err := b.AddFirstUser("guest", "guest"); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// bounded waits until the journal is within its bound: twice the live bytes and four segments, of
// which two are the next segment and the reserve. A tenth and a segment more are for the headers
// and the ends of such small ones.
func bounded(t *testing.T, b *Broker) (st journal.Stats) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("%+v", st)
			b.Close()
		}
	}()
	until(t, "the journal to be within its bound", func() bool {
		b.upkeep.tick()
		st, _ = b.JournalStats()
		return st.Bytes <= 2*st.LiveSize*11/10+3*testSegment
	})
	return st
}

func TestAnUnackedMessageDoesNotKeepTheJournal(t *testing.T) {
	fs := vfs.NewMem()
	fs.MakeDir(testDir)
	b := smallBroker(t, fs, Snapshot{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "slow", Durable: true})
	c.declare(QueueDeclare{Name: "fast", Durable: true})
	want := "held" + strings.Repeat("h", 300)
	for range 4 { // one is held by a transaction, one for a get, one for a consumer that goes, one for one that stays
		c.publish("", "slow", want)
	}
	c.end()
	b.sync(t)
	tx := connect(t, b)
	tx.ok(tx.ch.TxSelect())
	if ok, e := tx.ch.Get("slow", false, func(*Delivery, int) {}); !ok || e != nil {
		t.Fatal(ok, e)
	}
	tx.ok(tx.ch.Ack(1, false))
	var tags []uint64
	if ok, e := c.ch.Get("slow", false, func(d *Delivery, _ int) { tags = append(tags, d.Tag) }); !ok || e != nil {
		t.Fatal(ok, e)
	}
	c.ok(c.ch.Qos(1, false))
	gone := c.consume(ConsumeArgs{Queue: "slow"})
	c.end()
	c.ch.Cancel(gone.Tag)
	c.consume(ConsumeArgs{Queue: "slow"})
	c.end()
	for _, d := range c.sink.take() {
		tags = append(tags, d.tag)
	}
	if len(tags) != 3 {
		t.Fatalf("%d messages are held", len(tags))
	}
	snap := b.Snapshot()
	b.Saved(&snap)
	for range 700 {
		c.publish("", "fast", strings.Repeat("f", 1000))
		c.end()
		if _, ok := c.get("fast"); !ok {
			t.Fatal("nothing to get")
		}
		c.end()
	}
	b.sync(t)
	st := bounded(t, b)
	if st.Appended < 10*testSegment || st.Segments > 4 || st.Live != 4 {
		t.Fatalf("%+v", st)
	}
	// A checkpoint finds them where they are now.
	if _, _, err := b.checkpoint(); err != nil {
		t.Fatal(err)
	}
	crashed := fs.Crash(1)
	for _, tag := range tags {
		c.ok(c.ch.Nack(tag, false, true))
	}
	c.end()
	if got := c.sink.bodies(); len(got) != 1 || got[0] != want {
		t.Fatalf("redelivered %.20q", got)
	}
	tx.ok(tx.ch.TxCommit())
	tx.Close()
	c.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}

	b = smallBroker(t, crashed, snap)
	c = connect(t, b)
	bodies, redelivered := c.drain("slow")
	eq(t, "after a crash", bodies, []string{want, want, want, want})
	if redelivered != 4 {
		t.Errorf("%d redelivered", redelivered)
	}
	c.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestJournalSpaceIsBounded settles a backlog of mixed sizes at random, and looks at the space again
// and again.
func TestJournalSpaceIsBounded(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 2))
		fs := vfs.NewMem()
		fs.MakeDir(testDir)
		b := smallBroker(t, fs, Snapshot{})
		c := connect(t, b)
		names := []string{"a", "b", "c"}
		for _, n := range names {
			c.declare(QueueDeclare{Name: n, Durable: true})
			c.ok(c.BindQueue(n, "amq.fanout", "", nil))
		}
		snap := b.Snapshot()
		b.Saved(&snap)
		bodies := map[uint64]string{}
		next := 0
		for range 12 {
			for range r.IntN(600) {
				body := strings.Repeat(string(rune('a'+next%26)), 1+r.IntN(700))
				next++
				if seed%2 == 0 && r.IntN(5) == 0 {
					c.publish("amq.fanout", "", body)
				} else {
					c.publish("", names[r.IntN(3)], body)
				}
			}
			c.end()
			for _, n := range names {
				for range r.IntN(300) {
					c.ch.Get(n, false, func(d *Delivery, _ int) { bodies[d.Tag] = string(d.Msg.Body()) })
				}
			}
			for tag := range bodies {
				if r.IntN(3) > 0 {
					c.ok(c.ch.Ack(tag, false))
					delete(bodies, tag)
				}
			}
			c.end()
			b.sync(t)
			bounded(t, b)
		}
		c.ok(c.ch.Recover())
		c.end()
		for _, n := range names {
			c.drain(n)
		}
		c.end()
		b.sync(t)
		if st := bounded(t, b); st.Live != 0 || st.LiveSize != 0 {
			t.Errorf("seed %d: %+v", seed, st)
		}
		c.Close()
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A checkpoint has unacked messages of several channels, more than it copies at a time, each once and in order.
func TestCheckpointOfManyUnacked(t *testing.T) {
	const n = 3 * captureBatch
	fs := vfs.NewMem()
	b, _ := diskBroker(t, fs, Snapshot{})
	c, d := connect(t, b), connect(t, b)
	c.declare(QueueDeclare{Name: "q", Durable: true})
	for _, k := range []*client{c, d} {
		k.ok(k.ch.Qos(n/2, false))
		k.consume(ConsumeArgs{Queue: "q"})
	}
	for i := range n {
		c.publish("", "q", strconv.Itoa(i))
		if i%1000 == 999 || i == n-1 {
			c.end()
		}
	}
	b.sync(t)
	q, e := c.queue("q")
	c.ok(e)
	until(t, "all are delivered", func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.sm.Unacked() == n
	})
	start := b.Snapshot()
	b.Saved(&start)
	if _, _, err := b.checkpoint(); err != nil {
		t.Fatal(err)
	}
	crashed := fs.Crash(1)
	c.Close()
	d.Close()
	b.Close()
	b, rec := diskBroker(t, crashed, start)
	defer b.Close()
	if !rec.Restored || rec.Messages != n {
		t.Fatalf("%+v", rec)
	}
	bodies, redelivered := connect(t, b).drain("q")
	if redelivered != n {
		t.Errorf("%d of %d messages are redelivered", redelivered, n)
	}
	for i, body := range bodies {
		if body != strconv.Itoa(i) {
			t.Fatalf("message %d is %q", i, body)
		}
	}
}
