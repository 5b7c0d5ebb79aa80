package oracle

import (
	"slices"
	"strings"
	"sync"
	"testing"
)

// minCases guards against cases that get lost, in a file that isn't read any more for example.
const minCases = 250

// TestCases plays every written case and compares the brokers' answers with each other, and where
// they differ with testdata/differences.txt.
func TestCases(t *testing.T) {
	scripts := loadScripts(t)
	if len(scripts) < minCases {
		t.Errorf("%d cases, want %d at least", len(scripts), minCases)
	}
	differences := loadDifferences(t)
	known := make(map[string]*difference)
	for _, d := range differences {
		if known[d.name] != nil {
			t.Errorf("differences.txt lists %q twice", d.name)
		}
		if len(d.reason) == 0 {
			t.Errorf("differences.txt gives no reason for %q", d.name)
		}
		known[d.name] = d
		if !slices.ContainsFunc(scripts, func(s *script) bool { return s.name == d.name }) {
			t.Errorf("differences.txt lists %q, which is no case", d.name)
		}
	}
	b := both(t)
	var mu sync.Mutex
	found := make(map[string][]string) // guarded by mu
	play := func(t *testing.T, sc *script, worker int) {
		d := known[sc.name]
		wait := grace
		if d != nil || *rewriteFlag {
			wait = shortGrace
		}
		r, err := run(sc, b.rabbit, b.fire, vhost(worker), vhost(worker), wait)
		if err == nil && d != nil && !slices.Equal(d.diff, r.diff()) && !*rewriteFlag {
			r, err = run(sc, b.rabbit, b.fire, vhost(worker), vhost(worker), grace) // the short while was too short
		}
		if err != nil {
			t.Fatal(err)
		}
		if *verboseFlag {
			t.Log("\n" + strings.Join(r.rabbit, "\n"))
		}
		diff := r.diff()
		mu.Lock()
		found[sc.name] = diff
		mu.Unlock()
		switch {
		case *rewriteFlag:
		case d == nil && len(diff) > 0:
			t.Errorf("the brokers differ (-RabbitMQ +FireMQ):\n%s\nof\n%s", strings.Join(diff, "\n"), strings.Join(r.rabbit, "\n"))
		case d != nil && len(diff) == 0:
			t.Error("the brokers agree: remove the case from differences.txt")
		case d != nil && !slices.Equal(d.diff, diff):
			t.Errorf("the brokers differ otherwise than listed (-RabbitMQ +FireMQ):\n%s\nlisted\n%s",
				strings.Join(diff, "\n"), strings.Join(d.diff, "\n"))
		}
	}
	// Many cases wait for a broker's clock, so that more of them run at a time than t.Parallel would let.
	work := make(chan *script)
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			for sc := range work {
				t.Run(sc.name, func(t *testing.T) { play(t, sc, worker) })
			}
		})
	}
	for _, sc := range scripts {
		work <- sc
	}
	close(work)
	wg.Wait()
	if !*rewriteFlag {
		return
	}
	// A run of some cases leaves the entries of the others as they are.
	var kept []*difference
	for _, sc := range scripts {
		diff, ran := found[sc.name]
		d := known[sc.name]
		switch {
		case !ran && d != nil:
			kept = append(kept, d)
		case len(diff) > 0:
			n := &difference{name: sc.name, diff: diff}
			if d != nil {
				n.reason = d.reason
			}
			kept = append(kept, n)
		}
	}
	if err := saveDifferences(kept); err != nil {
		t.Fatal(err)
	}
}
