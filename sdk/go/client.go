package fire

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/firemq/firemq/frames/fmq1"
)

// Version is this client's version, shown to the broker.
const Version = "0.1.0"

const (
	readBuffer = 64 << 10
	// maxStaged is how many bytes wait for the socket before publishers wait too; acknowledgements and
	// requests do not, they are bounded by credit and by callers.
	maxStaged = 1 << 20
	// minWrite is what a write should have: below it other goroutines get a chance to add to it first.
	minWrite = 16 << 10
	// closeTimeout is how long Close waits for the broker's answer.
	closeTimeout = 5 * time.Second
)

// Client is a connection to a broker, which is made again when it is lost.
type Client struct {
	cfg   Config        // immutable
	done  chan struct{} // closed when the Client is
	ended chan struct{} // closed when its goroutines are gone
	wake  chan struct{} // the writer's; holds one token

	ctx    context.Context // ends with the Client
	cancel context.CancelFunc

	// base is the last delivery tag of earlier connections; a tag is base and what the broker calls it.
	// Written with mu held, read by any goroutine.
	base atomic.Uint64

	mu sync.Mutex
	// Guarded by mu.
	err      error         // why the Client is closed; nil while it is open
	link     *link         // nil while there is no connection
	last     *link         // the one now or before
	up       chan struct{} // closed when there is a connection again; nil while there is one
	lost     error         // why there is none
	locked   int           // attempts to reconnect that found something exclusive in use
	closing  bool          // close is sent: nothing is staged any more
	peerDone bool          // the broker's close came: nothing is read any more
	out      []byte
	asleep   bool          // the writer waits for wake
	drained  chan struct{} // closed at the next write, for those who wait for room; nil: nobody does
	paused   chan struct{} // flow: closed when publishing may go on; nil: it may
	rid      uint64
	calls    map[uint64]*call
	subID    uint64
	subs     map[uint64]*Subscription
	seq      uint64       // of the last publish
	pending  pending      // publishes without a confirm
	kept     keeper       // their frames, to be sent again
	waiters  *waiter      // free ones
	unacked  unacked      // deliveries without an ack
	lastTag  uint64       // the highest delivery tag
	gets     Subscription // stands for the deliveries of gets among them
	topology topology     // what this client declared
	results  []result
	events   []func() // for the reader to run without mu

	delay time.Duration // the last pause before an attempt to reconnect; owned by run
}

// Dial connects to the broker that a URL names (see ParseURL). ctx limits connecting only.
//
// Errors: *InvalidError for a bad URL, *ServerError when the broker refuses the login (403) or the vhost
// (530), else what went wrong with the network. Only a connection that was there once is made again.
func Dial(ctx context.Context, url string) (*Client, error) {
	cfg, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	return cfg.Dial(ctx)
}

// Dial connects as c says. ctx limits connecting only. Errors are those of the function Dial.
func (c Config) Dial(ctx context.Context) (*Client, error) {
	c = c.withDefaults()
	l, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	cl := &Client{
		cfg: c, done: make(chan struct{}), ended: make(chan struct{}), wake: make(chan struct{}, 1), last: l,
		calls: map[uint64]*call{}, subs: map[uint64]*Subscription{}, topology: newTopology(),
	}
	cl.ctx, cl.cancel = context.WithCancel(context.Background())
	cl.gets = Subscription{c: cl, part: math.MaxInt} // grants no credit
	cl.mu.Lock()
	cl.start(l)
	cl.mu.Unlock()
	go cl.run(l)
	return cl, nil
}

// run reads from one link after the other.
func (c *Client) run(l *link) {
	defer close(c.ended)
	for l != nil {
		err := c.read(l)
		again := c.disconnected(l, err)
		l.loops.Wait()
		if !again {
			return
		}
		l = c.reconnect()
	}
}

// ConnID is the connection's name as the management API shows it; another one after a reconnection.
func (c *Client) ConnID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last.id
}

// Server is the broker's name and version.
func (c *Client) Server() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last.server
}

// Done is closed when the Client is closed: by Close, or by the loss of a connection that is not made
// again.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err is nil while the Client is open, else an ErrClosed that says why it is not.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection in order: what was sent arrives, and everything that still waits fails with
// ErrClosed. Publishes whose confirm has not come are among those: Flush publishers before. It waits
// for the broker's answer for up to 5 s. Calling it again does nothing.
func (c *Client) Close() error {
	c.mu.Lock()
	switch {
	case c.err != nil || c.closing:
	case c.link == nil:
		c.fail(ErrClosed)
		return c.gone()
	default:
		c.out = fmq1.Append(c.out, fmq1.OpClose, &fmq1.Close{Code: fmq1.ReplySuccess, Msg: "bye"})
		c.closing = true
		c.wakeWriter()
	}
	c.mu.Unlock()
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
		c.mu.Lock()
		c.fail(ErrClosed)
	}
	return c.gone()
}

func (c *Client) gone() error {
	<-c.ended
	return nil
}

// fail closes the Client because of err and tells everybody who waits. It is called with mu held and
// gives it up.
func (c *Client) fail(err error) {
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	if c.closing {
		err = ErrClosed // what breaks after our close is its end
	}
	c.err = closedBy(err)
	c.unlink()
	c.failCalls(c.err)
	c.failPublishes(c.err)
	for _, s := range c.subs {
		s.end(c.err)
	}
	results := c.results
	c.results = nil
	c.cancel()
	close(c.done)
	c.mu.Unlock()
	for i := range results {
		results[i].tell()
	}
}

// unlink gives the link up: its loops end. mu held.
func (c *Client) unlink() {
	l := c.link
	if l == nil {
		return
	}
	c.link = nil
	close(l.done)
	l.conn.Close()
	c.out = c.out[:0]
	c.wakeWriter()
}

// usable is the error for anything new. mu held.
func (c *Client) usable() error {
	if c.err != nil {
		return c.err
	}
	if c.closing {
		return ErrClosed
	}
	return nil
}

// live says that frames may be staged. mu held.
func (c *Client) live() bool { return c.link != nil && !c.closing }

// connected waits until there is a connection, for as long as Reconnect.Wait. It is called with mu held,
// gives it up while it waits, and holds it again when it returns.
func (c *Client) connected(ctx context.Context) error {
	for {
		if err := c.usable(); err != nil {
			return err
		}
		if c.link != nil {
			return nil
		}
		up := c.up
		c.mu.Unlock()
		timer := time.NewTimer(c.cfg.Reconnect.Wait)
		late := false
		select {
		case <-up:
		case <-c.done:
		case <-ctx.Done():
		case <-timer.C:
			late = true
		}
		timer.Stop()
		c.mu.Lock()
		if err := ctx.Err(); err != nil {
			return err
		}
		if late && c.link == nil && c.err == nil {
			return c.unreachable()
		}
	}
}

// room waits until one more message may be staged: there is a connection, publishing is not paused, the
// socket has taken most of what is staged, the messages that are kept are not too large, and p, if there
// is one, has a place in its window. It is called with mu held, gives it up while it waits, and holds it
// again when it returns.
func (c *Client) room(ctx context.Context, p *Publisher) error {
	for {
		if err := c.connected(ctx); err != nil {
			return err
		}
		var wait chan struct{}
		switch {
		case c.paused != nil:
			wait = c.paused
		case len(c.out) >= maxStaged:
			wait = waitFor(&c.drained)
		case c.kept.bytes >= maxKept:
			wait = waitFor(&c.kept.lighter)
		case p != nil && p.inflight >= p.window:
			wait = waitFor(&p.room)
		default:
			return nil
		}
		c.mu.Unlock()
		select {
		case <-wait:
		case <-c.done:
		case <-ctx.Done():
			c.mu.Lock()
			return ctx.Err()
		}
		c.mu.Lock()
	}
}

// waitFor gives the chan that is closed when something happens, and makes it for who is the first to wait.
func waitFor(ch *chan struct{}) chan struct{} {
	if *ch == nil {
		*ch = make(chan struct{})
	}
	return *ch
}

// happened wakes those who wait for it.
func happened(ch *chan struct{}) {
	if *ch != nil {
		close(*ch)
		*ch = nil
	}
}
