package loop

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	upgrade "github.com/fasthttp/websocket"
	"github.com/valyala/fasthttp"

	"github.com/firemq/firemq/internal/websocket"
	"github.com/firemq/firemq/pool"
)

// A MessageSession may be behind a WebSocket: what it gets and gives are messages, each behind its
// length as a big-endian u32 of at most 31 bits.
type MessageSession interface {
	Session
	// MaxMessage is the largest message taken now, in bytes. Of one that is larger the session may get
	// the length alone; it then closes the connection. By the reader.
	MaxMessage() int
}

// WebSocketOptions configure a WebSocket endpoint.
type WebSocketOptions struct {
	// Origins are the origins of web pages that may connect, "https://app.example.com", or "*" for
	// every page. Nil: pages of the host that they connect to. What is no browser sends no origin and
	// is always let in: the check protects users of browsers, not the server.
	Origins []string
}

// byteTimeout is how long a close frame may take that is sent before the connection is one.
const byteTimeout = time.Second

// WebSocket returns a handler of requests that ask for a WebSocket. Their sockets become connections
// of s, counted and shut down with the others; h makes the Handler of one from the parameters of its
// request's URL, and what that Handler makes must be a MessageSession. The connection is served in the
// goroutine that fasthttp gives to a hijacker.
//
// A text message is answered with close code 1003, bytes that break RFC 6455 with 1002 or 1007, and
// beyond Options.MaxConns or after CloseListeners the status is 503.
func (s *Server) WebSocket(o WebSocketOptions, h func(query func(name string) string) Handler) fasthttp.RequestHandler {
	u := upgrade.FastHTTPUpgrader{
		ReadBufferSize: 16, WriteBufferSize: 16, // of buffers that are not used: the least
		Error: func(ctx *fasthttp.RequestCtx, status int, reason error) {
			ctx.Error(reason.Error()+"\n", status)
			ctx.Response.Header.Set("Sec-WebSocket-Version", "13")
		},
		CheckOrigin: func(*fasthttp.RequestCtx) bool { return true }, // checked below
	}
	return func(ctx *fasthttp.RequestCtx) {
		if !upgrade.FastHTTPIsWebSocketUpgrade(ctx) {
			ctx.Error("this is a WebSocket endpoint: connect with a ws:// URL\n", fasthttp.StatusUpgradeRequired)
			ctx.Response.Header.Set("Connection", "Upgrade")
			ctx.Response.Header.Set("Upgrade", "websocket")
			return
		}
		if origin := string(ctx.Request.Header.Peek("Origin")); !o.allows(origin, string(ctx.Host())) {
			ctx.Error("pages of "+origin+" may not connect here\n", fasthttp.StatusForbidden)
			s.logAccept("WebSocket of a foreign page refused", "origin", origin, "remote", ctx.RemoteAddr())
			return
		}
		if s.closedOrFull() {
			ctx.Error("there are too many connections, or the server stops\n", fasthttp.StatusServiceUnavailable)
			return
		}
		handler := h(func(name string) string { return string(ctx.QueryArgs().Peek(name)) })
		if err := u.Upgrade(ctx, func(c *upgrade.Conn) { s.serveWebSocket(c.NetConn(), handler) }); err != nil {
			s.opt.Log.Debug("WebSocket refused", "remote", ctx.RemoteAddr(), "err", err)
		}
	}
}

// allows says whether a page of the origin may connect to the host; "" is no page.
func (o WebSocketOptions) allows(origin, host string) bool {
	if origin == "" {
		return true
	}
	if o.Origins == nil {
		u, err := url.Parse(origin)
		return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
	}
	return slices.ContainsFunc(o.Origins, func(allowed string) bool {
		return allowed == "*" || strings.EqualFold(allowed, origin)
	})
}

// webSocket is a stream whose bytes are in WebSocket frames.
type webSocket struct {
	stream
	message MessageSession // nil until the session is there; owned by the reader

	dec websocket.Decoder // owned by the reader
	enc websocket.Encoder // owned by the holder of busy

	// Owned by the reader.
	deaf error // why nothing of what comes is looked at any more

	// Guarded by ctl.
	code     uint16 // of our close frame; 0: the usual
	text     string // likewise
	saidBye  bool   // our close frame is sent
	heardBye bool   // the peer's has come
	why      error  // for OnClose, when heardBye
}

// hijacked is what fasthttp gives: its Read has what came with the request, and must not be called
// after the hijacker returned; its Close does nothing.
type hijacked interface {
	net.Conn
	UnsafeConn() net.Conn
}

// serveWebSocket serves a connection to its end.
func (s *Server) serveWebSocket(nc net.Conn, h Handler) {
	c, ok := nc.(hijacked)
	if !ok {
		panic(fmt.Sprintf("BUG: loop: fasthttp hijacks into a %T", nc))
	}
	socket := c.UnsafeConn()
	if !s.admitReader() {
		socket.SetDeadline(time.Now().Add(byteTimeout))
		socket.Write(websocket.AppendControl(nil, websocket.OpClose, websocket.AppendClose(nil, websocket.CloseTryLater, "")))
		return
	}
	defer s.readers.Done()
	s.queueUp()
	t := &webSocket{stream: stream{in: c, out: socket, socket: socket}}
	t.dec.Masked = true
	t.prepare(s, t)
	t.read(t.openLocked(t.handler(h)), websocket.PrefixSize, t.receive)
}

// queueUp has WebSockets come one after the other, as a listener takes connections (see Options.Admitted).
func (s *Server) queueUp() {
	if s.opt.Admitted == nil {
		return
	}
	select {
	case s.upgrading <- struct{}{}:
	case <-s.accepting:
		return
	}
	defer func() { <-s.upgrading }()
	if rest := s.admitted(); rest > 0 {
		select {
		case <-s.accepting:
		case <-time.After(rest):
		}
	}
}

func (t *webSocket) handler(h Handler) Handler {
	return func(c *Conn) Session {
		session := h(c)
		if session == nil {
			return nil
		}
		m, ok := session.(MessageSession)
		if !ok {
			panic(fmt.Sprintf("BUG: loop: a %T is no MessageSession", session))
		}
		t.message = m
		return m
	}
}

// receive turns what came, buf behind room for a prefix, into the session's form, in place. Messages
// that came together stay together: the session gets them in one turn.
func (t *webSocket) receive(buf []byte) error {
	if t.deaf != nil {
		return nil
	}
	src := buf[websocket.PrefixSize:]
	for {
		t.dec.Limit = t.message.MaxMessage()
		n, taken, event, err := t.dec.Decode(buf, src)
		src = src[taken:]
		if n > 0 {
			t.feed(buf[:n])
		}
		switch {
		case err != nil:
			t.refuse(err)
			return nil
		case event == websocket.More:
			return nil
		case event == websocket.Whole:
			t.feed(t.dec.Message())
		case event == websocket.Ping:
			t.pong(t.dec.Control())
		case event == websocket.Closed:
			return t.closedByPeer()
		}
	}
}

// pong answers a ping. A peer that pings without reading gets no answers while its backlog is full.
func (t *webSocket) pong(payload []byte) {
	if !t.Writable() {
		return
	}
	t.Lock()
	t.Put(websocket.AppendStreamControl(t.Tail(websocket.PrefixSize+len(payload)), websocket.OpPong, payload))
	if t.Unlock() {
		t.Flush()
	}
}

// refuse ends the connection because of what the peer sent, after what is staged.
func (t *webSocket) refuse(err error) {
	e, ok := errors.AsType[*websocket.Error](err)
	if !ok {
		panic("BUG: loop: the WebSocket decoder gave " + err.Error())
	}
	t.deaf = err
	t.srv.opt.Log.Debug("WebSocket closed", "remote", t.remote, "err", err)
	if t.closing.Load() { // for another reason
		return
	}
	t.ctl.Lock()
	t.code, t.text = e.Code, e.Text
	t.ctl.Unlock()
	t.CloseAfterFlush()
}

// closedByPeer answers the peer's close frame, or ends the connection if it is the answer to ours.
func (t *webSocket) closedByPeer() error {
	t.deaf = io.EOF
	t.ctl.Lock()
	t.heardBye = true
	over := t.saidBye
	if t.linger == 0 { // it is the first to close
		t.code, t.why = t.dec.Code(), io.EOF
	}
	t.ctl.Unlock()
	if over {
		return io.EOF
	}
	t.CloseAfterFlush()
	return nil
}

// closeWrite sends the close frame, after the last message. The TCP connection is closed by the reader
// when the peer's has come as well.
func (t *webSocket) closeWrite() {
	t.ctl.Lock()
	code, text := t.code, t.text
	t.ctl.Unlock()
	if code == 0 {
		code = websocket.CloseNormal
		select {
		case <-t.srv.accepting:
			code = websocket.CloseGoingAway
		default:
		}
	}
	t.out.Write(websocket.AppendControl(nil, websocket.OpClose, websocket.AppendClose(nil, code, text))) // fails only if the connection is broken, which the reader sees
	t.ctl.Lock()
	t.saidBye = true
	heard, err := t.heardBye, t.why
	t.ctl.Unlock()
	switch {
	case heard:
		t.Abort(err)
	case text != "": // the peer's frames, its close frame too, are not looked at any more
		t.stream.closeWrite()
	}
}

// writev sends messages as frames, as many as one write takes: small pieces are copied together with
// their headers, large ones are sent from where they are.
func (t *webSocket) writev(s []seg) (n int, full bool, err error) {
	room := pool.Get(largeRead, pool.Sending)
	iov := iovPool.Get().(*[maxIov][]byte)
	out, cut, used := room.B[:0], 0, 0 // out[:cut] is in iov
	add := func(p []byte) {
		iov[used] = p
		used++
	}
pieces:
	for _, g := range s {
		for p := g.p; len(p) > 0; {
			if used > maxIov-3 || cap(out)-len(out) < websocket.MaxOverhead+copied {
				break pieces
			}
			var payload []byte
			before := len(p)
			out, payload, p = t.enc.Next(out, p)
			if n += before - len(p); len(payload) < copied {
				out = append(out, payload...)
				continue
			}
			if len(out) > cut {
				add(out[cut:])
				cut = len(out)
			}
			add(payload)
		}
	}
	if len(out) > cut {
		add(out[cut:])
	}
	t.iov = iov[:used]
	_, err = t.iov.WriteTo(t.out)
	t.iov = nil
	clear(iov[:])
	iovPool.Put(iov)
	room.Release()
	return n, false, err
}

// copied is up to which size, in bytes, a piece is copied: below it that costs less than a place in
// the iov.
const copied = 4 << 10
