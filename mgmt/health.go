package mgmt

import (
	"crypto/x509"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/mgmt/api"
)

// machine is what the broker uses of its machine.
type machine struct {
	resident, mapped    uint64 // bytes; mapped: of files, and part of resident
	filesOpen, filesMax int
	diskFree            uint64 // bytes, where the data is

	memoryLimit, diskLimit uint64 // of the alarms; 0: none
	memoryAlarm, diskAlarm bool
}

// machine reads it now.
func (s *Server) machine() machine {
	m := readMachine(s.opt.Data)
	if s.opt.Resources != nil {
		r := s.opt.Resources()
		m.memoryLimit, m.diskLimit = uint64(r.MemoryLimit), uint64(r.DiskFreeLimit)
		m.memoryAlarm, m.diskAlarm = r.MemoryAlarm, r.DiskAlarm
	}
	return m
}

// health answers a check: 200, or 503 with the reason.
func (r *request) health(reason string, extras map[string]any) error {
	status := 200
	m := map[string]any{"status": "ok"}
	if reason != "" {
		status = 503
		m["status"], m["reason"] = "failed", reason
	}
	for k, v := range extras {
		m[k] = v
	}
	return r.answer(status, m)
}

// healthy is for what nothing can be wrong with: while the API answers, all vhosts and what describes them are there, and
// the one node leads every queue. In a vhost if the path names one.
func healthy(r *request) error {
	if err := r.known(); err != nil {
		return err
	}
	return r.health("", nil)
}

func singleNode(r *request) error {
	return r.health("", map[string]any{"reason": "single node cluster"})
}

func checkAlarms(where string) handler {
	return func(r *request) error {
		m := r.s.machine()
		var alarms []map[string]string
		if m.memoryAlarm {
			alarms = append(alarms, map[string]string{"node": r.s.opt.Node, "resource": "memory"})
		}
		if m.diskAlarm {
			alarms = append(alarms, map[string]string{"node": r.s.opt.Node, "resource": "disk space"})
		}
		if alarms == nil {
			return r.health("", nil)
		}
		return r.health("There are alarms in effect "+where, map[string]any{"alarms": alarms})
	}
}

func checkPort(r *request) error {
	port, err := strconv.Atoi(r.vars["port"])
	if err != nil {
		return badRequest("Invalid port")
	}
	ports := []int{}
	for _, l := range r.s.listeners() {
		if l.Port == port {
			return r.health("", map[string]any{"port": port})
		}
		if !slices.Contains(ports, l.Port) {
			ports = append(ports, l.Port)
		}
	}
	return r.health("No active listener", map[string]any{"missing": port, "ports": ports})
}

// protocolAliases are other words for the protocols of listeners.
var protocolAliases = map[string]string{
	"amqp091": "amqp", "amqp0-9-1": "amqp", "amqp0.9.1": "amqp", "amqp0_9_1": "amqp", "amqps": "amqp/ssl", "fires": "fire/ssl",
	"management": "http", "management_ui": "http", "ui": "http", "http_api": "http", "http1": "http", "http1.1": "http",
}

// checkProtocol wants listeners of each protocol of a list with commas.
func checkProtocol(r *request) error {
	active := []string{}
	for _, l := range r.s.listeners() {
		if !slices.Contains(active, l.Protocol) {
			active = append(active, l.Protocol)
		}
	}
	asked := r.vars["protocol"]
	var missing []string
	for name := range strings.SplitSeq(asked, ",") {
		name = strings.ToLower(name)
		if a, ok := protocolAliases[name]; ok {
			name = a
		}
		if !slices.Contains(active, name) && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	if missing == nil {
		// RabbitMQ has the second one since 4.1, and the first one before.
		return r.health("", map[string]any{"protocol": asked, "protocols": active})
	}
	return r.health("No active listener", map[string]any{"missing": missing, "protocols": active})
}

func (s *Server) suspended() bool { return s.opt.Control != nil && s.opt.Control.Suspended() }

// connectionsFull says whether one more client would be refused, and how many there are.
func (s *Server) connectionsFull() (full bool, open int) {
	if s.opt.Resources == nil {
		return false, 0
	}
	r := s.opt.Resources()
	return r.MaxConnections > 0 && r.Connections >= r.MaxConnections, r.Connections
}

const connectionsFullReason = "node connection limit is reached"

func checkInService(r *request) error {
	if r.s.suspended() {
		return r.health("this rabbit node is not currently available to serve", nil)
	}
	return r.health("", nil)
}

func checkConnectionLimit(r *request) error {
	if full, _ := r.s.connectionsFull(); full {
		return r.health(connectionsFullReason, nil)
	}
	return r.health("", nil)
}

func checkServing(r *request) error {
	if r.s.suspended() {
		return r.health("the rabbit node is not currently available to serve", nil)
	}
	if !slices.ContainsFunc(r.s.listeners(), func(l api.Listener) bool { return strings.HasPrefix(l.Protocol, "amqp") }) {
		return r.health("no active listeners for AMQP/AMQPS", nil)
	}
	if full, open := r.s.connectionsFull(); full {
		return r.health(connectionsFullReason, map[string]any{"connections": open})
	}
	return r.health("", nil)
}

// expiring is one listener whose certificate ends soon.
type expiring struct {
	Node      string   `json:"node"`
	Protocol  string   `json:"protocol"`
	Interface string   `json:"interface"`
	Port      int      `json:"port"`
	CertFile  string   `json:"certfile"`
	CAFile    string   `json:"cacertfile"`
	Expires   []string `json:"certfile_expires_on"`
	CAExpires []string `json:"cacertfile_expires_on"`
}

func checkCertificates(r *request) error {
	within, err := strconv.Atoi(r.vars["within"])
	if err != nil {
		return badRequest("Invalid expiration value.")
	}
	until := time.Now()
	switch r.vars["unit"] {
	case "days":
		until = until.AddDate(0, 0, within)
	case "weeks":
		until = until.AddDate(0, 0, 7*within)
	case "months":
		until = until.AddDate(0, within, 0)
	case "years":
		until = until.AddDate(within, 0, 0)
	default:
		return badRequest("Time unit not recognised. Supported units: days, weeks, months, years.")
	}
	var expired []expiring
	if r.s.opt.Listeners != nil {
		for _, l := range r.s.opt.Listeners() {
			if l.Certificate == nil {
				continue
			}
			if c := l.Certificate(); c != nil && c.NotAfter.Before(until) {
				expired = append(expired, r.s.expiring(&l, c))
			}
		}
	}
	if expired == nil {
		return r.health("", nil)
	}
	return r.health("Certificates expiring", map[string]any{"expired": expired})
}

func (s *Server) expiring(l *Listener, c *x509.Certificate) expiring {
	host, port, _ := net.SplitHostPort(l.Addr.String())
	n, _ := strconv.Atoi(port)
	return expiring{
		Node: s.opt.Node, Protocol: l.Protocol, Interface: host, Port: n,
		Expires: []string{c.NotAfter.UTC().Format(time.RFC3339)}, CAExpires: []string{},
	}
}

func checkNode(r *request) error {
	if _, named := r.vars["node"]; named {
		if err := r.thisNode(); err != nil {
			return err
		}
	}
	m := r.s.machine()
	var alarms []string
	if m.memoryAlarm {
		alarms = append(alarms, "memory")
	}
	if m.diskAlarm {
		alarms = append(alarms, "disk")
	}
	if alarms != nil {
		return r.health("resource alarm(s) in effect:["+strings.Join(alarms, ",")+"]", nil)
	}
	return r.health("", nil)
}

// aliveQueue is what the aliveness test declares in a vhost; it stays.
const aliveQueue = "aliveness-test"

// aliveness declares a queue, publishes a message to it and gets it again.
func aliveness(r *request) error {
	out := &outcome{settled: make(chan *broker.Error, 1)}
	return r.act(func(c *broker.Conn) error {
		if _, e := c.DeclareQueue(&broker.QueueDeclare{Name: aliveQueue}); e != nil {
			return refusal(e)
		}
		ch, e := c.Open(1, out)
		if e != nil {
			return refusal(e)
		}
		defer ch.Close()
		if e := ch.Publish(r.s.opt.Broker.NewPublish(new(table.Properties), "", aliveQueue, []byte("test_message"))); e != nil {
			return refusal(e)
		}
		ok, e := ch.Get(aliveQueue, true, func(*broker.Delivery, int) {})
		if e != nil {
			return refusal(e)
		}
		if !ok {
			return r.health("the message published was not there", nil)
		}
		return healthy(r)
	})
}
