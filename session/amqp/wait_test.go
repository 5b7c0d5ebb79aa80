package amqp

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/internal/vfs"
	"github.com/firemq/firemq/journal"
)

// onHeldDisk runs a test with a broker on a disk that syncs when the gate is open.
func onHeldDisk(t *testing.T, test func(t *testing.T, b *broker.Broker, gate *vfs.Gate)) {
	synctest.Test(t, func(t *testing.T) {
		gate := new(vfs.Gate)
		fs := vfs.NewMem()
		fs.MakeDir("journal")
		// A journal keeps the size of its segments: small ones are quickly made.
		j, _, err := journal.Open(journal.Options{FS: fs, Dir: "journal", SegmentBytes: 1 << 16}, nil)
		if err != nil {
			t.Fatal(err)
		}
		j.Lock()
		j.Settle(1<<40, 1, 1)
		j.Unlock()
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		b := openBroker(t, broker.Options{FS: &vfs.Faults{FS: fs, Check: gate.Check}, JournalDir: "journal"})
		synctest.Wait()
		defer gate.Open()
		test(t, b, gate)
	})
}

// settle has everything done that goes on.
func (c *client) settle() {
	for {
		synctest.Wait()
		c.out.mu.Lock()
		n := len(c.out.tasks)
		c.out.mu.Unlock()
		if n == 0 {
			return
		}
		c.runTasks()
	}
}

// The transcripts are the same on a disk that syncs nothing before all that a client sends has come.
func TestTranscriptsOnAHeldDisk(t *testing.T) {
	for _, name := range []string{"topology", "refused", "channels", "consumers", "replyto", "select", "handshake", "framing"} {
		t.Run(name, func(t *testing.T) {
			want, err := os.ReadFile("testdata/" + name + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			onHeldDisk(t, func(t *testing.T, b *broker.Broker, gate *vfs.Gate) {
				got := play(t, b, string(want), func(c *client, p []byte) {
					synctest.Wait()
					gate.Shut()
					c.feed(p)
					gate.Open()
					c.settle()
				})
				if got != string(want) {
					t.Error(diff(string(want), got))
				}
			})
		})
	}
}

// What a client sends behind a declare has its answer behind that of the declare, whatever it is.
func TestAnswersKeepTheirOrder(t *testing.T) {
	onHeldDisk(t, func(t *testing.T, b *broker.Broker, gate *vfs.Gate) {
		c := openChannel(t, b, Options{})
		for _, step := range []struct {
			what       string
			send, want []string
		}{
			{"consume", []string{`1 queue.declare queue="q" durable`, `1 basic.qos prefetch-count=1`, `1 basic.consume queue="q" consumer-tag="c"`, `1 basic.cancel consumer-tag="c"`},
				[]string{`1 queue.declare-ok queue="q"`, `1 basic.qos-ok`, `1 basic.consume-ok consumer-tag="c"`, `1 basic.cancel-ok consumer-tag="c"`}},
			{"get", []string{`1 exchange.declare exchange="x" type="fanout" durable`, `1 queue.bind queue="q" exchange="x"`, `1 queue.purge queue="q"`, `1 basic.get queue="q"`},
				[]string{`1 exchange.declare-ok`, `1 queue.bind-ok`, `1 queue.purge-ok`, `1 basic.get-empty`}},
			{"another channel", []string{`1 queue.unbind queue="q" exchange="x"`, `2 channel.open`, `2 basic.qos prefetch-count=1`, `1 exchange.delete exchange="x"`, `1 basic.qos`},
				[]string{`2 channel.open-ok`, `2 basic.qos-ok`, `1 queue.unbind-ok`, `1 exchange.delete-ok`, `1 basic.qos-ok`}},
			{"an error of the channel", []string{`2 queue.delete queue="q"`, `2 basic.get queue="none"`, `2 basic.qos prefetch-count=1`, `2 channel.close-ok`, `2 channel.open`},
				[]string{`2 queue.delete-ok`, `2 channel.close reply-code=404 reply-text="NOT_FOUND - no queue 'none' in vhost '/'" class-id=60 method-id=70`, `2 channel.open-ok`}},
			{"a refused declare", []string{`2 queue.declare queue="q" durable`, `2 queue.declare queue="q"`, `2 queue.declare queue="never" durable`, `2 channel.close-ok`, `2 channel.open`},
				[]string{`2 queue.declare-ok queue="q"`, `2 channel.close reply-code=406 reply-text="PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'" class-id=50 method-id=10`, `2 channel.open-ok`}},
			{"the end of the channel", []string{`2 queue.declare queue="r" durable`, `2 channel.close reply-code=200`},
				[]string{`2 queue.declare-ok queue="r"`, `2 channel.close-ok`}},
			{"an error of the connection", []string{`1 queue.declare queue="s" durable`, `1 basic.publish immediate`, `1 queue.declare queue="never" durable`, `0 connection.close-ok`},
				[]string{`1 queue.declare-ok queue="s"`, `0 connection.close reply-code=540 reply-text="NOT_IMPLEMENTED - immediate=true" class-id=60 method-id=40`, `closed`}},
		} {
			synctest.Wait()
			gate.Shut()
			c.send(step.send...)
			synctest.Wait()
			early := c.got()
			if step.what != "another channel" && len(early) > 0 {
				t.Fatalf("%s: answered before the disk has it: %q", step.what, early)
			}
			if c.out.paused == 0 {
				t.Errorf("%s: reading goes on", step.what)
			}
			gate.Open()
			c.settle()
			if got := append(early, c.got()...); !slices.Equal(got, step.want) {
				t.Fatalf("%s: got\n%s\nwant\n%s", step.what, list(got), list(step.want))
			}
			if c.out.paused != 0 && !c.gone {
				t.Errorf("%s: reading is still paused", step.what)
			}
		}
	})
}

// Of two channels each has its error, though both wait for the disk; behind an error of the connection there is none.
func TestErrorsOfTwoChannelsWait(t *testing.T) {
	const unknown = `1 channel.close reply-code=406 reply-text="PRECONDITION_FAILED - unknown delivery tag 7" class-id=60 method-id=80`
	for _, step := range []struct{ send, want []string }{
		{[]string{`2 queue.declare queue="none" passive`},
			[]string{`2 channel.close reply-code=404 reply-text="NOT_FOUND - no queue 'none' in vhost '/'" class-id=50 method-id=10`, unknown}},
		{[]string{`2 basic.publish immediate`},
			[]string{`0 connection.close reply-code=540 reply-text="NOT_IMPLEMENTED - immediate=true" class-id=60 method-id=40`}},
	} {
		onHeldDisk(t, func(t *testing.T, b *broker.Broker, gate *vfs.Gate) {
			c := openChannel(t, b, Options{})
			c.send(`2 channel.open`)
			c.got()
			gate.Shut()
			c.send(append([]string{`1 queue.declare queue="a" durable`, `1 basic.ack delivery-tag=7`, `2 queue.declare queue="b" durable`}, step.send...)...)
			synctest.Wait()
			if early := c.got(); len(early) > 0 {
				t.Fatalf("answered before the disk has it: %q", early)
			}
			gate.Open()
			c.settle()
			want := append([]string{`1 queue.declare-ok queue="a"`, `2 queue.declare-ok queue="b"`}, step.want...)
			if got := c.got(); !slices.Equal(got, want) {
				t.Errorf("got\n%s\nwant\n%s", list(got), list(want))
			}
		})
	}
}

// A malformed frame ends the connection behind the frames that came before it, which were held, and their answers;
// what comes behind it is dropped.
func TestMalformedFrameBehindHeldOnes(t *testing.T) {
	onHeldDisk(t, func(t *testing.T, b *broker.Broker, gate *vfs.Gate) {
		const (
			noEnd   = `raw "\x01\x00\x01\x00\x00\x00\x00\x00"`
			tooLong = `raw "\x01\x00\x01\xff\xff\xff\xff"`
			noType  = `raw "\x09\x00\x01\x00\x00\x00\x00\xce"`
		)
		declares := func(q string) []string {
			return []string{`1 queue.declare queue="` + q + `" durable`, `1 basic.qos`, `1 queue.declare queue="` + q + `.2" durable`, `1 basic.publish routing-key="` + q + `.2"`, `1 header size=0`}
		}
		answers := func(q string, more ...string) []string {
			return append([]string{`1 queue.declare-ok queue="` + q + `"`, `1 basic.qos-ok`, `1 queue.declare-ok queue="` + q + `.2"`}, more...)
		}
		for q, c := range map[string]struct {
			send [][]string
			want []string
		}{
			"no end": {[][]string{append(declares("no end"), noEnd, `1 queue.declare queue="never" durable`), {`1 queue.declare queue="never" durable`}}, answers("no end")},
			"later":  {[][]string{declares("later"), {tooLong}, {`1 queue.declare queue="never" durable`}}, answers("later")},
			"kept":   {[][]string{{`1 queue.declare queue="kept" durable`, `1 queue.declare queue="kept.2" durable`, `1 basic.publish routing-key="kept.2"`, `1 header size=0`, noEnd}}, []string{`1 queue.declare-ok queue="kept"`, `1 queue.declare-ok queue="kept.2"`}},
			"behind an error": {[][]string{append(declares("behind an error"), `1 queue.declare queue="behind an error"`, `1 basic.qos`), {tooLong}},
				answers("behind an error", `1 channel.close reply-code=406 reply-text="PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'behind an error' in vhost '/': received 'false' but current is 'true'" class-id=50 method-id=10`)},
			"unknown type": {[][]string{append(declares("unknown type"), noType, `1 queue.declare queue="never" durable`), {`0 connection.close-ok`}}, answers("unknown type")},
		} {
			client := openChannel(t, b, Options{})
			synctest.Wait()
			gate.Shut()
			for _, lines := range c.send {
				client.send(lines...)
			}
			client.expect()
			if client.out.paused == 0 {
				t.Errorf("%s: reading goes on", q)
			}
			gate.Open()
			client.settle()
			got := client.got()
			if len(got) < 2 || !slices.Equal(got[:len(got)-2], c.want) || !strings.Contains(got[len(got)-2], "connection.close reply-code=501") || got[len(got)-1] != "closed" {
				t.Errorf("%s: got\n%s\nwant\n%s, and 501", q, list(got), list(c.want))
			}
			other := openChannel(t, b, Options{})
			other.send(`1 queue.declare queue="`+q+`.2" passive`, `1 queue.declare queue="never" passive`)
			other.settle()
			if got := other.got(); len(got) != 2 || got[0] != `1 queue.declare-ok queue="`+q+`.2" message-count=1` || !strings.Contains(got[1], "reply-code=404") {
				t.Errorf("%s: then\n%s", q, list(got))
			}
		}
	})
}

// So does one that was read while the connection had to rest.
func TestMalformedFrameBehindSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t)
		c := openChannel(t, b, Options{})
		var lines, want []string
		for i := range 1000 {
			lines = append(lines, fmt.Sprintf(`1 queue.declare queue="q%d"`, i))
			want = append(want, fmt.Sprintf(`1 queue.declare-ok queue="q%d"`, i))
		}
		c.send(append(lines, `raw "\x01\x00\x01\xff\xff\xff\xff"`)...)
		c.settle()
		got := c.got()
		if n := len(got) - 2; n < 0 || !slices.Equal(got[:n], want) || !strings.Contains(got[n], "connection.close reply-code=501") || got[n+1] != "closed" {
			t.Errorf("%d answers, the last ones %q", len(got), got[max(0, len(got)-3):])
		}
	})
}

// Publishes and settlements go on behind a declare that waits, and so do more declares.
func TestDeclaresArePipelined(t *testing.T) {
	onHeldDisk(t, func(t *testing.T, b *broker.Broker, gate *vfs.Gate) {
		c := openChannel(t, b, Options{})
		gate.Shut()
		var lines, want []string
		for i := range 500 {
			lines = append(lines, fmt.Sprintf(`1 queue.declare queue="q%d" durable`, i), fmt.Sprintf(`1 basic.publish routing-key="q%d"`, i), `1 header size=0`)
			want = append(want, fmt.Sprintf(`1 queue.declare-ok queue="q%d"`, i))
		}
		c.send(lines...)
		synctest.Wait()
		if c.out.paused != 0 {
			t.Error("reading is paused")
		}
		if got := b.Totals(); got.Queues != 500 || got.Ready != 500 {
			t.Errorf("%+v while the disk is held", got)
		}
		c.expect()
		before, _ := b.JournalStats()
		gate.Open()
		c.settle()
		c.expect(want...)
		if after, _ := b.JournalStats(); after.Syncs-before.Syncs > 4 {
			t.Errorf("%d syncs", after.Syncs-before.Syncs)
		}
	})
}

// A client that goes away while its answers are kept leaves nothing behind.
func TestLostWhileAnswersAreKept(t *testing.T) {
	onHeldDisk(t, func(t *testing.T, b *broker.Broker, gate *vfs.Gate) {
		c := openChannel(t, b, Options{})
		gate.Shut()
		c.send(`1 queue.declare queue="q" durable`, `1 basic.qos`, `1 basic.qos`)
		c.lose()
		gate.Open()
		synctest.Wait()
		c.runTasks()
		c = openChannel(t, b, Options{})
		c.send(`1 queue.declare queue="q" passive`)
		c.settle()
		c.expect(`1 queue.declare-ok queue="q"`)
	})
}

// A client that declares without end is served in slices, in order, and gets all its answers; so is what comes
// behind in the same read, whatever it is. Reading is paused between two slices only.
func TestManyVerbsComeInSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t)
		sender := openChannel(t, b, Options{})
		sender.send(`1 queue.declare queue="q"`)
		sender.settle()
		sender.expect(`1 queue.declare-ok queue="q"`)
		<-time.After(time.Minute)
		for _, flows := range []bool{false, true} {
			c := openChannel(t, b, Options{})
			if flows {
				sender.send(`1 basic.publish routing-key="q"`, `1 header size=0`)
			}
			var lines, want []string
			for i := range 1000 {
				lines = append(lines, fmt.Sprintf(`1 queue.declare queue="q%d"`, i))
				want = append(want, fmt.Sprintf(`1 queue.declare-ok queue="q%d"`, i))
			}
			lines = append(lines, `1 basic.publish routing-key="q999"`, `1 header size=0`, `1 queue.purge queue="q999"`, `1 queue.purge queue="missing"`)
			want = append(want, `1 queue.purge-ok message-count=1`, `1 channel.close reply-code=404 reply-text="NOT_FOUND - no queue 'missing' in vhost '/'" class-id=50 method-id=30`)
			c.send(lines...)
			if n := b.Totals().Queues; n > 600 || c.out.paused == 0 {
				t.Errorf("%d queues after two slices, paused for %x", n, c.out.paused)
			}
			c.settle()
			c.expect(want...)
			if c.out.paused != 0 {
				t.Errorf("still paused for %x", c.out.paused)
			}
			for i := range 1000 {
				sender.send(fmt.Sprintf(`1 queue.delete queue="q%d" no-wait`, i))
				sender.settle()
			}
			c.lose()
			<-time.After(time.Minute)
			sender.got()
		}
	})
}
