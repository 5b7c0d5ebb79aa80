package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/firemq/firemq/bench"
	"github.com/firemq/firemq/server"
	"github.com/rabbitmq/amqp091-go"
)

func TestBenchEmbedded(t *testing.T) {
	for name, flags := range map[string][]string{
		"fire, transient":  nil,
		"fire, persistent": {"--persistent"},
		"amqp, transient":  {"--amqp"},
		"amqp, persistent": {"--amqp", "--persistent"},
		"four of each":     {"--publishers", "4", "--consumers", "4", "--queues", "2"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"bench", "--embedded", "--duration", "0.2", "--warmup", "0"}, flags...)
			got := runWith(t.Context(), map[string]string{"FIREMQ_URL": "fire://127.0.0.1:1"}, "", args...)
			if got.status != 0 || got.err != "" || !strings.Contains(got.out, " 0 lost, 0 duplicated") || strings.Contains(got.out, "\x1b") {
				t.Errorf("status %d, error %q, output\n%s", got.status, got.err, got.out)
			}
		})
	}
}

func TestBenchJSON(t *testing.T) {
	got := runWith(t.Context(), nil, "", "bench", "--embedded", "--duration", "1.1s", "--warmup", "0", "--json")
	var rep bench.Report
	if err := json.Unmarshal([]byte(got.out), &rep); err != nil || got.status != 0 {
		t.Fatalf("%v: status %d, output %q, error %q", err, got.status, got.out, got.err)
	}
	if rep.Published == 0 || rep.Parameters.Size != 256 || len(rep.Seconds) == 0 {
		t.Errorf("%+v", rep)
	}
	if !strings.Contains(got.err, "published/s") {
		t.Errorf("no live lines on standard error: %q", got.err)
	}
}

func TestBenchWithoutBroker(t *testing.T) {
	got := runWith(t.Context(), nil, "", "bench", "--url", "amqp://127.0.0.1:1")
	if got.status != exitFailure || got.out != "" || !isOneLine(got.err) || !strings.Contains(got.err, "connection refused") {
		t.Errorf("%+v", got)
	}
}

func TestBenchView(t *testing.T) {
	rep := &bench.Report{
		Broker:     bench.Broker{Product: "FireMQ 0.1.0", Protocol: "FMQ1"},
		Parameters: bench.Parameters{Publishers: 1, Consumers: 2, Queues: 1, Size: 256, Persistent: true},
		Measured:   10, PublishRate: 1234567.8, ConfirmRate: 1234567, ConsumeRate: 999.6, ConsumedBytes: 255897,
		Published: 12345678, Lost: 1, Unsent: 2000, Pauses: 3,
		Latency:        bench.Latency{Count: 5, P50: 1, P90: 10, P95: 100, P99: 1000, P999: 10_000, Max: 100_000},
		ConfirmLatency: bench.Latency{Count: 5, P50: 1, P90: 10, P95: 100, P99: 1000, P999: 10_000, Max: 100_000},
		ClientCPU:      0.25,
		BrokerUsage:    &bench.Usage{CPU: 5, PerDelivered: 1.125, Cores: 0.5, PeakRSS: 20 << 20},
	}
	var b bytes.Buffer
	v := &benchView{live: &b, out: &b, total: map[bench.Phase]time.Duration{bench.Measure: 10 * time.Second}}
	v.second(bench.Second{Phase: bench.Measure, Elapsed: 5, Published: 1000, Consumed: 999, P50: 120, P99: 1500})
	v.second(bench.Second{Phase: bench.Drain, Elapsed: 1, Consumed: 999, Backlog: 5000})
	v.clear()
	if err := v.report(rep); err != nil {
		t.Fatal(err)
	}
	want := `measure
   5.0 s         1,000 published/s           999 consumed/s  p50   0.12  p99   1.50 ms
drain
   1.0 s             0 published/s           999 consumed/s  p50   0.00  p99   0.00 ms  5,000 to come

FireMQ 0.1.0 over FMQ1, persistent messages of 256 bytes, 1 publisher, 2 consumers, 1 queue, 10.0 s
  published     1,234,568/s
  confirmed     1,234,567/s
  consumed          1,000/s  0.3 MB/s
  broker             1.12 us of CPU per message, 0.50 cores, peak RSS 20.0 MiB
  client             0.25 us of CPU per message

  latency in ms       p50       p90       p95       p99     p99.9       max
  delivery          0.001     0.010     0.100     1.000    10.000   100.000
  confirm           0.001     0.010     0.100     1.000    10.000   100.000

  the rate was not reached: 2,000 due messages were not sent, for want of confirms

  the broker made publishers wait 3 times

  12,345,678 published, 1 lost, 0 duplicated
`
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestBenchChart(t *testing.T) {
	var b bytes.Buffer
	width := 120
	v := &benchView{live: &b, out: &b, chart: true, width: func() int { return width }, total: map[bench.Phase]time.Duration{bench.Measure: 10 * time.Second}}
	for n := range 3 * chartColumns {
		b.Reset()
		v.second(bench.Second{Phase: bench.Measure, Elapsed: 5, Published: float64(n), Consumed: float64(n + 1), P99: 1000})
	}
	got := b.String()
	if up := fmt.Sprintf("\x1b[%dF\x1b[J", chartRows+4); !strings.HasPrefix(got, up) {
		t.Errorf("does not replace the chart before: %q", got)
	}
	if n := strings.Count(got, "\n"); n != chartRows+4 {
		t.Errorf("%d lines:\n%s", n, got)
	}
	for _, want := range []string{"192 consumed/s", "         192/s ", "p99 1.00 ms " + strings.Repeat("█", chartColumns), " 50 %"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	v.second(bench.Second{Phase: bench.Drain, Backlog: 77})
	if !strings.Contains(b.String(), "77 to come") {
		t.Errorf("no backlog in\n%s", b.String())
	}
	// The terminal becomes narrower: no line reaches its end.
	for width = 100; width >= chartLeast; width-- {
		b.Reset()
		v.second(bench.Second{Phase: bench.Measure, Elapsed: 99999, Published: 99_999_999, Consumed: 99_999_999, P50: 600e6, P99: 600e6})
		_, drawn, _ := strings.Cut(b.String(), "\x1b[J")
		for line := range strings.Lines(drawn) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n >= width {
				t.Errorf("%d columns of %d: %s", n, width, line)
			}
		}
	}
	b.Reset()
	v.second(bench.Second{Phase: bench.Measure})
	if _, line, ok := strings.Cut(b.String(), "\x1b[J"); !ok || !strings.HasPrefix(line, "measure\n") || strings.Contains(line, "\x1b") {
		t.Errorf("too narrow for a chart: %q", b.String())
	}
}

func TestBenchLimits(t *testing.T) {
	for _, c := range []struct{ flags, want string }{
		{"--max-p99 1m", ""},
		{"--consumers 0 --min-rate 1 --max-p99 1m", ""}, // with consumers the last confirm may be there before the first delivery
		{"--min-rate 1e9", "below --min-rate 1,000,000,000"},
		{"--max-p99 1ns", "p99 of delivery is "},
		{"--consumers 0 --min-rate 1e9", "below --min-rate"},
		{"--consumers 0 --max-p99 1ns", "p99 of confirms is "},
	} {
		got := runWith(t.Context(), nil, "", append(strings.Fields("bench --embedded --count 200 --quiet"), strings.Fields(c.flags)...)...)
		if (got.status == 0) != (c.want == "") || !strings.Contains(got.err, c.want) || !strings.Contains(got.out, "200 published") {
			t.Errorf("%s: status %d, error %q, output\n%s", c.flags, got.status, got.err, got.out)
		}
	}
}

func TestBenchSizes(t *testing.T) {
	got := runWith(t.Context(), nil, "", "bench", "--embedded", "--size", "100,300", "--count", "50", "--quiet")
	if got.status != 0 || !strings.Contains(got.out, " messages of 200 bytes on average, ") {
		t.Errorf("status %d, error %q, output\n%s", got.status, got.err, got.out)
	}
}

// TestBenchOptions has a real broker, over both protocols, with everything that a load can be made of.
func TestBenchOptions(t *testing.T) {
	for _, flags := range []string{
		"--exchange-type topic --keys 7 --queues 3 --publishers 2 --consumers 2",
		"--exchange-type direct --keys 3 --queues 2 --persistent",
		"--exchange-type fanout --queues 3 --consumers 2",
		"--exchange-type x-consistent-hash --queues 4 --consumers 4 --publishers 2",
		"--exchange-type x-random --queues 3 --consumers 2",
		"--no-confirms --size 100,70000",
		"--no-confirms --persistent --publishers 3",
		"--auto-ack --queues 2",
		"--multiple-acks --work 20us",
		"--work 50us --consumers 2 --prefetch 1",
		"--consume-rate 5000 --consumers 2",
		"--priority 4 --ttl 1h -H a=1 -H b=text --arg x-max-priority=9 --arg x-queue-type=classic",
		"--arg x-queue-type=quorum --persistent",
		"--queue-name load-%d --queues 3 --jitter --rate 20000",
		"--window 1",
	} {
		for _, protocol := range []string{"", " --amqp"} {
			t.Run(flags+protocol, func(t *testing.T) {
				t.Parallel()
				got := runWith(t.Context(), nil, "", strings.Fields("bench --embedded --count 1000 --json --quiet "+flags+protocol)...)
				var rep bench.Report
				if err := json.Unmarshal([]byte(got.out), &rep); err != nil || got.status != 0 {
					t.Fatalf("%v: status %d, error %q", err, got.status, got.err)
				}
				copies := 1
				if strings.Contains(flags, "fanout") {
					copies = 3
				}
				if rep.Published != 1000 || rep.Consumed != uint64(1000*copies) || rep.Left > 0 || (rep.Confirmed == 0) != strings.Contains(flags, "--no-confirms") {
					t.Errorf("%d published, %d confirmed, %d consumed, %d left", rep.Published, rep.Confirmed, rep.Consumed, rep.Left)
				}
			})
		}
	}
}

// TestBenchQueueArguments: the broker heeds the arguments.
func TestBenchQueueArguments(t *testing.T) {
	for flags, want := range map[string]string{"--arg x-max-length=-1": "x-max-length", "--arg x-max-length=10 --consumers 0": "490 lost"} {
		for _, protocol := range []string{"", " --amqp"} {
			got := runWith(t.Context(), nil, "", strings.Fields("bench --embedded --count 500 --quiet "+flags+protocol)...)
			if got.status != exitFailure || !isOneLine(got.err) || !strings.Contains(got.err, want) {
				t.Errorf("%s%s: status %d, error %q", flags, protocol, got.status, got.err)
			}
		}
	}
}

// TestBenchProperties: a client sees the properties of the messages.
func TestBenchProperties(t *testing.T) {
	fire, amqp, _ := startBroker(t)
	conn, err := amqp091.Dial(amqp)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{fire, amqp} {
		got := runWith(t.Context(), nil, "", strings.Fields("bench --quiet --consumers 0 --count 1 --keep --queue-name props --persistent --priority 7 --ttl 90s -H n=12 -H s=text --url "+url)...)
		if got.status != 0 {
			t.Fatalf("status %d, error %q", got.status, got.err)
		}
		m, ok, err := ch.Get("props", true)
		if err != nil || !ok || m.Priority != 7 || m.Expiration != "90000" || m.DeliveryMode != amqp091.Persistent || m.Headers["n"] != int64(12) || m.Headers["s"] != "text" {
			t.Errorf("%s: %v, %t, priority %d, expiration %q, mode %d, headers %v", url, err, ok, m.Priority, m.Expiration, m.DeliveryMode, m.Headers)
		}
	}
}

func TestBenchSteps(t *testing.T) {
	sheet := filepath.Join(t.TempDir(), "seconds.csv")
	got := runWith(t.Context(), nil, "", "bench", "--embedded", "--rate-steps", "2000:100ms,0:0.3", "--duration", "1.2", "--warmup", "0", "--quiet", "--csv", sheet)
	if got.status != 0 || !strings.Contains(got.out, ", in turn 2,000 a second for 100ms, 0 a second for 300ms, ") {
		t.Errorf("status %d, error %q, output\n%s", got.status, got.err, got.out)
	}
	raw, err := os.ReadFile(sheet)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if len(lines) < 2 || lines[0] != "run,rate,phase,elapsed_s,published_s,consumed_s,backlog,p50_us,p99_us" || !strings.HasPrefix(lines[1], "1,0,measure,1") || strings.Count(lines[1], ",") != 8 {
		t.Errorf("%q", lines)
	}
	for text, want := range map[string]string{"1000": "1000:10s", "x:1s": "1000:10s", "10:soon": "neither seconds", "0:1s": "less than one message", "1:0s": "no time"} {
		got := runWith(t.Context(), nil, "", "bench", "--embedded", "--rate-steps", text)
		if got.status != exitUsage || !isOneLine(got.err) || !strings.Contains(got.err, want) {
			t.Errorf("%s: status %d, error %q", text, got.status, got.err)
		}
	}
}

// TestBenchOutlivesTheBroker: what was measured before the broker went away is reported.
func TestBenchOutlivesTheBroker(t *testing.T) {
	for _, rates := range []string{"1000", "1000,2000"} {
		s, err := server.Start(t.Context(), server.Options{AMQP: "off", Fire: "127.0.0.1:0", HTTP: "off", Ephemeral: true})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(1500*time.Millisecond, func() {
			ctx, cancel := context.WithCancel(context.Background())
			cancel() // at once
			s.Shutdown(ctx)
		})
		page, sheet := filepath.Join(t.TempDir(), "report.html"), filepath.Join(t.TempDir(), "seconds.csv")
		got := runWith(t.Context(), nil, "", "bench", "--url", "fire://"+s.FireAddr().String(), "--rate", rates, "--warmup", "0", "--duration", "1h", "--quiet", "--html", page, "--csv", sheet)
		want := "published and "
		if rates != "1000" {
			want = "published     consumed"
		}
		if got.status != exitFailure || !isOneLine(got.err) || !strings.Contains(got.out, want) {
			t.Errorf("--rate %s: status %d, error %q, output\n%s", rates, got.status, got.err, got.out)
		}
		for path, want := range map[string]string{page: "the run broke", sheet: ",measure,1"} {
			if raw, err := os.ReadFile(path); err != nil || !strings.Contains(string(raw), want) {
				t.Errorf("%s: %v, %q", path, err, raw)
			}
		}
	}
}

// TestBenchSaysAtOnce: what cannot be, or cannot be written at the end, ends it before the load.
func TestBenchSaysAtOnce(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		flags, want string
		status      int
	}{
		{"--publishers 0", "--publishers 0 makes no load", exitUsage},
		{"--prefetch 0", "--prefetch 0 makes no load", exitUsage},
		{"--rate 100,200 --ramp-to 300", "--ramp-to begins at one rate", exitUsage},
		{"--csv -", "--csv takes a file", exitUsage},
		{"--html " + dir + "/none/report.html", "--html: open " + dir, exitFailure},
		{"--csv " + dir, "--csv: open " + dir, exitFailure},
	} {
		got := runWith(t.Context(), nil, "", strings.Fields("bench --url fire://127.0.0.1:1 "+c.flags)...)
		if got.status != c.status || !isOneLine(got.err) || !strings.Contains(got.err, c.want) {
			t.Errorf("%s: status %d, error %q", c.flags, got.status, got.err)
		}
	}
	// A run that does not come about leaves no empty report.
	got := runWith(t.Context(), nil, "", "bench", "--url", "fire://127.0.0.1:1", "--csv", filepath.Join(dir, "seconds.csv"))
	if left, _ := os.ReadDir(dir); len(left) > 0 || got.status != exitFailure {
		t.Errorf("status %d, left %v", got.status, left)
	}
}

// TestBenchPredeclared: the queue is another one's, is used, and stays.
func TestBenchPredeclared(t *testing.T) {
	fire, amqp, _ := startBroker(t)
	for _, args := range [][]string{
		{"--url", amqp, "--queue-name", "mine", "--keep", "--count", "10"},
		{"--url", amqp, "--consume-url", fire, "--queue-name", "mine", "--predeclared", "--count", "500"},
		{"--url", fire, "--consume-url", amqp, "--queue-name", "mine", "--predeclared", "--count", "500", "--no-confirms"},
	} {
		got := runWith(t.Context(), nil, "", append([]string{"bench", "--quiet"}, args...)...)
		if got.status != 0 || !strings.Contains(got.out, " published, 0 lost, 0 duplicated") {
			t.Errorf("%v: status %d, error %q, output\n%s", args, got.status, got.err, got.out)
		}
	}
	got := runWith(t.Context(), nil, "", "bench", "--quiet", "--url", amqp, "--queue-name", "nobodys", "--predeclared", "--count", "10")
	if got.status != exitFailure || !isOneLine(got.err) {
		t.Errorf("a queue that is not there: status %d, error %q", got.status, got.err)
	}
}

func TestBenchRamp(t *testing.T) {
	got := runWith(t.Context(), nil, "", "bench", "--embedded", "--rate", "100", "--ramp-to", "900", "--duration", "0.5", "--warmup", "0", "--quiet")
	if got.status != 0 || !strings.Contains(got.out, ", 100 to 900 a second, ") {
		t.Errorf("status %d, error %q, output\n%s", got.status, got.err, got.out)
	}
}

func TestBlocks(t *testing.T) {
	for _, c := range []struct {
		values []float64
		rows   int
		want   string
	}{
		{[]float64{0, 1, 2, 4, 8}, 1, " ▁▂▄█"},
		{[]float64{0, 4, 8}, 2, "  █| ██"},
		{[]float64{0, 0}, 1, "  "},
	} {
		if got := strings.Join(blocks(c.values, c.rows), "|"); got != c.want {
			t.Errorf("%v: %q, want %q", c.values, got, c.want)
		}
	}
}

func TestBenchPresets(t *testing.T) {
	for _, p := range presets {
		c := newBench(terminal{})
		if err := applyPreset(p.name, c.Flags()); err != nil {
			t.Error(err)
		}
	}
	got := runWith(t.Context(), nil, "", "bench", "--embedded", "--preset", "drain", "--backlog", "5000", "--persistent=false")
	if got.status != 0 || !strings.Contains(got.out, "5,000 messages in ") || !strings.Contains(got.out, "5,000 published, 0 lost") ||
		!strings.Contains(got.out, "transient") {
		t.Errorf("status %d, error %q, output\n%s", got.status, got.err, got.out)
	}
	got = runWith(t.Context(), nil, "", "bench", "--preset", "slow")
	if got.status != exitUsage || !isOneLine(got.err) || !strings.Contains(got.err, "persistent-4x4") {
		t.Errorf("status %d, error %q", got.status, got.err)
	}
}

func TestBenchRates(t *testing.T) {
	page := filepath.Join(t.TempDir(), "report.html")
	got := runWith(t.Context(), nil, "", "bench", "--embedded", "--rate", "500,1000", "--duration", "1.1", "--warmup", "0", "--html", page)
	if got.status != 0 || strings.Count(got.out, "\n         500 ") != 1 || strings.Contains(got.out, " 0 lost") {
		t.Errorf("status %d, error %q, output\n%s", got.status, got.err, got.out)
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(html), "<svg"); n != 1+2*2 {
		t.Errorf("%d charts in the page, want the curve and two of each run", n)
	}
	for _, banned := range []string{"src=", "href=", "@import", "ZgotmplZ", "<no value>"} {
		if strings.Contains(string(html), banned) {
			t.Errorf("the page has %s", banned)
		}
	}
	got = runWith(t.Context(), nil, "", "bench", "--embedded", "--rate", "500,1000", "--count", "50", "--json", "--quiet")
	var reports []bench.Report
	for d := json.NewDecoder(strings.NewReader(got.out)); d.More(); {
		var rep bench.Report
		if err := d.Decode(&rep); err != nil {
			t.Fatal(err)
		}
		reports = append(reports, rep)
	}
	if len(reports) != 2 || reports[0].Published != 50 || reports[1].Parameters.Rate != 1000 || got.err != "" {
		t.Errorf("status %d, error %q, output\n%s", got.status, got.err, got.out)
	}
}

func TestSeconds(t *testing.T) {
	for text, want := range map[string]time.Duration{"30": 30 * time.Second, "0.5": 500 * time.Millisecond, "1m30s": 90 * time.Second, "0": 0} {
		var d time.Duration
		if err := newSeconds(&d, time.Hour).Set(text); err != nil || d != want {
			t.Errorf("%s: %s, %v", text, d, err)
		}
	}
	var d time.Duration
	if err := newSeconds(&d, time.Hour).Set("soon"); err == nil || d != time.Hour {
		t.Errorf("soon: %s, %v", d, err)
	}
}

func TestBenchDurationOfZero(t *testing.T) {
	got := runWith(t.Context(), nil, "", "bench", "--embedded", "--duration", "0")
	if got.status != exitUsage || !isOneLine(got.err) || !strings.Contains(got.err, "--duration") {
		t.Errorf("status %d, error %q", got.status, got.err)
	}
}
