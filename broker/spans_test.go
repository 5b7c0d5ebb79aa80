package broker

import (
	"strings"
	"sync"
	"testing"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
)

func TestTraceParent(t *testing.T) {
	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for header, want := range map[string]struct{ sampled, ok bool }{
		"00-" + trace + "-" + parent + "-01":                   {true, true},
		"00-" + trace + "-" + parent + "-00":                   {false, true},
		"00-" + trace + "-" + parent + "-ff":                   {true, true}, // flags to come
		"cc-" + trace + "-" + parent + "-01":                   {true, true}, // a version to come
		"cc-" + trace + "-" + parent + "-01-more":              {true, true},
		"cc-" + trace + "-" + parent + "-01more":               {},
		"00-" + trace + "-" + parent + "-01-more":              {},
		"ff-" + trace + "-" + parent + "-01":                   {},
		"00-" + trace + "-" + parent + "-1":                    {},
		"00-" + trace + "-" + parent + "-0g":                   {},
		"00-" + strings.ToUpper(trace) + "-" + parent + "-01":  {},
		"00-" + strings.Repeat("0", 32) + "-" + parent + "-01": {},
		"00-" + trace + "-" + strings.Repeat("0", 16) + "-01":  {},
		"00_" + trace + "-" + parent + "-01":                   {},
		"00-" + trace + "_" + parent + "-01":                   {},
		"00-" + trace + "-" + parent + "_01":                   {},
		"":                                                     {},
	} {
		id, span, sampled, ok := parseTraceParent(header)
		if sampled != want.sampled || ok != want.ok {
			t.Errorf("%q: sampled %v, ok %v", header, sampled, ok)
		}
		if got := string(appendTraceParent(nil, id, span)); ok && got != "00-"+trace+"-"+parent+"-01" {
			t.Errorf("%q became %s", header, got)
		}
	}
}

// The span of an enqueue is one's own, and the same after a restart where the entry's number is.
func TestEnqueueSpan(t *testing.T) {
	queue := func(run uint64, id uint64, name string) *Queue {
		return &Queue{b: &Broker{spanSalt: run}, id: id, vhost: "/", name: name}
	}
	trace := newTraceID()
	q := queue(1, 7, "q")
	seen := make(map[SpanID]string)
	for what, id := range map[string]SpanID{
		"first":        q.enqueueSpan(&trace, 1, true),
		"second":       q.enqueueSpan(&trace, 2, true),
		"transient":    q.enqueueSpan(&trace, 1, false),
		"other run":    queue(2, 7, "q").enqueueSpan(&trace, 1, false),
		"other queue":  queue(1, 8, "q").enqueueSpan(&trace, 1, true),
		"other name":   queue(1, 7, "r").enqueueSpan(&trace, 1, true),
		"other trace":  q.enqueueSpan(&TraceID{1}, 1, true),
		"high numbers": q.enqueueSpan(&trace, 1<<40, true),
	} {
		if seen[id] != "" {
			t.Errorf("%s and %s have one id", what, seen[id])
		}
		seen[id] = what
	}
	if q.enqueueSpan(&trace, 1, true) != queue(2, 7, "q").enqueueSpan(&trace, 1, true) {
		t.Error("it is another one after a restart")
	}
}

// countingTracer counts spans by step.
type countingTracer struct {
	mu      sync.Mutex
	steps   map[Step]int
	dropped int
}

func (c *countingTracer) Sample(TraceID) bool { return false }
func (c *countingTracer) Span(s *Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps[s.Step]++
}
func (c *countingTracer) Drop(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped += n
}

func traced(flags string) []byte {
	return table.Append(nil, table.Table{{Name: "traceparent", Value: table.StringValue("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-" + flags)}})
}

// send publishes n messages with these properties in one turn.
func (c *client) send(n int, props []byte) {
	for range n {
		m := message.New(message.Attributes{Encoding: message.AMQP, Expiration: -1, HasHeaders: true}, nil, []byte("q"), props, 0)
		if e := c.ch.Publish(&Publish{Msg: m}); e != nil {
			c.t.Fatal(e.Text)
		}
	}
	c.end()
}

// How many deliveries are remembered is bounded; what is over it is counted.
func TestSpansAreBounded(t *testing.T) {
	tracer := &countingTracer{steps: make(map[Step]int)}
	b := memoryBroker(t, Options{Tracer: tracer})
	pub, con := connect(t, b), connect(t, b)
	pub.declare(QueueDeclare{Name: "q"})
	pub.send(100, traced("01"))
	b.tracedDeliveries.Store(maxTracedDeliveries - 2)
	con.consume(ConsumeArgs{Queue: "q"})
	if n := b.tracedDeliveries.Load(); n != maxTracedDeliveries {
		t.Errorf("%d deliveries are remembered", n)
	}
	con.ok(con.ch.Ack(100, true))
	con.end()
	if tracer.steps[StepDeliver] != 100 || tracer.steps[StepSettle] != 2 || tracer.dropped != 98 || b.tracedDeliveries.Load() != maxTracedDeliveries-2 {
		t.Errorf("spans %v, dropped %d, %d remembered", tracer.steps, tracer.dropped, b.tracedDeliveries.Load())
	}
}

// With a Tracer, a message that is not sampled allocates nothing, whatever it says of its trace.
func TestUnsampledAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("with the race detector, pools allocate")
	}
	b := memoryBroker(t, Options{Tracer: &countingTracer{}})
	pub, con := connect(t, b), connect(t, b)
	con.sink.discard = true
	pub.declare(QueueDeclare{Name: "q"})
	con.consume(ConsumeArgs{Queue: "q"})
	for name, props := range map[string][]byte{"none": nil, "not sampled": traced("00"), "other headers": table.Append(nil, table.Table{{Name: "n", Value: table.IntValue(1)}})} {
		turn := func() {
			pub.send(100, props)
			con.ok(con.ch.Ack(0, true))
			con.end()
		}
		turn()
		if n := testing.AllocsPerRun(50, turn); n >= 1 {
			t.Errorf("%s: %v allocations in 100 messages", name, n)
		}
	}
}
