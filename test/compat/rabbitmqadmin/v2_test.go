package rabbitmqadmin

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/firemq/firemq/test/internal/brokertest"
	amqp "github.com/rabbitmq/amqp091-go"
)

// TestRoundV2 drives rabbitmqadmin v2, the program that took the script's place, through every command group. What
// needs a plugin of RabbitMQ's ends with an error that says so. RabbitMQ 4.3.6 answers the same lines alike but for
// those plugins.
func TestRoundV2(t *testing.T) {
	program := filepath.Join(brokertest.Root(), ".cache", "cargo", "debug", "rabbitmqadmin")
	if _, err := os.Stat(program); err != nil {
		if os.Getenv("FIREMQ_REQUIRE_RABBITMQADMIN") != "" {
			t.Fatal(err)
		}
		t.Skip("rabbitmqadmin v2 is not built: make compat does it")
	}
	b := brokertest.Start(t, brokertest.Options{})
	dir := t.TempDir()
	run := runner(t, program, b, dir)
	conn, err := amqp.DialConfig(b.AMQPURL, amqp.Config{Properties: amqp.Table{"connection_name": "v2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err == nil {
		_, err = ch.QueueDeclare("held", false, false, true, false, nil)
	}
	if err == nil {
		_, err = ch.Consume("held", "tag", false, false, false, false, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := run("list", "nodes")
	node := regexp.MustCompile(`firemq@\S+`).FindString(nodes)
	if node == "" {
		t.Fatalf("list nodes: %v\n%s", err, nodes)
	}
	fill := func(args []string) []string {
		for i, a := range args {
			args[i] = strings.NewReplacer("NODE", node, "DIR", dir, "CONNECTION", conn.LocalAddr().String()+" -> "+conn.RemoteAddr().String()).Replace(a)
		}
		return args
	}
	const absent, noPlugin, noStream = "!404 Not Found", "!not found", "!unsupported queue type 'stream'"
	for _, step := range []struct{ line, want string }{ // "!": it fails
		{"show overview", "FireMQ"},
		{"show churn", "Client connections opened"},
		{"show endpoint", "/api"},
		{"show memory_breakdown_in_bytes --node NODE", "Metadata store"},
		{"show memory_breakdown_in_percent --node NODE", "Allocated but unused"},
		{"nodes memory_breakdown_in_bytes --node NODE", "Binary heap"},
		{"nodes memory_breakdown_in_percent --node NODE", "Quorum queue ETS tables"},
		{"nodes memory_breakdown_in_bytes --node absent@x", absent},
		{"list nodes", "NODE"},
		{"plugins list_all", "rabbitmq_management"},
		{"plugins list_on_node --node NODE", "rabbitmq_prometheus"},
		{"auth_attempts stats --node NODE", "│ amqp "},

		{"vhosts declare --name second --description two --default-queue-type quorum", ""},
		{"declare vhost --name third --tracing", ""},
		{"vhosts list", "two"},
		{"list vhosts", "third"},
		{"vhosts enable_deletion_protection --name second", ""},
		{"vhosts delete --name second", "!Refusing to delete virtual host 'second' because it is protected from deletion"},
		{"vhosts disable_deletion_protection --name second", ""},

		{"declare exchange --name events --type topic", ""},
		{"exchanges declare --name audit --type fanout --durable false --auto-delete true", ""},
		{`exchanges declare --name hash --type x-consistent-hash --arguments {"hash-header":"h"}`, ""},
		{"exchanges list", "x-consistent-hash"},
		{"list exchanges", `hash-header: "h"`},
		{"declare queue --name orders", ""},
		{`queues declare --name a/b --arguments {"x-max-length":10}`, ""},
		{"declare queue --name qq --type quorum", ""},
		{"declare queue --name s --type stream", noStream},
		{"streams declare --name s --expiration 1D --max-length-bytes 100000", noStream},
		{"declare stream --name s --expiration 1D", noStream},
		{"streams list", "orders"}, // of all types, as RabbitMQ's
		{"streams show --name s", absent},
		{"streams delete --name s", absent},
		{"delete stream --name s --idempotently", ""},
		{"queues list", "x-max-length: 10"},
		{"list queues", "quorum"},
		{"queues list --page 1 --page-size 1 --columns name,durable", "a/b"},
		{"queues show --name orders", "running"},
		{"queues show --name absent", absent},
		{"declare binding --source events --destination-type queue --destination orders --routing-key order.#", ""},
		{"bindings declare --source events --destination-type exchange --destination audit --routing-key #", ""},
		{`exchanges bind --source audit --destination-type queue --destination a/b --routing-key k --arguments {"x":1}`, ""},
		{"bindings list", "order.%23"},
		{"list bindings", "x: 1"},
		{`publish message --exchange events --routing-key order.new --payload hello --properties {"delivery_mode":2,"headers":{"a":1}}`, "published and routed"},
		{"publish message --routing-key orders --payload second", "published and routed"},
		{"publish message --exchange absent --routing-key k", absent},
		{"get messages --queue orders --count 2 --ack-mode ack_requeue_true", `headers: {"a":1}`},
		{"get messages --queue orders --ack-mode reject_requeue_true", "hello"},
		{"get messages --queue orders --ack-mode ack_requeue_false", "true"},
		{"get messages --queue orders --ack-mode reject_requeue_false", "second"},
		{"get messages --queue absent", absent},
		{"purge queue --name orders", ""},
		{"queues purge --name a/b", ""},
		{"queues rebalance", ""},
		{"rebalance queues", ""},

		{`declare policy --name limit --pattern ^ord --apply-to queues --priority 3 --definition {"max-length":5}`, ""},
		{`policies declare --name other --pattern ^ord --apply-to classic_queues --priority 3 --definition {"max-length":5}`, ""},
		{"policies list", "max-length: 5"},
		{"policies list_in --vhost / --apply-to queues", "limit"},
		{"policies list_matching_object --name orders --type queues", "^ord"},
		{"policies list_conflicting", "other"},
		{"policies list_conflicting_in --vhost /", "limit"},
		{`policies patch --name limit --definition {"message-ttl":60000}`, ""},
		{"policies update_definition --name limit --definition-key max-length --new-value 7", ""},
		{"list policies", "message-ttl: 60000"},
		{"policies update_definitions_of_all_in --vhost / --definition-key max-length --new-value 8", ""},
		{"policies update_definitions_of_all --definition-key max-length --new-value 9", ""},
		{"list policies", "max-length: 9"},
		{"policies delete_definition_keys --name limit --definition-keys message-ttl", ""},
		{"policies delete_definition_keys_from_all_in --vhost / --definition-keys message-ttl", ""},
		{"policies delete_definition_keys_from_all --definition-keys message-ttl", ""},
		{`policies declare_override --name limit --override-name over --definition {"max-length":3}`, ""},
		{`policies declare_blanket --name blanket --apply-to queues --definition {"max-length":100}`, ""},
		{"queues show --name orders", "over"},
		{`policies declare --name bad --pattern ^ord --apply-to queues --definition {"junk":1}`, "!are not recognised policy settings"},
		{"policies delete --name other", ""},
		{`declare operator_policy --name op --pattern ^ord --apply-to queues --definition {"max-length":4}`, ""},
		{"operator_policies list", "max-length: 4"},
		{"operator_policies list_in --vhost /", "op"},
		{"operator_policies list_matching_object --name orders --type queues", "op"},
		{`operator_policies patch --name op --definition {"message-ttl":60000}`, ""},
		{"operator_policies update_definition --name op --definition-key max-length --new-value 7", ""},
		{"operator_policies update_definitions_of_all_in --vhost / --definition-key max-length --new-value 6", ""},
		{"operator_policies delete_definition_keys --name op --definition-keys message-ttl", ""},
		{"operator_policies delete_definition_keys_from_all_in --vhost / --definition-keys message-ttl", ""},
		{"list operator_policies", "max-length: 6"},

		{"declare user --name app --password secret --tags management", ""},
		{"users declare --name sha5 --password secret --hashing-algorithm SHA512", ""},
		{"users declare --name hashed --password-hash kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR --tags monitoring", ""},
		{"users list", "hashed"},
		{"list users", "management"},
		{"declare permissions --username app --configure .* --read .* --write .* --vhost second", ""},
		{"permissions declare --username sha5 --configure .* --read .* --write .*", ""},
		{"permissions list", "sha5"},
		{"list permissions", "second"},
		{"users permissions", "app"},
		{"users connections --username guest", "guest"},
		{"list user_connections --username guest", "guest"},
		{"declare vhost_limit --vhost second --name max-queues --value 10", ""},
		{"vhost_limits declare --vhost second --name max-connections --value 11", ""},
		{"vhost_limits list --vhost second", "max-queues: 10"},
		{"list vhost_limits --vhost second", "max-connections: 11"},
		{"declare user_limit --username app --name max-connections --value 5", ""},
		{"user_limits declare --username app --name max-channels --value 6", ""},
		{"user_limits list --user app", "max-connections: 5"},
		{"users limits", "max-channels: 6"},
		{"list user_limits", "app"},
		{"--username hashed --password test12 list nodes", "NODE"},
		{"--username app --password secret --vhost second declare queue --name mine", ""},
		{"--username app --password secret queues list --vhost second", "mine"},
		{"--username app --password secret users list", "!Not administrator user"},
		{"--username app --password wrong queues list", "!Not_Authorized"},

		{"parameters list_all", "operator_policy"},
		{"parameters list --component vhost-limits --vhost second", "max-queues: 10"},
		{"parameters list_in --component vhost-limits --vhost second", "limits"},
		{"list parameters", "op"},
		{`parameters set --component shovel --name sh --value {"a":1}`, noPlugin},
		{`declare parameter --component federation-upstream --name up --value {"uri":"amqp://localhost"}`, noPlugin},
		{"parameters clear --component federation-upstream --name up", absent},
		{"delete parameter --component federation-upstream --name up", absent},
		{`global_parameters set --name g --value {"a":1}`, ""},
		{"global_parameters list", `{"a":1}`},
		{"global_parameters clear --name g", ""},
		{"global_parameters clear --name g", absent},

		{"shovels list_all", absent},
		{"shovels list", absent},
		{"shovels declare_amqp091 --name sh --source-uri amqp://localhost --destination-uri amqp://localhost --source-queue orders --destination-queue copy", noPlugin},
		{"shovels declare_amqp10 --name sh --source-uri amqp://localhost --destination-uri amqp://localhost --source-address /queues/orders --destination-address /queues/copy", noPlugin},
		{"shovels delete --name sh", absent},
		{"delete shovel --name sh --idempotently", ""},
		{"shovels disable_tls_peer_verification_for_all_source_uris", "0 items"},
		{"shovels disable_tls_peer_verification_for_all_destination_uris", "0 items"},
		{"federation list_all_upstreams", "trust_user_id"},
		{"federation list_all_links", absent},
		{"federation declare_upstream --name up --uri amqp://localhost", noPlugin},
		{"federation declare_upstream_for_queues --name up --uri amqp://localhost", noPlugin},
		{"federation declare_upstream_for_exchanges --name up --uri amqp://localhost", noPlugin},
		{"federation delete_upstream --name up", absent},
		{"federation disable_tls_peer_verification_for_all_upstreams", "0 items"},

		{"feature_flags list", "stability"},
		{"list feature_flags", "provided_by"},
		{"feature_flags enable_all", ""},
		{"feature_flags enable --name khepri_db", "!unsupported"},
		{"deprecated_features list", "deprecation_phase"},
		{"deprecated_features list_used", "deprecation_phase"},
		{"list deprecated_features", "deprecation_phase"},
		{"list deprecated_features_in_use", "deprecation_phase"},
		{"health_check local_alarms", "passed"},
		{"health_check cluster_wide_alarms", "passed"},
		{"health_check node_is_quorum_critical", "passed"},
		{"health_check port_listener --port 1", "!No active listener"},
		{"health_check protocol_listener --protocol amqp", "passed"},
		{"health_check protocol_listener --protocol http", "passed"},
		{"health_check protocol_listener --protocol mqtt", "!No active listener"},
		{"passwords salt_and_hash test12", "password hash"},

		{"connections list", "CONNECTION"},
		{"list connections", "guest"},
		{"connections list_of_user --username guest", "CONNECTION"},
		{"channels list", "CONNECTION"},
		{"list channels", "CONNECTION"},
		{"list consumers", "tag"},
		{"close connection --name absent", absent},
		{"connections close --name absent --idempotently", ""},
		{"connections close_of_user --username absent", ""},
		{"close connection --name CONNECTION", ""},
		{"close user_connections --username guest", ""},
		{"queues show --name held", absent}, // it was exclusive

		{"definitions export --file DIR/all.json", ""},
		{"export definitions --file DIR/again.json", ""}, // the tool's own "import definitions" panics
		{"definitions export --stdout", "x-consistent-hash"},
		{"definitions export --stdout --transformations exclude_users", "orders"},
		{"definitions export_from_vhost --vhost / --file DIR/one.json", ""},
		{"definitions export_from_vhost --vhost / --stdout", "orders"},
		{"definitions import_into_vhost --vhost third --file DIR/one.json", ""},
		{"queues show --vhost third --name qq", "quorum"},

		{"delete binding --source events --destination-type queue --destination orders --routing-key order.#", ""},
		{"delete binding --source events --destination-type queue --destination orders --routing-key order.# --idempotently", ""},
		{"exchanges unbind --source events --destination-type exchange --destination audit --routing-key #", ""},
		{`bindings delete --source audit --destination-type queue --destination a/b --routing-key k --arguments {"x":1}`, ""},
		{"delete queue --name orders", ""},
		{"queues delete --name orders", absent},
		{"delete queue --name orders --idempotently", ""},
		{"queues delete_multiple --name-pattern ^q --dry-run", "qq"},
		{"--non-interactive queues delete_multiple --name-pattern ^q", ""},
		{"queues show --name qq", absent},
		{"delete policy --name limit", ""},
		{"delete operator_policy --name op", ""},
		{"delete exchange --name events", ""},
		{"exchanges delete --name events", absent},
		{"delete permissions --username app --vhost second", ""},
		{"permissions delete --username sha5", ""},
		{"delete user_limit --username app --name max-connections", ""},
		{"user_limits delete --username app --name max-channels", ""},
		{"delete vhost_limit --vhost second --name max-queues", ""},
		{"vhost_limits delete --vhost second --name max-connections", ""},
		{"users delete --name app", ""},
		{"delete user --name app", absent},
		{"delete user --name app --idempotently", ""},
		{"vhosts delete_multiple --name-pattern ^th --dry-run", "third"},
		{"--non-interactive vhosts delete_multiple --name-pattern ^th", ""},
		{"delete vhost --name second", ""},
		{"vhosts delete --name second", absent},

		{"definitions import --file DIR/all.json", ""},
		{"list bindings", "order.%23"},
		{"list permissions", "second"},
		{"list policies", "max-length: 9"},
		{"list operator_policies", "max-length: 6"},
		{"list vhost_limits --vhost second", "max-queues: 10"},
		{"list user_limits", "max-channels: 6"},
	} {
		args := fill(strings.Fields(step.line))
		out, err := run(args...)
		want, fails := strings.CutPrefix(fill([]string{step.want})[0], "!")
		if _, exit := err.(*exec.ExitError); !strings.Contains(out, want) || exit != fails || err != nil && !fails {
			t.Errorf("rabbitmqadmin %s: %v\n%s\nwant %s", strings.Join(args, " "), err, out, step.want)
		}
	}
}
