package broker

import "math"

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
