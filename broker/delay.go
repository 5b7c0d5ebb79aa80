package broker

import (
	"math"
	"slices"
	"strconv"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/route"
)

// The words of RabbitMQ's delayed message plugin, but for the time, which it does not have.
const (
	headerDelay  = "x-delay"
	headerUntil  = "x-delay-until"
	typeDelayed  = "x-delayed-message"
	argDelayType = "x-delayed-type"
)

// Delay reads how long a message asks to be held back, and notes it in a: the header x-delay is a number of ms,
// x-delay-until a time in Unix ms, both any number or a decimal number in a string; the time may be a timestamp of AMQP,
// in seconds. A time that is past asks for nothing. With both the time counts. passed are the headers as receivers see
// them: an x-delay that counted is negative there, so that who publishes them again does not delay the message again. It
// reports whether they differ from those that came in; if they do not they are to be passed as they came.
//
// A session calls it only for messages whose header bytes contain "x-delay" at all, so others pay nothing.
func (b *Broker) Delay(a *message.Attributes, headers table.Table) (passed table.Table, differ bool) {
	if v, ok := headers.Get(headerUntil); ok {
		at := wholeNumber(v)
		if v.Kind == table.Time {
			at = min(max(int64(v.Num), 0), math.MaxInt64/1000) * 1000
		}
		if at > 0 {
			if at > b.opt.Now() {
				a.Delay, a.DueAt = at, true
			}
			return headers, false
		}
	}
	v, ok := headers.Get(headerDelay)
	if !ok {
		return headers, false
	}
	if a.Delay = wholeNumber(v); a.Delay == 0 {
		return headers, false
	}
	return withDelay(headers, -a.Delay), true
}

// wholeNumber is the positive number that a header has, in a string or not, without its fraction; 0 for anything else.
func wholeNumber(v table.Value) (n int64) {
	switch i, whole := v.AsInt(); {
	case whole:
		n = i
	case v.Kind == table.String:
		n, _ = strconv.ParseInt(v.Str, 10, 64) // the nearest number where it is out of range
	default:
		if f, ok := v.AsFloat(); ok && f >= 1 {
			n = int64(min(f, 1<<62))
		}
	}
	return max(n, 0)
}

func withDelay(headers table.Table, ms int64) table.Table {
	v := table.IntValue(ms)
	if ms == int64(int32(ms)) {
		v = table.Int32Value(int32(ms)) // what the plugin writes
	}
	out := slices.Clone(headers)
	out.Set(headerDelay, v)
	return out
}

// undelayed is a message as its publisher gets it back: its x-delay is as it came. The result has a reference
// of its own.
func (b *Broker) undelayed(m *message.Message) *message.Message {
	p, err := b.codecs[m.Encoding].Decode(m.Props())
	if m.Delay == 0 || m.DueAt || err != nil {
		m.Retain(1)
		return m
	}
	p.Headers = withDelay(p.Headers, m.Delay)
	out := message.NewBlind(m.Attributes, m.Exchange(), m.Key(), m.Blind(), b.codecs[m.Encoding].Append(nil, &p), len(m.Body()))
	copy(out.Body(), m.Body())
	return out
}

// ExchangeKind is how an exchange of a type with these arguments routes. One of the type
// x-delayed-message routes as its argument says; every exchange delays messages that ask for it. Error:
// PreconditionFailed, also for a type that is not known.
func ExchangeKind(name string, args table.Table) (route.Kind, *Error) {
	if name == typeDelayed {
		v, _ := args.Get(argDelayType)
		switch {
		case v.Kind != table.String:
			return 0, refuse(PreconditionFailed, "Invalid argument, '%s' must be an existing exchange type", argDelayType)
		case v.Str == typeDelayed:
			return 0, refuse(PreconditionFailed, "Invalid argument, '%s' can't be used for '%s'", typeDelayed, argDelayType)
		}
		name = v.Str
	}
	kind, ok := route.ParseKind(name)
	if !ok {
		return 0, refuse(PreconditionFailed, "unknown exchange type '%s'", name)
	}
	if err := route.CheckExchange(kind, args); err != nil {
		return 0, refuse(PreconditionFailed, "%s", err)
	}
	return kind, nil
}

// IsExchangeType says whether an exchange may be declared with that type.
func IsExchangeType(name string) bool {
	_, ok := route.ParseKind(name)
	return ok || name == typeDelayed
}
