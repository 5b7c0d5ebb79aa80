package server

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/firemq/firemq/frames/amqp"
	tables "github.com/firemq/firemq/frames/table"
)

// rawLogin is an AMQP connection with channel 1 open, whose frames a test writes by itself.
func rawLogin(t testing.TB, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	b := []byte(amqp.ProtocolHeader)
	b = (&amqp.ConnectionStartOk{ClientProperties: tables.Append(nil, nil), Mechanism: []byte("PLAIN"), Response: []byte("\x00guest\x00guest"), Locale: []byte("en_US")}).AppendFrame(b, 0)
	b = (&amqp.ConnectionTuneOk{ChannelMax: 2047, FrameMax: 131072}).AppendFrame(b, 0)
	b = (&amqp.ConnectionOpen{VirtualHost: []byte("/")}).AppendFrame(b, 0)
	b = (&amqp.ChannelOpen{}).AppendFrame(b, 1)
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	rawWait(t, c, amqp.IDChannelOpenOk)
	c.SetDeadline(time.Time{})
	return c
}

// rawWait reads frames up to a method.
func rawWait(t testing.TB, c net.Conn, id amqp.MethodID) {
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

// rawConsumer consumes a queue, which it declares, and reads nothing.
func rawConsumer(t testing.TB, addr, queue string, noAck bool) net.Conn {
	t.Helper()
	c := rawLogin(t, addr)
	b := (&amqp.QueueDeclare{Queue: []byte(queue), Arguments: tables.Append(nil, nil)}).AppendFrame(nil, 1)
	b = (&amqp.BasicConsume{Queue: []byte(queue), NoAck: noAck, Arguments: tables.Append(nil, nil)}).AppendFrame(b, 1)
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	rawWait(t, c, amqp.IDBasicConsumeOk)
	return c
}

// halfSent is a connection that began a message of size bytes and sent so many of them.
func halfSent(t testing.TB, addr string, size, sent int) net.Conn {
	t.Helper()
	c := rawLogin(t, addr)
	if _, err := c.Write(beginMessage(size, sent)); err != nil {
		t.Fatal(err)
	}
	return c
}

// beginMessage is the start of a publish on channel 1.
func beginMessage(size, sent int) []byte {
	b := (&amqp.BasicPublish{RoutingKey: []byte("q")}).AppendFrame(nil, 1)
	b = amqp.AppendContentHeader(b, 1, size, []byte{0, 0})
	return amqp.AppendBody(b, 1, bytes.Repeat([]byte("x"), sent), 131072)
}
