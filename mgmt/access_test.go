package mgmt_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/firemq/firemq/mgmt"
)

// TestAccess tries every method of every path as every kind of user. The golden file is the table of who may do
// what; a change of it is a change of the security rules.
func TestAccess(t *testing.T) {
	guest := start(t)
	guest.want(201, "PUT", "/vhosts/shut", object{})
	users := []struct {
		column string
		c      *client
	}{
		{"none", guest.as("", "")},
		{"no-tag", guest.addUser("plain").grant("/", ".*", ".*", ".*")},
		{"management", guest.addUser("managing", "management").grant("/", ".*", ".*", ".*")},
		{"policymaker", guest.addUser("policing", "policymaker").grant("/", ".*", ".*", ".*")},
		{"monitoring", guest.addUser("watching", "monitoring").grant("/", ".*", ".*", ".*")},
		{"administrator", guest.addUser("ruling", "administrator").grant("/", ".*", ".*", ".*")},
		{"elsewhere", guest.addUser("foreign", "policymaker")},
	}
	var b strings.Builder
	b.WriteString("# Statuses of each method and path by kind of user: without credentials; tags of a user that may open /;\n")
	b.WriteString("# a policymaker that may open no vhost. Below 400 and 400, 404 mean: allowed, and the request was looked at.\n")
	fmt.Fprintf(&b, "%-75s", "")
	for _, u := range users {
		fmt.Fprintf(&b, " %13s", u.column)
	}
	b.WriteByte('\n')
	node := get[object](guest, "/overview")["node"].(string)
	fill := strings.NewReplacer(
		"{vhost}", "%2F", "{queue}", "absent", "{exchange}", "absent", "{destination}", "absent", "{type}", "q", "{props}", "~",
		"{user}", "nobody", "{node}", node, "{connection}", "absent", "{channel}", "absent", "{limit}", "max-x", "{name}", "absent",
		"{component}", "vhost-limits", "{password}", "x", "{within}", "1", "{unit}", "days", "{port}", "1", "{protocol}", "amqp", "{flag}", "f", "{pattern}", ".*",
	)
	for _, e := range mgmt.AllEndpoints() {
		// What would take the ground from under the other columns.
		if e.Path == "/vhosts/{vhost}" && e.Method == "DELETE" {
			fill := strings.NewReplacer("{vhost}", "absent")
			e.Path = fill.Replace(e.Path)
		}
		fmt.Fprintf(&b, "%-75s", e.Method+" "+e.Path)
		for _, u := range users {
			body := any(nil)
			if e.Method == "PUT" || e.Method == "POST" {
				body = object{"nothing": "known"}
			}
			fmt.Fprintf(&b, " %13d", u.c.do(e.Method, fill.Replace(e.Path), body).status)
		}
		b.WriteByte('\n')
	}
	golden(t, "testdata/access.txt", b.String())
}

// golden compares with a file, or writes it.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got == string(want) {
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(g), len(w)) {
		var a, b string
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			t.Errorf("%s:%d\ngot  %s\nwant %s", file, i+1, a, b)
		}
	}
}
