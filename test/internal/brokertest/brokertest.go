// Package brokertest runs the firemq binary the way a user does: as a process of its own with
// ports, a data directory and a banner. Tests that need a real broker start it here and get its
// URLs from the banner.
//
// Every broker is stopped when its test ends, and the kernel kills it when the test process dies.
package brokertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/firemq/firemq/internal/leak"
	fire "github.com/firemq/firemq/sdk/go"
)

const (
	readyTimeout = 30 * time.Second // start to banner, recovery included
	stopTimeout  = 20 * time.Second // SIGTERM to exit
)

// Root is the top folder of the repository.
func Root() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		panic("BUG: the source position of brokertest is unknown")
	}
	return filepath.Join(filepath.Dir(file), "..", "..", "..")
}

// Need skips the test unless a file that "make deps" installs is there, or fails it when
// FIREMQ_REQUIRE_CLIENTS is set, as "make test" does. The path is from the top folder, or absolute.
func Need(t testing.TB, path ...string) string {
	t.Helper()
	file := filepath.Join(path...)
	if !filepath.IsAbs(file) {
		file = filepath.Join(Root(), file)
	}
	if _, err := os.Stat(file); err != nil {
		if os.Getenv("FIREMQ_REQUIRE_CLIENTS") != "" {
			t.Fatalf("not installed, run make deps: %v", err)
		}
		t.Skipf("not installed, run make deps: %v", err)
	}
	return file
}

var build = sync.OnceValues(func() (string, error) {
	if bin := os.Getenv("FIREMQ_BIN"); bin != "" {
		return filepath.Abs(bin)
	}
	bin := filepath.Join(Root(), ".cache", "test", "firemq-"+strconv.Itoa(os.Getpid()))
	cmd := exec.Command("go", "build", "-o", bin, "./cmd/firemq")
	cmd.Dir = Root()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build firemq: %w\n%s", err, out)
	}
	return bin, nil
})

// Binary is the path of the firemq binary: FIREMQ_BIN, or else one built once for the test process.
// Main removes the built one.
func Binary(t testing.TB) string {
	t.Helper()
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// Main is what a package's TestMain calls with m.Run: it runs the tests, stops the shared broker, removes the binary
// that Binary built and, as leak.Main, fails what leaves something behind.
func Main(run func() int) int {
	return leak.Main(func() int {
		code := run()
		if shared != nil {
			if err := shared.stop(); err != nil {
				fmt.Fprintln(os.Stderr, "stop the shared broker:", err)
				code = max(code, 1)
			}
		}
		if os.Getenv("FIREMQ_BIN") == "" {
			os.Remove(filepath.Join(Root(), ".cache", "test", "firemq-"+strconv.Itoa(os.Getpid())))
		}
		return code
	})
}

// Options says how a broker is started.
type Options struct {
	Data  string   // data directory; "" keeps everything in memory
	Flags []string // further flags, behind those of this package
}

// Broker is one running firemq process. Its methods are for the test's goroutine.
type Broker struct {
	AMQPURL string // amqp://guest:guest@host:port
	FireURL string // fire://guest:guest@host:port
	HTTPURL string // http://host:port
	Banner  string // all lines of the banner

	cmd    *exec.Cmd
	out    *output
	exited chan struct{} // closed when the process has ended and its output is complete
	err    error         // of Wait, once exited is closed
	fails  bool          // that it ends by itself is what the test wants
}

// Start runs a broker on free ports of the loopback address and waits until it is ready. It is
// stopped, and must stop cleanly, when the test ends, unless it was killed before.
func Start(t testing.TB, o Options) *Broker {
	t.Helper()
	b, err := start(Binary(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
	return b
}

var (
	sharedOnce sync.Once
	shared     *Broker // written once under sharedOnce
	sharedErr  error
)

// AMQPURL is the broker that a client suite talks to: AMQP_URL, or else one broker in memory for
// all tests of the process, which Main stops.
func AMQPURL(t testing.TB) string {
	t.Helper()
	if u := os.Getenv("AMQP_URL"); u != "" {
		return u
	}
	return Shared(t).AMQPURL
}

// Shared is one broker in memory for all tests of the process, which Main stops.
func Shared(t testing.TB) *Broker {
	t.Helper()
	bin := Binary(t)
	sharedOnce.Do(func() { shared, sharedErr = start(bin, Options{}) })
	if sharedErr != nil {
		t.Fatal(sharedErr)
	}
	return shared
}

func start(bin string, o Options) (*Broker, error) {
	args := []string{"--amqp", "127.0.0.1:0", "--fire", "127.0.0.1:0", "--http", "127.0.0.1:0"}
	if o.Data == "" {
		args = append(args, "--ephemeral")
	} else {
		args = append(args, "--data", o.Data)
	}
	b := &Broker{out: newOutput(), exited: make(chan struct{})}
	b.cmd = exec.Command(bin, append(args, o.Flags...)...)
	b.cmd.Dir, b.cmd.Env = os.TempDir(), environ()
	b.cmd.Stdout, b.cmd.Stderr = b.out, b.out
	b.cmd.SysProcAttr = dieWithParent()
	if err := b.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start firemq: %w", err)
	}
	go func() {
		b.err = b.cmd.Wait()
		close(b.exited)
	}()

	timer := time.NewTimer(readyTimeout)
	defer timer.Stop()
	select {
	case <-b.out.ready:
	case <-b.exited:
		return nil, fmt.Errorf("firemq %s ended before it was ready: %v\n%s", strings.Join(args, " "), b.err, b.out)
	case <-timer.C:
		b.Kill()
		return nil, fmt.Errorf("firemq %s was not ready after %s\n%s", strings.Join(args, " "), readyTimeout, b.out)
	}
	b.Banner = b.out.String()
	for line, dst := range map[string]*string{"AMQP 0-9-1": &b.AMQPURL, "FireMQ": &b.FireURL, "Management": &b.HTTPURL} {
		m := regexp.MustCompile(`(?m)^ +` + line + ` +(\S+://\S+)`).FindStringSubmatch(b.Banner)
		if m == nil {
			b.Kill()
			return nil, fmt.Errorf("the banner has no URL for %q:\n%s", line, b.Banner)
		}
		*dst = m[1]
	}
	return b, nil
}

// Pid is the broker's process id.
func (b *Broker) Pid() int { return b.cmd.Process.Pid }

// Output is all that the broker has printed until now, banner and log.
func (b *Broker) Output() string { return b.out.String() }

// Exited is closed when the process has ended.
func (b *Broker) Exited() <-chan struct{} { return b.exited }

// Fails waits until the broker ends by itself with an error, and fails the test when it does not.
func (b *Broker) Fails(t testing.TB, limit time.Duration) {
	t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-b.exited:
		if b.fails = true; b.cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("firemq ended with %v\n%s", b.err, b.out)
		}
	case <-timer.C:
		b.Kill()
		t.Errorf("firemq goes on\n%s", b.out)
	}
}

// Kill ends the broker as kill -9 does and waits until the process is gone.
func (b *Broker) Kill() {
	b.cmd.Process.Kill()
	<-b.exited
}

// Stop asks the broker to end by SIGTERM and fails the test unless it ends with status 0.
func (b *Broker) Stop(t testing.TB) {
	t.Helper()
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
}

func (b *Broker) stop() error {
	select {
	case <-b.exited:
		if signalled(b.err, syscall.SIGKILL) || b.err == nil || b.fails {
			return nil // killed or stopped by the test itself
		}
		return fmt.Errorf("firemq had ended by itself: %v\n%s", b.err, b.out)
	default:
	}
	b.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-b.exited:
	case <-timer.C:
		b.cmd.Process.Signal(syscall.SIGQUIT) // prints its goroutines
		<-b.exited
		return fmt.Errorf("firemq did not stop in %s after SIGTERM\n%s", stopTimeout, b.out)
	}
	if b.err != nil {
		return fmt.Errorf("firemq stopped with %w\n%s", b.err, b.out)
	}
	return nil
}

func signalled(err error, sig syscall.Signal) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return false
	}
	ws, ok := exit.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == sig
}

// Result is how a command ended.
type Result struct {
	Stdout, Stderr string
	Code           int // exit status; -1 when a signal ended it
}

// Run runs a command of the binary to its end, for a minute at most, with env added to the
// environment and stdin as its input.
func Run(t testing.TB, stdin string, env []string, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, Binary(t), args...)
	cmd.Dir, cmd.Env = os.TempDir(), append(environ(), env...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.SysProcAttr = dieWithParent()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("firemq %s did not end in a minute\n%s%s", strings.Join(args, " "), &out, &errs)
	}
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatalf("run firemq %s: %v", strings.Join(args, " "), err)
	}
	return Result{Stdout: out.String(), Stderr: errs.String(), Code: cmd.ProcessState.ExitCode()}
}

// environ is the environment without the settings that firemq would take from it.
func environ() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "FIREMQ_") })
}

// Address is the host:port of a URL.
func Address(t testing.TB, rawURL string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// Eventually polls ok every few milliseconds until it is true, and fails the test with what when
// it is not within the limit. It is for conditions of another process; inside one use a signal.
func Eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// output keeps what a broker prints, the last maxOutput bytes, and tells when the banner is complete.
type output struct {
	ready chan struct{} // closed at the banner's last line

	mu     sync.Mutex
	buf    []byte // guarded by mu
	closed bool   // guarded by mu: ready is closed
}

const maxOutput = 1 << 20

// The banner's last line says where the data is.
var bannerEnd = regexp.MustCompile(`(?m)^.* is ready in .*$[\s\S]*^ +Data +.*\n`)

func newOutput() *output { return &output{ready: make(chan struct{})} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf = append(o.buf, p...)
	if !o.closed && bannerEnd.Match(o.buf) {
		o.closed = true
		close(o.ready)
	}
	if n := len(o.buf) - maxOutput; n > 0 {
		o.buf = append(o.buf[:0], o.buf[n:]...)
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.buf)
}

// DialFire connects a client for the FireMQ protocol that ends with its connection, as those of AMQP do.
func DialFire(ctx context.Context, url string) (*fire.Client, error) {
	cfg, err := fire.ParseURL(url)
	if err != nil {
		return nil, err
	}
	cfg.Reconnect.Off = true
	return cfg.Dial(ctx)
}
