package rabbitmqctl

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/firemq/firemq/mgmt/api"
)

// plugins are those of RabbitMQ whose work FireMQ does itself.
var plugins = []string{
	"rabbitmq_consistent_hash_exchange", "rabbitmq_delayed_message_exchange", "rabbitmq_management", "rabbitmq_management_agent",
	"rabbitmq_message_deduplication", "rabbitmq_prometheus", "rabbitmq_random_exchange",
}

// explicit are those that count as enabled by somebody; the others came with the broker.
var explicit = []string{"rabbitmq_management", "rabbitmq_prometheus"}

func listPlugins(c *call) error {
	pattern := ".*"
	if len(c.args) > 0 {
		pattern = c.args[0]
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return c.badArguments("Bad argument: %s", err)
	}
	var o api.Overview
	if !c.has("minimal") {
		if err := c.get(api.Path("overview"), &o); err != nil {
			return err
		}
	}
	c.announce("Listing plugins with pattern %q ...", pattern)
	if !c.has("minimal") {
		c.announce(" Configured: E = explicitly enabled; e = implicitly enabled\n | Status: * = running on %s\n |/", o.Node)
	}
	width := len(slices.MaxFunc(plugins, func(a, b string) int { return len(a) - len(b) }))
	for _, p := range plugins {
		sign := "e"
		if slices.Contains(explicit, p) {
			sign = "E"
		}
		switch {
		case !re.MatchString(p), sign == "e" && c.has("enabled"):
		case c.has("minimal"):
			err = c.say("%s", p)
		default:
			err = c.say("[%s*] %-*s %s", sign, width, p, o.RabbitMQVersion)
		}
	}
	return err
}

func pluginsEnabled(c *call) error {
	node, err := c.nodeName()
	if err != nil {
		return err
	}
	names := strings.Join(c.args, ", ")
	if len(c.args) == 1 {
		c.announce("Asking node %s if plugin %s is enabled...", node, names)
	} else {
		c.announce("Asking node %s if plugins %s are enabled...", node, names)
	}
	for _, p := range c.args {
		if !slices.Contains(plugins, p) {
			return failed(exitUnavailable, "Plugin %s is not enabled on node %s. Enabled plugins and dependencies: %s", p, node, strings.Join(plugins, ", "))
		}
	}
	said := fmt.Sprintf("Plugins %s are enabled on node %s", names, node)
	if len(c.args) == 1 {
		said = fmt.Sprintf("Plugin %s is enabled on node %s", names, node)
	}
	return c.result(said, fields{"result": "ok", "message": said})
}

// enablePlugins does nothing for what is there anyway, and refuses the rest. It needs no broker: images are made with
// it.
func enablePlugins(c *call) error {
	for _, p := range c.args {
		if !slices.Contains(plugins, p) {
			return failed(exitUnavailable, "FireMQ has no plugin %s: there are %s", p, strings.Join(plugins, ", "))
		}
	}
	return c.say("Plugin configuration unchanged.")
}

// disablePlugins does nothing for what is not there, and refuses the rest.
func disablePlugins(c *call) error {
	for _, p := range c.args {
		if slices.Contains(plugins, p) {
			return failed(exitUnavailable, "%s is a part of FireMQ and cannot be disabled", p)
		}
	}
	switch {
	case c.has("all"):
		return failed(exitUnavailable, "what stands for plugins here is a part of FireMQ and cannot be disabled")
	case len(c.args) == 0:
		return c.badArguments("not enough arguments.")
	}
	return c.say("Plugin configuration unchanged.")
}
