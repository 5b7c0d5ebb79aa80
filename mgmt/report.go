package mgmt

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/policy"
	"github.com/firemq/firemq/mgmt/api"
)

const (
	// patience is how long something must have lasted before it is reported: a broker that is busy has queues that
	// are longer for a moment, and consumers at their prefetch.
	patience    = time.Minute
	maxPatience = 24 * time.Hour
	// unackedLong is from when a delivery is reported that waits for its acknowledgement: a longer timeout, or none,
	// lets it wait.
	unackedLong = 30 * time.Minute
	// againAndAgain is how many redeliveries, in the time of the samples, are reported if no message left the queue; beside
	// two for each message that is there: who takes over what another left has one for each.
	againAndAgain = 20
	// maxFindings bounds a report; the rest is counted.
	maxFindings = 500
)

// healthReport says in words what is wrong and why.
func healthReport(r *request) error {
	s, err := r.number("patience", int(patience.Seconds()), 0, int(maxPatience.Seconds()))
	if err != nil {
		return err
	}
	return r.ok(r.s.report(r.vhosts(), time.Duration(s)*time.Second, time.Now()))
}

// doctor collects findings.
type doctor struct {
	s        *Server
	patience time.Duration
	now      time.Time
	list     []api.Finding
}

func (s *Server) report(vhosts []string, patience time.Duration, now time.Time) api.Report {
	d := &doctor{s: s, patience: patience, now: now}
	d.resources()
	d.journal()
	applied := make(map[*policy.Policy]bool)
	for _, v := range vhosts {
		d.queues(v, applied)
	}
	d.policies(vhosts, applied)
	d.consumers(vhosts)
	d.connections(vhosts)

	rank := map[string]int{api.Critical: 0, api.Warning: 1, api.Note: 2}
	slices.SortStableFunc(d.list, func(a, b api.Finding) int { return cmp.Compare(rank[a.Severity], rank[b.Severity]) })
	r := api.Report{Status: "ok", Findings: []api.Finding{}}
	if len(d.list) > 0 {
		r.Status = d.list[0].Severity
		n := min(len(d.list), maxFindings)
		r.Findings, r.LeftOut = d.list[:n], len(d.list)-n
	}
	return r
}

func (d *doctor) find(f api.Finding) { d.list = append(d.list, f) }

func (d *doctor) node(severity, code, summary, cause, action string) {
	d.find(api.Finding{Severity: severity, Code: code, Kind: "node", Name: d.s.opt.Node, Summary: summary, Cause: cause, Action: action})
}

// resources looks at memory and disk.
func (d *doctor) resources() {
	m := d.s.machine()
	blocked := 0
	for _, c := range d.s.opt.Broker.Connections() {
		if c.State == broker.StateBlocked {
			blocked++
		}
	}
	publishers := func(short bool) string {
		text := fmt.Sprintf("Publishers wait until it is over; %s.", count(blocked, "connection is blocked now", "connections are blocked now"))
		if !short { // for tests of clients, perhaps
			text += " It was raised by hand, or is about to end."
		}
		return text
	}
	if m.memoryAlarm {
		limit := "its limit is " + bytesText(m.memoryLimit)
		if m.memoryLimit == 0 {
			limit = "which has no limit"
		}
		d.node(api.Critical, "memory-alarm", "The memory alarm is in effect: nobody can publish.",
			fmt.Sprintf("The broker uses %s of memory, %s. %s", bytesText(m.resident), limit, publishers(m.memoryLimit > 0 && m.resident >= m.memoryLimit)),
			"See \"firemq ctl memory\" for what takes it. Consume or purge long queues of transient messages, close idle connections, or raise limits.memory.")
	}
	switch {
	case m.diskAlarm:
		d.node(api.Critical, "disk-alarm", "The disk alarm is in effect: nobody can publish.",
			fmt.Sprintf("%s are free where the data is, the limit is %s. %s", bytesText(m.diskFree), bytesText(m.diskLimit), publishers(m.diskFree <= m.diskLimit)),
			"Free or add disk space; consume or purge long queues.")
	case m.diskLimit > 0 && m.diskFree < m.diskLimit+m.diskLimit/4:
		d.node(api.Warning, "disk-low", "The disk is nearly full.",
			fmt.Sprintf("%s are free where the data is. Below %s nobody can publish.", bytesText(m.diskFree), bytesText(m.diskLimit)),
			"Free or add disk space; consume or purge long queues.")
	}
	if d.s.suspended() {
		d.node(api.Warning, "listeners-suspended", "No clients can connect.",
			"The listeners of clients are suspended, as by rabbitmqctl stop_app or rabbitmq-upgrade drain.",
			"Have them resumed, with rabbitmqctl start_app or rabbitmq-upgrade revive, when the work is done.")
	}
	if full, n := d.s.connectionsFull(); full {
		d.node(api.Warning, "connections-at-limit", "No more clients can connect.",
			fmt.Sprintf("There are %s, as many as limits.connections lets in: the next client is refused.", count(n, "connection", "connections")),
			"See \"firemq ctl list connections\" for clients that open too many, or raise limits.connections.")
	}
	if !m.memoryAlarm && m.memoryLimit > 0 && m.resident > m.memoryLimit/20*19 {
		d.node(api.Warning, "memory-low", "The broker is close to its memory limit.",
			fmt.Sprintf("It uses %s of %s. Above that nobody can publish.", bytesText(m.resident), bytesText(m.memoryLimit)),
			"See \"firemq ctl memory\" for what takes it, or raise limits.memory.")
	}
}

// compactionBehind is how many bytes more than it should the journal may take before that is reported; a variable so
// that its test need not write as many.
var compactionBehind = int64(512 << 20)

func (d *doctor) journal() {
	j, ok := d.s.opt.Broker.JournalStats()
	if !ok {
		return
	}
	switch {
	case j.Failed:
		d.node(api.Critical, "journal-failed", "The journal failed: nothing is confirmed any more.",
			"The disk refused to write or to sync; the broker's log says what it said.", "Replace or repair the disk, then start the broker again.")
	case j.Stalled:
		d.node(api.Critical, "journal-stalled", "The journal has no room to write: publishes wait.",
			"The disk is full, up to the reserve that lets consumers go on.", "Free or add disk space; consume or purge long queues.")
	}
	if want := 2 * j.LiveSize; j.Bytes > want+compactionBehind {
		d.node(api.Warning, "compaction-behind", "The journal takes more disk than its messages should need.",
			fmt.Sprintf("It takes %s for %s of messages that are not settled. Old messages that nobody takes keep the files behind them, and copying them forward is behind, or the disk is too full for it.",
				bytesText(uint64(j.Bytes)), bytesText(uint64(j.LiveSize))),
			"Wait a minute and look again. If it stays: consume or purge the queues with the oldest messages, and see that the disk has room.")
	}
}

// queues looks at the queues of a vhost, and notes which policies apply to its objects.
func (d *doctor) queues(vhost string, applied map[*policy.Policy]bool) {
	for _, x := range d.s.opt.Broker.Exchanges(vhost) {
		applied[x.Governing.User], applied[x.Governing.Operator] = true, true
		d.exchange(&x)
	}
	for _, q := range d.s.opt.Broker.Queues(vhost) {
		v := q.View()
		applied[v.User], applied[v.Operator] = true, true
		d.queue(q, &v)
	}
}

func (d *doctor) exchange(x *broker.ExchangeView) {
	name := cmp.Or(x.Name, "amq.default")
	found := func(severity, code, summary, cause, action string) {
		d.find(api.Finding{Severity: severity, Code: code, Kind: "exchange", VHost: x.VHost, Name: name, Summary: summary, Cause: cause, Action: action})
	}
	if x.Alternate != "" {
		if _, ok := d.s.opt.Broker.Exchange(x.VHost, x.Alternate); !ok {
			found(api.Warning, "alternate-exchange-missing", "What this exchange routes to no queue is lost.",
				fmt.Sprintf("Its alternate exchange '%s' does not exist.", x.Alternate),
				"Declare that exchange and bind a queue to it, or correct the exchange's argument or policy.")
		}
	}
	in, out, window := d.s.sampler.routed(x.Stats, d.now.UnixMilli())
	if in > 0 && out == 0 && window >= d.patience/2 && x.Name != broker.TraceExchange {
		found(api.Note, "nothing-routed", "Nothing that is published to this exchange reaches a queue.",
			fmt.Sprintf("%s in %s, and no queue was bound for any.", count(int(in), "message came", "messages came"), lasted(window)),
			"See \"firemq ctl list bindings\" and the publisher's routing keys. With mandatory a publisher is told.")
	}
}

func (d *doctor) queue(q *broker.Queue, v *broker.QueueView) {
	found := func(severity, code, summary, cause, action string) {
		d.find(api.Finding{Severity: severity, Code: code, Kind: "queue", VHost: v.VHost, Name: v.Name, Summary: summary, Cause: cause, Action: action})
	}
	c, exchange := q.Condition()
	switch c.DeadLetters {
	case broker.DeadLettersMissing:
		found(api.Warning, "dead-letter-exchange-missing", "Messages that die in this queue are lost.",
			fmt.Sprintf("Its dead-letter exchange '%s' does not exist.", exchange),
			"Declare that exchange and bind a queue to it, or correct the queue's argument or policy.")
	case broker.DeadLettersNoTarget:
		found(api.Warning, "dead-letters-unroutable", "Messages that die in this queue are lost.",
			fmt.Sprintf("Nothing is bound to its dead-letter exchange '%s', or the queue of its dead-letter routing key does not exist.", exchange),
			"Bind a queue to the exchange, or declare the one that the routing key names.")
	}
	switch {
	case c.Rejecting:
		found(api.Warning, "queue-full", "The queue is full and refuses what is published.",
			fmt.Sprintf("It holds %s, at its limit, and x-overflow is to reject.", count(v.Ready+v.Delayed, "message", "messages")),
			"Add consumers or purge it; or raise max-length or max-length-bytes.")
	case c.Dropping && v.Ready > 0:
		found(api.Note, "queue-at-limit", "The queue is at its limit: for each new message the oldest one goes.",
			fmt.Sprintf("It holds %s, and x-overflow is to drop from the head.", count(v.Ready, "message", "messages")),
			"If no message may be lost: add consumers, raise the limit, or set x-overflow to reject-publish.")
	}
	by, window := d.s.sampler.change(q, v, d.now.UnixMilli())
	if left := by.published - by.grown; left <= 0 && by.redelivered >= int64(againAndAgain+2*(v.Ready+v.Unacked)) && window >= d.patience/2 {
		found(api.Warning, "redelivered-without-end", "Messages are delivered again and again, and none leaves the queue.",
			fmt.Sprintf("In %s %d were delivered that had been before, and none was settled: consumers give them back, or end with them.", lasted(window), by.redelivered),
			"See why the consumers cannot work them off. With x-delivery-limit and a dead-letter exchange such messages leave the queue.")
	}
	if v.Ready == 0 {
		return
	}
	oldest := q.Head().Oldest
	waited := d.since(oldest)
	if oldest != 0 && waited < d.patience {
		return
	}
	growing := by.grown > 0 && by.published > 0 && window >= d.patience/2
	old := "since the broker was started, or longer"
	if oldest != 0 {
		old = "for " + lasted(waited)
	}
	waits := fmt.Sprintf("%s, the oldest %s.", count(v.Ready, "message waits", "messages wait"), old)
	switch {
	case v.QueueCounts.Consumers == 0 && growing:
		found(api.Warning, "queue-without-consumer", "The queue grows and has no consumer.",
			fmt.Sprintf("%s It grew by %d in %s.", waits, by.grown, lasted(window)),
			"Start the consumer, or see why it is gone. If nobody needs the messages, remove the queue's bindings or give it a limit or a time to live.")
	case v.QueueCounts.Consumers == 0:
		found(api.Note, "messages-without-consumer", "The queue has messages and no consumer.", waits,
			"Start the consumer; or look at them with \"firemq ctl browse\", and purge the queue if nobody needs them.")
	case by.taken > 0 && growing:
		found(api.Warning, "consumers-too-slow", "The queue grows: its consumers are slower than its publishers.",
			fmt.Sprintf("%s In %s %d were published and %d delivered.", waits, lasted(window), by.published, by.taken),
			"Add consumers, or make them faster; a larger prefetch helps those that wait for the network.")
	case by.taken > 0:
	case c.Full == 0 && c.Closed == 0:
		// They could take the messages: another dispatch is on its way, or the disk is waited for.
	case c.Full > 0 && c.Closed == 0:
		// Whom they wait for is a finding of its own, see consumers.
	default:
		who := count(c.Closed, "consumer does not read", "consumers do not read")
		if v.ActiveTag != "" {
			who = "The single active consumer '" + v.ActiveTag + "' does not read"
		}
		found(api.Warning, "consumers-do-not-read", "Consumers do not take the queue's messages.",
			fmt.Sprintf("%s %s what it was sent, or granted no credit.", waits, who),
			"See whether the client hangs; close its connection with \"firemq ctl close-connection\" so that others get the messages.")
	}
}

// since is how long ago a time in Unix ms is.
func (d *doctor) since(ms int64) time.Duration {
	return max(time.Duration(d.now.UnixMilli()-ms)*time.Millisecond, 0)
}

// policies looks for those that apply to nothing.
func (d *doctor) policies(vhosts []string, applied map[*policy.Policy]bool) {
	for _, p := range d.s.opt.Broker.Policies() {
		if applied[p.Policy] || !slices.Contains(vhosts, p.VHost) {
			continue
		}
		kind := "policy"
		if p.Operator {
			kind = "operator policy"
		}
		d.find(api.Finding{
			Severity: api.Note, Code: "policy-without-effect", Kind: kind, VHost: p.VHost, Name: p.Name,
			Summary: "The policy applies to nothing.",
			Cause:   fmt.Sprintf("No queue or exchange matches its pattern %s, or others of higher priority apply to all that do.", p.Pattern),
			Action:  "Correct the pattern, \"apply-to\" or priority, or delete it. It may be meant for what will be declared later.",
		})
	}
}

// consumers looks for those that hold messages for long.
func (d *doctor) consumers(vhosts []string) {
	b := d.s.opt.Broker
	for _, h := range b.HoldingSince(d.now.Add(-d.patience).UnixMilli()) {
		if !slices.Contains(vhosts, h.VHost) {
			continue
		}
		q, ok := b.Queue(h.VHost, h.Queue)
		if !ok {
			continue
		}
		ready, held := q.Counts().Ready, d.since(h.At)
		who := fmt.Sprintf("consumer '%s'", h.Consumer)
		if h.Consumer == "" {
			who = "who got it with basic.get"
		}
		connection := h.Connection.Name
		if own, _ := h.Connection.Properties.Get("connection_name"); own.Str != "" {
			connection += " ('" + own.Str + "')"
		}
		f := api.Finding{
			Kind: "queue", VHost: h.VHost, Name: h.Queue,
			Cause: fmt.Sprintf("%s, user %s, channel %d of connection %s, has %s unacknowledged; the oldest was delivered %s ago (delivery tag %d).",
				capital(who), h.User, h.Channel, connection, count(h.Unacked, "message", "messages"), lasted(held), h.Tag),
			Action: "See what that client does; see the messages with \"firemq ctl unacked\". Closing its connection with \"firemq ctl close-connection\" gives them to others.",
		}
		switch {
		case h.Full && ready > 0:
			f.Severity, f.Code = api.Warning, "consumer-stuck"
			v := q.View()
			switch others := count(v.QueueCounts.Consumers-1, "other consumer waits", "other consumers wait"); {
			case h.Consumer != "" && h.Consumer == v.ExclusiveTag:
				f.Cause += " It consumes exclusively."
			case h.Consumer != "" && h.Consumer == v.ActiveTag:
				f.Cause += fmt.Sprintf(" It is the single active consumer; %s for its end.", others)
			}
			f.Summary = fmt.Sprintf("A consumer at its prefetch limit has not acknowledged for %s, and %s.", lasted(held), count(ready, "message waits", "messages wait"))
		case held >= unackedLong:
			f.Severity, f.Code = api.Note, "unacked-for-long"
			f.Summary = fmt.Sprintf("A message has been unacknowledged for %s.", lasted(held))
		default:
			continue
		}
		d.find(f)
	}
}

// connections looks for those that are not read.
func (d *doctor) connections(vhosts []string) {
	j, _ := d.s.opt.Broker.JournalStats()
	for _, c := range d.s.opt.Broker.Slowed(d.patience) {
		if !slices.Contains(vhosts, c.VHost) {
			continue
		}
		cause, action := "More waits for the disk than may: the disk is too slow for what is published.",
			"See the metrics of the journal and of the disk; a faster disk, or fewer and larger messages help."
		switch {
		case j.Stalled:
			cause, action = "The disk is full, up to the reserve that lets consumers go on.", "Free or add disk space; consume or purge long queues."
		case c.Reason&broker.PauseGrowth != 0:
			cause, action = "Memory fills faster than the broker can make room.", "Consume or purge long queues of transient messages, publish more slowly, or raise limits.memory."
		}
		d.find(api.Finding{
			Severity: api.Warning, Code: "connection-in-flow", Kind: "connection", VHost: c.VHost, Name: c.Name,
			Summary: fmt.Sprintf("A publisher has not been read for %s.", lasted(c.For)), Cause: cause, Action: action,
		})
	}
}

// change is by how much a queue grew, and what was counted.
type change struct{ grown, published, taken, redelivered int64 }

// change is what became of a queue since the oldest sample, and how long ago that was; all 0 if there is none.
func (s *sampler) change(q *broker.Queue, v *broker.QueueView, now int64) (by change, window time.Duration) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	of := s.queues[q]
	if of == nil || len(of.times) == 0 {
		return change{}, 0
	}
	var buf [32]int64
	row := statsRow(lengths{v.Ready, v.Unacked}.row(buf[:0]), &v.Stats)
	first := of.values[0]
	since := func(name string) int64 { return row[statField(name)] - first[statField(name)] }
	return change{row[0] - first[0], since("publish"), since("deliver_get"), since("redeliver")},
		time.Duration(now-of.times[0]) * time.Millisecond
}

// routed is how many messages came to an exchange, and how many it gave to queues, since the oldest sample, and how long
// ago that was.
func (s *sampler) routed(x *broker.ExchangeStats, now int64) (in, out int64, window time.Duration) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	of := s.exchanges[x]
	if of == nil || len(of.times) == 0 {
		return 0, 0, 0
	}
	first := of.values[0]
	return int64(x.In.Load()) - first[0], int64(x.Out.Load()) - first[1], time.Duration(now-of.times[0]) * time.Millisecond
}

// statField is where a counter is in a row of a queue.
func statField(name string) int { return lengthFields + slices.Index(statNames[:], name) }

// count is a number with its noun.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}

// lasted is a time for people.
func lasted(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours())/24)
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", int(d.Hours()))
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d minutes", int(d.Minutes()))
	}
	return count(int(d.Seconds()), "second", "seconds")
}

func bytesText(n uint64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

func capital(s string) string { return string(s[0]-'a'+'A') + s[1:] }
