package main

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// A real run on a real terminal of 80 columns: the chart is drawn, and drawn again, within them.
func TestBenchOnATerminal(t *testing.T) {
	master, slave := openPTY(t)
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	status := make(chan int, 1)
	go func() {
		status <- run(t.Context(), terminal{in: slave, out: slave, err: slave, env: func(string) (string, bool) { return "", false }},
			strings.Fields("bench --embedded --duration 2.2 --warmup 0 --rate 100"))
		slave.WriteString("the end")
	}()
	var got []byte
	for buf := make([]byte, 4096); !strings.HasSuffix(string(got), "the end"); {
		n, err := master.Read(buf)
		if err != nil {
			t.Fatalf("%v after %q", err, got)
		}
		got = append(got, buf[:n]...)
	}
	if s := <-status; s != 0 {
		t.Fatalf("status %d: %s", s, got)
	}
	chart, report, ok := strings.Cut(string(got), "firemq 0")
	if n := strings.Count(chart, "\x1b[10F\x1b[J"); !ok || n < 2 || !strings.Contains(report, " 0 lost") {
		t.Errorf("taken away %d times in %q", n, got)
	}
	escapes := regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")
	for line := range strings.Lines(chart) {
		if n := utf8.RuneCountInString(strings.TrimRight(escapes.ReplaceAllString(line, ""), "\r\n")); n >= 80 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
}
