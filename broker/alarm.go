package broker

// SetAlarm says whether the broker is low on memory or on disk. While it is, a connection that publishes
// is no longer read, from its next publish on, and its client is told (see Peer.Pause); one that only
// consumes is not affected (but see ConnInfo.AlarmsAtOnce). Any goroutine, no lock held.
func (b *Broker) SetAlarm(memory, disk bool) {
	var r Reason
	if memory {
		r |= PauseMemory
	}
	if disk {
		r |= PauseDisk
	}
	if Reason(b.alarm.Swap(uint32(r))) == r {
		return
	}
	b.connMu.Lock()
	conns := make([]*Conn, 0, len(b.conns))
	for c := range b.conns {
		conns = append(conns, c)
	}
	b.connMu.Unlock()
	for _, c := range conns {
		c.heed(false)
	}
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
