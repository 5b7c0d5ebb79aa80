// Package definitions writes and reads the broker's durable state, messages excepted, as
// RabbitMQ's definitions JSON, so that it can be read, backed up, and imported by
// either broker. What only FireMQ needs stands under the key "firemq", which others ignore.
package definitions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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

// Encode writes s.
func Encode(s *broker.Snapshot) ([]byte, error) {
	f := file{
		RabbitVersion: level, RabbitMQVersion: level, ProductName: "FireMQ",
		GlobalParameters: globals(s.Globals),
		FireMQ:           &own{Position: s.Position, NextQueueID: s.NextQueueID},
	}
	f.putUsers(&s.Users)
	f.putPolicies(s)
	for _, v := range slices.Sorted(slices.Values(s.VHosts)) {
		f.VHosts = append(f.VHosts, vhost{Name: v, Metadata: metadata(s.VHostMeta[v]), Tracing: s.VHostMeta[v].Tracing})
	}
	slices.SortFunc(s.Exchanges, func(a, b broker.ExchangeDef) int {
		return compare(a.VHost, b.VHost, a.Name, b.Name)
	})
	for i := range s.Exchanges {
		x := &s.Exchanges[i]
		f.Exchanges = append(f.Exchanges, exchange{x.Name, x.VHost, x.Type, true, x.AutoDelete, x.Internal, arguments(x.Args)})
		f.FireMQ.ExchangeArgs = append(f.FireMQ.ExchangeArgs, table.Append(nil, x.Args))
	}
	slices.SortFunc(s.Queues, func(a, b broker.QueueDef) int { return compare(a.VHost, b.VHost, a.Name, b.Name) })
	f.Queues = make([]queue, 0, len(s.Queues))
	f.FireMQ.Queues = make([]queueID, 0, len(s.Queues))
	f.FireMQ.QueueArgs = make([][]byte, 0, len(s.Queues))
	for i := range s.Queues {
		q := &s.Queues[i]
		f.Queues = append(f.Queues, queue{q.Name, q.VHost, true, q.AutoDelete, arguments(q.Args)})
		f.FireMQ.Queues = append(f.FireMQ.Queues, queueID{q.VHost, q.Name, q.ID})
		f.FireMQ.QueueArgs = append(f.FireMQ.QueueArgs, table.Append(nil, q.Args))
	}
	slices.SortFunc(s.Bindings, func(a, b route.Binding) int {
		return compare(a.VHost, b.VHost, a.Source, b.Source, a.Dest, b.Dest, a.Key, b.Key)
	})
	f.Bindings = make([]binding, 0, len(s.Bindings))
	f.FireMQ.BindingArgs = make([][]byte, 0, len(s.Bindings))
	for i := range s.Bindings {
		r := &s.Bindings[i]
		to := "queue"
		if r.ToExchange {
			to = "exchange"
		}
		f.Bindings = append(f.Bindings, binding{r.Source, r.VHost, r.Dest, to, r.Key, arguments(r.Args)})
		f.FireMQ.BindingArgs = append(f.FireMQ.BindingArgs, table.Append(nil, r.Args))
	}
	f.fillEmpty()
	return json.MarshalIndent(&f, "", " ")
}

// fillEmpty makes empty lists of absent ones: RabbitMQ's tools expect arrays.
func (f *file) fillEmpty() {
	f.Users = orEmpty(f.Users)
	f.Parameters = orEmpty(f.Parameters)
	f.Policies = orEmpty(f.Policies)
	f.VHosts = orEmpty(f.VHosts)
	f.Permissions = orEmpty(f.Permissions)
	f.TopicPermissions = orEmpty(f.TopicPermissions)
	f.Queues = orEmpty(f.Queues)
	f.Exchanges = orEmpty(f.Exchanges)
	f.Bindings = orEmpty(f.Bindings)
}

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
	p, err := Encode(s)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return vfs.WriteFile(fsys, path, p)
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
