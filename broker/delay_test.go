package broker

import (
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
)

func TestDelayHeader(t *testing.T) {
	b := memoryBroker(t, Options{})
	delay := func(headers table.Table) (int64, table.Table) {
		var a message.Attributes
		passed, differ := b.Delay(&a, headers)
		if differ != (a.Delay > 0) || a.DueAt {
			t.Errorf("%v: %+v, differ %t", headers, a, differ)
		}
		return a.Delay, passed
	}
	for _, tc := range []struct {
		v    table.Value
		want int64
	}{
		{table.Int32Value(5000), 5000},
		{table.Value{Kind: table.Uint8, Num: 200}, 200},
		{table.Value{Kind: table.Long, Num: 1 << 40}, 1 << 40},
		{table.IntValue(math.MaxInt64), math.MaxInt64},
		{table.IntValue(0), 0},
		{table.Int32Value(-5000), 0},
		{table.StringValue("5000"), 5000},
		{table.StringValue("99999999999999999999"), math.MaxInt64},
		{table.StringValue("-1"), 0},
		{table.StringValue("5s"), 0},
		{table.FloatValue(2.9), 2},
		{table.FloatValue(0.5), 0},
		{table.FloatValue(math.Inf(1)), 1 << 62},
		{table.FloatValue(math.NaN()), 0},
		{table.BoolValue(true), 0},
		{table.TableValue(nil), 0},
	} {
		in := table.Table{{Name: "a", Value: table.VoidValue()}, {Name: "x-delay", Value: tc.v}}
		ms, passed := delay(in)
		if ms != tc.want {
			t.Errorf("%s %s: %d ms, want %d", tc.v.Kind, tc.v, ms, tc.want)
		}
		got, _ := passed.Get("x-delay")
		if n, _ := got.AsInt(); ms > 0 && n != -ms || ms == 0 && !table.Equal(got, tc.v) && tc.v.Kind != table.Float64 {
			t.Errorf("%s %s: receivers see %s", tc.v.Kind, tc.v, got)
		}
		if v, _ := in.Get("x-delay"); v.Kind != tc.v.Kind || v.Num != tc.v.Num {
			t.Errorf("%s %s: the headers that came in were changed", tc.v.Kind, tc.v)
		}
	}
	if ms, _ := delay(nil); ms != 0 {
		t.Errorf("no header: %d ms", ms)
	}
}

// A time is a number of Unix ms, or a timestamp in seconds. One that is past, and what is no time, is no delay; then
// x-delay counts only if there is no time at all.
func TestDelayUntilHeader(t *testing.T) {
	now := newClock() // 1,000,000
	b := memoryBroker(t, Options{Now: now.Load})
	for _, tc := range []struct {
		v    table.Value
		want int64 // 0: no time; -1: past
	}{
		{table.IntValue(1_000_001), 1_000_001},
		{table.Int32Value(2_000_000), 2_000_000},
		{table.Value{Kind: table.Long, Num: 1 << 41}, 1 << 41},
		{table.IntValue(math.MaxInt64), math.MaxInt64},
		{table.StringValue("1000001"), 1_000_001},
		{table.StringValue("99999999999999999999"), math.MaxInt64},
		{table.FloatValue(1_000_001.9), 1_000_001},
		{table.FloatValue(math.Inf(1)), 1 << 62},
		{table.TimeValue(1001), 1_001_000},
		{table.TimeValue(math.MaxInt64), math.MaxInt64 / 1000 * 1000},
		{table.IntValue(1_000_000), -1},
		{table.IntValue(1), -1},
		{table.StringValue("1"), -1},
		{table.TimeValue(1000), -1},
		{table.IntValue(0), 0},
		{table.IntValue(-5), 0},
		{table.TimeValue(0), 0},
		{table.TimeValue(-1), 0},
		{table.StringValue("tomorrow"), 0},
		{table.StringValue(""), 0},
		{table.FloatValue(math.NaN()), 0},
		{table.BoolValue(true), 0},
		{table.VoidValue(), 0},
		{table.TableValue(nil), 0},
	} {
		for _, relative := range []bool{false, true} {
			in := table.Table{{Name: "x-delay-until", Value: tc.v}}
			if relative {
				in = append(in, table.Field{Name: "x-delay", Value: table.IntValue(7)})
			}
			var got message.Attributes
			_, differ := b.Delay(&got, in)
			var want message.Attributes
			switch {
			case tc.want > 0:
				want.Delay, want.DueAt = tc.want, true
			case tc.want == 0 && relative:
				want.Delay = 7
			}
			if got != want || differ != (want.Delay == 7) {
				t.Errorf("%s %s, with x-delay %t: %+v, want %+v; differ %t", tc.v.Kind, tc.v, relative, got, want, differ)
			}
		}
	}
}

// delayed publishes a message as a session does for an x-delay header.
func (c *client) delayed(exchange, key, body string, ms int64, mandatory bool) {
	c.t.Helper()
	h := table.Table{{Name: "x-delay", Value: table.IntValue(ms)}}
	c.withHeaders(exchange, key, body, h, mandatory)
}

// until publishes a message for a time.
func (c *client) until(exchange, key, body string, at int64, mandatory bool) {
	c.t.Helper()
	c.withHeaders(exchange, key, body, table.Table{{Name: "x-delay-until", Value: table.IntValue(at)}}, mandatory)
}

func (c *client) withHeaders(exchange, key, body string, h table.Table, mandatory bool) {
	c.t.Helper()
	a := message.Attributes{Encoding: message.AMQP, Expiration: -1, Persistent: true, HasHeaders: true}
	h, _ = c.b.Delay(&a, h)
	m := message.New(a, []byte(exchange), []byte(key), table.Append(nil, h), len(body))
	copy(m.Body(), body)
	p := &Publish{Msg: m, Mandatory: mandatory}
	if c.ch.confirms {
		c.seq++
		p.Seq = c.seq
	}
	c.ok(c.ch.Publish(p))
}

// clock is a time that tests set.
type clock struct{ atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.Store(1_000_000)
	return c
}

// advance ends the turns of clients, which keep the time of their begin, and moves the clock on.
func (k *clock) advance(ms int64, clients ...*client) {
	for _, c := range clients {
		c.end()
	}
	k.Add(ms)
}

func TestDelayedMessagesComeInOrderOfDueTime(t *testing.T) {
	now := newClock()
	b := memoryBroker(t, Options{Now: now.Load})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.ok(c.BindQueue("q", "amq.topic", "a.#", nil))
	for i, ms := range []int64{500, 100, 300, 0, -5, 100} {
		c.delayed("amq.topic", "a.b", fmt.Sprint(i, ",", ms), ms, false)
	}
	c.publish("", "q", "plain")
	now.advance(99, c)
	got, _ := c.drain("q")
	eq(t, "before any is due", got, []string{"3,0", "4,-5", "plain"})
	now.advance(1, c)
	c.publish("", "q", "after")
	now.advance(200, c)
	got, _ = c.drain("q")
	eq(t, "two times later", got, []string{"1,100", "5,100", "after", "2,300"})
	if q, _ := b.Queue("/", "q"); q.Counts().Delayed != 1 {
		t.Fatalf("counts %+v, want one delayed", q.Counts())
	}
	now.advance(1000, c)
	got, _ = c.drain("q")
	eq(t, "the last", got, []string{"0,500"})
}

// Times and delays are in one order; a time that passed before the queue gets the message is now.
func TestMessagesForATime(t *testing.T) {
	now := newClock()
	start := now.Load()
	b := memoryBroker(t, Options{Now: now.Load})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.until("", "q", "200", start+200, false)
	c.delayed("", "q", "150", 150, false)
	c.until("", "q", "100", start+100, false)
	c.until("", "q", "past", start-1, false)
	c.until("", "q", "now", start, false)
	got, _ := c.drain("q")
	eq(t, "at once", got, []string{"past", "now"})
	now.advance(99, c)
	got, _ = c.drain("q")
	eq(t, "before any is due", got, nil)
	now.advance(51, c)
	got, _ = c.drain("q")
	eq(t, "two", got, []string{"100", "150"})
	now.advance(50, c)
	got, _ = c.drain("q")
	eq(t, "the last", got, []string{"200"})

	// A delay counts from the commit, a time does not.
	c.ok(c.ch.TxSelect())
	start = now.Load()
	c.until("", "q", "long past", start+10, false)
	c.until("", "q", "later", start+100, false)
	c.delayed("", "q", "delayed", 90, false)
	now.advance(50, c)
	c.ok(c.ch.TxCommit())
	got, _ = c.drain("q")
	eq(t, "due before the commit", got, []string{"long past"})
	now.advance(50, c)
	got, _ = c.drain("q")
	eq(t, "due at its time", got, []string{"later"})
	now.advance(40, c)
	got, _ = c.drain("q")
	eq(t, "due by its delay", got, []string{"delayed"})
}

// Its time to live begins at the time, also at one that passes before the commit.
func TestTimeToLiveOfMessagesForATime(t *testing.T) {
	now := newClock()
	b := memoryBroker(t, Options{Now: now.Load})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q", Args: table.Table{{Name: "x-message-ttl", Value: table.Int32Value(50)}}})
	c.ok(c.ch.TxSelect())
	c.until("", "q", "m", now.Load()+10, false)
	now.advance(100, c)
	c.ok(c.ch.TxCommit())
	now.advance(49, c)
	got, _ := c.drain("q")
	eq(t, "in its time to live", got, []string{"m"})
	c.ok(c.ch.TxCommit())
	c.until("", "q", "n", now.Load()+100, false)
	c.ok(c.ch.TxCommit())
	now.advance(150, c)
	got, _ = c.drain("q")
	eq(t, "beyond it", got, nil)
}

// The timer alone wakes a queue with a consumer; the clock is the machine's.
func TestDelayedMessagesAreDelivered(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	c.consume(ConsumeArgs{Queue: "q", NoAck: true})
	for _, ms := range []int64{30, 10, 20} {
		c.delayed("", "q", strconv.FormatInt(ms, 10), ms, false)
	}
	c.delayed("", "q", "never", math.MaxInt64, false)
	c.end()
	var got []string
	until(t, "the deliveries", func() bool { got = append(got, c.sink.bodies()...); return len(got) >= 3 })
	eq(t, "deliveries", got, []string{"10", "20", "30"})
}

func TestMandatoryOfADelayedMessage(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.ok(c.ch.Confirms())
	var returned table.Value
	c.sink.onReturn = func(m *message.Message) {
		p, err := plainCodec{}.Decode(m.Props())
		if err != nil {
			t.Error(err)
		}
		returned, _ = p.Headers.Get("x-delay")
		returned.Str = string(m.Body())
	}
	c.delayed("", "nowhere", "back", 5000, true)
	c.end()
	eq(t, "events", c.sink.events, []string{"return 1 back", "ack 1 false"})
	if n, _ := returned.AsInt(); n != 5000 {
		t.Fatalf("the returned message asks for a delay of %d ms, want that of its publisher", n)
	}
	returned = table.Value{}
	c.until("", "nowhere", "back too", 1<<62, true)
	c.end()
	if returned.Kind != (table.Value{}).Kind || returned.Num != 0 || returned.Str != "back too" {
		t.Fatalf("the returned message for a time has the delay %s", returned)
	}
}

func TestLimitsAndTimeToLiveOfDelayedMessages(t *testing.T) {
	now := newClock()
	b := memoryBroker(t, Options{Now: now.Load})
	c := connect(t, b)
	c.ok(c.ch.Confirms())
	str, n := table.StringValue, table.Int32Value
	c.declare(QueueDeclare{Name: "dead"})
	dlx := table.Table{{Name: "x-dead-letter-exchange", Value: str("")}, {Name: "x-dead-letter-routing-key", Value: str("dead")}}
	c.declare(QueueDeclare{Name: "ttl", Args: append(table.Table{{Name: "x-message-ttl", Value: n(50)}}, dlx...)})
	c.declare(QueueDeclare{Name: "head", Args: append(table.Table{{Name: "x-max-length", Value: n(1)}}, dlx...)})
	c.declare(QueueDeclare{Name: "reject", Args: table.Table{{Name: "x-max-length", Value: n(2)}, {Name: "x-overflow", Value: str("reject-publish")}}})

	c.delayed("", "ttl", "ttl", 100, false)
	c.delayed("", "head", "head 1", 100, false)
	c.delayed("", "head", "head 2", 100, false)
	c.publish("", "head", "head 3")
	c.delayed("", "reject", "reject 1", 100, false)
	c.publish("", "reject", "reject 2")
	c.publish("", "reject", "reject 3")
	c.delayed("", "reject", "reject 4", 100, false)
	c.end()
	eq(t, "confirms", c.sink.events, []string{
		"ack 6 true", "nack 7 queue 'reject' in vhost '/' is full", "nack 8 queue 'reject' in vhost '/' is full",
	})
	now.advance(149, c)
	got, _ := c.drain("head")
	eq(t, "a length is that of ready messages", got, []string{"head 2"})
	c.end()
	got, _ = c.drain("dead")
	eq(t, "dead letters", got, []string{"head 3", "head 1"})
	got, _ = c.drain("ttl")
	eq(t, "the time to live begins at the due time", got, []string{"ttl"})
	c.delayed("", "ttl", "ttl", 100, false)
	now.advance(150, c)
	if _, ok := c.get("ttl"); ok {
		t.Fatal("an expired message came")
	}
	c.end()
	got, _ = c.drain("dead")
	eq(t, "dead letters, at once", got, []string{"ttl"})
}

func TestPurgeAndDeleteTakeDelayedMessages(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	for range 3 {
		c.delayed("", "q", "x", 1e6, false)
	}
	c.publish("", "q", "y")
	if n, e := c.PurgeQueue("q"); n != 4 || e != nil {
		t.Fatalf("purged %d, %v", n, e)
	}
	c.delayed("", "q", "x", 1e6, false)
	_, e := c.DeleteQueue("q", false, true)
	c.refused(e, PreconditionFailed, "queue 'q' in vhost '/' not empty")
	if n, e := c.DeleteQueue("q", false, false); n != 1 || e != nil {
		t.Fatalf("deleted with %d, %v", n, e)
	}
}

func TestDelayedMessageExchange(t *testing.T) {
	now := newClock()
	b := memoryBroker(t, Options{Now: now.Load})
	c := connect(t, b)
	declare := func(name string, args table.Table) *Error {
		return c.DeclareExchange(&ExchangeDeclare{Name: name, Type: "x-delayed-message", Args: args})
	}
	kind := func(name string) table.Table {
		return table.Table{{Name: "x-delayed-type", Value: table.StringValue(name)}}
	}
	const missing = "Invalid argument, 'x-delayed-type' must be an existing exchange type"
	c.refused(declare("x", nil), PreconditionFailed, missing)
	c.refused(declare("x", table.Table{{Name: "x-delayed-type", Value: table.Int32Value(1)}}), PreconditionFailed, missing)
	c.refused(declare("x", kind("x-delayed-message")), PreconditionFailed,
		"Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'")
	c.refused(declare("x", kind("odd")), PreconditionFailed, "unknown exchange type 'odd'")
	c.ok(declare("x", kind("topic")))
	c.ok(declare("x", kind("topic")))
	c.ok(declare("x", nil)) // the plugin does not compare them
	c.refused(c.DeclareExchange(&ExchangeDeclare{Name: "x", Type: "topic"}), PreconditionFailed,
		"inequivalent arg 'type' for exchange 'x' in vhost '/': received 'topic' but current is 'x-delayed-message'")

	c.declare(QueueDeclare{Name: "q"})
	c.ok(c.BindQueue("q", "x", "a.*.c", nil))
	for _, key := range []string{"a.b.c", "a.z.c", "a.j.k"} {
		c.delayed("x", key, key, 0, false)
		c.delayed("x", key, key+" late", 10, false)
	}
	c.end()
	got, _ := c.drain("q")
	eq(t, "without a delay", got, []string{"a.b.c", "a.z.c"})
	now.advance(10, c)
	got, _ = c.drain("q")
	eq(t, "delayed", got, []string{"a.b.c late", "a.z.c late"})
}

// What is due while the broker is down, and what was due before, comes in order of due time.
func TestDelayedMessagesSurvive(t *testing.T) {
	for _, clean := range []bool{true, false} {
		t.Run(fmt.Sprint("clean ", clean), func(t *testing.T) {
			fs := vfs.NewMem()
			fs.MakeDir(testDir)
			now := newClock()
			open := func(start Snapshot) *Broker {
				start.VHosts = []string{"/"}
				b, _, err := Open(Options{FS: fs, JournalDir: testDir, Start: start, Now: now.Load,
					Codecs: map[message.Encoding]message.Codec{message.AMQP: plainCodec{}}, tuning: tuning{queueResident: 2000}})
				if err != nil {
					t.Fatal(err)
				}
				if len(start.Users.Users) == 0 {
					if err := b.AddFirstUser("guest", "guest"); err != nil {
						t.Fatal(err)
					}
				}
				return b
			}
			b := open(Snapshot{})
			c := connect(t, b)
			c.declare(QueueDeclare{Name: "q", Durable: true, Args: table.Table{{Name: "x-max-priority", Value: table.Int32Value(3)}}})
			c.ok(c.ch.Confirms())
			var want []string
			for i := range 300 {
				if ms := int64(300 - i); i%2 == 0 {
					c.delayed("", "q", strconv.Itoa(300-i), ms, false)
				} else {
					c.until("", "q", strconv.Itoa(300-i), now.Load()+ms, false)
				}
				want = append(want, strconv.Itoa(i+1))
			}
			c.publish("", "q", "plain")
			now.advance(50, c)
			until(t, "the confirms", func() bool { c.peer.mu.Lock(); defer c.peer.mu.Unlock(); return c.sink.confirmed == 301 })
			q, _ := b.Queue("/", "q")
			until(t, "the first ones to be due", func() bool {
				done := b.newTurn()
				defer done.free()
				q.expire(done)
				return q.Counts().Ready == 51
			})
			snap := b.Snapshot()
			if clean {
				c.Close()
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
			} else {
				defer b.Close()
				fs = fs.Crash(1)
			}
			now.Add(100)
			b2 := open(snap)
			defer b2.Close()
			d := connect(t, b2)
			got, _ := d.drain("q")
			eq(t, "due by now", got, append([]string{"plain"}, want[:150]...))
			now.advance(1000, d)
			got, _ = d.drain("q")
			eq(t, "due later", got, want[150:])
			d.Close()
		})
	}
}

// A message behind one that stays expires when its queue says so, by argument or by a policy that comes
// later.
func TestExpireAnywhere(t *testing.T) {
	now := newClock()
	b := memoryBroker(t, Options{Now: now.Load})
	c := connect(t, b)
	args := table.Table{
		{Name: "x-dead-letter-exchange", Value: table.StringValue("")}, {Name: "x-dead-letter-routing-key", Value: table.StringValue("dead")},
	}
	c.declare(QueueDeclare{Name: "dead"})
	c.declare(QueueDeclare{Name: "later", Args: args})
	c.declare(QueueDeclare{Name: "q", Args: append(args, table.Field{Name: "x-expire-anywhere", Value: table.BoolValue(true)})})
	for _, name := range []string{"q", "later"} {
		for i, ttl := range []int64{-1, 20, 10, -1} {
			body := fmt.Sprint(name, " ", i)
			m := message.New(message.Attributes{Encoding: message.AMQP, Expiration: ttl}, nil, []byte(name), nil, len(body))
			copy(m.Body(), body)
			c.ok(c.ch.Publish(&Publish{Msg: m}))
		}
	}
	c.end()
	dead := func() (got []string) {
		for _, name := range []string{"q", "later"} {
			q, _ := b.Queue("/", name)
			done := b.newTurn()
			q.expire(done)
			done.free()
		}
		got, _ = c.drain("dead")
		c.end()
		return got
	}
	now.Add(9)
	eq(t, "before", dead(), nil)
	now.Add(1)
	eq(t, "the first", dead(), []string{"q 2"})
	now.Add(10)
	eq(t, "the second", dead(), []string{"q 1"})
	c.ok(b.PutPolicy(policyOf(t, "p", "", "queues", 0, false, table.Table{{Name: "expire-anywhere", Value: table.BoolValue(true)}})))
	got, _ := c.drain("dead")
	eq(t, "by policy", got, []string{"later 1", "later 2"})
	got, _ = c.drain("q")
	eq(t, "what stays", got, []string{"q 0", "q 3"})
}
