package main

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firemq/firemq/server"
)

// brokerEnv starts a broker and gives the environment that leads to its API.
func brokerEnv(t *testing.T) map[string]string {
	t.Helper()
	s, err := server.Start(t.Context(), server.Options{AMQP: "127.0.0.1:0", HTTP: "127.0.0.1:0", Ephemeral: true, Version: "9.9.9"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	return map[string]string{"FIREMQ_HTTP_URL": "http://" + s.HTTPAddr().String()}
}

// ctlFor starts a broker and gives what runs ctl against it.
func ctlFor(t *testing.T) func(in string, args ...string) result {
	t.Helper()
	env := brokerEnv(t)
	return func(in string, args ...string) result {
		return runWith(t.Context(), env, in, append([]string{"ctl"}, args...)...)
	}
}

// TestCtl goes through every verb; each line must say what is in want, with the status 0 unless want begins
// with "!": then it is an error of one line.
func TestCtl(t *testing.T) {
	ctl := ctlFor(t)
	file := filepath.Join(t.TempDir(), "definitions.json")
	for _, step := range []struct {
		args []string
		in   string
		want string
	}{
		{[]string{"overview"}, "", "0 queues, 7 exchanges, 0 connections"},
		{[]string{"memory"}, "", "MiB total (resident)"},
		{[]string{"memory", "--json"}, "", `"binary":`},
		{[]string{"diagnose"}, "", "nothing is wrong"},
		{[]string{"declare-queue", "orders", "--arg", "x-message-ttl=60000", "--arg", "x-dead-letter-exchange=dlx"}, "", "queue orders declared"},
		{[]string{"declare-queue", "orders"}, "", "!inequivalent arg 'x-message-ttl'"},
		{[]string{"declare-queue", "q", "--arg", "x"}, "", "!--arg x is not key=value"},
		{[]string{"declare-exchange", "events", "topic"}, "", "exchange events declared"},
		{[]string{"declare-exchange", "other", "fanout", "--transient", "--auto-delete", "--internal"}, "", "exchange other declared"},
		{[]string{"declare-exchange", "bad", "x-type"}, "", "!invalid exchange type 'x-type'"},
		{[]string{"bind", "events", "orders", "--key", "order.*"}, "", "orders bound to events"},
		{[]string{"bind", "events", "--to-exchange", "other", "--key", "#"}, "", "other bound to events"},
		{[]string{"bind", "events"}, "", "!name either a queue or --to-exchange"},
		{[]string{"bind", "events", "absent"}, "", "!no queue 'absent' in vhost '/'"},
		{[]string{"list", "bindings"}, "", "events  queue     orders       order.*"},
		{[]string{"publish", "events", "order.new", "hello", "-H", "n=1"}, "", "published"},
		{[]string{"publish", "", "orders"}, "from stdin", "published"},
		{[]string{"publish", "events", "nowhere.at.all"}, "x", "!no queue received the message"},
		{[]string{"get", "orders", "--count", "5"}, "", "from stdin"},
		{[]string{"list", "queues"}, "", "orders  classic  true     2"},
		{[]string{"browse", "orders", "--truncate", "4"}, "", "2         "},
		{[]string{"browse", "orders", "--count", "1"}, "", "more with --cursor ready.0.1.0"},
		{[]string{"browse", "orders", "--count", "1", "--cursor", "ready.0.1.0"}, "", "from stdin"},
		{[]string{"browse", "orders", "--json"}, "", `"sequence":1,"state":"ready"`},
		{[]string{"browse", "orders", "--state", "gone"}, "", "!state is none of ready, unacked, delayed"},
		{[]string{"search", "orders", "--body", "std"}, "", "from stdin"},
		{[]string{"search", "orders", "-H", "n=1", "--older-than", "0s", "--json"}, "", `"payload":"hello"`},
		{[]string{"search", "orders", "--key", "^order", "--regex", "--json"}, "", `"scanned":2`},
		{[]string{"search", "orders"}, "", "!say what to look for"},
		{[]string{"unacked", "orders"}, "", "SEQUENCE  UNACKED FOR"},
		{[]string{"unacked", "absent"}, "", "!there is no queue absent in vhost /: see firemq ctl list queues"},
		{[]string{"diagnose"}, "", "WARNING  queue orders in vhost /: Messages that die in this queue are lost.\n  why:  Its dead-letter exchange 'dlx' does not exist."},
		{[]string{"diagnose", "--json"}, "", `{"status":"warning","findings":[`},
		{[]string{"declare-queue", "spare"}, "", "queue spare declared"},
		{[]string{"copy", "orders", "spare", "--all"}, "", "2 messages copied"},
		{[]string{"move", "spare", "orders", "-H", "n=2"}, "", "no message fits"},
		{[]string{"delete-messages", "spare", "--sequence", "1,7"}, "", "1 message deleted\n"},
		{[]string{"delete-messages", "spare"}, "", "!say which messages"},
		{[]string{"replay", "spare", "--all"}, "", "!0 messages were replayed, 1 left: message 2 is no dead letter"},
		{[]string{"delete-messages", "spare", "--all", "--json"}, "", `"done":1,`},
		{[]string{"move", "spare", "absent", "--all"}, "", "!no queue 'absent'"},
		{[]string{"delete-queue", "spare"}, "", "queue spare deleted"},
		{[]string{"get", "orders", "--take"}, "", "hello"},
		{[]string{"purge", "orders"}, "", "queue orders purged"},
		{[]string{"list", "queues", "--json"}, "", `"messages":0`},
		{[]string{"unbind", "events", "orders"}, "", "!there is no such binding"},
		{[]string{"unbind", "events", "orders", "--key", "order.*"}, "", "orders unbound from events"},
		{[]string{"unbind", "events", "--to-exchange", "other", "--key", "#"}, "", "other unbound from events"},
		{[]string{"add-user", "app", "s3cret", "--tags", "management"}, "", "user app added"},
		{[]string{"add-user", "app", "other"}, "", "!there is a user app already: see firemq ctl change-password and set-tags"},
		{[]string{"add-user", "typed"}, "from stdin\n", "user typed added"},
		{[]string{"add-user", "blank", ""}, "", "!the password is empty"},
		{[]string{"delete-exchange", ""}, "", "!Access refused."},
		{[]string{"diagnose", "--patience", "soon"}, "", `!"soon" is neither seconds nor a duration`},
		{[]string{"diagnose", "--patience", "5", "--json"}, "", `{"status":`},
		{[]string{"declare-queue", ""}, "", "!NAME is empty: see firemq ctl declare-queue --help"},
		{[]string{"delete-user", ""}, "", "!USER is empty"},
		{[]string{"overview", "more"}, "", `!"more" is one argument too many: firemq ctl overview: see firemq ctl overview --help`},
		{[]string{"set-tags", "typed", "monitoring,management"}, "", "tags of typed set"},
		{[]string{"change-password", "app", "n3w"}, "", "password of app changed"},
		{[]string{"list", "users"}, "", "typed  monitoring,management"},
		{[]string{"set-permissions", "app", "--configure", `^app\.`, "--write", `^app\.`, "--read", `^app\.`}, "", "permissions of app in / set"},
		{[]string{"declare-queue", "mine", "--user", "app", "--pass", "n3w"}, "", "!Access refused."},
		{[]string{"declare-queue", "app.q", "--user", "app", "--pass", "n3w", "--transient"}, "", "queue app.q declared"},
		{[]string{"list", "queues", "--user", "app", "--pass", "s3cret"}, "", "!wrong user or password"},
		{[]string{"list", "permissions"}, "", `^app\.`},
		{[]string{"clear-permissions", "app"}, "", "permissions of app in / cleared"},
		{[]string{"set-policy", "ttl", "^ord", `{"message-ttl": 60000}`, "--priority", "7"}, "", "policy ttl set"},
		{[]string{"set-policy", "ttl", "^ord", "60000"}, "", "!the definition 60000 is no JSON object"},
		{[]string{"set-policy", "ttl", "^ord", `{"junk": 1}`}, "", "!Validation failed [{<<\"junk\">>,1}] are not recognised policy settings"},
		{[]string{"list", "policies"}, "", "ttl   ^ord     all         7"},
		{[]string{"add-vhost", "v", "--description", "test"}, "", "vhost v added"},
		{[]string{"list", "vhosts"}, "", "v     test"},
		{[]string{"trace-on", "--vhost", "v"}, "", "vhost v is traced"},
		{[]string{"list", "vhosts", "--json"}, "", `"tracing":true`},
		{[]string{"list", "vhosts"}, "", "v     test"},
		{[]string{"trace-off", "--vhost", "v"}, "", "vhost v is not traced"},
		{[]string{"trace-on", "--vhost", "absent"}, "", "!there is no vhost absent: see firemq ctl list vhosts"},
		{[]string{"export", file}, "", "definitions written"},
		{[]string{"delete-policy", "ttl"}, "", "policy ttl deleted"},
		{[]string{"delete-queue", "orders"}, "", "queue orders deleted"},
		{[]string{"delete-queue", "orders"}, "", "!there is no queue orders in vhost /: see firemq ctl list queues"},
		{[]string{"delete-queue", "a/b c", "--vhost", "x y"}, "", "!there is no queue a/b c in vhost x y: see"},
		{[]string{"list", "queues", "--vhost", "absent"}, "", "!there is no vhost absent: see firemq ctl list vhosts"},
		{[]string{"list", "bindings", "--vhost", "absent"}, "", "!there is no vhost absent"},
		{[]string{"declare-queue", "q", "--vhost", "absent"}, "", "!there is no vhost absent"},
		{[]string{"publish", "absent", "k", "x"}, "", "!there is no exchange absent in vhost /"},
		{[]string{"delete-policy", "absent"}, "", "!there is no policy absent in vhost /"},
		{[]string{"delete-user", "absent"}, "", "!there is no user absent: see firemq ctl list users"},
		{[]string{"set-permissions", "absent"}, "", "!there is no user absent or no vhost /"},
		{[]string{"delete-exchange", "events"}, "", "exchange events deleted"},
		{[]string{"delete-vhost", "v"}, "", "vhost v deleted"},
		{[]string{"import", file}, "", "definitions loaded"},
		{[]string{"import"}, `{"policies": [{"vhost": "/", "name": "ha", "pattern": "", "definition": {"ha-mode": "all"}}]}`,
			"warning: policy 'ha' in vhost '/' was skipped (ha-mode): there are no mirrored queues\ndefinitions loaded\n"},
		{[]string{"import", "--json"}, `{"parameters": [{"vhost": "/", "name": "s", "component": "shovel", "value": {}}]}`,
			`{"result":"definitions loaded","warnings":["parameter 's' of component 'shovel' in vhost '/' was skipped: there is no such component"]}`},
		{[]string{"import"}, "{", "!standard input was not loaded: line 1, column 2: the file ends before its JSON does"},
		{[]string{"import"}, "{\n  \"queues\": [,]\n}", "!standard input was not loaded: line 2, column 14: invalid character ','"},
		{[]string{"import"}, `{"queues": {}}`, "!standard input was not loaded: queues is not a list"},
		{[]string{"import"}, "", "warning: there are no definitions in the file\ndefinitions loaded\n"},
		{[]string{"import", "absent.json"}, "", "!absent.json cannot be read: no such file or directory"},
		{[]string{"delete-messages", "orders", "--sequence", "x"}, "", "!invalid argument \"x\" for \"--sequence\" flag: no number that fits: see firemq ctl delete-messages --help"},
		{[]string{"list", "exchanges"}, "", "events              topic"},
		{[]string{"export", "--vhost", "/"}, "", `"original_vhost_name": "/"`},
		{[]string{"list", "connections"}, "", "NAME  USER"},
		{[]string{"list", "channels"}, "", "NAME  USER"},
		{[]string{"list", "consumers"}, "", "QUEUE  TAG"},
		{[]string{"close-connection", "127.0.0.1:50000 -> 127.0.0.1:5672"}, "", "!there is no connection 127.0.0.1:50000 -> 127.0.0.1:5672: see"},
		{[]string{"delete-user", "app"}, "", "user app deleted"},
		{[]string{"list", "queues", "--zzzz"}, "", "!unknown flag: --zzzz: see firemq ctl list --help"},
		{[]string{"list", "nothing"}, "", "!there is no list of nothing"},
		{[]string{"list"}, "", "!KIND is missing: firemq ctl list KIND"},
		{[]string{"list", "queue"}, "", "!there is no list of queue: did you mean queues?"},
		{[]string{"list", "queues", "more"}, "", `!"more" is one argument too many`},
		{[]string{"lst", "queues"}, "", `!unknown command "lst": did you mean list?`},
		{[]string{"frobnicate"}, "", "!unknown command or argument"},
		{nil, "", "!ctl needs a verb"},
		{[]string{"overview", "--url", "localhost"}, "", "!--url localhost is no URL: write http://HOST:15672"},
		{[]string{"overview", "--url", "http://127.0.0.1:1"}, "", "!http://127.0.0.1:1 cannot be reached"},
	} {
		got := ctl(step.in, step.args...)
		want, fails := strings.CutPrefix(step.want, "!")
		switch {
		case fails && (got.status == exitOK || got.out != "" || !isOneLine(got.err) || !strings.Contains(got.err, want)),
			!fails && (got.status != exitOK || got.err != "" || !strings.Contains(got.out, want)):
			t.Errorf("ctl %s\nstatus %d, error %q, output\n%s\nwant %s", strings.Join(step.args, " "), got.status, got.err, got.out, step.want)
		}
		if strings.Contains(got.out+got.err, "s3cret") {
			t.Errorf("ctl %s shows a password", strings.Join(step.args, " "))
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the export, which holds password hashes: %v %v", info.Mode(), err)
	}
	var list []map[string]any
	if err := json.Unmarshal([]byte(ctl("", "list", "users", "--json").out), &list); err != nil || len(list) != 2 {
		t.Errorf("%v %v", list, err)
	}
}

// TestCtlTags: a tag that means nothing is set, and said to mean nothing; who has no other is told what is missing.
func TestCtlTags(t *testing.T) {
	ctl := ctlFor(t)
	got := ctl("", "add-user", "app", "secret", "--tags", "management, adminstrator", "--json")
	if got.status != exitOK || got.err != "warning: the tag adminstrator gives no rights: administrator, monitoring, policymaker, management, impersonator do\n" {
		t.Errorf("%+v", got)
	}
	if got := ctl("", "memory", "--user", "app", "--pass", "secret"); got.status != exitFailure || !strings.Contains(got.err, "the user needs the tag monitoring or administrator") {
		t.Errorf("%+v", got)
	}
	if got := ctl("", "set-tags", "app", "adminstrator"); got.status != exitOK || !strings.Contains(got.err, "gives no rights") {
		t.Errorf("%+v", got)
	}
	if got := ctl("", "overview", "--user", "app", "--pass", "secret"); got.status != exitFailure || !strings.Contains(got.err, "the user has no tag that opens the API") {
		t.Errorf("%+v", got)
	}
}

func TestCtlTableIsSafe(t *testing.T) {
	ctl := ctlFor(t)
	if got := ctl("", "declare-queue", "a\x1b[2Jb\nc"); got.status != 0 || strings.Contains(got.out, "\x1b") {
		t.Errorf("%+v", got)
	}
	if got := ctl("", "list", "queues"); strings.ContainsAny(got.out, "\x1b") || strings.Count(got.out, "\n") != 2 || !strings.Contains(got.out, "a?[2Jb?c") {
		t.Errorf("%+v", got)
	}
}

// TestCtlJSON: every verb prints JSON, those that change something too.
func TestCtlJSON(t *testing.T) {
	ctl := ctlFor(t)
	for _, line := range []string{
		"declare-queue q", "declare-exchange x fanout", "bind x q --key k", "publish x k hello", "get q", "get q --take", "purge q", "unbind x q --key k",
		"add-user u p", "change-password u p2", "set-tags u management", "set-permissions u", "clear-permissions u", "delete-user u",
		`set-policy p ^q {"max-length":1}`, "delete-policy p", "add-vhost v", "delete-vhost v", "export", "overview", "memory", "list queues",
		"list connections", "delete-queue q", "delete-exchange x",
	} {
		got := ctl("", append(strings.Fields(line), "--json")...)
		var v any
		if err := json.Unmarshal([]byte(got.out), &v); got.status != exitOK || err != nil {
			t.Errorf("%s: status %d, %v\n%s%s", line, got.status, err, got.out, got.err)
		}
	}
	if got := ctl("", "purge", "absent", "--json"); got.status != exitFailure || got.out != "" || !isOneLine(got.err) {
		t.Errorf("%+v", got)
	}
}

// TestCompletion: shells get their scripts, and the names of what the broker has.
func TestCompletion(t *testing.T) {
	env := brokerEnv(t)
	for shell, want := range map[string]string{"bash": "__start_firemq", "zsh": "#compdef firemq", "fish": "complete -c firemq"} {
		if got := runWith(t.Context(), env, "", "completion", shell); got.status != exitOK || !strings.Contains(got.out, want) {
			t.Errorf("%s: status %d, no %q", shell, got.status, want)
		}
	}
	for _, name := range []string{"orders", "other", "bills"} {
		if got := runWith(t.Context(), env, "", "ctl", "declare-queue", name); got.status != exitOK {
			t.Fatal(got.err)
		}
	}
	for _, c := range []struct{ line, want string }{
		{"ctl delete-q", "delete-queue"},
		{"ctl list qu", "queues"},
		{"ctl purge o", "orders\nother\n"},
		{"ctl bind amq.d", "amq.direct"},
		{"ctl bind amq.direct bi", "bills"},
		{"ctl set-permissions g", "guest"},
		{"ctl delete-user g", "guest"},
		{"ctl delete-vhost ", "/\n"},
		{"ctl list queues --vhost ", "/\n"},
		{"rabbitmqctl list_q", "list_queues\n"},
		{"rabbitmq-plugins en", "enable\n"},
		{"ctl add-user x", ":4"},             // nothing, and no files
		{"ctl purge orders x", ":4"},         // no more arguments
		{"ctl export f", ":0"},               // files
		{"ctl purge --url http://[ o", ":4"}, // no broker, no names
		{"ctl purge --vhost nowhere o", ":4"},
		{"ctl overview --j", "--json"},
	} {
		args := strings.Split(c.line, " ")
		got := runWith(t.Context(), env, "", append([]string{"__complete"}, args...)...)
		if got.status != exitOK || !strings.Contains(got.out, c.want) {
			t.Errorf("%s: status %d, no %q in\n%s%s", c.line, got.status, c.want, got.out, got.err)
		}
	}
}

// TestShells: shells that are here take the scripts, and complete the names of what the broker has.
func TestShells(t *testing.T) {
	env := brokerEnv(t)
	for _, name := range []string{"orders", "other"} {
		if got := runWith(t.Context(), env, "", "ctl", "declare-queue", name); got.status != exitOK {
			t.Fatal(got.err)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(exe, filepath.Join(dir, "firemq")); err != nil {
		t.Skip(err)
	}
	for shell, script := range map[string]string{
		"bash": `source /usr/share/bash-completion/bash_completion || exit 77
source <(firemq completion bash)
COMP_LINE="firemq ctl purge o"; COMP_POINT=${#COMP_LINE}; COMP_WORDS=($COMP_LINE); COMP_CWORD=3
__start_firemq 2>/dev/null; echo ${COMPREPLY[@]}`,
		"fish": `firemq completion fish | source; echo (complete -C "firemq ctl purge o")`,
		// Its own completion works in a terminal alone: what it asks is asked here.
		"zsh": `autoload -U compinit; compinit -u -D; source <(firemq completion zsh); [[ $_comps[firemq] = _firemq ]] || exit 1
echo ${(f)"$(firemq __complete ctl purge o 2>/dev/null)"}`,
	} {
		t.Run(shell, func(t *testing.T) {
			path, err := exec.LookPath(shell)
			if err != nil {
				t.Skip(err)
			}
			cmd := exec.CommandContext(t.Context(), path, "-c", script)
			if shell == "zsh" {
				cmd.Args = []string{path, "-f", "-c", script}
			}
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir, "FIREMQ_TEST_AS_COMMAND=1", "FIREMQ_HTTP_URL="+env["FIREMQ_HTTP_URL"])
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 77 {
				t.Skip("bash-completion is not installed")
			}
			if err != nil || !strings.HasPrefix(string(out), "orders other") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestUnreached: what is wrong with an address is said in one line with what to do, without the password in it.
func TestUnreached(t *testing.T) {
	s, err := server.Start(t.Context(), server.Options{AMQP: "127.0.0.1:0", HTTP: "127.0.0.1:0", Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Shutdown(t.Context()) })
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(secure.Close)
	api := s.HTTPAddr().String()
	for url, want := range map[string]string{
		"http://127.0.0.1:1":                        "connection refused; is a broker running there",
		"http://u:hidden@127.0.0.1:1":               "http://u:xxxxx@127.0.0.1:1 cannot be reached",
		"https://" + api:                            "write http:// instead of https://",
		secure.URL:                                  "SSL_CERT_FILE",
		"http://" + s.AMQPAddr().String():           "that is no port of the HTTP API",
		"http://guest:hidden@" + api:                "wrong user or password",
		"127.0.0.1:15672":                           "is no URL: write http://HOST:15672",
		"http://" + secure.Listener.Addr().String(): "Bad Request",
	} {
		got := runWith(t.Context(), nil, "", "ctl", "overview", "--url", url)
		if got.status == exitOK || got.out != "" || !isOneLine(got.err) || !strings.Contains(got.err, want) || strings.Contains(got.err, "hidden") {
			t.Errorf("%s: %+v", url, got)
		}
	}
	if got := runWith(t.Context(), nil, "", "ctl", "overview", "--url", "http://guest:guest@"+api); got.status != exitOK {
		t.Errorf("with the password in the URL: %+v", got)
	}
}
