// Package ui runs the tests of the management UI: a headless Chromium clicks through the pages of a real broker.
package ui

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/test/internal/brokertest"
)

func TestMain(m *testing.M) { os.Exit(brokertest.Main(m.Run)) }

const limit = 10 * time.Minute

var failed = regexp.MustCompile(`(?m)^not ok`)

// TestUI runs ui.test.js against a broker, one that has a client, and one whose disk is too full for its limit.
func TestUI(t *testing.T) {
	brokertest.Need(t, "/usr/bin/chromium")
	installed := brokertest.Need(t, "test", "ui", "node_modules", ".installed")
	broker := brokertest.Start(t, brokertest.Options{})
	used := brokertest.Start(t, brokertest.Options{})
	hold(t, used.AMQPURL)
	alarmed := brokertest.Start(t, brokertest.Options{Data: t.TempDir(), Flags: []string{"--disk-free-limit", "900TB"}})

	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "--test", "--test-reporter=tap", "ui.test.js")
	cmd.Dir = filepath.Dir(filepath.Dir(installed))
	cmd.Env = append(os.Environ(), "FIREMQ_HTTP_URL="+broker.HTTPURL, "ALARMED_HTTP_URL="+alarmed.HTTPURL, "USED_HTTP_URL="+used.HTTPURL)
	out, err := cmd.CombinedOutput()
	if err != nil || failed.Match(out) {
		t.Fatalf("%v\n%s", err, out)
	}
}

// hold takes a message from the queue "held" of two, and does not acknowledge it.
func hold(t *testing.T, url string) {
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("held", false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := ch.PublishWithContext(t.Context(), "", "held", false, false, amqp.Publishing{Body: []byte("kept")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := ch.Qos(1, 0, false); err != nil {
		t.Fatal(err)
	}
	got, err := ch.Consume("held", "keeper", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-got
}
