package broker

import (
	"maps"
)

// The limits of a vhost and of a user. A negative one is none, 0 allows nothing.
const (
	MaxConnections = "max-connections" // of a vhost, of a user
	MaxQueues      = "max-queues"      // of a vhost
	MaxChannels    = "max-channels"    // of a user, on all its connections
)

// Limits are limits by name.
type Limits map[string]int

// limit is false where there is none.
func (l Limits) limit(name string) (n int, limited bool) {
	n, ok := l[name]
	return n, ok && n >= 0
}

// AddVHost makes a vhost with its pre-declared exchanges; created is false if it exists. Permissions
// are given apart.
func (b *Broker) AddVHost(name string) (created bool) {
	b.topo.Lock()
	defer b.topo.Unlock()
	if b.vhosts[name] != nil {
		return false
	}
	b.addVHost(name)
	b.note(&change{Op: opAddVHost, VHost: name})
	return true
}

// DeleteVHost deletes a vhost with all that is in it, permissions included, and closes its connections.
// Errors: NotFound; PreconditionFailed if it is protected. Any goroutine, no lock held.
func (b *Broker) DeleteVHost(name string) *Error {
	b.topo.Lock()
	v := b.vhosts[name]
	if v == nil {
		b.topo.Unlock()
		return refuse(NotFound, "vhost %s not found", name)
	}
	if v.meta.Protected {
		b.topo.Unlock()
		return refuse(PreconditionFailed, "Refusing to delete virtual host '%s' because it is protected from deletion", name)
	}
	queues := b.removeVHost(v)
	b.note(&change{Op: opDeleteVHost, VHost: name})
	b.topo.Unlock()

	b.connMu.Lock()
	v.gone = true
	b.connMu.Unlock()
	b.closeConns(refuse(ConnectionForced, "vhost '%s' is deleted", name), func(c *Conn) bool { return c.vhost == v })
	for _, q := range queues {
		t := b.newTurn()
		b.deleteQueue(q, t, nil)
		t.free()
	}
	return nil
}

// removeVHost makes a vhost, its topology and the permissions in it not exist; its queues, which it
// gives, still hold their messages. topo locked.
func (b *Broker) removeVHost(v *VHost) (queues []*Queue) {
	delete(b.vhosts, v.name)
	b.users.DeleteVHost(v.name)
	for _, x := range v.exchanges {
		b.dropExchange(v, x)
	}
	for _, q := range v.queues {
		b.dropQueue(v, q)
		queues = append(queues, q)
	}
	return queues
}

// closeConns asks connections to end with the reason for their clients.
func (b *Broker) closeConns(e *Error, which func(*Conn) bool) {
	b.connMu.Lock()
	var conns []*Conn
	for c := range b.conns {
		if which(c) {
			conns = append(conns, c)
		}
	}
	b.connMu.Unlock()
	for _, c := range conns {
		c.peer.Close(e)
	}
}

// SetVHostLimit sets one limit of a vhost, or clears it with a negative n. It counts from the next
// connection or queue on. Error: NotFound.
func (b *Broker) SetVHostLimit(vhost, limit string, n int) *Error {
	b.topo.Lock()
	defer b.topo.Unlock()
	v := b.vhosts[vhost]
	if v == nil {
		return refuse(NotFound, "vhost %s not found", vhost)
	}
	limits := maps.Clone(v.limits)
	if limits == nil {
		limits = make(Limits, 1)
	}
	if limits[limit] = n; n < 0 {
		delete(limits, limit)
	}
	v.limits = limits
	b.note(&change{Op: opVHostLimits, VHost: vhost, Limits: limits})
	return nil
}

// VHostLimits gives a vhost's limits; nil for none.
func (b *Broker) VHostLimits(vhost string) Limits {
	b.topo.RLock()
	defer b.topo.RUnlock()
	if v := b.vhosts[vhost]; v != nil {
		return maps.Clone(v.limits)
	}
	return nil
}

// roomForQueue says whether one more queue may be declared. topo locked.
func (v *VHost) roomForQueue(name string) *Error {
	if n, limited := v.limits.limit(MaxQueues); limited && len(v.queues) >= n {
		return refuse(PreconditionFailed, "cannot declare queue '%s': queue limit in vhost '%s' (%d) is reached", name, v.name, n)
	}
	return nil
}

// usage counts what limits are about. Guarded by Broker.connMu; gone when all is 0.
type usage struct{ conns, channels int }

// admit refuses a new connection that a limit of its vhost or user forbids. connMu locked.
func (b *Broker) admit(c *Conn, limits Limits) *Error {
	if c.info.Internal {
		return nil
	}
	user, v := c.user.Name(), c.vhost
	if n, limited := limits.limit(MaxConnections); limited && v.conns >= n {
		return refuse(NotAllowed, "access to vhost '%s' refused for user '%s': connection limit (%d) is reached", v.name, user, n)
	}
	have := usage{}
	if u := b.usage[user]; u != nil {
		have = *u
	}
	if n, limited := b.userLimit(user, MaxConnections); limited && have.conns >= n {
		return refuse(NotAllowed, "connection refused for user '%s': user connection limit (%d) is reached", user, n)
	}
	return nil
}

func (b *Broker) userLimit(user, limit string) (n int, limited bool) {
	if u, ok := b.users.User(user); ok {
		return u.Limit(limit)
	}
	return 0, false
}

// count adds to what a user has. connMu locked.
func (b *Broker) count(user string, conns, channels int) {
	u := b.usage[user]
	if u == nil {
		u = &usage{}
		b.usage[user] = u
	}
	u.conns += conns
	u.channels += channels
	if *u == (usage{}) {
		delete(b.usage, user)
	}
}

// countChannel counts one more channel, unless the user's limit forbids it.
func (c *Conn) countChannel() *Error {
	if c.info.Internal {
		return nil
	}
	b, user := c.b, c.user.Name()
	n, limited := b.userLimit(user, MaxChannels)
	b.connMu.Lock()
	defer b.connMu.Unlock()
	if limited && b.usage[user].channels >= n {
		return refuse(NotAllowed, "number of channels opened for user '%s' has reached the maximum allowed user limit of %d", user, n)
	}
	b.count(user, 0, 1)
	return nil
}
