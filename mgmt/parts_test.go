package mgmt_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// TestPartsOfAView: what is left out of a view because a field does not need it changes nothing of that field. Each is
// asked for alone, and sorted by.
func TestPartsOfAView(t *testing.T) {
	c := start(t)
	conn, err := amqp.DialConfig("amqp://guest:guest@"+c.s.AMQPAddr().String(), amqp.Config{Properties: amqp.Table{"connection_name": "parts"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	c.want(201, "PUT", "/policies/%2F/p", object{"pattern": "^busy$", "definition": object{"max-length": 10}})
	for _, name := range []string{"busy", "idle"} {
		if _, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-max-priority": 3}); err != nil {
			t.Fatal(err)
		}
	}
	if err := ch.Qos(1, 0, false); err != nil {
		t.Fatal(err)
	}
	deliveries, err := ch.Consume("busy", "taker", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := ch.Publish("", "busy", false, false, amqp.Publishing{Body: []byte("x"), DeliveryMode: 2, Timestamp: time.Unix(1_700_000_000, 0)}); err != nil {
			t.Fatal(err)
		}
	}
	<-deliveries
	waitFor(t, func() bool {
		q := get[object](c, "/queues/%2F/busy")
		return q["messages"] == 3.0 && q["messages_unacknowledged"] == 1.0 && len(get[[]object](c, "/channels")) == 1
	})

	for _, path := range []string{"/queues", "/connections", "/channels"} {
		fields := 0
		for name, want := range get[[]object](c, path+"?sort=name")[0] {
			fields++
			if strings.HasSuffix(name, "_details") && name != "connection_details" || name == "oldest_message_age" {
				// It changes with the time: that it is there must do.
				want = nil
			}
			for _, query := range []string{"?sort=name&columns=" + name, "?page=1&sort=name&columns=" + name} {
				var got any
				if strings.Contains(query, "page=") {
					got = get[struct{ Items []object }](c, path+query).Items[0][name]
				} else {
					got = get[[]object](c, path+query)[0][name]
				}
				if want != nil && !reflect.DeepEqual(got, want) || name == "oldest_message_age" && got == nil {
					t.Errorf("%s%s: %v, want %v", path, query, got, want)
				}
			}
		}
		if fields < 20 {
			t.Errorf("%s: %d fields", path, fields)
		}
	}
	// Of the two queues one has more of everything.
	for _, field := range strings.Fields(`messages messages_ready messages_unacknowledged message_bytes consumers memory
		head_message_timestamp oldest_message_age policy message_stats.publish message_stats.deliver_get
		messages_ram`) {
		for reverse, want := range map[bool]string{false: "idle", true: "busy"} {
			if got := get[[]object](c, fmt.Sprintf("/queues?sort=%s&sort_reverse=%t&columns=name", field, reverse))[0]["name"]; got != want {
				t.Errorf("by %s, reverse %t: %v comes first", field, reverse, got)
			}
		}
	}
}
