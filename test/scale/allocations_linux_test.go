package scale

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/firemq/firemq/test/internal/brokertest"
)

// TestNoAllocations: over the wire, from publisher to acknowledgement, a message costs the heap nothing. bench/profile
// counts that, which runs the broker in its own process.
func TestNoAllocations(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "run", "./bench/profile", "-firemq", brokertest.Binary(t), "-count", "200000", "-most", "0.05")
	cmd.Dir = brokertest.Root()
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(out), "allocations"); n != 4 {
		t.Fatalf("%d loads were counted", n)
	}
}
