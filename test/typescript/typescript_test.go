// Package typescript runs the tests of the TypeScript SDK, and plays the conformance scenarios with it: in
// Node.js over every transport, and in a headless Chromium.
//
// "make deps" builds the SDK and installs the browser. Without them the tests are skipped, or fail when
// FIREMQ_REQUIRE_CLIENTS is set, as "make test" does.
package typescript

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/firemq/firemq/conformance"
	"github.com/firemq/firemq/test/internal/brokertest"
)

func TestMain(m *testing.M) { os.Exit(brokertest.Main(m)) }

const (
	unitLimit        = 2 * time.Minute // the SDK's own tests
	conformanceLimit = 5 * time.Minute // all scenarios over one transport
)

// sdk is the folder of the SDK, which "make deps" has built.
func sdk(t *testing.T) string {
	t.Helper()
	return filepath.Dir(filepath.Dir(brokertest.Need(t, "sdk", "ts", "dist", ".built")))
}

func TestUnits(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), unitLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "--test", "--test-reporter=spec", "dist/test/")
	cmd.Dir = sdk(t)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("node --test: %v\n%s", err, out)
	}
}

// play plays all scenarios with a driver, a module of the SDK's.
func play(t *testing.T, driver, transport string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), conformanceLimit)
	defer cancel()
	var out bytes.Buffer
	result, err := conformance.Run(ctx, conformance.Options{
		Driver:     `exec node "` + filepath.Join(sdk(t), "dist", "conformance", driver) + `"`,
		Transports: []string{transport},
		Broker:     brokertest.Binary(t),
		Out:        &out,
	})
	if err != nil || result.Failed > 0 || result.Skipped > 0 || result.Passed == 0 {
		t.Fatalf("%s (%v)\n%s", result, err, &out)
	}
}

func TestConformance(t *testing.T) {
	for _, transport := range conformance.Transports {
		t.Run(transport, func(t *testing.T) { play(t, "node.js", transport) })
	}
}

func TestConformanceChromium(t *testing.T) {
	brokertest.Need(t, "/usr/bin/chromium")
	play(t, "chromium.js", "ws")
}
