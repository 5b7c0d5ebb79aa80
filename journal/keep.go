package journal

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/firemq/firemq/internal/vfs"
)

// fillStep is how much of a spare is zero-filled between two syncs: small enough that a commit
// which runs at the same time does not wait behind a whole segment.
const fillStep = 1 << 20

// roomRetry is how often a full disk is tried again when nothing was freed here.
const roomRetry = 2 * time.Second

var zeros [64 << 10]byte

// keep is the keeper's goroutine: it frees the oldest segments and makes the next one ahead of
// its need, so that the writer neither waits for that nor writes to a file that has to grow.
func (j *Journal) keep() {
	defer j.running.Done()
	retry := time.NewTicker(roomRetry)
	defer retry.Stop()
	for {
		select {
		case <-j.quit:
			return
		case <-j.kick:
			j.keepOnce()
		case <-retry.C:
			if j.low.Load() && !j.stalled.Load() {
				j.keepOnce()
			}
		}
	}
}

// keepOnce does all there is to do now. What fails is logged and tried again with the next
// kick: nothing depends on it but disk space and speed.
func (j *Journal) keepOnce() {
	for s := j.freeable(); s != nil; s = j.freeable() {
		if err := j.free(s); err != nil {
			j.o.Log.Warn("free journal segment", "file", s.name, "err", err)
			break
		}
	}
	if err := j.prepare(); err != nil {
		if !j.low.Load() {
			j.o.Log.Warn("prepare journal segment", "err", err)
		}
	}
	if _, ok := j.Wasteful(2); ok && j.o.OnWaste != nil {
		j.o.OnWaste()
	}
}

func (j *Journal) kickKeeper() {
	select {
	case j.kick <- struct{}{}:
	default:
	}
}

// freeable gives the oldest segment if nothing needs it any more. What settled its last target
// must be committed first: a dead-lettered message is not to be lost with both its places.
func (j *Journal) freeable() *segment {
	if j.dead.Load() {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.log.Load().oldest()
	if s == nil || !s.sealed || s.live.Load() > 0 {
		return nil
	}
	if t := s.topology.Load(); t != 0 && t >= j.floor.Load() || !j.forgettable(s) {
		return nil
	}
	if s.barrier == 0 {
		s.barrier = j.total + 1 // 0 stands for none
	}
	if j.safe.Load() < s.barrier-1 {
		j.wanting.Store(true)
		if j.safe.Load() < s.barrier-1 { // the writer kicks after its next commit
			return nil
		}
	}
	return s
}

// free takes the file away, for reuse if the place of the spare is empty. The next older one is
// not touched before the loss of this name is safe: the log never has a hole, and a message
// never comes back because its segment outlived the one that settled it.
func (j *Journal) free(s *segment) error {
	if err := s.close(true); err != nil {
		return err
	}
	used, _, live := j.usage()
	// Beside what is left of the log there are the next segment, the reserve and this one.
	spare := used+2*j.segSize <= 2*live+4*j.segSize
	j.files.Lock()
	defer j.files.Unlock()
	var err error
	whole := s.end <= s.segSize && (!s.grows || nearlyFull(s.end, s.segSize))
	switch {
	case whole && !j.hasSpare.Load() && spare:
		if err = j.o.FS.Rename(s.name, j.path(spareName)); err == nil {
			j.hasSpare.Store(true)
		}
	case whole && !j.hasReserve.Load():
		if err = j.o.FS.Rename(s.name, j.path(reserveName)); err == nil {
			j.hasReserve.Store(true)
		}
	default:
		err = j.o.FS.Remove(s.name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // gone already: only the sync had failed
		return err
	}
	if err := j.o.FS.SyncDir(j.o.Dir); err != nil {
		return err
	}
	j.mu.Lock()
	j.log.Store(j.log.Load().drop(s))
	j.mu.Unlock()
	return nil
}

// prepare gives cur's successor its file, and keeps a reserve: a file that is given up when the disk
// is full, for what waits to be written and the settlements that free room. A log of cur alone has nothing to free: there
// the reserve is what comes next, if the disk has no room for both. If cur is a file that grows with each commit, which
// costs twice as much, it is sealed early.
func (j *Journal) prepare() error {
	j.mu.Lock()
	cur, next := j.cur, j.next
	alone := j.log.Load().oldest() == cur // a small log needs no reserve
	j.mu.Unlock()
	if next == nil || j.dead.Load() {
		return nil
	}
	err := j.succeed(cur, next)
	if alone && vfs.Full(err) && j.spendReserve() {
		err = j.succeed(cur, next)
	}
	if err == nil && !alone {
		err = j.fill(reserveName, &j.hasReserve)
	}
	j.setLow(err)
	return err
}

// succeed gives next its file.
func (j *Journal) succeed(cur, next *segment) error {
	j.files.Lock()
	exists := next.exists
	j.files.Unlock()
	if !exists && !j.o.NoSync { // without syncs a file may as well grow
		if err := j.fill(spareName, &j.hasSpare); err != nil {
			return err
		}
	}
	j.files.Lock()
	defer j.files.Unlock()
	if !next.exists && j.hasSpare.Load() {
		if err := j.install(next); err != nil {
			return err
		}
	}
	if cur.grows && next.exists && !next.grows {
		j.mu.Lock()
		cur.early = true
		j.mu.Unlock()
	}
	return nil
}

// setLow notes whether there was no room for the files of prepare, on the disk or among open files, and tells it.
func (j *Journal) setLow(err error) {
	low := vfs.Full(err)
	if j.low.Swap(low) == low {
		return
	}
	if low {
		j.o.Log.Error("journal: no file can be made for what comes next: publishers wait", "err", err)
	} else {
		j.o.Log.Info("journal: there is room again")
	}
	if j.o.OnRoom != nil {
		j.o.OnRoom()
	}
}

// fill makes the spare or the reserve, unless there is one (has).
func (j *Journal) fill(name string, has *atomic.Bool) error {
	if has.Load() {
		return nil
	}
	complete, err := j.zeroFill(j.path(name))
	if !complete {
		j.o.FS.Remove(j.path(name))
	}
	j.files.Lock()
	defer j.files.Unlock()
	has.Store(complete)
	return err
}

// giveRoom makes room on a full disk for what is to be written to s, and says whether it did: the reserve goes, then the
// file that was prepared for the segment behind s, which holds nothing and would wait for ever. By the writer.
func (j *Journal) giveRoom(s *segment) bool {
	j.mu.Lock()
	behind := j.next
	j.mu.Unlock()
	j.files.Lock()
	defer j.files.Unlock()
	if j.hasReserve.Load() {
		j.hasReserve.Store(false)
		return j.o.FS.Remove(j.path(reserveName)) == nil
	}
	j.log.Load().each(func(g *segment) { // what was appended may be for several, none of which is written yet
		if g.number > s.number && g.exists {
			behind = g
		}
	})
	if behind == nil || !behind.exists {
		return false
	}
	behind.exists = false
	return j.o.FS.Remove(behind.name) == nil
}

// spendReserve makes the reserve the spare, and says whether it did. By the keeper, who has no spare.
func (j *Journal) spendReserve() bool {
	j.files.Lock()
	defer j.files.Unlock()
	if !j.hasReserve.Load() || j.o.FS.Rename(j.path(reserveName), j.path(spareName)) != nil {
		return false
	}
	j.hasReserve.Store(false)
	j.hasSpare.Store(true)
	return true
}

// zeroFill writes a segment's worth of zeros; Close stops it.
func (j *Journal) zeroFill(name string) (complete bool, err error) {
	f, err := j.o.FS.Create(name)
	if err != nil {
		return false, err
	}
	for off := int64(0); off < j.segSize && err == nil; {
		select {
		case <-j.quit:
			return false, f.Close()
		default:
		}
		_, err = f.WriteAt(zeros[:min(int64(len(zeros)), j.segSize-off)], off)
		off += int64(len(zeros))
		if err == nil && (off%fillStep == 0 || off >= j.segSize) {
			err = f.Sync()
		}
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err == nil, err
}

// openForWrite gives the writer a segment's file, made if the keeper did not come to it. One that it has open it gets
// without files, which the keeper holds while it waits for the disk.
func (j *Journal) openForWrite(s *segment) (vfs.File, error) {
	if s.f != nil {
		return s.f, nil
	}
	j.files.Lock()
	defer j.files.Unlock()
	if !s.exists {
		if err := j.install(s); err != nil {
			return nil, err
		}
	}
	f, err := j.o.FS.OpenWrite(s.name)
	s.f = f
	return f, err
}

// install makes a segment's file out of the spare or a new one. The header is safe before the
// file gets its name, so that a named file without a valid header is always damage.
func (j *Journal) install(s *segment) error {
	name, open := j.path(newName), j.o.FS.Create
	if j.hasSpare.Load() {
		name, open = j.path(spareName), j.o.FS.OpenWrite
	}
	f, err := open(name)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(header{s.number, s.prev, s.segSize, s.epoch}.append(make([]byte, 0, headerBytes)), 0)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = j.o.FS.Rename(name, s.name)
	}
	if err != nil {
		return err
	}
	s.grows = !j.hasSpare.Load()
	s.short.Store(s.grows)
	j.hasSpare.Store(false)
	if err := j.o.FS.SyncDir(j.o.Dir); err != nil {
		return err
	}
	s.exists = true
	return nil
}

// retire closes a segment for writing when its seal, which ends at position end, is committed.
func (j *Journal) retire(s *segment, end Position) error {
	j.mu.Lock()
	done := s.sealed && s.base+uint64(s.end) == end
	j.mu.Unlock()
	if !done {
		return nil
	}
	f := s.f
	s.f = nil
	return f.Close()
}

// nearlyFull says whether a file of this size is worth keeping as the spare.
func nearlyFull(size, segSize int64) bool { return size <= segSize && size >= segSize-segSize/8 }

func (j *Journal) path(name string) string { return filepath.Join(j.o.Dir, name) }
