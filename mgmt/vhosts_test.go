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
		ask := func(method, path string, body any) {
			all.Go(func() {
				if a := c.do(method, path, body); a.status != 204 {
					t.Errorf("%s %s: %d", method, path, a.status)
				}
			})
		}
		for i := range 12 {
			if i == 6 {
				ask("POST", "/vhosts/v/deletion/protection", nil)
			}
			ask("PUT", "/vhosts/v", object{"description": "d"})
			ask("POST", "/definitions", object{"vhosts": []any{object{"name": "v", "description": "d", "tracing": true}}})
		}
		all.Wait()
		v := get[object](c, "/vhosts/v")
		if v["protected_from_deletion"] != true || v["tracing"] != true || v["description"] != "d" {
			t.Fatalf("the vhost is %v", v)
		}
	}
}
