package main

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/firemq/firemq/bench/plot"
)

// report is what is known of one comparison.
type report struct {
	dir     string
	machine machine
	rows    []result // medians: one a scenario and broker
	runs    int      // lines of runs.csv
	brokers []string // in order of columns
	title   map[string]string
	lost    []string
	failed  []failure
}

// failure is a run that ended with an error.
type failure struct{ scenario, broker, run, err string }

// sections are the parts of the document that are made here, by the name of their marker.
var sections = []struct {
	name string
	make func(*report, settings) (string, error)
}{
	{"headline", headline},
	{"method", method},
	{"throughput", throughput},
	{"latency", latency},
	{"backlog", backlog},
	{"targets", targets},
	{"growth", growthTables},
	{"history", history},
	{"behind", behindTable},
	{"limits", limitsTable},
	{"watched", watchedLine},
}

// tables makes the marked parts of the document, and the figures beside the CSV files.
func tables(s settings, dir string) error {
	if dir == "" {
		var err error
		if dir, err = newest(s.results, "runs.csv"); err != nil {
			return err
		}
	}
	r, err := readReport(dir)
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(s.document)
	if err != nil {
		return err
	}
	text := string(raw)
	for _, section := range sections {
		part, err := section.make(r, s)
		if err != nil {
			return err
		}
		if part == "" {
			continue // not measured: what the document says of it stays
		}
		if text, err = replaceSection(text, section.name, part); err != nil {
			return err
		}
	}
	return os.WriteFile(s.document, []byte(text), 0o644)
}

// replaceSection replaces what is between the markers of a name.
func replaceSection(text, name, part string) (string, error) {
	begin, end := fmt.Sprintf("<!-- begin %s -->\n", name), fmt.Sprintf("<!-- end %s -->", name)
	i := strings.Index(text, begin)
	j := strings.Index(text, end)
	if i < 0 || j < i {
		return "", fmt.Errorf("the document has no %q before %q", strings.TrimSpace(begin), end)
	}
	return text[:i+len(begin)] + strings.TrimSpace(part) + "\n" + text[j:], nil
}

// newest is the latest folder by its name that has such a file.
func newest(results, file string) (string, error) {
	found, err := filepath.Glob(filepath.Join(results, "*", file))
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("there is no %s in %s", file, results)
	}
	return filepath.Dir(slices.MaxFunc(found, byDate)), nil
}

// byDate orders 2026-11-29, 2026-11-29-2, 2026-11-29-10.
func byDate(a, b string) int {
	day := func(path string) string {
		dir := filepath.Base(filepath.Dir(path))
		return dir[:min(len(dir), len(time.DateOnly))]
	}
	return cmp.Or(cmp.Compare(day(a), day(b)), cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

func readReport(dir string) (*report, error) {
	r := &report{dir: dir, title: map[string]string{}}
	var err error
	if r.machine, err = readMachine(dir); err != nil {
		return nil, err
	}
	records, err := readCSV(filepath.Join(dir, "runs.csv"))
	if err != nil {
		return nil, err
	}
	all := map[[2]string][]result{}
	var keys [][2]string
	for i, rec := range records {
		res, err := parseResult(rec)
		if err != nil {
			return nil, fmt.Errorf("runs.csv, line %d: %w", i+2, err)
		}
		key := [2]string{res.Scenario, res.Broker}
		if all[key] == nil {
			keys = append(keys, key)
		}
		all[key] = append(all[key], res)
		if !slices.Contains(r.brokers, res.Broker) {
			r.brokers = append(r.brokers, res.Broker)
		}
		if res.Product != "" {
			r.title[res.Broker] = title(res.Broker, res.Product)
		}
		if res.Lost+res.Again > 0 {
			r.lost = append(r.lost, fmt.Sprintf("%s, %s: %d lost and %d delivered twice of %d", res.Scenario, res.Broker, res.Lost, res.Again, res.Expected))
		}
	}
	r.runs = len(records)
	failed, err := readCSV(filepath.Join(dir, failuresFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for i, rec := range failed {
		if len(rec) != 4 {
			return nil, fmt.Errorf("%s, line %d: %d fields, not 4", failuresFile, i+2, len(rec))
		}
		r.failed = append(r.failed, failure{rec[0], rec[1], rec[2], strings.Join(strings.Fields(rec[3]), " ")})
		if !slices.Contains(r.brokers, rec[1]) {
			r.brokers = append(r.brokers, rec[1])
		}
	}
	order := columnNames()
	slices.SortStableFunc(r.brokers, func(a, b string) int { return slices.Index(order, a) - slices.Index(order, b) })
	for _, key := range keys {
		r.rows = append(r.rows, median(all[key]))
	}
	return r, nil
}

func readMachine(dir string) (m machine, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, "machine.json"))
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, fmt.Errorf("machine.json: %w", err)
	}
	return m, nil
}

// title is a product with how it was used.
func title(broker, product string) string {
	product = strings.TrimSpace(strings.Replace(product, "firemq", "FireMQ", 1))
	switch {
	case strings.HasSuffix(broker, "-quorum"):
		return product + ", quorum queue"
	case strings.HasSuffix(broker, "-nodelay"):
		return product + ", tcp_nodelay"
	case strings.HasSuffix(broker, "-fmq1"):
		return product + ", FMQ1"
	case broker == "nats":
		return product + ", core"
	case broker == "nats-jetstream":
		return product + ", JetStream, sync every 2 minutes"
	case broker == "nats-jetstream-sync":
		return product + ", JetStream, sync always"
	}
	return product
}

// median is that of each figure by itself.
func median(runs []result) result {
	m := runs[0]
	of := func(get func(*result) *float64) {
		var vs []float64
		for i := range runs {
			vs = append(vs, *get(&runs[i]))
		}
		slices.Sort(vs)
		*get(&m) = (vs[(len(vs)-1)/2] + vs[len(vs)/2]) / 2
	}
	for _, get := range []func(*result) *float64{
		func(r *result) *float64 { return &r.Published }, func(r *result) *float64 { return &r.Delivered },
		func(r *result) *float64 { return &r.CPU }, func(r *result) *float64 { return &r.Cores },
		func(r *result) *float64 { return &r.LoadCPU }, func(r *result) *float64 { return &r.RSS },
		func(r *result) *float64 { return &r.DeliveryP50 }, func(r *result) *float64 { return &r.DeliveryP99 },
		func(r *result) *float64 { return &r.ConfirmP50 }, func(r *result) *float64 { return &r.ConfirmP99 },
		func(r *result) *float64 { return &r.Seconds },
	} {
		of(get)
	}
	return m
}

func readCSV(path string) ([][]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	records, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("%s is empty", path)
	}
	return records[1:], nil
}

// get finds a row; a row that was not measured is the zero result.
func (r *report) get(scenario, broker string) (result, bool) {
	for _, row := range r.rows {
		if row.Scenario == scenario && row.Broker == broker {
			return row, true
		}
	}
	return result{}, false
}

// fails says whether a run of it ended with an error.
func (r *report) fails(scenario, broker string) bool {
	return slices.ContainsFunc(r.failed, func(f failure) bool { return f.scenario == scenario && f.broker == broker })
}

// of are the brokers with results, or failures, in any of these scenarios.
func (r *report) of(scenarios ...string) (brokers []string) {
	for _, b := range r.brokers {
		if slices.ContainsFunc(scenarios, func(s string) bool { _, ok := r.get(s, b); return ok || r.fails(s, b) }) {
			brokers = append(brokers, b)
		}
	}
	return brokers
}

func (r *report) titles(brokers []string) (names []string) {
	for _, b := range brokers {
		names = append(names, cmp.Or(r.title[b], b))
	}
	return names
}

// grid is a table with a row for each scenario and a column for each broker.
func (r *report) grid(scenarios []string, cell func(result) string) string {
	brokers := r.of(scenarios...)
	if len(brokers) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |\n|%s\n", strings.Join(r.titles(brokers), " | "), strings.Repeat(" --- |", len(brokers)+1))
	for _, s := range scenarios {
		cells := make([]string, len(brokers))
		empty := true
		for i, broker := range brokers {
			if row, ok := r.get(s, broker); ok {
				cells[i] = cell(row)
				empty = false
			} else if r.fails(s, broker) {
				cells[i] = "failed"
				empty = false
			}
		}
		if !empty {
			fmt.Fprintf(&b, "| %s | %s |\n", rowName(s, r.machine), strings.Join(cells, " | "))
		}
	}
	return b.String() + "\n"
}

func rowName(scenario string, m machine) string {
	names := map[string]string{
		"transient": "transient, 1 publisher, 1 consumer", "transient-4x4": "transient, 4 and 4 on one queue",
		"persistent": "persistent, 1 and 1", "persistent-4x4": "persistent, 4 and 4 on one queue",
		"persistent-1k": "persistent, 1 and 1, 1 KiB", "fanout": "persistent, fanout to 10 queues",
		"queues":  "persistent, 100 queues, 10 and 10",
		"latency": "transient, 1,000/s", "latency-persistent": "persistent, 1,000/s",
		"half": "transient, half of its own full rate", "half-persistent": "persistent, half of its own full rate",
		"fill":  fmt.Sprintf("fill %s persistent", plot.Short(float64(m.Messages))),
		"drain": fmt.Sprintf("drain %s persistent", plot.Short(float64(m.Messages))),
		"idle":  "new", "ready-after-stop": "after a clean stop", "ready-after-kill": "after kill -9",
	}
	return cmp.Or(names[scenario], scenario)
}

var (
	loads     = []string{"transient", "transient-4x4", "persistent", "persistent-4x4", "persistent-1k", "fanout", "queues"}
	latencies = []string{"latency", "latency-persistent", "half", "half-persistent"}
)

func method(r *report, _ settings) (string, error) {
	m := r.machine
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s at commit %s: %d cores of an %s, %s, %s; %s. %d runs of %g s, in turn; of each the median of %d.\n",
		m.Date, cmp.Or(m.Commit, "(not committed)"), m.Cores, m.CPU, m.Kernel, m.Go, m.Engine, r.runs, m.Seconds, m.Runs)
	if len(r.lost) > 0 {
		fmt.Fprintf(&b, "\nLost or delivered twice:\n\n- %s\n", strings.Join(r.lost, "\n- "))
	} else {
		fmt.Fprint(&b, "\nNo message was lost or delivered twice by any of them, in any run that ended.\n")
	}
	for _, f := range r.failed {
		fmt.Fprintf(&b, "\nRun %s of *%s* of %s failed: %s\n", f.run, rowName(f.scenario, m), cmp.Or(r.title[f.broker], f.broker), f.err)
	}
	if len(m.Without) > 0 {
		fmt.Fprint(&b, "\nNot measured, and why:\n\n")
		for _, w := range m.Without {
			fmt.Fprintf(&b, "- `%s`: %s\n", w.Broker, w.Why)
		}
	}
	return b.String(), nil
}

func throughput(r *report, _ settings) (string, error) {
	cpu := r.grid(loads, func(r result) string {
		if r.CPU == 0 {
			return "none delivered"
		}
		return fmt.Sprintf("%.2f", r.CPU)
	})
	if cpu == "" {
		return "", nil
	}
	rate := r.grid(loads, func(r result) string { return thousands(r.Delivered) })
	rss := r.grid(loads, func(r result) string { return fmt.Sprintf("%.0f", r.RSS) })
	if err := r.bars("cpu.svg", "Broker CPU per delivered message", "us", loads, func(r result) float64 { return r.CPU }); err != nil {
		return "", err
	}
	if err := r.bars("rate.svg", "Delivered per second", "", loads, func(r result) float64 { return r.Delivered }); err != nil {
		return "", err
	}
	return "Microseconds of broker CPU per delivered message:\n\n" + cpu + "Delivered per second:\n\n" + rate +
		"Peak resident memory in MiB:\n\n" + rss + r.figure("cpu.svg", "CPU per message") + r.figure("rate.svg", "delivered per second"), nil
}

func latency(r *report, _ settings) (string, error) {
	delivery := r.grid(latencies, func(r result) string { return fmt.Sprintf("%.2f / %.2f", r.DeliveryP50, r.DeliveryP99) })
	if delivery == "" {
		return "", nil
	}
	confirm := r.grid(latencies, func(r result) string { return fmt.Sprintf("%.2f / %.2f", r.ConfirmP50, r.ConfirmP99) })
	if err := r.bars("latency.svg", "p99 of delivery", "ms", latencies, func(r result) float64 { return r.DeliveryP99 }); err != nil {
		return "", err
	}
	return "From publish to delivery, p50 / p99 in milliseconds:\n\n" + delivery + "From publish to confirm:\n\n" + confirm +
		r.figure("latency.svg", "latency"), nil
}

func backlog(r *report, _ settings) (string, error) {
	filled := r.grid([]string{"fill", "drain"}, func(r result) string {
		return fmt.Sprintf("%s/s, %.2f us", thousands(max(r.Published, r.Delivered)), r.CPU)
	})
	ready := r.grid([]string{"idle", "ready-after-stop", "ready-after-kill"}, func(r result) string {
		switch {
		case r.Lost > 0:
			return fmt.Sprintf("%.2f s, %s missing", r.Seconds, thousands(float64(r.Lost)))
		case r.RSS > 0:
			return fmt.Sprintf("%.3f s, then %.1f MiB resident", r.Seconds, r.RSS)
		}
		return fmt.Sprintf("%.2f s", r.Seconds)
	})
	if filled+ready == "" {
		return "", nil
	}
	return filled + fmt.Sprintf("From the start of the process to the first login, and with %s messages until all are there again:\n\n",
		plot.Short(float64(r.machine.Messages))) + ready, nil
}

// target is what a figure should be.
type target struct {
	says string
	// is is the figure, and whether it was measured.
	is   func(*report) (float64, bool)
	unit string
	most float64 // or, negative: at least its opposite
}

func cpuOf(broker, scenario string) func(*report) (float64, bool) {
	return func(r *report) (float64, bool) { row, ok := r.get(scenario, broker); return row.CPU, ok }
}

func figure(broker, scenario string, f func(result) float64) func(*report) (float64, bool) {
	return func(r *report) (float64, bool) { row, ok := r.get(scenario, broker); return f(row), ok }
}

// worst is the least ratio of a peer's CPU per message to FireMQ's over all loads.
func worst(prefix string) func(*report) (float64, bool) {
	return func(r *report) (float64, bool) {
		least := math.Inf(1)
		for _, broker := range r.brokers {
			if !strings.HasPrefix(broker, prefix) {
				continue
			}
			for _, load := range append(slices.Clone(loads), "drain") {
				mine, ok := r.get(load, "firemq")
				theirs, ok2 := r.get(load, broker)
				if ok && ok2 && mine.CPU > 0 {
					least = min(least, theirs.CPU/mine.CPU)
				}
			}
		}
		return least, !math.IsInf(least, 1)
	}
}

// behind is by what FireMQ's latency is longer than that of the best of the peers with the prefix: the largest
// ratio of all figures that of gives at a fixed rate.
func behind(prefix string, of ...func(result) float64) func(*report) (float64, bool) {
	return func(r *report) (float64, bool) {
		most, found := 0.0, false
		for _, broker := range r.brokers {
			if !strings.HasPrefix(broker, prefix) {
				continue
			}
			for _, load := range []string{"latency", "latency-persistent"} {
				mine, ok := r.get(load, "firemq")
				theirs, ok2 := r.get(load, broker)
				for _, f := range of {
					if ok && ok2 && f(theirs) > 0 {
						most, found = max(most, f(mine)/f(theirs)), true
					}
				}
			}
		}
		return most, found
	}
}

func deliveryP50(r result) float64 { return r.DeliveryP50 }
func deliveryP99(r result) float64 { return r.DeliveryP99 }
func confirmP50(r result) float64  { return r.ConfirmP50 }
func confirmP99(r result) float64  { return r.ConfirmP99 }

var goals = []target{
	{"transient, 1 and 1: CPU", cpuOf("firemq", "transient"), "us", 1},
	{"transient, 4 and 4: CPU", cpuOf("firemq", "transient-4x4"), "us", 1},
	{"transient, 1 and 1: delivered", figure("firemq", "transient", func(r result) float64 { return r.Delivered }), "/s", -600_000},
	{"transient, 4 and 4: delivered", figure("firemq", "transient-4x4", func(r result) float64 { return r.Delivered }), "/s", -800_000},
	{"transient over FMQ1: CPU", cpuOf("firemq-fmq1", "transient"), "us", 0.8},
	{"persistent, 1 and 1: CPU", cpuOf("firemq", "persistent"), "us", 1.5},
	{"persistent, 4 and 4: CPU", cpuOf("firemq", "persistent-4x4"), "us", 1.5},
	{"persistent, 1 and 1: delivered", figure("firemq", "persistent", func(r result) float64 { return r.Delivered }), "/s", -400_000},
	{"persistent, 1 KiB: CPU", cpuOf("firemq", "persistent-1k"), "us", 2.5},
	{"fanout to 10: CPU", cpuOf("firemq", "fanout"), "us", 0.8},
	{"100 queues: CPU", cpuOf("firemq", "queues"), "us", 1.8},
	{"100 queues: memory", figure("firemq", "queues", func(r result) float64 { return r.RSS }), "MiB", 150},
	{"drain: CPU", cpuOf("firemq", "drain"), "us", 0.8},
	{"confirm at 1,000/s, transient: p99", figure("firemq", "latency", confirmP99), "ms", 0.5},
	{"confirm at 1,000/s, persistent: p50", figure("firemq", "latency-persistent", confirmP50), "ms", 0.5},
	{"confirm at 1,000/s, persistent: p99", figure("firemq", "latency-persistent", confirmP99), "ms", 1.5},
	{"delivery at half of full throughput, transient: p99", figure("firemq", "half", deliveryP99), "ms", 5},
	{"delivery at half of full throughput, persistent: p99", figure("firemq", "half-persistent", deliveryP99), "ms", 5},
	{"latency at 1,000/s: times RabbitMQ's, worst figure", behind("rabbitmq", deliveryP50, deliveryP99, confirmP50, confirmP99), "", 1},
	{"confirm at 1,000/s: times LavinMQ's, worst figure", behind("lavinmq", confirmP50, confirmP99), "", 1},
	{"confirm at 1,000/s, transient over FMQ1: p99", figure("firemq-fmq1", "latency", confirmP99), "ms", 0.5},
	{"idle: memory", figure("firemq", "idle", func(r result) float64 { return r.RSS }), "MiB", 10},
	{"transient, 1 and 1: memory", figure("firemq", "transient", func(r result) float64 { return r.RSS }), "MiB", 30},
	{"messages for the CPU of one of RabbitMQ, worst load", worst("rabbitmq"), "", -20},
	{"messages for the CPU of one of LavinMQ, worst load", worst("lavinmq"), "", -2},
}

func targets(r *report, _ settings) (string, error) {
	var b strings.Builder
	for _, g := range goals {
		v, ok := g.is(r)
		if !ok {
			continue
		}
		bound, reached := fmt.Sprintf("at most %s", figureOf(g.most, g.unit)), v <= g.most
		if g.most < 0 {
			bound, reached = fmt.Sprintf("at least %s", figureOf(-g.most, g.unit)), v >= -g.most
		}
		verdict := "yes"
		if !reached {
			verdict = "**no**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", g.says, bound, figureOf(v, g.unit), verdict)
	}
	if b.Len() == 0 {
		return "", nil
	}
	return "| | target | measured | reached |\n| --- | --- | --- | --- |\n" + b.String(), nil
}

func figureOf(v float64, unit string) string {
	if unit == "/s" {
		return thousands(v) + unit
	}
	return strings.TrimSpace(plot.Short(v) + " " + unit)
}

// history is what the headline figures were at each commit that was measured.
func history(r *report, s settings) (string, error) {
	found, err := filepath.Glob(filepath.Join(s.results, "*", "runs.csv"))
	if err != nil {
		return "", err
	}
	if this := filepath.Join(r.dir, "runs.csv"); !slices.Contains(found, this) {
		found = append(found, this)
	}
	slices.SortFunc(found, byDate)
	var b strings.Builder
	for _, path := range found {
		old, err := readReport(filepath.Dir(path))
		if err != nil {
			return "", err
		}
		cells := []string{old.machine.Date, old.machine.Commit}
		for _, name := range loads {
			row, ok := old.get(name, "firemq")
			if !ok {
				cells = append(cells, "")
				continue
			}
			cells = append(cells, fmt.Sprintf("%.2f", row.CPU))
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	return "| date | commit | " + strings.Join(loads, " | ") + " |\n|" + strings.Repeat(" --- |", len(loads)+2) + "\n" + b.String(), nil
}

// bars draws a figure of all brokers into the folder of the results.
func (r *report) bars(file, name, unit string, scenarios []string, of func(result) float64) error {
	brokers := r.of(scenarios...)
	chart := plot.Bars{Title: name, Unit: unit, Series: r.titles(brokers)}
	for _, s := range scenarios {
		g := plot.Group{Name: s}
		measured := false
		for _, broker := range brokers {
			v := math.NaN()
			if row, ok := r.get(s, broker); ok {
				v, measured = of(row), true
			}
			g.Values = append(g.Values, v)
		}
		if measured {
			chart.Groups = append(chart.Groups, g)
		}
	}
	return os.WriteFile(filepath.Join(r.dir, file), []byte(chart.SVG()), 0o644)
}

// figure is the line of the document that shows a figure.
func (r *report) figure(file, says string) string { return figureIn(r.dir, file, says) }

func figureIn(dir, file, says string) string {
	return fmt.Sprintf("![%s](%s)\n\n", says, filepath.ToSlash(filepath.Join(dir, file)))
}

// thousands is a number without its fraction, in groups of three.
func thousands(v float64) string {
	digits := fmt.Sprintf("%.0f", v)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}
