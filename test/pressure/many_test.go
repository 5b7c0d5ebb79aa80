//go:build linux

package pressure

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

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

// Ten thousand idle connections of each kind take so much resident memory each; the kernel's part is not in it.
func TestManyIdleConnections(t *testing.T) {
	const many, processes = 10_000, 2
	for _, c := range []struct {
		kind string
		most int64 // bytes each
	}{
		{"FMQ1", 6 << 10},
		{"AMQP", 6 << 10},
		{"AMQP+channel", 10 << 10},
	} {
		t.Run(c.kind, func(t *testing.T) {
			b := brokertest.Start(t, brokertest.Options{Flags: []string{"--log-level", "error"}})
			needFiles(t, b, many)
			var crowds [processes]*crowd
			for i := range crowds {
				crowds[i] = startCrowd(t, b)
				crowds[i].do(t, "open %s %d", c.kind, 50) // what the first connections bring along
			}
			open := 0
			brokertest.Eventually(t, within, "the first are open", func() bool {
				was := open
				open = files(t, b.Pid())
				return open == was
			})
			alone, busy := rss(b.Pid()), cpu(t, b.Pid())
			begin := time.Now()
			opened := make(chan error, processes)
			for _, crowd := range crowds {
				go func() { opened <- crowd.ask("open %s %d", c.kind, many/processes) }()
			}
			for range crowds {
				if err := <-opened; err != nil {
					t.Fatal(err)
				}
			}
			took, busy := time.Since(begin), cpu(t, b.Pid())-busy
			brokertest.Eventually(t, within, "all are open", func() bool { return files(t, b.Pid()) >= open+many })
			// What the logins left behind is collected, and given back, a little later.
			var each int64
			brokertest.Eventually(t, within, fmt.Sprintf("%d bytes for each connection at most", c.most), func() bool {
				each = (rss(b.Pid()) - alone) / many
				return each <= c.most
			})
			t.Logf("%d connections in %s, %.0f a second, %.0f µs of the broker's processor each; %d bytes each",
				many, took.Round(time.Millisecond), many/took.Seconds(), busy/many*1e6, each)
			for _, crowd := range crowds {
				crowd.leave()
			}
			roundTrip(t, b)
			brokertest.Eventually(t, within, "no connection is left", func() bool { return files(t, b.Pid()) < open }) // their first ones included
		})
	}
}

// 2,000 clients that are cut off at once come back while others send messages, and are served again.
func TestReconnectStorm(t *testing.T) {
	const many = 2000
	b := brokertest.Start(t, brokertest.Options{Flags: []string{"--log-level", "error"}})
	needFiles(t, b, many)
	p := startPair(t, b)
	c := startCrowd(t, b)
	c.do(t, "open AMQP+channel %d", many)
	open := files(t, b.Pid())
	c.do(t, "drop %d", many)
	begin, before := time.Now(), p.passed.Load()
	c.do(t, "open AMQP+channel %d", many)
	took := time.Since(begin)
	t.Logf("%d connections dropped at once are back after %s; %.0f messages a second meanwhile", many, took.Round(time.Millisecond), float64(p.passed.Load()-before)/took.Seconds())
	brokertest.Eventually(t, within, "the old connections are gone", func() bool { return files(t, b.Pid()) <= open })
	p.stop()
	roundTrip(t, b)
}

// needFiles skips a test, or fails it in "make test", when the broker may not have so many open files.
func needFiles(t *testing.T, b *brokertest.Broker, n int) {
	t.Helper()
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", b.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(limits), "Max open files")
	if limit, err := strconv.Atoi(strings.Fields(line)[0]); err == nil && limit < n+100 {
		t.Skipf("the broker may open %d files, and the test needs %d: raise the hard limit (ulimit -Hn)", limit, n+100)
	}
}

// Connections that come and go leave no memory, no goroutine and no descriptor behind.
func TestConnectionsLeaveNothing(t *testing.T) {
	b := brokertest.Start(t, brokertest.Options{Flags: []string{"--log-level", "error"}})
	goroutines := func() int {
		var n []struct {
			Goroutines int `json:"proc_used"`
		}
		api(t, b, "/nodes", &n)
		return n[0].Goroutines
	}
	c := startCrowd(t, b)
	rounds := 0
	round := func() {
		for _, kind := range []string{"AMQP+channel", "FMQ1"} {
			c.do(t, "open %s 50", kind)
		}
		c.do(t, "drop 100")
		rounds++
	}
	for range 20 {
		round()
	}
	fds, procs := files(t, b.Pid()), goroutines()
	before := rss(b.Pid())
	rounds = 0
	// 100 a second, for as long as soak asks.
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	keep(t, "2,000 connections", func() bool {
		if rounds >= 20 {
			<-tick.C
		}
		round()
		return rounds >= 20
	})
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
	p := startPair(t, b)
	c := startCrowd(t, b)
	c.do(t, "misbehave %d", peers)
	// What a message costs all three processes together: on a machine that is busy, whatever else makes it so, the
	// rate is one divided by that.
	var alone, beside work
	measure := func(w *work) {
		begin, passedBefore, cpuBefore := time.Now(), p.passed.Load(), cpu(t, b.Pid(), os.Getpid(), c.cmd.Process.Pid)
		brokertest.Eventually(t, within, "messages pass", func() bool {
			return p.passed.Load() > passedBefore+1000 && time.Since(begin) > time.Second/2
		})
		w.messages += float64(p.passed.Load() - passedBefore)
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
	p.stop()
	roundTrip(t, b)
}

// pair is a publisher and a consumer, with 1,000 messages on their way at most.
type pair struct {
	passed  atomic.Int64
	quit    chan struct{}
	running sync.WaitGroup
}

func startPair(t *testing.T, b *brokertest.Broker) *pair {
	t.Helper()
	ch := dialAMQP(t, b.AMQPURL)
	if _, err := ch.QueueDeclare("pair", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	list, err := dialAMQP(t, b.AMQPURL).Consume("pair", "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{quit: make(chan struct{})}
	window := make(chan struct{}, 1000)
	p.running.Go(func() {
		for {
			select {
			case <-p.quit:
				return
			case window <- struct{}{}:
			}
			if err := ch.Publish("", "pair", false, false, amqp091.Publishing{Body: make([]byte, 256)}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	p.running.Go(func() {
		for {
			select {
			case <-p.quit:
				return
			case <-list:
				p.passed.Add(1)
				<-window
			}
		}
	})
	return p
}

func (p *pair) stop() {
	close(p.quit)
	p.running.Wait()
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
