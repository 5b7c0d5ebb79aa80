package definitions

import (
	"strings"
	"testing"

	"github.com/firemq/firemq/broker"
)

const exported = `{
 "vhosts": [{"name": "/"}, {"name": "v"}],
 "parameters": [
  {"vhost": "v", "component": "vhost-limits", "name": "limits", "value": {"max-connections": 100, "max-queues": -1}},
  {"vhost": "v", "component": "operator_policy", "name": "op", "value":
    {"pattern": "^audit", "definition": {"max-length": 7}, "priority": 1, "apply-to": "queues"}},
  {"vhost": "/", "component": "shovel", "name": "s", "value": {"src-uri": "amqp://"}}
 ],
 "policies": [
  {"vhost": "/", "name": "ha", "pattern": ".*", "apply-to": "all", "definition": {"ha-mode": "all", "ha-sync-mode": "automatic"}, "priority": 0},
  {"vhost": "/", "name": "mixed", "pattern": "^m", "apply-to": "queues", "definition": {"ha-mode": "all", "message-ttl": 60000, "overflow": "reject-publish"}, "priority": 2}
 ]
}`

// What RabbitMQ exports comes in, what only a cluster needs is left out with a warning, and it goes
// out again as it came.
func TestPoliciesOfAnExport(t *testing.T) {
	s, err := Decode([]byte(exported))
	if err != nil {
		t.Fatal(err)
	}
	check := func(s *broker.Snapshot) {
		t.Helper()
		if len(s.Policies) != 2 {
			t.Fatalf("%d policies", len(s.Policies))
		}
		for _, p := range s.Policies {
			ttl, _ := p.Definition.Get("message-ttl")
			length, _ := p.Definition.Get("max-length")
			switch {
			case p.Name == "mixed" && !p.Operator && p.VHost == "/" && p.Pattern == "^m" && p.ApplyTo == "queues" && p.Priority == 2 && ttl.Num == 60000 && len(p.Definition) == 2:
			case p.Name == "op" && p.Operator && p.VHost == "v" && p.Priority == 1 && length.Num == 7:
			default:
				t.Errorf("policy %+v", p.Policy)
			}
		}
		if l := s.VHostLimits["v"]; l[broker.MaxConnections] != 100 {
			t.Errorf("limits %v", s.VHostLimits)
		}
	}
	check(&s)
	warned := strings.Join(s.Warnings, "\n")
	for _, want := range []string{
		"policy 'ha' in vhost '/': ha-mode, ha-sync-mode was left out",
		"policy 'mixed' in vhost '/': ha-mode was left out",
		"parameter 's' of component 'shovel' in vhost '/' was left out",
	} {
		if !strings.Contains(warned, want) {
			t.Errorf("no warning %q in\n%s", want, warned)
		}
	}
	p, err := encode(&s)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Decode(p)
	if err != nil {
		t.Fatal(err)
	}
	check(&again)
	if len(again.Warnings) > 0 {
		t.Errorf("our own document warns: %v", again.Warnings)
	}
	for _, key := range []string{`"component": "operator_policy"`, `"apply-to": "queues"`, `"component": "vhost-limits"`} {
		if !strings.Contains(string(p), key) {
			t.Errorf("no %s in %s", key, p)
		}
	}
}

func TestBadPolicyNamesItself(t *testing.T) {
	for doc, want := range map[string]string{
		`{"policies": [{"vhost": "/", "name": "p", "pattern": "(", "definition": {"max-length": 1}}]}`:    "policy 'p' in vhost '/': pattern should be regular expression",
		`{"policies": [{"vhost": "/", "name": "p", "pattern": "", "definition": {"max-length": "x"}}]}`:   "policy 'p' in vhost '/': <<\"x\">> is not a valid maximum length",
		`{"parameters": [{"vhost": "/", "name": "o", "component": "operator_policy", "value": []}]}`:      "operator policy 'o' in vhost '/': json:",
		`{"parameters": [{"vhost": "/", "name": "limits", "component": "vhost-limits", "value": "ten"}]}`: "limits of vhost '/': json:",
	} {
		if _, err := Decode([]byte(doc)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s:\n got %v\nwant %s", doc, err, want)
		}
	}
}
