package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
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
		rates          []float64
		args, headers  []string
		preset         string
		page, sheet    string
		limits         limits
	)
	c := &cobra.Command{
		Use:   "bench",
		Short: "Put load on a broker and measure throughput and latency",
		Long: `Bench publishes to queues of its own, consumes from them, and checks that every message
arrives exactly once. It shows what was published and consumed every second, then the averages
and the latencies from publish to delivery and from publish to confirm.

It speaks the FireMQ protocol, or AMQP 0-9-1 with --amqp or an amqp:// URL to any broker.
The exit status is 1 if a message was lost, duplicated or refused, or a --min-rate or --max-p99 was missed.

Presets are loads with a name; flags given beside one replace what it says:
` + presetTable(),
		Example: `  firemq bench --embedded
  firemq bench --publishers 4 --consumers 4 --size 1024 --duration 30s
  firemq bench --preset fanout --duration 30s --html report.html
  firemq bench --persistent --rate 1000,10000,100000
  firemq bench --rate 1000 --ramp-to 500000 --duration 60s
  firemq bench --persistent --rate 5000 --max-p99 20ms
  firemq bench --rate-steps 1000:10s,50000:2s --jitter --work 100us --consumers 8
  firemq bench --persistent --backlog 1000000 --drain
  firemq bench --url amqp://guest:guest@localhost:5672 --json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if embedded && (c.Flags().Changed("url") || o.ConsumeURL != "" || o.BrokerPID != 0) {
				return usagef("--embedded starts a broker in this process: leave out --url, --consume-url and --broker-pid")
			}
			if c.Flags().Changed("rate") && o.Steps != nil {
				return usagef("--rate and --rate-steps: give one of them")
			}
			if err := fromEnv(t, c.Flags()); err != nil {
				return err
			}
			if preset != "" {
				if err := applyPreset(preset, c.Flags()); err != nil {
					return err
				}
			}
			for _, name := range []string{"publishers", "queues", "window", "prefetch"} { // to package bench 0 is the default
				if f := c.Flags().Lookup(name); f.Changed && f.Value.String() == "0" {
					return usagef("--%s 0 makes no load: see %s --help", name, c.CommandPath())
				}
			}
			if o.Duration == 0 {
				return usagef("--duration 0 measures nothing: see %s --help", c.CommandPath())
			}
			if len(rates) > 1 && o.RampTo > 0 {
				return usagef("--ramp-to begins at one rate: see %s --help", c.CommandPath())
			}
			for flag, path := range map[string]string{"html": page, "csv": sheet} {
				if err := creatable(flag, path); err != nil {
					return err
				}
			}
			if o.Count > 0 && !c.Flags().Changed("duration") {
				o.Duration = 0 // as long as it takes
			}
			if (o.Count > 0 || o.Drain) && !c.Flags().Changed("warmup") {
				o.Warmup = 0
			}
			var err error
			if o.QueueArguments, err = keyValues("arg", args); err != nil {
				return err
			}
			if o.Headers, err = keyValues("header", headers); err != nil {
				return err
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
			if embedded {
				s, addr, err := startEmbedded(ctx, o.Persistent, amqp)
				if err != nil {
					return err
				}
				defer s()
				o.URL = addr
			}
			reports, err := measure(ctx, t, o, rates, asJSON, quiet)
			if wrong, ok := errors.AsType[*bench.UsageError](err); ok {
				return usagef("%s: see %s --help", wrong, c.CommandPath())
			}
			if err != nil {
				return err
			}
			if page != "" {
				if err := writePage(page, reports); err != nil {
					return err
				}
			}
			if sheet != "" {
				if err := writeSheet(sheet, reports); err != nil {
					return err
				}
			}
			for _, rep := range reports {
				if err := cmp.Or(rep.Err(), limits.check(rep)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&preset, "preset", "", "a load with a `name`, listed above")
	f.BoolVar(&embedded, "embedded", false, "start a broker in this process: in memory, with --persistent in a temporary directory")
	f.StringVar(&url, "url", "", "the broker, `fire://user:pass@host:port/vhost` or amqp://..., fires:// or amqps:// over TLS, ws:// or wss:// over WebSocket; for reference nats:// or jetstream:// (default: this machine)")
	withEnv(f, "url")
	f.StringVar(&o.ConsumeURL, "consume-url", "", "where consumers connect, perhaps over another protocol (default: the --url)")
	trusted.add(f)
	f.BoolVar(&amqp, "amqp", false, "speak AMQP 0-9-1 instead of the FireMQ protocol")
	f.IntVarP(&o.Publishers, "publishers", "p", 1, "connections that publish")
	f.IntVarP(&o.Consumers, "consumers", "c", 1, "connections that consume; 0: the messages stay until the end")
	f.IntVarP(&o.Queues, "queues", "q", 1, "queues, shared out among publishers and consumers")
	f.StringVar(&o.ExchangeType, "exchange-type", "", "publish to an exchange of this `type`: direct or topic, each key for one queue; fanout, every message to each queue; x-consistent-hash or x-random, to one of them")
	f.IntVar(&o.Keys, "keys", 0, "routing keys for each queue, or for all of a hash, in turn (default 1, of a hash 1,000)")
	f.IntSliceVarP(&o.Sizes, "size", "s", []int{256}, fmt.Sprintf("`bytes` of a body, at least %d; several, as 100,2000,50000: in turn", bench.MinSize))
	f.VarP(newSeconds(&o.Duration, 10*time.Second), "duration", "d", "measured time, in seconds or as 1m30s")
	f.Var(newSeconds(&o.Warmup, time.Second), "warmup", "load before the measured time")
	f.BoolVar(&o.Persistent, "persistent", false, "persistent messages; a confirm then means on disk")
	f.Uint8Var(&o.Priority, "priority", 0, "priority of the messages")
	f.DurationVar(&o.TTL, "ttl", 0, "time to live of a message; one that expires counts as lost")
	f.StringArrayVarP(&headers, "header", "H", nil, "an application header, `key=value`; again for more")
	f.IntVarP(&o.Window, "window", "w", 1000, "unconfirmed messages in flight, a publisher; 1: each waits for the confirm before it")
	f.BoolVar(&o.NoConfirms, "no-confirms", false, "publish without confirms, as fast as the broker reads")
	f.IntVar(&o.Prefetch, "prefetch", 1000, "unacknowledged messages, a consumer and queue")
	f.BoolVar(&o.Multiple, "multiple-acks", false, "acknowledge what came together with one ack, not each message")
	f.BoolVar(&o.AutoAck, "auto-ack", false, "consume without acks")
	f.DurationVar(&o.Work, "work", 0, "time that a consumer takes for each message before it acknowledges it, as 2ms")
	f.Float64Var(&o.ConsumeRate, "consume-rate", 0, "messages per second that all consumers take at most (default: all that come)")
	f.Float64SliceVarP(&rates, "rate", "r", nil, "`messages` per second of all publishers; several, as 1000,5000,20000: a run at each (default: as many as the window lets through)")
	f.Float64Var(&o.RampTo, "ramp-to", 0, "let --rate change steadily to this one over the measured time")
	f.Var((*steps)(&o.Steps), "rate-steps", "rates in one run, each for its time, over and over, as 1000:10s,50000:500ms,0:5s")
	f.BoolVar(&o.Jitter, "jitter", false, "publish at random moments: each message somewhere in its interval of the rate")
	f.Uint64Var(&o.Count, "count", 0, "end after this many messages of all publishers")
	f.Uint64Var(&o.Backlog, "backlog", 0, "publish this many messages before consumers and the measured time begin")
	f.BoolVar(&o.Drain, "drain", false, "publish nothing after the backlog: measure how it is consumed")
	f.StringVar(&o.QueueName, "queue-name", "", "the `name` of the queue, instead of one that nobody else has; of several with %d, as jobs-%d: jobs-0, jobs-1")
	f.StringArrayVar(&args, "arg", nil, "an argument of the queues, `key=value`, as x-queue-type=quorum; again for more")
	f.BoolVar(&o.Predeclared, "predeclared", false, "the queues of --queue-name are there, and empty: declare and delete nothing")
	f.BoolVar(&o.Keep, "keep", false, "leave the queues and what is in them")
	f.IntVar(&o.BrokerPID, "broker-pid", 0, "measure CPU time and memory of this process and its children (Linux)")
	f.Float64Var(&limits.rate, "min-rate", 0, "fail if fewer messages a second are consumed, or published where nothing is consumed")
	f.DurationVar(&limits.p99, "max-p99", 0, "fail if p99 of the delivery latency, or of confirms where nothing is consumed, is above this, as 5ms")
	f.BoolVar(&asJSON, "json", false, "print the report as JSON, parameters and versions included, and nothing else on standard output; with several rates, one a line")
	f.StringVar(&sheet, "csv", "", "write what every second shows to this `file`, a line each")
	f.Lookup("size").DefValue, f.Lookup("rate").DefValue = "256", "" // not as Go's slices
	f.StringVar(&page, "html", "", "write the report with its charts to this `file`, which needs no other")
	f.BoolVar(&quiet, "quiet", false, "no line every second")
	return c
}

// measure makes a run, or one at each of several rates, and prints its report. It ends early with ctx,
// or after a run that lost messages.
func measure(ctx context.Context, t terminal, o bench.Options, rates []float64, asJSON, quiet bool) ([]*bench.Report, error) {
	if len(rates) == 0 {
		rates = []float64{0}
	}
	var reports []*bench.Report
	for _, o.Rate = range rates {
		v := newBenchView(t, asJSON, quiet, o)
		v.compact = len(rates) > 1
		o.Live = v.second
		rep, err := bench.Run(ctx, o)
		v.clear()
		if err != nil {
			return nil, err
		}
		if err := v.report(rep); err != nil {
			return nil, err
		}
		if reports = append(reports, rep); rep.Err() != nil || ctx.Err() != nil {
			break
		}
	}
	if len(rates) > 1 && !asJSON {
		if err := printRates(t.out, reports); err != nil {
			return nil, err
		}
	}
	return reports, nil
}

// creatable says before a run whether the report that a flag asks for can be written after it; path may be empty.
func creatable(flag, path string) error {
	switch {
	case path == "":
		return nil
	case path == "-":
		return usagef("--%s takes a file: standard output is that of the report", flag)
	}
	_, missing := os.Lstat(path)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	f.Close()
	if missing != nil {
		os.Remove(path)
	}
	return nil
}

// limits are what a run has to reach; 0: anything.
type limits struct {
	rate float64 // messages a second
	p99  time.Duration
}

func (l limits) check(rep *bench.Report) error {
	rate, latency, of := rep.ConsumeRate, rep.Latency, "delivery"
	if rep.Parameters.Consumers == 0 {
		rate, latency, of = rep.PublishRate, rep.ConfirmLatency, "confirms"
	}
	if rate < l.rate {
		return fmt.Errorf("%s messages a second are below --min-rate %s", thousands(rate, 0), thousands(l.rate, 0))
	}
	if l.p99 > 0 && latency.Count == 0 {
		return fmt.Errorf("there is no latency for --max-p99: no message of the measured time arrived")
	}
	if p99 := time.Duration(latency.P99 * 1e3); l.p99 > 0 && p99 > l.p99 {
		return fmt.Errorf("p99 of %s is %s, above --max-p99 %s", of, p99.Round(time.Microsecond), l.p99)
	}
	return nil
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

// steps is a flag of rates and their times: "1000:10s,0:500ms".
type steps []bench.Step

func (s *steps) String() string {
	var all []string
	for _, step := range *s {
		all = append(all, fmt.Sprintf("%g:%s", step.Rate, step.For))
	}
	return strings.Join(all, ",")
}

func (s *steps) Type() string { return "rate:seconds,..." }

func (s *steps) Set(text string) error {
	*s = nil
	for one := range strings.SplitSeq(text, ",") {
		var step bench.Step
		rate, long, ok := strings.Cut(one, ":")
		var err error
		if step.Rate, err = strconv.ParseFloat(rate, 64); err != nil || !ok {
			return fmt.Errorf("%q is not a rate and its time, such as 1000:10s", one)
		}
		if err := (seconds{&step.For}).Set(long); err != nil {
			return err
		}
		*s = append(*s, step)
	}
	return nil
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
