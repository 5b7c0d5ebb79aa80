package conformance

import (
	"path/filepath"
	"testing"

	"github.com/firemq/firemq/test/internal/brokertest"
)

// typeScript is the command of a driver of the TypeScript SDK, which "make deps" builds.
func typeScript(t *testing.T, driver string) string {
	t.Helper()
	built := brokertest.Need(t, "sdk", "ts", "dist", ".built")
	return `exec node "` + filepath.Join(filepath.Dir(built), "conformance", driver) + `"`
}

func TestTypeScript(t *testing.T) {
	suite(t, typeScript(t, "node.js"), "fire,fires,ws,wss")
}

// In a page of a headless browser.
func TestTypeScriptInChromium(t *testing.T) {
	brokertest.Need(t, "/usr/bin/chromium")
	suite(t, typeScript(t, "chromium.js"), "ws")
}
