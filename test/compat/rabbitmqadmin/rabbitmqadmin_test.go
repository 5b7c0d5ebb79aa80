// Package rabbitmqadmin drives the firemq binary with RabbitMQ's own rabbitmqadmin: the Python script that
// Debian's package rabbitmq-server holds, and version 2, which "make compat" builds. Where one is not installed
// its test is skipped, or fails when FIREMQ_REQUIRE_RABBITMQADMIN is set.
package rabbitmqadmin

import (
	"context"
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/test/internal/brokertest"
)

func TestMain(m *testing.M) { os.Exit(brokertest.Main(m.Run)) }

// limit is how long one call may take.
const limit = 30 * time.Second

// runner gives a function that runs the tool against the broker, with its home in dir.
func runner(t *testing.T, tool string, b *brokertest.Broker, dir string) func(...string) (string, error) {
	t.Helper()
	u, err := url.Parse(b.HTTPURL)
	if err != nil {
		t.Fatal(err)
	}
	return func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		cmd := exec.CommandContext(ctx, tool, append([]string{"--host", u.Hostname(), "--port", u.Port()}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+dir)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

func TestRound(t *testing.T) {
	script, err := exec.LookPath("rabbitmqadmin")
	if err != nil {
		if os.Getenv("FIREMQ_REQUIRE_RABBITMQADMIN") != "" {
			t.Fatal(err)
		}
		t.Skip("rabbitmqadmin is not installed")
	}
	b := brokertest.Start(t, brokertest.Options{})
	dir := t.TempDir()
	run := runner(t, script, b, dir)
	file := filepath.Join(dir, "definitions.json")
	for _, step := range []struct{ line, want string }{
		{"show overview", "cluster_name"},
		{"declare exchange name=events type=topic", "exchange declared"},
		{"declare exchange name=audit type=fanout durable=false auto_delete=true", "exchange declared"},
		{"declare queue name=orders durable=true", "queue declared"},
		{`declare queue name=a/b durable=false arguments={"x-max-length":10}`, "queue declared"},
		{"declare binding source=events destination=orders routing_key=order.#", "binding declared"},
		{"declare binding source=events destination_type=exchange destination=audit routing_key=#", "binding declared"},
		{"publish exchange=events routing_key=order.new payload=hello", "Message published"},
		{"publish routing_key=orders payload=second", "Message published"},
		{"publish exchange=events routing_key=nowhere payload=x", "NOT routed"},
		{"get queue=orders count=2", "hello"},
		{"get queue=orders ackmode=reject_requeue_true encoding=base64", "aGVsbG8="},
		{"get queue=orders ackmode=ack_requeue_false", "True"},
		{"list queues name messages", "orders | 1"},
		{"list queues vhost name node messages message_stats.publish_details.rate", "orders"},
		{"purge queue name=orders", "queue purged"},
		{`declare policy name=limit pattern=^ord definition={"max-length":5} apply-to=queues priority=3`, "policy declared"},
		{`declare operator_policy name=op pattern=^ord definition={"max-length":4} apply-to=queues`, "operator_policy declared"},
		{"declare vhost name=second", "vhost declared"},
		{"declare user name=app password=secret tags=management", "user declared"},
		{"declare user name=hashed password_hash=kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR tags=monitoring", "user declared"},
		{"declare permission vhost=second user=app configure=.* write=.* read=.*", "permission declared"},
		{"declare vhost_limit vhost=second name=max-queues value=10", "vhost_limit declared"},
		{"--username hashed --password test12 list nodes name", "firemq@"},
		{"--username app --password secret --vhost second declare queue name=mine", "queue declared"},
		{"--username app --password secret list users", "Access refused"},
		{"export " + file, "Exported definitions"},
		{"--vhost second export " + file + ".second", "Exported definitions"},
		{"delete binding source=events destination_type=queue destination=orders properties_key=order.%23", "binding deleted"},
		{"delete queue name=orders", "queue deleted"},
		{"delete queue name=a/b", "queue deleted"},
		{"delete policy name=limit", "policy deleted"},
		{"delete operator_policy name=op", "operator_policy deleted"},
		{"delete exchange name=events", "exchange deleted"},
		{"delete permission vhost=second user=app", "permission deleted"},
		{"delete user name=app", "user deleted"},
		{"delete vhost_limit vhost=second name=max-queues", "vhost_limit deleted"},
		{"delete vhost name=second", "vhost deleted"},
		{"import " + file, "Uploaded definitions"},
		{"list bindings source destination properties_key", "order.%23"},
		{"list permissions", "second"},
		{"list policies", "max-length"},
		{"list operator_policies", "max-length"},
		{"list vhost_limits", "max-queues"},
		{"delete queue name=absent", "Not found"},
		{"close connection name=absent", "Not found"},
	} {
		out, err := run(strings.Fields(step.line)...)
		refused := strings.Contains(step.want, "Not found") || strings.Contains(step.want, "refused")
		if !strings.Contains(out, step.want) || (err != nil) != refused {
			t.Errorf("rabbitmqadmin %s: %v\n%s\nwant %s", step.line, err, out, step.want)
		}
	}
	for _, kind := range []string{"connections", "channels", "consumers", "exchanges", "queues", "bindings", "users", "vhosts", "permissions", "nodes", "parameters"} {
		out, err := run("--format", "raw_json", "--depth", "5", "--sort", "name", "--sort-reverse", "list", kind)
		var list []map[string]any
		if err != nil || json.Unmarshal([]byte(out), &list) != nil {
			t.Errorf("list %s: %v\n%s", kind, err, out)
		}
	}
	for _, format := range []string{"long", "kvp"} {
		if out, err := run("--format", format, "--depth", "5", "list", "queues"); err != nil || !strings.Contains(out, "orders") {
			t.Errorf("list queues as %s with every column: %v\n%s", format, err, out)
		}
	}
}
