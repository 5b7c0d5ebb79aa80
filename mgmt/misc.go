package mgmt

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
)

// index lists the paths of the API with their methods, for who looks at /api in a browser.
func index(r *request) error {
	var text strings.Builder
	text.WriteString("The HTTP API of FireMQ, as RabbitMQ has it. docs/http-api.md says more.\n\n")
	for _, e := range endpoints() {
		fmt.Fprintf(&text, "%s%s: %s\n", apiPrefix, e.path, e.allow())
	}
	r.SetContentType("text/plain; charset=utf-8")
	r.SetBodyString(text.String())
	return nil
}

func emptyList(r *request) error { return r.ok([]any{}) }

func nothing(r *request) error { return r.done(false) }

// enableFlag: there are no feature flags.
func enableFlag(*request) error { return badRequest("unsupported") }

func oauth(r *request) error { return r.ok(map[string]any{"oauth_enabled": false}) }

// login of the UI: a cookie with the credentials.
func postLogin(r *request) error {
	name, password := string(r.FormValue("username")), string(r.FormValue("password"))
	u, f := r.login(name, password)
	if f != nil {
		return f
	}
	if !opensAPI(u) {
		return notAuthorised("Not management user")
	}
	r.Response.Header.Set("Set-Cookie", "auth="+base64.StdEncoding.EncodeToString([]byte(name+":"+password))+"; HttpOnly; SameSite=Strict; Path=/")
	return r.ok("ok")
}

// logout has a browser forget that cookie.
func logout(r *request) error {
	r.Response.Header.Set("Set-Cookie", "auth=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0")
	return r.done(false)
}

// attemptsOf are the logins of one protocol.
type attemptsOf struct {
	Protocol  string `json:"protocol"`
	Attempts  uint64 `json:"auth_attempts"`
	Failed    uint64 `json:"auth_attempts_failed"`
	Succeeded uint64 `json:"auth_attempts_succeeded"`
}

// protocolLabels are the protocols as metrics and the API's attempts name them.
var protocolLabels = map[string]string{"AMQP 0-9-1": "amqp091", "FMQ1": "fire1", "http": "http"}

func label(protocol string) string {
	if l, ok := protocolLabels[protocol]; ok {
		return l
	}
	return protocol
}

func listAttempts(r *request) error {
	if err := r.thisNode(); err != nil {
		return err
	}
	items := []attemptsOf{}
	for p, n := range r.s.opt.Broker.Logins() {
		ok, bad := n.Succeeded.Load(), n.Failed.Load()
		items = append(items, attemptsOf{label(p), ok + bad, bad, ok})
	}
	slices.SortFunc(items, func(a, b attemptsOf) int { return strings.Compare(a.Protocol, b.Protocol) })
	return plain(r, items)
}

// attemptsBySource: where logins came from is not kept.
func attemptsBySource(r *request) error {
	if err := r.thisNode(); err != nil {
		return err
	}
	return emptyList(r)
}

func deleteAttempts(r *request) error {
	if err := r.thisNode(); err != nil {
		return err
	}
	return r.done(false)
}
