package tracing_test

import (
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/firemq/firemq/server"
)

// patience is how long something may take that should happen at once.
const patience = 30 * time.Second

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// collector takes spans as OpenTelemetry's does, and reads them with its own types.
type collector struct {
	t   testing.TB
	url string

	mu       sync.Mutex
	answer   func(w http.ResponseWriter, r *http.Request) (took bool) // nil: takes all; guarded by mu
	spans    []*span                                                  // guarded by mu
	requests int                                                      // guarded by mu
	changed  chan struct{}                                            // closed with the next request; guarded by mu
}

// span is a span with its ids in hexadecimal digits and its attributes by name.
type span struct {
	*trace.Span
	id, parent, trace string
	attributes        map[string]any
	resource          map[string]any
}

func collect(t testing.TB) *collector {
	c := &collector{t: t, changed: make(chan struct{})}
	s := httptest.NewUnstartedServer(c)
	// Not the address of the brokers of other tests: a client of one that was stopped may still ask at its port.
	if l, err := net.Listen("tcp", "127.0.0.2:0"); err == nil {
		s.Listener.Close()
		s.Listener = l
	}
	s.Start()
	t.Cleanup(s.Close)
	c.url = s.URL + "/v1/traces"
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the broker has given up
	}
	c.mu.Lock()
	answer := c.answer
	c.mu.Unlock()
	took := answer == nil || answer(w, r)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	close(c.changed)
	c.changed = make(chan struct{})
	if !took {
		return
	}
	// An ExportTraceServiceRequest is spelt like TracesData.
	var data trace.TracesData
	if err := proto.Unmarshal(body, &data); err != nil {
		c.t.Errorf("not an export: %v", err)
		return
	}
	if n := len(data.ProtoReflect().GetUnknown()); n > 0 || r.Method != "POST" || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		c.t.Errorf("%s %s of %s, %d bytes unknown", r.Method, r.URL, r.Header.Get("Content-Type"), n)
	}
	for _, res := range data.ResourceSpans {
		for _, scope := range res.ScopeSpans {
			if scope.Scope.GetName() != "github.com/firemq/firemq" || scope.SchemaUrl == "" {
				c.t.Errorf("scope %v, schema %q", scope.Scope, scope.SchemaUrl)
			}
			for _, s := range scope.Spans {
				c.spans = append(c.spans, &span{
					Span: s, id: hex.EncodeToString(s.SpanId), parent: hex.EncodeToString(s.ParentSpanId), trace: hex.EncodeToString(s.TraceId),
					attributes: values(s.Attributes), resource: values(res.Resource.GetAttributes()),
				})
			}
		}
	}
}

func values(list []*common.KeyValue) map[string]any {
	m := make(map[string]any)
	for _, kv := range list {
		switch v := kv.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			m[kv.Key] = v.StringValue
		case *common.AnyValue_IntValue:
			m[kv.Key] = v.IntValue
		case *common.AnyValue_BoolValue:
			m[kv.Key] = v.BoolValue
		}
	}
	return m
}

// reply sets how the collector answers from now on.
func (c *collector) reply(answer func(w http.ResponseWriter, r *http.Request) (took bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = answer
}

// until waits for requests until ok says that they are enough. ok is called with the number of requests and spans.
func (c *collector) until(ok func(requests, spans int) bool) {
	c.t.Helper()
	for deadline := time.After(patience); ; {
		c.mu.Lock()
		done, changed := ok(c.requests, len(c.spans)), c.changed
		c.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			c.t.Fatal("the collector waits for more in vain")
		}
	}
}

func (c *collector) all() []*span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans
}

// named gives the spans of that name, in the order in which they ended.
func (c *collector) named(name string) (list []*span) {
	for _, s := range c.all() {
		if s.Name == name {
			list = append(list, s)
		}
	}
	return list
}

// one gives the only span of that name.
func (c *collector) one(name string) *span {
	c.t.Helper()
	list := c.named(name)
	if len(list) != 1 {
		c.t.Fatalf("%d spans are called %q; there are %q", len(list), name, c.names())
	}
	return list[0]
}

func (c *collector) names() (names []string) {
	for _, s := range c.all() {
		names = append(names, s.Name)
	}
	return names
}

// start runs a broker whose spans go to the collector; stop ends it, and then they are all there.
func (c *collector) start(o server.Options) (s *server.Server, stop func()) {
	c.t.Helper()
	o.AMQP, o.Fire = "127.0.0.1:0", "127.0.0.1:0"
	o.Ephemeral = o.Data == ""
	o.Tracing.Endpoint = c.url
	s, err := server.Start(c.t.Context(), o)
	if err != nil {
		c.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			c.t.Error(err)
		}
	})
	c.t.Cleanup(stop)
	return s, stop
}
