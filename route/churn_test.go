package route

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/firemq/firemq/frames/table"
)

// Routers run while bindings, queues and exchanges of the same names come and go under several
// goroutines. What lasts is found at all times, and every binding that was added is removed once.
func TestChurn(t *testing.T) {
	const binders, steps = 4, 3000
	tab := newTable(t, map[string]Kind{"d": Direct, "t": Topic, "f": Fanout, "h": Headers}, "q-lasting")
	bind(t, tab, to("d", "q-lasting", "k"), to("t", "q-lasting", "k"), to("f", "q-lasting", ""), to("h", "q-lasting", ""),
		to("d", "t", "hop"), to("t", "q-lasting", "hop"))
	var added, removed atomic.Int64
	added.Add(6)

	var binding sync.WaitGroup
	for seed := range binders {
		binding.Go(func() {
			r := rand.New(rand.NewPCG(uint64(seed), 1))
			pick := func(names ...string) string { return names[r.IntN(len(names))] }
			for range steps {
				source := pick("d", "t", "f", "h", "x1", "x2")
				dest := pick("q1", "q2", "q3", "x1", "x2", "t")
				def := to(source, dest, pick("k", "k.#", "hop.#", "*"))
				if r.IntN(2) == 0 {
					def.Args = table.Table{{Name: "n", Value: table.StringValue(pick("1", "2"))}}
				}
				switch r.IntN(10) {
				case 0:
					name := pick("q1", "q2", "q3")
					tab.AddQueue("/", name, name)
				case 1:
					removed.Add(int64(len(tab.RemoveQueue("/", pick("q1", "q2", "q3")))))
				case 2:
					tab.AddExchange("/", pick("x1", "x2"), Kind(1+r.IntN(4)), nil)
				case 3, 4:
					removed.Add(int64(len(tab.RemoveExchange("/", pick("x1", "x2")))))
				case 5:
					tab.SetAlternate("/", pick("d", "x1", "x2"), pick("x1", "x2", "f", ""))
				case 6, 7:
					if tab.Unbind(def) {
						removed.Add(1)
					}
				default:
					if ok, _ := tab.Bind(def); ok {
						added.Add(1)
					}
				}
			}
		})
	}

	routes := []struct{ exchange, key string }{{"d", "k"}, {"t", "k"}, {"f", "k"}, {"h", "k"}, {"d", "hop"}, {"", "q-lasting"}, {"", "q1"}, {"x1", "k"}}
	caches := []*Cache[string]{tab.NewCache("/"), tab.NewCache("/")}
	stop := make(chan struct{})
	var routing sync.WaitGroup
	for _, c := range caches {
		routing.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				r := routes[i%len(routes)]
				direct, ok1 := tab.Route(nil, "/", r.exchange, []byte(r.key), nil)
				e, ok2 := c.Route([]byte(r.exchange), []byte(r.key))
				for _, queues := range [][]string{direct, cachedQueues(e)} {
					slices.Sort(queues)
					if len(slices.Compact(slices.Clone(queues))) != len(queues) {
						t.Errorf("%v: twice in %v", r, queues)
					}
				}
				if lasting := i%len(routes) < 6; lasting && !(ok1 && slices.Contains(direct, "q-lasting") &&
					ok2 && (e.NeedsMessage || slices.Contains(e.Queues, "q-lasting"))) {
					t.Errorf("%v: got %v, %v; cached %v, %v", r, direct, ok1, cachedQueues(e), ok2)
					return
				}
				count := 0
				few := func(Binding) bool { count++; return count%5 > 0 }
				tab.Bindings("/", few)
				tab.BindingsFrom("/", "d", few)
				tab.BindingsTo("/", false, "q1", few)
			}
		})
	}
	binding.Wait()
	close(stop)
	routing.Wait()

	check(t, tab)
	remaining := int64(0)
	tab.Bindings("/", func(Binding) bool { remaining++; return true })
	if added.Load() != removed.Load()+remaining {
		t.Errorf("%d bindings added, %d removed, %d there", added.Load(), removed.Load(), remaining)
	}
	for i, c := range caches {
		for _, r := range routes {
			want, ok1 := tab.Route(nil, "/", r.exchange, []byte(r.key), nil)
			e, ok2 := c.Route([]byte(r.exchange), []byte(r.key))
			if slices.Sort(want); ok1 != ok2 || ok2 && !e.NeedsMessage && !slices.Equal(want, slices.Sorted(slices.Values(e.Queues))) {
				t.Errorf("cache %d, %v: got %+v, %v, want %v, %v", i, r, e, ok2, want, ok1)
			}
		}
	}
	for _, x := range []string{"d", "t", "f", "h", "x1", "x2"} {
		removed.Add(int64(len(tab.RemoveExchange("/", x))))
	}
	if added.Load() != removed.Load() {
		t.Errorf("%d bindings added, %d removed in the end", added.Load(), removed.Load())
	}
	check(t, tab)
}

// cachedQueues copies an entry's queues, which must not be sorted in place.
func cachedQueues(e *Entry[string]) []string {
	if e == nil {
		return nil
	}
	return slices.Clone(e.Queues)
}

// Wide results take the other way through the sets: maps instead of scans.
func TestManyDestinations(t *testing.T) {
	tab := newTable(t, map[string]Kind{"t": Topic, "hub": Fanout})
	var names []string
	for i := range 200 {
		q, x := fmt.Sprintf("q%03d", i), fmt.Sprintf("x%03d", i)
		names = append(names, q)
		tab.AddQueue("/", q, q)
		tab.AddExchange("/", x, Fanout, nil)
		bind(t, tab, to("t", q, "a.#"), to("t", q, "#.b"), to("t", q, "a.*"),
			to("t", q, fmt.Sprintf("#.w%d.#", i)), to("t", q, fmt.Sprintf("#.w%d.#.w%d.#", i, i)),
			to("hub", x, ""), to(x, q, ""), to(x, fmt.Sprintf("x%03d", i/2), ""))
	}
	key := ""
	for i := range 200 {
		key += fmt.Sprintf("w%d.", i)
	}
	c := tab.NewCache("/")
	for _, r := range []struct{ exchange, key string }{{"t", "a.b"}, {"t", key}, {"hub", ""}} {
		got, _ := tab.Route(nil, "/", r.exchange, []byte(r.key), nil)
		if slices.Sort(got); !slices.Equal(got, names) {
			t.Errorf("%s: got %d queues: %v", r.exchange, len(got), got)
		}
		e := cached(t, c, r.exchange, r.key)
		if got := slices.Sorted(slices.Values(e.Queues)); !slices.Equal(got, names) {
			t.Errorf("%s, cached: got %d queues: %v", r.exchange, len(got), got)
		}
	}
	for i := range 200 {
		tab.RemoveQueue("/", names[i])
		if n := len(must(tab.Route(nil, "/", "t", []byte("a.b"), nil))); n != 199-i {
			t.Fatalf("%d queues after %d are gone", n, i+1)
		}
	}
	check(t, tab)
}

func must(queues []string, exists bool) []string {
	if !exists {
		panic("no exchange")
	}
	return queues
}
