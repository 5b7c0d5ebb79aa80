package broker

import (
	"cmp"
	"slices"

	"github.com/firemq/firemq/journal"
)

// Inspection is what a journal on disk holds.
type Inspection struct {
	Segments []journal.Segment
	Queues   []InspectedQueue // durable ones, by vhost and name
	Damaged  []journal.Damage
	Torn     int64 // bytes of an unfinished commit, which nobody was promised
	Clean    bool  // the broker was shut down, not killed
	Records  int64
	Bytes    int64 // of intact records
}

// InspectedQueue is a durable queue with what is ready in it.
type InspectedQueue struct {
	VHost, Name string
	Messages    int
	Bytes       int64 // of bodies
}

// Inspect reads the whole journal as Open would without a checkpoint, verifies every checksum, and
// changes nothing. No broker uses the directory meanwhile. Of o, FS, JournalDir, Start, Codecs and
// Log count.
func Inspect(o Options) (Inspection, error) {
	var in Inspection
	b := prepare(o)
	r := &recovery{b: b, after: o.Start.Position, queues: make(map[uint64]*rebuilt)}
	if err := r.restore(&o.Start); err != nil {
		return in, err
	}
	segments, stats, err := journal.Inspect(journal.Options{
		FS: o.FS, Dir: o.JournalDir, After: o.Start.Position, Log: o.Log,
		Opening: func(j *journal.Journal) { r.j = j },
	}, r)
	if err != nil {
		return in, err
	}
	for _, q := range r.queues {
		r.install(q)
		in.Queues = append(in.Queues, InspectedQueue{q.q.vhost, q.q.name, q.q.sm.Len() + q.q.sm.Delayed(), q.q.sm.Bytes() + q.q.sm.DelayedBytes()})
	}
	slices.SortFunc(in.Queues, func(a, b InspectedQueue) int {
		return cmp.Or(cmp.Compare(a.VHost, b.VHost), cmp.Compare(a.Name, b.Name))
	})
	in.Segments, in.Damaged = segments, r.damage
	in.Torn, in.Clean = stats.Recovered.Torn, stats.Recovered.Clean
	in.Records, in.Bytes = stats.Recovered.Records, stats.Recovered.Bytes
	return in, nil
}
