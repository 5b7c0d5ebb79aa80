//go:build linux

package pressure

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/test/internal/brokertest"
)

// One connection fills the memory, nobody else is there, and it has a window of publishes on its way when the alarm
// begins: all of them are taken by way of the disk, so that the acks behind them are carried out and the alarm ends.
// Messages are transient, and filled memory while they were ready, or persistent, and did that unacknowledged.
func TestAcksBehindAWindowEndTheAlarm(t *testing.T) {
	windows, bodies := []int{32 << 20}, []int{largeBody}
	if *soak > 0 {
		windows, bodies = []int{4 << 20, 16 << 20, 64 << 20, 120 << 20}, []int{largeBody, bodySize}
	}
	for _, size := range windows {
		for name, dial := range loopers {
			for _, persistent := range []bool{false, true} {
				for _, body := range bodies {
					t.Run(fmt.Sprintf("%s persistent=%v %d MiB of %d bytes", name, persistent, size>>20, body), func(t *testing.T) {
						for range rounds(1) {
							passWindow(t, dial, persistent, size, body)
						}
					})
				}
			}
		}
	}
}

func passWindow(t *testing.T, dial dialLooper, persistent bool, size, body int) {
	b := brokertest.Start(t, brokertest.Options{Data: t.TempDir(), Flags: []string{"--memory-limit", fmt.Sprint(memoryLimit)}})
	peak := watchRSS(t, b.Pid())
	p := dial(t, b, persistent)
	for !lastOf(b.Output(), raised, over) {
		if p.sent*uint64(body) > 4*memoryLimit {
			t.Fatal("no alarm")
		}
		p.send(t, body)
	}
	for range size / body {
		p.send(t, body)
	}
	p.acknowledge(t)
	brokertest.Eventually(t, within, "the alarm is over", func() bool { return lastOf(b.Output(), over, raised) })
	p.settled(t, b, peak)
}

// The same with messages that are tiny: what they take in memory is their places, among those that are delivered and not
// acknowledged, and no disk takes that. So they are not delivered until some are, and the acks behind them are reached.
func TestAcksBehindTinyMessagesEndTheAlarm(t *testing.T) {
	const body, messages = 10, 450_000
	for name, dial := range loopers {
		if name == "FireMQ" || *soak > 0 {
			t.Run(name, func(t *testing.T) { passWindow(t, dial, true, messages*body, body) })
		}
	}
}

// While the disk alarm holds, and no other, the same window is taken, and all that is in it acknowledged.
func TestAcksBehindAWindowInADiskAlarm(t *testing.T) {
	const size = 48 << 20
	for name, dial := range loopers {
		for _, persistent := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s persistent=%v", name, persistent), func(t *testing.T) {
				settings := filepath.Join(t.TempDir(), "firemq.toml")
				limit := func(text string) {
					t.Helper()
					if err := os.WriteFile(settings, fmt.Appendf(nil, "[limits]\nmemory = '%d'\ndisk_free = '%s'\n", memoryLimit, text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				limit("0")
				b := brokertest.Start(t, brokertest.Options{Data: t.TempDir(), Flags: []string{"--config", settings}})
				peak := watchRSS(t, b.Pid())
				p := dial(t, b, persistent)
				for range rounds(1) {
					p.send(t, largeBody)
					brokertest.Eventually(t, within, "a delivery", p.waits)
					limit("1000TB")
					syscall.Kill(b.Pid(), syscall.SIGHUP)
					const raised, over = "disk alarm: publishers are paused", "disk alarm is over"
					brokertest.Eventually(t, within, "the alarm", func() bool { return lastOf(b.Output(), raised, over) })
					for range size / largeBody {
						p.send(t, largeBody)
					}
					p.acknowledge(t)
					p.settled(t, b, peak)
					if !lastOf(b.Output(), raised, over) {
						t.Error("the alarm did not last")
					}
					limit("0")
					syscall.Kill(b.Pid(), syscall.SIGHUP)
					brokertest.Eventually(t, within, "the end of the alarm", func() bool { return lastOf(b.Output(), over, raised) })
				}
			})
		}
	}
}

// loopQueue is where a looper publishes, and consumes from.
const loopQueue = "loop"

// looper is a connection that publishes and consumes, and heeds no alarm.
type looper struct {
	publish func(body []byte) error // waits while the broker does not read
	ack     func(tag uint64) error
	close   func() // any goroutine

	sent uint64          // messages, by their numbers
	got  map[uint64]bool // those that came

	mu   sync.Mutex
	tags []uint64 // guarded by mu, like seqs
	seqs []uint64
}

// patience is how long a broker may take for a window.
const patience = 3 * time.Minute

// send publishes the next message, of so many bytes.
func (p *looper) send(t *testing.T, size int) {
	t.Helper()
	defer time.AfterFunc(patience, p.close).Stop()
	body := make([]byte, size)
	binary.BigEndian.PutUint64(body, p.sent)
	if err := p.publish(body); err != nil {
		t.Fatal(err)
	}
	p.sent++
}

// waits reports whether there is a delivery.
func (p *looper) waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.tags) > 0
}

// acknowledge acknowledges what comes until all is there that was sent.
func (p *looper) acknowledge(t *testing.T) {
	t.Helper()
	if p.got == nil {
		p.got = make(map[uint64]bool)
	}
	for late := time.After(patience); uint64(len(p.got)) < p.sent; {
		tags, seqs := p.deliveries()
		for i := range tags {
			if seqs[i] >= p.sent || p.got[seqs[i]] {
				t.Fatalf("message %d of %d, again or never sent", seqs[i], p.sent)
			}
			p.got[seqs[i]] = true
			if err := p.ack(tags[i]); err != nil {
				t.Fatal(err)
			}
		}
		if len(tags) > 0 {
			continue
		}
		select {
		case <-time.After(time.Millisecond):
		case <-late:
			t.Fatalf("%d of %d messages came", len(p.got), p.sent)
		}
	}
}

// settled waits until nothing is left in the queue, and checks that memory was bounded.
func (p *looper) settled(t *testing.T, b *brokertest.Broker, peak func() int64) {
	t.Helper()
	brokertest.Eventually(t, within, "everything is acknowledged", func() bool {
		var q struct{ Messages float64 }
		api(t, b, "/queues/%2F/"+loopQueue, &q)
		return q.Messages == 0
	})
	t.Logf("%d messages", p.sent)
	stayedWithin(t, memoryLimit+memoryLimit/8, peak) // a 16th, and the places of what is taken whatever memory is in use
}

type dialLooper func(t *testing.T, b *brokertest.Broker, persistent bool) *looper

var loopers = map[string]dialLooper{"AMQP": loopAMQP, "FireMQ": loopFire}

// fewUnacked is the prefetch of a looper whose transient messages are to fill memory while they are ready.
const fewUnacked = 100

// came notes a delivery.
func (p *looper) came(tag uint64, body []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tags, p.seqs = append(p.tags, tag), append(p.seqs, binary.BigEndian.Uint64(body))
}

// deliveries gives those that came since the last call.
func (p *looper) deliveries() (tags, seqs []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	tags, seqs = p.tags, p.seqs
	p.tags, p.seqs = nil, nil
	return tags, seqs
}

func loopAMQP(t *testing.T, b *brokertest.Broker, persistent bool) *looper {
	conn, err := amqp091.Dial(b.AMQPURL)
	if err != nil {
		t.Fatal(err)
	}
	end := func() { conn.CloseDeadline(time.Now()) }
	t.Cleanup(end)
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	prefetch, mode := fewUnacked, uint8(amqp091.Transient)
	if persistent {
		prefetch, mode = 0, amqp091.Persistent
	}
	_, err = ch.QueueDeclare(loopQueue, persistent, false, false, false, nil)
	if err == nil {
		err = ch.Qos(prefetch, 0, false)
	}
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		t.Fatal(err)
	}
	list, err := ch.Consume(loopQueue, "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &looper{
		publish: func(body []byte) error {
			return ch.Publish("", loopQueue, false, false, amqp091.Publishing{DeliveryMode: mode, Body: body})
		},
		ack:   func(tag uint64) error { return ch.Ack(tag, false) },
		close: end,
	}
	go func() {
		for d := range list {
			p.came(d.DeliveryTag, d.Body)
		}
	}()
	return p
}

func loopFire(t *testing.T, b *brokertest.Broker, persistent bool) *looper {
	c, err := connectFMQ1(brokertest.Address(t, b.FireURL), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	credit := uint64(fewUnacked)
	if persistent {
		credit = math.MaxUint64
	}
	frames := fmq1.Append(nil, fmq1.OpDeclareQueue, &fmq1.DeclareQueue{RID: 1, Name: loopQueue, Durable: persistent})
	frames = fmq1.Append(frames, fmq1.OpSubscribe, &fmq1.Subscribe{RID: 2, Sub: 1, Queue: loopQueue, Credit: credit})
	if _, err := c.Write(frames); err != nil {
		t.Fatal(err)
	}
	seq := uint64(0)
	p := &looper{
		publish: func(body []byte) error {
			seq++
			m := fmq1.Publish{Seq: seq, Key: []byte(loopQueue), Persistent: persistent}
			_, err := c.Write(append(fmq1.End(m.AppendTo(fmq1.Begin(nil, fmq1.OpPublish)), 0, len(body)), body...))
			return err
		},
		ack: func(tag uint64) error {
			frames := (&fmq1.Settle{Tag: tag}).AppendTo(fmq1.Begin(nil, fmq1.OpAck))
			frames = fmq1.End(frames, 0, 0)
			if !persistent {
				at := len(frames)
				frames = fmq1.End((&fmq1.Credit{Sub: 1, Credit: 1}).AppendTo(fmq1.Begin(frames, fmq1.OpCredit)), at, 0)
			}
			_, err := c.Write(frames)
			return err
		},
		close: func() { c.Close() },
	}
	go p.read(t, c)
	return p
}

// read notes what comes over the FireMQ protocol until the connection ends.
func (p *looper) read(t *testing.T, c net.Conn) {
	var got []byte
	for buf := make([]byte, 256<<10); ; {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		got = append(got, buf[:n]...)
		at := 0
		for {
			f, n, _, err := fmq1.Next(got[at:], fmq1.DefaultMaxFrame)
			if err != nil {
				t.Error(err)
				return
			}
			if n == 0 {
				break
			}
			at += n
			switch f.Op {
			case fmq1.OpDeliver:
				var d fmq1.Deliver
				if err := d.Decode(f.Header); err != nil {
					t.Error(err)
					return
				}
				p.came(d.Tag, f.Payload)
			case fmq1.OpError, fmq1.OpClose:
				t.Errorf("%s: %q", f.Op, f.Header)
				return
			}
		}
		got = slices.Delete(got, 0, at)
	}
}

// A client that has one message, never acknowledges it, and publishes whatever it is told is stopped when it has brought
// twice the limit of memory; one that has none is stopped at once. Neither takes memory, and the end of the alarm
// lets both go on.
func TestWhoNeverAcknowledgesIsStopped(t *testing.T) {
	dir := t.TempDir()
	b := brokertest.Start(t, brokertest.Options{Data: dir, Flags: []string{"--memory-limit", fmt.Sprint(memoryLimit)}})
	peak := watchRSS(t, b.Pid())
	ch := dialAMQP(t, b.AMQPURL)
	for _, q := range []string{"full", "sink", "bait"} {
		if _, err := ch.QueueDeclare(q, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := ch.Publish("", "bait", false, false, amqp091.Publishing{}); err != nil {
		t.Fatal(err)
	}
	filler, abuser := newFlood(t, b, "full", amqp091.Transient), newFlood(t, b, "sink", amqp091.Transient, amqp091.Persistent)
	brokertest.Eventually(t, within, "the bait", func() bool {
		_, ok, err := abuser.ch.Get("bait", false)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	})
	go filler.run()
	holds := func() bool { return lastOf(b.Output(), raised, over) }
	brokertest.Eventually(t, time.Minute, "the alarm", holds)
	filler.rests(t)
	before := filler.confirmed.Load()
	go abuser.run()
	abuser.rests(t)
	keep(t, "the load has its time", holds)
	const late = 8 << 20 // what each may publish during an alarm
	if n := filler.confirmed.Load() - before; n*bodySize > late {
		t.Errorf("who has nothing to acknowledge has published %d messages during the alarm", n)
	}
	const slack = 2 * late // and the window
	taken := abuser.confirmed.Load() * bodySize
	if taken < memoryLimit || taken > 2*memoryLimit+slack { // buffers are counted, some larger than what is in them
		t.Errorf("%d bytes of who never acknowledges were taken, want about %d", taken, 2*memoryLimit)
	}
	used := diskUsed(t, dir)
	t.Logf("%d MiB published, %d on disk", taken>>20, used>>20)
	stayedWithin(t, memoryLimit+memoryLimit/10, peak)
	if most := taken + taken/8 + 6*32<<20; used > most {
		t.Errorf("%d bytes on disk, want %d at most", used, most)
	}
	was := abuser.confirmed.Load()
	if _, err := ch.QueuePurge("full", false); err != nil {
		t.Fatal(err)
	}
	brokertest.Eventually(t, time.Minute, "both go on", func() bool {
		return filler.confirmed.Load() > before+window && abuser.confirmed.Load() > was+window
	})
}

// flood publishes as fast as confirms come, whatever it is told.
type flood struct {
	ch        *amqp091.Channel
	queue     string
	modes     []uint8 // of the messages, in turns
	free      chan struct{}
	ended     chan struct{} // closed with the connection
	confirmed atomic.Int64
}

func newFlood(t *testing.T, b *brokertest.Broker, queue string, modes ...uint8) *flood {
	t.Helper()
	conn, err := amqp091.Dial(b.AMQPURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseDeadline(time.Now()) }) // its goodbye may wait as well
	f := &flood{queue: queue, modes: modes, free: make(chan struct{}, window), ended: make(chan struct{})}
	if f.ch, err = conn.Channel(); err != nil {
		t.Fatal(err)
	}
	if err := f.ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	confirms := f.ch.NotifyPublish(make(chan amqp091.Confirmation, window))
	go func() {
		defer close(f.ended)
		for range confirms {
			f.confirmed.Add(1)
			<-f.free
		}
	}()
	return f
}

// run publishes until the connection ends.
func (f *flood) run() {
	for i := 0; ; i++ {
		select {
		case f.free <- struct{}{}:
		case <-f.ended:
			return
		}
		p := amqp091.Publishing{DeliveryMode: f.modes[i%len(f.modes)], Body: make([]byte, bodySize)}
		if f.ch.Publish("", f.queue, false, false, p) != nil {
			return
		}
	}
}

// rests waits until it gets no confirms for some seconds: memory was read several times meanwhile.
func (f *flood) rests(t *testing.T) {
	t.Helper()
	last, since := int64(0), time.Now()
	brokertest.Eventually(t, 2*time.Minute, "it is stopped", func() bool {
		if n := f.confirmed.Load(); n != last {
			last, since = n, time.Now()
		}
		return last > 0 && time.Since(since) > 4*time.Second
	})
}

// diskUsed is what the files of a folder take, in bytes.
func diskUsed(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		i, err := d.Info()
		if err == nil {
			n += i.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
