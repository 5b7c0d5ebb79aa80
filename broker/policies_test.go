package broker

import (
	"fmt"
	"testing"

	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
)

func policyOf(t testing.TB, name, pattern, applyTo string, priority int64, operator bool, def table.Table) PolicyDef {
	t.Helper()
	p, err := policy.Make(name, pattern, def, priority, applyTo, operator)
	if err != nil {
		t.Fatal(err)
	}
	return PolicyDef{VHost: "/", Operator: operator, Policy: p}
}

func number(key string, n int64) table.Field { return table.Field{Name: key, Value: table.IntValue(n)} }
func word(key, s string) table.Field         { return table.Field{Name: key, Value: table.StringValue(s)} }

// A policy takes effect on what exists, in full: a long queue shrinks to its limit, the rest is
// dead-lettered oldest first. Taking it away gives the queue its own settings back.
func TestPolicyShrinksAQueueAtOnce(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "long"})
	c.declare(QueueDeclare{Name: "dead"})
	c.declare(QueueDeclare{Name: "other"})
	const n = 5000
	for i := range n {
		c.publish("", "long", fmt.Sprint(i))
		c.publish("", "other", "x")
	}
	c.end()
	c.ok(b.PutPolicy(policyOf(t, "p", "^long$", "queues", 0, false, table.Table{
		number("max-length", 10), word("dead-letter-exchange", ""), word("dead-letter-routing-key", "dead")})))
	until(t, "the shrinking", func() bool {
		s, e := c.DeclareQueue(&QueueDeclare{Name: "long", Passive: true})
		c.ok(e)
		d, e := c.DeclareQueue(&QueueDeclare{Name: "dead", Passive: true})
		c.ok(e)
		return s.Messages == 10 && d.Messages == n-10
	})
	if body, _ := c.get("dead"); body != "0" {
		t.Errorf("the first dead letter is %q", body)
	}
	if body, _ := c.get("long"); body != fmt.Sprint(n-10) {
		t.Errorf("the queue's head is %q", body)
	}
	s, e := c.DeclareQueue(&QueueDeclare{Name: "other", Passive: true})
	if c.ok(e); s.Messages != n {
		t.Errorf("a queue that does not match has %d messages", s.Messages)
	}
	c.ok(b.DeletePolicy("/", "p", false))
	for range 20 {
		c.publish("", "long", "y")
	}
	c.end()
	if s, _ := c.DeclareQueue(&QueueDeclare{Name: "long", Passive: true}); s.Messages != 29 {
		t.Errorf("without the policy the queue has %d messages, want 29", s.Messages)
	}
	c.refused(b.DeletePolicy("/", "p", false), NotFound, "no policy 'p' in vhost '/'")
}

// A new queue has the policy from the start, the operator's limit is merged in, the highest priority
// counts, and the argument of the queue holds against a wider policy.
func TestPoliciesMergeForNewQueues(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.ok(b.PutPolicy(policyOf(t, "low", "^q", "queues", 1, false, table.Table{number("max-length", 1)})))
	c.ok(b.PutPolicy(policyOf(t, "high", "^q", "queues", 2, false, table.Table{number("max-length", 4), word("overflow", "reject-publish")})))
	c.declare(QueueDeclare{Name: "q"})
	c.declare(QueueDeclare{Name: "q-own", Args: table.Table{number("x-max-length", 2)}})
	c.ok(c.ch.Confirms())
	fill := func(queue string) (acked int) {
		t.Helper()
		c.sink.events = nil
		for range 6 {
			c.publish("", queue, "x")
			c.end()
		}
		for _, e := range c.sink.events {
			if e[:3] == "ack" {
				acked++
			}
		}
		return acked
	}
	if n := fill("q"); n != 4 {
		t.Errorf("%d acked under the policy, want 4", n)
	}
	if n := fill("q-own"); n != 2 {
		t.Errorf("%d acked under the argument, want 2", n)
	}
	c.ok(b.PutPolicy(policyOf(t, "op", "", "queues", 0, true, table.Table{number("max-length", 5), word("overflow", "drop-head")})))
	if n := fill("q"); n != 6 {
		t.Errorf("%d acked with the operator's overflow, want 6", n)
	}
	if s, _ := c.DeclareQueue(&QueueDeclare{Name: "q", Passive: true}); s.Messages != 4 {
		t.Errorf("%d messages, want the smaller limit, 4", s.Messages)
	}
}

func TestPolicyGivesExchangesAnAlternate(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "stray"})
	c.declare(QueueDeclare{Name: "own"})
	c.ok(c.BindQueue("stray", "amq.fanout", "", nil))
	c.ok(c.DeclareExchange(&ExchangeDeclare{Name: "ownalt", Type: "fanout"}))
	c.ok(c.BindQueue("own", "ownalt", "", nil))
	c.ok(c.DeclareExchange(&ExchangeDeclare{Name: "x1", Type: "direct"}))
	p := policyOf(t, "ae", "^x", "exchanges", 0, false, table.Table{word("alternate-exchange", "amq.fanout")})
	c.publish("x1", "k", "before")
	c.ok(b.PutPolicy(p))
	c.ok(c.DeclareExchange(&ExchangeDeclare{Name: "x2", Type: "direct", Args: table.Table{word("alternate-exchange", "ownalt")}}))
	c.publish("x1", "k", "1")
	c.publish("x2", "k", "2")
	c.end()
	c.ok(b.DeletePolicy("/", "ae", false))
	c.publish("x1", "k", "after")
	c.end()
	bodies, _ := c.drain("stray")
	eq(t, "by the policy", bodies, []string{"1"})
	bodies, _ = c.drain("own")
	eq(t, "the argument wins", bodies, []string{"2"})
}

// Expiry timers and leases start when the policy comes, and a lease ends when it goes.
func TestPolicyStartsTimers(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	for _, name := range []string{"ttl", "lease"} {
		c.declare(QueueDeclare{Name: name})
	}
	c.ok(b.PutPolicy(policyOf(t, "t", "^ttl$", "queues", 0, false, table.Table{number("message-ttl", 5)})))
	c.publish("", "ttl", "x")
	c.end()
	until(t, "the expiry", func() bool { return b.Totals().Ready == 0 })
	c.ok(b.PutPolicy(policyOf(t, "e", "^lease$", "queues", 0, false, table.Table{number("expires", 3600000)})))
	c.ok(b.DeletePolicy("/", "e", false))
	c.ok(b.PutPolicy(policyOf(t, "e", "^lease$", "queues", 0, false, table.Table{number("expires", 1)})))
	until(t, "the end of the lease", func() bool { return b.Totals().Queues == 1 })
}

// Policies, vhosts and limits survive by the journal alone, and by the snapshot.
func TestPoliciesAndVHostsSurvive(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := diskBroker(t, fs, Snapshot{})
	c := connect(t, b)
	start := b.Snapshot() // before anything below
	c.declare(QueueDeclare{Name: "q", Durable: true})
	c.ok(b.PutPolicy(policyOf(t, "p", "", "queues", 3, false, table.Table{number("max-length", 2)})))
	c.ok(b.PutPolicy(policyOf(t, "gone", "", "all", 9, false, table.Table{number("max-length", 1)})))
	c.ok(b.PutPolicy(policyOf(t, "op", "", "queues", 0, true, table.Table{number("message-ttl", 3600000)})))
	c.ok(b.DeletePolicy("/", "gone", false))
	for _, v := range []string{"kept", "dropped"} {
		if !b.AddVHost(v) || b.AddVHost(v) {
			t.Fatal("AddVHost tells it wrong")
		}
	}
	c.ok(b.SetVHostLimit("kept", MaxQueues, 7))
	c.ok(b.DeleteVHost("dropped"))
	c.refused(b.DeleteVHost("dropped"), NotFound, "vhost dropped not found")
	whole := b.Snapshot()
	c.Close()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]Snapshot{"journal": start, "snapshot": whole} {
		b, _ := diskBroker(t, fs, s)
		got := map[string]bool{}
		for _, p := range b.Policies() {
			got[fmt.Sprint(p.Name, p.Operator, p.Priority, p.Definition[0].Name)] = true
		}
		if len(got) != 2 || !got["pfalse 3max-length"] || !got["optrue 0message-ttl"] {
			t.Errorf("%s: policies %v", name, got)
		}
		if n := len(b.VHosts()); n != 2 || b.VHostLimits("kept")[MaxQueues] != 7 {
			t.Errorf("%s: %d vhosts, limits %v", name, n, b.VHostLimits("kept"))
		}
		c := connect(t, b)
		for range 5 {
			c.publish("", "q", "x")
		}
		c.end()
		if s, e := c.DeclareQueue(&QueueDeclare{Name: "q", Passive: true}); e != nil || s.Messages != 2 {
			t.Errorf("%s: the policy is not applied: %+v %v", name, s, e)
		}
		c.Close()
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
