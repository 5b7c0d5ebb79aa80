package mgmt_test

import (
	"encoding/json"
	"strings"
	"testing"
)

// What operators make is kept, so each object has a bound, by itself and in an import, which then changes nothing.
func TestKeptObjectsAreBounded(t *testing.T) {
	c := start(t)
	long := strings.Repeat("x", 17_000)
	many := make([]string, 2000)
	for _, r := range []struct {
		path    string
		body    object
		what    string
		section string // of definitions; "": there is none
		def     object
	}{
		{"/queues/%2F/q", object{"arguments": object{"x": long}}, "arguments of queue 'q' in vhost '/' take", "queues", object{"name": "q", "vhost": "/", "arguments": object{"x": long}}},
		{"/exchanges/%2F/x", object{"type": "topic", "arguments": object{"x": long}}, "arguments of exchange 'x' in vhost '/' take", "exchanges", object{"name": "x", "vhost": "/", "type": "topic", "arguments": object{"x": long}}},
		{"/policies/%2F/p", object{"pattern": long, "definition": object{"expires": 1}}, "policy takes", "policies", object{"name": "p", "vhost": "/", "pattern": long, "definition": object{"expires": 1}}},
		{"/policies/%2F/p", object{"pattern": "q", "definition": object{"dead-letter-exchange": long}}, "policy takes", "", nil},
		{"/operator-policies/%2F/p", object{"pattern": long, "definition": object{"expires": 1}}, "policy takes", "parameters", object{"component": "operator_policy", "name": "p", "vhost": "/", "value": object{"pattern": long, "definition": object{"expires": 1}}}},
		{"/users/u", object{"password": "p", "tags": long}, "user takes", "users", object{"name": "u", "password_hash": "", "tags": long}},
		{"/users/u", object{"password_hash": long, "tags": ""}, "user takes", "", nil},
		{"/users/u", object{"password": "p", "tags": many}, "user takes", "", nil},
		{"/vhosts/v", object{"description": long}, "metadata takes", "vhosts", object{"name": "v", "description": long}},
		{"/vhosts/v", object{"tags": many}, "metadata takes", "", nil},
		{"/permissions/%2F/guest", object{"configure": long, "write": "", "read": ""}, "permission takes", "permissions", object{"user": "guest", "vhost": "/", "configure": long, "write": "", "read": ""}},
		{"/topic-permissions/%2F/guest", object{"exchange": "amq.topic", "write": long, "read": ""}, "topic permission takes", "topic_permissions", object{"user": "guest", "vhost": "/", "exchange": "amq.topic", "write": long, "read": ""}},
		{"/global-parameters/g", object{"value": object{"k": long}}, "global parameter takes", "global_parameters", object{"name": "g", "value": long}},
		{"/cluster-name", object{"name": long}, "name takes", "", nil},
	} {
		if a := c.do("PUT", r.path, r.body); a.status != 400 || !strings.Contains(a.body, r.what) || !strings.Contains(a.body, "16384 at most") {
			t.Errorf("PUT %s: %d %.200s, want 400 and %q", r.path, a.status, a.body, r.what)
		}
		if r.section == "" {
			continue
		}
		document, err := json.Marshal(object{r.section: []object{r.def}, "vhosts": []object{{"name": "imported"}}})
		if r.section == "vhosts" {
			document, err = json.Marshal(object{r.section: []object{r.def, {"name": "imported"}}})
		}
		if err != nil {
			t.Fatal(err)
		}
		if a := c.do("POST", "/definitions", string(document)); a.status != 400 || !strings.Contains(a.body, "16384 at most") {
			t.Errorf("import of %s: %d %.200s", r.section, a.status, a.body)
		}
		if c.s.Broker().HasVHost("imported") {
			t.Fatalf("import of %s changed something", r.section)
		}
	}
	document, err := json.Marshal(object{"bindings": []object{{"source": "amq.topic", "vhost": "/", "destination": "q", "destination_type": "queue", "arguments": object{"x": long}}}})
	if err != nil {
		t.Fatal(err)
	}
	if a := c.do("POST", "/definitions", string(document)); a.status != 400 || !strings.Contains(a.body, "16384 at most") {
		t.Errorf("import of bindings: %d %.200s", a.status, a.body)
	}
}
