package broker

import (
	"slices"

	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
)

// PolicyDef is a policy or an operator policy of a vhost.
type PolicyDef struct {
	VHost    string
	Operator bool
	*policy.Policy
}

// policies are those of one vhost. The slices are never changed in place.
type policies struct {
	user, operator []*policy.Policy
}

func (p *policies) of(operator bool) *[]*policy.Policy {
	if operator {
		return &p.operator
	}
	return &p.user
}

// Governing says which policies apply to a queue or exchange; nil for none.
type Governing struct {
	User, Operator *policy.Policy
	Definition     table.Table // the two merged
}

// governing finds what applies to one object.
func (p *policies) governing(t policy.Target, name string) Governing {
	if len(p.user) == 0 && len(p.operator) == 0 {
		return Governing{}
	}
	g := Governing{User: policy.Match(p.user, t, name), Operator: policy.Match(p.operator, t, name)}
	g.Definition = policy.Effective(g.User, g.Operator)
	return g
}

// effective is what arguments and policies make of a queue. Immutable.
type effective struct {
	policy.Settings
	Governing
}

func (p *policies) settle(q *Queue) *effective {
	e := &effective{Settings: *q.own, Governing: p.governing(policy.Target(q.own.Type), q.name)}
	if len(e.Definition) > 0 {
		e.Settings = q.own.With(e.Definition)
	}
	return e
}

// PutPolicy makes or replaces the policy of that name in its vhost and applies it at once to what
// exists: queues over a new limit shrink, leases and expiries start. Any goroutine, no lock held.
// Error: NotFound (the vhost).
func (b *Broker) PutPolicy(d PolicyDef) *Error {
	b.topo.Lock()
	v := b.vhosts[d.VHost]
	if v == nil {
		b.topo.Unlock()
		return refuse(NotFound, "vhost %s not found", d.VHost)
	}
	b.setPolicy(v, d)
	b.note(&change{Op: opPutPolicy, VHost: v.name, Policy: describe(d)})
	b.applyToExchanges(v)
	b.topo.Unlock()
	b.applyToQueues(v)
	return nil
}

// setPolicy puts d among the vhost's policies. topo locked.
func (b *Broker) setPolicy(v *VHost, d PolicyDef) {
	list := v.policies.of(d.Operator)
	kept := slices.DeleteFunc(slices.Clone(*list), func(p *policy.Policy) bool { return p.Name == d.Name })
	*list = append(kept, d.Policy)
}

// DeletePolicy takes a policy away from what it applied to. Error: NotFound.
func (b *Broker) DeletePolicy(vhost, name string, operator bool) *Error {
	b.topo.Lock()
	v := b.vhosts[vhost]
	if v == nil || !v.policies.remove(name, operator) {
		b.topo.Unlock()
		return refuse(NotFound, "no policy '%s' in vhost '%s'", name, vhost)
	}
	b.note(&change{Op: opDeletePolicy, VHost: vhost, Policy: &policyChange{Name: name, Operator: operator}})
	b.applyToExchanges(v)
	b.topo.Unlock()
	b.applyToQueues(v)
	return nil
}

func (p *policies) remove(name string, operator bool) (removed bool) {
	list := p.of(operator)
	n := len(*list)
	*list = slices.DeleteFunc(slices.Clone(*list), func(p *policy.Policy) bool { return p.Name == name })
	return len(*list) < n
}

// Policies lists all policies and operator policies.
func (b *Broker) Policies() (list []PolicyDef) {
	b.topo.RLock()
	defer b.topo.RUnlock()
	return b.listPolicies()
}

// listPolicies is Policies. topo locked.
func (b *Broker) listPolicies() (list []PolicyDef) {
	for name, v := range b.vhosts {
		for _, p := range v.policies.user {
			list = append(list, PolicyDef{name, false, p})
		}
		for _, p := range v.policies.operator {
			list = append(list, PolicyDef{name, true, p})
		}
	}
	return list
}

// applyToExchanges sets every exchange's alternate anew. topo locked.
func (b *Broker) applyToExchanges(v *VHost) {
	for _, x := range v.exchanges {
		b.applyToExchange(v, x)
	}
}

func (b *Broker) applyToExchange(v *VHost, x *Exchange) {
	x.governing = v.policies.governing(policy.Exchanges, x.Name)
	b.routes.SetAlternate(v.name, x.Name, policy.Alternate(x.alternate, x.governing.Definition))
}

// applyToQueues gives every queue of the vhost the settings of the policies as they are now. No lock
// is held: each queue is locked for itself, and a newly declared one has them already.
func (b *Broker) applyToQueues(v *VHost) {
	b.topo.RLock()
	queues := make([]*Queue, 0, len(v.queues))
	for _, q := range v.queues {
		queues = append(queues, q)
	}
	b.topo.RUnlock()
	for _, q := range queues {
		t := b.newTurn()
		// Under topo the policies cannot change between the look at them and their effect, so that
		// the last change wins.
		b.topo.RLock()
		q.reconfigure(t, v.policies.settle(q))
		b.topo.RUnlock()
		t.free()
	}
}

// reconfigure applies new settings at once.
func (q *Queue) reconfigure(t *turn, e *effective) {
	q.mu.Lock()
	old := q.settings.Swap(e)
	changed := old.Config != e.Config && !q.deleted
	if old.ConsumerTimeout != e.ConsumerTimeout {
		q.b.timeouts.note(e.ConsumerTimeout)
		q.b.timeouts.changed.Store(true)
	}
	q.rewindow(e.Dedup, t.now)
	if changed {
		q.used.Store(t.now) // its lease begins anew, as in RabbitMQ
		q.sm.Reconfigure(e.Config, t.now, &t.fx)
		q.apply(t)
		q.dispatch(t)
	}
	q.mu.Unlock()
	if changed && old.Config.Expires != e.Config.Expires && e.Config.Expires != queue.None {
		q.b.timers.lease(q, e.Config.Expires)
	}
}
