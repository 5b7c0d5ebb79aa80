package journal

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"

	"github.com/firemq/firemq/internal/vfs"
)

// The layout of a segment is part of the disk format; the package comment draws it.
const (
	version = 1

	headerBytes = 4096 // records start here
	headerCopy  = 2048 // the header is there twice, at 0 and here
	headerUsed  = 56   // its bytes, the checksum included

	// DefaultSegmentBytes is the size of a segment unless Options say otherwise.
	DefaultSegmentBytes = 32 << 20
	minSegmentBytes     = 2 * headerBytes

	magic = "FireMQ-J"

	segmentSuffix = ".seg"
	damagedSuffix = ".damaged"
	spareName     = "spare"   // a file of the segment's size whose content does not matter
	reserveName   = "reserve" // another one, given up when the disk is full
	newName       = "new.tmp" // a segment that is being made
)

// segment is one file of the log. It covers the positions from base to base+SegmentBytes, or
// more for a record that alone is larger (an oversize segment).
type segment struct {
	number  uint64   // immutable: base / SegmentBytes
	prev    uint64   // immutable: the number of the segment before it, 0 for the first
	epoch   uint64   // immutable: random, mixed into every checksum
	base    Position // immutable: the position of the file's first byte
	fs      vfs.FS   // immutable
	name    string   // immutable: the file's path
	segSize int64    // immutable: SegmentBytes

	end    int64 // file offset of the next record; guarded by Journal.mu
	sealed bool  // guarded by Journal.mu
	early  bool  // seal it at the next append: see keeper.prepare; guarded by Journal.mu

	live     atomic.Int64  // targets that are not settled; any goroutine
	weight   atomic.Int64  // of these targets; any goroutine
	whole    atomic.Int64  // weight of all its targets, settled or not; any goroutine
	messages atomic.Int64  // bytes of its message records; any goroutine
	topology atomic.Uint64 // position of its last topology record, 0 for none; any goroutine
	kept     atomic.Uint64 // position of its last record that Keep was called for, 0 for none; any goroutine

	barrier int64 // see Journal.freeable; owned by the keeper

	short atomic.Bool // its file ends with its records; any goroutine

	exists bool // the file has its name and header; guarded by Journal.files
	grows  bool // the file is not written to its full size yet; guarded by Journal.files

	f vfs.File // owned by the writer, and by Close when that has ended

	mu     sync.RWMutex
	m      []byte   // mapping for Read, nil before the first one; guarded by mu
	r      vfs.File // for Read where the system cannot map; guarded by mu
	mapped bool     // m or r is set; guarded by mu
	gone   bool     // freed: m and r are not to be used; guarded by mu
}

func segmentName(number uint64) string { return fmt.Sprintf("%010d%s", number, segmentSuffix) }

func parseSegmentName(name string) (number uint64, ok bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok || len(digits) < 10 {
		return 0, false
	}
	number, err := strconv.ParseUint(digits, 10, 63)
	return number, err == nil && number > 0 && segmentName(number) == name
}

// newSegment gives a segment that has no file yet.
func (j *Journal) newSegment(number, prev uint64) *segment {
	var e [8]byte
	rand.Read(e[:]) // never fails (crypto/rand)
	return j.segment(header{number: number, prev: prev, segSize: j.segSize, epoch: order.Uint64(e[:])})
}

func (j *Journal) segment(h header) *segment {
	return &segment{
		number: h.number, prev: h.prev, epoch: h.epoch, base: h.number * uint64(h.segSize), segSize: h.segSize,
		fs: j.o.FS, name: filepath.Join(j.o.Dir, segmentName(h.number)), end: headerBytes,
	}
}

// count adds a message record of size bytes.
func (s *segment) count(targets int, weight, size int64) {
	s.live.Add(int64(targets))
	s.weight.Add(int64(targets) * weight)
	s.whole.Add(int64(targets) * weight)
	s.messages.Add(size)
}

// liveBytes is how many bytes its live messages take. It is exact when its messages go to the
// same number of queues, and else an estimate by weight.
func (s *segment) liveBytes() int64 {
	whole := s.whole.Load()
	if whole <= 0 || s.live.Load() <= 0 {
		return 0
	}
	return int64(float64(s.messages.Load()) * float64(s.weight.Load()) / float64(whole))
}

// disk is how many bytes its file takes, once all its records are written. Journal.mu is held.
func (s *segment) disk() int64 {
	if s.sealed && s.short.Load() {
		return s.end
	}
	return max(s.end, s.segSize)
}

// slots is how many segment numbers the bytes up to end take.
func (s *segment) slots(end int64) uint64 { return uint64((end + s.segSize - 1) / s.segSize) }

// header is what a segment's first bytes say.
type header struct {
	number  uint64
	prev    uint64
	segSize int64
	epoch   uint64
}

// append adds the whole header area, both copies and the zeros between.
func (h header) append(dst []byte) []byte {
	var b [headerUsed]byte
	copy(b[:], magic)
	order.PutUint32(b[8:], version)
	order.PutUint32(b[12:], headerBytes)
	order.PutUint64(b[16:], h.number)
	order.PutUint64(b[24:], h.prev)
	order.PutUint64(b[32:], uint64(h.segSize))
	order.PutUint64(b[40:], h.epoch)
	order.PutUint64(b[48:], xxhash.Sum64(b[:48]))
	for range headerBytes / headerCopy {
		dst = append(dst, b[:]...)
		dst = append(dst, make([]byte, headerCopy-headerUsed)...)
	}
	return dst
}

var (
	errHeader  = errors.New("the header is damaged")
	errVersion = errors.New("written by a newer version of FireMQ")
)

// parseHeader reads a segment's first bytes, of which there may be fewer than a whole header.
// The header's copy stands in for it; errVersion means that neither is ours to read.
func parseHeader(b []byte) (h header, err error) {
	err = errHeader
	for _, at := range [...]int{0, headerCopy} {
		if len(b) < at+headerUsed {
			break
		}
		c := b[at : at+headerUsed]
		if string(c[:8]) != magic {
			continue
		}
		if v := order.Uint32(c[8:]); v > version {
			err = fmt.Errorf("%w: its format is %d, this one reads up to %d", errVersion, v, version)
			continue
		}
		if order.Uint64(c[48:]) != xxhash.Sum64(c[:48]) {
			continue
		}
		h = header{order.Uint64(c[16:]), order.Uint64(c[24:]), int64(order.Uint64(c[32:])), order.Uint64(c[40:])}
		if order.Uint32(c[8:]) != version || order.Uint32(c[12:]) != headerBytes || !validSegmentBytes(h.segSize) {
			continue
		}
		return h, nil
	}
	return header{}, err
}

func validSegmentBytes(n int64) bool { return n >= minSegmentBytes && n <= 1<<32 && n&(n-1) == 0 }

// view gives the segment's bytes for reading: a mapping, or nil and a file for ReadAt. The
// caller holds mu for reading, and it may have been given up meanwhile.
func (s *segment) view() (m []byte, r io.ReaderAt, err error) {
	if !s.mapped && !s.gone {
		s.mu.RUnlock()
		s.mu.Lock()
		err = s.open()
		s.mu.Unlock()
		s.mu.RLock()
	}
	if err != nil {
		return nil, nil, err
	}
	if s.gone {
		return nil, nil, errGone
	}
	return s.m, s.r, nil
}

func (s *segment) open() error {
	if s.mapped || s.gone {
		return nil
	}
	f, err := s.fs.Open(s.name)
	if err != nil {
		return err
	}
	size, err := f.Size()
	if err == nil {
		// A file that still grows is mapped at its full size: only committed records are read,
		// and those are inside it.
		s.m, err = f.Map(max(size, s.segSize))
	}
	if errors.Is(err, errors.ErrUnsupported) {
		s.r, s.mapped = f, true
		return nil
	}
	s.mapped = err == nil
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// close ends reading; with gone it never starts again.
func (s *segment) close(gone bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.m != nil {
		err = s.fs.Unmap(s.m)
	}
	if s.r != nil {
		err = s.r.Close()
	}
	s.m, s.r, s.mapped, s.gone = nil, nil, false, s.gone || gone
	return err
}

// table finds a position's segment without a lock: segs[i] holds the positions of number
// first+i. An oversize segment is there several times, and nil stands for a missing one. Readers
// see immutable tables: whoever holds Journal.mu appends past their length or cuts the front
// off, and stores a new one.
type table struct {
	first uint64
	segs  []*segment
}

func (t *table) find(number uint64) *segment {
	if i := number - t.first; i < uint64(len(t.segs)) {
		return t.segs[i]
	}
	return nil
}

// add puts s at its number and gives the new table.
func (t *table) add(s *segment, slots uint64) *table {
	n := &table{first: t.first, segs: t.segs}
	if len(n.segs) == 0 {
		n.first = s.number
	}
	for n.first+uint64(len(n.segs)) < s.number+slots {
		if n.first+uint64(len(n.segs)) < s.number {
			n.segs = append(n.segs, nil)
		} else {
			n.segs = append(n.segs, s)
		}
	}
	return n
}

// oldest is the first segment, nil when there is none.
func (t *table) oldest() *segment {
	for _, s := range t.segs {
		if s != nil {
			return s
		}
	}
	return nil
}

// drop takes the oldest segment away.
func (t *table) drop(s *segment) *table {
	i := 0
	for i < len(t.segs) && (t.segs[i] == nil || t.segs[i] == s) {
		i++
	}
	return &table{first: t.first + uint64(i), segs: t.segs[i:]}
}

// each calls f once for each segment.
func (t *table) each(f func(*segment)) {
	var last *segment
	for _, s := range t.segs {
		if s != nil && s != last {
			f(s)
			last = s
		}
	}
}
