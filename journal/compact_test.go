package journal

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/firemq/firemq/internal/vfs"
)

func TestBatchIsThereAsAWholeOrNotAtAll(t *testing.T) {
	whole, none := 0, 0
	for seed := range uint64(300) {
		fs := vfs.NewMem()
		j, _ := mustOpen(t, Options{FS: fs, Dir: "j", SegmentBytes: 8192})
		first := publish(j, "before", Target{1, 1, 0})
		j.Lock()
		var b Batch
		for i := range uint64(20) {
			b.Publish([]Target{{1, 2 + i, 0}, {2, 2 + i, 7}}, 1, []byte("he"), []byte(strings.Repeat("x", int(seed)%200)))
			b.Settle(3, 10*i+1, 10*i+5)
		}
		pos := j.Append(&b)
		j.Unlock()
		if seed%3 == 0 {
			if err := j.Sync(pos); err != nil {
				t.Fatal(err)
			}
		}
		after := fs.Crash(seed)
		mustClose(t, j)
		j2, r := mustOpen(t, Options{FS: after, Dir: "j", SegmentBytes: 8192})
		switch n := len(r.got); {
		case n == 41:
			whole++
			for i := range 20 {
				e := r.got[1+2*i]
				if e.kind != kindPublish || e.pos != b.Position(i) || e.payload != "he"+strings.Repeat("x", int(seed)%200) || len(e.targets) != 2 {
					t.Fatalf("seed %d: part %d is %v", seed, i, e)
				}
				if err := j2.Read(e.pos, func(p []byte) error {
					if string(p) != e.payload {
						return fmt.Errorf("read %q", p)
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
		case n <= 1 && seed%3 != 0:
			none++
			if n == 1 && !same(r.got[0], first) {
				t.Fatalf("seed %d: %v", seed, r.got[0])
			}
		default:
			t.Fatalf("seed %d: %d records", seed, n)
		}
		if len(r.damage) > 0 {
			t.Fatalf("seed %d: %v", seed, r.damage)
		}
		mustClose(t, j2)
	}
	if whole < 100 || none < 20 {
		t.Errorf("%d whole, %d none: the crashes prove nothing", whole, none)
	}
}

func TestMovedMessagesFreeTheOldestSegment(t *testing.T) {
	fs := vfs.NewMem()
	j, _ := mustOpen(t, Options{FS: fs, Dir: "j", SegmentBytes: 8192, manual: true})
	step := func() {
		for j.step(false) {
		}
		j.keepOnce()
	}
	keep := publish(j, strings.Repeat("k", 100), Target{1, 1, 0})
	for i := range uint64(40) {
		e := publish(j, strings.Repeat("x", 1000), Target{2, i + 1, 0})
		settle(j, 2, i+1, i+1)
		j.Free(e.pos, 1, 1)
		step()
	}
	number, ok := j.Wasteful(1)
	if !ok || number != 1 {
		t.Fatalf("wasteful %d, %v", number, ok)
	}
	before := j.Stats().Segments
	var moved Position
	payload := ""
	var all []Target
	next, err := j.Records(number, 0, func(pos Position, targets []Target, _ []byte) bool {
		all = append(all, targets...)
		return true
	})
	j.Read(keep.pos, func(p []byte) error { payload = string(p); return nil })
	if err != nil || next != 0 || len(all) < 2 || all[0] != (Target{1, 1, 0}) || payload != keep.payload {
		t.Fatalf("records: %d, %v, %v", next, err, all)
	}
	j.Lock()
	moved = j.Move([]Target{{1, 1, 0}}, 1, []byte(payload))
	j.Unlock()
	step()
	j.Free(keep.pos, 1, 1)
	step()
	if n := j.Stats().Segments; n >= before || n > 3 {
		t.Errorf("%d segments, then %d", before, n)
	}
	if _, ok := j.Wasteful(1); ok {
		t.Error("still wasteful")
	}
	if err := j.Read(moved, func(p []byte) error {
		if string(p) != keep.payload {
			t.Errorf("moved %q", p)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	mustClose(t, j)
	j2, r := mustOpen(t, Options{FS: fs, Dir: "j"})
	defer mustClose(t, j2)
	i := slices.IndexFunc(r.got, func(e entry) bool { return e.kind == kindMoved })
	if i < 0 || r.got[i].pos != moved || r.got[i].payload != keep.payload {
		t.Errorf("replayed %v", r.got)
	}
}

func TestRecordsGoOnWhereTheyStopped(t *testing.T) {
	j, _ := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "j"})
	defer mustClose(t, j)
	var want []Position
	for i := range uint64(10) {
		want = append(want, publish(j, "x", Target{1, i, 0}).pos)
	}
	if err := j.Sync(want[9]); err != nil {
		t.Fatal(err)
	}
	var got []Position
	for from, steps := int64(0), 0; ; steps++ {
		n := 0
		next, err := j.Records(1, from, func(pos Position, _ []Target, _ []byte) bool {
			got = append(got, pos)
			n++
			return n < 3
		})
		if err != nil {
			t.Fatal(err)
		}
		if next == 0 {
			break
		}
		from = next
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestCheckpoint(t *testing.T) {
	type disk struct {
		fs         *vfs.Mem
		all, after []entry // records, and those behind the checkpoint
	}
	make := func(t *testing.T, tail int) disk {
		d := disk{fs: vfs.NewMem()}
		j, _ := mustOpen(t, Options{FS: d.fs, Dir: "j", SegmentBytes: 8192})
		j.Floor(1 << 40)
		seq := uint64(0)
		add := func(n int) {
			for range n {
				seq++
				d.all = append(d.all, publish(j, strings.Repeat("x", 500), Target{1, seq, 0}))
			}
		}
		add(50)
		c := j.BeginCheckpoint()
		done := len(d.all)
		add(3)
		if err := c.Save(func(w io.Writer) error { _, err := io.WriteString(w, "state"); return err }); err != nil {
			t.Fatal(err)
		}
		add(tail)
		d.after = d.all[done:]
		mustClose(t, j)
		return d
	}
	t.Run("only what is behind it is replayed", func(t *testing.T) {
		for _, tail := range []int{0, 1, 60} {
			d := make(t, tail)
			var j *Journal
			r := &replayed{adopt: func() {
				for _, e := range d.all[:len(d.all)-len(d.after)] {
					if !j.Adopt(e.pos, 1, 1) {
						t.Errorf("position %d is gone", e.pos)
					}
				}
			}}
			j, _, err := Open(Options{FS: d.fs, Dir: "j", Opening: func(opening *Journal) { j = opening }}, r)
			if err != nil {
				t.Fatal(err)
			}
			if r.state != "state" {
				t.Fatalf("state %q", r.state)
			}
			r.expect(t, d.after)
			mustClose(t, j)
		}
	})
	t.Run("without one that can be used everything is replayed", func(t *testing.T) {
		for what, spoil := range map[string]func(*disk, []byte) []byte{
			"a flipped bit":   func(_ *disk, b []byte) []byte { b[len(b)/2] ^= 4; return b },
			"cut":             func(_ *disk, b []byte) []byte { return b[:len(b)-1] },
			"empty":           func(*disk, []byte) []byte { return nil },
			"a newer version": func(_ *disk, b []byte) []byte { b[8] = 2; return b },
			"of another log": func(*disk, []byte) []byte {
				other := make(t, 0)
				b, _ := vfs.ReadFile(other.fs, "j/checkpoint", 1<<20)
				return b
			},
		} {
			d := make(t, 5)
			b, err := vfs.ReadFile(d.fs, "j/checkpoint", 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if err := vfs.WriteFile(d.fs, "j/checkpoint", spoil(&d, b)); err != nil {
				t.Fatal(err)
			}
			j, r := mustOpen(t, Options{FS: d.fs, Dir: "j"})
			if r.state != "" {
				t.Errorf("%s: state %q", what, r.state)
			}
			r.expect(t, d.all)
			mustClose(t, j)
		}
	})
	t.Run("not before the topology in it is saved", func(t *testing.T) {
		fs := vfs.NewMem()
		j, _ := mustOpen(t, Options{FS: fs, Dir: "j"})
		pos := topology(j, "declare").pos
		write := func(w io.Writer) error { return nil }
		if err := j.BeginCheckpoint().Save(write); err != ErrTopology {
			t.Fatalf("saved: %v", err)
		}
		j.Floor(pos + 1)
		if err := j.BeginCheckpoint().Save(write); err != nil {
			t.Fatal(err)
		}
		mustClose(t, j)
		// Definitions that were put back are older than the checkpoint: it is not used.
		j, r := mustOpen(t, Options{FS: fs, Dir: "j", After: pos - 8})
		if len(r.got) != 1 {
			t.Errorf("replayed %v", r.got)
		}
		mustClose(t, j)
		j, r = mustOpen(t, Options{FS: fs, Dir: "j", After: pos})
		if len(r.got) != 0 {
			t.Errorf("replayed %v", r.got)
		}
		mustClose(t, j)
	})
	t.Run("where no record is", func(t *testing.T) {
		fs := vfs.NewMem()
		j, _ := mustOpen(t, Options{FS: fs, Dir: "j"})
		for range 2 {
			if err := j.BeginCheckpoint().Save(func(w io.Writer) error { _, err := io.WriteString(w, "state"); return err }); err != nil {
				t.Fatal(err)
			}
		}
		after := fs.Crash(1)
		mustClose(t, j)
		j, r := mustOpen(t, Options{FS: after, Dir: "j"})
		if r.state != "state" || len(r.got) != 0 {
			t.Errorf("state %q, replayed %v", r.state, r.got)
		}
		mustClose(t, j)
	})
	t.Run("a crash leaves the old one or the new one", func(t *testing.T) {
		for seed := range uint64(100) {
			d := make(t, 5)
			j, _ := mustOpen(t, Options{FS: d.fs, Dir: "j"})
			j.Floor(1 << 40)
			c := j.BeginCheckpoint()
			more := publish(j, "more", Target{1, 1000, 0})
			if err := c.Save(func(w io.Writer) error { _, err := io.WriteString(w, "newer"); return err }); err != nil {
				t.Fatal(err)
			}
			after := d.fs.Crash(seed)
			mustClose(t, j)
			j, r := mustOpen(t, Options{FS: after, Dir: "j"})
			if r.state != "newer" {
				t.Fatalf("seed %d: state %q", seed, r.state)
			}
			r.expect(t, []entry{more})
			mustClose(t, j)
		}
	})
}
