package pool

import (
	"sync"
	"testing"
)

func TestClassHoldsItsSizeWithAtMostAFifthUnused(t *testing.T) {
	for n := 1; n <= MaxPooled; n += 1 + n/97 {
		c := classOf(n)
		size := classSize(c)
		if size < n {
			t.Fatalf("classOf(%d) = %d of %d bytes: too small", n, c, size)
		}
		if c > 0 && classSize(c-1) >= n {
			t.Fatalf("classOf(%d) = %d, but class %d holds it too", n, c, c-1)
		}
		if n > 64 && size-n > size/5 {
			t.Fatalf("classOf(%d) has %d bytes: more than a fifth unused", n, size)
		}
	}
	if got := classOf(MaxPooled); got != classes-1 {
		t.Fatalf("classOf(MaxPooled) = %d, want %d", got, classes-1)
	}
	if got := classOf(MaxPooled + 1); got != -1 {
		t.Fatalf("classOf(MaxPooled+1) = %d, want -1", got)
	}
}

func TestGetReleaseReusesWithoutAllocating(t *testing.T) {
	for _, n := range []int{0, 1, 64, 65, 300, 4096, 70000, MaxPooled, MaxPooled + 1} {
		b := Get(n, Messages)
		if len(b.B) != n {
			t.Fatalf("Get(%d) has %d bytes", n, len(b.B))
		}
		b.Retain()
		b.Release()
		b.Release()
	}
}

func TestReleaseTooManyPanics(t *testing.T) {
	b := Get(MaxPooled+1, Messages)
	b.Release()
	defer func() {
		if recover() == nil {
			t.Fatal("second Release did not panic")
		}
	}()
	b.Release()
}

func BenchmarkGetRelease(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Get(300, Sending).Release()
	}
}

func TestLentCountsWhatBuffersTake(t *testing.T) {
	messages, sending, buffers := Lent(Messages), Lent(Sending), Buffers(Messages)
	var held []*Buf
	want := int64(0)
	for _, n := range []int{0, 1, 300, 4096, 70000, MaxPooled, 3 * MaxPooled} {
		b := Get(n, Messages)
		b.Retain()
		want += int64(cap(b.B)) + overhead
		held = append(held, b)
	}
	if n := Lent(Messages) - messages; n != want {
		t.Errorf("%d bytes are lent, want %d", n, want)
	}
	if n := Buffers(Messages) - buffers; n != int64(len(held)) {
		t.Errorf("%d buffers are lent, want %d", n, len(held))
	}
	if n := Lent(Sending); n != sending {
		t.Errorf("another use has %d bytes more", n-sending)
	}
	// Given back by other goroutines, which have other tallies.
	var done sync.WaitGroup
	for _, b := range held {
		b.Release()
		done.Go(func() { b.Release() })
	}
	done.Wait()
	if n := Lent(Messages); n != messages {
		t.Errorf("%d bytes are still lent", n-messages)
	}
	if n := Buffers(Messages); n != buffers {
		t.Errorf("%d buffers are still lent", n-buffers)
	}
	// A buffer has the use of its last lending alone.
	Get(300, Messages).Release()
	b := Get(300, Sending)
	if Lent(Messages) != messages || Lent(Sending) != sending+int64(cap(b.B))+overhead {
		t.Error("a buffer counts for what it was used for before")
	}
	b.Release()
}

// TestTallies: what one goroutine takes and another gives back leaves tallies of either sign, and their sum is exact
// whatever the size.
func TestTallies(t *testing.T) {
	sizes := []int{64, 80, 4096, MaxPooled, MaxPooled + 1, 1<<30 + 5}
	messages, buffers, want := Lent(Messages), Buffers(Messages), int64(0)
	for i := range 100 {
		for _, size := range sizes {
			tallies[i%len(tallies)].lent[Messages].Add(lending(size))
			want += int64((size + overhead + granule - 1) / granule * granule)
		}
	}
	if got := Lent(Messages) - messages; got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
	if got := Buffers(Messages) - buffers; got != int64(100*len(sizes)) {
		t.Errorf("%d buffers, want %d", got, 100*len(sizes))
	}
	for range 100 {
		for _, size := range sizes {
			tallies[3].lent[Messages].Add(-lending(size))
		}
	}
	if Lent(Messages) != messages || Buffers(Messages) != buffers {
		t.Errorf("%d bytes and %d buffers are left", Lent(Messages)-messages, Buffers(Messages)-buffers)
	}
	// A release that is seen before its lending does not borrow from the bytes of the others.
	tallies[0].lent[Sending].Add(lending(64))
	before := Lent(Sending)
	tallies[1].lent[Sending].Add(-2)
	if got := Lent(Sending); got != before || Buffers(Sending) < 0 {
		t.Errorf("%d bytes, %d before, %d buffers", got, before, Buffers(Sending))
	}
	tallies[1].lent[Sending].Add(2 - lending(64))
}

func TestMissesAreCounted(t *testing.T) {
	_, before := Misses()
	Get(MaxPooled+1, Messages).Release()
	if _, large := Misses(); large != before+1 {
		t.Errorf("%d large buffers, want 1", large-before)
	}
	empty, _ := Misses()
	var held []*Buf
	for range 10_000 { // more than the pool has
		held = append(held, Get(MaxPooled/1024, Messages))
	}
	after, _ := Misses()
	if n := after - empty; n < 5000 || n > 10_000 {
		t.Errorf("%d misses of 10000", n)
	}
	for _, b := range held {
		b.Release()
	}
}
