// Hello world with the RabbitMQ project's Go client: send one message to a queue and receive it.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	if err := hello(context.Background(), cmp.Or(os.Getenv("AMQP_URL"), "amqp://localhost")); err != nil {
		log.Fatal(err)
	}
}

func hello(ctx context.Context, url string) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	q, err := ch.QueueDeclare("hello", false, false, false, false, nil)
	if err != nil {
		return err
	}
	if err := ch.PublishWithContext(ctx, "", q.Name, false, false, amqp.Publishing{Body: []byte("Hello World!")}); err != nil {
		return err
	}
	fmt.Println(" [x] Sent 'Hello World!'")

	msgs, err := ch.ConsumeWithContext(ctx, q.Name, "", true, false, false, false, nil)
	if err != nil {
		return err
	}
	msg, ok := <-msgs
	if !ok {
		return fmt.Errorf("the broker ended the consumer")
	}
	fmt.Printf(" [x] Received '%s'\n", msg.Body)
	return nil
}
