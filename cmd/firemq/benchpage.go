package main

import (
	"bytes"
	_ "embed"
	"encoding/csv"
	"fmt"
	"html/template"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/firemq/firemq/bench"
	"github.com/firemq/firemq/bench/plot"
)

//go:embed bench.html
var pageText string

var pageTemplate = template.Must(template.New("bench.html").Funcs(template.FuncMap{
	"count":    func(v float64) string { return thousands(v, 0) },
	"ms":       func(us float64) string { return fmt.Sprintf("%.3f", us/1e3) },
	"mib":      func(n int64) string { return fmt.Sprintf("%.1f", float64(n)/(1<<20)) },
	"time":     func(t time.Time) string { return t.Format(time.RFC3339) },
	"schedule": schedule,
	"charts":   charts,
	"curve":    curve,
}).Parse(pageText))

// writePage writes the reports as one HTML file with its charts in it.
func writePage(path string, reports []*bench.Report) error {
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, reports); err != nil {
		return fmt.Errorf("make the HTML report: %w", err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write the HTML report: %w", err)
	}
	return nil
}

// writeSheet writes every second of the reports as CSV, with the columns of bench.Second in JSON after the run,
// counted from 1, and its rate.
func writeSheet(path string, reports []*bench.Report) error {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	w.Write([]string{"run", "rate", "phase", "elapsed_s", "published_s", "consumed_s", "backlog", "p50_us", "p99_us"})
	f := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	for i, rep := range reports {
		for _, s := range rep.Seconds {
			w.Write([]string{
				strconv.Itoa(i + 1), f(rep.Parameters.Rate), string(s.Phase), f(s.Elapsed), f(s.Published), f(s.Consumed),
				strconv.FormatInt(s.Backlog, 10), f(s.P50), f(s.P99),
			})
		}
	}
	w.Flush() // into memory, which cannot fail
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write the CSV file: %w", err)
	}
	return nil
}

// charts draws a run second by second.
func charts(rep *bench.Report) []template.HTML {
	var at, published, consumed, p50, p99 []float64
	began := 0.0 // of the phase
	last, phase := 0.0, bench.Phase("")
	for _, s := range rep.Seconds {
		if s.Phase != phase {
			began, phase = last, s.Phase
		}
		last = began + s.Elapsed
		at = append(at, last)
		published, consumed = append(published, s.Published), append(consumed, s.Consumed)
		p50, p99 = append(p50, s.P50/1e3), append(p99, s.P99/1e3)
	}
	if len(at) == 0 {
		return nil
	}
	rates := plot.Lines{Title: "Messages per second", X: "seconds", Series: []plot.Line{{Name: "published", X: at, Y: published}, {Name: "consumed", X: at, Y: consumed}}}
	waits := plot.Lines{Title: "Latency in milliseconds", X: "seconds", Series: []plot.Line{{Name: "p50", X: at, Y: p50}, {Name: "p99", X: at, Y: p99}}}
	// The plots escape what they are given, which is ours anyway.
	return []template.HTML{template.HTML(rates.SVG()), template.HTML(waits.SVG())}
}

// curve draws latency against the rate, where there were several.
func curve(reports []*bench.Report) template.HTML {
	if len(reports) < 2 {
		return ""
	}
	sorted := slices.SortedFunc(slices.Values(reports), func(a, b *bench.Report) int {
		return int(a.Parameters.Rate - b.Parameters.Rate)
	})
	var p50, p99 plot.Line
	p50.Name, p99.Name = "p50", "p99"
	for _, rep := range sorted {
		p50.X, p50.Y = append(p50.X, rep.Parameters.Rate), append(p50.Y, rep.Latency.P50/1e3)
		p99.X, p99.Y = append(p99.X, rep.Parameters.Rate), append(p99.Y, rep.Latency.P99/1e3)
	}
	return template.HTML(plot.Lines{Title: "Delivery latency in milliseconds by rate", X: "messages per second", LogX: true, Series: []plot.Line{p50, p99}}.SVG())
}
