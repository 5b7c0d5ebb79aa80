package mgmt

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/valyala/fasthttp"
)

// Bounds of a request's body, felt by its sender. It is read when the credentials, the tags and the vhost were
// found good, by what reads it: of any other request nothing is kept.
const (
	maxBody      = 20 << 20 // of endpoints for large ones: definitions, messages, lists of users
	maxAnyBody   = 64 << 10 // of the others
	maxLoginBody = 4 << 10  // of the only one that needs no credentials

	bodyPace = 512 << 10 // so much, or what is left if that is less, must come in pace.body: 51 KiB a second
)

// pace is how long clients may take.
type pace struct {
	header time.Duration // from its first byte, of a connection from its begin
	body   time.Duration // for bodyPace
	answer time.Duration // to take it
	idle   time.Duration // to the next request
}

var usualPace = pace{header: 10 * time.Second, body: 10 * time.Second, answer: 30 * time.Second, idle: time.Minute}

// busy is the answer of a request that has to wait for others.
func (r *request) busy() error {
	return r.unavailable("Large requests of others take the memory there is for them: try again")
}

// unavailable has the client try again later.
func (r *request) unavailable(reason string) error {
	r.Response.Header.Set("Retry-After", "1")
	return failed(fasthttp.StatusServiceUnavailable, "service_unavailable", reason)
}

func tooLarge(most int) error {
	return failed(fasthttp.StatusRequestEntityTooLarge, "bad_request", fmt.Sprintf("Exceeded HTTP request body size limit of %d bytes", most))
}

// admit refuses a body of more than most bytes, or one that there is no room for, by what its sender says of it.
func (r *request) admit(most int) error {
	length := r.Request.Header.ContentLength() // negative: it comes in chunks, or there is none
	if length > most {
		return tooLarge(most)
	}
	if length > freeBytes && !r.s.bodies.fits(r.holding(), copies*int64(length)) {
		return r.busy()
	}
	return nil
}

// holding is the request's share of the bodies.
func (r *request) holding() *share {
	c := r.socket()
	c.body.of(r.user, c.from)
	return &c.body
}

// receive reads the body, of at most most bytes, which was admitted. What the connection's goroutine holds of it is
// given back when the request is over.
func (r *request) receive(most int) error {
	stream := r.RequestBodyStream()
	if stream == nil {
		return nil
	}
	length := r.Request.Header.ContentLength()
	c := r.socket()
	bodies, held := &r.s.bodies, r.holding()
	room := freeBytes
	if length >= 0 {
		room = min(length, room)
	}
	p := make([]byte, 0, room)
	for due := 0; ; {
		if len(p) >= due {
			if err := c.SetReadDeadline(time.Now().Add(r.s.pace.body)); err != nil {
				return err
			}
			due += bodyPace
		}
		if len(p) == cap(p) {
			// One byte more than may come tells a longer one.
			room := min(4*max(cap(p), 1024), most+1)
			if length >= 0 {
				room = min(room, length+1)
			}
			if room > freeBytes && !bodies.take(held, copies*int64(room)) {
				return r.busy()
			}
			p = append(make([]byte, 0, room), p...)
		}
		n, err := stream.Read(p[len(p):cap(p)])
		if p = p[:len(p)+n]; len(p) > most {
			return tooLarge(most)
		}
		switch {
		case errors.Is(err, io.EOF):
			if length >= 0 && len(p) < length {
				return r.unfinished(badRequest("The request's body is not complete"))
			}
			if n := cost(p); n > freeBytes && !bodies.take(held, n) {
				return r.busy()
			}
			r.Request.SetBodyRaw(p)
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return r.unfinished(failed(fasthttp.StatusRequestTimeout, "request_timeout", "The request's body comes too slowly"))
		case err != nil:
			return r.unfinished(badRequest("The request's body is malformed"))
		}
	}
}

// unfinished is the failure of a request whose body ends in the middle: where the next one begins is not known.
func (r *request) unfinished(f *failure) error {
	r.SetConnectionClose()
	return f
}

// What a JSON text takes while it is read, about.
const (
	copies   = 4  // as it came, in the decoder, as a string, as what is made of that
	perValue = 64 // bytes, of each of its values
)

// cost is that in bytes.
func cost(p []byte) int64 {
	var values int64
	inText, escaped := false, false
	for _, c := range p {
		switch {
		case escaped:
			escaped = false
		case c == '"':
			inText = !inText
		case inText:
			escaped = c == '\\'
		case c == ',' || c == ':' || c == '[' || c == '{':
			values++
		}
	}
	return copies*int64(len(p)) + perValue*values
}

// drop says, of a request that is refused, that its body stays unread: the connection ends behind the answer, and its
// sender is given the time to see that.
func (r *request) drop() {
	if r.RequestBodyStream() == nil {
		return
	}
	if n := r.Request.Header.ContentLength(); n < 0 || n > freeBytes {
		r.SetConnectionClose()
		r.socket().linger = true
	}
}

// socket is the connection of the request.
func (r *request) socket() *conn {
	c, ok := r.Conn().(*conn)
	if !ok {
		panic("BUG: a request on a connection that is not this server's")
	}
	return c
}

// What large requests leave behind is garbage that little else might have collected for minutes.
const (
	garbageBytes = 16 << 20        // of bodies that are worth a collection
	garbageRest  = time.Second     // before it, so that more may come together
	garbageShare = 10              // the next one comes after ten times its own time
	garbageMost  = 5 * time.Minute // but after no more than this
)

// litter counts what a request has held, when it is over.
func (s *Server) litter(n int64) {
	if n <= freeBytes || s.garbage.Add(n) < garbageBytes {
		return
	}
	select {
	case s.sweep <- struct{}{}:
	default: // it comes anyway
	}
}

// sweeper gives memory back to the system after large requests, until quit is closed.
func (s *Server) sweeper() {
	rest := garbageRest
	for {
		select {
		case <-s.quit:
			return
		case <-s.sweep:
		}
		select {
		case <-s.quit:
			return
		case <-time.After(rest):
		}
		s.garbage.Store(0)
		began := time.Now()
		debug.FreeOSMemory()
		rest = max(garbageRest, min(garbageShare*time.Since(began), garbageMost))
	}
}
