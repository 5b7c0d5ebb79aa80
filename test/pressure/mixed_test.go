//go:build linux

package pressure

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/rawamqp"
	"github.com/firemq/firemq/test/internal/brokertest"
)

var seed = flag.Uint64("seed", 0, "of what the clients of TestMixedPressure choose; 0 takes a new one, which is printed")

// All kinds of misbehaviour at once, in a random mixture: consumers that do not read, very many unacknowledged
// deliveries, headers as long as may be, messages half sent, open transactions, floods of declarations. Memory stays
// bounded, publishers and a consumer that behave get on, and nothing that was confirmed to them is lost.
func TestMixedPressure(t *testing.T) {
	const (
		clients = 16
		atLeast = 12 * time.Second
	)
	from := *seed
	if from == 0 {
		from = rand.Uint64()
	}
	t.Logf("seed %d", from)
	b := brokertest.Start(t, brokertest.Options{Data: t.TempDir(), Flags: []string{"--memory-limit", fmt.Sprint(memoryLimit), "--log-level", "warn,amqp=off,fire=off"}})
	peak := watchRSS(t, b.Pid())
	ch := dialAMQP(t, b.AMQPURL)
	if _, err := ch.QueueDeclare("load", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	l := newLoad(b)
	close(l.drain)
	if err := l.consume(ch); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), *soak+5*within)
	defer cancel()
	done := make(chan error, publishers)
	for i, publish := range []func(*load, context.Context, int) error{(*load).publishPersistent, (*load).publishFirePersistent} {
		go func() { done <- publish(l, ctx, i) }()
	}

	x := &mixture{amqp: brokertest.Address(t, b.AMQPURL), fire: brokertest.Address(t, b.FireURL)}
	var crowd sync.WaitGroup
	for i := range clients {
		crowd.Go(func() { x.play(i, rand.New(rand.NewPCG(from, uint64(i)))) })
	}
	// The longest time in which no message of those that behave has come.
	begin := time.Now()
	last, since, longest := 0, begin, time.Duration(0)
	total := func() int { l.mu.Lock(); defer l.mu.Unlock(); return l.total }
	moves := func() bool {
		if n := total(); n != last {
			last, since = n, time.Now()
		}
		longest = max(longest, time.Since(since))
		return time.Since(since) < within
	}
	brokertest.Eventually(t, *soak+5*within, "the mixture has its time", func() bool {
		if !moves() {
			t.Fatalf("no message has come for %s\n%s", longest, b.Output())
		}
		return time.Since(begin) > atLeast+*soak
	})
	x.over.Store(true)
	crowd.Wait()
	before := total()
	brokertest.Eventually(t, within, "publishers go on without it", func() bool { return total() > before+publishers*window })
	l.stop.Store(true)
	for range publishers {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	l.arrived(t)
	t.Logf("%d messages came through, none for %s at most; %d alarms; %s",
		total(), longest.Round(time.Millisecond), strings.Count(b.Output(), raised), x)
	stayedWithin(t, memoryLimit+memoryLimit/10, peak)
	for i := range x.turns {
		if x.turns[i].Load() == 0 {
			t.Errorf("there was no turn of %s", kinds[i].name)
		}
	}
}

// mixture is what the clients that misbehave share.
type mixture struct {
	amqp, fire string // addresses
	over       atomic.Bool
	turns      [len(kinds)]atomic.Int64 // of each kind
	sent       [len(kinds)]atomic.Int64 // bytes
}

func (x *mixture) String() string {
	var list []string
	for i, k := range kinds {
		list = append(list, fmt.Sprintf("%s: %d times, %d MiB", k.name, x.turns[i].Load(), x.sent[i].Load()>>20))
	}
	return strings.Join(list, ", ")
}

// kinds are the ways to misbehave. Each begins on a connection of its own with a queue of its own, which is gone
// with it, and writes what part makes for as long as its turn lasts.
var kinds = [...]struct {
	name  string
	fire  bool // over the FireMQ protocol
	reads bool // all that it is sent, else nothing
	begin func(r *rand.Rand, queue string) []byte
	part  func(r *rand.Rand, queue string, n int) []byte
}{
	{"consumers that do not read", false, false, func(r *rand.Rand, queue string) []byte {
		return consumeOwn(queue, r.IntN(2) == 0)
	}, func(r *rand.Rand, queue string, _ int) []byte {
		return message(queue, nil, 1+r.IntN(64<<10))
	}},
	{"unacknowledged deliveries", false, true, func(_ *rand.Rand, queue string) []byte {
		return consumeOwn(queue, false)
	}, func(_ *rand.Rand, queue string, _ int) []byte {
		return slices.Repeat(message(queue, nil, 10), 100)
	}},
	{"long headers", false, true, func(_ *rand.Rand, queue string) []byte {
		return declareOwn(queue)
	}, func(r *rand.Rand, queue string, _ int) []byte {
		return message(queue, table.Table{{Name: "long", Value: table.StringValue(strings.Repeat("x", r.IntN(120_000)))}}, 1)
	}},
	{"messages half sent", false, false, func(r *rand.Rand, queue string) []byte {
		b := (&amqp.BasicPublish{RoutingKey: []byte(queue)}).AppendFrame(nil, 1)
		return amqp.AppendContentHeader(b, 1, 64<<20, []byte{0, 0})
	}, func(r *rand.Rand, _ string, _ int) []byte {
		return amqp.AppendBody(nil, 1, make([]byte, 1+r.IntN(100_000)), 131072)
	}},
	{"open transactions", false, true, func(_ *rand.Rand, queue string) []byte {
		return (&amqp.TxSelect{}).AppendFrame(declareOwn(queue), 1)
	}, func(r *rand.Rand, queue string, _ int) []byte {
		b := message(queue, nil, r.IntN(100_000))
		switch r.IntN(100) {
		case 0:
			return (&amqp.TxCommit{}).AppendFrame(b, 1)
		case 1:
			return (&amqp.TxRollback{}).AppendFrame(b, 1)
		}
		return b
	}},
	{"declarations", false, true, func(*rand.Rand, string) []byte { return nil }, func(r *rand.Rand, queue string, n int) []byte {
		note := table.Append(nil, table.Table{{Name: "x-note", Value: table.StringValue(strings.Repeat("n", r.IntN(16_000)))}})
		name := fmt.Appendf(nil, "%s.%d", queue, n)
		b := (&amqp.QueueDeclare{Queue: name, Exclusive: true, Arguments: note}).AppendFrame(nil, 1)
		b = (&amqp.QueueBind{Queue: name, Exchange: []byte("amq.topic"), RoutingKey: name, Arguments: note}).AppendFrame(b, 1)
		return (&amqp.BasicConsume{Queue: name, NoAck: true, Arguments: note}).AppendFrame(b, 1)
	}},
	{"subscriptions that are not read", true, false, func(r *rand.Rand, queue string) []byte {
		b := fmq1.Append(nil, fmq1.OpDeclareQueue, &fmq1.DeclareQueue{RID: 1, Name: queue, Exclusive: true})
		return fmq1.Append(b, fmq1.OpSubscribe, &fmq1.Subscribe{RID: 2, Sub: 1, Queue: queue, Credit: math.MaxUint64, NoAck: r.IntN(2) == 0})
	}, func(r *rand.Rand, queue string, n int) []byte {
		size := 1 + r.IntN(64<<10)
		m := fmq1.Publish{Seq: uint64(n) + 1, Key: []byte(queue)}
		return append(fmq1.End(m.AppendTo(fmq1.Begin(nil, fmq1.OpPublish)), 0, size), make([]byte, size)...)
	}},
	{"frames half sent", true, false, func(*rand.Rand, string) []byte {
		return []byte{0, 0xff, 0xff, 0xff, byte(fmq1.OpPublish)}
	}, func(r *rand.Rand, _ string, n int) []byte {
		if n > 150 { // it stays half sent
			return nil
		}
		return make([]byte, 1+r.IntN(100_000))
	}},
}

func declareOwn(queue string) []byte {
	return (&amqp.QueueDeclare{Queue: []byte(queue), Exclusive: true, Arguments: table.Append(nil, nil)}).AppendFrame(nil, 1)
}

func consumeOwn(queue string, noAck bool) []byte {
	return (&amqp.BasicConsume{Queue: []byte(queue), NoAck: noAck, Arguments: table.Append(nil, nil)}).AppendFrame(declareOwn(queue), 1)
}

// message is a publish of a transient message, with headers if there are any.
func message(queue string, headers table.Table, size int) []byte {
	props := []byte{0, 0}
	if headers != nil {
		h := table.Append(nil, headers)
		props = append([]byte{0x20, 0}, h...)
	}
	b := (&amqp.BasicPublish{RoutingKey: []byte(queue)}).AppendFrame(nil, 1)
	b = amqp.AppendContentHeader(b, 1, size, props)
	return amqp.AppendBody(b, 1, make([]byte, size), 131072)
}

// play has one client take turns of random kinds and lengths until the test is over.
func (x *mixture) play(client int, r *rand.Rand) {
	for turn := 0; !x.over.Load(); turn++ {
		kind := r.IntN(len(kinds))
		if turn == 0 {
			kind = client % len(kinds) // so that there is one of each
		}
		lasts := time.Duration(100+r.IntN(2000)) * time.Millisecond
		if c, err := x.dial(kind); err == nil {
			x.turns[kind].Add(1)
			x.turn(c, kind, fmt.Sprintf("mixed.%d.%d", client, turn), r, lasts)
		}
	}
}

func (x *mixture) dial(kind int) (net.Conn, error) {
	if kinds[kind].fire {
		return connectFMQ1(x.fire, 0)
	}
	return rawamqp.Connect(x.amqp, "guest", (&amqp.ChannelOpen{}).AppendFrame(nil, 1), amqp.IDChannelOpenOk)
}

// turn misbehaves on a connection until the turn is over. Being refused ends what is written, not the turn: what it
// holds, it holds.
func (x *mixture) turn(c net.Conn, kind int, queue string, r *rand.Rand, lasts time.Duration) {
	ends := time.Now().Add(lasts)
	c.SetDeadline(ends)
	k := &kinds[kind]
	var reads sync.WaitGroup
	if k.reads {
		reads.Go(func() { io.Copy(io.Discard, c) })
	}
	defer reads.Wait()
	defer c.Close()
	b := k.begin(r, queue)
	for n := 0; ; n++ {
		wrote, err := c.Write(b)
		x.sent[kind].Add(int64(wrote))
		if err != nil {
			break
		}
		if b = k.part(r, queue, n); b == nil {
			break
		}
	}
	for time.Now().Before(ends) && !x.over.Load() {
		<-time.After(10 * time.Millisecond)
	}
}
