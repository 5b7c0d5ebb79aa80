package journal

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/firemq/firemq/pool"
)

// Read gives f the payload of the message or topology record at pos, which must be committed and
// must have a target that the caller has not freed. The payload is valid during the call. The
// record's checksum is verified each time. Any goroutine; f must not append.
func (j *Journal) Read(pos Position, f func(payload []byte) error) error {
	s := j.log.Load().find(pos >> j.shift)
	if s == nil || pos < s.base+headerBytes {
		return fmt.Errorf("read journal at %d: %w", pos, errGone)
	}
	if pos >= j.committed.Load() {
		return fmt.Errorf("read journal at %d: not committed yet", pos)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	m, r, err := s.view()
	if err != nil {
		return fmt.Errorf("read journal at %d: %w", pos, err)
	}
	off := int64(pos - s.base)
	if m == nil {
		buf, err := readRecord(r, off, s.epoch, pos)
		if err != nil {
			return fmt.Errorf("read journal at %d: %s, offset %d: %w", pos, s.name, off, err)
		}
		defer buf.Release()
		m, off = buf.B, 0
	}
	var h head
	err = guard(func() (err error) {
		h, err = verify(m[min(off, int64(len(m))):], int64(pos-s.base), s.epoch, pos)
		return err
	})
	if err != nil {
		return fmt.Errorf("read journal at %d: %s, offset %d: %w", pos, s.name, int64(pos-s.base), err)
	}
	body := m[off+recordHead : off+h.length]
	if h.kind == kindPublish || h.kind == kindMoved {
		body = body[h.count*targetBytes:]
	}
	return f(body)
}

var errRecord = errors.New("the record is damaged")

func verify(b []byte, off int64, epoch uint64, pos Position) (head, error) {
	h, ok := parseHead(b, off, epoch, pos)
	if !ok || !h.intact(b, epoch) || !h.wellFormed() {
		return head{}, errRecord
	}
	return h, nil
}

// readRecord copies a record out of a file that cannot be mapped.
func readRecord(r io.ReaderAt, off int64, epoch uint64, pos Position) (*pool.Buf, error) {
	var b [recordHead]byte
	if _, err := r.ReadAt(b[:], off); err != nil {
		return nil, err
	}
	h, ok := parseHead(b[:], off, epoch, pos)
	if !ok || h.length > MaxRecord {
		return nil, errRecord
	}
	buf := pool.Get(int(h.length), pool.Receiving)
	if _, err := r.ReadAt(buf.B, off); err != nil {
		buf.Release()
		return nil, err
	}
	return buf, nil
}

// guard turns a memory fault in do, which the kernel raises when it cannot read a page of a
// mapping, into an error.
func guard(do func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if p := recover(); p != nil {
			fault, ok := p.(interface{ Addr() uintptr })
			if !ok {
				panic(p)
			}
			err = fmt.Errorf("the disk cannot be read (memory fault at %#x)", fault.Addr())
		}
	}()
	return do()
}
