//go:build unix

package vfs

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	// Some network and FUSE file systems cannot sync a folder and say EINVAL: their names are
	// as safe as they get.
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
		err = nil
	}
	if e := d.Close(); err == nil {
		err = e
	}
	return err
}

func mapFile(f *os.File, n int64) ([]byte, error) {
	m, err := unix.Mmap(int(f.Fd()), 0, int(n), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return m, nil
}

func unmap(m []byte) error { return unix.Munmap(m) }

// Lock takes name, a file that is created when missing and never removed, as an advisory lock
// (flock) until the Closer is closed or the process ends. ErrInUse: another broker holds it.
func Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EINTR {
			break
		}
	}
	if err == nil {
		return f, nil
	}
	f.Close()
	if err == unix.EWOULDBLOCK {
		return nil, fmt.Errorf("lock %s: %w", name, ErrInUse)
	}
	return nil, fmt.Errorf("lock %s: %w", name, err)
}

// Full reports whether err says that there is no room or no file descriptor now: trying again
// later may succeed, and nothing was lost.
func Full(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) ||
		errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}
