package amqp

import (
	"bytes"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/amqp/text"
	"github.com/firemq/firemq/pool"
	"github.com/firemq/firemq/session"
)

// memOutbox is an outbox in memory. Every block it lends has just the room asked for, so that a
// session that appends more is caught.
type memOutbox struct {
	t testing.TB

	mu       sync.Mutex
	block    []byte // lent by Tail
	staged   []byte
	sent     []byte
	dirty    bool
	full     bool
	sealed   bool
	closed   bool
	aborted  error
	paused   uint32
	little   bool
	tasks    []func()
	lastRead int64
	lastSent int64
	now      int64
	refs     int
}

func (o *memOutbox) Lock() { o.mu.Lock() }

func (o *memOutbox) Unlock() (flush bool) {
	flush = len(o.staged) > 0 && !o.dirty
	o.dirty = len(o.staged) > 0
	o.mu.Unlock()
	return flush
}

func (o *memOutbox) Tail(n int) []byte {
	o.block = make([]byte, 0, n)
	return o.block
}

func (o *memOutbox) Put(b []byte) {
	if cap(b) != cap(o.block) {
		panic(fmt.Sprintf("BUG: %d bytes put where %d were asked for", len(b), cap(o.block)))
	}
	if !o.sealed {
		o.staged = append(o.staged, b...)
	}
	o.block = nil
}

func (o *memOutbox) Ref(b *pool.Buf, p []byte) {
	if !o.sealed {
		o.staged = append(o.staged, p...)
	}
	o.refs++
	b.Release()
}

func (o *memOutbox) Flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.staged) > 0 {
		o.lastSent = o.now
	}
	o.sent = append(o.sent, o.staged...)
	o.staged, o.dirty = nil, false
}

func (o *memOutbox) Writable() bool { return !o.full }

func (o *memOutbox) Pause(r uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.paused |= r
}

func (o *memOutbox) Resume(r uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.paused &^= r
}

func (o *memOutbox) ReadLittle(on bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.little = on
}

func (o *memOutbox) Do(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tasks = append(o.tasks, f)
}

func (o *memOutbox) CloseAfterFlush() {
	o.Flush()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed, o.sealed = true, true
}

func (o *memOutbox) Abort(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed, o.sealed, o.aborted = true, true, err
}

func (o *memOutbox) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5672} }
func (o *memOutbox) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 50000}
}
func (o *memOutbox) LastRead() int64  { return o.lastRead }
func (o *memOutbox) LastWrite() int64 { return o.lastSent }

// take gives what was sent since the last call.
func (o *memOutbox) take() []byte {
	o.Flush()
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.sent
	o.sent = nil
	return b
}

var _ session.Outbox = (*memOutbox)(nil)

// newBroker is a broker in memory with the user guest. When the test ends nothing may be lent.
func newBroker(t testing.TB) *broker.Broker {
	t.Helper()
	return openBroker(t, broker.Options{})
}

// openBroker is newBroker on a disk, or on none.
func openBroker(t testing.TB, o broker.Options) *broker.Broker {
	t.Helper()
	before := pool.Live()
	o.Start.VHosts = []string{"/"}
	o.LoopbackUsers = []string{"guest"}
	o.Codecs = map[message.Encoding]message.Codec{message.AMQP: amqp.PropertyCodec{}}
	b, _, err := broker.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.AddFirstUser("guest", "guest"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if n := pool.Live(); n != before {
			t.Errorf("%d buffers are still lent after the broker closed", n-before)
		}
	})
	return b
}

// client is the other side of a session.
type client struct {
	t     testing.TB
	out   *memOutbox
	s     *Session
	carry []byte
	want  int // bytes the session waits for
	gone  bool
}

func newClient(t testing.TB, b *broker.Broker, opt Options) *client {
	t.Helper()
	c := &client{t: t, out: &memOutbox{t: t, now: 1, lastRead: 1, lastSent: 1}}
	c.s = New(c.out, b, opt)
	t.Cleanup(c.lose)
	return c
}

// feed is one read: whole frames are taken, the rest is kept, as package loop does.
func (c *client) feed(b []byte) {
	c.t.Helper()
	c.out.lastRead = c.out.now
	c.carry = append(c.carry, b...)
	for len(c.carry) > 0 && len(c.carry) >= c.want && !c.out.closed {
		// The session must keep nothing of what it is given.
		lent := bytes.Clone(c.carry)
		n, want := c.s.OnData(lent)
		for i := range lent {
			lent[i] = 0xAA
		}
		if n < 0 || n > len(c.carry) || want < 0 {
			c.t.Fatalf("OnData of %d bytes: n=%d want=%d", len(c.carry), n, want)
		}
		c.carry, c.want = c.carry[n:], want
		c.runTasks()
		if n == 0 {
			if want > 0 && want <= len(c.carry) && !c.out.closed {
				c.t.Fatalf("OnData of %d bytes wants %d and took none", len(c.carry), want)
			}
			break
		}
	}
	c.out.Flush()
}

func (c *client) runTasks() {
	c.out.mu.Lock()
	tasks := c.out.tasks
	c.out.tasks = nil
	c.out.mu.Unlock()
	for _, f := range tasks {
		f()
	}
}

// send feeds the frames of text lines in one read.
func (c *client) send(lines ...string) {
	c.t.Helper()
	c.feed(encode(c.t, lines...))
}

func encode(t testing.TB, lines ...string) (b []byte) {
	t.Helper()
	var err error
	for _, line := range lines {
		if b, err = text.Append(b, line); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// got gives the frames sent since the last call, as lines, and the end of the connection.
func (c *client) got() []string {
	lines := text.FormatAll(c.out.take())
	if c.out.closed && !c.gone {
		c.gone = true
		if c.out.aborted != nil {
			lines = append(lines, "aborted: "+c.out.aborted.Error())
		} else {
			lines = append(lines, "closed")
		}
	}
	return lines
}

// expect compares the lines that came since the last call.
func (c *client) expect(want ...string) {
	c.t.Helper()
	if got := c.got(); !slices.Equal(got, want) {
		c.t.Fatalf("got:\n%s\nwant:\n%s", list(got), list(want))
	}
}

func list(lines []string) string {
	var b bytes.Buffer
	for _, l := range lines {
		fmt.Fprintln(&b, " ", l)
	}
	return b.String()
}

// lose ends the connection as a broken socket does. Called once.
func (c *client) lose() {
	if c.s == nil {
		return
	}
	c.out.Abort(net.ErrClosed)
	c.s.OnClose(net.ErrClosed)
	c.s = nil
}

// tick lets the time pass, second by second.
func (c *client) tick(seconds int) {
	for range seconds {
		c.out.now += 1e9
		if !c.out.closed {
			c.s.OnTick(c.out.now)
		}
	}
}

const hello = `raw "AMQP\x00\x00\x09\x01"`

var login = []string{
	hello,
	`0 connection.start-ok client-properties={capabilities=F{consumer_cancel_notify=t1 authentication_failure_close=t1 connection.blocked=t1 basic.nack=t1 publisher_confirms=t1}} mechanism="PLAIN" response="\x00guest\x00guest" locale="en_US"`,
	`0 connection.tune-ok channel-max=2047 frame-max=131072 heartbeat=60`,
	`0 connection.open virtual-host="/"`,
}

// open is a client past its handshake.
func open(t testing.TB, b *broker.Broker, opt Options) *client {
	t.Helper()
	c := newClient(t, b, opt)
	c.send(login...)
	if got := c.got(); len(got) != 3 || got[2] != "0 connection.open-ok" {
		t.Fatalf("handshake: %s", list(got))
	}
	return c
}

// openChannel is open with channel 1 open.
func openChannel(t testing.TB, b *broker.Broker, opt Options) *client {
	t.Helper()
	c := open(t, b, opt)
	c.send("1 channel.open")
	c.expect("1 channel.open-ok")
	return c
}

// peakFrame is the longest frame payload in b.
func peakFrame(b []byte) (longest int) {
	for len(b) > 0 {
		f, n, err := amqp.Next(b, math.MaxInt32)
		if n == 0 || err != nil {
			return -1
		}
		longest = max(longest, len(f.Payload))
		b = b[n:]
	}
	return longest
}
