package compat

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/test/internal/brokertest"
	amqp "github.com/rabbitmq/amqp091-go"
)

// queueWith declares an exclusive queue with arguments.
func queueWith(t *testing.T, ch *amqp.Channel, arguments amqp.Table) string {
	t.Helper()
	q, err := ch.QueueDeclare("", false, false, true, false, arguments)
	if err != nil {
		t.Fatal(err)
	}
	return q.Name
}

func consume(t *testing.T, ch *amqp.Channel, queue string, autoAck bool, arguments amqp.Table) <-chan amqp.Delivery {
	t.Helper()
	c, err := ch.ConsumeWithContext(t.Context(), queue, "", autoAck, false, false, false, arguments)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func none(t *testing.T, deliveries <-chan amqp.Delivery) {
	t.Helper()
	select {
	case d := <-deliveries:
		t.Errorf("got %q", d.Body)
	default:
	}
}

func TestExclusiveQueueIsLocked(t *testing.T) {
	queue := exclusiveQueue(t, channel(t, dial(t)))
	_, _, err := channel(t, dial(t)).Get(queue, true)
	wantError(t, err, 405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '"+queue+"' in vhost '/'. It could be originally"+
		" declared on another connection or the exclusive property value does not match that of the original declaration.")
}

func TestExpiredMessagesAreDeadLettered(t *testing.T) {
	ch := channel(t, dial(t))
	dead := exclusiveQueue(t, ch)
	arguments := amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
	for _, c := range []struct {
		name       string
		ttl        any
		expiration string
	}{{"of its queue", 20, ""}, {"of its own", nil, "20"}} {
		t.Run(c.name, func(t *testing.T) {
			delete(arguments, "x-message-ttl")
			if c.ttl != nil {
				arguments["x-message-ttl"] = c.ttl
			}
			queue := queueWith(t, ch, arguments)
			publish(t, ch, queue, amqp.Publishing{Body: []byte("m"), Expiration: c.expiration})
			brokertest.Eventually(t, limit, "the dead letter", func() bool { return ready(t, ch, dead) == 1 })
			d, _ := get(t, ch, dead)
			deaths, _ := d.Headers["x-death"].([]any)
			if len(deaths) != 1 {
				t.Fatalf("headers %v", d.Headers)
			}
			death, _ := deaths[0].(amqp.Table)
			if death["reason"] != "expired" || death["queue"] != queue || death["count"] != int64(1) || d.Headers["x-first-death-queue"] != queue {
				t.Errorf("headers %v", d.Headers)
			}
			if original, _ := death["original-expiration"].(string); original != c.expiration || d.Expiration != "" {
				t.Errorf("expiration %q, x-death says %q", d.Expiration, original)
			}
		})
	}
}

func TestFullQueue(t *testing.T) {
	ch := channel(t, dial(t))
	queue := queueWith(t, ch, amqp.Table{"x-max-length": 2})
	for i := range 4 {
		publish(t, ch, queue, amqp.Publishing{Body: []byte(strconv.Itoa(i))})
	}
	for _, want := range []string{"2", "3"} {
		if d, _ := get(t, ch, queue); string(d.Body) != want {
			t.Errorf("got %q, want %q", d.Body, want)
		}
	}
	rejecting := queueWith(t, ch, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false} {
		c, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", rejecting, false, false, amqp.Publishing{})
		if err != nil {
			t.Fatal(err)
		}
		if acked, err := c.WaitContext(t.Context()); err != nil || acked != want {
			t.Errorf("message %d: acked=%v err=%v", i, acked, err)
		}
	}
}

func TestPriorities(t *testing.T) {
	ch := channel(t, dial(t))
	queue := queueWith(t, ch, amqp.Table{"x-max-priority": 10})
	for i, p := range []uint8{1, 9, 5, 9} {
		publish(t, ch, queue, amqp.Publishing{Priority: p, Body: []byte(strconv.Itoa(i))})
	}
	for _, want := range []string{"1", "3", "2", "0"} {
		if d, _ := get(t, ch, queue); string(d.Body) != want {
			t.Errorf("got %q, want %q", d.Body, want)
		}
	}
}

func TestSingleActiveConsumer(t *testing.T) {
	conn := dial(t)
	ch, first := channel(t, conn), channel(t, conn)
	queue := queueWith(t, ch, amqp.Table{"x-single-active-consumer": true})
	active, standby := consume(t, first, queue, false, nil), consume(t, ch, queue, false, nil)
	for i := range 2 {
		publish(t, ch, queue, amqp.Publishing{Body: []byte(strconv.Itoa(i))})
	}
	if err := receive(t, active, "delivery").Ack(false); err != nil {
		t.Fatal(err)
	}
	receive(t, active, "delivery")
	none(t, standby)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if d := receive(t, standby, "delivery"); string(d.Body) != "1" || !d.Redelivered {
		t.Errorf("got %q, redelivered %v", d.Body, d.Redelivered)
	}
}

func TestConsumerPriorities(t *testing.T) {
	ch := channel(t, dial(t))
	queue := exclusiveQueue(t, ch)
	low, high := consume(t, ch, queue, true, amqp.Table{"x-priority": -1}), consume(t, ch, queue, true, amqp.Table{"x-priority": 5})
	for i := range 5 {
		publish(t, ch, queue, amqp.Publishing{Body: []byte(strconv.Itoa(i))})
	}
	for i := range 5 {
		if d := receive(t, high, "delivery"); string(d.Body) != strconv.Itoa(i) {
			t.Errorf("got %q, want %d", d.Body, i)
		}
	}
	none(t, low)
}

func TestDirectReplyTo(t *testing.T) {
	client := channel(t, dial(t))
	queue := exclusiveQueue(t, client)
	answers := consume(t, client, "amq.rabbitmq.reply-to", true, nil)
	publish(t, client, queue, amqp.Publishing{ReplyTo: "amq.rabbitmq.reply-to", CorrelationId: "c", Body: []byte("7")})
	request, _ := get(t, client, queue)
	if !strings.HasPrefix(request.ReplyTo, "amq.rabbitmq.reply-to.") {
		t.Fatalf("reply to %q", request.ReplyTo)
	}
	publish(t, channel(t, dial(t)), request.ReplyTo, amqp.Publishing{CorrelationId: request.CorrelationId, Body: []byte("49")})
	if d := receive(t, answers, "answer"); string(d.Body) != "49" || d.CorrelationId != "c" {
		t.Errorf("got %+v", d)
	}
}

// controlled gives a broker of the test's own that it can restart and alarm.
func controlled(t *testing.T) (*brokertest.Target, *amqp.Connection) {
	t.Helper()
	target := brokertest.NewTarget(t)
	if !target.Controlled() {
		t.Skip("nothing here restarts the broker or raises its alarm")
	}
	conn, err := amqp.Dial(target.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return target, conn
}

func TestBlocked(t *testing.T) {
	target, conn := controlled(t)
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 2))
	ch := channel(t, conn)
	queue := exclusiveQueue(t, ch)
	publish(t, ch, queue, amqp.Publishing{})
	if err := target.Alarm(true); err != nil {
		t.Fatal(err)
	}
	publish(t, ch, queue, amqp.Publishing{})
	if b := receive(t, blocked, "notice of the alarm"); !b.Active || !strings.HasPrefix(b.Reason, "low on ") {
		t.Errorf("got %+v", b)
	}
	if err := target.Alarm(false); err != nil {
		t.Fatal(err)
	}
	if b := receive(t, blocked, "notice of its end"); b.Active {
		t.Errorf("got %+v", b)
	}
	if n := ready(t, ch, queue); n != 2 {
		t.Errorf("%d messages are ready, want 2", n)
	}
}

func TestRestart(t *testing.T) {
	target, conn := controlled(t)
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	ch := channel(t, conn)
	queue := fmt.Sprintf("restart-%d", time.Now().UnixNano())
	if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		c, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", queue, false, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(strconv.Itoa(i))})
		if err != nil {
			t.Fatal(err)
		}
		if acked, err := c.WaitContext(t.Context()); err != nil || !acked {
			t.Fatalf("acked=%v err=%v", acked, err)
		}
	}
	if err := target.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, closed, "notice of the close"); err.Code != 320 || !strings.HasPrefix(err.Reason, "CONNECTION_FORCED") {
		t.Errorf("closed with %v", err)
	}
	conn, err := amqp.Dial(target.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch = channel(t, conn)
	for i := range 10 {
		if d, ok := get(t, ch, queue); !ok || string(d.Body) != strconv.Itoa(i) {
			t.Errorf("got %q (%v), want %d", d.Body, ok, i)
		}
	}
	if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
		t.Error(err)
	}
}
