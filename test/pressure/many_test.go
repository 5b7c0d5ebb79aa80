//go:build linux

package pressure

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/internal/rawamqp"
	"github.com/firemq/firemq/test/internal/brokertest"
)

// files counts the descriptors that a process has open.
func files(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// connect opens n connections with a channel each, some at a time.
func connect(t *testing.T, addr string, n int) []net.Conn {
	t.Helper()
	conns := make([]net.Conn, n)
	var next atomic.Int64
	var running sync.WaitGroup
	for range 16 {
		running.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				conns[i] = rawamqp.Login(t, addr)
			}
		})
	}
	running.Wait()
	return conns
}

// Many idle connections with a channel each take less than 10 KiB each; when all are cut off at once and
// come back, they are served again, and nothing is left of the old ones.
func TestManyIdleConnections(t *testing.T) {
	const many, limit, storm = 9000, 10 << 10, 2000
	b := brokertest.Start(t, brokertest.Options{Flags: []string{"--log-level", "error"}})
	addr := brokertest.Address(t, b.AMQPURL)
	for _, c := range connect(t, addr, 50) { // what the first connections bring along
		c.Close()
	}
	alone, open := rss(b.Pid()), files(t, b.Pid())
	begin := time.Now()
	conns := connect(t, addr, many)
	took := time.Since(begin)
	each := (rss(b.Pid()) - alone) / many
	t.Logf("%d connections in %s, %.0f a second; %d bytes each", many, took.Round(time.Millisecond), many/took.Seconds(), each)
	if each > limit {
		t.Errorf("%d bytes for each connection, want %d at most", each, limit)
	}
	for _, c := range conns[:storm] {
		c.Close()
	}
	begin = time.Now()
	again := connect(t, addr, storm)
	t.Logf("%d connections dropped at once are back after %s", storm, time.Since(begin).Round(time.Millisecond))
	roundTrip(t, b)
	for _, c := range append(conns[storm:], again...) {
		c.Close()
	}
	brokertest.Eventually(t, within, "no connection is left", func() bool { return files(t, b.Pid()) <= open+5 }) // one of ours
}

// Connections that come and go leave no memory, no goroutine and no descriptor behind.
func TestConnectionsLeaveNothing(t *testing.T) {
	b := brokertest.Start(t, brokertest.Options{Flags: []string{"--log-level", "error"}})
	addr := brokertest.Address(t, b.AMQPURL)
	goroutines := func() int {
		var n []struct {
			Goroutines int `json:"proc_used"`
		}
		api(t, b, "/nodes", &n)
		return n[0].Goroutines
	}
	round := func() {
		for _, c := range connect(t, addr, 100) {
			c.Close()
		}
	}
	for range 20 {
		round()
	}
	fds, procs := files(t, b.Pid()), goroutines()
	before := rss(b.Pid())
	rounds := 0
	keep(t, "2,000 connections", func() bool { round(); rounds++; return rounds >= 20 })
	brokertest.Eventually(t, within, "descriptors and goroutines are as before", func() bool {
		return files(t, b.Pid()) <= fds+20 && goroutines() <= procs+20 // those of the API itself
	})
	after := rss(b.Pid())
	t.Logf("%d connections, %d KiB resident before and %d after", rounds*100, before>>10, after>>10)
	if after > before+16<<20 {
		t.Errorf("%d bytes more after %d connections", after-before, rounds*100)
	}
}

// 500 peers that misbehave in every way, and a pair that doesn't: the pair goes on.
func TestMisbehavingPeers(t *testing.T) {
	b := brokertest.Start(t, brokertest.Options{Flags: []string{"--log-level", "off"}})
	addr := brokertest.Address(t, b.AMQPURL)
	ch := dialAMQP(t, b.AMQPURL)
	if _, err := ch.QueueDeclare("pair", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	list, err := dialAMQP(t, b.AMQPURL).Consume("pair", "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	var passed atomic.Int64
	window, quit := make(chan struct{}, 1000), make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-quit:
				return
			case window <- struct{}{}:
			}
			if err := ch.Publish("", "pair", false, false, amqp091.Publishing{Body: make([]byte, 256)}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	running.Go(func() {
		for {
			select {
			case <-quit:
				return
			case <-list:
				passed.Add(1)
				<-window
			}
		}
	})
	rate := func() float64 {
		begin, before := time.Now(), passed.Load()
		brokertest.Eventually(t, within, "5,000 messages pass", func() bool { return passed.Load() > before+5_000 && time.Since(begin) > *soak/4 })
		return float64(passed.Load()-before) / time.Since(begin).Seconds()
	}
	alone := rate()
	var conns []net.Conn
	for i := range 500 {
		var c net.Conn
		kind := i % 3
		if i%50 < 2 {
			kind = 3 + i%50
		}
		switch kind {
		case 0: // a handshake that stalls
			if c, err = net.Dial("tcp", addr); err == nil {
				_, err = c.Write([]byte(amqp.ProtocolHeader[:4]))
			}
		case 1: // reads nothing
			c = rawamqp.Consume(t, addr, fmt.Sprint("unread.", i), true)
		case 2: // half a frame
			c = rawamqp.Login(t, addr)
			_, err = c.Write(rawamqp.BeginMessage(1<<20, 1000)[:900])
		case 3: // opens channels and reads no answer
			c = rawamqp.Login(t, addr)
			flood(c, quit, &running, func(n int) []byte {
				return (&amqp.ChannelClose{}).AppendFrame((&amqp.ChannelOpen{}).AppendFrame(nil, 2), 2)
			})
		case 4: // declares and reads no answer
			c = rawamqp.Login(t, addr)
			flood(c, quit, &running, func(n int) []byte {
				return (&amqp.QueueDeclare{Queue: fmt.Appendf(nil, "declared.%d.%d", i, n%20), Arguments: []byte{0, 0, 0, 0}}).AppendFrame(nil, 1)
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	with := rate()
	t.Logf("%.0f messages a second alone, %.0f beside 500 misbehaving peers: %.0f percent", alone, with, 100*with/alone)
	close(quit)
	for _, c := range conns {
		c.Close()
	}
	running.Wait()
	roundTrip(t, b)
}

// flood writes until the end without reading.
func flood(c net.Conn, quit chan struct{}, running *sync.WaitGroup, frames func(n int) []byte) {
	running.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-quit:
				return
			default:
			}
			if _, err := c.Write(frames(n)); err != nil {
				return
			}
		}
	})
}
