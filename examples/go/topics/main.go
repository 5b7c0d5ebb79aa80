// Topics: route with word patterns; * matches one word, # matches zero or more.
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
	if err := topics(context.Background(), cmp.Or(os.Getenv("FIREMQ_URL"), "fire://localhost")); err != nil {
		log.Fatal(err)
	}
}

func topics(ctx context.Context, url string) error {
	c, err := fire.Dial(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.DeclareExchange(ctx, "topic_logs.go", "topic", fire.ExchangeOptions{}); err != nil {
		return err
	}
	q, err := c.DeclareQueue(ctx, "", fire.Temporary())
	if err != nil {
		return err
	}
	if err := c.BindQueue(ctx, q.Name, "topic_logs.go", "*.critical", nil); err != nil {
		return err
	}
	critical, err := c.Subscribe(ctx, q.Name, fire.SubscribeOptions{NoAck: true})
	if err != nil {
		return err
	}

	for _, key := range []string{"kern.critical", "kern.info", "app.critical"} {
		if err := c.Publish(ctx, fire.Message{Exchange: "topic_logs.go", Key: key, Body: []byte(key)}); err != nil {
			return err
		}
	}
	for range 2 {
		msg, err := critical.Next(ctx)
		if err != nil {
			return err
		}
		fmt.Printf(" [x] %s\n", msg.Body)
	}
	return nil
}
