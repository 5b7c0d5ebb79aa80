package pool

import "testing"

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
		b := Get(n)
		if len(b.B) != n {
			t.Fatalf("Get(%d) has %d bytes", n, len(b.B))
		}
		b.Retain()
		b.Release()
		b.Release()
	}
}

func TestReleaseTooManyPanics(t *testing.T) {
	b := Get(MaxPooled + 1)
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
		Get(300).Release()
	}
}
