package fire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/frames/table"
)

// link is one connection to the broker. A Client has one at a time, and another when it reconnects.
type link struct {
	conn      net.Conn      // immutable
	id        string        // immutable
	server    string        // immutable
	maxFrame  uint32        // immutable
	heartbeat time.Duration // immutable; 0: none
	since     time.Time     // immutable
	in        *input        // owned by who reads

	reads, writes atomic.Uint64 // system calls that moved bytes; for heartbeats
	done          chan struct{} // closed when the Client has given it up
	loops         sync.WaitGroup

	cause atomic.Pointer[error] // why writer or heartbeats broke it

	useful bool // guarded by Client.mu: a message was confirmed or a call answered
}

// open connects and logs in. Errors are those of Dial.
func (c Config) open(ctx context.Context) (*link, error) {
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
	l := &link{conn: conn, maxFrame: fmq1.MaxBeforeWelcome, in: &input{buf: make([]byte, readBuffer)}, done: make(chan struct{})}
	err = l.within(ctx, func() error { return l.login(&c) })
	if err == nil {
		l.since = time.Now()
		return l, nil
	}
	conn.Close()
	if e, ok := errors.AsType[*ServerError](err); ok {
		return nil, e
	}
	return nil, fmt.Errorf("fire: log in at %s: %w", c.Addr, err)
}

// within does what talks on the connection before the loops do, until ctx ends.
func (l *link) within(ctx context.Context, talk func() error) error {
	stop := context.AfterFunc(ctx, func() { l.conn.SetDeadline(time.Unix(1, 0)) })
	err := talk()
	if !stop() { // the deadline may be set at any moment from now on
		return ctx.Err()
	}
	return err
}

var errNotFire = errors.New("this is a port for AMQP 0-9-1; the FireMQ protocol has its own, 5673 by default")

// login says hello and waits for welcome.
func (l *link) login(c *Config) error {
	name := c.Name
	if name == "" {
		name = "firemq-go"
	}
	info := table.Table{}
	for _, kv := range [][2]string{{"name", name}, {"version", Version}, {"lang", "go"}} {
		info = append(info, table.Field{Name: kv[0], Value: table.Value{Kind: table.String, Str: kv[1]}})
	}
	hello := fmq1.Hello{
		Ver: fmq1.Version, VHost: c.VHost, Auth: fmq1.Auth{Mech: "plain", User: c.User, Pass: c.Password},
		Heartbeat: uint32(c.Heartbeat / time.Second), Client: fmq1.AppendTable(nil, info),
		Caps: []string{"confirms", "credit", "mandatory"},
	}
	if _, err := l.conn.Write(fmq1.Append(c.preface(), fmq1.OpHello, &hello)); err != nil {
		return err
	}
	for {
		f, err := l.await()
		if err != nil {
			if bytes.HasPrefix(l.in.buf[l.in.r:l.in.w], []byte("AMQP")) { // 0-9-1 4.2.2: the answer to a wrong header
				err = errNotFire
			}
			return err
		}
		switch f.Op {
		case fmq1.OpWelcome:
			var w fmq1.Welcome
			if err := fmq1.Decode(f.Header, &w); err != nil {
				return err
			}
			if w.Ver != fmq1.Version {
				return fmt.Errorf("the broker speaks version %d of the protocol, this client %d", w.Ver, fmq1.Version)
			}
			l.id, l.server = w.ConnID, w.Server.Name+" "+w.Server.Version
			l.maxFrame, l.heartbeat = w.MaxFrame, time.Duration(w.Heartbeat)*time.Second
			return nil
		case fmq1.OpError:
			var e fmq1.ServerError
			if err := fmq1.Decode(f.Header, &e); err != nil {
				return err
			}
			return serverError(&e)
		case fmq1.OpPing, fmq1.OpPong:
		default:
			return fmt.Errorf("the broker sent %s before welcome", f.Op)
		}
	}
}

// await waits for the next frame, before the loops do.
func (l *link) await() (fmq1.Frame, error) {
	for {
		f, ok, err := l.in.next(l.maxFrame)
		if ok || err != nil {
			return f, err
		}
		if err := l.in.fill(l.conn); err != nil {
			return f, err
		}
	}
}

// start starts writer and heartbeats. c.mu held.
func (c *Client) start(l *link) {
	c.link = l
	l.loops.Add(1)
	go c.writeLoop(l)
	if l.heartbeat > 0 {
		l.loops.Add(1)
		go c.beat(l)
	}
}

// breakOff ends the link because of err: its reader tells the Client.
func (l *link) breakOff(err error) {
	l.cause.CompareAndSwap(nil, &err)
	l.conn.Close()
}

// wakeWriter has staged bytes written. mu held.
func (c *Client) wakeWriter() {
	if c.asleep {
		c.asleep = false
		c.wake <- struct{}{} // asleep was set after the last token was taken: there is room
	}
}

// writeLoop writes what is staged, as much as there is at once.
func (c *Client) writeLoop(l *link) {
	defer l.loops.Done()
	var spare []byte
	for {
		c.mu.Lock()
		for len(c.out) == 0 && c.link == l {
			c.asleep = true
			c.mu.Unlock()
			<-c.wake
			c.mu.Lock()
		}
		if c.link != l {
			c.mu.Unlock()
			return
		}
		if len(c.out) < minWrite {
			// Goroutines that are about to send get to do so: a system call costs more than the turn.
			c.mu.Unlock()
			runtime.Gosched()
			c.mu.Lock()
			if c.link != l {
				c.mu.Unlock()
				return
			}
		}
		b := c.out
		c.out = spare[:0]
		if c.drained != nil {
			close(c.drained)
			c.drained = nil
		}
		c.mu.Unlock()
		if _, err := l.conn.Write(b); err != nil {
			l.breakOff(err)
			return
		}
		l.writes.Add(1)
		if spare = b; cap(spare) > 2*maxStaged {
			spare = nil
		}
	}
}

// beat sends pings while nothing else is sent, and gives the connection up when nothing is received for
// two intervals.
func (c *Client) beat(l *link) {
	defer l.loops.Done()
	t := time.NewTicker(l.heartbeat / 4)
	defer t.Stop()
	var reads, writes uint64
	silent, idle := 0, 0
	for {
		select {
		case <-l.done:
			return
		case <-t.C:
		}
		if n := l.reads.Load(); n != reads {
			reads, silent = n, 0
		} else if silent++; silent > 8 {
			l.breakOff(errors.New("no heartbeat from the broker"))
			return
		}
		if n := l.writes.Load(); n != writes {
			writes, idle = n, 0
		} else if idle++; idle >= 2 {
			c.mu.Lock()
			if c.link == l && !c.closing && len(c.out) == 0 {
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

// read handles what arrives, one lock for all that came with a read, until the link breaks.
func (c *Client) read(l *link) error {
	for {
		err := c.handle(l.in, l.maxFrame)
		if err == nil {
			if err = l.in.fill(l.conn); err == nil {
				l.reads.Add(1)
				continue
			}
		}
		if cause := l.cause.Load(); cause != nil {
			return *cause
		}
		return err
	}
}

// handle handles every whole frame that arrived.
func (c *Client) handle(in *input, limit uint32) error {
	c.mu.Lock()
	var err error
	for err == nil && !c.peerDone {
		var f fmq1.Frame
		var ok bool
		if f, ok, err = in.next(limit); err != nil || !ok {
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
		if c.live() {
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
	if m.RID == 0 {
		c.report(e)
	}
	return nil
}

// report has OnError told of what belongs to no call. mu held.
func (c *Client) report(e *ServerError) {
	if c.cfg.OnError != nil {
		c.events = append(c.events, func() { c.cfg.OnError(e) })
	}
}

func serverError(e *fmq1.ServerError) *ServerError {
	return &ServerError{Code: int(e.Code), Msg: e.Msg, Fatal: e.Fatal}
}

func (c *Client) flow(f fmq1.Frame) error {
	var m fmq1.Flow
	if err := fmq1.Decode(f.Header, &m); err != nil {
		return err
	}
	c.pause(m.Pause)
	return nil
}

// pause has publishers wait, or go on. mu held.
func (c *Client) pause(on bool) {
	switch {
	case on && c.paused == nil:
		c.paused = make(chan struct{})
	case !on && c.paused != nil:
		close(c.paused)
		c.paused = nil
	default:
		return
	}
	if c.cfg.OnFlow != nil {
		c.events = append(c.events, func() { c.cfg.OnFlow(on) })
	}
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
	c.closing = true // for the writer: nothing follows the answer
	b := fmq1.Append(nil, fmq1.OpClose, &fmq1.Close{Code: fmq1.ReplySuccess})
	c.link.conn.SetWriteDeadline(time.Now().Add(time.Second))
	c.link.conn.Write(b) // best effort: the broker closes anyway
	c.closing = false
	return &ServerError{Code: int(m.Code), Msg: m.Msg, Fatal: true}
}
