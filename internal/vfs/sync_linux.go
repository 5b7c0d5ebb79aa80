package vfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncData is fdatasync: the bytes and, when it changed, the length, but no timestamps. It is
// what makes overwriting a recycled segment cheap.
func syncData(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			if err != nil {
				return os.NewSyscallError("fdatasync", err)
			}
			return nil
		}
	}
}

// madvPopulateRead is MADV_POPULATE_READ (Linux 5.14): older kernels refuse it.
const madvPopulateRead = 22

// Populate reads a mapping's pages in ahead of their use: one call instead of a fault for each.
func Populate(m []byte) {
	if unix.Madvise(m, madvPopulateRead) != nil {
		_ = unix.Madvise(m, unix.MADV_WILLNEED) // a hint: without it, pages come in on use
	}
}
