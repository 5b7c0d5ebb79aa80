package compat

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/firemq/firemq/test/internal/brokertest"
)

var cratesFlag = flag.Bool("crates", false, "run TestCrates, too: cargo builds for minutes of CPU time")

// cratesLimit is how long cargo may take to build a crate, or to run its tests.
const cratesLimit = 40 * time.Minute

// crates are RabbitMQ's management tools with their integration tests, of the versions in crates/Cargo.toml.
var crates = []struct {
	name   string
	args   []string // for cargo
	passed int      // how many of the tests FireMQ passes; docs/http-api.md has the numbers, too
}{
	{"rabbitmq_http_client", []string{"--all-features"}, 208},
	{"rabbitmqadmin", nil, 210},
}

// TestCrates runs the integration tests that RabbitMQ's own management tools come with, but for those that
// crates/skip.txt lists with the reason.
func TestCrates(t *testing.T) {
	if !*cratesFlag {
		t.Skip("takes minutes: make compat runs it")
	}
	cargo := program(t, "cargo")
	manifests := fetchCrates(t, cargo)
	for _, c := range crates {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"test", "--locked", "--manifest-path", manifests[c.name], "--target-dir", cargoTarget(), "--test", "integration"}, c.args...)
			// The tests are built once and have no use for symbols.
			env := []string{"CARGO_PROFILE_DEV_DEBUG=0", "CARGO_PROFILE_TEST_DEBUG=0", "CARGO_INCREMENTAL=0"}
			if out, err := runEnv(t, cratesLimit, env, ".", cargo, append(slices.Clip(args), "--no-run")...); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			args = append(args, "--offline", "--no-fail-fast", "--")
			list, err := runEnv(t, cratesLimit, env, ".", cargo, append(slices.Clip(args), "--list", "--format=terse")...)
			if err != nil {
				t.Fatalf("%v\n%s", err, list)
			}
			isolate(t)
			// What the tools' own setup makes: the users and vhosts, and a name of the cluster that they know as RabbitMQ's.
			b := brokertest.Start(t, brokertest.Options{Flags: []string{
				"--amqp", "127.0.0.1:5672", "--http", "127.0.0.1:15672",
				"--import", filepath.Join(brokertest.Root(), "test", "compat", "crates", "definitions.json"),
			}})
			args = append(args, "--exact", "--format=pretty", "--test-threads=1") // they change what others look at
			for _, name := range skips(t, c.name, list) {
				args = append(args, "--skip", name)
			}
			out, err := runEnv(t, cratesLimit, append(env, "TEST_STATS_DELAY=10"), ".", cargo, args...)
			all := cargoResults(out)
			results(t, all, out, err)
			passed := 0
			for _, r := range all {
				if !r.failed && r.skip == "" {
					passed++
				}
			}
			if passed != c.passed {
				t.Errorf("%d tests passed, want %d: correct the number here and in docs/http-api.md", passed, c.passed)
			}
			if t.Failed() {
				t.Log(b.Output())
			}
		})
	}
}

// fetchCrates has cargo fetch the sources and gives the manifest of each crate.
func fetchCrates(t *testing.T, cargo string) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), cargo, "metadata", "--locked", "--format-version=1", "--manifest-path",
		filepath.Join(brokertest.Root(), "test", "compat", "crates", "Cargo.toml"))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var found struct {
		Packages []struct {
			ID, Name string
			Manifest string `json:"manifest_path"`
		}
		Resolve struct {
			Root  string
			Nodes []struct {
				ID   string
				Deps []struct{ Pkg string }
			}
		}
	}
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatal(err)
	}
	manifests := make(map[string]string)
	for _, n := range found.Resolve.Nodes {
		if n.ID != found.Resolve.Root {
			continue
		}
		for _, p := range found.Packages {
			for _, d := range n.Deps {
				if d.Pkg == p.ID {
					manifests[p.Name] = p.Manifest
				}
			}
		}
	}
	return manifests
}

// isolate moves the test, and the programs that it starts, into a network of their own, since the ports in the suites
// are fixed. Only root can; for others the ports of the machine must be free.
func isolate(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // until the thread ends with the test
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		t.Logf("no network of its own (%v): ports 5672 and 15672 of this machine must be free", err)
		return
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("ip: %v\n%s", err, out)
	}
}

// skips gives the tests that crates/skip.txt leaves out, all of which must be in cargo's list.
func skips(t *testing.T, crate, list string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(brokertest.Root(), "test", "compat", "crates", "skip.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		of, pattern, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || of != crate {
			continue
		}
		matching := regexp.MustCompile(`(?m)^(`+pattern+`): test$`).FindAllStringSubmatch(list, -1)
		if len(matching) == 0 {
			t.Errorf("skip.txt: no test of %s is %s", crate, pattern)
		}
		for _, m := range matching {
			names = append(names, m[1])
		}
	}
	return names
}
