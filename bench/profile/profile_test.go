package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const lockSource = `package broker

import "sync"

type Queue struct{ mu sync.Mutex }

func (q *Queue) publish() {
	q.mu.Lock()
}

type turn struct{ q, other *Queue }

func (t *turn) end() {
	for _, q := range []*Queue{t.q, t.other} {
		func() { q.mu.RLock() }()
	}
	t.q.mu.Lock()
}
`

// TestLocks has a block profile of two goroutines that waited for one lock in two places, of another one that waited
// for a lock that no source tells of, and of one that waited for a chan.
func TestLocks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "queue.go")
	if err := os.WriteFile(file, []byte(lockSource), 0o644); err != nil {
		t.Fatal(err)
	}
	text := "--- contention:\ncycles/second=1000\n" +
		"500 3 @ 0x1 0x2\n#\t0x1\tsync.(*Mutex).Lock+0x9\t\t\t/go/mutex.go:1\n#\t0x2\tgithub.com/firemq/firemq/broker.(*Queue).publish+0x5\tFILE:8\n" +
		"#\t0x3\tmain.main+0x7\t/m.go:3\n" +
		"250 1 @ 0x3\n#\t0x1\tsync.(*RWMutex).RLock+0x9\t/go/mutex.go:1\n#\t0x3\tgithub.com/firemq/firemq/broker.(*turn).end.func1+0x7\tFILE:15\n" +
		"250 1 @ 0x3\n#\t0x1\tinternal/sync.(*Mutex).lockSlow+0x9\t/go/mutex.go:1\n#\t0x3\tgithub.com/firemq/firemq/broker.(*turn).end+0x7\tFILE:17\n" +
		"100 1 @ 0x4\n#\t0x1\tsync.(*Mutex).Lock+0x9\t\t\t/go/mutex.go:1\n#\t0x4\tmain.lost+0x7\t/nowhere/m.go:3\n" +
		"900 1 @ 0x4\n#\t0x4\truntime.chanrecv1+0x7\t/r.go:3\n#\t0x4\tmain.lost+0x7\t/nowhere/m.go:3\n"
	got, err := parseWaits(strings.ReplaceAll(text, "FILE", file))
	if err != nil || len(got) != 5 {
		t.Fatalf("%v, %v", got, err)
	}
	var b strings.Builder
	report(&b, "load", 1234, 10, byLock(got, make(sources)))
	want := "load: 1234 delivered/s, 10.00 s of CPU; goroutines waited for locks 11.00 % of that\n" +
		"  10.000 %  broker.Queue.mu\n" +
		"            5.000 %  broker.(*Queue).publish < main.main\n" +
		"            2.500 %  broker.(*turn).end\n" +
		"            2.500 %  broker.(*turn).end.func1\n" +
		"   1.000 %  main.lost\n" +
		"            1.000 %  main.lost\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
	if _, err := parseWaits("nothing"); err == nil {
		t.Error("no error without cycles/second")
	}
}

// TestLockOfThisTree: the lock that Conn.Lock takes is the outbox's.
func TestLockOfThisTree(t *testing.T) {
	file, err := filepath.Abs("../../loop/outbox.go")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, _, ok := strings.Cut(string(raw), "func (c *Conn) Lock() { c.out.mu.Lock() }")
	if !ok {
		t.Fatal("there is no Conn.Lock any more: take another lock")
	}
	if got, want := fmt.Sprint(make(sources).lockAt(file, strings.Count(before, "\n")+1)), "loop.outbox.mu"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestShares has samples of the kinds that are told apart.
func TestShares(t *testing.T) {
	const traces = `File: profile
Type: cpu
-----------+-------------------------------------------------------
      10ms   internal/runtime/syscall/linux.Syscall6
             syscall.RawSyscall6
             golang.org/x/sys/unix.Read
             github.com/panjf2000/gnet/v2.(*eventloop).read
-----------+-------------------------------------------------------
      20ms   internal/runtime/syscall/linux.Syscall6
             github.com/firemq/firemq/internal/vfs.(*file).Sync
             github.com/firemq/firemq/journal.(*Journal).commit
-----------+-------------------------------------------------------
      30ms   runtime.memmove
             github.com/firemq/firemq/journal.(*Journal).Append
-----------+-------------------------------------------------------
      10ms   sync.(*Mutex).Lock (inline)
             github.com/firemq/firemq/broker/queue.(*fifo).push
             github.com/firemq/firemq/broker.(*Queue).put
-----------+-------------------------------------------------------
      20ms   github.com/firemq/firemq/route.(*Cache[go.shape.*github.com/firemq/firemq/broker.Queue]).Route
-----------+-------------------------------------------------------
       5ms   runtime.futex
             runtime.schedule
-----------+-------------------------------------------------------
       5ms   runtime.goexit
`
	got := shares([]byte(traces), 100*time.Millisecond)
	want := []share{{"copying", 0.3}, {"journal: write and sync", 0.2}, {"route", 0.2}, {"broker/queue", 0.1}, {"sockets: read", 0.1}, {"goroutines: park and wake", 0.05}, {"other", 0.05}}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if got := shares([]byte(traces), 101*time.Millisecond); got != nil {
		t.Errorf("of too few samples: %v", got)
	}
}
