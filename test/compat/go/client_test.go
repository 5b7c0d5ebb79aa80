// Package compat holds the amqp091-go suite: what a Go application sees of an AMQP 0-9-1 broker.
// It runs against any broker: set AMQP_URL, or nothing for a FireMQ of its own.
package compat

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/firemq/firemq/test/internal/brokertest"
	amqp "github.com/rabbitmq/amqp091-go"
)

func TestMain(m *testing.M) { os.Exit(brokertest.Main(m.Run)) }

const limit = 20 * time.Second // for any single answer

func dial(t *testing.T) *amqp.Connection {
	t.Helper()
	conn, err := amqp.Dial(brokertest.AMQPURL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func channel(t *testing.T, conn *amqp.Connection) *amqp.Channel {
	t.Helper()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

func exclusiveQueue(t *testing.T, ch *amqp.Channel) string {
	t.Helper()
	q, err := ch.QueueDeclare("", false, false, true, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Name
}

func publish(t *testing.T, ch *amqp.Channel, key string, p amqp.Publishing) {
	t.Helper()
	if err := ch.PublishWithContext(t.Context(), "", key, false, false, p); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, ch *amqp.Channel, queue string) (amqp.Delivery, bool) {
	t.Helper()
	d, ok, err := ch.Get(queue, false)
	if err != nil {
		t.Fatal(err)
	}
	return d, ok
}

func receive[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v, ok := <-c:
		if !ok {
			t.Fatalf("no %s: the chan was closed", what)
		}
		return v
	case <-time.After(limit):
		t.Fatalf("no %s in %s", what, limit)
	}
	panic("BUG: unreachable")
}

func ready(t *testing.T, ch *amqp.Channel, queue string) int {
	t.Helper()
	q, err := ch.QueueDeclarePassive(queue, false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Messages
}

// wantError checks the code and the text that the broker closed a channel or connection with.
func wantError(t *testing.T, err error, code int, text string) {
	t.Helper()
	got, ok := errors.AsType[*amqp.Error](err)
	if !ok {
		t.Fatalf("error %v, want code %d %q", err, code, text)
	}
	if got.Code != code || got.Reason != text {
		t.Errorf("got %d %q, want %d %q", got.Code, got.Reason, code, text)
	}
}

func TestConnectRefused(t *testing.T) {
	u, err := url.Parse(brokertest.AMQPURL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("wrong password", func(t *testing.T) {
		wrong := *u
		wrong.User = url.UserPassword("guest", "wrong")
		_, err := amqp.Dial(wrong.String())
		if err == nil || !strings.Contains(err.Error(), "403") {
			t.Errorf("got %v, want an error with code 403", err)
		}
	})
	t.Run("unknown vhost", func(t *testing.T) {
		wrong := *u
		wrong.Path = "/nowhere"
		_, err := amqp.Dial(wrong.String())
		if err == nil {
			t.Error("connected to a vhost that does not exist")
		}
	})
}

func TestChannelErrors(t *testing.T) {
	conn := dial(t)
	for _, c := range []struct {
		name string
		call func(ch *amqp.Channel) error
		code int
		text string
	}{
		{"passive declare of a missing queue", func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclarePassive("missing", false, false, false, false, nil)
			return err
		}, 404, "NOT_FOUND - no queue 'missing' in vhost '/'"},
		{"passive declare of a missing exchange", func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive("missing", "direct", false, false, false, false, nil)
		}, 404, "NOT_FOUND - no exchange 'missing' in vhost '/'"},
		{"bind to the default exchange", func(ch *amqp.Channel) error {
			return ch.QueueBind(exclusiveQueue(t, ch), "k", "", false, nil)
		}, 403, "ACCESS_REFUSED - operation not permitted on the default exchange"},
		{"declare with another type", func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare("amq.fanout", "topic", true, false, false, false, nil)
		}, 406, "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.fanout' in vhost '/': received 'topic' but current is 'fanout'"},
		{"reserved name", func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare("amq.mine", false, false, false, false, nil)
			return err
		}, 403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"},
		{"transaction without select", func(ch *amqp.Channel) error { return ch.TxCommit() },
			406, "PRECONDITION_FAILED - channel is not transactional"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ch := channel(t, conn)
			closed := ch.NotifyClose(make(chan *amqp.Error, 1))
			wantError(t, c.call(ch), c.code, c.text)
			wantError(t, receive(t, closed, "notice of the close"), c.code, c.text)
			channel(t, conn).Close() // the connection goes on
		})
	}
}

// The client leaves immediate, flow and a used consumer tag to the broker; each ends the connection.
func TestConnectionErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		call func(t *testing.T, ch *amqp.Channel)
		code int
		text string
	}{
		{"immediate publish", func(t *testing.T, ch *amqp.Channel) {
			ch.PublishWithContext(t.Context(), "", "k", false, true, amqp.Publishing{})
		}, 540, "NOT_IMPLEMENTED - immediate=true"},
		{"flow off", func(t *testing.T, ch *amqp.Channel) { ch.Flow(false) },
			540, "NOT_IMPLEMENTED - active=false"},
		{"prefetch size", func(t *testing.T, ch *amqp.Channel) { ch.Qos(0, 10, false) },
			540, "NOT_IMPLEMENTED - prefetch_size!=0 (10)"},
		{"recover without requeue", func(t *testing.T, ch *amqp.Channel) {
			ch.Recover(false) //lint:ignore SA1019 the broker must refuse it
		}, 540, "NOT_IMPLEMENTED - requeue=false"},
		{"consumer tag used twice", func(t *testing.T, ch *amqp.Channel) {
			q := exclusiveQueue(t, ch)
			for range 2 {
				ch.Consume(q, "tag", true, false, false, false, nil)
			}
		}, 530, "NOT_ALLOWED - attempt to reuse consumer tag 'tag'"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := dial(t)
			closed := conn.NotifyClose(make(chan *amqp.Error, 1))
			c.call(t, channel(t, conn))
			wantError(t, receive(t, closed, "notice of the close"), c.code, c.text)
		})
	}
}

// Several publishers with hundreds of unconfirmed messages each: every one is acked, and the queue
// has them all, each publisher's in its order.
func TestConfirmsUnderLoad(t *testing.T) {
	const publishers, messages, window = 4, 3000, 256
	conn := dial(t)
	ch := channel(t, conn)
	queue := exclusiveQueue(t, ch)

	var wg sync.WaitGroup
	for p := range publishers {
		pub := channel(t, conn)
		if err := pub.Confirm(false); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			var open []*amqp.DeferredConfirmation
			wait := func() {
				if acked, err := open[0].WaitContext(ctx); err != nil || !acked {
					t.Errorf("publisher %d, tag %d: acked=%v err=%v", p, open[0].DeliveryTag, acked, err)
				}
				open = open[1:]
			}
			for n := range messages {
				c, err := pub.PublishWithDeferredConfirmWithContext(ctx, "", queue, false, false,
					amqp.Publishing{Body: fmt.Appendf(nil, "%d %d", p, n)})
				if err != nil {
					t.Errorf("publisher %d: %v", p, err)
					return
				}
				if open = append(open, c); len(open) == window {
					wait()
				}
			}
			for len(open) > 0 {
				wait()
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}

	if n := ready(t, ch, queue); n != publishers*messages {
		t.Fatalf("%d messages are ready, want %d", n, publishers*messages)
	}
	msgs, err := ch.ConsumeWithContext(t.Context(), queue, "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	var next [publishers]int
	for range publishers * messages {
		d := receive(t, msgs, "delivery")
		var p, n int
		if _, err := fmt.Sscanf(string(d.Body), "%d %d", &p, &n); err != nil {
			t.Fatal(err)
		}
		if n != next[p] {
			t.Fatalf("publisher %d: message %d arrived, want %d", p, n, next[p])
		}
		next[p]++
		if err := d.Ack(false); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPersistentConfirm(t *testing.T) {
	ch := channel(t, dial(t))
	name := "persistent-" + strconv.Itoa(os.Getpid())
	if _, err := ch.QueueDeclare(name, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		c, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", name, true, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("m")})
		if err != nil {
			t.Fatal(err)
		}
		if acked, err := c.WaitContext(t.Context()); err != nil || !acked {
			t.Fatalf("acked=%v err=%v", acked, err)
		}
	}
	if n, err := ch.QueueDelete(name, false, false, false); err != nil || n != 50 {
		t.Errorf("deleted %d messages, err %v, want 50", n, err)
	}
}

func TestMandatoryReturnComesBeforeItsConfirm(t *testing.T) {
	ch := channel(t, dial(t))
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	// Unbuffered, so that the client's reader hands the two over in the order of the wire.
	returns, confirms := ch.NotifyReturn(make(chan amqp.Return)), ch.NotifyPublish(make(chan amqp.Confirmation))
	if err := ch.PublishWithContext(t.Context(), "amq.direct", "nowhere", true, false, amqp.Publishing{MessageId: "m", Body: []byte("back")}); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-returns:
		if r.ReplyCode != 312 || r.ReplyText != "NO_ROUTE" || r.Exchange != "amq.direct" || r.RoutingKey != "nowhere" || r.MessageId != "m" || string(r.Body) != "back" {
			t.Errorf("returned %+v", r)
		}
	case c := <-confirms:
		t.Fatalf("the confirm %+v came before the return", c)
	case <-time.After(limit):
		t.Fatal("neither return nor confirm")
	}
	if c := receive(t, confirms, "confirm"); !c.Ack || c.DeliveryTag != 1 {
		t.Errorf("confirm %+v", c)
	}
}

func TestManyChannels(t *testing.T) {
	conn := dial(t)
	const n = 500
	channels := make([]*amqp.Channel, n)
	for i := range channels {
		channels[i] = channel(t, conn)
	}
	queue := exclusiveQueue(t, channels[0])
	var wg sync.WaitGroup
	for i, ch := range channels {
		wg.Go(func() {
			if err := ch.Confirm(false); err != nil {
				t.Errorf("channel %d: %v", i, err)
				return
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			for j := range 10 {
				c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, false, false, amqp.Publishing{Body: fmt.Append(nil, i*10+j)})
				if err != nil {
					t.Errorf("channel %d: %v", i, err)
					return
				}
				if acked, err := c.WaitContext(ctx); err != nil || !acked {
					t.Errorf("channel %d: acked=%v err=%v", i, acked, err)
				}
			}
		})
	}
	wg.Wait()
	if got := ready(t, channels[0], queue); got != n*10 {
		t.Errorf("%d messages are ready, want %d", got, n*10)
	}
	for _, ch := range channels {
		if err := ch.Close(); err != nil {
			t.Fatal(err)
		}
	}
	channel(t, conn) // numbers are free again
}

func TestRequeueKeepsOrder(t *testing.T) {
	ch := channel(t, dial(t))
	queue := exclusiveQueue(t, ch)
	for i := range 6 {
		publish(t, ch, queue, amqp.Publishing{Body: []byte{byte(i)}})
	}
	var taken []amqp.Delivery
	for range 4 {
		d, ok := get(t, ch, queue)
		if !ok {
			t.Fatal("the queue is empty")
		}
		taken = append(taken, d)
	}
	for _, i := range []int{2, 0, 3} {
		if err := taken[i].Nack(false, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := taken[1].Reject(false); err != nil {
		t.Fatal(err)
	}
	var order []byte
	var redelivered []bool
	for {
		d, ok := get(t, ch, queue)
		if !ok {
			break
		}
		order, redelivered = append(order, d.Body...), append(redelivered, d.Redelivered)
	}
	if want := []byte{0, 2, 3, 4, 5}; !bytes.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if want := []bool{true, true, true, false, false}; !slices.Equal(redelivered, want) {
		t.Errorf("redelivered %v, want %v", redelivered, want)
	}
}

func TestPrefetch(t *testing.T) {
	conn := dial(t)
	ch, other := channel(t, conn), channel(t, conn)
	queue := exclusiveQueue(t, ch)
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		c, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", queue, false, false, amqp.Publishing{Body: []byte{byte(i)}})
		if err != nil {
			t.Fatal(err)
		}
		if acked, err := c.WaitContext(t.Context()); !acked || err != nil {
			t.Fatalf("acked=%v err=%v", acked, err)
		}
	}
	if err := ch.Qos(3, 0, false); err != nil {
		t.Fatal(err)
	}
	msgs, err := ch.ConsumeWithContext(t.Context(), queue, "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	var last amqp.Delivery
	for range 3 {
		last = receive(t, msgs, "delivery")
	}
	if n := ready(t, other, queue); n != 7 {
		t.Errorf("%d ready while the consumer holds 3, want 7", n)
	}
	if err := last.Ack(true); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		last = receive(t, msgs, "delivery")
	}
	if last.DeliveryTag != 6 || last.Body[0] != 5 {
		t.Errorf("the sixth delivery has tag %d and body %v", last.DeliveryTag, last.Body)
	}
}

func TestCancelNotify(t *testing.T) {
	conn := dial(t)
	ch := channel(t, conn)
	queue := exclusiveQueue(t, ch)
	cancelled := ch.NotifyCancel(make(chan string, 1))
	if _, err := ch.ConsumeWithContext(t.Context(), queue, "c", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := channel(t, conn).QueueDelete(queue, false, false, false); err != nil {
		t.Fatal(err)
	}
	if tag := receive(t, cancelled, "cancel"); tag != "c" {
		t.Errorf("cancelled %q, want %q", tag, "c")
	}
}

func TestPropertiesAndHeadersRoundTrip(t *testing.T) {
	ch := channel(t, dial(t))
	queue := exclusiveQueue(t, ch)
	at := time.Unix(1_700_000_000, 0)
	sent := amqp.Publishing{
		Headers: amqp.Table{
			"bool": true, "int8": int8(-8), "uint8": byte(8), "int16": int16(-16), "uint16": uint16(16),
			"int32": int32(-32), "uint32": uint32(32), "int64": int64(-64),
			"float32": float32(0.5), "float64": 0.1, "string": "grüße", "bytes": []byte{0, 255}, "nil": nil,
			"decimal": amqp.Decimal{Scale: 2, Value: 1234}, "time": at,
			"list": []any{int32(1), "two", []any{true}}, "table": amqp.Table{"deep": amqp.Table{"n": int64(1)}},
		},
		ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: amqp.Persistent, Priority: 9,
		CorrelationId: "c-1", ReplyTo: "answers", Expiration: "60000", MessageId: "m-1", Timestamp: at,
		Type: "order.created", UserId: "guest", AppId: "suite", Body: []byte("{}"),
	}
	publish(t, ch, queue, sent)
	d, ok := get(t, ch, queue)
	if !ok {
		t.Fatal("the queue is empty")
	}
	got := amqp.Publishing{
		Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode,
		Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration, MessageId: d.MessageId,
		Timestamp: d.Timestamp, Type: d.Type, UserId: d.UserId, AppId: d.AppId, Body: d.Body,
	}
	for key, want := range sent.Headers {
		if !reflect.DeepEqual(got.Headers[key], want) {
			t.Errorf("header %s: got %T %v, want %T %v", key, got.Headers[key], got.Headers[key], want, want)
		}
	}
	if len(got.Headers) != len(sent.Headers) {
		t.Errorf("%d headers came back, want %d", len(got.Headers), len(sent.Headers))
	}
	got.Headers, sent.Headers = nil, nil
	if !reflect.DeepEqual(got, sent) {
		t.Errorf("got %+v\nwant %+v", got, sent)
	}
}

func TestBodies(t *testing.T) {
	ch := channel(t, dial(t))
	queue := exclusiveQueue(t, ch)
	for _, size := range []int{0, 1, 4095, 4096, 131064, 131065, 1 << 20, 8 << 20} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			body := make([]byte, size)
			for i := range body {
				body[i] = byte(i * 31)
			}
			publish(t, ch, queue, amqp.Publishing{Body: body})
			d, ok, err := ch.Get(queue, true)
			if err != nil || !ok {
				t.Fatalf("ok=%v err=%v", ok, err)
			}
			if !bytes.Equal(d.Body, body) {
				t.Errorf("a body of %d bytes came back as %d bytes with other content", size, len(d.Body))
			}
		})
	}
}

func TestTransaction(t *testing.T) {
	conn := dial(t)
	ch, other := channel(t, conn), channel(t, conn)
	queue := exclusiveQueue(t, ch)
	if err := ch.Tx(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		publish(t, ch, queue, amqp.Publishing{})
	}
	if n := ready(t, other, queue); n != 0 {
		t.Errorf("%d ready before the commit", n)
	}
	if err := ch.TxCommit(); err != nil {
		t.Fatal(err)
	}
	publish(t, ch, queue, amqp.Publishing{})
	if err := ch.TxRollback(); err != nil {
		t.Fatal(err)
	}
	if n := ready(t, other, queue); n != 3 {
		t.Errorf("%d ready after commit and rollback, want 3", n)
	}
}

func TestHeartbeatsKeepAnIdleConnection(t *testing.T) {
	conn, err := amqp.DialConfig(brokertest.AMQPURL(t), amqp.Config{Heartbeat: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if conn.Config.Heartbeat != time.Second {
		t.Errorf("negotiated a heartbeat of %s, want 1s", conn.Config.Heartbeat)
	}
	select {
	case err := <-conn.NotifyClose(make(chan *amqp.Error, 1)):
		t.Fatalf("closed while idle: %v", err)
	case <-time.After(4 * time.Second):
	}
	channel(t, conn)
}
