package route

// directIndex matches the routing key exactly.
type directIndex[Q comparable] struct {
	byKey map[string]*bucket[Q]
}

func (x *directIndex[Q]) add(b *binding[Q]) {
	k := x.byKey[b.id.key]
	if k == nil {
		if x.byKey == nil {
			x.byKey = make(map[string]*bucket[Q])
		}
		k = &bucket[Q]{}
		x.byKey[b.id.key] = k
	}
	k.add(b.id.dst)
}

func (x *directIndex[Q]) remove(b *binding[Q]) {
	k := x.byKey[b.id.key]
	k.remove(b.id.dst)
	if k.empty() {
		delete(x.byKey, b.id.key)
	}
}

func (x *directIndex[Q]) match(w *walk[Q]) bool {
	matched := false
	for _, key := range w.keys {
		if k := x.byKey[string(key)]; k != nil {
			w.take(k)
			matched = true
		}
	}
	return matched
}
