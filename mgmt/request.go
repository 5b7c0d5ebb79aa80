package mgmt

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/mgmt/api"
)

// request is one call of the API. It lives as long as its handler runs.
type request struct {
	*fasthttp.RequestCtx
	s    *Server
	user *auth.User        // who asks; nil for endpoints that need nobody
	vars map[string]string // the names in the path, decoded
	path string            // of the endpoint

	handler handler // of a request that was checked
	most    int     // bytes of its body
}

// failure is an answer other than success.
type failure struct {
	status int
	error  string // the JSON key "error"
	reason any    // the JSON key "reason"; nil: no body
	cause  string // of a refusal, for the log; "": it is not logged, or was
}

func (f *failure) Error() string { return fmt.Sprint(f.error, ": ", f.reason) }

func failed(status int, word string, reason any) *failure {
	return &failure{status: status, error: word, reason: reason}
}

// because makes f a refusal, which is logged.
func (f *failure) because(cause string) *failure {
	f.cause = cause
	return f
}

func badRequest(reason any) *failure { return failed(400, "bad_request", reason) }

func badRequestf(format string, args ...any) *failure {
	return badRequest(fmt.Sprintf(format, args...))
}

func notAuthorised(reason string) *failure {
	return failed(401, "not_authorised", reason).because(reason)
}

// missing is the answer for an object or a path that does not exist.
var missing = failed(404, "Object Not Found", "Not Found")

var errVHostMissing = failed(404, "not_found", "vhost_not_found")

// refusal turns the broker's refusal of a verb into an answer. prefix is put before the text where an
// endpoint shows AMQP's reply code too.
func refusal(e *broker.Error) *failure {
	switch e.Kind {
	case broker.NotFound:
		return failed(404, "not_found", e.Text).because(e.Text)
	case broker.AccessRefused, broker.NotAllowed:
		return notAuthorised("Access refused.").because(e.Text)
	}
	return badRequest(e.Text).because(e.Text)
}

// write ends the request with a failure.
func (r *request) write(f *failure) {
	r.SetStatusCode(f.status)
	if f.status == fasthttp.StatusUnauthorized && f.error == "not_authorized" {
		r.Response.Header.Set("WWW-Authenticate", challenge)
	}
	if f.reason == nil {
		return
	}
	r.SetContentType("application/json")
	r.SetBody(encode(nil, api.Error{Error: f.error, Reason: f.reason}, nil))
}

const challenge = `Basic realm="RabbitMQ Management"`

// ok answers 200 with v as JSON, as far as the columns ask for it.
func (r *request) ok(v any) error { return r.answer(fasthttp.StatusOK, v) }

func (r *request) answer(status int, v any) error {
	return r.send(status, encode(nil, v, parseColumns(r.query("columns"))))
}

// send answers with JSON.
func (r *request) send(status int, p []byte) error {
	if !r.room(len(p)) {
		return r.busy() // others do not read theirs
	}
	r.put(status, p)
	return nil
}

// room reports whether there is room for n bytes of an answer, with what it takes to make it, beside those of others. It
// counts them from then on.
func (r *request) room(n int) bool {
	if n <= freeBytes {
		return true
	}
	return r.s.answers.take(r.answering(), int64(n))
}

// answering is the request's share of the answers.
func (r *request) answering() *share {
	c := r.socket()
	c.answer.of(r.user, c.from)
	return &c.answer
}

// put is send for an answer that must not be lost, whatever others do.
func (r *request) put(status int, p []byte) {
	if len(p) > freeBytes {
		r.s.answers.add(r.answering(), int64(len(p)))
	}
	r.SetStatusCode(status)
	r.SetContentType("application/json")
	r.Response.Header.Set("Cache-Control", "no-cache")
	r.Response.SetBodyRaw(p)
}

// done answers without a body: 201 when something was created, else 204.
func (r *request) done(created bool) error {
	if created {
		r.SetStatusCode(fasthttp.StatusCreated)
	} else {
		r.SetStatusCode(fasthttp.StatusNoContent)
	}
	return nil
}

// query is a parameter of the URL, "" when it is absent.
func (r *request) query(name string) string { return string(r.QueryArgs().Peek(name)) }

func (r *request) has(name string) bool { return r.QueryArgs().Has(name) }

// body is the request's JSON object.
type body map[string]any

// body reads the request body; an empty one is an empty object.
func (r *request) body() (body, error) {
	p := r.PostBody()
	switch string(p) {
	case "", "null", "undefined", `""`:
		return body{}, nil
	}
	var b body
	if err := api.Decode(p, &b); err != nil || b == nil {
		var text string
		if api.Decode(p, &text) == nil {
			return nil, badRequest("invalid payload: the request body JSON-decoded to a string. Is the input doubly-JSON-encoded?")
		}
		return nil, badRequest("not_json")
	}
	return b, nil
}

// need reports the mandatory keys that are missing, in the order of the endpoint.
func (b body) need(keys ...string) error {
	var lacks []string
	for _, k := range keys {
		if v, ok := b[k]; !ok || v == nil {
			lacks = append(lacks, "{key_missing,"+k+"}")
		}
	}
	if lacks == nil {
		return nil
	}
	text := "[" + strings.Join(lacks, ",") + "]"
	if len(text) > termColumns {
		text = "[" + strings.Join(lacks, ",\n ") + "]"
	}
	return badRequest(text)
}

// termColumns is the longest Erlang term that is printed on one line.
const termColumns = 78

// text is a string, "" when it is absent.
func (b body) text(key string) (string, error) {
	switch v := b[key].(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	}
	return "", badRequest([]any{"not_string", key})
}

// textIfThere is a string that may be absent, but not null.
func (b body) textIfThere(key string) (string, error) {
	if v, ok := b[key]; ok && v == nil {
		return "", badRequest([]any{"not_string", key})
	}
	return b.text(key)
}

// boolean is true or false, also as a string. It may be absent, but not null.
func (b body) boolean(key string, absent bool) (bool, error) {
	v, there := b[key]
	if !there {
		return absent, nil
	}
	switch v := v.(type) {
	case bool:
		return v, nil
	case string:
		switch v {
		case "true":
			return true, nil
		case "false":
			return false, nil
		}
	}
	return false, badRequest([]any{"not_boolean", v})
}

// integer is a whole number, also as a string.
func (b body) integer(key string, absent int) (int, error) {
	switch v := b[key].(type) {
	case nil:
		return absent, nil
	case json.Number:
		if n, err := strconv.Atoi(v.String()); err == nil {
			return n, nil
		}
	case string:
		if n, err := strconv.Atoi(v); err == nil {
			return n, nil
		}
	}
	return 0, badRequest([]any{"not_integer", b[key]})
}

// arguments is a field table.
func (b body) arguments(key string) (table.Table, error) {
	switch v := b[key].(type) {
	case nil:
		return nil, nil
	case []any:
		if len(v) == 0 {
			return nil, nil
		}
	case map[string]any:
		if hasNull(v) {
			return nil, badRequest("null_not_allowed")
		}
		t, err := table.FromMap(v)
		if err != nil {
			return nil, badRequest(err.Error())
		}
		if len(t) == 0 {
			return nil, nil
		}
		return t, nil
	}
	return nil, badRequest([]any{"not_json_object", key})
}

// maxKept is how much of one object that operators make is kept, in bytes: of a policy, a user, a permission, what is
// noted about a vhost, a parameter. Who sends more is answered 400.
const maxKept = 16 << 10

// itemSize is what an item of a list takes beside its bytes.
const itemSize = 16

func sizeOf(list []string) (n int) {
	for _, s := range list {
		n += len(s) + itemSize
	}
	return n
}

// within refuses an object that takes more.
func within(what string, bytes int) error {
	if bytes > maxKept {
		return badRequestf("%s takes %d bytes, %d at most", what, bytes, maxKept)
	}
	return nil
}

func hasNull(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		for _, e := range v {
			if hasNull(e) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, hasNull)
	}
	return false
}

// noArguments is never changed.
var noArguments = map[string]any{}

// argumentMap is a field table as JSON shows it: an object, never null.
func argumentMap(t table.Table) map[string]any {
	if len(t) == 0 {
		return noArguments
	}
	return t.Map()
}

// splitPath cuts a path into its decoded segments: dot segments are resolved first, one empty segment at the
// end is dropped. ok is false for a malformed percent escape.
func splitPath(path string) (segments []string, ok bool) {
	path = strings.TrimPrefix(path, "/")
	path = strings.TrimSuffix(path, "/")
	if path == "" {
		return nil, true
	}
	for part := range strings.SplitSeq(path, "/") {
		name, err := url.PathUnescape(part)
		if err != nil {
			return nil, false
		}
		switch name {
		case ".":
		case "..":
			if len(segments) > 0 {
				segments = segments[:len(segments)-1]
			}
		default:
			segments = append(segments, name)
		}
	}
	return segments, true
}

// credentials reads the Basic header. present is false when there is none; an error is a malformed one.
func credentials(header []byte) (name, password string, present bool, err error) {
	if len(header) == 0 {
		return "", "", false, nil
	}
	scheme, coded, _ := strings.Cut(string(header), " ")
	if !strings.EqualFold(scheme, "basic") {
		return "", "", true, nil // known to nobody
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(coded))
	if err != nil {
		return "", "", true, errors.New("the Basic header is not base64")
	}
	name, password, _ = strings.Cut(string(raw), ":")
	return name, password, true, nil
}

// login finds out who asks.
func (r *request) login(name, password string) (*auth.User, *failure) {
	u, e := r.s.opt.Broker.LoginHTTP(name, password, r.RemoteAddr())
	if e == nil {
		return u, nil
	}
	f := failed(401, "not_authorized", "Not_Authorized")
	switch e.Kind {
	case broker.NotAllowed:
		f = failed(401, "not_authorised", "User can only log in via localhost")
	case broker.LoginLimited:
		r.Response.Header.Set("Retry-After", strconv.Itoa(int(broker.LoginPause/time.Second)))
		f = failed(429, "too_many_requests", "Too many failed logins")
	}
	r.s.opt.Log.Warn("login refused", "peer", r.RemoteAddr().String(), "user", name[:min(len(name), loggedName)], "vhost", r.vars["vhost"], "code", f.status, "reason", e.Cause)
	return nil, f
}

// loggedName is how much of a name the log shows, in bytes: who is not known may call himself anything.
const loggedName = 255

// logRefusal tells the log of a refused action. The path is the endpoint's: a name in the real one may be a secret.
func (r *request) logRefusal(f *failure) {
	user := ""
	if r.user != nil {
		user = r.user.Name
	}
	r.s.opt.Log.Warn("request refused", "peer", r.RemoteAddr().String(), "user", user, "vhost", r.vars["vhost"], "code", f.status, "reason", f.cause,
		"method", string(r.Method()), "path", r.path)
}
