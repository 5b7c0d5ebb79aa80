package mgmt

import (
	"iter"
	"math"
	"slices"
	"time"

	"github.com/firemq/firemq/broker"
)

// queueRow is what a scrape shows of one queue, and no more: thousands of them are read once for each family.
type queueRow struct {
	ready, unacked, delayed, persistent, consumers    int
	readyBytes, unackedBytes, persistentBytes, memory int64
	publish, duplicate, get, getNoAck, getEmpty       uint64
	deliver, deliverNoAck, redeliver, ack             uint64
	age                                               time.Duration // since when the oldest ready message waits
	head                                              float64       // property timestamp of the first ready message, NaN without one
}

// rowOf reads a queue, at a time in Unix ms, and what it takes.
func rowOf(q *broker.Queue, now int64) (queueRow, broker.QueueMemory) {
	c := q.Counts()
	r := queueRow{
		ready: c.Ready, unacked: c.Unacked, delayed: c.Delayed, persistent: c.Persistent, consumers: c.Consumers,
		readyBytes: c.ReadyBytes, unackedBytes: c.UnackedBytes, persistentBytes: c.PersistentBytes, memory: queueMemory(&c),
		publish: c.Stats.Publish, duplicate: c.Stats.Duplicate, get: c.Stats.Get, getNoAck: c.Stats.GetNoAck, getEmpty: c.Stats.GetEmpty,
		deliver: c.Stats.Deliver, deliverNoAck: c.Stats.DeliverNoAck, redeliver: c.Stats.Redeliver, ack: c.Stats.Ack,
	}
	r.head = math.NaN()
	if c.Ready > 0 {
		h := q.Head()
		if h.Oldest != 0 {
			r.age = time.Duration(max(now-h.Oldest, 0)) * time.Millisecond
		}
		if h.HasTimestamp {
			r.head = float64(h.Timestamp)
		}
	}
	return r, c.Memory
}

func (q *queueRow) capacity() float64 {
	if q.consumers > 0 && q.ready == 0 {
		return 1
	}
	return 0
}

// queueFamily is one number of queues.
type queueFamily struct {
	family, name, kind, help string
	value                    func(*queueRow) int64
}

var queueFamilies = []queueFamily{
	{"queue_coarse_metrics", "queue_messages_ready", "gauge", "Messages ready to be delivered to consumers", func(q *queueRow) int64 { return int64(q.ready) }},
	{"queue_coarse_metrics", "queue_messages_unacked", "gauge", "Messages delivered to consumers but not yet acknowledged", func(q *queueRow) int64 { return int64(q.unacked) }},
	{"queue_coarse_metrics", "queue_messages", "gauge", "Sum of ready and unacknowledged messages - total queue depth", func(q *queueRow) int64 { return int64(q.ready + q.unacked) }},
	{"queue_consumer_count", "queue_consumers", "gauge", "Consumers on a queue", func(q *queueRow) int64 { return int64(q.consumers) }},
	{"queue_metrics", "queue_messages_ram", "gauge", "Ready and unacknowledged messages stored in memory", func(q *queueRow) int64 { return int64(q.ready + q.unacked) }},
	{"queue_metrics", "queue_messages_ram_bytes", "gauge", "Size of ready and unacknowledged messages stored in memory", func(q *queueRow) int64 { return q.readyBytes + q.unackedBytes }},
	{"queue_metrics", "queue_messages_ready_ram", "gauge", "Ready messages stored in memory", func(q *queueRow) int64 { return int64(q.ready) }},
	{"queue_metrics", "queue_messages_unacked_ram", "gauge", "Unacknowledged messages stored in memory", func(q *queueRow) int64 { return int64(q.unacked) }},
	{"queue_metrics", "queue_messages_persistent", "gauge", "Persistent messages", func(q *queueRow) int64 { return int64(q.persistent) }},
	{"queue_metrics", "queue_messages_persistent_bytes", "gauge", "Size in bytes of persistent messages", func(q *queueRow) int64 { return q.persistentBytes }},
	{"queue_metrics", "queue_messages_bytes", "gauge", "Size in bytes of ready and unacknowledged messages", func(q *queueRow) int64 { return q.readyBytes + q.unackedBytes }},
	{"queue_metrics", "queue_messages_ready_bytes", "gauge", "Size in bytes of ready messages", func(q *queueRow) int64 { return q.readyBytes }},
	{"queue_metrics", "queue_messages_unacked_bytes", "gauge", "Size in bytes of all unacknowledged messages", func(q *queueRow) int64 { return q.unackedBytes }},
	{"queue_metrics", "queue_process_memory_bytes", "gauge", "Memory in bytes used by the Erlang queue process", func(q *queueRow) int64 { return q.memory }},
	{"queue_delivery_metrics", "queue_messages_published_total", "counter", "Total number of messages published into a queue through an exchange on a channel", func(q *queueRow) int64 { return int64(q.publish) }},
	{"queue_delivery_metrics", "queue_get_ack_total", "counter", "Total number of messages fetched from a queue with basic.get in manual acknowledgement mode", func(q *queueRow) int64 { return int64(q.get) }},
	{"queue_delivery_metrics", "queue_get_total", "counter", "Total number of messages fetched from a queue with basic.get in automatic acknowledgement mode", func(q *queueRow) int64 { return int64(q.getNoAck) }},
	{"queue_delivery_metrics", "queue_messages_delivered_ack_total", "counter", "Total number of messages delivered from a queue to consumers in manual acknowledgement mode", func(q *queueRow) int64 { return int64(q.deliver) }},
	{"queue_delivery_metrics", "queue_messages_delivered_total", "counter", "Total number of messages delivered from a queue to consumers in automatic acknowledgement mode", func(q *queueRow) int64 { return int64(q.deliverNoAck) }},
	{"queue_delivery_metrics", "queue_messages_redelivered_total", "counter", "Total number of messages redelivered from a queue to consumers", func(q *queueRow) int64 { return int64(q.redeliver) }},
	{"queue_delivery_metrics", "queue_messages_acked_total", "counter", "Total number of messages acknowledged by consumers on a queue", func(q *queueRow) int64 { return int64(q.ack) }},
	{"queue_delivery_metrics", "queue_get_empty_total", "counter", "Total number of times basic.get operations fetched no message on a queue", func(q *queueRow) int64 { return int64(q.getEmpty) }},
}

// ownQueueFamilies are there for each queue in the aggregated registry too.
var ownQueueFamilies = []queueFamily{
	{"", "firemq_queue_messages_ready", "gauge", "Messages ready in a queue", func(q *queueRow) int64 { return int64(q.ready) }},
	{"", "firemq_queue_messages_unacked", "gauge", "Messages of a queue that are delivered and not acknowledged", func(q *queueRow) int64 { return int64(q.unacked) }},
	{"", "firemq_queue_messages_delayed", "gauge", "Messages of a queue that are not due yet", func(q *queueRow) int64 { return int64(q.delayed) }},
	{"", "firemq_queue_consumers", "gauge", "Consumers of a queue", func(q *queueRow) int64 { return int64(q.consumers) }},
	{"", "firemq_queue_messages_published_total", "counter", "Messages published into a queue", func(q *queueRow) int64 { return int64(q.publish) }},
	{"", "firemq_queue_messages_delivered_total", "counter", "Messages delivered or got from a queue", func(q *queueRow) int64 { return int64(q.get + q.getNoAck + q.deliver + q.deliverNoAck) }},
	{"", "firemq_queue_messages_acked_total", "counter", "Messages of a queue that were acknowledged", func(q *queueRow) int64 { return int64(q.ack) }},
	{"", "firemq_queue_messages_deduplicated_total", "counter", "Repetitions that a queue did not take again", func(q *queueRow) int64 { return int64(q.duplicate) }},
}

// queueSums are those of the queues that a scrape does not show one by one.
type queueSums struct {
	families []int64 // as queueFamilies
	capacity float64
	memory   broker.QueueMemory // of all that were read
}

func (t *queueSums) add(q *queueRow) {
	for i := range queueFamilies {
		t.families[i] += queueFamilies[i].value(q)
	}
	t.capacity += q.capacity()
}

// readQueues reads every queue that the registry shows; their sums too, if it shows those.
func (s *Server) readQueues(e *exposition, g *registry) (sums queueSums) {
	e.queues = e.queues[:0]
	e.labels.reset()
	sums.families = make([]int64, len(queueFamilies))
	now := time.Now().UnixMilli()
	for _, v := range s.opt.Broker.VHosts() {
		if !g.hasVHost(v) {
			continue
		}
		for _, q := range s.opt.Broker.Queues(v) {
			if g.queue == nil || g.queue.MatchString(q.Name()) {
				e.labels.add("vhost", v, "queue", q.Name())
				row, memory := rowOf(q, now)
				e.queues = append(e.queues, row)
				sums.memory.Add(memory)
				if !g.objects {
					sums.add(&e.queues[len(e.queues)-1]) // row would be on the heap
				}
			}
		}
	}
	return sums
}

func (s *Server) writeQueues(e *exposition, g *registry) {
	if g.families != nil && !slices.ContainsFunc(queueFamilies, func(f queueFamily) bool { return g.has(f.family) }) {
		return
	}
	sums := s.readQueues(e, g)
	if g.families == nil {
		s.writeOwnMemory(e, sums.memory)
	}
	rows := e.queues
	for i := range queueFamilies {
		switch f := &queueFamilies[i]; {
		case !g.has(f.family):
		case g.objects:
			writeRows(e, g.prefix+f.name, f.kind, f.help, rows, f.value)
		default:
			e.one(g.prefix+f.name, f.kind, f.help, sums.families[i])
		}
	}
	if g.has("queue_metrics") {
		for _, f := range [...][2]string{{"queue_consumer_capacity", "Consumer capacity"}, {"queue_consumer_utilisation", "Same as consumer capacity"}} {
			name := g.prefix + f[0]
			e.family(name, "gauge", f[1])
			if !g.objects {
				e.float(name, nil, sums.capacity)
				continue
			}
			for i := range rows {
				e.float(name, e.labels.of(i), rows[i].capacity())
			}
		}
		name := g.prefix + "queue_head_message_timestamp"
		e.family(name, "gauge", "Timestamp of the first message in the queue, if any")
		for i := range rows {
			if g.objects {
				e.float(name, e.labels.of(i), rows[i].head)
			}
		}
	}
	if g.objects && (g.has("queue_coarse_metrics") || g.has("queue_consumer_count") || g.has("queue_metrics")) {
		const more = `,queue_type="rabbit_classic_queue",membership="leader"} 1` + "\n"
		name := g.prefix + "queue_info"
		e.family(name, "gauge", "A metric with a constant '1' value and labels that provide some queue details")
		for i := range rows {
			l := e.labels.of(i)
			e.series(name, l[:len(l)-1]) // without the brace, and then without the space
			e.buf = append(e.buf[:len(e.buf)-1], more...)
		}
	}
	if g.families == nil {
		for i := range ownQueueFamilies {
			f := &ownQueueFamilies[i]
			writeRows(e, f.name, f.kind, f.help, rows, f.value)
		}
		const age = "firemq_queue_oldest_message_age_seconds"
		e.family(age, "gauge", "Since when the oldest ready message of a queue waits, 0 without one")
		for i := range rows {
			e.float(age, e.labels.of(i), rows[i].age.Seconds())
		}
	}
}

// writeRows writes one family with a series for each row, with the labels that e has of it.
func writeRows[T any](e *exposition, name, kind, help string, rows []T, value func(*T) int64) {
	e.family(name, kind, help)
	for i := range rows {
		e.int(name, e.labels.of(i), value(&rows[i]))
	}
}

// rowFamily is one number of channels or connections or exchanges.
type rowFamily[T any] struct {
	family, name, kind, help string
	value                    func(*T) int64
}

var channelFamilies = []rowFamily[broker.ChannelView]{
	{"channel_metrics", "channel_consumers", "gauge", "Consumers on a channel", func(c *broker.ChannelView) int64 { return int64(c.Consumers) }},
	{"channel_metrics", "channel_messages_unacked", "gauge", "Delivered but not yet acknowledged messages", func(c *broker.ChannelView) int64 { return int64(c.Unacked) }},
	{"channel_metrics", "channel_messages_unconfirmed", "gauge", "Published but not yet confirmed messages", func(c *broker.ChannelView) int64 { return int64(c.Unconfirmed) }},
	{"channel_metrics", "channel_messages_uncommitted", "gauge", "Messages received in a transaction but not yet committed", func(c *broker.ChannelView) int64 { return int64(c.TxPublishes) }},
	{"channel_metrics", "channel_acks_uncommitted", "gauge", "Message acknowledgements in a transaction not yet committed", func(c *broker.ChannelView) int64 { return int64(c.TxOps) }},
	{"channel_metrics", "consumer_prefetch", "gauge", "Limit of unacknowledged messages for each consumer", func(c *broker.ChannelView) int64 { return int64(c.Prefetch) }},
	{"channel_metrics", "channel_prefetch", "gauge", "Deprecated and will be removed in a future version", func(c *broker.ChannelView) int64 { return c.Limit }},
	{"channel_exchange_metrics", "channel_messages_published_total", "counter", "Total number of messages published into an exchange on a channel", func(c *broker.ChannelView) int64 { return int64(c.Stats.Publish) }},
	{"channel_exchange_metrics", "channel_messages_confirmed_total", "counter", "Total number of messages published into an exchange and confirmed on the channel", func(c *broker.ChannelView) int64 { return int64(c.Stats.Confirm) }},
	{"channel_exchange_metrics", "channel_messages_unroutable_returned_total", "counter", "Total number of messages published as mandatory into an exchange and returned to the publisher as unroutable", func(c *broker.ChannelView) int64 { return int64(c.Stats.ReturnUnroutable) }},
	{"channel_exchange_metrics", "channel_messages_unroutable_dropped_total", "counter", "Total number of messages published as non-mandatory into an exchange and dropped as unroutable", func(c *broker.ChannelView) int64 { return int64(c.Stats.DropUnroutable) }},
	{"channel_queue_metrics", "channel_get_ack_total", "counter", "Total number of messages fetched with basic.get in manual acknowledgement mode", func(c *broker.ChannelView) int64 { return int64(c.Stats.Get) }},
	{"channel_queue_metrics", "channel_get_total", "counter", "Total number of messages fetched with basic.get in automatic acknowledgement mode", func(c *broker.ChannelView) int64 { return int64(c.Stats.GetNoAck) }},
	{"channel_queue_metrics", "channel_messages_delivered_ack_total", "counter", "Total number of messages delivered to consumers in manual acknowledgement mode", func(c *broker.ChannelView) int64 { return int64(c.Stats.Deliver) }},
	{"channel_queue_metrics", "channel_messages_delivered_total", "counter", "Total number of messages delivered to consumers in automatic acknowledgement mode", func(c *broker.ChannelView) int64 { return int64(c.Stats.DeliverNoAck) }},
	{"channel_queue_metrics", "channel_messages_redelivered_total", "counter", "Total number of messages redelivered to consumers", func(c *broker.ChannelView) int64 { return int64(c.Stats.Redeliver) }},
	{"channel_queue_metrics", "channel_messages_acked_total", "counter", "Total number of messages acknowledged by consumers", func(c *broker.ChannelView) int64 { return int64(c.Stats.Ack) }},
	{"channel_queue_metrics", "channel_get_empty_total", "counter", "Total number of times basic.get operations fetched no message", func(c *broker.ChannelView) int64 { return int64(c.Stats.GetEmpty) }},
}

// writeFamilies writes the families of one kind of object. list gives the objects in order, for a registry that shows them one
// by one, and each in any order, for sums; label adds the labels of one.
func writeFamilies[T any](e *exposition, g *registry, families []rowFamily[T], list func() []T, each iter.Seq[*T], label func(*labelList, *T)) {
	if g.families != nil && !slices.ContainsFunc(families, func(f rowFamily[T]) bool { return g.has(f.family) }) {
		return
	}
	if !g.objects {
		sums := make([]int64, len(families))
		for row := range each {
			for i := range families {
				sums[i] += families[i].value(row)
			}
		}
		for i := range families {
			e.one(g.prefix+families[i].name, families[i].kind, families[i].help, sums[i])
		}
		return
	}
	rows := list()
	e.labels.reset()
	for i := range rows {
		label(&e.labels, &rows[i])
	}
	for i := range families {
		if f := &families[i]; g.has(f.family) {
			writeRows(e, g.prefix+f.name, f.kind, f.help, rows, f.value)
		}
	}
}

func (s *Server) writeChannels(e *exposition, g *registry) {
	writeFamilies(e, g, channelFamilies, func() []broker.ChannelView {
		return slices.DeleteFunc(s.opt.Broker.Channels(), func(c broker.ChannelView) bool { return !g.hasVHost(c.Connection.VHost) })
	}, s.opt.Broker.EachChannel(), func(l *labelList, c *broker.ChannelView) { l.add("channel", channelName(c.Connection, c.Number)) })
}

// connRow is one connection of a scrape.
type connRow struct {
	broker.ConnView
	octets broker.Octets
}

var connectionFamilies = []rowFamily[connRow]{
	{"connection_coarse_metrics", "connection_incoming_bytes_total", "counter", "Total number of bytes received on a connection", func(c *connRow) int64 { return int64(c.octets.Received) }},
	{"connection_coarse_metrics", "connection_outgoing_bytes_total", "counter", "Total number of bytes sent on a connection", func(c *connRow) int64 { return int64(c.octets.Sent) }},
	{"connection_metrics", "connection_incoming_packets_total", "counter", "Total number of packets received on a connection", func(c *connRow) int64 { return int64(c.octets.Reads) }},
	{"connection_metrics", "connection_outgoing_packets_total", "counter", "Total number of packets sent on a connection", func(c *connRow) int64 { return int64(c.octets.Writes) }},
	{"connection_metrics", "connection_pending_packets", "gauge", "Number of packets waiting to be sent on a connection", func(*connRow) int64 { return 0 }},
	{"connection_metrics", "connection_channels", "gauge", "Channels on a connection", func(c *connRow) int64 { return int64(c.Channels) }},
}

func (s *Server) writeConnections(e *exposition, g *registry) {
	states := make(map[broker.ConnState]int64) // what keeps them from publishing
	list := func() []connRow {
		conns := s.opt.Broker.Connections()
		rows := make([]connRow, len(conns))
		for i, c := range conns {
			states[c.State]++
			rows[i] = connRow{c, octetsOf(c.ConnInfo)}
		}
		return rows
	}
	each := func(yield func(*connRow) bool) {
		var row connRow
		for c := range s.opt.Broker.EachConnection() {
			states[c.State]++
			if row = (connRow{*c, octetsOf(c.ConnInfo)}); !yield(&row) {
				return
			}
		}
	}
	writeFamilies(e, g, connectionFamilies, list, each, func(l *labelList, c *connRow) { l.add("connection", c.Name) })
	if g.families == nil {
		e.family("firemq_connections", "gauge", "Connections by state")
		for _, state := range [...]broker.ConnState{broker.StateRunning, broker.StateFlow, broker.StateBlocking, broker.StateBlocked} {
			e.int("firemq_connections", labels("state", string(state)), states[state])
		}
	}
}

var exchangeFamilies = []rowFamily[broker.ExchangeView]{
	{"exchange_metrics", "exchange_messages_published_total", "counter", "Total number of messages published into an exchange", func(x *broker.ExchangeView) int64 { return int64(x.Stats.In.Load()) }},
	{"exchange_metrics", "exchange_messages_routed_total", "counter", "Total number of messages that an exchange gave to queues", func(x *broker.ExchangeView) int64 { return int64(x.Stats.Out.Load()) }},
}

func (s *Server) writeExchanges(e *exposition, g *registry) {
	list := func() (all []broker.ExchangeView) {
		for _, v := range s.opt.Broker.VHosts() {
			if g.hasVHost(v) {
				all = append(all, s.opt.Broker.Exchanges(v)...)
			}
		}
		return all
	}
	each := func(yield func(*broker.ExchangeView) bool) {
		for _, x := range list() {
			if !yield(&x) {
				return
			}
		}
	}
	writeFamilies(e, g, exchangeFamilies, list, each, func(l *labelList, x *broker.ExchangeView) { l.add("vhost", x.VHost, "exchange", x.Name) })
}
