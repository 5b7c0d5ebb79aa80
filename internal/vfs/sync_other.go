//go:build !linux

package vfs

import "os"

// syncData is os.File.Sync: F_FULLFSYNC on macOS, FlushFileBuffers on Windows.
func syncData(f *os.File) error { return f.Sync() }

// Populate reads a mapping's pages in ahead of their use, where the system can.
func Populate([]byte) {}
