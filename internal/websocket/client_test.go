package websocket

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/internal/leak"
)

const patience = 20 * time.Second

var endpoint = &url.URL{Scheme: "http", Host: "broker:15672", Path: "/fire"}

// server is the other side, which answers the request with what status and header give.
func server(t *testing.T, answer func(req *http.Request) string) (client net.Conn, peer net.Conn) {
	t.Helper()
	none := leak.Check(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if client, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if peer, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	peer.SetDeadline(time.Now().Add(patience))
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		req, err := http.ReadRequest(bufio.NewReader(peer))
		if err == nil {
			io.WriteString(peer, answer(req))
		}
	}()
	t.Cleanup(func() {
		client.Close()
		peer.Close()
		<-answered
		none()
	})
	return client, peer
}

func switching(req *http.Request) string {
	return "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " +
		accept(req.Header.Get("Sec-Websocket-Key")) + "\r\n\r\n"
}

func TestAcceptOfTheStandardsExample(t *testing.T) { // RFC 6455 1.3
	if got := accept("dGhlIHNhbXBsZSBub25jZQ=="); got != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		t.Error(got)
	}
}

func TestClientRefusals(t *testing.T) {
	for name, c := range map[string]struct{ answer, want string }{
		"status":        {"HTTP/1.1 403 Forbidden\r\nContent-Length: 9\r\n\r\nnot you\r\n", "403 Forbidden: not you"},
		"no WebSocket":  {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n", "no WebSocket server"},
		"no HTTP":       {"AMQP\x00\x00\x09\x01\r\n\r\n", "no answer"},
		"other upgrade": {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n", "no WebSocket server"},
	} {
		nc, _ := server(t, func(*http.Request) string { return c.answer })
		_, err := Client(t.Context(), nc, endpoint)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestClientStopsWithItsContext(t *testing.T) {
	nc, peer := server(t, func(*http.Request) string { return "" })
	ctx, cancel := context.WithCancel(t.Context())
	go cancel()
	if _, err := Client(ctx, nc, endpoint); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	peer.Close()
}

// control is a server's frame.
func control(op Op, payload string) string { return string(AppendControl(nil, op, []byte(payload))) }

// readFrame reads a client's frame, unmasked, on the server's side.
func readFrame(t *testing.T, r io.Reader) (op Op, payload []byte) {
	t.Helper()
	head := make([]byte, 6)
	if _, err := io.ReadFull(r, head); err != nil {
		t.Fatal(err)
	}
	if head[0]&finBit == 0 || head[1]&maskBit == 0 || head[1]&^maskBit > 125 {
		t.Fatalf("a header of %x", head)
	}
	payload = make([]byte, head[1]&^maskBit)
	if _, err := io.ReadFull(r, payload); err != nil {
		t.Fatal(err)
	}
	mask(payload, payload, binary.LittleEndian.Uint32(head[2:]))
	return Op(head[0] & opBits), payload
}

func TestClientTalks(t *testing.T) {
	// The server's first frames come with its answer.
	nc, peer := server(t, func(req *http.Request) string {
		if req.Host != "broker:15672" || req.URL.Path != "/fire" {
			return fmt.Sprintf("HTTP/1.1 404 %s %s\r\n\r\n", req.Host, req.URL)
		}
		return switching(req) + control(OpBinary, "hello") + control(OpPing, "p") + "\x02\x03fra" + control(OpPing, "q") + "\x80\x05gment" + control(OpClose, "\x03\xe9")
	})
	c, err := Client(t.Context(), nc, endpoint)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	var got []byte
	one := make([]byte, 3)
	for {
		n, err := c.Read(one)
		got = append(got, one[:n]...)
		if err != nil {
			if err != io.EOF {
				t.Fatal(err)
			}
			break
		}
	}
	if want := append(message("hello"), message("fragment")...); !bytes.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
	if n, err := c.Write(append(message("one"), message("two")...)); n != 14 || err != nil {
		t.Error(n, err)
	}
	c.Close()
	for i, want := range []struct {
		op      Op
		payload string
	}{{OpPong, "p"}, {OpPong, "q"}, {OpClose, "\x03\xe9"}, {OpBinary, "one"}, {OpBinary, "two"}, {OpClose, "\x03\xe8"}} {
		if op, payload := readFrame(t, peer); op != want.op || string(payload) != want.payload {
			t.Errorf("frame %d: got %d %q, want %d %q", i, op, payload, want.op, want.payload)
		}
	}
	if n, err := peer.Read(one); err != io.EOF {
		t.Errorf("after the close: %d bytes, %v", n, err)
	}
}

// A ping that comes while a Write waits for the server is answered by that Write, and the reader goes on.
func TestClientPongsBehindABlockedWrite(t *testing.T) {
	nc, peer := server(t, switching)
	c, err := Client(t.Context(), nc, endpoint)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	big := make([]byte, 1<<20)
	wrote := make(chan error, 1)
	c.writing.Lock() // a Write that waits
	io.WriteString(peer, control(OpPing, "p")+control(OpBinary, "x"))
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, message("x")) {
		t.Fatalf("%q %v", got, err)
	}
	c.writing.Unlock()
	go func() {
		_, err := c.Write(message(string(big)))
		wrote <- err
	}()
	r := bufio.NewReader(peer)
	var op Op
	for op != OpPong {
		head := make([]byte, 2)
		if _, err := io.ReadFull(r, head); err != nil {
			t.Fatal(err)
		}
		if op = Op(head[0] & opBits); op == OpBinary {
			long := make([]byte, 12)
			if _, err := io.ReadFull(r, long); err != nil {
				t.Fatal(err)
			}
			if _, err := io.CopyN(io.Discard, r, int64(binary.BigEndian.Uint64(long))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}

func TestClientRefusesWhatServersMayNotSend(t *testing.T) {
	nc, peer := server(t, func(req *http.Request) string { return switching(req) + "\x82\x81\x00\x00\x00\x00x" })
	c, err := Client(t.Context(), nc, endpoint)
	if err != nil {
		t.Fatal(err)
	}
	var e *Error
	if _, err := c.Read(make([]byte, 10)); !errors.As(err, &e) || e.Code != CloseProtocol {
		t.Error(err)
	}
	if op, payload := readFrame(t, peer); op != OpClose || binary.BigEndian.Uint16(payload) != CloseProtocol {
		t.Errorf("answered %d %q", op, payload)
	}
}
