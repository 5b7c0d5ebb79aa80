package bench

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/firemq/firemq/frames/table"
)

// run is one run's parts. The fields are set up before its goroutines start.
type run struct {
	o      Options
	proto  protocol
	spoken string    // the protocol, or both, in words
	addr   string    // the broker's
	base   time.Time // zero of the run's clock

	name     string // of the exchange, and the beginning of the queues' names
	exchange string // empty: the default exchange
	spread   spread
	queues   []string
	ledgers  []ledger // one a queue, or one for all where a message goes to any

	control    wire // declares, deletes; idle in between
	publishers []*publisher
	consumers  []*consumer

	confirmMeters  []*meter
	deliveryMeters []*meter
	latest         *hdrhistogram.Histogram // of lately, empty in between

	ctx    context.Context // ends when a part fails
	cancel context.CancelCauseFunc
}

// now is the run's clock, in nanoseconds since it began.
func (r *run) now() int64 { return int64(time.Since(r.base)) }

// sizeOf is the size of message seq, from 1, of a publisher to a queue.
func (r *run) sizeOf(seq uint64) int { return r.o.Sizes[r.turnOf(seq)] }

// turnOf is the index of that size. Most runs have one.
func (r *run) turnOf(seq uint64) int {
	if len(r.o.Sizes) == 1 {
		return 0
	}
	return int((seq - 1) % uint64(len(r.o.Sizes)))
}

// queuesOf shares the queues out among n clients: several each, or several clients a queue.
func (r *run) queuesOf(client, n int) []int {
	if n >= len(r.queues) {
		return []int{client % len(r.queues)}
	}
	var mine []int
	for q := client; q < len(r.queues); q += n {
		mine = append(mine, q)
	}
	return mine
}

// Run makes the load and measures it. When ctx ends, the measured time ends early and the report is of
// what was measured. The report is nil if the run could not be made, or broke before the measured time; a report may
// still tell that it broke then, or of losses: see Report.Err.
func Run(ctx context.Context, o Options) (*Report, error) {
	o, proto, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	to, err := targetOf(o, o.URL, proto)
	if err != nil {
		return nil, err
	}
	from, spoken := end{proto, to}, proto.name
	if o.ConsumeURL != "" {
		if from, err = consumeEnd(o); err != nil {
			return nil, err
		}
		if from.name != proto.name {
			spoken += ", consumed over " + from.name
		}
	}
	if o.BrokerPID != 0 {
		if _, err := usageOf(o.BrokerPID); err != nil {
			return nil, err
		}
	}
	r := &run{o: o, proto: proto, spoken: spoken, addr: to.Addr, base: time.Now(), latest: newHistogram()}
	r.ctx, r.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	defer r.cancel(nil)

	if r.control, err = proto.dial(ctx, to); err != nil {
		return nil, err
	}
	defer r.control.close()
	var rep *Report
	if err = r.declare(); err == nil {
		rep, err = r.load(ctx, end{proto, to}, from)
	}
	if o.Predeclared || o.Keep && err == nil {
		return rep, err
	}
	left, deleteErr := r.deleteAll(to)
	switch {
	case rep != nil && rep.Broken != "":
		if deleteErr != nil {
			rep.Broken += "; " + deleteErr.Error()
		}
		return rep, nil
	case err != nil && deleteErr != nil:
		return nil, fmt.Errorf("%w; %w", err, deleteErr)
	case err != nil || deleteErr != nil:
		return nil, cmp.Or(err, deleteErr)
	}
	if rep.Left = left; len(r.consumers) == 0 && left < rep.Expected {
		rep.Lost = rep.Expected - left
	}
	return rep, nil
}

// end is a broker's address and how it is spoken to.
type end struct {
	protocol
	to target
}

func (e end) connect(ctx context.Context) (wire, error) { return e.dial(ctx, e.to) }

// consumeEnd is where consumers connect, if not where publishers do.
func consumeEnd(o Options) (e end, err error) {
	if e.protocol, err = protocolOf(o.ConsumeURL); err != nil {
		return e, err
	}
	if e.nats() {
		return e, usagef("consumers of NATS have no URL of their own")
	}
	e.to, err = targetOf(o, o.ConsumeURL, e.protocol)
	return e, err
}

// declare makes the run's exchange and queues, by default under names that nobody else has.
func (r *run) declare() error {
	r.name = "firemq-bench-" + rand.Text()[:10]
	r.queues = r.o.queueNames(r.name)
	r.spread = exchangeTypes[r.o.ExchangeType]
	r.ledgers = make([]ledger, len(r.queues))
	if r.spread == toAny {
		r.ledgers = r.ledgers[:1]
	}
	for i := range r.ledgers {
		r.ledgers[i].streams = make([]stream, r.o.Publishers)
	}
	if r.o.Predeclared {
		return nil
	}
	if r.o.ExchangeType != "" {
		r.exchange = r.name
		if err := r.control.declareExchange(r.name, r.o.ExchangeType); err != nil {
			return fmt.Errorf("declare exchange: %w", err)
		}
	}
	for i, q := range r.queues {
		if err := r.control.declareQueue(q, r.o.arguments); err != nil {
			return fmt.Errorf("declare queue: %w", err)
		}
		for _, key := range r.bindings(i) {
			if err := r.control.bind(r.exchange, q, key); err != nil {
				return fmt.Errorf("bind queue: %w", err)
			}
		}
	}
	return nil
}

// key is the kth routing key for a queue, or of all where it does not say for which.
func (r *run) key(queue, k int) string {
	switch {
	case r.o.ExchangeType == "":
		return r.queues[queue]
	case r.spread == toOne:
		return fmt.Sprintf("q%d.k%d", queue, k)
	}
	return fmt.Sprintf("k%d", k)
}

// bindings are the binding keys of a queue.
func (r *run) bindings(queue int) (keys []string) {
	switch r.o.ExchangeType {
	case "":
	case "direct":
		for k := range r.o.Keys {
			keys = append(keys, r.key(queue, k))
		}
	case "topic":
		keys = []string{fmt.Sprintf("q%d.#", queue)}
	default: // of a hash it is the weight
		keys = []string{"1"}
	}
	return keys
}

// model is what the messages have in common.
func (r *run) model() model {
	p := table.Properties{Has: table.HasDeliveryMode, DeliveryMode: transientMode, Priority: r.o.Priority, Headers: r.o.headers}
	if r.o.Persistent {
		p.DeliveryMode = persistentMode
	}
	if p.Priority > 0 {
		p.Has |= table.HasPriority
	}
	if r.o.headers != nil {
		p.Has |= table.HasHeaders
	}
	if r.o.TTL > 0 {
		p.Has |= table.HasExpiration
		p.Expiration = strconv.FormatInt(r.o.TTL.Milliseconds(), 10)
	}
	return model{exchange: r.exchange, properties: p, confirms: !r.o.NoConfirms}
}

// deleteAll deletes what declare made, over a new connection if the old one is of no use any more,
// and counts the messages that were left.
func (r *run) deleteAll(to target) (left uint64, err error) {
	if left, err = r.deleteOver(r.control); err == nil {
		return left, nil
	}
	fresh, dialErr := r.proto.dial(context.Background(), to)
	if dialErr != nil {
		return 0, fmt.Errorf("the queues %s... are left behind", r.name)
	}
	defer fresh.close()
	if left, err = r.deleteOver(fresh); err != nil {
		return 0, fmt.Errorf("the queues %s... are left behind: %w", r.name, err)
	}
	return left, nil
}

func (r *run) deleteOver(w wire) (left uint64, err error) {
	for _, q := range r.queues {
		n, err := w.deleteQueue(q)
		if err != nil {
			return 0, err
		}
		left += n
	}
	if r.exchange != "" {
		if err := w.deleteExchange(r.exchange); err != nil {
			return 0, err
		}
	}
	return left, nil
}

// load connects the clients and runs the phases.
func (r *run) load(ctx context.Context, to, from end) (*Report, error) {
	for range min(r.o.Publishers, maxMeters) {
		r.confirmMeters = append(r.confirmMeters, newMeter())
	}
	for range min(r.o.Consumers, maxMeters) {
		r.deliveryMeters = append(r.deliveryMeters, newMeter())
	}
	var wires []wire
	defer func() {
		for _, w := range wires {
			w.close()
		}
	}()
	connect := func(e end, kind string, id int) (wire, error) {
		w, err := e.connect(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s %d: %w", kind, id, err)
		}
		wires = append(wires, w)
		return w, nil
	}
	for id := range r.o.Consumers {
		w, err := connect(from, "consumer", id)
		if err != nil {
			return nil, err
		}
		con := newConsumer(r, id, w)
		if r.o.Work > 0 || r.o.ConsumeRate > 0 {
			if con.alarm, err = newAlarm(); err != nil {
				return nil, err
			}
			defer con.alarm.close()
		}
		if r.o.ConsumeRate > 0 {
			con.gap = int64(second * float64(r.o.Consumers) / r.o.ConsumeRate)
		}
		r.consumers = append(r.consumers, con)
	}
	for id := range r.o.Publishers {
		w, err := connect(to, "publisher", id)
		if err != nil {
			return nil, err
		}
		if !r.o.NoConfirms {
			if err := w.publishing(r.o.Window); err != nil {
				return nil, fmt.Errorf("publisher %d: %w", id, err)
			}
		}
		p := newPublisher(r, id, w)
		if r.o.paced() {
			if p.alarm, err = newAlarm(); err != nil {
				return nil, err
			}
			defer p.alarm.close()
		}
		r.publishers = append(r.publishers, p)
	}
	// Whoever fails ends the run; whatever waits is woken.
	stopAfter := context.AfterFunc(r.ctx, func() {
		r.halt()
		r.hasten()
		for _, w := range wires {
			w.interrupt()
		}
	})
	defer stopAfter()
	return r.phases(ctx)
}

// crew runs the clients' goroutines.
type crew struct {
	writers, readers, consumers sync.WaitGroup
	done                        chan struct{} // closed when the readers of confirms may end
}

// startReaders takes confirms from here on.
func (r *run) startReaders(c *crew) {
	c.done = make(chan struct{})
	for id, p := range r.publishers {
		c.readers.Go(func() {
			err := p.read()
			select {
			case <-c.done:
			default:
				r.check("publisher", id, err)
			}
		})
	}
}

// startWriters publishes the load; the chan is closed when all of it is confirmed.
func (r *run) startWriters(c *crew) (written <-chan struct{}) {
	count := r.o.Count
	if count == 0 {
		count = MaxCount
	}
	now := r.now()
	for id, p := range r.publishers {
		if r.o.paced() {
			p.pace = r.paceOf(id, now)
		}
	}
	return r.writeAll(c, count, r.o.paced())
}

// paceOf is the schedule of a publisher's part of a load that begins now.
func (r *run) paceOf(id int, now int64) (p pace) {
	fastest := r.o.Rate
	for _, s := range r.o.Steps {
		fastest = max(fastest, s.Rate)
	}
	share := 1 / float64(len(r.publishers))
	// Side by side, so that they do not all send at the same moment.
	start := now + int64(float64(id)/fastest*second)
	switch {
	case r.o.Steps != nil:
		p = newSteps(start, r.o.Steps, share)
	case r.o.RampTo > 0:
		p = newRamp(start, r.o.Rate*share, r.o.RampTo*share, r.o.Warmup, r.o.Duration)
	default:
		p = newPace(start, r.o.Rate*share)
	}
	p.jitter, p.seed = r.o.Jitter, uint64(id)<<48
	return p
}

// writeAll shares n messages out among the publishers.
func (r *run) writeAll(c *crew, n uint64, paced bool) (written <-chan struct{}) {
	share, rest := n/uint64(len(r.publishers)), n%uint64(len(r.publishers))
	for id, p := range r.publishers {
		p.paceFrom = p.sent.Load()
		limit := p.paceFrom + share
		if uint64(id) < rest {
			limit++
		}
		c.writers.Go(func() { r.check("publisher", id, p.write(limit, paced)) })
	}
	done := make(chan struct{})
	go func() {
		c.writers.Wait()
		close(done)
	}()
	return done
}

// subscribe lets deliveries come.
func (r *run) subscribe(c *crew) {
	for id, con := range r.consumers {
		if err := con.subscribe(); err != nil {
			r.check("consumer", id, err)
			return
		}
		c.consumers.Go(func() { r.check("consumer", id, con.consume()) })
	}
}

// check ends the run if err is not nil; the first one is the run's.
func (r *run) check(kind string, id int, err error) {
	if err != nil {
		r.cancel(fmt.Errorf("%s %d: %w", kind, id, err))
	}
}

// failure is why the run broke; nil if it did not.
func (r *run) failure() error {
	if r.ctx.Err() == nil {
		return nil
	}
	return context.Cause(r.ctx)
}

func (r *run) phases(ctx context.Context) (*Report, error) {
	var c crew
	rep := newReport(r)
	r.startReaders(&c)
	r.fill(ctx, &c, rep)
	if r.o.Drain {
		r.measure(0, never)
		rep.begin(r)
		r.subscribe(&c)
		r.drain(ctx, rep)
	} else {
		r.subscribe(&c)
		var written <-chan struct{}
		if r.o.Warmup > 0 {
			written = r.startWriters(&c)
			r.watch(ctx, Warmup, r.o.Warmup, nil, rep)
		}
		from, to := r.now(), never
		if r.o.Duration > 0 {
			to = from + int64(r.o.Duration)
		}
		r.measure(from, to)
		rep.begin(r)
		if written == nil {
			written = r.startWriters(&c)
		}
		r.watch(ctx, Measure, time.Duration(to-from), written, rep)
		r.measure(from, min(to, r.now()))
	}
	rep.end(r)
	if r.o.Count == 0 || ctx.Err() != nil {
		r.hasten()
	}
	if err := r.finish(&c, rep); err != nil {
		if !rep.begun {
			return nil, err
		}
		rep.Broken = err.Error()
	}
	rep.count(r)
	return rep, nil
}

// fill publishes the backlog, without consumers and as fast as the window lets it.
func (r *run) fill(ctx context.Context, c *crew, rep *Report) {
	if r.o.Backlog == 0 {
		return
	}
	from, before := rep.sample(r), r.snapshot()
	filled := r.writeAll(c, r.o.Backlog, false)
	r.watch(ctx, Fill, time.Duration(never), filled, rep)
	if ctx.Err() != nil {
		r.halt()
	}
	c.writers.Wait()
	rep.filled(from, rep.sample(r), before, r.snapshot())
}

// finish ends the clients, in the order in which they can end.
func (r *run) finish(c *crew, rep *Report) error {
	r.halt()
	if r.o.NoConfirms { // nothing else notices that a socket takes no more
		stuck := time.AfterFunc(r.o.Patience, func() {
			r.cancel(fmt.Errorf("the broker has not taken what was published after %s", r.o.Patience))
		})
		defer stuck.Stop()
		c.writers.Wait()
		stuck.Stop()
	}
	c.writers.Wait()
	if r.failure() == nil {
		r.drain(r.ctx, rep)
	}
	close(c.done)
	for _, p := range r.publishers {
		p.w.interrupt()
	}
	c.readers.Wait()
	if r.failure() == nil {
		for id, con := range r.consumers {
			r.check("consumer", id, con.cancel())
		}
		patience := time.AfterFunc(r.o.Patience, func() {
			r.cancel(fmt.Errorf("the broker has not answered basic.cancel or unsubscribe after %s", r.o.Patience))
		})
		defer patience.Stop()
	}
	c.consumers.Wait()
	return r.failure()
}

// hasten lets consumers take what comes as fast as they can.
func (r *run) hasten() {
	for _, c := range r.consumers {
		c.hurry.Store(true)
	}
}

func (r *run) halt() {
	for _, p := range r.publishers {
		p.halt()
	}
}

// measure sets the send times whose latencies count.
func (r *run) measure(from, to int64) {
	for _, m := range slices.Concat(r.confirmMeters, r.deliveryMeters) {
		m.measure(from, to)
	}
}

// watch lets d pass, or what until waits for, telling of every second.
func (r *run) watch(ctx context.Context, phase Phase, d time.Duration, until <-chan struct{}, rep *Report) {
	if d == 0 {
		return
	}
	over := time.NewTimer(d)
	defer over.Stop()
	second := time.NewTicker(time.Second)
	defer second.Stop()
	s := newSpeedometer(r, phase)
	for {
		select {
		case <-over.C:
			// The last second's tick and the end come together: do not lose it.
			if s.sinceLast() > time.Second/2 {
				rep.second(r, s.next())
			}
			return
		case <-until:
			rep.second(r, s.next())
			return
		case <-second.C:
			rep.second(r, s.next())
		case <-ctx.Done():
			return
		case <-r.ctx.Done():
			return
		}
	}
}

// drain waits until everything published was delivered, or nothing more comes.
func (r *run) drain(ctx context.Context, rep *Report) {
	if len(r.consumers) == 0 {
		return
	}
	const look = 2 * time.Millisecond
	poll := time.NewTicker(look)
	defer poll.Stop()
	s := newSpeedometer(r, Drain)
	last, progress := uint64(0), time.Now()
	for {
		received := r.received()
		if received >= r.expected() {
			if distinct, _ := r.totals(); distinct >= r.expected() {
				return
			}
		}
		if received != last {
			last, progress = received, time.Now()
		} else if time.Since(progress) > r.o.Patience {
			return
		}
		if s.sinceLast() >= time.Second {
			rep.second(r, s.next())
		}
		select {
		case <-poll.C:
		case <-r.ctx.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// copies is how many queues get each message.
func (r *run) copies() uint64 {
	if r.spread == toAll {
		return uint64(len(r.queues))
	}
	return 1
}

func (r *run) published() (n uint64) {
	for _, p := range r.publishers {
		n += p.sent.Load()
	}
	return n
}

func (r *run) refused() (n uint64) {
	for _, p := range r.publishers {
		n += p.refused.Load()
	}
	return n
}

// expected is how many deliveries the publishes so far should make.
func (r *run) expected() uint64 { return (r.published() - r.refused()) * r.copies() }

func (r *run) received() (n uint64) {
	for _, c := range r.consumers {
		n += c.received.Load()
	}
	return n
}

func (r *run) totals() (distinct, again uint64) {
	for i := range r.ledgers {
		d, a := r.ledgers[i].totals()
		distinct += d
		again += a
	}
	return distinct, again
}

// lost counts, stream by stream, what was published and never delivered. After the clients' end.
func (r *run) lost() (n uint64) {
	for _, p := range r.publishers {
		for k, q := range p.queue {
			if r.spread != toAll {
				n += r.ledgers[q].streams[p.id].missing(p.perQueue[k])
				continue
			}
			for q := range r.ledgers {
				n += r.ledgers[q].streams[p.id].missing(p.perQueue[k])
			}
		}
	}
	return n - min(n, r.refused()*r.copies())
}

// lately is the latency since it was last called.
func (r *run) lately() (p50, p99 float64) {
	meters := r.deliveryMeters
	if len(meters) == 0 {
		meters = r.confirmMeters
	}
	for _, m := range meters {
		m.takeLatest(r.latest)
	}
	p50, p99 = microseconds(r.latest.ValueAtQuantile(50)), microseconds(r.latest.ValueAtQuantile(99))
	r.latest.Reset()
	return p50, p99
}

// speedometer turns counters into rates.
type speedometer struct {
	r                   *run
	phase               Phase
	start, last         time.Time
	published, consumed uint64
}

func newSpeedometer(r *run, phase Phase) *speedometer {
	now := time.Now()
	return &speedometer{r: r, phase: phase, start: now, last: now, published: r.published(), consumed: r.received()}
}

func (s *speedometer) sinceLast() time.Duration { return time.Since(s.last) }

func (s *speedometer) next() Second {
	now := time.Now()
	d := now.Sub(s.last).Seconds()
	published, consumed := s.r.published(), s.r.received()
	sec := Second{
		Phase:     s.phase,
		Elapsed:   now.Sub(s.start).Seconds(),
		Published: float64(published-s.published) / d,
		Consumed:  float64(consumed-s.consumed) / d,
		Backlog:   max(0, int64(s.r.expected())-int64(consumed)),
	}
	sec.P50, sec.P99 = s.r.lately()
	s.last, s.published, s.consumed = now, published, consumed
	return sec
}
