package prefetch

import (
	"testing"
	"unsafe"
)

// Whatever it is asked for, nothing changes and nothing faults: behind the end of an object, too.
func TestLines(t *testing.T) {
	b := make([]byte, 4096)
	for i := range b {
		b[i] = byte(i)
	}
	for _, n := range []int{1, 2, 64, 1 << 16} {
		Lines(unsafe.Pointer(&b[0]), n)
	}
	Lines(nil, 1)
	for i := range b {
		if b[i] != byte(i) {
			t.Fatalf("byte %d is %d", i, b[i])
		}
	}
}

func BenchmarkLines(b *testing.B) {
	m := make([]byte, 640)
	for range b.N {
		Lines(unsafe.Pointer(&m[0]), 10)
	}
}
