//go:build linux

package pressure

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/test/internal/brokertest"
)

// The disk alarm pauses publishers and tells them why; consumers go on; it ends by itself when there is room,
// here because the limit falls.
func TestDiskAlarm(t *testing.T) {
	settings := filepath.Join(t.TempDir(), "firemq.toml")
	limit := func(text string) {
		t.Helper()
		if err := os.WriteFile(settings, []byte("[limits]\ndisk_free = '"+text+"'\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	limit("0")
	b := brokertest.Start(t, brokertest.Options{Data: t.TempDir(), Flags: []string{"--config", settings}})
	conn, err := amqp091.Dial(b.AMQPURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	blocked := conn.NotifyBlocked(make(chan amqp091.Blocking, 10))
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("q", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	deliveries, err := dialAMQP(t, b.AMQPURL).Consume("q", "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	publish := func() *amqp091.DeferredConfirmation {
		t.Helper()
		c, err := ch.PublishWithDeferredConfirm("", "q", false, false, amqp091.Publishing{DeliveryMode: amqp091.Persistent, Body: []byte("x")})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	confirmed := func(c *amqp091.DeferredConfirmation, limit time.Duration) bool {
		select {
		case <-c.Done():
			return c.Acked()
		case <-time.After(limit):
			return false
		}
	}
	if !confirmed(publish(), within) {
		t.Fatal("no confirm without an alarm")
	}
	<-deliveries
	for range rounds(3) {
		limit("1000TB")
		syscall.Kill(b.Pid(), syscall.SIGHUP)
		brokertest.Eventually(t, within, "the alarm", func() bool { return lastOf(b.Output(), "disk alarm: publishers are paused", "disk alarm is over") })
		// The publish that meets the alarm is the last that is taken, if it is.
		publish()
		if e := <-blocked; !e.Active || e.Reason != "low on disk" {
			t.Fatalf("blocked: %+v", e)
		}
		waiting := publish()
		if confirmed(waiting, 300*time.Millisecond) {
			t.Fatal("a publish is confirmed during the alarm")
		}
		limit("0")
		syscall.Kill(b.Pid(), syscall.SIGHUP)
		if e := <-blocked; e.Active {
			t.Fatalf("unblocked: %+v", e)
		}
		if !confirmed(waiting, within) {
			t.Fatal("no confirm after the alarm")
		}
		<-deliveries
		<-deliveries
	}
}
