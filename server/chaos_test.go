package server_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/internal/leak"
	fire "github.com/firemq/firemq/sdk/go"
	"github.com/firemq/firemq/server"
)

// arguments are queue arguments that end messages and queues in every way.
var arguments = []amqp.Table{
	nil,
	{"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "c1"},
	{"x-message-ttl": 1, "x-dead-letter-exchange": "x"},
	{"x-max-length": 3, "x-dead-letter-exchange": "x"},
	{"x-max-length": 2, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "c2"},
	{"x-max-length": 2, "x-overflow": "reject-publish"},
	{"x-max-priority": 5, "x-max-length": 5},
	{"x-single-active-consumer": true},
	{"x-expires": 1},
	{"x-max-length": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "c4"},
}

const chaosQueues = 12

// chaosAMQP does anything at random on one connection and ends it in some way.
func chaosAMQP(url string, rng *rand.Rand, quit <-chan struct{}) {
	c, err := amqp.DialConfig(url, amqp.Config{Dial: amqp.DefaultDial(patience)})
	if err != nil {
		return
	}
	defer c.Close()
	var chs [3]*amqp.Channel
	for range rng.IntN(400) {
		select {
		case <-quit:
			return
		default:
		}
		if c.IsClosed() {
			return
		}
		i := rng.IntN(len(chs))
		ch := chs[i]
		if ch == nil || ch.IsClosed() {
			if ch, err = c.Channel(); err != nil {
				return
			}
			chs[i] = ch
			switch rng.IntN(4) {
			case 0:
				ch.Confirm(rng.IntN(2) == 0)
			case 1:
				ch.Tx()
			}
		}
		n := rng.IntN(chaosQueues)
		q := fmt.Sprintf("c%d", n)
		switch k := rng.IntN(40); {
		case k < 4:
			ch.QueueDeclare(q, n%2 == 0, n%3 == 1, n%5 == 4, rng.IntN(3) == 0, arguments[n%len(arguments)])
		case k == 4:
			ch.QueueDelete(q, rng.IntN(2) == 0, rng.IntN(2) == 0, rng.IntN(2) == 0)
		case k == 5:
			ch.QueuePurge(q, false)
		case k == 6:
			ch.ExchangeDeclare([]string{"x", "y"}[n%2], []string{"fanout", "topic"}[n%2], n%2 == 0, n%3 == 0, false, false, nil)
		case k == 7:
			ch.QueueBind(q, "#", []string{"x", "y"}[rng.IntN(2)], false, nil)
		case k == 8:
			ch.ExchangeBind([]string{"x", "y"}[n%2], "#", []string{"x", "y"}[rng.IntN(2)], false, nil)
		case k == 9:
			ch.ExchangeDelete([]string{"x", "y"}[rng.IntN(2)], false, false)
		case k < 14:
			seed := rng.Uint64()
			list, err := ch.Consume(q, fmt.Sprint("t", rng.IntN(5)), rng.IntN(3) == 0, rng.IntN(10) == 0, false, false, nil)
			if err == nil {
				go func() {
					r := rand.New(rand.NewPCG(seed, 1))
					for d := range list {
						switch r.IntN(8) {
						case 0, 1, 2:
							d.Ack(r.IntN(4) == 0)
						case 3:
							d.Nack(r.IntN(4) == 0, true)
						case 4:
							d.Reject(false)
						case 5:
							d.Nack(true, false)
						}
					}
				}()
			}
		case k == 14:
			ch.Cancel(fmt.Sprint("t", rng.IntN(5)), rng.IntN(2) == 0)
		case k == 15:
			ch.Qos(rng.IntN(5), 0, rng.IntN(2) == 0)
		case k == 16:
			ch.Get(q, rng.IntN(2) == 0)
		case k == 17:
			//lint:ignore SA1019 clients that use it are served, too
			ch.Recover(true)
		case k == 18:
			ch.TxCommit()
		case k == 19:
			ch.Close()
		case k == 20 && rng.IntN(4) == 0:
			return
		default:
			x := []string{"", "", "", "x", "y", "amq.fanout"}[rng.IntN(6)]
			for range 1 + rng.IntN(10) {
				p := amqp.Publishing{DeliveryMode: uint8(rng.IntN(3)), Priority: uint8(rng.IntN(8)), Body: make([]byte, rng.IntN(10000))}
				if rng.IntN(5) == 0 {
					p.Expiration = fmt.Sprint(rng.IntN(3))
				}
				ch.Publish(x, q, rng.IntN(3) == 0, false, p)
			}
		}
	}
}

func chaosFire(url string, rng *rand.Rand, quit <-chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := server.DialOnce(ctx, url)
	if err != nil {
		return
	}
	defer c.Close()
	for range rng.IntN(200) {
		select {
		case <-quit:
			return
		case <-c.Done():
			return
		default:
		}
		n := rng.IntN(chaosQueues)
		q := fmt.Sprintf("c%d", n)
		switch k := rng.IntN(20); {
		case k < 3:
			c.DeclareQueue(ctx, q, fire.QueueOptions{Transient: n%2 != 0, AutoDelete: n%3 == 1, Exclusive: n%5 == 4, Args: arguments[n%len(arguments)]})
		case k == 3:
			c.DeleteQueue(ctx, q, fire.DeleteOptions{})
		case k == 4:
			c.PurgeQueue(ctx, q)
		case k < 8:
			s, err := c.Subscribe(ctx, q, fire.SubscribeOptions{Prefetch: 1 + rng.IntN(10), NoAck: rng.IntN(3) == 0})
			if err == nil {
				for range rng.IntN(10) {
					short, done := context.WithTimeout(ctx, 5*time.Millisecond)
					d, err := s.Next(short)
					done()
					if err != nil {
						break
					}
					switch rng.IntN(4) {
					case 0:
						d.Ack()
					case 1:
						d.Nack(true)
					case 2:
						d.Reject()
					}
				}
				if rng.IntN(2) == 0 {
					s.Unsubscribe(ctx)
				}
			}
		case k == 8:
			if d, ok, err := c.Get(ctx, q, fire.GetOptions{}); ok && err == nil {
				d.Ack()
			}
		default:
			c.Publish(ctx, fire.Message{Key: q, Body: make([]byte, rng.IntN(10000)), Transient: rng.IntN(2) == 0, Mandatory: rng.IntN(4) == 0})
		}
	}
}

// TestShutdownUnderLoad has many clients do anything while the broker stops: it ends in time, with no
// goroutine and no buffer left, and starts again.
func TestShutdownUnderLoad(t *testing.T) {
	defer leak.Check(t)()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	data := t.TempDir()
	for round := range 3 {
		s := start(t, data)
		url, fireURL := "amqp://guest:guest@"+s.AMQPAddr().String()+"/", "fire://guest:guest@"+s.FireAddr().String()
		quit := make(chan struct{})
		var wg sync.WaitGroup
		for i := range 40 {
			rng := rand.New(rand.NewPCG(seed, uint64(100*round+i)))
			wg.Go(func() {
				for {
					select {
					case <-quit:
						return
					default:
					}
					if i%3 == 0 {
						chaosFire(fireURL, rng, quit)
					} else {
						chaosAMQP(url, rng, quit)
					}
				}
			})
		}
		<-time.After(*stress)
		at := time.Now()
		stop(t, s, patience)
		t.Logf("stopped in %s", time.Since(at))
		close(quit)
		wg.Wait()
	}
}
