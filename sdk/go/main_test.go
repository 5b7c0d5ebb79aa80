package fire

import (
	"testing"

	"go.uber.org/goleak"
)

// What runs already when the tests begin is of gnet, for good.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m, goleak.IgnoreCurrent()) }
