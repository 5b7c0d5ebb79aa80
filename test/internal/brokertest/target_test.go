package brokertest

import (
	"io"
	"net"
	"net/http"
	"os"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(Main(m.Run)) }

// A target has the same address after a restart, and an alarm that begins and ends.
func TestTarget(t *testing.T) {
	t.Setenv("AMQP_URL", "")
	g := NewTarget(t)
	control := g.Serve(t)
	url := g.URL
	for _, path := range []string{"/alarm", "/clear", "/restart", "/alarm", "/restart", "/clear"} {
		resp, err := http.Post(control+path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s\n%s", path, resp.Status, body)
		}
		if g.alarmed() != (path == "/alarm") && path != "/restart" {
			t.Errorf("after %s the alarm is %v", path, g.alarmed())
		}
		if g.broker.AMQPURL != url {
			t.Fatalf("the address was %s and is %s", url, g.broker.AMQPURL)
		}
		conn, err := net.Dial("tcp", Address(t, url))
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
}
