package broker

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/journal"
	"github.com/firemq/firemq/route"
)

// Snapshot is everything durable but the messages, in the broker's own words; package
// definitions writes it as RabbitMQ's JSON.
type Snapshot struct {
	// Position is the journal position of the last topology change it holds.
	Position journal.Position
	// NextQueueID is the journal id of the next durable queue.
	NextQueueID uint64

	VHosts      []string
	VHostLimits map[string]Limits
	VHostMeta   map[string]VHostMeta
	Globals     map[string]json.RawMessage
	Policies    []PolicyDef
	Users       UserDefs
	Exchanges   []ExchangeDef
	Queues      []QueueDef
	Bindings    []route.Binding

	// Warnings say what a document held that means nothing here; Open logs them.
	Warnings []string
}

// ExchangeDef is a durable exchange.
type ExchangeDef struct {
	VHost string
	Exchange
}

// QueueDef is a durable queue.
type QueueDef struct {
	VHost      string
	Name       string
	ID         uint64 // in the journal
	AutoDelete bool
	Args       table.Table
}

func (q *Queue) definition() *QueueDef {
	return &QueueDef{VHost: q.vhost, Name: q.name, ID: q.id, AutoDelete: q.autoDelete, Args: q.args}
}

// Snapshot gives the durable state now. Before it is written where a start would find it, the caller
// waits until the journal has committed its Position (see Saved).
func (b *Broker) Snapshot() Snapshot {
	b.topo.RLock()
	defer b.topo.RUnlock()
	s := Snapshot{Position: b.topoPos, NextQueueID: b.nextID, Users: b.exportUsers()}
	s.Policies = b.listPolicies()
	s.Globals = maps.Clone(b.globals)
	s.VHostMeta = make(map[string]VHostMeta)
	for name, v := range b.vhosts {
		s.VHosts = append(s.VHosts, name)
		s.VHostMeta[name] = v.meta
		if len(v.limits) > 0 {
			if s.VHostLimits == nil {
				s.VHostLimits = make(map[string]Limits)
			}
			s.VHostLimits[name] = v.limits
		}
		for _, x := range v.exchanges {
			if x.Durable && !isPredeclared(x.Name) {
				s.Exchanges = append(s.Exchanges, ExchangeDef{name, *x})
			}
		}
		s.Queues = slices.Grow(s.Queues, len(v.queues))
		for _, q := range v.queues {
			if q.durable {
				s.Queues = append(s.Queues, *q.definition())
			}
		}
		b.routes.Bindings(name, func(r route.Binding) bool {
			if b.durableBinding(v, &r) {
				s.Bindings = append(s.Bindings, r)
			}
			return true
		})
	}
	return s
}

// Commit waits until the journal holds everything s says, so that s may be written to disk. What the
// broker started with is there already, also when the journal was lost and ends before it.
func (b *Broker) Commit(s *Snapshot) error {
	if b.journal == nil || s.Position <= b.opt.Start.Position {
		return nil
	}
	return b.journal.Sync(s.Position)
}

// Settled gives a chan that is closed when the disk has every change of topology, users and the rest of
// a Snapshot that was made so far: then who made one may be told. It stays open when the disk fails.
// Any goroutine, no lock held.
func (b *Broker) Settled() <-chan struct{} {
	b.topo.RLock()
	pos := b.topoPos
	b.topo.RUnlock()
	if b.journal == nil || pos <= b.opt.Start.Position {
		done := make(chan struct{})
		close(done)
		return done
	}
	return b.done.await(pos)
}

// Saved says that s is safely on disk: the journal may forget the topology records it covers.
func (b *Broker) Saved(s *Snapshot) {
	if b.journal != nil {
		b.journal.Floor(s.Position + 1)
	}
}
