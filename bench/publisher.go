package bench

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"
)

const (
	// batchBytes is about what one write of a publisher holds.
	batchBytes = 64 << 10
	// tailCopy is the most of a large body that is copied into a batch; the rest is written from the template.
	tailCopy = 32 << 10
)

// publisher is one connection that publishes. The writer stages and writes; the reader takes the
// confirms and moves the window. They share the atomics, and ring by the rule stated there.
type publisher struct {
	id    int
	run   *run // immutable
	w     wire
	t     []template // one a size; a queue's keys are neighbours in its prefixes
	queue []int      // immutable; the queues, or only 0 where a key does not say to which one of them

	// Owned by the writer until run.publishersDone, then read by the run.
	perQueue []uint64 // messages sent to each of queue: the last sequence number of its stream
	batch    []byte
	pace     pace
	paceFrom uint64 // immutable in write; publishes before the first that pace is for
	alarm    *alarm

	// ring has the send time of the publish n at n&mask, or settled after its confirm. The writer sets a
	// slot before sent covers it, the reader reads it after, and the writer uses it again only after low
	// covers it.
	ring []int64
	mask uint64
	sent atomic.Uint64 // last publish written
	low  atomic.Uint64 // every publish up to it is confirmed or refused

	waiting atomic.Bool   // the writer waits for wake
	wake    chan struct{} // capacity 1
	pausing atomic.Bool   // the broker asked to wait
	stop    atomic.Bool   // publish no more
	refused atomic.Uint64 // publishes nacked
	pauses  atomic.Uint64

	// Owned by the reader.
	meter *meter
	now   int64
	next  uint64 // low, while a batch is handled
}

// persistentMode is the delivery mode of messages that are to survive a restart, transientMode that of others.
const transientMode, persistentMode = 1, 2

// settled marks a slot of the ring whose publish is confirmed.
const settled = int64(-1)

func newPublisher(r *run, id int, w wire) *publisher {
	p := &publisher{id: id, run: r, w: w, wake: make(chan struct{}, 1), meter: r.confirmMeters[id%len(r.confirmMeters)]}
	slots := 1
	for slots < r.o.Window {
		slots *= 2
	}
	p.ring, p.mask = make([]int64, slots), uint64(slots-1)
	if p.queue = r.queuesOf(id, r.o.Publishers); r.spread != toOne {
		p.queue = []int{0}
	}
	var keys []string
	for _, q := range p.queue {
		for k := range r.o.Keys {
			keys = append(keys, r.key(q, k))
		}
	}
	p.perQueue = make([]uint64, len(p.queue))
	m := r.model()
	for _, size := range r.o.Sizes {
		p.t = append(p.t, w.template(m, keys, size))
	}
	p.batch = make([]byte, 0, batchBytes+len(p.t[0].prefix[0])+tailCopy+1024)
	return p
}

// write publishes until publish limit or stop, then waits for the last confirms. It is called for the
// backlog, and for the load after it: paced says that pace holds.
func (p *publisher) write(limit uint64, paced bool) error {
	window := uint64(p.run.o.Window)
	seq := p.sent.Load()
	for seq < limit && !p.stop.Load() {
		low := p.low.Load()
		if low+window <= seq || p.pausing.Load() { // without confirms low follows seq
			p.await(func() bool { return p.low.Load()+window > seq && !p.pausing.Load() })
			continue
		}
		now := p.run.now()
		n := low + window - seq
		if p.run.o.NoConfirms {
			n = MaxCount
		}
		if paced {
			due := p.paceFrom + p.pace.due(now)
			if due <= seq {
				if err := p.alarm.sleep(min(time.Duration(p.pace.at(seq-p.paceFrom)-now), maxSleep)); err != nil {
					return err
				}
				continue
			}
			n = min(n, due-seq)
		}
		for end := min(seq+n, limit); seq < end && len(p.batch) < batchBytes; seq++ {
			at := now
			if paced {
				at = p.pace.at(seq - p.paceFrom)
			}
			if err := p.stage(seq+1, at); err != nil {
				return err
			}
		}
		p.batch = p.w.appendPublished(p.batch, seq)
		if err := p.flush(seq); err != nil {
			return err
		}
	}
	return p.lastConfirms(seq)
}

// maxSleep is how long a paced publisher may take to notice that it should stop.
const maxSleep = 100 * time.Millisecond

// stage appends publish seq to the batch.
func (p *publisher) stage(seq uint64, at int64) error {
	k := int((seq - 1) % uint64(len(p.queue)))
	p.perQueue[k]++
	t := &p.t[p.run.turnOf(p.perQueue[k])]
	key := k
	if keys := uint64(p.run.o.Keys); keys > 1 {
		key = k*int(keys) + int((p.perQueue[k]-1)%keys)
	}
	start := len(p.batch)
	b := append(p.batch, t.prefix[key]...)
	if t.number != nil {
		t.number(b[start+t.numberAt[key]:], seq)
	}
	tail := t.tail
	copied := min(len(tail), tailCopy)
	stamp := len(b) + t.body
	b = append(b, tail[:copied]...)
	binary.BigEndian.PutUint64(b[stamp:], uint64(at))
	binary.BigEndian.PutUint64(b[stamp+8:], uint64(p.id)<<48|p.perQueue[k])
	p.batch = b
	p.ring[seq&p.mask] = at
	if copied == len(tail) {
		return nil
	}
	if err := p.flush(seq); err != nil {
		return err
	}
	return p.w.write(tail[copied:])
}

// flush writes the batch, which ends with publish seq.
func (p *publisher) flush(seq uint64) error {
	p.sent.Store(seq) // before the write, since the broker may be faster than the next line
	if len(p.batch) == 0 {
		return nil
	}
	err := p.w.write(p.batch)
	p.batch = p.batch[:0]
	if p.run.o.NoConfirms {
		p.low.Store(seq)
	}
	return err
}

// await sleeps until ready or stop. The reader calls signal after every change.
func (p *publisher) await(ready func() bool) {
	p.waiting.Store(true)
	if !ready() && !p.stop.Load() {
		<-p.wake
	}
	p.waiting.Store(false)
}

func (p *publisher) signal() {
	if p.waiting.Load() {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

// halt makes write finish.
func (p *publisher) halt() {
	p.stop.Store(true)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// lastConfirms waits for the confirms up to seq.
func (p *publisher) lastConfirms(seq uint64) error {
	patience := time.NewTimer(p.run.o.Patience)
	defer patience.Stop()
	for {
		low := p.low.Load()
		if low == seq {
			return nil
		}
		p.waiting.Store(true)
		if p.low.Load() != low {
			patience.Reset(p.run.o.Patience)
			continue
		}
		select {
		case <-p.wake:
		case <-p.run.ctx.Done():
			return p.run.ctx.Err()
		case <-patience.C:
			return fmt.Errorf("%d publishes have no confirm after %s", seq-low, p.run.o.Patience)
		}
	}
}

// read takes confirms until the connection ends or is interrupted.
func (p *publisher) read() error {
	for {
		if err := read(p.w, p); err != nil {
			return err
		}
	}
}

func (p *publisher) arrived() {
	p.now = p.run.now()
	p.meter.lock()
}

func (p *publisher) confirmed(seq uint64, multiple, refused bool) error {
	sent := p.sent.Load()
	if seq == 0 && multiple {
		seq = sent
	}
	if seq > sent || seq <= p.next && !multiple {
		return fmt.Errorf("the broker confirmed publish %d, of %d sent and %d confirmed", seq, sent, p.next)
	}
	from := seq
	if multiple {
		from = p.next + 1
	}
	for n := from; n <= seq; n++ {
		slot := &p.ring[n&p.mask]
		switch {
		case *slot == settled && multiple: // confirmed alone before
			continue
		case *slot == settled:
			return fmt.Errorf("the broker confirmed publish %d twice", n)
		case refused:
			p.refused.Add(1)
		default:
			p.meter.note(*slot, p.now)
		}
		*slot = settled
	}
	for p.next < sent && p.ring[(p.next+1)&p.mask] == settled {
		p.next++
	}
	return nil
}

func (p *publisher) settle() error {
	p.meter.unlock()
	if p.next != p.low.Load() {
		p.low.Store(p.next)
		p.signal()
	}
	return nil
}

func (p *publisher) paused(on bool) {
	if on && !p.pausing.Swap(true) {
		p.pauses.Add(1)
	} else if !on && p.pausing.Swap(false) {
		p.signal()
	}
}

func (p *publisher) delivered(uint32, uint64, int, []byte) error {
	return fmt.Errorf("the broker delivered a message to a publisher")
}

func (p *publisher) cancelled(uint32) error { return nil }
