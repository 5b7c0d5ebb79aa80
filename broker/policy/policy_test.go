package policy

import (
	"reflect"
	"slices"
	"testing"

	"github.com/firemq/firemq/broker/pattern"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
)

func definition(pairs ...any) table.Value { return table.TableValue(args(pairs...)) }

func TestNewRefuses(t *testing.T) {
	good := definition("max-length", i64(1))
	for _, tc := range []struct {
		name                                   string
		pattern, definition, priority, applyTo table.Value
		operator                               bool
		want                                   string
	}{
		{"no definition", str(""), definition(), i64(0), str("all"), false, `no policy provided`},
		{"no table", str(""), i64(5), i64(0), str("all"), false, `definition must be a dictionary: 5`},
		{"an unknown key", str(""), definition("junk", i64(1)), i64(0), str("all"), false,
			`[{<<"junk">>,1}] are not recognised policy settings`},
		{"unknown keys after bad values", str(""), definition("junk", i64(1), "max-length", str("a")), i64(0), str("all"), false,
			`<<"a">> is not a valid maximum length`},
		{"mirrored queues", str(""), definition("ha-mode", str("all"), "ha-params", definition("é", table.FloatValue(2))), i64(0), str("all"), false,
			`[{<<"ha-mode">>,<<"all">>},{<<"ha-params">>,#{<<"é"/utf8>> => 2.0}}] are not recognised policy settings`},
		{"a key twice", str(""), definition("expires", i64(1), "expires", i64(1)), i64(0), str("all"), false,
			`[<<"expires">>] duplicate keys not allowed`},
		{"a lease of 0", str(""), definition("expires", i64(0)), i64(0), str("all"), false, `0 is not a valid queue expiry`},
		{"a negative time to live", str(""), definition("message-ttl", i64(-1)), i64(0), str("all"), false, `-1 is not a valid message TTL`},
		{"bytes with a fraction", str(""), definition("max-length-bytes", table.FloatValue(1.5)), i64(0), str("all"), false,
			`1.5 is not a valid maximum length in bytes`},
		{"an overflow", str(""), definition("overflow", str("x")), i64(0), str("all"), false, `<<"x">> is not a valid overflow value`},
		{"a dead letter exchange", str(""), definition("dead-letter-exchange", table.ArrayValue(i64(1), table.VoidValue())), i64(0), str("all"), false,
			`[1,null] is not a valid dead letter exchange name`},
		{"a dead letter key", str(""), definition("dead-letter-routing-key", boolean(true)), i64(0), str("all"), false,
			`true is not a valid dead letter routing key`},
		{"an alternate exchange", str(""), definition("alternate-exchange", i64(1)), i64(0), str("all"), false,
			`1 is not a valid alternate exchange name`},
		{"a pattern", str("("), good, i64(0), str("all"), false,
			`pattern should be regular expression but is invalid: {"missing )",1}`},
		{"a pattern that is no string", i64(1), good, i64(0), str("all"), false, `pattern should be a binary but was 1`},
		{"a priority", str(""), good, str("1"), str("all"), false, `priority should be a number, actually was <<"1">>`},
		{"apply-to", str(""), good, i64(0), str("z"), false, `apply-to 'z' unrecognised; should be 'queues', 'exchanges' or 'all'`},
		{"all at once", str("[a"), definition(), str("x"), i64(0), false, `priority should be a number, actually was <<"x">>
pattern should be regular expression but is invalid: {"missing terminating ] for character class",2}
apply-to '0' unrecognised; should be 'queues', 'exchanges' or 'all'
no policy provided`},
		{"what operator policies do not have", str(""), definition("dead-letter-exchange", str("d")), i64(0), str("all"), true,
			`[{<<"dead-letter-exchange">>,<<"d">>}] are not recognised policy settings`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := New("p", tc.pattern, tc.definition, tc.priority, tc.applyTo, tc.operator)
			if err == nil || err.Error() != tc.want {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

func make1(t *testing.T, name, pattern, applyTo string, priority int64, operator bool, pairs ...any) *Policy {
	t.Helper()
	p, err := New(name, str(pattern), definition(pairs...), i64(priority), str(applyTo), operator)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPatterns(t *testing.T) {
	for _, tc := range []struct {
		pattern string
		yes, no []string
	}{
		{"", []string{"", "a"}, nil},
		{".*", []string{"", "a"}, nil},
		{"ord", []string{"orders", "my-orders"}, []string{"or"}},
		{"^ord", []string{"orders"}, []string{"my-orders"}},
		{`^(?!amq\.).*`, []string{"q", "", "xamq."}, []string{"amq.gen-x"}},
		{`^(?!amq\.)(?!(a|b[)]))c?$`, []string{"c", ""}, []string{"amq.x", "a", "b)", "d"}},
		{`^(?!x)(y|z)`, []string{"y", "z"}, []string{"x", "xy", "w"}},
	} {
		p := make1(t, "p", tc.pattern, "all", 0, false, "max-length", i64(1))
		for _, name := range tc.yes {
			if !p.Applies(ClassicQueues, name) {
				t.Errorf("%s does not match %q", tc.pattern, name)
			}
		}
		for _, name := range tc.no {
			if p.Applies(ClassicQueues, name) {
				t.Errorf("%s matches %q", tc.pattern, name)
			}
		}
	}
	for expr, want := range map[string]string{
		"a)":          `{"unmatched parentheses",1}`,
		"a**":         `{"invalid nested repetition operator",1}`,
		"*":           `{"nothing to repeat",0}`,
		`a\`:          `{"\\ at end of pattern",2}`,
		"^(?!a":       `{"missing )",5}`,
		"^(?!a(b)":    `{"missing )",8}`,
		"^(?!*)":      `{"nothing to repeat",0}`,
		"^(?!a)b|c":   `{"alternatives after a lookahead are not supported",6}`,
		"a(?!b)":      `{"invalid or unsupported Perl syntax",1}`,
		"^(?![a]()":   `{"missing )",9}`,
		`^(?![^]\)])`: ``,
	} {
		got := ""
		if _, err := pattern.Compile(expr); err != nil {
			got = invalidPattern(err)
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", expr, got, want)
		}
	}
}

func TestMatch(t *testing.T) {
	low := make1(t, "low", "^q", "all", 0, false, "max-length", i64(1))
	high := make1(t, "high", "^q1", "queues", 5, false, "max-length", i64(1))
	quorum := make1(t, "quorum", "^q1", "quorum_queues", 9, false, "max-length", i64(1))
	exchanges := make1(t, "exchanges", "^q1", "exchanges", 9, false, "alternate-exchange", str("x"))
	limit := make1(t, "limit", "^q1", "queues", 10, false, "max-length", i64(1), "target-group-size", i64(1))
	streams := make1(t, "streams", "", "streams", 99, false, "max-age", str("1D"))
	tie := make1(t, "a-tie", "^q1", "queues", 5, false, "max-length", i64(1))
	all := []*Policy{low, high, quorum, exchanges, limit, streams, tie}
	for _, tc := range []struct {
		target Target
		name   string
		want   *Policy
	}{
		{ClassicQueues, "q1", tie},
		{ClassicQueues, "q2", low},
		{ClassicQueues, "x", nil},
		{QuorumQueues, "q1", limit},
		{Exchanges, "q1", exchanges},
		{Exchanges, "q2", low},
	} {
		for range 2 {
			if got := Match(all, tc.target, tc.name); got != tc.want {
				t.Errorf("%d %s: got %+v, want %+v", tc.target, tc.name, got, tc.want)
			}
			slices.Reverse(all)
		}
	}
	if got := Match(nil, ClassicQueues, "q"); got != nil {
		t.Errorf("got %+v of nothing", got)
	}
}

func TestEffective(t *testing.T) {
	user := make1(t, "u", "", "all", 0, false, "max-length", i64(500), "message-ttl", i64(5), "overflow", str("drop-head"), "queue-version", i64(1), "dead-letter-exchange", str("d"))
	operator := make1(t, "o", "", "all", 0, true, "max-length", i64(400), "message-ttl", i64(9), "overflow", str("reject-publish"), "queue-version", i64(2), "expires", i64(7))
	want := args("max-length", i64(400), "message-ttl", i64(5), "overflow", str("reject-publish"), "queue-version", i64(2), "dead-letter-exchange", str("d"), "expires", i64(7))
	if got := Effective(user, operator); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if n, _ := user.Definition[0].Value.AsInt(); n != 500 {
		t.Error("the user's policy was changed")
	}
	if got := Effective(user, nil); !reflect.DeepEqual(got, user.Definition) {
		t.Errorf("alone: %+v", got)
	}
	if got := Effective(nil, operator); !reflect.DeepEqual(got, operator.Definition) {
		t.Errorf("operator alone: %+v", got)
	}
	if got := Effective(nil, nil); got != nil {
		t.Errorf("nothing: %+v", got)
	}
}

func TestWith(t *testing.T) {
	classic := args()
	quorum := args("x-queue-type", str("quorum"))
	for _, tc := range []struct {
		name       string
		args       table.Table
		definition table.Table
		want       func(s *Settings)
	}{
		{"no policy", classic, nil, func(s *Settings) {}},
		{"a policy alone", classic, args("expires", i64(1), "message-ttl", i64(0), "max-length", i64(3), "max-length-bytes", i64(4),
			"overflow", str("reject-publish-dlx"), "dead-letter-exchange", str(""), "dead-letter-routing-key", str("k"), "queue-mode", str("lazy")),
			func(s *Settings) {
				s.Config = queue.Config{Expires: 1, MessageTTL: 0, MaxLength: 3, MaxBytes: 4, Overflow: queue.RejectPublishDLX, MaxPriority: queue.None, DeliveryLimit: queue.None}
				s.DeadLetterExchange, s.DeadLetterKey = ptr(""), ptr("k")
			}},
		{"no time to live and nowhere to go", classic, args("message-ttl", i64(0)), func(s *Settings) { s.Config.MessageTTL, s.Config.Fleeting = 0, true }},
		{"no time to live any more", args("x-message-ttl", i32(0)), args("dead-letter-exchange", str("")), func(s *Settings) {
			s.Config.Fleeting, s.DeadLetterExchange = false, ptr("")
		}},
		{"no time to live in a quorum queue", quorum, args("message-ttl", i64(0)), func(s *Settings) { s.Config.MessageTTL = 0 }},
		{"the smaller limit", args("x-max-length", i32(5), "x-message-ttl", i32(5)), args("max-length", i64(3), "message-ttl", i64(9)),
			func(s *Settings) { s.Config.MaxLength = 3 }},
		{"an argument beats it", args("x-overflow", str("drop-head"), "x-dead-letter-exchange", str("a")),
			args("overflow", str("reject-publish"), "dead-letter-exchange", str("b"), "dead-letter-routing-key", str("k")),
			func(s *Settings) { s.DeadLetterKey = ptr("k") }},
		{"a classic queue's delivery limit", classic, args("delivery-limit", i64(3)), func(s *Settings) { s.Config.DeliveryLimit = 3 }},
		{"a classic queue's smaller one", args("x-delivery-limit", i32(2)), args("delivery-limit", i64(3)), func(s *Settings) {}},
		{"a classic queue's larger one", args("x-delivery-limit", i32(9)), args("delivery-limit", i64(3)), func(s *Settings) { s.Config.DeliveryLimit = 3 }},
		{"expiry anywhere", classic, args("expire-anywhere", boolean(true)), func(s *Settings) { s.Config.ExpireAnywhere = true }},
		{"an argument against expiry anywhere", args("x-expire-anywhere", boolean(false)), args("expire-anywhere", boolean(true)), func(s *Settings) {}},
		{"a delivery limit above the default", quorum, args("delivery-limit", i64(50)), func(s *Settings) { s.Config.DeliveryLimit = 50 }},
		{"a delivery limit below the argument", append(args("x-delivery-limit", i32(30)), quorum...), args("delivery-limit", i64(10)),
			func(s *Settings) { s.Config.DeliveryLimit = 10 }},
		{"a delivery limit above the argument", append(args("x-delivery-limit", i32(30)), quorum...), args("delivery-limit", i64(50)), func(s *Settings) {}},
		{"a delivery limit against none", append(args("x-delivery-limit", i32(-1)), quorum...), args("delivery-limit", i64(50)), func(s *Settings) {}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, bad := Parse(tc.args, durable, resource)
			if bad != nil {
				t.Fatal(bad)
			}
			want := s
			tc.want(&want)
			if got := s.With(tc.definition); !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
		})
	}
	if got := Alternate("", args("alternate-exchange", str("p"))); got != "p" {
		t.Errorf("got %q", got)
	}
	if got := Alternate("a", args("alternate-exchange", str("p"))); got != "a" {
		t.Errorf("got %q", got)
	}
}
