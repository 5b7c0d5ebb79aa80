package definitions

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/frames/table"
)

// policyDef is a policy.
type policyDef struct {
	VHost string `json:"vhost"`
	Name  string `json:"name"`
	rule
}

// rule is what a policy and the value of an operator policy have in common.
type rule struct {
	Pattern    string         `json:"pattern"`
	ApplyTo    string         `json:"apply-to"`
	Definition map[string]any `json:"definition"`
	Priority   json.Number    `json:"priority"`
}

// parameter is a runtime parameter of a vhost. Those of components that are not here are left out.
type parameter struct {
	VHost     string          `json:"vhost"`
	Component string          `json:"component"`
	Name      string          `json:"name"`
	Value     json.RawMessage `json:"value"`
}

const (
	operatorPolicy = "operator_policy"
	vhostLimits    = "vhost-limits"
)

// putPolicies writes policies, operator policies and the limits of vhosts.
func (f *file) putPolicies(s *broker.Snapshot) {
	list := slices.Clone(s.Policies)
	slices.SortFunc(list, func(a, b broker.PolicyDef) int { return compare(a.VHost, b.VHost, a.Name, b.Name) })
	for _, p := range list {
		r := rule{p.Pattern, p.ApplyTo, arguments(p.Definition), json.Number(fmt.Sprint(p.Priority))}
		if p.Operator {
			f.Parameters = append(f.Parameters, parameter{p.VHost, operatorPolicy, p.Name, raw(r)})
		} else {
			f.Policies = append(f.Policies, policyDef{p.VHost, p.Name, r})
		}
	}
	for _, v := range s.VHosts {
		if l := s.VHostLimits[v]; len(l) > 0 {
			f.Parameters = append(f.Parameters, parameter{v, vhostLimits, "limits", raw(l)})
		}
	}
	slices.SortFunc(f.Parameters, func(a, b parameter) int {
		return compare(a.Component, b.Component, a.VHost, b.VHost, a.Name, b.Name)
	})
}

func raw(v any) json.RawMessage {
	p, err := json.Marshal(v)
	if err != nil {
		panic("BUG: definitions: " + err.Error())
	}
	return p
}

// policies reads policies, operator policies and the limits of vhosts.
func (f *file) policies(s *broker.Snapshot) error {
	for _, p := range f.Policies {
		if err := addPolicy(s, p.VHost, p.Name, p.rule, false); err != nil {
			return err
		}
	}
	for _, p := range f.Parameters {
		switch p.Component {
		case operatorPolicy:
			var r rule
			if err := decode(p.Value, &r); err != nil {
				return fmt.Errorf("operator policy '%s' in vhost '%s': %w", p.Name, p.VHost, err)
			}
			if err := addPolicy(s, p.VHost, p.Name, r, true); err != nil {
				return err
			}
		case vhostLimits:
			var l limits
			if err := json.Unmarshal(p.Value, &l); err != nil {
				return fmt.Errorf("limits of vhost '%s': %w", p.VHost, err)
			}
			if s.VHostLimits == nil {
				s.VHostLimits = make(map[string]broker.Limits)
			}
			s.VHostLimits[p.VHost] = broker.Limits(l)
		default:
			s.Warnings = append(s.Warnings, fmt.Sprintf("parameter '%s' of component '%s' in vhost '%s' was left out: there is no such component", p.Name, p.Component, p.VHost))
		}
	}
	return nil
}

func decode(p []byte, into any) error {
	d := json.NewDecoder(strings.NewReader(string(p)))
	d.UseNumber()
	return d.Decode(into)
}

// addPolicy leaves out what is only of use in a cluster or to a plugin, above all ha-*, with a warning; a
// policy of nothing else is left out as a whole.
func addPolicy(s *broker.Snapshot, vhost, name string, r rule, operator bool) error {
	kind := "policy"
	if operator {
		kind = "operator policy"
	}
	known := make(map[string]any, len(r.Definition))
	var out []string
	for key, v := range r.Definition {
		if policy.Known(key, operator) {
			known[key] = v
		} else {
			out = append(out, key)
		}
	}
	if len(out) > 0 {
		slices.Sort(out)
		s.Warnings = append(s.Warnings, fmt.Sprintf("%s '%s' in vhost '%s': %s was left out: it means nothing here", kind, name, vhost, strings.Join(out, ", ")))
		if len(known) == 0 {
			return nil
		}
	}
	def, err := table.FromMap(known)
	if err != nil {
		return fmt.Errorf("%s '%s' in vhost '%s': %w", kind, name, vhost, err)
	}
	priority := int64(0)
	if r.Priority != "" {
		f, err := r.Priority.Float64()
		if err != nil {
			return fmt.Errorf("%s '%s' in vhost '%s': priority: %w", kind, name, vhost, err)
		}
		priority = int64(f)
	}
	if r.ApplyTo == "" {
		r.ApplyTo = "all"
	}
	p, err := policy.Make(name, r.Pattern, def, priority, r.ApplyTo, operator)
	if err != nil {
		return fmt.Errorf("%s '%s' in vhost '%s': %w", kind, name, vhost, err)
	}
	s.Policies = append(s.Policies, broker.PolicyDef{VHost: vhost, Operator: operator, Policy: p})
	return nil
}
