package broker

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
)

// TestSimulation runs a broker on a file system in memory with random operations, faults and power
// failures, and compares what is there afterwards with a model: every confirmed message that was
// not taken, nothing whose settlement was on disk, in order, nothing twice, each with its body, and
// transactions as a whole. A failing seed is printed; FIREMQ_SEED runs it again, FIREMQ_SEEDS says
// how many to run (0: without end).
func TestSimulation(t *testing.T) {
	seeds, first := uint64(1000), uint64(1)
	if testing.Short() || raceEnabled {
		seeds = 60
	}
	if s, err := strconv.ParseUint(os.Getenv("FIREMQ_SEED"), 10, 64); err == nil {
		seeds, first = 1, s
	} else if n, err := strconv.ParseUint(os.Getenv("FIREMQ_SEEDS"), 10, 64); err == nil {
		if seeds, first = n, rand.Uint64N(1<<40); n == 0 {
			seeds = 1 << 62
		}
	}
	var did simCounts
	for seed := first; seed-first < seeds; seed++ {
		s := &simulation{seed: seed, r: rand.New(rand.NewPCG(seed, 1)), did: &did}
		if ok := t.Run(fmt.Sprint("seed", seed), s.run); !ok {
			t.Fatalf("failed with FIREMQ_SEED=%d", seed)
		}
	}
	t.Logf("%+v", did)
	if seeds >= 60 && (did.delayed == 0 || did.moved == 0 || did.paged == 0 || did.restored == 0 || did.torn == 0 || did.faults == 0 || did.spilled == 0) {
		t.Errorf("the simulation does not reach what it is for: %+v", did)
	}
}

// simCounts says what the runs came to.
type simCounts struct {
	published, delayed, transient, moved, paged, restored, torn, faults, transactions int
	spilled                                                                           int // transient ones seen that the journal has
}

type simState uint8

const (
	simPending simState = iota // published, not confirmed yet
	simSure                    // confirmed, not taken: it must be there
	simMaybe                   // taken, or of an unknown fate: it may be there
)

// simMessage is one message in one queue.
type simMessage struct {
	state simState
	seq   uint64 // of its publish, 0 in a transaction
	tx    int    // its transaction, 0 for none
	held  uint64 // delivery tag while it is unacked, 0 else
	due   int64  // 0 for a message without a delay
}

type simulation struct {
	seed uint64
	r    *rand.Rand
	t    *testing.T
	did  *simCounts

	fs     *vfs.Mem
	faults *vfs.Faults
	fault  atomic.Pointer[func(vfs.Op) error]
	failed atomic.Bool

	b      *Broker
	now    atomic.Int64 // the clock
	saved  Snapshot
	p, k   *client // publishes; takes
	tx     *client
	queues map[string]map[int]*simMessage
	next   int
	txs    int
	txOpen []int        // transactions whose commit was not confirmed, in order
	txDone map[int]bool // their fate is known
	// rejected are messages that went from b to dead: until one is taken, it is in one of them if
	// it was sure.
	rejected map[int]bool
	// transient messages are gone with each restart, whether an alarm has written them to the journal or not; nil: there
	// are none.
	transient map[int]bool
	alarm     bool // memory is short
}

// b dead-letters to dead; fleeting does not survive.
var simNames = []string{"a", "b", "priority", fleeting}

const fleeting = "fleeting"

// body is id and a filling that only this id has.
func (s *simulation) body(id int) string {
	n := (id * 37 % 23) * (id % 19)
	return strconv.Itoa(id) + ":" + strings.Repeat(strconv.Itoa(id%10), n)
}

func (s *simulation) id(body string) int {
	head, _, _ := strings.Cut(body, ":")
	id, err := strconv.Atoi(head)
	if err != nil || body != s.body(id) {
		s.t.Fatalf("not a message that was published: %.60q", body)
	}
	return id
}

func (s *simulation) run(t *testing.T) {
	s.t = t
	s.fs = vfs.NewMem()
	s.fs.MakeDir(testDir)
	s.queues = map[string]map[int]*simMessage{}
	for _, n := range append(simNames, "dead") {
		s.queues[n] = map[int]*simMessage{}
	}
	s.txDone, s.rejected, s.transient = map[int]bool{}, map[int]bool{}, map[int]bool{}
	rounds := 2 + s.r.IntN(3)
	for round := range rounds {
		s.open()
		s.check()
		for range s.r.IntN(200) {
			s.step()
			if s.failed.Load() {
				break
			}
		}
		s.endTurns()
		if round == rounds-1 && !s.failed.Load() {
			s.finish()
			return
		}
		if s.r.IntN(2) == 0 && !s.failed.Load() {
			s.settleDown()
		}
		s.noteConfirms()
		if s.r.IntN(4) == 0 && !s.failed.Load() {
			s.stop()
		} else {
			s.crash()
		}
	}
	s.open()
	s.check()
	s.finish()
}

func (s *simulation) open() {
	s.failed.Store(false)
	s.fault.Store(nil)
	s.now.Add(simLongest + 1) // all that was there is due
	s.faults = &vfs.Faults{FS: s.fs, Check: func(o vfs.Op) error {
		if f := s.fault.Load(); f != nil {
			return (*f)(o)
		}
		return nil
	}}
	start := s.saved
	start.VHosts = []string{"/"}
	resident := []int64{1, 2000, 0}[s.r.IntN(3)]
	b, rec, err := Open(Options{
		FS: s.faults, JournalDir: testDir, Start: start, Now: s.now.Load, OnFatal: func(error) { s.failed.Store(true) },
		Codecs: map[message.Encoding]message.Codec{message.AMQP: plainCodec{}},
		tuning: tuning{segmentBytes: 8192, queueResident: resident, queueKeep: resident / 2, checkpointBytes: 4096},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if len(rec.Damaged) > 0 {
		s.t.Fatalf("damage: %+v", rec.Damaged)
	}
	s.b = b
	if rec.Restored {
		s.did.restored++
	}
	if st, _ := b.JournalStats(); st.Recovered.Torn > 0 {
		s.did.torn++
	}
	if len(b.Users().Users()) == 0 {
		if err := b.AddFirstUser("guest", "guest"); err != nil {
			s.t.Fatal(err)
		}
	}
	s.p, s.k, s.tx = connect(s.t, b), connect(s.t, b), connect(s.t, b)
	s.p.ok(s.p.ch.Confirms())
	s.tx.ok(s.tx.ch.TxSelect())
	for _, n := range simNames {
		s.declare(n)
	}
	s.p.declare(QueueDeclare{Name: "dead", Durable: true})
	// Who has deliveries to settle publishes to the journal during an alarm.
	s.k.declare(QueueDeclare{Name: "owed"})
	s.k.publish("", "owed", "")
	s.k.end()
	if ok, e := s.p.ch.Get("owed", false, func(*Delivery, int) {}); !ok || e != nil {
		s.t.Fatal(ok, e)
	}
	s.alarm = s.r.IntN(3) == 0
	b.SetAlarm(s.alarm, false)
}

func (s *simulation) declare(name string) {
	d := QueueDeclare{Name: name, Durable: name != fleeting}
	if name == "priority" {
		d.Args = table.Table{{Name: "x-max-priority", Value: table.Int32Value(3)}}
	}
	if name == "b" {
		d.Args = table.Table{
			{Name: "x-dead-letter-exchange", Value: table.StringValue("")},
			{Name: "x-dead-letter-routing-key", Value: table.StringValue("dead")},
		}
	}
	s.p.declare(d)
	s.p.ok(s.p.BindQueue(name, "amq.fanout", "", nil))
}

// simLongest is the longest delay.
const simLongest = 60

// check compares every queue with the model, and leaves the messages in it.
func (s *simulation) check() {
	arrived := map[int]map[bool]int{} // by transaction: how many of its messages are there, and are not
	for id := range s.rejected {
		if m := s.queues["b"][id]; m != nil && m.state == simSure {
			s.t.Fatalf("message %d was rejected and is expected in its queue", id)
		}
	}
	for _, name := range append(simNames, "dead") {
		model := s.queues[name]
		seen := map[int]bool{}
		last := [256]place{}
		level := 255
		for {
			var body string
			priority := 0
			redelivered := false
			ok, e := s.k.ch.Get(name, false, func(d *Delivery, _ int) {
				body, redelivered = string(d.Msg.Body()), d.Redelivered
				if name == "priority" {
					priority = min(int(d.Msg.Priority), 3)
				}
			})
			s.k.ok(e)
			if !ok {
				break
			}
			id := s.id(body)
			switch {
			case model[id] == nil:
				s.t.Fatalf("queue %s: message %d cannot be here", name, id)
			case seen[id]:
				s.t.Fatalf("queue %s: message %d is here twice", name, id)
			case name != "dead" && ((place{model[id].due, id + 1}).before(last[priority]) || priority > level):
				s.t.Fatalf("queue %s: message %d of priority %d, due at %d, after %+v", name, id, priority, model[id].due, last[priority])
			case !redelivered:
				s.t.Fatalf("queue %s: message %d is not marked as redelivered", name, id)
			}
			seen[id], last[priority], level = true, place{model[id].due, id + 1}, priority
		}
		for id, m := range model {
			if m.tx != 0 && m.state == simPending {
				if arrived[m.tx] == nil {
					arrived[m.tx] = map[bool]int{}
				}
				arrived[m.tx][seen[id]]++
			}
			switch {
			case m.state == simSure && !seen[id]:
				s.t.Fatalf("queue %s: confirmed message %d is lost", name, id)
			case !seen[id]:
				delete(model, id)
			default:
				*m = simMessage{state: simSure, due: m.due} // it was recovered, so it is on disk
			}
		}
	}
	for tx, there := range arrived {
		if there[true] > 0 && there[false] > 0 {
			s.t.Fatalf("transaction %d: %d of its messages are there, %d are not", tx, there[true], there[false])
		}
	}
	for id, sure := range s.rejected {
		if sure && s.queues["b"][id] == nil && s.queues["dead"][id] == nil {
			s.t.Fatalf("message %d is lost on its way to the dead letters", id)
		}
	}
	clear(s.rejected)
	s.k.ok(s.k.ch.Recover())
	s.k.end()
}

// drop notes that a message may be gone.
func (s *simulation) drop(name string, id int) {
	s.queues[name][id].state = simMaybe
	if name == "dead" {
		delete(s.rejected, id)
	}
}

func (s *simulation) step() {
	name := simNames[s.r.IntN(len(simNames))]
	model := s.queues[name]
	switch s.r.IntN(42) {
	case 0:
		if s.r.IntN(4) > 0 {
			return
		}
		s.endTurns()
		s.waitConfirms() // of what is purged the model knows that it was published
		if _, e := s.p.PurgeQueue(name); e != nil {
			s.t.Fatal(e.Text)
		}
		for id, m := range model {
			if m.held == 0 {
				s.drop(name, id)
			}
		}
	case 1:
		if s.r.IntN(6) > 0 {
			return
		}
		s.endTurns()
		s.waitConfirms()
		if _, e := s.p.DeleteQueue(name, false, false); e != nil {
			s.t.Fatal(e.Text)
		}
		// Its messages are gone for good when the deletion is on disk, which the next declare waits for.
		s.declare(name)
		for _, m := range model {
			if m.held != 0 {
				s.k.ok(s.k.ch.Ack(m.held, false))
			}
		}
		s.k.end()
		for id, m := range model {
			s.drop(name, id)
			m.held = 0
		}
		if s.save() {
			clear(model)
		}
	case 2:
		s.save()
	case 3, 4:
		s.b.upkeep.tick()
		s.did.spilled += s.spilled(name)
	case 5:
		s.commit()
	case 6:
		switch s.r.IntN(5) {
		case 0:
			s.breakDisk()
		case 1, 2:
			s.alarm = !s.alarm
			s.b.SetAlarm(s.alarm, false)
		}
	case 7, 8, 9, 10, 11, 12, 13, 14:
		s.take(name, s.r.IntN(3))
	case 15:
		s.take("dead", s.r.IntN(3))
	case 16:
		s.consume(name)
	case 17, 18:
		s.settleHeld(name)
	case 19:
		s.k.ok(s.k.ch.Recover())
		s.k.end()
		for _, model := range s.queues {
			for _, m := range model {
				m.held = 0
			}
		}
	case 20, 21:
		s.endTurns()
		s.now.Add(int64(1 + s.r.IntN(simLongest)))
	default:
		to := []string{name}
		exchange := ""
		if s.r.IntN(6) == 0 {
			to, exchange = simNames, "amq.fanout"
		}
		m := s.message(exchange, name)
		s.p.seq++
		for _, n := range to {
			s.queues[n][s.next] = &simMessage{seq: s.p.seq, due: s.due(m)}
		}
		s.p.ok(s.p.ch.Publish(&Publish{Msg: m, Seq: s.p.seq}))
		s.next++
		s.did.published++
		if s.r.IntN(4) == 0 {
			s.p.end()
		}
	}
}

// spilled counts the transient messages of a queue that are in the journal.
func (s *simulation) spilled(name string) (n int) {
	q, e := s.p.queue(name)
	s.p.ok(e)
	q.mu.Lock()
	defer q.mu.Unlock()
	for p := range q.sm.Pieces() {
		entries := p.Entries
		if p.Block != nil {
			entries, _, _ = queue.DecodeBlock(nil, p.Block)
		}
		for i := range entries {
			if entries[i].Journaled && (entries[i].Transient || name == fleeting) {
				n++
			}
		}
	}
	return n
}

func (s *simulation) message(exchange, key string) *message.Message {
	body := s.body(s.next)
	delay := int64(0)
	if s.r.IntN(3) == 0 {
		delay = int64(1 + s.r.IntN(simLongest))
		s.did.delayed++
	}
	persistent := s.transient == nil || s.r.IntN(4) > 0
	if !persistent {
		s.transient[s.next] = true
		s.did.transient++
	}
	m := message.New(message.Attributes{
		Encoding: message.AMQP, Expiration: -1, Persistent: persistent, Priority: uint8(s.r.IntN(4)), Delay: delay,
	}, []byte(exchange), []byte(key), nil, len(body))
	copy(m.Body(), body)
	return m
}

// due is the time at which the broker holds a message that is published now for due.
func (s *simulation) due(m *message.Message) int64 {
	if m.Delay == 0 {
		return 0
	}
	return m.Due(s.now.Load())
}

// place is where a message stands after a start: those without a delay first, the others by due time.
type place struct {
	due int64
	id  int
}

func (p place) before(q place) bool { return p.due < q.due || p.due == q.due && p.id <= q.id }

// take gets a message and acks it at once (0), requeues it (1), or holds it (2).
func (s *simulation) take(name string, what int) {
	var tag uint64
	var body string
	ok, e := s.k.ch.Get(name, what == 0 && s.r.IntN(2) == 0, func(d *Delivery, _ int) { tag, body = d.Tag, string(d.Msg.Body()) })
	s.k.ok(e)
	s.k.end()
	if !ok {
		return
	}
	id := s.id(body)
	m := s.queues[name][id]
	switch {
	case m == nil:
		s.t.Fatalf("queue %s: got %.20q, which cannot be here", name, body)
	case what == 0:
		s.drop(name, id)
		s.k.ch.Ack(tag, false) // an error for a get that needed none
		s.k.EndTurn()
		s.k.EndTurn()
	case what == 1:
		s.k.ok(s.k.ch.Nack(tag, false, true))
		s.k.end()
	default:
		m.held = tag
	}
}

// consume has a consumer take a few messages, settle some of them, and go.
func (s *simulation) consume(name string) {
	s.p.end()
	c := connect(s.t, s.b)
	c.ok(c.ch.Qos(uint16(1+s.r.IntN(20)), false))
	c.consume(ConsumeArgs{Queue: name})
	c.end()
	for _, d := range c.sink.take() {
		id := s.id(d.body)
		m := s.queues[name][id]
		if m == nil {
			s.t.Fatalf("queue %s: delivered %.20q, which cannot be here", name, d.body)
		}
		switch s.r.IntN(4) {
		case 0:
			c.ok(c.ch.Nack(d.tag, false, true))
			c.end()
		case 1, 2:
			s.drop(name, id)
			c.ok(c.ch.Ack(d.tag, false))
			c.end()
		}
	}
	c.Close()
}

func (s *simulation) settleHeld(name string) {
	ids := slices.Sorted(maps.Keys(s.queues[name]))
	for _, i := range s.r.Perm(len(ids)) {
		m := s.queues[name][ids[i]]
		if m.held == 0 {
			continue
		}
		switch s.r.IntN(3) {
		case 0:
			s.k.ok(s.k.ch.Nack(m.held, false, true))
		case 1:
			sure := m.state == simSure
			s.drop(name, ids[i])
			s.k.ok(s.k.ch.Nack(m.held, false, false))
			if name == "b" {
				s.rejected[ids[i]] = sure
				s.queues["dead"][ids[i]] = &simMessage{state: simMaybe}
			}
		default:
			s.k.ok(s.k.ch.Ack(m.held, false))
			s.drop(name, ids[i])
		}
		m.held = 0
		s.k.end()
		return
	}
}

// commit publishes a few messages in a transaction.
func (s *simulation) commit() {
	s.p.end() // what it collected comes first
	s.txs++
	s.did.transactions++
	for range 1 + s.r.IntN(6) {
		name := simNames[s.r.IntN(len(simNames))]
		m := s.message("", name)
		s.queues[name][s.next] = &simMessage{tx: s.txs, due: s.due(m)}
		s.tx.ok(s.tx.ch.Publish(&Publish{Msg: m}))
		s.next++
	}
	s.tx.ok(s.tx.ch.TxCommit())
	s.tx.end()
	s.txOpen = append(s.txOpen, s.txs)
}

// breakDisk makes the next write or sync of the journal fail.
func (s *simulation) breakDisk() {
	s.did.faults++
	var left atomic.Int64
	left.Store(int64(s.r.IntN(10)))
	err := error(syscall.EIO)
	full := s.r.IntN(4) == 0
	if full {
		err = syscall.ENOSPC // for one attempt only: the writer tries again
	}
	short := s.r.IntN(100)
	f := func(o vfs.Op) error {
		if o.Kind != vfs.OpWrite && (o.Kind != vfs.OpSync || full) || left.Add(-1) != -1 {
			return nil
		}
		if o.Kind == vfs.OpWrite {
			return &vfs.Short{N: o.Len * short / 100, Err: err}
		}
		return err
	}
	s.fault.Store(&f)
}

func (s *simulation) save() bool {
	if s.failed.Load() {
		return false
	}
	snap := s.b.Snapshot()
	if err := s.b.Commit(&snap); err != nil {
		if !s.failed.Load() && !errors.Is(err, syscall.EIO) {
			s.t.Fatal(err)
		}
		return false
	}
	s.saved = snap
	s.b.Saved(&snap)
	return true
}

func (s *simulation) endTurns() {
	s.p.end()
	s.k.end()
	s.tx.end()
}

func (s *simulation) waitConfirms() {
	seq, txs := s.p.seq, len(s.txOpen)
	until(s.t, "all confirms", func() bool {
		s.p.peer.mu.Lock()
		confirmed := s.p.sink.confirmed
		s.p.peer.mu.Unlock()
		s.tx.peer.mu.Lock()
		committed := s.tx.sink.committed
		s.tx.peer.mu.Unlock()
		return s.failed.Load() || confirmed == seq && committed == txs
	})
	s.noteConfirms()
}

// noteConfirms turns what is confirmed at this moment into promises.
func (s *simulation) noteConfirms() {
	s.p.peer.mu.Lock()
	confirmed := s.p.sink.confirmed
	s.p.peer.mu.Unlock()
	s.tx.peer.mu.Lock()
	committed := s.tx.sink.committed
	s.tx.peer.mu.Unlock()
	for _, tx := range s.txOpen[:committed] {
		s.txDone[tx] = true
	}
	for _, model := range s.queues {
		for _, m := range model {
			if m.state == simPending && (m.tx != 0 && s.txDone[m.tx] || m.tx == 0 && m.seq <= confirmed) {
				m.state, m.tx = simSure, 0
			}
		}
	}
}

// settleDown waits until nothing is in doubt: all is confirmed and every settlement on disk.
func (s *simulation) settleDown() {
	s.waitConfirms()
	if s.failed.Load() {
		return
	}
	s.b.upkeep.work() // sweeps
	s.b.journal.Lock()
	pos := s.b.journal.Settle(1<<40, 1, 1)
	s.b.journal.Unlock()
	if s.b.journal.Sync(pos) != nil {
		return
	}
	for id := range s.rejected {
		s.queues["dead"][id].state = simSure // its record comes before that of the settlement
	}
	clear(s.rejected)
	for _, model := range s.queues {
		maps.DeleteFunc(model, func(_ int, m *simMessage) bool { return m.state == simMaybe })
	}
}

func (s *simulation) gone() {
	s.did.moved += int(s.b.upkeep.copied.Load())
	s.did.paged += int(s.b.upkeep.paged.Load())
	for name, model := range s.queues {
		maps.DeleteFunc(model, func(id int, _ *simMessage) bool { return s.transient[id] || name == fleeting })
		for _, m := range model {
			m.seq, m.held = 0, 0
		}
	}
	maps.DeleteFunc(s.rejected, func(id int, _ bool) bool { return s.transient[id] })
	s.txOpen = nil
}

func (s *simulation) crash() {
	after := s.fs.Crash(s.r.Uint64())
	for _, c := range []*client{s.p, s.k, s.tx} {
		c.Close()
	}
	s.b.Close()
	s.gone()
	s.fs = after
}

func (s *simulation) stop() {
	for _, c := range []*client{s.p, s.k, s.tx} {
		c.Close()
	}
	s.fault.Store(nil)
	if !s.failed.Load() {
		s.save()
	}
	if err := s.b.Close(); err != nil && !s.failed.Load() {
		s.t.Fatal(err)
	}
	s.gone()
}

// finish takes everything: the journal must then be all but empty.
func (s *simulation) finish() {
	s.endTurns()
	s.fault.Store(nil)
	s.now.Add(simLongest + 1)
	s.k.ok(s.k.ch.Recover())
	s.waitConfirms()
	if s.failed.Load() {
		s.crash()
		return
	}
	s.save()
	defer func() {
		if st, _ := s.b.JournalStats(); s.t.Failed() {
			s.t.Logf("%+v", st)
			for _, q := range s.b.Queues("/") {
				s.t.Logf("%s: %+v", q.Name(), q.Counts())
			}
		}
	}()
	until(s.t, "an empty journal", func() bool {
		for _, name := range append(simNames, "dead") {
			s.k.drain(name) // each time: what expires just now becomes a dead letter a moment later
		}
		s.k.end()
		s.b.upkeep.tick()
		st, _ := s.b.JournalStats()
		return s.failed.Load() || st.Live == 0 && st.LiveSize == 0 && st.Segments <= 2
	})
	s.stop()
}
