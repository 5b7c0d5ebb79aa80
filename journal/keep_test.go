package journal

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/firemq/firemq/internal/vfs"
)

// TestSegmentsAreRecycled runs a queue that is always drained through many segments: two files
// and a spare are enough, and what they held before never comes back.
func TestSegmentsAreRecycled(t *testing.T) {
	mem := vfs.NewMem()
	renames, creates := 0, 0
	o := Options{FS: &vfs.Faults{FS: mem, Check: func(op vfs.Op) error {
		switch op.Kind {
		case vfs.OpRename:
			renames++
		case vfs.OpCreate:
			creates++
		}
		return nil
	}}, SegmentBytes: 16 << 10, manual: true}
	j, _ := mustOpen(t, o)
	for i := range uint64(2000) {
		e := publish(j, strings.Repeat("r", 400), Target{1, i + 1, 0})
		j.step(false)
		settle(j, 1, i+1, i+1)
		j.Free(e.pos, 1, 1)
		j.keepOnce()
		if s := j.Stats(); s.Segments > 3 || s.Spare > 1 {
			t.Fatalf("after %d messages: %+v", i, s)
		}
		j.log.Load().each(func(g *segment) {
			if g.sealed && g.base+uint64(g.end) <= j.Committed() && g.f != nil {
				t.Fatalf("segment %d is still open for writing", g.number)
			}
		})
		if names, _ := mem.List("journal"); len(names) > 5 {
			t.Fatalf("after %d messages: %v", i, names)
		}
	}
	if s := j.Stats(); s.Appended < 40*o.SegmentBytes {
		t.Fatalf("only %d bytes were appended", s.Appended)
	}
	if creates > 6 {
		t.Fatalf("%d files were created: they are not recycled", creates)
	}
	for seed := range uint64(20) {
		o.FS = mem.Crash(seed)
		_, r := mustOpen(t, o)
		if len(r.damage) > 0 {
			t.Fatal(r.damage)
		}
		for _, e := range r.got {
			if e.kind == kindPublish && e.targets[0].Seq < 1900 {
				t.Fatalf("%v is back", e)
			}
		}
	}
}

// TestCommitsGoOnBesideTheKeeper: while it waits for the disk with a segment that it frees, the writer commits to the
// one that it has open.
func TestCommitsGoOnBesideTheKeeper(t *testing.T) {
	waits, proceed := make(chan struct{}), make(chan struct{})
	var held atomic.Bool
	o := Options{FS: &vfs.Faults{FS: vfs.NewMem(), Check: func(op vfs.Op) error {
		if op.Kind == vfs.OpSyncDir && held.Load() {
			waits <- struct{}{}
			<-proceed
		}
		return nil
	}}, SegmentBytes: 8 << 10, manual: true}
	j, _ := mustOpen(t, o)
	first := publish(j, strings.Repeat("1", 3000), Target{1, 1, 0})
	second := publish(j, strings.Repeat("2", 3000), Target{1, 2, 0})
	publish(j, strings.Repeat("3", 3000), Target{1, 3, 0}) // the next segment
	settle(j, 1, 1, 2)
	j.step(false)
	j.Free(first.pos, 1, 1)
	j.Free(second.pos, 1, 1)
	held.Store(true)
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		j.keepOnce()
	}()
	<-waits
	held.Store(false)
	e := publish(j, "4", Target{1, 4, 0})
	committed := make(chan struct{})
	go func() {
		defer close(committed)
		j.step(false)
	}()
	select {
	case <-committed:
	case <-time.After(20 * time.Second):
		t.Error("the commit waits for the keeper")
	}
	close(proceed)
	<-kept
	<-committed
	if j.Committed() <= e.pos {
		t.Errorf("committed up to %d, not %d", j.Committed(), e.pos)
	}
}

// TestOldestSegmentWaits: for its targets, for the floor, for the commit of what settled it, for a checkpoint.
func TestOldestSegmentWaits(t *testing.T) {
	j, _ := mustOpen(t, Options{FS: vfs.NewMem(), SegmentBytes: 8 << 10, manual: true})
	top := topology(j, "declare")
	first := publish(j, strings.Repeat("1", 3000), Target{1, 1, 0}, Target{2, 1, 0})
	publish(j, strings.Repeat("2", 3000), Target{1, 2, 0}) // the next segment
	j.step(false)
	held := func(why string) {
		t.Helper()
		j.keepOnce()
		if n := j.log.Load().oldest().number; n != 1 {
			t.Fatalf("segment %d is the oldest: %s", n, why)
		}
	}
	held("it has live targets")
	settle(j, 1, 1, 1)
	j.Free(first.pos, 1, 1)
	j.step(false)
	held("one target is live")
	settle(j, 2, 1, 1)
	j.Free(first.pos, 1, 1)
	held("the floor is below its topology record")
	j.Floor(top.pos)
	held("the floor is at its topology record")
	j.Floor(top.pos + 8)
	held("the settle is not committed")
	j.step(false)
	j.Keep(first.pos)
	held("what is kept is in no checkpoint")
	if !j.Kept() {
		t.Fatal("a checkpoint is said to free nothing")
	}
	j.covered.Store(first.pos)
	held("the checkpoint was begun before it")
	j.covered.Store(first.pos + 8)
	if j.Kept() {
		t.Fatal("a checkpoint is said to free what needs none")
	}
	j.keepOnce()
	if n := j.log.Load().oldest().number; n != 2 {
		t.Fatalf("segment %d is the oldest: nothing holds the first", n)
	}
	if err := j.Read(first.pos, nil); err == nil {
		t.Fatal("a freed record can be read")
	}
	j.Free(first.pos, 1, 1) // harmless: the segment is gone
}

func TestFreeingTooMuchPanics(t *testing.T) {
	j, _ := mustOpen(t, Options{FS: vfs.NewMem(), manual: true})
	e := publish(j, "x", Target{1, 1, 0})
	defer func() {
		if recover() == nil {
			t.Fatal("no panic")
		}
	}()
	j.Free(e.pos, 2, 2)
}

// TestGrowingSegmentEndsEarly: the first segment of a folder grows with each commit until its
// successor is filled with zeros.
func TestGrowingSegmentEndsEarly(t *testing.T) {
	mem := vfs.NewMem()
	j, _ := mustOpen(t, Options{FS: mem, manual: true})
	publish(j, "1", Target{1, 1, 0})
	j.step(false)
	if names, _ := mem.List("journal"); len(names) != 1 {
		t.Fatalf("the first commit made %v", names)
	}
	j.keepOnce()
	e := publish(j, "2", Target{1, 2, 0})
	if got := e.pos >> j.shift; got != 2 {
		t.Fatalf("the second record is in segment %d", got)
	}
	j.step(false)
	f, err := mem.Open("journal/0000000002.seg")
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := f.Size(); n != DefaultSegmentBytes {
		t.Fatalf("its file has %d bytes", n)
	}
}

func TestSettlesThatContinueShareARecord(t *testing.T) {
	mem := vfs.NewMem()
	o := Options{FS: mem, manual: true}
	j, _ := mustOpen(t, o)
	settle(j, 1, 1, 3)
	settle(j, 1, 4, 4)
	settle(j, 2, 5, 5)
	settle(j, 1, 5, 6)
	j.step(false)
	settle(j, 1, 7, 7) // the record before is written already
	mustClose(t, j)
	_, r := mustOpen(t, o)
	r.expect(t, []entry{
		{kind: kindSettle, queue: 1, from: 1, to: 4}, {kind: kindSettle, queue: 2, from: 5, to: 5},
		{kind: kindSettle, queue: 1, from: 5, to: 6}, {kind: kindSettle, queue: 1, from: 7, to: 7},
	})
}

// TestNoAllocations: an append, a commit, a read and a free allocate nothing.
func TestNoAllocations(t *testing.T) {
	j, _ := mustOpen(t, Options{FS: vfs.OS{}, Dir: t.TempDir(), NoSync: true, manual: true})
	targets, body := []Target{{1, 1, 0}, {2, 1, 0}}, make([]byte, 300)
	read := func([]byte) error { return nil }
	var seq uint64
	once := func() {
		j.Lock()
		pos := j.Publish(targets, 1, body[:20], body[20:])
		seq += 2
		j.Settle(1, seq, seq)
		j.Unlock()
		j.step(false)
		if err := j.Read(pos, read); err != nil {
			t.Fatal(err)
		}
		j.Free(pos, 2, 2)
	}
	once()
	if n := testing.AllocsPerRun(1000, once); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

// TestBuffersShrink: after a burst no more than keptChunks stay.
func TestBuffersShrink(t *testing.T) {
	j, _ := mustOpen(t, Options{FS: vfs.NewMem(), manual: true})
	for range 40 {
		publish(j, strings.Repeat("b", 200<<10))
	}
	publish(j, strings.Repeat("B", 2<<20))
	j.step(false)
	kept := 0
	for _, c := range j.spares {
		kept += cap(c.buf)
	}
	if kept == 0 || kept > keptChunks*chunkBytes {
		t.Fatalf("%d bytes are kept", kept)
	}
}

// TestCloseIsFinal: whatever is called after Close does nothing.
func TestCloseIsFinal(t *testing.T) {
	on(t, func(t *testing.T, o Options) {
		j, _ := mustOpen(t, o)
		e := publish(j, "x", Target{1, 1, 0})
		mustClose(t, j)
		mustClose(t, j)
		if e.pos >= j.Committed() || j.Pending() != 0 {
			t.Fatal("Close did not commit")
		}
		late := publish(j, "late", Target{1, 2, 0})
		settle(j, 1, 1, 1)
		topology(j, "late")
		j.Free(late.pos, 1, 1)
		j.Floor(late.pos)
		if err := j.Sync(late.pos); err == nil || j.Committed() > late.pos || j.Pending() != 0 {
			t.Fatalf("Sync gave %v for a record after Close", err)
		}
		if err := j.Read(e.pos, nil); err == nil {
			t.Fatal("read after Close")
		}
		_, r := mustOpen(t, o)
		r.expect(t, []entry{e})
	})
}

// TestOnCommit: what is said to be committed is synced, unless that was not wanted.
func TestOnCommit(t *testing.T) {
	for _, noSync := range []bool{false, true} {
		var written, unsynced int
		var said []Position
		mem := vfs.NewMem()
		o := Options{FS: &vfs.Faults{FS: mem, Check: func(op vfs.Op) error {
			switch op.Kind {
			case vfs.OpWrite:
				written++
				unsynced++
			case vfs.OpSync:
				unsynced = 0
			}
			return nil
		}}, SegmentBytes: 8 << 10, NoSync: noSync, manual: true}
		var j *Journal
		o.OnCommit = func(p Position) {
			if p != j.Committed() || len(said) > 0 && p <= said[len(said)-1] {
				t.Fatalf("OnCommit(%d) after %v, committed %d", p, said, j.Committed())
			}
			if !noSync && unsynced > 0 {
				t.Fatalf("OnCommit(%d) with %d writes that are not synced", p, unsynced)
			}
			said = append(said, p)
		}
		j, _ = mustOpen(t, o)
		for range 5 {
			for range 10 {
				publish(j, strings.Repeat("x", 700))
			}
			j.step(false)
		}
		s := j.Stats()
		if written == 0 || len(said) <= 5 || s.Commits != int64(len(said)) || (s.Syncs == 0) != noSync {
			t.Fatalf("%d writes, said %v, stats %+v", written, said, s)
		}
	}
}

// TestOversizeFilesAreRemoved: a file that is longer than a segment is never the spare.
func TestOversizeFilesAreRemoved(t *testing.T) {
	mem := vfs.NewMem()
	j, _ := mustOpen(t, Options{FS: mem, SegmentBytes: 8 << 10, manual: true})
	for i := range uint64(4) {
		e := publish(j, strings.Repeat("x", 50<<10), Target{1, i + 1, 0})
		publish(j, "small")
		j.step(false)
		settle(j, 1, i+1, i+1)
		j.Free(e.pos, 1, 1)
		j.step(false)
		j.keepOnce()
		for name, b := range files(t, mem, "journal") {
			if len(b) > 8<<10 {
				t.Fatalf("%s has %d bytes after its message was settled", name, len(b))
			}
		}
	}
}

// TestPaddingIsZero: the bytes between records are not those of an older commit.
func TestPaddingIsZero(t *testing.T) {
	mem := vfs.NewMem()
	j, _ := mustOpen(t, Options{FS: mem, manual: true})
	publish(j, strings.Repeat("\xff", 4000))
	j.step(false)
	e := publish(j, "odd")
	j.step(false)
	b := files(t, mem, "journal")["0000000001.seg"][e.pos%DefaultSegmentBytes:]
	if got := string(b[recordHead:]); got != "odd\x00\x00\x00\x00\x00" {
		t.Fatalf("the record ends in %q", got)
	}
}

// A log of one segment needs no reserve: where there is room for nothing else, the reserve becomes the next segment.
func TestReserveBecomesTheNextSegment(t *testing.T) {
	full := false
	disk := &vfs.Faults{FS: vfs.NewMem(), Check: func(o vfs.Op) error {
		if name := filepath.Base(o.Name); full && o.Kind == vfs.OpCreate && (name == spareName || name == reserveName) {
			return syscall.ENOSPC
		}
		return nil
	}}
	o := Options{FS: disk, SegmentBytes: 16 << 10, manual: true}
	j, _ := mustOpen(t, o)
	var all []entry
	settled := 0
	add := func(size int) {
		all = append(all, publish(j, strings.Repeat("x", size), Target{1, uint64(len(all) + 1), 0}))
		j.step(false)
		j.keepOnce()
	}
	settleAll := func() {
		settle(j, 1, uint64(settled+1), uint64(len(all)))
		for _, e := range all[settled:] {
			j.Free(e.pos, 1, 1)
		}
		settled = len(all)
		j.step(false)
		j.keepOnce()
	}
	for !j.hasReserve.Load() {
		add(1000)
	}
	settleAll()
	full = true
	add(40 << 10) // its segment is larger than others, and so is none that is used again
	for i := 0; !j.Low(); i++ {
		if i == 100 {
			t.Fatal("the disk is not full")
		}
		add(1000)
	}
	settleAll()
	if s := j.Stats(); j.Low() || s.Segments != 1 {
		t.Fatalf("low %t, with %d segments when all is settled", j.Low(), s.Segments)
	}
	for range 30 { // it goes on, and further than one segment
		add(1000)
		settleAll()
	}
	mustClose(t, j)
}

// What waits to be written to a file that grows has the room of the next segment's file, on a disk that has none else.
func TestNextSegmentGivesRoom(t *testing.T) {
	full, tries := false, 0
	mem := vfs.NewMem()
	disk := &vfs.Faults{FS: mem, Check: func(o vfs.Op) error {
		switch {
		case full && o.Kind == vfs.OpRemove && strings.HasSuffix(o.Name, segmentSuffix):
			full = false
		case full && (o.Kind == vfs.OpWrite || o.Kind == vfs.OpCreate):
			if tries++; tries == 3 {
				t.Error("the file of the next segment is kept")
				full = false
			}
			return syscall.ENOSPC
		}
		return nil
	}}
	for _, rolled := range []bool{false, true} { // the next segment has records that wait, too
		o := Options{FS: disk, SegmentBytes: 16 << 10, manual: true}
		o.Dir = fmt.Sprint("journal", rolled)
		j, _ := mustOpen(t, o)
		all := []entry{publish(j, "first", Target{1, 1, 0})}
		j.step(false)
		if !rolled {
			all = append(all, publish(j, "before the next file is there", Target{1, 2, 0}))
		}
		j.keepOnce()
		if rolled {
			for i := range uint64(20) {
				all = append(all, publish(j, strings.Repeat("x", 1000), Target{1, i + 2, 0}))
			}
		}
		full, tries = true, 0
		j.step(false)
		full = false
		j.keepOnce()
		all = append(all, publish(j, "last", Target{1, 100, 0}))
		mustClose(t, j)
		_, r := mustOpen(t, o)
		r.expect(t, all)
	}
}

// The keeper may be the first to see that there is room again, and make the next segment's file of it: what waits has that.
func TestFileMadeInAStallGivesRoom(t *testing.T) {
	full, tries := false, 0
	disk := &vfs.Faults{FS: vfs.NewMem(), Check: func(o vfs.Op) error {
		switch {
		case full && o.Kind == vfs.OpRemove && strings.HasSuffix(o.Name, segmentSuffix):
			full = false
		case full && o.Kind == vfs.OpWrite && strings.HasSuffix(o.Name, "1"+segmentSuffix):
			if tries++; tries == 5 {
				t.Error("the file of the next segment is kept")
				full = false
			}
			return syscall.ENOSPC
		}
		return nil
	}}
	var j *Journal
	stalls := 0
	o := Options{FS: disk, SegmentBytes: 16 << 10, manual: true, OnStall: func(err error) {
		if err != nil {
			stalls++
			j.keepOnce()
		}
	}}
	j, _ = mustOpen(t, o)
	all := []entry{publish(j, "first", Target{1, 1, 0})}
	j.step(false)
	all = append(all, publish(j, "waits", Target{1, 2, 0}))
	full = true
	j.step(false)
	if stalls != 1 || tries < 2 {
		t.Fatalf("%d stalls, %d writes that failed", stalls, tries)
	}
	j.keepOnce()
	all = append(all, publish(j, "last", Target{1, 3, 0}))
	mustClose(t, j)
	_, r := mustOpen(t, o)
	r.expect(t, all)
}
