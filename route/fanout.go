package route

// fanoutIndex matches every message; keys and arguments of its bindings only tell them apart.
type fanoutIndex[Q comparable] struct {
	all bucket[Q]
}

func (x *fanoutIndex[Q]) add(b *binding[Q])    { x.all.add(b.id.dst) }
func (x *fanoutIndex[Q]) remove(b *binding[Q]) { x.all.remove(b.id.dst) }

func (x *fanoutIndex[Q]) match(w *walk[Q]) bool {
	w.take(&x.all)
	return !x.all.empty()
}
