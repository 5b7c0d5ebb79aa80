//go:build linux && !poll_opt

package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"reflect"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/panjf2000/gnet/v2"
	"github.com/panjf2000/gnet/v2/pkg/netpoll"
	"golang.org/x/sys/unix"

	"github.com/firemq/firemq/pool"
)

// gnetEngine reads connections with gnet's event loops. Of gnet.Conn only Next(-1), Fd, Context,
// EventLoop and Close are used: its writing would undo Pause, and buffers without a bound.
type gnetEngine struct {
	gnet.BuiltinEventEngine
	srv     *Server                           // immutable
	client  *gnet.Client                      // immutable
	writes  *poller                           // immutable
	reads   *poller                           // of who is read with care; immutable
	epollOf func(gnet.EventLoop) (int, error) // immutable; epollOf but in tests
}

func newEngine(s *Server) (engine, error) { return newGnetEngine(s, epollOf) }

func newGnetEngine(s *Server, epollOf func(gnet.EventLoop) (int, error)) (engine, error) {
	e := &gnetEngine{srv: s, epollOf: epollOf}
	var err error
	if e.writes, err = newPoller(unix.EPOLLOUT, (*gnetTCP).writable); err != nil {
		return nil, err
	}
	if e.reads, err = newPoller(unix.EPOLLIN, (*gnetTCP).readable); err != nil {
		e.writes.stop()
		return nil, err
	}
	e.client, err = gnet.NewClient(e,
		gnet.WithNumEventLoop(s.opt.Loops),
		gnet.WithReadBufferCap(mostRead),
		gnet.WithLogger(gnetLog{s.opt.Log}))
	if err == nil {
		err = e.client.Start()
	}
	if err != nil {
		e.writes.stop()
		e.reads.stop()
		return nil, fmt.Errorf("start event loops: %w", err)
	}
	if err := e.check(); err != nil {
		e.stop()
		return nil, fmt.Errorf("check event loops: %w", err)
	}
	s.forget() // the check's connection
	return e, nil
}

func (e *gnetEngine) stop() {
	if err := e.client.Stop(); err != nil {
		e.srv.opt.Log.Error("event loops ended with an error", "err", err)
	}
	e.writes.stop()
	e.reads.stop()
}

func (e *gnetEngine) enroll(nc net.Conn, h Handler) error {
	t := &gnetTCP{engine: e, handler: h}
	t.init(e.srv, t, nc)
	if _, err := e.client.EnrollContext(nc, t); err != nil {
		e.srv.release(nil)
		return fmt.Errorf("register connection: %w", err)
	}
	if t.gc == nil { // the loop could not add it to its epoll set, and has closed it
		e.srv.release(nil)
		return errors.New("register connection: the event loop refused it")
	}
	return nil
}

func (e *gnetEngine) OnOpen(gc gnet.Conn) ([]byte, gnet.Action) {
	t := gc.Context().(*gnetTCP)
	h := t.handler
	t.gc, t.fd, t.handler = gc, gc.Fd(), nil
	var err error
	if t.epoll, err = e.epollOf(gc.EventLoop()); err != nil {
		t.Abort(err)
		return nil, gnet.Close
	}
	t.meter = e.srv.meterOf(t.epoll)
	if !t.open(h) {
		return nil, gnet.Close
	}
	return nil, gnet.None
}

func (e *gnetEngine) OnTraffic(gc gnet.Conn) gnet.Action {
	b, _ := gc.Next(-1) // all of it, so that nothing gets into gnet's own buffers
	gc.Context().(*gnetTCP).feed(b)
	return gnet.None
}

func (e *gnetEngine) OnClose(gc gnet.Conn, err error) gnet.Action {
	t := gc.Context().(*gnetTCP)
	switch {
	case errors.Is(err, io.EOF):
		// gnet says so of a reset as well when it did not read.
		err = io.EOF
		if code, e := unix.GetsockoptInt(t.fd, unix.SOL_SOCKET, unix.SO_ERROR); e == nil && code != 0 {
			err = os.NewSyscallError("read", syscall.Errno(code))
		}
	case err == nil:
		err = net.ErrClosed
	}
	t.end(err)
	return gnet.None
}

// epollOf finds the epoll set of an event loop in two unexported fields of gnet, by their names.
func epollOf(el gnet.EventLoop) (fd int, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("this gnet is not the known one: %v", v)
		}
	}()
	return int(reflect.ValueOf(el).Elem().FieldByName("poller").Elem().FieldByName("fd").Int()), nil
}

// gnetTCP is a connection that an event loop reads.
type gnetTCP struct {
	Conn
	engine  *gnetEngine // immutable
	handler Handler     // until open

	// Written by OnOpen, then immutable.
	gc    gnet.Conn
	fd    int
	epoll int // of its event loop

	wmu sync.Mutex // over each system call of the sending side
	// Guarded by wmu.
	severed bool
	waiting bool // the write poller has busy
	polled  bool // fd is in the write poller's set

	polledIn bool // fd is in the read poller's set; guarded by ctl, and the reader's once the connection is gone
}

func (t *gnetTCP) begin(step) bool { return true }

var iovecPool = sync.Pool{New: func() any { return new([maxIov]unix.Iovec) }}

func (t *gnetTCP) writev(s []seg) (n int, full bool, err error) {
	t.wmu.Lock()
	defer t.wmu.Unlock()
	if t.severed {
		return 0, false, net.ErrClosed
	}
	total := 0
	for {
		if len(s) == 1 {
			total = len(s[0].p)
			n, err = unix.Write(t.fd, s[0].p)
		} else {
			n, total, err = rawWritev(t.fd, s)
		}
		if err != unix.EINTR {
			break
		}
	}
	switch err {
	case nil:
		return n, n < total, nil
	case unix.EAGAIN:
		return 0, true, nil
	}
	return 0, false, os.NewSyscallError("write", err)
}

// rawWritev is writev without the allocations of unix.Writev. Of s it takes no more segments than
// one turn may write; total is their size.
func rawWritev(fd int, s []seg) (n, total int, err error) {
	iov := iovecPool.Get().(*[maxIov]unix.Iovec)
	k := 0
	for ; k < min(len(s), maxIov) && total < turnBytes; k++ {
		iov[k].Base = unsafe.SliceData(s[k].p)
		iov[k].SetLen(len(s[k].p))
		total += len(s[k].p)
	}
	r, _, errno := syscall.Syscall(syscall.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(iov)), uintptr(k))
	clear(iov[:k])
	iovecPool.Put(iov)
	if errno != 0 {
		return 0, total, errno
	}
	return int(r), total, nil
}

func (t *gnetTCP) arm() bool {
	t.wmu.Lock()
	defer t.wmu.Unlock()
	if t.severed || t.engine.writes.arm(t, &t.polled) != nil {
		return false
	}
	t.waiting = true
	return true
}

// writable takes busy over from the write poller's set, and goes on writing. By the write poller.
func (t *gnetTCP) writable() {
	t.wmu.Lock()
	waiting := t.waiting
	t.waiting = false
	t.wmu.Unlock()
	if waiting {
		t.pump(stepWrite, turnBytes)
	}
}

func (t *gnetTCP) closeWrite() {
	t.wmu.Lock()
	defer t.wmu.Unlock()
	if !t.severed {
		unix.Shutdown(t.fd, unix.SHUT_WR) // fails only if the connection is broken, which the reader sees
	}
}

// limit takes reading out of the event loop's epoll set, or puts it back. With mask 0 a reset is
// still reported, an end of stream is not, and gnet would drop what it has not read if it were. An event loop
// reads as much as its buffer takes: little is read by ourselves.
func (t *gnetTCP) limit(r rate) {
	ev := unix.EpollEvent{Fd: int32(t.fd)}
	if r == readMost {
		ev.Events = netpoll.ReadEvents
	}
	err := unix.EpollCtl(t.epoll, unix.EPOLL_CTL_MOD, t.fd, &ev)
	if err == nil && r == readLittle {
		err = t.engine.reads.arm(t, &t.polledIn)
	}
	if err != nil {
		t.abort(fmt.Errorf("pause or resume reading: %w", os.NewSyscallError("epoll_ctl", err)))
	}
}

// readable has the reader look at what came. By the read poller.
func (t *gnetTCP) readable() { t.Do(t.readLittle) }

// readLittle reads once of a connection that is read with care. By the reader.
func (t *gnetTCP) readLittle() {
	if !t.careful(false) {
		return
	}
	b := pool.Get(littleRead, pool.Receiving)
	defer b.Release()
	switch n, err := unix.Read(t.fd, b.B[:littleRead]); {
	case n > 0:
		t.feed(b.B[:n])
	case err == nil:
		t.Abort(io.EOF)
	case err != unix.EAGAIN && err != unix.EINTR:
		t.Abort(os.NewSyscallError("read", err))
	}
	t.careful(true)
}

// careful reports whether little is to be read at once, and has the poller wait for more of it.
func (t *gnetTCP) careful(again bool) bool {
	t.ctl.Lock()
	defer t.ctl.Unlock()
	if t.rate != readLittle || t.gone || t.aborted {
		return false
	}
	if again {
		t.limit(readLittle)
	}
	return true
}

func (t *gnetTCP) wake() {
	// It fails only if the loops are stopped, and then no connection is left.
	_ = t.gc.EventLoop().Execute(context.Background(), gnet.RunnableFunc(func(context.Context) error {
		t.runTasks()
		return nil
	}))
}

func (t *gnetTCP) close() { _ = t.gc.Close() } // queued for the loop, from where OnClose is called

func (t *gnetTCP) sever() (holder bool) {
	t.wmu.Lock()
	defer t.wmu.Unlock()
	t.severed = true
	holder = t.waiting
	t.waiting = false
	if t.polled {
		t.engine.writes.remove(t)
	}
	if t.polledIn {
		t.engine.reads.remove(t)
	}
	return holder
}

// poller waits for sockets: for full ones to become writable, and for those that are read with care to have
// something to read.
type poller struct {
	epoll  int            // immutable, like all up to the next group
	wake   int            // an eventfd
	events uint32         // that are waited for
	ready  func(*gnetTCP) // called when one has come
	done   chan struct{}  // closed when run has ended

	mu      sync.Mutex
	waiting map[int32]*gnetTCP // by fd; guarded by mu
}

func newPoller(events uint32, ready func(*gnetTCP)) (*poller, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Fd: int32(wake), Events: unix.EPOLLIN})
		if err != nil {
			unix.Close(wake)
		}
	}
	if err != nil {
		unix.Close(ep)
		return nil, os.NewSyscallError("eventfd", err)
	}
	p := &poller{epoll: ep, wake: wake, events: events, ready: ready, done: make(chan struct{}), waiting: map[int32]*gnetTCP{}}
	go p.run()
	return p, nil
}

func (p *poller) run() {
	defer close(p.done)
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(p.epoll, events, -1)
		if err != nil && err != unix.EINTR {
			panic(fmt.Sprintf("BUG: loop: epoll_wait: %v", err))
		}
		for _, ev := range events[:max(n, 0)] {
			if ev.Fd == int32(p.wake) {
				return
			}
			p.mu.Lock()
			t := p.waiting[ev.Fd]
			delete(p.waiting, ev.Fd)
			p.mu.Unlock()
			// The fd may be another connection's by now: then it is told too early, which is harmless.
			if t != nil {
				p.ready(t)
			}
		}
	}
}

// arm has ready called once when t's socket is, or is broken. polled says whether the socket is in the set,
// and its lock is held.
func (p *poller) arm(t *gnetTCP, polled *bool) error {
	p.mu.Lock()
	p.waiting[int32(t.fd)] = t
	p.mu.Unlock()
	op := unix.EPOLL_CTL_MOD
	if !*polled {
		op = unix.EPOLL_CTL_ADD
	}
	err := unix.EpollCtl(p.epoll, op, t.fd, &unix.EpollEvent{Fd: int32(t.fd), Events: p.events | unix.EPOLLONESHOT})
	if err == nil {
		*polled = true
	}
	return err
}

// remove forgets t, whose fd is still open; it is not armed again.
func (p *poller) remove(t *gnetTCP) {
	p.mu.Lock()
	if p.waiting[int32(t.fd)] == t {
		delete(p.waiting, int32(t.fd))
	}
	p.mu.Unlock()
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, t.fd, nil) // closing the fd does it as well
}

// stop ends run. No connection may be left.
func (p *poller) stop() {
	one := [8]byte{1}
	if _, err := unix.Write(p.wake, one[:]); err != nil {
		panic(fmt.Sprintf("BUG: loop: eventfd: %v", err))
	}
	<-p.done
	unix.Close(p.wake)
	unix.Close(p.epoll)
}

// check proves with one connection that this gnet can be paused and resumed.
func (e *gnetEngine) check() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	defer unix.Close(fds[1])
	f := os.NewFile(uintptr(fds[0]), "check")
	nc, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return err
	}
	p := &probe{closed: make(chan struct{})}
	var conn *Conn
	e.srv.mu.Lock()
	e.srv.live++
	e.srv.mu.Unlock()
	if err := e.enroll(nc, func(c *Conn) Session { conn = c; return p }); err != nil {
		return err
	}
	if conn == nil {
		return errors.New("the connection was not opened")
	}
	defer func() {
		conn.Abort(nil)
		<-e.srv.emptied()
	}()
	for i, want := range []int{1, 1, 3} {
		switch i {
		case 1:
			conn.Pause(1)
		case 2:
			conn.Resume(1)
		}
		if _, err := unix.Write(fds[1], []byte{0}); err != nil {
			return os.NewSyscallError("write", err)
		}
		n, err := p.received(conn)
		if err != nil {
			return err
		}
		if n != want {
			return fmt.Errorf("%d bytes received instead of %d in step %d", n, want, i)
		}
	}
	return nil
}

// checkTimeout bounds each step of the check, if gnet does not go on.
const checkTimeout = 5 * time.Second

// probe is the session of the check: it counts. Owned by the reader.
type probe struct {
	n      int
	closed chan struct{}
}

// received says how many bytes have come when the event loop has nothing left to do for c. When its
// epoll set reports nothing ready, what was ready is harvested, and gnet reads it before it runs a task.
func (p *probe) received(c *Conn) (int, error) {
	set := []unix.PollFd{{Fd: int32(c.tr.(*gnetTCP).epoll), Events: unix.POLLIN}}
	for until := time.Now().Add(checkTimeout); ; runtime.Gosched() {
		n, err := unix.Poll(set, 0)
		if err != nil && err != unix.EINTR {
			return 0, os.NewSyscallError("poll", err)
		}
		if err == nil && n == 0 {
			break
		}
		if time.Now().After(until) {
			return 0, errors.New("the event loop does not read")
		}
	}
	got := make(chan int, 1)
	c.Do(func() { got <- p.n })
	select {
	case n := <-got:
		return n, nil
	case <-p.closed:
		return 0, errors.New("the connection was closed")
	case <-time.After(checkTimeout):
		return 0, errors.New("the event loop does not run tasks")
	}
}

func (p *probe) OnData(b []byte) (n, want int) { p.n += len(b); return len(b), 0 }
func (p *probe) OnTick(int64)                  {}
func (p *probe) OnDrained()                    {}
func (p *probe) OnClose(error)                 { close(p.closed) }

// gnetLog passes on what gnet logs, but not what it says when it starts and stops.
type gnetLog struct{ log *slog.Logger }

func (l gnetLog) Debugf(string, ...any) {}
func (l gnetLog) Infof(string, ...any)  {}
func (l gnetLog) Warnf(format string, args ...any) {
	l.log.Warn("gnet", "msg", fmt.Sprintf(format, args...))
}
func (l gnetLog) Errorf(format string, args ...any) {
	l.log.Error("gnet", "msg", fmt.Sprintf(format, args...))
}
func (l gnetLog) Fatalf(format string, args ...any) { l.Errorf(format, args...) }
