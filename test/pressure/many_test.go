//go:build linux

package pressure

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"golang.org/x/sys/unix"

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
			alone, _ := resident(b.Pid())
			busy := cpu(t, b.Pid())
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
			keep(t, fmt.Sprintf("%d bytes for each connection at most", c.most), func() bool {
				now, _ := resident(b.Pid())
				each = (now - alone) / many
				return each <= c.most && files(t, b.Pid()) >= open+many
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
	for range rounds(1) {
		c.do(t, "drop %d", many)
		begin, before := time.Now(), p.passed.Load()
		c.do(t, "open AMQP+channel %d", many)
		took := time.Since(begin)
		t.Logf("%d connections dropped at once are back after %s; %.0f messages a second meanwhile", many, took.Round(time.Millisecond), float64(p.passed.Load()-before)/took.Seconds())
		if took > time.Minute {
			t.Errorf("they were back after %s", took)
		}
		brokertest.Eventually(t, within, "the old connections are gone", func() bool { return files(t, b.Pid()) <= open })
	}
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
	before, _ := resident(b.Pid())
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
	after, _ := resident(b.Pid())
	t.Logf("%d connections, %d KiB resident before and %d after", rounds*100, before>>10, after>>10)
	if after > before+16<<20 {
		t.Errorf("%d bytes more after %d connections", after-before, rounds*100)
	}
}

// Beside 500 peers that misbehave in every way, a third of them as fast as they can, a pair of clients goes on. Its
// rate is compared in turns with that of another pair, at a broker without such peers: while one broker is measured the
// other one is stopped. Peers are not on the broker's machine, so they have processors of their own here; pairs and
// brokers share the others. What other programs take of those is left out: a message costs the time in which they
// worked for it or had nothing to do. But it costs more of it beside programs that take turns with them: a round in which
// others take more than a twentieth is measured again, up to most times.
func TestMisbehavingPeers(t *testing.T) {
	const peers, least, rounds, most = 500, 0.8, 10, 40
	ours, theirs := halves(t)
	runOn(t, ours)
	cert, key := selfSigned(t)
	var sides [2]side // without such peers, and with them
	for i := range sides {
		b := brokertest.Start(t, brokertest.Options{Data: t.TempDir(), Flags: []string{"--log-level", "off",
			"--amqps", "127.0.0.1:0", "--fires", "off", "--tls-cert", cert, "--tls-key", key}})
		sides[i] = side{broker: b, pair: startPair(t, b), on: &ours}
		defer sides[i].pause(false) // it is to end
	}
	alone, beside := &sides[0], &sides[1]
	amqps := regexp.MustCompile(`amqps://(\S+)`).FindStringSubmatch(beside.broker.Banner)
	if amqps == nil {
		t.Fatalf("no AMQP over TLS in the banner:\n%s", beside.broker.Banner)
	}
	c := startOn(t, theirs, beside.broker, amqps[1])
	begin := time.Now()
	c.do(t, "misbehave %d", peers)
	alone.pause(true)
	t.Logf("%d misbehaving peers are there after %s", peers, time.Since(begin).Round(time.Millisecond))
	n, again, kept := 0, 0, 0.0
	for begin := time.Now(); n < rounds || n < most && kept < least || time.Since(begin) < *soak; {
		with := beside.measure(t)
		beside.pause(true)
		c.pause(true)
		alone.pause(false)
		without := alone.measure(t)
		alone.pause(true)
		beside.pause(false)
		c.pause(false)
		if busy := (with.used + without.used) / (with.wall + without.wall) / float64(ours.Count()); busy < 0.95 && again < most {
			again++
			continue
		}
		n++
		beside.add(with)
		alone.add(without)
		kept = alone.cost() / beside.cost()
	}
	t.Logf("%.0f messages a second of %.1f µs alone, %.0f of %.1f µs beside %d misbehaving peers: %.0f percent, of the time %.0f; %d rounds, %d more beside other programs",
		alone.messages/alone.wall, alone.cost(), beside.messages/beside.wall, beside.cost(), peers,
		100*kept, 100*beside.messages/beside.wall/(alone.messages/alone.wall), n, again)
	if kept < least {
		t.Errorf("a pair of clients keeps %.2f of its rate, want %.2f", kept, least)
	}
	c.leave()
	alone.pause(false)
	for _, s := range sides {
		s.pair.stop()
		roundTrip(t, s.broker)
	}
}

// side is a broker and a pair of clients, and what they have done.
type side struct {
	broker *brokertest.Broker
	pair   *pair
	on     *unix.CPUSet
	done
}

// done is what passed in some time, in seconds of it and of the processors.
type done struct{ messages, wall, used float64 }

func (d *done) add(more done) {
	d.messages += more.messages
	d.wall += more.wall
	d.used += more.used
}

// cost is what a message takes, in µs of the processors.
func (d *done) cost() float64 { return d.used / d.messages * 1e6 }

// pause stops the broker's process, or lets it go on.
func (s *side) pause(on bool) {
	sig := syscall.SIGCONT
	if on {
		sig = syscall.SIGSTOP
	}
	syscall.Kill(s.broker.Pid(), sig)
}

// measure gives what passes in half a second.
func (s *side) measure(t *testing.T) done {
	used := func() float64 { return cpu(t, s.broker.Pid(), os.Getpid()) + idle(t, s.on) }
	begin, passed, before := time.Now(), s.pair.passed.Load(), used()
	brokertest.Eventually(t, within, "messages pass", func() bool {
		return s.pair.passed.Load() > passed+1000 && time.Since(begin) > time.Second/2
	})
	return done{float64(s.pair.passed.Load() - passed), time.Since(begin).Seconds(), used() - before}
}

// selfSigned writes a certificate, with a key of 2048 bits as most have, and the key.
func selfSigned(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	return write("cert.pem", "CERTIFICATE", cert), write("key.pem", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key))
}

// halves are the processors this process may use, in two sets; the same one twice when there is only one.
func halves(t *testing.T) (a, b unix.CPUSet) {
	t.Helper()
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	if all.Count() == 1 {
		return all, all
	}
	for i, left := 0, all.Count()/2; a.Count()+b.Count() < all.Count(); i++ {
		switch {
		case !all.IsSet(i):
		case a.Count() < left:
			a.Set(i)
		default:
			b.Set(i)
		}
	}
	return a, b
}

// startOn starts a crowd that has these processors.
func startOn(t *testing.T, set unix.CPUSet, b *brokertest.Broker, more ...string) *crowd {
	t.Helper()
	runtime.LockOSThread() // whose processors a process that it starts has
	defer runtime.UnlockOSThread()
	var was unix.CPUSet
	if err := errors.Join(unix.SchedGetaffinity(0, &was), unix.SchedSetaffinity(0, &set)); err != nil {
		t.Fatal(err)
	}
	c := startCrowd(t, b, more...)
	if err := unix.SchedSetaffinity(0, &was); err != nil {
		t.Fatal(err)
	}
	return c
}

// runOn has this process, and those that it starts, run on some processors until the test ends.
func runOn(t *testing.T, set unix.CPUSet) {
	t.Helper()
	var was unix.CPUSet
	if err := unix.SchedGetaffinity(0, &was); err != nil {
		t.Fatal(err)
	}
	move := func(set unix.CPUSet) {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads { // those to come are started by one of these
			id, err := strconv.Atoi(thread.Name())
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.SchedSetaffinity(id, &set); err != nil && !errors.Is(err, unix.ESRCH) {
				t.Fatal(err)
			}
		}
	}
	t.Cleanup(func() { move(was) })
	move(set)
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

// idle is how long processors had nothing to do, in seconds.
func idle(t *testing.T, set *unix.CPUSet) (sum float64) {
	t.Helper()
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line) // the processor; user, nice, system, idle, waiting for a disk in 1/100 s
		id, found := strings.CutPrefix(f[0], "cpu")
		if n, err := strconv.Atoi(id); !found || err != nil || !set.IsSet(n) {
			continue
		}
		for _, ticks := range f[4:6] {
			n, err := strconv.Atoi(ticks)
			if err != nil {
				t.Fatal(err)
			}
			sum += float64(n) / 100
		}
	}
	return sum
}
