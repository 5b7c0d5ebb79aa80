package crash

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/test/internal/brokertest"
)

// TestIdleMemory: a broker on an empty directory that has nothing to do is small.
func TestIdleMemory(t *testing.T) {
	b := brokertest.Start(t, brokertest.Options{Data: t.TempDir()})
	defer b.Stop(t)
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("resident memory is read from /proc: ", err)
	}
	kib := 0
	brokertest.Eventually(t, 10*time.Second, "14 MiB resident at most", func() bool {
		kib = resident(t, b.Pid())
		return kib <= 14<<10
	})
	t.Logf("%d KiB resident", kib)
}

// resident is a process's resident memory in KiB.
func resident(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmRSS:" {
			kib, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return kib
		}
	}
	t.Fatalf("no VmRSS in %q", status)
	return 0
}
