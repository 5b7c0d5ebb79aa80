package amqp

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/firemq/firemq/frames/amqp/text"
)

// scripts gives, for every connection of the transcripts, all that its client sends after its login.
func scripts(t testing.TB) (all [][]byte) {
	files, _ := filepath.Glob("testdata/*.txt")
	for _, file := range files {
		script, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sent := map[string][]byte{}
		for line := range strings.Lines(string(script)) {
			who, rest, _ := strings.Cut(strings.TrimRight(line, "\n"), " ")
			switch {
			case rest == "open" || rest == "connect":
				if len(sent[who]) > 0 {
					all = append(all, sent[who])
				}
				sent[who] = nil
			case strings.HasSuffix(who, ">") && !strings.HasPrefix(rest, "raw \"AMQP") && !strings.Contains(rest, "*"):
				who = strings.TrimSuffix(who, ">") + "!"
				if b, err := text.Append(sent[who], rest); err == nil {
					sent[who] = b
				}
			}
		}
		for _, b := range sent {
			all = append(all, b)
		}
	}
	return all
}

// FuzzSession: whatever a client sends, with a login in front or without, the session takes it or ends,
// and keeps nothing (newBroker counts what is lent in race builds).
func FuzzSession(f *testing.F) {
	for _, b := range scripts(f) {
		f.Add(b, uint16(1<<15), true)
	}
	f.Add(encode(f, login...), uint16(7), false)
	f.Fuzz(func(t *testing.T, data []byte, piece uint16, loggedIn bool) {
		b := newBroker(t)
		c := newClient(t, b, Options{MaxMessageSize: 100000})
		if loggedIn {
			c.send(append(login, "1 channel.open")...)
		}
		for n := max(int(piece), 1); len(data) > 0 && !c.out.closed; {
			n = min(n, len(data))
			c.feed(data[:n])
			data = data[n:]
			if len(c.carry) > 131072+8 {
				t.Fatalf("%d bytes are left untaken", len(c.carry))
			}
		}
		if n := peakFrame(c.out.take()); n > 131072-8 {
			t.Fatalf("a frame of %d bytes was sent", n)
		}
		c.tick(400)
		if !c.out.closed && c.s.state != running {
			t.Fatalf("state %s after %d bytes is left for ever", c.s.state, len(c.carry))
		}
	})
}
