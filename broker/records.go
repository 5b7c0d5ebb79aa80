package broker

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/journal"
	"github.com/firemq/firemq/route"
)

// What the broker writes into journal records. Part of the disk format: see docs/storage.md.

// What precedes a message's bytes in a publish record:
//
//	0      encoding        message.Encoding
//	1      flags           1 persistent, 2 has headers, 4 has a due time, 8 has the time of its publish
//	2      priority
//	3      exchange length
//	4      routing key length
//	5..7   zero
//	8..11  properties length
//	12..15 blind keys length
//	16..23 time to live in ms as the publisher set it, -1 for none
//	+8     due time, Unix ms; only with its flag
//	+8     time of its publish, Unix ms; only with its flag, which all have but those of older versions
//
// All little-endian; then exchange, routing key, blind keys, properties, body.
//
// A message that is not persistent is written for want of memory (see Broker.spills). A start drops it.
const (
	headSize = 24 // without times
	headMax  = headSize + 16
)

const (
	flagPersistent = 1 << iota
	flagHeaders
	flagDue
	flagTaken
)

// encodeHead writes the head of a message that is published now into h and gives what it takes.
func encodeHead(h *[headMax]byte, m *message.Message, now int64) []byte {
	key, blind, props, body := m.Split()
	var flags byte
	if m.Persistent {
		flags |= flagPersistent
	}
	if m.HasHeaders {
		flags |= flagHeaders
	}
	h[0], h[1], h[2] = byte(m.Encoding), flags, m.Priority
	h[3], h[4] = byte(key), byte(blind-key)
	binary.LittleEndian.PutUint32(h[8:], uint32(body-props))
	binary.LittleEndian.PutUint32(h[12:], uint32(props-blind))
	binary.LittleEndian.PutUint64(h[16:], uint64(m.Expiration))
	n := headSize
	if m.Delay > 0 {
		h[1] |= flagDue
		binary.LittleEndian.PutUint64(h[n:], uint64(m.Due(now)))
		n += 8
	}
	h[1] |= flagTaken
	binary.LittleEndian.PutUint64(h[n:], uint64(m.Taken))
	return h[:n+8]
}

// dueOf is the due time in a publish record's payload, 0 for none. A damaged one may give any.
func dueOf(p []byte) int64 {
	if len(p) < headSize+8 || p[1]&flagDue == 0 {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(p[headSize:]))
}

// decodeMessage makes a message of a publish record's payload, which it copies.
func decodeMessage(p []byte) (*message.Message, error) {
	a, exchange, key, blind, props, body, err := splitMessage(p)
	if err != nil {
		return nil, err
	}
	m := message.NewBlind(a, exchange, key, blind, props, len(body))
	copy(m.Body(), body)
	return m, nil
}

func splitMessage(p []byte) (a message.Attributes, exchange, key, blind, props, body []byte, err error) {
	if len(p) < headSize {
		return a, nil, nil, nil, nil, nil, fmt.Errorf("publish record of %d bytes is too short", len(p))
	}
	x, k, n, bl := int(p[3]), int(p[4]), int(binary.LittleEndian.Uint32(p[8:])), int(binary.LittleEndian.Uint32(p[12:]))
	rest := p[headSize:]
	if p[1]&flagDue != 0 {
		rest = rest[min(8, len(rest)):]
	}
	taken := int64(0)
	if p[1]&flagTaken != 0 {
		if len(rest) < 8 {
			return a, nil, nil, nil, nil, nil, fmt.Errorf("publish record of %d bytes is shorter than its head", len(p))
		}
		taken, rest = int64(binary.LittleEndian.Uint64(rest)), rest[8:]
	}
	if len(rest) < x+k+bl+n {
		return a, nil, nil, nil, nil, nil, fmt.Errorf("publish record of %d bytes is shorter than its parts", len(p))
	}
	a = message.Attributes{
		Encoding:   message.Encoding(p[0]),
		Persistent: p[1]&flagPersistent != 0,
		HasHeaders: p[1]&flagHeaders != 0,
		Priority:   p[2],
		Expiration: int64(binary.LittleEndian.Uint64(p[16:])),
		Taken:      taken,
	}
	k += x
	bl += k
	n += bl
	return a, rest[:x], rest[x:k], rest[k:bl], rest[bl:n], rest[n:], nil
}

// The operations of a topology record.
const (
	opDeclareExchange = "exchange.declare"
	opDeleteExchange  = "exchange.delete"
	opDeclareQueue    = "queue.declare"
	opDeleteQueue     = "queue.delete"
	opBind            = "bind"
	opUnbind          = "unbind"
	opAddVHost        = "vhost.add"
	opDeleteVHost     = "vhost.delete"
	opVHostLimits     = "vhost.limits"
	opPutPolicy       = "policy.put"
	opDeletePolicy    = "policy.delete"
	opUser            = "user" // all there is of a user now, or that it is gone
	opVHostMeta       = "vhost.meta"
	opGlobal          = "global"
)

// change is one topology record, written as JSON: rare, and readable with a hex dump.
type change struct {
	Op       string         `json:"op"`
	VHost    string         `json:"vhost"`
	Name     string         `json:"name,omitempty"`
	Exchange *Exchange      `json:"exchange,omitempty"`
	Queue    *QueueDef      `json:"queue,omitempty"`
	Binding  *route.Binding `json:"binding,omitempty"`
	Policy   *policyChange  `json:"policy,omitempty"`
	Limits   Limits         `json:"limits,omitempty"`
	User     *userChange    `json:"user,omitempty"`
	Meta     *VHostMeta     `json:"meta,omitempty"`
	// Value is that of a global parameter, none for a deleted one.
	Value json.RawMessage `json:"value,omitempty"`
	// Args are the arguments of whichever of the first three is set, or the definition of the policy, as
	// an AMQP field table: JSON alone would lose their types.
	Args []byte `json:"args,omitempty"`
}

// userChange is a user with its permissions.
type userChange struct {
	auth.User
	Permissions []auth.Permission      `json:",omitempty"`
	Topics      []auth.TopicPermission `json:",omitempty"`
}

// policyChange is a policy without its definition, or the name of a deleted one.
type policyChange struct {
	Name     string `json:"name"`
	Operator bool   `json:"operator,omitempty"`
	Pattern  string `json:"pattern,omitempty"`
	ApplyTo  string `json:"apply_to,omitempty"`
	Priority int64  `json:"priority,omitempty"`

	definition table.Table
	made       *policy.Policy // of a record that was read
}

func describe(d PolicyDef) *policyChange {
	return &policyChange{Name: d.Name, Operator: d.Operator, Pattern: d.Pattern, ApplyTo: d.ApplyTo, Priority: d.Priority, definition: d.Definition}
}

// note writes a durable topology change to the journal and has a snapshot saved. It gives the
// record's position, 0 when everything is in memory: who made the change is answered when the journal
// has committed that. topo locked.
func (b *Broker) note(c *change) journal.Position {
	if b.journal != nil {
		p, err := c.encode()
		if err != nil {
			panic("BUG: broker: topology record: " + err.Error())
		}
		b.journal.Lock()
		b.topoPos = b.journal.Topology(p)
		b.journal.Unlock()
	}
	b.opt.OnChange()
	return b.topoPos
}

func (c *change) encode() ([]byte, error) {
	out := *c
	switch {
	case c.Exchange != nil:
		x := *c.Exchange
		out.Args, x.Args = table.Append(nil, x.Args), nil
		out.Exchange = &x
	case c.Queue != nil:
		q := *c.Queue
		out.Args, q.Args = table.Append(nil, q.Args), nil
		out.Queue = &q
	case c.Policy != nil:
		out.Args = table.Append(nil, c.Policy.definition)
	case c.Binding != nil:
		r := *c.Binding
		out.Args, r.Args = table.Append(nil, r.Args), nil
		out.Binding = &r
	}
	return json.Marshal(&out)
}

func decodeChange(p []byte) (*change, error) {
	c := new(change)
	if err := json.Unmarshal(p, c); err != nil {
		return nil, fmt.Errorf("topology record: %w", err)
	}
	var args table.Table
	if len(c.Args) > 0 {
		var err error
		if args, err = table.Decode(c.Args); err != nil {
			return nil, fmt.Errorf("topology record: arguments: %w", err)
		}
	}
	switch {
	case c.Exchange != nil:
		c.Exchange.Args = args
	case c.Queue != nil:
		c.Queue.Args = args
	case c.Binding != nil:
		c.Binding.Args = args
	case c.Op == opPutPolicy && c.Policy != nil:
		p, err := policy.Make(c.Policy.Name, c.Policy.Pattern, args, c.Policy.Priority, c.Policy.ApplyTo, c.Policy.Operator)
		if err != nil {
			return nil, fmt.Errorf("topology record: policy '%s': %w", c.Policy.Name, err)
		}
		c.Policy.made = p
	case c.Op == opDeletePolicy && c.Policy != nil:
	case c.Op == opVHostMeta && c.Meta == nil:
		return nil, fmt.Errorf("topology record '%s' without its content", c.Op)
	case c.Op == opPutPolicy, c.Op == opDeletePolicy:
		return nil, fmt.Errorf("topology record '%s' without a policy", c.Op)
	}
	return c, nil
}
