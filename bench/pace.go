package bench

import "time"

// tick groups the messages of a fast paced publisher: above one message a tick the schedule is a
// group of messages every tick, each with the group's time as its intended send time.
const tick = 100 * time.Microsecond

// pace is an open-loop schedule. It never looks at what the broker does, so a stall shows up in the
// latency of every message that was due meanwhile, not only in one (no coordinated omission).
type pace struct {
	start    int64   // when message 0 is due, in ns of the run's clock
	interval float64 // ns between messages
}

// newPace schedules rate messages a second; rate is greater than 0.
func newPace(start int64, rate float64) pace {
	return pace{start: start, interval: float64(time.Second) / rate}
}

// at is the time when message n (from 0) is due.
func (p pace) at(n uint64) int64 {
	t := int64(float64(n) * p.interval)
	if p.interval < float64(tick) {
		t = (t + int64(tick) - 1) / int64(tick) * int64(tick)
	}
	return p.start + t
}

// due is how many messages are due at that time or before.
func (p pace) due(now int64) uint64 {
	if now < p.start {
		return 0
	}
	n := uint64(float64(now-p.start) / p.interval)
	for n > 0 && p.at(n-1) > now {
		n--
	}
	for p.at(n) <= now {
		n++
	}
	return n
}
