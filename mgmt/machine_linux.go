package mgmt

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// readMachine asks the system. What it does not tell stays 0.
func readMachine(dir string) (m machine) {
	if p, err := os.ReadFile("/proc/self/statm"); err == nil {
		if fields := strings.Fields(string(p)); len(fields) > 2 {
			pages, _ := strconv.ParseUint(fields[1], 10, 64)
			mapped, _ := strconv.ParseUint(fields[2], 10, 64)
			m.resident, m.mapped = pages*uint64(os.Getpagesize()), mapped*uint64(os.Getpagesize())
		}
	}
	if d, err := os.Open("/proc/self/fd"); err == nil {
		names, _ := d.Readdirnames(-1)
		d.Close()
		m.filesOpen = max(0, len(names)-1) // without the one that lists them
	}
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) == nil {
		m.filesMax = int(min(files.Cur, 1<<31))
	}
	if dir == "" {
		dir = "."
	}
	var disk syscall.Statfs_t
	if syscall.Statfs(dir, &disk) == nil {
		m.diskFree = disk.Bavail * uint64(disk.Bsize)
	}
	return m
}
