package compat

import (
	"bufio"
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/firemq/firemq/test/internal/brokertest"
)

// A suite is run by its language's own runner, against a broker of its own, beside other suites. It finds
// the broker in AMQP_URL, and in BROKER_CONTROL what restarts it (see brokertest.Target). Each of its tests
// is reported as a subtest.

func TestPika(t *testing.T)    { pytest(t, "python") }
func TestAioPika(t *testing.T) { pytest(t, "aiopika") }
func TestCelery(t *testing.T)  { pytest(t, "celery") }

// beside lets suites run beside each other, unless AMQP_URL gives them all the same broker.
func beside(t *testing.T) {
	if os.Getenv("AMQP_URL") == "" {
		t.Parallel()
	}
}

func pytest(t *testing.T, folder string) {
	beside(t)
	report := filepath.Join(t.TempDir(), "report.xml")
	out, err := suite(t, folder, python(t), "-m", "pytest", "-q", "--tb=short", "--show-capture=no", "-o", "junit_family=xunit1", "--junitxml="+report)
	results(t, readJUnit(t, report), out, err)
}

func TestAmqplib(t *testing.T) {
	beside(t)
	out, err := suite(t, "node", node(t, "test", "compat", "node"), "--test", "--test-reporter=tap")
	results(t, tapResults(out), out, err)
}

func TestJava(t *testing.T) {
	beside(t)
	brokertest.Need(t, ".cache", "java", ".installed")
	reports := t.TempDir()
	out, err := suite(t, "java", program(t, "mvn"), "-q", "-B", "-Dreports="+reports, "test")
	files, globErr := filepath.Glob(filepath.Join(reports, "TEST-*.xml"))
	if globErr != nil {
		t.Fatal(globErr)
	}
	results(t, readJUnit(t, files...), out, err)
}

func TestLapin(t *testing.T) {
	beside(t)
	brokertest.Need(t, ".cache", "cargo", ".installed")
	out, err := suite(t, "lapin", program(t, "cargo"), "test", "--quiet", "--locked", "--offline", "--no-fail-fast",
		"--target-dir", cargoTarget(), "--", "--format=pretty")
	results(t, cargoResults(out), out, err)
}

// cargoTarget is where "make deps" builds what is written in Rust.
func cargoTarget() string { return filepath.Join(brokertest.Root(), ".cache", "cargo") }

func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// suite runs the tests in a folder beside this file to their end.
func suite(t *testing.T, folder, name string, args ...string) (string, error) {
	t.Helper()
	target := brokertest.NewTarget(t)
	env := []string{"AMQP_URL=" + target.URL, "BROKER_CONTROL=" + target.Serve(t)}
	return runEnv(t, suiteLimit, env, "test/compat/"+folder, name, args...)
}

// result is how one test of a suite ended.
type result struct {
	name   string
	failed bool
	detail string
	skip   string // why it was skipped
}

// results reports each result as a subtest. A suite that says that it failed, or that ran nothing, has failed.
func results(t *testing.T, all []result, out string, err error) {
	t.Helper()
	for _, r := range all {
		t.Run(r.name, func(t *testing.T) {
			switch {
			case r.failed:
				t.Error(r.detail)
			case r.skip != "":
				t.Skip(r.skip)
			}
		})
	}
	if len(all) == 0 || err != nil && !t.Failed() {
		t.Errorf("%d tests, error %v\n%s", len(all), err, out)
	}
}

// readJUnit reads reports in JUnit's XML format; what isn't there has no results.
func readJUnit(t *testing.T, files ...string) []result {
	t.Helper()
	type testcase struct {
		Class   string  `xml:"classname,attr"`
		Name    string  `xml:"name,attr"`
		Failure *string `xml:"failure"`
		Error   *string `xml:"error"`
		Skipped *struct {
			Message string `xml:"message,attr"`
		} `xml:"skipped"`
	}
	var all []result
	for _, file := range files {
		data, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue
		}
		var report struct {
			Cases  []testcase `xml:"testcase"`           // of a testsuite
			Suites []testcase `xml:"testsuite>testcase"` // of testsuites
		}
		if err == nil {
			err = xml.Unmarshal(data, &report)
		}
		if err != nil {
			t.Fatalf("report %s: %v", file, err)
		}
		for _, c := range append(report.Cases, report.Suites...) {
			r := result{name: c.Class + "/" + c.Name}
			for _, detail := range []*string{c.Failure, c.Error} {
				if detail != nil {
					r.failed, r.detail = true, *detail
				}
			}
			if c.Skipped != nil {
				r.skip = "skipped: " + c.Skipped.Message
			}
			all = append(all, r)
		}
	}
	return all
}

var tapLine = regexp.MustCompile(`^(not )?ok \d+ - (.*?)(?: # SKIP ?(.*))?$`)

// tapResults reads the top-level results of a TAP stream.
func tapResults(tap string) []result {
	var all []result
	for scanner := bufio.NewScanner(strings.NewReader(tap)); scanner.Scan(); {
		line := scanner.Text()
		if m := tapLine.FindStringSubmatch(line); m != nil {
			r := result{name: m[2], failed: m[1] != ""}
			if strings.Contains(line, " # SKIP") {
				r.skip = "skipped: " + m[3]
			}
			all = append(all, r)
		} else if len(all) > 0 && strings.HasPrefix(line, "  ") {
			all[len(all)-1].detail += line + "\n"
		}
	}
	return all
}

func TestTapResults(t *testing.T) {
	got := tapResults("TAP version 13\n# Subtest: a\nok 1 - a\n  ---\n  duration_ms: 1\n  ...\nnot ok 2 - b\n  ---\n  error: boom\n  ...\nok 3 - c # SKIP no\n1..3\n# fail 1\n")
	if len(got) != 3 || got[0].name != "a" || got[0].failed || !got[1].failed || !strings.Contains(got[1].detail, "boom") || got[2].name != "c" || got[2].skip != "skipped: no" {
		t.Errorf("got %v", got)
	}
}

var (
	cargoLine   = regexp.MustCompile(`^test (\S+) \.\.\. (ok|FAILED|ignored)`)
	cargoDetail = regexp.MustCompile(`^---- (\S+) stdout ----$`)
)

// cargoResults reads what the test runner of cargo prints.
func cargoResults(out string) []result {
	var all []result
	var detail *string
	for scanner := bufio.NewScanner(strings.NewReader(out)); scanner.Scan(); {
		line := scanner.Text()
		if m := cargoLine.FindStringSubmatch(line); m != nil {
			r := result{name: m[1], failed: m[2] == "FAILED"}
			if m[2] == "ignored" {
				r.skip = "ignored"
			}
			all = append(all, r)
		} else if m := cargoDetail.FindStringSubmatch(line); m != nil {
			for i := range all {
				if all[i].name == m[1] {
					detail = &all[i].detail
				}
			}
		} else if detail != nil {
			*detail += line + "\n"
		}
	}
	return all
}

func TestCargoResults(t *testing.T) {
	got := cargoResults("\nrunning 2 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\nthread 'b' panicked: boom\n\ntest result: FAILED.\n")
	if len(got) != 2 || got[0].name != "a" || got[0].failed || !got[1].failed || !strings.Contains(got[1].detail, "boom") {
		t.Errorf("got %v", got)
	}
}
