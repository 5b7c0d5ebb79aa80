package bench

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"
)

// Report is the result of a run. Rates and shares are over the measured time, counts over the whole run.
type Report struct {
	Version    string     `json:"version"`
	Go         string     `json:"go"`
	Started    time.Time  `json:"started"`
	Host       Host       `json:"host"`
	Broker     Broker     `json:"broker"`
	Parameters Parameters `json:"parameters"`

	Seconds       []Second `json:"seconds"`        // warm-up, measured time and drain
	SecondsLost   int      `json:"seconds_lost"`   // not kept in Seconds, which holds maxSeconds
	Measured      float64  `json:"measured_s"`     // length of the measured time
	PublishRate   float64  `json:"publish_rate_s"` // messages per second
	ConfirmRate   float64  `json:"confirm_rate_s"` // messages per second
	ConsumeRate   float64  `json:"consume_rate_s"` // deliveries per second
	ConsumedBytes float64  `json:"consumed_bytes_s"`

	Published  uint64 `json:"published"`
	Confirmed  uint64 `json:"confirmed"`
	Refused    uint64 `json:"refused"` // nacked
	Expected   uint64 `json:"expected"`
	Consumed   uint64 `json:"consumed"`
	Lost       uint64 `json:"lost"`       // published, not refused, never delivered
	Duplicated uint64 `json:"duplicated"` // deliveries of something delivered before
	Left       uint64 `json:"left"`       // still in the queues when they were deleted
	Unsent     uint64 `json:"unsent"`     // due by the rate, but the window was full
	Pauses     uint64 `json:"pauses"`     // times the broker asked publishers to wait
	// Broken is why the run ended before its time. What was measured until then is there; what was under way counts
	// neither as lost nor as left.
	Broken string `json:"broken,omitempty"`

	Latency        Latency `json:"latency"`         // publish to delivery
	ConfirmLatency Latency `json:"confirm_latency"` // publish to confirm

	// ClientCPU is the CPU time of this process per message delivered (or published, where nothing is
	// consumed), in microseconds; 0 where it is not known. With an embedded broker it includes that.
	ClientCPU float64 `json:"client_cpu_us_per_delivered"`

	BrokerUsage *Usage  `json:"broker_usage,omitempty"`
	Fill        *Filled `json:"fill,omitempty"` // how the backlog was made

	before, after      snapshot
	usageFrom, usageTo usage
	usageErr           error
	peakRSS            int64
	live               func(Second)
	begun              bool // the measured time was reached
}

// maxSeconds bounds Report.Seconds: twelve hours.
const maxSeconds = 12 * 60 * 60

// Host is where the load was made.
type Host struct {
	OS   string `json:"os"`
	Arch string `json:"arch"`
	CPUs int    `json:"cpus"` // that this process may use
}

// Broker is who was measured.
type Broker struct {
	Product  string `json:"product"`  // as it calls itself
	Protocol string `json:"protocol"` // and that of consumers, if it is another one
	Address  string `json:"address"`
	PID      int    `json:"pid,omitempty"`
}

// Parameters are the options of the run, defaults filled in.
type Parameters struct {
	Publishers     int            `json:"publishers"`
	Consumers      int            `json:"consumers"`
	Queues         int            `json:"queues"`
	ExchangeType   string         `json:"exchange_type"` // empty: the default exchange
	Keys           int            `json:"keys"`
	QueueArguments map[string]any `json:"queue_arguments,omitempty"`
	Size           int            `json:"size"` // bytes of a body, or the mean
	Sizes          []int          `json:"sizes"`
	Persistent     bool           `json:"persistent"`
	Window         int            `json:"window"`
	Prefetch       int            `json:"prefetch"`
	Multiple       bool           `json:"multiple_acks"`
	Rate           float64        `json:"rate"`
	RampTo         float64        `json:"ramp_to"`
	Warmup         float64        `json:"warmup_s"`
	Duration       float64        `json:"duration_s"`
	Count          uint64         `json:"count"`
	Backlog        uint64         `json:"backlog"`
	Drain          bool           `json:"drain"`
	Priority       uint8          `json:"priority,omitempty"`
	TTL            int64          `json:"ttl_ms,omitempty"`
	Headers        map[string]any `json:"headers,omitempty"`
	NoConfirms     bool           `json:"no_confirms,omitempty"`
	AutoAck        bool           `json:"auto_ack,omitempty"`
	Work           float64        `json:"work_s,omitempty"`
	ConsumeRate    float64        `json:"consume_rate,omitempty"`
	Steps          []Step         `json:"rate_steps,omitempty"`
	Jitter         bool           `json:"jitter,omitempty"`
}

// Filled is the time before the consumers came.
type Filled struct {
	Seconds float64 `json:"s"`
	Rate    float64 `json:"rate_s"` // messages per second, confirmed
	// CPU is the broker's time per message in microseconds; 0 where it is not measured.
	CPU float64 `json:"cpu_us_per_message"`
}

// Usage is what the broker's process tree used in the measured time.
type Usage struct {
	CPU          float64 `json:"cpu_s"`
	PerDelivered float64 `json:"cpu_us_per_delivered"` // or per publish where nothing is consumed; 0: no message came
	// PerMessage is for runs whose queues grow or shrink: half of the publishes and deliveries count.
	PerMessage float64 `json:"cpu_us_per_message"`
	Cores      float64 `json:"cores"`
	PeakRSS    int64   `json:"peak_rss_bytes"` // sampled every second
}

// snapshot is the counters at one moment.
type snapshot struct {
	at                             time.Time
	published, confirmed, received uint64
	cpu                            time.Duration // of this process
}

func (r *run) snapshot() snapshot {
	s := snapshot{at: time.Now(), published: r.published(), received: r.received(), cpu: ownCPU()}
	for _, p := range r.publishers {
		s.confirmed += p.low.Load()
	}
	return s
}

func newReport(r *run) *Report {
	o := r.o
	return &Report{
		Version: o.Version,
		Go:      runtime.Version(),
		Started: time.Now().UTC().Truncate(time.Second),
		Host:    Host{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU()},
		Broker:  Broker{Product: r.control.product(), Protocol: r.spoken, Address: r.addr, PID: o.BrokerPID},
		Parameters: Parameters{
			Publishers: o.Publishers, Consumers: o.Consumers, Queues: o.Queues,
			ExchangeType: o.ExchangeType, Keys: o.Keys, QueueArguments: o.QueueArguments,
			Size: o.Size, Sizes: o.Sizes, Persistent: o.Persistent, Window: o.Window, Prefetch: o.Prefetch,
			Multiple: o.Multiple, Rate: o.Rate, RampTo: o.RampTo, Warmup: o.Warmup.Seconds(), Duration: o.Duration.Seconds(),
			Count: o.Count, Backlog: o.Backlog, Drain: o.Drain,
			Priority: o.Priority, TTL: o.TTL.Milliseconds(), Headers: o.Headers, NoConfirms: o.NoConfirms, AutoAck: o.AutoAck,
			Work: o.Work.Seconds(), ConsumeRate: o.ConsumeRate, Steps: o.Steps, Jitter: o.Jitter,
		},
		Seconds: []Second{},
		live:    o.Live,
	}
}

// second keeps one second and passes it on.
func (rep *Report) second(r *run, s Second) {
	rep.sample(r)
	if len(rep.Seconds) < maxSeconds {
		rep.Seconds = append(rep.Seconds, s)
	} else {
		rep.SecondsLost++
	}
	if rep.live != nil {
		rep.live(s)
	}
}

// sample reads the broker's usage, if that was asked for.
func (rep *Report) sample(r *run) usage {
	if r.o.BrokerPID == 0 {
		return usage{}
	}
	u, err := usageOf(r.o.BrokerPID)
	if err != nil {
		rep.usageErr = err
	}
	rep.peakRSS = max(rep.peakRSS, u.rss)
	return u
}

// begin and end bound the measured time.
func (rep *Report) begin(r *run) {
	rep.usageFrom = rep.sample(r)
	rep.before = r.snapshot()
	rep.begun = r.failure() == nil
}

func (rep *Report) end(r *run) {
	rep.usageTo = rep.sample(r)
	rep.after = r.snapshot()
	if r.o.paced() && r.o.Count == 0 {
		for _, p := range r.publishers {
			if due, sent := p.paceFrom+p.pace.due(r.now()-int64(lateness)), p.sent.Load(); due > sent {
				rep.Unsent += due - sent
			}
		}
	}
}

// filled keeps what the backlog took.
func (rep *Report) filled(from, to usage, before, after snapshot) {
	s, n := after.at.Sub(before.at).Seconds(), float64(max(1, after.confirmed-before.confirmed))
	rep.Fill = &Filled{Seconds: s, Rate: n / s, CPU: float64((to.cpu - from.cpu).Nanoseconds()) / 1e3 / n}
}

// lateness is what a paced publisher may be late without its messages counting as unsent.
const lateness = 10 * time.Millisecond

// count does the sums, after the clients' end.
func (rep *Report) count(r *run) {
	d := rep.after.at.Sub(rep.before.at).Seconds()
	rep.Measured = d
	rep.PublishRate = float64(rep.after.published-rep.before.published) / d
	rep.ConfirmRate = float64(rep.after.confirmed-rep.before.confirmed) / d
	rep.ConsumeRate = float64(rep.after.received-rep.before.received) / d
	rep.ConsumedBytes = rep.ConsumeRate * float64(r.o.Size)

	rep.Published = r.published()
	rep.Refused = r.refused()
	if rep.Confirmed = r.snapshot().confirmed - rep.Refused; r.o.NoConfirms {
		rep.Confirmed, rep.ConfirmRate = 0, 0
	}
	rep.Expected = r.expected()
	rep.Consumed = r.received()
	if len(r.consumers) > 0 {
		if rep.Broken == "" {
			rep.Lost = r.lost()
		}
		_, rep.Duplicated = r.totals()
	}
	for _, p := range r.publishers {
		rep.Pauses += p.pauses.Load()
	}
	rep.ConfirmLatency = summarize(r.confirmMeters)
	rep.Latency = summarize(r.deliveryMeters)

	messages := rep.after.received - rep.before.received
	if len(r.consumers) == 0 {
		messages = rep.after.published - rep.before.published
	}
	through := float64(max(1, messages))
	if len(r.consumers) > 0 && !r.o.Drain {
		through = max(1, (float64((rep.after.published-rep.before.published)*r.copies())+float64(messages))/2)
	}
	each := func(cpu time.Duration) float64 {
		if messages == 0 {
			return 0
		}
		return float64(cpu.Nanoseconds()) / 1e3 / float64(messages)
	}
	rep.ClientCPU = each(rep.after.cpu - rep.before.cpu)
	if r.o.BrokerPID != 0 && rep.usageErr == nil {
		cpu := rep.usageTo.cpu - rep.usageFrom.cpu
		rep.BrokerUsage = &Usage{CPU: cpu.Seconds(), PerDelivered: each(cpu), PerMessage: float64(cpu.Nanoseconds()) / 1e3 / through, Cores: cpu.Seconds() / d, PeakRSS: rep.peakRSS}
	}
}

// Err is what went wrong: the run broke, or messages were lost, delivered twice or refused. Nil is a clean run.
func (rep *Report) Err() error {
	if rep.Broken != "" {
		return errors.New(rep.Broken)
	}
	var wrong []string
	say := func(n uint64, what string) {
		if n > 0 {
			wrong = append(wrong, fmt.Sprintf("%d %s", n, what))
		}
	}
	say(rep.Lost, "lost")
	say(rep.Duplicated, "duplicated")
	say(rep.Refused, "refused")
	if rep.usageErr != nil {
		wrong = append(wrong, rep.usageErr.Error())
	}
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("of %d messages published: %s", rep.Published, strings.Join(wrong, ", "))
}
