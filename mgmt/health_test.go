package mgmt_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/mgmt"
	"github.com/firemq/firemq/server"
)

// standIn is a broker's surroundings as a test wants them.
type standIn struct {
	mgmt.Control
	resources mgmt.Resources
	suspended bool
	listeners []mgmt.Listener
}

func (s *standIn) Suspended() bool { return s.suspended }

// TestHealthChecks: each check that can fail does, for its own reason and for no other.
func TestHealthChecks(t *testing.T) {
	in := &standIn{}
	g := guardWith(t, mgmt.Options{
		Control: in, Resources: func() mgmt.Resources { return in.resources },
		Listeners: func() []mgmt.Listener {
			if in.suspended {
				return nil
			}
			return in.listeners
		},
	}, time.Hour, time.Hour, time.Hour)
	port := func(n int) net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: n} }
	certificate := func() *x509.Certificate { return &x509.Certificate{NotAfter: time.Now().AddDate(0, 2, 0)} }
	healthy := standIn{listeners: []mgmt.Listener{
		{Protocol: "amqp", Addr: port(5672)}, {Protocol: "amqp/ssl", Addr: port(5671), TLS: true, Certificate: certificate},
	}}
	node := mgmt.NodeName()
	check := func(path string) (status int, o object) {
		a := g.dial("127.0.0.1").send(head("GET", "/api"+path, "managing:secret")).answer()
		if err := json.Unmarshal([]byte(a.body), &o); err != nil {
			t.Fatalf("%s: %d %s", path, a.status, a.body)
		}
		return a.status, o
	}
	const (
		serving  = "/health/checks/ready-to-serve-clients"
		service  = "/health/checks/is-in-service"
		below    = "/health/checks/below-node-connection-limit"
		alarms   = "/health/checks/alarms"
		local    = "/health/checks/local-alarms"
		whole    = "/healthchecks/node"
		protocol = "/health/checks/protocol-listener/amqp"
		pair     = "/health/checks/protocol-listener/AMQPS,amqp"
		fiveK    = "/health/checks/port-listener/5672"
		month    = "/health/checks/certificate-expiration/1/months"
		quarter  = "/health/checks/certificate-expiration/3/months"
	)
	all := []string{serving, service, below, alarms, local, whole, protocol, pair, fiveK, month, quarter,
		"/health/checks/virtual-hosts", "/health/checks/reached-target-cluster-size", "/health/checks/metadata-store/initialized",
		"/health/checks/metadata-store/initialized/with-data", "/health/checks/node-is-quorum-critical", "/health/checks/node-is-mirror-sync-critical",
		"/health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/.*"}
	alarm := func(resource string) []any { return []any{object{"node": node, "resource": resource}} }
	for name, r := range map[string]struct {
		ails  func()
		fails map[string]object // beside status
	}{
		"nothing": {func() {}, nil},
		"suspended": {func() { in.suspended = true }, map[string]object{
			serving:  {"reason": "the rabbit node is not currently available to serve"},
			service:  {"reason": "this rabbit node is not currently available to serve"},
			protocol: {"reason": "No active listener", "missing": []any{"amqp"}, "protocols": []any{"http", "http/prometheus"}},
			pair:     {"reason": "No active listener", "missing": []any{"amqp/ssl", "amqp"}, "protocols": []any{"http", "http/prometheus"}},
			fiveK:    {"reason": "No active listener", "missing": 5672.0, "ports": []any{float64(g.s.Addr().(*net.TCPAddr).Port)}},
		}},
		"full": {func() { in.resources.MaxConnections, in.resources.Connections = 2, 2 }, map[string]object{
			serving: {"reason": "node connection limit is reached", "connections": 2.0},
			below:   {"reason": "node connection limit is reached"},
		}},
		"one below the limit": {func() { in.resources.MaxConnections, in.resources.Connections = 2, 1 }, nil},
		"without a limit":     {func() { in.resources.Connections = 2 }, nil},
		"short of memory": {func() { in.resources.MemoryAlarm = true }, map[string]object{
			alarms: {"reason": "There are alarms in effect in the cluster", "alarms": alarm("memory")},
			local:  {"reason": "There are alarms in effect on the node", "alarms": alarm("memory")},
			whole:  {"reason": "resource alarm(s) in effect:[memory]"},
		}},
		"short of disk": {func() { in.resources.DiskAlarm = true }, map[string]object{
			alarms: {"reason": "There are alarms in effect in the cluster", "alarms": alarm("disk space")},
			local:  {"reason": "There are alarms in effect on the node", "alarms": alarm("disk space")},
			whole:  {"reason": "resource alarm(s) in effect:[disk]"},
		}},
		"no AMQP": {func() { in.listeners = []mgmt.Listener{{Protocol: "fire", Addr: port(5680)}} }, map[string]object{
			serving:  {"reason": "no active listeners for AMQP/AMQPS"},
			protocol: {"reason": "No active listener", "missing": []any{"amqp"}, "protocols": []any{"fire", "http", "http/prometheus"}},
			pair:     {"reason": "No active listener", "missing": []any{"amqp/ssl", "amqp"}, "protocols": []any{"fire", "http", "http/prometheus"}},
			fiveK:    {"reason": "No active listener", "missing": 5672.0, "ports": []any{5680.0, float64(g.s.Addr().(*net.TCPAddr).Port)}},
		}},
	} {
		*in = healthy
		r.ails()
		for _, path := range all {
			status, got := check(path)
			want, fails := r.fails[path]
			if path == quarter && len(in.listeners) == 2 && !in.suspended { // that certificate ends in two months, whatever else there is
				if status != 503 || got["reason"] != "Certificates expiring" || len(got["expired"].([]any)) != 1 {
					t.Errorf("%s: %s: %d %v", name, path, status, got)
				}
				continue
			}
			if !fails {
				if status != 200 || got["status"] != "ok" {
					t.Errorf("%s: %s: %d %v", name, path, status, got)
				}
				continue
			}
			want["status"] = "failed"
			if status != 503 || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %s: %d\ngot  %v\nwant %v", name, path, status, got, want)
			}
		}
	}
	*in = healthy
	if _, o := check(pair); !reflect.DeepEqual(o, object{"status": "ok", "protocol": "AMQPS,amqp", "protocols": []any{"amqp", "amqp/ssl", "http", "http/prometheus"}}) {
		t.Errorf("%v", o)
	}
}

// TestHealthOfConnections asks a real broker whether it takes one more client, and then connects one.
func TestHealthOfConnections(t *testing.T) {
	s, err := server.Start(context.Background(), server.Options{AMQP: "127.0.0.1:0", HTTP: "127.0.0.1:0", Ephemeral: true, MaxConnections: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Shutdown(context.Background()) })
	c := &client{t: t, s: s, base: "http://" + s.HTTPAddr().String(), user: "guest", password: "guest"}
	dial := func() (*amqp.Connection, error) { return amqp.Dial("amqp://guest:guest@" + s.AMQPAddr().String()) }
	var last *amqp.Connection
	for range 2 {
		c.want(200, "GET", "/health/checks/below-node-connection-limit", nil)
		conn, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		last = conn
	}
	for _, name := range []string{"below-node-connection-limit", "ready-to-serve-clients"} {
		if a := c.want(503, "GET", "/health/checks/"+name, nil); !strings.Contains(a.body, "node connection limit is reached") {
			t.Errorf("%s: %s", name, a.body)
		}
	}
	if conn, err := dial(); err == nil {
		conn.Close()
		t.Error("a third connection is taken")
	}
	last.Close()
	waitFor(t, func() bool { return c.do("GET", "/health/checks/below-node-connection-limit", nil).status == 200 })
	conn, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}
