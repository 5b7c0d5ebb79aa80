package bench

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// short is a run that is over soon.
func short(url string) Options {
	return Options{URL: url, Publishers: 1, Consumers: 1, Window: 100, Prefetch: 50, Duration: 50 * time.Millisecond, Patience: 30 * time.Second}
}

// counted is a run of a thousand messages, however busy the machine is.
func counted(url string) Options {
	o := short(url)
	o.Duration, o.Count = 0, 1000
	return o
}

func mustRun(t *testing.T, o Options) *Report {
	t.Helper()
	rep, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// urls runs a test over both protocols.
func urls(t *testing.T, f faults, test func(t *testing.T, b *fake, url string)) {
	t.Run("amqp", func(t *testing.T) { b := newFake(t, f); test(t, b, b.amqpURL()) })
	t.Run("fire", func(t *testing.T) { b := newFake(t, f); test(t, b, b.fireURL()) })
}

func TestRunDeliversEverything(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"one each":           func(o *Options) {},
		"smallest body":      func(o *Options) { o.Size = MinSize },
		"body of two copies": func(o *Options) { o.Size = tailCopy + 5000 },
		"bodies of all sizes": func(o *Options) {
			o.Sizes, o.Queues, o.Publishers, o.Consumers = []int{MinSize, tailCopy + 5000, 300}, 2, 2, 2
		},
		"body of two frames": func(o *Options) { o.Size, o.Window = 200_000, 5 },
		"four of each":       func(o *Options) { o.Publishers, o.Consumers = 4, 4 },
		"more queues":        func(o *Options) { o.Publishers, o.Consumers, o.Queues = 2, 3, 7 },
		"more clients":       func(o *Options) { o.Publishers, o.Consumers, o.Queues = 5, 6, 2 },
		"fanout":             func(o *Options) { o.Publishers, o.Consumers, o.Queues, o.ExchangeType = 2, 3, 4, "fanout" },
		"direct":             func(o *Options) { o.Publishers, o.Consumers, o.Queues, o.ExchangeType, o.Keys = 2, 3, 4, "direct", 3 },
		"topic":              func(o *Options) { o.Publishers, o.Consumers, o.Queues, o.ExchangeType, o.Keys = 2, 3, 4, "topic", 5 },
		"hash":               func(o *Options) { o.Publishers, o.Consumers, o.Queues, o.ExchangeType = 2, 3, 4, "x-consistent-hash" },
		"no acks":            func(o *Options) { o.AutoAck, o.Queues = true, 2 },
		"work":               func(o *Options) { o.Work, o.Consumers, o.Rate = 100*time.Microsecond, 2, 1000 },
		"work, a count":      func(o *Options) { o.Work, o.Duration, o.Count = time.Millisecond, 0, 40 },
		"consume rate":       func(o *Options) { o.ConsumeRate, o.Queues, o.Multiple = 5000, 2, true },
		"steps": func(o *Options) {
			o.Steps, o.Publishers = []Step{{4000, 7 * time.Millisecond}, {0, 3 * time.Millisecond}}, 2
		},
		"jitter":             func(o *Options) { o.Rate, o.Jitter = 2000, true },
		"properties":         func(o *Options) { o.Priority, o.TTL, o.Headers = 3, time.Minute, map[string]any{"a": 1, "b": "c"} },
		"names":              func(o *Options) { o.Queues, o.QueueName = 3, "a-%d-b" },
		"acks with multiple": func(o *Options) { o.Consumers, o.Queues, o.Multiple = 1, 3, true },
		"window of one":      func(o *Options) { o.Window, o.Prefetch = 1, 1 },
		"paced":              func(o *Options) { o.Rate, o.Publishers = 2000, 2 },
		"a ramp":             func(o *Options) { o.Rate, o.RampTo, o.Publishers, o.Warmup = 1000, 4000, 2, 20*time.Millisecond },
		"warmed up":          func(o *Options) { o.Warmup = 20 * time.Millisecond },
		"a count":            func(o *Options) { o.Duration, o.Count, o.Publishers = 0, 1001, 3 },
		"a count, paced":     func(o *Options) { o.Duration, o.Count, o.Rate = 0, 100, 5000 },
		"a backlog":          func(o *Options) { o.Backlog, o.Publishers, o.Queues = 1000, 3, 2 },
		"a backlog, paced":   func(o *Options) { o.Backlog, o.Rate, o.Publishers = 1000, 2000, 2 },
		"drained":            func(o *Options) { o.Backlog, o.Drain, o.Consumers = 1001, true, 2 },
		"drained, fanout":    func(o *Options) { o.Backlog, o.Drain, o.ExchangeType, o.Queues = 101, true, "fanout", 3 },
	} {
		t.Run(name, func(t *testing.T) {
			urls(t, faults{}, func(t *testing.T, b *fake, url string) {
				o := short(url)
				change(&o)
				rep := mustRun(t, o)
				for rep.Latency.Count == 0 && !o.Drain && o.Duration < 5*time.Second { // a busy machine did nothing in so short a time
					o.Duration *= 5
					rep = mustRun(t, o)
				}
				if err := rep.Err(); err != nil {
					t.Error(err)
				}
				if left := b.leftovers(); left != "" {
					t.Errorf("left at the broker: %s", left)
				}
				copies := uint64(1)
				if o.ExchangeType == "fanout" {
					copies = uint64(o.Queues)
				}
				if rep.Published == 0 || rep.Confirmed != rep.Published || rep.Consumed != rep.Published*copies || rep.Left != 0 {
					t.Errorf("published %d, confirmed %d, consumed %d, left %d", rep.Published, rep.Confirmed, rep.Consumed, rep.Left)
				}
				if want := o.Backlog + o.Count; o.Count > 0 && rep.Published != want || o.Drain && rep.Published != want {
					t.Errorf("published %d, want %d", rep.Published, want)
				}
				if f := rep.Fill; (f != nil) != (o.Backlog > 0) || f != nil && (f.Rate <= 0 || f.Seconds <= 0) {
					t.Errorf("fill %+v", f)
				}
				if o.Drain {
					return // nothing of it was published in the measured time
				}
				if rep.Latency.Count == 0 || rep.ConfirmLatency.Count == 0 || rep.Latency.Max < rep.Latency.P50 || rep.Latency.P50 <= 0 {
					t.Errorf("latency %+v, confirm latency %+v", rep.Latency, rep.ConfirmLatency)
				}
			})
		})
	}
}

func TestRunCountsLoss(t *testing.T) {
	urls(t, faults{drop: 100}, func(t *testing.T, b *fake, url string) {
		o := counted(url)
		o.Consumers, o.Patience = 2, 5*time.Second
		rep := mustRun(t, o)
		if want := rep.Published / 100; rep.Lost != want || want == 0 || rep.Duplicated != 0 {
			t.Errorf("of %d published %d lost and %d duplicated, want %d and 0", rep.Published, rep.Lost, rep.Duplicated, want)
		}
		if rep.Err() == nil {
			t.Error("the loss is not an error")
		}
	})
}

func TestRunCountsDuplicates(t *testing.T) {
	urls(t, faults{duplicate: 100}, func(t *testing.T, b *fake, url string) {
		o := counted(url)
		o.Consumers = 2
		rep := mustRun(t, o)
		if want := rep.Published / 100; rep.Duplicated != want || want == 0 || rep.Lost != 0 {
			t.Errorf("of %d published %d duplicated and %d lost, want %d and 0", rep.Published, rep.Duplicated, rep.Lost, want)
		}
		if rep.Err() == nil {
			t.Error("the duplicates are no error")
		}
	})
}

func TestRunCountsRefusals(t *testing.T) {
	urls(t, faults{refuse: 100}, func(t *testing.T, b *fake, url string) {
		rep := mustRun(t, counted(url))
		if want := rep.Published / 100; rep.Refused != want || want == 0 || rep.Lost != 0 || rep.Duplicated != 0 {
			t.Errorf("of %d published %d refused, %d lost, %d duplicated, want %d, 0, 0", rep.Published, rep.Refused, rep.Lost, rep.Duplicated, want)
		}
		if err := rep.Err(); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("error %v", err)
		}
	})
}

func TestRunWithoutConsumersCountsWhatIsLeft(t *testing.T) {
	urls(t, faults{drop: 100}, func(t *testing.T, b *fake, url string) {
		o := counted(url)
		o.Consumers, o.Queues = 0, 3
		rep := mustRun(t, o)
		if want := rep.Published / 100; rep.Lost != want || rep.Left != rep.Published-want || want == 0 {
			t.Errorf("of %d published %d lost and %d left, want %d lost", rep.Published, rep.Lost, rep.Left, want)
		}
	})
}

func TestRunWaitsWhilePaused(t *testing.T) {
	urls(t, faults{pause: 200}, func(t *testing.T, b *fake, url string) {
		rep := mustRun(t, counted(url))
		if err := rep.Err(); err != nil || rep.Pauses == 0 {
			t.Errorf("%d pauses, error %v", rep.Pauses, err)
		}
	})
}

func TestRunEndsWithTheBrokersWords(t *testing.T) {
	for name, c := range map[string]struct {
		faults   faults
		patience time.Duration
		want     string
	}{
		"closed":           {faults{end: 300}, 10 * time.Second, "INTERNAL_ERROR - told to"},
		"confirms missing": {faults{mute: 300}, time.Second, "no confirm after"},
		"strange body":     {faults{scramble: 300}, 10 * time.Second, "has not published"},
	} {
		t.Run(name, func(t *testing.T) {
			urls(t, c.faults, func(t *testing.T, b *fake, url string) {
				o := short(url)
				o.Patience, o.Duration = c.patience, 200*time.Millisecond
				o.Consumers, o.Publishers = 2, 2
				rep, err := Run(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				if err := rep.Err(); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want one with %q", err, c.want)
				}
				if rep.Published == 0 || rep.PublishRate <= 0 || rep.Lost > 0 {
					t.Errorf("published %d, %v a second, lost %d", rep.Published, rep.PublishRate, rep.Lost)
				}
				if c.faults.mute == 0 { // which shows at the end of a run alone
					o.Warmup = time.Hour // it breaks before there is something to report
					b.mu.Lock()
					b.published = 0
					b.mu.Unlock()
					if rep, err := Run(t.Context(), o); rep != nil || err == nil || !strings.Contains(err.Error(), c.want) {
						t.Errorf("in the warm-up: report %v, error %v, want one with %q", rep, err, c.want)
					}
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				if len(b.queues) != 0 {
					t.Errorf("%d queues left behind", len(b.queues))
				}
			})
		})
	}
}

// TestRunOverTwoProtocols publishes over one and consumes over the other.
func TestRunOverTwoProtocols(t *testing.T) {
	b := newFake(t, faults{})
	for _, urls := range [][2]string{{b.amqpURL(), b.fireURL()}, {b.fireURL(), b.amqpURL()}} {
		o := counted(urls[0])
		o.ConsumeURL = urls[1]
		rep := mustRun(t, o)
		if rep.Err() != nil || rep.Consumed != 1000 || !strings.Contains(rep.Broker.Protocol, ", consumed over ") {
			t.Errorf("%v: %v, %d consumed over %s", urls, rep.Err(), rep.Consumed, rep.Broker.Protocol)
		}
	}
}

func TestRunWithoutConfirms(t *testing.T) {
	urls(t, faults{}, func(t *testing.T, b *fake, url string) {
		o := counted(url)
		o.NoConfirms, o.Size = true, tailCopy+5000
		rep := mustRun(t, o)
		if rep.Err() != nil || rep.Consumed != 1000 || rep.Confirmed != 0 || rep.ConfirmRate != 0 || rep.ConfirmLatency.Count != 0 {
			t.Errorf("%v: %d consumed, %d confirmed, %v a second, %+v", rep.Err(), rep.Consumed, rep.Confirmed, rep.ConfirmRate, rep.ConfirmLatency)
		}
	})
}

// TestRunLeavesPredeclaredQueues has one queue of somebody else.
func TestRunLeavesPredeclaredQueues(t *testing.T) {
	urls(t, faults{}, func(t *testing.T, b *fake, url string) {
		b.mu.Lock()
		b.queues["theirs"] = &fakeQueue{}
		b.mu.Unlock()
		o := counted(url)
		o.QueueName, o.Predeclared = "theirs", true
		if rep := mustRun(t, o); rep.Err() != nil || rep.Consumed != 1000 {
			t.Errorf("%v: %d consumed", rep.Err(), rep.Consumed)
		}
		if left := b.leftovers(); left != "1 queues, 0 exchanges, 0 unacked deliveries" {
			t.Errorf("left: %q", left)
		}
	})
}

// TestWorkDelaysWhatCameWithIt: of 20 messages that come together the last has waited for the work of 19.
func TestWorkDelaysWhatCameWithIt(t *testing.T) {
	urls(t, faults{}, func(t *testing.T, b *fake, url string) {
		o := short(url)
		o.Duration, o.Count, o.Work = 0, 20, 5*time.Millisecond
		rep := mustRun(t, o)
		if least := 19 * 5000.0; rep.Latency.Max < least {
			t.Errorf("the longest latency is %.0f us, not even %.0f", rep.Latency.Max, least)
		}
	})
}

// TestConsumeRate takes no more than the rate allows over the measured time, and all of it after that.
func TestConsumeRate(t *testing.T) {
	urls(t, faults{}, func(t *testing.T, b *fake, url string) {
		o := short(url)
		o.Consumers, o.ConsumeRate, o.Duration = 2, 200, 300*time.Millisecond
		rep := mustRun(t, o)
		// Each may be lateness ahead, and one message.
		if most := 200*(rep.Measured+lateness.Seconds()) + 2; rep.ConsumeRate*rep.Measured > most || rep.Consumed != rep.Published {
			t.Errorf("%.0f consumed in %.3f s, more than %.0f; %d in the end of %d", rep.ConsumeRate*rep.Measured, rep.Measured, most, rep.Consumed, rep.Published)
		}
	})
}

func TestRunRefusesOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"scheme":               {URL: "http://localhost"},
		"no URL":               {},
		"size":                 {URL: "amqp://localhost", Size: MinSize - 1},
		"sizes":                {URL: "amqp://localhost", Sizes: []int{256, MinSize - 1}},
		"too many sizes":       {URL: "amqp://localhost", Sizes: make([]int, MaxSizes+1)},
		"window":               {URL: "amqp://localhost", Window: -1},
		"rate":                 {URL: "amqp://localhost", Rate: -1},
		"drain":                {URL: "amqp://localhost", Drain: true, Consumers: 1},
		"drain and publish":    {URL: "amqp://localhost", Drain: true, Consumers: 1, Backlog: 1, Count: 1},
		"one name, two queues": {URL: "amqp://localhost", Queues: 2, QueueName: "q"},
		"fanout over NATS":     {URL: "jetstream://localhost", ExchangeType: "fanout"},
		"exchange type":        {URL: "amqp://localhost", ExchangeType: "x-delayed-message"},
		"keys, no exchange":    {URL: "amqp://localhost", Keys: 2},
		"too many keys":        {URL: "amqp://localhost", ExchangeType: "topic", Queues: 1000, Keys: 101},
		"name without number":  {URL: "amqp://localhost", QueueName: "q%d%d", Queues: 2},
		"predeclared, unnamed": {URL: "amqp://localhost", Predeclared: true},
		"an argument's type":   {URL: "amqp://localhost", QueueArguments: map[string]any{"x": struct{}{}}},
		"long headers":         {URL: "amqp://localhost", Headers: map[string]any{"x": strings.Repeat("x", maxHeaders)}},
		"two kinds of acks":    {URL: "amqp://localhost", Multiple: true, AutoAck: true},
		"work of nobody":       {URL: "amqp://localhost", Work: 1},
		"long work":            {URL: "amqp://localhost", Consumers: 1, Work: MaxWork + 1},
		"one in two minutes":   {URL: "amqp://localhost", Consumers: 2, ConsumeRate: 1.0 / 60},
		"broken ttl":           {URL: "amqp://localhost", TTL: 1500 * time.Microsecond},
		"jitter of no rate":    {URL: "amqp://localhost", Jitter: true},
		"steps and a rate":     {URL: "amqp://localhost", Rate: 1, Steps: []Step{{1, time.Second}}},
		"steps of nothing":     {URL: "amqp://localhost", Steps: []Step{{0, time.Second}}},
		"a step of no time":    {URL: "amqp://localhost", Steps: []Step{{1, 0}}},
		"consumers over NATS":  {URL: "amqp://localhost", ConsumeURL: "nats://localhost"},
		"consumers elsewhere":  {URL: "amqp://localhost", ConsumeURL: "http://localhost"},
		"backlog of core NATS": {URL: "nats://localhost", Backlog: 1},
		"count":                {URL: "amqp://localhost", Count: MaxCount + 1},
		"ramp from nowhere":    {URL: "amqp://localhost", RampTo: 1000},
		"ramp and count":       {URL: "amqp://localhost", Rate: 10, RampTo: 1000, Count: 1},
		"count and warm-up":    {URL: "amqp://localhost", Count: 1, Warmup: 1},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Run(t.Context(), o)
			if _, ok := err.(*UsageError); !ok {
				t.Errorf("error %v, want a *UsageError", err)
			}
		})
	}
}

// says answers each connection with these bytes, whatever comes, and closes it.
func says(t *testing.T, text string) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	t.Cleanup(func() { ln.Close(); <-over })
	go func() {
		defer close(over)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 4096)) // the hello: else its bytes would reset the connection
			c.Write([]byte(text))
			c.Close()
		}
	}()
	return ln.Addr().String()
}

func TestRunSaysWhyItCannotConnect(t *testing.T) {
	b := newFake(t, faults{})
	host := b.ln.Addr().String()
	for name, c := range map[string]struct{ url, want string }{
		"password, amqp": {"amqp://guest:wrong@" + host, "403 ACCESS_REFUSED"},
		"password, fire": {"fire://guest:wrong@" + host, "403 ACCESS_REFUSED"},
		"nobody there":   {"amqp://127.0.0.1:1", "no broker answers at 127.0.0.1:1 (connection refused)"},
		"not AMQP":       {"amqp://" + says(t, "\x00\x00\x00\x50\x07\x00\x00\x00\x00"), "does not speak AMQP 0-9-1 on this port"},
		"not FMQ1":       {"fire://" + says(t, "AMQP\x00\x00\x09\x01"), "does not speak FMQ1 on this port"},
		"silent, amqp":   {"amqp://" + says(t, ""), "the broker closed the connection before it said anything"},
		"silent, fire":   {"fire://" + says(t, ""), "the broker closed the connection before it said anything"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Run(t.Context(), short(c.url))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestRunStopsEarlyAndStillCounts(t *testing.T) {
	b := newFake(t, faults{})
	ctx, cancel := context.WithCancel(t.Context())
	o := short(b.amqpURL())
	o.Duration = time.Hour
	o.Live = func(Second) { cancel() }
	rep, err := Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	if rep.Measured > 60 || rep.Published == 0 || rep.Err() != nil || len(rep.Seconds) == 0 {
		t.Errorf("measured %v s, published %d, error %v, %d seconds", rep.Measured, rep.Published, rep.Err(), len(rep.Seconds))
	}
}

func TestRunMeasuresTheBroker(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	b := newFake(t, faults{})
	o := short(b.amqpURL())
	o.BrokerPID = os.Getpid() // the fake is in this process
	var rep *Report
	var u *Usage
	// A busy machine gives this process little: go on until it used ten of the kernel's ticks.
	for o.Duration = 300 * time.Millisecond; o.Duration < 30*time.Second; o.Duration *= 2 {
		rep = mustRun(t, o)
		if u = rep.BrokerUsage; u == nil || u.CPU >= 0.1 {
			break
		}
	}
	if u == nil || u.CPU <= 0 || u.PerDelivered <= 0 || u.PeakRSS < 1<<20 {
		t.Fatalf("usage %+v", u)
	}
	// The same CPU time by the other way, in ticks of 10 ms.
	own := rep.ClientCPU * rep.ConsumeRate * rep.Measured / 1e6
	if d := own - u.CPU; d > own/2+0.05 || d < -own/2-0.05 {
		t.Errorf("%.3f s of CPU by /proc, %.3f s by getrusage", u.CPU, own)
	}
	o.BrokerPID = 1 << 30
	if _, err := Run(t.Context(), o); err == nil {
		t.Error("no error for a process that does not exist")
	}
}

func TestReportIsCompleteJSON(t *testing.T) {
	b := newFake(t, faults{})
	o := short(b.amqpURL())
	o.Version, o.Rate = "1.2.3", 1000
	raw, err := json.Marshal(mustRun(t, o))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Version    string
		Broker     struct{ Product, Protocol, Address string }
		Parameters map[string]any
		Latency    map[string]float64
		Confirm    map[string]float64 `json:"confirm_latency"`
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if got.Version != "1.2.3" || got.Broker.Product != "fake 1" || got.Broker.Protocol != "AMQP 0-9-1" || got.Broker.Address != b.ln.Addr().String() {
		t.Errorf("%s", raw)
	}
	for _, name := range []string{"publishers", "consumers", "queues", "exchange_type", "keys", "size", "persistent", "window", "prefetch", "multiple_acks", "rate", "warmup_s", "duration_s"} {
		if _, ok := got.Parameters[name]; !ok {
			t.Errorf("parameter %s is missing", name)
		}
	}
	for _, name := range []string{"count", "mean_us", "p50_us", "p90_us", "p95_us", "p99_us", "p999_us", "max_us"} {
		if got.Latency[name] <= 0 || got.Confirm[name] <= 0 {
			t.Errorf("%s is %v and %v", name, got.Latency[name], got.Confirm[name])
		}
	}
}
