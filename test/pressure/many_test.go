//go:build linux

package pressure

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

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

// Beside 500 peers that misbehave in every way, a third of them as fast as they can, a pair of clients goes on. It is
// measured with and without them in turns: their process is stopped in between.
func TestMisbehavingPeers(t *testing.T) {
	const peers, least = 500, 0.3 // what a busy machine takes included: "make pressure" shows what it is
	b := brokertest.Start(t, brokertest.Options{Data: t.TempDir(), Flags: []string{"--log-level", "off"}})
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
	c := startCrowd(t, b)
	c.do(t, "misbehave %d", peers)
	// What a message costs all three processes together: on a machine that is busy, whatever else makes it so, the
	// rate is one divided by that.
	var alone, beside work
	measure := func(w *work) {
		begin, passedBefore, cpuBefore := time.Now(), passed.Load(), cpu(t, b.Pid(), os.Getpid(), c.cmd.Process.Pid)
		brokertest.Eventually(t, within, "messages pass", func() bool {
			return passed.Load() > passedBefore+1000 && time.Since(begin) > time.Second/2
		})
		w.messages += float64(passed.Load() - passedBefore)
		w.wall += time.Since(begin).Seconds()
		w.cpu += cpu(t, b.Pid(), os.Getpid(), c.cmd.Process.Pid) - cpuBefore
	}
	keep(t, "six rounds", func() bool {
		measure(&beside)
		c.pause(true)
		measure(&alone)
		c.pause(false)
		return beside.wall > 3
	})
	kept := alone.cpu / alone.messages * beside.messages / beside.cpu
	t.Logf("%.0f messages a second of %.1f µs, %.0f of %.1f µs beside %d misbehaving peers: %.0f percent; of the time %.0f",
		alone.messages/alone.wall, alone.cpu/alone.messages*1e6, beside.messages/beside.wall, beside.cpu/beside.messages*1e6, peers,
		100*kept, 100*beside.messages/beside.wall/(alone.messages/alone.wall))
	if kept < least {
		t.Errorf("a pair of clients keeps %.2f of its rate, want %.2f", kept, least)
	}
	c.leave()
	close(quit)
	running.Wait()
	roundTrip(t, b)
}

// work is what was done in so many seconds of time, and of processors.
type work struct{ messages, wall, cpu float64 }

// cpu is the processor time that processes have taken, in seconds.
func cpu(t *testing.T, pids ...int) (sum float64) {
	t.Helper()
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		for _, ticks := range f[11:13] { // user and system, in 1/100 s
			n, err := strconv.Atoi(ticks)
			if err != nil {
				t.Fatal(err)
			}
			sum += float64(n) / 100
		}
	}
	return sum
}
