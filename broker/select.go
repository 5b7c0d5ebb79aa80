package broker

import (
	"fmt"
	"slices"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
)

// The headers of sender-selected distribution: arrays of further routing keys.
const (
	headerCC  = "CC"
	headerBCC = "BCC"
)

// Selection is what the headers CC and BCC of a message ask for.
type Selection struct {
	Keys  [][]byte // of both, for Publish.Keys; copies
	Blind []byte   // those of BCC, as message.AppendKey writes them
	BCC   bool     // there is such a header, and the session must remove it (see WithoutBCC)
}

// Select reads CC and BCC. Elements that are no strings are passed over, as RabbitMQ does; fault is the
// text of Publish.Fault for a header that is no array.
//
// A session calls it only for messages whose header bytes contain "CC" at all, so others pay nothing.
func Select(headers table.Table) (s Selection, fault string) {
	for _, name := range [...]string{headerCC, headerBCC} {
		v, ok := headers.Get(name)
		if !ok {
			continue
		}
		if v.Kind != table.Array {
			return Selection{}, fmt.Sprintf(`invalid message: {unacceptable_type_in_header,"%s",%s}`, name, v.Kind)
		}
		s.BCC = name == headerBCC
		for _, e := range v.List {
			if e.Kind != table.String {
				continue
			}
			key := []byte(e.Str)
			s.Keys = append(s.Keys, key)
			if s.BCC {
				s.Blind = message.AppendKey(s.Blind, key)
			}
		}
	}
	return s, ""
}

// WithoutBCC is headers as receivers see them.
func WithoutBCC(headers table.Table) table.Table { return without(headers, headerBCC) }

// WithDeliveryCount is the headers of a delivery that has a Delivery.Count.
func WithDeliveryCount(headers table.Table, count int64) table.Table {
	out := make(table.Table, len(headers), len(headers)+1)
	copy(out, headers)
	out.Set("x-delivery-count", table.IntValue(count))
	return out
}

func without(headers table.Table, name string) table.Table {
	out := slices.Clone(headers)
	out.Delete(name)
	return out
}

// ccKeys are the keys of a stored message's CC header.
func ccKeys(headers table.Table) (keys [][]byte) {
	v, _ := headers.Get(headerCC)
	for _, e := range v.List {
		if e.Kind == table.String {
			keys = append(keys, []byte(e.Str))
		}
	}
	return keys
}

// blindKeys are the keys that a message's BCC header had.
func blindKeys(m *message.Message) (keys [][]byte) {
	for blind := m.Blind(); ; {
		key, rest, ok := message.CutKey(blind)
		if !ok {
			return keys
		}
		keys, blind = append(keys, key), rest
	}
}
