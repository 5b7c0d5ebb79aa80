package amqp

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firemq/firemq/broker"
)

const startOk = `0 connection.start-ok client-properties={capabilities=F{authentication_failure_close=t1}} mechanism="PLAIN" response="\x00USER\x00hunter2" locale="en_US"`

// A refused login is one line with the client's address, the user that it named and the code, and no password.
// After too many it is refused unseen, and told so in the same words after a pause in which it is ignored.
func TestRefusedLogins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t)
		var log bytes.Buffer
		opt := Options{Log: slog.New(slog.NewTextHandler(&log, nil))}
		attempt := func(user string) *client {
			c := newClient(t, b, opt)
			c.send(hello)
			c.got()
			c.send(strings.Replace(startOk, "USER", user, 1))
			return c
		}
		logged := func(want ...string) {
			t.Helper()
			got := log.String()
			log.Reset()
			if strings.Count(got, "\n") != 1 || strings.Contains(got, "hunter2") || len(got) > 1500 {
				t.Fatalf("the log: %q", got)
			}
			for _, w := range want {
				if !strings.Contains(got, w) {
					t.Errorf("the log\n%s lacks\n%s", got, w)
				}
			}
		}
		refusal := `0 connection.close reply-code=403 reply-text="ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."`
		for range 20 {
			c := attempt("guest")
			c.expect(refusal)
			logged(`level=WARN msg="login refused" peer="127.0.0.1:50000 -> 127.0.0.1:5672" user=guest vhost="" code=403 reason="user 'guest' - invalid credentials"`)
		}
		attempt(strings.Repeat("x", 30_000)).expect(refusal)
		logged("user=" + strings.Repeat("x", 255) + " ")

		c := attempt("guest")
		logged(`user=guest vhost="" code=403 reason="too many wrong passwords from there"`)
		c.expect()
		c.send(login[2:]...)
		time.Sleep(broker.LoginPause - time.Millisecond)
		c.runTasks()
		c.expect()
		time.Sleep(time.Millisecond)
		synctest.Wait()
		c.runTasks()
		c.expect(refusal)
		c.send("0 connection.close-ok")
		c.expect("closed")

		// A client that leaves before is not told any more.
		c = attempt("guest")
		c.send(`0 connection.close reply-code=200 reply-text="bye"`)
		if c = attempt("guest"); c.out.closed {
			t.Error("the connection is closed at once")
		}
		c.send("0 connection.close-ok")
		c.expect("closed")
		time.Sleep(broker.LoginPause)
		synctest.Wait()
		c.runTasks()
		c.expect()
	})
}
