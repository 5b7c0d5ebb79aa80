package broker

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/firemq/firemq/broker/dedup"
	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/journal"
	"github.com/firemq/firemq/route"
)

// recovery rebuilds topology and queues: first from the snapshot, then from the journal's
// records in their order.
type recovery struct {
	b      *Broker
	after  journal.Position // topology records up to here are in the snapshot
	queues map[uint64]*rebuilt
	damage []journal.Damage
	j      *journal.Journal // only Free, Adopt and Holds may be called yet

	restored bool          // from a checkpoint
	scratch  []queue.Entry // of find
	cached   *block        // whose entries are in cache, for settle
	cache    []queue.Entry
	turn     turn // scratch of remember
}

func (b *Broker) recover() (Recovery, error) {
	begun := time.Now()
	var rec Recovery
	r := &recovery{b: b, after: b.opt.Start.Position, queues: make(map[uint64]*rebuilt)}
	if err := r.restore(&b.opt.Start); err != nil {
		return rec, err
	}
	if b.opt.JournalDir == "" {
		return rec, nil
	}
	j, stats, err := journal.Open(journal.Options{
		FS: b.opt.FS, Dir: b.opt.JournalDir, NoSync: b.opt.NoSync, SegmentBytes: b.opt.tuning.segmentBytes, After: b.opt.Start.Position, Log: b.log,
		Opening:  func(j *journal.Journal) { r.j = j },
		OnCommit: func(journal.Position) { b.done.signal() },
		OnRoom:   b.done.signal,
		OnStall:  b.opt.OnStall,
		OnWaste:  b.upkeep.signal,
		OnReplay: b.opt.OnReplay,
		OnFatal:  b.opt.OnFatal,
	}, r)
	if err != nil {
		return rec, err
	}
	b.journal = j
	j.Floor(b.opt.Start.Position + 1)
	rec.Bytes = stats.Recovered.Bytes
	for _, q := range r.queues {
		rec.Messages += r.install(q)
		q.restoreKeys(b.opt.Now())
	}
	rec.Damaged, rec.Restored = r.damage, r.restored
	for _, v := range b.vhosts {
		for _, q := range v.queues {
			if q.durable {
				rec.Queues++
			}
		}
	}
	rec.Took = time.Since(begun)
	return rec, nil
}

// restore makes what the snapshot says exist.
func (r *recovery) restore(s *Snapshot) error {
	b := r.b
	b.topoPos = s.Position
	b.nextID = max(b.nextID, s.NextQueueID)
	if err := b.importUsers(&s.Users); err != nil {
		return err
	}
	for _, w := range s.Warnings {
		b.log.Warn("definitions: " + w)
	}
	for _, name := range s.VHosts {
		b.addVHost(name)
	}
	maps.Copy(b.globals, s.Globals)
	for vhost, m := range s.VHostMeta {
		if v := b.vhosts[vhost]; v != nil {
			v.setMeta(m)
		}
	}
	for vhost, limits := range s.VHostLimits {
		if v := b.vhosts[vhost]; v != nil {
			v.limits = limits
		}
	}
	for _, p := range s.Policies {
		if v := b.vhosts[p.VHost]; v != nil {
			b.setPolicy(v, p)
		}
	}
	for i := range s.Exchanges {
		if err := r.exchange(s.Exchanges[i].VHost, &s.Exchanges[i].Exchange); err != nil {
			return err
		}
	}
	for i := range s.Queues {
		if err := r.queue(&s.Queues[i]); err != nil {
			return err
		}
	}
	for _, x := range s.Bindings {
		if err := r.bind(x); err != nil {
			return err
		}
	}
	return nil
}

func (r *recovery) exchange(vhost string, x *Exchange) error {
	v := r.b.vhosts[vhost]
	if v == nil {
		return fmt.Errorf("exchange '%s' belongs to vhost '%s', which is not defined", x.Name, vhost)
	}
	kind, bad := ExchangeKind(x.Type, x.Args)
	if bad != nil {
		return fmt.Errorf("exchange '%s' in vhost '%s': %s", x.Name, vhost, bad.Text)
	}
	if v.exchanges[x.Name] != nil {
		return nil
	}
	x.Durable = true
	if a, ok := x.Args.Get("alternate-exchange"); ok {
		x.alternate, _ = a.AsString()
	}
	r.b.addExchange(v, x, kind)
	return nil
}

func (r *recovery) queue(d *QueueDef) error {
	b := r.b
	v := b.vhosts[d.VHost]
	if v == nil {
		return fmt.Errorf("queue '%s' belongs to vhost '%s', which is not defined", d.Name, d.VHost)
	}
	if v.queues[d.Name] != nil {
		return nil
	}
	settings, bad := policy.Parse(d.Args, policy.Properties{Durable: true, AutoDelete: d.AutoDelete}, queueName(d.Name, d.VHost))
	if bad != nil {
		return fmt.Errorf("%s", bad.Text)
	}
	if d.ID == 0 {
		d.ID = b.nextID
	}
	b.nextID = max(b.nextID, d.ID+1)
	q := &Queue{
		b: b, vhost: d.VHost, name: d.Name, id: d.ID, durable: true, declared: true,
		autoDelete: d.AutoDelete, args: d.Args, own: &settings,
	}
	b.addQueue(v, q)
	r.queues[q.id] = &rebuilt{q: q}
	return nil
}

func (r *recovery) bind(x route.Binding) error {
	v := r.b.vhosts[x.VHost]
	if v == nil {
		return fmt.Errorf("a binding belongs to vhost '%s', which is not defined", x.VHost)
	}
	known := v.exchanges[x.Source] != nil
	if x.ToExchange {
		known = known && v.exchanges[x.Dest] != nil
	} else {
		known = known && v.queues[x.Dest] != nil
	}
	if !known {
		r.b.log.Warn("a recovered binding was left out: one of its ends does not exist",
			"vhost", x.VHost, "source", x.Source, "destination", x.Dest, "key", x.Key)
		return nil
	}
	_, err := r.b.routes.Bind(x)
	return err
}

// Topology implements journal.Replay.
func (r *recovery) Topology(pos journal.Position, payload []byte) error {
	if pos <= r.after {
		return nil
	}
	r.b.topoPos = pos
	c, err := decodeChange(payload)
	if err != nil {
		return err
	}
	b := r.b
	switch c.Op {
	case opUser:
		if err := b.userChanged(c.Name, c.User); err != nil {
			return fmt.Errorf("topology record: user '%s': %w", c.Name, err)
		}
		return nil
	case opGlobal:
		if b.globals[c.Name] = c.Value; c.Value == nil {
			delete(b.globals, c.Name)
		}
		return nil
	}
	v := b.vhosts[c.VHost]
	if v == nil {
		if c.Op == opAddVHost {
			b.addVHost(c.VHost)
		}
		return nil
	}
	switch c.Op {
	case opAddVHost:
	case opVHostMeta:
		v.setMeta(*c.Meta)
	case opDeleteVHost:
		for _, q := range b.removeVHost(v) {
			r.forget(q)
		}
	case opVHostLimits:
		v.limits = c.Limits
	case opPutPolicy:
		b.setPolicy(v, PolicyDef{v.name, c.Policy.Operator, c.Policy.made})
		r.applyPolicies(v)
	case opDeletePolicy:
		v.policies.remove(c.Policy.Name, c.Policy.Operator)
		r.applyPolicies(v)
	case opDeclareExchange:
		return r.exchange(c.VHost, c.Exchange)
	case opDeleteExchange:
		if x := v.exchanges[c.Name]; x != nil {
			b.dropExchange(v, x)
		}
	case opDeclareQueue:
		return r.queue(c.Queue)
	case opDeleteQueue:
		if q := v.queues[c.Name]; q != nil {
			b.dropQueue(v, q)
			r.forget(q)
		}
	case opBind:
		return r.bind(*c.Binding)
	case opUnbind:
		b.routes.Unbind(*c.Binding)
	default:
		return fmt.Errorf("topology record with the unknown operation '%s'", c.Op)
	}
	return nil
}

// applyPolicies gives exchanges and queues the settings of the policies as they are at this place of the log, by which the
// keys of what follows are remembered.
func (r *recovery) applyPolicies(v *VHost) {
	r.b.applyToExchanges(v)
	was := make(map[*Queue]*dedup.Window, len(v.queues))
	for _, q := range v.queues {
		was[q] = q.window
	}
	r.b.applyToQueues(v)
	for q, w := range was {
		if rebuilt := r.queues[q.id]; rebuilt != nil && q.window != w {
			rebuilt.keys = nil // they meant something else
		}
	}
}

// forget lets go of a deleted queue's messages.
func (r *recovery) forget(q *Queue) {
	r.b.timers.forget(q)
	if old := r.queues[q.id]; old != nil {
		r.discard(old)
		delete(r.queues, q.id)
	}
}

// Publish implements journal.Replay.
func (r *recovery) Publish(pos journal.Position, targets []journal.Target, payload []byte, moved bool) (int64, error) {
	a, _, _, _, props, body, err := splitMessage(payload)
	if err != nil {
		return 0, err
	}
	w, due := weight(uint32(len(body))), dueOf(payload)
	for _, t := range targets {
		q := r.queues[t.Queue]
		if q != nil && !a.Persistent {
			q.maxSeq = max(q.maxSeq, t.Seq)
			q = nil // it was written for want of memory (see Broker.spills)
		}
		if q == nil || !r.add(q, queue.Entry{
			Seq: t.Seq, Pos: pos, Expiry: t.Expiry, Due: due, Size: uint32(len(body)), Priority: a.Priority, Redelivered: true, Journaled: true,
		}, moved) {
			r.j.Free(pos, 1, w)
		}
		if q != nil {
			r.remember(q, pos, t.Seq, a, props, moved)
		}
	}
	return w, nil
}

// Settle implements journal.Replay.
func (r *recovery) Settle(id, from, to uint64) error {
	if q := r.queues[id]; q != nil {
		r.settle(q, from, to)
		q.settled(from, to)
	}
	return nil
}

// Damage implements journal.Replay.
func (r *recovery) Damage(d journal.Damage) { r.damage = append(r.damage, d) }

// install hands a queue the entries that are left and gives their number.
func (r *recovery) install(q *rebuilt) int {
	n, lost := 0, 0
	restore := func(e queue.Entry) {
		if r.restored && !r.j.Holds(e.Pos) {
			lost++
			delete(q.keys, e.Seq)
			return
		}
		e.Redelivered = true
		q.q.sm.Restore(e)
		n++
	}
	if len(q.streams) == 1 && !q.delayed {
		// The usual queue: whole blocks go in as they are, but for the last one.
		blocks := slices.DeleteFunc(q.streams[0].blocks, func(b *block) bool { return b.live == 0 })
		for i, b := range blocks {
			if b.packed != nil && b.live == openEntries && !b.lost && i < len(blocks)-1 &&
				q.q.sm.RestoreBlock(b.packed, b.first, b.last, b.bytes) {
				n += openEntries
				continue
			}
			for i, e := range b.unpack(r.scratch[:0]) {
				if !b.isDead(i) {
					restore(e)
				}
			}
		}
	} else {
		q.each(restore)
	}
	if lost > 0 {
		r.b.log.Error("messages lost: the journal no longer has their segment", "queue", q.q.name, "vhost", q.q.vhost, "messages", lost)
		r.damage = append(r.damage, journal.Damage{Reason: fmt.Sprintf("%d messages of %s are lost with their segment", lost, queueName(q.q.name, q.q.vhost))})
	}
	q.q.sm.Restored()
	q.q.sm.SetNextSeq(max(q.q.sm.NextSeq(), q.maxSeq+1))
	q.q.persistent, q.q.persistentBytes = q.q.sm.Len()+q.q.sm.Delayed(), q.q.sm.Bytes()+q.q.sm.DelayedBytes()
	if at := q.q.sm.NextExpiry(); at != 0 {
		r.b.timers.expiry(q.q, at)
	}
	q.streams = nil
	return n
}
