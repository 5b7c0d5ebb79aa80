package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestResultRecord(t *testing.T) {
	want := result{
		Scenario: "transient", Broker: "firemq", Product: "firemq 1", Run: 2, Published: 1.5e6, Delivered: 1.25e6, CPU: 0.5, Cores: 0.75,
		LoadCPU: 0.25, RSS: 12.5, DeliveryP50: 0.125, DeliveryP99: 2, ConfirmP50: 3, ConfirmP99: 4, Seconds: 5, Expected: 6, Lost: 7, Again: 8,
	}
	rec := want.record()
	if len(rec) != len(header) {
		t.Fatalf("%d fields, %d names", len(rec), len(header))
	}
	got, err := parseResult(rec)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\ngot  %+v\nwant %+v", err, got, want)
	}
	for i := 3; i < len(rec); i++ {
		bad := append([]string(nil), rec...)
		bad[i] = "x"
		if _, err := parseResult(bad); err == nil {
			t.Errorf("no error for %s x", header[i])
		}
	}
	if _, err := parseResult(rec[1:]); err == nil {
		t.Error("no error for a field too few")
	}
}

func TestMedian(t *testing.T) {
	m := median([]result{{CPU: 3, RSS: 1}, {CPU: 1, RSS: 3}, {CPU: 2, RSS: 2}})
	if m.CPU != 2 || m.RSS != 2 {
		t.Errorf("of three: %+v", m)
	}
	if m := median([]result{{CPU: 3}, {CPU: 1}}); m.CPU != 2 {
		t.Errorf("of two: %+v", m)
	}
}

func TestReplaceSection(t *testing.T) {
	const text = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n"
	got, err := replaceSection(text, "x", "new\n\n")
	if want := "a\n<!-- begin x -->\nnew\n<!-- end x -->\nb\n"; err != nil || got != want {
		t.Errorf("%v, %q", err, got)
	}
	if _, err := replaceSection(text, "y", "new"); err == nil {
		t.Error("no error for a marker that is missing")
	}
}

// TestAbsences: who was not measured, or failed, is in the document with the reason.
func TestAbsences(t *testing.T) {
	dir := t.TempDir()
	s := settings{out: dir}
	out, err := newResults(s, processes{s}, []absence{{"lavinmq", "not asked for"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, broker := range []string{"firemq", "rabbitmq"} {
		if err := out.add(result{Scenario: "transient", Broker: broker, CPU: 1, Delivered: 1000, RSS: 10}); err != nil {
			t.Fatal(err)
		}
	}
	for _, broker := range []string{"rabbitmq", "nats-jetstream"} {
		if err := out.failed("persistent", broker, 2, errors.New("no answer,\n\tnever")); err != nil {
			t.Fatal(err)
		}
	}
	out.close()
	r, err := readReport(dir)
	if err != nil {
		t.Fatal(err)
	}
	grid := r.grid([]string{"transient", "persistent"}, func(r result) string { return fmt.Sprint(r.CPU) })
	want := `| | firemq | rabbitmq | nats-jetstream |
| --- | --- | --- | --- |
| transient, 1 publisher, 1 consumer | 1 | 1 |  |
| persistent, 1 and 1 |  | failed | failed |

`
	if grid != want {
		t.Errorf("got\n%s\nwant\n%s", grid, want)
	}
	text, err := method(r, s)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Run 2 of *persistent, 1 and 1* of nats-jetstream failed: no answer, never\n", "- `lavinmq`: not asked for\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

func TestFreshFolder(t *testing.T) {
	dir, day := t.TempDir(), time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
	for _, want := range []string{"2026-11-29", "2026-11-29-2", "2026-11-29-3"} {
		got := freshFolder(dir, day)
		if filepath.Base(got) != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if err := os.Mkdir(got, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// After the last one, though there is a gap.
	if err := os.Mkdir(filepath.Join(dir, "2026-11-29-10"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := freshFolder(dir, day); filepath.Base(got) != "2026-11-29-11" {
		t.Errorf("got %s behind number 10", got)
	}
}

// TestTables makes the document from two results, twice: the second time changes nothing.
func TestTables(t *testing.T) {
	dir := t.TempDir()
	s := settings{results: dir, document: filepath.Join(dir, "doc.md")}
	folder := filepath.Join(dir, "2026-01-02")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeJSON(filepath.Join(folder, "machine.json"), machine{Date: "2026-01-02", Commit: "abc", Messages: 200_000}); err != nil {
		t.Fatal(err)
	}
	write := func(file string, header []string, lines [][]string) {
		out, err := newTable(filepath.Join(folder, file), header)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			if err := out.write(line); err != nil {
				t.Fatal(err)
			}
		}
		out.close()
	}
	var lines [][]string
	for i, broker := range []string{"rabbitmq", "firemq"} {
		for _, name := range append(append([]string{"idle", "fill", "drain", "ready-after-kill"}, loads...), latencies...) {
			lines = append(lines, result{
				Scenario: name, Broker: broker, Product: strings.ToUpper(broker), CPU: 30 / float64(30*i+1), Delivered: 1e6, Published: 1e6,
				Seconds: 1, RSS: 5, DeliveryP50: 0.1, DeliveryP99: 0.2, ConfirmP50: 0.3, ConfirmP99: 0.4,
			}.record())
		}
	}
	write("runs.csv", header, lines)
	write("growth.csv", growthHeader, [][]string{{"queues", "1", "1", "1e6", "1", "10", "1"}, {"queues", "10000", "1", "1e6", "1.25", "10", "1"}})
	var text strings.Builder
	for _, section := range sections {
		fmt.Fprintf(&text, "## %s\n\n<!-- begin %s -->\n<!-- end %s -->\n\n", section.name, section.name, section.name)
	}
	if err := os.WriteFile(s.document, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	made := func() string {
		if err := tables(s, ""); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(s.document)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	first := made()
	for _, want := range []string{
		"| | FIREMQ | RABBITMQ |\n", "| transient, 1 publisher, 1 consumer | 0.97 | 30.00 |\n", "| drain 200k persistent | 1,000,000/s, 0.97 us |",
		"| 10,000 | 1.25 us | 1,000,000 | 10 MiB | 1.25 |", "| at least 20 | 31 | yes |", "| 2026-01-02 | abc | 0.97 |", "No message was lost",
	} {
		if !strings.Contains(first, want) {
			t.Errorf("no %q in\n%s", want, first)
		}
	}
	for _, file := range []string{"cpu.svg", "rate.svg", "latency.svg", "growth.svg"} {
		if raw, err := os.ReadFile(filepath.Join(folder, file)); err != nil || !strings.HasPrefix(string(raw), "<svg") {
			t.Errorf("%s: %v", file, err)
		}
	}
	if second := made(); second != first {
		t.Errorf("the second time makes\n%s\nfrom\n%s", second, first)
	}
}

// TestContainers has a docker that writes its arguments down.
func TestContainers(t *testing.T) {
	dir := t.TempDir()
	calls := filepath.Join(dir, "calls")
	script := "#!/bin/sh\necho \"$@\" >>" + calls + "\ncase $1 in\nstats) echo '12.5MiB / 2GiB' ;;\nrun) [ \"$2\" = --detach ] || echo '{\"consume_rate_s\": 7}' ;;\nesac\n"
	if err := os.WriteFile(filepath.Join(dir, "docker"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	binary := filepath.Join(dir, "firemq")
	if err := os.WriteFile(binary, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	s := settings{firemq: binary, cpus: "2", memory: "1g"}
	where, err := engine(t.Context(), s)
	if err != nil || where.describe() != "containers with 2 CPUs and 1g of memory each" {
		t.Fatalf("%v, %v", where, err)
	}
	n, err := where.make(fireMQ(s))
	if err != nil {
		t.Fatal(err)
	}
	c := n.(*container)
	// Nobody answers: the container is made, and its start given up.
	nats, err := where.make(natsServer(s, "nats", ""))
	if err != nil {
		t.Fatal(err)
	}
	for _, made := range []node{n, nats} {
		impatient, cancel := context.WithCancel(t.Context())
		go func() {
			for raw := ""; !strings.Contains(raw, made.(*container).name) && impatient.Err() == nil; {
				b, _ := os.ReadFile(calls)
				raw = string(b)
				runtime.Gosched()
			}
			cancel()
		}()
		if _, err := made.start(impatient); err == nil {
			t.Error("a broker that does not answer is ready")
		}
	}
	rep, _, err := n.load(t.Context(), "fire", "--persistent")
	if err != nil || rep.ConsumeRate != 7 {
		t.Errorf("%+v, %v", rep, err)
	}
	if rss, err := n.rss(); err != nil || rss != 12.5*(1<<20) {
		t.Errorf("%d bytes, %v", rss, err)
	}
	for _, err := range []error{n.freeze(true), n.freeze(false), n.stop(), n.kill()} {
		if err != nil {
			t.Error(err)
		}
	}
	n.remove()
	raw, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"build --quiet --tag firemq-compare",
		"run --rm --network container:" + c.name + " --pid container:" + c.name + " --cpus 2 firemq-compare bench --json --quiet --url fire://localhost --broker-pid 1 --persistent\n",
		fmt.Sprintf("--publish 127.0.0.1:%d:5672 ", c.port), fmt.Sprintf("--publish 127.0.0.1:%d:4222 ", nats.(*container).port),
		"pause " + c.name, "unpause " + c.name, "stop --time 60 " + c.name, "kill " + c.name, "rm --force --volumes " + c.name,
	} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("no %q in\n%s", want, raw)
		}
	}
}

// TestCompareFireMQ measures a real broker, shortly, as a process, and makes the tables of it.
func TestCompareFireMQ(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("measures with /proc")
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "firemq")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../cmd/firemq").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, value := range map[string]string{"TMPDIR": dir, "BROKER_CORES": "", "LOAD_CORES": "", "ENGINE": "native", "BROKERS": "firemq firemq-fmq1", "SCENARIOS": "transient half fill drain restart"} {
		t.Setenv(name, value)
	}
	out := filepath.Join(dir, "out")
	if err := run(t.Context(), []string{"run", "-firemq", binary, "-seconds", "0.1", "-runs", "1", "-messages", "5000", "-out", out}); err != nil {
		t.Fatal(err)
	}
	r, err := readReport(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct{ scenario, broker string }{
		{"transient", "firemq"}, {"transient", "firemq-fmq1"}, {"half", "firemq"}, {"fill", "firemq"}, {"drain", "firemq"},
		{"ready-after-stop", "firemq"}, {"ready-after-kill", "firemq"},
	} {
		if row, ok := r.get(want.scenario, want.broker); !ok || row.Seconds <= 0 || row.Lost > 0 {
			t.Errorf("%s of %s: %+v", want.scenario, want.broker, row)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "compare-*")); len(left) > 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestWatched watches a real broker under load, shortly.
func TestWatched(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("measures with /proc")
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "firemq")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../cmd/firemq").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv("TMPDIR", dir)
	t.Setenv("BROKER_CORES", "")
	out := filepath.Join(dir, "out")
	if err := run(t.Context(), []string{"watched", "-firemq", binary, "-out", out, "-pairs", "6", "-window", "1", "-queues", "5", "-connections", "3", "-most", "100"}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(out, "watched.csv"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")[1:]
	order := ""
	for _, l := range lines {
		var pair int
		var watched bool
		var seconds, rate, cpu float64
		if _, err := fmt.Sscanf(strings.ReplaceAll(l, ",", " "), "%d %t %g %g %g", &pair, &watched, &seconds, &rate, &cpu); err != nil || seconds <= 0 || rate <= 0 || cpu <= 0 {
			t.Errorf("%q: %v", l, err)
		}
		order += map[bool]string{false: "-", true: "w"}[watched]
	}
	if want := "-ww--ww--ww-"; order != want {
		t.Errorf("windows %s, want %s", order, want)
	}
}

func TestMedianInterval(t *testing.T) {
	for n, want := range map[int]interval{6: {3.5, 1, 6}, 9: {5, 2, 8}, 40: {20.5, 14, 27}} { // as in tables of the sign test
		values := make([]float64, n)
		for i := range values {
			values[i] = float64(n - i)
		}
		if got := medianInterval(values); got != want {
			t.Errorf("%d values: %v, want %v", n, got, want)
		}
	}
}

func TestSlowerBenchmarks(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) map[string]benchmark {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		all, err := readBenchmarks(path)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	old := file("old", "pkg: p\nBenchmarkA-2 \t 100 \t 10.0 ns/op\t 5 MB/s \t 0 B/op \t 0 allocs/op\nBenchmarkA-2 100 14 ns/op 0 B/op 0 allocs/op\nBenchmarkB 5 100 ns/op 0 B/op 1 allocs/op\nBenchmarkC-2 \t--- FAIL: BenchmarkC-2\nok p\n")
	now := file("new", "pkg: p\nBenchmarkA-2 100 16 ns/op 8 B/op 1 allocs/op\nBenchmarkA-2 100 19 ns/op 8 B/op 1 allocs/op\nBenchmarkB 5 140 ns/op 0 B/op 0 allocs/op\nBenchmarkC 1 1 ns/op 0 B/op 7 allocs/op\n")
	got := strings.Join(slowerBenchmarks(old, now, 1.5), "; ")
	if want := "p BenchmarkA-2: 16 ns, was 10; p BenchmarkA-2: 1 allocations, were 0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := slowerBenchmarks(old, old, 1); got != nil {
		t.Errorf("the same is slower: %q", got)
	}
}

// TestGateMeasuresAgain has binaries that take CPU time: of one benchmark that was slow by chance, and one that is slower.
func TestGateMeasuresAgain(t *testing.T) {
	dir := t.TempDir()
	for name, slow := range map[string]string{"old.": "BenchmarkNone", "new.": "BenchmarkB"} {
		script := "#!/bin/sh\nn=6000\n[ \"$2\" != '-test.bench=^" + slow + "$' ] || n=60000\nwhile [ $n -gt 0 ]; do n=$((n-1)); done\n" +
			"echo \"$2 $3\" >>" + filepath.Join(dir, name+"calls") + "\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	a, b, c := module+" BenchmarkA/x=1-2", module+" BenchmarkB-2", module+" BenchmarkC-2"
	old := map[string]benchmark{a: {ns: []float64{100}}, b: {ns: []float64{100}}, c: {ns: []float64{100}}}
	now := map[string]benchmark{a: {ns: []float64{400}}, b: {ns: []float64{400}}, c: {ns: []float64{140}}}
	if err := again(t.Context(), settings{binaries: dir, limit: 1.5}, old, now); err != nil {
		t.Fatal(err)
	}
	if got := slowerBenchmarks(old, now, 1.5); len(got) != 1 || !strings.HasPrefix(got[0], b+": ") || !strings.HasSuffix(got[0], ", was 100") {
		t.Errorf("%q", got)
	}
	calls, err := os.ReadFile(filepath.Join(dir, "new.calls"))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(calls); !strings.Contains(got, "^BenchmarkA$/^x=1$ -test.benchtime=3000000x\n") || strings.Count(got, "^BenchmarkB$") != tries || strings.Contains(got, "BenchmarkC") {
		t.Error(got)
	}
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{"512B": 512, "1.5KiB": 1536, "10MiB": 10 << 20, "2GiB": 2 << 30} {
		if got, err := parseBytes(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "MiB", "5furlongs", "5"} {
		if _, err := parseBytes(text); err == nil {
			t.Errorf("no error for %q", text)
		}
	}
}

// TestEngineNative is what runs where no engine answers.
func TestEngineNative(t *testing.T) {
	for _, s := range []settings{{engine: "native"}, {engine: "native", brokerCores: "0", loadCores: "1"}} {
		if where, err := engine(t.Context(), s); err != nil || !strings.HasPrefix(where.describe(), "processes") {
			t.Errorf("%+v, %v", where, err)
		}
	}
	if _, err := engine(t.Context(), settings{engine: "vm"}); err == nil {
		t.Error("no error for an engine that nobody knows")
	}
}
