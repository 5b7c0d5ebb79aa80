package crash

import (
	"encoding/binary"
	"flag"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/firemq/firemq/test/internal/brokertest"
	amqp "github.com/rabbitmq/amqp091-go"
)

// soak makes full disks go on for longer: make soak.
var soak = flag.Duration("soak", 0, "how long TestFullDisk, and TestFullDiskInAnAlarm, fill disks again and again; 0: once")

// TestFullDisk publishes onto a small disk until nothing is confirmed any more, then consumes: that makes
// room, publishing goes on without a restart, and every message arrives once, in order.
func TestFullDisk(t *testing.T) {
	t.Run("192 MiB", func(t *testing.T) { fullDisk(t, "192m", 1000) })
	// Hardly more than the journal's reserve and one segment: here the journal itself is what stops.
	t.Run("80 MiB", func(t *testing.T) { fullDisk(t, "80m", 100, "--disk-free-limit", "0") })
}

// A disk on which the broker cannot take messages is a line in the log of its first start, with what to do.
func TestSmallDisk(t *testing.T) {
	const said = "the disk is too small, publishers will be paused: give --data another one, make room, or lower --disk-free-limit"
	for size, want := range map[string]bool{"64m": true, "192m": false} {
		b := brokertest.Start(t, brokertest.Options{Data: smallDisk(t, size) + "/data"})
		if got := strings.Contains(b.Output(), said); got != want {
			t.Errorf("%s: said %t, want %t\n%s", size, got, want, b.Output())
		}
		b.Stop(t)
	}
}

// TestStopOnAFullDisk: what no disk can take holds up no shutdown. It says what could not be written, and the next start,
// with room again, has all that was confirmed.
func TestStopOnAFullDisk(t *testing.T) {
	dir := smallDisk(t, "100m")
	// Without syncs the journal's file is not made ahead of its need.
	o := brokertest.Options{Data: dir + "/data", Flags: []string{"--disk-free-limit", "0", "--fsync=false"}}
	b := brokertest.Start(t, o)
	_, ch := confirming(t, b, "kept")
	c, err := ch.PublishWithDeferredConfirm("", "kept", false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("kept")})
	if err != nil || !c.Wait() {
		t.Fatal("not confirmed", err)
	}
	fill := dir + "/fill"
	f, err := os.Create(fill)
	if err != nil {
		t.Fatal(err)
	}
	for zeros := make([]byte, 4<<10); err == nil; {
		_, err = f.Write(zeros)
	}
	f.Close()
	if err := ch.Publish("", "kept", false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: make([]byte, 100_000)}); err != nil {
		t.Fatal(err)
	}
	brokertest.Eventually(t, time.Minute, "the journal to stall", func() bool { return strings.Contains(b.Output(), "journal stalled") })
	// Its answer waits for the disk, and so does what saves it.
	_, och := dial(t, b.AMQPURL)
	if _, err := och.QueueDeclare("lost", true, false, false, true, nil); err != nil {
		t.Fatal(err)
	}
	brokertest.Eventually(t, time.Minute, "the declaration", func() bool {
		_, err := och.QueueDeclarePassive("none", false, false, false, false, nil)
		return err != nil
	})
	syscall.Kill(b.Pid(), syscall.SIGTERM)
	b.Fails(t, 30*time.Second)
	if !strings.Contains(b.Output(), "the shutdown could not write everything") {
		t.Errorf("it does not say what it could not write:\n%s", b.Output())
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	b = brokertest.Start(t, o)
	defer b.Stop(t)
	conn, ch := dial(t, b.AMQPURL)
	defer conn.Close()
	if d, ok, err := ch.Get("kept", true); err != nil || !ok || string(d.Body) != "kept" {
		t.Fatalf("got %.10q, %t, %v", d.Body, ok, err)
	}
}

// smallDisk mounts one.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func fullDisk(t *testing.T, size string, least uint64, flags ...string) {
	dir := smallDisk(t, size)
	b := brokertest.Start(t, brokertest.Options{Data: dir + "/data", Flags: flags})
	defer b.Stop(t)
	conn, ch := confirming(t, b, "full")
	confirms := ch.NotifyPublish(make(chan amqp.Confirmation, 4096))

	var sent, confirmed, goal atomic.Uint64
	window := make(chan struct{}, 100)
	go func() {
		for c := range confirms {
			if !c.Ack {
				t.Errorf("message %d was refused", c.DeliveryTag)
			}
			confirmed.Store(c.DeliveryTag)
			<-window
		}
	}()
	published := make(chan error, 1)
	publish := func() {
		body := make([]byte, 50_000)
		for n := sent.Load() + 1; n <= goal.Load(); n++ {
			window <- struct{}{}
			binary.BigEndian.PutUint64(body, n)
			err := ch.Publish("", "full", false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body})
			if err != nil {
				published <- err
				return
			}
			sent.Store(n)
		}
		published <- nil
	}
	consumer, cch := dial(t, b.AMQPURL)
	if err := cch.Qos(50, 0, false); err != nil {
		t.Fatal(err)
	}
	begin, next := time.Now(), uint64(1)
	for round := 0; round == 0 || time.Since(begin) < *soak; round++ {
		goal.Store(1 << 60)
		go publish()
		last := full(t, &confirmed, next-1+least)
		var fs syscall.Statfs_t
		if err := syscall.Statfs(dir, &fs); err != nil {
			t.Fatal(err)
		}
		t.Logf("full after %d confirmed messages, %d MiB free", last-(next-1), fs.Bavail*uint64(fs.Bsize)>>20)

		goal.Store(sent.Load() + 2000)
		msgs, err := cch.Consume("full", "c", false, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		timeout := time.After(2 * time.Minute)
		for ; next <= goal.Load(); next++ {
			select {
			case d, ok := <-msgs:
				if !ok {
					t.Fatalf("the consumer ended\n%s", b.Output())
				}
				if got := binary.BigEndian.Uint64(d.Body); got != next {
					t.Fatalf("message %d instead of %d", got, next)
				}
				if err := d.Ack(false); err != nil {
					t.Fatal(err)
				}
			case <-timeout:
				t.Fatalf("message %d of %d does not come; %d confirmed\n%s", next, goal.Load(), confirmed.Load(), b.Output())
			}
		}
		if err := <-published; err != nil {
			t.Fatal(err)
		}
		brokertest.Eventually(t, time.Minute, "the last confirm", func() bool { return confirmed.Load() == goal.Load() })
		if err := cch.Cancel("c", false); err != nil {
			t.Fatal(err)
		}
	}
	conn.Close()
	consumer.Close()
}

// full waits until n are confirmed at least, and nothing was for two seconds.
func full(t *testing.T, confirmed *atomic.Uint64, n uint64) uint64 {
	t.Helper()
	last, since := uint64(0), time.Now()
	brokertest.Eventually(t, time.Minute, "the disk to be full", func() bool {
		if c := confirmed.Load(); c != last {
			last, since = c, time.Now()
		}
		return last >= n && time.Since(since) > 2*time.Second
	})
	return last
}

// confirming declares a durable queue over a connection of its own, whose publishes are confirmed.
func confirming(t *testing.T, b *brokertest.Broker, queue string) (*amqp.Connection, *amqp.Channel) {
	t.Helper()
	conn, ch := dial(t, b.AMQPURL)
	if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	return conn, ch
}
