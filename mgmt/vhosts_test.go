package mgmt_test

import (
	"sync"
	"testing"
)

// TestVHostChangesMeet: requests that change different things about a vhost at once lose nothing of each other.
func TestVHostChangesMeet(t *testing.T) {
	c := start(t)
	c.want(201, "PUT", "/vhosts/v", object{"tracing": true})
	for range 100 {
		c.want(204, "DELETE", "/vhosts/v/deletion/protection", nil)
		var all sync.WaitGroup
		for _, r := range []struct {
			method, path string
			body         any
		}{
			{"PUT", "/vhosts/v", object{"description": "d"}},
			{"POST", "/vhosts/v/deletion/protection", nil},
			{"POST", "/definitions", object{"vhosts": []any{object{"name": "v", "description": "d", "tracing": true}}}},
			{"PUT", "/vhosts/v", object{"description": "d"}},
		} {
			all.Go(func() {
				if a := c.do(r.method, r.path, r.body); a.status != 204 {
					t.Errorf("%s %s: %d", r.method, r.path, a.status)
				}
			})
		}
		all.Wait()
		v := get[object](c, "/vhosts/v")
		if v["protected_from_deletion"] != true || v["tracing"] != true || v["description"] != "d" {
			t.Fatalf("the vhost is %v", v)
		}
	}
}
