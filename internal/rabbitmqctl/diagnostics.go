package rabbitmqctl

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/firemq/firemq/mgmt/api"
)

// The checks and reports of rabbitmq-diagnostics, rabbitmq-queues and rabbitmq-upgrade that are more than node.go has.

// showAlarms lists the alarms. It is no check: they are no error.
func showAlarms(c *call) error {
	o, n, err := c.node()
	if err != nil {
		return err
	}
	c.announce("Asking node %s to report any known resource alarms ...", o.Node)
	alarms := n.alarms()
	switch {
	case alarms == nil && c.json():
		return c.say("%s", compact(map[string]any{"result": "ok", "node": o.Node, "alarms": []string{}}))
	case c.json():
		return c.say("%s", compact(map[string]any{
			"result": "ok", "local": alarms, "global": []string{}, "message": "Node " + o.Node + " reported alarms",
		}))
	case alarms == nil:
		return c.say("Node %s reported no alarms, local or clusterwide", o.Node)
	}
	return c.say("%s", strings.Join(alarms, "\n"))
}

// checkAlarms fails while there is an alarm.
func checkAlarms(c *call) error {
	return c.alarmsAre("Node %s reported no alarms, local or clusterwide")
}

// checkLocalAlarms is the same: the node is alone.
func checkLocalAlarms(c *call) error { return c.alarmsAre("Node %s reported no local alarms") }

func (c *call) alarmsAre(none string) error {
	o, n, err := c.node()
	if err != nil {
		return err
	}
	c.announce("Asking node %s to report any local resource alarms ...", o.Node)
	if alarms := n.alarms(); alarms != nil {
		return failed(exitUnavailable, "%s", strings.Join(alarms, "\n"))
	}
	return c.result(fmt.Sprintf(none, o.Node), passed)
}

// units are the values of --unit of memory_breakdown, in bytes.
var units = map[string]float64{"bytes": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}

// memoryKind is one thing that memory is used for, and its share of all in percent.
type memoryKind struct {
	name         string
	bytes, share float64
}

// memoryKinds are those of an answer of the API, the largest first.
func memoryKinds(memory object) (kinds []memoryKind) {
	total := max(memory.number("total.rss"), 1)
	for name := range memory {
		if bytes := memory.number(name); name != "total" && name != "strategy" {
			kinds = append(kinds, memoryKind{name, bytes, math.Round(1e4*bytes/total) / 100})
		}
	}
	slices.SortFunc(kinds, func(a, b memoryKind) int { return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.name, b.name)) })
	return kinds
}

// memoryBreakdown says what memory is used for.
func memoryBreakdown(c *call) error {
	unit := strings.ToLower(cmp.Or(c.options["unit"], "gb"))
	size, ok := units[unit]
	if !ok {
		return c.badArguments("unit '%s' is not supported. Please use one of: bytes, mb, gb", c.options["unit"])
	}
	node, err := c.nodeName()
	if err != nil {
		return err
	}
	var answer struct{ Memory map[string]any }
	if err := c.get(api.Path("nodes", node, "memory"), &answer); err != nil {
		return err
	}
	c.announce("Reporting memory breakdown on node %s...", node)
	kinds := memoryKinds(answer.Memory)
	var lines, columns []string
	var row []any
	f := fields{}
	for _, k := range kinds {
		lines = append(lines, fmt.Sprintf("%s: %s %s (%s%%)", k.name, decimal(k.bytes/size, 4), unit, decimal(k.share, 2)))
		columns, row = append(columns, k.name+".bytes", k.name+".percentage"), append(row, int64(k.bytes), k.share)
		f[k.name] = map[string]float64{"bytes": k.bytes, "percentage": k.share}
	}
	if c.options["formatter"] == "csv" {
		return c.rows(columns, [][]any{row})
	}
	return c.result(strings.Join(lines, "\n"), f)
}

// checkCertificates looks for certificates that end soon.
func checkCertificates(c *call) error {
	within, err := strconv.Atoi(cmp.Or(c.options["within"], "4"))
	if err != nil {
		return c.badArguments("--within needs a number")
	}
	unit := strings.ToLower(cmp.Or(c.options["unit"], "weeks"))
	if !slices.Contains([]string{"days", "weeks", "months", "years"}, unit) {
		return c.badArguments("unit '%s' is not supported. Please use one of: days, weeks, months, years", unit)
	}
	node, err := c.nodeName()
	if err != nil {
		return err
	}
	c.announce("Checking certificate expiration for all certificates on node %s ...", node)
	switch ok, err := c.check(fmt.Sprintf("certificate-expiration/%d/%s", within, unit)); {
	case err != nil:
		return err
	case !ok:
		return failed(exitUnavailable, "Certificates expire within %d %s", within, unit)
	}
	return c.result(fmt.Sprintf("No certificates are expiring within %d %s.", within, unit), passed)
}

// booted is RabbitMQ's answer to is_booting.
const booted = "RabbitMQ on node NODE is fully booted (check with is_running), stopped or has not started booting yet"

// alone is what waiting for other nodes ends with.
const alone = "Target node seems to be the only one in a single node cluster, the command does not apply"

// fine is a check of what cannot fail on a single node, or waiting for it: that it answers is all there is to find
// out. Texts have NODE for its name and TIMEOUT for --timeout; said may be empty. f is what JSON has, as in result.
func fine(announced, said string, f fields) func(c *call) error {
	return func(c *call) error {
		node, err := c.nodeName()
		if err != nil {
			return err
		}
		words := strings.NewReplacer("NODE", node, "TIMEOUT", cmp.Or(c.options["timeout"], "120"))
		c.announce("%s", words.Replace(announced))
		if said == "" {
			return nil
		}
		told := maps.Clone(f)
		for k, v := range told {
			if text, ok := v.(string); ok {
				told[k] = words.Replace(text)
			}
		}
		return c.result(words.Replace(said), told)
	}
}

// reporting is the option of commands that are a part of a report. There is none of that name on a command line.
const reporting = "a part of a report"

// report prints what others ask for who describe a problem: the state of the node, and every list with all its columns.
func report(c *call) error {
	node, err := c.nodeName()
	if err != nil {
		return err
	}
	c.announce("Reporting server status of node %s ...\n", node)
	part := func(name, vhost string, columns []string) error {
		sub := *c
		sub.command, sub.args = c.find(name), columns
		sub.options = maps.Clone(c.options)
		sub.options["vhost"], sub.options[reporting] = vhost, ""
		return sub.command.run(&sub)
	}
	for _, name := range [...]string{"status", "cluster_status"} { // they end with an empty line
		if err := part(name, "", nil); err != nil {
			return err
		}
	}
	var vhosts []object
	if err := c.get(api.Path("vhosts"), &vhosts); err != nil {
		return err
	}
	type listed struct {
		name, vhost string
		columns     []string
	}
	lists := []listed{{"list_connections", "", connectionList.columns}, {"list_channels", "", channelList.columns}}
	for _, v := range vhosts {
		vhost := v.text("name")
		lists = append(lists, listed{"list_queues", vhost, queueList.columns}, listed{"list_exchanges", vhost, exchangeList.columns},
			listed{"list_bindings", vhost, bindingList.columns}, listed{"list_permissions", vhost, nil}, listed{"list_policies", vhost, nil},
			listed{"list_global_parameters", vhost, nil}, listed{"list_parameters", vhost, nil})
	}
	for _, l := range lists {
		if err := part(l.name, l.vhost, l.columns); err != nil {
			return err
		}
		if err := c.say(""); err != nil {
			return err
		}
	}
	return nil
}

// quorumStatus shows who has a quorum queue: the only node there is leads it. There is no log of Raft whose positions
// could be told.
func quorumStatus(c *call) error {
	node, err := c.nodeName()
	if err != nil {
		return err
	}
	c.announce("Status of queue %s on node %s ...", c.args[0], node)
	var q object
	switch err := c.get(api.Path("queues", c.vhost(), c.args[0]), &q); {
	case status(err) == 404:
		return &failure{status: exitData, bare: true, text: fmt.Sprintf("queue '%s' was not found in virtual host '%s'", c.args[0], c.vhost())}
	case err != nil:
		return err
	case q.text("type") != "quorum":
		return failed(exitUnavailable, "{:unsupported, :rabbit_%s_queue}", q.text("type"))
	}
	if !c.has("formatter") {
		c.options["formatter"] = "pretty_table"
	}
	return c.rows([]string{
		"Node Name", "Raft State", "Membership", "Last Log Index", "Last Written", "Last Applied", "Commit Index", "Snapshot Index", "Term", "Machine Version",
	}, [][]any{{node, "leader", "voter", 0, 0, 0, 0, -1, 1, 0}})
}

// grow has nothing to do: the only node there is has every queue.
func grow(c *call) error {
	node, err := c.nodeName()
	switch {
	case err != nil:
		return err
	case c.args[1] != "all" && c.args[1] != "even":
		return c.badArguments(`"strategy '%s' is not recognised."`, c.args[1])
	case c.args[0] != node:
		return c.badArguments("node %s is not a member of the cluster", c.args[0])
	}
	c.announce("Growing all queues on %s...", node)
	return nil
}

// shrink says of each quorum queue that its node is the last one.
func shrink(c *call) error {
	node, err := c.nodeName()
	if err != nil {
		return err
	}
	c.announce("Shrinking queues on %s...", c.args[0])
	if c.args[0] != node {
		return failed(exitUnavailable, "{:node_not_running, :%s}", c.args[0])
	}
	var queues []object
	if err := c.get(api.Path("queues")+"?columns=vhost,name,type", &queues); err != nil {
		return err
	}
	var rows [][]any
	for _, q := range queues {
		if q.text("type") == "quorum" {
			rows = append(rows, []any{q.text("vhost"), q.text("name"), 1, "error: the last node cannot be removed"})
		}
	}
	return c.rows([]string{"vhost", "name", "size", "result"}, rows)
}

// autocomplete lists the commands that begin with a word, or all.
func autocomplete(c *call) error {
	for _, k := range Commands(c.tool) {
		if len(c.args) == 0 || strings.HasPrefix(k, c.args[len(c.args)-1]) {
			if err := c.say("%s", k); err != nil {
				return err
			}
		}
	}
	return nil
}
