package compat

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/firemq/firemq/test/internal/brokertest"
)

// TestTypeScript runs the tests of the TypeScript SDK, which "make deps" builds, and reports each of them.
func TestTypeScript(t *testing.T) {
	t.Parallel()
	built := brokertest.Need(t, "sdk", "ts", "dist", ".built")
	tests, err := filepath.Glob(filepath.Join(filepath.Dir(built), "test", "*.test.js"))
	if err != nil || len(tests) == 0 {
		t.Fatalf("the SDK has no tests (%v)", err)
	}
	args := append([]string{"--test", "--test-reporter=tap"}, tests...)
	out, err := runEnv(t, suiteLimit, nil, "sdk/ts", "node", args...)
	results(t, tapResults(out), out, err)
}

var pageProgram = regexp.MustCompile("(?ms)^```ts\n(.*?)^```$")

// Every program of the SDK's page runs as it is printed.
func TestTypeScriptPage(t *testing.T) {
	broker := brokertest.Shared(t)
	// Where the client is found, and git does not look.
	folder, err := os.MkdirTemp(filepath.Dir(brokertest.Need(t, "examples", "typescript", "dist", ".built")), "page-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	page, err := os.ReadFile(filepath.Join(brokertest.Root(), "docs", "sdk-typescript.md"))
	if err != nil {
		t.Fatal(err)
	}
	programs := pageProgram.FindAllSubmatch(page, -1)
	want := []string{"order { id: 1 }\n", "10000 confirmed\n", "done task 1\ndone task 2\ndone task 3\ndone task 4\n", ""}
	if len(programs) != len(want) {
		t.Fatalf("the page has %d programs, want %d", len(programs), len(want))
	}
	for i, p := range programs {
		file := filepath.Join(folder, fmt.Sprintf("%d.mjs", i))
		if err := os.WriteFile(file, p[1], 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := runEnv(t, programLimit, []string{"FIREMQ_URL=" + broker.FireURL}, ".", "node", file); err != nil || out != want[i] {
			t.Errorf("program %d: %v, printed\n%s\nwant\n%s", i+1, err, out, want[i])
		}
	}
}
