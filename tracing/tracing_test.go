package tracing_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/tracing"
)

// export starts an Exporter that sends soon and tries again soon.
func export(t testing.TB, o tracing.Options) *tracing.Exporter {
	if o.Timeout == 0 {
		o.Timeout = patience
	}
	e := tracing.New(o.Hurry(time.Millisecond, time.Millisecond, patience))
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		e.Shutdown(ctx)
	})
	return e
}

// take hands over n spans.
func take(e *tracing.Exporter, n int) {
	for i := range n {
		e.Span(&broker.Span{Trace: broker.TraceID{1}, ID: broker.SpanID{byte(i), byte(i >> 8), byte(i >> 16), 1}, Parent: broker.SpanID{2}, Step: broker.StepEnqueue, Queue: "q"})
	}
}

// flush ends the exporter when everything is sent.
func flush(t testing.TB, e *tracing.Exporter) tracing.Stats {
	t.Helper()
	e.Shutdown(within(t))
	s := e.Stats()
	if s.Waiting != 0 {
		t.Errorf("%d spans wait after the end", s.Waiting)
	}
	return s
}

// Names that are no UTF-8, and the largest numbers, are exported; OpenTelemetry's decoder refuses neither.
func TestHostileSpans(t *testing.T) {
	c := collect(t)
	e := export(t, tracing.Options{Endpoint: c.url})
	long := strings.Repeat("x", 300)
	s := broker.Span{
		Trace: broker.TraceID{0xff, 15: 1}, ID: broker.SpanID{7: 2}, Parent: broker.SpanID{7: 3}, Step: broker.StepGet, State: "a=\xff", Start: -1, End: 1 << 62,
		VHost: "\xc3", Exchange: []byte("ü\xf0"), Key: []byte(long), Queue: "q\x00", Client: "\xed\xa0\x80", Tag: 1<<64 - 1, Size: 1 << 40, Redelivered: true,
	}
	e.Span(&s)
	flush(t, e)
	got := c.one("get q\x00")
	for name, want := range map[string]any{
		"firemq.vhost": "\uFFFD", "messaging.destination.name": "ü\uFFFD:" + long + ":q\x00", "messaging.client.id": "\uFFFD",
		"messaging.rabbitmq.message.delivery_tag": int64(1<<63 - 1), "messaging.message.body.size": int64(1 << 40), "firemq.redelivered": true,
	} {
		if got.attributes[name] != want {
			t.Errorf("%s is %q, want %q", name, got.attributes[name], want)
		}
	}
	if got.TraceState != "" || got.trace != "ff"+strings.Repeat("0", 28)+"01" || got.EndTimeUnixNano != 1<<62 {
		t.Errorf("got %v", got.Span)
	}
}

// A span keeps nothing of the message that it is about, whose buffer is used again.
func TestSpansKeepNothing(t *testing.T) {
	c := collect(t)
	e := export(t, tracing.Options{Endpoint: c.url})
	buf := []byte("exchangekeya=bmessagecorrelation")
	alias := func(from, to int) string { return unsafe.String(&buf[from], to-from) }
	e.Span(&broker.Span{
		Trace: broker.TraceID{1}, ID: broker.SpanID{2}, Parent: broker.SpanID{3}, Step: broker.StepPublish, Exchange: buf[:8:8], Key: buf[8:11:11],
		State: alias(11, 14), MessageID: alias(14, 21), Correlation: alias(21, 32), VHost: "/",
	})
	for i := range buf {
		buf[i] = 'x'
	}
	flush(t, e)
	s := c.one("publish exchange")
	for name, want := range map[string]any{
		"messaging.destination.name": "exchange:key", "messaging.rabbitmq.destination.routing_key": "key",
		"messaging.message.id": "message", "messaging.message.conversation_id": "correlation",
	} {
		if s.attributes[name] != want {
			t.Errorf("%s is %q, want %q", name, s.attributes[name], want)
		}
	}
	if s.TraceState != "a=b" {
		t.Errorf("the state is %q", s.TraceState)
	}
}

// Sample is asked for every message without a context.
func TestSampleAllocatesNothing(t *testing.T) {
	e := export(t, tracing.Options{Endpoint: "http://127.0.0.1:1/v1/traces", Ratio: 0.5})
	id := broker.TraceID{15: 1}
	if n := testing.AllocsPerRun(100, func() { e.Sample(id) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The decision is OpenTelemetry's, so all who have one ratio pick the same traces.
func TestSample(t *testing.T) {
	id := func(n uint64) (id broker.TraceID) {
		for i := range 8 {
			id[15-i] = byte(n >> (8 * i))
		}
		return id
	}
	for _, c := range []struct {
		ratio    float64
		last     uint64
		followed bool
	}{
		{0, 0, false}, {0, 1, false}, {1, 1<<64 - 1, true}, {1, 0, true}, {0.5, 1<<63 - 1, true}, {0.5, 1 << 63, false}, {0.25, 1<<62 - 1, true}, {0.25, 1 << 62, false},
	} {
		if e := export(t, tracing.Options{Endpoint: "http://127.0.0.1:1", Ratio: c.ratio}); e.Sample(id(c.last)) != c.followed {
			t.Errorf("ratio %v, ...%x: %v", c.ratio, c.last, !c.followed)
		}
	}
	for _, ratio := range []float64{0, 1e-9, 0.01, 1.0 / 3, 0.5, 0.999, 1} {
		e, sampler := export(t, tracing.Options{Endpoint: "http://127.0.0.1:1", Ratio: ratio}), sdk.TraceIDRatioBased(ratio)
		for range 1000 {
			id := id(rand.Uint64())
			if got := e.Sample(id); got != (sampler.ShouldSample(sdk.SamplingParameters{ParentContext: t.Context(), TraceID: trace.TraceID(id)}).Decision == sdk.RecordAndSample) {
				t.Fatalf("ratio %v, %x: %v", ratio, id, got)
			}
		}
	}
}

func TestHeaders(t *testing.T) {
	c := collect(t)
	var got http.Header
	c.reply(func(w http.ResponseWriter, r *http.Request) bool {
		got = r.Header
		return true
	})
	e := export(t, tracing.Options{Endpoint: c.url, Headers: http.Header{"Authorization": {"Bearer x"}, "X-Tenant": {"a", "b"}}, Version: "9"})
	take(e, 1)
	if s := flush(t, e); s != (tracing.Stats{Exported: 1}) {
		t.Errorf("%+v", s)
	}
	if got.Get("Authorization") != "Bearer x" || fmt.Sprint(got["X-Tenant"]) != "[a b]" || got.Get("User-Agent") != "FireMQ/9" {
		t.Errorf("headers %v", got)
	}
}

// What a collector answers, and what becomes of two spans then.
func TestAnswers(t *testing.T) {
	status := func(code int, header ...string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
			return false
		}
	}
	partial := func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", "application/x-protobuf")
		w.Write([]byte("\x0a\x0a\x08\x01\x12\x06so sad")) // partial_success{rejected_spans: 1, error_message}
		return true
	}
	var elsewhere atomic.Bool
	other := http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Store(true) })}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go other.Serve(l)
	defer other.Close()
	for name, c := range map[string]struct {
		first func(http.ResponseWriter, *http.Request) bool // all after it are taken
		want  tracing.Stats
		says  string // the log
	}{
		"busy":                {status(503), tracing.Stats{Exported: 2, Failures: 1}, "the collector answers 503 Service Unavailable"},
		"too many requests":   {status(429, "Retry-After", "0"), tracing.Stats{Exported: 2, Failures: 1}, "spans are exported again"},
		"busy until a date":   {status(502, "Retry-After", time.Now().UTC().Format(http.TimeFormat)), tracing.Stats{Exported: 2, Failures: 1}, "502"},
		"busy until sometime": {status(504, "Retry-After", "soon"), tracing.Stats{Exported: 2, Failures: 1}, "504"},
		"broken":              {status(500, "Retry-After", "1"), tracing.Stats{Dropped: 2, Failures: 1}, "500"},
		"wrong":               {status(400), tracing.Stats{Dropped: 2, Failures: 1}, "400"},
		"not allowed":         {status(401), tracing.Stats{Dropped: 2, Failures: 1}, "401"},
		"elsewhere":           {status(307, "Location", "http://"+l.Addr().String()), tracing.Stats{Dropped: 2, Failures: 1}, "307"},
		"one refused":         {partial, tracing.Stats{Exported: 1, Dropped: 1}, `spans=1 reason="so sad"`},
		"no answer": {func(w http.ResponseWriter, _ *http.Request) bool {
			panic(http.ErrAbortHandler)
		}, tracing.Stats{Exported: 2, Failures: 1}, "EOF"},
		"more refused than sent": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/x-protobuf")
			w.Write([]byte("\x0a\x0a\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f")) // rejected_spans: 1<<63 - 1
			return true
		}, tracing.Stats{Dropped: 2}, "spans=2 "},
		"a long reason": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/x-protobuf")
			w.Write([]byte("\x0a\x8b\x40\x08\x01\x12\x86\x40" + strings.Repeat("x", 8198)))
			return true
		}, tracing.Stats{Exported: 1, Dropped: 1}, "reason=xxx"},
		"an answer of a browser": {status(200, "Content-Type", "text/html"), tracing.Stats{Exported: 2}, ""},
		"an answer that is wrong": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", "application/x-protobuf")
			w.Write([]byte("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
			return true
		}, tracing.Stats{Exported: 2}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			cl := collect(t)
			first := true
			cl.reply(func(w http.ResponseWriter, r *http.Request) bool {
				if first {
					first = false
					return c.first(w, r)
				}
				return true
			})
			e := tracing.New(tracing.Options{Endpoint: cl.url + "?key=hush", Timeout: patience, Log: slog.New(slog.NewTextHandler(&log, nil))}.
				Hurry(0, time.Millisecond, patience).Batch(2))
			take(e, 2)
			until(t, func() bool { s := e.Stats(); return s.Exported+s.Dropped == 2 && s.Waiting == 0 })
			flush(t, e)
			if got := e.Stats(); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			if !strings.Contains(log.String(), c.says) || c.says == "" && log.Len() > 0 {
				t.Errorf("the log says %q", log.String())
			}
			if strings.Contains(log.String(), "hush") || log.Len() > 2<<10 {
				t.Errorf("the log says too much: %q", log.String())
			}
		})
	}
	if elsewhere.Load() {
		t.Error("a redirection was followed")
	}
}

// until waits until ok.
func until(t testing.TB, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx := within(t); !ok(); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("it never happened")
		}
	}
}

// While the collector is away spans wait, within the bound; the rest is dropped, and nobody waits. When it is back
// they all arrive.
func TestCollectorAway(t *testing.T) {
	c := collect(t)
	away := make(chan struct{})
	c.reply(func(w http.ResponseWriter, r *http.Request) bool {
		select {
		case <-away:
			return true
		default:
			w.WriteHeader(503)
			return false
		}
	})
	e := export(t, tracing.Options{Endpoint: c.url})
	const n, batch = 100_000, 100
	for range n / batch {
		take(e, batch)
	}
	s := e.Stats()
	if s.Waiting > tracing.QueueSpans || s.Dropped == 0 || s.Exported != 0 {
		t.Errorf("%+v", s)
	}
	close(away)
	until(t, func() bool { s := e.Stats(); return s.Waiting == 0 })
	s = flush(t, e)
	if s.Exported+s.Dropped != n || int(s.Exported) != len(c.all()) {
		t.Errorf("%+v of %d; the collector has %d", s, n, len(c.all()))
	}
}

// Nobody listens: the end does not wait for a second try.
func TestNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	e := tracing.New(tracing.Options{Endpoint: "http://" + l.Addr().String(), Timeout: patience}.Hurry(time.Hour, time.Hour, time.Hour))
	take(e, 3)
	if s := flush(t, e); s.Dropped != 3 || s.Failures != 1 {
		t.Errorf("%+v", s)
	}
	take(e, 1)
	if s := e.Stats(); s.Dropped != 4 {
		t.Errorf("after the end: %+v", s)
	}
	e.Shutdown(within(t)) // again: nothing
}

// A collector that never answers holds up the end no longer than it may take.
func TestSlowCollector(t *testing.T) {
	c := collect(t)
	asked, over := make(chan struct{}), make(chan struct{})
	c.reply(func(http.ResponseWriter, *http.Request) bool {
		close(asked)
		<-over
		return false
	})
	defer close(over)
	e := export(t, tracing.Options{Endpoint: c.url})
	take(e, 1)
	<-asked
	take(e, 2)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		e.Shutdown(ctx)
		close(ended)
	}()
	select {
	case <-ended:
		t.Error("it did not wait for the request")
	default:
	}
	cancel()
	<-ended
	if s := e.Stats(); s.Dropped != 3 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}

// A batch that nobody takes is given up.
func TestPatience(t *testing.T) {
	c := collect(t)
	c.reply(func(w http.ResponseWriter, r *http.Request) bool {
		w.WriteHeader(503)
		return false
	})
	e := tracing.New(tracing.Options{Endpoint: c.url, Timeout: patience}.Hurry(time.Millisecond, time.Millisecond, 20*time.Millisecond))
	take(e, 5)
	until(t, func() bool { return e.Stats().Dropped == 5 })
	if s := flush(t, e); s.Failures == 0 || s.Exported != 0 {
		t.Errorf("%+v", s)
	}
}

// Many hand over at once; every span arrives once.
func TestConcurrentTakes(t *testing.T) {
	c := collect(t)
	e := export(t, tracing.Options{Endpoint: c.url})
	const goroutines, takes, spans = 8, 50, 3
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range takes {
				take(e, spans)
			}
		})
	}
	wg.Wait()
	if s := flush(t, e); s != (tracing.Stats{Exported: goroutines * takes * spans}) || len(c.all()) != goroutines*takes*spans {
		t.Errorf("%+v, the collector has %d", s, len(c.all()))
	}
}

func BenchmarkSpan(b *testing.B) {
	c := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
	defer c.Close()
	e := export(b, tracing.Options{Endpoint: c.URL})
	s := broker.Span{Trace: broker.TraceID{1}, ID: broker.SpanID{1}, Parent: broker.SpanID{2}, Step: broker.StepDeliver, Exchange: []byte("orders"), Key: []byte("orders.new"), VHost: "/", Queue: "q",
		Client: "127.0.0.1:50000 -> 127.0.0.1:5672", Tag: 7}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%tracing.QueueSpans == 0 {
			b.StopTimer()
			until(b, func() bool { return e.Stats().Waiting == 0 })
			b.StartTimer()
		}
		e.Span(&s)
	}
}
