package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/frames/table"
)

// fmq1Wire is a session. A subscription's handle is its number on the wire, less one.
type fmq1Wire struct {
	*link
	maxFrame uint32 // that we accept
	acks     acks
	name     string
	rid      uint64
	out      []byte
	credits  []credit // one a subscription
}

// credit is what a subscription may still be sent.
type credit struct {
	part  int // a top-up
	taken int // deliveries since the last top-up
}

func newCredit(prefetch int) credit { return credit{part: max(1, prefetch/8)} }

// take notes n deliveries and says how many to ask for again: none, until an eighth of the prefetch is used.
func (c *credit) take(n int) (more int) {
	if c.taken += n; c.taken < c.part {
		return 0
	}
	more, c.taken = c.taken, 0
	return more
}

// headerRoom is more than the header of any frame that a run is sent: names, an error's text.
const headerRoom = 4096

func dialFMQ1(ctx context.Context, to target) (wire, error) {
	most := max(to.size+headerRoom, fmq1.MaxBeforeWelcome)
	l, err := dialLink(ctx, to, most+4)
	if err != nil {
		return nil, err
	}
	w := &fmq1Wire{link: l, maxFrame: uint32(most), acks: to.acks}
	if err := w.within(func() error { return w.open(to) }); err != nil {
		l.conn.Close()
		return nil, fmt.Errorf("log in at %s: %w", to.Addr, l.unheard(err))
	}
	return w, nil
}

func (w *fmq1Wire) open(to target) error {
	// No heartbeats: a run that stalls is noticed by its own patience.
	hello := fmq1.Hello{
		Ver: fmq1.Version, VHost: to.vhost,
		Auth:   fmq1.Auth{Mech: "plain", User: to.user, Pass: to.pass},
		Client: fmq1.AppendTable(nil, table.Table{{Name: "name", Value: table.StringValue("firemq bench")}}),
	}
	var preface []byte
	if !to.webSocket() {
		preface = []byte(fmq1.Preface)
	}
	if err := w.write(fmq1.Append(preface, fmq1.OpHello, &hello)); err != nil {
		return err
	}
	f, err := w.frame()
	if err != nil {
		return err
	}
	if f.Op != fmq1.OpWelcome {
		return refusal(f)
	}
	var welcome fmq1.Welcome
	if err := fmq1.Decode(f.Header, &welcome); err != nil {
		return err
	}
	w.name = welcome.Server.Name + " " + welcome.Server.Version
	if need := to.size + headerRoom; welcome.MaxFrame != 0 && uint32(need) > welcome.MaxFrame {
		return fmt.Errorf("a body of %d bytes does not fit in the broker's frames of %d bytes: take a smaller --size", to.size, welcome.MaxFrame)
	}
	return nil
}

// ask sends a request, whose RID is w.rid, and waits for its answer.
func (w *fmq1Wire) ask(op fmq1.Op, m fmq1.Header) (ok fmq1.OK, err error) {
	err = w.within(func() error {
		w.out = fmq1.Append(w.out[:0], op, m)
		if err := w.write(w.out); err != nil {
			return err
		}
		for {
			f, err := w.frame()
			switch {
			case err != nil:
				return err
			case f.Op == fmq1.OpOK:
				return fmq1.Decode(f.Header, &ok)
			case f.Op == fmq1.OpFlow: // publishers ask again when they publish
			case f.Op == fmq1.OpPing:
				if err := w.write(fmq1.AppendEmpty(nil, fmq1.OpPong)); err != nil {
					return err
				}
			default:
				return refusal(f)
			}
		}
	})
	return ok, err
}

func (w *fmq1Wire) nextRID() uint64 {
	w.rid++
	return w.rid
}

// frame reads up to the next frame.
func (w *fmq1Wire) frame() (fmq1.Frame, error) {
	for {
		f, n, _, err := fmq1.Next(w.buf[w.r:w.w], w.maxFrame)
		if err != nil && !w.heard {
			return f, errors.New("the broker does not speak FMQ1 on this port")
		}
		if err != nil {
			return f, fmt.Errorf("the broker sent what is not FMQ1: %w", err)
		}
		if n > 0 {
			w.r += n
			w.heard = true
			return f, nil
		}
		if err := w.fill(); err != nil {
			return f, err
		}
	}
}

// refusal is what the broker says with a frame that nobody asked for.
func refusal(f fmq1.Frame) error {
	switch f.Op {
	case fmq1.OpError:
		var m fmq1.ServerError
		if err := fmq1.Decode(f.Header, &m); err != nil {
			return err
		}
		return fmt.Errorf("the broker refused: %d %s", m.Code, m.Msg)
	case fmq1.OpClose:
		var m fmq1.Close
		if err := fmq1.Decode(f.Header, &m); err != nil {
			return err
		}
		return fmt.Errorf("the broker closed the connection: %d %s", m.Code, m.Msg)
	case fmq1.OpCancelled:
		var m fmq1.Cancelled
		if err := fmq1.Decode(f.Header, &m); err != nil {
			return err
		}
		return fmt.Errorf("the broker cancelled a subscription: %d %s", m.Code, m.Msg)
	}
	return fmt.Errorf("the broker sent %s, which nobody asked for", f.Op)
}

func (w *fmq1Wire) declareQueue(name string, arguments table.Table) error {
	m := fmq1.DeclareQueue{RID: w.nextRID(), Name: name, Durable: true}
	if arguments != nil {
		m.Args = fmq1.AppendTable(nil, arguments)
	}
	_, err := w.ask(fmq1.OpDeclareQueue, &m)
	return err
}

func (w *fmq1Wire) deleteQueue(name string) (uint64, error) {
	ok, err := w.ask(fmq1.OpDeleteQueue, &fmq1.DeleteQueue{RID: w.nextRID(), Name: name})
	return ok.Messages, err
}

func (w *fmq1Wire) declareExchange(name, kind string) error {
	_, err := w.ask(fmq1.OpDeclareExchange, &fmq1.DeclareExchange{RID: w.nextRID(), Name: name, Type: kind, Durable: true})
	return err
}

func (w *fmq1Wire) deleteExchange(name string) error {
	_, err := w.ask(fmq1.OpDeleteExchange, &fmq1.DeleteExchange{RID: w.nextRID(), Name: name})
	return err
}

func (w *fmq1Wire) bind(exchange, queue, key string) error {
	_, err := w.ask(fmq1.OpBind, &fmq1.Bind{RID: w.nextRID(), Exchange: exchange, Queue: queue, Key: key})
	return err
}

func (w *fmq1Wire) publishing(int) error { return nil } // confirms are always on

func (w *fmq1Wire) subscribe(queues []string, prefetch int) error {
	var b []byte
	for handle, q := range queues {
		w.credits = append(w.credits, newCredit(prefetch))
		m := fmq1.Subscribe{RID: subscribeRID + uint64(handle), Sub: uint64(handle) + 1, Queue: q, Credit: uint64(prefetch), NoAck: w.acks == noAcks}
		b = fmq1.Append(b, fmq1.OpSubscribe, &m)
	}
	return w.write(b)
}

// close says goodbye, so that acks on their way are taken, but does not insist.
func (w *fmq1Wire) close() {
	w.within(func() error {
		if err := w.write(fmq1.Append(nil, fmq1.OpClose, &fmq1.Close{Code: fmq1.ReplySuccess, Msg: "bye"})); err != nil {
			return err
		}
		for {
			if f, err := w.frame(); err != nil || f.Op == fmq1.OpClose {
				return err
			}
		}
	})
	w.conn.Close()
}

func (w *fmq1Wire) product() string { return w.name }

// seqMark is a publish's number in the template: msgpack's u64 form, whatever its value becomes.
const seqMark = uint64(1) << 63

func (w *fmq1Wire) template(m model, keys []string, size int) template {
	t := template{tail: filler(size)}
	publish := fmq1.Publish{Exchange: []byte(m.exchange), Persistent: m.properties.DeliveryMode == persistentMode}
	p := m.properties
	if p.Has &^= table.HasDeliveryMode; p.Has != 0 {
		publish.Props, publish.Headers = fmq1.Split(fmq1.Codec{}.Append(nil, &p))
	}
	if m.confirms {
		publish.Seq, t.number = seqMark, binary.BigEndian.PutUint64
	}
	for _, key := range keys {
		publish.Key = []byte(key)
		b := publish.AppendTo(fmq1.Begin(nil, fmq1.OpPublish))
		t.prefix = append(t.prefix, fmq1.End(b, 0, size))
		if m.confirms {
			t.numberAt = append(t.numberAt, indexUint64(b, seqMark))
		}
	}
	return t
}

// indexUint64 finds a number that is in b.
func indexUint64(b []byte, v uint64) int {
	for i := range len(b) - 7 {
		if binary.BigEndian.Uint64(b[i:]) == v {
			return i
		}
	}
	panic("BUG: no sequence number in the template")
}

func (w *fmq1Wire) appendPublished(dst []byte, _ uint64) []byte { return dst }

func (w *fmq1Wire) appendAck(dst []byte, tag uint64) []byte {
	if w.acks != eachAck {
		return dst
	}
	return appendSettle(dst, fmq1.Settle{Tag: tag})
}

func appendSettle(dst []byte, m fmq1.Settle) []byte {
	start := len(dst)
	return fmq1.End(m.AppendTo(fmq1.Begin(dst, fmq1.OpAck)), start, 0)
}

// appendSettled grants credit again in eighths of the prefetch.
func (w *fmq1Wire) appendSettled(dst []byte, handle uint32, lastTag uint64, n int) []byte {
	if w.acks == multipleAcks && n > 0 {
		dst = appendSettle(dst, fmq1.Settle{Tag: lastTag, Multiple: true})
	}
	if more := w.credits[handle].take(n); more > 0 {
		m := fmq1.Credit{Sub: uint64(handle) + 1, Credit: uint64(more)}
		start := len(dst)
		dst = fmq1.End(m.AppendTo(fmq1.Begin(dst, fmq1.OpCredit)), start, 0)
	}
	return dst
}

func (w *fmq1Wire) appendCancel(dst []byte, handle uint32) []byte {
	return fmq1.Append(dst, fmq1.OpUnsubscribe, &fmq1.Unsubscribe{RID: cancelRID + uint64(handle), Sub: uint64(handle) + 1})
}

// subscribeRID and above are the rids of subscribe, cancelRID and above those of unsubscribe, so that an
// answer tells what it is to, and the handle.
const (
	subscribeRID = 1 << 32
	cancelRID    = 2 << 32
)

func (w *fmq1Wire) frames(h handler) error {
	for {
		f, n, _, err := fmq1.Next(w.buf[w.r:w.w], w.maxFrame)
		if err != nil {
			return fmt.Errorf("the broker sent what is not FMQ1: %w", err)
		}
		if n == 0 {
			return nil
		}
		w.r += n
		if err := w.take(h, f); err != nil {
			return err
		}
	}
}

func (w *fmq1Wire) take(h handler, f fmq1.Frame) error {
	switch f.Op {
	case fmq1.OpDeliver:
		var m fmq1.Deliver
		if err := m.Decode(f.Header); err != nil {
			return err
		}
		return h.delivered(uint32(m.Sub)-1, m.Tag, len(f.Payload), f.Payload[:min(stampSize, len(f.Payload))])
	case fmq1.OpConfirm:
		var m fmq1.Confirm
		if err := m.Decode(f.Header); err != nil {
			return err
		}
		if m.Nack {
			return h.confirmed(m.Seq, false, true)
		}
		return h.confirmed(m.UpTo, true, false)
	case fmq1.OpFlow:
		var m fmq1.Flow
		if err := fmq1.Decode(f.Header, &m); err != nil {
			return err
		}
		h.paused(m.Pause)
		return nil
	case fmq1.OpOK:
		var m fmq1.OK
		if err := fmq1.Decode(f.Header, &m); err != nil {
			return err
		}
		switch {
		case m.RID < subscribeRID:
			return refusal(f)
		case m.RID < cancelRID:
			return nil
		}
		return h.cancelled(uint32(m.RID - cancelRID))
	case fmq1.OpPing:
		return w.write(fmq1.AppendEmpty(nil, fmq1.OpPong))
	}
	return refusal(f)
}
