package route

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/firemq/firemq/frames/table"
)

// newTable makes a table with a vhost "/" that has these exchanges and queues.
// given is a Message; calls counts how often its headers were asked for.
type given struct {
	headers table.Table
	props   table.Properties
	calls   *int
}

func (g *given) Headers() table.Table {
	if g.calls != nil {
		*g.calls++
	}
	return g.headers
}

func (g *given) Properties() table.Properties { return g.props }

func newTable(t testing.TB, exchanges map[string]Kind, queues ...string) *Table[string] {
	t.Helper()
	tab := New[string]()
	for name, k := range exchanges {
		if !tab.AddExchange("/", name, k, nil) {
			t.Fatalf("exchange %s is taken", name)
		}
	}
	for _, q := range queues {
		if !tab.AddQueue("/", q, q) {
			t.Fatalf("queue %s is taken", q)
		}
	}
	return tab
}

// to makes a binding in vhost "/"; a destination is a queue if its name begins with "q".
func to(source, dest, key string, args ...table.Field) Binding {
	return Binding{VHost: "/", Source: source, Dest: dest, ToExchange: !strings.HasPrefix(dest, "q"), Key: key, Args: args}
}

func bind(t testing.TB, tab *Table[string], bindings ...Binding) {
	t.Helper()
	for _, b := range bindings {
		if added, err := tab.Bind(b); !added || err != nil {
			t.Fatalf("bind %v: got %v, %v", b, added, err)
		}
	}
}

// reached routes a message and lists the queues, sorted.
func reached(tab *Table[string], exchange, key string, headers table.Table) string {
	queues, ok := tab.Route(nil, "/", exchange, []byte(key), &given{headers: headers})
	if !ok {
		return "no exchange"
	}
	slices.Sort(queues)
	return strings.Join(queues, " ")
}

func TestDefaultExchangeRoutesByQueueName(t *testing.T) {
	tab := newTable(t, nil, "q1")
	for key, want := range map[string]string{"q1": "q1", "q2": "", "": ""} {
		if got := reached(tab, "", key, nil); got != want {
			t.Errorf("key %q: got %q, want %q", key, got, want)
		}
	}
	if _, ok := tab.Route(nil, "other", "", []byte("q1"), nil); !ok {
		t.Error("the default exchange is not in every vhost")
	}
	if tab.AddExchange("/", "", Direct, nil) {
		t.Error("the default exchange was added")
	}
	if _, err := tab.Bind(to("", "q1", "k")); !errors.Is(err, ErrNoSource) {
		t.Errorf("bind from the default exchange: got %v", err)
	}
}

func TestVHostsAreApart(t *testing.T) {
	tab := newTable(t, map[string]Kind{"e": Fanout}, "q1")
	tab.AddExchange("v", "e", Fanout, nil)
	tab.AddQueue("v", "q1", "v's")
	if _, err := tab.Bind(Binding{VHost: "v", Source: "e", Dest: "q1"}); err != nil {
		t.Fatal(err)
	}
	if got := reached(tab, "e", "", nil); got != "" {
		t.Errorf("in /: got %q, want nothing", got)
	}
	if got, _ := tab.Route(nil, "v", "e", nil, nil); !slices.Equal(got, []string{"v's"}) {
		t.Errorf("in v: got %q", got)
	}
}

func TestExchangeTypes(t *testing.T) {
	tab := newTable(t, map[string]Kind{"direct": Direct, "fanout": Fanout}, "q1", "q2")
	bind(t, tab,
		to("direct", "q1", "a"), to("direct", "q2", "a"), to("direct", "q2", "b"), to("direct", "q1", ""),
		to("fanout", "q1", "x"), to("fanout", "q1", "y"), to("fanout", "q2", ""))
	for _, c := range []struct{ rule, exchange, key, want string }{
		{"direct: every queue with the key", "direct", "a", "q1 q2"},
		{"direct: one queue", "direct", "b", "q2"},
		{"direct: the empty key is a key", "direct", "", "q1"},
		{"direct: no pattern", "direct", "*", ""},
		{"fanout: whatever the key, once each", "fanout", "zzz", "q1 q2"},
		{"a missing exchange", "nowhere", "a", "no exchange"},
	} {
		if got := reached(tab, c.exchange, c.key, nil); got != c.want {
			t.Errorf("%s: got %q, want %q", c.rule, got, c.want)
		}
	}
}

var topicCases = []struct {
	pattern string
	yes, no []string
}{
	{"", []string{""}, []string{"a", "."}},
	{"a", []string{"a"}, []string{"", "b", "a.a", "a."}},
	{"*", []string{"a", "*", "#"}, []string{"", "a.b", "."}},
	{"#", []string{"", "a", "a.b", ".", "..", "#"}, nil},
	{"#.#", []string{"", "a", "a.b", "."}, nil},
	{"a.*", []string{"a.b", "a."}, []string{"a", "a.b.c", "", "b.a"}},
	{"a.#", []string{"a", "a.b", "a.b.c", "a."}, []string{"", "b.a", "ab"}},
	{"#.a", []string{"a", "b.a", ".a", "a.a"}, []string{"", "a.b", "ba"}},
	{"*.#", []string{"a", "a.b", "."}, []string{""}},
	{"#.*", []string{"a", "a.b", "."}, []string{""}},
	{"*.*", []string{"a.b", "."}, []string{"", "a", "a.b.c", ".."}},
	{"a..b", []string{"a..b"}, []string{"a.b", "a.x.b"}},
	{"a.*.b", []string{"a..b", "a.x.b"}, []string{"a.b"}},
	{"a.#.b", []string{"a.b", "a..b", "a.x.y.b", "a.b.b"}, []string{"a", "b", "a.b.c"}},
	{"#.a.#.b.#", []string{"a.b", "x.a.y.b.z", "a.a.b.b"}, []string{"b.a", "a", ""}},
	{".", []string{"."}, []string{"", "a", ".."}},
	{"a.", []string{"a."}, []string{"a", "a.b"}},
	{"a*", []string{"a*"}, []string{"ab", "a"}},
	{"a.#b", []string{"a.#b"}, []string{"a.b", "a"}},
}

func TestTopicPatterns(t *testing.T) {
	for _, c := range topicCases {
		tab := newTable(t, map[string]Kind{"e": Topic}, "q1")
		bind(t, tab, to("e", "q1", c.pattern))
		for _, key := range c.yes {
			if reached(tab, "e", key, nil) != "q1" {
				t.Errorf("%q does not match %q", c.pattern, key)
			}
		}
		for _, key := range c.no {
			if reached(tab, "e", key, nil) != "" {
				t.Errorf("%q matches %q", c.pattern, key)
			}
		}
		if !tab.Unbind(to("e", "q1", c.pattern)) {
			t.Errorf("%q: not unbound", c.pattern)
		}
		check(t, tab)
	}
}

// With backtracking this would try some 10^10 ways to spread 60 words over the wildcards.
func TestTopicManyHashesTakePolynomialTime(t *testing.T) {
	tab := newTable(t, map[string]Kind{"e": Topic}, "q1")
	bind(t, tab, to("e", "q1", strings.Repeat("#.a.", 20)+"b"))
	if got := reached(tab, "e", strings.Repeat("a.", 60)+"c", nil); got != "" {
		t.Errorf("got %q, want nothing", got)
	}
	if got := reached(tab, "e", strings.Repeat("a.", 60)+"b", nil); got != "q1" {
		t.Errorf("got %q, want q1", got)
	}
}

func TestHeadersRules(t *testing.T) {
	str, void := table.StringValue, table.VoidValue()
	f := func(name string, v table.Value) table.Field { return table.Field{Name: name, Value: v} }
	match := func(s string) table.Field { return f("x-match", str(s)) }
	for _, c := range []struct {
		rule    string
		args    table.Table
		headers table.Table
		want    bool
	}{
		{"all is the default: one missing", table.Table{f("a", str("1")), f("b", str("2"))}, table.Table{f("a", str("1"))}, false},
		{"all is the default: both there", table.Table{f("a", str("1")), f("b", str("2"))}, table.Table{f("b", str("2")), f("a", str("1")), f("c", void)}, true},
		{"any: one is enough", table.Table{match("any"), f("a", str("1")), f("b", str("2"))}, table.Table{f("a", str("1"))}, true},
		{"any: a number among strings", table.Table{match("any"), f("a", str("1")), f("b", table.IntValue(2))}, table.Table{f("b", table.IntValue(2))}, true},
		{"all: a number among strings", table.Table{f("b", table.IntValue(2)), f("a", str("1"))}, table.Table{f("a", str("1")), f("b", table.IntValue(2))}, true},
		{"any: none", table.Table{match("any"), f("a", str("1"))}, table.Table{f("a", str("2"))}, false},
		{"all, no criteria: everything", nil, table.Table{f("a", str("1"))}, true},
		{"all, no criteria: no headers", table.Table{match("all")}, nil, true},
		{"any, no criteria: nothing", table.Table{match("any")}, table.Table{f("a", str("1"))}, false},
		{"all ignores x- arguments", table.Table{f("x-a", str("1"))}, nil, true},
		{"any ignores x- arguments", table.Table{match("any"), f("x-a", str("1"))}, table.Table{f("x-a", str("1"))}, false},
		{"all-with-x heeds them", table.Table{match("all-with-x"), f("x-a", str("1"))}, nil, false},
		{"all-with-x never asks for x-match", table.Table{match("all-with-x"), f("x-a", str("1"))}, table.Table{f("x-a", str("1"))}, true},
		{"any-with-x heeds them", table.Table{match("any-with-x"), f("x-a", str("1")), f("b", str("1"))}, table.Table{f("x-a", str("1"))}, true},
		{"any-with-x, no criteria: nothing", table.Table{match("any-with-x")}, table.Table{match("any-with-x")}, false},
		{"void: any value will do", table.Table{f("a", void)}, table.Table{f("a", table.IntValue(7))}, true},
		{"void: the header must be there", table.Table{f("a", void)}, nil, false},
		{"a void header is no value", table.Table{f("a", str(""))}, table.Table{f("a", void)}, false},
		{"numbers by value: widths", table.Table{f("a", table.Int32Value(1))}, table.Table{f("a", table.IntValue(1))}, true},
		{"numbers by value: int and double", table.Table{f("a", table.IntValue(1))}, table.Table{f("a", table.FloatValue(1))}, true},
		{"a number is no string", table.Table{f("a", table.IntValue(1))}, table.Table{f("a", str("1"))}, false},
		{"a bool is no number", table.Table{f("a", table.BoolValue(true))}, table.Table{f("a", table.IntValue(1))}, false},
		{"the first of duplicate headers counts", table.Table{f("a", str("2"))}, table.Table{f("a", str("1")), f("a", str("2"))}, false},
	} {
		tab := newTable(t, map[string]Kind{"e": Headers}, "q1")
		bind(t, tab, to("e", "q1", "", c.args...))
		if got := reached(tab, "e", "", c.headers) == "q1"; got != c.want {
			t.Errorf("%s: got %v, want %v", c.rule, got, c.want)
		}
	}
}

// What all bindings demand does not tell them apart: they are found by what is their own.
func TestHeadersAreFiledUnderTheRarest(t *testing.T) {
	tab := newTable(t, map[string]Kind{"e": Headers})
	f := func(name, value string) table.Field { return table.Field{Name: name, Value: table.StringValue(value)} }
	def := func(i int) Binding {
		return to("e", fmt.Sprint("q", i), "", f("format", "pdf"), f("id", fmt.Sprint(i)), f("tenant", "t"))
	}
	for i := range 100 {
		tab.AddQueue("/", def(i).Dest, def(i).Dest)
		bind(t, tab, def(i))
	}
	x := tab.exchange("/", "e").index.(*headersIndex[string])
	if n := len(x.filed[text{"format", "pdf"}].items); n > 2 {
		t.Errorf("%d bindings are filed under what they share", n)
	}
	for i := range 100 {
		if got := reached(tab, "e", "", table.Table{f("tenant", "t"), f("format", "pdf"), f("id", fmt.Sprint(i))}); got != fmt.Sprint("q", i) {
			t.Errorf("%d: got %q", i, got)
		}
	}
	for i := range 100 {
		tab.Unbind(def(i))
	}
	check(t, tab)
}

func TestHeadersWithoutHeaders(t *testing.T) {
	tab := newTable(t, map[string]Kind{"e": Headers}, "q1")
	bind(t, tab, to("e", "q1", ""))
	if got, ok := tab.Route(nil, "/", "e", nil, nil); !ok || len(got) != 1 {
		t.Errorf("got %v, %v; want the binding without criteria", got, ok)
	}
}

func TestHeadersBadMatchArgument(t *testing.T) {
	tab := newTable(t, map[string]Kind{"e": Headers, "d": Direct}, "q1")
	for _, c := range []struct {
		value table.Value
		want  string
	}{
		{table.StringValue("x"), `Invalid x-match field value <<"x">>; expected all, any, all-with-x, or any-with-x`},
		{table.StringValue(`a"b\`), `Invalid x-match field value <<"a\"b\\">>; expected all, any, all-with-x, or any-with-x`},
		{table.StringValue("é"), `Invalid x-match field value <<"é"/utf8>>; expected all, any, all-with-x, or any-with-x`},
		{table.StringValue("\x00\xff"), `Invalid x-match field value <<0,255>>; expected all, any, all-with-x, or any-with-x`},
		{table.StringValue(""), `Invalid x-match field value <<>>; expected all, any, all-with-x, or any-with-x`},
		{table.Int32Value(1), `Invalid x-match field type signedint (value 1); expected longstr`},
		{table.BoolValue(true), `Invalid x-match field type bool (value true); expected longstr`},
		{table.FloatValue(2), `Invalid x-match field type double (value 2.0); expected longstr`},
		{table.FloatValue(1e30), `Invalid x-match field type double (value 1.0e+30); expected longstr`},
		{table.ArrayValue(table.IntValue(1), table.StringValue("a")), `Invalid x-match field type array (value [{long,1},{longstr,<<"a">>}]); expected longstr`},
	} {
		b := to("e", "q1", "", table.Field{Name: "x-match", Value: c.value})
		_, err := tab.Bind(b)
		var refused *ArgumentError
		if !errors.As(err, &refused) || refused.Text != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
		b.Source = "d"
		if added, err := tab.Bind(b); !added || err != nil {
			t.Errorf("a direct exchange refuses x-match %v: %v", c.value, err)
		}
	}
	if tab.Sources("/", "e") != 0 {
		t.Error("a refused binding is there")
	}
	check(t, tab)
}

func TestExchangeToExchange(t *testing.T) {
	tab := newTable(t, map[string]Kind{"a": Direct, "b": Topic, "c": Fanout}, "q1", "q2", "q3")
	bind(t, tab,
		to("a", "b", "k.1"), to("a", "q1", "k.1"),
		to("b", "c", "k.#"), to("b", "q2", "*.1"),
		to("c", "a", ""), to("c", "c", ""), to("c", "q3", ""), to("c", "q1", ""))
	for exchange, want := range map[string]string{"a": "q1 q2 q3", "b": "q1 q2 q3", "c": "q1 q2 q3"} {
		if got := reached(tab, exchange, "k.1", nil); got != want {
			t.Errorf("from %s: got %q, want %q", exchange, got, want)
		}
	}
	if got := reached(tab, "b", "k.2", nil); got != "q1 q3" {
		t.Errorf("got %q, want q1 q3", got)
	}
}

func TestAlternateExchange(t *testing.T) {
	tab := newTable(t, map[string]Kind{"a": Direct, "b": Direct, "c": Fanout, "d": Direct, "deaf": Direct}, "q1", "q2")
	bind(t, tab, to("a", "q1", "k"), to("c", "q2", ""), to("a", "d", "e2e"), to("a", "deaf", "e2e deaf"))
	tab.SetAlternate("/", "a", "b")
	tab.SetAlternate("/", "b", "c")
	tab.SetAlternate("/", "d", "a") // a was visited: no use
	for _, c := range []struct{ rule, key, want string }{
		{"not used when a queue matched", "k", "q1"},
		{"chains", "other", "q2"},
		{"not used when only an exchange matched", "e2e deaf", ""},
		{"cycles end", "e2e", ""},
	} {
		if got := reached(tab, "a", c.key, nil); got != c.want {
			t.Errorf("%s: got %q, want %q", c.rule, got, c.want)
		}
	}
	tab.SetAlternate("/", "d", "c")
	if got := reached(tab, "a", "e2e", nil); got != "q2" {
		t.Errorf("of a visited exchange: got %q, want q2", got)
	}
	tab.SetAlternate("/", "b", "missing")
	if got := reached(tab, "a", "other", nil); got != "" {
		t.Errorf("missing: got %q, want nothing", got)
	}
	tab.SetAlternate("/", "a", "")
	if got := reached(tab, "a", "other", nil); got != "" {
		t.Errorf("none: got %q, want nothing", got)
	}
	if tab.SetAlternate("/", "nowhere", "a") {
		t.Error("set on a missing exchange")
	}
}

func TestRouteKeysIsAUnion(t *testing.T) {
	tab := newTable(t, map[string]Kind{"d": Direct, "t": Topic, "f": Fanout}, "q1", "q2", "q3")
	bind(t, tab, to("d", "q1", "a"), to("d", "q2", "b"), to("d", "q1", "b"), to("t", "q1", "a.#"), to("t", "q2", "#.b"), to("f", "q3", ""))
	tab.SetAlternate("/", "d", "f")
	for _, c := range []struct{ exchange, keys, want string }{
		{"d", "a b", "q1 q2"},
		{"d", "a nothing", "q1"}, // the alternate exchange is for messages with no match at all
		{"d", "no thing", "q3"},
		{"t", "a a.b", "q1 q2"},
		{"", "q1 q2 q1 nothing", "q1 q2"},
	} {
		var keys [][]byte
		for _, k := range strings.Fields(c.keys) {
			keys = append(keys, []byte(k))
		}
		got, _ := tab.RouteKeys(nil, "/", c.exchange, keys, nil)
		slices.Sort(got)
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%q %s: got %q, want %q", c.exchange, c.keys, got, c.want)
		}
		got, _ = tab.NewCache("/").RouteKeys(nil, []byte(c.exchange), keys, nil)
		slices.Sort(got)
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("cache: %q %s: got %q, want %q", c.exchange, c.keys, got, c.want)
		}
	}
}

func TestRouteAppends(t *testing.T) {
	tab := newTable(t, map[string]Kind{"f": Fanout}, "q1")
	bind(t, tab, to("f", "q1", ""))
	if got, _ := tab.Route([]string{"before"}, "/", "f", nil, nil); !slices.Equal(got, []string{"before", "q1"}) {
		t.Errorf("got %q", got)
	}
	if got, ok := tab.Route([]string{"before"}, "/", "none", nil, nil); ok || !slices.Equal(got, []string{"before"}) {
		t.Errorf("missing exchange: got %q, %v", got, ok)
	}
}

func TestBindingIdentity(t *testing.T) {
	f := func(name string, v table.Value) table.Field { return table.Field{Name: name, Value: v} }
	one, two := f("a", table.IntValue(1)), f("b", table.StringValue("2"))
	tab := newTable(t, map[string]Kind{"d": Direct, "x": Fanout}, "q1", "x2")
	tab.AddExchange("/", "q1", Fanout, nil) // of the queue's name
	bind(t, tab, to("d", "q1", "k"), to("d", "q1", "k", one, two), to("d", "q1", "k2"))
	toExchange := to("d", "q1", "k")
	toExchange.ToExchange = true
	bind(t, tab, toExchange)

	long := one
	long.Value.Kind = table.Long
	for _, b := range []Binding{to("d", "q1", "k"), to("d", "q1", "k", two, one), to("d", "q1", "k", long, two)} {
		if added, err := tab.Bind(b); added || err != nil {
			t.Errorf("bind of %v again: got %v, %v", b, added, err)
		}
	}
	if n := tab.Sources("/", "d"); n != 4 {
		t.Errorf("got %d bindings, want 4", n)
	}
	if tab.Unbind(to("d", "q1", "k", one)) {
		t.Error("unbound with other arguments")
	}
	for i, b := range []Binding{to("d", "q1", "k"), to("d", "q1", "k", two, one), toExchange, to("d", "q1", "k2")} {
		if !tab.Unbind(b) || tab.Unbind(b) {
			t.Errorf("%d: a binding must be unbound once", i)
		}
		if got, want := reached(tab, "d", "k", nil), []string{"q1", "", "", ""}[i]; got != want {
			t.Errorf("after %d: got %q, want %q", i, got, want)
		}
		check(t, tab)
	}
}

func TestMissingEnds(t *testing.T) {
	tab := newTable(t, map[string]Kind{"d": Direct}, "q1")
	for _, c := range []struct {
		b    Binding
		want error
	}{
		{to("none", "q1", ""), ErrNoSource}, {to("d", "q2", ""), ErrNoDestination},
		{to("d", "none", ""), ErrNoDestination}, {to("none", "none", ""), ErrNoSource},
	} {
		if added, err := tab.Bind(c.b); added || !errors.Is(err, c.want) {
			t.Errorf("bind %v: got %v, %v", c.b, added, err)
		}
		if tab.Unbind(c.b) {
			t.Errorf("unbound %v", c.b)
		}
	}
	if tab.RemoveQueue("/", "q2") != nil || tab.RemoveExchange("/", "none") != nil || tab.Sources("/", "none") != 0 {
		t.Error("what is missing left something behind")
	}
	check(t, tab)
}

func TestRemovalsReturnBindings(t *testing.T) {
	tab := newTable(t, map[string]Kind{"a": Direct, "b": Headers, "c": Topic}, "q1", "q2")
	bind(t, tab,
		to("a", "q1", "k"), to("b", "q1", ""), to("b", "q2", ""), to("c", "q1", "#"),
		to("a", "b", "k"), to("b", "c", ""), to("b", "b", "self"))
	keys := func(l []Binding) string {
		var s []string
		for _, b := range l {
			s = append(s, b.Source+">"+b.Dest)
		}
		slices.Sort(s)
		return strings.Join(s, " ")
	}
	if got := keys(tab.RemoveQueue("/", "q1")); got != "a>q1 b>q1 c>q1" {
		t.Errorf("queue: got %s", got)
	}
	check(t, tab)
	if got := keys(tab.RemoveExchange("/", "b")); got != "a>b b>b b>c b>q2" {
		t.Errorf("exchange: got %s", got)
	}
	if got := keys(tab.RemoveExchange("/", "a")); got != "" || reached(tab, "a", "k", nil) != "no exchange" {
		t.Errorf("an exchange without bindings: got %s", got)
	}
	check(t, tab)
	tab.AddExchange("/", "b", Fanout, nil)
	if tab.Sources("/", "b") != 0 || reached(tab, "b", "", nil) != "" {
		t.Error("a new exchange has its predecessor's bindings")
	}
}

func TestListings(t *testing.T) {
	tab := newTable(t, map[string]Kind{"a": Direct, "b": Topic}, "q1", "q2")
	args := table.Table{{Name: "n", Value: table.IntValue(1)}}
	all := []Binding{to("a", "q1", "k", args...), to("a", "b", "k"), to("b", "q1", "#"), to("b", "q2", "#")}
	bind(t, tab, all...)
	args[0].Name = "changed" // the table has its own
	tab.AddExchange("v", "a", Direct, nil)
	tab.AddQueue("v", "q1", "")
	bind(t, tab, Binding{VHost: "v", Source: "a", Dest: "q1"})

	for _, c := range []struct {
		name, want string
		list       func(func(Binding) bool)
	}{
		{"vhost", "a>b a>q1 b>q1 b>q2", func(v func(Binding) bool) { tab.Bindings("/", v) }},
		{"source", "a>b a>q1", func(v func(Binding) bool) { tab.BindingsFrom("/", "a", v) }},
		{"queue", "a>q1 b>q1", func(v func(Binding) bool) { tab.BindingsTo("/", false, "q1", v) }},
		{"exchange", "a>b", func(v func(Binding) bool) { tab.BindingsTo("/", true, "b", v) }},
		{"missing source", "", func(v func(Binding) bool) { tab.BindingsFrom("/", "none", v) }},
		{"missing destination", "", func(v func(Binding) bool) { tab.BindingsTo("/", true, "none", v) }},
	} {
		var got []string
		c.list(func(b Binding) bool {
			if b.Source == "a" && b.Dest == "q1" && b.Args[0].Name != "n" {
				t.Errorf("args: got %v", b.Args)
			}
			got = append(got, b.Source+">"+b.Dest)
			return true
		})
		slices.Sort(got)
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: got %q, want %q", c.name, s, c.want)
		}
		seen := 0
		c.list(func(Binding) bool { seen++; return false })
		if seen > 1 {
			t.Errorf("%s: went on after false", c.name)
		}
	}
}

// A visitor may change what it visits: no lock is held meanwhile.
func TestVisitorsMayCallTheTable(t *testing.T) {
	tab := newTable(t, map[string]Kind{"a": Topic}, "q1", "q2")
	all := []Binding{to("a", "q1", "k"), to("a", "q1", "#"), to("a", "q2", "#"), to("a", "a", "x")}
	for _, list := range []func(func(Binding) bool){
		func(v func(Binding) bool) { tab.Bindings("/", v) },
		func(v func(Binding) bool) { tab.BindingsFrom("/", "a", v) },
		func(v func(Binding) bool) { tab.BindingsTo("/", false, "q1", v) },
	} {
		for _, b := range all {
			tab.Bind(b)
		}
		list(func(b Binding) bool { return tab.Unbind(b) })
		check(t, tab)
	}
	if n := tab.Sources("/", "a"); n != 2 { // the last listing was q1's
		t.Errorf("%d bindings are left", n)
	}
}

func TestKindNames(t *testing.T) {
	for _, k := range []Kind{Direct, Fanout, Topic, Headers} {
		if got, ok := ParseKind(k.String()); !ok || got != k {
			t.Errorf("%v: got %v, %v", k, got, ok)
		}
	}
	for _, s := range []string{"", "x-delayed-message", "Direct"} {
		if _, ok := ParseKind(s); ok {
			t.Errorf("%q is a type", s)
		}
	}
}

// check compares the two ends of every binding.
func check[Q comparable](t interface {
	Helper()
	Fatalf(string, ...any)
}, tab *Table[Q]) {
	t.Helper()
	outs, ins := 0, 0
	incoming := func(n *node[Q]) {
		var prev *binding[Q]
		for b := n.in; b != nil; prev, b = b, b.next {
			ins++
			if b.id.dst != n || b.prev != prev || b.state != effective || b.src.out[b.id] != b || b.src.removed {
				t.Fatalf("incoming binding %v of %s is broken", b.definition(), n.name)
			}
		}
	}
	for i := range tab.shards {
		for _, n := range tab.shards[i].queues {
			incoming(n)
		}
		for _, ex := range tab.shards[i].exchanges {
			incoming(&ex.node)
			outs += len(ex.out)
			if ex.removed {
				t.Fatalf("%v is removed", ex.name)
			}
			if len(ex.out) == 0 {
				switch x := ex.index.(type) {
				case *directIndex[Q]:
					if len(x.byKey) > 0 {
						t.Fatalf("%v: buckets without bindings", ex.name)
					}
				case *fanoutIndex[Q]:
					if !x.all.empty() {
						t.Fatalf("%v: destinations without bindings", ex.name)
					}
				case *topicIndex[Q]:
					if r := x.root; r.leaf != nil || r.star != nil || r.hash != nil || len(r.few)+len(r.many) > 0 {
						t.Fatalf("%v: nodes without bindings", ex.name)
					}
				case *headersIndex[Q]:
					if len(x.filed)+len(x.other.items) > 0 {
						t.Fatalf("%v: rules without bindings", ex.name)
					}
				}
			}
		}
	}
	if outs != ins {
		t.Fatalf("%d bindings leave, %d arrive", outs, ins)
	}
}
