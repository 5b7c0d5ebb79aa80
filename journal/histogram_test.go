package journal

import (
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/internal/vfs"
)

func TestHistogram(t *testing.T) {
	bounds := []int64{1, 4, 16}
	var h histogram
	for _, v := range []int64{0, 1, 2, 4, 5, 16, 17, 1 << 40} {
		observe(&h, bounds, v)
	}
	got := h.read()
	want := Histogram{Sum: 45 + 1<<40}
	want.Counts[0], want.Counts[1], want.Counts[2], want.Counts[maxBounds] = 2, 2, 2, 2
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestCommitsAreMeasured: each commit counts once with what was in it.
func TestCommitsAreMeasured(t *testing.T) {
	for _, noSync := range []bool{false, true} {
		j, _ := mustOpen(t, Options{FS: vfs.NewMem(), SegmentBytes: 1 << 20, NoSync: noSync, manual: true})
		for range 3 {
			for range 20 {
				publish(j, strings.Repeat("x", 1000), Target{Queue: 1, Seq: 1})
			}
			j.step(false)
		}
		publish(j, "one", Target{Queue: 1, Seq: 1})
		j.step(false)

		s := j.Stats()
		check := func(what string, h Histogram, bucket int, in, commits, sum int64) {
			t.Helper()
			total := int64(0)
			for _, n := range h.Counts {
				total += n
			}
			if total != commits || h.Sum != sum || bucket >= 0 && h.Counts[bucket] != in {
				t.Errorf("%s: %+v, want %d in all, %d in bucket %d, sum %d", what, h, commits, in, bucket, sum)
			}
		}
		check("records", s.CommitRecords, 3, 3, 4, 61) // 17 to 64
		check("bytes", s.CommitBytes, 4, 3, 4, s.Appended)
		check("time", s.CommitTime, -1, 0, 4, s.CommitTime.Sum)
		syncs := int64(4)
		if noSync {
			syncs = 0
		}
		check("syncs", s.SyncTime, -1, 0, syncs, s.SyncTime.Sum)
		if s.CommitTime.Sum <= 0 || s.CommitTime.Sum < s.SyncTime.Sum || time.Duration(s.SyncTime.Sum) < s.LastSync {
			t.Errorf("commits took %d ns, syncs %d ns, the last one %v", s.CommitTime.Sum, s.SyncTime.Sum, s.LastSync)
		}
	}
}
