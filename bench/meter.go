package bench

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are recorded in nanoseconds, exact to three digits, up to maxLatency; longer ones count as that.
const (
	maxLatency    = 10 * time.Minute
	latencyDigits = 3
)

// maxMeters bounds the histograms of each kind (some 250 KiB each): connections share them.
const maxMeters = 8

// meter records latencies of the messages sent in the measured time. Equal neighbours, which batches
// are full of, cost one comparison each.
//
// Use: lock, note ..., unlock; once a batch, not once a message.
type meter struct {
	mu   sync.Mutex
	hist *hdrhistogram.Histogram // guarded by mu
	// latest is what arrived since takeLatest, in the measured time or not. Guarded by mu.
	latest *hdrhistogram.Histogram
	from   int64 // guarded by mu; first send time measured, ns of the run's clock
	to     int64 // guarded by mu; the first one not measured

	// The run of equal latencies not yet in hist. Guarded by mu.
	value    int64
	count    int64
	measured int64 // of count, sent in the measured time
}

func newMeter() *meter {
	return &meter{hist: newHistogram(), latest: newHistogram(), from: never, to: never}
}

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(maxLatency), latencyDigits)
}

// never is a time that no run reaches.
const never = int64(1) << 62

func (m *meter) lock() { m.mu.Lock() }

// note records the latency of a message sent and received at these times. Locked.
func (m *meter) note(sent, now int64) {
	if v := now - sent; v != m.value {
		m.flush()
		m.value = v
	}
	m.count++
	if sent >= m.from && sent < m.to {
		m.measured++
	}
}

func (m *meter) flush() {
	if m.count > 0 {
		// The value is in range, so that RecordValues cannot fail.
		v := min(max(m.value, 1), int64(maxLatency))
		m.latest.RecordValues(v, m.count)
		m.hist.RecordValues(v, m.measured)
		m.count, m.measured = 0, 0
	}
}

// takeLatest moves what arrived since its last call to into.
func (m *meter) takeLatest(into *hdrhistogram.Histogram) {
	m.mu.Lock()
	into.Merge(m.latest)
	m.latest.Reset()
	m.mu.Unlock()
}

func (m *meter) unlock() {
	m.flush()
	m.mu.Unlock()
}

// measure sets the send times that count.
func (m *meter) measure(from, to int64) {
	m.mu.Lock()
	m.from, m.to = from, to
	m.mu.Unlock()
}

// Latency is a latency distribution in microseconds.
type Latency struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean_us"`
	P50   float64 `json:"p50_us"`
	P90   float64 `json:"p90_us"`
	P95   float64 `json:"p95_us"`
	P99   float64 `json:"p99_us"`
	P999  float64 `json:"p999_us"`
	Max   float64 `json:"max_us"`
}

// summarize merges the meters.
func summarize(meters []*meter) Latency {
	all := newHistogram()
	for _, m := range meters {
		m.mu.Lock()
		all.Merge(m.hist)
		m.mu.Unlock()
	}
	return Latency{
		Count: all.TotalCount(),
		Mean:  all.Mean() / 1e3,
		P50:   microseconds(all.ValueAtQuantile(50)),
		P90:   microseconds(all.ValueAtQuantile(90)),
		P95:   microseconds(all.ValueAtQuantile(95)),
		P99:   microseconds(all.ValueAtQuantile(99)),
		P999:  microseconds(all.ValueAtQuantile(99.9)),
		Max:   microseconds(all.Max()),
	}
}

func microseconds(ns int64) float64 { return float64(ns) / 1e3 }
