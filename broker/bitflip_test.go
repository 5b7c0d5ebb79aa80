package broker

import (
	"math/rand/v2"
	"testing"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/internal/vfs"
)

// TestNoFlippedBitYieldsAWrongMessage flips single bits of a journal folder, segments and checkpoint
// alike: a start then gives messages that were published, unchanged, in order and once, or none, or
// it refuses. At most the messages of one record are missing, or those of a whole file whose
// header cannot be trusted.
func TestNoFlippedBitYieldsAWrongMessage(t *testing.T) {
	fs := vfs.NewMem()
	fs.MakeDir(testDir)
	s := &simulation{t: t, r: rand.New(rand.NewPCG(1, 1)), did: new(simCounts)}
	open := func(fs vfs.FS, start Snapshot) (*Broker, error) {
		start.VHosts = []string{"/"}
		b, _, err := Open(Options{
			FS: fs, JournalDir: testDir, Start: start, tuning: tuning{segmentBytes: 8192, queueResident: 1000, queueKeep: 500},
			Codecs: map[message.Encoding]message.Codec{message.AMQP: plainCodec{}},
		})
		if err == nil && len(b.Users().Users()) == 0 {
			err = b.AddFirstUser("guest", "guest")
		}
		return b, err
	}
	b, err := open(fs, Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q", Durable: true})
	put := func(n int) {
		for range n {
			m := s.message("", "q")
			m.Delay = 0 // the order is part of what is checked
			c.ok(c.ch.Publish(&Publish{Msg: m}))
			s.next++
		}
		c.end()
	}
	put(60)
	b.sync(t)
	start := b.Snapshot()
	b.Saved(&start)
	if _, _, err := b.checkpoint(); err != nil {
		t.Fatal(err)
	}
	put(30)
	b.sync(t)
	disk := fs.Crash(1)
	c.Close()
	b.Close()

	names, err := disk.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	content := map[string][]byte{}
	for _, n := range names {
		name := testDir + "/" + n
		if content[name], err = vfs.ReadFile(disk, name, 1<<20); err != nil {
			t.Fatal(err)
		}
		if n != "spare" && n != "reserve" {
			files = append(files, name)
		}
	}
	flips := 1500
	if testing.Short() || raceEnabled {
		flips = 150
	}
	refused, complete := 0, 0
	for range flips {
		name := files[s.r.IntN(len(files))]
		bit := s.r.IntN(8 * len(content[name]))
		copied := vfs.NewMem()
		copied.MakeDir(testDir)
		for n, b := range content {
			if n == name {
				b = append([]byte(nil), b...)
				b[bit/8] ^= 1 << (bit % 8)
			}
			if err := vfs.WriteFile(copied, n, b); err != nil {
				t.Fatal(err)
			}
		}
		b, err := open(copied, start)
		if err != nil {
			refused++
			continue
		}
		c := connect(t, b)
		last, n := -1, 0
		for failures := 0; ; {
			var body string
			ok, e := c.ch.Get("q", true, func(d *Delivery, _ int) { body = string(d.Msg.Body()) })
			if e != nil { // its record cannot be read: it is skipped
				if failures++; failures > 90 {
					t.Fatalf("%s, bit %d: %s", name, bit, e.Text)
				}
				continue
			}
			if !ok {
				break
			}
			id := s.id(body)
			if id <= last {
				t.Fatalf("%s, bit %d: message %d after %d", name, bit, id, last)
			}
			last = id
			n++
		}
		if n == 90 {
			complete++
		}
		c.Close()
		b.Close()
	}
	t.Logf("%d flips: %d with every message, %d refused to start", flips, complete, refused)
	if refused > flips/100 || complete == flips || complete == 0 {
		t.Errorf("%d flips: %d refused, %d without any loss", flips, refused, complete)
	}
}
