package journal

import (
	"sync/atomic"
	"time"
)

// Histogram is a distribution: Counts[i] are the values of at most the bounds' number i that are above the one
// before, the last count those above all bounds.
type Histogram struct {
	Counts [maxBounds + 1]int64
	Sum    int64
}

const maxBounds = 14

// Bounds of the histograms in Stats. There are at most maxBounds.
var (
	TimeBounds = [...]time.Duration{
		100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
		time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
		10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
		100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
		time.Second, 5 * time.Second,
	}
	ByteBounds   = [...]int64{1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24}
	RecordBounds = [...]int64{1, 4, 16, 64, 256, 1 << 10, 1 << 12, 1 << 14, 1 << 16}
)

// histogram is written by one goroutine and read by any.
type histogram struct {
	counts [maxBounds + 1]atomic.Int64
	sum    atomic.Int64
}

// observe counts v in a histogram with these bounds.
func observe[T ~int64](h *histogram, bounds []T, v T) {
	i := 0
	for i < len(bounds) && v > bounds[i] {
		i++
	}
	if i == len(bounds) {
		i = maxBounds
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(v))
}

func (h *histogram) read() (r Histogram) {
	for i := range h.counts {
		r.Counts[i] = h.counts[i].Load()
	}
	r.Sum = h.sum.Load()
	return r
}
