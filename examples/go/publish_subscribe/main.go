// Publish/subscribe: a fanout exchange copies each message to every bound queue.
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
	if err := fanout(context.Background(), cmp.Or(os.Getenv("FIREMQ_URL"), "fire://localhost")); err != nil {
		log.Fatal(err)
	}
}

func fanout(ctx context.Context, url string) error {
	c, err := fire.Dial(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.DeclareExchange(ctx, "logs.go", "fanout", fire.ExchangeOptions{}); err != nil {
		return err
	}

	// Each subscriber gets a temporary queue of its own, which the broker names.
	var subs []*fire.Subscription
	for range 2 {
		q, err := c.DeclareQueue(ctx, "", fire.Temporary())
		if err != nil {
			return err
		}
		if err := c.BindQueue(ctx, q.Name, "logs.go", "", nil); err != nil {
			return err
		}
		sub, err := c.Subscribe(ctx, q.Name, fire.SubscribeOptions{NoAck: true})
		if err != nil {
			return err
		}
		subs = append(subs, sub)
	}

	if err := c.Publish(ctx, fire.Message{Exchange: "logs.go", Body: []byte("info: hello subscribers")}); err != nil {
		return err
	}
	for _, sub := range subs {
		msg, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		name := sub.Queue()
		fmt.Printf(" [%s] %s\n", name[len(name)-6:], msg.Body)
	}
	return nil
}
