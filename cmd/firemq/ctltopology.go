package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/firemq/firemq/mgmt/api"
)

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
