package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
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
		if s.binaries != "" {
			if err := again(ctx, s, old, now); err != nil {
				return err
			}
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
		if _, err := strconv.Atoi(words[1]); err != nil {
			continue // the name alone, of one that failed
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

// tries is how often what is above the limit is measured again. Other programs on the machine can make code slower,
// never quicker: so the least counts, and on a busy machine it takes some tries to see it.
const tries = 10

// again measures benchmarks that seem slower by their CPU time, which is less disturbed, before and after in turn,
// until they do not seem so or tries are used up; in now it puts what that says of the time. Their binaries are in
// s.binaries, where bench/gate.sh put them: old or new, then the package with _ for /.
func again(ctx context.Context, s settings, old, now map[string]benchmark) error {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		least := map[string]time.Duration{}
		for range tries {
			if !slowerThan(old[name], now[name], s.limit) {
				break
			}
			// So many operations that they are most of the process's time.
			was := slices.Min(old[name].ns)
			n := max(1, int(float64(300*time.Millisecond)/was))
			for _, side := range []string{"old", "new"} {
				cpu, err := cpuTime(ctx, s.binaries, side, name, n)
				if err != nil {
					return err
				}
				if seen, ok := least[side]; !ok || cpu < seen {
					least[side] = cpu
				}
			}
			b := now[name]
			b.ns = []float64{was * float64(least["new"]) / float64(least["old"])}
			now[name] = b
		}
	}
	return nil
}

// cpuTime is the CPU time of n operations of a benchmark, with the start of its process.
func cpuTime(ctx context.Context, binaries, side, name string, n int) (time.Duration, error) {
	pkg, which, _ := strings.Cut(name, " ")
	dir := "." + strings.TrimPrefix(pkg, module)
	// The last part of a name is GOMAXPROCS, and slashes are between patterns.
	pattern := strings.ReplaceAll("^"+regexp.QuoteMeta(which[:max(0, strings.LastIndexByte(which, '-'))])+"$", "/", "$/^")
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, side+strings.ReplaceAll(dir, "/", "_")),
		"-test.run=^$", "-test.bench="+pattern, fmt.Sprintf("-test.benchtime=%dx", n))
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%s again: %w: %s", name, err, lastLine(out))
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

const module = "github.com/firemq/firemq"

// slowerThan compares the least times. One that is new or renamed is not slower.
func slowerThan(before, after benchmark, limit float64) bool {
	return len(before.ns) > 0 && len(after.ns) > 0 && slices.Min(after.ns) > limit*slices.Min(before.ns)
}

// slowerBenchmarks compares times and allocations.
func slowerBenchmarks(old, now map[string]benchmark, limit float64) (slower []string) {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		before, after := old[name], now[name]
		if len(before.ns) == 0 || len(after.ns) == 0 {
			continue // new or renamed
		}
		if slowerThan(before, after, limit) {
			slower = append(slower, fmt.Sprintf("%s: %.4g ns, was %.4g", name, slices.Min(after.ns), slices.Min(before.ns)))
		}
		if after.allocs > before.allocs {
			slower = append(slower, fmt.Sprintf("%s: %.0f allocations, were %.0f", name, after.allocs, before.allocs))
		}
	}
	return slower
}

// slowerOnTheWire runs both brokers in turn under the same load, as often as s says, or more often while the
// difference is above the limit.
func slowerOnTheWire(ctx context.Context, s settings) (slower []string, err error) {
	now, base := fireMQ(s), fireMQ(settings{firemq: s.base})
	base.name = "base"
	for _, preset := range []string{"transient", "transient-4x4", "persistent"} {
		cost := map[*kind][]float64{}
		for run := range s.runs + tries {
			if run >= s.runs && slices.Min(cost[now]) <= s.limit*slices.Min(cost[base]) {
				break
			}
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
	const enough = 0.1 // seconds: ten ticks of the kernel's clock for CPU time
	rep, raw, err := n.load(ctx, "amqp", "--preset", preset, "--duration", fmt.Sprint(s.seconds), "--warmup", fmt.Sprint(warmup))
	switch {
	case err != nil:
		return 0, err
	case rep.Err() != nil:
		return 0, rep.Err()
	case rep.BrokerUsage == nil:
		return 0, errors.New("the broker's CPU time is not known")
	case (rep.BrokerUsage.CPU < enough || rep.BrokerUsage.PerDelivered == 0) && s.seconds < 60:
		s.seconds *= 2 // a busy machine gave the broker little
		return costOf(ctx, s, k, preset)
	}
	return rep.BrokerUsage.PerDelivered, os.WriteFile(filepath.Join(s.out, "raw", fmt.Sprintf("%s-%s.json", preset, k.name)), raw, 0o644)
}
