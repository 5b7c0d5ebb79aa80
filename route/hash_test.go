package route

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"

	"github.com/firemq/firemq/frames/table"
)

// hashTable has a consistent hash exchange "h" with these arguments.
func hashTable(t testing.TB, args table.Table) *Table[string] {
	t.Helper()
	tab := New[string]()
	if !tab.AddExchange("/", "h", ConsistentHash, args) {
		t.Fatal("the exchange was refused")
	}
	return tab
}

func addBound(t testing.TB, tab *Table[string], queue, key string) {
	t.Helper()
	tab.AddQueue("/", queue, queue)
	if _, err := tab.Bind(Binding{VHost: "/", Source: "h", Dest: queue, Key: key}); err != nil {
		t.Fatal(err)
	}
}

// owners routes keys 0 to n-1; each must reach one queue.
func owners(t testing.TB, tab *Table[string], n int) []string {
	t.Helper()
	all := make([]string, n)
	for i := range all {
		got, _ := tab.Route(nil, "/", "h", strconv.AppendInt(nil, int64(i), 10), nil)
		if len(got) != 1 {
			t.Fatalf("key %d reached %v", i, got)
		}
		all[i] = got[0]
	}
	return all
}

func TestHashSharesByWeight(t *testing.T) {
	tab := hashTable(t, nil)
	weights := map[string]float64{"a": 1, "b": 2, "c": 7}
	for queue, w := range weights {
		addBound(t, tab, queue, strconv.Itoa(int(w)))
	}
	const n = 20_000
	got := make(map[string]float64)
	for _, q := range owners(t, tab, n) {
		got[q]++
	}
	for queue, w := range weights {
		// Six standard deviations; the keys are fixed, so this fails always or never.
		want := n * w / 10
		if off := math.Abs(got[queue] - want); off > 6*math.Sqrt(want) {
			t.Errorf("%s got %v of %d, want about %v", queue, got[queue], n, want)
		}
	}
}

// TestHashMovesOnlyWhatItMust: keys change their queue only to one that came, from one that went, or between
// them and one whose weight changed.
func TestHashMovesOnlyWhatItMust(t *testing.T) {
	const n = 5000
	tab := hashTable(t, nil)
	for i := range 5 {
		addBound(t, tab, fmt.Sprint("q", i), "10")
	}
	before := owners(t, tab, n)
	addBound(t, tab, "new", "10")
	after := owners(t, tab, n)
	moved := 0
	for i := range n {
		if after[i] != before[i] {
			moved++
			if after[i] != "new" {
				t.Fatalf("key %d went from %s to %s", i, before[i], after[i])
			}
		}
	}
	if moved < n/8 || moved > n/4 {
		t.Errorf("%d of %d moved, want a sixth", moved, n)
	}
	tab.RemoveQueue("/", "new")
	if again := owners(t, tab, n); !slices.Equal(again, before) {
		t.Error("the queue that went left something behind")
	}
	// A second binding adds its weight.
	addBound(t, tab, "q0", "40")
	for i, q := range owners(t, tab, n) {
		if q != before[i] && q != "q0" {
			t.Fatalf("key %d went from %s to %s", i, before[i], q)
		}
	}
	tab.Unbind(Binding{VHost: "/", Source: "h", Dest: "q0", Key: "40"})
	if again := owners(t, tab, n); !slices.Equal(again, before) {
		t.Error("an unbind did not take its weight away")
	}
	// A table that was filled in another order agrees: nothing depends on the past.
	other := hashTable(t, nil)
	for i := range 5 {
		addBound(t, other, fmt.Sprint("q", 4-i), "10")
	}
	if !slices.Equal(owners(t, other, n), before) {
		t.Error("the order of binding matters")
	}
	for i := range 5 {
		tab.RemoveQueue("/", fmt.Sprint("q", i))
	}
	if got, ok := tab.Route(nil, "/", "h", []byte("k"), nil); !ok || len(got) != 0 {
		t.Errorf("got %v, %v without bindings", got, ok)
	}
}

// TestHashOn: what is hashed decides, and what is not does not, through a cache too.
func TestHashOn(t *testing.T) {
	header := func(v table.Value) *given { return &given{headers: table.Table{{Name: "h", Value: v}}} }
	id := func(has table.Present, p table.Properties) *given { p.Has = has; return &given{props: p} }
	for _, tc := range []struct {
		name string
		args table.Table
		make func(i int) *given
	}{
		{"header", table.Table{{Name: "hash-header", Value: table.StringValue("h")}}, func(i int) *given { return header(table.StringValue(strconv.Itoa(i))) }},
		{"number", table.Table{{Name: "hash-header", Value: table.StringValue("h")}}, func(i int) *given { return header(table.IntValue(int64(i))) }},
		{"message id", table.Table{{Name: "hash-property", Value: table.StringValue("message_id")}},
			func(i int) *given { return id(table.HasMessageID, table.Properties{MessageID: strconv.Itoa(i)}) }},
		{"correlation id", table.Table{{Name: "hash-property", Value: table.StringValue("correlation_id")}},
			func(i int) *given {
				return id(table.HasCorrelationID, table.Properties{CorrelationID: strconv.Itoa(i)})
			}},
		{"timestamp", table.Table{{Name: "hash-property", Value: table.StringValue("timestamp")}},
			func(i int) *given { return id(table.HasTimestamp, table.Properties{Timestamp: uint64(i)}) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tab := hashTable(t, tc.args)
			for i := range 4 {
				addBound(t, tab, fmt.Sprint("q", i), "1")
			}
			c := tab.NewCache("/")
			reached := make(map[string]bool)
			route := func(m Message, key string) string {
				if e, ok := c.Route([]byte("h"), []byte(key)); !ok || !e.NeedsMessage {
					t.Fatal("the cache answers for what it does not see")
				}
				got, _ := c.RouteKeys(nil, []byte("h"), [][]byte{[]byte(key)}, m)
				if len(got) != 1 {
					t.Fatalf("reached %v", got)
				}
				return got[0]
			}
			for i := range 64 {
				q := route(tc.make(i), "k")
				if again := route(tc.make(i), "another key"); again != q {
					t.Fatalf("%d reached %s, then %s", i, q, again)
				}
				reached[q] = true
			}
			if len(reached) != 4 {
				t.Errorf("64 values reached %v", reached)
			}
			if a, b := route(nil, "k"), route(&given{}, "l"); a != b {
				t.Errorf("messages without the value reached %s and %s", a, b)
			}
		})
	}
}

// TestHashCached: a route by the key alone is remembered, and forgotten when a binding changes.
func TestHashCached(t *testing.T) {
	tab := hashTable(t, nil)
	addBound(t, tab, "a", "1")
	c := tab.NewCache("/")
	for i := range 200 {
		key := strconv.AppendInt(nil, int64(i), 10)
		for range 3 {
			if e, _ := c.Route([]byte("h"), key); e.NeedsMessage || !slices.Equal(e.Queues, []string{"a"}) {
				t.Fatalf("got %v", e.Queues)
			}
		}
	}
	addBound(t, tab, "b", "1")
	for i, want := range owners(t, tab, 200) {
		if e, _ := c.Route([]byte("h"), strconv.AppendInt(nil, int64(i), 10)); !slices.Equal(e.Queues, []string{want}) {
			t.Fatalf("key %d: cached %v, want %s", i, e.Queues, want)
		}
	}
}

func TestHashToExchanges(t *testing.T) {
	tab := hashTable(t, nil)
	for i := range 2 {
		x, q := fmt.Sprint("x", i), fmt.Sprint("q", i)
		tab.AddExchange("/", x, Fanout, nil)
		tab.AddQueue("/", q, q)
		tab.Bind(Binding{VHost: "/", Source: x, Dest: q})
		if _, err := tab.Bind(Binding{VHost: "/", Source: "h", ToExchange: true, Dest: x, Key: "1"}); err != nil {
			t.Fatal(err)
		}
	}
	count := make(map[string]int)
	for _, q := range owners(t, tab, 200) {
		count[q]++
	}
	if count["q0"] == 0 || count["q1"] == 0 {
		t.Errorf("got %v", count)
	}
}

func TestHashArguments(t *testing.T) {
	str := table.StringValue
	for _, tc := range []struct {
		args table.Table
		want string
	}{
		{nil, ""},
		{table.Table{{Name: "hash-header", Value: str("h")}}, ""},
		{table.Table{{Name: "hash-property", Value: str("timestamp")}}, ""},
		{table.Table{{Name: "hash-property", Value: str("app_id")}}, "Unsupported property: app_id"},
		{table.Table{{Name: "hash-property", Value: str("x")}, {Name: "hash-header", Value: str("h")}}, "hash-header and hash-property are mutually exclusive"},
		{table.Table{{Name: "hash-header", Value: table.Int32Value(1)}}, "Invalid hash-header field type signedint; expected longstr"},
	} {
		text := ""
		if err := CheckExchange(ConsistentHash, tc.args); err != nil {
			text = err.Error()
		}
		if text != tc.want {
			t.Errorf("%v: got %q, want %q", tc.args, text, tc.want)
		}
	}
	for key, want := range map[string]string{
		"1": "", "+7": "", "007": "", "99999999999999999999999999": "",
		"0": "The binding key must be greater than 0", "-3": "The binding key must be greater than 0",
		"": `The binding key must be an integer: <<>>`, "1.5": `The binding key must be an integer: <<"1.5">>`,
		"a": `The binding key must be an integer: <<"a">>`, "1_0": `The binding key must be an integer: <<"1_0">>`,
	} {
		text := ""
		if err := CheckBinding(ConsistentHash, &Binding{Key: key}); err != nil {
			text = err.Error()
		}
		if text != want {
			t.Errorf("%q: got %q, want %q", key, text, want)
		}
	}
}

func TestRandom(t *testing.T) {
	t.Run("x-random", func(t *testing.T) { testRandom(t, Random, "any") })
	t.Run("x-local-random", func(t *testing.T) { testRandom(t, LocalRandom, "") })
}

func testRandom(t *testing.T, kind Kind, key string) {
	tab := New[string]()
	tab.AddExchange("/", "r", kind, nil)
	for i := range 3 {
		q := fmt.Sprint("q", i)
		tab.AddQueue("/", q, q)
		if _, err := tab.Bind(Binding{VHost: "/", Source: "r", Dest: q, Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	c := tab.NewCache("/")
	reached := make(map[string]bool)
	for len(reached) < 3 { // ends with certainty
		if e, _ := c.Route([]byte("r"), nil); !e.NeedsMessage {
			t.Fatal("a random route is cached")
		}
		got, _ := c.RouteKeys(nil, []byte("r"), [][]byte{nil}, nil)
		if len(got) != 1 {
			t.Fatalf("reached %v", got)
		}
		reached[got[0]] = true
	}
}

func TestLocalRandomRefuses(t *testing.T) {
	tab := New[string]()
	tab.AddExchange("/", "r", LocalRandom, nil)
	tab.AddExchange("/", "x", Fanout, nil)
	tab.AddQueue("/", "q", "q")
	for _, c := range []struct {
		b    Binding
		want string
	}{
		{Binding{VHost: "/", Source: "r", Dest: "q", Key: "k"}, "Non empty binding 'k' key not permitted"},
		{Binding{VHost: "/", Source: "r", Dest: "x", ToExchange: true}, "Destination not found"},
	} {
		if _, err := tab.Bind(c.b); err == nil || err.Error() != c.want {
			t.Errorf("%+v: %v, want %s", c.b, err, c.want)
		}
	}
}

func TestHashAllocates(t *testing.T) {
	for name, args := range map[string]table.Table{
		"key":      nil,
		"header":   {{Name: "hash-header", Value: table.StringValue("h")}},
		"property": {{Name: "hash-property", Value: table.StringValue("timestamp")}},
	} {
		tab := hashTable(t, args)
		for i := range 8 {
			addBound(t, tab, fmt.Sprint("q", i), "1")
		}
		c := tab.NewCache("/")
		m := &given{headers: table.Table{{Name: "h", Value: table.IntValue(3)}}, props: table.Properties{Has: table.HasTimestamp, Timestamp: 9}}
		exchange, keys := []byte("h"), [][]byte{[]byte("k")}
		var dst []string
		if n := testing.AllocsPerRun(100, func() { dst, _ = c.RouteKeys(dst[:0], exchange, keys, m) }); n != 0 {
			t.Errorf("hashing the %s allocates %v times", name, n)
		}
	}
}

func BenchmarkHash(b *testing.B) {
	for _, n := range []int{4, 64, 1024} {
		b.Run(fmt.Sprint("queues=", n), func(b *testing.B) {
			tab := hashTable(b, nil)
			for i := range n {
				addBound(b, tab, fmt.Sprint("q", i), "1")
			}
			key := []byte("some key")
			var dst []string
			b.ReportAllocs()
			for b.Loop() {
				dst, _ = tab.Route(dst[:0], "/", "h", key, nil)
			}
		})
	}
}
