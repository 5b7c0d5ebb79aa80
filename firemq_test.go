package firemq_test

import (
	"context"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/firemq/firemq"
	"github.com/firemq/firemq/pool"
)

func TestTwoLinesMakeABrokerThatLeavesNothingBehind(t *testing.T) {
	lent := pool.Live()
	before := goleak.IgnoreCurrent()
	srv, err := firemq.Start(firemq.Ephemeral(), firemq.RandomPorts())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := amqp.Dial(srv.AMQPURL())
	if err != nil {
		t.Fatal(err)
	}
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	q, err := ch.QueueDeclare("", false, false, true, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.PublishWithContext(context.Background(), "", q.Name, false, false, amqp.Publishing{Body: []byte("hello")}); err != nil {
		t.Fatal(err)
	}
	m, ok, err := ch.Get(q.Name, true)
	if err != nil || !ok || string(m.Body) != "hello" {
		t.Fatalf("got %q, %t, %v", m.Body, ok, err)
	}
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	for range 2 { // again is harmless
		if err := srv.Close(); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case e := <-closed:
		if e == nil || e.Code != amqp.ConnectionForced {
			t.Errorf("the client was told %v, want 320", e)
		}
	case <-time.After(10 * time.Second):
		t.Error("the client was not told")
	}
	conn.Close()
	goleak.VerifyNone(t, before)
	if n := pool.Live(); n != lent {
		t.Errorf("%d buffers are still lent", n-lent)
	}
}

func TestStartErrorsNameCauseAndCure(t *testing.T) {
	srv, err := firemq.Start(firemq.Data(t.TempDir()), firemq.RandomPorts())
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	other := t.TempDir()
	first, err := firemq.Start(firemq.Data(other), firemq.RandomPorts())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := firemq.Start(firemq.Data(other), firemq.RandomPorts()); err == nil || !strings.Contains(err.Error(), "in use by another broker") {
		t.Errorf("second broker on one directory: %v", err)
	}
}
