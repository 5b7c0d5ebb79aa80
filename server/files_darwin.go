package server

import "golang.org/x/sys/unix"

// fileLimit is what the soft limit of open files may be, with this hard one: the hard limit is mostly
// "infinity" there, and the kernel's own limit counts.
func fileLimit(hard uint64) uint64 {
	n, err := unix.SysctlUint32("kern.maxfilesperproc")
	if err != nil {
		return min(hard, 10240) // OPEN_MAX
	}
	return min(hard, uint64(n))
}
