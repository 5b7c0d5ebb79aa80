package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/firemq/firemq/bench"
)

// result is a line of runs.csv. A figure that was not measured is 0.
type result struct {
	Scenario, Broker, Product string
	Run                       int
	Published, Delivered      float64 // messages per second
	CPU                       float64 // of the broker, microseconds per delivered message, or published where none is
	Cores                     float64 // that the broker used
	LoadCPU                   float64 // of the load, microseconds per message
	RSS                       float64 // peak, MiB
	DeliveryP50, DeliveryP99  float64 // milliseconds
	ConfirmP50, ConfirmP99    float64 // milliseconds
	Seconds                   float64 // of a start, or of the measured time
	Expected, Lost, Again     uint64  // messages

	fill *bench.Filled
}

func resultOf(name, column string, run int, rep *bench.Report) result {
	r := result{
		Scenario: name, Broker: column, Product: rep.Broker.Product, Run: run,
		Published: rep.PublishRate, Delivered: rep.ConsumeRate, LoadCPU: rep.ClientCPU, Seconds: rep.Measured,
		DeliveryP50: rep.Latency.P50 / 1e3, DeliveryP99: rep.Latency.P99 / 1e3,
		ConfirmP50: rep.ConfirmLatency.P50 / 1e3, ConfirmP99: rep.ConfirmLatency.P99 / 1e3,
		Expected: rep.Expected, Lost: rep.Lost, Again: rep.Duplicated, fill: rep.Fill,
	}
	if u := rep.BrokerUsage; u != nil {
		r.CPU, r.Cores, r.RSS = u.PerDelivered, u.Cores, mebibytes(u.PeakRSS)
	}
	return r
}

var header = []string{
	"scenario", "broker", "product", "run", "published_s", "delivered_s", "cpu_us", "cores", "load_cpu_us", "rss_mib",
	"delivery_p50_ms", "delivery_p99_ms", "confirm_p50_ms", "confirm_p99_ms", "seconds", "expected", "lost", "duplicated",
}

func (r result) record() []string {
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
	u := func(v uint64) string { return strconv.FormatUint(v, 10) }
	return []string{
		r.Scenario, r.Broker, r.Product, strconv.Itoa(r.Run), f(r.Published), f(r.Delivered), f(r.CPU), f(r.Cores), f(r.LoadCPU), f(r.RSS),
		f(r.DeliveryP50), f(r.DeliveryP99), f(r.ConfirmP50), f(r.ConfirmP99), f(r.Seconds), u(r.Expected), u(r.Lost), u(r.Again),
	}
}

// parseResult is the inverse of record.
func parseResult(rec []string) (r result, err error) {
	if len(rec) != len(header) {
		return r, fmt.Errorf("%d fields, not %d", len(rec), len(header))
	}
	r.Scenario, r.Broker, r.Product = rec[0], rec[1], rec[2]
	if r.Run, err = strconv.Atoi(rec[3]); err != nil {
		return r, err
	}
	for i, v := range []*float64{
		&r.Published, &r.Delivered, &r.CPU, &r.Cores, &r.LoadCPU, &r.RSS,
		&r.DeliveryP50, &r.DeliveryP99, &r.ConfirmP50, &r.ConfirmP99, &r.Seconds,
	} {
		if *v, err = strconv.ParseFloat(rec[4+i], 64); err != nil {
			return r, err
		}
	}
	for i, v := range []*uint64{&r.Expected, &r.Lost, &r.Again} {
		if *v, err = strconv.ParseUint(rec[15+i], 10, 64); err != nil {
			return r, err
		}
	}
	return r, nil
}

// machine is where and how it was measured: machine.json.
type machine struct {
	Date     string  `json:"date"`
	Commit   string  `json:"commit"`
	CPU      string  `json:"cpu"`
	Cores    int     `json:"cores"`
	Kernel   string  `json:"kernel"`
	Go       string  `json:"go"`
	Engine   string  `json:"engine"`
	Seconds  float64 `json:"seconds"`
	Runs     int     `json:"runs"`
	Messages int     `json:"messages"`

	Without []absence `json:"without,omitempty"`
}

// absence is a broker that was not measured.
type absence struct {
	Broker string `json:"broker"`
	Why    string `json:"why"`
}

func thisMachine(s settings, engine string) machine {
	m := machine{
		Date: time.Now().Format(time.DateOnly), Cores: runtime.NumCPU(), Go: runtime.Version(), CPU: runtime.GOARCH,
		Engine: engine, Seconds: s.seconds, Runs: s.runs, Messages: s.messages,
	}
	if out, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil {
		m.Commit = strings.TrimSpace(string(out))
	}
	if out, err := exec.Command("uname", "-sr").Output(); err == nil {
		m.Kernel = strings.TrimSpace(string(out))
	}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := strings.Cut(string(info), "model name\t: "); ok {
			m.CPU, _, _ = strings.Cut(rest, "\n")
		}
	}
	return m
}

// table is a CSV file that is written line by line, so that a run which ends early leaves what it has.
type table struct {
	f *os.File
	w *csv.Writer
}

func newTable(path string, header []string) (*table, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	t := &table{f: f, w: csv.NewWriter(f)}
	return t, t.write(header)
}

func (t *table) write(record []string) error {
	t.w.Write(record)
	t.w.Flush()
	return t.w.Error()
}

func (t *table) close() error { return t.f.Close() }

// results is the folder of one comparison.
type results struct {
	runs     *table
	failures *table
}

func newResults(s settings, where place, without []absence) (*results, error) {
	m := thisMachine(s, where.describe())
	m.Without = without
	if err := writeJSON(filepath.Join(s.out, "machine.json"), m); err != nil {
		return nil, err
	}
	runs, err := newTable(filepath.Join(s.out, "runs.csv"), header)
	if err != nil {
		return nil, err
	}
	failures, err := newTable(filepath.Join(s.out, failuresFile), []string{"scenario", "broker", "run", "error"})
	return &results{runs: runs, failures: failures}, err
}

// failuresFile has the runs that ended with an error.
const failuresFile = "failures.csv"

func (r *results) add(res result) error { return r.runs.write(res.record()) }

func (r *results) failed(scenario, broker string, run int, err error) error {
	return r.failures.write([]string{scenario, broker, strconv.Itoa(run), err.Error()})
}

func (r *results) close() {
	r.runs.close()
	r.failures.close()
}

func writeJSON(path string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644)
}
