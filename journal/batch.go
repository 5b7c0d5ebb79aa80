package journal

import "fmt"

// Batch is a group of messages and settlements that hold together: after a crash all of them are
// there or none. It is filled without a lock, appended once, and belongs to one goroutine. The zero
// value is an empty one.
//
// On disk it is one record whose body is the records of its parts, each complete with its checks,
// so that a message in it has a position and is read like any other.
type Batch struct {
	buf      []byte // the parts, without what depends on their position
	parts    int
	messages []int // offset of each message in buf
	pos      Position

	live, weight, size int64 // of the messages, see segment.count
}

// Len is the size in bytes of the record that the batch becomes; a batch of more than MaxRecord
// cannot be appended.
func (b *Batch) Len() int64 { return recordHead + int64(len(b.buf)) }

// Parts is the number of messages and settled ranges.
func (b *Batch) Parts() int { return b.parts }

// MessageSize is what a message of n payload bytes adds to Len.
func MessageSize(targets, n int) int64 { return padded(int64(recordHead + targets*targetBytes + n)) }

// Publish adds a message, as Journal.Publish does, and gives its number for Position.
func (b *Batch) Publish(targets []Target, weight int64, head, body []byte) (number int) {
	at := recordHead + len(targets)*targetBytes
	rec := b.add(kindPublish, len(targets), at+len(head)+len(body))
	putTargets(rec[recordHead:], targets)
	copy(rec[at:], head)
	copy(rec[at+len(head):], body)
	b.live += int64(len(targets))
	b.weight += int64(len(targets)) * weight
	b.size += padded(int64(len(rec)))
	b.messages = append(b.messages, len(b.buf)-int(padded(int64(len(rec)))))
	return len(b.messages) - 1
}

// Settle adds a range of settled messages.
func (b *Batch) Settle(queue, from, to uint64) {
	rec := b.add(kindSettle, 1, recordHead+rangeBytes)
	order.PutUint64(rec[recordHead:], queue)
	order.PutUint64(rec[recordHead+8:], from)
	order.PutUint64(rec[recordHead+16:], to)
}

func (b *Batch) add(k kind, count, n int) []byte {
	at := len(b.buf)
	room := int(padded(int64(n)))
	b.buf = append(b.buf, make([]byte, room)...)
	rec := b.buf[at : at+n]
	putHead(rec, 0, k, count)
	b.parts++
	return rec
}

// Position is where the message with that number is, after Append.
func (b *Batch) Position(number int) Position {
	return b.pos + recordHead + uint64(b.messages[number])
}

// Append appends a batch that is not empty and gives its position, for Sync. Its messages' targets
// count as live. Lock is held.
func (j *Journal) Append(b *Batch) Position {
	if b.Len() > MaxRecord || b.parts > maxCount {
		panic(fmt.Sprintf("BUG: journal: a batch of %d bytes and %d parts", b.Len(), b.parts))
	}
	rec, pos := j.place(int(b.Len()), b.parts)
	b.pos = pos
	if rec == nil {
		// No part may have a place of its own: none becomes safe.
		for i := range b.messages {
			b.messages[i] = 0
		}
		return pos
	}
	copy(rec[recordHead:], b.buf)
	for at := recordHead; at < len(rec); {
		n := int64(order.Uint32(rec[at+8:]))
		order.PutUint32(rec[at+12:], uint32(j.start/alignment))
		at += int(padded(n))
	}
	j.cur.live.Add(b.live)
	j.cur.weight.Add(b.weight)
	j.cur.whole.Add(b.weight)
	j.cur.messages.Add(b.size)
	putHead(rec, j.start, kindBatch, b.parts)
	return pos
}
