package server

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	fire "github.com/firemq/firemq/sdk/go"
)

// The limits of connections are what clients are offered and held to, and a reload changes them for those
// that come after.
func TestLimitsOfConnections(t *testing.T) {
	o := Options{
		AMQP: free, Fire: free, MaxConnections: 2, MaxMessageSize: 1 << 20, MaxFrame: 64 << 10, ChannelMax: 3, Heartbeat: 7 * time.Second,
		HandshakeTimeout: time.Second,
	}
	s, stop := run(t, o)
	defer stop()
	dial := func() (*amqp.Connection, error) {
		// The client asks for more than the broker offers.
		return amqp.DialConfig("amqp://"+s.AMQPAddr().String(), amqp.Config{Heartbeat: time.Hour, ChannelMax: 100, FrameSize: 1 << 20})
	}
	first, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if c := first.Config; c.ChannelMax != 3 || c.FrameSize != 64<<10 || c.Heartbeat != 7*time.Second {
		t.Errorf("negotiated %d channels, frames of %d, heartbeats of %s", c.ChannelMax, c.FrameSize, c.Heartbeat)
	}
	ch, err := first.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("q", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	if err := ch.Publish("", "q", false, false, amqp.Publishing{Body: make([]byte, 1<<20+1)}); err != nil {
		t.Fatal(err)
	}
	if e := <-closed; e == nil || e.Code != amqp.PreconditionFailed {
		t.Errorf("a message over the limit: %v, want 406", e)
	}
	second, err := fire.Dial(within(t), "fire://"+s.FireAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := second.Publish(within(t), fire.Message{Key: "q", Body: make([]byte, 1000)}); err != nil {
		t.Error(err)
	}
	if c, err := dial(); err == nil {
		c.Close()
		t.Error("a third connection is taken")
	}

	o.MaxConnections, o.ChannelMax, o.MaxMessageSize = 0, 9, 1<<10
	s.Reload(o)
	third, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close()
	if third.Config.ChannelMax != 9 || first.Config.ChannelMax != 3 {
		t.Errorf("%d channels after the reload", third.Config.ChannelMax)
	}
	fourth, err := fire.Dial(within(t), "fire://"+s.FireAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer fourth.Close()
	err = fourth.Publish(within(t), fire.Message{Key: "q", Body: make([]byte, 1<<10+1)})
	if err == nil || !strings.Contains(err.Error(), "PRECONDITION_FAILED - message size 1025 is larger than configured max size 1024") {
		t.Errorf("a message over the new limit: %v", err)
	}
	if err := fourth.Publish(within(t), fire.Message{Key: "q", Body: make([]byte, 1<<10)}); err != nil {
		t.Errorf("a message of the limit: %v", err)
	}
}

// A client that does not log in is dropped when its time is over.
func TestHandshakeTimeout(t *testing.T) {
	s, stop := run(t, Options{AMQP: free, Fire: free, HandshakeTimeout: time.Second})
	defer stop()
	for _, addr := range []net.Addr{s.AMQPAddr(), s.FireAddr()} {
		c, err := net.Dial("tcp", addr.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		begin := time.Now()
		c.SetReadDeadline(begin.Add(patience))
		_, err = io.Copy(io.Discard, c)
		if took := time.Since(begin); errors.Is(err, os.ErrDeadlineExceeded) || took < 900*time.Millisecond {
			t.Errorf("%s: %v after %s", addr, err, took)
		}
	}
}
