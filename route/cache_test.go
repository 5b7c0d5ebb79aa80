package route

import (
	"fmt"
	"slices"
	"testing"

	"github.com/firemq/firemq/frames/table"
)

func cached(t *testing.T, c *Cache[string], exchange, key string) *Entry[string] {
	t.Helper()
	e, ok := c.Route([]byte(exchange), []byte(key))
	if !ok {
		t.Fatalf("no exchange %q", exchange)
	}
	return e
}

// Each change is followed by what must, and what must not, be looked up anew.
func TestCacheInvalidation(t *testing.T) {
	tab := newTable(t, map[string]Kind{"a": Direct, "b": Topic, "c": Fanout, "d": Direct}, "q1", "q2", "q3")
	bind(t, tab, to("a", "q1", "k"), to("a", "b", "e2e"), to("b", "q2", "#"), to("d", "q3", "k"))
	c := tab.NewCache("/")
	routes := []struct{ exchange, key string }{{"a", "k"}, {"a", "e2e"}, {"a", "none"}, {"", "q1"}, {"", "q9"}, {"d", "k"}}
	tag := uint64(0)
	for _, s := range []struct {
		change  string
		do      func()
		renewed []int // indexes into routes
	}{
		{"the first time", func() {}, []int{0, 1, 2, 3, 4, 5}},
		{"the second time, from which on they are kept", func() {}, []int{0, 1, 2, 3, 4, 5}},
		{"nothing", func() {}, nil},
		{"bind elsewhere", func() { bind(t, tab, to("c", "q1", "")) }, nil},
		{"bind at a visited exchange", func() { bind(t, tab, to("b", "q3", "x")) }, []int{1}},
		{"bind again, in vain", func() { tab.Bind(to("b", "q3", "x")) }, nil},
		{"unbind", func() { tab.Unbind(to("b", "q3", "x")) }, []int{1}},
		{"bind at the first exchange", func() { bind(t, tab, to("a", "q3", "x")) }, []int{0, 1, 2}},
		{"set an alternate", func() { tab.SetAlternate("/", "a", "later") }, []int{0, 1, 2}},
		{"set the same alternate", func() { tab.SetAlternate("/", "a", "later") }, nil},
		{"the alternate appears", func() { tab.AddExchange("/", "later", Fanout, nil) }, []int{2}},
		{"it gets a queue", func() { bind(t, tab, to("later", "q1", "")) }, []int{2}},
		{"it goes", func() { tab.RemoveExchange("/", "later") }, []int{2}},
		{"declare the queue that was missing", func() { tab.AddQueue("/", "q9", "q9") }, []int{4}},
		{"delete a bound queue", func() { tab.RemoveQueue("/", "q3") }, []int{0, 1, 2, 5}},
		{"delete an exchange reached", func() { tab.RemoveExchange("/", "b") }, []int{0, 1, 2}},
		{"delete a queue of the default exchange", func() { tab.RemoveQueue("/", "q9") }, []int{4}},
	} {
		s.do()
		for i, r := range routes {
			e := cached(t, c, r.exchange, r.key)
			if renewed := e.Tag == 0; renewed != slices.Contains(s.renewed, i) {
				t.Errorf("%s: %v renewed: %v", s.change, r, renewed)
			}
			tag++
			e.Tag = tag
			if want, _ := tab.Route(nil, "/", r.exchange, []byte(r.key), nil); !slices.Equal(e.Queues, want) {
				t.Errorf("%s: %v: got %v, want %v", s.change, r, e.Queues, want)
			}
		}
	}
}

// A busy default exchange: queues come and go, the route to a lasting one is kept.
func TestCacheOfDefaultExchangeDoesNotThrash(t *testing.T) {
	tab := newTable(t, nil, "q1")
	c := tab.NewCache("/")
	cached(t, c, "", "q1").Tag = 1
	for i := range 10_000 {
		q := fmt.Sprint("reply", i)
		tab.AddQueue("/", q, q)
		tab.RemoveQueue("/", q)
		if cached(t, c, "", "q1").Tag != 1 {
			t.Fatalf("looked up anew after %d queues", i)
		}
	}
}

func TestCacheSeesExchangesComeAndGo(t *testing.T) {
	tab := newTable(t, nil, "q1")
	c := tab.NewCache("/")
	for range 3 {
		if e, ok := c.Route([]byte("e"), []byte("k")); ok || e != nil {
			t.Fatalf("no such exchange: got %v, %v", e, ok)
		}
		tab.AddExchange("/", "e", Headers, nil)
		if e := cached(t, c, "e", "k"); !e.NeedsMessage || len(e.Queues) > 0 {
			t.Fatalf("headers: got %+v", e)
		}
		cached(t, c, "e", "k").Tag = 5
		if cached(t, c, "e", "k").Tag != 5 {
			t.Fatal("that headers are needed is not remembered")
		}
		tab.RemoveExchange("/", "e")
	}
}

func TestCacheIsBounded(t *testing.T) {
	tab := newTable(t, map[string]Kind{"f": Fanout, "d": Direct})
	for i := range 1000 {
		q := fmt.Sprint("q", i)
		tab.AddQueue("/", q, q)
		bind(t, tab, to("f", q, ""))
	}
	bind(t, tab, to("d", "q1", ""))
	c := tab.NewCache("/")
	account := func() (entries, held int) {
		for _, s := range c.slots {
			if s.entry != nil {
				entries++
				held += s.entry.weight()
			}
		}
		if held != c.held {
			t.Fatalf("the cache counts %d, it holds %d", c.held, held)
		}
		return entries, held
	}
	twice := func(exchange, key string) *Entry[string] {
		cached(t, c, exchange, key)
		c.last = nil
		return cached(t, c, exchange, key)
	}
	for i := range 3 * cacheSlots {
		cached(t, c, "d", fmt.Sprint("once", i))
	}
	if n, _ := account(); n > 0 || len(c.slots) != cacheSlots {
		t.Errorf("%d entries of keys that came once, %d slots", n, len(c.slots))
	}
	for i := range 5 * cacheSlots {
		twice("d", fmt.Sprint(i))
	}
	if n, _ := account(); n < cacheSlots/2 || len(c.slots) != cacheSlots {
		t.Errorf("%d entries after more keys than fit, %d slots", n, len(c.slots))
	}
	tab.Unbind(to("d", "q1", ""))
	for i := range 100 { // outdated ones are replaced
		cached(t, c, "d", fmt.Sprint(5*cacheSlots-1-i))
	}
	account()
	for i := range 100 {
		if e := twice("f", fmt.Sprint(i)); len(e.Queues) != 1000 {
			t.Fatalf("got %d queues", len(e.Queues))
		}
		if _, held := account(); held > cacheQueues {
			t.Fatalf("%d queues held", held)
		}
	}
	cached(t, c, "f", "99").Tag = 1
	if cached(t, c, "d", ""); cached(t, c, "f", "99").Tag != 1 {
		t.Error("a recent entry is lost")
	}
}

// The queues of an entry may be kept: nothing writes to them later.
func TestCacheQueuesAreImmutable(t *testing.T) {
	tab := newTable(t, map[string]Kind{"d": Direct}, "q1", "q2", "q3")
	bind(t, tab, to("d", "q1", "k"), to("d", "q2", "k"))
	c := tab.NewCache("/")
	kept := cached(t, c, "d", "k").Queues
	tab.Unbind(to("d", "q1", "k"))
	bind(t, tab, to("d", "q3", "k"))
	cached(t, c, "d", "k")
	slices.Sort(kept)
	if !slices.Equal(kept, []string{"q1", "q2"}) {
		t.Errorf("got %v", kept)
	}
}

func TestRoutingAllocatesNothing(t *testing.T) {
	tab := benchTable(t)
	c := tab.NewCache("/")
	headers := table.Table{{Name: "kind", Value: table.StringValue("9")}}
	m := &given{headers: headers}
	var dst []*int
	for _, b := range routeBenchmarks {
		key, exchange := []byte(b.key), []byte(b.exchange)
		for name, f := range map[string]func(){
			"table": func() { dst, _ = tab.Route(dst[:0], "/", b.exchange, key, m) },
			"cache": func() { c.Route(exchange, key) },
		} {
			f()
			if raceDetector && name == "table" {
				continue
			}
			if n := testing.AllocsPerRun(100, f); n >= 1 {
				t.Errorf("%s, %s: %v allocations", b.name, name, n)
			}
		}
	}
}

// A route may find an exchange and then see it removed. Another one may take its name next, so
// nothing can vouch for the result.
func TestRouteOverARemovedExchangeIsNotKept(t *testing.T) {
	tab := newTable(t, map[string]Kind{"e": Fanout})
	ex := tab.exchange("/", "e")
	tab.RemoveExchange("/", "e")
	w := walk[string]{t: tab, record: true}
	if _, o := w.visit(ex); o != noExchange {
		t.Errorf("got outcome %d", o)
	}
	if c := tab.NewCache("/"); c.current(&Entry[string]{deps: w.deps}) {
		t.Error("the result would be kept")
	}
}

// A working set of a good part of the cache is kept, also while other keys pass by.
func TestCacheKeepsAWorkingSet(t *testing.T) {
	tab := newTable(t, map[string]Kind{"d": Direct})
	for _, passing := range []int{0, 20 * cacheSlots} {
		c := tab.NewCache("/")
		const keys, rounds = cacheSlots / 4, 4
		hits := 0
		for round := range rounds {
			for i := range keys {
				e := cached(t, c, "d", fmt.Sprint(i))
				if e.Tag != 0 && round == rounds-1 {
					hits++
				}
				e.Tag = 1
				for j := range passing / keys * min(round/2, 1) { // in the last two rounds
					cached(t, c, "d", fmt.Sprint("passing", i, j, round))
				}
			}
		}
		if hits < keys*95/100 {
			t.Errorf("%d of %d keys are kept while %d pass by", hits, keys, passing)
		}
	}
}

// TestEntriesThatLeftKeepNoOthers: an entry knows the one that came after it, but those that are no longer in slots are
// no chain of their own, and are no answer any more.
func TestEntriesThatLeftKeepNoOthers(t *testing.T) {
	tab := newTable(t, map[string]Kind{"a": Direct}, "q")
	c := tab.NewCache("/")
	const keys = 100
	for range 4 {
		for i := range keys {
			cached(t, c, "a", fmt.Sprint("k", i))
		}
	}
	bind(t, tab, to("a", "q", "k0")) // all are outdated: half of them are made anew
	for i := 0; i < keys; i += 2 {
		cached(t, c, "a", fmt.Sprint("k", i))
	}
	in := make(map[*Entry[string]]bool)
	for _, s := range c.slots {
		if s.entry != nil {
			in[s.entry] = true
		}
	}
	left := 0
	for e := range in {
		if e.gone {
			t.Fatalf("%q is in slots and has left", e.name)
		}
		if f := e.next; f != nil && !in[f] {
			if left++; !f.gone || f.next != nil {
				t.Fatalf("%q has left: gone %v, keeps others: %v", f.name, f.gone, f.next != nil)
			}
		}
	}
	if len(in) == 0 || left == 0 {
		t.Fatalf("%d entries, %d of them with one that left behind them: nothing was tested", len(in), left)
	}
}
