package crash

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firemq/firemq/test/internal/brokertest"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// A broker that can't start says why in one line that also says what to do, and ends with a
// status that is not 0.
func TestStartErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().String()
	running := filepath.Join(t.TempDir(), "data")
	brokertest.Start(t, brokertest.Options{Data: running})
	// By the environment, so that the flags of a case win.
	anyPorts := []string{"FIREMQ_AMQP=127.0.0.1:0", "FIREMQ_FIRE=127.0.0.1:0", "FIREMQ_HTTP=127.0.0.1:0"}
	fresh := func() string { return filepath.Join(t.TempDir(), "data") }

	for _, c := range []struct {
		name string
		args []string
		want []string // cause and cure: parts of the line
	}{
		{"unknown flag", []string{"--no-such-flag"}, []string{"--no-such-flag", "--help"}},
		{"unknown command", []string{"frobnicate"}, []string{"frobnicate", "--help"}},
		{"listener that is no address", []string{"--ephemeral", "--amqp", "somewhere"}, []string{"--amqp", "somewhere", "port"}},
		{"port out of range", []string{"--ephemeral", "--fire", "70000"}, []string{"--fire", "70000", "port"}},
		{"flag value of the wrong kind", []string{"--fsync=perhaps"}, []string{"fsync", "perhaps"}},
		{"AMQP port in use", []string{"--data", fresh(), "--amqp", port}, []string{"in use", port, "--amqp"}},
		{"FireMQ port in use", []string{"--data", fresh(), "--fire", port}, []string{"in use", port, "--fire"}},
		{"HTTP port in use", []string{"--data", fresh(), "--http", port}, []string{"in use", port, "--http"}},
		{"second broker on the directory", []string{"--data", running}, []string{running, "in use by another broker", "--data"}},
		{"data directory is a file", []string{"--data", write(t, filepath.Join(t.TempDir(), "file"), "")}, []string{"file", "--data"}},
		{"data directory below a file", []string{"--data", filepath.Join(write(t, filepath.Join(t.TempDir(), "file"), ""), "data")}, []string{"file", "--data"}},
		{"data of a newer format", []string{"--data", filepath.Dir(write(t, filepath.Join(fresh(), "node.json"), `{"format": 1000}`))}, []string{"format 1000", "newer version"}},
		{"node.json that is no JSON", []string{"--data", filepath.Dir(write(t, filepath.Join(fresh(), "node.json"), `{"`))}, []string{"node.json"}},
		{"definitions that are no JSON", []string{"--data", filepath.Dir(write(t, filepath.Join(fresh(), "definitions.json"), `{"users": [`))}, []string{"definitions.json", "backup"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := brokertest.Run(t, "", anyPorts, c.args...)
			if r.Code <= 0 {
				t.Errorf("exit status %d, want one above 0", r.Code)
			}
			if strings.Contains(r.Stdout, "is ready") {
				t.Errorf("it said that it is ready:\n%s", r.Stdout)
			}
			line := strings.TrimSuffix(r.Stderr, "\n")
			if line == "" || strings.Contains(line, "\n") {
				t.Errorf("standard error is not one line:\n%s", r.Stderr)
			}
			for _, part := range c.want {
				if !strings.Contains(line, part) {
					t.Errorf("%q is not part of %q", part, line)
				}
			}
		})
	}
}

// A failed start must leave nothing that keeps the next from succeeding.
func TestStartAfterFailedStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	data := filepath.Join(t.TempDir(), "data")
	if r := brokertest.Run(t, "", nil, "--data", data, "--amqp", taken.Addr().String(), "--fire", "127.0.0.1:0", "--http", "127.0.0.1:0"); r.Code <= 0 {
		t.Fatalf("it started on a port in use: %+v", r)
	}
	brokertest.Start(t, brokertest.Options{Data: data})
}
