package mgmt_test

import (
	"bytes"
	"encoding/json"
	"mime/multipart"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

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
	// All faults are told at once.
	d := good()
	d["exchanges"] = []any{object{"name": "a", "vhost": "v", "type": "x-one"}, object{"name": "b", "vhost": "v", "type": "x-two"}}
	if r := c.do("POST", "/definitions", d).reason(); !strings.Contains(r, "x-one") || !strings.Contains(r, "x-two") {
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
