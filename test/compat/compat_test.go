// Package compat runs programs written with real client libraries against the firemq binary: the
// tutorials in examples/ unchanged, and a suite for each language in a folder of its own.
//
// The clients for Python and JavaScript are installed by "make deps". Without them the tests that
// need them are skipped, or fail when FIREMQ_REQUIRE_CLIENTS is set, as "make test" does.
package compat

import (
	"bufio"
	"context"
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/test/internal/brokertest"
)

func TestMain(m *testing.M) { os.Exit(brokertest.Main(m)) }

const (
	programLimit = 30 * time.Second // one tutorial program
	suiteLimit   = 4 * time.Minute  // all tests of one language
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

// run runs a program in a folder of the repository with AMQP_URL set and gives its output.
func run(t *testing.T, limit time.Duration, amqpURL, folder, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = filepath.Join(brokertest.Root(), filepath.FromSlash(folder))
	cmd.Env = append(os.Environ(), "AMQP_URL="+amqpURL, "PYTHONDONTWRITEBYTECODE=1")
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
	t.Setenv("FIREMQ_URL", broker.FireURL)
	check := func(t *testing.T, want []string, name string, args ...string) {
		t.Helper()
		out, err := run(t, programLimit, broker.AMQPURL, ".", name, args...)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if got, want := queueSuffix.ReplaceAllString(out, " [?]"), strings.Join(want, "\n")+"\n"; got != want {
			t.Errorf("printed\n%s\nwant\n%s", got, want)
		}
	}
	for _, tutorial := range tutorials {
		t.Run("python/"+tutorial.name, func(t *testing.T) {
			check(t, tutorial.lines, python(t), "examples/python/"+tutorial.name+".py")
		})
		t.Run("javascript/"+tutorial.name, func(t *testing.T) {
			check(t, tutorial.lines, node(t, "examples", "javascript"), "examples/javascript/"+tutorial.name+".mjs")
		})
		t.Run("typescript/"+tutorial.name, func(t *testing.T) {
			brokertest.Need(t, "examples", "typescript", "dist", ".built")
			check(t, tutorial.lines, "node", "examples/typescript/dist/"+tutorial.name+".js")
		})
	}
	t.Run("go/hello", func(t *testing.T) {
		check(t, tutorials[0].lines, "go", "run", "./examples/go/hello")
	})
}

// Every program in examples/ is in the table above, so that none can rot.
func TestEveryExampleRuns(t *testing.T) {
	known := map[string]bool{"hello": true}
	for _, tutorial := range tutorials {
		known[tutorial.name] = true
	}
	for _, pattern := range []string{"python/*.py", "javascript/*.mjs", "typescript/*.ts", "go/*"} {
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

// TestPython runs the pika suite and reports each of its tests.
func TestPython(t *testing.T) {
	interpreter := python(t)
	report := filepath.Join(t.TempDir(), "report.xml")
	out, err := run(t, suiteLimit, brokertest.AMQPURL(t), "test/compat/python", interpreter,
		"-m", "pytest", "-q", "--tb=short", "--show-capture=no", "-o", "junit_family=xunit1", "--junitxml="+report)
	var suite struct {
		Cases []struct {
			Class   string  `xml:"classname,attr"`
			Name    string  `xml:"name,attr"`
			Failure *string `xml:"failure"`
			Error   *string `xml:"error"`
			Skipped *struct {
				Message string `xml:"message,attr"`
			} `xml:"skipped"`
		} `xml:"testsuite>testcase"`
	}
	data, readErr := os.ReadFile(report)
	if readErr == nil {
		readErr = xml.Unmarshal(data, &suite)
	}
	if readErr != nil || len(suite.Cases) == 0 {
		t.Fatalf("pytest gave no report: %v, %v\n%s", err, readErr, out)
	}
	for _, c := range suite.Cases {
		t.Run(c.Class+"/"+c.Name, func(t *testing.T) {
			switch {
			case c.Failure != nil:
				t.Error(*c.Failure)
			case c.Error != nil:
				t.Error(*c.Error)
			case c.Skipped != nil:
				t.Skip(c.Skipped.Message)
			}
		})
	}
	if err != nil && !t.Failed() {
		t.Errorf("pytest: %v\n%s", err, out)
	}
}

// TestNode runs the amqplib suite and reports each of its tests.
func TestNode(t *testing.T) {
	nodeTests(t, "test/compat/node", node(t, "test", "compat", "node"))
}

// nodeTests runs the tests of a folder, or some files with tests, and reports each test.
func nodeTests(t *testing.T, folder, interpreter string, files ...string) {
	t.Helper()
	args := append([]string{"--test", "--test-reporter=tap"}, files...)
	out, err := run(t, suiteLimit, brokertest.AMQPURL(t), folder, interpreter, args...)
	count := 0
	for name, result := range tapResults(out) {
		count++
		t.Run(name, func(t *testing.T) {
			if !result.ok {
				t.Error(result.detail)
			}
		})
	}
	if count == 0 || err != nil && !t.Failed() {
		t.Errorf("node --test: %v\n%s", err, out)
	}
}

type tapResult struct {
	ok     bool
	detail string
}

var tapLine = regexp.MustCompile(`^(not )?ok \d+ - (.*)$`)

// tapResults reads the top-level results of a TAP stream.
func tapResults(tap string) map[string]tapResult {
	results := make(map[string]tapResult)
	current := ""
	for scanner := bufio.NewScanner(strings.NewReader(tap)); scanner.Scan(); {
		line := scanner.Text()
		if m := tapLine.FindStringSubmatch(line); m != nil {
			current = m[2]
			results[current] = tapResult{ok: m[1] == ""}
		} else if r, ok := results[current]; ok && strings.HasPrefix(line, "  ") {
			r.detail += line + "\n"
			results[current] = r
		}
	}
	return results
}

func TestTapResults(t *testing.T) {
	got := tapResults("TAP version 13\n# Subtest: a\nok 1 - a\n  ---\n  duration_ms: 1\n  ...\nnot ok 2 - b\n  ---\n  error: boom\n  ...\n1..2\n# fail 1\n")
	if len(got) != 2 || !got["a"].ok || got["b"].ok || !strings.Contains(got["b"].detail, "boom") {
		t.Errorf("got %v", got)
	}
}
