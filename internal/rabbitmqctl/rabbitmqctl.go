// Package rabbitmqctl answers: the command lines of RabbitMQ's tools, over FireMQ's HTTP API.
//
// Scripts and client test suites call rabbitmqctl, rabbitmq-diagnostics and the others, read what they
// print and look at the exit status. Both are RabbitMQ's here: the line that says what is done, tab separated
// columns in their order, terms spelt as Erlang does, the statuses of sysexits.h. commands.go has the table of
// commands, lists.go those that print columns, format.go the formatters. docs/rabbitmqctl.md says what differs.
package rabbitmqctl

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/firemq/firemq/internal/misspelt"
	"github.com/firemq/firemq/mgmt/api"
)

// The tools whose names Run answers to.
const (
	Ctl         = "rabbitmqctl"
	Diagnostics = "rabbitmq-diagnostics"
	Plugins     = "rabbitmq-plugins"
	Queues      = "rabbitmq-queues"
	Upgrade     = "rabbitmq-upgrade"
)

// Tools are the tools' names.
var Tools = []string{Ctl, Diagnostics, Plugins, Queues, Upgrade}

// Exit statuses, of sysexits.h as RabbitMQ's tools use it.
const (
	exitOK          = 0
	exitUsage       = 64 // the command line makes no sense
	exitData        = 65 // what it names is wrong, credentials too
	exitNoUser      = 67
	exitUnavailable = 69 // refused, or the broker was not reached
	exitSoftware    = 70
	exitTimeout     = 75
)

// Terminal is what a command sees of the process.
type Terminal struct {
	In       io.Reader
	Out, Err io.Writer
	Env      func(string) (string, bool)
	Version  string // of the program
}

// failure is a command that failed. Its text may have several lines, as RabbitMQ's have.
type failure struct {
	status int
	text   string
	bare   bool // without the line "Error:" above it
}

func (f *failure) Error() string { return f.text }

func failed(status int, format string, args ...any) error {
	return &failure{status: status, text: fmt.Sprintf(format, args...)}
}

// misused is a command line that does not fit the command.
func misused(format string, args ...any) error {
	return &failure{status: exitUsage, text: fmt.Sprintf(format, args...), bare: true}
}

// call is one command line, taken apart, and what carries it out.
type call struct {
	t       Terminal
	ctx     context.Context
	tool    string
	line    []string // as given, without the tool
	command *command
	args    []string
	options map[string]string // by long name; "" for those without a value
	url     string
	user    string
	pass    string
	said    bool // something was printed, but for what announces it
}

// defaultTimeout bounds a call without --timeout; RabbitMQ waits for ever with most commands, and scripts hang.
const defaultTimeout = 2 * time.Minute

// Run carries out one command line of a tool and gives the exit status.
func Run(ctx context.Context, t Terminal, tool string, line []string) int {
	env := func(name, or string) string {
		if v, ok := t.Env(name); ok && v != "" {
			return v
		}
		return or
	}
	c := &call{
		t: t, tool: tool, line: line,
		url:  strings.TrimSuffix(env("FIREMQ_HTTP_URL", "http://localhost:15672"), "/"),
		user: env("FIREMQ_USER", "guest"), pass: env("FIREMQ_PASS", "guest"),
	}
	err := c.parse()
	if err == nil {
		limit := defaultTimeout
		if s, ok := c.options["timeout"]; ok && s != "infinity" {
			n, bad := strconv.Atoi(s)
			if bad != nil {
				err = misused("Error (argument validation): the timeout %s is no number of seconds", s)
			} else if n > 0 {
				limit = time.Duration(n) * time.Second
			}
		}
		if err == nil {
			var cancel context.CancelFunc
			c.ctx, cancel = context.WithTimeout(ctx, limit)
			defer cancel()
			if err = c.command.run(c); err == nil {
				err = c.acknowledge()
			}
			if errors.Is(err, context.DeadlineExceeded) {
				err = failed(exitTimeout, "operation %s timed out. Timeout value used: %d", c.command.name, limit.Milliseconds())
			}
		}
	}
	if err == nil {
		return exitOK
	}
	f, ok := errors.AsType[*failure](err)
	if !ok {
		f = &failure{status: exitUnavailable, text: err.Error()}
	}
	if !f.bare {
		fmt.Fprintln(t.Err, "Error:")
	}
	fmt.Fprintln(t.Err, f.text)
	return f.status
}

// options are what command lines may hold beside arguments, by every spelling: the long name, and whether a
// value follows. Those that mean nothing here are taken and ignored, as scripts give them.
var options = func() map[string]struct {
	name  string
	value bool
} {
	m := make(map[string]struct {
		name  string
		value bool
	})
	add := func(value bool, names ...string) {
		for i, n := range names {
			dashes := "--"
			if i > 0 && len(n) == 1 {
				dashes = "-"
			}
			m[dashes+n] = struct {
				name  string
				value bool
			}{names[0], value}
		}
	}
	add(true, "node", "n")
	add(true, "vhost", "p")
	add(true, "timeout", "t")
	for _, name := range []string{
		"formatter", "priority", "apply-to", "description", "tags", "default-queue-type", "user", "per-connection-delay", "limit",
		"format", "erlang-cookie", "script-name", "address", "mnesia-dir", "quorum-dir", "data-dir", "rabbitmq-home", "unit", "printer", "pid",
		"within", "queue-timeout", "vhost-pattern", "queue-pattern",
	} {
		add(true, name)
	}
	add(false, "quiet", "q")
	add(false, "silent", "s")
	add(false, "longnames", "l")
	add(false, "if-empty", "e")
	add(false, "if-unused", "u")
	add(false, "enabled", "E")
	add(false, "minimal", "m")
	for _, name := range []string{
		"no-table-headers", "table-headers", "global", "online", "offline", "local", "dry-run", "verbose", "print-stacktrace", "opt-in",
		"skip-if-unchanged", "pre-hashed-password", "hide-stdout", "all", "help", "used", "list-commands",
	} {
		add(false, name)
	}
	return m
}()

// parse takes the command line apart. Options may stand anywhere before "--".
func (c *call) parse() error {
	c.options = make(map[string]string)
	var words []string
	for i := 0; i < len(c.line); i++ {
		word := c.line[i]
		if word == "--" {
			words = append(words, c.line[i+1:]...)
			break
		}
		if len(word) < 2 || word[0] != '-' {
			words = append(words, word)
			continue
		}
		spelt, value, given := word, "", false
		if strings.HasPrefix(word, "--") {
			spelt, value, given = strings.Cut(word, "=")
		}
		o, ok := options[strings.ReplaceAll(spelt, "_", "-")]
		switch {
		case !ok:
			return misused("Error (argument validation): Invalid options for this command:\n%s : \nArguments given:\n\t%s", word, strings.Join(c.line, " "))
		case o.value && !given:
			if i++; i == len(c.line) {
				return misused("Error (argument validation): %s needs a value\nArguments given:\n\t%s", word, strings.Join(c.line, " "))
			}
			value = c.line[i]
		}
		c.options[o.name] = value
	}
	if c.has("help") || len(words) == 0 || words[0] == "help" {
		c.command = &command{name: "help", run: help}
		if len(words) > 1 {
			if f := c.find(words[1]); f != nil {
				c.args = words[1:2]
			}
		}
		if len(words) == 0 && !c.has("help") {
			return misused("%s", c.helpText())
		}
		return nil
	}
	if c.command = c.find(words[0]); c.command == nil {
		return misused("\nCommand '%s' not found. \n%s", words[0], c.didYouMean(words[0]))
	}
	c.args = words[1:]
	switch n := len(c.args); {
	case n < c.command.least:
		return c.badArguments("not enough arguments.")
	case c.command.most >= 0 && n > c.command.most:
		return c.badArguments("too many arguments.")
	}
	if f, ok := c.options["formatter"]; ok && !slices.Contains(formatters, f) {
		return c.badArguments("Formatter %s is not supported: one of %s", f, strings.Join(formatters, ", "))
	}
	return nil
}

// badArguments is a command line whose arguments do not fit, with what would.
func (c *call) badArguments(format string, args ...any) error {
	return misused("Error (argument validation): %s\nArguments given:\n\t%s\n\nUsage\n\n%s",
		fmt.Sprintf(format, args...), strings.Join(c.line, " "), c.command.usage(c.tool))
}

// badArgument is likewise about one that cannot be.
func (c *call) badArgument(format string, args ...any) error {
	err := c.badArguments("Bad argument: "+format, args...).(*failure)
	err.status = exitData
	return err
}

func (c *call) has(option string) bool {
	_, ok := c.options[option]
	return ok
}

func (c *call) vhost() string { return cmp.Or(c.options["vhost"], "/") }

// find gives a tool's command. All tools but rabbitmq-plugins have each other's, as scripts mix them up.
func (c *call) find(name string) *command {
	for i := range commands {
		if k := &commands[i]; k.name == name && (k.tool == Plugins) == (c.tool == Plugins) {
			return k
		}
	}
	return nil
}

// Commands are the names of a tool's commands, in order.
func Commands(tool string) (names []string) {
	for i := range commands {
		if k := &commands[i]; (k.tool == Plugins) == (tool == Plugins) {
			names = append(names, k.name)
		}
	}
	slices.Sort(names)
	return names
}

// announce says what is about to be done, but not to programs.
func (c *call) announce(format string, args ...any) {
	if !c.has("quiet") && !c.has("silent") && !c.machine() {
		fmt.Fprintf(c.t.Out, format+"\n", args...)
	}
}

// acknowledge ends a command that has printed nothing: programs that asked for JSON get some.
func (c *call) acknowledge() error {
	if c.said || !c.json() {
		return nil
	}
	f := fields{"result": "ok"}
	if node, err := c.nodeName(); err == nil { // it may be stopped
		f["node"] = node
	}
	return c.result("", f)
}

// say prints a result.
func (c *call) say(format string, args ...any) error {
	c.said = true
	_, err := fmt.Fprintf(c.t.Out, format+"\n", args...)
	return err
}

// refusal is an answer of the API that is no success.
type refusal struct {
	status int
	reason string
}

func (r *refusal) Error() string { return r.reason }

// status is the HTTP status of a refusal, 0 of anything else.
func status(err error) int {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.status
	}
	return 0
}

// request asks the API as a user.
func (c *call) request(user, pass, method, path string, body any) ([]byte, error) {
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		r = bytes.NewReader(b)
	default:
		p, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(p)
	}
	req, err := http.NewRequestWithContext(c.ctx, method, c.url+path, r)
	if err != nil {
		return nil, failed(exitUsage, "FIREMQ_HTTP_URL=%s is no URL", c.url)
	}
	req.SetBasicAuth(user, pass)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if reason, ok := c.options["reason"]; ok {
		req.Header.Set("X-Reason", reason)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		if c.ctx.Err() != nil {
			return nil, c.ctx.Err()
		}
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		return nil, failed(exitUnavailable, "unable to perform an operation on node '%s': %s cannot be reached: %s\nFIREMQ_HTTP_URL says where the broker's API is.",
			cmp.Or(c.options["node"], "firemq"), c.url, err)
	}
	defer res.Body.Close()
	p, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", c.url, err)
	}
	for _, w := range api.Warnings(res.Header.Values(api.WarningHeader)) {
		fmt.Fprintln(c.t.Err, "warning:", strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return '?'
			}
			return r
		}, w))
	}
	if res.StatusCode < 300 {
		return p, nil
	}
	var e api.Error
	text := http.StatusText(res.StatusCode)
	if json.Unmarshal(p, &e) == nil && e.Reason != nil {
		if s, ok := e.Reason.(string); ok {
			text = html.UnescapeString(strings.TrimRight(s, "\n"))
		} else if b, err := json.Marshal(e.Reason); err == nil {
			text = string(b)
		}
	}
	if res.StatusCode == http.StatusUnauthorized && e.Error == "not_authorized" {
		text = "wrong user or password: FIREMQ_USER and FIREMQ_PASS say who asks"
	}
	return nil, &refusal{res.StatusCode, text}
}

// do asks the API to do something.
func (c *call) do(method, path string, body any) error {
	_, err := c.request(c.user, c.pass, method, path, body)
	return err
}

// get reads an object or a list of the API.
func (c *call) get(path string, v any) error {
	p, err := c.request(c.user, c.pass, "GET", path, nil)
	if err != nil {
		return err
	}
	if err := api.Decode(p, v); err != nil {
		return fmt.Errorf("the answer of %s is not what a broker's API gives: %w", c.url, err)
	}
	return nil
}

// nodeName asks for the broker's name.
func (c *call) nodeName() (string, error) {
	var o api.Overview
	err := c.get(api.Path("overview"), &o)
	return o.Node, err
}

// address is where the API is, and host its machine.
func (c *call) address() string {
	u, err := url.Parse(c.url)
	if err != nil {
		return ""
	}
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
}

func (c *call) host() string {
	host, _, _ := net.SplitHostPort(c.address())
	return host
}

// input reads an argument that may be left out: then it is the first line of standard input.
func (c *call) input(i int) (string, error) {
	if i < len(c.args) {
		return c.args[i], nil
	}
	p, err := io.ReadAll(io.LimitReader(c.t.In, 4<<10))
	if err != nil {
		return "", fmt.Errorf("read standard input: %w", err)
	}
	line, _, _ := strings.Cut(string(p), "\n")
	return strings.TrimSuffix(line, "\r"), nil
}

func help(c *call) error {
	if len(c.args) == 0 {
		return c.say("%s", c.helpText())
	}
	return c.say("\nUsage\n\n%s", c.find(c.args[0]).usage(c.tool))
}

func (c *call) helpText() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nUsage\n\n%s [--node <node>] [--timeout <timeout>] [--quiet] <command> [<command options>]\n\nAvailable commands:\n\n", c.tool)
	for i := range commands {
		if k := &commands[i]; (k.tool == Plugins) == (c.tool == Plugins) {
			fmt.Fprintf(&b, "   %s\n", strings.TrimSpace(k.name+" "+k.form))
		}
	}
	b.WriteString("\nThe node is the one at FIREMQ_HTTP_URL; FIREMQ_USER and FIREMQ_PASS say who asks.")
	return b.String()
}

// didYouMean names the command that the unknown one is most like.
func (c *call) didYouMean(name string) string {
	if meant, ok := misspelt.Meant(name, Commands(c.tool)); ok {
		return "Did you mean '" + meant + "'?"
	}
	return fmt.Sprintf("See '%s help'", c.tool)
}

// writeFile writes what holds password hashes.
func (c *call) writeFile(name string, p []byte) error {
	if name == "-" {
		c.said = true
		_, err := c.t.Out.Write(p)
		return err
	}
	return os.WriteFile(name, p, 0o600)
}
