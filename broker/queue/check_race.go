//go:build race

package queue

import "fmt"

// checking says that every call checks the queue afterwards.
const checking = true

// debug follows every unacked message in race builds.
type debug struct {
	out   map[uint64]*Consumer // who holds a message, by Seq
	calls int
}

func (d *debug) take(c *Consumer, seq uint64) {
	if d.out == nil {
		d.out = make(map[uint64]*Consumer)
	}
	if _, ok := d.out[seq]; ok {
		panic(fmt.Sprintf("BUG: queue: message %d handed out twice", seq))
	}
	d.out[seq] = c
}

func (d *debug) give(c *Consumer, seq uint64) {
	if have, ok := d.out[seq]; !ok || have != c {
		panic(fmt.Sprintf("BUG: queue: message %d settled, but not held by that consumer", seq))
	}
	delete(d.out, seq)
}

func (d *debug) notOut(seq uint64) error {
	if _, ok := d.out[seq]; ok {
		return fmt.Errorf("message %d is both ready and unacked", seq)
	}
	return nil
}

func (d *debug) check(unacked int) error {
	if len(d.out) != unacked {
		return fmt.Errorf("%d messages are out, counted %d unacked", len(d.out), unacked)
	}
	return nil
}

// checkNow checks the queue after a call: always while it is short, else now and then.
func (q *Queue) checkNow() {
	q.debug.calls++
	if size := q.ready.n + q.Delayed() + q.unacked + q.consumers.n; size > 32 && q.debug.calls%(size*4) != 0 {
		return
	}
	if err := q.check(); err != nil {
		panic("BUG: queue: " + err.Error())
	}
}
