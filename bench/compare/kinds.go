package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// kind is a broker and how it is started.
type kind struct {
	name string
	slow bool   // takes seconds to start: one is kept for all scenarios of a round, without CPU in between
	main string // scheme of the URL that tells when it is ready; "": amqp
	root string // it is installed in this root folder; "": in the machine's own

	// found says why it cannot run here.
	found func() error
	// prepare writes its settings into dir, which it sees as inside. ports: AMQP, FMQ1 or HTTP, two more.
	prepare func(inside, dir string, ports []int) error
	command func(inside string, ports []int) (command, env []string)
	cleanup func(ports []int) // what a stop leaves running; nil: nothing

	image string   // of a container
	port  int      // that it listens on for the main scheme in there; 0: AMQP's
	flags []string // of the container's command
}

// column is a kind and how it is spoken to: a column of the tables.
type column struct {
	name      string
	kind      *kind
	scheme    string // of the URL
	queueType string
	// only are its scenarios; none: all.
	only []string
}

func (c column) runs(scenario string) bool {
	return len(c.only) == 0 || slices.Contains(c.only, scenario)
}

// columns are all brokers that can be compared.
func columns(s settings) []column {
	firemq := fireMQ(s)
	rabbit := rabbitMQ("rabbitmq", "")
	rabbit.image = "rabbitmq:4-management"
	lavin, eager := lavinMQ(s, "lavinmq", false), lavinMQ(s, "lavinmq-nodelay", true)
	durable := []string{"persistent", "persistent-4x4", "persistent-1k", "latency-persistent"}
	list := []column{
		{name: "firemq", kind: firemq, scheme: "amqp"},
		{name: "firemq-fmq1", kind: firemq, scheme: "fire", only: []string{
			"transient", "transient-4x4", "persistent", "persistent-4x4", "persistent-1k", "latency", "latency-persistent"}},
		{name: "lavinmq", kind: lavin, scheme: "amqp"},
		{name: "lavinmq-nodelay", kind: eager, scheme: "amqp", only: []string{
			"transient", "transient-4x4", "persistent", "persistent-4x4", "persistent-1k", "fanout", "queues", "latency", "latency-persistent", "half", "half-persistent"}},
		{name: "rabbitmq", kind: rabbit, scheme: "amqp"},
		{name: "rabbitmq-quorum", kind: rabbit, scheme: "amqp", queueType: "quorum", only: durable},
	}
	nats, synced := natsServer(s, "nats", ""), natsServer(s, "nats-sync", "always")
	nats.image, nats.flags = "nats:latest", []string{"-js", "-sd", "/data"}
	list = append(list,
		column{name: "nats", kind: nats, scheme: "nats", only: []string{"idle", "transient", "transient-4x4", "latency", "half"}},
		column{name: "nats-jetstream", kind: nats, scheme: "jetstream", only: append(slices.Clone(durable), "drain")},
		column{name: "nats-jetstream-sync", kind: synced, scheme: "jetstream", only: durable}) // a backlog takes it half an hour
	if s.rabbitRoot != "" {
		other := rabbitMQ("rabbitmq-root", s.rabbitRoot)
		list = append(list,
			column{name: "rabbitmq-root", kind: other, scheme: "amqp"},
			column{name: "rabbitmq-root-quorum", kind: other, scheme: "amqp", queueType: "quorum", only: durable})
	}
	return list
}

// columnNames are in the order of the tables.
func columnNames() (names []string) {
	for _, c := range columns(settings{rabbitRoot: "/"}) {
		names = append(names, c.name)
	}
	return names
}

func fireMQ(s settings) *kind {
	return &kind{
		name:    "firemq",
		found:   func() error { _, err := exec.LookPath(s.firemq); return err },
		prepare: func(string, string, []int) error { return nil },
		command: func(inside string, ports []int) ([]string, []string) {
			return []string{s.firemq, "--amqp", local(ports[0]), "--fire", local(ports[1]), "--http", local(ports[2]),
				"--data", filepath.Join(inside, "data"), "--log-level", "warn"}, nil
		},
		image: loadImage,
	}
}

func local(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// rabbitMQ is a node without plugins, on ports and in a folder of its own.
func rabbitMQ(name, root string) *kind {
	const server = "/usr/lib/rabbitmq/bin/rabbitmq-server"
	epmd := []string{"epmd"}
	if root != "" {
		epmd = []string{"chroot", root, "epmd"}
	}
	return &kind{
		name:  name,
		root:  root,
		slow:  true,
		found: func() error { _, err := os.Stat(filepath.Join("/", root, server)); return err },
		prepare: func(inside, dir string, ports []int) error {
			config := fmt.Sprintf("listeners.tcp.default = %s\n", local(ports[0]))
			if err := os.WriteFile(filepath.Join(dir, "rabbitmq.conf"), []byte(config), 0o644); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "plugins"), []byte("[].\n"), 0o644)
		},
		command: func(inside string, ports []int) ([]string, []string) {
			return []string{server}, []string{
				fmt.Sprintf("RABBITMQ_NODENAME=compare%d@localhost", ports[0]),
				fmt.Sprintf("RABBITMQ_NODE_PORT=%d", ports[0]),
				fmt.Sprintf("RABBITMQ_DIST_PORT=%d", ports[1]),
				fmt.Sprintf("ERL_EPMD_PORT=%d", ports[2]), "ERL_EPMD_ADDRESS=127.0.0.1",
				"RABBITMQ_MNESIA_BASE=" + filepath.Join(inside, "data"), "RABBITMQ_LOG_BASE=" + filepath.Join(inside, "log"),
				"RABBITMQ_CONFIG_FILE=" + filepath.Join(inside, "rabbitmq.conf"),
				"RABBITMQ_ENABLED_PLUGINS_FILE=" + filepath.Join(inside, "plugins"),
			}
		},
		// Erlang's port mapper outlives the node. It ends when told to, once it has noticed that the node is gone.
		cleanup: func(ports []int) {
			for range 40 {
				out, _ := exec.Command(epmd[0], append(epmd[1:], "-port", fmt.Sprint(ports[2]), "-kill")...).CombinedOutput()
				if !strings.Contains(string(out), "not allowed") {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		},
	}
}

func lavinMQ(s settings, name string, nodelay bool) *kind {
	words := strings.Fields(s.lavinmq)
	return &kind{
		name: name,
		found: func() error {
			if len(words) == 0 {
				return fmt.Errorf("no command is given")
			}
			_, err := exec.LookPath(words[0])
			return err
		},
		prepare: func(inside, dir string, ports []int) error {
			config := fmt.Sprintf("[main]\ndata_dir = %s\ntcp_nodelay = %t\n", filepath.Join(inside, "data"), nodelay)
			return os.WriteFile(filepath.Join(dir, "lavinmq.ini"), []byte(config), 0o644)
		},
		command: func(inside string, ports []int) ([]string, []string) {
			return append(slices.Clone(words), "--config", filepath.Join(inside, "lavinmq.ini"), "--bind", "127.0.0.1",
				"--amqp-port", fmt.Sprint(ports[0]), "--http-port", fmt.Sprint(ports[1]), "--metrics-http-port", fmt.Sprint(ports[2]),
				"--mqtt-port", fmt.Sprint(ports[3]), "--control-unix-path", filepath.Join(inside, "control.sock")), nil
		},
		image: "cloudamqp/lavinmq:latest",
		flags: []string{"--guest-only-loopback=false"},
	}
}

// natsServer is no broker of this kind; it is here for reference. sync is its sync_interval: how long a message may
// wait for the disk after its ack, by default 2 minutes, and with "always" not at all.
func natsServer(s settings, name, sync string) *kind {
	return &kind{
		name:  name,
		main:  "nats",
		port:  4222,
		found: func() error { _, err := exec.LookPath(s.nats); return err },
		prepare: func(inside, dir string, ports []int) error {
			config := fmt.Sprintf("host: 127.0.0.1\nport: %d\njetstream {\n  store_dir: %q\n", ports[0], filepath.Join(inside, "data"))
			if sync != "" {
				config += "  sync_interval: " + sync + "\n"
			}
			return os.WriteFile(filepath.Join(dir, "nats.conf"), []byte(config+"}\n"), 0o644)
		},
		command: func(inside string, ports []int) ([]string, []string) {
			return []string{s.nats, "--config", filepath.Join(inside, "nats.conf")}, nil
		},
	}
}
