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
	"strconv"
	"strings"
	"time"

	"github.com/firemq/firemq/frames/table"
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
	MaxSteps   = 16      // of a rate
	MaxKeys    = 100_000 // routing keys of all queues together
	MaxWork    = time.Minute
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
	// ConsumeURL is where consumers connect, perhaps over another protocol; empty: URL. Not for NATS.
	ConsumeURL string
	// CAFile is a PEM file of authorities to trust beside the system's; Insecure trusts any certificate.
	CAFile   string
	Insecure bool

	Publishers int // connections that publish; 0: 1
	Consumers  int // connections that consume; 0: none, the messages stay until the queues are deleted
	Queues     int // spread over publishers and consumers; 0: 1
	// ExchangeType is that of an exchange of the run's own: direct or topic, whose keys are for one queue each,
	// fanout, where each queue gets every message, or x-consistent-hash or x-random, where one of them does.
	// Empty: the default exchange.
	ExchangeType string
	// Keys is how many routing keys a publisher has for a queue, or for all of a hash, in turn; a direct exchange
	// has as many bindings. 0: 1, for a hash 1,000. Not for the default exchange.
	Keys           int
	QueueName      string         // of the one queue, or of several with %d for their number from 0; empty: names that nobody else has
	QueueArguments map[string]any // x-arguments of the queues: values as table.FromMap takes them
	Predeclared    bool           // the queues of that name are there, and empty: none is declared or deleted
	Keep           bool           // leave the queues and what is in them when the run ends
	Size           int            // bytes of a body; 0: 256, or with Sizes their mean
	Sizes          []int          // sizes that the bodies of a publisher to a queue have in turn; none: Size alone
	Persistent     bool           // delivery mode 2; the queues are durable either way
	// Priority and Headers are properties of every message, and so is TTL in whole milliseconds; 0, nil: absent.
	// What expires counts as lost.
	Priority   uint8
	TTL        time.Duration
	Headers    map[string]any // as QueueArguments; at most maxHeaders bytes
	Window     int            // unconfirmed messages of a publisher; 0: 1,000
	NoConfirms bool           // publish without confirms: as fast as the socket takes it
	Prefetch   int            // unacknowledged messages of a consumer and queue; 0: 1,000
	Multiple   bool           // acknowledge once per read, with multiple; else each message
	AutoAck    bool           // what is delivered counts as acknowledged; there is no prefetch over AMQP then
	Work       time.Duration  // that a consumer takes for each message before its ack; 0: none
	// ConsumeRate is the most messages per second of all consumers together; 0: all that come. Without a Count
	// neither it nor Work holds after the measured time, so that what is left is soon consumed.
	ConsumeRate float64
	Rate        float64       // messages per second of all publishers together; 0: as many as the window lets through
	RampTo      float64       // Rate changes steadily to this one over the measured time; 0: it does not change
	Steps       []Step        // instead of Rate: rates in turn, from the beginning of the load on, over and over
	Jitter      bool          // messages are due at random moments of their intervals, not evenly
	Warmup      time.Duration // load before the measured time; 0: none
	Duration    time.Duration // measured time; 0: 10 s, or with Count as long as that takes
	Count       uint64        // messages of all publishers together, after Backlog; the measured time ends with the last confirm. 0: no end
	Backlog     uint64        // messages in the queues before consumers and the measured time begin
	Drain       bool          // publish nothing after Backlog: the measured time is from the first subscription to the last delivery
	// Patience is how long the broker may make no progress, in an answer, in confirms or in deliveries,
	// before it is given up; 0: 10 s and what a consumer takes for a message by Work and ConsumeRate.
	Patience time.Duration

	// BrokerPID is the broker's process, whose CPU time and memory are measured with those of all its
	// descendants; 0: not measured. Linux only.
	BrokerPID int

	// Live is called about once a second from one goroutine; nil: not called.
	Live func(Second)

	Version string // of the program, for the report

	// Made by withDefaults of QueueArguments and Headers.
	arguments, headers table.Table
}

// maxHeaders bounds the headers of a message, as encoded for AMQP: deliveries have room for so many.
const maxHeaders = 2048

// Step is a rate for some time.
type Step struct {
	Rate float64       `json:"rate"` // messages per second of all publishers together; 0: none
	For  time.Duration `json:"for_ns"`
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
		o.Patience = 10*time.Second + o.Work
		if o.ConsumeRate > 0 { // of a consumer, in MaxWork as is checked below
			o.Patience += time.Duration(min(float64(o.Consumers)/o.ConsumeRate, MaxWork.Seconds()) * second)
		}
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
	if min(o.Rate, o.RampTo, o.ConsumeRate) < 0 || min(o.Duration, o.Warmup, o.Patience, o.Work, o.TTL) < 0 {
		return o, protocol{}, usagef("a rate or a duration is below 0")
	}
	proto, err := protocolOf(o.URL)
	if err != nil {
		return o, proto, err
	}
	if err := o.checkSteps(); err != nil {
		return o, proto, err
	}
	if err := o.topology(); err != nil {
		return o, proto, err
	}
	if o.arguments, err = table.FromMap(o.QueueArguments); err != nil {
		return o, proto, usagef("the queues' arguments: %v", err)
	}
	if o.headers, err = table.FromMap(o.Headers); err != nil {
		return o, proto, usagef("the headers: %v", err)
	}
	if n := len(table.Append(nil, o.headers)); n > maxHeaders {
		return o, proto, usagef("headers of %d bytes are more than %d", n, maxHeaders)
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
	case o.Multiple && o.AutoAck:
		return o, proto, usagef("there are no acks to be multiple without acks")
	case o.Work > MaxWork || o.ConsumeRate > 0 && float64(o.Consumers)/o.ConsumeRate > MaxWork.Seconds():
		return o, proto, usagef("a consumer takes at most %s for a message", MaxWork)
	case (o.Work > 0 || o.ConsumeRate > 0) && (o.Consumers == 0 || o.Drain):
		return o, proto, usagef("what slows consumers down is for the time in which publishers publish")
	case o.TTL%time.Millisecond != 0:
		return o, proto, usagef("a time to live is in whole milliseconds, not %s", o.TTL)
	case proto.name == "NATS" && (o.Backlog > 0 || o.Persistent):
		return o, proto, usagef("core NATS keeps no message: use jetstream://")
	}
	if proto.nats() {
		return o, proto, o.checkNATS()
	}
	return o, proto, nil
}

// checkNATS refuses what NATS has no word for.
func (o *Options) checkNATS() error {
	for _, v := range []struct {
		what string
		is   bool
	}{
		{"another URL for consumers", o.ConsumeURL != ""}, {"an exchange", o.ExchangeType != ""}, {"queue arguments", len(o.QueueArguments) > 0},
		{"predeclared queues", o.Predeclared}, {"multiple acks", o.Multiple}, {"consuming without acks", o.AutoAck},
		{"publishing without confirms", o.NoConfirms}, {"a priority", o.Priority > 0}, {"a time to live", o.TTL > 0}, {"headers", len(o.Headers) > 0},
	} {
		if v.is {
			return usagef("%s: not over NATS", v.what)
		}
	}
	return nil
}

// checkSteps refuses steps that make no load.
func (o *Options) checkSteps() error {
	if len(o.Steps) > MaxSteps {
		return usagef("there are more than %d steps", MaxSteps)
	}
	messages := 0.0
	for _, s := range o.Steps {
		if s.Rate < 0 || s.For <= 0 {
			return usagef("a step of a rate below 0, or of no time")
		}
		messages += s.Rate * s.For.Seconds()
	}
	switch {
	case o.Steps != nil && messages < 1:
		return usagef("all steps together are less than one message")
	case o.Steps != nil && (o.Rate > 0 || o.RampTo > 0 || o.Drain):
		return usagef("steps are rates: no other rate, and not to drain")
	case o.Jitter && !o.paced():
		return usagef("random moments are those of a rate")
	}
	return nil
}

// paced says that publishers follow a schedule.
func (o *Options) paced() bool { return o.Rate > 0 || o.Steps != nil }

// spread is what an exchange of a type does with the run's messages.
type spread uint8

const (
	toOne spread = iota // the one queue that the key is for
	toAll               // every queue
	toAny               // one of them, which the broker picks
)

// exchangeTypes are those that a run can have.
var exchangeTypes = map[string]spread{
	"": toOne, "direct": toOne, "topic": toOne, "fanout": toAll, "x-consistent-hash": toAny, "x-random": toAny,
}

// hashKeys is how many keys there are by default where the key says which queue it is.
const hashKeys = 1000

// topology fills in and checks queues and exchange.
func (o *Options) topology() error {
	_, known := exchangeTypes[o.ExchangeType]
	if o.Keys == 0 {
		if o.Keys = 1; o.ExchangeType == "x-consistent-hash" {
			o.Keys = hashKeys
		}
	}
	switch {
	case !known:
		return usagef("an exchange of the type %q is none of direct, topic, fanout, x-consistent-hash and x-random", o.ExchangeType)
	case o.Keys < 0 || o.Keys*o.Queues > MaxKeys:
		return usagef("%d keys for each of %d queues are not between 1 and %d", o.Keys, o.Queues, MaxKeys)
	case o.Keys > 1 && o.ExchangeType == "":
		return usagef("several keys take an exchange: with the default exchange the key is the queue's name")
	case o.QueueName != "" && o.Queues > 1 && strings.Count(o.QueueName, "%d") != 1:
		return usagef("the name of %d queues takes %%d for their number, once", o.Queues)
	case o.Predeclared && (o.QueueName == "" || o.ExchangeType != "" || len(o.QueueArguments) > 0):
		return usagef("queues that are there have a name, and neither arguments nor an exchange of the run's own")
	case (o.Predeclared || o.Keep) && o.ExchangeType != "":
		return usagef("the exchange is deleted with its queues: with it they are not kept")
	}
	return nil
}

// queueNames are those of the run; own is a beginning that nobody else has.
func (o *Options) queueNames(own string) []string {
	names := make([]string, o.Queues)
	for i := range names {
		switch {
		case o.QueueName == "":
			names[i] = fmt.Sprintf("%s-%d", own, i)
		case o.Queues == 1:
			names[i] = o.QueueName
		default:
			names[i] = strings.Replace(o.QueueName, "%d", strconv.Itoa(i), 1)
		}
	}
	return names
}

// protocol makes the connections of one protocol.
type protocol struct {
	name string
	port string // default
	dial func(ctx context.Context, to target) (wire, error)
}

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
	acks       acks
	size       int // bytes of the largest body
	persistent bool
}

// acks is how consumers acknowledge.
type acks uint8

const (
	eachAck      acks = iota // a message at a time
	multipleAcks             // what came in one read at once
	noAcks                   // not at all
)

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
func targetOf(o Options, raw string, p protocol) (target, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return target{}, usagef("the URL cannot be read: %v", errors.Unwrap(err))
	}
	t := target{user: "guest", pass: "guest", vhost: "/", patience: o.Patience, size: slices.Max(o.Sizes), persistent: o.Persistent}
	switch {
	case o.Multiple:
		t.acks = multipleAcks
	case o.AutoAck:
		t.acks = noAcks
	}
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
