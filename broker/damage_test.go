package broker

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
)

// A message whose record is damaged while the broker runs is skipped when it is due, and the log says
// which file, offset and queue it was; the others are delivered.
func TestDamageFoundInReading(t *testing.T) {
	fs := vfs.NewMem()
	fs.MakeDir(testDir)
	var logged bytes.Buffer
	open := func() *Broker {
		b, _, err := Open(Options{
			FS: fs, JournalDir: testDir, Start: Snapshot{VHosts: []string{"/"}},
			Codecs: map[message.Encoding]message.Codec{message.AMQP: plainCodec{}},
			Log:    slog.New(slog.NewTextHandler(&logged, nil)),
			tuning: tuning{segmentBytes: 8192},
		})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := open()
	if err := b.AddFirstUser("guest", "guest"); err != nil {
		t.Fatal(err)
	}
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q", Durable: true})
	for _, body := range []string{"first", "second", "third"} {
		c.publish("", "q", body)
	}
	c.end()
	c.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = open() // with its messages in the journal alone
	defer b.Close()

	names, err := fs.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	damaged := ""
	for _, name := range names {
		if !strings.HasSuffix(name, ".seg") {
			continue // the journal may rename a spare file meanwhile
		}
		f, err := fs.OpenWrite(testDir + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		n, _ := f.Size()
		p := make([]byte, n)
		f.ReadAt(p, 0)
		if i := bytes.Index(p, []byte("second")); i >= 0 {
			damaged = name
			if _, err := f.WriteAt([]byte("5econd"), int64(i)); err != nil {
				t.Fatal(err)
			}
		}
		f.Close()
	}
	if damaged == "" {
		t.Fatal("the message is not on disk")
	}
	k := connect(t, b)
	k.consume(ConsumeArgs{Queue: "q", NoAck: true})
	k.end()
	eq(t, "bodies", k.sink.bodies(), []string{"first", "third"})
	line := logged.String()
	for _, want := range []string{damaged, "offset", "queue=q", "message lost"} {
		if !strings.Contains(line, want) {
			t.Errorf("the log does not say %q:\n%s", want, line)
		}
	}
	if n := strings.Count(line, "message lost"); n != 1 {
		t.Errorf("%d messages are said to be lost", n)
	}
}

// The clock may jump by hours in both directions: what has a time to live goes when its time has come by
// the clock, and nothing else is touched.
func TestClockJumps(t *testing.T) {
	fs := vfs.NewMem()
	fs.MakeDir(testDir)
	var now atomic.Int64
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	const hour = 3_600_000
	now.Store(start)
	open := func() (*Broker, *client) {
		b, _, err := Open(Options{
			FS: fs, JournalDir: testDir, Start: Snapshot{VHosts: []string{"/"}}, Now: now.Load, tuning: tuning{segmentBytes: 1 << 16},
			Codecs: map[message.Encoding]message.Codec{message.AMQP: plainCodec{}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Users().Users()) == 0 {
			if err := b.AddFirstUser("guest", "guest"); err != nil {
				t.Fatal(err)
			}
		}
		return b, connect(t, b)
	}
	b, c := open()
	c.declare(QueueDeclare{Name: "kept", Durable: true})
	c.declare(QueueDeclare{Name: "hours", Durable: true, Args: table.Table{{Name: "x-message-ttl", Value: table.IntValue(2 * hour)}}})
	c.ok(c.ch.Confirms())
	put := func(body string) {
		c.publish("", "kept", body)
		c.publish("", "hours", body)
		c.end()
		seq := c.seq
		until(t, "the confirms", func() bool {
			c.peer.mu.Lock()
			defer c.peer.mu.Unlock()
			return c.sink.confirmed == seq
		})
	}
	count := func(name string) int {
		q, _ := b.Queue("/", name)
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.sm.Len()
	}
	put("now")
	now.Store(start - 5*hour) // back: nothing goes earlier or is lost
	put("earlier")
	if k, h := count("kept"), count("hours"); k != 2 || h != 2 {
		t.Errorf("after a jump back %d and %d messages are there", k, h)
	}
	now.Store(start + hour)
	put("later")
	// The start of the queue is the one published first, whose time is not over: those behind it wait.
	if body, ok := c.get("hours"); !ok || body != "now" {
		t.Errorf("got %q", body)
	}
	if body, ok := c.get("hours"); !ok || body != "later" {
		t.Errorf("got %q, want the one whose time is not over by the clock", body)
	}
	now.Store(start + 10*hour)
	c.end()
	put("last")
	c.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	now.Store(start - 20*hour) // and a restart far back
	b, c = open()
	c.seq = 0
	c.ok(c.ch.Confirms())
	put("again")
	for _, want := range []string{"now", "earlier", "later", "last", "again"} {
		if body, ok := c.get("kept"); !ok || body != want {
			t.Errorf("got %q, want %q", body, want)
		}
	}
	c.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}
