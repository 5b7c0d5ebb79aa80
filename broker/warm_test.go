package broker

import (
	"testing"
	"unsafe"
)

// TestWhatAMessageNeedsIsWarmed: what is asked for ahead covers what every message needs, and is no more than a few cache
// lines: with thousands of queues each is one more to fetch.
func TestWhatAMessageNeedsIsWarmed(t *testing.T) {
	if warmLines > 8 {
		t.Errorf("a message needs %d cache lines of a queue", warmLines)
	}
	var c Consumer
	if end := unsafe.Offsetof(c.room) + 16; end > consumerLines*64 {
		t.Errorf("a delivery needs %d bytes of a consumer, %d are asked for", end, consumerLines*64)
	}
}

// TestWhoIsGoneServesNobody: a queue does not keep a consumer that was cancelled, whose memory it asks for ahead.
func TestWhoIsGoneServesNobody(t *testing.T) {
	b := memoryBroker(t, Options{})
	c := connect(t, b)
	c.declare(QueueDeclare{Name: "q"})
	k := c.consume(ConsumeArgs{Queue: "q", Tag: "c"})
	c.publish("", "q", "m")
	c.end()
	q, e := c.Conn.queue("q")
	if e != nil || q.serves.Load() != k {
		t.Fatalf("the queue serves %v, %v", q.serves.Load(), e)
	}
	c.ch.Cancel("c")
	c.end()
	if s := q.serves.Load(); s != nil {
		t.Errorf("after its end %v is served", s)
	}
	// Routes that publishers remember may keep a deleted queue for long, and would its consumers' connections.
	c.consume(ConsumeArgs{Queue: "q", Tag: "d"})
	c.publish("", "q", "m")
	c.end()
	if _, e := c.DeleteQueue("q", false, false); e != nil {
		t.Fatal(e.Text)
	}
	c.end()
	if s := q.serves.Load(); s != nil {
		t.Errorf("after the end of its queue %v is served", s)
	}
}
