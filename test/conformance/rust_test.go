package conformance

import (
	"path/filepath"
	"testing"

	"github.com/firemq/firemq/test/internal/brokertest"
)

func TestRust(t *testing.T) {
	built := brokertest.Need(t, ".cache", "cargo", ".sdk")
	suite(t, `exec "`+filepath.Join(filepath.Dir(built), "debug", "firemq-conformance-driver")+`"`, "fire,fires,ws,wss")
}
