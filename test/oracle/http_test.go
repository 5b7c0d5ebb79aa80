package oracle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
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
	"recv_oct": true, "send_oct": true, "cluster_state": true, "user_who_performed_action": true, "ports": true, "message_bytes_ram": true, "ok": true,
	"messages_ram": true, "messages_ready_ram": true, "messages_unacknowledged_ram": true, "connected_at": true, "port": true, "peer_port": true, "recv_cnt": true, "send_cnt": true,
	"total_count": true, "auth_attempts": true, "auth_attempts_succeeded": true, "auth_attempts_failed": true, "consumer_utilisation": true, "consumer_capacity": true, "head_message_timestamp": true, "state": true, "storage_version": true,
}

// settled says that RabbitMQ has had the time to count all messages: the numbers of message... are compared.
var settled bool

// whole are the requests about all of a broker: the other tests leave their marks there, and RabbitMQ fills
// in numbers some seconds after its start. Types are compared.
var whole = []string{"GET /auth/attempts/{node}", "GET /vhosts/%2E%2E/nodes", "GET /nodes", "GET /nodes/{node}", "GET /vhost-limits", "GET /parameters", "GET /overview"}

// httpVHosts and httpUsers are those of the requests: what lists tell of others is left there by other tests.
var (
	httpVHosts = []string{"http", "live", "guarded"}
	httpUsers  = []string{"guest", "http", "http-plain", "http-management", "http-policymaker", "http-monitoring", "http-elsewhere"}
)

// httpUser is who asks. The password of all but guest is "pw".
type httpUser string

const (
	guest  httpUser = "guest"
	nobody httpUser = "" // without credentials
)

// answered is what came back.
type answered struct {
	status int
	body   []byte
	header http.Header
}

// ask makes a request of the management API at addr.
func ask(t *testing.T, addr string, user httpUser, method, path, body string) answered {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	path, query, _ := strings.Cut(path, "?")
	req.URL.Opaque, req.URL.RawQuery = "//"+addr+"/api"+path, query // as it is
	switch user {
	case nobody:
	case guest:
		req.SetBasicAuth("guest", "guest")
	default:
		req.SetBasicAuth(string(user), "pw")
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Close = method == "HEAD" // behind an error RabbitMQ sends the body, which is not to be the next answer
	res, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered{res.StatusCode, answer, res.Header}
}

// comparison plays requests at both brokers.
type comparison struct {
	t       *testing.T
	b       *brokers
	rabbit  *apiSide
	fire    *apiSide
	found   []string // "line => fault", each once
	asked   []asked  // each once
	mutated map[string]bool
}

// asked is a request that was made.
type asked struct{ method, path, body string }

// apiSide is one of the brokers with the names that things have there.
type apiSide struct {
	addr  string // of the API
	amqp  string
	names map[string]string // by placeholder: {node}, {connection}, ...
	close []func()          // ends the connections
}

// fill puts the names into a path.
func (s *apiSide) fill(path string) string {
	for placeholder, name := range s.names {
		path = strings.ReplaceAll(path, placeholder, url.PathEscape(name))
	}
	return path
}

// common puts placeholders for the names into an answer.
func (s *apiSide) common(p []byte) []byte {
	for placeholder, name := range s.names {
		if placeholder != "{node}" && placeholder != "{port}" {
			p = bytes.ReplaceAll(p, []byte(strings.ReplaceAll(name, ">", "\\u003e")), []byte(placeholder))
			p = bytes.ReplaceAll(p, []byte(name), []byte(placeholder))
		}
	}
	return p
}

// TestHTTP compares the requests of testdata/http/requests.txt. Each is a line, with the user before it in brackets
// unless that is guest. Lines with a "!" are steps of this test.
func TestHTTP(t *testing.T) {
	b := both(t)
	c := &comparison{
		t: t, b: b, mutated: make(map[string]bool),
		rabbit: &apiSide{addr: b.rabbit.http, amqp: b.rabbit.amqp},
		fire:   &apiSide{addr: b.fire.s.HTTPAddr().String(), amqp: b.fire.addr()},
	}
	defer c.disconnect()
	for _, s := range [...]*apiSide{c.rabbit, c.fire} { // other tests leave something, and a RabbitMQ that was given too
		var queues []struct{ Name, VHost string }
		if a := ask(t, s.addr, guest, "GET", "/queues?columns=name,vhost", ""); json.Unmarshal(a.body, &queues) != nil {
			t.Fatalf("queues: %d %s", a.status, a.body)
		}
		for _, q := range queues {
			ask(t, s.addr, guest, "DELETE", "/queues/"+url.PathEscape(q.VHost)+"/"+url.PathEscape(q.Name), "")
		}
		for _, v := range httpVHosts {
			ask(t, s.addr, guest, "DELETE", "/vhosts/"+v, "")
		}
		for _, u := range httpUsers {
			if httpUser(u) != guest {
				ask(t, s.addr, guest, "DELETE", "/users/"+u, "")
			}
		}
	}
	for _, s := range [...]*apiSide{c.rabbit, c.fire} {
		var o struct{ Node string }
		if a := ask(t, s.addr, guest, "GET", "/overview", ""); json.Unmarshal(a.body, &o) != nil || o.Node == "" {
			t.Fatalf("the name of the node: %d %s", a.status, a.body)
		}
		s.names = map[string]string{"{node}": o.Node, "{port}": s.amqp[strings.LastIndexByte(s.amqp, ':')+1:]}
	}
	for n, line := range httpRequests(t) {
		switch line {
		case "":
		case "!connect":
			c.connect()
		case "!access":
			c.access()
		case "!disconnect":
			c.disconnect()
		default:
			r, user, err := parseRequest(line)
			if err != nil {
				t.Fatalf("line %d: %v", n+1, err)
			}
			status := c.play(line, user, r, true)
			if user == guest {
				c.mutate(r, status)
			}
		}
	}
	judge(t, "testdata/http/"+b.rabbit.differences(t), c.found)
}

// httpRequests are the lines of the file, comments left out.
func httpRequests(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("testdata/http/requests.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") {
			line = ""
		}
		lines[i] = line
	}
	return lines
}

func parseRequest(line string) (r asked, user httpUser, err error) {
	user = guest
	if rest, ok := strings.CutPrefix(line, "["); ok {
		name, rest, ok := strings.Cut(rest, "] ")
		if !ok {
			return r, user, fmt.Errorf("no end of a user: %s", line)
		}
		user, line = httpUser(name), rest
	}
	var ok bool
	if r.method, line, ok = strings.Cut(line, " "); !ok || !strings.HasPrefix(line, "/") {
		return r, user, fmt.Errorf("no request: %s", line)
	}
	r.path, r.body, _ = strings.Cut(line, " ")
	return r, user, nil
}

// fault notes what is different.
func (c *comparison) fault(line, fault string) {
	if f := line + " => " + fault; !slices.Contains(c.found, f) {
		c.found = append(c.found, f)
	}
}

// play makes a request at both brokers and compares the answers; it gives RabbitMQ's status. Of refusals the reason is
// compared if reasons says so.
func (c *comparison) play(line string, user httpUser, r asked, reasons bool) int {
	c.t.Helper()
	if user == guest && !slices.Contains(c.asked, r) {
		c.asked = append(c.asked, r)
	}
	before := len(c.found)
	want := ask(c.t, c.rabbit.addr, user, r.method, c.rabbit.fill(r.path), r.body)
	got := ask(c.t, c.fire.addr, user, r.method, c.fire.fill(r.path), r.body)
	want.body, got.body = c.rabbit.common(want.body), c.fire.common(got.body)
	allow := func(a answered) string {
		if r.method != "OPTIONS" && a.status != 405 {
			return "" // RabbitMQ 4 has it in every answer
		}
		return a.header.Get("Allow")
	}
	switch l := "Location"; {
	case want.status == 500 && got.status >= 400 && got.status < 500:
		// RabbitMQ did not expect it; that it is refused is all that is asked for.
	case want.status != got.status && want.status >= 400 && got.status >= 400:
		c.fault(line, fmt.Sprintf("status %d %q, ours %d %q", want.status, reason(want), got.status, reason(got)))
	case want.status != got.status:
		c.fault(line, fmt.Sprintf("status %d, ours %d", want.status, got.status))
	case want.header.Get(l) != got.header.Get(l):
		c.fault(line, fmt.Sprintf("location %q, ours %q", want.header.Get(l), got.header.Get(l)))
	case allow(want) != allow(got):
		c.fault(line, fmt.Sprintf("allow %q, ours %q", allow(want), allow(got)))
	default:
		settled = len(c.rabbit.close) > 0
		if want.status >= 400 {
			want.body = bytes.ReplaceAll(want.body, []byte(c.rabbit.names["{node}"]), []byte("{node}"))
			got.body = bytes.ReplaceAll(got.body, []byte(c.fire.names["{node}"]), []byte("{node}"))
		}
		path, _, _ := strings.Cut(r.path, "?")
		for _, f := range unlike(path, want, got, !slices.Contains(whole, r.method+" "+path), reasons) {
			c.fault(line, f)
		}
	}
	if *verboseFlag {
		c.t.Logf("%s\n%s\nRabbitMQ %d %.2000s\nFireMQ   %d %.2000s", line, strings.Join(c.found[before:], "\n"), want.status, want.body, got.status, got.body)
	}
	return want.status
}

// differences is the file of what may differ from this version: that of Debian, or 4 and later.
func (r *rabbit) differences(t *testing.T) string {
	p := ask(t, r.http, guest, "GET", "/overview", "").body
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
func unlike(path string, want, got answered, values, reasons bool) []string {
	w, g := decodeAnswer(want.body), decodeAnswer(got.body)
	if want.status < 400 {
		list := strings.TrimPrefix(path, "/")
		return compareValues("", onlyOwn(list, w), onlyOwn(list, g), values)
	}
	// Of errors, that both say something or nothing, and the reason.
	if !reasons {
		return nil
	}
	if e, ok := w.(map[string]any); ok {
		if o, ok := g.(map[string]any); ok {
			if want, got := e["error"], o["error"]; want != got {
				return []string{fmt.Sprintf("error %q, ours %q", want, got)}
			}
			g = o["reason"]
		}
		w = e["reason"]
	}
	if fmt.Sprint(w) != fmt.Sprint(g) {
		return []string{fmt.Sprintf("reason %q, ours %q", fmt.Sprint(w), fmt.Sprint(g))}
	}
	return nil
}

// reason is that of a refusal; "": it has none.
func reason(a answered) string {
	m, _ := decodeAnswer(a.body).(map[string]any)
	s, _ := m["reason"].(string)
	return s
}

// decodeAnswer gives numbers as json.Number, and what is no JSON as text.
func decodeAnswer(p []byte) (v any) {
	if len(p) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(p))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return string(p)
	}
	return v
}

// onlyOwn leaves out of all lists what is not of the requests' vhosts and users. at is the key of a list.
func onlyOwn(at string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = onlyOwn(k, e)
		}
	case []any:
		for i, e := range v {
			v[i] = onlyOwn(at, e)
		}
		return slices.DeleteFunc(v, func(e any) bool {
			m, ok := e.(map[string]any)
			if !ok {
				return false
			}
			name, _ := m["name"].(string)
			switch at {
			case "vhosts":
				return !slices.Contains(httpVHosts, name)
			case "users":
				return !slices.Contains(httpUsers, name)
			}
			vhost, hasVHost := m["vhost"].(string)
			user, hasUser := m["user"].(string)
			return hasVHost && !slices.Contains(httpVHosts, vhost) || hasUser && !slices.Contains(httpUsers, user)
		})
	}
	return v
}

// kind is the type of a value as a client with types sees it.
func kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "bool"
	case string:
		return "string"
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return "float"
		}
		return "int"
	case []any:
		return "list"
	}
	return "object"
}

// compareValues walks what RabbitMQ answered.
func compareValues(at string, want, got any, values bool) (faults []string) {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return []string{fmt.Sprintf("%s is an object, ours %s", at, kind(got))}
		}
		for _, k := range slices.Sorted(maps.Keys(w)) {
			if strings.Contains(k, "@") { // a node's name
				continue
			}
			below := strings.TrimPrefix(at+"."+k, ".")
			v, ok := g[k]
			if !ok {
				faults = append(faults, below+" is missing")
				continue
			}
			same := values && !volatile[k] && !strings.HasSuffix(k, "_details") && (settled || !strings.HasPrefix(k, "message")) && w["name"] != "internal_cluster_id"
			faults = append(faults, compareValues(below, w[k], v, same)...)
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
			return []string{fmt.Sprintf("%s is a list, ours %s", at, kind(got))}
		case values && len(w) != len(g):
			return []string{fmt.Sprintf("%s has %d items, ours %d", at, len(w), len(g))}
		}
		byName(w)
		byName(g)
		for len(w) > 0 && len(g) > 0 {
			// What only one of them has was told by the numbers of items.
			if len(w) != len(g) {
				if c := strings.Compare(nameOf(w[0]), nameOf(g[0])); c < 0 {
					w = w[1:]
					continue
				} else if c > 0 {
					g = g[1:]
					continue
				}
			}
			for _, f := range compareValues(at+"[]", w[0], g[0], values) {
				if !slices.Contains(faults, f) {
					faults = append(faults, f)
				}
			}
			w, g = w[1:], g[1:]
		}
	case nil:
		// Nothing to tell: any type may stand there.
	default:
		if kind(want) != kind(got) {
			return []string{fmt.Sprintf("%s is %s, ours %s", at, kind(want), kind(got))}
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
	slices.SortStableFunc(list, func(a, b any) int { return strings.Compare(nameOf(a), nameOf(b)) })
}

func nameOf(v any) string {
	m, ok := v.(map[string]any)
	if !ok {
		return fmt.Sprint(v)
	}
	return fmt.Sprint(m["vhost"], m["name"], m["source"], m["destination"], m["destination_type"], m["routing_key"], m["arguments"], m["user"],
		m["exchange"], m["consumer_tag"], m["protocol"], m["component"], m["number"], m["consumer_count"])
}

// judge compares what was found with a file of what may differ: a line for each difference, behind a line with
// its reason for each group. A line that begins with "* => " is for all requests, and what stands behind may be part of
// a longer path of fields.
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
			if g := general(reasons, f); g != "" {
				f = g
			}
			if !slices.Contains(groups[reasons[f]], f) {
				groups[reasons[f]] = append(groups[reasons[f]], f)
			}
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
	used := make(map[string]bool)
	for _, f := range found {
		entry := f
		if _, ok := reasons[f]; !ok {
			entry = general(reasons, f)
		}
		if r, ok := reasons[entry]; !ok {
			t.Errorf("not listed: %s", f)
		} else if r == "" {
			t.Errorf("listed without a reason: %s", entry)
		}
		used[entry] = true
	}
	for f := range reasons {
		if !used[f] {
			t.Errorf("listed, but both answer alike: %s", f)
		}
	}
}

// everywhere begins the entries for all requests.
const everywhere = "* => "

// general gives the entry that a difference comes under: of the same request of guest, or that for all requests; "":
// none.
func general(reasons map[string]string, f string) string {
	if strings.HasPrefix(f, "[") {
		_, ofGuest, _ := strings.Cut(f, "] ")
		if _, ok := reasons[ofGuest]; ok {
			return ofGuest
		}
	}
	_, fault, _ := strings.Cut(f, " => ")
	for {
		if _, ok := reasons[everywhere+fault]; ok {
			return everywhere + fault
		}
		// One field less of the path, if it is one.
		first, rest, ok := strings.Cut(fault, ".")
		if !ok || strings.ContainsAny(first, " ") {
			return ""
		}
		fault = rest
	}
}
