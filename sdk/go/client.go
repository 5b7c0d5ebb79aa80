package fire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/frames/table"
)

// Version is this client's version, shown to the broker.
const Version = "0.1.0"

const (
	readBuffer = 64 << 10
	// maxStaged is how many bytes wait for the socket before publishers wait too; acknowledgements and
	// requests do not, they are bounded by credit and by callers.
	maxStaged = 1 << 20
	// minWrite is what a write should have: below it other goroutines get a chance to add to it first.
	minWrite = 16 << 10
	// closeTimeout is how long Close waits for the broker's answer.
	closeTimeout = 5 * time.Second
)

// Client is one connection to a broker.
type Client struct {
	cfg      Config        // immutable
	conn     net.Conn      // immutable
	id       string        // immutable
	server   string        // immutable
	maxFrame uint32        // immutable
	done     chan struct{} // closed when the connection is

	reads, writes atomic.Uint64 // system calls that moved bytes; for heartbeats
	loops         sync.WaitGroup

	mu sync.Mutex
	// Guarded by mu.
	err      error // why the connection is closed; nil while it is open
	closing  bool  // close is sent: nothing is staged any more
	peerDone bool  // the broker's close came: nothing is read any more
	out      []byte
	asleep   bool          // the writer waits for wake
	drained  chan struct{} // closed at the next write, for those who wait for room; nil: nobody does
	paused   chan struct{} // flow: closed when publishing may go on; nil: it may
	rid      uint64
	calls    map[uint64]*call
	subID    uint64
	subs     map[uint64]*Subscription
	seq      uint64       // of the last publish
	pending  pending      // publishes without a confirm
	waiters  *waiter      // free ones
	unacked  unacked      // deliveries without an ack
	gets     Subscription // stands for the deliveries of gets among them
	results  []result
	events   []func() // for the reader to run without mu

	wake chan struct{} // holds one token
}

// Dial connects to the broker that a URL names (see ParseURL). ctx limits connecting only.
//
// Errors: *InvalidError for a bad URL, *ServerError when the broker refuses the login (403) or the vhost
// (530), else what went wrong with the network.
func Dial(ctx context.Context, url string) (*Client, error) {
	cfg, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	return cfg.Dial(ctx)
}

// Dial connects as c says. ctx limits connecting only. Errors are those of the function Dial.
func (c Config) Dial(ctx context.Context) (*Client, error) {
	c = c.withDefaults()
	conn, err := c.connect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if e, ok := errors.AsType[*InvalidError](err); ok {
			return nil, e
		}
		return nil, fmt.Errorf("fire: connect to %s: %w", c.Addr, err)
	}
	cl := &Client{
		cfg: c, conn: conn, done: make(chan struct{}), wake: make(chan struct{}, 1), maxFrame: fmq1.MaxBeforeWelcome,
		calls: map[uint64]*call{}, subs: map[uint64]*Subscription{},
	}
	cl.gets = Subscription{c: cl, half: math.MaxInt} // grants no credit
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	in := &input{buf: make([]byte, readBuffer)}
	heartbeat, err := cl.login(in)
	if !stop() && err == nil {
		err = ctx.Err() // the deadline may be set at any moment from now on
	}
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if e, ok := errors.AsType[*ServerError](err); ok {
			return nil, e
		}
		return nil, fmt.Errorf("fire: log in at %s: %w", c.Addr, err)
	}
	cl.loops.Add(2)
	go cl.readLoop(in)
	go cl.writeLoop()
	if heartbeat > 0 {
		cl.loops.Add(1)
		go cl.beat(heartbeat)
	}
	return cl, nil
}

var errNotFire = errors.New("this is a port for AMQP 0-9-1; the FireMQ protocol has its own, 5673 by default")

// login says hello and waits for welcome.
func (c *Client) login(in *input) (heartbeat time.Duration, err error) {
	name := c.cfg.Name
	if name == "" {
		name = "firemq-go"
	}
	info := table.Table{}
	for _, kv := range [][2]string{{"name", name}, {"version", Version}, {"lang", "go"}} {
		info = append(info, table.Field{Name: kv[0], Value: table.Value{Kind: table.String, Str: kv[1]}})
	}
	hello := fmq1.Hello{
		Ver: fmq1.Version, VHost: c.cfg.VHost, Auth: fmq1.Auth{Mech: "plain", User: c.cfg.User, Pass: c.cfg.Password},
		Heartbeat: uint32(c.cfg.Heartbeat / time.Second), Client: fmq1.AppendTable(nil, info),
		Caps: []string{"confirms", "credit", "mandatory"},
	}
	if _, err := c.conn.Write(fmq1.Append(c.cfg.preface(), fmq1.OpHello, &hello)); err != nil {
		return 0, err
	}
	for {
		f, ok, err := in.next(c.maxFrame)
		if err != nil {
			if bytes.HasPrefix(in.buf[in.r:in.w], []byte("AMQP")) { // 0-9-1 4.2.2: the answer to a wrong header
				err = errNotFire
			}
			return 0, err
		}
		if !ok {
			if err := in.fill(c.conn); err != nil {
				return 0, err
			}
			continue
		}
		switch f.Op {
		case fmq1.OpWelcome:
			var w fmq1.Welcome
			if err := fmq1.Decode(f.Header, &w); err != nil {
				return 0, err
			}
			if w.Ver != fmq1.Version {
				return 0, fmt.Errorf("the broker speaks version %d of the protocol, this client %d", w.Ver, fmq1.Version)
			}
			c.id, c.server = w.ConnID, w.Server.Name+" "+w.Server.Version
			c.maxFrame = w.MaxFrame
			return time.Duration(w.Heartbeat) * time.Second, nil
		case fmq1.OpError:
			var e fmq1.ServerError
			if err := fmq1.Decode(f.Header, &e); err != nil {
				return 0, err
			}
			return 0, serverError(&e)
		case fmq1.OpPing, fmq1.OpPong:
		default:
			return 0, fmt.Errorf("the broker sent %s before welcome", f.Op)
		}
	}
}

func serverError(e *fmq1.ServerError) *ServerError {
	return &ServerError{Code: int(e.Code), Msg: e.Msg, Fatal: e.Fatal}
}

// ConnID is the connection's name as the management API shows it.
func (c *Client) ConnID() string { return c.id }

// Server is the broker's name and version.
func (c *Client) Server() string { return c.server }

// Done is closed when the connection is closed or lost.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err is nil while the connection is open, else an ErrClosed that says why it is not.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection in order: what was sent arrives, and everything that still waits fails with
// ErrClosed. Publishes whose confirm has not come are among those: Flush publishers before. It waits
// for the broker's answer for up to 5 s. Calling it again does nothing.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.err == nil && !c.closing {
		c.out = fmq1.Append(c.out, fmq1.OpClose, &fmq1.Close{Code: fmq1.ReplySuccess, Msg: "bye"})
		c.closing = true
		c.wakeWriter()
	}
	c.mu.Unlock()
	select {
	case <-c.done:
	case <-time.After(closeTimeout):
		c.fail(ErrClosed)
	}
	c.loops.Wait()
	return nil
}

// fail closes the connection because of err and tells everybody who waits.
func (c *Client) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	if c.closing {
		err = ErrClosed // what breaks after our close is its end
	}
	c.err = closedBy(err)
	c.conn.Close()
	c.failCalls()
	c.failPublishes()
	for _, s := range c.subs {
		s.end(c.err)
	}
	results := c.results
	c.results = nil
	close(c.done)
	c.wakeWriter()
	c.mu.Unlock()
	for i := range results {
		results[i].tell()
	}
}

// usable is the error for anything new on the connection. mu held.
func (c *Client) usable() error {
	if c.err != nil {
		return c.err
	}
	if c.closing {
		return ErrClosed
	}
	return nil
}

// wakeWriter has staged bytes written. mu held.
func (c *Client) wakeWriter() {
	if c.asleep {
		c.asleep = false
		c.wake <- struct{}{} // asleep was set after the last token was taken: there is room
	}
}

// room waits until one more message may be staged: publishing is not paused, the socket has taken most of
// what is staged, and p, if there is one, has a place in its window. It is called with mu held, gives it
// up while it waits, and holds it again when it returns.
func (c *Client) room(ctx context.Context, p *Publisher) error {
	for {
		if err := c.usable(); err != nil {
			return err
		}
		var wait chan struct{}
		switch {
		case c.paused != nil:
			wait = c.paused
		case len(c.out) >= maxStaged:
			if c.drained == nil {
				c.drained = make(chan struct{})
			}
			wait = c.drained
		case p != nil && p.inflight >= p.window:
			if p.room == nil {
				p.room = make(chan struct{})
			}
			wait = p.room
		default:
			return nil
		}
		c.mu.Unlock()
		select {
		case <-wait:
		case <-c.done:
		case <-ctx.Done():
			c.mu.Lock()
			return ctx.Err()
		}
		c.mu.Lock()
	}
}

// writeLoop writes what is staged, as much as there is at once.
func (c *Client) writeLoop() {
	defer c.loops.Done()
	var spare []byte
	for {
		c.mu.Lock()
		for len(c.out) == 0 && c.err == nil {
			c.asleep = true
			c.mu.Unlock()
			<-c.wake
			c.mu.Lock()
		}
		if c.err != nil {
			c.mu.Unlock()
			return
		}
		if len(c.out) < minWrite {
			// Goroutines that are about to send get to do so: a system call costs more than the turn.
			c.mu.Unlock()
			runtime.Gosched()
			c.mu.Lock()
		}
		b := c.out
		c.out = spare[:0]
		if c.drained != nil {
			close(c.drained)
			c.drained = nil
		}
		c.mu.Unlock()
		if _, err := c.conn.Write(b); err != nil {
			c.fail(err)
			return
		}
		c.writes.Add(1)
		if spare = b; cap(spare) > 2*maxStaged {
			spare = nil
		}
	}
}

// beat sends pings while nothing else is sent, and gives the connection up when nothing is received for
// two intervals.
func (c *Client) beat(interval time.Duration) {
	defer c.loops.Done()
	t := time.NewTicker(interval / 4)
	defer t.Stop()
	var reads, writes uint64
	silent, idle := 0, 0
	for {
		select {
		case <-c.done:
			return
		case <-t.C:
		}
		if n := c.reads.Load(); n != reads {
			reads, silent = n, 0
		} else if silent++; silent > 8 {
			c.fail(errors.New("no heartbeat from the broker"))
			return
		}
		if n := c.writes.Load(); n != writes {
			writes, idle = n, 0
		} else if idle++; idle >= 2 {
			c.mu.Lock()
			if c.usable() == nil && len(c.out) == 0 {
				c.out = fmq1.AppendEmpty(c.out, fmq1.OpPing)
				c.wakeWriter()
			}
			c.mu.Unlock()
		}
	}
}

// input is received bytes: buf[r:w] is not decoded yet.
type input struct {
	buf  []byte
	r, w int
	want int // bytes the first frame needs, when more than there are
}

// next decodes the next frame; ok is false when more bytes are needed. The frame is valid until fill.
func (in *input) next(limit uint32) (f fmq1.Frame, ok bool, err error) {
	f, n, want, err := fmq1.Next(in.buf[in.r:in.w], limit)
	in.r += n
	in.want = want
	return f, n > 0, err
}

// fill reads once. The buffer grows with a frame that comes, not with what its length promises.
func (in *input) fill(conn net.Conn) error {
	if in.r == in.w {
		in.r, in.w = 0, 0
		if len(in.buf) > 16*readBuffer {
			in.buf = make([]byte, readBuffer)
		}
	}
	if in.r > 0 && len(in.buf)-in.w < readBuffer/2 {
		in.w = copy(in.buf, in.buf[in.r:in.w])
		in.r = 0
	}
	if in.w == len(in.buf) {
		grown := make([]byte, min(max(in.want, 2*len(in.buf)), 4*len(in.buf)))
		copy(grown, in.buf[:in.w])
		in.buf = grown
	}
	n, err := conn.Read(in.buf[in.w:])
	in.w += n
	if n > 0 {
		return nil
	}
	return err
}

// readLoop handles what arrives, one lock for all that came with a read.
func (c *Client) readLoop(in *input) {
	defer c.loops.Done()
	for {
		err := c.handle(in)
		if err == nil {
			if err = in.fill(c.conn); err == nil {
				c.reads.Add(1)
				continue
			}
		}
		c.fail(err)
		return
	}
}

// handle handles every whole frame that arrived.
func (c *Client) handle(in *input) error {
	c.mu.Lock()
	var err error
	for err == nil && !c.peerDone {
		var f fmq1.Frame
		var ok bool
		if f, ok, err = in.next(c.maxFrame); err != nil || !ok {
			break
		}
		err = c.frame(f)
	}
	if c.peerDone && err == nil {
		err = ErrClosed
	}
	results, events := c.results, c.events
	c.results, c.events = nil, nil
	c.mu.Unlock()
	for i := range results {
		results[i].tell()
	}
	for _, f := range events {
		f()
	}
	if results != nil {
		clear(results)
		c.mu.Lock()
		if c.results == nil {
			c.results = results[:0]
		}
		c.mu.Unlock()
	}
	return err
}

// frame handles one frame. mu held.
func (c *Client) frame(f fmq1.Frame) error {
	switch f.Op {
	case fmq1.OpDeliver:
		return c.deliver(f)
	case fmq1.OpConfirm:
		return c.confirm(f)
	case fmq1.OpReturn:
		return c.returned(f)
	case fmq1.OpOK, fmq1.OpGetOK:
		return c.answer(f)
	case fmq1.OpError:
		return c.serverError(f)
	case fmq1.OpCancelled:
		return c.cancelled(f)
	case fmq1.OpFlow:
		return c.flow(f)
	case fmq1.OpPing:
		if c.usable() == nil {
			c.out = fmq1.AppendEmpty(c.out, fmq1.OpPong)
			c.wakeWriter()
		}
		return nil
	case fmq1.OpPong:
		return nil
	case fmq1.OpClose:
		return c.closedByServer(f)
	}
	return nil // an op of a later version
}

func (c *Client) serverError(f fmq1.Frame) error {
	var m fmq1.ServerError
	if err := fmq1.Decode(f.Header, &m); err != nil {
		return err
	}
	e := serverError(&m)
	if m.RID != 0 {
		if call := c.calls[m.RID]; call != nil {
			delete(c.calls, m.RID)
			call.finish(reply{err: e})
		}
	}
	if m.Fatal {
		return e
	}
	if m.RID == 0 && c.cfg.OnError != nil {
		c.events = append(c.events, func() { c.cfg.OnError(e) })
	}
	return nil
}

func (c *Client) flow(f fmq1.Frame) error {
	var m fmq1.Flow
	if err := fmq1.Decode(f.Header, &m); err != nil {
		return err
	}
	switch {
	case m.Pause && c.paused == nil:
		c.paused = make(chan struct{})
	case !m.Pause && c.paused != nil:
		close(c.paused)
		c.paused = nil
	default:
		return nil
	}
	if c.cfg.OnFlow != nil {
		c.events = append(c.events, func() { c.cfg.OnFlow(m.Pause) })
	}
	return nil
}

// closedByServer ends the connection: after our own close in order, else with the broker's reason, and
// with the answer that the protocol asks for.
func (c *Client) closedByServer(f fmq1.Frame) error {
	var m fmq1.Close
	if err := fmq1.Decode(f.Header, &m); err != nil {
		return err
	}
	c.peerDone = true
	if c.closing {
		return ErrClosed
	}
	c.closing = true
	b := fmq1.Append(nil, fmq1.OpClose, &fmq1.Close{Code: fmq1.ReplySuccess})
	c.conn.SetWriteDeadline(time.Now().Add(time.Second))
	c.conn.Write(b) // best effort: the broker closes anyway
	c.closing = false
	return &ServerError{Code: int(m.Code), Msg: m.Msg, Fatal: true}
}
