package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/firemq/firemq/bench"
)

// scenario is a row of the tables. It yields results, one for each figure that is a row of its own.
type scenario struct {
	name string
	// fresh wants a broker that has done nothing yet.
	fresh bool
	run   func(ctx context.Context, r *round, n node, c column) ([]result, error)
}

// round is one run of every scenario.
type round struct {
	s      settings
	number int
	// reached is what a column delivered a second, by scenario.
	reached map[string]float64
}

// Seconds of load before a measured time. A broker that is new has to grow its buffers and caches.
const warmup = 1.0

// recovery is the queue that a restart has to bring back.
const recoveryQueue = "recovery"

// scenarios are the rows, in order.
var scenarios = []scenario{
	{name: "idle", fresh: true, run: idle},
	{name: "transient", run: preset("transient")},
	{name: "transient-4x4", run: preset("transient-4x4")},
	{name: "persistent", run: preset("persistent")},
	{name: "persistent-4x4", run: preset("persistent-4x4")},
	{name: "persistent-1k", run: preset("persistent-1k")},
	{name: "fanout", run: preset("fanout")},
	{name: "queues", run: preset("queues")},
	{name: "latency", run: preset("latency")},
	{name: "latency-persistent", run: preset("latency-persistent")},
	{name: "half", run: half("transient")},
	{name: "half-persistent", run: half("persistent", "--persistent")},
	{name: "drain", run: drain},
	{name: "restart", fresh: true, run: restart},
}

// preset runs a load that firemq bench has a name for.
func preset(name string) func(context.Context, *round, node, column) ([]result, error) {
	return func(ctx context.Context, r *round, n node, c column) ([]result, error) {
		res, err := r.load(ctx, n, c, name, "--preset", name, "--duration", r.duration(), "--warmup", fmt.Sprint(warmup))
		if err != nil {
			return nil, err
		}
		r.reached[c.name+" "+name] = res.Delivered
		return []result{res}, nil
	}
}

// half is half the rate that this broker has reached in this round, so that queues stay short.
func half(of string, flags ...string) func(context.Context, *round, node, column) ([]result, error) {
	name := "half"
	if len(flags) > 0 {
		name += "-persistent"
	}
	return func(ctx context.Context, r *round, n node, c column) ([]result, error) {
		full := r.reached[c.name+" "+of]
		if full == 0 {
			return nil, fmt.Errorf("the scenario %s has to run before it", of)
		}
		flags := append(flags, "--rate", fmt.Sprintf("%.0f", full/2), "--duration", r.duration(), "--warmup", fmt.Sprint(warmup))
		res, err := r.load(ctx, n, c, name, flags...)
		if err != nil {
			return nil, err
		}
		return []result{res}, nil
	}
}

// drain fills a queue without consumers, then has one consumer empty it.
func drain(ctx context.Context, r *round, n node, c column) ([]result, error) {
	res, err := r.load(ctx, n, c, "drain", "--preset", "drain", "--backlog", fmt.Sprint(r.s.messages))
	if err != nil {
		return nil, err
	}
	fill := res
	fill.Scenario = "fill"
	fill.Delivered, fill.Published, fill.CPU, fill.Seconds = 0, res.fill.Rate, res.fill.CPU, res.fill.Seconds
	fill.DeliveryP50, fill.DeliveryP99, fill.Cores = 0, 0, 0
	res.Published, res.ConfirmP50, res.ConfirmP99, res.DeliveryP50, res.DeliveryP99 = 0, 0, 0, 0, 0
	return []result{fill, res}, nil
}

// settle is how long a broker has for what it does after its start.
const settle = 2 * time.Second

// idle is the time to the first login of a new broker, which was just measured, and its memory.
func idle(ctx context.Context, r *round, n node, c column) ([]result, error) {
	if err := n.stop(); err != nil {
		return nil, err
	}
	took, err := n.start(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	rss, err := n.rss()
	return []result{{Scenario: "idle", Broker: c.name, Run: r.number, Seconds: took.Seconds(), RSS: mebibytes(rss)}}, err
}

// restart is the time from the start of the process until all messages of a queue are there again, after
// a clean stop and after kill -9.
func restart(ctx context.Context, r *round, n node, c column) ([]result, error) {
	want := uint64(r.s.messages)
	_, _, err := n.load(ctx, "amqp", "--persistent", "--queue-name", recoveryQueue, "--keep", "--consumers", "0", "--count", fmt.Sprint(want))
	if err != nil {
		return nil, err
	}
	var all []result
	for _, way := range []struct {
		name string
		end  func() error
	}{{"ready-after-stop", n.stop}, {"ready-after-kill", n.kill}} {
		if err := way.end(); err != nil {
			return all, err
		}
		began := time.Now()
		if _, err := n.start(ctx); err != nil {
			return all, err
		}
		res := result{Scenario: way.name, Broker: c.name, Run: r.number, Expected: want}
		have, err := awaitDepth(ctx, n.url("amqp"), want)
		if err != nil {
			return all, err
		}
		res.Seconds, res.Lost = time.Since(began).Seconds(), want-min(want, have)
		all = append(all, res)
	}
	return all, nil
}

// awaitDepth waits until a queue has as many messages as it should, or no more come for a while.
func awaitDepth(ctx context.Context, url string, want uint64) (have uint64, err error) {
	const patience = 10 * time.Second
	progress := time.Now()
	for {
		n, askErr := bench.Depth(ctx, url, recoveryQueue, askPatience)
		switch {
		case n >= want:
			return n, nil
		case n > have:
			have, progress = n, time.Now()
		case time.Since(progress) > patience && askErr != nil:
			return have, askErr
		case time.Since(progress) > patience:
			return have, nil
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return have, ctx.Err()
		}
	}
}

func (r *round) duration() string { return fmt.Sprint(r.s.seconds) }

// load runs firemq bench and keeps its report.
func (r *round) load(ctx context.Context, n node, c column, name string, flags ...string) (result, error) {
	if c.queueType != "" {
		flags = append(flags, "--arg", "x-queue-type="+c.queueType)
	}
	rep, raw, err := n.load(ctx, c.scheme, flags...)
	if len(raw) > 0 {
		file := fmt.Sprintf("%s-%s-%d.json", name, c.name, r.number)
		if err := os.WriteFile(filepath.Join(r.s.out, "raw", file), raw, 0o644); err != nil {
			return result{}, err
		}
	}
	if err != nil {
		return result{}, err
	}
	return resultOf(name, c.name, r.number, rep), nil
}

// compare runs everything in turn: the speed of a shared machine drifts, so that only neighbours compare.
func compare(ctx context.Context, s settings) error {
	where, err := engine(ctx, s)
	if err != nil {
		return err
	}
	var found []column
	var without []absence
	for _, c := range columns(s) {
		if len(s.brokers) > 0 && !slices.Contains(s.brokers, c.name) {
			without = append(without, absence{c.name, "not asked for"})
			continue
		}
		if err := where.found(c.kind); err != nil {
			fmt.Printf("without %s: %v\n", c.name, err)
			without = append(without, absence{c.name, err.Error()})
			continue
		}
		found = append(found, c)
	}
	if len(found) == 0 {
		return errors.New("no broker to measure")
	}
	out, err := newResults(s, where, without)
	if err != nil {
		return err
	}
	defer out.close()
	kept := keeper{where: where, nodes: map[*kind]node{}}
	defer kept.close()
	began := time.Now()
	for number := 1; number <= s.runs; number++ {
		r := &round{s: s, number: number, reached: map[string]float64{}}
		for _, sc := range scenarios {
			if len(s.scenarios) > 0 && !slices.Contains(s.scenarios, sc.name) {
				continue
			}
			for _, c := range found {
				if !c.runs(sc.name) {
					continue
				}
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				all, err := kept.run(ctx, r, sc, c)
				if err != nil {
					// The others can still be compared; the hole shows in the tables.
					fmt.Printf("%s, %s: %v\n", sc.name, c.name, err)
					if err := out.failed(sc.name, c.name, number, err); err != nil {
						return err
					}
				}
				for _, res := range all {
					fmt.Println(res.line())
					if err := out.add(res); err != nil {
						return err
					}
				}
			}
		}
	}
	fmt.Printf("%s in %s\n", s.out, time.Since(began).Round(time.Second))
	return nil
}

// keeper has the brokers that take long to start.
type keeper struct {
	where place
	nodes map[*kind]node
}

func (k *keeper) run(ctx context.Context, r *round, sc scenario, c column) ([]result, error) {
	n, keep := k.nodes[c.kind], c.kind.slow && !sc.fresh
	switch {
	case n != nil && keep:
		if err := n.freeze(false); err != nil {
			return nil, err
		}
	default:
		var err error
		if n, err = k.where.make(c.kind); err != nil {
			return nil, err
		}
		if _, err = n.start(ctx); err != nil {
			n.remove()
			return nil, err
		}
	}
	all, err := sc.run(ctx, r, n, c)
	if !keep || err != nil {
		n.remove()
		if k.nodes[c.kind] == n {
			delete(k.nodes, c.kind)
		}
		return all, err
	}
	k.nodes[c.kind] = n
	return all, n.freeze(true)
}

func (k *keeper) close() {
	for _, n := range k.nodes {
		n.remove()
	}
}

func mebibytes(n int64) float64 { return float64(n) / (1 << 20) }

func (r result) line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-20s %-22s %d ", r.Scenario, r.Broker, r.Run)
	say := func(v float64, format string) {
		if v > 0 {
			fmt.Fprintf(&b, format, v)
		}
	}
	say(r.CPU, " %7.2f us")
	say(r.Published, " %9.0f/s published")
	say(r.Delivered, " %9.0f/s delivered")
	say(r.DeliveryP99, "  p99 %.2f ms")
	say(r.Seconds, "  %.3f s")
	say(r.RSS, "  %.1f MiB")
	say(float64(r.Lost), "  LOST %.0f")
	return b.String()
}
