package oracle

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Lists of all that RabbitMQ's management API has: a method and a path a line, with names as ":name". The test writes
// them from what a RabbitMQ says of itself.
const (
	endpoints3 = "testdata/http/endpoints-3.10.txt"
	endpoints4 = "testdata/http/endpoints-4.txt"
)

// TestHTTPCoverage: each endpoint of either RabbitMQ is asked for by guest.
func TestHTTPCoverage(t *testing.T) {
	for _, file := range [...]string{endpoints3, endpoints4} {
		endpoints := readEndpoints(t, file)
		covered := make(map[string]bool)
		for _, line := range httpRequests(t) {
			if line == "" || line[0] == '!' {
				continue
			}
			if r, user, err := parseRequest(line); err != nil {
				t.Fatal(err)
			} else if user == guest {
				covered[endpointOf(endpoints, r)] = true
			}
		}
		for _, e := range endpoints {
			if !covered[e] {
				t.Errorf("%s of %s is never asked for", e, file)
			}
		}
	}
}

// endpointOf gives the endpoint that a request is for: of those that match the one with the fewest names. "": none.
func endpointOf(endpoints []string, r asked) (best string) {
	for _, e := range endpoints {
		method, path, _ := strings.Cut(e, " ")
		if method == r.method && matches(path, r.path) && (best == "" || strings.Count(e, ":") < strings.Count(best, ":")) {
			best = e
		}
	}
	return best
}

func readEndpoints(t *testing.T, file string) []string {
	t.Helper()
	p, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(p)), "\n")
}

// matches says whether a path may be one of an endpoint.
func matches(endpoint, path string) bool {
	path, _, _ = strings.Cut(path, "?")
	want, got := strings.Split(strings.TrimSuffix(endpoint, "/"), "/"), strings.Split(strings.TrimSuffix(path, "/"), "/")
	if len(want) != len(got) {
		return false
	}
	for i, w := range want {
		if w != got[i] && !strings.HasPrefix(w, ":") {
			return false
		}
	}
	return true
}

// TestHTTPEndpoints compares the list of endpoints with what this RabbitMQ has.
func TestHTTPEndpoints(t *testing.T) {
	b := both(t)
	if b.rabbit.cmd == nil {
		t.Skip("needs a RabbitMQ of its own")
	}
	file := endpoints3
	if b.rabbit.differences(t) != "differences.txt" {
		file = endpoints4
	}
	// The node writes them: what rabbitmqctl prints of a long text is not made to be read again.
	const name = "endpoints"
	script := `
Methods = fun(M) ->
	code:ensure_loaded(M),
	case erlang:function_exported(M, allowed_methods, 2) of
		true -> {L, _, _} = M:allowed_methods(undefined, undefined), L;
		false -> [<<"HEAD">>, <<"GET">>, <<"OPTIONS">>]
	end
end,
Lines = [[Method, " ", Path, "\n"] || {Path, M, _} <- rabbit_mgmt_dispatcher:dispatcher(), M =/= cowboy_static,
	Method <- Methods(M), Method =/= <<"HEAD">>, Method =/= <<"OPTIONS">>],
ok = file:write_file("` + filepath.Join(b.rabbit.cmd.Dir, name) + `", Lines).`
	if p, err := b.rabbit.ctl(t.Context(), []string{"eval", script}); err != nil || p.status != 0 {
		t.Fatalf("%v, %d %s %s", err, p.status, p.out, p.errors)
	}
	text, err := os.ReadFile(filepath.Join(b.rabbit.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	slices.Sort(lines)
	got := strings.Join(slices.Compact(lines), "\n") + "\n"
	if *rewriteFlag {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want, err := os.ReadFile(file); err != nil || string(want) != got {
		t.Errorf("%s is out of date (run with -rewrite): %v\n%s", file, err, got)
	}
}

// TestEndpointOf: what counts as a request for an endpoint.
func TestEndpointOf(t *testing.T) {
	endpoints := []string{"GET /queues", "GET /queues/:vhost", "GET /queues/detailed", "GET /bindings/:vhost/e/:source/:dtype/:destination/:props"}
	for path, want := range map[string]string{
		"/queues":                        endpoints[0],
		"/queues?a=/b":                   endpoints[0],
		"/queues/http?page=1":            endpoints[1],
		"/queues/detailed":               endpoints[2],
		"/bindings/http/e/x/q/q/a.%2523": endpoints[3],
		"/bindings/http/e/x/q/q":         "",
		"/queues/http/q":                 "",
	} {
		if got := endpointOf(endpoints, asked{method: "GET", path: path}); got != want {
			t.Errorf("%s is of %q, want %q", path, got, want)
		}
	}
	if got := endpointOf(endpoints, asked{method: "PUT", path: "/queues"}); got != "" {
		t.Errorf("a PUT is of %q", got)
	}
}
