// Suite runs the Go tests in the steps of "make test", one after the other, and closes with what
// passed and failed in all. Tests that pass print nothing; those that fail print all of theirs.
//
// The steps are apart because they want different builds: allocation tests need a plain one, data
// races only show in a race build, and the tests against the binary are never taken from the cache.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const (
	module = "github.com/firemq/firemq"
	oracle = module + "/test/oracle"
)

func main() {
	packages, err := list()
	if err != nil {
		fmt.Fprintln(os.Stderr, "list the packages:", err)
		os.Exit(1)
	}
	var inside, outside []string // without and with the built binary
	racy := raceless() == ""
	for _, p := range packages {
		switch {
		case p == oracle && racy: // it runs FireMQ inside, and in a step of its own
		case strings.HasPrefix(p, module+"/test/"):
			outside = append(outside, p)
		default:
			inside = append(inside, p)
		}
	}
	total := newTally()
	for _, step := range []struct {
		name string
		skip string // why the step can't run here
		args []string
	}{
		{"packages", "", append([]string{"-timeout=15m"}, inside...)},
		{"packages, race build", raceless(), append([]string{"-race", "-timeout=15m"}, inside...)},
		{"RabbitMQ's answers, race build", raceless(), []string{"-race", "-count=1", "-timeout=15m", oracle}},
		{"clients and crashes, built binary", "", append([]string{"-count=1", "-timeout=20m"}, outside...)},
	} {
		if step.skip != "" {
			total.skips["step "+step.name] = step.skip
			continue
		}
		fmt.Printf("== %s\n", step.name)
		start := time.Now()
		t := newTally()
		if err := run(step.args, t, os.Stdout); err != nil {
			fmt.Printf("%s: %v\n", step.name, err)
			t.failed = max(t.failed, 1)
		}
		fmt.Printf("== %s: %s in %s\n\n", step.name, t, time.Since(start).Round(100*time.Millisecond))
		total.add(t)
	}
	if len(total.skips) > 0 {
		fmt.Println("skipped:")
		for _, name := range slices.Sorted(maps.Keys(total.skips)) {
			fmt.Printf("  %s: %s\n", name, total.skips[name])
		}
	}
	fmt.Println(total)
	if total.failed > 0 || total.passed == 0 {
		os.Exit(1)
	}
}

// raceless says why this machine can't build with the race detector, "" when it can.
func raceless() string {
	out, err := exec.Command("go", "env", "CGO_ENABLED").Output()
	if err != nil {
		return err.Error()
	}
	if strings.TrimSpace(string(out)) != "1" {
		return "the race detector needs a C compiler"
	}
	return ""
}

func list() ([]string, error) {
	out, err := exec.Command("go", "list", "./...").Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("%w\n%s", err, exit.Stderr)
	}
	return strings.Fields(string(out)), err
}

// run runs go test and reports each package on w as it ends.
func run(args []string, t *tally, w io.Writer) error {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := t.read(out, w); err != nil {
		io.Copy(io.Discard, out)
		return errors.Join(err, cmd.Wait())
	}
	return cmd.Wait()
}

// event is one line of go test -json: what "go doc test2json" describes.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of a build event
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

// tally counts the tests that ran. A test with subtests counts beside them, as go test prints it.
type tally struct {
	passed, failed, skipped int
	skips                   map[string]string // test -> why
	output                  map[string]*bytes.Buffer
}

func newTally() *tally {
	return &tally{skips: make(map[string]string), output: make(map[string]*bytes.Buffer)}
}

func (t *tally) add(u *tally) {
	t.passed += u.passed
	t.failed += u.failed
	t.skipped += u.skipped
	maps.Copy(t.skips, u.skips)
}

func (t *tally) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", t.passed, t.failed, t.skipped)
}

func (t *tally) read(r io.Reader, w io.Writer) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(w, lines.Text()) // not from a test: go itself has something to say
			continue
		}
		t.event(e, w)
	}
	return lines.Err()
}

func (t *tally) event(e event, w io.Writer) {
	pkg := strings.TrimPrefix(e.Package, module+"/")
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(w, e.Output)
	case "output":
		b := t.output[key]
		if b == nil {
			b = new(bytes.Buffer)
			t.output[key] = b
		}
		b.WriteString(e.Output)
	case "pass", "fail", "skip":
		out := t.output[key]
		delete(t.output, key)
		switch {
		case e.Test == "" && e.Action == "fail":
			fmt.Fprintf(w, "FAIL  %-28s %6.1fs\n", pkg, e.Elapsed)
			for k, b := range t.output { // of tests that a panic or a timeout cut short
				if strings.HasPrefix(k, e.Package+" ") {
					w.Write(b.Bytes())
					delete(t.output, k)
					t.failed++
				}
			}
			if out != nil {
				w.Write(out.Bytes())
			}
			if e.FailedBuild != "" {
				t.failed++
			}
		case e.Test == "" && e.Action == "pass":
			fmt.Fprintf(w, "ok    %-28s %6.1fs\n", pkg, e.Elapsed)
		case e.Test == "": // no test files
		case e.Action == "pass":
			t.passed++
		case e.Action == "fail":
			t.failed++
			fmt.Fprintf(w, "--- FAIL: %s %s\n", pkg, e.Test)
			if out != nil {
				w.Write(out.Bytes())
			}
		case e.Action == "skip":
			t.skipped++
			t.skips[pkg+" "+e.Test] = reason(out)
		}
	}
}

// reason is what a test said when it was skipped.
func reason(out *bytes.Buffer) string {
	if out == nil {
		return ""
	}
	for line := range strings.Lines(out.String()) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "---") {
			return line
		}
	}
	return ""
}
