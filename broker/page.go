package broker

import (
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/broker/queue"
)

const (
	// queueResident is how many bytes of committed messages, with an allowance for each, a queue
	// keeps in memory. Above it all but the first queueKeep bytes are left to the journal; who
	// feels it is the consumer, whose deliveries are read back.
	queueResident = 8 << 20
	queueKeep     = 4 << 20
	// brokerResident is that of all queues together. Above it a queue that grows keeps nothing.
	brokerResident = 64 << 20
	// accountStep is how far a queue's share may have moved before the sum is told.
	accountStep = 64 << 10
	// pageBatch is how many messages are looked at with the queue's lock held.
	pageBatch = 16 << 10
)

// page leaves messages to the journal when the queue, or the broker, holds too much. Lock held.
func (q *Queue) page(t *turn) {
	held := q.sm.Resident()
	if d := held - q.resident; d >= accountStep || d <= -accountStep || held == 0 && d != 0 {
		q.b.resident.Add(d)
		q.resident = held
	}
	bounds := &q.b.opt.tuning
	keep := bounds.queueKeep
	switch {
	case q.b.spills():
		keep = 0
	case held > bounds.queueResident:
	case held > accountStep && q.b.resident.Load() > bounds.brokerResident:
		keep = 0
	default:
		return
	}
	before := len(t.paged)
	more := q.sm.PageOut(keep, q.b.committed(), pageBatch, &t.paged)
	if more && !q.waiting && !q.deleted {
		q.waiting = true
		q.b.done.again(q)
	}
	q.b.upkeep.paged.Add(int64(len(t.paged) - before))
}

// requeue puts an unacked entry back. While the queue is at its bound it goes without its body.
// Lock held.
func (q *Queue) requeue(t *turn, c *Consumer, e *queue.Entry) {
	if e.Journaled && e.Msg != nil && (q.sm.Resident() > q.b.opt.tuning.queueResident || q.b.resident.Load() > q.b.opt.tuning.brokerResident) {
		if pos := e.Position(); pos < q.b.committed() && pos != 0 {
			e.Pos = pos
			t.release(e)
		}
	}
	if e.Journaled && !q.b.counted.Load() {
		q.b.counted.Store(true)
	}
	q.sm.Requeue(c.state(), *e, t.now, &t.fx)
}

// load reads a message back from the journal with a reference of its own.
func (b *Broker) load(pos uint64) (*message.Message, error) {
	var m *message.Message
	err := b.journal.Read(pos, func(payload []byte) error {
		var err error
		m, err = decodeMessage(payload)
		return err
	})
	if err != nil {
		return nil, err
	}
	m.SetPosition(pos)
	return m, nil
}
