//go:build amd64 || arm64

package prefetch

import "unsafe"

// Lines asks for n cache lines of 64 bytes, at least one, from p on. It waits for nothing and reads nothing,
// so it may be called without the locks that guard what is there.
//
//go:noescape
func Lines(p unsafe.Pointer, n int)
