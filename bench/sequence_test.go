package bench

import (
	"math/bits"
	"testing"

	"pgregory.net/rapid"
)

func TestStream(t *testing.T) {
	for name, c := range map[string]struct {
		numbers         []uint64
		distinct, again uint64
	}{
		"in order":                 {[]uint64{1, 2, 3, 4}, 4, 0},
		"a gap":                    {[]uint64{1, 2, 4}, 3, 0},
		"a gap filled":             {[]uint64{1, 3, 2, 4}, 4, 0},
		"twice in a row":           {[]uint64{1, 2, 2, 3}, 3, 1},
		"twice later":              {[]uint64{1, 2, 3, 1}, 3, 1},
		"twice above a gap":        {[]uint64{1, 5, 5}, 2, 1},
		"backwards":                {[]uint64{5, 4, 3, 2, 1}, 5, 0},
		"beyond the window":        {[]uint64{1, maxDisorder + 100}, 2, 0},
		"late beyond the window":   {[]uint64{1, maxDisorder + 100, 2}, 3, 0},
		"late and twice":           {[]uint64{1, maxDisorder + 100, 2, 2}, 3, 1},
		"twice beyond the window":  {[]uint64{1, maxDisorder + 100, maxDisorder + 100}, 2, 1},
		"window, then in sequence": {[]uint64{2, maxDisorder + 100, 1, 3, 4, maxDisorder + 101}, 6, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var s stream
			var fresh uint64
			for _, n := range c.numbers {
				if s.add(n) {
					fresh++
				}
			}
			if s.distinct != c.distinct || s.again != c.again || fresh != c.distinct {
				t.Errorf("%d distinct, %d again, %d new; want %d, %d", s.distinct, s.again, fresh, c.distinct, c.again)
			}
		})
	}
}

// held counts the ring's set bits.
func (s *stream) held() (n int) {
	for _, w := range s.ahead {
		n += bits.OnesCount64(w)
	}
	return n
}

// The stream against a plain set.
func TestStreamModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s stream
		seen := make(map[uint64]bool)
		var again uint64
		top := uint64(0)
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			n := top + 1
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				n = rapid.Uint64Range(1, top+1).Draw(t, "old")
			case 1:
				n = top + rapid.Uint64Range(1, 3000).Draw(t, "ahead")
			}
			if isNew := s.add(n); isNew == seen[n] {
				t.Fatalf("add(%d) says %v", n, isNew)
			}
			if seen[n] {
				again++
			}
			seen[n] = true
			top = max(top, n)
			if s.distinct != uint64(len(seen)) || s.again != again || s.top != top {
				t.Fatalf("%d distinct, %d again, top %d; want %d, %d, %d", s.distinct, s.again, s.top, len(seen), again, top)
			}
			if s.base+uint64(s.held()) != s.distinct+uint64(len(s.late)) {
				t.Fatalf("base %d and %d bits ahead do not make %d numbers", s.base, s.held(), s.distinct)
			}
		}
		if got, want := s.missing(top), top-uint64(len(seen)); got != want {
			t.Fatalf("%d missing, want %d", got, want)
		}
	})
}

func TestStreamInOrderAllocatesNothing(t *testing.T) {
	var s stream
	if n := testing.AllocsPerRun(1000, func() { s.add(s.top + 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkStreamInOrder(b *testing.B) {
	b.ReportAllocs()
	var s stream
	for b.Loop() {
		s.add(s.top + 1)
	}
}

// Two consumers take turns with batches: the usual disorder.
func BenchmarkStreamTwoConsumers(b *testing.B) {
	b.ReportAllocs()
	var s stream
	n := uint64(0)
	for b.Loop() {
		s.add(n/200*200 + (n+100)%200 + 1)
		n++
	}
}
