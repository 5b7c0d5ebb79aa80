package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Ticks a second of the times in /proc/PID/stat: USER_HZ, which is 100 on every Linux that Go runs on.
const userHZ = 100

// usage is what a process and everything it started have used.
type usage struct {
	cpu time.Duration // user and system, children that have ended included
	rss int64         // resident bytes now
}

// ownCPU is the CPU time of this process so far.
func ownCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// usageOf adds up the process tree below pid. It fails when pid itself is gone.
func usageOf(pid int) (usage, error) {
	root, err := readStat(pid)
	if err != nil {
		return usage{}, fmt.Errorf("read the usage of process %d: %w", pid, err)
	}
	sum := root.usage
	dir, err := os.Open("/proc")
	if err != nil {
		return usage{}, fmt.Errorf("read the usage of process %d: %w", pid, err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return usage{}, fmt.Errorf("read the usage of process %d: %w", pid, err)
	}
	children := make(map[int][]stat)
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			if s, err := readStat(n); err == nil { // else it ended meanwhile
				children[s.parent] = append(children[s.parent], s)
			}
		}
	}
	for todo := []int{pid}; len(todo) > 0; {
		next := children[todo[0]]
		todo = todo[1:]
		for _, s := range next {
			sum.cpu += s.cpu
			sum.rss += s.rss
			todo = append(todo, s.pid)
		}
	}
	return sum, nil
}

// stat is one process as /proc/PID/stat shows it.
type stat struct {
	usage
	pid, parent int
}

func readStat(pid int) (stat, error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	// The command name is in parentheses and may hold anything, so count from the last one.
	i := bytes.LastIndexByte(line, ')')
	if i < 0 {
		return stat{}, fmt.Errorf("unknown format %q", line)
	}
	// Fields from proc_pid_stat(5), the first one here being number 3.
	f := bytes.Fields(line[i+1:])
	if len(f) < 22 {
		return stat{}, fmt.Errorf("unknown format %q", line)
	}
	num := func(field int) int64 {
		n, _ := strconv.ParseInt(string(f[field-3]), 10, 64)
		return n
	}
	const parent, utime, cstime, rss = 4, 14, 17, 24
	s := stat{pid: pid, parent: int(num(parent))}
	for field := utime; field <= cstime; field++ {
		s.cpu += time.Duration(num(field)) * (time.Second / userHZ)
	}
	s.rss = num(rss) * int64(os.Getpagesize())
	return s, nil
}
