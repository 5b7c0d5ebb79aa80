package broker

import "slices"

// SetAlarm says whether the broker is low on memory or on disk. While it is, the client of a connection that
// publishes is told, and what it publishes after that waits (see Peer.Pause and AllowLate); one that only
// consumes is not affected (but see ConnInfo.AlarmsAtOnce). Any goroutine, no lock held.
func (b *Broker) SetAlarm(memory, disk bool) {
	var r Reason
	if memory {
		r |= PauseMemory
	}
	if disk {
		r |= PauseDisk
	}
	was := Reason(b.alarm.Swap(uint32(r)))
	if was == r {
		return
	}
	if was == 0 {
		b.alarms.Add(1)
	}
	for _, c := range b.allConns() {
		c.heed(false)
	}
}

// Alarmed reports whether an alarm holds. Any goroutine.
func (b *Broker) Alarmed() bool { return b.alarm.Load() != 0 }

// allConns lists all connections, the broker's own too.
func (b *Broker) allConns() []*Conn {
	b.connMu.Lock()
	defer b.connMu.Unlock()
	conns := make([]*Conn, 0, len(b.conns))
	for c := range b.conns {
		conns = append(conns, c)
	}
	return conns
}

// heed brings a connection into line with the alarm as it is now: one that publishes, now or since the
// alarm began, is paused for all of its reasons and none else. No lock is held.
func (c *Conn) heed(publishes bool) {
	c.alarmMu.Lock()
	defer c.alarmMu.Unlock()
	want := Reason(c.b.alarm.Load())
	if !publishes && c.blocked == 0 && !c.info.AlarmsAtOnce {
		want = 0
	}
	// In this order no client hears that all is clear in between.
	if more := want &^ c.blocked; more != 0 {
		c.peer.Pause(more)
	}
	if less := c.blocked &^ want; less != 0 {
		c.peer.Resume(less)
	}
	c.blocked = want
}

// When a client is told of an alarm, what it published until then may be on its way, megabytes in the buffers of
// two sockets, and the acks that would end the alarm come behind it. So some of it is taken during an alarm.
//
// Connections that have deliveries to settle are taken on beyond that, because nobody else's acks may be what makes
// room, and they come behind all that the client had sent before. For as long as memory alone is short, what they
// publish goes to the journal, transient messages and those to queues that do not survive, too, and leaves memory as
// soon as it is there: they go on at the speed of the disk. While the disk alone is short, memory takes it.
const (
	lateMost  = 8 << 20   // bytes that one connection may publish during one alarm
	lateBegun = 128 << 10 // of them of messages that it had begun, whatever AllowLate says
	lateOwing = 512 << 10 // bytes that it may publish beyond what all may, if AllowLate does not say it
	lateLeast = 64 << 10  // for less nobody is asked to look again
	lateHigh  = 1 << 20   // bytes that may wait for the disk until those with deliveries to settle wait
	lateStep  = 256 << 10 // bytes that they may publish at a time however much memory is in use, see spareOwing
	lateSpare = 8         // this part of what each may publish, by all of them in an alarm
	lateHold  = 128       // deliveries are held back, see withhold, when all of them may publish less than this part of it
)

// AllowLate says how many bytes may be published from now on although an alarm holds. 0, as before the first
// call: none, but what one read has brought when the connection's first publish during it is seen. Connections that
// have deliveries to settle may publish owing bytes more, all of them together: others may have used
// up n, and the acks behind those publishes are what makes room. Where that is next to nothing they have what is spare,
// see spareOwing. each is how many of them one of these connections may
// publish between two of its settlements; 0: little, and owing is for the whole of the alarm, and else until the next
// call. It is called with each reading, after SetAlarm, by one goroutine at a time; no lock held.
func (b *Broker) AllowLate(n, owing, each int64) {
	switch now := b.alarms.Load(); {
	case each > 0:
		b.owingOf = 0
		b.owing.Store(b.spareOwing(now, owing, each))
	case b.owingOf != now:
		b.owingOf = now
		b.owing.Store(owing)
	}
	b.owingEach.Store(each)
	b.late.Store(n)
	b.withhold(owing < each/lateHold && b.spills())
	if b.alarm.Load() == 0 || n < lateLeast && b.owing.Load() < lateLeast {
		return
	}
	for _, c := range b.allConns() {
		c.peer.Answered()
	}
}

// withhold has channels with withholdUnacked deliveries to settle get no more, or gives them what was held back. What is
// published in an alarm leaves memory for the journal, but its place comes back as a delivery that is not settled, and
// tiny messages would fill memory with those, in front of the acks that make room. By AllowLate's caller.
func (b *Broker) withhold(on bool) {
	if was := b.withholding.Swap(on); on || !was {
		return
	}
	b.withheldMu.Lock()
	list := b.withheld
	b.withheld = nil
	b.withheldMu.Unlock()
	if len(list) == 0 {
		return
	}
	t := b.newTurn()
	defer t.free()
	for ch := range list {
		ch.withheld.Store(false)
		ch.roomier(t)
		t.end()
	}
}

// spareOwing is owing, or more of what is spare in this alarm. Memory that is in use beyond what the broker can give back,
// as the runtime may keep some, must not stop those for good whose acks make room: what they publish is in memory for a
// moment only. By AllowLate's caller.
func (b *Broker) spareOwing(alarm uint64, owing, each int64) int64 {
	s := &b.spare
	if s.alarm != alarm {
		s.alarm, s.left, s.lent = alarm, each/lateSpare, 0
	}
	if s.lent > 0 {
		s.left -= s.lent - min(b.owing.Load(), s.lent)
		s.lent = 0
	}
	if owing < lateStep && s.left > 0 && b.spills() {
		owing = min(lateStep, s.left)
		s.lent = owing
	}
	return owing
}

// MayPublish reports whether the connection may publish although an alarm holds: what comes now may have been
// on its way when the client was told, unless the connection was made during the alarm, or it has deliveries to
// settle. While too much waits for the disk, or memory is to be read first, it may not. By the connection's reader.
func (c *Conn) MayPublish() bool {
	b := c.b
	if b.alarm.Load() == 0 || b.allowance.Load() <= 0 || c.quiet {
		return false
	}
	if b.journal != nil && b.journal.Pending() > journalHigh {
		return false
	}
	c.during()
	if b.late.Load() > 0 && c.lateSum < lateMost && !c.newcomer() {
		return true
	}
	each := b.owingEach.Load()
	if each == 0 {
		each = lateOwing
	}
	return b.owing.Load() > 0 && c.lateOwed < each && c.owes() && !(b.spills() && b.done.awaitDisk(c))
}

// newcomer reports whether the connection was made during the alarm that holds. By the connection's reader.
func (c *Conn) newcomer() bool { return c.born != 0 && c.born == c.b.alarms.Load() }

// owes reports whether the connection has deliveries to settle. Once it has, it is not looked again before the turn's
// end: each frame asks. By the connection's reader.
func (c *Conn) owes() bool {
	if !c.owing {
		c.owing = slices.ContainsFunc(c.channels, func(ch *Channel) bool { return ch.outstanding() > 0 })
	}
	return c.owing
}

// spills reports whether messages are to leave memory for the journal as soon as they can: memory is short, and the
// disk is not. Any goroutine.
func (b *Broker) spills() bool {
	return Reason(b.alarm.Load()) == PauseMemory && b.journal != nil
}

// Newcomer reports whether the connection was made during an alarm. Any goroutine.
func (c *Conn) Newcomer() bool { return c.born != 0 }

// Heed tells the peer of the alarm, if one holds still, before a newcomer's first publish. By the connection's reader.
func (c *Conn) Heed() { c.heed(true) }

// MayFinish reports whether n bytes more of a message may come whose start was taken, although what the
// connection publishes must wait: without the rest of it nothing behind it can be read. By the connection's reader.
func (c *Conn) MayFinish(n int) bool {
	c.during()
	if c.lateRest >= lateBegun {
		return false
	}
	c.lateRest += n
	return true
}

// published notes n bytes that were taken during an alarm; less than 0: given back.
func (c *Conn) published(n int64) {
	c.during()
	b := c.b
	if n > 0 && c.lateSum < lateMost && !c.newcomer() {
		left := b.late.Add(-n)
		if left+n > 0 {
			c.lateSum += n
			if left <= 0 {
				b.opt.OnGrowth()
			}
			return
		}
	}
	c.lateSum += n
	if n < 0 && c.lateOwed == 0 {
		b.late.Add(-n)
		return
	}
	c.lateOwed = max(c.lateOwed+n, 0)
	if left := b.owing.Add(-n); left <= 0 && left+n > 0 && b.owingEach.Load() > 0 {
		b.opt.OnGrowth()
	}
}

// during begins the account of an alarm.
func (c *Conn) during() {
	if now := c.b.alarms.Load(); c.lateOf != now {
		c.lateOf, c.lateSum, c.lateOwed, c.lateRest = now, 0, 0, 0
	}
}
