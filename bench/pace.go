package bench

import (
	"math"
	"time"
)

// tick groups the messages of a fast paced publisher: above one message a tick the schedule is a
// group of messages every tick, each with the group's time as its intended send time.
const tick = 100 * time.Microsecond

// pace is an open-loop schedule. It never looks at what the broker does, so a stall shows up in the
// latency of every message that was due meanwhile, not only in one (no coordinated omission).
//
// The rate is the first one until the ramp begins, changes steadily while it lasts, and then is the last one.
type pace struct {
	start       int64   // when message 0 is due, in ns of the run's clock
	first, last float64 // messages per ns
	begins      float64 // the ramp, in ns from start; beyond any run: there is none
	lasts       float64 // ns
	grouped     bool
}

// newPace schedules rate messages a second; rate is greater than 0.
func newPace(start int64, rate float64) pace {
	return newRamp(start, rate, rate, time.Duration(math.MaxInt64), 0)
}

// newRamp schedules a rate that goes from first to last messages a second, both greater than 0, in the time
// lasts, which begins when begins has passed.
func newRamp(start int64, first, last float64, begins, lasts time.Duration) pace {
	const second = float64(time.Second)
	return pace{
		start: start, first: first / second, last: last / second, begins: float64(begins), lasts: float64(lasts),
		grouped: max(first, last)*tick.Seconds() > 1,
	}
}

// at is the time when message n (from 0) is due.
func (p pace) at(n uint64) int64 {
	x := float64(n)
	t := x / p.first
	if t > p.begins {
		x -= p.first * p.begins
		t = p.begins
		if whole := (p.first + p.last) / 2 * p.lasts; x < whole {
			// x = first*s + k/2*s*s, of which this form of the root has no difference of near numbers in it
			k := (p.last - p.first) / p.lasts
			t += 2 * x / (p.first + math.Sqrt(p.first*p.first+2*k*x))
		} else {
			t += p.lasts + (x-whole)/p.last
		}
	}
	ns := int64(t)
	if p.grouped {
		ns = (ns + int64(tick) - 1) / int64(tick) * int64(tick)
	}
	return p.start + ns
}

// due is how many messages are due at that time or before.
func (p pace) due(now int64) uint64 {
	if now < p.start {
		return 0
	}
	t := float64(now - p.start)
	x := p.first * min(t, p.begins)
	if t > p.begins {
		s := min(t-p.begins, p.lasts)
		if p.lasts > 0 {
			x += p.first*s + (p.last-p.first)/p.lasts*s*s/2
		}
		x += p.last * (t - p.begins - s)
	}
	n := uint64(x)
	for n > 0 && p.at(n-1) > now {
		n--
	}
	for p.at(n) <= now {
		n++
	}
	return n
}
