package mgmt_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/auth"
	messages "github.com/firemq/firemq/broker/message"
	amqpframes "github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/mgmt"
)

// guarded is a listener alone, in front of a broker in memory.
type guarded struct {
	t *testing.T
	s *mgmt.Server
	b *broker.Broker
}

// guard starts one with a limit of memory, 0 for none, and with what a client may take of time.
func guard(t *testing.T, memory int64, header, body, answer time.Duration) *guarded {
	t.Helper()
	return guardWith(t, mgmt.Options{Resources: func() mgmt.Resources { return mgmt.Resources{MemoryLimit: memory} }}, header, body, answer)
}

func guardWith(t *testing.T, o mgmt.Options, header, body, answer time.Duration) *guarded {
	t.Helper()
	b, _, err := broker.Open(broker.Options{
		Start:  broker.Snapshot{VHosts: []string{"/"}},
		Codecs: map[messages.Encoding]messages.Codec{messages.AMQP: amqpframes.PropertyCodec{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.AddFirstUser("guest", "guest"); err != nil {
		t.Fatal(err)
	}
	if err := b.Users().AddUser("managing", "secret", "management"); err != nil {
		t.Fatal(err)
	}
	o.Broker = b
	s, err := mgmt.ListenAt("127.0.0.1:0", o, header, body, answer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		b.Close()
	})
	return &guarded{t, s, b}
}

// user makes users that may do everything, with the password "secret".
func (g *guarded) user(names ...string) {
	g.t.Helper()
	for _, name := range names {
		if err := g.b.Users().AddUser(name, "secret", "administrator"); err != nil {
			g.t.Fatal(err)
		}
		if _, err := g.b.Users().SetPermissions(auth.Permission{User: name, VHost: "/", Configure: ".*", Write: ".*", Read: ".*"}); err != nil {
			g.t.Fatal(err)
		}
	}
}

// dial connects from an address of this machine.
func (g *guarded) dial(from string) *rawClient {
	g.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
	c, err := d.Dial("tcp", g.s.Addr().String())
	if err != nil {
		g.t.Skipf("no connection from %s: %v", from, err)
	}
	g.t.Cleanup(func() { c.Close() })
	return &rawClient{t: g.t, Conn: c, r: bufio.NewReader(c)}
}

// patience is how long a client waits for what must come.
const patience = 30 * time.Second

// rawClient is a client that sends what it likes.
type rawClient struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func (c *rawClient) send(s string) *rawClient {
	c.t.Helper()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c.Conn, s); err != nil {
		c.t.Fatal(err)
	}
	return c
}

// answer reads one.
func (c *rawClient) answer() answer {
	c.t.Helper()
	c.SetDeadline(time.Now().Add(patience))
	res, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	p, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(p)}
}

// gone waits for the end of the connection.
func (c *rawClient) gone() bool {
	c.SetDeadline(time.Now().Add(patience))
	_, err := io.Copy(io.Discard, c.r)
	ne, ok := err.(net.Error)
	return !ok || !ne.Timeout()
}

// probe is what an orchestrator sees.
func (g *guarded) probe(from string) {
	g.t.Helper()
	if a := g.dial(from).send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").answer(); a.status != 200 {
		g.t.Errorf("a probe from %s: %d %s", from, a.status, a.body)
	}
}

func head(method, path, user string, more ...string) string {
	if user != "" {
		user = "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user)) + "\r\n"
	}
	return method + " " + path + " HTTP/1.1\r\nHost: x\r\n" + user + strings.Join(append(more, ""), "\r\n") + "\r\n"
}

func length(n int) string { return fmt.Sprint("Content-Length: ", n) }

const (
	putQueue = "/api/queues/%2F/q"
	publishX = "/api/exchanges/%2F/amq.default/publish"
)

// TestBodies: what a body may be depends on who sends it where, and all of that is known before it is read.
func TestBodies(t *testing.T) {
	g := guard(t, 0, time.Hour, time.Hour, time.Hour)
	for _, r := range []struct {
		name, head string
		status     int
		reason     string
	}{
		{"without credentials", head("PUT", putQueue, "", length(1000)), 401, "Not_Authorized"},
		{"with wrong credentials", head("PUT", putQueue, "guest:wrong", length(1_000_000)), 401, "Not_Authorized"},
		{"of a user that may not", head("POST", "/api/definitions", "managing:secret", length(19_000_000)), 401, "Not administrator user"},
		{"of a user of no vhost", head("POST", publishX, "managing:secret", length(19_000_000)), 404, "vhost_not_found"},
		{"for what needs none", head("PUT", putQueue, "guest:guest", length(65537)), 413, "Exceeded HTTP request body size limit of 65536 bytes"},
		{"of a login", head("POST", "/api/login", "", length(5000)), 413, "Exceeded HTTP request body size limit of 4096 bytes"},
		{"of definitions", head("POST", "/api/definitions", "guest:guest", length(20<<20+1)), 413, "Exceeded HTTP request body size limit of 20971520 bytes"},
		{"of a message", head("POST", publishX, "guest:guest", length(20<<20+1)), 413, "Exceeded HTTP request body size limit of 20971520 bytes"},
		{"in chunks", head("PUT", putQueue, "guest:guest", "Transfer-Encoding: chunked") + "11000\r\n" + strings.Repeat("x", 0x11000) + "\r\n", 413, "Exceeded HTTP request body size limit of 65536 bytes"},
		{"that no method takes", head("PATCH", putQueue, "guest:guest", length(1_000_000)), 405, "null"},
		{"beyond an import, without an end", head("POST", "/api/definitions", "guest:guest", "Transfer-Encoding: chunked") + "x", 400, "The request's body is malformed"},
	} {
		a := g.dial("127.0.0.1").send(r.head + "x").answer()
		if a.status != r.status || a.reason() != r.reason {
			t.Errorf("a body %s: %d %s, want %d %s", r.name, a.status, a.body, r.status, r.reason)
		}
	}
	waitFor(t, func() bool { bodies, _ := g.s.Held(); return bodies == 0 })

	// A sender that looks for the answer when it has sent everything gets one, too.
	c := g.dial("127.0.0.1").send(head("PUT", putQueue, "guest:guest", length(3<<20)))
	c.send(strings.Repeat("x", 3<<20))
	if a := c.answer(); a.status != 413 {
		t.Errorf("behind the body: %d", a.status)
	}

	// What fits is read as it comes, and the connection goes on behind it.
	c = g.dial("127.0.0.1")
	for _, size := range []int{1, 4096, 65536, 65537, 1 << 20, 19 << 20} {
		text := `{"properties":{},"routing_key":"q","payload":"` + strings.Repeat("a", size) + `","payload_encoding":"string"}`
		if a := c.send(head("POST", publishX, "guest:guest", length(len(text))) + text).answer(); a.status != 200 {
			t.Errorf("a message of %d bytes: %d %s", size, a.status, a.body)
		}
	}
	chunked := head("PUT", putQueue, "guest:guest", "Transfer-Encoding: chunked") + "8\r\n{\"durabl\r\n9\r\ne\": true}\r\n0\r\n\r\n"
	if a := c.send(chunked + chunked).answer(); a.status != 201 {
		t.Errorf("in chunks: %d %s", a.status, a.body)
	}
	if a := c.answer(); a.status != 204 {
		t.Errorf("pipelined: %d %s", a.status, a.body)
	}
	if a := c.send("GET /api/overview HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("a", 64<<10)).answer(); a.status != 431 {
		t.Errorf("a header beyond the limit: %d", a.status)
	}
	waitFor(t, func() bool { bodies, _ := g.s.Held(); return bodies == 0 })
}

// TestLoginForm: the form of RabbitMQ's UI needs no other credentials than those in it.
func TestLoginForm(t *testing.T) {
	g := guard(t, 0, time.Hour, time.Hour, time.Hour)
	for form, want := range map[string]int{"username=guest&password=guest": 200, "username=guest&password=wrong": 401, "": 401} {
		a := g.dial("127.0.0.1").send(head("POST", "/api/login", "", length(len(form)), "Content-Type: application/x-www-form-urlencoded") + form).answer()
		if a.status != want || (a.header.Get("Set-Cookie") != "") != (want == 200) {
			t.Errorf("%s: %d %v %s", form, a.status, a.header, a.body)
		}
	}
}

// TestBodiesTogether: bodies under way share a part of the memory limit; one that is alone has it all.
func TestBodiesTogether(t *testing.T) {
	const memory = 256 << 20 // an eighth of it is 32 MiB; a body counts four times
	g := guard(t, memory, time.Hour, time.Hour, time.Hour)
	g.user("another", "third", "fourth")
	message := func(size int) string {
		before, after := `{"properties":{},"routing_key":"q","payload":"`, `","payload_encoding":"string"}`
		return before + strings.Repeat("a", size-len(before)-len(after)) + after
	}
	large := message(19 << 20)
	c := g.dial("127.0.0.1")
	if a := c.send(head("POST", publishX, "guest:guest", length(len(large))) + large).answer(); a.status != 200 {
		t.Fatalf("the largest body alone: %d %s", a.status, a.body)
	}
	waitFor(t, func() bool { bodies, _ := g.s.Held(); return bodies == 0 })

	text := message(3 << 20)
	request := func(user string) string { return head("POST", publishX, user, length(len(text))) + text }
	var first []*rawClient
	begin := func(from, user string) {
		t.Helper()
		before, _ := g.s.Held()
		c := g.dial(from)
		c.send(request(user)[:len(request(user))-10])
		waitFor(t, func() bool { bodies, _ := g.s.Held(); return bodies >= before+4*int64(len(text)) })
		first = append(first, c)
	}
	refused := func(from, user string) {
		t.Helper()
		before, _ := g.s.Held()
		a := g.dial(from).send(request(user)[:len(text)/2]).answer()
		if a.status != 503 || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, "try again") {
			t.Fatalf("one more of %s from %s: %d %s", user, from, a.status, a.body)
		}
		if bodies, _ := g.s.Held(); bodies > before {
			t.Fatalf("%d bytes are held, and were %d", bodies, before)
		}
	}
	begin("127.0.0.1", "guest:guest") // 12 of the 16 MiB of one
	for range 28 {
		refused("127.0.0.1", "guest:guest")
	}
	refused("127.0.0.2", "guest:guest")    // of the same user
	refused("127.0.0.1", "another:secret") // of the same address
	begin("127.0.0.2", "another:secret")   // 24 of 32 MiB
	refused("127.0.0.2", "guest:guest")    // of a user and an address that have some
	begin("127.0.0.3", "third:secret")     // is beyond them, but has none else
	refused("127.0.0.4", "fourth:secret")  // likewise, and the second one of those
	for i, user := range []string{"guest:guest", "fourth:secret"} {
		small := `{"durable":true}`
		if a := g.dial("127.0.0.1").send(head("PUT", putQueue, user, length(len(small))) + small).answer(); a.status != 201 && a.status != 204 {
			t.Errorf("small body %d meanwhile: %d %s", i, a.status, a.body)
		}
	}
	for _, c := range first {
		if a := c.send(text[len(text)-10:]).answer(); a.status != 200 {
			t.Errorf("a body that was there first: %d %s", a.status, a.body)
		}
	}
	waitFor(t, func() bool { bodies, _ := g.s.Held(); return bodies == 0 })
	// What they have left behind is swept up, but for less than what is worth it.
	waitFor(t, func() bool { return g.s.Garbage() < mgmt.GarbageBytes })
}

// TestBodiesOfManyValues: a short text that takes much memory to read counts for what it takes.
func TestBodiesOfManyValues(t *testing.T) {
	g := guard(t, 64<<20, time.Hour, time.Hour, time.Hour)
	text := `{"properties":{"headers":{"h":[` + strings.Repeat("0,", 30_000) + `0]}},"routing_key":"q","payload":"","payload_encoding":"string"}`
	if len(text) > 64<<10 {
		t.Fatal("that is no small body")
	}
	// While another holds most of what there is for its user: half of an eighth of the limit.
	g.dial("127.0.0.1").send(head("POST", publishX, "guest:guest", length(900_000)) + `{"payload":"` + strings.Repeat("a", 800_000))
	waitFor(t, func() bool { bodies, _ := g.s.Held(); return bodies > 3<<20 })
	if a := g.dial("127.0.0.1").send(head("POST", publishX, "guest:guest", length(len(text))) + text).answer(); a.status != 503 {
		t.Errorf("30,000 values beside it: %d %s", a.status, a.body)
	}
	h := guard(t, 64<<20, time.Hour, time.Hour, time.Hour)
	if a := h.dial("127.0.0.1").send(head("POST", publishX, "guest:guest", length(len(text))) + text).answer(); a.status != 200 {
		t.Errorf("30,000 values alone: %d %s", a.status, a.body)
	}
}

// TestSlowHeaders: half of a header, sent as often as one address may, costs nobody else a connection, and not even
// that address the next one; and it does not last.
func TestSlowHeaders(t *testing.T) {
	g := guard(t, 0, time.Hour, time.Hour, time.Hour)
	idle := g.dial("127.0.0.1").send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	if a := idle.answer(); a.status != 200 {
		t.Fatal(a.status)
	}
	var slow []*rawClient
	for range mgmt.MaxOfOne - 1 {
		slow = append(slow, g.dial("127.0.0.1").send("GET /api/overview HTTP/1.1\r\nHost"))
	}
	waitFor(t, func() bool { return g.s.Connections() == mgmt.MaxOfOne })
	for range 10 {
		g.probe("127.0.0.2")
	}
	// The next one of that address takes the place of the connection without a request, then of the oldest ones.
	g.probe("127.0.0.1")
	if !idle.gone() {
		t.Error("the idle connection is still there")
	}
	for range 20 {
		slow = append(slow, g.dial("127.0.0.1").send("GET /api/overview HTTP/1.1\r\nHost"))
	}
	if !slow[0].gone() {
		t.Error("the oldest half of a header is still there")
	}
	for range 10 {
		g.probe("127.0.0.1")
		g.probe("127.0.0.2")
	}
	if n := g.s.Connections(); n > mgmt.MaxOfOne+20 {
		t.Errorf("%d connections", n)
	}

	// From many addresses: the pool is full, and whoever comes is served.
	for i := range mgmt.MaxConns {
		g.dial(fmt.Sprint("127.0.1.", 1+i%8)).send("GET /api/overview HTTP/1.1\r\nHost")
	}
	waitFor(t, func() bool { return g.s.Connections() == mgmt.MaxConns })
	for range 20 {
		g.probe("127.0.0.2")
	}
	if n := g.s.Connections(); n > mgmt.MaxConns {
		t.Errorf("%d connections", n)
	}

	// A header has its time, and so has the first byte.
	h := guard(t, 0, 2*time.Second, time.Hour, time.Hour)
	if a := h.dial("127.0.0.1").send("GET /api/overview HTTP/1.1\r\nHost").answer(); a.status != 408 {
		t.Errorf("half of a header: %d %s", a.status, a.body)
	}
	if !h.dial("127.0.0.1").gone() {
		t.Error("a connection without a request stays")
	}
}

// TestSlowBodies: bodies that do not come, of users that may send them, take the share of one address, until they are
// given up.
func TestSlowBodies(t *testing.T) {
	g := guard(t, 0, time.Hour, time.Hour, time.Hour)
	for range mgmt.MaxOfOne {
		g.dial("127.0.0.1").send(head("POST", publishX, "guest:guest", length(60_000)) + "{")
	}
	waitFor(t, func() bool { return g.s.Serving() == mgmt.MaxOfOne })
	c := g.dial("127.0.0.1")
	if a := c.answer(); a.status != 503 || a.header.Get("Retry-After") == "" {
		t.Errorf("one more of that address: %d %s", a.status, a.body)
	}
	for range 10 {
		g.probe("127.0.0.2")
	}

	h := guard(t, 0, time.Hour, 50*time.Millisecond, time.Hour)
	for _, size := range []int{2, 60_000, 19 << 20} {
		c := h.dial("127.0.0.1").send(head("POST", publishX, "guest:guest", length(size)) + "{")
		if a := c.answer(); a.status != 408 || a.reason() != "The request's body comes too slowly" {
			t.Errorf("a body of %d bytes that does not come: %d %s", size, a.status, a.body)
		}
		if !c.gone() {
			t.Error("its connection stays")
		}
	}
	waitFor(t, func() bool { return h.s.Connections() == 0 })
}

// TestSlowReaders: answers that are not taken count together, and are given up.
func TestSlowReaders(t *testing.T) {
	const size = 12 << 20 // more than sockets take
	g := guard(t, 160<<20, time.Hour, time.Hour, time.Hour)
	put := func(g *guarded) string {
		c := g.dial("127.0.0.1")
		text := `{}`
		if a := c.send(head("PUT", putQueue, "guest:guest", length(len(text))) + text).answer(); a.status != 201 {
			t.Fatal(a.status, a.body)
		}
		text = `{"properties":{},"routing_key":"q","payload":"` + strings.Repeat("a", size) + `","payload_encoding":"string"}`
		if a := c.send(head("POST", publishX, "guest:guest", length(len(text))) + text).answer(); a.status != 200 {
			t.Fatal(a.status, a.body)
		}
		c.Close()
		text = `{"count":1,"ackmode":"ack_requeue_true","encoding":"auto"}`
		return head("POST", putQueue+"/get", "guest:guest", length(len(text))) + text
	}
	get := put(g)
	slow := g.dial("127.0.0.1").send(get)
	waitFor(t, func() bool { _, answers := g.s.Held(); return answers > size })
	if a := g.dial("127.0.0.1").send(get).answer(); a.status != 503 || a.header.Get("Retry-After") == "" {
		t.Errorf("beside an answer that nobody reads: %d %.200s", a.status, a.body)
	}
	g.probe("127.0.0.1")
	if a := slow.answer(); a.status != 200 || !json.Valid([]byte(a.body)) || len(a.body) < size {
		t.Errorf("the slow one: %d, %d bytes", a.status, len(a.body))
	}
	waitFor(t, func() bool { _, answers := g.s.Held(); return answers == 0 })
	if a := g.dial("127.0.0.1").send(get).answer(); a.status != 200 {
		t.Errorf("afterwards: %d", a.status)
	}

	h := guard(t, 160<<20, time.Hour, time.Hour, 100*time.Millisecond)
	h.dial("127.0.0.1").send(put(h))
	waitFor(t, func() bool { _, answers := h.s.Held(); return answers > size })
	waitFor(t, func() bool { _, answers := h.s.Held(); return answers == 0 && h.s.Connections() == 0 })
}

// TestGetsShareTheRoomForAnswers: beside an answer that nobody reads a get ends early, or gets nothing; what was taken out
// of its queue is in the answer.
func TestGetsShareTheRoomForAnswers(t *testing.T) {
	const size, many = 3 << 20, 8
	g := guard(t, 160<<20, time.Hour, time.Hour, time.Hour) // 20 MiB for answers
	c := g.dial("127.0.0.1")
	post := func(method, path, text string, status int) answer {
		t.Helper()
		a := c.send(head(method, path, "guest:guest", length(len(text))) + text).answer()
		if a.status != status {
			t.Fatalf("%s %s: %d %.200s", method, path, a.status, a.body)
		}
		return a
	}
	get := func(ackmode string) string {
		return fmt.Sprintf(`{"count":%d,"ackmode":"%s","encoding":"auto"}`, many, ackmode)
	}
	post("PUT", putQueue, `{}`, 201)
	for i := range many {
		post("POST", publishX, fmt.Sprintf(`{"properties":{},"routing_key":"q","payload":"%d%s","payload_encoding":"string"}`, i, strings.Repeat("a", size)), 200)
	}
	got := func(a answer) (payloads []string) {
		t.Helper()
		var list []struct{ Payload string }
		if err := json.Unmarshal([]byte(a.body), &list); err != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			payloads = append(payloads, m.Payload[:1])
		}
		return payloads
	}
	whole := got(post("POST", putQueue+"/get", get("ack_requeue_true"), 200))
	if len(whole) != many {
		t.Fatalf("one that is alone gets %q", whole)
	}
	slow := g.dial("127.0.0.1")
	text := `{"count":3,"ackmode":"ack_requeue_true","encoding":"auto"}`
	slow.send(head("POST", putQueue+"/get", "guest:guest", length(len(text))) + text)
	// What it shows counts while it is taken, and then goes back into the queue.
	waitFor(t, func() bool { _, answers := g.s.Held(); return answers > 3*size && g.b.Totals().Ready == many })

	early := got(post("POST", putQueue+"/get", get("ack_requeue_false"), 200))
	if len(early) == 0 || len(early) == many {
		t.Fatalf("beside an answer that nobody reads: %q", early)
	}
	if a := slow.answer(); a.status != 200 {
		t.Fatal(a.status)
	}
	waitFor(t, func() bool { _, answers := g.s.Held(); return answers == 0 })
	rest := got(post("POST", putQueue+"/get", get("reject_requeue_false"), 200))
	if all := strings.Join(append(early, rest...), ""); all != "01234567" {
		t.Errorf("got %s", all)
	}
}
