// Command conformance is the driver of the Go SDK for the conformance suite: it reads commands on stdin and
// writes replies on stdout, as docs/conformance.md says.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	fire "github.com/firemq/firemq/sdk/go"
)

// maxCommand bounds a line: a large body and its base64.
const maxCommand = 64 << 20

func main() {
	d := &driver{subs: map[string]subscription{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, maxCommand)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var c command
		dec := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		dec.UseNumber() // a float64 does not hold every integer
		if err := dec.Decode(&c); err != nil {
			fmt.Fprintln(os.Stderr, "a command that cannot be read:", err)
			os.Exit(1)
		}
		result, err := d.do(context.Background(), &c)
		r := reply{ID: c.ID, OK: err == nil, Result: result}
		if err != nil {
			r.Result, r.Error = nil, describe(err)
		}
		if err := out.Encode(r); err != nil {
			os.Exit(1)
		}
	}
	if d.client != nil {
		d.client.Close()
	}
}

// command has the fields of all ops.
type command struct {
	ID         int64          `json:"id"`
	Op         string         `json:"op"`
	URL        string         `json:"url"`
	Reconnect  bool           `json:"reconnect"`
	Name       string         `json:"name"`
	Type       string         `json:"type"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Internal   bool           `json:"internal"`
	Exclusive  bool           `json:"exclusive"`
	Passive    bool           `json:"passive"`
	IfUnused   bool           `json:"if_unused"`
	IfEmpty    bool           `json:"if_empty"`
	Args       map[string]any `json:"args"`
	Exchange   string         `json:"exchange"`
	Queue      string         `json:"queue"`
	ToExchange string         `json:"to_exchange"`
	Key        string         `json:"key"`
	Body       string         `json:"body"`
	BodyBase64 []byte         `json:"body_base64"`
	Persistent bool           `json:"persistent"`
	Mandatory  bool           `json:"mandatory"`
	Properties properties     `json:"properties"`
	Headers    map[string]any `json:"headers"`
	Count      int            `json:"count"`
	Sub        string         `json:"sub"`
	Prefetch   int            `json:"prefetch"`
	NoAck      bool           `json:"no_ack"`
	Tag        string         `json:"tag"`
	TimeoutMS  int            `json:"timeout_ms"`
	Multiple   bool           `json:"multiple"`
	Requeue    bool           `json:"requeue"`
}

type reply struct {
	ID     int64      `json:"id"`
	OK     bool       `json:"ok"`
	Result any        `json:"result,omitempty"`
	Error  *errorInfo `json:"error,omitempty"`
}

type errorInfo struct {
	Kind    string `json:"kind,omitempty"`
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// describe gives an error its kind.
func describe(err error) *errorInfo {
	e := &errorInfo{Message: err.Error()}
	server, isServer := errors.AsType[*fire.ServerError](err)
	nacked, isNacked := errors.AsType[*fire.NackedError](err)
	_, isInvalid := errors.AsType[*fire.InvalidError](err)
	switch {
	case errors.Is(err, fire.ErrClosed): // first: it has its cause in it
		e.Kind = "closed"
	case errors.Is(err, fire.ErrUnroutable):
		e.Kind, e.Code = "unroutable", 312
	case isNacked:
		e.Kind, e.Code, e.Message = "nacked", nacked.Code, nacked.Msg
	case isServer:
		e.Kind, e.Code, e.Message = "server", server.Code, server.Msg
	case isInvalid:
		e.Kind = "invalid"
	case errors.Is(err, context.DeadlineExceeded):
		e.Kind = "timeout"
	default:
		e.Kind = "closed" // the network
	}
	return e
}

// driver is the state between commands.
type driver struct {
	client *fire.Client // nil before connect
	subs   map[string]subscription

	mu     sync.Mutex
	errors []errorInfo // guarded by mu: not told yet
}

type object map[string]any

type subscription struct {
	*fire.Subscription
	noAck bool
}

func (d *driver) do(ctx context.Context, c *command) (any, error) {
	switch c.Op {
	case "connect":
		return d.connect(ctx, c)
	case "close":
		if d.client != nil {
			d.client.Close()
		}
		return object{}, nil
	case "errors":
		d.mu.Lock()
		defer d.mu.Unlock()
		list := d.errors
		d.errors = nil
		return object{"errors": append([]errorInfo{}, list...)}, nil
	case "info":
		return object{"name": "firemq-go", "version": fire.Version, "lang": "go"}, nil
	}
	if d.client == nil {
		return nil, fire.ErrClosed
	}
	switch c.Op {
	case "declare_exchange":
		return object{}, d.client.DeclareExchange(ctx, c.Name, c.Type, fire.ExchangeOptions{
			Transient: !c.Durable, AutoDelete: c.AutoDelete, Internal: c.Internal, Passive: c.Passive, Args: plain(c.Args),
		})
	case "delete_exchange":
		return object{}, d.client.DeleteExchange(ctx, c.Name, c.IfUnused)
	case "declare_queue":
		q, err := d.client.DeclareQueue(ctx, c.Name, fire.QueueOptions{
			Transient: !c.Durable, Exclusive: c.Exclusive, AutoDelete: c.AutoDelete, Passive: c.Passive, Args: plain(c.Args),
		})
		return object{"name": q.Name, "messages": q.Messages, "consumers": q.Consumers}, err
	case "delete_queue":
		n, err := d.client.DeleteQueue(ctx, c.Name, fire.DeleteOptions{IfUnused: c.IfUnused, IfEmpty: c.IfEmpty})
		return object{"messages": n}, err
	case "purge_queue":
		n, err := d.client.PurgeQueue(ctx, c.Name)
		return object{"messages": n}, err
	case "bind":
		if c.Queue != "" {
			return object{}, d.client.BindQueue(ctx, c.Queue, c.Exchange, c.Key, plain(c.Args))
		}
		return object{}, d.client.BindExchange(ctx, c.ToExchange, c.Exchange, c.Key, plain(c.Args))
	case "unbind":
		if c.Queue != "" {
			return object{}, d.client.UnbindQueue(ctx, c.Queue, c.Exchange, c.Key, plain(c.Args))
		}
		return object{}, d.client.UnbindExchange(ctx, c.ToExchange, c.Exchange, c.Key, plain(c.Args))
	case "publish":
		return object{}, d.client.Publish(ctx, c.message([]byte(c.Body)))
	case "publish_bytes":
		return object{}, d.client.Publish(ctx, c.message(c.BodyBase64))
	case "publish_many":
		return d.publishMany(ctx, c)
	case "subscribe":
		s, err := d.client.Subscribe(ctx, c.Queue, fire.SubscribeOptions{
			Prefetch: c.Prefetch, NoAck: c.NoAck, Exclusive: c.Exclusive, Tag: c.Tag, Args: plain(c.Args),
		})
		if err == nil {
			d.subs[c.Sub] = subscription{s, c.NoAck}
		}
		return object{}, err
	case "next":
		return d.next(ctx, c)
	case "unsubscribe":
		s, ok := d.subs[c.Sub]
		if !ok {
			return nil, &fire.InvalidError{Text: "no subscription " + c.Sub}
		}
		return object{}, s.Unsubscribe(ctx)
	case "ack", "nack":
		tag, err := strconv.ParseUint(c.Tag, 10, 64)
		if err != nil {
			return nil, &fire.InvalidError{Text: "the tag is none: " + c.Tag}
		}
		if c.Op == "ack" {
			return object{}, d.client.Ack(tag, c.Multiple)
		}
		return object{}, d.client.Nack(tag, c.Multiple, c.Requeue)
	case "get":
		return d.get(ctx, c)
	}
	return nil, &fire.InvalidError{Text: "unknown op " + c.Op}
}

func (d *driver) connect(ctx context.Context, c *command) (any, error) {
	cfg, err := fire.ParseURL(c.URL)
	if err != nil {
		return nil, err
	}
	if d.client != nil {
		d.client.Close()
	}
	clear(d.subs)
	d.mu.Lock()
	d.errors = nil
	d.mu.Unlock()
	cfg.CAFile = os.Getenv("FIREMQ_CA_FILE")
	cfg.Reconnect.Off = !c.Reconnect
	cfg.OnError = func(e *fire.ServerError) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.errors = append(d.errors, errorInfo{Code: e.Code, Message: e.Msg})
	}
	if d.client, err = cfg.Dial(ctx); err != nil {
		d.client = nil
		return nil, err
	}
	return object{"conn_id": d.client.ConnID()}, nil
}

// publishMany keeps many messages in flight and counts those that are confirmed.
func (d *driver) publishMany(ctx context.Context, c *command) (any, error) {
	confirmed := 0 // by the reading goroutine; Flush returns after it
	p := d.client.NewPublisher(fire.PublisherOptions{OnResult: func(_ uint64, err error) {
		if err == nil {
			confirmed++
		}
	}})
	var body []byte
	for i := range c.Count {
		body = strconv.AppendInt(append(append(body[:0], c.Body...), '-'), int64(i), 10)
		if err := p.Publish(ctx, c.message(body)); err != nil {
			return nil, err
		}
	}
	if err := p.Flush(ctx); errors.Is(err, fire.ErrClosed) {
		return nil, err
	}
	return object{"confirmed": confirmed}, nil
}

func (d *driver) next(ctx context.Context, c *command) (any, error) {
	s, ok := d.subs[c.Sub]
	if !ok {
		return nil, &fire.InvalidError{Text: "no subscription " + c.Sub}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.TimeoutMS)*time.Millisecond)
	defer cancel()
	m, err := s.Next(ctx)
	_, isCancelled := errors.AsType[*fire.CancelledError](err)
	switch {
	case isCancelled || errors.Is(err, fire.ErrUnsubscribed):
		return object{"message": nil, "cancelled": true}, nil
	case errors.Is(err, context.DeadlineExceeded):
		return object{"message": nil}, nil
	case err != nil:
		return nil, err
	}
	o, err := show(m, s.noAck)
	return object{"message": o}, err
}

func (d *driver) get(ctx context.Context, c *command) (any, error) {
	m, ok, err := d.client.Get(ctx, c.Queue, fire.GetOptions{NoAck: c.NoAck})
	if err != nil {
		return nil, err
	}
	if !ok {
		return object{"message": nil, "remaining": 0}, nil
	}
	o, err := show(m, c.NoAck)
	return object{"message": o, "remaining": m.Remaining}, err
}

// properties are the message's, nil where they are absent.
type properties struct {
	ContentType     string `json:"content_type,omitempty"`
	ContentEncoding string `json:"content_encoding,omitempty"`
	CorrelationID   string `json:"correlation_id,omitempty"`
	ReplyTo         string `json:"reply_to,omitempty"`
	Expiration      *int64 `json:"expiration,omitempty"`
	MessageID       string `json:"message_id,omitempty"`
	Timestamp       *int64 `json:"timestamp,omitempty"`
	Type            string `json:"type,omitempty"`
	UserID          string `json:"user_id,omitempty"`
	AppID           string `json:"app_id,omitempty"`
	Priority        *uint8 `json:"priority,omitempty"`
}

func (c *command) message(body []byte) fire.Message {
	p := &c.Properties
	m := fire.Message{
		Exchange: c.Exchange, Key: c.Key, Body: body, Mandatory: c.Mandatory, Transient: !c.Persistent, Headers: plain(c.Headers),
		Properties: fire.Properties{
			ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, CorrelationID: p.CorrelationID, ReplyTo: p.ReplyTo,
			MessageID: p.MessageID, Type: p.Type, UserID: p.UserID, AppID: p.AppID, Priority: p.Priority,
		},
	}
	if p.Expiration != nil {
		m.Properties.Expiration = new(time.Duration(*p.Expiration) * time.Millisecond)
	}
	if p.Timestamp != nil {
		m.Properties.Timestamp = time.Unix(*p.Timestamp, 0)
	}
	return m
}

// show is a message as the runner reads it.
func show(m *fire.Delivery, noAck bool) (any, error) {
	p, err := m.Properties()
	if err != nil {
		return nil, err
	}
	headers, err := m.Headers()
	if err != nil {
		return nil, err
	}
	out := properties{
		ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, CorrelationID: p.CorrelationID, ReplyTo: p.ReplyTo,
		MessageID: p.MessageID, Type: p.Type, UserID: p.UserID, AppID: p.AppID, Priority: p.Priority,
	}
	if p.Expiration != nil {
		out.Expiration = new(p.Expiration.Milliseconds())
	}
	if !p.Timestamp.IsZero() {
		out.Timestamp = new(p.Timestamp.Unix())
	}
	o := object{
		"body": nil, "body_base64": base64.StdEncoding.EncodeToString(m.Body), "exchange": m.Exchange(), "routing_key": m.Key(),
		"redelivered": m.Redelivered, "tag": "", "properties": out, "headers": headers, // encoding/json makes base64 of []byte
	}
	if utf8.Valid(m.Body) {
		o["body"] = string(m.Body)
	}
	if !noAck {
		o["tag"] = strconv.FormatUint(m.Tag, 10)
	}
	return o, nil
}

// plain has numbers of JSON be integers and floats.
func plain(m map[string]any) map[string]any {
	for k, v := range m {
		m[k] = plainValue(v)
	}
	return m
}

func plainValue(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		f, _ := v.Float64()
		return f
	case map[string]any:
		return plain(v)
	case []any:
		for i := range v {
			v[i] = plainValue(v[i])
		}
	}
	return v
}
