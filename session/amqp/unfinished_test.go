package amqp

import (
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

// During an alarm who publishes is paused with the first frame of content, and not when a message is
// complete: one that never is would fill the memory.
func TestAlarmStopsHalfSentMessages(t *testing.T) {
	b := newBroker(t)
	before, during := openChannel(t, b, Options{}), openChannel(t, b, Options{})
	before.half(1<<20, 100_000)
	b.SetAlarm(true, false)
	if before.out.paused != 0 || during.out.paused != 0 {
		t.Fatal("paused before they published")
	}
	before.feed(amqp.AppendBody(nil, 1, make([]byte, 1000), 131072))
	during.half(1<<20, 0)
	if before.out.paused == 0 || during.out.paused == 0 {
		t.Fatalf("paused for %b and %b", before.out.paused, during.out.paused)
	}
	during.expect(`0 connection.blocked reason="low on memory"`)
	for _, v := range b.Connections() {
		if v.State != broker.StateBlocked {
			t.Errorf("state %s", v.State)
		}
	}
	b.SetAlarm(false, false)
	if before.out.paused != 0 || during.out.paused != 0 {
		t.Fatalf("paused for %b and %b after the alarm", before.out.paused, during.out.paused)
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
