package route

// indexed is the size from which a set keeps a map of positions; below, a scan is faster.
const indexed = 16

// set is a list without duplicates that counts how often each item was added.
// Adding and removing take constant time, reading it is a copy of items.
type set[T comparable] struct {
	items []T
	at    map[T]int    // item -> position in items; nil until the set grew to indexed items
	more  map[T]uint32 // item -> additions beyond the first; nil while there are none
}

func (s *set[T]) position(v T) int {
	if s.at != nil {
		if i, ok := s.at[v]; ok {
			return i
		}
		return -1
	}
	for i := range s.items {
		if s.items[i] == v {
			return i
		}
	}
	return -1
}

func (s *set[T]) add(v T) {
	if s.position(v) >= 0 {
		if s.more == nil {
			s.more = make(map[T]uint32)
		}
		s.more[v]++
		return
	}
	s.items = append(s.items, v)
	if s.at != nil {
		s.at[v] = len(s.items) - 1
	} else if len(s.items) == indexed {
		s.at = make(map[T]int, 2*indexed)
		for i, v := range s.items {
			s.at[v] = i
		}
	}
}

// remove undoes one add of v, which must be in the set.
func (s *set[T]) remove(v T) {
	if n := s.more[v]; n > 1 {
		s.more[v] = n - 1
		return
	} else if n == 1 {
		delete(s.more, v)
		return
	}
	i := s.position(v)
	if i < 0 {
		panic("BUG: route: removed from a set it is not in")
	}
	last := len(s.items) - 1
	moved := s.items[last]
	s.items[i] = moved
	var zero T
	s.items[last] = zero
	s.items = s.items[:last]
	if last == 0 {
		*s = set[T]{} // give back what it grew to
	} else if s.at != nil {
		s.at[moved] = i
		delete(s.at, v)
	}
}

// bucket holds the destinations that one match leads to.
type bucket[Q comparable] struct {
	queues    set[Q]
	exchanges set[*exchange[Q]]
}

func (k *bucket[Q]) add(n *node[Q]) {
	if n.ex != nil {
		k.exchanges.add(n.ex)
	} else {
		k.queues.add(n.q)
	}
}

func (k *bucket[Q]) remove(n *node[Q]) {
	if n.ex != nil {
		k.exchanges.remove(n.ex)
	} else {
		k.queues.remove(n.q)
	}
}

func (k *bucket[Q]) empty() bool {
	return len(k.queues.items) == 0 && len(k.exchanges.items) == 0
}
