package crash

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/test/internal/brokertest"
)

// TestIdleMemory: a broker on an empty directory that has nothing to do is small, and stays so: what it
// gave back after the start would come back in the seconds that are watched, if it were in use.
func TestIdleMemory(t *testing.T) {
	b := brokertest.Start(t, brokertest.Options{Data: t.TempDir()})
	defer b.Stop(t)
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("resident memory is read from /proc: ", err)
	}
	const most = 14 << 10 // KiB
	brokertest.Eventually(t, 10*time.Second, "14 MiB resident at most", func() bool { return resident(t, b.Pid()) <= most })
	largest := 0
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range 40 {
		<-tick.C
		largest = max(largest, resident(t, b.Pid()))
	}
	t.Logf("%d KiB resident at most", largest)
	if largest > most {
		t.Errorf("%d KiB resident, want %d at most", largest, most)
	}
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
