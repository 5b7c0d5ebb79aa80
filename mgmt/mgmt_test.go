package mgmt_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/server"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// start runs a broker in memory and gives its API as guest sees it.
func start(t testing.TB) *client { return startOn(t, "") }

// startOn starts a broker with a data directory; "": in memory.
func startOn(t testing.TB, data string) *client {
	t.Helper()
	s, err := server.Start(context.Background(), server.Options{
		AMQP: "127.0.0.1:0", Fire: "127.0.0.1:0", HTTP: "127.0.0.1:0", Data: data, Ephemeral: data == "", Version: "9.9.9",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &client{t: t, s: s, base: "http://" + s.HTTPAddr().String(), user: "guest", password: "guest"}
}

// client calls the API as one user.
type client struct {
	t              testing.TB
	s              *server.Server
	base           string
	user, password string
}

// as is the same broker for another user.
func (c *client) as(user, password string) *client {
	d := *c
	d.user, d.password = user, password
	return &d
}

// addUser makes a user without going through the API.
func (c *client) addUser(name string, tags ...string) *client {
	c.t.Helper()
	if err := c.s.Broker().Users().AddUser(name, "secret", tags...); err != nil {
		c.t.Fatal(err)
	}
	return c.as(name, "secret")
}

func (c *client) grant(vhost, configure, write, read string) *client {
	c.t.Helper()
	if _, err := c.s.Broker().Users().SetPermissions(auth.Permission{User: c.user, VHost: vhost, Configure: configure, Write: write, Read: read}); err != nil {
		c.t.Fatal(err)
	}
	return c
}

type answer struct {
	status int
	header http.Header
	body   string
}

// do sends one request; the path begins after /api unless it begins with "//".
func (c *client) do(method, path string, body any, header ...string) answer {
	c.t.Helper()
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(b)
	default:
		p, err := json.Marshal(b)
		if err != nil {
			c.t.Fatal(err)
		}
		r = bytes.NewReader(p)
	}
	req, err := http.NewRequest(method, c.base, r)
	if err != nil {
		c.t.Fatal(err)
	}
	if rest, ok := strings.CutPrefix(path, "//"); ok {
		path = "/" + rest
	} else {
		path = "/api" + path
	}
	path, query, _ := strings.Cut(path, "?")
	req.URL.Opaque = "//" + req.URL.Host + path // as it is
	req.URL.RawQuery = query
	if c.user != "" {
		req.SetBasicAuth(c.user, c.password)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	noRedirect := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := noRedirect.Do(req)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	p, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(p)}
}

// want is do with a status that must come.
func (c *client) want(status int, method, path string, body any) answer {
	c.t.Helper()
	a := c.do(method, path, body)
	if a.status != status {
		c.t.Fatalf("%s %s: %d %s, want %d", method, path, a.status, a.body, status)
	}
	return a
}

// get decodes what a GET answers.
func get[T any](c *client, path string) T {
	c.t.Helper()
	a := c.want(200, "GET", path, nil)
	var v T
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		c.t.Fatalf("GET %s: %v: %s", path, err, a.body)
	}
	return v
}

// reason is the text of an error.
func (a answer) reason() string {
	var e struct{ Reason any }
	json.Unmarshal([]byte(a.body), &e)
	if s, ok := e.Reason.(string); ok {
		return s
	}
	p, _ := json.Marshal(e.Reason)
	return string(p)
}

type object = map[string]any

func esc(s string) string { return url.PathEscape(s) }

func names(list []object) string {
	var all []string
	for _, o := range list {
		all = append(all, fmt.Sprint(o["name"]))
	}
	return strings.Join(all, " ")
}

// What a person sees who opens the listener's address, and what a probe sees.
func TestPlacesWithoutLogin(t *testing.T) {
	c := start(t).as("", "")
	for path, want := range map[string]string{"//": "<!doctype html>", "//healthz": "ok\n", "//metrics": "rabbitmq_connections"} {
		if a := c.do("GET", path, nil); a.status != 200 || !strings.Contains(a.body, want) {
			t.Errorf("%s: %d %.80q, want %q", path, a.status, a.body, want)
		}
	}
	if a := c.do("GET", "//nowhere", nil); a.status != 404 {
		t.Errorf("a place that does not exist: %d", a.status)
	}
	if a := c.do("POST", "//healthz", nil); a.status != 405 {
		t.Errorf("POST: %d", a.status)
	}
}
