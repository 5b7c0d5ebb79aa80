// Compare measures FireMQ beside other brokers on one machine, and makes the tables and figures of
// BENCHMARKS.md from what it measured.
//
//	compare run      runs every scenario against every broker, in turn, and writes runs.csv
//	compare growth   what a message costs FireMQ with more queues, connections, backlog and cores: growth.csv
//	compare watched  what a scrape and a look at the UI each second cost FireMQ under load: watched.csv, one line
//	compare gate     fails if FireMQ costs more than another binary of it, or its benchmarks more than they did
//	compare folder   makes a folder for results, and prints its name
//	compare tables   makes tables and figures from the CSV files, into BENCHMARKS.md
//
// bench/run.sh builds what is needed and calls it, bench/scrape.sh for watched; they tell the variables.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// settings are what the command line says.
type settings struct {
	firemq       string // the binary: broker and load
	results      string // the folder of all results
	out          string // the folder of these results
	seconds      float64
	runs         int
	messages     int      // of a backlog
	brokers      []string // columns wanted; none: all found
	scenarios    []string // wanted; none: all
	brokerCores  string   // of taskset; "": not pinned
	loadCores    string
	rabbitRoot   string // a root folder with a RabbitMQ in it
	lavinmq      string // a command
	nats         string // nats-server
	engine       string // "", native or docker
	cpus, memory string // of a container
	document     string // BENCHMARKS.md

	// Of gate: the binary to compare with, two files of go test -bench, a folder of test binaries, and the most
	// times slower.
	base, benchmarks, binaries string
	limit                      float64

	// Of watched.
	pairs, window       int // windows are in seconds
	queues, connections int
	persistent          bool
	most                float64 // percent
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("say what to do: run, growth, watched, gate, folder or tables")
	}
	var s settings
	var brokers, scenarios string
	f := flag.NewFlagSet("compare "+args[0], flag.ContinueOnError)
	f.StringVar(&s.firemq, "firemq", "./firemq", "the binary of FireMQ")
	f.StringVar(&s.results, "results", "bench/results", "the folder of all results")
	f.StringVar(&s.out, "out", "", "the folder of these results (default: today's in -results)")
	f.Float64Var(&s.seconds, "seconds", 20, "measured time of a run")
	f.IntVar(&s.runs, "runs", 3, "runs of each scenario and broker")
	f.IntVar(&s.messages, "messages", 0, "messages of a backlog (default: 100,000 a second of a run, at most 2,000,000)")
	f.StringVar(&brokers, "brokers", os.Getenv("BROKERS"), "brokers, by their names in the tables, separated by spaces (default: all that are found)")
	f.StringVar(&scenarios, "scenarios", os.Getenv("SCENARIOS"), "scenarios, separated by spaces (default: all)")
	f.StringVar(&s.brokerCores, "broker-cores", envOr("BROKER_CORES", "0"), "cores of the broker, as taskset takes them; none: not pinned")
	f.StringVar(&s.loadCores, "load-cores", envOr("LOAD_CORES", "1"), "cores of the load")
	f.StringVar(&s.rabbitRoot, "rabbitmq-root", os.Getenv("RABBITMQ_ROOT"), "a root folder with another RabbitMQ installed in it")
	f.StringVar(&s.lavinmq, "lavinmq", envOr("LAVINMQ", "lavinmq"), "the command that starts LavinMQ")
	f.StringVar(&s.nats, "nats", envOr("NATS", "nats-server"), "the nats-server")
	f.StringVar(&s.engine, "engine", os.Getenv("ENGINE"), "native or docker (default: docker if an engine answers)")
	f.StringVar(&s.cpus, "cpus", envOr("CPUS", "4"), "CPUs of a container")
	f.StringVar(&s.memory, "memory", envOr("MEMORY", "2g"), "memory of a container")
	f.StringVar(&s.document, "document", "BENCHMARKS.md", "the document whose marked parts are made anew")
	f.StringVar(&s.base, "base", "", "gate: the binary to compare with")
	f.StringVar(&s.benchmarks, "benchmarks", "", "gate: the output of go test -bench before and after, two files with a comma between")
	f.StringVar(&s.binaries, "binaries", "", "gate: the folder with the test binaries, to measure again what seems slower")
	f.Float64Var(&s.limit, "limit", 1.5, "gate: how many times what it took at the base something may take")
	f.IntVar(&s.pairs, "pairs", 40, "watched: pairs of windows")
	f.IntVar(&s.window, "window", 2, "watched: seconds of a window")
	f.IntVar(&s.queues, "queues", 100, "watched: queues beside the load's")
	f.IntVar(&s.connections, "connections", 100, "watched: connections beside the load's")
	f.BoolVar(&s.persistent, "persistent", false, "watched: persistent messages")
	f.Float64Var(&s.most, "most", 2, "watched: by how many percent the throughput may change")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	s.brokers, s.scenarios = strings.Fields(brokers), strings.Fields(scenarios)
	if s.messages == 0 {
		s.messages = min(2_000_000, int(s.seconds*100_000))
	}
	if args[0] == "gate" && s.out == "" {
		dir, err := os.MkdirTemp("", "gate-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		s.out = dir
	}
	if args[0] != "tables" {
		if s.out == "" {
			s.out = freshFolder(s.results, time.Now())
		}
		if err := os.MkdirAll(filepath.Join(s.out, "raw"), 0o755); err != nil {
			return err
		}
	}
	switch args[0] {
	case "run":
		return compare(ctx, s)
	case "growth":
		return growth(ctx, s)
	case "gate":
		return gate(ctx, s)
	case "watched":
		return watched(ctx, s)
	case "folder":
		fmt.Println(s.out)
		return nil
	case "tables":
		dir := s.out
		if f.NArg() > 0 {
			dir = f.Arg(0)
		}
		return tables(s, dir)
	}
	return fmt.Errorf("%q is none of run, growth, watched, gate, folder and tables", args[0])
}

func envOr(name, otherwise string) string {
	if v, ok := os.LookupEnv(name); ok {
		return v
	}
	return otherwise
}

// freshFolder is today's folder, with a number after those of today's others.
func freshFolder(results string, now time.Time) string {
	day := filepath.Join(results, now.Format(time.DateOnly))
	last := 0
	if _, err := os.Stat(day); err == nil {
		last = 1
	}
	others, _ := filepath.Glob(day + "-*") // the pattern is well-formed
	for _, dir := range others {
		if n, err := strconv.Atoi(strings.TrimPrefix(dir, day+"-")); err == nil {
			last = max(last, n)
		}
	}
	if last == 0 {
		return day
	}
	return fmt.Sprintf("%s-%d", day, last+1)
}
