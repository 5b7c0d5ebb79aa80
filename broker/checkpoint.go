package broker

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"

	"github.com/firemq/firemq/broker/dedup"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/journal"
)

// A checkpoint holds the places of all messages in durable queues, so that a start replays the
// journal's tail alone. Its state is part of the disk format, all integers uvarints:
//
//	2 (version), position, number of queues
//	for each: journal id, next sequence number, blocks of entries (queue.AppendBlock), an empty one
//	number of queues that de-duplicate
//	for each: journal id, keys (dedup.Window.Append)
//
// Version 1 ends before the last two.
//
// It is taken while the broker works, a queue at a time: each then has all records before the
// checkpoint's position applied, and some later ones, which replay applies again. Entries from that
// position on are left out when it is read. A message that has left its queue but is not settled in
// the journal yet is nowhere: so those that are on their way to a dead-letter exchange are waited
// for. Those that were acked need not come back.

const checkpointState = 2

const (
	// checkpointBytes is how much of the log is behind the last checkpoint, at least, when the next
	// one is written: what a start after a crash replays at most.
	checkpointBytes = 96 << 20
	// checkpointRatio is how many times the last checkpoint's size that has to be, so that writing
	// them is a small part of all writing.
	checkpointRatio = 8
	// captureTries is how often a queue is looked at until none of its messages is on its way.
	captureTries = 10_000
	// captureBatch is how many unacked messages are copied at a time, 72 bytes each.
	captureBatch = 1 << 14
)

var errBusy = errors.New("messages are on their way without a pause")

// checkpoint writes one and gives its position and the size of its state.
func (b *Broker) checkpoint() (pos journal.Position, size int64, err error) {
	c := b.journal.BeginCheckpoint()
	b.topo.RLock()
	queues := make([]*Queue, 0, len(b.byID))
	for _, q := range b.byID {
		if q.durable {
			queues = append(queues, q)
		}
	}
	b.topo.RUnlock()
	slices.SortFunc(queues, func(a, b *Queue) int { return cmp.Compare(a.id, b.id) })
	err = c.Save(func(w io.Writer) error {
		n := &counted{w: w}
		buf := bufio.NewWriter(n)
		head := binary.AppendUvarint(nil, checkpointState)
		head = binary.AppendUvarint(head, c.Position())
		head = binary.AppendUvarint(head, uint64(len(queues)))
		buf.Write(head)
		if err := save(buf, queues, c.Position()); err != nil {
			return err
		}
		if err := b.saveKeys(buf, queues, c.Position()); err != nil {
			return err
		}
		// A transaction takes effect in its queues before it is appended: all of it or nothing
		// of it may be in the checkpoint, so those that are under way are waited for.
		b.committing.Lock()
		err := buf.Flush()
		b.committing.Unlock()
		size = n.n
		return err
	})
	return c.Position(), size, err
}

type counted struct {
	w io.Writer
	n int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// save writes the places of the messages of queues, which are in order of their ids.
func save(w *bufio.Writer, queues []*Queue, before journal.Position) error {
	for range captureTries {
		var busy []*Queue
		for len(queues) > 0 {
			some := capture(queues, before)
			for i, c := range some {
				if c.busy {
					busy = append(busy, queues[i])
					continue
				}
				head := binary.AppendUvarint(nil, queues[i].id)
				w.Write(binary.AppendUvarint(head, c.next))
				for _, b := range c.blocks {
					w.Write(b)
				}
				if _, err := w.Write(queue.AppendBlock(nil, nil)); err != nil {
					return err
				}
			}
			queues = queues[len(some):]
		}
		if queues = busy; len(busy) == 0 {
			return nil
		}
		runtime.Gosched()
	}
	return errBusy
}

// saveKeys writes the keys of the queues that de-duplicate.
func (b *Broker) saveKeys(w *bufio.Writer, queues []*Queue, before journal.Position) error {
	n := 0
	var keys []byte
	for _, q := range queues {
		if err := q.settleKeys(); err != nil {
			return err
		}
		q.mu.Lock()
		if q.window != nil && !q.deleted {
			n++
			keys = q.window.Append(binary.AppendUvarint(keys, q.id), before)
		}
		q.mu.Unlock()
	}
	if n > 0 {
		b.journal.Keep(before) // without its segment it is not used
	}
	w.Write(binary.AppendUvarint(nil, uint64(n)))
	_, err := w.Write(keys)
	return err
}

// settleKeys waits until the window has been told the places of all records that are in the journal now.
func (q *Queue) settleKeys() error {
	q.mu.Lock()
	next := q.sm.NextSeq()
	q.mu.Unlock()
	for range captureTries {
		q.mu.Lock()
		settled := q.window == nil || !q.window.Unplaced(next)
		q.mu.Unlock()
		if settled {
			return nil
		}
		runtime.Gosched()
	}
	return errBusy
}

// captured are the places of a queue's messages.
type captured struct {
	blocks  [][]byte
	next    uint64
	busy    bool          // a message is on its way: nothing is captured
	unacked []queue.Entry // that are not in blocks yet
}

// capture collects the places of the messages of the first of queues, as many as are looked for together. They are locked
// meanwhile: what is packed is not copied.
func capture(queues []*Queue, before journal.Position) []captured {
	queues = queues[:lockTogether(queues)]
	all := make([]captured, len(queues))
	var holding []*Queue
	var places []*captured // of those that hold unacked messages
	for i, q := range queues {
		if all[i].busy = q.limbo > 0; !all[i].busy && !q.deleted && q.sm.Unacked() > 0 {
			holding, places = append(holding, q), append(places, &all[i])
		}
	}
	if len(holding) > 0 {
		n := held(holding, func(i int, s *slot) {
			c := places[i]
			if c.unacked = append(c.unacked, s.e); len(c.unacked) == captureBatch {
				c.pack(before)
			}
		})
		for i, q := range holding {
			places[i].busy = n[i] != q.sm.Unacked()
		}
	}
	for i, q := range queues {
		switch c := &all[i]; {
		case c.busy:
		case q.deleted:
			c.next = 1
		default:
			c.pack(before)
			c.ready(q, before)
			c.next = q.sm.NextSeq()
		}
		all[i].unacked = nil
		q.mu.Unlock()
	}
	return all
}

// pack adds what is unacked, a part of it at a time: of a million, a copy of all would take more than the broker may have
// left.
func (c *captured) pack(before journal.Position) {
	slices.SortFunc(c.unacked, bySeq)
	c.add(c.unacked, before)
	c.unacked = c.unacked[:0]
}

func bySeq(a, b queue.Entry) int { return cmp.Compare(a.Seq, b.Seq) }

// ready adds what is in q. Its lock is held.
func (c *captured) ready(q *Queue, before journal.Position) {
	for p := range q.sm.Pieces() {
		switch {
		case p.Block != nil:
			c.blocks = append(c.blocks, p.Block)
		case slices.IsSortedFunc(p.Entries, bySeq):
			c.add(p.Entries, before)
		default:
			requeued := slices.Clone(p.Entries)
			slices.SortFunc(requeued, bySeq)
			c.add(requeued, before)
		}
	}
}

// add adds those of entries, which are sorted, that were written before a position.
func (c *captured) add(entries []queue.Entry, before journal.Position) {
	part := make([]queue.Entry, 0, min(len(entries), openEntries))
	for _, e := range entries {
		if pos := e.Position(); !e.Journaled || pos == 0 || pos >= before {
			continue
		}
		if part = append(part, e); len(part) == openEntries {
			c.blocks = append(c.blocks, queue.AppendBlock(nil, part))
			part = part[:0]
		}
	}
	if len(part) > 0 {
		c.blocks = append(c.blocks, queue.AppendBlock(nil, part))
	}
}

// Checkpoint implements journal.Replay.
func (r *recovery) Checkpoint(state []byte) error {
	r.restored = true
	bad := false
	number := func() uint64 {
		v, n := binary.Uvarint(state)
		if n <= 0 {
			bad = true
			return 0
		}
		state = state[n:]
		return v
	}
	version := number()
	if version < 1 || version > checkpointState {
		return fmt.Errorf("its state has the version %d, this one reads up to %d", version, checkpointState)
	}
	before := number()
	var entries []queue.Entry
	for left := number(); left > 0 && !bad; left-- {
		id, next := number(), number()
		q := r.queues[id]
		for !bad {
			var err error
			var rest []byte
			if entries, rest, err = queue.DecodeBlock(entries[:0], state); err != nil {
				return err
			}
			block := state[:len(state)-len(rest)]
			if state = rest; len(entries) == 0 {
				break
			}
			if q != nil {
				r.adopt(q, block, entries, before)
			}
		}
		if q != nil {
			q.sort()
			q.unsorted = nil
			if next > 0 {
				q.maxSeq = max(q.maxSeq, next-1)
			}
		}
	}
	if version > 1 {
		for left := number(); left > 0 && !bad; left-- {
			q := r.queues[number()]
			rest, err := dedup.Read(state, func(s dedup.Saved) {
				if q == nil {
					return
				}
				if cfg := &q.q.settings.Load().Dedup; cfg.On {
					q.note(s, cfg)
					r.j.Keep(before)
				}
			})
			if err != nil {
				return err
			}
			state = rest
		}
	}
	if bad {
		return queue.ErrBlock
	}
	return nil
}

// adopt takes a block of a checkpoint as it is, or those of its entries that belong to it and have survived.
func (r *recovery) adopt(q *rebuilt, packed []byte, entries []queue.Entry, before journal.Position) {
	n := len(entries)
	if entries = slices.DeleteFunc(entries, func(e queue.Entry) bool { return e.Transient }); len(entries) == 0 {
		return
	}
	first, last := entries[0].Seq, entries[len(entries)-1].Seq
	b := &block{first: first, last: last, packed: packed, live: len(entries)}
	whole := len(entries) == n && n <= openEntries
	// Neighbours are mostly in one segment.
	from, sum := 0, int64(0)
	delayed := false
	for i := range entries {
		e := &entries[i]
		delayed = delayed || e.Due != 0
		if e.Pos >= before {
			whole = false
		}
		b.bytes += int64(e.Size)
		sum += weight(e.Size)
		if i+1 < len(entries) && r.j.SameSegment(e.Pos, entries[i+1].Pos) && e.Pos < before == (entries[i+1].Pos < before) {
			continue
		}
		if e.Pos < before && !r.j.Adopt(e.Pos, i+1-from, sum) {
			b.lost = true
		}
		from, sum = i+1, 0
	}
	if delayed {
		q.delayed = true
		for _, e := range entries {
			if e.Pos < before {
				e.Lag = 0
				q.unsorted = append(q.unsorted, e)
			}
		}
		if len(q.unsorted) >= maxUnsorted {
			q.sort()
		}
		return
	}
	s := q.stream(first)
	if !whole {
		for _, e := range entries {
			if e.Pos < before {
				s.push(e)
			}
		}
		return
	}
	if b := s.last(); b != nil {
		s.seal(b)
	}
	s.blocks = append(s.blocks, b)
}
