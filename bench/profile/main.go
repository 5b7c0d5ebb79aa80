// Profile runs a broker in this process and a load in another one, and tells what the broker does with its
// time: a CPU profile, which the compiler can use, the time that locks make goroutines wait, the
// allocations per message, and the pauses of the garbage collector.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/metrics"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/firemq/firemq/bench"
	"github.com/firemq/firemq/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "profile:", err)
		os.Exit(1)
	}
}

// subject is the broker under load.
type subject struct {
	ctx     context.Context
	firemq  string
	seconds float64
	most    float64           // allocations a message
	url     map[string]string // by scheme
}

func run(ctx context.Context, args []string) error {
	s := subject{ctx: ctx}
	var presets, cpu, mutex, sheet string
	f := flag.NewFlagSet("profile [flags] [-- flags of firemq bench, instead of presets]", flag.ContinueOnError)
	f.StringVar(&s.firemq, "firemq", "./firemq", "the binary that makes the load")
	f.Float64Var(&s.seconds, "seconds", 5, "measured time of a load")
	f.StringVar(&presets, "presets", "transient transient-4x4 persistent persistent-4x4 persistent-1k fanout queues latency-persistent", "loads, as firemq bench names them")
	f.StringVar(&cpu, "cpu", "", "write a CPU profile of all loads, over both protocols, to this file")
	f.StringVar(&mutex, "mutex", "", "write a mutex profile of transient-4x4 and persistent-4x4 to this file, and print what is waited for")
	f.StringVar(&sheet, "csv", "", "write what takes the CPU time of each load, and which locks are waited for, to this file")
	count := f.Uint64("count", 0, "print the allocations per message of so many messages, and the pauses")
	f.Float64Var(&s.most, "most", math.Inf(1), "fail if a message takes more allocations")
	if err := f.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "firemq-profile-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	const free = "127.0.0.1:0"
	broker, err := server.Start(ctx, server.Options{
		AMQP: free, Fire: free, HTTP: "off", Data: dir, Log: slog.New(slog.DiscardHandler), Version: server.Version,
		DefaultUser: "guest", DefaultPass: "guest", LoopbackUsers: []string{"guest"},
	})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		broker.Shutdown(ctx)
	}()
	s.url = map[string]string{"amqp": "amqp://" + broker.AMQPAddr().String(), "fire": "fire://" + broker.FireAddr().String()}
	if cpu != "" {
		loads := func() error { return s.loads(strings.Fields(presets)) }
		if f.NArg() > 0 {
			loads = func() error {
				_, err := s.load("amqp", append(f.Args(), "--duration", fmt.Sprint(s.seconds))...)
				return err
			}
		}
		if err := cpuProfile(cpu, loads); err != nil {
			return err
		}
	}
	if mutex != "" {
		for _, preset := range []string{"transient-4x4", "persistent-4x4"} {
			if err := s.mutexProfile(mutex, preset); err != nil {
				return err
			}
		}
	}
	if sheet != "" {
		if err := s.sheet(sheet, strings.Fields(presets)); err != nil {
			return err
		}
	}
	if *count > 0 {
		for _, scheme := range []string{"amqp", "fire"} {
			for _, preset := range []string{"transient", "persistent"} {
				if err := s.allocations(scheme, preset, *count); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// load runs firemq bench against the broker.
func (s subject) load(scheme string, flags ...string) (*bench.Report, error) {
	cmd := exec.CommandContext(s.ctx, s.firemq, append([]string{"bench", "--json", "--quiet", "--url", s.url[scheme]}, flags...)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	raw, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("firemq bench %s: %w: %s", strings.Join(flags, " "), err, bytes.TrimSpace(said.Bytes()))
	}
	var rep bench.Report
	return &rep, json.Unmarshal(raw, &rep)
}

func cpuProfile(path string, loads func() error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return err
	}
	err = loads()
	pprof.StopCPUProfile()
	return errors.Join(err, f.Close())
}

func (s subject) loads(presets []string) error {
	for _, preset := range presets {
		for _, scheme := range []string{"amqp", "fire"} {
			if _, err := s.load(scheme, "--preset", preset, "--duration", fmt.Sprint(s.seconds), "--warmup", "0"); err != nil {
				return err
			}
		}
	}
	return nil
}

// mutexProfile prints which locks goroutines waited for, and where, as a share of the CPU time that the broker used.
func (s subject) mutexProfile(path, preset string) error {
	locks, rep, cpu, err := s.locks(preset)
	if err != nil {
		return err
	}
	report(os.Stdout, preset, rep.ConsumeRate, cpu.Seconds(), locks)
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("mutex").WriteTo(f, 0), f.Close())
}

// locks are what was waited for under a load, and the CPU time that the broker used meanwhile.
func (s subject) locks(preset string) ([]lock, *bench.Report, time.Duration, error) {
	runtime.SetMutexProfileFraction(1)
	runtime.SetBlockProfileRate(1)
	defer runtime.SetMutexProfileFraction(0)
	defer runtime.SetBlockProfileRate(0)
	before, err := waits("block")
	if err != nil {
		return nil, nil, 0, err
	}
	from := cpuTime()
	rep, err := s.load("amqp", "--preset", preset, "--duration", fmt.Sprint(s.seconds), "--warmup", "0")
	if err != nil {
		return nil, nil, 0, err
	}
	used := cpuTime() - from
	after, err := waits("block")
	if err != nil {
		return nil, nil, 0, err
	}
	for stack, seconds := range before {
		after[stack] -= seconds
	}
	return byLock(after, make(sources)), rep, used, nil
}

// cpuTime is what this process has used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u) // of oneself it cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

const (
	// steady is the messages a second at which allocations are counted: so few that the queue does not grow,
	// whose messages would be counted as well.
	steady = "100000"
	// countRuns is how often they are counted at most; negligible, how few end it.
	countRuns  = 5
	negligible = 0.01
)

// allocations prints what a message costs the heap at most: the least of several runs of n messages, all that their
// connections and queues cost included. A load that was held up lets its queue grow, and another run tells whether
// that was it. A run before them grows what is kept.
func (s subject) allocations(scheme, preset string, n uint64) error {
	load := func() error {
		_, err := s.load(scheme, "--preset", preset, "--rate", steady, "--count", fmt.Sprint(n))
		return err
	}
	if err := load(); err != nil {
		return err
	}
	first := read()
	objects, octets, runs := math.Inf(1), 0.0, 0
	for ; runs < countRuns && objects > negligible; runs++ {
		before := read()
		if err := load(); err != nil {
			return err
		}
		after := read()
		if o := float64(after.objects-before.objects) / float64(n); o < objects {
			objects, octets = o, float64(after.octets-before.octets)/float64(n)
		}
	}
	last, cycles := 0.0, uint64(0)
	pauses := subtract(read().pauses, first.pauses)
	for i, c := range pauses.Counts {
		if cycles += c; c > 0 {
			last = pauses.Buckets[i+1]
		}
	}
	fmt.Printf("%s, %s: %.6f allocations and %.3f bytes per message; %d pauses for garbage collection in %d runs, the longest %.3f ms\n",
		scheme, preset, objects, octets, cycles, runs, last*1e3)
	if objects > s.most {
		return fmt.Errorf("%s, %s: a message takes %g allocations, at most %g are allowed", scheme, preset, objects, s.most)
	}
	return nil
}

// heap is what the runtime counts.
type heap struct {
	objects, octets uint64
	pauses          *metrics.Float64Histogram
}

func read() heap {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/allocs:bytes"}, {Name: "/sched/pauses/total/gc:seconds"}}
	metrics.Read(samples)
	h := samples[2].Value.Float64Histogram()
	return heap{samples[0].Value.Uint64(), samples[1].Value.Uint64(), &metrics.Float64Histogram{Counts: slices.Clone(h.Counts), Buckets: h.Buckets}}
}

// subtract takes an older histogram of the same buckets from a newer one.
func subtract(after, before *metrics.Float64Histogram) *metrics.Float64Histogram {
	for i := range after.Counts {
		after.Counts[i] -= before.Counts[i]
	}
	return after
}
