package bench

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/firemq/firemq/frames/table"
)

// wire is one connection that is logged in, of either protocol. One goroutine uses it, with two
// exceptions: write may be called while another one is in read, and interrupt by any.
type wire interface {
	// Requests: each waits for its answer, at most the target's patience. Not while read is in use.
	declareQueue(name string, arguments table.Table) error
	deleteQueue(name string) (left uint64, err error)
	declareExchange(name, kind string) error
	deleteExchange(name string) error
	bind(exchange, queue, key string) error
	publishing(window int) error // before the first publish that wants a confirm; window is the most that are unconfirmed
	// subscribe is called once. A queue's index is the handle of its subscription, and each has the prefetch.
	// Answers to it that are not here when it returns are taken by read, since deliveries may come first.
	subscribe(queues []string, prefetch int) error
	close() // tells the broker, then closes the socket

	// template is what every publish looks like, with a prefix for each key.
	template(m model, keys []string, size int) template
	// appendPublished is called at the end of a batch of publishes. It says what the protocol wants said then.
	appendPublished(dst []byte, upTo uint64) []byte
	// appendAck, appendSettled and appendCancel spell what a consumer writes; appendAck is called within
	// the delivery that it is for.
	appendAck(dst []byte, tag uint64) []byte
	// appendSettled is called after n messages of a subscription were acknowledged. It says what the
	// protocol wants said once a batch.
	appendSettled(dst []byte, handle uint32, lastTag uint64, n int) []byte
	appendCancel(dst []byte, handle uint32) []byte

	// fill waits for bytes, and frames tells h everything that is complete of them: see read.
	fill() error
	frames(h handler) error
	write(b []byte) error
	interrupt() // makes read and write fail from now on
	product() string
}

// read waits for bytes and tells h everything that is complete. It fails when the broker closes the channel or the
// connection, with what the broker says.
func read(w wire, h handler) error {
	if err := w.fill(); err != nil {
		return err
	}
	h.arrived()
	err := w.frames(h)
	if settleErr := h.settle(); err == nil {
		err = settleErr
	}
	return err
}

// handler is told what arrived. Its slices are valid during the call.
type handler interface {
	arrived() // bytes came: what follows, up to settle, came with them
	confirmed(seq uint64, multiple, refused bool) error
	delivered(handle uint32, tag uint64, size int, head []byte) error // head: the body's first stampSize bytes, or all
	cancelled(handle uint32) error                                    // the answer to appendCancel
	paused(on bool)                                                   // the broker asks publishers to wait
	settle() error                                                    // the end of what arrived
}

// model is what all messages of a run have in common.
type model struct {
	exchange   string
	properties table.Properties
	confirms   bool // that are wanted
}

// template is how a publisher spells its messages: prefix of the queue, then the tail.
type template struct {
	prefix [][]byte // one for each key
	// number writes the publish's number into a prefix, numberAt says where in each; nil: nowhere.
	number   func(dst []byte, seq uint64)
	numberAt []int
	tail     []byte
	body     int // where the body begins in tail: there its stamp goes
}

// link is a socket with the part of its input that is not decoded yet.
type link struct {
	conn     net.Conn
	patience time.Duration
	buf      []byte // buf[r:w] is not decoded yet
	r, w     int
	heard    bool // a whole frame, in the login at least
}

// readSize is what one read asks for: some 200 deliveries of 256 bytes.
const readSize = 64 << 10

func dialLink(ctx context.Context, to target, frameMax int) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, to.patience)
	defer cancel()
	conn, err := to.Open(ctx)
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return nil, fmt.Errorf("the certificate at %s is not trusted (%s): give its authority with --ca-file", to.Addr, e.Err)
	}
	if err != nil {
		return nil, fmt.Errorf("no broker answers at %s (%s): start one, or give its --url", to.Addr, plainCause(err))
	}
	return &link{conn: conn, patience: to.patience, buf: make([]byte, frameMax+readSize)}, nil
}

// plainCause is the last part of a network error: "connection refused".
func plainCause(err error) string {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return "timed out"
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return dns.Err
	}
	return err.Error()
}

// fill reads once, behind what is not decoded yet. There is room as long as frames are no longer than
// the frameMax that the link was made with.
func (l *link) fill() error {
	if l.r > 0 && (l.r == l.w || len(l.buf)-l.w < readSize) {
		l.w = copy(l.buf, l.buf[l.r:l.w])
		l.r = 0
	}
	if l.w == len(l.buf) {
		return fmt.Errorf("the broker sent a frame of more than %d bytes", len(l.buf)-readSize)
	}
	n, err := l.conn.Read(l.buf[l.w:min(len(l.buf), l.w+readSize)])
	l.w += n
	if n > 0 {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return errors.New("the broker closed the connection")
	}
	return fmt.Errorf("the connection broke: %s", plainCause(err))
}

// unheard explains why a login failed in which the other side said nothing at all.
func (l *link) unheard(err error) error {
	if l.heard || l.w > 0 {
		return err
	}
	return fmt.Errorf("%w before it said anything: is it the right port, or one for TLS?", err)
}

func (l *link) write(b []byte) error {
	if _, err := l.conn.Write(b); err != nil {
		return fmt.Errorf("the connection broke: %s", plainCause(err))
	}
	return nil
}

func (l *link) interrupt() { l.conn.SetDeadline(time.Unix(1, 0)) }

// within runs one request with the link's patience as the limit.
func (l *link) within(request func() error) error {
	l.conn.SetDeadline(time.Now().Add(l.patience))
	err := request()
	l.conn.SetDeadline(time.Time{})
	return err
}

// filler is a body that does not compress to nothing, the same in every run.
func filler(size int) []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{}).Read(b)
	return b
}
