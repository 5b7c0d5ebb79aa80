package broker

import (
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
)

// Head tells how long a queue's messages have waited.
type Head struct {
	// Oldest is since when the oldest ready message is ready, Unix ms; 0: none is, or it is not known, for a message
	// that was written to the journal by a version that did not note it.
	Oldest int64
	// Timestamp is the property of that name of the message that leaves next, in seconds.
	Timestamp    uint64
	HasTimestamp bool
}

// headNote is what is known of a message. It is kept because to know it may take a read from the journal, and
// metrics ask for it again and again.
type headNote struct {
	seq       uint64 // 0: of none
	taken     int64
	timestamp uint64
	stamped   bool
}

// Head looks at the first messages of the queue. It may read from the journal, once for a message.
func (q *Queue) Head() Head {
	head, oldest := q.heads()
	for _, n := range [...]*headPlace{&head, &oldest} {
		if n.pos != 0 {
			if m, err := q.b.load(n.pos); err == nil { // else it has left, or whoever takes it says what is wrong
				n.note = q.b.headNote(n.note.seq, m)
				m.Release()
				q.mu.Lock()
				*n.keep = n.note
				q.mu.Unlock()
			}
		}
	}
	return Head{since(oldest.note.taken, oldest.due), head.note.timestamp, head.note.stamped}
}

// headPlace is a message at the head with what is known of it, and where the rest is.
type headPlace struct {
	note headNote
	keep *headNote
	pos  uint64 // of its record, if that has to be read
	due  int64
}

func (q *Queue) heads() (head, oldest headPlace) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.deleted || q.sm.Len() == 0 {
		return head, oldest
	}
	return q.place(q.sm.Head(), &q.headNoted), q.place(q.sm.Oldest(), &q.oldestNoted)
}

// place finds out what is known of e. Lock held.
func (q *Queue) place(e *queue.Entry, noted *headNote) headPlace {
	p := headPlace{keep: noted, due: e.Due}
	switch {
	case noted.seq == e.Seq:
	case e.Msg != nil:
		*noted = q.b.headNote(e.Seq, e.Msg)
	default:
		p.note.seq, p.pos = e.Seq, e.Pos
		return p
	}
	p.note = *noted
	return p
}

func (b *Broker) headNote(seq uint64, m *message.Message) headNote {
	p := b.codecs[m.Encoding].Properties(m.Props())
	return headNote{seq, m.Taken, p.Timestamp, p.Has&table.HasTimestamp != 0}
}
