//go:build linux

package pressure

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	fire "github.com/firemq/firemq/sdk/go"
	"github.com/firemq/firemq/test/internal/brokertest"
)

// SIGTERM while publishers and a consumer work: each client hears 320, the end is quick and clean, and
// after a restart everything confirmed is there that was not consumed. If soak asks for it, again and again.
func TestStopUnderLoad(t *testing.T) {
	for range rounds(1) {
		t.Run("", stopUnderLoad)
	}
}

func stopUnderLoad(t *testing.T) {
	dir := t.TempDir()
	b := brokertest.Start(t, brokertest.Options{Data: dir})
	const connections = 4
	var (
		confirmed [connections]atomic.Uint64
		codes     = make(chan int, connections+1)
		done      sync.WaitGroup
	)
	declare := dialAMQP(t, b.AMQPURL)
	if _, err := declare.QueueDeclare("load", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	for i := range connections {
		conn, err := amqp091.Dial(b.AMQPURL)
		if err != nil {
			t.Fatal(err)
		}
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if err := ch.Confirm(false); err != nil {
			t.Fatal(err)
		}
		closed := conn.NotifyClose(make(chan *amqp091.Error, 1))
		confirms := ch.NotifyPublish(make(chan amqp091.Confirmation, window))
		free, ended := make(chan struct{}, window), make(chan struct{})
		done.Go(func() {
			defer close(ended)
			for c := range confirms {
				if c.Ack {
					confirmed[i].Store(c.DeliveryTag)
				}
				<-free
			}
			if e := <-closed; e != nil {
				codes <- e.Code
			} else {
				codes <- 0
			}
		})
		done.Go(func() {
			for seq := int64(0); ; seq++ {
				select {
				case free <- struct{}{}:
				case <-ended:
					return
				}
				if ch.Publish("", "load", false, false, amqp091.Publishing{DeliveryMode: amqp091.Persistent, Body: body(i, seq)}) != nil {
					return
				}
			}
		})
	}
	c, err := brokertest.DialFire(t.Context(), b.FireURL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	brokertest.Eventually(t, within, "2000 confirms of each publisher", func() bool {
		for i := range confirmed {
			if confirmed[i].Load() < 2000 {
				return false
			}
		}
		return true
	})

	begin := time.Now()
	b.Stop(t)
	took := time.Since(begin)
	if took > 5*time.Second { // clients may take eight, and all of these answer
		t.Errorf("the stop took %s", took)
	}
	done.Wait()
	for range connections {
		if code := <-codes; code != amqp091.ConnectionForced {
			t.Errorf("close code %d, want 320", code)
		}
	}
	<-c.Done()
	if e, ok := errors.AsType[*fire.ServerError](c.Err()); !ok || e.Code != 320 {
		t.Errorf("over the FireMQ protocol: %v, want 320", c.Err())
	}

	begin = time.Now()
	b = brokertest.Start(t, brokertest.Options{Data: dir})
	restart := time.Since(begin)
	if restart > 10*time.Second {
		t.Errorf("ready again after %s", restart)
	}
	ch := dialAMQP(t, b.AMQPURL)
	q, err := ch.QueueDeclarePassive("load", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	deliveries, err := ch.Consume("load", "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	var next [connections]uint64
	for range q.Messages {
		d := <-deliveries
		from, seq := d.Body[0], binary.BigEndian.Uint64(d.Body[1:])
		if seq != next[from] {
			t.Fatalf("publisher %d: message %d after %d", from, seq, next[from])
		}
		next[from]++
	}
	more := uint64(0)
	for i := range confirmed {
		if n := confirmed[i].Load(); next[i] < n {
			t.Errorf("publisher %d: %d messages are there, %d were confirmed", i, next[i], n)
		} else {
			more += next[i] - n
		}
	}
	t.Logf("stopped in %s, ready again after %s with %d messages, %d of them not confirmed", took, restart, q.Messages, more)
}

// dialAMQP gives a channel of a connection of its own.
func dialAMQP(t *testing.T, url string) *amqp091.Channel {
	t.Helper()
	conn, err := amqp091.Dial(url)
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
