package broker

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
)

func deduplicates(more ...table.Field) table.Table {
	return append(table.Table{{Name: "x-message-deduplication", Value: table.BoolValue(true)}}, more...)
}

// publishKey publishes to a queue with these headers, and gives the publish's number.
func (c *client) publishKey(queue, body string, persistent bool, headers ...table.Field) uint64 {
	c.t.Helper()
	return c.publishTo("", queue, body, persistent, headers...)
}

// publishTo is publishKey to an exchange, mandatory if that has a name.
func (c *client) publishTo(exchange, key, body string, persistent bool, headers ...table.Field) uint64 {
	c.t.Helper()
	m := message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1, Persistent: persistent, HasHeaders: len(headers) > 0},
		[]byte(exchange), []byte(key), table.Append(nil, headers), len(body))
	copy(m.Body(), body)
	c.seq++
	c.ok(c.ch.Publish(&Publish{Msg: m, Seq: c.seq, Mandatory: exchange != ""}))
	return c.seq
}

func header(key string) table.Field {
	return table.Field{Name: "x-deduplication-header", Value: table.StringValue(key)}
}

// id is the property message-id, see plainCodec.
func id(key string) table.Field {
	return table.Field{Name: "message-id", Value: table.StringValue(key)}
}

// confirmed waits until the broker has answered a publish.
func (c *client) confirmed(seq uint64) {
	c.t.Helper()
	until(c.t, "the confirm", func() bool { c.peer.mu.Lock(); defer c.peer.mu.Unlock(); return c.ch.told >= seq })
}

func counts(b *Broker, queue string) QueueCounts {
	q, _ := b.Queue("/", queue)
	return q.Counts()
}

// TestDuplicateOfWhatTheQueueHolds: without a size or a time a key counts while its message is there, unacked too.
func TestDuplicateOfWhatTheQueueHolds(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q", Args: deduplicates()})
	c.ok(c.ch.Confirms())
	for _, body := range []string{"1", "2", "3"} {
		c.publishKey("q", body, false, header("k"))
		c.publishKey("q", "other"+body, false, header("k"+body))
		c.publishKey("q", "none"+body, false)
		c.publishKey("q", "other header"+body, false, id("same"))
	}
	c.end()
	eq(t, "confirms", c.sink.events, []string{"ack 12 true"})
	if n := counts(b, "q"); n.Ready != 10 || n.Stats.Duplicate != 2 || n.Keys != 4 {
		t.Fatalf("%+v", n)
	}
	body, tag, _ := c.fetch("q")
	c.publishKey("q", "4", false, header("k"))
	c.end()
	if n := counts(b, "q"); body != "1" || n.Stats.Duplicate != 3 {
		t.Fatalf("got %q, %d repetitions: one of an unacked message was taken", body, n.Stats.Duplicate)
	}
	c.ok(c.ch.Ack(tag, false))
	c.publishKey("q", "5", false, header("k"))
	c.end()
	if n := counts(b, "q"); n.Stats.Duplicate != 3 || n.Ready != 10 {
		t.Fatalf("%+v: the key outlived its message", n)
	}
	if _, e := c.PurgeQueue("q"); e != nil {
		t.Fatal(e.Text)
	}
	if n := counts(b, "q"); n.Keys != 0 {
		t.Fatalf("%d keys in an empty queue", n.Keys)
	}
}

// TestDuplicateInAWindow: by message id, the last three and a minute long, whatever became of the messages.
func TestDuplicateInAWindow(t *testing.T) {
	now := int64(1_000_000)
	b := memoryBroker(t, Options{Now: func() int64 { return now }})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q", Args: deduplicates(
		table.Field{Name: "x-cache-size", Value: table.StringValue("3")},
		table.Field{Name: "x-cache-ttl", Value: table.Int32Value(60_000)},
		table.Field{Name: "x-deduplication-by", Value: table.StringValue("message-id")})})
	send := func(key string) bool {
		t.Helper()
		c.publishKey("q", key, false, id(key))
		c.end()
		_, ok := c.get("q")
		c.end()
		return ok
	}
	for i, step := range []struct {
		key   string
		ms    int64
		taken bool
	}{
		{"a", 0, true}, {"a", 0, false}, {"b", 0, true}, {"c", 0, true}, {"a", 0, false},
		{"d", 0, true}, {"a", 0, true}, {"c", 0, false}, {"b", 0, true},
		{"b", 59_999, false}, {"b", 1, true}, {"", 0, true}, {"", 0, true},
	} {
		now += step.ms
		if got := send(step.key); got != step.taken {
			t.Fatalf("step %d: %q taken %v, want %v", i, step.key, got, step.taken)
		}
	}
}

// TestDuplicateOfAnExchange: a repetition goes to no queue, and is confirmed or returned as what goes to none is.
func TestDuplicateOfAnExchange(t *testing.T) {
	now := int64(1_000_000)
	b := memoryBroker(t, Options{Now: func() int64 { return now }})
	c := connect(t, b)
	c.refused(c.DeclareExchange(&ExchangeDeclare{Name: "x", Type: "x-message-deduplication"}), PreconditionFailed,
		"Missing or invalid argument, 'x-cache-size' must be an integer greater than 0")
	c.ok(c.DeclareExchange(&ExchangeDeclare{Name: "x", Type: "x-message-deduplication", Args: table.Table{
		{Name: "x-cache-size", Value: table.IntValue(10)}, {Name: "x-cache-ttl", Value: table.IntValue(60_000)},
	}}))
	for _, q := range []string{"a", "b"} {
		c.declare(QueueDeclare{Name: q})
		c.ok(c.BindQueue(q, "x", "", nil))
	}
	c.ok(c.ch.Confirms())
	own := table.Field{Name: "x-cache-ttl", Value: table.IntValue(5)}
	c.publishTo("x", "one", "1", false, header("k"))
	c.publishTo("x", "two", "2", false, header("k"))
	c.publishTo("x", "two", "3", false, header("l"), own)
	c.end()
	now += 5
	c.publishTo("x", "two", "4", false, header("l"), own)
	c.publishTo("x", "two", "5", false, header("k"))
	c.end()
	eq(t, "events", c.sink.events, []string{"return 2 2", "ack 3 true", "return 5 5", "ack 5 true"})
	for _, q := range []string{"a", "b"} {
		if got := c.content(q); got != "1 3 4" {
			t.Errorf("%s holds %s", q, got)
		}
	}
}

// TestDuplicateByPolicy: a policy turns it on and off, and its size counts.
func TestDuplicateByPolicy(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	twice := func(key string) int {
		t.Helper()
		before := counts(b, "q").Ready
		for range 2 {
			c.publishKey("q", key, false, id(key))
		}
		c.end()
		return counts(b, "q").Ready - before
	}
	if n := twice("a"); n != 2 {
		t.Fatalf("%d taken before there is a policy", n)
	}
	c.ok(b.PutPolicy(policyOf(t, "p", "^q", "queues", 0, false, table.Table{
		{Name: "message-deduplication", Value: table.BoolValue(true)}, {Name: "cache-size", Value: table.IntValue(1)},
		{Name: "deduplication-by", Value: table.StringValue("message-id")}})))
	if n := twice("a"); n != 1 {
		t.Fatalf("%d taken, want 1", n)
	}
	if n := twice("b") + twice("a"); n != 2 {
		t.Fatalf("%d taken with a size of 1, want 2", n)
	}
	c.ok(b.DeletePolicy("/", "p", false))
	if n := twice("a"); n != 2 {
		t.Fatalf("%d taken without the policy", n)
	}
}

// TestRefusedIsNoOriginal: the key of a message that a full queue refused is not known.
func TestRefusedIsNoOriginal(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q", Args: deduplicates(
		table.Field{Name: "x-max-length", Value: table.IntValue(1)},
		table.Field{Name: "x-overflow", Value: table.StringValue("reject-publish")},
		table.Field{Name: "x-cache-size", Value: table.IntValue(9)})})
	c.ok(c.ch.Confirms())
	c.publishKey("q", "1", false, header("1"))
	c.publishKey("q", "2", false, header("2"))
	c.publishKey("q", "3", false, header("1")) // a repetition in a full queue is confirmed
	c.end()
	eq(t, "confirms", c.sink.events, []string{"ack 1 false", "nack 2 queue 'q' in vhost '/' is full", "ack 3 false"})
	c.get("q")
	c.publishKey("q", "4", false, header("2"))
	c.end()
	if got, _ := c.get("q"); got != "4" {
		t.Fatalf("got %q: the refused message was taken for an original", got)
	}
}

// TestDeadLetterIsNoDuplicate: a message that comes back through a dead-letter exchange is taken.
func TestDeadLetterIsNoDuplicate(t *testing.T) {
	for _, size := range []int64{0, 5} {
		b := memoryBroker(t, Options{})
		c := connect(t, b)
		args := deduplicates(table.Field{Name: "x-dead-letter-exchange", Value: table.StringValue("")})
		if size > 0 {
			args = append(args, table.Field{Name: "x-cache-size", Value: table.IntValue(size)})
		}
		c.declare(QueueDeclare{Name: "q", Args: args})
		c.publishKey("q", "m", false, header("k"))
		c.end()
		for range 3 {
			_, tag, _ := c.fetch("q")
			c.ok(c.ch.Reject(tag, false))
			c.end()
		}
		c.publishKey("q", "again", false, header("k"))
		c.end()
		if n := counts(b, "q"); n.Ready != 1 || n.Stats.Duplicate != 1 || n.Keys != 1 {
			t.Fatalf("size %d: %+v", size, n)
		}
	}
}

// TestDuplicateWaitsForItsOriginal: while the original is on its way to the disk, a repetition by another
// connection gets no confirm: before it is appended it is refused.
func TestDuplicateWaitsForItsOriginal(t *testing.T) {
	fs := vfs.NewMem()
	fs.MakeDir(testDir)
	b, _ := diskBroker(t, fs, Snapshot{})
	slow, c := connect(t, b), connect(t, b)
	c.declare(QueueDeclare{Name: "q", Durable: true, Args: deduplicates()})
	c.ok(c.ch.Confirms())
	c.ok(slow.ch.Confirms())
	b.journal.Lock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		slow.publishKey("q", "1", true, header("k"))
		slow.publishKey("q", "2", true, header("k")) // of the same run: it waits with its original
		slow.EndTurn()
	}()
	until(t, "the publish", func() bool { return counts(b, "q").Ready == 1 })
	c.publishKey("q", "3", true, header("k"))
	c.ch.flush()
	b.journal.Unlock()
	<-done
	eq(t, "confirms", c.sink.events, []string{"nack 1 the message is on its way to queue 'q' in vhost '/' already"})
	slow.confirmed(2)
	c.publishKey("q", "4", true, header("k"))
	c.end()
	c.confirmed(2)
	if n := counts(b, "q"); n.Ready != 1 || n.Stats.Duplicate != 2 {
		t.Fatalf("%+v", n)
	}
	// In a transaction, too.
	tx := connect(t, b)
	tx.ok(tx.ch.TxSelect())
	for range 2 {
		tx.publishKey("q", "5", true, header("tx"))
		tx.publishKey("", "nowhere", true) // ends the run
	}
	tx.publishKey("q", "6", true, header("k"))
	tx.ok(tx.ch.TxCommit())
	until(t, "the commit", func() bool { tx.peer.mu.Lock(); defer tx.peer.mu.Unlock(); return tx.sink.committed == 1 })
	if n := counts(b, "q"); n.Ready != 2 || n.Stats.Duplicate != 4 {
		t.Fatalf("%+v", n)
	}
	for _, c := range []*client{slow, c, tx} {
		c.Close()
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestKeysOutliveTheSegmentsOfTheirMessages: what a window remembers beyond a message's time in its queue is not lost
// with the segment of the message, nor with that of the checkpoint which holds the key, and costs no more
// disk than up to the next checkpoint.
func TestKeysOutliveTheSegmentsOfTheirMessages(t *testing.T) {
	for _, tx := range []bool{false, true} {
		fs := vfs.NewMem()
		fs.MakeDir(testDir)
		b := smallBroker(t, fs, Snapshot{})
		c := connect(t, b)
		c.declare(QueueDeclare{Name: "q", Durable: true, Args: deduplicates(table.Field{Name: "x-cache-size", Value: table.IntValue(10)})})
		c.declare(QueueDeclare{Name: "other", Durable: true})
		start := b.Snapshot()
		if err := b.Commit(&start); err != nil {
			t.Fatal(err)
		}
		b.Saved(&start)
		if tx {
			c.ok(c.ch.TxSelect())
		}
		take := func(queue string) {
			t.Helper()
			c.end()
			if tx {
				c.ok(c.ch.TxCommit())
				c.end()
			}
			b.sync(t)
			if _, ok := c.get(queue); !ok {
				t.Fatal("nothing to get")
			}
			c.end()
			b.sync(t)
		}
		roll := func() { // some segments come and go
			t.Helper()
			for range 40 {
				c.publish("", "other", strings.Repeat("o", testSegment/10))
				take("other")
			}
			b.upkeep.work()
		}
		crash := func() {
			t.Helper()
			crashed := fs.Crash(1)
			c.Close()
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			fs = crashed
			b = smallBroker(t, fs, start)
			if c = connect(t, b); tx {
				c.ok(c.ch.TxSelect())
			}
		}
		segments := func(least, most int) { // and stays so
			t.Helper()
			seen := 0
			until(t, "the journal to be of the right size", func() bool {
				b.upkeep.work()
				st, _ := b.JournalStats()
				if seen++; least > st.Segments || st.Segments > most {
					seen = 0
				}
				return seen == 50
			})
		}
		roll()
		segments(1, 2)
		c.publishKey("q", "1", true, header("1"))
		take("q")
		roll()
		segments(4, 7)
		for range 3 {
			crash()
			roll()
		}
		if _, _, err := b.checkpoint(); err != nil {
			t.Fatal(err)
		}
		segments(1, 2)
		for range 3 {
			roll()
			crash()
		}
		c.publishKey("q", "1", true, header("1"))
		c.end()
		if tx {
			c.ok(c.ch.TxCommit())
			c.end()
		}
		if n := counts(b, "q"); n.Ready != 0 || n.Stats.Duplicate != 1 {
			t.Fatalf("tx %v: %+v", tx, n)
		}
		c.Close()
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDuplicatesAfterACrash: publishers repeat what was not confirmed, the broker crashes at random and comes
// back from the log or a checkpoint. No key is ever in the queue twice, and nothing confirmed is missing.
func TestDuplicatesAfterACrash(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, round))
		args := deduplicates(table.Field{Name: "x-cache-size", Value: table.IntValue(1000)})
		present := round%2 == 1
		if present {
			args = deduplicates()
		}
		fs := vfs.NewMem()
		fs.MakeDir(testDir)
		start := Snapshot{}
		safe := map[string]bool{}    // confirmed
		settled := map[string]bool{} // and acked for sure
		next := 0
		for life := range 5 {
			b, _ := diskBroker(t, fs, start)
			c := connect(t, b)
			if life == 0 {
				c.declare(QueueDeclare{Name: "q", Durable: true, Args: args})
				start = b.Snapshot()
				if err := b.Commit(&start); err != nil {
					t.Fatal(err)
				}
				b.Saved(&start)
			}
			c.ok(c.ch.Confirms())
			waiting := map[uint64]string{}
			for range 30 {
				k := strconv.Itoa(r.IntN(next + 1))
				if k == strconv.Itoa(next) {
					next++
				}
				if present && settled[k] {
					continue // it may be taken again
				}
				waiting[c.publishKey("q", k, true, header(k))] = k
				if r.IntN(3) == 0 {
					c.end()
				}
				switch r.IntN(12) {
				case 0:
					if _, _, err := b.checkpoint(); err != nil {
						t.Fatal(err)
					}
				case 1:
					c.end()
					c.confirmed(c.seq)
					if body, tag, _ := c.fetch("q"); body != "" {
						c.ok(c.ch.Ack(tag, false))
						c.end()
						b.sync(t)
						settled[body] = true
					}
				}
			}
			c.end()
			if r.IntN(2) == 0 {
				c.confirmed(c.seq)
			}
			c.peer.mu.Lock()
			for seq, k := range waiting {
				if seq <= c.ch.told {
					safe[k] = true
				}
			}
			c.peer.mu.Unlock()
			crashed := fs.Crash(r.Uint64())
			c.Close()
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			fs = crashed
		}
		b, _ := diskBroker(t, fs, start)
		c := connect(t, b)
		c.ok(c.ch.Confirms())
		for k := range safe {
			if !present || !settled[k] {
				c.publishKey("q", k, true, header(k))
			}
		}
		c.end()
		got, _ := c.drain("q")
		slices.Sort(got)
		for i, k := range got {
			if i > 0 && got[i-1] == k {
				t.Fatalf("round %d: %s is there twice", round, k)
			}
			if settled[k] {
				t.Fatalf("round %d: %s was acked and is there again", round, k)
			}
		}
		for k := range safe {
			if _, found := slices.BinarySearch(got, k); !found && !settled[k] {
				t.Fatalf("round %d: %s is missing", round, k)
			}
		}
		c.Close()
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKeysOfAPolicyComeBack: a start finds policies in the journal that are in no snapshot yet, and keys are remembered by
// those that held when their messages came.
func TestKeysOfAPolicyComeBack(t *testing.T) {
	fs := vfs.NewMem()
	fs.MakeDir(testDir)
	b, _ := diskBroker(t, fs, Snapshot{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q", Durable: true})
	c.ok(c.ch.Confirms())
	policy := func(by string) {
		t.Helper()
		c.ok(b.PutPolicy(policyOf(t, "p", "^q", "queues", 0, false, table.Table{
			{Name: "message-deduplication", Value: table.BoolValue(true)}, {Name: "cache-size", Value: table.IntValue(10)},
			{Name: "deduplication-by", Value: table.StringValue(by)},
		})))
	}
	c.publishKey("q", "1", true, header("before"))
	c.end()
	policy("x-deduplication-header")
	c.publishKey("q", "2", true, header("a"))
	c.end()
	policy("message-id")
	last := c.publishKey("q", "3", true, id("b"))
	c.end()
	c.confirmed(last)
	crashed := fs.Crash(1)
	c.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}

	b, _ = diskBroker(t, crashed, Snapshot{})
	c = connect(t, b)
	for _, key := range []string{"before", "a", "b"} {
		c.publishKey("q", "again "+key, true, id(key))
	}
	c.end()
	if got := c.content("q"); got != "1 2 3 again before again a" {
		t.Errorf("the queue holds %s", got)
	}
	c.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}
