package policy

import (
	"math"
	"reflect"
	"testing"

	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
)

const resource = "queue 'q' in vhost '/'"

func str(s string) table.Value      { return table.StringValue(s) }
func i32(n int32) table.Value       { return table.Int32Value(n) }
func i64(n int64) table.Value       { return table.IntValue(n) }
func boolean(b bool) table.Value    { return table.BoolValue(b) }
func ptr(s string) *string          { return &s }
func args(pairs ...any) table.Table { return table.Table(fields(pairs)) }

func fields(pairs []any) (t []table.Field) {
	for i := 0; i < len(pairs); i += 2 {
		t = append(t, table.Field{Name: pairs[i].(string), Value: pairs[i+1].(table.Value)})
	}
	return t
}

var durable = Properties{Durable: true}

func TestParse(t *testing.T) {
	config := func(change func(c *queue.Config)) queue.Config {
		c := queue.Plain
		change(&c)
		return c
	}
	quorum := config(func(c *queue.Config) { c.DeliveryLimit, c.OfferFirst = 20, true })
	for _, tc := range []struct {
		name string
		args table.Table
		want Settings
	}{
		{"nothing", nil, Settings{Type: Classic, Config: queue.Plain}},
		{"an explicit classic", args("x-queue-type", str("classic")), Settings{Type: Classic, Config: queue.Plain}},
		{"what is unknown or has no meaning is accepted", args("x-mine", str("?"), "x-queue-mode", str("lazy"),
			"x-queue-version", i32(2), "x-queue-master-locator", str("min-masters"), "x-queue-leader-locator", str("balanced")),
			Settings{Type: Classic, Config: queue.Plain}},
		{"every limit", args("x-expires", i32(5), "x-message-ttl", i64(0), "x-max-length", table.Value{Kind: table.Uint8, Num: 7},
			"x-max-length-bytes", table.Value{Kind: table.Long, Num: 8}, "x-max-priority", i32(10),
			"x-single-active-consumer", boolean(true), "x-overflow", str("reject-publish-dlx")),
			Settings{Type: Classic, ownOverflow: true, Config: queue.Config{Expires: 5, MessageTTL: 0, MaxLength: 7, MaxBytes: 8,
				MaxPriority: 10, Fleeting: true, SingleActive: true, Overflow: queue.RejectPublishDLX, DeliveryLimit: queue.None}}},
		{"the longest time to live", args("x-message-ttl", i64(MaxTTL)),
			Settings{Type: Classic, Config: config(func(c *queue.Config) { c.MessageTTL = MaxTTL })}},
		{"a highest priority of 0", args("x-max-priority", i32(0)),
			Settings{Type: Classic, Config: config(func(c *queue.Config) { c.MaxPriority = 0 })}},
		{"expiry anywhere", args("x-expire-anywhere", boolean(true)), Settings{Type: Classic, ownExpireAnywhere: true,
			Config: config(func(c *queue.Config) { c.ExpireAnywhere = true })}},
		{"no single active consumer", args("x-single-active-consumer", boolean(false)), Settings{Type: Classic, Config: queue.Plain}},
		{"dead letters to the default exchange", args("x-dead-letter-routing-key", str("k"), "x-dead-letter-exchange", str("")),
			Settings{Type: Classic, Config: queue.Plain, DeadLetterExchange: ptr(""), DeadLetterKey: ptr("k")}},
		{"the first of two counts", args("x-max-length", i32(1), "x-max-length", i32(2)),
			Settings{Type: Classic, Config: config(func(c *queue.Config) { c.MaxLength = 1 })}},
		{"a time for acknowledgements", args("x-consumer-timeout", i32(9)), Settings{Type: Classic, Config: queue.Plain, ConsumerTimeout: 9}},
		{"no limit of that time", args("x-consumer-timeout", i32(0)), Settings{Type: Classic, Config: queue.Plain}},
		{"the longest time for acknowledgements", args("x-consumer-timeout", i64(math.MaxInt64)),
			Settings{Type: Classic, Config: queue.Plain, ConsumerTimeout: MaxTTL}},
		{"a quorum queue", args("x-queue-type", str("quorum")), Settings{Type: Quorum, Config: quorum}},
		{"a quorum queue's own arguments", args("x-queue-type", str("quorum"), "x-delivery-limit", i32(3), "x-quorum-initial-group-size", i32(3),
			"x-max-in-memory-length", i32(0), "x-max-in-memory-bytes", i32(0), "x-dead-letter-strategy", str("at-least-once"),
			"x-message-ttl", i32(9), "x-expires", i32(9), "x-single-active-consumer", boolean(true), "x-queue-leader-locator", str("client-local")),
			Settings{Type: Quorum, ownDeliveryLimit: true, Config: config(func(c *queue.Config) {
				c.DeliveryLimit, c.MessageTTL, c.Expires, c.SingleActive, c.OfferFirst = 3, 9, 9, true, true
			})}},
		{"a classic queue's delivery limit", args("x-delivery-limit", i32(3)),
			Settings{Type: Classic, ownDeliveryLimit: true, Config: config(func(c *queue.Config) { c.DeliveryLimit = 3 })}},
		{"a quorum queue without a limit", args("x-queue-type", str("quorum"), "x-delivery-limit", i32(-7)),
			Settings{Type: Quorum, ownDeliveryLimit: true, Config: config(func(c *queue.Config) { c.OfferFirst = true })}},
		{"a quorum queue drops its head instead of reject-publish-dlx", args("x-queue-type", str("quorum"), "x-overflow", str("reject-publish-dlx")),
			Settings{Type: Quorum, ownOverflow: true, Config: quorum}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, own := tc.args.Get("x-consumer-timeout"); !own {
				tc.want.ConsumerTimeout = queue.None
			}
			got, bad := Parse(tc.args, durable, resource)
			if bad != nil || !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %+v, %v\nwant %+v", got, bad, tc.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	quorum := func(more ...any) table.Table { return append(args("x-queue-type", str("quorum")), args(more...)...) }
	for _, tc := range []struct {
		args  table.Table
		props Properties
		want  string // REASON of the first argument, or with a capital or blank the whole text
	}{
		{args("x-message-ttl", str("60000")), durable, `"expected integer, got longstr"`},
		{args("x-expires", table.FloatValue(1)), durable, `"expected integer, got double"`},
		{args("x-max-length", table.TimeValue(1)), durable, `"expected integer, got timestamp"`},
		{args("x-max-length-bytes", boolean(true)), durable, `"expected integer, got bool"`},
		{args("x-max-priority", table.VoidValue()), durable, `"expected integer, got void"`},
		{args("x-queue-version", str("2")), durable, `"expected integer, got longstr"`},
		{args("x-message-ttl", i32(-1)), durable, `{value_negative,-1}`},
		{args("x-max-length", table.Value{Kind: table.Int8, Num: math.MaxUint64}), durable, `{value_negative,-1}`},
		{args("x-consumer-timeout", i32(-1)), durable, `{value_negative,-1}`},
		{args("x-consumer-timeout", boolean(true)), durable, `"expected integer, got bool"`},
		{args("x-expires", i64(-5)), durable, `{value_negative,-5}`},
		{args("x-expires", i32(0)), durable, `{value_zero,0}`},
		{args("x-message-ttl", i64(MaxTTL+1)), durable, `{value_too_large,315360000001}`},
		{args("x-expires", i64(MaxTTL+1)), durable, `{value_too_large,315360000001}`},
		{args("x-max-priority", i32(256)), durable, `{max_value_exceeded,256}`},
		{args("x-single-active-consumer", str("true")), durable, `{unacceptable_type,longstr}`},
		{args("x-expire-anywhere", i32(1)), durable, `{unacceptable_type,signedint}`},
		{args("x-overflow", i32(1)), durable, `{unacceptable_type,signedint}`},
		{args("x-queue-type", i32(1)), durable, `{unacceptable_type,signedint}`},
		{args("x-queue-mode", i32(1)), durable, `{unacceptable_type,signedint}`},
		{args("x-dead-letter-routing-key", str("k")), durable, `routing_key_but_no_dlx_defined`},
		{args("x-dead-letter-routing-key", i64(1), "x-dead-letter-exchange", str("d")), durable, `{unacceptable_type,long}`},
		{args("x-overflow", str("reject")), durable, `invalid_overflow`},
		{args("x-queue-type", str("x")), durable, `"unsupported queue type 'x'"`},
		{args("x-queue-type", str("stream")), durable, `"unsupported queue type 'stream'"`},
		{args("x-queue-type", str(`a"b\`)), durable, `"unsupported queue type 'a\"b\\'"`},
		{args("x-queue-mode", str("x")), durable, `"unsupported queue mode 'x'"`},
		{args("x-queue-version", i32(3)), durable, `"unsupported queue version '3'"`},
		{args("x-queue-leader-locator", str("x")), durable, `invalid_queue_locator_arg`},
		{args("x-dead-letter-strategy", str("x")), durable, `invalid_dlx_strategy`},
		{args("x-quorum-initial-group-size", i32(0)), durable, `{value_zero,0}`},
		{args("x-delivery-limit", str("1")), durable, `"expected integer, got longstr"`},
		// In the order of the table, not of the client.
		{args("x-max-length", i32(-1), "x-expires", i32(0)), durable, ` invalid arg 'x-expires' for queue 'q' in vhost '/': {value_zero,0}`},
		// A bad value before a foreign argument, and the dead letter exchange's type before all.
		{args("x-max-age", str("1D"), "x-max-length", i32(-1)), durable, ` invalid arg 'x-max-length' for queue 'q' in vhost '/': {value_negative,-1}`},
		{args("x-expires", i32(0), "x-dead-letter-exchange", i32(1)), durable, ` invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'`},
		{args("x-quorum-initial-group-size", i32(1)), durable, ` invalid arg 'x-quorum-initial-group-size' for queue 'q' in vhost '/' of queue type rabbit_classic_queue`},
		{args("x-max-age", str("1D")), durable, ` invalid arg 'x-max-age' for queue 'q' in vhost '/' of queue type rabbit_classic_queue`},
		{quorum("x-max-priority", i32(1)), durable, ` invalid arg 'x-max-priority' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue`},
		{quorum("x-queue-mode", str("lazy")), durable, ` invalid arg 'x-queue-mode' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue`},
		{quorum(), Properties{}, ` invalid property 'non-durable' for queue 'q' in vhost '/'`},
		{quorum(), Properties{Durable: true, Exclusive: true}, ` invalid property 'exclusive-owner' for queue 'q' in vhost '/'`},
		{quorum(), Properties{Durable: true, AutoDelete: true}, ` invalid property 'auto-delete' for queue 'q' in vhost '/'`},
		{quorum(), Properties{Durable: true, ServerNamed: true}, ` Cannot declare a server-named queue for type rabbit_quorum_queue`},
	} {
		want := "invalid arg '" + tc.args[0].Name + "' for " + resource + ": " + tc.want
		if tc.want[0] == ' ' {
			want = tc.want[1:]
		}
		s, bad := Parse(tc.args, tc.props, resource)
		if bad == nil {
			t.Errorf("%v: accepted as %+v, want %s", tc.args, s, want)
		} else if bad.Text != want {
			t.Errorf("%v:\n got %s\nwant %s", tc.args, bad.Text, want)
		}
	}
}

func TestEquivalent(t *testing.T) {
	for _, tc := range []struct {
		name              string
		current, received table.Table
		want              string // after "inequivalent arg '", "" when equal
	}{
		{"nothing", nil, nil, ""},
		{"integers of any width", args("x-max-length", i32(5)), args("x-max-length", table.Value{Kind: table.Uint8, Num: 5}), ""},
		{"unknown arguments", args("x-a", i32(1)), args("x-b", i32(1)), ""},
		{"arguments of another type", nil, args("x-max-in-memory-length", i32(1), "x-max-age", str("1D")), ""},
		{"the order of arguments", args("x-expires", i32(1), "x-max-length", i32(2)), args("x-max-length", i32(2), "x-expires", i32(1)), ""},
		{"absent and classic", nil, args("x-queue-type", str("classic")), ""},
		{"classic and absent", args("x-queue-type", str("classic")), nil, ""},
		{"quorum and absent", args("x-queue-type", str("quorum")), nil, ""},
		{"absent before", nil, args("x-message-ttl", i32(60000)),
			"x-message-ttl' for queue 'q' in vhost '/': received the value '60000' of type 'signedint' but current is none"},
		{"absent now", args("x-message-ttl", i32(60000)), nil,
			"x-message-ttl' for queue 'q' in vhost '/': received none but current is the value '60000' of type 'signedint'"},
		{"another number", args("x-max-length", i32(1000)), args("x-max-length", i64(2000)),
			"x-max-length' for queue 'q' in vhost '/': received '2000' but current is '1000'"},
		{"another string", args("x-dead-letter-exchange", str("a")), args("x-dead-letter-exchange", str("")),
			"x-dead-letter-exchange' for queue 'q' in vhost '/': received '' but current is 'a'"},
		{"another kind", args("x-max-length", i32(1)), args("x-max-length", str("1")),
			"x-max-length' for queue 'q' in vhost '/': received '1' but current is '1'"},
		{"false is not absent", nil, args("x-single-active-consumer", boolean(false)),
			"x-single-active-consumer' for queue 'q' in vhost '/': received the value 'false' of type 'bool' but current is none"},
		{"the first in the table's order", nil, args("x-max-length", i32(1), "x-expires", i32(1)),
			"x-expires' for queue 'q' in vhost '/': received the value '1' of type 'signedint' but current is none"},
		{"quorum instead of classic", nil, args("x-queue-type", str("quorum")),
			"x-queue-type' for queue 'q' in vhost '/': received 'quorum' but current is 'classic'"},
		{"classic instead of quorum", args("x-queue-type", str("quorum")), args("x-queue-type", str("classic")),
			"x-queue-type' for queue 'q' in vhost '/': received 'classic' but current is 'quorum'"},
		{"a quorum queue's delivery limit", args("x-queue-type", str("quorum"), "x-delivery-limit", i32(1)), args("x-delivery-limit", i32(2)),
			"x-delivery-limit' for queue 'q' in vhost '/': received '2' but current is '1'"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := tc.want
			if want != "" {
				want = "inequivalent arg '" + want
			}
			got, ok := Equivalent(tc.current, tc.received, resource)
			if got != want || ok != (want == "") {
				t.Errorf("got  %s, %v\nwant %s", got, ok, want)
			}
		})
	}
	if got, ok := EquivalentArg("alternate-exchange", args("alternate-exchange", str("a")), nil, "exchange 'e' in vhost '/'"); ok ||
		got != "inequivalent arg 'alternate-exchange' for exchange 'e' in vhost '/': received none but current is the value 'a' of type 'longstr'" {
		t.Errorf("alternate-exchange: %s, %v", got, ok)
	}
}

func TestExchangeAndConsumerArguments(t *testing.T) {
	if s, bad := AlternateExchange(args("alternate-exchange", str("a")), "exchange 'e' in vhost '/'"); s != "a" || bad != nil {
		t.Errorf("got %q, %v", s, bad)
	}
	if s, bad := AlternateExchange(nil, ""); s != "" || bad != nil {
		t.Errorf("got %q, %v", s, bad)
	}
	_, bad := AlternateExchange(args("alternate-exchange", i32(1)), "exchange 'e' in vhost '/'")
	if want := "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'e' in vhost '/'"; bad == nil || bad.Text != want {
		t.Errorf("got %v, want %s", bad, want)
	}
	for _, tc := range []struct {
		args table.Table
		want Consumer
		bad  string
	}{
		{nil, Consumer{0, queue.None}, ""},
		{args("x-priority", i32(-5), "x-cancel-on-ha-failover", boolean(true)), Consumer{-5, queue.None}, ""},
		{args("x-priority", i64(math.MaxInt64)), Consumer{math.MaxInt64, queue.None}, ""},
		{args("x-priority", i64(math.MinInt64)), Consumer{math.MinInt64, queue.None}, ""},
		{args("x-consumer-timeout", i32(5000)), Consumer{0, 5000}, ""},
		{args("x-consumer-timeout", i32(0), "x-priority", i32(1)), Consumer{1, 0}, ""},
		{args("x-consumer-timeout", i64(math.MaxInt64)), Consumer{0, MaxTTL}, ""},
		{args("x-consumer-timeout", i32(-1)), Consumer{}, `invalid arg 'x-consumer-timeout' for queue 'q' in vhost '/': {value_negative,-1}`},
		{args("x-consumer-timeout", str("1")), Consumer{}, `invalid arg 'x-consumer-timeout' for queue 'q' in vhost '/': "expected integer, got longstr"`},
		{args("x-priority", str("1")), Consumer{}, `invalid arg 'x-priority' for queue 'q' in vhost '/': "expected integer, got longstr"`},
		{args("x-cancel-on-ha-failover", i32(1)), Consumer{}, `invalid arg 'x-cancel-on-ha-failover' for queue 'q' in vhost '/': {unacceptable_type,signedint}`},
	} {
		got, bad := ParseConsumer(tc.args, resource)
		text := ""
		if bad != nil {
			text = bad.Text
		}
		if got != tc.want || text != tc.bad {
			t.Errorf("%v: got %v, %s, want %v, %s", tc.args, got, text, tc.want, tc.bad)
		}
	}
}
