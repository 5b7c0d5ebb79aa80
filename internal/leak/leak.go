// Package leak fails the tests of a package that leave something behind: goroutines, buffers of package pool (in race
// builds), files in the folder for temporary ones and, on Linux, open files and mappings.
//
// Every package whose tests run what starts goroutines has a TestMain that calls Main; internal/tidy sees to it. A test that
// must leave none itself calls Check.
package leak

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/firemq/firemq/pool"
)

// patience is how long what ends in the background, such as the other side of a connection, may take.
var patience = 30 * time.Second // less in the tests of this package

// insideEnv is set for processes that the tests start.
const insideEnv = "FIREMQ_TEST_INSIDE"

// Main is what TestMain calls with m.Run, and gives the status to exit with. The tests have a folder for temporary
// files of their own. Nothing more is asked of tests that fail, and of a test's binary that a test has started: it may
// be there to be killed.
func Main(run func() int) int {
	if os.Getenv(insideEnv) != "" {
		return run()
	}
	os.Setenv(insideEnv, "1")
	folder, err := os.MkdirTemp("", "firemq-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	os.Setenv("TMPDIR", folder)
	before := now(folder)
	code := run()
	if code != 0 {
		return code
	}
	if left := before.left(); left != "" {
		fmt.Fprintf(os.Stderr, "the tests leave behind:\n%s", left)
		return 1
	}
	return 0
}

// state is what there was at one time.
type state struct {
	folder     string
	goroutines goleak.Option
	lent       int64
	open       map[string]int // how often each is open or mapped
}

func now(folder string) *state {
	openOnce() // what the runtime opens with the first one stays
	return &state{folder, goleak.IgnoreCurrent(), pool.Live(), open(folder)}
}

// Check notes which goroutines and lent buffers there are, and gives what fails the test if there are more: what ends in the
// background has its time. Other tests must not run meanwhile.
func Check(t testing.TB) (none func()) {
	before := &state{goroutines: goleak.IgnoreCurrent(), lent: pool.Live()}
	return func() {
		t.Helper()
		if left := await(before.running); left != "" {
			t.Errorf("left behind:\n%s", left)
		}
	}
}

// left waits until there is no more than there was, and says what there still is after a while.
func (s *state) left() string {
	return await(func() string { return s.running() + s.files() })
}

// await waits until nothing is more, and says what still is after a while.
func await(more func() string) string {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		http.DefaultClient.CloseIdleConnections()
		left := more()
		if left == "" || time.Now().After(deadline) {
			return left
		}
	}
}

// running says which goroutines and buffers are more than there were.
func (s *state) running() string {
	var left strings.Builder
	// fasthttp has one clock for the process, and goroutines that compress.
	if err := goleak.Find(s.goroutines,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp/stackless.funcWorker"),
	); err != nil {
		fmt.Fprintln(&left, err)
	}
	if n := pool.Live() - s.lent; n != 0 {
		fmt.Fprintf(&left, "%d buffers that are lent\n", n)
	}
	return left.String()
}

// files says which files are open, mapped, or in the folder beside those that were.
func (s *state) files() string {
	var left strings.Builder
	var names []string
	for name, n := range open(s.folder) {
		if n > s.open[name] {
			names = append(names, fmt.Sprintf("open: %s, %d times more\n", name, n-s.open[name]))
		}
	}
	slices.Sort(names)
	left.WriteString(strings.Join(names, ""))
	files, err := os.ReadDir(s.folder)
	if err != nil {
		fmt.Fprintln(&left, err)
	}
	for _, f := range files {
		fmt.Fprintf(&left, "file: %s\n", filepath.Join(s.folder, f.Name()))
	}
	return left.String()
}
