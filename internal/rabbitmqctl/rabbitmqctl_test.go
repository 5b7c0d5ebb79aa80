package rabbitmqctl_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/internal/rabbitmqctl"
	"github.com/firemq/firemq/server"
)

// result is what a command line left behind.
type result struct {
	status   int
	out, err string
}

// limit is how long a broker may take to do what it was told.
const limit = 20 * time.Second

// start gives a broker in memory, what runs tools against it, and what is closed when it is told to stop.
func start(t *testing.T) (s *server.Server, run func(tool, in string, args ...string) result, stopped <-chan struct{}) {
	t.Helper()
	asked := make(chan struct{})
	s, err := server.Start(t.Context(), server.Options{
		AMQP: "127.0.0.1:0", Fire: "127.0.0.1:0", HTTP: "127.0.0.1:0", Ephemeral: true, Version: "9.9.9", OnStop: func() { close(asked) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	run = func(tool, in string, args ...string) result {
		var out, errs bytes.Buffer
		env := func(name string) (string, bool) {
			v, ok := map[string]string{"FIREMQ_HTTP_URL": "http://" + s.HTTPAddr().String()}[name]
			return v, ok
		}
		status := rabbitmqctl.Run(t.Context(), rabbitmqctl.Terminal{In: strings.NewReader(in), Out: &out, Err: &errs, Env: env, Version: "9.9.9"}, tool, args)
		return result{status, out.String(), errs.String()}
	}
	return s, run, asked
}

// TestCommands goes through what the comparison with RabbitMQ's own does not: each line must print what is in
// want, with the status 0 unless want begins with it: "69 text" is an error of that status.
func TestCommands(t *testing.T) {
	_, run, _ := start(t)
	file := filepath.Join(t.TempDir(), "definitions.json")
	for _, step := range []struct{ line, in, want string }{
		{"rabbitmqctl version", "", "9.9.9\n"},
		{"rabbitmqctl add_user piped", "secret\n", `Adding user "piped" ...`},
		{"rabbitmqctl authenticate_user piped secret", "", "Success"},
		{"rabbitmqctl add_user hashed kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR --pre-hashed-password", "", "Done."},
		{"rabbitmqctl authenticate_user hashed test12", "", "Success"},
		{"rabbitmqctl --node rabbit@elsewhere -q list_users", "", "piped\t[]\n"},
		{"rabbitmqctl list_users --formatter=pretty_table", "", "│ piped  │ []              │\n"},
		{"rabbitmqctl list_users --formatter json_stream", "", `{"user":"piped","tags":[]}` + "\n"},
		{"rabbitmqctl list_users --formatter loud", "", "64 Formatter loud is not supported"},
		{"rabbitmqctl list_users --timeout soon", "", "64 the timeout soon is no number"},
		{"rabbitmqctl list_users --node", "", "64 --node needs a value"},
		{"rabbitmqctl clear_password piped", "", "Clearing password"},
		{"rabbitmqctl authenticate_user piped secret", "", "65 invalid credentials"},
		{"rabbitmqctl add_vhost v --description words --tags a,b --default-queue-type quorum", "", `Adding vhost "v" ...`},
		{"rabbitmqctl set_vhost_tags v c d", "", `to [c, d]`},
		{"rabbitmqctl trace_on -p v", "", "Trace enabled for vhost v"},
		{"rabbitmqctl -s list_vhosts name description tags default_queue_type tracing", "", "v\twords\t[c, d]\tquorum\ttrue\n"},
		{"rabbitmqctl set_vhost_limits -p v {\"max-queues\":3,\"max-connections\":7}", "", "Setting vhost limits"},
		{"rabbitmqctl -s list_vhost_limits --global", "", `v` + "\t" + `{"max-connections":7,"max-queues":3}`},
		{"rabbitmqctl set_user_limits piped {\"max-channels\":3}", "", "Setting user limits"},
		{"rabbitmqctl -s list_user_limits", "", "piped\t{\"max-channels\":3}\n"},
		{"rabbitmqctl clear_user_limits piped all", "", "Clearing"},
		{"rabbitmqctl set_user_limits piped 3", "", "69 JSON decoding error"},
		{"rabbitmqctl set_parameter federation-upstream u {}", "", "69 component federation-upstream not found"},
		{"rabbitmqctl set_cluster_name second", "", "Setting cluster name to second ..."},
		{"rabbitmqctl cluster_status", "", "Cluster name: second\n"},
		{"rabbitmqctl cluster_status --formatter json", "", `"cluster_name":"second"`},
		{"rabbitmqctl status", "", "Virtual host count: 2\n"},
		{"rabbitmqctl status --formatter json", "", `"virtual_host_count":2`},
		{"rabbitmqctl export_definitions " + file, "", "Exporting definitions in JSON"},
		{"rabbitmqctl delete_vhost v", "", `Deleting vhost "v" ...`},
		{"rabbitmqctl import_definitions " + file, "", "Successfully started definition import"},
		{"rabbitmqctl -s list_vhosts", "", "v\n"},
		{"rabbitmqctl import_definitions -", "{", "69 failed_to_parse_json"},
		{"rabbitmqctl import_definitions " + file + ".absent", "", "69 no such file"},
		{"rabbitmqctl await_online_nodes 1", "", "Will wait"},
		{"rabbitmqctl report", "", "\n\nListing connections ...\n\nListing channels ...\n"},
		{"rabbitmqctl report", "", "\n\nListing queues for vhost v ...\n\nListing exchanges for vhost v ...\nname\ttype\tdurable\t"},
		{"rabbitmqctl report", "", "Listing policies for vhost \"v\" ...\n"},
		{"rabbitmqctl rotate_logs", "", "69 This command does not rotate logs anymore [deprecated]"},
		{"rabbitmq-queues grow none@nowhere all", "", "64 node none@nowhere is not a member of the cluster"},
		{"rabbitmq-queues grow none@nowhere some", "", "64 \"strategy 'some' is not recognised.\""},
		{"rabbitmq-queues shrink none@nowhere", "", "69 {:node_not_running, :none@nowhere}"},
		{"rabbitmq-queues quorum_status absent", "", "65 queue 'absent' was not found in virtual host '/'"},
		{"rabbitmq-diagnostics -q is_running", "", "is fully booted and running\n"},
		{"rabbitmq-diagnostics -q check_protocol_listener amqp", "", "A listener for protocol amqp is running on node "},
		{"rabbitmq-diagnostics -q check_protocol_listener mqtt", "", "69 Found listeners for the following protocols: amqp"},
		{"rabbitmq-diagnostics -q check_port_listener 1", "", "69 Found listeners that use the following ports: "},
		{"rabbitmq-diagnostics -q check_port_listener amqp", "", "64 the port has to be a number"},
		{"rabbitmqctl await_online_nodes 2", "", "69 single node"},
		{"rabbitmqctl wait /run/rabbitmq.pid", "", ""},
		{"rabbitmqctl set_vm_memory_high_watermark absolute much", "", "69 memory: not a size"},
		{"rabbitmqctl set_vm_memory_high_watermark absolute", "", "64 not enough arguments"},
		{"rabbitmqctl set_disk_free_limit mem_relative 1.5", "", "to 1.5 times the total RAM ..."},
		{"rabbitmqctl set_disk_free_limit 1GB", "", "to 1GB bytes ..."},
		{"rabbitmq-upgrade drain", "", "into maintenance mode"},
		{"rabbitmqctl status", "", "Is under maintenance?: true\n"},
		{"rabbitmqctl status --formatter json", "", `"is_under_maintenance":true`},
		{"rabbitmq-diagnostics -q check_running", "", "69 not running"},
		{"rabbitmq-upgrade revive", "", "into regular operating mode"},
		{"rabbitmqctl status", "", "Is under maintenance?: false\n"},
		{"rabbitmq-diagnostics memory_breakdown", "", "code: 0.0"},
		{"rabbitmq-diagnostics -q memory_breakdown --unit bytes", "", "atom: 0.0 bytes (0.0%)\n"},
		{"rabbitmq-diagnostics memory_breakdown --formatter json", "", `"atom":{"bytes":0,"percentage":0}`},
		{"rabbitmq-diagnostics memory_breakdown --formatter csv", "", `.bytes","`},
		{"rabbitmqctl list_feature_flags --formatter csv", "", ""},
		{"rabbitmqctl hash_password", "piped\n", "Will hash provided password\n"},
		{"rabbitmqctl stauts", "", "64 Did you mean 'status'?"},
		{"rabbitmq-plugins enable rabbitmq_delayed_message_exchange rabbitmq_consistent_hash_exchange", "", "unchanged"},
		{"rabbitmq-plugins disable rabbitmq_stomp", "", "unchanged"},
		{"rabbitmq-plugins disable rabbitmq_prometheus", "", "69 rabbitmq_prometheus is a part of FireMQ"},
		{"rabbitmq-plugins disable --all", "", "69 cannot be disabled"},
		{"rabbitmq-plugins list -E -m", "", "rabbitmq_management\nrabbitmq_prometheus\n"},
		{"rabbitmqctl eval 1+1.", "", "69 FireMQ has no Erlang: eval knows node()"},
		{"rabbitmqctl reset", "", "69 remove its data directory"},
		{"rabbitmqctl list_feature_flags", "", "Listing feature flags"},
		{"rabbitmqctl enable_feature_flag all", "", "Enabling all feature flags"},
		{"rabbitmqctl help", "", "   set_permissions [--vhost <vhost>] <username> <conf> <write> <read>\n"},
		{"rabbitmqctl help add_user", "", "rabbitmqctl [--node <node>] [--longnames] [--quiet] add_user <username> <password>\n"},
		{"rabbitmqctl", "", "64 Available commands"},
		{"rabbitmq-diagnostics -q ping", "", "Ping succeeded\n"},
		{"rabbitmq-diagnostics check_running", "", "is fully booted and running\n"},
		{"rabbitmq-diagnostics check_local_alarms", "", "reported no local alarms\n"},
		{"rabbitmq-diagnostics check_virtual_hosts", "", "reported all vhosts as running\n"},
		{"rabbitmq-diagnostics check_port_connectivity", "", "Successfully connected to ports "},
		{"rabbitmq-diagnostics listeners", "", "protocol: amqp, purpose: AMQP 0-9-1\n"},
		{"rabbitmq-diagnostics -q server_version", "", "3.13.7\n"},
		{"rabbitmq-plugins list -m", "", "rabbitmq_management\n"},
		{"rabbitmq-plugins list prometheus", "", "[E*] rabbitmq_prometheus               3.13.7\n"},
		{"rabbitmq-plugins is_enabled rabbitmq_management", "", "is enabled on node"},
		{"rabbitmq-plugins is_enabled rabbitmq_stream", "", "69 Plugin rabbitmq_stream is not enabled"},
		{"rabbitmq-plugins enable rabbitmq_management", "", "unchanged"},
		{"rabbitmq-plugins enable rabbitmq_stream", "", "69 no plugin rabbitmq_stream"},
		{"rabbitmq-plugins list_users", "", "64 Command 'list_users' not found."},
	} {
		args := strings.Fields(step.line)
		got := run(args[0], step.in, args[1:]...)
		want, text, status := "", step.want, 0
		if code, rest, ok := strings.Cut(step.want, " "); ok && len(code) == 2 && json.Unmarshal([]byte(code), &status) == nil {
			want, text = rest, ""
		}
		if got.status != status || !strings.Contains(got.err, want) || !strings.Contains(got.out, text) || status == 0 && got.err != "" {
			t.Errorf("%s\nstatus %d, want %d %q %q\n%s%s", step.line, got.status, status, text, want, got.out, got.err)
		}
	}
	got := run("rabbitmqctl", `{"policies": [{"vhost": "/", "name": "ha", "pattern": "", "definition": {"ha-mode": "all"}}]}`, "import_definitions", "-")
	if want := "warning: policy 'ha' in vhost '/' was skipped (ha-mode): there are no mirrored queues\n"; got.status != 0 || got.err != want {
		t.Errorf("an import: %d %q, want %q", got.status, got.err, want)
	}
	if got := run("rabbitmqctl", "{\n\"queues\": [,]}", "import_definitions", "-"); !strings.HasPrefix(got.err, "warning: line 2, column 12: invalid character ','") {
		t.Errorf("an import of what is no JSON: %q", got.err)
	}
	hash := strings.TrimSpace(run("rabbitmqctl", "", "-q", "hash_password", "other").out)
	if r := run("rabbitmqctl", "", "add_user", "salted", hash, "--pre-hashed-password"); r.status != 0 {
		t.Errorf("%+v", r)
	}
	if r := run("rabbitmqctl", "", "authenticate_user", "salted", "other"); r.status != 0 {
		t.Errorf("with the hash %s: %+v", hash, r)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the export, which holds password hashes: %v %v", info, err)
	}
}

// TestUnreachable: no broker is one clear error.
func TestUnreachable(t *testing.T) {
	var errs bytes.Buffer
	env := func(name string) (string, bool) { return "http://127.0.0.1:1", name == "FIREMQ_HTTP_URL" }
	status := rabbitmqctl.Run(t.Context(), rabbitmqctl.Terminal{In: strings.NewReader(""), Out: new(bytes.Buffer), Err: &errs, Env: env}, rabbitmqctl.Ctl, []string{"list_queues"})
	if status != 69 || !strings.Contains(errs.String(), "http://127.0.0.1:1 cannot be reached") {
		t.Errorf("status %d, %s", status, &errs)
	}
	errs.Reset()
	status = rabbitmqctl.Run(t.Context(), rabbitmqctl.Terminal{In: strings.NewReader(""), Out: new(bytes.Buffer), Err: &errs, Env: env}, rabbitmqctl.Ctl, []string{"-t", "1", "await_startup"})
	if status != 75 || !strings.Contains(errs.String(), "timed out") {
		t.Errorf("status %d, %s", status, &errs)
	}
}

// TestConnections: what list_connections shows can be given to close_connection, and stop_app breaks what is
// there and keeps clients out until start_app.
func TestConnections(t *testing.T) {
	s, run, stopped := start(t)
	url := "amqp://guest:guest@" + s.AMQPAddr().String()
	// dial gives a client, and what its broker says at the end.
	dial := func() (*amqp.Connection, <-chan *amqp.Error) {
		t.Helper()
		c, err := amqp.Dial(url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c, c.NotifyClose(make(chan *amqp.Error, 1))
	}
	told := func(closed <-chan *amqp.Error, want string) {
		t.Helper()
		select {
		case e := <-closed:
			if e == nil || e.Code != 320 || !strings.Contains(e.Reason, want) {
				t.Errorf("the client was told %v, want %s", e, want)
			}
		case <-time.After(limit):
			t.Fatal("the connection is not closed")
		}
	}
	connections := func() []string {
		t.Helper()
		r := run(rabbitmqctl.Ctl, "", "-s", "list_connections", "pid", "user", "state")
		if r.status != 0 {
			t.Fatal(r.err)
		}
		return strings.FieldsFunc(r.out, func(r rune) bool { return r == '\n' })
	}
	gone := func(what string) {
		t.Helper()
		for deadline := time.Now().Add(limit); len(connections()) > 0; {
			if time.Now().After(deadline) {
				t.Fatalf("%s: still there: %q", what, connections())
			}
		}
	}
	c, _ := dial()
	list := connections()
	if len(list) != 1 || !strings.HasSuffix(list[0], "\tguest\trunning") {
		t.Fatalf("%q", list)
	}
	c.Close()
	gone("close")

	_, closed := dial()
	name, _, _ := strings.Cut(connections()[0], "\t")
	if !regexp.MustCompile(`^<[^<> ]+>$`).MatchString(name) { // RabbitMQ's .NET client looks for one like that
		t.Errorf("the pid %q", name)
	}
	if r := run(rabbitmqctl.Ctl, "", "close_connection", name, "for a test"); r.status != 0 {
		t.Fatal(r.err)
	}
	told(closed, "for a test")
	gone("close_connection")

	_, closed = dial()
	if r := run(rabbitmqctl.Ctl, "", "stop_app"); r.status != 0 {
		t.Fatal(r.err)
	}
	told(closed, "shutdown")
	if _, err := amqp.Dial(url); err == nil {
		t.Error("a client is taken after stop_app")
	}
	if r := run(rabbitmqctl.Diagnostics, "", "check_running"); r.status != 69 {
		t.Errorf("check_running: %+v", r)
	}
	for range 2 { // again is no error
		if r := run(rabbitmqctl.Ctl, "", "start_app"); r.status != 0 {
			t.Fatal(r.err)
		}
	}
	_, closed = dial()
	if r := run(rabbitmqctl.Ctl, "", "close_all_connections", "bye"); r.status != 0 || !strings.Contains(r.out, "Closed 1 connections") {
		t.Errorf("%+v", r)
	}
	told(closed, "bye")
	gone("close_all_connections")

	done := make(chan result, 1)
	go func() { done <- run(rabbitmqctl.Ctl, "", "stop") }()
	select {
	case <-stopped:
	case <-time.After(limit):
		t.Fatal("stop does not stop")
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.status != 0 {
		t.Errorf("%+v", r)
	}
}
