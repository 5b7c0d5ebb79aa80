package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/server"
)

// exported is what a RabbitMQ 3.8 with mirrored and quorum queues writes, in short.
const exported = `{
	"rabbit_version": "3.8.34", "rabbitmq_version": "3.8.34",
	"users": [{"name": "app", "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
		"hashing_algorithm": "rabbit_password_hashing_sha256", "tags": "administrator"}],
	"vhosts": [{"name": "/"}, {"name": "sales"}],
	"permissions": [{"user": "app", "vhost": "sales", "configure": ".*", "write": ".*", "read": ".*"}],
	"topic_permissions": [], "global_parameters": [{"name": "cluster_name", "value": "rabbit@old"}],
	"parameters": [{"value": {"max-queues": 10}, "vhost": "sales", "component": "vhost-limits", "name": "limits"}],
	"policies": [{"vhost": "sales", "name": "ha", "pattern": "", "apply-to": "all", "definition": {"ha-mode": "all"}, "priority": 0}],
	"queues": [{"name": "orders", "vhost": "sales", "durable": true, "auto_delete": false, "arguments": {"x-queue-type": "quorum"}}],
	"exchanges": [{"name": "events", "vhost": "sales", "type": "topic", "durable": true, "auto_delete": false, "internal": false, "arguments": {}}],
	"bindings": [{"source": "events", "vhost": "sales", "destination": "orders", "destination_type": "queue", "routing_key": "order.#", "arguments": {}}]
}`

// importing are options of a broker that loads document, with or without a data directory of its own.
func importing(t *testing.T, data, document string) server.Options {
	t.Helper()
	file := filepath.Join(t.TempDir(), "import.json")
	if err := os.WriteFile(file, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	return server.Options{AMQP: "127.0.0.1:0", Data: data, Ephemeral: data == "", Version: "test", Import: file}
}

// inventory is what a broker holds, in short.
func inventory(b *broker.Broker) (users []string, queues, exchanges, bindings int) {
	for _, u := range b.Users().Users() {
		users = append(users, u.Name)
	}
	for _, v := range b.VHosts() {
		queues += len(b.Queues(v))
		exchanges += len(b.Exchanges(v))
		bindings += len(b.Bindings(v, broker.BindingFilter{}))
	}
	return users, queues, exchanges, bindings
}

// TestImportAtStart: every start loads the file, the second changes nothing, and what was made outlives a
// start without it. Users in the file stand in for the first user.
func TestImportAtStart(t *testing.T) {
	o := importing(t, t.TempDir(), exported)
	for round, file := range []string{o.Import, o.Import, ""} {
		o.Import = file
		s, err := server.Start(t.Context(), o)
		if err != nil {
			t.Fatalf("start %d: %v", round, err)
		}
		users, queues, exchanges, bindings := inventory(s.Broker())
		if len(users) != 1 || users[0] != "app" || queues != 1 || exchanges != 7+7+1 || bindings != 2 {
			t.Errorf("start %d: users %v, %d queues, %d exchanges, %d bindings", round, users, queues, exchanges, bindings)
		}
		if _, err := s.Broker().Users().Authenticate("app", "test12"); err != nil {
			t.Errorf("start %d: %v", round, err)
		}
		if exists, password := s.FirstUser(); exists || password {
			t.Errorf("start %d: the first user exists: %t, has its password: %t", round, exists, password)
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestImportWithoutUsers: definitions that name no user leave the first user to be made.
func TestImportWithoutUsers(t *testing.T) {
	s, err := server.Start(t.Context(), importing(t, "", `{"vhosts": [{"name": "v"}], "queues": [{"name": "q", "vhost": "v"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown(t.Context())
	if users, queues, _, _ := inventory(s.Broker()); len(users) != 1 || users[0] != "guest" || queues != 1 {
		t.Errorf("users %v, %d queues", users, queues)
	}
	if exists, password := s.FirstUser(); !exists || !password {
		t.Errorf("the first user exists: %t, has its password: %t", exists, password)
	}
	if err := s.Broker().Users().SetPassword("guest", "another"); err != nil {
		t.Fatal(err)
	}
	if exists, password := s.FirstUser(); !exists || password {
		t.Errorf("after a change: the first user exists: %t, has its password: %t", exists, password)
	}
}

// TestImportRefused: one fault, and the broker does not start; all faults are told on one line, and the next
// start finds nothing of the document.
func TestImportRefused(t *testing.T) {
	data := t.TempDir()
	faulty := strings.Replace(exported, `"queues": [`, `"queues": [
		{"name": "log", "vhost": "sales", "arguments": {"x-queue-type": "stream"}}, {"name": "lost", "vhost": "nowhere"},`, 1)
	_, err := server.Start(t.Context(), importing(t, data, faulty))
	if err == nil {
		t.Fatal("it starts")
	}
	for _, want := range []string{"import.json was not imported", "'log'", "stream", "vhost 'nowhere' does not exist", "start without --import"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %q", want, err)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %q", err)
	}
	o := importing(t, data, "")
	o.Import = ""
	s, err := server.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	users, queues, exchanges, _ := inventory(s.Broker())
	if len(users) != 1 || users[0] != "guest" || queues != 0 || exchanges != 7 {
		t.Errorf("users %v, %d queues, %d exchanges", users, queues, exchanges)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}

	for document, want := range map[string]string{
		"{":                          "import.json was not imported: line 1, column 2: the file ends before its JSON does; correct it",
		"[1]":                        "import.json was not imported: line 1, column 1: this is no JSON object",
		"{\"users\": [],\n \"é\" 1}": "import.json was not imported: line 2, column 6: invalid character '1' after object key",
	} {
		if _, err := server.Start(t.Context(), importing(t, "", document)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", document, err)
		}
	}
	o = importing(t, "", "")
	o.Import += ".absent"
	if _, err := server.Start(t.Context(), o); err == nil || !strings.Contains(err.Error(), "cannot be read: no such file") {
		t.Errorf("absent: %v", err)
	}
}
