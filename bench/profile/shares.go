package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// share is a part of the CPU time that a load took.
type share struct {
	name string
	of   float64 // 0 to 1
}

// sheet writes for each load what took its CPU time, and which locks were waited for: lines of preset, "cpu" or
// "lock", name and share of the CPU time.
func (s subject) sheet(path string, presets []string) error {
	dir, err := os.MkdirTemp("", "firemq-shares-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := csv.NewWriter(f)
	w.Write([]string{"preset", "kind", "name", "share"})
	say := func(preset, kind, name string, of float64) {
		w.Write([]string{preset, kind, name, strconv.FormatFloat(of, 'f', 5, 64)})
	}
	profile := filepath.Join(dir, "cpu.pprof")
	for _, preset := range presets {
		err := cpuProfile(profile, func() error {
			_, err := s.load("amqp", "--preset", preset, "--duration", fmt.Sprint(s.seconds), "--warmup", "0")
			return err
		})
		if err != nil {
			return err
		}
		out, err := exec.CommandContext(s.ctx, "go", "tool", "pprof", "-traces", profile).Output()
		if err != nil {
			return fmt.Errorf("go tool pprof: %w", err)
		}
		for _, p := range shares(out, enough) {
			say(preset, "cpu", p.name, p.of)
		}
		locks, _, cpu, err := s.locks(preset)
		if err != nil {
			return err
		}
		for _, l := range locks {
			say(preset, "lock", l.name, l.seconds/cpu.Seconds())
		}
	}
	w.Flush()
	return cmp.Or(w.Error(), f.Close())
}

// enough is the CPU time of which shares say something: fifty samples.
const enough = 500 * time.Millisecond

// shares sums the samples that pprof -traces prints up by what they are part of, the largest first; none if they are
// not enough.
func shares(traces []byte, enough time.Duration) []share {
	sums := make(map[string]time.Duration)
	total := time.Duration(0)
	var stack []string
	var took time.Duration
	flush := func() {
		if len(stack) > 0 {
			sums[partOf(stack)] += took
			total += took
		}
		stack = nil
	}
	for lines := bufio.NewScanner(bytes.NewReader(traces)); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "----") {
			flush()
			continue
		}
		words := strings.Fields(line)
		if d, err := time.ParseDuration(cmp.Or(slices.Concat(words, []string{""})[0], "x")); err == nil && len(words) > 1 {
			took, stack = d, []string{words[1]}
		} else if len(words) > 0 && stack != nil {
			stack = append(stack, words[0])
		}
	}
	flush()
	if total < enough {
		return nil
	}
	var all []share
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		all = append(all, share{name, float64(sums[name]) / float64(total)})
	}
	slices.SortStableFunc(all, func(a, b share) int { return cmp.Compare(b.of, a.of) })
	return all
}

// parts are what CPU time goes to: the first whose words are all found in a stack, the leaf before others.
var parts = []struct {
	name  string
	leaf  string   // the beginning of the leaf; "": any
	inner []string // a frame has one of them; none: any
}{
	{"journal: write and sync", "internal/runtime/syscall", []string{"/journal.", "/vfs."}},
	{"sockets: read", "internal/runtime/syscall", []string{"unix.Read"}},
	{"sockets: write", "internal/runtime/syscall", []string{"loop.(*gnetTCP).writev", "loop.rawWritev"}},
	{"sockets: wait", "internal/runtime/syscall", []string{"unix.EpollWait", "runtime.netpoll"}},
	{"copying", "runtime.memmove", nil},
	{"garbage collection", "", []string{"runtime.gcBgMarkWorker", "runtime.gcAssistAlloc", "runtime.bgsweep", "runtime.bgscavenge", "runtime.mallocgc"}},
	{"goroutines: park and wake", "", []string{"runtime.schedule", "runtime.park_m", "runtime.goready", "runtime.ready", "runtime.futex", "runtime.sysmon", "runtime.mcall", "runtime.exitsyscall", "runtime.entersyscall", "runtime.reentersyscall"}},
}

// partOf names what a stack, the leaf first, is part of: one of parts, else the package of this module that it is in.
func partOf(stack []string) string {
	for _, p := range parts {
		if strings.HasPrefix(stack[0], p.leaf) && (p.inner == nil || slices.ContainsFunc(stack, func(frame string) bool {
			return slices.ContainsFunc(p.inner, func(word string) bool { return strings.Contains(frame, word) })
		})) {
			return p.name
		}
	}
	const module = "github.com/firemq/firemq/"
	for _, frame := range stack {
		frame, _, _ = strings.Cut(frame, "[") // a generic's types
		if rest, ok := strings.CutPrefix(frame, module); ok {
			dir, last := "", rest
			if i := strings.LastIndexByte(rest, '/'); i >= 0 {
				dir, last = rest[:i+1], rest[i+1:]
			}
			name, _, _ := strings.Cut(last, ".")
			return dir + name
		}
	}
	return "other"
}
