package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/firemq/firemq/bench"
	"github.com/firemq/firemq/server"
	"github.com/spf13/cobra"
)

func newBench(t terminal) *cobra.Command {
	var (
		o              bench.Options
		url            string
		embedded, amqp bool
		trusted        trust
		asJSON, quiet  bool
	)
	c := &cobra.Command{
		Use:   "bench",
		Short: "Put load on a broker and measure throughput and latency",
		Long: `Bench publishes to queues of its own, consumes from them, and checks that every message
arrives exactly once. It prints what was published and consumed every second, then the averages
and the latencies from publish to delivery and from publish to confirm.

It speaks the FireMQ protocol, or AMQP 0-9-1 with --amqp or an amqp:// URL: to any broker.
The exit status is 1 if a message was lost, duplicated or refused.`,
		Example: `  firemq bench --embedded
  firemq bench --publishers 4 --consumers 4 --size 1024 --duration 30s
  firemq bench --persistent --rate 1000
  firemq bench --url amqp://guest:guest@localhost:5672 --json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if embedded && (c.Flags().Changed("url") || o.BrokerPID != 0) {
				return usagef("--embedded starts a broker in this process: leave out --url and --broker-pid")
			}
			if err := fromEnv(t, c.Flags()); err != nil {
				return err
			}
			if o.Duration == 0 { // to package bench it is the default
				return usagef("--duration 0 measures nothing: see %s --help", c.CommandPath())
			}
			ctx, stop := interruptible(c.Context())
			defer stop()
			if amqp && !embedded && url != "" && !strings.HasPrefix(url, "amqp") {
				return usagef("--amqp does not fit the URL %q", url)
			}
			o.URL, o.Version = url, server.Version
			o.CAFile, o.Insecure = trusted.caFile, trusted.insecure
			if url == "" && amqp {
				o.URL = "amqp://localhost"
			} else if url == "" {
				o.URL = "fire://localhost"
			}
			v := newBenchView(t, asJSON, quiet, o)
			o.Live = v.second
			if embedded {
				s, addr, err := startEmbedded(ctx, o.Persistent, amqp)
				if err != nil {
					return err
				}
				defer s()
				o.URL = addr
			}
			rep, err := bench.Run(ctx, o)
			v.clear()
			if wrong, ok := errors.AsType[*bench.UsageError](err); ok {
				return usagef("%s: see %s --help", wrong, c.CommandPath())
			}
			if err != nil {
				return err
			}
			if err := v.report(rep); err != nil {
				return err
			}
			return rep.Err()
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.BoolVar(&embedded, "embedded", false, "start a broker in this process: in memory, with --persistent in a temporary directory")
	f.StringVar(&url, "url", "", "the broker, `fire://user:pass@host:port/vhost` or amqp://..., fires:// or amqps:// over TLS, ws:// or wss:// over WebSocket (default: this machine)")
	withEnv(f, "url")
	trusted.add(f)
	f.BoolVar(&amqp, "amqp", false, "speak AMQP 0-9-1 instead of the FireMQ protocol")
	f.IntVarP(&o.Publishers, "publishers", "p", 1, "connections that publish")
	f.IntVarP(&o.Consumers, "consumers", "c", 1, "connections that consume; 0: the messages stay until the end")
	f.IntVarP(&o.Queues, "queues", "q", 1, "queues, shared out among publishers and consumers")
	f.BoolVar(&o.Fanout, "fanout", false, "publish to a fanout exchange: each queue gets every message")
	f.IntVarP(&o.Size, "size", "s", 256, fmt.Sprintf("`bytes` of a body, at least %d", bench.MinSize))
	f.VarP(newSeconds(&o.Duration, 10*time.Second), "duration", "d", "measured time, in seconds or as 1m30s")
	f.Var(newSeconds(&o.Warmup, time.Second), "warmup", "load before the measured time")
	f.BoolVar(&o.Persistent, "persistent", false, "persistent messages; a confirm then means on disk")
	f.IntVarP(&o.Window, "window", "w", 1000, "unconfirmed messages in flight, a publisher")
	f.IntVar(&o.Prefetch, "prefetch", 1000, "unacknowledged messages, a consumer and queue")
	f.BoolVar(&o.Multiple, "multiple-acks", false, "acknowledge what came together with one ack, not each message")
	f.Float64VarP(&o.Rate, "rate", "r", 0, "messages per second of all publishers; 0: as many as the window lets through")
	f.IntVar(&o.BrokerPID, "broker-pid", 0, "measure CPU time and memory of this process and its children (Linux)")
	f.BoolVar(&asJSON, "json", false, "print the report as JSON, parameters and versions included, and nothing else on standard output")
	f.BoolVar(&quiet, "quiet", false, "no line every second")
	return c
}

// interruptible ends with the first Ctrl-C or SIGTERM; the second ends the process.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // from here on signals do again what they do by default
	return ctx, stop
}

// embeddedStop bounds the end of a broker that bench started.
const embeddedStop = 8 * time.Second

// startEmbedded runs a broker on a free port, in memory unless it should be durable.
func startEmbedded(ctx context.Context, durable, amqp bool) (stop func(), url string, err error) {
	const free = "127.0.0.1:0"
	o := server.Options{
		AMQP: "off", Fire: "off", HTTP: "off", Ephemeral: !durable,
		DefaultUser: "guest", DefaultPass: "guest", LoopbackUsers: []string{},
		Log: slog.New(slog.DiscardHandler), Version: server.Version,
	}
	if amqp {
		o.AMQP = free
	} else {
		o.Fire = free
	}
	if durable {
		if o.Data, err = os.MkdirTemp("", "firemq-bench-"); err != nil {
			return nil, "", fmt.Errorf("make a data directory: %w", err)
		}
	}
	// The broker outlives ctx: a run that is interrupted still drains.
	s, err := server.Start(context.WithoutCancel(ctx), o)
	if err != nil {
		removeAll(o.Data)
		return nil, "", fmt.Errorf("start the embedded broker: %w", err)
	}
	stop = func() {
		limit, cancel := context.WithTimeout(context.Background(), embeddedStop)
		defer cancel()
		s.Shutdown(limit)
		removeAll(o.Data)
	}
	if amqp {
		return stop, "amqp://" + s.AMQPAddr().String(), nil
	}
	return stop, "fire://" + s.FireAddr().String(), nil
}

func removeAll(dir string) {
	if dir != "" {
		os.RemoveAll(dir)
	}
}

// seconds is a duration flag: "30" and "30s" are the same.
type seconds struct{ d *time.Duration }

func newSeconds(d *time.Duration, value time.Duration) seconds {
	*d = value
	return seconds{d}
}

func (s seconds) String() string {
	if s.d == nil {
		return ""
	}
	return s.d.String()
}

func (s seconds) Type() string { return "seconds" }

func (s seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		if d, err = time.ParseDuration(text + "s"); err != nil {
			return fmt.Errorf("%q is neither seconds nor a duration such as 1m30s", text)
		}
	}
	*s.d = d
	return nil
}

// benchView prints a run: lines and a progress bar while it goes on, then the report.
type benchView struct {
	live   io.Writer // nil: no lines
	out    io.Writer
	asJSON bool
	style  style
	bar    bool // a person watches: redraw a bar below the lines
	phase  bench.Phase
	drawn  bool
	total  map[bench.Phase]time.Duration
}

func newBenchView(t terminal, asJSON, quiet bool, o bench.Options) *benchView {
	v := &benchView{out: t.out, asJSON: asJSON, style: style{on: t.color()}, bar: isTerminal(t.out),
		total: map[bench.Phase]time.Duration{bench.Warmup: o.Warmup, bench.Measure: o.Duration}}
	switch {
	case quiet:
	case asJSON: // standard output is the report's alone
		v.live, v.bar, v.style.on = t.err, false, false
	default:
		v.live = t.out
	}
	return v
}

func (v *benchView) second(s bench.Second) {
	if v.live == nil {
		return
	}
	v.clear()
	if s.Phase != v.phase {
		v.phase = s.Phase
		fmt.Fprintf(v.live, "%s\n", v.style.dim(string(s.Phase)))
	}
	fmt.Fprintf(v.live, "%6.1f s  %s published/s  %s consumed/s", s.Elapsed, thousands(s.Published, 12), thousands(s.Consumed, 12))
	if s.Phase == bench.Drain {
		fmt.Fprintf(v.live, "  %s to come", thousands(float64(s.Backlog), 0))
	}
	fmt.Fprintln(v.live)
	if total := v.total[s.Phase]; v.bar && total > 0 {
		fmt.Fprint(v.live, v.style.bar(s.Elapsed/total.Seconds()))
		v.drawn = true
	}
}

// clear takes the bar away.
func (v *benchView) clear() {
	if v.drawn {
		fmt.Fprint(v.live, "\r\x1b[K")
		v.drawn = false
	}
}

func (v *benchView) report(rep *bench.Report) error {
	if v.asJSON {
		e := json.NewEncoder(v.out)
		e.SetIndent("", "  ")
		return e.Encode(rep)
	}
	var b strings.Builder
	p := rep.Parameters
	kind := "transient"
	if p.Persistent {
		kind = "persistent"
	}
	fmt.Fprintf(&b, "\n%s\n", v.style.bold(fmt.Sprintf("%s over %s, %s messages of %d bytes, %s, %s, %s, %.1f s",
		rep.Broker.Product, rep.Broker.Protocol, kind, p.Size,
		count(p.Publishers, "publisher"), count(p.Consumers, "consumer"), count(p.Queues, "queue"), rep.Measured)))
	fmt.Fprintf(&b, "  published  %s/s\n", thousands(rep.PublishRate, 12))
	fmt.Fprintf(&b, "  confirmed  %s/s\n", thousands(rep.ConfirmRate, 12))
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
	if rep.Err() == nil {
		counts = v.style.green(counts)
	} else {
		counts = v.style.red(counts)
	}
	fmt.Fprintf(&b, "\n  %s\n", counts)
	_, err := io.WriteString(v.out, b.String())
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
