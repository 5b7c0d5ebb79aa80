// Package policy turns what users say about a queue, its x-arguments and the policies that match
// it, into a queue.Config and a dead-letter address.
//
// Everything here is a pure function of its arguments, safe for any goroutine. The texts are
// RabbitMQ's, word for word. A resource is given as they print it: "queue 'q' in vhost '/'".
//
// One table, arguments, lists every x-argument of a queue: its check, the queue types that know
// it, and, by its order, when it is checked and compared. Another one, settings, lists the keys of
// policies.
package policy

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/firemq/firemq/broker/dedup"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
)

// Type is a queue's type (x-queue-type). All types are the same queue here; they differ in the
// arguments and properties that they allow and in the delivery limit that they have unasked.
type Type uint8

const (
	Classic Type = 1 << iota
	Quorum
	stream // known only so that what belongs to it is refused or ignored
)

// String is the type as x-queue-type and the management API spell it.
func (t Type) String() string {
	if t == Quorum {
		return "quorum"
	}
	return "classic"
}

// module is the type as RabbitMQ's error texts call it.
func (t Type) module() string { return "rabbit_" + t.String() + "_queue" }

const (
	// QuorumDeliveryLimit is the delivery limit of a quorum queue that sets none.
	QuorumDeliveryLimit = 20

	// MaxTTL is the longest time to live and queue lease in ms: ten years.
	MaxTTL = 315_360_000_000
)

// Properties are the flags of a queue.declare that its arguments depend on.
type Properties struct {
	Durable     bool
	Exclusive   bool
	AutoDelete  bool
	ServerNamed bool // declared with an empty name
}

// Settings is what arguments and policies make of a queue. It is immutable once it is shared.
type Settings struct {
	Type   Type
	Config queue.Config

	// DeadLetterExchange and DeadLetterKey are where dead letters go; nil: nowhere, and under
	// the keys that the message came with.
	DeadLetterExchange *string
	DeadLetterKey      *string

	// ConsumerTimeout is how long a delivery may wait for its acknowledgement, ms; 0: for ever, queue.None: as
	// long as the broker's setting says.
	ConsumerTimeout int64

	// Dedup is what the queue remembers to know repetitions.
	Dedup dedup.Config

	ownOverflow       bool // the overflow is an argument's, which no policy replaces
	ownDeliveryLimit  bool // so is the delivery limit, not the default
	ownExpireAnywhere bool
	dedup             dedupSettings
}

// Invalid refuses a declare or consume: PRECONDITION_FAILED with this text.
type Invalid struct{ Text string }

func (i *Invalid) Error() string { return i.Text }

func invalid(format string, args ...any) *Invalid {
	return &Invalid{Text: fmt.Sprintf(format, args...)}
}

// argument is one x-argument of a queue.
type argument struct {
	key   string
	types Type // that know it; any other type refuses it
	// check gives the reason why v is refused, "" for none.
	check func(v table.Value, all table.Table) string
}

const both = Classic | Quorum

// arguments is in the order in which RabbitMQ checks and compares. Arguments that are not listed are
// stored with the queue and mean nothing.
var arguments = []argument{
	{"x-expires", both, checkExpires},
	{"x-message-ttl", both, checkTTL},
	{"x-dead-letter-exchange", both, checkString},
	{"x-dead-letter-routing-key", both, checkDeadLetterKey},
	{"x-dead-letter-strategy", Quorum, oneOf("invalid_dlx_strategy", strategies...)},
	{"x-max-length", both, checkNatural},
	{"x-max-length-bytes", both | stream, checkNatural},
	{"x-max-in-memory-length", Quorum, checkNatural},
	{"x-max-in-memory-bytes", Quorum, checkNatural},
	{"x-max-priority", Classic, checkMaxPriority},
	{"x-overflow", both, oneOf("invalid_overflow", overflows...)},
	{"x-queue-mode", Classic, checkMode},
	{"x-queue-version", Classic, checkVersion},
	{"x-single-active-consumer", both, checkBool},
	{"x-expire-anywhere", both, checkBool},
	{"x-consumer-timeout", both, checkNatural},
	{"x-queue-type", both | stream, checkType},
	{"x-quorum-initial-group-size", Quorum, checkPositive},
	{"x-delivery-limit", both, checkInt},
	{"x-message-deduplication", both, checkSwitch},
	{"x-cache-size", both, checkCache(dedup.MaxSize)},
	{"x-cache-ttl", both, checkCache(MaxTTL)},
	{"x-deduplication-by", both, checkBy},
	{"x-queue-master-locator", Classic, checkAny},
	{"x-queue-leader-locator", both | stream, oneOf("invalid_queue_locator_arg", leaderLocators...)},
	{"x-max-age", stream, checkAny},
	{"x-stream-max-segment-size-bytes", stream, checkAny},
	{"x-stream-filter-size-bytes", stream, checkAny},
	{"x-initial-cluster-size", stream, checkAny},
}

var (
	overflows      = []string{"drop-head", "reject-publish", "reject-publish-dlx"}
	strategies     = []string{"at-most-once", "at-least-once"}
	modes          = []string{"default", "lazy"}
	leaderLocators = []string{"client-local", "balanced", "random", "least-leaders"}
)

// Parse checks the arguments of a new queue and makes its Settings, without any policy.
func Parse(args table.Table, p Properties, resource string) (Settings, *Invalid) {
	s := Settings{Type: typeOf(args), Config: queue.Plain, ConsumerTimeout: queue.None}
	if s.Type == Quorum && p.ServerNamed {
		return Settings{}, invalid("Cannot declare a server-named queue for type %s", s.Type.module())
	}
	if v, ok := args.Get("x-dead-letter-exchange"); ok && v.Kind != table.String {
		return Settings{}, wrongType("x-dead-letter-exchange", v, resource)
	}
	for i := range arguments {
		a := &arguments[i]
		if v, ok := args.Get(a.key); ok {
			if reason := a.check(v, args); reason != "" {
				return Settings{}, invalid("invalid arg '%s' for %s: %s", a.key, resource, reason)
			}
		}
	}
	for i := range args {
		if a := argumentOf(args[i].Name); a != nil && a.types&s.Type == 0 {
			return Settings{}, invalid("invalid arg '%s' for %s of queue type %s", a.key, resource, s.Type.module())
		}
	}
	if s.Type == Quorum {
		property := ""
		switch {
		case p.AutoDelete:
			property = "auto-delete"
		case p.Exclusive:
			property = "exclusive-owner"
		case !p.Durable:
			property = "non-durable"
		}
		if property != "" {
			return Settings{}, invalid("invalid property '%s' for %s", property, resource)
		}
		s.Config.DeliveryLimit = QuorumDeliveryLimit
		s.Config.OfferFirst = true
	}
	s.apply(args)
	return s, nil
}

// apply takes over arguments that have been checked.
func (s *Settings) apply(args table.Table) {
	number := func(key string, to *int64) bool {
		v, ok := args.Get(key)
		if ok {
			*to, _ = v.AsInt()
		}
		return ok
	}
	text := func(key string) *string {
		if v, ok := args.Get(key); ok {
			return &v.Str
		}
		return nil
	}
	c := &s.Config
	number("x-expires", &c.Expires)
	number("x-message-ttl", &c.MessageTTL)
	number("x-max-length", &c.MaxLength)
	number("x-max-length-bytes", &c.MaxBytes)
	s.ownDeliveryLimit = number("x-delivery-limit", &c.DeliveryLimit)
	c.DeliveryLimit = max(c.DeliveryLimit, queue.None) // any negative number is no limit
	if v, ok := args.Get("x-max-priority"); ok {
		c.MaxPriority = int(v.Num)
	}
	if v, ok := args.Get("x-single-active-consumer"); ok {
		c.SingleActive, _ = v.AsBool()
	}
	if v, ok := args.Get("x-expire-anywhere"); ok {
		c.ExpireAnywhere, _ = v.AsBool()
		s.ownExpireAnywhere = true
	}
	if v, ok := args.Get("x-consumer-timeout"); ok {
		n, _ := v.AsInt()
		s.ConsumerTimeout = min(n, MaxTTL)
	}
	if o := text("x-overflow"); o != nil {
		c.Overflow = s.overflow(*o)
		s.ownOverflow = true
	}
	s.dedup = readDedup(func(key string) (table.Value, bool) { return args.Get("x-" + key) })
	s.Dedup = s.dedup.config()
	s.DeadLetterExchange = text("x-dead-letter-exchange")
	s.DeadLetterKey = text("x-dead-letter-routing-key")
	s.noteFleeting()
}

// noteFleeting follows a change of what Config.Fleeting depends on.
func (s *Settings) noteFleeting() {
	s.Config.Fleeting = s.Type == Classic && s.Config.MessageTTL == 0 && s.DeadLetterExchange == nil
}

// overflow reads an overflow's name. A quorum queue has no reject-publish-dlx and drops its head instead.
func (s *Settings) overflow(name string) queue.Overflow {
	switch {
	case name == "reject-publish":
		return queue.RejectPublish
	case name == "reject-publish-dlx" && s.Type != Quorum:
		return queue.RejectPublishDLX
	}
	return queue.DropHead
}

// typeOf is the type that a queue's arguments ask for, Classic if they ask for none.
func typeOf(args table.Table) Type {
	if v, ok := args.Get("x-queue-type"); ok && v.Kind == table.String && v.Str == "quorum" {
		return Quorum
	}
	return Classic
}

func argumentOf(key string) *argument {
	for i := range arguments {
		if arguments[i].key == key {
			return &arguments[i]
		}
	}
	return nil
}

func wrongType(key string, v table.Value, resource string) *Invalid {
	return invalid("invalid type '%s' for arg '%s' in %s", v.Kind, key, resource)
}

// AlternateExchange reads an exchange's alternate-exchange argument, "" for none.
func AlternateExchange(args table.Table, resource string) (string, *Invalid) {
	v, ok := args.Get("alternate-exchange")
	if !ok {
		return "", nil
	}
	if v.Kind != table.String {
		return "", wrongType("alternate-exchange", v, resource)
	}
	return v.Str, nil
}

// consumerArguments is in the order in which RabbitMQ checks.
var consumerArguments = []argument{
	{"x-priority", both, checkInt},
	{"x-consumer-timeout", both, checkNatural},
	{"x-cancel-on-ha-failover", both, checkBool},
}

// Consumer is what its arguments make of a consumer.
type Consumer struct {
	// Priority is x-priority, 0 without it.
	Priority int64
	// Timeout is x-consumer-timeout, how long its deliveries may wait for their acknowledgement, ms; 0: for
	// ever, queue.None: as its queue says.
	Timeout int64
}

// ParseConsumer checks the arguments of a basic.consume and reads them.
func ParseConsumer(args table.Table, resource string) (Consumer, *Invalid) {
	c := Consumer{Timeout: queue.None}
	for i := range consumerArguments {
		a := &consumerArguments[i]
		v, ok := args.Get(a.key)
		if !ok {
			continue
		}
		if reason := a.check(v, args); reason != "" {
			return Consumer{}, invalid("invalid arg '%s' for %s: %s", a.key, resource, reason)
		}
		switch n, _ := v.AsInt(); a.key {
		case "x-priority":
			c.Priority = n
		case "x-consumer-timeout":
			c.Timeout = min(n, MaxTTL)
		}
	}
	return c, nil
}

// The checks give RabbitMQ's reason, an Erlang term, or "" for a good value.

func checkAny(table.Value, table.Table) string { return "" }

func checkInt(v table.Value, _ table.Table) string {
	if !v.IsInt() {
		return quote("expected integer, got " + v.Kind.String())
	}
	return ""
}

func checkNatural(v table.Value, all table.Table) string {
	if reason := checkInt(v, all); reason != "" {
		return reason
	}
	if n, _ := v.AsInt(); n < 0 {
		return fmt.Sprintf("{value_negative,%d}", n)
	}
	return ""
}

func checkPositive(v table.Value, all table.Table) string {
	if reason := checkNatural(v, all); reason != "" {
		return reason
	}
	if v.Num == 0 {
		return "{value_zero,0}"
	}
	return ""
}

func checkTTL(v table.Value, all table.Table) string {
	if reason := checkNatural(v, all); reason != "" {
		return reason
	}
	if v.Num > MaxTTL {
		return fmt.Sprintf("{value_too_large,%d}", v.Num)
	}
	return ""
}

func checkExpires(v table.Value, all table.Table) string {
	if reason := checkPositive(v, all); reason != "" {
		return reason
	}
	return checkTTL(v, all)
}

func checkMaxPriority(v table.Value, all table.Table) string {
	if reason := checkNatural(v, all); reason != "" {
		return reason
	}
	if v.Num > math.MaxUint8 {
		return fmt.Sprintf("{max_value_exceeded,%d}", v.Num)
	}
	return ""
}

func checkBool(v table.Value, _ table.Table) string {
	if v.Kind != table.Bool {
		return unacceptable(v)
	}
	return ""
}

func checkString(v table.Value, _ table.Table) string {
	if v.Kind != table.String {
		return unacceptable(v)
	}
	return ""
}

func unacceptable(v table.Value) string { return "{unacceptable_type," + v.Kind.String() + "}" }

func checkDeadLetterKey(v table.Value, all table.Table) string {
	if reason := checkString(v, all); reason != "" {
		return reason
	}
	if _, ok := all.Get("x-dead-letter-exchange"); !ok {
		return "routing_key_but_no_dlx_defined"
	}
	return ""
}

// oneOf makes a check for a string that is one of values.
func oneOf(otherwise string, values ...string) func(table.Value, table.Table) string {
	return func(v table.Value, all table.Table) string {
		if reason := checkString(v, all); reason != "" {
			return reason
		}
		if !slices.Contains(values, v.Str) {
			return otherwise
		}
		return ""
	}
}

func checkMode(v table.Value, all table.Table) string {
	return oneOf(quote("unsupported queue mode '"+v.Str+"'"), modes...)(v, all)
}

func checkVersion(v table.Value, all table.Table) string {
	if reason := checkNatural(v, all); reason != "" {
		return reason
	}
	if v.Num != 1 && v.Num != 2 {
		return quote("unsupported queue version '" + strconv.FormatUint(v.Num, 10) + "'")
	}
	return ""
}

func checkType(v table.Value, all table.Table) string {
	return oneOf(quote("unsupported queue type '"+v.Str+"'"), Classic.String(), Quorum.String())(v, all)
}

// quote prints a string as an Erlang term.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
