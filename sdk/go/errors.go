package fire

import (
	"errors"
	"fmt"
)

var (
	// ErrClosed is what calls get once the Client is closed, or when there was no connection for
	// Reconnect.Wait. The error says why.
	ErrClosed = errors.New("fire: connection closed")
	// ErrUnroutable is what a mandatory message gets that no queue received.
	ErrUnroutable = errors.New("fire: no queue received the message")
	// ErrUnsubscribed is what Next and Handle get after Unsubscribe.
	ErrUnsubscribed = errors.New("fire: unsubscribed")
)

// A NackedError says that the broker refused a published message: with code 506 a full queue, 404 and
// 403 an exchange that is missing or may not be written to, 406 a property it does not accept.
type NackedError struct {
	Code int
	Msg  string
}

func (e *NackedError) Error() string { return "fire: message refused: " + e.Msg }

// A ServerError is the broker's refusal of a request, with an AMQP reply code, or when Fatal of the
// whole connection.
type ServerError struct {
	Code  int
	Msg   string // "NOT_FOUND - no queue 'q' in vhost '/'"
	Fatal bool
}

func (e *ServerError) Error() string { return "fire: " + e.Msg }

// A CancelledError says that the broker ended a subscription, for example because its queue was deleted.
type CancelledError struct {
	Code int
	Msg  string
}

func (e *CancelledError) Error() string { return "fire: subscription cancelled: " + e.Msg }

// An InvalidError says what is wrong with an argument or a URL. Nothing was sent.
type InvalidError struct{ Text string }

func (e *InvalidError) Error() string { return "fire: " + e.Text }

func invalid(format string, args ...any) error { return &InvalidError{fmt.Sprintf(format, args...)} }

// closedBy is ErrClosed with its cause, which errors.Is and errors.As see too.
func closedBy(cause error) error {
	if cause == nil || errors.Is(cause, ErrClosed) {
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrClosed, cause)
}
