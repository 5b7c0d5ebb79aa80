package broker

import (
	"cmp"
	"maps"
	"slices"

	"github.com/firemq/firemq/broker/dedup"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/journal"
)

// A queue that de-duplicates has a window of the keys of the messages that it took. A publish with a
// key that is there is a repetition: it is counted and confirmed, not enqueued. The confirm waits until the
// original's record is safe, because it promises the same.
//
// Keys come back with the journal: from the records that a start replays, and before those from the
// checkpoint, which has no key whose record might be lost. Where keys outlive their messages, the journal
// keeps the records, and that checkpoint, until the next one (journal.Keep). So after a crash a key is known if and
// only if its message was safe, and a publisher that repeats what was not confirmed is neither
// refused what is lost nor served twice.

// verdict says why a queue did not take a message.
type verdict uint8

const (
	taken verdict = iota
	full
	early // a repetition of a message whose record another connection is about to append
)

// keysOf gives the keys of a run by what by names.
func (b *Broker) keysOf(t *turn, pubs []publish, by string) []dedup.Key {
	t.keys = grow(t.keys, len(pubs))
	for i := range pubs {
		m := pubs[i].msg
		codec := b.codecs[m.Encoding]
		switch {
		case by == dedup.MessageID:
			p := codec.Properties(m.Props())
			t.keys[i] = dedup.KeyOf(p.MessageID)
		case m.HasHeaders:
			t.headers = codec.Headers(t.headers[:0], m.Props())
			v, _ := t.headers.Get(by)
			t.keys[i] = dedup.KeyIn(v)
			clear(t.headers)
			t.headers = kept(t.headers)
		default:
			t.keys[i] = dedup.Key{}
		}
	}
	return t.keys
}

// ownSpan is a range of messages that a turn has put into a queue with a window.
type ownSpan struct {
	q        *Queue
	from, to uint64
}

// repeats looks for the original of a message of key k. verdict is early when nobody can say yet whether that is
// safe; then the message is refused, for its publisher to try again. q locked.
func (q *Queue) repeats(t *turn, k dedup.Key, first uint64) (repeated bool, v verdict) {
	o, known := q.window.Find(k, t.now)
	if !known {
		return false, taken
	}
	switch {
	case o.Pos == dedup.Never || o.Pos == 0 && (o.Seq >= first || t.owns(q, o.Seq)):
		// There is nothing to wait for, or it waits for the same record.
	case o.Pos == 0:
		return true, early
	default:
		t.original = max(t.original, o.Pos)
	}
	q.stats.Duplicate++
	return true, taken
}

// owns says whether the transaction that is being committed has put that message into q.
func (t *turn) owns(q *Queue, seq uint64) bool {
	return t.batch != nil && slices.ContainsFunc(t.batch.spans, func(s ownSpan) bool { return s.q == q && s.from <= seq && seq <= s.to })
}

// placed tells the windows where the records of their messages are. No lock held.
func placed(spans []ownSpan, pos journal.Position) {
	for _, s := range spans {
		s.q.mu.Lock()
		if s.q.window != nil {
			s.q.window.Appended(s.from, s.to, pos)
		}
		s.q.mu.Unlock()
	}
}

// rewindow makes the window follow new settings. Lock held.
func (q *Queue) rewindow(cfg dedup.Config, now int64) {
	q.dedups.Store(cfg.On)
	switch {
	case !cfg.On:
		q.window = nil
	case q.window == nil || !q.window.Configure(cfg, now):
		q.window = dedup.New(cfg)
	}
}

// remembered are the keys of a queue while the journal is replayed, by Seq.
type remembered map[uint64]dedup.Saved

// remember notes the key of a publish record.
func (r *recovery) remember(q *rebuilt, pos journal.Position, seq uint64, a message.Attributes, props []byte, moved bool) {
	cfg := &q.q.settings.Load().Dedup
	if !cfg.On || moved && !cfg.Present {
		return // a copy tells no more than the record that it was made of
	}
	if _, known := q.keys[seq]; known {
		return
	}
	m := message.New(a, nil, nil, props, 0)
	defer m.Release()
	if k := r.b.keysOf(&r.turn, []publish{{msg: m}}, cfg.By)[0]; k != (dedup.Key{}) {
		// Records have no time: it is remembered as if it were published now, longer rather than shorter.
		q.note(dedup.Saved{Seq: seq, Key: k, At: r.b.opt.Now()}, cfg)
		if !cfg.Present {
			r.j.Keep(pos)
		}
	}
}

// note adds a key. There are never more than twice as many as the window may hold.
func (q *rebuilt) note(s dedup.Saved, cfg *dedup.Config) {
	if q.keys == nil {
		q.keys = make(remembered)
	}
	q.keys[s.Seq] = s
	if len(q.keys) > 2*cfg.Size {
		all := q.keys.sorted()
		clear(q.keys)
		for _, s := range all[len(all)-cfg.Size:] {
			q.keys[s.Seq] = s
		}
	}
}

func (r remembered) sorted() []dedup.Saved {
	return slices.SortedFunc(maps.Values(r), func(a, b dedup.Saved) int { return cmp.Compare(a.Seq, b.Seq) })
}

// settled forgets the keys of messages that left a queue which remembers what it holds.
func (q *rebuilt) settled(from, to uint64) {
	switch {
	case len(q.keys) == 0 || !q.q.settings.Load().Dedup.Present:
	case to-from < uint64(len(q.keys)):
		for seq := from; seq <= to; seq++ {
			delete(q.keys, seq)
		}
	default:
		maps.DeleteFunc(q.keys, func(seq uint64, _ dedup.Saved) bool { return from <= seq && seq <= to })
	}
}

// restoreKeys hands a queue the keys that are left.
func (q *rebuilt) restoreKeys(now int64) {
	if q.q.window == nil {
		return
	}
	for _, s := range q.keys.sorted() {
		q.q.window.Restore(s, now)
	}
	q.keys = nil
}
