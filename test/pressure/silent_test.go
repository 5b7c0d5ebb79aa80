//go:build linux

package pressure

import (
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/test/internal/brokertest"
)

// pulse is the heartbeat interval of the clients here.
const pulse = 2 * time.Second

// Clients whose publishes wait for the end of an alarm are there as long as they send heartbeats. When they hang their
// connections end, and what they had not acknowledged goes to somebody else, during the alarm. One that has
// filled its socket is not read, and left alone. If soak asks for it, again and again.
func TestSilentClientsBehindAnAlarm(t *testing.T) {
	for range rounds(1) {
		t.Run("", silentClients)
	}
}

func silentClients(t *testing.T) {
	settings := t.TempDir() + "/firemq.toml"
	limit := func(text string) {
		t.Helper()
		if err := os.WriteFile(settings, []byte("[limits]\ndisk_free = '"+text+"'\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	limit("0")
	b := brokertest.Start(t, brokertest.Options{Data: t.TempDir(), Flags: []string{"--config", settings}})
	const workers, each = 2, 10 // messages that each has not acknowledged
	ch := dialAMQP(t, b.AMQPURL)
	if _, err := ch.QueueDeclare("work", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	ready := func() int {
		q, err := ch.QueueDeclarePassive("work", true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		return q.Messages
	}
	for range workers * each {
		if err := ch.Publish("", "work", false, false, amqp091.Publishing{}); err != nil {
			t.Fatal(err)
		}
	}
	c := startCrowd(t, b)
	c.do(t, "work AMQP %d", each)
	c.do(t, "work FMQ1 %d", each)
	brokertest.Eventually(t, within, "all is delivered", func() bool { return ready() == 0 })
	flooder, err := connectFMQ1(brokertest.Address(t, b.FireURL), pulse)
	if err != nil {
		t.Fatal(err)
	}
	defer flooder.Close()

	limit("1000TB")
	syscall.Kill(b.Pid(), syscall.SIGHUP)
	brokertest.Eventually(t, within, "the alarm", func() bool { return lastOf(b.Output(), "disk alarm: publishers are paused", "disk alarm is over") })
	lost := make(chan error, 1)
	go func() { _, err := io.Copy(io.Discard, flooder); lost <- err }()
	go func() {
		m := fmq1.Publish{Key: []byte("nowhere")}
		frame := append(fmq1.End(m.AppendTo(fmq1.Begin(nil, fmq1.OpPublish)), 0, largeBody), make([]byte, largeBody)...)
		for err := error(nil); err == nil; {
			_, err = flooder.Write(frame)
		}
	}()
	c.do(t, "publish") // it meets the alarm, and is taken
	brokertest.Eventually(t, within, "all of them are to wait", func() bool { return states(t, b)["blocked"] == workers+1 })
	c.do(t, "publish")
	begin := time.Now()
	brokertest.Eventually(t, within, "some intervals", func() bool { return time.Since(begin) > 7*pulse/2 })
	if n := states(t, b)["blocked"]; n != workers+1 || ready() != 0 {
		t.Fatalf("%d clients are left, want %d; %d messages came back\n%s", n, workers+1, ready(), b.Output())
	}
	c.pause(true)
	brokertest.Eventually(t, within, "those that hang are gone, and what they held is back", func() bool {
		return states(t, b)["blocked"] == 1 && ready() == workers*each
	})
	select {
	case err := <-lost:
		t.Fatalf("the client of which nothing is read: %v", err)
	default:
	}
}

// work logs in a client with heartbeats that takes n messages of the queue "work" and does not acknowledge them.
func (m *many) work(kind string, n int) error {
	var publish func() error
	switch kind {
	case "AMQP":
		c, err := amqp091.DialConfig("amqp://guest:guest@"+m.amqp, amqp091.Config{Heartbeat: pulse})
		if err != nil {
			return err
		}
		ch, err := c.Channel()
		if err != nil {
			return err
		}
		if err := ch.Qos(n, 0, false); err != nil {
			return err
		}
		if _, err := ch.Consume("work", "", false, false, false, false, nil); err != nil {
			return err
		}
		publish = func() error { return ch.Publish("", "nowhere", false, false, amqp091.Publishing{}) }
	case "FMQ1":
		c, err := connectFMQ1(m.fire, pulse)
		if err != nil {
			return err
		}
		go io.Copy(io.Discard, c)
		go func() {
			for err := error(nil); err == nil; <-time.After(pulse / 2) {
				_, err = c.Write(fmq1.AppendEmpty(nil, fmq1.OpPing))
			}
		}()
		if _, err := c.Write(fmq1.Append(nil, fmq1.OpSubscribe, &fmq1.Subscribe{RID: 1, Sub: 1, Queue: "work", Credit: uint64(n)})); err != nil {
			return err
		}
		publish = func() error {
			m := fmq1.Publish{Key: []byte("nowhere")}
			_, err := c.Write(fmq1.End(m.AppendTo(fmq1.Begin(nil, fmq1.OpPublish)), 0, 0))
			return err
		}
	default:
		return fmt.Errorf("no such kind")
	}
	m.publish = append(m.publish, publish)
	return nil
}
