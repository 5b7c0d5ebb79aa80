package mgmt_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// leftOut are RabbitMQ's metrics that are not here, and why, in the words of docs/metrics.md. Each has to match one that
// is in the list and not here.
var leftOut = []struct {
	why   string
	names *regexp.Regexp
}{
	{"there are no Raft logs and no streams", regexp.MustCompile(`^rabbitmq_(detailed_)?(raft_|stream_)`)},
	{"there is no Erlang machine; `go_*` and `process_*` are about Go's", regexp.MustCompile(`^erlang_vm_`)},
	{"likewise; `erlang_processes_used` counts goroutines, `erlang_uptime_seconds` is there",
		regexp.MustCompile(`^rabbitmq_(detailed_)?(erlang_(gc|scheduler|processes_limit|net_ticktime)|\w+_process_reductions_total$)`)},
	{"they measure how RabbitMQ's stores use the disk; `firemq_journal_*` does for ours",
		regexp.MustCompile(`^rabbitmq_(detailed_)?(io_(read|seek|reopen|write_ops|write_time|sync_time)|schema_db_|msg_store_|queue_index_|queue_disk_(reads|writes)_)`)},
	{"exchanges count what they take and give; `rabbitmq_global_messages_*` has what became of it",
		regexp.MustCompile(`^rabbitmq_(detailed_)?exchange_messages_(confirmed|unroutable_(returned|dropped))_total$`)},
	{"nothing is counted for each pair of an exchange and a queue", regexp.MustCompile(`^rabbitmq_(detailed_)?queue_exchange_messages_published_total$`)},
	{"Prometheus itself has them, as `scrape_duration_seconds`", regexp.MustCompile(`^telemetry_scrape_`)},
}

// TestNamesOfMetrics compares names, types and help with testdata/rabbitmq-metrics.tsv: what a RabbitMQ 4.3.6 with
// one queue answers, with all families in /metrics/detailed.
func TestNamesOfMetrics(t *testing.T) {
	content, err := os.ReadFile("testdata/rabbitmq-metrics.tsv")
	if err != nil {
		t.Fatal(err)
	}
	c := start(t)
	c.want(201, "PUT", "/queues/%2F/q", object{})
	ours := make(map[string]map[string]string) // by path and name: "type help"
	for _, path := range []string{"/metrics", "/metrics/per-object", "/metrics/detailed", "/metrics/memory-breakdown"} {
		query := ""
		if path == "/metrics/detailed" {
			query = "?family=" + strings.Join(strings.Fields(allFamilies), "&family=")
		}
		scrape(t, c, path+query) // is well formed
		ours[path] = make(map[string]string)
		name, kind := "", ""
		for l := range strings.Lines(c.as("", "").do("GET", "/"+path+query, nil).body) {
			l = strings.TrimSuffix(l, "\n")
			if rest, ok := strings.CutPrefix(l, "# TYPE "); ok {
				name, kind, _ = strings.Cut(rest, " ")
			} else if rest, ok := strings.CutPrefix(l, "# HELP "+name+" "); ok {
				ours[path][name] = kind + " " + rest
			}
		}
	}
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	used := make([]bool, len(leftOut))
	lines := 0
	for l := range strings.Lines(string(content)) {
		f := strings.Split(strings.TrimSuffix(l, "\n"), "\t")
		if len(f) != 4 {
			t.Fatalf("%q", l)
		}
		lines++
		path, name, want := f[0], f[1], f[2]+" "+f[3]
		if strings.HasSuffix(name, "_count") { // as a part of a histogram: linters dislike RabbitMQ's type, gauge
			want = "untyped " + f[3]
		}
		got, ok := ours[path][name]
		reason := -1
		for i := range leftOut {
			if leftOut[i].names.MatchString(name) {
				reason = i
			}
		}
		switch {
		case !ok && reason < 0:
			t.Errorf("%s: no %s", path, name)
		case !ok:
			used[reason] = true
		case reason < 0 && got != want:
			t.Errorf("%s: %s is %q, want %q", path, name, got, want)
		}
	}
	if lines < 500 {
		t.Errorf("the list has only %d lines", lines)
	}
	for i, u := range used {
		if !u {
			t.Errorf("not left out any more: %s", leftOut[i].why)
		}
		if !strings.Contains(string(page), leftOut[i].why) {
			t.Errorf("docs/metrics.md does not say %q", leftOut[i].why)
		}
	}
}

const allFamilies = `connection_churn_metrics node_coarse_metrics node_metrics node_persister_metrics auth_attempt_metrics
	auth_attempt_detailed_metrics queue_coarse_metrics queue_consumer_count queue_metrics queue_delivery_metrics
	queue_exchange_metrics exchange_metrics channel_metrics channel_exchange_metrics channel_queue_metrics
	channel_queue_exchange_metrics channel_process_metrics connection_coarse_metrics connection_metrics vhost_status
	exchange_names exchange_bindings`
