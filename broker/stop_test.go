package broker

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/internal/vfs"
)

// slowDisk is a file system in memory whose syncs wait for release, once gate is closed.
func slowDisk() (fs vfs.FS, gate, release chan struct{}) {
	mem := vfs.NewMem()
	mem.MakeDir(testDir)
	gate, release = make(chan struct{}), make(chan struct{})
	return &vfs.Faults{FS: mem, Check: func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			select {
			case <-gate:
				<-release
			default:
			}
		}
		return nil
	}}, gate, release
}

// A stop sends the confirms of what was published before clients are told to go.
func TestStopFlushesConfirms(t *testing.T) {
	fs, gate, release := slowDisk()
	b, _ := diskBroker(t, fs, Snapshot{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q", Durable: true})
	c.ok(c.ch.Confirms())
	c.publish("", "q", "1")
	c.end()
	until(t, "the confirm", func() bool { c.peer.mu.Lock(); defer c.peer.mu.Unlock(); return c.sink.confirmed == 1 })
	close(gate)
	c.publish("", "q", "2")
	c.publish("", "q", "3")
	c.end()

	confirmed := uint64(0) // when the client is told
	c.peer.onClose = func() {
		c.peer.Lock()
		confirmed = c.sink.confirmed
		c.peer.Unlock()
		c.Close()
	}
	idle := b.done.idle()
	select {
	case <-idle:
		t.Fatal("nothing waits for the disk")
	default:
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		b.Stop(ctx, &Error{Kind: ConnectionForced, Text: "bye"})
	}()
	close(release)
	<-stopped
	if confirmed != 3 || c.peer.closedBy == nil || c.peer.paused&PauseClosing == 0 || ctx.Err() != nil {
		t.Errorf("%d confirmed when the client was told %v, paused for %b, %v", confirmed, c.peer.closedBy, c.peer.paused, ctx.Err())
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// A disk that does not write has clients wait for half of the time only.
func TestStopDoesNotWaitForADeadDisk(t *testing.T) {
	fs, gate, release := slowDisk()
	b, _ := diskBroker(t, fs, Snapshot{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q", Durable: true})
	c.ok(c.ch.Confirms())
	close(gate)
	c.publish("", "q", "1")
	c.end()
	c.peer.onClose = c.Close
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	b.Stop(ctx, &Error{Kind: ConnectionForced, Text: "bye"})
	if c.peer.closedBy == nil || c.sink.confirmed != 0 || ctx.Err() != nil {
		t.Errorf("told %v, %d confirmed, %v", c.peer.closedBy, c.sink.confirmed, ctx.Err())
	}
	close(release)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// Nothing waits: a stop without publishers is at once.
func TestStopOfIdleConnections(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.peer.onClose = c.Close
	b.Stop(t.Context(), &Error{Kind: ConnectionForced, Text: "bye"})
	if c.peer.closedBy == nil {
		t.Error("the client was not told")
	}
}

// A disk that is full is told, and that it goes on.
func TestStallIsTold(t *testing.T) {
	b, full, stalls := fillingBroker(t)
	if err := b.AddFirstUser("guest", "guest"); err != nil {
		t.Fatal(err)
	}
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q", Durable: true})
	c.ok(c.ch.Confirms())
	full.Store(true)
	c.publish("", "q", "1")
	c.end()
	if err := <-stalls; !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("stalled with %v", err)
	}
	full.Store(false)
	if err := <-stalls; err != nil {
		t.Errorf("goes on with %v", err)
	}
	until(t, "the confirm", func() bool { c.peer.mu.Lock(); defer c.peer.mu.Unlock(); return c.sink.confirmed == 1 })
	c.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// A broker that stops waits for nothing that a full disk cannot take: what a compaction copied, the topology of a
// snapshot.
func TestStopWhileTheDiskIsFull(t *testing.T) {
	b, full, stalls := fillingBroker(t)
	if err := b.AddFirstUser("guest", "guest"); err != nil {
		t.Fatal(err)
	}
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q", Durable: true})
	b.upkeep.working.Lock() // until there is something to compact, and the disk is full
	c.declare(QueueDeclare{Name: "stay", Durable: true})
	for i := range 400 {
		if i%10 == 0 {
			c.publish("", "stay", "so that no segment goes by itself")
		}
		c.publish("", "q", strings.Repeat("x", 1000))
	}
	c.end()
	b.sync(t)
	snap := b.Snapshot()
	b.Saved(&snap)
	c.drain("q")
	c.end()
	b.sync(t)
	until(t, "something to compact", func() bool { _, ok := b.journal.Wasteful(2); return ok })
	full.Store(true)
	b.upkeep.working.Unlock()
	b.upkeep.signal()
	<-stalls
	c.declare(QueueDeclare{Name: "other", Durable: true})
	snap = b.Snapshot()
	saved := make(chan error)
	go func() { saved <- b.Commit(&snap) }()
	b.Hurry()
	if err := <-saved; err == nil {
		t.Error("a declaration is said to be on the disk")
	}
	c.Close()
	if err := b.Close(); err == nil {
		t.Error("nothing is said of what could not be written")
	}
}

// fillingBroker has small segments on a disk that is full once full is set; it tells of each stall and of its end.
func fillingBroker(t *testing.T) (b *Broker, full *atomic.Bool, stalls chan error) {
	t.Helper()
	mem := vfs.NewMem()
	mem.MakeDir(testDir)
	full, stalls = new(atomic.Bool), make(chan error, 10)
	b, _, err := Open(Options{
		FS: &vfs.Faults{FS: mem, Check: func(op vfs.Op) error {
			if full.Load() && op.Kind == vfs.OpWrite {
				return syscall.ENOSPC
			}
			return nil
		}},
		JournalDir: testDir, Start: Snapshot{VHosts: []string{"/"}},
		Codecs:  map[message.Encoding]message.Codec{message.AMQP: plainCodec{}},
		OnStall: func(err error) { stalls <- err },
		tuning:  tuning{segmentBytes: testSegment},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b, full, stalls
}
