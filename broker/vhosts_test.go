package broker

import (
	"net"
	"testing"

	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/pool"
)

// tryConnect logs guest in to a vhost.
func tryConnect(t testing.TB, b *Broker, user, vhost string) (*client, *Error) {
	t.Helper()
	info := &ConnInfo{Protocol: "test", Name: "test", VHost: vhost, Remote: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
	u, e := b.Login(user, user, info)
	if e != nil {
		t.Fatal(e.Text)
	}
	c := &client{t: t, peer: &testPeer{}}
	if c.Conn, e = b.Connect(u, c.peer, info); e != nil {
		return c, e
	}
	t.Cleanup(c.Close)
	c.sink = &testSink{peer: c.peer, t: t}
	c.ch, e = c.Conn.Open(1, c.sink)
	return c, e
}

func addUser(t testing.TB, b *Broker, name string, vhosts ...string) {
	t.Helper()
	if err := b.Users().AddUser(name, name); err != nil {
		t.Fatal(err)
	}
	for _, v := range vhosts {
		if _, err := b.Users().SetPermissions(auth.Permission{User: name, VHost: v, Configure: ".*", Write: ".*", Read: ".*"}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDeletedVHostTakesEverythingWithIt(t *testing.T) {
	b := memoryBroker(t, Options{})
	b.AddVHost("v")
	addUser(t, b, "u", "/", "v")
	here, e := tryConnect(t, b, "u", "/")
	here.ok(e)
	there, e := tryConnect(t, b, "u", "v")
	there.ok(e)
	before := pool.Live()
	there.declare(QueueDeclare{Name: "q"})
	there.declare(QueueDeclare{Name: "x", Exclusive: true})
	there.ok(there.BindQueue("q", "amq.topic", "#", nil))
	there.ok(there.DeclareExchange(&ExchangeDeclare{Name: "e", Type: "fanout"}))
	for range 10 {
		there.publish("amq.topic", "k", "m")
	}
	there.end()
	there.consume(ConsumeArgs{Queue: "q", Tag: "t"})
	there.publish("amq.topic", "k", "held")
	there.ok(b.ChangeVHostMeta("v", func(m *VHostMeta) { *m = VHostMeta{Protected: true} }))
	there.refused(b.DeleteVHost("v"), PreconditionFailed, "Refusing to delete virtual host 'v' because it is protected from deletion")
	there.ok(b.ChangeVHostMeta("v", func(m *VHostMeta) { *m = VHostMeta{} }))
	there.ok(b.DeleteVHost("v"))
	there.refused(there.peer.closedBy, ConnectionForced, "vhost 'v' is deleted")
	if here.peer.closedBy != nil {
		t.Fatal("a connection of another vhost was closed")
	}
	_, e = there.DeclareQueue(&QueueDeclare{Name: "late"})
	there.refused(e, AccessRefused, "configure access to queue 'late' in vhost 'v' refused for user 'u'")
	there.refused(there.tryPublish("amq.topic", "k", "late", false), AccessRefused, "write access to exchange 'amq.topic' in vhost 'v' refused for user 'u'")
	_, e = tryConnect(t, b, "u", "v")
	here.refused(e, NotAllowed, "vhost v not found")
	there.Close()
	if n := pool.Live(); n != before {
		t.Errorf("%d buffers left", n-before)
	}
	b.AddVHost("v")
	_, e = tryConnect(t, b, "u", "v")
	here.refused(e, NotAllowed, "access to vhost 'v' refused for user 'u'")
	if n := b.Totals().Queues; n != 0 {
		t.Errorf("%d queues left", n)
	}
}

func TestLimitsOfVHostsAndUsers(t *testing.T) {
	b := memoryBroker(t, Options{})
	addUser(t, b, "u", "/")
	c := connect(t, b)
	c.ok(b.SetVHostLimit("/", MaxConnections, 2))
	one, e := tryConnect(t, b, "u", "/")
	c.ok(e)
	_, e = tryConnect(t, b, "u", "/")
	c.refused(e, NotAllowed, "access to vhost '/' refused for user 'u': connection limit (2) is reached")
	one.Close()
	one, e = tryConnect(t, b, "u", "/")
	c.ok(e)
	c.ok(b.SetVHostLimit("/", MaxConnections, -1))
	if err := b.Users().SetLimit("u", MaxConnections, 1); err != nil {
		t.Fatal(err)
	}
	_, e = tryConnect(t, b, "u", "/")
	c.refused(e, NotAllowed, "connection refused for user 'u': user connection limit (1) is reached")

	if err := b.Users().SetLimit("u", MaxChannels, 2); err != nil {
		t.Fatal(err)
	}
	two, e := one.Open(2, one.sink)
	c.ok(e)
	_, e = one.Open(3, one.sink)
	c.refused(e, NotAllowed, "number of channels opened for user 'u' has reached the maximum allowed user limit of 2")
	two.Close()
	if _, e = one.Open(3, one.sink); e != nil {
		t.Fatal(e.Text)
	}

	c.ok(b.SetVHostLimit("/", MaxQueues, 1))
	c.declare(QueueDeclare{Name: "a"})
	c.declare(QueueDeclare{Name: "a"}) // exists: no new one
	_, e = c.DeclareQueue(&QueueDeclare{Name: "b"})
	c.refused(e, PreconditionFailed, "cannot declare queue 'b': queue limit in vhost '/' (1) is reached")
	c.ok(b.SetVHostLimit("/", MaxQueues, 0))
	if _, e = c.DeleteQueue("a", false, false); e != nil {
		t.Fatal(e.Text)
	}
	_, e = c.DeclareQueue(&QueueDeclare{Name: "a"})
	c.refused(e, PreconditionFailed, "cannot declare queue 'a': queue limit in vhost '/' (0) is reached")
}

func TestDeletedUserLosesItsConnections(t *testing.T) {
	b := memoryBroker(t, Options{})
	addUser(t, b, "u", "/")
	c := connect(t, b)
	other, e := tryConnect(t, b, "u", "/")
	c.ok(e)
	if !b.DeleteUser("u") || b.DeleteUser("u") {
		t.Fatal("DeleteUser tells it wrong")
	}
	c.refused(other.peer.closedBy, ConnectionForced, "user 'u' is deleted")
	if c.peer.closedBy != nil {
		t.Fatal("another user's connection was closed")
	}
	_, e = other.DeclareQueue(&QueueDeclare{Name: "q"})
	c.refused(e, AccessRefused, "configure access to queue 'q' in vhost '/' refused for user 'u'")
}

// A new secret has the consumers cancelled whose queues may no longer be read; others stay.
func TestRecheckCancelsWhatMayNoLongerBeRead(t *testing.T) {
	b := memoryBroker(t, Options{})
	addUser(t, b, "u", "/")
	c, e := tryConnect(t, b, "u", "/")
	c.ok(e)
	c.declare(QueueDeclare{Name: "yes"})
	c.declare(QueueDeclare{Name: "no"})
	c.consume(ConsumeArgs{Queue: "yes", Tag: "y"})
	c.consume(ConsumeArgs{Queue: "no", Tag: "n"})
	c.consume(ConsumeArgs{Queue: ReplyTo, Tag: "r", NoAck: true})
	c.Recheck()
	c.end()
	eq(t, "nothing changed", c.sink.cancelled, nil)
	if _, err := b.Users().SetPermissions(auth.Permission{User: "u", VHost: "/", Configure: ".*", Write: ".*", Read: "^yes$"}); err != nil {
		t.Fatal(err)
	}
	c.Recheck()
	c.end()
	eq(t, "cancelled", c.sink.cancelled, []string{"n"})
	if n := b.Totals().Consumers; n != 2 {
		t.Errorf("%d consumers", n)
	}
}
