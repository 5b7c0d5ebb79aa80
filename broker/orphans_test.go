package broker

import (
	"testing"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
	"github.com/firemq/firemq/pool"
)

// TestOrphans: what leaves a queue before its record is in the journal is let go once that is there, whatever became
// of the queue: it takes no place in the journal, no memory, and does not come back.
func TestOrphans(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, b *Broker, q *Queue, c *client){
		"purged": func(t *testing.T, _ *Broker, _ *Queue, c *client) {
			if n, e := c.PurgeQueue("q"); n != 1 || e != nil {
				t.Fatal(n, e)
			}
		},
		"dropped": func(_ *testing.T, _ *Broker, _ *Queue, c *client) {
			m := message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1}, nil, []byte("q"), nil, 0)
			c.ok(c.ch.Publish(&Publish{Msg: m}))
			c.end()
		},
		"purged and deleted": func(t *testing.T, b *Broker, q *Queue, c *client) {
			if n, e := c.PurgeQueue("q"); n != 1 || e != nil {
				t.Fatal(n, e)
			}
			go func() { // it waits for the journal, too
				turn := b.newTurn()
				b.deleteQueue(q, turn, nil)
				turn.free()
			}()
			until(t, "the deletion", func() bool { q.mu.Lock(); defer q.mu.Unlock(); return q.deleted })
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := pool.Live()
			fs := vfs.NewMem()
			fs.MakeDir(testDir)
			b, _ := diskBroker(t, fs, Snapshot{})
			publisher, other := connect(t, b), connect(t, b)
			publisher.declare(QueueDeclare{Name: "q", Durable: true, Args: table.Table{{Name: "x-max-length", Value: table.IntValue(1)}}})
			publisher.end()
			q, _ := b.Queue("/", "q")

			b.journal.Lock()
			published := make(chan struct{})
			go func() {
				defer close(published)
				publisher.publish("", "q", "1")
				publisher.end()
			}()
			until(t, "the publish", func() bool { q.mu.Lock(); defer q.mu.Unlock(); return q.sm.Len() == 1 })
			leave(t, b, q, other)
			q.mu.Lock()
			orphans := len(q.orphans)
			q.mu.Unlock()
			b.journal.Unlock()
			if orphans != 1 {
				t.Errorf("%d orphans", orphans)
			}
			<-published
			until(t, "the orphan to be settled", func() bool {
				q.mu.Lock()
				defer q.mu.Unlock()
				return len(q.orphans) == 0 && b.journal.Stats().Live == 0
			})
			b.sync(t)
			crashed := fs.Crash(1)
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
