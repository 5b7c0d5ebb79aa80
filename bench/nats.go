package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"

	"github.com/firemq/firemq/frames/table"
)

// natsWire speaks NATS' text protocol, for reference beside brokers: over nats:// a queue is a subject with a
// queue group, over jetstream:// a stream with work-queue retention and one durable pull consumer with
// explicit acks, on disk with --persistent, else in memory.
//
// Core NATS confirms nothing. There a publish counts as confirmed when the server answers the ping behind its
// batch: it has taken the message, and drops it if nobody subscribes.
type natsWire struct {
	*link
	stream  bool   // JetStream
	storage string // of streams
	maxLine int    // bytes of a message and its first line
	name    string
	inbox   string // what is sent to inbox and one more token comes with sid 0
	queues  []string
	credits []credit // of JetStream, one a subscription
	reply   []byte   // of the message that delivered is told of

	pings   chan uint64 // what each PONG to come says: a publish, or a handle that is cancelled
	publish bool
	owed    atomic.Bool // a publisher's PONG, which its writer sends: it may be inside a message
}

// Bounds of what the server sends beside messages: INFO is the longest.
const natsMaxLine = 64 << 10

const crlf = "\r\n"

func dialCore(ctx context.Context, to target) (wire, error) { return dialNATS(ctx, to, false) }

func dialJetStream(ctx context.Context, to target) (wire, error) { return dialNATS(ctx, to, true) }

func dialNATS(ctx context.Context, to target, stream bool) (wire, error) {
	most := to.size + natsMaxLine
	l, err := dialLink(ctx, to, most)
	if err != nil {
		return nil, err
	}
	w := &natsWire{link: l, stream: stream, storage: "memory", maxLine: most, inbox: "_INBOX." + rand.Text()[:12] + "."}
	if to.persistent {
		w.storage = "file"
	}
	if err := w.within(func() error { return w.open(to) }); err != nil {
		l.conn.Close()
		return nil, fmt.Errorf("log in at %s: %w", to.Addr, err)
	}
	return w, nil
}

// natsInfo is what the server says first.
type natsInfo struct {
	Version    string `json:"version"`
	MaxPayload int    `json:"max_payload"`
	TLS        bool   `json:"tls_required"`
}

func (w *natsWire) open(to target) error {
	m, err := w.message()
	if err != nil {
		return err
	}
	var info natsInfo
	if string(m.op) != "INFO" || json.Unmarshal(m.payload, &info) != nil {
		return errors.New("the broker does not speak NATS on this port")
	}
	switch {
	case info.TLS:
		return errors.New("the server insists on TLS, which is not measured over NATS")
	case info.MaxPayload > 0 && to.size > info.MaxPayload:
		return fmt.Errorf("a body of %d bytes is above the server's max_payload of %d: take a smaller --size", to.size, info.MaxPayload)
	}
	w.name = "nats-server " + info.Version
	connect, err := json.Marshal(map[string]any{
		"verbose": false, "pedantic": false, "headers": true, "no_responders": true, "protocol": 1,
		"name": "firemq bench", "lang": "go", "version": info.Version, "user": to.user, "pass": to.pass,
	})
	if err != nil {
		return err
	}
	return w.settled("CONNECT " + string(connect) + crlf + "SUB " + w.inbox + "* 0" + crlf)
}

// settled writes commands and waits until the server has carried them out. No message may come.
func (w *natsWire) settled(commands string) error {
	if err := w.write([]byte(commands + "PING" + crlf)); err != nil {
		return err
	}
	for {
		m, err := w.message()
		if err != nil {
			return err
		}
		switch string(m.op) {
		case "PONG":
			return nil
		case "PING":
			err = w.write([]byte("PONG" + crlf))
		case "MSG", "HMSG":
			return errors.New("the broker sent a message that nobody asked for")
		default:
			err = m.err()
		}
		if err != nil {
			return err
		}
	}
}

// natsMessage is one thing that the server says. Its slices are valid until the next read.
type natsMessage struct {
	op      []byte // MSG, HMSG, PING, PONG, +OK, -ERR or INFO
	subject []byte
	sid     uint32
	reply   []byte
	header  []byte // of HMSG
	payload []byte // of others the rest of the line
}

// err is what a message other than one for a subscription means to a run.
func (m *natsMessage) err() error {
	switch string(m.op) {
	case "INFO", "+OK": // of a cluster's change
		return nil
	case "-ERR":
		return fmt.Errorf("the broker refused: %s", bytes.Trim(m.payload, "'"))
	}
	return fmt.Errorf("the broker sent %.30q, which nobody asked for", m.op)
}

// status is the line of a header that stands for a message, such as "503 No Responders"; "": there is none.
func (m *natsMessage) status() string {
	line, _, _ := bytes.Cut(m.header, []byte(crlf))
	_, status, _ := bytes.Cut(line, []byte(" "))
	return string(status)
}

var errNATS = errors.New("the broker sent what is not NATS")

// nextNATS takes one message off b, of n bytes; n is 0 if it is not complete.
func nextNATS(b []byte, most int) (m natsMessage, n int, err error) {
	end := bytes.IndexByte(b, '\n')
	if end < 1 {
		if end == 0 || len(b) > most {
			return m, 0, errNATS
		}
		return m, 0, nil
	}
	line := b[:end]
	if line[end-1] != '\r' {
		return m, 0, errNATS
	}
	line = line[:end-1]
	if end++; !bytes.HasPrefix(line, []byte("MSG ")) && !bytes.HasPrefix(line, []byte("HMSG ")) {
		m.op, m.payload, _ = bytes.Cut(line, []byte(" "))
		return m, end, nil
	}
	// MSG subject sid [reply] size, HMSG subject sid [reply] header-size size
	var fields [6][]byte
	count := 0
	for len(line) > 0 && count < len(fields) {
		fields[count], line, _ = bytes.Cut(line, []byte(" "))
		count++
	}
	least := 4
	if fields[0][0] == 'H' {
		least = 5
	}
	if count < least || count > least+1 || len(line) > 0 {
		return m, 0, errNATS
	}
	m.op, m.subject = fields[0], fields[1]
	if count > least {
		m.reply = fields[3]
	}
	sid, ok := natsNumber(fields[2])
	size, ok2 := natsNumber(fields[count-1])
	head, ok3 := 0, true
	if least == 5 {
		head, ok3 = natsNumber(fields[count-2])
	}
	if !ok || !ok2 || !ok3 || head > size || size > most {
		return m, 0, errNATS
	}
	m.sid = uint32(sid)
	if len(b) < end+size+len(crlf) {
		return m, 0, nil
	}
	if b[end+size] != '\r' || b[end+size+1] != '\n' {
		return m, 0, errNATS
	}
	m.header, m.payload = b[end:end+head], b[end+head:end+size]
	return m, end + size + len(crlf), nil
}

func natsNumber(digits []byte) (n int, ok bool) {
	for _, d := range digits {
		if d < '0' || d > '9' || n > math.MaxInt32/10-1 {
			return 0, false
		}
		n = n*10 + int(d-'0')
	}
	return n, len(digits) > 0
}

// message reads up to the next one.
func (w *natsWire) message() (natsMessage, error) {
	for {
		m, n, err := nextNATS(w.buf[w.r:w.w], w.maxLine)
		if err != nil {
			return m, err
		}
		if n > 0 {
			w.r += n
			return m, nil
		}
		if err := w.fill(); err != nil {
			return m, err
		}
	}
}

// ask sends a request to JetStream and decodes the answer.
func (w *natsWire) ask(api string, request, answer any) error {
	return w.within(func() error {
		body, err := json.Marshal(request)
		if err != nil {
			return err
		}
		w.reply = fmt.Appendf(w.reply[:0], "PUB $JS.API.%s %sask %d\r\n%s\r\n", api, w.inbox, len(body), body)
		if err := w.write(w.reply); err != nil {
			return err
		}
		for {
			m, err := w.message()
			if err != nil {
				return err
			}
			switch string(m.op) {
			case "PING":
				err = w.write([]byte("PONG" + crlf))
			case "MSG", "HMSG":
				return answered(m, answer)
			default:
				err = m.err()
			}
			if err != nil {
				return err
			}
		}
	})
}

// answered decodes what JetStream says.
func answered(m natsMessage, into any) error {
	if status := m.status(); status != "" {
		return fmt.Errorf("JetStream does not answer (%s): is it on?", status)
	}
	var refused struct {
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.payload, &refused); err != nil {
		return fmt.Errorf("JetStream's answer: %w", err)
	}
	if refused.Error != nil {
		return fmt.Errorf("JetStream refused: %s", refused.Error.Description)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(m.payload, into)
}

// natsGroup is the queue group of subscribers, and the durable consumer of a stream.
const natsGroup = "bench"

func (w *natsWire) declareQueue(name string, _ table.Table) error {
	if !w.stream {
		return nil
	}
	err := w.ask("STREAM.CREATE."+name, map[string]any{"name": name, "subjects": []string{name}, "storage": w.storage, "retention": "workqueue", "num_replicas": 1}, nil)
	if err != nil {
		return err
	}
	// Pulls say how much may be unacknowledged.
	config := map[string]any{"name": natsGroup, "durable_name": natsGroup, "ack_policy": "explicit", "max_ack_pending": -1}
	return w.ask("CONSUMER.CREATE."+name+"."+natsGroup, map[string]any{"stream_name": name, "config": config}, nil)
}

func (w *natsWire) deleteQueue(name string) (uint64, error) {
	if !w.stream {
		return 0, nil
	}
	var info struct {
		State struct {
			Messages uint64 `json:"messages"`
		} `json:"state"`
	}
	if err := w.ask("STREAM.INFO."+name, map[string]any{}, &info); err != nil {
		return 0, err
	}
	return info.State.Messages, w.ask("STREAM.DELETE."+name, map[string]any{}, nil)
}

// There are no exchanges: the options refuse them.
func (w *natsWire) declareExchange(_, _ string) error { return errNATS }
func (w *natsWire) deleteExchange(string) error       { return errNATS }
func (w *natsWire) bind(_, _, _ string) error         { return errNATS }

func (w *natsWire) publishing(window int) error {
	w.publish = true
	w.pings = make(chan uint64, window)
	return nil
}

func (w *natsWire) subscribe(queues []string, prefetch int) error {
	w.queues, w.pings = queues, make(chan uint64, len(queues))
	var b []byte
	for handle, q := range queues {
		if !w.stream {
			b = fmt.Appendf(b, "SUB %s %s %d\r\n", q, natsGroup, handle+1)
			continue
		}
		w.credits = append(w.credits, newCredit(prefetch))
		b = fmt.Appendf(b, "SUB %s %d\r\n", w.pullInbox(handle), handle+1)
		b = w.appendPull(b, uint32(handle), prefetch)
	}
	if w.stream {
		return w.write(b)
	}
	// What is published before a subscription is in force is dropped.
	return w.within(func() error { return w.settled(string(b)) })
}

// pullInbox is not below inbox: its messages come with a sid of their own alone.
func (w *natsWire) pullInbox(handle int) string {
	return fmt.Sprintf("%spull.%d", w.inbox, handle)
}

// appendPull asks for n more messages.
func (w *natsWire) appendPull(dst []byte, handle uint32, n int) []byte {
	dst = append(dst, "PUB $JS.API.CONSUMER.MSG.NEXT."...)
	dst = append(dst, w.queues[handle]...)
	dst = append(dst, "."+natsGroup+" "...)
	dst = append(dst, w.inbox...)
	dst = append(dst, "pull."...)
	dst = strconv.AppendUint(dst, uint64(handle), 10)
	var number [20]byte
	digits := strconv.AppendInt(number[:0], int64(n), 10)
	dst = append(dst, ' ')
	dst = strconv.AppendInt(dst, int64(len(`{"batch":}`)+len(digits)), 10)
	dst = append(dst, crlf+`{"batch":`...)
	dst = append(dst, digits...)
	return append(dst, "}"+crlf...)
}

// close waits until what was written before has been taken.
func (w *natsWire) close() {
	w.within(func() error {
		if err := w.write([]byte("PING" + crlf)); err != nil {
			return err
		}
		for {
			if m, err := w.message(); err != nil || string(m.op) == "PONG" {
				return err
			}
		}
	})
	w.conn.Close()
}

func (w *natsWire) product() string { return w.name }

// hexDigits of a publish's number are the last token of the subject that its ack goes to.
const hexDigits = 16

func (w *natsWire) template(_ model, keys []string, size int) template {
	t := template{tail: append(filler(size), crlf...)}
	for _, key := range keys {
		prefix := "PUB " + key + " "
		if w.stream {
			prefix += w.inbox
			t.number, t.numberAt = putHex, append(t.numberAt, len(prefix))
			prefix += "0000000000000000 "
		}
		t.prefix = append(t.prefix, fmt.Appendf(nil, "%s%d\r\n", prefix, size))
	}
	return t
}

func putHex(dst []byte, v uint64) {
	for i := hexDigits - 1; i >= 0; i-- {
		dst[i] = "0123456789abcdef"[v&15]
		v >>= 4
	}
}

// numberOf is the inverse of putHex behind the inbox.
func (w *natsWire) numberOf(subject []byte) (seq uint64, err error) {
	if len(subject) != len(w.inbox)+hexDigits {
		return 0, errNATS
	}
	for _, c := range subject[len(w.inbox):] {
		switch {
		case '0' <= c && c <= '9':
			seq = seq<<4 | uint64(c-'0')
		case 'a' <= c && c <= 'f':
			seq = seq<<4 | uint64(c-'a'+10)
		default:
			return 0, errNATS
		}
	}
	return seq, nil
}

// appendPublished asks core NATS when it has taken a batch.
func (w *natsWire) appendPublished(dst []byte, upTo uint64) []byte {
	if w.owed.CompareAndSwap(true, false) {
		dst = append(dst, "PONG"+crlf...)
	}
	if w.stream {
		return dst
	}
	w.pings <- upTo // there is room: each stands for a message of the window
	return append(dst, "PING"+crlf...)
}

// appendAck is for the message that delivered was just told of.
func (w *natsWire) appendAck(dst []byte, _ uint64) []byte {
	if !w.stream {
		return dst
	}
	dst = append(append(dst, "PUB "...), w.reply...)
	return append(dst, " 4"+crlf+"+ACK"+crlf...)
}

// appendSettled asks for more in eighths of the prefetch.
func (w *natsWire) appendSettled(dst []byte, handle uint32, _ uint64, n int) []byte {
	if !w.stream {
		return dst
	}
	if more := w.credits[handle].take(n); more > 0 {
		dst = w.appendPull(dst, handle, more)
	}
	return dst
}

// appendCancel is called once for each handle; the answer is a PONG.
func (w *natsWire) appendCancel(dst []byte, handle uint32) []byte {
	w.pings <- uint64(handle)
	return fmt.Appendf(dst, "UNSUB %d\r\nPING\r\n", handle+1)
}

func (w *natsWire) frames(h handler) error {
	for {
		m, n, err := nextNATS(w.buf[w.r:w.w], w.maxLine)
		if err != nil || n == 0 {
			return err
		}
		w.r += n
		if err := w.take(h, &m); err != nil {
			return err
		}
	}
}

func (w *natsWire) take(h handler, m *natsMessage) error {
	switch string(m.op) {
	case "MSG", "HMSG":
		if status := m.status(); status != "" {
			return fmt.Errorf("the broker refused: %s", status)
		}
		if m.sid > 0 {
			w.reply = m.reply
			return h.delivered(m.sid-1, 0, len(m.payload), m.payload[:min(stampSize, len(m.payload))])
		}
		seq, err := w.numberOf(m.subject)
		if err != nil {
			return err
		}
		if bytes.Contains(m.payload, []byte(`"error"`)) {
			return answered(*m, nil)
		}
		return h.confirmed(seq, false, false)
	case "PONG":
		select {
		case about := <-w.pings:
			if w.publish {
				return h.confirmed(about, true, false)
			}
			return h.cancelled(uint32(about))
		default:
			return errNATS
		}
	case "PING":
		if w.publish {
			w.owed.Store(true)
			return nil
		}
		return w.write([]byte("PONG" + crlf))
	}
	return m.err()
}
