package route

import (
	"strings"
	"testing"
)

// FuzzTopic compares the trie with the rules for one pattern among others that share its words.
func FuzzTopic(f *testing.F) {
	for _, c := range topicCases {
		for _, key := range append(c.yes, c.no...) {
			f.Add(c.pattern, key)
		}
	}
	f.Fuzz(func(t *testing.T, pattern, key string) {
		if len(pattern) > 64 || len(key) > 64 || strings.Count(pattern, "#") > 4 {
			t.Skip("the model tries every way")
		}
		tab := newTable(t, map[string]Kind{"e": Topic}, "q1", "q2", "q3", "q4", "q5")
		bindings := []Binding{to("e", "q1", pattern), to("e", "q2", "#."+pattern), to("e", "q3", pattern+".*"),
			to("e", "q4", pattern+".#"), to("e", "q5", "*."+pattern)}
		bind(t, tab, bindings...)
		var want []string
		for _, b := range bindings {
			if naiveTopic(naiveWords(b.Key), naiveWords(key)) {
				want = append(want, b.Dest)
			}
		}
		if got := reached(tab, "e", key, nil); got != strings.Join(want, " ") {
			t.Errorf("key %q, pattern %q: got %q, want %q", key, pattern, got, want)
		}
		for _, b := range bindings {
			if !tab.Unbind(b) {
				t.Errorf("%v: not unbound", b)
			}
		}
		check(t, tab)
	})
}
