// Work queues: share tasks between workers, one unacknowledged task each.
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
	if err := work(context.Background(), cmp.Or(os.Getenv("FIREMQ_URL"), "fire://localhost")); err != nil {
		log.Fatal(err)
	}
}

func work(ctx context.Context, url string) error {
	c, err := fire.Dial(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close()
	// Queues are durable and messages persistent unless said otherwise: tasks survive a restart.
	if _, err := c.DeclareQueue(ctx, "task_queue.go", fire.QueueOptions{}); err != nil {
		return err
	}
	for n := range 3 {
		if err := c.Publish(ctx, fire.Message{Key: "task_queue.go", Body: fmt.Appendf(nil, "task %d", n+1)}); err != nil {
			return err
		}
	}

	// A prefetch of 1: at most one unacknowledged task for this worker.
	tasks, err := c.Subscribe(ctx, "task_queue.go", fire.SubscribeOptions{Prefetch: 1})
	if err != nil {
		return err
	}
	for range 3 {
		task, err := tasks.Next(ctx)
		if err != nil {
			return err
		}
		fmt.Printf(" [x] Done %s\n", task.Body)
		if err := task.Ack(); err != nil { // now, not before: a worker that crashes loses no task
			return err
		}
	}
	return nil
}
