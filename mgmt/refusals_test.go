package mgmt_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/firemq/firemq/server"
)

// lines collects a log. Any goroutine.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// take gives what was written since the last call.
func (l *lines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return l.b.String()
}

// Each refusal is one line with the client's address, its user and vhost, and the code; what is not refused, what
// does not exist for a reader, and a browser that does not know yet that it has to log in, are none. No password
// is in it.
func TestRefusalsAreLogged(t *testing.T) {
	var log lines
	s, err := server.Start(context.Background(), server.Options{
		HTTP: "127.0.0.1:0", Ephemeral: true, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown(context.Background())
	c := &client{t: t, s: s, base: "http://" + s.HTTPAddr().String(), user: "guest", password: "guest"}
	c.addUser("nobody")
	c.addUser("reader", "management")
	c.do("PUT", "/vhosts/v", nil)
	c.do("PUT", "/permissions/v/reader", object{"configure": "^mine", "write": "", "read": ".*"})
	c.do("PUT", "/queues/v/q", object{"durable": true})
	log.take()
	for name, r := range map[string]struct {
		as     *client
		method string
		path   string
		body   any
		status int
		want   string // in the line after its peer; "": there is none
	}{
		"fine":                  {c, "GET", "/queues/v/q", nil, 200, ""},
		"absent":                {c, "GET", "/queues/v/absent", nil, 404, ""},
		"no credentials":        {c.as("", ""), "GET", "/whoami", nil, 401, ""},
		"wrong password":        {c.as("reader", "hunter2"), "GET", "/vhosts/v/connections", nil, 401, `msg="login refused" peer=P user=reader vhost=v code=401 reason="user 'reader' - invalid credentials"`},
		"unknown user":          {c.as(strings.Repeat("x", 5000), "hunter2"), "GET", "/whoami", nil, 401, `msg="login refused" peer=P user=` + strings.Repeat("x", 255) + ` vhost="" code=401 reason=`},
		"no tag":                {c.as("nobody", "secret"), "GET", "/whoami", nil, 401, `msg="request refused" peer=P user=nobody vhost="" code=401 reason="Not management user" method=GET path=/whoami`},
		"no administrator":      {c.as("reader", "secret"), "PUT", "/users/mallory", object{"password": "hunter2", "tags": ""}, 401, `msg="request refused" peer=P user=reader vhost="" code=401 reason="Not administrator user" method=PUT path=/users/{user}`},
		"another vhost":         {c.as("reader", "secret"), "GET", "/queues/%2F", nil, 404, `user=reader vhost=/ code=404 reason="User not authorised to access virtual host" method=GET path=/queues/{vhost}`},
		"a secret in the path":  {c.as("nobody", "secret"), "GET", "/auth/hash_password/hunter2", nil, 401, `user=nobody vhost="" code=401 reason="Not management user" method=GET path=/auth/hash_password/{password}`},
		"no permission":         {c.as("reader", "secret"), "DELETE", "/queues/v/q", nil, 401, `user=reader vhost=v code=401 reason="configure access to queue 'q' in vhost 'v' refused for user 'reader'" method=DELETE path=/queues/{vhost}/{queue}`},
		"an inequivalent queue": {c, "PUT", "/queues/v/q", object{"durable": false}, 400, `user=guest vhost=v code=400 reason="inequivalent arg 'durable' for queue 'q' in vhost 'v'`},
		"a page of elsewhere":   {c, "PUT", "/queues/v/q2", object{}, 403, `user="" vhost=v code=403 reason="it comes from a page of another site" method=PUT`},
	} {
		t.Run(name, func(t *testing.T) {
			var header []string
			if r.status == 403 {
				header = []string{"Origin", "http://elsewhere.example"}
			}
			if a := r.as.do(r.method, r.path, r.body, header...); a.status != r.status {
				t.Fatalf("status %d, want %d", a.status, r.status)
			}
			got := log.take()
			if n := strings.Count(got, "\n"); r.want == "" && n != 0 || r.want != "" && n != 1 {
				t.Fatalf("the log: %q", got)
			}
			for _, part := range strings.Split(r.want, " peer=P ") {
				if !strings.Contains(got, part) {
					t.Errorf("the log\n%s lacks\n%s", got, part)
				}
			}
			if r.want != "" && !strings.Contains(got, "peer=127.0.0.1:") || strings.Contains(got, "hunter2") || len(got) > 1500 {
				t.Errorf("the log: %q", got)
			}
		})
	}
}
