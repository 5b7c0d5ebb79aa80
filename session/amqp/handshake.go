package amqp

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/session"
)

const mechanisms = "PLAIN AMQPLAIN"

// otherHeader is how clients of 0-9 announce what is the same protocol.
const otherHeader = "AMQP\x01\x01\x00\x09"

// header answers the first 8 bytes (2.2.4, 4.2.2): connection.start, or for another protocol or
// version our own header and the end. It returns how many bytes it took; 0: more are needed.
func (s *Session) header(b []byte) (n int) {
	n = len(amqp.ProtocolHeader)
	got := string(b[:min(len(b), n)])
	if !strings.HasPrefix(amqp.ProtocolHeader, got) && !strings.HasPrefix(otherHeader, got) {
		s.stage([]byte(amqp.ProtocolHeader))
		s.finish()
		return len(b)
	}
	if len(got) < n {
		return 0
	}
	s.state = starting
	s.send(0, &amqp.ConnectionStart{
		VersionMajor: 0, VersionMinor: 9,
		ServerProperties: table.Append(nil, s.serverProperties()),
		Mechanisms:       []byte(mechanisms),
		Locales:          []byte("en_US"),
	})
	return n
}

// capabilities are what the server can do beyond 0-9-1, under RabbitMQ's names.
var capabilities = []string{
	"authentication_failure_close", "basic.nack", "connection.blocked", "consumer_cancel_notify",
	"consumer_priorities", "direct_reply_to", "exchange_exchange_bindings", "per_consumer_qos", "publisher_confirms",
}

func (s *Session) serverProperties() table.Table {
	var can table.Table
	for _, name := range capabilities {
		can = append(can, table.Field{Name: name, Value: table.BoolValue(true)})
	}
	return table.Table{
		{Name: "capabilities", Value: table.TableValue(can)},
		{Name: "cluster_name", Value: table.StringValue(s.opt.ClusterName)},
		{Name: "copyright", Value: table.StringValue("Copyright (c) the FireMQ authors")},
		{Name: "information", Value: table.StringValue("AMQP 0-9-1 with RabbitMQ's extensions")},
		{Name: "platform", Value: table.StringValue("Go " + runtime.Version())},
		{Name: "product", Value: table.StringValue("FireMQ")},
		{Name: "version", Value: table.StringValue(s.opt.Version)},
	}
}

// connectionMethod carries out a method on channel 0.
func (s *Session) connectionMethod(id amqp.MethodID, args []byte) {
	switch {
	case !id.Known():
		s.fail(amqp.CodeCommandInvalid, "unimplemented method", id)
	case id == amqp.IDConnectionStartOk && s.state == starting:
		s.startOk(args)
	case id == amqp.IDConnectionTuneOk && s.state == tuning:
		s.tuneOk(args)
	case id == amqp.IDConnectionOpen && s.state == opening:
		s.openVHost(args)
	case id == amqp.IDConnectionClose:
		var m amqp.ConnectionClose
		if s.decode(&m, args) {
			s.detach() // exclusive queues are gone before the close-ok
			s.send(0, &amqp.ConnectionCloseOk{})
			s.finish()
		}
	case id == amqp.IDConnectionUpdateSecret && s.state == running:
		// A password is checked once, at the login: a new one changes nothing, but what the user may read
		// is looked at again.
		var m amqp.ConnectionUpdateSecret
		if s.decode(&m, args) {
			s.send(0, &amqp.ConnectionUpdateSecretOk{})
			s.conn.Recheck()
		}
	default:
		s.fail(amqp.CodeChannelError, "unexpected method in connection state "+s.state.String(), id)
	}
}

// decode reads a method's arguments; false: the connection is closed (501).
func (s *Session) decode(m amqp.Method, args []byte) bool {
	if err := m.Decode(args); err != nil {
		s.undecoded(err, args, m.ID())
		return false
	}
	return true
}

// decodeTable reads a table among the arguments of method id; false: the connection is closed (502).
func (s *Session) decodeTable(src []byte, id amqp.MethodID) (table.Table, bool) {
	t, err := table.Decode(src)
	if err != nil {
		s.fail(amqp.CodeSyntaxError, err.Error(), id)
		return nil, false
	}
	return t, true
}

// startOk is the login.
func (s *Session) startOk(args []byte) {
	var m amqp.ConnectionStartOk
	if !s.decode(&m, args) {
		return
	}
	props, ok := s.decodeTable(m.ClientProperties, m.ID())
	if !ok {
		return
	}
	if e := s.holdMore(broker.PropertiesMemory(props)); e != nil {
		s.fail(codeOf(e.Kind), e.Text, m.ID())
		return
	}
	s.info.Properties = props
	s.wantsCancel = capable(props, "consumer_cancel_notify")
	s.wantsBlocked = capable(props, "connection.blocked")
	s.wantsAuthFail = capable(props, "authentication_failure_close")
	s.mechanism = string(m.Mechanism)

	var name, password string
	switch s.mechanism {
	case "PLAIN":
		name, password, ok = plain(m.Response)
	case "AMQPLAIN":
		name, password, ok = amqplain(m.Response)
	default:
		s.fail(amqp.CodeCommandInvalid, fmt.Sprintf("unknown authentication mechanism '%s'", m.Mechanism), m.ID())
		return
	}
	if !ok {
		s.fail(amqp.CodeSyntaxError, fmt.Sprintf("response of authentication mechanism %s is malformed", m.Mechanism), m.ID())
		return
	}
	user, e := s.b.Login(name, password, &s.info)
	if e != nil {
		s.refuseLogin(name, e)
		return
	}
	s.user = user
	s.state = tuning
	s.send(0, &amqp.ConnectionTune{
		ChannelMax: s.opt.ChannelMax, FrameMax: s.opt.FrameMax, Heartbeat: offeredHeartbeat(s.opt.Heartbeat),
	})
}

// refuseLogin ends the connection, one that may not even try after a pause. What it sends meanwhile is ignored.
func (s *Session) refuseLogin(name string, e *broker.Error) {
	s.log.Warn("login refused", "peer", s.info.Name, "user", session.Clip(name), "vhost", s.info.VHost, "code", codeOf(e.Kind), "reason", e.Cause)
	s.state = closing
	if e.Kind == broker.LoginLimited {
		time.AfterFunc(broker.LoginPause, func() { s.out.Do(s.sayRefused) })
		return
	}
	s.sayRefused()
}

// sayRefused tells a client of a refused login about it, if it wants to know.
func (s *Session) sayRefused() {
	switch {
	case s.state != closing: // it has left
	case !s.wantsAuthFail:
		s.finish()
	default:
		s.sendClose(amqp.CodeAccessRefused, "Login was refused using authentication mechanism "+s.mechanism+
			". For details see the broker logfile.", 0)
	}
}

func offeredHeartbeat(d time.Duration) uint16 {
	return uint16(min(max(d/time.Second, 0), 1<<16-1))
}

// capable looks into the capabilities that a client named.
func capable(props table.Table, name string) bool {
	can, _ := props.Get("capabilities")
	v, _ := can.Table.Get(name)
	is, _ := v.AsBool()
	return is
}

// plain reads NUL user NUL password, with nothing in front and nothing behind (RFC 4616 without an
// authorization identity).
func plain(response []byte) (name, password string, ok bool) {
	parts := bytes.Split(response, []byte{0})
	if len(parts) != 3 || len(parts[0]) != 0 {
		return "", "", false
	}
	return string(parts[1]), string(parts[2]), true
}

// amqplain reads a field table with LOGIN and PASSWORD.
func amqplain(response []byte) (name, password string, ok bool) {
	t, err := table.Decode(response)
	if err != nil {
		return "", "", false
	}
	login, _ := t.Get("LOGIN")
	pass, _ := t.Get("PASSWORD")
	text := func(v table.Value) bool { return v.Kind == table.String || v.Kind == table.Bytes }
	return login.Str, pass.Str, text(login) && text(pass)
}

// tuneOk takes the client's limits: they are final, within what was offered.
func (s *Session) tuneOk(args []byte) {
	var m amqp.ConnectionTuneOk
	if !s.decode(&m, args) {
		return
	}
	refuse := func(format string, args ...any) {
		s.fail(amqp.CodeNotAllowed, fmt.Sprintf(format, args...), amqp.IDConnectionTune)
	}
	switch {
	case m.FrameMax == 0 || m.FrameMax > s.opt.FrameMax:
		refuse("negotiated frame_max = %d is higher than the maximum allowed value (%d)", m.FrameMax, s.opt.FrameMax)
		return
	case m.FrameMax < amqp.MinFrameMax:
		refuse("negotiated frame_max = %d is lower than the minimum allowed value (%d)", m.FrameMax, amqp.MinFrameMax)
		return
	case m.ChannelMax == 0:
		refuse("negotiated channel_max = 0 (no limit) is higher than the maximum allowed value (%d)", s.opt.ChannelMax)
		return
	case m.ChannelMax > s.opt.ChannelMax:
		refuse("negotiated channel_max = %d is higher than the maximum allowed value (%d)", m.ChannelMax, s.opt.ChannelMax)
		return
	}
	s.frameMax, s.channelMax, s.heartbeat = m.FrameMax, m.ChannelMax, m.Heartbeat
	s.state = opening
}

// openVHost is connection.open.
func (s *Session) openVHost(args []byte) {
	var m amqp.ConnectionOpen
	if !s.decode(&m, args) {
		return
	}
	s.info.VHost = string(m.VirtualHost)
	s.info.Mechanism, s.info.FrameMax, s.info.ChannelMax, s.info.Heartbeat = s.mechanism, s.frameMax, s.channelMax, s.heartbeat
	s.b.HoldGuest(&s.guest, -s.guest)
	s.kept = 0
	conn, e := s.b.Connect(s.user, &s.peer, &s.info)
	if e != nil {
		s.fail(codeOf(e.Kind), e.Text, m.ID())
		return
	}
	s.conn = conn
	s.peer.conn.Store(conn)
	s.wait.newcomer = conn.Newcomer()
	s.state = running
	s.setLimit(0)
	s.quiet.Store(0)
	s.beat.Store(uint32(s.heartbeat))
	s.log.Info("connection open", "peer", s.info.Name, "user", s.user.Name(), "vhost", s.info.VHost)
	s.send(0, &amqp.ConnectionOpenOk{})
}
