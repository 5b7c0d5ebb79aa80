package fmq1

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/broker"
	wire "github.com/firemq/firemq/frames/fmq1"
)

// Each refusal is one line with the client's address, its user and vhost, and the spec's code; what is not
// refused is none.
func TestRefusalsAreLogged(t *testing.T) {
	b := memoryBroker(t)
	var out bytes.Buffer
	opt := Options{Log: slog.New(slog.NewTextHandler(&out, nil))}
	lines := func(want ...string) {
		t.Helper()
		got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		out.Reset()
		if len(got) != len(want) {
			t.Fatalf("got %q", got)
		}
		for i := range want {
			if !strings.Contains(got[i], want[i]) {
				t.Errorf("got %q\nwant %q", got[i], want[i])
			}
		}
	}
	hello := func(user, vhost string) []byte {
		m := wire.Hello{Ver: wire.Version, VHost: vhost, Auth: wire.Auth{Mech: "plain", User: user, Pass: "guest"}}
		return append([]byte(wire.Preface), wire.Append(nil, wire.OpHello, &m)...)
	}
	l := newLink(t, b, opt)
	addr := `peer="` + name(l.o) + `" `
	l.feed(hello("guest", ""))
	lines(`level=INFO msg="connection open" ` + addr + "user=guest vhost=/")
	l.feed(wire.Append(nil, wire.OpGet, &wire.Get{RID: 1, Queue: "absent"}))
	lines(`level=WARN msg="request refused" ` + addr + "user=guest vhost=/ code=404 reason=\"NOT_FOUND - no queue 'absent'")
	p := wire.Publish{Seq: 1, Exchange: []byte("absent")}
	l.feed(wire.End(p.AppendTo(wire.Begin(nil, wire.OpPublish)), 0, 0))
	lines(`level=WARN msg="publish refused" ` + addr + "user=guest vhost=/ code=404")
	p = wire.Publish{Seq: 2, Key: []byte("nowhere")}
	l.feed(wire.End(p.AppendTo(wire.Begin(nil, wire.OpPublish)), 0, 0))
	(*peer)(l.s).Close(&broker.Error{Kind: broker.ConnectionForced, Text: "enough"})
	l.o.run()
	lines(`level=INFO msg="connection closed by the broker" ` + addr + `user=guest vhost=/ code=320 reason="CONNECTION_FORCED - enough"`)

	l = newLink(t, b, opt)
	l.feed(hello("guest", "other"))
	lines(`level=WARN msg="connection error" ` + addr + "user=guest vhost=other code=530")
	l = newLink(t, b, opt)
	l.feed(hello(strings.Repeat("x", 10_000), "/"))
	if n := out.Len(); n > 1000 {
		t.Errorf("%d bytes are logged about a user with a long name", n)
	}
	lines(`level=WARN msg="login refused" ` + `peer="` + name(l.o) + `" user=` + strings.Repeat("x", 255) + ` vhost=/ code=403 reason="user '`)
}

// Where too many passwords were wrong the next one is refused unseen, and told so after a pause in which what it
// sends is ignored and no large frame is taken.
func TestLoginAfterTooManyIsRefusedLater(t *testing.T) {
	b := memoryBroker(t)
	hello := func(password string) []byte {
		m := wire.Hello{Ver: wire.Version, Auth: wire.Auth{Mech: "plain", User: "guest", Pass: password}}
		return append([]byte(wire.Preface), wire.Append(nil, wire.OpHello, &m)...)
	}
	for range 20 {
		l := newLink(t, b, Options{})
		l.feed(hello("wrong"))
		if l.s.state != ended {
			t.Fatal("a wrong password is not refused at once")
		}
	}
	l := newLink(t, b, Options{})
	l.feed(hello("guest"))
	l.feed(wire.Append(nil, wire.OpGet, &wire.Get{RID: 1, Queue: "q"}))
	if n := l.s.MaxMessage(); n != wire.MaxBeforeWelcome {
		t.Errorf("frames of %d bytes are taken", n)
	}
	pass := func(d time.Duration) {
		l.now += int64(d)
		l.o.clock = l.now
		l.s.OnTick(l.now)
		l.o.run()
	}
	pass(broker.LoginPause)
	if n := len(l.o.take()); l.s.state != atRefusal || n > 0 {
		t.Fatalf("state %d and %d bytes before the pause is over", l.s.state, n)
	}
	pass(1)
	if got := string(l.o.take()); l.s.state != ended || !strings.Contains(got, "ACCESS_REFUSED - login refused") {
		t.Errorf("state %d after the pause, %q", l.s.state, got)
	}
	// One that leaves before hears nothing.
	l = newLink(t, b, Options{})
	l.feed(hello("guest"))
	l.feed(wire.Append(nil, wire.OpClose, &wire.Close{}))
	if pass(2 * broker.LoginPause); l.s.state != ended || len(l.o.take()) > 0 {
		t.Errorf("state %d of a client that left", l.s.state)
	}
}
