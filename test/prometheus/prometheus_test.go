// Package prometheus has a real Prometheus server scrape the firemq binary under load, and asks it what dashboards
// ask. Where it is not installed the tests are skipped, or fail when FIREMQ_REQUIRE_CLIENTS is set.
package prometheus

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/test/internal/brokertest"
)

func TestMain(m *testing.M) { os.Exit(brokertest.Main(m)) }

const (
	bin   = ".cache/prometheus/usr/bin/" // where make deps puts it
	limit = 60 * time.Second             // for the server to start, and for all queries to have data
	every = 250 * time.Millisecond       // scrapes, and rounds of load
	span  = "10s"                        // of rates
)

// TestDashboards has every query of RabbitMQ's overview dashboard and of our own answered with data.
func TestDashboards(t *testing.T) {
	b := brokertest.Start(t, brokertest.Options{Data: t.TempDir()})
	p := startPrometheus(t, b)
	stop := startLoad(t, b.AMQPURL)
	defer stop()

	left := append(overview(t, p), own(t)...)
	deadline := time.Now().Add(limit)
	for {
		var without []expectation
		for _, x := range left {
			if why := p.check(x); why != "" {
				x.why = why
				without = append(without, x)
			}
		}
		if left = without; len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			for _, x := range left {
				t.Errorf("%s: %s", x.expr, x.why)
			}
			return
		}
		<-time.After(every)
	}
}

// TestAlerts has promtool check the sample configuration and rules and run their tests, and
// looks for the metrics that they speak of.
func TestAlerts(t *testing.T) {
	dir := filepath.Join(brokertest.Root(), "deploy", "prometheus")
	for _, args := range [][]string{
		{"check", "config", filepath.Join(dir, "prometheus.yml")},
		{"check", "rules", filepath.Join(dir, "alerts.yml")},
		{"test", "rules", filepath.Join("testdata", "alerts_test.yml")},
	} {
		if out, err := promtool(t, nil, args...); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}

	// A broker must have every metric that the rules speak of.
	rules, err := os.ReadFile(filepath.Join(dir, "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	b := brokertest.Start(t, brokertest.Options{Data: t.TempDir()})
	ch := channel(t, dial(t, b.AMQPURL))
	if _, err := ch.QueueDeclare("q", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	metrics := string(get(t, b.HTTPURL+"/metrics"))
	names := regexp.MustCompile(`\b(?:firemq|rabbitmq)_\w+`).FindAllString(string(rules), -1)
	if len(names) < 10 {
		t.Fatalf("found only %q", names)
	}
	for _, name := range names {
		if !regexp.MustCompile(`(?m)^` + name + `(?:\{| )`).MatchString(metrics) {
			t.Errorf("no metric %s", name)
		}
	}
}

// TestLint has promtool read every exposition: it is valid, and promtool has no remarks about its style.
func TestLint(t *testing.T) {
	b := brokertest.Start(t, brokertest.Options{Data: t.TempDir()})
	stop := startLoad(t, b.AMQPURL)
	defer stop()
	detailed := ""
	for _, f := range strings.Fields(`connection_churn_metrics node_coarse_metrics node_metrics node_persister_metrics
		auth_attempt_metrics auth_attempt_detailed_metrics queue_coarse_metrics queue_consumer_count queue_metrics queue_delivery_metrics channel_metrics
		channel_exchange_metrics channel_queue_metrics connection_coarse_metrics connection_metrics exchange_metrics
		vhost_status exchange_names exchange_bindings`) {
		detailed += "&family=" + f
	}
	for _, path := range []string{"/metrics", "/metrics/per-object", "/metrics/detailed", "/metrics/detailed?" + detailed[1:], "/metrics/memory-breakdown"} {
		if out, err := promtool(t, get(t, b.HTTPURL+path), "check", "metrics"); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", path, err, out)
		}
	}
}

// expectation is a query that must be answered.
type expectation struct {
	expr string
	busy bool // with a value above 0
	why  string
}

// overview are the queries of RabbitMQ's dashboard, its variables chosen as Grafana does.
func overview(t *testing.T, p *prometheus) (all []expectation) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "overview.txt"))
	if err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf(`rabbitmq_identity_info{rabbitmq_cluster=%q, namespace="", rabbitmq_endpoint=%q}`,
		p.label(t, "rabbitmq_cluster"), p.label(t, "rabbitmq_endpoint"))
	words := strings.NewReplacer("[]", "["+span+"]", "ID", id,
		"JOIN", "* on(instance, job) group_left(rabbitmq_cluster, rabbitmq_node) "+id)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		rest, busy := strings.CutPrefix(line, "busy ")
		kind, what, _ := strings.Cut(rest, " ")
		var exprs []string
		switch kind {
		case "gauge":
			exprs = []string{"sum(" + what + " JOIN)", "sum(" + what + " JOIN) by (rabbitmq_node)"}
		case "rate":
			exprs = []string{"sum(rate(" + what + "[]) JOIN) by (rabbitmq_node)"}
		case "plain":
			exprs = []string{what}
		default:
			t.Fatalf("no query: %q", line)
		}
		for _, x := range exprs {
			all = append(all, expectation{expr: words.Replace(x), busy: busy})
		}
	}
	return all
}

// own are the queries of our own dashboard.
func own(t *testing.T) (all []expectation) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(brokertest.Root(), "deploy", "grafana", "firemq.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	words := strings.NewReplacer("$__rate_interval", span, "$instance", ".*", "$vhost", ".*")
	for _, p := range d.Panels {
		for _, x := range p.Targets {
			all = append(all, expectation{expr: words.Replace(x.Expr)})
		}
	}
	if len(all) < 40 {
		t.Fatalf("the dashboard has only %d queries", len(all))
	}
	return all
}

// prometheus is a running server.
type prometheus struct{ url string }

// startPrometheus runs a server that scrapes the broker, with the sample configuration but for address and time.
func startPrometheus(t *testing.T, b *brokertest.Broker) *prometheus {
	t.Helper()
	program := brokertest.Need(t, bin+"prometheus")
	sample, err := os.ReadFile(filepath.Join(brokertest.Root(), "deploy", "prometheus", "prometheus.yml"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := strings.NewReplacer("localhost:15672", strings.TrimPrefix(b.HTTPURL, "http://"), "15s", every.String(),
		"alerts.yml", filepath.Join(brokertest.Root(), "deploy", "prometheus", "alerts.yml")).Replace(string(sample))
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		// The signal comes when the thread ends that started the process. This one may have started the broker, too.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- cmd.Start()
		<-ended
		cmd.Wait()
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	address := make(chan string, 1)
	var said bytes.Buffer
	go func() {
		defer close(ended)
		defer close(address)
		lines := bufio.NewScanner(log)
		for lines.Scan() {
			if m := regexp.MustCompile(`msg="Listening on" address=(\S+)`).FindStringSubmatch(lines.Text()); m != nil {
				address <- m[1]
			}
			fmt.Fprintln(&said, lines.Text())
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
	})
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a, ok := <-address:
		if !ok {
			t.Fatalf("Prometheus ended at its start:\n%s", &said)
		}
		return &prometheus{"http://" + a}
	case <-timer.C:
		t.Fatal("Prometheus does not listen")
	}
	return nil
}

// ask gives the data of an answer of Prometheus' API.
func (p *prometheus) ask(path string, data any) error {
	resp, err := http.Get(p.url + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %w", resp.Status, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", resp.Status, answer.Error)
	}
	return nil
}

// label waits until a label of rabbitmq_identity_info has its one value.
func (p *prometheus) label(t *testing.T, name string) string {
	t.Helper()
	for deadline := time.Now().Add(limit); ; <-time.After(every) {
		var values []string
		err := p.ask("/api/v1/label/"+name+"/values?match[]=rabbitmq_identity_info", &values)
		if err == nil && len(values) == 1 {
			return values[0]
		}
		if time.Now().After(deadline) {
			t.Fatalf("label %s: %q, %v", name, values, err)
		}
	}
}

// check says what is wrong with the answer to a query, "" for nothing.
func (p *prometheus) check(x expectation) string {
	var data struct {
		Result []struct {
			Value [2]any // time and value
		}
	}
	if err := p.ask("/api/v1/query?query="+url.QueryEscape(x.expr), &data); err != nil {
		return err.Error()
	}
	if len(data.Result) == 0 {
		return "no data"
	}
	most := 0.0
	for _, r := range data.Result {
		s, _ := r.Value[1].(string)
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return err.Error()
		}
		most = max(most, v) // NaN if one is: then the next comparison is false
	}
	if x.busy && !(most > 0) {
		return fmt.Sprintf("at most %v", most)
	}
	return ""
}

// promtool gives what it says.
func promtool(t *testing.T, input []byte, args ...string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, brokertest.Need(t, bin+"promtool"), args...)
	cmd.Stdin = bytes.NewReader(input)
	return cmd.CombinedOutput()
}

func get(t *testing.T, url string) []byte {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v", url, resp.Status, err)
	}
	return body
}

func dial(t *testing.T, url string) *amqp.Connection {
	t.Helper()
	c, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func channel(t *testing.T, c *amqp.Connection) *amqp.Channel {
	t.Helper()
	ch, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// startLoad has clients do all that the dashboards count until stop is called, after one round of it.
func startLoad(t *testing.T, url string) (stop func()) {
	t.Helper()
	conn := dial(t, url)
	ch, worker := channel(t, conn), channel(t, conn)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, q := range []string{"acked", "noack", "got", "kept"} {
		_, err := ch.QueueDeclare(q, true, false, false, false, nil)
		must(err)
	}
	must(ch.Confirm(false))
	must(worker.Qos(10, 0, false))
	acked, err := worker.Consume("acked", "", false, false, false, false, nil)
	must(err)
	noAck, err := worker.Consume("noack", "", true, false, false, false, nil)
	must(err)
	returns := ch.NotifyReturn(make(chan amqp.Return, 1))
	kept := channel(t, conn)
	must(kept.Qos(1, 0, false))
	_, err = kept.Consume("kept", "", false, false, false, false, nil)
	must(err)

	publish := func(key string, mandatory bool, size int) error {
		c, err := ch.PublishWithDeferredConfirm("", key, mandatory, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: make([]byte, size)})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if ok, err := c.WaitContext(ctx); err != nil || !ok {
			return fmt.Errorf("not confirmed: %v", err)
		}
		return nil
	}
	round := func() error {
		for _, key := range []string{"acked", "noack", "got", "kept", "nowhere"} {
			if err := publish(key, false, 10); err != nil {
				return err
			}
		}
		if err := publish("nowhere", true, 500); err != nil {
			return err
		}
		<-returns
		<-noAck
		d := <-acked
		if err := d.Nack(false, true); err != nil {
			return err
		}
		d = <-acked
		if err := d.Ack(false); err != nil {
			return err
		}
		for _, auto := range []bool{false, true, true} { // the third finds nothing
			d, ok, err := worker.Get("got", auto)
			if err != nil {
				return err
			}
			if ok && !auto {
				if err := d.Nack(false, true); err != nil {
					return err
				}
			}
		}
		c, err := amqp.Dial(url)
		if err != nil {
			return err
		}
		defer c.Close()
		short, err := c.Channel()
		if err != nil {
			return err
		}
		q, err := short.QueueDeclare("", false, false, true, false, nil)
		if err != nil {
			return err
		}
		if _, err := short.QueueDelete(q.Name, false, false, false); err != nil {
			return err
		}
		return short.Close()
	}
	must(round())
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(every):
			}
			if err := round(); err != nil {
				t.Errorf("load: %v", err)
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}
