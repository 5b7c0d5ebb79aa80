package main

import (
	"bytes"
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
	"time"

	"github.com/spf13/cobra"

	"github.com/firemq/firemq/mgmt/api"
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
