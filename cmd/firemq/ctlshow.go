package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/firemq/firemq/internal/misspelt"
	"github.com/firemq/firemq/mgmt/api"
)

// column is one column of a table: its heading, and the path of its field.
type column struct{ head, field string }

// show prints a list as a table, or as it came.
func (x *ctl) show(p []byte, columns []column) error {
	if x.asJSON {
		return x.raw(p)
	}
	var rows []map[string]any
	if err := api.Decode(p, &rows); err != nil {
		return fmt.Errorf("the answer is not what a broker's API gives: %w", err)
	}
	w := tabwriter.NewWriter(x.t.out, 0, 0, 2, ' ', 0)
	for i, c := range columns {
		fmt.Fprint(w, separator(i), c.head)
	}
	fmt.Fprintln(w)
	for _, row := range rows {
		for i, c := range columns {
			fmt.Fprint(w, separator(i), cell(row, c.field))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

func separator(i int) string {
	if i == 0 {
		return ""
	}
	return "\t"
}

// cell is the value at a path of fields, on one line and without control characters.
func cell(row map[string]any, path string) string {
	var v any = row
	for name := range strings.SplitSeq(path, ".") {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return printable(v)
	case json.Number:
		return v.String()
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = cell(map[string]any{"x": v[i]}, "x")
		}
		return strings.Join(parts, ",")
	case map[string]any:
		if len(v) == 0 {
			return ""
		}
	}
	p, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return printable(string(p))
}

// printable keeps what somebody named a queue from moving the cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}

// lists are the verbs of list: the path, whether it is of one vhost, and the columns.
var lists = map[string]struct {
	path    string
	scoped  bool
	columns []column
}{
	"queues": {"queues", true, []column{{"NAME", "name"}, {"TYPE", "type"}, {"DURABLE", "durable"}, {"READY", "messages_ready"},
		{"UNACKED", "messages_unacknowledged"}, {"DELAYED", "messages_delayed"}, {"CONSUMERS", "consumers"}, {"POLICY", "policy"}, {"ARGUMENTS", "arguments"}}},
	"exchanges": {"exchanges", true, []column{{"NAME", "name"}, {"TYPE", "type"}, {"DURABLE", "durable"}, {"AUTO-DELETE", "auto_delete"},
		{"INTERNAL", "internal"}, {"ARGUMENTS", "arguments"}}},
	"bindings": {"bindings", true, []column{{"SOURCE", "source"}, {"KIND", "destination_type"}, {"DESTINATION", "destination"},
		{"KEY", "routing_key"}, {"ARGUMENTS", "arguments"}}},
	"connections": {"connections", false, []column{{"NAME", "name"}, {"USER", "user"}, {"VHOST", "vhost"}, {"PROTOCOL", "protocol"},
		{"STATE", "state"}, {"CHANNELS", "channels"}, {"CLIENT", "client_properties.product"}}},
	"channels": {"channels", false, []column{{"NAME", "name"}, {"USER", "user"}, {"VHOST", "vhost"}, {"CONSUMERS", "consumer_count"},
		{"UNACKED", "messages_unacknowledged"}, {"UNCONFIRMED", "messages_unconfirmed"}, {"PREFETCH", "prefetch_count"}}},
	"consumers": {"consumers", true, []column{{"QUEUE", "queue.name"}, {"TAG", "consumer_tag"}, {"ACK", "ack_required"}, {"PREFETCH", "prefetch_count"},
		{"ACTIVE", "active"}, {"CHANNEL", "channel_details.name"}}},
	"users":       {"users", false, []column{{"NAME", "name"}, {"TAGS", "tags"}, {"LIMITS", "limits"}}},
	"vhosts":      {"vhosts", false, []column{{"NAME", "name"}, {"DESCRIPTION", "description"}, {"MESSAGES", "messages"}, {"QUEUE TYPE", "default_queue_type"}}},
	"policies":    {"policies", true, []column{{"NAME", "name"}, {"PATTERN", "pattern"}, {"APPLIES TO", "apply-to"}, {"PRIORITY", "priority"}, {"DEFINITION", "definition"}}},
	"permissions": {"permissions", false, []column{{"USER", "user"}, {"VHOST", "vhost"}, {"CONFIGURE", "configure"}, {"WRITE", "write"}, {"READ", "read"}}},
}

// listNames are the kinds of objects in the order of the manual.
var listNames = []string{"queues", "exchanges", "bindings", "connections", "channels", "consumers", "users", "vhosts", "policies", "permissions"}

func (x *ctl) showVerbs() []*cobra.Command {
	list := x.verb("list KIND", "List "+strings.Join(listNames, ", "), func(args []string) error {
		l, ok := lists[args[0]]
		if !ok {
			if meant, ok := misspelt.Meant(args[0], listNames); ok {
				return usagef("there is no list of %s: did you mean %s?", args[0], meant)
			}
			return usagef("there is no list of %s: %s", args[0], strings.Join(listNames, ", "))
		}
		path := api.Path(l.path)
		if l.scoped {
			path = api.Path(l.path, x.vhost)
		}
		p, err := x.call("GET", path, nil)
		if err != nil {
			return err
		}
		return x.show(p, l.columns)
	})
	return []*cobra.Command{
		x.verb("overview", "Show totals and rates", func([]string) error { return x.overview() }),
		x.verb("memory", "Show what memory is used for", func([]string) error { return x.memory() }),
		list,
	}
}

// memory shows the kinds that take something, the largest first.
func (x *ctl) memory() error {
	p, err := x.call("GET", api.Path("overview"), nil)
	if err != nil {
		return err
	}
	var o api.Overview
	if err := json.Unmarshal(p, &o); err != nil {
		return fmt.Errorf("the answer is not what a broker's API gives: %w", err)
	}
	if p, err = x.call("GET", api.Path("nodes", o.Node, "memory"), nil); err != nil {
		return err
	}
	if x.asJSON {
		return x.raw(p)
	}
	var answer struct {
		Memory map[string]json.RawMessage `json:"memory"`
	}
	var total map[string]int64
	if json.Unmarshal(p, &answer) != nil || json.Unmarshal(answer.Memory["total"], &total) != nil {
		return errors.New("the answer is not what a broker's API gives")
	}
	type use struct {
		name  string
		bytes int64
	}
	uses := []use{{"total (resident)", total["rss"]}}
	for name, raw := range answer.Memory {
		var n int64
		if json.Unmarshal(raw, &n) == nil && n > 0 {
			uses = append(uses, use{name, n})
		}
	}
	slices.SortFunc(uses[1:], func(a, b use) int { return cmp.Or(cmp.Compare(b.bytes, a.bytes), strings.Compare(a.name, b.name)) })
	w := tabwriter.NewWriter(x.t.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, u := range uses {
		fmt.Fprintf(w, "%.1f MiB\t %s\n", float64(u.bytes)/(1<<20), printable(u.name))
	}
	return w.Flush()
}

func (x *ctl) overview() error {
	p, err := x.call("GET", api.Path("overview"), nil)
	if err != nil {
		return err
	}
	if x.asJSON {
		return x.raw(p)
	}
	var o api.Overview
	if err := json.Unmarshal(p, &o); err != nil {
		return fmt.Errorf("the answer is not what a broker's API gives: %w", err)
	}
	w := tabwriter.NewWriter(x.t.out, 0, 0, 2, ' ', 0)
	n := o.ObjectTotals
	for _, l := range [][2]string{
		{"Broker", printable(fmt.Sprintf("%s %s, %s", o.ProductName, o.ProductVersion, o.ClusterName))},
		{"Messages", fmt.Sprintf("%d ready, %d unacknowledged", o.QueueTotals.Ready, o.QueueTotals.Unacknowledged)},
		{"Rates", fmt.Sprintf("%.1f/s published, %.1f/s delivered, %.1f/s acknowledged",
			o.MessageStats.Rate("publish"), o.MessageStats.Rate("deliver_get"), o.MessageStats.Rate("ack"))},
		{"Objects", strings.Join([]string{count(n.Queues, "queue"), count(n.Exchanges, "exchange"), count(n.Connections, "connection"),
			count(n.Channels, "channel"), count(n.Consumers, "consumer")}, ", ")},
	} {
		fmt.Fprintf(w, "%s\t%s\n", l[0], l[1])
	}
	for i, l := range o.Listeners {
		head := ""
		if i == 0 {
			head = "Listeners"
		}
		fmt.Fprintf(w, "%s\t%s on %s port %d\n", head, l.Protocol, l.IPAddress, l.Port)
	}
	return w.Flush()
}
