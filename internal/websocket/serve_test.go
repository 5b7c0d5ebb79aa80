package websocket

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// pair is two ends of a connection.
func pair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if a, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{a, b} {
		c.SetDeadline(time.Now().Add(patience))
		t.Cleanup(func() { c.Close() })
	}
	return a, b
}

// Both sides of this package talk to each other.
func TestServe(t *testing.T) {
	a, b := pair(t)
	served := make(chan *Conn, 1)
	go func() {
		c, err := Serve(t.Context(), b)
		if err != nil {
			t.Error(err)
		}
		served <- c
	}()
	client, err := Client(t.Context(), a, endpoint)
	if err != nil {
		t.Fatal(err)
	}
	server := <-served
	large := strings.Repeat("x", 200000)
	for _, text := range []string{"", "small", large} {
		message := append([]byte{0, byte(len(text) >> 16), byte(len(text) >> 8), byte(len(text))}, text...)
		for _, way := range [][2]*Conn{{client, server}, {server, client}} {
			sent := make(chan error, 1)
			go func() {
				_, err := way[0].Write(message)
				sent <- err
			}()
			got := make([]byte, len(message))
			if _, err := io.ReadFull(way[1], got); err != nil || !bytes.Equal(got, message) {
				t.Fatalf("%d bytes: %v", len(text), err)
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
		}
	}
	go client.Close()
	if n, err := server.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after a goodbye: %d, %v", n, err)
	}
}

func TestServeRefuses(t *testing.T) {
	a, b := pair(t)
	go io.WriteString(a, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if _, err := Serve(t.Context(), b); err == nil || !strings.Contains(err.Error(), "no WebSocket") {
		t.Errorf("a plain request: %v", err)
	}
	if answer, _ := io.ReadAll(a); !bytes.HasPrefix(answer, []byte("HTTP/1.1 400 ")) {
		t.Errorf("answered by %q", answer)
	}
	_, b = pair(t) // says nothing
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := Serve(ctx, b); err != context.DeadlineExceeded {
		t.Errorf("silence: %v", err)
	}
}
