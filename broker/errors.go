package broker

import "fmt"

// Kind is what went wrong, in the broker's own words; each protocol has one table from Kind to
// its codes.
type Kind uint8

const (
	NotFound           Kind = iota + 1 // no such queue, exchange or vhost object
	AccessRefused                      // permission, reserved name, internal exchange
	ResourceLocked                     // another connection's exclusive queue
	ExclusiveUse                       // a consumer conflicts with an exclusive or single active one
	PreconditionFailed                 // inequivalent, in use, not empty, unknown tag, bad argument
	NotAllowed                         // vhost missing or refused, consumer tag reuse, limits
	NotImplemented                     // a feature the broker does not have
	ResourceError                      // a full queue refused a publish, or the broker ran out of something
	ConnectionForced                   // shutdown, closed by an administrator
	InternalError                      // a bug; logged with its cause
	LoginRefused                       // bad credentials, or a loopback user from elsewhere
	LoginLimited                       // too many bad ones before: nobody has looked at these (see LoginPause)
)

// Error is a peer's mistake or a refusal, with the text RabbitMQ gives it after "NAME - ".
// Verbs return *Error, never a nil *Error inside an error.
type Error struct {
	Kind Kind
	Text string
	// Cause is for the log alone, "" where the text says it all.
	Cause string
}

func (e *Error) Error() string { return e.Text }

func refuse(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Text: fmt.Sprintf(format, args...)}
}
