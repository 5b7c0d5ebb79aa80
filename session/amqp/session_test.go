package amqp

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/firemq/firemq/broker"
	"github.com/firemq/firemq/broker/message"
	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/amqp/text"
	"github.com/firemq/firemq/frames/table"
)

// Wherever the input is cut, the answers are the same, but for how confirms are gathered and how
// the channels' frames lie between each other.
func TestInputMayBeCutAnywhere(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txt")
	for _, file := range files {
		script, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int{1, 2, 3, 5, 7, 11, 13} {
			got := play(t, newBroker(t), string(script), func(c *client, b []byte) {
				n := size
				if len(b) > 10000 {
					n *= 997
				}
				for len(b) > 0 && !c.out.closed {
					c.feed(b[:min(n, len(b))])
					b = b[min(n, len(b)):]
				}
			})
			if want, got := normal(string(script)), normal(got); got != want {
				t.Errorf("%s in pieces of %d bytes: %s", file, size, diff(want, got))
			}
		}
	}
}

var confirmLine = regexp.MustCompile(`^(\w+< \d+ basic\.ack) delivery-tag=(\d+)( multiple)?$`)
var nackLine = regexp.MustCompile(`^(\w+< \d+) basic\.nack delivery-tag=(\d+)$`)

// normal spells confirms of several publishes one by one and sorts the answers of each block.
func normal(script string) string {
	last := map[string]int{}
	var out, block []string
	flush := func() {
		slices.Sort(block)
		out = append(out, block...)
		block = nil
	}
	for line := range strings.Lines(script) {
		line = strings.TrimRight(line, "\n")
		who, rest, _ := strings.Cut(line, " ")
		if !strings.HasSuffix(who, "<") {
			flush()
			out = append(out, line)
			if rest == "open" || rest == "connect" {
				clear(last)
			}
			continue
		}
		if m := confirmLine.FindStringSubmatch(line); m != nil {
			tag, _ := strconv.Atoi(m[2])
			for n := last[m[1]] + 1; n <= tag; n++ {
				block = append(block, m[1]+" delivery-tag="+strconv.Itoa(n))
			}
			last[m[1]] = tag
			continue
		}
		if m := nackLine.FindStringSubmatch(line); m != nil {
			last[m[1]+" basic.ack"], _ = strconv.Atoi(m[2])
		}
		block = append(block, line)
	}
	flush()
	return strings.Join(out, "\n")
}

func TestReplyTextFitsAShortString(t *testing.T) {
	if got := string(replyText(404, "no queue")); got != "NOT_FOUND - no queue" {
		t.Error(got)
	}
	if got := string(replyText(541, "secret cause")); got != "INTERNAL_ERROR" {
		t.Error(got)
	}
	got := replyText(404, strings.Repeat("q", 300))
	if len(got) != 255 || !bytes.HasSuffix(got, []byte("q...")) {
		t.Errorf("%d bytes: %s", len(got), got)
	}
	got = replyText(404, strings.Repeat("é", 200))
	if len(got) > 255 || !bytes.HasSuffix(got, []byte("é...")) {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

func TestEveryBrokerErrorHasACode(t *testing.T) {
	for kind := broker.NotFound; kind <= broker.LoginRefused; kind++ {
		if code := codeOf(kind); (code == amqp.CodeInternalError) != (kind == broker.InternalError) {
			t.Errorf("kind %d has code %d", kind, code)
		}
	}
}

func TestLargeBodiesAreSentByReferenceWithinFrameMax(t *testing.T) {
	b := newBroker(t)
	c := newClient(t, b, Options{})
	c.send(hello, login[1], `0 connection.tune-ok channel-max=10 frame-max=4096`, login[3], "1 channel.open", `1 queue.declare queue="q"`)
	c.got()
	for _, n := range []int{0, 1, refBytes - 9, refBytes - 8, refBytes - 7, refBytes - 1, refBytes, refBytes + 1, 100000} {
		body := bytes.Repeat([]byte("b"), n)
		in := (&amqp.BasicPublish{RoutingKey: []byte("q")}).AppendFrame(nil, 1)
		in = amqp.AppendContentHeader(in, 1, n, []byte{0, 0})
		in = amqp.AppendBody(in, 1, body, amqp.MinFrameMax)
		in = (&amqp.BasicGet{Queue: []byte("q"), NoAck: true}).AppendFrame(in, 1)
		refs := c.out.refs
		c.feed(in)
		out := c.out.take()
		if n := peakFrame(out); n > amqp.MinFrameMax-amqp.FrameOverhead {
			t.Errorf("%d bytes: a frame carries %d", len(body), n)
		}
		var got []byte
		for len(out) > 0 {
			f, k, err := amqp.Next(out, amqp.MinFrameMax)
			if k == 0 || err != nil {
				t.Fatal(k, err)
			}
			if f.Type == amqp.FrameBody {
				got = append(got, f.Payload...)
			}
			out = out[k:]
		}
		if !bytes.Equal(got, body) {
			t.Errorf("%d bytes came back as %d", len(body), len(got))
		}
		if byRef := c.out.refs > refs; byRef != (n >= refBytes) {
			t.Errorf("%d bytes: by reference: %v", n, byRef)
		}
	}
}

// A content header alone must not make the session take memory for the body it announces.
func TestAnnouncedBodiesTakeNoMemoryBeforeTheyCome(t *testing.T) {
	c := openChannel(t, newBroker(t), Options{})
	c.send(`1 basic.publish routing-key="q"`, `1 header size=134217728`, `1 body "x"*100000`)
	ch := c.s.channel(1)
	kept := 0
	for _, piece := range ch.content.early {
		kept += cap(piece.B)
	}
	if ch.content.msg != nil || kept > 400000 {
		t.Errorf("message made: %v, %d bytes kept", ch.content.msg != nil, kept)
	}
	c.send(`1 channel.open`)
	c.expect(`0 connection.close reply-code=505 reply-text="UNEXPECTED_FRAME - expected content body, got non content body frame instead" class-id=60 method-id=40`)
}

func TestABodyInManyFramesArrivesWhole(t *testing.T) {
	c := openChannel(t, newBroker(t), Options{})
	c.send(`1 queue.declare queue="q"`)
	c.got()
	body := make([]byte, 1<<20)
	for i := range body {
		body[i] = byte(i >> 8)
	}
	in := (&amqp.BasicPublish{RoutingKey: []byte("q")}).AppendFrame(nil, 1)
	in = amqp.AppendContentHeader(in, 1, len(body), []byte{0, 0})
	in = amqp.AppendBody(in, 1, body, 5000)
	c.feed(in)
	c.feed((&amqp.BasicGet{Queue: []byte("q"), NoAck: true}).AppendFrame(nil, 1))
	var got []byte
	for out := c.out.take(); len(out) > 0; {
		f, n, err := amqp.Next(out, 131072)
		if n == 0 || err != nil {
			t.Fatal(n, err)
		}
		if f.Type == amqp.FrameBody {
			got = append(got, f.Payload...)
		}
		out = out[n:]
	}
	if !bytes.Equal(got, body) {
		t.Error("the body changed on its way")
	}
}

func TestCancelsGoOnlyToClientsThatAskedForThem(t *testing.T) {
	b := newBroker(t)
	c := newClient(t, b, Options{})
	c.send(hello, `0 connection.start-ok mechanism="PLAIN" response="\x00guest\x00guest"`, login[2], login[3],
		"1 channel.open", `1 queue.declare queue="q"`, `1 basic.consume queue="q" consumer-tag="t"`)
	c.got()
	other := openChannel(t, b, Options{})
	other.send(`1 queue.delete queue="q"`)
	other.expect("1 queue.delete-ok")
	c.expect()
}

// fakeCodec stands for another protocol's properties: a table with "id" alone.
type fakeCodec struct{}

func (fakeCodec) Decode(props []byte) (table.Properties, error) {
	if len(props) == 0 {
		return table.Properties{}, errors.New("malformed")
	}
	return table.Properties{Has: table.HasMessageID, MessageID: string(props)}, nil
}

func (fakeCodec) Append(dst []byte, p *table.Properties) []byte { return append(dst, p.MessageID...) }

func (fakeCodec) Headers(dst table.Table, _ []byte) table.Table { return dst }

func (fakeCodec) Properties(props []byte) table.Properties {
	p, _ := fakeCodec{}.Decode(props)
	return p
}

func TestPropertiesOfAnotherProtocolAreConverted(t *testing.T) {
	var start broker.Snapshot
	start.VHosts = []string{"/"}
	b, _, err := broker.Open(broker.Options{Start: start, Codecs: map[message.Encoding]message.Codec{message.AMQP: amqp.PropertyCodec{}, message.FMQ1: fakeCodec{}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.AddFirstUser("guest", "guest"); err != nil {
		t.Fatal(err)
	}
	c := openChannel(t, b, Options{})
	c.send(`1 queue.declare queue="q"`, `1 basic.consume queue="q" consumer-tag="t" no-ack`)
	c.got()
	ch := c.s.channel(1)
	for _, props := range []string{"m-1", strings.Repeat("m", 2000), ""} {
		m := message.New(message.Attributes{Encoding: message.FMQ1, Expiration: -1}, nil, []byte("q"), []byte(props), 2)
		copy(m.Body(), "hi")
		if e := ch.bc.Publish(&broker.Publish{Msg: m}); e != nil {
			t.Fatal(e.Text)
		}
	}
	c.s.endTurn()
	c.expect(
		`1 basic.deliver consumer-tag="t" delivery-tag=1 routing-key="q"`, `1 header size=2 message-id="m-1"`, `1 body "hi"`,
		`1 basic.deliver consumer-tag="t" delivery-tag=2 routing-key="q"`, `1 header size=2 message-id="`+strings.Repeat("m", 255)+`"`, `1 body "hi"`,
		`1 basic.deliver consumer-tag="t" delivery-tag=3 routing-key="q"`, `1 header size=2`, `1 body "hi"`)
	c.lose()
}

// Acks that came before a channel's or connection's end count.
func TestAcksBeforeTheEndCount(t *testing.T) {
	for _, end := range []string{"1 channel.close", "0 connection.close", `1 queue.declare queue="missing" passive`, "0 body \"x\""} {
		b := newBroker(t)
		c := openChannel(t, b, Options{})
		c.send(`1 queue.declare queue="q"`, `1 basic.publish routing-key="q"`, `1 header`, `1 basic.get queue="q"`)
		c.got()
		c.send(`1 basic.ack delivery-tag=1`, end)
		d := openChannel(t, b, Options{})
		d.send(`1 queue.declare queue="q" passive`)
		d.expect(`1 queue.declare-ok queue="q"`)
	}
}

// A client that asks for answers without reading them is not read either, whatever the answers are.
func TestAnswersAreBounded(t *testing.T) {
	for _, c := range []struct {
		name    string
		ask     []string
		confirm bool
		want    bool
	}{
		{"declare", []string{`1 queue.declare queue="q"`}, false, true},
		{"get", []string{`1 basic.get queue="q"`}, false, true},
		{"return", []string{`1 basic.publish routing-key="nowhere" mandatory`, "1 header"}, false, true},
		{"confirm", []string{`1 basic.publish routing-key="nowhere"`, "1 header"}, true, true},
		{"publish", []string{`1 basic.publish routing-key="nowhere"`, "1 header"}, false, false},
		{"ack", []string{"1 basic.ack delivery-tag=1"}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := openChannel(t, newBroker(t), Options{})
			k.send(`1 queue.declare queue="q"`, `1 basic.publish routing-key="q"`, "1 header", `1 basic.get queue="q"`, `1 basic.publish routing-key="q"`, "1 header")
			if c.confirm {
				k.send("1 confirm.select")
			}
			k.out.full = true
			k.send(c.ask...)
			if paused := k.out.paused != 0; paused != c.want {
				t.Fatalf("paused: %t, want %t", paused, c.want)
			}
			k.out.full = false
			k.s.OnDrained()
			if k.out.paused != 0 {
				t.Fatal("still paused after the outbox drained")
			}
		})
	}
}

func TestPausedConnectionsAreNotDroppedForSilence(t *testing.T) {
	c := openChannel(t, newBroker(t), Options{})
	c.s.peer.Pause(broker.PauseJournal)
	c.send("1 basic.publish", fmt.Sprint("1 header size=", heldMost), fmt.Sprintf("1 body %q", strings.Repeat("x", heldMost)))
	c.tick(1000)
	if c.out.closed || c.out.paused == 0 {
		t.Fatal("dropped while it was not read")
	}
	c.s.peer.Resume(broker.PauseJournal)
	c.runTasks()
	c.tick(120)
	if c.out.closed {
		t.Fatal("dropped before it could say something")
	}
	c.tick(2)
	if !errors.Is(c.out.aborted, errHeartbeat) {
		t.Fatalf("after two intervals of silence: %v", c.out.aborted)
	}
}

// Of a client that is not read because it does not take its answers, taking them is the sign of life.
func TestClientThatTakesNoAnswersIsDropped(t *testing.T) {
	c := openChannel(t, newBroker(t), Options{})
	c.out.full = true
	c.send(`1 queue.declare queue="q"`)
	if c.out.paused == 0 {
		t.Fatal("still read")
	}
	for range 5 {
		c.out.lastSent = c.out.now
		c.tick(100)
		if c.out.closed {
			t.Fatal("dropped although it takes its answers")
		}
	}
	for range 4 {
		c.tick(100)
	}
	if !errors.Is(c.out.aborted, errHeartbeat) {
		t.Fatalf("after a long time without a sign of life: %v", c.out.aborted)
	}
}

func TestManyChannelNumbers(t *testing.T) {
	c := open(t, newBroker(t), Options{})
	for _, n := range []int{1, 255, 256, 2047, 65535} {
		s := strconv.Itoa(n)
		c.send(s+" channel.open", s+` queue.declare queue="q"`, s+` basic.publish routing-key="q"`, s+" header", s+" channel.close", s+" channel.open")
		got := c.got()
		if len(got) != 4 || got[3] != s+" channel.open-ok" {
			t.Fatal(list(got))
		}
	}
	if c.s.open != 5 {
		t.Errorf("%d channels open, want 5", c.s.open)
	}
}

// A long body is taken before the end of its frame is there; that end still counts.
func TestALongBodyWithAWrongEnd(t *testing.T) {
	c := openChannel(t, newBroker(t), Options{})
	in := (&amqp.BasicPublish{RoutingKey: []byte("q")}).AppendFrame(nil, 1)
	in = amqp.AppendContentHeader(in, 1, 10000, []byte{0, 0})
	in = amqp.AppendBody(in, 1, bytes.Repeat([]byte("b"), 10000), 131072)
	in[len(in)-1] = 0
	c.feed(in[:9000])
	c.feed(in[9000 : len(in)-2])
	if got := c.s.channel(1).content.got; got != 9999 {
		t.Errorf("%d bytes of the body were taken, want all but the last", got)
	}
	c.feed(in[len(in)-2:])
	c.expect(`0 connection.close reply-code=501 reply-text="FRAME_ERROR - type 3, all octets = <<\"b\">>: {invalid_frame_end_marker,0}"`, "closed")
}

// When its channel or connection ends in the middle of a long body, the rest of that frame is skipped.
func TestTheEndInTheMiddleOfALongBody(t *testing.T) {
	in := (&amqp.BasicPublish{RoutingKey: []byte("q")}).AppendFrame(nil, 1)
	in = amqp.AppendContentHeader(in, 1, 20000, []byte{0, 0})
	in = amqp.AppendBody(in, 1, make([]byte, 20000), 131072)
	c := openChannel(t, newBroker(t), Options{})
	c.feed(in[:9000])
	c.s.peer.Close(&broker.Error{Kind: broker.ConnectionForced, Text: "bye"})
	c.runTasks()
	c.expect(`0 connection.close reply-code=320 reply-text="CONNECTION_FORCED - bye"`)
	c.feed(in[9000:])
	c.expect()
	c.send("0 connection.close-ok")
	c.expect("closed")
}

func TestLosingTheFramesWhileClosing(t *testing.T) {
	c := openChannel(t, newBroker(t), Options{})
	c.send(`0 body "x"`)
	c.got()
	c.send(`raw "\x09\x00\x00\x00\x00\x00\x00\xce"`)
	c.expect()
	c.send(`raw "\x01\x00\x00\x00\x00\x00\x00\x00"`)
	c.expect("closed")
}

// While a commit waits for the disk, methods other than channel.close are an error.
func TestNothingButCloseDuringACommit(t *testing.T) {
	for _, lines := range [][]string{
		{`1 basic.ack delivery-tag=1`}, {`1 basic.publish routing-key="q"`}, {`1 queue.declare queue="q"`},
	} {
		c := openChannel(t, newBroker(t), Options{})
		c.send("1 tx.select")
		c.got()
		c.s.channel(1).committing.Store(true)
		c.send(lines...)
		if got := c.got(); len(got) != 1 || !strings.Contains(got[0], `CHANNEL_ERROR - unexpected command while processing 'tx.commit'`) {
			t.Error(list(got))
		}
	}
	c := openChannel(t, newBroker(t), Options{})
	c.s.channel(1).committing.Store(true)
	c.send("1 channel.close")
	c.expect("1 channel.close-ok")
}

// Every method a client may send: arguments cut short are 501 for that method, a table that does not
// decode is 502, and methods that only a server sends are 503.
func TestArgumentsThatDoNotDecode(t *testing.T) {
	b := newBroker(t)
	for _, id := range text.Methods() {
		if id.Class() == amqp.ClassConnection {
			continue
		}
		whole := text.Filled(id).Append(nil)
		if id == amqp.IDChannelOpen || id == amqp.IDChannelCloseOk || id == amqp.IDChannelFlowOk || id == amqp.IDBasicCancelOk {
			continue
		}
		about := " class-id=" + strconv.Itoa(int(id.Class())) + " method-id=" + strconv.Itoa(int(id.Method()))
		raise := func(payload []byte) string {
			c := openChannel(t, b, Options{})
			c.feed(amqp.AppendFrame(nil, amqp.Frame{Type: amqp.FrameMethod, Channel: 1, Payload: payload}))
			return strings.Join(c.got(), "\n")
		}
		if !id.FromClient() {
			if got := raise(whole); got != `0 connection.close reply-code=503 reply-text="COMMAND_INVALID - unimplemented method"`+about {
				t.Errorf("%s: %s", id, got)
			}
			continue
		}
		broken := append(bytes.Clone(whole), 0)
		if got := raise(broken); !strings.HasPrefix(got, `0 connection.close reply-code=501 reply-text="FRAME_ERROR - cannot decode <<`) || !strings.HasSuffix(got, about) {
			t.Errorf("%s: %s", id, got)
		}
		if at := bytes.Index(whole, []byte("\x03key")); at >= 0 {
			broken := bytes.Clone(whole)
			broken[at+4] = 'Z'
			if got := raise(broken); got != `0 connection.close reply-code=502 reply-text="SYNTAX_ERROR - table: unknown field tag 'Z'"`+about {
				t.Errorf("%s: %s", id, got)
			}
		}
	}
}

// Ten thousand channels, some closed by an error, leave their numbers and nothing else.
func TestChannelsComeAndGo(t *testing.T) {
	b := newBroker(t)
	c := open(t, b, Options{})
	for i := range 10_000 {
		n := strconv.Itoa(1 + i%2000) // above directChannels, too
		c.send(n+" channel.open", n+` basic.consume queue="amq.rabbitmq.reply-to" consumer-tag="t" no-ack`)
		if i%3 == 0 {
			c.send(n+` basic.get queue="nothing"`, n+" channel.close-ok")
		} else {
			c.send(n + " channel.close")
		}
	}
	if got := c.got(); !strings.HasSuffix(got[len(got)-1], "channel.close-ok") && !strings.Contains(got[len(got)-1], "no queue 'nothing'") {
		t.Fatalf("the last answer is %s", got[len(got)-1])
	}
	if c.s.open != 0 || len(c.s.others) != 0 {
		t.Errorf("%d channels open, %d with high numbers", c.s.open, len(c.s.others))
	}
	for _, ch := range c.s.channels {
		if ch != nil {
			t.Errorf("channel %d is left", ch.id)
		}
	}
	if n := b.Totals(); n.Channels != 0 || n.Consumers != 0 {
		t.Errorf("left: %+v", n)
	}
}
