package definitions

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/firemq/firemq/broker"
)

// vhost is a vhost with what is noted about it; RabbitMQ also reads the three at the top.
type vhost struct {
	Name        string        `json:"name"`
	Metadata    vhostMetadata `json:"metadata"`
	Tracing     bool          `json:"tracing,omitempty"`
	Description string        `json:"description,omitempty"`
	Tags        tagList       `json:"tags,omitempty"`
}

type vhostMetadata struct {
	Description      string  `json:"description"`
	Tags             tagList `json:"tags"`
	DefaultQueueType string  `json:"default_queue_type,omitempty"`
	Protected        bool    `json:"protected_from_deletion,omitempty"`
}

func metadata(m broker.VHostMeta) vhostMetadata {
	return vhostMetadata{m.Description, orEmpty(m.Tags), m.DefaultQueueType, m.Protected}
}

func (v *vhost) meta() broker.VHostMeta {
	m := broker.VHostMeta{
		Description: v.Metadata.Description, Tags: v.Metadata.Tags, DefaultQueueType: v.Metadata.DefaultQueueType, Tracing: v.Tracing,
		Protected: v.Metadata.Protected,
	}
	if m.Description == "" {
		m.Description = v.Description
	}
	if len(m.Tags) == 0 {
		m.Tags = v.Tags
	}
	if m.DefaultQueueType == "undefined" { // RabbitMQ 3.10's word for none
		m.DefaultQueueType = ""
	}
	return m
}

// global is a global parameter.
type global struct {
	Name  string          `json:"name"`
	Value json.RawMessage `json:"value"`
}

func globals(m map[string]json.RawMessage) []global {
	list := []global{}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		list = append(list, global{name, m[name]})
	}
	return list
}

func globalsOf(list []global) map[string]json.RawMessage {
	if len(list) == 0 {
		return nil
	}
	m := make(map[string]json.RawMessage, len(list))
	for _, g := range list {
		m[g.Name] = g.Value
	}
	return m
}
