package broker

import (
	"fmt"
	"net"
	"strconv"
	"sync"

	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/frames/table"
)

// ActFor opens a vhost for a user of the management API: the verbs of the Conn are limited by that
// user's permissions as those of any connection are. One goroutine uses it, closes it, and calls
// EndTurn after its verbs. It is internal: not listed, nothing is ever sent to it; sinks of its channels
// are called as usual. Errors: NotAllowed, no such vhost or no access to it.
func (b *Broker) ActFor(u *User, vhost string) (*Conn, *Error) {
	return b.Connect(u, new(silent), &ConnInfo{Protocol: apiProtocol, Name: "management API", VHost: vhost, Internal: true})
}

// apiProtocol is under which the messages of the management API are counted: its publishes and gets
// are AMQP's in all but the wire.
const apiProtocol = "AMQP 0-9-1"

// Administer is ActFor without a user: no permission limits it. For imports.
func (b *Broker) Administer(vhost string) (*Conn, *Error) {
	b.topo.RLock()
	v := b.vhosts[vhost]
	b.topo.RUnlock()
	if v == nil {
		return nil, refuse(NotAllowed, "vhost %s not found", vhost)
	}
	c := &Conn{
		b: b, peer: new(silent), user: &User{new(auth.User)}, vhost: v, all: true, since: b.opt.Now(),
		info:      ConnInfo{Protocol: apiProtocol, Name: "management API", VHost: vhost, Internal: true},
		exclusive: make(map[*Queue]struct{}),
		consumers: make(map[*Consumer]struct{}),
	}
	c.turn.b = b
	b.connMu.Lock()
	defer b.connMu.Unlock()
	if b.closed {
		return nil, refuse(ConnectionForced, "broker forced connection closure with reason 'shutdown'")
	}
	b.conns[c] = struct{}{}
	return c, nil
}

// UserOf is a login of that user without a password, for one that the caller has authenticated.
func UserOf(u *auth.User) *User { return &User{u} }

// silent is the Peer of an internal connection: it has no client.
type silent struct{ sync.Mutex }

func (s *silent) Unlock() bool {
	s.Mutex.Unlock()
	return false
}

func (*silent) Flush()         {}
func (*silent) Writable() bool { return true }
func (*silent) Pause(Reason)   {}
func (*silent) Resume(Reason)  {}
func (*silent) Careful(bool)   {}
func (*silent) Close(*Error)   {}
func (*silent) Answered()      {}
func (*silent) Late(*Channel)  {}

// LoginHTTP checks the name and password of a request to the management API. Errors: those of Authenticate;
// NotAllowed for a loopback user from elsewhere.
func (b *Broker) LoginHTTP(name, password string, remote net.Addr) (*auth.User, *Error) {
	u, e := b.Authenticate(name, password, remote)
	if e == nil {
		if err := b.users.LoopbackOnly(name, remote); err != nil {
			e = refuseLogin(NotAllowed, err)
		}
	}
	b.loginAttempt("http", e == nil)
	if e != nil {
		return nil, e
	}
	return u, nil
}

// NewMessage makes a message as an AMQP client would publish it. Exchange and key hold at most
// message.MaxName bytes. An error is an expiration that is no number.
func (b *Broker) NewMessage(p *table.Properties, exchange, key string, body []byte) (*message.Message, error) {
	a := message.Attributes{
		Encoding: message.AMQP, Persistent: p.DeliveryMode == 2, Priority: p.Priority,
		HasHeaders: p.Has&table.HasHeaders != 0, Expiration: -1,
	}
	if p.Has&table.HasExpiration != 0 {
		n, err := strconv.ParseInt(p.Expiration, 10, 64)
		if err != nil || n < 0 || n > policy.MaxTTL {
			return nil, fmt.Errorf("invalid expiration '%s'", p.Expiration)
		}
		a.Expiration = n
	}
	if passed, differ := b.Delay(&a, p.Headers); differ {
		own := *p
		own.Headers, p = passed, &own
	}
	m := message.New(a, []byte(exchange), []byte(key), b.codecs[message.AMQP].Append(nil, p), len(body))
	copy(m.Body(), body)
	return m, nil
}
