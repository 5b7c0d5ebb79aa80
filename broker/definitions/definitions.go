// Package definitions writes and reads the broker's durable state, messages excepted, as
// RabbitMQ's definitions JSON, so that it can be read, backed up, and imported by
// either broker. What only FireMQ needs stands under the key "firemq", which others ignore.
package definitions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
	"github.com/firemq/firemq/route"
)

// Format is the version of the data directory's layout, in node.json.
const Format = 1

// level is the RabbitMQ version whose definitions format this is.
const level = "3.13.7"

// file is the JSON document.
type file struct {
	RabbitVersion    string            `json:"rabbit_version"`
	RabbitMQVersion  string            `json:"rabbitmq_version"`
	ProductName      string            `json:"product_name"`
	Users            []user            `json:"users"`
	VHosts           []vhost           `json:"vhosts"`
	Permissions      []permission      `json:"permissions"`
	TopicPermissions []topicPermission `json:"topic_permissions"`
	Parameters       []parameter       `json:"parameters"`
	GlobalParameters []global          `json:"global_parameters"`
	Policies         []policyDef       `json:"policies"`
	Queues           []queue           `json:"queues"`
	Exchanges        []exchange        `json:"exchanges"`
	Bindings         []binding         `json:"bindings"`
	FireMQ           *own              `json:"firemq,omitempty"`
}

type user struct {
	Name             string  `json:"name"`
	PasswordHash     string  `json:"password_hash"`
	HashingAlgorithm string  `json:"hashing_algorithm"`
	Tags             tagList `json:"tags"`
	Limits           limits  `json:"limits"`
}

// tagList is an array, or the comma-separated string of older exports.
type tagList []string

func (t *tagList) UnmarshalJSON(p []byte) error {
	var s string
	if json.Unmarshal(p, &s) == nil {
		*t = nil
		for _, tag := range strings.Split(s, ",") {
			if tag = strings.TrimSpace(tag); tag != "" {
				*t = append(*t, tag)
			}
		}
		return nil
	}
	return json.Unmarshal(p, (*[]string)(t))
}

// limits is an object; RabbitMQ writes an empty array for none at times.
type limits map[string]int

func (l *limits) UnmarshalJSON(p []byte) error {
	if bytes.Equal(p, []byte("[]")) || bytes.Equal(p, []byte("{}")) {
		*l = nil
		return nil
	}
	return json.Unmarshal(p, (*map[string]int)(l))
}

func (l limits) MarshalJSON() ([]byte, error) {
	if l == nil {
		return []byte("{}"), nil
	}
	return json.Marshal(map[string]int(l))
}

type permission struct {
	User      string `json:"user"`
	VHost     string `json:"vhost"`
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
}

type topicPermission struct {
	User     string `json:"user"`
	VHost    string `json:"vhost"`
	Exchange string `json:"exchange"`
	Write    string `json:"write"`
	Read     string `json:"read"`
}

type queue struct {
	Name       string         `json:"name"`
	VHost      string         `json:"vhost"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Arguments  map[string]any `json:"arguments"`
}

type exchange struct {
	Name       string         `json:"name"`
	VHost      string         `json:"vhost"`
	Type       string         `json:"type"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Internal   bool           `json:"internal"`
	Arguments  map[string]any `json:"arguments"`
}

type binding struct {
	Source          string         `json:"source"`
	VHost           string         `json:"vhost"`
	Destination     string         `json:"destination"`
	DestinationType string         `json:"destination_type"`
	RoutingKey      string         `json:"routing_key"`
	Arguments       map[string]any `json:"arguments"`
}

// own ties the document to the journal beside it.
type own struct {
	Position    uint64    `json:"journal_position"`
	NextQueueID uint64    `json:"next_queue_id"`
	Queues      []queueID `json:"queues"`
	// Args holds the arguments of exchanges, queues and bindings as field tables, in
	// their order here: JSON alone loses the types of numbers.
	ExchangeArgs, QueueArgs, BindingArgs [][]byte
}

type queueID struct {
	VHost string `json:"vhost"`
	Name  string `json:"name"`
	ID    uint64 `json:"id"`
}

// Encode writes s to w, an object at a time: there may be many, and what they are encoded with takes memory.
func Encode(w io.Writer, s *broker.Snapshot) error {
	var f file
	f.putUsers(&s.Users)
	f.putPolicies(s)
	slices.Sort(s.VHosts)
	slices.SortFunc(s.Exchanges, func(a, b broker.ExchangeDef) int {
		return compare(a.VHost, b.VHost, a.Name, b.Name)
	})
	slices.SortFunc(s.Queues, func(a, b broker.QueueDef) int { return compare(a.VHost, b.VHost, a.Name, b.Name) })
	slices.SortFunc(s.Bindings, func(a, b route.Binding) int {
		return compare(a.VHost, b.VHost, a.Source, b.Source, a.Dest, b.Dest, a.Key, b.Key)
	})
	d := newDocument(w)
	d.value("rabbit_version", level)
	d.value("rabbitmq_version", level)
	d.value("product_name", "FireMQ")
	listOf(d, "users", f.Users, as)
	listOf(d, "vhosts", s.VHosts, func(v *string) vhost {
		return vhost{Name: *v, Metadata: metadata(s.VHostMeta[*v]), Tracing: s.VHostMeta[*v].Tracing}
	})
	listOf(d, "permissions", f.Permissions, as)
	listOf(d, "topic_permissions", f.TopicPermissions, as)
	listOf(d, "parameters", f.Parameters, as)
	listOf(d, "global_parameters", globals(s.Globals), as)
	listOf(d, "policies", f.Policies, as)
	listOf(d, "queues", s.Queues, func(q *broker.QueueDef) queue {
		return queue{q.Name, q.VHost, true, q.AutoDelete, arguments(q.Args)}
	})
	listOf(d, "exchanges", s.Exchanges, func(x *broker.ExchangeDef) exchange {
		return exchange{x.Name, x.VHost, x.Type, true, x.AutoDelete, x.Internal, arguments(x.Args)}
	})
	listOf(d, "bindings", s.Bindings, func(r *route.Binding) binding {
		to := "queue"
		if r.ToExchange {
			to = "exchange"
		}
		return binding{r.Source, r.VHost, r.Dest, to, r.Key, arguments(r.Args)}
	})
	d.object("firemq")
	d.value("journal_position", s.Position)
	d.value("next_queue_id", s.NextQueueID)
	listOf(d, "queues", s.Queues, func(q *broker.QueueDef) queueID { return queueID{q.VHost, q.Name, q.ID} })
	listOf(d, "ExchangeArgs", s.Exchanges, func(x *broker.ExchangeDef) []byte { return encoded(x.Args) })
	listOf(d, "QueueArgs", s.Queues, func(q *broker.QueueDef) []byte { return encoded(q.Args) })
	listOf(d, "BindingArgs", s.Bindings, func(r *route.Binding) []byte { return encoded(r.Args) })
	d.end()
	d.end()
	return d.close()
}

// as is an object that is written as it is.
func as[T any](v *T) T { return *v }

func encoded(t table.Table) []byte { return table.Append(nil, t) }

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// compare orders by the first pair that differs.
func compare(pairs ...string) int {
	for i := 0; i < len(pairs); i += 2 {
		if c := strings.Compare(pairs[i], pairs[i+1]); c != 0 {
			return c
		}
	}
	return 0
}

var noArguments = map[string]any{} // which nobody writes to

func arguments(t table.Table) map[string]any {
	if len(t) == 0 {
		return noArguments
	}
	return t.Map()
}

// Decode reads a document written by Encode or exported by RabbitMQ.
func Decode(p []byte) (broker.Snapshot, error) {
	var f file
	d := json.NewDecoder(bytes.NewReader(p))
	d.UseNumber()
	if err := d.Decode(&f); err != nil {
		return broker.Snapshot{}, err
	}
	s := broker.Snapshot{Globals: globalsOf(f.GlobalParameters)}
	o := f.FireMQ
	if o == nil {
		o = &own{}
	}
	s.Position, s.NextQueueID = o.Position, o.NextQueueID
	f.users(&s.Users)
	for _, v := range f.VHosts {
		s.VHosts = append(s.VHosts, v.Name)
		if m := v.meta(); !m.Empty() {
			if s.VHostMeta == nil {
				s.VHostMeta = make(map[string]broker.VHostMeta)
			}
			s.VHostMeta[v.Name] = m
		}
	}
	if err := f.policies(&s); err != nil {
		return s, err
	}
	for i, x := range f.Exchanges {
		args, err := argumentsOf(x.Arguments, o.ExchangeArgs, i, len(f.Exchanges))
		if err != nil {
			return s, fmt.Errorf("exchange '%s' in vhost '%s': arguments: %w", x.Name, x.VHost, err)
		}
		if x.Durable {
			s.Exchanges = append(s.Exchanges, broker.ExchangeDef{VHost: x.VHost, Exchange: broker.Exchange{
				Name: x.Name, Type: x.Type, Durable: true, AutoDelete: x.AutoDelete, Internal: x.Internal, Args: args}})
		}
	}
	ids := make(map[[2]string]uint64, len(o.Queues))
	for _, q := range o.Queues {
		ids[[2]string{q.VHost, q.Name}] = q.ID
	}
	for i, q := range f.Queues {
		args, err := argumentsOf(q.Arguments, o.QueueArgs, i, len(f.Queues))
		if err != nil {
			return s, fmt.Errorf("queue '%s' in vhost '%s': arguments: %w", q.Name, q.VHost, err)
		}
		if q.Durable {
			s.Queues = append(s.Queues, broker.QueueDef{
				VHost: q.VHost, Name: q.Name, ID: ids[[2]string{q.VHost, q.Name}], AutoDelete: q.AutoDelete, Args: args})
		}
	}
	for i, r := range f.Bindings {
		args, err := argumentsOf(r.Arguments, o.BindingArgs, i, len(f.Bindings))
		if err != nil {
			return s, fmt.Errorf("binding of '%s' in vhost '%s': arguments: %w", r.Destination, r.VHost, err)
		}
		s.Bindings = append(s.Bindings, route.Binding{
			VHost: r.VHost, Source: r.Source, ToExchange: r.DestinationType == "exchange", Dest: r.Destination, Key: r.RoutingKey, Args: args})
	}
	return s, nil
}

// argumentsOf prefers the typed arguments, when the list is whole.
func argumentsOf(m map[string]any, typed [][]byte, i, n int) (table.Table, error) {
	if len(typed) == n {
		if len(typed[i]) == 0 {
			return nil, nil
		}
		return table.Decode(typed[i])
	}
	return table.FromMap(m)
}

// maxBytes is more than the topology of any broker takes: a larger file is something else.
const maxBytes = 4 << 30

// Load reads the file that Save wrote; there is none: the snapshot is empty.
func Load(fsys vfs.FS, path string) (broker.Snapshot, error) {
	p, err := vfs.ReadFile(fsys, path, maxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return broker.Snapshot{}, nil
	}
	if err != nil {
		return broker.Snapshot{}, fmt.Errorf("read %s: %w", path, err)
	}
	s, err := Decode(p)
	if err != nil {
		return s, fmt.Errorf("%s is damaged: %w", path, err)
	}
	return s, nil
}

// Save replaces the file as a whole: whoever reads it after a crash finds the old or the new one.
func Save(fsys vfs.FS, path string, s *broker.Snapshot) error {
	return vfs.WriteFileFrom(fsys, path, func(w io.Writer) error { return Encode(w, s) })
}

// CheckFormat reads node.json, or writes it for a new directory. A newer format is refused.
func CheckFormat(fsys vfs.FS, path string) error {
	p, err := vfs.ReadFile(fsys, path, maxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return vfs.WriteFile(fsys, path, fmt.Appendf(nil, "{\"format\": %d}\n", Format))
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	var n struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(p, &n); err != nil || n.Format < 1 {
		return fmt.Errorf("%s does not say which format the data directory has: this is no FireMQ data directory, or the file is damaged; choose another with --data", path)
	}
	if n.Format > Format {
		return fmt.Errorf("the data directory has format %d and this version reads up to %d: start the newer version that wrote it", n.Format, Format)
	}
	return nil
}

// putUsers writes users and permissions.
func (f *file) putUsers(d *broker.UserDefs) {
	for _, u := range d.Users {
		f.Users = append(f.Users, user{u.Name, u.Hash, string(u.Algorithm), orEmpty(u.Tags), u.Limits})
	}
	for _, p := range d.Permissions {
		f.Permissions = append(f.Permissions, permission(p))
	}
	for _, p := range d.Topics {
		f.TopicPermissions = append(f.TopicPermissions, topicPermission(p))
	}
}

// users reads users and permissions.
func (f *file) users(d *broker.UserDefs) {
	for _, u := range f.Users {
		d.Users = append(d.Users, auth.User{
			Name: u.Name, Hash: u.PasswordHash, Algorithm: auth.Algorithm(u.HashingAlgorithm), Tags: u.Tags, Limits: u.Limits})
	}
	for _, p := range f.Permissions {
		d.Permissions = append(d.Permissions, auth.Permission(p))
	}
	for _, p := range f.TopicPermissions {
		d.Topics = append(d.Topics, auth.TopicPermission(p))
	}
}
