package fmq1

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/firemq/firemq/broker"
	wire "github.com/firemq/firemq/frames/fmq1"
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
func (l *link) settle() {
	synctest.Wait()
	for len(l.o.tasks) > 0 {
		l.o.run()
		synctest.Wait()
	}
}

// The transcripts are the same on a disk that syncs nothing before all that a client sends has come.
func TestScenariosOnAHeldDisk(t *testing.T) {
	for _, name := range []string{"topology", "exchanges", "permissions", "errors", "consume", "close", "cancelled", "replyto"} {
		t.Run(name, func(t *testing.T) {
			want, err := os.ReadFile("testdata/" + name + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			onHeldDisk(t, func(t *testing.T, b *broker.Broker, gate *vfs.Gate) {
				got := play(t, b, string(want), func(l *link, p []byte) {
					synctest.Wait()
					gate.Shut()
					l.feed(p)
					gate.Open()
					l.settle()
				})
				g, w := withoutConfirms(got), withoutConfirms(string(want))
				for i := range g {
					if i >= len(w) || g[i] != w[i] {
						t.Fatalf("line %d\ngot  %s\nwant %s", i+1, g[i], append(w, "")[min(i, len(w))])
					}
				}
			})
		})
	}
}

// withoutConfirms leaves out what no order is promised for.
func withoutConfirms(text string) (lines []string) {
	for line := range strings.SplitSeq(text, "\n") {
		if !strings.Contains(line, "< confirm ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Declares, and publishes between them, are carried out while their answers wait; the first request
// whose answer would overtake them, and what follows it, is not.
func TestRequestsWaitBehindKeptAnswers(t *testing.T) {
	onHeldDisk(t, func(t *testing.T, b *broker.Broker, gate *vfs.Gate) {
		l := newLink(t, b, Options{})
		l.feed([]byte(wire.Preface))
		l.feed(parse(t, `hello {"ver":1,"auth":{"mech":"plain","user":"guest","pass":"guest"}}`))
		l.settle()
		l.o.take()
		gate.Shut()
		var send []byte
		var want []string
		for i := range 300 {
			send = append(send, parse(t, fmt.Sprintf(`declare_queue {"rid": %d, "name": "q%d", "durable": true}`, i+1, i))...)
			want = append(want, fmt.Sprintf(`ok {"rid":%d,"name":"q%d"}`, i+1, i))
		}
		send = append(send, parse(t, `declare_queue {"rid": 301, "name": "q1", "durable": false}`)...)
		l.feed(send)
		l.settle()
		if got := b.Totals(); got.Queues != 300 || l.o.paused != 0 {
			t.Errorf("%+v while the disk is held, paused for %x", got, l.o.paused)
		}
		l.feed(append(parse(t, `subscribe {"rid": 302, "sub": 1, "queue": "q1", "credit": 1}`), parse(t, `close {}`)...))
		l.settle()
		if got := show(t, l.o.take()); len(got) != 0 || broker.Reason(l.o.paused) != pauseHeld {
			t.Errorf("got %q before the disk has anything, paused for %x", got, l.o.paused)
		}
		gate.Open()
		l.settle()
		got := show(t, l.o.take())
		want = append(want,
			`error {"rid":301,"code":406,"msg":"PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q1' in vhost '/': received 'false' but current is 'true'"}`,
			`ok {"rid":302}`, `close {"code":200,"msg":"bye"}`)
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if !l.o.closed {
			t.Error("the connection is still there")
		}
	})
}

// What ends the connection, a malformed frame or a publish out of order, does so behind the frames that came before
// it, which were held, and their answers; what comes behind it is dropped.
func TestFatalFaultBehindHeldFrames(t *testing.T) {
	onHeldDisk(t, func(t *testing.T, b *broker.Broker, gate *vfs.Gate) {
		for name, c := range map[string]struct {
			bad  []byte
			want string
		}{
			"malformed": {[]byte{0xff, 0xff, 0xff, 0xff}, `"code":501`},
			"sequence":  {parse(t, `publish {"seq": 7, "key": "never"} ""`), `"msg":"COMMAND_INVALID - publish has seq 7, expected 1"`},
		} {
			for _, held := range []bool{true, false} {
				q := fmt.Sprint(name, held)
				l := newLink(t, b, Options{})
				l.feed([]byte(wire.Preface))
				l.feed(parse(t, `hello {"ver":1,"auth":{"mech":"plain","user":"guest","pass":"guest"}}`))
				l.settle()
				l.o.take()
				gate.Shut()
				send := parse(t, `declare_queue {"rid": 1, "name": "`+q+`", "durable": true}`)
				want := []string{`ok {"rid":1,"name":"` + q + `"}`}
				if held {
					send = append(send, parse(t, `unsubscribe {"rid": 2, "sub": 1}`)...)
					send = append(send, parse(t, `declare_queue {"rid": 3, "name": "`+q+`.2"}`)...)
					want = append(want, `ok {"rid":2}`, `ok {"rid":3`)
				}
				never := parse(t, `declare_queue {"rid": 4, "name": "never", "durable": true}`)
				l.feed(append(append(send, c.bad...), never...))
				l.feed(never)
				l.settle()
				if got := show(t, l.o.take()); len(got) > 0 || broker.Reason(l.o.paused) != pauseHeld {
					t.Errorf("%s: got %q before the disk has anything, paused for %x", q, got, l.o.paused)
				}
				gate.Open()
				l.settle()
				got := show(t, l.o.take())
				ok := len(got) == len(want)+1 && l.o.closed
				for i := range want {
					ok = ok && strings.HasPrefix(got[i], want[i])
				}
				if last := got[max(0, len(got)-1)]; !ok || !strings.Contains(last, c.want) || !strings.Contains(last, `"fatal":true`) {
					t.Errorf("%s: got\n%s\nwant\n%s", q, strings.Join(got, "\n"), strings.Join(append(want, c.want), "\n"))
				}
				if n := b.Totals().Queues; n == 0 {
					t.Errorf("%s: no queue", q)
				}
			}
		}
		if n := b.Totals().Queues; n != 6 {
			t.Errorf("%d queues, want those of the frames before the fault: 6", n)
		}
	})
}

// A partial frame is counted also after the frames before it were held.
func TestPartialFrameBehindHeldOnesIsCounted(t *testing.T) {
	onHeldDisk(t, func(t *testing.T, b *broker.Broker, gate *vfs.Gate) {
		l := newLink(t, b, Options{})
		l.feed([]byte(wire.Preface))
		l.feed(parse(t, `hello {"ver":1,"auth":{"mech":"plain","user":"guest","pass":"guest"}}`))
		l.settle()
		gate.Shut()
		l.feed(parse(t, `declare_queue {"rid": 1, "name": "q", "durable": true}`))
		l.feed(parse(t, `get {"rid": 2, "queue": "q"}`))
		part := append([]byte{0, 1, 0, 0, byte(wire.OpPublish), 0, 0, 0, 1, 0x80}, make([]byte, 40_000)...)
		l.feed(part)
		l.settle()
		held := l.s.kept
		if held == 0 || !l.s.wait.on {
			t.Fatalf("%d bytes are counted, waits %t", held, l.s.wait.on)
		}
		gate.Open()
		l.settle()
		if l.s.wait.on || l.s.kept != held {
			t.Errorf("%d bytes are counted instead of %d, waits %t", l.s.kept, held, l.s.wait.on)
		}
	})
}

// A large message half sent during an alarm is read on while little of it has come, and then waits for the alarm's
// end, or for what the broker allows.
func TestHalfSentMessageWaits(t *testing.T) {
	b := openBroker(t, broker.Options{})
	l := newLink(t, b, Options{})
	l.feed([]byte(wire.Preface))
	l.feed(parse(t, `hello {"ver":1,"auth":{"mech":"plain","user":"guest","pass":"guest"}}`))
	l.feed(parse(t, `declare_queue {"rid": 1, "name": "q"}`))
	l.o.take()
	b.SetAlarm(true, false)
	if got := show(t, l.o.take()); len(got) != 1 || l.o.little {
		t.Fatalf("got %q, reads little %t", got, l.o.little)
	}
	const size = 1 << 20
	frame := parse(t, `publish {"seq":1,"key":"q"} "`+strings.Repeat("x", size)+`"`)
	feed := func() (n int) {
		for l.o.paused == 0 && len(frame) > 0 {
			k := min(4096, len(frame))
			l.feed(frame[:k])
			frame, n = frame[k:], n+k
		}
		return n
	}
	if n := feed(); n < 64<<10 || n > 300_000 || !l.o.little {
		t.Fatalf("%d bytes are read", n)
	}
	for range 3 {
		(*peer)(l.s).Answered()
		l.o.run()
	}
	if n := feed(); n != 0 {
		t.Fatalf("%d bytes more are read", n)
	}
	b.AllowLate(100_000, 0, 0)
	l.o.run()
	if n := feed(); n == 0 || len(frame) == 0 || l.o.paused == 0 {
		t.Fatalf("%d bytes more are read of what is allowed, paused for %x", n, l.o.paused)
	}
	b.SetAlarm(false, false)
	l.o.run()
	feed()
	if got := show(t, l.o.take()); len(got) != 2 || got[0] != "flow {}" || got[1] != `confirm {"upto":1}` || l.o.paused != 0 || l.o.little || len(frame) > 0 {
		t.Fatalf("got %q, paused for %x, %d bytes are left", got, l.o.paused, len(frame))
	}
}

// A client that is silent behind a publish that waits is as dead as any. One whose pings come, which are answered, is
// not, and neither is one of which nothing is read.
func TestSilenceBehindAHeldPublish(t *testing.T) {
	for name, c := range map[string]struct {
		sends string // every few seconds
		size  int    // of the publish
		dead  bool
	}{
		"silent":          {"", 10, true},
		"pings":           {"ping", 10, false},
		"pongs":           {"pong", 10, false},
		"nothing is read": {"", 2 * heldMost, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := openBroker(t, broker.Options{})
			l := newLink(t, b, Options{})
			l.feed([]byte(wire.Preface))
			l.feed(parse(t, `hello {"ver":1,"heartbeat":10,"auth":{"mech":"plain","user":"guest","pass":"guest"}}`))
			l.feed(parse(t, `declare_queue {"rid": 1, "name": "q"}`))
			b.SetAlarm(true, false)
			for seq := range 2 { // the one that meets the alarm is taken
				l.feed(parse(t, fmt.Sprintf(`publish {"seq":%d,"key":"q"} *%d`, seq+1, c.size)))
			}
			if n := b.Totals().Ready; n != 1 {
				t.Fatalf("%d messages during the alarm", n)
			}
			l.o.take()
			for range 10 {
				for range 5 {
					l.now += 1e9
					l.s.OnTick(l.now)
				}
				if c.sends != "" {
					l.o.clock = l.now
					l.feed(parse(t, c.sends))
				}
			}
			if dead := l.o.err == errDead; dead != c.dead || !c.dead && l.o.closed {
				t.Fatalf("dead %t, ended by %v", dead, l.o.err)
			}
			if c.dead {
				return
			}
			pongs := strings.Count(strings.Join(show(t, l.o.take()), "\n"), "pong")
			if want := map[string]int{"ping": 10}[c.sends]; pongs != want {
				t.Errorf("%d pongs, want %d", pongs, want)
			}
			b.SetAlarm(false, false)
			l.o.run()
			if n := b.Totals().Ready; n != 2 || l.o.paused != 0 {
				t.Errorf("%d messages after the alarm, paused for %x", n, l.o.paused)
			}
		})
	}
}
