package mgmt

import (
	"bufio"
	"math"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/queue"
)

// Metrics in Prometheus' text format, under the names of RabbitMQ's plugin, so that its dashboards work, and
// some of FireMQ's own. docs/metrics.md lists them.
//
//	/metrics                   sums over all objects; firemq_queue_* a queue
//	/metrics/per-object        the same families with a series for each queue, channel, connection and exchange
//	/metrics/detailed          the families that the query names, prefix rabbitmq_detailed_
//	/metrics/memory-breakdown  what memory is used for
//
// A family's series come together. The objects are read once for a scrape and written family by family.

// registry is one of the endpoints.
type registry struct {
	endpoint string // label rabbitmq_endpoint
	prefix   string // of the object families
	objects  bool   // a series for each object
	// families picks object families; nil: all.
	families []string
	vhosts   []string       // only these; nil: all
	queue    *regexp.Regexp // only these; nil: all
}

func (g *registry) has(family string) bool {
	return g.families == nil || slices.Contains(g.families, family)
}

func (g *registry) hasVHost(v string) bool { return g.vhosts == nil || slices.Contains(g.vhosts, v) }

// serveMetrics answers a scrape; path is what follows /metrics.
func (s *Server) serveMetrics(c *fasthttp.RequestCtx, path string) {
	g := &registry{prefix: "rabbitmq_"}
	switch path {
	case "":
		g.endpoint = "aggregated"
	case "/per-object":
		g.endpoint, g.objects = "per-object", true
	case "/detailed":
		g.endpoint, g.prefix, g.objects = "detailed", "rabbitmq_detailed_", true
		g.families = []string{}
		for _, f := range c.QueryArgs().PeekMulti("family") {
			g.families = append(g.families, string(f))
		}
		for _, v := range c.QueryArgs().PeekMulti("vhost") {
			g.vhosts = append(g.vhosts, string(v))
		}
		if pattern := c.QueryArgs().Peek("queue"); len(pattern) > 0 {
			re, err := regexp.Compile(string(pattern))
			if err != nil || len(pattern) > maxPattern {
				c.Error("queue is no regular expression\n", fasthttp.StatusBadRequest)
				return
			}
			g.queue = re
		}
	case "/memory-breakdown":
		g.endpoint = "memory-breakdown"
	default:
		c.Error("Unknown Registry", fasthttp.StatusNotFound)
		return
	}
	c.SetContentType("text/plain; version=0.0.4; charset=utf-8")
	c.SetBodyStreamWriter(func(w *bufio.Writer) {
		e := &exposition{w: w}
		s.writeMetrics(e, g)
		e.flush()
	})
}

func (s *Server) writeMetrics(e *exposition, g *registry) {
	s.writeIdentity(e, g)
	if g.endpoint == "memory-breakdown" {
		s.writeMemory(e)
		return
	}
	detailed := g.families != nil
	if !detailed || g.has("connection_churn_metrics") {
		s.writeChurn(e, g.prefix)
	}
	if !detailed || g.has("node_coarse_metrics") || g.has("node_metrics") || g.has("node_persister_metrics") {
		s.writeNode(e, g.prefix)
	}
	if !detailed || g.has("auth_attempt_metrics") {
		s.writeLogins(e, g.prefix)
	}
	if !detailed {
		s.writeTotals(e)
		s.writeGlobal(e)
		s.writeOwn(e)
		s.writeOwnMemory(e)
		s.writeStates(e)
	}
	s.writeQueues(e, g)
	s.writeChannels(e, g)
	s.writeConnections(e, g)
	s.writeExchanges(e, g)
	if detailed {
		s.writeCluster(e, g)
	}
}

// exposition writes families. Its buffer is handed on in pieces, so that a scrape of many queues takes no more
// memory than one of few.
type exposition struct {
	w   *bufio.Writer
	buf []byte
}

const expositionPiece = 64 << 10

func (e *exposition) flush() {
	e.w.Write(e.buf) // a client that went away is noticed by fasthttp
	e.buf = e.buf[:0]
}

// family begins a family.
func (e *exposition) family(name, kind, help string) {
	if len(e.buf) > expositionPiece {
		e.flush()
	}
	e.buf = append(e.buf, "# TYPE "...)
	e.buf = append(e.buf, name...)
	e.buf = append(append(e.buf, ' '), kind...)
	e.buf = append(append(e.buf, "\n# HELP "...), name...)
	e.buf = append(append(append(e.buf, ' '), help...), '\n')
}

// series begins a line; labels are "" or in braces.
func (e *exposition) series(name, labels string) {
	if len(e.buf) > expositionPiece {
		e.flush()
	}
	e.buf = append(e.buf, name...)
	e.buf = append(append(e.buf, labels...), ' ')
}

func (e *exposition) int(name, labels string, v int64) {
	e.series(name, labels)
	e.buf = append(strconv.AppendInt(e.buf, v, 10), '\n')
}

func (e *exposition) float(name, labels string, v float64) {
	e.series(name, labels)
	if math.IsNaN(v) {
		e.buf = append(e.buf, "NaN\n"...)
		return
	}
	e.buf = append(appendFloat(e.buf, v), '\n')
}

// one is a family of one series.
func (e *exposition) one(name, kind, help string, v int64) {
	e.family(name, kind, help)
	e.int(name, "", v)
}

// labels are pairs of name and value in braces.
func labels(pairs ...string) string { return string(appendLabels(nil, pairs...)) }

func appendLabels(dst []byte, pairs ...string) []byte {
	dst = append(dst, '{')
	for i := 0; i < len(pairs); i += 2 {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(dst, pairs[i]...), '=', '"')
		dst = append(appendLabelValue(dst, pairs[i+1]), '"')
	}
	return append(dst, '}')
}

// appendLabelValue escapes; bytes that are no UTF-8 would make the whole scrape invalid and are replaced.
func appendLabelValue(dst []byte, s string) []byte {
	for _, r := range s {
		switch r {
		case '\\', '"':
			dst = append(dst, '\\', byte(r))
		case '\n':
			dst = append(dst, '\\', 'n')
		default:
			dst = append(dst, string(r)...)
		}
	}
	return dst
}

func (s *Server) writeIdentity(e *exposition, g *registry) {
	e.family("rabbitmq_identity_info", "untyped", "RabbitMQ node & cluster identity info")
	e.int("rabbitmq_identity_info", labels("rabbitmq_node", s.opt.Node, "rabbitmq_cluster", s.clusterName(),
		"rabbitmq_cluster_permanent_id", s.clusterID(), "rabbitmq_endpoint", g.endpoint), 1)
	e.family("rabbitmq_build_info", "untyped", "RabbitMQ & Erlang/OTP version info")
	e.int("rabbitmq_build_info", labels("rabbitmq_version", compatibleVersion, "prometheus_plugin_version", compatibleVersion,
		"prometheus_client_version", s.opt.Version, "erlang_version", runtime.Version(),
		"product_name", "FireMQ", "product_version", s.opt.Version), 1)
}

func (s *Server) writeChurn(e *exposition, p string) {
	n := s.opt.Broker.Counters()
	e.one(p+"connections_opened_total", "counter", "Total number of connections opened", int64(n.ConnectionsOpened.Load()))
	e.one(p+"connections_closed_total", "counter", "Total number of connections closed or terminated", int64(n.ConnectionsClosed.Load()))
	e.one(p+"channels_opened_total", "counter", "Total number of channels opened", int64(n.ChannelsOpened.Load()))
	e.one(p+"channels_closed_total", "counter", "Total number of channels closed", int64(n.ChannelsClosed.Load()))
	e.one(p+"queues_declared_total", "counter", "Total number of queues declared", int64(n.QueuesDeclared.Load()))
	e.one(p+"queues_created_total", "counter", "Total number of queues created", int64(n.QueuesCreated.Load()))
	e.one(p+"queues_deleted_total", "counter", "Total number of queues deleted", int64(n.QueuesDeleted.Load()))
}

func (s *Server) writeNode(e *exposition, p string) {
	m := s.machine()
	e.one(p+"process_open_fds", "gauge", "Open file descriptors", int64(m.filesOpen))
	e.one(p+"process_max_fds", "gauge", "Open file descriptors limit", int64(m.filesMax))
	e.one(p+"process_open_tcp_sockets", "gauge", "Open TCP sockets", int64(len(s.opt.Broker.Connections())))
	e.one(p+"process_max_tcp_sockets", "gauge", "Open TCP sockets limit", int64(m.filesMax))
	e.one(p+"process_resident_memory_bytes", "gauge", "Memory used in bytes", int64(m.resident))
	e.one(p+"resident_memory_limit_bytes", "gauge", "Memory high watermark in bytes", int64(m.memoryLimit))
	e.one(p+"disk_space_available_bytes", "gauge", "Disk space available in bytes", int64(m.diskFree))
	e.one(p+"disk_space_available_limit_bytes", "gauge", "Free disk space low watermark in bytes", int64(m.diskLimit))
	e.family(p+"erlang_uptime_seconds", "gauge", "Node uptime")
	e.float(p+"erlang_uptime_seconds", "", time.Since(s.started).Seconds())
	e.one(p+"erlang_processes_used", "gauge", "Goroutines", int64(runtime.NumGoroutine()))
	e.one(p+"unreachable_cluster_peers_count", "gauge", "Number of peers in the cluster the current node cannot reach.", 0)
	if j, ok := s.opt.Broker.JournalStats(); ok {
		e.one(p+"io_write_bytes_total", "counter", "Bytes appended to the journal", j.Appended)
		e.one(p+"io_sync_ops_total", "counter", "Syncs of the journal", j.Syncs)
	}
	bit := func(b bool) int64 {
		if b {
			return 1
		}
		return 0
	}
	e.one(p+"alarms_file_descriptor_limit", "untyped", "is 1 if file descriptor limit alarm is in effect", 0)
	e.one(p+"alarms_free_disk_space_watermark", "untyped", "is 1 if free disk space watermark alarm is in effect", bit(m.diskAlarm))
	e.one(p+"alarms_memory_used_watermark", "untyped", "is 1 if VM memory watermark alarm is in effect", bit(m.memoryAlarm))
}

func (s *Server) writeLogins(e *exposition, p string) {
	logins := s.opt.Broker.Logins()
	for _, f := range []struct {
		name, help string
		value      func(*broker.LoginAttempts) uint64
	}{
		{"auth_attempts_total", "Total number of authorization attempts",
			func(n *broker.LoginAttempts) uint64 { return n.Succeeded.Load() + n.Failed.Load() }},
		{"auth_attempts_succeeded_total", "Total number of successful authentication attempts",
			func(n *broker.LoginAttempts) uint64 { return n.Succeeded.Load() }},
		{"auth_attempts_failed_total", "Total number of failed authentication attempts",
			func(n *broker.LoginAttempts) uint64 { return n.Failed.Load() }},
	} {
		e.family(p+f.name, "counter", f.help)
		for _, protocol := range sortedKeys(logins) {
			e.int(p+f.name, labels("protocol", label(protocol)), int64(f.value(logins[protocol])))
		}
	}
}

func (s *Server) writeTotals(e *exposition) {
	t := s.opt.Broker.Totals()
	e.one("rabbitmq_connections", "gauge", "Connections currently open", int64(t.Connections))
	e.one("rabbitmq_channels", "gauge", "Channels currently open", int64(t.Channels))
	e.one("rabbitmq_consumers", "gauge", "Consumers currently connected", int64(t.Consumers))
	e.one("rabbitmq_queues", "gauge", "Queues available", int64(t.Queues))
}

// measured is a counter of messages with the protocol they came by.
type measured struct {
	name, help string
	value      func(*broker.MessageStats) uint64
}

var byProtocol = []measured{
	{"messages_received_total", "Total number of messages received from publishers", func(s *broker.MessageStats) uint64 { return s.Publish }},
	{"messages_received_confirm_total", "Total number of messages received from publishers expecting confirmations", func(s *broker.MessageStats) uint64 { return s.PublishConfirm }},
	{"messages_routed_total", "Total number of messages routed to queues or streams", func(s *broker.MessageStats) uint64 { return s.Routed }},
	{"messages_unroutable_dropped_total", "Total number of messages published as non-mandatory into an exchange and dropped as unroutable", func(s *broker.MessageStats) uint64 { return s.DropUnroutable }},
	{"messages_unroutable_returned_total", "Total number of messages published as mandatory into an exchange and returned to the publisher as unroutable", func(s *broker.MessageStats) uint64 { return s.ReturnUnroutable }},
	{"messages_confirmed_total", "Total number of messages confirmed to publishers", func(s *broker.MessageStats) uint64 { return s.Confirm }},
}

var byQueueType = []measured{
	{"messages_delivered_total", "Total number of messages delivered to consumers", (*broker.MessageStats).Delivered},
	{"messages_delivered_consume_manual_ack_total", "Total number of messages delivered to consumers using basic.consume with manual acknowledgment", func(s *broker.MessageStats) uint64 { return s.Deliver }},
	{"messages_delivered_consume_auto_ack_total", "Total number of messages delivered to consumers using basic.consume with automatic acknowledgment", func(s *broker.MessageStats) uint64 { return s.DeliverNoAck }},
	{"messages_delivered_get_manual_ack_total", "Total number of messages delivered to consumers using basic.get with manual acknowledgment", func(s *broker.MessageStats) uint64 { return s.Get }},
	{"messages_delivered_get_auto_ack_total", "Total number of messages delivered to consumers using basic.get with automatic acknowledgment", func(s *broker.MessageStats) uint64 { return s.GetNoAck }},
	{"messages_get_empty_total", "Total number of times basic.get operations fetched no message", func(s *broker.MessageStats) uint64 { return s.GetEmpty }},
	{"messages_redelivered_total", "Total number of messages redelivered to consumers", func(s *broker.MessageStats) uint64 { return s.Redeliver }},
	{"messages_acknowledged_total", "Total number of messages acknowledged by consumers", func(s *broker.MessageStats) uint64 { return s.Ack }},
}

// queueTypeLabels are the values of queue_type. All queues here count as the first; the others are there at 0
// because panels add up counters that must have the same labels.
var queueTypeLabels = [...]string{"rabbit_classic_queue", "rabbit_quorum_queue", "rabbit_stream_queue"}

// wires are the protocols that messages come by.
var wires = [...]string{"AMQP 0-9-1", "FMQ1"}

func (s *Server) writeGlobal(e *exposition) {
	const p = "rabbitmq_global_"
	t := s.opt.Broker.Traffic()
	of := func(wire string) *broker.MessageStats {
		if n := t.Protocols[wire]; n != nil {
			return n
		}
		return new(broker.MessageStats)
	}
	for _, f := range byProtocol {
		e.family(p+f.name, "counter", f.help)
		for _, w := range wires {
			e.int(p+f.name, labels("protocol", label(w)), int64(f.value(of(w))))
		}
	}
	for _, f := range []struct {
		name, help string
		value      map[string]int
	}{
		{"publishers", "Current number of publishers", t.Publishers},
		{"consumers", "Current number of consumers", t.Consumers},
	} {
		e.family(p+f.name, "gauge", f.help)
		for _, w := range wires {
			e.int(p+f.name, labels("protocol", label(w)), int64(f.value[w]))
		}
	}
	for _, f := range byQueueType {
		e.family(p+f.name, "counter", f.help)
		for _, w := range wires {
			for i, kind := range queueTypeLabels {
				v := int64(0)
				if i == 0 {
					v = int64(f.value(of(w)))
				}
				e.int(p+f.name, labels("protocol", label(w), "queue_type", kind), v)
			}
		}
	}
	dead := &s.opt.Broker.Counters().Dead
	for _, f := range []struct {
		name   string
		reason queue.Reason
		help   string
	}{
		{"maxlen", queue.MaxLen, "Total number of messages dead-lettered due to overflow drop-head or reject-publish-dlx"},
		{"expired", queue.Expired, "Total number of messages dead-lettered due to message TTL exceeded"},
		{"rejected", queue.Rejected, "Total number of messages dead-lettered due to basic.reject or basic.nack"},
		{"delivery_limit", queue.DeliveryLimit, "Total number of messages dead-lettered due to delivery-limit exceeded"},
	} {
		name := p + "messages_dead_lettered_" + f.name + "_total"
		e.family(name, "counter", f.help)
		for strategy, l := range [...]string{"disabled", "at_most_once"} {
			e.int(name, labels("queue_type", queueTypeLabels[0], "dead_letter_strategy", l), int64(dead[strategy][f.reason].Load()))
			e.int(name, labels("queue_type", queueTypeLabels[1], "dead_letter_strategy", l), 0)
		}
	}
	const size = "rabbitmq_message_size_bytes"
	e.family(size, "histogram", "Size of messages received from publishers")
	for _, w := range wires {
		n, sum := of(w), uint64(0)
		for i, le := range sizeLabels {
			sum += n.Sizes[i]
			e.int(size+"_bucket", labels("protocol", label(w), "le", le), int64(sum))
		}
		e.int(size+"_count", labels("protocol", label(w)), int64(sum))
		e.int(size+"_sum", labels("protocol", label(w)), int64(n.Bytes))
	}
}

// sizeLabels spell broker.SizeBounds as RabbitMQ's dashboard does.
var sizeLabels = [...]string{"100.0", "1000.0", "10000.0", "100000.0", "1e+06", "1e+07", "5e+07", "1e+08", "+Inf"}

// writeOwn writes what RabbitMQ does not have.
func (s *Server) writeOwn(e *exposition) {
	if j, ok := s.opt.Broker.JournalStats(); ok {
		e.one("firemq_journal_segments", "gauge", "Files in the journal", int64(j.Segments))
		e.one("firemq_journal_bytes", "gauge", "Disk taken by the journal's files", j.Bytes)
		e.one("firemq_journal_live_records", "gauge", "Messages in the journal that are not settled", j.Live)
		e.one("firemq_journal_records_total", "counter", "Records appended", j.Records)
		e.one("firemq_journal_appended_bytes_total", "counter", "Bytes appended", j.Appended)
		e.one("firemq_journal_commits_total", "counter", "Group commits", j.Commits)
		e.one("firemq_journal_syncs_total", "counter", "Syncs to disk", j.Syncs)
		e.family("firemq_journal_last_sync_seconds", "gauge", "How long the last sync took")
		e.float("firemq_journal_last_sync_seconds", "", j.LastSync.Seconds())
	}
	c := s.opt.Broker.Counters()
	e.one("firemq_firehose_messages_total", "counter", "Messages copied to amq.rabbitmq.trace", int64(c.Traced.Load()))
	e.one("firemq_firehose_messages_dropped_total", "counter", "Messages of traced vhosts that were not copied because of an alarm", int64(c.TraceDropped.Load()))
	if s.opt.Spans != nil {
		x := s.opt.Spans()
		e.one("firemq_trace_spans_exported_total", "counter", "Spans that the collector took", int64(x.Exported))
		e.one("firemq_trace_spans_dropped_total", "counter", "Spans that were not exported: no room was left for them, or the collector did not take them", int64(x.Dropped))
		e.one("firemq_trace_export_failures_total", "counter", "Requests to the collector that failed", int64(x.Failures))
		e.one("firemq_trace_spans_waiting_bytes", "gauge", "Spans that wait to be exported", int64(x.Waiting))
	}
	e.flush()
	metrics.WriteProcessMetrics(e.w)
}

// queueRow is one queue of a scrape.
type queueRow struct {
	labels string
	broker.QueueCounts
	head broker.Head
	now  int64 // Unix ms
}

// age is how long the oldest ready message has waited.
func (q *queueRow) age() time.Duration {
	if q.head.Oldest == 0 {
		return 0
	}
	return time.Duration(max(q.now-q.head.Oldest, 0)) * time.Millisecond
}

func (q *queueRow) capacity() float64 {
	if q.Consumers > 0 && q.Ready == 0 {
		return 1
	}
	return 0
}

// queueFamily is one number of queues.
type queueFamily struct {
	family, name, kind, help string
	value                    func(*queueRow) int64
}

var queueFamilies = []queueFamily{
	{"queue_coarse_metrics", "queue_messages_ready", "gauge", "Messages ready to be delivered to consumers", func(q *queueRow) int64 { return int64(q.Ready) }},
	{"queue_coarse_metrics", "queue_messages_unacked", "gauge", "Messages delivered to consumers but not yet acknowledged", func(q *queueRow) int64 { return int64(q.Unacked) }},
	{"queue_coarse_metrics", "queue_messages", "gauge", "Sum of ready and unacknowledged messages - total queue depth", func(q *queueRow) int64 { return int64(q.Ready + q.Unacked) }},
	{"queue_consumer_count", "queue_consumers", "gauge", "Consumers on a queue", func(q *queueRow) int64 { return int64(q.QueueCounts.Consumers) }},
	{"queue_metrics", "queue_messages_ram", "gauge", "Ready and unacknowledged messages stored in memory", func(q *queueRow) int64 { return int64(q.Ready + q.Unacked) }},
	{"queue_metrics", "queue_messages_ram_bytes", "gauge", "Size of ready and unacknowledged messages stored in memory", func(q *queueRow) int64 { return q.ReadyBytes + q.UnackedBytes }},
	{"queue_metrics", "queue_messages_ready_ram", "gauge", "Ready messages stored in memory", func(q *queueRow) int64 { return int64(q.Ready) }},
	{"queue_metrics", "queue_messages_unacked_ram", "gauge", "Unacknowledged messages stored in memory", func(q *queueRow) int64 { return int64(q.Unacked) }},
	{"queue_metrics", "queue_messages_persistent", "gauge", "Persistent messages", func(q *queueRow) int64 { return int64(q.Persistent) }},
	{"queue_metrics", "queue_messages_persistent_bytes", "gauge", "Size in bytes of persistent messages", func(q *queueRow) int64 { return q.PersistentBytes }},
	{"queue_metrics", "queue_messages_bytes", "gauge", "Size in bytes of ready and unacknowledged messages", func(q *queueRow) int64 { return q.ReadyBytes + q.UnackedBytes }},
	{"queue_metrics", "queue_messages_ready_bytes", "gauge", "Size in bytes of ready messages", func(q *queueRow) int64 { return q.ReadyBytes }},
	{"queue_metrics", "queue_messages_unacked_bytes", "gauge", "Size in bytes of all unacknowledged messages", func(q *queueRow) int64 { return q.UnackedBytes }},
	{"queue_metrics", "queue_process_memory_bytes", "gauge", "About the memory of a queue and its messages", func(q *queueRow) int64 { return queueMemory(&q.QueueCounts) }},
	{"queue_delivery_metrics", "queue_messages_published_total", "counter", "Total number of messages published into a queue through an exchange on a channel", func(q *queueRow) int64 { return int64(q.Stats.Publish) }},
	{"queue_delivery_metrics", "queue_get_ack_total", "counter", "Total number of messages fetched from a queue with basic.get in manual acknowledgement mode", func(q *queueRow) int64 { return int64(q.Stats.Get) }},
	{"queue_delivery_metrics", "queue_get_total", "counter", "Total number of messages fetched from a queue with basic.get in automatic acknowledgement mode", func(q *queueRow) int64 { return int64(q.Stats.GetNoAck) }},
	{"queue_delivery_metrics", "queue_messages_delivered_ack_total", "counter", "Total number of messages delivered from a queue in manual acknowledgement mode", func(q *queueRow) int64 { return int64(q.Stats.Deliver) }},
	{"queue_delivery_metrics", "queue_messages_delivered_total", "counter", "Total number of messages delivered from a queue in automatic acknowledgement mode", func(q *queueRow) int64 { return int64(q.Stats.DeliverNoAck) }},
	{"queue_delivery_metrics", "queue_messages_redelivered_total", "counter", "Total number of messages redelivered from a queue", func(q *queueRow) int64 { return int64(q.Stats.Redeliver) }},
	{"queue_delivery_metrics", "queue_messages_acked_total", "counter", "Total number of messages of a queue acknowledged by consumers", func(q *queueRow) int64 { return int64(q.Stats.Ack) }},
	{"queue_delivery_metrics", "queue_get_empty_total", "counter", "Total number of times basic.get operations found a queue empty", func(q *queueRow) int64 { return int64(q.Stats.GetEmpty) }},
}

// ownQueueFamilies are there for each queue in the aggregated registry too.
var ownQueueFamilies = []queueFamily{
	{"", "firemq_queue_messages_ready", "gauge", "Messages ready in a queue", func(q *queueRow) int64 { return int64(q.Ready) }},
	{"", "firemq_queue_messages_unacked", "gauge", "Messages of a queue that are delivered and not acknowledged", func(q *queueRow) int64 { return int64(q.Unacked) }},
	{"", "firemq_queue_messages_delayed", "gauge", "Messages of a queue that are not due yet", func(q *queueRow) int64 { return int64(q.Delayed) }},
	{"", "firemq_queue_consumers", "gauge", "Consumers of a queue", func(q *queueRow) int64 { return int64(q.QueueCounts.Consumers) }},
	{"", "firemq_queue_messages_published_total", "counter", "Messages published into a queue", func(q *queueRow) int64 { return int64(q.Stats.Publish) }},
	{"", "firemq_queue_messages_delivered_total", "counter", "Messages delivered or got from a queue", func(q *queueRow) int64 { return int64(q.Stats.Delivered()) }},
	{"", "firemq_queue_messages_acked_total", "counter", "Messages of a queue that were acknowledged", func(q *queueRow) int64 { return int64(q.Stats.Ack) }},
	{"", "firemq_queue_messages_deduplicated_total", "counter", "Repetitions that a queue did not take again", func(q *queueRow) int64 { return int64(q.Stats.Duplicate) }},
}

// queueRows reads every queue that the registry shows.
func (s *Server) queueRows(g *registry) []queueRow {
	var rows []queueRow
	var text []byte // of all labels, so that they take one piece of memory
	var ends []int
	now := time.Now().UnixMilli()
	for _, v := range s.opt.Broker.VHosts() {
		if !g.hasVHost(v) {
			continue
		}
		for _, q := range s.opt.Broker.Queues(v) {
			if g.queue != nil && !g.queue.MatchString(q.Name()) {
				continue
			}
			text = appendLabels(text, "vhost", v, "queue", q.Name())
			ends = append(ends, len(text))
			rows = append(rows, queueRow{QueueCounts: q.Counts(), head: q.Head(), now: now})
		}
	}
	all, at := string(text), 0
	for i := range rows {
		rows[i].labels = all[at:ends[i]]
		at = ends[i]
	}
	return rows
}

func (s *Server) writeQueues(e *exposition, g *registry) {
	if g.families != nil && !slices.ContainsFunc(queueFamilies, func(f queueFamily) bool { return g.has(f.family) }) {
		return
	}
	rows := s.queueRows(g)
	for i := range queueFamilies {
		if f := &queueFamilies[i]; g.has(f.family) {
			writeRows(e, g.prefix+f.name, f.kind, f.help, rows, g.objects, f.value, func(q *queueRow) string { return q.labels })
		}
	}
	if g.has("queue_metrics") {
		for _, f := range [...][2]string{{"queue_consumer_capacity", "Consumer capacity"}, {"queue_consumer_utilisation", "Same as consumer capacity"}} {
			name := g.prefix + f[0]
			e.family(name, "gauge", f[1])
			sum := 0.0
			for i := range rows {
				if g.objects {
					e.float(name, rows[i].labels, rows[i].capacity())
				}
				sum += rows[i].capacity()
			}
			if !g.objects {
				e.float(name, "", sum)
			}
		}
	}
	if g.families == nil {
		for i := range ownQueueFamilies {
			f := &ownQueueFamilies[i]
			writeRows(e, f.name, f.kind, f.help, rows, true, f.value, func(q *queueRow) string { return q.labels })
		}
		const age = "firemq_queue_oldest_message_age_seconds"
		e.family(age, "gauge", "Since when the oldest ready message of a queue waits, 0 without one")
		for i := range rows {
			e.float(age, rows[i].labels, rows[i].age().Seconds())
		}
	}
}

// writeRows writes one family: a series for each row, or their sum.
func writeRows[T any](e *exposition, name, kind, help string, rows []T, objects bool, value func(*T) int64, labels func(*T) string) {
	e.family(name, kind, help)
	sum := int64(0)
	for i := range rows {
		v := value(&rows[i])
		if objects {
			e.int(name, labels(&rows[i]), v)
		}
		sum += v
	}
	if !objects {
		e.int(name, "", sum)
	}
}

// rowFamily is one number of channels or connections or exchanges.
type rowFamily[T any] struct {
	family, name, kind, help string
	value                    func(*T) int64
}

var channelFamilies = []rowFamily[broker.ChannelView]{
	{"channel_metrics", "channel_consumers", "gauge", "Consumers on a channel", func(c *broker.ChannelView) int64 { return int64(c.Consumers) }},
	{"channel_metrics", "channel_messages_unacked", "gauge", "Delivered but not yet acknowledged messages", func(c *broker.ChannelView) int64 { return int64(c.Unacked) }},
	{"channel_metrics", "channel_messages_unconfirmed", "gauge", "Published but not yet confirmed messages", func(c *broker.ChannelView) int64 { return int64(c.Unconfirmed) }},
	{"channel_metrics", "channel_messages_uncommitted", "gauge", "Messages received in a transaction but not yet committed", func(c *broker.ChannelView) int64 { return int64(c.TxPublishes) }},
	{"channel_metrics", "channel_acks_uncommitted", "gauge", "Message acknowledgements in a transaction not yet committed", func(c *broker.ChannelView) int64 { return int64(c.TxOps) }},
	{"channel_metrics", "consumer_prefetch", "gauge", "Limit of unacknowledged messages for each consumer", func(c *broker.ChannelView) int64 { return int64(c.Prefetch) }},
	{"channel_metrics", "channel_prefetch", "gauge", "Total limit of unacknowledged messages for all consumers on a channel", func(c *broker.ChannelView) int64 { return c.Limit }},
	{"channel_exchange_metrics", "channel_messages_published_total", "counter", "Total number of messages published into an exchange on a channel", func(c *broker.ChannelView) int64 { return int64(c.Stats.Publish) }},
	{"channel_exchange_metrics", "channel_messages_confirmed_total", "counter", "Total number of messages published into an exchange and confirmed on the channel", func(c *broker.ChannelView) int64 { return int64(c.Stats.Confirm) }},
	{"channel_exchange_metrics", "channel_messages_unroutable_returned_total", "counter", "Total number of messages published as mandatory into an exchange and returned to the publisher as unroutable", func(c *broker.ChannelView) int64 { return int64(c.Stats.ReturnUnroutable) }},
	{"channel_exchange_metrics", "channel_messages_unroutable_dropped_total", "counter", "Total number of messages published as non-mandatory into an exchange and dropped as unroutable", func(c *broker.ChannelView) int64 { return int64(c.Stats.DropUnroutable) }},
	{"channel_queue_metrics", "channel_get_ack_total", "counter", "Total number of messages fetched with basic.get in manual acknowledgement mode", func(c *broker.ChannelView) int64 { return int64(c.Stats.Get) }},
	{"channel_queue_metrics", "channel_get_total", "counter", "Total number of messages fetched with basic.get in automatic acknowledgement mode", func(c *broker.ChannelView) int64 { return int64(c.Stats.GetNoAck) }},
	{"channel_queue_metrics", "channel_messages_delivered_ack_total", "counter", "Total number of messages delivered to consumers in manual acknowledgement mode", func(c *broker.ChannelView) int64 { return int64(c.Stats.Deliver) }},
	{"channel_queue_metrics", "channel_messages_delivered_total", "counter", "Total number of messages delivered to consumers in automatic acknowledgement mode", func(c *broker.ChannelView) int64 { return int64(c.Stats.DeliverNoAck) }},
	{"channel_queue_metrics", "channel_messages_redelivered_total", "counter", "Total number of messages redelivered to consumers", func(c *broker.ChannelView) int64 { return int64(c.Stats.Redeliver) }},
	{"channel_queue_metrics", "channel_messages_acked_total", "counter", "Total number of messages acknowledged by consumers", func(c *broker.ChannelView) int64 { return int64(c.Stats.Ack) }},
	{"channel_queue_metrics", "channel_get_empty_total", "counter", "Total number of times basic.get operations fetched no message", func(c *broker.ChannelView) int64 { return int64(c.Stats.GetEmpty) }},
}

// writeFamilies writes the families of one kind of object.
func writeFamilies[T any](e *exposition, g *registry, list []rowFamily[T], read func() []T, labels func(*T) string) {
	if g.families != nil && !slices.ContainsFunc(list, func(f rowFamily[T]) bool { return g.has(f.family) }) {
		return
	}
	rows := read()
	for i := range list {
		if f := &list[i]; g.has(f.family) {
			writeRows(e, g.prefix+f.name, f.kind, f.help, rows, g.objects, f.value, labels)
		}
	}
}

func (s *Server) writeChannels(e *exposition, g *registry) {
	writeFamilies(e, g, channelFamilies, func() []broker.ChannelView {
		return slices.DeleteFunc(s.opt.Broker.Channels(), func(c broker.ChannelView) bool { return !g.hasVHost(c.Connection.VHost) })
	}, func(c *broker.ChannelView) string { return labels("channel", channelName(c.Connection, c.Number)) })
}

// connRow is one connection of a scrape.
type connRow struct {
	broker.ConnView
	octets broker.Octets
}

var connectionFamilies = []rowFamily[connRow]{
	{"connection_coarse_metrics", "connection_incoming_bytes_total", "counter", "Total number of bytes received on a connection", func(c *connRow) int64 { return int64(c.octets.Received) }},
	{"connection_coarse_metrics", "connection_outgoing_bytes_total", "counter", "Total number of bytes sent on a connection", func(c *connRow) int64 { return int64(c.octets.Sent) }},
	{"connection_metrics", "connection_incoming_packets_total", "counter", "Total number of packets received on a connection", func(c *connRow) int64 { return int64(c.octets.Reads) }},
	{"connection_metrics", "connection_outgoing_packets_total", "counter", "Total number of packets sent on a connection", func(c *connRow) int64 { return int64(c.octets.Writes) }},
	{"connection_metrics", "connection_pending_packets", "gauge", "Number of packets waiting to be sent on a connection", func(*connRow) int64 { return 0 }},
	{"connection_metrics", "connection_channels", "gauge", "Channels on a connection", func(c *connRow) int64 { return int64(c.Channels) }},
}

func (s *Server) writeConnections(e *exposition, g *registry) {
	writeFamilies(e, g, connectionFamilies, func() []connRow {
		conns := s.opt.Broker.Connections()
		rows := make([]connRow, len(conns))
		for i := range conns {
			rows[i] = connRow{conns[i], octetsOf(conns[i].ConnInfo)}
		}
		return rows
	}, func(c *connRow) string { return labels("connection", c.Name) })
}

var exchangeFamilies = []rowFamily[broker.ExchangeView]{
	{"exchange_metrics", "exchange_messages_published_total", "counter", "Total number of messages published into an exchange", func(x *broker.ExchangeView) int64 { return int64(x.Stats.In.Load()) }},
	{"exchange_metrics", "exchange_messages_routed_total", "counter", "Total number of messages that an exchange gave to queues", func(x *broker.ExchangeView) int64 { return int64(x.Stats.Out.Load()) }},
}

func (s *Server) writeExchanges(e *exposition, g *registry) {
	writeFamilies(e, g, exchangeFamilies, func() []broker.ExchangeView {
		var rows []broker.ExchangeView
		for _, v := range s.opt.Broker.VHosts() {
			if g.hasVHost(v) {
				rows = append(rows, s.opt.Broker.Exchanges(v)...)
			}
		}
		return rows
	}, func(x *broker.ExchangeView) string { return labels("vhost", x.VHost, "exchange", x.Name) })
}

// writeCluster writes what exists, for the detailed registry.
func (s *Server) writeCluster(e *exposition, g *registry) {
	const p = "rabbitmq_cluster_"
	vhosts := slices.DeleteFunc(s.opt.Broker.VHosts(), func(v string) bool { return !g.hasVHost(v) })
	if g.has("vhost_status") {
		e.family(p+"vhost_status", "gauge", "Whether a given vhost is running")
		for _, v := range vhosts {
			e.int(p+"vhost_status", labels("vhost", v), 1)
		}
	}
	exchanges := func(write func(labels string, x *broker.ExchangeView)) {
		for _, v := range vhosts {
			for _, x := range s.opt.Broker.Exchanges(v) {
				if x.Name != "" && x.Name != "amq.rabbitmq.trace" {
					write(labels("vhost", v, "exchange", x.Name, "type", x.Type), &x)
				}
			}
		}
	}
	if g.has("exchange_names") {
		e.family(p+"exchange_name", "gauge", "Enumerates exchanges without any additional info")
		exchanges(func(labels string, _ *broker.ExchangeView) { e.int(p+"exchange_name", labels, 1) })
	}
	if g.has("exchange_bindings") {
		e.family(p+"exchange_bindings", "gauge", "Number of bindings for an exchange")
		exchanges(func(labels string, x *broker.ExchangeView) {
			e.int(p+"exchange_bindings", labels, int64(len(s.opt.Broker.Bindings(x.VHost, broker.BindingFilter{Source: &x.Name}))))
		})
	}
}

func (s *Server) writeMemory(e *exposition) {
	m := s.memory()
	for _, k := range m.kinds() {
		e.one("rabbitmq_memory_"+k.name+"_bytes", "gauge", "Memory of "+k.help, k.bytes)
	}
	e.family("rabbitmq_memory_total_bytes", "gauge", "Memory in all, by how it is counted")
	for _, t := range m.totals() {
		e.int("rabbitmq_memory_total_bytes", labels("kind", t.name), t.bytes)
	}
}

// writeStates counts the connections by what keeps them from publishing.
func (s *Server) writeStates(e *exposition) {
	counts := make(map[broker.ConnState]int64)
	for _, c := range s.opt.Broker.Connections() {
		counts[c.State]++
	}
	e.family("firemq_connections", "gauge", "Connections by state")
	for _, state := range [...]broker.ConnState{broker.StateRunning, broker.StateFlow, broker.StateBlocking, broker.StateBlocked} {
		e.int("firemq_connections", labels("state", string(state)), counts[state])
	}
}

// writeOwnMemory is the same accounting under FireMQ's names.
func (s *Server) writeOwnMemory(e *exposition) {
	m := s.memory()
	e.family("firemq_memory_bytes", "gauge", "Resident memory by what it is used for")
	for _, k := range [...]named{
		{"messages", m.Messages}, {"sending", m.Sending}, {"receiving", m.Receiving}, {"index", m.Index}, {"queues", m.Queues},
		{"topology", m.Topology}, {"connections", m.Connections}, {"channels", m.Channels}, {"journal", m.Journal},
		{"program", m.program}, {"mapped", m.mapped}, {"stacks", m.stacks}, {"runtime", m.runtime}, {"unused", m.unused},
	} {
		e.int("firemq_memory_bytes", labels("kind", k.name), k.bytes)
	}
}
