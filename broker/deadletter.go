package broker

import (
	"slices"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
)

// buryBatch is how many dead letters one turn publishes, and buryBytes about how many bytes of them; upkeep goes on with
// the rest. Queues that dead-letter into each other multiply a message: without a bound one publish could keep its
// connection's event loop for minutes. And whoever rejects, or what expires, is not paused when what it brings has to
// wait for the disk, as publishers are.
const (
	buryBatch = 4096
	buryBytes = 4 << 20
)

// bury carries out what left queues unsettled: each message goes to its queue's dead-letter
// exchange, if it has one, and is then settled where it was. Like RabbitMQ it publishes without
// confirms: at most once.
//
// What dies by such a publish follows behind what has died already. So dead letters of one queue keep their
// order, and of a message that reached several queues the copy with fewer deaths comes first, as it does
// in RabbitMQ, whose queues work side by side.
func (t *turn) bury() {
	g := burial{now: t.dead}
	t.dead = nil
	if len(g.now) == 0 {
		return
	}
	// Earlier ones still wait there, or these would only wait for the disk, and take memory until then.
	later := t.b.upkeep.burying.Load() || t.b.journal != nil && t.b.journal.Pending() > journalHigh
	if later && slices.ContainsFunc(g.now, deadItem.lettered) {
		t.b.upkeep.buryLater(g)
		return
	}
	if t.burySome(&g, buryBatch); !g.done() {
		t.b.upkeep.buryLater(g)
	}
}

// lettered says that it is to be published, and not dropped.
func (d deadItem) lettered() bool { return d.q.settings.Load().DeadLetterExchange != nil }

// burial is dead letters that wait to be published: now, then next, what died by those of now, then later,
// the last first. Where messages multiply, next goes before what is left of now: so what waits is no more
// than the first ones and buryBatch for each queue of the longest chain.
type burial struct {
	now, next []deadItem
	later     [][]deadItem
}

func (g *burial) done() bool { return len(g.now)+len(g.next)+len(g.later) == 0 }

// pop takes the first one of those that are left.
func (g *burial) pop() (d deadItem) {
	switch {
	case len(g.next) >= buryBatch:
		if len(g.now) > 0 {
			g.later = append(g.later, g.now)
		}
		g.now, g.next = g.next, nil
	case len(g.now) > 0:
	case len(g.next) > 0:
		g.now, g.next = g.next, nil
	default:
		last := len(g.later) - 1
		g.now, g.later[last] = g.later[last], nil
		g.later = g.later[:last]
	}
	d, g.now[0] = g.now[0], deadItem{}
	g.now = g.now[1:]
	return d
}

// burySome publishes limit dead letters of g, or those that reach buryBytes, or all.
func (t *turn) burySome(g *burial, limit int) {
	t.spill = t.b.spills()
	defer func() { t.spill = false }()
	for bytes := int64(0); limit > 0 && bytes < buryBytes && !g.done(); limit-- {
		d := g.pop()
		strategy := 0
		if s := d.q.settings.Load(); s.DeadLetterExchange != nil {
			strategy = 1
			bytes += weight(d.Entry.Size)
			t.deadLetter(&d, &s.Settings)
		}
		t.b.counters.Dead[strategy][d.Reason].Add(1)
		d.q.mu.Lock()
		if d.Entry.Seq != 0 {
			d.q.limbo--
		}
		d.q.settle(t, &d.Entry)
		d.q.mu.Unlock()
		g.next = append(g.next, t.dead...)
		clear(t.dead)
		t.dead = t.dead[:0]
	}
}

var reasons = [...]string{
	queue.Rejected: "rejected", queue.Expired: "expired", queue.MaxLen: "maxlen", queue.DeliveryLimit: "delivery_limit",
}

// deadLetter publishes one message to its queue's dead-letter exchange.
func (t *turn) deadLetter(d *deadItem, s *policy.Settings) {
	b, q := t.b, d.q
	if d.Entry.Msg == nil {
		m, err := b.load(d.Entry.Pos)
		if err != nil {
			b.log.Error("message lost instead of dead-lettered: its record cannot be read",
				"queue", q.name, "vhost", q.vhost, "seq", d.Entry.Seq, "error", err)
			return
		}
		d.Entry.Msg = m
	}
	m := d.Entry.Msg
	p, err := b.properties(m)
	if err != nil {
		b.log.Error("message lost instead of dead-lettered: its properties cannot be read",
			"queue", q.name, "vhost", q.vhost, "error", err)
		return
	}
	exchange := *s.DeadLetterExchange
	seen := append([][]byte{m.Key()}, ccKeys(p.Headers)...)
	keys, blind := seen, m.Blind()
	if s.DeadLetterKey != nil {
		// It alone routes the message, whatever its sender selected.
		keys, blind = [][]byte{[]byte(*s.DeadLetterKey)}, nil
		p.Headers = without(p.Headers, headerCC)
	} else if len(blind) > 0 {
		keys = append(slices.Clip(seen), blindKeys(m)...)
	}
	addDeath(&p, death{reason: reasons[d.Reason], queue: q.name, exchange: string(m.Exchange()), keys: seen, seconds: t.now / 1000})
	deaths, _ := p.Headers.Get("x-death")

	b.topo.RLock()
	v := b.vhosts[q.vhost]
	b.topo.RUnlock()
	if v == nil {
		return
	}
	queues, _ := b.routes.RouteKeys(nil, v.name, exchange, keys, decoded{&p})
	kept := queues[:0]
	for _, to := range queues {
		if d.Reason == queue.Rejected || !cycle(deaths.List, to.name) {
			kept = append(kept, to)
		}
	}
	if len(kept) == 0 {
		return
	}
	props := b.codecs[m.Encoding].Append(nil, &p)
	a := m.Attributes
	a.HasHeaders, a.Expiration, a.Delay = true, -1, 0
	out := message.NewBlind(a, []byte(exchange), keys[0], blind, props, len(m.Body()))
	copy(out.Body(), m.Body())
	var span Span
	if b.opt.Tracer != nil {
		span = t.beginDeadLetter(d)
	}
	b.enqueue(t, []publish{{msg: out, queues: kept, dead: true}})
	if b.opt.Tracer != nil {
		t.endDeadLetter(&span, []byte(exchange), keys[0], len(m.Body()))
	}
}

// decoded is a message whose properties are, as route.Message.
type decoded struct{ p *table.Properties }

func (d decoded) Headers() table.Table         { return d.p.Headers }
func (d decoded) Properties() table.Properties { return *d.p }

// death is one dying of a message.
type death struct {
	reason, queue, exchange string
	keys                    [][]byte // the routing keys it had, without those of BCC
	seconds                 int64
}

// addDeath writes the death into the headers as RabbitMQ does: x-death has an entry for
// each (queue, reason), the latest first; x-first-death-* never change, x-last-death-* always do.
// The expiration moves into the entry, so that the message does not expire again. A repeated
// death counts in the entry of the first one, which keeps what it says.
func addDeath(p *table.Properties, d death) {
	str := table.StringValue
	var entries []table.Value
	if v, ok := p.Headers.Get("x-death"); ok && v.Kind == table.Array {
		entries = v.List
	}
	var entry table.Table
	var rest []table.Value
	for _, e := range entries {
		queue, _ := e.Table.Get("queue")
		reason, _ := e.Table.Get("reason")
		if e.Kind == table.Nested && queue.Str == d.queue && reason.Str == d.reason {
			if entry == nil {
				n, _ := e.Table.Get("count")
				before, _ := n.AsInt()
				entry = slices.Clone(e.Table)
				entry.Set("count", table.IntValue(before+1))
			}
			continue
		}
		rest = append(rest, e)
	}
	if entry == nil {
		keys := make([]table.Value, len(d.keys))
		for i, k := range d.keys {
			keys[i] = str(string(k))
		}
		entry = make(table.Table, 0, 7)
		if p.Has&table.HasExpiration != 0 {
			entry = append(entry, table.Field{Name: "original-expiration", Value: str(p.Expiration)})
		}
		entry = append(entry,
			table.Field{Name: "count", Value: table.IntValue(1)},
			table.Field{Name: "reason", Value: str(d.reason)},
			table.Field{Name: "queue", Value: str(d.queue)},
			table.Field{Name: "time", Value: table.TimeValue(d.seconds)},
			table.Field{Name: "exchange", Value: str(d.exchange)},
			table.Field{Name: "routing-keys", Value: table.ArrayValue(keys...)},
		)
	}
	p.Has &^= table.HasExpiration
	p.Expiration = ""
	// A publisher may have set these headers itself: they count only where there was a death.
	_, known := p.Headers.Get("x-first-death-reason")
	known = known && len(entries) > 0
	h := make(table.Table, 0, len(p.Headers)+7)
	for _, f := range p.Headers {
		switch f.Name {
		case "x-death", "x-last-death-reason", "x-last-death-queue", "x-last-death-exchange":
			continue
		case "x-first-death-reason", "x-first-death-queue", "x-first-death-exchange":
			if !known {
				continue
			}
		}
		h = append(h, f)
	}
	add := func(name string, v table.Value) { h = append(h, table.Field{Name: name, Value: v}) }
	add("x-death", table.ArrayValue(append([]table.Value{table.TableValue(entry)}, rest...)...))
	if !known {
		add("x-first-death-reason", str(d.reason))
		add("x-first-death-queue", str(d.queue))
		add("x-first-death-exchange", str(d.exchange))
	}
	add("x-last-death-reason", str(d.reason))
	add("x-last-death-queue", str(d.queue))
	add("x-last-death-exchange", str(d.exchange))
	p.Headers = h
	p.Has |= table.HasHeaders
}

// cycle reports whether a message with these deaths went round through the queue without being
// rejected on the way: such a copy is dropped.
func cycle(deaths []table.Value, to string) bool {
	for _, e := range deaths {
		if reason, _ := e.Table.Get("reason"); reason.Str == reasons[queue.Rejected] {
			return false
		}
		if name, _ := e.Table.Get("queue"); name.Str == to {
			return true
		}
	}
	return false
}
