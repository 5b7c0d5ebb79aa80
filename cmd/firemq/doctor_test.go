package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	fire "github.com/firemq/firemq/sdk/go"
	"github.com/firemq/firemq/server"
)

// filled is the data directory of a broker that took 100 messages and stopped.
func filled(t *testing.T) string {
	t.Helper()
	return filledWith(t, nil, "--count", "100")
}

// filledWith is the data directory of a broker whose queue jobs has these arguments, and that stopped after a pub with
// these flags.
func filledWith(t *testing.T, args map[string]any, pub ...string) string {
	t.Helper()
	dir := t.TempDir()
	s, err := server.Start(t.Context(), server.Options{Data: dir, Fire: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	url := "fire://guest:guest@" + s.FireAddr().String()
	c, err := fire.Dial(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeclareQueue(t.Context(), "jobs", fire.QueueOptions{Args: args}); err != nil {
		t.Fatal(err)
	}
	c.Close()
	r := runWith(t.Context(), nil, "", append([]string{"pub", "--url", url, "--queue", "jobs", "--persistent", "0123456789"}, pub...)...)
	if r.status != exitOK {
		t.Fatalf("pub: %+v", r)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestDoctorReportsADataDirectory(t *testing.T) {
	dir := filled(t)
	before := snapshotOf(t, dir)
	r := runWith(t.Context(), nil, "", "doctor", "--data", dir)
	if r.status != exitOK {
		t.Fatalf("%+v", r)
	}
	for _, want := range []string{"shut down cleanly", "0000000001.seg", "jobs", "1 queue, 100 messages", "No damage."} {
		if !strings.Contains(r.out, want) {
			t.Errorf("%q is missing in:\n%s", want, r.out)
		}
	}
	after := snapshotOf(t, dir)
	for name, content := range before {
		if after[name] != content {
			t.Errorf("%s has changed", name)
		}
	}
	if len(before) != len(after) {
		t.Errorf("%d files, then %d", len(before), len(after))
	}
}

// The keys of a queue that de-duplicates are in the properties of the messages, in each protocol's own encoding.
func TestDoctorReadsAQueueThatDeduplicates(t *testing.T) {
	for _, args := range []map[string]any{
		{"x-message-deduplication": true},
		{"x-message-deduplication": true, "x-cache-size": 10},
		{"x-message-deduplication": true, "x-deduplication-by": "message-id"},
	} {
		dir := filledWith(t, args, "-H", "x-deduplication-header=a")
		r := runWith(t.Context(), nil, "", "doctor", "--data", dir)
		if r.status != exitOK || !strings.Contains(r.out, "1 queue, 1 message;") {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

func TestDoctorFindsDamage(t *testing.T) {
	dir := filled(t)
	name := filepath.Join(dir, "journal", "0000000001.seg")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	i := strings.Index(string(b), "0123456789")
	b[i] ^= 1
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	r := runWith(t.Context(), nil, "", "doctor", "--data", dir)
	if r.status != exitFailure || !strings.Contains(r.out, "DAMAGE "+name) || !strings.Contains(r.out, "99 messages") {
		t.Errorf("%+v", r)
	}
}

// A segment without a header that can be read is damage, and after the start that moved it aside a note.
func TestDoctorMentionsWhatWasMovedAside(t *testing.T) {
	dir := filled(t)
	name := filepath.Join(dir, "journal", "0000000001.seg")
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if r := runWith(t.Context(), nil, "", "doctor", "--data", dir); r.status != exitFailure || !strings.Contains(r.out, "DAMAGE "+name) || strings.Contains(r.out, "NOTE") {
		t.Errorf("%+v", r)
	}
	s, err := server.Start(t.Context(), server.Options{Data: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := runWith(t.Context(), nil, "", "doctor", "--data", dir)
	if r.status != exitOK || !strings.Contains(r.out, "NOTE "+name+".damaged was damaged") || !strings.Contains(r.out, "No damage.") {
		t.Errorf("%+v", r)
	}
}

func TestDoctorWithoutADataDirectory(t *testing.T) {
	r := runWith(t.Context(), nil, "", "doctor", "--data", t.TempDir())
	if r.status != exitFailure || !strings.Contains(r.err, "is not a data directory") {
		t.Errorf("%+v", r)
	}
}

func TestDoctorLeavesARunningBrokerAlone(t *testing.T) {
	dir := t.TempDir()
	s, err := server.Start(t.Context(), server.Options{Data: dir, AMQP: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown(t.Context())
	r := runWith(t.Context(), nil, "", "doctor", "--data", dir)
	if r.status != exitFailure || !strings.Contains(r.err, "in use by a broker") {
		t.Errorf("%+v", r)
	}
	if got := runningBroker(s.AMQPAddr().String()); got != "FireMQ is running" {
		t.Errorf("running broker: %s", got)
	}
}

func TestDoctorChecksTheMachine(t *testing.T) {
	r := runWith(t.Context(), nil, "", "doctor")
	if r.status != exitOK || !strings.Contains(r.out, "Open files") || !strings.Contains(r.out, "5672") {
		t.Errorf("%+v", r)
	}
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if got := portState(port); got != "in use" {
		t.Errorf("port %s: %s", port, got)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if c, err := silent.Accept(); err == nil {
			c.Close()
		}
	}()
	defer silent.Close()
	if got := runningBroker(silent.Addr().String()); !strings.Contains(got, "not a broker") {
		t.Errorf("a port that says nothing: %s", got)
	}
}

// snapshotOf is the content of every file in a directory.
func snapshotOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		all[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
