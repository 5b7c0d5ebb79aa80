package server

import (
	"runtime/debug"

	"golang.org/x/sys/unix"
)

func systemProbe() probe {
	return probe{
		resident: runtimeMemory,
		total: func() int64 {
			n, err := unix.SysctlUint64("hw.memsize")
			if err != nil {
				return 0
			}
			return int64(n)
		},
		diskFree: diskFree,
		collect:  debug.FreeOSMemory,
		limit:    limitRuntime,
	}
}
