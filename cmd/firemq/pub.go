package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	fire "github.com/firemq/firemq/sdk/go"
	"github.com/spf13/cobra"
)

// maxBody is the largest body that pub reads: what a frame of the FireMQ protocol holds by default.
const maxBody = 16 << 20

// pubFlags say what to publish.
type pubFlags struct {
	clientFlags
	queue, file string
	count       int
	headers     []string
	contentType string
	persistent  bool
	mandatory   bool
}

func newPub(t terminal) *cobra.Command {
	var f pubFlags
	c := &cobra.Command{
		Use:   "pub {EXCHANGE KEY | --queue QUEUE} [BODY]",
		Short: "Publish a message and wait for the broker's confirm",
		Long: `Pub publishes one message, or --count of them, over the FireMQ protocol. When it returns, the
broker has confirmed all of them: persistent messages in durable queues are on disk.

Without BODY and --file the body comes from standard input.`,
		Example: `  firemq pub events order.created '{"id": 1}' --content-type application/json
  firemq pub --queue jobs "one task"
  firemq pub --queue jobs --count 10000 "load"
  cat payload.json | firemq pub --queue jobs
  firemq pub --queue jobs --file payload.bin -H trace=abc`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := fromEnv(t, c.Flags()); err != nil {
				return err
			}
			m, err := f.message(args, c)
			if err != nil {
				return err
			}
			if m.Body == nil {
				if m.Body, err = f.readBody(t); err != nil {
					return err
				}
			}
			ctx, stop := interruptible(c.Context())
			defer stop()
			return f.publish(ctx, t, m)
		},
	}
	flags := c.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.queue, "queue", "q", "", "publish straight to this `queue`")
	flags.IntVarP(&f.count, "count", "n", 1, "publish it so many times, pipelined")
	flags.StringVarP(&f.file, "file", "f", "", "take the body from this `file`")
	flags.StringArrayVarP(&f.headers, "header", "H", nil, "an application header, `key=value`; again for more")
	flags.StringVar(&f.contentType, "content-type", "", "content type, such as application/json")
	flags.BoolVar(&f.persistent, "persistent", true, "write to disk: the message survives a restart in a durable queue")
	flags.BoolVar(&f.mandatory, "mandatory", false, "fail if no queue receives the message; always so with --queue")
	f.clientFlags.add(flags)
	return c
}

// message is what the command line says; its Body is nil if that comes from elsewhere.
func (f *pubFlags) message(args []string, c *cobra.Command) (m fire.Message, err error) {
	m.Mandatory = f.mandatory
	m.Transient = !f.persistent
	m.Properties.ContentType = f.contentType
	switch {
	case c.Flags().Changed("queue"):
		if f.queue == "" {
			return m, usagef("--queue is empty: name the queue")
		}
		m.Key, m.Mandatory = f.queue, true
	case len(args) < 2:
		return m, usagef("say where to publish: EXCHANGE KEY, or --queue QUEUE: see %s --help", c.CommandPath())
	default:
		m.Exchange, m.Key = args[0], args[1]
		args = args[2:]
	}
	switch {
	case len(args) > 1:
		return m, usagef("more than one body: put it in quotes: see %s --help", c.CommandPath())
	case len(args) == 1 && f.file != "":
		return m, usagef("a body and --file: give one of them")
	case len(args) == 1:
		m.Body = []byte(args[0])
	}
	if f.count < 1 {
		return m, usagef("--count %d is less than 1", f.count)
	}
	for _, h := range f.headers {
		key, value, ok := strings.Cut(h, "=")
		if !ok || key == "" {
			return m, usagef("header %q is not key=value", h)
		}
		if m.Headers == nil {
			m.Headers = make(map[string]any, len(f.headers))
		}
		m.Headers[key] = value
	}
	return m, nil
}

// readBody takes the body from the file, else from standard input.
func (f *pubFlags) readBody(t terminal) ([]byte, error) {
	from := t.in
	if f.file != "" {
		file, err := os.Open(f.file)
		if err != nil {
			return nil, fmt.Errorf("read the body: %w", err)
		}
		defer file.Close()
		from = file
	} else if isTerminal(t.in) {
		fmt.Fprintln(t.err, "the body comes from standard input: end it with Ctrl-D")
	}
	body, err := io.ReadAll(io.LimitReader(from, maxBody+1))
	if err != nil {
		return nil, fmt.Errorf("read the body: %w", err)
	}
	if len(body) > maxBody {
		return nil, fmt.Errorf("the body is larger than %d bytes, the most that a message over the FireMQ protocol holds", maxBody)
	}
	return body, nil
}

func (f *pubFlags) publish(ctx context.Context, t terminal, m fire.Message) error {
	c, err := f.connect(ctx, func(paused bool) {
		if paused {
			fmt.Fprintln(t.err, "the broker is low on memory or disk: what is published waits until it has room")
		}
	})
	if err != nil {
		return err
	}
	defer c.Close()
	begin := time.Now()
	p := c.NewPublisher(fire.PublisherOptions{})
	for range f.count {
		if err := p.Publish(ctx, m); err != nil {
			return explain(err, f.queue)
		}
	}
	if err := p.Flush(ctx); err != nil {
		return explain(err, f.queue)
	}
	took := time.Since(begin)
	text := count(f.count, "message") + " confirmed"
	if f.count > 1 {
		text += fmt.Sprintf(" in %.3f s, %s/s", took.Seconds(), thousands(float64(f.count)/took.Seconds(), 0))
	}
	_, err = fmt.Fprintln(t.out, text)
	return err
}
