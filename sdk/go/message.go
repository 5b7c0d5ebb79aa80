package fire

import (
	"math"
	"strconv"
	"time"

	"github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/frames/table"
)

// Message is what Publish sends. The zero value of a field is its safe or absent form.
type Message struct {
	Exchange string // empty: the default exchange, which routes to the queue named by Key
	Key      string // routing key
	Body     []byte // only read, and only until the call returns
	// Mandatory asks for ErrUnroutable when no queue receives the message.
	Mandatory bool
	// Transient messages are not written to disk: the broker confirms them when they are in memory, and
	// loses them when it restarts.
	Transient  bool
	Properties Properties
	// Headers are application headers. Values are what a field table holds: nil, bool, integers,
	// floats, string, []byte, time.Time (sent as seconds), []any and map[string]any.
	Headers map[string]any
}

// Properties describe a message. Empty strings and nil are absent.
type Properties struct {
	ContentType     string
	ContentEncoding string
	CorrelationID   string
	ReplyTo         string
	MessageID       string
	Type            string
	UserID          string // must be the connection's user
	AppID           string
	Expiration      *time.Duration // time to live in a queue, in whole ms; new(time.Duration) is at once
	Priority        *uint8
	Timestamp       time.Time // in whole seconds
}

func (p *Properties) empty() bool { return *p == Properties{} }

func (p *Properties) table() (t table.Properties, err error) {
	set := func(has table.Present, field *string, s string) {
		if s != "" {
			*field = s
			t.Has |= has
			if len(s) > fmq1.MaxName {
				err = invalid("a property of %d bytes is longer than %d", len(s), fmq1.MaxName)
			}
		}
	}
	set(table.HasContentType, &t.ContentType, p.ContentType)
	set(table.HasContentEncoding, &t.ContentEncoding, p.ContentEncoding)
	set(table.HasCorrelationID, &t.CorrelationID, p.CorrelationID)
	set(table.HasReplyTo, &t.ReplyTo, p.ReplyTo)
	set(table.HasMessageID, &t.MessageID, p.MessageID)
	set(table.HasType, &t.Type, p.Type)
	set(table.HasUserID, &t.UserID, p.UserID)
	set(table.HasAppID, &t.AppID, p.AppID)
	if p.Expiration != nil {
		if *p.Expiration < 0 {
			return t, invalid("a negative expiration")
		}
		t.Has |= table.HasExpiration
		t.Expiration = strconv.FormatInt(p.Expiration.Milliseconds(), 10)
	}
	if p.Priority != nil {
		t.Has |= table.HasPriority
		t.Priority = *p.Priority
	}
	if !p.Timestamp.IsZero() {
		if p.Timestamp.Unix() < 0 {
			return t, invalid("a timestamp before 1970")
		}
		t.Has |= table.HasTimestamp
		t.Timestamp = uint64(p.Timestamp.Unix())
	}
	return t, err
}

func propertiesOf(t *table.Properties) Properties {
	p := Properties{
		ContentType: t.ContentType, ContentEncoding: t.ContentEncoding, CorrelationID: t.CorrelationID, ReplyTo: t.ReplyTo,
		MessageID: t.MessageID, Type: t.Type, UserID: t.UserID, AppID: t.AppID,
	}
	if t.Has&table.HasExpiration != 0 {
		if ms, err := strconv.ParseInt(t.Expiration, 10, 64); err == nil {
			p.Expiration = new(time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond)
		}
	}
	if t.Has&table.HasPriority != 0 {
		p.Priority = new(t.Priority)
	}
	if t.Has&table.HasTimestamp != 0 {
		p.Timestamp = time.Unix(int64(min(t.Timestamp, math.MaxInt64)), 0)
	}
	return p
}

// Delivery is a message from a queue. Get and Subscription.Next give deliveries that own their memory;
// one that Subscription.Handle passes to its function is valid until the function returns.
type Delivery struct {
	Tag         uint64 // unique on the connection, increasing
	Redelivered bool   // delivered before and not acknowledged
	Body        []byte
	Remaining   int // messages left in the queue; Get only

	client   *Client
	noAck    bool // there is nothing to acknowledge
	exchange []byte
	key      []byte
	props    []byte // a map, or empty
	headers  []byte // a map, or empty
}

// Exchange is the exchange that the message was published to.
func (d *Delivery) Exchange() string { return string(d.exchange) }

// Key is the routing key that it was published with.
func (d *Delivery) Key() string { return string(d.key) }

// Properties are the message's properties. The error says that the broker sent malformed ones.
func (d *Delivery) Properties() (Properties, error) {
	var t table.Properties
	if len(d.props) > 0 {
		if err := fmq1.DecodeProps(append([]byte(nil), d.props...), &t); err != nil {
			return Properties{}, err
		}
	}
	return propertiesOf(&t), nil
}

// Headers are the application headers, never nil: integers as int64, floats as float64, and bool,
// string, []byte, []any, map[string]any and nil. The error says that the broker sent malformed ones.
func (d *Delivery) Headers() (map[string]any, error) {
	t, err := fmq1.DecodeTable(append([]byte(nil), d.headers...))
	if err != nil {
		return nil, err
	}
	return t.Map(), nil
}

// Clone is a copy that owns its memory. Acknowledging one of the two acknowledges the message.
func (d *Delivery) Clone() *Delivery {
	own := *d
	b := make([]byte, 0, len(d.exchange)+len(d.key)+len(d.props)+len(d.headers)+len(d.Body))
	for _, p := range []*[]byte{&own.exchange, &own.key, &own.props, &own.headers, &own.Body} {
		at := len(b)
		b = append(b, *p...)
		*p = b[at:len(b):len(b)]
	}
	return &own
}

// ownGet makes a delivery of a get_ok, copying it.
func ownGet(m *fmq1.GetOK, body []byte) *Delivery {
	d := Delivery{
		Tag: m.Tag, Redelivered: m.Redelivered, Remaining: int(m.Remaining), Body: body,
		exchange: m.Exchange, key: m.Key, props: m.Props, headers: m.Headers,
	}
	return d.Clone()
}
