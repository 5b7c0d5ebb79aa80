package fire

import (
	"cmp"
	"slices"

	"github.com/firemq/firemq/frames/fmq1"
)

// topology is what a client declared and did not delete, to be declared again: as much as the
// application asked for. A queue that the broker named has two names here, the first and the one
// it has now. Guarded by Client.mu.
type topology struct {
	n         uint64 // declarations, for their order
	exchanges map[string]*exchangeRecord
	queues    map[string]*queueRecord // by first name and name
	bindings  map[binding]*bindingRecord
}

type exchangeRecord struct {
	order uint64
	m     fmq1.DeclareExchange
}

type queueRecord struct {
	order       uint64
	first, name string
	m           fmq1.DeclareQueue // without a name when the broker chooses one
}

// binding tells bindings apart. Queues are under their first names.
type binding struct{ exchange, queue, toExchange, key, args string }

type bindingRecord struct{ order uint64 }

// declaration is a request to be made again.
type declaration struct {
	order  uint64
	op     fmq1.Op
	header func(rid uint64) fmq1.Header
	queue  *queueRecord // of a queue's
}

func newTopology() topology {
	return topology{exchanges: map[string]*exchangeRecord{}, queues: map[string]*queueRecord{}, bindings: map[binding]*bindingRecord{}}
}

func (t *topology) next() uint64 {
	t.n++
	return t.n
}

// queue is the name that a queue has now, of which name is the first or the present one.
func (t *topology) queue(name string) string {
	if q := t.queues[name]; q != nil {
		return q.name
	}
	return name
}

// first is the name under which a queue was declared.
func (t *topology) first(name string) string {
	if q := t.queues[name]; q != nil {
		return q.first
	}
	return name
}

func (t *topology) declaredExchange(m fmq1.DeclareExchange) {
	if m.Passive {
		return
	}
	if e := t.exchanges[m.Name]; e != nil {
		e.m = m
		return
	}
	t.exchanges[m.Name] = &exchangeRecord{t.next(), m}
}

func (t *topology) deletedExchange(name string) {
	delete(t.exchanges, name)
	for b := range t.bindings {
		if b.exchange == name || b.toExchange == name {
			delete(t.bindings, b)
		}
	}
}

func (t *topology) declaredQueue(m fmq1.DeclareQueue, name string) {
	if m.Passive {
		return
	}
	if q := t.queues[name]; q != nil {
		if q.m.Name != "" {
			q.m = m
		}
		return
	}
	t.queues[name] = &queueRecord{t.next(), name, name, m}
}

// deletedQueue forgets a queue that the client knows to be gone.
func (t *topology) deletedQueue(name string) {
	q := t.queues[name]
	if q == nil {
		q = &queueRecord{first: name, name: name}
	}
	delete(t.queues, q.first)
	delete(t.queues, q.name)
	for b := range t.bindings {
		if b.queue == q.first {
			delete(t.bindings, b)
		}
	}
}

// rename notes the name that the broker chose for a queue that is declared again.
func (t *topology) rename(q *queueRecord, name string) {
	if q.name != q.first {
		delete(t.queues, q.name)
	}
	q.name = name
	t.queues[name] = q
}

func (t *topology) bindingOf(m *fmq1.Bind) binding {
	b := binding{exchange: m.Exchange, toExchange: m.ToExchange, key: m.Key, args: string(m.Args)}
	if m.Queue != "" {
		b.queue = t.first(m.Queue)
	}
	return b
}

func (t *topology) addBinding(m *fmq1.Bind) {
	b := t.bindingOf(m)
	if t.bindings[b] == nil {
		t.bindings[b] = &bindingRecord{t.next()}
	}
}

// removeBinding forgets a binding, and its source if that went with its last one.
func (t *topology) removeBinding(m *fmq1.Bind) {
	delete(t.bindings, t.bindingOf(m))
	if e := t.exchanges[m.Exchange]; e == nil || !e.m.AutoDelete {
		return
	}
	for b := range t.bindings {
		if b.exchange == m.Exchange {
			return
		}
	}
	t.deletedExchange(m.Exchange)
}

// declarations are those of exchanges and queues, in their order.
func (t *topology) declarations() []declaration {
	list := make([]declaration, 0, len(t.exchanges)+len(t.queues))
	for _, e := range t.exchanges {
		m := e.m
		list = append(list, declaration{order: e.order, op: fmq1.OpDeclareExchange, header: func(rid uint64) fmq1.Header {
			m.RID = rid
			return &m
		}})
	}
	for name, q := range t.queues {
		if name != q.first {
			continue
		}
		m := q.m
		list = append(list, declaration{order: q.order, op: fmq1.OpDeclareQueue, queue: q, header: func(rid uint64) fmq1.Header {
			m.RID = rid
			return &m
		}})
	}
	return inOrder(list)
}

// bound are the bindings, in their order.
func (t *topology) bound() []declaration {
	list := make([]declaration, 0, len(t.bindings))
	for b, r := range t.bindings {
		m := fmq1.Bind{Exchange: b.exchange, ToExchange: b.toExchange, Key: b.key, Args: fmq1.Map(b.args)}
		if b.queue != "" {
			m.Queue = t.queue(b.queue)
		}
		list = append(list, declaration{order: r.order, op: fmq1.OpBind, header: func(rid uint64) fmq1.Header {
			m.RID = rid
			return &m
		}})
	}
	return inOrder(list)
}

func inOrder(list []declaration) []declaration {
	slices.SortFunc(list, func(a, b declaration) int { return cmp.Compare(a.order, b.order) })
	return list
}
