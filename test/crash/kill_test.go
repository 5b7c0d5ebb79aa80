package crash

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/firemq/firemq/sdk/go"
	"github.com/firemq/firemq/test/internal/brokertest"
	amqp "github.com/rabbitmq/amqp091-go"
)

var (
	seed  = flag.Uint64("seed", 0, "seed of the random choices; 0 takes a new one, which is printed")
	kills = flag.Int("kills", 20, "how often TestKill kills the broker; TestKillInAnAlarm does a fifth of that")
)

// random prints its seed, so that a failure can be run again with -seed. The moments at which the
// operating system runs the processes are not part of it.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed=%d", s)
	return rand.New(rand.NewPCG(s, 0))
}

const (
	inFlight = 256 // unconfirmed publishes of each publisher
	exchange = "events"
)

// publishers is where each publisher publishes to, and whether it speaks the FireMQ protocol: one to an
// exchange with two queues.
var publishers = []struct {
	exchange, key string
	fire          bool
}{{"", "orders", false}, {exchange, "event.happened", false}, {"", "work", false}, {"", "fire.orders", true}, {"", "fire.work", true}}

// queues are the queues and whose messages each gets. Two have a consumer meanwhile, of the protocol that
// the publisher speaks.
var queues = []struct {
	name      string
	publisher int
	consumed  bool
}{{"orders", 0, false}, {"events.1", 1, false}, {"events.2", 1, false}, {"work", 2, true}, {"fire.orders", 3, false}, {"fire.work", 4, true}}

// settled tells which messages the consumer acks; the others it keeps unacked.
func settled(n uint64) bool { return n%3 == 0 }

// history is what one publisher knows of its messages. Message n has the number n in its body.
type history struct {
	sent      uint64 // numbers 1 to sent were handed to the client library
	confirmed map[uint64]bool
}

// confirms is how many messages of all publishers were confirmed.
func confirms(histories []*history) int {
	n := 0
	for _, h := range histories {
		n += len(h.confirmed)
	}
	return n
}

// due gives the messages that must be in a queue: the confirmed ones that no consumer acked.
func (h *history) due(consumed bool) int {
	n := 0
	for number := range h.confirmed {
		if !consumed || !settled(number) {
			n++
		}
	}
	return n
}

// TestKill publishes persistent messages with confirms over both protocols, changes topology and users,
// kills the broker with kill -9 at a random moment, starts it again on its data, and repeats that. Every
// time all that was answered is there. In the end every confirmed message that was not acked is in every
// queue it was routed to, once, in the order of publishing, and the topology is there too, though it was
// declared only once.
func TestKill(t *testing.T) {
	rng := random(t)
	data := t.TempDir()
	var histories []*history
	made := newChangers()
	for range publishers {
		histories = append(histories, &history{confirmed: make(map[uint64]bool)})
	}

	for round := range *kills {
		b := brokertest.Start(t, brokertest.Options{Data: data})
		if round == 0 {
			declare(t, b.AMQPURL)
		} else {
			checkRecovered(t, b, histories)
			made.check(t, b)
		}
		before := confirms(histories)

		var wg sync.WaitGroup
		started := make(chan struct{}, len(histories))
		for p, h := range histories {
			run := startPublisher(t, b, p)
			source := rand.New(rand.NewPCG(rng.Uint64(), 1))
			switch publishers[p].key {
			case "work":
				msgs := consume(t, b.AMQPURL, "work")
				wg.Go(func() { ackSome(msgs) })
			case "fire.work":
				s := subscribe(t, b.FireURL, "fire.work")
				wg.Go(func() { ackSomeFire(s) })
			}
			wg.Go(func() {
				if err := run(h, source, started); err != nil {
					t.Error(err)
				}
			})
		}
		made.start(t, b, &wg)
		for range histories { // a first confirm each: the kill hits a broker at work
			select {
			case <-started:
			case <-time.After(time.Minute):
				t.Fatalf("no confirm in a minute\n%s", b.Output())
			}
		}
		<-time.After(time.Duration(rng.IntN(400_000)) * time.Microsecond)
		b.Kill()
		wg.Wait()
		if t.Failed() {
			return
		}
		t.Logf("killed after %d confirms more", confirms(histories)-before)
	}

	b := brokertest.Start(t, brokertest.Options{Data: data})
	counts := checkRecovered(t, b, histories)
	made.check(t, b)
	t.Logf("%d confirms; changes answered: %d over AMQP, %d over the FireMQ protocol, %d of users",
		confirms(histories), made.amqp.answers, made.fire.answers, made.users.answers)
	b.Stop(t)

	// An orderly stop keeps just the same.
	b = brokertest.Start(t, brokertest.Options{Data: data})
	made.check(t, b)
	if again := checkRecovered(t, b, histories); fmt.Sprint(again) != fmt.Sprint(counts) {
		t.Errorf("queues held %v messages before an orderly restart, %v after it", counts, again)
	}
	for i, q := range queues {
		checkQueue(t, b, q.name, counts[i], histories[q.publisher], q.consumed)
	}
}

func declare(t *testing.T, url string) {
	t.Helper()
	conn, ch := dial(t, url)
	defer conn.Close()
	if err := ch.ExchangeDeclare(exchange, "topic", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	for _, q := range queues {
		if _, err := ch.QueueDeclare(q.name, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		if publishers[q.publisher].exchange != "" {
			if err := ch.QueueBind(q.name, "event.*", exchange, false, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// publisher is one connection that publishes until it is lost.
type publisher struct {
	ch            *amqp.Channel
	confirms      chan amqp.Confirmation
	exchange, key string
}

// consume consumes on a connection of its own, which ends with the broker.
func consume(t *testing.T, url, queue string) <-chan amqp.Delivery {
	t.Helper()
	_, ch := dial(t, url)
	msgs, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return msgs
}

// ackSome acks what is settled until the connection is lost.
func ackSome(msgs <-chan amqp.Delivery) {
	for d := range msgs {
		if settled(binary.BigEndian.Uint64(d.Body)) {
			d.Ack(false) // fails once the connection is lost, which ends the loop
		}
	}
}

// startPublisher connects a publisher, and gives what publishes until the connection is lost and notes
// what was confirmed before that.
func startPublisher(t *testing.T, b *brokertest.Broker, p int) func(h *history, rng *rand.Rand, started chan<- struct{}) error {
	t.Helper()
	if publishers[p].fire {
		client, err := brokertest.DialFire(t.Context(), b.FireURL)
		if err != nil {
			t.Fatal(err)
		}
		return func(h *history, rng *rand.Rand, started chan<- struct{}) error {
			return publishFire(client, publishers[p].key, h, rng, started)
		}
	}
	_, ch := dial(t, b.AMQPURL)
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	pub := &publisher{
		ch: ch, confirms: ch.NotifyPublish(make(chan amqp.Confirmation, 2*inFlight)),
		exchange: publishers[p].exchange, key: publishers[p].key,
	}
	return pub.run
}

// publishFire is publisher.run over the FireMQ protocol.
func publishFire(client *fire.Client, key string, h *history, rng *rand.Rand, started chan<- struct{}) error {
	first := h.sent
	var mu sync.Mutex // results come from the client's goroutine
	var refused error
	pub := client.NewPublisher(fire.PublisherOptions{Window: inFlight, OnResult: func(n uint64, err error) {
		mu.Lock()
		defer mu.Unlock()
		var nacked *fire.NackedError
		switch {
		case err == nil:
			h.confirmed[first+n] = true
			if n == 1 {
				started <- struct{}{}
			}
		case errors.As(err, &nacked):
			refused = fmt.Errorf("message %d was refused: %w", first+n, err)
		}
	}})
	for {
		// What was not sent has no number.
		err := pub.Publish(context.Background(), fire.Message{Key: key, Body: body(h.sent+1, rng.IntN(2000))})
		if err != nil {
			break
		}
		h.sent++
	}
	<-client.Done()
	pub.Flush(context.Background()) // every result was told
	mu.Lock()
	defer mu.Unlock()
	return refused
}

// subscribe is consume over the FireMQ protocol, ackSomeFire its ackSome.
func subscribe(t *testing.T, url, queue string) *fire.Subscription {
	t.Helper()
	client, err := brokertest.DialFire(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	// Unacked messages are kept: without end, they must not take the whole prefetch.
	s, err := client.Subscribe(t.Context(), queue, fire.SubscribeOptions{Prefetch: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ackSomeFire(s *fire.Subscription) {
	for {
		d, err := s.Next(context.Background())
		if err != nil {
			return
		}
		if settled(binary.BigEndian.Uint64(d.Body)) {
			d.Ack()
		}
	}
}

// run publishes until the connection is lost, and notes what was confirmed before that.
func (p *publisher) run(h *history, rng *rand.Rand, started chan<- struct{}) error {
	first := h.sent // the delivery tag counts from here
	slots := make(chan struct{}, inFlight)
	done := make(chan error, 1)
	go func() {
		var err error
		for c := range p.confirms { // closed when the connection is lost
			if !c.Ack {
				err = fmt.Errorf("message %d was nacked", first+c.DeliveryTag)
			}
			if c.DeliveryTag == 1 {
				started <- struct{}{}
			}
			h.confirmed[first+c.DeliveryTag] = true
			<-slots
		}
		done <- err
	}()
	lost := p.ch.NotifyClose(make(chan *amqp.Error, 1))
publish:
	for {
		select {
		case <-lost:
			break publish
		case slots <- struct{}{}:
		}
		h.sent++
		err := p.ch.Publish(p.exchange, p.key, true, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent, Body: body(h.sent, rng.IntN(2000)),
		})
		if err != nil {
			break
		}
	}
	return <-done
}

// body is a message's number, and bytes that follow from it.
func body(n uint64, size int) []byte {
	b := binary.BigEndian.AppendUint64(nil, n)
	for i := range size {
		b = append(b, byte(n)+byte(i))
	}
	return b
}

var recoveredLine = regexp.MustCompile(`(?m)^ +Data +\S.* \((\d+) queues?, (\d+) messages? recovered`)

// checkRecovered compares what the banner says was recovered with what the queues hold, and that
// with what was confirmed. It gives the queues' messages.
func checkRecovered(t *testing.T, b *brokertest.Broker, histories []*history) []int {
	t.Helper()
	conn, ch := dial(t, b.AMQPURL)
	defer conn.Close()
	if err := ch.ExchangeDeclarePassive(exchange, "topic", true, false, false, false, nil); err != nil {
		t.Fatalf("the exchange is gone: %v", err)
	}
	var counts []int
	total := 0
	for _, q := range queues {
		state, err := ch.QueueDeclarePassive(q.name, true, false, false, false, nil)
		if err != nil {
			t.Fatalf("queue %s is gone: %v", q.name, err)
		}
		h := histories[q.publisher]
		if due := h.due(q.consumed); state.Messages < due || uint64(state.Messages) > h.sent {
			t.Errorf("queue %s holds %d messages after the restart; %d must be there, %d were sent", q.name, state.Messages, due, h.sent)
		}
		counts = append(counts, state.Messages)
		total += state.Messages
	}
	m := recoveredLine.FindStringSubmatch(b.Banner)
	if m == nil {
		t.Fatalf("the banner doesn't say what was recovered:\n%s", b.Banner)
	}
	if n, _ := strconv.Atoi(m[1]); n < len(queues) || m[2] != strconv.Itoa(total) {
		t.Errorf("the banner says %s queues and %s messages were recovered; there are at least %d, and %d", m[1], m[2], len(queues), total)
	}
	return counts
}

// checkQueue consumes all n messages of a queue: each sent once, whole, in order, and none missing
// that is due.
func checkQueue(t *testing.T, b *brokertest.Broker, queue string, n int, h *history, consumed bool) {
	t.Helper()
	conn, ch := dial(t, b.AMQPURL)
	defer conn.Close()
	msgs, err := ch.Consume(queue, "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	timeout := time.NewTimer(2 * time.Minute)
	defer timeout.Stop()
	last, kept := uint64(0), 0
	for i := range n {
		var d amqp.Delivery
		var ok bool
		select {
		case d, ok = <-msgs:
		case <-timeout.C:
		}
		if !ok {
			t.Fatalf("queue %s: only %d of %d messages arrived", queue, i, n)
		}
		if len(d.Body) < 8 {
			t.Fatalf("queue %s: message %d has a body of %d bytes", queue, i, len(d.Body))
		}
		number := binary.BigEndian.Uint64(d.Body)
		if number <= last || number > h.sent {
			t.Fatalf("queue %s: message number %d came after %d; %d were sent", queue, number, last, h.sent)
		}
		if !bytes.Equal(d.Body, body(number, len(d.Body)-8)) {
			t.Fatalf("queue %s: message number %d has another body than was sent", queue, number)
		}
		if d.DeliveryMode != amqp.Persistent {
			t.Fatalf("queue %s: message number %d came back with delivery mode %d", queue, number, d.DeliveryMode)
		}
		if h.confirmed[number] && !(consumed && settled(number)) {
			kept++
		}
		last = number
	}
	if due := h.due(consumed); kept != due {
		t.Errorf("queue %s: %d of %d confirmed messages are missing", queue, due-kept, due)
	}
	t.Logf("queue %s: %d confirmed messages are there, and %d that were acked or not confirmed", queue, kept, n-kept)
}
