package journal

import "fmt"

// Space is bounded by copying forward: segments go in order, so one message that nobody takes would
// keep everything behind it. When more than half of the log is waste, the owner of the messages is
// told (Options.OnWaste) and copies those of the oldest segment that are still live to its end:
//
//	for each record of the oldest segment (Records) that is still live:
//	    with what guards its targets locked, so that none is settled meanwhile: Move it
//	after Sync: their owner looks for them at the new place, and frees the old one
//
// A crash leaves both places or the new one, and the later record wins. What settles a message is
// always appended after its last copy, so replay never brings one back.

// Wasteful gives the number of the oldest segment when the log's records take more than twice the
// bytes of its live messages and the given number of segments, and copying the messages of that one
// forward would free it. With the rest of the current segment, the next one and the reserve, the
// disk used is three segments more. Any goroutine that does not hold Lock.
func (j *Journal) Wasteful(segments int64) (number uint64, ok bool) {
	if j.dead.Load() || j.stalled.Load() {
		return 0, false
	}
	_, records, live := j.usage()
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.log.Load().oldest()
	if s == nil || !s.sealed || s.live.Load() <= 0 {
		return 0, false
	}
	// On a full disk what copying takes has to be much less than what it frees.
	if j.low.Load() && s.liveBytes() > j.segSize/4 {
		return 0, false
	}
	return s.number, records > 2*live+segments*j.segSize
}

// usage gives the bytes that the log's segments take, those of the records in them, and those of its
// live messages. What is not a record is a header, or the end of a segment that the next record did
// not fit into: copying does not save it.
func (j *Journal) usage() (files, records, live int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.log.Load().each(func(g *segment) {
		files += g.disk()
		records += g.end - headerBytes
		live += g.liveBytes()
	})
	return files, records, live
}

// Records gives f the targets and payload of the message records of a segment, from offset from on (0:
// the first record), until f returns false or the segment ends, and tells where to go on: 0 at the end.
// Only what is committed is given. Checksums are left to Read: what it cannot read was damaged, and so
// may be what f gets. Both slices are valid during the call only. Any goroutine; f must not append.
func (j *Journal) Records(number uint64, from int64, f func(pos Position, targets []Target, payload []byte) bool) (next int64, err error) {
	s := j.log.Load().find(number)
	if s == nil {
		return 0, nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	m, r, err := s.view()
	if err != nil {
		return 0, fmt.Errorf("read segment %s: %w", s.name, err)
	}
	j.mu.Lock()
	end := s.end
	j.mu.Unlock()
	if c := j.committed.Load(); c < s.base+uint64(end) {
		end = max(int64(c)-int64(s.base), 0)
	}
	if m == nil {
		m = make([]byte, end)
		if _, err := r.ReadAt(m, 0); err != nil {
			return 0, fmt.Errorf("read segment %s: %w", s.name, err)
		}
	}
	err = guard(func() error {
		var targets []Target
		for off := max(from, headerBytes); off+recordHead <= end; {
			b, pos := m[off:end], s.base+uint64(off)
			h, ok := parseHead(b, off, s.epoch, pos)
			if !ok {
				off += alignment
				continue
			}
			at := off
			if off += padded(h.length); h.kind == kindBatch {
				off = at + recordHead
			}
			if h.kind != kindPublish && h.kind != kindMoved || !h.wellFormed() || h.length > int64(len(b)) {
				continue
			}
			targets = appendTargets(targets[:0], m[at+recordHead:], h.count)
			if !f(pos, targets, b[recordHead+int64(h.count)*targetBytes:h.length]) {
				next = off
				return nil
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("read segment %s: %w", s.name, err)
	}
	return next, nil
}
