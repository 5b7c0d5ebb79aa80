package loop

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childEnv says that the test binary is the server of TestOutOfFiles, and which.
const childEnv = "LOOP_TEST_OUT_OF_FILES"

// TestOutOfFiles lets a server in a process of its own run out of files: its connections go on,
// and it accepts again when there are files. The child prints its address, and limits its files
// when it reads a line.
func TestOutOfFiles(t *testing.T) {
	if kind := os.Getenv(childEnv); kind != "" {
		outOfFiles(kind)
		return
	}
	both(t, func(t *testing.T, opt Options) {
		began := time.Now()
		cmd := exec.Command(os.Args[0], "-test.run=^TestOutOfFiles$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=goroutines:%t", childEnv, opt.Goroutines))
		stdin, _ := cmd.StdinPipe()
		stdout, _ := cmd.StdoutPipe()
		var log bytes.Buffer
		cmd.Stderr = &log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := false
		end := func() {
			if !ended {
				ended = true
				stdin.Close()
				cmd.Wait()
			}
		}
		defer end()
		lines := bufio.NewScanner(stdout)
		line := func() string {
			if !lines.Scan() {
				t.Fatalf("the server ended: %s", log.String())
			}
			return lines.Text()
		}
		addr := line()
		ping := func(nc net.Conn, patience time.Duration) error {
			nc.SetDeadline(time.Now().Add(patience))
			if _, err := nc.Write([]byte("x")); err != nil {
				return err
			}
			_, err := io.ReadFull(nc, make([]byte, 1))
			return err
		}
		old := dial(t, addr)
		if err := ping(old, patience); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(stdin)
		if got := line(); got != "limited" {
			t.Fatalf("the server said %q", got)
		}
		var more []net.Conn
		failed := 0
		for range 8 {
			nc := dial(t, addr)
			more = append(more, nc)
			if ping(nc, 200*time.Millisecond) != nil {
				failed++
			}
		}
		if failed == 0 {
			t.Fatal("the server did not run out of files")
		}
		if err := ping(old, patience); err != nil {
			t.Fatalf("an open connection died: %v", err)
		}
		for _, nc := range more {
			nc.Close()
		}
		eventually(t, "a new connection is served", func() bool { return ping(dial(t, addr), time.Second) == nil })
		if err := ping(old, patience); err != nil {
			t.Fatalf("an open connection died: %v", err)
		}
		end()
		most := 1 + int(time.Since(began)/logPause)
		if got := strings.Count(log.String(), "cannot take a connection"); got < 1 || got > most {
			t.Errorf("%d log lines about it, want 1 to %d:\n%s", got, most, log.String())
		}
	})
}

func outOfFiles(kind string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	s, err := New(Options{
		Goroutines: kind == "goroutines:true",
		Log:        slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	fail(err)
	addr, err := s.Listen("tcp", "127.0.0.1:0", echo)
	fail(err)
	fmt.Println(addr)
	in := bufio.NewScanner(os.Stdin)
	in.Scan()
	next, err := syscall.Dup(0)
	fail(err)
	syscall.Close(next)
	var limit syscall.Rlimit
	fail(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	limit.Cur = uint64(next + 3) // for two or three more
	fail(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	fmt.Println("limited")
	in.Scan() // ends with the parent
	os.Exit(0)
}
