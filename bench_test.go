package firemq_test

import (
	"context"
	"testing"

	"github.com/firemq/firemq"
	fire "github.com/firemq/firemq/sdk/go"
)

// BenchmarkLoopback is one message end to end over real sockets: published, routed, delivered,
// acked and confirmed, with both clients and the broker in this process.
func BenchmarkLoopback(b *testing.B) {
	for _, kind := range []struct {
		name      string
		transient bool
		options   []firemq.Option
	}{
		{"transient", true, []firemq.Option{firemq.Ephemeral()}},
		{"persistent", false, []firemq.Option{firemq.Data(b.TempDir())}},
	} {
		b.Run(kind.name, func(b *testing.B) {
			srv, err := firemq.Start(append(kind.options, firemq.RandomPorts())...)
			if err != nil {
				b.Fatal(err)
			}
			defer srv.Close()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			dial := func() *fire.Client {
				c, err := fire.Dial(ctx, srv.FireURL())
				if err != nil {
					b.Fatal(err)
				}
				return c
			}
			in, out := dial(), dial()
			defer in.Close()
			defer out.Close()
			if _, err := in.DeclareQueue(ctx, "q", fire.QueueOptions{}); err != nil {
				b.Fatal(err)
			}
			sub, err := out.Subscribe(ctx, "q", fire.SubscribeOptions{Prefetch: 1000})
			if err != nil {
				b.Fatal(err)
			}
			got := make(chan error, 1)
			publish := func(n int) {
				go func() {
					left := n
					got <- sub.Handle(ctx, func(d *fire.Delivery) error {
						if err := d.Ack(); err != nil {
							return err
						}
						if left--; left == 0 {
							return errDone
						}
						return nil
					})
				}()
				p := in.NewPublisher(fire.PublisherOptions{Window: 1000})
				m := fire.Message{Key: "q", Body: make([]byte, 256), Transient: kind.transient}
				for range n {
					if err := p.Publish(ctx, m); err != nil {
						b.Fatal(err)
					}
				}
				if err := p.Flush(ctx); err != nil {
					b.Fatal(err)
				}
				if err := <-got; err != errDone {
					b.Fatal(err)
				}
			}
			publish(20_000) // fills the pools
			b.SetBytes(256)
			b.ReportAllocs()
			b.ResetTimer()
			publish(b.N)
		})
	}
}

type done struct{}

func (done) Error() string { return "every message was received" }

var errDone error = done{}
