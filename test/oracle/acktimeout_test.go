package oracle

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// ackTimeout is the setting of both brokers of TestConsumerTimeout. RabbitMQ looks each tick, also at a channel whose
// close the client has not answered yet, and FireMQ each second.
const (
	ackTimeout     = 2 * time.Second
	ackTimeoutTick = 1500 * time.Millisecond
)

// The cases are not among those of testdata, because RabbitMQ 3.10 has one timeout for the whole broker.
var ackTimeoutCases = `
== consumer timeout: a consumer, beside a channel that holds nothing
1 queue.declare queue="q"
1 publish routing-key="q" "1"
1 publish routing-key="q" "2"
1 publish routing-key="q" "3"
2 basic.consume queue="q" consumer-tag="t"
2 basic.ack delivery-tag=2
await a "channel.close"
1 basic.get queue="q" no-ack
1 basic.get queue="q" no-ack
1 basic.get queue="q" no-ack
3 basic.consume queue="q" consumer-tag="t"

== consumer timeout: a client without consumer_cancel_notify
a open caps={}
1 queue.declare queue="q"
1 publish routing-key="q" "1"
2 basic.consume queue="q" consumer-tag="t"
await a "channel.close"
1 basic.get queue="q" no-ack

== consumer timeout: a get
1 queue.declare queue="q"
1 publish routing-key="q" "1"
2 basic.get queue="q"
await a "channel.close"
1 basic.get queue="q" no-ack

== consumer timeout: everybody whose time is over
1 queue.declare queue="q"
1 publish routing-key="q" "1"
1 publish routing-key="q" "2"
2 basic.get queue="q"
b 7 basic.get queue="q"
await a "channel.close"
await b "channel.close"

== consumer timeout: a quorum queue
1 queue.declare queue="q" durable arguments={x-queue-type=S"quorum"}
1 publish routing-key="q" "1"
2 basic.consume queue="q" consumer-tag="t"
await a "channel.close"

== consumer timeout: a dead consumer
1 queue.declare queue="q"
1 publish routing-key="q" "1"
2 basic.consume queue="q" consumer-tag="t"
2 basic.cancel consumer-tag="t"
await a "channel.close"
1 basic.get queue="q" no-ack

== consumer timeout: of a queue that is deleted
1 queue.declare queue="q"
1 publish routing-key="q" "1"
2 basic.get queue="q"
1 queue.delete queue="q"
await a "channel.close"

== consumer timeout: no acknowledgement is due
1 queue.declare queue="q"
1 publish routing-key="q" "1"
1 publish routing-key="q" "2"
2 basic.consume queue="q" consumer-tag="t" no-ack
3 basic.get queue="q" no-ack
quiet 4s

== consumer timeout: acknowledged in time
1 queue.declare queue="q"
1 publish routing-key="q" "1"
1 publish routing-key="q" "2"
1 publish routing-key="q" "3"
2 basic.consume queue="q" consumer-tag="t"
2 basic.ack delivery-tag=1
2 basic.nack delivery-tag=2
2 basic.reject delivery-tag=3
quiet 4s
1 publish routing-key="q" "4"
2 basic.ack delivery-tag=4

== consumer timeout: settled in a transaction
1 queue.declare queue="q"
1 publish routing-key="q" "1"
1 publish routing-key="q" "2"
2 tx.select
2 basic.consume queue="q" consumer-tag="t"
2 basic.ack delivery-tag=1
2 basic.ack delivery-tag=2
quiet 4s
2 tx.commit
1 queue.declare queue="q" passive

== consumer timeout: a transaction that is rolled back
1 queue.declare queue="q"
1 publish routing-key="q" "1"
1 publish routing-key="q" "2"
2 tx.select
2 basic.consume queue="q" consumer-tag="t"
2 basic.ack delivery-tag=2 multiple
quiet 4s
+2 tx.rollback
await a "channel.close"
1 basic.get queue="q" no-ack
1 basic.get queue="q" no-ack

== consumer timeout: publishes of a transaction are dropped
1 queue.declare queue="q"
1 publish routing-key="q" "1"
2 tx.select
2 publish routing-key="q" "2"
2 basic.get queue="q"
await a "channel.close"
1 basic.get queue="q" no-ack
1 basic.get queue="q" no-ack

== consumer timeout: what was requeued has time again
1 queue.declare queue="q"
1 publish routing-key="q" "1"
2 basic.consume queue="q" consumer-tag="t"
2 basic.recover requeue
await a "channel.close"
`

// TestConsumerTimeout plays what happens to deliveries that nobody acknowledges in time, on brokers of its own.
func TestConsumerTimeout(t *testing.T) {
	if b := both(t); b.rabbit.cmd == nil {
		t.Skip("the RabbitMQ that was given has another timeout")
	}
	scripts, err := parseScripts(ackTimeoutCases)
	if err != nil || len(scripts) > 2*workers {
		t.Fatal(len(scripts), err)
	}
	rabbit, _, err := startRabbit(fmt.Sprintf("{consumer_timeout, %d}, {channel_tick_interval, %d}", ackTimeout.Milliseconds(), ackTimeoutTick.Milliseconds()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := rabbit.stop(); err != nil {
			t.Error(err)
		}
	}()
	fire, err := startFire(ackTimeout)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := fire.stop(); err != nil {
			t.Error(err)
		}
	}()
	// Each waits for a clock, in a vhost of its own.
	var wg sync.WaitGroup
	for i, sc := range scripts {
		wg.Go(func() {
			t.Run(sc.name, func(t *testing.T) {
				r, err := run(sc, rabbit, fire, vhost(i), vhost(i), grace)
				if err != nil {
					t.Fatal(err)
				}
				if diff := r.diff(); len(diff) > 0 {
					t.Errorf("the brokers differ (-RabbitMQ +FireMQ):\n%s\nof\n%s", strings.Join(diff, "\n"), strings.Join(r.rabbit, "\n"))
				}
				if *verboseFlag {
					t.Log("\n" + strings.Join(r.rabbit, "\n"))
				}
			})
		})
	}
	wg.Wait()
}
