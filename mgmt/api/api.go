// Package api holds the JSON types of the management API, which the broker writes and "firemq ctl" and tests
// read. Fields have RabbitMQ's names and meaning; docs/http-api.md says what each endpoint gives. The tag "part" of a field
// is the broker's: what it need not find out for those who do not ask for the field.
package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Path is where something is in the API: first, and names, which are escaped.
func Path(first string, names ...string) string {
	var b strings.Builder
	b.WriteString("/api/" + first)
	for _, n := range names {
		b.WriteByte('/')
		switch n {
		case ".", "..":
			b.WriteString(strings.ReplaceAll(n, ".", "%2E"))
		default:
			b.WriteString(url.PathEscape(n))
		}
	}
	return b.String()
}

// Details go with a counter or a length: its change a second, and samples where they were asked for.
type Details struct {
	Rate    float64  `json:"rate"`
	Avg     *float64 `json:"avg,omitempty"`
	AvgRate *float64 `json:"avg_rate,omitempty"`
	Samples []Sample `json:"samples,omitempty"` // the newest first
}

// Sample is one value at a time, in Unix ms.
type Sample struct {
	Sample    int64 `json:"sample"`
	Timestamp int64 `json:"timestamp"`
}

// Stat is one counter of Stats.
type Stat struct {
	Name    string
	Total   uint64
	Details Details
}

// Stats are counters with their rates, in JSON one object: "publish" and "publish_details".
type Stats []Stat

// Total is the counter of that name, 0 if it is not there.
func (s Stats) Total(name string) uint64 {
	for i := range s {
		if s[i].Name == name {
			return s[i].Total
		}
	}
	return 0
}

// Rate is the change a second of the counter of that name.
func (s Stats) Rate(name string) float64 {
	for i := range s {
		if s[i].Name == name {
			return s[i].Details.Rate
		}
	}
	return 0
}

func (s *Stats) UnmarshalJSON(p []byte) error {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(p, &m); err != nil {
		return err
	}
	*s = nil
	for name, raw := range m {
		if strings.HasSuffix(name, "_details") {
			continue
		}
		stat := Stat{Name: name}
		if err := json.Unmarshal(raw, &stat.Total); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if raw, ok := m[name+"_details"]; ok {
			if err := json.Unmarshal(raw, &stat.Details); err != nil {
				return fmt.Errorf("%s_details: %w", name, err)
			}
		}
		*s = append(*s, stat)
	}
	return nil
}

// GarbageCollection is nothing here; clients expect it.
type GarbageCollection struct {
	FullsweepAfter  int `json:"fullsweep_after"`
	MaxHeapSize     int `json:"max_heap_size"`
	MinBinVheapSize int `json:"min_bin_vheap_size"`
	MinHeapSize     int `json:"min_heap_size"`
	MinorGCs        int `json:"minor_gcs"`
}

// Lengths are the messages of a queue, a vhost or all.
type Lengths struct {
	Messages              int     `json:"messages"`
	MessagesDetails       Details `json:"messages_details" part:"rates"`
	Ready                 int     `json:"messages_ready"`
	ReadyDetails          Details `json:"messages_ready_details" part:"rates"`
	Unacknowledged        int     `json:"messages_unacknowledged"`
	UnacknowledgedDetails Details `json:"messages_unacknowledged_details" part:"rates"`
}

// Queue is one queue.
type Queue struct {
	Name                      string         `json:"name"`
	VHost                     string         `json:"vhost"`
	Type                      string         `json:"type" part:"settings"`
	Durable                   bool           `json:"durable" part:"settings"`
	AutoDelete                bool           `json:"auto_delete" part:"settings"`
	Exclusive                 bool           `json:"exclusive" part:"settings"`
	Arguments                 map[string]any `json:"arguments" part:"settings"`
	Node                      string         `json:"node"`
	State                     string         `json:"state"`
	Policy                    *string        `json:"policy" part:"settings"`
	OperatorPolicy            *string        `json:"operator_policy" part:"settings"`
	EffectivePolicyDefinition map[string]any `json:"effective_policy_definition" part:"settings"`
	Lengths
	Consumers              int               `json:"consumers"`
	ConsumerUtilisation    float64           `json:"consumer_utilisation"`
	ConsumerCapacity       float64           `json:"consumer_capacity"`
	Memory                 int64             `json:"memory"`
	MessagesRAM            int               `json:"messages_ram"`
	MessagesReadyRAM       int               `json:"messages_ready_ram"`
	MessagesUnackedRAM     int               `json:"messages_unacknowledged_ram"`
	MessagesPersistent     int               `json:"messages_persistent"`
	MessagesDelayed        int               `json:"messages_delayed"`
	MessageBytes           int64             `json:"message_bytes"`
	MessageBytesReady      int64             `json:"message_bytes_ready"`
	MessageBytesUnacked    int64             `json:"message_bytes_unacknowledged"`
	MessageBytesRAM        int64             `json:"message_bytes_ram"`
	MessageBytesPersistent int64             `json:"message_bytes_persistent"`
	MessageBytesDelayed    int64             `json:"message_bytes_delayed"`
	HeadMessageTimestamp   *int64            `json:"head_message_timestamp" part:"head"`
	OldestMessageAge       *int64            `json:"oldest_message_age,omitempty" part:"head"` // ms, of ready ones
	ExclusiveConsumerTag   *string           `json:"exclusive_consumer_tag" part:"settings"`
	SingleActiveTag        *string           `json:"single_active_consumer_tag" part:"settings"`
	StorageVersion         int               `json:"storage_version"`
	Internal               bool              `json:"internal"`       // never: RabbitMQ's plugins have such queues
	InternalOwner          bool              `json:"internal_owner"` // likewise
	Deduplicated           uint64            `json:"messages_deduplicated,omitempty"`
	DeduplicationKeys      int               `json:"deduplication_keys,omitempty"`
	Reductions             int64             `json:"reductions"`
	ReductionsDetails      Details           `json:"reductions_details"`
	GarbageCollection      GarbageCollection `json:"garbage_collection"`
	MessageStats           Stats             `json:"message_stats,omitempty" part:"rates"`
}

// QueueDetail is what the path of one queue gives.
type QueueDetail struct {
	Queue
	Owner           *Peer      `json:"owner_pid_details,omitempty"`
	ConsumerDetails []Consumer `json:"consumer_details"`
	Incoming        []any      `json:"incoming"`
	Deliveries      []any      `json:"deliveries"`
	Leader          string     `json:"leader,omitempty"` // of a quorum queue, as the next two
	Members         []string   `json:"members,omitempty"`
	Online          []string   `json:"online,omitempty"`
}

// QueueBasics is one queue without statistics.
type QueueBasics struct {
	Arguments      map[string]any `json:"arguments"`
	AutoDelete     bool           `json:"auto_delete"`
	Durable        bool           `json:"durable"`
	Exclusive      bool           `json:"exclusive"`
	Name           string         `json:"name"`
	Node           string         `json:"node"`
	State          string         `json:"state"`
	Type           string         `json:"type"`
	VHost          string         `json:"vhost"`
	Policy         *string        `json:"policy"`
	OperatorPolicy *string        `json:"operator_policy"`
	Definition     map[string]any `json:"effective_policy_definition"`
	Internal       bool           `json:"internal"`       // never
	InternalOwner  bool           `json:"internal_owner"` // never
	Messages       *int           `json:"messages,omitempty"`
	Ready          *int           `json:"messages_ready,omitempty"`
	Unacknowledged *int           `json:"messages_unacknowledged,omitempty"`
}

// Exchange is one exchange; the default one has an empty name.
type Exchange struct {
	Name         string         `json:"name"`
	VHost        string         `json:"vhost"`
	Type         string         `json:"type"`
	Durable      bool           `json:"durable"`
	AutoDelete   bool           `json:"auto_delete"`
	Internal     bool           `json:"internal"`
	Arguments    map[string]any `json:"arguments"`
	Policy       string         `json:"policy,omitempty"`
	User         string         `json:"user_who_performed_action"`
	MessageStats Stats          `json:"message_stats,omitempty"`
}

// ExchangeDetail is what the path of one exchange gives.
type ExchangeDetail struct {
	Exchange
	Incoming []any `json:"incoming"`
	Outgoing []any `json:"outgoing"`
}

// Binding is one binding.
type Binding struct {
	Source          string         `json:"source"`
	VHost           string         `json:"vhost"`
	Destination     string         `json:"destination"`
	DestinationType string         `json:"destination_type"`
	RoutingKey      string         `json:"routing_key"`
	Arguments       map[string]any `json:"arguments"`
	PropertiesKey   string         `json:"properties_key"`
}

// Peer names a connection.
type Peer struct {
	Name     string `json:"name"`
	PeerHost string `json:"peer_host"`
	PeerPort int    `json:"peer_port"`
}

// Connection is one connection.
type Connection struct {
	Name              string            `json:"name"`
	Node              string            `json:"node"`
	State             string            `json:"state"`
	Type              string            `json:"type"`
	Protocol          string            `json:"protocol"`
	User              string            `json:"user"`
	PerformedBy       string            `json:"user_who_performed_action"`
	VHost             string            `json:"vhost"`
	ConnectedAt       int64             `json:"connected_at"` // Unix ms
	Host              string            `json:"host" part:"addresses"`
	Port              int               `json:"port" part:"addresses"`
	PeerHost          string            `json:"peer_host" part:"addresses"`
	PeerPort          int               `json:"peer_port" part:"addresses"`
	Channels          int               `json:"channels"`
	ChannelMax        uint16            `json:"channel_max"`
	FrameMax          uint32            `json:"frame_max"`
	Timeout           uint16            `json:"timeout"` // heartbeat, s
	SSL               bool              `json:"ssl" part:"addresses"`
	SSLProtocol       *string           `json:"ssl_protocol"`
	SSLCipher         *string           `json:"ssl_cipher"`
	SSLKeyExchange    *string           `json:"ssl_key_exchange"`
	SSLHash           *string           `json:"ssl_hash"`
	PeerCertSubject   *string           `json:"peer_cert_subject"`
	PeerCertIssuer    *string           `json:"peer_cert_issuer"`
	PeerCertValidity  *string           `json:"peer_cert_validity"`
	PeerCertSerial    *string           `json:"peer_cert_serial_number"`
	AuthMechanism     string            `json:"auth_mechanism"`
	ClientProperties  map[string]any    `json:"client_properties" part:"properties"`
	UserProvidedName  string            `json:"user_provided_name,omitempty"`
	RecvOct           uint64            `json:"recv_oct"`
	RecvOctDetails    Details           `json:"recv_oct_details" part:"rates"`
	RecvCnt           uint64            `json:"recv_cnt"`
	SendOct           uint64            `json:"send_oct"`
	SendOctDetails    Details           `json:"send_oct_details" part:"rates"`
	SendCnt           uint64            `json:"send_cnt"`
	SendPend          int               `json:"send_pend"`
	Reductions        int64             `json:"reductions"`
	ReductionsDetails Details           `json:"reductions_details"`
	GarbageCollection GarbageCollection `json:"garbage_collection"`
}

// UserConnection is the short form of a user's connection.
type UserConnection struct {
	Name  string `json:"name"`
	VHost string `json:"vhost"`
	User  string `json:"user"`
	Node  string `json:"node"`
}

// Channel is one channel.
type Channel struct {
	Name                string            `json:"name" part:"addresses"`
	Number              uint16            `json:"number"`
	VHost               string            `json:"vhost"`
	User                string            `json:"user"`
	PerformedBy         string            `json:"user_who_performed_action"`
	Node                string            `json:"node"`
	State               string            `json:"state"`
	ConsumerCount       int               `json:"consumer_count"`
	Confirm             bool              `json:"confirm"`
	Transactional       bool              `json:"transactional"`
	PrefetchCount       uint32            `json:"prefetch_count"`
	GlobalPrefetchCount int64             `json:"global_prefetch_count"`
	Unacknowledged      int               `json:"messages_unacknowledged"`
	Unconfirmed         uint64            `json:"messages_unconfirmed"`
	Uncommitted         int               `json:"messages_uncommitted"`
	AcksUncommitted     int               `json:"acks_uncommitted"`
	PendingRaftCommands int               `json:"pending_raft_commands"`
	Reductions          int64             `json:"reductions"`
	ReductionsDetails   Details           `json:"reductions_details"`
	GarbageCollection   GarbageCollection `json:"garbage_collection"`
	ConnectionDetails   Peer              `json:"connection_details" part:"addresses"`
	MessageStats        Stats             `json:"message_stats,omitempty" part:"rates"`
}

// ChannelDetail is what the path of one channel gives.
type ChannelDetail struct {
	Channel
	ConsumerDetails []Consumer `json:"consumer_details"`
	Publishes       []any      `json:"publishes"`
	Deliveries      []any      `json:"deliveries"`
}

// Consumer is one consumer.
type Consumer struct {
	ConsumerTag     string         `json:"consumer_tag"`
	Queue           QueueName      `json:"queue"`
	AckRequired     bool           `json:"ack_required"`
	Exclusive       bool           `json:"exclusive"`
	PrefetchCount   uint32         `json:"prefetch_count"`
	Active          bool           `json:"active"`
	ActivityStatus  string         `json:"activity_status"`
	Arguments       map[string]any `json:"arguments"`
	ConsumerTimeout int64          `json:"consumer_timeout"` // ms; 0: none
	ChannelDetails  ChannelName    `json:"channel_details"`
}

// QueueName names a queue.
type QueueName struct {
	Name  string `json:"name"`
	VHost string `json:"vhost"`
}

// ChannelName names a channel.
type ChannelName struct {
	Name           string `json:"name"`
	Number         uint16 `json:"number"`
	Node           string `json:"node"`
	User           string `json:"user"`
	ConnectionName string `json:"connection_name"`
	PeerHost       string `json:"peer_host"`
	PeerPort       int    `json:"peer_port"`
}

// VHost is one vhost.
type VHost struct {
	Name             string            `json:"name"`
	Description      string            `json:"description"`
	Tags             []string          `json:"tags"`
	DefaultQueueType string            `json:"default_queue_type"`
	Metadata         VHostMetadata     `json:"metadata"`
	Tracing          bool              `json:"tracing"`
	ClusterState     map[string]string `json:"cluster_state"`
	Protected        bool              `json:"protected_from_deletion"`
	Lengths
	RecvOct        uint64  `json:"recv_oct"`
	RecvOctDetails Details `json:"recv_oct_details"`
	SendOct        uint64  `json:"send_oct"`
	SendOctDetails Details `json:"send_oct_details"`
	MessageStats   Stats   `json:"message_stats,omitempty"`
}

// VHostMetadata repeats what was set.
type VHostMetadata struct {
	Description      string   `json:"description"`
	Tags             []string `json:"tags"`
	DefaultQueueType string   `json:"default_queue_type,omitempty"`
	Protected        bool     `json:"protected_from_deletion,omitempty"`
}

// User is one user.
type User struct {
	Name             string         `json:"name"`
	PasswordHash     string         `json:"password_hash"`
	HashingAlgorithm string         `json:"hashing_algorithm"`
	Tags             Tags           `json:"tags"`
	Limits           map[string]int `json:"limits"`
}

// Tags are a user's or a vhost's tags: a list, or a comma-separated string when read.
type Tags []string

func (t *Tags) UnmarshalJSON(p []byte) error {
	if len(p) == 0 || p[0] != '"' {
		return json.Unmarshal(p, (*[]string)(t))
	}
	var s string
	if err := json.Unmarshal(p, &s); err != nil {
		return err
	}
	*t = SplitTags(s)
	return nil
}

// SplitTags reads a comma-separated list.
func SplitTags(s string) Tags {
	t := Tags{}
	for tag := range strings.SplitSeq(s, ",") {
		if tag = strings.TrimSpace(tag); tag != "" {
			t = append(t, tag)
		}
	}
	return t
}

// Permission is what a user may do in a vhost.
type Permission struct {
	User      string `json:"user"`
	VHost     string `json:"vhost"`
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
}

// TopicPermission limits routing keys on a topic exchange.
type TopicPermission struct {
	User     string `json:"user"`
	VHost    string `json:"vhost"`
	Exchange string `json:"exchange"`
	Write    string `json:"write"`
	Read     string `json:"read"`
}

// Policy is one policy or operator policy.
type Policy struct {
	VHost      string         `json:"vhost"`
	Name       string         `json:"name"`
	Pattern    string         `json:"pattern"`
	ApplyTo    string         `json:"apply-to"`
	Definition map[string]any `json:"definition"`
	Priority   int64          `json:"priority"`
}

// Parameter is a parameter of a vhost, GlobalParameter one of all.
type Parameter struct {
	VHost     string          `json:"vhost"`
	Component string          `json:"component"`
	Name      string          `json:"name"`
	Value     json.RawMessage `json:"value"`
}

// GlobalParameter is a parameter of the broker.
type GlobalParameter struct {
	Name  string          `json:"name"`
	Value json.RawMessage `json:"value"`
}

// Message is one message that was got.
type Message struct {
	PayloadBytes    int            `json:"payload_bytes"`
	Redelivered     bool           `json:"redelivered"`
	Exchange        string         `json:"exchange"`
	RoutingKey      string         `json:"routing_key"`
	MessageCount    int            `json:"message_count"`
	Properties      map[string]any `json:"properties"`
	Payload         string         `json:"payload"`
	PayloadEncoding string         `json:"payload_encoding"` // string or base64
}

// Page is one page of a list.
type Page[T any] struct {
	TotalCount    int `json:"total_count"`
	ItemCount     int `json:"item_count"`
	FilteredCount int `json:"filtered_count"`
	Page          int `json:"page"`
	PageSize      int `json:"page_size"`
	PageCount     int `json:"page_count"`
	Items         []T `json:"items"`
}

// ExchangeType, and AuthMechanism, is something that can be chosen by name.
type ExchangeType struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Enabled     bool   `json:"enabled"`
}

// Listener is one open port.
type Listener struct {
	Node       string         `json:"node"`
	Protocol   string         `json:"protocol"`
	IPAddress  string         `json:"ip_address"`
	Port       int            `json:"port"`
	SocketOpts map[string]any `json:"socket_opts"`
	TLS        bool           `json:"tls"`
}

// Context is what the HTTP listener serves.
type Context struct {
	SSLOpts     []any  `json:"ssl_opts"`
	Node        string `json:"node"`
	Description string `json:"description"`
	Path        string `json:"path"`
	CowboyOpts  string `json:"cowboy_opts"`
	Port        string `json:"port"`
}

// ObjectTotals count the objects a user may see.
type ObjectTotals struct {
	Channels    int `json:"channels"`
	Connections int `json:"connections"`
	Consumers   int `json:"consumers"`
	Exchanges   int `json:"exchanges"`
	Queues      int `json:"queues"`
}

// Overview is the state of the whole.
type Overview struct {
	ManagementVersion      string           `json:"management_version"`
	RatesMode              string           `json:"rates_mode"`
	SampleRetention        map[string][]int `json:"sample_retention_policies"`
	ExchangeTypes          []ExchangeType   `json:"exchange_types"`
	ProductVersion         string           `json:"product_version"`
	ProductName            string           `json:"product_name"`
	RabbitMQVersion        string           `json:"rabbitmq_version"`
	ClusterName            string           `json:"cluster_name"`
	ClusterTags            map[string]any   `json:"cluster_tags"`
	NodeTags               map[string]any   `json:"node_tags"`
	ErlangVersion          string           `json:"erlang_version"`
	ErlangFullVersion      string           `json:"erlang_full_version"`
	CryptoLibVersion       string           `json:"crypto_lib_version"`
	ReleaseSupport         string           `json:"release_series_support_status"`
	DefaultQueueType       string           `json:"default_queue_type"`
	DisableStats           bool             `json:"disable_stats"`
	EnableQueueTotals      bool             `json:"enable_queue_totals"`
	OpPolicyUpdating       bool             `json:"is_op_policy_updating_enabled"`
	MessageStats           Stats            `json:"message_stats"`
	ChurnRates             Stats            `json:"churn_rates"`
	QueueTotals            Lengths          `json:"queue_totals"`
	ObjectTotals           ObjectTotals     `json:"object_totals"`
	StatisticsDBEventQueue int              `json:"statistics_db_event_queue"`
	Node                   string           `json:"node"`
	Listeners              []Listener       `json:"listeners,omitempty"`
	Contexts               []Context        `json:"contexts,omitempty"`
}

// Error is the body of a refusal.
type Error struct {
	Error  string `json:"error"`
	Reason any    `json:"reason"`
}

// Decode reads one JSON value, with integers kept as such. An error is what is no JSON, or more than one value.
func Decode(p []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(p))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is more behind the value")
	}
	return nil
}

// Document reads a file that is a JSON object; one of nothing is an empty object. Its error says line, column and cause: it
// is for who wrote the file.
func Document(p []byte) (map[string]any, error) {
	p = bytes.TrimPrefix(p, []byte("\xef\xbb\xbf"))
	if len(bytes.TrimSpace(p)) == 0 {
		return map[string]any{}, nil
	}
	var doc map[string]any
	if err := Decode(p, &doc); err == nil && doc != nil {
		return doc, nil
	}
	at, cause := len(p)-len(bytes.TrimLeft(p, " \t\r\n")), "this is no JSON object, which begins with {"
	if e, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(p, new(json.RawMessage))); ok {
		at, cause = len(p), "the file ends before its JSON does"
		if e.Error() != endsEarly {
			at, cause = int(e.Offset)-1, e.Error() // the offset is behind the byte that does not fit
		}
	}
	line := p[bytes.LastIndexByte(p[:at], '\n')+1 : at]
	return nil, fmt.Errorf("line %d, column %d: %s", bytes.Count(p[:at], []byte("\n"))+1, utf8.RuneCount(line)+1, cause)
}

// endsEarly is what encoding/json says of a text that is not complete; its type is that of other errors.
const endsEarly = "unexpected end of JSON input"

// WarningHeader is the name of headers in the answer to an import that say what was skipped: each is a Go string literal.
const WarningHeader = "FireMQ-Warning"

// Warnings are what those headers say.
func Warnings(headers []string) []string {
	var all []string
	for _, h := range headers {
		if s, err := strconv.Unquote(h); err == nil {
			all = append(all, s)
		}
	}
	return all
}

// Definitions are the whole broker but for its messages.
type Definitions struct {
	RabbitVersion    string            `json:"rabbit_version"`
	RabbitMQVersion  string            `json:"rabbitmq_version"`
	ProductName      string            `json:"product_name"`
	ProductVersion   string            `json:"product_version"`
	Format           string            `json:"rabbitmq_definition_format"`
	OriginalCluster  string            `json:"original_cluster_name"`
	Explanation      string            `json:"explanation"`
	Users            []User            `json:"users"`
	VHosts           []VHostDefinition `json:"vhosts"`
	Permissions      []Permission      `json:"permissions"`
	TopicPermissions []TopicPermission `json:"topic_permissions"`
	GlobalParameters []GlobalParameter `json:"global_parameters"`
	VHostParts
}

// VHostDefinitions are one vhost.
type VHostDefinitions struct {
	RabbitVersion   string         `json:"rabbit_version"`
	RabbitMQVersion string         `json:"rabbitmq_version"`
	ProductName     string         `json:"product_name"`
	ProductVersion  string         `json:"product_version"`
	Format          string         `json:"rabbitmq_definition_format"`
	OriginalVHost   string         `json:"original_vhost_name"`
	Explanation     string         `json:"explanation"`
	Description     string         `json:"description"`
	Metadata        VHostMetadata  `json:"metadata"`
	Limits          map[string]int `json:"limits"`
	VHostParts
}

// VHostParts are what is in vhosts.
type VHostParts struct {
	Parameters []Parameter          `json:"parameters"`
	Policies   []Policy             `json:"policies"`
	Queues     []QueueDefinition    `json:"queues"`
	Exchanges  []ExchangeDefinition `json:"exchanges"`
	Bindings   []BindingDefinition  `json:"bindings"`
}

// VHostDefinition is a vhost without what is in it.
type VHostDefinition struct {
	Name        string         `json:"name"`
	Description string         `json:"description"`
	Tags        []string       `json:"tags"`
	Tracing     bool           `json:"tracing"`
	Limits      map[string]int `json:"limits"`
	Metadata    VHostMetadata  `json:"metadata"`
}

// QueueDefinition is a queue without its state; VHost is left out in the definitions of one vhost.
type QueueDefinition struct {
	Name       string         `json:"name"`
	VHost      string         `json:"vhost,omitempty"`
	Type       string         `json:"type"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Arguments  map[string]any `json:"arguments"`
}

// ExchangeDefinition is an exchange without its state.
type ExchangeDefinition struct {
	Name       string         `json:"name"`
	VHost      string         `json:"vhost,omitempty"`
	Type       string         `json:"type"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Internal   bool           `json:"internal"`
	Arguments  map[string]any `json:"arguments"`
}

// BindingDefinition is a binding.
type BindingDefinition struct {
	Source          string         `json:"source"`
	VHost           string         `json:"vhost,omitempty"`
	Destination     string         `json:"destination"`
	DestinationType string         `json:"destination_type"`
	RoutingKey      string         `json:"routing_key"`
	Arguments       map[string]any `json:"arguments"`
}
