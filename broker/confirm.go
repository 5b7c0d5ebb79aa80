package broker

import "github.com/firemq/firemq/journal"

// A pledge is a run of publishes whose confirm is due once the journal has committed pos.
// Runs are in publish order and their positions never fall, so the queue of a channel is answered
// from its front; nothing is confirmed before an earlier publish of the channel.
type pledge struct {
	to  uint64           // the run's last sequence number
	pos journal.Position // 0: nothing to wait for
	err *Error           // the run is this one publish, refused
	tx  bool             // the end of a transaction instead of a publish
}

// Confirms turns publisher confirms on. Errors: PreconditionFailed on a transactional channel.
func (ch *Channel) Confirms() *Error {
	if e := ch.settleAndFlush(); e != nil {
		return e
	}
	if ch.tx != nil {
		return refuse(PreconditionFailed, "cannot switch from tx to confirm mode")
	}
	ch.confirms = true
	ch.peer.Lock()
	ch.mode = ModeConfirm
	ch.peer.Unlock()
	return nil
}

// pledge adds a run to the confirms to be sent. Peer locked.
func (ch *Channel) pledge(p pledge) {
	if n := len(ch.wait); n > ch.waitHead && p.err == nil && !p.tx {
		if last := &ch.wait[n-1]; last.err == nil && !last.tx && (p.pos <= last.pos) {
			last.to = p.to
			return
		}
	}
	if ch.waitHead > 0 && len(ch.wait) == cap(ch.wait) {
		n := copy(ch.wait, ch.wait[ch.waitHead:])
		clear(ch.wait[n:])
		ch.wait, ch.waitHead = ch.wait[:n], 0
	}
	ch.wait = append(ch.wait, p)
}

// answer sends the confirms that are due and reports whether others still wait. Peer locked.
func (ch *Channel) answer(committed journal.Position) (waiting bool) {
	confirmed := uint64(0)
	due := ch.told
	say := func() {
		if due > ch.told {
			confirmed += due - ch.told
			ch.sink.Confirm(due, due > ch.told+1)
			ch.told = due
		}
	}
	for ch.waitHead < len(ch.wait) {
		p := &ch.wait[ch.waitHead]
		if p.pos != 0 && p.pos >= committed {
			break
		}
		switch {
		case p.tx:
			ch.sink.Committed()
		case p.err != nil:
			say()
			ch.sink.Nack(p.to, p.err)
			ch.told, due = p.to, p.to
		default:
			due = p.to
		}
		*p = pledge{}
		ch.waitHead++
	}
	say()
	if ch.waitHead == len(ch.wait) {
		ch.wait, ch.waitHead = ch.wait[:0], 0
	}
	ch.stats.Confirm += confirmed
	return len(ch.wait) > 0
}

// settleConfirms answers what is due now and leaves the rest to the completer.
func (ch *Channel) settleConfirms(t *turn) {
	committed := ch.conn.b.committed()
	ch.peer.Lock()
	if ch.gone {
		ch.peer.Unlock()
		return
	}
	ch.report()
	await := ch.answer(committed) && !ch.awaiting
	if await {
		ch.awaiting = true
	}
	if ch.peer.Unlock() {
		t.touch(ch.peer)
	}
	if await {
		ch.conn.b.done.awaitChannel(ch, committed)
	}
}
