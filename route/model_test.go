package route

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/firemq/firemq/frames/table"
)

// naive is the rules without any index: the model that Table is compared with.
type naive struct {
	exchanges map[string]*naiveExchange
	queues    map[string]int
	bindings  []Binding
}

type naiveExchange struct {
	kind      Kind
	alternate string
}

func naiveTopic(pattern, key []string) bool {
	if len(pattern) == 0 {
		return len(key) == 0
	}
	switch {
	case pattern[0] == "#":
		return naiveTopic(pattern[1:], key) || len(key) > 0 && naiveTopic(pattern, key[1:])
	case len(key) == 0:
		return false
	}
	return (pattern[0] == "*" || pattern[0] == key[0]) && naiveTopic(pattern[1:], key[1:])
}

func naiveWords(key string) []string {
	if key == "" {
		return nil
	}
	return strings.Split(key, ".")
}

func naiveHeaders(args, headers table.Table) bool {
	mode := "all"
	if v, ok := args.Get("x-match"); ok {
		mode = v.Str
	}
	hits, criteria := 0, 0
	for _, a := range args {
		if a.Name == "x-match" || strings.HasPrefix(a.Name, "x-") && !strings.HasSuffix(mode, "-with-x") {
			continue
		}
		criteria++
		if v, ok := headers.Get(a.Name); ok && (a.Value.Kind == table.Void || table.Equal(a.Value, v)) {
			hits++
		}
	}
	if strings.HasPrefix(mode, "any") {
		return hits > 0
	}
	return hits == criteria
}

func (n *naive) matches(k Kind, b Binding, keys []string, headers table.Table) bool {
	switch k {
	case Fanout:
		return true
	case Headers:
		return naiveHeaders(b.Args, headers)
	}
	return slices.ContainsFunc(keys, func(key string) bool {
		if k == Direct {
			return key == b.Key
		}
		return naiveTopic(naiveWords(b.Key), naiveWords(key))
	})
}

// route gives the sorted queues and whether a headers exchange took part.
func (n *naive) route(exchange string, keys []string, headers table.Table) (queues []int, byHeaders, exists bool) {
	queues = []int{}
	add := func(q int) {
		if !slices.Contains(queues, q) {
			queues = append(queues, q)
		}
	}
	if exchange == "" {
		for _, key := range keys {
			if q, ok := n.queues[key]; ok {
				add(q)
			}
		}
		slices.Sort(queues)
		return queues, false, true
	}
	if n.exchanges[exchange] == nil {
		return nil, false, false
	}
	todo, seen := []string{exchange}, map[string]bool{}
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		ex := n.exchanges[name]
		if seen[name] || ex == nil {
			continue
		}
		seen[name] = true
		byHeaders = byHeaders || ex.kind == Headers
		any := false
		for _, b := range n.bindings {
			if b.Source != name || !n.matches(ex.kind, b, keys, headers) {
				continue
			}
			any = true
			if b.ToExchange {
				todo = append(todo, b.Dest)
			} else {
				add(n.queues[b.Dest])
			}
		}
		if !any {
			todo = append(todo, ex.alternate)
		}
	}
	slices.Sort(queues)
	return queues, byHeaders, true
}

func sameBinding(a, b Binding) bool {
	return a.Source == b.Source && a.ToExchange == b.ToExchange && a.Dest == b.Dest && a.Key == b.Key &&
		identify(a.Args) == identify(b.Args)
}

func (n *naive) remove(drop func(Binding) bool) (removed []Binding) {
	n.bindings = slices.DeleteFunc(n.bindings, func(b Binding) bool {
		if drop(b) {
			removed = append(removed, b)
			return true
		}
		return false
	})
	return removed
}

func describe(l []Binding) string {
	s := make([]string, len(l))
	for i, b := range l {
		s[i] = fmt.Sprintf("%s>%s/%v %s %q", b.Source, b.Dest, b.ToExchange, b.Key, identify(b.Args))
	}
	slices.Sort(s)
	return strings.Join(s, "\n")
}

// Names that only exist in the model test. "n1" is both a queue's and an exchange's.
var (
	modelExchanges = rapid.SampledFrom([]string{"e1", "e2", "e3", "e4", "n1"})
	modelQueues    = rapid.SampledFrom([]string{"q1", "q2", "q3", "n1"})
	modelKeys      = rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "", "*", "#", "#"}), 0, 4),
		func(words []string) string { return strings.Join(words, ".") })
	modelFields = rapid.Custom(func(t *rapid.T) table.Field {
		return table.Field{
			Name: rapid.SampledFrom([]string{"a", "b", "x-a"}).Draw(t, "name"),
			Value: rapid.SampledFrom([]table.Value{table.IntValue(1), table.Int32Value(1), table.FloatValue(1),
				table.StringValue("1"), table.StringValue("2"), table.BytesValue([]byte("1")), table.VoidValue()}).Draw(t, "value"),
		}
	})
	modelHeaders = rapid.Map(rapid.SliceOfN(modelFields, 0, 3), func(f []table.Field) table.Table { return f })
	modelArgs    = rapid.Custom(func(t *rapid.T) table.Table {
		args := modelHeaders.Draw(t, "args")
		if mode := rapid.SampledFrom([]string{"", "", "all", "any", "all-with-x", "any-with-x"}).Draw(t, "mode"); mode != "" {
			args = append(args, table.Field{Name: "x-match", Value: table.StringValue(mode)})
		}
		return args
	})
)

func drawBinding(t *rapid.T) Binding {
	b := Binding{VHost: "/", Source: modelExchanges.Draw(t, "source"), Key: modelKeys.Draw(t, "key")}
	if rapid.Bool().Draw(t, "with arguments") {
		b.Args = modelArgs.Draw(t, "args")
	}
	if b.ToExchange = rapid.IntRange(0, 3).Draw(t, "toExchange") == 0; b.ToExchange {
		b.Dest = modelExchanges.Draw(t, "dest")
	} else {
		b.Dest = modelQueues.Draw(t, "dest")
	}
	return b
}

// A table, and a cache that lives as long, give what the rules give after any operations.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab, model := New[int](), &naive{exchanges: map[string]*naiveExchange{}, queues: map[string]int{}}
		cache := tab.NewCache("/")
		for i, name := range []string{"e1", "e2", "e3", "n1"} {
			k := Kind(1 + (i+rapid.IntRange(0, 3).Draw(t, "kinds"))%4)
			tab.AddExchange("/", name, k, nil)
			model.exchanges[name] = &naiveExchange{kind: k}
		}
		nextQueue := 0
		for _, name := range []string{"q1", "q2", "n1"} {
			nextQueue++
			tab.AddQueue("/", name, nextQueue)
			model.queues[name] = nextQueue
		}
		bind := func(t *rapid.T) {
			b := drawBinding(t)
			_, isQueue := model.queues[b.Dest]
			there := model.exchanges[b.Source] != nil && (b.ToExchange && model.exchanges[b.Dest] != nil || !b.ToExchange && isQueue)
			known := slices.ContainsFunc(model.bindings, func(o Binding) bool { return sameBinding(o, b) })
			added, err := tab.Bind(b)
			if there != (err == nil) || added != (there && !known) {
				t.Fatalf("bind %v: got %v, %v", b, added, err)
			}
			if added {
				model.bindings = append(model.bindings, b)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { check(t, tab) },
			"add exchange": func(t *rapid.T) {
				name, k := modelExchanges.Draw(t, "name"), Kind(rapid.IntRange(1, 4).Draw(t, "kind"))
				if got, want := tab.AddExchange("/", name, k, nil), model.exchanges[name] == nil; got != want {
					t.Fatalf("added: got %v, want %v", got, want)
				} else if got {
					model.exchanges[name] = &naiveExchange{kind: k}
				}
			},
			"add queue": func(t *rapid.T) {
				name := modelQueues.Draw(t, "name")
				nextQueue++
				_, taken := model.queues[name]
				if got := tab.AddQueue("/", name, nextQueue); got == taken {
					t.Fatalf("added: got %v", got)
				} else if got {
					model.queues[name] = nextQueue
				}
			},
			"remove exchange": func(t *rapid.T) {
				name := modelExchanges.Draw(t, "name")
				delete(model.exchanges, name)
				want := model.remove(func(b Binding) bool { return b.Source == name || b.ToExchange && b.Dest == name })
				if got, want := describe(tab.RemoveExchange("/", name)), describe(want); got != want {
					t.Fatalf("removed: got\n%s\nwant\n%s", got, want)
				}
			},
			"remove queue": func(t *rapid.T) {
				name := modelQueues.Draw(t, "name")
				delete(model.queues, name)
				want := model.remove(func(b Binding) bool { return !b.ToExchange && b.Dest == name })
				if got, want := describe(tab.RemoveQueue("/", name)), describe(want); got != want {
					t.Fatalf("removed: got\n%s\nwant\n%s", got, want)
				}
			},
			"set alternate": func(t *rapid.T) {
				name, alternate := modelExchanges.Draw(t, "name"), rapid.OneOf(modelExchanges, rapid.Just("")).Draw(t, "alternate")
				if tab.SetAlternate("/", name, alternate) {
					model.exchanges[name].alternate = alternate
				}
			},
			"bind":          bind,
			"bind another":  bind,
			"bind one more": bind,
			"unbind": func(t *rapid.T) {
				b := drawBinding(t)
				if n := len(model.bindings); n > 0 && rapid.Bool().Draw(t, "known") {
					b = model.bindings[rapid.IntRange(0, n-1).Draw(t, "which")]
				}
				want := len(model.remove(func(o Binding) bool { return sameBinding(o, b) })) > 0
				if got := tab.Unbind(b); got != want {
					t.Fatalf("unbind %v: got %v, want %v", b, got, want)
				}
			},
			"list": func(t *rapid.T) {
				var got []Binding
				tab.Bindings("/", func(b Binding) bool { got = append(got, b); return true })
				if got, want := describe(got), describe(model.bindings); got != want {
					t.Fatalf("got\n%s\nwant\n%s", got, want)
				}
			},
			"route":       func(t *rapid.T) { modelRoute(t, tab, cache, model) },
			"route again": func(t *rapid.T) { modelRoute(t, tab, cache, model) },
		})
	})
}

func modelRoute(t *rapid.T, tab *Table[int], cache *Cache[int], model *naive) {
	exchange := rapid.OneOf(modelExchanges, rapid.Just("")).Draw(t, "exchange")
	keys := rapid.SliceOfN(rapid.OneOf(modelKeys, modelQueues), 1, 3).Draw(t, "keys")
	headers := modelHeaders.Draw(t, "headers")
	calls := 0
	m := &given{headers: headers, calls: &calls}
	raw := make([][]byte, len(keys))
	for i := range keys {
		raw[i] = []byte(keys[i])
	}
	verify := func(how string, got []int, ok bool, want []int, exists bool) {
		t.Helper()
		got = slices.Sorted(slices.Values(got))
		if ok != exists || !slices.Equal(got, want) {
			t.Fatalf("%s: %q %q: got %v, %v, want %v, %v", how, exchange, keys, got, ok, want, exists)
		}
	}

	want, byHeaders, exists := model.route(exchange, keys, headers)
	got, ok := tab.RouteKeys(nil, "/", exchange, raw, m)
	verify("all keys", got, ok, want, exists)
	if max := 1; calls > max || byHeaders != (calls == 1) {
		t.Fatalf("headers were asked for %d times, headers exchange: %v", calls, byHeaders)
	}

	want, byHeaders, exists = model.route(exchange, keys[:1], headers)
	got, ok = tab.Route(nil, "/", exchange, raw[0], m)
	verify("one key", got, ok, want, exists)
	for _, how := range []string{"cache", "cache again"} {
		e, ok := cache.Route([]byte(exchange), raw[0])
		if !ok {
			verify(how, nil, false, nil, exists)
			continue
		}
		if e.NeedsMessage != byHeaders {
			t.Fatalf("%s: %q %q: needs headers: got %v, want %v", how, exchange, keys[0], e.NeedsMessage, byHeaders)
		}
		got := e.Queues
		if e.NeedsMessage {
			got, ok = cache.RouteKeys(nil, []byte(exchange), raw[:1], m)
		}
		verify(how, got, ok, want, exists)
	}
}
