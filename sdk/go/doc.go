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
// A Client whose connection is lost connects again (see Reconnect), and then
//
//   - declares again the exchanges, queues and bindings that it declared and did not delete. A queue that was
//     declared with an empty name gets a new one from the broker. Its bindings and subscriptions move with
//     it, and its first name goes on to mean it in all calls but those that publish;
//   - resumes every subscription: Next and Handle go on. What was delivered before and is not acknowledged
//     is delivered again, and acknowledging the old copy does nothing;
//   - sends requests and messages again that wait for their answer or confirm, in their order. So a message
//     may come twice.
//
// Calls made meanwhile wait, for 30 s by default, and then fail with ErrClosed.
package fire
