package firemq_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq"
	"github.com/firemq/firemq/internal/leak"
)

func TestTwoLinesMakeABrokerThatLeavesNothingBehind(t *testing.T) {
	defer leak.Check(t)()
	srv, err := firemq.Start(firemq.Ephemeral(), firemq.RandomPorts())
	if err != nil {
		t.Fatal(err)
	}
	health, err := http.Get(srv.HTTPURL() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	health.Body.Close()
	if health.StatusCode != http.StatusOK {
		t.Errorf("its health: %s", health.Status)
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
}

// What was confirmed is there when a broker is started again on its directory, without syncs, too; the log goes where it is
// to go.
func TestDataSurvivesItsBroker(t *testing.T) {
	defer leak.Check(t)()
	dir := t.TempDir()
	for round := range 2 {
		var log bytes.Buffer // which is written under the handler's lock, and read when the broker has ended
		srv, err := firemq.Start(firemq.Data(dir), firemq.NoSync(), firemq.RandomPorts(), firemq.Log(slog.New(slog.NewTextHandler(&log, nil))))
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
		q, err := ch.QueueDeclare("q", true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		if q.Messages != round {
			t.Errorf("round %d: %d messages", round, q.Messages)
		}
		if err := ch.Confirm(false); err != nil {
			t.Fatal(err)
		}
		c, err := ch.PublishWithDeferredConfirm("", "q", false, false, amqp.Publishing{DeliveryMode: amqp.Persistent})
		if err != nil || !c.Wait() {
			t.Fatal("not confirmed", err)
		}
		conn.Close()
		if err := srv.Close(); err != nil {
			t.Fatal(err)
		}
		if log.Len() == 0 {
			t.Error("nothing is logged")
		}
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
