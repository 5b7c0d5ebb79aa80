package broker

import (
	"slices"
	"sync"

	"github.com/firemq/firemq/journal"
)

// completer carries out what waits for the journal: after each commit it dispatches the queues
// whose head waited, sends the confirms that are due and lets paused publishers go on. It has
// one goroutine, woken at most once a commit.
type completer struct {
	b    *Broker
	wake chan struct{} // holds one token: a commit happened, or something was registered
	quit chan struct{}
	over chan struct{}

	mu       sync.Mutex        // a leaf
	queues   []*Queue          // guarded by mu; a queue is in it once (Queue.waiting)
	channels []*Channel        // guarded by mu; likewise (Channel.awaiting)
	paused   []*Conn           // guarded by mu; a connection is in it once (Conn.awaitsRoom)
	late     []*Conn           // guarded by mu; likewise (Conn.awaitsDisk)
	settling []settled         // guarded by mu
	passing  bool              // a pass goes on; guarded by mu
	idlers   []chan<- struct{} // wait until no channel waits; guarded by mu

	// Owned by the goroutine.
	turn        turn
	oldQueues   []*Queue
	oldChannels []*Channel
}

// settled is somebody who waits until the journal has committed pos.
type settled struct {
	pos  journal.Position
	done chan<- struct{}
}

func newCompleter(b *Broker) *completer {
	c := &completer{b: b, wake: make(chan struct{}, 1), quit: make(chan struct{}), over: make(chan struct{})}
	c.turn.b = b
	return c
}

func (c *completer) start() { go c.run() }

// stop ends the goroutine and waits for it.
func (c *completer) stop() {
	close(c.quit)
	<-c.over
}

// signal says that the journal committed, or that there may be something to do. Any goroutine.
func (c *completer) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// awaitQueues adds queues, whose waiting marks the caller has set, to what is dispatched after the next
// commit beyond seen. The caller may hold a queue's lock.
func (c *completer) awaitQueues(seen journal.Position, queues ...*Queue) {
	c.mu.Lock()
	c.queues = append(c.queues, queues...)
	c.mu.Unlock()
	c.recheck(seen)
}

// again has q, whose waiting mark the caller has set, dispatched soon. The caller may hold q's lock.
func (c *completer) again(q *Queue) {
	c.mu.Lock()
	c.queues = append(c.queues, q)
	c.mu.Unlock()
	c.signal()
}

func (c *completer) awaitChannel(ch *Channel, seen journal.Position) {
	c.mu.Lock()
	c.channels = append(c.channels, ch)
	c.mu.Unlock()
	c.recheck(seen)
}

// recheck closes the gap between looking at the committed position and registering: a commit in
// between has signalled too early.
func (c *completer) recheck(seen journal.Position) {
	if c.b.committed() > seen {
		c.signal()
	}
}

// awaitRoom resumes conn when less waits for the disk, and more may be published.
func (c *completer) awaitRoom(conn *Conn) {
	if conn.awaitsRoom.Swap(true) {
		return
	}
	c.mu.Lock()
	c.paused = append(c.paused, conn)
	c.mu.Unlock()
	if c.b.hasRoom() {
		c.signal()
	}
}

// awaitDisk reports whether more than lateHigh bytes wait for the disk; conn is asked to look again when less do.
func (c *completer) awaitDisk(conn *Conn) bool {
	if c.b.diskIsFree() {
		return false
	}
	if !conn.awaitsDisk.Swap(true) {
		c.mu.Lock()
		c.late = append(c.late, conn)
		c.mu.Unlock()
	}
	if c.b.diskIsFree() {
		c.signal()
	}
	return true
}

// diskIsFree says whether what is published during an alarm may go to the disk.
func (b *Broker) diskIsFree() bool { return b.journal.Pending() <= lateHigh && !b.journal.Low() }

// hasRoom says whether publishers that wait may go on.
func (b *Broker) hasRoom() bool {
	return b.allowance.Load() > 0 && (b.journal == nil || b.journal.Pending() < journalHigh/2 && !b.journal.Low())
}

func (c *completer) run() {
	defer close(c.over)
	for {
		select {
		case <-c.quit:
			return
		case <-c.wake:
			c.pass()
		}
	}
}

// warmAhead is how many queues before its turn a queue's memory is asked for.
const warmAhead = 4

// pass serves everything registered once. What still waits registers again and is served after the next commit.
func (c *completer) pass() {
	t := &c.turn
	t.now = c.b.opt.Now()
	c.mu.Lock()
	c.passing = true
	queues, channels := c.queues, c.channels
	c.queues, c.channels = c.oldQueues[:0], c.oldChannels[:0]
	paused := c.paused
	if len(paused) > 0 && c.b.hasRoom() {
		c.paused = nil
	} else {
		paused = nil
	}
	var late []*Conn
	if len(c.late) > 0 && c.b.diskIsFree() {
		late, c.late = c.late, nil
	}
	c.mu.Unlock()

	committed := c.b.committed()
	c.mu.Lock()
	c.settling = slices.DeleteFunc(c.settling, func(s settled) bool {
		if s.pos >= committed {
			return false
		}
		close(s.done)
		return true
	})
	c.mu.Unlock()
	for i, q := range queues {
		if ahead := i + warmAhead; ahead < len(queues) {
			queues[ahead].warm()
		}
		if ahead := i + warmAhead/2; ahead < len(queues) {
			queues[ahead].warmConsumer()
		}
		q.mu.Lock()
		q.waiting = false
		if q.deleted {
			q.adopt(t)
		} else {
			q.dispatch(t)
		}
		if len(q.orphans) > 0 {
			q.await(committed) // who appends their records may have found it waiting, and left them to this pass
		}
		q.mu.Unlock()
		queues[i] = nil
	}
	for i, ch := range channels {
		ch.peer.Lock()
		again, answered := false, false
		if !ch.gone {
			again, answered = ch.answer(committed)
		}
		ch.awaiting = again
		if ch.peer.Unlock() {
			t.touch(ch.peer)
		}
		if answered {
			ch.peer.Answered()
		}
		if again {
			c.mu.Lock()
			c.channels = append(c.channels, ch)
			c.mu.Unlock()
		}
		channels[i] = nil
	}
	for _, conn := range paused {
		conn.awaitsRoom.Store(false)
		conn.peer.Resume(PauseJournal | PauseGrowth)
	}
	for _, conn := range late {
		conn.awaitsDisk.Store(false)
		conn.peer.Answered()
	}
	c.oldQueues, c.oldChannels = queues, channels
	t.end()
	c.mu.Lock()
	c.passing = false
	if len(c.channels) == 0 {
		for _, i := range c.idlers {
			close(i)
		}
		c.idlers = nil
	}
	c.mu.Unlock()
}

// await gives a chan that is closed when the journal has committed pos; it never is when the journal
// fails before. Any goroutine.
func (c *completer) await(pos journal.Position) <-chan struct{} {
	done := make(chan struct{})
	seen := c.b.committed()
	if pos < seen {
		close(done)
		return done
	}
	c.mu.Lock()
	c.settling = append(c.settling, settled{pos, done})
	c.mu.Unlock()
	c.recheck(seen)
	return done
}

// idle gives a chan that is closed as soon as no channel waits for a confirm. Any goroutine.
func (c *completer) idle() <-chan struct{} {
	i := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.channels) == 0 && !c.passing {
		close(i)
	} else {
		c.idlers = append(c.idlers, i)
	}
	return i
}
