//go:build !poll_opt

package loop

import (
	"errors"
	"net"
	"testing"

	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"
)

// TestUnknownGnetIsFoundOut checks what makes New fall back to goroutines.
func TestUnknownGnetIsFoundOut(t *testing.T) {
	other, err := newPoller(unix.EPOLLIN, (*gnetTCP).readable) // an epoll set of another
	if err != nil {
		t.Fatal(err)
	}
	defer other.stop()
	for name, find := range map[string]func(gnet.EventLoop) (int, error){
		"no field":      func(gnet.EventLoop) (int, error) { return 0, errors.New("renamed") },
		"another epoll": func(gnet.EventLoop) (int, error) { return other.epoll, nil },
	} {
		s := start(t, Options{Log: quiet, Goroutines: true, Loops: 2})
		if e, err := newGnetEngine(s, find); err == nil || e != nil {
			t.Errorf("%s: engine %v, error %v", name, e, err)
		}
		if s.live != 0 || s.Len() != 0 {
			t.Errorf("%s: %d connections are left", name, s.live)
		}
	}
}

type renamed struct {
	gnet.EventLoop
	poll *struct{ fd int } //lint:ignore U1000 the reflection that the test is about looks for it by name
}

func TestEpollOfARenamedFieldIsAnError(t *testing.T) {
	if fd, err := epollOf(&renamed{}); err == nil {
		t.Errorf("found fd %d", fd)
	}
}

func TestSocketOptions(t *testing.T) {
	conns := make(chan *Conn, 1)
	addr := listen(t, start(t, Options{Log: quiet}), func(c *Conn) Session { conns <- c; return &funcs{} })
	dial(t, addr)
	fd := wait(t, conns, "connection").tr.(*gnetTCP).fd
	for name, opt := range map[string][2]int{
		"TCP_NODELAY":  {unix.IPPROTO_TCP, unix.TCP_NODELAY},
		"SO_KEEPALIVE": {unix.SOL_SOCKET, unix.SO_KEEPALIVE},
	} {
		if v, err := unix.GetsockoptInt(fd, opt[0], opt[1]); v != 1 || err != nil {
			t.Errorf("%s is %d, %v", name, v, err)
		}
	}
}

// TestZonedAddressesAreKeptFromGnet: it would write into memory of package net.
func TestZonedAddressesAreKeptFromGnet(t *testing.T) {
	if !zoned(&net.TCPAddr{Zone: "eth0"}) || zoned(&net.TCPAddr{}) || zoned(&net.UnixAddr{}) {
		t.Error("zoned is wrong")
	}
}
