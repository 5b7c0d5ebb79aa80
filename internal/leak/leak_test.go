package leak

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/pool"
)

// leaveEnv says what this program leaves behind, when a test has started it to do just that.
const leaveEnv = "FIREMQ_TEST_LEAVE"

func TestMain(m *testing.M) {
	what := os.Getenv(leaveEnv)
	if what == "" {
		os.Exit(Main(m.Run))
	}
	patience = time.Millisecond
	os.Exit(Main(func() int { return leave(what) }))
}

var kept []*os.File // nothing closes what is referred to

func leave(what string) (status int) {
	switch what {
	case "a test that fails":
		status = 7
		fallthrough
	case "goroutine":
		go func() { select {} }()
	case "buffer":
		pool.Get(1, pool.Messages)
	case "open file":
		f, _ := os.Open(os.DevNull)
		kept = append(kept, f)
	case "pipe":
		r, w, _ := os.Pipe()
		kept = append(kept, r, w)
	case "file":
		os.WriteFile(filepath.Join(os.TempDir(), "left"), nil, 0o600)
	case "mapping":
		leaveMapping()
	}
	return status
}

// leaves runs this program so that it leaves that, and gives its exit status and what it says.
func leaves(t *testing.T, what, inside string) (status int, said string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), leaveEnv+"="+what, insideEnv+"="+inside)
	out, err := cmd.CombinedOutput()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// left is what is found in this build, and what is said of it.
var left = map[string]string{"goroutine": "goroutine ", "file": "file: "}

func TestMainFindsWhatIsLeft(t *testing.T) {
	for what, want := range left {
		t.Run(what, func(t *testing.T) {
			if status, said := leaves(t, what, ""); status != 1 || !strings.Contains(said, want) {
				t.Errorf("status %d: %s\nwant 1 and %q", status, said, want)
			}
		})
	}
}

// Nothing is said of tests that leave nothing, that fail anyway, or whose program another test has started.
func TestMainIsSilent(t *testing.T) {
	for _, c := range []struct {
		what, inside string
		status       int
	}{{"nothing", "", 0}, {"a test that fails", "", 7}, {"goroutine", "1", 0}} {
		if status, said := leaves(t, c.what, c.inside); status != c.status || said != "" {
			t.Errorf("%s: status %d, want %d: %s", c.what, status, c.status, said)
		}
	}
}

// recorder is a test that notes how it failed.
type recorder struct {
	testing.TB
	said string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) { r.said += fmt.Sprintf(format, args...) }

// Check fails a test that leaves a goroutine, and none whose goroutine ends a little later.
func TestCheck(t *testing.T) {
	var r recorder
	none := Check(&r)
	end, ended := make(chan struct{}), make(chan struct{})
	go func() { defer close(ended); <-end }()
	func() {
		defer func(was time.Duration) { patience = was }(patience)
		patience = time.Millisecond
		none()
	}()
	if !strings.Contains(r.said, "TestCheck") {
		t.Errorf("of a goroutine that stays it is said: %q", r.said)
	}
	r.said = ""
	time.AfterFunc(2*time.Second, func() { close(end) }) // longer than goleak looks
	if none(); r.said != "" {
		t.Errorf("of a goroutine that ends: %s", r.said)
	}
	<-ended
}
