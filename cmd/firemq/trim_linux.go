package main

import (
	"bufio"
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// trim gives back the pages of the program that are in memory. The kernel maps those of the file around each
// one that is touched and holds mapped pages to be in use; what the running broker needs comes back from the page
// cache, 64 KiB in about 10 us. What cannot be given back stays.
func trim() {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	lines := bufio.NewScanner(bytes.NewReader(maps))
	for lines.Scan() {
		// 00400000-00b2e000 r-xp 00000000 fd:00 1234    /usr/local/bin/firemq
		f := bytes.Fields(lines.Bytes())
		if len(f) < 6 || string(f[5]) != exe || f[1][1] == 'w' {
			continue // not the program's, or a page of it that may have been written
		}
		from, to, _ := bytes.Cut(f[0], []byte("-"))
		begin, err := strconv.ParseUint(string(from), 16, 64)
		if err != nil {
			return
		}
		end, err := strconv.ParseUint(string(to), 16, 64)
		if err != nil {
			return
		}
		// Read-only pages of a file: nothing is lost.
		unix.Syscall(unix.SYS_MADVISE, uintptr(begin), uintptr(end-begin), unix.MADV_DONTNEED)
	}
}
