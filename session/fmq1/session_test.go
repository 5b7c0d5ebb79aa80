package fmq1

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/auth"
	"github.com/firemq/firemq/broker/message"
	wire "github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/frames/table"
	"github.com/firemq/firemq/pool"
)

var rewrite = flag.Bool("rewrite", false, "write the answers in testdata again")

// memoryBroker is a real broker without a disk.
func memoryBroker(t testing.TB) *broker.Broker {
	t.Helper()
	return openBroker(t, broker.Options{})
}

// openBroker is memoryBroker on a disk, or on none.
func openBroker(t testing.TB, o broker.Options) *broker.Broker {
	t.Helper()
	before := pool.Live()
	o.Start.VHosts = []string{"/"}
	o.Codecs = map[message.Encoding]message.Codec{message.FMQ1: wire.Codec{}, message.AMQP: amqpCodec{}}
	o.Now = func() int64 { return 1700000000000 }
	b, _, err := broker.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.AddFirstUser("guest", "guest"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if n := pool.Live(); n != before {
			t.Errorf("%d buffers are still lent after the broker closed", n-before)
		}
	})
	return b
}

// amqpCodec stands in for another protocol: headers alone, as a field table.
type amqpCodec struct{}

func (amqpCodec) Decode(p []byte) (table.Properties, error) {
	t, err := table.Decode(p)
	return table.Properties{Has: table.HasHeaders, Headers: t}, err
}
func (amqpCodec) Append(dst []byte, p *table.Properties) []byte { return table.Append(dst, p.Headers) }
func (amqpCodec) Properties([]byte) table.Properties            { return table.Properties{} }

func (amqpCodec) Headers(dst table.Table, p []byte) table.Table {
	dst, _ = table.AppendBorrowed(dst, p)
	return dst
}

// link is one connection of a test.
type link struct {
	t    testing.TB
	o    *memory
	s    *Session
	now  int64
	left []byte // given to OnData and not taken
}

func newLink(t testing.TB, b *broker.Broker, opt Options) *link {
	l := &link{t: t, o: &memory{}, now: int64(time.Hour)}
	l.o.clock = l.now
	opt.Now = func() int64 { return l.now }
	if opt.Version == "" {
		opt.Version = "test"
	}
	l.s = New(l.o, b, opt)
	t.Cleanup(func() { l.s.OnClose(nil) })
	return l
}

// feed gives bytes as one read.
func (l *link) feed(b []byte) {
	l.t.Helper()
	l.left = append(l.left, b...)
	for len(l.left) > 0 && !l.o.closed && l.o.err == nil {
		n, want := l.s.OnData(l.left)
		l.left = l.left[n:]
		if want > 0 && want <= len(l.left) {
			l.t.Fatalf("OnData wants %d bytes and left %d", want, len(l.left))
		}
		if n == 0 || want > len(l.left) {
			break
		}
	}
	l.o.run()
}

func frame(op wire.Op, header, payload []byte) []byte {
	b := append(wire.Begin(nil, op), header...)
	return append(wire.End(b, 0, len(payload)), payload...)
}

// encodeJSON makes MessagePack of a JSON value; numbers without a dot are integers.
func encodeJSON(b []byte, v any) []byte {
	switch v := v.(type) {
	case json.Number:
		if u, err := strconv.ParseUint(v.String(), 10, 64); err == nil && u > 1<<63 {
			return binary.BigEndian.AppendUint64(append(b, 0xcf), u)
		}
	case []any:
		b = append(b, 0x90|byte(len(v)))
		for _, x := range v {
			b = encodeJSON(b, x)
		}
		return b
	case map[string]any:
		keys := slices.Sorted(maps.Keys(v))
		b = append(b, 0x80|byte(len(v)))
		for _, k := range keys {
			b = encodeJSON(append(b, scalar(k)...), v[k])
		}
		return b
	}
	return append(b, scalar(v)...)
}

// scalar is the encoding of one simple value.
func scalar(v any) []byte {
	x, err := table.FromAny(v)
	if err != nil {
		panic(err)
	}
	return wire.AppendTable(nil, table.Table{{Name: "v", Value: x}})[3:]
}

// showValue writes a value as JSON.
func showValue(b []byte, v table.Value) []byte {
	switch v.Kind {
	case table.Nested:
		return showTable(b, v.Table)
	case table.Array:
		b = append(b, '[')
		for i := range v.List {
			if i > 0 {
				b = append(b, ',')
			}
			b = showValue(b, v.List[i])
		}
		return append(b, ']')
	}
	j, err := json.Marshal(table.Table{{Name: "v", Value: v}}.Map()["v"])
	if err != nil {
		panic(err)
	}
	return append(b, bytes.ReplaceAll(j, []byte(`\u003e`), []byte(">"))...)
}

func showTable(b []byte, t table.Table) []byte {
	b = append(b, '{')
	for i := range t {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(strconv.AppendQuote(b, t[i].Name), ':')
		b = showValue(b, t[i].Value)
	}
	return append(b, '}')
}

var ops = func() map[string]wire.Op {
	m := map[string]wire.Op{}
	for op := range 256 {
		m[wire.Op(op).String()] = wire.Op(op)
	}
	return m
}()

// parse makes a frame of "op {header} "payload"", or of "raw hex" and "text ascii".
func parse(t testing.TB, line string) []byte {
	t.Helper()
	op, rest, _ := strings.Cut(line, " ")
	switch op {
	case "raw":
		b, err := hex.DecodeString(rest)
		if err != nil {
			t.Fatal(err)
		}
		return b
	case "text":
		return []byte(rest)
	}
	code, ok := ops[op]
	if !ok {
		t.Fatalf("no op %q", op)
	}
	var header, payload []byte
	rest = strings.TrimSpace(rest)
	if strings.HasPrefix(rest, "{") {
		d := json.NewDecoder(strings.NewReader(rest))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		header = encodeJSON(nil, v)
		rest = strings.TrimSpace(rest[d.InputOffset():])
	}
	switch {
	case strings.HasPrefix(rest, "*"): // so many bytes
		n, err := strconv.Atoi(rest[1:])
		if err != nil {
			t.Fatal(err)
		}
		payload = bytes.Repeat([]byte{'x'}, n)
	case rest != "":
		s, err := strconv.Unquote(rest)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		payload = []byte(s)
	}
	return frame(code, header, payload)
}

// show is the reverse of parse, for every frame of b.
func show(t testing.TB, b []byte) (lines []string) {
	t.Helper()
	for len(b) > 0 {
		f, n, _, err := wire.Next(b, wire.DefaultMaxFrame)
		if err != nil || n == 0 {
			t.Fatalf("the session sent %x: n=%d err=%v", b, n, err)
		}
		b = b[n:]
		line := f.Op.String()
		if len(f.Header) > 0 {
			h, err := wire.DecodeTable(f.Header)
			if err != nil {
				t.Fatalf("the session sent header %x: %v", f.Header, err)
			}
			line += " " + string(showTable(nil, h))
		}
		switch {
		case len(f.Payload) > 100:
			line += fmt.Sprintf(" *%d", len(f.Payload))
		case f.Op.HasPayload():
			line += " " + strconv.Quote(string(f.Payload))
		}
		lines = append(lines, line)
	}
	return lines
}

// TestScenarios plays the transcripts in testdata. A line is one of
//
//	# comment
//	a> op {header} "payload"   client a sends; neighbouring lines are one read
//	a! tick 5s                 something else happens to client a
//	a< op {header} "payload"   what client a gets because of the lines above
//	a= closed                  the state of its connection
//
// With -rewrite the lines with < and = are written again.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, memoryBroker(t), string(raw), (*link).feed)
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(raw) {
				a, b := strings.Split(got, "\n"), strings.Split(string(raw), "\n")
				for i := range a {
					if i >= len(b) || a[i] != b[i] {
						t.Fatalf("line %d\ngot  %s\nwant %s", i+1, a[i], append(b, "")[min(i, len(b))])
					}
				}
				t.Fatalf("the transcript has more lines than happened")
			}
		})
	}
}

// madeUp is a token of direct reply-to. "?" stands for what the broker made up, also where a client names it.
var madeUp = regexp.MustCompile(`amq\.rabbitmq\.reply-to\.[A-Za-z0-9_-]{22}`)

// play plays a transcript; feed gives a link what it sends.
func play(t *testing.T, b *broker.Broker, text string, feed func(l *link, p []byte)) string {
	links, order := map[byte]*link{}, []byte{}
	state := map[byte]string{}
	var out strings.Builder
	var sending []byte
	sender := byte(0)
	token := ""
	report := func() {
		if sender != 0 && len(sending) > 0 {
			feed(links[sender], sending)
			sending = nil
		}
		for _, name := range order {
			l := links[name]
			l.o.run()
			for _, line := range show(t, l.o.take()) {
				if s := madeUp.FindString(line); s != "" {
					token = s
					line = strings.ReplaceAll(line, s, broker.ReplyTo+".?")
				}
				fmt.Fprintf(&out, "%c< %s\n", name, line)
			}
			if s := l.o.state(); s != state[name] {
				fmt.Fprintf(&out, "%c= %s\n", name, s)
				state[name] = s
			}
		}
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for _, line := range lines {
		if len(line) < 2 || line[0] == '#' || (line[1] != '>' && line[1] != '!' && line[1] != '<' && line[1] != '=') {
			report()
			out.WriteString(line + "\n")
			continue
		}
		name, kind, rest := line[0], line[1], strings.ReplaceAll(strings.TrimSpace(line[2:]), broker.ReplyTo+".?", token)
		if kind == '<' || kind == '=' {
			report()
			continue
		}
		if links[name] == nil {
			opt := Options{}
			if kind == '!' && strings.HasPrefix(rest, "max_frame ") {
				n, _ := strconv.Atoi(rest[len("max_frame "):])
				opt.MaxFrame = uint32(n)
			}
			links[name] = newLink(t, b, opt)
			order = append(order, name)
			state[name] = links[name].o.state()
		}
		l := links[name]
		if kind == '!' || name != sender {
			report()
		}
		out.WriteString(line + "\n")
		if kind == '>' {
			sender = name
			sending = append(sending, parse(t, rest)...)
			continue
		}
		what, arg, _ := strings.Cut(rest, " ")
		switch what {
		case "max_frame":
		case "tick": // the clock goes on, and bytes were exchanged if the second word says so
			d, err := time.ParseDuration(strings.TrimSuffix(arg, " traffic"))
			if err != nil {
				t.Fatal(err)
			}
			l.now += int64(d)
			if strings.HasSuffix(arg, " traffic") {
				l.o.clock = l.now
			}
			l.s.OnTick(l.now)
		case "alarm":
			(*peer)(l.s).Pause(broker.PauseAlarm)
		case "over":
			(*peer)(l.s).Resume(broker.PauseAlarm)
		case "pause":
			(*peer)(l.s).Pause(broker.PauseJournal)
		case "resume":
			(*peer)(l.s).Resume(broker.PauseJournal)
		case "full":
			l.o.full = true
		case "drained":
			l.o.full = false
			l.s.OnDrained()
		case "shutdown":
			(*peer)(l.s).Close(&broker.Error{Kind: broker.ConnectionForced, Text: arg})
		case "user": // a login with these patterns for configure, write and read
			w := strings.Fields(arg)
			if err := b.Users().AddUser(w[0], w[0]); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Users().SetPermissions(auth.Permission{User: w[0], VHost: "/", Configure: w[1], Write: w[2], Read: w[3]}); err != nil {
				t.Fatal(err)
			}
		case "gone":
			l.s.OnClose(errors.New("reset by peer"))
		default:
			t.Fatalf("unknown event %q", rest)
		}
		l.o.run()
	}
	report()
	return out.String()
}

// state says what the session asked of its transport.
func (m *memory) state() string {
	switch {
	case m.err != nil:
		return "aborted: " + m.err.Error()
	case m.closed:
		return "closed"
	case m.paused != 0:
		return fmt.Sprintf("paused %#x", m.paused)
	case m.little:
		return "read little by little"
	}
	return "open"
}

const helloJSON = `hello {"ver":1,"auth":{"mech":"plain","user":"guest","pass":"guest"}}`

// welcomed makes a link whose client is welcome.
func welcomed(t testing.TB, b *broker.Broker) *link {
	t.Helper()
	l := newLink(t, b, Options{})
	l.feed(append([]byte(wire.Preface), parse(t, helloJSON)...))
	if got := show(t, l.o.take()); len(got) != 1 || !strings.HasPrefix(got[0], "welcome ") {
		t.Fatalf("hello answered by %q", got)
	}
	return l
}

// TestSplit cuts a whole conversation anywhere: the answers are the same as in one piece, but for how
// confirms are grouped.
func TestSplit(t *testing.T) {
	var in []byte
	in = append(in, wire.Preface...)
	for _, line := range []string{
		helloJSON, `declare_queue {"rid":1,"name":"q"}`, `subscribe {"rid":2,"sub":1,"queue":"q","credit":10}`,
		`publish {"seq":1,"key":"q"} "one"`, `publish {"seq":2,"key":"q"} "two"`, `ack {"tag":2,"multiple":true}`, `close {"code":200}`,
	} {
		in = append(in, parse(t, line)...)
	}
	run := func(cuts ...int) string {
		b := memoryBroker(t)
		l := newLink(t, b, Options{})
		at := 0
		for _, cut := range append(cuts, len(in)) {
			l.feed(in[at:cut])
			at = cut
		}
		lines := show(t, l.o.take())
		kept := lines[:0]
		for _, line := range lines {
			if !strings.HasPrefix(line, "confirm ") {
				kept = append(kept, line)
			}
		}
		if !l.o.closed {
			t.Errorf("cut at %v: not closed", cuts)
		}
		sort.Strings(kept)
		return strings.Join(kept, "\n")
	}
	want := run()
	for cut := 1; cut < len(in); cut++ {
		if got := run(cut); got != want {
			t.Fatalf("cut at %d:\n%s\nwant\n%s", cut, got, want)
		}
	}
}

// TestServerNamed has what a transcript cannot: a name that differs each time.
func TestServerNamed(t *testing.T) {
	b := memoryBroker(t)
	l := welcomed(t, b)
	l.feed(parse(t, `declare_queue {"rid":1}`))
	l.feed(parse(t, `declare_queue {"rid":2}`))
	var names [2]string
	for i, line := range show(t, l.o.take()) {
		var h struct {
			RID  int
			Name string
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "ok ")), &h); err != nil || !strings.HasPrefix(h.Name, "amq.gen-") || h.RID != i+1 {
			t.Fatalf("%s: %v", line, err)
		}
		names[i] = h.Name
	}
	if names[0] == names[1] {
		t.Errorf("both are %s", names[0])
	}
}

// TestOtherProtocol: a message that came as AMQP is delivered with converted headers, and back.
func TestOtherProtocol(t *testing.T) {
	b := memoryBroker(t)
	l := welcomed(t, b)
	l.feed(append(parse(t, `declare_queue {"rid":1,"name":"q"}`), parse(t, `subscribe {"rid":2,"sub":1,"queue":"q","credit":10}`)...))
	l.o.take()
	props := table.Append(nil, table.Table{{Name: "n", Value: table.Value{Kind: table.Int32, Num: 7}}, {Name: "d", Value: table.Value{Kind: table.Decimal, Scale: 1, Num: 15}}})
	m := message.New(message.Attributes{Encoding: message.AMQP, HasHeaders: true, Expiration: -1}, nil, []byte("q"), props, 2)
	copy(m.Body(), "hi")
	info := &broker.ConnInfo{VHost: "/", Remote: l.o.RemoteAddr()}
	u, e := b.Login("guest", "guest", info)
	if e != nil {
		t.Fatal(e)
	}
	other := newLink(t, b, Options{})
	conn, e := b.Connect(u, (*peer)(other.s), info)
	if e != nil {
		t.Fatal(e)
	}
	defer conn.Close()
	ch, e := conn.Open(1, (*sink)(other.s))
	if e != nil {
		t.Fatal(e)
	}
	if e := ch.Publish(&broker.Publish{Msg: m}); e != nil {
		t.Fatal(e)
	}
	if _, e := conn.EndTurn(); e != nil {
		t.Fatal(e)
	}
	want := `deliver {"sub":1,"tag":1,"key":"q","headers":{"n":7,"d":1.5}} "hi"`
	if got := show(t, l.o.take()); len(got) != 1 || got[0] != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// reader is a channel of another protocol that looks at the properties of what it is delivered.
type reader struct {
	*sink
	conn *broker.Conn
	got  []table.Properties
	err  error
}

func (r *reader) Deliver(d *broker.Delivery) {
	p, err := r.conn.Properties(d.Msg)
	r.got, r.err = append(r.got, p), errors.Join(r.err, err)
}

// TestToOtherProtocol: what AMQP has of a message published here.
func TestToOtherProtocol(t *testing.T) {
	b := memoryBroker(t)
	l := welcomed(t, b)
	l.feed(parse(t, `declare_queue {"rid":1,"name":"q"}`))
	l.feed(parse(t, `publish {"key":"q","persistent":true,"props":{"expiration":5,"priority":0},"headers":{"n":1}} "x"`))
	l.feed(parse(t, `publish {"key":"q"} "x"`))
	info := &broker.ConnInfo{VHost: "/", Remote: l.o.RemoteAddr()}
	u, e := b.Login("guest", "guest", info)
	if e != nil {
		t.Fatal(e)
	}
	other := newLink(t, b, Options{})
	conn, e := b.Connect(u, (*peer)(other.s), info)
	if e != nil {
		t.Fatal(e)
	}
	defer conn.Close()
	r := &reader{sink: (*sink)(other.s), conn: conn}
	ch, e := conn.Open(1, r)
	if e != nil {
		t.Fatal(e)
	}
	c, e := ch.Consume(&broker.ConsumeArgs{Queue: "q", NoAck: true})
	if e != nil {
		t.Fatal(e)
	}
	c.Start()
	conn.EndTurn()
	want := []table.Properties{{
		Has:     table.HasHeaders | table.HasDeliveryMode | table.HasExpiration | table.HasPriority,
		Headers: table.Table{{Name: "n", Value: table.Value{Kind: table.Int64, Num: 1}}}, DeliveryMode: 2, Expiration: "5",
	}, {}}
	if r.err != nil || !reflect.DeepEqual(r.got, want) {
		t.Errorf("got %+v, %v\nwant %+v", r.got, r.err, want)
	}
}

// TestBodiesByReference: from 4 KiB on a delivery does not copy the body.
func TestBodiesByReference(t *testing.T) {
	b := memoryBroker(t)
	l := welcomed(t, b)
	l.feed(append(parse(t, `declare_queue {"rid":1,"name":"q"}`), parse(t, `subscribe {"rid":2,"sub":1,"queue":"q","credit":10,"no_ack":true}`)...))
	l.feed(parse(t, `publish {"key":"q"} *4095`))
	if l.o.refs != 0 {
		t.Errorf("%d references for a small body", l.o.refs)
	}
	l.feed(parse(t, `publish {"key":"q"} *4096`))
	if l.o.refs != 1 {
		t.Errorf("%d references for a large body, want 1", l.o.refs)
	}
	l.feed(parse(t, `publish {"key":"q"} *3000000`))
	if got := show(t, l.o.take()); len(got) != 5 || !strings.HasSuffix(got[4], "*3000000") {
		t.Errorf("got %.200q", got)
	}
}

// cycle is one message through publish, deliver, ack and confirm.
func cycle(tb testing.TB, size int) (step func(), done func()) {
	b := memoryBroker(tb)
	l := welcomed(tb, b)
	l.feed(append(parse(tb, `declare_queue {"rid":1,"name":"q"}`), parse(tb, `subscribe {"rid":2,"sub":1,"queue":"q","credit":1000000000}`)...))
	l.o.take()
	body := make([]byte, size)
	buf := make([]byte, 0, 1024+size)
	seq, tag := uint64(0), uint64(0)
	props := encodeJSON(nil, map[string]any{"content_type": "text/plain"})
	turn := func(b []byte) {
		if n, _ := l.s.OnData(b); n != len(b) {
			tb.Fatal("not taken")
		}
	}
	return func() {
			seq++
			p := wire.Publish{Seq: seq, Key: []byte("q"), Props: props}
			buf = append(wire.End(p.AppendTo(wire.Begin(buf[:0], wire.OpPublish)), 0, size), body...)
			turn(buf)
			tag++
			a := wire.Settle{Tag: tag}
			buf = wire.End(a.AppendTo(wire.Begin(buf[:0], wire.OpAck)), 0, 0)
			turn(buf)
			l.o.tail = l.o.tail[:0]
		}, func() {
			if seq != tag || l.o.closed {
				tb.Error("the connection ended")
			}
		}
}

func TestHotPathAllocates(t *testing.T) {
	step, done := cycle(t, 256)
	for range 2000 {
		step()
	}
	if n := testing.AllocsPerRun(2000, step); n > 0 && !raceEnabled {
		t.Errorf("%v allocations a message, want 0", n)
	}
	done()
}

func BenchmarkCycle(b *testing.B) {
	step, done := cycle(b, 256)
	b.ReportAllocs()
	for b.Loop() {
		step()
	}
	done()
}

// BenchmarkBatch is what a loaded connection does: 100 publishes a read, their deliveries, one ack.
func BenchmarkBatch(b *testing.B) {
	br := memoryBroker(b)
	l := welcomed(b, br)
	l.feed(append(parse(b, `declare_queue {"rid":1,"name":"q"}`), parse(b, `subscribe {"rid":2,"sub":1,"queue":"q","credit":1000000000000}`)...))
	l.o.take()
	body, buf, seq := make([]byte, 256), make([]byte, 0, 1<<16), uint64(0)
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if n%100 != 0 {
			continue
		}
		buf = buf[:0]
		for range 100 {
			seq++
			p := wire.Publish{Seq: seq, Key: []byte("q")}
			at := len(buf)
			buf = append(wire.End(p.AppendTo(wire.Begin(buf, wire.OpPublish)), at, len(body)), body...)
		}
		l.s.OnData(buf)
		a := wire.Settle{Tag: seq, Multiple: true}
		l.s.OnData(wire.End(a.AppendTo(wire.Begin(buf[:0], wire.OpAck)), 0, 0))
		l.o.tail = l.o.tail[:0]
	}
}

// FuzzSession plays a conversation whose frames are repeated, left out, reordered and damaged: the session
// never panics, sends only whole frames, and leaves nothing lent behind.
func FuzzSession(f *testing.F) {
	lines := []string{
		`declare_queue {"rid":1,"name":"q","args":{"x-max-length":10}}`, `declare_exchange {"rid":2,"name":"x","type":"topic"}`,
		`bind {"rid":3,"exchange":"x","queue":"q","key":"a.*"}`, `subscribe {"rid":4,"sub":1,"queue":"q","credit":5}`,
		`publish {"seq":1,"key":"q","persistent":true,"props":{"priority":1,"expiration":5},"headers":{"a":[1,{"b":null}]}} "one"`,
		`publish {"seq":2,"exchange":"x","key":"a.b","mandatory":true} "two"`, `publish {"key":"nowhere","mandatory":true} "three"`,
		`ack {"tag":1}`, `nack {"tag":2,"requeue":true}`, `nack {"tag":2,"multiple":true}`, `credit {"sub":1,"credit":5}`, `ping`, `pong`,
		`get {"rid":5,"queue":"q"}`, `purge_queue {"rid":6,"name":"q"}`, `unsubscribe {"rid":7,"sub":1}`, `unbind {"rid":8,"exchange":"x","queue":"q","key":"a.*"}`,
		`delete_queue {"rid":9,"name":"q"}`, `delete_exchange {"rid":10,"name":"x"}`, `0x7f {"rid":11}`, `close {"code":200}`,
	}
	var frames [][]byte
	for _, line := range lines {
		frames = append(frames, parse(f, line))
	}
	hello := parse(f, helloJSON)
	for seed := range uint64(20) {
		f.Add(seed, uint8(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, damage uint8) {
		r := rand.New(rand.NewPCG(seed, uint64(damage)))
		in := []byte(wire.Preface)
		if r.IntN(10) > 0 {
			in = append(in, hello...)
		}
		for range 5 + r.IntN(40) {
			in = append(in, frames[r.IntN(len(frames))]...)
		}
		for range int(damage) % 4 {
			in[r.IntN(len(in))] = byte(r.Uint32())
		}
		before := pool.Live()
		b, _, err := broker.Open(broker.Options{
			Start:  broker.Snapshot{VHosts: []string{"/"}},
			Codecs: map[message.Encoding]message.Codec{message.FMQ1: wire.Codec{}},
		})
		if err != nil {
			t.Fatal(err)
		}
		b.AddFirstUser("guest", "guest")
		l := newLink(t, b, Options{})
		for len(in) > 0 {
			n := min(len(in), 1+r.IntN(400))
			l.feed(in[:n])
			in = in[n:]
			l.s.OnTick(l.now)
		}
		show(t, l.o.take())
		if l.o.err != nil {
			t.Errorf("aborted: %v", l.o.err)
		}
		l.s.OnClose(nil)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if n := pool.Live(); n != before {
			t.Errorf("%d buffers are still lent", n-before)
		}
	})
}
