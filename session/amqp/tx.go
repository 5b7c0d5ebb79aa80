package amqp

import "github.com/firemq/firemq/frames/amqp"

// txSelect is tx.select.
func (ch *channel) txSelect(args []byte) {
	var m amqp.TxSelect
	if ch.s.decode(&m, args) && ch.ok(ch.bc.TxSelect(), m.ID()) {
		ch.reply(&amqp.TxSelectOk{})
	}
}

// txCommit is tx.commit; Committed answers it. Until then no other method is taken.
func (ch *channel) txCommit(args []byte) {
	var m amqp.TxCommit
	if !ch.s.decode(&m, args) {
		return
	}
	ch.committing.Store(true)
	if e := ch.bc.TxCommit(); e != nil {
		ch.committing.Store(false)
		ch.refused(e, m.ID())
	}
}

// Committed implements broker.Sink. The outbox is locked.
func (ch *channel) Committed() {
	ch.committing.Store(false)
	out := ch.s.out
	out.Put((&amqp.TxCommitOk{}).AppendFrame(out.Tail(amqp.FrameOverhead+4), ch.id))
}

// txRollback is tx.rollback.
func (ch *channel) txRollback(args []byte) {
	var m amqp.TxRollback
	if ch.s.decode(&m, args) && ch.ok(ch.bc.TxRollback(), m.ID()) {
		ch.reply(&amqp.TxRollbackOk{})
	}
}
