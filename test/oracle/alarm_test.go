package oracle

import (
	"strings"
	"testing"
)

// The cases are not among those of testdata, because an alarm is the whole broker's. RabbitMQ reads nothing of a
// connection that is blocked, not even the rest of its first publish, which FireMQ takes: what comes while one is blocked
// is compared as a whole, and without fences.
const alarmCases = `
== alarm: memory, a publisher is told once it publishes, and when all is well
a nofence
1 queue.declare queue="q"
await a "declare-ok"
1 confirm.select
await a "select-ok"
alarm memory
quiet 100ms
+1 publish routing-key="q" "1"
+await a "connection.blocked"
+1 publish routing-key="q" "2"
+quiet 100ms
+alarm off
await a "basic.ack delivery-tag=2"
b 1 basic.get queue="q" no-ack
b 1 basic.get queue="q" no-ack
alarm disk
+1 publish routing-key="q" "3"
+await a "connection.blocked"
+1 publish routing-key="q" "4"
+alarm off
await a "basic.ack delivery-tag=4"

== alarm: disk, one that has published before but not since is not told
1 queue.declare queue="q"
1 publish routing-key="q" "1"
alarm disk
1 basic.get queue="q" no-ack
2 basic.consume queue="q" consumer-tag="t"
quiet 100ms
alarm off
quiet 100ms
1 publish routing-key="q" "2"

== alarm: consumers get what is there, and ack
1 queue.declare queue="q"
1 publish routing-key="q" "1"
1 publish routing-key="q" "2"
alarm memory
b 1 basic.qos prefetch-count=1
b 1 basic.consume queue="q" consumer-tag="t"
b 1 basic.ack delivery-tag=1
b 1 basic.nack delivery-tag=2 requeue
b 1 queue.purge queue="q"
b 2 queue.declare queue="r"
alarm off

== alarm: a client without the capability waits unaware
a open caps={capabilities=F{consumer_cancel_notify=t1}}
a nofence
1 confirm.select
await a "select-ok"
b 1 queue.declare queue="q"
alarm memory
+1 publish routing-key="q" "1"
+quiet 200ms
+alarm off
await a "basic.ack"
b 1 basic.get queue="q"

== alarm: one that connects meanwhile
alarm memory disk
a nofence
1 confirm.select
await a "select-ok"
quiet 100ms
+1 publish routing-key="q" "1"
await a "connection.blocked"
alarm off
await a "basic.ack"

== alarm: a second one is not told, and only the end of both
a nofence
1 confirm.select
await a "select-ok"
alarm memory
+1 publish routing-key="q" "1"
+await a "connection.blocked"
+1 publish routing-key="q" "2"
+alarm memory disk
+quiet 100ms
+alarm disk
+quiet 100ms
+alarm off
await a "basic.ack delivery-tag=2"
`

// TestAlarms plays what clients hear of alarms. No other test plays meanwhile.
func TestAlarms(t *testing.T) {
	b := both(t)
	if b.rabbit.cmd == nil {
		t.Skip("needs a RabbitMQ of its own")
	}
	scripts, err := parseScripts(alarmCases)
	if err != nil {
		t.Fatal(err)
	}
	for _, sc := range scripts {
		t.Run(sc.name, func(t *testing.T) {
			r, err := run(sc, b.rabbit, b.fire, vhost(0), vhost(0), grace)
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
	}
}
