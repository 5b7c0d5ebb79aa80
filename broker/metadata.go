package broker

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/frames/table"
)

// VHostMeta is what operators note about a vhost.
type VHostMeta struct {
	Description      string   `json:"description,omitempty"`
	Tags             []string `json:"tags,omitempty"`
	DefaultQueueType string   `json:"default_queue_type,omitempty"` // "": classic
	Tracing          bool     `json:"tracing,omitempty"`
	Protected        bool     `json:"protected_from_deletion,omitempty"` // DeleteVHost refuses
}

// Empty says that nothing is noted.
func (m *VHostMeta) Empty() bool {
	return m.Description == "" && len(m.Tags) == 0 && m.DefaultQueueType == "" && !m.Tracing && !m.Protected
}

// VHostMeta gives what is noted about a vhost.
func (b *Broker) VHostMeta(vhost string) VHostMeta {
	b.topo.RLock()
	defer b.topo.RUnlock()
	if v := b.vhosts[vhost]; v != nil {
		return v.meta
	}
	return VHostMeta{}
}

// ChangeVHostMeta has alter change what is noted about a vhost, while nobody else does; it may call nothing of the
// broker. Error: NotFound.
func (b *Broker) ChangeVHostMeta(vhost string, alter func(*VHostMeta)) *Error {
	b.topo.Lock()
	defer b.topo.Unlock()
	v := b.vhosts[vhost]
	if v == nil {
		return refuse(NotFound, "vhost %s not found", vhost)
	}
	m := v.meta
	alter(&m)
	v.setMeta(m)
	b.note(&change{Op: opVHostMeta, VHost: vhost, Meta: &m})
	return nil
}

// withDefaultType adds the vhost's default queue type to the arguments of a queue that names none and
// can be of that type.
func (c *Conn) withDefaultType(d *QueueDeclare) table.Table {
	c.b.topo.RLock()
	kind := c.vhost.meta.DefaultQueueType
	c.b.topo.RUnlock()
	if kind != policy.Quorum.String() || !d.Durable || d.Exclusive || d.AutoDelete || d.Name == "" {
		return d.Args
	}
	if _, ok := d.Args.Get("x-queue-type"); ok {
		return d.Args
	}
	return append(slices.Clip(d.Args), table.Field{Name: "x-queue-type", Value: table.StringValue(kind)})
}

// Globals are the global parameters by name, each a JSON value.
func (b *Broker) Globals() map[string]json.RawMessage {
	b.topo.RLock()
	defer b.topo.RUnlock()
	return maps.Clone(b.globals)
}

// SetGlobal makes or replaces a global parameter.
func (b *Broker) SetGlobal(name string, value json.RawMessage) (created bool) {
	b.topo.Lock()
	defer b.topo.Unlock()
	_, existed := b.globals[name]
	b.globals[name] = value
	b.note(&change{Op: opGlobal, Name: name, Value: value})
	return !existed
}

// DeleteGlobal deletes a global parameter; false if there is none.
func (b *Broker) DeleteGlobal(name string) bool {
	b.topo.Lock()
	defer b.topo.Unlock()
	_, existed := b.globals[name]
	if existed {
		delete(b.globals, name)
		b.note(&change{Op: opGlobal, Name: name})
	}
	return existed
}
