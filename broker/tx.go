package broker

import (
	"cmp"
	"math"
	"slices"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/journal"
)

// maxTx is how many publishes one transaction may hold; the client that goes on gets a resource error. What it
// settles is bounded as all unacked deliveries of the channel are, of which it is a part until the commit.
const maxTx = 1 << 20

const (
	// maxTxBytes bounds its publishes in the journal. The other half of a record is for what it
	// settles: more than ten million ranges, and should there be more, they are not atomic with it.
	maxTxBytes = journal.MaxRecord / 2
	maxTxTail  = 1 << 10
)

// transaction holds a channel's publishes until commit (0-9-1's tx class); its settlements are in Channel.inTx.
// Messages are routed when published. Owned by the connection's reader.
type transaction struct {
	pubs  []publish
	bytes int64 // what its publishes take in the journal
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
		ch.tx = new(transaction)
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
	t.spill = b.spills() && ch.conn.owes()
	for i := 0; i < len(tx.pubs); {
		j := i + runOf(tx.pubs[i:])
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
	t.spill = false
	tx.dropPublishes(ch)
	ch.peer.Lock()
	ch.settling, ch.inTx = ch.inTx, settlements{}
	ch.txOps.Store(0)
	ch.countAcks()
	ch.peer.Unlock()
	arrangeTx(ch.settling.list)
	ch.finish(math.MaxInt)
	pos := journal.Position(0)
	if t.batch != nil {
		pos = max(t.batch.append(t), t.batch.original)
		t.batch = nil
		b.committing.RUnlock()
	}
	if partial {
		return refuse(PreconditionFailed, "partial tx completion")
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
	ch.peer.Lock()
	ch.putBack()
	ch.peer.Unlock()
}

// putBack makes what the transaction took off the ring outstanding again. Peer locked.
func (ch *Channel) putBack() {
	n := int(ch.txOps.Load())
	if n == 0 {
		return
	}
	all := make([]slot, 0, n+ch.unacked.live)
	for i := range ch.inTx.list {
		all = append(all, ch.inTx.list[i].slot)
	}
	rings := []unacked{ch.unacked.takeAll()}
	for _, w := range ch.inTx.whole {
		rings = append(rings, w.left)
	}
	for i := range rings {
		for rings[i].trim(); rings[i].live > 0; {
			all = append(all, rings[i].pop())
		}
	}
	slices.SortFunc(all, func(a, b slot) int { return cmp.Compare(a.tag, b.tag) })
	for i := range all {
		s := &all[i]
		ch.unacked.push(s.tag, s.q, s.c, &s.e, s.at)
	}
	ch.inTx = settlements{}
	ch.txOps.Store(0)
	ch.lateFrom = 0 // one of them may be late
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

// addTxOp takes what o names off the ring until the commit carries it out, so that nothing else settles it. Error:
// PreconditionFailed (an unknown tag).
func (ch *Channel) addTxOp(o op) *Error {
	ch.peer.Lock()
	before := ch.unacked.live
	_, err := ch.resolve([]op{o}, &ch.inTx)
	ch.txOps.Add(int32(before - ch.unacked.live))
	ch.peer.Unlock()
	ch.failed = VerbNone // the error is the verb's own
	return err
}

// arrangeTx puts what a transaction settles in the order of RabbitMQ: neighbours with one fate are settled together.
func arrangeTx(list []settling) {
	for i := 0; i < len(list); {
		j := i + 1
		for j < len(list) && list[j].requeue == list[i].requeue && (list[j].verb == VerbAck) == (list[i].verb == VerbAck) {
			j++
		}
		arrange(list[i:j])
		list[i].apart = true
		i = j
	}
}
