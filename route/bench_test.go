package route

import (
	"fmt"
	"testing"

	"github.com/firemq/firemq/frames/table"
)

var routeBenchmarks = []struct{ name, exchange, key string }{
	{"default", "", "q7"},
	{"direct", "direct", "k7"},
	{"fanout10", "fanout", "k"},
	{"topic100k", "topic", "device.77778.temperature"},
	{"headers10", "headers", "k"},
	{"headers10k", "headers10k", "k"},
}

// benchTable has a direct exchange with 1,000 keys, a fanout exchange with 10 queues, a topic
// exchange with 100,000 patterns and headers exchanges with 10 and 10,000 bindings.
func benchTable(tb testing.TB) *Table[*int] {
	tab := New[*int]()
	for name, k := range map[string]Kind{"direct": Direct, "fanout": Fanout, "topic": Topic, "headers": Headers, "headers10k": Headers} {
		tab.AddExchange("/", name, k, nil)
	}
	for i := range 1000 {
		tab.AddQueue("/", fmt.Sprint("q", i), new(int))
		mustBind(tb, tab, "direct", i, fmt.Sprint("k", i))
	}
	for i := range 10 {
		mustBind(tb, tab, "fanout", i, "")
		mustBind(tb, tab, "headers", i, "", table.Field{Name: "kind", Value: table.StringValue(fmt.Sprint(i))})
	}
	for i := range 10_000 {
		mustBind(tb, tab, "headers10k", i%1000, "", table.Field{Name: "kind", Value: table.StringValue(fmt.Sprint(i))})
	}
	for i := range 100_000 {
		mustBind(tb, tab, "topic", i%1000, topicPattern(i))
	}
	return tab
}

// topicPattern spells patterns of three shapes: all words, a "*", a "#".
func topicPattern(i int) string {
	return fmt.Sprintf([...]string{"device.%d.temperature", "device.%d.*", "#.device.%d.#"}[i%3], i)
}

func mustBind(tb testing.TB, tab *Table[*int], source string, queue int, key string, args ...table.Field) {
	tb.Helper()
	b := Binding{VHost: "/", Source: source, Dest: fmt.Sprint("q", queue), Key: key, Args: args}
	if added, err := tab.Bind(b); !added || err != nil {
		tb.Fatalf("bind %v: %v, %v", b, added, err)
	}
}

func BenchmarkRoute(b *testing.B) {
	tab := benchTable(b)
	headers := table.Table{{Name: "kind", Value: table.StringValue("9")}}
	m := &given{headers: headers}
	for _, c := range routeBenchmarks {
		key := []byte(c.key)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			var dst []*int
			for b.Loop() {
				dst, _ = tab.Route(dst[:0], "/", c.exchange, key, m)
			}
			if len(dst) == 0 {
				b.Fatal("routed nowhere")
			}
		})
	}
}

func BenchmarkCache(b *testing.B) {
	tab := benchTable(b)
	direct := []byte("direct")
	var keys [1000][]byte
	for i := range keys {
		keys[i] = fmt.Append(nil, "k", i)
	}
	b.Run("last", func(b *testing.B) {
		c := tab.NewCache("/")
		b.ReportAllocs()
		for b.Loop() {
			c.Route(direct, keys[0])
		}
	})
	for _, n := range []int{16, 1000} {
		b.Run(fmt.Sprint("hit", n), func(b *testing.B) {
			c := tab.NewCache("/")
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if c.Route(direct, keys[i]); i == n-1 {
					i = -1
				}
				i++
			}
		})
	}
	b.Run("any1000", func(b *testing.B) { // in no order that comes again
		c := tab.NewCache("/")
		b.ReportAllocs()
		n := uint32(1)
		for b.Loop() {
			n = n*1664525 + 1013904223
			c.Route(direct, keys[n>>22%1000])
		}
	})
	b.Run("miss", func(b *testing.B) {
		c := tab.NewCache("/")
		topic, key := []byte("topic"), []byte("device.77778.xxxxxxxx")
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			for j, n := 13, i; j < len(key); j, n = j+1, n/16 {
				key[j] = 'a' + byte(n%16)
			}
			c.Route(topic, key)
			i++
		}
	})
}

func BenchmarkBindUnbind(b *testing.B) {
	tab := benchTable(b)
	for i := range 10_000 {
		tab.AddQueue("/", fmt.Sprint("same", i), new(int))
		if _, err := tab.Bind(Binding{VHost: "/", Source: "direct", Dest: fmt.Sprint("same", i), Key: "same"}); err != nil {
			b.Fatal(err)
		}
	}
	for _, c := range []struct{ name, source, dest, key string }{
		{"topic100k", "topic", "q5", "device.5000.temperature.celsius"},
		{"direct10kSameKey", "direct", "q5", "same"},
	} {
		b.Run(c.name, func(b *testing.B) {
			def := Binding{VHost: "/", Source: c.source, Dest: c.dest, Key: c.key}
			b.ReportAllocs()
			for b.Loop() {
				tab.Bind(def)
				if !tab.Unbind(def) {
					b.Fatal("not unbound")
				}
			}
		})
	}
}
