package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// consumer is one connection that consumes. Its goroutine reads, checks and acknowledges.
type consumer struct {
	run   *run // immutable
	w     wire
	queue []int // immutable; the queue of each subscription: a handle is an index

	received atomic.Uint64 // deliveries, whatever is wrong with them
	hurry    atomic.Bool   // neither work nor a rate any more

	// Owned by the goroutine in consume.
	meter *meter
	now   int64
	acks  []byte
	count uint64 // deliveries since arrived
	open  int    // subscriptions that are not cancelled

	// The subscription whose ledger is held: deliveries mostly come in rows of the same one.
	held   *ledger // locked while not nil
	handle uint32
	tag    uint64 // its last delivery
	row    int    // its deliveries that appendSettled does not know yet

	// Of one that takes its time for each message.
	alarm *alarm // nil: it takes none
	gap   int64  // ns between two messages; 0: they come as they come
	next  int64  // when the next message is due by gap
}

func newConsumer(r *run, id int, w wire) *consumer {
	c := &consumer{run: r, w: w, meter: r.deliveryMeters[id%len(r.deliveryMeters)]}
	c.queue = r.queuesOf(id, r.o.Consumers)
	c.open = len(c.queue)
	c.acks = make([]byte, 0, 32<<10)
	return c
}

// subscribe asks for deliveries; what the broker answers is consume's.
func (c *consumer) subscribe() error {
	names := make([]string, len(c.queue))
	for handle, q := range c.queue {
		names[handle] = c.run.queues[q]
	}
	return c.w.subscribe(names, c.run.o.Prefetch)
}

// consume takes deliveries until every subscription is cancelled.
func (c *consumer) consume() error {
	for c.open > 0 {
		if err := read(c.w, c); err != nil {
			return err
		}
	}
	return nil
}

// cancel asks the broker to end the subscriptions; what it sent before is still checked. Any goroutine.
func (c *consumer) cancel() error {
	var b []byte
	for handle := range c.queue {
		b = c.w.appendCancel(b, uint32(handle))
	}
	return c.w.write(b)
}

func (c *consumer) arrived() {
	c.now = c.run.now()
	c.meter.lock()
}

var errForeign = errors.New("the broker delivered a body that this run has not published")

func (c *consumer) delivered(handle uint32, tag uint64, size int, head []byte) error {
	if c.held == nil || handle != c.handle {
		if err := c.hold(handle); err != nil {
			return err
		}
	}
	c.tag = tag
	c.row++
	c.count++
	c.acks = c.w.appendAck(c.acks, tag)
	if len(head) < stampSize {
		return errForeign
	}
	sent := int64(binary.BigEndian.Uint64(head))
	id := binary.BigEndian.Uint64(head[8:])
	from, seq := int(id>>48), id&(1<<48-1)
	if from >= len(c.held.streams) || seq == 0 || seq > c.run.publishers[from].sent.Load() || size != c.run.sizeOf(seq) {
		return errForeign
	}
	if c.held.streams[from].add(seq) {
		c.meter.note(sent, c.now)
	}
	if c.alarm != nil {
		return c.takeTime()
	}
	return nil
}

// takeTime lets the time of one message pass and then acknowledges it, so that what came with it waits: the
// latency of that counts up to its turn.
func (c *consumer) takeTime() error {
	err := c.settle()
	if err == nil {
		err = c.pass()
	}
	c.arrived()
	return err
}

// pass sleeps for one message.
func (c *consumer) pass() error {
	now := c.run.now()
	until := now + int64(c.run.o.Work)
	if c.gap > 0 {
		// A little that was slept too long is made up for, a stall is not.
		c.next = max(c.next, now-int64(lateness)) + c.gap
		until = max(until, c.next)
	}
	for ; now < until && !c.hurry.Load(); now = c.run.now() {
		if err := c.alarm.sleep(min(time.Duration(until-now), maxSleep)); err != nil {
			return err
		}
	}
	return nil
}

// hold changes to the ledger of another subscription.
func (c *consumer) hold(handle uint32) error {
	c.release()
	if int(handle) >= len(c.queue) {
		return fmt.Errorf("the broker delivered to a subscription that does not exist")
	}
	c.handle = handle
	c.held = &c.run.ledgers[c.queue[handle]%len(c.run.ledgers)]
	c.held.mu.Lock()
	return nil
}

func (c *consumer) release() {
	if c.held == nil {
		return
	}
	c.held.mu.Unlock()
	c.held = nil
	c.acks = c.w.appendSettled(c.acks, c.handle, c.tag, c.row)
	c.row = 0
}

func (c *consumer) settle() error {
	c.release()
	c.meter.unlock()
	if c.count > 0 {
		c.received.Add(c.count)
		c.count = 0
	}
	if len(c.acks) == 0 {
		return nil
	}
	err := c.w.write(c.acks)
	c.acks = c.acks[:0]
	return err
}

func (c *consumer) cancelled(handle uint32) error {
	if int(handle) >= len(c.queue) {
		return fmt.Errorf("the broker cancelled a subscription that does not exist")
	}
	c.open--
	return nil
}

func (c *consumer) confirmed(uint64, bool, bool) error {
	return fmt.Errorf("the broker confirmed a publish to a consumer")
}

func (c *consumer) paused(bool) {}
