package crash

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/test/internal/brokertest"
)

// TestIdleMemory: a broker on an empty directory that has nothing to do is small, and stays so: what it gave back
// after the start would come back in the seconds that are watched, if it were in use. Among them is a sample of the
// management's rates, one in 5 seconds.
func TestIdleMemory(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("resident memory is read from /proc: ", err)
	}
	b := brokertest.Start(t, brokertest.Options{Data: t.TempDir()})
	defer b.Stop(t)
	const most, watched = 10 << 10, 6 * time.Second // KiB
	last, largest, since := 0, 0, time.Now()
	defer func() { t.Logf("%d KiB resident, %d at most since it was as small", last, largest) }()
	brokertest.Eventually(t, 10*watched, "10 MiB resident at most for 6 seconds", func() bool {
		last = resident(t, b.Pid())
		if largest = max(largest, last); last > most {
			largest, since = 0, time.Now()
		}
		return time.Since(since) >= watched
	})
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
