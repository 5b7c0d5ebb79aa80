package fmq1

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	wire "github.com/firemq/firemq/frames/fmq1"
	"github.com/firemq/firemq/frames/table"
)

// vectors are the frames of the document that clients send, with their headers.
func vectors(t *testing.T) (frames []wire.Frame, headers []table.Table) {
	t.Helper()
	raw, err := os.ReadFile("../../spec/test-vectors/frames.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []struct{ Frame string }
	if err := json.Unmarshal(raw, &list); err != nil {
		t.Fatal(err)
	}
	for _, v := range list {
		b, err := hex.DecodeString(v.Frame)
		if err != nil {
			t.Fatal(err)
		}
		f, _, _, err := wire.Next(b, wire.DefaultMaxFrame)
		if err != nil {
			t.Fatal(err)
		}
		switch f.Op {
		case wire.OpWelcome, wire.OpOK, wire.OpError, wire.OpFlow, wire.OpConfirm, wire.OpReturn, wire.OpDeliver, wire.OpCancelled, wire.OpGetOK:
			continue
		}
		h, err := wire.DecodeTable(f.Header)
		if err != nil { // a key of a later version with a value that tables do not have
			continue
		}
		frames, headers = append(frames, f), append(headers, h)
	}
	return frames, headers
}

// wrong are values of types that a field may not have instead of v's.
func wrong(v table.Value) []table.Value {
	all := []table.Value{
		table.VoidValue(), table.BoolValue(true), table.IntValue(7), table.IntValue(-7), table.FloatValue(1.5),
		table.StringValue("x"), table.BytesValue([]byte("x")), table.ArrayValue(table.IntValue(1)), table.TableValue(nil),
	}
	return slices.DeleteFunc(all, func(w table.Value) bool {
		return w.Kind == v.Kind && (v.Kind != table.Int64 || w.Num == 7) || v.Kind == table.Array && w.Kind == table.Array
	})
}

// A field of another type than the document's, nil included, is 502, whatever the op; before welcome and
// in close it ends the connection, elsewhere the connection goes on.
func TestWrongTypes(t *testing.T) {
	frames, headers := vectors(t)
	b := memoryBroker(t)
	n := 0
	for i, f := range frames {
		for j, field := range headers[i] {
			if f.Op == wire.OpClose || strings.HasPrefix(field.Name, "x-") { // close closes; and keys of later versions
				continue
			}
			for _, w := range wrong(field.Value) {
				h := slices.Clone(headers[i])
				h[j].Value = w
				l := newLink(t, b, Options{})
				bad := append(wire.Begin(nil, f.Op), wire.AppendTable(nil, h)...)
				bad = append(wire.End(bad, 0, len(f.Payload)), f.Payload...)
				l.feed([]byte(wire.Preface))
				if f.Op != wire.OpHello {
					l.feed(parse(t, helloJSON))
				}
				l.o.take()
				if f.Op == wire.OpPublish && h[j].Name != "seq" { // in sequence
					for k := range h {
						if h[k].Name == "seq" {
							h[k].Value = table.IntValue(1)
						}
					}
					bad = append(wire.Begin(nil, f.Op), wire.AppendTable(nil, h)...)
					bad = append(wire.End(bad, 0, len(f.Payload)), f.Payload...)
				}
				l.feed(bad)
				l.feed(parse(t, "ping"))
				got := show(t, l.o.take())
				what := fmt.Sprintf("%s with %s as kind %q", f.Op, field.Name, w.Kind)
				if len(got) == 0 || !strings.Contains(got[0], `"code":502`) {
					t.Errorf("%s is answered by %q", what, got)
					continue
				}
				if fatal := strings.Contains(got[0], `"fatal":true`); fatal != (f.Op == wire.OpHello) || !fatal && got[len(got)-1] != "pong" {
					t.Errorf("%s: %q", what, got)
				}
				n++
			}
		}
	}
	if n < 300 {
		t.Errorf("only %d headers were tried", n)
	}
}

// Only hello, ping, pong and close may come before welcome.
func TestBeforeHello(t *testing.T) {
	b := memoryBroker(t)
	for op := range 256 {
		op := wire.Op(op)
		l := newLink(t, b, Options{})
		l.feed(append([]byte(wire.Preface), frame(op, nil, nil)...))
		got := strings.Join(show(t, l.o.take()), "\n")
		want := `"code":503`
		switch {
		case op == wire.OpHello: // an empty one: no version
			want = `"code":540`
		case op == wire.OpPing:
			want = "pong"
		case op == wire.OpClose:
			want = "close"
		case op == wire.OpPong:
			want = ""
		case !op.Known():
			want = fmt.Sprintf(`{"code":540,"msg":"NOT_IMPLEMENTED - unknown op 0x%02x"}`, uint8(op)) // and not fatal
		}
		if !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s before hello is answered by %q, want %q", op, got, want)
		}
		if open := op == wire.OpPing || op == wire.OpPong || !op.Known(); open == l.o.closed {
			t.Errorf("%s before hello: closed is %t", op, l.o.closed)
		}
	}
}

// TestRules plays random conversations and holds every answer against the document: one answer a request,
// in order; one fate a publish, a nack before the upto that covers it, one upto for a row of them; deliveries
// counted against credit to the last one; tags that grow; keys of later versions ignored.
func TestRules(t *testing.T) {
	first := rand.Uint64()
	t.Logf("first seed %d", first)
	for seed := first; seed < first+30; seed++ {
		newRules(t, seed).play()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// rules is a client that knows what it may be sent.
type rules struct {
	t    *testing.T
	seed uint64
	r    *rand.Rand
	l    *link

	rid, answered uint64
	seq, upto     uint64
	refused       map[uint64]bool
	subs          map[uint64]*uint64 // id -> credit that is left
	ended         map[uint64]bool
	nextSub       uint64
	tag           uint64          // the last delivery's
	unacked       map[uint64]bool // tags
	strange       int             // unknown tags and ops that were sent, whose errors must come
	errors        int
}

func newRules(t *testing.T, seed uint64) *rules {
	return &rules{
		t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 1)), l: welcomed(t, memoryBroker(t)), refused: map[uint64]bool{},
		subs: map[uint64]*uint64{}, ended: map[uint64]bool{}, unacked: map[uint64]bool{},
	}
}

func (c *rules) play() {
	queues := []string{
		`declare_queue {"rid":%d,"name":"plain"}`, `declare_queue {"rid":%d,"name":"small","args":{"x-max-length":3,"x-overflow":"reject-publish"}}`,
		`declare_queue {"rid":%d,"name":"drop","args":{"x-max-length":4,"x-dead-letter-exchange":"","x-dead-letter-routing-key":"plain"}}`,
		`declare_queue {"rid":%d,"name":"urgent","args":{"x-max-priority":5}}`,
	}
	for _, q := range queues {
		c.rid++
		c.read(parse(c.t, fmt.Sprintf(q, c.rid)))
	}
	for range 60 {
		var in []byte
		for range 1 + c.r.IntN(8) {
			in = append(in, c.later(c.step())...)
		}
		c.read(in)
	}
	// All credit there can be, and an ack of all: what is left comes, and every publish has its fate.
	for range 3 {
		var in []byte
		for id, credit := range c.subs {
			*credit += 1000
			in = append(in, parse(c.t, fmt.Sprintf(`credit {"sub":%d,"credit":1000}`, id))...)
		}
		if len(c.unacked) > 0 {
			in = append(in, parse(c.t, `ack {"tag":0,"multiple":true}`)...)
			clear(c.unacked)
		}
		c.read(in)
	}
	for seq := c.upto + 1; seq <= c.seq; seq++ {
		if !c.refused[seq] {
			c.t.Errorf("publish %d of %d is neither confirmed nor refused", seq, c.seq)
		}
	}
	if c.answered != c.rid {
		c.t.Errorf("%d requests are answered, of %d", c.answered, c.rid)
	}
	if c.errors != c.strange {
		c.t.Errorf("%d errors, want %d", c.errors, c.strange)
	}
	c.l.s.OnClose(nil)
}

func (c *rules) queue() string { return []string{"plain", "small", "drop", "urgent"}[c.r.IntN(4)] }

// step is one random frame.
func (c *rules) step() []byte {
	line := ""
	switch n := c.r.IntN(20); {
	case n < 8:
		c.seq++
		line = fmt.Sprintf(`publish {"seq":%d,"key":"%s","persistent":%t,"props":{"priority":%d}} "x"`, c.seq, c.queue(), c.r.IntN(2) == 0, c.r.IntN(7))
		if c.r.IntN(8) == 0 {
			line = fmt.Sprintf(`publish {"seq":%d,"exchange":"missing","key":"q"} "x"`, c.seq)
		}
	case n < 10 && len(c.subs) < 6:
		c.rid++
		c.nextSub++
		credit := uint64(c.r.IntN(4))
		c.subs[c.nextSub] = &credit
		line = fmt.Sprintf(`subscribe {"rid":%d,"sub":%d,"queue":"%s","credit":%d}`, c.rid, c.nextSub, c.queue(), credit)
	case n < 13 && len(c.subs) > 0:
		id := c.any()
		more := uint64(c.r.IntN(4))
		*c.subs[id] += more
		line = fmt.Sprintf(`credit {"sub":%d,"credit":%d}`, id, more)
	case n < 17 && len(c.unacked) > 0:
		tag := slices.Sorted(maps.Keys(c.unacked))[c.r.IntN(len(c.unacked))]
		op := []string{"ack", "nack"}[c.r.IntN(2)]
		if c.r.IntN(4) == 0 {
			line = fmt.Sprintf(`%s {"tag":%d,"multiple":true,"requeue":true}`, op, tag)
			maps.DeleteFunc(c.unacked, func(other uint64, _ bool) bool { return other <= tag })
		} else {
			line = fmt.Sprintf(`%s {"tag":%d,"requeue":%t}`, op, tag, c.r.IntN(3) == 0)
			delete(c.unacked, tag)
		}
		if op == "ack" {
			line = strings.NewReplacer(`,"requeue":true`, "", `,"requeue":false`, "").Replace(line)
		}
	case n == 17 && len(c.subs) > 1:
		c.rid++
		id := c.any()
		delete(c.subs, id)
		c.ended[id] = true
		line = fmt.Sprintf(`unsubscribe {"rid":%d,"sub":%d}`, c.rid, id)
	case n == 18:
		c.strange++
		line = fmt.Sprintf(`ack {"tag":%d}`, 1<<40+c.r.IntN(10))
	default:
		c.strange++
		line = fmt.Sprintf(`0x7f {"ignored":%d}`, c.r.IntN(10))
	}
	return parse(c.t, line)
}

// any is the id of a subscription.
func (c *rules) any() uint64 { return slices.Sorted(maps.Keys(c.subs))[c.r.IntN(len(c.subs))] }

// later adds a key of a later version to a frame's header, at its beginning.
func (c *rules) later(b []byte) []byte {
	f, _, _, err := wire.Next(b, wire.DefaultMaxFrame)
	if err != nil || len(f.Header) == 0 || f.Header[0] > 0x8e || c.r.IntN(3) > 0 {
		return b
	}
	h := append([]byte{f.Header[0] + 1}, "\xa7x_later\x82\xa1a\xc0\xa1b\x92\xc4\x01\xff\xd4\x01\x00"...) // {"a": nil, "b": [bin, ext]}
	return frame(f.Op, append(h, f.Header[1:]...), f.Payload)
}

// read gives bytes as one read and checks what comes because of them.
func (c *rules) read(in []byte) {
	c.l.feed(in)
	out := c.l.o.take()
	uptos := 0
	for len(out) > 0 {
		f, n, _, err := wire.Next(out, wire.DefaultMaxFrame)
		if err != nil || n == 0 {
			c.t.Fatalf("the session sent %x: %v", out, err)
		}
		out = out[n:]
		switch f.Op {
		case wire.OpOK:
			var m wire.OK
			c.decode(f, &m)
			c.answered++
			if m.RID != c.answered {
				c.t.Errorf("request %d is answered behind %d", m.RID, c.answered-1)
			}
		case wire.OpError:
			var m wire.ServerError
			c.decode(f, &m)
			if m.RID != 0 || m.Fatal || m.Code != wire.PreconditionFailed && m.Code != wire.NotImplemented {
				c.t.Errorf("error %+v", m)
			}
			c.errors++
		case wire.OpConfirm:
			var m wire.Confirm
			if err := m.Decode(f.Header); err != nil {
				c.t.Fatal(err)
			}
			if m.Nack {
				if m.Seq <= c.upto || m.Seq > c.seq || c.refused[m.Seq] {
					c.t.Errorf("nack of %d after upto %d, refused before: %t", m.Seq, c.upto, c.refused[m.Seq])
				}
				c.refused[m.Seq] = true
				continue
			}
			uptos++
			if m.UpTo <= c.upto || m.UpTo > c.seq {
				c.t.Errorf("upto %d after %d, published %d", m.UpTo, c.upto, c.seq)
			}
			c.upto = m.UpTo
		case wire.OpDeliver:
			var m wire.Deliver
			if err := m.Decode(f.Header); err != nil {
				c.t.Fatal(err)
			}
			if m.Tag <= c.tag {
				c.t.Errorf("delivery tag %d after %d", m.Tag, c.tag)
			}
			c.tag = m.Tag
			c.unacked[m.Tag] = true
			if c.ended[m.Sub] { // sent before the end was asked for in the same read
				continue
			}
			if credit := c.subs[m.Sub]; credit == nil || *credit == 0 {
				c.t.Errorf("a delivery for subscription %d without credit", m.Sub)
			} else {
				*credit--
			}
		default:
			c.t.Errorf("%s", f.Op)
		}
	}
	// One for what was published in a row.
	rows, last := 0, wire.Op(0)
	for len(in) > 0 {
		f, n, _, err := wire.Next(in, wire.DefaultMaxFrame)
		if err != nil || n == 0 {
			c.t.Fatal("BUG: the test sent half a frame")
		}
		in = in[n:]
		if f.Op == wire.OpPublish && last != f.Op {
			rows++
		}
		last = f.Op
	}
	if uptos > rows {
		c.t.Errorf("%d confirms for %d rows of publishes", uptos, rows)
	}
	if c.l.o.closed || c.l.o.err != nil {
		c.t.Errorf("the connection ended: %v", c.l.o.err)
	}
}

func (c *rules) decode(f wire.Frame, m wire.Header) {
	if err := wire.Decode(f.Header, m); err != nil {
		c.t.Fatal(err)
	}
}
