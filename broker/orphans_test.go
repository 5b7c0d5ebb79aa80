package broker

import (
	"sync"
	"testing"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
	"github.com/firemq/firemq/pool"
)

// TestOrphans: what leaves a queue before its record is in the journal is let go once that is there, whatever became
// of the queue: it takes no place in the journal, no memory, and does not come back.
func TestOrphans(t *testing.T) {
	for name, leave := range map[string]func(b *Broker, q *Queue, c *client){
		"purged": func(_ *Broker, _ *Queue, c *client) {
			c.PurgeQueue("q")
			c.EndTurn()
		},
		"dropped": func(_ *Broker, _ *Queue, c *client) {
			for range 2 {
				m := message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1}, nil, []byte("q"), nil, 0)
				c.ch.Publish(&Publish{Msg: m})
			}
			c.EndTurn()
		},
		"purged and deleted": func(b *Broker, q *Queue, c *client) {
			turn := b.newTurn()
			defer turn.free()
			q.mu.Lock()
			left := q.sm.Purge()
			q.mu.Unlock()
			b.upkeep.sweep(turn, q, left)
			b.deleteQueue(q, turn, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := pool.Live()
			fs, gate, release := slowDisk()
			b, _ := diskBroker(t, fs, Snapshot{})
			publisher, other := connect(t, b), connect(t, b)
			publisher.declare(QueueDeclare{Name: "q", Durable: true, Args: table.Table{{Name: "x-max-length", Value: table.IntValue(2)}}})
			publisher.end()
			publisher.declare(QueueDeclare{Name: "last"})
			publisher.end()
			q, _ := b.Queue("/", "q")
			last, _ := b.Queue("/", "last")

			// What another connection published waits for the disk, for which the completer knows the queue already.
			close(gate)
			other.publish("", "q", "0")
			other.end()

			b.journal.Lock()
			var both sync.WaitGroup
			both.Go(func() {
				publisher.publish("", "q", "1")
				publisher.end()
			})
			until(t, "the publish", func() bool { q.mu.Lock(); defer q.mu.Unlock(); return q.sm.Len() == 2 })
			both.Go(func() { leave(b, q, other) })
			until(t, "the orphan", func() bool { q.mu.Lock(); defer q.mu.Unlock(); return len(q.orphans) == 1 })
			// The completer looks at the queue before the record is there.
			last.mu.Lock()
			last.waiting = true
			last.mu.Unlock()
			b.done.again(last)
			until(t, "a pass of the completer", func() bool { last.mu.Lock(); defer last.mu.Unlock(); return !last.waiting })
			b.journal.Unlock()
			close(release)
			both.Wait()
			until(t, "the orphan to be settled", func() bool {
				q.mu.Lock()
				defer q.mu.Unlock()
				return len(q.orphans) == 0 && b.journal.Stats().Live == 0
			})
			b.sync(t)
			crashed := fs.(*vfs.Faults).FS.(*vfs.Mem).Crash(1)
			publisher.Close()
			other.Close()
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			if n := pool.Live(); n != before {
				t.Errorf("%d buffers are left", n-before)
			}
			b, rec := diskBroker(t, crashed, Snapshot{})
			if rec.Messages != 0 {
				t.Errorf("%d messages came back", rec.Messages)
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
