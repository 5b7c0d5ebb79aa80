//go:build unix

package mgmt_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// many runs a broker with 10,000 queues and 1,000 connections, each with a channel and a consumer.
func many(tb testing.TB) *client {
	c := start(tb)
	dial := func() *amqp.Channel {
		conn, err := amqp.Dial("amqp://guest:guest@" + c.s.AMQPAddr().String())
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { conn.Close() })
		ch, err := conn.Channel()
		if err != nil {
			tb.Fatal(err)
		}
		return ch
	}
	ch := dial()
	name := func(i int) string { return fmt.Sprintf("queue-%05d", i) }
	for i := range 10_000 {
		if _, err := ch.QueueDeclare(name(i), true, false, false, i < 9_999, nil); err != nil { // the last one waits for all
			tb.Fatal(err)
		}
	}
	for i := range 1_000 {
		if i > 0 {
			ch = dial()
		}
		if _, err := ch.Consume(name(i), "", false, false, false, false, nil); err != nil {
			tb.Fatal(err)
		}
	}
	return c
}

// fetch asks for a path, one with a "+" before it with gzip, throws the answer away, and gives its size.
func (c *client) fetch(path string) int64 {
	c.t.Helper()
	path, packed := strings.CutPrefix(path, "+")
	encoding := "identity"
	if packed {
		encoding = "gzip"
	}
	req, err := http.NewRequest("GET", c.base+path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	req.SetBasicAuth("guest", "guest")
	req.Header.Set("Accept-Encoding", encoding) // set here, so that what comes stays compressed
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 200 {
		c.t.Fatal(path, res.Status)
	}
	size, err := io.Copy(io.Discard, res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return size
}

// TestManyAreCheap: a page of a list takes less than 50 ms of CPU and a scrape less than 100 ms, some three times what
// they take, the client's part included. The best of some requests counts: others may share this process's time.
func TestManyAreCheap(t *testing.T) {
	if raceEnabled {
		t.Skip("such a build takes many times as much")
	}
	c := many(t)
	for _, r := range []struct {
		paths []string
		most  time.Duration
	}{
		{[]string{
			"/api/queues?page=1&page_size=100", "/api/queues?page=100&page_size=100", "/api/queues?page=1&page_size=500", "/api/queues/%2F?page=1&page_size=100",
			"/api/queues?page=1&page_size=100&sort=messages&sort_reverse=true", "/api/queues?page=1&page_size=100&name=99", "/api/queues?page=1&page_size=100&name=9$&use_regex=true",
			"/api/connections?page=1&page_size=100", "/api/connections?page=1&page_size=100&sort=recv_oct",
			"/api/channels?page=1&page_size=100", "/api/channels?page=1&page_size=100&sort=messages_unacknowledged",
			"/api/exchanges?page=1&page_size=100", "/api/vhosts?page=1", "/api/overview", "/api/nodes",
		}, 50 * time.Millisecond},
		{[]string{"/metrics", "+/metrics", "+/metrics/per-object", "/metrics/detailed?family=queue_metrics", "+/metrics/detailed?family=queue_metrics"}, 100 * time.Millisecond},
	} {
		for _, path := range r.paths {
			best, size := time.Hour, int64(0)
			for range 10 {
				before := cpuTime(t)
				size = c.fetch(path)
				best = min(best, cpuTime(t)-before)
			}
			t.Logf("%-90s %6.1f ms %9d bytes", path, float64(best.Microseconds())/1e3, size)
			if best > r.most {
				t.Errorf("%s takes %s of CPU, want at most %s", path, best, r.most)
			}
		}
	}
}

// BenchmarkMany measures the lists and scrapes of many: CPU time and what is allocated, with a client that throws away
// what it reads. Paths with a "+" before them are asked for with gzip.
func BenchmarkMany(b *testing.B) {
	c := many(b)
	for _, path := range []string{
		"/api/queues?page=1&page_size=100", "/api/queues?page=1&page_size=100&sort=messages&sort_reverse=true",
		"/api/queues?page=1&page_size=100&name=99", "/api/connections?page=1&page_size=100", "/api/connections?page=1&page_size=100&sort=recv_oct",
		"/api/channels?page=1&page_size=100", "/api/consumers", "/api/exchanges?page=1&page_size=100", "/api/bindings",
		"/api/queues", "/api/queues?columns=name,messages", "/api/overview", "+/api/queues?page=1&page_size=100&sort=messages", "+/api/queues",
		"/metrics", "/metrics/per-object", "/metrics/detailed?family=queue_metrics",
		"+/metrics", "+/metrics/per-object", "+/metrics/detailed?family=queue_metrics",
	} {
		b.Run(path, func(b *testing.B) {
			b.ReportAllocs()
			c := *c
			c.t = b
			size, before := int64(0), cpuTime(b)
			for b.Loop() {
				size = c.fetch(path)
			}
			b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/1e3/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(size)/1e6, "MB")
		})
	}
}

// cpuTime is what this process has used.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
