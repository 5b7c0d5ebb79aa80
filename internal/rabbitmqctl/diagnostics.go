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
