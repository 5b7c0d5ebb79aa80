package journal

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/cespare/xxhash/v2"

	"github.com/firemq/firemq/internal/vfs"
)

// A checkpoint is a file beside the segments with what replaying the log up to a position gives,
// so that Open need not. It is the caller's state, opaque to the journal, behind a table of the
// segments that it covers:
//
//	0   "FireMQ-C"   8 version u32 = 1   12 number of segments u32
//	16  position u64: all records before it are in the state
//	24  position of the last topology record before that, 0 for none u64
//	32  for each segment, 48 bytes: number, epoch, end of its records before position, weight of
//	    all its targets, bytes of its message records, position of its last topology record
//	    the state
//	-8  XXH64 of all before
//
// But for what Keep was called for, it only saves time: where it is missing, damaged or of a newer
// version, all of the log is replayed. So it is never written before everything that it rests on is committed.

const (
	checkpointName    = "checkpoint"
	checkpointTemp    = "checkpoint.tmp"
	checkpointMagic   = "FireMQ-C"
	checkpointVersion = 1
	checkpointHead    = 32
	checkpointSegment = 48
)

// Checkpoint is one in the making.
type Checkpoint struct {
	j        *Journal
	pos      Position
	topology Position
	segments []checkpointed
	state    []byte // of one that was read
}

type checkpointed struct {
	number, epoch        uint64
	end, whole, messages int64
	topology             Position
}

// BeginCheckpoint takes the position of the next record. The caller then collects a state in which
// all records before it are applied; whether later ones are does not matter, because replaying
// them again changes nothing. Nothing is moved (Move) between here and Save. Any goroutine that
// does not hold Lock.
func (j *Journal) BeginCheckpoint() *Checkpoint {
	j.Lock()
	defer j.Unlock()
	if j.cur.end == headerBytes {
		j.Settle(0, 1, 1) // of no queue: a segment without a record is not there when the log is read
	}
	c := &Checkpoint{j: j, pos: j.cur.base + uint64(j.cur.end)}
	j.log.Load().each(func(s *segment) {
		t := s.topology.Load()
		c.topology = max(c.topology, t)
		c.segments = append(c.segments, checkpointed{s.number, s.epoch, s.end, s.whole.Load(), s.messages.Load(), t})
	})
	return c
}

// Position is where the checkpoint was begun: places from here on need not be in it.
func (c *Checkpoint) Position() Position { return c.pos }

// ErrTopology is a checkpoint that is not written because Floor has not passed its topology yet.
var ErrTopology = errors.New("the topology before the checkpoint is not saved elsewhere yet")

// Save writes the checkpoint in place of the one before, with the state that write gives, after
// everything appended until then is committed.
func (c *Checkpoint) Save(write func(w io.Writer) error) (err error) {
	j := c.j
	if c.topology != 0 && c.topology >= j.floor.Load() {
		return ErrTopology
	}
	temp := j.path(checkpointTemp)
	defer func() {
		if err != nil {
			j.o.FS.Remove(temp)
			err = fmt.Errorf("write checkpoint: %w", err)
		}
	}()
	f, err := j.o.FS.Create(temp)
	if err != nil {
		return err
	}
	sum := xxhash.New()
	at := &writerAt{f: f}
	buf := bufio.NewWriterSize(at, 128<<10)
	w := io.MultiWriter(buf, sum)
	if _, err = w.Write(c.head()); err == nil {
		err = write(w)
	}
	if err == nil {
		_, err = buf.Write(order.AppendUint64(nil, sum.Sum64()))
	}
	if err == nil {
		err = buf.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	if err := j.flush(); err != nil {
		return err
	}
	if err := j.o.FS.Rename(temp, j.path(checkpointName)); err != nil {
		return err
	}
	if err := j.o.FS.SyncDir(j.o.Dir); err != nil {
		return err
	}
	j.covered.Store(c.pos)
	j.kickKeeper()
	return nil
}

func (c *Checkpoint) head() []byte {
	b := make([]byte, 0, checkpointHead+len(c.segments)*checkpointSegment)
	b = append(b, checkpointMagic...)
	b = order.AppendUint32(b, checkpointVersion)
	b = order.AppendUint32(b, uint32(len(c.segments)))
	b = order.AppendUint64(b, c.pos)
	b = order.AppendUint64(b, c.topology)
	for _, s := range c.segments {
		for _, v := range [...]uint64{s.number, s.epoch, uint64(s.end), uint64(s.whole), uint64(s.messages), s.topology} {
			b = order.AppendUint64(b, v)
		}
	}
	return b
}

type writerAt struct {
	f   vfs.File
	off int64
}

func (w *writerAt) Write(p []byte) (int, error) {
	n, err := w.f.WriteAt(p, w.off)
	w.off += int64(n)
	return n, err
}

// loadCheckpoint gives the folder's checkpoint and its state, or nil with the reason why there is
// none to be used.
func loadCheckpoint(fsys vfs.FS, name string) (c *Checkpoint, state []byte, err error) {
	b, err := vfs.ReadFile(fsys, name, 1<<40)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return parseCheckpoint(b)
}

var errCheckpoint = errors.New("it is damaged")

func parseCheckpoint(b []byte) (c *Checkpoint, state []byte, err error) {
	if len(b) < checkpointHead+8 || string(b[:8]) != checkpointMagic {
		return nil, nil, errCheckpoint
	}
	if v := order.Uint32(b[8:]); v != checkpointVersion {
		return nil, nil, fmt.Errorf("its format is %d, this version reads %d", v, checkpointVersion)
	}
	b, sum := b[:len(b)-8], order.Uint64(b[len(b)-8:])
	n := int(order.Uint32(b[12:]))
	if xxhash.Sum64(b) != sum || n > (len(b)-checkpointHead)/checkpointSegment {
		return nil, nil, errCheckpoint
	}
	c = &Checkpoint{pos: order.Uint64(b[16:]), topology: order.Uint64(b[24:])}
	b = b[checkpointHead:]
	for range n {
		c.segments = append(c.segments, checkpointed{
			order.Uint64(b), order.Uint64(b[8:]), int64(order.Uint64(b[16:])), int64(order.Uint64(b[24:])),
			int64(order.Uint64(b[32:])), order.Uint64(b[40:]),
		})
		b = b[checkpointSegment:]
	}
	return c, b, nil
}

// usable says why a checkpoint does not fit the files of the log, of which last is the last
// one's scan.
func (c *Checkpoint) usable(j *Journal, files []file, last *scan) error {
	if j.o.After < c.topology {
		return errors.New("the definitions are older than it")
	}
	number := c.pos >> j.shift
	found := false
	for i, f := range files {
		k := c.find(f.number)
		switch {
		case f.number > number && k == nil:
		case k == nil:
			return fmt.Errorf("it does not know %s", segmentName(f.number))
		case f.s == nil && f.number == number:
			return fmt.Errorf("%s cannot be read", segmentName(f.number))
		case f.s != nil && f.s.epoch != k.epoch:
			return fmt.Errorf("%s is another one", segmentName(f.number))
		case f.s == nil:
		case c.within(k, f.s):
			found = true
			if i == len(files)-1 && (last == nil || f.s.base+uint64(last.end) < c.pos) {
				return fmt.Errorf("%s ends before it", segmentName(f.number))
			}
		}
	}
	if !found {
		return errors.New("its segment is gone")
	}
	return nil
}

// restore sets what reading the records before the checkpoint would.
func (k *checkpointed) restore(s *segment) {
	s.whole.Store(k.whole)
	s.messages.Store(k.messages)
	s.topology.Store(k.topology)
}

// within says that the checkpoint's position is in s: the last segment that it knows.
func (c *Checkpoint) within(k *checkpointed, s *segment) bool {
	return s.base+uint64(k.end) == c.pos
}

func (c *Checkpoint) find(number uint64) *checkpointed {
	for i := range c.segments {
		if c.segments[i].number == number {
			return &c.segments[i]
		}
	}
	return nil
}

// covers says that all records of f are in the checkpoint.
func (c *Checkpoint) covers(f *file) bool {
	if c == nil || f.s == nil {
		return false
	}
	k := c.find(f.number)
	return k != nil && !c.within(k, f.s)
}

// Adopt counts n targets of messages in pos's segment as live, with their weight together, when a
// checkpoint's state is restored. It reports false when the log no longer holds pos: later records
// settle the targets, or their messages are lost.
func (j *Journal) Adopt(pos Position, n int, weight int64) bool {
	s := j.log.Load().find(pos >> j.shift)
	if s == nil {
		return false
	}
	s.live.Add(int64(n))
	s.weight.Add(weight)
	return true
}

// Tail is how many bytes of the log are behind a position: what a start replays when a checkpoint
// was taken there. Any goroutine that does not hold Lock.
func (j *Journal) Tail(pos Position) int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if s := j.log.Load().oldest(); s != nil {
		pos = max(pos, s.base)
	}
	return int64(j.cur.base) + j.cur.end - int64(pos)
}

// SameSegment says whether Adopt and Free may count both positions together.
func (j *Journal) SameSegment(a, b Position) bool { return a>>j.shift == b>>j.shift }

// Holds says whether the log has the segment of a position. Any goroutine.
func (j *Journal) Holds(pos Position) bool { return j.log.Load().find(pos>>j.shift) != nil }
