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

// BenchmarkMany measures the lists and scrapes of a broker with 10,000 queues and 1,000 connections, each with a
// channel and a consumer: CPU time and what is allocated, with a client that throws away what it reads. Paths with a
// "+" before them are asked for with gzip.
func BenchmarkMany(b *testing.B) {
	c := start(b)
	for i := range 10_000 {
		if a := c.do("PUT", fmt.Sprintf("/queues/%%2F/queue-%05d", i), object{"durable": true}); a.status != 201 {
			b.Fatal(a)
		}
	}
	for i := range 1_000 {
		conn, err := amqp.Dial("amqp://guest:guest@" + c.s.AMQPAddr().String())
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { conn.Close() })
		ch, err := conn.Channel()
		if err != nil {
			b.Fatal(err)
		}
		if _, err := ch.Consume(fmt.Sprintf("queue-%05d", i), "", false, false, false, false, nil); err != nil {
			b.Fatal(err)
		}
	}
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
			path, packed := strings.CutPrefix(path, "+")
			encoding := "identity"
			if packed {
				encoding = "gzip"
			}
			size, before := int64(0), cpuTime(b)
			for b.Loop() {
				req, _ := http.NewRequest("GET", c.base+path, nil)
				req.SetBasicAuth("guest", "guest")
				req.Header.Set("Accept-Encoding", encoding) // set here, so that what comes stays compressed
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					b.Fatal(err)
				}
				if res.StatusCode != 200 {
					b.Fatal(res.Status)
				}
				size, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
			b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/1e3/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(size)/1e6, "MB")
		})
	}
}

// cpuTime is what this process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
