package mgmt

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"html"
	"slices"
	"strings"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/mgmt/api"
)

// The components of parameters.
const (
	componentPolicy         = "policy"
	componentOperatorPolicy = "operator_policy"
	componentLimits         = "vhost-limits"
)

// limitsParameter is the name of the only parameter of componentLimits.
const limitsParameter = "limits"

func policyOf(p *broker.PolicyDef) api.Policy {
	return api.Policy{
		VHost: p.VHost, Name: p.Name, Pattern: p.Pattern, ApplyTo: p.ApplyTo, Definition: argumentMap(p.Definition), Priority: p.Priority,
	}
}

// policies lists the policies, or the operator policies, of the scope.
func (r *request) policies(operator bool) []api.Policy {
	scope := r.scope()
	items := []api.Policy{}
	for _, p := range r.s.opt.Broker.Policies() {
		if p.Operator == operator && slices.Contains(scope, p.VHost) {
			items = append(items, policyOf(&p))
		}
	}
	slices.SortFunc(items, func(a, b api.Policy) int {
		return cmp.Or(strings.Compare(a.VHost, b.VHost), strings.Compare(a.Name, b.Name))
	})
	return items
}

func listPolicies(operator bool) handler {
	return func(r *request) error { return plain(r, r.policies(operator)) }
}

func getPolicy(operator bool) handler {
	return func(r *request) error {
		if err := r.known(); err != nil {
			return err
		}
		for _, p := range r.policies(operator) {
			if p.Name == r.vars["name"] {
				return r.ok(p)
			}
		}
		return missing
	}
}

// policyFrom checks a policy's definition.
func policyFrom(name string, b body, operator bool) (*policy.Policy, error) {
	if err := b.need("pattern", "definition"); err != nil {
		return nil, err
	}
	value := func(key string, absent table.Value) (table.Value, error) {
		if _, ok := b[key]; !ok {
			return absent, nil
		}
		v, err := table.FromAny(b[key])
		if err != nil {
			return v, badRequest(err.Error())
		}
		return v, nil
	}
	var fields [4]table.Value
	for i, f := range []struct {
		key    string
		absent table.Value
	}{
		{"pattern", table.VoidValue()}, {"definition", table.VoidValue()},
		{"priority", table.IntValue(0)}, {"apply-to", table.StringValue("all")},
	} {
		var err error
		if fields[i], err = value(f.key, f.absent); err != nil {
			return nil, err
		}
	}
	if err := within("policy", len(name)+len(fields[0].Str)+fields[1].Table.Size()); err != nil {
		return nil, err
	}
	p, err := policy.New(name, fields[0], fields[1], fields[2], fields[3], operator)
	if err != nil {
		text := err.Error()
		if !operator {
			text = html.EscapeString(text)
			text = strings.NewReplacer("&#34;", `"`, "&#39;", "'").Replace(text)
		}
		return nil, badRequest("Validation failed\n\n" + text + "\n")
	}
	return p, nil
}

func putPolicy(operator bool) handler {
	return func(r *request) error {
		if r.known() != nil {
			return errVHostMissing
		}
		b, err := r.body()
		if err != nil {
			return err
		}
		return r.putPolicyAs(b, operator)
	}
}

func (r *request) putPolicyAs(b body, operator bool) error {
	p, err := policyFrom(r.vars["name"], b, operator)
	if err != nil {
		return err
	}
	existed := slices.ContainsFunc(r.policies(operator), func(p api.Policy) bool { return p.Name == r.vars["name"] })
	if e := r.s.opt.Broker.PutPolicy(broker.PolicyDef{VHost: r.vars["vhost"], Operator: operator, Policy: p}); e != nil {
		return refusal(e)
	}
	return r.done(!existed)
}

func deletePolicy(operator bool) handler {
	return func(r *request) error {
		if e := r.s.opt.Broker.DeletePolicy(r.vars["vhost"], r.vars["name"], operator); e != nil {
			return missing
		}
		return r.done(false)
	}
}

// parameters lists those of one component, or all but policies, in the scope.
func (r *request) parameters(component string) []api.Parameter {
	items := []api.Parameter{}
	rule := func(component string, operator bool) {
		for _, p := range r.policies(operator) {
			value := encode(nil, map[string]any{
				"pattern": p.Pattern, "apply-to": p.ApplyTo, "definition": p.Definition, "priority": p.Priority,
			}, nil)
			items = append(items, api.Parameter{VHost: p.VHost, Component: component, Name: p.Name, Value: value})
		}
	}
	if component == componentPolicy {
		rule(component, false)
	}
	if component == "" || component == componentOperatorPolicy {
		rule(componentOperatorPolicy, true)
	}
	if component == "" || component == componentLimits {
		for _, v := range r.scope() {
			if l := r.s.opt.Broker.VHostLimits(v); len(l) > 0 {
				items = append(items, api.Parameter{VHost: v, Component: componentLimits, Name: limitsParameter, Value: encode(nil, l, nil)})
			}
		}
	}
	return items
}

func listParameters(r *request) error { return plain(r, r.parameters(r.vars["component"])) }

// parameterOf finds the parameter of the path.
func (r *request) parameterOf() (*api.Parameter, error) {
	for _, p := range r.parameters(r.vars["component"]) {
		if p.Name == r.vars["name"] {
			return &p, nil
		}
	}
	return nil, missing
}

func getParameter(r *request) error {
	p, err := r.parameterOf()
	if err != nil {
		return err
	}
	return r.ok(p)
}

func putParameter(r *request) error {
	b, err := r.body()
	if err != nil {
		return err
	}
	component := r.vars["component"]
	switch component {
	case componentPolicy:
		return badRequest("policies may not be set using this method")
	case componentOperatorPolicy, componentLimits:
	default:
		return badRequestf("Validation failed\n\ncomponent %s not found\n", component)
	}
	if err := b.need("value"); err != nil {
		return err
	}
	value, ok := b["value"].(map[string]any)
	if list, isList := b["value"].([]any); isList && len(list) == 0 {
		ok = true // an empty object of some languages
	}
	if !ok {
		return badRequest([]string{"not_json_object", "value"})
	}
	if component == componentOperatorPolicy {
		if !r.user.HasTag(tagAdministrator) {
			return notAuthorised("Not administrator user")
		}
		for _, key := range [...]string{"priority", "pattern", "definition"} {
			if _, ok := value[key]; !ok {
				return badRequestf("Validation failed\n\nKey \"%s\" not found in %s\n", key, r.vars["name"])
			}
		}
		return r.putPolicyAs(value, true)
	}
	if r.vars["name"] != limitsParameter {
		return badRequestf("Validation failed\n\nlimits of a vhost are named %s\n", limitsParameter)
	}
	limits, err := limitsFrom(value)
	if err != nil {
		return err
	}
	existed := len(r.s.opt.Broker.VHostLimits(r.vars["vhost"])) > 0
	for _, name := range vhostLimitNames {
		n, ok := limits[name]
		if !ok {
			n = -1
		}
		if e := r.s.opt.Broker.SetVHostLimit(r.vars["vhost"], name, n); e != nil {
			return errVHostMissing
		}
	}
	return r.done(!existed)
}

// limitsFrom reads the limits of a vhost.
func limitsFrom(value map[string]any) (broker.Limits, error) {
	limits := make(broker.Limits)
	for _, name := range sortedKeys(value) {
		if !slices.Contains(vhostLimitNames, name) {
			return nil, badRequestf("Validation failed\n\nUnrecognised terms [{<<\"%s\">>,%s}] in limits\n", name, term(value[name]))
		}
		n, err := body(value).integer(name, -1)
		if err != nil {
			return nil, badRequestf("Validation failed\n\n%s should be a number, actually was %s\n", name, term(value[name]))
		}
		limits[name] = n
	}
	return limits, nil
}

func deleteParameter(r *request) error {
	if _, err := r.parameterOf(); err != nil {
		return err
	}
	switch r.vars["component"] {
	case componentPolicy:
		return badRequest("policies may not be cleared using this method")
	case componentOperatorPolicy:
		if !r.user.HasTag(tagAdministrator) {
			return notAuthorised("Not administrator user")
		}
		return deletePolicy(true)(r)
	}
	for _, name := range vhostLimitNames {
		r.s.opt.Broker.SetVHostLimit(r.vars["vhost"], name, -1)
	}
	return r.done(false)
}

// clusterName and clusterID are the built-in global parameters.
const (
	clusterNameParameter = "cluster_name"
	clusterIDParameter   = "internal_cluster_id"
)

// globals are the global parameters: clusterNameParameter is there once it was set.
func (s *Server) globals() []api.GlobalParameter {
	m := s.opt.Broker.Globals()
	items := []api.GlobalParameter{}
	for _, name := range sortedKeys(m) {
		items = append(items, api.GlobalParameter{Name: name, Value: m[name]})
	}
	return items
}

// clusterName is what operators call the broker.
func (s *Server) clusterName() string {
	var name string
	if v, ok := s.opt.Broker.Globals()[clusterNameParameter]; ok && json.Unmarshal(v, &name) == nil {
		return name
	}
	return s.opt.Node
}

// ensureClusterID makes the cluster's id when the listener first starts.
func (s *Server) ensureClusterID() {
	if s.clusterID() == "" {
		s.opt.Broker.SetGlobal(clusterIDParameter, encode(nil, "rabbitmq-cluster-id-"+rand.Text(), nil))
	}
}

// clusterID is a name of the broker that does not change.
func (s *Server) clusterID() string {
	var id string
	if v, ok := s.opt.Broker.Globals()[clusterIDParameter]; ok {
		json.Unmarshal(v, &id) // set by ensureClusterID or imported; another type reads as ""
	}
	return id
}

func listGlobals(r *request) error { return plain(r, r.s.globals()) }

func getGlobal(r *request) error {
	for _, g := range r.s.globals() {
		if g.Name == r.vars["name"] {
			return r.ok(g)
		}
	}
	return missing
}

func putGlobal(r *request) error {
	b, err := r.body()
	if err != nil {
		return err
	}
	if _, ok := b["value"]; !ok { // null is one
		return b.need("value")
	}
	value := encode(nil, b["value"], nil)
	if err := within("global parameter", len(r.vars["name"])+len(value)); err != nil {
		return err
	}
	return r.done(r.s.opt.Broker.SetGlobal(r.vars["name"], value))
}

func deleteGlobal(r *request) error {
	if !r.s.opt.Broker.DeleteGlobal(r.vars["name"]) {
		return missing
	}
	return r.done(false)
}

func getClusterName(r *request) error { return r.ok(map[string]string{"name": r.s.clusterName()}) }

func putClusterName(r *request) error {
	b, err := r.body()
	if err != nil {
		return err
	}
	if err := b.need("name"); err != nil {
		return err
	}
	name, err := b.text("name")
	if err != nil {
		return err
	}
	if err := within("name", len(name)); err != nil {
		return err
	}
	r.s.opt.Broker.SetGlobal(clusterNameParameter, encode(nil, name, nil))
	return r.done(false)
}
