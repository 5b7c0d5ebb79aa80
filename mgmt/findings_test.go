package mgmt_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/mgmt"
	"github.com/firemq/firemq/mgmt/api"
)

// Each finding of a report is brought about in a broker here, or in reportwords_test.go where that takes a clock or a
// disk of the test's own.

// TestFindingsAreListed: the table in docs/messages.md has the codes that there are, with their severities.
func TestFindingsAreListed(t *testing.T) {
	page, err := os.ReadFile("../docs/messages.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| code | severity | says |")
	told := map[string]string{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.HasPrefix(cells[1], "-") {
			continue
		}
		codes, severities := strings.Split(cells[1], ","), strings.Split(cells[2], ",")
		for i, code := range codes {
			told[strings.TrimSpace(code)] = strings.TrimSpace(severities[min(i, len(severities)-1)])
		}
	}
	source, err := os.ReadFile("report.go")
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]string{}
	severity := map[string]string{"Critical": api.Critical, "Warning": api.Warning, "Note": api.Note}
	for _, m := range regexp.MustCompile(`api\.(Critical|Warning|Note),(?: Code:)? "([a-z-]+)"`).FindAllStringSubmatch(string(source), -1) {
		made[m[2]] = severity[m[1]]
	}
	made["consumer-stuck"], made["unacked-for-long"] = api.Warning, api.Note // set apart from each other
	want := mgmt.Findings()
	for code := range want {
		if told[code] != want[code] || made[code] != want[code] {
			t.Errorf("%s is %q in the docs and %q in the code, want %q", code, told[code], made[code], want[code])
		}
	}
	if len(told) != len(want) || len(made) != len(want) {
		t.Errorf("%d in the docs, %d in the code, %d tested: %v, %v", len(told), len(made), len(want), told, made)
	}
}

// report waits for a finding about an object and checks its words; patience is that of the request.
func (c *client) finding(code, name string) {
	c.t.Helper()
	var r api.Report
	waitFor(c.t, func() bool {
		r = get[api.Report](c, "/health/report?patience=0")
		return found(r, code, name) != nil
	})
	mgmt.CheckFinding(c.t, r, code, name)
}

func (c *client) node() string { return get[api.Overview](c, "/overview").Node }

// TestFindingsOfLimits takes the limits to where memory and disk are.
func TestFindingsOfLimits(t *testing.T) {
	c := startOn(t, t.TempDir())
	ch := dial(t, c)
	node := c.node()
	limit := func(set func(string, float64) error, bytes int64) {
		t.Helper()
		if err := set(fmt.Sprint(bytes), 0); err != nil {
			t.Fatal(err)
		}
	}
	machine := func() object { return get[object](c, "/nodes/"+esc(node)) }

	limit(c.s.SetMemoryLimit, 1<<20)
	waitFor(t, func() bool { return found(get[api.Report](c, "/health/report"), "memory-alarm", node) != nil })
	if err := ch.PublishWithContext(t.Context(), "", "nowhere", false, false, amqp.Publishing{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		f := found(get[api.Report](c, "/health/report"), "memory-alarm", node)
		return strings.Contains(f.Cause, "1 connection is blocked now")
	})
	c.finding("memory-alarm", node)
	// What is used changes from one moment to the next: the limit follows until it is near and not reached.
	waitFor(t, func() bool {
		limit(c.s.SetMemoryLimit, int64(machine()["mem_used"].(float64)*1.025))
		return found(get[api.Report](c, "/health/report"), "memory-low", node) != nil
	})
	c.finding("memory-low", node)
	limit(c.s.SetMemoryLimit, 0)

	c.want(204, "POST", "/nodes/"+esc(node)+"/actions", object{"action": "suspend_listeners"})
	c.finding("listeners-suspended", node)
	c.want(204, "POST", "/nodes/"+esc(node)+"/actions", object{"action": "resume"})

	limit(c.s.SetDiskFreeLimit, 1<<50)
	c.finding("disk-alarm", node)
	waitFor(t, func() bool {
		limit(c.s.SetDiskFreeLimit, int64(machine()["disk_free"].(float64)*0.9))
		return found(get[api.Report](c, "/health/report"), "disk-low", node) != nil
	})
	c.finding("disk-low", node)
	limit(c.s.SetDiskFreeLimit, 0)
	waitFor(t, func() bool { return get[api.Report](c, "/health/report").Status == "ok" })
}

// publishUntil publishes to queues, over and over, until the test's part is done.
func publishUntil(t *testing.T, c *client, size int, queues ...string) (stop func()) {
	ch := dial(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			for _, q := range queues {
				if err := ch.PublishWithContext(ctx, "", q, false, false, amqp.Publishing{Body: make([]byte, size)}); err != nil {
					ended <- err
					return
				}
			}
			select {
			case <-ctx.Done():
				ended <- nil
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		cancel()
		if err := <-ended; err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	}
}

// TestFindingsOfGrowth: one queue grows that nobody takes from, another one although somebody does.
func TestFindingsOfGrowth(t *testing.T) {
	c := start(t)
	for _, q := range []string{"alone", "slow"} {
		c.want(201, "PUT", "/queues/%2F/"+q, object{})
	}
	ch := dial(t, c)
	if err := ch.Qos(1, 0, false); err != nil {
		t.Fatal(err)
	}
	got, err := ch.Consume("slow", "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	stop := publishUntil(t, c, 10, "alone", "slow")
	defer stop()
	go func() {
		slow := time.NewTicker(200 * time.Millisecond)
		defer slow.Stop()
		for d := range got {
			<-slow.C
			d.Ack(false)
		}
	}()
	c.finding("queue-without-consumer", "alone")
	c.finding("consumers-too-slow", "slow")
}

// deafConn is read from until it is deaf.
type deafConn struct {
	net.Conn
	deaf   atomic.Bool
	closed chan struct{}
}

func (c *deafConn) Read(p []byte) (int, error) {
	if c.deaf.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return c.Conn.Read(p)
}

// consumeDeaf consumes a queue and then reads nothing any more.
func consumeDeaf(t *testing.T, c *client, queue, tag string) {
	t.Helper()
	raw, err := net.Dial("tcp", c.s.AMQPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	d := &deafConn{Conn: raw, closed: make(chan struct{})}
	t.Cleanup(func() { raw.Close(); close(d.closed) })
	conn, err := amqp.Open(d, amqp.Config{SASL: []amqp.Authentication{&amqp.PlainAuth{Username: "guest", Password: "guest"}}, Vhost: "/"})
	if err != nil {
		t.Fatal(err)
	}
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.Consume(queue, tag, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	d.deaf.Store(true)
}

// TestFindingsOfDeafConsumers: consumers that read nothing any more, also of a queue with a single active one.
func TestFindingsOfDeafConsumers(t *testing.T) {
	c := start(t)
	ch := dial(t, c)
	for queue, says := range map[string]string{"plain": "1 consumer does not read", "single": "The single active consumer 'the-one' does not read"} {
		c.want(201, "PUT", "/queues/%2F/"+queue, object{"arguments": object{"x-single-active-consumer": queue == "single"}})
		consumeDeaf(t, c, queue, "the-one")
		for range 200 { // more than sockets and outbox hold
			if err := ch.PublishWithContext(t.Context(), "", queue, false, false, amqp.Publishing{Body: make([]byte, 100_000)}); err != nil {
				t.Fatal(err)
			}
		}
		c.finding("consumers-do-not-read", queue)
		if f := found(get[api.Report](c, "/health/report?patience=0"), "consumers-do-not-read", queue); !strings.Contains(f.Cause, says) {
			t.Errorf("%s, want %s", f.Cause, says)
		}
	}
}
