// Routing: a direct exchange delivers by exact routing key.
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
	if err := route(context.Background(), cmp.Or(os.Getenv("FIREMQ_URL"), "fire://localhost")); err != nil {
		log.Fatal(err)
	}
}

func route(ctx context.Context, url string) error {
	c, err := fire.Dial(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.DeclareExchange(ctx, "direct_logs.go", "direct", fire.ExchangeOptions{}); err != nil {
		return err
	}
	q, err := c.DeclareQueue(ctx, "", fire.Temporary())
	if err != nil {
		return err
	}
	if err := c.BindQueue(ctx, q.Name, "direct_logs.go", "error", nil); err != nil {
		return err
	}
	errors, err := c.Subscribe(ctx, q.Name, fire.SubscribeOptions{NoAck: true})
	if err != nil {
		return err
	}

	for _, severity := range []string{"info", "warning", "error"} {
		if err := c.Publish(ctx, fire.Message{Exchange: "direct_logs.go", Key: severity, Body: []byte(severity + " event")}); err != nil {
			return err
		}
	}
	msg, err := errors.Next(ctx) // only the error event arrives
	if err != nil {
		return err
	}
	fmt.Printf(" [x] %s: %s\n", msg.Key(), msg.Body)
	return nil
}
