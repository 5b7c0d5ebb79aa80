//go:build linux

package pressure

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/internal/rawamqp"
	"github.com/firemq/firemq/test/internal/brokertest"
)

// A crowd is many clients in a process of its own, this test binary again: neither their descriptors nor their
// goroutines are in the way of the clients that a test measures. It is told what to do a line at a time, and
// answers each with one.
type crowd struct {
	cmd     *exec.Cmd
	orders  io.WriteCloser
	answers *bufio.Scanner
}

// crowdEnv has the addresses of the broker when this process is a crowd: AMQP, the FireMQ protocol, and AMQP over TLS
// if the broker has that.
const crowdEnv = "FIREMQ_TEST_CROWD"

func TestMain(m *testing.M) {
	if addrs := os.Getenv(crowdEnv); addrs != "" {
		beCrowd(strings.Fields(addrs))
		os.Exit(0)
	}
	os.Exit(brokertest.Main(m.Run))
}

// startCrowd starts the process, which knows more addresses of the broker if there are any; it ends with the test.
func startCrowd(t *testing.T, b *brokertest.Broker, more ...string) *crowd {
	t.Helper()
	c := &crowd{cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), crowdEnv+"="+strings.Join(append([]string{brokertest.Address(t, b.AMQPURL), brokertest.Address(t, b.FireURL)}, more...), " "))
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.orders, c.answers = in, bufio.NewScanner(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.leave() })
	return c
}

// leave ends the process, and with it all its connections at once. Calling it again does nothing.
func (c *crowd) leave() {
	c.cmd.Process.Kill()
	c.cmd.Wait() // its error is that it was killed, or that this was done before
}

// do has the crowd carry out an order, and waits until it has.
func (c *crowd) do(t *testing.T, order string, args ...any) {
	t.Helper()
	if err := c.ask(order, args...); err != nil {
		t.Fatal(err)
	}
}

func (c *crowd) ask(order string, args ...any) error {
	order = fmt.Sprintf(order, args...)
	fmt.Fprintln(c.orders, order)
	if !c.answers.Scan() {
		return fmt.Errorf("the crowd ended at %q", order)
	}
	if s := c.answers.Text(); s != "done" {
		return fmt.Errorf("%s: %s", order, s)
	}
	return nil
}

// pause stops the process, or lets it go on.
func (c *crowd) pause(on bool) {
	sig := syscall.SIGCONT
	if on {
		sig = syscall.SIGSTOP
	}
	c.cmd.Process.Signal(sig)
}

// beCrowd carries out orders until there are no more.
func beCrowd(addrs []string) {
	m := &many{amqp: addrs[0], fire: addrs[1]}
	if len(addrs) > 2 {
		m.amqps = addrs[2]
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var kind string
		var n int
		err := fmt.Errorf("no such order")
		switch verb, rest, _ := strings.Cut(in.Text(), " "); verb {
		case "open": // so many connections of a kind
			if _, err = fmt.Sscan(rest, &kind, &n); err == nil {
				err = m.open(kind, n)
			}
		case "drop": // the last so many
			if _, err = fmt.Sscan(rest, &n); err == nil {
				m.drop(n)
			}
		case "stall": // so many connections of a kind, in their handshake
			if _, err = fmt.Sscan(rest, &kind, &n); err == nil {
				err = m.stall(kind, n)
			}
		case "work": // a client that takes so many messages
			if _, err = fmt.Sscan(rest, &kind, &n); err == nil {
				err = m.work(kind, n)
			}
		case "publish": // a message of each of those
			err = nil
			for _, publish := range m.publish {
				err = errors.Join(err, publish())
			}
		case "misbehave":
			if _, err = fmt.Sscan(rest, &n); err == nil {
				err = m.misbehave(n)
			}
		}
		if err != nil {
			fmt.Printf("%q: %v\n", in.Text(), err)
			continue
		}
		fmt.Println("done")
	}
}

// many are the connections of a crowd.
type many struct {
	amqp, fire, amqps string // addresses

	publish []func() error // of those that work

	mu    sync.Mutex
	conns []net.Conn // guarded by mu
}

func (m *many) keep(c net.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns = append(m.conns, c)
}

// open logs in n clients, some at a time.
func (m *many) open(kind string, n int) error {
	connect := map[string]func() (net.Conn, error){
		"AMQP":         func() (net.Conn, error) { return rawamqp.Connect(m.amqp, "guest", nil, amqp.IDConnectionOpenOk) },
		"AMQP+channel": m.login,
		"FMQ1":         func() (net.Conn, error) { return connectFMQ1(m.fire, 0) },
	}[kind]
	return together(32, n, func(int) error {
		c, err := connect()
		if err == nil {
			m.keep(c)
		}
		return err
	})
}

// stall has n clients send most of the longest frame that may come before a login; or log in, up to the vhost, with
// as much of properties.
func (m *many) stall(kind string, n int) error {
	const most = 64 << 10
	addr, first := m.amqp, []byte(amqp.ProtocolHeader)
	switch kind {
	case "AMQP":
		login := amqp.ConnectionStartOk{ClientProperties: table.Append(nil, table.Table{{Name: "x", Value: table.StringValue(strings.Repeat("x", most-1000))}})}
		first = login.AppendFrame(first, 0)
		first = first[:len(first)-1]
	case "FMQ1":
		addr = m.fire
		hello := fmq1.Hello{Ver: 1, Auth: fmq1.Auth{Mech: "plain", User: strings.Repeat("x", most-1000)}}
		first = fmq1.Append([]byte(fmq1.Preface), fmq1.OpHello, &hello)
		first = first[:len(first)-1]
	case "properties": // which take more memory than on the wire
		properties := make(table.Table, most/8)
		for i := range properties {
			properties[i] = table.Field{Name: fmt.Sprint(i), Value: table.BoolValue(true)}
		}
		login := amqp.ConnectionStartOk{ClientProperties: table.Append(nil, properties), Mechanism: []byte("PLAIN"), Response: []byte("\x00guest\x00guest"), Locale: []byte("en_US")}
		first = login.AppendFrame(first, 0)
	default:
		return fmt.Errorf("no such kind")
	}
	return together(32, n, func(int) error {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			m.keep(c)
			c.Write(first) // its error is that it was refused
		}
		return err
	})
}

func (m *many) drop(n int) {
	for _, c := range m.conns[len(m.conns)-n:] {
		c.Close()
	}
	m.conns = m.conns[:len(m.conns)-n]
}

// together calls f for 0 to n-1, from some goroutines, until one fails.
func together(goroutines, n int, f func(i int) error) error {
	var next atomic.Int64
	failed := make(chan error, goroutines)
	for range goroutines {
		go func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					failed <- nil
					return
				}
				if err := f(i); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	for range goroutines {
		if err := <-failed; err != nil {
			return err
		}
	}
	return nil
}

// login is an AMQP connection with channel 1 open.
func (m *many) login() (net.Conn, error) {
	return rawamqp.Connect(m.amqp, "guest", (&amqp.ChannelOpen{}).AppendFrame(nil, 1), amqp.IDChannelOpenOk)
}

// connectFMQ1 logs in over the FireMQ protocol, with heartbeats or without, and reads up to welcome.
func connectFMQ1(addr string, heartbeat time.Duration) (net.Conn, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	hello := fmq1.Hello{Ver: 1, Heartbeat: uint32(heartbeat / time.Second), Auth: fmq1.Auth{Mech: "plain", User: "guest", Pass: "guest"}}
	_, err = c.Write(fmq1.Append([]byte(fmq1.Preface), fmq1.OpHello, &hello))
	c.SetDeadline(time.Now().Add(within))
	b := make([]byte, 4096)
	for n := 0; err == nil; {
		var f fmq1.Frame
		var k int
		if k, err = c.Read(b[n:]); err != nil {
			break
		}
		n += k
		if f, k, _, err = fmq1.Next(b[:n], uint32(len(b))); k > 0 && err == nil {
			if f.Op == fmq1.OpWelcome {
				c.SetDeadline(time.Time{})
				return c, nil
			}
			err = fmt.Errorf("%s in the place of welcome", f.Op)
		}
	}
	c.Close()
	return nil, err
}

// misbehave starts n clients that do what they should not, a third of them as fast as they can.
func (m *many) misbehave(n int) error {
	if err := m.prepareUnread(); err != nil {
		return err
	}
	hello, err := clientHello()
	if err != nil {
		return err
	}
	floods := []func(i int) error{
		m.floodReading(func(int) []byte {
			return (&amqp.ChannelClose{}).AppendFrame((&amqp.ChannelOpen{}).AppendFrame(nil, 2), 2)
		}),
		m.floodReading(func(k int) []byte { return declare(fmt.Sprint("declared.", k%1000), false) }),
		m.floodReading(func(k int) []byte { return declare(fmt.Sprint("durable.", k%1000), true) }),
		m.flood(func(k int) []byte { return declare(fmt.Sprint("answerless.", k%20), false) }),
		m.floodReading(func(k int) []byte {
			b := (&amqp.QueueBind{Queue: []byte("unread"), Exchange: []byte("amq.topic"), RoutingKey: fmt.Appendf(nil, "a.%d.#", k%100), Arguments: table.Append(nil, nil)}).AppendFrame(nil, 1)
			return (&amqp.QueueUnbind{Queue: []byte("unread"), Exchange: []byte("amq.topic"), RoutingKey: fmt.Appendf(nil, "a.%d.#", k%100), Arguments: table.Append(nil, nil)}).AppendFrame(b, 1)
		}),
		m.floodReading(func(int) []byte {
			b := (&amqp.BasicConsume{Queue: []byte("empty"), ConsumerTag: []byte("c"), Arguments: table.Append(nil, nil)}).AppendFrame(nil, 1)
			return (&amqp.BasicCancel{ConsumerTag: []byte("c")}).AppendFrame(b, 1)
		}),
		m.floodFMQ1,
	}
	// Those who connect without end come when the others are there, who would wait behind them.
	comers := []func(i int) error{
		m.again(func() (net.Conn, error) {
			return rawamqp.Connect(m.amqp, "guest", nil, amqp.IDConnectionOpenOk)
		}),
		m.again(func() (net.Conn, error) {
			return rawamqp.ConnectAs(m.amqp, "nobody", "wrong", nil, amqp.IDConnectionTune)
		}),
		m.again(func() (net.Conn, error) { return net.Dial("tcp", m.amqp) }),
		m.again(func() (net.Conn, error) { return m.hello(hello) }),
	}
	quiet := []func(i int) error{
		m.unread,
		m.halfFrame,
	}
	stalled := []func(i int) error{ // each is dropped after the time for a handshake, and comes again
		m.again(func() (net.Conn, error) { return m.stalled(m.amqp, []byte(amqp.ProtocolHeader[:4])) }),
		m.again(func() (net.Conn, error) { return m.stalled(m.amqps, hello) }),
	}
	some := func(n int, of []func(i int) error) error {
		return together(16, n, func(i int) error { return of[i%len(of)](i) })
	}
	return errors.Join(some(n/5, floods), some(n/3, quiet), some(n/3, stalled), some(n-n/5-2*(n/3), comers))
}

func declare(queue string, durable bool) []byte {
	return (&amqp.QueueDeclare{Queue: []byte(queue), Durable: durable, Arguments: table.Append(nil, nil)}).AppendFrame(nil, 1)
}

// prepareUnread makes a queue that others consume and do not read, and an empty one.
func (m *many) prepareUnread() error {
	c, err := rawamqp.Connect(m.amqp, "guest", append((&amqp.ChannelOpen{}).AppendFrame(nil, 1), append(declare("empty", false), declare("unread", false)...)...), amqp.IDQueueDeclareOk)
	if err == nil {
		m.keep(c)
	}
	return err
}

// stalled begins a handshake, and says nothing more until it is cut off.
func (m *many) stalled(addr string, first []byte) (net.Conn, error) {
	c, err := net.Dial("tcp", addr)
	if err == nil {
		_, err = c.Write(first)
	}
	if err == nil {
		io.Copy(io.Discard, c)
	}
	return c, err
}

// hello has the broker compute its part of a TLS handshake, without computing anything.
func (m *many) hello(hello []byte) (net.Conn, error) {
	c, err := net.Dial("tcp", m.amqps)
	if err == nil {
		_, err = c.Write(hello)
	}
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	return c, err
}

// clientHello is what a TLS client says first.
func clientHello() ([]byte, error) {
	here, there := net.Pipe()
	go func() {
		tls.Client(there, &tls.Config{InsecureSkipVerify: true}).Handshake() // its error is that here is closed
		there.Close()
	}()
	defer here.Close()
	const head = 5 // of a TLS record, whose length is in the last two octets
	b := make([]byte, 4096)
	n, err := io.ReadAtLeast(here, b, head)
	if err != nil {
		return nil, err
	}
	size := head + int(binary.BigEndian.Uint16(b[head-2:]))
	if n < size {
		_, err = io.ReadFull(here, b[n:size])
	}
	return b[:size], err
}

// unread publishes to a queue that it consumes, and reads nothing.
func (m *many) unread(i int) error {
	c, err := m.login()
	if err != nil {
		return err
	}
	m.keep(c)
	name := []byte(fmt.Sprint("unread.", i))
	b := (&amqp.QueueDeclare{Queue: name, Exclusive: true, Arguments: table.Append(nil, nil)}).AppendFrame(nil, 1)
	b = (&amqp.BasicConsume{Queue: name, Arguments: table.Append(nil, nil)}).AppendFrame(b, 1)
	for range 16 {
		b = (&amqp.BasicPublish{RoutingKey: name}).AppendFrame(b, 1)
		b = amqp.AppendContentHeader(b, 1, 64<<10, []byte{0, 0})
		b = amqp.AppendBody(b, 1, make([]byte, 64<<10), 131072)
	}
	_, err = c.Write(b)
	return err
}

func (m *many) halfFrame(int) error {
	c, err := m.login()
	if err == nil {
		m.keep(c)
		_, err = c.Write(rawamqp.BeginMessage(1<<20, 1000)[:900])
	}
	return err
}

// flood logs in and writes frames for ever.
func (m *many) flood(frames func(k int) []byte) func(int) error {
	return func(int) error {
		c, err := m.login()
		if err != nil {
			return err
		}
		m.keep(c)
		go write(c, frames)
		return nil
	}
}

// floodReading also reads the answers.
func (m *many) floodReading(frames func(k int) []byte) func(int) error {
	return func(int) error {
		c, err := m.login()
		if err != nil {
			return err
		}
		m.keep(c)
		go write(c, frames)
		go io.Copy(io.Discard, c)
		return nil
	}
}

func (m *many) floodFMQ1(int) error {
	c, err := connectFMQ1(m.fire, 0)
	if err != nil {
		return err
	}
	m.keep(c)
	go write(c, func(k int) []byte {
		return fmq1.Append(nil, fmq1.OpDeclareQueue, &fmq1.DeclareQueue{RID: uint64(k) + 1, Name: fmt.Sprint("fire.", k%1000)})
	})
	go io.Copy(io.Discard, c)
	return nil
}

// write sends frames as fast as they are taken, some at a time, until the connection ends. They are made once: what
// peers take of a processor, which they share with the broker, is for sending.
func write(c net.Conn, frames func(k int) []byte) {
	var parts [][]byte
	for k := 0; k < 1000; {
		var b []byte
		for range 20 {
			b = append(b, frames(k)...)
			k++
		}
		parts = append(parts, b)
	}
	for {
		for _, b := range parts {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}
}

// again connects and closes for ever; that it is refused is no matter. It closes with a reset, which leaves no
// port behind that waits: the crowd would run out of them.
func (m *many) again(connect func() (net.Conn, error)) func(int) error {
	return func(int) error {
		go func() {
			for {
				c, err := connect()
				if err == nil {
					c.(*net.TCPConn).SetLinger(0)
					c.Close()
				}
			}
		}()
		return nil
	}
}
