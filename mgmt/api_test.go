package mgmt_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// TestAnswers sends requests in order and looks at status and reason.
func TestAnswers(t *testing.T) {
	c := start(t)
	c.addUser("limited", "management").grant("/", "^mine", "^mine", "^mine")
	for _, r := range []struct {
		method, path string
		body         any
		status       int
		reason       string // a part of it; "": not looked at
	}{
		{"GET", "/nothing", nil, 404, "Not Found"},
		{"GET", "/queues/%2", nil, 400, ""},
		{"GET", "/", nil, 301, ""},
		{"GET", "/index.html", nil, 200, ""},
		{"GET", "/queues?columns=%", nil, 400, ""},
		{"GET", "/queues?name=%zz", nil, 400, ""},
		{"POST", "/overview", object{}, 405, ""},
		{"GET", "/queues/absent", nil, 404, "Not Found"},
		{"PUT", "/queues/absent/q", object{}, 404, "vhost_not_found"},

		{"PUT", "/queues/%2F/q", object{"durable": "true"}, 201, ""},
		{"PUT", "/queues/%2F/q", object{"durable": true}, 204, ""},
		{"PUT", "/queues/%2F/q", object{"durable": false}, 400, "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'"},
		{"PUT", "/queues/%2F/q", object{"durable": "maybe"}, 400, `["not_boolean","maybe"]`},
		{"PUT", "/queues/%2F/q2", object{"durable": nil}, 400, `["not_boolean",null]`},
		{"PUT", "/exchanges/%2F/x2", object{"type": "topic", "internal": nil}, 400, `["not_boolean",null]`},
		{"PUT", "/queues/%2F/q2", object{"arguments": object{"x-max-length": nil}}, 400, "null_not_allowed"},
		{"PUT", "/queues/%2F/q2", object{"arguments": object{"x-queue-type": "stream"}}, 400, "stream"},
		{"PUT", "/queues/%2F/q2", "{", 400, "not_json"},
		{"PUT", "/queues/%2F/q2", "[]", 400, "not_json"},
		{"PUT", "/queues/%2F/q2", `"{}"`, 400, "invalid payload: the request body JSON-decoded to a string. Is the input doubly-JSON-encoded?"},
		{"PUT", "/queues/%2F/q2", `{"arguments":` + strings.Repeat(`{"a":`, 500) + "1" + strings.Repeat("}", 501), 400, "table: nested deeper than"},
		{"PUT", "/queues/%2F/q2", `{"arguments":{"a":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + "}}", 400, "table: nested deeper than"},
		{"PUT", "/queues/%2F/amq.q", object{}, 401, "Access refused."},
		{"PUT", "/queues/%2F/" + strings.Repeat("q", 256), object{}, 400, "queue should be less than 255 bytes, actually was 256"},
		{"PUT", "/queues/%2F/q3", object{"node": "other@host"}, 400, "Node other@host could not be contacted"},
		{"DELETE", "/queues/%2F/absent", nil, 404, ""},

		{"PUT", "/exchanges/%2F/x", object{"type": "topic"}, 201, ""},
		{"PUT", "/exchanges/%2F/x", object{"type": "fanout"}, 400, "inequivalent arg 'type'"},
		{"PUT", "/exchanges/%2F/x2", object{"type": "z"}, 400, "invalid exchange type 'z'"},
		{"PUT", "/exchanges/%2F/x2", object{"type": ""}, 400, "invalid exchange type ''"},
		{"PUT", "/exchanges/%2F/amq.direct", object{"type": "direct", "durable": true}, 204, ""},
		{"PUT", "/exchanges/%2F/amq.default", object{"type": "direct", "durable": true}, 401, "Access refused."},
		{"DELETE", "/exchanges/%2F/amq.topic", nil, 401, "Access refused."},

		{"GET", "/queues/%2F/absent/bindings", nil, 200, ""},
		{"GET", "/exchanges/%2F/absent/bindings/source", nil, 200, ""},
		{"GET", "/exchanges/%2F/absent/bindings/destination", nil, 200, ""},
		{"GET", "/queues/absent/q/bindings", nil, 404, ""},
		{"POST", "/bindings/%2F/e/x/q/absent", object{}, 404, "no queue 'absent' in vhost '/'"},
		{"POST", "/bindings/%2F/e/absent/q/q", object{}, 404, "no exchange 'absent' in vhost '/'"},
		{"POST", "/bindings/%2F/e/amq.default/q/q", object{}, 401, "Access refused."},
		{"POST", "/bindings/%2F/e/x/q/q", object{"routing_key": "a b"}, 201, ""},
		{"POST", "/bindings/%2F/e/x/q/q", object{"routing_key": "a b"}, 201, ""},
		{"GET", "/bindings/%2F/e/x/q/q/a%2Bb", nil, 200, ""},
		{"GET", "/bindings/%2F/e/x/q/q/a+b", nil, 200, ""},
		{"GET", "/bindings/%2F/e/x/q/q/a%20b", nil, 200, ""},
		{"GET", "/bindings/%2F/e/amq.default/q/q/q", nil, 200, ""},
		{"DELETE", "/bindings/%2F/e/amq.default/q/q/q", nil, 401, "Access refused."},
		{"DELETE", "/exchanges/%2F/x?if-unused=true", nil, 400, "exchange 'x' in vhost '/' in use"},
		{"DELETE", "/bindings/%2F/e/x/q/q/a+b", nil, 204, ""},
		{"DELETE", "/bindings/%2F/e/x/q/q/a+b", nil, 404, ""},
		{"POST", "/bindings/%2F/e/x/q/q", object{"arguments": object{"long": strings.Repeat("x", 5000)}}, 400, "Exceeded"},
		{"DELETE", "/exchanges/%2F/x", nil, 204, ""},

		{"POST", "/exchanges/%2F/amq.default/publish", object{}, 400, "[{key_missing,routing_key},\n {key_missing,properties},\n {key_missing,payload},\n {key_missing,payload_encoding}]"},
		{"POST", "/exchanges/%2F/absent/publish", object{}, 404, "exchange_not_found"},
		{"POST", "/exchanges/%2F/amq.default/publish", message("q", "hello"), 200, ""},
		{"POST", "/exchanges/%2F/amq.default/publish", with(message("q", "x"), "properties", object{"priority": "high"}), 400, `["not_int","priority"]`},
		{"POST", "/exchanges/%2F/amq.default/publish", with(message("q", "x"), "properties", object{"content_type": 1}), 400, `["not_string","content_type"]`},
		{"POST", "/exchanges/%2F/amq.default/publish", with(message("q", "x"), "properties", object{"user_id": "else"}), 400, "406 PRECONDITION_FAILED - user_id"},
		{"POST", "/exchanges/%2F/amq.default/publish", with(message("q", "x"), "properties", object{"expiration": "-1"}), 400, "406 PRECONDITION_FAILED - invalid expiration '-1': {value_negative,-1}"},
		{"POST", "/exchanges/%2F/amq.default/publish", with(message("q", "x"), "properties", object{"headers": object{"CC": "q"}}), 400, `406 PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}`},
		{"POST", "/exchanges/%2F/amq.default/publish", with(message("q", "x"), "properties", object{"reply_to": "amq.rabbitmq.reply-to"}), 400, "406 PRECONDITION_FAILED - fast reply consumer does not exist"},
		{"POST", "/exchanges/%2F/amq.default/publish", with(message("q", "x"), "payload", 1), 400, "payload_not_string"},
		{"POST", "/exchanges/%2F/amq.default/publish", with(message("q", "a!!"), "payload_encoding", "base64"), 400, `["not_base64","a!!"]`},
		{"POST", "/exchanges/%2F/amq.default/publish", with(message("q", "x"), "payload_encoding", "z"), 400, `["unsupported_encoding","z"]`},
		{"DELETE", "/queues/%2F/q?if-empty=true", nil, 400, "queue 'q' in vhost '/' not empty"},
		{"POST", "/queues/%2F/q/get", object{"requeue": true, "count": 1, "encoding": "auto"}, 400, "[{key_missing,ackmode}]"},
		{"POST", "/queues/%2F/q/get", object{"ackmode": "x", "count": 1, "encoding": "auto"}, 400, "Invalid ackmode value: x."},
		{"POST", "/queues/%2F/q/get", object{"ackmode": "ack_requeue_true", "count": "1", "encoding": "z"}, 400, "Unsupported encoding."},
		{"POST", "/queues/%2F/absent/get", object{}, 404, "queue_not_found"},
		{"DELETE", "/queues/%2F/q/contents", nil, 204, ""},
		{"PUT", "/queues/%2F/full", object{"arguments": object{"x-max-length": 0, "x-overflow": "reject-publish"}}, 201, ""},
		{"POST", "/exchanges/%2F/amq.default/publish", message("full", "x"), 400, "rejected Unable to publish message. Check queue limits."},
		{"POST", "/queues/%2F/q/actions", object{"action": "z"}, 400, `["unknown","z"]`},

		{"PUT", "/users/u", object{"password": "p"}, 400, "tags_not_present"},
		{"PUT", "/users/u", object{"password": "p", "password_hash": "", "tags": ""}, 400, "both_password_and_password_hash_are_provided"},
		{"PUT", "/users/u", object{"password_hash": "a!!", "tags": ""}, 400, `["not_base64","a!!"]`},
		{"PUT", "/users/u", object{"password": "p", "tags": " monitoring , x"}, 201, ""},
		{"PUT", "/users/u", object{"password": "p", "tags": []string{"monitoring"}}, 204, ""},
		{"PUT", "/permissions/%2F/u", object{}, 400, "[{key_missing,configure},{key_missing,write},{key_missing,read}]"},
		{"PUT", "/permissions/absent/u", object{}, 400, "vhost_or_user_not_found"},
		{"PUT", "/permissions/%2F/u", object{"configure": "(", "write": "", "read": ""}, 400, "invalid_regexp"},
		{"PUT", "/permissions/%2F/u", object{"configure": "", "write": "", "read": ""}, 201, ""},
		{"PUT", "/permissions/%2F/u", object{"configure": ".*", "write": "", "read": ""}, 204, ""},
		{"DELETE", "/permissions/%2F/u", nil, 204, ""},
		{"DELETE", "/permissions/%2F/u", nil, 404, ""},
		{"PUT", "/user-limits/u/max-z", object{"value": 5}, 400, `Unrecognised terms [{<<"max-z">>,5}] in user-limits`},
		{"PUT", "/user-limits/absent/max-channels", object{"value": 5}, 400, `["no_such_user","absent"]`},
		{"POST", "/users/bulk-delete", object{"users": []any{"u", 1}}, 400, `["not_string","users"]`},
		{"GET", "/users/u", nil, 200, ""},
		{"POST", "/users/bulk-delete", object{"users": []string{"u", "absent"}}, 204, ""},
		{"PUT", "/topic-permissions/%2F/guest", object{"exchange": "nowhere", "write": "", "read": ""}, 400, `["no_such_exchange","nowhere"]`},
		{"POST", "/definitions/none", object{}, 404, "vhost_not_found"},
		{"GET", "/users/u", nil, 404, ""},

		{"PUT", "/vhosts/v", object{"default_queue_type": "z"}, 400, "z"},
		{"PUT", "/vhosts/v", object{"description": "d", "tags": []string{"a", "b"}, "default_queue_type": "quorum"}, 201, ""},
		{"PUT", "/queues/v/default", object{"durable": true}, 201, ""},
		{"PUT", "/vhost-limits/v/max-queues", object{"value": "x"}, 400, `max-queues should be a number, actually was <<"x">>`},
		{"PUT", "/vhost-limits/v/max-queues", object{"value": 1}, 204, ""},
		{"PUT", "/queues/v/second", object{}, 400, "cannot declare queue 'second': queue limit in vhost 'v' (1) is reached"},
		{"DELETE", "/vhost-limits/v/max-queues", nil, 204, ""},
		{"POST", "/vhosts/v/deletion/protection", nil, 204, ""},
		{"PUT", "/vhosts/v", object{"description": "still protected"}, 204, ""},
		{"DELETE", "/vhosts/v", nil, 412, "Refusing to delete virtual host 'v' because it is protected from deletion"},
		{"POST", "/definitions", object{"vhosts": []any{object{"name": "v"}}}, 204, ""},
		{"DELETE", "/vhosts/v", nil, 412, "protected from deletion"},
		{"POST", "/definitions", object{"vhosts": []any{object{"name": "v", "metadata": object{"protected_from_deletion": false}}}}, 204, ""},
		{"DELETE", "/vhosts/v", nil, 204, ""},
		{"PUT", "/vhosts/v", object{}, 201, ""},
		{"DELETE", "/vhosts/v/deletion/protection", nil, 204, ""},
		{"DELETE", "/vhosts/v", nil, 204, ""},
		{"DELETE", "/vhosts/v", nil, 404, ""},
		{"POST", "/vhosts/v/deletion/protection", nil, 404, ""},
		{"DELETE", "/vhosts/v/deletion/protection", nil, 404, ""},
		{"PUT", "/feature-flags/khepri_db/enable", object{}, 400, "unsupported"},

		{"PUT", "/policies/%2F/p", object{}, 400, "[{key_missing,pattern},{key_missing,definition}]"},
		{"PUT", "/policies/%2F/p", object{"pattern": "", "definition": object{}}, 400, "Validation failed\n\nno policy provided\n"},
		{"PUT", "/policies/%2F/p", object{"pattern": "", "definition": object{"junk": 1}}, 400, "Validation failed\n\n[{&lt;&lt;\"junk\"&gt;&gt;,1}] are not recognised policy settings\n"},
		{"PUT", "/policies/%2F/p", object{"pattern": "^q", "definition": object{"max-length": 1}}, 201, ""},
		{"PUT", "/policies/%2F/p", object{"pattern": "^q", "definition": object{"max-length": 2}}, 204, ""},
		{"GET", "/policies/%2F/p", nil, 200, ""},
		{"DELETE", "/policies/%2F/p", nil, 204, ""},
		{"GET", "/policies/%2F/p", nil, 404, ""},
		{"PUT", "/parameters/policy/%2F/p", object{"value": object{}}, 400, "policies may not be set using this method"},
		{"PUT", "/parameters/z/%2F/p", object{"value": object{}}, 400, "component z not found"},
		{"GET", "/parameters/z", nil, 200, ""},
		{"PUT", "/global-parameters/g", object{"value": 1}, 201, ""},
		{"PUT", "/global-parameters/g", object{"value": 2}, 204, ""},
		{"DELETE", "/global-parameters/g", nil, 204, ""},
		{"PUT", "/cluster-name", object{"name": "here"}, 204, ""},

		{"GET", "/aliveness-test/%2F", nil, 200, ""},
		{"GET", "/health/checks/port-listener/x", nil, 400, "Invalid port"},
		{"GET", "/health/checks/port-listener/1", nil, 503, "No active listener"},
		{"GET", "/health/checks/protocol-listener/mqtt", nil, 503, "No active listener"},
		{"GET", "/health/checks/protocol-listener/AMQP091", nil, 200, ""},
		{"GET", "/health/checks/certificate-expiration/1/moons", nil, 400, "Time unit not recognised. Supported units: days, weeks, months, years."},
		{"GET", "/health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/.*", nil, 200, ""},
		{"GET", "/health/checks/quorum-queues-without-elected-leaders/vhost/%2F/pattern/.*", nil, 200, ""},
		{"GET", "/health/checks/quorum-queues-without-elected-leaders/vhost/v/pattern/.*", nil, 404, ""},
		{"GET", "/health/checks/nothing", nil, 404, ""},
		{"GET", "/nodes/absent", nil, 404, ""},
		{"GET", "/queues?sort_reverse=z", nil, 400, ""},
	} {
		a := c.do(r.method, r.path, r.body)
		if a.status != r.status || !strings.Contains(a.reason(), r.reason) {
			t.Errorf("%s %s %v\ngot  %d %s\nwant %d %s", r.method, r.path, r.body, a.status, a.body, r.status, r.reason)
		}
	}
	if name := get[object](c, "/overview")["cluster_name"]; name != "here" {
		t.Errorf("cluster name %v", name)
	}
}

func message(key, payload string) object {
	return object{"routing_key": key, "properties": object{}, "payload": payload, "payload_encoding": "string"}
}

func with(o object, key string, v any) object {
	o[key] = v
	return o
}

// TestPreconditions: a change that asks for an object to be there, or not, is refused where it is otherwise.
func TestPreconditions(t *testing.T) {
	c := start(t)
	for _, r := range []struct {
		method, path, header, value string
		body                        any
		status                      int
	}{
		{"PUT", "/queues/%2F/q", "If-Match", "*", object{}, 412},
		{"PUT", "/queues/%2F/q", "If-None-Match", "*", object{}, 201},
		{"PUT", "/queues/%2F/q", "If-None-Match", "*", object{}, 412},
		{"PUT", "/queues/%2F/q", "If-Match", "*", object{}, 204},
		{"PUT", "/queues/%2F/q", "If-Match", `"tag"`, object{}, 412},
		{"DELETE", "/queues/%2F/q", "If-Match", `"tag"`, nil, 412},
		{"DELETE", "/queues/%2F/q", "If-Match", "*", nil, 204},
		{"DELETE", "/queues/%2F/q", "If-Match", "*", nil, 412},
		{"PUT", "/users/guest", "If-None-Match", "*", object{"password": "other", "tags": ""}, 412},
		{"PUT", "/users/new", "If-None-Match", "*", object{"password": "x", "tags": ""}, 201},
		{"PUT", "/vhosts/%2F", "If-None-Match", "*", object{"description": "other"}, 412},
		{"GET", "/users/guest", "If-Match", `"tag"`, nil, 200},
	} {
		a := c.do(r.method, r.path, r.body, r.header, r.value)
		if a.status != r.status || r.status >= 400 && a.body != "" || a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s %s: %s: %d %q, want %d", r.method, r.path, r.header, r.value, a.status, a.body, r.status)
		}
	}
}

// TestPublishSelects: CC and BCC are further routing keys of what is published over HTTP, too, and nobody sees BCC.
func TestPublishSelects(t *testing.T) {
	c := start(t)
	for _, q := range []string{"first", "copied", "blind"} {
		c.want(201, "PUT", "/queues/%2F/"+q, object{})
	}
	properties := object{"headers": object{"CC": []string{"copied"}, "BCC": []string{"blind"}, "n": 1}}
	c.want(200, "POST", "/exchanges/%2F/amq.default/publish", with(message("first", "x"), "properties", properties))
	for _, q := range []string{"first", "copied", "blind"} {
		a := c.want(200, "POST", "/queues/%2F/"+q+"/get", object{"count": 2, "ackmode": "ack_requeue_false", "encoding": "auto"})
		if strings.Count(a.body, `"payload":"x"`) != 1 || !strings.Contains(a.body, `"properties":{"headers":{"CC":["copied"],"n":1}}`) {
			t.Errorf("%s: %s", q, a.body)
		}
	}
}

// TestPermissions: the API's verbs are limited by the permissions of who asks, an administrator's too.
func TestPermissions(t *testing.T) {
	c := start(t)
	c.want(201, "PUT", "/queues/%2F/other", object{})
	for _, u := range []*client{
		c.addUser("limited", "management").grant("/", "^mine", "^mine", "^mine"),
		c.addUser("admin", "administrator").grant("/", "^mine", "^mine", "^mine"),
	} {
		for _, r := range []struct {
			method, path string
			body         any
		}{
			{"PUT", "/queues/%2F/yours", object{}},
			{"DELETE", "/queues/%2F/other", nil},
			{"DELETE", "/queues/%2F/other/contents", nil},
			{"POST", "/queues/%2F/other/get", object{"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}},
			{"PUT", "/exchanges/%2F/yours", object{"type": "fanout"}},
			{"POST", "/exchanges/%2F/amq.topic/publish", message("k", "x")},
			{"POST", "/bindings/%2F/e/amq.topic/q/other", object{}},
		} {
			if a := u.do(r.method, r.path, r.body); a.status != 401 || a.reason() != "Access refused." {
				t.Errorf("%s: %s %s: %d %s", u.user, r.method, r.path, a.status, a.body)
			}
		}
		u.want(201, "PUT", "/queues/%2F/mine", object{})
		u.want(204, "DELETE", "/queues/%2F/mine", nil)
	}
	// Without a permission in the vhost, only administrators come so far, and then no further.
	admin := c.addUser("elsewhere", "administrator")
	admin.want(200, "GET", "/queues/%2F", nil)
	admin.want(401, "PUT", "/queues/%2F/mine", object{})
}

func TestLogin(t *testing.T) {
	c := start(t)
	if a := c.as("", "").do("GET", "/overview", nil); a.status != 401 || a.header.Get("WWW-Authenticate") != `Basic realm="RabbitMQ Management"` {
		t.Errorf("no credentials: %d %v", a.status, a.header)
	}
	if a := c.as("guest", "wrong").do("GET", "/overview", nil); a.status != 401 || a.reason() != "Not_Authorized" {
		t.Errorf("wrong password: %d %s", a.status, a.body)
	}
	if a := c.addUser("plain").do("GET", "/overview", nil); a.status != 401 || a.reason() != "Not management user" || a.header.Get("WWW-Authenticate") != "" {
		t.Errorf("no tag: %d %s", a.status, a.body)
	}
	if a := c.as("", "").do("GET", "/overview", nil, "Authorization", "Basic ???"); a.status != 400 {
		t.Errorf("undecodable header: %d", a.status)
	}
	if a := c.as("", "").do("GET", "/overview", nil, "Authorization", "Bearer x"); a.status != 401 {
		t.Errorf("another scheme: %d", a.status)
	}
	if a := c.as("", "").do("GET", "/definitions?auth=Z3Vlc3Q6Z3Vlc3Q=&download=d.json", nil); a.status != 200 || a.header.Get("Content-Disposition") != "attachment; filename=d.json" {
		t.Errorf("a download: %d %v", a.status, a.header)
	}
	if a := c.as("", "").do("GET", "/users?auth=Z3Vlc3Q6Z3Vlc3Q=", nil); a.status != 401 {
		t.Errorf("credentials in another URL: %d", a.status)
	}
	if a := c.as("", "").do("OPTIONS", "/queues/%2F/q", nil); a.status != 200 || a.header.Get("Allow") != "HEAD, GET, PUT, DELETE, OPTIONS" {
		t.Errorf("OPTIONS: %d %v", a.status, a.header)
	}
	if a := c.do("GET", "/overview", nil, "Accept", "text/html"); a.status != 406 {
		t.Errorf("Accept: %d", a.status)
	}
	if a := c.do("PUT", "/vhost-limits/%2F/max-queues", object{"value": 1}, "Content-Type", "text/plain"); a.status != 415 {
		t.Errorf("Content-Type: %d", a.status)
	}
	if a := c.do("HEAD", "/overview", nil); a.status != 200 || a.body != "" {
		t.Errorf("HEAD: %d %q", a.status, a.body)
	}
	for _, h := range [][2]string{{"Origin", "http://elsewhere.example"}, {"Sec-Fetch-Site", "cross-site"}} {
		if a := c.do("PUT", "/queues/%2F/q", object{}, h[0], h[1]); a.status != 403 {
			t.Errorf("from another site, %s: %d", h[0], a.status)
		}
	}
	if a := c.do("PUT", "/queues/%2F/q", object{}, "Origin", c.base); a.status != 201 {
		t.Errorf("from this site: %d", a.status)
	}
}

// TestGuessing: wrong passwords slow down, and then the right one is not told from a wrong one.
func TestGuessing(t *testing.T) {
	c := start(t)
	limited := 0
	for range 30 {
		if a := c.as("guest", "wrong").do("GET", "/whoami", nil); a.status == 429 {
			limited++
		}
	}
	if limited < 5 {
		t.Errorf("%d of 30 attempts were put off", limited)
	}
	if a := c.do("GET", "/whoami", nil); a.status != 429 {
		t.Errorf("the right password at once: %d", a.status)
	}
}

func TestLists(t *testing.T) {
	c := start(t)
	for i, name := range []string{"b", "a", "C", "d.x", "d.y"} {
		c.want(201, "PUT", "/queues/%2F/"+name, object{})
		for range i {
			c.want(200, "POST", "/exchanges/%2F/amq.default/publish", message(name, "x"))
		}
	}
	for path, want := range map[string]string{
		"/queues":                                         "C a b d.x d.y",
		"/queues/%2F/":                                    "C a b d.x d.y",
		"/queues?name=D.":                                 "d.x d.y",
		"/queues?name=^.$&use_regex=true":                 "C a b",
		"/queues?sort=messages":                           "b a C d.x d.y",
		"/queues?sort=messages&sort_reverse=true":         "d.y d.x C a b",
		"/queues?sort=message_stats.publish&columns=name": "b a C d.x d.y",
		"/queues?sort=nothing":                            "C a b d.x d.y",
	} {
		if got := names(get[[]object](c, path)); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	p := get[object](c, "/queues?page=2&page_size=2&name=")
	if fmt.Sprint(p["total_count"], p["filtered_count"], p["item_count"], p["page"], p["page_size"], p["page_count"]) != "5 5 2 2 2 3" {
		t.Errorf("page: %v", p)
	}
	p = get[object](c, "/queues?page=1&name=d&columns=name,messages")
	if fmt.Sprint(p["total_count"], p["filtered_count"], p["items"]) != "5 2 [map[messages:3 name:d.x] map[messages:4 name:d.y]]" {
		t.Errorf("filtered page: %v", p)
	}
	for path, want := range map[string]string{
		"/queues?page=9":                        "page_out_of_range Page out of range, page: 9 page size: 100, len: 5",
		"/queues?page=0":                        "invalid_pagination_parameters Invalid pagination parameters: page number 0, page size undefined",
		"/queues?page=1&page_size=501":          "invalid_pagination_parameters Invalid pagination parameters: page number 1, page size 501",
		"/queues?page=x":                        "bad_request Pagination parameters are invalid",
		"/queues?page=1&name=(&use_regex=true":  "bad_request Pagination parameters are invalid",
		"/queues?lengths_age=60&lengths_incr=0": "invalid_range_parameters Invalid range parameters: age 60, incr 0",
	} {
		a := c.do("GET", path, nil)
		var e struct{ Error, Reason string }
		json.Unmarshal([]byte(a.body), &e)
		if got := e.Error + " " + e.Reason; a.status != 400 || got != want {
			t.Errorf("%s: %d %s, want %s", path, a.status, got, want)
		}
	}
	if got := get[object](c, "/vhosts?page=1&name=absent"); fmt.Sprint(got["page_count"], got["items"]) != "0 []" {
		t.Errorf("an empty page: %v", got)
	}
	if got := get[object](c, "/queues/%2F/b?columns=name,messages_details.rate"); !reflect.DeepEqual(got, object{"name": "b", "messages_details": object{"rate": 0.0}}) {
		t.Errorf("columns of one object: %v", got)
	}
}

// TestNames: whatever bytes a name has, it can be sent, listed and sent again.
func TestNames(t *testing.T) {
	c := start(t)
	for _, name := range []string{"a/b", "100%", "a+b c", "~", "quo\"te\\", "nul\x00", "ünï", "\xff\xfe", "...", "?#&=", "{x}"} {
		path := "/queues/%2F/" + strings.ReplaceAll(esc(name), "+", "%2B")
		c.want(201, "PUT", path, object{})
		a := c.want(200, "GET", path+"?columns=name", nil)
		if want := `{"name":"`; !strings.HasPrefix(a.body, want) {
			t.Errorf("%q: %s", name, a.body)
		}
		if name == "\xff\xfe" && a.body != "{\"name\":\"\xff\xfe\"}" {
			t.Errorf("bytes that are no UTF-8: %q", a.body)
		}
		c.want(201, "POST", "/bindings/%2F/e/amq.topic/q/"+esc(name), object{"routing_key": "k/1 #~"})
		c.want(200, "GET", "/bindings/%2F/e/amq.topic/q/"+esc(name)+"/k%252F1%2B%2523%257E", nil)
		c.want(204, "DELETE", path, nil)
	}
	// Dot segments are resolved, so such names are out of reach.
	if a := c.do("GET", "/queues/%2F/%2E%2E", nil); a.status != 200 || !strings.HasPrefix(a.body, "[") {
		t.Errorf("a dot segment: %d %s", a.status, a.body)
	}
	if a := c.do("GET", "/vhosts/..", nil); a.status != 301 {
		t.Errorf("up to the top: %d", a.status)
	}
	c.want(201, "PUT", "/queues/%2F/q", object{})
	a := c.want(201, "POST", "/bindings/%2F/e/amq.topic/q/q", object{"routing_key": "#"})
	if l := a.header.Get("Location"); !strings.HasSuffix(l, "q/%2523") {
		t.Errorf("Location %q", l)
	}
}

func TestGet(t *testing.T) {
	c := start(t)
	c.want(201, "PUT", "/queues/%2F/dead", object{})
	c.want(201, "PUT", "/queues/%2F/q", object{"arguments": object{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}})
	props := object{
		"content_type": "text/plain", "delivery_mode": 2, "priority": 7, "headers": object{"n": 1, "s": "x", "b": true, "l": []any{1, "two"}},
		"correlation_id": "c", "reply_to": "r", "message_id": "m", "timestamp": 1700000000, "type": "t", "app_id": "a", "user_id": "guest",
	}
	c.want(200, "POST", "/exchanges/%2F/amq.default/publish", with(message("q", "first"), "properties", props))
	c.want(200, "POST", "/exchanges/%2F/amq.default/publish", with(with(message("q", "/wD+"), "payload_encoding", "base64"), "properties", object{}))
	take := func(ackmode string, count any, more ...any) []object {
		t.Helper()
		o := object{"ackmode": ackmode, "count": count, "encoding": "auto"}
		for i := 0; i < len(more); i += 2 {
			o[more[i].(string)] = more[i+1]
		}
		a := c.want(200, "POST", "/queues/%2F/q/get", o)
		var list []object
		if err := json.Unmarshal([]byte(a.body), &list); err != nil {
			t.Fatal(err)
		}
		return list
	}
	if got := take("ack_requeue_true", 0); len(got) != 0 {
		t.Errorf("count 0: %v", got)
	}
	got := take("ack_requeue_true", "10")
	if len(got) != 2 || got[0]["payload"] != "first" || got[0]["redelivered"] != false || got[0]["message_count"] != 1.0 ||
		got[1]["payload"] != "/wD+" || got[1]["payload_encoding"] != "base64" || got[1]["payload_bytes"] != 3.0 {
		t.Errorf("%v", got)
	}
	var want object
	p, _ := json.Marshal(props)
	json.Unmarshal(p, &want)
	if !reflect.DeepEqual(got[0]["properties"], want) {
		t.Errorf("properties\ngot  %v\nwant %v", got[0]["properties"], want)
	}
	if got := take("reject_requeue_true", 1, "truncate", 2); got[0]["payload"] != "fi" || got[0]["payload_bytes"] != 5.0 || got[0]["redelivered"] != true {
		t.Errorf("truncated: %v", got)
	}
	if got := take("reject_requeue_false", 1); got[0]["payload"] != "first" {
		t.Errorf("rejected: %v", got)
	}
	waitFor(t, func() bool { return get[object](c, "/queues/%2F/dead")["messages"] == 1.0 })
	if got := take("ack_requeue_false", -1); len(got) != 1 || got[0]["redelivered"] != true {
		t.Errorf("the rest: %v", got)
	}
	if n := get[object](c, "/queues/%2F/q")["messages"]; n != 0.0 {
		t.Errorf("%v messages are left", n)
	}
	if a := c.want(200, "POST", "/exchanges/%2F/amq.topic/publish", message("nowhere", "x")); a.body != `{"routed":false}` {
		t.Errorf("unroutable: %s", a.body)
	}
}

func TestCloseConnection(t *testing.T) {
	c := start(t)
	u := c.addUser("app", "management").grant("/", ".*", ".*", ".*")
	dial := func() (*amqp.Connection, chan *amqp.Error) {
		conn, err := amqp.Dial("amqp://app:secret@" + c.s.AMQPAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		return conn, conn.NotifyClose(make(chan *amqp.Error, 1))
	}
	_, closed := dial()
	list := get[[]object](u, "/connections")
	if len(list) != 1 || len(get[[]object](c.addUser("other", "management"), "/connections")) != 0 {
		t.Fatalf("who sees what: %v", list)
	}
	path := "/connections/" + esc(list[0]["name"].(string))
	c.as("other", "secret").want(401, "DELETE", path, nil)
	if a := u.do("DELETE", path, nil, "X-Reason", "enough"); a.status != 204 {
		t.Fatal(a)
	}
	if e := <-closed; e == nil || e.Code != 320 || e.Reason != "CONNECTION_FORCED - enough" {
		t.Errorf("%v", e)
	}
	waitFor(t, func() bool { return u.do("DELETE", path, nil).status == 404 }) // its client has said goodbye
	_, closed = dial()
	c.want(204, "DELETE", "/connections/username/app", nil)
	if e := <-closed; e == nil || e.Reason != "CONNECTION_FORCED - Closed via management plugin" {
		t.Errorf("%v", e)
	}
	_, closed = dial()
	c.want(204, "DELETE", "/users/app", nil)
	if e := <-closed; e == nil || e.Code != 320 {
		t.Errorf("%v", e)
	}
}

// TestMemory: every kind that RabbitMQ 4.3 names is there, since its tools read them all.
func TestMemory(t *testing.T) {
	c := start(t)
	node, _ := get[object](c, "/overview")["node"].(string)
	for _, path := range []string{"/memory", "/memory/relative"} {
		m, _ := get[object](c, "/nodes/"+node+path)["memory"].(object)
		for _, kind := range strings.Fields(`total connection_readers connection_writers connection_channels connection_other
			queue_procs quorum_queue_procs quorum_queue_dlx_procs stream_queue_procs stream_queue_replica_reader_procs
			stream_queue_coordinator_procs plugins metadata_store other_proc metrics mgmt_db mnesia quorum_ets metadata_store_ets
			other_ets binary msg_index code atom other_system allocated_unused reserved_unallocated`) {
			if m[kind] == nil {
				t.Errorf("%s has no %s", path, kind)
			}
		}
	}
}
