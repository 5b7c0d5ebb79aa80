// Package rawamqp speaks AMQP 0-9-1 frame by frame, for tests of what no client library does.
package rawamqp

import (
	"bytes"
	"encoding/binary"
	"fmt"
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
	c, err := Connect(addr, "guest", (&amqp.ChannelOpen{}).AppendFrame(nil, 1), amqp.IDChannelOpenOk)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Connect logs in as guest and sends what more there is right behind it. It returns when the method until has
// come, which is connection.open-ok when nothing is sent, and reads nothing behind that.
func Connect(addr, password string, more []byte, until amqp.MethodID) (net.Conn, error) {
	return ConnectAs(addr, "guest", password, more, until)
}

// ConnectAs is Connect for another user.
func ConnectAs(addr, user, password string, more []byte, until amqp.MethodID) (net.Conn, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(patience))
	b := []byte(amqp.ProtocolHeader)
	b = (&amqp.ConnectionStartOk{ClientProperties: table.Append(nil, nil), Mechanism: []byte("PLAIN"), Response: []byte("\x00" + user + "\x00" + password), Locale: []byte("en_US")}).AppendFrame(b, 0)
	b = (&amqp.ConnectionTuneOk{ChannelMax: 2047, FrameMax: 131072}).AppendFrame(b, 0)
	b = (&amqp.ConnectionOpen{VirtualHost: []byte("/")}).AppendFrame(b, 0)
	if _, err = c.Write(append(b, more...)); err == nil {
		err = wait(c, until)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	c.SetDeadline(time.Time{})
	return c, nil
}

// Wait reads frames up to a method.
func Wait(t testing.TB, c net.Conn, id amqp.MethodID) {
	t.Helper()
	if err := wait(c, id); err != nil {
		t.Fatal(err)
	}
}

func wait(c net.Conn, id amqp.MethodID) error {
	b := make([]byte, 1024)
	for {
		const header = 7 // type, channel, size: nothing behind the frame is read
		if _, err := io.ReadFull(c, b[:header]); err != nil {
			return err
		}
		size := header + int(binary.BigEndian.Uint32(b[3:])) + 1
		if size > len(b) {
			b = append(make([]byte, 0, size), b...)[:size]
		}
		if _, err := io.ReadFull(c, b[header:size]); err != nil {
			return err
		}
		f, _, err := amqp.Next(b[:size], 1<<20)
		if err != nil {
			return err
		}
		switch got, _, _ := amqp.CutMethod(f.Payload); got {
		case id:
			return nil
		case amqp.IDConnectionClose, amqp.IDChannelClose:
			return fmt.Errorf("closed: %q", f.Payload)
		}
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
