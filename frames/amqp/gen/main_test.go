package main

import (
	"bytes"
	"os"
	"slices"
	"testing"
)

func TestTheGeneratedFileIsCurrent(t *testing.T) {
	want, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../methods_gen.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatal("methods_gen.go is not what the table gives: run go generate ./frames/amqp")
	}
}

func TestGoName(t *testing.T) {
	for in, want := range map[string]string{
		"routing-key": "RoutingKey", "class-id": "ClassID", "ack": "Ack", "recover-async": "RecoverAsync",
	} {
		if got := goName(in); got != want {
			t.Errorf("goName(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestParseFields(t *testing.T) {
	got := parseFields("short, queue shortstr, no-wait bit")
	want := []field{{domain: "short", reserved: true}, {name: "queue", domain: "shortstr"}, {name: "no-wait", domain: "bit"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestBitsShareAnOctetOnlyWithNeighbours(t *testing.T) {
	fields := parseFields("a bit, b bit, c short, d bit")
	if got := len(bits(fields)); got != 2 {
		t.Errorf("first run has %d bits, want 2", got)
	}
	if got := len(bits(fields[3:])); got != 1 {
		t.Errorf("last run has %d bits, want 1", got)
	}
	nine := parseFields("a bit, b bit, c bit, d bit, e bit, f bit, g bit, h bit, i bit")
	if got := len(bits(nine)); got != 8 {
		t.Errorf("a run of nine puts %d into the first octet, want 8", got)
	}
}

// A synchronous method and its answer are told apart by the table alone: ids must be unique, and
// what has content must have a sender.
func TestTheTableIsConsistent(t *testing.T) {
	for _, c := range classes {
		seen := map[uint16]string{}
		for _, m := range c.methods {
			if other, dup := seen[m.id]; dup {
				t.Errorf("%s.%s and %s.%s share the id %d", c.name, m.name, c.name, other, m.id)
			}
			seen[m.id] = m.name
			if m.flags&(client|server) == 0 {
				t.Errorf("%s.%s is sent by nobody", c.name, m.name)
			}
		}
	}
}
