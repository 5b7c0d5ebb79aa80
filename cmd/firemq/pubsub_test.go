package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	fire "github.com/firemq/firemq/sdk/go"
	"github.com/firemq/firemq/server"
	"github.com/rabbitmq/amqp091-go"
)

// startBroker runs a broker in memory and returns its URLs and a connection.
func startBroker(t *testing.T) (fireURL, amqpURL string, c *fire.Client) {
	t.Helper()
	const free = "127.0.0.1:0"
	s, err := server.Start(t.Context(), server.Options{AMQP: free, Fire: free, HTTP: "off", Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
	fireURL, amqpURL = "fire://"+s.FireAddr().String(), "amqp://"+s.AMQPAddr().String()
	c, err = fire.Dial(t.Context(), fireURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return fireURL, amqpURL, c
}

func declare(t *testing.T, c *fire.Client, queues ...string) {
	t.Helper()
	for _, q := range queues {
		if _, err := c.DeclareQueue(t.Context(), q, fire.QueueOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// command runs a command line that must succeed, with FIREMQ_URL set.
func command(t *testing.T, url, in string, args ...string) string {
	t.Helper()
	got := runWith(t.Context(), map[string]string{"FIREMQ_URL": url}, in, args...)
	if got.status != 0 || got.err != "" {
		t.Fatalf("%q: status %d, error %q, output %q", args, got.status, got.err, got.out)
	}
	return got.out
}

func TestPubSub(t *testing.T) {
	url, _, c := startBroker(t)
	declare(t, c, "jobs")
	file := filepath.Join(t.TempDir(), "payload.bin")
	if err := os.WriteFile(file, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		in   string
		args []string
		out  string
	}{
		{"", []string{"pub", "--queue", "jobs", "one task"}, "1 message confirmed\n"},
		{"", []string{"pub", "", "jobs", "through the default exchange"}, "1 message confirmed\n"},
		{"from standard input", []string{"pub", "--queue", "jobs"}, "1 message confirmed\n"},
		{"", []string{"pub", "--queue", "jobs", "--file", file}, "1 message confirmed\n"},
		{"", []string{"pub", "--queue", "jobs", ""}, "1 message confirmed\n"},
		{"", []string{"sub", "jobs", "--peek", "--count", "1"}, "one task\n"},
		{"", []string{"sub", "jobs", "--peek"}, "one task\nthrough the default exchange\nfrom standard input\nfrom a file\n\n"},
		{"", []string{"sub", "jobs", "--count", "2"}, "one task\nthrough the default exchange\n"},
		{"", []string{"sub", "jobs", "--count", "3"}, "from standard input\nfrom a file\n\n"},
	} {
		if got := command(t, url, step.in, step.args...); got != step.out {
			t.Errorf("%q prints %q, want %q", step.args, got, step.out)
		}
	}
	if q, err := c.DeclareQueue(t.Context(), "jobs", fire.QueueOptions{}); err != nil || q.Messages != 0 {
		t.Errorf("%d messages are left, error %v", q.Messages, err)
	}
}

func TestPubMany(t *testing.T) {
	url, _, c := startBroker(t)
	declare(t, c, "jobs")
	if got := command(t, url, "", "pub", "--queue", "jobs", "--count", "5000", "load"); !strings.HasPrefix(got, "5000 messages confirmed in ") {
		t.Error(got)
	}
	if got, want := command(t, url, "", "sub", "jobs", "--count", "5000"), strings.Repeat("load\n", 5000); got != want {
		t.Errorf("%d bytes, want %d", len(got), len(want))
	}
}

func TestSubJSON(t *testing.T) {
	url, amqpURL, c := startBroker(t)
	declare(t, c, "jobs")
	command(t, url, "", "pub", "", "jobs", "<first>", "--content-type", "text/plain", "-H", "trace=abc", "-H", "empty=")
	conn, err := amqp091.Dial(amqpURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	confirm, err := ch.PublishWithDeferredConfirm("amq.direct", "none", false, false, amqp091.Publishing{})
	if err != nil || !confirm.Wait() {
		t.Fatal("no confirm", err)
	}
	if err := ch.QueueBind("jobs", "key", "amq.direct", false, nil); err != nil {
		t.Fatal(err)
	}
	confirm, err = ch.PublishWithDeferredConfirm("amq.direct", "key", false, false, amqp091.Publishing{
		Body: []byte{0xff, 0}, ContentType: "a/b", ContentEncoding: "c", CorrelationId: "d", ReplyTo: "e", Expiration: "60000",
		MessageId: "f", Timestamp: time.Unix(1700000000, 0), Type: "g", UserId: "guest", AppId: "h", Priority: 7,
		Headers: amqp091.Table{"n": int64(-5), "b": true, "nil": nil, "list": []any{"x", int32(1)}, "map": amqp091.Table{"k": 0.5}},
	})
	if err != nil || !confirm.Wait() {
		t.Fatal("no confirm", err)
	}
	// Peeked at, so that it is redelivered.
	command(t, url, "", "sub", "jobs", "--peek")
	got := command(t, url, "", "sub", "jobs", "--count", "2", "--json")
	want := `{"body":"<first>","exchange":"","routing_key":"jobs","redelivered":true,"properties":{"content_type":"text/plain"},"headers":{"empty":"","trace":"abc"}}
{"body_base64":"/wA=","exchange":"amq.direct","routing_key":"key","redelivered":true,"properties":{"content_type":"a/b","content_encoding":"c","correlation_id":"d","reply_to":"e","expiration":60000,"message_id":"f","timestamp":1700000000,"type":"g","user_id":"guest","app_id":"h","priority":7},"headers":{"b":true,"list":["x",1],"map":{"k":0.5},"n":-5,"nil":null}}
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// The other way round: what pub sends, an AMQP client reads.
// writeFunc is a writer that calls a function.
type writeFunc func(p []byte)

func (f writeFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

func TestPubSaysThatItWaitsDuringAnAlarm(t *testing.T) {
	s, err := server.Start(t.Context(), server.Options{AMQP: "off", Fire: "127.0.0.1:0", HTTP: "off", Data: t.TempDir(), DiskFreeLimit: 1 << 60})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown(context.Background())
	url := "fire://" + s.FireAddr().String()
	c, err := fire.Dial(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	declare(t, c, "jobs")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var said string
	status := run(ctx, terminal{
		in: strings.NewReader(""), out: io.Discard, env: func(string) (string, bool) { return "", false },
		err: writeFunc(func(p []byte) { said += string(p); cancel() }), // it would wait for ever
	}, []string{"pub", "--url", url, "--queue", "jobs", "--count", "100000", "x"})
	if want := "the broker is low on memory or disk: what is published waits until it has room\n" +
		"firemq: interrupted before everything was confirmed: what was sent may be published\n"; said != want || status != exitFailure {
		t.Errorf("status %d, %q", status, said)
	}
}

func TestPubToAMQP(t *testing.T) {
	url, amqpURL, c := startBroker(t)
	declare(t, c, "jobs")
	command(t, url, "", "pub", "--queue", "jobs", "body", "--content-type", "text/plain", "-H", "trace=abc")
	command(t, url, "", "pub", "--queue", "jobs", "body", "--persistent=false")
	conn, err := amqp091.Dial(amqpURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []uint8{2, 1} {
		d, ok, err := ch.Get("jobs", true)
		if err != nil || !ok || string(d.Body) != "body" {
			t.Fatalf("%+v, %v, %v", d, ok, err)
		}
		persistent := d.DeliveryMode == 2
		if persistent != (mode == 2) {
			t.Errorf("delivery mode %d, want %d", d.DeliveryMode, mode)
		}
		if mode == 2 && (d.ContentType != "text/plain" || d.Headers["trace"] != "abc") {
			t.Errorf("%+v", d)
		}
	}
}

func TestPubSubErrors(t *testing.T) {
	url, _, c := startBroker(t)
	declare(t, c, "jobs")
	if _, err := c.DeclareQueue(t.Context(), "full", fire.QueueOptions{Args: map[string]any{"x-max-length": 0, "x-overflow": "reject-publish"}}); err != nil {
		t.Fatal(err)
	}
	wrong := strings.Replace(url, "//", "//guest:hunter2@", 1)
	for name, c := range map[string]struct {
		args   []string
		status int
		want   string
	}{
		"pub to nowhere":         {[]string{"pub", "--queue", "nope", "x"}, 1, "no queue 'nope': declare the queue first"},
		"pub to no exchange":     {[]string{"pub", "nope", "key", "x"}, 1, "no exchange 'nope'"},
		"pub mandatory":          {[]string{"pub", "amq.direct", "key", "x", "--mandatory"}, 1, "no queue received the message"},
		"pub to a full queue":    {[]string{"pub", "--queue", "full", "x"}, 1, "full"},
		"pub without place":      {[]string{"pub", "x"}, 2, "EXCHANGE KEY, or --queue"},
		"pub two bodies":         {[]string{"pub", "--queue", "jobs", "x", "y"}, 2, "more than one body"},
		"pub body and file":      {[]string{"pub", "--queue", "jobs", "x", "--file", "y"}, 2, "give one of them"},
		"pub bad header":         {[]string{"pub", "--queue", "jobs", "x", "-H", "y"}, 2, `header "y"`},
		"pub bad count":          {[]string{"pub", "--queue", "jobs", "x", "--count", "0"}, 2, "--count 0"},
		"pub empty queue":        {[]string{"pub", "--queue", "", "x"}, 2, "--queue is empty"},
		"pub missing file":       {[]string{"pub", "--queue", "jobs", "--file", "/does/not/exist"}, 1, "no such file"},
		"pub bad URL":            {[]string{"pub", "--queue", "jobs", "x", "--url", "amqp://localhost"}, 2, "needs fire://"},
		"pub without broker":     {[]string{"pub", "--queue", "jobs", "x", "--url", "fire://127.0.0.1:1"}, 1, "(connection refused): start one"},
		"pub wrong password":     {[]string{"pub", "--queue", "jobs", "x", "--url", wrong}, 1, "check user, password and vhost"},
		"sub of nothing":         {[]string{"sub", "nope"}, 1, "no queue 'nope' in vhost '/': declare the queue first"},
		"sub peek of nothing":    {[]string{"sub", "nope", "--peek"}, 1, "no queue 'nope'"},
		"sub without queue":      {[]string{"sub"}, 2, "QUEUE is missing"},
		"sub bad count":          {[]string{"sub", "jobs", "--count", "-1"}, 2, "--count -1"},
		"sub without broker":     {[]string{"sub", "jobs", "--url", "fire://127.0.0.1:1"}, 1, "(connection refused): start one"},
		"sub peek at empty":      {[]string{"sub", "jobs", "--peek"}, 0, "queue 'jobs' is empty"},
		"pub to no queue but ok": {[]string{"pub", "amq.direct", "key", "x"}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := runWith(t.Context(), map[string]string{"FIREMQ_URL": url}, "", c.args...)
			if got.status != c.status || !strings.Contains(got.err, c.want) || c.status != 0 && !isOneLine(got.err) || strings.Contains(got.err, "hunter2") {
				t.Errorf("status %d, error %q; want %d and %q", got.status, got.err, c.status, c.want)
			}
		})
	}
}

func TestPubRefusesAHugeBody(t *testing.T) {
	f := pubFlags{}
	body := io.LimitReader(zeros{}, maxBody+1)
	if _, err := f.readBody(terminal{in: body}); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("error %v", err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// sub prints and acknowledges until it is interrupted, and leaves the rest in the queue.
func TestSubUntilInterrupted(t *testing.T) {
	url, _, c := startBroker(t)
	declare(t, c, "jobs")
	ctx, cancel := context.WithCancel(t.Context())
	printed := make(lines)
	done := make(chan int)
	var errs bytes.Buffer
	go func() {
		done <- run(ctx, terminal{out: printed, err: &errs, env: func(string) (string, bool) { return "", false }}, []string{"sub", "jobs", "--url", url})
	}()
	for n := range 3 {
		if err := c.Publish(t.Context(), fire.Message{Key: "jobs", Body: fmt.Append(nil, n)}); err != nil {
			t.Fatal(err)
		}
		if got, want := <-printed, fmt.Sprintln(n); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	cancel()
	if status := <-done; status != 0 || errs.Len() != 0 {
		t.Errorf("status %d, error %q", status, errs.String())
	}
}

// lines passes what is written on.
type lines chan string

func (l lines) Write(b []byte) (int, error) { l <- string(b); return len(b), nil }

// What cannot be printed is not acknowledged.
func TestSubKeepsWhatItCannotPrint(t *testing.T) {
	url, _, c := startBroker(t)
	declare(t, c, "jobs")
	command(t, url, "", "pub", "--queue", "jobs", "precious")
	var errs bytes.Buffer
	status := run(t.Context(), terminal{out: broken{}, err: &errs, env: func(string) (string, bool) { return "", false }}, []string{"sub", "jobs", "--url", url})
	if status != 1 || !isOneLine(errs.String()) {
		t.Errorf("status %d, error %q", status, errs.String())
	}
	if got := command(t, url, "", "sub", "jobs", "--count", "1"); got != "precious\n" {
		t.Error(got)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, net.ErrClosed }

func TestJSONOfOddFloats(t *testing.T) {
	inf := 1e300
	v := jsonValue(map[string]any{"a": []any{inf * inf, 1.5}, "b": -inf * inf})
	b, err := json.Marshal(v)
	if err != nil || string(b) != `{"a":["+Inf",1.5],"b":"-Inf"}` {
		t.Errorf("%s, %v", b, err)
	}
}

// The keys of --json are those of the protocol's message properties.
func TestJSONProperties(t *testing.T) {
	b, err := json.Marshal(propertiesJSON{"a", "b", "c", "d", new(int64), "e", new(int64), "f", "g", "h", new(uint8)})
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	want := []string{"app_id", "content_encoding", "content_type", "correlation_id", "expiration", "message_id", "priority", "reply_to", "timestamp", "type", "user_id"}
	if got := slices.Sorted(maps.Keys(m)); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
