package auth

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
)

func newStore(t testing.TB, users ...string) *Store {
	t.Helper()
	s := NewStore()
	for _, u := range users {
		if err := s.AddUser(u, u+"'s password"); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestRabbitMQHashes(t *testing.T) {
	for _, c := range []struct {
		from, hash string
		algorithm  Algorithm
		password   string
	}{
		{"RabbitMQ's documentation", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", SHA256, "test12"},
		{"a 3.10 export, algorithm absent", "go+YhSLmYJ4cWZDHll9fSwD0b6eaTVmdebrXbV2Kzbd0zVpV", "", "guest"},
		{"SHA-256, UTF-8", "AQIDBBrPTD3yeBL3WlupXiUonH+DuGoTKQt0HhMu6yPkHmuC", SHA256, "s3cret é"},
		{"SHA-512", "AQIDBHEYxb06PyGbaN6zkvjtARxgmwQyUT0uLUKuB84CBm9QiwfLj0iuGERn3Tqc6NjToBl/8aOsVmplBJhvBwYJcHg=", SHA512, "s3cret é"},
		{"MD5", "AQIDBGLK7CsPxs666AVWSZeCp4g=", MD5, "s3cret é"},
	} {
		s := NewStore()
		if created, err := s.PutUser(User{Name: "u", Hash: c.hash, Algorithm: c.algorithm}); !created || err != nil {
			t.Fatalf("%s: got %v, %v", c.from, created, err)
		}
		if u, err := s.Authenticate("u", c.password); err != nil || u.Hash != c.hash {
			t.Errorf("%s: got %+v, %v", c.from, u, err)
		}
		for _, wrong := range []string{"", c.password + "x", c.password[1:]} {
			if _, err := s.Authenticate("u", wrong); err == nil {
				t.Errorf("%s: %q was let in", c.from, wrong)
			}
		}
	}
}

func TestRefusedLogins(t *testing.T) {
	s := newStore(t, "alice")
	s.AddUser("blank", "")
	for name, u := range map[string]User{
		"hashless":  {},
		"short":     {Hash: "AQID"},
		"saltonly":  {Hash: "AQIDBA=="},
		"othersize": {Hash: "AQIDBGLK7CsPxs666AVWSZeCp4g=", Algorithm: SHA256},
	} {
		u.Name = name
		if _, err := s.PutUser(u); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for _, c := range []struct{ user, password string }{
		{"alice", ""}, {"alice", "alice"}, {"Alice", "alice's password"}, {"unknown", "x"}, {"", ""}, {"", "x"},
		{"blank", ""}, {"hashless", ""}, {"hashless", "x"}, {"short", ""}, {"saltonly", ""}, {"saltonly", "x"}, {"othersize", "s3cret é"},
	} {
		_, err := s.Authenticate(c.user, c.password)
		var refused *LoginError
		if !errors.As(err, &refused) {
			t.Errorf("%q, %q: got %v", c.user, c.password, err)
		} else if want := fmt.Sprintf("user '%s' - invalid credentials", c.user); refused.Error() != want {
			t.Errorf("got %q, want %q", refused, want)
		}
	}
	if _, err := s.Authenticate("alice", "alice's password"); err != nil {
		t.Error(err)
	}
}

func TestUsers(t *testing.T) {
	s := newStore(t, "b", "a")
	if err := s.AddUser("a", "x"); !errors.Is(err, ErrUserExists) {
		t.Errorf("again: got %v", err)
	}
	if err := s.AddUser("", "x"); !errors.Is(err, ErrNoName) {
		t.Errorf("no name: got %v", err)
	}
	for _, c := range []struct {
		u    User
		want error
	}{
		{User{}, ErrNoName}, {User{Name: "c", Hash: "not base64!"}, ErrBadHash}, {User{Name: "c", Algorithm: "rot13"}, ErrBadAlgorithm},
	} {
		if _, err := s.PutUser(c.u); !errors.Is(err, c.want) {
			t.Errorf("%+v: got %v, want %v", c.u, err, c.want)
		}
	}
	before, _ := s.User("a")
	for what, do := range map[string]func(name string) error{
		"password":     func(u string) error { return s.SetPassword(u, "new") },
		"tags":         func(u string) error { return s.SetTags(u, "management", "administrator") },
		"limit":        func(u string) error { return s.SetLimit(u, "max-channels", 20) },
		"no limit":     func(u string) error { return s.SetLimit(u, "max-connections", -1) },
		"clear limits": func(u string) error { return s.ClearLimits(u, "other") },
	} {
		if err := do("nobody"); !errors.Is(err, ErrNoUser) {
			t.Errorf("%s: got %v", what, err)
		}
		if err := do("a"); err != nil {
			t.Errorf("%s: got %v", what, err)
		}
	}
	a, err := s.Authenticate("a", "new")
	if err != nil || !a.HasTag("administrator") || a.HasTag("monitoring") {
		t.Errorf("got %+v, %v", a, err)
	}
	if n, ok := a.Limit("max-channels"); !ok || n != 20 {
		t.Errorf("max-channels: got %d, %v", n, ok)
	}
	for _, none := range []string{"max-connections", "other"} {
		if n, ok := a.Limit(none); ok {
			t.Errorf("%s: got %d", none, n)
		}
	}
	if before.HasTag("administrator") || len(before.Limits) > 0 {
		t.Errorf("a snapshot changed: %+v", before)
	}
	if s.ClearLimits("a"); len(s.users["a"].Limits) > 0 {
		t.Error("limits are not cleared")
	}
	if created, err := s.PutUser(User{Name: "a", Tags: []string{"t"}}); created || err != nil {
		t.Errorf("replace: got %v, %v", created, err)
	}
	var names []string
	for _, u := range s.Users() {
		names = append(names, u.Name)
	}
	if !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("got %v", names)
	}
	if !s.DeleteUser("a") || s.DeleteUser("a") {
		t.Error("a user is deleted once")
	}
}

func TestPermissions(t *testing.T) {
	s := newStore(t, "u")
	if _, err := s.SetPermissions(Permission{User: "nobody", VHost: "/"}); !errors.Is(err, ErrNoUser) {
		t.Errorf("unknown user: got %v", err)
	}
	var bad *PatternError
	if _, err := s.SetPermissions(Permission{User: "u", VHost: "/", Read: "a("}); !errors.As(err, &bad) || bad.Pattern != "a(" {
		t.Errorf("bad pattern: got %v", err)
	}
	if _, ok := s.Access("u", "/"); ok {
		t.Error("access without permission")
	}
	p := Permission{User: "u", VHost: "/", Configure: "", Write: "^orders\\.|audit", Read: ".*"}
	if created, err := s.SetPermissions(p); !created || err != nil {
		t.Fatalf("got %v, %v", created, err)
	}
	if created, err := s.SetPermissions(p); created || err != nil {
		t.Errorf("again: got %v, %v", created, err)
	}
	a, ok := s.Access("u", "/")
	if !ok {
		t.Fatal("no access")
	}
	for _, c := range []struct {
		rule  string
		right Right
		name  string
		want  bool
	}{
		{"an empty pattern matches nothing", Configure, "x", false},
		{"an empty pattern matches the empty name", Configure, "", true},
		{"an anchored pattern", Write, "orders.new", true},
		{"an anchored pattern elsewhere", Write, "my.orders.new", false},
		{"patterns are unanchored", Write, "the audit log", true},
		{"everything", Read, "x\ny", true},
		{"everything, also nothing", Read, "", true},
	} {
		for range 2 { // the second answer is a remembered one
			if got := a.Allowed(c.right, c.name); got != c.want {
				t.Errorf("%s: got %v", c.rule, got)
			}
			if got := a.AllowedBytes(c.right, []byte(c.name)); got != c.want {
				t.Errorf("%s, bytes: got %v", c.rule, got)
			}
		}
	}
	if _, ok := s.Access("u", "other"); ok {
		t.Error("access to another vhost")
	}
	if !s.ClearPermissions("u", "/") || s.ClearPermissions("u", "/") || s.ClearPermissions("nobody", "/") {
		t.Error("permissions are cleared once")
	}
	if _, ok := s.Access("u", "/"); ok || len(s.grants) > 0 {
		t.Error("access after permissions were cleared")
	}
}

// A borrowed name is overwritten after the call; what was remembered must not change with it.
func TestRememberedNamesAreCopies(t *testing.T) {
	s := newStore(t, "u")
	s.SetPermissions(Permission{User: "u", VHost: "/", Read: "^a+$"})
	a, _ := s.Access("u", "/")
	name := []byte("aaaa")
	if !a.AllowedBytes(Read, name) {
		t.Fatal("refused")
	}
	copy(name, "bbbb")
	for i := range a.rights[Read].seen {
		if d := a.rights[Read].seen[i].Load(); d != nil && d.name != "aaaa" {
			t.Errorf("the remembered name became %q", d.name)
		}
	}
}

func TestRememberingIsBounded(t *testing.T) {
	s := newStore(t, "u")
	s.SetPermissions(Permission{User: "u", VHost: "/", Read: "[02468]$"})
	a, _ := s.Access("u", "/")
	for range 2 {
		for i := range 4 * decisions {
			if got := a.Allowed(Read, fmt.Sprint("q", i)); got != (i%2 == 0) {
				t.Fatalf("q%d: got %v", i, got)
			}
		}
	}
	if n := len(a.rights[Read].seen); n != decisions {
		t.Errorf("%d places for answers", n)
	}
	long := string(make([]byte, maxRemembered+1))
	for range 2 {
		if !a.Allowed(Read, long+"0") || a.Allowed(Read, long+"1") {
			t.Error("long names")
		}
	}
	for i := range a.rights[Read].seen {
		if d := a.rights[Read].seen[i].Load(); d != nil && len(d.name) > maxRemembered {
			t.Error("a long name is remembered")
		}
	}
}

func TestTopicPermissions(t *testing.T) {
	s := newStore(t, "u.1")
	set := func(p TopicPermission) {
		t.Helper()
		if _, err := s.SetTopicPermission(p); err != nil {
			t.Fatal(err)
		}
	}
	set(TopicPermission{User: "u.1", VHost: "/", Exchange: "logs", Write: "^{username}\\.", Read: ""})
	if _, ok := s.Access("u.1", "/"); ok {
		t.Error("a topic permission alone opens the vhost")
	}
	s.SetPermissions(Permission{User: "u.1", VHost: "/", Configure: ".*", Write: ".*", Read: ".*"})
	a, _ := s.Access("u.1", "/")
	for _, c := range []struct {
		rule     string
		right    Right
		exchange string
		key      string
		want     bool
	}{
		{"no entry for the exchange", Write, "other", "x", true},
		{"a key that matches", Write, "logs", "u.1.x", true},
		{"one that does not", Write, "logs", "x.u.1.x", false},
		{"names are put in literally", Write, "logs", "ux1.x", false},
		{"an empty pattern matches no key", Read, "logs", "x", false},
		{"but the empty one", Read, "logs", "", true},
	} {
		if got := a.TopicAllowed(c.right, []byte(c.exchange), []byte(c.key)); got != c.want {
			t.Errorf("%s: got %v", c.rule, got)
		}
	}
	var bad *PatternError
	if _, err := s.SetTopicPermission(TopicPermission{User: "u.1", VHost: "/", Exchange: "x", Write: "("}); !errors.As(err, &bad) {
		t.Errorf("bad pattern: got %v", err)
	}
	if _, err := s.SetTopicPermission(TopicPermission{User: "nobody"}); !errors.Is(err, ErrNoUser) {
		t.Errorf("unknown user: got %v", err)
	}
	set(TopicPermission{User: "u.1", VHost: "/", Exchange: "b"})
	set(TopicPermission{User: "u.1", VHost: "/", Exchange: "a"})
	if l := s.TopicPermissions(); len(l) != 3 || l[0].Exchange != "a" || l[2].Exchange != "logs" || l[2].Write != "^{username}\\." {
		t.Errorf("got %+v", l)
	}
	if n := s.ClearTopicPermissions("u.1", "/", "a", "none"); n != 1 {
		t.Errorf("one exchange: got %d", n)
	}
	if n := s.ClearTopicPermissions("u.1", "/"); n != 2 {
		t.Errorf("all: got %d", n)
	}
	if a.TopicAllowed(Write, []byte("logs"), []byte("x")) || !a.Topics() {
		t.Error("a snapshot changed")
	}
	if a, _ := s.Access("u.1", "/"); !a.TopicAllowed(Write, []byte("logs"), []byte("x")) || a.Topics() {
		t.Error("a cleared topic permission is in force")
	}
}

func TestListingsAndRemovals(t *testing.T) {
	s := newStore(t, "a", "b")
	for _, p := range []Permission{{User: "b", VHost: "/"}, {User: "a", VHost: "v"}, {User: "a", VHost: "/", Read: "r"}} {
		s.SetPermissions(p)
		s.SetTopicPermission(TopicPermission{User: p.User, VHost: p.VHost, Exchange: "x"})
	}
	if got := fmt.Sprint(s.Permissions()); got != "[{a /   r} {a v   } {b /   }]" {
		t.Errorf("got %s", got)
	}
	s.DeleteVHost("v")
	s.DeleteUser("b")
	if len(s.Permissions()) != 1 || len(s.TopicPermissions()) != 1 {
		t.Errorf("got %v, %v", s.Permissions(), s.TopicPermissions())
	}
	s.AddUser("b", "")
	if _, ok := s.Access("b", "/"); ok {
		t.Error("a new user has its predecessor's permissions")
	}
}

func TestEveryChangeMovesTheEpoch(t *testing.T) {
	s := NewStore()
	for i, change := range []func(){
		func() { s.AddUser("u", "p") },
		func() { s.PutUser(User{Name: "v"}) },
		func() { s.SetPassword("u", "q") },
		func() { s.SetTags("u", "t") },
		func() { s.SetLimit("u", "max-channels", 1) },
		func() { s.ClearLimits("u") },
		func() { s.SetPermissions(Permission{User: "u", VHost: "/"}) },
		func() { s.SetTopicPermission(TopicPermission{User: "u", VHost: "/", Exchange: "x"}) },
		func() { s.ClearTopicPermissions("u", "/") },
		func() { s.ClearPermissions("u", "/") },
		func() { s.SetLoopbackUsers() },
		func() { s.DeleteVHost("/") },
		func() { s.DeleteUser("u") },
	} {
		before := s.Epoch()
		if change(); s.Epoch() == before {
			t.Errorf("change %d does not move the epoch", i)
		}
	}
	before := s.Epoch()
	s.Authenticate("v", "")
	s.DeleteUser("u")
	s.Access("v", "/")
	if s.Epoch() != before {
		t.Error("the epoch moves without a change")
	}
}

type address struct{ network, text string }

func (a address) Network() string { return a.network }
func (a address) String() string  { return a.text }

func TestLoopbackUsers(t *testing.T) {
	s := NewStore()
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 5} }
	for _, c := range []struct {
		from net.Addr
		want bool
	}{
		{tcp("127.0.0.1"), true}, {tcp("127.9.9.9"), true}, {tcp("::1"), true}, {tcp("::ffff:127.0.0.1"), true},
		{address{"tcp", "[::ffff:127.1.2.3]:9"}, true}, {address{"unix", "/run/x"}, true}, {address{"pipe", "pipe"}, true},
		{tcp("10.0.0.1"), false}, {tcp("128.0.0.1"), false}, {tcp("::2"), false}, {tcp("::ffff:10.0.0.1"), false},
		{tcp("0.0.0.0"), false}, {&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "lo"}, false},
		{address{"tcp", "localhost:1"}, false}, {address{"tcp", ""}, false}, {nil, false},
	} {
		err := s.LoopbackOnly("guest", c.from)
		if (err == nil) != c.want {
			t.Errorf("%v: got %v", c.from, err)
		}
		if err != nil && err.Error() != "user 'guest' - can only connect via localhost" {
			t.Errorf("got %q", err)
		}
		if err := s.LoopbackOnly("alice", c.from); err != nil {
			t.Errorf("alice from %v: got %v", c.from, err)
		}
	}
	s.SetLoopbackUsers("alice")
	if s.LoopbackOnly("guest", tcp("10.0.0.1")) != nil || s.LoopbackOnly("alice", tcp("10.0.0.1")) == nil {
		t.Error("the loopback users were not replaced")
	}
}

// Sessions check while administrators change things: each sees its own changes at once.
func TestConcurrentChanges(t *testing.T) {
	const rounds = 500
	s := newStore(t, "u", "admin")
	var sessions, admins sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		sessions.Go(func() {
			var a *Access
			epoch := ^uint64(0)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if e := s.Epoch(); e != epoch {
					a, _ = s.Access("u", "/")
					epoch = e
				}
				if a != nil {
					a.Allowed(Read, "q1")
					a.AllowedBytes(Write, []byte("q2"))
					a.TopicAllowed(Write, []byte("x"), []byte("k"))
				}
				s.Authenticate("u", "u's password")
				s.Permissions()
				s.TopicPermissions()
				s.Users()
				s.LoopbackOnly("guest", nil)
			}
		})
	}
	admins.Go(func() {
		for range rounds {
			s.SetPermissions(Permission{User: "u", VHost: "/", Read: "^q", Write: "^q"})
			if a, ok := s.Access("u", "/"); !ok || !a.Allowed(Read, "q1") {
				t.Error("a granted right is refused")
			}
			s.ClearPermissions("u", "/")
			if _, ok := s.Access("u", "/"); ok {
				t.Error("a cleared permission is there")
			}
		}
	})
	admins.Go(func() {
		for i := range rounds {
			s.SetTopicPermission(TopicPermission{User: "u", VHost: "/", Exchange: fmt.Sprint("x", i%3), Write: "k"})
			s.ClearTopicPermissions("u", "/", fmt.Sprint("x", i%3))
			s.SetTags("u", fmt.Sprint(i))
			s.SetLoopbackUsers("guest")
		}
	})
	admins.Wait()
	close(stop)
	sessions.Wait()
	if len(s.grants) != 0 {
		t.Errorf("%d grants are left", len(s.grants))
	}
}

func TestHitsAllocateNothing(t *testing.T) {
	s := newStore(t, "u")
	s.SetPermissions(Permission{User: "u", VHost: "/", Read: "^q", Write: ".*"})
	s.SetTopicPermission(TopicPermission{User: "u", VHost: "/", Exchange: "x", Write: "^k"})
	name, exchange, key := []byte("q1"), []byte("x"), []byte("k1")
	if n := testing.AllocsPerRun(100, func() {
		s.Epoch()
		a, _ := s.Access("u", "/")
		if !a.Allowed(Read, "q1") || !a.AllowedBytes(Read, name) || !a.AllowedBytes(Write, name) || !a.TopicAllowed(Write, exchange, key) {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAllowed(b *testing.B) {
	s := newStore(b, "u")
	s.SetPermissions(Permission{User: "u", VHost: "/", Read: "^orders\\.", Write: ".*"})
	a, _ := s.Access("u", "/")
	name := []byte("orders.new")
	for _, r := range []Right{Read, Write} {
		b.Run(r.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				a.AllowedBytes(r, name)
			}
		})
	}
}

// Unknown and known users cost the same.
func BenchmarkAuthenticate(b *testing.B) {
	s := newStore(b, "u")
	for _, c := range []struct{ name, user, password string }{
		{"right", "u", "u's password"}, {"wrong", "u", "u's pass0000"}, {"unknown", "v", "u's password"},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				s.Authenticate(c.user, c.password)
			}
		})
	}
}
