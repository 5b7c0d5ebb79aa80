//go:build linux || darwin

package server

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// diskFree is the free space that this user may use of dir's file system.
func diskFree(dir string) (int64, error) {
	var s unix.Statfs_t
	for {
		err := unix.Statfs(dir, &s)
		if err == nil {
			return int64(s.Bavail) * int64(s.Bsize), nil
		}
		if err != unix.EINTR {
			return 0, fmt.Errorf("statfs %s: %w", dir, err)
		}
	}
}

// RaiseFileLimit raises the number of files and sockets that this process may have open as far as it may
// without further rights, and gives it; 0: not known, or there is none.
func RaiseFileLimit() (uint64, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	was, want := l.Cur, fileLimit(l.Max)
	if was >= want {
		return was, nil
	}
	l.Cur = want
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return was, fmt.Errorf("raise the limit of open files to %d: %w", want, err)
	}
	return want, nil
}
