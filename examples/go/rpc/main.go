// RPC: a request says where its answer goes, and the answer which request it is for.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"

	fire "github.com/firemq/firemq/sdk/go"
)

func main() {
	ctx, url := context.Background(), cmp.Or(os.Getenv("FIREMQ_URL"), "fire://localhost")
	if err := rpc(ctx, url); err != nil {
		log.Fatal(err)
	}
}

func rpc(ctx context.Context, url string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ready, served := make(chan struct{}), make(chan error, 1)
	go func() { served <- serve(ctx, url, ready) }()
	select {
	case <-ready:
	case err := <-served:
		return err
	}

	answer, err := square(ctx, url, 7)
	if err != nil {
		return err
	}
	fmt.Printf(" [.] square(7) = %s\n", answer)
	cancel()
	if err := <-served; !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// serve squares numbers until ctx ends.
func serve(ctx context.Context, url string, ready chan<- struct{}) error {
	c, err := fire.Dial(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.DeclareQueue(ctx, "rpc_queue.go", fire.QueueOptions{}); err != nil {
		return err
	}
	requests, err := c.Subscribe(ctx, "rpc_queue.go", fire.SubscribeOptions{})
	if err != nil {
		return err
	}
	close(ready)
	return requests.Handle(ctx, func(request *fire.Delivery) error {
		n, err := strconv.Atoi(string(request.Body))
		if err != nil {
			return request.Reject() // it never will be a number
		}
		p, err := request.Properties()
		if err != nil {
			return err
		}
		answer := fire.Message{
			Key: p.ReplyTo, Body: strconv.AppendInt(nil, int64(n*n), 10), Transient: true,
			Properties: fire.Properties{CorrelationID: p.CorrelationID},
		}
		if err := c.Publish(ctx, answer); err != nil {
			return err
		}
		return request.Ack()
	})
}

// square asks for the square of n.
func square(ctx context.Context, url string, n int) ([]byte, error) {
	c, err := fire.Dial(ctx, url)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	q, err := c.DeclareQueue(ctx, "", fire.Temporary())
	if err != nil {
		return nil, err
	}
	answers, err := c.Subscribe(ctx, q.Name, fire.SubscribeOptions{NoAck: true})
	if err != nil {
		return nil, err
	}
	id := rand.Text()
	err = c.Publish(ctx, fire.Message{
		Key: "rpc_queue.go", Body: strconv.AppendInt(nil, int64(n), 10),
		Properties: fire.Properties{ReplyTo: q.Name, CorrelationID: id},
	})
	if err != nil {
		return nil, err
	}
	for {
		answer, err := answers.Next(ctx)
		if err != nil {
			return nil, err
		}
		if p, err := answer.Properties(); err == nil && p.CorrelationID == id {
			return answer.Body, nil
		}
	}
}
