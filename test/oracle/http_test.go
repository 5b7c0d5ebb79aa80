package oracle

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// volatile are fields of the API whose values differ between any two brokers or by themselves; their types are
// compared.
var volatile = map[string]bool{
	"node": true, "password_hash": true, "memory": true, "reductions": true, "garbage_collection": true, "idle_since": true,
	"message_stats": true, "churn_rates": true, "rabbitmq_version": true, "product_version": true, "product_name": true, "management_version": true,
	"erlang_version": true, "erlang_full_version": true, "crypto_lib_version": true, "cluster_name": true, "rabbit_version": true,
	"listeners": true, "contexts": true, "object_totals": true, "queue_totals": true, "statistics_db_event_queue": true, "exchange_types": true,
	"recv_oct": true, "send_oct": true, "cluster_state": true, "user_who_performed_action": true, "ports": true, "message_bytes_ram": true,
	"messages_ram": true, "consumer_utilisation": true, "consumer_capacity": true, "head_message_timestamp": true, "state": true, "storage_version": true,
}

// gone are fields of RabbitMQ 3.10 that later versions have no more, or not in this form.
var gone = map[string]bool{
	"backing_queue_status": true, "recoverable_slaves": true, "slave_nodes": true, "synchronised_slave_nodes": true, "messages_paged_out": true,
	"message_bytes_paged_out": true, "messages_ready_ram": true, "messages_unacknowledged_ram": true, "reductions_details": true,
	"release_series_support_status": true, "config_files": true, "log_files": true, "persister_stats": true, "ra_open_file_metrics": true,
	"metrics_gc_queue_length": true, "javascript": true,
	"ip": true, // of a context: there when its listener has an address of its own
}

// whole are the requests about all of a broker: the other tests leave their marks there, and RabbitMQ fills
// in numbers some seconds after its start. Types are compared.
var whole = []string{"GET /nodes", "GET /vhost-limits", "GET /parameters"}

// TestHTTP compares the requests of testdata/http/requests.txt.
func TestHTTP(t *testing.T) {
	b := both(t)
	text, err := os.ReadFile("testdata/http/requests.txt")
	if err != nil {
		t.Fatal(err)
	}
	var found []string // "line: fault", each once
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		method, rest, _ := strings.Cut(line, " ")
		path, body, _ := strings.Cut(rest, " ")
		status, want, header := request(t, b.rabbit.http, method, path, body)
		gotStatus, got, gotHeader := request(t, b.fire.s.HTTPAddr().String(), method, path, body)
		var faults []string
		if status != gotStatus {
			faults = append(faults, fmt.Sprintf("status %d, ours %d", status, gotStatus))
		} else if l := "Location"; header.Get(l) != gotHeader.Get(l) {
			faults = append(faults, fmt.Sprintf("location %q, ours %q", header.Get(l), gotHeader.Get(l)))
		} else {
			faults = unlike(t, status, want, got, !slices.Contains(whole, line))
		}
		for _, f := range faults {
			if f = line + " => " + f; !slices.Contains(found, f) {
				found = append(found, f)
			}
		}
	}
	judge(t, "testdata/http/"+b.rabbit.differences(t), found)
}

// differences is the file of what may differ from this version: that of Debian, or 4 and later.
func (r *rabbit) differences(t *testing.T) string {
	_, p, _ := request(t, r.http, "GET", "/overview", "")
	var o struct {
		Version string `json:"rabbitmq_version"`
	}
	if err := json.Unmarshal(p, &o); err != nil || o.Version == "" {
		t.Fatalf("the version of RabbitMQ: %v %.200s", err, p)
	}
	if strings.HasPrefix(o.Version, "3.") {
		return "differences.txt"
	}
	return "differences-4.txt"
}

// unlike lists what our answer lacks, or has otherwise when values are compared too.
func unlike(t *testing.T, status int, want, got []byte, values bool) []string {
	t.Helper()
	decode := func(p []byte) (v any) {
		if len(p) > 0 && json.Unmarshal(p, &v) != nil {
			return string(p)
		}
		return v
	}
	w, g := decode(want), decode(got)
	if status >= 400 {
		// Of errors, that both say something or nothing, and the reason.
		if e, ok := w.(map[string]any); ok {
			w, g = e["reason"], decode(got)
			if e, ok := g.(map[string]any); ok {
				g = e["reason"]
			}
		}
		if fmt.Sprint(w) != fmt.Sprint(g) {
			return []string{fmt.Sprintf("reason %q, ours %q", fmt.Sprint(w), fmt.Sprint(g))}
		}
		return nil
	}
	return compareValues("", w, g, values)
}

// compareValues walks what RabbitMQ answered.
func compareValues(at string, want, got any, values bool) (faults []string) {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return []string{fmt.Sprintf("%s is an object, ours %T", at, got)}
		}
		for _, k := range slices.Sorted(maps.Keys(w)) {
			if gone[k] || strings.Contains(k, "@") { // a node's name
				continue
			}
			v, ok := g[k]
			if !ok {
				faults = append(faults, strings.TrimPrefix(at+"."+k, ".")+" is missing")
				continue
			}
			faults = append(faults, compareValues(strings.TrimPrefix(at+"."+k, "."), w[k], v, values && !volatile[k] && !strings.HasSuffix(k, "_details"))...)
		}
	case []any:
		g, ok := got.([]any)
		switch {
		case len(w) == 0 && got != nil: // an empty object, too, is [] at times
			if m, isMap := got.(map[string]any); values && (ok && len(g) > 0 || isMap && len(m) > 0) {
				return []string{at + " is empty, ours is not"}
			}
			return nil
		case !ok:
			return []string{fmt.Sprintf("%s is a list, ours %T", at, got)}
		case values && len(w) != len(g):
			return []string{fmt.Sprintf("%s has %d items, ours %d", at, len(w), len(g))}
		}
		byName(w)
		byName(g)
		for i := range min(len(w), len(g)) {
			faults = append(faults, compareValues(at+"[]", w[i], g[i], values)...)
		}
	case nil:
		// Nothing to tell: any type may stand there.
	default:
		if fmt.Sprintf("%T", want) != fmt.Sprintf("%T", got) {
			return []string{fmt.Sprintf("%s is a %T, ours %T", at, want, got)}
		}
		node := func(v any) bool { s, ok := v.(string); return ok && strings.Contains(s, "@") }
		if values && want != got && !(node(want) && node(got)) {
			return []string{fmt.Sprintf("%s is %v, ours %v", at, want, got)}
		}
	}
	return faults
}

// byName orders objects whose order means nothing.
func byName(list []any) {
	key := func(v any) string {
		m, ok := v.(map[string]any)
		if !ok {
			return fmt.Sprint(v)
		}
		return fmt.Sprint(m["vhost"], m["name"], m["source"], m["destination"], m["destination_type"], m["routing_key"], m["user"])
	}
	slices.SortStableFunc(list, func(a, b any) int { return strings.Compare(key(a), key(b)) })
}

// judge compares what was found with a file of what may differ: a line for each difference, behind a line with
// its reason for each group.
func judge(t *testing.T, file string, found []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	reasons, reason := make(map[string]string), ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if r, ok := strings.CutPrefix(line, "# "); ok {
			reason = r
		} else if line != "" {
			reasons[line] = reason
		}
	}
	if *rewriteFlag {
		groups := make(map[string][]string)
		for _, f := range found {
			groups[reasons[f]] = append(groups[reasons[f]], f)
		}
		var b strings.Builder
		for _, r := range slices.Sorted(maps.Keys(groups)) {
			b.WriteString("# " + r + "\n" + strings.Join(groups[r], "\n") + "\n\n")
		}
		if err := os.WriteFile(file, []byte(strings.TrimRight(b.String(), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, f := range found {
		if r, ok := reasons[f]; !ok {
			t.Errorf("not listed: %s", f)
		} else if r == "" {
			t.Errorf("listed without a reason: %s", f)
		}
		delete(reasons, f)
	}
	for f := range reasons {
		t.Errorf("listed, but both answer alike: %s", f)
	}
}
