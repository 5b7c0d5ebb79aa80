package main

import "strings"

// code is one reply code.
type code struct {
	code uint16
	name string
	hard bool
}

var codes = []code{
	{200, "reply-success", false},
	{311, "content-too-large", false},
	{312, "no-route", false},
	{313, "no-consumers", false},
	{320, "connection-forced", true},
	{402, "invalid-path", true},
	{403, "access-refused", false},
	{404, "not-found", false},
	{405, "resource-locked", false},
	{406, "precondition-failed", false},
	{501, "frame-error", true},
	{502, "syntax-error", true},
	{503, "command-invalid", true},
	{504, "channel-error", true},
	{505, "unexpected-frame", true},
	{506, "resource-error", true},
	{530, "not-allowed", true},
	{540, "not-implemented", true},
	{541, "internal-error", true},
}

// flags say who sends a method and what it expects.
type flags uint8

const (
	client  flags = 1 << iota // sent by the client
	server                    // sent by the server
	sync                      // the other side answers with one of the method's replies
	content                   // a content header and body follow
)

type method struct {
	name   string
	id     uint16
	flags  flags
	fields string // "name domain, ..."; a domain alone is a reserved field
}

type class struct {
	name    string
	id      uint16
	methods []method
}

func (c code) goName() string { return "Code" + goName(c.name) }

func (m method) goName(c class) string { return goName(c.name) + goName(m.name) }

func (m method) flagWords() string {
	var words []string
	for i, w := range []string{"fromClient", "fromServer", "synchronous", "hasContent"} {
		if m.flags&(1<<i) != 0 {
			words = append(words, w)
		}
	}
	return strings.Join(words, "|")
}

func (m method) senders() string {
	switch m.flags & (client | server) {
	case client:
		return "the client"
	case server:
		return "the server"
	}
	return "both"
}

// classes is AMQP 0-9-1 chapter 1.3 with RabbitMQ's extensions: connection.blocked, unblocked and
// update-secret, access.request (0-8, still sent by old clients), exchange.bind and unbind,
// basic.nack, confirm, and acks and cancels sent by the server.
var classes = []class{
	{"connection", 10, []method{
		{"start", 10, server | sync, "version-major octet, version-minor octet, server-properties table, mechanisms longstr, locales longstr"},
		{"start-ok", 11, client, "client-properties table, mechanism shortstr, response longstr, locale shortstr"},
		{"secure", 20, server | sync, "challenge longstr"},
		{"secure-ok", 21, client, "response longstr"},
		{"tune", 30, server | sync, "channel-max short, frame-max long, heartbeat short"},
		{"tune-ok", 31, client, "channel-max short, frame-max long, heartbeat short"},
		{"open", 40, client | sync, "virtual-host shortstr, shortstr, bit"},
		{"open-ok", 41, server, "shortstr"},
		{"close", 50, client | server | sync, "reply-code short, reply-text shortstr, class-id short, method-id short"},
		{"close-ok", 51, client | server, ""},
		{"blocked", 60, server, "reason shortstr"},
		{"unblocked", 61, server, ""},
		{"update-secret", 70, client | sync, "new-secret longstr, reason shortstr"},
		{"update-secret-ok", 71, server, ""},
	}},
	{"channel", 20, []method{
		{"open", 10, client | sync, "shortstr"},
		{"open-ok", 11, server, "longstr"},
		{"flow", 20, client | server | sync, "active bit"},
		{"flow-ok", 21, client | server, "active bit"},
		{"close", 40, client | server | sync, "reply-code short, reply-text shortstr, class-id short, method-id short"},
		{"close-ok", 41, client | server, ""},
	}},
	{"access", 30, []method{
		{"request", 10, client | sync, "realm shortstr, exclusive bit, passive bit, active bit, write bit, read bit"},
		{"request-ok", 11, server, "ticket short"},
	}},
	{"exchange", 40, []method{
		{"declare", 10, client | sync, "short, exchange shortstr, type shortstr, passive bit, durable bit, auto-delete bit, internal bit, no-wait bit, arguments table"},
		{"declare-ok", 11, server, ""},
		{"delete", 20, client | sync, "short, exchange shortstr, if-unused bit, no-wait bit"},
		{"delete-ok", 21, server, ""},
		{"bind", 30, client | sync, "short, destination shortstr, source shortstr, routing-key shortstr, no-wait bit, arguments table"},
		{"bind-ok", 31, server, ""},
		{"unbind", 40, client | sync, "short, destination shortstr, source shortstr, routing-key shortstr, no-wait bit, arguments table"},
		{"unbind-ok", 51, server, ""},
	}},
	{"queue", 50, []method{
		{"declare", 10, client | sync, "short, queue shortstr, passive bit, durable bit, exclusive bit, auto-delete bit, no-wait bit, arguments table"},
		{"declare-ok", 11, server, "queue shortstr, message-count long, consumer-count long"},
		{"bind", 20, client | sync, "short, queue shortstr, exchange shortstr, routing-key shortstr, no-wait bit, arguments table"},
		{"bind-ok", 21, server, ""},
		{"purge", 30, client | sync, "short, queue shortstr, no-wait bit"},
		{"purge-ok", 31, server, "message-count long"},
		{"delete", 40, client | sync, "short, queue shortstr, if-unused bit, if-empty bit, no-wait bit"},
		{"delete-ok", 41, server, "message-count long"},
		{"unbind", 50, client | sync, "short, queue shortstr, exchange shortstr, routing-key shortstr, arguments table"},
		{"unbind-ok", 51, server, ""},
	}},
	{"basic", 60, []method{
		{"qos", 10, client | sync, "prefetch-size long, prefetch-count short, global bit"},
		{"qos-ok", 11, server, ""},
		{"consume", 20, client | sync, "short, queue shortstr, consumer-tag shortstr, no-local bit, no-ack bit, exclusive bit, no-wait bit, arguments table"},
		{"consume-ok", 21, server, "consumer-tag shortstr"},
		{"cancel", 30, client | server | sync, "consumer-tag shortstr, no-wait bit"},
		{"cancel-ok", 31, client | server, "consumer-tag shortstr"},
		{"publish", 40, client | content, "short, exchange shortbytes, routing-key shortbytes, mandatory bit, immediate bit"},
		{"return", 50, server | content, "reply-code short, reply-text shortstr, exchange shortbytes, routing-key shortbytes"},
		{"deliver", 60, server | content, "consumer-tag shortstr, delivery-tag longlong, redelivered bit, exchange shortbytes, routing-key shortbytes"},
		{"get", 70, client | sync, "short, queue shortstr, no-ack bit"},
		{"get-ok", 71, server | content, "delivery-tag longlong, redelivered bit, exchange shortbytes, routing-key shortbytes, message-count long"},
		{"get-empty", 72, server, "shortstr"},
		{"ack", 80, client | server, "delivery-tag longlong, multiple bit"},
		{"reject", 90, client, "delivery-tag longlong, requeue bit"},
		{"recover-async", 100, client, "requeue bit"},
		{"recover", 110, client | sync, "requeue bit"},
		{"recover-ok", 111, server, ""},
		{"nack", 120, client | server, "delivery-tag longlong, multiple bit, requeue bit"},
	}},
	{"confirm", 85, []method{
		{"select", 10, client | sync, "no-wait bit"},
		{"select-ok", 11, server, ""},
	}},
	{"tx", 90, []method{
		{"select", 10, client | sync, ""},
		{"select-ok", 11, server, ""},
		{"commit", 20, client | sync, ""},
		{"commit-ok", 21, server, ""},
		{"rollback", 30, client | sync, ""},
		{"rollback-ok", 31, server, ""},
	}},
}
