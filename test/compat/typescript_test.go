package compat

import (
	"path/filepath"
	"testing"

	"github.com/firemq/firemq/test/internal/brokertest"
)

// TestTypeScript runs the tests of the TypeScript SDK, which "make deps" builds, and reports each of them.
func TestTypeScript(t *testing.T) {
	built := brokertest.Need(t, "sdk", "ts", "dist", ".built")
	tests, err := filepath.Glob(filepath.Join(filepath.Dir(built), "test", "*.test.js"))
	if err != nil || len(tests) == 0 {
		t.Fatalf("the SDK has no tests (%v)", err)
	}
	nodeTests(t, "sdk/ts", "node", tests...)
}
