package mgmt

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/mgmt/api"
)

// queues are those of the request's scope.
func (r *request) queues() []*broker.Queue {
	var all []*broker.Queue
	for _, v := range r.scope() {
		all = append(all, r.s.opt.Broker.Queues(v)...)
	}
	return all
}

func queueNameOf(q **broker.Queue) string { return (*q).Name() }

func listQueues(r *request) error {
	if r.query("disable_stats") == "true" {
		totals := r.query("enable_queue_totals") == "true"
		return list(r, r.queues(), queueNameOf, func(q **broker.Queue, _ parts) api.QueueBasics { return r.queueBasics(*q, totals) })
	}
	v, err := r.rates()
	if err != nil {
		return err
	}
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	return list(r, r.queues(), queueNameOf, func(q **broker.Queue, need parts) api.Queue { return r.queue(v, *q, need) })
}

func (r *request) queueBasics(q *broker.Queue, totals bool) api.QueueBasics {
	v := q.View()
	b := api.QueueBasics{
		Name: v.Name, VHost: v.VHost, Type: v.Type.String(), Durable: v.Durable, AutoDelete: v.AutoDelete,
		Exclusive: v.Exclusive, Arguments: argumentMap(v.Args), Node: r.s.opt.Node, State: "running",
		Policy: policyName(v.User), OperatorPolicy: policyName(v.Operator), Definition: argumentMap(v.Definition),
	}
	if totals {
		n := v.Ready + v.Unacked
		b.Messages, b.Ready, b.Unacknowledged = &n, &v.Ready, &v.Unacked
	}
	return b
}

// policyName is null for none.
func policyName(p *policy.Policy) *string {
	if p == nil {
		return nil
	}
	return &p.Name
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	some := s // s itself would be on the heap even if it is empty
	return &some
}

// queueOverhead is about the memory of a queue without messages, in bytes.
const queueOverhead = 1 << 10

// entryOverhead is about what a ready message costs beside its body.
const entryOverhead = 128

// queueMemory is about what a queue and its messages take.
func queueMemory(c *broker.QueueCounts) int64 {
	return queueOverhead + int64(c.Ready+c.Unacked)*entryOverhead + c.ReadyBytes + c.UnackedBytes
}

func (r *request) queue(w *view, q *broker.Queue, need parts) api.Queue {
	var v broker.QueueView
	if need&partSettings != 0 {
		v = q.View()
	} else {
		v.QueueCounts = q.Counts()
	}
	n := v.Ready + v.Unacked
	bytes := v.ReadyBytes + v.UnackedBytes
	capacity := 0.0
	if v.Consumers > 0 && v.Ready == 0 {
		capacity = 1
	}
	shown := api.Queue{
		Name: q.Name(), VHost: q.VHost(), Node: r.s.opt.Node, State: "running",
		Lengths:   api.Lengths{Messages: n, Ready: v.Ready, Unacknowledged: v.Unacked},
		Consumers: v.Consumers, ConsumerCapacity: capacity, ConsumerUtilisation: capacity,
		Memory:      queueMemory(&v.QueueCounts),
		MessagesRAM: n, MessagesReadyRAM: v.Ready, MessagesUnackedRAM: v.Unacked, MessagesPersistent: v.Persistent, MessagesDelayed: v.Delayed,
		MessageBytes: bytes, MessageBytesReady: v.ReadyBytes, MessageBytesUnacked: v.UnackedBytes,
		MessageBytesRAM: bytes, MessageBytesPersistent: v.PersistentBytes, MessageBytesDelayed: v.DelayedBytes,
		StorageVersion: 1, Deduplicated: v.Stats.Duplicate, DeduplicationKeys: v.Keys,
	}
	if need&partSettings != 0 {
		shown.Type, shown.Durable, shown.AutoDelete, shown.Exclusive = v.Type.String(), v.Durable, v.AutoDelete, v.Exclusive
		shown.Arguments, shown.EffectivePolicyDefinition = argumentMap(v.Args), argumentMap(v.Definition)
		shown.Policy, shown.OperatorPolicy = policyName(v.User), policyName(v.Operator)
		shown.ExclusiveConsumerTag, shown.SingleActiveTag = optional(v.ExclusiveTag), optional(v.ActiveTag)
	}
	if need&partHead != 0 {
		head := q.Head()
		if head.HasTimestamp {
			n := int64(head.Timestamp)
			shown.HeadMessageTimestamp = &n
		}
		if head.Oldest != 0 {
			n := max(time.Now().UnixMilli()-head.Oldest, 0)
			shown.OldestMessageAge = &n
		}
	}
	if need&partRates != 0 {
		s := w.s.queues[q]
		shown.Lengths = w.lengthsOf(s, lengths{v.Ready, v.Unacked})
		shown.MessageStats = w.stats(s, lengthFields, &v.Stats, true)
	}
	return shown
}

// queueOf finds the queue of the path.
func (r *request) queueOf() (*broker.Queue, error) {
	q, ok := r.s.opt.Broker.Queue(r.vars["vhost"], r.vars["queue"])
	if !ok {
		return nil, missing
	}
	return q, nil
}

func getQueue(r *request) error {
	q, err := r.queueOf()
	if err != nil {
		return err
	}
	w, err := r.rates()
	if err != nil {
		return err
	}
	w.s.mu.RLock()
	defer w.s.mu.RUnlock()
	d := api.QueueDetail{
		Queue: r.queue(w, q, allParts), ConsumerDetails: r.consumers(q.Consumers()), Incoming: []any{}, Deliveries: []any{},
	}
	if o := q.View().Owner; o != nil {
		p := peerOf(o)
		d.Owner = &p
	}
	if d.Type == "quorum" {
		d.Leader, d.Members, d.Online = d.Node, []string{d.Node}, []string{d.Node}
	}
	return r.ok(d)
}

func putQueue(r *request) error {
	b, err := r.body()
	if err != nil {
		return err
	}
	d := broker.QueueDeclare{Name: r.vars["queue"]}
	if d.Durable, err = b.boolean("durable", false); err != nil {
		return err
	}
	if d.AutoDelete, err = b.boolean("auto_delete", false); err != nil {
		return err
	}
	if d.Args, err = b.arguments("arguments"); err != nil {
		return err
	}
	if node, _ := b.text("node"); node != "" && node != r.s.opt.Node {
		return badRequestf("Node %s could not be contacted", node)
	}
	if err := shortName("queue", d.Name); err != nil {
		return err
	}
	if d.Name == "" {
		return missing
	}
	_, existed := r.s.opt.Broker.Queue(r.vars["vhost"], d.Name)
	return r.act(func(c *broker.Conn) error {
		if _, e := c.DeclareQueue(&d); e != nil {
			return refusal(e)
		}
		return r.done(!existed)
	})
}

// shortName refuses what does not fit into a short string.
func shortName(what, name string) error {
	if len(name) > 255 {
		return badRequest(fmt.Sprintf("%s should be less than 255 bytes, actually was %d\n", what, len(name)))
	}
	return nil
}

func deleteQueue(r *request) error {
	if _, err := r.queueOf(); err != nil {
		return err
	}
	ifUnused, ifEmpty := r.query("if-unused") == "true", r.query("if-empty") == "true"
	return r.act(func(c *broker.Conn) error {
		if _, e := c.DeleteQueue(r.vars["queue"], ifUnused, ifEmpty); e != nil {
			return refusal(e)
		}
		return r.done(false)
	})
}

func purgeQueue(r *request) error {
	if _, err := r.queueOf(); err != nil {
		return err
	}
	return r.act(func(c *broker.Conn) error {
		if _, e := c.PurgeQueue(r.vars["queue"]); e != nil {
			return refusal(e)
		}
		return r.done(false)
	})
}

// queueActions were those of mirrored queues: there is none any more, as in RabbitMQ 4.
func queueActions(r *request) error {
	if _, err := r.queueOf(); err != nil {
		return err
	}
	b, err := r.body()
	if err != nil {
		return err
	}
	if err := b.need("action"); err != nil {
		return err
	}
	action, err := b.text("action")
	if err != nil {
		return err
	}
	return badRequest([]string{"unknown", action})
}

func listConsumers(r *request) error {
	var all []broker.ConsumerView
	for _, v := range r.visible() {
		for _, q := range r.s.opt.Broker.Queues(v) {
			all = append(all, q.Consumers()...)
		}
	}
	if !r.seesAll() {
		all = slices.DeleteFunc(all, func(c broker.ConsumerView) bool { return c.User != r.user.Name })
	}
	return plain(r, r.consumers(all))
}

func (r *request) consumers(views []broker.ConsumerView) []api.Consumer {
	list := make([]api.Consumer, len(views))
	for i := range views {
		v := &views[i]
		status := "up"
		switch {
		case v.Single && v.Active:
			status = "single_active"
		case v.Single:
			status = "waiting"
		}
		host, port := v.Connection.RemoteHost()
		list[i] = api.Consumer{
			ConsumerTag: v.Tag, Queue: api.QueueName{Name: v.Queue, VHost: v.VHost}, AckRequired: !v.NoAck,
			Exclusive: v.Exclusive, PrefetchCount: v.Prefetch, Active: v.Active, ActivityStatus: status,
			Arguments: argumentMap(v.Args), ConsumerTimeout: v.Timeout,
			ChannelDetails: api.ChannelName{
				Name: channelName(v.Connection, v.Channel), Number: v.Channel, Node: r.s.opt.Node, User: v.User,
				ConnectionName: v.Connection.Name, PeerHost: host, PeerPort: port,
			},
		}
	}
	return list
}

func channelName(c *broker.ConnInfo, number uint16) string {
	return c.Name + " (" + strconv.Itoa(int(number)) + ")"
}

func peerOf(c *broker.ConnInfo) api.Peer {
	host, port := c.RemoteHost()
	return api.Peer{Name: c.Name, PeerHost: host, PeerPort: port}
}

// exchangeSegment is an exchange's name as paths spell it.
func exchangeSegment(name string) string {
	if name == "amq.default" {
		return ""
	}
	return name
}
