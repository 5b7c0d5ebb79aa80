package crash

import (
	"encoding/binary"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/firemq/firemq/test/internal/brokertest"
	amqp "github.com/rabbitmq/amqp091-go"
)

// flood publishes numbered messages of 50 kB to a durable queue until stop is closed or the connection is
// lost, and counts what is confirmed.
type flood struct {
	confirmed atomic.Uint64
	stop      chan struct{}
	over      chan struct{} // closed when the last confirm came that comes
}

func startFlood(t *testing.T, url, queue string) *flood {
	t.Helper()
	conn, ch := dial(t, url)
	if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	f := &flood{stop: make(chan struct{}), over: make(chan struct{})}
	confirms := ch.NotifyPublish(make(chan amqp.Confirmation, 4096))
	window := make(chan struct{}, 100)
	sent := make(chan uint64, 1)
	go func() {
		body := make([]byte, 50_000)
		n := uint64(0)
		defer func() { sent <- n }()
		for {
			select {
			case <-f.stop:
				return
			case window <- struct{}{}:
			}
			binary.BigEndian.PutUint64(body, n+1)
			if ch.Publish("", queue, false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body}) != nil {
				return
			}
			n++
		}
	}()
	go func() {
		defer close(f.over)
		defer conn.Close()
		last := uint64(1 << 60)
		for f.confirmed.Load() < last {
			select {
			case c, ok := <-confirms:
				if !ok {
					close(f.stop) // the publisher may wait for a place
					return
				}
				if !c.Ack {
					t.Errorf("message %d was refused", c.DeliveryTag)
				}
				f.confirmed.Store(c.DeliveryTag)
				<-window
			case last = <-sent:
			}
		}
	}()
	return f
}

// halted waits until nothing was confirmed for a second.
func (f *flood) halted(t *testing.T) uint64 {
	t.Helper()
	last, since := uint64(0), time.Now()
	brokertest.Eventually(t, time.Minute, "publishing to halt", func() bool {
		if n := f.confirmed.Load(); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > time.Second
	})
	return last
}

// checkFlood takes all messages: those that were confirmed, each once, in order.
func checkFlood(t *testing.T, url, queue string, confirmed uint64) {
	t.Helper()
	conn, ch := dial(t, url)
	defer conn.Close()
	for n := uint64(1); ; n++ {
		d, ok, err := ch.Get(queue, true)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			if n <= confirmed {
				t.Errorf("%d messages are there, %d were confirmed", n-1, confirmed)
			}
			return
		}
		if got := binary.BigEndian.Uint64(d.Body); got != n {
			t.Fatalf("message %d instead of %d", got, n)
		}
	}
}

// limitFiles sets how many files a process may have open, and gives what the limit was.
func limitFiles(t *testing.T, pid int, n uint64) (was uint64) {
	t.Helper()
	var old syscall.Rlimit
	limit := func(set *syscall.Rlimit) {
		_, _, errno := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, uintptr(pid), syscall.RLIMIT_NOFILE,
			uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(&old)), 0, 0)
		if errno != 0 {
			t.Fatal(errno)
		}
	}
	limit(nil)
	was = old.Cur
	limit(&syscall.Rlimit{Cur: n, Max: old.Max})
	return was
}

// TestOutOfFiles takes the broker every file that it does not have open, while it publishes: where the
// journal needs another one publishers wait, nothing is lost, and when there are files again it goes on.
func TestOutOfFiles(t *testing.T) {
	b := brokertest.Start(t, brokertest.Options{Data: t.TempDir()})
	defer b.Stop(t)
	f := startFlood(t, b.AMQPURL, "q")
	brokertest.Eventually(t, time.Minute, "a first confirm", func() bool { return f.confirmed.Load() > 0 })
	was := limitFiles(t, b.Pid(), 0)
	brokertest.Eventually(t, time.Minute, "it says that there are no files", func() bool { return strings.Contains(b.Output(), "too many open files") })
	n := f.halted(t)
	t.Logf("halted after %d messages", n)
	limitFiles(t, b.Pid(), was)
	brokertest.Eventually(t, time.Minute, "publishing to go on", func() bool { return f.confirmed.Load() > n+1000 })
	close(f.stop)
	<-f.over
	checkFlood(t, b.AMQPURL, "q", f.confirmed.Load())
}

// TestReadOnlyDirectory makes the journal's directory read-only under a broker that publishes: it stops with
// an error that says so, and everything confirmed is there when it is started again.
func TestReadOnlyDirectory(t *testing.T) {
	data := t.TempDir()
	b := brokertest.Start(t, brokertest.Options{Data: data})
	f := startFlood(t, b.AMQPURL, "q")
	brokertest.Eventually(t, time.Minute, "a first confirm", func() bool { return f.confirmed.Load() > 0 })
	dir := filepath.Join(data, "journal")
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		b.Kill()
		t.Skipf("a directory cannot be made read-only here: %v", err)
	}
	unmount := func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}
	if err := syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		unmount()
		b.Kill()
		t.Skipf("a directory cannot be made read-only here: %v", err)
	}
	b.Fails(t, 2*time.Minute)
	<-f.over
	t.Logf("stopped after %d messages", f.confirmed.Load())
	if out := b.Output(); !strings.Contains(out, "read-only file system") {
		t.Errorf("nothing is said of the reason:\n%s", out)
	}
	// Started on it as it is, it says at once what is wrong.
	r := brokertest.Run(t, "", nil, "--amqp", "127.0.0.1:0", "--fire", "off", "--http", "off", "--data", data)
	if r.Code != 1 || !strings.Contains(r.Stderr, "read-only file system") || strings.Count(r.Stderr, "\n") != 1 {
		t.Errorf("a start ends with status %d and says %q", r.Code, r.Stderr)
	}
	unmount()
	again := brokertest.Start(t, brokertest.Options{Data: data})
	defer again.Stop(t)
	checkFlood(t, again.AMQPURL, "q", f.confirmed.Load())
}
