package queue

import (
	"encoding/binary"
	"errors"
	"math/bits"
)

// A block is a run of journaled entries without their messages, in a form that a long backlog can
// afford: a byte or two for each instead of 56, and no pointers for the garbage collector to follow.
// Blocks are also what a checkpoint holds: the format is part of the disk format (docs/storage.md).
//
//	uvarint  number of entries
//	uvarint  first Seq, in the block's order
//	uvarint  first Pos
//	for each entry, the first one too:
//	  byte     which of the fields below follow (bits 0 to 4); 0 stands for "as the one before"
//	           and is followed by a uvarint, how many more entries are so too
//	  uvarint  bit 0: Seq's distance from the entry before; without it 1 (the first one: 0)
//	  varint   bit 1: growth of Pos beyond what was guessed
//	  uvarint  bit 2: Size; without it as before
//	  varint   bit 3: Expiry's distance from the entry before; without it 0
//	  uvarint  bit 4: Transient<<25 | Deliveries<<9 | Priority<<1 | Redelivered; without it as before
//
// Records of one queue follow each other more often than not, so the guess is that Pos grows by
// the size of the entry before and by what it grew beyond that last time.
//
// A block with entries that have a delay is of another form (packdelayed.go), which its number of
// entries shows.

const (
	hasSeq = 1 << iota
	hasPos
	hasSize
	hasExpiry
	hasFlags
	allFields = 1<<iota - 1
)

// MaxBlock is the most entries of a block.
const MaxBlock = 1 << 16

// packer is what both directions know when they come to an entry.
type packer struct {
	seq    uint64
	pos    uint64
	beyond uint64 // growth of Pos last time, without the size
	size   uint64
	expiry int64
	flags  uint64
}

func newPacker(seq, pos uint64) packer { return packer{seq: seq - 1, pos: pos} }

// flagBits are those of the flags below Transient.
const flagBits = 25

func (e *Entry) flags() uint64 {
	f := uint64(e.Deliveries)<<9 | uint64(e.Priority)<<1
	if e.Redelivered {
		f |= 1
	}
	if e.Transient {
		f |= 1 << flagBits
	}
	return f
}

// step moves to the next entry, given its fields.
func (p *packer) step(seq, pos, size uint64, expiry int64, flags uint64) {
	p.beyond = pos - p.pos - p.size
	*p = packer{seq, pos, p.beyond, size, expiry, flags}
}

// Position is where the journal holds e's record, 0 before it was appended or when it never is.
func (e *Entry) Position() uint64 {
	if e.Pos != 0 || e.Msg == nil {
		return e.Pos
	}
	return e.Msg.Position()
}

// AppendBlock appends a block of at most MaxBlock entries, all of them journaled, to dst. They are in
// ascending Seq unless one has a Due. Only their places go into it, not their messages.
func AppendBlock(dst []byte, entries []Entry) []byte {
	for i := range entries {
		if entries[i].Due != 0 {
			return appendDelayed(dst, entries)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(entries)))
	if len(entries) == 0 {
		return dst
	}
	p := newPacker(entries[0].Seq, entries[0].Position())
	dst = binary.AppendUvarint(dst, p.seq+1)
	dst = binary.AppendUvarint(dst, p.pos)
	same := uint64(0) // entries since the last tag that are as the one before
	flush := func() {
		if same > 0 {
			dst = append(dst, 0)
			dst = binary.AppendUvarint(dst, same-1)
			same = 0
		}
	}
	for i := range entries {
		e := &entries[i]
		pos, size, flags := e.Position(), uint64(e.Size), e.flags()
		guess := p.pos + p.size + p.beyond
		if i == 0 {
			guess = pos
		}
		var tag byte
		if e.Seq != p.seq+1 {
			tag |= hasSeq
		}
		if pos != guess {
			tag |= hasPos
		}
		if size != p.size {
			tag |= hasSize
		}
		if e.Expiry != p.expiry {
			tag |= hasExpiry
		}
		if flags != p.flags {
			tag |= hasFlags
		}
		if tag == 0 {
			same++
		} else {
			flush()
			dst = append(dst, tag)
			if tag&hasSeq != 0 {
				dst = binary.AppendUvarint(dst, e.Seq-p.seq)
			}
			if tag&hasPos != 0 {
				dst = binary.AppendVarint(dst, int64(pos-guess))
			}
			if tag&hasSize != 0 {
				dst = binary.AppendUvarint(dst, size)
			}
			if tag&hasExpiry != 0 {
				dst = binary.AppendVarint(dst, e.Expiry-p.expiry)
			}
			if tag&hasFlags != 0 {
				dst = binary.AppendUvarint(dst, flags)
			}
		}
		p.step(e.Seq, pos, size, e.Expiry, flags)
	}
	flush()
	return dst
}

// ErrBlock is a block that AppendBlock did not make.
var ErrBlock = errors.New("the block of entries is damaged")

// DecodeBlock appends the entries of the block that src starts with to dst and gives what follows
// it. Their messages are nil.
func DecodeBlock(dst []Entry, src []byte) (entries []Entry, rest []byte, err error) {
	r := reader{src: src}
	n := r.uvarint()
	if !r.bad && n&delayedForm != 0 {
		return decodeDelayed(dst, src, &r, n&^delayedForm)
	}
	if r.bad || n > MaxBlock {
		return dst, src, ErrBlock
	}
	if n == 0 {
		return dst, r.src, nil
	}
	first, at := r.uvarint(), r.uvarint()
	p := newPacker(first, at)
	same := uint64(0)
	for i := range n {
		seq, pos, size, expiry, flags := p.seq+1, p.pos+p.size+p.beyond, p.size, p.expiry, p.flags
		if i == 0 {
			pos = at
		}
		if same > 0 {
			same--
		} else {
			switch tag := r.byte(); {
			case tag == 0:
				if same = r.uvarint(); same > n-i-1 {
					r.bad = true
				}
			case tag > allFields:
				r.bad = true
			default:
				if tag&hasSeq != 0 {
					seq = p.seq + r.uvarint()
				}
				if tag&hasPos != 0 {
					pos += uint64(r.varint())
				}
				if tag&hasSize != 0 {
					size = r.uvarint()
				}
				if tag&hasExpiry != 0 {
					expiry += r.varint()
				}
				if tag&hasFlags != 0 {
					flags = r.uvarint()
				}
			}
			if r.bad || bits.Len64(size) > 32 || bits.Len64(flags) > flagBits+1 || i > 0 && seq <= p.seq {
				return dst, src, ErrBlock
			}
		}
		dst = append(dst, Entry{
			Seq: seq, Pos: pos, Expiry: expiry, Size: uint32(size), Deliveries: uint16(flags >> 9),
			Priority: uint8(flags >> 1), Redelivered: flags&1 == 1, Journaled: true, Transient: flags>>flagBits == 1,
		})
		p.step(seq, pos, size, expiry, flags)
	}
	return dst, r.src, nil
}

// reader takes varints off src; bad is set when it ends too early.
type reader struct {
	src []byte
	bad bool
}

func (r *reader) byte() byte {
	if len(r.src) == 0 {
		r.bad = true
		return 0
	}
	b := r.src[0]
	r.src = r.src[1:]
	return b
}

func (r *reader) uvarint() uint64 {
	if len(r.src) > 0 && r.src[0] < 0x80 {
		return uint64(r.byte())
	}
	v, n := binary.Uvarint(r.src)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.src = r.src[n:]
	return v
}

func (r *reader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}
