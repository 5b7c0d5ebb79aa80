package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/firemq/firemq/broker/message"
)

// browseAll gives the Seq of all that is behind a place, page by page.
func browseAll(q *Queue, at Place, limit int) (seqs []uint64) {
	for more := true; more; {
		var page []Entry
		more = q.Browse(&at, limit, &page)
		for i := range page {
			seqs = append(seqs, page[i].Seq)
		}
	}
	return seqs
}

// TestBrowseWhileUsed browses a long queue page by page while messages come, leave, come back, are paged out and
// expire. A page must never repeat a message or miss one that is there all the time.
func TestBrowseWhileUsed(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3, 4} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			r := newRig(t, func(c *Config) { c.ExpireAnywhere = seed%2 == 0 })
			publish := func(n int) {
				for range n {
					s := sent{size: 10}
					m := s.message()
					m.SetPosition(10 * r.q.NextSeq())
					m.Expiration = -1
					switch {
					case seed == 3 && rnd.IntN(3) == 0:
						m.Delay = 1 + rnd.Int64N(400)
					case rnd.IntN(4) == 0:
						m.Expiration = rnd.Int64N(800)
					}
					r.q.Publish(m, true, r.now, &r.out)
				}
			}
			r.committed = 1 << 60
			publish(20_000)
			var paged []*message.Message
			stay := make(map[uint64]bool) // those that are there at the beginning, and not seen by anybody yet
			for _, s := range browseAll(r.q, Before(false), 1000) {
				stay[s] = true
			}
			seen := make(map[uint64]bool)
			at := Before(false)
			for more := true; more; {
				var page []Entry
				more = r.q.Browse(&at, 1+rnd.IntN(700), &page)
				for i := range page {
					if seen[page[i].Seq] {
						t.Fatalf("message %d seen twice", page[i].Seq)
					}
					seen[page[i].Seq] = true
				}
				switch rnd.IntN(7) {
				case 6:
					var places []Place
					for i := range page {
						if rnd.IntN(3) > 0 || rnd.IntN(4) == 0 && i > 0 {
							places = append(places, page[i].Place(false))
						}
					}
					var gone []Entry
					if r.q.Withdraw(places, &gone); len(gone) != len(places) {
						t.Fatalf("%d withdrawn of %d", len(gone), len(places))
					}
					for i := range gone {
						if rnd.IntN(2) == 0 {
							r.q.Return(gone[i])
						}
					}
				case 0:
					publish(rnd.IntN(300))
				case 1:
					for range rnd.IntN(300) {
						if e, ok := r.q.Get(r.now, &r.out); ok {
							delete(stay, e.Seq)
							if rnd.IntN(2) == 0 {
								r.q.Requeue(nil, e, r.now, &r.out)
							} else {
								r.q.Ack(nil, &e)
								e.Msg = nil
							}
						}
					}
				case 2:
					r.q.PageOut(rnd.Int64N(100_000), r.committed, 20_000, &paged)
				case 3:
					r.now += rnd.Int64N(60)
					r.q.Expire(r.now, &r.out)
				}
				for i := range r.out.Dead {
					delete(stay, r.out.Dead[i].Entry.Seq)
				}
				r.out.Reset()
				if err := r.q.check(); err != nil {
					t.Fatal(err)
				}
			}
			for s := range stay {
				if !seen[s] {
					t.Fatalf("message %d, there all the time, was not seen", s)
				}
			}
			if len(seen) < 10_000 {
				t.Fatalf("%d seen", len(seen))
			}
		})
	}
}

func TestBrowseChangesNothing(t *testing.T) {
	r := newRig(t, nil)
	backlog(r, 5000, 10)
	var out []*message.Message
	r.q.PageOut(1000, r.committed, 5000, &out)
	var before, after []Piece
	for p := range r.q.Pieces() {
		before = append(before, Piece{Block: p.Block, Entries: slices.Clone(p.Entries)})
	}
	if n := len(browseAll(r.q, Before(false), 77)); n != 5000 {
		t.Errorf("%d browsed", n)
	}
	for p := range r.q.Pieces() {
		after = append(after, Piece{Block: p.Block, Entries: slices.Clone(p.Entries)})
	}
	if fmt.Sprint(before) != fmt.Sprint(after) || r.q.Len() != 5000 || r.q.Unacked() != 0 {
		t.Error("browsing changed the queue")
	}
}

// TestBrowseAnywhere: a place deep in a queue without marks is reached in steps of bounded work.
func TestBrowseAnywhere(t *testing.T) {
	r := newRig(t, nil)
	const n = chunkEntries * (browseChunks + 10)
	for range n {
		r.q.Publish(sent{}.message(), false, r.now, &r.out)
	}
	at := Place{Key: n - 5}
	var page []Entry
	if more := r.q.Browse(&at, 10, &page); !more || len(page) != 0 {
		t.Fatalf("%d found, more %v", len(page), more)
	}
	if more := r.q.Browse(&at, 10, &page); more || len(page) != 5 || page[0].Seq != n-4 {
		t.Fatalf("%d found, more %v", len(page), more)
	}
}

// BenchmarkBrowse is a page of 100 at different depths of a queue of a million: the time must not grow with
// the depth.
func BenchmarkBrowse(b *testing.B) {
	const n = 1_000_000
	r := newRig(b, nil)
	for range n {
		m := sent{size: 10}.message()
		m.SetPosition(10 * r.q.NextSeq())
		r.q.Publish(m, true, r.now, &r.out)
	}
	r.committed = 1 << 60
	var out []*message.Message
	for r.q.PageOut(0, r.committed, 1<<20, &out) {
	}
	for _, from := range []uint64{0, n / 2, n - 100_000} {
		b.Run(fmt.Sprint("from ", from), func(b *testing.B) {
			at := Place{Key: from}
			var page []Entry
			for b.Loop() {
				page = page[:0]
				if !r.q.Browse(&at, 100, &page) || at.Key > from+90_000 {
					at = Place{Key: from}
				}
			}
		})
	}
}
