package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/firemq/firemq/mgmt/api"
)

// pick is what chooses messages: the flags of a search.
type pick struct {
	exchange, key, body  string
	headers, properties  []string
	olderThan, newerThan time.Duration
	regex                bool
}

func (p *pick) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&p.body, "body", "", "`text` in the body")
	f.StringVar(&p.key, "key", "", "its routing key")
	f.StringVar(&p.exchange, "exchange", "", "the exchange that it was published to")
	f.StringArrayVarP(&p.headers, "header", "H", nil, "a header, `name=value`, or a name that must be there; again for more")
	f.StringArrayVar(&p.properties, "property", nil, "a property, `name=value`: content_type, type, message_id...; again for more")
	f.DurationVar(&p.olderThan, "older-than", 0, "at least that long in the queue: 90s, 12m, 48h")
	f.DurationVar(&p.newerThan, "newer-than", 0, "at most that long in the queue")
	f.BoolVar(&p.regex, "regex", false, "key, body and values are regular expressions (RE2)")
}

// object is the filter as a body of a request has it, empty for none.
func (p *pick) object(c *cobra.Command) map[string]any {
	m := make(map[string]any)
	for name, v := range map[string]string{"body": p.body, "key": p.key, "exchange": p.exchange} {
		if c.Flags().Changed(name) {
			if name == "key" {
				name = "routing_key"
			}
			m[name] = v
		}
	}
	for key, list := range map[string][]string{"headers": p.headers, "properties": p.properties} {
		pairs := make(map[string]any)
		for _, h := range list {
			name, value, given := strings.Cut(h, "=")
			pairs[name] = nil
			if given {
				pairs[name] = value
			}
		}
		if len(pairs) > 0 {
			m[key] = pairs
		}
	}
	for name, d := range map[string]time.Duration{"older-than": p.olderThan, "newer-than": p.newerThan} {
		if c.Flags().Changed(name) {
			m[strings.ReplaceAll(name, "-", "_")] = int(d.Seconds())
		}
	}
	if len(m) > 0 && p.regex {
		m["use_regex"] = true
	}
	return m
}

// query is the filter as a URL has it.
func (p *pick) query(c *cobra.Command) url.Values {
	q := make(url.Values)
	for name, v := range p.object(c) {
		switch name {
		case "headers":
			q["header"] = p.headers
		case "properties":
			q["property"] = p.properties
		default:
			q.Set(name, fmt.Sprint(v))
		}
	}
	return q
}

// browseVerbs look at messages and change nothing.
func (x *ctl) browseVerbs() []*cobra.Command {
	var (
		count, offset, truncate int
		state, cursor           string
		p                       pick
	)
	// page gets one page; n is how many messages are still wanted.
	page := func(queue string, q url.Values, n int) (*api.Browse, error) {
		q.Set("count", strconv.Itoa(min(n, 1000)))
		answer, err := x.call("GET", api.Path("queues", x.vhost, queue, "messages")+"?"+q.Encode(), nil)
		if err != nil {
			return nil, err
		}
		b := new(api.Browse)
		if err := api.Decode(answer, b); err != nil {
			return nil, fmt.Errorf("the answer is not what a broker's API gives: %w", err)
		}
		return b, nil
	}
	look := func(queue string, q url.Values) error {
		q.Set("state", state)
		q.Set("truncate", strconv.Itoa(truncate))
		if cursor != "" {
			q.Set("cursor", cursor)
		}
		if offset > 0 {
			q.Set("offset", strconv.Itoa(offset))
		}
		var all api.Browse
		for {
			b, err := page(queue, q, count-len(all.Messages))
			if err != nil {
				return err
			}
			all.Messages = append(all.Messages, b.Messages...)
			all.Scanned += b.Scanned
			all.Cursor, all.More = b.Cursor, b.More
			if !b.More || len(all.Messages) >= count {
				break
			}
			q.Set("cursor", b.Cursor)
			q.Del("offset")
		}
		if x.asJSON {
			if all.Messages == nil {
				all.Messages = []api.Browsed{}
			}
			out, err := json.Marshal(all)
			if err != nil {
				return err
			}
			return x.raw(out)
		}
		if err := x.browsed(all.Messages); err != nil {
			return err
		}
		if all.More {
			return x.say("more with --cursor %s", all.Cursor)
		}
		return nil
	}
	common := func(c *cobra.Command) *cobra.Command {
		f := c.Flags()
		f.IntVar(&count, "count", 20, "how many")
		f.StringVar(&state, "state", "ready", "ready, unacked or delayed")
		f.StringVar(&cursor, "cursor", "", "go on where an earlier look ended")
		f.IntVar(&truncate, "truncate", 200, "bytes of the payload that are shown, -1 for all")
		return c
	}
	browse := common(x.verb("browse QUEUE", "Look at a queue's messages and change nothing", func(a []string) error {
		return look(a[0], make(url.Values))
	}))
	browse.Flags().IntVar(&offset, "offset", 0, "pass over so many first")
	search := common(x.verb("search QUEUE", "Find messages in a queue and change nothing", func(a []string) error {
		q := p.query(x.c)
		if len(q) == 0 {
			return usagef("say what to look for: --body, --key, --header... see %s --help", x.c.CommandPath())
		}
		return look(a[0], q)
	}))
	p.flags(search)
	unacked := x.verb("unacked QUEUE", "List the messages that consumers hold, the oldest deliveries first", func(a []string) error {
		p, err := x.call("GET", api.Path("queues", x.vhost, a[0], "unacked")+"?count="+strconv.Itoa(count), nil)
		if err != nil {
			return err
		}
		if x.asJSON {
			return x.raw(p)
		}
		var list []api.UnackedMessage
		if err := api.Decode(p, &list); err != nil {
			return fmt.Errorf("the answer is not what a broker's API gives: %w", err)
		}
		w := tabwriter.NewWriter(x.t.out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "SEQUENCE\tUNACKED FOR\tCONSUMER\tCONNECTION\tCHANNEL\tUSER\tREDELIVERED\tBYTES")
		for i := range list {
			m := &list[i]
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d\t%s\t%t\t%d\n", m.Sequence, age(m.Age), printable(m.ConsumerTag), printable(m.Connection),
				m.Channel, printable(m.User), m.Redelivered, m.PayloadBytes)
		}
		return w.Flush()
	})
	unacked.Flags().IntVar(&count, "count", 100, "how many")
	return []*cobra.Command{browse, search, unacked}
}

// age is ms for people.
func age(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if d >= time.Second {
		d = d.Round(time.Second)
	}
	return d.String()
}

func (x *ctl) browsed(list []api.Browsed) error {
	w := tabwriter.NewWriter(x.t.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SEQUENCE\tAGE\tEXCHANGE\tKEY\tREDELIVERED\tBYTES\tPROPERTIES\tPAYLOAD")
	for i := range list {
		m := &list[i]
		since := "?"
		if m.Age != nil {
			since = age(*m.Age)
		}
		props := ""
		if len(m.Properties) > 0 {
			p, err := json.Marshal(m.Properties)
			if err != nil {
				return err
			}
			props = printable(string(p))
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%t\t%d\t%s\t%s\n", m.Sequence, since, printable(m.Exchange), printable(m.RoutingKey),
			m.Redelivered, m.PayloadBytes, props, printable(m.Payload))
	}
	return w.Flush()
}

// messagesWere begins a sentence about n messages.
func messagesWere(n int) string {
	if n == 1 {
		return "1 message was"
	}
	return count(n, "message") + " were"
}

// transferVerbs copy, move, delete and replay messages.
func (x *ctl) transferVerbs() []*cobra.Command {
	var (
		p            pick
		sequences    []int64
		all, through bool
		limit        int
		done         string // what became of them
	)
	// ask sends requests until everything that fits is treated, or limit messages are.
	ask := func(queue, deed string, more map[string]any) error {
		body := map[string]any{"all": all}
		for k, v := range more {
			body[k] = v
		}
		if f := p.object(x.c); len(f) > 0 {
			body["filter"] = f
		}
		if len(sequences) > 0 {
			body["sequences"] = sequences
		}
		if !all && body["filter"] == nil && body["sequences"] == nil {
			return usagef("say which messages: --all, --sequence, --body, --header... see %s --help", x.c.CommandPath())
		}
		var total api.Transferred
		for {
			body["limit"] = min(limit-total.Done, 10_000)
			answer, err := x.call("POST", api.Path("queues", x.vhost, queue, "messages", deed), body)
			if err != nil {
				if total.Done > 0 {
					err = fmt.Errorf("%w; %s %s before", err, messagesWere(total.Done), done)
				}
				return err
			}
			var r api.Transferred
			if err := api.Decode(answer, &r); err != nil {
				return fmt.Errorf("the answer is not what a broker's API gives: %w", err)
			}
			total.Done += r.Done
			total.Failed += r.Failed
			total.Scanned += r.Scanned
			total.More, total.Cursor = r.More, r.Cursor
			if total.Reason == "" {
				total.Reason = r.Reason
			}
			if !r.More || total.Done >= limit {
				break
			}
			body["cursor"] = r.Cursor
		}
		switch {
		case x.asJSON:
			out, err := json.Marshal(total)
			if err != nil {
				return err
			}
			return x.raw(out)
		case total.Failed > 0:
			return fmt.Errorf("%s %s, %d left: %s", messagesWere(total.Done), done, total.Failed, total.Reason)
		case total.Done == 0:
			return x.say("no message fits")
		}
		if err := x.say("%s %s", count(total.Done, "message"), done); err != nil || !total.More {
			return err
		}
		return x.say("there may be more: --limit %d was reached", limit)
	}
	picks := func(c *cobra.Command) *cobra.Command {
		p.flags(c)
		f := c.Flags()
		f.Int64SliceVar(&sequences, "sequence", nil, "`numbers` as browse shows them, with commas")
		f.BoolVar(&all, "all", false, "all messages")
		f.IntVar(&limit, "limit", 1_000_000, "at most so many")
		return c
	}
	move := picks(x.verb("move QUEUE TO", "Move messages that fit to another queue", func(a []string) error {
		done = "moved"
		return ask(a[0], "move", map[string]any{"to": a[1]})
	}))
	dup := picks(x.verb("copy QUEUE TO", "Copy messages that fit to another queue", func(a []string) error {
		done = "copied"
		return ask(a[0], "copy", map[string]any{"to": a[1]})
	}))
	remove := picks(x.verb("delete-messages QUEUE", "Delete messages that fit", func(a []string) error {
		done = "deleted"
		return ask(a[0], "delete", nil)
	}))
	replay := picks(x.verb("replay QUEUE", "Move dead letters that fit back to where they came from", func(a []string) error {
		done = "replayed"
		return ask(a[0], "replay", map[string]any{"through_exchange": through})
	}))
	replay.Flags().BoolVar(&through, "through-exchange", false, "publish them to their exchange again instead of putting them into the queue they died in")
	return []*cobra.Command{move, dup, remove, replay}
}

func (x *ctl) messageVerbs() []*cobra.Command {
	var (
		count     int
		take      bool
		transient bool
		headers   []string
	)
	get := x.verb("get QUEUE", "Show the first messages of a queue and leave them there", func(a []string) error {
		mode := "ack_requeue_true"
		if take {
			mode = "ack_requeue_false"
		}
		p, err := x.call("POST", api.Path("queues", x.vhost, a[0], "get"), map[string]any{"count": count, "ackmode": mode, "encoding": "auto"})
		if err != nil {
			return err
		}
		return x.show(p, []column{{"EXCHANGE", "exchange"}, {"KEY", "routing_key"}, {"REDELIVERED", "redelivered"}, {"BYTES", "payload_bytes"},
			{"PROPERTIES", "properties"}, {"PAYLOAD", "payload"}})
	})
	get.Flags().IntVar(&count, "count", 1, "how many")
	get.Flags().BoolVar(&take, "take", false, "remove them from the queue")
	publish := x.verb("publish EXCHANGE KEY [PAYLOAD]", `Publish a message; the exchange "" is the default one`, func(a []string) error {
		var payload []byte
		if len(a) > 2 {
			payload = []byte(a[2])
		} else {
			p, err := io.ReadAll(io.LimitReader(x.t.in, maxBody+1))
			if err != nil {
				return fmt.Errorf("read the payload: %w", err)
			}
			if len(p) > maxBody {
				return fmt.Errorf("the payload is larger than %d bytes", maxBody)
			}
			payload = p
		}
		h, err := keyValues("header", headers)
		if err != nil {
			return err
		}
		props := map[string]any{"headers": h}
		if !transient {
			props["delivery_mode"] = 2
		}
		p, err := x.call("POST", api.Path("exchanges", x.vhost, exchangePath(a[0]), "publish"), map[string]any{
			"routing_key": a[1], "properties": props, "payload": payload, "payload_encoding": "base64",
		})
		if err != nil {
			return err
		}
		if x.asJSON {
			return x.raw(p)
		}
		var r struct{ Routed bool }
		if err := json.Unmarshal(p, &r); err != nil {
			return fmt.Errorf("the answer is not what a broker's API gives: %w", err)
		}
		if !r.Routed {
			return errors.New("no queue received the message")
		}
		return x.say("published")
	})
	publish.Flags().StringArrayVarP(&headers, "header", "H", nil, "an application header, `key=value`; again for more")
	publish.Flags().BoolVar(&transient, "transient", false, "do not write it to disk")
	return []*cobra.Command{get, publish}
}
