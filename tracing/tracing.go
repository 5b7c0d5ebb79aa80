// Package tracing exports the spans of messages (see broker.Tracer) to an OpenTelemetry collector: OpenTelemetry's SDK
// makes, batches and encodes them, and sends them by OTLP over HTTP with Protobuf.
//
//	broker --Span--> SDK's batcher --goroutine--> SDK's exporter --> client --POST--> endpoint
//
// While the collector is slow or away spans wait, up to queueSpans, and what comes then is dropped and counted.
//
// The client below the SDK's exporter is our own: OpenTelemetry's takes gRPC along, 3 MiB of program and 50 packages
// that every broker would set up at its start, and does not count what a collector refuses.
package tracing

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/firemq/firemq/broker"
)

// Options configure an Exporter.
type Options struct {
	Endpoint string        // the collector's URL for traces, http://localhost:4318/v1/traces
	Headers  http.Header   // of every request
	Timeout  time.Duration // of one request
	Ratio    float64       // of the traces that begin here, how many are followed: 0 to 1

	Service  string // service.name
	Instance string // service.instance.id: the node
	Version  string
	Log      *slog.Logger // nil: discarded

	// Of tests; zero values stand for the constants.
	linger, backoff, patience time.Duration
	batch                     int
}

const (
	queueSpans = 8192 // that wait or are being sent, about 2 KiB each
	batchSpans = 512  // of one request
	linger     = time.Second
)

// Exporter sends spans. It is a broker.Tracer.
type Exporter struct {
	bound  uint64            // of Sample; immutable, like all up to the next group
	spans  sdk.SpanProcessor // the batcher
	tracer trace.Tracer
	client *client

	stopping sync.Once
	stopped  atomic.Bool // nothing is taken any more
}

var _ broker.Tracer = (*Exporter)(nil)

// New starts an Exporter, which needs a Shutdown.
func New(o Options) *Exporter {
	if o.linger == 0 {
		o.linger = linger
	}
	if o.batch == 0 {
		o.batch = batchSpans
	}
	e := &Exporter{bound: uint64(o.Ratio * (1 << 63)), client: newClient(o)}
	exporter, err := otlptrace.New(context.Background(), e.client)
	if err != nil {
		panic("BUG: tracing: " + err.Error()) // it is the client's, which has none
	}
	e.spans = sdk.NewBatchSpanProcessor(exporter, sdk.WithMaxQueueSize(queueSpans), sdk.WithMaxExportBatchSize(o.batch),
		sdk.WithBatchTimeout(o.linger), sdk.WithExportTimeout(0)) // the client has limits of its own
	provider := sdk.NewTracerProvider(
		sdk.WithSpanProcessor(e.spans), sdk.WithIDGenerator(identities{}),
		sdk.WithSampler(sdk.AlwaysSample()), // who calls Span has decided
		sdk.WithoutPanicRecording(),
		sdk.WithResource(resource.NewSchemaless(semconv.ServiceName(o.Service), semconv.ServiceVersion(o.Version), semconv.ServiceInstanceID(o.Instance))),
	)
	e.tracer = provider.Tracer("github.com/firemq/firemq", trace.WithInstrumentationVersion(o.Version), trace.WithSchemaURL(semconv.SchemaURL))
	return e
}

// Sample decides by the trace's last 63 bits, as OpenTelemetry's TraceIDRatioBased does, which takes 100 times as long
// for every message: brokers and services with one ratio pick the same traces.
func (e *Exporter) Sample(id broker.TraceID) bool {
	return binary.BigEndian.Uint64(id[8:])>>1 < e.bound
}

// Span takes a span that has ended.
func (e *Exporter) Span(s *broker.Span) {
	if e.client.waiting.Add(1) > queueSpans || e.stopped.Load() {
		e.client.waiting.Add(-1)
		e.Drop(1)
		return
	}
	verb, operation, kind := meaning(s)
	_, span := e.tracer.Start(identify(s), spanName(verb, s), trace.WithTimestamp(time.Unix(0, s.Start)), trace.WithSpanKind(kind))
	span.SetAttributes(attributes(verb, operation, s)...)
	if s.Error != "" {
		span.SetStatus(codes.Error, "")
	}
	span.End(trace.WithTimestamp(time.Unix(0, s.End)))
}

// Drop counts spans that were dropped before they came here.
func (e *Exporter) Drop(n int) { e.client.dropped.Add(uint64(n)) }

// Stats are what became of the spans since the start.
type Stats struct {
	Exported uint64 // spans that the collector took
	Dropped  uint64 // spans for which there was no room, or that it did not take
	Failures uint64 // requests that failed
	Waiting  int    // spans that wait
}

// Stats can be called by any goroutine.
func (e *Exporter) Stats() Stats {
	c := e.client
	return Stats{c.exported.Load(), c.dropped.Load(), c.failures.Load(), int(c.waiting.Load())}
}

// Shutdown sends what waits, each batch once, and ends the goroutine. What is not sent when ctx ends is dropped.
func (e *Exporter) Shutdown(ctx context.Context) {
	e.stopping.Do(func() {
		e.stopped.Store(true)
		close(e.client.stop)
		_ = e.spans.Shutdown(ctx) // the end of ctx is all that it may report
	})
	e.client.end(ctx)
	e.Drop(int(e.client.waiting.Swap(0))) // those that Span was about to hand over
}

// identity tells the SDK which ids a span has. What is its parent is in the Context.
type identity struct {
	context.Context
	trace trace.TraceID
	span  trace.SpanID
}

// identify gives the context in which the SDK makes s.
func identify(s *broker.Span) *identity {
	ctx := context.Background()
	if s.Parent != (broker.SpanID{}) {
		state, err := trace.ParseTraceState(strings.Clone(s.State))
		if err != nil {
			state = trace.TraceState{} // W3C Trace Context 3.3: what cannot be read is left out
		}
		ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID(s.Trace), SpanID: trace.SpanID(s.Parent), TraceFlags: trace.FlagsSampled, TraceState: state,
			Remote: s.Step == broker.StepPublish,
		}))
	}
	return &identity{ctx, trace.TraceID(s.Trace), trace.SpanID(s.ID)}
}

// identities is the SDK's IDGenerator.
type identities struct{}

func (identities) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	i := ctx.(*identity)
	return i.trace, i.span
}

func (identities) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	return ctx.(*identity).span
}

// meaning is what the conventions call a step: messaging.operation.name and .type, and its kind. A publish is what
// the broker does about a producer's span.
func meaning(s *broker.Span) (name string, operation attribute.KeyValue, kind trace.SpanKind) {
	switch s.Step {
	case broker.StepPublish:
		return "publish", semconv.MessagingOperationTypeSend, trace.SpanKindConsumer
	case broker.StepEnqueue:
		return "enqueue", attribute.KeyValue{}, trace.SpanKindInternal
	case broker.StepDeliver:
		return "deliver", semconv.MessagingOperationTypeReceive, trace.SpanKindProducer
	case broker.StepGet:
		return "get", semconv.MessagingOperationTypeReceive, trace.SpanKindProducer
	case broker.StepDeadLetter:
		return "dead-letter", attribute.KeyValue{}, trace.SpanKindInternal
	}
	switch s.Verb {
	case broker.VerbNack:
		name = "nack"
	case broker.VerbReject:
		name = "reject"
	default:
		name = "ack"
	}
	return name, semconv.MessagingOperationTypeSettle, trace.SpanKindInternal
}

const defaultExchange = "amq.default"

func spanName(verb string, s *broker.Span) string {
	switch {
	case s.Step != broker.StepPublish:
		return verb + " " + text(s.Queue)
	case len(s.Exchange) == 0:
		return verb + " " + defaultExchange
	}
	return verb + " " + text(string(s.Exchange))
}

// text is s as UTF-8, which Protobuf's strings are: what is none becomes U+FFFD.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// attributes are what s says of itself: with the names that the conventions have for RabbitMQ, whose model of
// messages this is, and else with ones that begin with firemq. Empty texts are left out.
func attributes(verb string, operation attribute.KeyValue, s *broker.Span) []attribute.KeyValue {
	key := string(s.Key)
	list := append(make([]attribute.KeyValue, 0, 15), semconv.MessagingSystemRabbitMQ,
		semconv.MessagingOperationNameKey.String(verb), semconv.MessagingDestinationNameKey.String(destination(s, key)))
	add := func(k attribute.Key, v string) {
		if v != "" {
			list = append(list, k.String(text(v)))
		}
	}
	if operation.Valid() {
		list = append(list, operation)
	}
	add(semconv.MessagingRabbitMQDestinationRoutingKeyKey, key)
	if s.Tag != 0 {
		list = append(list, semconv.MessagingRabbitMQMessageDeliveryTagKey.Int64(int64(min(s.Tag, math.MaxInt64))))
	}
	add(semconv.MessagingClientIDKey, s.Client)
	add(semconv.MessagingMessageIDKey, strings.Clone(s.MessageID))
	add(semconv.MessagingMessageConversationIDKey, strings.Clone(s.Correlation))
	if s.Step != broker.StepSettle {
		list = append(list, semconv.MessagingMessageBodySize(s.Size))
	}
	add("firemq.vhost", s.VHost)
	add("firemq.queue", s.Queue)
	if s.Step == broker.StepPublish {
		list = append(list, attribute.Int("firemq.routed_queues", s.Queues))
	}
	if s.Redelivered {
		list = append(list, attribute.Bool("firemq.redelivered", true))
	}
	if s.Requeue {
		list = append(list, attribute.Bool("firemq.requeue", true))
	}
	add("firemq.dead_letter.reason", s.Reason)
	add(semconv.ErrorTypeKey, s.Error)
	return list
}

// destination is the messaging.destination.name: exchange:key:queue, without what is empty and a key that is the
// queue's name. The queue of a dead letter is where it comes from.
func destination(s *broker.Span, key string) string {
	queue := s.Queue
	if s.Step == broker.StepDeadLetter {
		queue = ""
	}
	if key == queue {
		key = ""
	}
	name := string(s.Exchange)
	for _, part := range [...]string{key, queue} {
		if part != "" && name != "" {
			name += ":"
		}
		name += part
	}
	if name == "" {
		return defaultExchange
	}
	return text(name)
}
