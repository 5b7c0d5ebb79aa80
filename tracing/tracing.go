// Package tracing exports the spans of messages (see broker.Tracer) to an OpenTelemetry collector, by OTLP over
// HTTP with Protobuf.
//
//	broker --Take--> batches --goroutine--> POST endpoint
//
// Whoever has spans copies them into a batch and goes on; one goroutine sends them. While the collector is slow or
// away batches wait, up to queueBytes, and what comes then is dropped and counted.
//
// OpenTelemetry's SDK is not used: to link it costs every idle broker 0.4 MiB, and several with its exporter, and its
// queue of spans does not tell what it dropped. Tests read what is sent with OpenTelemetry's own types.
package tracing

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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
}

const (
	queueBytes = 8 << 20   // of spans that wait, about 16,000
	batchBytes = 256 << 10 // from which on a batch is sent, about 500 spans
	linger     = time.Second

	backoff     = time.Second      // before the second try; it doubles
	maxBackoff  = 30 * time.Second // also of what a collector asks for
	patience    = time.Minute      // how long a batch is tried
	maxResponse = 64 << 10
	maxReason   = 512 // bytes of it in the log
)

// Exporter sends spans. It is a broker.Tracer.
type Exporter struct {
	opt    Options // immutable, like all up to the next group
	client *http.Client
	bound  uint64 // of Sample
	wake   chan struct{}
	stop   chan struct{}
	over   chan struct{}
	ctx    context.Context // of the requests
	cancel context.CancelFunc

	mu      sync.Mutex // a leaf
	batches []batch    // the last one is being filled; guarded by mu
	size    int        // their bytes, with those of the one that is being sent; guarded by mu
	stopped bool       // nothing is taken any more; guarded by mu

	exported, dropped, failures atomic.Uint64 // any goroutine

	failing bool // the last request failed; owned by the goroutine
}

var _ broker.Tracer = (*Exporter)(nil)

type batch struct {
	spans []byte
	n     int
}

// New starts an Exporter, which needs a Shutdown.
func New(o Options) *Exporter {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	for _, d := range []struct {
		at    *time.Duration
		value time.Duration
	}{{&o.linger, linger}, {&o.backoff, backoff}, {&o.patience, patience}} {
		if *d.at == 0 {
			*d.at = d.value
		}
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns = 1
	transport.MaxResponseHeaderBytes = maxResponse
	e := &Exporter{
		opt: o,
		client: &http.Client{
			Transport: transport,
			Timeout:   o.Timeout,
			// The headers may hold a secret that is for this host only.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		bound: uint64(o.Ratio * (1 << 63)),
		wake:  make(chan struct{}, 1), stop: make(chan struct{}), over: make(chan struct{}),
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	go e.run()
	return e
}

// Sample decides by the trace's last 63 bits, as OpenTelemetry's TraceIdRatioBased does: brokers and services with
// one ratio pick the same traces.
func (e *Exporter) Sample(id broker.TraceID) bool {
	return binary.BigEndian.Uint64(id[8:])>>1 < e.bound
}

// Append encodes a span.
func (e *Exporter) Append(dst []byte, s *broker.Span) []byte { return appendSpan(dst, s) }

// Take copies n encoded spans into the batch that is being filled.
func (e *Exporter) Take(spans []byte, n int) {
	e.mu.Lock()
	if e.stopped || e.size+len(spans) > queueBytes {
		e.mu.Unlock()
		e.Drop(n)
		return
	}
	last := len(e.batches) - 1
	if last < 0 || len(e.batches[last].spans) >= batchBytes {
		e.batches = append(e.batches, batch{})
		last++
	}
	b := &e.batches[last]
	first := last == 0 && b.n == 0
	b.spans = append(b.spans, spans...)
	b.n += n
	e.size += len(spans)
	full := len(b.spans) >= batchBytes
	e.mu.Unlock()
	if first || full {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
}

// Drop counts spans that were dropped before they came here.
func (e *Exporter) Drop(n int) { e.dropped.Add(uint64(n)) }

// Stats are what became of the spans since the start.
type Stats struct {
	Exported uint64 // spans that the collector took
	Dropped  uint64 // spans for which there was no room, or that it did not take
	Failures uint64 // requests that failed
	Waiting  int    // bytes of spans that wait
}

// Stats can be called by any goroutine.
func (e *Exporter) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Stats{e.exported.Load(), e.dropped.Load(), e.failures.Load(), e.size}
}

// Shutdown sends what waits, each batch once, and ends the goroutine. What is not sent when ctx ends is dropped.
func (e *Exporter) Shutdown(ctx context.Context) {
	e.mu.Lock()
	again := e.stopped
	e.stopped = true
	e.mu.Unlock()
	if !again {
		close(e.stop)
	}
	select {
	case <-e.over:
	case <-ctx.Done():
		e.cancel()
		<-e.over
	}
	e.cancel()
	e.client.CloseIdleConnections()
}

// run sends what waits: when a batch is full, or a while after it was begun.
func (e *Exporter) run() {
	defer close(e.over)
	for e.await() {
		for range e.waiting() {
			e.send(e.next())
		}
	}
	for e.waiting() > 0 {
		e.send(e.next())
	}
}

// await waits until there is something to send; false: Shutdown was called.
func (e *Exporter) await() bool {
	for e.waiting() == 0 {
		select {
		case <-e.wake:
		case <-e.stop:
			return false
		}
	}
	lingered := time.NewTimer(e.opt.linger)
	defer lingered.Stop()
	for !e.full() {
		select {
		case <-e.wake:
		case <-lingered.C:
			return true
		case <-e.stop:
			return false
		}
	}
	return true
}

func (e *Exporter) waiting() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.batches)
}

func (e *Exporter) full() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.batches[0].spans) >= batchBytes
}

// next takes the oldest batch, of which there is one.
func (e *Exporter) next() batch {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.batches[0]
	e.batches = slices.Delete(e.batches, 0, 1)
	return b
}

// send tries a batch until the collector takes or refuses it, or patience ends. Once the exporter stops, nothing is
// tried again.
func (e *Exporter) send(b batch) {
	body := appendRequest(nil, &e.opt, b.spans)
	deadline := time.Now().Add(e.opt.patience)
	for wait := e.opt.backoff; ; wait = min(2*wait, maxBackoff) {
		refused, err := e.post(body)
		if err == nil {
			refused = min(refused, uint64(b.n))
			e.exported.Add(uint64(b.n) - refused)
			e.dropped.Add(refused)
			break
		}
		e.failures.Add(1)
		failed, ok := errors.AsType[*responseError](err)
		pause := wait/2 + rand.N(wait) // so that brokers do not come back all at once
		if ok {
			pause = max(pause, failed.after)
		}
		if ok && !failed.again || time.Now().After(deadline) || !e.sleep(min(pause, maxBackoff)) {
			e.Drop(b.n)
			break
		}
	}
	e.mu.Lock()
	e.size -= len(b.spans)
	e.mu.Unlock()
}

// sleep waits for d; false: the exporter stops.
func (e *Exporter) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-e.stop:
		return false
	}
}

// responseError is a collector's answer that is no success.
type responseError struct {
	status string
	again  bool          // it may be sent again
	after  time.Duration // not before, 0: whenever
}

func (e *responseError) Error() string { return "the collector answers " + e.status }

// post sends one request and gives the number of spans that the collector refused. The first failure, and the end of
// it, are logged.
func (e *Exporter) post(body []byte) (refused uint64, err error) {
	refused, why, err := e.request(body)
	endpoint, _, _ := strings.Cut(e.opt.Endpoint, "?") // what follows may be a secret, and url.Error has it too
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err
	}
	switch {
	case err != nil && !e.failing:
		e.opt.Log.Warn("spans are not exported", "endpoint", endpoint, "error", err)
	case err == nil && e.failing:
		e.opt.Log.Info("spans are exported again", "endpoint", endpoint)
	}
	e.failing = err != nil
	if refused > 0 {
		e.opt.Log.Warn("the collector refused spans", "endpoint", endpoint, "spans", refused, "reason", why[:min(len(why), maxReason)])
	}
	return refused, err
}

func (e *Exporter) request(body []byte) (refused uint64, why string, err error) {
	req, err := http.NewRequestWithContext(e.ctx, http.MethodPost, e.opt.Endpoint, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	maps.Copy(req.Header, e.opt.Headers)
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("User-Agent", "FireMQ/"+e.opt.Version)
	resp, err := e.client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse)) // to its end, so that the connection is used again
	switch {
	case resp.StatusCode/100 != 2:
		return 0, "", refusal(resp)
	case err == nil && resp.Header.Get("Content-Type") == contentType:
		refused, why = rejected(answer)
	}
	return refused, why, nil
}

const contentType = "application/x-protobuf"

// refusal says what an answer means: OTLP lets a client try again after 429, 502, 503 and 504 alone.
func refusal(resp *http.Response) *responseError {
	e := &responseError{status: resp.Status}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		e.again = true
	}
	after := resp.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(after, 10, 16); err == nil {
		e.after = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(after); err == nil {
		e.after = time.Until(at)
	}
	return e
}
