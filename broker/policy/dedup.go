package policy

import (
	"fmt"
	"strconv"

	"github.com/firemq/firemq/broker/dedup"
	"github.com/firemq/firemq/frames/table"
)

// De-duplication has the argument names of the plugin that RabbitMQ's users have for it, whose clients
// write switches and numbers as strings, too.

// dedupSettings is what arguments, or a policy, say about it.
type dedupSettings struct {
	on        *bool
	size, ttl int64 // 0: not set
	by        string
}

// readDedup reads what has been checked.
func readDedup(get func(key string) (table.Value, bool)) dedupSettings {
	number := func(key string) int64 {
		if v, ok := get(key); ok {
			if n, ok := loose(v); ok {
				return n
			}
		}
		return 0
	}
	d := dedupSettings{size: number("cache-size"), ttl: number("cache-ttl")}
	if v, ok := get("message-deduplication"); ok {
		on := isOn(v)
		d.on = &on
	}
	if v, ok := get("deduplication-by"); ok && v.Kind == table.String {
		d.by = v.Str
	}
	return d
}

// with merges a policy's settings into an argument's: of two numbers the smaller counts, for the rest the
// argument.
func (d dedupSettings) with(p dedupSettings) dedupSettings {
	if d.on == nil {
		d.on = p.on
	}
	if d.by == "" {
		d.by = p.by
	}
	if p.size != 0 && (d.size == 0 || p.size < d.size) {
		d.size = p.size
	}
	if p.ttl != 0 && (d.ttl == 0 || p.ttl < d.ttl) {
		d.ttl = p.ttl
	}
	return d
}

// config is what the queue remembers. Without a size and a time that is the messages that it holds.
func (d dedupSettings) config() dedup.Config {
	if d.on == nil || !*d.on {
		return dedup.Config{}
	}
	c := dedup.Config{On: true, By: d.by, Size: dedup.DefaultSize, Present: d.size == 0 && d.ttl == 0}
	if c.By == "" {
		c.By = dedup.DefaultHeader
	}
	if d.size != 0 {
		c.Size = int(d.size)
	}
	if d.ttl != 0 {
		c.TTL = d.ttl
	}
	return c
}

func isOn(v table.Value) bool {
	on, _ := v.AsBool()
	return on || v.Kind == table.String && (v.Str == "true" || v.Str == "True")
}

// loose reads an integer, or a string that spells one.
func loose(v table.Value) (int64, bool) {
	if v.Kind == table.String {
		n, err := strconv.ParseInt(v.Str, 10, 64)
		return n, err == nil
	}
	return v.AsInt()
}

func checkSwitch(v table.Value, all table.Table) string {
	if v.Kind == table.String && (isOn(v) || v.Str == "false" || v.Str == "False") {
		return ""
	}
	return checkBool(v, all)
}

// checkCache makes a check for a number from 1 to most, in a queue that de-duplicates: for others the argument
// means nothing.
func checkCache(most int64) func(table.Value, table.Table) string {
	return func(v table.Value, all table.Table) string {
		if on, ok := all.Get("x-message-deduplication"); !ok || !isOn(on) {
			return ""
		}
		n, ok := loose(v)
		switch {
		case !ok:
			return quote("expected integer, got " + v.Kind.String())
		case n < 1:
			return fmt.Sprintf("{value_too_small,%d}", n)
		case n > most:
			return fmt.Sprintf("{value_too_large,%d}", n)
		}
		return ""
	}
}

func checkBy(v table.Value, all table.Table) string {
	if on, ok := all.Get("x-message-deduplication"); !ok || !isOn(on) {
		return ""
	}
	if reason := checkString(v, all); reason != "" {
		return reason
	}
	if v.Str == "" {
		return "empty_key"
	}
	return ""
}
