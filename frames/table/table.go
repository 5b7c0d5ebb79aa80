// Package table holds typed values, field tables and message properties in the form
// that every protocol, the router and the management API share.
//
// A Table keeps the order, the duplicates and the wire types it was read with, so
// that what a publisher sent can be written again byte for byte.
package table

// Kind is the type of a value, named by its AMQP 0-9-1 field tag (RabbitMQ's set).
type Kind byte

const (
	Bool    Kind = 't'
	Int8    Kind = 'b'
	Uint8   Kind = 'B'
	Int16   Kind = 's'
	Uint16  Kind = 'u'
	Int32   Kind = 'I'
	Uint32  Kind = 'i'
	Int64   Kind = 'l'
	Long    Kind = 'L' // also a signed 64-bit integer; kept apart to be written as it was read
	Float32 Kind = 'f'
	Float64 Kind = 'd'
	Decimal Kind = 'D' // scale and unsigned 32-bit value
	String  Kind = 'S'
	Bytes   Kind = 'x'
	Array   Kind = 'A'
	Time    Kind = 'T' // seconds since the Unix epoch
	Nested  Kind = 'F' // a table
	Void    Kind = 'V'
)

// Value is one typed value. The zero Value is not valid; Void is the absent value.
type Value struct {
	Kind  Kind
	Scale uint8   // Decimal only
	Num   uint64  // Bool (0 is false), every integer (two's complement), floats (their bits), Time, Decimal
	Str   string  // String and Bytes
	List  []Value // Array
	Table Table   // Nested
}

// Field is one named value.
type Field struct {
	Name  string
	Value Value
}

// Table is an ordered list of fields. Duplicates are allowed; Get takes the first.
type Table []Field

// Get finds the first field of that name.
func (t Table) Get(name string) (Value, bool) {
	for i := range t {
		if t[i].Name == name {
			return t[i].Value, true
		}
	}
	return Value{}, false
}

// Present says which properties a message has, in AMQP 0-9-1's flag bits (4.2.6.1).
type Present uint16

const (
	HasContentType     Present = 1 << 15
	HasContentEncoding Present = 1 << 14
	HasHeaders         Present = 1 << 13
	HasDeliveryMode    Present = 1 << 12
	HasPriority        Present = 1 << 11
	HasCorrelationID   Present = 1 << 10
	HasReplyTo         Present = 1 << 9
	HasExpiration      Present = 1 << 8
	HasMessageID       Present = 1 << 7
	HasTimestamp       Present = 1 << 6
	HasType            Present = 1 << 5
	HasUserID          Present = 1 << 4
	HasAppID           Present = 1 << 3
	HasClusterID       Present = 1 << 2
)

// AllPresent is every property's bit; the two low bits have no meaning yet.
const AllPresent Present = 0xfffc

// Properties are a message's properties, decoded. A field means something only when
// its bit in Has is set: absent and zero differ.
type Properties struct {
	Has             Present
	ContentType     string
	ContentEncoding string
	Headers         Table
	DeliveryMode    uint8
	Priority        uint8
	CorrelationID   string
	ReplyTo         string
	Expiration      string // milliseconds in decimal, as AMQP carries it
	MessageID       string
	Timestamp       uint64 // seconds since the Unix epoch
	Type            string
	UserID          string
	AppID           string
	ClusterID       string
}
