// Package amqp speaks AMQP 0-9-1 as RabbitMQ does: one Session is one connection, bytes in,
// broker verbs, bytes out. It knows no socket: whoever reads one calls OnData, and what is to be
// sent is staged in a session.Outbox.
//
//	OnData -> frame -> handshake.go   until connection.open
//	               '-> channel.go     methods of one channel, content assembly
//	                     |-> publish.go  consume.go  confirm.go  tx.go  topology.go
//	                     '-> reply.go    the broker's errors in AMQP's codes
//
// Owners: OnData, OnClose and what Outbox.Do runs are the connection's reader, one goroutine at a
// time, which owns all state. OnTick, OnDrained and the broker's calls of a channel's Sink
// come from any goroutine; they use immutable fields, atomics and the outbox alone.
//
// A common publish (method, header and body complete in the bytes received) is decoded in place
// and copied once, into its message. A delivery is encoded once, into the outbox; bodies of
// refBytes and more go out by reference.
package amqp

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/session"
)

// Options configure sessions. The zero value of a field is its documented default.
type Options struct {
	// FrameMax and ChannelMax are the limits offered in connection.tune: 131072 octets and 2047
	// channels. Clients choose lower ones, never higher or unlimited.
	FrameMax   uint32
	ChannelMax uint16
	// Heartbeat is offered in connection.tune, in whole seconds: 60 s; negative offers none. The
	// client's answer counts.
	Heartbeat time.Duration
	// MaxMessageSize is the largest body in bytes: 128 MiB. A publisher of a larger one loses
	// its channel (406) from the content header on.
	MaxMessageSize int
	// HandshakeTimeout ends a connection that is not open after it: 10 s.
	HandshakeTimeout time.Duration
	// CloseTimeout ends a connection whose client does not answer connection.close: 5 s after it last took
	// something of what is before it, and six times that in all.
	CloseTimeout time.Duration
	// ClusterName and Version are shown to clients in connection.start.
	ClusterName string
	Version     string

	Pauses *session.Pauses // counts why connections were paused; nil: nobody asks

	Log *slog.Logger // nil: discarded
}

const (
	defaultFrameMax   = 131072
	defaultChannelMax = 2047
	defaultHeartbeat  = 60 * time.Second
	defaultMaxMessage = 128 << 20

	// maxContent is the largest body that content headers may announce at all.
	maxContent = 512 << 20

	// sessionMemory is about what a session takes, channelsMemory what its channels share, in bytes; see
	// broker.ConnInfo.
	sessionMemory  = 1600
	channelsMemory = 1550

	// preTuneFrameMax bounds what a peer that has not logged in makes us keep. RabbitMQ accepts
	// 4096; client properties of some frameworks come close to it.
	preTuneFrameMax = 64 << 10

	// refBytes is the body size from which a delivery refers to the message's buffer instead
	// of copying it into the outbox.
	refBytes = 4 << 10
)

func (o Options) withDefaults() Options {
	if o.FrameMax == 0 {
		o.FrameMax = defaultFrameMax
	}
	o.FrameMax = max(o.FrameMax, amqp.MinFrameMax)
	if o.ChannelMax == 0 {
		o.ChannelMax = defaultChannelMax
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = defaultHeartbeat
	}
	if o.MaxMessageSize == 0 {
		o.MaxMessageSize = defaultMaxMessage
	}
	o.MaxMessageSize = min(o.MaxMessageSize, maxContent)
	if o.HandshakeTimeout == 0 {
		o.HandshakeTimeout = 10 * time.Second
	}
	if o.CloseTimeout == 0 {
		o.CloseTimeout = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// state is how far a connection is (0-9-1 2.2.4). The names are those of RabbitMQ's texts.
type state uint8

const (
	expectHeader state = iota // the protocol header
	starting                  // sent connection.start
	tuning                    // sent connection.tune
	opening                   // got tune-ok
	running                   // got open
	closing                   // sent connection.close
	closed                    // nothing is read any more
)

func (s state) String() string {
	return [...]string{"expecting a header", "starting", "tuning", "opening", "running", "closing", "closed"}[s]
}

// Session is one AMQP 0-9-1 connection. It has the methods that package loop asks of a session.
type Session struct {
	out session.Outbox // immutable, like all up to the next group
	b   *broker.Broker
	opt Options
	log *slog.Logger

	// Owned by the connection's reader. Those marked * are immutable from the running state on, and
	// read by Sink methods too.
	state         state
	frameMax      uint32 // *
	channelMax    uint16
	heartbeat     uint16 // seconds, negotiated
	mechanism     string // of the login
	user          *broker.User
	info          broker.ConnInfo
	conn          *broker.Conn // * nil before connection.open and from the end on
	leaving       *broker.Conn // what conn was, until the goodbye is over
	wantsCancel   bool         // * capability consumer_cancel_notify
	wantsBlocked  bool         // * capability connection.blocked
	wantsAuthFail bool         // capability authentication_failure_close
	channels      []*channel   // by number, below directChannels
	others        map[uint16]*channel
	open          int    // channels in both
	scratch       []byte // encoded replies
	rewritten     []byte // properties of a publish that are stored otherwise than they came
	body          body   // of which a part was taken
	kept          int    // bytes of a partial frame, as counted by Conn.Hold or Broker.HoldGuest
	guest         int64  // what is held before connection.open, as counted by Broker.HoldGuest
	answered      bool   // this turn staged answers, which a client may ask for faster than it reads
	wait          wait   // for answers that are kept until the disk has what they promise

	props []byte // scratch of a delivery that crosses protocols; guarded by the outbox's lock
	peer  peer   // the broker's view of this connection

	// Any goroutine. limit ends the connection that long after the first tick that saw it.
	beat      atomic.Uint32 // heartbeat interval in s, 0: none
	limit     atomic.Int64  // ns, 0: none
	goodbye   atomic.Bool   // connection.close is staged: limit counts from when the client last took something
	limitFrom atomic.Int64  // Unix ns of that tick, 0: not seen yet
	quiet     atomic.Int64  // Unix ns until which reading was paused, so that silence is no fault
}

// directChannels is below which number channels are found by index instead of in a map.
const directChannels = 256

// New makes the session of an accepted connection. Nothing is sent before the client's
// protocol header came.
func New(o session.Outbox, b *broker.Broker, opt Options) *Session {
	s := &Session{out: o, b: b, opt: opt.withDefaults(), frameMax: preTuneFrameMax}
	s.log = s.opt.Log
	s.peer = peer{Outbox: o, s: s}
	s.peer.reading.Of(o, uint32(broker.PauseAlarm), uint32(broker.PausePublish), s.opt.Pauses)
	s.info = broker.ConnInfo{
		Protocol: "AMQP 0-9-1",
		Name:     o.RemoteAddr().String() + " -> " + o.LocalAddr().String(),
		Remote:   o.RemoteAddr(),
		Local:    o.LocalAddr(),
		Memory:   sessionMemory,

		ChannelsMemory: channelsMemory,
	}
	if o, ok := o.(session.Counting); ok {
		s.info.Octets = func() (n broker.Octets) {
			n.Received, n.Sent, n.Reads, n.Writes = o.Octets()
			return n
		}
	}
	s.info.Paused = s.peer.Paused
	s.setLimit(s.opt.HandshakeTimeout)
	return s
}

// OnData takes the whole frames of b and reports how many bytes those were, and how many the next
// frame is known to need. Called by the connection's reader.
func (s *Session) OnData(b []byte) (n, want int) {
	if s.wait.bad != nil {
		return len(b), 0
	}
	if s.state == expectHeader {
		if n = s.header(b); n == 0 {
			return 0, len(amqp.ProtocolHeader)
		}
	}
	if s.body.left > 0 {
		whole := false
		if n, whole = s.moreBody(b); !whole {
			s.stopInFrame(amqp.FrameBody, n)
			return n, lastOfBody
		}
	}
	k, want := s.frames(b[n:])
	n += k
	s.endTurn()
	s.keep(len(b)-n, want)
	s.pushBack()
	if s.state == closed {
		return len(b), 0
	}
	return n, want
}

// frames carries out the whole frames of b and reports as OnData does.
func (s *Session) frames(b []byte) (n, want int) {
	for s.state != closed {
		f, k, err := amqp.Next(b[n:], s.frameMax)
		if k == 0 && err == nil {
			if k = s.partialBody(b[n:]); k > 0 {
				return n + k, lastOfBody
			}
			if n < len(b) {
				s.stopInFrame(b[n], 0)
			}
			return n, amqp.Want(b[n:])
		}
		if k > 0 && (s.wait.on || err == nil && s.mustWait(f)) {
			s.hold(b[n : n+k])
			n += k
			continue
		}
		n += k
		if err != nil {
			s.frameError(err)
			if s.wait.bad != nil {
				return len(b), 0
			}
			continue
		}
		n += s.frame(f, b[n:])
	}
	return n, 0
}

// keep counts what is kept of a frame that is not whole: left bytes now, of want.
func (s *Session) keep(left, want int) {
	if left += left; left <= partialBytes {
		left = 0 // as most often
	}
	n := min(left, want)
	if n == s.kept || s.conn == nil && (s.state == closing || s.state == closed) {
		return
	}
	if e := s.holdMore(int64(n - s.kept)); e != nil {
		s.fail(codeOf(e.Kind), e.Text, 0)
		return
	}
	s.kept = n
}

// holdMore counts n bytes more, or less, of what is unfinished.
func (s *Session) holdMore(n int64) *broker.Error {
	if s.conn != nil {
		return s.conn.Hold(n)
	}
	return s.b.HoldGuest(&s.guest, n)
}

// pauseBacklog is this package's own reason to stop reading, beside the broker's: the client asks
// for more answers than it reads.
const pauseBacklog = broker.Reason(session.PauseBacklog)

// pushBack stops reading a client that asks for answers, returns and confirms without reading them,
// until it has read half of the outbox. Deliveries alone are no reason: the broker stops them by itself, and
// acks must still be read. Pausing is undone here when its reason went away in between.
func (s *Session) pushBack() {
	if !s.answered {
		return
	}
	s.answered = false
	if s.state != closed && !s.out.Writable() {
		s.peer.Pause(pauseBacklog)
		if s.out.Writable() {
			s.peer.Resume(pauseBacklog)
		}
	}
}

// frame carries out one frame. rest is what follows it; the frames of a complete publish
// are taken from there, and their length is returned.
func (s *Session) frame(f amqp.Frame, rest []byte) int {
	if f.Channel != 0 && s.state == running {
		switch f.Type {
		case amqp.FrameMethod:
			return s.channelMethod(f, rest)
		case amqp.FrameHeader, amqp.FrameBody:
			s.channelContent(f)
		default:
			s.fail(amqp.CodeUnexpectedFrame, amqp.Snippet(f), 0)
		}
		return 0
	}
	switch {
	case s.state == closing:
		s.whileClosing(f)
	case f.Type == amqp.FrameHeartbeat && f.Channel == 0:
		if len(f.Payload) > 0 {
			s.unknownFrame(f)
		}
	case f.Type != amqp.FrameMethod || f.Channel != 0:
		s.fail(amqp.CodeUnexpectedFrame, amqp.Snippet(f), 0)
	default:
		id, args, ok := amqp.CutMethod(f.Payload)
		if !ok {
			s.unknownFrame(f)
			return 0
		}
		s.connectionMethod(id, args)
	}
	return 0
}

// unknownFrame answers a frame whose payload is not what its type has.
func (s *Session) unknownFrame(f amqp.Frame) {
	s.fail(amqp.CodeFrameError, amqp.Snippet(f)+": unknown_frame", 0)
}

// frameError answers a malformed frame with 501. When the place of the next frame is lost, the session
// is closed: nothing more is read. What came before it comes first.
func (s *Session) frameError(err error) {
	var e *amqp.FrameError
	fatal := !errors.As(err, &e) || e.Fatal()
	if fatal && s.waits() {
		s.wait.bad = err
		s.startWait()
		return
	}
	if s.state == closing {
		if fatal {
			s.finish()
		}
		return
	}
	if !fatal {
		s.fail(amqp.CodeFrameError, err.Error(), 0)
		return
	}
	s.failNow(amqp.CodeFrameError, err.Error(), 0)
	s.finish()
}

// whileClosing ignores everything but the end of the closing handshake (2.2.4).
func (s *Session) whileClosing(f amqp.Frame) {
	if f.Type != amqp.FrameMethod || f.Channel != 0 {
		return
	}
	switch id, _, _ := amqp.CutMethod(f.Payload); id {
	case amqp.IDConnectionClose:
		s.send(0, &amqp.ConnectionCloseOk{})
	case amqp.IDConnectionCloseOk:
		s.finish()
	}
}

// endTurn carries out what the turn collected. An ack that was wrong closes its channel.
func (s *Session) endTurn() {
	for s.conn != nil {
		bch, e := s.conn.EndTurn()
		if e == nil {
			return
		}
		ch := bch.Sink().(*channel)
		ch.refused(e, 0)
	}
}

// fail ends the connection for the peer's mistake: 0-9-1 connection exception. id is the method it
// is about, 0 for none. Before the login it is silent: what is not trusted is not talked to. Answers
// that are kept and frames that are held come first.
func (s *Session) fail(code uint16, text string, id amqp.MethodID) {
	if s.waits() {
		s.later(func() { s.failNow(code, text, id) })
		return
	}
	s.failNow(code, text, id)
}

func (s *Session) failNow(code uint16, text string, id amqp.MethodID) {
	if s.state == closing || s.state == closed {
		return
	}
	s.log.Warn("connection error", "peer", s.info.Name, "user", s.login(), "vhost", s.info.VHost, "state", s.state, "code", code, "reason", text, "method", id)
	if s.state < tuning {
		s.finish()
		return
	}
	s.sendClose(code, text, id)
}

// login is the user's name, "" before there is one.
func (s *Session) login() string {
	if s.user == nil {
		return ""
	}
	return s.user.Name()
}

// sendClose stops everything the connection did, tells the client why, and waits for its close-ok.
func (s *Session) sendClose(code uint16, text string, id amqp.MethodID) {
	s.detach()
	s.state = closing
	s.beat.Store(0)
	s.goodbye.Store(true)
	s.setLimit(s.opt.CloseTimeout)
	s.send(0, &amqp.ConnectionClose{
		ReplyCode: code, ReplyText: replyText(code, text), ClassID: id.Class(), MethodID: id.Method(),
	})
	s.peer.reading.Free() // the close-ok must be read
}

// detach ends the broker's side: what the turn collected is carried out, channels are closed, unacked
// deliveries requeued, exclusive queues deleted. No Sink method is called afterwards.
func (s *Session) detach() {
	s.wait.drop()
	s.b.HoldGuest(&s.guest, -s.guest)
	for _, ch := range s.channels {
		if ch != nil {
			ch.dropContent()
		}
	}
	for _, ch := range s.others {
		ch.dropContent()
	}
	if s.conn != nil {
		for {
			bch, e := s.conn.EndTurn()
			if e == nil {
				break
			}
			bch.Close() // a wrong ack: what came behind it does not count
		}
		s.conn.Quiesce()
		s.conn, s.leaving = nil, s.conn
		s.peer.conn.Store(nil)
	}
	s.channels, s.others, s.open = nil, nil, 0
}

// finish sends what is staged and closes. Nothing is read any more.
func (s *Session) finish() {
	s.leave()
	s.out.CloseAfterFlush()
}

// leave ends the session: the broker forgets the connection.
func (s *Session) leave() {
	s.detach()
	s.state = closed
	s.beat.Store(0)
	s.setLimit(0)
	if s.leaving != nil {
		s.leaving.Close()
		s.leaving = nil
	}
}

// setLimit ends the connection in d from the next tick on, unless it is set again; 0: never.
func (s *Session) setLimit(d time.Duration) {
	s.limit.Store(int64(d))
	s.limitFrom.Store(0)
}

// closeStretch is how many times CloseTimeout a client may take that reads slowly.
const closeStretch = 6

// progress is from when the client's time counts: the start, or in a goodbye what it last took.
func (s *Session) progress(from int64) int64 {
	if s.goodbye.Load() {
		return max(from, s.out.LastWrite())
	}
	return from
}

var (
	errTimeout   = errors.New("peer did not answer in time")
	errHeartbeat = errors.New("missed heartbeats from client")
)

// OnTick sends and expects heartbeats, and ends a connection that outstays the time for its
// handshake or for its close-ok. Any goroutine, about once a second.
func (s *Session) OnTick(now int64) {
	if limit := s.limit.Load(); limit > 0 {
		if from := s.limitFrom.Load(); from == 0 {
			s.limitFrom.CompareAndSwap(0, now)
		} else if now-from >= closeStretch*limit || now-s.progress(from) >= limit {
			s.out.Abort(errTimeout)
			return
		}
	}
	beat := int64(s.beat.Load()) * int64(time.Second)
	if beat == 0 {
		return
	}
	switch paused := broker.Reason(s.peer.reading.Stops()); {
	case paused&^pauseBacklog != 0:
		s.quiet.Store(now)
	case paused != 0: // that it takes its answers is then its sign of life
		s.quiet.Store(max(s.quiet.Load(), s.out.LastWrite()))
	}
	if now-max(s.out.LastRead(), s.quiet.Load()) > 2*beat+int64(time.Second) {
		s.out.Abort(errHeartbeat)
		return
	}
	// Ticks are coarse: a heartbeat that would be due shortly after this one is sent now. A client that
	// has a full outbox to read needs none.
	if now-s.out.LastWrite() >= beat/2-int64(100*time.Millisecond) && s.out.Writable() {
		s.out.Lock()
		s.out.Put(amqp.AppendHeartbeat(s.out.Tail(amqp.FrameOverhead)))
		if s.out.Unlock() {
			s.out.Flush()
		}
	}
}

// OnDrained goes on reading a client that was behind with its answers, and lets the broker serve the consumers
// again that were passed over. Any goroutine.
func (s *Session) OnDrained() {
	s.peer.Resume(pauseBacklog)
	if c := s.peer.conn.Load(); c != nil {
		c.Drained()
	}
}

// OnClose is the connection's end, whoever caused it. Called once, by the connection's reader.
func (s *Session) OnClose(err error) {
	if s.state == running {
		s.log.Warn("connection lost", "peer", s.info.Name, "user", s.login(), "vhost", s.info.VHost, "error", err)
	}
	s.leave()
}

// send stages one method frame. By the reader.
func (s *Session) send(channel uint16, m amqp.Method) {
	s.scratch = m.AppendFrame(s.scratch[:0], channel)
	s.stage(s.scratch)
}

// stage copies whole frames into the outbox. By the reader, whose caller flushes.
func (s *Session) stage(frames []byte) {
	s.answered = true
	s.out.Lock()
	s.out.Put(append(s.out.Tail(len(frames)), frames...))
	s.out.Unlock()
}

// peer is the connection as the broker sees it (broker.Peer). Any goroutine.
type peer struct {
	session.Outbox
	s       *Session
	reading session.Reading
	conn    atomic.Pointer[broker.Conn]
}

// Pause has publishes wait, or stops reading the connection. A client that asked for it is told of an alarm.
func (p *peer) Pause(r broker.Reason) {
	was := p.reading.Pause(uint32(r))
	if broker.Reason(was)&broker.PauseAlarm == 0 && r&broker.PauseAlarm != 0 && p.s.wantsBlocked {
		m := amqp.ConnectionBlocked{Reason: []byte(lowOn(r))}
		p.tell(m.AppendFrame(nil, 0))
	}
}

// lowOn is RabbitMQ's text for an alarm.
func lowOn(r broker.Reason) string {
	switch r & broker.PauseAlarm {
	case broker.PauseMemory:
		return "low on memory"
	case broker.PauseDisk:
		return "low on disk"
	}
	return "low on disk & memory"
}

// Resume takes reasons of Pause back; the client is told when no alarm is left, and what waited is looked at.
func (p *peer) Resume(r broker.Reason) {
	was := broker.Reason(p.reading.Resume(uint32(r)))
	if was&broker.PauseAlarm != 0 && was&^r&broker.PauseAlarm == 0 && p.s.wantsBlocked {
		p.tell((&amqp.ConnectionUnblocked{}).AppendFrame(nil, 0))
	}
	if was&r&broker.PausePublish != 0 {
		p.Answered()
	}
}

// Careful has little of the connection read at once.
func (p *peer) Careful(on bool) { p.reading.Careful(on) }

// Paused is broker.ConnInfo.Paused.
func (p *peer) Paused() (broker.Reason, int64) {
	return broker.Reason(p.reading.Reasons()), p.reading.Last()
}

func (p *peer) tell(frame []byte) {
	p.Lock()
	p.Put(append(p.Tail(len(frame)), frame...))
	if p.Unlock() {
		p.Flush()
	}
}

// Close ends the connection from the broker's side: connection.close with the reason.
func (p *peer) Close(e *broker.Error) {
	p.Do(func() {
		s := p.s
		if s.state == closing || s.state == closed {
			return
		}
		s.log.Info("connection closed by the broker", "peer", s.info.Name, "user", s.login(), "vhost", s.info.VHost, "code", codeOf(e.Kind), "reason", e.Text)
		s.sendClose(codeOf(e.Kind), e.Text, 0)
	})
}

var _ broker.Peer = (*peer)(nil)
