//go:build linux

package pressure

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/test/internal/brokertest"
)

// declaredLimit is the memory limit beside those who declare.
const declaredLimit = brokertest.RaceFactor * 64 << 20

// Clients that declare, bind, consume and open without end, with arguments as large as they may be, are refused
// before the broker has much more than its limit. Others get on with what exists: they declare it again, consume,
// and when what was declared is deleted all is as before.
func TestDeclarationsStayUnderTheLimit(t *testing.T) {
	note := amqp091.Table{"x-note": strings.Repeat("n", 16_000)}
	list := make([]any, 1000)
	for i := range list {
		list[i] = true
	}
	for name, flood := range map[string]struct {
		declare func(ch *amqp091.Channel, name string) error
		stays   bool // when its connection ends
	}{
		"queues": {func(ch *amqp091.Channel, name string) error {
			_, err := ch.QueueDeclare("flood."+name, true, false, false, false, note)
			return err
		}, true},
		"queues with many values": {func(ch *amqp091.Channel, name string) error {
			_, err := ch.QueueDeclare("flood."+name, true, false, false, false, amqp091.Table{"x-list": list})
			return err
		}, true},
		"exchanges": {func(ch *amqp091.Channel, name string) error {
			return ch.ExchangeDeclare("flood."+name, "topic", false, false, false, false, note)
		}, true},
		"bindings": {func(ch *amqp091.Channel, name string) error {
			return ch.QueueBind("flood", name, "amq.topic", false, note)
		}, true},
		"consumers": {func(ch *amqp091.Channel, _ string) error {
			_, err := ch.Consume("flood", "", true, false, false, false, note)
			return err
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := brokertest.Start(t, brokertest.Options{Data: t.TempDir(), Flags: []string{"--memory-limit", fmt.Sprint(declaredLimit)}})
			peak := watchRSS(t, b.Pid())
			dial := func() (*amqp091.Connection, *amqp091.Channel) {
				c, err := amqp091.Dial(b.AMQPURL)
				if err != nil {
					t.Fatal(err)
				}
				ch, err := c.Channel()
				if err != nil {
					t.Fatal(err)
				}
				return c, ch
			}
			owner, ch := dial()
			defer owner.Close()
			for _, q := range []string{"flood", "work"} {
				if _, err := ch.QueueDeclare(q, true, false, false, false, nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := ch.Publish("", "work", false, false, amqp091.Publishing{Body: []byte("x")}); err != nil {
				t.Fatal(err)
			}

			const floods = 8
			var made, refused atomic.Int64
			var stop atomic.Bool
			var all sync.WaitGroup
			for i := range floods {
				all.Go(func() {
					for n := 0; !stop.Load(); {
						c, err := amqp091.Dial(b.AMQPURL)
						if err != nil {
							t.Error(err)
							return
						}
						ch, err := c.Channel()
						for ; err == nil && !stop.Load(); n++ {
							if err = flood.declare(ch, fmt.Sprint(i, ".", n)); err == nil {
								made.Add(1)
							}
						}
						if !stop.Load() {
							e, ok := errors.AsType[*amqp091.Error](err)
							if !ok || e.Code != amqp091.ResourceError || !strings.Contains(e.Reason, "low on memory") {
								t.Errorf("refused with %v, want 506 and that it is low on memory", err)
								return
							}
							refused.Add(1)
							if !flood.stays { // its consumers go on holding memory
								for !stop.Load() && !c.IsClosed() {
									<-time.After(time.Millisecond)
								}
							}
						}
						c.Close()
					}
				})
			}
			keep(t, "the floods are refused, again and again", func() bool { return refused.Load() > 10*floods })

			// While they go on.
			other, ch2 := dial()
			defer other.Close()
			if _, err := ch2.QueueDeclare("work", true, false, false, false, nil); err != nil {
				t.Fatalf("declaring what exists: %v", err)
			}
			got, err := ch2.Consume("work", "", true, false, false, false, nil)
			if err != nil {
				t.Fatalf("a consumer: %v", err)
			}
			select {
			case <-got:
			case <-time.After(within):
				t.Fatal("nothing is delivered")
			}
			stop.Store(true)
			all.Wait()
			t.Logf("%d were made, %d refused", made.Load(), refused.Load())
			stayedWithin(t, declaredLimit+declaredLimit/10, peak)

			for kind, remove := range map[string]func(name string) error{
				"queues":    func(name string) error { _, err := ch.QueueDelete(name, false, false, true); return err },
				"exchanges": func(name string) error { return ch.ExchangeDelete(name, false, true) },
			} {
				var list []struct{ Name string }
				api(t, b, "/"+kind+"?columns=name", &list)
				for _, o := range list {
					if strings.HasPrefix(o.Name, "flood.") {
						if err := remove(o.Name); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			if _, err := ch.QueueDelete("flood", false, false, false); err != nil {
				t.Fatal(err)
			}
			brokertest.Eventually(t, within, "what was declared is gone, and there is room again", func() bool {
				if rss(b.Pid()) >= declaredLimit*9/10 || strings.Contains(b.Output(), raised) && !lastOf(b.Output(), over, raised) {
					return false
				}
				c, ch := dial() // a refusal ends the connection
				defer c.Close()
				_, err := ch.QueueDeclare("", false, true, true, false, note)
				e, refused := errors.AsType[*amqp091.Error](err)
				if err != nil && (!refused || e.Code != amqp091.ResourceError) {
					t.Fatalf("declaring a queue: %v", err)
				}
				return err == nil
			})
		})
	}
}
