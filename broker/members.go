package broker

// fewMembers is up to how many consumers of a queue are looked through; of more, those of each channel are counted.
const fewMembers = 8

// enrol makes c one of the queue's consumers. Lock held.
func (q *Queue) enrol(c *Consumer) {
	if q.members == nil {
		q.members = make(map[*Consumer]struct{})
	}
	q.twins = q.twins || q.consumersOf(c.ch) > 0
	q.members[c] = struct{}{}
	switch {
	case q.channels != nil:
		q.channels[c.ch]++
	case len(q.members) > fewMembers:
		q.channels = make(map[*Channel]int)
		for c := range q.members {
			q.channels[c.ch]++
		}
	}
}

// strike undoes enrol. Lock held.
func (q *Queue) strike(c *Consumer) {
	delete(q.members, c)
	switch {
	case q.channels == nil:
	case len(q.members) <= fewMembers/2:
		q.channels = nil
	case q.channels[c.ch] == 1:
		delete(q.channels, c.ch)
	default:
		q.channels[c.ch]--
	}
}

// consumersOf is how many of the queue's consumers are ch's. Lock held.
func (q *Queue) consumersOf(ch *Channel) (n int) {
	if q.channels != nil {
		return q.channels[ch]
	}
	for c := range q.members {
		if c.ch == ch {
			n++
		}
	}
	return n
}

// consuming gives the channels that consume the queue, each once. Lock held.
func (q *Queue) consuming() map[*Channel]int {
	if q.channels != nil {
		return q.channels
	}
	channels := make(map[*Channel]int, len(q.members))
	for c := range q.members {
		channels[c.ch]++
	}
	return channels
}
