// Package crash treats the firemq binary badly: kill -9 while it confirms, input that no client
// sends, starts that can't succeed. What it promised must hold all the same.
package crash

import (
	"os"
	"testing"

	"github.com/firemq/firemq/test/internal/brokertest"
	amqp "github.com/rabbitmq/amqp091-go"
)

func TestMain(m *testing.M) { os.Exit(brokertest.Main(m.Run)) }

// dial connects a client, which ends with the broker at the latest, and opens a channel.
func dial(t *testing.T, url string) (*amqp.Connection, *amqp.Channel) {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return conn, ch
}
