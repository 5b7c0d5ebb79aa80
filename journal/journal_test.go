package journal

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/firemq/firemq/internal/vfs"
)

// entry is one replayed record, or one that a test appended.
type entry struct {
	pos      Position
	kind     kind
	targets  []Target
	payload  string
	queue    uint64
	from, to uint64
}

func (e entry) String() string {
	switch e.kind {
	case kindPublish, kindMoved:
		return fmt.Sprintf("publish@%d %v %.20q(%d)", e.pos, e.targets, e.payload, len(e.payload))
	case kindSettle:
		return fmt.Sprintf("settle %d:%d-%d", e.queue, e.from, e.to)
	}
	return fmt.Sprintf("topology@%d %.20q", e.pos, e.payload)
}

func same(a, b entry) bool {
	if a.kind == kindSettle { // Replay does not say where it was
		a.pos, b.pos = 0, 0
	}
	return a.pos == b.pos && a.kind == b.kind && slices.Equal(a.targets, b.targets) && a.payload == b.payload &&
		a.queue == b.queue && a.from == b.from && a.to == b.to
}

// replayed collects what Open finds.
type replayed struct {
	got    []entry
	damage []Damage
	state  string
	fail   error
	adopt  func() // called with the state of a checkpoint; nil: nothing of it is adopted
}

func (r *replayed) Publish(pos Position, targets []Target, payload []byte, moved bool) (int64, error) {
	k := kindPublish
	if moved {
		k = kindMoved
	}
	r.got = append(r.got, entry{pos: pos, kind: k, targets: slices.Clone(targets), payload: string(payload)})
	return 1, r.fail
}

func (r *replayed) Settle(queue, from, to uint64) error {
	r.got = append(r.got, entry{kind: kindSettle, queue: queue, from: from, to: to})
	return r.fail
}

func (r *replayed) Topology(pos Position, payload []byte) error {
	r.got = append(r.got, entry{pos: pos, kind: kindTopology, payload: string(payload)})
	return r.fail
}

func (r *replayed) Checkpoint(state []byte) error {
	r.state = string(state)
	if r.adopt != nil {
		r.adopt()
	}
	return r.fail
}

func (r *replayed) Damage(d Damage) { r.damage = append(r.damage, d) }

func (r *replayed) expect(t *testing.T, want []entry) {
	t.Helper()
	if !slices.EqualFunc(r.got, want, same) {
		t.Fatalf("replayed %d records, want %d:\n got %v\nwant %v", len(r.got), len(want), r.got, want)
	}
}

func mustOpen(t testing.TB, o Options) (*Journal, *replayed) {
	t.Helper()
	r := &replayed{}
	if o.Dir == "" {
		o.Dir = "journal"
	}
	j, _, err := Open(o, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j, r
}

func mustClose(t testing.TB, j *Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

func publish(j *Journal, payload string, targets ...Target) entry {
	j.Lock()
	defer j.Unlock()
	half := len(payload) / 2
	pos := j.Publish(targets, 1, []byte(payload[:half]), []byte(payload[half:]))
	return entry{pos: pos, kind: kindPublish, targets: targets, payload: payload}
}

func settle(j *Journal, queue, from, to uint64) entry {
	j.Lock()
	defer j.Unlock()
	return entry{pos: j.Settle(queue, from, to), kind: kindSettle, queue: queue, from: from, to: to}
}

func topology(j *Journal, payload string) entry {
	j.Lock()
	defer j.Unlock()
	return entry{pos: j.Topology([]byte(payload)), kind: kindTopology, payload: payload}
}

// on runs a test on the real file system and in memory.
func on(t *testing.T, test func(t *testing.T, o Options)) {
	t.Run("os", func(t *testing.T) {
		test(t, Options{FS: vfs.OS{}, Dir: t.TempDir() + "/journal", SegmentBytes: 16 << 10})
	})
	t.Run("memory", func(t *testing.T) { test(t, Options{FS: vfs.NewMem(), Dir: "journal", SegmentBytes: 16 << 10}) })
}

func TestWhatIsCommittedIsReplayedInOrder(t *testing.T) {
	on(t, func(t *testing.T, o Options) {
		j, r := mustOpen(t, o)
		r.expect(t, nil)
		want := []entry{
			publish(j, "hello", Target{1, 1, 0}, Target{2, 7, 99}),
			topology(j, "declare"),
			publish(j, ""),
			publish(j, strings.Repeat("x", 5000), Target{1, 2, 0}),
		}
		want = append(want, settle(j, 1, 1, 1))
		if err := j.Sync(want[len(want)-1].pos); err != nil {
			t.Fatal(err)
		}
		for i, e := range want {
			if e.pos >= j.Committed() {
				t.Fatalf("record %d at %d is not committed: %d", i, e.pos, j.Committed())
			}
		}
		if j.Pending() != 0 {
			t.Fatalf("%d bytes pending after Sync", j.Pending())
		}
		mustClose(t, j)
		for i := range 3 {
			j, r = mustOpen(t, o)
			r.expect(t, want)
			if s := j.Stats(); !s.Recovered.Clean || s.Recovered.Torn != 0 || s.Live != int64(3+i) {
				t.Fatalf("stats after a clean shutdown: %+v", s)
			}
			want = append(want, publish(j, "more", Target{3, uint64(i + 1), 0}))
			mustClose(t, j)
		}
	})
}

func TestReadGivesThePayload(t *testing.T) {
	on(t, func(t *testing.T, o Options) {
		j, _ := mustOpen(t, o)
		var want []entry
		for i := range 200 {
			want = append(want, publish(j, strings.Repeat(fmt.Sprint(i), 1+i*3), Target{1, uint64(i + 1), 0}))
		}
		big := publish(j, strings.Repeat("big", 20<<10), Target{1, 1000, 0})
		want = append(want, big, topology(j, "topology"), publish(j, "after", Target{1, 1001, 0}))
		if err := j.Sync(want[len(want)-1].pos); err != nil {
			t.Fatal(err)
		}
		check := func() {
			t.Helper()
			for _, e := range want {
				err := j.Read(e.pos, func(p []byte) error {
					if string(p) != e.payload {
						t.Fatalf("read %d: %.20q, want %.20q", e.pos, p, e.payload)
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		check()
		mustClose(t, j)
		j, r := mustOpen(t, o)
		r.expect(t, want)
		check()
		if err := j.Read(j.Committed()+8, nil); err == nil {
			t.Fatal("read past the committed position")
		}
		if err := j.Read(big.pos+8, nil); !errors.Is(err, errRecord) {
			t.Fatalf("read between records: %v", err)
		}
		if err := j.Read(0, nil); !errors.Is(err, errGone) {
			t.Fatalf("read at none: %v", err)
		}
	})
}

// TestReadVerifies: a record that the disk changed after it was written is an error, not a message.
func TestReadVerifies(t *testing.T) {
	on(t, func(t *testing.T, o Options) {
		j, _ := mustOpen(t, o)
		e := publish(j, "payload", Target{1, 1, 0})
		if err := j.Sync(e.pos); err != nil {
			t.Fatal(err)
		}
		for at := range int64(recordHead + targetBytes + len(e.payload)) {
			flip := func() {
				f, err := o.FS.OpenWrite(o.Dir + "/0000000001.seg")
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				var b [1]byte
				f.ReadAt(b[:], int64(e.pos)%o.SegmentBytes+at)
				b[0] ^= 4
				f.WriteAt(b[:], int64(e.pos)%o.SegmentBytes+at)
			}
			flip()
			if err := j.Read(e.pos, func([]byte) error { t.Fatal("a damaged record"); return nil }); !errors.Is(err, errRecord) {
				t.Fatalf("byte %d: %v", at, err)
			}
			flip()
		}
		fail := errors.New("no")
		if err := j.Read(e.pos, func([]byte) error { return fail }); err != fail {
			t.Fatalf("f's error became %v", err)
		}
	})
}

// TestUnreadablePages: a page that cannot be read is an error of that Read, not the broker's end.
func TestUnreadablePages(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("mappings past the end of a file differ")
	}
	o := Options{FS: vfs.OS{}, Dir: t.TempDir(), SegmentBytes: 64 << 10}
	j, _ := mustOpen(t, o)
	e := publish(j, strings.Repeat("x", 20000), Target{1, 1, 0})
	if err := j.Sync(e.pos); err != nil {
		t.Fatal(err)
	}
	none := func([]byte) error { return nil }
	if err := j.Read(e.pos, none); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(o.Dir+"/0000000001.seg", 4096); err != nil {
		t.Fatal(err)
	}
	if err := j.Read(e.pos, none); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Fatalf("Read gave %v", err)
	}
}

func TestConcurrentAppendersKeepTheirOrder(t *testing.T) {
	on(t, func(t *testing.T, o Options) {
		j, _ := mustOpen(t, o)
		var all sync.WaitGroup
		for q := range uint64(4) {
			all.Go(func() {
				for seq := range uint64(300) {
					e := publish(j, "message", Target{q, seq, 0})
					if seq%64 == 0 {
						if err := j.Sync(e.pos); err != nil {
							t.Error(err)
						}
						if err := j.Read(e.pos, func([]byte) error { return nil }); err != nil {
							t.Error(err)
						}
					}
					if seq%2 == 0 {
						settle(j, q, seq, seq)
						j.Free(e.pos, 1, 1)
					}
				}
			})
		}
		all.Wait()
		mustClose(t, j)
		_, r := mustOpen(t, o)
		next := map[uint64]uint64{}
		for _, e := range r.got {
			if e.kind != kindPublish {
				continue
			}
			x := e.targets[0]
			if x.Seq < next[x.Queue] {
				t.Fatalf("queue %d: %d after %d", x.Queue, x.Seq, next[x.Queue])
			}
			next[x.Queue] = x.Seq + 1
		}
		for q := range uint64(4) {
			if next[q] != 300 {
				t.Fatalf("queue %d ends at %d", q, next[q])
			}
		}
	})
}
