package broker

import (
	"unsafe"

	"github.com/firemq/firemq/pool"
)

// Memory is what the broker uses memory for, in bytes. Of messages and what is on the wire every buffer is
// counted, of the process as a whole; the places of messages and deliveries by what holds them; queues,
// connections and the like by their number, with what one of them takes when it is idle.
type Memory struct {
	Messages    int64 // content: ready, unacked, half received, or on its way by reference
	Sending     int64 // outboxes, without what they refer to
	Receiving   int64 // frames that are not whole yet
	Index       int64 // places of ready messages
	Queues      int64
	Topology    int64 // exchanges and bindings
	Connections int64
	Channels    int64 // with their consumers, unacked deliveries, pending confirms and open transactions
	Journal     int64 // commit buffers
}

// Sum is all of it.
func (m *Memory) Sum() int64 {
	return m.Messages + m.Sending + m.Receiving + m.Index + m.Queues + m.Topology + m.Connections + m.Channels + m.Journal
}

// What one of them takes with all that belongs to it, about, in bytes: TestMemoryIsAccounted measures it.
const (
	queueMemory      = 1650
	exchangeMemory   = 700
	bindingMemory    = 570
	connectionMemory = 2900 // without its session
	channelMemory    = 2150 // without what the channels of a connection share
	consumerMemory   = 700
)

// QueueMemory is what queues take, in bytes, as in Memory.
type QueueMemory struct{ Index, Queues int64 }

// Add adds o to m.
func (m *QueueMemory) Add(o QueueMemory) {
	m.Index += o.Index
	m.Queues += o.Queues
}

// memory is what one queue takes. Lock held.
func (q *Queue) memory() QueueMemory {
	return QueueMemory{q.sm.IndexMemory(), queueMemory + q.kept + q.window.Memory() + int64(cap(q.orphans))*int64(unsafe.Sizeof(q.orphans[0]))}
}

// Memory adds up what everything takes now. It locks each queue and channel for a moment. Any goroutine.
func (b *Broker) Memory() Memory {
	var sum QueueMemory
	for _, v := range b.VHosts() {
		for _, q := range b.queuesOf(v) {
			q.mu.Lock()
			sum.Add(q.memory())
			q.mu.Unlock()
		}
	}
	return b.MemoryWith(sum)
}

// MemoryWith is Memory for who has just read what all queues take.
func (b *Broker) MemoryWith(queues QueueMemory) Memory {
	m := Memory{Messages: pool.Lent(pool.Messages), Sending: pool.Lent(pool.Sending), Receiving: pool.Lent(pool.Receiving)}
	if b.journal != nil {
		m.Journal = b.journal.Buffers()
	}
	m.Index, m.Queues = queues.Index, queues.Queues
	b.topo.RLock()
	for _, v := range b.vhosts {
		for _, x := range v.exchanges {
			m.Topology += exchangeMemory + x.kept
		}
	}
	b.topo.RUnlock()
	m.Topology += int64(b.routes.Len())*bindingMemory + b.routes.ArgumentMemory()
	for _, c := range b.connections() {
		m.Connections += connectionMemory + int64(c.info.Memory) + c.properties
		c.mu.Lock()
		for k := range c.consumers {
			m.Channels += consumerMemory + k.kept
		}
		c.mu.Unlock()
	}
	b.census.mu.Lock()
	for ch := range b.census.channels {
		tx := int64(ch.txPubs.Load())*int64(unsafe.Sizeof(publish{})) + int64(ch.txOps.Load())*int64(unsafe.Sizeof(settling{}))
		ch.peer.Lock()
		if ch.first {
			m.Channels += int64(ch.conn.info.ChannelsMemory)
		}
		m.Channels += channelMemory + tx + int64(ch.unacked.slots())*int64(unsafe.Sizeof(slot{})) + int64(cap(ch.wait))*int64(unsafe.Sizeof(pledge{}))
		ch.peer.Unlock()
	}
	b.census.mu.Unlock()
	return m
}
