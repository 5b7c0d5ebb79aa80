package mgmt

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/journal"
	"github.com/firemq/firemq/mgmt/api"
)

func TestEncode(t *testing.T) {
	type inner struct {
		B int `json:"b"`
	}
	type outer struct {
		inner
		A    string         `json:"a"`
		Gone string         `json:"gone,omitempty"`
		List []int          `json:"list"`
		Map  map[string]any `json:"map"`
		Ptr  *string        `json:"ptr"`
		F    float64        `json:"f"`
		S    api.Stats      `json:"s,omitempty"`
	}
	v := outer{inner: inner{7}, A: "x", List: []int{1}, Map: map[string]any{"k": nil}, F: 2, S: api.Stats{{Name: "ack", Total: 3, Details: api.Details{Rate: 0.5}}}}
	for cols, want := range map[string]string{
		"":                         `{"b":7,"a":"x","list":[1],"map":{"k":null},"ptr":null,"f":2.0,"s":{"ack":3,"ack_details":{"rate":0.5}}}`,
		"a":                        `{"a":"x"}`,
		"b,map.k,map.x":            `{"b":7,"map":{"k":null}}`,
		"s.ack_details.rate":       `{"s":{"ack_details":{"rate":0.5}}}`,
		"s,s.ack":                  `{"s":{"ack":3,"ack_details":{"rate":0.5}}}`,
		"s.ack,s":                  `{"s":{"ack":3,"ack_details":{"rate":0.5}}}`,
		"nothing":                  `{}`,
		strings.Repeat("a.", 1000): `{"a":"x"}`,
	} {
		if got := string(encode(nil, v, parseColumns(cols))); got != want {
			t.Errorf("columns %.20q\ngot  %s\nwant %s", cols, got, want)
		}
	}
	if got := string(encode(nil, []outer{v, v}, parseColumns("b"))); got != `[{"b":7},{"b":7}]` {
		t.Error(got)
	}
}

func TestEncodeText(t *testing.T) {
	for s, want := range map[string]string{
		"": `""`, `a"b\c`: `"a\"b\\c"`, "\n\r\t\x00\x1f": `"\n\r\t\u0000\u001f"`, "ü€": `"ü€"`, "<&>": `"<&>"`, "\xff": "\"\xff\"",
	} {
		if got := string(appendText(nil, s)); got != want {
			t.Errorf("%q: %s, want %s", s, got, want)
		}
		var back string
		if err := json.Unmarshal(appendText(nil, s), &back); s != "\xff" && (err != nil || back != s) {
			t.Errorf("%q comes back as %q: %v", s, back, err)
		}
	}
	for f, want := range map[float64]string{0: "0.0", 1: "1.0", 0.5: "0.5", 1e21: "1e+21", math.Inf(1): "null"} {
		if got := string(appendFloat(nil, f)); got != want {
			t.Errorf("%v: %s, want %s", f, got, want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("a\"\\\n\x00\xff")
	f.Fuzz(func(t *testing.T, s string) {
		var got string
		if err := json.Unmarshal(appendText(nil, s), &got); err != nil {
			t.Fatal(err)
		}
		if utf8.ValidString(s) && got != s {
			t.Fatalf("%q comes back as %q", s, got)
		}
	})
}

func FuzzPath(f *testing.F) {
	f.Add("/queues/%2F/a%2Fb/")
	f.Add("/../%2e%2E/x")
	rt := newRouter(endpoints())
	f.Fuzz(func(t *testing.T, path string) {
		segments, ok := splitPath(path)
		if !ok {
			return
		}
		for _, s := range segments {
			if s == "." || s == ".." {
				t.Fatalf("%q: a dot segment is left", path)
			}
		}
		if e, vars := rt.find(segments); e != nil && len(vars) != strings.Count(e.path, "{") {
			t.Fatalf("%q: %s with %v", path, e.path, vars)
		}
	})
}

// publicPaths are what RabbitMQ, too, answers without credentials.
var publicPaths = []string{
	"/index.html", "/auth", "/login", "/version", "/health/checks/is-in-service", "/health/checks/below-node-connection-limit", "/health/checks/ready-to-serve-clients",
	"/health/checks/reached-target-cluster-size",
}

// TestRoutes: every path leads to its own endpoint, and none is public by mistake.
func TestRoutes(t *testing.T) {
	rt := newRouter(endpoints())
	for _, e := range endpoints() {
		segments, _ := splitPath(strings.NewReplacer("{", "", "}", "").Replace(e.path))
		if got, _ := rt.find(segments); got == nil || got.path != e.path {
			t.Errorf("%s leads to %v", e.path, got)
		}
		if (e.level == public || e.write == public) && !slices.Contains(publicPaths, e.path) {
			t.Errorf("%s is public", e.path)
		}
	}
}

func TestSortBy(t *testing.T) {
	type item struct {
		N int       `json:"n"`
		S string    `json:"s"`
		M api.Stats `json:"m,omitempty"`
	}
	list := []item{{3, "b", nil}, {1, "a", api.Stats{{Name: "x", Total: 5}}}, {2, "c", nil}, {1, "d", nil}}
	for field, want := range map[string]string{"n": "a d c b", "s": "a b c d", "m.x": "b c d a", "nothing": "b a c d"} {
		sorted := sortBy(list, field, false, len(list), func(i *item, _ parts) item { return *i })
		var got []string
		for _, i := range sorted {
			got = append(got, i.S)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %s, want %s", field, s, want)
		}
	}
}

// TestSortByTheFirst: those of a page are the first of the whole list.
func TestSortByTheFirst(t *testing.T) {
	type item struct {
		N int `json:"n"`
	}
	view := func(i *item, _ parts) item { return *i }
	for range 200 {
		list := make([]item, rand.IntN(1000))
		for i := range list {
			list[i].N = rand.IntN(300)
		}
		for _, reverse := range []bool{false, true} {
			whole := sortBy(list, "n", reverse, len(list), view)
			if !slices.IsSortedFunc(whole, func(a, b item) int {
				if reverse {
					a, b = b, a
				}
				return a.N - b.N
			}) {
				t.Fatal("not sorted")
			}
			first := rand.IntN(len(list) + 1)
			if got := sortBy(list, "n", reverse, first, view); !slices.Equal(got, whole[:first]) {
				t.Fatalf("the first %d of %d: %v, want %v", first, len(list), got, whole[:first])
			}
		}
	}
}

func TestSeries(t *testing.T) {
	var s series
	const every = 5000
	now := int64(1_000_000)
	for i := range int64(20) {
		s.add(now+i*every, []int64{i * 10, 7}, keepObject)
	}
	now += 19 * every
	if len(s.times) != keepObject {
		t.Errorf("%d samples are kept", len(s.times))
	}
	if r := s.rate(0, 190, now); r != 2 { // just sampled: since the one before
		t.Errorf("rate %v", r)
	}
	if r := s.rate(0, 200, now+every); r != 2 {
		t.Errorf("rate %v a while later", r)
	}
	if r := s.rate(1, 7, now+every); r != 0 {
		t.Errorf("rate of a constant %v", r)
	}
	d := s.details(0, 190, now, window{age: 10_000, incr: 5000})
	want := []api.Sample{{Sample: 190, Timestamp: now}, {Sample: 180, Timestamp: now - every}, {Sample: 170, Timestamp: now - 2*every}}
	if !reflect.DeepEqual(d.Samples, want) || *d.Avg != 180 || *d.AvgRate != 2 {
		t.Errorf("%+v, avg %v, rate %v", d.Samples, *d.Avg, *d.AvgRate)
	}
	// An object that is still keeps one sample, and goes on from there.
	for i := range int64(3 * keepObject) {
		s.add(now+i*every, []int64{190, 7}, keepObject)
	}
	if len(s.times) != 1 {
		t.Errorf("%d samples of what does not change", len(s.times))
	}
	now += 3 * keepObject * every
	s.add(now, []int64{240, 7}, keepObject)
	if r := s.rate(0, 240, now); r != 10 {
		t.Errorf("rate %v after the rest", r)
	}
	var none *series
	if d := none.details(0, 5, now, window{age: 10_000, incr: 5000}); d.Rate != 0 || len(d.Samples) != 1 || d.Samples[0].Sample != 5 {
		t.Errorf("without samples: %+v", d)
	}
}

func TestSampler(t *testing.T) {
	b, _, err := broker.Open(broker.Options{Start: broker.Snapshot{VHosts: []string{"/"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	c, e := b.Administer("/")
	if e != nil {
		t.Fatal(e)
	}
	defer c.Close()
	for i := range 10 {
		if _, e := c.DeclareQueue(&broker.QueueDeclare{Name: fmt.Sprint(i)}); e != nil {
			t.Fatal(e)
		}
	}
	s := newSampler(b)
	s.sample(1000)
	if len(s.queues) != 10 || len(s.vhosts) != 1 || len(s.exchanges) != 7 {
		t.Errorf("%d queues, %d vhosts, %d exchanges", len(s.queues), len(s.vhosts), len(s.exchanges))
	}
	for i := range 9 {
		if _, e := c.DeleteQueue(fmt.Sprint(i), false, false); e != nil {
			t.Fatal(e)
		}
	}
	s.sample(2000)
	if len(s.queues) != 1 || len(s.total.times) != 2 {
		t.Errorf("%d queues, %d samples", len(s.queues), len(s.total.times))
	}
	v := view{s: s, now: 3000}
	created := v.named(&s.total, lengthFields+len(statNames), churnNames[:], churnRow(nil, b.Counters()), window{})
	if n := created.Total("queue_created"); n != 10 {
		t.Errorf("%d created", n)
	}
	s.reset()
	if len(s.queues) != 0 {
		t.Error("reset left something")
	}
}

// BenchmarkSample is what the sampler costs every five seconds with 10,000 queues.
func BenchmarkSample(b *testing.B) {
	br, _, err := broker.Open(broker.Options{Start: broker.Snapshot{VHosts: []string{"/"}}})
	if err != nil {
		b.Fatal(err)
	}
	defer br.Close()
	c, e := br.Administer("/")
	if e != nil {
		b.Fatal(e)
	}
	defer c.Close()
	for i := range 10_000 {
		if _, e := c.DeclareQueue(&broker.QueueDeclare{Name: fmt.Sprint(i)}); e != nil {
			b.Fatal(e)
		}
	}
	s := newSampler(br)
	now := int64(0)
	for b.Loop() {
		s.sample(now)
		now += 5000
	}
}

// TestHistogram: buckets add up, and the last one is the count.
func TestHistogram(t *testing.T) {
	h := journal.Histogram{Sum: int64(1500 * time.Millisecond)}
	h.Counts[0], h.Counts[1], h.Counts[len(h.Counts)-1] = 2, 3, 4
	e := new(exposition)
	e.histogram("x_seconds", "How long", []float64{0.0001, 0.5, 1}, &h, time.Duration.Seconds)
	const want = `# TYPE x_seconds histogram
# HELP x_seconds How long
x_seconds_bucket{le="0.0001"} 2
x_seconds_bucket{le="0.5"} 5
x_seconds_bucket{le="1"} 5
x_seconds_bucket{le="+Inf"} 9
x_seconds_sum 1.5
x_seconds_count 9
`
	if got := string(e.buf); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
