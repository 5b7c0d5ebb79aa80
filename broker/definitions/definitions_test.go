package definitions

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
	"github.com/firemq/firemq/route"
)

func sample() broker.Snapshot {
	return broker.Snapshot{
		Position: 1 << 40, NextQueueID: 9,
		VHosts:    []string{"/", "dev"},
		VHostMeta: map[string]broker.VHostMeta{"dev": {Description: "for tests", Tags: []string{"a"}, DefaultQueueType: "quorum", Tracing: true, Protected: true}},
		Globals:   map[string]json.RawMessage{"cluster_name": json.RawMessage(`"here"`)},
		Users: broker.UserDefs{
			Users:       []auth.User{{Name: "guest", Hash: auth.HashPassword("guest"), Algorithm: auth.DefaultAlgorithm, Tags: []string{"administrator"}}},
			Permissions: []auth.Permission{{User: "guest", VHost: "/", Configure: ".*", Write: ".*", Read: "^a"}},
			Topics:      []auth.TopicPermission{{User: "guest", VHost: "/", Exchange: "amq.topic", Write: "^a", Read: "^b"}},
		},
		Exchanges: []broker.ExchangeDef{{VHost: "/", Exchange: broker.Exchange{
			Name: "x", Type: "topic", Durable: true, Internal: true, Args: table.Table{{Name: "alternate-exchange", Value: table.StringValue("ae")}}}}},
		Queues: []broker.QueueDef{{VHost: "dev", Name: "q", ID: 8, AutoDelete: true,
			Args: table.Table{{Name: "x-max-priority", Value: table.Int32Value(5)}, {Name: "when", Value: table.TimeValue(7)}}}},
		Bindings: []route.Binding{
			{VHost: "/", Source: "x", Dest: "y", ToExchange: true, Key: "k"},
			{VHost: "dev", Source: "amq.headers", Dest: "q", Args: table.Table{{Name: "x-match", Value: table.StringValue("any")}}},
		},
	}
}

func TestSavedIsLoadedAgainWithEveryType(t *testing.T) {
	path := filepath.Join(t.TempDir(), "definitions.json")
	want := sample()
	if err := Save(vfs.OS{}, path, &want); err != nil {
		t.Fatal(err)
	}
	got, err := Load(vfs.OS{}, path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
}

// encode is Encode in memory.
func encode(s *broker.Snapshot) ([]byte, error) {
	var b bytes.Buffer
	err := Encode(&b, s)
	return b.Bytes(), err
}

// What is written bit by bit is what encoding/json would write at once.
func TestDocumentIsWhatJSONWrites(t *testing.T) {
	full := sample()
	for _, s := range []broker.Snapshot{full, {}} {
		p, err := encode(&s)
		if err != nil {
			t.Fatal(err)
		}
		var f file
		d := json.NewDecoder(bytes.NewReader(p))
		d.UseNumber()
		if err := d.Decode(&f); err != nil {
			t.Fatalf("%v: %s", err, p)
		}
		if whole, err := json.MarshalIndent(&f, "", " "); err != nil || !bytes.Equal(p, whole) {
			t.Errorf("%v\n%s\nis not\n%s", err, p, whole)
		}
	}
}

// An error of the disk in the middle of the document leaves the file as it was.
func TestSaveFails(t *testing.T) {
	s := sample()
	if err := Encode(new(fullDisk), &s); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("got %v", err)
	}
	s.Globals = map[string]json.RawMessage{"broken": json.RawMessage("{")}
	path := filepath.Join(t.TempDir(), "definitions.json")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Save(vfs.OS{}, path, &s); err == nil {
		t.Error("a value that is no JSON is saved")
	}
	if p, err := os.ReadFile(path); err != nil || string(p) != "old" {
		t.Errorf("the file is %q, %v", p, err)
	}
}

type fullDisk struct{}

func (*fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestMissingFileIsEmptyAndDamageIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "definitions.json")
	if s, err := Load(vfs.OS{}, path); err != nil || len(s.VHosts) != 0 {
		t.Fatalf("missing: %+v, %v", s, err)
	}
	if err := os.WriteFile(path, []byte(`{"queues": [`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(vfs.OS{}, path); err == nil || !strings.Contains(err.Error(), path+" is damaged") {
		t.Fatalf("damaged: %v", err)
	}
}

func TestReadsAnExportOfRabbitMQ(t *testing.T) {
	s, err := Decode([]byte(`{"rabbit_version":"3.10.8","users":[{"name":"ops","password_hash":"aGFzaA==","hashing_algorithm":"rabbit_password_hashing_sha256","tags":"monitoring,policymaker","limits":[]}],
		"vhosts":[{"name":"sales"}],"permissions":[{"user":"ops","vhost":"sales","configure":"","write":".*","read":".*"}],
		"queues":[{"name":"orders","vhost":"sales","durable":true,"auto_delete":false,"arguments":{"x-max-length":10}}],
		"exchanges":[{"name":"events","vhost":"sales","type":"topic","durable":true,"auto_delete":false,"internal":false,"arguments":{}}],
		"bindings":[{"source":"events","vhost":"sales","destination":"orders","destination_type":"queue","routing_key":"a.#","arguments":{}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if tags := s.Users.Users[0].Tags; len(tags) != 2 || tags[1] != "policymaker" {
		t.Errorf("tags %v", tags)
	}
	n, _ := s.Queues[0].Args.Get("x-max-length")
	if v, ok := n.AsInt(); !ok || v != 10 {
		t.Errorf("x-max-length is %v", n)
	}
	if b := s.Bindings[0]; b.ToExchange || b.Dest != "orders" || b.Key != "a.#" {
		t.Errorf("binding %+v", b)
	}
}

func TestNewerFormatIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.json")
	for range 2 { // made, then read
		if err := CheckFormat(vfs.OS{}, path); err != nil {
			t.Fatal(err)
		}
	}
	for content, want := range map[string]string{
		`{"format": 2}`: "has format 2 and this version reads up to 1",
		`{}`:            "does not say which format",
		`x`:             "does not say which format",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := CheckFormat(vfs.OS{}, path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", content, err)
		}
	}
}
