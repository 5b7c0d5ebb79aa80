package route

import (
	"encoding/binary"
	"fmt"
	"math"
	"regexp"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/firemq/firemq/frames/table"
)

// hashIndex gives every message to one destination: of all it is bound to, the one that wins a draw
// among them, weighted by their binding keys, in which chance is replaced by a hash of the message's
// routing key (or of a header or property) and the destination's name. So equal values meet the same
// destination, after a restart too, and when a destination comes or goes only the values that it wins
// move. (Weighted rendezvous hashing.)
//
// A route costs a hash, a logarithm and a division for each destination.
type hashIndex[Q comparable] struct {
	on     hashOn
	shares []share[Q]
	at     map[*node[Q]]int // a destination's place in shares
}

// share is one destination and how much it gets.
type share[Q comparable] struct {
	dst    *node[Q]
	name   uint64  // a hash of its kind and name
	weight float64 // the sum of its bindings' keys
	n      int     // of so many bindings
}

// hashOn says what is hashed; neither a header nor a property: the routing key.
type hashOn struct {
	header   string
	property table.Present
}

// hashProperties are the values of hash-property.
var hashProperties = map[string]table.Present{
	"correlation_id": table.HasCorrelationID, "message_id": table.HasMessageID, "timestamp": table.HasTimestamp,
}

// newHashOn reads the arguments of an exchange.
func newHashOn(args table.Table) (on hashOn, err error) {
	header, hasHeader := args.Get("hash-header")
	property, hasProperty := args.Get("hash-property")
	switch {
	case hasHeader && hasProperty:
		return on, &ArgumentError{"hash-header and hash-property are mutually exclusive"}
	case hasHeader && header.Kind != table.String:
		return on, &ArgumentError{fmt.Sprintf("Invalid hash-header field type %s; expected longstr", header.Kind)}
	case hasHeader:
		on.header = header.Str
	case hasProperty:
		if on.property = hashProperties[property.Str]; on.property == 0 || property.Kind != table.String {
			return hashOn{}, &ArgumentError{"Unsupported property: " + property.String()}
		}
	}
	return on, nil
}

func (on *hashOn) reads() reads {
	switch {
	case on.header != "":
		return readsHeaders
	case on.property != 0:
		return readsProperties
	}
	return 0
}

// hash is a number for the message at hand: 0 for one that lacks the header or property.
func (on *hashOn) hash(keys [][]byte, headers table.Table, p *table.Properties) uint64 {
	switch {
	case on.header != "":
		v, ok := headers.Get(on.header)
		switch {
		case !ok:
			return 0
		case v.Kind == table.String || v.Kind == table.Bytes:
			return xxhash.Sum64String(v.Str)
		}
		if n, ok := v.AsInt(); ok {
			return hashNumber(uint64(n))
		}
		return xxhash.Sum64String(v.String())
	case on.property&p.Has == 0 && on.property != 0:
		return 0
	case on.property == table.HasCorrelationID:
		return xxhash.Sum64String(p.CorrelationID)
	case on.property == table.HasMessageID:
		return xxhash.Sum64String(p.MessageID)
	case on.property == table.HasTimestamp:
		return hashNumber(p.Timestamp)
	case len(keys) == 0:
		return 0
	}
	return xxhash.Sum64(keys[0]) // those of CC and BCC are for other exchanges
}

func hashNumber(n uint64) uint64 {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	return xxhash.Sum64(b[:])
}

var integer = regexp.MustCompile(`^[+-]?[0-9]+$`)

// weightOf reads a binding key. One beyond what a float64 tells apart is the nearest that it does.
func weightOf(key string) (float64, error) {
	if !integer.MatchString(key) {
		return 0, &ArgumentError{"The binding key must be an integer: " + binaryTerm(key)}
	}
	w, err := strconv.ParseFloat(key, 64)
	if err != nil {
		w = math.MaxFloat64
	}
	if w < 1 {
		return 0, &ArgumentError{"The binding key must be greater than 0"}
	}
	return min(w, 1<<53), nil
}

func (x *hashIndex[Q]) add(b *binding[Q]) {
	if x.at == nil {
		x.at = make(map[*node[Q]]int)
	}
	i, ok := x.at[b.id.dst]
	if !ok {
		kind := byte('q')
		if b.id.dst.ex != nil {
			kind = 'x'
		}
		i = len(x.shares)
		x.at[b.id.dst] = i
		x.shares = append(x.shares, share[Q]{dst: b.id.dst, name: xxhash.Sum64String(string(kind) + b.id.dst.local)})
	}
	x.shares[i].weight += b.weight
	x.shares[i].n++
}

func (x *hashIndex[Q]) remove(b *binding[Q]) {
	i := x.at[b.id.dst]
	s := &x.shares[i]
	s.weight -= b.weight
	if s.n--; s.n > 0 {
		return
	}
	last := len(x.shares) - 1
	x.shares[i] = x.shares[last]
	x.at[x.shares[i].dst] = i
	x.shares[last] = share[Q]{}
	x.shares = x.shares[:last]
	delete(x.at, b.id.dst)
}

func (x *hashIndex[Q]) match(w *walk[Q]) bool {
	if len(x.shares) == 0 {
		return false
	}
	h := x.on.hash(w.keys, w.headers, &w.props)
	var winner *node[Q]
	best := math.Inf(1)
	for i := range x.shares {
		s := &x.shares[i]
		// An exponential variate with the weight as its rate: the smallest of all is this one's with
		// a probability of its share.
		if v := -math.Log(unit(h^s.name)) / s.weight; v < best || winner == nil {
			winner, best = s.dst, v
		}
	}
	w.takeNode(winner)
	return true
}

// unit makes a number between 0 and 1, both excluded, of h by mixing its bits.
func unit(h uint64) float64 {
	h = (h ^ h>>30) * 0xBF58476D1CE4E5B9
	h = (h ^ h>>27) * 0x94D049BB133111EB
	h ^= h >> 31
	return (float64(h>>11) + 0.5) / (1 << 53)
}
