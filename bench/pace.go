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
// It is made of parts, one after the other; the last one has no end, or with period the first follows it again.
type pace struct {
	start   int64 // when message 0 is due, in ns of the run's clock
	parts   []part
	period  float64 // ns of all parts; 0: they do not repeat
	total   float64 // messages in a period
	grouped bool
	jitter  bool // a message is due at a random moment of its interval
	seed    uint64
}

// part is a time in which the rate goes steadily from first to last. Parts without messages are left out.
type part struct {
	begins, lasts float64 // ns from the start of the first one
	before        float64 // messages of the parts before it
	first, last   float64 // messages per ns
}

const second = float64(time.Second)

// newPace schedules rate messages a second; rate is greater than 0.
func newPace(start int64, rate float64) pace {
	p := pace{start: start, grouped: grouped(rate)}
	p.add(rate, rate, math.Inf(1))
	return p
}

// newRamp schedules a rate that goes from first to last messages a second, both greater than 0, in the time
// lasts, which begins when begins has passed.
func newRamp(start int64, first, last float64, begins, lasts time.Duration) pace {
	p := pace{start: start, grouped: grouped(max(first, last))}
	p.add(first, first, float64(begins))
	p.add(first, last, float64(lasts))
	p.add(last, last, math.Inf(1))
	return p
}

// newSteps schedules share of the rates of steps, over and over. Together they are more than no message.
func newSteps(start int64, steps []Step, share float64) pace {
	p := pace{start: start}
	for _, s := range steps {
		p.add(s.Rate*share, s.Rate*share, float64(s.For))
		p.grouped = p.grouped || grouped(s.Rate*share)
	}
	return p
}

func grouped(rate float64) bool { return rate*tick.Seconds() > 1 }

// add appends a part of rates a second.
func (p *pace) add(first, last, lasts float64) {
	n := part{begins: p.period, lasts: lasts, before: p.total, first: first / second, last: last / second}
	p.period += lasts
	if messages := n.count(lasts); messages > 0 {
		p.total += messages
		p.parts = append(p.parts, n)
	}
	if math.IsInf(p.period, 1) {
		p.period = 0
	}
}

// count is how many messages are due when t ns of the part have passed.
func (p *part) count(t float64) float64 {
	if p.first == p.last {
		return p.first * t
	}
	return p.first*t + (p.last-p.first)/p.lasts*t*t/2
}

// at is when the xth message of the part is due, in ns from its beginning.
func (p *part) at(x float64) float64 {
	if p.first == p.last {
		return x / p.first
	}
	// x = first*t + k/2*t*t, of which this form of the root has no difference of near numbers in it
	k := (p.last - p.first) / p.lasts
	return 2 * x / (p.first + math.Sqrt(max(0, p.first*p.first+2*k*x)))
}

// at is the time when message n (from 0) is due.
func (p *pace) at(n uint64) int64 {
	x, t := float64(n), 0.0
	if p.jitter {
		x += fraction(n ^ p.seed)
	}
	if p.period > 0 {
		whole := math.Floor(x / p.total)
		x, t = max(0, x-whole*p.total), whole*p.period
	}
	i := 0
	for i+1 < len(p.parts) && x >= p.parts[i+1].before {
		i++
	}
	in := &p.parts[i]
	ns := int64(t + in.begins + in.at(x-in.before))
	if p.grouped {
		ns = (ns + int64(tick) - 1) / int64(tick) * int64(tick)
	}
	return p.start + ns
}

// due is how many messages are due at that time or before.
func (p *pace) due(now int64) uint64 {
	if now < p.start {
		return 0
	}
	t, x := float64(now-p.start), 0.0
	if p.period > 0 {
		whole := math.Floor(t / p.period)
		t, x = max(0, t-whole*p.period), whole*p.total
	}
	for i := range p.parts {
		if in := &p.parts[i]; t > in.begins {
			x += in.count(min(t-in.begins, in.lasts))
		}
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

// fraction is a number from 0 up to 1 that looks random, the same for the same x: splitmix64's mixing.
func fraction(x uint64) float64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return float64((x^x>>31)>>11) / (1 << 53)
}
