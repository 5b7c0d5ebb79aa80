package route

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/firemq/firemq/frames/table"
)

func dedupTable(t testing.TB, args table.Table) *Table[string] {
	t.Helper()
	tab := New[string]()
	if !tab.AddExchange("/", "d", Deduplication, args) {
		t.Fatal("the exchange was refused")
	}
	for _, q := range []string{"q1", "q2"} {
		tab.AddQueue("/", q, q)
		tab.Bind(Binding{VHost: "/", Source: "d", Dest: q, Key: "any"})
	}
	return tab
}

func cacheOf(n int64) table.Table {
	return table.Table{{Name: "x-cache-size", Value: table.IntValue(n)}}
}

// keyed is a message with a key, and a time that this is known for unless it is nil.
func keyed(key string, ttl ...table.Value) *given {
	m := &given{headers: table.Table{{Name: "x-deduplication-header", Value: table.StringValue(key)}}}
	for _, v := range ttl {
		m.headers = append(m.headers, table.Field{Name: "x-cache-ttl", Value: v})
	}
	return m
}

func TestDeduplication(t *testing.T) {
	ttl := func(ms int64) table.Table {
		return append(cacheOf(100), table.Field{Name: "x-cache-ttl", Value: table.IntValue(ms)})
	}
	type step struct {
		after int64 // ms
		m     *given
		want  string
	}
	const both = "q1 q2"
	number := &given{headers: table.Table{{Name: "x-deduplication-header", Value: table.IntValue(7)}}}
	for _, tc := range []struct {
		rule  string
		args  table.Table
		steps []step
	}{
		{"the first message of a key, whatever the routing key", cacheOf(2), []step{{0, keyed("a"), both}, {0, keyed("a"), ""}, {0, keyed("b"), both}, {0, keyed("a"), ""}}},
		{"a number is a key", cacheOf(2), []step{{0, number, both}, {0, number, ""}}},
		{"messages without a key", cacheOf(1), []step{{0, &given{}, both}, {0, &given{}, both}, {0, keyed(""), both}, {0, keyed(""), both}}},
		{"the oldest key of too many is forgotten", cacheOf(2), []step{{0, keyed("a"), both}, {0, keyed("b"), both}, {0, keyed("c"), both}, {0, keyed("b"), ""}, {0, keyed("a"), both}}},
		{"a size as a string", table.Table{{Name: "x-cache-size", Value: table.StringValue("1")}}, []step{{0, keyed("a"), both}, {0, keyed("a"), ""}}},
		{"no time: for ever", cacheOf(2), []step{{0, keyed("a"), both}, {1 << 40, keyed("a"), ""}}},
		{"a time is not prolonged", ttl(10), []step{{0, keyed("a"), both}, {9, keyed("a"), ""}, {1, keyed("a"), both}, {9, keyed("a"), ""}}},
		{"a message's own time, shorter", ttl(10), []step{{0, keyed("a"), both}, {0, keyed("b", table.IntValue(3)), both}, {2, keyed("b"), ""}, {1, keyed("b"), both}, {0, keyed("a"), ""}}},
		{"a message's own time, longer, as a string", ttl(10), []step{{0, keyed("a", table.StringValue("30")), both}, {29, keyed("a"), ""}, {1, keyed("a"), both}}},
		{"a time that is none", ttl(10), []step{{0, keyed("a", table.StringValue("soon")), both}, {9, keyed("a"), ""}, {1, keyed("a"), both}}},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			tab := dedupTable(t, tc.args)
			now := int64(1000)
			tab.Now = func() int64 { return now }
			c := tab.NewCache("/")
			for i, s := range tc.steps {
				now += s.after
				if e, _ := c.Route([]byte("d"), nil); !e.NeedsMessage {
					t.Fatal("a route is cached")
				}
				got, _ := c.RouteKeys(nil, []byte("d"), [][]byte{[]byte("k")}, s.m)
				slices.Sort(got)
				if strings.Join(got, " ") != s.want {
					t.Errorf("step %d: to %q, want %q", i+1, got, s.want)
				}
			}
		})
	}
}

// A repetition goes on to the alternate exchange, and the key counts for bindings from other exchanges, too.
func TestDeduplicationBetweenExchanges(t *testing.T) {
	tab := dedupTable(t, cacheOf(5))
	tab.AddExchange("/", "first", Fanout, nil)
	tab.AddExchange("/", "again", Fanout, nil)
	tab.AddQueue("/", "repeated", "repeated")
	tab.Bind(Binding{VHost: "/", Source: "first", Dest: "d", ToExchange: true})
	tab.Bind(Binding{VHost: "/", Source: "again", Dest: "repeated"})
	tab.SetAlternate("/", "d", "again")
	for i, s := range []struct{ exchange, want string }{{"first", "q1 q2"}, {"first", "repeated"}, {"d", "repeated"}} {
		got, _ := tab.RouteKeys(nil, "/", s.exchange, [][]byte{nil}, keyed("a"))
		slices.Sort(got)
		if strings.Join(got, " ") != s.want {
			t.Errorf("%d: to %q, want %q", i, got, s.want)
		}
	}
}

// Of publishers who send the same at the same time one is first.
func TestDeduplicationOfManyPublishers(t *testing.T) {
	tab := dedupTable(t, cacheOf(1000))
	var routed atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			c := tab.NewCache("/")
			for i := range 500 {
				got, _ := c.RouteKeys(nil, []byte("d"), [][]byte{nil}, keyed(string(rune('a'+i))))
				routed.Add(int64(len(got)))
			}
		})
	}
	wg.Wait()
	if n := routed.Load(); n != 500*2 {
		t.Errorf("%d deliveries of 500 messages to two queues", n)
	}
}

func TestDeduplicationArguments(t *testing.T) {
	with := func(name string, v table.Value) table.Table {
		return append(cacheOf(5), table.Field{Name: name, Value: v})
	}
	size := func(v table.Value) table.Table { return table.Table{{Name: "x-cache-size", Value: v}} }
	const badSize = "Missing or invalid argument, 'x-cache-size' must be an integer greater than 0"
	const badTime = "Invalid argument, 'x-cache-ttl' must be an integer greater than 0"
	for _, tc := range []struct {
		args table.Table
		want string
	}{
		{cacheOf(1), ""}, {with("x-cache-ttl", table.StringValue("5")), ""}, {with("x-cache-persistence", table.StringValue("memory")), ""},
		{nil, badSize}, {cacheOf(0), badSize}, {cacheOf(-1), badSize}, {size(table.StringValue("many")), badSize}, {size(table.BoolValue(true)), badSize},
		{cacheOf(1<<24 + 1), "Invalid argument, 'x-cache-size' must be 16777216 at most"},
		{with("x-cache-ttl", table.IntValue(0)), badTime}, {with("x-cache-ttl", table.StringValue("1s")), badTime},
		{with("x-cache-persistence", table.StringValue("disk")), "Invalid argument, 'x-cache-persistence' must be 'memory': 'disk' is not supported"},
		{with("x-cache-persistence", table.StringValue("tape")), "Invalid argument, 'x-cache-persistence' must be either 'disk' or 'memory'"},
		{with("x-cache-persistence", table.IntValue(1)), "Invalid argument, 'x-cache-persistence' must be either 'disk' or 'memory'"},
	} {
		text := ""
		if err := CheckExchange(Deduplication, tc.args); err != nil {
			text = err.Error()
		}
		if text != tc.want {
			t.Errorf("%v: got %q, want %q", tc.args, text, tc.want)
		}
	}
}
