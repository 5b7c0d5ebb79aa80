package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openPTY gives the two ends of a pseudo-terminal.
func openPTY(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("there are no pseudo-terminals: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

// On a terminal a recovery that takes over a second has one line, which is gone when it ends.
func TestProgressOnATerminal(t *testing.T) {
	master, slave := openPTY(t)
	now := time.Unix(1000, 0)
	p := newProgress(slave, isTerminal(slave), slog.New(slog.DiscardHandler))
	p.now = func() time.Time { return now }
	p.start()
	for i := range int64(25) {
		p.replayed(i<<25, 24<<25, i*1000)
		now = now.Add(60 * time.Millisecond)
	}
	p.end()
	if _, err := slave.WriteString("FireMQ is ready"); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for buf := make([]byte, 4096); !strings.HasSuffix(string(got), "ready"); {
		n, err := master.Read(buf)
		if err != nil {
			t.Fatalf("%v after %q", err, got)
		}
		got = append(got, buf[:n]...)
	}
	lines := strings.Split(string(got), "\r\x1b[K")
	if want := "Recovering: 70 %, 544 of 768 MiB of the journal, 17000 records"; len(lines) < 4 || lines[0] != "" || lines[1] != want {
		t.Fatalf("%q, want it to begin with %q", lines, want)
	}
	if lines[len(lines)-1] != "FireMQ is ready" || strings.Contains(string(got), "\n") || len(lines) > 10 {
		t.Errorf("%q", lines)
	}
}

// A recovery that is over at once shows nothing.
func TestShortRecoveryShowsNothing(t *testing.T) {
	_, slave := openPTY(t)
	var out strings.Builder
	p := newProgress(&out, isTerminal(slave), slog.New(slog.DiscardHandler))
	p.replayed(1, 1, 1)
	p.end()
	if out.Len() > 0 {
		t.Errorf("%q", out.String())
	}
}
