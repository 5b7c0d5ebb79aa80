package fmq1

import (
	"bytes"

	"github.com/tinylib/msgp/msgp"
)

type sample struct {
	name  string
	frame []byte
	code  uint16
}

// enc encodes a map of pairs, in order.
func enc(pairs ...any) []byte {
	b := msgp.AppendMapHeader(nil, uint32(len(pairs)/2))
	for i := 0; i < len(pairs); i += 2 {
		b = msgp.AppendString(b, pairs[i].(string))
		switch v := pairs[i+1].(type) {
		case msgp.Raw:
			b = append(b, v...)
		default:
			var err error
			if b, err = msgp.AppendIntf(b, v); err != nil {
				panic(err)
			}
		}
	}
	return b
}

// key opens a header of one field whose value the caller appends.
func key(name string) []byte { return msgp.AppendString([]byte{0x81}, name) }

func raw(s string) msgp.Raw { return msgp.Raw(s) }

func frameOf(op Op, header []byte, payload string) []byte {
	b := append(Begin(nil, op), header...)
	return append(End(b, 0, len(payload)), payload...)
}

// samples are the frames of frames.json.
func samples() []sample {
	allProps := raw(string(enc("content_type", "application/json", "content_encoding", "gzip", "correlation_id", "c-1",
		"reply_to", "replies", "expiration", 60000, "message_id", "m-1", "timestamp", 1700000000, "type", "order",
		"user_id", "guest", "app_id", "shop", "priority", 9)))
	zeroProps := raw(string(enc("expiration", 0, "timestamp", 0, "priority", 0)))
	allHeaders := raw(string(enc("nil", nil, "yes", true, "no", false, "small", 7, "negative", -33, "large", int64(1)<<62,
		"float", 1.5, "str", "grüße", "bin", []byte{0, 255}, "array", []any{1, "two", nil},
		"map", map[string]any{"inner": true})))
	wide := raw("\xcf\x00\x00\x00\x00\x00\x00\x00\x2a") // 42 as uint64
	f := func(name string, op Op, header []byte, payload string) sample {
		return sample{name: name, frame: frameOf(op, header, payload)}
	}
	return []sample{
		f("hello", OpHello, enc("ver", 1, "vhost", "/", "auth", raw(string(enc("mech", "plain", "user", "guest", "pass", "guest"))),
			"heartbeat", 30, "client", raw(string(enc("name", "firemq-go", "version", "0.1.0", "lang", "go"))), "caps", []any{"confirms", "credit"}), ""),
		f("hello: the least there is", OpHello, enc("ver", 1, "auth", raw(string(enc("mech", "plain", "user", "guest", "pass", "guest")))), ""),
		f("welcome", OpWelcome, enc("ver", 1, "server", raw(string(enc("name", "firemq", "version", "0.1.0"))), "conn_id", "127.0.0.1:50000 -> 127.0.0.1:5673",
			"heartbeat", 30, "max_frame", 16<<20, "caps", []any{"confirms", "credit", "mandatory", "exchange-bindings", "dead-letter", "ttl"}), ""),
		f("ping: no header", OpPing, nil, ""),
		f("ping: an empty map", OpPing, enc(), ""),
		f("pong", OpPong, nil, ""),
		f("close", OpClose, enc("code", 200, "msg", "bye"), ""),
		f("ok", OpOK, enc("rid", 1), ""),
		f("ok of declare_queue", OpOK, enc("rid", 2, "name", "jobs", "messages", 3, "consumers", 1), ""),
		f("ok of get from an empty queue", OpOK, enc("rid", 3, "empty", true), ""),
		f("error", OpError, enc("rid", 4, "code", 404, "msg", "NOT_FOUND - no queue 'jobs' in vhost '/'"), ""),
		f("error: fatal, tied to no request", OpError, enc("code", 403, "msg", "ACCESS_REFUSED - Login was refused", "fatal", true), ""),
		f("flow: pause", OpFlow, enc("pause", true), ""),
		f("flow: go on, an explicit false", OpFlow, enc("pause", false), ""),
		f("flow: go on, no header", OpFlow, nil, ""),
		f("declare_exchange", OpDeclareExchange, enc("rid", 5, "name", "orders", "type", "topic", "durable", true, "auto_delete", true, "internal", true,
			"passive", true, "args", raw(string(enc("alternate-exchange", "spill")))), ""),
		f("delete_exchange", OpDeleteExchange, enc("rid", 6, "name", "orders", "if_unused", true), ""),
		f("declare_queue", OpDeclareQueue, enc("rid", 7, "name", "jobs", "durable", true, "exclusive", true, "auto_delete", true, "passive", true,
			"args", raw(string(enc("x-message-ttl", 60000, "x-overflow", "reject-publish")))), ""),
		f("declare_queue: the server picks the name", OpDeclareQueue, enc("rid", 8), ""),
		f("declare_queue: explicit zero values", OpDeclareQueue, enc("rid", 8, "name", "", "durable", false, "args", raw("\x80")), ""),
		f("delete_queue", OpDeleteQueue, enc("rid", 9, "name", "jobs", "if_unused", true, "if_empty", true), ""),
		f("purge_queue", OpPurgeQueue, enc("rid", 10, "name", "jobs"), ""),
		f("bind", OpBind, enc("rid", 11, "exchange", "orders", "queue", "jobs", "key", "order.*", "args", raw(string(enc("x-match", "all", "kind", 1)))), ""),
		f("bind: to an exchange", OpBind, enc("rid", 12, "exchange", "orders", "to_exchange", "audit", "key", "#"), ""),
		f("unbind", OpUnbind, enc("rid", 13, "exchange", "orders", "queue", "jobs", "key", "order.*"), ""),
		f("publish", OpPublish, enc("seq", 1, "key", "jobs", "persistent", true), "hello"),
		f("publish: everything", OpPublish, enc("seq", 2, "exchange", "orders", "key", "order.created", "mandatory", true, "persistent", true,
			"props", allProps, "headers", allHeaders), "\x00\x01binary\xff"),
		f("publish: properties that are zero are present", OpPublish, enc("seq", 3, "key", "jobs", "props", zeroProps), "x"),
		f("publish: no confirm wanted, empty body", OpPublish, enc("key", "jobs"), ""),
		f("publish: keys in another order, unknown keys", OpPublish, enc("persistent", true, "x-new", raw("\xd4\x09\x01"), "key", "jobs", "seq", 4), "x"),
		f("publish: wide integers, long string heads, map32", OpPublish,
			[]byte("\xdf\x00\x00\x00\x03\xd9\x03seq"+string(wide)+"\xda\x00\x03key\xdb\x00\x00\x00\x04jobs\xa5props\xde\x00\x01\xa8priority\xd3\x00\x00\x00\x00\x00\x00\x00\x05"), "x"),
		f("publish: a signed encoding of a uint", OpPublish, enc("seq", raw("\xd0\x05"), "key", "jobs"), "x"),
		f("confirm", OpConfirm, enc("upto", 70000), ""),
		f("confirm: refused", OpConfirm, enc("seq", 5, "nack", true, "code", 506, "msg", "RESOURCE_ERROR - queue 'jobs' in vhost '/' is full"), ""),
		f("return", OpReturn, enc("seq", 2, "code", 312, "msg", "NO_ROUTE", "exchange", "orders", "key", "nobody", "props", allProps, "headers", allHeaders), "hello"),
		f("subscribe", OpSubscribe, enc("rid", 14, "sub", 1, "queue", "jobs", "credit", 100, "no_ack", true, "exclusive", true, "tag", "worker-1",
			"args", raw(string(enc("x-priority", 10)))), ""),
		f("unsubscribe", OpUnsubscribe, enc("rid", 15, "sub", 1), ""),
		f("credit", OpCredit, enc("sub", 1, "credit", 50), ""),
		f("deliver", OpDeliver, enc("sub", 1, "tag", 1, "exchange", "orders", "key", "order.created", "props", allProps, "headers", allHeaders), "hello"),
		f("deliver: again, from the default exchange", OpDeliver, enc("sub", 1, "tag", 300, "redelivered", true, "key", "jobs"), ""),
		f("cancelled", OpCancelled, enc("sub", 1, "code", 404, "msg", "NOT_FOUND - queue 'jobs' in vhost '/' was deleted"), ""),
		f("ack", OpAck, enc("tag", 1), ""),
		f("ack: multiple", OpAck, enc("tag", 300, "multiple", true), ""),
		f("ack: explicit false", OpAck, enc("tag", 2, "multiple", false), ""),
		f("nack", OpNack, enc("tag", 3, "multiple", true, "requeue", true), ""),
		f("get", OpGet, enc("rid", 16, "queue", "jobs", "no_ack", true), ""),
		f("get_ok", OpGetOK, enc("rid", 16, "tag", 301, "redelivered", true, "exchange", "orders", "key", "order.created", "remaining", 12,
			"props", allProps, "headers", allHeaders), "hello"),
	}
}

// badSamples are the frames of errors.json.
func badSamples() []sample {
	f := func(name string, op Op, header []byte, code uint16) sample {
		return sample{name: name, frame: frameOf(op, header, ""), code: code}
	}
	long := string(bytes.Repeat([]byte{'n'}, MaxName+1))
	in := func(field string, v any) []byte { return enc(field, raw(string(enc("a", v)))) }
	return []sample{
		{name: "len below the fixed part", frame: []byte{0, 0, 0, 4, 3, 0, 0, 0}, code: FrameError},
		{name: "hlen beyond the frame", frame: []byte{0, 0, 0, 5, 3, 0, 0, 0, 1}, code: FrameError},
		{name: "frame above the limit", frame: []byte{0xff, 0xff, 0xff, 0xff, 0x20, 0, 0, 0, 0}, code: FrameError},
		{name: "payload where there is none", frame: frameOf(OpAck, enc("tag", 1), "x"), code: FrameError},
		f("header is no map", OpGet, []byte{0x90}, SyntaxError),
		f("header ends early", OpGet, enc("rid", 1)[:3], SyntaxError),
		f("bytes after the header", OpAck, append(enc("tag", 1), 0), SyntaxError),
		f("a key that is no str", OpAck, []byte{0x81, 1, 1}, SyntaxError),
		f("a byte MessagePack never uses", OpAck, append(key("x"), 0xc1), SyntaxError),
		f("str for uint", OpAck, enc("tag", "1"), SyntaxError),
		f("negative for uint", OpAck, enc("tag", -1), SyntaxError),
		f("float for uint", OpCredit, enc("sub", 1, "credit", 1.5), SyntaxError),
		f("nil for str", OpPublish, enc("key", nil), SyntaxError),
		f("int for bool", OpPublish, enc("mandatory", 1), SyntaxError),
		f("bin for str", OpPublish, enc("key", []byte("k")), SyntaxError),
		f("array for map", OpPublish, enc("headers", []any{}), SyntaxError),
		f("array for map, rare op", OpDeclareQueue, enc("args", []any{}), SyntaxError),
		f("str for bool, rare op", OpDeclareQueue, enc("durable", "true"), SyntaxError),
		f("key too long", OpPublish, enc("key", long), SyntaxError),
		f("property too long", OpPublish, enc("props", raw(string(enc("reply_to", long)))), SyntaxError),
		f("header name too long", OpPublish, enc("headers", raw(string(enc(long, 1)))), SyntaxError),
		f("expiration is a str", OpPublish, enc("props", raw(string(enc("expiration", "60000")))), SyntaxError),
		f("priority above 255", OpPublish, enc("props", raw(string(enc("priority", 256)))), SyntaxError),
		f("extension value in headers", OpPublish, in("headers", raw("\xd4\x09\x01")), SyntaxError),
		f("timestamp extension in headers", OpPublish, in("headers", raw("\xd6\xff\x00\x00\x00\x01")), SyntaxError),
		f("integer above int64 in headers", OpPublish, in("headers", uint64(1)<<63), SyntaxError),
		f("nested map with an int key", OpPublish, in("headers", raw("\x81\x01\x01")), SyntaxError),
	}
}
