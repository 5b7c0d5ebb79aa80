package mgmt_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// TestPathTricks: however a path is spelt, what needs credentials needs them, and what is named below /api stays there.
func TestPathTricks(t *testing.T) {
	g := guard(t, 0, time.Hour, time.Hour, time.Hour)
	for _, target := range []string{
		"/api/overview/", "//api/overview", "/api//overview", "/api/./overview", "/api/%2E/overview", "/x/../api/overview", "/API/overview",
		"/api/Overview", "/api/overview;a=b", "/api;a=b/overview", "/api/overview%00", "/api/overview%20", "/api%2Foverview", "/%61pi/overview",
		"/api/%6Fverview", "/api/overview/.", "/api/overview/x/..", "/api/login/../overview", "/api/auth/../users", "/api/auth/%2e%2e/users",
		"/api/auth%2F..%2Fusers", "/healthz/../api/users", "/metrics/../api/users", "/ui/../api/users", "/fire/../api/users", "/api/users?auth=Z3Vlc3Q6Z3Vlc3Q=",
		"http://x/api/users", "http://guest:guest@x/api/users", "//x/api/users?a=://", "/api\\users", "/api/users%23", "/api/users#", "/api/users%3f",
		"/api/queues/%2F/..%2F..%2Fusers", "/api/definitions/../users?auth=Z3Vlc3Q6Z3Vlc3Q=",
	} {
		a := g.dial("127.0.0.1").send("GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n").answer()
		switch a.status {
		case 301, 400, 401, 404:
		default:
			t.Errorf("%s without credentials: %d %.100s", target, a.status, a.body)
		}
	}
	for _, method := range []string{"get", "GETT", "PROPFIND", "TRACE", "CONNECT", "PATCH", "X-HTTP"} {
		a := g.dial("127.0.0.1").send(head(method, "/api/users", "guest:guest", "X-HTTP-Method-Override: GET", "X-HTTP-Method: DELETE")).answer()
		if a.status < 400 {
			t.Errorf("%s: %d %.100s", method, a.status, a.body)
		}
	}
	a := g.dial("127.0.0.1").send(head("GET", "/api/users/managing", "guest:guest", "X-HTTP-Method-Override: DELETE", "X-Original-URL: /api/whoami", "X-Rewrite-URL: /api/whoami")).answer()
	if a.status != 200 || !strings.Contains(a.body, `"managing"`) {
		t.Errorf("a GET with other words in its header: %d %s", a.status, a.body)
	}

	// Whatever a queue is called, its path is its own.
	for _, name := range []string{"..%2F..%2F..%2F..%2F..%2Fmetrics", "..%2F..%2F..%2Fhealthz", "..%2F..%2F..%2F", "%2F..%2F..%2F..%2F..%2Fui%2Fapp.js", ".%2F", "...", "%00", "%0D%0AX:%20y", "%FF", "a;b", "a%3Fb", "a%23b", "%25"} {
		path := "/api/queues/%2F/" + name
		if a := g.dial("127.0.0.1").send(head("PUT", path, "guest:guest", length(0))).answer(); a.status != 201 {
			t.Errorf("PUT %s: %d %s", path, a.status, a.body)
		}
		a := g.dial("127.0.0.1").send(head("GET", path+"?columns=name", "guest:guest")).answer()
		if a.status != 200 || !strings.HasPrefix(a.body, `{"name":"`) || a.header.Get("X") != "" {
			t.Errorf("GET %s: %d %.100s", path, a.status, a.body)
		}
		if a := g.dial("127.0.0.1").send(head("DELETE", path, "guest:guest")).answer(); a.status != 204 {
			t.Errorf("DELETE %s: %d %s", path, a.status, a.body)
		}
	}
}

// TestOtherSites: no page of another site changes anything with the credentials that a browser remembers, however it
// writes the URL. Browsers send Sec-Fetch-Site to TLS and to this machine alone: elsewhere Origin is what tells.
func TestOtherSites(t *testing.T) {
	g := guard(t, 0, time.Hour, time.Hour, time.Hour)
	put := func(target, host string, header ...string) int {
		c := g.dial("127.0.0.1")
		h := strings.Replace(head("PUT", target, "guest:guest", append(header, length(0))...), "Host: x", "Host: "+host, 1)
		return c.send(h).answer().status
	}
	for _, r := range []struct {
		target, host string
		header       []string
		ok           bool
	}{
		{putQueue, "x", nil, true}, // a program
		{putQueue, "x:15672", []string{"Origin: http://x:15672"}, true},
		{putQueue, "X:15672", []string{"Origin: http://x:15672"}, true},
		{putQueue, "x", []string{"Origin: https://x"}, true},                                      // behind a proxy
		{putQueue, "x", []string{"Sec-Fetch-Site: same-origin", "Origin: https://outside"}, true}, // behind one that has another name
		{putQueue, "x", []string{"Sec-Fetch-Site: none"}, true},
		{putQueue, "x", []string{"Origin: http://evil"}, false},
		{putQueue, "x:15672", []string{"Origin: http://x:80"}, false},
		{putQueue, "x", []string{"Origin: null"}, false},
		{putQueue, "x", []string{"Origin: file://"}, false},
		{putQueue, "x", []string{"Origin: http://x.evil"}, false},
		{putQueue, "x", []string{"Origin: http://x@evil"}, false},
		{putQueue, "x", []string{"Sec-Fetch-Site: cross-site"}, false},
		{putQueue, "x", []string{"Sec-Fetch-Site: same-site"}, false},
		{"//evil" + putQueue, "x", []string{"Origin: http://evil"}, false},
		{"//evil" + putQueue + "?a=://", "x", []string{"Origin: http://evil"}, false},
		{"http://evil" + putQueue, "x", []string{"Origin: http://evil"}, false},
	} {
		status := put(r.target, r.host, r.header...)
		if ok := status == 201 || status == 204; ok != r.ok {
			t.Errorf("%s at %s with %q: %d", r.target, r.host, r.header, status)
		}
	}
	// What may be read needs no leave, and gives none: there are no headers that let a page of another site see it.
	a := g.dial("127.0.0.1").send(head("GET", "/api/users", "guest:guest", "Origin: http://evil", "Sec-Fetch-Site: cross-site")).answer()
	for name := range a.header {
		if strings.HasPrefix(name, "Access-Control-") {
			t.Errorf("a header %s", name)
		}
	}
}

// TestMixedFraming: of a request whose end is not clear, nothing that follows is taken for another one.
func TestMixedFraming(t *testing.T) {
	g := guard(t, 0, time.Hour, time.Hour, time.Hour)
	next := "DELETE /api/vhosts/%2F HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"
	for name, header := range map[string][]string{
		"two lengths":            {length(0), length(len(next))},
		"a length and chunks":    {length(0), "Transfer-Encoding: chunked"},
		"chunks and a length":    {"Transfer-Encoding: chunked", length(0)},
		"a negative length":      {"Content-Length: -1"},
		"a length with a sign":   {"Content-Length: +0"},
		"two numbers":            {"Content-Length: 0, 5"},
		"an unknown coding":      {"Transfer-Encoding: xchunked"},
		"two codings":            {"Transfer-Encoding: chunked, identity"},
		"coding and a space":     {"Transfer-Encoding : chunked"},
		"a length too large":     {"Content-Length: 99999999999999999999"},
		"a line that goes on":    {"X: a\r\n Transfer-Encoding: chunked"},
		"a name with a newline":  {"X\n: a"},
		"a header without colon": {"X"},
	} {
		c := g.dial("127.0.0.1").send(head("PUT", putQueue, "guest:guest", header...) + "0\r\n\r\n" + next)
		c.Conn.(*net.TCPConn).CloseWrite()
		a := c.answer()
		if rest, err := io.ReadAll(c.r); err != nil || len(rest) > 0 && name != "a line that goes on" {
			t.Errorf("%s: behind %d comes %q, %v", name, a.status, rest, err)
		}
		if !g.b.HasVHost("/") {
			t.Fatalf("%s: what follows was carried out", name)
		}
	}
}

// TestHostileQueries: no query makes a list expensive, or wrong.
func TestHostileQueries(t *testing.T) {
	c := start(t)
	c.want(201, "PUT", "/queues/%2F/q", object{})
	for _, r := range []struct {
		query  string
		status int
	}{
		{"lengths_age=1000000000000&lengths_incr=1", 400},
		{"lengths_age=2000000000&lengths_incr=1", 200},
		{"lengths_age=-1&lengths_incr=-1", 400},
		{"lengths_age=99999999999999999999&lengths_incr=1", 200}, // no integers: ignored
		{"page=1&page_size=501", 400},
		{"page=999999999999&page_size=500", 400},
		{"page=1073741824&page_size=500", 400},
		{"name=" + strings.Repeat("a", 1025), 400},
		{"use_regex=true&name=" + esc("(a*)*$"), 200},
		{"use_regex=true&name=" + esc(strings.Repeat("(", 1000)), 400},
		{"use_regex=true&name=" + esc("((a{1,100}){1,100}){1,100}"), 400},
		{"columns=" + strings.Repeat("a.", 7000) + "b", 200},
		{"columns=" + strings.Repeat("a,", 7000), 200},
		{"sort=" + strings.Repeat("a.", 7000), 200},
		{"sort=&columns=&page=", 400},
		{"%00=%ff&=&&;", 200},
	} {
		a := c.do("GET", "/queues?"+r.query, nil)
		if a.status != r.status {
			t.Errorf("?%.60s: %d %.200s, want %d", r.query, a.status, a.body, r.status)
		}
		if len(a.body) > 64<<10 {
			t.Errorf("?%.60s: %d bytes", r.query, len(a.body))
		}
	}
	for _, body := range []string{
		strings.Repeat("[", 60_000), strings.Repeat(`{"a":`, 10_000), `{"durable":1e999}`, `{"arguments":{"x-max-length":1e999}}`, `{"arguments":{"x-max-length":99999999999999999999}}`,
		`{"arguments":{"x-max-length":1.5}}`, `{"durable":true,"durable":"x"}`, "{\"durable\":true}\x00", `{"durable":true}{}`, "\xff\xfe", `{"arguments":{"` + strings.Repeat("k", 300) + `":1}}`,
		`{"arguments":{"a":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}}`,
	} {
		if a := c.do("PUT", "/queues/%2F/hostile", body); a.status != 400 {
			t.Errorf("a body %.60q: %d %.200s", body, a.status, a.body)
		}
	}
	if a := c.do("PUT", "/vhost-limits/%2F/max-queues", `{"value":1e15}`); a.status >= 500 {
		t.Errorf("a limit of 1e15: %d %s", a.status, a.body)
	}
	if n := len(get[[]object](c, "/queues")); n != 1 {
		t.Errorf("%d queues", n)
	}
	for _, coded := range []string{"", ":", "guest", "guest:", ":guest", "guest:guest:", "guest\x00:guest", "\xff:\xff", strings.Repeat("u", 9000) + ":p", "guest:" + strings.Repeat("p", 9000)} {
		a := c.do("GET", "/whoami", nil, "Authorization", "Basic "+encode64(coded))
		if a.status != 401 {
			t.Errorf("credentials %.40q: %d", coded, a.status)
		}
	}
	for _, h := range []string{"Basic", "Basic ", "Basic !!!", "Bearer x", "basic", "Digest username=guest", fmt.Sprint("Basic ", encode64("guest:guest"), ", x")} {
		if a := c.as("", "").do("GET", "/whoami", nil, "Authorization", h); a.status != 400 && a.status != 401 {
			t.Errorf("the header %q: %d", h, a.status)
		}
	}
}

func encode64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
