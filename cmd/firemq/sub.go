package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	fire "github.com/firemq/firemq/sdk/go"
	"github.com/spf13/cobra"
)

// subFlags say what to read and how to print it.
type subFlags struct {
	clientFlags
	count  int
	peek   bool
	asJSON bool
}

func newSub(t terminal) *cobra.Command {
	var f subFlags
	c := &cobra.Command{
		Use:   "sub QUEUE",
		Short: "Print the messages of a queue and acknowledge them",
		Long: `Sub prints each message of a queue and acknowledges it, until Ctrl-C or for --count messages.

With --peek it prints what is in the queue now and puts everything back in its place; the broker
marks those messages as redelivered.`,
		Example: `  firemq sub jobs
  firemq sub jobs --count 10
  firemq sub jobs --peek --count 1
  firemq sub jobs --json`,
		Args: argsBetween(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := fromEnv(t, c.Flags()); err != nil {
				return err
			}
			if f.count < 0 {
				return usagef("--count %d is less than 0", f.count)
			}
			ctx, stop := interruptible(c.Context())
			defer stop()
			client, err := f.connect(ctx, nil)
			if err != nil {
				return err
			}
			defer client.Close()
			read := f.consume
			if f.peek {
				read = f.look
			}
			err = read(ctx, t, client, args[0])
			if err == nil || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
				return nil
			}
			return explain(err, args[0])
		},
	}
	flags := c.Flags()
	flags.SortFlags = false
	flags.IntVarP(&f.count, "count", "n", 0, "stop after so many messages; 0: until Ctrl-C, with --peek all of them")
	flags.BoolVar(&f.peek, "peek", false, "look without removing")
	flags.BoolVar(&f.asJSON, "json", false, "one JSON object a line, with properties and headers")
	f.clientFlags.add(flags)
	return c
}

// prefetch bounds what sub takes out of the queue ahead of printing it.
const prefetch = 100

// consume prints and acknowledges, in this order: what could not be printed stays in the queue.
func (f *subFlags) consume(ctx context.Context, t terminal, c *fire.Client, queue string) error {
	o := fire.SubscribeOptions{Prefetch: prefetch}
	if f.count > 0 {
		o.Prefetch = min(o.Prefetch, f.count)
	}
	sub, err := c.Subscribe(ctx, queue, o)
	if err != nil {
		return err
	}
	for n := 0; f.count == 0 || n < f.count; n++ {
		d, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		if err := f.print(t, d); err != nil {
			return err
		}
		if err := d.Ack(); err != nil {
			return err
		}
	}
	return nil
}

// look prints what the queue has now and puts it back. Messages go back only at the end, since each would
// come again at once.
func (f *subFlags) look(ctx context.Context, t terminal, c *fire.Client, queue string) (err error) {
	n := 0
	for ; f.count == 0 || n < f.count; n++ {
		d, ok, err := c.Get(ctx, queue, fire.GetOptions{})
		if err != nil {
			return err // what was taken goes back when the connection closes
		}
		if !ok {
			break
		}
		if err := f.print(t, d); err != nil {
			return err
		}
	}
	if n == 0 {
		fmt.Fprintf(t.err, "queue '%s' is empty\n", queue)
		return nil
	}
	return c.Nack(0, true, true) // every delivery of this connection
}

// print writes one message in one write.
func (f *subFlags) print(t terminal, d *fire.Delivery) error {
	line := append(d.Body[:len(d.Body):len(d.Body)], '\n')
	if f.asJSON {
		var err error
		if line, err = jsonLine(d); err != nil {
			return err
		}
	}
	if _, err := t.out.Write(line); err != nil {
		return fmt.Errorf("print a message: %w", err)
	}
	return nil
}

// messageJSON is a message as sub --json prints it: one of Body and BodyBase64 is there.
type messageJSON struct {
	Body        *string        `json:"body,omitempty"`
	BodyBase64  []byte         `json:"body_base64,omitempty"`
	Exchange    string         `json:"exchange"`
	RoutingKey  string         `json:"routing_key"`
	Redelivered bool           `json:"redelivered"`
	Properties  propertiesJSON `json:"properties"`
	Headers     map[string]any `json:"headers"`
}

// propertiesJSON has the keys of the FireMQ protocol.
type propertiesJSON struct {
	ContentType     string `json:"content_type,omitempty"`
	ContentEncoding string `json:"content_encoding,omitempty"`
	CorrelationID   string `json:"correlation_id,omitempty"`
	ReplyTo         string `json:"reply_to,omitempty"`
	Expiration      *int64 `json:"expiration,omitempty"` // ms
	MessageID       string `json:"message_id,omitempty"`
	Timestamp       *int64 `json:"timestamp,omitempty"` // seconds since the Unix epoch
	Type            string `json:"type,omitempty"`
	UserID          string `json:"user_id,omitempty"`
	AppID           string `json:"app_id,omitempty"`
	Priority        *uint8 `json:"priority,omitempty"`
}

func jsonLine(d *fire.Delivery) ([]byte, error) {
	p, err := d.Properties()
	if err != nil {
		return nil, err
	}
	headers, err := d.Headers()
	if err != nil {
		return nil, err
	}
	m := messageJSON{
		Exchange: d.Exchange(), RoutingKey: d.Key(), Redelivered: d.Redelivered,
		Properties: propertiesJSON{
			ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, CorrelationID: p.CorrelationID,
			ReplyTo: p.ReplyTo, MessageID: p.MessageID, Type: p.Type, UserID: p.UserID, AppID: p.AppID, Priority: p.Priority,
		},
		Headers: make(map[string]any, len(headers)),
	}
	if p.Expiration != nil {
		m.Properties.Expiration = new(p.Expiration.Milliseconds())
	}
	if !p.Timestamp.IsZero() {
		m.Properties.Timestamp = new(p.Timestamp.Unix())
	}
	for key, value := range headers {
		m.Headers[key] = jsonValue(value)
	}
	if utf8.Valid(d.Body) {
		m.Body = new(string(d.Body))
	} else {
		m.BodyBase64 = d.Body
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		return nil, fmt.Errorf("print a message: %w", err)
	}
	return b.Bytes(), nil
}

// jsonValue replaces what JSON has no form for: floats that are no numbers become strings.
func jsonValue(v any) any {
	switch v := v.(type) {
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Sprint(v)
		}
	case []any:
		for i := range v {
			v[i] = jsonValue(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = jsonValue(v[key])
		}
	}
	return v
}
