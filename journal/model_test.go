package journal

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/firemq/firemq/internal/vfs"
)

var (
	seeds    = flag.Int("journal.seeds", 600, "how many seeds TestCrash tries")
	oneSeed  = flag.Uint64("journal.seed", 0, "the only seed TestCrash tries")
	errCrash = errors.New("the power failed")
)

// TestCrash appends, settles, frees and reads at random, loses the power before, in or after any
// write, sync or rename, or only the process, and opens again, several times over. The journal runs without its
// goroutines, so a seed always does the same.
func TestCrash(t *testing.T) {
	if *oneSeed != 0 {
		newModel(t, *oneSeed).run()
		return
	}
	n := *seeds
	if testing.Short() {
		n /= 10
	}
	for seed := range uint64(n) {
		newModel(t, seed+1).run()
	}
}

type place struct{ queue, seq uint64 }

// model is what the journal should hold. Each message's target is settled at most once.
type model struct {
	t       *testing.T
	seed    uint64
	rng     *rand.Rand
	mem     *vfs.Mem
	j       *Journal
	log     []entry       // what was appended and may still be there
	settled map[place]int // index in log of what settled it
	seq     [4]uint64     // of the last message of each queue
	floor   Position
	safe    Position // committed before the last crash
	did     []string
}

func newModel(t *testing.T, seed uint64) *model {
	return &model{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), mem: vfs.NewMem(), settled: map[place]int{}}
}

func (m *model) fatalf(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("%s\nafter %s\nrun it again with -run TestCrash -journal.seed %d", fmt.Sprintf(format, args...), strings.Join(m.did, ", "), m.seed)
}

func (m *model) run() {
	for range 6 {
		left := m.rng.IntN(80)
		disk := &vfs.Faults{FS: m.mem, Check: func(o vfs.Op) error {
			if !o.Changes() {
				return nil
			}
			if left--; left == 0 && o.Kind == vfs.OpWrite {
				return &vfs.Short{N: m.rng.IntN(o.Len + 1), Err: errCrash}
			}
			if left <= 0 {
				return fmt.Errorf("%v: %w", o, errCrash)
			}
			return nil
		}}
		m.note("open")
		r := &replayed{}
		j, _, err := Open(Options{FS: disk, Dir: "journal", SegmentBytes: 8 << 10, manual: true}, r)
		if err != nil && !errors.Is(err, errCrash) {
			m.fatalf("open: %v", err)
		}
		if err == nil {
			m.j = j
			m.compare(r)
			for range m.rng.IntN(200) {
				m.act()
			}
			if m.rng.IntN(4) == 0 {
				m.note("close")
				if err := j.Close(); err != nil && !errors.Is(err, errCrash) {
					m.fatalf("close: %v", err)
				}
			}
		}
		if m.j != nil {
			m.safe = m.j.Committed()
		}
		if m.rng.IntN(3) == 0 {
			m.note("kill at %d", m.safe) // the system lives on, with all that was written
			continue
		}
		m.note("crash at %d", m.safe)
		m.mem = m.mem.Crash(m.rng.Uint64())
	}
}

func (m *model) note(format string, args ...any) { m.did = append(m.did, fmt.Sprintf(format, args...)) }

// act does one random thing.
func (m *model) act() {
	j := m.j
	switch p := m.rng.IntN(100); {
	case p < 40:
		size := m.rng.IntN(400)
		switch m.rng.IntN(30) {
		case 0:
			size = m.rng.IntN(40 << 10) // larger than a segment
		case 1:
			size = m.rng.IntN(5000)
		}
		var targets []Target
		for range m.rng.IntN(4) {
			q := m.rng.IntN(len(m.seq))
			m.seq[q]++
			targets = append(targets, Target{uint64(q), m.seq[q], int64(m.rng.IntN(3))})
		}
		e := publish(j, strings.Repeat(string(rune('a'+m.rng.IntN(26))), size), targets...)
		m.note("%v", e)
		m.append(e)
	case p < 60:
		m.settle()
	case p < 63:
		e := topology(j, strings.Repeat("t", m.rng.IntN(100)))
		m.note("%v", e)
		m.append(e)
	case p < 80:
		m.note("step")
		j.step(false)
	case p < 90:
		m.note("keep")
		j.keepOnce()
	case p < 92:
		m.floor = j.Committed()
		m.note("floor %d", m.floor)
		j.Floor(m.floor)
	default:
		m.read()
	}
}

func (m *model) append(e entry) {
	if m.j.dead.Load() {
		return
	}
	m.log = append(m.log, e)
}

// settle settles one of the oldest messages that are not, as it happens to a run of them.
func (m *model) settle() {
	n := 1 + m.rng.IntN(5)
	for i, e := range m.log {
		for _, x := range e.targets {
			at := place{x.Queue, x.Seq}
			if _, done := m.settled[at]; done || m.rng.IntN(3) == 0 {
				continue
			}
			s := settle(m.j, x.Queue, x.Seq, x.Seq)
			m.note("%v", s)
			if m.j.dead.Load() {
				return
			}
			if last := len(m.log) - 1; m.log[last].kind == kindSettle && m.log[last].pos == s.pos {
				m.log[last].to = s.to
			} else {
				m.append(s)
			}
			m.settled[at] = len(m.log) - 1
			m.j.Free(m.log[i].pos, 1, 1)
			if n--; n == 0 {
				return
			}
		}
	}
}

func (m *model) read() {
	if len(m.log) == 0 {
		return
	}
	e := m.log[m.rng.IntN(len(m.log))]
	if e.kind == kindSettle || e.pos >= m.j.Committed() || m.released(e, len(m.log)) {
		return
	}
	err := m.j.Read(e.pos, func(p []byte) error {
		if string(p) != e.payload {
			m.fatalf("read %v: %.20q", e, p)
		}
		return nil
	})
	if err != nil {
		m.fatalf("read %v: %v", e, err)
	}
}

// released says whether e may be gone when the log reaches to end.
func (m *model) released(e entry, end int) bool {
	switch e.kind {
	case kindPublish:
		for _, x := range e.targets {
			if by, ok := m.settled[place{x.Queue, x.Seq}]; !ok || by >= end {
				return false
			}
		}
	case kindTopology:
		return e.pos < m.floor
	}
	return true
}

// compare checks what was recovered against what was appended and committed before the crash,
// and makes it the model's state.
func (m *model) compare(r *replayed) {
	if len(r.damage) > 0 {
		m.fatalf("a crash was taken for damage: %v", r.damage)
	}
	safe := 0
	for safe < len(m.log) && m.log[safe].pos < m.safe {
		safe++
	}
	first := -1
	for i := 0; first < 0 && i+len(r.got) <= len(m.log); i++ {
		first = i
		for k, e := range r.got {
			if !same(e, m.log[i+k]) {
				first = -1
				break
			}
		}
	}
	end := first + len(r.got)
	if first < 0 {
		m.fatalf("recovered what was not appended in this order:\n got %v\nfrom %v", r.got, m.log)
	}
	if end < safe && len(r.got) > 0 {
		m.fatalf("lost %d committed records: %v", safe-end, m.log[end:safe])
	}
	if len(r.got) == 0 {
		first, end = safe, safe // all that was committed must be released
	}
	for _, e := range m.log[:first] {
		if !m.released(e, end) {
			m.fatalf("lost the first %d records, of which %v is needed", first, e)
		}
	}
	m.log = append([]entry(nil), m.log[first:end]...)
	for at, by := range m.settled {
		if by >= end {
			delete(m.settled, at)
		} else {
			m.settled[at] = by - first
		}
	}
	for _, e := range m.log {
		for _, x := range e.targets {
			if _, ok := m.settled[place{x.Queue, x.Seq}]; ok {
				m.j.Free(e.pos, 1, 1)
			}
		}
	}
	m.j.Floor(m.floor)
}
