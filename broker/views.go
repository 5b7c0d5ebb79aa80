package broker

import (
	"cmp"
	"iter"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/route"
)

// Inspection: what the broker holds, for operators. Any goroutine may call it; each object is
// locked for a moment, so a list is no snapshot of one instant.

// VHosts lists the names of all vhosts in order.
func (b *Broker) VHosts() []string {
	b.topo.RLock()
	names := make([]string, 0, len(b.vhosts))
	for name := range b.vhosts {
		names = append(names, name)
	}
	b.topo.RUnlock()
	slices.Sort(names)
	return names
}

// HasVHost reports whether there is a vhost of that name.
func (b *Broker) HasVHost(name string) bool {
	b.topo.RLock()
	defer b.topo.RUnlock()
	return b.vhosts[name] != nil
}

// ExchangeView is one exchange; the default one has an empty name.
type ExchangeView struct {
	VHost string
	Exchange
	Stats     *ExchangeStats
	Governing Governing // the policies that apply
	Alternate string    // exchange that gets what this one routes nowhere, of its argument or a policy; "": none
}

// Exchanges lists a vhost's exchanges by name, the default one first.
func (b *Broker) Exchanges(vhost string) []ExchangeView {
	b.topo.RLock()
	v := b.vhosts[vhost]
	if v == nil {
		b.topo.RUnlock()
		return nil
	}
	list := make([]ExchangeView, 0, len(v.exchanges)+1)
	list = append(list, v.defaultExchange())
	for _, x := range v.exchanges {
		list = append(list, x.view(vhost))
	}
	b.topo.RUnlock()
	slices.SortFunc(list, func(a, b ExchangeView) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Exchange finds one exchange; "" is the default one.
func (b *Broker) Exchange(vhost, name string) (ExchangeView, bool) {
	b.topo.RLock()
	defer b.topo.RUnlock()
	v := b.vhosts[vhost]
	switch {
	case v == nil:
		return ExchangeView{}, false
	case name == "":
		return v.defaultExchange(), true
	}
	x := v.exchanges[name]
	if x == nil {
		return ExchangeView{}, false
	}
	return x.view(vhost), true
}

// view is called with Broker.topo held.
func (x *Exchange) view(vhost string) ExchangeView {
	return ExchangeView{vhost, *x, x.stats, x.governing, policy.Alternate(x.alternate, x.governing.Definition)}
}

func (v *VHost) defaultExchange() ExchangeView {
	return ExchangeView{v.name, Exchange{Type: "direct", Durable: true}, &v.direct, Governing{}, ""}
}

// Bindings lists a vhost's bindings by source, destination and key: those of one source, of one
// destination or of both where these are given. The implicit bindings of the default exchange
// are among them, without those of other connections' queues being left out.
func (b *Broker) Bindings(vhost string, f BindingFilter) []route.Binding {
	var list []route.Binding
	implicit := 0 // at the start of the list: in order already, and before all others
	add := func(r route.Binding) bool {
		if f.matches(&r) {
			list = append(list, r)
		}
		return true
	}
	if f.Source == nil || *f.Source == "" {
		queues := b.queuesOf(vhost)
		if f.Dest == nil {
			list = make([]route.Binding, 0, len(queues))
		}
		for _, q := range queues {
			add(route.Binding{VHost: vhost, Dest: q.name, Key: q.name})
		}
		implicit = len(list)
	}
	switch {
	case f.Source != nil && *f.Source != "":
		b.routes.BindingsFrom(vhost, *f.Source, add)
	case f.Source != nil:
	case f.Dest != nil:
		b.routes.BindingsTo(vhost, f.ToExchange, *f.Dest, add)
	default:
		b.routes.Bindings(vhost, add)
	}
	slices.SortFunc(list[implicit:], func(a, b route.Binding) int {
		return cmp.Or(strings.Compare(a.Source, b.Source), strings.Compare(a.Dest, b.Dest), strings.Compare(a.Key, b.Key))
	})
	return list
}

// BindingFilter picks bindings; nil fields pick all.
type BindingFilter struct {
	Source     *string
	Dest       *string
	ToExchange bool // what Dest names
}

func (f *BindingFilter) matches(r *route.Binding) bool {
	return (f.Source == nil || *f.Source == r.Source) && (f.Dest == nil || *f.Dest == r.Dest && f.ToExchange == r.ToExchange)
}

// Queues lists a vhost's queues by name. The list is the caller's.
func (b *Broker) Queues(vhost string) []*Queue { return slices.Clone(b.queuesOf(vhost)) }

// queuesOf is Queues with a list that others have too.
func (b *Broker) queuesOf(vhost string) []*Queue {
	b.topo.RLock()
	v := b.vhosts[vhost]
	if v == nil {
		b.topo.RUnlock()
		return nil
	}
	s := v.sorted.Load()
	if s != nil && s.changes == v.changes {
		b.topo.RUnlock()
		return s.list
	}
	s = &sortedQueues{v.changes, make([]*Queue, 0, len(v.queues))}
	for _, q := range v.queues {
		s.list = append(s.list, q)
	}
	b.topo.RUnlock()
	slices.SortFunc(s.list, func(a, b *Queue) int { return strings.Compare(a.name, b.name) })
	v.sorted.Store(s)
	return s.list
}

// VHostTotals are what one vhost has, the default exchange among its exchanges.
type VHostTotals struct {
	Exchanges, Queues, Consumers int
	Ready, Unacked               int
}

// VHostTotals counts them now. It locks each queue for a moment.
func (b *Broker) VHostTotals(vhost string) (t VHostTotals) {
	b.topo.RLock()
	if v := b.vhosts[vhost]; v != nil {
		t.Exchanges = len(v.exchanges) + 1
	}
	b.topo.RUnlock()
	for _, q := range b.queuesOf(vhost) {
		t.Queues++
		q.mu.Lock()
		t.Consumers += len(q.members)
		t.Ready += q.sm.Len()
		t.Unacked += q.sm.Unacked()
		q.mu.Unlock()
	}
	return t
}

// sortedQueues are a vhost's queues by name, as they were after so many changes: who looks each second does not sort
// ten thousand names each time.
type sortedQueues struct {
	changes uint64
	list    []*Queue
}

// Queue finds one queue.
func (b *Broker) Queue(vhost, name string) (*Queue, bool) {
	b.topo.RLock()
	defer b.topo.RUnlock()
	if v := b.vhosts[vhost]; v != nil {
		q := v.queues[name]
		return q, q != nil
	}
	return nil, false
}

// Name and VHost identify a queue. Any goroutine, like the next ones.
func (q *Queue) Name() string  { return q.name }
func (q *Queue) VHost() string { return q.vhost }

// QueueCounts are a queue's sizes and counters at one instant.
type QueueCounts struct {
	Ready, Unacked           int
	ReadyBytes, UnackedBytes int64
	Delayed                  int // not due yet
	DelayedBytes             int64
	Persistent               int // of all three
	PersistentBytes          int64
	Consumers                int
	Stats                    MessageStats
	Keys                     int // of messages that are known, in a queue that de-duplicates
	Memory                   QueueMemory
}

// Counts reads a queue's sizes and counters.
func (q *Queue) Counts() QueueCounts {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.counts()
}

// counts is Counts with the lock held.
func (q *Queue) counts() QueueCounts {
	keys := 0
	if q.window != nil {
		keys = q.window.Len()
	}
	return QueueCounts{
		Ready: q.sm.Len(), Unacked: q.sm.Unacked(), ReadyBytes: q.sm.Bytes(), UnackedBytes: q.sm.UnackedBytes(),
		Delayed: q.sm.Delayed(), DelayedBytes: q.sm.DelayedBytes(),
		// What was purged a moment ago may not be off these yet.
		Persistent:      min(q.persistent, q.sm.Len()+q.sm.Unacked()+q.sm.Delayed()),
		PersistentBytes: min(q.persistentBytes, q.sm.Bytes()+q.sm.UnackedBytes()+q.sm.DelayedBytes()),
		Consumers:       len(q.members), Stats: MessageStats{QueueStats: q.stats}, Keys: keys, Memory: q.memory(),
	}
}

// QueueView is one queue.
type QueueView struct {
	VHost, Name                    string
	Durable, AutoDelete, Exclusive bool
	Args                           table.Table
	Type                           policy.Type
	MaxPriority                    int       // negative: not a priority queue
	Owner                          *ConnInfo // of an exclusive queue
	Governing                                // the policies that apply
	QueueCounts
	ExclusiveTag string // of an exclusive consumer
	ActiveTag    string // of the single active consumer
}

// View reads all about a queue.
func (q *Queue) View() QueueView {
	e := q.settings.Load()
	v := QueueView{
		VHost: q.vhost, Name: q.name, Durable: q.declared, AutoDelete: q.autoDelete, Exclusive: q.exclusive,
		Args: q.args, Type: e.Type, MaxPriority: e.Config.MaxPriority, Governing: e.Governing,
	}
	if q.owner != nil {
		v.Owner = &q.owner.info
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	v.QueueCounts = q.counts()
	active := q.sm.Active()
	if active != nil || q.sm.HasExclusive() {
		for c := range q.members {
			if &c.Consumer == active {
				v.ActiveTag = c.Tag
			}
			if c.Exclusive {
				v.ExclusiveTag = c.Tag
			}
		}
	}
	return v
}

// ConsumerView is one consumer.
type ConsumerView struct {
	Tag        string
	VHost      string
	Queue      string
	NoAck      bool
	Exclusive  bool
	Prefetch   uint32
	Active     bool
	Single     bool // its queue has single active consumer
	Args       table.Table
	Timeout    int64 // for acknowledgements, ms; 0: none
	Channel    uint16
	User       string
	Connection *ConnInfo
}

// Consumers lists a queue's consumers by tag.
func (q *Queue) Consumers() []ConsumerView {
	q.mu.Lock()
	active := q.sm.Active()
	list := make([]ConsumerView, 0, len(q.members))
	for c := range q.members {
		list = append(list, ConsumerView{
			Tag: c.Tag, VHost: q.vhost, Queue: q.name, NoAck: c.NoAck, Exclusive: c.Exclusive,
			Prefetch: c.Prefetch, Active: active == nil || &c.Consumer == active, Single: active != nil, Args: c.Args, Timeout: q.ackTimeout(c),
			Channel: c.ch.number, User: c.ch.conn.User(), Connection: &c.ch.conn.info,
		})
	}
	q.mu.Unlock()
	slices.SortFunc(list, func(a, b ConsumerView) int {
		return cmp.Or(strings.Compare(a.Tag, b.Tag), strings.Compare(a.Connection.Name, b.Connection.Name), cmp.Compare(a.Channel, b.Channel))
	})
	return list
}

// ConnView is one connection that logged in.
type ConnView struct {
	*ConnInfo
	User     string
	Since    int64 // Unix ms
	Channels int
	State    ConnState
}

// ConnState is what keeps a connection from publishing.
type ConnState string

const (
	StateRunning  ConnState = "running"
	StateFlow     ConnState = "flow"     // its publishes waited within the last flowShown: something is behind
	StateBlocking ConnState = "blocking" // an alarm holds, and it has not published since
	StateBlocked  ConnState = "blocked"  // an alarm holds, and its publishes wait
)

// flowShown is how long a connection that was slowed is shown as such, as RabbitMQ does.
const flowShown = 5 * time.Second

// state tells what keeps the connection from publishing, at a time in Unix ns.
func (c *Conn) state(now int64) ConnState {
	var paused Reason
	var last int64
	if c.info.Paused != nil {
		paused, last = c.info.Paused()
	}
	switch {
	case paused&PauseAlarm != 0:
		return StateBlocked
	case c.b.alarm.Load() != 0:
		return StateBlocking
	case paused != 0 || last != 0 && now-last < int64(flowShown):
		return StateFlow
	}
	return StateRunning
}

// connections lists all connections but those of the broker itself, in no order.
func (b *Broker) connections() []*Conn {
	b.connMu.Lock()
	defer b.connMu.Unlock()
	list := make([]*Conn, 0, len(b.conns))
	for c := range b.conns {
		if !c.info.Internal {
			list = append(list, c)
		}
	}
	return list
}

// ConnectionCount is how many of those there are.
func (b *Broker) ConnectionCount() (n int) {
	b.connMu.Lock()
	defer b.connMu.Unlock()
	for c := range b.conns {
		if !c.info.Internal {
			n++
		}
	}
	return n
}

// Connections lists the connections by name.
func (b *Broker) Connections() []ConnView {
	list := make([]ConnView, 0, b.ConnectionCount())
	for c := range b.EachConnection() {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b ConnView) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// EachConnection gives the connections in no order, for sums. A view is good until the next one.
func (b *Broker) EachConnection() iter.Seq[*ConnView] {
	return func(yield func(*ConnView) bool) {
		conns := b.connections()
		channels := make(map[*Conn]int, len(conns))
		b.census.mu.Lock()
		for ch := range b.census.channels {
			channels[ch.conn]++
		}
		b.census.mu.Unlock()
		now := time.Now().UnixNano()
		var v ConnView
		for _, c := range conns {
			v = ConnView{ConnInfo: &c.info, User: c.User(), Since: c.since, Channels: channels[c], State: c.state(now)}
			if !yield(&v) {
				return
			}
		}
	}
}

// CloseConnections closes the connections that pick chooses, after telling their clients.
func (b *Broker) CloseConnections(e *Error, pick func(v *ConnInfo, user string) bool) {
	b.closeConns(e, func(c *Conn) bool { return !c.info.Internal && pick(&c.info, c.User()) })
}

// ChannelView is one channel.
type ChannelView struct {
	Number             uint16
	Connection         *ConnInfo
	User               string
	Mode               Mode
	Prefetch           uint32 // of consumers
	Limit              int64  // of the channel as a whole
	Consumers          int
	Unacked            int
	Unconfirmed        uint64
	TxPublishes, TxOps int
	Stats              MessageStats
}

// Channels lists the channels by connection and number.
func (b *Broker) Channels() []ChannelView {
	list := make([]ChannelView, 0, max(0, b.Objects().Channels))
	for ch := range b.EachChannel() {
		list = append(list, *ch)
	}
	slices.SortFunc(list, func(a, b ChannelView) int {
		return cmp.Or(strings.Compare(a.Connection.Name, b.Connection.Name), cmp.Compare(a.Number, b.Number))
	})
	return list
}

// channels lists all channels but those of the broker itself, in no order.
func (b *Broker) channels() []*Channel {
	b.census.mu.Lock()
	defer b.census.mu.Unlock()
	list := make([]*Channel, 0, len(b.census.channels))
	for ch := range b.census.channels {
		if !ch.conn.info.Internal {
			list = append(list, ch)
		}
	}
	return list
}

// EachChannel gives the channels in no order, for sums. A view is good until the next one.
func (b *Broker) EachChannel() iter.Seq[*ChannelView] {
	return func(yield func(*ChannelView) bool) {
		var v ChannelView
		for _, ch := range b.channels() {
			v = ChannelView{
				Number: ch.number, Connection: &ch.conn.info, User: ch.conn.User(), Limit: ch.limit.Load(),
				Consumers: ch.consumerCount(), TxPublishes: int(ch.txPubs.Load()), TxOps: int(ch.txOps.Load()),
			}
			ch.peer.Lock()
			v.Mode, v.Prefetch, v.Unacked, v.Stats = ch.mode, ch.shown, ch.unacked.live, ch.stats
			if n := len(ch.wait); ch.mode == ModeConfirm && n > ch.waitHead {
				v.Unconfirmed = ch.wait[n-1].to - ch.told
			}
			ch.peer.Unlock()
			if !yield(&v) {
				return
			}
		}
	}
}

// hostPort splits an address into what operators read.
func hostPort(a net.Addr) (host string, port int) {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.IP.String(), t.Port
	}
	if a != nil {
		return a.String(), 0
	}
	return "", 0
}

// RemoteHost and LocalHost are the two ends of the connection.
func (i *ConnInfo) RemoteHost() (host string, port int) { return hostPort(i.Remote) }
func (i *ConnInfo) LocalHost() (host string, port int)  { return hostPort(i.Local) }
