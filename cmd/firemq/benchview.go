package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/firemq/firemq/bench"
)

// benchView shows a run: a chart where a person watches, else a line every second; then the report.
type benchView struct {
	live    io.Writer // nil: nothing every second
	out     io.Writer
	asJSON  bool
	compact bool // a run of several: no report of its own but JSON, on one line
	style   style
	chart   bool // redraw a chart in place
	width   func() int
	phase   bench.Phase
	seconds []bench.Second // of the chart, the newest last
	drawn   int            // lines of the chart on the screen
	total   map[bench.Phase]time.Duration
}

// The chart's columns, one a second, and rows, eight levels each. A line of a chart must not reach the end of
// the terminal's, or it takes two and the chart is not taken away: columns are left out, and below
// chartLeast there is a line a second instead.
const (
	chartColumns = 64
	chartRows    = 6
	chartMargin  = 18 // before and behind the columns
	chartLeast   = 72
)

func newBenchView(t terminal, asJSON, quiet bool, o bench.Options) *benchView {
	v := &benchView{out: t.out, asJSON: asJSON, style: style{on: t.color()}, chart: isTerminal(t.out), width: func() int { return terminalWidth(t.out) },
		total: map[bench.Phase]time.Duration{bench.Warmup: o.Warmup, bench.Measure: o.Duration}}
	switch {
	case quiet:
	case asJSON: // standard output is the report's alone
		v.live, v.chart, v.style.on = t.err, false, false
	default:
		v.live = t.out
	}
	return v
}

func (v *benchView) second(s bench.Second) {
	if v.live == nil {
		return
	}
	if v.chart {
		if width := v.width(); width >= chartLeast {
			v.draw(s, min(chartColumns, width-chartMargin))
			return
		}
		v.clear() // it has become narrower
	}
	if s.Phase != v.phase {
		v.phase = s.Phase
		fmt.Fprintf(v.live, "%s\n", v.style.dim(string(s.Phase)))
	}
	fmt.Fprintf(v.live, "%6.1f s  %s published/s  %s consumed/s  p50 %s  p99 %s ms", s.Elapsed,
		thousands(s.Published, 12), thousands(s.Consumed, 12), milliseconds(s.P50), milliseconds(s.P99))
	if s.Phase == bench.Drain {
		fmt.Fprintf(v.live, "  %s to come", thousands(float64(s.Backlog), 0))
	}
	fmt.Fprintln(v.live)
}

// draw replaces the chart by one of so many columns that ends with s.
func (v *benchView) draw(s bench.Second, columns int) {
	v.seconds = append(v.seconds, s)
	if more := len(v.seconds) - columns; more > 0 {
		v.seconds = v.seconds[:copy(v.seconds, v.seconds[more:])]
	}
	rates, waits := make([]float64, len(v.seconds)), make([]float64, len(v.seconds))
	for i, s := range v.seconds {
		if rates[i], waits[i] = s.Consumed, s.P99; s.Phase == bench.Fill || s.Consumed == 0 {
			rates[i] = s.Published
		}
	}
	v.clear()
	var b strings.Builder
	lines := 0
	line := func(format string, args ...any) {
		fmt.Fprintf(&b, format+"\n", args...)
		lines++
	}
	line("%s %6.1f s  %s published/s  %s consumed/s", v.style.bold(fmt.Sprintf("%-8s", s.Phase)), s.Elapsed,
		thousands(s.Published, 12), thousands(s.Consumed, 12))
	line("%-8s %18s p50 %s  p99 %s ms", "", "", milliseconds(s.P50), milliseconds(s.P99))
	for i, row := range blocks(rates, chartRows) {
		label := ""
		if i == 0 {
			label = thousands(slices.Max(rates), 0) + "/s"
		}
		line("%14s %s", label, v.style.green(row))
	}
	line("%14s %s", "p99 "+strings.TrimSpace(milliseconds(slices.Max(waits)))+" ms", v.style.red(blocks(waits, 1)[0]))
	if total := v.total[s.Phase]; total > 0 {
		line("%12s %s", "", v.style.bar(s.Elapsed/total.Seconds()))
	} else if s.Phase == bench.Drain {
		line("%14s %s to come", "", thousands(float64(s.Backlog), 0))
	}
	io.WriteString(v.live, b.String())
	v.drawn = lines
}

// blocks draws a column for each value, the highest over all rows.
func blocks(values []float64, rows int) []string {
	const levels = " ▁▂▃▄▅▆▇█"
	glyphs := []rune(levels)
	full := len(glyphs) - 1
	highest := slices.Max(values)
	drawn := make([]string, rows)
	for row := range rows {
		var b strings.Builder
		below := (rows - 1 - row) * full
		for _, v := range values {
			level := 0
			if highest > 0 {
				level = int(math.Ceil(v / highest * float64(rows*full)))
			}
			b.WriteRune(glyphs[min(max(level-below, 0), full)])
		}
		drawn[row] = b.String()
	}
	return drawn
}

// clear takes the chart away.
func (v *benchView) clear() {
	if v.drawn > 0 {
		fmt.Fprintf(v.live, "\x1b[%dF\x1b[J", v.drawn)
		v.drawn = 0
	}
}

// milliseconds is a latency in six columns.
func milliseconds(us float64) string { return fmt.Sprintf("%6.2f", us/1e3) }

func (v *benchView) report(rep *bench.Report) error {
	if v.asJSON {
		e := json.NewEncoder(v.out)
		if !v.compact {
			e.SetIndent("", "  ")
		}
		return e.Encode(rep)
	}
	if v.compact && (rep.Err() == nil || rep.Broken != "") {
		return nil
	}
	var b strings.Builder
	p := rep.Parameters
	kind := "transient"
	if p.Persistent {
		kind = "persistent"
	}
	fmt.Fprintf(&b, "\n%s\n", v.style.bold(fmt.Sprintf("%s over %s, %s messages of %s%s, %s, %s, %s, %.1f s",
		rep.Broker.Product, rep.Broker.Protocol, kind, sizes(p), schedule(p),
		count(p.Publishers, "publisher"), count(p.Consumers, "consumer"), count(p.Queues, "queue"), rep.Measured)))
	if fill := rep.Fill; fill != nil {
		fmt.Fprintf(&b, "  filled     %s/s  %s messages in %.2f s\n", thousands(fill.Rate, 12), thousands(float64(p.Backlog), 0), fill.Seconds)
	}
	fmt.Fprintf(&b, "  published  %s/s\n", thousands(rep.PublishRate, 12))
	if !p.NoConfirms {
		fmt.Fprintf(&b, "  confirmed  %s/s\n", thousands(rep.ConfirmRate, 12))
	}
	fmt.Fprintf(&b, "  consumed   %s/s  %.1f MB/s\n", thousands(rep.ConsumeRate, 12), rep.ConsumedBytes/1e6)
	if u := rep.BrokerUsage; u != nil {
		fmt.Fprintf(&b, "  broker     %12.2f us of CPU per message, %.2f cores, peak RSS %.1f MiB\n", u.PerDelivered, u.Cores, float64(u.PeakRSS)/(1<<20))
	}
	if rep.ClientCPU > 0 {
		fmt.Fprintf(&b, "  client     %12.2f us of CPU per message\n", rep.ClientCPU)
	}
	fmt.Fprintf(&b, "\n  latency in ms %9s %9s %9s %9s %9s %9s\n", "p50", "p90", "p95", "p99", "p99.9", "max")
	for _, l := range []struct {
		what string
		bench.Latency
	}{{"delivery", rep.Latency}, {"confirm", rep.ConfirmLatency}} {
		if l.Count == 0 {
			continue
		}
		fmt.Fprintf(&b, "  %-13s", l.what)
		for _, us := range []float64{l.P50, l.P90, l.P95, l.P99, l.P999, l.Max} {
			fmt.Fprintf(&b, " %9.3f", us/1e3)
		}
		b.WriteByte('\n')
	}
	if rep.Unsent > 0 {
		fmt.Fprintf(&b, "\n  %s\n", v.style.red(fmt.Sprintf("the rate was not reached: %s due messages were not sent, for want of confirms", thousands(float64(rep.Unsent), 0))))
	}
	if rep.Pauses > 0 {
		fmt.Fprintf(&b, "\n  the broker made publishers wait %d times\n", rep.Pauses)
	}
	counts := fmt.Sprintf("%s published, %s lost, %s duplicated", thousands(float64(rep.Published), 0), thousands(float64(rep.Lost), 0), thousands(float64(rep.Duplicated), 0))
	if rep.Broken != "" {
		counts = fmt.Sprintf("%s published and %s consumed before the run broke", thousands(float64(rep.Published), 0), thousands(float64(rep.Consumed), 0))
	}
	if rep.Err() == nil {
		counts = v.style.green(counts)
	} else {
		counts = v.style.red(counts)
	}
	fmt.Fprintf(&b, "\n  %s\n", counts)
	_, err := io.WriteString(v.out, b.String())
	return err
}

// sizes are those of bodies in words.
func sizes(p bench.Parameters) string {
	if len(p.Sizes) > 1 {
		return fmt.Sprintf("%d bytes on average", p.Size)
	}
	return fmt.Sprintf("%d bytes", p.Size)
}

// schedule is the rate of a run in words, behind a comma; empty where there is none.
func schedule(p bench.Parameters) string {
	switch {
	case p.Steps != nil:
		var all []string
		for _, s := range p.Steps {
			all = append(all, fmt.Sprintf("%s a second for %s", thousands(s.Rate, 0), s.For))
		}
		return ", in turn " + strings.Join(all, ", ")
	case p.RampTo > 0:
		return fmt.Sprintf(", %s to %s a second", thousands(p.Rate, 0), thousands(p.RampTo, 0))
	case p.Rate > 0:
		return fmt.Sprintf(", %s a second", thousands(p.Rate, 0))
	}
	return ""
}

// printRates is the table of several runs, each at its rate.
func printRates(w io.Writer, reports []*bench.Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%12s %12s %12s %28s %20s\n", "", "published", "consumed", "delivery, ms", "confirm, ms")
	fmt.Fprintf(&b, "%12s %12s %12s %10s %8s %8s %10s %8s\n", "rate/s", "/s", "/s", "p50", "p99", "p99.9", "p50", "p99")
	for _, rep := range reports {
		fmt.Fprintf(&b, "%s %s %s %10s %8s %8s %10s %8s\n", thousands(rep.Parameters.Rate, 12),
			thousands(rep.PublishRate, 12), thousands(rep.ConsumeRate, 12),
			milliseconds(rep.Latency.P50), milliseconds(rep.Latency.P99), milliseconds(rep.Latency.P999),
			milliseconds(rep.ConfirmLatency.P50), milliseconds(rep.ConfirmLatency.P99))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// style colours text when it is on.
type style struct{ on bool }

func (s style) paint(code, text string) string {
	if !s.on {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s style) bold(text string) string  { return s.paint("1", text) }
func (s style) dim(text string) string   { return s.paint("2", text) }
func (s style) red(text string) string   { return s.paint("31", text) }
func (s style) green(text string) string { return s.paint("32", text) }

// bar is a progress bar without a line's end.
func (s style) bar(done float64) string {
	const width = 40
	full := int(min(max(done, 0), 1) * width)
	return fmt.Sprintf("  %s%s %3.0f %%", s.green(strings.Repeat("█", full)), s.dim(strings.Repeat("░", width-full)), 100*min(done, 1))
}

// thousands is a number without its fraction, in groups of three, right-aligned in width.
func thousands(v float64, width int) string {
	digits := fmt.Sprintf("%.0f", v)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 && digits[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return fmt.Sprintf("%*s", width, b.String())
}
