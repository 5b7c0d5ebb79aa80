package server

import (
	"fmt"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/windows"
)

var installedMemory = windows.NewLazySystemDLL("kernel32.dll").NewProc("GetPhysicallyInstalledSystemMemory")

func systemProbe() probe {
	return probe{
		resident: runtimeMemory,
		total: func() int64 {
			var kib uint64
			if ok, _, _ := installedMemory.Call(uintptr(unsafe.Pointer(&kib))); ok == 0 {
				return 0
			}
			return int64(kib) << 10
		},
		diskFree: diskFree,
		collect:  debug.FreeOSMemory,
		limit:    limitRuntime,
	}
}

// diskFree is the free space that this user may use of dir's volume.
func diskFree(dir string) (int64, error) {
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, err
	}
	var free uint64
	if err := windows.GetDiskFreeSpaceEx(name, &free, nil, nil); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return int64(free), nil
}

// RaiseFileLimit does nothing: there is no such limit.
func RaiseFileLimit() (uint64, error) { return 0, nil }
