package broker

import (
	"math"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/journal"
)

// maxTx is how many publishes and settlements one transaction may hold; the client that goes on
// gets a resource error.
const maxTx = 1 << 20

const (
	// maxTxBytes bounds its publishes in the journal. The other half of a record is for what it
	// settles: more than ten million ranges, and should there be more, they are not atomic with it.
	maxTxBytes = journal.MaxRecord / 2
	maxTxTail  = 1 << 10
)

// transaction holds a channel's publishes and settlements until commit (0-9-1's tx class). Messages
// are routed when published. Owned by the connection's reader.
type transaction struct {
	pubs  []publish
	ops   []op
	bytes int64 // what its publishes take in the journal
	// named are the single tags in ops, so that a second settlement of one is an error at once.
	named map[uint64]struct{}
}

// TxSelect makes the channel transactional; again is a no-op. Errors: PreconditionFailed in
// confirm mode.
func (ch *Channel) TxSelect() *Error {
	if e := ch.settleAndFlush(); e != nil {
		return e
	}
	if ch.confirms {
		return refuse(PreconditionFailed, "cannot switch from confirm to tx mode")
	}
	if ch.tx == nil {
		ch.tx = &transaction{named: make(map[uint64]struct{})}
		ch.peer.Lock()
		ch.mode = ModeTx
		ch.peer.Unlock()
	}
	return nil
}

// txBatch is what a commit appends to the journal as one record.
type txBatch struct {
	records  journal.Batch
	messages []*message.Message // by their number in records, each with a reference
	spans    []ownSpan          // as in turn, like the next two
	lasting  bool
	original journal.Position
}

// publish adds a run of messages and their targets, which are in t.
func (b *txBatch) publish(pubs []publish, t *turn) {
	n := len(pubs[0].queues)
	for i := range pubs {
		if t.counts[i] == 0 {
			continue
		}
		m := pubs[i].msg
		var head [headMax]byte
		b.records.Publish(t.targets[i*n:i*n+t.counts[i]], weight(uint32(len(m.Body()))), encodeHead(&head, m, t.now), m.Bytes())
		m.Retain(1)
		b.messages = append(b.messages, m)
	}
}

// append writes the batch and what the turn has settled to the journal, and gives the position to
// wait for, 0 for none.
func (b *txBatch) append(t *turn) (pos journal.Position) {
	taken := 0
	for taken < len(t.settled) && b.records.Len() < journal.MaxRecord-maxTxTail {
		var s span
		s, taken = t.settledRange(taken)
		b.records.Settle(s.queue, s.from, s.to)
	}
	if b.records.Parts() == 0 {
		return 0
	}
	j := t.b.journal
	j.Lock()
	pos = j.Append(&b.records)
	for i, m := range b.messages {
		m.SetPosition(b.records.Position(i))
	}
	if b.lasting {
		j.Keep(pos)
	}
	j.Unlock()
	t.freeSettled(taken)
	placed(b.spans, pos)
	for _, m := range b.messages {
		m.Release()
	}
	t.appended(pos)
	return pos
}

// TxCommit carries out the transaction: publishes, then settlements. In the journal they are one
// record, so that a crash leaves all of it or nothing; what it dead-letters follows. Sink.Committed
// comes when it is safe. Errors: PreconditionFailed (not transactional, or a queue refused a publish).
func (ch *Channel) TxCommit() *Error {
	if ch.tx == nil {
		return refuse(PreconditionFailed, "channel is not transactional")
	}
	tx, t, b := ch.tx, ch.conn.begin(), ch.conn.b
	t.record() // what was settled before is not part of it
	if b.journal != nil {
		t.batch = &txBatch{}
		b.committing.RLock()
	}
	for i := range tx.pubs {
		tx.pubs[i].seq = 0
	}
	ch.conn.carried(len(tx.pubs), t.now)
	partial := false
	for i := 0; i < len(tx.pubs); {
		j := i + 1
		for j < len(tx.pubs) && j-i < maxPublishBatch && sameRoute(&tx.pubs[i], &tx.pubs[j]) {
			j++
		}
		if b.opt.Tracer != nil {
			ch.beginSpans(t, tx.pubs[i:j])
		}
		ch.received(tx.pubs[i:j])
		var refused []refusal
		if allGone(tx.pubs[i].queues) {
			ch.unroutable(t, tx.pubs[i:j])
		} else {
			b.enqueue(t, tx.pubs[i:j])
			refused = t.refused
			for _, r := range t.refused {
				partial = partial || r.why != taken
			}
		}
		if b.opt.Tracer != nil {
			ch.endSpans(t, tx.pubs[i:j], refused)
		}
		i = j
	}
	tx.dropPublishes(ch)
	ch.txOps.Store(0)
	_, err := ch.resolve(tx.ops)
	tx.ops = tx.ops[:0]
	clear(tx.named)
	ch.finish(math.MaxInt)
	pos := journal.Position(0)
	if t.batch != nil {
		pos = max(t.batch.append(t), t.batch.original)
		t.batch = nil
		b.committing.RUnlock()
	}
	if partial {
		err = refuse(PreconditionFailed, "partial tx completion")
	}
	if err != nil {
		ch.failed = VerbNone
		return err
	}
	ch.peer.Lock()
	ch.pledge(pledge{pos: pos, tx: true})
	ch.peer.Unlock()
	ch.settleConfirms(t)
	ch.pushBack()
	return nil
}

// allGone reports whether none of the queues that a message was routed to is left.
func allGone(queues []*Queue) bool {
	for _, q := range queues {
		q.mu.Lock()
		deleted := q.deleted
		q.mu.Unlock()
		if !deleted {
			return false
		}
	}
	return true
}

// TxRollback forgets the transaction: publishes are dropped, deliveries are unacked again.
func (ch *Channel) TxRollback() *Error {
	if ch.tx == nil {
		return refuse(PreconditionFailed, "channel is not transactional")
	}
	ch.rollback()
	return nil
}

func (ch *Channel) rollback() {
	if ch.tx == nil {
		return
	}
	for i := range ch.tx.pubs {
		ch.tx.pubs[i].msg.Release()
	}
	ch.tx.dropPublishes(ch)
	ch.txOps.Store(0)
	ch.tx.ops = ch.tx.ops[:0]
	clear(ch.tx.named)
}

// dropPublishes forgets the publishes, whose references are given away.
func (tx *transaction) dropPublishes(ch *Channel) {
	ch.conn.Hold(-tx.bytes)
	clear(tx.pubs)
	tx.pubs, tx.bytes = kept(tx.pubs), 0
	ch.txPubs.Store(0)
}

func (tx *transaction) addPublish(ch *Channel, p publish) *Error {
	if len(tx.pubs) >= maxTx {
		p.msg.Release()
		return refuse(ResourceError, "transaction holds more than %d messages", maxTx)
	}
	size := journal.MessageSize(len(p.queues), headMax+len(p.msg.Bytes()))
	if tx.bytes+size > maxTxBytes {
		p.msg.Release()
		return refuse(ResourceError, "transaction holds more than %d bytes", maxTxBytes)
	}
	if e := ch.conn.Hold(size); e != nil {
		p.msg.Release()
		return e
	}
	tx.pubs = append(tx.pubs, p)
	if ch.conn.vhost.traced.Load() {
		ch.tapIn(ch.conn.begin(), tx.pubs[len(tx.pubs)-1:])
	}
	ch.txPubs.Store(int32(len(tx.pubs)))
	tx.bytes += size
	ch.conn.Publishing()
	return nil
}

func (tx *transaction) addOp(ch *Channel, o op) *Error {
	if len(tx.ops) >= maxTx {
		return refuse(ResourceError, "transaction holds more than %d settlements", maxTx)
	}
	if !o.multiple || o.tag != 0 {
		ch.peer.Lock()
		unknown := ch.unacked.find(o.tag) < 0
		ch.peer.Unlock()
		if _, again := tx.named[o.tag]; unknown || again && !o.multiple {
			return refuse(PreconditionFailed, "unknown delivery tag %d", o.tag)
		}
		tx.named[o.tag] = struct{}{}
	}
	tx.ops = append(tx.ops, o)
	ch.txOps.Store(int32(len(tx.ops)))
	return nil
}
