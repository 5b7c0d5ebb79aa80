package broker

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/journal"
	"github.com/firemq/firemq/route"
)

// User is a login that passed.
type User struct {
	user *auth.User
}

// Name is the login's name.
func (u *User) Name() string { return u.user.Name }

// LoginPause is how long a session waits with the answer to a login that is LoginLimited.
const LoginPause = time.Second

// Login checks name and password in constant time, and that a loopback user comes from this
// machine. Any goroutine. The error's text is what a client may see; its cause is for the session to log.
// Errors: LoginRefused, LoginLimited.
func (b *Broker) Login(name, password string, info *ConnInfo) (*User, *Error) {
	b.arrive(&b.pace.logins, due(loginCost, 1))
	u, e := b.Authenticate(name, password, info.Remote)
	if e == nil {
		if err := b.users.LoopbackOnly(name, info.Remote); err != nil {
			e = refuseLogin(LoginRefused, err)
		}
	}
	b.loginAttempt(info.Protocol, e == nil)
	if e != nil {
		return nil, e
	}
	return &User{u}, nil
}

// Authenticate checks a password that came from remote, nil for one whose origin is not known. After too many
// wrong ones from there nobody looks at it, so that a right one is not told from them. Any goroutine. Errors:
// LoginRefused, LoginLimited.
func (b *Broker) Authenticate(name, password string, remote net.Addr) (*auth.User, *Error) {
	now := b.opt.Now()
	if b.attempts.Blocked(name, remote, now) {
		return nil, &Error{Kind: LoginLimited, Text: "login refused", Cause: "too many wrong passwords from there"}
	}
	u, err := b.users.Authenticate(name, password)
	if err != nil {
		b.attempts.Failed(name, remote, now)
		return nil, refuseLogin(LoginRefused, err)
	}
	return u, nil
}

// refuseLogin keeps the reason from the client.
func refuseLogin(k Kind, reason error) *Error {
	return &Error{Kind: k, Text: "login refused", Cause: reason.Error()}
}

// Conn is one login to one vhost. Its methods belong to the connection's reader, except Drained.
type Conn struct {
	b     *Broker // immutable, like all up to the next group
	peer  Peer
	user  *User
	vhost *VHost
	info  ConnInfo

	properties int64 // bytes that info.Properties take

	// Owned by the connection's reader.
	access   *auth.Access // what the user may do, as of epoch; nil: nothing
	epoch    uint64
	turn     turn
	channels []*Channel
	active   []*Channel // have collected publishes or settlements
	quiet    bool
	closed   bool
	// changed is the journal position of what the verbs changed whose answers were not given yet to
	// Channel.Answer, 0 for nothing.
	changed journal.Position

	kept  atomic.Int64 // answers that wait on its channels, and one more while it Rests
	paced paced
	held  int64 // its part of Broker.unfinished
	// indulged are the bytes that it claimed without there being room.
	indulged int64
	share    int64 // bytes published while the journal was behind

	since int64  // Unix ms of the login; immutable
	born  uint64 // the alarm that held at the login, by Broker.alarms, 0 for none; immutable
	all   bool   // every permission (see Administer); immutable

	// alarmMu orders what the peer is told of alarms. Nothing else takes it, so that holding it while
	// the peer stages and flushes a frame holds up nobody.
	alarmMu sync.Mutex
	blocked Reason // guarded by alarmMu

	brought atomic.Uint32 // the last window in which it published, see tightness
	careful atomic.Bool   // it is read with care; changed under alarmMu

	starved atomic.Bool // in room.waiting; any goroutine

	mu        sync.Mutex
	exclusive map[*Queue]struct{}    // exclusive queues; guarded by mu
	consumers map[*Consumer]struct{} // of all channels; guarded by mu
	consumed  uint64                 // consumers so far; guarded by mu

	// Owned by the connection's reader.
	lateOf   uint64 // the alarm that the next three are about, by Broker.alarms
	lateSum  int64  // bytes published during it
	lateOwed int64  // bytes published beyond what all might since it last settled something
	lateRest int    // bytes of MayFinish

	owing bool // it had deliveries to settle in this turn

	awaitsRoom atomic.Bool // the completer has it in its list
	awaitsDisk atomic.Bool // likewise

	// Owned by the connection's reader.
	holding int64 // Unix ms since when its session holds frames, 0: it does not
	before  int64 // timely before that

	timely atomic.Int64 // Unix ms before which no delivery's time begins: see Holds; any goroutine
}

// Connect opens info.VHost for a user that logged in. Errors: NotAllowed with RabbitMQ's texts.
func (b *Broker) Connect(u *User, p Peer, info *ConnInfo) (*Conn, *Error) {
	c, e := b.connect(u, p, info)
	if e == nil && info.AlarmsAtOnce {
		c.heed(false)
	}
	return c, e
}

func (b *Broker) connect(u *User, p Peer, info *ConnInfo) (*Conn, *Error) {
	b.topo.RLock()
	v := b.vhosts[info.VHost]
	var limits Limits
	if v != nil {
		limits = v.limits
	}
	b.topo.RUnlock()
	if v == nil {
		return nil, refuse(NotAllowed, "vhost %s not found", info.VHost)
	}
	c := &Conn{
		b: b, peer: p, user: u, vhost: v, info: *info, properties: int64(info.Properties.Memory()), since: b.opt.Now(),
		exclusive: make(map[*Queue]struct{}),
		consumers: make(map[*Consumer]struct{}),
	}
	c.turn.b = b
	if b.alarm.Load() != 0 {
		c.born = b.alarms.Load()
	}
	if e := b.HoldGuest(&c.held, PropertiesMemory(info.Properties)); e != nil {
		return nil, e
	}
	ok := false
	defer func() {
		if !ok {
			b.unfinished.Add(-c.held)
		}
	}()
	b.connMu.Lock()
	defer b.connMu.Unlock()
	// What is checked here cannot go away unseen: a deletion first happens, then looks for connections.
	switch {
	case b.closed:
		return nil, refuse(ConnectionForced, "broker forced connection closure with reason 'shutdown'")
	case v.gone:
		return nil, refuse(NotAllowed, "vhost %s not found", v.name)
	}
	if e := b.admit(c, limits); e != nil {
		return nil, e
	}
	c.epoch = b.users.Epoch()
	if c.access, ok = b.users.Access(u.user.Name, v.name); !ok {
		return nil, refuse(NotAllowed, "access to vhost '%s' refused for user '%s'", v.name, u.user.Name)
	}
	b.conns[c] = struct{}{}
	if !info.Internal {
		v.conns++
		b.count(u.user.Name, 1, 0)
		b.counters.ConnectionsOpened.Add(1)
	}
	return c, nil
}

// drop forgets a connection that ended. connMu locked.
func (b *Broker) drop(c *Conn) {
	delete(b.conns, c)
	if !c.info.Internal {
		c.vhost.conns--
		b.count(c.user.Name(), -1, 0)
	}
}

// begin is the connection's own turn, with its clock set.
func (c *Conn) begin() *turn {
	if c.turn.now == 0 {
		c.turn.now = c.b.opt.Now()
	}
	return &c.turn
}

// EndTurn carries out what the turn collected and flushes every outbox it made dirty. If a collected
// ack was wrong it returns that channel and the error instead: the session closes the
// channel (or replies) and calls EndTurn again until it returns nil.
func (c *Conn) EndTurn() (*Channel, *Error) {
	for len(c.active) > 0 {
		ch := c.active[len(c.active)-1]
		ch.flush()
		if e := ch.Settle(); e != nil {
			return ch, e
		}
		ch.active = false
		c.active = c.active[:len(c.active)-1]
	}
	if c.turn.now != 0 {
		c.turn.end()
	}
	if c.paced.verbs > 0 {
		c.settleUp()
	}
	c.owing = false
	return nil, nil
}

// Quiesce ends what the connection did: channels closed, unacked deliveries requeued, exclusive queues
// deleted. No Sink method is called afterwards, and of its own methods only Close may be. A session
// that still says goodbye calls it first.
func (c *Conn) Quiesce() {
	if c.quiet {
		return
	}
	c.b.unfinished.Add(-c.held)
	c.held, c.quiet = 0, true
	if c.paced.timer != nil {
		c.paced.timer.Stop()
	}
	t := c.begin()
	c.mu.Lock()
	for k := range c.consumers {
		k.started.Store(false) // what one channel gives back is not for another
	}
	c.mu.Unlock()
	for len(c.channels) > 0 {
		c.channels[len(c.channels)-1].Close()
	}
	c.mu.Lock()
	queues := make([]*Queue, 0, len(c.exclusive))
	for q := range c.exclusive {
		queues = append(queues, q)
	}
	c.mu.Unlock()
	for _, q := range queues {
		c.b.deleteQueue(q, t, nil)
	}
	t.end()
}

// Close ends the connection for good, after Quiesce if that was not called: the broker no longer waits
// for it (see Stop). Calling it again does nothing.
func (c *Conn) Close() {
	c.Quiesce()
	if c.closed {
		return
	}
	c.closed = true
	c.b.connMu.Lock()
	c.b.drop(c)
	if c.b.closed && len(c.b.conns) == 0 {
		close(c.b.empty)
	}
	c.b.connMu.Unlock()
	if !c.info.Internal {
		c.b.counters.ConnectionsClosed.Add(1)
	}
}

// Drained tells the broker that the outbox fell below its low-water mark: consumers that were
// passed over get deliveries again. Any goroutine, no lock held.
func (c *Conn) Drained() {
	t := c.b.newTurn()
	c.wake(t)
	t.free()
}

// wake dispatches every queue that a consumer of this connection takes from.
func (c *Conn) wake(t *turn) {
	c.mu.Lock()
	list := make([]*Consumer, 0, len(c.consumers))
	for k := range c.consumers {
		list = append(list, k)
	}
	c.mu.Unlock()
	for _, k := range list {
		k.wake(t)
	}
}

// Properties decodes a message's properties whatever protocol published it, for a delivery that
// crosses protocols. Strings may alias the message.
func (c *Conn) Properties(m *message.Message) (table.Properties, error) { return c.b.properties(m) }

// properties also gives a persistent message its delivery mode, which is no property of every protocol.
func (b *Broker) properties(m *message.Message) (table.Properties, error) {
	p, err := b.codecs[m.Encoding].Decode(m.Props())
	if m.Persistent && p.Has&table.HasDeliveryMode == 0 {
		p.Has |= table.HasDeliveryMode
		p.DeliveryMode = 2
	}
	return p, err
}

// User is the login's name, VHost the vhost's.
func (c *Conn) User() string  { return c.user.Name() }
func (c *Conn) VHost() string { return c.vhost.name }

// rights are the user's permissions as they are now, nil when they were taken away.
func (c *Conn) rights() *auth.Access {
	if epoch := c.b.users.Epoch(); epoch != c.epoch {
		c.access, _ = c.b.users.Access(c.user.Name(), c.vhost.name)
		c.epoch = epoch
	}
	return c.access
}

// allowTopic checks the permission of a routing key on a topic exchange.
func (c *Conn) allowTopic(r auth.Right, x *Exchange, key []byte) *Error {
	if c.all {
		return nil
	}
	if a := c.rights(); x.kind != route.Topic || a != nil && a.TopicAllowed(r, []byte(x.Name), key) {
		return nil
	}
	return refuse(AccessRefused, "%s access to topic '%s' in %s refused for user '%s'",
		r, key, exchangeName(x.Name, c.vhost.name), c.user.Name())
}

// allow checks one permission; resource names what it is about in the refusal.
func (c *Conn) allow(r auth.Right, name string, resource func(name, vhost string) string) *Error {
	if a := c.rights(); c.all || a != nil && a.Allowed(r, name) {
		return nil
	}
	return refuse(AccessRefused, "%s access to %s refused for user '%s'", r, resource(name, c.vhost.name), c.user.Name())
}

func (c *Conn) allowQueue(r auth.Right, name string) *Error { return c.allow(r, name, queueName) }

func (c *Conn) allowExchange(r auth.Right, name string) *Error {
	if name == "" {
		name = defaultExchange
	}
	return c.allow(r, name, exchangeName)
}

// defaultExchange is the name of the exchange "" in permissions and texts.
const defaultExchange = "amq.default"

// mayWrite is allowExchange for a publish, which allocates nothing when it may.
func (c *Conn) mayWrite(exchange []byte) bool {
	a := c.rights()
	switch {
	case a == nil:
		return false
	case len(exchange) == 0:
		return a.Allowed(auth.Write, defaultExchange)
	}
	return a.AllowedBytes(auth.Write, exchange)
}

// queue finds a queue that this connection may touch (0-9-1 exclusive queues: 405).
func (c *Conn) queue(name string) (*Queue, *Error) {
	c.b.topo.RLock()
	q := c.vhost.queues[name]
	c.b.topo.RUnlock()
	if q == nil {
		return nil, refuse(NotFound, "no %s", queueName(name, c.vhost.name))
	}
	return q, c.unlocked(q)
}

func (c *Conn) unlocked(q *Queue) *Error {
	if q.exclusive && q.owner != c {
		return lockedError(q.name, q.vhost)
	}
	return nil
}

func lockedError(name, vhost string) *Error {
	return refuse(ResourceLocked, "cannot obtain exclusive access to locked %s. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration.", queueName(name, vhost))
}
