package crash

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/firemq/firemq/test/internal/brokertest"
	amqp "github.com/rabbitmq/amqp091-go"
)

// In these drills one connection, the only one, holds the memory alarm: it has filled the memory with messages of
// which it has got one, and settles none. What it publishes meanwhile, and acknowledges, goes by way of the disk.
const (
	spillLimit  = brokertest.RaceFactor * 64 << 20
	spillWindow = 2000 // unconfirmed publishes, 32 MiB of them
	spillBody   = 32 << 10

	memoryHeld = "memory alarm: publishers are paused"
	memoryOver = "memory alarm is over"
)

// What is said of a full disk, and with room on it, where there is a limit of free space and where there is none.
var (
	diskAlarm = [2]string{"disk alarm: publishers are paused", "disk alarm is over"}
	diskLow   = [2]string{"journal: no file can be made for what comes next: publishers wait", "journal: there is room again"}
)

// sole is that client. Message n goes to the queue kept, which is durable, if n is even, else to passing; it is persistent
// if n/2 is even.
type sole struct {
	b        *brokertest.Broker
	conn     *amqp.Connection
	ch, cch  *amqp.Channel // publishes; consumes
	bodies   *rand.Rand
	blocked  chan amqp.Blocking
	acks     func(n uint64) bool // which messages are acknowledged
	gate     chan struct{}       // closed when messages are
	quit     chan struct{}       // closed to publish no more
	over     sync.WaitGroup
	refusals atomic.Int64

	first   uint64        // messages of earlier rounds
	sent    atomic.Uint64 // all of them
	done    atomic.Uint64 // confirmed in this round
	volume  atomic.Int64  // bytes of them
	arrived atomic.Uint64 // deliveries

	mu        sync.Mutex
	sizes     map[uint64]int  // guarded by mu: of those without a confirm
	confirmed map[uint64]bool // guarded by mu
}

func kept(n uint64) bool     { return n%2 == 0 }
func survives(n uint64) bool { return n%4 == 0 }

func lastOf(text, a, b string) bool { return strings.LastIndex(text, a) > strings.LastIndex(text, b) }

// fillMemory connects the client, has it hold the alarm, and starts it publishing and consuming.
func fillMemory(t *testing.T, b *brokertest.Broker, rng *rand.Rand, sent uint64, confirmed map[uint64]bool, acks func(uint64) bool) *sole {
	t.Helper()
	s := &sole{
		b: b, first: sent, acks: acks, sizes: make(map[uint64]int), confirmed: confirmed,
		bodies: rand.New(rand.NewPCG(rng.Uint64(), 2)), gate: make(chan struct{}), quit: make(chan struct{}),
	}
	s.sent.Store(sent)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v\n%s", err, b.Output())
		}
	}
	var err error
	var socket net.Conn
	s.conn, err = amqp.DialConfig(b.AMQPURL, amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		socket, err = amqp.DefaultDial(10*time.Second)(network, addr)
		return socket, err
	}})
	must(err)
	t.Cleanup(func() { socket.Close() }) // its goodbye may wait
	s.blocked = s.conn.NotifyBlocked(make(chan amqp.Blocking, 100))
	s.ch, err = s.conn.Channel()
	must(err)
	must(s.ch.Confirm(false))
	s.cch, err = s.conn.Channel()
	must(err)
	for _, q := range []string{"kept", "passing", "ballast"} {
		_, err := s.cch.QueueDeclare(q, q == "kept", false, false, false, nil)
		must(err)
	}
	lists := make([]<-chan amqp.Delivery, 2)
	for i, q := range []string{"kept", "passing"} {
		lists[i], err = s.cch.Consume(q, "", false, false, false, false, nil)
		must(err)
	}
	for n := 0; !s.holds(); n++ {
		if n > 4*spillLimit/spillBody {
			t.Fatalf("no alarm\n%s", b.Output())
		}
		must(s.cch.Publish("", "ballast", false, false, amqp.Publishing{Body: make([]byte, spillBody)}))
		if n == 0 {
			_, ok, err := s.cch.Get("ballast", false)
			must(err)
			if !ok {
				t.Fatal("there is nothing to get")
			}
		}
	}
	slots := make(chan struct{}, spillWindow)
	confirms := s.ch.NotifyPublish(make(chan amqp.Confirmation, spillWindow))
	s.over.Go(func() { s.confirm(confirms, slots) })
	s.over.Go(func() { s.publish(slots) })
	for i, list := range lists {
		s.over.Go(func() { s.consume(t, list, i == 0) })
	}
	return s
}

func (s *sole) holds() bool { return lastOf(s.b.Output(), memoryHeld, memoryOver) }

// publish goes on until quit is closed or the connection is lost, which confirm ends as well.
func (s *sole) publish(slots chan struct{}) {
	lost := s.ch.NotifyClose(make(chan *amqp.Error, 1))
	for n := s.first + 1; ; n++ {
		select {
		case <-s.quit:
			return
		case <-lost:
			return
		case slots <- struct{}{}:
		}
		p := amqp.Publishing{Body: body(n, s.bodies.IntN(spillBody))}
		if survives(n) || n%4 == 1 {
			p.DeliveryMode = amqp.Persistent
		}
		queue := "passing"
		if kept(n) {
			queue = "kept"
		}
		s.mu.Lock()
		s.sizes[n] = len(p.Body)
		s.mu.Unlock()
		s.sent.Store(n)
		if s.ch.Publish("", queue, false, false, p) != nil {
			return
		}
	}
}

func (s *sole) confirm(confirms <-chan amqp.Confirmation, slots chan struct{}) {
	for c := range confirms {
		if !c.Ack {
			s.refusals.Add(1)
		}
		n := s.first + c.DeliveryTag
		s.mu.Lock()
		s.confirmed[n] = c.Ack
		s.volume.Add(int64(s.sizes[n]))
		delete(s.sizes, n)
		s.mu.Unlock()
		s.done.Add(1)
		<-slots
	}
}

// consume checks that what comes for the first time comes in order.
func (s *sole) consume(t *testing.T, list <-chan amqp.Delivery, durable bool) {
	last := s.first
	for d := range list {
		if len(d.Body) < 8 {
			t.Errorf("a delivery of %d bytes", len(d.Body))
			return
		}
		n := binary.BigEndian.Uint64(d.Body)
		if kept(n) != durable || n > s.sent.Load() || n > s.first && n <= last {
			t.Errorf("message %d came after %d of %d", n, last, s.sent.Load())
		}
		if n > s.first {
			last = n
			s.arrived.Add(1)
		}
		if s.acks(n) {
			select {
			case <-s.gate:
			case <-s.quit:
			}
			d.Ack(false) // fails with the connection, which ends the list
		}
	}
}

// spills waits until so many bytes were confirmed within one alarm that still holds.
func (s *sole) spills(t *testing.T, n int64) {
	t.Helper()
	alarms, base := 0, int64(0)
	brokertest.Eventually(t, time.Minute, "publishes by way of the disk", func() bool {
		if now := strings.Count(s.b.Output(), memoryHeld); now != alarms {
			alarms, base = now, s.volume.Load()
		}
		return s.holds() && s.volume.Load()-base > n
	})
}

// rests waits until nothing is confirmed for two seconds.
func (s *sole) rests(t *testing.T) {
	t.Helper()
	last, since := uint64(0), time.Now()
	brokertest.Eventually(t, time.Minute, "publishes to wait", func() bool {
		if n := s.done.Load(); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > 2*time.Second
	})
}

// ended waits for the client's end, with its connection.
func (s *sole) ended(t *testing.T) {
	t.Helper()
	s.over.Wait()
	if n := s.refusals.Load(); n > 0 {
		t.Errorf("%d messages were refused", n)
	}
}

// TestKillInAnAlarm kills the broker, or stops it, at a random moment while the memory alarm holds and its only client
// goes on by way of the disk, again and again. Each time all that is persistent, was confirmed and not acknowledged is there,
// once and in order; nothing is that is transient, or of a queue that is not durable; and the journal gives back what
// it was lent.
func TestKillInAnAlarm(t *testing.T) {
	rng := random(t)
	data := t.TempDir()
	confirmed := make(map[uint64]bool)
	sent := uint64(0)
	rounds := max(4, *kills/5)
	for round := range rounds + 1 {
		b := brokertest.Start(t, brokertest.Options{Data: data, Flags: []string{"--memory-limit", strconv.Itoa(spillLimit)}})
		if round > 0 {
			checkSpilled(t, b, data, sent, confirmed, round == rounds || rng.IntN(2) == 0)
		}
		if round == rounds || t.Failed() {
			break
		}
		s := fillMemory(t, b, rng, sent, confirmed, settled)
		close(s.gate)
		s.spills(t, 8<<20+rng.Int64N(32<<20))
		<-time.After(time.Duration(rng.IntN(200_000)) * time.Microsecond)
		stop := rng.IntN(4) == 0
		if stop {
			b.Stop(t)
		} else {
			b.Kill()
		}
		s.ended(t)
		sent = s.sent.Load()
		t.Logf("stopped=%v after %d confirms, %d MiB", stop, s.done.Load(), s.volume.Load()>>20)
	}
}

// checkSpilled checks what a start has found, and with drain that it is taken and leaves nothing on the disk.
func checkSpilled(t *testing.T, b *brokertest.Broker, data string, sent uint64, confirmed map[uint64]bool, drain bool) {
	t.Helper()
	conn, err := amqp.Dial(b.AMQPURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, q := range []string{"passing", "ballast"} {
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDeclarePassive(q, false, false, false, false, nil); err == nil {
			t.Errorf("queue %s is there after a restart", q)
		}
	}
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	state, err := ch.QueueDeclarePassive("kept", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if m := recoveredLine.FindStringSubmatch(b.Banner); m == nil || m[1] != "1" || m[2] != strconv.Itoa(state.Messages) {
		t.Errorf("there are %d messages, the banner says:\n%s", state.Messages, b.Banner)
	}
	if !drain {
		return
	}
	list, err := ch.Consume("kept", "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	late := time.After(time.Minute)
	last := uint64(0)
	for i := range state.Messages {
		var d amqp.Delivery
		select {
		case d = <-list:
		case <-late:
		}
		if len(d.Body) < 8 {
			t.Fatalf("only %d of %d messages came\n%s", i, state.Messages, b.Output())
		}
		n := binary.BigEndian.Uint64(d.Body)
		if n <= last || n > sent || !survives(n) || d.DeliveryMode != amqp.Persistent {
			t.Fatalf("message %d, of mode %d, came after %d of %d", n, d.DeliveryMode, last, sent)
		}
		if !bytes.Equal(d.Body, body(n, len(d.Body)-8)) {
			t.Fatalf("message %d has another body than was sent", n)
		}
		last = n
		delete(confirmed, n)
		if err := d.Ack(false); err != nil {
			t.Fatal(err)
		}
	}
	lost := 0
	for n, is := range confirmed {
		if is && survives(n) && !settled(n) {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d messages that were confirmed are missing", lost)
	}
	clear(confirmed)
	const segments = 5 << 25 // two in use, two kept for later, and one that may be on its way out
	brokertest.Eventually(t, time.Minute, "the journal is small again", func() bool { return diskUsed(t, data) < segments })
}

// diskUsed is what the files of a folder take, in bytes.
func diskUsed(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		i, err := d.Info()
		if err == nil {
			n += i.Size()
		}
		if os.IsNotExist(err) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// fill takes all that a disk has left.
func fill(t *testing.T, file string) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{1 << 20, 4 << 10} {
		for zeros := make([]byte, size); err == nil; {
			_, err = f.Write(zeros)
		}
		err = nil
	}
}

// TestFullDiskInAnAlarm fills the disk while the memory alarm holds and its only client goes on by way of the disk. The
// client waits then, and is told of both; with room on the disk it gets through to its acknowledgements, which end
// the alarm. Everything comes once and in order. A broker that is killed meanwhile has all that it must.
func TestFullDiskInAnAlarm(t *testing.T) {
	for i, limit := range []string{"50MB", "0"} {
		for j, kill := range []bool{false, true} {
			if i != j && *soak == 0 {
				continue
			}
			name := fmt.Sprintf("limit=%s killed=%v", limit, kill)
			for begin, round := time.Now(), 0; round == 0 || time.Since(begin) < *soak/4; round++ {
				t.Run(name, func(t *testing.T) { fullDiskInAnAlarm(t, limit, kill) })
			}
		}
	}
}

func fullDiskInAnAlarm(t *testing.T, limit string, kill bool) {
	rng := random(t)
	says := diskAlarm
	if limit == "0" {
		says = diskLow
	}
	dir := smallDisk(t, "512m")
	o := brokertest.Options{Data: dir + "/data", Flags: []string{"--disk-free-limit", limit, "--memory-limit", strconv.Itoa(spillLimit)}}
	b := brokertest.Start(t, o)
	acks := func(uint64) bool { return true }
	if kill {
		acks = settled
	}
	confirmed := make(map[uint64]bool)
	s := fillMemory(t, b, rng, 0, confirmed, acks)
	begun := kill || rng.IntN(2) == 0
	if begun {
		close(s.gate)
	}
	s.spills(t, 8<<20+rng.Int64N(16<<20))
	fill(t, dir+"/fill")
	brokertest.Eventually(t, time.Minute, says[0], func() bool { return lastOf(b.Output(), says[0], says[1]) })
	s.rests(t)
	if !s.holds() || s.conn.IsClosed() {
		t.Errorf("the memory alarm holds: %v; the connection is closed: %v\n%s", s.holds(), s.conn.IsClosed(), b.Output())
	}
	select {
	case is := <-s.blocked:
		if !is.Active || is.Reason != "low on memory" {
			t.Errorf("blocked: %+v", is)
		}
	default:
		t.Error("it was not told of the alarm")
	}
	before := s.done.Load()
	if kill {
		b.Kill()
		s.ended(t)
		if err := os.Remove(dir + "/fill"); err != nil {
			t.Fatal(err)
		}
		b = brokertest.Start(t, o)
		checkSpilled(t, b, o.Data, s.sent.Load(), confirmed, true)
		b.Stop(t)
		return
	}
	if err := os.Remove(dir + "/fill"); err != nil {
		t.Fatal(err)
	}
	if !begun {
		close(s.gate)
	}
	brokertest.Eventually(t, time.Minute, "publishes go on", func() bool { return s.done.Load() > before+spillWindow })
	close(s.quit)
	brokertest.Eventually(t, time.Minute, "everything is confirmed and comes", func() bool {
		return s.done.Load() == s.sent.Load() && s.arrived.Load() == s.sent.Load()
	})
	brokertest.Eventually(t, time.Minute, says[1], func() bool { return lastOf(b.Output(), says[1], says[0]) })
	if _, err := s.cch.QueuePurge("ballast", false); err != nil {
		t.Fatal(err)
	}
	brokertest.Eventually(t, time.Minute, "the memory alarm is over", func() bool { return !s.holds() })
	t.Logf("%d messages, %d MiB", s.done.Load(), s.volume.Load()>>20)
	if err := s.conn.Close(); err != nil {
		t.Fatal(err)
	}
	s.ended(t)
	b.Stop(t)
}
