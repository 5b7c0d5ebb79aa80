package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/firemq/firemq/internal/misspelt"
	"github.com/firemq/firemq/mgmt/api"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// ctl is what all verbs share: where the management API is and who asks.
type ctl struct {
	t                      terminal
	url, user, pass, vhost string
	asJSON                 bool
	c                      *cobra.Command // the verb; set before it runs
}

// ctlTimeout is how long one request may take; an import of many queues is the longest.
const ctlTimeout = 2 * time.Minute

func newCtl(t terminal) *cobra.Command {
	x := &ctl{t: t}
	root := &cobra.Command{
		Use:   "ctl VERB",
		Short: "Manage a broker through its HTTP API",
		Long: `Ctl manages a running broker through its HTTP API: queues, exchanges, bindings, users,
permissions, policies and definitions. Its user needs a tag that opens the API; see docs/ctl.md.

Tables are for people: --json prints what the API answers.`,
		Example: `  firemq ctl overview
  firemq ctl list queues
  firemq ctl declare-queue orders --arg x-message-ttl=60000
  firemq ctl bind events orders --key 'order.*'
  firemq ctl export definitions.json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return usagef("ctl needs a verb: see %s --help", c.CommandPath())
		},
	}
	flags := root.PersistentFlags()
	flags.SortFlags = false
	for _, f := range []struct {
		value              *string
		name, or, env, say string
	}{
		{&x.url, "url", "http://localhost:15672", "FIREMQ_HTTP_URL", "where the API is"},
		{&x.user, "user", "guest", "FIREMQ_USER", "user"},
		{&x.pass, "pass", "guest", "FIREMQ_PASS", "password"},
	} {
		flags.StringVar(f.value, f.name, f.or, f.say+" ["+f.env+"]")
		flags.Lookup(f.name).Annotations = map[string][]string{envAnnotation: {f.env}}
	}
	flags.StringVar(&x.vhost, "vhost", "/", "virtual host")
	root.RegisterFlagCompletionFunc("vhost", func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return x.names(c, api.Path("vhosts")), cobra.ShellCompDirectiveNoFileComp
	})
	flags.BoolVar(&x.asJSON, "json", false, "print what the API answers instead of a table")
	root.AddCommand(slices.Concat(x.showVerbs(), x.topologyVerbs(), x.messageVerbs(), x.browseVerbs(), x.transferVerbs(), x.diagnoseVerbs(), x.userVerbs(), x.policyVerbs(), x.brokerVerbs())...)
	return root
}

// verb makes one verb of ctl. use is its name and arguments: [X] may be left out.
func (x *ctl) verb(use, short string, run func(args []string) error) *cobra.Command {
	words := strings.Fields(use)[1:]
	least := len(words) - strings.Count(use, "[")
	return &cobra.Command{
		Use: use, Short: short, Args: argsBetween(least, len(words)), ValidArgsFunction: x.complete(words),
		RunE: func(c *cobra.Command, args []string) error {
			if err := fromEnv(x.t, c.Flags()); err != nil {
				return err
			}
			x.c = c
			for i, a := range args {
				if word := strings.Trim(words[i], "[]"); a == "" && !slices.Contains(mayBeEmpty, word) {
					return usagef("%s is empty: see %s --help", word, c.CommandPath())
				}
			}
			return run(args)
		},
	}
}

// mayBeEmpty are the arguments of verbs that "" means something for: the default exchange, and texts.
var mayBeEmpty = []string{"EXCHANGE", "KEY", "PAYLOAD", "PASSWORD", "TAGS", "PATTERN"}

// completeTimeout is how long a shell waits for names.
const completeTimeout = time.Second

// complete completes arguments in a shell: the names of what the broker has where the use says so.
func (x *ctl) complete(words []string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(words) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var path string
		switch strings.Trim(words[len(args)], "[]") {
		case "FILE":
			return nil, cobra.ShellCompDirectiveDefault
		case "KIND":
			return listNames, cobra.ShellCompDirectiveNoFileComp
		case "QUEUE":
			path = api.Path("queues", x.vhost)
		case "EXCHANGE":
			path = api.Path("exchanges", x.vhost)
		case "USER":
			path = api.Path("users")
		case "VHOST":
			path = api.Path("vhosts")
		case "POLICY":
			path = api.Path("policies", x.vhost)
		}
		if path == "" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return x.names(c, path), cobra.ShellCompDirectiveNoFileComp
	}
}

// names are those that the API lists at path, for a shell: none if they cannot be had.
func (x *ctl) names(c *cobra.Command, path string) (names []string) {
	if fromEnv(x.t, c.Flags()) != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), completeTimeout)
	defer cancel()
	c.SetContext(ctx)
	x.c = c
	p, err := x.call("GET", path+"?columns=name", nil)
	var all []struct{ Name string }
	if err != nil || json.Unmarshal(p, &all) != nil {
		return nil
	}
	for _, o := range all {
		if o.Name != "" && printable(o.Name) == o.Name {
			names = append(names, o.Name)
		}
	}
	return names
}

// exchangePath is an exchange in a path.
func exchangePath(name string) string {
	if name == "" {
		return "amq.default"
	}
	return name
}

// call sends one request and gives the answer's body. An error is one line for people.
func (x *ctl) call(method, path string, body any, header ...string) ([]byte, error) {
	p, _, err := x.exchange(method, path, body, header...)
	return p, err
}

// exchange is call with the answer's headers, too.
func (x *ctl) exchange(method, path string, body any, header ...string) ([]byte, http.Header, error) {
	ctx, stop := interruptible(x.c.Context())
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, ctlTimeout)
	defer cancel()
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		r = bytes.NewReader(b)
	default:
		p, err := json.Marshal(b)
		if err != nil {
			return nil, nil, err
		}
		r = bytes.NewReader(p)
	}
	base, err := url.Parse(x.url)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, nil, usagef("--url %s is no URL: write http://HOST:15672", x.url)
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(base.Scheme+"://"+base.Host+base.EscapedPath(), "/")+path, r)
	if err != nil {
		return nil, nil, usagef("--url %s: %s", x.url, err)
	}
	user, pass := x.user, x.pass
	if base.User != nil && !x.c.Flags().Changed("user") && !x.c.Flags().Changed("pass") {
		user = base.User.Username()
		pass, _ = base.User.Password()
	}
	req.SetBasicAuth(user, pass)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, unreached(base, err)
	}
	defer res.Body.Close()
	p, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, nil, fmt.Errorf("read the answer of %s: %w", base.Redacted(), err)
	}
	if res.StatusCode < 300 {
		return p, res.Header, nil
	}
	return nil, nil, refused(res.StatusCode, p, path)
}

// unreached is a request without an answer: why, and what to do.
func unreached(base *url.URL, err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	to := "is a broker running there, and --url right?"
	var authority x509.UnknownAuthorityError
	switch text := err.Error(); {
	case errors.Is(err, http.ErrSchemeMismatch):
		to = "it speaks HTTP without TLS: write http:// instead of https://"
	case errors.As(err, &authority):
		to = "SSL_CERT_FILE names a file with the certificate of who signed the server's"
	case strings.Contains(text, "malformed HTTP response"):
		to = "that is no port of the HTTP API, or one with TLS that wants https://"
	case errors.Is(err, context.DeadlineExceeded):
		to = "is the broker overloaded, or a firewall in between?"
	}
	return fmt.Errorf("%s cannot be reached: %w; %s", base.Redacted(), err, to)
}

// refusal is what the API says when it does not do what was asked.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

// refused is an answer to a request of path that is no success.
func refused(status int, body []byte, path string) error {
	var e api.Error
	text := http.StatusText(status)
	if json.Unmarshal(body, &e) == nil && e.Reason != nil {
		if s, ok := e.Reason.(string); ok {
			text = strings.Join(strings.Fields(html.UnescapeString(s)), " ") // the API escapes its reasons, as RabbitMQ does
		} else if p, err := json.Marshal(e.Reason); err == nil {
			text = string(p)
		}
	}
	switch {
	case status == http.StatusUnauthorized && e.Error == "not_authorized":
		text = "wrong user or password: give --user and --pass"
	case text == "Not management user":
		text = "the user has no tag that opens the API: it needs management, policymaker, monitoring or administrator"
	case text == "Not monitor user":
		text = "the user needs the tag monitoring or administrator"
	case text == "Not administrator user":
		text = "the user needs the tag administrator"
	case text == "vhost_not_found", text == "vhost_or_user_not_found", text == "queue_not_found", text == "exchange_not_found",
		status == http.StatusNotFound && (e.Error == "Object Not Found" || e.Reason == nil):
		text = absent(path, text)
	case status == http.StatusTooManyRequests:
		text += ": wait a second, then give the right --user and --pass"
	}
	return &refusal{status, text}
}

// absent says what is not there, by the path of the request and the API's reason: "firemq ctl list" shows what is.
func absent(path, reason string) string {
	path, _, _ = strings.Cut(strings.TrimPrefix(path, api.Path("")), "?")
	parts := strings.Split(path, "/")
	for i := range parts {
		if p, err := url.PathUnescape(parts[i]); err == nil {
			parts[i] = printable(p)
		}
	}
	kind, names := parts[0], parts[1:]
	what := strings.TrimSuffix(kind, "s")
	if kind == "policies" {
		what = "policy"
	}
	switch {
	case len(names) == 0:
	case kind == "permissions" && len(names) > 1:
		return fmt.Sprintf("there is no user %s or no vhost %s, or the user has no permissions there: see firemq ctl list permissions", names[1], names[0])
	case kind == "users" || kind == "connections":
		return fmt.Sprintf("there is no %s %s: see firemq ctl list %s", what, names[0], kind)
	case kind == "vhosts" || len(names) == 1 || reason == "vhost_not_found":
		return fmt.Sprintf("there is no vhost %s: see firemq ctl list vhosts", names[0])
	case kind == "queues" || kind == "exchanges" || kind == "policies":
		return fmt.Sprintf("there is no %s %s in vhost %s: see firemq ctl list %s", what, names[1], names[0], kind)
	}
	return "there is no such object"
}

// loaded tells of an import, with a line for each thing that was skipped.
func (x *ctl) loaded(warnings []string) error {
	const said = "definitions loaded"
	if x.asJSON {
		p, err := json.Marshal(struct {
			Result   string   `json:"result"`
			Warnings []string `json:"warnings,omitempty"`
		}{said, warnings})
		if err != nil {
			return err
		}
		return x.raw(p)
	}
	for _, w := range warnings {
		if _, err := fmt.Fprintln(x.t.out, "warning:", printable(w)); err != nil {
			return err
		}
	}
	return x.say(said)
}

// change sends a request whose success has nothing to tell but said.
func (x *ctl) change(method, path string, body any, said string, args ...any) error {
	if _, err := x.call(method, path, body); err != nil {
		return err
	}
	return x.say(said, args...)
}

func (x *ctl) say(format string, args ...any) error {
	if x.asJSON {
		p, err := json.Marshal(map[string]string{"result": fmt.Sprintf(format, args...)})
		if err != nil {
			return err
		}
		return x.raw(p)
	}
	_, err := fmt.Fprintf(x.t.out, format+"\n", args...)
	return err
}

// raw prints JSON as it came.
func (x *ctl) raw(p []byte) error {
	_, err := fmt.Fprintf(x.t.out, "%s\n", bytes.TrimSpace(p))
	return err
}

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
		{"Objects", fmt.Sprintf("%d queues, %d exchanges, %d connections, %d channels, %d consumers",
			n.Queues, n.Exchanges, n.Connections, n.Channels, n.Consumers)},
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

// keyValues reads what a flag is given, key=value: a value that is a JSON number, true or false is that, anything
// else text.
func keyValues(flag string, list []string) (map[string]any, error) {
	m := make(map[string]any)
	for _, a := range list {
		key, text, ok := strings.Cut(a, "=")
		if !ok || key == "" {
			return nil, usagef("--%s %s is not key=value", flag, a)
		}
		var v any
		if err := api.Decode([]byte(text), &v); err == nil {
			switch v.(type) {
			case bool, json.Number:
				m[key] = v
				continue
			}
		}
		m[key] = text
	}
	return m, nil
}

func (x *ctl) topologyVerbs() []*cobra.Command {
	var (
		args                                               []string
		transient, autoDelete, internal, ifUnused, ifEmpty bool
		key, toExchange                                    string
	)
	withArgs := func(c *cobra.Command) *cobra.Command {
		c.Flags().StringArrayVar(&args, "arg", nil, "an argument, `key=value`; again for more")
		return c
	}
	query := func() string {
		q := url.Values{}
		if ifUnused {
			q.Set("if-unused", "true")
		}
		if ifEmpty {
			q.Set("if-empty", "true")
		}
		if len(q) == 0 {
			return ""
		}
		return "?" + q.Encode()
	}

	declareQueue := withArgs(x.verb("declare-queue NAME", "Declare a durable queue", func(a []string) error {
		m, err := keyValues("arg", args)
		if err != nil {
			return err
		}
		body := map[string]any{"durable": !transient, "auto_delete": autoDelete, "arguments": m}
		return x.change("PUT", api.Path("queues", x.vhost, a[0]), body, "queue %s declared", printable(a[0]))
	}))
	declareQueue.Flags().BoolVar(&transient, "transient", false, "not durable: gone after a restart")
	declareQueue.Flags().BoolVar(&autoDelete, "auto-delete", false, "deleted with its last consumer")

	declareExchange := withArgs(x.verb("declare-exchange NAME TYPE", "Declare a durable exchange: direct, fanout, topic, headers or another type of docs/exchanges.md", func(a []string) error {
		m, err := keyValues("arg", args)
		if err != nil {
			return err
		}
		body := map[string]any{"type": a[1], "durable": !transient, "auto_delete": autoDelete, "internal": internal, "arguments": m}
		return x.change("PUT", api.Path("exchanges", x.vhost, a[0]), body, "exchange %s declared", printable(a[0]))
	}))
	declareExchange.Flags().BoolVar(&transient, "transient", false, "not durable: gone after a restart")
	declareExchange.Flags().BoolVar(&autoDelete, "auto-delete", false, "deleted with its last binding")
	declareExchange.Flags().BoolVar(&internal, "internal", false, "only exchanges publish to it")

	// ends are the path of the bindings between two ends. The destination is a queue, or an exchange with --to-exchange.
	ends := func(a []string) (path, dest string, err error) {
		kind := "q"
		switch {
		case toExchange != "" && len(a) == 1:
			kind, dest = "e", toExchange
		case toExchange == "" && len(a) == 2:
			dest = a[1]
		default:
			return "", "", usagef("name either a queue or --to-exchange")
		}
		return api.Path("bindings", x.vhost, "e", exchangePath(a[0]), kind, dest), dest, nil
	}
	withKey := func(c *cobra.Command) *cobra.Command {
		c.Flags().StringVar(&key, "key", "", "routing `key`")
		c.Flags().StringVar(&toExchange, "to-exchange", "", "the destination is this `exchange` instead of a queue")
		return withArgs(c)
	}
	bind := withKey(x.verb("bind EXCHANGE [QUEUE]", "Bind a queue to an exchange", func(a []string) error {
		m, err := keyValues("arg", args)
		if err != nil {
			return err
		}
		path, dest, err := ends(a)
		if err != nil {
			return err
		}
		return x.change("POST", path, map[string]any{"routing_key": key, "arguments": m}, "%s bound to %s", printable(dest), printable(a[0]))
	}))
	unbind := withKey(x.verb("unbind EXCHANGE [QUEUE]", "Remove a binding", func(a []string) error {
		m, err := keyValues("arg", args)
		if err != nil {
			return err
		}
		path, dest, err := ends(a)
		if err != nil {
			return err
		}
		p, err := x.call("GET", path, nil)
		if err != nil {
			return err
		}
		var all []api.Binding
		if err := api.Decode(p, &all); err != nil {
			return fmt.Errorf("the answer is not what a broker's API gives: %w", err)
		}
		for _, b := range all {
			if b.RoutingKey == key && sameJSON(b.Arguments, m) {
				return x.change("DELETE", path+"/"+url.PathEscape(b.PropertiesKey), nil, "%s unbound from %s", printable(dest), printable(a[0]))
			}
		}
		return errors.New("there is no such binding: give its --key and --arg as they are in the list of bindings")
	}))

	purge := x.verb("purge QUEUE", "Drop a queue's ready messages", func(a []string) error {
		return x.change("DELETE", api.Path("queues", x.vhost, a[0], "contents"), nil, "queue %s purged", printable(a[0]))
	})
	deleteQueue := x.verb("delete-queue QUEUE", "Delete a queue with its messages", func(a []string) error {
		return x.change("DELETE", api.Path("queues", x.vhost, a[0])+query(), nil, "queue %s deleted", printable(a[0]))
	})
	deleteQueue.Flags().BoolVar(&ifEmpty, "if-empty", false, "only if it holds no ready message")
	deleteQueue.Flags().BoolVar(&ifUnused, "if-unused", false, "only if it has no consumer")
	deleteExchange := x.verb("delete-exchange EXCHANGE", "Delete an exchange with its bindings", func(a []string) error {
		return x.change("DELETE", api.Path("exchanges", x.vhost, exchangePath(a[0]))+query(), nil, "exchange %s deleted", printable(a[0]))
	})
	deleteExchange.Flags().BoolVar(&ifUnused, "if-unused", false, "only if it has no binding")
	return []*cobra.Command{declareQueue, declareExchange, bind, unbind, purge, deleteQueue, deleteExchange}
}

func sameJSON(a, b map[string]any) bool {
	p, e1 := json.Marshal(a)
	q, e2 := json.Marshal(b)
	return e1 == nil && e2 == nil && bytes.Equal(p, q)
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

func (x *ctl) userVerbs() []*cobra.Command {
	var tags, configure, write, read string
	// user is a user as it is, to be put back with one thing changed.
	user := func(name string) (map[string]any, error) {
		p, err := x.call("GET", api.Path("users", name), nil)
		if err != nil {
			return nil, err
		}
		var u map[string]any
		if err := api.Decode(p, &u); err != nil {
			return nil, fmt.Errorf("the answer is not what a broker's API gives: %w", err)
		}
		return u, nil
	}
	addUser := x.verb("add-user NAME [PASSWORD]", "Add a user; without PASSWORD it is read from standard input", func(a []string) error {
		if _, err := user(a[0]); err == nil {
			return fmt.Errorf("there is a user %s already: see firemq ctl change-password and set-tags", printable(a[0]))
		} else if r, ok := errors.AsType[*refusal](err); !ok || r.status != http.StatusNotFound {
			return err
		}
		password, err := x.password(a[1:])
		if err != nil {
			return err
		}
		x.warnOfTags(tags)
		return x.change("PUT", api.Path("users", a[0]), map[string]any{"password": password, "tags": tags}, "user %s added", printable(a[0]))
	})
	addUser.Flags().StringVar(&tags, "tags", "", "administrator, monitoring, policymaker, management; with commas")
	changePassword := x.verb("change-password USER [PASSWORD]", "Change a user's password", func(a []string) error {
		u, err := user(a[0])
		if err != nil {
			return err
		}
		password, err := x.password(a[1:])
		if err != nil {
			return err
		}
		delete(u, "password_hash")
		delete(u, "hashing_algorithm")
		u["password"] = password
		return x.change("PUT", api.Path("users", a[0]), u, "password of %s changed", printable(a[0]))
	})
	setTags := x.verb("set-tags USER [TAGS]", "Replace a user's tags; with commas", func(a []string) error {
		u, err := user(a[0])
		if err != nil {
			return err
		}
		u["tags"] = strings.Join(a[1:], "")
		x.warnOfTags(strings.Join(a[1:], ""))
		return x.change("PUT", api.Path("users", a[0]), u, "tags of %s set", printable(a[0]))
	})
	deleteUser := x.verb("delete-user USER", "Delete a user and close its connections", func(a []string) error {
		return x.change("DELETE", api.Path("users", a[0]), nil, "user %s deleted", printable(a[0]))
	})
	setPermissions := x.verb("set-permissions USER", "Set what a user may do in a vhost; patterns left out allow everything", func(a []string) error {
		return x.change("PUT", api.Path("permissions", x.vhost, a[0]), map[string]any{"configure": configure, "write": write, "read": read},
			"permissions of %s in %s set", printable(a[0]), printable(x.vhost))
	})
	setPermissions.Flags().StringVar(&configure, "configure", ".*", "pattern of names that it may declare and delete")
	setPermissions.Flags().StringVar(&write, "write", ".*", "pattern of names that it may publish and bind to")
	setPermissions.Flags().StringVar(&read, "read", ".*", "pattern of names that it may consume and bind from")
	clearPermissions := x.verb("clear-permissions USER", "Take a user's permissions in a vhost away", func(a []string) error {
		return x.change("DELETE", api.Path("permissions", x.vhost, a[0]), nil, "permissions of %s in %s cleared", printable(a[0]), printable(x.vhost))
	})
	return []*cobra.Command{addUser, changePassword, setTags, deleteUser, setPermissions, clearPermissions}
}

// knownTags are those that mean something.
var knownTags = []string{"administrator", "monitoring", "policymaker", "management", "impersonator"}

// warnOfTags says which tags give no rights: any are taken, for programs that look at them.
func (x *ctl) warnOfTags(tags string) {
	for tag := range strings.SplitSeq(tags, ",") {
		if tag = strings.TrimSpace(tag); tag != "" && !slices.Contains(knownTags, tag) {
			fmt.Fprintf(x.t.err, "warning: the tag %s gives no rights: %s do\n", printable(tag), strings.Join(knownTags, ", "))
		}
	}
}

// password is the argument, or what is typed, unseen on a terminal, or the first line of standard input.
func (x *ctl) password(args []string) (password string, err error) {
	defer func() {
		if err == nil && password == "" {
			err = usagef("the password is empty: nobody could log in with it")
		}
	}()
	if len(args) > 0 {
		return args[0], nil
	}
	if f, ok := x.t.in.(*os.File); ok && isTerminal(f) {
		fmt.Fprint(x.t.err, "Password: ")
		p, err := term.ReadPassword(int(f.Fd()))
		fmt.Fprintln(x.t.err)
		if err != nil {
			return "", fmt.Errorf("read the password: %w", err)
		}
		return string(p), nil
	}
	p, err := io.ReadAll(io.LimitReader(x.t.in, 4<<10))
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	line, _, _ := strings.Cut(string(p), "\n")
	return strings.TrimSuffix(line, "\r"), nil
}

func (x *ctl) policyVerbs() []*cobra.Command {
	var priority int
	var applyTo string
	set := x.verb("set-policy NAME PATTERN DEFINITION", "Set a policy; DEFINITION is a JSON object", func(a []string) error {
		var def map[string]any
		if err := api.Decode([]byte(a[2]), &def); err != nil || def == nil {
			return usagef("the definition %s is no JSON object", a[2])
		}
		return x.change("PUT", api.Path("policies", x.vhost, a[0]), map[string]any{
			"pattern": a[1], "definition": def, "priority": priority, "apply-to": applyTo,
		}, "policy %s set", printable(a[0]))
	})
	set.Flags().IntVar(&priority, "priority", 0, "of two policies that match, the higher one applies")
	set.Flags().StringVar(&applyTo, "apply-to", "all", "all, queues or exchanges")
	remove := x.verb("delete-policy POLICY", "Delete a policy", func(a []string) error {
		return x.change("DELETE", api.Path("policies", x.vhost, a[0]), nil, "policy %s deleted", printable(a[0]))
	})
	return []*cobra.Command{set, remove}
}

func (x *ctl) brokerVerbs() []*cobra.Command {
	var description, queueType, reason string
	addVHost := x.verb("add-vhost NAME", "Add a vhost, and give its maker every permission in it", func(a []string) error {
		body := map[string]any{"description": description}
		if queueType != "" {
			body["default_queue_type"] = queueType
		}
		return x.change("PUT", api.Path("vhosts", a[0]), body, "vhost %s added", printable(a[0]))
	})
	addVHost.Flags().StringVar(&description, "description", "", "what it is for")
	addVHost.Flags().StringVar(&queueType, "default-queue-type", "", "type of queues that name none: classic or quorum")
	deleteVHost := x.verb("delete-vhost VHOST", "Delete a vhost with all that is in it", func(a []string) error {
		return x.change("DELETE", api.Path("vhosts", a[0]), nil, "vhost %s deleted", printable(a[0]))
	})
	// trace writes the other settings of the vhost again, because a PUT replaces them.
	trace := func(on bool, said string) error {
		p, err := x.call("GET", api.Path("vhosts", x.vhost), nil)
		if err != nil {
			return err
		}
		var v api.VHost
		if err := json.Unmarshal(p, &v); err != nil {
			return fmt.Errorf("the answer is not what a broker's API gives: %w", err)
		}
		return x.change("PUT", api.Path("vhosts", x.vhost), map[string]any{
			"description": v.Description, "tags": v.Tags, "default_queue_type": v.DefaultQueueType, "tracing": on,
		}, said, printable(x.vhost))
	}
	traceOn := x.verb("trace-on", "Copy what the clients of a vhost publish and get to amq.rabbitmq.trace", func([]string) error {
		return trace(true, "vhost %s is traced")
	})
	traceOff := x.verb("trace-off", "End what trace-on began", func([]string) error {
		return trace(false, "vhost %s is not traced")
	})
	// definitions are those of the broker, or of one vhost if --vhost is given.
	definitions := func() string {
		if x.c.Flags().Changed("vhost") {
			return api.Path("definitions", x.vhost)
		}
		return api.Path("definitions")
	}
	export := x.verb("export [FILE]", "Write the definitions of the broker, or of --vhost, to a file or standard output", func(a []string) error {
		p, err := x.call("GET", definitions(), nil)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if err := json.Indent(&b, p, "", "  "); err != nil {
			return fmt.Errorf("the answer is not what a broker's API gives: %w", err)
		}
		b.WriteByte('\n')
		if len(a) == 0 || a[0] == "-" {
			_, err := x.t.out.Write(b.Bytes())
			return err
		}
		if err := os.WriteFile(a[0], b.Bytes(), 0o600); err != nil { // it holds password hashes
			if e, ok := errors.AsType[*fs.PathError](err); ok {
				err = fmt.Errorf("%s cannot be written: %w", a[0], e.Err)
			}
			return err
		}
		return x.say("definitions written to %s", a[0])
	})
	load := x.verb("import [FILE]", "Load definitions of FireMQ or RabbitMQ from a file or standard input", func(a []string) error {
		var p []byte
		var err error
		name := "standard input"
		if len(a) == 0 || a[0] == "-" {
			p, err = io.ReadAll(x.t.in)
		} else {
			name = a[0]
			p, err = os.ReadFile(name)
		}
		if e, ok := errors.AsType[*fs.PathError](err); ok {
			return fmt.Errorf("%s cannot be read: %w", name, e.Err)
		} else if err != nil {
			return err
		}
		if _, err := api.Document(p); err != nil {
			return fmt.Errorf("%s was not loaded: %w", name, err)
		}
		_, header, err := x.exchange("POST", definitions(), p)
		if no, ok := errors.AsType[*refusal](err); ok && no.status == http.StatusBadRequest {
			return fmt.Errorf("%s was not loaded: %w", name, err)
		} else if err != nil {
			return err
		}
		return x.loaded(api.Warnings(header.Values(api.WarningHeader)))
	})
	closeConnection := x.verb("close-connection CONNECTION", "Close a connection, named as in the list of connections", func(a []string) error {
		header := []string{}
		if reason != "" {
			header = []string{"X-Reason", reason}
		}
		if _, err := x.call("DELETE", api.Path("connections", a[0]), nil, header...); err != nil {
			return err
		}
		return x.say("connection %s closed", printable(a[0]))
	})
	closeConnection.Flags().StringVar(&reason, "reason", "", "what its client is told")
	return []*cobra.Command{addVHost, deleteVHost, traceOn, traceOff, export, load, closeConnection}
}
