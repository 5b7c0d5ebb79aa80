package journal

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firemq/firemq/internal/vfs"
)

// TestNothingIsCommittedAfterAnError fails the first, second, ... write, sync and creation.
func TestNothingIsCommittedAfterAnError(t *testing.T) {
	cases := []struct {
		name string
		kind vfs.Kind
		err  error
	}{
		{"write EIO", vfs.OpWrite, syscall.EIO},
		{"short write", vfs.OpWrite, &vfs.Short{N: 100, Err: syscall.EIO}},
		{"sync EIO", vfs.OpSync, syscall.EIO},
		{"sync ENOSPC", vfs.OpSync, syscall.ENOSPC}, // what was written may be lost: no second try
		{"create EROFS", vfs.OpCreate, syscall.EROFS},
		{"rename EIO", vfs.OpRename, syscall.EIO},
		{"sync folder EIO", vfs.OpSyncDir, syscall.EIO},
	}
	for _, c := range cases {
		for nth := int64(1); nth <= 3; nth++ {
			if (c.kind == vfs.OpCreate || c.kind == vfs.OpRename || c.kind == vfs.OpSyncDir) && nth > 1 {
				continue // the later ones may be the keeper's, which tries again
			}
			if c.err == syscall.ENOSPC && nth == 1 {
				continue // a header's sync is tried again with the whole file
			}
			t.Run(fmt.Sprintf("%s %d", c.name, nth), func(t *testing.T) {
				mem := vfs.NewMem()
				var fatal atomic.Int64
				o := Options{FS: &vfs.Faults{FS: mem, Check: vfs.Fail(c.kind, nth, c.err)}, NoSync: false,
					OnFatal: func(error) { fatal.Add(1) }, SegmentBytes: 1 << 20, manual: true}
				j, _ := mustOpen(t, o)
				var all []entry
				var failed error
				for i := range 5 {
					all = append(all, publish(j, fmt.Sprint(i), Target{1, uint64(i + 1), 0}))
					j.step(false)
					if failed = j.Sync(all[i].pos); failed != nil {
						break
					}
				}
				if !errors.Is(failed, errors.Unwrap(c.err)) && !errors.Is(failed, c.err) {
					t.Fatalf("Sync gave %v, want %v", failed, c.err)
				}
				safe, pending := j.Committed(), j.Pending()
				for range 3 {
					e := publish(j, "lost", Target{1, 100, 0})
					settle(j, 1, 100, 100)
					topology(j, "lost")
					j.Free(e.pos, 1, 1)
					if j.step(false) || j.Committed() != safe || e.pos < safe || j.Pending() != pending {
						t.Fatalf("after the error: committed %d, was %d; appended at %d; pending %d, was %d", j.Committed(), safe, e.pos, j.Pending(), pending)
					}
				}
				if err := j.Close(); !errors.Is(err, errors.Unwrap(c.err)) && !errors.Is(err, c.err) {
					t.Fatalf("Close gave %v", err)
				}
				if fatal.Load() != 1 || !j.Stats().Failed {
					t.Fatalf("OnFatal was called %d times", fatal.Load())
				}
				for seed := range uint64(5) {
					o.FS = mem.Crash(seed)
					_, r := mustOpen(t, o)
					if len(r.got) < len(all)-1 || !slices.EqualFunc(r.got, all[:len(r.got)], same) {
						t.Fatalf("recovered %v of %v", r.got, all)
					}
				}
			})
		}
	}
}

// TestFullDisk fills the disk while publishing and makes room again.
func TestFullDisk(t *testing.T) {
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE} {
		t.Run(full.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var on atomic.Bool
				stalls := make(chan error, 10)
				mem := vfs.NewMem()
				disk := &vfs.Faults{FS: mem, Check: func(o vfs.Op) error {
					switch {
					case !on.Load():
					case full == syscall.EMFILE && (o.Kind == vfs.OpCreate || o.Kind == vfs.OpOpen):
						return full
					case full != syscall.EMFILE && o.Kind == vfs.OpWrite:
						return &vfs.Short{N: o.Len / 2, Err: full}
					}
					return nil
				}}
				o := Options{FS: disk, SegmentBytes: 16 << 10, OnStall: func(err error) { stalls <- err },
					OnFatal: func(err error) { t.Error(err) }}
				j, _ := mustOpen(t, o)
				all := []entry{publish(j, "before", Target{1, 1, 0})}
				if err := j.Sync(all[0].pos); err != nil {
					t.Fatal(err)
				}
				on.Store(true)
				for i := range 30 {
					all = append(all, publish(j, strings.Repeat("x", 1500), Target{1, uint64(i + 2), 0}))
				}
				if err := <-stalls; !errors.Is(err, full) {
					t.Fatalf("stalled with %v", err)
				}
				safe := j.Committed()
				<-time.After(10 * stallRetry) // the bubble's clock
				if j.Committed() != safe || j.Pending() == 0 || !j.Stats().Stalled {
					t.Fatalf("committed %d, was %d; %d bytes pending", j.Committed(), safe, j.Pending())
				}
				all = append(all, publish(j, "meanwhile", Target{1, 100, 0}))
				on.Store(false)
				if err := <-stalls; err != nil {
					t.Fatalf("goes on with %v", err)
				}
				if err := j.Sync(all[len(all)-1].pos); err != nil {
					t.Fatal(err)
				}
				if j.Pending() != 0 || j.Stats().Stalled {
					t.Fatalf("%d bytes pending after the stall", j.Pending())
				}
				mustClose(t, j)
				_, r := mustOpen(t, o)
				r.expect(t, all)
			})
		})
	}
}

func TestCloseWhileTheDiskIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := &vfs.Space{}
		space.Add(40 << 10)
		mem := vfs.NewMem()
		stalled := make(chan error, 1)
		o := Options{FS: &vfs.Faults{FS: mem, Check: space.Check}, SegmentBytes: 16 << 10, OnStall: func(err error) { stalled <- err },
			OnFatal: func(err error) { t.Error("a stall became fatal:", err) }}
		j, _ := mustOpen(t, o)
		var all []entry
		for i := range 100 {
			all = append(all, publish(j, strings.Repeat("x", 1000), Target{1, uint64(i + 1), 0}))
		}
		<-stalled
		safe := j.Committed()
		if err := j.Close(); !errors.Is(err, errStalled) {
			t.Fatalf("Close gave %v", err)
		}
		if err := j.Sync(all[99].pos); err == nil {
			t.Fatal("the last record is said to be safe")
		}
		o.FS = mem.Crash(1)
		_, r := mustOpen(t, o)
		n := 0
		for n < len(all) && all[n].pos < safe {
			n++
		}
		if len(r.got) < n || !slices.EqualFunc(r.got, all[:len(r.got)], same) {
			t.Fatalf("%d of %d committed records came back", len(r.got), n)
		}
	})
}

// TestCloseWhenThereIsRoomAgain: the close does not wait for the next try, and makes it.
func TestCloseWhenThereIsRoomAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := &vfs.Space{}
		space.Add(40 << 10)
		stalled := make(chan error, 2)
		o := Options{FS: &vfs.Faults{FS: vfs.NewMem(), Check: space.Check}, SegmentBytes: 16 << 10, OnStall: func(err error) { stalled <- err },
			OnFatal: func(err error) { t.Error("a stall became fatal:", err) }}
		j, _ := mustOpen(t, o)
		var all []entry
		for i := range 100 {
			all = append(all, publish(j, strings.Repeat("x", 1000), Target{1, uint64(i + 1), 0}))
		}
		<-stalled
		space.Add(1 << 30)
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if _, r := mustOpen(t, o); !slices.EqualFunc(r.got, all, same) {
			t.Fatalf("%d of %d records came back", len(r.got), len(all))
		}
	})
}

// TestKeeperErrors: what the keeper cannot do costs speed or room, never a record.
func TestKeeperErrors(t *testing.T) {
	mem := vfs.NewMem()
	fails := map[vfs.Kind]int{}
	sick := false
	o := Options{FS: &vfs.Faults{FS: mem, Check: func(op vfs.Op) error {
		if sick && op.Changes() {
			fails[op.Kind]++
			return syscall.EIO
		}
		return nil
	}}, SegmentBytes: 8 << 10, manual: true}
	j, _ := mustOpen(t, o)
	var all []entry
	for i := range uint64(60) {
		all = append(all, publish(j, strings.Repeat("y", 500), Target{1, i + 1, 0}))
		j.step(false)
		sick = true
		j.keepOnce()
		sick = false
		settle(j, 1, i+1, i+1)
		j.Free(all[i].pos, 1, 1)
	}
	if fails[vfs.OpCreate] == 0 || fails[vfs.OpRename]+fails[vfs.OpRemove] == 0 {
		t.Fatalf("the keeper met no error: %v", fails)
	}
	before := j.Stats()
	if before.Segments < 4 {
		t.Fatalf("%d segments although none could be freed", before.Segments)
	}
	j.step(false)
	j.keepOnce()
	if s := j.Stats(); s.Segments != 1 || s.Spare > 1 {
		t.Fatalf("%d segments and %d spare when the disk is well again", s.Segments, s.Spare)
	}
}

// TestHurry: after it nobody waits for a disk that has no room, and everybody still does for one that has.
func TestHurry(t *testing.T) {
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprint("before the disk is full ", early), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var full atomic.Bool
				stalled := make(chan error, 2)
				o := Options{FS: &vfs.Faults{FS: vfs.NewMem(), Check: func(o vfs.Op) error {
					if full.Load() && o.Kind == vfs.OpWrite && strings.HasSuffix(o.Name, segmentSuffix) {
						return syscall.ENOSPC
					}
					return nil
				}}, SegmentBytes: 16 << 10, OnStall: func(err error) { stalled <- err }, OnFatal: func(err error) { t.Error(err) }}
				j, _ := mustOpen(t, o)
				if early {
					j.Hurry()
				}
				full.Store(true)
				e := publish(j, "a", Target{1, 1, 0})
				ended := make(chan error, 2)
				go func() { ended <- j.Sync(e.pos) }()
				go func() { ended <- j.BeginCheckpoint().Save(func(io.Writer) error { return nil }) }()
				if <-stalled; !early {
					synctest.Wait()
					if len(ended) > 0 {
						t.Fatal("it did not wait: ", <-ended)
					}
					j.Hurry()
				}
				for range cap(ended) {
					if err := <-ended; !errors.Is(err, errNoRoom) {
						t.Errorf("ended with %v", err)
					}
				}
				full.Store(false)
				<-stalled
				if err := j.Sync(publish(j, "b", Target{1, 2, 0}).pos); err != nil {
					t.Errorf("there is room: %v", err)
				}
				mustClose(t, j)
			})
		})
	}
}
