//go:build linux

package pressure

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/firemq/firemq/test/internal/brokertest"
)

// Several connections that have a window on its way, and acknowledge one message for each further window, end the alarm
// that they brought about once they acknowledge the rest: all that was published comes once and in order, memory stays
// bounded, and the journal gives back what it was lent.
func TestSeveralWindowsAtOnce(t *testing.T) {
	const clients, windows, window, body = 6, 4, brokertest.RaceFactor * 16 << 20, largeBody
	dir := t.TempDir()
	b := brokertest.Start(t, brokertest.Options{Data: dir, Flags: []string{"--memory-limit", fmt.Sprint(memoryLimit)}})
	peak := watchRSS(t, b.Pid())
	var all sync.WaitGroup
	for n := range clients {
		conn, err := amqp091.Dial(b.AMQPURL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.CloseDeadline(time.Now()) })
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		q := fmt.Sprint("window", n)
		if _, err := ch.QueueDeclare(q, n%2 == 0, false, n%3 == 1, false, nil); err != nil {
			t.Fatal(err)
		}
		if n%2 == 0 {
			ch.Qos(100, 0, false)
		}
		list, err := ch.Consume(q, "", false, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			sent, got := uint64(0), uint64(0)
			late := time.After(patience)
			ack := func() bool {
				select {
				case d, ok := <-list:
					if !ok {
						t.Errorf("%s: closed after %d of %d", q, got, sent)
						return false
					}
					if s := binary.BigEndian.Uint64(d.Body); s != got {
						t.Errorf("%s: message %d instead of %d", q, s, got)
						return false
					}
					got++
					return d.Ack(false) == nil
				case <-late:
					t.Errorf("%s: %d of %d came", q, got, sent)
					return false
				}
			}
			for range windows {
				for range window / body {
					p := amqp091.Publishing{Body: make([]byte, body), DeliveryMode: uint8(1 + sent/3%2)}
					binary.BigEndian.PutUint64(p.Body, sent)
					stop := time.AfterFunc(patience, func() { conn.CloseDeadline(time.Now()) })
					err := ch.Publish("", q, false, false, p)
					if stop.Stop(); err != nil {
						t.Errorf("%s: after %d: %v", q, sent, err)
						return
					}
					sent++
				}
				if !ack() {
					return
				}
			}
			for got < sent && ack() {
			}
		})
	}
	all.Wait()
	if brokertest.RaceFactor == 1 { // the race detector gives nothing back
		brokertest.Eventually(t, within, "no alarm is left", func() bool { return !lastOf(b.Output(), raised, over) })
	}
	stayedWithin(t, memoryLimit+memoryLimit/16, peak)
	const segments = 5 << 25 // two in use, two kept for later, and one that may be on its way out
	brokertest.Eventually(t, within, "the journal is small again", func() bool { return diskUsed(t, dir) < segments })
	if !strings.Contains(b.Output(), raised) {
		t.Error("no alarm")
	}
}
