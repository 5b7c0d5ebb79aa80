package broker

import (
	"testing"

	"github.com/firemq/firemq/internal/vfs"
)

// Who purges or deletes a long queue settles nothing itself, whatever its length; the background settles
// sweepNow messages a turn, sweepBatch with the queue locked, so that nobody waits for more.
func TestLongBacklogsAreSweptInPieces(t *testing.T) {
	fs := vfs.NewMem()
	fs.MakeDir(testDir)
	b := openSmall(t, fs)
	defer b.Close()
	if err := b.AddFirstUser("guest", "guest"); err != nil {
		t.Fatal(err)
	}
	c := connect(t, b)
	const n = 5 * sweepNow
	live := func() int64 {
		s, _ := b.JournalStats()
		return s.Live
	}
	for what, take := range map[string]func() (int, *Error){
		"purge":  func() (int, *Error) { return c.PurgeQueue("q") },
		"delete": func() (int, *Error) { return c.DeleteQueue("q", false, false) },
	} {
		c.declare(QueueDeclare{Name: "q", Durable: true})
		c.fill(b, "q", n, 16)
		b.sync(t)
		b.upkeep.working.Lock() // the background does nothing yet
		if taken, e := take(); e != nil || taken != n {
			t.Fatal(what, taken, e)
		}
		c.end()
		if l := live(); l != n {
			t.Errorf("%s: %d of %d messages were settled by who asked for it", what, n-l, n)
		}
		b.upkeep.mu.Lock()
		s := b.upkeep.sweeps[0]
		b.upkeep.sweeps = b.upkeep.sweeps[1:]
		b.upkeep.mu.Unlock()
		for left := int64(n); left > 0; {
			turn := b.newTurn()
			s.q.sweep(turn, &s.backlog)
			turn.free()
			if left -= sweepNow; live() != left {
				t.Fatalf("%s: %d messages left after a turn, want %d", what, live(), left)
			}
		}
		b.upkeep.working.Unlock()
	}
	if sweepNow%sweepBatch != 0 || sweepBatch > 256 {
		t.Errorf("%d messages are settled with the queue locked", sweepBatch)
	}
}
