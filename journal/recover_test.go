package journal

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/firemq/firemq/internal/vfs"
)

// written makes a closed journal of a few segments, one of them oversize, and gives its content.
func written(t testing.TB, fs vfs.FS) []entry {
	j, _ := mustOpen(t, Options{FS: fs, SegmentBytes: 8 << 10, manual: true})
	var all []entry
	for i := range uint64(40) {
		size := int(i * 17 % 500)
		if i == 20 {
			size = 12 << 10
		}
		all = append(all, publish(j, strings.Repeat(string(rune('a'+i%26)), size), Target{1, i + 1, 0}, Target{i % 3, 100 + i, 5}))
		if i%4 == 0 {
			all = append(all, settle(j, 1, i+1, i+1), topology(j, fmt.Sprint("topology ", i)))
		}
		if i%3 == 0 {
			j.step(false)
		}
	}
	mustClose(t, j)
	return all
}

// files reads a folder.
func files(t testing.TB, fs vfs.FS, dir string) map[string][]byte {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, name := range names {
		if all[name], err = vfs.ReadFile(fs, filepath.Join(dir, name), 1<<30); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// folder makes a file system that holds these files.
func folder(t testing.TB, all map[string][]byte) vfs.FS {
	t.Helper()
	mem := vfs.NewMem()
	mem.MakeDir("journal")
	for name, b := range all {
		if err := vfs.WriteFile(mem, "journal/"+name, b); err != nil {
			t.Fatal(err)
		}
	}
	return mem
}

// subsequence reports whether got can be made from want by leaving some out.
func subsequence(got, want []entry) bool {
	for _, e := range got {
		i := slices.IndexFunc(want, func(w entry) bool { return same(e, w) })
		if i < 0 {
			return false
		}
		want = want[i+1:]
	}
	return true
}

// TestAnyFlippedBit flips bits all over a closed journal: no record is ever wrong, and one that
// is missing is reported. Then the journal is used and opened once more.
func TestAnyFlippedBit(t *testing.T) {
	mem := vfs.NewMem()
	want := written(t, mem)
	all := files(t, mem, "journal")
	rng := rand.New(rand.NewPCG(1, 2))
	for name, content := range all {
		for off := 0; off < len(content); off += 1 + rng.IntN(len(content)/150) {
			b := slices.Clone(content)
			b[off] ^= 1 << rng.IntN(8)
			damaged := map[string][]byte{}
			for n := range all {
				damaged[n] = all[n]
			}
			damaged[name] = b
			o := Options{FS: folder(t, damaged), SegmentBytes: 8 << 10, manual: true}
			j, r := mustOpen(t, o)
			if !subsequence(r.got, want) {
				t.Fatalf("%s, byte %d: a wrong record: %v", name, off, r.got)
			}
			if len(r.got) < len(want) && len(r.damage) == 0 {
				t.Fatalf("%s, byte %d: %d records are missing without a word", name, off, len(want)-len(r.got))
			}
			if len(want)-len(r.got) > 1 {
				t.Fatalf("%s, byte %d: one bit cost %d records: %v", name, off, len(want)-len(r.got), r.damage)
			}
			for _, d := range r.damage {
				if int64(off) < d.Offset || int64(off) >= d.Offset+d.Bytes || filepath.Base(d.File) != name {
					t.Fatalf("%s, byte %d: reported as %+v", name, off, d)
				}
			}
			kept := append(r.got, publish(j, "more", Target{9, 9, 9}))
			mustClose(t, j)
			_, r = mustOpen(t, o)
			r.expect(t, kept)
		}
	}
}

func TestDamage(t *testing.T) {
	zero := func(b []byte, from, to int) { clear(b[from:to]) }
	cases := []struct {
		name   string
		hurt   func(all map[string][]byte)
		reason string
		lost   int // records at least
	}{
		{"a sector in the middle", func(all map[string][]byte) { zero(all["0000000001.seg"], 5120, 5632) }, "checksum mismatch", 1},
		{"a whole segment", func(all map[string][]byte) { clear(all["0000000001.seg"][headerBytes:]) }, "the end of the segment is missing", 5},
		{"both headers", func(all map[string][]byte) { zero(all["0000000001.seg"], 0, 4096) }, errHeader.Error(), 5},
		{"both headers of the last", func(all map[string][]byte) { zero(all[lastOf(all)], 0, 4096) }, errHeader.Error(), 1},
		{"one header", func(all map[string][]byte) { zero(all["0000000001.seg"], 0, 512) }, "", 0},
		{"a missing segment", func(all map[string][]byte) { delete(all, "0000000002.seg") }, "segment 2 before it is missing", 3},
		{"a short file", func(all map[string][]byte) { all["0000000001.seg"] = all["0000000001.seg"][:6000] }, "the end of the segment is missing", 3},
		{"an empty file", func(all map[string][]byte) { all["0000000001.seg"] = nil }, errHeader.Error(), 5},
		{"a segment under another name", func(all map[string][]byte) { all["0000000001.seg"] = all["0000000002.seg"] }, "the header is that of segment 2", 5},
		{"foreign files", func(all map[string][]byte) {
			all["readme"], all["1.seg"], all["new.tmp"], all["spare"] = []byte("x"), []byte("x"), []byte("x"), []byte("x")
		}, "", 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			mem := vfs.NewMem()
			want := written(t, mem)
			all := files(t, mem, "journal")
			c.hurt(all)
			o := Options{FS: folder(t, all), SegmentBytes: 8 << 10, manual: true}
			j, r := mustOpen(t, o)
			if !subsequence(r.got, want) {
				t.Fatalf("a wrong record: %v", r.got)
			}
			if lost := len(want) - len(r.got); lost < c.lost || c.lost == 0 && lost > 0 {
				t.Fatalf("%d records are lost, want %d", lost, c.lost)
			}
			if c.reason != "" && (len(r.damage) == 0 || !strings.Contains(fmt.Sprint(r.damage), c.reason)) || c.reason == "" && len(r.damage) > 0 {
				t.Fatalf("damage %v, want %q", r.damage, c.reason)
			}
			if n := j.Stats().Recovered.Damaged; int(n) != len(r.damage) {
				t.Fatalf("%d reports counted, %d made", n, len(r.damage))
			}
			kept := append(r.got, publish(j, "more", Target{9, 9, 9}), settle(j, 9, 9, 9))
			mustClose(t, j)
			_, r = mustOpen(t, o)
			r.expect(t, kept)
		})
	}
}

func lastOf(all map[string][]byte) (last string) {
	for name := range all {
		last = max(last, name)
	}
	return last
}

// TestCloseAfterACrash closes a journal that was opened after a crash, with and without a torn commit, before anything
// else is written: that is a clean shutdown. Another one after it adds nothing.
func TestCloseAfterACrash(t *testing.T) {
	for _, tear := range []bool{false, true} {
		mem := vfs.NewMem()
		o := Options{FS: mem, SegmentBytes: 16 << 10, manual: true}
		j, _ := mustOpen(t, o)
		want := []entry{publish(j, "first", Target{1, 1, 0})}
		j.step(false)
		second := []entry{publish(j, "a", Target{1, 2, 0}), publish(j, "b", Target{1, 3, 0})}
		j.step(false)
		all := files(t, mem, "journal")
		if tear {
			all["0000000001.seg"][int(second[0].pos%(16<<10))] ^= 1
		} else {
			want = append(want, second...)
		}
		o.FS = folder(t, all)

		var end [3]Position
		for i := range end {
			j, r := mustOpen(t, o)
			r.expect(t, want)
			if s := j.Stats().Recovered; s.Clean != (i > 0) || len(r.damage) != 0 {
				t.Errorf("torn %v, start %d: damage %v, stats %+v", tear, i+1, r.damage, s)
			}
			end[i] = j.Committed()
			mustClose(t, j)
		}
		if end[1] != end[0]+recordHead || end[2] != end[1] {
			t.Errorf("torn %v: the log ended at %d, one mark of %d bytes is to be added", tear, end, recordHead)
		}
	}
}

// TestTornCommit damages the last commit of a journal that was not closed: it is cut, not
// reported, and does not come back when new records are written over its beginning.
func TestTornCommit(t *testing.T) {
	mem := vfs.NewMem()
	o := Options{FS: mem, SegmentBytes: 16 << 10, manual: true}
	j, _ := mustOpen(t, o)
	want := []entry{publish(j, "first", Target{1, 1, 0})}
	j.step(false)
	torn := []entry{publish(j, "a", Target{1, 2, 0}), publish(j, "b", Target{1, 3, 0}), publish(j, "c", Target{1, 4, 0})}
	j.step(false)
	all := files(t, mem, "journal")
	off := int(torn[0].pos % (16 << 10))
	all["0000000001.seg"][off] ^= 1
	o.FS = folder(t, all)

	j, r := mustOpen(t, o)
	r.expect(t, want)
	if s := j.Stats().Recovered; len(r.damage) != 0 || s.Torn == 0 || s.Clean {
		t.Fatalf("damage %v, stats %+v", r.damage, s)
	}
	again := publish(j, "A", Target{1, 2, 0}) // as long as a: b and c would follow it
	if again.pos != torn[0].pos {
		t.Fatalf("the log goes on at %d, want %d", again.pos, torn[0].pos)
	}
	j.step(false)
	o.FS = o.FS.(*vfs.Mem).Crash(1)
	_, r = mustOpen(t, o)
	r.expect(t, append(want, again))
}

func TestNewerVersionsAreRefused(t *testing.T) {
	mem := vfs.NewMem()
	written(t, mem)
	newer := func(name string, change func(b []byte)) error {
		all := files(t, mem, "journal")
		b := all[name]
		change(b)
		_, _, err := Open(Options{FS: folder(t, all), Dir: "journal", manual: true}, &replayed{})
		return err
	}
	err := newer("0000000002.seg", func(b []byte) { b[8], b[headerCopy+8] = 2, 2 })
	if !errors.Is(err, errVersion) || !strings.Contains(err.Error(), "0000000002.seg") || !strings.Contains(err.Error(), "its format is 2") {
		t.Fatalf("format 2: %v", err)
	}
	for _, name := range []string{"0000000001.seg", lastOf(files(t, mem, "journal"))} {
		err = newer(name, func(b []byte) {
			h, herr := parseHeader(b)
			if herr != nil {
				t.Fatal(herr)
			}
			putHead(b[headerBytes:headerBytes+recordHead], headerBytes, 9, 0)
			putChecks(b[headerBytes:], h.epoch, h.number*uint64(h.segSize)+headerBytes)
		})
		if !errors.Is(err, errVersion) || !strings.Contains(err.Error(), name) {
			t.Fatalf("record kind 9 in %s: %v", name, err)
		}
	}
}

func TestReplayErrorsEndOpen(t *testing.T) {
	mem := vfs.NewMem()
	written(t, mem)
	fail := errors.New("no")
	if _, _, err := Open(Options{FS: mem, Dir: "journal"}, &replayed{fail: fail}); !errors.Is(err, fail) {
		t.Fatalf("Open gave %v", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, n := range []int64{1, -1, 4096, 10000, 1 << 40} {
		if _, _, err := Open(Options{FS: vfs.NewMem(), Dir: "journal", SegmentBytes: n}, &replayed{}); err == nil {
			t.Fatalf("segments of %d bytes were accepted", n)
		}
	}
}

// TestAfter: a journal that was lost, or ends too early, goes on behind what the definitions hold.
func TestAfter(t *testing.T) {
	for _, had := range []bool{false, true} {
		mem := vfs.NewMem()
		var want []entry
		if had {
			want = written(t, mem)
		}
		o := Options{FS: mem, SegmentBytes: 8 << 10, After: 3_000_000, manual: true}
		for range 2 {
			j, r := mustOpen(t, o)
			r.expect(t, want)
			if len(r.damage) > 0 {
				t.Fatal(r.damage)
			}
			e := publish(j, "after", Target{1, uint64(len(want) + 1000), 0})
			if e.pos <= o.After {
				t.Fatalf("appended at %d", e.pos)
			}
			want = append(want, e)
			mustClose(t, j)
		}
	}
}

// A journal that goes on behind the definitions, in a segment without a record, leaves a checkpoint.
func TestCheckpointAfterAGap(t *testing.T) {
	o := Options{FS: vfs.NewMem(), SegmentBytes: 8 << 10}
	j, _ := mustOpen(t, o)
	publish(j, "there", Target{Queue: 1, Seq: 1})
	mustClose(t, j)
	o.After = 100_000
	j, _ = mustOpen(t, o)
	j.Floor(o.After + 1)
	if err := j.BeginCheckpoint().Save(func(w io.Writer) error { _, err := io.WriteString(w, "state"); return err }); err != nil {
		t.Fatal(err)
	}
	mustClose(t, j)
	j, r := mustOpen(t, o)
	if r.state != "state" {
		t.Errorf("the state is %q", r.state)
	}
	mustClose(t, j)
}

// TestFreeDuringReplay: what is settled in the log is freed while it is replayed.
func TestFreeDuringReplay(t *testing.T) {
	mem := vfs.NewMem()
	want := written(t, mem)
	r := &freeing{at: map[place]Position{}}
	j, _, err := Open(Options{FS: mem, Dir: "journal", manual: true, Opening: func(j *Journal) { r.j = j }}, r)
	if err != nil {
		t.Fatal(err)
	}
	settled := int64(0)
	for _, e := range want {
		if e.kind == kindSettle {
			settled++
		}
	}
	if s := j.Stats(); s.Live != 80-settled || s.Recovered.Messages != 80 {
		t.Fatalf("%d live of %d messages, %d settled", s.Live, s.Recovered.Messages, settled)
	}
}

type freeing struct {
	replayed
	j  *Journal
	at map[place]Position
}

func (f *freeing) Publish(pos Position, targets []Target, _ []byte, _ bool) (int64, error) {
	for _, x := range targets {
		f.at[place{x.Queue, x.Seq}] = pos
	}
	return 1, nil
}

func (f *freeing) Settle(queue, from, to uint64) error {
	for seq := from; seq <= to; seq++ {
		f.j.Free(f.at[place{queue, seq}], 1, 1)
	}
	return nil
}
