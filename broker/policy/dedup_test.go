package policy

import (
	"testing"

	"github.com/firemq/firemq/broker/dedup"
	"github.com/firemq/firemq/frames/table"
)

func TestDedup(t *testing.T) {
	on := func(more ...any) table.Table {
		return append(args("x-message-deduplication", boolean(true)), args(more...)...)
	}
	plain := dedup.Config{On: true, By: dedup.DefaultHeader, Size: dedup.DefaultSize, Present: true}
	config := func(change func(c *dedup.Config)) dedup.Config {
		c := plain
		change(&c)
		return c
	}
	policy := args("message-deduplication", boolean(true), "cache-size", i64(50), "cache-ttl", i64(60), "deduplication-by", str("p"))
	for _, tc := range []struct {
		name       string
		args       table.Table
		definition table.Table
		want       dedup.Config
	}{
		{"none", nil, nil, dedup.Config{}},
		{"off", args("x-message-deduplication", boolean(false), "x-cache-size", i32(5)), nil, dedup.Config{}},
		{"on", on(), nil, plain},
		{"on as the plugin's clients write it", args("x-message-deduplication", str("true"), "x-cache-size", str("5")), nil,
			config(func(c *dedup.Config) { c.Size, c.Present = 5, false })},
		{"a size", on("x-cache-size", i64(7)), nil, config(func(c *dedup.Config) { c.Size, c.Present = 7, false })},
		{"a time", on("x-cache-ttl", str("9")), nil, config(func(c *dedup.Config) { c.TTL, c.Present = 9, false })},
		{"another key", on("x-deduplication-by", str("message-id")), nil, config(func(c *dedup.Config) { c.By = dedup.MessageID })},
		{"a policy alone", nil, policy, dedup.Config{On: true, By: "p", Size: 50, TTL: 60}},
		{"a policy that an argument forbids", args("x-message-deduplication", boolean(false)), policy, dedup.Config{}},
		{"the smaller of both", on("x-cache-size", i32(7), "x-cache-ttl", i32(90), "x-deduplication-by", str("a")), policy,
			dedup.Config{On: true, By: "a", Size: 7, TTL: 60}},
		{"meaningless without it", args("x-cache-size", str("many"), "x-deduplication-by", i32(1)), nil, dedup.Config{}},
	} {
		s, bad := Parse(tc.args, durable, resource)
		if bad != nil {
			t.Errorf("%s: %v", tc.name, bad)
		} else if got := s.With(tc.definition).Dedup; got != tc.want {
			t.Errorf("%s: got %+v, want %+v", tc.name, got, tc.want)
		}
	}
	for _, tc := range []struct {
		args   table.Table
		reason string
	}{
		{args("x-message-deduplication", i32(1)), "'x-message-deduplication' for queue 'q' in vhost '/': {unacceptable_type,signedint}"},
		{args("x-message-deduplication", str("yes")), "'x-message-deduplication' for queue 'q' in vhost '/': {unacceptable_type,longstr}"},
		{on("x-cache-size", i32(0)), "'x-cache-size' for queue 'q' in vhost '/': {value_too_small,0}"},
		{on("x-cache-size", i64(1<<25)), "'x-cache-size' for queue 'q' in vhost '/': {value_too_large,33554432}"},
		{on("x-cache-ttl", str("a")), `'x-cache-ttl' for queue 'q' in vhost '/': "expected integer, got longstr"`},
		{on("x-deduplication-by", i32(1)), "'x-deduplication-by' for queue 'q' in vhost '/': {unacceptable_type,signedint}"},
		{on("x-deduplication-by", str("")), "'x-deduplication-by' for queue 'q' in vhost '/': empty_key"},
	} {
		if _, bad := Parse(tc.args, durable, resource); bad == nil || bad.Text != "invalid arg "+tc.reason {
			t.Errorf("got %v, want %s", bad, tc.reason)
		}
	}
	for _, definition := range []table.Table{
		args("cache-size", i64(0)), args("cache-size", i64(1<<25)), args("cache-ttl", str("5")), args("message-deduplication", str("true")), args("deduplication-by", str("")),
	} {
		if _, err := Make("p", "", definition, 0, "queues", false); err == nil {
			t.Errorf("a policy took %v", definition)
		}
	}
}
