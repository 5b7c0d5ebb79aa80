package oracle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestRandom plays scripts that are made up from a seed. Where the brokers differ, it prints the
// shortest script it finds that still makes them; -seed plays one seed again, and the printed script
// can be put among the written cases as it is.
func TestRandom(t *testing.T) {
	b := both(t)
	var seeds []uint64
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	} else {
		for i := range *seedsFlag {
			seeds = append(seeds, *firstFlag+uint64(i))
		}
	}
	work := make(chan uint64)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var unstable, late []uint64 // guarded by mu
	for w := range workers {
		wg.Go(func() {
			for seed := range work {
				sc := generate(seed)
				r, err := run(sc, b.rabbit, b.fire, vhost(w), vhost(w), grace)
				if err != nil {
					t.Errorf("seed %d: %v\n%s", seed, err, sc)
					continue
				}
				if *verboseFlag {
					t.Logf("seed %d\n%s", seed, strings.Join(r.rabbit, "\n"))
				}
				if r.same() {
					continue
				}
				if isLate(b, sc, w) {
					mu.Lock()
					late = append(late, seed)
					mu.Unlock()
					t.Logf("seed %d differed once, a message expired late (-RabbitMQ +FireMQ)\n%s", seed, strings.Join(r.diff(), "\n"))
					continue
				}
				if races(b, sc, w) {
					mu.Lock()
					unstable = append(unstable, seed)
					mu.Unlock()
					continue
				}
				if again, err := run(sc, b.rabbit, b.fire, vhost(w), vhost(w), grace); err == nil && !again.same() {
					sc, r = shrink(b, sc, r, w)
				}
				t.Errorf("the brokers differ; replay: go test ./test/oracle -run TestRandom -seed %d\n%s\n(-RabbitMQ +FireMQ)\n%s",
					seed, sc, strings.Join(r.diff(), "\n"))
			}
		})
	}
	for i, seed := range seeds {
		if i > 0 && i%500 == 0 {
			t.Logf("%d seeds", i)
		}
		work <- seed
	}
	close(work)
	wg.Wait()
	// RabbitMQ has races of its own; a generator that runs into them all the time compares nothing.
	if len(unstable) > 0 {
		t.Logf("RabbitMQ itself answers these differently from run to run: %v", unstable)
	}
	if len(late) > 1+len(seeds)/500 {
		t.Errorf("in %d of %d seeds a message expired late: %v", len(late), len(seeds), late)
	}
	if len(unstable) > 1+len(seeds)/20 {
		t.Errorf("%d of %d seeds depend on timing", len(unstable), len(seeds))
	}
}

// patience is how often, and how many times as long, a script is played again in which messages expire by the clock:
// a timer comes late on a machine whose processors are taken.
const patience = 4

// isLate reports whether a script that waits for messages to expire brings no difference when it waits longer.
func isLate(b *brokers, sc *script, w int) bool {
	patient := &script{name: sc.name, random: true, steps: slices.Clone(sc.steps)}
	waits := false
	for i := range patient.steps {
		if s := &patient.steps[i]; s.op == "quiet" {
			d, _ := time.ParseDuration(s.arg)
			s.arg = (patience * d).String()
			waits = true
		}
	}
	if !waits {
		return false
	}
	for range patience {
		if r, err := run(patient, b.rabbit, b.fire, vhost(w), vhost(w), grace); err != nil || !r.same() {
			return false
		}
	}
	return true
}

// selfRuns is how often RabbitMQ is compared with itself. One of its races that shows less often than that
// is reported as a difference, for somebody to look at.
const selfRuns = 20

// races reports whether RabbitMQ answers a script differently from run to run.
func races(b *brokers, sc *script, w int) bool {
	for range selfRuns {
		if self, err := run(sc, b.rabbit, b.rabbit, vhost(w), vhost(w+workers), shortGrace); err == nil && !self.same() {
			return true
		}
	}
	return false
}

const shrinkLimit = time.Minute

// shrink deletes steps as long as the brokers still differ.
func shrink(b *brokers, sc *script, r *result, w int) (*script, *result) {
	deadline := time.Now().Add(shrinkLimit)
	for size := max(len(sc.steps)/2, 1); size > 0; size /= 2 {
		for at := len(sc.steps) - size; at >= 0; at -= size {
			if time.Now().After(deadline) {
				return sc, r
			}
			less := &script{name: sc.name, random: true, steps: slices.Delete(slices.Clone(sc.steps), at, at+size)}
			less.fenceBursts()
			got, err := run(less, b.rabbit, b.fire, vhost(w), vhost(w), shortGrace)
			if err == nil && !got.same() {
				sc, r = less, got
			}
		}
	}
	return sc, r
}

// fenceBursts gives a burst whose last step was deleted its fence back: without it, the next channel's step is a race.
func (s *script) fenceBursts() {
	for i := range s.steps {
		st := &s.steps[i]
		if st.op != "send" || st.fence {
			continue
		}
		if i+1 < len(s.steps) {
			if next := &s.steps[i+1]; next.op == "quiet" || next.conn == st.conn && next.ch == st.ch {
				continue
			}
		}
		st.fence, st.src = true, strings.TrimPrefix(st.src, "+")
	}
}

// generator makes a script up. It keeps to what RabbitMQ answers the same each time, and to what does not differ
// on purpose: a queue has at most three consumers, two on one channel or on channels of their own, with a limit for the channel or
// without acks but not both; a tag is never used again; the active one of several does not leave while others wait; dead letters go from
// a queue to the next one only; no queue is lazy; messages do not expire in a queue with priorities; a policy that
// begins to refuse publishes lowers no limit in the same breath. Of a quorum queue, whose cases in quorum.txt show what
// else differs, one message is out at a time, to a consumer or to somebody who gets, because there what comes back keeps the
// order in which it did; it has delivery limits only where nobody consumes, because a death by one gives a consumer's
// room back twice; it has no limit, as one of bytes, that lets several messages go at once, which there go newest first;
// and nobody's dead letters go to it, which may come before copies that were published with them.
type generator struct {
	*rand.Rand
	lines     []string
	declare   [queues]string // how each queue is declared
	consuming [queues]bool
	second    [queues]bool   // another consumer, on a connection of its own
	third     [queues]bool   // another one, on the channel of the first
	tags      int            // no two consumers have the same
	own, two  [queues]int    // the numbers of their tags
	three     [queues]string // the tag of the third
	policies  [queues]string // the definition of the one for the queue
	overflows [queues]string // and its overflow
	operators [queues]bool   // there is an operator's, too
	exclusive [queues]bool   // it is the first connection's
	quorum    int            // the one that is a quorum queue, -1 for none
	getting   bool           // it has somebody who gets, and no consumer
	bodies    int
	timed     bool // messages expire after a while; then no queue has priorities
	// settles: transactions settle, too. Then they publish nothing persistent: what they give back goes before what
	// waits for the disk, see differences.txt.
	settles bool
}

const (
	queues    = 4
	exchanges = 3
	steps     = 40
)

func generate(seed uint64) *script {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0))}
	g.timed, g.settles = g.chance(2), g.chance(2)
	if g.quorum = -1; g.chance(8) {
		g.quorum, g.getting, g.timed = 0, g.chance(2), false // nobody's dead letters go to the first one
	}
	for i := range queues {
		g.exclusive[i] = g.chance(12) && i != g.quorum
		g.declare[i] = g.queue(i)
		g.add("a 9 %s", g.declare[i])
	}
	for i := range exchanges {
		g.exchange(i)
	}
	for range 4 {
		g.bind()
	}
	if g.chance(2) {
		g.add("b 1 confirm.select")
	}
	if g.chance(2) {
		g.add("b 2 tx.select")
	}
	for range steps {
		g.step()
	}
	for i := range queues {
		if i != g.quorum { // who holds a message is counted as a consumer there
			g.add(`%s queue.declare queue="q%d" passive`, g.looker(i), i)
		}
		g.add(`%s basic.get queue="q%d"`, g.looker(i), i)
	}
	all, err := parseScripts(fmt.Sprintf("== random: seed %d\n%s\n", seed, strings.Join(g.lines, "\n")))
	if err != nil {
		panic("BUG: the generator made no script: " + err.Error())
	}
	all[0].random = true
	return all[0]
}

func (g *generator) add(format string, args ...any) {
	g.lines = append(g.lines, fmt.Sprintf(format, args...))
}

// chance is true once in n times.
func (g *generator) chance(n int) bool { return g.IntN(n) == 0 }

func (g *generator) one(of ...string) string { return of[g.IntN(len(of))] }

// The channels of a queue: of its consumer, of its second one, of who gets from it and of who looks at it. Those
// of an exclusive one are its owner's, except that others try.
func (g *generator) consumerOf(i int) string { return fmt.Sprintf("a %d", i+1) }

func (g *generator) otherOf(i int) string {
	if g.exclusive[i] {
		return fmt.Sprintf("a %d", i+11)
	}
	return fmt.Sprintf("d %d", i+1)
}

func (g *generator) getterOf(i int) string {
	switch {
	case i == g.quorum:
		return "b 5"
	case g.exclusive[i]:
		return "a 8"
	case g.settles:
		return g.one("b 3", "b 2")
	}
	return "b 3"
}

func (g *generator) looker(i int) string {
	if g.exclusive[i] && !g.chance(5) {
		return "a 7"
	}
	return "c 1"
}

func (g *generator) queue(i int) string {
	var args []string
	add := func(format string, a ...any) { args = append(args, fmt.Sprintf(format, a...)) }
	if i == g.quorum {
		return g.quorumQueue(i)
	}
	if g.chance(3) {
		add("x-max-length=I%d", g.IntN(4))
	}
	if g.chance(5) {
		add("x-max-length-bytes=I%d", g.IntN(12))
	}
	if g.chance(2) {
		add("x-overflow=S%q", g.one("drop-head", "reject-publish", "reject-publish-dlx"))
	}
	if !g.timed && g.chance(3) {
		add("x-max-priority=I%d", g.one("0", "1", "3", "10")[0]-'0')
	}
	if g.chance(5) {
		add("x-message-ttl=I%s", g.lifetime())
	}
	if g.chance(8) {
		add("x-single-active-consumer=t1")
	}
	if g.chance(8) {
		add("x-expires=I%d", aLongTime)
	}
	if i+1 < queues && !g.chance(3) {
		add(`x-dead-letter-exchange=S""`)
		add(`x-dead-letter-routing-key=S"q%d"`, i+1)
	} else if g.chance(4) {
		add(`x-dead-letter-exchange=S"missing"`)
	}
	line := fmt.Sprintf(`queue.declare queue="q%d"`, i)
	if g.chance(2) {
		line += " durable"
	}
	if g.chance(8) {
		line += " auto-delete"
	}
	if g.exclusive[i] {
		line += " exclusive"
	}
	if len(args) > 0 {
		line += " arguments={" + strings.Join(args, " ") + "}"
	}
	return line
}

func (g *generator) quorumQueue(i int) string {
	// Without a limit RabbitMQ puts what comes back behind all others.
	args := fmt.Sprintf(`x-queue-type=S"quorum" x-delivery-limit=I%s`, g.deliveries())
	if g.chance(2) {
		args += fmt.Sprintf(" x-max-length=I%d", g.IntN(4))
	}
	if g.chance(5) {
		args += " x-message-ttl=I60000"
	}
	if !g.chance(3) {
		args += fmt.Sprintf(` x-dead-letter-exchange=S"" x-dead-letter-routing-key=S"q%d"`, i+1)
	}
	return fmt.Sprintf(`queue.declare queue="q%d" durable arguments={%s}`, i, args)
}

// single says whether the queue has a single active consumer.
func (g *generator) single(i int) bool {
	return strings.Contains(g.declare[i], "x-single-active-consumer")
}

// redeclare declares a queue while no transaction is under way: one to the default exchange or to a
// deleted queue finds the new queue of that name in RabbitMQ alone.
func (g *generator) redeclare(line string) {
	g.add("b 2 channel.close reply-code=200")
	g.add("a 9 %s", line)
}

// deliveries is a delivery limit of the quorum queue.
func (g *generator) deliveries() string {
	if g.getting {
		return g.one("0", "1", "2", "50")
	}
	return "50"
}

// policy puts a policy on one queue, or takes it away.
func (g *generator) policy(i int) {
	if g.policies[i] != "" && g.chance(2) {
		g.policies[i], g.overflows[i] = "", ""
		g.add(`unpolicy name="p%d"`, i)
		return
	}
	definition := g.limits()
	if i == g.quorum {
		definition = []string{"delivery-limit=I" + g.deliveries()}
	}
	if i+1 < queues && g.chance(2) {
		definition = append(definition, fmt.Sprintf(`dead-letter-exchange=S"" dead-letter-routing-key=S"q%d"`, i+1))
	}
	put := func(definition ...string) {
		g.add(`policy name="p%d" pattern="^q%d$" apply-to="queues" definition={%s}`, i, i, strings.Join(definition, " "))
	}
	overflow := ""
	if i != g.quorum && g.chance(2) {
		overflow = fmt.Sprintf("overflow=S%q", g.one("drop-head", "reject-publish", "reject-publish-dlx"))
		if strings.Contains(overflow, "reject") && overflow != g.overflows[i] {
			put(strings.TrimSpace(g.policies[i] + " " + overflow))
		}
		definition = append(definition, overflow)
	}
	g.policies[i] = strings.Join(slices.DeleteFunc(slices.Clone(definition), func(s string) bool { return s == overflow }), " ")
	g.overflows[i] = overflow
	put(definition...)
}

// limits is what a policy and an operator's may set, one thing at least.
func (g *generator) limits() (all []string) {
	if !g.chance(3) {
		all = append(all, fmt.Sprintf("max-length=I%d", g.IntN(4)))
	}
	if g.chance(3) {
		all = append(all, fmt.Sprintf("message-ttl=I%s", g.lifetime()))
	}
	if g.chance(6) {
		all = append(all, fmt.Sprintf("expires=I%d", aLongTime))
	}
	if len(all) == 0 || g.chance(3) {
		all = append(all, fmt.Sprintf("max-length-bytes=I%d", g.IntN(12)))
	}
	return all
}

// aLongTime is a lease that never ends, ms; the players know it.
const aLongTime = 3600000

// lifetime is a time to live of a queue's messages.
func (g *generator) lifetime() string {
	if g.timed {
		return g.one("0", "60000")
	}
	return "60000"
}

// operator puts an operator policy on one queue, or takes it away.
func (g *generator) operator(i int) {
	if g.operators[i] = !g.operators[i] || g.chance(2); !g.operators[i] {
		g.add(`unpolicy name="o%d" operator=true`, i)
		return
	}
	g.add(`policy name="o%d" pattern="^q%d$" apply-to="queues" operator=true definition={%s}`, i, i, strings.Join(g.limits(), " "))
}

// expire has a queue go that nobody uses.
func (g *generator) expire(i int) {
	g.operators[i] = false
	g.add(`policy name="o%d" pattern="^q%d$" apply-to="queues" operator=true definition={expires=I100}`, i, i)
	g.add("quiet 400ms")
	g.add(`unpolicy name="o%d" operator=true`, i)
	g.renew(i)
}

// renew declares a queue that may be gone.
func (g *generator) renew(i int) {
	// RabbitMQ may take a consumer of the new queue for one of the old.
	g.add("%s channel.close reply-code=200", g.consumerOf(i))
	g.add("%s channel.close reply-code=200", g.otherOf(i))
	g.redeclare(g.declare[i])
	g.consuming[i], g.second[i], g.third[i] = false, false, false
}

func (g *generator) exchange(i int) {
	line := fmt.Sprintf(`a 9 exchange.declare exchange="e%d" type=%q`, i, g.one("direct", "fanout", "topic", "headers"))
	if g.chance(3) {
		line += " durable"
	}
	if g.chance(6) {
		line += " auto-delete"
	}
	if g.chance(4) {
		line += fmt.Sprintf(` arguments={alternate-exchange=S"e%d"}`, g.IntN(exchanges))
	}
	g.add("%s", line)
}

func (g *generator) key() string { return g.one("a", "a.b", "a.b.c", "b", "") }

func (g *generator) binding() string {
	key := g.one(g.key(), "#", "a.*", "*.b", "a.#", "#.c")
	args := ""
	if g.chance(2) {
		args = fmt.Sprintf(" arguments={x-match=S%q h=%s i=I%d}", g.one("all", "any", "all-with-x", "any-with-x"), g.one(`S"x"`, `S"y"`, "V"), g.IntN(2))
	}
	return fmt.Sprintf(`routing-key=%q%s`, key, args)
}

func (g *generator) bind() {
	verb := g.one("bind", "bind", "bind", "unbind")
	if g.chance(4) {
		g.add(`a 9 exchange.%s source="e%d" destination="e%d" %s`, verb, g.IntN(exchanges), g.IntN(exchanges), g.binding())
		return
	}
	g.add(`a 9 queue.%s queue="q%d" exchange="e%d" %s`, verb, g.IntN(queues), g.IntN(exchanges), g.binding())
}

func (g *generator) publish(channel string) {
	g.bodies++
	var where, props []string
	if g.chance(2) {
		where = append(where, fmt.Sprintf(`routing-key="q%d"`, g.IntN(queues)))
	} else {
		where = append(where, fmt.Sprintf(`exchange="e%d" routing-key=%q`, g.IntN(exchanges), g.key()))
	}
	if g.chance(3) {
		where = append(where, "mandatory")
	}
	if g.chance(2) {
		props = append(props, "delivery-mode="+g.mode(channel))
	}
	if g.chance(2) {
		props = append(props, fmt.Sprintf("priority=%d", g.IntN(12)))
	}
	if g.chance(6) {
		props = append(props, fmt.Sprintf("expiration=%q", g.expiration()))
	}
	if g.chance(3) {
		headers := fmt.Sprintf("h=%s i=%s", g.one(`S"x"`, `S"z"`, "V"), g.one("I0", "l1", "b1"))
		if g.chance(4) {
			headers += fmt.Sprintf(` %s=A[S"q%d" S"a"]`, g.one("CC", "BCC"), g.IntN(queues))
		}
		props = append(props, "headers={"+headers+"}")
	}
	if g.chance(10) {
		props = append(props, `message-id="m" type="t" correlation-id="c"`)
	}
	line := fmt.Sprintf(`%s publish %s "m%d" %s`, channel, strings.Join(where, " "), g.bodies, strings.Join(props, " "))
	if strings.Contains(line, `expiration="30"`) {
		g.add("+%s", strings.TrimSpace(line))
		g.add("quiet 80ms")
		return
	}
	g.add("%s", strings.TrimSpace(line))
}

// mode is a delivery mode.
func (g *generator) mode(channel string) string {
	mode := g.one("1", "2")
	if channel == "b 2" && g.settles {
		return "1"
	}
	return mode
}

// burst publishes several messages that the brokers may read at once, to one queue alone: RabbitMQ's queues work side by side.
func (g *generator) burst(channel string, queue int) {
	n := 2 + g.IntN(4)
	for i := range n {
		g.bodies++
		line := fmt.Sprintf(`%s publish routing-key="q%d" "m%d" delivery-mode=%s`, channel, queue, g.bodies, g.mode(channel))
		if g.chance(2) {
			line += fmt.Sprintf(" priority=%d", g.IntN(12))
		}
		if g.timed && g.chance(2) {
			line += ` expiration="0"`
		}
		if i < n-1 {
			line = "+" + line
		}
		g.add("%s", line)
	}
}

// consumer is what a consumer may ask for.
func (g *generator) consumer() string {
	switch g.IntN(10) {
	case 0:
		return " exclusive"
	case 1, 2, 3:
		return fmt.Sprintf(" arguments={x-priority=I%d}", g.IntN(3))
	}
	return ""
}

func (g *generator) expiration() string {
	if g.timed {
		return g.one("0", "30", "60000", "bad")
	}
	return g.one("60000", "bad")
}

func (g *generator) step() {
	i := g.IntN(queues)
	if i == g.quorum {
		g.quorumStep(i)
		return
	}
	own, other, got := g.consumerOf(i), g.otherOf(i), g.getterOf(i)
	any := g.one(own, own, own, other, got, got) // where something may be unacked
	tag := g.one("$0", "$0", "$-1", "$1")
	switch g.IntN(30) {
	case 0, 1, 2, 3, 4, 5, 6, 7:
		g.send(g.one("b 1", "b 1", "b 2", "b 4", own), i)
	case 8, 9, 10:
		if !g.consuming[i] {
			g.consuming[i] = true
			g.tags++
			g.own[i] = g.tags
			g.add(`%s basic.consume queue="q%d" consumer-tag="t%d"%s%s`, own, i, g.tags, [2]string{"", g.one("", " no-ack")}[i%2], g.consumer())
		} else if !g.second[i] {
			g.second[i] = true
			g.tags++
			g.two[i] = g.tags
			g.add(`%s basic.consume queue="q%d" consumer-tag="t%d"%s%s`, other, i, g.tags, [2]string{"", g.one("", " no-ack")}[i%2], g.consumer())
		} else if !g.third[i] && i%2 == 1 && !g.single(i) {
			g.third[i] = true
			g.tags++
			g.three[i] = fmt.Sprintf("%s%d", g.one("a", "z"), g.tags) // before or behind the tags of all others
			g.add(`%s basic.consume queue="q%d" consumer-tag="%s"%s`, own, i, g.three[i], g.one("", " no-ack"))
		} else {
			g.add("%s basic.ack delivery-tag=%s", g.one(own, other), tag)
		}
	case 11, 12:
		g.add(`%s basic.get queue="q%d"%s`, got, i, g.one("", "", " no-ack"))
	case 13, 14, 15:
		g.add("%s basic.ack delivery-tag=%s%s", any, tag, g.one("", "", " multiple"))
	case 16, 17:
		g.add("%s basic.nack delivery-tag=%s%s%s", any, tag, g.one("", " multiple"), g.one("", " requeue"))
	case 18, 19:
		g.add("%s basic.reject delivery-tag=%s%s", any, tag, g.one("", " requeue"))
	case 20:
		g.add("%s basic.qos prefetch-count=%d%s", g.one(own, own, other), g.IntN(4), [2]string{g.one("", " global")}[i%2])
	case 21:
		g.add("%s basic.recover requeue", any)
	case 22:
		if g.third[i] && g.chance(2) {
			g.add(`%s basic.cancel consumer-tag="%s"`, own, g.three[i])
			g.third[i] = false
			return
		}
		if g.second[i] && (g.single(i) || g.chance(2)) {
			g.add(`%s basic.cancel consumer-tag="t%d"`, other, g.two[i])
			g.second[i] = false
			return
		}
		g.add(`%s basic.cancel consumer-tag="t%d"`, own, g.own[i])
		g.consuming[i] = false
	case 23:
		if any == own && g.single(i) {
			return
		}
		g.add("%s channel.close reply-code=200", any)
		switch any {
		case own:
			g.consuming[i], g.third[i] = false, false
		case other:
			g.second[i] = false
		}
	case 24:
		g.add("b 2 tx.%s", g.one("commit", "commit", "rollback", "select"))
	case 25:
		g.bind()
	case 26:
		g.add(`%s queue.declare queue="q%d" passive`, g.looker(i), i)
	case 27:
		switch g.IntN(8) {
		case 4:
			g.add(`a 9 exchange.delete exchange="e%d"%s`, g.IntN(exchanges), g.one("", " if-unused"))
		case 5:
			g.add(`%s basic.recover-async requeue`, any)
		case 6:
			// Not a consumer's connection: RabbitMQ ends its channels one by one, and what one gives back
			// may still go to the next.
			g.add("%s", g.one("b 0 connection.close reply-code=200", "e 2 basic.recover"))
		case 7:
			g.add("%s", g.one(
				`e 1 basic.consume queue="amq.rabbitmq.reply-to" consumer-tag="r" no-ack`,
				fmt.Sprintf(`e 1 publish routing-key="q%d" "ask" reply-to="amq.rabbitmq.reply-to"`, i),
				`c 1 publish routing-key="$reply1" mandatory "answer"`,
			))
		case 0:
			g.add(`%s queue.purge queue="q%d"`, g.looker(i), i)
		case 1:
			g.add(`%s queue.delete queue="q%d"%s`, g.looker(i), i, g.one("", " if-empty", " if-unused"))
			g.renew(i)
		case 2:
			g.redeclare(g.queue(i)) // most likely inequivalent
		case 3:
			g.exchange(g.IntN(exchanges))
		}
	case 28:
		g.govern(i)
	case 29:
		g.add("%s basic.ack delivery-tag=%s", any, g.one("1", "2", "3", "99"))
	}
}

// send publishes, one message to any queue or several to this one.
func (g *generator) send(channel string, i int) {
	if g.chance(6) {
		g.burst(channel, i)
	} else {
		g.publish(channel)
	}
}

// govern changes what an administrator may, or goes on with the transaction.
func (g *generator) govern(i int) {
	switch g.IntN(12) {
	case 0, 1, 2, 3, 4:
		g.policy(i)
	case 5, 6:
		if i != g.quorum {
			g.operator(i)
		}
	case 7:
		if i != g.quorum && g.chance(4) {
			g.expire(i)
		}
	case 8:
		g.add(`limit name="max-queues" value=%s`, g.one("-1", "-1", "0", "2", "4", "9"))
	default:
		g.add("b 2 %s", g.one("tx.select", "tx.commit"))
	}
}

// quorumStep is step for the quorum queue.
func (g *generator) quorumStep(i int) {
	own := g.consumerOf(i)
	if g.getting {
		own = g.getterOf(i)
	}
	switch g.IntN(20) {
	case 0, 1, 2, 3, 4, 5:
		g.send(g.one("b 1", "b 1", "b 2", "b 4"), i)
	case 6, 7, 8, 9:
		switch {
		case g.getting:
			g.add("%s basic.%s", own, g.one("ack delivery-tag=$0", "nack delivery-tag=$0 requeue"))
			g.add(`%s basic.get queue="q%d"%s`, own, i, g.one("", "", "", " no-ack"))
		case !g.consuming[i]:
			g.consuming[i] = true
			g.tags++
			g.own[i] = g.tags
			g.add("%s basic.qos prefetch-count=1", own)
			g.add(`%s basic.consume queue="q%d" consumer-tag="t%d"`, own, i, g.tags)
		default:
			g.add("%s basic.ack delivery-tag=$0", own)
		}
	case 10, 11:
		g.add("%s basic.ack delivery-tag=$0", own)
	case 12, 13, 14:
		g.add("%s basic.nack delivery-tag=$0%s", own, g.one("", " requeue", " requeue"))
	case 15:
		g.add("%s basic.reject delivery-tag=$0%s", own, g.one("", " requeue"))
	case 16:
		g.add("%s basic.recover requeue", own)
	case 17:
		switch {
		case g.chance(3):
			g.add("%s channel.close reply-code=200", own)
			g.consuming[i] = false
		case g.consuming[i]:
			g.add(`%s basic.cancel consumer-tag="t%d"`, own, g.own[i])
			g.add("%s channel.close reply-code=200", own) // gives back what it holds
			g.consuming[i] = false
		}
	case 18:
		g.add(`%s queue.purge queue="q%d"`, g.looker(i), i)
	case 19:
		g.govern(i)
	}
}
