// Hello world: send one message to a queue and receive it.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"

	fire "github.com/firemq/firemq/sdk/go"
)

func main() {
	if err := hello(context.Background(), cmp.Or(os.Getenv("FIREMQ_URL"), "fire://localhost")); err != nil {
		log.Fatal(err)
	}
}

func hello(ctx context.Context, url string) error {
	c, err := fire.Dial(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.DeclareQueue(ctx, "hello.go", fire.QueueOptions{}); err != nil {
		return err
	}
	// Publish returns once the broker has written the message to disk.
	if err := c.Publish(ctx, fire.Message{Key: "hello.go", Body: []byte("Hello World!")}); err != nil {
		return err
	}
	fmt.Println(" [x] Sent 'Hello World!'")

	sub, err := c.Subscribe(ctx, "hello.go", fire.SubscribeOptions{})
	if err != nil {
		return err
	}
	msg, err := sub.Next(ctx)
	if err != nil {
		return err
	}
	fmt.Printf(" [x] Received '%s'\n", msg.Body)
	return msg.Ack()
}
