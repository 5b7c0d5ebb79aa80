package broker

import (
	"runtime"
	"sync/atomic"
	"time"
)

// A declaration, a binding, a consumer or a channel costs as much as several messages, a login as much as
// hundreds, and a client may ask for as many as it likes. So that those who flood the broker with them do not
// take its time from those who send messages:
//
//   - A connection carries out a slice of them in a turn; what it sent behind them is for its next one.
//   - While messages flow, all of them together get one part in paceShare of the processors' time, the
//     connections that ask for them equal parts of it, and connections that come as much again. A connection
//     that has had its part is not read until it is entitled to more; connections wait to be accepted.
//   - TLS handshakes get paceShakes times as much. They are what costs most, and what an honest client that comes
//     back cannot do without.
//   - Messages pay for them: who declares a queue for some messages each is not slowed.
//
// While no messages flow they take what there is.
const (
	paceShare  = 32
	paceShakes = 2
	paceSlice  = 32   // verbs of a turn while messages flow
	paceRest   = 256  // else
	paceCredit = 8    // verbs that a message pays for
	paceSaved  = 1024 // verbs that are paid for at most

	paceFlow  = 2000                   // ms after the last message
	paceEpoch = time.Second            // those who asked in this one or the last are counted
	paceAhead = 100 * time.Millisecond // of its part a connection may be so far ahead
	paceMost  = 5 * time.Second        // it waits at most, and so does the next one who comes

	acceptCost = 30 * time.Microsecond  // of a connection that comes and goes, measured
	loginCost  = 90 * time.Microsecond  // of its login, and of what that leads to
	loginSaved = 250 * time.Millisecond // of their part is there for those who come at once
)

// pace is the broker's part of it. Any goroutine.
type pace struct {
	start  time.Time    // immutable
	flowed atomic.Int64 // Unix ms of the last messages, about
	epoch  atomic.Int64 // the number of the one that asking counts for
	asking atomic.Int64 // connections
	asked  atomic.Int64 // in the epoch before
	logins atomic.Int64 // ns since start to which the logins' part is used up
	shakes atomic.Int64 // likewise, the TLS handshakes'
}

func (p *pace) clock() time.Duration { return time.Since(p.start) }

// flow notes that messages flow.
func (p *pace) flow(now int64) {
	if p.flowed.Load() != now {
		p.flowed.Store(now)
	}
}

func (p *pace) flows(now int64) bool { return now-p.flowed.Load() < paceFlow }

// due is how long work must rest that took so long, when so many ask for as much.
func due(took time.Duration, asking int64) time.Duration {
	return min(took*paceShare*time.Duration(asking)/time.Duration(runtime.GOMAXPROCS(0)), paceMost)
}

// ask counts a connection once in an epoch, and gives the number of those that ask.
func (p *pace) ask(seen *int64) int64 {
	now := int64(p.clock() / paceEpoch)
	if was := p.epoch.Load(); was != now && p.epoch.CompareAndSwap(was, now) {
		n := p.asking.Swap(0)
		if was != now-1 {
			n = 0
		}
		p.asked.Store(n)
	}
	if *seen != now {
		*seen = now
		p.asking.Add(1)
	}
	return max(p.asking.Load(), p.asked.Load(), 1)
}

// Admitted is called for each connection that was accepted, and says how long to wait with the next one. Any
// goroutine.
func (b *Broker) Admitted() time.Duration { return b.arrive(&b.pace.logins, due(acceptCost, 1)) }

// Handshake is called with the time that TLS handshakes took of a processor, 0 for none, and says how long to wait
// with the next one. Any goroutine.
func (b *Broker) Handshake(took time.Duration) time.Duration {
	return b.arrive(&b.pace.shakes, due(took, 1)/paceShakes)
}

// arrive charges those who come with a time of rest, while messages flow, and says how long the next one must wait.
func (b *Broker) arrive(used *atomic.Int64, rest time.Duration) time.Duration {
	if !b.pace.flows(b.opt.Now()) {
		return 0
	}
	now := int64(b.pace.clock())
	for {
		was := used.Load()
		next := min(max(was, now-int64(loginSaved))+int64(rest), now+int64(paceMost))
		if used.CompareAndSwap(was, next) {
			return time.Duration(next - now)
		}
	}
}

// paced is a connection's part of it. Owned by its reader, but the atomics. Times are since pace.start.
type paced struct {
	verbs  int           // of this turn that no message paid for
	slice  int           // at which the turn is over
	begin  time.Duration // of the first of them
	until  time.Duration // its part is used up to then
	credit int           // verbs that are paid for
	seen   int64         // see pace.ask
	useful bool          // it had messages
	last   atomic.Int64  // Unix ms of the last verb; written by the reader
	waits  atomic.Bool   // counted in Conn.kept, as if an answer waited
	timer  *time.Timer   // nil until it had to wait for time
}

// costly is called by each verb that is not about messages.
func (c *Conn) costly() {
	p := &c.paced
	switch {
	case c.info.Internal || c.quiet:
		return
	case p.credit > 0:
		p.credit--
		return
	}
	if p.verbs == 0 {
		now := c.begin().now
		p.begin = c.b.pace.clock()
		p.last.Store(now)
		p.slice = paceRest
		if c.b.pace.flows(now) {
			p.slice = paceSlice
		}
	}
	if p.verbs++; p.verbs == p.slice {
		c.rest()
	}
}

// carried notes messages that the connection published or settled. Those of who is slowed are no flow.
func (c *Conn) carried(n int, now int64) {
	p := &c.paced
	p.credit = min(p.credit+n*paceCredit, paceSaved)
	c.flows(now)
	if !p.useful && !c.info.Internal {
		p.useful = true
		c.b.pace.logins.Add(-int64(due(acceptCost+loginCost, 1)))
	}
}

// flows notes that messages go to or from the connection, unless it asks for other verbs itself. Any goroutine.
func (c *Conn) flows(now int64) {
	if now-c.paced.last.Load() > paceFlow {
		c.b.pace.flow(now)
	}
}

// settleUp ends a turn that had costly verbs.
func (c *Conn) settleUp() {
	p := &c.paced
	p.verbs = 0
	if c.b.pace.flows(c.b.opt.Now()) {
		now := c.b.pace.clock()
		p.until = max(p.until, now) + due(now-p.begin, c.b.pace.ask(&p.seen))
		if wait := p.until - now - paceAhead; wait > 0 {
			c.rest()
			if p.timer == nil {
				p.timer = time.AfterFunc(wait, c.goOn)
			} else {
				p.timer.Reset(wait)
			}
			return
		}
	}
	c.goOn()
}

// rest has the session wait until goOn.
func (c *Conn) rest() {
	if c.paced.waits.CompareAndSwap(false, true) {
		c.kept.Add(1)
	}
}

func (c *Conn) goOn() {
	if c.paced.waits.CompareAndSwap(true, false) {
		c.kept.Add(-1)
		c.peer.Answered() // other answers may wait: the session looks
	}
}

// Rests reports that the connection had its part of other verbs than those for messages: nothing more is to be
// carried out before Peer.Answered. By the reader.
func (c *Conn) Rests() bool { return c.paced.waits.Load() }
