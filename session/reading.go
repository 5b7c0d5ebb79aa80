package session

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Reasons of sessions to pause reading, beside the broker's, which have the lower 16 bits.
const (
	PauseBacklog  uint32 = 1 << (16 + iota) // the client does not take what it is sent
	PauseThrottle                           // the client was told to send less and does not
	PauseHeld                               // frames are held until something before them has its answer
)

// Pauses counts by reason how often connections were paused: whoever makes sessions has one for all of them. Any
// goroutine.
type Pauses struct{ n [32]atomic.Uint64 }

// Count is how often it was for the reason, which is one bit.
func (p *Pauses) Count(reason uint32) uint64 { return p.n[bits.TrailingZeros32(reason)].Load() }

// Reading is the switch by which a connection's reading is paused, for reasons that add up. For some of them
// it is read on, with care, until it publishes: the session then has to hold that. It knows what
// operators ask: for which reasons, and when it last was paused. Any goroutine.
type Reading struct {
	out     Outbox // immutable, like the next three
	alarms  uint32 // reasons that are an alarm's
	soft    uint32 // reasons that publishes alone wait for
	pauses  *Pauses
	reasons atomic.Uint32
	care    atomic.Bool  // see Careful
	last    atomic.Int64 // Unix ns when it was last paused or resumed without an alarm; 0: never
	freed   atomic.Bool
}

// Of binds the switch to a connection, before anything else is called; alarms are the reasons of which Last
// says nothing, soft those that publishes alone wait for. Pauses are counted in p; nil: nowhere.
func (r *Reading) Of(o Outbox, alarms, soft uint32, p *Pauses) {
	r.out, r.alarms, r.soft, r.pauses = o, alarms, soft, p
}

// Pause adds reasons and gives those that were there.
func (r *Reading) Pause(reasons uint32) (was uint32) {
	was = r.reasons.Or(reasons)
	if r.pauses != nil {
		for more := reasons &^ was; more != 0; more &= more - 1 {
			r.pauses.n[bits.TrailingZeros32(more)].Add(1)
		}
	}
	r.slowed(reasons)
	if reasons&r.soft != 0 {
		r.take()
	}
	if hard := reasons &^ r.soft; hard != 0 {
		r.out.Pause(hard)
		if r.freed.Load() { // in between
			r.out.Resume(hard)
		}
	}
	return was
}

// Resume takes reasons back and gives those that were there.
func (r *Reading) Resume(reasons uint32) (was uint32) {
	was = r.reasons.And(^reasons)
	r.slowed(was & reasons)
	if reasons&r.soft != 0 {
		r.take()
	}
	if hard := reasons &^ r.soft; hard != 0 {
		r.out.Resume(hard)
	}
	return was
}

// Careful has little read at once, or again as the reasons have it: memory is short.
func (r *Reading) Careful(on bool) {
	r.care.Store(on)
	r.take()
}

// take has little or much read at once, as the reasons are when it returns.
func (r *Reading) take() {
	for {
		little := r.little()
		r.out.ReadLittle(little)
		if r.little() == little {
			return
		}
	}
}

func (r *Reading) little() bool { return r.PublishesWait() || r.care.Load() }

// PublishesWait reports whether there is a reason that publishes wait for.
func (r *Reading) PublishesWait() bool { return r.reasons.Load()&r.soft != 0 }

// Stops reports the reasons for which nothing is read.
func (r *Reading) Stops() uint32 { return r.reasons.Load() &^ r.soft }

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

// Reasons are all that there are now.
func (r *Reading) Reasons() uint32 { return r.reasons.Load() }

// Last is when reading was last paused or resumed without an alarm, in Unix ns; 0: never.
func (r *Reading) Last() int64 { return r.last.Load() }
