//go:build linux

package pressure

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"iter"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/rawamqp"
	fire "github.com/firemq/firemq/sdk/go"
	"github.com/firemq/firemq/test/internal/brokertest"
)

// soak makes the drills keep their load up for longer: make soak.
var soak = flag.Duration("soak", 0, "how long each drill keeps its load up; 0: until it has shown what it must")

// within is the most that a drill may take with its load, beside what soak asks for.
const within = time.Minute

// keep goes on until ok and the time that soak asks for, or fails when that is not within a minute more.
func keep(t *testing.T, what string, ok func() bool) {
	t.Helper()
	until := time.Now().Add(*soak)
	brokertest.Eventually(t, *soak+within, what, func() bool { return ok() && time.Now().After(until) })
}

// rounds counts to n, and on for as long as soak asks.
func rounds(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		until := time.Now().Add(*soak)
		for i := 0; (i < n || time.Now().Before(until)) && yield(i); i++ {
		}
	}
}

// limited is a broker with a memory limit of memoryLimit, in memory, and how much it had resident at most.
func limited(t *testing.T, flags ...string) (*brokertest.Broker, func() int64) {
	b := brokertest.Start(t, brokertest.Options{Flags: append([]string{"--memory-limit", fmt.Sprint(memoryLimit)}, flags...)})
	return b, watchRSS(t, b.Pid())
}

// stayed checks that memory was bounded.
func stayed(t *testing.T, peak func() int64) {
	t.Helper()
	stayedWithin(t, memoryLimit+memoryLimit/20, peak)
}

// stayedWithin checks that at most so many bytes were resident. A race build keeps what it notes of others beside that.
func stayedWithin(t *testing.T, most int64, peak func() int64) {
	t.Helper()
	t.Logf("at most %d MiB resident, %d allowed", peak()>>20, most>>20)
	if peak() > most && brokertest.RaceFactor == 1 {
		t.Errorf("%d bytes resident, want %d at most", peak(), most)
	}
}

const raised, over = "memory alarm: publishers are paused", "memory alarm is over"

// api asks the management API.
func api(t *testing.T, b *brokertest.Broker, path string, into any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", b.HTTPURL+"/api"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("guest", "guest")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		t.Fatal(err)
	}
}

// states counts the connections by their state.
func states(t *testing.T, b *brokertest.Broker) map[string]int {
	t.Helper()
	var list []struct{ State string }
	api(t, b, "/connections", &list)
	n := make(map[string]int)
	for _, c := range list {
		n[c.State]++
	}
	return n
}

// roundTrip sends one message and takes it back.
func roundTrip(t *testing.T, b *brokertest.Broker) {
	t.Helper()
	ch := dialAMQP(t, b.AMQPURL)
	q, err := ch.QueueDeclare("", false, true, true, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	list, err := ch.Consume(q.Name, "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Publish("", q.Name, false, false, amqp091.Publishing{Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-list:
	case <-time.After(within):
		t.Fatal("no message comes through")
	}
}

// 200 clients that begin what takes memory and never end it, 60 MB each: those who take too much are refused by
// name, nobody else notices, and memory stays below its limit.
func TestUnfinished(t *testing.T) {
	const each = 60 << 20
	long := table.Append(nil, table.Table{{Name: "long", Value: table.StringValue(strings.Repeat("x", 100_000))}})
	tx := (&amqp.TxSelect{}).AppendFrame(nil, 1)
	for name, kind := range map[string]struct {
		fire  bool   // over the FireMQ protocol
		first []byte // what the parts are of
		part  func(n int) []byte
	}{
		"messages half sent": {first: rawamqp.BeginMessage(64<<20, 0), part: func(int) []byte {
			return amqp.AppendBody(nil, 1, make([]byte, 100_000), 131072)
		}},
		"headers without a body": {part: func(n int) []byte {
			id := uint16(n%2000 + 2)
			b := (&amqp.ChannelOpen{}).AppendFrame(nil, id)
			b = (&amqp.BasicPublish{RoutingKey: []byte("q")}).AppendFrame(b, id)
			return amqp.AppendContentHeader(b, id, 1, append(binary.BigEndian.AppendUint32([]byte{0x20, 0}, uint32(len(long))), long...))
		}},
		"transactions": {first: tx, part: func(int) []byte {
			b := (&amqp.BasicPublish{RoutingKey: []byte("load")}).AppendFrame(nil, 1)
			b = amqp.AppendContentHeader(b, 1, 100_000, []byte{0, 0})
			return amqp.AppendBody(b, 1, make([]byte, 100_000), 131072)
		}},
		"frames half sent": {fire: true, first: []byte{0, 0xff, 0xff, 0xff}, part: func(int) []byte { return make([]byte, 80_000) }},
	} {
		t.Run(name, func(t *testing.T) {
			b, peak := limited(t)
			if _, err := dialAMQP(t, b.AMQPURL).QueueDeclare("load", false, false, false, false, nil); err != nil {
				t.Fatal(err)
			}
			var refused, sent atomic.Int64
			var conns []net.Conn
			var running sync.WaitGroup
			for range 200 {
				var c net.Conn
				most := each
				if kind.fire {
					var err error
					if c, err = connectFMQ1(brokertest.Address(t, b.FireURL), 0); err != nil {
						t.Fatal(err)
					}
					most = 15 << 20 // of a frame of 16 MiB
				} else {
					c = rawamqp.Login(t, brokertest.Address(t, b.AMQPURL))
				}
				conns = append(conns, c)
				running.Go(func() {
					c.SetDeadline(time.Now().Add(within / 2))
					_, err := c.Write(kind.first)
					for i, n := 0, 0; err == nil && n < most; i++ {
						part := kind.part(i)
						_, err = c.Write(part)
						n += len(part)
						sent.Add(int64(len(part)))
					}
					answer, _ := io.ReadAll(c)
					if strings.Contains(string(answer), "unfinished messages of all connections take more than") {
						refused.Add(1)
					}
				})
			}
			keep(t, "they are refused", func() bool { return refused.Load() > 50 })
			roundTrip(t, b)
			for _, c := range conns {
				c.Close()
			}
			running.Wait()
			brokertest.Eventually(t, within, "the alarm is over, if there was one", func() bool { return !lastOf(b.Output(), raised, over) })
			t.Logf("%d MiB sent, %d of 200 refused", sent.Load()>>20, refused.Load())
			roundTrip(t, b)
			stayed(t, peak)
		})
	}
}

// Clients that begin to log in and never end it, with frames as long as may be, or say much of themselves: whatever
// their number, memory stays below its limit, and others are served.
func TestUnfinishedHandshakes(t *testing.T) {
	for kind, many := range map[string]int{"AMQP": 4000, "FMQ1": 4000, "properties": 400} {
		t.Run(kind, func(t *testing.T) {
			b, peak := limited(t, "--log-level", "error")
			needFiles(t, b, many)
			c := startCrowd(t, b)
			c.do(t, "stall %s %d", kind, many)
			keep(t, "they are refused, or wait", func() bool { return true })
			roundTrip(t, b)
			c.leave()
			stayed(t, peak)
		})
	}
}

// Clients publish and read neither confirms nor returns: what waits for them has a bound.
func TestConfirmsThatAreNotRead(t *testing.T) {
	for name, kind := range map[string]struct {
		clients int
		durable bool
		publish amqp.BasicPublish
		props   []byte
	}{
		"returned":   {200, false, amqp.BasicPublish{RoutingKey: []byte("nowhere"), Mandatory: true}, []byte{0, 0}},
		"persistent": {200, true, amqp.BasicPublish{RoutingKey: []byte("one")}, []byte{0x10, 0, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			flags := []string{"--memory-limit", fmt.Sprint(memoryLimit)}
			data := ""
			if kind.durable {
				data = t.TempDir()
			}
			b := brokertest.Start(t, brokertest.Options{Data: data, Flags: flags})
			peak := watchRSS(t, b.Pid())
			if _, err := dialAMQP(t, b.AMQPURL).QueueDeclare("one", true, false, false, false, amqp091.Table{"x-max-length": int32(1)}); err != nil {
				t.Fatal(err)
			}
			part := kind.publish.AppendFrame(nil, 1)
			part = amqp.AppendContentHeader(part, 1, 1000, kind.props)
			part = amqp.AppendBody(part, 1, make([]byte, 1000), 131072)
			var sent atomic.Int64
			var running sync.WaitGroup
			var conns []net.Conn
			for range kind.clients {
				conns = append(conns, rawamqp.Login(t, brokertest.Address(t, b.AMQPURL)))
			}
			for _, c := range conns {
				running.Go(func() {
					_, err := c.Write((&amqp.ConfirmSelect{}).AppendFrame(nil, 1))
					for err == nil {
						if _, err = c.Write(part); err == nil {
							sent.Add(1)
						}
					}
				})
			}
			// Confirms of many at once are few bytes: it may take long until a client is not read.
			var last int64
			still, until := 0, time.Now().Add(*soak+within/6)
			brokertest.Eventually(t, *soak+2*within, "100,000 messages are taken, then no more, or for some time", func() bool {
				n := sent.Load()
				if n != last {
					last, still = n, 0
				}
				still++
				return n >= 100_000 && (still > 200 && time.Until(until) < within/6 || time.Now().After(until))
			})
			for _, c := range conns {
				c.Close()
			}
			running.Wait()
			brokertest.Eventually(t, within, "the alarm is over, if there was one", func() bool { return !lastOf(b.Output(), raised, over) })
			t.Logf("%d messages sent", sent.Load())
			roundTrip(t, b)
			stayed(t, peak)
		})
	}
}

// A consumer that does not read, without acknowledgements: its outbox has a bound, the rest stays in the
// queue, and the alarm stops publishers. When it reads the alarm ends by itself.
func TestConsumerThatNeverReads(t *testing.T) {
	overAMQP := func(t *testing.T, b *brokertest.Broker, noAck bool) net.Conn {
		return rawamqp.Consume(t, brokertest.Address(t, b.AMQPURL), "load", noAck)
	}
	for name, kind := range map[string]struct {
		publish func(*load, context.Context, int) error
		consume func(*testing.T, *brokertest.Broker, bool) net.Conn
		noAck   bool
	}{
		"AMQP no_ack":                   {(*load).publishAMQP, overAMQP, true},
		"AMQP acks":                     {(*load).publishAMQP, overAMQP, false},
		"AMQP no_ack, FireMQ publishes": {(*load).publishFire, overAMQP, true},
		"FireMQ no_ack":                 {(*load).publishFire, subscribeUnread, true},
		"FireMQ acks":                   {(*load).publishFire, subscribeUnread, false},
		"FireMQ no_ack, AMQP publishes": {(*load).publishAMQP, subscribeUnread, true},
	} {
		t.Run(name, func(t *testing.T) {
			b, peak := limited(t)
			c := kind.consume(t, b, kind.noAck)
			defer c.Close()
			l := &load{broker: b}
			ctx, cancel := context.WithTimeout(t.Context(), *soak+2*within)
			defer cancel()
			done := make(chan error, publishers)
			for i := range publishers {
				go func() { done <- kind.publish(l, ctx, i) }()
			}
			keep(t, "an alarm", func() bool { return lastOf(b.Output(), raised, over) })
			// Publishers that had the bad luck to wait for confirms are not blocked: they have not published since.
			brokertest.Eventually(t, within, "a publisher is blocked, and nobody only slowed", func() bool {
				n := states(t, b)
				return n["blocked"] >= 1 && n["blocked"]+n["blocking"] == publishers+1
			})
			l.stop.Store(true)
			if kind.noAck {
				go io.Copy(io.Discard, c) // it reads after all
			} else {
				c.Close() // what it has not acknowledged is dropped with the queue
				if _, err := dialAMQP(t, b.AMQPURL).QueueDelete("load", false, false, false); err != nil {
					t.Fatal(err)
				}
			}
			brokertest.Eventually(t, within, "the alarm is over", func() bool { return lastOf(b.Output(), over, raised) })
			for range publishers {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			stayed(t, peak)
		})
	}
}

// subscribeUnread subscribes to the queue "load", which it declares, with all the credit there can be, and reads
// nothing more.
func subscribeUnread(t *testing.T, b *brokertest.Broker, noAck bool) net.Conn {
	t.Helper()
	c, err := connectFMQ1(brokertest.Address(t, b.FireURL), 0)
	if err != nil {
		t.Fatal(err)
	}
	frames := fmq1.Append(nil, fmq1.OpDeclareQueue, &fmq1.DeclareQueue{RID: 1, Name: "load"})
	frames = fmq1.Append(frames, fmq1.OpSubscribe, &fmq1.Subscribe{RID: 2, Sub: 1, Queue: "load", Credit: math.MaxUint64, NoAck: noAck})
	if _, err := c.Write(frames); err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(within))
	var got []byte
	for answers := 0; answers < 2; {
		f, n, _, err := fmq1.Next(got, fmq1.DefaultMaxFrame)
		switch {
		case err != nil:
			t.Fatal(err)
		case n == 0:
			b := make([]byte, 1)
			if _, err := io.ReadFull(c, b); err != nil { // nothing behind the answers is read
				t.Fatal(err)
			}
			got = append(got, b...)
		case f.Op != fmq1.OpOK:
			t.Fatalf("%s in the place of ok: %q", f.Op, f.Header)
		default:
			got = got[n:]
			answers++
		}
	}
	c.SetReadDeadline(time.Time{})
	return c
}

// A million unacknowledged deliveries on one channel, which are then acknowledged at once; again and again, if soak
// asks for it.
func TestMillionUnacked(t *testing.T) {
	b := brokertest.Start(t, brokertest.Options{})
	const n = 1_000_000
	c, err := fire.Dial(t.Context(), b.FireURL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ch := dialAMQP(t, b.AMQPURL)
	if _, err := ch.QueueDeclare("q", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	list, err := ch.Consume("q", "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	counts := func() (ready, unacked float64) {
		var q struct {
			Ready   float64 `json:"messages_ready"`
			Unacked float64 `json:"messages_unacknowledged"`
		}
		api(t, b, "/queues/%2F/q", &q)
		return q.Ready, q.Unacked
	}
	for round := range rounds(1) {
		published := make(chan error, 1)
		go func() {
			p := c.NewPublisher(fire.PublisherOptions{})
			for range n {
				if err := p.Publish(t.Context(), fire.Message{Key: "q", Body: []byte("0123456789"), Transient: true}); err != nil {
					published <- err
					return
				}
			}
			published <- p.Flush(t.Context())
		}()
		var last uint64
		for range n {
			d := <-list
			last = d.DeliveryTag
		}
		if err := <-published; err != nil {
			t.Fatal(err)
		}
		if ready, unacked := counts(); ready != 0 || unacked != n || last != uint64(round+1)*n {
			t.Fatalf("%v ready, %v unacknowledged, the last tag is %d", ready, unacked, last)
		}
		resident := rss(b.Pid())
		t.Logf("%d MiB resident", resident>>20)
		if most := int64(n * 500); resident > most {
			t.Errorf("%d bytes resident, want %d at most", resident, most)
		}
		if err := ch.Ack(last, true); err != nil {
			t.Fatal(err)
		}
		brokertest.Eventually(t, within, "all is acknowledged", func() bool { _, unacked := counts(); return unacked == 0 })
	}
}

// An alarm that comes and goes 100 times, or for as long as soak asks, while clients work: each time publishers go on,
// and nothing that was confirmed is lost.
func TestAlarmComesAndGoes(t *testing.T) {
	settings := t.TempDir() + "/firemq.toml"
	b := (*brokertest.Broker)(nil)
	limit := func(text string) {
		t.Helper()
		if err := os.WriteFile(settings, []byte("[limits]\ndisk_free = '"+text+"'\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if b != nil {
			syscall.Kill(b.Pid(), syscall.SIGHUP)
		}
	}
	limit("0")
	b = brokertest.Start(t, brokertest.Options{Data: t.TempDir(), Flags: []string{"--config", settings, "--log-level", "warn,amqp=off"}})
	l := newLoad(b)
	close(l.drain)
	ctx, cancel := context.WithTimeout(t.Context(), *soak+3*within)
	defer cancel()
	ch := dialAMQP(t, b.AMQPURL)
	if _, err := ch.QueueDeclare("load", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, publishers)
	for i := range publishers {
		go func() { done <- l.publishPersistent(ctx, i) }()
	}
	if err := l.consume(ch); err != nil {
		t.Fatal(err)
	}
	alarm := func() bool {
		var n []struct {
			Alarm bool `json:"disk_free_alarm"`
		}
		api(t, b, "/nodes", &n)
		return n[0].Alarm
	}
	alarms := 0
	for range rounds(100) {
		alarms++
		limit("1000TB")
		brokertest.Eventually(t, within, "the alarm", alarm)
		limit("0")
		brokertest.Eventually(t, within, "the end of the alarm", func() bool { return !alarm() })
		before := l.sum(&l.confirmed)
		brokertest.Eventually(t, within, "publishers go on", func() bool { return l.sum(&l.confirmed) > before })
	}
	l.stop.Store(true)
	for range publishers {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	l.arrived(t)
	t.Logf("%d alarms, %d messages", alarms, l.sum(&l.confirmed))
	if n := states(t, b); n["blocked"]+n["blocking"] > 0 {
		t.Errorf("states %v after the alarms", n)
	}
}

// A publisher of few messages beside one that floods the journal: it is served in between, whatever waits
// for the disk.
func TestSmallPublisherBesideAFlood(t *testing.T) {
	b := brokertest.Start(t, brokertest.Options{Data: t.TempDir()})
	ch := dialAMQP(t, b.AMQPURL)
	for _, q := range []string{"load", "small"} {
		if _, err := ch.QueueDeclare(q, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), *soak+2*within)
	defer cancel()
	flooded, flow := atomic.Int64{}, false
	for range publishers {
		c, err := amqp091.Dial(b.AMQPURL)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fch, err := c.Channel()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			big := make([]byte, 60_000)
			for ctx.Err() == nil && fch.Publish("", "load", false, false, amqp091.Publishing{DeliveryMode: amqp091.Persistent, Body: big}) == nil {
				flooded.Add(1)
			}
		}()
	}
	var times []time.Duration
	keep(t, "100 confirms of the small publisher", func() bool {
		begin := time.Now()
		c, err := ch.PublishWithDeferredConfirm("", "small", false, false, amqp091.Publishing{DeliveryMode: amqp091.Persistent, Body: []byte("x")})
		if err != nil {
			t.Fatal(err)
		}
		if !c.Wait() {
			t.Fatal("refused")
		}
		times = append(times, time.Since(begin))
		if len(times)%20 == 0 {
			flow = flow || states(t, b)["flow"] > 0
			if _, err := ch.QueuePurge("load", false); err != nil { // the flood is not the point, its disk is
				t.Fatal(err)
			}
		}
		return len(times) >= 100
	})
	cancel()
	t.Logf("small publisher: median %s, 99 of 100 below %s; the flood brought %d MiB, flow was shown: %t",
		quantile(times, 0.5), quantile(times, 0.99), flooded.Load()*60_000>>20, flow)
	if flooded.Load() == 0 {
		t.Error("there was no flood")
	}
	if median := quantile(times, 0.5); median > 2*time.Second {
		t.Errorf("the small publisher waits %s for a confirm", median)
	}
}

// quantile gives the value below which that share of a list is.
func quantile(list []time.Duration, share float64) time.Duration {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[int(float64(len(sorted)-1)*share)].Round(10 * time.Microsecond)
}
