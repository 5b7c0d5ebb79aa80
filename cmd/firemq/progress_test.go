package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// A log that is no terminal gets a line every five seconds.
func TestProgressInALog(t *testing.T) {
	var out, logged bytes.Buffer
	now := time.Unix(1000, 0)
	p := newProgress(&out, false, slog.New(slog.NewTextHandler(&logged, nil)))
	p.now = func() time.Time { return now }
	p.start()
	for i := range int64(12) {
		p.replayed(i<<25, 12<<25, i*1000)
		now = now.Add(time.Second)
	}
	p.end()
	if out.Len() > 0 || strings.Count(logged.String(), "\n") != 2 || !strings.Contains(logged.String(), "percent=41 records=5000") {
		t.Errorf("output %q, log\n%s", out.String(), logged.String())
	}
}
