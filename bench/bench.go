// Package bench puts load on a broker, over the wire only, and measures what comes back.
//
// A run declares its own durable queues, publishes to them and consumes from them, and deletes them:
//
//	connect -> fill -> warm-up -> measured time -> publishers stop, last confirms -> drain -> count -> delete
//
// Every body starts with its send time and a sequence number, so that at the end each message that
// was lost or delivered twice is counted, exactly:
//
//	+----------------------+-----------------+----------------+--------+
//	| send time : u64 (ns) | publisher : u16 | sequence : u48 | filler |
//	+----------------------+-----------------+----------------+--------+
//
// The broker is AMQP 0-9-1 (any), FMQ1 or NATS, by the scheme of the URL. The clients are raw: publishes are
// copied from a template, acks are written once per read, and a batch takes the time once, so that the
// client is not what limits the run. Nothing here knows how the broker was started.
package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/firemq/firemq/internal/transport"
)

// Limits of the options.
const (
	MinSize    = stampSize       // bytes of a body: its send time and sequence number
	MaxSize    = 16<<20 - 64<<10 // bytes of a body: an FMQ1 frame has to hold it
	MaxClients = 4096            // publishers, and as many consumers
	MaxQueues  = 100_000
	MaxWindow  = 1 << 20 // unconfirmed messages of a publisher
	MaxCount   = 1 << 40 // messages of a run
	MaxSizes   = 16      // of bodies, in turn
)

// stampSize is the part of each body that carries its time and number.
const stampSize = 16

// Options say what load to make. The zero value of a field is what its comment says.
type Options struct {
	// URL is amqp://user:pass@host:port/vhost or fire://user:pass@host:port/vhost, amqps:// or fires:// over
	// TLS, or ws://user:pass@host:port/fire?vhost=name, wss:// over TLS; for reference nats://host:port, and
	// jetstream://host:port. User and password default to guest, the port to the protocol's, the vhost to "/".
	// Required.
	URL string
	// CAFile is a PEM file of authorities to trust beside the system's; Insecure trusts any certificate.
	CAFile   string
	Insecure bool

	Publishers int           // connections that publish; 0: 1
	Consumers  int           // connections that consume; 0: none, the messages stay until the queues are deleted
	Queues     int           // spread over publishers and consumers; 0: 1
	Fanout     bool          // publish to a fanout exchange that every queue is bound to
	QueueName  string        // of the one queue, instead of a name that nobody else has
	QueueType  string        // x-queue-type of the queues, AMQP only; empty: the broker's default
	Keep       bool          // leave the queues and what is in them when the run ends
	Size       int           // bytes of a body; 0: 256, or with Sizes their mean
	Sizes      []int         // sizes that the bodies of a publisher to a queue have in turn; none: Size alone
	Persistent bool          // delivery mode 2; the queues are durable either way
	Window     int           // unconfirmed messages of a publisher; 0: 1,000
	Prefetch   int           // unacknowledged messages of a consumer and queue; 0: 1,000
	Multiple   bool          // acknowledge once per read, with multiple; else each message
	Rate       float64       // messages per second of all publishers together; 0: as many as the window lets through
	RampTo     float64       // Rate changes steadily to this one over the measured time; 0: it does not change
	Warmup     time.Duration // load before the measured time; 0: none
	Duration   time.Duration // measured time; 0: 10 s, or with Count as long as that takes
	Count      uint64        // messages of all publishers together, after Backlog; the measured time ends with the last confirm. 0: no end
	Backlog    uint64        // messages in the queues before consumers and the measured time begin
	Drain      bool          // publish nothing after Backlog: the measured time is from the first subscription to the last delivery
	// Patience is how long the broker may make no progress, in an answer, in confirms or in deliveries,
	// before it is given up; 0: 10 s.
	Patience time.Duration

	// BrokerPID is the broker's process, whose CPU time and memory are measured with those of all its
	// descendants; 0: not measured. Linux only.
	BrokerPID int

	// Live is called about once a second from one goroutine; nil: not called.
	Live func(Second)

	Version string // of the program, for the report
}

// Phase is a part of a run.
type Phase string

const (
	Fill    Phase = "fill"
	Warmup  Phase = "warm-up"
	Measure Phase = "measure"
	Drain   Phase = "drain"
)

// Second is what happened in about one second.
type Second struct {
	Phase     Phase   `json:"phase"`
	Elapsed   float64 `json:"elapsed_s"`   // since the phase began
	Published float64 `json:"published_s"` // messages per second
	Consumed  float64 `json:"consumed_s"`  // messages per second
	Backlog   int64   `json:"backlog"`     // deliveries still to come
	// Latencies from publish to delivery of what arrived in this second, or to confirm where nothing is
	// consumed; 0: nothing arrived.
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
}

// A UsageError is an option that makes no sense.
type UsageError struct{ Text string }

func (e *UsageError) Error() string { return e.Text }

func usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// withDefaults fills in the defaults and refuses what cannot run.
func (o Options) withDefaults() (Options, protocol, error) {
	set := func(v *int, zero int) {
		if *v == 0 {
			*v = zero
		}
	}
	set(&o.Publishers, 1)
	set(&o.Queues, 1)
	if len(o.Sizes) > MaxSizes {
		return o, protocol{}, usagef("there are more than %d sizes", MaxSizes)
	}
	if len(o.Sizes) > 0 {
		o.Size = 0
		for _, size := range o.Sizes {
			if size < MinSize || size > MaxSize {
				return o, protocol{}, usagef("size %d is not between %d and %d", size, MinSize, MaxSize)
			}
			o.Size += size
		}
		o.Size /= len(o.Sizes)
	} else {
		set(&o.Size, 256)
		o.Sizes = []int{o.Size}
	}
	set(&o.Window, 1000)
	set(&o.Prefetch, 1000)
	if o.Duration == 0 && o.Count == 0 {
		o.Duration = 10 * time.Second
	}
	if o.Patience == 0 {
		o.Patience = 10 * time.Second
	}
	for _, v := range []struct {
		what        string
		is          int
		least, most int
	}{
		{"publishers", o.Publishers, 1, MaxClients},
		{"consumers", o.Consumers, 0, MaxClients},
		{"queues", o.Queues, 1, MaxQueues},
		{"size", o.Size, MinSize, MaxSize},
		{"window", o.Window, 1, MaxWindow},
		{"prefetch", o.Prefetch, 1, 65535},
	} {
		if v.is < v.least || v.is > v.most {
			return o, protocol{}, usagef("%s %d is not between %d and %d", v.what, v.is, v.least, v.most)
		}
	}
	if o.Rate < 0 || o.RampTo < 0 || o.Duration < 0 || o.Warmup < 0 || o.Patience < 0 {
		return o, protocol{}, usagef("a rate or a duration is below 0")
	}
	proto, err := protocolOf(o.URL)
	if err != nil {
		return o, proto, err
	}
	switch {
	case max(o.Count, o.Backlog) > MaxCount:
		return o, proto, usagef("a count is above %d", uint64(MaxCount))
	case o.Drain && (o.Backlog == 0 || o.Consumers == 0):
		return o, proto, usagef("to drain takes a backlog and a consumer")
	case o.Drain && (o.Count > 0 || o.Rate > 0 || o.Warmup > 0):
		return o, proto, usagef("to drain is to publish nothing after the backlog: no count, rate or warm-up")
	case o.RampTo > 0 && (o.Rate == 0 || o.Count > 0):
		return o, proto, usagef("a ramp begins at a rate and lasts as long as the measured time: a rate and no count")
	case o.Count > 0 && o.Warmup > 0:
		return o, proto, usagef("a run with a count has no warm-up")
	case o.QueueName != "" && o.Queues > 1:
		return o, proto, usagef("one name is for one queue, not %d", o.Queues)
	case o.QueueType != "" && !proto.amqp():
		return o, proto, usagef("a queue type is for AMQP")
	case proto.nats() && (o.Fanout || o.Multiple):
		return o, proto, usagef("a fanout exchange and multiple acks are not for NATS")
	case proto.name == "NATS" && (o.Backlog > 0 || o.Persistent):
		return o, proto, usagef("core NATS keeps no message: use jetstream://")
	}
	return o, proto, nil
}

// protocol makes the connections of one protocol.
type protocol struct {
	name string
	port string // default
	dial func(ctx context.Context, to target) (wire, error)
}

func (p protocol) amqp() bool { return strings.HasPrefix(p.name, "AMQP") }
func (p protocol) nats() bool { return strings.HasPrefix(p.name, "NATS") }

// protocols are by the URL's scheme.
var protocols = map[string]protocol{
	"amqp":  {name: "AMQP 0-9-1", port: "5672", dial: dialAMQP},
	"amqps": {name: "AMQP 0-9-1 over TLS", port: "5671", dial: dialAMQP},
	"fire":  {name: "FMQ1", port: "5673", dial: dialFMQ1},
	"fires": {name: "FMQ1 over TLS", port: "5674", dial: dialFMQ1},
	"ws":    {name: "FMQ1 over WebSocket", port: "15672", dial: dialFMQ1},
	"wss":   {name: "FMQ1 over WebSocket and TLS", port: "15671", dial: dialFMQ1},

	"nats":      {name: "NATS", port: "4222", dial: dialCore},
	"jetstream": {name: "NATS JetStream", port: "4222", dial: dialJetStream},
}

// target is a parsed URL.
type target struct {
	transport.Target
	user, pass string
	vhost      string
	patience   time.Duration
	multiple   bool // acks are cumulative
	size       int  // bytes of the largest body
	queueType  string
	persistent bool
}

// webSocket says that messages are framed by the transport.
func (t target) webSocket() bool { return t.Scheme == "ws" || t.Scheme == "wss" }

func protocolOf(raw string) (protocol, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return protocol{}, usagef("the URL cannot be read: %v", errors.Unwrap(err))
	}
	if p, ok := protocols[u.Scheme]; ok {
		return p, nil
	}
	return protocol{}, usagef("the URL %q does not start with amqp:// or amqps://, fire:// or fires://, ws:// or wss://, nats:// or jetstream://", u.Redacted())
}

// targetOf parses a URL that protocolOf has accepted. An empty path is the vhost "/", also with AMQP, which
// has "amqp://host/" for the vhost "" by the letter of its URI document, which no broker offers.
func targetOf(o Options, p protocol) (target, error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		return target{}, usagef("the URL cannot be read: %v", errors.Unwrap(err))
	}
	t := target{user: "guest", pass: "guest", vhost: "/", patience: o.Patience, multiple: o.Multiple, size: slices.Max(o.Sizes), queueType: o.QueueType, persistent: o.Persistent}
	t.Scheme = u.Scheme
	host, port := u.Hostname(), u.Port()
	if host == "" {
		host = "localhost"
	}
	if port == "" {
		port = p.port
	}
	t.Addr = net.JoinHostPort(host, port)
	if u.User != nil {
		t.user = u.User.Username()
		t.pass, _ = u.User.Password()
	}
	if t.TLS, err = transport.TLS(o.CAFile, o.Insecure); err != nil {
		return target{}, usagef("%v", err)
	}
	if path := u.EscapedPath(); t.webSocket() {
		if t.Path = path; len(path) <= 1 {
			t.Path = "/fire"
		}
		if v := u.Query().Get("vhost"); v != "" {
			t.vhost = v
		}
	} else if len(path) > 1 {
		if t.vhost, err = url.PathUnescape(path[1:]); err != nil {
			return target{}, usagef("the vhost in the URL cannot be read: %v", err)
		}
	}
	return t, nil
}
