package rabbitmqctl

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/firemq/firemq/mgmt/api"
)

// expressions are the Erlang that scripts and client test suites give to eval. There is no Erlang here: what is
// known is carried out, all else is refused. The patterns have no spaces.
var expressions = []struct {
	pattern *regexp.Regexp
	run     func(c *call, node string, match []string) (term string, err error)
}{
	{regexp.MustCompile(`^node\(\)$`), func(_ *call, node string, _ []string) (string, error) { return quoted(node), nil }},
	{regexp.MustCompile(`^rabbit:is_running\(\)$`), func(c *call, _ string, _ []string) (string, error) {
		ok, err := c.check("ready-to-serve-clients")
		return fmt.Sprint(ok), err
	}},
	{regexp.MustCompile(`^rabbit_alarm:set_alarm\(\{\{resource_limit,(memory|disk),node\(\)\},\[\]\}\)$`), forceAlarm(true)},
	{regexp.MustCompile(`^rabbit_alarm:clear_alarm\(\{resource_limit,(memory|disk),node\(\)\}\)$`), forceAlarm(false)},
}

// quoted spells an atom.
func quoted(atom string) string {
	if regexp.MustCompile(`^[a-z][a-zA-Z0-9_@]*$`).MatchString(atom) {
		return atom
	}
	return "'" + atom + "'"
}

// forceAlarm raises an alarm, and comes back when the broker has it so, or lets the limits decide again.
func forceAlarm(on bool) func(c *call, node string, match []string) (string, error) {
	return func(c *call, node string, match []string) (string, error) {
		flag := map[string]string{"memory": "mem_alarm", "disk": "disk_free_alarm"}[match[1]]
		if err := c.do("PUT", api.Path("nodes", node, "limits"), map[string]bool{match[1] + "_alarm": on}); err != nil {
			return "", err
		}
		return "ok", c.until(func() (bool, error) {
			var n object
			err := c.get(api.Path("nodes", node), &n)
			raised, _ := n.at(flag).(bool)
			return raised || !on, err
		})
	}
}

func eval(c *call) error {
	var text strings.Builder
	for _, a := range c.args {
		text.WriteString(strings.Join(strings.Fields(a), ""))
	}
	expression := strings.TrimSuffix(text.String(), ".")
	for i := range expressions {
		if m := expressions[i].pattern.FindStringSubmatch(expression); m != nil {
			node, err := c.nodeName()
			if err != nil {
				return err
			}
			term, err := expressions[i].run(c, node, m)
			if err != nil {
				return err
			}
			f := fields{"result": "ok", "node": node}
			if term != "ok" {
				f["value"] = term
			}
			return c.result(term, f)
		}
	}
	return failed(exitUnavailable, "FireMQ has no Erlang: eval knows node(), rabbit:is_running(), and rabbit_alarm:set_alarm and clear_alarm of memory and disk")
}
