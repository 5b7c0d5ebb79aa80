package broker

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/internal/vfs"
)

// heldDisk is a disk in memory whose syncs wait while it is held.
type heldDisk struct {
	mem  *vfs.Mem
	fs   vfs.FS
	gate vfs.Gate
}

func newHeldDisk() *heldDisk {
	d := &heldDisk{mem: vfs.NewMem()}
	d.mem.MakeDir(testDir)
	d.fs = &vfs.Faults{FS: d.mem, Check: d.gate.Check}
	return d
}

// hold and let hold the disk and let it go, and wait until nothing goes on.
func (d *heldDisk) hold() {
	synctest.Wait()
	d.gate.Shut()
}

func (d *heldDisk) let() {
	d.gate.Open()
	synctest.Wait()
}

// open is a client of a broker on the disk.
func (d *heldDisk) open(t *testing.T) *client {
	b := openSmall(t, d.fs)
	if err := b.AddFirstUser("guest", "guest"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return connect(t, b)
}

// openSmall opens a broker with small segments.
func openSmall(t *testing.T, fs vfs.FS) *Broker {
	t.Helper()
	b, _, err := Open(Options{
		FS: fs, JournalDir: testDir, Start: Snapshot{VHosts: []string{"/"}}, tuning: tuning{segmentBytes: 1 << 16},
		Codecs: map[message.Encoding]message.Codec{message.AMQP: plainCodec{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// answered are the answers that came since the last call.
func (c *client) answered() []string {
	synctest.Wait()
	c.peer.mu.Lock()
	defer c.peer.mu.Unlock()
	e := c.sink.events
	c.sink.events = nil
	return e
}

func (c *client) mustAnswer(name string, kept bool) {
	c.t.Helper()
	if got := c.ch.Answer([]byte(name)); got != kept {
		c.t.Fatalf("the answer to %s is kept: %t, want %t", name, got, kept)
	}
}

// The answer to every change of what is durable is kept until the disk has it, and the answers behind
// it in order; what changes nothing on disk is answered at once.
func TestAnswersWaitForTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newHeldDisk()
		c := d.open(t)
		verb := map[string]func() *Error{
			"queue":       func() *Error { _, e := c.DeclareQueue(&QueueDeclare{Name: "q", Durable: true}); return e },
			"exchange":    func() *Error { return c.DeclareExchange(&ExchangeDeclare{Name: "x", Type: "fanout", Durable: true}) },
			"bind":        func() *Error { return c.BindQueue("q", "x", "", nil) },
			"bind x":      func() *Error { return c.BindExchange("x", "amq.topic", "", nil) },
			"unbind":      func() *Error { return c.UnbindQueue("q", "x", "", nil) },
			"unbind x":    func() *Error { return c.UnbindExchange("x", "amq.topic", "", nil) },
			"passive":     func() *Error { _, e := c.DeclareQueue(&QueueDeclare{Name: "q", Passive: true}); return e },
			"passive x":   func() *Error { return c.DeclareExchange(&ExchangeDeclare{Name: "x", Passive: true}) },
			"delete":      func() *Error { _, e := c.DeleteQueue("q", false, false); return e },
			"delete x":    func() *Error { return c.DeleteExchange("x", false) },
			"transient":   func() *Error { _, e := c.DeclareQueue(&QueueDeclare{Name: "t"}); return e },
			"transient x": func() *Error { return c.DeclareExchange(&ExchangeDeclare{Name: "tx", Type: "fanout"}) },
			"transient b": func() *Error { return c.BindQueue("t", "tx", "", nil) },
			"exclusive": func() *Error {
				_, e := c.DeclareQueue(&QueueDeclare{Name: "e", Durable: true, Exclusive: true})
				return e
			},
		}
		for _, step := range []struct {
			name string
			kept bool
		}{
			{"queue", true}, {"exchange", true}, {"bind", true}, {"bind x", true},
			{"queue", false}, {"exchange", false}, {"bind", false}, {"passive", false}, {"passive x", false},
			{"transient", false}, {"transient x", false}, {"transient b", false}, {"exclusive", false},
			{"unbind", true}, {"unbind", false}, {"unbind x", true}, {"delete", true}, {"delete", false}, {"delete x", true}, {"delete x", false},
		} {
			d.hold()
			c.ok(verb[step.name]())
			c.mustAnswer(step.name, step.kept)
			eq(t, "answers before the commit of "+step.name, c.answered(), nil)
			d.let()
			var want []string
			if step.kept {
				want = []string{"answer " + step.name}
			}
			eq(t, "answers", c.answered(), want)
		}

		// What is not there yet for good is not promised to anybody else, and nothing overtakes.
		d.hold()
		other := connect(t, c.b)
		c.ok(verb["queue"]())
		c.mustAnswer("queue", true)
		if _, e := other.DeclareQueue(&QueueDeclare{Name: "q", Durable: true}); e != nil {
			t.Fatal(e.Text)
		}
		other.mustAnswer("redeclared", true)
		if _, e := other.DeclareQueue(&QueueDeclare{Name: "t"}); e != nil {
			t.Fatal(e.Text)
		}
		other.mustAnswer("transient behind it", true)
		before := other.peer.answered.Load()
		d.let()
		eq(t, "answers", other.answered(), []string{"answer redeclared", "answer transient behind it"})
		if n := other.peer.answered.Load(); n != before+1 || other.Kept() || other.ch.Kept() {
			t.Errorf("told %d times that the last kept answer is sent", n-before)
		}
	})
}

// Many declares sent at once share their syncs.
func TestPipelinedDeclaresShareSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newHeldDisk()
		c := d.open(t)
		d.hold()
		const n = 200
		var want []string
		for i := range n {
			name := fmt.Sprint("q", i)
			c.declare(QueueDeclare{Name: name, Durable: true})
			c.mustAnswer(name, true)
			want = append(want, "answer "+name)
		}
		before, _ := c.b.JournalStats()
		d.let()
		if got := c.answered(); !slices.Equal(got, want) {
			t.Errorf("%d of %d declares are answered", len(got), n)
		}
		if after, _ := c.b.JournalStats(); after.Syncs-before.Syncs > 3 {
			t.Errorf("%d syncs for %d declares", after.Syncs-before.Syncs, n)
		}
	})
}

// A channel bounds the answers it keeps, and forgets them when it is closed.
func TestKeptAnswersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newHeldDisk()
		c := d.open(t)
		d.hold()
		c.declare(QueueDeclare{Name: "q", Durable: true})
		for i := range maxKept {
			if c.ch.Full() {
				t.Fatalf("full with %d answers", i)
			}
			c.mustAnswer("a", true)
		}
		if !c.ch.Full() {
			t.Error("not full")
		}
		c.ch.Close()
		if c.Kept() {
			t.Error("a closed channel still keeps answers")
		}
		d.let()
	})
}

// What is settled outlives a crash: users, permissions, parameters and topology.
func TestSettledChangesOutliveACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newHeldDisk()
		c := d.open(t)
		b := c.b
		change := func(what string, f func() error) *vfs.Mem {
			t.Helper()
			d.hold()
			if err := f(); err != nil {
				t.Fatal(what, err)
			}
			settled := b.Settled()
			select {
			case <-settled:
				t.Errorf("%s is said to be safe before it is synced", what)
			default:
			}
			d.let()
			select {
			case <-settled:
			default:
				t.Errorf("%s is synced, and nobody is told", what)
			}
			return d.mem.Crash(7)
		}
		reopen := func(fs *vfs.Mem, check func(*Broker)) {
			t.Helper()
			again := openSmall(t, fs)
			check(again)
			if err := again.Close(); err != nil {
				t.Fatal(err)
			}
		}
		crashed := change("a user", func() error {
			if err := b.Users().AddUser("u", "pw", "monitoring"); err != nil {
				return err
			}
			_, err := b.Users().SetPermissions(auth.Permission{User: "u", VHost: "/", Configure: "c", Write: "w", Read: "r"})
			if err == nil {
				_, err = b.Users().SetTopicPermission(auth.TopicPermission{User: "u", VHost: "/", Exchange: "amq.topic", Write: "tw", Read: "tr"})
			}
			if err == nil {
				err = b.Users().SetLimit("u", MaxChannels, 3)
			}
			b.UsersChanged("u")
			return err
		})
		reopen(crashed, func(b *Broker) {
			u, err := b.Users().Authenticate("u", "pw")
			if err != nil || !u.HasTag("monitoring") || u.Limits[MaxChannels] != 3 {
				t.Errorf("the user is %+v, %v", u, err)
			}
			if p := b.Users().Permissions(); len(p) != 2 || p[1] != (auth.Permission{User: "u", VHost: "/", Configure: "c", Write: "w", Read: "r"}) {
				t.Errorf("permissions %+v", p)
			}
			if p := b.Users().TopicPermissions(); len(p) != 1 || p[0].Write != "tw" {
				t.Errorf("topic permissions %+v", p)
			}
		})
		crashed = change("parameters", func() error {
			b.AddVHost("v")
			b.SetGlobal("g", []byte(`{"a":1}`))
			if e := b.ChangeVHostMeta("v", func(m *VHostMeta) { *m = VHostMeta{Description: "d", Tags: []string{"t"}} }); e != nil {
				return e
			}
			_, err := b.Users().SetPermissions(auth.Permission{User: "u", VHost: "v"})
			b.UsersChanged("u")
			return err
		})
		reopen(crashed, func(b *Broker) {
			if m := b.VHostMeta("v"); m.Description != "d" || string(b.Globals()["g"]) != `{"a":1}` || len(b.Users().Permissions()) != 3 {
				t.Errorf("vhost %+v, globals %s, permissions %v", m, b.Globals(), b.Users().Permissions())
			}
		})
		crashed = change("deletions", func() error {
			if !b.DeleteUser("u") || !b.DeleteGlobal("g") || b.DeleteVHost("v") != nil {
				return fmt.Errorf("nothing to delete")
			}
			return nil
		})
		reopen(crashed, func(b *Broker) {
			if _, ok := b.Users().User("u"); ok || len(b.Users().Permissions()) != 1 || len(b.Globals()) != 0 || b.HasVHost("v") {
				t.Errorf("what was deleted is there: %v %v %v", b.Users().Users(), b.Users().Permissions(), b.Globals())
			}
		})
	})
}
