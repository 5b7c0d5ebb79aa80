package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	fire "github.com/firemq/firemq/sdk/go"
)

const timedOut = "PRECONDITION_FAILED - delivery acknowledgement on channel %d timed out. Timeout value used: %d ms. " +
	"This timeout value can be configured, see consumers doc guide to learn more"

// A delivery that is not acknowledged in time closes its channel, over AMQP, and no other; what the channel held
// is delivered again. A reload changes the setting.
func TestConsumerTimeoutOverAMQP(t *testing.T) {
	o := Options{AMQP: free}
	s, stop := run(t, o)
	defer stop()
	c, err := amqp.Dial("amqp://" + s.AMQPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	open := func() (*amqp.Channel, chan *amqp.Error) {
		t.Helper()
		ch, err := c.Channel()
		if err != nil {
			t.Fatal(err)
		}
		return ch, ch.NotifyClose(make(chan *amqp.Error, 1))
	}
	ended := func(closed chan *amqp.Error, want string) {
		t.Helper()
		select {
		case e := <-closed:
			if e == nil || e.Code != 406 || e.Reason != want {
				t.Fatalf("closed with %v, want %s", e, want)
			}
		case <-time.After(patience):
			t.Fatal("the channel is still open")
		}
	}
	first, firstClosed := open() // channel 1
	for q, args := range map[string]amqp.Table{"plain": nil, "short": {"x-consumer-timeout": 300}} {
		if _, err := first.QueueDeclare(q, true, false, false, false, args); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if err := first.Publish("", q, false, false, amqp.Publishing{Body: fmt.Append(nil, i)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Channel 1 holds a message that has half an hour.
	if _, ok, err := first.Get("plain", false); !ok || err != nil {
		t.Fatal(ok, err)
	}
	consumer, closed := open()
	if _, err := consumer.Consume("short", "", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	ended(closed, fmt.Sprintf(timedOut, 2, 300))
	getter, closed := open()
	d, ok, err := getter.Get("short", false)
	if !ok || err != nil || !d.Redelivered || string(d.Body) != "0" || d.MessageCount != 2 {
		t.Fatalf("after the timeout: %+v, %t, %v", d, ok, err)
	}
	ended(closed, fmt.Sprintf(timedOut, 3, 300))

	o.ConsumerTimeout = 200 * time.Millisecond
	s.Reload(o)
	owner, closed := open()
	if _, err := owner.Consume("plain", "", false, false, false, false, amqp.Table{"x-consumer-timeout": 0}); err != nil {
		t.Fatal(err)
	}
	// Channel 1's message is late now, that of a consumer without a timeout is not.
	ended(firstClosed, fmt.Sprintf(timedOut, 1, 200))
	select {
	case e := <-closed:
		t.Fatalf("a channel without a timeout: %v", e)
	default:
	}
	if n := s.Broker().Counters().AckTimeouts.Load(); n != 3 {
		t.Errorf("%d are counted", n)
	}
}

// Over the FireMQ protocol the subscription ends, with the same error, and the connection goes on; a get is taken
// back with an error that belongs to no request.
func TestConsumerTimeoutOverFMQ1(t *testing.T) {
	s, stop := run(t, Options{Fire: free})
	defer stop()
	cfg, err := fire.ParseURL("fire://" + s.FireAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	faults := make(chan *fire.ServerError, 10)
	cfg.OnError = func(e *fire.ServerError) { faults <- e }
	c, err := cfg.Dial(within(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.DeclareQueue(within(t), "q", fire.QueueOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := c.Publish(within(t), fire.Message{Key: "q", Body: fmt.Append(nil, i)}); err != nil {
			t.Fatal(err)
		}
	}
	sub, err := c.Subscribe(within(t), "q", fire.SubscribeOptions{Args: map[string]any{"x-consumer-timeout": 300}})
	if err != nil {
		t.Fatal(err)
	}
	var held *fire.Delivery
	for range 3 {
		if held, err = sub.Next(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	_, err = sub.Next(within(t))
	var cancelled *fire.CancelledError
	if !errors.As(err, &cancelled) || cancelled.Code != 406 || cancelled.Msg != fmt.Sprintf(timedOut, 1, 300) {
		t.Fatalf("the subscription: %v", err)
	}
	// An acknowledgement that comes too late is an unknown tag.
	if err := held.Ack(); err != nil {
		t.Fatal(err)
	}
	if e := next(t, faults); e.Code != 406 || e.Fatal || !strings.Contains(e.Msg, "unknown delivery tag") {
		t.Fatalf("a late ack: %v", e)
	}
	if _, err := c.Subscribe(within(t), "q", fire.SubscribeOptions{Args: map[string]any{"x-consumer-timeout": -1}}); err == nil {
		t.Error("a negative timeout is taken")
	}
	if _, err := c.DeclareQueue(within(t), "short", fire.QueueOptions{Args: map[string]any{"x-consumer-timeout": 200}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Publish(within(t), fire.Message{Key: "short"}); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := c.Get(within(t), "short", fire.GetOptions{}); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	for range 2 {
		if e := next(t, faults); e.Code != 406 || e.Fatal || e.Msg != fmt.Sprintf(timedOut, 1, 200) {
			t.Fatalf("a late get: %v", e)
		}
	}
	for _, q := range []string{"q", "short"} {
		x, _ := s.Broker().Queue("/", q)
		if n := x.Counts(); n.Unacked != 0 || n.Ready == 0 {
			t.Errorf("%s: %d ready, %d unacked", q, n.Ready, n.Unacked)
		}
	}
}

func next(t *testing.T, faults chan *fire.ServerError) *fire.ServerError {
	t.Helper()
	select {
	case e := <-faults:
		return e
	case <-time.After(patience):
		t.Fatal("no error came")
		return nil
	}
}
