package crash

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/firemq/firemq/test/internal/brokertest"
	amqp "github.com/rabbitmq/amqp091-go"
)

var streams = flag.Int("streams", 1000, "how many bad streams TestBadInput sends to each port")

const (
	attackers   = 64               // connections at once
	closeLimit  = 30 * time.Second // end of input to closed; a lost frame boundary lingers 3 s
	memorySlack = 48 << 20         // bytes of RSS that may stay: heap that is free but not given back
)

// TestBadInput sends random streams and mutations of real clients' streams to each port. The broker
// must end every one, serve other clients all the while, and be left as it was before.
func TestBadInput(t *testing.T) {
	rng := random(t)
	b := brokertest.Start(t, brokertest.Options{Data: t.TempDir(), Flags: []string{"--log-level", "error"}})
	ports := []struct {
		name, addr string
		samples    [][]byte
	}{
		{"amqp", brokertest.Address(t, b.AMQPURL), amqpSamples(t, b.AMQPURL)},
		{"fmq1", brokertest.Address(t, b.FireURL), fireSamples(t)},
		{"http", brokertest.Address(t, b.HTTPURL), httpSamples()},
	}
	left(t, b, 0)
	before := measure(t, b)

	stop := serveMeanwhile(t, b.AMQPURL)
	for _, port := range ports {
		t.Run(port.name, func(t *testing.T) {
			work := make(chan []byte)
			var wg sync.WaitGroup
			for range attackers {
				wg.Go(func() {
					for stream := range work {
						if err := attack(port.addr, stream); err != nil {
							t.Errorf("%v\nstream %q", err, stream)
						}
					}
				})
			}
			for range *streams {
				work <- badStream(rng, port.samples)
			}
			close(work)
			wg.Wait()
		})
		select {
		case <-b.Exited():
			stop()
			t.Fatalf("the broker ended\n%s", b.Output())
		default:
		}
	}
	if served := stop(); served < 10 {
		t.Errorf("a valid client was served only %d times meanwhile", served)
	}

	left(t, b, 0)
	var after state
	defer func() { t.Logf("before: %v\nafter:  %v", before, after) }()
	brokertest.Eventually(t, closeLimit, "files and goroutines are as before", func() bool {
		after = measure(t, b)
		return after.files <= before.files+8 && after.goroutines <= before.goroutines+8
	})
	if after.memory > before.memory+memorySlack {
		t.Errorf("%d KiB of memory before, %d KiB after", before.memory>>10, after.memory>>10)
	}
	if out := b.Output(); strings.Contains(out, "BUG:") || strings.Contains(out, "panic") {
		t.Errorf("the broker reported a bug:\n%s", out)
	}
}

// badStream is random bytes, or a sample that was cut, changed, or went on with random bytes.
func badStream(rng *rand.Rand, samples [][]byte) []byte {
	noise := func(limit int) []byte {
		b := make([]byte, rng.IntN(limit))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	if rng.IntN(5) == 0 {
		return noise(4096)
	}
	s := slices.Clone(samples[rng.IntN(len(samples))])
	for range 1 + rng.IntN(3) {
		at := rng.IntN(len(s) + 1)
		switch rng.IntN(7) {
		case 0: // cut
			s = s[:at]
		case 1: // flip bits
			for range 1 + rng.IntN(8) {
				if len(s) > 0 {
					s[rng.IntN(len(s))] ^= 1 << rng.IntN(8)
				}
			}
		case 2: // noise in the middle
			s = slices.Insert(s, at, noise(64)...)
		case 3: // noise instead of the rest
			s = append(s[:at], noise(512)...)
		case 4: // a part again
			from := rng.IntN(at + 1)
			s = slices.Insert(s, at, slices.Clone(s[from:at])...)
		case 5: // a part is missing
			s = slices.Delete(s, at, min(len(s), at+1+rng.IntN(32)))
		case 6: // a number at its limits
			if at+4 <= len(s) {
				binary.BigEndian.PutUint32(s[at:], []uint32{0, 1, 1<<31 - 1, 1 << 31, 1<<32 - 1}[rng.IntN(5)])
			}
		}
	}
	return s
}

// attack sends a stream, says that no more will come, and waits until the broker has closed.
func attack(addr string, stream []byte) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return fmt.Errorf("a new connection was refused: %w", err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(closeLimit))
	// The broker may have closed before the stream's end; then writing fails, which is well.
	if _, err := c.Write(stream); err == nil {
		c.(*net.TCPConn).CloseWrite()
	}
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the connection was not closed %s after its end of input", closeLimit)
	} else if err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return nil
}

// serveMeanwhile is a client that publishes, gets and acks until stop is called, which gives how
// often it was served.
func serveMeanwhile(t *testing.T, url string) (stop func() int) {
	t.Helper()
	conn, ch := dial(t, url)
	queue, err := ch.QueueDeclare("", false, false, true, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	msgs, err := ch.Consume(queue.Name, "", false, true, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	quit, served := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		defer func() { served <- n }()
		for ; ; n++ {
			select {
			case <-quit:
				return
			default:
			}
			ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
			want := strconv.Itoa(n)
			confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue.Name, false, false, amqp.Publishing{Body: []byte(want)})
			if err == nil {
				_, err = confirm.WaitContext(ctx)
			}
			if err == nil {
				select {
				case d := <-msgs:
					if string(d.Body) != want {
						err = fmt.Errorf("got %q, want %q", d.Body, want)
					} else {
						err = d.Ack(false)
					}
				case <-ctx.Done():
					err = ctx.Err()
				}
			}
			cancel()
			if err != nil {
				t.Errorf("the valid client's turn %d: %v", n, err)
				return
			}
		}
	}()
	return func() int {
		close(quit)
		n := <-served
		conn.Close()
		return n
	}
}

// state is what a broker holds on to.
type state struct {
	files      int   // open file descriptors
	goroutines int   // as /metrics has it
	memory     int64 // RSS in bytes
}

func (s state) String() string {
	return fmt.Sprintf("%d files, %d goroutines, %d KiB", s.files, s.goroutines, s.memory>>10)
}

func measure(t *testing.T, b *brokertest.Broker) state {
	t.Helper()
	proc := filepath.Join("/proc", strconv.Itoa(b.Pid()))
	fds, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		t.Skipf("what a process holds is read from Linux's /proc: %v", err)
	}
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	if m == nil {
		t.Fatalf("no VmRSS in\n%s", status)
	}
	kib, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return state{files: len(fds), goroutines: int(metric(t, b, "go_goroutines")), memory: kib << 10}
}

// left waits until the broker counts n connections.
func left(t *testing.T, b *brokertest.Broker, n float64) {
	t.Helper()
	brokertest.Eventually(t, closeLimit, fmt.Sprintf("%v connections are left", n), func() bool {
		return metric(t, b, "rabbitmq_connections") == n
	})
}

// metric is the value of one unlabelled metric.
func metric(t *testing.T, b *brokertest.Broker, name string) float64 {
	t.Helper()
	client := http.Client{Timeout: closeLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(b.HTTPURL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("no %s in /metrics:\n%s", name, text)
	}
	v, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// recorder keeps what a client writes.
type recorder struct {
	net.Conn
	mu   sync.Mutex
	sent bytes.Buffer // guarded by mu
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	r.sent.Write(p)
	r.mu.Unlock()
	return r.Conn.Write(p)
}

// amqpSamples are real sessions as a client sends them.
func amqpSamples(t *testing.T, url string) [][]byte {
	t.Helper()
	var samples [][]byte
	for _, session := range []func(ch *amqp.Channel) error{
		func(ch *amqp.Channel) error {
			q, err := ch.QueueDeclare("", false, false, true, false, amqp.Table{"x-max-length": int32(5), "x-message-ttl": int64(60000)})
			if err != nil {
				return err
			}
			if err := ch.QueueBind(q.Name, "a.*.#", "amq.topic", false, nil); err != nil {
				return err
			}
			if err := ch.Confirm(false); err != nil {
				return err
			}
			for range 3 {
				err := ch.Publish("amq.topic", "a.b.c", true, false, amqp.Publishing{
					Headers: amqp.Table{"n": int64(1), "list": []any{"x", true}, "table": amqp.Table{"k": 1.5}}, ContentType: "text/plain",
					DeliveryMode: 2, Priority: 3, CorrelationId: "c", Expiration: "1000", Timestamp: time.Unix(1, 0), Body: bytes.Repeat([]byte("body"), 100),
				})
				if err != nil {
					return err
				}
			}
			d, _, err := ch.Get(q.Name, false)
			if err != nil {
				return err
			}
			return d.Nack(false, true)
		},
		func(ch *amqp.Channel) error {
			if err := ch.Qos(10, 0, false); err != nil {
				return err
			}
			q, err := ch.QueueDeclare("", false, true, true, false, nil)
			if err != nil {
				return err
			}
			if err := ch.QueueBind(q.Name, "", "amq.headers", false, amqp.Table{"x-match": "any", "k": "v"}); err != nil {
				return err
			}
			msgs, err := ch.Consume(q.Name, "tag", false, false, false, false, amqp.Table{"x-priority": int32(1)})
			if err != nil {
				return err
			}
			if err := ch.Publish("amq.headers", "", false, false, amqp.Publishing{Headers: amqp.Table{"k": "v"}, Body: []byte("x")}); err != nil {
				return err
			}
			d := <-msgs
			if err := d.Ack(true); err != nil {
				return err
			}
			return ch.Cancel("tag", false)
		},
		func(ch *amqp.Channel) error {
			q, err := ch.QueueDeclare("", false, false, true, false, nil)
			if err != nil {
				return err
			}
			if err := ch.Tx(); err != nil {
				return err
			}
			if err := ch.Publish("", q.Name, false, false, amqp.Publishing{Body: make([]byte, 10_000)}); err != nil {
				return err
			}
			if err := ch.TxCommit(); err != nil {
				return err
			}
			_, err = ch.QueuePurge(q.Name, false)
			return err
		},
		func(ch *amqp.Channel) error {
			if err := ch.ExchangeDeclare("", "direct", true, false, false, false, nil); err == nil {
				return errors.New("the default exchange was declared")
			}
			return nil
		},
	} {
		var rec *recorder
		conn, err := amqp.DialConfig(url, amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
			c, err := net.Dial(network, addr)
			rec = &recorder{Conn: c}
			return rec, err
		}})
		if err != nil {
			t.Fatal(err)
		}
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if err := session(ch); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		rec.mu.Lock()
		samples = append(samples, bytes.Clone(rec.sent.Bytes()))
		rec.mu.Unlock()
	}
	return samples
}

// fireSamples are sessions of FireMQ's protocol put together from its test vectors: one for every
// frame, and one with them all.
func fireSamples(t *testing.T) [][]byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(brokertest.Root(), "spec", "test-vectors", "frames.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Name  string `json:"op_name"`
		Frame string `json:"frame"` // hexadecimal
	}
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	var hello, all []byte
	var samples [][]byte
	for _, v := range vectors {
		frame, err := hex.DecodeString(v.Frame)
		if err != nil {
			t.Fatal(err)
		}
		if hello == nil && v.Name == "hello" {
			hello = append([]byte("FMQ1"), frame...)
			all = hello
			continue
		}
		samples = append(samples, slices.Concat(hello, frame))
		all = slices.Concat(all, frame)
	}
	if hello == nil {
		t.Fatal("the vectors have no hello")
	}
	return append(samples, hello, all)
}

func httpSamples() [][]byte {
	const auth = "Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
	var samples [][]byte
	for _, s := range []string{
		"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n",
		"GET /api/overview HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n",
		"PUT /api/queues/%2F/q HTTP/1.1\r\nHost: x\r\n" + auth + "Content-Type: application/json\r\nContent-Length: 17\r\n\r\n{\"durable\": true}",
		"POST /api/exchanges/%2F/amq.default/publish HTTP/1.1\r\nHost: x\r\n" + auth + "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n2\r\n1}\r\n0\r\n\r\n",
		"GET /fire HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n\x82\x85abcdfghij",
		"GET /" + strings.Repeat("a", 9000) + " HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET / HTTP/1.0\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		samples = append(samples, []byte(s))
	}
	return samples
}
