// Package dedup remembers which messages a queue has taken, by a key that their publishers gave them,
// so that a repetition is known.
//
// A Window is a state machine without lock, clock or I/O, like queue.Queue: its owner holds the
// queue's mutex around every call and passes the time in, in Unix ms.
//
//	Find ──none──> (the queue takes the message) ──> Add ──> Appended, once its record has a place
//	  └──known──> it is a repetition                  │
//	                                                  └──> Forget, too old, one too many ──> gone
//
// Keys are kept as hashes of 128 bits: two different ones that are taken for the same are less
// likely than a fault of the memory they are in.
package dedup

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/cespare/xxhash/v2"

	"github.com/firemq/firemq/frames/table"
)

// Config says what a queue remembers.
type Config struct {
	On bool
	// By is what holds the key: MessageID, or else the name of a header.
	By string
	// Size is the most keys; when there is one more, the oldest is forgotten, so that a repetition of it
	// is taken again. A key costs about 90 bytes.
	Size int
	// TTL is how long a key is remembered, in ms; 0: no bound.
	TTL int64
	// Present: a key is forgotten when its message leaves the queue.
	Present bool
}

const (
	// MessageID is the By of the property message-id.
	MessageID = "message-id"
	// DefaultHeader is the header that is used unless another is named.
	DefaultHeader = "x-deduplication-header"

	DefaultSize = 1 << 20
	MaxSize     = 1 << 24
)

// Key stands for a key; the zero Key for none.
type Key struct{ hi, lo uint64 }

// KeyOf makes the Key of some octets, none of none.
func KeyOf(octets string) Key {
	if octets == "" {
		return Key{}
	}
	var d xxhash.Digest
	d.ResetWithSeed(keySeed)
	d.WriteString(octets)
	return Key{xxhash.Sum64String(octets), d.Sum64() | 1}
}

// KeyIn makes the Key of a header's value: of its octets, or of the number that it is; none of no value.
func KeyIn(v table.Value) Key {
	switch {
	case v.Kind == table.String || v.Kind == table.Bytes:
		return KeyOf(v.Str)
	case v.Kind == table.Void || v.Kind == 0:
		return Key{}
	}
	return KeyOf(v.String())
}

const keySeed = 0x9E3779B97F4A7C15 // part of the disk format

// Never is the position of a message that does not go to the journal.
const Never = math.MaxUint64

// Original is the message that a key is known from.
type Original struct {
	Seq uint64 // in its queue
	Pos uint64 // in the journal; 0: not appended yet
}

// Window is the keys of one queue.
type Window struct {
	cfg   Config
	seqs  map[Key]uint64 // the live entry of each key
	ring  []entry        // in order of Seq; length a power of two
	head  int            // index of the oldest
	n     int            // entries in use, dead ones too
	stamp int64          // the latest time, so that entries age in order
}

type entry struct {
	key Key // zero: it is dead
	Original
	at int64 // it is too old once the window's TTL has passed since
}

// New makes an empty window.
func New(cfg Config) *Window { return &Window{cfg: cfg} }

// Configure applies other bounds at once. It reports false, having done nothing, if the window means
// something else now, and has to be made anew.
func (w *Window) Configure(cfg Config, now int64) bool {
	if cfg.On != w.cfg.On || cfg.By != w.cfg.By || cfg.Present != w.cfg.Present {
		return false
	}
	w.cfg = cfg
	w.age(now)
	return true
}

// Memory is about how many bytes the keys take. Of no window it is 0.
func (w *Window) Memory() int64 {
	if w == nil {
		return 0
	}
	n := int64(cap(w.ring)) * int64(unsafe.Sizeof(entry{}))
	if len(w.seqs) > 0 {
		n += slot << bits.Len(uint(len(w.seqs)*8/7)) // a map is full at 7/8, and doubles then
	}
	return n
}

// slot is what a place in the map takes, in bytes: a key, a Seq, and what the map keeps of it.
const slot = 27

// Len is the number of keys.
func (w *Window) Len() int { return len(w.seqs) }

// Find looks a key up.
func (w *Window) Find(k Key, now int64) (o Original, known bool) {
	w.age(now)
	seq, known := w.seqs[k]
	if !known {
		return Original{}, false
	}
	i := w.find(seq)
	if e := w.at(i); !w.old(e, now) {
		return e.Original, true
	}
	w.kill(i)
	w.trim()
	w.age(now)
	return Original{}, false
}

// old says whether an entry is too old. Those with times of their own may be so behind others that are not.
func (w *Window) old(e *entry, now int64) bool { return w.cfg.TTL > 0 && now-e.at >= w.cfg.TTL }

// Add remembers the key of a message that the queue took, the newest of all. A key that is known is that of
// the new message from then on.
func (w *Window) Add(k Key, o Original, now int64) { w.AddFor(k, o, now, 0) }

// Forever is a TTL that does not end.
const Forever = 1 << 61

// AddFor is Add for a key that is remembered for ttl ms instead of the window's TTL, of which there must be one,
// unless ttl is 0.
func (w *Window) AddFor(k Key, o Original, now, ttl int64) {
	if old, known := w.seqs[k]; known {
		w.kill(w.find(old))
	}
	if w.n == len(w.ring) {
		w.grow()
	}
	if w.seqs == nil {
		w.seqs = make(map[Key]uint64)
	}
	w.stamp = max(w.stamp, now)
	e := entry{k, o, w.stamp}
	if ttl > 0 {
		e.at = now + min(ttl, Forever) - w.cfg.TTL
	}
	*w.at(w.n) = e
	w.n++
	w.seqs[k] = o.Seq
	w.age(now)
}

// Appended says that the messages from to to, as far as they are not there already, have their records at pos
// at the latest.
func (w *Window) Appended(from, to, pos uint64) {
	for i := w.find(from); i < w.n && w.at(i).Seq <= to; i++ {
		if e := w.at(i); e.Pos == 0 {
			e.Pos = pos
		}
	}
}

// Unplaced says whether a message before that Seq still waits for Appended.
func (w *Window) Unplaced(before uint64) bool {
	for i := w.find(before) - 1; i >= 0; i-- {
		if e := w.at(i); e.Pos == 0 && e.key != (Key{}) {
			return true
		}
	}
	return false
}

// Forget says that a message has left the queue.
func (w *Window) Forget(seq uint64) {
	if !w.cfg.Present || w.n == 0 {
		return
	}
	if i := w.find(seq); i < w.n && w.at(i).Seq == seq {
		w.kill(i)
		w.trim()
	}
}

// age forgets what is too old or too much.
func (w *Window) age(now int64) {
	for w.n > 0 && (len(w.seqs) > w.cfg.Size || w.old(w.at(0), now)) {
		w.kill(0)
		w.trim()
	}
}

func (w *Window) at(i int) *entry { return &w.ring[(w.head+i)&(len(w.ring)-1)] }

// find gives the place of the first entry with that Seq or a later one.
func (w *Window) find(seq uint64) int {
	lo, hi := 0, w.n
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if w.at(mid).Seq < seq {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

func (w *Window) kill(i int) {
	e := w.at(i)
	if e.key == (Key{}) {
		return
	}
	delete(w.seqs, e.key)
	e.key = Key{}
}

// ringKept is the capacity that an empty window keeps.
const ringKept = 1024

// trim drops dead entries at the front, and the memory of a burst once nothing is remembered.
func (w *Window) trim() {
	for w.n > 0 && w.at(0).key == (Key{}) {
		w.head = (w.head + 1) & (len(w.ring) - 1)
		w.n--
	}
	if w.n == 0 && len(w.ring) > ringKept {
		w.ring, w.seqs, w.head = nil, nil, 0
	}
}

// grow makes room, by squeezing dead entries out if they are half of all.
func (w *Window) grow() {
	size := max(16, len(w.ring))
	if len(w.seqs) > len(w.ring)/2 {
		size = 2 * len(w.ring)
	}
	ring := make([]entry, size)
	n := 0
	for i := range w.n {
		if e := w.at(i); e.key != (Key{}) {
			ring[n] = *e
			n++
		}
	}
	w.ring, w.head, w.n = ring, 0, n
}

// Saved is one key on disk, or on its way back from there.
type Saved struct {
	Seq uint64
	Key Key
	At  int64
}

// Append writes the keys whose messages' records are before that position after dst. It is part of the
// disk format (docs/storage.md):
//
//	uvarint  number of keys
//	for each, in order of Seq:
//	  uvarint  Seq's distance from the one before
//	  varint   its time's distance from the one before, in ms
//	  16 bytes the key, little-endian, high half first
func (w *Window) Append(dst []byte, before uint64) []byte {
	n := uint64(0)
	each := func(f func(*entry)) {
		for i := range w.n {
			if e := w.at(i); e.key != (Key{}) && e.Pos != 0 && e.Pos < before {
				f(e)
			}
		}
	}
	each(func(*entry) { n++ })
	dst = slices.Grow(binary.AppendUvarint(dst, n), int(n)*20)
	var last entry
	each(func(e *entry) {
		dst = binary.AppendUvarint(dst, e.Seq-last.Seq)
		dst = binary.AppendVarint(dst, e.at-last.at)
		dst = binary.LittleEndian.AppendUint64(dst, e.key.hi)
		dst = binary.LittleEndian.AppendUint64(dst, e.key.lo)
		last = *e
	})
	return dst
}

// ErrSaved is what Read gives for bytes that Append did not write.
var ErrSaved = errors.New("malformed keys of a de-duplicated queue")

// Read gives what Append wrote to f, and what follows it.
func Read(src []byte, f func(Saved)) (rest []byte, err error) {
	bad := false
	cut := func(n int) {
		if n <= 0 || n > len(src) {
			bad = true
			return
		}
		src = src[n:]
	}
	count, n := binary.Uvarint(src)
	cut(n)
	var s Saved
	for ; count > 0 && !bad; count-- {
		d, n := binary.Uvarint(src)
		cut(n)
		ms, n := binary.Varint(src)
		cut(n)
		if bad || len(src) < 16 {
			return nil, ErrSaved
		}
		s.Seq += d
		s.At += ms
		s.Key = Key{binary.LittleEndian.Uint64(src), binary.LittleEndian.Uint64(src[8:])}
		src = src[16:]
		f(s)
	}
	if bad {
		return nil, ErrSaved
	}
	return src, nil
}

// Restore is Add for a key from disk; calls come in ascending Seq, before any other.
func (w *Window) Restore(s Saved, now int64) {
	w.Add(s.Key, Original{Seq: s.Seq, Pos: 1}, min(s.At, now))
}
