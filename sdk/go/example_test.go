package fire_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/firemq/firemq"
	fire "github.com/firemq/firemq/sdk/go"
)

// broker starts a broker inside the test, in memory, and gives its URL.
func broker() (url string, stop func()) {
	srv, err := firemq.Start(firemq.Ephemeral(), firemq.RandomPorts())
	if err != nil {
		panic(err)
	}
	return srv.FireURL(), func() { srv.Close() }
}

func Example() {
	url, stop := broker()
	defer stop()
	ctx := context.Background()

	c, err := fire.Dial(ctx, url)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	if _, err := c.DeclareQueue(ctx, "jobs", fire.QueueOptions{}); err != nil {
		panic(err)
	}
	// Publish returns when the broker has confirmed the message.
	if err := c.Publish(ctx, fire.Message{Key: "jobs", Body: []byte("hello")}); err != nil {
		panic(err)
	}

	jobs, err := c.Subscribe(ctx, "jobs", fire.SubscribeOptions{Prefetch: 10})
	if err != nil {
		panic(err)
	}
	d, err := jobs.Next(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s\n", d.Body)
	d.Ack()
	// Output: hello
}

// A Publisher keeps many messages in flight; Flush waits for all their confirms.
func ExamplePublisher() {
	url, stop := broker()
	defer stop()
	ctx := context.Background()
	c, err := fire.Dial(ctx, url)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	if _, err := c.DeclareQueue(ctx, "jobs", fire.QueueOptions{}); err != nil {
		panic(err)
	}

	p := c.NewPublisher(fire.PublisherOptions{Window: 500})
	for i := range 10000 {
		if err := p.Publish(ctx, fire.Message{Key: "jobs", Body: fmt.Appendf(nil, "job %d", i)}); err != nil {
			panic(err)
		}
	}
	if err := p.Flush(ctx); err != nil {
		panic(err)
	}

	jobs, err := c.Subscribe(ctx, "jobs", fire.SubscribeOptions{Prefetch: 500})
	if err != nil {
		panic(err)
	}
	n, done := 0, errors.New("all done")
	err = jobs.Handle(ctx, func(d *fire.Delivery) error {
		if n++; n == 10000 {
			fmt.Printf("%d messages, the last is %q\n", n, d.Body)
			return errors.Join(d.Ack(), done)
		}
		return d.Ack()
	})
	if !errors.Is(err, done) {
		panic(err)
	}
	// Output: 10000 messages, the last is "job 9999"
}

// Errors are typed.
func ExampleClient_Publish_errors() {
	url, stop := broker()
	defer stop()
	ctx := context.Background()
	c, err := fire.Dial(ctx, url)
	if err != nil {
		panic(err)
	}
	defer c.Close()

	err = c.Publish(ctx, fire.Message{Key: "nobody", Mandatory: true})
	fmt.Println(errors.Is(err, fire.ErrUnroutable))

	err = c.Publish(ctx, fire.Message{Exchange: "missing", Key: "k"})
	if nack, ok := errors.AsType[*fire.NackedError](err); ok {
		fmt.Println(nack.Code, nack.Msg)
	}
	// Output:
	// true
	// 404 NOT_FOUND - no exchange 'missing' in vhost '/'
}
