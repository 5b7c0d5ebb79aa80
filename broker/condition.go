package broker

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/broker/queue"
)

// What a report of the broker's health needs to know beside the views.

// Condition is what keeps a queue's messages where they are.
type Condition struct {
	Config queue.Config
	// Rejecting: it is at a limit, and refuses what is published. Dropping: it is, and its oldest messages go.
	Rejecting, Dropping bool
	// DeadLetters says where its dead letters go; "" for nowhere.
	DeadLetters DeadLetters
	// Of its consumers: Full ones hold as much as they may, Closed ones do not read what they are sent, or were
	// granted no credit. Those of a single active consumer that only stand by are neither.
	Full, Closed int
}

// DeadLetters says whether a queue's dead letters arrive.
type DeadLetters uint8

const (
	DeadLettersNone     DeadLetters = iota // it has no dead-letter exchange
	DeadLettersArrive                      // as far as one can see without a message
	DeadLettersNoTarget                    // the exchange is there, and nothing is bound to it or of that name
	DeadLettersMissing                     // there is no such exchange
)

// Condition looks at a queue. The name is that of its dead-letter exchange.
func (q *Queue) Condition() (c Condition, exchange string) {
	s := q.settings.Load()
	if s.DeadLetterExchange != nil {
		exchange = *s.DeadLetterExchange
		c.DeadLetters = q.b.deadLetters(q, &s.Settings)
	}
	c.Config = s.Config
	q.mu.Lock()
	defer q.mu.Unlock()
	n, bytes := int64(q.sm.Len()), q.sm.Bytes()
	if c.Config.Overflow != queue.DropHead {
		n, bytes = n+int64(q.sm.Delayed()), bytes+q.sm.DelayedBytes()
	}
	limited := c.Config.MaxLength > 0 && n >= c.Config.MaxLength || c.Config.MaxBytes > 0 && bytes >= c.Config.MaxBytes
	c.Rejecting = limited && c.Config.Overflow != queue.DropHead
	c.Dropping = limited && c.Config.Overflow == queue.DropHead
	for k := range q.members {
		switch {
		case !q.sm.Serves(&k.Consumer):
		case k.full(q):
			c.Full++
		case !k.ch.peer.Writable() || q.sm.Spent(&k.Consumer):
			c.Closed++
		}
	}
	return c, exchange
}

// full says whether a consumer holds as many messages as it may. Its queue's lock is held.
func (c *Consumer) full(q *Queue) bool {
	if c.NoAck || c.Credited {
		return false
	}
	limit := c.ch.limit.Load()
	return q.sm.Spent(&c.Consumer) || limit > 0 && c.ch.inflight.Load() >= limit
}

func (b *Broker) deadLetters(q *Queue, s *policy.Settings) DeadLetters {
	name := *s.DeadLetterExchange
	if name == "" {
		if s.DeadLetterKey == nil {
			return DeadLettersArrive // under their own keys: who knows
		}
		if _, ok := b.Queue(q.vhost, *s.DeadLetterKey); !ok {
			return DeadLettersNoTarget
		}
		return DeadLettersArrive
	}
	x, ok := b.Exchange(q.vhost, name)
	if !ok {
		return DeadLettersMissing
	}
	_, own := x.Args.Get("alternate-exchange")
	_, governed := x.Governing.Definition.Get("alternate-exchange")
	if own || governed || b.routes.HasBindings(q.vhost, name) {
		return DeadLettersArrive
	}
	return DeadLettersNoTarget
}

// Holding is a channel that has had a message for long.
type Holding struct {
	Holder
	VHost, Queue string
	Unacked      int // on the channel, of all queues
	Prefetch     uint32
	Full         bool // it gets nothing more until it acknowledges
	q            *Queue
	c            *Consumer
}

// HoldingSince lists the channels whose oldest unacked delivery came at a time, Unix ms, or before, the oldest first. It
// takes the time of a look at each channel.
func (b *Broker) HoldingSince(before int64) []Holding {
	var list []Holding
	for _, ch := range b.channels() {
		ch.peer.Lock()
		// The first slot is never a hole (see unacked.trim).
		if ch.unacked.live > 0 && ch.unacked.at(0).at <= before {
			s := ch.unacked.at(0)
			h := Holding{
				Holder: Holder{Connection: &ch.conn.info, User: ch.conn.User(), Channel: ch.number, Tag: s.tag, At: s.at},
				VHost:  s.q.vhost, Queue: s.q.name, Unacked: ch.unacked.live, q: s.q, c: s.c,
			}
			if s.c != nil {
				h.Consumer, h.Prefetch = s.c.Tag, s.c.Prefetch
			}
			list = append(list, h)
		}
		ch.peer.Unlock()
	}
	for i := range list {
		h := &list[i]
		if h.c != nil {
			h.q.mu.Lock()
			_, member := h.q.members[h.c]
			h.Full = member && h.c.full(h.q)
			h.q.mu.Unlock()
		}
	}
	slices.SortFunc(list, func(a, b Holding) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Connection.Name, b.Connection.Name))
	})
	return list
}

// Slowed is a connection whose publishes wait, although no alarm holds.
type Slowed struct {
	*ConnInfo
	User   string
	Reason Reason
	For    time.Duration
}

// Slowed lists the connections whose publishes have waited for at least so long, by name.
func (b *Broker) Slowed(least time.Duration) (list []Slowed) {
	now := time.Now().UnixNano()
	for _, c := range b.connections() {
		if c.info.Paused == nil {
			continue
		}
		paused, last := c.info.Paused()
		paused &= PauseJournal | PauseGrowth
		if d := time.Duration(now - last); paused != 0 && last != 0 && d >= least {
			list = append(list, Slowed{&c.info, c.User(), paused, d})
		}
	}
	slices.SortFunc(list, func(a, b Slowed) int { return strings.Compare(a.Name, b.Name) })
	return list
}
