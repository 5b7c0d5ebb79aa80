package broker

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/broker/queue"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/vfs"
	"github.com/firemq/firemq/journal"
	"github.com/firemq/firemq/route"
)

// Options configure a Broker. The zero value of a field is its documented default.
type Options struct {
	// FS and JournalDir say where durable messages live; an empty JournalDir keeps
	// everything in memory.
	FS         vfs.FS
	JournalDir string
	NoSync     bool // confirm after the write to the OS, without waiting for the disk

	// Start is the state to begin with: users, vhosts and topology as of Start.Position.
	Start Snapshot
	// OnChange is called after durable topology or users changed, to have a Snapshot saved. It
	// must not block and may come with locks held.
	OnChange func()
	// OnFatal is called once when nothing can be confirmed any more (the disk failed).
	OnFatal func(error)
	// OnStall says that the journal cannot write for want of room, and with nil that it goes on. It
	// must not block; see journal.Options.OnStall.
	OnStall func(error)

	// OnGrowth is called when all that Allow or AllowLate granted is used up: publishers wait for more. It must not
	// block.
	OnGrowth func()
	// OnReplay tells how far the recovery is; see journal.Options.OnReplay.
	OnReplay func(read, of, records int64)

	// Codecs read and write message properties, one for each message.Encoding.
	Codecs map[message.Encoding]message.Codec

	// ConsumerTimeout is how long a delivery may wait for its acknowledgement, see SetConsumerTimeout; 0: for ever.
	ConsumerTimeout time.Duration

	Node string // the broker's name, for the firehose

	Tracer Tracer // gets the spans of messages; nil: there are none

	// LoopbackUsers may log in from this machine only.
	LoopbackUsers []string

	Log *slog.Logger // nil: discarded

	tuning tuning
	// Now is the clock, Unix ms; nil: the system's.
	Now func() int64
}

// tuning is for tests, which are too small for the real bounds; zero values stand for those.
type tuning struct {
	segmentBytes    int64 // see journal.Options
	queueResident   int64 // see page.go, as all up to the next
	queueKeep       int64
	brokerResident  int64
	checkpointBytes int64 // see checkpoint.go
	maxUnacked      int64
	withholdUnacked int64
	maxConsumers    int64 // see consume.go
	maxExchanges    int64 // see declare.go
}

func (t *tuning) fill() {
	for at, value := range map[*int64]int64{
		&t.queueResident: queueResident, &t.queueKeep: queueKeep, &t.brokerResident: brokerResident,
		&t.checkpointBytes: checkpointBytes, &t.maxUnacked: maxUnacked, &t.withholdUnacked: withholdUnacked,
		&t.maxConsumers: maxConsumers, &t.maxExchanges: maxExchanges,
	} {
		if *at == 0 {
			*at = value
		}
	}
}

// Broker is one running broker. All methods are safe for any goroutine unless they say otherwise.
type Broker struct {
	opt     Options            // immutable
	codecs  [256]message.Codec // immutable
	log     *slog.Logger       // immutable
	journal *journal.Journal   // immutable, nil when everything is in memory
	routes  *route.Table[*Queue]
	users   *auth.Store
	// attempts are the wrong passwords of all protocols. Any goroutine.
	attempts auth.Attempts
	done     *completer
	timers   *timers
	upkeep   *upkeep
	// resident is about how many bytes of messages that the journal has are in memory (see
	// Queue.page). Any goroutine.
	resident atomic.Int64

	// unfinished is how many bytes connections hold of what is not complete, see Conn.Hold. Any goroutine.
	unfinished, unfinishedLimit atomic.Int64

	// allowance is how many bytes may still be published before memory is looked at again, see Allow. Any
	// goroutine.
	allowance atomic.Int64
	tight     tightness

	room room
	pace pace

	timeouts timeouts

	// alarm is the Reason for which publishers are paused, 0 for none. Any goroutine.
	alarm atomic.Uint32

	// topo guards which vhosts, exchanges, queues and bindings exist. It is the outermost lock:
	// a queue's lock and the locks inside route, auth and journal may be taken under it, and it is
	// never taken under one of them.
	topo    sync.RWMutex
	globals map[string]json.RawMessage // guarded by topo
	vhosts  map[string]*VHost          // guarded by topo
	// exchanges is how many there are in all vhosts, those included that every vhost has; guarded by topo.
	exchanges int64
	// arguments are about what those of queues and exchanges take, in bytes. Any goroutine.
	arguments atomic.Int64
	byID      map[uint64]*Queue // durable queues by journal id; guarded by topo
	nextID    uint64            // journal id of the next durable queue; guarded by topo
	fleeting  uint64            // as nextID, of other queues, from fleetingIDs on; guarded by topo
	topoPos   journal.Position  // the last topology record; guarded by topo

	// counted: a message in the journal came back to its queue, and only a checkpoint holds its count.
	counted atomic.Bool

	// committing is held for reading while a transaction takes effect and is appended. Taken with
	// no other lock held.
	committing sync.RWMutex

	connMu sync.Mutex
	conns  map[*Conn]struct{} // guarded by connMu
	usage  map[string]*usage  // by user; guarded by connMu
	closed bool               // guarded by connMu
	empty  chan struct{}      // closed when the last connection of a closed broker ends

	// tracedDeliveries is how many channels keep for their settlement. Any goroutine.
	tracedDeliveries atomic.Int64
	spanSalt         uint64 // of this run; immutable

	counters Counters
	census   census
	logins   sync.Map // protocol -> *LoginAttempts

	// Beside alarm. Any goroutine.
	alarms    atomic.Uint64 // how often there was none before
	late      atomic.Int64  // see AllowLate, as the next three
	owing     atomic.Int64
	owingEach atomic.Int64
	// withholding is whether deliveries are held back from channels that have many to settle, see withhold.
	withholding atomic.Bool
	withheldMu  sync.Mutex
	withheld    map[*Channel]struct{} // those whose consumers wait for its end (Channel.withheld); nil: none; guarded by withheldMu, a leaf
	// owingOf is the alarm that owing is about; owned by AllowLate's caller, like spare.
	owingOf uint64
	// spare is how many bytes are left of what may be published in an alarm whatever memory is in use, and how many of them owing
	// was made of.
	spare struct {
		alarm      uint64
		left, lent int64
	}
}

// VHost is one namespace of exchanges and queues.
type VHost struct {
	name string // immutable

	// Guarded by Broker.topo.
	exchanges map[string]*Exchange
	queues    map[string]*Queue
	changes   uint64 // of queues
	policies  policies
	limits    Limits    // never changed in place
	meta      VHostMeta // changed by setMeta alone

	// Guarded by Broker.connMu.
	conns int  // open connections
	gone  bool // deleted: no connection is admitted any more

	traced atomic.Bool                  // meta.Tracing; any goroutine
	sorted atomic.Pointer[sortedQueues] // nil: nobody has asked yet; any goroutine

	direct ExchangeStats // of the default exchange
	past   MessageStats  // of channels that are closed; guarded by census.mu
}

// Exchange is what the broker knows of an exchange; its bindings are in package route.
type Exchange struct {
	Name       string
	Type       string
	Durable    bool
	AutoDelete bool
	Internal   bool
	Args       table.Table

	alternate string           // of Args; immutable
	kept      int64            // about what Args take, in bytes; immutable
	noted     journal.Position // of its declaration, 0 when it is not durable or was recovered; immutable
	kind      route.Kind       // how it routes; immutable
	governing Governing        // guarded by Broker.topo
	stats     *ExchangeStats   // immutable
}

// Counters are what happened since the start, messages excepted (see Traffic). Any goroutine.
type Counters struct {
	ConnectionsOpened, ConnectionsClosed, ChannelsOpened, ChannelsClosed atomic.Uint64
	QueuesDeclared, QueuesCreated, QueuesDeleted                         atomic.Uint64
	// Dead counts the messages that left queues unsettled, by reason (queue.Reason); [1] those of
	// queues with a dead-letter exchange, [0] those that were dropped.
	Dead      [2][queue.Reasons]atomic.Uint64
	Consumers atomic.Int64
	// AckTimeouts counts the deliveries that waited for too long (see Channel.Late).
	AckTimeouts atomic.Uint64
	// Copies of the firehose, and those that an alarm forbade.
	Traced, TraceDropped atomic.Uint64
}

// Recovery says what Open found on disk.
type Recovery struct {
	Queues   int // durable queues
	Messages int // messages ready in them
	Damaged  []journal.Damage
	Restored bool  // from a checkpoint and the journal's tail
	Bytes    int64 // journal read
	Took     time.Duration
}

// Open starts a broker and recovers what its journal holds.
func Open(o Options) (*Broker, Recovery, error) {
	b := prepare(o)
	rec, err := b.recover()
	if err != nil {
		return nil, rec, err
	}
	b.done.start()
	b.timers.start()
	b.upkeep.start()
	return b, rec, nil
}

// prepare makes a broker that is empty and has no goroutines yet.
func prepare(o Options) *Broker {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = func() int64 { return time.Now().UnixMilli() }
	}
	if o.OnChange == nil {
		o.OnChange = func() {}
	}
	if o.OnFatal == nil {
		o.OnFatal = func(error) {}
	}
	if o.OnGrowth == nil {
		o.OnGrowth = func() {}
	}
	o.tuning.fill()
	b := &Broker{
		opt: o, log: o.Log,
		routes:  route.New[*Queue](),
		users:   auth.NewStore(),
		vhosts:  make(map[string]*VHost),
		byID:    make(map[uint64]*Queue),
		conns:   make(map[*Conn]struct{}),
		usage:   make(map[string]*usage),
		empty:   make(chan struct{}),
		globals: make(map[string]json.RawMessage),
		census:  census{channels: make(map[*Channel]struct{}), past: make(map[string]*MessageStats)},
		nextID:  1,
	}
	b.routes.Now = o.Now
	for enc, c := range o.Codecs {
		b.codecs[enc] = c
	}
	if o.Tracer != nil {
		b.spanSalt = mathrand.Uint64()
	}
	b.SetConsumerTimeout(o.ConsumerTimeout)
	b.users.SetLoopbackUsers(o.LoopbackUsers...)
	b.allowance.Store(Unlimited)
	b.tight.window.Store(2) // no connection has published yet
	b.room.left.Store(Unlimited)
	b.room.declared.Store(Unlimited)
	b.pace.start = time.Now()
	b.done = newCompleter(b)
	b.timers = newTimers(b)
	b.upkeep = newUpkeep(b)
	return b
}

// Hurry is called at the beginning of a shutdown: from now on nobody waits for a disk that has no room, neither Commit nor
// what an operator's Transfer or the broker itself writes. It is an error then. Any goroutine, no lock held.
func (b *Broker) Hurry() {
	if b.journal != nil {
		b.journal.Hurry()
	}
}

// Close refuses new connections, makes everything appended durable and stops the broker's goroutines. The
// sessions have been told and closed before (see Stop).
func (b *Broker) Close() error {
	b.Hurry()
	b.connMu.Lock()
	b.closed = true
	b.connMu.Unlock()
	b.timers.stop()
	b.upkeep.stop()
	var err error
	if b.journal != nil {
		b.lastCheckpoint()
		err = b.journal.Close()
	}
	b.done.stop()
	b.topo.Lock()
	defer b.topo.Unlock()
	for _, v := range b.vhosts {
		for _, q := range v.queues {
			q.discard()
		}
	}
	return err
}

// lastCheckpoint leaves one for the next start. Without it that only takes longer.
func (b *Broker) lastCheckpoint() {
	if s := b.journal.Stats(); s.Failed || s.Stalled || s.Appended == 0 && s.Recovered.Records < 2 && !b.counted.Load() {
		return
	}
	if _, _, err := b.checkpoint(); err != nil {
		b.log.Info("no checkpoint was left for the next start", "reason", err)
	}
}

// Stop refuses new connections and stops reading the open ones, sends the confirms of what they had
// published, asks each to close with the reason for its client, and waits until all have, or ctx ends. A
// disk that cannot write keeps confirms from being sent for half of the time at most.
func (b *Broker) Stop(ctx context.Context, e *Error) {
	b.connMu.Lock()
	b.closed = true
	conns := make([]*Conn, 0, len(b.conns))
	for c := range b.conns {
		conns = append(conns, c)
	}
	empty := b.empty
	if len(conns) == 0 {
		b.connMu.Unlock()
		return
	}
	b.connMu.Unlock()
	for _, c := range conns {
		c.peer.Pause(PauseClosing)
	}
	b.flushConfirms(ctx)
	for _, c := range conns {
		c.peer.Close(e)
	}
	select {
	case <-empty:
	case <-ctx.Done():
	}
}

// flushConfirms waits until every confirm that waits for the journal is sent, or for half of ctx's time.
func (b *Broker) flushConfirms(ctx context.Context) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	select {
	case <-b.done.idle():
	case <-ctx.Done():
	}
}

// Counters gives the broker's totals.
func (b *Broker) Counters() *Counters { return &b.counters }

// Objects are how many there are.
type Objects struct {
	Connections, Channels, Consumers, Queues, Exchanges int
}

// Objects counts them now, without a queue's lock.
func (b *Broker) Objects() Objects {
	o := Objects{
		Connections: b.ConnectionCount(), Consumers: int(b.counters.Consumers.Load()),
		Channels: int(b.counters.ChannelsOpened.Load() - b.counters.ChannelsClosed.Load()),
	}
	b.topo.RLock()
	defer b.topo.RUnlock()
	for _, v := range b.vhosts {
		o.Exchanges += len(v.exchanges)
		o.Queues += len(v.queues)
	}
	return o
}

// Totals are all objects and messages.
type Totals struct {
	Objects
	Ready, Unacked int
}

// Totals counts objects and messages now. It locks each queue for a moment.
func (b *Broker) Totals() Totals {
	t := Totals{Objects: b.Objects()}
	for _, v := range b.VHosts() {
		in := b.VHostTotals(v)
		t.Ready += in.Ready
		t.Unacked += in.Unacked
	}
	return t
}

// JournalStats tells how the journal is doing; ok is false for a broker in memory.
func (b *Broker) JournalStats() (s journal.Stats, ok bool) {
	if b.journal == nil {
		return s, false
	}
	return b.journal.Stats(), true
}

// committed is the journal position below which everything is safe.
func (b *Broker) committed() journal.Position {
	if b.journal == nil {
		return 0
	}
	return b.journal.Committed()
}

// unique makes a name nobody chose: prefix and 22 characters of base64url (128 random bits).
func unique(prefix string) string {
	var raw [16]byte
	rand.Read(raw[:])
	return prefix + base64.RawURLEncoding.EncodeToString(raw[:])
}

func queueName(q, vhost string) string { return fmt.Sprintf("queue '%s' in vhost '%s'", q, vhost) }

func exchangeName(x, vhost string) string {
	if x == "" {
		x = defaultExchange
	}
	return fmt.Sprintf("exchange '%s' in vhost '%s'", x, vhost)
}
