package amqp

import (
	"unicode/utf8"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/frames/amqp"
)

// codeOf is AMQP's reply code for the broker's errors. Whether it closes the channel or the
// connection is the code's own nature (amqp.HardCode).
func codeOf(k broker.Kind) uint16 {
	switch k {
	case broker.NotFound:
		return amqp.CodeNotFound
	case broker.AccessRefused, broker.ExclusiveUse, broker.LoginRefused, broker.LoginLimited:
		return amqp.CodeAccessRefused
	case broker.ResourceLocked:
		return amqp.CodeResourceLocked
	case broker.PreconditionFailed:
		return amqp.CodePreconditionFailed
	case broker.NotAllowed:
		return amqp.CodeNotAllowed
	case broker.NotImplemented:
		return amqp.CodeNotImplemented
	case broker.ResourceError:
		return amqp.CodeResourceError
	case broker.ConnectionForced:
		return amqp.CodeConnectionForced
	}
	return amqp.CodeInternalError
}

// replyText is "NAME - explanation" within a short string: 252 bytes and "..." of a longer one. An
// internal error has no explanation for the client.
func replyText(code uint16, text string) []byte {
	t := []byte(amqp.CodeName(code))
	if code == amqp.CodeInternalError {
		return t
	}
	t = append(append(t, " - "...), text...)
	if len(t) > 255 {
		n := 252
		for n > 0 && !utf8.RuneStart(t[n]) {
			n--
		}
		t = append(t[:n], "..."...)
	}
	return t
}

// undecoded answers arguments of a method that do not decode (501). Like RabbitMQ it does not name
// the method of a malformed string.
func (s *Session) undecoded(err error, args []byte, id amqp.MethodID) {
	if err == amqp.ErrUTF8 {
		s.fail(amqp.CodeFrameError, "Malformed UTF-8 in shortstr", 0)
		return
	}
	// More octets would be cut off again.
	s.fail(amqp.CodeFrameError, "cannot decode "+string(amqp.AppendOctets(nil, args[:min(len(args), 256)])), id)
}

// verbMethod is the method of a verb that the broker collected.
func verbMethod(v broker.Verb) amqp.MethodID {
	switch v {
	case broker.VerbAck:
		return amqp.IDBasicAck
	case broker.VerbNack:
		return amqp.IDBasicNack
	case broker.VerbReject:
		return amqp.IDBasicReject
	}
	return 0
}
