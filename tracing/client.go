package tracing

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const (
	backoff     = time.Second      // before the second try; it doubles
	maxBackoff  = 30 * time.Second // also of what a collector asks for
	patience    = time.Minute      // how long a batch is tried
	maxResponse = 64 << 10
	maxReason   = 512 // bytes of it in the log
)

// client sends batches to the collector, one at a time, and counts what becomes of their spans. It is an
// otlptrace.Client.
type client struct {
	opt    Options // immutable, like all up to the next group
	http   *http.Client
	stop   chan struct{} // closed by the Exporter: nothing is tried again
	over   chan struct{} // closed by Stop: there is no more to send
	ctx    context.Context
	cancel context.CancelFunc // of the requests

	waiting                     atomic.Int64  // spans that were taken and not yet sent or dropped; any goroutine
	exported, dropped, failures atomic.Uint64 // any goroutine

	failing bool // the last request failed; owned by the goroutine of the batcher
}

var _ otlptrace.Client = (*client)(nil)

func newClient(o Options) *client {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.backoff == 0 {
		o.backoff = backoff
	}
	if o.patience == 0 {
		o.patience = patience
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns = 1
	transport.MaxResponseHeaderBytes = maxResponse
	c := &client{
		opt: o,
		http: &http.Client{
			Transport: transport,
			Timeout:   o.Timeout,
			// The headers may hold a secret that is for this host only.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		stop: make(chan struct{}), over: make(chan struct{}),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Start does nothing: a connection is made when there is something to send.
func (c *client) Start(context.Context) error { return nil }

// Stop is called once, when all is sent or dropped.
func (c *client) Stop(context.Context) error {
	close(c.over)
	return nil
}

// end waits until all is sent, or ctx ends and the rest is dropped.
func (c *client) end(ctx context.Context) {
	select {
	case <-c.over:
	case <-ctx.Done():
		c.cancel()
		<-c.over
	}
	c.cancel()
	c.http.CloseIdleConnections()
}

// UploadTraces tries a batch until the collector takes or refuses it, or patience ends. Once the exporter stops,
// nothing is tried again. What became of it is in the counts and the log, so there is never an error.
func (c *client) UploadTraces(_ context.Context, batch []*otlp.ResourceSpans) error {
	n := 0
	for _, r := range batch {
		for _, s := range r.ScopeSpans {
			n += len(s.Spans)
		}
	}
	// An ExportTraceServiceRequest is spelt like TracesData.
	body, err := proto.Marshal(&otlp.TracesData{ResourceSpans: batch})
	if err != nil {
		c.opt.Log.Error("spans cannot be encoded", "spans", n, "error", err)
		c.done(n, n)
		return nil
	}
	c.done(n, c.send(body, n))
	return nil
}

// done counts n spans that are dealt with, some of which were dropped.
func (c *client) done(n, dropped int) {
	c.exported.Add(uint64(n - dropped))
	c.dropped.Add(uint64(dropped))
	c.waiting.Add(-int64(n))
}

// send gives the number of the n spans that the collector did not take.
func (c *client) send(body []byte, n int) (dropped int) {
	deadline := time.Now().Add(c.opt.patience)
	for wait := c.opt.backoff; ; wait = min(2*wait, maxBackoff) {
		refused, err := c.post(body, n)
		if err == nil {
			return refused
		}
		c.failures.Add(1)
		failed, ok := errors.AsType[*responseError](err)
		pause := wait/2 + rand.N(wait) // so that brokers do not come back all at once
		if ok {
			pause = max(pause, failed.after)
		}
		if ok && !failed.again || time.Now().After(deadline) || !c.sleep(min(pause, maxBackoff)) {
			return n
		}
	}
}

// sleep waits for d; false: the exporter stops.
func (c *client) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.stop:
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

// post sends one request with n spans and gives the number of those that the collector refused. The first failure,
// and the end of it, are logged.
func (c *client) post(body []byte, n int) (refused int, err error) {
	many, why, err := c.request(body)
	refused = int(min(many, uint64(n)))
	endpoint, _, _ := strings.Cut(c.opt.Endpoint, "?") // what follows may be a secret, and url.Error has it too
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err
	}
	switch {
	case err != nil && !c.failing:
		c.opt.Log.Warn("spans are not exported", "endpoint", endpoint, "error", err)
	case err == nil && c.failing:
		c.opt.Log.Info("spans are exported again", "endpoint", endpoint)
	}
	c.failing = err != nil
	if refused > 0 {
		c.opt.Log.Warn("the collector refused spans", "endpoint", endpoint, "spans", refused, "reason", why[:min(len(why), maxReason)])
	}
	return refused, err
}

func (c *client) request(body []byte) (refused uint64, why string, err error) {
	req, err := http.NewRequestWithContext(c.ctx, http.MethodPost, c.opt.Endpoint, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	maps.Copy(req.Header, c.opt.Headers)
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("User-Agent", "FireMQ/"+c.opt.Version)
	resp, err := c.http.Do(req)
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

// rejected reads from an ExportTraceServiceResponse how many spans the collector refused, and why: partial_success
// 1 (rejected_spans 1, error_message 2). What is no such response refuses none. OpenTelemetry's type for it comes
// with gRPC.
func rejected(response []byte) (n uint64, why string) {
	fields(response, func(field protowire.Number, _ uint64, partial []byte) {
		if field == 1 {
			fields(partial, func(field protowire.Number, number uint64, s []byte) {
				switch field {
				case 1:
					n = number
				case 2:
					why = string(s)
				}
			})
		}
	})
	return n, why
}

// fields calls each for every field of a message, until one that cannot be read: with its number, or its octets.
func fields(b []byte, each func(field protowire.Number, number uint64, s []byte)) {
	for len(b) > 0 {
		field, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return
		}
		b = b[size:]
		if size = protowire.ConsumeFieldValue(field, kind, b); size < 0 {
			return
		}
		number, _ := protowire.ConsumeVarint(b)
		octets, _ := protowire.ConsumeBytes(b)
		switch kind {
		case protowire.VarintType:
			each(field, number, nil)
		case protowire.BytesType:
			each(field, 0, octets)
		}
		b = b[size:]
	}
}
