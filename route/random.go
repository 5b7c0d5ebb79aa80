package route

import "math/rand/v2"

// randomIndex gives every message to one destination, chosen anew each time. Keys and arguments of its
// bindings only tell them apart.
type randomIndex[Q comparable] struct {
	all set[*node[Q]]
}

func (x *randomIndex[Q]) add(b *binding[Q])    { x.all.add(b.id.dst) }
func (x *randomIndex[Q]) remove(b *binding[Q]) { x.all.remove(b.id.dst) }

func (x *randomIndex[Q]) match(w *walk[Q]) bool {
	if len(x.all.items) == 0 {
		return false
	}
	w.takeNode(x.all.items[rand.IntN(len(x.all.items))])
	return true
}
