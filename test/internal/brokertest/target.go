package brokertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/firemq/firemq/internal/ports"
)

// Target is the broker that a suite of one client library talks to. The suite may restart it and raise its
// alarm: a FireMQ of the suite's own, on disk; or, with AMQP_URL, any broker, through the program that
// AMQP_CONTROL names, which is called with one of the words "restart", "alarm" and "clear".
type Target struct {
	URL string // amqp://guest:guest@host:port, the same after a restart

	program string // AMQP_CONTROL; immutable
	data    string // data directory; immutable
	config  string // settings file, which holds the alarm; immutable
	bin     string // immutable
	addr    string // of the AMQP listener; immutable

	mu     sync.Mutex
	broker *Broker // nil with AMQP_URL; guarded by mu
}

const (
	controlTimeout = time.Minute // one call of the program
	alarmTimeout   = 10 * time.Second
)

// NewTarget gives the broker that AMQP_URL names, or starts one that is stopped when the test ends.
func NewTarget(t testing.TB) *Target {
	t.Helper()
	g := &Target{URL: os.Getenv("AMQP_URL"), program: os.Getenv("AMQP_CONTROL")}
	if g.URL != "" {
		return g
	}
	g.bin, g.data = Binary(t), t.TempDir()
	g.config = filepath.Join(t.TempDir(), "firemq.toml")
	if err := g.limit(false); err != nil {
		t.Fatal(err)
	}
	var err error
	for range 3 { // another process may take the port that was free
		var port []int
		if port, err = ports.Free(1); err != nil {
			t.Fatal(err)
		}
		g.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port[0]))
		if g.broker, err = g.start(); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	g.URL = g.broker.AMQPURL
	t.Cleanup(func() {
		if err := g.broker.stop(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// Controlled reports whether Restart and Alarm can do what they say.
func (g *Target) Controlled() bool { return g.broker != nil || g.program != "" }

// Restart stops the broker as SIGTERM does and starts it again on its address and data.
func (g *Target) Restart() error {
	if g.broker == nil {
		return g.call("restart")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.broker.stop(); err != nil {
		return err
	}
	b, err := g.start()
	if err == nil {
		g.broker = b
	}
	return err
}

// Alarm raises the alarm that pauses publishers, or ends it.
func (g *Target) Alarm(on bool) error {
	if g.broker == nil {
		if on {
			return g.call("alarm")
		}
		return g.call("clear")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.limit(on); err != nil {
		return err
	}
	if err := g.broker.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		return err
	}
	deadline := time.Now().Add(alarmTimeout)
	for g.alarmed() != on {
		if time.Now().After(deadline) {
			return fmt.Errorf("the alarm was not %v after %s\n%s", on, alarmTimeout, g.broker.Output())
		}
		time.Sleep(5 * time.Millisecond) // another process
	}
	return nil
}

// alarmed reads the broker's log.
func (g *Target) alarmed() bool {
	log := g.broker.Output()
	return strings.LastIndex(log, "disk alarm: publishers are paused") > strings.LastIndex(log, "disk alarm is over")
}

// limit writes the settings file: with the alarm no disk has enough free space.
func (g *Target) limit(alarm bool) error {
	free := "0"
	if alarm {
		free = "1000TB"
	}
	return os.WriteFile(g.config, fmt.Appendf(nil, "[limits]\ndisk_free = %q\n", free), 0o600)
}

func (g *Target) start() (*Broker, error) {
	return start(g.bin, Options{Data: g.data, Flags: []string{
		"--amqp", g.addr, "--config", g.config,
		"--shutdown-timeout", "1s", // clients that do one thing at a time say no goodbye while they wait for Restart
	}})
}

func (g *Target) call(word string) error {
	ctx, cancel := context.WithTimeout(context.Background(), controlTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, g.program, word)
	cmd.Dir = Root()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", g.program, word, err, &out)
	}
	return nil
}

// Serve lets programs in other languages control the broker until the test ends: POST to the URL that it
// gives, with the path /restart, /alarm or /clear, is answered with 200 when that is done. The URL is
// empty when nothing controls the broker.
func (g *Target) Serve(t testing.TB) string {
	t.Helper()
	if !g.Controlled() {
		return ""
	}
	answer := func(f func() error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if err := f(); err != nil {
				w.WriteHeader(http.StatusInternalServerError)
				io.WriteString(w, err.Error())
			}
		}
	}
	mux := http.NewServeMux()
	mux.Handle("POST /restart", answer(g.Restart))
	mux.Handle("POST /alarm", answer(func() error { return g.Alarm(true) }))
	mux.Handle("POST /clear", answer(func() error { return g.Alarm(false) }))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	done := make(chan struct{})
	go func() {
		server.Serve(l)
		close(done)
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	return "http://" + l.Addr().String()
}
