package route

import (
	"bytes"
	"unsafe"

	"github.com/cespare/xxhash/v2"

	"github.com/firemq/firemq/internal/prefetch"
)

// Bounds of a Cache. Who publishes with more keys, or to very many queues at once, feels a miss:
// the full routing and an allocation a message.
const (
	cacheSlots  = 4096    // routes remembered; a power of two
	cacheQueues = 1 << 16 // destinations remembered over all routes
	cacheStart  = 16      // slots in the beginning; a power of two
	cacheProbe  = 8       // slots in which a route may lie
)

// Cache remembers routes for one publisher in one vhost. It belongs to a single goroutine.
// A hit takes no lock and allocates nothing.
//
// A route is kept when it is asked for the second time; the first time leaves a mark alone. So
// keys that never come again, such as those of reply queues, cost a slot and no more. An outdated
// entry keeps its queues reachable until it is replaced.
type Cache[Q comparable] struct {
	vhost string
	seed  uint64
	w     walk[Q]

	last     *Entry[Q] // the latest answer, nil if there is none
	inTurn   bool      // the latest entry found in slots was the one that came after the one before it the last time, too
	slots    []slot[Q] // open addressing: from hash & mask on, within cacheProbe slots
	held     int       // queues and deps that entries in slots hold
	victim   int       // rotates through the places of a full neighbourhood
	exchange []byte    // the exchange asked for last
	exHash   uint64    // and its hash
}

// slot is free with hash 0 and a mark without an entry.
type slot[Q comparable] struct {
	hash  uint64
	entry *Entry[Q]
}

// Entry is a remembered route. It is valid until the Cache's next call; Queues alone may be kept.
type Entry[Q comparable] struct {
	// Queues are the destinations, each once. Immutable.
	Queues []Q

	// Tag is the caller's. It is 0 in an entry that was just made, so what the caller notes in
	// it, such as a passed permission check, is lost whenever the route was looked up anew.
	Tag uint64

	// NeedsMessage says that an exchange takes part that looks at more than the routing key, so that
	// the queues differ from message to message: Queues is empty, and RouteKeys finds them.
	NeedsMessage bool

	cut     uint16    // where in name the key begins, behind the exchange
	gone    bool      // no longer in slots
	next    *Entry[Q] // that was asked for after this one the last time
	name    []byte    // exchange, key
	checked uint64    // the table's changes when deps were looked at last

	// Room for the usual case, which then is one allocation, of whole cache lines.
	queueRoom [1]Q
	nameRoom  [64]byte

	deps    []dep // looked at when the table has changed
	depRoom [1]dep
}

// NewCache makes the cache of one publisher.
func (t *Table[Q]) NewCache(vhost string) *Cache[Q] {
	return &Cache[Q]{vhost: vhost, seed: seedOf(vhost), w: walk[Q]{t: t}}
}

// Route finds where a message goes. exists is false, and the entry nil, when there is no such
// exchange. The result is as good as a Route of the Table that began before this call returned.
func (c *Cache[Q]) Route(exchange, key []byte) (e *Entry[Q], exists bool) {
	if e := c.last; e != nil {
		if e.is(exchange, key) && c.current(e) {
			return e, true
		}
		if f := e.next; c.inTurn && f != nil && !f.gone && f.is(exchange, key) && c.current(f) {
			return c.found(f), true
		}
	}
	return c.lookup(exchange, key)
}

// found makes e the latest answer. While keys come in turn, the memory of the entry that is probably the next one is asked
// for: of thousands it is not in a near cache.
func (c *Cache[Q]) found(e *Entry[Q]) *Entry[Q] {
	c.last = e
	if c.inTurn && e.next != nil {
		prefetch.Lines(unsafe.Pointer(e.next), entryLines)
	}
	return e
}

// entryLines is how many cache lines of an entry a hit takes, on a name of up to 40 bytes.
const entryLines = 2

// RouteKeys is RouteKeys of the Table, without the cache: for messages whose headers or properties
// decide, and for those with several keys.
func (c *Cache[Q]) RouteKeys(dst []Q, exchange []byte, keys [][]byte, m Message) (queues []Q, exists bool) {
	if m == nil {
		m = bare{}
	}
	c.w.record = false
	c.w.begin(dst, keys)
	o := c.w.run(c.seed, c.vhost, view(exchange), c.hashOf(exchange), m)
	return c.w.end(), o == routed
}

func (e *Entry[Q]) is(exchange, key []byte) bool {
	return bytes.Equal(e.name[e.cut:], key) && bytes.Equal(e.name[:e.cut], exchange)
}

// current reports whether everything that e was made of is unchanged.
func (c *Cache[Q]) current(e *Entry[Q]) bool {
	changes := c.w.t.changes.n.Load()
	if e.checked == changes {
		return true
	}
	for i := range e.deps {
		if e.deps[i].gen.Load() != e.deps[i].seen {
			return false
		}
	}
	e.checked = changes
	return true
}

// weight is what the entry holds, against cacheQueues.
func (e *Entry[Q]) weight() int {
	if e == nil {
		return 0
	}
	return len(e.Queues) + len(e.deps)
}

// leave notes that the entry, if it is one, is no longer in slots, so that it keeps no others; it gives its weight.
func (e *Entry[Q]) leave() int {
	if e != nil {
		e.gone, e.next = true, nil
	}
	return e.weight()
}

func (c *Cache[Q]) lookup(exchange, key []byte) (*Entry[Q], bool) {
	exHash := c.hashOf(exchange)
	h := (exHash^xxhash.Sum64(key))*0x9E3779B97F4A7C15 | 1
	at := c.find(h)
	if at != nil && at.entry != nil && at.entry.is(exchange, key) && c.current(at.entry) {
		if c.last != nil {
			c.inTurn = c.last.next == at.entry
			c.last.next = at.entry
		}
		return c.found(at.entry), true
	}
	e := c.route(exchange, key, exHash)
	if at != nil {
		c.keep(at, h, e)
	} else if e != nil {
		c.mark(h)
	}
	c.last = e
	return e, e != nil
}

// find gives the slot of that hash, nil if there is none.
func (c *Cache[Q]) find(h uint64) *slot[Q] {
	for i := range min(cacheProbe, len(c.slots)) {
		if at := c.place(h, i); at.hash == h {
			return at
		}
	}
	return nil
}

// keep puts e, which may be nil, where h was asked for before.
func (c *Cache[Q]) keep(at *slot[Q], h uint64, e *Entry[Q]) {
	c.held -= at.entry.leave()
	if c.held+e.weight() > cacheQueues {
		for i := range c.slots {
			c.slots[i].entry.leave()
		}
		clear(c.slots)
		c.held = 0
	}
	c.held += e.weight()
	*at = slot[Q]{h, e}
}

// mark notes that h was asked for: in a free slot, else after growing, else instead of another
// mark, else instead of an entry.
func (c *Cache[Q]) mark(h uint64) {
	for !c.put(slot[Q]{hash: h}) {
		if len(c.slots) < cacheSlots {
			c.grow()
			continue
		}
		c.victim++
		at := c.place(h, c.victim)
		for i := range cacheProbe {
			if other := c.place(h, c.victim+i); other.entry == nil {
				at = other
				break
			}
		}
		c.keep(at, h, nil)
		return
	}
}

// place is the i-th slot in which h may lie, counting round and round.
func (c *Cache[Q]) place(h uint64, i int) *slot[Q] {
	return &c.slots[(int(h>>32)+i%cacheProbe)&(len(c.slots)-1)]
}

// put stores s in a free slot; false if there is none.
func (c *Cache[Q]) put(s slot[Q]) bool {
	for i := range min(cacheProbe, len(c.slots)) {
		if at := c.place(s.hash, i); at.hash == 0 {
			*at = s
			return true
		}
	}
	return false
}

// grow doubles the slots. What finds no place any more is forgotten.
func (c *Cache[Q]) grow() {
	old := c.slots
	c.slots = make([]slot[Q], max(cacheStart, 2*len(old)))
	for _, s := range old {
		if s.hash != 0 && !c.put(s) {
			c.held -= s.entry.leave()
		}
	}
}

// hashOf hashes an exchange name unless it is the one of the last call.
func (c *Cache[Q]) hashOf(exchange []byte) uint64 {
	if c.exHash == 0 || !bytes.Equal(c.exchange, exchange) {
		c.exchange = append(c.exchange[:0], exchange...)
		c.exHash = xxhash.Sum64(exchange)
	}
	return c.exHash
}

// route makes an entry, nil if there is no such exchange.
func (c *Cache[Q]) route(exchange, key []byte, exHash uint64) *Entry[Q] {
	w := &c.w
	w.record = true
	w.one[0] = key
	e := &Entry[Q]{}
	w.begin(e.queueRoom[:0], w.one[:])
	o := w.run(c.seed, c.vhost, view(exchange), exHash, nil)
	e.Queues = w.end()
	if o == noExchange {
		return nil
	}
	if o == needsMessage {
		e.Queues, e.NeedsMessage = nil, true
	}
	e.name = append(append(e.nameRoom[:0], exchange...), key...)
	e.cut = uint16(len(exchange))
	e.deps = append(e.depRoom[:0], w.deps...)
	clear(w.deps)
	return e
}

// view reads bytes as a string for the length of a call that keeps neither.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
