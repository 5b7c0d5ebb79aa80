package api

// Browse is a page of a queue's messages.
type Browse struct {
	Messages []Browsed `json:"messages"`
	Cursor   string    `json:"cursor"` // where the next page begins
	More     bool      `json:"more"`   // there may be messages behind this page
	Scanned  int       `json:"scanned"`
}

// Browsed is one message as it is in its queue. Ages are in ms, times in Unix ms.
type Browsed struct {
	Sequence        uint64         `json:"sequence"`
	State           string         `json:"state"` // ready, unacked, delayed
	Age             *int64         `json:"age"`   // null: not known
	Exchange        string         `json:"exchange"`
	RoutingKey      string         `json:"routing_key"`
	Redelivered     bool           `json:"redelivered"`
	DeliveryCount   int            `json:"delivery_count"`
	Properties      map[string]any `json:"properties"`
	PayloadBytes    int            `json:"payload_bytes"`
	Payload         string         `json:"payload"`
	PayloadEncoding string         `json:"payload_encoding"`
	ExpiresAt       int64          `json:"expires_at,omitempty"`
	DueAt           int64          `json:"due_at,omitempty"`
	Unacked         *Unacked       `json:"unacked,omitempty"`
	Unreadable      bool           `json:"unreadable,omitempty"` // its record on disk is damaged
}

// Unacked is who has a message.
type Unacked struct {
	Connection  string `json:"connection"`
	Channel     uint16 `json:"channel"`
	User        string `json:"user"`
	ConsumerTag string `json:"consumer_tag"` // "" for a get
	DeliveryTag uint64 `json:"delivery_tag"`
	Age         int64  `json:"unacked_age"` // since its delivery
}

// UnackedMessage is one message that was delivered and not acknowledged.
type UnackedMessage struct {
	Unacked
	Sequence     uint64 `json:"sequence"`
	Redelivered  bool   `json:"redelivered"`
	PayloadBytes int    `json:"payload_bytes"`
}

// Report is what is wrong with a broker, in words.
type Report struct {
	Status   string    `json:"status"` // ok, or the severity of the worst finding
	Findings []Finding `json:"findings"`
	LeftOut  int       `json:"left_out"` // findings beyond those shown
}

// The severities of findings.
const (
	Critical = "critical" // nobody can publish, or messages are in danger
	Warning  = "warning"  // something is stuck, or soon will be
	Note     = "note"     // worth knowing: it may be meant so
)

// Finding is one thing that is wrong: what, why, and what to do.
type Finding struct {
	Severity string `json:"severity"`
	Code     string `json:"code"` // for programs: "queue-without-consumer"
	Kind     string `json:"kind"` // of the object: node, queue, connection, policy
	VHost    string `json:"vhost,omitempty"`
	Name     string `json:"name,omitempty"`
	Summary  string `json:"summary"`
	Cause    string `json:"cause"`
	Action   string `json:"action"`
}

// Transferred says how a copy, move, deletion or replay of messages ended.
type Transferred struct {
	Done    int    `json:"done"`
	Failed  int    `json:"failed"`           // left where they were
	Reason  string `json:"reason,omitempty"` // why the first of them failed
	Scanned int    `json:"scanned"`
	Cursor  string `json:"cursor"` // where to go on
	More    bool   `json:"more"`   // there may be messages behind it
}
