package broker

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/broker/queue"
)

// Browsing: an operator looks at a queue's messages, and nothing changes by it. The lock of the queue is held for
// browseBatch messages at a time, bodies are read from the journal outside of it, and a Cursor names a message
// and not a number, so that pages fit together while others publish and consume.

// Stage is where a message of a queue is.
type Stage uint8

const (
	StageReady Stage = iota
	StageUnacked
	StageDelayed
)

var stageNames = [...]string{StageReady: "ready", StageUnacked: "unacked", StageDelayed: "delayed"}

func (s Stage) String() string { return stageNames[s] }

// ParseStage is the inverse of Stage.String.
func ParseStage(name string) (Stage, bool) {
	i := slices.Index(stageNames[:], name)
	return Stage(max(i, 0)), i >= 0
}

// Cursor is where a browser stands in one stage of a queue: behind one message.
type Cursor struct {
	Stage Stage
	place queue.Place // of unacked messages Seq alone
}

// Before is the cursor before all messages of a stage.
func Before(s Stage) Cursor {
	if s == StageUnacked {
		return Cursor{Stage: s}
	}
	return Cursor{Stage: s, place: queue.Before(s == StageDelayed)}
}

// BeforeSequence is a cursor before all ready messages whose sequence numbers are not below seq.
func BeforeSequence(seq uint64) Cursor {
	c := Before(StageReady)
	c.place.Key = max(seq, 1) - 1
	return c
}

// String is the cursor as ParseCursor reads it.
func (c Cursor) String() string {
	return fmt.Sprintf("%s.%d.%d.%d", c.Stage, c.place.Priority, c.place.Key, c.place.Seq)
}

// ParseCursor reads what String wrote.
func ParseCursor(s string) (c Cursor, err error) {
	parts := strings.Split(s, ".")
	bad := errors.New("this is no cursor that the broker gave")
	if len(parts) != 4 {
		return c, bad
	}
	stage, ok := ParseStage(parts[0])
	priority, e1 := strconv.ParseUint(parts[1], 10, 8)
	key, e2 := strconv.ParseUint(parts[2], 10, 64)
	seq, e3 := strconv.ParseUint(parts[3], 10, 64)
	if !ok || e1 != nil || e2 != nil || e3 != nil {
		return c, bad
	}
	return Cursor{stage, queue.Place{Delayed: stage == StageDelayed, Priority: uint8(priority), Key: key, Seq: seq}}, nil
}

// Browsed is one message as a browser sees it. Msg is valid during the call that shows it, nil where its record
// cannot be read.
type Browsed struct {
	Stage       Stage
	Seq         uint64 // the queue's own number of it
	Msg         *message.Message
	Size        int   // body bytes
	Since       int64 // Unix ms: in the queue, or due, since then; 0: not known
	Expiry, Due int64 // Unix ms, 0 for none
	Priority    uint8
	Deliveries  int // times it came back
	Redelivered bool
	Holder      *Holder // of an unacked message

	place queue.Place // unless it is unacked

	pos uint64   // of its record, where Msg is not in memory
	ch  *Channel // of Holder
}

// Holder is who has an unacked message.
type Holder struct {
	Connection *ConnInfo
	User       string
	Channel    uint16
	Consumer   string // its tag, "" for a get
	Tag        uint64 // of the delivery
	At         int64  // of the delivery, Unix ms
}

// Browse says what to look at.
type Browse struct {
	Queue string
	From  Cursor
	Skip  uint64  // messages passed over first, without looking at them
	Match *Filter // nil: all
	Limit int     // messages to be shown at most
	// Scan bounds how many are looked at, Time for how long; 0: as many and as long as it takes.
	Scan int
	Time time.Duration
	// Sequences are those wanted, by Browsed.Seq; nil: all.
	Sequences map[uint64]struct{}

	unread bool // bodies are read only if Match asks for them
}

// Page is how a Browse ended.
type Page struct {
	Next    Cursor // behind the last message that was looked at
	More    bool   // there may be others behind it
	Scanned int    // messages looked at
	Shown   int
}

const (
	// browseBatch is how many messages are looked at with the queue's lock held.
	browseBatch = 256
	// lookBatch is how many deliveries of a channel are looked at with its outbox locked.
	lookBatch = 16 << 10
)

// Browse shows the messages behind a cursor, one by one, until each says that it has enough or a limit is reached.
// A message that leaves the queue meanwhile is not shown. Errors: AccessRefused (read permission), NotFound,
// ResourceLocked.
func (c *Conn) Browse(a *Browse, each func(m *Browsed) (more bool)) (Page, *Error) {
	q, err := c.readable(a.Queue)
	if err != nil {
		return Page{Next: a.From}, err
	}
	return q.browse(a, each), nil
}

func (q *Queue) browse(a *Browse, each func(m *Browsed) (more bool)) Page {
	p := Page{Next: a.From, More: true}
	began := time.Now()
	skip := a.Skip
	var list []Browsed
	var cursors []Cursor
	for p.More {
		list, cursors = list[:0], cursors[:0]
		var more bool
		if a.From.Stage == StageUnacked {
			list, cursors, more = q.browseUnacked(p.Next, list, cursors)
		} else {
			list, cursors, more = q.browseQueued(p.Next, list, cursors)
		}
		enough := false
		for i := range list {
			m := &list[i]
			if enough {
				m.release()
				continue
			}
			p.Next, p.More = cursors[i], more || i+1 < len(list)
			if skip > 0 {
				skip--
				m.release()
				continue
			}
			p.Scanned++
			if q.matches(m, cursors[i], a) {
				p.Shown++
				enough = !each(m)
			}
			m.release()
			enough = enough || p.Shown == a.Limit || p.Scanned == a.Scan || a.Time > 0 && p.Scanned%64 == 0 && time.Since(began) > a.Time
		}
		if enough {
			return p
		}
		p.More = more
	}
	return p
}

// matches reads the message, if it has to be, and reports whether it is still there and the filter wants it.
func (q *Queue) matches(m *Browsed, at Cursor, a *Browse) bool {
	if a.Sequences != nil {
		if _, wanted := a.Sequences[m.Seq]; !wanted {
			return false
		}
	}
	if m.Msg == nil && !(a.unread && a.Match == nil) && !q.read(m, at) {
		return false
	}
	return a.Match == nil || a.Match.matches(q.b, m)
}

// readable finds a queue that the user may read.
func (c *Conn) readable(name string) (*Queue, *Error) {
	if e := c.allowQueue(rightRead, name); e != nil {
		return nil, e
	}
	return c.queue(name)
}

// browseQueued adds the ready or delayed messages behind a cursor, with a reference each where they are in memory.
func (q *Queue) browseQueued(at Cursor, list []Browsed, cursors []Cursor) ([]Browsed, []Cursor, bool) {
	entries := make([]queue.Entry, 0, browseBatch)
	q.mu.Lock()
	place := at.place
	more := !q.deleted && q.sm.Browse(&place, browseBatch, &entries)
	for i := range entries {
		list = append(list, look(&entries[i]))
	}
	q.mu.Unlock()
	for i := range entries {
		cursors = append(cursors, Cursor{at.Stage, entries[i].Place(at.Stage == StageDelayed)})
		list[i].Stage, list[i].place = at.Stage, cursors[i].place
	}
	return list, cursors, more
}

// look is what an entry says, with a reference of its message. Whatever lock keeps it in place is held.
func look(e *queue.Entry) Browsed {
	m := Browsed{
		Seq: e.Seq, Msg: e.Msg, Size: int(e.Size), Expiry: e.Expiry, Due: e.Due, Priority: e.Priority,
		Deliveries: int(e.Deliveries), Redelivered: e.Redelivered, pos: e.Position(),
	}
	if m.Msg != nil {
		m.Msg.Retain(1)
		m.Since = since(m.Msg.Taken, e.Due)
	}
	return m
}

// since is from when on a message counts as waiting: from its arrival, or from when it was due.
func since(taken, due int64) int64 {
	if taken == 0 {
		return 0
	}
	return max(taken, due)
}

func (m *Browsed) release() {
	if m.Msg != nil {
		m.Msg.Release()
		m.Msg = nil
	}
}

// read reads a message from the journal. False: it has left where it was. Msg stays nil when it is there
// and cannot be read.
func (q *Queue) read(m *Browsed, at Cursor) (there bool) {
	const tries = 3 // it may be moved by a compaction in between
	for range tries {
		msg, err := q.b.load(m.pos)
		if err == nil {
			m.Msg, m.Since = msg, since(msg.Taken, m.Due)
			return true
		}
		pos, there := q.lookAgain(m, at)
		if !there {
			return false
		}
		if pos == m.pos {
			q.b.log.Error("a message cannot be shown: its record cannot be read", "queue", q.name, "vhost", q.vhost,
				"seq", m.Seq, "position", m.pos, "error", err)
			return true
		}
		m.pos = pos
	}
	return true
}

// lookAgain tells where the record of a message that was seen at a cursor is now.
func (q *Queue) lookAgain(m *Browsed, at Cursor) (pos uint64, there bool) {
	if m.ch != nil {
		m.ch.peer.Lock()
		defer m.ch.peer.Unlock()
		i := m.ch.unacked.find(m.Holder.Tag)
		if i < 0 {
			return 0, false
		}
		s := m.ch.unacked.at(i)
		return s.e.Position(), s.q == q
	}
	place := at.place
	if place.Delayed {
		place.Seq--
	} else {
		place.Key--
	}
	var found []queue.Entry
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.deleted {
		q.sm.Browse(&place, 1, &found)
	}
	if len(found) == 0 || found[0].Seq != m.Seq {
		return 0, false
	}
	return found[0].Position(), true
}

// heldRef names an unacked message of a queue.
type heldRef struct {
	ch       *Channel
	tag, seq uint64
	at       int64 // of its delivery
}

func (r heldRef) bySeq(o heldRef) int { return cmp.Compare(r.seq, o.seq) }

func (r heldRef) byAge(o heldRef) int {
	return cmp.Or(cmp.Compare(r.at, o.at), cmp.Compare(r.seq, o.seq))
}

// heldRefs finds the first limit of the queue's unacked messages, in an order, that keep wants. It looks at all
// unacked messages of the vhost's channels, each channel locked for lookBatch of them at a time.
func (q *Queue) heldRefs(limit int, order func(a, b heldRef) int, keep func(heldRef) bool) (refs []heldRef, more bool) {
	b := q.b
	b.census.mu.Lock()
	var open []*Channel
	for ch := range b.census.channels {
		if ch.conn.vhost.name == q.vhost {
			open = append(open, ch)
		}
	}
	b.census.mu.Unlock()
	prune := func() {
		slices.SortFunc(refs, order)
		if len(refs) > limit {
			refs, more = refs[:limit], true
		}
	}
	for _, ch := range open {
		ch.eachHeld(func(s *slot) {
			r := heldRef{ch, s.tag, s.e.Seq, s.at}
			switch {
			case s.q != q || !keep(r):
			case len(refs) == limit && more && order(r, refs[limit-1]) > 0: // refs are in order
			default:
				if refs = append(refs, r); len(refs) >= 2*limit {
					prune()
				}
			}
		})
	}
	prune()
	return refs, more
}

// eachHeld calls f for each unacked delivery of the channel, with the Peer locked.
func (ch *Channel) eachHeld(f func(*slot)) {
	next := uint64(0)
	for done := false; !done; {
		ch.peer.Lock()
		u := &ch.unacked
		i := u.from(next)
		end := min(u.n, i+lookBatch)
		for ; i < end; i++ {
			if s := u.at(i); s.q != nil {
				f(s)
			}
			next = u.at(i).tag + 1
		}
		done = end == u.n
		if ch.peer.Unlock() {
			panic("BUG: broker: looking at unacked messages staged bytes")
		}
	}
}

// show is the unacked message that r names, with a reference if it is in memory; false: it was settled.
func (r heldRef) show(q *Queue) (m Browsed, there bool) {
	ch := r.ch
	ch.peer.Lock()
	defer ch.peer.Unlock()
	i := ch.unacked.find(r.tag)
	if i < 0 || ch.unacked.at(i).q != q {
		return m, false
	}
	s := ch.unacked.at(i)
	m = look(&s.e)
	m.Stage, m.ch = StageUnacked, ch
	m.Holder = &Holder{Connection: &ch.conn.info, User: ch.conn.User(), Channel: ch.number, Tag: s.tag, At: s.at}
	if s.c != nil {
		m.Holder.Consumer = s.c.Tag
	}
	return m, true
}

// browseUnacked is browseQueued for unacked messages, in order of Seq.
func (q *Queue) browseUnacked(at Cursor, list []Browsed, cursors []Cursor) ([]Browsed, []Cursor, bool) {
	refs, more := q.heldRefs(browseBatch, heldRef.bySeq, func(r heldRef) bool { return r.seq > at.place.Seq })
	for _, r := range refs {
		if m, there := r.show(q); there {
			list = append(list, m)
			cursors = append(cursors, Cursor{StageUnacked, queue.Place{Seq: r.seq}})
		}
	}
	return list, cursors, more
}

// Unacked shows the unacked messages of a queue, those first that were delivered first, and limit at most, without
// reading what is not in memory. Errors as Browse's.
func (c *Conn) Unacked(name string, limit int, each func(m *Browsed)) *Error {
	q, err := c.readable(name)
	if err != nil {
		return err
	}
	refs, _ := q.heldRefs(limit, heldRef.byAge, func(heldRef) bool { return true })
	for _, r := range refs {
		if m, there := r.show(q); there {
			each(&m)
			m.release()
		}
	}
	return nil
}
