package route

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/firemq/firemq/frames/table"
)

// shards spread the locks. A power of two.
const (
	shardBits = 7
	shards    = 1 << shardBits
)

// Table holds the exchanges, queues and bindings of all vhosts. Any goroutine may call any
// method; none blocks on anything but the short locks of this package.
//
// Routing sees a change from the moment the changing call returns. A route that runs at the same
// time may still name a queue that is being removed: the owner of queues refuses it then.
type Table[Q comparable] struct {
	// Now gives the Unix ms for exchanges that de-duplicate. It may be replaced before the first use.
	Now func() int64

	shards   [shards]shard[Q]
	changes  changes
	walkers  sync.Pool // of *walk[Q], for Route; a Cache has its own
	bindings bindings
}

// bindings counts those of a table.
type bindings struct {
	n     atomic.Int64
	bytes atomic.Int64 // of their arguments, in memory
}

// changes counts what changed in a whole table, each change after its own generation: while the count stands
// still, a Cache need not look at generations, of which there are many. On a cache line of its own.
type changes struct {
	_ [64]byte
	n atomic.Uint64
	_ [56]byte
}

// Len is the number of bindings. While some are added or removed it may be off by those. Any goroutine.
func (t *Table[Q]) Len() int { return int(t.bindings.n.Load()) }

// ArgumentMemory is about how many bytes the arguments of all bindings take. Any goroutine.
func (t *Table[Q]) ArgumentMemory() int64 { return t.bindings.bytes.Load() }

// shard is one lock's share of the exchanges and queues.
type shard[Q comparable] struct {
	changes   *changes  // the table's; immutable, as is the next one
	bindings  *bindings // likewise
	mu        sync.RWMutex
	exchanges map[name]*exchange[Q] // guarded by mu
	queues    map[name]*node[Q]     // guarded by mu

	// Additions so far: unchanged, a name that was not there is still not there. They grow
	// under mu and are read by any goroutine.
	newExchanges atomic.Uint64
	newQueues    atomic.Uint64

	_ [64]byte // keeps neighbours' locks on other cache lines
}

// changed says that what gen stands for is not what it was. mu is held.
func (sh *shard[Q]) changed(gen *atomic.Uint64) {
	gen.Add(1)
	sh.changes.n.Add(1)
}

type name struct{ vhost, local string }

// node is a queue or an exchange in its role as a destination.
type node[Q comparable] struct {
	name              // immutable
	sh   *shard[Q]    // immutable
	ex   *exchange[Q] // immutable; nil for a queue
	q    Q            // immutable; a queue's
	gen  atomic.Uint64

	removed bool        // guarded by sh.mu; once true the incoming list is the remover's
	in      *binding[Q] // guarded by sh.mu; the announced bindings with this destination
}

// changed is shard.changed for n itself.
func (n *node[Q]) changed() { n.sh.changed(&n.gen) }

type exchange[Q comparable] struct {
	node[Q]
	kind  Kind  // immutable
	reads reads // immutable

	alternate string                      // guarded by sh.mu
	out       map[identity[Q]]*binding[Q] // guarded by sh.mu; once removed, the remover's
	index     index[Q]                    // guarded by sh.mu
}

// identity tells the bindings of one source apart.
type identity[Q comparable] struct {
	dst  *node[Q]
	key  string
	args string // encoded, sorted by name
}

type binding[Q comparable] struct {
	id   identity[Q]  // immutable
	src  *exchange[Q] // immutable
	args table.Table  // immutable; as the client wrote them
	rule *rule        // immutable; for a headers exchange

	weight float64 // immutable; for a consistent hash exchange

	state state // guarded by src.sh.mu
	bytes int32 // about what its arguments take; immutable

	prev, next *binding[Q] // guarded by id.dst.sh.mu; its incoming list
}

// definition is the binding as the outside knows it.
func (b *binding[Q]) definition() Binding {
	return Binding{
		VHost: b.src.vhost, Source: b.src.local,
		ToExchange: b.id.dst.ex != nil, Dest: b.id.dst.local,
		Key: b.id.key, Args: b.args,
	}
}

type state uint8

const (
	announced state = iota // the destination knows it, the source does not
	effective
	gone
)

// New makes an empty table. Q is what stands for a queue, usually a pointer.
func New[Q comparable]() *Table[Q] {
	t := &Table[Q]{Now: func() int64 { return time.Now().UnixMilli() }}
	for i := range t.shards {
		t.shards[i].changes, t.shards[i].bindings = &t.changes, &t.bindings
	}
	t.walkers.New = func() any { return &walk[Q]{t: t} }
	return t
}

// seedOf and shardOf take hashes apart so that a Cache reuses those it has.
func seedOf(vhost string) uint64 { return bits.RotateLeft64(xxhash.Sum64String(vhost), 23) }

func (t *Table[Q]) shardOf(seed, nameHash uint64) *shard[Q] {
	return &t.shards[(seed^nameHash)*0x9E3779B97F4A7C15>>(64-shardBits)]
}

func (t *Table[Q]) shard(vhost, name string) *shard[Q] {
	return t.shardOf(seedOf(vhost), xxhash.Sum64String(name))
}

func (t *Table[Q]) exchange(vhost, exchangeName string) *exchange[Q] {
	sh := t.shard(vhost, exchangeName)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	return sh.exchanges[name{vhost, exchangeName}]
}

func (t *Table[Q]) destination(vhost, dest string, toExchange bool) *node[Q] {
	if toExchange {
		if ex := t.exchange(vhost, dest); ex != nil {
			return &ex.node
		}
		return nil
	}
	sh := t.shard(vhost, dest)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	return sh.queues[name{vhost, dest}]
}

// AddExchange makes an exchange without bindings. It reports false and changes nothing if the name
// is taken, or the arguments are refused (see CheckExchange). The default exchange "" is in every
// vhost from the start and never added.
func (t *Table[Q]) AddExchange(vhost, exchangeName string, k Kind, args table.Table) bool {
	x, r, err := newIndex[Q](k, args)
	if err != nil {
		return false
	}
	sh := t.shard(vhost, exchangeName)
	ex := &exchange[Q]{
		node:  node[Q]{name: name{vhost, exchangeName}, sh: sh},
		kind:  k,
		reads: r,
		out:   make(map[identity[Q]]*binding[Q]),
		index: x,
	}
	ex.ex = ex
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if exchangeName == "" || sh.exchanges[ex.name] != nil {
		return false
	}
	if sh.exchanges == nil {
		sh.exchanges = make(map[name]*exchange[Q])
	}
	sh.exchanges[ex.name] = ex
	sh.changed(&sh.newExchanges)
	return true
}

// SetAlternate names the exchange that gets what this one finds no destination for, "" for
// none. It need not exist. False: there is no such exchange.
func (t *Table[Q]) SetAlternate(vhost, exchange, alternate string) bool {
	sh := t.shard(vhost, exchange)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	ex := sh.exchanges[name{vhost, exchange}]
	if ex == nil {
		return false
	}
	if ex.alternate != alternate {
		ex.alternate = alternate
		ex.changed()
	}
	return true
}

// RemoveExchange removes an exchange and every binding it was source or destination of, which
// it returns. A missing exchange is fine.
func (t *Table[Q]) RemoveExchange(vhost, exchange string) (removed []Binding) {
	sh := t.shard(vhost, exchange)
	id := name{vhost, exchange}
	sh.mu.Lock()
	ex := sh.exchanges[id]
	if ex == nil {
		sh.mu.Unlock()
		return nil
	}
	delete(sh.exchanges, id)
	out := ex.out
	ex.out, ex.index, ex.removed = nil, nil, true
	ex.changed()
	sh.mu.Unlock()

	removed = make([]Binding, 0, len(out))
	for _, b := range out {
		b.count(-1)
		removed = append(removed, b.definition())
		b.withdraw()
	}
	return ex.removeIncoming(removed)
}

// AddQueue makes a queue routable by the default exchange and bindable. It reports false and
// changes nothing if the name is taken.
func (t *Table[Q]) AddQueue(vhost, queue string, q Q) bool {
	sh := t.shard(vhost, queue)
	n := &node[Q]{name: name{vhost, queue}, sh: sh, q: q}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.queues[n.name] != nil {
		return false
	}
	if sh.queues == nil {
		sh.queues = make(map[name]*node[Q])
	}
	sh.queues[n.name] = n
	sh.changed(&sh.newQueues)
	return true
}

// RemoveQueue removes a queue and every binding it was the destination of, which it returns.
// A missing queue is fine.
func (t *Table[Q]) RemoveQueue(vhost, queue string) []Binding {
	sh := t.shard(vhost, queue)
	id := name{vhost, queue}
	sh.mu.Lock()
	n := sh.queues[id]
	if n == nil {
		sh.mu.Unlock()
		return nil
	}
	delete(sh.queues, id)
	n.removed = true
	n.changed()
	sh.mu.Unlock()
	return n.removeIncoming(nil)
}

// removeIncoming ends the bindings that lead to n, which is marked removed, and appends them to
// removed. Those that another call ended first are that call's to report.
func (n *node[Q]) removeIncoming(removed []Binding) []Binding {
	for b := n.in; b != nil; b = b.next {
		src := b.src
		src.sh.mu.Lock()
		if b.state == effective && !src.removed {
			src.detach(b)
			removed = append(removed, b.definition())
		}
		b.state = gone
		src.sh.mu.Unlock()
	}
	n.in = nil
	return removed
}

// detach ends a binding at its source, whose lock is held.
func (ex *exchange[Q]) detach(b *binding[Q]) {
	delete(ex.out, b.id)
	ex.index.remove(b)
	b.state = gone
	b.count(-1)
	ex.changed()
}

// count adds the binding to the table's, or takes it away.
func (b *binding[Q]) count(n int64) {
	sums := b.src.sh.bindings
	sums.n.Add(n)
	sums.bytes.Add(n * int64(b.bytes))
}

// announce puts b on its destination's list; false if that is removed.
func (b *binding[Q]) announce() bool {
	n := b.id.dst
	n.sh.mu.Lock()
	defer n.sh.mu.Unlock()
	if n.removed {
		return false
	}
	b.next = n.in
	if n.in != nil {
		n.in.prev = b
	}
	n.in = b
	return true
}

// withdraw takes b off its destination's list.
func (b *binding[Q]) withdraw() {
	n := b.id.dst
	n.sh.mu.Lock()
	defer n.sh.mu.Unlock()
	if n.removed {
		return // the list belongs to the remover
	}
	if b.prev != nil {
		b.prev.next = b.next
	} else {
		n.in = b.next
	}
	if b.next != nil {
		b.next.prev = b.prev
	}
	b.prev, b.next = nil, nil
}

// identify encodes arguments so that equal bytes mean the same binding: sorted by name, and
// both spellings of a 64-bit integer as one.
func identify(args table.Table) string {
	if len(args) == 0 {
		return ""
	}
	sorted := args.Sorted()
	for i := range sorted {
		if sorted[i].Value.Kind == table.Long {
			sorted[i].Value.Kind = table.Int64
		}
	}
	return string(table.Append(nil, sorted))
}

// Bind adds a binding; false if it is there already. Errors: *ArgumentError when the exchange's
// type refuses the arguments, ErrNoSource, ErrNoDestination; the default exchange is neither a
// source nor a destination. The table keeps a copy of Args.
func (t *Table[Q]) Bind(def Binding) (added bool, err error) {
	src := t.exchange(def.VHost, def.Source)
	if src == nil {
		return false, ErrNoSource
	}
	dst := t.destination(def.VHost, def.Dest, def.ToExchange)
	if dst == nil {
		return false, ErrNoDestination
	}
	b := &binding[Q]{
		id:   identity[Q]{dst: dst, key: def.Key, args: identify(def.Args)},
		src:  src,
		args: def.Args.Clone(),
	}
	b.share()
	if b.rule, b.weight, err = readBinding(src.kind, &def, b.args); err != nil {
		return false, err
	}
	if !b.announce() {
		return false, ErrNoDestination
	}
	added, err = src.attach(b)
	if !added {
		b.withdraw()
		return false, err
	}
	return true, nil
}

// share makes the arguments' strings parts of what identifies the binding, where that is spelled as they are: most
// are sorted as they come, and then their bytes are kept once.
func (b *binding[Q]) share() {
	if b.id.args == "" {
		return
	}
	if string(table.Append(nil, b.args)) == b.id.args {
		if args, err := table.DecodeString(b.id.args); err == nil {
			b.args, b.bytes = args, int32(args.Memory())
			return
		}
	}
	b.bytes = int32(b.args.Memory() + len(b.id.args))
}

// attach makes an announced binding effective.
func (ex *exchange[Q]) attach(b *binding[Q]) (added bool, err error) {
	ex.sh.mu.Lock()
	defer ex.sh.mu.Unlock()
	switch {
	case ex.removed:
		return false, ErrNoSource
	case b.state == gone:
		return false, ErrNoDestination
	case ex.out[b.id] != nil:
		b.state = gone
		return false, nil
	}
	ex.out[b.id] = b
	ex.index.add(b)
	b.state = effective
	b.count(1)
	ex.changed()
	return true, nil
}

// Unbind removes a binding; false if there is none like it.
func (t *Table[Q]) Unbind(def Binding) (removed bool) {
	src := t.exchange(def.VHost, def.Source)
	dst := t.destination(def.VHost, def.Dest, def.ToExchange)
	if src == nil || dst == nil {
		return false
	}
	id := identity[Q]{dst: dst, key: def.Key, args: identify(def.Args)}
	src.sh.mu.Lock()
	b := src.out[id]
	if b != nil {
		src.detach(b)
	}
	src.sh.mu.Unlock()
	if b == nil {
		return false
	}
	b.withdraw()
	return true
}

// Sources counts the bindings that have the exchange as their source.
func (t *Table[Q]) Sources(vhost, exchange string) int {
	sh := t.shard(vhost, exchange)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	if ex := sh.exchanges[name{vhost, exchange}]; ex != nil {
		return len(ex.out)
	}
	return 0
}

// Bindings shows the vhost's bindings in no particular order until visit returns false; the
// implicit ones of the default exchange are not among them. visit runs without a lock and may
// call the table; it sees each binding that is there throughout, and must not change Args.
func (t *Table[Q]) Bindings(vhost string, visit func(Binding) bool) {
	var found []*binding[Q]
	for i := range t.shards {
		sh := &t.shards[i]
		found = found[:0]
		sh.mu.RLock()
		for id, ex := range sh.exchanges {
			if id.vhost == vhost {
				found = ex.appendOut(found)
			}
		}
		sh.mu.RUnlock()
		if !visitAll(found, visit) {
			return
		}
	}
}

// BindingsFrom is Bindings for those of one source exchange.
func (t *Table[Q]) BindingsFrom(vhost, exchange string, visit func(Binding) bool) {
	sh := t.shard(vhost, exchange)
	sh.mu.RLock()
	var found []*binding[Q]
	if ex := sh.exchanges[name{vhost, exchange}]; ex != nil {
		found = ex.appendOut(make([]*binding[Q], 0, len(ex.out)))
	}
	sh.mu.RUnlock()
	visitAll(found, visit)
}

// HasBindings reports whether anything is bound to an exchange.
func (t *Table[Q]) HasBindings(vhost, exchange string) bool {
	sh := t.shard(vhost, exchange)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	ex := sh.exchanges[name{vhost, exchange}]
	return ex != nil && len(ex.out) > 0
}

// BindingsTo is Bindings for those that lead to one queue, or to one exchange.
func (t *Table[Q]) BindingsTo(vhost string, toExchange bool, dest string, visit func(Binding) bool) {
	n := t.destination(vhost, dest, toExchange)
	if n == nil {
		return
	}
	var found []*binding[Q]
	n.sh.mu.RLock()
	if !n.removed {
		for b := n.in; b != nil; b = b.next {
			found = append(found, b)
		}
	}
	n.sh.mu.RUnlock()
	for _, b := range found {
		b.src.sh.mu.RLock()
		there := b.state == effective && !b.src.removed
		b.src.sh.mu.RUnlock()
		if there && !visit(b.definition()) {
			return
		}
	}
}

func (ex *exchange[Q]) appendOut(found []*binding[Q]) []*binding[Q] {
	for _, b := range ex.out {
		found = append(found, b)
	}
	return found
}

func visitAll[Q comparable](found []*binding[Q], visit func(Binding) bool) bool {
	for _, b := range found {
		if !visit(b.definition()) {
			return false
		}
	}
	return true
}

// Route appends the queues that a message reaches to dst, each once; they are a set, in no
// particular order. exists is false when there is no such exchange, and dst comes back as it was.
//
// m is the rest of the message. It is asked at most once for each of its parts, without a lock held,
// and only when an exchange is reached that looks at it; nil stands for a message without any.
func (t *Table[Q]) Route(dst []Q, vhost, exchange string, key []byte, m Message) (queues []Q, exists bool) {
	w := t.walkers.Get().(*walk[Q])
	w.one[0] = key
	queues, exists = w.route(dst, vhost, exchange, w.one[:], m)
	t.walkers.Put(w)
	return queues, exists
}

// RouteKeys is Route for a message with several routing keys (its CC and BCC): the union of what
// they reach, and an alternate exchange takes over only where none of them found anything.
func (t *Table[Q]) RouteKeys(dst []Q, vhost, exchange string, keys [][]byte, m Message) (queues []Q, exists bool) {
	w := t.walkers.Get().(*walk[Q])
	queues, exists = w.route(dst, vhost, exchange, keys, m)
	t.walkers.Put(w)
	return queues, exists
}
