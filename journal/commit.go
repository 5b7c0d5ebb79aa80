package journal

import (
	"errors"
	"fmt"
	"time"

	"github.com/firemq/firemq/internal/vfs"
)

const (
	// chunkBytes is the size of the pieces that the commit buffer is made of. A batch of several
	// chunks is written with a call for each: at this size the calls cost nothing beside the copy.
	chunkBytes = 256 << 10
	// keptChunks bounds the chunks kept when the journal is idle: 2 MiB, touched only by bursts.
	keptChunks = 8

	stallRetry = 200 * time.Millisecond
)

// chunk is a piece of the commit buffer: whole records that follow each other in one segment.
// A record larger than chunkBytes has a chunk of its own.
type chunk struct {
	seg *segment
	off int64 // of buf in the file
	buf []byte
}

// putChecks completes the chunk's records. That is most of the cost of an append, so the writer
// does it instead of those who wait for the lock. It gives their number.
func (c *chunk) putChecks() (records int64) {
	for at := int64(0); at < int64(len(c.buf)); {
		at += putChecks(c.buf[at:], c.seg.epoch, c.seg.base+uint64(c.off+at))
		records++
	}
	return records
}

// Publish appends a message: head and body follow each other as its payload and are copied. Its
// targets count as live, each with the weight that Free gives back. Lock is held.
func (j *Journal) Publish(targets []Target, weight int64, head, body []byte) Position {
	return j.message(kindPublish, targets, weight, head, body)
}

// Move appends a copy of a message for targets that are not settled: what settles one is appended
// later. Their places elsewhere are then to be given to Free. Lock is held.
func (j *Journal) Move(targets []Target, weight int64, payload []byte) Position {
	return j.message(kindMoved, targets, weight, payload, nil)
}

func (j *Journal) message(k kind, targets []Target, weight int64, head, body []byte) Position {
	at := recordHead + len(targets)*targetBytes
	rec, pos := j.place(at+len(head)+len(body), len(targets))
	if rec == nil {
		return pos
	}
	putTargets(rec[recordHead:], targets)
	copy(rec[at:], head)
	copy(rec[at+len(head):], body)
	j.cur.count(len(targets), weight, padded(int64(len(rec))))
	putHead(rec, j.start, k, len(targets))
	return pos
}

// Settle appends that the messages from to to (inclusive sequence numbers) left a queue. A range
// that continues the one before it joins its record. Lock is held.
func (j *Journal) Settle(queue, from, to uint64) Position {
	if r := j.settle; r != nil && order.Uint64(r[recordHead:]) == queue && order.Uint64(r[recordHead+16:])+1 == from {
		order.PutUint64(r[recordHead+16:], to)
		return j.cur.base + uint64(j.cur.end) - uint64(len(r))
	}
	rec, pos := j.place(recordHead+rangeBytes, 1)
	if rec == nil {
		return pos
	}
	order.PutUint64(rec[recordHead:], queue)
	order.PutUint64(rec[recordHead+8:], from)
	order.PutUint64(rec[recordHead+16:], to)
	putHead(rec, j.start, kindSettle, 1)
	j.settle = rec
	return pos
}

// Topology appends a change of the topology, opaque to the journal. Lock is held.
func (j *Journal) Topology(payload []byte) Position {
	rec, pos := j.place(recordHead+len(payload), 0)
	if rec == nil {
		return pos
	}
	copy(rec[recordHead:], payload)
	j.cur.topology.Store(pos)
	putHead(rec, j.start, kindTopology, 0)
	return pos
}

// place makes room for a record of n bytes in the commit buffer and gives the room and the
// record's position. rec is nil after Close or a failure: the position is then one that never
// becomes safe.
func (j *Journal) place(n, count int) (rec []byte, pos Position) {
	if n > MaxRecord || count > maxCount {
		panic(fmt.Sprintf("BUG: journal: a record of %d bytes and %d targets", n, count))
	}
	s := j.cur
	if j.closed || j.failed != nil {
		return nil, max(s.base+uint64(s.end), j.committed.Load())
	}
	return j.append(n)
}

func (j *Journal) append(n int) (rec []byte, pos Position) {
	s, room := j.cur, padded(int64(n))
	if s.end > headerBytes && (s.end+room > j.limit || s.early) {
		j.roll()
		s = j.cur
	}
	if s.end == headerBytes {
		j.begin(s, room)
	}
	return j.put(s, n, room)
}

// put appends to the chunk at the end of the batch, or to a new one.
func (j *Journal) put(s *segment, n int, room int64) (rec []byte, pos Position) {
	c := j.tail
	if c == nil || int64(cap(c.buf)-len(c.buf)) < room {
		c = j.grow(s, room)
	}
	if j.start == 0 {
		j.start = s.end
	}
	at := len(c.buf)
	c.buf = c.buf[:at+int(room)]
	order.PutUint64(c.buf[len(c.buf)-alignment:], 0) // the padding
	pos = s.base + uint64(s.end)
	s.end += room
	j.total += room
	j.count++
	j.settle, j.unused = nil, false
	return c.buf[at : at+n : at+int(room)], pos
}

// grow adds a chunk for at least room bytes at cur's end to the batch.
func (j *Journal) grow(s *segment, room int64) *chunk {
	var c *chunk
	switch n := len(j.spares); {
	case room > chunkBytes:
		c = &chunk{buf: make([]byte, 0, room)}
	case n > 0:
		c = j.spares[n-1]
		j.spares = j.spares[:n-1]
	default:
		c = &chunk{buf: make([]byte, 0, chunkBytes)}
	}
	c.seg, c.off = s, s.end
	j.batch = append(j.batch, c)
	j.tail = c
	return c
}

// begin is called before a segment's first record: it settles where the next segment starts,
// which for an oversize record is several numbers further, and has the keeper prepare it.
func (j *Journal) begin(s *segment, room int64) {
	slots := s.slots(s.end + room + sealBytes)
	if slots > 1 {
		j.log.Store(j.log.Load().add(s, slots))
	}
	j.next = j.newSegment(s.number+slots, s.number)
	j.kickKeeper()
}

// roll seals cur and goes on to the next segment.
func (j *Journal) roll() {
	s := j.cur
	rec, _ := j.put(s, sealBytes, sealBytes)
	putHead(rec, j.start, kindSeal, 0)
	s.sealed = true
	j.cur, j.next, j.tail, j.start = j.next, nil, nil, 0
	j.log.Store(j.log.Load().add(j.cur, 1))
}

// write is the writer's goroutine: it commits what was appended while the last commit ran.
func (j *Journal) write() {
	defer j.running.Done()
	for j.step(true) {
	}
}

// step commits the batch. With wait it waits for one first. It reports false when the journal
// has ended.
func (j *Journal) step(wait bool) bool {
	j.mu.Lock()
	for wait && len(j.batch) == 0 && !j.ending && j.failed == nil {
		j.idle = true
		j.wake.Wait()
		j.idle = false
	}
	if len(j.batch) == 0 || j.failed != nil {
		j.mu.Unlock()
		return false
	}
	j.writing, j.batch = j.batch, j.writing[:0]
	j.tail, j.settle, j.start = nil, nil, 0
	j.mu.Unlock()

	var err error
	for chunks := j.writing; len(chunks) > 0 && err == nil; {
		// A segment is safe before the next one gets its first byte, so that only the last
		// segment with records can end in a torn commit.
		n := 1
		for n < len(chunks) && chunks[n].seg == chunks[0].seg {
			n++
		}
		err = j.commit(chunks[0].seg, chunks[:n])
		chunks = chunks[n:]
	}

	j.mu.Lock()
	for i, c := range j.writing {
		if err == nil && cap(c.buf) == chunkBytes && len(j.spares) < keptChunks {
			c.seg, c.buf = nil, c.buf[:0]
			j.spares = append(j.spares, c)
		}
		j.writing[i] = nil
	}
	if err != nil {
		j.failed = err
		j.batch, j.tail, j.settle = nil, nil, nil
		j.dead.Store(true)
	}
	if j.waits > 0 {
		j.done.Broadcast()
	}
	j.mu.Unlock()
	if err != nil && !errors.Is(err, errStalled) && j.o.OnFatal != nil {
		j.o.OnFatal(err)
	}
	if j.wanting.Swap(false) {
		j.kickKeeper()
	}
	return err == nil
}

// commit writes and syncs the chunks, all of one segment.
func (j *Journal) commit(s *segment, chunks []*chunk) error {
	start := time.Now()
	var f vfs.File
	if err := j.persist(s, func() (err error) { f, err = j.openForWrite(s); return err }); err != nil {
		return fmt.Errorf("open segment %s: %w", s.name, err)
	}
	bytes, records := int64(0), int64(0)
	for _, c := range chunks {
		records += c.putChecks()
		if err := j.persist(s, func() error { _, err := f.WriteAt(c.buf, c.off); return err }); err != nil {
			return fmt.Errorf("write segment %s: %w", s.name, err)
		}
		bytes += int64(len(c.buf))
	}
	if !j.o.NoSync {
		began := time.Now()
		if err := f.Sync(); err != nil {
			return fmt.Errorf("sync segment %s: %w", s.name, err)
		}
		took := time.Since(began)
		j.lastSync.Store(int64(took))
		observe(&j.syncTime, TimeBounds[:], took)
		j.syncs.Add(1)
	}
	last := chunks[len(chunks)-1]
	end := s.base + uint64(last.off) + uint64(len(last.buf))
	j.committed.Store(end)
	j.safe.Add(bytes)
	j.commits.Add(1)
	observe(&j.commitTime, TimeBounds[:], time.Since(start))
	observe(&j.commitBytes, ByteBounds[:], bytes)
	observe(&j.commitRecords, RecordBounds[:], records)
	if j.o.OnCommit != nil {
		j.o.OnCommit(end)
	}
	if err := j.retire(s, end); err != nil {
		return fmt.Errorf("close segment %s: %w", s.name, err)
	}
	return nil
}

// errStalled is the end of a journal that was closed while it could not write.
var errStalled = fmt.Errorf("%w with records that could not be written", errClosed)

// persist repeats do, which is for s, for as long as there is no room, and when the journal is closed once more.
// What was written by an attempt that ended short is overwritten by the next with the same bytes.
func (j *Journal) persist(s *segment, do func() error) error {
	err := do()
	for vfs.Full(err) && j.giveRoom(s) {
		j.setLow(err)
		err = do()
	}
	if !vfs.Full(err) {
		return err
	}
	j.stalled.Store(true)
	defer j.stalled.Store(false)
	j.mu.Lock()
	j.done.Broadcast() // see hopeless
	j.mu.Unlock()
	if j.o.OnStall != nil {
		j.o.OnStall(err)
	}
	j.o.Log.Error("journal stalled", "err", err)
	retry := time.NewTicker(stallRetry)
	defer retry.Stop()
	for last := false; vfs.Full(err); {
		if last {
			return errStalled
		}
		select {
		case <-retry.C:
		case <-j.quit:
			last = true
		}
		// The keeper may have made the next file meanwhile of the room that was waited for.
		for err = do(); vfs.Full(err) && j.giveRoom(s); {
			err = do()
		}
	}
	if err == nil {
		if j.o.OnStall != nil {
			j.o.OnStall(nil)
		}
		j.o.Log.Info("journal goes on")
	}
	return err
}

// close is Close.
func (j *Journal) close() error {
	close(j.quit)
	j.mu.Lock()
	fresh := j.unused && j.recovered.Recovered.Clean
	j.closed = true
	j.dead.Store(true)
	j.appended.Store(j.total)
	if j.o.manual {
		j.mu.Unlock()
		j.step(false)
		j.mu.Lock()
	}
	j.wake.Signal()
	j.waits++
	for j.safe.Load() < j.total && j.failed == nil {
		j.done.Wait()
	}
	j.waits--
	if j.failed == nil && !fresh {
		// The mark is a commit of its own, after all others: it proves that they are whole.
		rec, _ := j.append(recordHead)
		putHead(rec, j.start, kindClosed, 0)
		j.appended.Store(j.total)
	}
	j.ending = true
	j.wake.Signal()
	j.mu.Unlock()
	if j.o.manual {
		j.step(false)
	}
	j.running.Wait()

	j.mu.Lock()
	err := j.failed
	if err == nil {
		j.failed = errClosed
	}
	j.batch, j.tail, j.settle, j.spares = nil, nil, nil, nil
	j.done.Broadcast()
	j.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("close journal: %d bytes are not committed: %w", j.Pending(), err)
	}
	j.files.Lock()
	defer j.files.Unlock()
	j.log.Load().each(func(s *segment) {
		if e := s.close(true); err == nil {
			err = e
		}
		if s.f != nil {
			if e := s.f.Close(); err == nil {
				err = e
			}
			s.f = nil
		}
	})
	return err
}
