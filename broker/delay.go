package broker

import (
	"slices"
	"strconv"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/route"
)

// The words of RabbitMQ's delayed message plugin.
const (
	headerDelay  = "x-delay"
	typeDelayed  = "x-delayed-message"
	argDelayType = "x-delayed-type"
)

// Delay reads the header x-delay, the ms that a message asks to be held back: any number, or a decimal
// number in a string. passed are the headers as receivers see them: the delay is negative there, so that
// who publishes them again does not delay the message again. Without a positive number ms is 0, and the
// headers are to be passed as they are.
//
// A session calls it only for messages whose header bytes contain "x-delay" at all, so others pay nothing.
func Delay(headers table.Table) (ms int64, passed table.Table) {
	v, ok := headers.Get(headerDelay)
	if !ok {
		return 0, headers
	}
	switch n, whole := v.AsInt(); {
	case whole:
		ms = n
	case v.Kind == table.String:
		ms, _ = strconv.ParseInt(v.Str, 10, 64) // the nearest number where it is out of range
	default:
		if f, ok := v.AsFloat(); ok && f >= 1 {
			ms = int64(min(f, 1<<62))
		}
	}
	if ms <= 0 {
		return 0, headers
	}
	return ms, withDelay(headers, -ms)
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

// undelayed is a message as its publisher gets it back: it asks for its delay again. The result has a
// reference of its own.
func (b *Broker) undelayed(m *message.Message) *message.Message {
	p, err := b.codecs[m.Encoding].Decode(m.Props())
	if m.Delay == 0 || err != nil {
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
