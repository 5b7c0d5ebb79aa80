package bench

import (
	"math"
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	for _, rate := range []float64{0.5, 1, 3, 1000, 9999, 10_000, 10_001, 123_456, 3e6} {
		p := newPace(5000, rate)
		last := int64(0)
		for n := range uint64(2000) {
			at := p.at(n)
			if at < last {
				t.Fatalf("rate %v: message %d is due before the one ahead of it", rate, n)
			}
			last = at
			exact := 5000 + int64(float64(n)/rate*1e9)
			if late := at - exact; late < -1 || late > int64(tick) {
				t.Fatalf("rate %v: message %d is due at %d, which is %d ns from the exact time", rate, n, at, late)
			}
			if due := p.due(at); due <= n {
				t.Fatalf("rate %v: at its time message %d is not due (%d are)", rate, n, due)
			}
			if due := p.due(at - 1); due > n {
				t.Fatalf("rate %v: before its time message %d is due (%d are)", rate, n, due)
			}
		}
	}
	p := newPace(1000, 1e6)
	if n := p.due(999); n != 0 {
		t.Errorf("%d messages are due before the start", n)
	}
	p = newPace(0, 123_456)
	if n := p.due(int64(time.Second)); n < 123_440 || n > 123_457 {
		t.Errorf("%d messages are due after a second", n)
	}
}

// TestRamp compares with the sum of the rates up to each time, in small steps.
func TestRamp(t *testing.T) {
	for _, c := range []struct{ first, last float64 }{{100, 5000}, {5000, 100}, {1000, 40_000}, {1e6, 2e6}, {300, 300.0001}} {
		p := newRamp(7000, c.first, c.last, time.Second, 2*time.Second)
		const step = 50 * time.Microsecond
		sum := 0.0
		for at := time.Duration(0); at < 4*time.Second; at += step {
			// Messages 0 to sum are due, up to what a tick groups.
			share := min(max((at-time.Second).Seconds()/2, 0), 1)
			rate := c.first + (c.last-c.first)*share
			slack := 2 + 2*rate*tick.Seconds() + sum*1e-3
			if due := float64(p.due(7000 + int64(at))); due < sum-slack || due > sum+slack {
				t.Fatalf("from %v to %v: %v are due after %s, want %.0f", c.first, c.last, due, at, sum)
			}
			sum += rate * step.Seconds()
		}
		last := int64(0)
		for n := range uint64(4 * max(c.first, c.last)) {
			if n > 100_000 {
				break
			}
			at := p.at(n)
			if at < last {
				t.Fatalf("from %v to %v: message %d is due before the one ahead of it", c.first, c.last, n)
			}
			if last = at; p.due(at) <= n || p.due(at-1) > n {
				t.Fatalf("from %v to %v: message %d is due at %d, when %d are, and %d before", c.first, c.last, n, at, p.due(at), p.due(at-1))
			}
		}
	}
}

// TestSteps has a burst, a pause and a slower time, three times over: what is due is the sum of the rates so far.
func TestSteps(t *testing.T) {
	steps := []Step{{20_000, 50 * time.Millisecond}, {0, 100 * time.Millisecond}, {333, 50 * time.Millisecond}}
	for _, jitter := range []bool{false, true} {
		p := newSteps(7000, steps, 0.5)
		p.jitter = jitter
		const step = 50 * time.Microsecond
		sum := 0.0
		for at := time.Duration(0); at < 600*time.Millisecond; at += step {
			rate, in := 0.0, at%(200*time.Millisecond)
			for _, s := range steps {
				if rate = s.Rate / 2; in < s.For {
					break
				}
				in -= s.For
			}
			if due := float64(p.due(7000 + int64(at))); due < sum-3 || due > sum+3 {
				t.Fatalf("jitter %t: %v are due after %s, want %.1f", jitter, due, at, sum)
			}
			sum += rate * step.Seconds()
		}
		last := int64(0)
		for n := range uint64(sum) {
			at := p.at(n)
			if at < last || p.due(at) <= n || p.due(at-1) > n {
				t.Fatalf("jitter %t: message %d is due at %d, after one at %d, when %d are, and %d before", jitter, n, at, last, p.due(at), p.due(at-1))
			}
			last = at
		}
	}
}

// TestJitter: each message is within its own interval, at different places in it.
func TestJitter(t *testing.T) {
	p := newPace(5000, 1000)
	p.jitter = true
	sum, squares := 0.0, 0.0
	const n = 5000
	for i := range uint64(n) {
		place := float64(p.at(i)-5000)/1e6 - float64(i)
		if place < -1e-3 || place >= 1 {
			t.Fatalf("message %d is due %v intervals after its begin", i, place)
		}
		sum += place
		squares += place * place
	}
	// Of an even distribution the mean is 1/2 and the variance 1/12.
	if mean, variance := sum/n, squares/n-sum/n*sum/n; math.Abs(mean-0.5) > 0.02 || math.Abs(variance-1.0/12) > 0.01 {
		t.Errorf("mean %v, variance %v", mean, variance)
	}
}

// The broker stalls for 100 ms of 300 or more, at 1,000 messages a second and with a window of 10. By their
// intended send times 50 messages or more have waited for 50 ms and more. A client that measured from
// when it could send would have 10 of them (coordinated omission).
func TestRateModeMeasuresFromTheIntendedTime(t *testing.T) {
	urls(t, faults{stall: 50, stallFor: 100 * time.Millisecond}, func(t *testing.T, b *fake, url string) {
		o := short(url)
		o.Rate, o.Window, o.Duration, o.Count = 1000, 10, 0, 300
		rep := mustRun(t, o)
		const most = 50_000 // us
		if rep.Latency.P90 < most || rep.ConfirmLatency.P90 < most {
			t.Errorf("p90 is %.0f us for deliveries, %.0f us for confirms; want %d or more", rep.Latency.P90, rep.ConfirmLatency.P90, most)
		}
		if rep.Latency.Count != int64(o.Count) {
			t.Errorf("%d latencies of %d messages", rep.Latency.Count, o.Count)
		}
	})
}

func TestAlarmIsExact(t *testing.T) {
	a, err := newAlarm()
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	best := time.Hour
	for range 20 {
		const d = 300 * time.Microsecond
		start := time.Now()
		if err := a.sleep(d); err != nil {
			t.Fatal(err)
		}
		took := time.Since(start)
		if took < d {
			t.Fatalf("slept %s, less than %s", took, d)
		}
		best = min(best, took)
	}
	if best > 20*time.Millisecond {
		t.Errorf("the best of 20 sleeps of 300 us took %s", best)
	}
}
