package amqp

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/frames/amqp"
)

// half begins a message of size bytes on channel 1 and sends so many of them.
func (c *client) half(size, sent int) {
	c.t.Helper()
	b := (&amqp.BasicPublish{RoutingKey: []byte("q")}).AppendFrame(nil, 1)
	c.feed(amqp.AppendContentHeader(b, 1, size, []byte{0, 0}))
	for sent > 0 && !c.out.closed {
		n := min(sent, 60_000)
		c.feed(amqp.AppendBody(nil, 1, make([]byte, n), 131072))
		sent -= n
	}
}

// Messages half sent have a bound over all connections: who passes it hears 506. Their memory comes back.
func TestHalfSentMessagesAreBounded(t *testing.T) {
	b := newBroker(t)
	b.LimitUnfinished(10 << 20)
	const size = 6 << 20
	first, second := openChannel(t, b, Options{}), openChannel(t, b, Options{})
	first.half(size, size-1)
	second.half(size, size-1)
	if got := second.got(); len(got) != 1 || !strings.Contains(got[0], `connection.close reply-code=506 reply-text="RESOURCE_ERROR - unfinished messages of all connections take more than 10485760 bytes"`) {
		t.Fatalf("got %s", list(got))
	}
	first.feed(amqp.AppendBody(nil, 1, make([]byte, 1), 131072))
	first.send(`1 queue.declare queue="q"`)
	first.expect(`1 queue.declare-ok queue="q"`)
	// A frame of another kind counts too, and so does an abandoned message until its channel is closed.
	third := openChannel(t, b, Options{})
	third.half(size, size-1)
	third.send("1 channel.close")
	third.got()
	fourth := openChannel(t, b, Options{})
	fourth.half(size, size)
	fourth.send(`1 queue.declare queue="q"`)
	fourth.expect(`1 queue.declare-ok queue="q" message-count=1`) // its own had no queue yet when the first one's came
}

// During an alarm who publishes is told with the first frame of content, and not when a message is
// complete: one that never is would fill the memory. What is left of a message is read if it is little.
func TestAlarmStopsHalfSentMessages(t *testing.T) {
	for name, feed := range map[string]func(c *client, n int){
		"in frames": func(c *client, n int) { c.feed(amqp.AppendBody(nil, 1, make([]byte, n), 131072)) },
		"in one frame, bit by bit": func(c *client, n int) {
			for ; n > 0; n -= littleRead {
				part := make([]byte, littleRead)
				switch c.s.body.left {
				case 0:
					part = append(binary.BigEndian.AppendUint32([]byte{amqp.FrameBody, 0, 1}, 31*littleRead-1), part...)
				case littleRead - 1:
					part[littleRead-1] = 0xCE // the end of a frame
				}
				c.feed(part)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBroker(t)
			before, during := openChannel(t, b, Options{}), openChannel(t, b, Options{})
			before.half(1<<20, 100_000)
			b.SetAlarm(true, false)
			if before.out.little || during.out.little {
				t.Fatal("told before they published")
			}
			feed(before, 8*littleRead)
			during.half(1<<20, 0)
			for _, c := range []*client{before, during} {
				if !c.out.little || c.out.paused != 0 {
					t.Fatalf("reads little %t, paused for %b", c.out.little, c.out.paused)
				}
				c.expect(`0 connection.blocked reason="low on memory"`)
			}
			for _, v := range b.Connections() {
				if v.State != broker.StateBlocked {
					t.Errorf("state %s", v.State)
				}
			}
			rest := 0
			for ; before.out.paused == 0 && rest < 1<<20; rest += littleRead {
				feed(before, littleRead)
			}
			if rest < 64<<10 || rest > 160<<10 {
				t.Errorf("%d bytes of a message are read", rest)
			}
			during.send("1 body " + strconv.Quote(strings.Repeat("x", 1000)))
			if during.out.paused != 0 {
				t.Errorf("paused for %b", during.out.paused)
			}
			b.SetAlarm(false, false)
			for _, c := range []*client{before, during} {
				if c.runTasks(); c.out.paused != 0 || c.out.little {
					t.Fatalf("after the alarm reads little %t, paused for %b", c.out.little, c.out.paused)
				}
			}
		})
	}
}

// littleRead is what a session that asked for it is given at once.
const littleRead = 4 << 10

// What comes before a publish that waits is carried out, whatever it waits for; what may still be published
// during an alarm is; the rest is, in its order, when the last reason is gone.
func TestPublishesWait(t *testing.T) {
	publish := func(key string) []string {
		return []string{`1 basic.publish routing-key="` + key + `"`, `1 header size=0`}
	}
	for name, reason := range map[string]broker.Reason{
		"journal": broker.PauseJournal, "growth": broker.PauseGrowth, "memory": broker.PauseMemory, "both": broker.PauseDisk | broker.PauseJournal,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBroker(t)
			c := openChannel(t, b, Options{})
			c.send(append(publish("q"), `1 queue.declare queue="q"`, `1 confirm.select`)...)
			c.expect(`1 queue.declare-ok queue="q"`, `1 confirm.select-ok`)
			c.s.peer.Pause(reason)
			c.got() // connection.blocked
			c.send(`1 queue.purge queue="q"`, `0 heartbeat`)
			c.expect(`1 queue.purge-ok`)
			if !c.out.little || c.out.paused != 0 {
				t.Fatalf("reads little %t, paused for %b", c.out.little, c.out.paused)
			}
			c.send(append(append(publish("q"), `1 queue.purge queue="q"`), publish("q")...)...)
			c.send(`1 basic.get queue="q"`)
			c.expect()
			for range 3 { // somebody says that it should look again
				c.s.peer.Answered()
				c.runTasks()
			}
			c.expect()
			for bit := broker.Reason(1); bit <= reason; bit <<= 1 {
				if got := c.got(); bit&reason != 0 && len(got) != 0 {
					t.Fatalf("too early: %s", list(got))
				}
				c.s.peer.Resume(bit & reason)
				c.runTasks()
			}
			got := slices.DeleteFunc(c.got(), func(line string) bool { return line == "0 connection.unblocked" })
			if want := []string{`1 queue.purge-ok message-count=1`, `1 basic.ack delivery-tag=1`, `1 basic.ack delivery-tag=2`, `1 basic.get-ok delivery-tag=1 routing-key="q"`, `1 header size=0`}; !same(got, want) {
				t.Fatalf("got %s", list(got))
			}
			if c.out.paused != 0 || c.out.little || c.s.wait.held != nil {
				t.Errorf("reads little %t, paused for %b, %d bytes are held", c.out.little, c.out.paused, len(c.s.wait.held))
			}
		})
	}
}

// What is held behind a publish that waits is read on until it is some kilobytes, with the frame that is coming;
// heartbeats are not held. All of it is carried out in its order.
func TestHeldFramesAreBounded(t *testing.T) {
	others := encode(t, slices.Repeat([]string{`1 basic.qos`}, 800)...) // than publishes
	for name, more := range map[string]func(c *client){
		"frames": func(c *client) {
			for b := others; c.out.paused == 0 && len(b) > 0; {
				n := min(littleRead, len(b))
				c.feed(b[:n])
				b = b[n:]
			}
		},
		"a frame that comes": func(c *client) { c.feed(amqp.AppendBody(nil, 1, make([]byte, 10_000), 131072)[:100]) },
		"a malformed frame":  func(c *client) { c.feed([]byte{1, 0, 1, 0, 0, 0, 0, 0}) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBroker(t)
			c := openChannel(t, b, Options{})
			c.send(`1 queue.declare queue="q"`)
			c.s.peer.Pause(broker.PauseJournal)
			c.send(`1 basic.publish routing-key="q"`, `1 header size=0`)
			for range 4 * heldMost / amqp.FrameOverhead {
				c.send(`0 heartbeat`)
			}
			if c.out.paused != 0 {
				t.Fatalf("paused for %x, %d bytes are held", c.out.paused, len(c.s.wait.held))
			}
			more(c)
			if n := len(c.s.wait.held) + len(c.carry); c.out.paused == 0 || n > heldMost+littleRead {
				t.Fatalf("paused for %x, %d bytes are held", c.out.paused, n)
			}
			for range 3 { // somebody says that it should look again
				c.s.peer.Answered()
				c.runTasks()
			}
			if c.out.paused == 0 {
				t.Fatal("it is read")
			}
			c.got()
			c.s.peer.Resume(broker.PauseJournal)
			c.runTasks()
			if c.out.paused != 0 || c.s.wait.held != nil {
				t.Errorf("paused for %x, %d bytes are held", c.out.paused, len(c.s.wait.held))
			}
			switch got := c.got(); {
			case name == "frames" && (len(got) < 200 || got[0] != `1 basic.qos-ok`):
				t.Errorf("%d answers: %.200s", len(got), list(got))
			case name == "a malformed frame" && (len(got) != 2 || !strings.Contains(got[0], "reply-code=501")):
				t.Errorf("got %s", list(got))
			}
			if n := b.Totals().Ready; n != 1 {
				t.Errorf("%d messages are published", n)
			}
		})
	}
}

// A client that is silent behind a publish that waits is as dead as any. One whose heartbeats come is not, and neither
// is one of which nothing is read.
func TestSilenceBehindAHeldPublish(t *testing.T) {
	for name, c := range map[string]struct {
		beats bool
		size  int // of the publish
		dead  bool
	}{
		"silent":           {false, 0, true},
		"alive":            {true, 0, false},
		"nothing is read":  {false, 2 * heldMost, false},
		"silent, and more": {false, heldMost / 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBroker(t)
			x := openChannel(t, b, Options{})
			x.send(`1 queue.declare queue="q"`)
			b.SetAlarm(true, false)
			m := amqp.AppendContentHeader((&amqp.BasicPublish{RoutingKey: []byte("q")}).AppendFrame(nil, 1), 1, c.size, []byte{0, 0})
			if c.size > 0 {
				m = amqp.AppendBody(m, 1, make([]byte, c.size), 131072)
			}
			x.feed(m)
			x.feed(m) // the one that meets the alarm is taken
			for range 10 {
				x.tick(30)
				if c.beats && !x.out.closed {
					x.send(`0 heartbeat`)
				}
			}
			if dead := x.out.aborted == errHeartbeat; dead != c.dead || !c.dead && x.out.closed {
				t.Fatalf("dead %t, ended by %v", dead, x.out.aborted)
			}
			if c.dead {
				return
			}
			b.SetAlarm(false, false)
			x.runTasks()
			if n := b.Totals().Ready; n != 2 || x.out.paused != 0 {
				t.Errorf("%d messages after the alarm, paused for %x", n, x.out.paused)
			}
			x.tick(100)
			if x.out.closed {
				t.Error("the time in which nothing was read counts")
			}
		})
	}
}

// same compares lines without their order.
func same(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// What was on its way when a client was told of an alarm is taken as far as the broker allows, whoever it is
// that the alarm stops; then publishes wait.
func TestLatePublishesAreTaken(t *testing.T) {
	b := newBroker(t)
	c := openChannel(t, b, Options{})
	c.send(`1 queue.declare queue="q"`, `1 basic.consume queue="q" consumer-tag="t"`)
	c.got()
	b.SetAlarm(true, false)
	b.AllowLate(1<<20, 0, 0)
	message := func() {
		c.feed(amqp.AppendBody(amqp.AppendContentHeader((&amqp.BasicPublish{RoutingKey: []byte("q")}).AppendFrame(nil, 1), 1, 100_000, []byte{0, 0}), 1, make([]byte, 100_000), 131072))
	}
	n := 0
	for ; c.out.paused == 0 && n < 100; n++ {
		message()
	}
	if n != 11 { // a buffer takes 112 KiB
		t.Errorf("stopped at message %d", n)
	}
	c.got()
	b.AllowLate(300_000, 0, 0)
	c.runTasks()
	if c.out.paused != 0 {
		t.Error("it still waits")
	}
	for ; c.out.paused == 0 && n < 100; n++ {
		message()
	}
	if n != 14 { // the one that waited, two more, and one that waits
		t.Errorf("stopped at message %d", n)
	}
	// One connection has a bound of its own, for each alarm.
	b.AllowLate(1<<30, 0, 0)
	c.runTasks()
	for ; c.out.paused == 0 && n < 200; n++ {
		message()
	}
	if n < 72 || n > 76 {
		t.Errorf("stopped at message %d", n)
	}
	b.SetAlarm(false, false)
	c.runTasks()
	if c.out.paused != 0 || c.out.little {
		t.Fatalf("after the alarm reads little %t, paused for %b", c.out.little, c.out.paused)
	}
	b.SetAlarm(false, true)
	message()
	message()
	if c.out.paused != 0 {
		t.Errorf("paused for %b in the next alarm", c.out.paused)
	}
	b.AllowLate(0, 0, 0)
	message()
	if c.out.paused == 0 {
		t.Error("it is read although nothing is allowed")
	}
}

// When others have used up what is taken during an alarm, a connection that has deliveries to settle gets its
// publishes through, so that the acks behind them are read; one without any does not.
func TestWhoOwesAcksGetsThroughToThem(t *testing.T) {
	b := newBroker(t)
	c := openChannel(t, b, Options{})
	c.send(`1 queue.declare queue="q"`)
	publish := func(size int) {
		c.feed(amqp.AppendBody(amqp.AppendContentHeader((&amqp.BasicPublish{RoutingKey: []byte("q")}).AppendFrame(nil, 1), 1, size, []byte{0, 0}), 1, make([]byte, size), 131072))
	}
	publish(1)
	c.got()
	b.SetAlarm(true, false)
	b.AllowLate(0, 1<<20, 0)
	publish(1) // is told
	publish(100_000)
	if c.out.paused == 0 {
		t.Fatal("it is read although it has nothing to settle")
	}
	b.AllowLate(100<<10, 1<<20, 0)
	c.runTasks()
	c.send(`1 basic.consume queue="q" consumer-tag="t"`)
	c.got()
	b.AllowLate(0, 1<<20, 0)
	n := 0
	for ; c.out.paused == 0 && n < 100; n++ {
		publish(100_000)
	}
	if n != 6 { // 512 KiB
		t.Errorf("stopped at message %d", n)
	}
	// All of them together have a bound, too, for each alarm.
	b.SetAlarm(false, false)
	c.runTasks()
	c.got()
	b.SetAlarm(true, false)
	b.AllowLate(0, 150<<10, 0)
	c.runTasks()
	publish(1)
	for n = 0; c.out.paused == 0 && n < 100; n++ {
		publish(100_000)
	}
	if n != 3 {
		t.Errorf("with less for all, stopped at message %d", n)
	}
	b.AllowLate(0, 150<<10, 0) // the same alarm
	c.runTasks()
	if c.out.paused == 0 {
		t.Error("a reading of memory gives it more")
	}
}

// Once connection.close is on its way the client's answer is read, whoever wants to pause it.
func TestGoodbyeIsReadWhateverPauses(t *testing.T) {
	c := open(t, newBroker(t), Options{})
	c.s.peer.Close(&broker.Error{Kind: broker.ConnectionForced, Text: "enough"})
	c.runTasks()
	c.s.peer.Pause(broker.PauseClosing)
	if c.out.paused != 0 {
		t.Fatal("the close-ok is not read")
	}
	c.send("0 connection.close-ok")
	if !c.out.closed {
		t.Fatal("still open")
	}
}

// A client that does not answer connection.close is cut off when it takes nothing for CloseTimeout, and
// however slowly it reads after six times that; how long its heartbeat interval is does not matter.
func TestClosingEndsInTime(t *testing.T) {
	for _, reads := range []bool{false, true} {
		c := open(t, newBroker(t), Options{CloseTimeout: 2 * time.Second})
		c.s.peer.Close(&broker.Error{Kind: broker.ConnectionForced, Text: "enough"})
		c.runTasks()
		seconds := 0
		for ; !c.out.closed && seconds < 100; seconds++ {
			if reads {
				c.out.lastSent = c.out.now
			}
			c.tick(1)
		}
		if want := map[bool]int{false: 3, true: 13}[reads]; seconds != want || c.out.aborted != errTimeout {
			t.Errorf("reads %t: %v after %d s, want %d", reads, c.out.aborted, seconds, want)
		}
	}
}
