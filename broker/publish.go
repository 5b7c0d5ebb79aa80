package broker

import (
	"bytes"
	"slices"
	"sync"
	"unsafe"

	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/broker/dedup"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/journal"
)

const (
	rightConfigure = auth.Configure
	rightWrite     = auth.Write
	rightRead      = auth.Read
)

// journalHigh is how many bytes may wait for the disk before publishers are no longer read; they
// are read again below half of it. With what a read brings in, it bounds the commit buffers.
const journalHigh = 8 << 20

// publish is one routed message that waits for the end of its batch.
type publish struct {
	msg       *message.Message
	queues    []*Queue // immutable, shared by messages of one route
	seq       uint64
	mandatory bool
	dead      bool // a dead letter: never a repetition, wherever it has been
}

// Publish routes one message and collects it for its queues; Exchange and key are the
// message's own, and its reference is the broker's, whatever is returned.
//
// Errors, in the order in which they are looked for: AccessRefused (write permission), NotFound (no such
// exchange), AccessRefused (internal exchange), PreconditionFailed (Fault), AccessRefused (topic
// permission), PreconditionFailed (user-id). The message is then not published and gets no confirm. A
// collected ack's error may come instead (FailedVerb). A mandatory message without a queue goes back
// through Sink.Return and is then confirmed.
func (ch *Channel) Publish(p *Publish) *Error {
	if len(ch.ops) > 0 {
		if e := ch.Settle(); e != nil {
			p.Msg.Release()
			return e
		}
	}
	m := p.Msg
	pub := publish{msg: m, seq: p.Seq, mandatory: p.Mandatory}
	r, exists := ch.routes.Route(m.Exchange(), m.Key())
	// The tag remembers the epoch of the permissions that were checked, plus one: 0 is unchecked.
	if epoch := ch.conn.b.users.Epoch() + 1; !exists || r.Tag != epoch || p.Fault != "" || len(p.Keys) > 0 ||
		p.UserID != "" && p.UserID != ch.conn.user.Name() {
		if e := ch.mayPublish(p); e != nil {
			m.Release()
			return e
		}
		if !exists {
			m.Release()
			return refuse(NotFound, "no %s", exchangeName(string(m.Exchange()), ch.conn.vhost.name))
		}
		r.Tag = epoch
	}
	if r.NeedsMessage || len(p.Keys) > 0 {
		pub.queues = ch.match(m, p.Keys)
	} else {
		pub.queues = r.Queues
	}
	if ch.tx != nil {
		return ch.tx.addPublish(ch, pub)
	}
	if n := len(ch.pubs); len(pub.queues) == 1 && (n == 0 || !sameRoute(&ch.pubs[n-1], &pub)) {
		pub.queues[0].warm()
	}
	ch.pubs = append(ch.pubs, pub)
	ch.collect()
	if len(ch.pubs) >= maxPublishBatch {
		ch.flush()
	}
	return nil
}

// mayPublish checks what must hold before a message is routed.
func (ch *Channel) mayPublish(p *Publish) *Error {
	c, m := ch.conn, p.Msg
	name := m.Exchange()
	if !c.mayWrite(name) {
		if e := c.allowExchange(rightWrite, string(name)); e != nil {
			return e
		}
	}
	if len(name) > 0 {
		c.b.topo.RLock()
		x := c.vhost.exchanges[string(name)]
		c.b.topo.RUnlock()
		switch {
		case x == nil:
			return refuse(NotFound, "no %s", exchangeName(string(name), c.vhost.name))
		case x.Internal:
			return refuse(AccessRefused, "cannot publish to internal %s", exchangeName(string(name), c.vhost.name))
		case p.Fault != "":
			return refuse(PreconditionFailed, "%s", p.Fault)
		}
		if e := c.allowTopic(rightWrite, x, m.Key()); e != nil {
			return e
		}
		for _, key := range p.Keys {
			if e := c.allowTopic(rightWrite, x, key); e != nil {
				return e
			}
		}
	} else if p.Fault != "" {
		return refuse(PreconditionFailed, "%s", p.Fault)
	}
	if own := c.user.Name(); p.UserID != "" && p.UserID != own && !c.user.user.HasTag("impersonator") {
		return refuse(PreconditionFailed, "user_id property set to '%s' but authenticated user was '%s'", p.UserID, own)
	}
	return nil
}

// matched is where a channel keeps the routes that no cache can: of messages whose headers or properties
// decide, or that have several keys. Owned by the connection's reader.
type matched struct {
	queues []*Queue // of the messages collected, one route behind the other
	keys   [][]byte
	msg    content // that is routed
}

// content is a message as route.Message.
type content struct {
	b       *Broker
	m       *message.Message
	headers table.Table // scratch
}

func (c *content) Headers() table.Table {
	if c.m.HasHeaders {
		c.headers = c.b.codecs[c.m.Encoding].Headers(c.headers[:0], c.m.Props())
	}
	return c.headers
}

func (c *content) Properties() table.Properties {
	return c.b.codecs[c.m.Encoding].Properties(c.m.Props())
}

// matchedKept is how many queues and keys a channel keeps room for between batches, and how many
// queues the routes of a batch may have together before it is carried out.
const matchedKept = 1 << 14

// match finds the queues of a message by more than its key. The result is valid until
// the batch is carried out. Neighbours with the same queues share them, so that they are one run.
func (ch *Channel) match(m *message.Message, more [][]byte) []*Queue {
	x := &ch.matched
	if len(x.queues) > matchedKept {
		ch.flush()
	}
	at := len(x.queues)
	x.msg.b, x.msg.m, x.keys = ch.conn.b, m, append(append(x.keys[:0], m.Key()), more...)
	x.queues, _ = ch.routes.RouteKeys(x.queues, m.Exchange(), x.keys, &x.msg)
	clear(x.keys)
	clear(x.msg.headers)
	x.msg.m, x.msg.headers = nil, kept(x.msg.headers)
	found := x.queues[at:len(x.queues):len(x.queues)]
	if ch.tx != nil {
		x.queues = x.queues[:at]
		return slices.Clone(found)
	}
	if n := len(ch.pubs); n > 0 && slices.Equal(ch.pubs[n-1].queues, found) {
		x.queues = x.queues[:at]
		return ch.pubs[n-1].queues
	}
	return found
}

// forget drops the routes of a batch that was carried out.
func (x *matched) forget() {
	clear(x.queues)
	x.queues = kept(x.queues)
	x.keys = kept(x.keys)
}

func kept[T any](s []T) []T {
	if cap(s) > matchedKept {
		return nil
	}
	return s[:0]
}

// flush carries out the collected publishes and queues their confirms.
func (ch *Channel) flush() {
	if len(ch.pubs) == 0 {
		return
	}
	t := ch.conn.begin()
	ch.conn.carried(len(ch.pubs), t.now)
	if ch.conn.vhost.traced.Load() {
		ch.tapIn(t, ch.pubs)
	}
	t.spill = ch.conn.b.spills() && ch.conn.owes()
	ch.publish(t, ch.pubs)
	t.spill = false
	clear(ch.pubs)
	ch.pubs = ch.pubs[:0]
	if len(ch.matched.queues) > 0 {
		ch.matched.forget()
	}
	ch.settleConfirms(t)
	ch.pushBack()
}

// publish enqueues a batch, run by run: neighbours with the same route share the locks, and so do those that go
// to one queue each.
func (ch *Channel) publish(t *turn, pubs []publish) {
	traced := t.b.opt.Tracer != nil
	for i := 0; i < len(pubs); {
		j := i + runOf(pubs[i:])
		if n := mixed(pubs[i:], j-i); n > 0 && !traced { // spans are by the run
			ch.publishMixed(t, pubs[i:i+n])
			i += n
			continue
		}
		if traced {
			ch.beginSpans(t, pubs[i:j])
		}
		ch.received(pubs[i:j])
		var refused []refusal
		if len(pubs[i].queues) == 0 {
			ch.unroutable(t, pubs[i:j])
		} else {
			pos := ch.conn.b.enqueue(t, pubs[i:j])
			ch.promise(t, pubs[i:j], nil, pos)
			refused = t.refused
		}
		if traced {
			ch.endSpans(t, pubs[i:j], refused)
		}
		i = j
	}
}

// received counts publishes that go to equally many queues.
func (ch *Channel) received(pubs []publish) {
	ch.fresh.received(pubs)
	first, exchange := 0, pubs[0].msg.Exchange()
	for i := range pubs {
		ch.grown += int64(cap(pubs[i].msg.Buf().B)) + messageCost
		if x := pubs[i].msg.Exchange(); len(x) != len(exchange) || len(x) > 0 && !bytes.Equal(x, exchange) {
			ch.count(pubs[first:i])
			first, exchange = i, x
		}
	}
	ch.count(pubs[first:])
}

// mixed is how many publishes, from the first one on, go to one queue each, not all of them by the route that the first
// run have; 0 if there are no others. Of a channel's publishes to one queue the order is kept by who takes them together, and
// there is none between queues; those to several queues stay where they are among the others.
func mixed(pubs []publish, run int) int {
	if len(pubs[0].queues) != 1 || run == len(pubs) || len(pubs[run].queues) != 1 || run >= maxPublishBatch {
		return 0
	}
	n := run + 1
	for n < min(len(pubs), maxPublishBatch) && len(pubs[n].queues) == 1 {
		n++
	}
	return n
}

// publishMixed enqueues publishes to one queue each as if those to the same queue were neighbours: every queue is
// locked and dispatched once, and all records are appended at once.
func (ch *Channel) publishMixed(t *turn, pubs []publish) {
	ch.received(pubs)
	g := gatherings.Get().(*gathering)
	sorted := g.gather(pubs)
	b := t.b
	b.beginEnqueue(t, sorted, 1)
	for i := range min(len(sorted), groupsAhead) {
		sorted[i].queues[0].warmConsumer()
	}
	for i := 0; i < len(sorted); {
		if ahead := i + groupsAhead; ahead < len(sorted) {
			sorted[ahead].queues[0].warmConsumer()
		}
		j := i + 1
		for j < len(sorted) && sorted[j].queues[0] == sorted[i].queues[0] {
			j++
		}
		sorted[i].queues[0].put(t, sorted[i:j], i, 1)
		i = j
	}
	pos := b.endEnqueue(t, sorted, 1)
	ch.promise(t, pubs, g.place[:len(pubs)], pos)
	clear(sorted)
	clear(g.groups)
	gatherings.Put(g)
}

// groupsAhead is how many messages before its turn the consumer of a message's queue is asked for.
const groupsAhead = 4

// gathering is room to put publishes in another order. It is lent for that long: most connections publish to few queues.
type gathering struct {
	heads  [2 * maxPublishBatch]uint16 // a hash table: the group of a queue, plus 1
	groups []group
	of     [maxPublishBatch]uint16 // the group of each
	place  [maxPublishBatch]uint16 // where each went
	sorted [maxPublishBatch]publish
}

// group is the publishes to one queue.
type group struct {
	q *Queue
	n uint16 // how many, then where the next one goes
}

var gatherings = sync.Pool{New: func() any { return new(gathering) }}

// gather puts publishes to the same queue side by side, in their order, the queue that comes first first. There are at
// most maxPublishBatch.
func (g *gathering) gather(pubs []publish) []publish {
	clear(g.heads[:])
	g.groups = g.groups[:0]
	for i := range pubs {
		q := pubs[i].queues[0]
		at := uint(uint64(uintptr(unsafe.Pointer(q))) * 0x9E3779B97F4A7C15 >> 32)
		for {
			head := &g.heads[at%uint(len(g.heads))]
			if *head == 0 {
				g.groups = append(g.groups, group{q: q})
				*head = uint16(len(g.groups))
			}
			if n := *head - 1; g.groups[n].q == q {
				g.of[i] = n
				g.groups[n].n++
				break
			}
			at++
		}
	}
	next := uint16(0)
	for i := range g.groups {
		n := g.groups[i].n
		g.groups[i].n = next
		next += n
	}
	for i := range pubs {
		to := &g.groups[g.of[i]].n
		g.sorted[*to], g.place[i] = pubs[i], *to
		*to++
	}
	return g.sorted[:len(pubs)]
}

// maxTargets is how many places in queues the messages of a run may have together, unless it is one message: so much room
// for them is kept.
const maxTargets = 1 << 16

// runOf is how many publishes, from the first one on, are enqueued together: those with its route.
func runOf(pubs []publish) int {
	most := min(len(pubs), maxPublishBatch)
	if queues := len(pubs[0].queues); queues > maxTargets/maxPublishBatch {
		most = min(most, max(1, maxTargets/queues))
	}
	n := 1
	for n < most && sameRoute(&pubs[0], &pubs[n]) {
		n++
	}
	return n
}

func sameRoute(a, b *publish) bool {
	if len(a.queues) == 0 || len(b.queues) == 0 {
		return len(a.queues) == len(b.queues)
	}
	return &a.queues[0] == &b.queues[0] && len(a.queues) == len(b.queues)
}

// enqueue puts a run of messages with one route into its queues, in three steps: every queue
// takes its entries and sequence numbers; the records, which name them, go to the journal with
// no queue locked; the queues are dispatched once that is committed, for which the turn's end hands
// them to the completer. An entry whose record is not
// appended yet is not handed out, so a delivery never comes before its commit.
//
// It gives the position that the run's confirms wait for, 0 for none; refused messages are in
// t.refused. It takes over the messages' references. Within a transaction the records go into its
// batch instead, and the last step is its commit's.
func (b *Broker) enqueue(t *turn, pubs []publish) journal.Position {
	queues := pubs[0].queues
	b.beginEnqueue(t, pubs, len(queues))
	joined := b.opt.Tracer != nil && len(t.trailOf().run) == 0
	if joined {
		t.join(pubs)
	}
	for _, q := range queues {
		q.put(t, pubs, 0, len(queues))
	}
	pos := b.endEnqueue(t, pubs, len(queues))
	if joined {
		t.trail.forget()
	}
	return pos
}

// beginEnqueue prepares the turn's scratch for publishes to n queues each.
func (b *Broker) beginEnqueue(t *turn, pubs []publish, n int) {
	t.targets = grow(t.targets, len(pubs)*n)
	t.counts = grow(t.counts, len(pubs))
	t.refused = grow(t.refused, len(pubs))
	clear(t.counts)
	clear(t.refused)
	t.spans, t.lasting, t.original = t.spans[:0], false, 0
	for i := range pubs {
		pubs[i].msg.Taken = t.now
	}
}

// put is the first step of enqueue for one queue; pubs are those from the place at on of publishes to n queues each.
func (q *Queue) put(t *turn, pubs []publish, at, n int) {
	b := t.b
	traced := b.opt.Tracer != nil
	var keys []dedup.Key
	if q.dedups.Load() {
		keys = b.keysOf(t, pubs, q.settings.Load().Dedup.By)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.deleted {
		return
	}
	transient, journaled := false, false
	first := q.sm.NextSeq()
	targets, counts, refused := t.targets[at*n:], t.counts[at:], t.refused[at:]
	for i := range pubs {
		m := pubs[i].msg
		keyed := keys != nil && keys[i] != dedup.Key{} && q.window != nil
		if keyed && !pubs[i].dead {
			if repeated, v := q.repeats(t, keys[i], first); repeated {
				if v != taken {
					refused[i] = refusal{q, v}
				}
				continue
			}
		}
		m.Retain(1)
		durable := q.journaled() && m.Persistent
		written := durable || t.spill && q.id != 0
		e, ok := q.sm.Publish(m, written, t.now, &t.fx)
		if !ok {
			refused[i] = refusal{q, full}
			m.Release()
			continue
		}
		if keyed {
			o := dedup.Original{Seq: e.Seq}
			if !durable {
				o.Pos = dedup.Never
			}
			q.window.Add(keys[i], o, t.now)
		}
		q.stats.Publish++
		if traced {
			q.enqueued(t, i, m, e.Seq, written)
		}
		if !written {
			transient = true
			continue
		}
		if durable {
			q.persistent++
			q.persistentBytes += int64(e.Size)
		}
		targets[i*n+counts[i]] = journal.Target{Queue: q.id, Seq: e.Seq, Expiry: e.Expiry}
		counts[i]++
		journaled = true
	}
	if journaled && !q.waiting {
		q.waiting = true
		t.waits = append(t.waits, q)
	}
	if keys != nil && q.journaled() && q.sm.NextSeq() > first {
		t.spans = append(t.spans, ownSpan{q, first, q.sm.NextSeq() - 1})
		t.lasting = t.lasting || !q.settings.Load().Dedup.Present
	}
	q.apply(t)
	if transient || q.overdue(t) { // what expires at once does so before it is on disk
		q.dispatch(t)
	}
}

// endEnqueue is the second step of enqueue, and takes over the messages' references.
func (b *Broker) endEnqueue(t *turn, pubs []publish, n int) journal.Position {
	var last journal.Position
	switch {
	case !slices.ContainsFunc(t.counts, func(n int) bool { return n > 0 }):
	case t.batch != nil:
		t.batch.publish(pubs, t)
		t.batch.spans = append(t.batch.spans, t.spans...)
		t.batch.lasting = t.batch.lasting || t.lasting
	default:
		j := b.journal
		j.Lock()
		for i := range pubs {
			if t.counts[i] == 0 {
				continue
			}
			m := pubs[i].msg
			var head [headMax]byte
			last = j.Publish(t.targets[i*n:i*n+t.counts[i]], weight(uint32(len(m.Body()))), encodeHead(&head, m, t.now), m.Bytes())
			m.SetPosition(last)
			if t.lasting {
				j.Keep(last)
			}
		}
		j.Unlock()
		t.appended(last)
		placed(t.spans, last)
	}
	if t.original > last {
		last = t.original
	}
	if t.batch != nil {
		t.batch.original = max(t.batch.original, t.original)
	}
	for i := range pubs {
		pubs[i].msg.Release()
	}
	return last
}

// promise queues the confirms of publishes; pos is what they wait for. With places, which say where each of them was
// enqueued, pos is for those that went to the journal: the others wait for an original alone.
func (ch *Channel) promise(t *turn, pubs []publish, places []uint16, pos journal.Position) {
	ch.peer.Lock()
	for i := range pubs {
		at, due := i, pos
		if places != nil {
			if at = int(places[i]); t.counts[at] == 0 {
				due = t.original
			}
		}
		switch {
		case pubs[i].seq == 0:
		case t.refused[at].why == full:
			q := t.refused[at].q
			ch.pledge(pledge{to: pubs[i].seq, err: refuse(ResourceError, "%s is full", queueName(q.name, q.vhost))})
		case t.refused[at].why == early:
			q := t.refused[at].q
			ch.pledge(pledge{to: pubs[i].seq, err: refuse(ResourceError, "the message is on its way to %s already", queueName(q.name, q.vhost))})
		default:
			ch.pledge(pledge{to: pubs[i].seq, pos: due})
		}
	}
	ch.peer.Unlock()
}

// unroutable returns the mandatory messages of a run without queues; each is confirmed at once.
func (ch *Channel) unroutable(t *turn, pubs []publish) {
	var returned, dropped uint64
	ch.peer.Lock()
	for i := range pubs {
		p := &pubs[i]
		if p.mandatory {
			returned++
			// The confirms of earlier publishes may follow; only this message's own must.
			m := ch.conn.b.undelayed(p.msg)
			ch.sink.Return(p.seq, m)
			m.Release()
		} else {
			dropped++
		}
		if p.seq != 0 {
			ch.pledge(pledge{to: p.seq})
		}
	}
	if ch.peer.Unlock() {
		t.touch(ch.peer)
	}
	for i := range pubs {
		pubs[i].msg.Release()
	}
	ch.fresh.ReturnUnroutable += returned
	ch.fresh.DropUnroutable += dropped
}

// pushBack has further publishes wait during an alarm, while too much waits for the disk or it is
// full, and when memory must be looked at first.
func (ch *Channel) pushBack() {
	b := ch.conn.b
	grown := ch.grown
	ch.grown = 0
	ch.conn.brings()
	if b.alarm.Load() != 0 {
		ch.conn.heed(true)
		ch.conn.published(grown)
	}
	if !b.grow(grown) {
		ch.conn.await(PauseGrowth)
	}
	if b.journal == nil {
		return
	}
	switch pending := b.journal.Pending(); {
	case b.journal.Low():
		ch.conn.await(PauseJournal)
	case pending < journalHigh/2:
		ch.conn.share = 0
	case pending > journalHigh:
		// Who brings little is not made to wait for those who bring much.
		if ch.conn.share += grown; ch.conn.share > smallShare || pending > 2*journalHigh {
			ch.conn.await(PauseJournal)
		}
	}
}

// smallShare is how many bytes a connection may publish while the journal is behind before it is paused.
const smallShare = 64 << 10

// await has the connection's publishes wait until there is room again.
func (c *Conn) await(r Reason) {
	c.peer.Pause(r)
	c.b.done.awaitRoom(c)
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/2)
	}
	return s[:n]
}

var _ queue.Receiver = (*Consumer)(nil)
