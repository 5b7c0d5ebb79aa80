// Package rawamqp speaks AMQP 0-9-1 frame by frame, for tests of what no client library does.
package rawamqp

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/table"
)

// patience bounds a handshake.
const patience = 30 * time.Second

// Login is an AMQP connection with channel 1 open, whose frames a test writes by itself.
func Login(t testing.TB, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	b := []byte(amqp.ProtocolHeader)
	b = (&amqp.ConnectionStartOk{ClientProperties: table.Append(nil, nil), Mechanism: []byte("PLAIN"), Response: []byte("\x00guest\x00guest"), Locale: []byte("en_US")}).AppendFrame(b, 0)
	b = (&amqp.ConnectionTuneOk{ChannelMax: 2047, FrameMax: 131072}).AppendFrame(b, 0)
	b = (&amqp.ConnectionOpen{VirtualHost: []byte("/")}).AppendFrame(b, 0)
	b = (&amqp.ChannelOpen{}).AppendFrame(b, 1)
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	Wait(t, c, amqp.IDChannelOpenOk)
	c.SetDeadline(time.Time{})
	return c
}

// Wait reads frames up to a method.
func Wait(t testing.TB, c net.Conn, id amqp.MethodID) {
	t.Helper()
	var b []byte
	one := make([]byte, 1)
	for {
		f, n, err := amqp.Next(b, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			got, _, _ := amqp.CutMethod(f.Payload)
			if got == id {
				return
			}
			if got == amqp.IDConnectionClose || got == amqp.IDChannelClose {
				t.Fatalf("closed: %q", f.Payload)
			}
			b = b[n:]
			continue
		}
		// A byte at a time, so that nothing behind the method is read.
		if _, err := io.ReadFull(c, one); err != nil {
			t.Fatal(err)
		}
		b = append(b, one...)
	}
}

// Consume consumes a queue, which it declares, and reads nothing.
func Consume(t testing.TB, addr, queue string, noAck bool) net.Conn {
	t.Helper()
	c := Login(t, addr)
	b := (&amqp.QueueDeclare{Queue: []byte(queue), Arguments: table.Append(nil, nil)}).AppendFrame(nil, 1)
	b = (&amqp.BasicConsume{Queue: []byte(queue), NoAck: noAck, Arguments: table.Append(nil, nil)}).AppendFrame(b, 1)
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	Wait(t, c, amqp.IDBasicConsumeOk)
	return c
}

// HalfSent is a connection that began a message of size bytes and sent so many of them.
func HalfSent(t testing.TB, addr string, size, sent int) net.Conn {
	t.Helper()
	c := Login(t, addr)
	if _, err := c.Write(BeginMessage(size, sent)); err != nil {
		t.Fatal(err)
	}
	return c
}

// BeginMessage is the start of a publish on channel 1.
func BeginMessage(size, sent int) []byte {
	b := (&amqp.BasicPublish{RoutingKey: []byte("q")}).AppendFrame(nil, 1)
	b = amqp.AppendContentHeader(b, 1, size, []byte{0, 0})
	return amqp.AppendBody(b, 1, bytes.Repeat([]byte("x"), sent), 131072)
}
