package mgmt_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"
)

// BenchmarkManyQueues measures the lists and scrapes of a broker with 10,000 queues, client included.
func BenchmarkManyQueues(b *testing.B) {
	c := start(b)
	for i := range 10_000 {
		if a := c.do("PUT", fmt.Sprintf("/queues/%%2F/queue-%05d", i), object{"durable": true}); a.status != 201 {
			b.Fatal(a)
		}
	}
	for _, path := range []string{
		"/api/queues?page=1&page_size=100", "/api/queues?page=1&page_size=100&sort=messages&sort_reverse=true",
		"/api/queues", "/api/queues?columns=name,messages", "/api/overview", "/metrics", "/metrics/per-object",
	} {
		b.Run(path, func(b *testing.B) {
			size := int64(0)
			for b.Loop() {
				req, _ := http.NewRequest("GET", c.base+path, nil)
				req.SetBasicAuth("guest", "guest")
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					b.Fatal(err)
				}
				size, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
			b.ReportMetric(float64(size)/1e6, "MB")
		})
	}
}
