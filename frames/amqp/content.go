package amqp

import (
	"encoding/binary"
	"errors"
	"unsafe"

	"github.com/firemq/firemq/frames/table"
)

// ContentHeader is the payload of a header frame (4.2.6.1). Props aliases the payload: the property
// flags and the property list, the form in which a message keeps its properties.
type ContentHeader struct {
	Class    uint16
	Weight   uint16 // must be 0
	BodySize uint64
	Props    []byte
}

// MinProps is the length of the property flags, the least that Props holds.
const MinProps = 2

// CutContentHeader reads a header frame's payload. False: it is too short.
func CutContentHeader(payload []byte) (h ContentHeader, ok bool) {
	if len(payload) < 12+MinProps {
		return h, false
	}
	return ContentHeader{
		Class:    binary.BigEndian.Uint16(payload),
		Weight:   binary.BigEndian.Uint16(payload[2:]),
		BodySize: binary.BigEndian.Uint64(payload[4:]),
		Props:    payload[12:],
	}, true
}

// HeaderLen is the length of a header frame with these property bytes.
func HeaderLen(props int) int { return FrameOverhead + 12 + props }

// AppendContentHeader writes the header frame of a basic content.
func AppendContentHeader(dst []byte, channel uint16, bodySize int, props []byte) []byte {
	n := 12 + len(props)
	dst = append(dst, FrameHeader, byte(channel>>8), byte(channel),
		byte(n>>24), byte(n>>16), byte(n>>8), byte(n), 0, byte(ClassBasic), 0, 0)
	dst = binary.BigEndian.AppendUint64(dst, uint64(bodySize))
	return append(append(dst, props...), frameEnd)
}

// ErrProperties says that property flags and list do not match, or that a header's type is unknown.
var ErrProperties = errors.New("amqp: malformed properties")

// Scan is what storing and routing a message need of its properties. The byte fields alias them.
type Scan struct {
	Has          table.Present
	DeliveryMode uint8
	Priority     uint8
	Headers      []byte // a field table without its length, checked
	ReplyTo      []byte
	Expiration   []byte
	UserID       []byte
}

// PlainProps reads the most common properties: a delivery mode, or none at all. ok is false for all
// others, also for malformed ones.
func PlainProps(props []byte) (deliveryMode uint8, ok bool) {
	if len(props) == 3 && props[0] == byte(table.HasDeliveryMode>>8) && props[1] == 0 {
		return props[2], true
	}
	return 0, len(props) == 2 && props[0]|props[1] == 0
}

// ScanProps walks over props once, without allocating, and checks all that Decode would. A nil
// error means that Decode succeeds. Errors: ErrProperties, or what table.Check found in the headers.
func ScanProps(props []byte) (s Scan, err error) {
	if len(props) < MinProps {
		return s, ErrProperties
	}
	s.Has = table.Present(binary.BigEndian.Uint16(props))
	if s.Has&^table.AllPresent != 0 {
		return s, ErrProperties // a continuation or an unknown property
	}
	c := propCursor{src: props[MinProps:]}
	for bit := table.HasContentType; bit >= table.HasClusterID; bit >>= 1 {
		if s.Has&bit == 0 {
			continue
		}
		switch bit {
		case table.HasHeaders:
			s.Headers = c.counted(4)
			if !c.bad {
				if err := table.Check(s.Headers); err != nil {
					return s, err
				}
			}
		case table.HasDeliveryMode:
			s.DeliveryMode = c.octet()
		case table.HasPriority:
			s.Priority = c.octet()
		case table.HasTimestamp:
			c.take(8)
		case table.HasReplyTo:
			s.ReplyTo = c.counted(1)
		case table.HasExpiration:
			s.Expiration = c.counted(1)
		case table.HasUserID:
			s.UserID = c.counted(1)
		default:
			c.counted(1)
		}
	}
	if c.bad || len(c.src) != 0 {
		return s, ErrProperties
	}
	return s, nil
}

// propCursor reads a property list. After the first shortage it gives empty values.
type propCursor struct {
	src []byte
	bad bool
}

func (c *propCursor) take(n int) []byte {
	if c.bad || len(c.src) < n {
		c.bad = true
		return nil
	}
	b := c.src[:n:n]
	c.src = c.src[n:]
	return b
}

func (c *propCursor) octet() uint8 {
	if b := c.take(1); b != nil {
		return b[0]
	}
	return 0
}

// counted reads a string or table behind a length of 1 or 4 octets.
func (c *propCursor) counted(width int) []byte {
	head := c.take(width)
	if head == nil {
		return nil
	}
	n := uint64(head[0])
	if width == 4 {
		n = uint64(binary.BigEndian.Uint32(head))
	}
	if n > uint64(len(c.src)) {
		c.bad = true
		return nil
	}
	return c.take(int(n))
}

// PropertyCodec reads and writes stored properties (message.AMQP): flags and list as in a content
// header. It has no state; any goroutine.
type PropertyCodec struct{}

// Decode reads props. The strings alias props: they are valid until the caller reuses it.
// Errors: ErrProperties, or what table.Decode found in the headers.
func (PropertyCodec) Decode(props []byte) (p table.Properties, err error) {
	return readProperties(props, true)
}

// Properties reads all but the headers in props. Strings alias props. Malformed ones are none.
func (PropertyCodec) Properties(props []byte) table.Properties {
	p, err := readProperties(props, false)
	if err != nil {
		return table.Properties{}
	}
	p.Has &^= table.HasHeaders
	return p
}

func readProperties(props []byte, headers bool) (p table.Properties, err error) {
	if len(props) < MinProps {
		return p, ErrProperties
	}
	p.Has = table.Present(binary.BigEndian.Uint16(props))
	if p.Has&^table.AllPresent != 0 {
		return p, ErrProperties
	}
	c := propCursor{src: props[MinProps:]}
	for bit := table.HasContentType; bit >= table.HasClusterID; bit >>= 1 {
		if p.Has&bit == 0 {
			continue
		}
		switch bit {
		case table.HasHeaders:
			raw := c.counted(4)
			if !headers {
				continue
			}
			if p.Headers, err = table.DecodeBorrowed(raw); err != nil {
				return p, err
			}
		case table.HasDeliveryMode:
			p.DeliveryMode = c.octet()
		case table.HasPriority:
			p.Priority = c.octet()
		case table.HasTimestamp:
			if b := c.take(8); b != nil {
				p.Timestamp = binary.BigEndian.Uint64(b)
			}
		default:
			b := c.counted(1)
			*shortProperty(&p, bit) = unsafe.String(unsafe.SliceData(b), len(b))
		}
	}
	if c.bad || len(c.src) != 0 {
		return p, ErrProperties
	}
	return p, nil
}

// Headers adds the headers in props to dst. Their strings alias props. Malformed ones are none.
func (PropertyCodec) Headers(dst table.Table, props []byte) table.Table {
	if len(props) < MinProps {
		return dst
	}
	has := table.Present(binary.BigEndian.Uint16(props))
	c := propCursor{src: props[MinProps:]}
	for _, bit := range [...]table.Present{table.HasContentType, table.HasContentEncoding} {
		if has&bit != 0 {
			c.counted(1)
		}
	}
	if has&table.HasHeaders == 0 {
		return dst
	}
	t, err := table.AppendBorrowed(dst, c.counted(4))
	if err != nil || c.bad {
		return dst
	}
	return t
}

// Append writes p after dst. A string beyond the 255 bytes of a short string is cut to them;
// protocols with longer ones refuse those when they are published.
func (PropertyCodec) Append(dst []byte, p *table.Properties) []byte {
	has := p.Has & table.AllPresent
	dst = binary.BigEndian.AppendUint16(dst, uint16(has))
	for bit := table.HasContentType; bit >= table.HasClusterID; bit >>= 1 {
		if has&bit == 0 {
			continue
		}
		switch bit {
		case table.HasHeaders:
			dst = table.AppendPrefixed(dst, p.Headers)
		case table.HasDeliveryMode:
			dst = append(dst, p.DeliveryMode)
		case table.HasPriority:
			dst = append(dst, p.Priority)
		case table.HasTimestamp:
			dst = binary.BigEndian.AppendUint64(dst, p.Timestamp)
		default:
			s := *shortProperty(p, bit)
			s = s[:min(len(s), 255)]
			dst = append(append(dst, byte(len(s))), s...)
		}
	}
	return dst
}

// shortProperty is the field of a property that is a short string.
func shortProperty(p *table.Properties, bit table.Present) *string {
	switch bit {
	case table.HasContentType:
		return &p.ContentType
	case table.HasContentEncoding:
		return &p.ContentEncoding
	case table.HasCorrelationID:
		return &p.CorrelationID
	case table.HasReplyTo:
		return &p.ReplyTo
	case table.HasExpiration:
		return &p.Expiration
	case table.HasMessageID:
		return &p.MessageID
	case table.HasType:
		return &p.Type
	case table.HasUserID:
		return &p.UserID
	case table.HasAppID:
		return &p.AppID
	case table.HasClusterID:
		return &p.ClusterID
	}
	panic("BUG: amqp: not a short string property")
}

// AppendDeliverPrefix writes the start of every basic.deliver frame of one consumer, for AppendDeliver.
func AppendDeliverPrefix(dst []byte, channel uint16, consumerTag string) []byte {
	dst = openFrame(dst, FrameMethod, channel)
	dst = append(dst, 0, byte(ClassBasic), 0, byte(IDBasicDeliver.Method()), byte(len(consumerTag)))
	return append(dst, consumerTag...)
}

// DeliverLen is the length of the frame that AppendDeliver writes.
func DeliverLen(prefix, exchange, key []byte) int {
	return len(prefix) + 8 + 1 + 1 + len(exchange) + 1 + len(key) + 1
}

// AppendDeliver writes a basic.deliver frame behind what AppendDeliverPrefix wrote.
func AppendDeliver(dst, prefix []byte, tag uint64, redelivered bool, exchange, key []byte) []byte {
	at := len(dst)
	dst = append(dst, prefix...)
	dst = binary.BigEndian.AppendUint64(dst, tag)
	dst = append(dst, bit(redelivered, 1), byte(len(exchange)))
	dst = append(append(dst, exchange...), byte(len(key)))
	return closeFrame(append(dst, key...), at)
}
