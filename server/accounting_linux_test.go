//go:build !race

package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/broker"
	frames "github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/internal/rawamqp"
	fire "github.com/firemq/firemq/sdk/go"
)

// The test's binary is the broker itself when a test has started it as a process of its own.
func init() {
	dir := os.Getenv("FIREMQ_TEST_BROKER")
	if dir == "" {
		return
	}
	if err := serveTest(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// reading is what the process says of its memory, after a collection.
type reading struct {
	AMQP, Fire, HTTP string
	Resident         int64 // without mapped files: how much of the program is resident is the kernel's choice
	Received         int64 // bytes of all connections that are open
	Memory           broker.Memory
}

// serveTest runs a broker until its input ends; each line of it asks for a reading.
func serveTest(dir string) error {
	RaiseFileLimit()
	s, err := Start(context.Background(), Options{AMQP: free, Fire: free, HTTP: free, Data: dir, NoSync: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var resident int64
		memory := s.broker.Memory()
		for range 100 { // until nothing is paged out while it is read
			before := memory
			debug.FreeOSMemory() // what the first collection takes out of pools, the second one frees
			debug.FreeOSMemory()
			if resident, err = anonymousMemory(); err != nil {
				return err
			}
			if memory = s.broker.Memory(); memory == before {
				break
			}
		}
		received := int64(0)
		for _, c := range s.broker.Connections() {
			received += int64(c.Octets().Received)
		}
		if err := out.Encode(reading{s.AMQPAddr().String(), s.FireAddr().String(), s.HTTPAddr().String(), resident, received, memory}); err != nil {
			return err
		}
	}
	return s.Shutdown(context.Background())
}

// anonymousMemory is what of this process is resident and in no file, bytes.
func anonymousMemory() (int64, error) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, all, mapped int64 // pages
	_, err = fmt.Sscan(string(b), &size, &all, &mapped)
	return (all - mapped) * int64(pageSize), err
}

// testBroker is a broker in a process of its own.
type testBroker struct {
	t   *testing.T
	in  io.Writer
	out *json.Decoder
	reading
}

func startProcess(t *testing.T) *testBroker {
	cmd := exec.Command(os.Args[0])
	// What the runtime keeps for each processor is in no account: two of them on every machine.
	cmd.Env = append(os.Environ(), "FIREMQ_TEST_BROKER="+t.TempDir(), "GOMAXPROCS=2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := &testBroker{t: t, in: in, out: json.NewDecoder(out)}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	return b.read()
}

func (b *testBroker) read() *testBroker {
	b.t.Helper()
	if _, err := io.WriteString(b.in, "\n"); err != nil {
		b.t.Fatal(err)
	}
	if err := b.out.Decode(&b.reading); err != nil {
		b.t.Fatal(err)
	}
	return b
}

func (b *testBroker) dial() *amqp.Channel {
	b.t.Helper()
	c, err := amqp.Dial("amqp://" + b.AMQP)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	ch, err := c.Channel()
	if err != nil {
		b.t.Fatal(err)
	}
	return ch
}

func (b *testBroker) publish(n, size int, mode uint8) *amqp.Channel {
	b.t.Helper()
	return b.publishTo("q", n, size, mode)
}

// warm has what comes with the first message and the first connection of all, which is in no account.
func (b *testBroker) warm() {
	b.t.Helper()
	ch := b.publishTo("first", 1000, 200, amqp.Persistent)
	if _, ok, err := ch.Get("first", true); err != nil || !ok {
		b.t.Fatalf("get: %t, %v", ok, err)
	}
	if _, err := ch.QueueDelete("first", false, false, false); err != nil {
		b.t.Fatal(err)
	}
	c, err := fire.Dial(within(b.t), "fire://"+b.Fire)
	if err != nil {
		b.t.Fatal(err)
	}
	c.Close()
}

// publishTo brings n messages into a queue and waits until they are there.
func (b *testBroker) publishTo(queue string, n, size int, mode uint8) *amqp.Channel {
	b.t.Helper()
	ch := b.dial()
	if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		b.t.Fatal(err)
	}
	body := make([]byte, size)
	for range n {
		if err := ch.Publish("", queue, false, false, amqp.Publishing{DeliveryMode: mode, Body: body}); err != nil {
			b.t.Fatal(err)
		}
	}
	if q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil); err != nil || q.Messages != n {
		b.t.Fatalf("%d messages are ready: %v", q.Messages, err)
	}
	return ch
}

// The memory that is accounted for grows as the resident memory does, within a tenth, whatever it is used for.
// So does the kind that a load is for, where it is one alone. What the management API says of all kinds together is the
// resident memory.
func TestMemoryIsAccounted(t *testing.T) {
	messages := func(m *broker.Memory) int64 { return m.Messages }
	queues := func(m *broker.Memory) int64 { return m.Queues }
	topology := func(m *broker.Memory) int64 { return m.Topology }
	for _, c := range []struct {
		name string
		load func(*testBroker)
		kind func(*broker.Memory) int64 // what alone grows; nil: several do
	}{
		{"small messages", func(b *testBroker) { b.publish(150_000, 200, amqp.Transient) }, nil},
		{"messages", func(b *testBroker) { b.publish(15_000, 4000, amqp.Transient) }, nil},
		{"large messages", func(b *testBroker) { b.publish(15, 4<<20, amqp.Transient) }, messages},
		{"unacknowledged", func(b *testBroker) {
			ch := b.publish(100_000, 200, amqp.Transient)
			list, err := ch.Consume("q", "", false, false, false, false, nil)
			if err != nil {
				b.t.Fatal(err)
			}
			for range 100_000 {
				<-list
			}
		}, nil},
		{"backlog on disk", func(b *testBroker) {
			for i := range 6 {
				b.publishTo(fmt.Sprint("backlog.", i), 4000, 4000, amqp.Persistent)
			}
		}, nil},
		{"consumer that does not read", func(b *testBroker) {
			for range 20 {
				c := rawamqp.Consume(b.t, b.AMQP, "q", true)
				b.t.Cleanup(func() { c.Close() })
			}
			ch := b.dial()
			for range 90_000 {
				if err := ch.Publish("", "q", false, false, amqp.Publishing{Body: make([]byte, 3000)}); err != nil {
					b.t.Fatal(err)
				}
			}
			if _, err := ch.QueueDeclarePassive("q", false, false, false, false, nil); err != nil {
				b.t.Fatal(err)
			}
		}, nil},
		{"half sent", func(b *testBroker) {
			const most = 8<<20 - 1
			for range 6 {
				ch := rawamqp.HalfSent(b.t, b.AMQP, 8<<20, most)
				b.t.Cleanup(func() { ch.Close() })
			}
			for b.read().Received < 6*most { // what waits in sockets is accounted, and not resident; the deadline is the test's
			}
		}, messages},
		{"connections", func(b *testBroker) {
			for range 2000 {
				b.dial()
			}
		}, nil},
		{"connections over the FireMQ protocol", func(b *testBroker) {
			for range 3000 {
				c, err := fire.Dial(within(b.t), "fire://"+b.Fire)
				if err != nil {
					b.t.Fatal(err)
				}
				b.t.Cleanup(func() { c.Close() })
			}
		}, nil},
		{"queues", func(b *testBroker) {
			ch := b.dial()
			for i := range 10_000 {
				if _, err := ch.QueueDeclare(fmt.Sprint("queue.", i), false, false, false, false, nil); err != nil {
					b.t.Fatal(err)
				}
			}
		}, queues},
		{"bindings", func(b *testBroker) {
			ch := b.dial()
			if _, err := ch.QueueDeclare("q", false, false, false, false, nil); err != nil {
				b.t.Fatal(err)
			}
			for i := range 30_000 {
				if err := ch.QueueBind("q", fmt.Sprint("key.", i), "amq.topic", true, nil); err != nil {
					b.t.Fatal(err)
				}
			}
			if _, err := ch.QueueDeclarePassive("q", false, false, false, false, nil); err != nil {
				b.t.Fatal(err)
			}
		}, topology},
		{"connections without a channel", func(b *testBroker) {
			for range 3000 {
				c, err := rawamqp.Connect(b.AMQP, "guest", nil, frames.IDConnectionOpenOk)
				if err != nil {
					b.t.Fatal(err)
				}
				b.t.Cleanup(func() { c.Close() })
			}
		}, func(m *broker.Memory) int64 { return m.Connections }},
		{"channels", func(b *testBroker) {
			for range 10 {
				c, err := rawamqp.Connect(b.AMQP, "guest", nil, frames.IDConnectionOpenOk)
				if err != nil {
					b.t.Fatal(err)
				}
				b.t.Cleanup(func() { c.Close() })
				for id := range uint16(1000) {
					if _, err := c.Write((&frames.ChannelOpen{}).AppendFrame(nil, id+1)); err != nil {
						b.t.Fatal(err)
					}
					rawamqp.Wait(b.t, c, frames.IDChannelOpenOk)
				}
			}
		}, func(m *broker.Memory) int64 { return m.Channels }},
		{"frames half sent", func(b *testBroker) {
			const part = 16<<20 - 64<<10 // of the longest frame: the room that was made for it is full
			for range 4 {
				c, err := net.Dial("tcp", b.Fire)
				if err != nil {
					b.t.Fatal(err)
				}
				b.t.Cleanup(func() { c.Close() })
				hello := fmq1.Hello{Ver: 1, Auth: fmq1.Auth{Mech: "plain", User: "guest", Pass: "guest"}}
				first := fmq1.Append([]byte(fmq1.Preface), fmq1.OpHello, &hello)
				if _, err := c.Write(append(append(first, 0, 0xff, 0xff, 0xff), make([]byte, part)...)); err != nil {
					b.t.Fatal(err)
				}
			}
			for received := int64(0); received < 4*part; received = b.read().Memory.Receiving { // the deadline is the test's
			}
		}, func(m *broker.Memory) int64 { return m.Receiving }},
		{"outboxes", func(b *testBroker) {
			for range 20 {
				c := rawamqp.Consume(b.t, b.AMQP, "q", true)
				b.t.Cleanup(func() { c.Close() })
			}
			ch := b.dial()
			for ready := 0; ready == 0; { // all outboxes are full then
				for range 200 {
					if err := ch.Publish("", "q", false, false, amqp.Publishing{Body: make([]byte, 3000)}); err != nil {
						b.t.Fatal(err)
					}
				}
				q, err := ch.QueueDeclarePassive("q", false, false, false, false, nil)
				if err != nil {
					b.t.Fatal(err)
				}
				ready = q.Messages
			}
		}, func(m *broker.Memory) int64 { return m.Sending }},
		{"arguments of queues", func(b *testBroker) {
			ch := b.dial()
			for i := range 1000 {
				if _, err := ch.QueueDeclare(fmt.Sprint("queue.", i), false, false, false, false, argument()); err != nil {
					b.t.Fatal(err)
				}
			}
		}, func(m *broker.Memory) int64 { return m.Queues }},
		{"arguments of exchanges", func(b *testBroker) {
			ch := b.dial()
			for i := range 1000 {
				if err := ch.ExchangeDeclare(fmt.Sprint("exchange.", i), "topic", false, false, false, false, argument()); err != nil {
					b.t.Fatal(err)
				}
			}
		}, topology},
		{"arguments of bindings", func(b *testBroker) {
			ch := b.dial()
			if _, err := ch.QueueDeclare("q", false, false, false, false, nil); err != nil {
				b.t.Fatal(err)
			}
			for i := range 1000 {
				if err := ch.QueueBind("q", fmt.Sprint("key.", i), "amq.topic", false, argument()); err != nil {
					b.t.Fatal(err)
				}
			}
		}, topology},
		{"arguments of consumers", func(b *testBroker) {
			ch := b.dial()
			if _, err := ch.QueueDeclare("q", false, false, false, false, nil); err != nil {
				b.t.Fatal(err)
			}
			for range 1000 {
				if _, err := ch.Consume("q", "", false, false, false, false, argument()); err != nil {
					b.t.Fatal(err)
				}
			}
		}, func(m *broker.Memory) int64 { return m.Channels }},
		{"values in arguments", func(b *testBroker) {
			ch := b.dial()
			list := make([]any, 1000)
			for i := range list {
				list[i] = true
			}
			for i := range 300 {
				if _, err := ch.QueueDeclare(fmt.Sprint("queue.", i), false, false, false, false, amqp.Table{"x-list": list}); err != nil {
					b.t.Fatal(err)
				}
			}
		}, func(m *broker.Memory) int64 { return m.Queues }},
		{"properties of clients", func(b *testBroker) {
			for range 1000 {
				c, err := amqp.DialConfig("amqp://"+b.AMQP, amqp.Config{Properties: argument()})
				if err != nil {
					b.t.Fatal(err)
				}
				b.t.Cleanup(func() { c.Close() })
			}
		}, nil},
		{"keys of messages that are gone", func(b *testBroker) {
			ch := b.dial()
			if _, err := ch.QueueDeclare("q", false, false, false, false, amqp.Table{"x-message-deduplication": true, "x-cache-size": 250_000}); err != nil {
				b.t.Fatal(err)
			}
			for i := range 250_000 {
				if err := ch.Publish("", "q", false, false, amqp.Publishing{Headers: amqp.Table{"x-deduplication-header": int64(i)}}); err != nil {
					b.t.Fatal(err)
				}
			}
			if n, err := ch.QueuePurge("q", false); err != nil || n != 250_000 {
				b.t.Fatalf("%d messages are purged: %v", n, err)
			}
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := startProcess(t)
			b.warm()
			before := b.read().reading
			c.load(b)
			b.read()
			resident, accounted := b.Resident-before.Resident, b.Memory.Sum()-before.Memory.Sum()
			t.Logf("%.1f MiB resident more, %.1f accounted: %+v", float64(resident)/(1<<20), float64(accounted)/(1<<20), b.Memory)
			most := max(resident/10, 2<<20)
			if d := accounted - resident; d > most || -d > most {
				t.Errorf("accounted %+d bytes of %d", d, resident)
			}
			if c.kind != nil {
				if d := c.kind(&b.Memory) - c.kind(&before.Memory) - resident; d > most || -d > most {
					t.Errorf("the kind that grew is %+d bytes off %d", d, resident)
				}
			}
			b.apiAgrees()
		})
	}
}

// argument is a table of arguments, as large as it may be.
func argument() amqp.Table { return amqp.Table{"x-note": strings.Repeat("n", 16_000)} }

// apiAgrees compares the kinds of memory of the management API with the resident memory.
func (b *testBroker) apiAgrees() {
	b.t.Helper()
	get := func(path string, into any) {
		b.t.Helper()
		req, err := http.NewRequestWithContext(within(b.t), "GET", "http://"+b.HTTP+path, nil)
		if err != nil {
			b.t.Fatal(err)
		}
		req.SetBasicAuth("guest", "guest")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			b.t.Fatal(err)
		}
		defer res.Body.Close()
		if err := json.NewDecoder(res.Body).Decode(into); err != nil || res.StatusCode != 200 {
			b.t.Fatalf("%s: %s %v", path, res.Status, err)
		}
	}
	var o struct{ Node string }
	get("/api/overview", &o)
	var m struct {
		Memory map[string]any `json:"memory"`
	}
	get("/api/nodes/"+o.Node+"/memory", &m)
	total, sum := m.Memory["total"].(map[string]any), 0.0
	for _, v := range m.Memory {
		if n, ok := v.(float64); ok {
			sum += n
		}
	}
	if rss := total["rss"].(float64); sum < 0.9*rss || sum > 1.1*rss {
		b.t.Errorf("the kinds add up to %.0f, resident are %.0f", sum, rss)
	}
}
