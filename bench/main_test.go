package bench

import (
	"testing"

	"go.uber.org/goleak"
)

// A run leaves no goroutine behind, however it ends.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
