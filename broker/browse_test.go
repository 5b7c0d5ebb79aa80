package broker

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/firemq/firemq/internal/vfs"
)

// browseAll walks one stage of a queue in pages, and gives the Seq and body of each message.
func (c *client) browseAll(queue string, s Stage, page int) (seqs []uint64, bodies []string) {
	c.t.Helper()
	at := Before(s)
	for {
		p, e := c.Browse(&Browse{Queue: queue, From: at, Limit: page}, func(m *Browsed) bool {
			seqs = append(seqs, m.Seq)
			if m.Msg == nil {
				c.t.Errorf("message %d cannot be read", m.Seq)
				return true
			}
			bodies = append(bodies, string(m.Msg.Body()))
			return true
		})
		c.ok(e)
		at = p.Next
		if !p.More {
			return seqs, bodies
		}
	}
}

// onDisk is a broker whose queues keep next to nothing in memory.
func onDisk(t testing.TB) *Broker {
	return memoryBroker(t, Options{FS: vfs.NewMem(), JournalDir: "j", tuning: tuning{queueResident: 1000, queueKeep: 500, segmentBytes: 1 << 20}})
}

func TestBrowseFromJournal(t *testing.T) {
	b := onDisk(t)
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q", Durable: true})
	before := b.opt.Now()
	for i := range 1000 {
		c.publish("", "q", fmt.Sprint("body ", i+1))
		if i%100 == 99 {
			c.end()
			b.sync(t)
		}
	}
	q, _ := b.Queue("/", "q")
	paged := func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.sm.Resident() < 100_000
	}
	until(t, "most is paged out", paged)
	counts := q.Counts()
	seqs, bodies := c.browseAll("q", StageReady, 33)
	if len(seqs) != 1000 {
		t.Fatalf("%d messages", len(seqs))
	}
	for i := range seqs {
		if seqs[i] != uint64(i+1) || bodies[i] != fmt.Sprint("body ", i+1) {
			t.Fatalf("message %d is %d, %s", i+1, seqs[i], bodies[i])
		}
	}
	after := q.Counts()
	counts.Memory, after.Memory = QueueMemory{}, QueueMemory{} // what waits is packed meanwhile
	if after != counts {
		t.Errorf("counts %+v, before %+v", after, counts)
	}
	if body, _ := c.get("q"); body != "body 1" {
		t.Errorf("the first message is %q", body)
	}
	for range 700 {
		c.get("q")
	}
	// The head is in the journal alone now.
	if h := q.Head(); h.Oldest < before || h.Oldest > b.opt.Now() || q.Head() != h {
		t.Errorf("head %+v", h)
	}
	p, e := c.Browse(&Browse{Queue: "q", From: Before(StageReady), Skip: 5, Limit: 1}, func(m *Browsed) bool {
		if m.Seq != 707 || m.Since < before || m.Redelivered || m.Deliveries != 0 {
			t.Errorf("%+v", m)
		}
		return true
	})
	c.ok(e)
	if !p.More || p.Shown != 1 {
		t.Errorf("%+v", p)
	}
}

func TestBrowseUnacked(t *testing.T) {
	b := memoryBroker(t, Options{})
	c, d := connect(t, b), connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	for i := range 10 {
		c.publish("", "q", fmt.Sprint(i+1))
	}
	c.end()
	c.ok(c.ch.Qos(4, false))
	c.consume(ConsumeArgs{Queue: "q", Tag: "worker"})
	if ok, e := d.ch.Get("q", false, func(*Delivery, int) {}); !ok || e != nil {
		t.Fatal("no message")
	}
	c.end()
	seqs, _ := c.browseAll("q", StageUnacked, 2)
	if fmt.Sprint(seqs) != "[1 2 3 4 5]" {
		t.Errorf("unacked %v", seqs)
	}
	var holders []string
	c.ok(c.Unacked("q", 100, func(m *Browsed) {
		holders = append(holders, fmt.Sprint(m.Seq, " ", m.Holder.Consumer, " ", m.Holder.Channel, " ", m.Holder.Tag))
		if age := b.opt.Now() - m.Holder.At; age < 0 || age > time.Minute.Milliseconds() {
			t.Errorf("age %d ms", age)
		}
	}))
	if len(holders) != 5 || holders[0] != "1 worker 1 1" || holders[4] != "5  1 1" {
		t.Errorf("holders %q", holders)
	}
	c.ok(c.ch.Ack(2, true))
	c.end()
	if seqs, _ := c.browseAll("q", StageUnacked, 2); fmt.Sprint(seqs) != "[3 4 5 6 7]" {
		t.Errorf("unacked %v", seqs)
	}
}

// TestBrowseBesideOthers browses while others publish and consume, with messages in the journal and compaction at
// work: no message is seen twice, out of order or with another's body.
func TestBrowseBesideOthers(t *testing.T) {
	b := onDisk(t)
	owner := connect(t, b)
	owner.declare(QueueDeclare{Name: "q", Durable: true})
	var published atomic.Int64
	stop := make(chan struct{})
	done := make(chan struct{})
	p := connect(t, b)
	go func() {
		defer close(done)
		for i := 1; i <= 100_000; i++ { // without an end it may grow faster than it is browsed
			select {
			case <-stop:
				return
			default:
			}
			p.publish("", "q", fmt.Sprint(i))
			if i%50 == 0 {
				p.end()
				b.sync(t)
				for range 45 {
					p.get("q")
				}
				p.end()
			}
			published.Store(int64(i))
		}
	}()
	rounds := 0
	for deadline := time.Now().Add(10 * time.Second); (published.Load() < 5000 || rounds < 5) && time.Now().Before(deadline); rounds++ {
		seqs, bodies := owner.browseAll("q", StageReady, 20)
		for i := range seqs {
			if i > 0 && seqs[i] <= seqs[i-1] {
				t.Fatalf("message %d after %d", seqs[i], seqs[i-1])
			}
			if bodies[i] != fmt.Sprint(seqs[i]) {
				t.Fatalf("message %d has the body %q", seqs[i], bodies[i])
			}
		}
	}
	close(stop)
	<-done
	if rounds == 0 || published.Load() == 0 {
		t.Fatal("nothing happened")
	}
}

func TestCursor(t *testing.T) {
	for _, s := range []string{"ready.255.0.0", "delayed.0.17.3", "unacked.0.0.9"} {
		if c, err := ParseCursor(s); err != nil || c.String() != s {
			t.Errorf("%s: %v, %v", s, c, err)
		}
	}
	for _, s := range []string{"", "ready", "ready.256.0.0", "gone.0.0.0", "ready.0.-1.0", "ready.0.0.0.0"} {
		if _, err := ParseCursor(s); err == nil {
			t.Errorf("%q is a cursor", s)
		}
	}
}
