package mgmt

import (
	"crypto/x509"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/mgmt/api"
)

// compatibleVersion is the version of RabbitMQ whose API this is; tools compare it.
const compatibleVersion = "3.13.7"

var exchangeTypes = []api.ExchangeType{
	{Name: "direct", Description: "routes by the whole routing key", Enabled: true},
	{Name: "fanout", Description: "routes to every binding", Enabled: true},
	{Name: "headers", Description: "routes by message headers", Enabled: true},
	{Name: "topic", Description: "routes by patterns of words in the routing key", Enabled: true},
	{Name: "x-consistent-hash", Description: "routes to one binding, by a hash", Enabled: true},
	{Name: "x-local-random", Description: "routes to one queue, by chance", Enabled: true},
	{Name: "x-random", Description: "routes to one binding, by chance", Enabled: true},
	{Name: "x-message-deduplication", Description: "routes the first message with a key to every binding", Enabled: true},
	{Name: "x-delayed-message", Description: "routes as its x-delayed-type does; delays as every exchange does", Enabled: true},
}

var authMechanisms = []api.ExchangeType{
	{Name: "AMQPLAIN", Description: "name and password in a field table", Enabled: true},
	{Name: "PLAIN", Description: "SASL PLAIN", Enabled: true},
}

var retention = map[string][]int{"global": {600, 3600}, "basic": {60}, "detailed": {60}}

// platform is what runs the broker, in the place of Erlang's version.
func platform() string { return "Go " + runtime.Version() }

// cryptoVersion is what does the cryptography, in the place of OpenSSL.
func cryptoVersion() string { return "Go crypto " + runtime.Version() }

func overview(r *request) error {
	w, err := r.rates()
	if err != nil {
		return err
	}
	all := r.seesAll()
	o := api.Overview{
		ManagementVersion: compatibleVersion, RabbitMQVersion: compatibleVersion,
		ProductName: "FireMQ", ProductVersion: r.s.opt.Version,
		RatesMode: "basic", SampleRetention: retention, ExchangeTypes: exchangeTypes,
		ClusterName: r.s.clusterName(), ClusterTags: map[string]any{}, NodeTags: map[string]any{},
		ErlangVersion: runtime.Version(), ErlangFullVersion: platform(), CryptoLibVersion: cryptoVersion(),
		ReleaseSupport: "supported", DefaultQueueType: "classic", OpPolicyUpdating: true, Node: r.s.opt.Node,
	}
	var sum lengths
	for _, v := range r.vhosts() {
		t := r.s.opt.Broker.VHostTotals(v)
		sum.ready += t.Ready
		sum.unacked += t.Unacked
		o.ObjectTotals.Queues += t.Queues
		o.ObjectTotals.Consumers += t.Consumers
		o.ObjectTotals.Exchanges += t.Exchanges
	}
	if all {
		n := r.s.opt.Broker.Objects()
		o.ObjectTotals.Connections, o.ObjectTotals.Channels = n.Connections, n.Channels
	} else {
		o.ObjectTotals.Connections, o.ObjectTotals.Channels = len(r.connections()), len(r.channels())
	}

	traffic := r.s.opt.Broker.Traffic()
	total := traffic.Total()
	var buf [8]int64
	churn := churnRow(buf[:0], r.s.opt.Broker.Counters())
	w.s.mu.RLock()
	defer w.s.mu.RUnlock()
	s := &w.s.total
	if !all {
		// The rates of the whole are not those of what the user sees.
		s = nil
		total = broker.MessageStats{}
		for _, v := range r.vhosts() {
			if t := traffic.VHosts[v]; t != nil {
				total.Add(t)
			}
		}
	}
	o.QueueTotals = w.lengthsOf(s, sum)
	o.MessageStats = w.stats(s, lengthFields, &total, false)
	if len(o.MessageStats) > 0 {
		never := (*series)(nil).details(0, 0, w.now, w.messages)
		o.MessageStats = append(o.MessageStats, api.Stat{Name: "disk_reads", Details: never}, api.Stat{Name: "disk_writes", Details: never})
	}
	o.ChurnRates = w.named(&w.s.total, lengthFields+len(statNames), churnNames[:], churn, w.messages)
	if all {
		o.Listeners = r.s.listeners()
		o.Contexts = []api.Context{r.s.context()}
	}
	return r.ok(o)
}

// Listener is one port that the broker listens on.
type Listener struct {
	Protocol string // "amqp", "amqp/ssl", "fire", "fire/ssl"
	Addr     net.Addr
	TLS      bool
	// Certificate is the one that the port shows now; nil for plain ports.
	Certificate func() *x509.Certificate
}

// listeners lists all ports, this one too.
func (s *Server) listeners() []api.Listener {
	var list []api.Listener
	add := func(protocol string, a net.Addr, secure bool) {
		host, port, _ := net.SplitHostPort(a.String())
		n, _ := strconv.Atoi(port)
		list = append(list, api.Listener{
			Node: s.opt.Node, Protocol: protocol, IPAddress: host, Port: n, TLS: secure,
			SocketOpts: map[string]any{"backlog": 128, "nodelay": true},
		})
	}
	if s.opt.Listeners != nil {
		for _, l := range s.opt.Listeners() {
			add(l.Protocol, l.Addr, l.TLS)
		}
	}
	add("http", s.Addr(), false)
	add("http/prometheus", s.Addr(), false)
	return list
}

func (s *Server) context() api.Context {
	_, port, _ := net.SplitHostPort(s.Addr().String())
	return api.Context{
		SSLOpts: []any{}, Node: s.opt.Node, Description: "FireMQ Management", Path: "/", CowboyOpts: "[{sendfile,false}]", Port: port,
	}
}

func version(r *request) error { return r.ok(r.s.opt.Version) }

// gcQueues are those of RabbitMQ's statistics, which wait to be forgotten; none does here.
var gcQueues = map[string]int{
	"connection_closed": 0, "channel_closed": 0, "consumer_deleted": 0, "exchange_deleted": 0, "queue_deleted": 0,
	"vhost_deleted": 0, "node_node_deleted": 0, "channel_consumer_deleted": 0,
}

// nodeOf is the one node there is.
func (r *request) nodeOf(w *view) map[string]any {
	s := r.s
	m := s.machine()
	n := map[string]any{
		"name": s.opt.Node, "type": "disc", "running": true, "being_drained": false,
		"os_pid":  strconv.Itoa(os.Getpid()),
		"fd_used": m.filesOpen, "fd_total": m.filesMax, "sockets_used": s.opt.Broker.ConnectionCount(), "sockets_total": m.filesMax,
		"proc_used": runtime.NumGoroutine(), "proc_total": 1 << 20,
		"mem_used": m.resident, "mem_limit": m.memoryLimit, "mem_alarm": m.memoryAlarm, "mem_calculation_strategy": "rss",
		"disk_free": m.diskFree, "disk_free_limit": m.diskLimit, "disk_free_alarm": m.diskAlarm,
		"uptime": time.Since(s.started).Milliseconds(), "run_queue": 0, "processors": runtime.NumCPU(),
		"rates_mode": "basic", "net_ticktime": 60, "partitions": []any{}, "cluster_links": []any{},
		"exchange_types": exchangeTypes, "auth_mechanisms": authMechanisms,
		"applications": []map[string]string{{"name": "firemq", "description": "FireMQ", "version": s.opt.Version}},
		"contexts": []map[string]string{{
			"description": "FireMQ Management", "path": "/", "cowboy_opts": "[{sendfile,false}]", "port": s.context().Port,
		}},
		"log_files": []string{"<stderr>"}, "db_dir": s.opt.Data, "config_files": []string{}, "enabled_plugins": []string{"rabbitmq_management", "rabbitmq_prometheus"},
		"ra_open_file_metrics":    map[string]int{"ra_log_wal": 0, "ra_log_segment_writer": 0},
		"metrics_gc_queue_length": gcQueues,
		"rabbitmq_version":        compatibleVersion, "erlang_version": runtime.Version(), "erlang_full_version": platform(),
		"crypto_lib_version": cryptoVersion(),
	}
	zero := func(names ...string) {
		for _, k := range names {
			n[k] = 0
			if strings.HasSuffix(k, "_avg_time") {
				n[k] = 0.0
			}
			n[k+"_details"] = api.Details{}
		}
	}
	zero("gc_num", "gc_bytes_reclaimed", "context_switches",
		"io_read_count", "io_read_bytes", "io_read_avg_time", "io_write_count", "io_write_bytes", "io_write_avg_time",
		"io_sync_count", "io_sync_avg_time", "io_seek_count", "io_seek_avg_time", "io_reopen_count",
		"io_file_handle_open_attempt_count", "io_file_handle_open_attempt_avg_time",
		"msg_store_read_count", "msg_store_write_count", "queue_index_read_count", "queue_index_write_count",
		"queue_index_journal_write_count", "mnesia_ram_tx_count", "mnesia_disk_tx_count")
	if j, ok := s.opt.Broker.JournalStats(); ok {
		n["io_write_bytes"], n["io_sync_count"] = j.Appended, j.Syncs
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	n["gc_num"] = mem.NumGC
	for _, k := range [...]string{"mem_used", "fd_used", "sockets_used", "proc_used", "disk_free"} {
		n[k+"_details"] = api.Details{}
	}
	var buf [8]int64
	for _, c := range w.named(&w.s.total, lengthFields+len(statNames), churnNames[:], churnRow(buf[:0], s.opt.Broker.Counters()), w.messages) {
		n[c.Name], n[c.Name+"_details"] = c.Total, c.Details
	}
	return n
}

func listNodes(r *request) error {
	w, err := r.rates()
	if err != nil {
		return err
	}
	w.s.mu.RLock()
	defer w.s.mu.RUnlock()
	return plain(r, []map[string]any{r.nodeOf(w)})
}

// thisNode refuses the name of any other node.
func (r *request) thisNode() error {
	if r.vars["node"] != r.s.opt.Node {
		return missing
	}
	return nil
}

func getNode(r *request) error {
	if err := r.thisNode(); err != nil {
		return err
	}
	w, err := r.rates()
	if err != nil {
		return err
	}
	w.s.mu.RLock()
	defer w.s.mu.RUnlock()
	n := r.nodeOf(w)
	if r.query("memory") == "true" {
		n["memory"] = r.s.memory().breakdown()
	}
	if r.query("binary") == "true" {
		n["binary"] = r.s.binaries()
	}
	return r.ok(n)
}

func getNodeMemory(r *request) error {
	if err := r.thisNode(); err != nil {
		return err
	}
	return r.ok(map[string]any{"memory": r.s.memory().breakdown()})
}

func getNodeMemoryRelative(r *request) error {
	if err := r.thisNode(); err != nil {
		return err
	}
	m := r.s.memory()
	shares := make(map[string]any)
	for _, k := range m.kinds() {
		shares[k.name] = k.bytes * 100 / max(m.allocated(), 1)
	}
	shares["total"] = 100
	return r.ok(map[string]any{"memory": shares})
}

func reset(r *request) error {
	if _, named := r.vars["node"]; named {
		if err := r.thisNode(); err != nil {
			return err
		}
	}
	r.s.sampler.reset()
	return r.done(false)
}
