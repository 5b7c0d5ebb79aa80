package broker

// denied are the consumers of a channel that its limit refused a delivery, or maxUnacked, who was refused first in front.
// They are woken one by one for as long as there is room, so that a settlement costs nothing for those that go on
// waiting, and one that takes a message and is refused the next comes behind the others: all get their share.
type denied struct {
	first, last *Consumer
	n           int32
}

// waiting is a consumer's place in denied.
type waiting struct {
	prev, next *Consumer
	on         bool
}

func (d *denied) push(c *Consumer) {
	c.waits = waiting{prev: d.last, on: true}
	if d.last == nil {
		d.first = c
	} else {
		d.last.waits.next = c
	}
	d.last = c
	d.n++
}

func (d *denied) remove(c *Consumer) {
	w := c.waits
	if w.prev == nil {
		d.first = w.next
	} else {
		w.prev.waits.next = w.next
	}
	if w.next == nil {
		d.last = w.prev
	} else {
		w.next.waits.prev = w.prev
	}
	c.waits = waiting{}
	d.n--
}

// most is how many deliveries to the channel's consumers may wait for their settlement now. Any goroutine.
func (ch *Channel) most() int64 {
	b := ch.conn.b
	most := b.opt.tuning.maxUnacked
	if b.withholding.Load() {
		most = b.opt.tuning.withholdUnacked
	}
	if limit := ch.limit.Load(); limit > 0 {
		most = min(most, limit)
	}
	return most
}

// deny has c wait for room. False: there is some by now. The queue's lock is held.
func (ch *Channel) deny(c *Consumer) bool {
	ch.peer.Lock()
	if !c.waits.on {
		ch.denied.push(c)
		ch.denials.Store(ch.denied.n)
	}
	ch.peer.Unlock()
	return ch.crowded()
}

// crowded reports whether there is no room for another delivery. Consumers that wait are told when there is: it is said
// first that they do.
func (ch *Channel) crowded() bool {
	if b := ch.conn.b; b.withholding.Load() && !ch.withheld.Swap(true) {
		b.withheldMu.Lock()
		if b.withheld == nil {
			b.withheld = make(map[*Channel]struct{})
		}
		b.withheld[ch] = struct{}{}
		b.withheldMu.Unlock()
	}
	return ch.inflight.Load() >= ch.most()
}

// undeny takes c, which is gone, off those that wait for room.
func (ch *Channel) undeny(c *Consumer) {
	if ch.denials.Load() == 0 {
		return
	}
	ch.peer.Lock()
	if c.waits.on {
		ch.denied.remove(c)
		ch.denials.Store(ch.denied.n)
	}
	ch.peer.Unlock()
}

// unwithhold takes ch, which is closed and has no consumers, off those that wait for the end of an alarm.
func (ch *Channel) unwithhold() {
	if !ch.withheld.Load() {
		return
	}
	b := ch.conn.b
	b.withheldMu.Lock()
	delete(b.withheld, ch)
	b.withheldMu.Unlock()
}

// roomier wakes consumers that wait for room, after settlements, a new limit or the end of an alarm may have made some. No lock is held.
func (ch *Channel) roomier(t *turn) {
	for ch.denials.Load() > 0 {
		if ch.inflight.Load() >= ch.most() && ch.crowded() {
			return
		}
		ch.peer.Lock()
		c := ch.denied.first
		if c == nil {
			ch.peer.Unlock()
			return
		}
		ch.denied.remove(c)
		ch.denials.Store(ch.denied.n)
		ch.peer.Unlock()
		c.wake(t)
	}
}
