package session

import (
	"sync/atomic"
	"time"
)

// Reasons of sessions to pause reading, beside the broker's, which have the lower 16 bits.
const (
	PauseBacklog  uint32 = 1 << (16 + iota) // the client does not take what it is sent
	PauseThrottle                           // the client was told to send less and does not
	PauseHeld                               // frames are held until something before them has its answer
)

// Reading is the switch by which a connection's reading is paused, for reasons that add up. It knows what
// operators ask: for which reasons, and when it last was paused. Any goroutine.
type Reading struct {
	out     Outbox // immutable, like the next one
	alarms  uint32 // reasons that are an alarm's
	reasons atomic.Uint32
	last    atomic.Int64 // Unix ns when it was last paused or resumed without an alarm; 0: never
	freed   atomic.Bool
}

// Of binds the switch to a connection, before anything else is called; alarms are the reasons of which Last
// says nothing.
func (r *Reading) Of(o Outbox, alarms uint32) { r.out, r.alarms = o, alarms }

// Pause adds reasons and gives those that were there.
func (r *Reading) Pause(reasons uint32) (was uint32) {
	was = r.reasons.Or(reasons)
	r.slowed(reasons)
	r.out.Pause(reasons)
	if r.freed.Load() { // in between
		r.out.Resume(reasons)
	}
	return was
}

// Resume takes reasons back and gives those that were there.
func (r *Reading) Resume(reasons uint32) (was uint32) {
	was = r.reasons.And(^reasons)
	r.slowed(was & reasons)
	r.out.Resume(reasons)
	return was
}

func (r *Reading) slowed(reasons uint32) {
	if reasons&^r.alarms != 0 {
		r.last.Store(time.Now().UnixNano())
	}
}

// Free resumes reading for good: a client's goodbye must be read, whatever there is against it.
func (r *Reading) Free() {
	r.freed.Store(true)
	r.out.Resume(^uint32(0))
}

// Reasons are those for which reading is paused.
func (r *Reading) Reasons() uint32 { return r.reasons.Load() }

// Last is when reading was last paused or resumed without an alarm, in Unix ns; 0: never.
func (r *Reading) Last() int64 { return r.last.Load() }
