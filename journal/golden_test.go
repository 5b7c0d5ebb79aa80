package journal

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firemq/firemq/internal/vfs"
)

var rewrite = flag.Bool("journal.rewrite", false, "write testdata/v1 anew: never once a version with it was released")

// TestGolden opens the data folders that version 1 of the format was defined with. Each holds
// journal files and want.txt, what they say. Every later version must open them.
func TestGolden(t *testing.T) {
	for name, make := range map[string]func(t *testing.T, fs vfs.FS){
		"closed": func(t *testing.T, fs vfs.FS) { written(t, fs) },
		"torn":   tornFolder,
		"moved":  movedFolder,
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("testdata", "v1", name)
			if *rewrite {
				mem := vfs.NewMem()
				make(t, mem)
				os.RemoveAll(dir)
				os.MkdirAll(dir, 0o755)
				for name, b := range files(t, mem, "journal") {
					if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				_, r := mustOpen(t, Options{FS: mem, manual: true})
				if err := os.WriteFile(filepath.Join(dir, "want.txt"), describe(r), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			all := files(t, vfs.OS{}, dir)
			want := all["want.txt"]
			delete(all, "want.txt")
			if len(all) < 1 || len(want) == 0 {
				t.Fatalf("%s holds %d files", dir, len(all))
			}
			o := Options{FS: folder(t, all), manual: true}
			j, r := mustOpen(t, o)
			if got := describe(r); !bytes.Equal(got, want) {
				t.Fatalf("got\n%swant\n%s", got, want)
			}
			kept := append(r.got, publish(j, "more", Target{9, 9, 9}))
			mustClose(t, j)
			_, r = mustOpen(t, o)
			r.expect(t, kept)
		})
	}
}

// movedFolder makes a journal with a checkpoint, a message copied forward and a batch.
func movedFolder(t *testing.T, fs vfs.FS) {
	j, _ := mustOpen(t, Options{FS: fs, SegmentBytes: 8 << 10, manual: true})
	for i := range uint64(30) {
		publish(j, strings.Repeat("m", 300), Target{7, i + 1, int64(i)})
	}
	j.step(false)
	if err := j.BeginCheckpoint().Save(func(w io.Writer) error { _, err := io.WriteString(w, "30 messages"); return err }); err != nil {
		t.Fatal(err)
	}
	j.Lock()
	j.Move([]Target{{7, 1, 0}, {8, 1, 5}}, 1, []byte("moved"))
	var b Batch
	b.Publish([]Target{{7, 31, 0}}, 1, []byte("in a "), []byte("batch"))
	b.Settle(7, 2, 3)
	b.Publish([]Target{{8, 2, 9}}, 1, nil, nil)
	j.Append(&b)
	j.Unlock()
	mustClose(t, j)
}

// tornFolder makes a journal that a crash ended in the middle of a commit, with a damaged record
// long before, recycled segments and a settled range.
func tornFolder(t *testing.T, fs vfs.FS) {
	mem := vfs.NewMem()
	j, _ := mustOpen(t, Options{FS: mem, SegmentBytes: 8 << 10, manual: true})
	var all []entry
	for i := range uint64(50) {
		all = append(all, publish(j, strings.Repeat("z", 300), Target{7, i + 1, int64(i)}))
		if i%5 == 4 {
			j.step(false)
			j.keepOnce()
		}
		if i < 30 {
			settle(j, 7, i+1, i+1)
			j.Free(all[i].pos, 1, 1)
		}
	}
	j.step(false)
	j.keepOnce()
	publish(j, "torn 1", Target{7, 51, 0})
	last := publish(j, "torn 2", Target{7, 52, 0})
	j.step(false)
	content := files(t, mem, "journal")
	hit := func(pos Position) {
		content[segmentName(pos/(8<<10))][pos%(8<<10)+recordHead] ^= 0x10
	}
	hit(all[40].pos)
	hit(last.pos)
	fs.MakeDir("journal")
	for name, b := range content {
		if err := vfs.WriteFile(fs, "journal/"+name, b); err != nil {
			t.Fatal(err)
		}
	}
}

func describe(r *replayed) []byte {
	var b bytes.Buffer
	if r.state != "" {
		fmt.Fprintln(&b, "checkpoint", r.state)
	}
	for _, e := range r.got {
		fmt.Fprintln(&b, e)
	}
	for _, d := range r.damage {
		fmt.Fprintln(&b, "damage", filepath.Base(d.File), d.Offset, d.Bytes, d.Pos, d.Reason)
	}
	return b.Bytes()
}

// FuzzRecord: bytes that parse as a record give the same bytes when they are put again, and one
// byte less than the record is not one.
func FuzzRecord(f *testing.F) {
	const epoch, pos = 77, 1 << 20
	rec := make([]byte, recordHead+targetBytes+5)
	putTargets(rec[recordHead:], []Target{{1, 2, 3}})
	putHead(rec, headerBytes, kindPublish, 1)
	putChecks(rec, epoch, pos)
	f.Add(rec)
	f.Add(rec[:recordHead])
	f.Fuzz(func(t *testing.T, b []byte) {
		// A head with the right check, so that what follows it is reached.
		if len(b) >= recordHead {
			order.PutUint32(b[20:], headCheck(order.Uint64(b[8:]), order.Uint32(b[16:]), epoch, pos))
		}
		h, ok := parseHead(b, headerBytes, epoch, pos)
		if !ok {
			return
		}
		if h.length <= int64(len(b)) && h.kind != kindBatch { // whose parts would have to be records
			again := append([]byte(nil), b[:h.length]...)
			putHead(again, h.batch, h.kind, h.count)
			putChecks(again, epoch, pos)
			if !bytes.Equal(again[8:], b[8:h.length]) {
				t.Fatalf("put again: %x, was %x", again, b[:h.length])
			}
			if !h.intact(again, epoch) || h.intact(again, epoch+1) {
				t.Fatal("intact does not tell the epoch")
			}
			if _, ok := parseHead(again, headerBytes, epoch, pos+8); ok {
				t.Fatal("the head is valid at another position")
			}
		}
		if h.intact(b[:min(int64(len(b)), h.length-1)], epoch) {
			t.Fatal("intact although the end is missing")
		}
		if h.wellFormed() && h.kind == kindPublish && int64(h.count)*targetBytes > h.length-recordHead {
			t.Fatalf("%d targets in %d bytes", h.count, h.length)
		}
	})
}

// FuzzOpen opens a journal with a segment into which each three bytes of the input write one:
// nothing wrong is replayed, and the journal can be used and opened again. With whole, the input
// is the segment.
func FuzzOpen(f *testing.F) {
	mem := vfs.NewMem()
	want := written(f, mem)
	all := files(f, mem, "journal")
	f.Add([]byte{0, 1, 2}, uint8(1), false)
	f.Add([]byte{16, 8, 255, 16, 9, 1}, uint8(2), false)
	f.Add(all["0000000001.seg"], uint8(1), true)
	f.Add([]byte{}, uint8(3), true)
	f.Fuzz(func(t *testing.T, input []byte, number uint8, whole bool) {
		changed := map[string][]byte{}
		for name, b := range all {
			changed[name] = b
		}
		name := segmentName(uint64(number%8) + 1)
		b := append([]byte(nil), all[name]...)
		if whole {
			b = input
		} else if len(b) > 0 {
			for ; len(input) >= 3; input = input[3:] {
				b[(int(input[0])<<8|int(input[1]))%len(b)] ^= input[2]
			}
		}
		changed[name] = b
		o := Options{FS: folder(t, changed), Dir: "journal", manual: true}
		r := &replayed{}
		j, _, err := Open(o, r)
		if err != nil {
			return // refused: another version or size
		}
		if !subsequence(r.got, want) {
			t.Fatalf("a wrong record: %v", r.got)
		}
		kept := append(r.got, publish(j, "more", Target{9, 9, 9}))
		mustClose(t, j)
		_, r = mustOpen(t, o)
		r.expect(t, kept)
	})
}
