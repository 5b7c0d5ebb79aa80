package route

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A set behaves like a count an item, below and above the size from which it keeps positions.
func TestSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s set[int]
		counts := map[int]int{}
		item := rapid.IntRange(0, 2*indexed)
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if got, want := slices.Sorted(slices.Values(s.items)), slices.Sorted(maps.Keys(counts)); !slices.Equal(got, want) {
					t.Fatalf("got %v, want %v", got, want)
				}
			},
			"add": func(t *rapid.T) {
				v := item.Draw(t, "item")
				s.add(v)
				counts[v]++
			},
			"add many": func(t *rapid.T) {
				for v := range 2 * indexed {
					s.add(v)
					counts[v]++
				}
			},
			"remove": func(t *rapid.T) {
				if v := item.Draw(t, "item"); counts[v] > 0 {
					s.remove(v)
					if counts[v]--; counts[v] == 0 {
						delete(counts, v)
					}
				}
			},
			"remove all": func(t *rapid.T) {
				for v, n := range counts {
					for range n {
						s.remove(v)
					}
				}
				clear(counts)
			},
		})
	})
}
