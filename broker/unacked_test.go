package broker

import (
	"testing"

	"github.com/firemq/firemq/broker/queue"
	"pgregory.net/rapid"
)

// Whatever is pushed, taken, popped and cut off, the outstanding deliveries are those of a plain list, and the
// memory stays in proportion.
func TestUnackedModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := &Queue{}
		var u unacked
		var want []uint64
		tag := uint64(0)
		taken := func(got slot, i int) {
			if got.q != q || got.tag != want[i] || got.e.Seq != want[i] {
				t.Fatalf("took tag %d, want %d", got.tag, want[i])
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"push", "push", "take", "take many", "pop", "cut", "take all"}).Draw(t, "step") {
			case "push":
				for range rapid.IntRange(1, 300).Draw(t, "n") {
					tag += uint64(rapid.SampledFrom([]int{1, 1, 1, 3}).Draw(t, "gap"))
					u.push(tag, q, nil, &queue.Entry{Seq: tag}, 0)
					want = append(want, tag)
				}
			case "take", "take many":
				for range rapid.IntRange(1, 100).Draw(t, "n") {
					if len(want) == 0 {
						break
					}
					i := rapid.IntRange(0, len(want)-1).Draw(t, "i")
					at := u.find(want[i])
					if at < 0 {
						t.Fatalf("tag %d is not found", want[i])
					}
					taken(u.take(at), i)
					if u.find(want[i]) >= 0 {
						t.Fatalf("tag %d is found twice", want[i])
					}
					want = append(want[:i:i], want[i+1:]...)
				}
			case "pop":
				for range min(len(want), 70) {
					taken(u.pop(), 0)
					want = want[1:]
				}
			case "cut":
				if u.n == 0 {
					continue
				}
				n := rapid.IntRange(1, u.n).Draw(t, "cut")
				first := u.cut(n)
				for first.live > 0 {
					taken(first.pop(), 0)
					want = want[1:]
				}
			case "take all":
				all := u.takeAll()
				for all.live > 0 {
					taken(all.pop(), 0)
					want = want[1:]
				}
			}
			if u.live != len(want) {
				t.Fatalf("%d outstanding, want %d", u.live, len(want))
			}
			for _, tag := range want {
				if u.find(tag) < 0 {
					t.Fatalf("tag %d is not found", tag)
				}
			}
			if u.slots() > max(keptBlocks*blockSlots, 2*u.n+2*blockSlots) {
				t.Fatalf("%d slots for %d in use, %d outstanding", u.slots(), u.n, u.live)
			}
		}
	})
}

// A consumer that acknowledges as it goes costs no allocation.
func TestUnackedSteadyStateDoesNotAllocate(t *testing.T) {
	q, e := &Queue{}, &queue.Entry{}
	for _, held := range []int{1, 100, 1000, 10_000} {
		var u unacked
		tag := uint64(0)
		step := func() {
			for range 500 {
				tag++
				u.push(tag, q, nil, e, 0)
			}
			for u.live > held {
				u.pop()
			}
		}
		for range 100 + held/500 {
			step()
		}
		if n := testing.AllocsPerRun(100, step); n != 0 {
			t.Errorf("%d outstanding: %v allocations", held, n)
		}
	}
}
