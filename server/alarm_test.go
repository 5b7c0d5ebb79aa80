package server

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/firemq/firemq/broker"
)

// machine is what a fake system says.
type machine struct {
	resident, total, free int64
	residentErr, freeErr  error
	limits                []int64 // given to the Go runtime
	collects              int
	collect               func() // what a collection does
}

func (m *machine) probe() probe {
	return probe{
		resident: func() (int64, error) { return m.resident, m.residentErr },
		total:    func() int64 { return m.total },
		diskFree: func(string) (int64, error) { return m.free, m.freeErr },
		collect: func() {
			m.collects++
			if m.collect != nil {
				m.collect()
			}
		},
		limit: func(n int64) { m.limits = append(m.limits, n) },
	}
}

// watched is a watch of a fake system, and what it told.
type watched struct {
	*alarms
	log    bytes.Buffer
	raised []string
	room   int64
	taken  int64 // during an alarm
}

func watch(m *machine, limit MemoryLimit, diskFree int64, dir string) *watched {
	w := new(watched)
	w.alarms = newAlarms(slog.New(slog.NewTextHandler(&w.log, nil)), m.probe(), limit, diskFree, dir)
	w.raise = func(memory, disk bool) { w.raised = append(w.raised, fmt.Sprint(memory, disk)) }
	w.allow = func(g granted) { w.room, w.taken = g.published, g.late }
	return w
}

const mb = 1000 * 1000

// What is not messages may take what is free and a little more than the limit, alarm or not; queues, exchanges and
// bindings half of it.
func TestRoomBesideMessages(t *testing.T) {
	for _, c := range []struct{ limit, resident, kept, declared int64 }{
		{0, 500 * mb, broker.Unlimited, broker.Unlimited},
		{nothing, 500 * mb, broker.Unlimited, broker.Unlimited},
		{320 * mb, 100 * mb, 230 * mb, 160 * mb},
		{320 * mb, 320 * mb, 10 * mb, 160 * mb},
		{320 * mb, 327 * mb, 3 * mb, 160 * mb},
		{320 * mb, 400 * mb, 0, 160 * mb},
	} {
		m := &machine{total: 1000 * mb, resident: c.resident}
		var g granted
		w := watch(m, MemoryLimit{Bytes: c.limit}, 0, "")
		w.allow = func(now granted) { g = now }
		w.sample()
		if g.kept != c.kept || g.declared != c.declared {
			t.Errorf("limit %d, resident %d: granted %+v", c.limit, c.resident, g)
		}
	}
}

// An alarm begins a 32nd below its limit and ends when a twentieth of it is free again; each change is told and
// logged once.
func TestMemoryAlarm(t *testing.T) {
	m := &machine{total: 1000 * mb}
	w := watch(m, MemoryLimit{Percent: 40}, 50*mb, "") // the disk of no directory is not looked at
	for _, step := range []struct {
		resident int64
		holds    bool
	}{
		{10 * mb, false}, {387 * mb, false}, {387_500_000, false}, {387_500_001, true},
		{500 * mb, true}, {412 * mb, true}, {400 * mb, true}, {380*mb + 1, true}, {380 * mb, false},
		{387 * mb, false}, {388 * mb, true}, {0, false},
	} {
		m.resident = step.resident
		w.sample()
		if r := w.resources(); r.MemoryAlarm != step.holds || r.Memory != step.resident || r.MemoryLimit != 400*mb || r.MemoryTotal != 1000*mb {
			t.Errorf("at %d: %+v", step.resident, r)
		}
		room := max(387_500_000-step.resident, leastRoom)
		if step.holds {
			room = broker.Unlimited // the alarm itself stops publishers
		}
		if w.room != room {
			t.Errorf("at %d: %d bytes may be published, want %d", step.resident, w.room, room)
		}
		late := int64(0)
		if step.holds {
			late = max(406_250_000-step.resident, 0) / 2
		}
		if w.taken != late {
			t.Errorf("at %d: %d bytes may be late, want %d", step.resident, w.taken, late)
		}
	}
	if got, want := fmt.Sprint(w.raised), "[true false false false true false false false]"; got != want {
		t.Errorf("raised %s, want %s", got, want)
	}
	if log := w.log.String(); strings.Count(log, "level=WARN msg=\"memory alarm: publishers are paused") != 2 || strings.Count(log, "level=INFO msg=\"memory alarm is over") != 2 || strings.Count(log, "\n") != 4 {
		t.Error(log)
	}
}

func TestDiskAlarm(t *testing.T) {
	m := &machine{}
	w := watch(m, MemoryLimit{}, 100*mb, "data")
	for _, step := range []struct {
		free  int64
		holds bool
	}{{200 * mb, false}, {100 * mb, false}, {100*mb - 1, true}, {100 * mb, true}, {105*mb - 1, true}, {105 * mb, false}, {100 * mb, false}, {0, true}} {
		m.free = step.free
		w.sample()
		if r := w.resources(); r.DiskAlarm != step.holds || r.DiskFree != step.free || r.DiskFreeLimit != 100*mb {
			t.Errorf("at %d: %+v", step.free, r)
		}
		late := int64(0)
		if step.holds {
			late = max(step.free-98_437_500, 0) / 2
		}
		if w.taken != late {
			t.Errorf("at %d: %d bytes may be late, want %d", step.free, w.taken, late)
		}
	}
	if got, want := fmt.Sprint(w.raised), "[false true false false false true]"; got != want {
		t.Errorf("raised %s, want %s", got, want)
	}
}

// A journal that cannot write is a full disk, whatever the file system says and whatever the limit is.
func TestStallIsADiskAlarm(t *testing.T) {
	m := &machine{free: 1 << 40}
	w := watch(m, MemoryLimit{}, 0, "data")
	w.stalled(errors.New("no space left on device"))
	w.sample()
	if !w.resources().DiskAlarm || !strings.Contains(w.log.String(), `journal="no space left on device"`) {
		t.Errorf("%+v\n%s", w.resources(), &w.log)
	}
	if w.taken != broker.Unlimited/2 { // the journal has a bound of its own
		t.Errorf("%d bytes may be late", w.taken)
	}
	w.stalled(nil)
	w.sample()
	if w.resources().DiskAlarm || w.taken != 0 {
		t.Errorf("%+v, %d", w.resources(), w.taken)
	}
	// When it goes on with little room, the alarm ends with the room.
	w.setLimits(MemoryLimit{}, 100*mb)
	w.stalled(errors.New("no space left on device"))
	w.sample()
	w.stalled(nil)
	m.free = 101 * mb
	w.sample()
	if !w.resources().DiskAlarm {
		t.Errorf("%+v", w.resources())
	}
}

// What cannot be read changes nothing, and is logged once.
func TestReadingsFail(t *testing.T) {
	m := &machine{total: 1000 * mb, residentErr: errors.New("no /proc"), freeErr: errors.New("no statfs")}
	w := watch(m, MemoryLimit{Bytes: 100 * mb}, 100*mb, "data")
	w.sample()
	w.sample()
	if r := w.resources(); r.MemoryAlarm || r.DiskAlarm {
		t.Errorf("%+v", r)
	}
	m.resident, m.residentErr, m.free, m.freeErr = 200*mb, nil, mb, nil
	w.sample()
	m.residentErr, m.freeErr = errors.New("no /proc"), errors.New("no statfs")
	m.resident, m.free = 0, 0
	w.sample()
	if r := w.resources(); !r.MemoryAlarm || !r.DiskAlarm || r.Memory != 200*mb || r.DiskFree != mb {
		t.Errorf("%+v", r)
	}
	if log := w.log.String(); strings.Count(log, "level=ERROR") != 4 {
		t.Error(log)
	}
}

// While the memory alarm holds, memory is given back, but at most for a tenth of the time.
func TestMemoryIsCollected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{resident: 200 * mb}
		m.collect = func() { time.Sleep(100 * time.Millisecond) }
		w := watch(m, MemoryLimit{Bytes: 100 * mb}, 0, "")
		w.sample()
		if m.collects != 0 {
			t.Error("collected without an alarm")
		}
		begin := time.Now()
		for time.Since(begin) < 20*time.Second {
			time.Sleep(10 * time.Millisecond)
			w.sample()
		}
		if m.collects < 15 || m.collects > 20 {
			t.Errorf("%d collections of 100 ms in 20 s", m.collects)
		}
		m.collect = func() { m.resident = 50 * mb }
		time.Sleep(2 * time.Second)
		w.sample()
		if r := w.resources(); r.MemoryAlarm || r.Memory != 50*mb {
			t.Errorf("after what was freed was collected: %+v", r)
		}
	})
}

// The next reading is a second away, or as long as publishers could fill what is left.
func TestWhenToLookAgain(t *testing.T) {
	m := &machine{resident: 10 * mb, free: 1 << 40}
	for _, c := range []struct {
		name        string
		memory      int64
		disk        int64
		least, most time.Duration
	}{
		{"no limits", 0, 0, time.Second, time.Second},
		{"much room", 4 << 30, 1 << 30, time.Second, time.Second},
		{"half a second", (10*mb + 1<<30) * 32 / 31, 0, 499 * time.Millisecond, 501 * time.Millisecond},
		{"little room", 11 * mb, 0, sampleLeast, sampleLeast},
		{"memory alarm", 10 * mb, 0, time.Second, time.Second},
		{"no room for those who acknowledge", 9 * mb, 0, sampleSoon, sampleSoon},
		{"little disk", 0, 1<<40 - 1, 50 * time.Millisecond, 50 * time.Millisecond},
		{"disk alarm", 0, 1<<40 + 1, time.Second, time.Second},
	} {
		w := watch(m, MemoryLimit{Bytes: c.memory}, c.disk, "data")
		if got := w.sample(); got < c.least || got > c.most {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}

func TestLimitsChange(t *testing.T) {
	m := &machine{resident: 200 * mb, total: 1000 * mb}
	w := watch(m, MemoryLimit{}, 0, "data")
	w.sample()
	w.setLimits(MemoryLimit{Percent: 10}, 0)
	w.sample()
	if r := w.resources(); !r.MemoryAlarm || r.MemoryLimit != 100*mb {
		t.Errorf("%+v", r)
	}
	w.setLimits(MemoryLimit{}, 0)
	w.sample()
	if r := w.resources(); r.MemoryAlarm || r.MemoryLimit != 0 {
		t.Errorf("%+v", r)
	}
	if got, want := fmt.Sprint(m.limits), fmt.Sprint([]int64{100 * mb, 0}); got != want {
		t.Errorf("the runtime got %s, want %s", got, want)
	}
	w.setLimits(MemoryLimit{Bytes: 2000 * mb}, 0)
	if !strings.Contains(w.log.String(), "above all memory") {
		t.Error(w.log.String())
	}
	if unknown := watch(&machine{}, MemoryLimit{Percent: 40}, 0, ""); !strings.Contains(unknown.log.String(), "not known") || unknown.resources().MemoryLimit != 0 {
		t.Error(unknown.log.String())
	}
}

// The watch runs by itself, looks at once when something changed, and ends.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(new(machine), MemoryLimit{Bytes: 100 * mb}, 0, "data")
		var resident atomic.Int64
		resident.Store(200 * mb)
		w.probe.resident = func() (int64, error) { return resident.Load(), nil }
		changes := make(chan string, 10)
		w.start(func(memory, disk bool) { changes <- fmt.Sprint(memory, disk) }, func(granted) {})
		if got := <-changes; got != "true false" {
			t.Errorf("at the start: %s", got)
		}
		resident.Store(0)
		begin := time.Now()
		if got := <-changes; got != "false false" || time.Since(begin) > time.Second {
			t.Errorf("%s after %s", got, time.Since(begin))
		}
		begin = time.Now()
		w.stalled(errors.New("full"))
		if got := <-changes; got != "false true" || time.Since(begin) > 0 {
			t.Errorf("%s after %s", got, time.Since(begin))
		}
		w.stop()
		w.stop()
		w.stalled(nil) // the journal may still call
	})
}

// What those may publish whose acks may end an alarm: with one alarm alone what is free of the other resource, anew with
// each reading; with both, or without a disk, a share of the limits.
func TestWhatThoseMayPublishWhoOweAcks(t *testing.T) {
	const memory, disk = 64 * mb, 320 * mb
	for _, c := range []struct {
		name           string
		limit          int64
		resident, free int64
		dir            string
		room, each     int64
	}{
		{"memory", memory, 64 * mb, 1 << 40, "data", 2 * mb, 2 * memory},
		{"memory, far beyond", memory, 68 * mb, 1 << 40, "data", 0, 2 * memory},
		{"memory, no disk", memory, 64 * mb, 0, "", 1 * mb, 0},
		{"disk", memory, 30 * mb, 300 * mb, "data", 16 * mb, 2 * memory},
		{"disk, no limit of memory", 0, 30 * mb, 300 * mb, "data", 75 * mb, owingMost},
		{"memory, a large limit", 1000 * memory, 1000 * memory, 1 << 40, "data", 2000 * mb, owingMost},
		{"both", memory, 64 * mb, 300 * mb, "data", 1 * mb, 0},
	} {
		w := watch(&machine{resident: c.resident, free: c.free}, MemoryLimit{Bytes: c.limit}, disk, c.dir)
		var got granted
		w.allow = func(g granted) { got = g }
		w.sample()
		if got.owing != c.room || got.each != c.each {
			t.Errorf("%s: %d bytes, %d of each, want %d and %d", c.name, got.owing, got.each, c.room, c.each)
		}
	}
	// The disk is left half of its limit, or of what was free when the alarm began, whichever is less.
	m := new(machine)
	w := watch(m, MemoryLimit{}, disk, "data")
	var got granted
	w.allow = func(g granted) { got = g }
	for m.free = 100 * mb; m.free >= 40*mb; m.free -= 10 * mb {
		if w.sample(); got.owing != max(m.free-50*mb, 0)/2 {
			t.Errorf("%d bytes free: %d may be published", m.free, got.owing)
		}
	}
}
