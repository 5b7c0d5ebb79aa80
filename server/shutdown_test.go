package server

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/internal/vfs"
)

// A disk whose syncs hang holds up a shutdown no longer than clients may, and two seconds.
func TestShutdownDoesNotWaitForADeadDisk(t *testing.T) {
	hang, answer := make(chan struct{}), make(chan struct{})
	hung := make(chan struct{}, 100)
	dir := t.TempDir()
	disk := &vfs.Faults{FS: vfs.OS{}, Check: func(o vfs.Op) error {
		if o.Kind == vfs.OpSync {
			select {
			case <-hang:
				hung <- struct{}{}
				<-answer
			default:
			}
		}
		return nil
	}}
	s, err := Start(t.Context(), Options{AMQP: free, Data: dir, fs: disk})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := amqp091.Dial("amqp://guest:guest@" + s.AMQPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseDeadline(time.Now())
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("q", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	close(hang)
	if err := ch.Publish("", "q", false, false, amqp091.Publishing{DeliveryMode: amqp091.Persistent}); err != nil {
		t.Fatal(err)
	}
	<-hung
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(ctx) }()
	select {
	case err := <-done:
		if !errors.Is(err, errDisk) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("it waits for the disk")
	}
	close(answer)
	for late := time.After(time.Minute); ; { // what was left behind ends with the lock
		lock, err := vfs.Lock(filepath.Join(dir, "firemq.lock"))
		if err == nil {
			lock.Close()
			return
		}
		select {
		case <-time.After(time.Millisecond):
		case <-late:
			t.Fatal(err)
		}
	}
}
