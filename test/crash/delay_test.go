package crash

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/firemq/firemq/test/internal/brokertest"
	amqp "github.com/rabbitmq/amqp091-go"
)

// TestKillDelayed publishes persistent messages with delays, or due times, and confirms, kills the broker with kill -9
// while some are due and others are not, and starts it again: every confirmed message comes, none before
// it is due.
func TestKillDelayed(t *testing.T) {
	const n, longest = 3000, 2 * time.Second
	rng := random(t)
	data := t.TempDir()
	b := brokertest.Start(t, brokertest.Options{Data: data})
	_, ch := dial(t, b.AMQPURL)
	if _, err := ch.QueueDeclare("later", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.ExchangeDeclare("delays", "x-delayed-message", true, false, false, false, amqp.Table{"x-delayed-type": "topic"}); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind("later", "task.#", "delays", false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	due := make(map[int]time.Time, n) // no earlier than that
	var confirms []*amqp.DeferredConfirmation
	for i := range n {
		delay := time.Duration(1+rng.Int64N(longest.Milliseconds())) * time.Millisecond
		due[i] = time.Now().Truncate(time.Millisecond).Add(delay)
		headers := amqp.Table{"x-delay": delay.Milliseconds()}
		if i%2 == 0 {
			headers = amqp.Table{"x-delay-until": due[i].UnixMilli()}
		}
		c, err := ch.PublishWithDeferredConfirm("delays", "task."+strconv.Itoa(i), false, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent, Headers: headers, Body: []byte(strconv.Itoa(i)),
		})
		if err != nil {
			t.Fatal(err)
		}
		confirms = append(confirms, c)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, c := range confirms {
		if ok, err := c.WaitContext(ctx); err != nil || !ok {
			t.Fatalf("confirm: %v, %v", ok, err)
		}
	}
	<-time.After(time.Duration(rng.Int64N(int64(longest))))
	b.Kill()

	b = brokertest.Start(t, brokertest.Options{Data: data})
	msgs := consume(t, b.AMQPURL, "later")
	for range n {
		select {
		case d, open := <-msgs:
			i, err := strconv.Atoi(string(d.Body))
			at, missing := due[i]
			switch {
			case !open || err != nil || !missing:
				t.Fatalf("unexpected delivery %q", d.Body)
			case time.Now().Before(at):
				t.Fatalf("message %d came %s before it was due", i, time.Until(at))
			}
			ms, _ := d.Headers["x-delay"].(int32)
			if until, _ := d.Headers["x-delay-until"].(int64); i%2 == 0 && until != at.UnixMilli() || i%2 != 0 && ms >= 0 {
				t.Fatalf("message %d has the headers %v", i, d.Headers)
			}
			delete(due, i)
		case <-ctx.Done():
			t.Fatalf("%d messages did not come\n%s", len(due), b.Output())
		}
	}
}
