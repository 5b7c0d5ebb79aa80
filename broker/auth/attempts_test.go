package auth

import (
	"fmt"
	"net"
	"testing"
)

func tcp(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 40_000} }

// After a burst of wrong passwords a name may be tried once a second; other names from that address, and that
// name from others, are not kept waiting.
func TestAttemptsOfAName(t *testing.T) {
	var a Attempts
	here, now := tcp("192.0.2.1"), int64(1_000_000)
	tries := func(name string, n int) (seen int) {
		for range n {
			if !a.Blocked(name, here, now) {
				a.Failed(name, here, now)
				seen++
			}
		}
		return seen
	}
	if n := tries("admin", 1000); n != nameBurst {
		t.Errorf("%d wrong passwords at once, want %d", n, nameBurst)
	}
	if !a.Blocked("admin", here, now) || a.Blocked("app", here, now) || a.Blocked("admin", tcp("192.0.2.2"), now) {
		t.Error("not just that name from there is blocked")
	}
	if now += namePause - 1; a.Blocked("admin", here, now) != true {
		t.Error("the pause is too short")
	}
	now++
	if n := tries("admin", 1000); n != 1 {
		t.Errorf("%d wrong passwords after the pause, want 1", n)
	}
	for range 60 { // attempts that are refused unseen are no debt
		now += namePause
		if n := tries("admin", 50); n != 1 {
			t.Fatalf("%d wrong passwords in a second, want 1", n)
		}
		if a.Blocked("app", here, now) {
			t.Fatal("another name is blocked")
		}
	}
	if now += nameBurst * namePause; tries("admin", 100) != nameBurst {
		t.Error("after a while not all is forgotten")
	}
}

// Who tries name after name from an address is slowed down, too, in whatever part of an IPv6 network it is.
func TestAttemptsOfAnAddress(t *testing.T) {
	for _, from := range []func(i int) net.Addr{
		func(int) net.Addr { return tcp("192.0.2.1") },
		func(i int) net.Addr { return tcp(fmt.Sprintf("2001:db8::%x", i+1)) },
	} {
		var a Attempts
		seen := 0
		for i := range 1000 {
			if name := fmt.Sprint("user.", i); !a.Blocked(name, from(i), 1) {
				a.Failed(name, from(i), 1)
				seen++
			}
		}
		if seen != addressBurst {
			t.Errorf("%d wrong passwords, want %d", seen, addressBurst)
		}
		if a.Blocked("user", tcp("2001:db8:1::1"), 1) {
			t.Error("another network is blocked")
		}
	}
}

// What is remembered is bounded, and who came late is counted nevertheless.
func TestAttemptsAreBounded(t *testing.T) {
	var a Attempts
	for i := range 3 * origins {
		a.Failed("admin", tcp(fmt.Sprintf("10.0.%d.%d", i>>8, i&255)), 1)
		if len(a.debt) > origins {
			t.Fatalf("%d are remembered", len(a.debt))
		}
	}
	for range nameBurst {
		a.Failed("admin", tcp("192.0.2.1"), 1)
	}
	if !a.Blocked("admin", tcp("192.0.2.1"), 1) {
		t.Error("a guesser is forgotten among others")
	}
}

func BenchmarkBlocked(b *testing.B) {
	var a Attempts
	from := tcp("192.0.2.1")
	a.Failed("other", from, 1)
	b.ReportAllocs()
	for b.Loop() {
		a.Blocked("guest", from, 1)
	}
}
