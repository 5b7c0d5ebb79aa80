package mgmt_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/firemq/firemq/mgmt/api"
)

// TestImportExports: what RabbitMQ itself has written is taken whole, but for what is said to be skipped.
func TestImportExports(t *testing.T) {
	plugins := []string{
		"policy 'federated' in vhost 'plain' was skipped (federation-upstream-set): there is no federation",
		"parameter 'move' of component 'shovel' in vhost 'sales' was skipped: there is no such component",
		"parameter 'upstream' of component 'federation-upstream' in vhost 'plain' was skipped: there is no such component",
		"parameter 'both' of component 'federation-upstream-set' in vhost 'plain' was skipped: there is no such component",
	}
	mirrors := []string{
		"policy 'mirrored' in vhost 'plain' was skipped (ha-mode, ha-params, ha-sync-mode): there are no mirrored queues",
		"policy 'mirrored-and-more' in vhost 'plain' goes without ha-mode: there are no mirrored queues",
	}
	for file, warnings := range map[string][]string{
		"rabbitmq-3.8.json":    slices.Concat(plugins, mirrors),
		"rabbitmq-3.10.8.json": slices.Concat(plugins, mirrors),
		// An export of 4.3 has no internal exchanges.
		"rabbitmq-4.3.6.json": append(slices.Clone(plugins), "binding of 'unrouted' to 'events' with the key '#' in vhost 'sales' was skipped: no exchange 'unrouted' in vhost 'sales'"),
	} {
		t.Run(file, func(t *testing.T) {
			text, err := os.ReadFile("testdata/definitions/" + file)
			if err != nil {
				t.Fatal(err)
			}
			var doc object
			if err := json.Unmarshal(text, &doc); err != nil {
				t.Fatal(err)
			}
			c := start(t)
			a := c.want(204, "POST", "/definitions", string(text))
			got := api.Warnings(a.header.Values(api.WarningHeader))
			slices.Sort(got)
			slices.Sort(warnings)
			if !slices.Equal(got, warnings) {
				t.Errorf("warnings\ngot  %q\nwant %q", got, warnings)
			}
			// The file's own guest has another password.
			c = c.as("admin", "secret")
			if err := c.s.Broker().Users().AddUser("admin", "secret", "administrator"); err != nil {
				t.Fatal(err)
			}
			mine := get[object](c, "/definitions")
			old := strings.HasPrefix(file, "rabbitmq-3")
			for section, r := range map[string]struct {
				fields []string
				skip   func(o object) bool
			}{
				"users":             {[]string{"name", "password_hash", "hashing_algorithm"}, func(o object) bool { return o["name"] == "admin" }},
				"vhosts":            {[]string{"name"}, nil},
				"permissions":       {[]string{"user", "vhost", "configure", "write", "read"}, nil},
				"topic_permissions": {[]string{"user", "vhost", "exchange", "write", "read"}, nil},
				"parameters": {[]string{"component", "vhost", "name", "value"}, func(o object) bool {
					return o["component"] != "vhost-limits" && o["component"] != "operator_policy"
				}},
				"global_parameters": {[]string{"name", "value"}, func(o object) bool {
					return o["name"] == "internal_cluster_id" || o["name"] == "cluster_name"
				}},
				"policies": {[]string{"vhost", "name", "pattern", "apply-to", "priority"}, func(o object) bool { return o["name"] == "mirrored" || o["name"] == "federated" }},
				"queues":   {[]string{"vhost", "name", "durable", "auto_delete", "arguments"}, nil},
				"exchanges": {[]string{"vhost", "name", "type", "durable", "auto_delete", "arguments"}, func(o object) bool {
					return strings.HasPrefix(o["name"].(string), "amq.")
				}},
				"bindings": {[]string{"vhost", "source", "destination", "destination_type", "routing_key", "arguments"}, func(o object) bool {
					return !old && o["destination"] == "unrouted"
				}},
			} {
				want, got := picked(doc[section], r.fields, r.skip), picked(mine[section], r.fields, r.skip)
				if len(want) == 0 || !slices.Equal(got, want) {
					t.Errorf("%s\ngot  %s\nwant %s", section, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
				}
			}
			if tags := picked(mine["users"], []string{"name", "tags"}, nil); !slices.Contains(tags, `["eve",["monitoring","policymaker"]]`) {
				t.Errorf("tags: %s", tags)
			}
			if old {
				if p := get[object](c, "/policies/plain/mirrored-and-more")["definition"]; !reflect.DeepEqual(p, object{"message-ttl": 60000.0}) {
					t.Errorf("a mirrored policy that says more: %v", p)
				}
			}
			if v := get[object](c, "/vhosts/sales"); !old && (v["description"] != "orders and invoices" || v["default_queue_type"] != "quorum" || fmt.Sprint(v["tags"]) != "[production eu]") {
				t.Errorf("a vhost: %v", v)
			}
			if l := picked(mine["vhosts"], []string{"name", "limits"}, nil); !slices.Contains(l, `["sales",{"max-connections":100,"max-queues":50}]`) {
				t.Errorf("limits: %s", l)
			}
			if q := get[object](c, "/queues/sales/qq"); q["durable"] != true || q["type"] != "quorum" {
				t.Errorf("a quorum queue: %v", q)
			}
			if u := c.do("GET", "/user-limits/app", nil); file != "rabbitmq-3.8.json" && !strings.Contains(u.body, `"max-channels":20`) {
				t.Errorf("limits of a user: %s", u.body)
			}
			if _, err := c.s.Broker().Users().Authenticate("app", "app secret"); err != nil {
				t.Errorf("a password: %v", err)
			}

			// What came out of it goes through another import unchanged.
			to := start(t)
			to.want(204, "POST", "/definitions", mine)
			again := get[object](to.as("admin", "secret"), "/definitions")
			for _, section := range parts {
				if !reflect.DeepEqual(again[section], mine[section]) {
					t.Errorf("%s, once more\ngot  %v\nwant %v", section, again[section], mine[section])
				}
			}
		})
	}
}

// picked are fields of a section's objects as JSON, in order.
func picked(section any, fields []string, skip func(o object) bool) []string {
	var all []string
	list, _ := section.([]any)
	for _, v := range list {
		o := v.(object)
		if skip != nil && skip(o) {
			continue
		}
		row := make([]any, len(fields))
		for i, f := range fields {
			row[i] = o[f]
		}
		p, _ := json.Marshal(row)
		all = append(all, string(p))
	}
	slices.Sort(all)
	return all
}

// TestImportStreams: all streams of an export are named, and nothing of it is made.
func TestImportStreams(t *testing.T) {
	text, err := os.ReadFile("testdata/definitions/rabbitmq-4.3.6-streams.json")
	if err != nil {
		t.Fatal(err)
	}
	c := start(t)
	before := get[object](c, "/definitions")
	a := c.want(400, "POST", "/definitions", string(text))
	for _, name := range []string{"queue 'log' in vhost 'plain'", "queue 'audit' in vhost 'sales'"} {
		if !strings.Contains(a.reason(), name) {
			t.Errorf("%s does not name %s", a.reason(), name)
		}
	}
	if after := get[object](c, "/definitions"); !reflect.DeepEqual(after, before) {
		t.Error("something was made")
	}
}

// TestImportWarnings: a document of nothing but what is skipped has its first warnings in headers that any client takes,
// and vhosts keep what older files do not say.
func TestImportWarnings(t *testing.T) {
	c := start(t)
	c.want(201, "PUT", "/vhosts/v", object{"description": "mine", "tags": "a", "default_queue_type": "quorum", "tracing": true})
	c.want(204, "PUT", "/vhost-limits/v/max-queues", object{"value": 7})
	var many []any
	for i := range 2000 {
		many = append(many, object{"component": "shovel", "name": fmt.Sprint("ü\n", i), "vhost": "v", "value": object{}})
	}
	a := c.want(204, "POST", "/definitions", object{"vhosts": []any{object{"name": "v"}}, "parameters": many, "queues": []any{object{"name": "amq.gen-x", "vhost": "v"}}})
	got := api.Warnings(a.header.Values(api.WarningHeader))
	if len(got) < 10 || len(got) > 41 || got[0] != "parameter 'ü\n0' of component 'shovel' in vhost 'v' was skipped: there is no such component" {
		t.Errorf("%d warnings: %q", len(got), got)
	}
	if last := got[len(got)-1]; last != fmt.Sprintf("and %d more: see the broker's log", 1001-len(got)+1) {
		t.Errorf("the last one: %q", last)
	}
	// A file of something else has none; an empty document asks for nothing.
	for document, want := range map[string][]string{`{"management_version": "3.10.8"}`: {"there are no definitions in the file"}, "": {"there are no definitions in the file"}, "{}": nil, `{"queues": []}`: nil} {
		a := c.want(204, "POST", "/definitions", document)
		if got := api.Warnings(a.header.Values(api.WarningHeader)); !slices.Equal(got, want) {
			t.Errorf("%s: warnings %q, want %q", document, got, want)
		}
	}
	v := get[object](c, "/vhosts/v")
	if v["description"] != "mine" || fmt.Sprint(v["tags"]) != "[a]" || v["default_queue_type"] != "quorum" || v["tracing"] != true {
		t.Errorf("%v", v)
	}
	if l := get[[]object](c, "/vhost-limits/v"); fmt.Sprint(l[0]["value"]) != "map[max-queues:7]" {
		t.Errorf("%v", l)
	}
	// The limits of a vhost, as newer versions have them beside the parameter.
	c.want(204, "POST", "/definitions", object{"vhosts": []any{object{"name": "v", "limits": object{"max-connections": 3}}}})
	if l := get[[]object](c, "/vhost-limits/v"); fmt.Sprint(l[0]["value"]) != "map[max-connections:3]" {
		t.Errorf("%v", l)
	}
	c.want(204, "POST", "/definitions/v", object{"limits": object{"max-queues": 9}})
	if l := get[object](c, "/definitions/v")["limits"]; fmt.Sprint(l) != "map[max-queues:9]" {
		t.Errorf("%v", l)
	}
}

// parts are the sections of an export that an import restores.
var parts = []string{"users", "vhosts", "permissions", "topic_permissions", "parameters", "policies", "queues", "exchanges", "bindings"}

// TestDefinitions exports a broker, imports that into an empty one, and compares.
func TestDefinitions(t *testing.T) {
	from, to := start(t), start(t)
	sample(t, from)
	from.want(204, "POST", "/vhosts/sales/deletion/protection", nil)
	exported := from.want(200, "GET", "/definitions", nil).body
	to.want(204, "POST", "/definitions", exported)
	want, got := get[object](from, "/definitions"), get[object](to, "/definitions")
	for _, part := range parts {
		if !reflect.DeepEqual(got[part], want[part]) {
			t.Errorf("%s\ngot  %v\nwant %v", part, got[part], want[part])
		}
	}
	to.want(204, "POST", "/definitions", exported) // again: nothing changes
	if again := get[object](to, "/definitions"); !reflect.DeepEqual(again, got) {
		t.Error("a second import changed something")
	}

	// One vhost, under another name.
	to.want(201, "PUT", "/vhosts/copy", object{})
	to.want(204, "POST", "/definitions/copy", from.want(200, "GET", "/definitions/sales", nil).body)
	want, got = get[object](from, "/definitions/sales"), get[object](to, "/definitions/copy")
	for _, part := range []string{"queues", "exchanges", "bindings"} {
		if !reflect.DeepEqual(got[part], want[part]) {
			t.Errorf("%s of the vhost\ngot  %v\nwant %v", part, got[part], want[part])
		}
	}
	if n := len(got["policies"].([]any)); n != 1 {
		t.Errorf("%d policies in the copy", n)
	}
}

// TestImportNothingHalf: one fault anywhere, and nothing of the document is made.
func TestImportNothingHalf(t *testing.T) {
	c := start(t)
	before := get[object](c, "/definitions")
	good := func() object {
		return object{
			"users":       []any{object{"name": "new", "tags": "management", "password": "x"}},
			"vhosts":      []any{object{"name": "v"}},
			"permissions": []any{object{"user": "new", "vhost": "v", "configure": "", "write": "", "read": ""}},
			"exchanges":   []any{object{"name": "h", "vhost": "v", "type": "headers"}},
			"queues":      []any{object{"name": "q", "vhost": "v"}},
			"bindings":    []any{object{"source": "h", "vhost": "v", "destination": "q", "destination_type": "queue", "routing_key": "", "arguments": object{"x-match": "any"}}},
			"policies":    []any{object{"name": "p", "vhost": "v", "pattern": "", "definition": object{"max-length": 1}}},
		}
	}
	for name, r := range map[string]struct {
		section string
		item    object
		reason  string
	}{
		"nameless vhost":        {"vhosts", object{}, "an object of vhosts has no name"},
		"nameless queue":        {"queues", object{"vhost": "v"}, "an object of queues has no name"},
		"user without tags":     {"users", object{"name": "u"}, "tags_not_present"},
		"bad hash":              {"users", object{"name": "u", "tags": "", "password_hash": "a!!"}, "base64"},
		"unknown algorithm":     {"users", object{"name": "u", "tags": "", "password_hash": "", "hashing_algorithm": "rot13"}, "algorithm"},
		"unknown user":          {"permissions", object{"user": "u", "vhost": "v", "configure": "", "write": "", "read": ""}, "user 'u' does not exist"},
		"bad pattern":           {"permissions", object{"user": "new", "vhost": "v", "configure": "(", "write": "", "read": ""}, "("},
		"unknown vhost":         {"queues", object{"name": "q", "vhost": "w"}, "vhost 'w' does not exist"},
		"no vhost":              {"queues", object{"name": "q"}, "names no vhost"},
		"stream":                {"queues", object{"name": "s", "vhost": "v", "arguments": object{"x-queue-type": "stream"}}, "stream"},
		"bad argument":          {"queues", object{"name": "s", "vhost": "v", "arguments": object{"x-max-length": -1}}, "x-max-length"},
		"unknown type":          {"exchanges", object{"name": "s", "vhost": "v", "type": "x-mine"}, "exchange 's' in vhost 'v' has the unsupported type 'x-mine'"},
		"bad x-match":           {"bindings", object{"source": "h", "vhost": "v", "destination": "q", "arguments": object{"x-match": "some"}}, "x-match"},
		"bad policy":            {"policies", object{"name": "p2", "vhost": "v", "pattern": "(", "definition": object{"max-length": 1}}, "(v/p2)"},
		"bad limit":             {"parameters", object{"name": "limits", "vhost": "v", "component": "vhost-limits", "value": object{"max-x": 1}}, "max-x"},
		"null in arguments":     {"queues", object{"name": "s", "vhost": "v", "arguments": object{"a": nil}}, "null_not_allowed"},
		"too many queues":       {"parameters", object{"name": "limits", "vhost": "v", "component": "vhost-limits", "value": object{"max-queues": 0}}, "vhost 'v' may have 0 queues"},
		"item is not an object": {"bindings", nil, "is not an object"},
	} {
		d := good()
		list, _ := d[r.section].([]any)
		if r.item == nil {
			d[r.section] = append(list, "text")
		} else {
			d[r.section] = append(list, r.item)
		}
		if a := c.do("POST", "/definitions", d); a.status != 400 || !strings.Contains(a.reason(), r.reason) {
			t.Errorf("%s: %d %s, want %s", name, a.status, a.body, r.reason)
		}
		if after := get[object](c, "/definitions"); !reflect.DeepEqual(after, before) {
			t.Fatalf("%s: something was made", name)
		}
	}
	for _, body := range []string{"{", "[]", "1"} {
		if a := c.do("POST", "/definitions", body); a.status != 400 || a.reason() != "failed_to_parse_json" {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	// All faults are told at once, and each once.
	d := good()
	d["exchanges"] = []any{object{"name": "a", "vhost": "v", "type": "x-one"}, object{"name": "b", "vhost": "v", "type": "x-two"}}
	if r := c.do("POST", "/definitions", d).reason(); !strings.Contains(r, "x-one") || !strings.Contains(r, "x-two") {
		t.Error(r)
	}
	d = good()
	d["queues"] = []any{object{"name": "a"}, object{"name": "b"}}
	if r := c.do("POST", "/definitions", d).reason(); strings.Count(r, "names no vhost: is this the export of one vhost?") != 1 {
		t.Error(r)
	}
	c.want(204, "POST", "/definitions", good())
	c.want(200, "GET", "/bindings/v/e/h/q/q", nil)
}

// TestImportRabbitMQ: what an older RabbitMQ writes is taken, and what means nothing here is left out.
func TestImportRabbitMQ(t *testing.T) {
	c := start(t)
	c.want(204, "POST", "/definitions", "\xef\xbb\xbf"+`{
		"rabbit_version": "3.8.9",
		"users": [{"name": "md", "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
			"hashing_algorithm": "rabbit_password_hashing_sha256", "tags": "administrator,x"}],
		"vhosts": [{"name": "v", "limits": [], "metadata": {"description": "", "tags": [], "default_queue_type": "undefined"}}],
		"permissions": [], "topic_permissions": [], "global_parameters": [{"name": "cluster_name", "value": "old"}],
		"parameters": [{"component": "federation", "name": "f", "vhost": "v", "value": {}}],
		"policies": [
			{"vhost": "v", "name": "ha", "pattern": "", "apply-to": "all", "priority": 0, "definition": {"ha-mode": "all"}},
			{"vhost": "v", "name": "both", "pattern": "", "apply-to": "queues", "priority": 0, "definition": {"ha-mode": "all", "max-length": 5}}],
		"queues": [{"vhost": "v", "name": "qq", "durable": true, "auto_delete": false, "arguments": {"x-queue-type": "quorum"}}],
		"exchanges": [], "bindings": [{"source": "absent", "vhost": "v", "destination": "qq", "destination_type": "queue", "routing_key": "", "arguments": {}}]
	}`)
	if q := get[object](c, "/queues/v/qq"); q["type"] != "quorum" || q["durable"] != true || q["policy"] != "both" {
		t.Errorf("%v", q)
	}
	if p := get[[]object](c, "/policies/v"); names(p) != "both" {
		t.Errorf("%v", p)
	}
	c.as("md", "test12").want(200, "GET", "/whoami", nil)

	// A form, as browsers upload.
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	f, err := w.CreateFormFile("file", "d.json")
	if err != nil {
		t.Fatal(err)
	}
	json.NewEncoder(f).Encode(object{"queues": []any{object{"name": "uploaded", "vhost": "v"}}})
	w.Close()
	req, _ := http.NewRequest("POST", c.base+"/api/definitions", &b)
	req.SetBasicAuth("guest", "guest")
	req.Header.Set("Content-Type", w.FormDataContentType())
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode != 204 {
		t.Fatalf("%v %v", res, err)
	}
	res.Body.Close()
	c.want(200, "GET", "/queues/v/uploaded", nil)
}
