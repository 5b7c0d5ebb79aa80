package mgmt_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/mgmt"
	"github.com/firemq/firemq/server"
)

// accessObjects are what the paths of TestAccess name, beside a connection and a channel.
var accessObjects = object{
	"users":             []any{object{"name": "victim", "password": "x", "tags": "", "limits": object{"max-channels": 100}}},
	"vhosts":            []any{object{"name": "/", "protected_from_deletion": false}, object{"name": "doomed"}},
	"permissions":       []any{object{"user": "victim", "vhost": "/", "configure": "", "write": "", "read": ""}},
	"topic_permissions": []any{object{"user": "victim", "vhost": "/", "exchange": "amq.topic", "write": "", "read": ""}},
	"global_parameters": []any{object{"name": "g", "value": 1}},
	"exchanges":         []any{object{"name": "x", "vhost": "/", "type": "direct"}},
	"queues":            []any{object{"name": "q", "vhost": "/"}, object{"name": "other", "vhost": "/"}},
	"bindings":          []any{object{"source": "x", "vhost": "/", "destination": "q", "destination_type": "queue", "routing_key": "k", "arguments": object{}}},
	"policies":          []any{object{"name": "p", "vhost": "/", "pattern": "^z", "definition": object{"max-length": 1}}},
	"parameters": []any{
		object{"name": "limits", "vhost": "/", "component": "vhost-limits", "value": object{"max-queues": 100}},
		object{"name": "p", "vhost": "/", "component": "operator_policy", "value": object{"pattern": "^z", "definition": object{"max-length": 1}}},
	},
}

// accessBodies are those of methods that need one.
var accessBodies = map[string]object{
	"PUT /users/{user}":                                        {"password": "x", "tags": ""},
	"POST /users/bulk-delete":                                  {"users": []any{"victim"}},
	"PUT /permissions/{vhost}/{user}":                          {"configure": "", "write": "", "read": ""},
	"PUT /topic-permissions/{vhost}/{user}":                    {"exchange": "amq.topic", "write": "", "read": ""},
	"PUT /topic-permissions/{vhost}/{user}/{exchange}":         {"exchange": "amq.topic", "write": "", "read": ""},
	"PUT /policies/{vhost}/{name}":                             {"pattern": "^z", "definition": object{"max-length": 1}},
	"PUT /operator-policies/{vhost}/{name}":                    {"pattern": "^z", "definition": object{"max-length": 1}},
	"PUT /parameters/{component}/{vhost}/{name}":               {"value": object{"max-queues": 100}},
	"PUT /global-parameters/{name}":                            {"value": 1},
	"PUT /vhost-limits/{vhost}/{limit}":                        {"value": 100},
	"PUT /user-limits/{user}/{limit}":                          {"value": 100},
	"PUT /cluster-name":                                        {"name": "c"},
	"PUT /nodes/{node}/limits":                                 {"disk_free": "1"},
	"POST /nodes/{node}/actions":                               {"action": "resume"},
	"PUT /exchanges/{vhost}/{exchange}":                        {"type": "direct", "durable": true},
	"PUT /queues/{vhost}/{queue}":                              {"durable": true},
	"POST /exchanges/{vhost}/{exchange}/publish":               message("k", "x"),
	"POST /queues/{vhost}/{queue}/get":                         {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"},
	"POST /queues/{vhost}/{queue}/messages/copy":               {"all": true, "to": "other"},
	"POST /queues/{vhost}/{queue}/messages/move":               {"all": true, "to": "other"},
	"POST /queues/{vhost}/{queue}/messages/delete":             {"all": true},
	"POST /queues/{vhost}/{queue}/messages/replay":             {"all": true},
	"POST /queues/{vhost}/{queue}/actions":                     {"action": "sync"},
	"POST /bindings/{vhost}/e/{exchange}/{type}/{destination}": {"routing_key": "k"},
}

// TestAccess tries every method of every path as every kind of user, on objects that exist. The golden file is the table of
// who may do what; a change of it is a change of the security rules.
func TestAccess(t *testing.T) {
	guest := start(t)
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
	b.WriteString("# Statuses of each method and path, of objects that exist, by kind of user: without credentials; tags of a user that may\n")
	b.WriteString("# open /; a policymaker that may open no vhost. Connection and channel belong to an administrator. 401 means: not allowed.\n")
	fmt.Fprintf(&b, "%-75s", "")
	for _, u := range users {
		fmt.Fprintf(&b, " %13s", u.column)
	}
	b.WriteByte('\n')
	var conn *amqp.Connection
	connection := ""
	// prepare makes what the request before may have taken away.
	prepare := func() {
		guest.want(204, "POST", "/definitions", accessObjects)
		if conn != nil && !conn.IsClosed() {
			return
		}
		var err error
		if conn, err = amqp.Dial("amqp://guest:guest@" + guest.s.AMQPAddr().String()); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Channel(); err != nil {
			t.Fatal(err)
		}
		connection = conn.LocalAddr().String() + " -> " + guest.s.AMQPAddr().String()
		guest.want(200, "GET", "/connections/"+esc(connection), nil)
	}
	prepare()
	defer func() { conn.Close() }()
	node := get[object](guest, "/overview")["node"].(string)
	for _, e := range mgmt.AllEndpoints() {
		row := e.Method + " " + e.Path
		body := any(nil)
		if e.Method == "PUT" || e.Method == "POST" {
			body = object{}
			if o, ok := accessBodies[row]; ok {
				body = o
			}
		}
		vhost, limit, name, user := "%2F", "max-queues", "p", "victim"
		switch {
		case strings.HasPrefix(e.Path, "/connections/username/"):
			user = "guest"
		case row == "DELETE /vhosts/{vhost}": // the other rows need the first one
			vhost = "doomed"
		case strings.HasPrefix(e.Path, "/user-limits/"):
			limit = "max-channels"
		case strings.HasPrefix(e.Path, "/parameters/"):
			name = "limits"
		case strings.HasPrefix(e.Path, "/global-parameters/"):
			name = "g"
		}
		fmt.Fprintf(&b, "%-75s", row)
		for _, u := range users {
			fill := strings.NewReplacer(
				"{vhost}", vhost, "{queue}", "q", "{exchange}", "x", "{destination}", "q", "{type}", "q", "{props}", "k",
				"{user}", user, "{node}", node, "{connection}", esc(connection), "{channel}", esc(connection+" (1)"), "{limit}", limit, "{name}", name,
				"{component}", "vhost-limits", "{password}", "x", "{within}", "1", "{unit}", "days", "{port}", "1", "{protocol}", "amqp", "{flag}", "f", "{pattern}", ".*",
			)
			path := fill.Replace(e.Path)
			if strings.HasPrefix(e.Path, "/topic-permissions/") {
				path = strings.Replace(path, "victim/x", "victim/amq.topic", 1)
			}
			status := u.c.do(e.Method, path, body).status
			fmt.Fprintf(&b, " %13d", status)
			if e.Method == "GET" {
				if h := u.c.do("HEAD", path, nil).status; h != status {
					t.Errorf("HEAD %s of %s: %d", e.Path, u.column, h)
				}
			}
			if e.Method != "GET" && status < 300 {
				if strings.HasPrefix(e.Path, "/connections/") && e.Method == "DELETE" {
					waitFor(t, conn.IsClosed)
				}
				prepare()
			}
		}
		b.WriteByte('\n')
	}
	golden(t, "testdata/access.txt", b.String())
}

// TestLoopbackUsers: guest logs in from this machine only, wherever a header says that it comes from.
func TestLoopbackUsers(t *testing.T) {
	own := ""
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			own = n.IP.String()
		}
	}
	if own == "" {
		t.Skip("this machine has no other address than the loopback's")
	}
	open := func(loopback []string) *client {
		s, err := server.Start(context.Background(), server.Options{HTTP: "0.0.0.0:0", Ephemeral: true, LoopbackUsers: loopback})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Shutdown(context.Background()) })
		_, port, _ := net.SplitHostPort(s.HTTPAddr().String())
		return &client{t: t, s: s, base: "http://" + net.JoinHostPort(own, port), user: "guest", password: "guest"}
	}
	c := open(nil)
	if a := c.do("GET", "/whoami", nil); a.status != 401 || a.reason() != "User can only log in via localhost" {
		t.Errorf("guest from %s: %d %s", own, a.status, a.body)
	}
	for _, header := range []string{"X-Forwarded-For", "X-Real-IP", "Forwarded"} {
		if a := c.do("GET", "/whoami", nil, header, "127.0.0.1"); a.status != 401 {
			t.Errorf("with %s: %d", header, a.status)
		}
	}
	if a := c.do("POST", "/definitions", `{"x":"`+strings.Repeat("a", 1<<20)+`"}`); a.status != 401 {
		t.Errorf("a large body: %d", a.status)
	}
	if a := c.addUser("other", "administrator").do("GET", "/whoami", nil); a.status != 200 {
		t.Errorf("another user: %d", a.status)
	}
	_, port, _ := net.SplitHostPort(c.s.HTTPAddr().String())
	local := *c
	local.base = "http://127.0.0.1:" + port
	if a := local.do("GET", "/whoami", nil); a.status != 200 {
		t.Errorf("guest from this machine: %d", a.status)
	}
	if a := open([]string{}).do("GET", "/whoami", nil); a.status != 200 {
		t.Errorf("guest when no user is kept to this machine: %d", a.status)
	}
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
