package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/firemq/firemq/bench/plot"
)

// curve is what a message costs while one thing grows.
type curve struct {
	name, says string
	at         []int
	flags      func(x int) []string
	// cores says that x is the cores that the broker may use, unpinned, and that throughput is what counts.
	cores bool
}

var curves = []curve{
	{name: "queues", says: "queues, transient, 4 publishers and 4 consumers", at: []int{1, 100, 10_000}, flags: func(x int) []string {
		return []string{"--publishers", "4", "--consumers", "4", "--queues", fmt.Sprint(x)}
	}},
	{name: "queues-persistent", says: "queues, persistent, 4 publishers and 4 consumers", at: []int{1, 100, 10_000}, flags: func(x int) []string {
		return []string{"--persistent", "--publishers", "4", "--consumers", "4", "--queues", fmt.Sprint(x)}
	}},
	{name: "connections", says: "publishers, as many consumers and queues, transient", at: []int{1, 100, 1000}, flags: func(x int) []string {
		return []string{"--publishers", fmt.Sprint(x), "--consumers", fmt.Sprint(x), "--queues", fmt.Sprint(x)}
	}},
	{name: "backlog", says: "messages in the queue before, persistent, 1 publisher and 1 consumer", at: []int{0, 1_000_000, 10_000_000}, flags: func(x int) []string {
		return []string{"--persistent", "--backlog", fmt.Sprint(x)}
	}},
	{name: "cores", says: "cores of the broker, transient, 4 publishers and 4 consumers", at: []int{1, 2}, cores: true, flags: func(int) []string {
		return []string{"--publishers", "4", "--consumers", "4"}
	}},
	{name: "cores-persistent", says: "cores of the broker, persistent, 4 publishers and 4 consumers", at: []int{1, 2}, cores: true, flags: func(int) []string {
		return []string{"--persistent", "--publishers", "4", "--consumers", "4"}
	}},
}

// point is a line of growth.csv.
type point struct {
	curve          string
	x, run         int
	delivered, cpu float64 // per second; microseconds per message, of which half of the publishes and deliveries count
	rss, p99       float64 // MiB; milliseconds of delivery
}

var growthHeader = []string{"curve", "x", "run", "delivered_s", "cpu_us", "rss_mib", "delivery_p99_ms"}

// growth measures every curve of FireMQ, the points of each in turn.
func growth(ctx context.Context, s settings) error {
	if err := writeJSON(filepath.Join(s.out, "machine.json"), thisMachine(s, processes{s}.describe())); err != nil {
		return err
	}
	out, err := newTable(filepath.Join(s.out, "growth.csv"), growthHeader)
	if err != nil {
		return err
	}
	defer out.close()
	for _, c := range curves {
		if len(s.scenarios) > 0 && !slices.Contains(s.scenarios, c.name) {
			continue
		}
		for run := 1; run <= s.runs; run++ {
			for _, x := range c.at {
				p, err := measurePoint(ctx, s, c, x, run)
				if err != nil {
					return fmt.Errorf("%s, %d: %w", c.name, x, err)
				}
				fmt.Printf("%-18s %9d  %7.3f us  %9.0f/s  %7.1f MiB\n", c.name, x, p.cpu, p.delivered, p.rss)
				f := func(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
				if err := out.write([]string{c.name, strconv.Itoa(x), strconv.Itoa(run), f(p.delivered), f(p.cpu), f(p.rss), f(p.p99)}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func measurePoint(ctx context.Context, s settings, c curve, x, run int) (point, error) {
	k := fireMQ(s)
	if c.cores {
		s.brokerCores, s.loadCores = "", ""
		plain := k.command
		k.command = func(inside string, ports []int) ([]string, []string) {
			command, env := plain(inside, ports)
			return command, append(env, fmt.Sprintf("GOMAXPROCS=%d", x))
		}
	}
	n, err := newNative(s, k)
	if err != nil {
		return point{}, err
	}
	defer n.remove()
	if _, err := n.start(ctx); err != nil {
		return point{}, err
	}
	flags := append(c.flags(x), "--duration", fmt.Sprint(s.seconds), "--warmup", fmt.Sprint(warmup))
	rep, raw, err := n.load(ctx, "amqp", flags...)
	if err != nil {
		return point{}, err
	}
	if err := os.WriteFile(filepath.Join(s.out, "raw", fmt.Sprintf("growth-%s-%d-%d.json", c.name, x, run)), raw, 0o644); err != nil {
		return point{}, err
	}
	if err := rep.Err(); err != nil {
		return point{}, err
	}
	u := rep.BrokerUsage
	if u == nil {
		return point{}, errors.New("the broker's CPU time is not known")
	}
	return point{curve: c.name, x: x, run: run, delivered: rep.ConsumeRate, cpu: u.PerMessage, rss: mebibytes(u.PeakRSS), p99: rep.Latency.P99 / 1e3}, nil
}

const (
	flat  = 1.5 // times what a message costs at first it may cost at most
	scale = 1.6 // times as many are delivered by two cores at least
)

// verdict says whether the nth point of a curve is as it should be.
func (c *curve) verdict(n int, times float64) string {
	says, missed := fmt.Sprintf("at most %.1f", flat), times > flat
	if c.cores {
		says, missed = fmt.Sprintf("at least %.1f", scale), times < scale
	}
	switch {
	case n == 1:
		return ""
	case missed:
		return says + ", **missed**"
	}
	return says
}

// growthTables are a table and a figure of each curve, of the newest growth.csv; empty without one.
func growthTables(_ *report, s settings) (string, error) {
	dir, err := newest(s.results, "growth.csv")
	if err != nil {
		return "", nil
	}
	records, err := readCSV(filepath.Join(dir, "growth.csv"))
	if err != nil {
		return "", err
	}
	m, err := readMachine(dir)
	if err != nil {
		return "", err
	}
	points := map[string]map[int][]result{}
	for i, rec := range records {
		if len(rec) != len(growthHeader) {
			return "", fmt.Errorf("growth.csv, line %d: %d fields", i+2, len(rec))
		}
		x, err := strconv.Atoi(rec[1])
		if err != nil {
			return "", fmt.Errorf("growth.csv, line %d: %w", i+2, err)
		}
		var p result
		for k, v := range []*float64{&p.Delivered, &p.CPU, &p.RSS, &p.DeliveryP99} {
			if *v, err = strconv.ParseFloat(rec[3+k], 64); err != nil {
				return "", fmt.Errorf("growth.csv, line %d: %w", i+2, err)
			}
		}
		if points[rec[0]] == nil {
			points[rec[0]] = map[int][]result{}
		}
		points[rec[0]][x] = append(points[rec[0]][x], p)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "FireMQ alone, on %s at commit %s, runs of %g s; half of the publishes and deliveries count as messages. The last\nbut one column is the CPU per message, or where cores grow the throughput, against that of the first line.\n\n", m.Date, m.Commit, m.Seconds)
	fmt.Fprint(&b, "| | | CPU per message | delivered per second | peak RSS | times the first | target |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	lines := map[bool]*plot.Lines{
		false: {Title: "Broker CPU per message, while one thing grows", X: "of it", Y: "us", LogX: true},
		true:  {Title: "Delivered per second by cores of the broker", X: "cores", Y: "messages per second"},
	}
	for i := range curves {
		c := &curves[i]
		line := plot.Line{Name: c.name}
		for _, x := range c.at {
			runs := points[c.name][x]
			if len(runs) == 0 {
				continue
			}
			m := median(runs)
			says := ""
			if len(line.X) == 0 {
				says = c.says
			}
			y := m.CPU
			if c.cores {
				y = m.Delivered
			}
			line.X, line.Y = append(line.X, float64(x)), append(line.Y, y)
			fmt.Fprintf(&b, "| %s | %s | %.2f us | %s | %.0f MiB | %.2f | %s |\n", says, thousands(float64(x)), m.CPU, thousands(m.Delivered), m.RSS, y/line.Y[0], c.verdict(len(line.X), y/line.Y[0]))
		}
		if len(line.X) > 0 {
			lines[c.cores].Series = append(lines[c.cores].Series, line)
		}
	}
	b.WriteString("\n")
	for _, f := range []struct {
		cores      bool
		file, says string
	}{{false, "growth.svg", "CPU per message while one thing grows"}, {true, "cores.svg", "throughput by cores"}} {
		if len(lines[f.cores].Series) == 0 {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, f.file), []byte(lines[f.cores].SVG()), 0o644); err != nil {
			return "", err
		}
		b.WriteString(figureIn(dir, f.file, f.says))
	}
	return b.String(), nil
}
