package tracing

import (
	"encoding/binary"
	"math"
	"unicode/utf8"

	"github.com/firemq/firemq/broker"
)

// What an export needs of OTLP 1.x, in Protobuf's wire format (opentelemetry/proto/collector/trace/v1,
// trace/v1, resource/v1 and common/v1):
//
//	request        = ResourceSpans 1
//	  ResourceSpans  = resource 1 (KeyValue 1, ...), ScopeSpans 2
//	    ScopeSpans     = scope 1 (name 1, version 2), Span 2, ..., schema URL 3
//
// A Span is encoded with its key and length, so that a batch is the concatenation of its spans.

// Wire types.
const (
	varint  = 0
	fixed64 = 1
	counted = 2
	fixed32 = 5
)

func appendKey(dst []byte, field, wire uint64) []byte {
	return binary.AppendUvarint(dst, field<<3|wire)
}

// lengthRoom is what open leaves for a length: it is written with four octets, which hold up to 256 MiB.
const lengthRoom = 4

// open begins a counted field, a message or a string, that is at most as long; shut(dst, at) ends it.
func open(dst []byte, field uint64) (_ []byte, at int) {
	dst = append(appendKey(dst, field, counted), 0, 0, 0, 0)
	return dst, len(dst)
}

func shut(dst []byte, at int) {
	n := len(dst) - at
	for i := range lengthRoom {
		dst[at-lengthRoom+i] = byte(n>>(7*i))&0x7f | 0x80
	}
	dst[at-1] &= 0x7f
}

func appendUint(dst []byte, field, n uint64) []byte {
	return binary.AppendUvarint(appendKey(dst, field, varint), n)
}

func appendFixed64(dst []byte, field, n uint64) []byte {
	return binary.LittleEndian.AppendUint64(appendKey(dst, field, fixed64), n)
}

func appendBytes(dst []byte, field uint64, b []byte) []byte {
	return append(binary.AppendUvarint(appendKey(dst, field, counted), uint64(len(b))), b...)
}

func appendString[T string | []byte](dst []byte, field uint64, s T) []byte {
	dst, at := open(dst, field)
	dst = appendText(dst, s)
	shut(dst, at)
	return dst
}

// appendText adds the octets of a string, which is UTF-8 in Protobuf: those that are none become U+FFFD.
func appendText[T string | []byte](dst []byte, s T) []byte {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			for _, r := range string(s) {
				dst = utf8.AppendRune(dst, r)
			}
			return dst
		}
	}
	return append(dst, s...)
}

// attributes appends KeyValues, each as one field. Empty values are left out.
type attributes struct {
	dst   []byte
	field uint64
}

// begin begins a KeyValue and its AnyValue; end ends them.
func (a *attributes) begin(name string) (pair, value int) {
	a.dst, pair = open(a.dst, a.field)
	a.dst = appendString(a.dst, 1, name)
	a.dst, value = open(a.dst, 2)
	return pair, value
}

func (a *attributes) end(pair, value int) {
	shut(a.dst, value)
	shut(a.dst, pair)
}

func (a *attributes) text(name, s string) { addText(a, name, s) }

func addText[T string | []byte](a *attributes, name string, s T) {
	if len(s) > 0 {
		pair, value := a.begin(name)
		a.dst = appendString(a.dst, 1, s)
		a.end(pair, value)
	}
}

func (a *attributes) flag(name string, on bool) {
	if on {
		pair, value := a.begin(name)
		a.dst = appendUint(a.dst, 2, 1)
		a.end(pair, value)
	}
}

func (a *attributes) integer(name string, n uint64) {
	pair, value := a.begin(name)
	a.dst = appendUint(a.dst, 3, min(n, math.MaxInt64))
	a.end(pair, value)
}

// schema is the version of the semantic conventions that name the attributes. Those of RabbitMQ hold, whose model
// of messages this is; what has no name there begins with firemq.
const schema = "https://opentelemetry.io/schemas/1.43.0"

// SpanKind and StatusCode.
const (
	kindInternal = 1
	kindProducer = 4
	kindConsumer = 5
	statusError  = 2
)

// SpanFlags.
const (
	flagSampled     = 1
	flagHasIsRemote = 1 << 8
	flagIsRemote    = 1 << 9
)

// meaning is what the conventions call a step: messaging.operation.name and .type, and its kind. A publish is what
// the broker does about a producer's span.
func meaning(s *broker.Span) (name, operation string, kind uint64) {
	switch s.Step {
	case broker.StepPublish:
		return "publish", "send", kindConsumer
	case broker.StepEnqueue:
		return "enqueue", "", kindInternal
	case broker.StepDeliver:
		return "deliver", "receive", kindProducer
	case broker.StepGet:
		return "get", "receive", kindProducer
	case broker.StepDeadLetter:
		return "dead-letter", "", kindInternal
	}
	switch s.Verb {
	case broker.VerbNack:
		name = "nack"
	case broker.VerbReject:
		name = "reject"
	default:
		name = "ack"
	}
	return name, "settle", kindInternal
}

// appendSpan adds s as a Span in ScopeSpans.
func appendSpan(dst []byte, s *broker.Span) []byte {
	dst, span := open(dst, 2)
	dst = appendBytes(dst, 1, s.Trace[:])
	dst = appendBytes(dst, 2, s.ID[:])
	if s.State != "" {
		dst = appendString(dst, 3, s.State)
	}
	flags := uint32(flagSampled | flagHasIsRemote)
	if s.Parent != (broker.SpanID{}) {
		dst = appendBytes(dst, 4, s.Parent[:])
		if s.Step == broker.StepPublish {
			flags |= flagIsRemote
		}
	}
	verb, operation, kind := meaning(s)
	dst, name := open(dst, 5)
	dst = append(append(dst, verb...), ' ')
	switch {
	case s.Step != broker.StepPublish:
		dst = appendText(dst, s.Queue)
	case len(s.Exchange) == 0:
		dst = append(dst, defaultExchange...)
	default:
		dst = appendText(dst, s.Exchange)
	}
	shut(dst, name)
	dst = appendUint(dst, 6, kind)
	dst = appendFixed64(dst, 7, uint64(s.Start))
	dst = appendFixed64(dst, 8, uint64(s.End))

	a := attributes{dst, 9}
	a.text("messaging.system", "rabbitmq")
	a.text("messaging.operation.name", verb)
	a.text("messaging.operation.type", operation)
	pair, value := a.begin("messaging.destination.name")
	a.dst = appendDestination(a.dst, 1, s)
	a.end(pair, value)
	addText(&a, "messaging.rabbitmq.destination.routing_key", s.Key)
	if s.Tag != 0 {
		a.integer("messaging.rabbitmq.message.delivery_tag", s.Tag)
	}
	a.text("messaging.client.id", s.Client)
	a.text("messaging.message.id", s.MessageID)
	a.text("messaging.message.conversation_id", s.Correlation)
	if s.Step != broker.StepSettle {
		a.integer("messaging.message.body.size", uint64(s.Size))
	}
	a.text("firemq.vhost", s.VHost)
	a.text("firemq.queue", s.Queue)
	if s.Step == broker.StepPublish {
		a.integer("firemq.routed_queues", uint64(s.Queues))
	}
	a.flag("firemq.redelivered", s.Redelivered)
	a.flag("firemq.requeue", s.Requeue)
	a.text("firemq.dead_letter.reason", s.Reason)
	a.text("error.type", s.Error)
	dst = a.dst

	if s.Error != "" {
		var status int
		dst, status = open(dst, 15)
		dst = appendUint(dst, 3, statusError)
		shut(dst, status)
	}
	dst = binary.LittleEndian.AppendUint32(appendKey(dst, 16, fixed32), flags)
	shut(dst, span)
	return dst
}

const defaultExchange = "amq.default"

// appendDestination adds the messaging.destination.name: exchange:key:queue, without what is empty and a key
// that is the queue's name. The queue of a dead letter is where it comes from.
func appendDestination(dst []byte, field uint64, s *broker.Span) []byte {
	dst, at := open(dst, field)
	part := func(n int) {
		if n > 0 && len(dst) > at {
			dst = append(dst, ':')
		}
	}
	dst = appendText(dst, s.Exchange)
	queue := s.Queue
	if s.Step == broker.StepDeadLetter {
		queue = ""
	}
	if string(s.Key) != queue {
		part(len(s.Key))
		dst = appendText(dst, s.Key)
	}
	part(len(queue))
	if dst = appendText(dst, queue); len(dst) == at {
		dst = append(dst, defaultExchange...)
	}
	shut(dst, at)
	return dst
}

// resource is who the spans are of.
func appendResource(dst []byte, o *Options) []byte {
	dst, at := open(dst, 1)
	a := attributes{dst, 1}
	a.text("service.name", o.Service)
	a.text("service.version", o.Version)
	a.text("service.instance.id", o.Instance)
	shut(a.dst, at)
	return a.dst
}

// appendRequest adds a whole ExportTraceServiceRequest.
func appendRequest(dst []byte, o *Options, spans []byte) []byte {
	dst, all := open(dst, 1)
	dst = appendResource(dst, o)
	dst, scope := open(dst, 2)
	dst, at := open(dst, 1)
	dst = appendString(dst, 1, "github.com/firemq/firemq")
	dst = appendString(dst, 2, o.Version)
	shut(dst, at)
	dst = append(dst, spans...)
	dst = appendString(dst, 3, schema)
	shut(dst, scope)
	shut(dst, all)
	return dst
}

// rejected reads from an ExportTraceServiceResponse how many spans the collector refused, and why: partial_success
// 1 (rejected_spans 1, error_message 2). What is no such response refuses none.
func rejected(response []byte) (n uint64, why string) {
	fields(response, func(field, _ uint64, partial []byte) {
		if field != 1 {
			return
		}
		fields(partial, func(field, number uint64, s []byte) {
			switch field {
			case 1:
				n = number
			case 2:
				why = string(s)
			}
		})
	})
	return n, why
}

// fields calls each for every field of a message, until one that cannot be read: with its number, or its octets.
func fields(b []byte, each func(field, number uint64, s []byte)) {
	for len(b) > 0 {
		k, n := binary.Uvarint(b)
		if n <= 0 {
			return
		}
		b = b[n:]
		switch k & 7 {
		case varint, counted:
			v, n := binary.Uvarint(b)
			if n <= 0 {
				return
			}
			b = b[n:]
			if k&7 == varint {
				each(k>>3, v, nil)
				continue
			}
			if v > uint64(len(b)) {
				return
			}
			each(k>>3, 0, b[:v])
			b = b[v:]
		case fixed64:
			b = b[min(8, len(b)):]
		case fixed32:
			b = b[min(4, len(b)):]
		default:
			return
		}
	}
}
