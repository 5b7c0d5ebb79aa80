package server

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

func systemProbe() probe {
	root := os.DirFS("/")
	return probe{
		resident: func() (int64, error) { return residentMemory(root) },
		total:    func() int64 { return totalMemory(root) },
		diskFree: diskFree,
		collect:  debug.FreeOSMemory,
		limit:    limitRuntime,
	}
}

var pageSize = os.Getpagesize()

// residentMemory is the second field of /proc/self/statm less the third, which count pages: those of
// mapped files are left out but for the program's own. The kernel takes such pages back when it needs memory, and while a long
// backlog is read from the journal there are many: they are no reason to pause a publisher.
func residentMemory(root fs.FS) (int64, error) {
	b, err := fs.ReadFile(root, "proc/self/statm")
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(b)
	if len(fields) < 3 {
		return 0, errors.New("/proc/self/statm is too short")
	}
	all, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0, err
	}
	mapped, err := strconv.ParseInt(string(fields[2]), 10, 64)
	return all*int64(pageSize) - max(0, mapped*int64(pageSize)-programPages), err
}

// totalMemory is the least of the machine's memory and the limits of the cgroups that this process is in;
// 0 when the machine's is not known.
func totalMemory(root fs.FS) int64 {
	total := machineMemory(root)
	if total == 0 {
		return 0
	}
	b, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(b)) {
		// hierarchy-ID:controllers:/path
		id, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		switch {
		case id == "0" && controllers == "": // version 2, alone or beside version 1
			total = min(total, cgroupLimit(root, "sys/fs/cgroup", group, "memory.max"))
			total = min(total, cgroupLimit(root, "sys/fs/cgroup/unified", group, "memory.max"))
		case strings.Contains(","+controllers+",", ",memory,"):
			total = min(total, cgroupLimit(root, "sys/fs/cgroup/memory", group, "memory.limit_in_bytes"))
		}
	}
	return total
}

// cgroupLimit is the least limit of a group and those above it. A container often sees its own group as
// the root, while the path is the machine's: then the root's limit is what is found.
func cgroupLimit(root fs.FS, mount, group, file string) int64 {
	least := int64(math.MaxInt64)
	for group = path.Join("/", group); ; group = path.Dir(group) {
		if b, err := fs.ReadFile(root, path.Join(mount, group, file)); err == nil {
			// "max" is no number, and no limit.
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 {
				least = min(least, n)
			}
		}
		if group == "/" {
			return least
		}
	}
}

// machineMemory reads MemTotal of /proc/meminfo.
func machineMemory(root fs.FS) int64 {
	b, _ := fs.ReadFile(root, "proc/meminfo")
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return kib << 10
		}
	}
	return 0
}
