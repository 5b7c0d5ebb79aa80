package broker

import (
	"cmp"
	"slices"

	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/journal"
)

const (
	// lookRecords is how many records are looked at with a queue locked.
	lookRecords = 1024
	// moveRecords and moveBytes bound what is copied with the queues concerned locked.
	moveRecords = 64
	moveBytes   = 256 << 10
)

// moving is a batch of records of the oldest segment on their way to the journal's end.
type moving struct {
	records []movedRecord
	queues  map[uint64]*movedQueue
	order   []*movedQueue // by id, the order in which they are locked
}

type movedRecord struct {
	pos     journal.Position
	due     int64
	targets []journal.Target
	payload []byte
}

type movedQueue struct {
	q     *Queue
	moves []queue.Move // ascending (see compareMoves)
}

// compact copies what is live in the oldest segments forward for as long as that is worth it.
func (u *upkeep) compact() {
	for patient := false; ; patient = true {
		number, ok := u.b.journal.Wasteful(2)
		if !ok {
			// A segment that is about to be freed anyway is given some time.
			number, ok = u.b.journal.Wasteful(1)
			ok = ok && (patient || number == u.stuck)
		}
		if !ok || number == u.moved || !u.move(number) {
			return
		}
		// The segment goes when what was copied is safe. If it does not, what was on its way
		// between a channel and its queue is copied with a later attempt.
		u.moved = number
	}
}

// move copies the live messages of a segment forward. False: it had to stop.
func (u *upkeep) move(number uint64) bool {
	b := u.b
	for from := int64(0); ; {
		var found []movedRecord
		next, err := b.journal.Records(number, from, func(pos journal.Position, targets []journal.Target, payload []byte) bool {
			found = append(found, movedRecord{pos: pos, due: dueOf(payload), targets: slices.Clone(targets)})
			return len(found) < lookRecords
		})
		// Most are dead: what is not is read and looked at again.
		for live := b.moving(found).live(); len(live) > 0 && err == nil; {
			n, bytes := 0, 0
			for ; n < min(len(live), moveRecords) && bytes < moveBytes; n++ {
				r := &live[n]
				e := b.journal.Read(r.pos, func(payload []byte) error {
					r.payload = slices.Clone(payload)
					return nil
				})
				if e != nil {
					b.log.Error("a message's record cannot be copied forward", "position", r.pos, "error", e)
					r.targets = nil
				}
				bytes += len(r.payload)
			}
			err = b.move(b.moving(live[:n]))
			live = live[n:]
		}
		if err != nil {
			b.log.Warn("journal compaction stopped", "error", err)
			return false
		}
		if next == 0 {
			return true
		}
		select {
		case <-u.quit:
			return false
		default:
		}
		from = next
	}
}

// moving makes a batch of records, with the queues that still exist.
func (b *Broker) moving(records []movedRecord) *moving {
	m := &moving{records: records, queues: make(map[uint64]*movedQueue)}
	b.topo.RLock()
	defer b.topo.RUnlock()
	for i := range records {
		r := &records[i]
		r.targets = slices.DeleteFunc(r.targets, func(t journal.Target) bool { return b.byID[t.Queue] == nil })
		for _, t := range r.targets {
			mq := m.queues[t.Queue]
			if mq == nil {
				mq = &movedQueue{q: b.byID[t.Queue]}
				m.queues[t.Queue] = mq
				m.order = append(m.order, mq)
			}
			mq.moves = append(mq.moves, queue.Move{Seq: t.Seq, From: r.pos, Due: r.due})
		}
	}
	for _, mq := range m.order {
		slices.SortFunc(mq.moves, compareMoves)
	}
	slices.SortFunc(m.order, func(a, b *movedQueue) int { return cmp.Compare(a.q.id, b.q.id) })
	return m
}

// live gives the records with a target that is live at this moment.
func (m *moving) live() []movedRecord {
	find(m.order, false)
	return slices.DeleteFunc(m.records, func(r movedRecord) bool {
		return !slices.ContainsFunc(r.targets, func(t journal.Target) bool { return m.queues[t.Queue].at(t.Seq, r.pos).Found })
	})
}

func queuesOf(moved []*movedQueue) []*Queue {
	queues := make([]*Queue, len(moved))
	for i, mq := range moved {
		queues[i] = mq.q
	}
	return queues
}

// find is queue.Find for the ready and unacked messages of queues, which it locks, some at a time. Nothing of one that is
// deleted is found.
func find(moved []*movedQueue, relocate bool) {
	for queues := queuesOf(moved); len(queues) > 0; {
		n := lockTogether(queues)
		findLocked(moved[:n], relocate)
		for _, q := range queues[:n] {
			q.mu.Unlock()
		}
		queues, moved = queues[n:], moved[n:]
	}
}

// findLocked is find for queues that are all locked.
func findLocked(moved []*movedQueue, relocate bool) {
	var holding []*movedQueue
	for _, mq := range moved {
		if mq.q.deleted {
			continue
		}
		mq.q.sm.Find(mq.moves, relocate)
		if mq.q.sm.Unacked() > 0 {
			holding = append(holding, mq)
		}
	}
	if len(holding) > 0 {
		held(queuesOf(holding), func(i int, s *slot) { queue.Match(holding[i].moves, &s.e, relocate) })
	}
}

func (q *movedQueue) at(seq uint64, from journal.Position) *queue.Move {
	i, ok := slices.BinarySearchFunc(q.moves, queue.Move{Seq: seq, From: from}, compareMoves)
	if !ok {
		return nil
	}
	return &q.moves[i]
}

func compareMoves(a, b queue.Move) int {
	return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.From, b.From))
}

// move copies a batch, in two steps: with all its queues locked it appends copies of what is live,
// so that whatever settles one comes after it in the journal; when they are safe, each queue looks
// for its messages there. A message that was settled, or was on its way, meanwhile keeps its old
// place.
func (b *Broker) move(m *moving) error {
	last := b.copyLive(m)
	if last == 0 {
		return nil
	}
	if err := b.journal.Sync(last); err != nil {
		return err
	}
	var relocated []*movedQueue
	for _, mq := range m.order {
		copied := mq.moves[:0]
		for _, move := range mq.moves {
			if move.To != 0 {
				move.Found = false
				copied = append(copied, move)
			}
		}
		if mq.moves = copied; len(copied) > 0 {
			relocated = append(relocated, mq)
		}
	}
	find(relocated, true)
	for i := range m.records {
		r := &m.records[i]
		if len(r.targets) == 0 {
			continue
		}
		w := payloadWeight(r.payload)
		for _, t := range r.targets {
			switch move := m.queues[t.Queue].at(t.Seq, r.pos); {
			case move == nil:
			case move.Found:
				b.journal.Free(move.From, 1, w)
			default:
				b.journal.Free(move.To, 1, w)
			}
		}
	}
	return nil
}

// copyLive appends copies of the batch's live messages and gives the last one's position, 0 for
// none.
func (b *Broker) copyLive(m *moving) (last journal.Position) {
	// Nobody else locks two queues, so the order cannot lead to a deadlock.
	for _, mq := range m.order {
		mq.q.mu.Lock()
	}
	defer func() {
		for _, mq := range m.order {
			mq.q.mu.Unlock()
		}
	}()
	findLocked(m.order, false)
	if !slices.ContainsFunc(m.order, func(mq *movedQueue) bool {
		return slices.ContainsFunc(mq.moves, func(m queue.Move) bool { return m.Found })
	}) {
		return 0
	}
	b.journal.Lock()
	defer b.journal.Unlock()
	for i := range m.records {
		r := &m.records[i]
		targets := make([]journal.Target, 0, len(r.targets))
		for _, t := range r.targets {
			if m.queues[t.Queue].at(t.Seq, r.pos).Found {
				targets = append(targets, t)
			}
		}
		if len(targets) == 0 {
			continue
		}
		b.upkeep.copied.Add(1)
		last = b.journal.Move(targets, payloadWeight(r.payload), r.payload)
		for _, t := range targets {
			m.queues[t.Queue].at(t.Seq, r.pos).To = last
		}
	}
	return last
}

// payloadWeight is the weight of a message whose record is intact.
func payloadWeight(payload []byte) int64 {
	_, _, _, _, _, body, err := splitMessage(payload)
	if err != nil {
		panic("BUG: broker: " + err.Error())
	}
	return weight(uint32(len(body)))
}
