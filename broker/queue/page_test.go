package queue

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/firemq/firemq/broker/message"
)

// backlog publishes n journaled messages of size bytes, the record of Seq i at 10*i, all committed.
func backlog(r *rig, n, size int) {
	for range n {
		m := sent{size: size}.message()
		m.SetPosition(10 * r.q.NextSeq())
		r.q.Publish(m, true, r.now, &r.out)
	}
	r.committed = math.MaxUint64
	r.ok()
}

func TestPageOut(t *testing.T) {
	const each = 1000 + overhead // what a message of 1,000 bytes costs
	pageOut := func(r *rig, keep int64) (gone int) {
		var out []*message.Message
		for r.q.PageOut(keep, r.committed, 100, &out) {
			r.ok()
		}
		r.ok()
		for _, m := range out {
			m.Release()
		}
		return len(out)
	}
	t.Run("the first ones stay, the rest comes out with its position", func(t *testing.T) {
		r := newRig(t, nil)
		backlog(r, 1000, 1000)
		if n := pageOut(r, 10*each); n != 990 {
			t.Errorf("%d paged out, want 990", n)
		}
		if n := r.q.Resident(); n != 10*each {
			t.Errorf("%d bytes resident, want %d", n, 10*each)
		}
		if r.q.Len() != 1000 || r.q.Bytes() != 1_000_000 {
			t.Errorf("%d ready, %d bytes", r.q.Len(), r.q.Bytes())
		}
		r.consumer(nil)
		r.dispatch()
		for i, d := range r.held {
			seq := uint64(i + 1)
			switch e := d.Entry; {
			case e.Seq != seq, e.Size != 1000, !e.Journaled:
				t.Fatalf("delivery %d is %+v", i, e)
			case i < 10 && (e.Msg == nil || e.Msg.Position() != 10*seq), i >= 10 && (e.Msg != nil || e.Pos != 10*seq):
				t.Fatalf("delivery %d is %+v", i, e)
			}
		}
		if r.q.Resident() != 0 {
			t.Errorf("%d bytes resident in an empty queue", r.q.Resident())
		}
	})
	t.Run("what is not committed stays, and goes later", func(t *testing.T) {
		r := newRig(t, nil)
		backlog(r, 300, 1000)
		r.committed = 2001
		if n := pageOut(r, 0); n != 200 {
			t.Errorf("%d paged out, want 200", n)
		}
		if n := pageOut(r, 0); n != 0 {
			t.Errorf("%d paged out again", n)
		}
		r.committed = 3001
		if n := pageOut(r, 0); n != 100 {
			t.Errorf("%d paged out, want 100", n)
		}
	})
	t.Run("transient messages stay", func(t *testing.T) {
		r := newRig(t, nil)
		r.publish(sent{size: 1000, times: 3})
		if n := pageOut(r, 0); n != 0 || r.q.Resident() != 0 {
			t.Errorf("%d paged out, %d resident", n, r.q.Resident())
		}
	})
	t.Run("an empty queue has nothing to page out", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.MaxPriority = 2 })
		if n := pageOut(r, 0); n != 0 {
			t.Errorf("%d paged out", n)
		}
	})
	t.Run("as the front moves on, others may stay", func(t *testing.T) {
		r := newRig(t, nil)
		backlog(r, 20, 1000)
		pageOut(r, 5*each)
		r.consumer(prefetch(4))
		r.dispatch()
		backlog(r, 10, 1000)
		if n := pageOut(r, 5*each); n != 6 || r.q.Resident() != 5*each {
			t.Errorf("%d paged out, %d resident", n, r.q.Resident()/each)
		}
	})
	t.Run("the first chunk is not packed", func(t *testing.T) {
		r := newRig(t, nil)
		backlog(r, 300, 1000)
		for range smallChunkEntries {
			r.q.Get(r.now, &r.out)
		}
		pageOut(r, 0)
		if e, ok := r.q.Get(r.now, &r.out); !ok || e.Seq != smallChunkEntries+1 {
			t.Errorf("got %+v, %v", e, ok)
		}
	})
	t.Run("only the highest priority keeps some", func(t *testing.T) {
		r := newRig(t, func(c *Config) { c.MaxPriority = 5 })
		for i := range 40 {
			m := sent{size: 1000, priority: uint8(i % 2 * 4)}.message()
			m.SetPosition(1)
			r.q.Publish(m, true, r.now, &r.out)
		}
		r.committed = 2
		if n := pageOut(r, 3*each); n != 37 {
			t.Errorf("%d paged out, want 37", n)
		}
	})
	t.Run("requeued without a message", func(t *testing.T) {
		r := newRig(t, nil)
		backlog(r, 3, 1000)
		pageOut(r, 0)
		r.consumer(prefetch(1))
		r.dispatch()
		r.requeue(r.held...)
		r.dispatch()
		if e := r.held[1].Entry; e.Msg != nil || e.Pos != 10 || !e.Redelivered {
			t.Errorf("%+v", e)
		}
	})
	t.Run("purge and recovery", func(t *testing.T) {
		r := newRig(t, nil)
		backlog(r, 1000, 0)
		pageOut(r, 2*overhead)
		var out []Entry
		purge(r.q, &out)
		r.ok()
		if len(out) != 1000 || out[999].Pos != 10_000 || out[0].Msg == nil {
			t.Fatalf("%d purged", len(out))
		}
		again := newRig(t, nil)
		for i, e := range out {
			e.Msg, e.Pos = nil, 10*e.Seq
			e.Deliveries, e.Redelivered, e.Expiry = uint16(i), i%3 == 0, int64(i)*math.MaxUint32
			out[i] = e
			again.q.Restore(e)
		}
		again.ok()
		packed := 0
		for c := again.q.ready.plain.fifo.first; c != nil; c = c.next {
			if c.packed != nil {
				packed++
			}
		}
		if packed < 5 {
			t.Errorf("%d packed chunks of 1,000 restored messages", packed)
		}
		var back []Entry
		purge(again.q, &back)
		if !slices.Equal(back, out) {
			t.Error("restored messages came out different")
		}
	})
	t.Run("odd entries come out as they went in", func(t *testing.T) {
		for _, odd := range []Entry{
			{Pos: math.MaxUint64, Journaled: true}, {Size: math.MaxUint32, Journaled: true},
			{Expiry: math.MinInt64, Journaled: true}, {Journaled: true, Transient: true},
			{Journaled: true, Transient: true, Deliveries: math.MaxUint16, Redelivered: true}, {Journaled: false},
		} {
			r := newRig(t, nil)
			var want []Entry
			for i := range 500 {
				e := Entry{Journaled: true}
				if i == 200 {
					e = odd
				}
				e.Seq = uint64(i + 1)
				want = append(want, e)
				r.q.Restore(e)
			}
			r.q.Restore(Entry{Seq: 1 << 40, Journaled: true})
			want = append(want, Entry{Seq: 1 << 40, Journaled: true})
			for i := range uint64(300) {
				r.q.Restore(Entry{Seq: 1<<40 + i + 1, Journaled: true})
				want = append(want, Entry{Seq: 1<<40 + i + 1, Journaled: true})
			}
			r.ok()
			var got []Entry
			purge(r.q, &got)
			if !slices.Equal(got, want) {
				t.Errorf("%+v: came out different", odd)
			}
		}
	})
}

// purge takes everything off a queue and says how much it was.
func purge(q *Queue, out *[]Entry) int { return takeAll(q.Purge(), out) }

func closeQueue(q *Queue, out *[]Entry) { takeAll(q.Close(), out) }

func takeAll(b Backlog, out *[]Entry) int {
	n := b.Len()
	for b.Len() > 0 {
		b.Take(7, out)
	}
	return n
}

func TestFind(t *testing.T) {
	for _, levels := range []int{None, 2} {
		r := newRig(t, func(c *Config) { c.MaxPriority = levels })
		for i := range 2000 {
			m := sent{size: 10, priority: uint8(i % 3)}.message()
			m.SetPosition(10 * r.q.NextSeq())
			r.q.Publish(m, true, r.now, &r.out)
		}
		r.committed = math.MaxUint64
		var out []*message.Message
		r.q.PageOut(20*(overhead+10), r.committed, math.MaxInt, &out)
		var held []Entry
		for range 5 {
			e, _ := r.q.Get(r.now, &r.out)
			held = append(held, e)
		}
		r.q.Requeue(nil, held[1], r.now, &r.out)
		unacked := map[uint64]bool{held[0].Seq: true, held[2].Seq: true, held[3].Seq: true, held[4].Seq: true}
		var moves []Move
		for seq := uint64(1); seq <= 2100; seq += 3 - seq%2 {
			from := 10 * seq
			if seq%100 == 1 {
				from++ // that place is of another life
			}
			moves = append(moves, Move{Seq: seq, From: from, To: 1e6 + seq})
		}
		want := func(m Move) bool { return m.Seq <= 2000 && m.From == 10*m.Seq && !unacked[m.Seq] }
		r.q.Find(moves, false)
		for _, m := range moves {
			if m.Found != want(m) {
				t.Fatalf("levels %d: %+v", levels, m)
			}
		}
		r.q.Find(moves, true)
		at := map[uint64]uint64{}
		for _, m := range moves {
			if want(m) {
				at[m.Seq] = m.To
			}
		}
		r.ok()
		var all []Entry
		purge(r.q, &all)
		if len(all) != 1996 {
			t.Fatalf("%d left", len(all))
		}
		for _, e := range all {
			pos := 10 * e.Seq
			if at[e.Seq] != 0 {
				pos = at[e.Seq]
			}
			if e.Position() != pos {
				t.Fatalf("levels %d: %+v is not at %d", levels, e, pos)
			}
		}
	}
}

func TestBlocks(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 3))
	var src []byte
	var want [][]Entry
	for n := range 200 {
		var entries []Entry
		seq, pos, expiry := rnd.Uint64N(1<<40), rnd.Uint64N(1<<45), rnd.Int64N(1<<45)
		for range n {
			seq, pos = seq+1, pos+300
			e := Entry{Seq: seq, Pos: pos, Size: 256, Expiry: expiry, Journaled: true}
			switch rnd.IntN(12) {
			case 0:
				seq += rnd.Uint64N(1 << 20)
				e.Seq = seq
			case 1:
				pos -= rnd.Uint64N(1 << 20)
				e.Pos = pos
			case 2:
				e.Size = rnd.Uint32()
			case 3:
				expiry = -rnd.Int64()
				e.Expiry = expiry
			case 4:
				e.Deliveries, e.Redelivered = uint16(rnd.Uint32()), true
			case 5:
				e.Priority = uint8(rnd.Uint32())
			}
			entries = append(entries, e)
		}
		want = append(want, entries)
		src = AppendBlock(src, entries)
	}
	for n, entries := range want {
		got, rest, err := DecodeBlock(nil, src)
		if err != nil || !slices.Equal(got, entries) {
			t.Fatalf("block of %d: %v\n got %+v\nwant %+v", n, err, got, entries)
		}
		src = rest
	}
	if len(src) != 0 {
		t.Errorf("%d bytes left", len(src))
	}
}

func FuzzDecodeBlock(f *testing.F) {
	f.Add(AppendBlock(nil, []Entry{{Seq: 1, Pos: 8, Size: 3}, {Seq: 2, Pos: 88, Size: 3}, {Seq: 9, Pos: 100, Expiry: 7, Priority: 3}}))
	f.Add(AppendBlock(nil, []Entry{{Seq: 9, Pos: 8, Size: 3, Due: 5}, {Seq: 2, Pos: 88, Size: 3, Due: 6, Expiry: 9}, {Seq: 1, Pos: 100, Priority: 3}}))
	f.Add(AppendBlock(nil, []Entry{{Seq: 9, Pos: 8, Due: 5, Lag: 7}, {Seq: 2, Pos: 16, Due: 6, Lag: 15}, {Seq: 3, Pos: 24, Due: 6, Lag: 1, Redelivered: true}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, _, err := DecodeBlock(nil, b)
		if err != nil {
			return
		}
		again, rest, err := DecodeBlock(nil, AppendBlock(nil, entries))
		if err != nil || len(rest) > 0 || !slices.Equal(again, entries) {
			t.Fatalf("%v: %+v became %+v", err, entries, again)
		}
	})
}

// TestPagingUnderLoad mixes everything that moves a long backlog, with a fixed seed.
func TestPagingUnderLoad(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 7))
	r := newRig(t, func(c *Config) { c.MaxPriority = 1 })
	var want [2][]uint64 // Seq by level
	var pages []*message.Message
	for step := range 1200 {
		switch rnd.IntN(6) {
		case 0, 1:
			for range rnd.IntN(200) {
				p := uint8(rnd.IntN(2))
				m := sent{size: rnd.IntN(50), priority: p}.message()
				m.SetPosition(10 * r.q.NextSeq())
				e, _ := r.q.Publish(m, rnd.IntN(100) > 0, r.now, &r.out)
				want[p] = append(want[p], e.Seq)
			}
		case 2:
			r.committed = 10*r.q.NextSeq() - uint64(rnd.IntN(500))
		case 3:
			r.q.PageOut(int64(rnd.IntN(40_000)), r.committed, 1+rnd.IntN(1000), &pages)
		default:
			for range rnd.IntN(220) {
				e, ok := r.q.Get(r.now, &r.out)
				if !ok {
					break
				}
				seq := want[e.Priority][0]
				if e.Seq != seq || e.Priority == 0 && len(want[1]) > 0 || e.Msg == nil && e.Pos != 10*seq {
					t.Fatalf("step %d: got %+v, want %d", step, e, seq)
				}
				if rnd.IntN(20) == 0 {
					r.q.Requeue(nil, e, r.now, &r.out)
				} else {
					r.q.Ack(nil, &e)
					want[e.Priority] = want[e.Priority][1:]
				}
			}
		}
		if step%10 == 0 {
			r.ok()
		}
	}
	if len(pages) < 5_000 {
		t.Errorf("only %d messages were paged out", len(pages))
	}
}

// BenchmarkPagedBacklog is a million messages that are paged out as they come. It reports the memory
// of the queue for each.
func BenchmarkPagedBacklog(b *testing.B) {
	const n = 1_000_000
	m := sent{}.message()
	m.SetPosition(1)
	out := make([]*message.Message, 0, burst)
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		q := newQueue(Plain)
		var fx Effects
		for i := range n {
			q.Publish(m, true, 1000, &fx)
			if i%burst == 0 {
				q.PageOut(0, 2, math.MaxInt, &out)
				out = out[:0]
			}
		}
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/msg")
		b.StartTimer()
		runtime.KeepAlive(q)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/msg")
}
