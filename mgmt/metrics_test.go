package mgmt_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/broker"
)

// scrape reads an exposition: the samples by series, and the families by name. It fails on what Prometheus
// refuses: a family in two places, a series twice, a sample before its family.
func scrape(t *testing.T, c *client, path string) (samples map[string]string, families map[string]string) {
	t.Helper()
	a := c.as("", "").do("GET", "/"+path, nil)
	if a.status != 200 || !strings.HasPrefix(a.header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Fatalf("%s: %d %v", path, a.status, a.header)
	}
	samples, families = make(map[string]string), make(map[string]string)
	line := regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-zA-Z_]+="(?:[^"\\]|\\.)*",? ?)*\})? (\S+)$`)
	family, helped := "", true
	for l := range strings.Lines(a.body) {
		l = strings.TrimSuffix(l, "\n")
		if rest, ok := strings.CutPrefix(l, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			if families[name] != "" || !helped {
				t.Errorf("%s: a second family, or the one before has no help", l)
			}
			family, families[name], helped = name, kind, false
			continue
		}
		if rest, ok := strings.CutPrefix(l, "# HELP "); ok {
			if help, ok := strings.CutPrefix(rest, family+" "); !ok || strings.TrimSpace(help) == "" {
				t.Errorf("%s: not of %s, or empty", l, family)
			}
			helped = true
			continue
		}
		m := line.FindStringSubmatch(l)
		if m == nil {
			t.Errorf("no sample: %q", l)
			continue
		}
		base := strings.NewReplacer("_bucket", "", "_sum", "", "_count", "").Replace(m[1])
		if of := families[family]; m[1] != family && !((of == "histogram" || of == "summary") && base == family) {
			t.Errorf("%s: among %s", l, family)
		}
		if _, twice := samples[m[1]+m[2]]; twice {
			t.Errorf("%s: twice", l)
		}
		samples[m[1]+m[2]] = m[3]
	}
	return samples, families
}

// dashboard are the metrics that RabbitMQ's overview dashboard queries, beside those with labels.
var dashboard = strings.Fields(`
	rabbitmq_queue_messages_ready rabbitmq_queue_messages_unacked rabbitmq_queue_messages
	rabbitmq_connections rabbitmq_channels rabbitmq_consumers rabbitmq_queues
	rabbitmq_erlang_uptime_seconds rabbitmq_resident_memory_limit_bytes rabbitmq_process_resident_memory_bytes
	rabbitmq_disk_space_available_bytes rabbitmq_disk_space_available_limit_bytes rabbitmq_process_max_fds rabbitmq_process_open_fds
	rabbitmq_process_max_tcp_sockets rabbitmq_process_open_tcp_sockets
	rabbitmq_queues_declared_total rabbitmq_queues_created_total rabbitmq_queues_deleted_total
	rabbitmq_channels_opened_total rabbitmq_channels_closed_total rabbitmq_connections_opened_total rabbitmq_connections_closed_total
	rabbitmq_alarms_memory_used_watermark rabbitmq_alarms_free_disk_space_watermark`)

var dashboardByProtocol = strings.Fields(`
	messages_received_total messages_received_confirm_total messages_routed_total messages_confirmed_total
	messages_unroutable_dropped_total messages_unroutable_returned_total publishers consumers`)

var dashboardByQueueType = strings.Fields(`
	messages_delivered_total messages_delivered_consume_auto_ack_total messages_delivered_consume_manual_ack_total
	messages_delivered_get_auto_ack_total messages_delivered_get_manual_ack_total messages_get_empty_total
	messages_redelivered_total messages_acknowledged_total`)

func TestMetrics(t *testing.T) {
	c := start(t)
	samples, _ := scrape(t, c, "/metrics")
	has := func(series string) {
		t.Helper()
		if _, ok := samples[series]; !ok {
			t.Errorf("no %s", series)
		}
	}
	for _, name := range dashboard {
		has(name)
	}
	for _, p := range []string{"amqp091", "fire1"} {
		for _, name := range dashboardByProtocol {
			has(fmt.Sprintf("rabbitmq_global_%s{protocol=%q}", name, p))
		}
		for _, name := range dashboardByQueueType {
			for _, kind := range []string{"classic", "quorum", "stream"} {
				has(fmt.Sprintf("rabbitmq_global_%s{protocol=%q,queue_type=\"rabbit_%s_queue\"}", name, p, kind))
			}
		}
		for _, le := range []string{"100.0", "1000.0", "10000.0", "100000.0", "1e+06", "1e+07", "5e+07", "1e+08", "+Inf"} {
			has(fmt.Sprintf("rabbitmq_message_size_bytes_bucket{protocol=%q,le=%q}", p, le))
		}
	}
	identities := 0
	for s := range samples {
		if strings.HasPrefix(s, "rabbitmq_identity_info{") {
			identities++
			if !strings.Contains(s, `rabbitmq_endpoint="aggregated"`) {
				t.Error(s)
			}
		}
	}
	if identities != 1 {
		t.Errorf("%d identities", identities)
	}

	sample(t, c)
	c.want(201, "PUT", "/queues/%2F/"+esc("a\"b\\c\nd\xff"), object{})
	samples, _ = scrape(t, c, "/metrics")
	for series, want := range map[string]string{
		`rabbitmq_global_messages_received_total{protocol="amqp091"}`:                                                     "26",
		`rabbitmq_global_messages_received_confirm_total{protocol="amqp091"}`:                                             "25",
		`rabbitmq_global_messages_confirmed_total{protocol="amqp091"}`:                                                    "25",
		`rabbitmq_global_messages_unroutable_dropped_total{protocol="amqp091"}`:                                           "12",
		`rabbitmq_global_messages_delivered_consume_auto_ack_total{protocol="amqp091",queue_type="rabbit_classic_queue"}`: "1",
		`rabbitmq_global_messages_acknowledged_total{protocol="amqp091",queue_type="rabbit_classic_queue"}`:               "1",
		`rabbitmq_global_messages_delivered_get_manual_ack_total{protocol="amqp091",queue_type="rabbit_classic_queue"}`:   "1",
		`rabbitmq_global_messages_get_empty_total{protocol="amqp091",queue_type="rabbit_classic_queue"}`:                  "1",
		`rabbitmq_global_consumers{protocol="amqp091"}`:                                                                   "3",
		`rabbitmq_message_size_bytes_bucket{protocol="amqp091",le="100.0"}`:                                               "26",
		`rabbitmq_message_size_bytes_sum{protocol="amqp091"}`:                                                             "176",
		`rabbitmq_connections`: "1", `rabbitmq_channels`: "2", `rabbitmq_consumers`: "3", `rabbitmq_queues`: "5",
		`rabbitmq_queue_messages_unacked`:                                          "13",
		`firemq_queue_messages_published_total{vhost="sales",queue="orders"}`:      "12",
		`firemq_queue_messages_acked_total{vhost="sales",queue="orders"}`:          "1",
		`firemq_queue_messages_ready{vhost="sales",queue="orders"}`:                "1",
		`firemq_queue_messages_unacked{vhost="sales",queue="orders"}`:              "10",
		`firemq_queue_consumers{vhost="sales",queue="orders"}`:                     "1",
		`firemq_queue_messages_delivered_total{vhost="sales",queue="orders"}`:      "11",
		"firemq_queue_messages_ready{vhost=\"/\",queue=\"a\\\"b\\\\c\\nd\uFFFD\"}": "0",
	} {
		if got := samples[series]; got != want {
			t.Errorf("%s %q, want %s", series, got, want)
		}
	}
	c.want(201, "PUT", "/queues/%2F/stamped", object{})
	c.want(200, "POST", "/exchanges/%2F/amq.default/publish", object{
		"routing_key": "stamped", "payload": "x", "payload_encoding": "string", "properties": object{"timestamp": 1234567890},
	})
	samples, _ = scrape(t, c, "/metrics/per-object")
	for series, want := range map[string]string{
		`rabbitmq_queue_messages_ready{vhost="sales",queue="orders"}`:                                             "1",
		`rabbitmq_queue_consumer_capacity{vhost="sales",queue="orders"}`:                                          "0.0",
		`rabbitmq_queue_head_message_timestamp{vhost="sales",queue="orders"}`:                                     "NaN",
		`rabbitmq_queue_head_message_timestamp{vhost="/",queue="stamped"}`:                                        "1234567890.0",
		`rabbitmq_queue_info{vhost="sales",queue="orders",queue_type="rabbit_classic_queue",membership="leader"}`: "1",
		`rabbitmq_connections`: "1",
	} {
		if got := samples[series]; got != want {
			t.Errorf("per object: %s %q, want %s", series, got, want)
		}
	}
	samples, families := scrape(t, c, "/metrics/detailed?family=queue_coarse_metrics&family=vhost_status&family=exchange_bindings&vhost=sales")
	for series, want := range map[string]string{
		`rabbitmq_detailed_queue_messages_ready{vhost="sales",queue="orders"}`:             "1",
		`rabbitmq_cluster_vhost_status{vhost="sales"}`:                                     "1",
		`rabbitmq_cluster_exchange_bindings{vhost="sales",exchange="events",type="topic"}`: "2",
	} {
		if got := samples[series]; got != want {
			t.Errorf("detailed: %s %q, want %s", series, got, want)
		}
	}
	if len(families) != 8 {
		t.Errorf("detailed: %v", families)
	}
	if _, families = scrape(t, c, "/metrics/detailed"); len(families) != 2 {
		t.Errorf("detailed without families: %v", families)
	}
	scrape(t, c, "/metrics/memory-breakdown")
	scrape(t, c, "/metrics/")
	if a := c.do("GET", "//metrics/nothing", nil); a.status != 404 || a.body != "Unknown Registry" {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := c.do("POST", "//metrics", nil); a.status != 405 {
		t.Errorf("POST: %d", a.status)
	}
}

// TestCountersLast: what a closed channel did is not forgotten.
func TestCountersLast(t *testing.T) {
	c := start(t)
	c.want(201, "PUT", "/queues/%2F/q", object{})
	for range 3 {
		c.want(200, "POST", "/exchanges/%2F/amq.default/publish", message("q", "x"))
	}
	samples, _ := scrape(t, c, "/metrics")
	for series, want := range map[string]string{
		`rabbitmq_global_messages_received_total{protocol="amqp091"}`: "3", `rabbitmq_connections_opened_total`: "0",
		`rabbitmq_channels_opened_total`: "0", `rabbitmq_global_publishers{protocol="amqp091"}`: "0",
	} {
		if got := samples[series]; got != want {
			t.Errorf("%s %q, want %s", series, got, want)
		}
	}
	x := get[object](c, "/exchanges/%2F/amq.default")
	if s, _ := x["message_stats"].(object); s["publish_in"] != 3.0 || s["publish_out"] != 3.0 {
		t.Errorf("%v", x)
	}
	if s, _ := get[object](c, "/vhosts/%2F")["message_stats"].(object); s["publish"] != 3.0 || s["confirm"] != 3.0 {
		t.Errorf("%v", s)
	}
}

// TestPauses: each reason for which a connection was paused is counted, alarms, too, and once each.
func TestPauses(t *testing.T) {
	c := start(t)
	ch := dial(t, c)
	paused := func(reason string) string {
		samples, _ := scrape(t, c, "/metrics")
		return samples[fmt.Sprintf("firemq_connection_pauses_total{reason=%q}", reason)]
	}
	for _, reason := range []string{"memory", "disk", "growth", "journal", "throttle", "room", "backlog", "held", "closing"} {
		if got := paused(reason); got != "0" {
			t.Errorf("%s: %q at the start", reason, got)
		}
	}
	for _, alarm := range []struct {
		reason string
		which  broker.Reason
	}{{"memory", broker.PauseMemory}, {"disk", broker.PauseDisk}} {
		c.s.ForceAlarm(alarm.which, true)
		waitFor(t, func() bool { // who publishes nothing is not paused
			if err := ch.PublishWithContext(t.Context(), "", "nowhere", false, false, amqp.Publishing{}); err != nil {
				t.Fatal(err)
			}
			return paused(alarm.reason) != "0"
		})
		c.s.ForceAlarm(alarm.which, false)
		waitFor(t, func() bool {
			r := c.s.Resources()
			return !r.MemoryAlarm && !r.DiskAlarm
		})
		if got := paused(alarm.reason); got != "1" {
			t.Errorf("%s: %s times", alarm.reason, got)
		}
	}
}
