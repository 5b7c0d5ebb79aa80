package oracle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/firemq/firemq/internal/rabbitmqctl"
)

// printed is what a command line left behind.
type printed struct {
	status      int
	out, errors string
}

// ctlLimit is how long one call of RabbitMQ's own may take: each starts an Erlang machine.
const ctlLimit = time.Minute

// ctl runs RabbitMQ's own rabbitmqctl.
func (r *rabbit) ctl(ctx context.Context, args []string) (printed, error) {
	ctx, cancel := context.WithTimeout(ctx, ctlLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(rabbitServer), "rabbitmqctl"), append([]string{"-n", r.name}, args...)...)
	cmd.Env, cmd.Dir = r.cmd.Env, r.cmd.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: r.root}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		return printed{}, err
	}
	return printed{cmd.ProcessState.ExitCode(), out.String(), errs.String()}, nil
}

// ctl runs ours.
func (f *fire) ctl(t *testing.T, args []string) printed {
	t.Helper()
	var out, errs bytes.Buffer
	env := func(name string) (string, bool) {
		return "http://" + f.s.HTTPAddr().String(), name == "FIREMQ_HTTP_URL"
	}
	status := rabbitmqctl.Run(t.Context(), rabbitmqctl.Terminal{In: strings.NewReader(""), Out: &out, Err: &errs, Env: env}, rabbitmqctl.Ctl, args)
	return printed{status, out.String(), errs.String()}
}

var (
	escapes = regexp.MustCompile(`\x1b\[[0-9;]*m`)
	pids    = regexp.MustCompile(`<[^<>\t]+>`)
	nodes   = regexp.MustCompile(`[a-z0-9]+@[a-zA-Z0-9.-]+`)
	commas  = regexp.MustCompile(`(?m)^,`)
)

// comparable is an output without what differs between any two nodes, its lines in order.
func (p *printed) comparable() string {
	lines := strings.Split(strings.Trim(plainText(p.out), "\n"), "\n")
	slices.Sort(lines)
	first, _, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(plainText(p.errors)), "Error:")), "\n")
	return fmt.Sprintf("%s\nerror: %s\nstatus %d", strings.Join(lines, "\n"), strings.TrimSpace(first), p.status)
}

func plainText(s string) string {
	s = commas.ReplaceAllString(escapes.ReplaceAllString(s, ""), "")
	return nodes.ReplaceAllString(pids.ReplaceAllString(s, "<pid>"), "NODE")
}

// words splits a command line as a shell does, with single quotes alone.
func words(line string) (list []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			list = append(list, part)
		} else {
			list = append(list, strings.Fields(part)...)
		}
	}
	return list
}

// TestRabbitmqctl compares the command lines of testdata/http/rabbitmqctl.txt.
func TestRabbitmqctl(t *testing.T) {
	if !*ctlFlag {
		t.Skip("takes minutes on a busy machine: run with -ctl, as make compat does")
	}
	b := both(t)
	if b.rabbit.cmd == nil {
		t.Skip("needs a RabbitMQ of its own")
	}
	text, err := os.ReadFile("testdata/http/rabbitmqctl.txt")
	if err != nil {
		t.Fatal(err)
	}
	for n, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if method, rest, _ := strings.Cut(line, " "); method == "PUT" || method == "POST" {
			path, body, _ := strings.Cut(rest, " ")
			for _, addr := range []string{b.rabbit.http, b.fire.s.HTTPAddr().String()} {
				if a := ask(t, addr, guest, method, path, body); a.status >= 300 {
					t.Fatalf("line %d: %d %s", n+1, a.status, a.body)
				}
			}
			continue
		}
		line, statusOnly := strings.CutPrefix(line, "~ ")
		want, err := b.rabbit.ctl(t.Context(), words(line))
		if err != nil {
			t.Fatal(err)
		}
		got := b.fire.ctl(t, words(line))
		if statusOnly && want.status != got.status || !statusOnly && want.comparable() != got.comparable() {
			t.Errorf("line %d: %s\nRabbitMQ\n%s\nFireMQ\n%s", n+1, line, want.comparable(), got.comparable())
		}
	}
}
