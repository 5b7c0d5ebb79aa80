package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/firemq/firemq/broker/dedup"
	"github.com/firemq/firemq/broker/pattern"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
)

// Target is what a policy can apply to; targets add up.
type Target uint8

const (
	ClassicQueues = Target(Classic)
	QuorumQueues  = Target(Quorum)
	streams       = Target(stream)
	Exchanges     = Target(1 << 3)
)

// targets are the values of apply-to. There are no streams here for a policy to apply to.
var targets = map[string]Target{
	"all":            ClassicQueues | QuorumQueues | streams | Exchanges,
	"queues":         ClassicQueues | QuorumQueues | streams,
	"exchanges":      Exchanges,
	"classic_queues": ClassicQueues,
	"quorum_queues":  QuorumQueues,
	"streams":        streams,
}

// Policy is one policy or operator policy of a vhost. It is immutable, and only New makes one.
type Policy struct {
	Name       string
	Pattern    string // a regular expression, unanchored
	ApplyTo    string
	Priority   int64
	Definition table.Table

	pattern *pattern.Regexp
	targets Target // of ApplyTo
	fits    Target // that know every key of Definition
}

// setting is one key of a policy definition.
type setting struct {
	key      string
	targets  Target // to which a policy with this key can apply
	operator bool   // operator policies have it too
	good     func(v table.Value) bool
	name     string // "... is not a valid <name>"
}

const (
	queues     = ClassicQueues | QuorumQueues
	everything = queues | streams | Exchanges
)

var settings = []setting{
	{"expires", queues | Exchanges, true, atLeast(1), "queue expiry"},
	{"message-ttl", queues | Exchanges, true, atLeast(0), "message TTL"},
	{"max-length", queues | Exchanges, true, atLeast(0), "maximum length"},
	{"max-length-bytes", everything, true, atLeast(0), "maximum length in bytes"},
	{"overflow", queues | Exchanges, true, among(overflows), "overflow value"},
	{"dead-letter-exchange", queues | Exchanges, false, isString, "dead letter exchange name"},
	{"dead-letter-routing-key", queues | Exchanges, false, isString, "dead letter routing key"},
	{"dead-letter-strategy", QuorumQueues | Exchanges, false, among(strategies), "dead letter strategy"},
	{"delivery-limit", queues | Exchanges, true, atLeast(0), "delivery limit"},
	{"max-in-memory-length", QuorumQueues | Exchanges, true, atLeast(0), "maximum memory in bytes"},
	{"max-in-memory-bytes", QuorumQueues | Exchanges, true, atLeast(0), "maximum memory in bytes"},
	{"target-group-size", QuorumQueues | Exchanges, true, atLeast(1), "target group size"},
	{"consumer-timeout", queues | Exchanges, false, atLeast(0), "consumer timeout"},
	{"message-deduplication", queues | Exchanges, false, isBool, "message deduplication value"},
	{"cache-size", queues | Exchanges, false, between(1, dedup.MaxSize), "cache size"},
	{"cache-ttl", queues | Exchanges, false, between(1, MaxTTL), "cache TTL"},
	{"deduplication-by", queues | Exchanges, false, isName, "deduplication key"},
	{"expire-anywhere", queues | Exchanges, false, isBool, "expire-anywhere value"},
	{"queue-mode", ClassicQueues | Exchanges, false, among(modes), "queue-mode value"},
	{"queue-version", ClassicQueues | Exchanges, true, oneOrTwo, "queue-version value"},
	{"queue-master-locator", ClassicQueues | Exchanges, false, isString, "queue master locator"},
	{"queue-leader-locator", everything, false, among(leaderLocators), "queue leader locator value"},
	{"max-age", streams | Exchanges, false, isString, "max age"},
	{"stream-max-segment-size-bytes", streams | Exchanges, false, atLeast(0), "segment size"},
	{"stream-filter-size-bytes", streams | Exchanges, false, atLeast(0), "filter size"},
	{"initial-cluster-size", streams | Exchanges, false, atLeast(1), "cluster size"},
	{"alternate-exchange", everything, false, isString, "alternate exchange name"},
}

func atLeast(least int64) func(table.Value) bool {
	return func(v table.Value) bool {
		n, ok := v.AsInt()
		return ok && n >= least
	}
}

func between(least, most int64) func(table.Value) bool {
	return func(v table.Value) bool {
		n, ok := v.AsInt()
		return ok && n >= least && n <= most
	}
}

func isBool(v table.Value) bool { return v.Kind == table.Bool }

func isName(v table.Value) bool { return v.Kind == table.String && v.Str != "" }

func among(values []string) func(table.Value) bool {
	return func(v table.Value) bool { return v.Kind == table.String && slices.Contains(values, v.Str) }
}

func isString(v table.Value) bool { return v.Kind == table.String }

func oneOrTwo(v table.Value) bool { return v.IsInt() && (v.Num == 1 || v.Num == 2) }

// New checks the four fields of a policy, as they came with their types, and makes it. A priority with a
// fraction is cut. The error has one line for each complaint, as RabbitMQ prints them after
// "Validation failed".
func New(name string, patternField, definition, priority, applyTo table.Value, operator bool) (*Policy, error) {
	p := &Policy{Name: name, Pattern: patternField.Str, ApplyTo: applyTo.Str, Definition: definition.Table}
	var complaints []string
	complain := func(format string, args ...any) {
		complaints = append(complaints, fmt.Sprintf(format, args...))
	}
	if n, ok := priority.AsInt(); ok {
		p.Priority = n
	} else if f, ok := priority.AsFloat(); ok {
		p.Priority = int64(f)
	} else {
		complain("priority should be a number, actually was %s", term(priority))
	}
	if patternField.Kind != table.String {
		complain("pattern should be a binary but was %s", term(patternField))
	} else if compiled, err := pattern.Compile(p.Pattern); err != nil {
		complain("pattern should be regular expression but is invalid: %s", invalidPattern(err))
	} else {
		p.pattern = compiled
	}
	if p.targets = targets[applyTo.Str]; p.targets == 0 || applyTo.Kind != table.String {
		complain("apply-to '%s' unrecognised; should be 'queues', 'exchanges' or 'all'", applyTo.String())
	}
	if complaint := checkDefinition(definition, operator); complaint != "" {
		complain("%s", complaint)
	}
	if complaints != nil {
		return nil, &Invalid{Text: strings.Join(complaints, "\n")}
	}
	p.fits = everything
	for i := range p.Definition {
		p.fits &= settingOf(p.Definition[i].Name, operator).targets
	}
	return p, nil
}

// Make is New for fields that have their types.
func Make(name, pattern string, definition table.Table, priority int64, applyTo string, operator bool) (*Policy, error) {
	return New(name, table.StringValue(pattern), table.TableValue(definition), table.IntValue(priority), table.StringValue(applyTo), operator)
}

// Known says whether a definition may have that key.
func Known(key string, operator bool) bool { return settingOf(key, operator) != nil }

// checkDefinition finds the first fault: a known key with a bad value before the unknown keys.
func checkDefinition(v table.Value, operator bool) string {
	switch {
	case v.Kind != table.Nested:
		return "definition must be a dictionary: " + term(v)
	case len(v.Table) == 0:
		return "no policy provided"
	}
	var twice, unknown []string
	complaint := ""
	for i, f := range v.Table {
		if slices.ContainsFunc(v.Table[:i], func(g table.Field) bool { return g.Name == f.Name }) {
			twice = append(twice, binary(f.Name))
		}
		switch s := settingOf(f.Name, operator); {
		case s == nil:
			unknown = append(unknown, "{"+binary(f.Name)+","+term(f.Value)+"}")
		case !s.good(f.Value) && complaint == "":
			complaint = term(f.Value) + " is not a valid " + s.name
		}
	}
	switch {
	case twice != nil:
		return "[" + strings.Join(twice, ",") + "] duplicate keys not allowed"
	case complaint != "":
		return complaint
	case unknown != nil:
		return "[" + strings.Join(unknown, ",") + "] are not recognised policy settings"
	}
	return ""
}

func settingOf(key string, operator bool) *setting {
	for i := range settings {
		if s := &settings[i]; s.key == key && (s.operator || !operator) {
			return s
		}
	}
	return nil
}

// Applies says whether p applies to the object of that name and kind, one Target. A policy with a
// key that its kind does not know does not apply.
func (p *Policy) Applies(t Target, name string) bool {
	return p.targets&p.fits&t != 0 && p.pattern.MatchString(name)
}

// Match picks the one policy that applies to an object: of the highest priority, and among equals
// the first by name. nil: none applies.
func Match(policies []*Policy, t Target, name string) *Policy {
	var best *Policy
	for _, p := range policies {
		if best != nil && (p.Priority < best.Priority || p.Priority == best.Priority && p.Name >= best.Name) {
			continue
		}
		if p.Applies(t, name) {
			best = p
		}
	}
	return best
}

// Effective merges an operator policy into a policy; either may be nil. Of two numbers the smaller
// counts, of other values the operator's.
func Effective(user, operator *Policy) table.Table {
	var def table.Table
	if user != nil {
		def = slices.Clone(user.Definition)
	}
	if operator != nil {
		for _, f := range operator.Definition {
			n, isInt := f.Value.AsInt()
			if have, ok := def.Get(f.Name); ok && isInt && f.Name != "queue-version" {
				if m, ok := have.AsInt(); ok && m <= n {
					continue
				}
			}
			def.Set(f.Name, f.Value)
		}
	}
	return def
}

// With merges a policy's effective definition into s, which Parse made: of two limits the smaller
// counts, for the rest the argument. Keep s, for the policy may change or go.
func (s Settings) With(definition table.Table) Settings {
	lower := func(key string, limit *int64) {
		if n, ok := number(definition, key); ok && (*limit == queue.None || n < *limit) {
			*limit = n
		}
	}
	text := func(key string, own *string) *string {
		if v, ok := definition.Get(key); ok && own == nil {
			return &v.Str
		}
		return own
	}
	c := &s.Config
	lower("expires", &c.Expires)
	lower("message-ttl", &c.MessageTTL)
	lower("max-length", &c.MaxLength)
	lower("max-length-bytes", &c.MaxBytes)
	if n, ok := number(definition, "delivery-limit"); ok && !s.ownDeliveryLimit {
		c.DeliveryLimit = n // in place of the default
	} else if c.DeliveryLimit != queue.None {
		lower("delivery-limit", &c.DeliveryLimit)
	}
	if v, ok := definition.Get("expire-anywhere"); ok && !s.ownExpireAnywhere {
		c.ExpireAnywhere, _ = v.AsBool()
	}
	if v, ok := definition.Get("overflow"); ok && !s.ownOverflow {
		c.Overflow = s.overflow(v.Str)
	}
	if n, ok := number(definition, "consumer-timeout"); ok {
		s.ConsumerTimeout = shorter(s.ConsumerTimeout, n)
	}
	s.Dedup = s.dedup.with(readDedup(definition.Get)).config()
	s.DeadLetterExchange = text("dead-letter-exchange", s.DeadLetterExchange)
	s.DeadLetterKey = text("dead-letter-routing-key", s.DeadLetterKey)
	s.noteFleeting()
	return s
}

// shorter is the shorter of a queue's own timeout, which may be queue.None, and a policy's; 0 is none at all.
func shorter(own, governed int64) int64 {
	if own > 0 && (governed == 0 || own < governed) || own == 0 && governed == 0 {
		return own
	}
	return min(governed, MaxTTL)
}

func number(definition table.Table, key string) (int64, bool) {
	v, ok := definition.Get(key)
	if !ok {
		return 0, false
	}
	return v.AsInt()
}

// Alternate is an exchange's alternate exchange: its argument, else the policy's, else "".
func Alternate(argument string, definition table.Table) string {
	if v, ok := definition.Get("alternate-exchange"); ok && argument == "" {
		return v.Str
	}
	return argument
}

// term prints a value as RabbitMQ prints what it read from JSON.
func term(v table.Value) string {
	switch v.Kind {
	case table.String, table.Bytes:
		return binary(v.Str)
	case table.Void:
		return "null"
	case table.Array:
		parts := make([]string, len(v.List))
		for i := range v.List {
			parts[i] = term(v.List[i])
		}
		return "[" + strings.Join(parts, ",") + "]"
	case table.Nested:
		parts := make([]string, len(v.Table))
		for i, f := range v.Table {
			parts[i] = binary(f.Name) + " => " + term(f.Value)
		}
		return "#{" + strings.Join(parts, ",") + "}"
	case table.Float32, table.Float64:
		if s := v.String(); strings.ContainsAny(s, ".e") {
			return s
		}
		return v.String() + ".0"
	}
	return v.String()
}

// binary prints a string as an Erlang binary.
func binary(s string) string {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return "<<" + quote(s) + "/utf8>>"
		}
	}
	return "<<" + quote(s) + ">>"
}

// invalidPattern is a pattern's fault as RabbitMQ prints it: {"what is wrong",where}.
func invalidPattern(err error) string {
	var bad *pattern.Error
	if !errors.As(err, &bad) {
		return fmt.Sprintf("{%s,0}", quote(err.Error()))
	}
	return fmt.Sprintf("{%s,%d}", quote(bad.Reason), bad.At)
}
