// Package compat runs programs written with real client libraries against the firemq binary: the
// tutorials in examples/ unchanged, and a suite for each language in a folder of its own.
//
// The clients are installed by "make deps". Without one the tests that need it are skipped, or fail when
// FIREMQ_REQUIRE_CLIENTS is set, as "make test" does.
package compat

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/test/internal/brokertest"
)

func TestMain(m *testing.M) { os.Exit(brokertest.Main(m.Run)) }

const (
	programLimit = 30 * time.Second // one tutorial program
	suiteLimit   = 6 * time.Minute  // all tests of one client, beside those of the others
)

func python(t *testing.T) string {
	t.Helper()
	return brokertest.Need(t, ".cache", "venv", "bin", "python")
}

func node(t *testing.T, folder ...string) string {
	t.Helper()
	brokertest.Need(t, append(folder, "node_modules", "amqplib", "package.json")...)
	path, err := exec.LookPath("node")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs a program in a folder of the repository with AMQP_URL set, and a folder for its temporary files that ends
// with the test, and gives its output.
func run(t *testing.T, limit time.Duration, amqpURL, folder, name string, args ...string) (string, error) {
	t.Helper()
	return runEnv(t, limit, []string{"AMQP_URL=" + amqpURL}, folder, name, args...)
}

func runEnv(t *testing.T, limit time.Duration, env []string, folder, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = filepath.Join(brokertest.Root(), filepath.FromSlash(folder))
	cmd.Env = append(append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "TMPDIR="+t.TempDir()), env...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("%s %s did not end in %s\n%s", name, strings.Join(args, " "), limit, out)
	}
	return string(out), err
}

// The tutorials, and the lines that each prints whatever the language. "?" stands for six
// characters of a queue name that the broker chose.
var tutorials = []struct {
	name  string
	lines []string
}{
	{"hello", []string{" [x] Sent 'Hello World!'", " [x] Received 'Hello World!'"}},
	{"work_queues", []string{" [x] Done task 1", " [x] Done task 2", " [x] Done task 3"}},
	{"publish_subscribe", []string{" [?] info: hello subscribers", " [?] info: hello subscribers"}},
	{"routing", []string{" [x] error: error event"}},
	{"topics", []string{" [x] kern.critical", " [x] app.critical"}},
	{"rpc", []string{" [.] square(7) = 49"}},
}

var queueSuffix = regexp.MustCompile(`(?m)^ \[[\w-]{6}\]`)

func TestExamples(t *testing.T) {
	broker := brokertest.Shared(t)
	check := func(t *testing.T, want []string, name string, args ...string) {
		t.Helper()
		out, err := runEnv(t, programLimit, []string{"AMQP_URL=" + broker.AMQPURL, "FIREMQ_URL=" + broker.FireURL}, ".", name, args...)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if got, want := queueSuffix.ReplaceAllString(out, " [?]"), strings.Join(want, "\n")+"\n"; got != want {
			t.Errorf("printed\n%s\nwant\n%s", got, want)
		}
	}
	programs := t.TempDir()
	if out, err := runEnv(t, suiteLimit, nil, ".", "go", "build", "-o", programs, "./examples/go/..."); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, tutorial := range tutorials {
		t.Run("python/"+tutorial.name, func(t *testing.T) {
			check(t, tutorial.lines, python(t), "examples/python/"+tutorial.name+".py")
		})
		t.Run("javascript/"+tutorial.name, func(t *testing.T) {
			check(t, tutorial.lines, node(t, "examples", "javascript"), "examples/javascript/"+tutorial.name+".mjs")
		})
		t.Run("go/"+tutorial.name, func(t *testing.T) {
			check(t, tutorial.lines, filepath.Join(programs, tutorial.name))
		})
		t.Run("typescript/"+tutorial.name, func(t *testing.T) {
			brokertest.Need(t, "examples", "typescript", "dist", ".built")
			check(t, tutorial.lines, "node", "examples/typescript/dist/"+tutorial.name+".js")
		})
		t.Run("rust/"+tutorial.name, func(t *testing.T) {
			brokertest.Need(t, ".cache", "cargo", ".sdk")
			check(t, tutorial.lines, filepath.Join(cargoTarget(), "debug", tutorial.name))
		})
	}
	t.Run("go/amqp_hello", func(t *testing.T) {
		check(t, tutorials[0].lines, filepath.Join(programs, "amqp_hello"))
	})
}

// Every program in examples/ is in the table above, so that none can rot.
func TestEveryExampleRuns(t *testing.T) {
	known := map[string]bool{"amqp_hello": true}
	for _, tutorial := range tutorials {
		known[tutorial.name] = true
	}
	for _, pattern := range []string{"python/*.py", "javascript/*.mjs", "typescript/*.ts", "rust/src/bin/*.rs", "go/*"} {
		files, err := filepath.Glob(filepath.Join(brokertest.Root(), "examples", filepath.FromSlash(pattern)))
		if err != nil || len(files) == 0 {
			t.Fatalf("no examples match %s (%v)", pattern, err)
		}
		for _, file := range files {
			if name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)); !known[name] {
				t.Errorf("no test runs %s", file)
			}
		}
	}
}
