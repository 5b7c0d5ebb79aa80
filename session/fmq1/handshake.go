package fmq1

import (
	"log/slog"
	"time"

	"github.com/firemq/firemq/broker"
	wire "github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/session"
)

// capabilities are what version 1 servers support.
var capabilities = []string{"confirms", "credit", "mandatory", "exchange-bindings", "dead-letter", "ttl"}

// beforeWelcome handles a frame of a client that has not logged in. Errors are fatal, but an unknown
// op and the heartbeat ops are no errors before hello either.
func (s *Session) beforeWelcome(f wire.Frame) {
	switch {
	case f.Op == wire.OpHello:
		s.hello(f)
	case f.Op == wire.OpPing:
		s.pong()
	case f.Op == wire.OpPong:
	case f.Op == wire.OpClose:
		s.closed()
	case !f.Op.Known():
		s.unknown(f)
	default:
		rid := uint64(0)
		if !f.Op.HasPayload() {
			rid = wire.Request(f.Header, "rid")
		}
		s.fatal(rid, faultOf(wire.CommandInvalid, "%s before hello", f.Op))
	}
}

// hello logs the client in.
func (s *Session) hello(f wire.Frame) {
	var m wire.Hello
	if err := wire.Decode(f.Header, &m); err != nil {
		s.fatal(0, malformed(err))
		return
	}
	client, err := wire.DecodeTable(m.Client)
	if err != nil {
		s.fatal(0, malformed(err))
		return
	}
	if m.Ver != wire.Version {
		s.fatal(0, faultOf(wire.NotImplemented, "protocol version %d is not supported, this server speaks %d", m.Ver, wire.Version))
		return
	}
	if m.Auth.Mech != "plain" && m.Auth.Mech != "" {
		s.fatal(0, faultOf(wire.NotImplemented, "authentication mechanism '%.32s' is not supported, this server has plain", m.Auth.Mech))
		return
	}
	if m.VHost == "" {
		m.VHost = s.opt.VHost
	}
	s.user, s.vhost = session.Clip(m.Auth.User), session.Clip(m.VHost) // who is refused is named, too
	info := &broker.ConnInfo{
		Protocol: "FMQ1", Name: name(s.o), VHost: m.VHost, Remote: s.o.RemoteAddr(), Local: s.o.LocalAddr(), Properties: client,
		AlarmsAtOnce: true, Memory: sessionMemory, Paused: s.isPaused,
	}
	info.Mechanism, info.FrameMax, info.ChannelMax = "PLAIN", s.opt.MaxFrame, 1
	info.Heartbeat = uint16(min(negotiate(m.Heartbeat, s.opt.Heartbeat), 1<<16-1))
	if o, ok := s.o.(session.Counting); ok {
		info.Octets = func() (n broker.Octets) {
			n.Received, n.Sent, n.Reads, n.Writes = o.Octets()
			return n
		}
	}
	user, e := s.b.Login(m.Auth.User, m.Auth.Pass, info)
	if e != nil {
		s.refuseLogin(e)
		return
	}
	s.b.HoldGuest(&s.guest, -s.guest)
	s.kept = 0
	conn, e := s.b.Connect(user, (*peer)(s), info)
	if e != nil {
		s.fatal(0, refused(e))
		return
	}
	s.conn.Store(conn)
	s.wait.newcomer = conn.Newcomer()
	s.user, s.vhost = user.Name(), m.VHost
	if s.ch, e = conn.Open(1, (*sink)(s)); e != nil {
		s.fatal(0, refused(e))
		return
	}
	if e := s.ch.Confirms(); e != nil {
		panic("BUG: fmq1: a new channel refuses confirms: " + e.Text)
	}
	s.opt.Log.Info("connection open", "peer", info.Name, "user", s.user, "vhost", s.vhost)
	s.welcome(info.Name, negotiate(m.Heartbeat, s.opt.Heartbeat))
}

// refuseLogin ends the connection, one that may not even try after a pause.
func (s *Session) refuseLogin(e *broker.Error) {
	f := refused(e)
	s.log(slog.LevelWarn, "login refused", fault{f.code, e.Cause})
	if e.Kind != broker.LoginLimited {
		s.endFor(0, f)
		return
	}
	s.state = atRefusal
	s.deadline.Store(s.opt.Now() + int64(broker.LoginPause))
}

// negotiate gives the heartbeat interval in seconds: the smaller of the two, none when the client
// wants none, and the client's own when only the server would do without.
func negotiate(client uint32, server time.Duration) uint32 {
	if server <= 0 {
		return client
	}
	return min(client, uint32(max(1, server/time.Second)))
}

func (s *Session) welcome(id string, heartbeat uint32) {
	s.deadline.Store(0)
	s.alive.Store(s.opt.Now())
	s.heartbeat.Store(int64(heartbeat) * int64(time.Second))
	s.state = open
	m := wire.Welcome{
		Ver: wire.Version, Server: wire.Server{Name: "firemq", Version: s.opt.Version}, ConnID: id,
		Heartbeat: heartbeat, MaxFrame: s.opt.MaxFrame, Caps: capabilities,
	}
	s.o.Lock()
	s.o.Put(wire.Append(s.o.Tail(wire.Overhead+m.Msgsize()), wire.OpWelcome, &m))
	s.welcomed = true
	if s.alarm.Load() != 0 {
		s.stageFlow(true)
	}
	s.unlock()
}
