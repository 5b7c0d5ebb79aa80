package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// Transports are the schemes that a driver can be tested over.
var Transports = []string{"fire", "fires", "ws", "wss"}

// Options say what to test. Driver is needed.
type Options struct {
	Driver     string    // a command for the shell
	Transports []string  // of Transports; none: fire
	Only       []string  // names of scenarios; none: all
	Broker     string    // the firemq binary; empty: FIREMQ_BIN, or else one built from the current directory
	Out        io.Writer // a line for each scenario
	Log        io.Writer // commands, replies and what the driver writes to stderr; nil: only that of a scenario that failed
}

// Result counts how scenarios ended.
type Result struct{ Passed, Failed, Skipped int }

func (r Result) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", r.Passed, r.Failed, r.Skipped)
}

// List writes the scenarios and what they check.
func List(w io.Writer) {
	for _, s := range scenarios {
		fmt.Fprintf(w, "%-28s %s\n", s.name, s.checks)
	}
}

// Run plays the scenarios. The error says why it could not; scenarios that failed are in the result.
func Run(ctx context.Context, o Options) (r Result, err error) {
	if o.Driver == "" {
		return r, errors.New("no driver: name its command with --driver")
	}
	if len(o.Transports) == 0 {
		o.Transports = Transports[:1]
	}
	for _, t := range o.Transports {
		if !slices.Contains(Transports, t) {
			return r, fmt.Errorf("no transport %q: there are %s", t, strings.Join(Transports, ", "))
		}
	}
	chosen, err := choose(o.Only)
	if err != nil {
		return r, err
	}
	folder, err := os.MkdirTemp("", "firemq-conformance-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(folder)
	b, err := newBroker(ctx, o.Broker, folder)
	if err != nil {
		return r, err
	}
	defer b.kill()
	for _, t := range o.Transports {
		p := &play{ctx: ctx, options: o, broker: b, scheme: t}
		for _, s := range chosen {
			if ctx.Err() != nil {
				break
			}
			p.scenario(s, &r)
		}
		if p.driver != nil {
			p.driver.stop()
		}
	}
	return r, ctx.Err()
}

func choose(names []string) ([]scenario, error) {
	if len(names) == 0 {
		return scenarios, nil
	}
	var chosen []scenario
	for _, n := range names {
		i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == n })
		if i < 0 {
			return nil, fmt.Errorf("no scenario %q: --list has all", n)
		}
		chosen = append(chosen, scenarios[i])
	}
	return chosen, nil
}

// play is the scenarios over one transport.
type play struct {
	ctx     context.Context
	options Options
	broker  *broker
	scheme  string

	driver   *driver  // nil: to be started
	features []string // of the SDK; nil: all
	n        int      // scenarios played
}

// scenario plays one and prints how it went.
func (p *play) scenario(s scenario, r *Result) {
	start := time.Now()
	p.n++
	if p.driver == nil {
		if err := p.start(); err != nil {
			r.Failed++
			p.report("FAIL", s, start, err.Error(), "")
			return
		}
	}
	if s.needs != "" && p.features != nil && !slices.Contains(p.features, s.needs) {
		r.Skipped++
		p.report("skip", s, start, "the SDK has no "+s.needs, "")
		return
	}
	sc := &scene{play: p, vhost: fmt.Sprintf("%s-%s-%d", s.name, p.scheme, p.n), ended: make(chan struct{})}
	sc.perform(s)
	if sc.failure == "" {
		r.Passed++
		p.report("ok", s, start, "", "")
		return
	}
	r.Failed++
	log := ""
	if p.driver != nil {
		log = p.driver.log.tail()
		p.driver.stop()
		p.driver = nil
	}
	p.report("FAIL", s, start, sc.failure, log)
}

// start starts the driver and asks who it is.
func (p *play) start() error {
	d, err := startDriver(p.ctx, p.options.Driver, p.broker.caFile, p.options.Log)
	if err != nil {
		return err
	}
	info, err := d.command("info", nil)
	if err == nil && info.Error != nil {
		err = fmt.Errorf("info: %s", info.Error)
	}
	if err != nil {
		log := d.log.tail()
		d.stop()
		return fmt.Errorf("start the driver: %w\n%s", err, log)
	}
	p.driver = d
	p.features = nil
	if list, ok := info.Result["features"].([]any); ok {
		p.features = []string{}
		for _, f := range list {
			p.features = append(p.features, fmt.Sprint(f))
		}
	}
	return nil
}

func (p *play) report(how string, s scenario, start time.Time, why, log string) {
	name := s.name
	if len(p.options.Transports) > 1 {
		name = p.scheme + "/" + name
	}
	fmt.Fprintf(p.options.Out, "%-4s %-32s %6.2fs", how, name, time.Since(start).Seconds())
	if why != "" {
		fmt.Fprintf(p.options.Out, "  %s", strings.ReplaceAll(why, "\n", "\n       "))
	}
	fmt.Fprintln(p.options.Out)
	if log != "" && p.options.Log == nil {
		fmt.Fprintf(p.options.Out, "       the last of its log:\n       %s\n", strings.ReplaceAll(strings.TrimRight(log, "\n"), "\n", "\n       "))
	}
}
