package queue

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/firemq/firemq/broker/message"
)

// TestDelaysUnderLoad moves a long set of delayed messages through all places that they can be in, and
// through a compaction, with a fixed seed.
func TestDelaysUnderLoad(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 9))
	r := newRig(t, func(c *Config) {})
	pos := map[uint64]uint64{} // where each message's record is, 0: not in the journal
	var want []Entry           // delayed, then ripe, in the order in which they leave
	var pages []*message.Message
	next := uint64(8)
	got, found, blocks := 0, 0, 0
	for step := range 500 {
		switch rnd.IntN(8) {
		case 0, 1, 2:
			for range rnd.IntN(100) {
				m := sent{size: rnd.IntN(50), delay: 1 + rnd.Int64N(5000)}.message()
				journaled := rnd.IntN(30) > 0
				e, _ := r.q.Publish(m, journaled, r.now, &r.out)
				if journaled {
					m.SetPosition(next)
					pos[e.Seq] = next
					next += 8
				}
				want = append(want, e)
			}
			slices.SortFunc(want, compareDue)
		case 3:
			r.committed = next
		case 4:
			r.q.PageOut(int64(rnd.IntN(40_000)), r.committed, 1+rnd.IntN(1000), &pages)
		case 5: // some messages get another place
			var moves []Move
			for _, e := range want {
				if from := pos[e.Seq]; from != 0 && rnd.IntN(20) == 0 {
					moves = append(moves, Move{Seq: e.Seq, From: from, To: next, Due: e.Due}, Move{Seq: e.Seq, From: from + 1, Due: e.Due})
					next += 8
				}
			}
			slices.SortFunc(moves, func(a, b Move) int { return int(a.Seq) - int(b.Seq) })
			r.q.Find(moves, true)
			for _, m := range moves {
				if m.Found != (m.To != 0) {
					t.Fatalf("step %d: %+v", step, m)
				}
				if m.Found {
					found++
					pos[m.Seq] = m.To
				}
			}
		case 6: // what Pieces gives is what the journal has
			n := 0
			for p := range r.q.Pieces() {
				entries := p.Entries
				if p.Block != nil {
					blocks++
					var err error
					if entries, _, err = DecodeBlock(nil, p.Block); err != nil {
						t.Fatal(err)
					}
				}
				for i := range entries {
					if e := &entries[i]; e.Journaled && e.Position() != pos[e.Seq] {
						t.Fatalf("step %d: %+v is at %d", step, e, pos[e.Seq])
					} else if e.Journaled {
						n++
					}
				}
			}
			for _, e := range want {
				if pos[e.Seq] != 0 {
					n--
				}
			}
			if n != 0 {
				t.Fatalf("step %d: pieces give %d messages too many", step, n)
			}
		default:
			r.committed = next
			r.q.Dispatch(r.now, r.committed, 128, &r.out)
			r.now += rnd.Int64N(300)
			for range rnd.IntN(200) {
				e, ok := r.q.Get(r.now, &r.out)
				if !ok {
					if len(want) > 0 && want[0].Due <= r.now {
						t.Fatalf("step %d: nothing comes, %+v should", step, want[0])
					}
					break
				}
				if w := want[0]; e.Seq != w.Seq || e.Due != w.Due || pos[e.Seq] != e.Position() {
					t.Fatalf("step %d: got %+v, want %+v", step, e, w)
				}
				want = want[1:]
				r.q.Ack(nil, &e)
				got++
			}
		}
		for _, m := range pages {
			m.Release()
		}
		pages = pages[:0]
		if err := r.q.check(); step%50 == 0 && err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
	}
	if got < 2000 || found < 500 || blocks < 500 {
		t.Errorf("got %d, moved %d, looked at %d blocks", got, found, blocks)
	}
}

// A recovery gives delayed messages in order of Seq; they leave in order of due time.
func TestRestoreDelayed(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	q := newQueue(Plain)
	var want []Entry
	n := restoreBatch + 5000
	if checking {
		n = 5000
	}
	for i := range uint64(n) {
		e := Entry{Seq: i + 1, Pos: 8 * (i + 1), Due: 1 + rnd.Int64N(1e6), Size: 7, Journaled: true, Redelivered: true}
		q.Restore(e)
		want = append(want, e)
	}
	q.Restored()
	if err := q.check(); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(want, compareDue)
	var out Effects
	for i, w := range want {
		e, ok := q.Get(2e6, &out)
		if w.Lag = e.Lag; !ok || e != w {
			t.Fatalf("%d: got %+v, want %+v", i, e, w)
		}
		q.Ack(nil, &e)
	}
	if q.delays.room != nil || q.delays.blocks != nil || q.Delayed() != 0 || q.Len() != 0 {
		t.Fatal("the memory of what was delayed is kept")
	}
}

// A message that was delayed is behind all that was ready when it was due, and returns there.
func TestRequeueOfADelayedMessage(t *testing.T) {
	r := newRig(t, func(c *Config) {})
	r.publish(sent{delay: 20}, sent{delay: 10}, sent{}) // 1, 2, 3
	r.now += 10
	r.publish(sent{})
	r.now += 10
	r.publish(sent{})
	var all []Entry
	for {
		e, ok := r.q.Get(r.now, &r.out)
		if !ok {
			break
		}
		all = append(all, e)
	}
	seqs := func(entries []Entry) (s []uint64) {
		for _, e := range entries {
			s = append(s, e.Seq)
		}
		return s
	}
	first := seqs(all)
	for _, i := range []int{3, 0, 4, 2, 1} {
		r.q.Requeue(nil, all[i], r.now, &r.out)
		r.ok()
	}
	all = all[:0]
	for {
		e, ok := r.q.Get(r.now, &r.out)
		if !ok {
			break
		}
		all = append(all, e)
	}
	if !slices.Equal(first, []uint64{3, 2, 5, 1, 7}) || !slices.Equal(seqs(all), first) {
		t.Fatalf("came as %v, then as %v", first, seqs(all))
	}
}

// TestExpireAnywhere takes expired messages out of a long backlog, in memory, paged out and requeued, and
// compares with what should be left.
func TestExpireAnywhere(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 5))
	r := newRig(t, func(c *Config) { c.ExpireAnywhere, c.MaxPriority = true, 1 })
	expiry := map[uint64]int64{}
	var order [2][]uint64 // Seq of what is there, by level
	var pages []*message.Message
	var held []Entry
	took := 0
	const late = 10 // ms that so short a queue may be late
	for step := range 301 {
		what := rnd.IntN(6)
		if step == 300 {
			what = 5
		}
		switch what {
		case 0, 1:
			for range rnd.IntN(200) {
				s := sent{size: rnd.IntN(50), priority: uint8(rnd.IntN(2))}
				if rnd.IntN(3) > 0 {
					s.expiration = 1 + rnd.Int64N(3000)
				}
				m := s.message()
				m.SetPosition(10 * r.q.NextSeq())
				e, _ := r.q.Publish(m, rnd.IntN(20) > 0, r.now, &r.out)
				expiry[e.Seq] = e.Expiry
				order[e.Priority] = append(order[e.Priority], e.Seq)
			}
		case 2:
			r.committed = 10 * r.q.NextSeq()
			r.q.PageOut(int64(rnd.IntN(40_000)), r.committed, 1+rnd.IntN(1000), &pages)
		case 3:
			for range rnd.IntN(50) {
				e, ok := r.q.Get(r.now, &r.out)
				if !ok {
					break
				}
				held = append(held, e)
				o := &order[e.Priority]
				i := slices.Index(*o, e.Seq)
				*o = slices.Delete(*o, i, i+1)
			}
		case 4:
			for len(held) > 0 && rnd.IntN(50) > 0 {
				e := held[0]
				held = held[1:]
				if rnd.IntN(3) == 0 {
					r.q.Ack(nil, &e)
					continue
				}
				r.q.Requeue(nil, e, r.now, &r.out)
				o := &order[e.Priority]
				i, _ := slices.BinarySearch(*o, e.Seq)
				*o = slices.Insert(*o, i, e.Seq)
			}
		default:
			r.now += rnd.Int64N(300)
			r.now += late
			for at := r.q.NextExpiry(); at != 0 && at <= r.now; at = r.q.NextExpiry() {
				r.q.Expire(r.now, &r.out)
			}
			r.now -= late
		}
		for _, d := range r.out.Dead {
			o := &order[d.Entry.Priority]
			i := slices.Index(*o, d.Entry.Seq)
			if i < 0 || d.Reason != Expired || d.Entry.Expiry > r.now+late || d.Entry.Expiry != expiry[d.Entry.Seq] ||
				d.Entry.Msg == nil && d.Entry.Pos != 10*d.Entry.Seq {
				t.Fatalf("step %d: dead %+v", step, d)
			}
			*o = slices.Delete(*o, i, i+1)
			took++
		}
		r.out.Reset()
		if err := r.q.check(); step%20 == 0 && err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		at := r.q.NextExpiry()
		for _, o := range order {
			for _, seq := range o {
				if e := expiry[seq]; e != 0 && (at == 0 || at > max(e, r.now)+2*late) {
					t.Fatalf("step %d: %d expires at %d, it is %d, the queue waits for %d", step, seq, e, r.now, at)
				}
			}
		}
	}
	for _, want := range slices.Concat(order[1], order[0]) {
		e, ok := r.q.Get(r.now, &r.out)
		if !ok || e.Seq != want {
			t.Fatalf("got %+v, want %d", e, want)
		}
	}
	if r.q.Len() != 0 || took < 2000 {
		t.Fatalf("%d are left, %d expired", r.q.Len(), took)
	}
}
