//go:build !race

package loop

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"runtime/debug"
	"syscall"
	"testing"
)

// rss is the resident memory of this process in bytes.
func rss(t *testing.T) int {
	t.Helper()
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int
	if _, err := fmt.Fscan(bytes.NewReader(b), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * os.Getpagesize()
}

// TestIdleConnectionsAreSmall measures 5,000 connections that have each echoed three messages.
func TestIdleConnectionsAreSmall(t *testing.T) {
	const n, limit = 5000, 2560
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Cur < 2*n+200 {
		t.Skipf("only %d files", files.Cur)
	}
	s := start(t, Options{Log: quiet})
	addr := netip.MustParseAddrPort(listen(t, s, echo))
	alone := rss(t)
	to := &syscall.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	msg := make([]byte, 256)
	for range n {
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(fd)
		if err := syscall.Connect(fd, to); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := syscall.Write(fd, msg); err != nil {
				t.Fatal(err)
			}
			for got := 0; got < len(msg); {
				k, err := syscall.Read(fd, msg)
				if k <= 0 || err != nil {
					t.Fatalf("echo of %d bytes: %v", k, err)
				}
				got += k
			}
		}
	}
	per := (rss(t) - alone) / n
	t.Logf("%d bytes of resident memory for each idle connection", per)
	if per > limit {
		t.Errorf("more than %d", limit)
	}
}
