package queue

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/firemq/firemq/broker/message"
	"pgregory.net/rapid"
)

// model is a queue without any cleverness: everything in slices, searched from end to end.
type model struct {
	cfg       Config
	nextSeq   uint64
	ready     []Entry         // in no order
	delayed   []Entry         // likewise
	fresh     map[uint64]bool // the Seq of delayed ones that may wait for the journal
	unacked   []Delivery
	consumers []*modelConsumer // in order of registration
	active    *modelConsumer
	transit   bool
	arrivals  []uint8 // the priorities of those in transit, as they came
	stranded  bool    // a message died that found those in transit before it and no more room
	beyond    []Entry // those in transit that found no room, since the last change of limits
}

type modelConsumer struct {
	*Consumer
	gate   *gate
	credit uint64
	held   int
	parked bool
}

// blocked says that the consumer's connection takes nothing now.
func (c *modelConsumer) blocked() bool { return c.gate.n == 0 }

func (m *model) takes(c *modelConsumer) bool {
	switch {
	case c.parked, m.cfg.SingleActive && c != m.active:
		return false
	case c.Credited:
		return c.credit > 0
	}
	return c.NoAck || c.Prefetch == 0 || c.held < int(c.Prefetch)
}

func (m *model) takers() (all []*modelConsumer) {
	for _, c := range m.consumers {
		if m.takes(c) {
			all = append(all, c)
		}
	}
	return all
}

// head is the index of the message that leaves next.
func (m *model) head() int {
	h := 0
	if m.transit {
		h = slices.IndexFunc(m.ready, func(e Entry) bool { return e.Priority == m.arrivals[0] })
	}
	for i, e := range m.ready {
		if m.transit && e.Priority != m.arrivals[0] {
			continue
		}
		if e.Priority > m.ready[h].Priority || e.Priority == m.ready[h].Priority && e.rank() < m.ready[h].rank() {
			h = i
		}
	}
	return h
}

func (m *model) waits(e Entry, committed uint64) bool {
	return e.Journaled && e.Msg != nil && (e.Msg.Position() == 0 || e.Msg.Position() >= committed)
}

func (m *model) bytes() (n int64) {
	for _, e := range m.ready {
		n += int64(e.Size)
	}
	return n
}

// settle makes at most limit delayed messages ripe for ripen, in order of Seq.
func (m *model) settle(committed uint64, limit int) {
	for _, seq := range slices.Sorted(maps.Keys(m.fresh)) {
		e := m.delayed[slices.IndexFunc(m.delayed, func(e Entry) bool { return e.Seq == seq })]
		if limit == 0 || m.waits(e, committed) {
			return
		}
		limit--
		delete(m.fresh, seq)
	}
}

// nextDelayed is the index of the message that is due first, -1 for none.
func (m *model) nextDelayed() int {
	next := -1
	for i, e := range m.delayed {
		if !m.fresh[e.Seq] && (next < 0 || earlier(&e, &m.delayed[next])) {
			next = i
		}
	}
	return next
}

func (m *model) ripen(now int64) (dead []Dead) {
	for {
		i := m.nextDelayed()
		if i < 0 || m.delayed[i].Due > now {
			return dead
		}
		e := m.delayed[i]
		m.delayed = slices.Delete(m.delayed, i, i+1)
		e.Lag = uint32(m.nextSeq - e.Seq)
		m.nextSeq++
		m.transit = len(m.takers()) > 0 && (len(m.ready) == 0 || m.transit)
		dead = append(dead, m.enter(e, now)...)
	}
}

// behind is what a browser sees behind a place.
func (m *model) behind(at Place) (list []Entry) {
	if at.Delayed {
		for _, e := range m.delayed {
			if earlier(&Entry{Due: int64(at.Key), Seq: at.Seq}, &e) {
				list = append(list, e)
			}
		}
		slices.SortFunc(list, compareDue)
		return list
	}
	for _, e := range m.ready {
		if e.Priority < at.Priority || e.Priority == at.Priority && e.rank() > at.Key {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b Entry) int { return cmp.Or(cmp.Compare(b.Priority, a.Priority), byRank(a, b)) })
	return list
}

func (m *model) oldest() (oldest Entry) {
	for _, e := range m.ready {
		if oldest.Seq == 0 || e.rank() < oldest.rank() {
			oldest = e
		}
	}
	return oldest
}

// soonest is the first expiry of messages that may go from anywhere, 0 for none.
func (m *model) soonest() (at int64) {
	if m.cfg.ExpireAnywhere && !m.transit {
		for _, e := range m.ready {
			at = earliest(at, e.Expiry)
		}
	}
	return at
}

// expunge removes what has expired, wherever it is, in order of Seq.
func (m *model) expunge(now int64) (dead []Dead) {
	if !m.cfg.ExpireAnywhere {
		return nil
	}
	m.ready = slices.DeleteFunc(m.ready, func(e Entry) bool {
		if e.expired(now) {
			dead = append(dead, Dead{e, Expired})
		}
		return e.expired(now)
	})
	slices.SortFunc(dead, bySeq)
	return dead
}

func bySeq(a, b Dead) int { return cmp.Compare(a.Entry.Seq, b.Entry.Seq) }

func (m *model) delayedBytes() (n int64) {
	for _, e := range m.delayed {
		n += int64(e.Size)
	}
	return n
}

func (m *model) over(extra int, size int64) bool {
	return m.cfg.MaxLength != None && int64(len(m.ready)+extra) > m.cfg.MaxLength ||
		m.cfg.MaxBytes != None && m.bytes()+size > m.cfg.MaxBytes
}

func (m *model) pop() Entry {
	h := m.head()
	e := m.ready[h]
	m.ready = slices.Delete(m.ready, h, h+1)
	if m.transit {
		m.arrivals = m.arrivals[1:]
	}
	return e
}

// arrive makes a message ready.
func (m *model) arrive(e Entry) {
	if len(m.ready) == 0 {
		m.arrivals, m.beyond = nil, nil
	}
	if m.transit && m.room() <= len(m.ready) && m.cfg.MaxBytes != None {
		m.beyond = append(m.beyond, e)
	}
	m.ready = append(m.ready, e)
	m.arrivals = append(m.arrivals, e.Priority)
}

// room is how many messages the consumers would take now.
func (m *model) room() (n int) {
	for _, c := range m.takers() {
		switch {
		case c.blocked():
		case c.Credited:
			n += int(c.credit)
		case c.NoAck || c.Prefetch == 0:
			n += 1000
		default:
			n += int(c.Prefetch) - c.held
		}
	}
	return n
}

// park notes whom the queue asked in vain: which of its equals that were is its own choice.
func (m *model) park() {
	for _, c := range m.takers() {
		c.parked = c.blocked() && c.state == parked
	}
}

// doom is what e dies of in a queue that is empty but for it, if anything.
func (m *model) doom(e Entry, now int64) []Dead {
	switch {
	case m.cfg.Overflow == DropHead && (m.cfg.MaxLength == 0 || m.cfg.MaxBytes != None && int64(e.Size) > m.cfg.MaxBytes):
		return []Dead{{e, MaxLen}}
	case e.expired(now):
		return []Dead{{e, Expired}}
	}
	return nil
}

// enter makes a message ready, in transit or not, and says who dies of it.
func (m *model) enter(e Entry, now int64) []Dead {
	if m.transit && e.expired(now) && len(m.ready) == m.room() {
		if m.stranded = len(m.ready) > 0; !m.stranded {
			for _, c := range m.takers() {
				c.parked = true
			}
		}
		return m.doom(e, now)
	}
	if m.cfg.Fleeting && !m.transit && e.expired(now) {
		return []Dead{{e, Expired}}
	}
	m.arrive(e)
	if m.transit {
		return nil
	}
	limit := sweep
	dead := m.trim(&limit)
	if limit = sweep; len(dead) > 0 || len(m.ready) == 1 {
		dead = append(dead, m.expire(now, &limit)...)
	}
	return dead
}

func (m *model) trim(limit *int) (dead []Dead) {
	for *limit > 0 && m.cfg.Overflow == DropHead && len(m.ready) > 0 && m.over(0, 0) {
		dead = append(dead, Dead{m.pop(), MaxLen})
		*limit--
	}
	return dead
}

func (m *model) due(now int64) bool {
	if len(m.ready) == 0 || m.transit {
		return false
	}
	at := m.ready[m.head()].Expiry
	return at != 0 && at <= now
}

func (m *model) expire(now int64, limit *int) (dead []Dead) {
	for *limit > 0 && m.due(now) {
		dead = append(dead, Dead{m.pop(), Expired})
		*limit--
	}
	return dead
}

// TestModel runs random operations against the queue and the model and compares all that can be
// seen. Which consumer of several equal ones gets a message is the queue's choice here.
func TestModel(t *testing.T) {
	for range 5 { // times rapid's 100
		t.Run("", testModel)
	}
}

func testModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := func(name string, most int64) int64 {
			return rapid.OneOf(rapid.Just(int64(None)), rapid.Int64Range(0, most)).Draw(t, name)
		}
		cfg := Config{
			MessageTTL:    limit("ttl", 20),
			Expires:       None,
			MaxLength:     limit("max-length", 12),
			MaxBytes:      limit("max-bytes", 60),
			Overflow:      rapid.SampledFrom([]Overflow{DropHead, DropHead, RejectPublish, RejectPublishDLX}).Draw(t, "overflow"),
			MaxPriority:   int(limit("max-priority", 3)),
			SingleActive:  rapid.Bool().Draw(t, "single"),
			DeliveryLimit: limit("delivery-limit", 3),

			ExpireAnywhere: rapid.Bool().Draw(t, "anywhere"),
			OfferFirst:     rapid.Bool().Draw(t, "offer first"),
		}
		cfg.Fleeting = cfg.MessageTTL == 0 && rapid.Bool().Draw(t, "fleeting")
		q := newQueue(cfg)
		m := &model{cfg: cfg, nextSeq: 1, fresh: map[uint64]bool{}}
		var out Effects
		now, committed := int64(1000), uint64(1)
		byConsumer := map[*Consumer]*modelConsumer{}

		wantDead := func(want []Dead) {
			t.Helper()
			if !slices.Equal(out.Dead, want) {
				t.Fatalf("dead %+v, want %+v", out.Dead, want)
			}
			out.Dead = nil
		}
		// someUnacked picks one and takes it out of the model.
		someUnacked := func(t *rapid.T) (*Consumer, Entry) {
			if len(m.unacked) == 0 {
				t.Skip("nothing unacked")
			}
			i := rapid.IntRange(0, len(m.unacked)-1).Draw(t, "unacked")
			d := m.unacked[i]
			m.unacked = slices.Delete(m.unacked, i, i+1)
			if c := byConsumer[d.Consumer]; c != nil {
				c.held--
			}
			return d.Consumer, d.Entry
		}
		someConsumer := func(t *rapid.T) *modelConsumer {
			if len(m.consumers) == 0 {
				t.Skip("no consumer")
			}
			return rapid.SampledFrom(m.consumers).Draw(t, "consumer")
		}

		places := [...]Place{Before(false), Before(true)}
		t.Repeat(map[string]func(*rapid.T){
			"publish": func(t *rapid.T) {
				s := sent{
					size:      rapid.IntRange(0, 3).Draw(t, "size") * 10,
					priority:  rapid.Uint8Range(0, 5).Draw(t, "priority"),
					journaled: rapid.Bool().Draw(t, "journaled"),
				}
				if rapid.Bool().Draw(t, "expires") {
					s.expiration = rapid.Int64Range(-1, 10).Draw(t, "expiration")
				}
				if rapid.IntRange(0, 2).Draw(t, "delayed") == 0 {
					s.delay = rapid.Int64Range(0, 12).Draw(t, "delay")
				}
				msg := s.message()
				e, ok := q.Publish(msg, s.journaled, now, &out)

				dead := m.ripen(now)
				takers := m.takers()
				transit := s.delay == 0 && len(takers) > 0 && (len(m.ready) == 0 || m.transit)
				want := Entry{Msg: msg, Seq: m.nextSeq, Size: uint32(s.size), Journaled: s.journaled, Transient: s.journaled && !msg.Persistent}
				if ttl := msg.Expiration; ttl >= 0 || m.cfg.MessageTTL != None {
					if ttl < 0 || m.cfg.MessageTTL != None && m.cfg.MessageTTL < ttl {
						ttl = m.cfg.MessageTTL
					}
					want.Expiry = now + s.delay + ttl
				}
				if s.delay > 0 {
					want.Due = now + s.delay
				}
				if m.cfg.MaxPriority != None {
					want.Priority = uint8(min(int(s.priority), m.cfg.MaxPriority))
				}
				refused := false
				for m.cfg.Overflow != DropHead {
					// What consumers have room for leaves before the message arrives.
					stay := len(m.ready)
					if transit {
						stay = max(0, stay-m.room())
					}
					refused = m.cfg.MaxLength != None && int64(stay)+1 > max(0, m.cfg.MaxLength-int64(len(m.delayed)))
					if m.cfg.MaxBytes != None {
						bytes := int64(s.size)
						switch {
						case stay == 0:
						case transit && stay == len(m.beyond):
							for _, e := range m.beyond {
								bytes += int64(e.Size)
							}
						default: // the queue does not look which of them stay
							bytes += m.bytes()
						}
						refused = refused || bytes > max(0, m.cfg.MaxBytes-m.delayedBytes())
					}
					if !refused || !m.due(now) {
						break
					}
					dead = append(dead, Dead{m.pop(), Expired})
					transit = s.delay == 0 && len(takers) > 0 && len(m.ready) == 0
				}
				if refused {
					if m.cfg.Overflow == RejectPublishDLX {
						want.Seq, want.Journaled, want.Transient = 0, false, false
						dead = append(dead, Dead{want, MaxLen})
					}
					want = Entry{}
				} else if want.Due != 0 {
					m.nextSeq++
					m.delayed = append(m.delayed, want)
					if s.journaled {
						m.fresh[want.Seq] = true
					}
				} else {
					m.nextSeq++
					m.transit = transit
					dead = append(dead, m.enter(want, now)...)
				}
				if ok == refused || e != want {
					t.Fatalf("published %+v, %v, want %+v, %v", e, ok, want, !refused)
				}
				wantDead(dead)
			},
			"append": func(t *rapid.T) {
				for _, e := range slices.Concat(m.ready, m.delayed) {
					if e.Journaled && e.Msg != nil && e.Msg.Position() == 0 && rapid.Bool().Draw(t, "append") {
						e.Msg.SetPosition(committed + rapid.Uint64Range(0, 5).Draw(t, "at"))
					}
				}
			},
			"page out": func(t *rapid.T) {
				var gone []*message.Message
				limit := rapid.IntRange(1, 20).Draw(t, "limit")
				q.PageOut(rapid.Int64Range(0, 1000).Draw(t, "keep"), committed, limit, &gone)
				m.settle(committed, limit)
				for _, msg := range gone {
					list := m.ready
					i := slices.IndexFunc(list, func(e Entry) bool { return e.Msg == msg })
					if i < 0 {
						list = m.delayed
						i = slices.IndexFunc(list, func(e Entry) bool { return e.Msg == msg })
					}
					if i < 0 {
						t.Fatal("paged out a message that is not there")
					}
					e := &list[i]
					if !e.Journaled || msg.Position() == 0 || msg.Position() >= committed {
						t.Fatalf("paged out %+v, which is not committed", *e)
					}
					e.Msg, e.Pos = nil, msg.Position()
				}
			},
			"commit": func(t *rapid.T) { committed += rapid.Uint64Range(1, 8).Draw(t, "by") },
			"tick":   func(t *rapid.T) { now += rapid.Int64Range(1, 6).Draw(t, "ms") },
			"dispatch": func(t *rapid.T) {
				left := rapid.IntRange(1, 8).Draw(t, "limit")
				more := q.Dispatch(now, committed, left, &out)

				got := out.Deliver
				out.Deliver = nil
				m.settle(committed, sweep)
				dead := m.ripen(now)
				wantMore := false
				for len(m.ready) > 0 {
					if left == 0 { // the end: whom the queue asked in vain is parked by now
						m.park()
					}
					takers := m.takers()
					if len(takers) == 0 {
						if m.transit && m.cfg.MaxPriority != None && len(m.ready) <= left && m.cfg.Overflow == DropHead && m.over(0, 0) {
							var all []Entry
							for len(m.ready) > 0 {
								all = append(all, m.pop())
							}
							m.transit = false
							for _, e := range all {
								gone := m.enter(e, now)
								dead = append(dead, gone...)
								left -= len(gone)
							}
						}
						m.transit = false
						for dead = append(dead, m.expire(now, &left)...); left > 0; dead = append(dead, m.expire(now, &left)...) {
							one := 1
							gone := m.trim(&one)
							if len(gone) == 0 {
								break
							}
							dead = append(dead, gone...)
							left--
						}
						wantMore = left == 0 && (m.due(now) || m.cfg.Overflow == DropHead && len(m.ready) > 0 && m.over(0, 0))
						break
					}
					if left == 0 {
						wantMore = true
						break
					}
					if m.due(now) {
						one := 1
						dead = append(dead, m.expire(now, &one)...)
						left--
						continue
					}
					head := m.ready[m.head()]
					if m.waits(head, committed) {
						m.park()
						if len(m.takers()) == 0 {
							continue
						}
						break
					}
					open := slices.DeleteFunc(slices.Clone(takers), (*modelConsumer).blocked)
					if len(open) == 0 {
						for _, c := range takers {
							c.parked = true
						}
						continue
					}
					if len(got) == 0 || got[0].Entry != head {
						t.Fatalf("deliveries %+v, next should be %+v", got, head)
					}
					c := byConsumer[got[0].Consumer]
					for _, other := range open {
						if other.Priority > c.Priority {
							t.Fatalf("priority %d got a message that %d would have taken", c.Priority, other.Priority)
						}
					}
					if !slices.Contains(open, c) {
						t.Fatalf("consumer of priority %d got a message and may not", c.Priority)
					}
					for _, other := range takers {
						if other.blocked() && other.Priority > c.Priority {
							other.parked = true
						}
					}
					m.pop()
					left--
					if c.Credited {
						c.credit--
					}
					if !c.NoAck {
						c.held++
						m.unacked = append(m.unacked, got[0])
					}
					got = got[1:]
				}
				if len(got) > 0 || more != wantMore {
					t.Fatalf("deliveries too many: %+v; more %v, want %v", got, more, wantMore)
				}
				if m.stranded && len(m.ready) == 0 {
					m.stranded = false
					m.park()
				}
				for _, c := range m.consumers {
					if c.parked && c.state != parked || c.state == parked && !c.parked && !c.blocked() {
						t.Fatalf("consumer in state %d, parked in the model: %v", c.state, c.parked)
					}
					c.parked = c.state == parked
				}
				wantDead(dead)
			},
			"get": func(t *rapid.T) {
				e, ok := q.Get(now, &out)
				dead := m.ripen(now)
				limit := len(m.ready)
				dead = append(dead, m.expire(now, &limit)...)
				var want Entry
				if len(m.ready) > 0 {
					want = m.pop()
					m.unacked = append(m.unacked, Delivery{nil, want})
				}
				if e != want || ok != (want.Seq != 0) {
					t.Fatalf("got %+v, %v, want %+v", e, ok, want)
				}
				wantDead(dead)
			},
			"ack": func(t *rapid.T) {
				c, e := someUnacked(t)
				q.Ack(c, &e)
			},
			"requeue": func(t *rapid.T) {
				c, e := someUnacked(t)
				q.Requeue(c, e, now, &out)
				q.Requeued(&out)

				e.Redelivered = true
				e.Deliveries++
				var dead []Dead
				switch {
				case m.cfg.DeliveryLimit != None && int64(e.Deliveries) > m.cfg.DeliveryLimit:
					dead = []Dead{{e, DeliveryLimit}}
				case m.transit && len(m.ready) > 0 && m.cfg.OfferFirst && e.expired(now):
					dead = []Dead{{e, Expired}}
				case m.transit && len(m.ready) > 0 && !m.cfg.OfferFirst && m.doom(e, now) != nil:
					dead = m.doom(e, now)
				default:
					m.transit = m.transit && len(m.ready) > 0
					m.arrive(e)
				}
				if limit := sweep; !m.transit && !m.cfg.OfferFirst {
					dead = append(dead, m.trim(&limit)...)
				}
				wantDead(dead)
			},
			"consume": func(t *rapid.T) {
				if len(m.consumers) == 6 {
					t.Skip("enough consumers")
				}
				c := &modelConsumer{gate: &gate{n: -1}, Consumer: &Consumer{
					NoAck:    rapid.Bool().Draw(t, "noack"),
					Priority: rapid.Int64Range(-1, 1).Draw(t, "priority"),
					Prefetch: rapid.Uint32Range(0, 3).Draw(t, "prefetch"),
					Credited: rapid.IntRange(0, 3).Draw(t, "credited") == 0,
				}}
				c.Receiver = c.gate
				byConsumer[c.Consumer] = c
				q.AddConsumer(c.Consumer)
				m.consumers = append(m.consumers, c)
				if m.cfg.SingleActive && m.active == nil {
					m.active = c
				}
			},
			"cancel": func(t *rapid.T) {
				c := someConsumer(t)
				q.RemoveConsumer(c.Consumer)
				m.consumers = slices.DeleteFunc(m.consumers, func(x *modelConsumer) bool { return x == c })
				if m.active == c {
					m.active = nil
					for _, x := range m.consumers {
						if m.active == nil || x.Priority > m.active.Priority {
							m.active = x
						}
					}
				}
				if len(m.takers()) == 0 {
					m.transit = false
				}
			},
			"grant": func(t *rapid.T) {
				c := someConsumer(t)
				if !c.Credited {
					t.Skip("not credited")
				}
				n := rapid.Uint64Range(0, 5).Draw(t, "n")
				q.Grant(c.Consumer, n)
				c.credit += n
			},
			"block": func(t *rapid.T) { someConsumer(t).gate.n = 0 },
			"wake": func(t *rapid.T) {
				c := someConsumer(t)
				c.gate.n = -1
				q.Wake(c.Consumer)
				c.parked = false
			},
			"expire": func(t *rapid.T) {
				q.Expire(now, &out)
				dead := m.ripen(now)
				if limit := sweep; !m.transit || len(m.ready) == 0 {
					dead = append(append(dead, m.expire(now, &limit)...), m.trim(&limit)...)
					if gone := m.expunge(now); len(out.Dead) == len(dead)+len(gone) {
						slices.SortFunc(out.Dead[len(dead):], bySeq)
						dead = append(dead, gone...)
					}
				}
				wantDead(dead)
			},
			"reconfigure": func(t *rapid.T) {
				m.cfg.MaxLength, m.cfg.MaxBytes, m.cfg.MessageTTL = limit("max-length", 12), limit("max-bytes", 60), limit("ttl", 20)
				m.cfg.ExpireAnywhere = rapid.Bool().Draw(t, "anywhere")
				q.Reconfigure(m.cfg, now, &out)
				m.beyond = nil
				dead := m.ripen(now)
				if limit := sweep; !m.transit || len(m.ready) == 0 {
					dead = append(append(dead, m.expire(now, &limit)...), m.trim(&limit)...)
					if gone := m.expunge(now); len(out.Dead) == len(dead)+len(gone) {
						slices.SortFunc(out.Dead[len(dead):], bySeq)
						dead = append(dead, gone...)
					}
				}
				wantDead(dead)
			},
			"browse": func(t *rapid.T) {
				at := &places[rapid.IntRange(0, 1).Draw(t, "which")]
				if rapid.IntRange(0, 3).Draw(t, "anew") == 0 {
					*at = Before(at.Delayed)
				}
				limit := rapid.IntRange(1, 5).Draw(t, "limit")
				want := m.behind(*at)
				var got []Entry
				more := q.Browse(at, limit, &got)
				if n := min(limit, len(want)); !slices.Equal(got, want[:n]) || len(want) > n && !more {
					t.Fatalf("browsed %+v, more %v; want of %+v", got, more, want)
				}
				if oldest, want := q.Oldest(), m.oldest(); want.Seq == 0 && oldest != nil || want.Seq != 0 && *oldest != want {
					t.Fatalf("oldest %+v, want %+v", oldest, want)
				}
			},
			"withdraw": func(t *rapid.T) {
				var places []Place
				var want []Entry
				m.ready = slices.DeleteFunc(m.ready, func(e Entry) bool {
					if rapid.IntRange(0, 2).Draw(t, "not") > 0 {
						return false
					}
					places = append(places, e.Place(false))
					want = append(want, e)
					return true
				})
				for _, e := range want {
					if i := slices.Index(m.arrivals, e.Priority); m.transit && i >= 0 {
						m.arrivals = slices.Delete(m.arrivals, i, i+1)
					}
				}
				places = append(places, Place{Key: m.nextSeq + 5}, Place{Priority: 200, Key: 1})
				var got []Entry
				q.Withdraw(places, &got)
				slices.SortFunc(got, func(a, b Entry) int { return cmp.Compare(a.Seq, b.Seq) })
				slices.SortFunc(want, func(a, b Entry) int { return cmp.Compare(a.Seq, b.Seq) })
				if !slices.Equal(got, want) {
					t.Fatalf("withdrew %+v, want %+v", got, want)
				}
				for _, e := range got {
					if rapid.Bool().Draw(t, "return") {
						q.Return(e)
						m.ready = append(m.ready, e)
						m.transit = false
					}
				}
			},
			"purge": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "really") > 0 {
					t.Skip("rarely")
				}
				var got, want []Entry
				n := purge(q, &got)
				m.transit = false
				for len(m.ready) > 0 {
					want = append(want, m.pop())
				}
				for i := m.nextDelayed(); i >= 0; i = m.nextDelayed() {
					want = append(want, m.delayed[i])
					m.delayed = slices.Delete(m.delayed, i, i+1)
				}
				want = append(want, m.delayed...) // fresh, in order of Seq
				m.delayed = nil
				clear(m.fresh)
				if n != len(want) || !slices.Equal(got, want) {
					t.Fatalf("purged %+v, want %+v", got, want)
				}
			},
			"": func(t *rapid.T) {
				if err := q.check(); err != nil {
					t.Fatal(err)
				}
				unackedBytes := int64(0)
				for _, d := range m.unacked {
					unackedBytes += int64(d.Entry.Size)
				}
				at := int64(0)
				if len(m.ready) > 0 && !m.transit {
					if at = m.ready[m.head()].Expiry; m.cfg.Overflow == DropHead && m.over(0, 0) {
						at = 1
					}
				}
				if i := m.nextDelayed(); i >= 0 && (at == 0 || m.delayed[i].Due < at) {
					at = m.delayed[i].Due
				}
				if anywhere := m.soonest(); anywhere != 0 && (at == 0 || anywhere < at) {
					at = anywhere
				}
				if got := q.NextExpiry(); got != at && !(m.cfg.ExpireAnywhere && (at == 0 || got < at || got <= now)) {
					t.Fatalf("next expiry %d, want %d", q.NextExpiry(), at)
				}
				got := fmt.Sprint(q.Delayed(), q.DelayedBytes(), q.Len(), q.Bytes(), q.Unacked(), q.UnackedBytes(), q.Consumers(), q.NextSeq(), len(out.Deliver))
				want := fmt.Sprint(len(m.delayed), m.delayedBytes(), len(m.ready), m.bytes(), len(m.unacked), unackedBytes, len(m.consumers), m.nextSeq, 0)
				if got != want {
					t.Fatalf("counts %s, want %s", got, want)
				}
				for c, mc := range byConsumer {
					if q.Inflight(c) != uint64(mc.held) {
						t.Fatalf("inflight %d, want %d", q.Inflight(c), mc.held)
					}
				}
				if m.active != nil && q.Active() != m.active.Consumer || m.active == nil && q.Active() != nil {
					t.Fatal("another consumer is active")
				}
			},
		})
	})
}
