package bench

import (
	"context"
	"time"

	"github.com/firemq/firemq/frames/amqp"
)

// Ping logs a client in and out again: the broker at the URL is ready.
func Ping(ctx context.Context, url string, patience time.Duration) error {
	w, err := dial(ctx, url, patience)
	if err != nil {
		return err
	}
	w.close()
	return nil
}

// Depth is how many messages are ready in a queue: what a passive queue.declare answers. The URL is
// that of an AMQP 0-9-1 broker.
func Depth(ctx context.Context, url, queue string, patience time.Duration) (uint64, error) {
	w, err := dial(ctx, url, patience)
	if err != nil {
		return 0, err
	}
	defer w.close()
	a, ok := w.(*amqpWire)
	if !ok {
		return 0, usagef("the depth of a queue is asked for over AMQP")
	}
	var answer amqp.QueueDeclareOk
	err = a.request(&amqp.QueueDeclare{Queue: []byte(queue), Passive: true}, amqp.IDQueueDeclareOk, &answer)
	return uint64(answer.MessageCount), err
}

// dial logs in at a URL.
func dial(ctx context.Context, url string, patience time.Duration) (wire, error) {
	o, proto, err := Options{URL: url, Patience: patience}.withDefaults()
	if err != nil {
		return nil, err
	}
	to, err := targetOf(o, o.URL, proto)
	if err != nil {
		return nil, err
	}
	return proto.dial(ctx, to)
}

// RSS is the resident memory of a process and all its descendants, in bytes. Linux only.
func RSS(pid int) (int64, error) {
	u, err := usageOf(pid)
	return u.rss, err
}
