package amqp

import (
	"bytes"
	"fmt"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/pool"
)

// earlyFactor bounds what a content header alone makes us allocate: the buffer of a message is
// taken when a share of 1/earlyFactor of its body is here.
const earlyFactor = 8

// earlyPiece is how many bytes are taken at once, at most, for what comes before that: as many as there are already.
// They are not put together before the message is made: to copy them again and again would leave as much garbage, of
// which an alarm knows nothing.
const earlyPiece = 64 << 10

// publishMethod is basic.publish. When the whole content follows in rest it is published from there,
// in place, and its length returned; else the channel collects it frame by frame.
func (ch *channel) publishMethod(args, rest []byte) int {
	s := ch.s
	var m amqp.BasicPublish
	if err := m.Decode(args); err != nil {
		s.undecoded(err, args, amqp.IDBasicPublish)
		return 0
	}
	if m.Immediate {
		ch.fail(amqp.CodeNotImplemented, "immediate=true", amqp.IDBasicPublish)
		return 0
	}
	if props, body, n := wholeContent(rest, ch.id, s.frameMax); n > 0 && len(body) <= s.opt.MaxMessageSize {
		if mode, plain := amqp.PlainProps(props); plain {
			attr := message.Attributes{Encoding: message.AMQP, Persistent: mode == persistent, Expiration: -1}
			msg := message.New(attr, m.Exchange, m.RoutingKey, props, len(body))
			copy(msg.Body(), body)
			ch.publish(msg, m.Mandatory, nil)
			return n
		}
		var l letter
		props, ok := ch.examine(props, &l)
		if !ok {
			return n
		}
		msg := message.NewBlind(l.attr, m.Exchange, m.RoutingKey, l.blind, props, len(body))
		copy(msg.Body(), body)
		ch.publish(msg, m.Mandatory, &l)
		return n
	}
	c := &ch.content
	c.stage = expectContentHeader
	c.mandatory = m.Mandatory
	c.exchange, c.key = len(m.Exchange), len(m.RoutingKey)
	c.meta = append(append(c.meta[:0], m.Exchange...), m.RoutingKey...)
	return 0
}

// persistent is the delivery-mode of messages that survive a restart; any other is transient.
const persistent = 2

// wholeContent takes a content header and its body, in one frame or none, off the start of src;
// n is 0 for everything that is not exactly that.
func wholeContent(src []byte, channel uint16, frameMax uint32) (props, body []byte, n int) {
	f, n, err := amqp.Next(src, frameMax)
	if n == 0 || err != nil || f.Type != amqp.FrameHeader || f.Channel != channel {
		return nil, nil, 0
	}
	h, ok := amqp.CutContentHeader(f.Payload)
	if !ok || h.Class != amqp.ClassBasic || h.Weight != 0 {
		return nil, nil, 0
	}
	if h.BodySize == 0 {
		return h.Props, nil, n
	}
	f, k, err := amqp.Next(src[n:], frameMax)
	if k == 0 || err != nil || f.Type != amqp.FrameBody || f.Channel != channel || uint64(len(f.Payload)) != h.BodySize {
		return nil, nil, 0
	}
	return h.Props, f.Payload, n + k
}

// letter is what property bytes say to the broker.
type letter struct {
	attr   message.Attributes
	userID string
	fault  string   // see broker.Publish
	keys   [][]byte // of CC and BCC
	blind  []byte   // of BCC
}

// examine reads from property bytes what the broker must know. It gives the bytes to store: others than
// came when a BCC header must go, a reply-to is rewritten or there is a delay; those are valid until the next call. False:
// they are malformed, and the connection is closed.
func (ch *channel) examine(props []byte, l *letter) (stored []byte, ok bool) {
	scan, err := amqp.ScanProps(props)
	if err != nil {
		ch.s.log.Warn("malformed message properties", "peer", ch.s.info.Name, "user", ch.s.login(), "vhost", ch.s.info.VHost, "channel", ch.id, "error", err)
		ch.fail(amqp.CodeInternalError, "", 0)
		return nil, false
	}
	l.attr = message.Attributes{
		Encoding:   message.AMQP,
		Persistent: scan.DeliveryMode == persistent,
		Priority:   scan.Priority,
		HasHeaders: len(scan.Headers) > 0,
		Expiration: -1,
	}
	token := ""
	if string(scan.ReplyTo) == broker.ReplyTo {
		if token = ch.bc.ReplyTo(); token == "" {
			l.fault = broker.NoReplyConsumer
		}
	}
	if scan.Has&table.HasExpiration != 0 {
		ms, why := broker.ParseExpiration(scan.Expiration)
		if why != "" {
			l.complain(fmt.Sprintf("invalid expiration '%s': %s", scan.Expiration, why))
		}
		l.attr.Expiration = ms
	}
	bcc := false
	if bytes.Contains(scan.Headers, headerCC) {
		h := amqp.PropertyCodec{}.Headers(nil, props)
		selected, fault := broker.Select(h)
		l.complain(fault)
		l.keys, l.blind, bcc = selected.Keys, selected.Blind, selected.BCC
	}
	if scan.Has&table.HasUserID != 0 {
		own := ch.conn.User()
		if l.userID = own; string(scan.UserID) != own {
			l.userID = string(scan.UserID)
		}
		if l.userID == "" {
			// To the broker an empty one is none; it is never a login's name.
			l.complain(fmt.Sprintf("user_id property set to '' but authenticated user was '%s'", own))
		}
	}
	delayed := bytes.Contains(scan.Headers, headerDelay)
	if token == "" && !bcc && !delayed {
		return props, true
	}
	p, err := amqp.PropertyCodec{}.Decode(props)
	if err != nil {
		panic("BUG: amqp: properties that were scanned do not decode: " + err.Error())
	}
	if delayed {
		headers, differ := ch.s.b.Delay(&l.attr, p.Headers)
		if p.Headers = headers; !differ && token == "" && !bcc {
			return props, true
		}
	}
	if bcc {
		p.Headers = broker.WithoutBCC(p.Headers)
	}
	if token != "" {
		p.ReplyTo = token
	}
	ch.s.rewritten = amqp.PropertyCodec{}.Append(ch.s.rewritten[:0], &p)
	return ch.s.rewritten, true
}

// headerCC is in the header bytes of every message that has a CC or a BCC header, headerDelay in
// those of one that may ask for a delay.
var (
	headerCC    = []byte("CC")
	headerDelay = []byte("x-delay")
)

// complain notes the first fault.
func (l *letter) complain(fault string) {
	if l.fault == "" {
		l.fault = fault
	}
}

// publish gives a complete message to the broker, and the reference with it. l is nil for one without
// properties that matter.
func (ch *channel) publish(m *message.Message, mandatory bool, l *letter) {
	p := broker.Publish{Msg: m, Mandatory: mandatory}
	if l != nil {
		p.UserID, p.Fault, p.Keys = l.userID, l.fault, l.keys
	}
	if mandatory || ch.confirms {
		ch.s.answered = true
	}
	if ch.confirms {
		ch.seq++
		p.Seq = ch.seq
	}
	if e := ch.bc.Publish(&p); e != nil {
		ch.refused(e, amqp.IDBasicPublish)
	}
}

// channelContent carries out a header or body frame of a running connection's channel.
func (s *Session) channelContent(f amqp.Frame) {
	ch := s.channel(f.Channel)
	switch {
	case ch != nil && ch.bc == nil: // closing: ignored
	case ch == nil || ch.content.stage == expectMethod:
		s.fail(amqp.CodeUnexpectedFrame, "expected method frame, got non method frame instead", 0)
	case ch.content.stage == expectContentHeader && f.Type == amqp.FrameHeader:
		ch.contentHeader(f)
	case ch.content.stage == expectBody && f.Type == amqp.FrameBody:
		ch.bodyFrame(f.Payload)
	default:
		ch.unexpected(f)
	}
}

// unexpected answers a frame that comes in the middle of a content (4.2.6).
func (ch *channel) unexpected(f amqp.Frame) {
	text := "expected content body, got non content body frame instead"
	if ch.content.stage == expectContentHeader {
		text = "expected content header for class 60, got non content header frame instead"
	}
	ch.fail(amqp.CodeUnexpectedFrame, text, amqp.IDBasicPublish)
}

// contentHeader begins a content whose frames came apart. Its size and properties are judged here, so
// that what would be refused is never collected.
func (ch *channel) contentHeader(f amqp.Frame) {
	c := &ch.content
	h, ok := amqp.CutContentHeader(f.Payload)
	if !ok {
		ch.s.unknownFrame(f)
		return
	}
	switch {
	case h.Class != amqp.ClassBasic:
		ch.fail(amqp.CodeUnexpectedFrame, fmt.Sprintf("expected content header for class 60, got one for class %d instead", h.Class), amqp.IDBasicPublish)
		return
	case h.Weight != 0:
		ch.unexpected(f)
		return
	case h.BodySize > maxContent:
		ch.fail(amqp.CodeFrameError, fmt.Sprintf("content body size %d exceeds maximum allowed size %d", h.BodySize, maxContent), amqp.IDBasicPublish)
		return
	case h.BodySize > uint64(ch.s.opt.MaxMessageSize):
		ch.fail(amqp.CodePreconditionFailed, fmt.Sprintf("message size %d is larger than configured max size %d", h.BodySize, ch.s.opt.MaxMessageSize), amqp.IDBasicPublish)
		return
	}
	props, ok := ch.examine(h.Props, &c.letter)
	if !ok {
		return
	}
	ch.conn.Publishing()
	c.meta = append(c.meta, props...)
	c.size, c.got = int(h.BodySize), 0
	c.stage = expectBody
	if c.size == 0 {
		c.makeMessage()
		ch.contentComplete()
		return
	}
	ch.hold(len(c.meta))
}

// hold counts what the content takes while it is not complete; false: there is no more for it, and the
// connection is closed (506).
func (ch *channel) hold(n int) bool {
	if e := ch.conn.Hold(int64(n)); e != nil {
		ch.fail(codeOf(e.Kind), e.Text, amqp.IDBasicPublish)
		return false
	}
	ch.content.held += n
	return true
}

// bodyFrame adds a part of the body.
func (ch *channel) bodyFrame(part []byte) {
	c := &ch.content
	if len(part) > c.size-c.got {
		ch.fail(amqp.CodeFrameError, "content body frame exceeds remaining content size", amqp.IDBasicPublish)
		return
	}
	ch.conn.Publishing()
	if c.msg == nil && (c.got+len(part))*earlyFactor >= c.size {
		if len(part) < c.size && !ch.hold(c.size-c.held) {
			return
		}
		c.makeMessage()
	}
	if c.msg == nil {
		if !ch.keepEarly(part) {
			return
		}
	} else {
		copy(c.msg.Body()[c.got:], part)
	}
	c.got += len(part)
	if c.got == c.size && c.msg != nil {
		ch.contentComplete()
	}
}

// keepEarly adds a part of the body before there is a message; false: see hold.
func (ch *channel) keepEarly(part []byte) bool {
	c := &ch.content
	if n := len(c.early); n > 0 {
		last := c.early[n-1]
		k := min(len(part), cap(last.B)-len(last.B))
		last.B = append(last.B, part[:k]...)
		part = part[k:]
	}
	if len(part) == 0 {
		return true
	}
	size := max(len(part), min(c.got, earlyPiece))
	if !ch.hold(size) {
		return false
	}
	piece := pool.Get(size, pool.Messages)
	piece.B = append(piece.B[:0], part...)
	c.early = append(c.early, piece)
	return true
}

// partialBytes is how much of a body frame must be there for it to be taken before its end is: less
// is cheaper to keep and to look at again.
const partialBytes = 4 << 10

// body is a body frame that was taken in part. Its last octet is taken with the frame's end,
// so that no message is complete before its frames are known to be whole.
type body struct {
	channel uint16
	left    int // octets of the payload still to come, 0: no such frame
}

// partialBody takes what is there of a body frame whose end is not, so that long bodies are copied once,
// into their message. It returns the length taken, 0: none.
func (s *Session) partialBody(b []byte) int {
	if s.state != running || len(b) < partialBytes || s.wait.on || s.stopped() && !s.conn.MayFinish(len(b)) {
		return 0
	}
	id, size, part, ok := amqp.CutBodyHead(b, s.frameMax)
	if !ok {
		return 0
	}
	ch := s.channel(id)
	if ch == nil || ch.bc == nil || ch.content.stage != expectBody || size > ch.content.size-ch.content.got {
		return 0 // what is wrong, or not wanted, is dealt with as a whole frame
	}
	n := min(len(part), size-1)
	s.body = body{channel: id, left: size - n}
	ch.bodyFrame(part[:n])
	return len(b) - len(part) + n
}

// lastOfBody is the length of what is never taken before all of it is there.
const lastOfBody = 2

// moreBody goes on with a body frame taken in part, and reports whether its end is taken.
func (s *Session) moreBody(b []byte) (n int, whole bool) {
	part, end := b[:min(len(b), s.body.left-1)], false
	if len(b) > s.body.left {
		part, end = b[:s.body.left], true
	}
	if end {
		if err := amqp.CheckEnd(amqp.Frame{Type: amqp.FrameBody, Channel: s.body.channel, Payload: part}, b[s.body.left]); err != nil {
			s.body.left = 0
			s.frameError(err)
			return len(b), true
		}
	}
	s.body.left -= len(part)
	// The channel, or the connection, may have been closed meanwhile.
	if ch := s.channel(s.body.channel); ch != nil && ch.bc != nil && ch.content.stage == expectBody {
		ch.bodyFrame(part)
	}
	if end {
		return len(part) + 1, true
	}
	return len(part), false
}

// makeMessage takes the message's buffer and moves what is collected into it.
func (c *content) makeMessage() {
	names, props := c.meta[:c.exchange+c.key], c.meta[c.exchange+c.key:]
	c.msg = message.NewBlind(c.attr, names[:c.exchange], names[c.exchange:], c.blind, props, c.size)
	n := 0
	for _, piece := range c.early {
		n += copy(c.msg.Body()[n:], piece.B)
	}
	c.dropEarly()
}

func (c *content) dropEarly() {
	for _, piece := range c.early {
		piece.Release()
	}
	c.early = nil
}

func (ch *channel) contentComplete() {
	c := &ch.content
	m, mandatory, l := c.msg, c.mandatory, c.letter
	ch.conn.Hold(-int64(c.held))
	c.reset()
	ch.publish(m, mandatory, &l)
}

// keptMeta is how many bytes of names and properties a channel keeps room for between publishes.
const keptMeta = 1 << 10

func (c *content) reset() {
	meta := c.meta[:0]
	if cap(meta) > keptMeta {
		meta = nil
	}
	*c = content{meta: meta}
}

// dropContent forgets a publish that is not complete.
func (ch *channel) dropContent() {
	if ch.content.msg != nil {
		ch.content.msg.Release()
	}
	ch.content.dropEarly()
	ch.conn.Hold(-int64(ch.content.held))
	ch.content = content{}
}
