package broker

import (
	"math"
	"sync/atomic"
)

// Memory is read now and then, while publishers fill it all the time: on a busy machine a reading may come
// late. So whoever reads it grants what may be published until the next reading, and publishers that have
// used it up wait for that.

// Unlimited is an allowance that is never used up.
const Unlimited = math.MaxInt64 / 2

// messageCost is what a message may take beside its buffer, in bytes: its place, and the objects around it.
const messageCost = 256

// Allow says how many bytes may be published from now on until OnGrowth is called for more. Publishers that
// waited go on. Any goroutine, no lock held.
func (b *Broker) Allow(n int64) {
	n -= b.keepBack(n)
	if b.allowance.Swap(n) <= 0 {
		b.done.signal()
	}
}

// grow takes n bytes off the allowance, and reports whether there is some left.
func (b *Broker) grow(n int64) bool {
	left := b.allowance.Add(-n)
	if left > 0 {
		return true
	}
	if left+n > 0 {
		b.opt.OnGrowth()
	}
	return false
}

// What connections bring is taken off the allowance once it was read, so each may bring another read of its own when
// nothing is left. That is kept back; and when it would be more than there is, those that publish are read with
// care, little at a time.
const (
	wholeRead  = 128 << 10 // bytes that a read brings at most
	carefulFor = 4         // times what is kept back has to be free until reads are whole again
)

// tightness says whether memory is so short. Any goroutine, but for what Allow's caller owns.
type tightness struct {
	on       atomic.Bool
	window   atomic.Uint32 // a stretch of time, see bringersFor
	bringers atomic.Int64  // connections that have published in it

	// Owned by Allow's caller.
	began  int64 // Unix ms of the window
	before int64 // bringers of the window before
}

// bringersFor is how long, in ms, the connections that publish are counted anew at least. With many of them it takes
// as long until each was read once.
const bringersFor = 1000

// keepBack is how many of n bytes the connections' last reads may take, and decides whether they are read with care.
func (b *Broker) keepBack(n int64) int64 {
	x := &b.tight
	if Reason(b.alarm.Load())&PauseMemory != 0 {
		return 0 // it stays as it is until the alarm ends
	}
	bringers := x.bringers.Load()
	reserve := max(bringers, x.before) * wholeRead
	if now := b.opt.Now(); now-x.began >= bringersFor {
		x.began, x.before = now, bringers
		x.window.Add(1)
		x.bringers.Store(0)
	}
	if was := x.on.Load(); !was && n < 2*reserve || was && n >= carefulFor*reserve {
		x.on.Store(!was)
		for _, c := range b.allConns() {
			c.mind()
		}
	}
	if x.on.Load() {
		return 0
	}
	return reserve
}

// brings notes that the connection publishes. By its reader.
func (c *Conn) brings() {
	x := &c.b.tight
	if w := x.window.Load(); c.brought.Load() != w {
		c.brought.Store(w)
		x.bringers.Add(1)
	}
	if x.on.Load() && !c.careful.Load() {
		c.mind()
	}
}

// mind has the connection read as memory is now: with care if it publishes and that is short. No lock is held.
func (c *Conn) mind() {
	c.alarmMu.Lock()
	defer c.alarmMu.Unlock()
	x := &c.b.tight
	on := x.on.Load() && x.window.Load()-c.brought.Load() <= 1
	if on != c.careful.Swap(on) {
		c.peer.Careful(on)
	}
}
