package leak

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
)

// open counts by their names what this process has open, sockets and pipes of each kind together, and the files in the
// folder that it has mapped.
func open(folder string) map[string]int {
	counts := make(map[string]int)
	const fds = "/proc/self/fd"
	entries, _ := os.ReadDir(fds)
	for _, e := range entries {
		name, err := os.Readlink(filepath.Join(fds, e.Name()))
		if err != nil {
			continue // the folder itself
		}
		if kind, _, numbered := strings.Cut(name, ":["); numbered {
			name = kind
		}
		counts[name]++
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return counts
	}
	defer maps.Close()
	for s := bufio.NewScanner(maps); s.Scan(); {
		if _, name, found := strings.Cut(s.Text(), folder); found {
			counts["mapping of "+folder+name]++
		}
	}
	return counts
}

// openOnce opens what the runtime keeps once it polls.
func openOnce() {
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
}
