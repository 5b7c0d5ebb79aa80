package broker

import (
	"strings"

	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/broker/queue"
)

// Direct reply-to: a client consumes from the pseudo-queue ReplyTo and publishes requests with that
// reply-to, in whose place the session writes the channel's token (see Channel.ReplyTo). The token is
// a queue name that the routing table knows and nobody else: what is published to it through the
// default exchange, on any connection of the vhost, reaches the requester.
//
// Behind a token is a queue in memory with the requester as its only, no-ack, consumer. So replies
// leave at once; while the requester's outbox is full they wait, up to replyLength and replyBytes.
// Beyond that a responder's publish is refused, as by any full queue.
const (
	// ReplyTo is the pseudo-queue's name.
	ReplyTo = "amq.rabbitmq.reply-to"
	// replyPrefix begins every token.
	replyPrefix = ReplyTo + "."

	replyLength = 1 << 16
	replyBytes  = 16 << 20
)

// ReplyTo is what a request's reply-to becomes when it names the pseudo-queue: the token of this
// channel's reply consumer, "" without one. The session then publishes with Fault NoReplyConsumer.
// By the connection's reader.
func (ch *Channel) ReplyTo() string {
	if ch.replies == nil {
		return ""
	}
	return ch.replies.q.name
}

// NoReplyConsumer is the Fault of a request whose channel consumes no replies.
const NoReplyConsumer = "fast reply consumer does not exist"

// consumeReplies is Consume from the pseudo-queue. No permission is needed.
func (ch *Channel) consumeReplies(a *ConsumeArgs) (*Consumer, *Error) {
	switch {
	case !a.NoAck:
		return nil, refuse(PreconditionFailed, "reply consumer cannot acknowledge")
	case ch.replies != nil:
		return nil, refuse(PreconditionFailed, "reply consumer already set")
	}
	conn := ch.conn
	if e := conn.claim(queueMemory+consumerMemory+int64(a.Args.Memory()), true); e != nil {
		return nil, e
	}
	cfg := queue.Plain
	cfg.MaxLength, cfg.MaxBytes, cfg.Overflow = replyLength, replyBytes, queue.RejectPublish
	q := &Queue{
		b: conn.b, vhost: conn.vhost.name, name: unique(replyPrefix),
		members: make(map[*Consumer]struct{}, 1), replies: true,
	}
	q.sm.Init(cfg)
	q.settings.Store(&effective{Settings: policy.Settings{Type: policy.Classic, Config: cfg}})
	c := ch.newConsumer(a, q)
	q.members[c] = struct{}{}
	q.sm.AddConsumer(&c.Consumer)
	if a.Credited && a.Credit > 0 {
		q.sm.Grant(&c.Consumer, a.Credit)
	}
	ch.replies = c
	conn.remember(c)
	conn.b.routes.AddQueue(q.vhost, q.name, q)
	return c, nil
}

// endReplies ends a token for good. What still waits for the requester is dropped: the next publish
// to the token is unroutable.
func (c *Consumer) endReplies(t *turn) {
	q := c.q
	q.b.routes.RemoveQueue(q.vhost, q.name)
	if c.ch.replies == c {
		c.ch.replies = nil
	}
	q.mu.Lock()
	if q.deleted {
		q.mu.Unlock()
		return
	}
	q.deleted = true
	clear(q.members)
	left := q.sm.Close()
	q.mu.Unlock()
	q.b.upkeep.sweep(t, q, left)
}

// declareReplies answers a queue.declare of a name that begins with the pseudo-queue's, whatever its flags: only that
// one and the tokens in use exist. ours is false for every other name.
func (c *Conn) declareReplies(name string) (s QueueStatus, ours bool, e *Error) {
	if !strings.HasPrefix(name, ReplyTo) {
		return s, false, nil
	}
	if name != ReplyTo && !(strings.HasPrefix(name, replyPrefix) && c.b.replies(c.vhost.name, name)) {
		return s, true, refuse(NotFound, "no %s", queueName(name, c.vhost.name))
	}
	return QueueStatus{Name: name, Consumers: 1}, true, nil
}

// replies says whether a token's requester is still there.
func (b *Broker) replies(vhost, token string) bool {
	queues, _ := b.routes.Route(nil, vhost, "", []byte(token), nil)
	return len(queues) > 0
}
