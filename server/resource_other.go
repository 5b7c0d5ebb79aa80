//go:build !linux && !darwin && !windows

package server

import (
	"errors"
	"runtime/debug"
)

func systemProbe() probe {
	return probe{
		resident: runtimeMemory,
		total:    func() int64 { return 0 },
		diskFree: func(string) (int64, error) { return 0, errors.ErrUnsupported },
		collect:  debug.FreeOSMemory,
		limit:    limitRuntime,
	}
}

// RaiseFileLimit does nothing: the Go runtime raises the limit where there is one.
func RaiseFileLimit() (uint64, error) { return 0, nil }
