// Package ui runs the tests of the management UI: a headless Chromium clicks through the pages of a real broker.
package ui

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/firemq/firemq/test/internal/brokertest"
)

func TestMain(m *testing.M) { os.Exit(brokertest.Main(m)) }

const limit = 5 * time.Minute

var failed = regexp.MustCompile(`(?m)^not ok`)

// TestUI runs ui.test.js against a broker, and against one whose disk is too full for its limit.
func TestUI(t *testing.T) {
	brokertest.Need(t, "/usr/bin/chromium")
	installed := brokertest.Need(t, "test", "ui", "node_modules", ".installed")
	broker := brokertest.Start(t, brokertest.Options{})
	alarmed := brokertest.Start(t, brokertest.Options{Data: t.TempDir(), Flags: []string{"--disk-free-limit", "900TB"}})

	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "--test", "--test-reporter=tap", "ui.test.js")
	cmd.Dir = filepath.Dir(filepath.Dir(installed))
	cmd.Env = append(os.Environ(), "FIREMQ_HTTP_URL="+broker.HTTPURL, "ALARMED_HTTP_URL="+alarmed.HTTPURL)
	out, err := cmd.CombinedOutput()
	if err != nil || failed.Match(out) {
		t.Fatalf("%v\n%s", err, out)
	}
}
