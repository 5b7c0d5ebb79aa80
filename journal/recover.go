package journal

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/firemq/firemq/internal/vfs"
)

// Open recovers the journal of a folder into r, in the order of the log, and opens it for
// appending. The folder is the caller's alone (vfs.Lock).
//
// What is damaged is reported and skipped; Open fails when a file cannot be read at all, when r
// does, and when a newer version wrote the folder.
func Open(o Options, r Replay) (*Journal, Stats, error) {
	began := time.Now()
	if o.SegmentBytes == 0 {
		o.SegmentBytes = DefaultSegmentBytes
	}
	if !validSegmentBytes(o.SegmentBytes) {
		return nil, Stats{}, fmt.Errorf("open journal %s: segments of %d bytes: not a power of two from 8 KiB to 4 GiB", o.Dir, o.SegmentBytes)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	j := &Journal{}
	if err := j.recover(o, r); err != nil {
		return nil, Stats{}, fmt.Errorf("open journal %s: %w", o.Dir, err)
	}
	j.recovered.Recovered.Took = time.Since(began)
	if !o.manual {
		j.running.Add(2)
		go j.write()
		go j.keep()
	}
	j.kickKeeper()
	return j, j.Stats(), nil
}

// recover finds the segments, replays them and makes the journal ready to append.
func (j *Journal) recover(o Options, r Replay) error {
	if err := o.FS.MakeDir(o.Dir); err != nil {
		return err
	}
	found, err := findSegments(o.FS, o.Dir)
	if err != nil {
		return err
	}
	segSize := o.SegmentBytes
	if i := slices.IndexFunc(found, func(f foundFile) bool { return f.err == nil }); i >= 0 {
		segSize = found[i].segSize
	}
	j.init(o, segSize)
	if o.Opening != nil {
		o.Opening(j)
	}
	if err := j.tidyFiles(); err != nil {
		return err
	}
	files, err := j.check(found)
	if err != nil {
		return err
	}
	files, last, err := j.dropEmpty(files)
	if err != nil {
		return err
	}
	if last != nil {
		defer last.release()
		if err := j.secure(files[len(files)-1].s); err != nil {
			return err
		}
	}
	cp, err := j.checkpoint(files, last)
	if err != nil {
		return err
	}
	if err := j.replayAll(files, last, cp, r); err != nil {
		return err
	}
	return j.resume(files, last, found)
}

// checkpoint gives the folder's checkpoint if it can be used.
func (j *Journal) checkpoint(files []file, last *scan) (*Checkpoint, error) {
	if j.o.inspect {
		return nil, nil
	}
	c, state, err := loadCheckpoint(j.o.FS, j.path(checkpointName))
	if err == nil && c != nil {
		err = c.usable(j, files, last)
	}
	if err != nil {
		j.o.Log.Warn("journal: the checkpoint is not used, all of the log is replayed", "reason", err)
		return nil, nil
	}
	if c != nil {
		c.state = state
	}
	return c, nil
}

// file is a segment on its way through recovery; s is nil when the header is damaged.
type file struct {
	foundFile
	s *segment
}

// check refuses what cannot be recovered as a whole.
func (j *Journal) check(found []foundFile) ([]file, error) {
	var files []file
	for i, f := range found {
		name := segmentName(f.number)
		switch {
		case errors.Is(f.err, errVersion):
			return nil, fmt.Errorf("%s: %w", name, f.err)
		case f.err == nil && f.segSize != j.segSize:
			return nil, fmt.Errorf("%s has segments of %d bytes, others have %d", name, f.segSize, j.segSize)
		case i > 0 && f.number-found[i-1].number > maxGap:
			return nil, fmt.Errorf("%s does not belong to %s: too many segments are missing between them", name, segmentName(found[i-1].number))
		}
		file := file{foundFile: f}
		if f.err == nil {
			file.s = j.segment(f.header)
			file.s.exists, file.s.grows = true, f.size < j.segSize
			file.s.short.Store(file.s.grows)
		}
		files = append(files, file)
	}
	return files, nil
}

// maxGap bounds the segment numbers between two files, and with it the table that finds them.
const maxGap = 1 << 20

// dropEmpty scans from the end for the last segment with a record, which is where the log ends,
// and takes those behind it away: they were made ahead, or hold nothing but a torn commit.
func (j *Journal) dropEmpty(files []file) ([]file, *scan, error) {
	for len(files) > 0 {
		f := files[len(files)-1]
		if f.s == nil {
			return files, nil, nil
		}
		sc, err := f.s.scan()
		if err != nil {
			return nil, nil, err
		}
		if sc.records > 0 || sc.newer != 0 {
			return files, sc, nil
		}
		sc.release()
		j.tear(f.s, sc.broken)
		if !j.hasSpare.Load() && nearlyFull(f.size, j.segSize) {
			err = j.o.FS.Rename(f.s.name, j.path(spareName))
			j.hasSpare.Store(true)
		} else {
			err = j.o.FS.Remove(f.s.name)
		}
		if err == nil {
			err = j.o.FS.SyncDir(j.o.Dir)
		}
		if err != nil {
			return nil, nil, err
		}
		files = files[:len(files)-1]
	}
	return nil, nil, nil
}

// secure syncs the last segment and the folder: a process that was killed may have written a
// commit and not synced it. It is replayed, so from here on it is a committed one.
func (j *Journal) secure(s *segment) error {
	if j.o.NoSync {
		return nil
	}
	f, err := j.o.FS.OpenWrite(s.name)
	if err != nil {
		return err
	}
	err = f.Sync()
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("sync %s: %w", s.name, err)
	}
	return j.o.FS.SyncDir(j.o.Dir)
}

// tear notes that n bytes of an unfinished commit were cut off.
func (j *Journal) tear(s *segment, n int64) {
	if n > 0 {
		j.recovered.Recovered.Torn += n
		j.o.Log.Warn("journal: an unfinished commit was cut off", "file", s.name, "bytes", n)
	}
}

// replayAll gives r all records. A segment is read and verified while the one before it is
// replayed. last is the scan of the last file, nil when that one is damaged.
func (j *Journal) replayAll(files []file, last *scan, cp *Checkpoint, r Replay) error {
	type result struct {
		*scan
		err error
	}
	ahead := make(chan result, 1) // of the file after the current one
	begin := func(i int) {
		switch {
		case i >= len(files) || files[i].s == nil || cp.covers(&files[i]):
			ahead <- result{}
		case i == len(files)-1:
			ahead <- result{scan: last}
		default:
			go func() {
				sc, err := files[i].s.scan()
				ahead <- result{sc, err}
			}()
		}
	}
	var read, of int64
	for i := range files {
		if !cp.covers(&files[i]) {
			of += files[i].size
		}
	}
	begin(0)
	for i := range files {
		res := <-ahead
		begin(i + 1)
		err := res.err
		if err == nil {
			err = j.replayFile(files[:i+1], res.scan, i == len(files)-1, cp, r)
		}
		if res.scan != nil && res.scan != last {
			res.release()
		}
		if err != nil {
			if next := <-ahead; next.scan != nil && next.scan != last {
				next.release()
			}
			return err
		}
		if j.o.OnReplay != nil && !cp.covers(&files[i]) {
			read += files[i].size
			j.o.OnReplay(read, of, j.recovered.Recovered.Records)
		}
	}
	<-ahead
	return nil
}

// replayFile replays the last of files, whose scan is sc.
func (j *Journal) replayFile(files []file, sc *scan, last bool, cp *Checkpoint, r Replay) error {
	f := files[len(files)-1]
	damage := func(off, n int64, reason string) {
		d := Damage{File: j.path(segmentName(f.number)), Offset: off, Bytes: n, Pos: f.number*uint64(j.segSize) + uint64(off), Reason: reason}
		j.recovered.Recovered.Damaged++
		j.o.Log.Error("journal: damage", "file", d.File, "offset", d.Offset, "bytes", d.Bytes, "reason", d.Reason)
		r.Damage(d)
	}
	if f.s == nil {
		damage(0, f.size, f.err.Error())
		return j.o.FS.Rename(j.path(segmentName(f.number)), j.path(segmentName(f.number)+damagedSuffix))
	}
	s := f.s
	if cp.covers(&f) {
		k := cp.find(s.number)
		k.restore(s)
		s.end, s.sealed = k.end, true
		j.log.Store(j.log.Load().add(s, max(1, s.slots(s.end))))
		return nil
	}
	if len(files) > 1 && s.prev != files[len(files)-2].number {
		damage(0, 0, fmt.Sprintf("segment %d before it is missing", s.prev))
	}
	if last {
		if cp != nil && cp.find(s.number) != nil {
			sc.batch = max(sc.batch, cp.find(s.number).end) // all before it was committed
		}
		j.tear(s, sc.cut())
	} else if !sc.sealed {
		sc.gaps = append(sc.gaps, gap{sc.end, f.size, "the end of the segment is missing"})
	}
	for _, g := range sc.gaps {
		damage(g.from, g.to-g.from, g.reason)
	}
	if sc.newer != 0 {
		return fmt.Errorf("%s: record at %d: %w", s.name, sc.newer, errVersion)
	}
	s.end, s.sealed = sc.end, sc.sealed || !last
	slots := max(1, s.slots(s.end))
	if t := j.log.Load(); t.first+uint64(len(t.segs)) > s.number && len(t.segs) > 0 {
		return fmt.Errorf("%s overlaps the segment before it", s.name)
	}
	j.log.Store(j.log.Load().add(s, slots))
	from := int64(0)
	if cp != nil {
		if k := cp.find(s.number); k != nil {
			from = k.end
			k.restore(s)
			if err := r.Checkpoint(cp.state); err != nil {
				return fmt.Errorf("restore checkpoint: %w", err)
			}
		}
	}
	if err := j.replayRuns(s, sc, from, r); err != nil {
		return fmt.Errorf("replay %s: %w", s.name, err)
	}
	j.committed.Store(s.base + uint64(s.end))
	if last && sc.intactEnd > sc.end {
		return j.erase(s, sc.end, sc.intactEnd)
	}
	return nil
}

// erase zeroes whole records of an unfinished commit, which would come back to life once new
// records reach up to them.
func (j *Journal) erase(s *segment, from, to int64) error {
	f, err := j.o.FS.OpenWrite(s.name)
	if err != nil {
		return err
	}
	for ; from < to && err == nil; from += int64(len(zeros)) {
		_, err = f.WriteAt(zeros[:min(int64(len(zeros)), to-from)], from)
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// replayRuns gives r the intact records from file offset from on.
func (j *Journal) replayRuns(s *segment, sc *scan, from int64, r Replay) error {
	p := replayer{j: j, s: s, r: r}
	for _, run := range sc.runs {
		run.from = max(run.from, from)
		if run.to <= run.from {
			continue
		}
		if err := p.replay(sc.data[:min(run.to, int64(len(sc.data)))], run.from); err != nil {
			return err
		}
		j.recovered.Recovered.Bytes += run.to - run.from
	}
	return nil
}

// replayer gives the records of one segment to r.
type replayer struct {
	j       *Journal
	s       *segment
	r       Replay
	targets []Target
	batch   bool // replay is inside of one, and no other is
}

// replay gives r the verified records from offset off of data on, which starts with the segment.
func (p *replayer) replay(data []byte, off int64) error {
	stats := &p.j.recovered.Recovered
	for off < int64(len(data)) {
		b := data[off:]
		pos := p.s.base + uint64(off)
		h, ok := parseHead(b, off, p.s.epoch, pos)
		if !ok || !h.wellFormed() || h.length > int64(len(b)) {
			return fmt.Errorf("record at %d: %w", off, errVersion)
		}
		b = b[recordHead:h.length]
		stats.Records++
		var err error
		switch h.kind {
		case kindPublish, kindMoved:
			p.targets = appendTargets(p.targets[:0], b, h.count)
			p.s.count(h.count, 0, padded(h.length))
			stats.Messages += int64(h.count)
			var weight int64
			weight, err = p.r.Publish(pos, p.targets, b[h.count*targetBytes:], h.kind == kindMoved)
			p.s.weight.Add(weight * int64(h.count))
			p.s.whole.Add(weight * int64(h.count))
		case kindSettle:
			for ; len(b) >= rangeBytes && err == nil; b = b[rangeBytes:] {
				err = p.r.Settle(order.Uint64(b), order.Uint64(b[8:]), order.Uint64(b[16:]))
			}
		case kindTopology:
			p.s.topology.Store(pos)
			err = p.r.Topology(pos, b)
		case kindBatch:
			if p.batch {
				return fmt.Errorf("record at %d: %w", off, errVersion)
			}
			p.batch = true
			stats.Records-- // its parts count
			err = p.replay(data[:off+h.length], off+recordHead)
			p.batch = false
		}
		if err != nil {
			return err
		}
		off += padded(h.length)
	}
	return nil
}

// resume decides where the next record goes.
func (j *Journal) resume(files []file, last *scan, found []foundFile) error {
	var prev, number uint64 = 0, 1
	for _, f := range files {
		prev = f.number
		if f.s != nil {
			number = f.number + max(1, f.s.slots(max(f.s.end, f.size)))
		} else {
			number = f.number + max(1, uint64((f.size+j.segSize-1)/j.segSize))
		}
	}
	after := j.o.After >> j.shift
	if len(files) > 0 && after > number+maxGap {
		return fmt.Errorf("it ends at position %d, far from the %d that the definitions hold: it is not theirs", j.committed.Load(), j.o.After)
	}
	if n := len(files); n > 0 && last != nil {
		s := files[n-1].s
		j.recovered.Recovered.Clean = last.closed
		if !s.sealed {
			j.cur = s
			j.begin(s, 0)
			if j.committed.Load() <= j.o.After {
				j.next = j.newSegment(max(j.next.number, after+1), s.number)
				j.roll()
				j.appended.Store(j.total)
			}
			return nil
		}
	} else {
		j.recovered.Recovered.Clean = len(found) == 0
	}
	if j.o.After > 0 {
		number = max(number, after+1)
	}
	j.cur = j.newSegment(number, prev)
	j.log.Store(j.log.Load().add(j.cur, 1))
	return nil
}

type foundFile struct {
	header
	size int64
	err  error // the header cannot be used; number is the name's
}

// findSegments reads the headers of a folder's segments, oldest first.
func findSegments(fs vfs.FS, dir string) ([]foundFile, error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, err
	}
	var found []foundFile
	for _, name := range names {
		number, ok := parseSegmentName(name)
		if !ok {
			continue
		}
		f, err := readHeader(fs, filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		if f.err == nil && f.number != number {
			f.err = fmt.Errorf("the header is that of segment %d", f.number)
		}
		f.number = number
		found = append(found, f)
	}
	slices.SortFunc(found, func(a, b foundFile) int { return int(int64(a.number - b.number)) })
	return found, nil
}

func readHeader(fs vfs.FS, name string) (found foundFile, err error) {
	f, err := fs.Open(name)
	if err != nil {
		return foundFile{}, err
	}
	defer f.Close()
	if found.size, err = f.Size(); err != nil {
		return foundFile{}, err
	}
	b := make([]byte, headerBytes)
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return foundFile{}, fmt.Errorf("read %s: %w", name, err)
	}
	found.header, found.err = parseHeader(b[:n])
	return found, nil
}

// tidyFiles takes stock of the files that are not segments.
func (j *Journal) tidyFiles() error {
	names, err := j.o.FS.List(j.o.Dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		switch name {
		case spareName, reserveName:
			f, err := j.o.FS.Open(j.path(name))
			if err != nil {
				return err
			}
			size, err := f.Size()
			f.Close()
			if err != nil {
				return err
			}
			if nearlyFull(size, j.segSize) {
				if name == spareName {
					j.hasSpare.Store(true)
				}
				if name == reserveName {
					j.hasReserve.Store(true)
				}
				continue
			}
		case newName, checkpointTemp:
		default:
			continue
		}
		if err := j.o.FS.Remove(j.path(name)); err != nil {
			return err
		}
	}
	return nil
}

// scan is what reading a segment gave: where its intact records are.
type scan struct {
	data      []byte
	release   func() // ends the use of data
	runs      []run  // intact records that follow each other
	gaps      []gap  // what lies between two runs
	end       int64  // of the last intact record
	intactEnd int64  // as end, before cut
	batch     int64  // all before this offset was committed: a later commit followed
	broken    int64  // bytes behind end that records were begun in
	records   int64
	newer     int64 // offset of a record of a newer version, 0 for none
	sealed    bool  // the seal was found: it is the last record
	closed    bool  // the last record is the mark of a clean shutdown
}

type run struct{ from, to int64 }

type gap struct {
	from, to int64
	reason   string
}

// scan reads and verifies a whole segment.
func (s *segment) scan() (*scan, error) {
	f, err := s.fs.Open(s.name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	release := func() {}
	data, err := f.Map(size)
	if err == nil {
		release = func() { s.fs.Unmap(data) }
		vfs.Populate(data)
	} else if errors.Is(err, errors.ErrUnsupported) {
		data = make([]byte, size)
		if _, err = f.ReadAt(data, 0); err == io.EOF {
			err = nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", s.name, err)
	}
	sc := &scan{data: data, release: release}
	if err := guard(func() error { sc.read(s.epoch, s.base); return nil }); err != nil {
		release()
		return nil, fmt.Errorf("read %s: %w", s.name, err)
	}
	return sc, nil
}

// read finds the intact records. Where there is none it looks for the next one: at each aligned
// offset, or behind the broken record if at least that one's head is intact.
func (sc *scan) read(epoch uint64, base Position) {
	b := sc.data
	off, from := int64(headerBytes), int64(headerBytes) // from: where the current run began
	broken := int64(-1)                                 // where the current gap began
	reason := ""
	for off+recordHead <= int64(len(b)) && !sc.sealed {
		h, ok := parseHead(b[off:], off, epoch, base+uint64(off))
		if ok && h.intact(b[off:], epoch) {
			if !h.wellFormed() {
				sc.newer = off
				break
			}
			if broken >= 0 {
				sc.gaps = append(sc.gaps, gap{broken, off, reason})
				broken, from, sc.broken = -1, off, 0
			}
			off += padded(h.length)
			sc.records++
			sc.batch = max(sc.batch, h.batch)
			sc.sealed, sc.closed = h.kind == kindSeal, h.kind == kindClosed
			sc.end = off
			continue
		}
		if broken < 0 {
			sc.addRun(from, off)
			broken, reason = off, "not a record"
		}
		if ok {
			reason = "checksum mismatch"
			room := min(padded(h.length), int64(len(b))-off)
			sc.broken += room
			off += room
		} else {
			off += alignment
		}
	}
	if broken < 0 {
		sc.addRun(from, off)
	}
	sc.end = max(sc.end, headerBytes)
	sc.intactEnd = sc.end
}

func (sc *scan) addRun(from, to int64) {
	if to > from {
		sc.runs = append(sc.runs, run{from, to})
	}
}

// cut ends the log's last segment before an unfinished commit and reports its bytes. A gap is
// damage when a later commit proves that the one it is in was finished; behind the last proof
// the two cannot be told apart, and nobody was promised what an unfinished commit held.
func (sc *scan) cut() (torn int64) {
	torn = sc.broken
	for i, g := range sc.gaps {
		if g.from < sc.batch {
			continue
		}
		torn += sc.end - g.from
		sc.end, sc.gaps, sc.sealed, sc.closed = g.from, sc.gaps[:i], false, false
		for k, r := range sc.runs {
			if r.from > g.from {
				sc.runs = sc.runs[:k]
				break
			}
		}
		break
	}
	return torn
}
