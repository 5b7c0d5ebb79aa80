// Package tools drives an AMQP 0-9-1 broker with the programs of rabbitmq-c, which Debian has in the package
// amqp-tools. Where they are not installed the tests are skipped, or fail when FIREMQ_REQUIRE_CLIENTS is set.
// It runs against any broker: set AMQP_URL, or nothing for a FireMQ of its own.
package tools

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/test/internal/brokertest"
	amqp "github.com/rabbitmq/amqp091-go"
)

func TestMain(m *testing.M) { os.Exit(brokertest.Main(m.Run)) }

const limit = 20 * time.Second // for any single program

// start gives the broker and a channel on it for what the programs can't do.
func start(t *testing.T) (*brokertest.Target, *amqp.Channel) {
	t.Helper()
	if _, err := exec.LookPath("amqp-publish"); err != nil {
		if os.Getenv("FIREMQ_REQUIRE_CLIENTS") != "" {
			t.Fatal(err)
		}
		t.Skip("amqp-tools are not installed")
	}
	target := brokertest.NewTarget(t)
	return target, channel(t, target)
}

func channel(t *testing.T, target *brokertest.Target) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(target.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// queue declares a queue with a name that no other test uses.
func queue(t *testing.T, ch *amqp.Channel, durable bool, arguments amqp.Table) string {
	t.Helper()
	name := strings.ReplaceAll(t.Name(), "/", "-") + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	if _, err := ch.QueueDeclare(name, durable, false, false, false, arguments); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !ch.IsClosed() {
			ch.QueueDelete(name, false, false, false)
		}
	})
	return name
}

func ready(t *testing.T, ch *amqp.Channel, queue string) int {
	t.Helper()
	q, err := ch.QueueDeclarePassive(queue, false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Messages
}

type tool struct {
	t        *testing.T
	cmd      *exec.Cmd
	cancel   context.CancelFunc
	out, err bytes.Buffer
}

// run starts a program; its URL is that of the broker unless the arguments name another.
func run(t *testing.T, target *brokertest.Target, stdin, name string, args ...string) *tool {
	t.Helper()
	p := &tool{t: t}
	var ctx context.Context
	ctx, p.cancel = context.WithTimeout(t.Context(), limit)
	if !strings.Contains(strings.Join(args, " "), "--url") {
		args = append([]string{"--url=" + target.URL}, args...)
	}
	p.cmd = exec.CommandContext(ctx, name, args...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = strings.NewReader(stdin), &p.out, &p.err
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// code waits for the end of the program and gives its exit status.
func (p *tool) code() int {
	p.t.Helper()
	defer p.cancel()
	err := p.cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		p.t.Fatal(err)
	}
	if code := p.cmd.ProcessState.ExitCode(); code >= 0 {
		return code
	}
	p.t.Fatalf("%s did not end by itself: %v\n%s%s", p.cmd, err, &p.out, &p.err)
	return 0
}

// want runs a program to its end, which must be success with that output.
func want(t *testing.T, target *brokertest.Target, output, stdin, name string, args ...string) {
	t.Helper()
	p := run(t, target, stdin, name, args...)
	if code := p.code(); code != 0 || p.out.String() != output {
		t.Fatalf("%s: status %d, printed %q, want %q\n%s", p.cmd, code, &p.out, output, &p.err)
	}
}

// refused runs a program to its end, which must be failure with the text on standard error.
func refused(t *testing.T, target *brokertest.Target, text, name string, args ...string) {
	t.Helper()
	p := run(t, target, "", name, args...)
	if code := p.code(); code == 0 || !strings.Contains(p.err.String(), text) {
		t.Fatalf("%s: status %d, said %q, want %q", p.cmd, code, &p.err, text)
	}
}

func TestDeclareAndDelete(t *testing.T) {
	target, ch := start(t)
	name := "tools-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	want(t, target, name+"\n", "", "amqp-declare-queue", "-d", "-q", name)
	want(t, target, name+"\n", "", "amqp-declare-queue", "-d", "-q", name)
	refused(t, target, "PRECONDITION_FAILED - inequivalent arg 'durable' for queue '"+name+"' in vhost '/': received 'false' but current is 'true'",
		"amqp-declare-queue", "-q", name)
	want(t, target, "", "", "amqp-publish", "-r", name, "-b", "m")
	brokertest.Eventually(t, limit, "the message is ready", func() bool { return ready(t, ch, name) == 1 })
	refused(t, target, "PRECONDITION_FAILED - queue '"+name+"' in vhost '/' not empty", "amqp-delete-queue", "-e", "-q", name)
	want(t, target, "1\n", "", "amqp-delete-queue", "-q", name)
	want(t, target, "0\n", "", "amqp-delete-queue", "-q", name)
	refused(t, target, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'", "amqp-declare-queue", "-q", "amq.mine")
}

func TestServerNamed(t *testing.T) {
	target, ch := start(t)
	p := run(t, target, "", "amqp-declare-queue", "-q", "")
	if code := p.code(); code != 0 || !strings.HasPrefix(p.out.String(), "amq.gen-") {
		t.Fatalf("status %d, printed %q\n%s", code, &p.out, &p.err)
	}
	if _, err := ch.QueueDelete(strings.TrimSpace(p.out.String()), false, false, false); err != nil {
		t.Fatal(err)
	}
}

func TestPublishAndGet(t *testing.T) {
	target, ch := start(t)
	q := queue(t, ch, false, nil)
	if code := run(t, target, "", "amqp-get", "-q", q).code(); code != 2 {
		t.Errorf("a get from an empty queue ended with %d, want 2", code)
	}
	want(t, target, "", "", "amqp-publish", "-r", q, "-b", "from an argument")
	want(t, target, "", "from a pipe", "amqp-publish", "-r", q)
	want(t, target, "", "one\ntwo\n", "amqp-publish", "-l", "-r", q)
	large := strings.Repeat("0123456789abcdef", 100_000)
	want(t, target, "", large, "amqp-publish", "-r", q)
	for _, body := range []string{"from an argument", "from a pipe", "one\n", "two\n", large} {
		want(t, target, body, "", "amqp-get", "-q", q)
	}
}

func TestProperties(t *testing.T) {
	target, ch := start(t)
	q := queue(t, ch, false, nil)
	if err := ch.QueueBind(q, q, "amq.topic", false, nil); err != nil {
		t.Fatal(err)
	}
	want(t, target, "", "", "amqp-publish", "-e", "amq.topic", "-r", q, "-p", "-C", "text/plain", "-E", "identity", "-t", "answers",
		"-H", "trace: abc", "-b", "m")
	d, ok, err := ch.Get(q, true)
	if err != nil || !ok {
		t.Fatalf("ok=%v err=%v", ok, err)
	}
	if d.Exchange != "amq.topic" || d.DeliveryMode != amqp.Persistent || d.ContentType != "text/plain" || d.ContentEncoding != "identity" ||
		d.ReplyTo != "answers" || d.Headers["trace"] != "abc" || string(d.Body) != "m" {
		t.Errorf("got %+v", d)
	}
}

func TestConsume(t *testing.T) {
	target, ch := start(t)
	q := queue(t, ch, false, nil)
	want(t, target, "", "1\n2\n3\n", "amqp-publish", "-l", "-r", q)
	want(t, target, "1\n2\n", "", "amqp-consume", "-q", q, "-c", "2", "-p", "1", "cat")
	brokertest.Eventually(t, limit, "two are acknowledged, one is not", func() bool { return ready(t, ch, q) == 1 })
	// What the command fails on is not acknowledged.
	run(t, target, "", "amqp-consume", "-q", q, "-c", "1", "sh", "-c", "cat >/dev/null; exit 1").code()
	brokertest.Eventually(t, limit, "the message is back", func() bool { return ready(t, ch, q) == 1 })
	want(t, target, "3\n", "", "amqp-consume", "-q", q, "-c", "1", "-A", "cat")
	if n := ready(t, ch, q); n != 0 {
		t.Errorf("%d messages are left", n)
	}
}

// A consumer with a queue of its own, and a heartbeat that only keeps the connection.
func TestConsumeFromExchange(t *testing.T) {
	target, ch := start(t)
	key := "tools-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	p := run(t, target, "", "amqp-consume", "--heartbeat=1", "-x", "-e", "amq.topic", "-r", key, "-c", "1", "cat")
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	idle := time.NewTimer(3 * time.Second) // three heartbeats
	defer idle.Stop()
	<-idle.C
	returns := ch.NotifyReturn(make(chan amqp.Return, 1000))
	brokertest.Eventually(t, limit, "the message is routed to the consumer's queue", func() bool {
		c, err := ch.PublishWithDeferredConfirm("amq.topic", key, true, false, amqp.Publishing{Body: []byte("m")})
		if err != nil {
			t.Fatal(err)
		}
		c.Wait()
		select {
		case <-returns:
			return false
		default:
			return true
		}
	})
	if code := p.code(); code != 0 || p.out.String() != "m" {
		t.Errorf("status %d, printed %q\n%s", code, &p.out, &p.err)
	}
}

func TestErrors(t *testing.T) {
	target, ch := start(t)
	refused(t, target, "ACCESS_REFUSED", "amqp-get", "--url="+strings.Replace(target.URL, "guest@", "wrong@", 1), "-q", "q")
	refused(t, target, "NOT_ALLOWED - vhost nowhere not found", "amqp-get", "--url="+target.URL+"/nowhere", "-q", "q")
	refused(t, target, "NOT_FOUND - no queue 'missing' in vhost '/'", "amqp-get", "-q", "missing")
	refused(t, target, "NOT_FOUND - no queue 'missing' in vhost '/'", "amqp-consume", "-q", "missing", "cat")
	refused(t, target, "NOT_FOUND - no exchange 'missing' in vhost '/'", "amqp-publish", "-e", "missing", "-b", "m")
	q, err := ch.QueueDeclare("", false, false, true, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	refused(t, target, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '"+q.Name+"'", "amqp-get", "-q", q.Name)
}

func TestQueueArguments(t *testing.T) {
	target, ch := start(t)
	dead := queue(t, ch, false, nil)
	short := dead + "-short"
	if _, err := ch.QueueDeclare(short, false, false, true, false, amqp.Table{
		"x-message-ttl": 20, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead,
	}); err != nil {
		t.Fatal(err)
	}
	want(t, target, "", "", "amqp-publish", "-r", short, "-b", "expired")
	brokertest.Eventually(t, limit, "the message is dead-lettered", func() bool { return ready(t, ch, dead) == 1 })
	want(t, target, "expired", "", "amqp-get", "-q", dead)

	full := dead + "-full"
	if _, err := ch.QueueDeclare(full, false, true, false, false, amqp.Table{"x-max-length": 2}); err != nil {
		t.Fatal(err)
	}
	want(t, target, "", "1\n2\n3\n", "amqp-publish", "-l", "-r", full)
	want(t, target, "2\n3\n", "", "amqp-consume", "-q", full, "-c", "2", "cat")
}

func TestRestart(t *testing.T) {
	target, ch := start(t)
	if !target.Controlled() {
		t.Skip("nothing here restarts the broker")
	}
	q := queue(t, ch, true, nil)
	want(t, target, "", "", "amqp-publish", "-p", "-r", q, "-b", "kept")
	brokertest.Eventually(t, limit, "the message is ready", func() bool { return ready(t, ch, q) == 1 })
	waiting := q + "-waiting"
	if _, err := ch.QueueDeclare(waiting, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	p := run(t, target, "", "amqp-consume", "-q", waiting, "cat")
	brokertest.Eventually(t, limit, "the consumer is there", func() bool {
		state, err := ch.QueueDeclarePassive(waiting, false, false, false, false, nil)
		return err == nil && state.Consumers == 1
	})
	if err := target.Restart(); err != nil {
		t.Fatal(err)
	}
	if code := p.code(); code == 0 { // it doesn't tell that the connection was closed with 320
		t.Errorf("a consumer ended with status 0 and said %q", &p.err)
	}
	want(t, target, "kept", "", "amqp-get", "-q", q)
	want(t, target, "0\n", "", "amqp-delete-queue", "-q", q)
	want(t, target, "0\n", "", "amqp-delete-queue", "-q", waiting)
}

func TestAlarm(t *testing.T) {
	target, ch := start(t)
	if !target.Controlled() {
		t.Skip("nothing here raises an alarm")
	}
	q := queue(t, ch, false, nil)
	if err := target.Alarm(true); err != nil {
		t.Fatal(err)
	}
	p := run(t, target, "", "amqp-publish", "-r", q, "-b", "m")
	ended := make(chan int, 1)
	go func() { ended <- p.code() }()
	select {
	case code := <-ended:
		t.Errorf("a publisher ended during the alarm with status %d\n%s", code, &p.err)
	case <-time.After(300 * time.Millisecond):
	}
	if err := target.Alarm(false); err != nil {
		t.Fatal(err)
	}
	if code := <-ended; code != 0 {
		t.Errorf("status %d\n%s", code, &p.err)
	}
	want(t, target, "m", "", "amqp-get", "-q", q)
}
