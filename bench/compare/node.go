package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/firemq/firemq/bench"
	"github.com/firemq/firemq/internal/ports"
)

// node is one broker that can be started, stopped and loaded. One goroutine uses it.
type node interface {
	// start returns when the broker logs a client in, with the time that took. After stop or kill it
	// starts on what the broker left on disk.
	start(ctx context.Context) (time.Duration, error)
	stop() error // as an operator would, and waits
	kill() error // as a power cut would
	// freeze takes the CPU from a broker that is kept for later, or gives it back.
	freeze(on bool) error
	remove() // and all it left
	url(scheme string) string
	// load runs "firemq bench" with these flags against the broker.
	load(ctx context.Context, scheme string, flags ...string) (report *bench.Report, raw []byte, err error)
	rss() (bytes int64, err error)
}

const (
	startPatience = 2 * time.Minute // of a broker that starts
	stopPatience  = time.Minute     // of one that stops
	askPatience   = 30 * time.Second
	startPoll     = time.Millisecond
)

// native is a broker as a process of this machine, pinned to its cores.
type native struct {
	s      settings
	kind   *kind
	dir    string // its data and settings
	ports  []int
	cmd    *exec.Cmd
	exited chan struct{}
	log    *os.File
}

func newNative(s settings, k *kind) (*native, error) {
	n := &native{s: s, kind: k}
	base := os.TempDir()
	if k.root != "" {
		base = filepath.Join(k.root, "tmp") // the broker sees it as /tmp
	}
	var err error
	if n.dir, err = os.MkdirTemp(base, "compare-"); err != nil {
		return nil, err
	}
	if n.ports, err = ports.Free(4); err != nil {
		return nil, err
	}
	if err := k.prepare(n.inside(), n.dir, n.ports); err != nil {
		return nil, err
	}
	n.log, err = os.OpenFile(filepath.Join(s.out, "raw", k.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	return n, err
}

// inside is the folder as the broker sees it.
func (n *native) inside() string { return strings.TrimPrefix(n.dir, n.kind.root) }

// pinned puts taskset before a command.
func pinned(cores string, command []string) []string {
	if cores == "" {
		return command
	}
	return append([]string{"taskset", "-c", cores}, command...)
}

func (n *native) start(ctx context.Context) (time.Duration, error) {
	command, env := n.kind.command(n.inside(), n.ports)
	if n.kind.root != "" {
		command = append([]string{"chroot", n.kind.root}, command...)
	}
	command = pinned(n.s.brokerCores, command)
	n.cmd = exec.Command(command[0], command[1:]...)
	n.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "HOME=" + n.inside()}, env...)
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	began := time.Now()
	if err := n.cmd.Start(); err != nil {
		return 0, fmt.Errorf("start %s: %w", n.kind.name, err)
	}
	exited := make(chan struct{})
	n.exited = exited
	go func() {
		n.cmd.Wait()
		close(exited)
	}()
	err := awaitReady(ctx, n.url(cmp.Or(n.kind.main, "amqp")), exited)
	if err != nil {
		return 0, fmt.Errorf("start %s: %w (see %s)", n.kind.name, err, n.log.Name())
	}
	return time.Since(began), nil
}

// awaitReady tries to log in until that works.
func awaitReady(ctx context.Context, url string, exited <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		err := bench.Ping(ctx, url, askPatience)
		if err == nil {
			return nil
		}
		select {
		case <-exited:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return fmt.Errorf("it is not ready: %w", err)
		case <-time.After(startPoll):
		}
	}
}

// signal is for the broker and all its children.
func (n *native) signal(sig syscall.Signal) error {
	if n.cmd == nil {
		return nil
	}
	if err := syscall.Kill(-n.cmd.Process.Pid, sig); err != nil {
		return fmt.Errorf("%s to %s: %w", sig, n.kind.name, err)
	}
	return nil
}

func (n *native) stop() error { return n.end(syscall.SIGTERM) }
func (n *native) kill() error { return n.end(syscall.SIGKILL) }

func (n *native) end(sig syscall.Signal) error {
	if n.cmd == nil {
		return nil
	}
	if err := n.signal(sig); err != nil {
		return err
	}
	select {
	case <-n.exited:
	case <-time.After(stopPatience):
		return fmt.Errorf("%s does not end by %s", n.kind.name, sig)
	}
	n.cmd = nil
	return nil
}

func (n *native) freeze(on bool) error {
	if on {
		return n.signal(syscall.SIGSTOP)
	}
	return n.signal(syscall.SIGCONT)
}

func (n *native) remove() {
	if n.cmd != nil {
		n.signal(syscall.SIGCONT)
		n.kill()
	}
	if n.kind.cleanup != nil {
		n.kind.cleanup(n.ports)
	}
	n.log.Close()
	os.RemoveAll(n.dir)
}

func (n *native) url(scheme string) string {
	port := n.ports[0]
	if scheme == "fire" {
		port = n.ports[1]
	}
	return fmt.Sprintf("%s://127.0.0.1:%d", scheme, port)
}

func (n *native) load(ctx context.Context, scheme string, flags ...string) (*bench.Report, []byte, error) {
	command := append([]string{n.s.firemq, "bench", "--json", "--quiet", "--url", n.url(scheme), "--broker-pid", fmt.Sprint(n.cmd.Process.Pid)}, flags...)
	return runLoad(ctx, pinned(n.s.loadCores, command))
}

// runLoad runs a load and reads its report.
func runLoad(ctx context.Context, command []string) (*bench.Report, []byte, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopPatience
	var failure strings.Builder
	cmd.Stderr = &failure
	raw, err := cmd.Output()
	if err != nil && len(raw) == 0 {
		return nil, nil, fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, strings.TrimSpace(failure.String()))
	}
	var rep bench.Report
	if jsonErr := json.Unmarshal(raw, &rep); jsonErr != nil {
		return nil, raw, fmt.Errorf("the report of %s: %w", strings.Join(command, " "), jsonErr)
	}
	if rep.Broken != "" {
		return nil, raw, errors.New(rep.Broken)
	}
	return &rep, raw, nil // what was lost is in the report
}

func (n *native) rss() (int64, error) { return bench.RSS(n.cmd.Process.Pid) }
