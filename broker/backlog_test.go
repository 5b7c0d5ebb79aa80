package broker

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/internal/vfs"
)

// anonymous is the process's memory without mapped files, in MiB; 0 where the system does not say.
func anonymous() float64 {
	status, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := bytes.Cut(status, []byte("RssAnon:"))
	field, _, _ := bytes.Cut(bytes.TrimSpace(rest), []byte(" "))
	kib, _ := strconv.ParseFloat(string(field), 64)
	return kib / 1024
}

// fill publishes n persistent messages of size bytes in turns of 200, waiting for the disk when a
// connection would be paused.
func (c *client) fill(b *Broker, queue string, n, size int) {
	body := make([]byte, size)
	key := []byte(queue)
	for i := range n {
		m := message.New(message.Attributes{Encoding: message.AMQP, Persistent: true, Expiration: -1}, nil, key, nil, size)
		copy(m.Body(), body)
		c.ok(c.ch.Publish(&Publish{Msg: m}))
		if i%200 == 199 || i == n-1 {
			c.end()
			if b.journal.Pending() > journalHigh {
				b.sync(c.t)
			}
		}
	}
}

// sync waits until everything appended is on disk.
func (b *Broker) sync(t testing.TB) {
	t.Helper()
	b.journal.Lock()
	pos := b.journal.Settle(1<<40, 1, 1)
	b.journal.Unlock()
	if err := b.journal.Sync(pos); err != nil {
		t.Fatal(err)
	}
}

// realBroker is one on a real disk, which does not wait for it. drop takes its gigabytes away: what a
// benchmark leaves until its end adds up over its rounds.
func realBroker(b *testing.B) (br *Broker, drop func()) {
	dir := b.TempDir()
	br, _, err := Open(Options{
		FS: vfs.OS{}, JournalDir: filepath.Join(dir, "journal"), Start: Snapshot{VHosts: []string{"/"}}, NoSync: true,
		Codecs: map[message.Encoding]message.Codec{message.AMQP: plainCodec{}},
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := br.AddFirstUser("guest", "guest"); err != nil {
		b.Fatal(err)
	}
	return br, func() {
		if err := br.Close(); err != nil {
			b.Fatal(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPurge purges a queue of ten million messages and reports how long that takes, the memory
// before, and the longest that a message to another queue took until all of them were settled. What the
// machine makes of it is told by the longest of one that took as long, before the purge.
func BenchmarkPurge(b *testing.B) {
	const n = 10_000_000
	for b.Loop() {
		br, drop := realBroker(b)
		p := connect(b, br)
		p.declare(QueueDeclare{Name: "q", Durable: true})
		p.declare(QueueDeclare{Name: "other", Durable: true})
		p.fill(br, "q", n, 256)
		br.sync(b)
		debug.FreeOSMemory()
		b.ReportMetric(anonymous(), "MiB")
		// worst passes messages through the other queue for as long as more says.
		worst := func(more func() bool) (d time.Duration) {
			for more() {
				at := time.Now()
				p.publish("", "other", "x")
				p.end()
				if _, ok := p.get("other"); !ok {
					b.Fatal("nothing to get")
				}
				p.end()
				d = max(d, time.Since(at))
			}
			return d
		}
		began := time.Now()
		b.ReportMetric(float64(worst(func() bool { return time.Since(began) < 3*time.Second }).Microseconds()), "worst-before-us")
		began = time.Now()
		if purged, e := p.PurgeQueue("q"); e != nil || purged != n {
			b.Fatal(purged, e)
		}
		b.ReportMetric(float64(time.Since(began).Microseconds()), "purge-us")
		w := worst(func() bool {
			s, _ := br.JournalStats()
			return s.Live > 0
		})
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "settled-ms")
		b.ReportMetric(float64(w.Microseconds()), "worst-us")
		p.Close()
		drop()
	}
}

// BenchmarkBacklog fills a queue with persistent messages on a real disk and drains it again. It
// reports the memory that holds them, without mapped files.
func BenchmarkBacklog(b *testing.B) {
	for _, c := range []struct{ n, size int }{{1_000_000, 1024}, {2_000_000, 256}} {
		b.Run(fmt.Sprintf("%dx%d", c.n, c.size), func(b *testing.B) {
			for b.Loop() {
				br, drop := realBroker(b)
				p := connect(b, br)
				p.declare(QueueDeclare{Name: "q", Durable: true})
				began := time.Now()
				p.fill(br, "q", c.n, c.size)
				br.sync(b)
				fill := time.Since(began)
				debug.FreeOSMemory()
				b.ReportMetric(anonymous(), "MiB")
				b.ReportMetric(float64(c.n)/fill.Seconds(), "fill/s")
				k := connect(b, br)
				k.sink.discard = true
				k.ch.Qos(1000, false)
				began = time.Now()
				k.consume(ConsumeArgs{Queue: "q"})
				k.end()
				for tag := uint64(0); tag < uint64(c.n); {
					for upto := uint64(k.sink.n); tag < upto; {
						tag++
						k.ok(k.ch.Ack(tag, false))
					}
					k.end()
				}
				b.ReportMetric(float64(c.n)/time.Since(began).Seconds(), "drain/s")
				k.Close()
				p.Close()
				drop()
			}
		})
	}
}
