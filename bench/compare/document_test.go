package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// root is the folder of the repository.
const root = "../.."

// TestDocument: BENCHMARKS.md says what its data says. "bench/run.sh tables" writes it again.
func TestDocument(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "bench/results"), os.DirFS(filepath.Join(root, "bench/results"))); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join(root, "BENCHMARKS.md"))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if err := os.WriteFile("BENCHMARKS.md", want, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := tables(settings{results: "bench/results", document: "BENCHMARKS.md"}, ""); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("BENCHMARKS.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) == string(want) {
		return
	}
	is, should := strings.Split(string(want), "\n"), strings.Split(string(got), "\n")
	for i := range min(len(is), len(should)) {
		if is[i] != should[i] {
			t.Fatalf("line %d is\n%s\nand its data says\n%s", i+1, is[i], should[i])
		}
	}
	t.Fatalf("%d lines, and its data says %d", len(is), len(should))
}

// TestReasons: each row of the newest results says what limits it, and each better figure of a peer why it is.
func TestReasons(t *testing.T) {
	dir, err := newest(filepath.Join(root, "bench/results"), "runs.csv")
	if err != nil {
		t.Fatal(err)
	}
	r, err := readReport(dir)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, l := range limits {
		known[l.scenario] = true
	}
	for _, row := range r.rows {
		if !known[row.Scenario] {
			t.Errorf("nothing is said of what limits %q", row.Scenario)
		}
	}
	for _, b := range r.betters() {
		if b.why() == "" {
			t.Errorf("nothing is said of why %s of %s has a better %s", b.scenario, b.broker, b.quantity.name)
		}
	}
}

// TestBetters: a figure counts if it is better by more than is told.
func TestBetters(t *testing.T) {
	r := &report{brokers: []string{"firemq", "firemq-fmq1", "nats", "rabbitmq"}, rows: []result{
		{Scenario: "transient", Broker: "firemq", CPU: 1, Delivered: 1000, RSS: 10},
		{Scenario: "transient", Broker: "firemq-fmq1", CPU: 0.1, Delivered: 9000, RSS: 1},
		{Scenario: "transient", Broker: "nats", CPU: 0.96, Delivered: 1100, RSS: 11},
		{Scenario: "transient", Broker: "rabbitmq", CPU: 40, Delivered: 1040, RSS: 9},
		{Scenario: "idle", Broker: "nats", Seconds: 0.1},
	}}
	got := ""
	for _, b := range r.betters() {
		got += b.scenario + " " + b.broker + " " + b.quantity.name + "; "
	}
	if want := "transient nats delivered; transient rabbitmq peak memory; "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
