package bench

import "sync"

// maxDisorder is the widest gap, in messages, that a stream remembers exactly between the oldest
// missing message and the newest one received. Competing consumers reorder by about their
// prefetches; what falls out of the window is kept one by one in stream.late.
const maxDisorder = 1 << 20

// maxLate bounds stream.late. Beyond it a very late message counts as a duplicate and its first
// delivery as lost: the run fails either way.
const maxLate = 1 << 16

// stream checks what one queue delivers of one publisher: the sequence numbers 1, 2, 3 ... each
// exactly once, in any order. The zero value is ready. It uses memory only for disorder.
//
// Invariant: every number up to base was received or is in late; of the numbers above, those
// received have their bit in ahead, a ring of len(ahead)*64 bits indexed by number.
type stream struct {
	base     uint64
	top      uint64 // highest number received
	distinct uint64 // different numbers received
	again    uint64 // numbers received more than once, counted each time
	ahead    []uint64
	late     map[uint64]struct{}
	waived   uint64 // missing numbers that late had no room for
}

// add records one received number and reports whether it is new.
func (s *stream) add(n uint64) bool {
	if n == s.base+1 && s.top == s.base {
		s.base, s.top = n, n
		s.distinct++
		return true
	}
	return s.addOutOfOrder(n)
}

func (s *stream) addOutOfOrder(n uint64) bool {
	if n <= s.base {
		if _, ok := s.late[n]; ok {
			delete(s.late, n)
			s.distinct++
			return true
		}
		s.again++
		return false
	}
	if n-s.base > uint64(len(s.ahead))*64 {
		s.makeRoom(n)
	}
	w, bit := s.slot(n)
	if s.ahead[w]&bit != 0 {
		s.again++
		return false
	}
	s.ahead[w] |= bit
	s.distinct++
	s.top = max(s.top, n)
	s.advance()
	return true
}

func (s *stream) slot(n uint64) (word int, bit uint64) {
	return int(n / 64 % uint64(len(s.ahead))), 1 << (n % 64)
}

// advance moves base over every number that was received in sequence.
func (s *stream) advance() {
	for s.base < s.top {
		w, bit := s.slot(s.base + 1)
		if s.ahead[w]&bit == 0 {
			return
		}
		s.ahead[w] &^= bit
		s.base++
	}
}

// makeRoom widens the ring so that n fits, up to maxDisorder; above that it gives up on the oldest
// missing numbers, which move to late.
func (s *stream) makeRoom(n uint64) {
	if need := n - s.base; uint64(len(s.ahead))*64 < maxDisorder {
		words := 16
		for uint64(words)*64 < min(need, maxDisorder) {
			words *= 2
		}
		wider := stream{base: s.base, ahead: make([]uint64, words)}
		for m := s.base + 1; m <= s.top; m++ {
			if w, bit := s.slot(m); s.ahead[w]&bit != 0 {
				w, bit = wider.slot(m)
				wider.ahead[w] |= bit
			}
		}
		s.ahead = wider.ahead
	}
	for n-s.base > uint64(len(s.ahead))*64 {
		s.base++
		w, bit := s.slot(s.base)
		switch {
		case s.base <= s.top && s.ahead[w]&bit != 0:
			s.ahead[w] &^= bit
		case len(s.late) < maxLate:
			if s.late == nil {
				s.late = make(map[uint64]struct{})
			}
			s.late[s.base] = struct{}{}
		default:
			s.waived++
		}
	}
	s.top = max(s.top, s.base)
	s.advance()
}

// missing counts the numbers up to sent that were never received.
func (s *stream) missing(sent uint64) uint64 {
	return sent - min(sent, s.distinct)
}

// ledger is what the consumers of one queue have received, a stream for each publisher.
type ledger struct {
	mu      sync.Mutex
	streams []stream // guarded by mu; indexed by publisher
}

// totals sums the streams.
func (l *ledger) totals() (distinct, again uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.streams {
		distinct += l.streams[i].distinct
		again += l.streams[i].again
	}
	return distinct, again
}
