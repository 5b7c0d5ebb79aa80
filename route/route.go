// Package route matches: exchange, routing key and headers give the set of destination queues.
//
// A Table is the broker's single store of bindings, for all vhosts. Queues are opaque to it: it
// hands back the values that AddQueue was given.
//
//	publish ──> Cache (one a publisher) ──hit──> destinations, no lock
//	              │ miss
//	              v
//	            Table: shard of the exchange ──> index of its type ──> queues, exchanges
//	                     ^                                                │
//	                     └── every exchange reached, once each <──────────┘
//
// # Locks
//
// Exchanges and queues are spread over shards by a hash of vhost and name; a shard has one
// RWMutex. It is a leaf: nothing else is locked under it but the keys of an exchange that de-duplicates,
// no caller's code runs under it, and no two shards are ever held together. A binding lies between two shards, so Bind announces it at
// the destination, then makes it effective at the source; a removal of either end in between is
// seen by the other step. Only the source's lock decides whether a binding exists.
//
// # Generations
//
// Every exchange and every queue has a generation that grows, under its shard's lock, with each
// change of what routing reads from it. A cached route remembers the generation of all it read,
// and the absence of what it did not find as the count of additions to that shard; it holds as
// long as all of them are unchanged, which atomic loads alone tell.
package route

import (
	"errors"

	"github.com/firemq/firemq/frames/table"
)

// Kind is an exchange's type.
type Kind uint8

const (
	Direct Kind = iota + 1
	Fanout
	Topic
	Headers
	ConsistentHash
	Random
	Deduplication
	LocalRandom
)

var kindNames = [...]string{
	Direct: "direct", Fanout: "fanout", Topic: "topic", Headers: "headers", ConsistentHash: "x-consistent-hash", Random: "x-random",
	Deduplication: "x-message-deduplication", LocalRandom: "x-local-random",
}

// String is the type's name as exchange.declare spells it.
func (k Kind) String() string { return kindNames[k] }

// ParseKind finds the type of that name; false if there is none.
func ParseKind(name string) (Kind, bool) {
	for k := Direct; int(k) < len(kindNames); k++ {
		if kindNames[k] == name {
			return k, true
		}
	}
	return 0, false
}

// index finds the destinations of one exchange. It is guarded by the exchange's shard.
type index[Q comparable] interface {
	add(b *binding[Q])
	remove(b *binding[Q])
	// match gives every destination to w and reports whether there was one.
	match(w *walk[Q]) bool
}

// reads is what an exchange looks at beside the routing key. With any of it its routes are not cached.
type reads uint8

const (
	readsHeaders reads = 1 << iota
	readsProperties
	readsChance // nothing of the message
)

// newIndex makes the index of an exchange, and says what it reads.
func newIndex[Q comparable](k Kind, args table.Table) (x index[Q], r reads, err error) {
	switch k {
	case Direct:
		return &directIndex[Q]{}, 0, nil
	case Fanout:
		return &fanoutIndex[Q]{}, 0, nil
	case Topic:
		return &topicIndex[Q]{}, 0, nil
	case Headers:
		return &headersIndex[Q]{}, readsHeaders, nil
	case ConsistentHash:
		on, err := newHashOn(args)
		return &hashIndex[Q]{on: on}, on.reads(), err
	case Random, LocalRandom: // all is local here
		return &randomIndex[Q]{}, readsChance, nil
	case Deduplication:
		window, err := newWindow(args)
		return &dedupIndex[Q]{window: window}, readsHeaders, err
	}
	panic("BUG: route: unknown exchange type")
}

// Binding ties a source exchange to a destination. Its identity is everything in it, with
// Args compared as a set sorted by name.
type Binding struct {
	VHost      string
	Source     string // exchange
	ToExchange bool   // Dest names an exchange, else a queue
	Dest       string
	Key        string
	Args       table.Table
}

// ErrNoSource and ErrNoDestination say which end of a Bind is missing; the source comes first.
var (
	ErrNoSource      = errors.New("binding source does not exist")
	ErrNoDestination = errors.New("binding destination does not exist")
)

// Message is what an exchange may look at beside the routing key.
type Message interface {
	// Headers gives the headers; who asks keeps none of it.
	Headers() table.Table
	// Properties gives the properties without the headers, likewise.
	Properties() table.Properties
}

// CheckExchange reports the arguments that an exchange of this type cannot have: an *ArgumentError.
func CheckExchange(k Kind, args table.Table) error {
	_, _, err := newIndex[int](k, args)
	return err
}

// CheckBinding reports the error that Bind gives for an exchange of this type: an *ArgumentError.
func CheckBinding(k Kind, def *Binding) error {
	_, _, err := readBinding(k, def, def.Args)
	return err
}

// readBinding reads what a binding says to its exchange's type.
func readBinding(k Kind, def *Binding, args table.Table) (r *rule, weight float64, err error) {
	switch k {
	case Headers:
		r, err = newRule(args)
	case ConsistentHash:
		weight, err = weightOf(def.Key)
	case LocalRandom:
		switch {
		case def.Key != "":
			err = &ArgumentError{"Non empty binding '" + def.Key + "' key not permitted"}
		case def.ToExchange:
			err = &ArgumentError{"Destination not found"} // of queues it looks among
		}
	}
	return r, weight, err
}

// ArgumentError is an argument or binding key that the exchange's type refuses. Its text is the one
// RabbitMQ gives with PRECONDITION_FAILED.
type ArgumentError struct{ Text string }

func (e *ArgumentError) Error() string { return e.Text }
