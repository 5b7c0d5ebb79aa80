package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// gate fails if the broker, or a benchmark, costs more than limit times what it did at the base.
func gate(ctx context.Context, s settings) error {
	var slower []string
	if s.benchmarks != "" {
		before, after, ok := strings.Cut(s.benchmarks, ",")
		if !ok {
			return errors.New("-benchmarks takes two files")
		}
		old, err := readBenchmarks(before)
		if err != nil {
			return err
		}
		now, err := readBenchmarks(after)
		if err != nil {
			return err
		}
		slower = append(slower, slowerBenchmarks(old, now, s.limit)...)
	}
	wire, err := slowerOnTheWire(ctx, s)
	if err != nil {
		return err
	}
	if slower = append(slower, wire...); len(slower) > 0 {
		return fmt.Errorf("slower than the base:\n  %s", strings.Join(slower, "\n  "))
	}
	fmt.Printf("nothing takes more than %.2f times what it took at the base\n", s.limit)
	return nil
}

// benchmark has the results of one over several rounds.
type benchmark struct {
	ns     []float64
	allocs float64 // the least
}

// readBenchmarks reads the output of go test -bench.
func readBenchmarks(path string) (map[string]benchmark, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all := map[string]benchmark{}
	pkg := ""
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) == 2 && words[0] == "pkg:" {
			pkg = words[1]
		}
		if len(words) < 4 || !strings.HasPrefix(words[0], "Benchmark") {
			continue
		}
		name := pkg + " " + words[0]
		b, seen := all[name]
		for i := 3; i < len(words); i += 2 {
			v, err := strconv.ParseFloat(words[i-1], 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %q is no figure", path, words[i-1])
			}
			switch {
			case words[i] == "ns/op":
				b.ns = append(b.ns, v)
			case words[i] == "allocs/op" && seen:
				b.allocs = min(b.allocs, v)
			case words[i] == "allocs/op":
				b.allocs = v
			}
		}
		all[name] = b
	}
	return all, lines.Err()
}

// slowerBenchmarks compares the least times, which a busy machine distorts least, and the allocations.
func slowerBenchmarks(old, now map[string]benchmark, limit float64) (slower []string) {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		before, after := old[name], now[name]
		if len(before.ns) == 0 || len(after.ns) == 0 {
			continue // new or renamed
		}
		if a, b := slices.Min(before.ns), slices.Min(after.ns); b > limit*a {
			slower = append(slower, fmt.Sprintf("%s: %.4g ns, was %.4g", name, b, a))
		}
		if after.allocs > before.allocs {
			slower = append(slower, fmt.Sprintf("%s: %.0f allocations, were %.0f", name, after.allocs, before.allocs))
		}
	}
	return slower
}

// slowerOnTheWire runs both brokers in turn under the same load.
func slowerOnTheWire(ctx context.Context, s settings) (slower []string, err error) {
	now, base := fireMQ(s), fireMQ(settings{firemq: s.base})
	base.name = "base"
	for _, preset := range []string{"transient", "transient-4x4", "persistent"} {
		cost := map[*kind][]float64{}
		for range s.runs {
			for _, k := range []*kind{base, now} {
				us, err := costOf(ctx, s, k, preset)
				if err != nil {
					return nil, err
				}
				cost[k] = append(cost[k], us)
			}
		}
		a, b := slices.Min(cost[base]), slices.Min(cost[now])
		fmt.Printf("%-14s %.3f us of broker CPU per message, at the base %.3f\n", preset, b, a)
		if b > s.limit*a {
			slower = append(slower, fmt.Sprintf("%s: %.3f us of broker CPU per message, was %.3f", preset, b, a))
		}
	}
	return slower, nil
}

// costOf is the CPU time per delivered message of a new broker.
func costOf(ctx context.Context, s settings, k *kind, preset string) (us float64, err error) {
	n, err := newNative(s, k)
	if err != nil {
		return 0, err
	}
	defer n.remove()
	if _, err := n.start(ctx); err != nil {
		return 0, err
	}
	rep, raw, err := n.load(ctx, "amqp", "--preset", preset, "--duration", fmt.Sprint(s.seconds), "--warmup", fmt.Sprint(warmup))
	if err != nil {
		return 0, err
	}
	if err := rep.Err(); err != nil {
		return 0, err
	}
	if rep.BrokerUsage == nil || rep.BrokerUsage.PerDelivered == 0 {
		return 0, errors.New("the broker's CPU time was not seen to move: measure for longer")
	}
	return rep.BrokerUsage.PerDelivered, os.WriteFile(filepath.Join(s.out, "raw", fmt.Sprintf("%s-%s.json", preset, k.name)), raw, 0o644)
}
