package broker

import (
	"fmt"
	"net"
	"sync"

	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/broker/message"
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

// NewPublish makes a message as an AMQP client would publish it, ready for Channel.Publish but for Seq and Mandatory.
// What the properties ask for counts as it does there: expiration, delay, CC and BCC, user_id; a reply_to that names the
// pseudo-queue is a fault, for nobody could answer. Exchange and key hold at most message.MaxName bytes. Any goroutine.
func (b *Broker) NewPublish(p *table.Properties, exchange, key string, body []byte) *Publish {
	a := message.Attributes{
		Encoding: message.AMQP, Persistent: p.DeliveryMode == 2, Priority: p.Priority,
		HasHeaders: p.Has&table.HasHeaders != 0, Expiration: -1,
	}
	out := &Publish{UserID: p.UserID}
	if p.ReplyTo == ReplyTo {
		out.Fault = NoReplyConsumer
	}
	if p.Has&table.HasExpiration != 0 {
		ms, why := ParseExpiration([]byte(p.Expiration))
		if why != "" && out.Fault == "" {
			out.Fault = fmt.Sprintf("invalid expiration '%s': %s", p.Expiration, why)
		}
		a.Expiration = ms
	}
	selected, fault := Select(p.Headers)
	if out.Fault == "" {
		out.Fault = fault
	}
	out.Keys = selected.Keys
	own := *p
	if selected.BCC {
		own.Headers = WithoutBCC(own.Headers)
	}
	own.Headers, _ = b.Delay(&a, own.Headers)
	out.Msg = message.NewBlind(a, []byte(exchange), []byte(key), selected.Blind, b.codecs[message.AMQP].Append(nil, &own), len(body))
	copy(out.Msg.Body(), body)
	return out
}
