package broker

import (
	"bytes"

	"github.com/firemq/firemq/journal"
)

// A pledge is a run of publishes whose confirm is due once the journal has committed pos, or
// something else that a channel is told then. They are in the order of the verbs, and the queue of
// a channel is answered from its front; nothing is confirmed before an earlier publish of the channel.
type pledge struct {
	to     uint64           // the run's last sequence number
	pos    journal.Position // 0: nothing to wait for
	err    *Error           // the run is this one publish, refused
	tx     bool             // the end of a transaction instead of a publish
	answer []byte           // the answer to another verb instead of a publish
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
	if n := len(ch.wait); n > ch.waitHead && p.run() {
		if last := &ch.wait[n-1]; last.run() && p.pos <= last.pos {
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

// run says that it is a run of publishes that were taken.
func (p *pledge) run() bool { return p.err == nil && !p.tx && p.answer == nil }

// answer sends the confirms and answers that are due and reports whether others still wait, and
// whether the connection's last kept answer was among them. Peer locked.
func (ch *Channel) answer(committed journal.Position) (waiting, answered bool) {
	confirmed, answers := uint64(0), 0
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
		case p.answer != nil:
			ch.sink.Answer(p.answer)
			answers++
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
	return len(ch.wait) > 0, answers > 0 && ch.answered(answers)
}

// answered counts n kept answers that are sent, or never will be, and reports whether the
// connection has no others.
func (ch *Channel) answered(n int) bool {
	ch.kept.Add(int64(-n))
	return ch.conn.kept.Add(int64(-n)) == 0
}

// maxKept bounds the answers that wait on one channel: the session stops reading before it keeps
// more.
const maxKept = 4096

// Answer is called when a verb of the connection has succeeded, before its answer is sent. An answer
// promises that what the verb changed is on disk: until that is so, b, the encoded answer, is copied
// and kept, and Sink.Answer sends it, as it sends what is asked to be sent behind it. False: there is
// nothing to wait for, the session sends b itself.
func (ch *Channel) Answer(b []byte) (kept bool) {
	c := ch.conn
	pos := c.changed
	c.changed = 0
	if ch.kept.Load() == 0 && (pos == 0 || pos < c.b.committed()) {
		return false
	}
	c.kept.Add(1)
	ch.kept.Add(1)
	ch.peer.Lock()
	ch.pledge(pledge{pos: pos, answer: bytes.Clone(b)})
	ch.peer.Unlock()
	ch.settleConfirms(c.begin())
	ch.pushBack()
	return true
}

// Kept reports whether answers wait on the channel, Full whether they are as many as may. What is not
// to overtake them is to wait: see Peer.Answered. By the reader.
func (ch *Channel) Kept() bool { return ch.kept.Load() > 0 }
func (ch *Channel) Full() bool { return ch.kept.Load() >= maxKept }

// Kept reports whether answers wait on a channel of the connection. By the reader.
func (c *Conn) Kept() bool { return c.kept.Load() > 0 }

// settleConfirms answers what is due now and leaves the rest to the completer.
func (ch *Channel) settleConfirms(t *turn) {
	committed := ch.conn.b.committed()
	ch.peer.Lock()
	if ch.gone {
		ch.peer.Unlock()
		return
	}
	ch.report()
	waiting, answered := ch.answer(committed)
	await := waiting && !ch.awaiting
	if await {
		ch.awaiting = true
	}
	if ch.peer.Unlock() {
		t.touch(ch.peer)
	}
	if answered {
		ch.peer.Answered()
	}
	if await {
		ch.conn.b.done.awaitChannel(ch, committed)
	}
}
