//go:build !race

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBesideBase is the gate with a generous bound, where nobody looks at figures: the broker may take three times
// the CPU per message that it took at the base, which is where this branch left main, or the commit before.
func TestBesideBase(t *testing.T) {
	git := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), "git", args...).Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
	head, base := git("rev-parse", "HEAD"), git("merge-base", "HEAD", "main")
	if base == head || base == "" {
		base = git("rev-parse", "--verify", "--quiet", "HEAD^")
	}
	if base == "" {
		t.Skip("this copy of the repository has no earlier commit")
	}
	dir := t.TempDir()
	for _, command := range []string{
		`mkdir "$DIR/source" "$DIR/raw" && git -C ../.. archive "$BASE" | tar -x -C "$DIR/source"`,
		`cd "$DIR/source" && go build -trimpath -o "$DIR/base" ./cmd/firemq`,
		`go build -trimpath -o "$DIR/firemq" ../../cmd/firemq`,
	} {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
		cmd.Env = append(os.Environ(), "DIR="+dir, "BASE="+base, "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	slower, err := slowerOnTheWire(t.Context(), settings{
		firemq: filepath.Join(dir, "firemq"), base: filepath.Join(dir, "base"), out: dir, seconds: 1, runs: 1, limit: 3,
	})
	if err != nil || len(slower) > 0 {
		t.Errorf("%v\nslower than %s: %q", err, base, slower)
	}
}
