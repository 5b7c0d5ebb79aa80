package tracing

import "time"

// Hurry gives o other times than the constants: until a batch is sent that is not full, before it is tried again, and
// until it is given up.
func (o Options) Hurry(linger, backoff, patience time.Duration) Options {
	o.linger, o.backoff, o.patience = linger, backoff, patience
	return o
}

// Batch gives another size of batches than the constant, and no other reason to send one.
func (o Options) Batch(spans int) Options {
	o.linger, o.batch = time.Hour, spans
	return o
}

const QueueSpans = queueSpans
