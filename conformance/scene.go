package conformance

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"runtime"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// scenario is one check of an SDK.
type scenario struct {
	name   string
	checks string // what, for --list
	needs  string // a feature of the SDK; empty: none
	run    func(s *scene)
}

// scene is a scenario that is played. Its methods end it when what they expect does not happen.
type scene struct {
	play    *play
	vhost   string
	failure string        // why it failed; empty: it did not
	ended   chan struct{} // closed when run is over

	taps  []*tap
	other *amqp.Connection // the other side; nil until it is needed
	subs  int              // subscriptions made
	kept  bool             // the driver is used by the next scenario too
}

// perform plays the scenario to its end and clears up.
func (s *scene) perform(sc scenario) {
	b := s.play.broker
	s.play.driver.log.reset()
	if err := b.addVHost(s.vhost); err != nil {
		s.failure = err.Error()
		return
	}
	s.kept = true
	go func() { // so that a failure can end it where it is
		defer close(s.ended)
		sc.run(s)
	}()
	<-s.ended
	if s.failure == "" && s.kept {
		if r, err := s.play.driver.command("close", nil); err != nil {
			s.failure = "after the scenario: " + err.Error()
		} else if r.Error != nil {
			s.failure = "after the scenario: close: " + r.Error.String()
		}
	}
	for _, t := range s.taps {
		t.close()
	}
	if s.other != nil {
		s.other.Close()
	}
	if err := b.deleteVHost(s.vhost); err != nil && s.failure == "" {
		s.failure = err.Error()
	}
}

// failf ends the scenario.
func (s *scene) failf(format string, args ...any) {
	s.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (s *scene) must(err error) {
	if err != nil {
		s.failf("%v", err)
	}
}

// equal ends the scenario unless got is want.
func (s *scene) equal(what string, got, want any) {
	if !same(got, want) {
		s.failf("%s: got %s, want %s", what, show(got), show(want))
	}
}

func show(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	if len(b) > 300 {
		return string(b[:300]) + "..."
	}
	return string(b)
}

// same compares values of JSON, numbers by their value.
func same(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k, v := range a {
			if w, ok := b[k]; !ok || !same(v, w) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !same(a[i], b[i]) {
				return false
			}
		}
		return true
	}
	if x, ok := number(a); ok {
		y, ok := number(b)
		return ok && x == y
	}
	return a == b
}

// number is a number's value: an int64 when it is one, else a float64.
func number(v any) (any, bool) {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i, true
		}
		f, err := v.Float64()
		return whole(f), err == nil
	case int:
		return int64(v), true
	case int64:
		return v, true
	case float64:
		return whole(v), true
	}
	return nil, false
}

// whole is f, as an int64 if it is one that every float64 near it tells apart.
func whole(f float64) any {
	const exact = 1 << 53
	if f == math.Trunc(f) && math.Abs(f) < exact {
		return int64(f)
	}
	return f
}

// all are the fields of each op with what they are when a scenario says nothing of them.
var all = map[string]fields{
	"connect":          {"url": "", "reconnect": false},
	"close":            {},
	"declare_exchange": {"name": "", "type": "direct", "durable": true, "auto_delete": false, "internal": false, "passive": false, "args": fields{}},
	"delete_exchange":  {"name": "", "if_unused": false},
	"declare_queue":    {"name": "", "durable": true, "exclusive": false, "auto_delete": false, "passive": false, "args": fields{}},
	"delete_queue":     {"name": "", "if_unused": false, "if_empty": false},
	"purge_queue":      {"name": ""},
	"bind":             {"exchange": "", "queue": "", "to_exchange": "", "key": "", "args": fields{}},
	"unbind":           {"exchange": "", "queue": "", "to_exchange": "", "key": "", "args": fields{}},
	"publish":          {"exchange": "", "key": "", "body": "", "persistent": true, "mandatory": false, "properties": fields{}, "headers": fields{}},
	"publish_bytes":    {"exchange": "", "key": "", "body_base64": "", "persistent": true, "mandatory": false, "properties": fields{}, "headers": fields{}},
	"publish_many":     {"exchange": "", "key": "", "count": 0, "body": "body", "persistent": true},
	"subscribe":        {"sub": "", "queue": "", "prefetch": 10, "no_ack": false, "exclusive": false, "tag": "", "args": fields{}},
	"next":             {"sub": "", "timeout_ms": int(nextLimit / time.Millisecond)},
	"unsubscribe":      {"sub": ""},
	"ack":              {"tag": "", "multiple": false},
	"nack":             {"tag": "", "multiple": false, "requeue": false},
	"get":              {"queue": "", "no_ack": false},
	"errors":           {},
	"info":             {},
}

const (
	// nextLimit is how long next waits for a message that must come, noMore for one that must not.
	nextLimit = 20 * time.Second
	noMore    = 300 * time.Millisecond
)

// command is an op with all its fields.
func command(op string, args fields) fields {
	base, ok := all[op]
	if !ok {
		panic("BUG: conformance: no op " + op)
	}
	whole := fields{}
	for k, v := range base {
		whole[k] = v
	}
	for k, v := range args {
		if _, ok := base[k]; !ok {
			panic("BUG: conformance: " + op + " has no field " + k)
		}
		whole[k] = v
	}
	return whole
}

func (s *scene) driver() *driver { return s.play.driver }

// do gives a command that must succeed.
func (s *scene) do(op string, args fields) fields {
	s.send(op, args)
	return s.receive(op)
}

// send gives a command whose reply receive waits for.
func (s *scene) send(op string, args fields) { s.must(s.driver().send(op, command(op, args))) }

func (s *scene) receive(op string) fields {
	r, err := s.driver().receive(op, commandLimit)
	s.must(err)
	if r.Error != nil {
		s.failf("%s: %s", op, r.Error)
	}
	return r.Result
}

// waits says that the command just sent must not be answered yet.
func (s *scene) waits(what string) {
	if err := s.driver().silent(noMore); err != nil {
		s.failf("%s: %v", what, err)
	}
}

// refused gives a command that must fail with an error of this kind and code, and text in its message.
func (s *scene) refused(op string, args fields, kind string, code int, text string) {
	r, err := s.driver().command(op, command(op, args))
	s.must(err)
	switch {
	case r.Error == nil:
		s.failf("%s succeeded, want %s %d", op, kind, code)
	case r.Error.Kind != kind || r.Error.Code != code || !strings.Contains(r.Error.Message, text):
		s.failf("%s: got %s, want %s %d with %q", op, r.Error, kind, code, text)
	}
}

// url is where the driver connects.
func (s *scene) url() string { return s.urlAs("guest:guest@", s.vhost) }

func (s *scene) urlAs(login, vhost string) string {
	scheme := s.play.scheme
	if addr := s.play.broker.addr(scheme); addr != "" {
		return address(scheme, login, addr, vhost)
	}
	// The broker has no such listener of its own: a proxy in front of it has.
	return address(scheme, login, s.tap().addr(), vhost)
}

func (s *scene) connect() { s.do("connect", fields{"url": s.url()}) }

// tap is a proxy in front of the broker, which ends with the scenario.
func (s *scene) tap() *tap {
	t, err := newTap(s.play.scheme, s.play.broker)
	s.must(err)
	s.taps = append(s.taps, t)
	return t
}

// connectThrough connects the driver through a new tap.
func (s *scene) connectThrough(reconnect bool) *tap {
	t := s.tap()
	s.do("connect", fields{"url": address(s.play.scheme, "guest:guest@", t.addr(), s.vhost), "reconnect": reconnect})
	return t
}

func (s *scene) queue(name string, more fields) {
	r := s.do("declare_queue", merge(fields{"name": name}, more))
	s.equal("the name of the declared queue", r["name"], name)
}

func merge(a, b fields) fields {
	for k, v := range b {
		a[k] = v
	}
	return a
}

func (s *scene) publish(exchange, key, body string) {
	s.do("publish", fields{"exchange": exchange, "key": key, "body": body})
}

// message is one that the driver gives.
type message struct {
	Body        *string `json:"body"`
	BodyBase64  *string `json:"body_base64"`
	Exchange    *string `json:"exchange"`
	RoutingKey  *string `json:"routing_key"`
	Redelivered *bool   `json:"redelivered"`
	Tag         *string `json:"tag"`
	Properties  fields  `json:"properties"`
	Headers     fields  `json:"headers"`
}

func (m *message) text() string {
	if m.Body == nil {
		return "(no text)"
	}
	return *m.Body
}

// message reads the message of a result; nil when there is none.
func (s *scene) message(r fields) *message {
	v, ok := r["message"]
	if !ok {
		s.failf("the result has no message: %s", show(r))
	}
	if v == nil {
		return nil
	}
	b, err := json.Marshal(v)
	s.must(err)
	dec := json.NewDecoder(strings.NewReader(string(b)))
	dec.UseNumber()
	var m message
	if err := dec.Decode(&m); err != nil {
		s.failf("a message that cannot be read: %v: %s", err, show(v))
	}
	if m.BodyBase64 == nil || m.Exchange == nil || m.RoutingKey == nil || m.Redelivered == nil || m.Tag == nil || m.Properties == nil || m.Headers == nil {
		s.failf("a message without one of its fields: %s", show(v))
	}
	if raw, err := base64.StdEncoding.DecodeString(*m.BodyBase64); err != nil {
		s.failf("body_base64: %v", err)
	} else if m.Body != nil && *m.Body != string(raw) {
		s.failf("body and body_base64 differ: %s", show(v))
	}
	return &m
}

// subscribe begins a subscription and gives its id.
func (s *scene) subscribe(queue string, more fields) string {
	s.subs++
	id := fmt.Sprintf("sub-%d", s.subs)
	s.do("subscribe", merge(fields{"sub": id, "queue": queue}, more))
	return id
}

// next waits for a message, which must have this body.
func (s *scene) next(sub, body string) *message {
	r := s.do("next", fields{"sub": sub})
	m := s.message(r)
	switch {
	case m == nil && r["cancelled"] == true:
		s.failf("next: the subscription ended, want %q", body)
	case m == nil:
		s.failf("next: nothing within %s, want %q", nextLimit, body)
	case m.text() != body:
		s.failf("next: got %q, want %q", m.text(), body)
	}
	return m
}

// nothing says that no message may come.
func (s *scene) nothing(sub string) {
	r := s.do("next", fields{"sub": sub, "timeout_ms": int(noMore / time.Millisecond)})
	if m := s.message(r); m != nil {
		s.failf("next: got %q, want nothing", m.text())
	}
	if r["cancelled"] == true {
		s.failf("next: the subscription ended")
	}
}

// cancelled says that the subscription must have ended, or end.
func (s *scene) cancelled(sub string) {
	r := s.do("next", fields{"sub": sub})
	if m := s.message(r); m != nil {
		s.failf("next: got %q, want cancelled", m.text())
	}
	s.equal("cancelled", r["cancelled"], true)
}

func (s *scene) ack(m *message) { s.do("ack", fields{"tag": *m.Tag}) }

// take gets a message without ack, which must have this body.
func (s *scene) take(queue, body string) *message {
	return s.got(s.do("get", fields{"queue": queue, "no_ack": true}), body)
}

// get gets a message that must be acknowledged.
func (s *scene) get(queue, body string) *message {
	return s.got(s.do("get", fields{"queue": queue}), body)
}

func (s *scene) got(r fields, body string) *message {
	m := s.message(r)
	if m == nil {
		s.failf("get: the queue is empty, want %q", body)
	}
	if m.text() != body {
		s.failf("get: got %q, want %q", m.text(), body)
	}
	return m
}

// empty says that the queue has no ready message.
func (s *scene) empty(queue string) {
	if m := s.message(s.do("get", fields{"queue": queue, "no_ack": true})); m != nil {
		s.failf("get: got %q, want an empty queue %s", m.text(), queue)
	}
}

// count says how many ready messages a queue must have.
func (s *scene) count(queue string, messages int) {
	r := s.do("declare_queue", fields{"name": queue, "passive": true})
	s.equal("messages in "+queue, r["messages"], messages)
}

// eventually asks until ok, for what the broker does in its own time.
func (s *scene) eventually(what string, ok func() bool) {
	deadline := time.Now().Add(nextLimit)
	for !ok() {
		if time.Now().After(deadline) {
			s.failf("not within %s: %s", nextLimit, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// amqp is a channel of the other side.
func (s *scene) amqp() *amqp.Channel {
	if s.other == nil {
		u := url.URL{Scheme: "amqp", User: url.UserPassword("guest", "guest"), Host: s.play.broker.ports["AMQP 0-9-1"], RawPath: "/" + url.PathEscape(s.vhost), Path: "/" + s.vhost}
		c, err := amqp.Dial(u.String())
		s.must(err)
		s.other = c
	}
	ch, err := s.other.Channel()
	s.must(err)
	return ch
}

// refusedCode says that err is an AMQP error of this code.
func (s *scene) refusedCode(err error, code int) {
	e, ok := errors.AsType[*amqp.Error](err)
	if !ok || e.Code != code {
		s.failf("over AMQP: got %v, want %d", err, code)
	}
}
