// Command grafana writes firemq.json, a dashboard for Grafana, from the table of panels below: run
// "go generate ./deploy/grafana" after a change of it. test/prometheus asks a Prometheus server that scrapes
// a broker every query of it.
package main

//go:generate go run . firemq.json

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// row is a headline and the panels below it, left to right.
type row struct {
	title  string
	panels []panel
}

// panel is one diagram, or a number if its kind is "stat". A query's {i} stands for the instances chosen, {q}
// for those and the vhosts chosen.
type panel struct {
	kind, title, unit string
	help              string
	queries           []query
}

type query struct{ legend, expr string }

// one is the query of a panel with a single line.
func one(legend, expr string) []query { return []query{{legend, expr}} }

const (
	stat = "stat"
	line = "timeseries"

	count   = "short"
	rate    = "cps"
	bytesIn = "bytes"
	bytesPS = "Bps"
	seconds = "s"
	percent = "percentunit"
)

var rows = []row{
	{"Overview", []panel{
		{stat, "Ready", count, "Messages that wait for a consumer", one("", `sum(rabbitmq_queue_messages_ready{i})`)},
		{stat, "Unacknowledged", count, "Messages that consumers have", one("", `sum(rabbitmq_queue_messages_unacked{i})`)},
		{stat, "Published", rate, "", one("", `sum(rate(rabbitmq_global_messages_received_total{i}[$__rate_interval]))`)},
		{stat, "Delivered", rate, "", one("", `sum(rate(rabbitmq_global_messages_delivered_total{i}[$__rate_interval]))`)},
		{stat, "Connections", count, "", one("", `sum(rabbitmq_connections{i})`)},
		{stat, "Queues", count, "", one("", `sum(rabbitmq_queues{i})`)},
		{stat, "Consumers", count, "", one("", `sum(rabbitmq_consumers{i})`)},
		{stat, "Alarms", count, "Publishers are paused while there is one", one("",
			`sum(rabbitmq_alarms_memory_used_watermark{i}) + sum(rabbitmq_alarms_free_disk_space_watermark{i})`)},
	}},
	{"Messages", []panel{
		{line, "Published", rate, "What clients send; confirmed: what is safe on disk", []query{
			{"published {{protocol}}", `sum by (protocol) (rate(rabbitmq_global_messages_received_total{i}[$__rate_interval]))`},
			{"confirmed {{protocol}}", `sum by (protocol) (rate(rabbitmq_global_messages_confirmed_total{i}[$__rate_interval]))`},
		}},
		{line, "Delivered", rate, "", []query{
			{"manual ack", `sum(rate(rabbitmq_global_messages_delivered_consume_manual_ack_total{i}[$__rate_interval]))`},
			{"no ack", `sum(rate(rabbitmq_global_messages_delivered_consume_auto_ack_total{i}[$__rate_interval]))`},
			{"got, manual ack", `sum(rate(rabbitmq_global_messages_delivered_get_manual_ack_total{i}[$__rate_interval]))`},
			{"got, no ack", `sum(rate(rabbitmq_global_messages_delivered_get_auto_ack_total{i}[$__rate_interval]))`},
		}},
		{line, "Settled", rate, "Redelivered: what was not acknowledged and came again", []query{
			{"acknowledged", `sum(rate(rabbitmq_global_messages_acknowledged_total{i}[$__rate_interval]))`},
			{"redelivered", `sum(rate(rabbitmq_global_messages_redelivered_total{i}[$__rate_interval]))`},
		}},
		{line, "In queues", count, "", []query{
			{"ready", `sum(rabbitmq_queue_messages_ready{i})`},
			{"unacknowledged", `sum(rabbitmq_queue_messages_unacked{i})`},
			{"not due yet", `sum(firemq_queue_messages_delayed{q})`},
		}},
		{line, "Went nowhere", rate, "No binding matched: dropped, or returned to the publisher if mandatory", []query{
			{"dropped", `sum(rate(rabbitmq_global_messages_unroutable_dropped_total{i}[$__rate_interval]))`},
			{"returned", `sum(rate(rabbitmq_global_messages_unroutable_returned_total{i}[$__rate_interval]))`},
		}},
		{line, "Dead letters", rate, "By reason, dropped ones too", []query{
			{"queue full", `sum(rate(rabbitmq_global_messages_dead_lettered_maxlen_total{i}[$__rate_interval]))`},
			{"expired", `sum(rate(rabbitmq_global_messages_dead_lettered_expired_total{i}[$__rate_interval]))`},
			{"rejected", `sum(rate(rabbitmq_global_messages_dead_lettered_rejected_total{i}[$__rate_interval]))`},
			{"delivered too often", `sum(rate(rabbitmq_global_messages_dead_lettered_delivery_limit_total{i}[$__rate_interval]))`},
		}},
		{line, "Average size", bytesIn, "Of the bodies published", one("{{protocol}}",
			`sum by (protocol) (rate(rabbitmq_message_size_bytes_sum{i}[$__rate_interval])) / sum by (protocol) (rate(rabbitmq_message_size_bytes_count{i}[$__rate_interval]))`)},
		{line, "Repetitions", rate, "What queues that de-duplicate did not take again", one("{{vhost}} {{queue}}",
			`topk(10, rate(firemq_queue_messages_deduplicated_total{q}[$__rate_interval]))`)},
	}},
	{"Queues, the ten largest", []panel{
		{line, "Ready", count, "Grows steadily: its consumers do not keep up", one("{{vhost}} {{queue}}", `topk(10, firemq_queue_messages_ready{q})`)},
		{line, "Unacknowledged", count, "", one("{{vhost}} {{queue}}", `topk(10, firemq_queue_messages_unacked{q})`)},
		{line, "Published", rate, "", one("{{vhost}} {{queue}}", `topk(10, rate(firemq_queue_messages_published_total{q}[$__rate_interval]))`)},
		{line, "Delivered", rate, "", one("{{vhost}} {{queue}}", `topk(10, rate(firemq_queue_messages_delivered_total{q}[$__rate_interval]))`)},
		{line, "Acknowledged", rate, "", one("{{vhost}} {{queue}}", `topk(10, rate(firemq_queue_messages_acked_total{q}[$__rate_interval]))`)},
		{line, "Consumers", count, "", one("{{vhost}} {{queue}}", `topk(10, firemq_queue_consumers{q})`)},
	}},
	{"Clients", []panel{
		{line, "Connections", count, "Flow: not read for a moment; blocked: paused by an alarm", one("{{state}}", `sum by (state) (firemq_connections{i})`)},
		{line, "Connections opened and closed", rate, "", []query{
			{"opened", `sum(rate(rabbitmq_connections_opened_total{i}[$__rate_interval]))`},
			{"closed", `sum(rate(rabbitmq_connections_closed_total{i}[$__rate_interval]))`},
		}},
		{line, "Channels", count, "", []query{
			{"open", `sum(rabbitmq_channels{i})`},
			{"that publish", `sum(rabbitmq_global_publishers{i})`},
		}},
		{line, "Logins", rate, "", []query{
			{"succeeded", `sum(rate(rabbitmq_auth_attempts_succeeded_total{i}[$__rate_interval]))`},
			{"failed", `sum(rate(rabbitmq_auth_attempts_failed_total{i}[$__rate_interval]))`},
		}},
		{line, "Network", bytesPS, "", []query{
			{"received", `sum(rate(rabbitmq_connection_incoming_bytes_total{i}[$__rate_interval]))`},
			{"sent", `sum(rate(rabbitmq_connection_outgoing_bytes_total{i}[$__rate_interval]))`},
		}},
		{line, "Pauses", rate, "How often the publishes of a connection, or all that it sends, had to wait, by reason", one("{{reason}}",
			`sum by (reason) (rate(firemq_connection_pauses_total{i}[$__rate_interval]))`)},
		{line, "Network, all connections", bytesPS, "With those that are closed", []query{
			{"received", `sum(rate(firemq_network_received_bytes_total{i}[$__rate_interval]))`},
			{"sent", `sum(rate(firemq_network_sent_bytes_total{i}[$__rate_interval]))`},
		}},
		{line, "Bytes of a write", bytesIn, "How well answers are sent together", one("{{instance}}",
			`rate(firemq_network_sent_bytes_total{i}[$__rate_interval]) / rate(firemq_network_writes_total{i}[$__rate_interval])`)},
		{line, "Queues declared", rate, "", []query{
			{"created", `sum(rate(rabbitmq_queues_created_total{i}[$__rate_interval]))`},
			{"deleted", `sum(rate(rabbitmq_queues_deleted_total{i}[$__rate_interval]))`},
		}},
	}},
	{"Journal", []panel{
		{line, "Written", bytesPS, "", one("{{instance}}", `rate(firemq_journal_appended_bytes_total{i}[$__rate_interval])`)},
		{line, "Commits and syncs", rate, "Confirms wait for a sync; one serves all that came meanwhile", []query{
			{"commits {{instance}}", `rate(firemq_journal_commits_total{i}[$__rate_interval])`},
			{"syncs {{instance}}", `rate(firemq_journal_syncs_total{i}[$__rate_interval])`},
		}},
		{line, "Records of a commit", count, "How well the group commit groups", one("{{instance}}",
			`rate(firemq_journal_records_total{i}[$__rate_interval]) / rate(firemq_journal_commits_total{i}[$__rate_interval])`)},
		{line, "The last sync took", seconds, "", one("{{instance}}", `firemq_journal_last_sync_seconds{i}`)},
		{line, "Commits take", seconds, "Until a confirm can be sent", []query{
			{"half {{instance}}", `histogram_quantile(0.5, rate(firemq_journal_commit_seconds_bucket{i}[$__rate_interval]))`},
			{"99 % {{instance}}", `histogram_quantile(0.99, rate(firemq_journal_commit_seconds_bucket{i}[$__rate_interval]))`},
			{"99 % of the syncs {{instance}}", `histogram_quantile(0.99, rate(firemq_journal_sync_seconds_bucket{i}[$__rate_interval]))`},
		}},
		{line, "Size of a commit", bytesIn, "", []query{
			{"half {{instance}}", `histogram_quantile(0.5, rate(firemq_journal_commit_bytes_bucket{i}[$__rate_interval]))`},
			{"99 % {{instance}}", `histogram_quantile(0.99, rate(firemq_journal_commit_bytes_bucket{i}[$__rate_interval]))`},
		}},
		{line, "On disk", bytesIn, "", one("{{instance}}", `firemq_journal_bytes{i}`)},
		{line, "Messages in it", count, "", []query{
			{"not settled {{instance}}", `firemq_journal_live_records{i}`},
			{"files {{instance}}", `firemq_journal_segments{i}`},
		}},
	}},
	{"Resources", []panel{
		{line, "Memory", bytesIn, "At the limit publishers are paused", []query{
			{"resident {{instance}}", `rabbitmq_process_resident_memory_bytes{i}`},
			{"limit {{instance}}", `rabbitmq_resident_memory_limit_bytes{i}`},
		}},
		{line, "Memory by use", bytesIn, "", one("{{kind}}", `sum by (kind) (firemq_memory_bytes{i})`)},
		{line, "Disk", bytesIn, "At the limit publishers are paused", []query{
			{"free {{instance}}", `rabbitmq_disk_space_available_bytes{i}`},
			{"limit {{instance}}", `rabbitmq_disk_space_available_limit_bytes{i}`},
		}},
		{line, "Open files", percent, "Of those allowed", one("{{instance}}", `rabbitmq_process_open_fds{i} / rabbitmq_process_max_fds{i}`)},
		{line, "CPU", count, "Cores in use", one("{{instance}}", `rate(process_cpu_seconds_total{i}[$__rate_interval])`)},
		{line, "Event loops", percent, "Part of a core that each uses", one("{{instance}} {{loop}}",
			`rate(firemq_loop_busy_seconds_total{i}[$__rate_interval])`)},
		{line, "Turns of event loops", rate, "", one("{{instance}} {{loop}}", `rate(firemq_loop_turns_total{i}[$__rate_interval])`)},
		{line, "Buffers in use", count, "", one("{{use}}", `sum by (use) (firemq_pool_lent_buffers{i})`)},
		{line, "Buffers allocated", rate, "None was left to reuse, or they are too large to be kept", one("{{reason}}",
			`sum by (reason) (rate(firemq_pool_misses_total{i}[$__rate_interval]))`)},
		{line, "Garbage collection", percent, "Part of the CPU time", one("{{instance}}",
			`rate(go_gc_cpu_seconds_total{i}[$__rate_interval]) / rate(process_cpu_seconds_total{i}[$__rate_interval])`)},
		{line, "Goroutines", count, "", one("{{instance}}", `go_goroutines{i}`)},
		{line, "Firehose", rate, "Copies of messages of traced vhosts", []query{
			{"copied", `sum(rate(firemq_firehose_messages_total{i}[$__rate_interval]))`},
			{"not copied", `sum(rate(firemq_firehose_messages_dropped_total{i}[$__rate_interval]))`},
		}},
		{line, "Spans", rate, "Of messages, to the OpenTelemetry collector", []query{
			{"exported", `sum(rate(firemq_trace_spans_exported_total{i}[$__rate_interval]))`},
			{"dropped", `sum(rate(firemq_trace_spans_dropped_total{i}[$__rate_interval]))`},
		}},
	}},
}

// Places in Grafana's grid, which is 24 wide.
const (
	width      = 24
	statWidth  = 3
	statHeight = 4
	lineWidth  = 12
	lineHeight = 8
)

type object = map[string]any

var source = object{"type": "prometheus", "uid": "${datasource}"}

var labels = strings.NewReplacer("{i}", `{instance=~"$instance"}`, "{q}", `{instance=~"$instance", vhost=~"$vhost"}`)

// dashboard lays the rows out.
func dashboard(rows []row) object {
	var panels []object
	id, y := 0, 0
	add := func(p object, x, w, h int) {
		id++
		p["id"], p["gridPos"] = id, object{"x": x, "y": y, "w": w, "h": h}
		panels = append(panels, p)
	}
	for _, r := range rows {
		add(object{"type": "row", "title": r.title, "collapsed": false, "panels": []object{}}, 0, width, 1)
		y++
		x, high := 0, 0
		for _, p := range r.panels {
			w, h := lineWidth, lineHeight
			if p.kind == stat {
				w, h = statWidth, statHeight
			}
			if x+w > width {
				x, y = 0, y+high
			}
			add(p.object(), x, w, h)
			x, high = x+w, h
		}
		y += high
	}
	variable := func(name, query string) object {
		return object{
			"name": name, "type": "query", "datasource": source, "query": query, "definition": query,
			"multi": true, "includeAll": true, "allValue": ".*", "current": object{"text": "All", "value": "$__all"},
			"refresh": 2, "sort": 1,
		}
	}
	return object{
		"uid": "firemq", "title": "FireMQ", "tags": []string{"firemq"}, "schemaVersion": 39, "version": 1,
		"editable": true, "graphTooltip": 1, "refresh": "15s", "time": object{"from": "now-1h", "to": "now"},
		"templating": object{"list": []object{
			{"name": "datasource", "type": "datasource", "query": "prometheus"},
			variable("instance", "label_values(rabbitmq_identity_info, instance)"),
			variable("vhost", `label_values(firemq_queue_messages_ready{instance=~"$instance"}, vhost)`),
		}},
		"panels": panels,
	}
}

func (p *panel) object() object {
	var targets []object
	for i, q := range p.queries {
		targets = append(targets, object{
			"refId": string(rune('A' + i)), "datasource": source, "expr": labels.Replace(q.expr), "legendFormat": q.legend,
		})
	}
	o := object{
		"type": p.kind, "title": p.title, "description": p.help, "datasource": source, "targets": targets,
		"fieldConfig": object{"defaults": object{"unit": p.unit}, "overrides": []object{}},
	}
	if p.kind == stat {
		o["options"] = object{"reduceOptions": object{"calcs": []string{"lastNotNull"}}}
	} else {
		o["options"] = object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi"}}
	}
	return o
}

// render is the file's content.
func render() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(dashboard(rows))
	return b.Bytes(), err
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: grafana FILE")
		os.Exit(2)
	}
	content, err := render()
	if err == nil {
		err = os.WriteFile(os.Args[1], content, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
