package queue

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// The second form of a block holds entries in any order, some of which have a Due. It is part of the
// disk format, too:
//
//	uvarint  number of entries + 2^20
//	uvarint  Seq of the first one
//	uvarint  Pos of the first one
//	uvarint  Due of the first one
//	for each run of up to 256 entries that have the same fields:
//	  byte     which fields follow for each (bits 0 to 6); without one it is as guessed
//	  byte     number of entries - 1
//	for each entry of the run:
//	  varint   bit 0: Seq's distance from the one behind the entry before
//	  varint   bit 1: Pos's distance from what was guessed
//	  varint   bit 2: Size's distance from the entry before
//	  varint   bit 3: Due's distance from the entry before
//	  uvarint  bit 4: time to live, Expiry-Due+1, 0 for none; without it as before
//	  uvarint  bit 5: Transient<<25 | Deliveries<<9 | Priority<<1 | Redelivered; without it as before
//	  uvarint  bit 6: Lag; without it the rank is the one behind the entry before, if that had a Lag,
//	           else there is none
//
// In order of due time Seq goes up and down, and Pos with it: the guess is that Pos changes with each
// Seq by as much as it did on average from the entry before the last to the last. Where messages
// are of one size that is right.

const delayedForm = 1 << 20

const (
	dSeq = 1 << iota
	dPos
	dSize
	dDue
	dTTL
	dFlags
	dLag
	dAll = 1<<iota - 1
)

// delayedPacker is what both directions know when they come to an entry.
type delayedPacker struct {
	seq, pos uint64
	stride   int64 // growth of Pos for each Seq
	size     uint64
	due      int64
	ttl      uint64
	flags    uint64
	lag      uint64
}

func newDelayedPacker(seq, pos uint64, due int64) delayedPacker {
	return delayedPacker{seq: seq - 1, pos: pos, due: due}
}

// guess is the Pos expected for seq.
func (p *delayedPacker) guess(seq uint64) uint64 { return p.pos + (seq-p.seq)*uint64(p.stride) }

// guessLag is the Lag expected for seq.
func (p *delayedPacker) guessLag(seq uint64) uint64 {
	if next := p.seq + p.lag + 1; p.lag != 0 && next > seq && next-seq < 1<<32 {
		return next - seq
	}
	return 0
}

// step moves to the next entry, given its fields. The first one says nothing of the stride.
func (p *delayedPacker) step(first bool, seq, pos, size uint64, due int64, ttl, flags, lag uint64) {
	stride := p.stride
	if d := int64(seq - p.seq); !first && d != 0 {
		stride = int64(pos-p.pos) / d
	}
	*p = delayedPacker{seq, pos, stride, size, due, ttl, flags, lag}
}

// ttl is what a block says of Expiry.
func (e *Entry) ttl() uint64 {
	if e.Expiry == 0 {
		return 0
	}
	return uint64(e.Expiry-e.Due) + 1
}

func appendDelayed(dst []byte, entries []Entry) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(entries))|delayedForm)
	p := newDelayedPacker(entries[0].Seq, entries[0].Position(), entries[0].Due)
	dst = binary.AppendUvarint(dst, p.seq+1)
	dst = binary.AppendUvarint(dst, p.pos)
	dst = binary.AppendUvarint(dst, uint64(p.due))
	run := -1 // where the run begins in dst
	for i := range entries {
		e := &entries[i]
		pos, size, ttl, flags, lag := e.Position(), uint64(e.Size), e.ttl(), e.flags(), uint64(e.Lag)
		guess, guessLag := p.guess(e.Seq), p.guessLag(e.Seq)
		var tag byte
		if e.Seq != p.seq+1 {
			tag |= dSeq
		}
		if pos != guess {
			tag |= dPos
		}
		if size != p.size {
			tag |= dSize
		}
		if e.Due != p.due {
			tag |= dDue
		}
		if ttl != p.ttl {
			tag |= dTTL
		}
		if flags != p.flags {
			tag |= dFlags
		}
		if lag != guessLag {
			tag |= dLag
		}
		if run >= 0 && dst[run] == tag && dst[run+1] < math.MaxUint8 {
			dst[run+1]++
		} else {
			run = len(dst)
			dst = append(dst, tag, 0)
		}
		if tag&dSeq != 0 {
			dst = binary.AppendVarint(dst, int64(e.Seq-p.seq-1))
		}
		if tag&dPos != 0 {
			dst = binary.AppendVarint(dst, int64(pos-guess))
		}
		if tag&dSize != 0 {
			dst = binary.AppendVarint(dst, int64(size-p.size))
		}
		if tag&dDue != 0 {
			dst = binary.AppendVarint(dst, e.Due-p.due)
		}
		if tag&dTTL != 0 {
			dst = binary.AppendUvarint(dst, ttl)
		}
		if tag&dFlags != 0 {
			dst = binary.AppendUvarint(dst, flags)
		}
		if tag&dLag != 0 {
			dst = binary.AppendUvarint(dst, lag)
		}
		p.step(i == 0, e.Seq, pos, size, e.Due, ttl, flags, lag)
	}
	return dst
}

// decodeDelayed is DecodeBlock for the second form; r is behind the number of entries n.
func decodeDelayed(dst []Entry, src []byte, r *reader, n uint64) (entries []Entry, rest []byte, err error) {
	first, at, due0 := r.uvarint(), r.uvarint(), r.uvarint()
	if r.bad || n == 0 || n > MaxBlock {
		return dst, src, ErrBlock
	}
	p := newDelayedPacker(first, at, int64(due0))
	delayed := false                // as one of them is, at least
	tag, left := byte(0), uint64(0) // of the run
	for i := range n {
		if left == 0 {
			tag, left = r.byte(), uint64(r.byte())+1
			r.bad = r.bad || tag > dAll || left > n-i
		}
		left--
		seq, size, due, ttl, flags := p.seq+1, p.size, p.due, p.ttl, p.flags
		if tag&dSeq != 0 {
			seq += uint64(r.varint())
		}
		pos, lag := p.guess(seq), p.guessLag(seq)
		if tag&dPos != 0 {
			pos += uint64(r.varint())
		}
		if tag&dSize != 0 {
			size += uint64(r.varint())
		}
		if tag&dDue != 0 {
			due += r.varint()
		}
		if tag&dTTL != 0 {
			ttl = r.uvarint()
		}
		if tag&dFlags != 0 {
			flags = r.uvarint()
		}
		if tag&dLag != 0 {
			lag = r.uvarint()
		}
		if r.bad || bits.Len64(size) > 32 || bits.Len64(flags) > flagBits+1 || bits.Len64(lag) > 32 {
			return dst, src, ErrBlock
		}
		e := Entry{
			Seq: seq, Pos: pos, Due: due, Lag: uint32(lag), Size: uint32(size), Deliveries: uint16(flags >> 9),
			Priority: uint8(flags >> 1), Redelivered: flags&1 == 1, Journaled: true, Transient: flags>>flagBits == 1,
		}
		if ttl != 0 {
			e.Expiry = due + int64(ttl-1)
		}
		delayed = delayed || due != 0
		dst = append(dst, e)
		p.step(i == 0, seq, pos, size, due, ttl, flags, lag)
	}
	if !delayed {
		return dst, src, ErrBlock
	}
	return dst, r.src, nil
}
