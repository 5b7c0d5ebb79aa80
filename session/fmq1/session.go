// Package fmq1 speaks the FireMQ protocol (spec/protocol.md) for one connection: bytes in, broker
// calls, bytes out. It knows no socket.
//
// A Session is driven by its transport through the methods On... and calls the broker as one
// connection with one channel that always has confirms on. The broker answers through two views of
// the same Session: peer, the sending side and the reading switch, and sink, what a channel is sent.
// They come from any goroutine and touch only what is guarded by the outbox or atomic.
package fmq1

import (
	"errors"
	"log/slog"
	"math"
	"net"
	"sync/atomic"
	"time"

	"github.com/firemq/firemq/broker"
	wire "github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/session"
)

// Options configure a Session; the zero value is a server with the documented defaults.
type Options struct {
	MaxFrame  uint32        // largest frame accepted after welcome, in bytes; 0: 16 MiB
	Heartbeat time.Duration // the server's wish, whole seconds; 0: 60 s, negative: none
	Version   string        // of the server, for welcome
	// MaxMessageSize is the largest body in bytes, refused with 406 beyond; 0: what a frame holds.
	MaxMessageSize int
	// HandshakeTimeout is how long a connection may take until its hello passed; 0: 10 s. The peer
	// feels it.
	HandshakeTimeout time.Duration
	Now              func() int64 // Unix nanoseconds; nil: the clock
	// Framed says that the transport keeps frames apart and sends no preface (WebSocket). The bytes a
	// session gets and gives still carry len: the transport adds and removes it.
	Framed bool
	// VHost is where a client goes whose hello names none (the vhost parameter of a WebSocket's URL);
	// empty: "/".
	VHost string

	Pauses *session.Pauses // counts why connections were paused; nil: nobody asks

	Log *slog.Logger // nil: discarded
}

const (
	defaultHeartbeat = 60 * time.Second

	defaultHandshake = 10 * time.Second

	// closeTimeout is how long a client may take to answer close before the socket is closed anyway.
	closeTimeout = 5 * time.Second
	// byReference is the body size from which deliveries send the message's own bytes.
	byReference = 4096
	// keptScratch is how large a scratch buffer an idle connection may keep.
	keptScratch = 4096
	// sessionMemory is about what a session takes, in bytes; see broker.ConnInfo.
	sessionMemory = 300
	// largeFrame is from which size, in bytes, a frame is a publish.
	largeFrame = 64 << 10
)

// pauseBacklog is this package's own reason to stop reading, beside the broker's: the client asks
// for more answers than it reads.
const pauseBacklog = broker.Reason(session.PauseBacklog)

// pauseThrottle is a reason for publishes to wait: the client publishes although it was asked not to.
const pauseThrottle = broker.Reason(session.PauseThrottle)

// state is where the connection is in its life.
type state uint8

const (
	atPreface state = iota
	atHello
	atRefusal // the hello is refused, which is said later; what comes meanwhile is ignored
	open
	closing // close sent, waiting for the client's
	ended   // nothing is read any more
)

// Session is the protocol state of one connection.
type Session struct {
	o   session.Outbox // immutable
	b   *broker.Broker // immutable
	opt Options        // immutable

	// Owned by the connection's reader.
	state    state
	inTurn   bool  // OnData is running: the transport flushes after it
	settling bool  // acks or nacks may be collected in the channel
	throttle bool  // this turn published during an alarm
	kept     int   // bytes of a partial frame, as counted by Conn.Hold or Broker.HoldGuest
	guest    int64 // what is held before welcome, as counted by Broker.HoldGuest
	ch       *broker.Channel
	user     string
	vhost    string
	lastSeq  uint64
	subs     map[uint64]*broker.Consumer
	pub      wire.Publish
	args     broker.Publish
	settle   wire.Settle
	credit   wire.Credit
	props    []byte // where the two maps of a publish are put together
	get      getting
	sendGet  func(*broker.Delivery, int)
	frameBuf []byte // an answer
	wait     wait   // for answers that are kept until the disk has what they promise

	// Guarded by the outbox.
	upto      uint64   // every publish up to this one is confirmed or refused
	told      uint64   // the last upto staged
	converted []byte   // properties of a message that came over another protocol
	after     []func() // for the reader; passed on when the broker gives the outbox back
	welcomed  bool     // welcome is staged: frames of the broker may follow
	quiet     bool     // the connection is ending: no pings and flows any more

	// Any goroutine.
	conn      atomic.Pointer[broker.Conn]
	answered  atomic.Bool // this turn staged answers, which a client may ask for faster than it reads
	reading   session.Reading
	alarm     atomic.Uint32 // reasons for which publishers should stop
	heartbeat atomic.Int64  // negotiated interval in ns, 0: none
	alive     atomic.Int64  // Unix ns when the peer last had an excuse for silence
	deadline  atomic.Int64  // Unix ns by which the handshake or close must be over, 0: none
}

// New makes the session of a connection whose sending side is o. The transport then calls OnData and
// the other methods of loop.Session.
func New(o session.Outbox, b *broker.Broker, opt Options) *Session {
	if opt.MaxFrame == 0 {
		opt.MaxFrame = wire.DefaultMaxFrame
	}
	if opt.Heartbeat == 0 {
		opt.Heartbeat = defaultHeartbeat
	}
	if opt.MaxMessageSize == 0 {
		opt.MaxMessageSize = math.MaxInt
	}
	if opt.HandshakeTimeout == 0 {
		opt.HandshakeTimeout = defaultHandshake
	}
	if opt.VHost == "" {
		opt.VHost = "/"
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Now == nil {
		opt.Now = func() int64 { return time.Now().UnixNano() }
	}
	s := &Session{o: o, b: b, opt: opt, subs: map[uint64]*broker.Consumer{}}
	s.reading.Of(o, uint32(broker.PauseAlarm|pauseThrottle), uint32(broker.PausePublish|pauseThrottle), s.opt.Pauses)
	if opt.Framed {
		s.state = atHello
	}
	s.sendGet = s.stageGet
	s.deadline.Store(opt.Now() + int64(opt.HandshakeTimeout))
	return s
}

// OnData takes received bytes; see loop.Session.
func (s *Session) OnData(b []byte) (n, want int) { return s.take(b, true) }

// take is OnData, also for frames that were held: what is kept behind those stays as it is.
func (s *Session) take(b []byte, fresh bool) (n, want int) {
	s.inTurn, s.throttle = true, false
	seq := s.lastSeq
	n, want = s.read(b)
	// What comes of a large frame is looked at on its way, so that it is counted.
	want = min(want, max(2*(len(b)-n), largeFrame))
	s.endTurn()
	if fresh {
		s.keep(len(b)-n, want)
	}
	s.inTurn = false
	if s.lastSeq != seq { // confirms are answers too
		s.answered.Store(true)
	}
	s.pushBack()
	if s.state == ended {
		return len(b), 0
	}
	return n, want
}

// keep counts what is kept of a frame that is not whole: left bytes now, of want. One so large is a publish,
// for which an alarm counts before its end; one that is not comes to its end, as what is behind it can't be read
// before.
func (s *Session) keep(left, want int) {
	if left += left; left <= keptScratch {
		left = 0 // as most often
	}
	n := min(left, want)
	if n > 2*largeFrame && s.alarm.Load() != 0 {
		s.throttle = true
	}
	if n == s.kept || s.state > open {
		return
	}
	var e *broker.Error
	if c := s.conn.Load(); c != nil {
		e = c.Hold(int64(n - s.kept))
	} else {
		e = s.b.HoldGuest(&s.guest, int64(n-s.kept))
	}
	if e != nil {
		s.fatal(0, refused(e))
		return
	}
	s.kept = n
}

// MaxMessage is the largest frame accepted now, in bytes as counted by len. By the reader.
func (s *Session) MaxMessage() int {
	if s.state < open {
		return wire.MaxBeforeWelcome
	}
	return int(s.opt.MaxFrame)
}

// read handles every whole frame of b.
func (s *Session) read(b []byte) (n, want int) {
	if s.state == atPreface {
		have := min(len(b), len(wire.Preface))
		if string(b[:have]) != wire.Preface[:have] {
			s.fatal(0, faultOf(wire.FrameError, "a connection starts with the bytes %s", wire.Preface))
			return len(b), 0
		}
		if have < len(wire.Preface) {
			return 0, len(wire.Preface)
		}
		n = have
		s.state = atHello
	}
	for s.state != ended && n < len(b) {
		if s.wait.fault != nil {
			return len(b), 0
		}
		f, taken, more, err := wire.Next(b[n:], uint32(s.MaxMessage()))
		if err != nil {
			s.fatal(0, malformed(err))
			return len(b), 0
		}
		if taken == 0 {
			s.stopInFrame(b[n:])
			return n, more
		}
		if s.wait.on || s.mustWait(f) {
			s.hold(b[n : n+taken])
		} else {
			s.frame(f)
		}
		n += taken
	}
	return n, 0
}

// frame handles one frame.
func (s *Session) frame(f wire.Frame) {
	switch s.state {
	case atHello:
		s.beforeWelcome(f)
		return
	case atRefusal, closing:
		if f.Op == wire.OpClose {
			s.end()
		}
		return
	}
	switch f.Op {
	case wire.OpPublish:
		s.publish(f)
	case wire.OpAck:
		s.ack(f)
	case wire.OpNack:
		s.nack(f)
	case wire.OpCredit:
		s.grant(f)
	case wire.OpPing:
		s.pong()
	case wire.OpPong:
	case wire.OpClose:
		s.closed()
	default:
		s.request(f)
	}
}

// request handles the frames that have a reply.
func (s *Session) request(f wire.Frame) {
	// Their errors must not be mixed with those of the acks before them.
	s.carryOut()
	switch f.Op {
	case wire.OpDeclareExchange:
		s.declareExchange(f)
	case wire.OpDeleteExchange:
		s.deleteExchange(f)
	case wire.OpDeclareQueue:
		s.declareQueue(f)
	case wire.OpDeleteQueue:
		s.deleteQueue(f)
	case wire.OpPurgeQueue:
		s.purgeQueue(f)
	case wire.OpBind, wire.OpUnbind:
		s.bind(f)
	case wire.OpSubscribe:
		s.subscribe(f)
	case wire.OpUnsubscribe:
		s.unsubscribe(f)
	case wire.OpGet:
		s.getOne(f)
	default:
		if f.Op.Known() {
			s.fatal(0, faultOf(wire.CommandInvalid, "%s is not allowed here", f.Op))
			return
		}
		s.unknown(f)
	}
}

// unknown answers an op that version 1 does not have. Its request id is given back when it has one.
func (s *Session) unknown(f wire.Frame) {
	s.fail(wire.Request(f.Header, "rid"), faultOf(wire.NotImplemented, "unknown op %s", f.Op))
}

func (s *Session) pong() {
	s.answered.Store(true)
	s.o.Lock()
	s.o.Put(wire.AppendEmpty(s.o.Tail(wire.Overhead), wire.OpPong))
	s.unlock()
}

// decode reads the header of a request. When it is malformed the client is told, with the request's
// id if that can be read, and false comes back.
func (s *Session) decode(f wire.Frame, m wire.Header) bool {
	err := tooLarge(f)
	if err == nil {
		err = wire.Decode(f.Header, m)
	}
	if err != nil {
		s.fail(wire.Request(f.Header, "rid"), malformed(err))
		return false
	}
	return true
}

// tooLarge is the error for a header above the limit.
func tooLarge(f wire.Frame) error {
	if len(f.Header) <= wire.MaxHeader {
		return nil
	}
	return &wire.Error{Code: wire.SyntaxError, Text: "header is larger than 131072 bytes"}
}

// closed answers the client's close.
func (s *Session) closed() {
	s.endTurn()
	s.leave()
	s.stage(wire.OpClose, &wire.Close{Code: wire.ReplySuccess, Msg: "bye"})
	s.end()
}

// leave gives everything back to the broker: no frame comes from it afterwards. The broker still waits
// for the connection to be gone, so that a goodbye is sent before it stops.
func (s *Session) leave() {
	if c := s.conn.Load(); c != nil {
		c.Quiesce()
	}
	s.b.HoldGuest(&s.guest, -s.guest)
	s.wait.drop()
	s.o.Lock()
	s.quiet = true
	s.o.Unlock()
}

// end closes the connection after what is staged.
func (s *Session) end() {
	s.state = ended
	s.deadline.Store(0)
	s.heartbeat.Store(0)
	s.o.CloseAfterFlush()
}

// shut is the broker ending the connection: the client hears why and may answer. Reader's goroutine.
func (s *Session) shut(e *broker.Error) {
	f := refused(e)
	switch s.state {
	case open:
		s.log(slog.LevelInfo, "connection closed by the broker", f)
		s.endTurn()
		s.leave()
		s.stage(wire.OpClose, &wire.Close{Code: f.code, Msg: f.text})
		s.state = closing
		s.deadline.Store(s.opt.Now() + int64(closeTimeout))
		s.reading.Free() // the client's close must be read
	case atPreface, atHello, atRefusal:
		s.fatal(0, f)
	}
}

// carryOut settles what acks and nacks collected, each unknown tag answered with its own error.
func (s *Session) carryOut() {
	if !s.settling {
		return
	}
	s.settling = false
	for {
		e := s.ch.Settle()
		if e == nil {
			return
		}
		s.failed(0, e)
	}
}

// endTurn has the broker carry out what the turn collected.
func (s *Session) endTurn() {
	c := s.conn.Load()
	if c == nil || s.state != open {
		return
	}
	s.settling = false
	for {
		_, e := c.EndTurn()
		if e == nil {
			return
		}
		s.failed(0, e)
	}
}

// pushBack stops reading from a client that asks for answers without reading them, and has the publishes wait of
// one that goes on after a flow frame. Pausing is undone here when its reason went away in between.
func (s *Session) pushBack() {
	if s.answered.Swap(false) && !s.o.Writable() {
		s.pause(pauseBacklog)
		if s.o.Writable() {
			s.resume(pauseBacklog)
		}
	}
	if s.throttle {
		s.slow()
	}
}

// slow has publishes wait for the end of an alarm, if it holds still.
func (s *Session) slow() {
	s.pause(pauseThrottle)
	if s.alarm.Load() == 0 {
		s.resume(pauseThrottle)
	}
}

func (s *Session) pause(r broker.Reason)  { s.reading.Pause(uint32(r)) }
func (s *Session) resume(r broker.Reason) { s.reading.Resume(uint32(r)) }

// isPaused is broker.ConnInfo.Paused: that a client is throttled is the alarm's doing.
func (s *Session) isPaused() (broker.Reason, int64) {
	r := broker.Reason(s.reading.Reasons())
	if r&pauseThrottle != 0 {
		r = r&^pauseThrottle | broker.Reason(s.alarm.Load())
	}
	return r, s.reading.Last()
}

// OnTick is the clock: heartbeats and the deadlines of handshake and close; see loop.Session.
func (s *Session) OnTick(now int64) {
	if d := s.deadline.Load(); d != 0 && now > d && s.deadline.CompareAndSwap(d, 0) {
		s.o.Do(s.overdue)
	}
	h := s.heartbeat.Load()
	if h == 0 {
		return
	}
	switch paused := broker.Reason(s.reading.Stops()); {
	case paused&^pauseBacklog != 0:
		s.alive.Store(now) // nothing is read: its silence says nothing
	case paused != 0: // that it takes its answers is then its sign of life
		s.alive.Store(max(s.alive.Load(), s.o.LastWrite()))
	}
	if now-max(s.o.LastRead(), s.alive.Load()) > 2*h {
		s.o.Abort(errDead)
		return
	}
	if now-s.o.LastWrite() >= h/2 && s.o.Writable() {
		s.o.Lock()
		if !s.quiet {
			s.o.Put(wire.AppendEmpty(s.o.Tail(wire.Overhead), wire.OpPing))
		}
		if s.o.Unlock() {
			s.o.Flush()
		}
	}
}

var (
	errDead  = errors.New("no heartbeat from the client")
	errClose = errors.New("the client did not answer close")
)

// overdue ends a connection whose deadline passed. Reader's goroutine.
func (s *Session) overdue() {
	switch s.state {
	case atPreface, atHello:
		s.fatal(0, faultOf(wire.CommandInvalid, "no hello within %s", s.opt.HandshakeTimeout))
	case atRefusal:
		s.endFor(0, faultOf(wire.AccessRefused, "login refused"))
	case closing:
		s.state = ended
		s.o.Abort(errClose)
	}
}

// OnDrained lets deliveries go on after a backlog; see loop.Session.
func (s *Session) OnDrained() {
	s.resume(pauseBacklog)
	if c := s.conn.Load(); c != nil {
		c.Drained()
	}
}

// OnClose gives everything back; see loop.Session.
func (s *Session) OnClose(err error) {
	if s.state == open {
		s.opt.Log.Warn("connection lost", "peer", name(s.o), "user", s.user, "vhost", s.vhost, "error", err)
	}
	s.state = ended
	s.deadline.Store(0)
	s.heartbeat.Store(0)
	s.leave()
	if c := s.conn.Load(); c != nil {
		c.Close()
	}
}

// name is how operators see the connection.
func name(o session.Outbox) string {
	return addr(o.RemoteAddr()) + " -> " + addr(o.LocalAddr())
}

func addr(a net.Addr) string {
	if a == nil {
		return "unknown"
	}
	return a.String()
}
