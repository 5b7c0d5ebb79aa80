package websocket

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	bufferSize = 64 << 10
	// clientLimit bounds a message that comes in fragments: servers send none, a proxy might.
	clientLimit = 128 << 20
	// maxReason is how much of a refusal's body is repeated.
	maxReason = 512
	// goodbye is how long Close tries to send a close frame.
	goodbye = time.Second
)

// Conn is one side of a WebSocket: Write takes and Read gives the stream. The methods of net.Conn keep
// their meanings; a close frame of the other side is io.EOF.
type Conn struct {
	net.Conn
	br *bufio.Reader

	// Owned by who reads.
	dec   Decoder
	whole []byte // of a message that came in fragments, what is not read yet
	err   error  // what later reads return

	owed atomic.Pointer[[]byte] // the pong or close that is due, in the stream's form

	writing sync.Mutex
	// Guarded by writing.
	enc Encoder
	out []byte
}

// Client asks for the WebSocket that u names over nc, which is connected to its host and, for wss,
// encrypted. ctx bounds the answer. nc is closed when there is an error.
func Client(ctx context.Context, nc net.Conn, u *url.URL) (*Conn, error) {
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	c := &Conn{Conn: nc, br: bufio.NewReaderSize(nc, bufferSize)}
	err := c.handshake(u)
	if !stop() { // the deadline may be set at any moment from now on
		err = ctx.Err()
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	var seed [32]byte
	rand.Read(seed[:])
	keys := mrand.NewChaCha8(seed)
	c.enc.Key = func() uint32 { return uint32(keys.Uint64()) }
	c.dec.Limit = clientLimit
	return c, nil
}

func (c *Conn) handshake(u *url.URL) error {
	var nonce [16]byte
	rand.Read(nonce[:])
	key := base64.StdEncoding.EncodeToString(nonce[:])
	req := http.Request{
		Method: http.MethodGet, URL: u, Host: u.Host, ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{
			"Upgrade": {"websocket"}, "Connection": {"Upgrade"}, "User-Agent": {"firemq"},
			"Sec-Websocket-Key": {key}, "Sec-Websocket-Version": {"13"},
		},
	}
	if err := req.Write(c.Conn); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.br, &req)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("no answer to the WebSocket request: %w", err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		reason, _ := io.ReadAll(io.LimitReader(resp.Body, maxReason))
		return fmt.Errorf("the server refused the WebSocket: %s: %s", resp.Status, strings.TrimSpace(string(reason)))
	}
	if resp.Header.Get("Sec-Websocket-Accept") != accept(key) || !strings.EqualFold(resp.Header.Get("Upgrade"), "websocket") {
		return errors.New("what answers is no WebSocket server")
	}
	return nil
}

// Serve takes the request for a WebSocket that comes over nc, whatever its path, and answers it: the server's
// side, for proxies. ctx bounds that. nc is closed when there is an error.
func Serve(ctx context.Context, nc net.Conn) (*Conn, error) {
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	c := &Conn{Conn: nc, br: bufio.NewReaderSize(nc, bufferSize)}
	c.dec.Masked, c.dec.Limit = true, clientLimit
	err := c.answerHandshake()
	if !stop() { // the deadline may be set at any moment from now on
		err = ctx.Err()
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

func (c *Conn) answerHandshake() error {
	req, err := http.ReadRequest(c.br)
	if err != nil {
		return err
	}
	key := req.Header.Get("Sec-Websocket-Key")
	if !strings.EqualFold(req.Header.Get("Upgrade"), "websocket") || key == "" {
		io.WriteString(c.Conn, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		return errors.New("the request is for no WebSocket")
	}
	_, err = io.WriteString(c.Conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "+accept(key)+"\r\n\r\n")
	return err
}

// accept is the answer to a key (RFC 6455 4.2.2).
func accept(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// Read gives stream. One goroutine at a time.
func (c *Conn) Read(p []byte) (n int, err error) {
	for n == 0 && len(p) > 0 {
		if len(c.whole) > 0 {
			n = copy(p, c.whole)
			c.whole = c.whole[n:]
			return n, nil
		}
		if c.err != nil {
			return 0, c.err
		}
		if c.br.Buffered() == 0 {
			if _, err := c.br.Peek(1); err != nil {
				return 0, err // also io.EOF without a close frame: the stream has its own goodbye
			}
		}
		src, _ := c.br.Peek(c.br.Buffered())
		var taken int
		var event Event
		n, taken, event, err = c.dec.Decode(p, src)
		c.br.Discard(taken)
		switch {
		case err != nil:
			c.err = err
			e, _ := errors.AsType[*Error](err)
			c.answer(OpClose, AppendClose(nil, e.Code, ""))
		case event == Whole:
			c.whole = c.dec.Message()
		case event == Ping:
			c.answer(OpPong, c.dec.Control())
		case event == Closed:
			c.err = io.EOF
			c.answer(OpClose, AppendClose(nil, c.dec.Code(), ""))
		}
	}
	return n, nil
}

// answer sends a control frame now, or has the Write that goes on do it: a reader never waits for
// what the server only takes when it is read. Of several answers the last one is sent (5.5.3).
func (c *Conn) answer(op Op, payload []byte) {
	b := AppendStreamControl(nil, op, payload)
	c.owed.Store(&b)
	c.payOwed()
}

func (c *Conn) payOwed() {
	for c.owed.Load() != nil && c.writing.TryLock() {
		if b := c.owed.Swap(nil); b != nil {
			c.write(*b) // the stream's own writes and reads tell of a broken connection
		}
		c.writing.Unlock()
	}
}

// Write sends b, a stream of whole messages. Any goroutine.
func (c *Conn) Write(b []byte) (int, error) {
	c.writing.Lock()
	err := c.write(b)
	c.writing.Unlock()
	c.payOwed()
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// write: writing held.
func (c *Conn) write(b []byte) error {
	for len(b) > 0 {
		c.out = c.out[:0]
		for len(b) > 0 && len(c.out) < bufferSize {
			part := b[:min(len(b), bufferSize)]
			var payload, rest []byte
			c.out, payload, rest = c.enc.Next(c.out, part)
			at := len(c.out)
			c.out = append(c.out, payload...)
			c.enc.Mask(c.out[at:], payload)
			b = b[len(part)-len(rest):]
		}
		if _, err := c.Conn.Write(c.out); err != nil {
			return err
		}
	}
	return nil
}

// Close says goodbye if nothing is being sent, and closes the connection.
func (c *Conn) Close() error {
	if c.writing.TryLock() {
		c.Conn.SetWriteDeadline(time.Now().Add(goodbye))
		c.write(AppendStreamControl(nil, OpClose, AppendClose(nil, CloseNormal, "")))
		c.writing.Unlock()
	}
	return c.Conn.Close()
}
