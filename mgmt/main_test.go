package mgmt

import (
	"os"
	"testing"

	"github.com/firemq/firemq/internal/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m.Run)) }
