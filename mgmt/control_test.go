package mgmt_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestControl: the limits and the listeners of a broker that runs are changed, and what makes no sense is refused.
func TestControl(t *testing.T) {
	c := start(t)
	node := esc(get[object](c, "/overview")["node"].(string))
	for _, r := range []struct {
		method, path string
		body         any
		status       int
		reason       string
	}{
		{"PUT", "/nodes/other/limits", object{"memory": "1GB"}, 404, "Not Found"},
		{"PUT", "/nodes/" + node + "/limits", object{}, 400, "[{key_missing,memory}]"},
		{"PUT", "/nodes/" + node + "/limits", object{"memory": "much"}, 400, "memory: not a size such as"},
		{"PUT", "/nodes/" + node + "/limits", object{"memory": ""}, 400, "memory: not a size such as"},
		{"PUT", "/nodes/" + node + "/limits", object{"disk_free": true}, 400, "disk_free: not a size such as"},
		{"PUT", "/nodes/" + node + "/limits", object{"memory_fraction": "NaN"}, 400, "memory_fraction is no number of 0 or more"},
		{"PUT", "/nodes/" + node + "/limits", object{"disk_free_fraction": -1}, 400, "disk_free_fraction is no number of 0 or more"},
		{"PUT", "/nodes/" + node + "/limits", object{"memory_alarm": "loud"}, 400, "not_boolean"},
		{"PUT", "/nodes/" + node + "/limits", object{"memory": "512MiB", "disk_free": 1000}, 204, ""},
		// Of several all or none.
		{"PUT", "/nodes/" + node + "/limits", object{"memory": "1GB", "disk_free": "much"}, 400, "disk_free: not a size such as"},
		{"PUT", "/nodes/" + node + "/limits", object{"memory": "much", "disk_free": "1GB"}, 400, "memory: not a size such as"},
		{"PUT", "/nodes/" + node + "/limits", object{"memory": "1GB", "disk_free": "1GB", "disk_alarm": "loud"}, 400, "not_boolean"},
		{"POST", "/nodes/other/actions", object{"action": "resume"}, 404, "Not Found"},
		{"POST", "/nodes/" + node + "/actions", object{"action": "dance"}, 400, "Unknown action: dance"},
		{"POST", "/nodes/" + node + "/actions", object{"action": "stop"}, 400, "part of a program"},
		{"POST", "/nodes/" + node + "/actions", object{"action": "resume"}, 204, ""}, // nothing to do
	} {
		if a := c.do(r.method, r.path, r.body); a.status != r.status || r.status >= 400 && !strings.Contains(a.reason(), r.reason) {
			t.Errorf("%s %s %v: %d %s, want %d %s", r.method, r.path, r.body, a.status, a.body, r.status, r.reason)
		}
	}
	n := get[object](c, "/nodes/"+node)
	if n["mem_limit"] != 512.0*1024*1024 || n["disk_free_limit"] != 1000.0 {
		t.Errorf("limits %v and %v", n["mem_limit"], n["disk_free_limit"])
	}

	// A share of nothing raises the alarm, as in RabbitMQ; a share that is enough ends it.
	alarm := func() bool {
		return c.do("GET", "/health/checks/local-alarms", nil).status == http.StatusServiceUnavailable
	}
	c.want(204, "PUT", "/nodes/"+node+"/limits", object{"memory_fraction": 0})
	waitFor(t, alarm)
	c.want(204, "PUT", "/nodes/"+node+"/limits", object{"memory_fraction": 0.9})
	waitFor(t, func() bool { return !alarm() })
	// An alarm may be raised although nothing is short, each by itself.
	for key, flag := range map[string]string{"memory_alarm": "mem_alarm", "disk_alarm": "disk_free_alarm"} {
		raised := func() string {
			n := get[object](c, "/nodes/"+node)
			return fmt.Sprintf("%v of %v and %v", n[flag], n["mem_alarm"], n["disk_free_alarm"])
		}
		c.want(204, "PUT", "/nodes/"+node+"/limits", object{key: true})
		waitFor(t, alarm)
		if got := raised(); got != "true of true and false" && got != "true of false and true" {
			t.Errorf("%s: %s", key, got)
		}
		c.want(204, "PUT", "/nodes/"+node+"/limits", object{key: false})
		waitFor(t, func() bool { return !alarm() })
	}

	fire := func() int {
		t.Helper()
		res, err := http.Get(c.base + "/fire")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	open := fire() // no WebSocket client: another refusal
	for _, action := range []string{"suspend_listeners", "suspend"} {
		c.want(204, "POST", "/nodes/"+node+"/actions", object{"action": action})
		if got := fire(); got != http.StatusServiceUnavailable {
			t.Errorf("%s: /fire answers %d", action, got)
		}
		c.want(503, "GET", "/health/checks/ready-to-serve-clients", nil)
		c.want(503, "GET", "/health/checks/is-in-service", nil)
		c.want(204, "POST", "/nodes/"+node+"/actions", object{"action": "resume"})
		if got := fire(); got != open {
			t.Errorf("after %s and resume /fire answers %d, before %d", action, got, open)
		}
		c.want(200, "GET", "/health/checks/ready-to-serve-clients", nil)
	}
}
