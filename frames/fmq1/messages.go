package fmq1

// This file has the headers of the ops that are rare: their codec is generated. Every field is
// omitted when zero and takes its zero value when it is absent; keys nobody knows are skipped.
// The hot ops (publish, return, deliver, get_ok, confirm, ack, nack, credit) are in hot.go.
//
// The limits below bound what one declared length can allocate.

//msgp:ignore Map

//go:generate go run github.com/tinylib/msgp@v1.6.5 -io=false -tests=false -o messages_gen.go

//msgp:limit arrays:256 maps:1024

// Hello opens a session (op 0x01).
type Hello struct {
	Ver       uint64   `msg:"ver,omitempty"`
	VHost     string   `msg:"vhost,omitempty"` // empty: "/"
	Auth      Auth     `msg:"auth,omitempty"`
	Heartbeat uint32   `msg:"heartbeat,omitempty"` // seconds, 0: none
	Client    Map      `msg:"client,omitzero"`     // a map, free-form
	Caps      []string `msg:"caps,omitempty"`
}

// Auth is the login inside Hello.
type Auth struct {
	Mech string `msg:"mech,omitempty"` // "plain"
	User string `msg:"user,omitempty"`
	Pass string `msg:"pass,omitempty"`
}

// Welcome accepts a Hello (op 0x02).
type Welcome struct {
	Ver       uint64   `msg:"ver,omitempty"`
	Server    Server   `msg:"server,omitempty"`
	ConnID    string   `msg:"conn_id,omitempty"`
	Heartbeat uint32   `msg:"heartbeat,omitempty"` // seconds, 0: none
	MaxFrame  uint32   `msg:"max_frame,omitempty"` // bytes, as counted by len
	Caps      []string `msg:"caps,omitempty"`
}

// Server names the broker inside Welcome.
type Server struct {
	Name    string `msg:"name,omitempty"`
	Version string `msg:"version,omitempty"`
}

// Close ends a session, from either side (op 0x05).
type Close struct {
	Code uint16 `msg:"code,omitempty"`
	Msg  string `msg:"msg,omitempty"`
}

// OK answers a request (op 0x06).
type OK struct {
	RID       uint64 `msg:"rid,omitempty"`
	Name      string `msg:"name,omitempty"`
	Messages  uint64 `msg:"messages,omitempty"`
	Consumers uint64 `msg:"consumers,omitempty"`
	Empty     bool   `msg:"empty,omitempty"`
}

// ServerError refuses a request, or the connection when Fatal (op 0x07).
type ServerError struct {
	RID   uint64 `msg:"rid,omitempty"` // 0: not tied to a request
	Code  uint16 `msg:"code,omitempty"`
	Msg   string `msg:"msg,omitempty"`
	Fatal bool   `msg:"fatal,omitempty"`
}

// Flow asks the client to stop or go on publishing (op 0x08).
type Flow struct {
	Pause bool `msg:"pause,omitempty"`
}

// DeclareExchange is op 0x10.
type DeclareExchange struct {
	RID        uint64 `msg:"rid,omitempty"`
	Name       string `msg:"name,omitempty"`
	Type       string `msg:"type,omitempty"`
	Durable    bool   `msg:"durable,omitempty"`
	AutoDelete bool   `msg:"auto_delete,omitempty"`
	Internal   bool   `msg:"internal,omitempty"`
	Passive    bool   `msg:"passive,omitempty"`
	Args       Map    `msg:"args,omitzero"`
}

// DeleteExchange is op 0x11.
type DeleteExchange struct {
	RID      uint64 `msg:"rid,omitempty"`
	Name     string `msg:"name,omitempty"`
	IfUnused bool   `msg:"if_unused,omitempty"`
}

// DeclareQueue is op 0x12.
type DeclareQueue struct {
	RID        uint64 `msg:"rid,omitempty"`
	Name       string `msg:"name,omitempty"` // empty: the server picks one
	Durable    bool   `msg:"durable,omitempty"`
	Exclusive  bool   `msg:"exclusive,omitempty"`
	AutoDelete bool   `msg:"auto_delete,omitempty"`
	Passive    bool   `msg:"passive,omitempty"`
	Args       Map    `msg:"args,omitzero"`
}

// DeleteQueue is op 0x13.
type DeleteQueue struct {
	RID      uint64 `msg:"rid,omitempty"`
	Name     string `msg:"name,omitempty"`
	IfUnused bool   `msg:"if_unused,omitempty"`
	IfEmpty  bool   `msg:"if_empty,omitempty"`
}

// PurgeQueue is op 0x14.
type PurgeQueue struct {
	RID  uint64 `msg:"rid,omitempty"`
	Name string `msg:"name,omitempty"`
}

// Bind is op 0x15 (bind) and op 0x16 (unbind). Exactly one of Queue and ToExchange is set.
type Bind struct {
	RID        uint64 `msg:"rid,omitempty"`
	Exchange   string `msg:"exchange,omitempty"`
	Queue      string `msg:"queue,omitempty"`
	ToExchange string `msg:"to_exchange,omitempty"`
	Key        string `msg:"key,omitempty"`
	Args       Map    `msg:"args,omitzero"`
}

// Subscribe is op 0x30.
type Subscribe struct {
	RID       uint64 `msg:"rid,omitempty"`
	Sub       uint64 `msg:"sub,omitempty"`
	Queue     string `msg:"queue,omitempty"`
	Credit    uint64 `msg:"credit,omitempty"`
	NoAck     bool   `msg:"no_ack,omitempty"`
	Exclusive bool   `msg:"exclusive,omitempty"`
	Tag       string `msg:"tag,omitempty"` // empty: "fire-<sub>"
	Args      Map    `msg:"args,omitzero"`
}

// Unsubscribe is op 0x31.
type Unsubscribe struct {
	RID uint64 `msg:"rid,omitempty"`
	Sub uint64 `msg:"sub,omitempty"`
}

// Cancelled says the server ended a subscription (op 0x34).
type Cancelled struct {
	Sub  uint64 `msg:"sub,omitempty"`
	Code uint16 `msg:"code,omitempty"`
	Msg  string `msg:"msg,omitempty"`
}

// Get asks for one message (op 0x37).
type Get struct {
	RID   uint64 `msg:"rid,omitempty"`
	Queue string `msg:"queue,omitempty"`
	NoAck bool   `msg:"no_ack,omitempty"`
}

// Map is a complete MessagePack map in its encoded form; empty means none. Decoding copies it.
type Map []byte

// IsZero reports whether m is left out of a header.
func (m Map) IsZero() bool { return len(m) == 0 }

// Msgsize is the largest encoded size.
func (m Map) Msgsize() int { return len(m) + 1 }

// MarshalMsg appends m.
func (m Map) MarshalMsg(b []byte) ([]byte, error) {
	if len(m) == 0 {
		return append(b, emptyMap), nil
	}
	return append(b, m...), nil
}

// UnmarshalMsg takes the next value of b, which must be a map.
func (m *Map) UnmarshalMsg(b []byte) ([]byte, error) {
	raw, rest, err := readMap(b)
	if err != nil {
		return b, err
	}
	*m = append((*m)[:0], raw...)
	return rest, nil
}
