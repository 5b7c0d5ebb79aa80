package broker

import (
	"sync"

	"github.com/firemq/firemq/broker/dedup"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/journal"
)

// A turn is one goroutine's stretch of work: it collects what is better done once at the end,
// after every queue lock is given back: settlements for the journal, dead letters, and outboxes
// to flush. It belongs to one goroutine and is reused.
type turn struct {
	b   *Broker
	now int64 // Unix ms at the turn's start

	fx      queue.Effects
	dirty   []Peer             // outboxes this turn staged into first
	settled []span             // for the journal, in order
	dead    []deadItem         // left a queue unsettled, to be dead-lettered or dropped
	doomed  []*Queue           // auto-delete queues that lost their last consumer
	taps    []tap              // deliveries to copy to the firehose
	paged   []*message.Message // left to the journal, to be released
	trail   *trail             // nil without a Tracer

	// Scratch of deliver: who gets something, and what; the lists are lent to consumers for that long, so
	// that no queue and no consumer keeps one.
	served []*Consumer
	lists  [][]queue.Entry

	// batch collects the records of the transaction that is being committed, nil else.
	batch *txBatch

	// waits are queues whose waiting mark this turn has set, for the completer; waitFrom is the first record
	// that one of them waits for.
	waits    []*Queue
	waitFrom journal.Position

	// spill has publishes written to the journal that would be in memory alone, see Broker.spills.
	spill bool

	// Scratch of publish: journal targets and results, a row a message.
	targets []journal.Target
	counts  []int
	refused []refusal

	// Of publishes to queues that de-duplicate: their keys, what they put there in this run, and the last
	// position of an original that a repetition's confirm waits for.
	keys     []dedup.Key
	headers  table.Table
	spans    []ownSpan
	lasting  bool // one of these keys outlives its message
	original journal.Position
}

// refusal is the queue that did not take a message, and why.
type refusal struct {
	q   *Queue
	why verdict
}

// span is a range of settled sequence numbers in one queue, and where their records are.
type span struct {
	queue    uint64
	from, to uint64
	pos      journal.Position // of the records, one segment's worth at a time is merged
	n        int
	weight   int64 // see journal.Free
}

type deadItem struct {
	q *Queue
	queue.Dead
}

var turns = sync.Pool{New: func() any { return new(turn) }}

// newTurn lends a turn to a goroutine that has none of its own.
func (b *Broker) newTurn() *turn {
	t := turns.Get().(*turn)
	t.b, t.now = b, b.opt.Now()
	return t
}

func (t *turn) free() {
	t.end()
	turns.Put(t)
}

// lend gives an empty list for the deliveries of a consumer, see takeBack.
func (t *turn) lend() []queue.Entry {
	n := len(t.lists)
	if n == 0 {
		return nil // it grows to what is handed out at once: most connections send one message at a time
	}
	l := t.lists[n-1]
	t.lists = t.lists[:n-1]
	return l
}

// takeBack ends a loan.
func (t *turn) takeBack(l []queue.Entry) {
	clear(l)
	if len(t.lists) < listsKept {
		t.lists = append(t.lists, l[:0])
	}
}

// listsKept is how many lists a turn keeps for later, each of at most dispatchBatch entries, 7 KiB.
const listsKept = 8

// touch notes that p was staged into by this turn and must be flushed by it.
func (t *turn) touch(p Peer) { t.dirty = append(t.dirty, p) }

// settle notes that e is settled in q for good and gives its message back. q locked.
func (t *turn) settle(q *Queue, e *queue.Entry) {
	if e.Journaled {
		if q.durable && !e.Transient {
			q.persistent--
			q.persistentBytes -= int64(e.Size)
		}
		pos := e.Position()
		if n := len(t.settled); n > 0 {
			s := &t.settled[n-1]
			if s.queue == q.id && s.to+1 == e.Seq && s.pos>>segmentShift == pos>>segmentShift {
				s.to, s.n, s.weight = e.Seq, s.n+1, s.weight+weight(e.Size)
				t.release(e)
				return
			}
		}
		t.settled = append(t.settled, span{queue: q.id, from: e.Seq, to: e.Seq, pos: pos, n: 1, weight: weight(e.Size)})
	}
	t.release(e)
}

func (t *turn) release(e *queue.Entry) {
	if e.Msg != nil {
		e.Msg.Release()
		e.Msg = nil
	}
}

// segmentShift merges frees: records whose positions agree above it lie in one segment, because
// a segment is a power of two and at least 8 KiB (see journal.Options).
const segmentShift = 13

// end carries out what was collected. No lock is held.
func (t *turn) end() {
	for len(t.dead) > 0 || len(t.doomed) > 0 || len(t.taps) > 0 {
		t.copyTaps()
		t.bury()
		t.reap()
	}
	t.record()
	t.await()
	for i, m := range t.paged {
		m.Release()
		t.paged[i] = nil
	}
	t.paged = t.paged[:0]
	for i, p := range t.dirty {
		p.Flush()
		t.dirty[i] = nil
	}
	t.dirty = t.dirty[:0]
	if cap(t.targets) > 2*maxTargets {
		t.targets = nil // of one message to very many queues
	}
	t.now = 0
}

// appended notes that what queues in waits wait for is in the journal, at pos.
func (t *turn) appended(pos journal.Position) {
	if t.waitFrom == 0 {
		t.waitFrom = pos
	}
}

// await hands the queues that wait for the journal to the completer.
func (t *turn) await() {
	if len(t.waits) > 0 {
		t.b.done.awaitQueues(t.waitFrom, t.waits...)
		clear(t.waits)
		t.waits = kept(t.waits)
	}
	t.waitFrom = 0
}

// record writes the collected settlements to the journal.
func (t *turn) record() {
	if len(t.settled) == 0 {
		return
	}
	j := t.b.journal
	j.Lock()
	for i := 0; i < len(t.settled); {
		var s span
		s, i = t.settledRange(i)
		j.Settle(s.queue, s.from, s.to)
	}
	j.Unlock()
	t.freeSettled(len(t.settled))
}

// settledRange gives the span i, joined with those behind it that differ only by where their
// records are, and the index of the next one.
func (t *turn) settledRange(i int) (s span, next int) {
	s = t.settled[i]
	for i++; i < len(t.settled) && t.settled[i].queue == s.queue && t.settled[i].from == s.to+1; i++ {
		s.to = t.settled[i].to
	}
	return s, i
}

// freeSettled tells the journal that the messages of the first n spans are no longer needed: what
// settles them was appended.
func (t *turn) freeSettled(n int) {
	for _, s := range t.settled[:n] {
		t.b.journal.Free(s.pos, s.n, s.weight)
	}
	if t.settled = t.settled[:copy(t.settled, t.settled[n:])]; len(t.settled) == 0 {
		t.settled = kept(t.settled)
	}
}

// reap deletes the auto-delete queues whose last consumer went.
func (t *turn) reap() {
	for len(t.doomed) > 0 {
		q := t.doomed[len(t.doomed)-1]
		t.doomed = t.doomed[:len(t.doomed)-1]
		t.b.deleteQueue(q, t, nil)
	}
}
