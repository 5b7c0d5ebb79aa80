package server

import (
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/firemq/firemq/broker"
)

// Resources are readings of memory and disk. What cannot be read here is 0.
type Resources struct {
	Memory      int64 // resident memory of this process, bytes
	MemoryTotal int64 // of the machine or container, bytes
	MemoryLimit int64 // the alarm's, bytes; 0: none
	MemoryAlarm bool

	DiskFree      int64 // of the data directory's file system, bytes
	DiskFreeLimit int64 // the alarm's, bytes; 0: none
	DiskAlarm     bool  // free space is short, or the journal cannot write
}

// alarms watches memory and disk, and pauses publishers while one of them is short.
//
// A reading is taken every second, and sooner when a limit could be passed before: memory is read as often
// as fastest publishing could fill what is left, and when so much has been published (see broker.Allow):
// until then nobody publishes more, however busy the machine is. An alarm begins at its limit, for memory a 32nd
// before, and ends when a twentieth of the limit is free again, so that it does not come and go with every message.
// While it holds, what clients had on their way when they were
// told of it may still come, as far as a 64th beyond the limit, and all of those whose acks may end it, by way of the
// disk (see broker.AllowLate). A consumer that drains queues makes garbage, not free memory, and while publishers are
// paused little else would have it collected: while the memory alarm holds, the watch does so itself.
type alarms struct {
	log   *slog.Logger
	probe probe                   // immutable, as are the next five
	dir   string                  // what the disk alarm is about; "": nothing
	raise func(memory, disk bool) // tells the broker, as allow does
	allow func(granted)           // what may be published and made until the next reading
	quit  chan struct{}
	over  chan struct{}
	wake  chan struct{}      // holds one token: limits changed, or the journal's state
	asks  chan chan struct{} // each is closed after a reading

	mu sync.Mutex
	// Guarded by mu.
	stall   error         // why the journal cannot write, nil when it can
	forced  broker.Reason // alarms that an administrator has raised
	r       Resources
	started bool
	limited bool // the Go runtime has a limit of ours

	// Owned by the watch's goroutine.
	memoryFault, diskFault bool          // the last reading failed, which was logged
	collected              time.Time     // when memory was last given back
	collecting             time.Duration // how long that took
	floor                  int64         // free bytes of the disk that late publishes leave during its alarm
}

// probe reads what the system says; a seam for tests.
type probe struct {
	resident func() (int64, error)           // bytes of this process
	total    func() int64                    // bytes of the machine or container; 0: not known
	diskFree func(dir string) (int64, error) // bytes that this user may use
	collect  func()                          // gives unused memory back to the system
	limit    func(bytes int64)               // makes the Go runtime keep a memory limit; 0: none
}

// The times and shares of the watch.
const (
	sampleEvery = time.Second
	sampleLeast = 5 * time.Millisecond
	sampleSoon  = 100 * time.Millisecond // while those wait whose acks may end an alarm
	fillRate    = 2 << 30                // bytes a second that publishers could bring at most
	clearShare  = 20                     // an alarm ends when 1/20 of its limit is free again
	lateShare   = 64                     // what is late is taken as far as 1/64 beyond the limit
	owingShare  = 16                     // and what those have sent whose acks may end the alarm, as far as 1/16
	owingTimes  = 2                      // of the limit is what each of them may publish between two acks
	earlyShare  = 32                     // the memory alarm begins 1/32 below the limit, above where it ends
	collectRest = 10                     // a collection is not repeated before ten times its own time has passed

	leastRoom  = 1 << 20   // bytes that may be published between two readings, however little is left
	leastOwing = 256 << 10 // of those whose acks may end an alarm: with less, memory is soon read again
	owingMost  = 1 << 30   // bytes that each of them may publish between two acks at most

	programPages = 12 << 20 // resident bytes of the program itself, about
)

func newAlarms(log *slog.Logger, p probe, limit MemoryLimit, diskFree int64, dir string) *alarms {
	a := &alarms{
		log: log, probe: p, dir: dir,
		quit: make(chan struct{}), over: make(chan struct{}), wake: make(chan struct{}, 1), asks: make(chan chan struct{}),
	}
	a.r.MemoryTotal = a.probe.total()
	a.setLimits(limit, diskFree)
	return a
}

// setLimits changes the limits. Any goroutine.
func (a *alarms) setLimits(limit MemoryLimit, diskFree int64) {
	a.mu.Lock()
	a.r.MemoryLimit = limit.of(a.r.MemoryTotal)
	a.r.DiskFreeLimit = diskFree
	memory, total := a.r.MemoryLimit, a.r.MemoryTotal
	if memory > 0 || a.limited {
		a.limited = memory > 0
		a.probe.limit(memory)
	}
	a.mu.Unlock()
	switch {
	case total > 0 && memory > total:
		a.log.Warn("the memory limit is above all memory there is: the alarm may come too late", "limit", memory, "memory", total)
	case memory == 0 && limit.Percent > 0:
		a.log.Warn("the memory of this machine is not known, there is no memory alarm: give a size with --memory-limit")
	}
	a.poke()
}

// of gives the limit in bytes, 0 for none; total is what there is, 0 when it is not known.
func (m MemoryLimit) of(total int64) int64 {
	if m.Bytes > 0 {
		return m.Bytes
	}
	return total / 100 * int64(m.Percent)
}

// force raises alarms whatever there is, or lets the limits decide again. The next reading heeds it. Any goroutine.
func (a *alarms) force(which broker.Reason, on bool) {
	a.mu.Lock()
	if a.forced |= which; !on {
		a.forced &^= which
	}
	a.mu.Unlock()
}

// stalled is journal.Options.OnStall.
func (a *alarms) stalled(err error) {
	a.mu.Lock()
	a.stall = err
	a.mu.Unlock()
	a.poke()
}

func (a *alarms) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// look takes a reading and returns after it: limits that were changed before have had their effect. Any goroutine, after
// start.
func (a *alarms) look() {
	done := make(chan struct{})
	select {
	case a.asks <- done:
		<-done
	case <-a.over:
	}
}

// resources gives the latest readings. Any goroutine.
func (a *alarms) resources() Resources {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.r
}

// start takes a first reading and begins the watch; raise is called with every change, first when there is
// an alarm, and allow with every reading, after it. They come from one goroutine at a time.
func (a *alarms) start(raise func(memory, disk bool), allow func(granted)) {
	a.raise, a.allow = raise, allow
	next := a.sample()
	a.mu.Lock()
	a.started = true
	a.mu.Unlock()
	go a.watch(next)
}

// stop ends the watch. What it last raised stays.
func (a *alarms) stop() {
	a.mu.Lock()
	started := a.started
	a.started = false
	a.mu.Unlock()
	if started {
		close(a.quit)
		<-a.over
	}
}

func (a *alarms) watch(next time.Duration) {
	defer close(a.over)
	timer := time.NewTimer(next)
	defer timer.Stop()
	for {
		var done chan struct{}
		select {
		case <-a.quit:
			return
		case <-a.wake:
		case <-timer.C:
		case done = <-a.asks:
		}
		timer.Reset(a.sample())
		if done != nil {
			close(done)
		}
	}
}

// sample reads memory and disk, raises or ends alarms, and says when to look again.
func (a *alarms) sample() (next time.Duration) {
	was := a.resources()
	resident := a.resident(was.Memory)
	if was.MemoryAlarm && a.collectNow() {
		resident = a.resident(resident)
	}
	free, known := a.free(was.DiskFree)

	a.mu.Lock()
	r := &a.r
	r.Memory, r.DiskFree = resident, free
	r.MemoryAlarm = a.forced&broker.PauseMemory != 0 || r.MemoryLimit > 0 && above(resident, r.MemoryLimit, was.MemoryAlarm)
	short := known && r.DiskFreeLimit > 0 && below(free, r.DiskFreeLimit, was.DiskAlarm)
	r.DiskAlarm = short || a.stall != nil || a.forced&broker.PauseDisk != 0
	is, stall := *r, a.stall
	a.mu.Unlock()

	if is.DiskAlarm && !was.DiskAlarm {
		a.floor = min(is.DiskFreeLimit, is.DiskFree) / 2
	}
	if is.MemoryAlarm != was.MemoryAlarm || is.DiskAlarm != was.DiskAlarm {
		a.raise(is.MemoryAlarm, is.DiskAlarm)
	}
	// Publishers that an alarm stops must not wait for room as well: their acks may be what makes it.
	room := int64(broker.Unlimited)
	if is.MemoryLimit > 0 && !is.MemoryAlarm {
		room = max(early(is.MemoryLimit)-is.Memory, leastRoom)
	}
	disk := known && stall == nil
	owing, each := is.owingRoom(disk, a.floor)
	a.allow(granted{room, is.lateRoom(disk), owing, each, keptRoom(is.MemoryLimit, is.Memory), declaredRoom(is.MemoryLimit)})
	if is.MemoryAlarm != was.MemoryAlarm {
		a.logChange(is.MemoryAlarm, "memory", "resident", is.Memory, "limit", is.MemoryLimit)
	}
	if is.DiskAlarm != was.DiskAlarm {
		args := []any{"free", is.DiskFree, "limit", is.DiskFreeLimit, "directory", a.dir}
		if stall != nil {
			args = append(args, "journal", stall)
		}
		a.logChange(is.DiskAlarm, "disk", args...)
	}

	next = sampleEvery
	if each > 0 && owing < leastOwing && is.MemoryLimit != nothing && (is.MemoryAlarm || is.DiskAlarm) {
		next = sampleSoon
	}
	if is.MemoryLimit > 0 && !is.MemoryAlarm {
		next = min(next, timeToFill(early(is.MemoryLimit)-is.Memory))
	}
	if is.DiskFreeLimit > 0 && !is.DiskAlarm && known {
		next = min(next, max(timeToFill(is.DiskFree-is.DiskFreeLimit), 50*time.Millisecond))
	}
	return next
}

// lateRoom is how many bytes may be published although an alarm holds. The free disk counts if it is known, and
// the journal writes: one that cannot bounds by itself what waits for it. It is half of what there is, and when that is
// used up there is another reading: what messages really take is known then.
func (r *Resources) lateRoom(disk bool) int64 {
	room := int64(broker.Unlimited)
	switch {
	case !r.MemoryAlarm && !r.DiskAlarm:
		return 0
	case r.MemoryLimit > 0:
		room = r.MemoryLimit + r.MemoryLimit/lateShare - r.Memory
	}
	if disk && r.DiskFreeLimit > 0 {
		room = min(room, r.DiskFree-r.DiskFreeLimit+r.DiskFreeLimit/lateShare)
	}
	return max(room/2, 0)
}

// owingRoom is how many bytes more may be published during an alarm by those whose acks may end it, and by each of them
// between two acks, see broker.AllowLate. In an alarm of memory their messages go to the disk, and what that takes of
// memory is known with the next reading; in one of the disk memory takes them, and a part of the disk that is still
// free, down to floor. With both there is only a share of the limits, as without a disk.
func (r *Resources) owingRoom(disk bool, floor int64) (room, each int64) {
	limit := r.MemoryLimit
	if room, each = broker.Unlimited, owingMost; limit > 0 {
		each = min(owingTimes*limit, owingMost)
	}
	switch {
	case disk && r.MemoryAlarm && !r.DiskAlarm:
		if limit > 0 {
			room = limit + limit/owingShare - r.Memory
		}
		return max(room/2, 0), each
	case disk && r.DiskAlarm && !r.MemoryAlarm:
		if limit > 0 {
			room = early(limit) - r.Memory
		}
		return max(min(room, r.DiskFree-floor)/2, 0), each
	}
	if limit > 0 {
		room = limit / lateShare
	}
	if disk && r.DiskFreeLimit > 0 {
		room = min(room, r.DiskFreeLimit/lateShare)
	}
	return room, 0
}

// nothing is the limit by which an administrator has all publishers wait, and nobody else.
const nothing = 1

// keptShare is how much goes beyond the limit for what is not messages: 1/32 of it. Consumers that come to end an alarm
// are not kept out.
const keptShare = 32

// keptRoom is what may be declared, bound, opened or consumed from at a limit, 0 for none, with so
// much resident.
func keptRoom(limit, resident int64) int64 {
	if limit <= nothing {
		return broker.Unlimited
	}
	return max(0, limit+limit/keptShare-resident)
}

// declaredShare is the part of the limit that queues, exchanges and bindings may take: 1/2.
const declaredShare = 2

func declaredRoom(limit int64) int64 {
	if limit <= nothing {
		return broker.Unlimited
	}
	return limit / declaredShare
}

// granted is how many bytes may be published, be published although an alarm holds, the same by those with deliveries
// to settle, by each of those between two settlements, and kept of what is not messages, until the next reading, and how
// many queues, exchanges and bindings may take in all.
type granted struct{ published, late, owing, each, kept, declared int64 }

// above reports whether n is too near to a limit, which an alarm that holds ends further below only.
func above(n, limit int64, holds bool) bool {
	if holds {
		return n > limit-limit/clearShare
	}
	return n > early(limit)
}

// early is where the memory alarm begins.
func early(limit int64) int64 { return limit - limit/earlyShare }

func below(n, limit int64, holds bool) bool {
	if holds {
		return n < limit+limit/clearShare
	}
	return n < limit
}

// timeToFill is how long the fastest publishers take for so many bytes.
func timeToFill(room int64) time.Duration {
	if room > fillRate {
		return sampleEvery
	}
	return max(time.Duration(room)*time.Second/fillRate, sampleLeast)
}

func (a *alarms) logChange(holds bool, what string, args ...any) {
	if holds {
		a.log.Warn(what+" alarm: publishers are paused until it is over", args...)
	} else {
		a.log.Info(what+" alarm is over: publishers go on", args...)
	}
}

// resident reads this process's memory; when that fails it is taken to be as it was.
func (a *alarms) resident(last int64) int64 {
	n, err := a.probe.resident()
	a.fault(&a.memoryFault, err, "the memory of this process cannot be read: the memory alarm stays as it is")
	if err != nil {
		return last
	}
	return n
}

// free reads the disk's free space; when that fails it is taken to be as it was. known is false when it was
// never read.
func (a *alarms) free(last int64) (n int64, known bool) {
	if a.dir == "" {
		return 0, false
	}
	n, err := a.probe.diskFree(a.dir)
	a.fault(&a.diskFault, err, "the free space of the disk cannot be read: the disk alarm stays as it is")
	if err != nil {
		return last, last > 0
	}
	return n, true
}

// fault logs the first of a row of failed readings.
func (a *alarms) fault(failed *bool, err error, what string) {
	if err != nil && !*failed {
		a.log.Error(what, "error", err)
	}
	*failed = err != nil
}

// collectNow gives memory back to the system, unless that would cost more than a tenth of the time.
func (a *alarms) collectNow() bool {
	begin := time.Now()
	if begin.Sub(a.collected) < collectRest*a.collecting {
		return false
	}
	a.probe.collect()
	a.collected = time.Now()
	a.collecting = a.collected.Sub(begin)
	return true
}

// limitRuntime sets the Go runtime's memory limit for a memory limit of the broker, 0 for none, unless the
// environment set it. The rest is for what is not the runtime's, such as the program's own pages, and for what
// is allocated while a collection goes on: so garbage alone does not raise the alarm.
func limitRuntime(limit int64) {
	switch {
	case os.Getenv("GOMEMLIMIT") != "":
	case limit == 0:
		debug.SetMemoryLimit(math.MaxInt64)
	default:
		debug.SetMemoryLimit(max(limit/2, limit-limit/10-programPages, minMemoryLimit/2)) // below, it would only collect
	}
}
