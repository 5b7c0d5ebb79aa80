//go:build linux

package pressure

import (
	"context"
	"encoding/binary"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	fire "github.com/firemq/firemq/sdk/go"
	"github.com/firemq/firemq/test/internal/brokertest"
)

const (
	largeBody = 64 << 10        // bytes of a message of a client that heeds alarms
	beat      = 5 * time.Second // its heartbeat interval: alarms last longer
)

// One connection fills the memory, nobody else is there, and only its own acks can end the alarm: those of a client
// that stops publishing when it is told are read, whatever it had on its way.
func TestAcksOfOneConnectionEndTheAlarm(t *testing.T) {
	for _, c := range []struct {
		name    string
		window  int  // unconfirmed messages
		consume bool // from the start, else after it was told
	}{
		{"one at a time", 1, false},
		{"a window, then consumes", 64, false},
		{"a window, holds deliveries", 64, true},
	} {
		t.Run("AMQP "+c.name, func(t *testing.T) {
			b, peak := limited(t)
			s := newSolo(t, b)
			if c.consume {
				s.consume()
			}
			for round := range rounds(3) {
				s.publish(c.window)
				if round == 0 && !c.consume {
					s.consume()
				}
				s.acknowledge(func() bool { return !s.blocked.Load() && len(s.deliveries) == 0 })
			}
			s.all()
			stayed(t, peak)
		})
	}
	t.Run("FireMQ", func(t *testing.T) {
		b, peak := limited(t)
		ctx, cancel := context.WithTimeout(t.Context(), *soak+2*time.Minute)
		defer cancel()
		c, err := fire.Dial(ctx, b.FireURL)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.DeclareQueue(ctx, "solo", fire.QueueOptions{}); err != nil {
			t.Fatal(err)
		}
		var gate atomic.Bool
		var got atomic.Int64
		sub, err := c.Subscribe(ctx, "solo", fire.SubscribeOptions{Prefetch: 200})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				d, err := sub.Next(ctx)
				if err != nil {
					return
				}
				for !gate.Load() && ctx.Err() == nil {
					<-time.After(time.Millisecond)
				}
				if d.Ack() == nil {
					got.Add(1)
				}
			}
		}()
		p := c.NewPublisher(fire.PublisherOptions{Window: 64})
		var sent atomic.Int64
		var ends atomic.Bool
		done := make(chan error, 1)
		go func() {
			for !ends.Load() {
				if err := p.Publish(ctx, fire.Message{Key: "solo", Body: make([]byte, largeBody), Transient: true}); err != nil {
					done <- err
					return
				}
				sent.Add(1)
			}
			done <- p.Flush(ctx)
		}()
		for range rounds(3) {
			gate.Store(false)
			brokertest.Eventually(t, time.Minute, "the alarm", func() bool { return lastOf(b.Output(), raised, over) })
			ended := strings.Count(b.Output(), over) // it may soon begin again
			gate.Store(true)
			brokertest.Eventually(t, time.Minute, "the alarm is over", func() bool { return strings.Count(b.Output(), over) > ended })
		}
		ends.Store(true)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		brokertest.Eventually(t, time.Minute, "everything arrives", func() bool { return got.Load() == sent.Load() })
		stayed(t, peak)
	})
}

// Clients that ignore connection.blocked are not read beyond their next publish, and take no memory that counts,
// beyond what one read of each had brought. One that heeds it ends the alarm with its acks, and then they go on.
func TestClientsThatIgnoreTheAlarm(t *testing.T) {
	b, peak := limited(t)
	s := newSolo(t, b)
	s.consume()
	const peers = 100
	var confirmed atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{}, peers)
	for range peers {
		go func() {
			defer func() { ended <- struct{}{} }()
			if err := ignore(ctx, b, &confirmed); err != nil && ctx.Err() == nil {
				t.Errorf("a client that ignores the alarm: %v\n%s", err, b.Output())
			}
		}()
	}
	for range rounds(3) {
		brokertest.Eventually(t, time.Minute, "the alarm", func() bool { return lastOf(b.Output(), raised, over) })
		// They rest.
		var last int64
		still := 0
		brokertest.Eventually(t, within, "publishers rest", func() bool {
			if n := confirmed.Load(); n != last {
				last, still = n, 0
			}
			still++
			return still > 200
		})
		brokertest.Eventually(t, within, "all of them are blocked", func() bool {
			blocked := 0
			for _, c := range connectionStates(t, b) {
				if c == "blocked" {
					blocked++
				}
			}
			return blocked >= peers
		})
		before, ended := confirmed.Load(), strings.Count(b.Output(), over)
		s.publish(1) // until it is told
		s.acknowledge(func() bool { return confirmed.Load() > before && strings.Count(b.Output(), over) > ended })
	}
	cancel()
	for range peers {
		<-ended
	}
	// What one read of each had brought comes on top of what is late.
	stayedWithin(t, memoryLimit+memoryLimit/10, peak)
}

// ignore publishes with confirms to the queue "solo" and looks at nothing else until ctx ends.
func ignore(ctx context.Context, b *brokertest.Broker, confirmed *atomic.Int64) error {
	conn, err := amqp091.DialConfig(b.AMQPURL, amqp091.Config{Heartbeat: beat})
	if err != nil {
		return err
	}
	defer conn.CloseDeadline(time.Now()) // its goodbye waits as well, behind what it publishes
	defer context.AfterFunc(ctx, func() { conn.CloseDeadline(time.Now()) })()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	const window = 100
	free := make(chan struct{}, window)
	confirms := ch.NotifyPublish(make(chan amqp091.Confirmation, window))
	go func() {
		for c := range confirms {
			if c.Ack {
				confirmed.Add(1)
			}
			<-free
		}
	}()
	for {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		if err := ch.Publish("", "solo", false, false, amqp091.Publishing{Body: make([]byte, bodySize)}); err != nil {
			return err
		}
	}
}

// connectionStates are those that the API shows.
func connectionStates(t *testing.T, b *brokertest.Broker) (states []string) {
	t.Helper()
	var list []struct{ State string }
	api(t, b, "/connections", &list)
	for _, c := range list {
		states = append(states, c.State)
	}
	return states
}

// solo is one AMQP connection with one channel that publishes and consumes, and heeds connection.blocked.
type solo struct {
	t       *testing.T
	ch      *amqp091.Channel
	end     func() // ends the connection
	blocked atomic.Bool
	seq     uint64

	confirms   chan amqp091.Confirmation
	deliveries <-chan amqp091.Delivery
	got        map[uint64]bool
}

func newSolo(t *testing.T, b *brokertest.Broker) *solo {
	t.Helper()
	conn, err := amqp091.DialConfig(b.AMQPURL, amqp091.Config{Heartbeat: beat})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseDeadline(time.Now().Add(time.Second)) })
	s := &solo{t: t, end: func() { conn.CloseDeadline(time.Now()) }, got: map[uint64]bool{}}
	blocks := conn.NotifyBlocked(make(chan amqp091.Blocking, 1))
	go func() {
		for m := range blocks {
			s.blocked.Store(m.Active)
		}
	}()
	if s.ch, err = conn.Channel(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ch.QueueDeclare("solo", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	s.confirms = s.ch.NotifyPublish(make(chan amqp091.Confirmation, 100_000))
	return s
}

func (s *solo) consume() {
	s.t.Helper()
	defer time.AfterFunc(time.Minute, s.end).Stop() // what is published before may be held
	err := s.ch.Qos(200, 0, false)
	if err == nil {
		s.deliveries, err = s.ch.Consume("solo", "", false, false, false, false, nil)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// publish publishes until the client is told to stop, with so many messages unconfirmed at most.
func (s *solo) publish(window int) {
	s.t.Helper()
	late := time.After(time.Minute)
	for pending := 0; !s.blocked.Load(); {
		body := make([]byte, largeBody)
		binary.BigEndian.PutUint64(body, s.seq)
		if err := s.ch.Publish("", "solo", false, false, amqp091.Publishing{Body: body}); err != nil {
			s.t.Fatal(err)
		}
		s.seq++
		for pending++; pending >= window && !s.blocked.Load(); {
			select {
			case <-s.confirms:
				pending--
			case <-time.After(time.Millisecond):
			case <-late:
				s.t.Fatal("no alarm")
			}
		}
	}
}

// acknowledge acknowledges what comes, one by one, until the condition holds.
func (s *solo) acknowledge(until func() bool) {
	s.t.Helper()
	late := time.After(time.Minute)
	for !until() {
		select {
		case d, ok := <-s.deliveries:
			if !ok {
				s.t.Fatal("the channel ended")
			}
			if len(d.Body) == largeBody {
				s.got[binary.BigEndian.Uint64(d.Body)] = true
			}
			if err := d.Ack(false); err != nil {
				s.t.Fatal(err)
			}
		case <-s.confirms:
		case <-time.After(time.Millisecond):
		case <-late:
			s.t.Fatal("the alarm does not end by the acks of who is told of it")
		}
	}
}

// all checks that everything that was published has come.
func (s *solo) all() {
	s.t.Helper()
	s.acknowledge(func() bool { return uint64(len(s.got)) == s.seq })
}

// Who comes during an alarm publishes nothing, however often it comes: not its first message either.
func TestNewcomersWaitForTheEndOfAnAlarm(t *testing.T) {
	b := brokertest.Start(t, brokertest.Options{Data: t.TempDir(), Flags: []string{"--disk-free-limit", "1000TB"}})
	ch := dialAMQP(t, b.AMQPURL)
	if _, err := ch.QueueDeclare("q", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	const waits = 200 * time.Millisecond
	for range rounds(2) {
		c, err := amqp091.Dial(b.AMQPURL)
		if err != nil {
			t.Fatal(err)
		}
		blocked := c.NotifyBlocked(make(chan amqp091.Blocking, 1))
		ch, err := c.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if err := ch.Confirm(false); err != nil {
			t.Fatal(err)
		}
		acks := ch.NotifyPublish(make(chan amqp091.Confirmation, 1))
		if err := ch.Publish("", "q", false, false, amqp091.Publishing{Body: []byte("AMQP")}); err != nil {
			t.Fatal(err)
		}
		if told := <-blocked; !told.Active {
			t.Error("it is told that it may publish")
		}
		select {
		case a := <-acks:
			t.Errorf("answered with %+v", a)
		case <-time.After(waits):
		}
		go c.Close() // which is not answered

		f, err := fire.Dial(t.Context(), b.FireURL)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), waits)
		p := f.NewPublisher(fire.PublisherOptions{})
		if err := p.Publish(ctx, fire.Message{Key: "q", Body: []byte("FireMQ")}); err == nil && p.Flush(ctx) == nil {
			t.Error("confirmed over the FireMQ protocol")
		}
		cancel()
		f.Close()
	}
	req, err := http.NewRequest("POST", b.HTTPURL+"/api/exchanges/%2F/amq.default/publish",
		strings.NewReader(`{"properties":{},"routing_key":"q","payload":"HTTP","payload_encoding":"string"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("guest", "guest")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("over HTTP: status %d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	if q, err := ch.QueueDeclarePassive("q", true, false, false, false, nil); err != nil || q.Messages != 0 {
		t.Errorf("%d messages, %v", q.Messages, err)
	}
}
