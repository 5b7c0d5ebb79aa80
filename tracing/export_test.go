package tracing

import "time"

// Hurry gives o other times than the constants: until a batch is sent that is not full, before it is tried again, and
// until it is given up.
func (o Options) Hurry(linger, backoff, patience time.Duration) Options {
	o.linger, o.backoff, o.patience = linger, backoff, patience
	return o
}

const QueueBytes = queueBytes
