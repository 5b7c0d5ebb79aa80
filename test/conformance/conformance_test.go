// Package conformance runs the conformance suite against the SDKs of this repository, and against drivers
// that are broken on purpose, with the firemq binary.
package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/firemq/firemq/test/internal/brokertest"
)

// brokenMode is the variable that makes this test's binary a broken driver.
const brokenMode = "CONFORMANCE_BROKEN"

func TestMain(m *testing.M) {
	if mode := os.Getenv(brokenMode); mode != "" {
		os.Exit(broken(mode, os.Getenv("CONFORMANCE_DRIVER")))
	}
	os.Exit(brokertest.Main(func() int {
		code := m.Run()
		if programs != "" {
			os.RemoveAll(programs)
		}
		return code
	}))
}

var (
	programs string // the folder of the built programs; written once under once
	buildErr error
	once     sync.Once
)

// build builds the runner and the Go SDK's driver.
func build(t *testing.T) (runner, driver string) {
	t.Helper()
	once.Do(func() {
		if programs, buildErr = os.MkdirTemp("", "firemq-conformance-test-"); buildErr != nil {
			return
		}
		cmd := exec.Command("go", "build", "-o", programs, "./cmd/firemq-conformance", "./sdk/go/conformance")
		cmd.Dir = brokertest.Root()
		if out, err := cmd.CombinedOutput(); err != nil {
			buildErr = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if buildErr != nil {
		t.Fatal(buildErr)
	}
	return filepath.Join(programs, "firemq-conformance"), filepath.Join(programs, "conformance")
}

const suiteLimit = 10 * time.Minute

// run runs the runner and gives its exit status and what it prints.
func run(t *testing.T, env []string, args ...string) (status int, out string) {
	t.Helper()
	runner, _ := build(t)
	ctx, cancel := context.WithTimeout(t.Context(), suiteLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, runner, append([]string{"run", "--broker", brokertest.Binary(t)}, args...)...)
	cmd.Dir = brokertest.Root()
	cmd.Env = append(os.Environ(), env...)
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("the runner did not end in %s\n%s", suiteLimit, &b)
	}
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), b.String()
}

var (
	resultLine = regexp.MustCompile(`(?m)^(ok|FAIL|skip) +(\S+) +[\d.]+s`)
	totalLine  = regexp.MustCompile(`(?m)^\d+ passed, \d+ failed, \d+ skipped$`)
)

// suite runs all scenarios and reports each as a subtest.
func suite(t *testing.T, driver, transports string) {
	t.Helper()
	status, out := run(t, nil, "--driver", driver, "--transport", transports)
	lines := resultLine.FindAllStringSubmatchIndex(out, -1)
	for i, at := range lines {
		result, name := out[at[2]:at[3]], out[at[4]:at[5]]
		end := len(out)
		if i+1 < len(lines) {
			end = lines[i+1][0]
		}
		t.Run(name, func(t *testing.T) {
			if result != "ok" {
				t.Error(out[at[0]:end])
			}
		})
	}
	if status != 0 && !t.Failed() || len(lines) == 0 || !totalLine.MatchString(out) {
		t.Errorf("status %d\n%s", status, out)
	}
}

func TestGo(t *testing.T) {
	_, driver := build(t)
	suite(t, driver, "fire,fires,ws,wss")
}

// A driver that does something wrong fails the scenarios that are about it, and the runner's status says so.
func TestBrokenDrivers(t *testing.T) {
	_, driver := build(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mode  string
		fails map[string]string // scenario -> what the runner says
		good  string            // one that it passes nevertheless
	}{
		{"acks nothing", map[string]string{"subscribe-ack": "messages in q", "unknown-tag": "errors"}, "publish-get"},
		{"forgets redelivered", map[string]string{"nack-requeue": "redelivered"}, "subscribe-ack"},
		{"confirms at once", map[string]string{"publish-confirm": "replied already"}, "publish-get"},
		{"wrong id", map[string]string{"publish-get": "has not the id"}, ""},
		{"no JSON", map[string]string{"publish-get": "is not a JSON object"}, ""},
		{"ends early", map[string]string{"publish-get": "the driver ended"}, ""},
		{"stays", map[string]string{"connect-close": "has not ended"}, "publish-get"},
	} {
		t.Run(c.mode, func(t *testing.T) {
			args := []string{"--driver", self}
			for name := range c.fails {
				args = append(args, "--only", name)
			}
			passed := 0
			if c.good != "" {
				args = append(args, "--only", c.good)
				passed = 1
			}
			status, out := run(t, []string{brokenMode + "=" + c.mode, "CONFORMANCE_DRIVER=" + driver}, args...)
			if status != 1 || !strings.Contains(out, fmt.Sprintf("%d passed, %d failed, 0 skipped", passed, len(c.fails))) {
				t.Errorf("status %d\n%s", status, out)
			}
			for name, says := range c.fails {
				if !regexp.MustCompile(`(?m)^FAIL ` + name + ` .*` + regexp.QuoteMeta(says)).MatchString(out) {
					t.Errorf("%s does not fail with %q:\n%s", name, says, out)
				}
			}
		})
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"--list"}, 0, "connect-close "},
		{nil, 1, "no driver"},
		{[]string{"--driver", "true", "--only", "nothing"}, 1, `no scenario "nothing"`},
		{[]string{"--driver", "true", "--transport", "pigeon"}, 1, `no transport "pigeon"`},
		{[]string{"--driver", "true", "--only", "publish-get"}, 1, "the driver ended"},
		{[]string{"stray"}, 2, `"stray" is no flag`},
		{[]string{"--unknown"}, 2, "flag provided but not defined"},
	} {
		status, out := run(t, nil, c.args...)
		if status != c.status || !strings.Contains(out, c.says) {
			t.Errorf("%q: status %d, want %d with %q\n%s", c.args, status, c.status, c.says, out)
		}
	}
}

// broken is a driver that passes commands on to a good one and breaks a rule.
func broken(mode, driver string) int {
	cmd := exec.Command(driver)
	in, err := cmd.StdinPipe()
	if err != nil {
		return 1
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 1
	}
	cmd.Env = append(os.Environ(), brokenMode+"=")
	if err := cmd.Start(); err != nil {
		return 1
	}
	commands, replies := bufio.NewReader(os.Stdin), bufio.NewReader(out)
	say := func(line string) { io.WriteString(os.Stdout, line) }
	for n := 0; ; n++ {
		line, err := commands.ReadString('\n')
		if err != nil {
			break
		}
		var c struct {
			ID int64
			Op string
		}
		if json.Unmarshal([]byte(line), &c) != nil {
			return 1
		}
		good := fmt.Sprintf(`{"id":%d,"ok":true,"result":{}}`+"\n", c.ID)
		if c.Op == "ack" && mode == "acks nothing" {
			say(good)
			continue
		}
		if c.Op == "publish" && mode == "confirms at once" {
			say(good)
		}
		io.WriteString(in, line)
		if c.Op == "publish" && mode == "confirms at once" {
			replies.ReadString('\n')
			continue
		}
		reply, err := replies.ReadString('\n')
		switch {
		case err != nil:
			return 1
		case mode == "forgets redelivered":
			reply = strings.Replace(reply, `"redelivered":true`, `"redelivered":false`, 1)
		case n == 0: // info: the scenario is to fail, not the start
		case mode == "wrong id":
			reply = strings.Replace(reply, fmt.Sprintf(`"id":%d`, c.ID), `"id":1000`, 1)
		case mode == "no JSON":
			reply = "connected\n"
		case mode == "ends early":
			return 0
		}
		say(reply)
	}
	if mode == "stays" {
		killed := make(chan os.Signal, 1)
		signal.Notify(killed, syscall.SIGTERM)
		<-killed
	}
	in.Close()
	cmd.Wait()
	return 0
}
