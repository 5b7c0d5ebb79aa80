package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/firemq/firemq/internal/vfs"
)

// Position is a place in the journal's endless sequence of bytes, 0 for none. It is part of the
// disk format.
type Position = uint64

// Target names a message's place in one queue.
type Target struct {
	Queue  uint64 // the queue's journal id, never used twice
	Seq    uint64 // the message's sequence number in it
	Expiry int64  // Unix ms, 0 for never
}

// Options say where a journal is and who hears of it. Zero values are the defaults.
type Options struct {
	FS  vfs.FS
	Dir string // the folder of segments, made when missing
	// SegmentBytes is for tests: a power of two from 8 KiB to 4 GiB, 0 for DefaultSegmentBytes.
	// An existing folder keeps the size that it was made with.
	SegmentBytes int64
	// After is a position that every new record must come after: what definitions.json says it
	// holds, so that a journal folder that was lost does not start below it.
	After Position
	// NoSync commits after the write to the operating system.
	NoSync bool

	// Opening is called by Open before the first call of Replay, with the journal that Open will
	// return. Only Free, Keep, Adopt and Holds may be used until then.
	Opening func(j *Journal)
	// OnReplay tells Open's caller how far it is: after each segment, the bytes read of those that are
	// to be read, and the records found in them. From Open's goroutine.
	OnReplay func(read, of, records int64)
	// OnCommit says that Committed has moved to p. From the writer's goroutine: it must not block
	// and must not take Journal.Lock.
	OnCommit func(p Position)
	// OnStall says that the journal cannot write now for want of room or of file descriptors
	// (vfs.Full), and with nil that it goes on. Meanwhile nothing is committed, Pending grows with
	// every append, and the writer tries again every 200 ms. From the writer's goroutine.
	OnStall func(err error)
	// OnRoom says that Low has changed. From the keeper's goroutine: it must not block.
	OnRoom func()
	// OnWaste says that Wasteful(2) found something. From the keeper's goroutine: it must not block.
	OnWaste func()
	// OnFatal says that a write or a sync failed for another reason. Nothing is committed after
	// it, and appends have no effect. Called once, from the writer's goroutine: it must not call
	// Close.
	OnFatal func(err error)
	Log     *slog.Logger

	inspect bool // read everything, whether or not there is a checkpoint
	manual  bool // tests: no goroutines; step and keep are called by the test
}

// Replay receives what Open finds, in the order of the log, on Open's goroutine. An error ends
// Open. Slices are valid during the call only.
type Replay interface {
	// Publish is a message and its places; moved says that it was copied here, from a place that
	// may have been replayed or be gone. Its targets count as live, as if they had just been
	// appended: the receiver tells the weight of each and gives those it does not keep, and the
	// place that a moved one had, to Free.
	Publish(pos Position, targets []Target, payload []byte, moved bool) (weight int64, err error)
	// Settle says that the messages from to to (inclusive sequence numbers) left the queue.
	Settle(queue, from, to uint64) error
	Topology(pos Position, payload []byte) error
	// Checkpoint is the state of the last one (see BeginCheckpoint), and comes before all else
	// but Damage: only what is behind it is replayed. The receiver gives the places in it to Adopt.
	Checkpoint(state []byte) error
	// Damage is a part of the log that cannot be read and was skipped.
	Damage(d Damage)
}

// Damage is a part of the log that cannot be read. Reports come in the order of the log, those of
// a segment before its records.
type Damage struct {
	File   string // path of the segment
	Offset int64  // in the file
	Bytes  int64  // skipped; 0 when a whole file is missing and its size is not known
	Pos    Position
	Reason string
}

// Stats are figures of a journal. Those of recovery are set by Open and stay.
type Stats struct {
	Segments int   // files in the log
	Spare    int   // files kept for reuse, 0 or 1
	Live     int64 // targets that are not settled
	LiveSize int64 // bytes of their records (an estimate where fan-outs differ)
	Bytes    int64 // disk taken by the log's segments

	Records  int64 // appended since Open
	Appended int64 // bytes appended since Open
	Commits  int64
	Syncs    int64
	LastSync time.Duration
	// Of the commits since Open: how long each took, the sync in it, and its bytes and records. A commit that
	// waited for room counts with its wait.
	CommitTime, SyncTime, CommitBytes, CommitRecords Histogram
	Stalled                                          bool // see Options.OnStall
	Failed                                           bool // see Options.OnFatal

	Recovered struct {
		Records  int64
		Bytes    int64
		Messages int64 // targets of publishes
		Torn     int64 // bytes of the last, unfinished commit that were cut off
		Damaged  int64 // reports given to Replay.Damage
		Clean    bool  // the journal was closed, or it was empty
		Took     time.Duration
	}
}

var (
	errGone   = errors.New("the journal no longer holds this position")
	errClosed = errors.New("the journal is closed")
	errNoRoom = errors.New("the journal has no room to write, and is about to be closed")
)

// Journal is an open log. See the package comment for who may call what.
type Journal struct {
	o       Options // immutable
	segSize int64   // immutable after Open, as are shift and limit
	shift   uint    // position >> shift is a segment's number
	limit   int64   // records end at or before this offset, the seal behind it

	mu     sync.Mutex
	cur    *segment // where records go; guarded by mu, as is all up to kept
	next   *segment // its successor, nil until cur has a record
	batch  []*chunk // appended, not yet taken by the writer
	tail   *chunk   // the last of batch, when cur's next record may go into it
	start  int64    // file offset in cur of the batch's first record, 0 when it has none there
	settle []byte   // the last record when it is a Settle in batch that may still grow, else nil
	total  int64    // bytes appended since Open
	count  int64    // records appended since Open
	unused bool     // no record since Open: a folder that was clean needs no second mark
	idle   bool     // the writer waits for wake
	ending bool     // Close has begun: the writer ends when batch is empty
	closed bool     // appends have no effect
	failed error    // set once by the writer; appends have no effect
	hasty  bool     // see Hurry
	waits  int      // callers of Sync
	wake   sync.Cond
	done   sync.Cond // committed moved, failed, or nobody may wait for it any more
	spares []*chunk  // for reuse, at most keptChunks

	log       atomic.Pointer[table]
	floor     atomic.Uint64
	covered   atomic.Uint64 // position of the last checkpoint since Open
	committed atomic.Uint64
	appended  atomic.Int64 // total, as of the last Unlock
	safe      atomic.Int64 // bytes committed since Open
	dead      atomic.Bool  // failed or closed: Free and the keeper do nothing
	wanting   atomic.Bool  // the keeper waits for a commit

	commits  atomic.Int64
	syncs    atomic.Int64
	lastSync atomic.Int64
	// Written by the writer.
	commitTime, syncTime, commitBytes, commitRecords histogram
	stalled                                          atomic.Bool
	low                                              atomic.Bool // see Low

	files      sync.Mutex  // making and naming files: the writer's, the keeper's
	hasSpare   atomic.Bool // written with files held, as is hasReserve; read by any goroutine
	hasReserve atomic.Bool

	writing   []*chunk // owned by the writer, who changes it under mu
	recovered Stats    // immutable after Open

	quit    chan struct{} // closed by Close: stalls and fills end
	kick    chan struct{} // wakes the keeper
	running sync.WaitGroup
	closing sync.Once
	ended   error // Close's result
}

// Lock begins appending. Appends of one Lock are committed together or, when they span
// segments, in order.
func (j *Journal) Lock() { j.mu.Lock() }

// Unlock ends appending and wakes the writer.
func (j *Journal) Unlock() {
	j.appended.Store(j.total)
	if j.idle && len(j.batch) > 0 {
		j.idle = false
		j.wake.Signal()
	}
	j.mu.Unlock()
}

// Committed is the position up to which everything is safe: the end of the last record that was
// synced (NoSync: written). A record at pos is safe when pos < Committed(). It never goes back.
// Any goroutine.
func (j *Journal) Committed() Position { return j.committed.Load() }

// Pending is the bytes appended and not yet committed. Any goroutine.
func (j *Journal) Pending() int64 {
	safe := j.safe.Load() // first: never more than appended
	return j.appended.Load() - safe
}

// Low says that the disk has no room for another segment. What is there still takes what was
// appended and the settlements of tens of millions of messages, which free room, if nothing else
// comes: whoever appends messages stops. Any goroutine.
func (j *Journal) Low() bool { return j.low.Load() }

// Sync waits until the record at pos is safe. The error is the journal's end: it failed, it was closed
// first, or after Hurry there is no room. Any goroutine that does not hold Lock.
func (j *Journal) Sync(pos Position) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.waits++
	defer func() { j.waits-- }()
	for j.committed.Load() <= pos {
		if err := j.hopeless(); err != nil {
			return err
		}
		j.done.Wait()
	}
	return nil
}

// hopeless says why nobody waits for a commit any more, nil while it may come. mu is held.
func (j *Journal) hopeless() error {
	if j.failed == nil && j.hasty && j.stalled.Load() {
		return errNoRoom
	}
	return j.failed
}

// Hurry is called on the way to Close: from now on nobody waits for a journal that has no room (Options.OnStall), Sync and
// Checkpoint.Save give an error instead. Any goroutine that does not hold Lock.
func (j *Journal) Hurry() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.hasty = true
	j.done.Broadcast()
}

// flush waits until everything appended so far is safe. Unlike Sync it asks for no record: the segment
// that is written to may have none yet.
func (j *Journal) flush() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.waits++
	defer func() { j.waits-- }()
	for total := j.total; j.safe.Load() < total; {
		if err := j.hopeless(); err != nil {
			return err
		}
		j.done.Wait()
	}
	return nil
}

// Free says that n targets of records in pos's segment are settled, weight is theirs together, and
// that everything which makes them so (a Settle, a dead-lettered copy) has been appended. It costs
// two atomic adds. Any goroutine, with or without Lock.
func (j *Journal) Free(pos Position, n int, weight int64) {
	s := j.log.Load().find(pos >> j.shift)
	if s == nil {
		return
	}
	s.weight.Add(-weight)
	left := s.live.Add(int64(-n))
	if left > 0 {
		return
	}
	if left < 0 && !j.dead.Load() {
		panic(fmt.Sprintf("BUG: journal: segment %d has %d live targets after freeing %d", s.number, left, n))
	}
	if j.log.Load().oldest() == s {
		j.kickKeeper()
	}
}

// Keep says that what the record at pos tells outlives its targets, and is in the state of each checkpoint from
// there on: its segment stays until there is one. Called for the position of a checkpoint (Checkpoint.Position), it
// has that one last until there is the next. Any goroutine; of a new record before the Unlock that follows it.
func (j *Journal) Keep(pos Position) {
	s := j.log.Load().find(pos >> j.shift)
	if s == nil {
		return
	}
	for {
		old := s.kept.Load()
		if pos <= old || s.kept.CompareAndSwap(old, pos) {
			return
		}
	}
}

// Kept says that a checkpoint would free segments. Any goroutine that does not hold Lock.
func (j *Journal) Kept() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.log.Load().oldest()
	return s != nil && s.sealed && s.live.Load() <= 0 && !j.forgettable(s)
}

// forgettable says that all in s which Keep was called for is in a checkpoint.
func (j *Journal) forgettable(s *segment) bool {
	k := s.kept.Load()
	return k == 0 || k < j.covered.Load()
}

// Floor says that topology records before pos are no longer needed. Any goroutine.
func (j *Journal) Floor(pos Position) {
	for {
		old := j.floor.Load()
		if pos <= old {
			return
		}
		if j.floor.CompareAndSwap(old, pos) {
			j.kickKeeper()
			return
		}
	}
}

// Stats reports the current figures. Any goroutine that does not hold Lock.
func (j *Journal) Stats() Stats {
	s := j.recovered
	j.mu.Lock()
	s.Records, s.Appended, s.Failed = j.count, j.total, j.failed != nil && j.failed != errClosed
	j.log.Load().each(func(g *segment) {
		s.Segments++
		s.Live += g.live.Load()
		s.LiveSize += g.liveBytes()
		s.Bytes += g.disk()
	})
	j.mu.Unlock()
	if j.hasSpare.Load() { // without files, which are held while the disk is waited for
		s.Spare = 1
	}
	s.Commits, s.Syncs = j.commits.Load(), j.syncs.Load()
	s.LastSync, s.Stalled = time.Duration(j.lastSync.Load()), j.stalled.Load()
	s.CommitTime, s.SyncTime = j.commitTime.read(), j.syncTime.read()
	s.CommitBytes, s.CommitRecords = j.commitBytes.read(), j.commitRecords.read()
	return s
}

// Buffers is how many bytes the commit buffers take. Any goroutine that does not hold Lock.
func (j *Journal) Buffers() (n int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, list := range [...][]*chunk{j.batch, j.writing, j.spares} {
		for _, c := range list {
			if c != nil { // written already
				n += int64(cap(c.buf))
			}
		}
	}
	return n
}

// Close commits what was appended, marks the shutdown as clean and ends the goroutines. The
// error is what kept something from being committed. Appends during and after it have no effect.
func (j *Journal) Close() error {
	j.closing.Do(func() { j.ended = j.close() })
	return j.ended
}

func (j *Journal) init(o Options, segSize int64) {
	j.o, j.segSize = o, segSize
	j.shift = uint(bits.TrailingZeros64(uint64(segSize)))
	j.limit = segSize - sealBytes
	j.wake.L, j.done.L = &j.mu, &j.mu
	j.unused = true
	j.log.Store(&table{})
	j.quit, j.kick = make(chan struct{}), make(chan struct{}, 1)
}
