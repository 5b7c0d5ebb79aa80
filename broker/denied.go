package broker

import "container/heap"

// denied are the consumers of a channel that its limit refused a delivery, or maxUnacked, who was refused first in front
// (container/heap). They are woken one by one for as long as there is room, so that a settlement costs nothing for
// those that go on waiting, and one that takes a message and is refused the next comes behind the others: all get their
// share.
type denied []denial

type denial struct {
	c    *Consumer
	turn uint64 // the lower the earlier
}

func (d denied) Len() int           { return len(d) }
func (d denied) Less(i, j int) bool { return d[i].turn < d[j].turn }
func (d denied) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].c.denied, d[j].c.denied = int32(i+1), int32(j+1)
}
func (d *denied) Push(x any) {
	*d = append(*d, x.(denial))
	(*d)[len(*d)-1].c.denied = int32(len(*d))
}
func (d *denied) Pop() any {
	last := len(*d) - 1
	c := (*d)[last].c
	(*d)[last] = denial{}
	*d = (*d)[:last]
	if c.denied = 0; last == 0 {
		*d = nil
	}
	return c
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
	if c.denied == 0 {
		ch.refused++
		heap.Push(&ch.denied, denial{c, ch.refused})
		ch.denials.Store(int32(len(ch.denied)))
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
	if c.denied > 0 {
		heap.Remove(&ch.denied, int(c.denied-1))
		ch.denials.Store(int32(len(ch.denied)))
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
		if len(ch.denied) == 0 {
			ch.peer.Unlock()
			return
		}
		c := heap.Pop(&ch.denied).(*Consumer)
		ch.denials.Store(int32(len(ch.denied)))
		ch.peer.Unlock()
		c.wake(t)
	}
}
