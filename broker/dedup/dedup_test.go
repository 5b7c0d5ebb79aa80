package dedup

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func key(n int) Key { return KeyOf(fmt.Sprint("key ", n)) }

func TestKeyOf(t *testing.T) {
	if KeyOf("") != (Key{}) || KeyOf("a") == (Key{}) || KeyOf("a") == KeyOf("b") {
		t.Error("keys are not told apart")
	}
	text := strings.Repeat("some key", 20)
	if n := testing.AllocsPerRun(100, func() { KeyOf(text) }); n != 0 {
		t.Errorf("a key allocates %v times", n)
	}
}

// TestModel compares a window with a list that is searched from its end.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{
			On: true, Size: rapid.IntRange(1, 40).Draw(t, "size"), TTL: rapid.SampledFrom([]int64{0, 5, 50}).Draw(t, "ttl"),
			Present: rapid.Bool().Draw(t, "present"),
		}
		times := []int64{0} // of single keys
		if cfg.TTL > 0 && rapid.Bool().Draw(t, "own times") {
			times = append(times, 3, 80, math.MaxInt64)
		}
		w := New(cfg)
		type kept struct {
			key Key
			Original
			at, ttl int64
		}
		var model []kept
		now, seq := int64(1000), uint64(1)
		old := func(e kept) bool {
			ttl := e.ttl
			if ttl == 0 {
				ttl = cfg.TTL
			}
			return ttl > 0 && now-e.at >= ttl
		}
		age := func() {
			for len(model) > 0 && (len(model) > cfg.Size || old(model[0])) {
				model = model[1:]
			}
		}
		find := func(k Key) int { return slices.IndexFunc(model, func(e kept) bool { return e.key == k }) }
		some := rapid.IntRange(0, 60)
		t.Repeat(map[string]func(*rapid.T){
			"publish": func(t *rapid.T) {
				k := key(some.Draw(t, "key"))
				age()
				i := find(k)
				if i >= 0 && old(model[i]) {
					model = slices.Delete(model, i, i+1)
					age()
					i = -1
				}
				o, known := w.Find(k, now)
				if known != (i >= 0) || known && o != model[i].Original {
					t.Fatalf("found %+v, %v, want %v", o, known, i >= 0)
				}
				if known && !rapid.Bool().Draw(t, "again") {
					return
				}
				if known {
					model = slices.Delete(model, i, i+1)
				}
				o = Original{Seq: seq, Pos: rapid.SampledFrom([]uint64{0, Never}).Draw(t, "pos")}
				seq += rapid.Uint64Range(1, 3).Draw(t, "gap")
				ttl := rapid.SampledFrom(times).Draw(t, "own ttl")
				w.AddFor(k, o, now, ttl)
				model = append(model, kept{k, o, now, ttl})
				age()
			},
			"append": func(t *rapid.T) {
				to := rapid.Uint64Range(1, seq).Draw(t, "to")
				from := rapid.Uint64Range(0, to).Draw(t, "from")
				pos := rapid.SampledFrom([]uint64{7, 99, 100, 150}).Draw(t, "pos")
				w.Appended(from, to, pos)
				for i := range model {
					if m := &model[i]; m.Seq >= from && m.Seq <= to && m.Pos == 0 {
						m.Pos = pos
					}
				}
			},
			"leave": func(t *rapid.T) {
				gone := rapid.Uint64Range(1, seq).Draw(t, "seq")
				w.Forget(gone)
				if cfg.Present {
					model = slices.DeleteFunc(model, func(e kept) bool { return e.Seq == gone })
				}
			},
			"time": func(t *rapid.T) { now += rapid.Int64Range(0, 20).Draw(t, "ms") },
			"configure": func(t *rapid.T) {
				cfg.Size = rapid.IntRange(1, 40).Draw(t, "size")
				if !w.Configure(cfg, now) {
					t.Fatal("other bounds were refused")
				}
				age()
			},
			"save": func(t *rapid.T) {
				if len(times) > 1 {
					t.Skip("only exchanges have keys with times of their own, and do not save them")
				}
				back := New(cfg)
				saved := w.Append([]byte("x"), 100)
				rest, err := Read(append(saved, 'y')[1:], func(s Saved) { back.Restore(s, now) })
				if err != nil || string(rest) != "y" {
					t.Fatalf("rest %q, %v", rest, err)
				}
				age()
				w.age(now)
				back.age(now)
				want := 0
				for _, m := range model {
					if m.Pos == 0 || m.Pos >= 100 {
						continue
					}
					want++
					if o, ok := back.Find(m.key, now); !ok || o.Seq != m.Seq {
						t.Fatalf("%d came back as %+v, %v", m.Seq, o, ok)
					}
				}
				if back.Len() != want {
					t.Fatalf("%d keys came back, want %d", back.Len(), want)
				}
			},
			"": func(t *rapid.T) {
				if len(times) == 1 && len(w.seqs) != len(model) {
					t.Fatalf("%d keys, want %d", len(w.seqs), len(model))
				}
				if w.n > 2*max(16, 2*cfg.Size, 2*40) || len(w.ring)&(len(w.ring)-1) != 0 {
					t.Fatalf("%d entries in a ring of %d for %d keys", w.n, len(w.ring), len(w.seqs))
				}
			},
		})
	})
}

func TestMeaningChanges(t *testing.T) {
	w := New(Config{On: true, Size: 10})
	if w.Configure(Config{On: true, Size: 10, Present: true}, 0) || w.Configure(Config{On: true, Size: 10, By: "h"}, 0) {
		t.Error("a window took over keys that mean something else")
	}
}

func FuzzRead(f *testing.F) {
	w := New(Config{On: true, Size: 100})
	for i := range 3 {
		w.Add(key(i), Original{Seq: uint64(i + 1), Pos: 1}, int64(1000*i))
	}
	f.Add(w.Append(nil, 9))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, src []byte) {
		n := 0
		if rest, err := Read(src, func(Saved) { n++ }); err == nil && len(src)-len(rest) < 18*n {
			t.Fatalf("%d keys of %d bytes", n, len(src)-len(rest))
		}
	})
}

// TestCost holds the documented cost of a key.
func TestCost(t *testing.T) {
	const n = 1 << 17
	r := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w := New(Config{On: true, Size: n})
			for i := range n {
				w.Add(Key{uint64(i) * keySeed, 1}, Original{Seq: uint64(i + 1)}, 0)
			}
		}
	})
	// All tables on the way up are counted here, the last one of which stays: half of it all.
	if per := r.AllocedBytesPerOp() / n / 2; per > 100 {
		t.Errorf("a key costs about %d bytes", per)
	}
}

func BenchmarkWindow(b *testing.B) {
	w := New(Config{On: true, Size: 1 << 16})
	seq := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		seq++
		k := Key{seq * keySeed, 1}
		if _, known := w.Find(k, 0); !known {
			w.Add(k, Original{Seq: seq}, 0)
		}
	}
}

// The account of a window's memory is about what the heap grew by.
func TestMemory(t *testing.T) {
	var none *Window
	if none.Memory() != 0 {
		t.Error("no window takes memory")
	}
	for _, n := range []int{1000, 50_000, 150_000, 250_000} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		w := New(Config{On: true, Size: n})
		for i := range n {
			w.Add(KeyOf(strconv.Itoa(i)), Original{Seq: uint64(i), Pos: Never}, 1)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		if m := w.Memory(); m < grown*3/4 || m > grown*5/4 {
			t.Errorf("%d keys: accounted %d bytes of %d", n, m, grown)
		}
		runtime.KeepAlive(w)
	}
}
