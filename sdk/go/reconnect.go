package fire

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/firemq/firemq/frames/fmq1"
)

// Reconnect says what a Client does when it loses its connection. The zero value is the default.
type Reconnect struct {
	// Off has the Client be closed then.
	Off bool
	// MaxAttempts is after how many attempts in a row that failed the Client is closed; 0: it goes on until
	// Close.
	MaxAttempts int
	// Wait is how long calls wait for a connection before they fail with ErrClosed; 0: 30 s.
	Wait time.Duration
	// MinDelay is the pause before the first attempt, which doubles up to MaxDelay; 0: 100 ms and 5 s.
	MinDelay, MaxDelay time.Duration
}

func (r *Reconnect) defaults() {
	if r.Wait <= 0 {
		r.Wait = 30 * time.Second
	}
	if r.MinDelay <= 0 {
		r.MinDelay = 100 * time.Millisecond
	}
	if r.MaxDelay <= 0 {
		r.MaxDelay = 5 * time.Second
	}
	r.MaxDelay = max(r.MaxDelay, r.MinDelay)
}

const (
	// attemptLimit bounds an attempt: connecting, logging in, declaring.
	attemptLimit = 10 * time.Second
	// maxLocked is how many attempts may find something exclusive in use: the broker may not have noticed
	// yet that the connection before is lost. After that it is another client's.
	maxLocked = 8
	// declareBatch is how many declarations are sent before their answers are read.
	declareBatch = 100
)

// disconnected is the end of a link. It reports whether another should be made.
func (c *Client) disconnected(l *link, err error) bool {
	c.mu.Lock()
	if c.err != nil || c.closing || c.cfg.Reconnect.Off {
		c.fail(err)
		return false
	}
	c.unlink()
	lived := time.Since(l.since) > c.cfg.Reconnect.MaxDelay
	if l.useful || lived { // else something that is sent each time may be what breaks it
		c.delay = 0
	}
	if lived {
		c.locked = 0
	}
	c.lost = err
	c.up = make(chan struct{})
	c.peerDone = false
	c.pause(false)
	happened(&c.drained)
	// What was delivered is the broker's again, what was asked for and published is asked and published
	// again: see restore.
	c.base.Store(c.lastTag)
	c.unacked = unacked{}
	for _, s := range c.subs {
		s.interrupt()
	}
	for rid, w := range c.calls {
		if w.gone || w.then != nil {
			delete(c.calls, rid)
			w.finish(reply{err: ErrClosed}) // whatever the broker's reason, it is no answer
		}
	}
	events := c.events
	c.events = nil
	c.mu.Unlock()
	for _, f := range events {
		f()
	}
	if c.cfg.OnDisconnect != nil {
		c.cfg.OnDisconnect(err)
	}
	return true
}

// unreachable is what calls get that waited for a connection. mu held.
func (c *Client) unreachable() error {
	return closedBy(fmt.Errorf("no connection within %s: %w", c.cfg.Reconnect.Wait, c.lost))
}

// reconnect makes a link, however long it takes. nil: the Client is closed.
func (c *Client) reconnect() *link {
	// Those who waited for an answer when the connection was lost wait no longer than others.
	c.mu.Lock()
	up := c.up
	c.mu.Unlock()
	late := time.AfterFunc(c.cfg.Reconnect.Wait, func() { c.giveUp(up) })
	defer late.Stop()
	r := &c.cfg.Reconnect
	for attempt := 1; ; attempt++ {
		c.delay = max(r.MinDelay, min(2*c.delay, r.MaxDelay))
		timer := time.NewTimer(c.delay - rand.N(c.delay/5+1)) // not all clients of a broker at once
		select {
		case <-timer.C:
		case <-c.done:
			timer.Stop()
			return nil
		}
		ctx, cancel := context.WithTimeout(c.ctx, attemptLimit)
		l, err := c.attempt(ctx)
		cancel()
		if err == nil {
			return l
		}
		c.mu.Lock()
		c.lost = err
		c.pause(false)
		if r.MaxAttempts > 0 && attempt >= r.MaxAttempts {
			c.fail(fmt.Errorf("%d attempts to reconnect failed: %w", attempt, err))
			return nil
		}
		c.mu.Unlock()
	}
}

// giveUp fails the calls and publishes that have waited for a connection since it was lost, unless up, which
// is closed when it is there, belongs to an earlier loss.
func (c *Client) giveUp(up chan struct{}) {
	c.mu.Lock()
	if c.up != up || c.err != nil {
		c.mu.Unlock()
		return
	}
	err := c.unreachable()
	c.failCalls(err)
	c.failPublishes(err)
	results := c.results
	c.results = nil
	c.mu.Unlock()
	for i := range results {
		results[i].tell()
	}
}

// attempt tries once to make a link that is as the one before was.
func (c *Client) attempt(ctx context.Context) (*link, error) {
	l, err := c.cfg.open(ctx)
	if err != nil {
		return nil, err
	}
	if err := l.within(ctx, func() error { return c.redeclare(l) }); err != nil {
		l.conn.Close()
		return nil, err
	}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		l.conn.Close()
		return nil, ErrClosed
	}
	c.restore(l)
	events, results := c.events, c.results
	c.events, c.results = nil, nil
	c.mu.Unlock()
	for i := range results {
		results[i].tell()
	}
	for _, f := range events {
		f()
	}
	if c.cfg.OnReconnect != nil {
		c.cfg.OnReconnect()
	}
	return l, nil
}

// redeclare declares exchanges and queues again, before anything else is sent over the link. What the
// broker refuses is reported; an attempt fails only when something exclusive is still in use.
func (c *Client) redeclare(l *link) error {
	c.mu.Lock()
	list := c.topology.declarations()
	c.mu.Unlock()
	for batch := range slices.Chunk(list, declareBatch) {
		b := []byte(nil)
		for i, d := range batch {
			b = fmq1.Append(b, d.op, d.header(uint64(i+1)))
		}
		if _, err := l.conn.Write(b); err != nil {
			return err
		}
		for answers := 0; answers < len(batch); {
			f, err := l.await()
			if err != nil {
				return err
			}
			n, err := c.redeclared(l, f, batch)
			if err != nil {
				return err
			}
			answers += n
		}
	}
	return nil
}

// redeclared handles a frame that comes between declarations and their answers, and counts answers.
func (c *Client) redeclared(l *link, f fmq1.Frame, batch []declaration) (answers int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch f.Op {
	case fmq1.OpOK:
		var m fmq1.OK
		if err := fmq1.Decode(f.Header, &m); err != nil {
			return 0, err
		}
		if m.RID == 0 || m.RID > uint64(len(batch)) {
			return 0, fmt.Errorf("the broker answers request %d, which there is not", m.RID)
		}
		if q := batch[m.RID-1].queue; q != nil {
			c.topology.rename(q, m.Name)
		}
		return 1, nil
	case fmq1.OpError:
		var m fmq1.ServerError
		if err := fmq1.Decode(f.Header, &m); err != nil {
			return 0, err
		}
		e := serverError(&m)
		if m.Fatal || m.Code == fmq1.ResourceLocked && c.lockedAgain() {
			return 0, e
		}
		c.report(e)
		if m.RID == 0 {
			return 0, nil
		}
		return 1, nil
	case fmq1.OpFlow:
		return 0, c.flow(f)
	case fmq1.OpPing:
		_, err := l.conn.Write(fmq1.AppendEmpty(nil, fmq1.OpPong))
		return 0, err
	case fmq1.OpClose:
		var m fmq1.Close
		if err := fmq1.Decode(f.Header, &m); err != nil {
			return 0, err
		}
		return 0, &ServerError{Code: int(m.Code), Msg: m.Msg, Fatal: true}
	}
	return 0, nil
}

// lockedAgain counts an attempt that found something exclusive in use, and says whether to try again.
// mu held.
func (c *Client) lockedAgain() bool {
	c.locked++
	return c.locked <= maxLocked
}

// restore makes l the Client's link and has everything sent again that the broker has to know: bindings,
// subscriptions, requests and publishes without an answer, in this order. mu held.
func (c *Client) restore(l *link) {
	c.last = l
	c.start(l)
	c.out = c.out[:0]
	for _, d := range c.topology.bound() {
		c.rid++
		c.calls[c.rid] = &call{then: func(r reply) { c.reportReply(r) }}
		c.out = fmq1.Append(c.out, d.op, d.header(c.rid))
	}
	unanswered := make([]uint64, 0, len(c.calls))
	for rid, w := range c.calls {
		if w.build != nil {
			unanswered = append(unanswered, rid)
		}
	}
	slices.Sort(unanswered)
	c.resume()
	for _, rid := range unanswered {
		w := c.calls[rid]
		c.out = fmq1.Append(c.out, w.op, w.build(rid))
	}
	c.republish()
	c.wakeWriter()
	close(c.up)
	c.up, c.lost = nil, nil
}

func (c *Client) reportReply(r reply) {
	if e, ok := r.err.(*ServerError); ok {
		c.report(e)
	}
}

// resume subscribes again. mu held.
func (c *Client) resume() {
	subs := make([]*Subscription, 0, len(c.subs))
	for _, s := range c.subs {
		if s.active {
			subs = append(subs, s)
		}
	}
	slices.SortFunc(subs, func(a, b *Subscription) int { return int(a.id) - int(b.id) })
	for _, s := range subs {
		c.rid++
		c.calls[c.rid] = &call{then: func(r reply) { c.resumed(s, r) }}
		c.out = fmq1.Append(c.out, fmq1.OpSubscribe, s.header(c.rid))
	}
}

// resumed is the answer to a subscription that was resumed. mu held.
func (c *Client) resumed(s *Subscription, r reply) {
	e, refused := r.err.(*ServerError)
	switch {
	case !refused || c.subs[s.id] != s: // a broken connection: again over the next
		return
	case e.Code == fmq1.ResourceLocked && c.link != nil && c.lockedAgain():
		c.link.breakOff(e)
	default:
		delete(c.subs, s.id)
		s.end(&CancelledError{Code: e.Code, Msg: e.Msg})
	}
}

// republish sends what is not confirmed again, under new sequence numbers. mu held.
func (c *Client) republish() {
	old := c.pending
	c.pending, c.seq = pending{}, 0
	for seq := old.first; seq != old.first+old.n; seq++ {
		e := *old.at(seq)
		if e.done {
			continue
		}
		if e.waiter == nil && e.publisher == nil { // its caller gave up
			c.kept.release(&e)
			continue
		}
		if len(e.frame) > 4+int(c.last.maxFrame) {
			c.kept.release(&e)
			c.finish(&e, invalid("a message of %d bytes does not fit in the broker's frames of %d", len(e.frame), c.last.maxFrame))
			continue
		}
		f, _, _, err := fmq1.Next(e.frame, uint32(len(e.frame)))
		var h fmq1.Publish
		if err == nil {
			err = h.Decode(f.Header)
		}
		if err != nil {
			panic("BUG: fire: a publish that was sent does not decode: " + err.Error())
		}
		c.seq++
		h.Seq = c.seq
		start := len(c.out)
		c.out = h.AppendTo(fmq1.Begin(c.out, fmq1.OpPublish))
		c.out = append(fmq1.End(c.out, start, len(f.Payload)), f.Payload...)
		e.err = nil
		if e.waiter != nil {
			e.waiter.seq = c.seq
		}
		c.pending.add(c.seq, e)
	}
}
