package bench

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/frames/table"
)

// fake is a broker just good enough for a run, of both protocols, which can be told to misbehave.
// One mutex guards all of it.
type fake struct {
	faults faults
	ln     net.Listener
	conns  sync.WaitGroup

	mu        sync.Mutex
	open      map[*fakeConn]bool
	queues    map[string]*fakeQueue
	kinds     map[string]string        // of exchanges
	bound     map[string][]fakeBinding // by exchange
	exchanges int                      // declared and not deleted
	published int
	unacked   int // deliveries without an ack when their connection closed
	stalled   bool
}

// faults happen at each nth publish, counted from 1 over all connections; 0: never.
type faults struct {
	drop      int // confirm, but do not deliver
	duplicate int // deliver twice
	refuse    int // nack, do not deliver
	scramble  int // deliver another body
	mute      int // no confirms from here on
	end       int // close the channel (AMQP) or the connection (FMQ1) with an error
	pause     int // ask publishers to wait, and after the next ack to go on

	stall    int           // once, send nothing to anybody
	stallFor time.Duration // for so long
}

type fakeBinding struct{ queue, key string }

type fakeQueue struct {
	bodies    [][]byte
	consumers []*fakeConsumer
	next      int
}

type fakeConsumer struct {
	conn   *fakeConn
	handle uint64
	room   int // deliveries it may get
	noAck  bool
}

type fakeConn struct {
	fake *fake
	net.Conn
	fmq1     bool
	prefetch int

	// Guarded by fake.mu.
	out      []byte
	wake     *sync.Cond
	closed   bool
	confirms bool   // wanted for AMQP
	seq      uint64 // last publish that wants a confirm
	upto     uint64 // last one that may be confirmed with multiple
	tag      uint64 // last delivery
	unacked  map[uint64]*fakeConsumer
	paused   bool
}

func newFake(t *testing.T, f faults) *fake {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &fake{faults: f, ln: ln, open: make(map[*fakeConn]bool), queues: make(map[string]*fakeQueue), kinds: make(map[string]string), bound: make(map[string][]fakeBinding)}
	b.conns.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conn := &fakeConn{fake: b, Conn: c, unacked: make(map[uint64]*fakeConsumer)}
			conn.wake = sync.NewCond(&b.mu)
			b.mu.Lock()
			b.open[conn] = true
			b.mu.Unlock()
			b.conns.Go(conn.write)
			b.conns.Go(func() {
				if err := conn.serve(); err != nil && !errors.Is(err, net.ErrClosed) {
					t.Errorf("fake broker: %v", err)
				}
				conn.gone()
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		b.mu.Lock()
		for c := range b.open {
			c.Close()
		}
		b.mu.Unlock()
		b.conns.Wait()
	})
	return b
}

func (b *fake) amqpURL() string { return "amqp://" + b.ln.Addr().String() }
func (b *fake) fireURL() string { return "fire://" + b.ln.Addr().String() }

// leftovers describes what a run should have cleaned up.
func (b *fake) leftovers() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queues) == 0 && b.exchanges == 0 && b.unacked == 0 {
		return ""
	}
	return fmt.Sprintf("%d queues, %d exchanges, %d unacked deliveries", len(b.queues), b.exchanges, b.unacked)
}

func (c *fakeConn) write() {
	for {
		c.fake.mu.Lock()
		for (len(c.out) == 0 || c.fake.stalled) && !c.closed {
			c.wake.Wait()
		}
		out := c.out
		c.out = nil
		closed := c.closed
		c.fake.mu.Unlock()
		if _, err := c.Write(out); err != nil || closed {
			c.Close()
			return
		}
	}
}

// gone ends a connection; the mutex is not held.
func (c *fakeConn) gone() {
	c.fake.mu.Lock()
	defer c.fake.mu.Unlock()
	delete(c.fake.open, c)
	c.fake.unacked += len(c.unacked)
	c.closed = true
	c.wake.Signal()
	for _, q := range c.fake.queues {
		kept := q.consumers[:0]
		for _, con := range q.consumers {
			if con.conn != c {
				kept = append(kept, con)
			}
		}
		q.consumers = kept
	}
}

func (c *fakeConn) serve() error {
	buf := make([]byte, 0, 1<<20)
	first := true
	state := &fakeAMQP{fakeConn: c}
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := c.Read(buf[len(buf):cap(buf)])
		if n == 0 && err != nil {
			return nil
		}
		buf = buf[:len(buf)+n]
		if first && len(buf) < 8 {
			continue
		}
		c.fake.mu.Lock()
		if first {
			first = false
			c.fmq1 = strings.HasPrefix(string(buf), fmq1.Preface)
			if c.fmq1 {
				buf = buf[4:]
			} else {
				buf = buf[8:]
				server := table.Table{{Name: "product", Value: table.StringValue("fake")}, {Name: "version", Value: table.StringValue("1")}}
				c.method(0, &amqp.ConnectionStart{VersionMinor: 9, ServerProperties: table.Append(nil, server), Mechanisms: []byte("PLAIN"), Locales: []byte("en_US")})
			}
		}
		rest := buf
		for err == nil {
			var n int
			if c.fmq1 {
				var f fmq1.Frame
				if f, n, _, err = fmq1.Next(rest, fmq1.DefaultMaxFrame); n > 0 && err == nil {
					err = c.fmq1Frame(f)
				}
			} else {
				var f amqp.Frame
				if f, n, err = amqp.Next(rest, amqpFrameMax); n > 0 && err == nil {
					err = state.frame(f)
				}
			}
			if n == 0 {
				break
			}
			rest = rest[n:]
		}
		c.confirm()
		c.fake.mu.Unlock()
		if err != nil {
			return err
		}
		buf = append(make([]byte, 0, max(1<<20, 2*len(rest))), rest...)
	}
}

// publish routes one message. The mutex is held, as in all that follows.
func (c *fakeConn) publish(exchange, key string, body []byte, confirm bool) {
	f := c.fake
	f.published++
	if confirm {
		c.seq++
	}
	at := func(n int) bool { return n > 0 && f.published%n == 0 }
	queues := f.route(exchange, key)
	body = append([]byte(nil), body...)
	if f.published == f.faults.stall {
		f.stalled = true
		time.AfterFunc(f.faults.stallFor, f.resume)
	}
	switch {
	case at(f.faults.end):
		c.fail()
		return
	case at(f.faults.refuse):
		c.seq--
		c.confirm()
		c.seq++
		c.nack()
		return
	case at(f.faults.drop):
		return
	case at(f.faults.scramble):
		body[8] ^= 0xff
	case at(f.faults.pause):
		c.paused = true
		c.pause(true)
	}
	for _, name := range queues {
		q := f.queues[name]
		q.bodies = append(q.bodies, body)
		if at(f.faults.duplicate) {
			q.bodies = append(q.bodies, body)
		}
		q.pump()
	}
}

// route gives the queues that a message goes to.
func (b *fake) route(exchange, key string) (queues []string) {
	if exchange == "" {
		return []string{key}
	}
	bound := b.bound[exchange]
	for _, to := range bound {
		prefix, any := strings.CutSuffix(to.key, "#")
		switch b.kinds[exchange] {
		case "x-consistent-hash":
			return []string{bound[b.published%len(bound)].queue}
		case "direct", "topic":
			if to.key != key && (!any || !strings.HasPrefix(key, prefix)) {
				continue
			}
		}
		queues = append(queues, to.queue)
	}
	return queues
}

func (b *fake) resume() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stalled = false
	for c := range b.open {
		c.wake.Signal()
	}
}

func (q *fakeQueue) pump() {
	for tried := 0; len(q.bodies) > 0 && tried < len(q.consumers); {
		con := q.consumers[q.next%len(q.consumers)]
		q.next++
		if con.room == 0 {
			tried++
			continue
		}
		tried = 0
		con.room--
		body := q.bodies[0]
		q.bodies = q.bodies[1:]
		c := con.conn
		c.tag++
		if !con.noAck {
			c.unacked[c.tag] = con
		}
		if c.fmq1 {
			m := fmq1.Deliver{Sub: con.handle, Tag: c.tag, Key: []byte("k")}
			start := len(c.out)
			c.out = fmq1.End(m.AppendTo(fmq1.Begin(c.out, fmq1.OpDeliver)), start, len(body))
			c.out = append(c.out, body...)
		} else {
			m := amqp.BasicDeliver{ConsumerTag: consumerTag(uint32(con.handle)), DeliveryTag: c.tag, RoutingKey: []byte("k")}
			c.out = m.AppendFrame(c.out, channelID)
			c.out = amqp.AppendContentHeader(c.out, channelID, len(body), []byte{0, 0})
			c.out = amqp.AppendBody(c.out, channelID, body, amqpFrameMax)
		}
		c.wake.Signal()
	}
}

func (c *fakeConn) ack(tag uint64, multiple bool) {
	for n := range c.unacked {
		if n == tag || multiple && n <= tag {
			if !c.fmq1 {
				c.unacked[n].room++
			}
			delete(c.unacked, n)
		}
	}
	for _, q := range c.fake.queues {
		q.pump()
	}
	for other := range c.fake.open {
		if other.paused {
			other.paused = false
			other.pause(false)
		}
	}
}

// confirm confirms what was published since the last time.
func (c *fakeConn) confirm() {
	if mute := c.fake.faults.mute; c.upto == c.seq || mute > 0 && c.fake.published >= mute {
		return
	}
	c.upto = c.seq
	if c.fmq1 {
		m := fmq1.Confirm{UpTo: c.upto}
		start := len(c.out)
		c.out = fmq1.End(m.AppendTo(fmq1.Begin(c.out, fmq1.OpConfirm)), start, 0)
		c.wake.Signal()
		return
	}
	c.method(channelID, &amqp.BasicAck{DeliveryTag: c.upto, Multiple: true})
}

func (c *fakeConn) nack() {
	c.upto = c.seq
	if c.fmq1 {
		m := fmq1.Confirm{Seq: c.seq, Nack: true, Code: fmq1.ResourceError}
		start := len(c.out)
		c.out = fmq1.End(m.AppendTo(fmq1.Begin(c.out, fmq1.OpConfirm)), start, 0)
		return
	}
	c.method(channelID, &amqp.BasicNack{DeliveryTag: c.seq})
}

func (c *fakeConn) fail() {
	if c.fmq1 {
		c.out = fmq1.Append(c.out, fmq1.OpError, &fmq1.ServerError{Code: fmq1.InternalError, Msg: "INTERNAL_ERROR - told to", Fatal: true})
	} else {
		c.method(channelID, &amqp.ChannelClose{ReplyCode: amqp.CodeInternalError, ReplyText: []byte("INTERNAL_ERROR - told to")})
	}
	c.closed = true
	c.wake.Signal()
}

func (c *fakeConn) pause(on bool) {
	switch {
	case c.fmq1:
		c.out = fmq1.Append(c.out, fmq1.OpFlow, &fmq1.Flow{Pause: on})
		c.wake.Signal()
	case on:
		c.method(0, &amqp.ConnectionBlocked{Reason: []byte("told to")})
	default:
		c.method(0, &amqp.ConnectionUnblocked{})
	}
}

func (c *fakeConn) method(channel uint16, m amqp.Method) {
	c.out = m.AppendFrame(c.out, channel)
	c.wake.Signal()
}

// fakeAMQP adds what a publish in progress needs.
type fakeAMQP struct {
	*fakeConn
	exchange, key string
	size          int
	body          []byte
}

func (c *fakeAMQP) frame(f amqp.Frame) error {
	switch f.Type {
	case amqp.FrameHeader:
		h, _ := amqp.CutContentHeader(f.Payload)
		c.size, c.body = int(h.BodySize), c.body[:0]
		return nil
	case amqp.FrameBody:
		if c.body = append(c.body, f.Payload...); len(c.body) == c.size {
			c.publish(c.exchange, c.key, c.body, c.confirms)
		}
		return nil
	}
	id, args, _ := amqp.CutMethod(f.Payload)
	m := amqp.NewMethod(id)
	if m == nil {
		return fmt.Errorf("unknown method %d", id)
	}
	if err := m.Decode(args); err != nil {
		return err
	}
	switch m := m.(type) {
	case *amqp.ConnectionStartOk:
		if string(m.Response) != "\x00guest\x00guest" {
			c.method(0, &amqp.ConnectionClose{ReplyCode: amqp.CodeAccessRefused, ReplyText: []byte("ACCESS_REFUSED - wrong")})
			return nil
		}
		c.method(0, &amqp.ConnectionTune{ChannelMax: 2047, FrameMax: amqpFrameMax, Heartbeat: 60})
	case *amqp.ConnectionTuneOk:
	case *amqp.ConnectionOpen:
		c.method(0, &amqp.ConnectionOpenOk{})
	case *amqp.ConnectionClose:
		c.method(0, &amqp.ConnectionCloseOk{})
	case *amqp.ChannelOpen:
		c.method(channelID, &amqp.ChannelOpenOk{})
	case *amqp.ConfirmSelect:
		c.confirms = true
		c.method(channelID, &amqp.ConfirmSelectOk{})
	case *amqp.BasicQos:
		c.prefetch = int(m.PrefetchCount)
		c.method(channelID, &amqp.BasicQosOk{})
	case *amqp.BasicConsume:
		c.method(channelID, &amqp.BasicConsumeOk{ConsumerTag: m.ConsumerTag})
		handle, err := handleOf(m.ConsumerTag)
		if err != nil {
			return err
		}
		if m.NoAck {
			c.prefetch = math.MaxInt
		}
		c.subscribe(string(m.Queue), uint64(handle), c.prefetch, m.NoAck)
	case *amqp.BasicCancel:
		handle, err := handleOf(m.ConsumerTag)
		if err != nil {
			return err
		}
		c.unsubscribe(uint64(handle))
		c.method(channelID, &amqp.BasicCancelOk{ConsumerTag: m.ConsumerTag})
	case *amqp.QueueDeclare:
		c.fake.queues[string(m.Queue)] = &fakeQueue{}
		c.method(channelID, &amqp.QueueDeclareOk{Queue: m.Queue})
	case *amqp.QueueDelete:
		c.method(channelID, &amqp.QueueDeleteOk{MessageCount: uint32(c.deleteQueue(string(m.Queue)))})
	case *amqp.ExchangeDeclare:
		c.fake.exchanges++
		c.fake.kinds[string(m.Exchange)] = string(m.Type)
		c.method(channelID, &amqp.ExchangeDeclareOk{})
	case *amqp.ExchangeDelete:
		c.fake.exchanges--
		c.method(channelID, &amqp.ExchangeDeleteOk{})
	case *amqp.QueueBind:
		c.bind(string(m.Exchange), string(m.Queue), string(m.RoutingKey))
		c.method(channelID, &amqp.QueueBindOk{})
	case *amqp.BasicPublish:
		c.exchange, c.key = string(m.Exchange), string(m.RoutingKey)
	case *amqp.BasicAck:
		c.ack(m.DeliveryTag, m.Multiple)
	default:
		return fmt.Errorf("unexpected %s", id)
	}
	return nil
}

func (c *fakeConn) fmq1Frame(f fmq1.Frame) error {
	reply := func(ok fmq1.OK) {
		c.out = fmq1.Append(c.out, fmq1.OpOK, &ok)
		c.wake.Signal()
	}
	switch f.Op {
	case fmq1.OpHello:
		var m fmq1.Hello
		if err := fmq1.Decode(f.Header, &m); err != nil {
			return err
		}
		if m.Auth.Pass != "guest" {
			c.out = fmq1.Append(c.out, fmq1.OpError, &fmq1.ServerError{Code: fmq1.AccessRefused, Msg: "ACCESS_REFUSED - wrong", Fatal: true})
			c.wake.Signal()
			return nil
		}
		c.out = fmq1.Append(c.out, fmq1.OpWelcome, &fmq1.Welcome{Ver: 1, Server: fmq1.Server{Name: "fake", Version: "1"}, MaxFrame: fmq1.DefaultMaxFrame})
		c.wake.Signal()
	case fmq1.OpClose:
		c.out = fmq1.Append(c.out, fmq1.OpClose, &fmq1.Close{Code: 200})
		c.wake.Signal()
	case fmq1.OpDeclareQueue:
		var m fmq1.DeclareQueue
		if err := fmq1.Decode(f.Header, &m); err != nil {
			return err
		}
		c.fake.queues[m.Name] = &fakeQueue{}
		reply(fmq1.OK{RID: m.RID, Name: m.Name})
	case fmq1.OpDeleteQueue:
		var m fmq1.DeleteQueue
		if err := fmq1.Decode(f.Header, &m); err != nil {
			return err
		}
		reply(fmq1.OK{RID: m.RID, Messages: uint64(c.deleteQueue(m.Name))})
	case fmq1.OpDeclareExchange:
		var m fmq1.DeclareExchange
		if err := fmq1.Decode(f.Header, &m); err != nil {
			return err
		}
		c.fake.exchanges++
		c.fake.kinds[m.Name] = m.Type
		reply(fmq1.OK{RID: m.RID})
	case fmq1.OpDeleteExchange:
		var m fmq1.DeleteExchange
		if err := fmq1.Decode(f.Header, &m); err != nil {
			return err
		}
		c.fake.exchanges--
		reply(fmq1.OK{RID: m.RID})
	case fmq1.OpBind:
		var m fmq1.Bind
		if err := fmq1.Decode(f.Header, &m); err != nil {
			return err
		}
		c.bind(m.Exchange, m.Queue, m.Key)
		reply(fmq1.OK{RID: m.RID})
	case fmq1.OpSubscribe:
		var m fmq1.Subscribe
		if err := fmq1.Decode(f.Header, &m); err != nil {
			return err
		}
		reply(fmq1.OK{RID: m.RID})
		c.subscribe(m.Queue, m.Sub, int(m.Credit), m.NoAck)
	case fmq1.OpUnsubscribe:
		var m fmq1.Unsubscribe
		if err := fmq1.Decode(f.Header, &m); err != nil {
			return err
		}
		c.unsubscribe(m.Sub)
		reply(fmq1.OK{RID: m.RID})
	case fmq1.OpPublish:
		var m fmq1.Publish
		if err := m.Decode(f.Header); err != nil {
			return err
		}
		if m.Seq != 0 && m.Seq != c.seq+1 {
			return fmt.Errorf("publish %d follows %d", m.Seq, c.seq)
		}
		c.publish(string(m.Exchange), string(m.Key), f.Payload, m.Seq != 0)
	case fmq1.OpAck:
		var m fmq1.Settle
		if err := m.Decode(f.Header); err != nil {
			return err
		}
		c.ack(m.Tag, m.Multiple)
	case fmq1.OpCredit:
		var m fmq1.Credit
		if err := m.Decode(f.Header); err != nil {
			return err
		}
		for _, q := range c.fake.queues {
			for _, con := range q.consumers {
				if con.conn == c && con.handle == m.Sub {
					con.room += int(m.Credit)
				}
			}
			q.pump()
		}
	default:
		return fmt.Errorf("unexpected %s", f.Op)
	}
	return nil
}

func (c *fakeConn) subscribe(queue string, handle uint64, room int, noAck bool) {
	q := c.fake.queues[queue]
	q.consumers = append(q.consumers, &fakeConsumer{conn: c, handle: handle, room: room, noAck: noAck})
	q.pump()
}

func (c *fakeConn) unsubscribe(handle uint64) {
	for _, q := range c.fake.queues {
		for i, con := range q.consumers {
			if con.conn == c && con.handle == handle {
				q.consumers = append(q.consumers[:i], q.consumers[i+1:]...)
				break
			}
		}
	}
}

func (c *fakeConn) bind(exchange, queue, key string) {
	c.fake.bound[exchange] = append(c.fake.bound[exchange], fakeBinding{queue, key})
}

func (c *fakeConn) deleteQueue(name string) int {
	n := 0
	if q := c.fake.queues[name]; q != nil {
		n = len(q.bodies)
	}
	delete(c.fake.queues, name)
	return n
}
