package amqp_test

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/firemq/firemq/frames/amqp"
	"github.com/firemq/firemq/frames/amqp/text"
)

type vector struct {
	line  string
	bytes []byte
}

func vectors(t testing.TB) (all []vector) {
	t.Helper()
	file, err := os.ReadFile("testdata/vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	line := ""
	for s := range strings.Lines(string(file)) {
		s = strings.TrimSpace(s)
		switch {
		case s == "" || s[0] == '#':
		case line == "":
			line = s
		default:
			b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			all = append(all, vector{line, b})
			line = ""
		}
	}
	if len(all) < 20 {
		t.Fatalf("only %d vectors", len(all))
	}
	return all
}

func TestVectorsDecode(t *testing.T) {
	for _, v := range vectors(t) {
		f, n, err := amqp.Next(v.bytes, amqp.MinFrameMax)
		if n != len(v.bytes) || err != nil {
			t.Errorf("%s: Next took %d of %d bytes, %v", v.line, n, len(v.bytes), err)
			continue
		}
		if got := text.Format(f); got != v.line {
			t.Errorf("got %s, want %s", got, v.line)
		}
	}
}

func TestVectorsEncode(t *testing.T) {
	for _, v := range vectors(t) {
		got, err := text.Append(nil, v.line)
		if err != nil {
			t.Error(err)
			continue
		}
		if !bytes.Equal(got, v.bytes) {
			t.Errorf("%s:\n got %x\nwant %x", v.line, got, v.bytes)
		}
	}
}

// Every method, each of its fields set, survives the way through a line and through octets.
func TestEveryMethodRoundTrips(t *testing.T) {
	ids := text.Methods()
	if len(ids) != 66 {
		t.Errorf("%d methods, want 66", len(ids))
	}
	for _, id := range ids {
		m := amqp.NewMethod(id)
		if m.ID() != id {
			t.Errorf("%s: NewMethod made %s", id, m.ID())
		}
		frame := text.Filled(id).AppendFrame(nil, 1)
		f, _, err := amqp.Next(frame, amqp.MinFrameMax)
		if err != nil {
			t.Fatal(err)
		}
		line := text.Format(f)
		if !strings.HasPrefix(line, "1 "+id.String()) {
			t.Errorf("%s is spelt %s", id, line)
		}
		again, err := text.Append(nil, line)
		if err != nil || !bytes.Equal(again, frame) {
			t.Errorf("%s: %v\n got %x\nwant %x", line, err, again, frame)
		}
		if !id.FromClient() && !id.FromServer() {
			t.Errorf("%s is sent by nobody", id)
		}
		args := f.Payload[4:]
		for cut := range len(args) {
			if err := m.Decode(args[:cut]); err == nil {
				t.Errorf("%s decodes from %d of %d octets", id, cut, len(args))
			}
		}
		if err := m.Decode(append(bytes.Clone(args), 0)); err != amqp.ErrArguments {
			t.Errorf("%s with an octet too much: %v", id, err)
		}
	}
}
