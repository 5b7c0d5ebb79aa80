package server_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/internal/leak"
	fire "github.com/firemq/firemq/sdk/go"
	"github.com/firemq/firemq/server"
)

var stress = flag.Duration("stress", time.Second, "how long TestNothingIsLost publishes")

const patience = 30 * time.Second

func start(t *testing.T, data string) *server.Server {
	t.Helper()
	s, err := server.Start(t.Context(), server.Options{
		AMQP: "127.0.0.1:0", Fire: "127.0.0.1:0", HTTP: "127.0.0.1:0", Data: data, Ephemeral: data == "",
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// stop shuts s down without a limit of time, and fails the test when that takes longer than limit.
func stop(t *testing.T, s *server.Server, limit time.Duration) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(context.Background()) }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	case <-time.After(limit):
		pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		t.Fatalf("Shutdown takes more than %s", limit)
	}
}

// ledger is what became of each message: the keys are "queue publisher number".
type ledger struct {
	mu        sync.Mutex
	confirmed map[string]bool // guarded by mu
	fate      map[string]*fate
	errs      []string
}

type fate struct {
	first   int // deliveries that were not marked as redelivered
	acked   int // settled for good, and the channel was closed properly after it
	dropped int // rejected for good, likewise
}

func (l *ledger) get(id string) *fate {
	f := l.fate[id]
	if f == nil {
		f = new(fate)
		l.fate[id] = f
	}
	return f
}

func (l *ledger) wrong(format string, args ...any) {
	if len(l.errs) < 20 {
		l.errs = append(l.errs, fmt.Sprintf(format, args...))
	}
}

func (l *ledger) confirm(id string) {
	l.mu.Lock()
	l.confirmed[id] = true
	l.mu.Unlock()
}

func (l *ledger) delivered(id string, again bool, last map[string]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.get(id)
	if f.acked+f.dropped > 0 {
		l.wrong("%s is delivered after it was settled", id)
	}
	if again {
		return
	}
	if f.first++; f.first > 1 {
		l.wrong("%s is delivered %d times as if for the first time", id, f.first)
	}
	var n int
	cut := strings.LastIndexByte(id, ' ')
	fmt.Sscan(id[cut+1:], &n)
	if n <= last[id[:cut]] {
		l.wrong("%s comes after %d", id, last[id[:cut]])
	}
	last[id[:cut]] = n
}

func queueOf(i int) string { return fmt.Sprintf("q%d", i) }

const queues = 4

func publishAMQP(url string, l *ledger, who int, rng *rand.Rand, quit <-chan struct{}) error {
	c, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer c.Close()
	ch, err := c.Channel()
	if err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	next := [queues]int{}
	type pending struct {
		id string
		dc *amqp.DeferredConfirmation
	}
	var wait []pending
	settle := func() error {
		for _, p := range wait {
			select {
			case <-p.dc.Done():
				if !p.dc.Acked() {
					return fmt.Errorf("%s was refused", p.id)
				}
				l.confirm(p.id)
			case <-time.After(patience):
				return fmt.Errorf("%s is not confirmed", p.id)
			}
		}
		wait = wait[:0]
		return nil
	}
	for {
		select {
		case <-quit:
			return settle()
		default:
		}
		for range 1 + rng.IntN(50) {
			q := rng.IntN(queues)
			next[q]++
			id := fmt.Sprintf("%d %d %d", q, who, next[q])
			body := []byte(id)
			if rng.IntN(20) == 0 {
				body = append(body, make([]byte, 1+rng.IntN(20000))...)
				body[len(id)] = ' '
			}
			mode := uint8(1 + rng.IntN(2))
			dc, err := ch.PublishWithDeferredConfirm("", queueOf(q), false, false, amqp.Publishing{DeliveryMode: mode, Body: body})
			if err != nil {
				return err
			}
			wait = append(wait, pending{id, dc})
		}
		if len(wait) > 300 {
			if err := settle(); err != nil {
				return err
			}
		}
	}
}

func publishFire(url string, l *ledger, who int, rng *rand.Rand, quit <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), *stress+patience)
	defer cancel()
	c, err := server.DialOnce(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close()
	next := [queues]int{}
	for {
		select {
		case <-quit:
			return nil
		default:
		}
		q := rng.IntN(queues)
		next[q]++
		id := fmt.Sprintf("%d %d %d", q, who, next[q])
		if err := c.Publish(ctx, fire.Message{Key: queueOf(q), Body: []byte(id), Transient: rng.IntN(2) == 0, Mandatory: true}); err != nil {
			return err
		}
		l.confirm(id)
	}
}

func idOf(body []byte) string {
	f := strings.SplitN(string(body[:min(len(body), 40)]), " ", 4)
	if i := strings.IndexByte(f[2], 0); i >= 0 {
		f[2] = f[2][:i]
	}
	return strings.Join(f[:3], " ")
}

// consumeAMQP takes some messages and does with each something at random.
func consumeAMQP(url string, l *ledger, rng *rand.Rand, quit <-chan struct{}) error {
	c, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		select {
		case <-quit:
			return nil
		default:
		}
		ch, err := c.Channel()
		if err != nil {
			return err
		}
		if p := rng.IntN(4); p > 0 {
			if err := ch.Qos([...]int{0, 1, 7, 100}[p], 0, rng.IntN(2) == 0); err != nil {
				return err
			}
		}
		q := rng.IntN(queues)
		list, err := ch.Consume(queueOf(q), "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		last := map[string]int{}
		var acked, dropped []string
		open := map[string]uint64{}
		idle := time.NewTimer(50 * time.Millisecond)
	take:
		for range rng.IntN(300) {
			select {
			case <-idle.C:
				break take
			case d, ok := <-list:
				if !ok {
					return errors.New("consumer ended")
				}
				id := idOf(d.Body)
				l.delivered(id, d.Redelivered, last)
				switch k := rng.IntN(20); {
				case k < 10:
					err = d.Ack(false)
					acked = append(acked, id)
				case k == 10:
					err = d.Nack(false, true)
				case k == 11:
					err = d.Reject(true)
				case k == 12:
					err = d.Reject(false)
					dropped = append(dropped, id)
				case k == 13:
					open[id] = d.DeliveryTag
					err = d.Ack(true)
					for id, tag := range open {
						if tag <= d.DeliveryTag {
							acked = append(acked, id)
							delete(open, id)
						}
					}
				case k == 14:
					open[id] = d.DeliveryTag
					err = d.Nack(true, true)
					for id, tag := range open {
						if tag <= d.DeliveryTag {
							delete(open, id)
						}
					}
				default:
					open[id] = d.DeliveryTag
				}
				if err != nil {
					return err
				}
			}
		}
		if rng.IntN(10) == 0 {
			c.Close()
			if c, err = amqp.Dial(url); err != nil {
				return err
			}
			// What was sent before a proper close has arrived.
		} else if rng.IntN(3) == 0 {
			if err := ch.Cancel("", false); err != nil {
				return err
			}
			if err := ch.Close(); err != nil {
				return err
			}
		} else if err := ch.Close(); err != nil {
			return err
		}
		l.settled(acked, dropped)
	}
}

func (l *ledger) settled(acked, dropped []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range acked {
		if f := l.get(id); f.acked+f.dropped > 0 {
			l.wrong("%s is settled twice", id)
		}
		l.get(id).acked++
	}
	for _, id := range dropped {
		if f := l.get(id); f.acked+f.dropped > 0 {
			l.wrong("%s is settled twice", id)
		}
		l.get(id).dropped++
	}
}

func consumeFire(url string, l *ledger, rng *rand.Rand, quit <-chan struct{}) error {
	for {
		select {
		case <-quit:
			return nil
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), *stress+patience)
		c, err := server.DialOnce(ctx, url)
		if err != nil {
			cancel()
			return err
		}
		s, err := c.Subscribe(ctx, queueOf(rng.IntN(queues)), fire.SubscribeOptions{Prefetch: 1 + rng.IntN(50)})
		if err != nil {
			cancel()
			return err
		}
		last := map[string]int{}
		var acked, dropped []string
		for range rng.IntN(300) {
			short, done := context.WithTimeout(ctx, 50*time.Millisecond)
			d, err := s.Next(short)
			done()
			if err != nil {
				break
			}
			id := idOf(d.Body)
			l.delivered(id, d.Redelivered, last)
			switch k := rng.IntN(20); {
			case k < 12:
				err = d.Ack()
				acked = append(acked, id)
			case k == 12:
				err = d.Nack(true)
			case k == 13:
				err = d.Reject()
				dropped = append(dropped, id)
			}
			if err != nil {
				cancel()
				return err
			}
		}
		if err := c.Close(); err != nil {
			cancel()
			return err
		}
		cancel()
		l.settled(acked, dropped)
	}
}

// TestNothingIsLost has publishers and consumers of both protocols come and go on a few queues. Then
// every confirmed message was settled once, or is still there; first deliveries came in order.
func TestNothingIsLost(t *testing.T) {
	defer leak.Check(t)()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := start(t, t.TempDir())
	url, fireURL := "amqp://guest:guest@"+s.AMQPAddr().String()+"/", "fire://guest:guest@"+s.FireAddr().String()
	c, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	ch, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	for i := range queues {
		var args amqp.Table
		if _, err := ch.QueueDeclare(queueOf(i), i%2 == 0, false, false, false, args); err != nil {
			t.Fatal(err)
		}
	}
	l := &ledger{confirmed: map[string]bool{}, fate: map[string]*fate{}}
	pubQuit, conQuit := make(chan struct{}), make(chan struct{})
	var pubs, cons sync.WaitGroup
	var n atomic.Uint64
	run := func(wg *sync.WaitGroup, what string, f func(*rand.Rand) error) {
		rng := rand.New(rand.NewPCG(seed, n.Add(1)))
		wg.Go(func() {
			if err := f(rng); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	for i := range 4 {
		run(&pubs, "AMQP publisher", func(r *rand.Rand) error { return publishAMQP(url, l, i, r, pubQuit) })
		run(&pubs, "FMQ1 publisher", func(r *rand.Rand) error { return publishFire(fireURL, l, 10+i, r, pubQuit) })
	}
	for range 6 {
		run(&cons, "AMQP consumer", func(r *rand.Rand) error { return consumeAMQP(url, l, r, conQuit) })
		run(&cons, "FMQ1 consumer", func(r *rand.Rand) error { return consumeFire(fireURL, l, r, conQuit) })
	}
	time.AfterFunc(*stress, func() { close(pubQuit) })
	pubs.Wait()
	close(conQuit)
	cons.Wait()
	// What is left, one consumer a queue takes.
	for i := range queues {
		ch, err := c.Channel()
		if err != nil {
			t.Fatal(err)
		}
		q, err := ch.QueueDeclarePassive(queueOf(i), i%2 == 0, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		list, err := ch.Consume(queueOf(i), "", false, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		last := map[string]int{}
		var acked []string
		for range q.Messages {
			select {
			case d := <-list:
				id := idOf(d.Body)
				l.delivered(id, d.Redelivered, last)
				acked = append(acked, id)
				d.Ack(false)
			case <-time.After(patience):
				t.Fatalf("%s: %d of %d messages came", queueOf(i), len(acked), q.Messages)
			}
		}
		if err := ch.Close(); err != nil {
			t.Fatal(err)
		}
		l.settled(acked, nil)
	}
	if tot := s.Broker().Totals(); tot.Ready+tot.Unacked != 0 {
		t.Errorf("%d ready and %d unacked are left", tot.Ready, tot.Unacked)
	}
	c.Close()
	stop(t, s, patience)
	for _, e := range l.errs {
		t.Error(e)
	}
	lost := 0
	for id := range l.confirmed {
		if f := l.get(id); f.acked+f.dropped != 1 {
			if lost++; lost < 10 {
				t.Errorf("%s was confirmed and settled %d times", id, f.acked+f.dropped)
			}
		}
	}
	t.Logf("%d confirmed, %d seen", len(l.confirmed), len(l.fate))
}
