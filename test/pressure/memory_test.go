//go:build linux

// Package pressure runs the real binary with small limits and peers that bring more than it may hold.
package pressure

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	fire "github.com/firemq/firemq/sdk/go"
	"github.com/firemq/firemq/test/internal/brokertest"
)

const (
	memoryLimit = brokertest.RaceFactor * 128 << 20
	publishers  = 2
	bodySize    = 4 << 10
	window      = 500 // unconfirmed messages of a publisher
)

// Publishers at full speed against a queue that nobody consumes are paused before the broker has more
// than its limit. When consumers come the alarm ends by itself, publishers go on, and everything confirmed
// arrives.
func TestMemoryStaysUnderItsLimit(t *testing.T) {
	for name, c := range map[string]struct {
		publish func(*load, context.Context, int) error
		alarm   bool // always reached: bodies of persistent messages may leave memory before
		rests   bool // until it ends: who has deliveries to settle goes on by way of the disk
	}{
		"AMQP transient":    {(*load).publishAMQP, true, true},
		"FireMQ transient":  {(*load).publishFire, true, true},
		"AMQP persistent":   {(*load).publishPersistent, false, false},
		"FireMQ persistent": {(*load).publishFirePersistent, false, false},
		"AMQP and consumes": {(*load).publishAndConsume, true, false},
	} {
		t.Run(name, func(t *testing.T) { drill(t, c.publish, c.alarm, c.rests) })
	}
}

// load is what publishers and consumers of one drill share.
type load struct {
	broker *brokertest.Broker
	stop   atomic.Bool   // publishers end
	drain  chan struct{} // closed when messages are acknowledged

	published [publishers]atomic.Int64
	confirmed [publishers]atomic.Int64

	mu       sync.Mutex
	received [publishers]map[uint64]int // times each message came; guarded by mu
	total    int                        // different ones; guarded by mu
}

func drill(t *testing.T, publish func(*load, context.Context, int) error, alarm, rests bool) {
	b := brokertest.Start(t, brokertest.Options{Data: t.TempDir(), Flags: []string{"--memory-limit", strconv.Itoa(memoryLimit)}})
	l := newLoad(b)
	ctx, cancel := context.WithTimeout(t.Context(), *soak+2*time.Minute)
	defer cancel()
	conn, err := amqp091.Dial(b.AMQPURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("load", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}

	peak := watchRSS(t, b.Pid())
	done := make(chan error, publishers)
	for i := range publishers {
		go func() { done <- publish(l, ctx, i) }()
	}
	holds := func() bool { return lastOf(b.Output(), raised, over) }
	brokertest.Eventually(t, time.Minute, "alarm, or three times the limit published", func() bool {
		return holds() || !alarm && l.sum(&l.published) > 3*memoryLimit/bodySize
	})
	if rests {
		// It holds: publishers are at rest.
		var last int64
		still := 0
		brokertest.Eventually(t, within, "publishers rest", func() bool {
			if n := l.sum(&l.confirmed); n != last {
				last, still = n, 0
			}
			still++
			return still > 200 && holds()
		})
	}

	keep(t, "the load has its time", func() bool { return true })
	before := l.sum(&l.confirmed)
	close(l.drain)
	for range 2 {
		if err := l.consume(ch); err != nil {
			t.Fatal(err)
		}
	}
	brokertest.Eventually(t, time.Minute, "the alarm ends and publishers go on", func() bool {
		return l.sum(&l.confirmed) > before+window*publishers && (!alarm || strings.Contains(b.Output(), over))
	})
	l.stop.Store(true)
	for range publishers {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	l.arrived(t)
	t.Logf("%d messages of %d bytes", l.total, bodySize)
	stayed(t, peak)
}

func newLoad(b *brokertest.Broker) *load {
	l := &load{broker: b, drain: make(chan struct{})}
	for i := range l.received {
		l.received[i] = make(map[uint64]int)
	}
	return l
}

func (l *load) sum(of *[publishers]atomic.Int64) (n int64) {
	for i := range of {
		n += of[i].Load()
	}
	return n
}

// arrived waits for everything confirmed, and checks that each message is there.
func (l *load) arrived(t *testing.T) {
	t.Helper()
	total := func() int64 {
		l.mu.Lock()
		defer l.mu.Unlock()
		return int64(l.total)
	}
	all := l.sum(&l.confirmed)
	for last := total(); last < all; last = total() {
		brokertest.Eventually(t, within, fmt.Sprintf("more than %d of the %d confirmed messages arrive", last, all), func() bool { return total() > last })
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range publishers {
		for seq := range uint64(l.confirmed[i].Load()) {
			if n := l.received[i][seq]; n == 0 {
				t.Fatalf("publisher %d: message %d was confirmed and did not arrive", i, seq)
			}
		}
	}
}

// lastOf reports whether a is in text, after the last b.
func lastOf(text, a, b string) bool { return strings.LastIndex(text, a) > strings.LastIndex(text, b) }

// watchRSS looks at the resident memory of a process until the test ends. Pages of mapped files beyond the
// program, of the journal that a backlog is read from, are not the broker's to bound: the kernel takes them back.
func watchRSS(t *testing.T, pid int) (peak func() int64) {
	var most atomic.Int64
	quit, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			most.Store(max(most.Load(), rss(pid)))
		}
	}()
	t.Cleanup(func() {
		close(quit)
		<-over
	})
	return most.Load
}

// rss is the resident memory of a process without the pages of mapped files beyond the program; 0: it has ended.
func rss(pid int) int64 {
	anonymous, mapped := resident(pid)
	return anonymous + min(mapped, 12<<20)
}

// resident is the resident memory of a process, bytes: what is in no file, and what is, the program as well, of which
// the kernel takes pages back as it needs them. 0: it has ended.
func resident(pid int) (anonymous, mapped int64) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	f := strings.Fields(string(b))
	if len(f) < 3 {
		return 0, 0
	}
	all, _ := strconv.ParseInt(f[1], 10, 64)
	mapped, _ = strconv.ParseInt(f[2], 10, 64)
	page := int64(os.Getpagesize())
	return (all - mapped) * page, mapped * page
}

// body is a message that says who it is.
func body(publisher int, seq int64) []byte {
	b := make([]byte, bodySize)
	b[0] = byte(publisher)
	binary.BigEndian.PutUint64(b[1:], uint64(seq))
	return b
}

func (l *load) publishAMQP(ctx context.Context, i int) error {
	return l.publishMode(ctx, i, amqp091.Transient, nil)
}

func (l *load) publishPersistent(ctx context.Context, i int) error {
	return l.publishMode(ctx, i, amqp091.Persistent, nil)
}

// publishAndConsume publishes on a connection that consumes, too: its acks must not be what the alarm
// waits for.
func (l *load) publishAndConsume(ctx context.Context, i int) error {
	return l.publishMode(ctx, i, amqp091.Transient, l.consume)
}

// publishMode publishes until the load stops, with so many unconfirmed at most, and waits for the confirms.
func (l *load) publishMode(ctx context.Context, i int, mode uint8, also func(*amqp091.Channel) error) error {
	conn, err := amqp091.Dial(l.broker.AMQPURL)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if also != nil {
		if err := also(ch); err != nil {
			return err
		}
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	confirms := ch.NotifyPublish(make(chan amqp091.Confirmation, window))
	free := make(chan struct{}, window)
	ended := make(chan error, 1)
	go func() {
		for c := range confirms {
			if !c.Ack || c.DeliveryTag != uint64(l.confirmed[i].Load())+1 {
				ended <- fmt.Errorf("confirm %+v after %d", c, l.confirmed[i].Load())
				return
			}
			l.confirmed[i].Add(1)
			<-free
		}
		ended <- fmt.Errorf("publisher %d: the channel closed", i)
	}()
	wait := func() error {
		select {
		case free <- struct{}{}:
			return nil
		case err := <-ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for seq := int64(0); !l.stop.Load(); seq++ {
		if err := wait(); err != nil {
			return err
		}
		if err := ch.PublishWithContext(ctx, "", "load", false, false, amqp091.Publishing{DeliveryMode: mode, Body: body(i, seq)}); err != nil {
			return err
		}
		l.published[i].Add(1)
	}
	for range window { // the last confirm has come when all places are taken again
		if err := wait(); err != nil {
			return err
		}
	}
	return nil
}

func (l *load) publishFire(ctx context.Context, i int) error {
	return l.publishFireMode(ctx, i, true)
}

func (l *load) publishFirePersistent(ctx context.Context, i int) error {
	return l.publishFireMode(ctx, i, false)
}

func (l *load) publishFireMode(ctx context.Context, i int, transient bool) error {
	c, err := fire.Dial(ctx, l.broker.FireURL)
	if err != nil {
		return err
	}
	defer c.Close()
	p := c.NewPublisher(fire.PublisherOptions{})
	for seq := int64(0); !l.stop.Load(); seq++ {
		if err := p.Publish(ctx, fire.Message{Key: "load", Body: body(i, seq), Transient: transient}); err != nil {
			return err
		}
		l.published[i].Add(1)
		l.confirmed[i].Store(max(0, seq+1-2*1024)) // more than its window are confirmed
	}
	if err := p.Flush(ctx); err != nil {
		return err
	}
	l.confirmed[i].Store(l.published[i].Load())
	return nil
}

// consume takes messages until the channel ends; it counts and acknowledges them once the load is drained.
func (l *load) consume(ch *amqp091.Channel) error {
	if err := ch.Qos(200, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume("load", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	go func() {
		for d := range deliveries {
			<-l.drain
			seq := binary.BigEndian.Uint64(d.Body[1:])
			l.mu.Lock()
			of := l.received[d.Body[0]]
			if of[seq]++; of[seq] == 1 {
				l.total++
			}
			l.mu.Unlock()
			if d.Ack(false) != nil {
				return
			}
		}
	}()
	return nil
}
