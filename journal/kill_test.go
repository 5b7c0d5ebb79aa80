package journal

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/firemq/firemq/internal/vfs"
)

const killedDir = "FIREMQ_TEST_KILLED_JOURNAL"

// TestKill kills a process that appends as fast as it can, and looks for all that it had said to
// be safe.
func TestKill(t *testing.T) {
	if dir := os.Getenv(killedDir); dir != "" {
		appendForever(dir)
	}
	dir := t.TempDir()
	next := uint64(0)
	for round := range 5 {
		said := killed(t, dir, 20+round*15)
		j, r := mustOpen(t, Options{FS: vfs.OS{}, Dir: dir})
		if len(r.damage) > 0 {
			t.Fatal(r.damage)
		}
		safe := uint64(0)
		for i, e := range r.got {
			if n := binary.LittleEndian.Uint64([]byte(e.payload)); n != uint64(i) {
				t.Fatalf("round %d: record %d holds %d", round, i, n)
			}
			if e.pos < said {
				safe = e.pos
			}
		}
		if uint64(len(r.got)) <= next || safe == 0 || j.Committed() < said {
			t.Fatalf("round %d: %d records after %d, committed %d of %d", round, len(r.got), next, j.Committed(), said)
		}
		next = uint64(len(r.got))
		mustClose(t, j) // leaves no mark: nothing was appended
	}
}

// killed runs the child until it has said so many positions to be safe, and gives the last one.
func killed(t *testing.T, dir string, lines int) (said Position) {
	c := exec.Command(os.Args[0], "-test.run", "^TestKill$")
	c.Env = append(os.Environ(), killedDir+"="+dir)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	for n := 0; ; n++ {
		if n == lines {
			c.Process.Kill()
		}
		line, err := r.ReadString('\n')
		if err == io.EOF {
			break // what it had said in its last moments counts as well
		}
		if err != nil {
			t.Fatal(err)
		}
		if said, err = strconv.ParseUint(strings.TrimSpace(line), 10, 64); err != nil {
			t.Fatalf("the child said %q", line)
		}
	}
	c.Wait() // killed
	return said
}

// appendForever is the child: it numbers its messages on from those that it finds.
func appendForever(dir string) {
	r := &replayed{}
	j, _, err := Open(Options{FS: vfs.OS{}, Dir: dir, OnCommit: func(p Position) { fmt.Println(p) }}, r)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	payload := make([]byte, 200)
	for n := uint64(len(r.got)); ; {
		j.Lock()
		var pos Position
		for range 1 + n%50 {
			binary.LittleEndian.PutUint64(payload, n)
			n++
			pos = j.Publish([]Target{{1, n, 0}}, 1, nil, payload)
		}
		j.Unlock()
		if j.Pending() > 1<<20 && j.Sync(pos) != nil {
			os.Exit(1)
		}
	}
}
