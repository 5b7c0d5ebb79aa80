package broker

import (
	"sync"
	"sync/atomic"
)

// QueueStats count what became of messages, as far as a queue knows it.
type QueueStats struct {
	Publish               uint64 // received from publishers; into a queue
	Deliver, DeliverNoAck uint64
	Redeliver, Ack        uint64

	Duplicate               uint64 // repetitions that a queue did not take again
	Get, GetNoAck, GetEmpty uint64
}

// MessageStats count what became of messages: a channel, a vhost and the broker know all of it, a queue only the first part.
type MessageStats struct {
	QueueStats

	PublishConfirm   uint64 // of the publishes, with a confirm wanted
	Routed           uint64 // one for each queue that a publish reached
	Confirm          uint64
	ReturnUnroutable uint64
	DropUnroutable   uint64

	// Bytes and Sizes are the body sizes of what was published: Sizes[i] counts those of at most
	// SizeBounds[i] and above the bound before, the last one the rest.
	Bytes uint64
	Sizes [len(SizeBounds) + 1]uint64
}

// SizeBounds are the upper bounds of MessageStats.Sizes in bytes.
var SizeBounds = [...]int{100, 1000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000}

// Delivered is every message that was handed to a client.
func (s *QueueStats) Delivered() uint64 { return s.Get + s.GetNoAck + s.Deliver + s.DeliverNoAck }

// Add adds o to s.
func (s *MessageStats) Add(o *MessageStats) {
	s.Publish += o.Publish
	s.PublishConfirm += o.PublishConfirm
	s.Routed += o.Routed
	s.Confirm += o.Confirm
	s.ReturnUnroutable += o.ReturnUnroutable
	s.DropUnroutable += o.DropUnroutable
	s.Duplicate += o.Duplicate
	s.Get += o.Get
	s.GetNoAck += o.GetNoAck
	s.GetEmpty += o.GetEmpty
	s.Deliver += o.Deliver
	s.DeliverNoAck += o.DeliverNoAck
	s.Redeliver += o.Redeliver
	s.Ack += o.Ack
	s.Bytes += o.Bytes
	for i := range s.Sizes {
		s.Sizes[i] += o.Sizes[i]
	}
}

// received counts a run of publishes with one route, before it is carried out.
func (s *MessageStats) received(pubs []publish) {
	s.Publish += uint64(len(pubs))
	s.Routed += uint64(len(pubs) * len(pubs[0].queues))
	for i := range pubs {
		if pubs[i].seq != 0 {
			s.PublishConfirm++
		}
		size := len(pubs[i].msg.Body())
		s.Bytes += uint64(size)
		bucket := 0
		for bucket < len(SizeBounds) && size > SizeBounds[bucket] {
			bucket++
		}
		s.Sizes[bucket]++
	}
}

// delivered counts deliveries to one consumer.
func (s *QueueStats) delivered(noAck bool, n, redelivered uint64) {
	if noAck {
		s.DeliverNoAck += n
	} else {
		s.Deliver += n
	}
	s.Redeliver += redelivered
}

// got counts one message that was asked for.
func (s *QueueStats) got(noAck, redelivered bool) {
	if noAck {
		s.GetNoAck++
	} else {
		s.Get++
	}
	if redelivered {
		s.Redeliver++
	}
}

// ExchangeStats count the messages of one exchange: In were published to it, Out were given from it
// to queues, one for each queue. Any goroutine.
type ExchangeStats struct {
	In, Out atomic.Uint64
	gone    atomic.Bool // the exchange is deleted
}

// exchangeTally collects a channel's publishes for the exchange they went to, so that the shared
// counters are touched once for a stretch of them. Owned by the connection's reader.
type exchangeTally struct {
	name    string
	stats   *ExchangeStats // nil: nothing collected
	in, out uint64
}

// count adds a run of publishes with one route and one exchange.
func (ch *Channel) count(pubs []publish) {
	x := &ch.exchange
	name := pubs[0].msg.Exchange()
	if x.stats == nil || x.name != string(name) || x.stats.gone.Load() {
		x.settle()
		x.name, x.stats = string(name), ch.conn.exchangeStats(string(name))
	}
	x.in += uint64(len(pubs))
	x.out += uint64(len(pubs) * len(pubs[0].queues))
}

func (x *exchangeTally) settle() {
	if x.stats != nil && x.in > 0 {
		x.stats.In.Add(x.in)
		x.stats.Out.Add(x.out)
	}
	x.in, x.out = 0, 0
}

// exchangeStats finds the counters of an exchange; nil if it is gone.
func (c *Conn) exchangeStats(name string) *ExchangeStats {
	if name == "" {
		return &c.vhost.direct
	}
	c.b.topo.RLock()
	defer c.b.topo.RUnlock()
	if x := c.vhost.exchanges[name]; x != nil {
		return x.stats
	}
	return nil
}

// census is the channels that are open, and what those did that are closed. Its lock comes before
// the Peers' and after none.
type census struct {
	mu       sync.Mutex
	channels map[*Channel]struct{}    // guarded by mu
	past     map[string]*MessageStats // by protocol; guarded by mu
}

func (s *census) open(ch *Channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.channels[ch] = struct{}{}
}

// close moves what the channel did to the past of its protocol and vhost.
func (s *census) close(ch *Channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.channels, ch)
	ch.peer.Lock()
	did := ch.stats
	ch.peer.Unlock()
	p := ch.conn.info.Protocol
	if s.past[p] == nil {
		s.past[p] = new(MessageStats)
	}
	s.past[p].Add(&did)
	ch.conn.vhost.past.Add(&did)
}

// Traffic is what a broker did so far, by protocol and by vhost. Numbers only grow, but for a vhost
// that is deleted and made again.
type Traffic struct {
	Protocols map[string]*MessageStats
	VHosts    map[string]*MessageStats
	// Publishers are the open channels that published, Consumers the consumers; by protocol.
	Publishers, Consumers map[string]int
}

// Traffic adds up what all channels did, open and closed ones. It locks each channel for a moment.
func (b *Broker) Traffic() Traffic {
	t := Traffic{
		Protocols: make(map[string]*MessageStats), VHosts: make(map[string]*MessageStats),
		Publishers: make(map[string]int), Consumers: make(map[string]int),
	}
	b.topo.RLock()
	vhosts := make([]*VHost, 0, len(b.vhosts))
	for _, v := range b.vhosts {
		vhosts = append(vhosts, v)
	}
	b.topo.RUnlock()
	b.census.mu.Lock()
	for p, s := range b.census.past {
		copied := *s
		t.Protocols[p] = &copied
	}
	for _, v := range vhosts {
		copied := v.past
		t.VHosts[v.name] = &copied
	}
	for ch := range b.census.channels {
		ch.peer.Lock()
		s := ch.stats
		ch.peer.Unlock()
		p := ch.conn.info.Protocol
		if t.Protocols[p] == nil {
			t.Protocols[p] = new(MessageStats)
		}
		t.Protocols[p].Add(&s)
		if v := t.VHosts[ch.conn.vhost.name]; v != nil {
			v.Add(&s)
		}
		if s.Publish > 0 {
			t.Publishers[p]++
		}
	}
	b.census.mu.Unlock()
	for _, c := range b.connections() {
		c.mu.Lock()
		t.Consumers[c.info.Protocol] += len(c.consumers)
		c.mu.Unlock()
	}
	return t
}

// Total is the sum over all protocols.
func (t *Traffic) Total() MessageStats {
	var sum MessageStats
	for _, s := range t.Protocols {
		sum.Add(s)
	}
	return sum
}

// LoginAttempts count the logins of one protocol. Any goroutine.
type LoginAttempts struct{ Succeeded, Failed atomic.Uint64 }

// Logins gives the attempts by protocol.
func (b *Broker) Logins() map[string]*LoginAttempts {
	all := make(map[string]*LoginAttempts)
	b.logins.Range(func(p, n any) bool {
		all[p.(string)] = n.(*LoginAttempts)
		return true
	})
	return all
}

func (b *Broker) loginAttempt(protocol string, ok bool) {
	n, known := b.logins.Load(protocol)
	if !known {
		n, _ = b.logins.LoadOrStore(protocol, new(LoginAttempts))
	}
	if ok {
		n.(*LoginAttempts).Succeeded.Add(1)
	} else {
		n.(*LoginAttempts).Failed.Add(1)
	}
}
