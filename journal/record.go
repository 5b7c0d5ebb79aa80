package journal

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// The layout of a record is part of the disk format; the package comment draws it.
const (
	recordHead  = 24
	targetBytes = 24 // queue, seq, expiry
	rangeBytes  = 24 // queue, from, to
	sealBytes   = recordHead
	alignment   = 8

	// MaxRecord is the largest record in bytes, all included: a message of 512 MiB for a million
	// queues fits.
	MaxRecord = 1 << 30

	maxCount = 1<<24 - 1
)

// kind says what a record is. Part of the disk format: the number 7 is reserved.
type kind uint8

const (
	kindPublish  kind = 1
	kindSettle   kind = 2
	kindTopology kind = 3
	kindSeal     kind = 4 // the last record of a segment: another segment follows
	kindClosed   kind = 5 // the last record of a clean shutdown
	kindMoved    kind = 6 // a message copied forward: its place for these targets is here now
	kindBatch    kind = 8 // its body is records that hold together
)

var order = binary.LittleEndian

// head is a record's first 24 bytes, decoded and checked.
type head struct {
	length int64 // bytes without the padding
	batch  int64 // file offset of the first record that was committed together with this one
	kind   kind
	count  int // targets or ranges
}

// padded is the room that a record of n bytes takes.
func padded(n int64) int64 { return (n + alignment - 1) &^ (alignment - 1) }

// headCheck covers a record's head alone, so that its length can be trusted before the record is
// hashed, and binds it to its segment's epoch and its position.
func headCheck(lengthBatch uint64, kindCount uint32, epoch uint64, pos Position) uint32 {
	h := (lengthBatch ^ epoch) * 0x9E3779B97F4A7C15
	h ^= h >> 32
	h = (h ^ pos ^ uint64(kindCount)<<32) * 0xBF58476D1CE4E5B9
	h ^= h >> 29
	return uint32(h * 0x94D049BB133111EB >> 32)
}

// putHead writes the head of rec, which is without padding, but for its checks.
func putHead(rec []byte, batch int64, k kind, count int) {
	order.PutUint64(rec[8:], uint64(len(rec))|uint64(batch/alignment)<<32)
	order.PutUint32(rec[16:], uint32(k)|uint32(count)<<8)
}

// putChecks completes the record that b starts with, and gives the room that it takes.
func putChecks(b []byte, epoch uint64, pos Position) int64 {
	lengthBatch := order.Uint64(b[8:])
	order.PutUint32(b[20:], headCheck(lengthBatch, order.Uint32(b[16:]), epoch, pos))
	length := int64(uint32(lengthBatch))
	if kind(b[16]) == kindBatch {
		for at := int64(recordHead); at < length; {
			at += putChecks(b[at:length], epoch, pos+uint64(at))
		}
	}
	order.PutUint64(b, xxhash.Sum64(b[8:length])^epoch)
	return padded(length)
}

// parseHead decodes the head of a record that would start at file offset off and position pos.
// b starts there and reaches to the end of the file. It reports false when no record of this
// epoch was ever begun there; the body is not checked (see intact).
func parseHead(b []byte, off int64, epoch uint64, pos Position) (h head, ok bool) {
	if len(b) < recordHead {
		return head{}, false
	}
	lengthBatch := order.Uint64(b[8:])
	kindCount := order.Uint32(b[16:])
	h = head{
		length: int64(uint32(lengthBatch)),
		batch:  int64(lengthBatch>>32) * alignment,
		kind:   kind(kindCount),
		count:  int(kindCount >> 8),
	}
	if h.kind == 0 || h.length < recordHead || h.batch > off || h.batch < headerBytes {
		return head{}, false
	}
	if order.Uint32(b[20:]) != headCheck(lengthBatch, kindCount, epoch, pos) {
		return head{}, false
	}
	return h, true
}

// wellFormed reports whether the kind is known and the counts fit the length. A record that is
// intact but not well-formed comes from a newer version.
func (h head) wellFormed() bool {
	body := h.length - recordHead
	switch h.kind {
	case kindPublish, kindMoved:
		return int64(h.count)*targetBytes <= body
	case kindSettle:
		return int64(h.count)*rangeBytes == body
	case kindTopology:
		return h.count == 0
	case kindBatch:
		return h.count > 0 && body >= recordHead && body%alignment == 0
	case kindSeal, kindClosed:
		return h.count == 0 && body == 0
	}
	return false
}

// intact verifies the checksum of a record whose head is h. b may reach past the record.
func (h head) intact(b []byte, epoch uint64) bool {
	return h.length <= int64(len(b)) && order.Uint64(b)^epoch == xxhash.Sum64(b[8:h.length])
}

func putTargets(b []byte, targets []Target) {
	for i := range targets {
		t := b[i*targetBytes : i*targetBytes+targetBytes]
		order.PutUint64(t, targets[i].Queue)
		order.PutUint64(t[8:], targets[i].Seq)
		order.PutUint64(t[16:], uint64(targets[i].Expiry))
	}
}

func appendTargets(dst []Target, b []byte, n int) []Target {
	for i := range n {
		t := b[i*targetBytes : i*targetBytes+targetBytes]
		dst = append(dst, Target{order.Uint64(t), order.Uint64(t[8:]), int64(order.Uint64(t[16:]))})
	}
	return dst
}
