// Package scale puts very much of one thing into the real broker, over the wire: bindings, queues, channels,
// unacknowledged deliveries, messages. Its benchmarks report rates, the broker's memory for each, and the
// longest time that another connection waited for its own message meanwhile. "make scale" runs them.
package scale

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/firemq/firemq/test/internal/brokertest"
	amqp "github.com/rabbitmq/amqp091-go"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(probeURL); url != "" {
		if err := serveProbe(url); err != nil {
			fmt.Fprintln(os.Stderr, "probe:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(brokertest.Main(m.Run))
}

const (
	limit    = 2 * time.Minute        // for any single step
	after    = 2 * time.Second        // of probing behind a step, for what it left to the background
	pace     = time.Millisecond       // between two messages of the probe
	settle   = 250 * time.Millisecond // between two readings of memory
	readings = 20                     // of memory, of which the lowest counts
)

// bench is one run of a benchmark: a broker of its own, and the probe that others have to live with.
type bench struct {
	*testing.B
	broker *brokertest.Broker
	probe  *probe
}

func start(b *testing.B) *bench {
	b.Helper()
	r := &bench{B: b, broker: brokertest.Start(b, brokertest.Options{Data: b.TempDir()})}
	r.probe = r.newProbe()
	b.ReportMetric(0, "ns/op") // the whole run, which says nothing
	return r
}

func (r *bench) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *bench) dial() *amqp.Connection {
	r.Helper()
	conn, err := amqp.Dial(r.broker.AMQPURL)
	r.must(err)
	r.Cleanup(func() { conn.Close() })
	return conn
}

func (r *bench) channel(conn *amqp.Connection) *amqp.Channel {
	r.Helper()
	ch, err := conn.Channel()
	r.must(err)
	return ch
}

// memory is what the broker holds when nothing goes on: the lowest of some readings, file pages apart.
func (r *bench) memory() float64 {
	r.Helper()
	lowest := 0.0
	tick := time.NewTicker(settle)
	defer tick.Stop()
	for i := range readings {
		<-tick.C
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.broker.Pid()))
		r.must(err)
		_, rest, _ := strings.Cut(string(status), "RssAnon:")
		kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
		r.must(err)
		if i == 0 || kib < lowest {
			lowest = kib
		}
	}
	return lowest * 1024
}

// step runs f while the probe measures, and reports how long f took and how long the probe had to wait.
func (r *bench) step(name string, f func()) time.Duration {
	r.Helper()
	r.reset()
	began := time.Now()
	f()
	took := time.Since(began)
	<-time.After(after)
	r.ReportMetric(float64(took.Microseconds())/1000, name+"-ms")
	r.ReportMetric(float64(r.reset().Microseconds())/1000, name+"-stall-ms")
	return took
}

// probeURL is the environment variable that makes this program the probe of the broker with that URL.
const probeURL = "SCALE_PROBE"

// probe is a process of its own, so that it waits for the broker and not for the load's client. It sends
// itself a message each millisecond; for each line that it reads it prints the longest wait since the last.
type probe struct {
	ask    io.WriteCloser
	answer *bufio.Reader
}

func (r *bench) newProbe() *probe {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), probeURL+"="+r.broker.AMQPURL)
	cmd.Stderr = os.Stderr
	ask, err := cmd.StdinPipe()
	r.must(err)
	answer, err := cmd.StdoutPipe()
	r.must(err)
	r.must(cmd.Start())
	r.Cleanup(func() {
		ask.Close() // which ends it
		if err := cmd.Wait(); err != nil {
			r.Error("probe: ", err)
		}
	})
	return &probe{ask, bufio.NewReader(answer)}
}

// reset gives the longest wait since the last call, that for the message on its way included.
func (r *bench) reset() time.Duration {
	r.Helper()
	_, err := io.WriteString(r.probe.ask, "\n")
	r.must(err)
	line, err := r.probe.answer.ReadString('\n')
	r.must(err)
	worst, err := time.ParseDuration(strings.TrimSpace(line))
	r.must(err)
	return worst
}

func serveProbe(url string) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	queue, err := ch.QueueDeclare("probe", false, false, true, false, nil)
	if err != nil {
		return err
	}
	deliveries, err := ch.Consume(queue.Name, "", true, false, false, false, nil)
	if err != nil {
		return err
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			asked <- struct{}{}
		}
	}()
	var worst time.Duration
	var sent time.Time // of the message that is on its way, or zero
	next := time.NewTimer(pace)
	for {
		select {
		case <-next.C:
			sent = time.Now()
			if err := ch.Publish("", queue.Name, false, false, amqp.Publishing{Body: []byte("probe")}); err != nil {
				return err
			}
		case _, ok := <-deliveries:
			if !ok {
				return amqp.ErrClosed
			}
			worst, sent = max(worst, time.Since(sent)), time.Time{}
			next.Reset(pace)
		case _, ok := <-asked:
			if !ok {
				return nil
			}
			if !sent.IsZero() {
				worst = max(worst, time.Since(sent))
			}
			fmt.Println(worst)
			worst = 0
		}
	}
}

// fill publishes n messages of 16 bytes and waits until all are confirmed.
func (r *bench) fill(ch *amqp.Channel, queue string, n int, mode uint8, expiration string) {
	r.Helper()
	r.must(ch.Confirm(false))
	confirms := ch.NotifyPublish(make(chan amqp.Confirmation, 10_000))
	all := make(chan bool, 1)
	go func() {
		for range n {
			if c, ok := <-confirms; !ok || !c.Ack {
				all <- false
				return
			}
		}
		all <- true
	}()
	body := []byte("0123456789abcdef")
	for range n {
		r.must(ch.Publish("", queue, false, false, amqp.Publishing{DeliveryMode: mode, Expiration: expiration, Body: body}))
	}
	if !<-all {
		r.Fatal("not all messages were confirmed")
	}
}

func (r *bench) ready(ch *amqp.Channel, queue string) int {
	r.Helper()
	q, err := ch.QueueDeclarePassive(queue, false, false, false, false, nil)
	r.must(err)
	return q.Messages
}

func (r *bench) until(what string, ok func() bool) {
	r.Helper()
	brokertest.Eventually(r.B, limit, what, ok)
}

// A topic exchange with 100,000 bindings to 100 queues: patterns with and without wildcards.
func BenchmarkBindings(b *testing.B) {
	const bindings, queues, routes = 100_000, 100, 20_000
	for b.Loop() {
		r := start(b)
		ch := r.channel(r.dial())
		r.must(ch.ExchangeDeclare("scale", "topic", false, false, false, false, nil))
		for q := range queues {
			_, err := ch.QueueDeclare(strconv.Itoa(q), false, false, true, false, amqp.Table{"x-max-length": 1})
			r.must(err)
		}
		publish := func() time.Duration {
			began := time.Now()
			for i := range routes { // no two keys are the same: nothing comes from the publisher's cache
				key := fmt.Sprintf("device.%d.%d.measured", i%1000, i)
				r.must(ch.Publish("scale", key, false, false, amqp.Publishing{}))
			}
			r.ready(ch, "0") // a round trip
			return time.Since(began)
		}
		perMessage := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / routes }
		few := publish()
		before := r.memory()
		took := r.step("bind", func() {
			for i := range bindings {
				pattern := fmt.Sprintf("device.%d.%d.*", i%1000, i)
				if i%10 == 0 {
					pattern = fmt.Sprintf("*.%d.%d.#", i%1000, i)
				}
				// Without waiting, but for each hundredth.
				r.must(ch.QueueBind(strconv.Itoa(i%queues), pattern, "scale", i%100 != 99, nil))
			}
		})
		b.ReportMetric(bindings/took.Seconds(), "bindings/s")
		b.ReportMetric((r.memory()-before)/bindings, "B/binding")
		var many time.Duration
		r.step("route", func() { many = publish() })
		b.ReportMetric(perMessage(few), "ns/publish-without")
		b.ReportMetric(perMessage(many), "ns/publish-with")
		r.step("delete", func() { r.must(ch.ExchangeDelete("scale", false, false)) })
	}
}

// 10,000 queues, idle.
func BenchmarkQueues(b *testing.B) {
	const queues = 10_000
	for _, durable := range []bool{false, true} {
		b.Run(map[bool]string{false: "transient", true: "durable"}[durable], func(b *testing.B) {
			for b.Loop() {
				r := start(b)
				ch := r.channel(r.dial())
				before := r.memory()
				took := r.step("declare", func() {
					for i := range queues {
						_, err := ch.QueueDeclare("scale-"+strconv.Itoa(i), durable, false, false, i%100 != 99, nil)
						r.must(err)
					}
				})
				b.ReportMetric(queues/took.Seconds(), "queues/s")
				b.ReportMetric((r.memory()-before)/queues, "B/queue")
				r.step("delete", func() {
					for i := range queues {
						_, err := ch.QueueDelete("scale-"+strconv.Itoa(i), false, false, i%100 != 99)
						r.must(err)
					}
				})
			}
		})
	}
}

// 10,000 channels opened and closed, one after the other, and by ten connections at once.
func BenchmarkChannels(b *testing.B) {
	const channels, at = 10_000, 10
	for b.Loop() {
		r := start(b)
		conns := make([]*amqp.Connection, at)
		for i := range conns {
			conns[i] = r.dial()
		}
		before := r.memory()
		churn := func(conn *amqp.Connection, n int) {
			for range n {
				ch, err := conn.Channel()
				if err == nil {
					err = ch.Close()
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		}
		took := r.step("one", func() { churn(conns[0], channels) })
		b.ReportMetric(channels/took.Seconds(), "channels/s-one")
		took = r.step("ten", func() {
			var all sync.WaitGroup
			for _, conn := range conns {
				all.Go(func() { churn(conn, channels/at) })
			}
			all.Wait()
		})
		b.ReportMetric(channels/took.Seconds(), "channels/s-ten")
		b.ReportMetric((r.memory()-before)/(2*channels), "B/channel-left")
	}
}

// A million unacknowledged deliveries on one channel: acknowledged at once, and given back by its close.
func BenchmarkUnacked(b *testing.B) {
	const n = 1_000_000
	for b.Loop() {
		r := start(b)
		ch := r.channel(r.dial())
		_, err := ch.QueueDeclare("scale", false, false, false, false, nil)
		r.must(err)
		r.fill(ch, "scale", n, amqp.Transient, "")
		before := r.memory()
		taker := r.channel(r.dial())
		take := func() (last amqp.Delivery) {
			deliveries, err := taker.Consume("scale", "", false, false, false, false, nil)
			r.must(err)
			for range n {
				last = <-deliveries
			}
			return last
		}
		r.step("deliver", func() { take() })
		b.ReportMetric((r.memory()-before)/n, "B/unacked")
		r.step("close", func() {
			r.must(taker.Close())
			r.until("all are ready again", func() bool { return r.ready(ch, "scale") == n })
		})
		taker = r.channel(r.dial())
		last := take()
		r.step("ack", func() {
			r.must(last.Ack(true))
			_, err := taker.QueueDeclare("after", false, false, true, false, nil) // a round trip
			r.must(err)
		})
		if left := r.ready(ch, "scale"); left != 0 {
			b.Errorf("%d messages are left", left)
		}
	}
}

// A queue of a million messages that go all at once.
func BenchmarkMillion(b *testing.B) {
	const n = 1_000_000
	for _, kind := range []struct {
		name    string
		durable bool
		mode    uint8
	}{{"transient", false, amqp.Transient}, {"persistent", true, amqp.Persistent}} {
		for _, step := range []string{"purge", "delete", "requeue", "expire"} {
			b.Run(step+"/"+kind.name, func(b *testing.B) {
				for b.Loop() {
					r := start(b)
					ch := r.channel(r.dial())
					_, err := ch.QueueDeclare("scale", kind.durable, false, false, false, nil)
					r.must(err)
					before := r.memory()
					expiration := ""
					if step == "expire" {
						r.must(ch.Publish("", "scale", false, false, amqp.Publishing{DeliveryMode: kind.mode}))
						expiration = "1"
					}
					r.step("publish", func() { r.fill(ch, "scale", n, kind.mode, expiration) })
					b.ReportMetric((r.memory()-before)/n, "B/message")
					act(r, ch, step, n)
				}
			})
		}
	}
}

func act(r *bench, ch *amqp.Channel, step string, n int) {
	switch step {
	case "purge":
		r.step(step, func() {
			if purged, err := ch.QueuePurge("scale", false); err != nil || purged != n {
				r.Fatal(purged, err)
			}
		})
	case "delete":
		r.step(step, func() {
			if deleted, err := ch.QueueDelete("scale", false, false, false); err != nil || deleted != n {
				r.Fatal(deleted, err)
			}
		})
	case "requeue":
		taker := r.channel(r.dial())
		deliveries, err := taker.Consume("scale", "c", false, false, false, false, nil)
		r.must(err)
		var last amqp.Delivery
		for range n {
			last = <-deliveries
		}
		go func() { // what comes before the cancel
			for range deliveries {
			}
		}()
		r.must(taker.Cancel("c", false))
		r.step(step, func() {
			r.must(taker.Nack(last.DeliveryTag, true, true))
			r.until("all are ready again", func() bool { return r.ready(ch, "scale") == n })
		})
	case "expire": // only the head expires, so all wait behind one that has no expiration
		r.step(step, func() {
			head, ok, err := ch.Get("scale", false)
			if r.must(err); !ok {
				r.Fatal("the queue is empty")
			}
			r.must(head.Ack(false))
			r.until("all have expired", func() bool { return r.ready(ch, "scale") == 0 })
		})
	}
}
