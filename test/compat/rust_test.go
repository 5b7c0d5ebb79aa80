package compat

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/firemq/firemq/test/internal/brokertest"
)

// TestRust runs the tests of the Rust SDK, which "make deps" builds, and reports each of them.
func TestRust(t *testing.T) {
	t.Parallel()
	brokertest.Need(t, ".cache", "cargo", ".sdk")
	out, err := runEnv(t, suiteLimit, nil, "sdk/rust", program(t, "cargo"), "test", "--quiet", "--locked", "--offline",
		"--no-fail-fast", "--workspace", "--target-dir", cargoTarget(), "--", "--format=pretty")
	results(t, cargoResults(out), out, err)
}

var rustProgram = regexp.MustCompile("(?s)```rust\n(.*?)```\n\n```text\n(.*?)```")

// Every program of the SDK's page prints what the page says.
func TestRustPage(t *testing.T) {
	brokertest.Need(t, ".cache", "cargo", ".sdk")
	broker := brokertest.Shared(t)
	page, err := os.ReadFile(filepath.Join(brokertest.Root(), "docs", "sdk-rust.md"))
	if err != nil {
		t.Fatal(err)
	}
	programs := rustProgram.FindAllSubmatch(page, -1)
	if len(programs) != 4 {
		t.Fatalf("the page has %d programs with their output, want 4", len(programs))
	}
	// Profile and features of the workspace, so that only the programs are compiled.
	folder, sdk := t.TempDir(), filepath.Join(brokertest.Root(), "sdk", "rust")
	manifest := fmt.Sprintf(`[package]
name = "firemq-page"
version = "0.0.0"
edition = "2021"

[dependencies]
firemq-client = { path = %q }
tokio = { version = "1", features = ["macros", "rt-multi-thread"] }

[profile.dev]
debug = 0

[workspace]
`, filepath.ToSlash(sdk))
	lock, err := os.ReadFile(filepath.Join(sdk, "Cargo.lock"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(text []byte, name ...string) {
		file := filepath.Join(append([]string{folder}, name...)...)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write([]byte(manifest), "Cargo.toml")
	write(lock, "Cargo.lock")
	for i, p := range programs {
		write(p[1], "src", "bin", fmt.Sprintf("page-%d.rs", i+1))
	}
	out, err := runEnv(t, suiteLimit, nil, ".", program(t, "cargo"), "build", "--quiet", "--offline", "--bins",
		"--manifest-path", filepath.Join(folder, "Cargo.toml"), "--target-dir", cargoTarget())
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for i, p := range programs {
		t.Run(fmt.Sprint(i+1), func(t *testing.T) {
			name := filepath.Join(cargoTarget(), "debug", fmt.Sprintf("page-%d", i+1))
			out, err := runEnv(t, programLimit, []string{"FIREMQ_URL=" + broker.FireURL}, ".", name)
			if err != nil || out != string(p[2]) {
				t.Errorf("%v, printed\n%s\nwant\n%s", err, out, p[2])
			}
		})
	}
}
