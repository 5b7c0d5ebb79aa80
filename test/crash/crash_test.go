// Package crash treats the firemq binary badly: kill -9 while it confirms, input that no client
// sends, starts that can't succeed. What it promised must hold all the same.
package crash

import (
	"os"
	"testing"

	"github.com/firemq/firemq/test/internal/brokertest"
)

func TestMain(m *testing.M) { os.Exit(brokertest.Main(m.Run)) }
