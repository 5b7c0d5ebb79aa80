package broker

import (
	"slices"
	"strconv"
	"strings"

	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/journal"
	"github.com/firemq/firemq/route"
)

// maxExchanges are as many as there may be in all vhosts.
const maxExchanges = 1 << 20

// DeclareExchange makes an exchange, or checks that an equal one exists. Errors: AccessRefused,
// NotFound (passive), PreconditionFailed (unknown type, inequivalent argument, too large, too many), ResourceError
// (memory).
func (c *Conn) DeclareExchange(d *ExchangeDeclare) *Error {
	b, v := c.b, c.vhost
	if d.Name == "" {
		return refuse(AccessRefused, "operation not permitted on the default exchange")
	}
	if d.Passive {
		c.costly()
		b.topo.RLock()
		defer b.topo.RUnlock()
		x := v.exchanges[d.Name]
		if x == nil {
			return refuse(NotFound, "no %s", exchangeName(d.Name, v.name))
		}
		c.promise(x.noted)
		return nil
	}
	if e := c.allowExchange(rightConfigure, d.Name); e != nil {
		return e
	}
	kind, fault := ExchangeKind(d.Type, d.Args)
	if !IsExchangeType(d.Type) {
		return fault
	}
	alternate, bad := policy.AlternateExchange(d.Args, exchangeName(d.Name, v.name))
	if bad != nil {
		return refuse(PreconditionFailed, "%s", bad.Text)
	}
	c.finishCollected()
	b.topo.Lock()
	defer b.topo.Unlock()
	if b.vhosts[v.name] != v {
		return refuse(NotAllowed, "vhost %s not found", v.name)
	}
	if x := v.exchanges[d.Name]; x != nil {
		c.promise(x.noted)
		return x.equivalent(d, v.name)
	}
	if strings.HasPrefix(d.Name, "amq.") {
		return refuse(AccessRefused, "exchange name '%s' contains reserved prefix 'amq.*'", d.Name)
	}
	if alternate != "" {
		if e := c.allowExchange(rightRead, d.Name); e != nil {
			return e
		}
		if e := c.allowExchange(rightWrite, alternate); e != nil {
			return e
		}
	}
	if fault != nil {
		return fault // of an argument: no matter for an exchange that exists
	}
	name := exchangeName(d.Name, v.name)
	if e := CheckTable(d.Args, argumentsOf(name)); e != nil {
		return e
	}
	if most := b.opt.tuning.maxExchanges; b.exchanges >= most {
		return refuse(PreconditionFailed, "cannot declare %s: exchange limit of %d is reached", name, most)
	}
	if e := c.claim(exchangeMemory+int64(d.Args.Memory()), false); e != nil {
		return e
	}
	x := &Exchange{Name: d.Name, Type: d.Type, Durable: d.Durable, AutoDelete: d.AutoDelete, Internal: d.Internal, Args: d.Args, alternate: alternate}
	b.addExchange(v, x, kind)
	if x.Durable {
		x.noted = b.note(&change{Op: opDeclareExchange, VHost: v.name, Exchange: x})
	}
	c.promise(x.noted)
	return nil
}

// equivalent compares an existing exchange with a declare, in RabbitMQ's order.
func (x *Exchange) equivalent(d *ExchangeDeclare, vhost string) *Error {
	differ := func(key, received, current string) *Error {
		return refuse(PreconditionFailed, "inequivalent arg '%s' for %s: received %s but current is %s",
			key, exchangeName(x.Name, vhost), received, current)
	}
	quoted := func(s string) string { return "'" + s + "'" }
	bools := func(b bool) string { return quoted(strconv.FormatBool(b)) }
	switch {
	case x.Type != d.Type:
		return differ("type", quoted(d.Type), quoted(x.Type))
	case x.Durable != d.Durable:
		return differ("durable", bools(d.Durable), bools(x.Durable))
	case x.AutoDelete != d.AutoDelete:
		return differ("auto_delete", bools(d.AutoDelete), bools(x.AutoDelete))
	case x.Internal != d.Internal:
		return differ("internal", bools(d.Internal), bools(x.Internal))
	}
	if text, ok := policy.EquivalentArg("alternate-exchange", x.Args, d.Args, exchangeName(x.Name, vhost)); !ok {
		return refuse(PreconditionFailed, "%s", text)
	}
	return nil
}

// addExchange makes x exist. topo locked.
func (b *Broker) addExchange(v *VHost, x *Exchange, kind route.Kind) {
	x.kind, x.stats, x.kept = kind, new(ExchangeStats), int64(x.Args.Memory())
	v.exchanges[x.Name] = x
	b.exchanges++
	b.arguments.Add(x.kept)
	b.routes.AddExchange(v.name, x.Name, kind, x.Args)
	b.applyToExchange(v, x)
}

// DeleteExchange deletes an exchange and its bindings; a missing one is no error. Errors:
// AccessRefused, PreconditionFailed (ifUnused and it has bindings).
func (c *Conn) DeleteExchange(name string, ifUnused bool) *Error {
	b, v := c.b, c.vhost
	if name == "" {
		return refuse(AccessRefused, "operation not permitted on the default exchange")
	}
	if e := c.allowExchange(rightConfigure, name); e != nil {
		return e
	}
	if strings.HasPrefix(name, "amq.") {
		return refuse(AccessRefused, "deletion of system %s not allowed", exchangeName(name, v.name))
	}
	c.finishCollected()
	b.topo.Lock()
	defer b.topo.Unlock()
	x := v.exchanges[name]
	if x == nil {
		c.promise(b.topoPos)
		return nil
	}
	if ifUnused && b.routes.Sources(v.name, name) > 0 {
		return refuse(PreconditionFailed, "%s in use", exchangeName(name, v.name))
	}
	b.removeExchange(v, x)
	if x.Durable {
		c.promise(b.topoPos)
	}
	return nil
}

// removeExchange deletes x, its bindings, and auto-delete exchanges that lose their last
// binding by it. topo locked.
func (b *Broker) removeExchange(v *VHost, x *Exchange) {
	removed := b.dropExchange(v, x)
	if x.Durable {
		b.note(&change{Op: opDeleteExchange, VHost: v.name, Name: x.Name})
	}
	b.sweep(v, removed)
}

// dropExchange undoes addExchange, and gives the bindings that x had. topo locked.
func (b *Broker) dropExchange(v *VHost, x *Exchange) []route.Binding {
	delete(v.exchanges, x.Name)
	b.exchanges--
	b.arguments.Add(-x.kept)
	x.stats.gone.Store(true)
	return b.routes.RemoveExchange(v.name, x.Name)
}

// sweep deletes the auto-delete exchanges whose last binding as source was among removed.
func (b *Broker) sweep(v *VHost, removed []route.Binding) {
	for _, r := range removed {
		if x := v.exchanges[r.Source]; x != nil && x.AutoDelete && b.routes.Sources(v.name, r.Source) == 0 {
			b.removeExchange(v, x)
		}
	}
}

// DeclareQueue makes a queue, or checks that an equal one exists. Errors: AccessRefused, NotFound
// (passive), ResourceLocked, PreconditionFailed (arguments), ResourceError (memory).
func (c *Conn) DeclareQueue(d *QueueDeclare) (QueueStatus, *Error) {
	b, v := c.b, c.vhost
	c.finishCollected()
	if s, ours, e := c.declareReplies(d.Name); ours {
		return s, e
	}
	if d.Passive {
		q, e := c.queue(d.Name)
		if e != nil {
			return QueueStatus{}, e
		}
		c.promise(q.noted)
		return q.status(c.begin()), nil
	}
	name := d.Name
	serverNamed := name == ""
	if serverNamed {
		name = unique("amq.gen-")
	} else if strings.HasPrefix(name, "amq.") {
		return QueueStatus{}, refuse(AccessRefused, "queue name '%s' contains reserved prefix 'amq.*'", name)
	}
	if e := c.allowQueue(rightConfigure, name); e != nil {
		return QueueStatus{}, e
	}
	typed := *d
	typed.Args = c.withDefaultType(d)
	d = &typed
	b.topo.RLock()
	q := v.queues[name]
	room := v.roomForQueue(name)
	b.topo.RUnlock()
	if q != nil {
		return c.redeclare(q, d)
	}
	if room != nil {
		return QueueStatus{}, room
	}
	settings, bad := policy.Parse(d.Args, policy.Properties{
		Durable: d.Durable, Exclusive: d.Exclusive, AutoDelete: d.AutoDelete, ServerNamed: serverNamed,
	}, queueName(name, v.name))
	if bad != nil {
		return QueueStatus{}, refuse(PreconditionFailed, "%s", bad.Text)
	}
	if e := CheckTable(d.Args, argumentsOf(queueName(name, v.name))); e != nil {
		return QueueStatus{}, e
	}
	if settings.DeadLetterExchange != nil {
		if e := c.allowQueue(rightRead, name); e != nil {
			return QueueStatus{}, e
		}
		if e := c.allowExchange(rightWrite, *settings.DeadLetterExchange); e != nil {
			return QueueStatus{}, e
		}
	}
	size := queueMemory + int64(d.Args.Memory())
	if e := c.claim(size, d.Exclusive); e != nil {
		return QueueStatus{}, e
	}
	q = &Queue{
		b: b, vhost: v.name, name: name,
		durable: d.Durable && !d.Exclusive, declared: d.Durable, exclusive: d.Exclusive, autoDelete: d.AutoDelete,
		args: d.Args, own: &settings,
	}
	if d.Exclusive {
		q.owner = c
	}
	b.topo.Lock()
	other, full := v.queues[name], v.roomForQueue(name)
	if gone := b.vhosts[v.name] != v; gone || other != nil || full != nil {
		b.topo.Unlock()
		c.unclaim(size, d.Exclusive)
		switch {
		case gone:
			return QueueStatus{}, refuse(NotAllowed, "vhost %s not found", v.name)
		case other != nil:
			return c.redeclare(other, d)
		}
		return QueueStatus{}, full
	}
	switch {
	case q.durable:
		q.id = b.nextID
		b.nextID++
	case b.journal != nil:
		q.id = fleetingIDs + b.fleeting
		b.fleeting++
	}
	b.addQueue(v, q)
	if q.durable {
		q.noted = b.note(&change{Op: opDeclareQueue, VHost: v.name, Queue: q.definition()})
	}
	b.topo.Unlock()
	c.promise(q.noted)
	if d.Exclusive {
		c.mu.Lock()
		c.exclusive[q] = struct{}{}
		c.mu.Unlock()
	}
	b.counters.QueuesDeclared.Add(1)
	b.counters.QueuesCreated.Add(1)
	return q.status(c.begin()), nil
}

// redeclare compares an existing queue with a declare, in RabbitMQ's order.
func (c *Conn) redeclare(q *Queue, d *QueueDeclare) (QueueStatus, *Error) {
	if q.exclusive != d.Exclusive || q.exclusive && q.owner != c {
		return QueueStatus{}, lockedError(q.name, q.vhost)
	}
	differ := func(key string, received, current bool) *Error {
		return refuse(PreconditionFailed, "inequivalent arg '%s' for %s: received '%t' but current is '%t'",
			key, queueName(q.name, q.vhost), received, current)
	}
	switch {
	case q.declared != d.Durable && !q.exclusive:
		return QueueStatus{}, differ("durable", d.Durable, q.declared)
	case q.autoDelete != d.AutoDelete:
		return QueueStatus{}, differ("auto_delete", d.AutoDelete, q.autoDelete)
	}
	if text, ok := policy.Equivalent(q.args, d.Args, queueName(q.name, q.vhost)); !ok {
		return QueueStatus{}, refuse(PreconditionFailed, "%s", text)
	}
	c.promise(q.noted)
	c.b.counters.QueuesDeclared.Add(1)
	return q.status(c.begin()), nil
}

// promise notes that the answer to a verb waits until the journal has committed pos. What the broker
// started with is safe, also when the journal was lost and ends before it.
func (c *Conn) promise(pos journal.Position) {
	if pos > c.b.opt.Start.Position {
		c.changed = max(c.changed, pos)
	}
}

// promiseAll is promise for all that is noted so far: the answer says that something does not exist,
// or exists already, and who made it so may still wait. No lock is held.
func (c *Conn) promiseAll() {
	c.b.topo.RLock()
	defer c.b.topo.RUnlock()
	c.promise(c.b.topoPos)
}

// addQueue makes q exist. topo locked.
func (b *Broker) addQueue(v *VHost, q *Queue) {
	s := v.policies.settle(q)
	q.settings.Store(s)
	b.timeouts.note(s.ConsumerTimeout)
	if len(s.Definition) == 0 {
		q.own = &s.Settings // the same, kept once
	}
	q.sm.Init(s.Config)
	q.rewindow(s.Dedup, b.opt.Now())
	q.used.Store(b.opt.Now())
	q.kept = int64(q.args.Memory())
	b.arguments.Add(q.kept)
	v.queues[q.name] = q
	v.changes++
	if q.id != 0 {
		b.byID[q.id] = q
	}
	b.routes.AddQueue(v.name, q.name, q)
	if s.Config.Expires != queue.None {
		b.timers.lease(q, s.Config.Expires)
	}
}

// dropQueue undoes addQueue, and gives the bindings that q had. topo locked.
func (b *Broker) dropQueue(v *VHost, q *Queue) []route.Binding {
	delete(v.queues, q.name)
	b.arguments.Add(-q.kept)
	v.changes++
	delete(b.byID, q.id)
	return b.routes.RemoveQueue(v.name, q.name)
}

// status answers a declare; it counts as a use of the queue.
func (q *Queue) status(t *turn) QueueStatus {
	q.used.Store(t.now)
	q.mu.Lock()
	defer q.mu.Unlock()
	return QueueStatus{Name: q.name, Messages: q.sm.Len(), Consumers: len(q.members)}
}

// DeleteQueue deletes a queue and gives the number of ready and delayed messages that went with it; a missing
// queue is no error. Errors: AccessRefused, ResourceLocked, PreconditionFailed (in use, not empty).
func (c *Conn) DeleteQueue(name string, ifUnused, ifEmpty bool) (int, *Error) {
	if e := c.allowQueue(rightConfigure, name); e != nil {
		return 0, e
	}
	c.finishCollected()
	q, e := c.queue(name)
	if e != nil {
		if e.Kind == NotFound {
			c.promiseAll()
			return 0, nil
		}
		return 0, e
	}
	if q.durable {
		defer c.promiseAll()
	}
	return c.b.deleteQueueIf(q, c.begin(), func() *Error {
		switch {
		case ifEmpty && q.sm.Len()+q.sm.Delayed() > 0:
			return refuse(PreconditionFailed, "%s not empty", queueName(name, c.vhost.name))
		case ifUnused && len(q.members) > 0:
			return refuse(PreconditionFailed, "%s in use", queueName(name, c.vhost.name))
		}
		return nil
	})
}

// deleteQueue deletes q unless it is deleted already; still is asked under its lock.
func (b *Broker) deleteQueue(q *Queue, t *turn, still func() bool) int {
	n, _ := b.deleteQueueIf(q, t, func() *Error {
		if still != nil && !still() {
			return refuse(PreconditionFailed, "in use again")
		}
		return nil
	})
	return n
}

// deleteQueueIf deletes q when ok, called with its lock held, allows it. Its consumers are
// told, its messages dropped without dead-lettering, and its bindings removed.
func (b *Broker) deleteQueueIf(q *Queue, t *turn, ok func() *Error) (int, *Error) {
	b.topo.Lock()
	q.mu.Lock()
	if q.deleted {
		q.mu.Unlock()
		b.topo.Unlock()
		return 0, nil
	}
	if e := ok(); e != nil {
		q.mu.Unlock()
		b.topo.Unlock()
		return 0, e
	}
	q.deleted = true
	left := q.sm.Close()
	q.page(t)
	q.adopt(t)
	n := left.Len()
	members := make([]*Consumer, 0, len(q.members))
	for c := range q.members {
		members = append(members, c)
	}
	clear(q.members)
	q.channels = nil
	q.serves.Store(nil)
	q.mu.Unlock()

	if v := b.vhosts[q.vhost]; v != nil && v.queues[q.name] == q {
		removed := b.dropQueue(v, q)
		if q.durable {
			b.note(&change{Op: opDeleteQueue, VHost: q.vhost, Name: q.name})
		}
		b.sweep(v, removed)
	}
	b.topo.Unlock()

	b.upkeep.sweep(t, q, left)
	b.timers.forget(q)
	if q.owner != nil {
		q.owner.mu.Lock()
		delete(q.owner.exclusive, q)
		q.owner.mu.Unlock()
	}
	gone := refuse(NotFound, "%s is deleted", queueName(q.name, q.vhost))
	// In order of their tags, as a channel of RabbitMQ tells of its own.
	slices.SortFunc(members, func(a, b *Consumer) int { return strings.Compare(a.Tag, b.Tag) })
	for _, c := range members {
		c.forget()
		c.cancelled(t, gone)
	}
	b.counters.QueuesDeleted.Add(1)
	return n, nil
}

// abandon lets go of an entry of a deleted queue: the deletion's record speaks for it.
func (b *Broker) abandon(e *queue.Entry) {
	pos := e.Position()
	if e.Msg != nil {
		e.Msg.Release()
		e.Msg = nil
	}
	if e.Journaled && pos != 0 {
		b.journal.Free(pos, 1, weight(e.Size))
	}
}

// PurgeQueue drops the ready and delayed messages of a queue and gives their number. Errors: NotFound,
// ResourceLocked, AccessRefused.
func (c *Conn) PurgeQueue(name string) (int, *Error) {
	if e := c.allowQueue(rightRead, name); e != nil {
		return 0, e
	}
	c.finishCollected()
	q, e := c.queue(name)
	if e != nil {
		return 0, e
	}
	t := c.begin()
	q.mu.Lock()
	left := q.sm.Purge()
	q.page(t)
	q.mu.Unlock()
	n := left.Len()
	c.b.upkeep.sweep(t, q, left)
	return n, nil
}

// finishCollected begins a verb that must come after the publishes of all channels: it carries those out.
// Collected acks stay: their errors belong to their own channels.
func (c *Conn) finishCollected() {
	c.costly()
	for _, ch := range c.active {
		ch.flush()
	}
}

// BindQueue binds a queue to an exchange; an equal binding is no error. Errors: NotFound (the exchange
// first), AccessRefused, ResourceLocked, PreconditionFailed (headers arguments, too large), ResourceError (memory).
func (c *Conn) BindQueue(queue, exchange, key string, args table.Table) *Error {
	return c.bind(route.Binding{VHost: c.vhost.name, Source: exchange, Dest: queue, Key: key, Args: args}, true)
}

// UnbindQueue removes a binding; a missing one, and a missing queue or exchange, is no error.
func (c *Conn) UnbindQueue(queue, exchange, key string, args table.Table) *Error {
	return c.bind(route.Binding{VHost: c.vhost.name, Source: exchange, Dest: queue, Key: key, Args: args}, false)
}

// BindExchange binds exchange dest to exchange source.
func (c *Conn) BindExchange(dest, source, key string, args table.Table) *Error {
	return c.bind(route.Binding{VHost: c.vhost.name, Source: source, ToExchange: true, Dest: dest, Key: key, Args: args}, true)
}

// UnbindExchange removes a binding between exchanges.
func (c *Conn) UnbindExchange(dest, source, key string, args table.Table) *Error {
	return c.bind(route.Binding{VHost: c.vhost.name, Source: source, ToExchange: true, Dest: dest, Key: key, Args: args}, false)
}

func (c *Conn) bind(r route.Binding, add bool) *Error {
	b, v := c.b, c.vhost
	if r.Source == "" || r.ToExchange && r.Dest == "" {
		return refuse(AccessRefused, "operation not permitted on the default exchange")
	}
	if e := c.allowDest(&r); e != nil {
		return e
	}
	if e := c.allowExchange(rightRead, r.Source); e != nil {
		return e
	}
	if !r.ToExchange && strings.HasPrefix(r.Dest, ReplyTo) {
		return refuse(AccessRefused, "cannot bind or unbind to a volatile (direct reply-to) queue")
	}
	c.finishCollected()
	b.topo.Lock()
	defer b.topo.Unlock()
	x := v.exchanges[r.Source]
	q, dx := v.queues[r.Dest], v.exchanges[r.Dest]
	switch {
	case x == nil && add:
		return refuse(NotFound, "no %s", exchangeName(r.Source, v.name))
	case add && r.ToExchange && dx == nil:
		return refuse(NotFound, "no %s", exchangeName(r.Dest, v.name))
	case add && !r.ToExchange && q == nil:
		return refuse(NotFound, "no %s", queueName(r.Dest, v.name))
	}
	if x != nil {
		if e := c.allowTopic(rightRead, x, []byte(r.Key)); e != nil {
			return e
		}
	}
	// To unbind what is not bound is no error, not even where the queue is another connection's.
	if !r.ToExchange && q != nil {
		if e := c.unlocked(q); e != nil && (add || b.bound(&r)) {
			return e
		}
	}
	if !add {
		if b.routes.Unbind(r) {
			if b.durableBinding(v, &r) {
				c.promise(b.note(&change{Op: opUnbind, VHost: v.name, Binding: &r}))
			}
			b.sweep(v, []route.Binding{r})
		} else {
			c.promise(b.topoPos)
		}
		return nil
	}
	size, own := bindingMemory+int64(r.Args.Memory()), !r.ToExchange && q.exclusive
	e := CheckTable(r.Args, argumentsOf("a binding from "+exchangeName(r.Source, v.name)))
	if e == nil {
		e = c.claim(size, own)
	}
	if e != nil && !b.bound(&r) {
		return e
	}
	added, err := b.routes.Bind(r)
	if !added && e == nil {
		c.unclaim(size, own)
	}
	if err != nil {
		return refuse(PreconditionFailed, "%s", err)
	}
	if b.durableBinding(v, &r) {
		if added {
			b.note(&change{Op: opBind, VHost: v.name, Binding: &r})
		}
		c.promise(b.topoPos)
	}
	return nil
}

// bound says whether a binding exists.
func (b *Broker) bound(r *route.Binding) (found bool) {
	b.routes.BindingsTo(r.VHost, r.ToExchange, r.Dest, func(have route.Binding) bool {
		found = have.Source == r.Source && have.Key == r.Key && sameArgs(have.Args, r.Args)
		return !found
	})
	return found
}

// sameArgs compares arguments as sets sorted by name.
func sameArgs(a, b table.Table) bool {
	byName := func(t table.Table) table.Value {
		t = slices.Clone(t)
		slices.SortStableFunc(t, func(a, b table.Field) int { return strings.Compare(a.Name, b.Name) })
		return table.TableValue(t)
	}
	return table.Equal(byName(a), byName(b))
}

func (c *Conn) allowDest(r *route.Binding) *Error {
	if r.ToExchange {
		return c.allowExchange(rightWrite, r.Dest)
	}
	return c.allowQueue(rightWrite, r.Dest)
}

// durableBinding: both ends are durable. topo locked.
func (b *Broker) durableBinding(v *VHost, r *route.Binding) bool {
	x := v.exchanges[r.Source]
	if x == nil || !x.Durable {
		return false
	}
	if r.ToExchange {
		d := v.exchanges[r.Dest]
		return d != nil && d.Durable
	}
	q := v.queues[r.Dest]
	return q != nil && q.durable
}

// predeclared are the exchanges that every vhost has (all durable).
var predeclared = []Exchange{
	{Name: "amq.direct", Type: "direct"},
	{Name: "amq.fanout", Type: "fanout"},
	{Name: "amq.topic", Type: "topic"},
	{Name: "amq.headers", Type: "headers"},
	{Name: "amq.match", Type: "headers"},
	{Name: "amq.rabbitmq.trace", Type: "topic", Internal: true},
}

// addVHost makes a vhost with its pre-declared exchanges. topo locked.
func (b *Broker) addVHost(name string) *VHost {
	v := &VHost{name: name, exchanges: make(map[string]*Exchange), queues: make(map[string]*Queue)}
	b.vhosts[name] = v
	for _, p := range predeclared {
		x := p
		x.Durable = true
		kind, _ := route.ParseKind(x.Type)
		b.addExchange(v, &x, kind)
	}
	return v
}

func isPredeclared(name string) bool {
	return slices.ContainsFunc(predeclared, func(x Exchange) bool { return x.Name == name })
}
