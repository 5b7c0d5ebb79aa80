package mgmt_test

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/mgmt"
)

const expectation = "Expect: 100-continue"

// TestExpectContinue: who waits for leave to send a body hears at once that it may not, and of what is good it is
// asked for.
func TestExpectContinue(t *testing.T) {
	g := guard(t, 0, time.Hour, time.Hour, time.Hour)
	logins := func() (n uint64) {
		for _, l := range g.b.Logins() {
			n += l.Succeeded.Load() + l.Failed.Load()
		}
		return n
	}
	for _, r := range []struct {
		name, head string
		status     int
		reason     string
	}{
		{"without credentials", head("PUT", putQueue, "", expectation, length(1000)), 401, "Not_Authorized"},
		{"with wrong credentials", head("PUT", putQueue, "guest:wrong", expectation, length(1000)), 401, "Not_Authorized"},
		{"of a user that may not", head("POST", "/api/definitions", "managing:secret", expectation, length(1000)), 401, "Not administrator user"},
		{"in chunks, of a user that may not", head("POST", "/api/definitions", "managing:secret", expectation, "Transfer-Encoding: chunked"), 401, "Not administrator user"},
		{"for a vhost that is not there", head("PUT", "/api/queues/none/q", "guest:guest", expectation, length(1000)), 404, "vhost_not_found"},
		{"for nothing", head("PUT", "/api/nothing", "guest:guest", expectation, length(1000)), 404, "Not Found"},
		{"that is too large", head("PUT", putQueue, "guest:guest", expectation, length(65537)), 413, "Exceeded HTTP request body size limit of 65536 bytes"},
		{"that no method takes", head("PATCH", putQueue, "guest:guest", expectation, length(1000)), 405, "null"},
		{"of another type", head("PUT", "/api/vhost-limits/%2F/max-queues", "guest:guest", expectation, length(1000), "Content-Type: text/plain"), 415, "null"},
		{"from another site", head("PUT", putQueue, "guest:guest", expectation, length(1000), "Origin: http://evil.example"), 403, "Requests from another site are refused"},
		{"for what takes none", head("POST", "/healthz", "", expectation, length(1000)), 405, "null"},
	} {
		before := logins()
		c := g.dial("127.0.0.1").send(r.head)
		a := c.answer()
		if a.status != r.status || a.reason() != r.reason {
			t.Errorf("a body %s: %d %s, want %d %s", r.name, a.status, a.body, r.status, r.reason)
		}
		if !c.gone() {
			t.Errorf("a body %s: the connection goes on", r.name)
		}
		if n := logins() - before; n > 1 {
			t.Errorf("a body %s: %d logins", r.name, n)
		}
	}

	c := g.dial("127.0.0.1")
	text := `{"durable":true}`
	for i, h := range []string{
		head("PUT", putQueue, "guest:guest", expectation, length(len(text))),
		head("PUT", putQueue, "guest:guest", expectation, "Transfer-Encoding: chunked"),
		head("PUT", putQueue, "guest:guest", "Expect: 100-Continue", length(len(text))),
	} {
		before := logins()
		if a := c.send(h).answer(); a.status != 100 {
			t.Fatalf("request %d: %d %s", i, a.status, a.body)
		}
		body, want := text, 204
		if strings.Contains(h, "chunked") {
			body = "10\r\n" + text + "\r\n0\r\n\r\n"
		}
		if i == 0 {
			want = 201
		}
		if a := c.send(body).answer(); a.status != want {
			t.Errorf("body %d: %d %s", i, a.status, a.body)
		}
		if n := logins() - before; n != 1 {
			t.Errorf("body %d: %d logins", i, n)
		}
	}
	if a := c.send(head("GET", "/api/whoami", "guest:guest", expectation)).answer(); a.status != 100 {
		t.Errorf("a GET: %d", a.status)
	}
	if a := c.answer(); a.status != 200 {
		t.Errorf("a GET: %d %s", a.status, a.body)
	}
	if a := c.send(head("POST", "/api/login", "", expectation, length(0))).answer(); a.status != 100 {
		t.Errorf("a login: %d", a.status)
	}
	if a := c.answer(); a.status != 401 {
		t.Errorf("an empty login: %d", a.status)
	}

	// What there is no room for is told before it is sent, too.
	h := guard(t, 64<<20, time.Hour, time.Hour, time.Hour)
	h.dial("127.0.0.1").send(head("POST", publishX, "guest:guest", length(900_000)) + `{"payload":"` + strings.Repeat("a", 800_000))
	waitFor(t, func() bool { bodies, _ := h.s.Held(); return bodies > 3<<20 })
	a := h.dial("127.0.0.1").send(head("POST", publishX, "guest:guest", expectation, length(900_000))).answer()
	if a.status != 503 || a.header.Get("Retry-After") == "" {
		t.Errorf("beside a large one: %d %s", a.status, a.body)
	}
}

// TestOldHTTP: clients of HTTP/1.0 know no chunks, and get a length.
func TestOldHTTP(t *testing.T) {
	g := guard(t, 0, time.Hour, time.Hour, time.Hour)
	for _, path := range []string{
		"/metrics", "/metrics/per-object", "/metrics/detailed?family=queue_metrics", "/metrics/memory-breakdown", "/metrics/none",
		"/api/overview", "/api/exchanges", "/api/none", "/healthz", "/", "/none",
	} {
		for _, method := range []string{"GET", "HEAD"} {
			for _, coding := range []string{"", "gzip"} {
				h := head(method, path, "guest:guest", "Accept-Encoding: "+coding)
				c := g.dial("127.0.0.1").send(strings.Replace(h, "HTTP/1.1", "HTTP/1.0", 1))
				res, body := c.response(method)
				if len(res.TransferEncoding) != 0 || res.ContentLength < 0 {
					t.Errorf("%s %s %s: coding %q, length %d", method, path, coding, res.TransferEncoding, res.ContentLength)
				}
				if method == "GET" && int64(len(body)) != res.ContentLength || method == "HEAD" && len(body) > 0 {
					t.Errorf("%s %s %s: %d bytes of %d", method, path, coding, len(body), res.ContentLength)
				}
			}
		}
	}
	waitFor(t, func() bool { _, answers := g.s.Held(); return answers == 0 })

	// A scrape that has to be kept takes its part of what there is for answers.
	h := guard(t, 1<<20, time.Hour, time.Hour, time.Hour)
	for _, q := range []string{"a", "b"} {
		for i := range 60 {
			h.dial("127.0.0.1").send(head("PUT", "/api/queues/%2F/"+q+strconv.Itoa(i), "guest:guest", length(0))).answer()
		}
	}
	scrape := strings.Replace(head("GET", "/metrics/per-object", ""), "HTTP/1.1", "HTTP/1.0", 1)
	if res, body := h.dial("127.0.0.1").send(scrape).response("GET"); res.StatusCode != 200 || len(body) < 128<<10 {
		t.Errorf("a scrape alone: %d, %d bytes", res.StatusCode, len(body))
	}
}

// TestHead: HEAD answers as GET does, with the length of what is left out.
func TestHead(t *testing.T) {
	c := start(t)
	c.want(204, "POST", "/definitions", accessObjects)
	node := get[object](c, "/overview")["node"].(string)
	fill := strings.NewReplacer(
		"{vhost}", "%2F", "{queue}", "q", "{exchange}", "x", "{destination}", "q", "{type}", "q", "{props}", "k", "{user}", "victim", "{node}", node,
		"{connection}", "none", "{channel}", "none", "{limit}", "max-queues", "{name}", "p", "{component}", "vhost-limits", "{password}", "x",
		"{within}", "1", "{unit}", "days", "{port}", "1", "{protocol}", "amqp", "{flag}", "f", "{pattern}", ".*",
	)
	paths := []string{"//", "//healthz", "//ui/app.js", "//none"}
	for _, e := range mgmt.AllEndpoints() {
		if e.Method == "GET" {
			paths = append(paths, fill.Replace(e.Path))
		}
	}
	for _, path := range paths {
		for _, coding := range []string{"identity", "gzip"} {
			var one, h answer
			// Some answers tell of what changes by itself: at times they have the same length.
			for range 20 {
				one = c.do("GET", path, nil, "Accept-Encoding", coding)
				h = c.do("HEAD", path, nil, "Accept-Encoding", coding)
				if h.header.Get("Content-Length") == strconv.Itoa(len(one.body)) {
					break
				}
			}
			if h.status != one.status || h.body != "" || h.header.Get("Content-Type") != one.header.Get("Content-Type") {
				t.Errorf("%s: %d %q %s, GET %d %s", path, h.status, h.body, h.header.Get("Content-Type"), one.status, one.header.Get("Content-Type"))
			}
			if got := h.header.Get("Content-Length"); got != strconv.Itoa(len(one.body)) {
				t.Errorf("%s: a length of %q for %d bytes", path, got, len(one.body))
			}
		}
	}
	// A scrape is told in chunks, without a length.
	if h := c.do("HEAD", "//metrics", nil); h.status != 200 || h.body != "" || h.header.Get("Content-Length") != "" {
		t.Errorf("HEAD /metrics: %d %v", h.status, h.header)
	}
}

// TestHeadHasNoBody: the answer to a HEAD, good or bad, is its header alone, so that the next answer on the connection is
// that of the next request. RabbitMQ sends the body of an error behind it.
func TestHeadHasNoBody(t *testing.T) {
	g := guard(t, 0, time.Hour, time.Hour, time.Hour)
	paths := []string{"/", "/api", "/healthz", "/metrics", "/none", "/api/none", "/api/queues/%zz", "/api/vhosts?columns=%"}
	fill := strings.NewReplacer("{", "", "}", "")
	for _, e := range mgmt.AllEndpoints() {
		paths = append(paths, "/api"+fill.Replace(e.Path)) // names of what does not exist
	}
	for _, login := range []string{"guest:guest", "guest:wrong", ""} {
		for _, path := range paths {
			if login == "guest:wrong" && path != "/api/overview" {
				continue // too many would be refused
			}
			for _, header := range []string{"Accept: */*", "Accept: text/plain"} {
				c := g.dial("127.0.0.1").send(head("HEAD", path, login, header) + head("GET", "/api/whoami", "guest:guest"))
				res, _ := c.response("HEAD")
				if next := c.answer(); next.status != 200 || !strings.HasPrefix(next.body, `{"name":"guest"`) {
					t.Errorf("HEAD %s by %q, %s: %d; the answer behind it: %d %s", path, login, header, res.StatusCode, next.status, next.body)
				}
			}
		}
	}
}

// response reads the answer to a method, as it came.
func (c *rawClient) response(method string) (*http.Response, string) {
	c.t.Helper()
	c.SetDeadline(time.Now().Add(patience))
	res, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	var b strings.Builder
	if _, err := io.Copy(&b, res.Body); err != nil {
		c.t.Fatal(err)
	}
	return res, b.String()
}
