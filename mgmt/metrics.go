package mgmt

import (
	"errors"
	"io"
	"regexp"
	"runtime"
	"slices"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/journal"
	"github.com/firemq/firemq/pool"
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
	// What it keeps of objects until its reader has it counts as an answer does.
	socket := c.Conn().(*conn)
	o := s.opt.Broker.Objects()
	rows := o.Queues
	if g.objects {
		rows += o.Connections + o.Channels
	}
	unread := func() {
		c.Error("other scrapes are not read\n", fasthttp.StatusServiceUnavailable)
		c.Response.Header.Set("Retry-After", "1")
	}
	socket.answer.of(nil, socket.from)
	if n := int64(rows) * rowBytes; n > freeBytes && !s.answers.take(&socket.answer, n) {
		unread()
		return
	}
	c.SetContentType("text/plain; version=0.0.4; charset=utf-8")
	c.Response.Header.Set("Vary", "Accept-Encoding")
	a := &scrape{s: s, g: g, packed: c.Request.Header.HasAcceptEncoding("gzip")}
	if a.packed {
		c.Response.Header.SetContentEncoding("gzip")
	}
	if c.Request.Header.IsHTTP11() {
		c.SetBodyStream(a, -1)
		return
	}
	// A client of HTTP/1.0 must know the length before.
	k := &kept{s: s, socket: socket}
	if _, err := a.WriteTo(k); err != nil {
		unread()
		return
	}
	c.Response.SetBodyRaw(k.body)
}

// kept is a scrape in memory, which counts as an answer.
type kept struct {
	s      *Server
	socket *conn
	body   []byte
}

var errUnread = errors.New("answers that are not read take the memory there is for them")

func (k *kept) Write(p []byte) (int, error) {
	if n := len(k.body) + len(p); n > cap(k.body) {
		more := max(2*cap(k.body), n)
		if more > freeBytes && !k.s.answers.take(&k.socket.answer, k.socket.answer.bytes+int64(more-cap(k.body))) {
			return 0, errUnread
		}
		k.body = append(make([]byte, 0, more), k.body...)
	}
	k.body = append(k.body, p...)
	return len(p), nil
}

// rowBytes is about what a scrape keeps of an object that it shows, until its reader has it.
const rowBytes = 512

// scrape is the body of an answer. It is written straight to the connection: a reader between them would take a
// goroutine, a copy, and a gzip block for each 4 KiB.
type scrape struct {
	s      *Server
	g      *registry
	packed bool // with gzip
}

// SupportsBodyWriteTo, WriteTo and Read make it a fasthttp.BodyWriterTo.
func (a *scrape) SupportsBodyWriteTo() bool { return true }

func (a *scrape) Read([]byte) (int, error) { panic("BUG: mgmt: a scrape is not read") }

func (a *scrape) WriteTo(w io.Writer) (int64, error) {
	e := expositions.Get().(*exposition)
	defer expositions.Put(e)
	e.begin(w, a.packed)
	a.s.writeMetrics(e, a.g)
	return e.end()
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
	if g.objects && g.has("auth_attempt_detailed_metrics") {
		writeLoginSources(e, g.prefix)
	}
	if !detailed {
		s.writeTotals(e)
		s.writeGlobal(e)
		s.writeOwn(e)
	}
	s.writeQueues(e, g)
	s.writeChannels(e, g)
	s.writeConnections(e, g)
	s.writeExchanges(e, g)
	if detailed {
		s.writeCluster(e, g)
	}
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
	e.one(p+"process_open_tcp_sockets", "gauge", "Open TCP sockets", int64(s.opt.Broker.ConnectionCount()))
	e.one(p+"process_max_tcp_sockets", "gauge", "Open TCP sockets limit", int64(m.filesMax))
	e.one(p+"process_resident_memory_bytes", "gauge", "Memory used in bytes", int64(m.resident))
	e.one(p+"resident_memory_limit_bytes", "gauge", "Memory high watermark in bytes", int64(m.memoryLimit))
	e.one(p+"disk_space_available_bytes", "gauge", "Disk space available in bytes", int64(m.diskFree))
	e.one(p+"disk_space_available_limit_bytes", "gauge", "Free disk space low watermark in bytes", int64(m.diskLimit))
	e.family(p+"erlang_uptime_seconds", "gauge", "Node uptime")
	e.float(p+"erlang_uptime_seconds", nil, time.Since(s.started).Seconds())
	e.one(p+"erlang_processes_used", "gauge", "Erlang processes used", int64(runtime.NumGoroutine()))
	// RabbitMQ has it as a gauge, which linters take for a part of a histogram.
	e.one(p+"unreachable_cluster_peers_count", "untyped", "Number of peers in the cluster the current node cannot reach.", 0)
	j, _ := s.opt.Broker.JournalStats() // 0 for a broker in memory
	e.one(p+"io_write_bytes_total", "counter", "Total number of I/O bytes written", j.Appended)
	e.one(p+"io_sync_ops_total", "counter", "Total number of I/O sync operations", j.Syncs)
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
		{"auth_attempts_total", "Total number of authentication attempts",
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

// writeLoginSources writes the families of logins by their source. They have no series, as with a RabbitMQ that was
// not told to track sources.
func writeLoginSources(e *exposition, p string) {
	e.family(p+"auth_attempts_detailed_total", "counter", "Total number of authentication attempts with source info")
	e.family(p+"auth_attempts_detailed_succeeded_total", "counter", "Total number of successful authentication attempts with source info")
	e.family(p+"auth_attempts_detailed_failed_total", "counter", "Total number of failed authentication attempts with source info")
}

func (s *Server) writeTotals(e *exposition) {
	t := s.opt.Broker.Objects()
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
	const confirmed = p + "messages_dead_lettered_confirmed_total"
	e.family(confirmed, "counter", "Total number of messages dead-lettered and confirmed by target queues")
	e.int(confirmed, labels("queue_type", queueTypeLabels[1], "dead_letter_strategy", "at_least_once"), 0)
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
		e.float("firemq_journal_last_sync_seconds", nil, j.LastSync.Seconds())
		seconds := make([]float64, len(journal.TimeBounds))
		for i, b := range journal.TimeBounds {
			seconds[i] = b.Seconds()
		}
		e.histogram("firemq_journal_commit_seconds", "How long group commits took, until they were safe", seconds, &j.CommitTime, time.Duration.Seconds)
		e.histogram("firemq_journal_sync_seconds", "How long syncs to disk took", seconds, &j.SyncTime, time.Duration.Seconds)
		e.histogram("firemq_journal_commit_bytes", "Bytes of a group commit", floats(journal.ByteBounds[:]), &j.CommitBytes, units)
		e.histogram("firemq_journal_commit_records", "Records of a group commit", floats(journal.RecordBounds[:]), &j.CommitRecords, units)
	}
	s.writeNetwork(e)
	writePool(e)
	c := s.opt.Broker.Counters()
	e.one("firemq_acknowledgement_timeouts_total", "counter", "Deliveries that were not acknowledged in time", int64(c.AckTimeouts.Load()))
	e.one("firemq_firehose_messages_total", "counter", "Messages copied to amq.rabbitmq.trace", int64(c.Traced.Load()))
	e.one("firemq_firehose_messages_dropped_total", "counter", "Messages of traced vhosts that were not copied because of an alarm", int64(c.TraceDropped.Load()))
	if s.opt.Spans != nil {
		x := s.opt.Spans()
		e.one("firemq_trace_spans_exported_total", "counter", "Spans that the collector took", int64(x.Exported))
		e.one("firemq_trace_spans_dropped_total", "counter", "Spans that were not exported: no room was left for them, or the collector did not take them", int64(x.Dropped))
		e.one("firemq_trace_export_failures_total", "counter", "Requests to the collector that failed", int64(x.Failures))
		e.one("firemq_trace_spans_waiting", "gauge", "Spans that wait to be exported", int64(x.Waiting))
	}
	e.writeRuntime()
}

// units is the sum of a histogram that has no unit of its own.
func units(sum time.Duration) float64 { return float64(sum) }

func floats(bounds []int64) []float64 {
	list := make([]float64, len(bounds))
	for i, b := range bounds {
		list[i] = float64(b)
	}
	return list
}

func (s *Server) writeNetwork(e *exposition) {
	if s.opt.Network == nil {
		return
	}
	n := s.opt.Network()
	e.family("firemq_loop_turns_total", "counter", "Turns of event loops: a read that was given to its connection, or something else done for one")
	for _, l := range n.Loops {
		e.int("firemq_loop_turns_total", labels("loop", l.Name), int64(l.Turns))
	}
	e.family("firemq_loop_busy_seconds_total", "counter", "How long the turns took, estimated from one in 16")
	for _, l := range n.Loops {
		e.float("firemq_loop_busy_seconds_total", labels("loop", l.Name), l.Busy.Seconds())
	}
	e.one("firemq_network_received_bytes_total", "counter", "Bytes received on all connections, closed ones too", int64(n.Received))
	e.one("firemq_network_sent_bytes_total", "counter", "Bytes sent on all connections, closed ones too", int64(n.Sent))
	e.one("firemq_network_writes_total", "counter", "Calls that sent bytes on all connections, closed ones too", int64(n.Writes))
	e.family("firemq_connection_pauses_total", "counter", "How often the publishes of a connection, or all that it sends, had to wait, by reason")
	for _, p := range n.Pauses {
		e.int("firemq_connection_pauses_total", labels("reason", p.Reason), int64(p.Count))
	}
}

func writePool(e *exposition) {
	uses := [...]struct {
		name string
		use  pool.Use
	}{{"messages", pool.Messages}, {"sending", pool.Sending}, {"receiving", pool.Receiving}}
	e.family("firemq_pool_lent_buffers", "gauge", "Buffers in use")
	for _, u := range uses {
		e.int("firemq_pool_lent_buffers", labels("use", u.name), pool.Buffers(u.use))
	}
	e.family("firemq_pool_lent_bytes", "gauge", "Memory of the buffers in use")
	for _, u := range uses {
		e.int("firemq_pool_lent_bytes", labels("use", u.name), pool.Lent(u.use))
	}
	empty, large := pool.Misses()
	e.family("firemq_pool_misses_total", "counter", "Buffers that were allocated, as none was left to reuse or they are too large to be kept")
	e.int("firemq_pool_misses_total", labels("reason", "empty"), int64(empty))
	e.int("firemq_pool_misses_total", labels("reason", "large"), int64(large))
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
	exchanges := func(write func(labels []byte, x *broker.ExchangeView)) {
		for _, v := range vhosts {
			for _, x := range s.opt.Broker.Exchanges(v) {
				if x.Name != "" && x.Name != "amq.rabbitmq.trace" {
					write(labels("vhost", v, "exchange", x.Name, "type", x.Type), &x)
				}
			}
		}
	}
	if g.has("exchange_names") {
		e.family(p+"exchange_name", "gauge", "Enumerates exchanges without any additional info. This value is cluster-wide. A cheaper alternative to `exchange_bindings`")
		exchanges(func(labels []byte, _ *broker.ExchangeView) { e.int(p+"exchange_name", labels, 1) })
	}
	if g.has("exchange_bindings") {
		e.family(p+"exchange_bindings", "gauge", "Number of bindings for an exchange. This value is cluster-wide.")
		exchanges(func(labels []byte, x *broker.ExchangeView) {
			e.int(p+"exchange_bindings", labels, int64(len(s.opt.Broker.Bindings(x.VHost, broker.BindingFilter{Source: &x.Name}))))
		})
	}
}

func (s *Server) writeMemory(e *exposition) {
	m := s.memory()
	for _, k := range m.kinds() {
		if k.metric != "" {
			e.one("rabbitmq_memory_"+k.metric+"_bytes", "gauge", k.help, k.bytes)
		}
	}
}

// writeOwnMemory is the same accounting under FireMQ's names.
func (s *Server) writeOwnMemory(e *exposition, queues broker.QueueMemory) {
	m := s.memoryOf(s.opt.Broker.MemoryWith(queues))
	e.family("firemq_memory_bytes", "gauge", "Resident memory by what it is used for")
	for _, k := range [...]named{
		{"messages", m.Messages}, {"sending", m.Sending}, {"receiving", m.Receiving}, {"index", m.Index}, {"queues", m.Queues},
		{"topology", m.Topology}, {"connections", m.Connections}, {"channels", m.Channels}, {"journal", m.Journal},
		{"program", m.program}, {"mapped", m.mapped}, {"stacks", m.stacks}, {"runtime", m.runtime}, {"unused", m.unused},
	} {
		e.int("firemq_memory_bytes", labels("kind", k.name), k.bytes)
	}
}
