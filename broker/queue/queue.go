// Package queue is one queue as a state machine: ready messages, unacked deliveries,
// consumers, limits.
//
//	Publish ───────> ready ──Dispatch, Get──> unacked ──Ack──> gone
//	   └─> delayed ───^ ^ │                      │
//	                    │ └─> Dead: expired,     │
//	                    │     over a limit       │
//	                    └─────── Requeue ────────┘──> Dead: delivery limit
//
// A Queue has no goroutine, lock, clock, randomness or I/O. Its owner holds the queue's mutex
// around every call, passes the time (Unix ms) and the journal's committed position in, and
// carries out the Effects that the call appended: sends what is in Deliver, dead-letters or
// drops what is in Dead. All methods are for the holder of that mutex only.
//
// # What the owner does after a batch
//
//	Publish... Ack... Requeue...          any number of them
//	for q.Dispatch(now, committed, ...)   while it says more, outside the lock now and then
//	q.NextExpiry()                        arm the queue's one timer, which calls Expire
//	q.Waiting(committed)                  Dispatch again after the next commit
//
// # Order
//
// Within a priority level messages leave in publish order. A requeued message goes back to its
// original place. Nothing overtakes the message that is next: when that one waits for the
// journal, everything behind it waits too, lower levels included.
//
// A message with a delay becomes ready at its due time, as if it were published then: behind
// everything that is ready, those due in order of due time, then of publishing. It stays delayed
// while its record is not committed.
//
// # Memory
//
// A queue takes memory for what it holds only: 56 bytes for an entry beside its message. PageOut
// leaves journaled messages to the journal, and their entries then take 1 to 8 bytes, or up to 12
// where delays are mixed.
//
// # Messages in transit
//
// RabbitMQ hands a message straight to a ready consumer and then applies neither the length
// limits nor the time to live. Here a persistent message has to wait for the journal first, and a
// batch is published before it is dispatched. So a run of messages that found the queue empty
// and a consumer ready is in transit: it leaves in publish order, whatever the priorities, and neither
// expires nor is dropped until Dispatch finds that no consumer takes it after all.
package queue

import (
	"math"
	"unsafe"

	"github.com/firemq/firemq/broker/message"
)

// Overflow says what a full queue does (x-overflow).
type Overflow uint8

const (
	DropHead         Overflow = iota // drop or dead-letter from the head after the enqueue
	RejectPublish                    // refuse the publish before the enqueue
	RejectPublishDLX                 // refuse it and dead-letter the refused message
)

// None marks a limit that is not set in Config.
const None = -1

// Config is what x-arguments and policies make of a queue.
type Config struct {
	MessageTTL   int64 // ms, None: messages do not expire
	MaxLength    int64 // ready messages, None: no limit
	MaxBytes     int64 // body bytes of ready messages, None: no limit
	MaxPriority  int   // highest priority up to 255, None: a plain queue
	Overflow     Overflow
	SingleActive bool // x-single-active-consumer
	// ExpireAnywhere lets messages expire behind others that stay (x-expire-anywhere).
	ExpireAnywhere bool
	// Fleeting: nothing becomes of messages that expire, and the MessageTTL is 0. One that nobody takes at once then
	// leaves at once, even behind others that stay, as in RabbitMQ.
	Fleeting bool
	// OfferFirst: DropHead limits apply to what came back, and to all before it, only once no consumer takes it, as in
	// RabbitMQ's quorum queues.
	OfferFirst    bool
	DeliveryLimit int64 // redeliveries until a message is dead-lettered, None: no limit
	Expires       int64 // ms of disuse until the queue is deleted, None: never; the owner acts on it
}

// Plain is the Config of a queue without arguments.
var Plain = Config{MessageTTL: None, Expires: None, MaxLength: None, MaxBytes: None, MaxPriority: None, DeliveryLimit: None}

// Entry is one message in one queue. It travels by value: into the queue, out to a consumer,
// and back with Ack or Requeue. With it travels one reference of Msg.
type Entry struct {
	Msg         *message.Message // nil while it is only in the journal (see PageOut)
	Seq         uint64           // the queue's own sequence number, from 1 in publish order
	Pos         uint64           // journal position; 0: Msg knows it (see Position)
	Expiry      int64            // Unix ms at which it expires at the head, 0: never
	Due         int64            // Unix ms before which it is not ready, 0: it has no delay
	Lag         uint32           // once it was due: by how much it goes behind its Seq (see rank)
	Size        uint32           // body bytes
	Deliveries  uint16           // times it came back by Requeue; stays at its maximum
	Priority    uint8            // already capped to MaxPriority
	Redelivered bool
	Journaled   bool // it is in the journal for this queue: handed out only once committed
	Transient   bool // Journaled, for want of memory: it is not there after a restart
}

// rank is a message's place among the ready ones of its priority, lowest first: its Seq, or where
// the numbering stood when its delay was over. Behind more than four billion others it is too low.
func (e *Entry) rank() uint64 { return e.Seq + uint64(e.Lag) }

// Receiver is the way to a consumer's connection, implemented by the owner of the queue.
type Receiver interface {
	// Reserve asks whether the consumer may get one more delivery beside the queue's own
	// limits (outbox below its high-water mark, channel-wide prefetch) and takes that place.
	// It is called with the queue's lock held, must not block and may take only a leaf lock.
	//
	// Dispatch asks it last: true means that the delivery follows. After false the consumer
	// is parked: passed over, and not asked again, until Wake.
	Reserve() bool

	// Room tells how many deliveries Reserve would grant now; after none the consumer may be parked, as after
	// a Reserve that is false. Receivers with the same shared, if it is not nil, share that room. Called like
	// Reserve.
	Room() (n uint64, shared any)
}

// Unlimited is a Room without a limit.
const Unlimited = unlimited

// Consumer is one consumer of one queue. The exported fields are set before AddConsumer and
// immutable afterwards; the rest belongs to the queue. It is never added twice.
type Consumer struct {
	Receiver  Receiver
	NoAck     bool
	Exclusive bool
	Priority  int64  // x-priority: higher ones first
	Prefetch  uint32 // unacked deliveries at most, 0: no limit; nothing to a NoAck consumer
	Credited  bool   // deliveries are limited by granted credit (FMQ1) instead of Prefetch

	consumer
}

// Reason is why a message left a queue without being acked (the x-death reasons).
type Reason uint8

const (
	Rejected Reason = iota
	Expired
	MaxLen
	DeliveryLimit
)

// Reasons is how many Reasons there are.
const Reasons = int(DeliveryLimit) + 1

// Delivery is one message handed to one consumer. To a NoAck consumer it is final: the queue
// has forgotten the entry, and the owner settles it in the journal.
type Delivery struct {
	Consumer *Consumer
	Entry    Entry
}

// Dead is one message that left the queue unsettled; the owner dead-letters or drops it,
// settles it in the journal and releases it. Its record may be not yet appended. Seq 0 is a
// refused publish (RejectPublishDLX): it was never in the queue, and there is nothing to settle.
type Dead struct {
	Entry  Entry
	Reason Reason
}

// Effects collects what the owner must carry out, in order. The owner clears it with
// Reset and reuses it.
type Effects struct {
	Deliver []Delivery
	Dead    []Dead
}

// effectsKept is the most entries of which Reset keeps the memory.
const effectsKept = 4096

// Reset empties e for reuse and forgets the messages in it.
func (e *Effects) Reset() {
	e.Deliver = reset(e.Deliver)
	e.Dead = reset(e.Dead)
}

func reset[T any](s []T) []T {
	if cap(s) > effectsKept {
		return nil
	}
	clear(s)
	return s[:0]
}

// sweep is how many messages at most expire or are dropped in one call that has no limit of its
// own, so that a queue's lock is never held for a whole backlog. NextExpiry says when more are due.
const sweep = 1024

// Queue is one queue. See the package comment for who may call it.
//
// Invariants (checked by check in tests and race builds):
//   - every unsettled message is in exactly one of delays, ready and unacked, and counted there;
//   - within a priority level, ready is in order of rank, whatever was requeued;
//   - a consumer's inflight never exceeds its prefetch;
//   - the ring holds exactly the consumers that may take a message and are not parked.
type Queue struct {
	// What every message of a queue without priorities and limits needs comes first, up to what consumers begins with: see
	// HotBytes.
	nextSeq      uint64
	unacked      int
	unackedBytes int64
	// arrivals says in which order those in transit leave; nil for a plain queue.
	arrivals *arrivals
	delays   *delays // nil while there never was one
	closed   bool
	// transit: every ready message was published while a consumer was ready to take it and
	// nothing was before it that was not in transit too. Meaningless while ready is empty.
	transit bool
	// stranded: a message died because consumers had room only for those in transit before it. Once these are
	// handed out, the consumers have lost a turn to it.
	stranded bool
	cfg      Config
	ready    ready

	consumers consumers

	// beyond is what came in transit and found no room at a consumer, while bytes of a full queue are refused.
	beyond struct {
		n     uint64
		bytes int64
	}
	// soonest bounds the expiry of every ready message from below, 0 for none, while ExpireAnywhere;
	// before resume nobody looks for those that have expired.
	soonest, resume int64

	debug debug
}

// HotBytes is how much of a Queue, from its beginning on, the messages of most queues need: the owner of very many asks for
// it ahead.
const HotBytes = unsafe.Offsetof(Queue{}.consumers) + unsafe.Offsetof(consumers{}.n)

// Init makes an empty queue of a zero one, before anything else.
func (q *Queue) Init(cfg Config) {
	q.nextSeq = 1
	q.consumers.single = cfg.SingleActive
	if cfg.MaxPriority != None {
		cfg.MaxPriority = min(max(cfg.MaxPriority, 0), math.MaxUint8)
		q.ready.levels = newLevels(cfg.MaxPriority + 1)
		q.arrivals = new(arrivals)
	}
	q.configure(cfg)
}

func (q *Queue) configure(cfg Config) {
	if cfg.DeliveryLimit != None {
		// Deliveries counts no further than its maximum, which must exceed every limit.
		cfg.DeliveryLimit = min(cfg.DeliveryLimit, math.MaxUint16-1)
	}
	q.cfg = cfg
	q.beyond.n, q.beyond.bytes = 0, 0
}

// Publish enqueues m as the newest message and says which entry it became: Seq counts from 1
// up, Expiry is now, or the due time, plus the smaller of the queue's and the message's time to
// live. journaled
// says that its record for this queue is, or is about to be, appended to the journal: it is then
// handed out only once committed.
//
// When ok, the queue has taken one reference of m. Under DropHead the publish, or what was due by now, may have pushed
// the queue over its limits: the messages that had to go are in out.Dead, and so is what expired for it. Either
// may be m itself: without time to live, and without a consumer that takes it, it dies at once, unless it is
// behind others.
//
// A message with a delay takes part in DropHead limits when it is due; for the other modes delayed
// ones count as much as ready ones.
//
// When not ok, a full queue refused m: it has no place in the queue, the reference remains the
// caller's, and the owner nacks. RejectPublishDLX adds m, with a reference of its own, to
// out.Dead with Seq 0.
func (q *Queue) Publish(m *message.Message, journaled bool, now int64, out *Effects) (e Entry, ok bool) {
	if q.closed {
		panic("BUG: queue: publish to a closed queue")
	}
	if q.delays != nil {
		q.ripen(now, sweep, out) // what is due by now comes before m
	}
	size := len(m.Body())
	from := now
	if m.Delay > 0 {
		from = m.Due(now)
		e.Due = from
	}
	transit := e.Due == 0 && q.arrives()
	// Field by field: a literal would be made apart and copied.
	e.Msg, e.Size, e.Journaled, e.Transient = m, uint32(size), journaled, journaled && !m.Persistent
	e.Expiry = q.expiry(m, from)
	if q.cfg.MaxPriority != None {
		e.Priority = min(m.Priority, uint8(q.cfg.MaxPriority))
	}
	if q.cfg.Overflow != DropHead && q.refuses(int64(size), transit) {
		var fits bool
		if fits, transit = q.yield(int64(size), e.Due == 0, now, out); !fits {
			if q.cfg.Overflow == RejectPublishDLX {
				m.Retain(1)
				e.Journaled, e.Transient = false, false
				out.Dead = append(out.Dead, Dead{Entry: e, Reason: MaxLen})
			}
			q.checkNow()
			return Entry{}, false
		}
	}
	e.Seq = q.nextSeq
	q.nextSeq++
	if e.Due != 0 {
		q.delay().push(&e)
		q.checkNow()
		return e, true
	}
	if q.transit = transit; transit {
		if e.Expiry != 0 && q.strands(&e, now, out) {
			q.checkNow()
			return e, true
		}
		q.arrive(&e)
	} else if q.fleets(&e, now, out) {
		q.checkNow()
		return e, true
	}
	q.ready.push(&e)
	q.noteExpiry(&e)
	if !transit {
		q.fit(now, out)
	}
	q.checkNow()
	return e, true
}

// yield removes expired heads, which take nobody's place, until a message of size bytes that was refused fits in, and
// says whether that one, if it becomes ready at once, is in transit.
func (q *Queue) yield(size int64, atOnce bool, now int64, out *Effects) (fits, transit bool) {
	for q.due(now) {
		q.die(Expired, out)
		transit = atOnce && q.arrives()
		if !q.refuses(size, transit) {
			return true, transit
		}
	}
	return false, false
}

// arrives says whether a message that becomes ready now is in transit.
func (q *Queue) arrives() bool {
	return q.consumers.takers > 0 && (q.ready.n == 0 || q.transit)
}

// strands lets e go if it no longer has time and, arriving while others are in transit, finds no consumer with room
// beside them and nothing to wait behind: it would be the head of an empty queue, and die there at once.
func (q *Queue) strands(e *Entry, now int64, out *Effects) bool {
	n := uint64(q.ready.n)
	if !e.expired(now) || q.consumers.haveRoom(n+1) || !q.consumers.haveRoom(n) {
		return false
	}
	reason, _ := q.doom(e, now)
	out.Dead = append(out.Dead, Dead{Entry: *e, Reason: reason})
	if q.stranded = n > 0; !q.stranded {
		q.consumers.passOver()
	}
	return true
}

// fleets lets go e, which is not in transit, see Fleeting.
func (q *Queue) fleets(e *Entry, now int64, out *Effects) bool {
	if !q.cfg.Fleeting || !e.expired(now) {
		return false
	}
	q.offer()
	out.Dead = append(out.Dead, Dead{Entry: *e, Reason: Expired})
	return true
}

// offer passes the consumers over if none has room: each loses its turn to a message that comes, even to one that
// dies at once.
func (q *Queue) offer() {
	if q.consumers.turns > 0 && q.consumers.takers == 0 {
		q.consumers.passOver()
	}
}

// doom says whether e dies in an otherwise empty queue when no consumer takes it, and of what.
func (q *Queue) doom(e *Entry, now int64) (Reason, bool) {
	if q.cfg.Overflow == DropHead && (q.cfg.MaxLength == 0 || q.cfg.MaxBytes >= 0 && int64(e.Size) > q.cfg.MaxBytes) {
		return MaxLen, true
	}
	return Expired, e.expired(now)
}

// replay makes what is in transit enter the queue one by one, as it came: which of several priorities a limit lets go
// depends on what was there at the time. It says how many died.
func (q *Queue) replay(now int64, out *Effects) (dead int) {
	all := make([]Entry, 0, q.ready.n)
	for q.ready.n > 0 {
		all = append(all, *q.head())
		q.pop()
	}
	q.transit = false
	for i := range all {
		q.ready.requeue(&all[i])
		q.noteExpiry(&all[i])
		q.fit(now, out)
	}
	return len(all) - q.ready.n
}

// fit lets go what has to once a message has become ready that is not in transit: from the head until the
// queue is within its limits, then what has expired and is the head only now. So each message finds the queue as if
// it came alone.
func (q *Queue) fit(now int64, out *Effects) {
	q.offer()
	if q.trim(sweep, out) > 0 || q.ready.n == 1 {
		q.expire(now, sweep, out)
	}
}

// arrive notes that a message is in transit from now on. It is about to be ready.
func (q *Queue) arrive(e *Entry) {
	if q.cfg.MaxBytes >= 0 {
		q.noteBeyond(e)
	}
	if q.arrivals == nil {
		return
	}
	if q.ready.n == 0 {
		q.arrivals.reset()
	}
	q.arrivals.push(e.Priority)
}

func (q *Queue) noteBeyond(e *Entry) {
	if q.cfg.Overflow == DropHead {
		return
	}
	if q.ready.n == 0 {
		q.beyond.n, q.beyond.bytes = 0, 0
	}
	if !q.consumers.haveRoom(uint64(q.ready.n) + 1) {
		q.beyond.n++
		q.beyond.bytes += int64(e.Size)
	}
}

func (q *Queue) delay() *delays {
	if q.delays == nil {
		q.delays = new(delays)
	}
	return q.delays
}

// ripen makes at most limit delayed messages ready whose time has come. It says how many.
func (q *Queue) ripen(now int64, limit int, out *Effects) (n int) {
	for ; n < limit; n++ {
		next := q.delays.next()
		if next == nil || next.Due > now {
			break
		}
		e := *next
		q.delays.pop()
		// A number of its own says where it stands from now on.
		e.Lag = uint32(min(q.nextSeq-e.Seq, math.MaxUint32))
		q.nextSeq++
		if q.transit = q.arrives(); q.transit {
			if q.strands(&e, now, out) {
				continue
			}
			q.arrive(&e)
		} else if q.fleets(&e, now, out) {
			continue
		}
		q.ready.ripen(&e)
		q.noteExpiry(&e)
		if !q.transit {
			q.fit(now, out)
		}
	}
	return n
}

// expiry is the time at which m expires in this queue, 0 for never.
func (q *Queue) expiry(m *message.Message, now int64) int64 {
	ttl := m.Expiration
	if q.cfg.MessageTTL >= 0 && (ttl < 0 || q.cfg.MessageTTL < ttl) {
		ttl = q.cfg.MessageTTL
	}
	switch {
	case ttl < 0:
		return 0
	case ttl > math.MaxInt64-now:
		return math.MaxInt64
	}
	return now + ttl
}

// refuses says whether a message of size bytes would exceed a limit. What is in transit counts only
// as far as the consumers have no room for it; the message itself counts whoever is ready for it.
func (q *Queue) refuses(size int64, transit bool) bool {
	n, bytes := int64(q.ready.n)+1, q.ready.bytes+size
	maxLength, maxBytes := q.cfg.MaxLength, q.cfg.MaxBytes
	if q.delays != nil { // each has its place already
		if maxLength >= 0 {
			maxLength = max(maxLength-int64(q.delays.n), 0)
		}
		if maxBytes >= 0 {
			maxBytes = max(maxBytes-q.delays.bytes, 0)
		}
	}
	if limit := maxLength; limit >= 0 && n > limit {
		if limit == 0 || !transit || !q.consumers.haveRoom(uint64(n-limit)) {
			return true
		}
	}
	if limit := maxBytes; limit >= 0 && bytes > limit {
		if size > limit || !transit {
			return true
		}
		waiting := uint64(q.ready.n)
		stay := waiting - q.consumers.roomFor(waiting)
		// With other room than when they came, nobody knows what those that stay take: everything then.
		return stay > 0 && (stay != q.beyond.n || q.beyond.bytes+size > limit)
	}
	return false
}

// over says whether the ready messages exceed a limit that drops from the head.
func (q *Queue) over() bool {
	if q.cfg.Overflow != DropHead || q.ready.n == 0 {
		return false
	}
	return q.cfg.MaxLength >= 0 && int64(q.ready.n) > q.cfg.MaxLength ||
		q.cfg.MaxBytes >= 0 && q.ready.bytes > q.cfg.MaxBytes
}

// trim drops at most limit messages from the head until the queue is within its limits.
func (q *Queue) trim(limit int, out *Effects) (dropped int) {
	for dropped < limit && q.over() {
		q.die(MaxLen, out)
		dropped++
	}
	return dropped
}

// head is the message that leaves next, while there is one: those in transit leave as they came, whatever
// their priorities.
func (q *Queue) head() *Entry {
	if q.transit && q.arrivals != nil {
		return q.ready.levels.all[q.arrivals.first()].head()
	}
	return q.ready.head()
}

// pop removes the head.
func (q *Queue) pop() {
	if q.transit && q.arrivals != nil {
		q.ready.take(q.arrivals.first())
		q.arrivals.pop()
		return
	}
	q.ready.pop()
}

// die removes the head for the given reason.
func (q *Queue) die(r Reason, out *Effects) {
	out.Dead = append(out.Dead, Dead{Entry: *q.ready.head(), Reason: r})
	q.ready.pop()
}

// NextSeq is the sequence number of the next publish.
func (q *Queue) NextSeq() uint64 { return q.nextSeq }

// SetNextSeq continues the numbering after a recovery. It never goes back.
func (q *Queue) SetNextSeq(n uint64) { q.nextSeq = max(q.nextSeq, n) }

// Restore puts a recovered message into the queue; calls come in ascending Seq, before the first
// Publish, and Restored after the last one. Limits are not applied: the first Expire does that, which
// also makes ready what is due.
func (q *Queue) Restore(e Entry) {
	if q.cfg.MaxPriority == None {
		e.Priority = 0
	} else {
		e.Priority = min(e.Priority, uint8(q.cfg.MaxPriority))
	}
	q.nextSeq = max(q.nextSeq, e.Seq+1)
	if e.Due != 0 {
		q.delay().restore(&e)
		return
	}
	q.transit = false
	q.ready.restore(&e)
	q.noteExpiry(&e)
	q.checkNow()
}

// Restored ends a recovery.
func (q *Queue) Restored() {
	if q.delays != nil {
		q.delays.restored()
	}
	q.checkNow()
}

// BlockEntries is the number of entries in a block for RestoreBlock.
const BlockEntries = chunkEntries

// RestoreBlock is Restore for a block of BlockEntries entries at once, in the time of one: all of
// them redelivered and none delayed, first and last the Seq of both ends, bytes their size together. The queue keeps
// the block, has no priorities and is not empty, and an entry is restored after it. It reports false,
// having done nothing, when the queue cannot take it.
func (q *Queue) RestoreBlock(block []byte, first, last uint64, bytes int64) bool {
	if q.ready.levels != nil || q.ready.n == 0 {
		return false
	}
	q.ready.restoreBlock(block, first, bytes)
	q.soonest = 1
	q.nextSeq = max(q.nextSeq, last+1)
	q.transit = false
	return true
}

// waits says whether e may not be handed out because its record is not committed. A position of
// 0 means that the record is not even appended.
func waits(e *Entry, committed uint64) bool {
	if !e.Journaled || e.Msg == nil {
		return false
	}
	pos := e.Msg.Position()
	return pos == 0 || pos >= committed
}

// Waiting says whether the next message is only held up by the journal, or a delayed one is:
// Dispatch is worth another call after the next commit.
func (q *Queue) Waiting(committed uint64) bool {
	return q.ready.n > 0 && waits(q.head(), committed) || q.delays != nil && !q.delays.fresh.empty()
}

// Dispatch hands ready messages to consumers: the next message to the next consumer of the
// highest priority that has room. Heads that have expired, and those over a limit that nobody
// took, go to out.Dead. At most limit messages leave the queue; more says that this limit ended
// the call and another one would find work. It stops at a message that waits for the journal.
//
// Before that, delayed messages that are due become ready: 1,024 at most, then there is more.
func (q *Queue) Dispatch(now int64, committed uint64, limit int, out *Effects) (more bool) {
	if q.delays != nil {
		q.delays.settle(committed, sweep)
		more = q.ripen(now, sweep, out) == sweep || q.delays.settles(committed)
	}
	return q.dispatch(now, committed, limit, out) || more
}

func (q *Queue) dispatch(now int64, committed uint64, limit int, out *Effects) (more bool) {
	left := limit
	plain := q.arrivals == nil
	if plain {
		q.ready.plain.fifo.warm(0, warmAhead)
	}
	for q.ready.n > 0 {
		var e *Entry
		if plain {
			q.ready.plain.fifo.warm(warmAhead, 1)
			e = q.ready.plain.head()
		} else {
			e = q.head()
		}
		if e.Expiry != 0 && e.Expiry <= now && !q.transit && left > 0 {
			q.die(Expired, out)
			left--
			continue
		}
		c := q.consumers.pick()
		if c == nil {
			// What was in transit came one by one: a limit let one go, then what had expired behind it.
			if q.transit && q.arrivals != nil && q.ready.n <= left && q.over() {
				left -= q.replay(now, out)
			}
			q.transit = false
			for left -= q.expire(now, left, out); left > 0 && q.over(); left -= q.expire(now, left, out) {
				q.die(MaxLen, out)
				left--
			}
			more = left == 0 && (q.due(now) || q.over())
			break
		}
		if left == 0 {
			more = true
			break
		}
		if waits(e, committed) {
			break
		}
		if !c.Receiver.Reserve() {
			q.consumers.park(c)
			continue
		}
		out.Deliver = append(out.Deliver, Delivery{Consumer: c, Entry: *e})
		if !c.NoAck {
			c.inflight++
			q.unacked++
			q.unackedBytes += int64(e.Size)
			q.debug.take(c, e.Seq)
		}
		if plain {
			q.ready.pop()
		} else {
			q.pop()
		}
		q.consumers.took(c)
		left--
	}
	if q.stranded && q.ready.n == 0 {
		q.stranded = false
		q.consumers.passOver()
	}
	q.checkNow()
	return more
}

// Get takes the next message for a basic.get, which no prefetch limits and single active
// consumer does not forbid. It counts as unacked without a consumer: settle it with Ack or
// Requeue and a nil consumer, at once for a no-ack get. Heads that have expired go to out.Dead, 1,024 at most.
// ok is false when the queue is empty, or as good as that: more than those have expired, and Expire, for which NextExpiry
// calls, comes first.
//
// A message that waits for the journal is handed out too, even before its record is appended: a client that
// publishes and then gets must find its message, and what is confirmed may lie behind one that is not.
func (q *Queue) Get(now int64, out *Effects) (e Entry, ok bool) {
	if q.delays != nil {
		q.ripen(now, sweep, out)
	}
	if q.expire(now, sweep, out) == sweep && q.due(now) || q.ready.n == 0 {
		q.checkNow()
		return Entry{}, false
	}
	e = *q.head()
	q.pop()
	q.unacked++
	q.unackedBytes += int64(e.Size)
	q.debug.take(nil, e.Seq)
	q.checkNow()
	return e, true
}

// Keep counts a delivery to a NoAck consumer as unacked after all, because it could not be sent: settle it
// as after a Get, with a nil consumer.
func (q *Queue) Keep(e *Entry) {
	q.unacked++
	q.unackedBytes += int64(e.Size)
	q.debug.take(nil, e.Seq)
	q.checkNow()
}

// Ack settles an unacked entry: for an ack, and for a reject that does not requeue. c is the
// consumer it was delivered to, removed or not, or nil for a Get. The owner journals the
// settlement, dead-letters what was rejected and releases the message.
func (q *Queue) Ack(c *Consumer, e *Entry) {
	q.settle(c, e)
	q.checkNow()
}

func (q *Queue) settle(c *Consumer, e *Entry) {
	q.debug.give(c, e.Seq)
	q.unacked--
	q.unackedBytes -= int64(e.Size)
	if c != nil {
		c.inflight--
		q.consumers.freed(c)
	}
}

// Requeue puts an unacked entry back to its original position: by Seq within its priority level.
// It is Redelivered from then on and keeps its Expiry. c as in Ack. The entry dies instead when it
// came back more often than the delivery limit allows. Requeued ends a run of these.
func (q *Queue) Requeue(c *Consumer, e Entry, now int64, out *Effects) {
	if q.closed {
		panic("BUG: queue: requeue to a closed queue")
	}
	q.settle(c, &e)
	e.Redelivered = true
	if e.Deliveries < math.MaxUint16 {
		e.Deliveries++
	}
	switch {
	case q.cfg.DeliveryLimit != None && int64(e.Deliveries) > q.cfg.DeliveryLimit:
		out.Dead = append(out.Dead, Dead{Entry: e, Reason: DeliveryLimit})
	case q.ready.n > 0 && q.transit:
		// What is in transit counts as delivered already, so e meets an empty queue.
		reason, dies := q.doom(&e, now)
		if q.cfg.OfferFirst {
			reason, dies = Expired, e.expired(now)
		}
		if dies {
			out.Dead = append(out.Dead, Dead{Entry: e, Reason: reason})
			break
		}
		q.arrive(&e)
		q.ready.requeue(&e)
		q.noteExpiry(&e)
	default:
		q.transit = false
		q.ready.requeue(&e)
		q.noteExpiry(&e)
	}
	q.checkNow()
}

// Requeued applies DropHead limits to what came back, all of it at once as in RabbitMQ: 1,024 messages at most
// go, with OfferFirst none before Dispatch. Reject modes do not apply to it.
func (q *Queue) Requeued(out *Effects) {
	if !q.transit && !q.cfg.OfferFirst {
		q.trim(sweep, out)
	}
	q.checkNow()
}

// due says whether the head has expired.
func (q *Queue) due(now int64) bool {
	if q.ready.n == 0 || q.transit {
		return false
	}
	at := q.ready.head().Expiry
	return at != 0 && at <= now
}

// expire removes at most limit expired heads.
func (q *Queue) expire(now int64, limit int, out *Effects) (expired int) {
	for expired < limit && q.due(now) {
		q.die(Expired, out)
		expired++
	}
	return expired
}

// Expire makes ready the delayed messages that are due, then removes the heads that have expired and
// those over the limits: 1,024 at most of each, then NextExpiry says that more are due. A message
// behind one that has not expired stays, expired or not, unless ExpireAnywhere says that it goes, too:
// then at most 1,024 of those go.
func (q *Queue) Expire(now int64, out *Effects) {
	if q.delays != nil {
		q.ripen(now, sweep, out)
	}
	if !q.transit {
		n := q.expire(now, sweep, out)
		q.trim(sweep-n, out)
		q.expunge(now, sweep, out)
	}
	q.checkNow()
}

// NextExpiry is the Unix ms at which Expire should be called next: the expiry of the head, or about that
// of any message that may go, or the first due time, which all may have passed; 1 when the queue is over its limits; 0 when there
// is nothing to wait for. Any call can change it. One timer per queue is enough.
func (q *Queue) NextExpiry() int64 {
	at := q.headExpiry()
	if q.delays != nil {
		if e := q.delays.next(); e != nil {
			return earliest(at, e.Due)
		}
	}
	return at
}

func (q *Queue) headExpiry() int64 {
	switch {
	case q.ready.n == 0 || q.transit:
		return 0
	case q.over():
		return 1
	}
	return earliest(q.ready.head().Expiry, q.nextExpunge())
}

// Reconfigure applies new limits (a policy changed): at once to what is ready, 1,024 messages at
// most, then NextExpiry says that more have to go; a new time to live to later publishes only.
// MaxPriority and SingleActive are fixed at New and keep their value.
func (q *Queue) Reconfigure(cfg Config, now int64, out *Effects) {
	cfg.MaxPriority, cfg.SingleActive = q.cfg.MaxPriority, q.cfg.SingleActive
	if cfg.ExpireAnywhere && !q.cfg.ExpireAnywhere {
		q.soonest, q.resume = 1, 0 // nobody kept it
	}
	q.configure(cfg)
	q.Expire(now, out)
}

// Purge takes every ready and delayed message off the queue, at once however many there are. Unacked
// messages are untouched.
func (q *Queue) Purge() Backlog {
	b := q.detach()
	q.checkNow()
	return b
}

func (q *Queue) detach() Backlog {
	b := Backlog{q.ready.detach(), q.delays}
	q.delays = nil
	return b
}

// Close ends the queue for its deletion: it takes off every ready and delayed message, at once, and
// removes the consumers. Afterwards only Ack (for what is still unacked, which is thereby forgotten) and the
// counters may be called.
func (q *Queue) Close() Backlog {
	b := q.detach()
	for c := range q.consumers.all() {
		q.RemoveConsumer(c)
	}
	q.closed = true
	q.checkNow()
	return b
}

// AddConsumer registers c. The owner has made sure that no exclusive consumer forbids it. The
// first one of a single active consumer queue becomes the active one.
func (q *Queue) AddConsumer(c *Consumer) {
	if q.closed {
		panic("BUG: queue: consumer for a closed queue")
	}
	q.consumers.add(c)
	q.checkNow()
}

// RemoveConsumer ends c: it receives nothing more, what it holds unacked stays unacked. When it was
// the single active one, the next by priority, then by registration, is active at once: call
// Dispatch. Removing it again does nothing.
func (q *Queue) RemoveConsumer(c *Consumer) {
	q.consumers.remove(c)
	if q.consumers.takers == 0 {
		q.transit = false
	}
	q.checkNow()
}

// Grant adds n deliveries to the credit of a Credited consumer. Credit stops at 2^62.
func (q *Queue) Grant(c *Consumer, n uint64) {
	if !c.Credited {
		panic("BUG: queue: credit for a consumer that has none")
	}
	q.consumers.grant(c, n)
	q.checkNow()
}

// Wake lets Dispatch try a consumer again whose Receiver refused. The owner calls it, under the
// queue's mutex, whenever what Reserve looks at may have changed: the outbox drained, the
// channel has room, the consumer was started. It does nothing for a consumer that is not parked.
func (q *Queue) Wake(c *Consumer) {
	q.consumers.wake(c)
	q.checkNow()
}

// Resident is about the memory, in bytes, of the ready and delayed messages that the journal holds too.
func (q *Queue) Resident() int64 {
	if q.delays != nil {
		return q.ready.resident + q.delays.resident
	}
	return q.ready.resident
}

// IndexMemory is how many bytes the places of the ready and delayed messages take: what holds them, not the messages.
func (q *Queue) IndexMemory() (n int64) {
	for l := range q.ready.each() {
		for f := range l.fifos() {
			n += f.memory
		}
		n += int64(cap(l.back)) * int64(unsafe.Sizeof(Entry{}))
	}
	if q.delays != nil {
		n += q.delays.memory()
	}
	return n
}

// PageOut drops committed messages from memory, keeping their places: their entries come out
// with Msg nil and Pos set. The first ones up to keep bytes stay, those behind them go; requeued
// ones stay too (an owner who has no room for them requeues the entry with Msg nil and Pos set). Of
// those that were delayed, and of those that still are, half as many bytes stay.
// It looks at limit messages at most, never twice at the same, and says whether there are more:
// a call costs nothing when nothing was committed since the last one.
//
// The messages go to out with the reference that the queue had. While Resident is above its bound
// the owner calls this after publishes; it feels the bound as reads from the journal.
func (q *Queue) PageOut(keep int64, committed uint64, limit int, out *[]*message.Message) (more bool) {
	if q.delays != nil {
		q.delays.settle(committed, limit)
		more = q.delays.pageOut(keep/2, limit, out)
	}
	more = q.ready.pageOut(keep, committed, limit, out) || more
	q.checkNow()
	return more
}

// Len is the number of ready messages, Bytes the size of their bodies.
func (q *Queue) Len() int     { return q.ready.n }
func (q *Queue) Bytes() int64 { return q.ready.bytes }

// Delayed is the number of messages that are not ready yet, DelayedBytes the size of their bodies.
func (q *Queue) Delayed() int {
	if q.delays == nil {
		return 0
	}
	return q.delays.n
}

func (q *Queue) DelayedBytes() int64 {
	if q.delays == nil {
		return 0
	}
	return q.delays.bytes
}

// Unacked is the number of messages delivered or got and not yet settled, UnackedBytes the size
// of their bodies. Deliveries to NoAck consumers do not count.
func (q *Queue) Unacked() int        { return q.unacked }
func (q *Queue) UnackedBytes() int64 { return q.unackedBytes }

// Consumers is the number of consumers.
func (q *Queue) Consumers() int { return q.consumers.n }

// HasExclusive says whether one of them consumes exclusively.
func (q *Queue) HasExclusive() bool { return q.consumers.exclusive > 0 }

// Active is the single active consumer; nil when there is none, or the queue is not of that kind.
func (q *Queue) Active() *Consumer { return q.consumers.active }

// Inflight is the number of unacked deliveries of c.
func (q *Queue) Inflight(c *Consumer) uint64 { return c.inflight }
