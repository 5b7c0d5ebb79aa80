package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/frames/fmq1"
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

// Acknowledgements behind a publish that an alarm holds are in time, over both protocols, those that are held as well
// as those that are still in the socket: the connection's deliveries have their time again when the alarm is over.
func TestHeldAcknowledgementsAreInTime(t *testing.T) {
	o := Options{AMQP: free, Fire: free}
	s, stop := run(t, o)
	defer stop()
	c, err := amqp.Dial("amqp://" + s.AMQPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	control, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	const each = 3
	queues := map[string]int{"AMQP, little": 10, "AMQP, much": 64 << 10, "FMQ1, little": 10, "FMQ1, much": 64 << 10} // bytes of a publish
	for q := range queues {
		if _, err := control.QueueDeclare(q, false, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		for range each {
			if err := control.Publish("", q, false, false, amqp.Publishing{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := control.QueueDeclare("control", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := control.Publish("", "control", false, false, amqp.Publishing{}); err != nil {
			t.Fatal(err)
		}
	}
	send := make(map[string]func(first bool)) // a publish; the second time also an acknowledgement of all
	counts := func(q string) broker.QueueCounts { x, _ := s.Broker().Queue("/", q); return x.Counts() }
	for q, size := range queues {
		if strings.HasPrefix(q, "AMQP") {
			c, err := amqp.Dial("amqp://" + s.AMQPAddr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.CloseDeadline(time.Now())
			ch, err := c.Channel()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := ch.Consume(q, "", false, false, false, false, nil); err != nil {
				t.Fatal(err)
			}
			send[q] = func(first bool) {
				err := ch.Publish("", "control", false, false, amqp.Publishing{Body: make([]byte, size)})
				if err == nil && !first {
					err = ch.Ack(each, true)
				}
				if err != nil {
					t.Error(err)
				}
			}
		} else {
			c, err := net.Dial("tcp", s.FireAddr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			go io.Copy(io.Discard, c)
			hello := fmq1.Hello{Ver: 1, Auth: fmq1.Auth{Mech: "plain", User: "guest", Pass: "guest"}}
			b := fmq1.Append([]byte(fmq1.Preface), fmq1.OpHello, &hello)
			if _, err := c.Write(fmq1.Append(b, fmq1.OpSubscribe, &fmq1.Subscribe{RID: 1, Sub: 1, Queue: q, Credit: each})); err != nil {
				t.Fatal(err)
			}
			send[q] = func(first bool) {
				m := fmq1.Publish{Key: []byte("control")}
				b := append(fmq1.End(m.AppendTo(fmq1.Begin(nil, fmq1.OpPublish)), 0, size), make([]byte, size)...)
				if !first {
					start, ack := len(b), fmq1.Settle{Tag: each, Multiple: true}
					b = fmq1.End(ack.AppendTo(fmq1.Begin(b, fmq1.OpAck)), start, 0)
				}
				if _, err := c.Write(b); err != nil {
					t.Error(err)
				}
			}
		}
		eventually(t, "all is delivered", func() bool { return counts(q).Unacked == each })
	}
	o.MemoryLimit = MemoryLimit{Bytes: nothing}
	s.Reload(o)
	s.alarms.look()
	if !s.Broker().Alarmed() {
		t.Fatal("no alarm")
	}
	for _, f := range send { // all connections know of the alarm
		f(true) // it meets the alarm, and is taken
	}
	blocked := func(more func(broker.ConnView) bool) (n int) {
		for _, c := range s.Broker().Connections() {
			if c.State == broker.StateBlocked && more(c) {
				n++
			}
		}
		return n
	}
	eventually(t, "the first ones are taken", func() bool { return counts("control").Ready == 2+len(queues) })
	read := make(map[string]uint64)
	eventually(t, "all of them are to wait", func() bool {
		return len(queues) == blocked(func(c broker.ConnView) bool {
			read[c.Name] = c.Octets().Received
			return true
		})
	})
	for _, f := range send {
		f(false)
	}
	eventually(t, "all of them wait", func() bool {
		return len(queues) == blocked(func(c broker.ConnView) bool { return c.Octets().Received > read[c.Name] })
	})
	o.ConsumerTimeout = 300 * time.Millisecond
	s.Reload(o)
	for range 2 { // the second one is late when all channels have been looked at
		ch, err := c.Channel()
		if err != nil {
			t.Fatal(err)
		}
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		if _, ok, err := ch.Get("control", false); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if e := <-closed; e == nil || e.Code != 406 {
			t.Fatalf("closed with %v, want 406", e)
		}
	}
	for q := range queues {
		if n := counts(q); n.Unacked != each {
			t.Errorf("%s: %+v during the alarm", q, n)
		}
	}
	o.MemoryLimit = MemoryLimit{}
	s.Reload(o)
	for q := range queues {
		eventually(t, q+": all is acknowledged", func() bool { n := counts(q); return n.Unacked == 0 && n.Ready == 0 })
	}
	if n := s.Broker().Counters().AckTimeouts.Load(); n != 2 {
		t.Errorf("%d are late, want those of the control", n)
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
