package mgmt

import (
	"net/netip"
	"sync"

	"github.com/firemq/firemq/broker/auth"
)

// Bounds of all requests together. Those that would pass them are answered 503.
const (
	freeBytes    = 64 << 10 // of each request that are not counted
	bodiesShare  = 8        // bodies and what reading them takes may hold 1/8 of the memory limit
	answersShare = 8        // answers that wait for their readers, likewise
	withoutLimit = 1 << 30  // the memory limit where there is none
	ownShare     = 2        // of that a user may hold 1/2, and so may an address
)

// share is what one request holds of a budget, in bytes, with whom it counts for. Owned by the connection's goroutine.
type share struct {
	user  string       // "": nobody
	from  netip.Prefix // the address
	bytes int64
}

// of says for whom the next bytes count.
func (s *share) of(u *auth.User, from netip.Prefix) {
	s.user, s.from = "", from
	if u != nil {
		s.user = u.Name
	}
}

// budget is what all requests hold of one kind, in bytes. However many requests a user or an address makes, there is
// room for others; and of those who have none else, one at a time may be as large as it likes. Any goroutine.
type budget struct {
	limit func() int64 // immutable

	mu     sync.Mutex
	held   int64                  // guarded by mu
	byUser map[string]int64       // of that; guarded by mu
	byFrom map[netip.Prefix]int64 // of that; guarded by mu
	large  *share                 // the one that is not among them; guarded by mu
}

func newBudget(limit func() int64) budget {
	return budget{limit: limit, byUser: make(map[string]int64), byFrom: make(map[netip.Prefix]int64)}
}

// take has a request hold bytes in all, unless there are too many together with those of others.
func (b *budget) take(s *share, bytes int64) bool {
	n := bytes - s.bytes
	if n <= 0 {
		return true
	}
	limit := b.limit()
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.large == s:
		s.bytes = bytes
	case b.within(s, n, limit):
		b.count(s, n)
		s.bytes = bytes
	case b.alone(s):
		b.count(s, -s.bytes)
		b.large, s.bytes = s, bytes
	default:
		return false
	}
	return true
}

// add is take for what is there already.
func (b *budget) add(s *share, bytes int64) {
	n := bytes - s.bytes
	if n <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.large != s {
		b.count(s, n)
	}
	s.bytes = bytes
}

// fits says whether take would, now.
func (b *budget) fits(s *share, bytes int64) bool {
	limit := b.limit()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.within(s, bytes-s.bytes, limit) || b.alone(s)
}

// within says whether n bytes more keep the bounds. Under mu.
func (b *budget) within(s *share, n, limit int64) bool {
	own := limit / ownShare
	return b.held+n <= limit && b.byFrom[s.from]+n <= own && (s.user == "" || b.byUser[s.user]+n <= own)
}

// alone says whether the request may be the large one: there is none, and whoever makes it holds nothing else. Under mu.
func (b *budget) alone(s *share) bool {
	return b.large == nil && b.byFrom[s.from] == s.bytes && (s.user == "" || b.byUser[s.user] == s.bytes)
}

// count adds n bytes to what is held. Under mu.
func (b *budget) count(s *share, n int64) {
	b.held += n
	if b.byFrom[s.from] += n; b.byFrom[s.from] == 0 {
		delete(b.byFrom, s.from)
	}
	if s.user == "" {
		return
	}
	if b.byUser[s.user] += n; b.byUser[s.user] == 0 {
		delete(b.byUser, s.user)
	}
}

// giveBack ends what a request holds.
func (b *budget) giveBack(s *share) {
	if s.bytes == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.large == s {
		b.large = nil
	} else {
		b.count(s, -s.bytes)
	}
	s.bytes = 0
}

// share is a part of the memory limit.
func (s *Server) share(of int64) func() int64 {
	return func() int64 {
		limit := int64(withoutLimit)
		if s.opt.Resources != nil {
			if l := s.opt.Resources().MemoryLimit; l > 0 {
				limit = l
			}
		}
		return limit / of
	}
}
