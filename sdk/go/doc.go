// Package fire is FireMQ's client for Go. It speaks the FireMQ protocol.
//
//	c, err := fire.Dial(ctx, "fire://localhost")
//	if err != nil { ... }
//	defer c.Close()
//	if _, err := c.DeclareQueue(ctx, "jobs", fire.QueueOptions{}); err != nil { ... }
//	if err := c.Publish(ctx, fire.Message{Key: "jobs", Body: []byte("hello")}); err != nil { ... }
//
// The defaults favour safety: queues and exchanges are durable, messages are persistent, and Publish
// returns when the broker has confirmed the message, which for a persistent message in a durable queue
// means that it is on disk. A Publisher keeps many publishes in flight for throughput.
//
// A Client is one connection. All its methods, and those of its publishers and subscriptions, are safe
// for any goroutine. Inside, one goroutine reads and one writes; what several goroutines send at the
// same time leaves in one system call, and nothing is allocated for a message on its way.
//
// A Client does not reconnect: when its connection is lost, everything that waits fails with an error
// that is ErrClosed, and Done is closed.
package fire
