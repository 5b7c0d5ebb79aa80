package fmq1

import "github.com/tinylib/msgp/msgp"

// This file has the ops that come once a message. They are written by hand on msgp's primitives
// because generated code copies every string and parses the property and header maps, while these
// borrow: byte slices alias the header they were decoded from, and the two maps stay in the
// publisher's encoding. Publish also collects in the same pass what a broker must know of the
// properties.
//
// Decode accepts any encoding and any order of keys, and skips unknown ones; of a repeated key the
// last one counts. AppendTo writes a header map, leaving out zero fields.

// Publish is op 0x20. The payload is the message body.
type Publish struct {
	Seq        uint64 // 0: no confirm wanted
	Exchange   []byte
	Key        []byte
	Mandatory  bool
	Persistent bool
	Props      []byte // a complete map, nil when absent
	Headers    []byte // a complete map, nil when absent

	// Found in Props by Decode; AppendTo does not look at them.
	Priority   uint8
	Expiration int64  // ms, negative when absent: 0 is a time to live
	UserID     []byte // empty when absent
	ReplyTo    []byte // likewise
}

// Decode reads a publish. Props and Headers are checked as a whole: what it accepts can be delivered
// over AMQP 0-9-1. Known properties have their types, the rest of Props and all of Headers anything
// that a field table can carry. Errors are *Error with code SyntaxError.
func (m *Publish) Decode(b []byte) error {
	*m = Publish{Expiration: -1}
	n, b, err := mapHeader(b)
	if err != nil {
		return err
	}
	for ; n > 0; n-- {
		var key []byte
		if key, b, err = readKey(b); err != nil {
			return err
		}
		switch string(key) {
		case "seq":
			m.Seq, b, err = readUint(b)
		case "exchange":
			m.Exchange, b, err = readName(b)
		case "key":
			m.Key, b, err = readName(b)
		case "mandatory":
			m.Mandatory, b, err = msgp.ReadBoolBytes(b)
		case "persistent":
			m.Persistent, b, err = msgp.ReadBoolBytes(b)
		case "props":
			if len(b) > 0 && b[0] == emptyMap {
				m.Props, b = b[:1], b[1:]
				break
			}
			m.Props, b, err = m.readProps(b)
		case "headers":
			m.Headers, b, err = readTable(b)
		default:
			b, err = skip(b, 0)
		}
		if err != nil {
			return fieldError(string(key), err)
		}
	}
	if len(b) > 0 {
		return errRest
	}
	return nil
}

// HasHeaders reports whether the publisher gave any application header.
func (m *Publish) HasHeaders() bool { return len(m.Headers) > 0 && m.Headers[0] != emptyMap }

// readProps takes the property map and notes what m wants to know of it.
func (m *Publish) readProps(b []byte) (raw, rest []byte, err error) {
	m.Priority, m.Expiration, m.UserID, m.ReplyTo = 0, -1, nil, nil
	if err = isMap(b); err != nil {
		return nil, b, err
	}
	n, rest, err := mapHeader(b)
	if err != nil {
		return nil, b, err
	}
	for ; n > 0; n-- {
		var key, s []byte
		if key, rest, err = tableKey(rest); err != nil {
			return nil, b, err
		}
		var v uint64
		switch string(key) {
		case "content_type", "content_encoding", "correlation_id", "message_id", "type", "app_id":
			_, rest, err = readName(rest)
		case "reply_to":
			if s, rest, err = readName(rest); err == nil {
				m.ReplyTo = s
			}
		case "user_id":
			if s, rest, err = readName(rest); err == nil {
				m.UserID = s
			}
		case "expiration":
			if v, rest, err = readUint(rest); err == nil {
				if m.Expiration = int64(v); m.Expiration < 0 {
					err = errBig
				}
			}
		case "timestamp":
			if v, rest, err = readUint(rest); err == nil && int64(v) < 0 {
				err = errBig
			}
		case "priority":
			if v, rest, err = readUint(rest); err == nil {
				if m.Priority = uint8(v); v > 255 {
					err = syntaxError("field 'priority' is above 255: %d", v)
				}
			}
		default:
			rest, err = skipTable(rest, 1)
		}
		if err != nil {
			return nil, b, fieldError(string(key), err)
		}
	}
	return b[:len(b)-len(rest)], rest, nil
}

// readName takes a str that AMQP carries as a short string.
func readName(b []byte) (s, rest []byte, err error) {
	if len(b) > 0 && b[0]&0xe0 == 0xa0 {
		if n := 1 + int(b[0]&0x1f); n <= len(b) {
			return b[1:n], b[n:], nil
		}
		return nil, b, errShort
	}
	if s, rest, err = msgp.ReadStringZC(b); err != nil {
		return nil, b, err
	}
	if len(s) > MaxName {
		return nil, b, syntaxError("a name or property of %d bytes is longer than %d", len(s), MaxName)
	}
	return s, rest, nil
}

// AppendTo appends the header map.
func (m *Publish) AppendTo(dst []byte) []byte {
	at := len(dst)
	dst = append(dst, emptyMap)
	if m.Seq != 0 {
		dst[at]++
		dst = msgp.AppendUint64(append(dst, "\xa3seq"...), m.Seq)
	}
	if len(m.Exchange) > 0 {
		dst[at]++
		dst = msgp.AppendStringFromBytes(append(dst, "\xa8exchange"...), m.Exchange)
	}
	if len(m.Key) > 0 {
		dst[at]++
		dst = msgp.AppendStringFromBytes(append(dst, "\xa3key"...), m.Key)
	}
	if m.Mandatory {
		dst[at]++
		dst = append(dst, "\xa9mandatory\xc3"...)
	}
	if m.Persistent {
		dst[at]++
		dst = append(dst, "\xaapersistent\xc3"...)
	}
	return appendMaps(dst, at, m.Props, m.Headers)
}

// appendMaps adds props and headers to the header map that starts at dst[at], unless they are empty.
func appendMaps(dst []byte, at int, props, headers []byte) []byte {
	if len(props) > 0 && props[0] != emptyMap {
		dst[at]++
		dst = append(append(dst, "\xa5props"...), props...)
	}
	if len(headers) > 0 && headers[0] != emptyMap {
		dst[at]++
		dst = append(append(dst, "\xa7headers"...), headers...)
	}
	return dst
}

// Overhead is how much a header from AppendTo of Publish, Deliver, GetOK or Return can be longer
// than the names, maps and texts in it, with the frame around it.
const Overhead = 160

// Deliver is op 0x33. The payload is the message body.
type Deliver struct {
	Sub         uint64
	Tag         uint64
	Redelivered bool
	Exchange    []byte
	Key         []byte
	Props       []byte // a complete map, nil when absent
	Headers     []byte // a complete map, nil when absent
}

// AppendTo appends the header map.
func (m *Deliver) AppendTo(dst []byte) []byte {
	at := len(dst)
	dst = msgp.AppendUint64(append(dst, "\x82\xa3sub"...), m.Sub)
	dst = msgp.AppendUint64(append(dst, "\xa3tag"...), m.Tag)
	if m.Redelivered {
		dst[at]++
		dst = append(dst, "\xabredelivered\xc3"...)
	}
	if len(m.Exchange) > 0 {
		dst[at]++
		dst = msgp.AppendStringFromBytes(append(dst, "\xa8exchange"...), m.Exchange)
	}
	if len(m.Key) > 0 {
		dst[at]++
		dst = msgp.AppendStringFromBytes(append(dst, "\xa3key"...), m.Key)
	}
	return appendMaps(dst, at, m.Props, m.Headers)
}

// Decode reads a deliver. Errors are *Error with code SyntaxError.
func (m *Deliver) Decode(b []byte) error {
	*m = Deliver{}
	n, b, err := mapHeader(b)
	if err != nil {
		return err
	}
	for ; n > 0; n-- {
		var key []byte
		if key, b, err = readKey(b); err != nil {
			return err
		}
		switch string(key) {
		case "sub":
			m.Sub, b, err = readUint(b)
		case "tag":
			m.Tag, b, err = readUint(b)
		case "redelivered":
			m.Redelivered, b, err = msgp.ReadBoolBytes(b)
		case "exchange":
			m.Exchange, b, err = msgp.ReadStringZC(b)
		case "key":
			m.Key, b, err = msgp.ReadStringZC(b)
		case "props":
			m.Props, b, err = readMap(b)
		case "headers":
			m.Headers, b, err = readMap(b)
		default:
			b, err = skip(b, 0)
		}
		if err != nil {
			return fieldError(string(key), err)
		}
	}
	if len(b) > 0 {
		return errRest
	}
	return nil
}

// GetOK is op 0x38. The payload is the message body.
type GetOK struct {
	RID         uint64
	Tag         uint64
	Redelivered bool
	Exchange    []byte
	Key         []byte
	Remaining   uint64
	Props       []byte // a complete map, nil when absent
	Headers     []byte // a complete map, nil when absent
}

// AppendTo appends the header map.
func (m *GetOK) AppendTo(dst []byte) []byte {
	at := len(dst)
	dst = msgp.AppendUint64(append(dst, "\x82\xa3rid"...), m.RID)
	dst = msgp.AppendUint64(append(dst, "\xa3tag"...), m.Tag)
	if m.Redelivered {
		dst[at]++
		dst = append(dst, "\xabredelivered\xc3"...)
	}
	if len(m.Exchange) > 0 {
		dst[at]++
		dst = msgp.AppendStringFromBytes(append(dst, "\xa8exchange"...), m.Exchange)
	}
	if len(m.Key) > 0 {
		dst[at]++
		dst = msgp.AppendStringFromBytes(append(dst, "\xa3key"...), m.Key)
	}
	if m.Remaining != 0 {
		dst[at]++
		dst = msgp.AppendUint64(append(dst, "\xa9remaining"...), m.Remaining)
	}
	return appendMaps(dst, at, m.Props, m.Headers)
}

// Decode reads a get_ok. Errors are *Error with code SyntaxError.
func (m *GetOK) Decode(b []byte) error {
	*m = GetOK{}
	n, b, err := mapHeader(b)
	if err != nil {
		return err
	}
	for ; n > 0; n-- {
		var key []byte
		if key, b, err = readKey(b); err != nil {
			return err
		}
		switch string(key) {
		case "rid":
			m.RID, b, err = readUint(b)
		case "tag":
			m.Tag, b, err = readUint(b)
		case "redelivered":
			m.Redelivered, b, err = msgp.ReadBoolBytes(b)
		case "exchange":
			m.Exchange, b, err = msgp.ReadStringZC(b)
		case "key":
			m.Key, b, err = msgp.ReadStringZC(b)
		case "remaining":
			m.Remaining, b, err = readUint(b)
		case "props":
			m.Props, b, err = readMap(b)
		case "headers":
			m.Headers, b, err = readMap(b)
		default:
			b, err = skip(b, 0)
		}
		if err != nil {
			return fieldError(string(key), err)
		}
	}
	if len(b) > 0 {
		return errRest
	}
	return nil
}

// Return is op 0x22: a mandatory message that no queue received. The payload is its body.
type Return struct {
	Seq      uint64 // of the publish, 0 when it wanted no confirm
	Code     uint16
	Msg      []byte
	Exchange []byte
	Key      []byte
	Props    []byte // a complete map, nil when absent
	Headers  []byte // a complete map, nil when absent
}

// AppendTo appends the header map.
func (m *Return) AppendTo(dst []byte) []byte {
	at := len(dst)
	dst = msgp.AppendUint16(append(dst, "\x82\xa4code"...), m.Code)
	dst = msgp.AppendStringFromBytes(append(dst, "\xa3msg"...), m.Msg)
	if m.Seq != 0 {
		dst[at]++
		dst = msgp.AppendUint64(append(dst, "\xa3seq"...), m.Seq)
	}
	if len(m.Exchange) > 0 {
		dst[at]++
		dst = msgp.AppendStringFromBytes(append(dst, "\xa8exchange"...), m.Exchange)
	}
	if len(m.Key) > 0 {
		dst[at]++
		dst = msgp.AppendStringFromBytes(append(dst, "\xa3key"...), m.Key)
	}
	return appendMaps(dst, at, m.Props, m.Headers)
}

// Decode reads a return. Errors are *Error with code SyntaxError.
func (m *Return) Decode(b []byte) error {
	*m = Return{}
	n, b, err := mapHeader(b)
	if err != nil {
		return err
	}
	for ; n > 0; n-- {
		var key []byte
		if key, b, err = readKey(b); err != nil {
			return err
		}
		switch string(key) {
		case "seq":
			m.Seq, b, err = readUint(b)
		case "code":
			m.Code, b, err = msgp.ReadUint16Bytes(b)
		case "msg":
			m.Msg, b, err = msgp.ReadStringZC(b)
		case "exchange":
			m.Exchange, b, err = msgp.ReadStringZC(b)
		case "key":
			m.Key, b, err = msgp.ReadStringZC(b)
		case "props":
			m.Props, b, err = readMap(b)
		case "headers":
			m.Headers, b, err = readMap(b)
		default:
			b, err = skip(b, 0)
		}
		if err != nil {
			return fieldError(string(key), err)
		}
	}
	if len(b) > 0 {
		return errRest
	}
	return nil
}

// Confirm is op 0x21: every publish up to UpTo is safe, or the one Seq was refused.
type Confirm struct {
	UpTo uint64
	Seq  uint64
	Nack bool
	Code uint16
	Msg  []byte
}

// AppendTo appends the header map.
func (m *Confirm) AppendTo(dst []byte) []byte {
	if !m.Nack {
		return msgp.AppendUint64(append(dst, "\x81\xa4upto"...), m.UpTo)
	}
	dst = msgp.AppendUint64(append(dst, "\x84\xa3seq"...), m.Seq)
	dst = msgp.AppendUint16(append(dst, "\xa4nack\xc3\xa4code"...), m.Code)
	return msgp.AppendStringFromBytes(append(dst, "\xa3msg"...), m.Msg)
}

// Decode reads a confirm. Errors are *Error with code SyntaxError.
func (m *Confirm) Decode(b []byte) error {
	*m = Confirm{}
	n, b, err := mapHeader(b)
	if err != nil {
		return err
	}
	for ; n > 0; n-- {
		var key []byte
		if key, b, err = readKey(b); err != nil {
			return err
		}
		switch string(key) {
		case "upto":
			m.UpTo, b, err = readUint(b)
		case "seq":
			m.Seq, b, err = readUint(b)
		case "nack":
			m.Nack, b, err = msgp.ReadBoolBytes(b)
		case "code":
			m.Code, b, err = msgp.ReadUint16Bytes(b)
		case "msg":
			m.Msg, b, err = msgp.ReadStringZC(b)
		default:
			b, err = skip(b, 0)
		}
		if err != nil {
			return fieldError(string(key), err)
		}
	}
	if len(b) > 0 {
		return errRest
	}
	return nil
}

// Settle is op 0x35 (ack) and op 0x36 (nack). Requeue means something in a nack only.
type Settle struct {
	Tag      uint64
	Multiple bool
	Requeue  bool
}

// AppendTo appends the header map.
func (m *Settle) AppendTo(dst []byte) []byte {
	at := len(dst)
	dst = msgp.AppendUint64(append(dst, "\x81\xa3tag"...), m.Tag)
	if m.Multiple {
		dst[at]++
		dst = append(dst, "\xa8multiple\xc3"...)
	}
	if m.Requeue {
		dst[at]++
		dst = append(dst, "\xa7requeue\xc3"...)
	}
	return dst
}

// Decode reads an ack or a nack. Errors are *Error with code SyntaxError.
func (m *Settle) Decode(b []byte) error {
	*m = Settle{}
	n, b, err := mapHeader(b)
	if err != nil {
		return err
	}
	for ; n > 0; n-- {
		var key []byte
		if key, b, err = readKey(b); err != nil {
			return err
		}
		switch string(key) {
		case "tag":
			m.Tag, b, err = readUint(b)
		case "multiple":
			m.Multiple, b, err = msgp.ReadBoolBytes(b)
		case "requeue":
			m.Requeue, b, err = msgp.ReadBoolBytes(b)
		default:
			b, err = skip(b, 0)
		}
		if err != nil {
			return fieldError(string(key), err)
		}
	}
	if len(b) > 0 {
		return errRest
	}
	return nil
}

// Credit is op 0x32: so many more deliveries for a subscription.
type Credit struct {
	Sub    uint64
	Credit uint64
}

// AppendTo appends the header map.
func (m *Credit) AppendTo(dst []byte) []byte {
	dst = msgp.AppendUint64(append(dst, "\x82\xa3sub"...), m.Sub)
	return msgp.AppendUint64(append(dst, "\xa6credit"...), m.Credit)
}

// Decode reads a credit. Errors are *Error with code SyntaxError.
func (m *Credit) Decode(b []byte) error {
	*m = Credit{}
	n, b, err := mapHeader(b)
	if err != nil {
		return err
	}
	for ; n > 0; n-- {
		var key []byte
		if key, b, err = readKey(b); err != nil {
			return err
		}
		switch string(key) {
		case "sub":
			m.Sub, b, err = readUint(b)
		case "credit":
			m.Credit, b, err = readUint(b)
		default:
			b, err = skip(b, 0)
		}
		if err != nil {
			return fieldError(string(key), err)
		}
	}
	if len(b) > 0 {
		return errRest
	}
	return nil
}
