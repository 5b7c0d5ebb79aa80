package main

import (
	"strings"
	"testing"

	"github.com/firemq/firemq/server"
)

// TestRabbitMQTools: the tools answer as commands, with a line that is all theirs, and under their own names.
func TestRabbitMQTools(t *testing.T) {
	env := brokerEnv(t)
	tool := func(args ...string) result { return runWith(t.Context(), env, "", args...) }
	for line, want := range map[string]string{
		"rabbitmqctl version":                         server.Version,
		"rabbitmqctl --quiet list_users -n somewhere": "guest\t[administrator]",
		"rabbitmqctl --help":                          "Available commands:",
		"rabbitmq-diagnostics ping":                   "Ping succeeded",
		"rabbitmq-plugins list -m":                    "rabbitmq_management",
		"--help":                                      "rabbitmqctl ",
	} {
		if got := tool(strings.Fields(line)...); got.status != exitOK || !strings.Contains(got.out, want) {
			t.Errorf("%s: status %d, no %q in\n%s%s", line, got.status, want, got.out, got.err)
		}
	}
	if got := tool("rabbitmqctl", "list_queue"); got.status != 64 || !strings.Contains(got.err, "Did you mean 'list_queues'?") {
		t.Errorf("status %d, %s", got.status, got.err)
	}
	for program, want := range map[string]string{
		"/usr/local/bin/rabbitmqctl": "rabbitmqctl", "rabbitmq-plugins": "rabbitmq-plugins", "rabbitmq-diagnostics.exe": "rabbitmq-diagnostics",
		"firemq": "", "/opt/rabbitmqctl/firemq": "",
	} {
		if got := toolName(program); got != want {
			t.Errorf("%s: %q", program, got)
		}
	}
}
