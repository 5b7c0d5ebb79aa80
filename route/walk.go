package route

import (
	"slices"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/firemq/firemq/frames/table"
)

// keepScratch is the length up to which a router's scratch lists and sets are kept for reuse.
const keepScratch = 4096

// walk is one routing and, kept for the next one, its scratch space. One goroutine at a time.
//
// Exchanges are visited in the order in which they are reached, each once, so cycles end.
type walk[Q comparable] struct {
	t *Table[Q] // immutable

	keys    [][]byte
	one     [1][]byte // backs keys when there is one
	headers table.Table
	props   table.Properties
	known   reads // what can be read; headers and props are this message's as far as they are in it

	out   []Q // the caller's list; the set found so far is out[base:]
	base  int
	found map[Q]struct{} // the same set, from indexed queues on

	queue   []*exchange[Q]            // reached exchanges, the visited ones first
	reached map[*exchange[Q]]struct{} // the same, from indexed exchanges on

	deps   []dep // what the result depends on
	record bool  // whether to note deps

	topic topicState[Q]
}

// dep is a counter and the value it had when routing relied on it.
type dep struct {
	gen  *atomic.Uint64
	seen uint64
}

type outcome uint8

const (
	routed outcome = iota
	noExchange
	needsMessage // an exchange was reached that looks at the message, which was not given
)

// route does Route for w.t. It leaves deps behind when recording.
func (w *walk[Q]) route(dst []Q, vhost, exchange string, keys [][]byte, m Message) ([]Q, bool) {
	if m == nil {
		m = bare{}
	}
	w.begin(dst, keys)
	o := w.run(seedOf(vhost), vhost, exchange, xxhash.Sum64String(exchange), m)
	return w.end(), o == routed
}

// bare is a Message with nothing but its routing key.
type bare struct{}

func (bare) Headers() table.Table         { return nil }
func (bare) Properties() table.Properties { return table.Properties{} }

func (w *walk[Q]) begin(dst []Q, keys [][]byte) {
	w.out, w.base, w.keys = dst, len(dst), keys
	w.deps = w.deps[:0]
}

// end gives the result and drops every reference of the routing, except that deps stay.
func (w *walk[Q]) end() []Q {
	out := w.out
	w.out, w.keys, w.one[0] = nil, nil, nil
	if w.known != 0 {
		w.headers, w.props, w.known = nil, table.Properties{}, 0
	}
	w.found = emptied(w.found)
	w.reached = emptied(w.reached)
	clear(w.queue)
	if w.queue = w.queue[:0]; cap(w.queue) > keepScratch {
		w.queue = nil
	}
	if len(w.topic.now)+len(w.topic.next)+len(w.topic.hashes) > 0 {
		w.topic.forget()
	}
	return out
}

func emptied[K comparable](m map[K]struct{}) map[K]struct{} {
	if len(m) > keepScratch {
		return nil
	}
	clear(m)
	return m
}

// run walks from the named exchange. Hashes come from the caller, who may have them already;
// with m nil the walk ends at the first exchange that looks at the message.
func (w *walk[Q]) run(seed uint64, vhost, exchange string, nameHash uint64, m Message) outcome {
	if exchange == "" {
		for _, key := range w.keys {
			w.toQueue(seed, vhost, key)
		}
		return routed
	}
	first := w.find(seed, vhost, exchange, nameHash)
	if first == nil {
		return noExchange
	}
	w.reach(first)
	for i := 0; i < len(w.queue); i++ {
		ex := w.queue[i]
		if ex.reads != 0 && m != nil {
			w.read(ex.reads, m)
		}
		alternate, o := w.visit(ex)
		if o == needsMessage || o == noExchange && i == 0 {
			return o
		}
		if alternate != "" {
			if ex := w.find(seed, vhost, alternate, xxhash.Sum64String(alternate)); ex != nil {
				w.reach(ex)
			}
		}
	}
	return routed
}

// read reads what an exchange wants to know of the message.
func (w *walk[Q]) read(what reads, m Message) {
	more := what &^ w.known
	if more&readsHeaders != 0 {
		w.headers = m.Headers()
	}
	if more&readsProperties != 0 {
		w.props = m.Properties()
	}
	w.known |= more
}

// find looks an exchange up and, when recording, notes its absence.
func (w *walk[Q]) find(seed uint64, vhost, exchangeName string, nameHash uint64) *exchange[Q] {
	sh := w.t.shardOf(seed, nameHash)
	sh.mu.RLock()
	ex := sh.exchanges[name{vhost, exchangeName}]
	if ex == nil {
		w.note(&sh.newExchanges, sh.newExchanges.Load())
	}
	sh.mu.RUnlock()
	return ex
}

// visit takes what ex leads to; alternate is where to go on because that was nothing. It gives
// noExchange when ex has been removed since it was found.
func (w *walk[Q]) visit(ex *exchange[Q]) (alternate string, o outcome) {
	ex.sh.mu.RLock()
	defer ex.sh.mu.RUnlock()
	if ex.removed {
		// Under its name there may be another one by now: what is made of this never holds.
		w.note(&ex.gen, ex.gen.Load()-1)
		return "", noExchange
	}
	w.note(&ex.gen, ex.gen.Load())
	switch {
	case ex.reads&^w.known != 0:
		return "", needsMessage
	case !ex.index.match(w):
		return ex.alternate, routed
	}
	return "", routed
}

// toQueue follows the implicit binding of the default exchange.
func (w *walk[Q]) toQueue(seed uint64, vhost string, queue []byte) {
	sh := w.t.shardOf(seed, xxhash.Sum64(queue))
	sh.mu.RLock()
	n := sh.queues[name{vhost, string(queue)}]
	if n == nil {
		w.note(&sh.newQueues, sh.newQueues.Load())
		sh.mu.RUnlock()
		return
	}
	w.note(&n.gen, n.gen.Load())
	sh.mu.RUnlock()
	w.takeNode(n)
}

func (w *walk[Q]) note(gen *atomic.Uint64, seen uint64) {
	if w.record {
		w.deps = append(w.deps, dep{gen, seen})
	}
}

// take adds a bucket's destinations, with the lock of its exchange held.
func (w *walk[Q]) take(k *bucket[Q]) {
	if len(w.out) == w.base {
		w.out = append(w.out, k.queues.items...)
	} else {
		for _, q := range k.queues.items {
			if !w.has(q) {
				w.out = append(w.out, q)
			}
		}
	}
	for _, ex := range k.exchanges.items {
		w.reach(ex)
	}
}

// takeNode adds one destination.
func (w *walk[Q]) takeNode(n *node[Q]) {
	if n.ex != nil {
		w.reach(n.ex)
	} else if !w.has(n.q) {
		w.out = append(w.out, n.q)
	}
}

// has reports whether q is among the found. Once these are many it notes that q is now, so
// the caller must append it.
func (w *walk[Q]) has(q Q) bool {
	return contains(&w.found, w.out[w.base:], q)
}

// reach adds ex to the exchanges to visit unless it is or was among them.
func (w *walk[Q]) reach(ex *exchange[Q]) {
	if !contains(&w.reached, w.queue, ex) {
		w.queue = append(w.queue, ex)
	}
}

// contains looks v up in a list that only grows, each time by the v just not found. From indexed
// items on it keeps them, v included, in a set as well.
func contains[T comparable](in *map[T]struct{}, list []T, v T) bool {
	if len(list) < indexed {
		return slices.Contains(list, v)
	}
	if len(*in) == 0 {
		if *in == nil {
			*in = make(map[T]struct{}, 2*len(list))
		}
		for _, u := range list {
			(*in)[u] = struct{}{}
		}
	}
	if _, ok := (*in)[v]; ok {
		return true
	}
	(*in)[v] = struct{}{}
	return false
}
