package rabbitmqctl

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/firemq/firemq/mgmt/api"
)

// poll is how often a command that waits asks.
const poll = 100 * time.Millisecond

// until asks, over and over, whether something is done. An error ends it.
func (c *call) until(done func() (bool, error)) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-c.ctx.Done():
			return c.ctx.Err()
		}
	}
}

// node reads the broker's overview and its node.
func (c *call) node() (o api.Overview, n object, err error) {
	if err = c.get(api.Path("overview"), &o); err == nil {
		err = c.get(api.Path("nodes", o.Node), &n)
	}
	return o, n, err
}

func ping(c *call) error {
	node, err := c.nodeName()
	if err != nil {
		return err
	}
	c.announce("Will ping %s. This only checks that its API answers.", node)
	return c.result("Ping succeeded", nil)
}

func serverVersion(c *call) error {
	o, _, err := c.node()
	if err != nil {
		return err
	}
	c.announce("Asking node %s for its RabbitMQ version...", o.Node)
	return c.result(o.RabbitMQVersion, fields{"result": "ok", "value": o.RabbitMQVersion})
}

// check says whether a health check of the API passes.
func (c *call) check(name string) (bool, error) {
	err := c.do("GET", api.Path("health/checks/"+name), nil)
	if status(err) == 503 {
		return false, nil
	}
	return err == nil, err
}

// running says whether the node serves clients; announcement has its name. In JSON it may tell that, too.
func running(announcement string, tells bool) func(c *call) error {
	return func(c *call) error {
		node, err := c.nodeName()
		if err != nil {
			return err
		}
		c.announce(announcement, node)
		switch ok, err := c.check("ready-to-serve-clients"); {
		case err != nil:
			return err
		case !ok:
			return failed(exitUnavailable, "RabbitMQ on node %s is not running or has not fully booted yet (check with is_booting)", node)
		}
		said := fmt.Sprintf("RabbitMQ on node %s is fully booted and running", node)
		if !tells {
			return c.result(said, nil)
		}
		return c.result(said, fields{"result": true, "message": said})
	}
}

func checkPortListener(c *call) error {
	port, err := strconv.Atoi(c.args[0])
	if err != nil {
		return misused("the port has to be a number: %s", c.args[0])
	}
	o, _, err := c.node()
	if err != nil {
		return err
	}
	c.announce("Asking node %s if there's an active listener on port %d ...", o.Node, port)
	var ports []int
	for _, l := range o.Listeners {
		ports = append(ports, l.Port)
	}
	slices.Sort(ports)
	if ports = slices.Compact(ports); slices.Contains(ports, port) {
		return c.result(fmt.Sprintf("A listener for port %d is running on node %s.", port, o.Node), fields{"result": "ok", "node": o.Node, "port": port})
	}
	return &failure{status: exitUnavailable, bare: true, text: fmt.Sprintf(
		"No listener for port %d is active on node %s. Found listeners that use the following ports: %s",
		port, o.Node, strings.Trim(strings.ReplaceAll(fmt.Sprint(ports), " ", ", "), "[]"))}
}

func checkProtocolListener(c *call) error {
	o, _, err := c.node()
	if err != nil {
		return err
	}
	protocol := c.args[0]
	c.announce("Asking node %s if there's an active listener for protocol %s ...", o.Node, protocol)
	var protocols []string
	for _, l := range o.Listeners {
		protocols = append(protocols, l.Protocol)
	}
	slices.Sort(protocols)
	if protocols = slices.Compact(protocols); slices.Contains(protocols, protocol) {
		return c.result(fmt.Sprintf("A listener for protocol %s is running on node %s.", protocol, o.Node), fields{"result": "ok", "node": o.Node, "protocol": protocol})
	}
	return failed(exitUnavailable, "No listener for protocol %s is active on node %s. Found listeners for the following protocols: %s",
		protocol, o.Node, strings.Join(protocols, ", "))
}

func checkVHosts(c *call) error {
	node, err := c.nodeName()
	if err != nil {
		return err
	}
	c.announce("Checking if all vhosts are running on node %s ...", node)
	switch ok, err := c.check("virtual-hosts"); {
	case err != nil:
		return err
	case !ok:
		return failed(exitUnavailable, "Some virtual hosts are down")
	}
	return c.result(fmt.Sprintf("Node %s reported all vhosts as running", node), passed)
}

// checkPorts connects to every listener, as a client on this machine would.
func checkPorts(c *call) error {
	o, _, err := c.node()
	if err != nil {
		return err
	}
	c.announce("Testing TCP connections to all active listeners on node %s ...", o.Node)
	var ports []string
	var d net.Dialer
	for _, l := range o.Listeners {
		host := l.IPAddress
		if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
			host = c.host()
		}
		port := strconv.Itoa(l.Port)
		if slices.Contains(ports, port) {
			continue // one port for two protocols
		}
		nc, err := d.DialContext(c.ctx, "tcp", net.JoinHostPort(host, port))
		if err != nil {
			return failed(exitUnavailable, "Connection to ports of the following listeners on node %s failed: %s", o.Node, port)
		}
		nc.Close()
		ports = append(ports, port)
	}
	return c.result(fmt.Sprintf("Successfully connected to ports %s on node %s.", strings.Join(ports, ", "), o.Node), passed)
}

// purposes says what a listener of a protocol is for.
var purposes = map[string]string{
	"amqp": "AMQP 0-9-1", "amqp/ssl": "AMQP 0-9-1 over TLS", "http": "HTTP API",
	"http/prometheus": "Prometheus exporter API over HTTP", "fire": "FireMQ protocol", "fire/ssl": "FireMQ protocol over TLS",
}

// listener is a listener as RabbitMQ's tools have it in JSON.
type listener struct {
	Node      string `json:"node"`
	Port      int    `json:"port"`
	Protocol  string `json:"protocol"`
	Interface string `json:"interface"`
	Purpose   string `json:"purpose"`
}

func listenersOf(list []api.Listener) []listener {
	all := make([]listener, len(list))
	for i, l := range list {
		host := l.IPAddress
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		all[i] = listener{l.Node, l.Port, l.Protocol, host, purposes[l.Protocol]}
	}
	return all
}

// listenerLines has a line for each listener, which begins with prefix.
func listenerLines(prefix string, list []listener) (lines []string) {
	for _, l := range list {
		lines = append(lines, fmt.Sprintf("%s: %s, port: %d, protocol: %s, purpose: %s", prefix, l.Interface, l.Port, l.Protocol, l.Purpose))
	}
	return lines
}

func showListeners(c *call) error {
	o, _, err := c.node()
	if err != nil {
		return err
	}
	c.announce("Asking node %s to report its protocol listeners ...", o.Node)
	list := listenersOf(o.Listeners)
	return c.result(strings.Join(listenerLines("Interface", list), "\n"), fields{"result": "ok", "node": o.Node, "listeners": list})
}

// number is a value of the API as a float, 0 if it is none.
func (o object) number(path string) float64 {
	f, _ := strconv.ParseFloat(fmt.Sprint(o.at(path)), 64)
	return f
}

// gigabytes are as RabbitMQ prints them.
func gigabytes(bytes float64) string { return decimal(bytes/1e9, 4) + " gb" }

// decimal spells a number with so many places at most, and one at least.
func decimal(f float64, places int) string {
	s := strings.TrimRight(strconv.FormatFloat(f, 'f', places, 64), "0")
	if strings.HasSuffix(s, ".") {
		s += "0"
	}
	return s
}

func (o object) alarms() (list []string) {
	if on, _ := o.at("mem_alarm").(bool); on {
		list = append(list, "Memory alarm on node "+o.text("name"))
	}
	if on, _ := o.at("disk_free_alarm").(bool); on {
		list = append(list, "Free disk space alarm on node "+o.text("name"))
	}
	return list
}

// section prints a heading and its lines.
func (c *call) section(head string, lines ...string) {
	if len(lines) == 0 {
		lines = []string{"(none)"}
	}
	fmt.Fprintf(c.t.Out, "%s\n\n%s\n\n", head, strings.Join(lines, "\n"))
}

func showStatus(c *call) error {
	o, n, err := c.node()
	if err != nil {
		return err
	}
	c.announce("Status of node %s ...", o.Node)
	var vhosts []object
	if err := c.get(api.Path("vhosts"), &vhosts); err != nil {
		return err
	}
	var memory struct{ Memory map[string]any }
	if err := c.get(api.Path("nodes", o.Node, "memory"), &memory); err != nil {
		return err
	}
	serves, err := c.check("is-in-service")
	if err != nil {
		return err
	}
	uptime := int64(n.number("uptime")) / 1000
	listeners := listenersOf(o.Listeners)
	if c.machine() {
		alarms := append([]string{}, n.alarms()...)
		return c.say("%s", compact(map[string]any{
			"pid": n.number("os_pid"), "log_files": n.at("log_files"), "config_files": n.at("config_files"), "vm_memory_calculation_strategy": "rss", "uptime": uptime, "rabbitmq_version": o.RabbitMQVersion, "product_name": o.ProductName,
			"product_version": o.ProductVersion, "alarms": alarms, "tags": []string{}, "listeners": listeners, "memory": memory.Memory,
			"vm_memory_high_watermark_limit": n.at("mem_limit"), "disk_free": n.at("disk_free"), "disk_free_limit": n.at("disk_free_limit"),
			"file_descriptors": map[string]any{"total_used": n.at("fd_used"), "total_limit": n.at("fd_total")},
			"totals":           map[string]any{"connection_count": o.ObjectTotals.Connections, "queue_count": o.ObjectTotals.Queues, "virtual_host_count": len(vhosts)},
			"active_plugins":   plugins, "data_directory": n.at("db_dir"), "is_under_maintenance": !serves,
		}))
	}
	c.section("Runtime", fmt.Sprintf("OS PID: %v", n.at("os_pid")), fmt.Sprintf("Uptime (seconds): %d", uptime), fmt.Sprintf("Is under maintenance?: %t", !serves),
		"RabbitMQ version: "+o.RabbitMQVersion, fmt.Sprintf("Product: %s %s", o.ProductName, o.ProductVersion), "Node name: "+o.Node)
	c.section("Plugins", "Enabled plugins:\n\n * "+strings.Join(plugins, "\n * "))
	c.section("Data directory", fmt.Sprintf("Node data directory: %v", n.at("db_dir")))
	c.section("Alarms", n.alarms()...)
	lines := []string{"Total memory used: " + gigabytes(n.number("mem_used")), "Memory high watermark setting: " + gigabytes(n.number("mem_limit")), ""}
	for _, k := range memoryKinds(memory.Memory) {
		lines = append(lines, fmt.Sprintf("%s: %s (%s %%)", k.name, gigabytes(k.bytes), decimal(k.share, 2)))
	}
	c.section("Memory", lines...)
	c.section("File Descriptors", fmt.Sprintf("Total: %v, limit: %v", n.at("fd_used"), n.at("fd_total")),
		fmt.Sprintf("Sockets: %v, limit: %v", n.at("sockets_used"), n.at("sockets_total")))
	c.section("Free Disk Space", "Low free disk space watermark: "+gigabytes(n.number("disk_free_limit")), "Free disk space: "+gigabytes(n.number("disk_free")))
	c.section("Totals", fmt.Sprintf("Connection count: %d", o.ObjectTotals.Connections), fmt.Sprintf("Queue count: %d", o.ObjectTotals.Queues),
		fmt.Sprintf("Virtual host count: %d", len(vhosts)))
	c.section("Listeners", listenerLines("Interface", listeners)...)
	return nil
}

func clusterStatus(c *call) error {
	o, n, err := c.node()
	if err != nil {
		return err
	}
	c.announce("Cluster status of node %s ...", o.Node)
	if c.machine() {
		return c.say("%s", compact(map[string]any{
			"cluster_name": o.ClusterName, "disk_nodes": []string{o.Node}, "ram_nodes": []string{}, "running_nodes": []string{o.Node},
			"alarms": append([]string{}, n.alarms()...), "partitions": map[string]any{}, "listeners": map[string]any{o.Node: listenersOf(o.Listeners)},
			"versions":           map[string]any{o.Node: map[string]any{"rabbitmq_name": o.ProductName, "rabbitmq_version": o.RabbitMQVersion}},
			"maintenance_status": map[string]any{o.Node: "not under maintenance"}, "feature_flags": []any{},
		}))
	}
	c.section("Basics", "Cluster name: "+o.ClusterName)
	c.section("Disk Nodes", o.Node)
	c.section("Running Nodes", o.Node)
	c.section("Versions", fmt.Sprintf("%s: RabbitMQ %s, %s %s", o.Node, o.RabbitMQVersion, o.ProductName, o.ProductVersion))
	c.section("Maintenance status", fmt.Sprintf("Node: %s, status: not under maintenance", o.Node))
	c.section("Alarms", n.alarms()...)
	c.section("Network Partitions")
	c.section("Listeners", listenerLines("Node: "+o.Node+", interface", listenersOf(o.Listeners))...)
	c.section("Feature flags")
	return nil
}

func nodeHealthCheck(c *call) error {
	node, err := c.nodeName()
	if err != nil {
		return err
	}
	c.announce("Checking health of node %s ...", node)
	for _, name := range []string{"local-alarms", "virtual-hosts", "ready-to-serve-clients"} {
		switch ok, err := c.check(name); {
		case err != nil:
			return err
		case !ok:
			return failed(exitUnavailable, "Node %s: the health check %s failed", node, name)
		}
	}
	return c.say("Health check passed")
}

// awaitStartup waits until clients can connect. The pid file of "wait" is not looked at: who can reach the API
// knows more than a file.
func awaitStartup(c *call) error {
	return c.until(func() (bool, error) {
		ok, err := c.check("ready-to-serve-clients")
		if status(err) == 0 { // not there yet
			err = nil
		}
		return ok, err
	})
}

func awaitNodes(c *call) error {
	n, err := strconv.Atoi(c.args[0])
	if err != nil || n < 1 {
		return c.badArguments("Bad argument: %s is no number of nodes", c.args[0])
	}
	if n > 1 {
		return failed(exitUnavailable, "FireMQ is a single node: %d will never be online", n)
	}
	node, _ := c.nodeName() // it may not be there yet
	c.announce("Will wait for at least %d nodes to join the cluster of %s. Timeout: %s seconds.",
		n, cmp.Or(node, c.options["node"], "the broker"), cmp.Or(c.options["timeout"], "300"))
	return awaitStartup(c)
}

// act carries out an action of the node.
func (c *call) act(announced, action string) error {
	node, err := c.nodeName()
	if err != nil {
		return err
	}
	c.announce(announced, node)
	return c.do("POST", api.Path("nodes", node, "actions"), map[string]string{"action": action})
}

func (c *call) suspend(announced string, suspend bool) error {
	if suspend {
		return c.act(announced, "suspend")
	}
	return c.act(announced, "resume")
}

func suspendListeners(c *call) error {
	return c.act("Will suspend client listeners on node %s. The node will no longer accept client connections", "suspend_listeners")
}

// stop returns when the broker is gone.
func stop(c *call) error {
	if err := c.act("Stopping and halting node %s ...", "stop"); err != nil {
		return err
	}
	var d net.Dialer
	return c.until(func() (bool, error) {
		nc, err := d.DialContext(c.ctx, "tcp", c.address())
		if err == nil {
			nc.Close()
		}
		return err != nil && c.ctx.Err() == nil, nil
	})
}
